//! Copies of processes: that of a traced one is not seen by anybody, and where there can be none the process itself is
//! read.

use super::{HEAPTRACE, children, heap};
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// How heaptrace is there when `leaks` is asked for.
const TRACINGS: [&[&str]; 4] =
    [&["--engine", "trap"], &["--engine", "jump"], &["--engine", "trap", "-f"], &["--engine", "jump", "-f"]];

fn leaks(pid: i32) -> Value {
    let output = Command::new(HEAPTRACE).args(["leaks", "--json", &pid.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn start(running: &mut Running) -> i32 {
    running.value("ready").parse().unwrap()
}

/// It has got no signal, and sees no child.
fn assert_well(running: &mut Running, what: &str) {
    running.send("well");
    assert_eq!(running.line(), "well", "{what}");
}

/// A traced process stands only to be copied, too. It gets no signal for that, sees no child, and none is left; the
/// copy counts as no child of its.
#[test]
fn a_traced_process_is_copied_and_nothing_is_left_of_it() {
    for options in TRACINGS {
        let program = Program::fixture("copied");
        let mut running = program.start_traced(options);
        let pid = start(&mut running);
        for _ in 0..super::super::rounds(3) {
            let answer = leaks(pid);
            assert_eq!(answer["leaks"]["copied"], true, "{options:?}: {}", answer["leaks"]);
            assert_eq!(answer["leaks"]["definite"]["blocks"], 0, "{options:?}: {}", answer["leaks"]);
            procfs::wait_until("the status of the copy is taken", || children(pid).is_empty());
            assert_well(&mut running, &format!("{options:?}"));
        }
        let traced = program.collect(running.wait());
        assert_eq!(traced.ended.code(), 0);
        traced.report.assert_no_anomaly();
        assert_eq!(traced.report.number("/children/followed"), 0, "{options:?}");
        assert_eq!(traced.report.number("/children/untraced"), 0, "{options:?}");
    }
}

/// Whichever way memory is read, each block has the class that the program made it for.
#[test]
fn both_ways_tell_what_the_program_says() {
    for tracing in [&["--engine", "trap"][..], &["--engine", "jump"]] {
        for copied in [true, false] {
            let program = Program::fixture("lost_blocks");
            let program = if copied { program } else { program.args(["shared"]) };
            let mut running = program.start_traced(tracing);
            let mut told = [(0, 0); 4];
            let pid: i32 = loop {
                let line = running.line();
                match line.split(' ').collect::<Vec<_>>()[..] {
                    ["ready", pid] => break pid.parse().unwrap(),
                    ["asked", _] => {}
                    [kind, size, count] => {
                        let kinds = ["leak_definite", "leak_indirect", "leak_possible", "leak_reachable"];
                        let class = &mut told[kinds.iter().position(|known| *known == kind).unwrap()];
                        let (size, count): (u64, u64) = (size.parse().unwrap(), count.parse().unwrap());
                        *class = (class.0 + count, class.1 + count * size);
                    }
                    _ => panic!("{line}"),
                }
            };
            // one with a mapping of its own, too
            told[0] = (told[0].0 + 1, told[0].1 + (1 << 20));
            let answer = leaks(pid);
            let of = &answer["leaks"];
            assert_eq!(of["copied"], copied, "{tracing:?}: {of}");
            assert!(of["stopped_ns"].as_u64().is_some_and(|ns| ns > 0), "{of}");
            for (class, (blocks, bytes)) in ["definite", "indirect", "possible"].into_iter().zip(told) {
                assert_eq!(of[class]["blocks"], blocks, "{tracing:?}, copied {copied}: {class} of {of}");
                assert_eq!(of[class]["bytes"], bytes, "{tracing:?}, copied {copied}: {class} of {of}");
            }
            // the C library and its thread have some
            assert!(of["reachable"]["blocks"].as_u64().is_some_and(|blocks| blocks >= told[3].0), "{of}");
            running.feed(b"");
            running.wait().success();
        }
    }
}

/// What epoll watches is asked of a thread that lives: the first one's files are gone when it has ended.
#[test]
fn what_the_kernel_holds_is_found_when_the_first_thread_has_ended() {
    let mut running = Program::fixture("epoll_of_a_thread").start();
    let pid = start(&mut running);
    let answer = leaks(pid);
    assert_eq!(answer["leaks"]["definite"]["blocks"], 0, "{}", answer["leaks"]);
    running.feed(b"");
    running.wait().success();
}

/// Threads that are busy with the allocator, on breakpoints and in code of ours, go on as they were.
#[test]
fn a_busy_traced_process_is_copied_and_lives() {
    for engine in ["trap", "jump"] {
        let program = Program::fixture("victim").args(["4"]);
        let (victim, pid) = super::super::attach::start_victim(&program);
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&["--engine", engine], pid);
        procfs::wait_until_probed(pid);
        let mut copied = 0;
        for _ in 0..super::super::rounds(5) {
            copied += u32::from(leaks(pid)["leaks"]["copied"] == true);
        }
        assert!(copied > 0, "{engine}: never copied");
        attached.signal(nix::sys::signal::Signal::SIGINT);
        attached.wait().success();
        super::super::attach::assert_victim_well(victim, pid);
    }
}

/// Numbers that a traced thread writes one by one come once each.
#[test]
fn no_system_call_of_a_traced_process_is_made_twice() {
    let dir = crate::support::tempdir::TempDir::new();
    let file = dir.path().join("numbers");
    let mut running = Program::fixture("writes").args([file.to_str().unwrap()]).start_traced(&[]);
    let pid = start(&mut running);
    for _ in 0..super::super::rounds(8) {
        assert_eq!(leaks(pid)["leaks"]["copied"], true);
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    running.wait();
    let bytes = std::fs::read(&file).unwrap();
    let numbers = bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
    let wrong = numbers.enumerate().find(|(place, number)| *place as u64 != *number);
    assert_eq!(wrong, None, "of {} numbers", bytes.len() / 8);
}

/// What is asked of a process that there can be no copy of, or none that has all: the process itself is read, and is
/// well. `in_heap`: `heap` needs no more than a copy has.
fn assert_read(program: &Program, what: &str, in_heap: bool) {
    let assert_answer = |answer: &Value, copied: &Value| {
        assert_eq!(copied, false, "{what}: {answer}");
        assert_eq!(answer["leaks"]["definite"]["blocks"], 0, "{what}: {answer}");
        assert_eq!(answer["leaks"]["possible"]["blocks"], 0, "{what}: {answer}");
    };
    let mut running = program.start();
    let pid = start(&mut running);
    let answer = heap(pid, &[]);
    assert_eq!(answer["copied"], in_heap, "{what}: {answer}");
    assert_eq!(answer["lost"]["blocks"], 0, "{what}: {answer}");
    let answer = leaks(pid);
    assert_answer(&answer, &answer["copied"]);
    assert!(children(pid).is_empty(), "{what}");
    assert_well(&mut running, what);
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
    for engine in ["trap", "jump"] {
        let mut running = program.start_traced(&["--engine", engine]);
        let pid = start(&mut running);
        let answer = leaks(pid);
        assert_answer(&answer, &answer["leaks"]["copied"]);
        assert!(children(pid).is_empty(), "{what}");
        assert_well(&mut running, what);
        running.feed(b"");
        running.wait().success();
    }
}

fn copied(argument: &str) -> Program {
    Program::fixture("copied").args([argument])
}

/// Memory that fork(2) does not copy, that is empty in a copy, or that others may write to.
#[test]
fn memory_that_a_copy_would_lack_is_read_where_it_is() {
    for (argument, in_heap) in [("dontfork", false), ("wipeonfork", false), ("shared", true)] {
        assert_read(&copied(argument), argument, in_heap);
    }
}

/// A fork would wait for whoever serves the faults.
#[test]
fn memory_whose_faults_another_serves_is_read_where_it_is() {
    let mut running = copied("userfault").start();
    let has_it = running.line().starts_with("ready");
    running.feed(b"");
    running.wait().success();
    if has_it {
        assert_read(&copied("userfault"), "userfault", false);
    }
}

/// The process may make no other: a filter would end it for that, or its user has too many.
#[test]
fn a_process_that_may_make_no_other_is_read_where_it_is() {
    assert_read(&copied("seccomp"), "seccomp", false);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        assert_read(&copied("nproc"), "nproc", false);
    }
}

/// What a process writes to meanwhile needs memory a second time, which its control group may not have.
#[test]
fn a_process_of_a_tight_control_group_is_read_where_it_is() {
    for (limit, is_copied) in [(256 << 20, true), (10 << 20, false)] {
        let Some(group) = super::super::death::ControlGroup::of_memory(limit) else { return };
        for options in [None, Some("trap"), Some("jump")] {
            let program = Program::fixture("copied");
            let mut running = match options {
                None => program.start(),
                Some(engine) => program.start_traced(&["--engine", engine]),
            };
            let pid = start(&mut running);
            std::fs::write(group.procs(), pid.to_string()).unwrap();
            let answer = leaks(pid);
            let copied = if options.is_some() { &answer["leaks"]["copied"] } else { &answer["copied"] };
            assert_eq!(*copied, is_copied, "{limit}, {options:?}: {}", answer["leaks"]);
            assert_eq!(answer["leaks"]["definite"]["blocks"], 0, "{limit}, {options:?}: {}", answer["leaks"]);
            procfs::wait_until("the status of the copy is taken", || children(pid).is_empty());
            assert_well(&mut running, &format!("{limit}, {options:?}"));
            running.feed(b"");
            running.wait().success();
        }
    }
}
