//! docs/ci.md: each example in it is run, with a program that is in order and with one that leaks, or says that it is
//! not.

use crate::suite::realprograms::cargo;
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::running::Ended;
use std::path::{Path, PathBuf};

/// An example of the page.
pub(super) struct Example {
    /// Which test runs it; None for one that says that it is not tested.
    test: Option<String>,
    language: String,
    pub(super) text: String,
}

/// All fenced blocks of the page. Fails for one of which nothing is said.
fn examples() -> Vec<Example> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ci.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut found: Vec<Example> = Vec::new();
    let mut before = "";
    let mut inside = false;
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            if !inside {
                let test = before.strip_prefix("<!-- tested: ").and_then(|rest| rest.strip_suffix(" -->"));
                assert!(
                    test.is_some() || before.ends_with("ot tested here:"),
                    "who tests the example after {before:?}?"
                );
                let test = test.map(str::to_owned);
                found.push(Example { test, language: language.to_owned(), text: String::new() });
            }
            inside = !inside;
        } else if inside {
            let example = found.last_mut().unwrap();
            example.text.push_str(line);
            example.text.push('\n');
        }
        if !line.is_empty() {
            before = line;
        }
    }
    found
}

/// The examples that a test has to run; at least one.
pub(super) fn examples_of(test: &str) -> Vec<Example> {
    let found: Vec<_> = examples().into_iter().filter(|example| example.test.as_deref() == Some(test)).collect();
    assert!(!found.is_empty(), "docs/ci.md has no example for {test}");
    found
}

/// No example names a test that does not exist.
#[test]
fn every_example_has_its_test() {
    let tests = [
        "unit_tests",
        "per-test",
        "cargo",
        "cargo-config",
        "python",
        "baseline",
        "ctest",
        "meson",
        "checked",
        "action",
    ];
    for test in examples().into_iter().filter_map(|example| example.test) {
        assert!(tests.contains(&test.as_str()), "{test}");
    }
}

/// The command of each step: a shell example as it is, of a workflow the lines that a runner would give to the shell.
fn steps(example: &Example) -> Vec<String> {
    if example.language == "sh" {
        return vec![example.text.clone()];
    }
    assert_eq!(example.language, "yaml");
    let mut found = Vec::new();
    let mut script = false;
    for line in example.text.lines().map(str::trim) {
        if let Some(command) = line.strip_prefix("run: ") {
            found.push(command.to_owned());
        } else if let Some(command) = line.strip_prefix("- ").filter(|_| script) {
            found.push(command.to_owned());
        } else {
            script = line == "script:";
        }
    }
    assert!(!found.is_empty(), "no command in\n{}", example.text);
    found
}

/// bash with heaptrace in its path, in the folder of the program given.
pub(super) fn shell(folder_of: Program, script: &str) -> Program {
    let heaptrace = Path::new(env!("CARGO_BIN_EXE_heaptrace")).parent().unwrap();
    let cargo = cargo();
    let path = format!("{}:{}:/usr/bin:/bin", heaptrace.display(), cargo.parent().unwrap().display());
    // the engine that users have
    let folder_of = folder_of.env("HEAPTRACE_ENGINE", "auto");
    folder_of.args(["-e", "-c", script]).env("PATH", path).env("GITHUB_STEP_SUMMARY", "summary.md")
}

/// A folder with ./unit_tests in it.
fn with_unit_tests(fixture: &str) -> Program {
    let program = Program::new("/bin/bash");
    std::os::unix::fs::symlink(fixtures::program(fixture), program.folder().join("unit_tests")).unwrap();
    program
}

/// All steps of an example with one program: the status of the first that fails, as a runner does it, but for those
/// that run always. Then what the files are.
fn run_steps(example: &Example, fixture: &str) -> (i32, String) {
    let folder = with_unit_tests(fixture);
    let script: String = steps(example)
        .iter()
        .map(|step| format!("(set -e\n{step}\n) || status=${{status:-$?}}\n"))
        .collect::<String>()
        + "for file in *; do echo \"file $file\"; done\nif [ -e leaks.sarif ]; then cat leaks.sarif; fi\nexit ${status:-0}";
    let ended = shell(folder, &script).plain();
    let said = format!("{}\n{}", ended.text(), ended.stderr);
    (ended.code(), said)
}

/// Every example with ./unit_tests is green for a program that is in order, and 23 for one that leaks.
#[test]
fn examples_with_unit_tests() {
    for example in examples_of("unit_tests") {
        let (status, said) = run_steps(&example, "leaks/clean/plain");
        assert_eq!(status, 0, "{}\n{said}", example.text);
        let (status, said) = run_steps(&example, "leaks/chains");
        assert_eq!(status, 23, "{}\n{said}", example.text);
        for name in ["leaks.sarif", "leaks.md", "leaks.junit.xml", "leaks.json"] {
            assert_eq!(example.text.contains(name), said.contains(&format!("file {name}")), "{name}\n{said}");
        }
        if example.text.contains("--github") {
            assert!(said.contains("::error"), "no annotation\n{said}");
            assert!(said.contains("file summary.md") && said.contains("2.1.0"), "{said}");
        }
    }
}

