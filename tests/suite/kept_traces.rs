//! Traces that earlier versions have written (tests/kept/traces): this one reads them as they did.

use crate::support::program::Program;
use crate::support::python::python;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn kept(version: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/traces").join(version).join(name)
}

fn converted(trace: &Path, options: &[&str]) -> Vec<u8> {
    let words = ["convert", "-q", trace.to_str().unwrap(), "-o", "-"];
    Program::new("true").start_heaptrace(words.iter().chain(options)).wait().success().stdout
}

fn report(trace: &Path, options: &[&str]) -> Value {
    serde_json::from_slice(&converted(trace, &[&["--format", "json"], options].concat())).unwrap()
}

/// Allocations, frees, and what is live: blocks and bytes.
fn figures(report: &Value) -> [u64; 6] {
    ["allocations", "bytes_allocated", "frees", "bytes_freed", "live_blocks", "live_bytes"]
        .map(|figure| report["totals"][figure].as_u64().unwrap())
}

/// The program was told what to do: the figures are counted by hand.
#[test]
fn version_0_1_0_of_a_program_that_was_told_what_to_do() {
    for name in ["steps.fxt", "steps.fxt.zst"] {
        let trace = kept("0.1.0", name);
        let of = |options: &[&str]| figures(&report(&trace, options));
        assert_eq!(of(&[]), [18, 6021, 6, 507, 12, 5514], "{name}");
        assert_eq!(of(&["--at", "@one"]), [10, 1000, 0, 0, 10, 1000], "{name}");
        assert_eq!(of(&["--at", "@two"]), [18, 6021, 4, 400, 14, 5621], "{name}");
        assert_eq!(of(&["--from", "@one", "--to", "@two"]), [8, 5021, 4, 400, 8, 5021], "{name}");
        let whole = report(&trace, &[]);
        assert_eq!(
            (&whole["complete"], &whole["exit"]["code"], &whole["program"]),
            (&true.into(), &0.into(), &"steps".into())
        );
        assert!(whole["warnings"].to_string().contains("collecting paused"), "{}", whole["warnings"]);
        let folded = String::from_utf8(converted(&trace, &["--format", "folded", "--value", "allocated"])).unwrap();
        let mut sums = [("steps_a", 0), ("steps_b", 0)];
        for line in folded.lines() {
            let (stack, bytes) = line.rsplit_once(' ').unwrap();
            for (function, sum) in &mut sums {
                *sum += if stack.ends_with(*function) { bytes.parse::<u64>().unwrap() } else { 0 };
            }
        }
        assert_eq!(sums, [("steps_a", 6000), ("steps_b", 21)], "{folded}");
    }
}

/// What is left of a circular trace: as many events as the independent decoder counts.
#[test]
fn version_0_1_0_of_a_circular_trace() {
    let trace = kept("0.1.0", "circular.fxt.zst");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decode_fxt.py");
    let output = python().arg(script).arg(&trace).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let decoded: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&decoded["events"]["alloc"], &decoded["events"]["free"]), (&1274.into(), &1274.into()));
    let read = report(&trace, &[]);
    assert_eq!(figures(&read)[..3], [1274, 1274 * 64, 1274]);
    assert!(read["warnings"].to_string().contains("events were overwritten"), "{}", read["warnings"]);
    let then = Program::new("true");
    let gone = then
        .start_heaptrace(["convert", "-q", trace.to_str().unwrap(), "-o", "-", "--format", "txt", "--at", "1s"])
        .wait();
    assert!(gone.code() == 125 && gone.stderr.contains("was overwritten"), "{}", gone.stderr);
}
