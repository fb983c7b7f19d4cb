//! `heaptrace check --per-test`: each test has what it allocated, kept and leaked, whatever its framework and the
//! engine.

use super::check::{Checked, check};
use super::html::tests_of;
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::collections::BTreeMap;

/// What report.json says of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Test {
    runs: u64,
    allocations: u64,
    allocated: u64,
    peak: u64,
    kept: (u64, u64),
    leaked: (u64, u64),
}

fn tests(checked: &Checked) -> BTreeMap<String, Test> {
    let rows = checked.report.list("/tests/rows").iter();
    rows.map(|row| {
        let number = |at: &str| row.pointer(at).and_then(Value::as_u64).unwrap();
        let test = Test {
            runs: number("/runs"),
            allocations: number("/allocated/objects"),
            allocated: number("/allocated/bytes"),
            peak: number("/peak_bytes"),
            kept: (number("/kept/bytes"), number("/kept/objects")),
            leaked: (number("/leaked/bytes"), number("/leaked/objects")),
        };
        (row["name"].as_str().unwrap().to_owned(), test)
    })
    .collect()
}

/// What all frameworks of C++ have to say of the bodies in tests/fixtures/tested.h, by their own account. `name`: that
/// of the test of a body.
fn assert_tells_the_bodies(program: &Program, checked: &Checked, name: impl Fn(&str) -> String) {
    let (tests, ledger) = (tests(checked), program.ledger());
    let of = |body: &str| *tests.get(&name(body)).unwrap_or_else(|| panic!("no {body} in {tests:?}"));
    let own = |site: &str, what: &str| ledger.sites[site][what];
    let empty = of("empty");
    assert_eq!(empty.leaked, (0, 0));
    for body in ["churns", "leaks", "keeps", "frees"] {
        let test = of(body);
        // the body that loses three blocks is in several tests
        let times = if body == "leaks" { own("leaks", "allocations") / 3 } else { 1 };
        let share = |what| if body == "frees" { 0 } else { own(body, what) / times };
        // what the framework itself allocates for each test is the same
        assert_eq!(test.allocations - empty.allocations, share("allocations"), "{body}: {test:?} {empty:?}");
        assert_eq!(test.allocated - empty.allocated, share("bytes_allocated"), "{body}: {test:?} {empty:?}");
    }
    let beside = |test: Test| (test.kept.0 - empty.kept.0, test.kept.1 - empty.kept.1);
    assert_eq!((of("churns").leaked, beside(of("churns"))), ((0, 0), (0, 0)));
    assert_eq!((of("leaks").leaked, beside(of("leaks"))), ((1264, 3), (1264, 3)));
    assert_eq!((of("keeps").leaked, beside(of("keeps"))), ((0, 0), (30_000, 1)));
    assert_eq!((of("frees").leaked, beside(of("frees"))), ((0, 0), (0, 0)));
    assert_eq!(of("thread").leaked, (777, 1));
    for (body, most) in [("churns", 50_000), ("keeps", 30_000), ("frees", 0)] {
        let peak = of(body).peak;
        assert!((most..=most + empty.peak).contains(&peak), "{body}: {peak}, {empty:?}");
    }
}

#[test]
fn tests_of_googletest_are_told_one_by_one() {
    let flags = ["-lgtest", "-lgtest_main"];
    let program = Program::new(fixtures::program_with("gtested", &flags));
    let checked = check(&program, &["--per-test"], &["--gtest_filter=-Others.*"]);
    assert_eq!(checked.verdict(), (23, "leaks"), "{}", checked.ended.stderr);
    let name = |body: &str| {
        let mut name = body.to_owned();
        name[..1].make_ascii_uppercase();
        format!("Tested.{name:_<6}")
    };
    assert_tells_the_bodies(&program, &checked, name);
    let tests = tests(&checked);
    assert_eq!(tests.len(), 7, "what was filtered out is not told: {tests:?}");
    assert_eq!(checked.report.number("/tests/outside_leaked/bytes"), 0);
    let told = checked.ended.stderr.lines().find(|line| line.ends_with("Tested.Leaks_")).unwrap();
    assert!(told.contains("1.23 KiB"), "{told}");
}

/// Twice the same tests: sums, but the peak.
#[test]
fn a_test_that_is_repeated_is_one() {
    let program = Program::new(fixtures::program_with("gtested", &["-lgtest", "-lgtest_main"]));
    let args = ["--gtest_filter=Tested.Leaks_", "--gtest_repeat=3"];
    let checked = check(&program, &["--per-test"], &args);
    let tests = tests(&checked);
    let test = tests["Tested.Leaks_"];
    assert_eq!((tests.len(), test.runs, test.leaked), (1, 3, (3 * 1264, 9)), "{test:?}");
    assert!(test.peak < 2 * 1264 + 1000, "{test:?}");
}

