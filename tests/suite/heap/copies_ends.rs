//! Copies of traced processes that end early: the process executes another program, or heaptrace is killed.

use super::HEAPTRACE;
use crate::support::procfs;
use crate::support::program::Program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Child, Command, Stdio};
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

/// A process that executes itself again and again while it is asked goes on, and each answer is one, or says why there is none. The statuses of copies that an exec has left are taken when the next
/// one is made: they do not pile up.
#[test]
fn a_process_that_executes_while_it_is_copied_goes_on() {
    for engine in ["trap", "jump"] {
        let program = Program::fixture("exec_loop").args(["0", "0"]);
        let mut running = program.start_traced(&["--engine", engine]);
        let pid: i32 = running.value("ready").parse().unwrap();
        let (mut answers, mut refusals, mut most_left) = (0, 0, 0);
        for _ in 0..super::super::rounds(40) {
            let output = ask(pid).wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            match output.status.code() {
                Some(0) => answers += 1,
                Some(125) if said.contains("become another program") => refusals += 1,
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

/// heaptrace is killed at any moment while a copy is made, read and ended: the process lives, sees nothing of it, and no copy of it lives.
#[test]
fn a_process_whose_tracer_is_killed_while_it_is_copied_lives() {
    for round in 0..super::super::rounds(24) {
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
