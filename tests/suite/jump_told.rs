//! What is told of the engines: when and why a process came to the jump engine, what stays at stops, what `doctor`
//! expects.

use super::counts::assert_sites;
use crate::support::procfs;
use crate::support::program::{Program, Traced};

/// The summary without its line breaks.
fn summary(traced: &Traced) -> String {
    traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The line of `heaptrace doctor PID` about the process's engine.
fn expected_engine(pid: i32) -> String {
    let asked = Program::new("/bin/true").start_heaptrace(["doctor", &pid.to_string()]);
    let text = asked.wait().text();
    text.lines().find(|line| line.contains("its engine")).unwrap_or_default().to_owned()
}

#[test]
fn when_and_why_auto_changes_is_told() {
    let program = Program::fixture("threads").args(["8", "10000"]).env("HEAPTRACE_ENGINE", "auto");
    let traced = program.traced();
    assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
    assert!(traced.report.number("/promotion/stops_permille") >= 200);
    let (after, wall) = (traced.report.number("/promotion/after_ns"), traced.report.number("/cost/wall_ns"));
    assert!(after > 0 && after < wall, "{after} of {wall}");
    assert!(
        summary(&traced).contains("changed from the trap engine to the jump engine after"),
        "{}",
        traced.ended.stderr
    );

    let asked = Program::fixture("known").traced_with(&["--engine", "jump"]);
    assert!(asked.report.0["promotion"]["stops_permille"].is_null() && asked.report.number("/promotion/after_ns") > 0);
    assert!(!summary(&asked).contains("changed from the trap engine"), "{}", asked.ended.stderr);
    let trap = Program::fixture("known").traced_with(&["--engine", "trap"]);
    assert!(trap.report.0["promotion"].is_null());
}

/// Threads for which there are no cells are seen at stops, each of their calls, and are told of.
#[test]
fn more_threads_than_there_is_room_for_are_told() {
    let program = Program::fixture("threads").args(["110", "100", "stay"]);
    let traced = program.traced_with(&["--engine", "jump"]);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
    assert!(summary(&traced).contains("has room for 96 threads at once"), "{}", traced.ended.stderr);
}

/// J38: a seccomp filter that comes when the process is on the jump engine already, and ends the process for what
/// heaptrace might have it call, is not met: neither while it is recorded, nor at the detach.
#[test]
fn j38_a_filter_that_comes_later_is_not_met() {
    let program = Program::fixture("seccomp").args(["late"]);
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true").env("HEAPTRACE_ENGINE", "jump");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    for _ in 0..3 {
        target.send("go");
        assert_eq!(target.line(), "done");
    }
    procfs::order(pid, "detach");
    let told = attached.wait().success().stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("allocated 600") && told.contains("engine jump"), "{told}");
    // it can't be taken out any more
    assert!(told.contains("heaptrace's handler for SIGTRAP stays"), "{told}");
    target.send("go");
    assert_eq!(target.line(), "done");
    target.wait().success();
}

#[test]
fn doctor_tells_the_engine_of_a_process() {
    for (fixture, mode, expected) in [
        ("seccomp", "wait", "trap, a stop at each of its calls, as it filters its system calls"),
        ("seccomp", "late", "trap at first, jump"),
    ] {
        let mut target = Program::fixture(fixture).args([mode]).start();
        let pid: i32 = target.value("ready").parse().unwrap();
        let told = expected_engine(pid);
        assert!(told.contains(expected), "{told}");
        target.wait().success();
    }
    let profiled = Program::fixture("seccomp")
        .args(["late"])
        .env("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
        .env("MALLOC_CONF", "abort_conf:false,prof:true");
    let mut target = profiled.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let told = expected_engine(pid);
    assert!(told.contains("its allocator may walk the stacks of its callers"), "{told}");
    target.wait().success();
}
