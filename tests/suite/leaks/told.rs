//! What is no leak though no pointer to its start is anywhere: what the program says of it, what the runtime keeps, arrays of nothing.

use super::{DEFINITE, INDIRECT, REACHABLE, assert_checked, assert_ours, fixture, same, times};
use crate::support::fixtures;
use crate::support::leakcheck::Found;
use crate::support::program::Program;
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
    ];
    let program = fixture("kernel_held");
    let checked = assert_ours(&program, &expected);
    assert_eq!(checked.report.list("/leaks/untold"), &[] as &[serde_json::Value], "{}", checked.ended.stderr);
    let checked = program.clone().args(["request"]).checked(&["--explain", "signal_stack"]);
    assert_eq!(checked.report.list("/leaks/untold"), ["aio"], "{}", checked.ended.stderr);
    assert!(checked.ended.stderr.contains("it could not be asked for (aio)"), "{}", checked.ended.stderr);
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