/// A baseline, or suppressions, made of a program that leaks make it pass, and none else.
#[test]
fn examples_with_a_baseline() {
    for example in examples_of("baseline") {
        let (status, said) = run_steps(&example, "leaks/chains");
        assert_eq!(status, 0, "{}\n{said}", example.text);
        // the same, but another program comes in between
        let (first, second) = example.text.trim().split_once('\n').unwrap();
        let other = fixtures::program("leaks/cycles");
        let script = format!("{first}\nln -sf {} unit_tests\n{second}", other.display());
        let ended = shell(with_unit_tests("leaks/chains"), &script).plain();
        assert_eq!(ended.code(), 23, "{script}\n{}", ended.stderr);
    }
}

/// The examples with single tests, one after the other: with one test that leaks, and without.
#[test]
fn examples_with_single_tests() {
    let script: String = examples_of("per-test").iter().map(|example| example.text.clone()).collect();
    let exe = fixtures::program_with("gtested", &["-lgtest", "-lgtest_main"]);
    for (filter, expected) in [("Tested.Churns", 0), ("Tested.Churns:Tested.Leaks_", 23)] {
        let program = Program::new("/bin/bash").env("GTEST_FILTER", filter);
        std::os::unix::fs::symlink(&exe, program.folder().join("unit_tests")).unwrap();
        let ended = shell(program, &script).plain();
        assert_eq!(ended.code(), expected, "{}", ended.stderr);
        assert!(ended.stderr.contains("Tested.Churns"), "{}", ended.stderr);
    }
}

/// A package with two tests, of which one leaks if asked to.
fn package(leaks: bool) -> Program {
    let program = Program::new("/bin/bash");
    let folder = program.folder();
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::create_dir_all(folder.join("tests")).unwrap();
    let manifest = "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    let source = r#"//! A sample.
/// Sums.
///
/// ```
/// assert_eq!(sample::sum(&[1, 2]), 3);
/// ```
pub fn sum(values: &[u64]) -> u64 {
    values.iter().sum()
}
"#;
    std::fs::write(folder.join("src/lib.rs"), source).unwrap();
    let test = format!(
        r#"use std::collections::HashMap;
use std::sync::Mutex;
static TABLE: Mutex<Option<HashMap<String, Vec<u64>>>> = Mutex::new(None);
#[test]
fn keeps() {{
    let mut table = TABLE.lock().unwrap();
    table.get_or_insert_default().insert("kept".to_owned(), vec![1, 2, 3]);
}}
#[test]
fn forgets() {{
    let values = vec![1, 2, 3];
    assert_eq!(sample::sum(&values), 6);
    if {leaks} {{
        std::mem::forget(values);
    }}
}}
"#
    );
    std::fs::write(folder.join("tests/sample.rs"), test).unwrap();
    program
}

fn cargo_test(program: Program, script: &str) -> Ended {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cargo-home");
    std::fs::create_dir_all(&home).unwrap();
    let rustc = cargo().with_file_name("rustc");
    let rustdoc = cargo().with_file_name("rustdoc");
    let program = program.env("CARGO_HOME", home).env("RUSTC", rustc).env("RUSTDOC", rustdoc);
    shell(program.env("CARGO_NET_OFFLINE", "true"), script).plain()
}

/// The cargo that runs these tests runs another package's tests under heaptrace.
#[test]
fn examples_with_cargo() {
    let [example] = &examples_of("cargo")[..] else { panic!("one example") };
    let [config] = &examples_of("cargo-config")[..] else { panic!("one example") };
    let configured = |leaks| {
        let program = package(leaks);
        let folder: PathBuf = program.folder().join(".cargo");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.toml"), &config.text).unwrap();
        program
    };
    for leaks in [false, true] {
        let runs = [cargo_test(package(leaks), &example.text), cargo_test(configured(leaks), "cargo test")];
        for ended in runs {
            let said = format!("{}\n{}", ended.text(), ended.stderr);
            assert_eq!(ended.status.success(), !leaks, "{said}");
            assert!(said.contains("2 passed"), "the tests did not run\n{said}");
            assert_eq!(said.contains("sample::forgets"), leaks, "{said}");
        }
    }
}

/// Tests of a native library, in Python.
#[test]
fn examples_with_python() {
    let examples = examples_of("python");
    let library = fixtures::library("leaks/extension");
    let calls = [("extension_sum((ctypes.c_int * 3)(1, 2, 3), 3)", 0), ("extension_lose(100)", 23)];
    for (example, (call, status)) in examples.iter().flat_map(|example| calls.map(|call| (example, call))) {
        let program = Program::new("/bin/bash");
        let test = format!(
            "import ctypes, unittest\nclass Test(unittest.TestCase):\n    def test(self):\n        \
             library = ctypes.CDLL('{}')\n        self.assertTrue(library.{call})\n",
            library.display()
        );
        std::fs::write(program.folder().join("test_extension.py"), test).unwrap();
        let ended = shell(program, &example.text).plain();
        assert_eq!(ended.code(), status, "{call}\n{}", ended.stderr);
        assert_eq!(ended.stderr.contains("extension_lose"), status == 23, "{}", ended.stderr);
    }
}
