//! Who traces heaptrace is not traced by it, at whatever distance. Two that trace each other may never end, not even by
//! SIGKILL: so in all of these tests the fixture `traces` forbids the heaptrace in question to attach to anything, and
//! the refusal has to come before it tries.

use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::running::Ended;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");
const REFUSAL: &str = "it is in this heaptrace's own chain of tracers: heaptrace is traced by process ";

fn run(program: &str, args: &[&str]) -> Ended {
    Program::new(program).args(args).plain()
}

/// The fixture's way to start heaptrace with an order, without the right to attach to anything.
fn forbidden(order: &str) -> String {
    format!("exec {} 0 leader {HEAPTRACE} {order}", fixtures::program("traces").display())
}

fn assert_refused(ended: &Ended, chain: &str) {
    assert!(
        ended.stderr.contains(REFUSAL) && ended.stderr.contains(chain),
        "not refused as {chain}:\n{}",
        ended.stderr
    );
}

#[test]
fn a_tracer_is_refused_by_every_command_and_at_any_distance() {
    let traces = fixtures::program("traces");
    let orders: [&[&str]; 4] = [
        &["attach", "-o", "/dev/null", "--format", "folded", "TRACER"],
        &["attach", "--existing", "-f", "-o", "/dev/null", "--format", "folded", "TRACER"],
        &["heap", "TRACER"],
        &["leaks", "TRACER"],
    ];
    for (order, (levels, by)) in orders.iter().zip([("1", "leader"), ("1", "thread"), ("3", "leader"), ("2", "thread")])
    {
        let ended = run(traces.to_str().unwrap(), &[&[levels, by, HEAPTRACE], *order].concat());
        assert_refused(&ended, "(traces)");
        let distance = ended.stderr.matches("(traces)").count();
        assert_eq!(distance.to_string(), *levels, "{}", ended.stderr);
    }
}

#[test]
fn a_stranger_is_not_taken_for_a_tracer() {
    let traces = fixtures::program("traces");
    let stranger = Program::fixture("forever").start();
    let pid = stranger.pid().to_string();
    let ended = run(
        traces.to_str().unwrap(),
        &["1", "leader", HEAPTRACE, "attach", "-o", "/dev/null", "--format", "folded", &pid],
    );
    assert!(ended.stderr.contains("could not attach") && !ended.stderr.contains("chain"), "{}", ended.stderr);
}

#[test]
fn heaptrace_refuses_the_heaptrace_that_started_it_and_its_guardian() {
    let attach = "attach -o /dev/null --format folded";
    for follow in [None, Some("-f")] {
        for (of, name) in [
            ("$PPID", "(heaptrace)"),
            ("$(pgrep -P $PPID -f '^guardian stand-guard')", "(heaptrace), which is traced by process "),
        ] {
            let script = match follow {
                None => forbidden(&format!("{attach} {of}")),
                Some(_) => format!("({}); exit 0", forbidden(&format!("{attach} {of}"))),
            };
            let mut args = vec!["run", "-o", "/dev/null", "--format", "folded"];
            args.extend(follow);
            args.extend(["--", "/bin/sh", "-c", &script]);
            assert_refused(&run(HEAPTRACE, &args), name);
        }
    }
}

#[test]
fn heaptrace_refuses_the_debugger_that_it_runs_in() {
    let script = forbidden("leaks $PPID");
    let ended = run("gdb", &["-nx", "-batch", "-ex", "run", "--args", "/bin/sh", "-c", &script]);
    assert_refused(&ended, "(gdb)");
    let ended = run("strace", &["-o", "/dev/null", "/bin/sh", "-c", &script]);
    assert_refused(&ended, "(strace)");
}

/// Anyone may lock /proc, for ever: an attach waits for that for two seconds, and then goes on. In a mount of /proc of
/// its own, as other tests attach, too.
#[test]
fn a_stranger_that_locks_proc_does_not_keep_heaptrace() {
    let mut target = Program::fixture("forever").start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let attach = format!("{HEAPTRACE} attach --duration 50ms -o /dev/null --format folded {pid}");
    let began = Instant::now();
    let script = format!("mount -t proc proc /proc && exec flock /proc {attach}");
    run("/usr/bin/unshare", &["--mount", "/bin/sh", "-c", &script]).success();
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}: the lock was not met");
    assert!(took < Duration::from_secs(30), "{took:?}");
    target.signal(Signal::SIGKILL);
    target.assert_killed();
}
