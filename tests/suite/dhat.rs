//! `.dhat.json`, read by the code of Valgrind's own viewer, against report.json of the same run, and against what DHAT
//! says itself.

use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::python::{ByFunction, of_report, only, sum};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What the viewer makes of a file.
pub fn viewed(file: &Path) -> Value {
    let viewer = Path::new("/usr/libexec/valgrind/dh_view.js");
    assert!(viewer.exists(), "install the Debian package valgrind");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/read_dhat.mjs");
    let output = Command::new("node").arg(script).arg(viewer).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The function of a frame, without its address and what stands behind it in parentheses.
fn function(frame: &str) -> &str {
    let bare = frame.strip_prefix("0x").and_then(|rest| rest.split_once(": ")).map_or(frame, |(_, rest)| rest);
    bare.rsplit_once(" (").map_or(bare, |(name, _)| name)
}

/// Its figures by the innermost function.
pub fn by_function(viewed: &Value) -> ByFunction {
    let mut all = ByFunction::new();
    for point in viewed["points"].as_array().unwrap() {
        assert_eq!(point["frames"][0], "[root]");
        let name = function(point["frames"][1].as_str().unwrap()).to_owned();
        let figures = all.entry(name).or_default();
        for (figure, key) in [("allocated", "total"), ("live", "end"), ("peak", "peak")] {
            for (unit, index) in [("objects", 0), ("bytes", 1)] {
                *figures.entry(format!("{figure}_{unit}")).or_default() += point[key][index].as_u64().unwrap();
            }
        }
    }
    all.values_mut().for_each(|figures| figures.retain(|_, value| *value != 0));
    all
}

#[test]
fn its_own_viewer_shows_the_figures_of_the_report() {
    const FIGURES: [&str; 6] =
        ["allocated_objects", "allocated_bytes", "live_objects", "live_bytes", "peak_objects", "peak_bytes"];
    for fixture in ["peak", "sites", "threads"] {
        let program = Program::fixture(fixture);
        let path = program.outside("x.dhat.json");
        let traced = program.traced_with(&["-o", path.to_str().unwrap()]);
        let (report, viewed) = (&traced.report, viewed(&path));
        let functions = by_function(&viewed);
        assert_eq!(functions, only(of_report(report), &FIGURES), "{fixture}");
        assert_eq!(sum(&functions, "allocated_bytes"), report.total("bytes_allocated"));
        assert_eq!(sum(&functions, "peak_bytes"), report.total("peak_bytes"));
        let text = viewed["text"].as_str().unwrap();
        let command = report.list("/command")[0].as_str().unwrap();
        assert!(text.contains(&format!("Command: {command}\n")), "{text}");
        assert!(text.contains(&format!("PID:     {}\n", report.number("/pid"))), "{text}");
        assert!(text.contains("Max is a lower bound") && text.contains("Allocated at {"), "{text}");
    }
}

/// Frames as the Firefox Profiler takes them apart (src/profile-logic/import/dhat.js): address, function, file, line,
/// column.
#[test]
fn frames_have_the_line_where_it_is_known() {
    let program = Program::fixture("sites");
    let path = program.outside("x.dhat.json");
    program.traced_with(&["-o", path.to_str().unwrap()]);
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let frames: Vec<&str> = file["ftbl"].as_array().unwrap().iter().map(|frame| frame.as_str().unwrap()).collect();
    let leaf = frames.iter().find(|frame| function(frame) == "leaf").unwrap_or_else(|| panic!("{frames:?}"));
    let line = fixtures::site_line("sites", "leaf");
    let source = fixtures::source("sites");
    assert!(leaf.starts_with("0x") && leaf.ends_with(&format!(": leaf ({}:{line}:0)", source.display())), "{leaf}");
}

/// DHAT counts what it sees of the same program: as many bytes and blocks from the functions of the program.
#[test]
fn dhat_says_the_same() {
    let program = Program::fixture("peak");
    let (ours, theirs) = (program.outside("ours.dhat.json"), program.outside("theirs.json"));
    program.traced_with(&["-o", ours.to_str().unwrap()]);
    let output = Command::new("valgrind")
        .arg("--tool=dhat")
        .arg(format!("--dhat-out-file={}", theirs.display()))
        .arg(fixtures::program("peak"))
        .output()
        .expect("install the Debian package valgrind");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let of_program = |file: &Path, skipped: usize| {
        let viewed = viewed(file);
        let mut sums = ByFunction::new();
        for point in viewed["points"].as_array().unwrap() {
            let frames: Vec<_> = point["frames"].as_array().unwrap().iter().skip(1 + skipped).collect();
            let Some(name) = frames.first().map(|frame| function(frame.as_str().unwrap()).to_owned()) else { continue };
            if !["early", "high", "late", "temporary"].contains(&name.as_str()) {
                continue;
            }
            let figures = sums.entry(name).or_default();
            for (figure, key) in [("total", "total"), ("peak", "peak"), ("end", "end")] {
                *figures.entry(format!("{figure} blocks")).or_default() += point[key][0].as_u64().unwrap();
                *figures.entry(format!("{figure} bytes")).or_default() += point[key][1].as_u64().unwrap();
            }
        }
        sums
    };
    let (ours, theirs) = (of_program(&ours, 0), of_program(&theirs, 1));
    assert_eq!(ours, theirs);
    assert_eq!(ours["high"]["peak bytes"], 50_000);
}
