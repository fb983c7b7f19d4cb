//! Memory that can't be read: where it may hold pointers the check says so, by name; guards and what lies behind a
//! file's end hold nothing.

use super::{DEFINITE, REACHABLE, assert_checked, fixture, same};
use serde_json::Value;
use std::process::Command;

/// What is told of a process that nobody traces.
fn looked_at(name: &str) -> Value {
    let program = fixture(name).args(["waits"]);
    let mut running = program.start();
    let pid = running.value("ready");
    let output = Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["leaks", "--json", &pid]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    running.feed(b"\n");
    running.wait().success();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Nobody can read a guard or beyond a file's end, the program neither: the check judges, and finds the one block that
/// is lost.
#[test]
fn guards_and_what_lies_behind_a_file_hold_nothing() {
    let program = fixture("guards");
    let held = ["below_guard", "between_guards", "above_guards", "deep_in_stack", "high_in_stack", "before_file_end"];
    let expected: Vec<_> =
        held.map(|function| same(function, REACHABLE)).into_iter().chain([same("lost", DEFINITE)]).collect();
    let checked = program.checked(&[]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    assert!(!checked.ended.stderr.contains("could not be read"), "{}", checked.ended.stderr);
    assert_checked(&program, checked, &expected);
    let answer = looked_at("guards");
    assert_eq!(answer["leaks"]["unreadable_bytes"], 0, "{answer}");
    assert_eq!(answer["leaks"]["definite"]["blocks"], 1, "{answer}");
}

/// Of guards no memory is in swap.
#[test]
fn guards_are_not_in_swap() {
    let mut running = fixture("guards").args(["waits"]).start();
    let pid = running.value("ready");
    let output = Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["heap", &pid]).output().unwrap();
    let swapped = crate::support::procfs::status_field(pid.parse().unwrap(), "VmSwap").unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    running.feed(b"\n");
    running.wait().success();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.contains("in swap"), !swapped.starts_with("0 "), "{swapped}: {text}");
}

/// What only the program itself can read may hold anything: no verdict.
#[test]
fn secret_memory_is_named_and_no_verdict_given() {
    let checked = fixture("secret").checked(&[]);
    assert_eq!(checked.ended.code(), 125, "{}", checked.ended.stderr);
    assert_eq!(checked.report.text("/verdict/result"), "inconclusive");
    let reasons = checked.report.list("/verdict/reasons");
    assert!(reasons[0].as_str().unwrap().contains("could not be read (/secretmem)"), "{reasons:?}");
    let answer = looked_at("secret");
    assert_eq!(answer["leaks"]["unreadable_names"], serde_json::json!(["/secretmem"]), "{answer}");
    assert_eq!(answer["leaks"]["unreadable_bytes"], 8192, "{answer}");
}