#[test]
fn without_a_framework_nothing_is_judged_and_what_is_known_is_told() {
    let program = Program::fixture("judged");
    let checked = check(&program, &["--per-test"], &["clean"]);
    assert_eq!(checked.verdict(), (125, "inconclusive"), "{}", checked.ended.stderr);
    for word in ["GoogleTest", "Catch2", "doctest", "without --per-test"] {
        assert!(checked.ended.stderr.contains(word), "{}", checked.ended.stderr);
    }
    let program = Program::new(fixtures::program_with("gtested", &["-lgtest", "-lgtest_main"]));
    let checked = check(&program, &["--per-test"], &["--gtest_filter=None.*"]);
    assert_eq!(checked.verdict(), (125, "inconclusive"), "{}", checked.ended.stderr);
    assert!(checked.ended.stderr.contains("heaptrace saw no test begin"), "{}", checked.ended.stderr);
}

/// A test case with sections runs once for each, and is one test; names may be any.
#[test]
fn tests_of_catch2_are_told_one_by_one() {
    let program = Program::fixture("catched");
    let checked = check(&program, &["--per-test"], &[]);
    assert_eq!(checked.verdict(), (23, "leaks"), "{}", checked.ended.stderr);
    assert_tells_the_bodies(&program, &checked, |body| format!("{body:_<6}"));
    let tests = tests(&checked);
    assert_eq!(tests.len(), 8, "what is hidden is not told: {tests:?}");
    let sections = tests["a longer name with blanks, and <signs> | \"quotes\""];
    assert_eq!(sections.leaked, (2 * 1264, 6));
}

/// Of doctest's the test functions are watched, each run of one with subcases is a run.
#[test]
fn tests_of_doctest_are_told_one_by_one() {
    let program = Program::fixture("doctested");
    let checked = check(&program, &["--per-test"], &[]);
    assert_eq!(checked.verdict(), (23, "leaks"), "{}", checked.ended.stderr);
    let bodies = ["first", "empty", "churns", "leaks", "keeps", "frees", "thread"];
    let number = |body: &str| bodies.iter().position(|known| *known == body).unwrap();
    assert_tells_the_bodies(&program, &checked, |body| format!("tested: {} {body}", number(body)));
    let tests = tests(&checked);
    assert_eq!(tests.len(), 8, "what is skipped is not told: {tests:?}");
    assert_eq!((tests["sections"].runs, tests["sections"].leaked), (2, (2 * 1264, 6)));
}

/// Tests that run in threads at the same time are told by these, and by the threads that they make.
#[test]
fn tests_of_rust_s_framework_are_told_one_by_one() {
    let program = Program::fixture("libtested");
    for threads in ["4", "1"] {
        let checked = check(&program, &["--per-test"], &[&format!("--test-threads={threads}")]);
        assert_eq!(checked.verdict(), (23, "leaks"), "{}", checked.ended.stderr);
        let tests = tests(&checked);
        let names: Vec<&str> = tests.keys().map(String::as_str).collect();
        let expected = ["inner::churns", "inner::empty", "inner::leaks", "panics", "starts_a_thread"];
        assert_eq!(names, expected, "what is ignored is not told");
        let of = |name: &str| (tests[name].allocations, tests[name].allocated, tests[name].peak);
        assert_eq!(of("inner::churns"), (10, 500_000, 50_000));
        assert_eq!(of("inner::empty"), (0, 0, 0));
        assert_eq!(of("inner::leaks"), (1, 1000, 1000));
        let lost = |name: &str| tests[name].leaked;
        assert_eq!(lost("inner::leaks"), (1000, 1));
        assert_eq!((lost("panics"), lost("inner::churns")), ((77, 1), (0, 0)));
        assert_eq!(lost("starts_a_thread"), (555, 1), "{}", checked.ended.stderr);
    }
}

