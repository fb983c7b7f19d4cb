//! What libraries and allocators keep for themselves: told apart, and no reason to fail. What is lost beside it still
//! is one.

use crate::suite::realprograms::jq;
use crate::support::fixtures;
use crate::support::program::{Checked, Program, installed};
use std::path::Path;

/// Exit status, bytes that are known, bytes that are definitely lost.
fn judged(checked: &Checked) -> (i32, u64, u64) {
    let bytes = |class: &str| checked.report.number(&format!("/leaks/{class}/bytes"));
    (checked.ended.code(), bytes("known"), bytes("definite"))
}

#[test]
fn what_a_driver_keeps_is_known() {
    let driver = fixtures::library("leaks/libnvidia-pretended");
    let program = Program::new(fixtures::program_linked("leaks/uses_driver", &[&driver]));
    let checked = program.checked(&[]);
    assert_eq!(judged(&checked), (0, 1500, 0), "{}", checked.ended.stderr);
    let told = checked.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("known: 1,500 bytes in 2 blocks"), "{told}");
    assert_eq!(checked.report.text("/suppressions/0/file"), "known leaks of libraries, version 1");
    let checked = program.checked(&["--no-known-leaks"]);
    assert_eq!(judged(&checked), (23, 0, 1000), "{}", checked.ended.stderr);
    // what the program loses in a function that it calls, and what it loses again and again
    let checked = program.clone().args(["more"]).checked(&[]);
    assert_eq!(judged(&checked), (23, 1500, 72 + 100 * 24), "{}", checked.ended.stderr);
}

#[test]
fn what_an_allocator_keeps_of_its_constructors_is_its_own() {
    let allocator = fixtures::library("leaks/own_allocator");
    let program = Program::new(fixtures::program_linked("leaks/uses_allocator", &[&allocator]));
    let checked = program.checked(&[]);
    assert_eq!(judged(&checked), (0, 48, 0), "{}", checked.ended.stderr);
    let checked = program.checked(&["--no-known-leaks"]);
    assert_eq!(judged(&checked), (23, 0, 48), "{}", checked.ended.stderr);
    let checked = program.clone().args(["more"]).checked(&[]);
    assert_eq!(judged(&checked), (23, 48, 56 + 72), "{}", checked.ended.stderr);
}

/// That the user names a function of a library makes that no allocator: what its constructor loses is lost.
#[test]
fn a_library_of_a_named_function_has_nothing_of_its_own() {
    let library = fixtures::library("leaks/own_pool");
    let program = Program::new(fixtures::program_linked("leaks/uses_allocator", &[&library]));
    let checked = program.checked(&["--alloc-fn", "pool_take:size=arg1"]);
    assert_eq!(judged(&checked), (23, 0, 48), "{}", checked.ended.stderr);
}

/// tcmalloc's constructor keeps an object of 8 bytes that nothing points to.
#[test]
fn programs_on_tcmalloc_are_clean() {
    let tcmalloc = installed(Path::new("/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"));
    let checked = jq().env("LD_PRELOAD", &tcmalloc).stays_on_trap("its allocator walks stacks").checked(&[]);
    assert_eq!(judged(&checked), (0, 8, 0), "{}", checked.ended.stderr);
    let program = Program::new(fixtures::program("leaks/trees")).env("LD_PRELOAD", &tcmalloc);
    let checked = program.stays_on_trap("its allocator walks stacks").checked(&[]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    assert_eq!(checked.report.number("/leaks/known/bytes"), 8, "{}", checked.ended.stderr);
}
