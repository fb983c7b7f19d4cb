//! heaptrace is killed while threads stand still, some of which have stopped for a signal: they get it.

use crate::support::procfs;
use crate::support::program::Program;

/// Kills heaptrace in front of one call of its edge after the other, `step` apart, until it comes through; at most
/// `most` times. Returns how often it was killed.
fn kill_at_each(order: &[&str], step: u32, most: u32) -> u32 {
    let mut target = Program::fixture("asked_by_signal").start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let pid_text = pid.to_string();
    let mut killed = 0;
    for round in 1..=most {
        let heaptrace = Program::new("/bin/true").env("HEAPTRACE_INJECT", format!("abort:{}", round * step));
        let ended = heaptrace.start_heaptrace(order.iter().copied().chain([pid_text.as_str()])).wait();
        target.send("have all arrived?");
        let told = target.line();
        assert!(told.starts_with("all of "), "{order:?}, killed at call {}: {told}", round * step);
        procfs::wait_until_let_go(pid);
        if ended.status.code().is_some() {
            break;
        }
        killed += 1;
    }
    target.feed(b"");
    target.wait().success();
    killed
}

#[test]
fn t42_a_heaptrace_that_is_killed_while_it_looks_for_leaks_takes_no_signal_with_it() {
    assert!(kill_at_each(&["leaks"], 7, 60) > 5);
}

#[test]
fn t42_a_heaptrace_that_is_killed_while_it_finds_the_blocks_there_are_takes_no_signal_with_it() {
    let order = ["attach", "--existing", "--duration", "1ms", "-o", "/dev/null", "--format", "folded"];
    assert!(kill_at_each(&order, 23, 40) > 5);
}
