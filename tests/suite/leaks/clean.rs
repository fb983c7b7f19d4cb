//! Programs without leaks pass: what is still in use when they end is no leak.

use super::fixture;
use crate::support::leakcheck::Found;

/// Fails unless Memcheck finds nothing lost, the program's output is what it is without heaptrace, and check exits with
/// 0.
fn assert_clean(name: &str) {
    let program = fixture(&format!("clean/{name}"));
    let (_, memcheck) = program.memcheck_leaks(&[]);
    let [definite, indirect, ..] = memcheck.totals();
    assert_eq!([definite.blocks, indirect.blocks], [0, 0], "{name} has leaks: {:?}", memcheck.by_function());
    let plain = program.plain().success();
    let checked = program.checked(&[]);
    let found = Found::from_report(&checked.report);
    assert_eq!(checked.ended.code(), 0, "{name}: {:?}\n{}", found.by_function(), checked.ended.stderr);
    assert_eq!(checked.ended.text(), plain.text());
    assert_eq!(checked.report.text("/verdict/result"), "clean");
    assert!(found.totals()[3].blocks > 0, "{name}: nothing was found at all");
}

#[test]
fn arcs_kept_by_raw_pointers() {
    assert_clean("arcs");
}

#[test]
fn tables_in_statics() {
    assert_clean("tables");
}

#[test]
fn rust_threads_still_running() {
    assert_clean("threads");
}

#[test]
fn leaked_on_purpose_and_still_used() {
    assert_clean("leaked");
}

#[test]
fn a_thread_ends_the_process() {
    assert_clean("exit_in_thread");
}

#[test]
fn containers_in_singletons() {
    assert_clean("statics");
}

#[test]
fn pointers_to_second_bases() {
    assert_clean("inheritance");
}

#[test]
fn detached_workers() {
    assert_clean("workers");
}

#[test]
fn exceptions_in_flight() {
    assert_clean("exceptions");
}

#[test]
fn everything_released() {
    assert_clean("plain");
}
