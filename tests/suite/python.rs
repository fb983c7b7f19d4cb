//! `--python`: stacks have the functions that Python itself knows of at that moment, of each release that is there, and
//! none that do not run.

mod situations;

use crate::support::program::{Program, Traced};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Why the jump engine does not see such programs.
const STAYS: &str = "it runs Python";

/// Debian's Python, which must be there, and those releases that pyenv has installed.
fn pythons() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/usr/bin/python3")];
    assert!(found[0].exists(), "python3 is not installed");
    let versions = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    for folder in versions.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        let minor = name.strip_prefix("3.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        let python = folder.path().join("bin/python3");
        if minor.is_some_and(|minor| (8..=13).contains(&minor)) && python.exists() {
            found.push(python);
        }
    }
    found
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn program(python: &Path) -> Program {
    Program::new(python).args([script("python_frames.py")]).stays_on_trap(STAYS)
}

/// What the script has told: the size of each block, and the frames.
fn told(text: &str) -> Vec<(u64, Value)> {
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: Vec<_> = lines.map(|line| (line["size"].as_u64().unwrap(), line["frames"].clone())).collect();
    assert!(told.len() > 60, "{} blocks", told.len());
    told
}

/// Whether a frame is a line of a script: it lies in no module, where no code can be.
fn is_script(frame: &Value) -> bool {
    frame["module"].is_null() && frame["offset"].as_str().is_some_and(|offset| offset.starts_with("0xff0000"))
}

/// The stacks of a report in which one block of this size was allocated.
fn stacks_of(report: &Value, size: u64) -> Vec<&Value> {
    let sites = report["sites"].as_array().unwrap().iter();
    let is_it = |site: &&Value| site["allocated"] == json!({"bytes": size, "objects": 1});
    sites.filter(is_it).map(|site| &site["stack"]).collect()
}

/// The functions of a stack that are Python's, as the script tells them.
fn scripts_of(stack: &Value) -> Value {
    let frames = stack.as_array().unwrap().iter().filter(|frame| is_script(frame));
    frames.map(|frame| json!([frame["function"], frame["file"], frame["line"]])).collect()
}

fn assert_tells(report: &Value, told: &[(u64, Value)], of: &Path) {
    for (size, frames) in told {
        let stacks = stacks_of(report, *size);
        assert_eq!(stacks.len(), 1, "{}: stacks with {size} bytes, which {frames} allocates", of.display());
        assert_eq!(scripts_of(stacks[0]), *frames, "{}: {size} bytes", of.display());
        let is_loop = |frame: &Value| frame["function"] == "_PyEval_EvalFrameDefault";
        assert!(!stacks[0].as_array().unwrap().iter().any(is_loop), "{}: {}", of.display(), stacks[0]);
    }
}

fn traced(python: &Path, options: &[&str]) -> (Program, Traced) {
    let program = program(python);
    let traced = program.traced_with(options);
    assert_eq!(traced.ended.code(), 0, "{}: {}", python.display(), traced.ended.stderr);
    (program, traced)
}

#[test]
fn stacks_have_the_functions_that_python_tells() {
    for python in pythons() {
        let (_, traced) = traced(&python, &["--python"]);
        assert_tells(&traced.report.0, &told(&traced.ended.text()), &python);
        let warnings = traced.report.list("/warnings");
        assert!(!warnings.iter().any(|warning| warning.as_str().unwrap().contains("--python)")), "{warnings:?}");
    }
}

/// Also in a trace, and in pictures, which have the file and the line beside the name.
#[test]
fn a_trace_and_pictures_have_them() {
    let python = Path::new("/usr/bin/python3");
    let program = program(python);
    let [trace, folded, report] = ["x.fxt", "x.folded", "converted.json"].map(|name| program.outside(name));
    let options =
        ["--trace", trace.to_str().unwrap(), "-o", folded.to_str().unwrap(), "--python", "--value", "allocated"];
    let traced = program.traced_with(&options);
    let told = told(&traced.ended.text());
    assert_tells(&traced.report.0, &told, python);
    program
        .start_heaptrace(["convert".as_ref(), trace.as_os_str(), "-o".as_ref(), report.as_os_str()])
        .wait()
        .success();
    let converted =
        crate::support::report::Report::with_stacks(serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap());
    assert_tells(&converted.0, &told, python);
    let folded = std::fs::read_to_string(&folded).unwrap();
    let shown = |frame: &Value| {
        let file = frame[1].as_str().unwrap().rsplit('/').next().unwrap();
        format!("{} ({file}:{})", frame[0].as_str().unwrap(), frame[2])
    };
    for (size, frames) in &told {
        let is_it = |line: &&str| {
            let mut rest = *line;
            line.ends_with(&format!(" {size}"))
                && frames.as_array().unwrap().iter().rev().all(|frame| match rest.split_once(&shown(frame)) {
                    Some((_, behind)) => {
                        rest = behind;
                        true
                    }
                    None => false,
                })
        };
        assert_eq!(folded.lines().filter(is_it).count(), 1, "{size}: {frames}");
    }
}

/// Without the option the interpreter's loop is what there is, and the summary says what would help; with it, it names
/// the script's lines.
#[test]
fn the_summary_says_that_python_can_be_shown() {
    const HINT: &str = "--python shows its functions";
    let run = |options: &[&str]| {
        Program::new("python3").args([script("python_frames.py")]).stays_on_trap(STAYS).traced_with(options)
    };
    let without = run(&[]);
    assert!(without.ended.stderr.contains(HINT), "{}", without.ended.stderr);
    let frames = without.report.0.to_string();
    assert!(frames.contains("_PyEval_EvalFrameDefault") && !frames.contains("0xff0000"));
    let with = run(&["--python"]).ended.stderr;
    assert!(!with.contains(HINT), "{with}");
    // whose allocation it is, the script's lines tell
    let hot: Vec<&str> =
        with.lines().skip_while(|line| !line.starts_with("Live at the peak")).skip(1).take(1).collect();
    assert!(hot.len() == 1 && hot[0].contains("python_frames.py:"), "{with}");
}