/// A baseline says what a test did before: what has grown by more than is allowed fails, and is told in each format.
#[test]
fn tests_that_have_grown_since_the_baseline_fail() {
    let program = || Program::new(fixtures::program_with("gtested", &["-lgtest", "-lgtest_main"]));
    let args = ["--gtest_filter=Tested.Churns:Tested.Empty_:Tested.First_"];
    let first = program();
    let before = check(&first, &["--per-test"], &args);
    assert_eq!(before.verdict(), (0, "clean"), "{}", before.ended.stderr);
    let folder = TempDir::new();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [baseline, xml, md] = [at("before.json"), at("tests.junit.xml"), at("tests.md")];
    crate::support::copy_file(first.report_path(), &baseline).unwrap();
    let compared = |program: &Program, limit: &str| {
        let options = ["--per-test", "--baseline", &baseline, "--fail-if-grown", limit, "-o", &xml, "-o", &md];
        check(program, &options, &args)
    };
    assert_eq!(compared(&program(), "0%").verdict(), (0, "clean"));
    let more = program().env("TESTED_MORE", "1");
    assert_eq!(compared(&more, "25%").verdict(), (0, "clean"));
    assert_eq!(compared(&more, "1MiB").verdict(), (0, "clean"));
    let grown = compared(&more, "10%");
    assert_eq!(grown.verdict(), (23, "over_budget"), "{}", grown.ended.stderr);
    let rows = grown.report.list("/tests/rows");
    let told: Vec<(&str, &Value)> = rows.iter().map(|row| (row["name"].as_str().unwrap(), &row["grown"])).collect();
    let peak = serde_json::json!([{ "what": "peak", "before": tests(&before)["Tested.Churns"].peak, "after": tests(&grown)["Tested.Churns"].peak }]);
    let none = serde_json::json!([]);
    assert_eq!(told, [("Tested.First_", &none), ("Tested.Empty_", &none), ("Tested.Churns", &peak)]);
    assert!(grown.ended.stderr.contains("grown: peak from"), "{}", grown.ended.stderr);
    let xml = std::fs::read_to_string(&xml).unwrap();
    let case = xml.lines().find(|line| line.contains("name=\"Tested.Churns\"")).unwrap();
    assert!(
        case.contains("classname=\"heaptrace.gtested.tests\"") && case.contains("<failure type=\"grown\""),
        "{case}"
    );
    let well = xml.lines().find(|line| line.contains("name=\"Tested.Empty_\"")).unwrap();
    assert!(well.trim_end().ends_with("/>"), "{well}");
    let md = std::fs::read_to_string(&md).unwrap();
    let line = md.lines().find(|line| line.starts_with("| **") && line.contains("Tested.Churns")).unwrap();
    assert!(line.starts_with("| **`Tested.Churns`** |") && line.contains("peak from"), "{line}");
    // a report that knows no tests is no baseline for them
    let other = program();
    assert_eq!(check(&other, &[], &args).verdict(), (0, "clean"));
    crate::support::copy_file(other.report_path(), &baseline).unwrap();
    let refused = program()
        .start_heaptrace(["check", "--per-test", "--baseline", &baseline, "--fail-if-grown", "1%", "true"])
        .wait();
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("check --per-test -o NAME.json"), "{}", refused.stderr);
}

/// The page has a view of them, and none where no tests were looked at.
#[test]
fn the_page_has_the_tests() {
    let program = Program::new(fixtures::program_with("gtested", &["-lgtest", "-lgtest_main"]));
    let page = program.folder().join("tests.html");
    let checked = check(&program, &["--per-test", "-o", page.to_str().unwrap()], &[]);
    let told = tests_of(&page).unwrap();
    for name in tests(&checked).keys() {
        assert!(told.contains(name.as_str()), "{name}: {told}");
    }
    assert!(told.contains("1.23 KiB in 3 blocks"), "{told}");
    check(&program, &["-o", page.to_str().unwrap()], &[]);
    assert_eq!(tests_of(&page), None);
}

/// One test case for each test, which fails if the test leaks, with the stacks; and the file is XML.
#[test]
fn junit_has_a_case_for_each_test() {
    let program = Program::new(fixtures::program_with("gtested", &["-lgtest", "-lgtest_main"]));
    let file = program.folder().join("tests.junit.xml");
    let checked = check(&program, &["--per-test", "-o", file.to_str().unwrap()], &[]);
    assert_eq!(checked.verdict(), (23, "leaks"), "{}", checked.ended.stderr);
    let lint = std::process::Command::new("xmllint").arg("--noout").arg(&file).status().unwrap();
    assert!(lint.success());
    let text = std::fs::read_to_string(&file).unwrap();
    let of_tests: Vec<&str> =
        text.lines().filter(|line| line.contains("classname=\"heaptrace.gtested.tests\"")).collect();
    assert_eq!(of_tests.len(), 8, "{text}");
    let failing: Vec<&str> =
        of_tests.iter().filter(|line| line.contains("<failure")).map(|line| line.split('"').nth(1).unwrap()).collect();
    assert_eq!(failing, ["Tested.Leaks_", "Tested.Thread", "Others.Absent"]);
    let leaks = text.split("name=\"Tested.Leaks_\"").nth(1).unwrap().split("</testcase>").next().unwrap();
    assert!(leaks.contains("1,264 bytes in 3 blocks leaked") && leaks.contains("tested_block"), "{leaks}");
}
