//! After detach nothing is left: code, threads, sleeps and stops are as they were.

use super::attach::{assert_victim_well, attach_while_it_works, start_victim};
use super::signals::wait_until_stopped;
use crate::support::procfs;
use crate::support::program::Program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::FileExt;

/// T05: threads asleep in every kind of call that a tracer can end early sleep to their limit, through an attach and a
/// detach.
#[test]
fn t05_sleepers_are_not_woken() {
    let program = Program::fixture("sleepers").args(["3000"]);
    let mut sleepers = program.start();
    let pid: i32 = sleepers.value("asleep").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let ended = tracer.start_attached(&["--duration", "200ms"], pid).wait().success();
    assert_eq!(procfs::tracer_of(pid), 0);
    procfs::assert_left_as_it_was(pid);
    for _ in 0..11 {
        let line = sleepers.line();
        assert!(line.ends_with("on time 0"), "{line}\n{}", ended.stderr);
    }
    sleepers.wait().success();
}

/// T05: the same at the detach of a launched program, one of whose threads has to take our handler for SIGTRAP out.
#[test]
fn t05_sleepers_are_not_woken_by_the_end_of_run() {
    let program = Program::fixture("sleepers").args(["3000"]);
    let mut sleepers = program.start_traced(&[]);
    let pid: i32 = sleepers.value("asleep").parse().unwrap();
    procfs::order(pid, "detach");
    wait_until_let_go(pid);
    for _ in 0..11 {
        let line = sleepers.line();
        assert!(line.ends_with("on time 0"), "{line}");
    }
    sleepers.wait().success();
}

/// T05: the same where there is one thread only.
#[test]
fn t05_a_lone_sleeper_is_not_woken() {
    for name in ["epoll_wait", "poll", "select", "nanosleep", "futex", "semtimedop", "sigtimedwait", "recv"] {
        let program = Program::fixture("sleepers").args(["1500", name]);
        let mut sleeper = program.start_traced(&[]);
        let pid: i32 = sleeper.value("asleep").parse().unwrap();
        procfs::wait_until("it sleeps", || procfs::state(pid) == Some('S'));
        procfs::order(pid, "detach");
        wait_until_let_go(pid);
        assert_eq!(sleeper.line(), format!("{name} on time 0"));
        sleeper.wait().success();
    }
}

fn wait_until_let_go(pid: i32) {
    procfs::wait_until_let_go(pid);
    assert!(!procfs::catches(pid, Signal::SIGTRAP), "our handler for SIGTRAP is still there");
}

/// T39: after a detach by Ctrl-C every byte of code equals its file and no thread has a tracer.
#[test]
fn t39_t41_ctrl_c_in_attach_detaches() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let program = Program::fixture("victim").args(["3"]);
        let (victim, pid) = start_victim(&program);
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_probed(pid);
        attached.signal(signal);
        let traced = tracer.collect(attached.wait());
        assert_eq!(traced.ended.code(), 0, "{signal}");
        assert_victim_well(victim, pid);
    }
}

/// T39: a process stopped before the attach stays stopped, and after the detach SIGCONT wakes it.
#[test]
fn t39_stopped_before_attach_stays_stopped() {
    let program = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&program);
    victim.signal(Signal::SIGSTOP);
    wait_until_stopped(pid);
    let tracer = Program::new("/bin/true");
    tracer.start_attached(&["--duration", "200ms"], pid).wait().success();
    assert_eq!(procfs::tracer_of(pid), 0);
    assert_eq!(procfs::state(pid), Some('T'));
    procfs::assert_text_intact(pid);
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    assert_victim_well(victim, pid);
}

/// T39: a process stopped while it is traced stays stopped over the detach.
#[test]
fn t39_stopped_while_traced_stays_stopped() {
    let program = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    wait_until_stopped(pid);
    attached.signal(Signal::SIGINT);
    attached.wait().success();
    assert_eq!(procfs::tracer_of(pid), 0);
    assert_eq!(procfs::state(pid), Some('T'));
    procfs::assert_text_intact(pid);
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    assert_victim_well(victim, pid);
}

/// T40: detach at many different moments under the load of eight threads, which run in what time heaptrace leaves them:
/// else it would wait for its turn most of the time.
#[test]
fn t40_detach_at_random_times() {
    let victim = crate::support::fixtures::program("victim");
    let program = Program::new("/usr/bin/nice").args(["-n", "10", victim.to_str().unwrap(), "8"]);
    let (victim, pid) = start_victim(&program);
    for round in 0..crate::suite::rounds(15) {
        let tracer = Program::new("/bin/true");
        let duration = format!("{}us", 1000 + round * 7919 % 60_000);
        tracer.start_attached(&["--duration", &duration], pid).wait().success();
        procfs::assert_left_as_it_was(pid);
    }
    assert_victim_well(victim, pid);
}

