//! What is no leak though no pointer to its start is anywhere: what the program says of it, what the runtime keeps, arrays of nothing.

use super::{DEFINITE, INDIRECT, REACHABLE, assert_ours, fixture, same, times};
use crate::support::fixtures;
use crate::support::leakcheck::Found;
use crate::support::program::Program;

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
        assert_ours(&Program::new(fixtures::program_with("leaks/annotated", &[flag])), &expected(former_region));
    }
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

/// Pages behind the end of a mapped file are not memory that could not be read.
#[test]
fn mappings_longer_than_their_files() {
    let checked = fixture("past_end").checked(&[]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    assert!(!checked.ended.stderr.contains("could not be read"), "{}", checked.ended.stderr);
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
