//! What is no leak though no pointer to its start is anywhere: what the program says of it, what the runtime keeps,
//! arrays of nothing.

use super::{DEFINITE, INDIRECT, REACHABLE, assert_checked, assert_ours, fixture, same, times};
use crate::support::fixtures;
use crate::support::leakcheck::Found;
use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::tempdir::TempDir;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// LeakSanitizer's annotations, with its runtime and without it.
#[test]
fn annotations_of_leak_sanitizer() {
    let expected = |former_region| {
        [
            same("ignored", REACHABLE),
            same("below_ignored", REACHABLE),
            same("while_disabled", times(2, REACHABLE)),
            same("in_region", REACHABLE),
            same("in_former_region", former_region),
            same("in_place_of_ignored", DEFINITE),
            same("lost", DEFINITE),
        ]
    };
    // the runtime's own table of regions keeps the address of the last one that was taken out of it
    for (flag, former_region) in [("-DOWN", INDIRECT), ("-fsanitize=leak", REACHABLE)] {
        let program = Program::new(fixtures::program_with("leaks/annotated", &[flag]));
        let program = program.stays_on_trap("its allocator may walk the stacks of its callers");
        assert_ours(&program, &expected(former_region));
    }
}

/// A program may tell of memory that is not there, or no longer: that ends neither the check nor its verdict.
#[test]
fn annotations_of_memory_that_is_not_there() {
    let expected = [same("in_region", REACHABLE), same("in_former_memory", DEFINITE), same("lost", DEFINITE)];
    let checked = assert_ours(&fixture("wild_regions"), &expected);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
}

#[test]
fn a_program_asks_for_the_check() {
    let expected = [same("lost_before", DEFINITE), same("held_then", REACHABLE)];
    let checked = assert_ours(&fixture("checked_now"), &expected);
    assert_eq!((checked.ended.code(), checked.report.text("/leaks/moment")), (23, "program"));
    assert_eq!(checked.report.number("/leaks/definite/bytes"), 100, "what was lost later is not told");
    assert!(checked.ended.stderr.contains("when the program asked for it"), "{}", checked.ended.stderr);
}

#[test]
fn annotations_hold_for_forked_children() {
    let program = fixture("told_then_forked");
    let expected = [same("while_disabled", REACHABLE), same("in_region", REACHABLE), same("lost", DEFINITE)];
    assert_checked(&program, program.checked(&["-f"]), &expected);
}

