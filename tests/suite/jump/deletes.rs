//! Operators delete that are told sizes and alignments: `check` watches them, without a stop at each.

use crate::support::program::Program;
use serde_json::Value;

/// What is wrong with the fixture's deletes, by kind.
fn findings(report: &Value) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap().to_owned());
    let mut all: Vec<_> = all.filter(|kind| kind.ends_with("_delete")).collect();
    all.sort();
    all
}

/// Forty thousand calls of operators, half of them sized deletes: nearly none stops, what is told wrong is found as by
/// the trap engine, and nobody speaks of coroutines.
#[test]
fn sized_deletes_are_recorded_without_stops() {
    let program = Program::fixture("deletes");
    let trap = program.checked(&["--engine", "trap"]);
    let jump = program.checked(&["--engine", "jump"]);
    assert_eq!((jump.ended.code(), jump.report.text("/verdict/result")), (23, "errors"), "{}", jump.ended.stderr);
    assert_eq!(jump.report.text("/engine"), "jump", "{}", jump.ended.stderr);
    let (stops, events) = (jump.report.number("/cost/stops"), jump.report.number("/cost/events"));
    assert!(events > 40_000 && stops < events / 50, "{stops} stops of {events} events");
    assert!(jump.report.list("/warnings").is_empty(), "{:?}", jump.report.list("/warnings"));
    let found = findings(&jump.report.0);
    assert_eq!(found, ["aligned_delete", "sized_delete", "sized_delete"]);
    assert_eq!(found, findings(&trap.report.0));
    assert_eq!(jump.report.0["totals"]["allocations"], trap.report.0["totals"]["allocations"]);
}

/// The same with the tests of a program apart.
#[test]
fn sized_deletes_of_tests_are_recorded_without_stops() {
    let checked = Program::fixture("deletes").checked(&["--engine", "jump", "--per-test"]);
    let (stops, events) = (checked.report.number("/cost/stops"), checked.report.number("/cost/events"));
    assert!(events > 40_000 && stops < events / 50, "{stops} stops of {events} events");
}

/// The same with an alignment alone, with operators of another family, and with a block that is given back twice, at
/// which the C library ends the program.
#[test]
fn sized_deletes_of_the_wrong_blocks_are_found_without_stops() {
    let program = Program::fixture("deletes").args(["all"]);
    let [trap, jump] = ["trap", "jump"].map(|engine| program.checked(&["--engine", engine]));
    assert_eq!(jump.report.text("/engine"), "jump", "{}", jump.ended.stderr);
    let (stops, events) = (jump.report.number("/cost/stops"), jump.report.number("/cost/events"));
    assert!(events > 40_000 && stops < events / 50, "{stops} stops of {events} events");
    let kinds = |report: &Value| {
        let mut all: Vec<_> = report["findings"].as_array().unwrap().iter().map(|one| one["kind"].clone()).collect();
        all.retain(|kind| kind.as_str().is_some_and(|kind| !kind.starts_with("leak_")));
        all.sort_by_key(Value::to_string);
        all
    };
    let expected = [
        "aligned_delete",
        "aligned_delete",
        "double_free",
        "mismatched_free",
        "mismatched_free",
        "mismatched_free",
        "sized_delete",
        "sized_delete",
    ];
    assert_eq!(kinds(&jump.report.0), expected, "{}", jump.ended.stderr);
    assert_eq!(kinds(&trap.report.0), expected, "{}", trap.ended.stderr);
}

/// Such a delete costs no record of its own, and no look at each call: heaptrace takes as many records, and as many of
/// them in the general way, as with `run`, where nobody watches these operators. `-vv` says how many.
#[test]
fn sized_deletes_are_taken_as_plainly_as_by_run() {
    let program = Program::fixture("deletes");
    let records = |stderr: &str| -> [u64; 2] {
        [" records written", " records looked up"].map(|what| {
            let line = stderr.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{stderr}"));
            let before = line.split(what).next().unwrap();
            before.rsplit(' ').next().unwrap().parse().unwrap()
        })
    };
    let by_run = records(&program.traced_with(&["--engine", "jump", "-vv"]).ended.stderr);
    for options in [&["--engine", "jump", "-vv"][..], &["--engine", "jump", "-vv", "--per-test"]] {
        let checked = program.checked(options);
        let by_check = records(&checked.ended.stderr);
        let events = checked.report.number("/cost/events_without_stop");
        for (by_check, by_run) in by_check.into_iter().zip(by_run) {
            assert!(by_check <= by_run + events / 50, "{options:?}: {by_check} of {events}, {by_run} with run");
        }
    }
}
