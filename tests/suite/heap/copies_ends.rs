//! Copies of traced processes that end early: the process executes another program, or heaptrace is killed.

use super::HEAPTRACE;
use crate::support::procfs;
use crate::support::program::Program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn ask(pid: i32) -> Child {
    let mut command = Command::new(HEAPTRACE);
    command.args(["leaks", "--json", &pid.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The children of a process that has none of its own, by whether they live.
fn copies(pid: i32) -> (Vec<i32>, Vec<i32>) {
    let children = procfs::children(pid).into_iter();
    children.partition(|child| !matches!(procfs::state(*child), None | Some('Z' | 'X')))
}

/// A process that executes itself again and again while it is asked goes on, and each answer is one, or says why there
/// is none. The statuses of copies that an exec has left are taken when the next one is made: they do not pile up.
#[test]
fn a_process_that_executes_while_it_is_copied_goes_on() {
    for engine in ["trap", "jump"] {
        let program = Program::fixture("exec_loop").args(["0", "0"]);
        let mut running = program.start_traced(&["--engine", engine]);
        let pid: i32 = running.value("ready").parse().unwrap();
        let (mut answers, mut refusals, mut most_left) = (0, 0, 0);
        for _ in 0..super::super::rounds(15) {
            let output = ask(pid).wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            match output.status.code() {
                Some(0) => answers += 1,
                Some(125) if said.contains("executed another program") => refusals += 1,
                code => panic!("{engine}: {code:?}: {said}"),
            }
            most_left = most_left.max(copies(pid).1.len());
        }
        println!("{engine}: {answers} answers, {refusals} refusals, {most_left} zombies at most");
        procfs::wait_until("no copy lives", || copies(pid).0.is_empty());
        assert!(most_left <= 5, "{engine}: {most_left} zombies");
        assert!(running.is_alive() && procfs::state(pid).is_some(), "{engine}");
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        running.wait();
    }
}

/// heaptrace is killed at any moment while a copy is made, read and ended: the process lives, sees nothing of it, and
/// no copy of it lives.
#[test]
fn a_process_whose_tracer_is_killed_while_it_is_copied_lives() {
    for round in 0..super::super::rounds(8) {
        let engine = ["trap", "jump"][round as usize % 2];
        let mut running = Program::fixture("copied").start();
        let pid: i32 = running.value("ready").parse().unwrap();
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&["--engine", engine], pid);
        procfs::wait_until_answered(pid);
        let mut asker = ask(pid);
        // at another moment each time
        let (since, after) = (Instant::now(), Duration::from_micros(u64::from(round) * 1700));
        procfs::wait_until("its moment has come", || since.elapsed() > after);
        kill(Pid::from_raw(attached.pid()), Signal::SIGKILL).unwrap();
        attached.assert_killed();
        asker.wait().unwrap();
        procfs::wait_until("no copy lives", || copies(pid).0.is_empty());
        let zombies = copies(pid).1;
        assert!(zombies.len() <= 1, "round {round}, {engine}: {zombies:?}");
        procfs::wait_until_let_go(pid);
        running.send("well");
        assert_eq!(running.line(), "well", "round {round}, {engine}");
        running.feed(b"");
        running.wait().success();
        assert!(zombies.iter().all(|zombie| procfs::state(*zombie).is_none_or(|state| state != 'S' && state != 'R')));
    }
}

/// Who makes a copy is told to stop just then, or the copy dies: the process itself is read, it does what it was told,
/// and no zombie is left.
#[test]
fn a_copy_that_is_of_no_use_leaves_nothing() {
    for (order, question) in
        ["copy:stopped", "copy:killed"].iter().flat_map(|order| ["heap", "leaks"].map(|of| (*order, of)))
    {
        let mut running = Program::fixture("copied").start();
        let pid: i32 = running.value("ready").parse().unwrap();
        let mut command = Command::new(HEAPTRACE);
        command.args([question, "--json", &pid.to_string()]).env("HEAPTRACE_INJECT", order);
        assert!(!was_copied(&command.output().unwrap(), "/copied"), "{order}, {question}");
        assert_eq!(copies(pid), (vec![], vec![]), "{order}, {question}");
        if order == "copy:stopped" {
            procfs::wait_until("it has stopped", || procfs::state(pid) == Some('T'));
            running.signal(Signal::SIGCONT);
        }
        running.send("well");
        assert_eq!(running.line(), "well", "{order}, {question}");
        running.feed(b"");
        running.wait().success();
    }
}

/// The same of a process that heaptrace traces: when it goes on, a thread of it takes the status of the copy.
#[test]
fn a_copy_of_a_traced_process_that_is_of_no_use_leaves_nothing() {
    for (order, engine) in
        ["copy:stopped", "copy:killed"].iter().flat_map(|order| ["trap", "jump"].map(|of| (*order, of)))
    {
        let program = Program::fixture("copied").env("HEAPTRACE_INJECT", order);
        let mut running = program.start_traced(&["--engine", engine]);
        let pid: i32 = running.value("ready").parse().unwrap();
        assert!(!was_copied(&ask(pid).wait_with_output().unwrap(), "/leaks/copied"), "{order}, {engine}");
        if order == "copy:stopped" {
            // until it goes on it can't take the status
            procfs::wait_until("the copy was made", || !copies(pid).1.is_empty());
            kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
        }
        procfs::wait_until("the status of the copy is taken", || copies(pid) == (vec![], vec![]));
        running.send("well");
        assert_eq!(running.line(), "well", "{order}, {engine}");
        // the next one is of use
        assert!(was_copied(&ask(pid).wait_with_output().unwrap(), "/leaks/copied"), "{order}, {engine}");
        running.feed(b"");
        assert_eq!(program.collect(running.wait()).ended.code(), 0, "{order}, {engine}");
    }
}

fn was_copied(output: &Output, pointer: &str) -> bool {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer.pointer(pointer).and_then(Value::as_bool).unwrap()
}