/// T41: two Ctrl-C in a row shorten the report at most, never the cleaning up.
#[test]
fn t41_impatient_ctrl_c_in_attach() {
    let program = Program::fixture("victim").args(["8"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    attached.signal(Signal::SIGINT);
    // it may be gone by now
    let _ = kill(Pid::from_raw(attached.pid()), Signal::SIGINT);
    attached.wait().success();
    assert_victim_well(victim, pid);
}

/// A parent in vfork can't take the handler for SIGTRAP out before its child lets it: the detach waits for that.
#[test]
fn a_parent_in_vfork_is_left_without_our_handler() {
    let program = Program::fixture("vfork_waits");
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    let asker = program.start_heaptrace(["ctl", &pid.to_string(), "detach"]);
    let code_is_back = |pid| {
        procfs::text_differences(pid).into_iter().all(|(file, offset)| {
            let mut byte = [0];
            FileExt::read_exact_at(&std::fs::File::open(file).unwrap(), &mut byte, offset).unwrap();
            byte == [0]
        })
    };
    procfs::wait_until("the detach has begun", || code_is_back(pid));
    assert!(procfs::catches(pid, Signal::SIGTRAP), "the handler is there as long as nobody can take it out");
    running.send("go on");
    assert_eq!(running.line(), "back");
    procfs::wait_until_let_go(pid);
    assert!(!procfs::catches(pid, Signal::SIGTRAP));
    asker.wait().success();
    running.send("end");
    let traced = program.collect(running.wait().success());
    assert!(traced.report.list("/warnings").is_empty(), "{:?}", traced.report.list("/warnings"));
}

/// A target can be attached to again after a detach.
#[test]
fn attach_twice_in_a_row() {
    let program = Program::fixture("victim").args(["2"]);
    let (mut victim, pid) = start_victim(&program);
    for _ in 0..2 {
        let traced = attach_while_it_works(&mut victim, pid);
        assert!(traced.report.total("allocations") > 0);
    }
    assert_victim_well(victim, pid);
}

/// Threads that have come and gone before their parents' events were served are not waited for.
#[test]
fn a_detach_waits_for_no_thread_that_has_ended() {
    for _ in 0..crate::suite::rounds(4) {
        let program = Program::fixture("victim").args(["3", "churn"]);
        let mut running = program.start_traced(&["-v", "--duration", "150ms"]);
        let pid: i32 = running.value("ready").parse().unwrap();
        procfs::wait_until_let_go(pid);
        running.feed(b"");
        assert_eq!(running.line(), "ok");
        let traced = program.collect(running.wait().success());
        assert!(!traced.ended.stderr.contains("did not stop"), "{}", traced.ended.stderr);
    }
}

/// What a process makes of SIGTRAP: blocked, by thread, ignored, caught.
fn trap_state(pid: i32) -> Vec<(i32, [Option<String>; 3])> {
    let mut threads = procfs::threads(pid);
    threads.sort_unstable();
    let state = |tid| ["SigBlk", "SigIgn", "SigCgt"].map(|name| procfs::status_field(tid, name));
    threads.into_iter().map(|tid| (tid, state(tid))).collect()
}

/// T07: an attach and a detach leave SIGTRAP's action and all masks as they were, whatever a thread has hit last.
fn trap_state_outlives_attaches(mode: &str, threads: &str) {
    let program = Program::fixture("trap_state").args([mode, threads]);
    let (mut victim, pid) = start_victim(&program);
    let before = trap_state(pid);
    for _ in 0..crate::suite::rounds(6) {
        let traced = attach_while_it_works(&mut victim, pid);
        procfs::wait_until_let_go(pid);
        // what a thread of this mode blocks changes all the time
        if mode != "changing" {
            assert_eq!(trap_state(pid), before, "{mode}, {threads} threads: {}", traced.ended.stderr);
        }
        let text = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!text.contains("could not restore it"), "{text}");
    }
    assert_victim_well(victim, pid);
}

/// T07 with SIGTRAP ignored.
#[test]
fn t07_sigtrap_stays_ignored() {
    trap_state_outlives_attaches("ignored", "1");
    trap_state_outlives_attaches("ignored", "3");
}

/// T07 with all signals blocked.
#[test]
fn t07_sigtrap_stays_blocked_with_all_others() {
    trap_state_outlives_attaches("blocked", "3");
    trap_state_outlives_attaches("handled", "3");
}

/// T07 with SIGTRAP alone blocked, so that the mask does not tell.
#[test]
fn t07_sigtrap_stays_blocked_alone() {
    trap_state_outlives_attaches("masked", "1");
    trap_state_outlives_attaches("masked", "3");
    trap_state_outlives_attaches("alone", "1");
    trap_state_outlives_attaches("alone", "3");
}

/// T07 with a thread that blocks SIGTRAP now and then.
#[test]
fn t07_sigtrap_is_blocked_only_when_it_was() {
    trap_state_outlives_attaches("changing", "1");
}
