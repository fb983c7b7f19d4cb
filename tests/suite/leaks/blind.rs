//! A check that saw nothing, or not enough, is never green.

use super::fixture;
use crate::support::program::{Checked, Program};
use crate::support::{fixtures, procfs};
use nix::sys::signal::Signal;

/// Fails unless the check says that it could not judge, and why.
fn assert_inconclusive(checked: &Checked, why: &str) {
    assert_eq!(checked.ended.code(), 125, "{}", checked.ended.stderr);
    assert_eq!(checked.report.text("/verdict/result"), "inconclusive");
    assert!(!checked.report.list("/verdict/reasons").is_empty());
    assert!(checked.ended.stderr.contains(why), "no {why:?} in\n{}", checked.ended.stderr);
}

/// A static program without symbols, whose allocator nobody can find.
#[test]
fn stripped_static_program() {
    let program = Program::new(fixtures::program_with("leaks/ways_out", &["-static", "-s"])).args(["return"]);
    assert_eq!(program.plain().code(), 0);
    assert_inconclusive(&program.checked(&[]), "no allocator");
}

/// Blocks are handed out again of which no release was seen.
#[test]
fn lost_events() {
    let program = fixture("half_seen");
    let checked = program.checked(&["--alloc-fn", "take"]);
    assert!(checked.report.anomaly("lost") > 0);
    assert_inconclusive(&checked, "missed");
    let checked = program.checked(&["--alloc-fn", "take", "--free-fn", "give"]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
}

/// Killed. Where the kernel still gave notice, memory was read, and the status is the program's own; never 0.
#[test]
fn killed_by_sigkill() {
    let checked = fixture("ways_out").args(["kill"]).checked(&[]);
    let result = checked.report.text("/verdict/result");
    let read = !checked.report.0["leaks"].is_null();
    let expected = if read { (137, "program_failed") } else { (125, "inconclusive") };
    assert_eq!((checked.ended.code(), result), expected, "{}", checked.ended.stderr);
    assert!(checked.ended.stderr.contains("killed"), "{}", checked.ended.stderr);
}

/// It becomes another program, of which nothing can be seen. What the first one lost is gone with it, and is no answer.
#[test]
fn executed_away() {
    let blind = fixtures::program_with("leaks/ways_out", &["-static", "-s"]);
    let program = fixture("exec_away").args([blind.to_str().unwrap(), "return"]);
    assert_inconclusive(&program.checked(&[]), "no allocator");
    let blind = fixtures::program("leaks/thirty_two");
    let program = fixture("exec_away").args([blind]);
    assert_inconclusive(&program.checked(&[]), "32-bit");
}

/// The image that is left is the one that is judged.
#[test]
fn executed_into_a_program_that_can_be_judged() {
    let next = fixtures::program("leaks/clean/plain");
    let checked = fixture("exec_away").args([next]).checked(&[]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
    assert_eq!(checked.report.list("/images").len(), 1, "the one before");
    let next = fixtures::program("leaks/chains");
    let checked = fixture("exec_away").args([next]).checked(&[]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
}

/// A program that heaptrace can't trace at all.
#[test]
fn thirty_two_bits() {
    let program = fixture("thirty_two");
    assert_eq!(program.plain().code(), 0);
    let ended = program.start_checked(&[]).wait();
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("32-bit") && !program.report_path().exists(), "{}", ended.stderr);
}

/// A leaking program below a shell is named, and makes the check inconclusive if all is to be judged.
#[test]
fn leaking_child_of_a_shell() {
    let leaking = fixtures::program("leaks/chains");
    let script = format!("{}; exit $?", leaking.display());
    let shell = Program::new("/bin/sh").args(["-c", &script]);
    assert_inconclusive(&shell.checked(&["--require-all"]), "chains");
    let checked = shell.checked(&[]);
    assert!(checked.ended.stderr.contains("chains"), "the child is not named\n{}", checked.ended.stderr);
    // the shell becomes the program: nothing is unseen
    let shell = Program::new("/bin/sh").args(["-c", &format!("exec {}", leaking.display())]);
    assert_eq!(shell.checked(&["--require-all"]).ended.code(), 23);
}

/// The user sends heaptrace away before the program has ended.
#[test]
fn interrupted_twice() {
    let program = fixture("until_input");
    let mut running = program.start_checked(&[]);
    let pid = running.value("ready").parse().unwrap();
    // two that come at once are one
    procfs::wait_until("heaptrace goes away", || {
        running.signal(Signal::SIGINT);
        procfs::tracer_of(pid) == 0
    });
    let checked = program.collect_checked(running.wait());
    assert_eq!(checked.ended.code(), 125, "{}", checked.ended.stderr);
    assert_eq!(checked.report.text("/verdict/result"), "inconclusive");
}
