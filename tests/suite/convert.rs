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

/// The profile of a check is of the moment of its scan; parts of the trace are of all that has happened. What the trace comes out
/// of may be a pipe: it is read once.
#[test]
fn what_follows_a_leak_scan_is_in_the_parts() {
    let program = Program::fixture("leaks/checked_now");
    let trace = program.outside("t.fxt");
    let checked = program.checked(&["--trace", text(&trace)]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    let totals = |report: &Value| report["totals"].clone();
    let whole = report(&program, &trace, &[]);
    assert_eq!(totals(&whole), checked.report.0["totals"]);
    let all = report(&program, &trace, &["--from", "1us"]);
    let lost_later = |figure: &str, more: u64| {
        assert_eq!(
            all["totals"][figure].as_u64().unwrap(),
            whole["totals"][figure].as_u64().unwrap() + more,
            "{figure}"
        );
    };
    lost_later("bytes_allocated", 200);
    lost_later("live_bytes", 200);

    for from in ["-", "/dev/stdin", "pipe"] {
        let script = match from {
            "pipe" => "mkfifo pipe; cat \"$1\" > pipe & exec \"$0\" convert -q pipe -o - --format json".to_owned(),
            _ => format!("cat \"$1\" | \"$0\" convert -q {from} -o - --format json"),
        };
        let shell = Program::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_heaptrace"), text(&trace)]);
        let piped = shell.plain().success();
        assert_eq!(serde_json::from_slice::<Value>(&piped.stdout).unwrap(), whole, "{from}");
    }
}

/// The end of a trace of sampled blocks, whose beginning was overwritten, still says what each block stands for.
#[test]
fn a_circular_trace_of_a_sampled_run_keeps_its_interval() {
    let program = Program::fixture("pairs").args(["20000"]);
    let trace = program.outside("t.fxt");
    let words =
        ["--sample-interval", "100", "--trace-mode", "circular", "--trace-size", "256KiB", "--trace", text(&trace)];
    program.traced_with(&words);
    let end = report(&program, &trace, &[]);
    assert_eq!(end["sampling"]["interval"], 100);
    assert!(end["warnings"].to_string().contains("were overwritten"), "{end}");
    // Frees of blocks that were not sampled are not told: each pair that is there stands for more than itself.
    let total = |figure: &str| end["totals"][figure].as_u64().unwrap();
    let (bytes, blocks) = (total("bytes_allocated"), total("allocations"));
    assert!((63..=65).contains(&(bytes / blocks)) && (1000..20_000).contains(&blocks), "{bytes} in {blocks}");
    let told = end["cost"]["events"].as_u64().unwrap();
    assert!(told > blocks * 2, "{told} calls in all");
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
