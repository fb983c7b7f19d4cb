//! `heaptrace convert`: what it makes of a trace is what the run has made.

use super::realprograms;
use crate::support::program::Program;
use crate::support::running::Ended;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Runs heaptrace with words of which some are paths.
fn heaptrace(program: &Program, words: &[&str]) -> Ended {
    program.start_heaptrace(words).wait()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The trace of a run, whose report and profile lie beside it.
fn traced(program: &Program, options: &[&str]) -> PathBuf {
    let trace = program.outside("t.fxt.zst");
    let words: Vec<&str> = ["--trace", text(&trace)].into_iter().chain(options.iter().copied()).collect();
    program.traced_with(&words);
    trace
}

/// The files of a run and those of its trace are the same, byte for byte.
fn assert_converts(program: &Program, options: &[&str]) {
    let trace = traced(program, options);
    let (report, profile) = (program.outside("again.json"), program.outside("again.pb.gz"));
    heaptrace(program, &["convert", "-q", text(&trace), "-o", text(&report), "-o", text(&profile)]).success();
    let same = |a: &Path, b: &Path| fs::read(a).unwrap() == fs::read(b).unwrap();
    assert!(
        same(&program.report_path(), &report),
        "{} and {} differ",
        program.report_path().display(),
        report.display()
    );
    assert!(same(&program.profile_path(), &profile));
}

fn report(program: &Program, trace: &Path, options: &[&str]) -> Value {
    let words: Vec<&str> = ["convert", "-q", text(trace), "-o", "-", "--format", "json"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    let ended = heaptrace(program, &words).success();
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn fixtures_convert_to_the_profiles_of_their_runs() {
    for name in ["sites", "peak", "threads", "bad_frees", "exec_chain", "recursion"] {
        assert_converts(&Program::fixture(name), &[]);
    }
}

#[test]
fn real_programs_convert_to_the_profiles_of_their_runs() {
    for program in [realprograms::jq(), realprograms::sqlite3(), realprograms::ls()] {
        assert_converts(&program, &[]);
    }
}

#[test]
fn trees_and_options_convert_to_the_profiles_of_their_runs() {
    assert_converts(&Program::fixture("fork_child"), &["-f"]);
    assert_converts(&Program::fixture("peak"), &["--no-free-stacks"]);
    assert_converts(&Program::fixture("peak"), &["--sample-interval", "1000"]);
}

/// What is live at the end was allocated in windows that join, and the last moment's heap is that of the end.
#[test]
fn parts_of_a_trace_add_up() {
    let program = Program::fixture("peak");
    let trace = traced(&program, &[]);
    let whole = report(&program, &trace, &[]);
    let total = |report: &Value, name: &str| report["totals"][name].as_u64().unwrap();
    let half = format!("{}ns", whole["duration_ns"].as_u64().unwrap() / 2);
    let first = report(&program, &trace, &["--to", &half]);
    let second = report(&program, &trace, &["--from", &half]);
    for figure in ["allocations", "bytes_allocated"] {
        let sum = total(&first, figure) + total(&second, figure);
        assert!(sum.abs_diff(total(&whole, figure)) <= 10_000, "{figure}: {sum}");
    }
    assert!(total(&second, "live_bytes") <= total(&whole, "live_bytes"));
    let late = heaptrace(&program, &["convert", "-q", text(&trace), "--at", "1h", "-o", "-", "--format", "txt"]);
    assert_eq!(late.code(), 125);
    assert!(late.stderr.contains("no process lived then: the trace ends after"), "{}", late.stderr);
}

/// What was traced without names gets them by `convert`.
#[test]
fn names_are_found_afterwards() {
    let program = Program::fixture("sites");
    let trace = traced(&program, &["--no-symbolize"]);
    let functions = |report: &Value| report["frames"].to_string();
    assert!(functions(&report(&program, &trace, &[])).contains("\"leaf\""));
    assert!(!functions(&report(&program, &trace, &["--no-symbolize"])).contains("\"leaf\""));
}

/// A file that was cut off is read to there; other files are refused in a sentence.
#[test]
fn torn_and_foreign_files() {
    let program = Program::fixture("peak");
    let trace = program.outside("t.fxt");
    program.traced_with(&["--trace", text(&trace)]);
    let bytes = fs::read(&trace).unwrap();
    let torn = program.outside("torn.fxt");
    fs::write(&torn, &bytes[..bytes.len() / 2 / 8 * 8 + 3]).unwrap();
    let ended = heaptrace(&program, &["convert", "-q", text(&torn), "-o", "-", "--format", "json"]).success();
    assert!(ended.stderr.contains("ends in the middle, at byte"), "{}", ended.stderr);
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["complete"], false);
    let foreign = heaptrace(&program, &["convert", "-q", text(program.exe()), "-o", "-", "--format", "json"]);
    assert_eq!(foreign.code(), 125);
    assert!(foreign.stderr.contains("this is no trace"), "{}", foreign.stderr);
}