#[test]
fn arrays_of_nothing() {
    let checked = fixture("nothing").checked(&[]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
    assert_eq!(checked.report.number("/leaks/reachable/blocks"), 2 + started_with());
}

/// Blocks that each C++ program has: libstdc++'s reserve for exceptions.
fn started_with() -> u64 {
    1
}

/// Thread descriptors' tables, which the C library keeps with the stacks of ended threads.
#[test]
fn what_is_kept_of_joined_threads() {
    let checked = fixture("joined").checked(&[]);
    let [definite, indirect, possible, reachable] = Found::from_report(&checked.report).totals();
    assert_eq!([definite.blocks, indirect.blocks, possible.blocks], [0; 3], "{}", checked.ended.stderr);
    assert!(reachable.blocks >= 4);
}

/// Pointers that only the kernel has are asked for, those that were taken back from it do not count; what it tells
/// nobody is named.
#[test]
fn pointers_that_the_kernel_holds() {
    let expected = [
        same("signal_stack", REACHABLE),
        same("thread_s_signal_stack", REACHABLE),
        same("replaced_signal_stack", DEFINITE),
        same("value_of_timer", REACHABLE),
        same("value_of_deleted_timer", DEFINITE),
        same("data_of_epoll", REACHABLE),
        same("below_data", REACHABLE),
        same("data_taken_from_epoll", DEFINITE),
        same("base_of_gs", REACHABLE),
        same("replaced_base_of_gs", DEFINITE),
    ];
    let program = fixture("kernel_held");
    let checked = assert_ours(&program, &expected);
    assert_eq!(checked.report.list("/leaks/untold"), &[] as &[Value], "{}", checked.ended.stderr);
    let checked = program.clone().args(["request"]).checked(&["--explain", "signal_stack"]);
    assert_eq!(checked.report.list("/leaks/untold"), ["aio"], "{}", checked.ended.stderr);
    assert!(checked.ended.stderr.contains("heaptrace could not read (aio)"), "{}", checked.ended.stderr);
    assert!(checked.ended.stderr.contains("signal stack of thread"), "{}", checked.ended.stderr);
}

/// Frames of handlers that have returned hold nothing, wherever their stack lies; those of one that runs do.
#[test]
fn what_handlers_left_on_signal_stacks() {
    let expected = [
        same("left_in_variable", DEFINITE),
        same("left_in_block", DEFINITE),
        same("left_in_mapping", DEFINITE),
        same("left_below_handler", DEFINITE),
        same("in_handler", REACHABLE),
        same("beside_stack", REACHABLE),
        same("in_reused_frame", REACHABLE),
    ];
    assert_ours(&fixture("signal_stacks"), &expected);
}

/// What `leaks` says of the fixture with signal stacks, by `look`, which is given its id.
fn left_on_signal_stacks(look: impl FnOnce(&str) -> Value) -> Value {
    let mut running = fixture("signal_stacks").args(["waits"]).start();
    let pid = running.value("ready");
    let answer = look(&pid);
    running.feed(b"\n");
    running.wait().success();
    answer
}

/// How many blocks of a size are of this kind.
fn of_size(answer: &Value, kind: &str, size: u64) -> u64 {
    let mut rows = answer["sizes"].as_array().unwrap().iter();
    let row = rows.find(|row| row["kind"] == kind && row["size"] == size);
    row.map_or(0, |row| row["direct"]["blocks"].as_u64().unwrap())
}

fn lost_in(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["leaks", "--json"]).args(arguments).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The same in a process that nobody traces: its threads are asked, and the one on a signal stack has its frame. glibc
/// makes blocks of 48 bytes those of 56.
#[test]
fn what_handlers_left_on_signal_stacks_of_a_process_that_nobody_traces() {
    let answer = left_on_signal_stacks(|pid| lost_in(&[pid]));
    assert_eq!(answer["leaks"]["unasked_threads"], 0, "{answer}");
    assert_eq!(answer["leaks"]["untold"], serde_json::json!([]), "{answer}");
    for (size, blocks) in [(40, 1), (56, 2)] {
        assert_eq!(of_size(&answer, "leak_definite", size), blocks, "{size}: {answer}");
    }
    // in a frame of the handler that runs, and not what lies below it
    assert_eq!(of_size(&answer, "leak_reachable", 72), 1, "{answer}");
    assert_eq!(of_size(&answer, "leak_reachable", 88), 2, "{answer}");
}

/// Who can't be asked is counted; what it may hold is not lost, and a thread in a handler still tells by its frame.
#[test]
fn threads_that_cannot_be_asked_for_their_signal_stacks_are_counted() {
    let answer = left_on_signal_stacks(|pid| {
        let of_process = Pid::from_raw(pid.parse().unwrap());
        kill(of_process, Signal::SIGSTOP).unwrap();
        procfs::wait_until("it is stopped", || procfs::state(of_process.as_raw()) == Some('T'));
        let text = Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["leaks", pid]).output().unwrap().stdout;
        let text = String::from_utf8(text).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("heaptrace could not read the signal stacks of 4 threads"), "{text}");
        let answer = lost_in(&[pid]);
        kill(of_process, Signal::SIGCONT).unwrap();
        answer
    });
    assert_eq!(answer["leaks"]["unasked_threads"], 4, "{answer}");
    assert_eq!([40, 56].map(|size| of_size(&answer, "leak_definite", size)), [0, 0], "{answer}");
    assert_eq!(of_size(&answer, "leak_reachable", 72), 1, "below the frames of the handler that runs: {answer}");
}

/// A core says nothing of signal stacks, but the frame of a handler that runs does.
#[test]
fn a_handler_s_frame_in_a_core_tells_its_signal_stack() {
    let folder = TempDir::new();
    let answer = left_on_signal_stacks(|pid| {
        let gcore = installed(Path::new("/usr/bin/gcore"));
        let status = Command::new(gcore).arg("-o").arg(folder.path().join("core")).arg(pid).output().unwrap().status;
        assert!(status.success());
        lost_in(&["--core", folder.path().join(format!("core.{pid}")).to_str().unwrap()])
    });
    assert_eq!(answer["leaks"]["unasked_threads"], 4, "{answer}");
    assert_eq!(of_size(&answer, "leak_reachable", 72), 1, "below the frames of the handler that runs: {answer}");
    assert_eq!([40, 56].map(|size| of_size(&answer, "leak_definite", size)), [0, 0], "{answer}");
}

/// Pages behind the end of a mapped file are not memory that could not be read.
#[test]
fn mappings_longer_than_their_files() {
    let program = fixture("past_end");
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_heaptrace"), "check", "-o"]);
    unprivileged.arg(program.report_path()).arg("--");
    for checked in [program.checked(&[]), program.collect_checked(program.run_under(unprivileged))] {
        assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
        assert!(!checked.ended.stderr.contains("could not be read"), "{}", checked.ended.stderr);
    }
}

/// A way through a hundred links of one kind is a few lines, and stacks end at main.
#[test]
fn ways_through_lists_are_short() {
    let checked = fixture("list").checked(&["--explain", "add_link"]);
    let (_, way) = checked.ended.stderr.split_once("Blocks allocated through").expect("an explanation");
    let links = way.lines().filter(|line| line.trim_start().starts_with("-> ")).count();
    assert!(links <= 4, "{way}");
    assert!(way.contains("in the same way") && !way.contains("__libc_start"), "{way}");
}
