//! The in-process counter (`tests/fixtures/counter.c`) as an oracle for programs that keep no ledger.

use super::fixtures;
use super::program::Program;
use super::report::Report;
use super::running::Ended;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The names of the figures, in the order in which the counter keeps them.
const FIELDS: [&str; 8] =
    ["allocations", "frees", "reallocations", "bytes_allocated", "bytes_freed", "live_blocks", "live_bytes", "failed"];

/// What heaptrace is held against.
const COMPARED: [&str; 7] =
    ["allocations", "frees", "reallocations", "bytes_allocated", "bytes_freed", "live_blocks", "live_bytes"];

/// The library to preload.
pub fn library() -> PathBuf {
    fixtures::library("counter")
}

/// What the counter saw, by process.
#[derive(Clone, Debug)]
pub struct Counts {
    /// The process that the test started.
    pub root: BTreeMap<&'static str, u64>,
    /// Number of further processes that counted.
    pub others: usize,
}

impl Counts {
    /// Reads the counter's files: one per process, eight little-endian words each.
    pub fn read(folder: &Path, root: i32) -> Self {
        let file = folder.join(root.to_string());
        let bytes =
            std::fs::read(&file).unwrap_or_else(|error| panic!("the counter wrote no {}: {error}", file.display()));
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        let overflow = words.get(FIELDS.len()).copied();
        assert_eq!(overflow, Some(0), "the counter's table of live blocks was full");
        let others = std::fs::read_dir(folder).unwrap().count() - 1;
        Self { root: FIELDS.into_iter().zip(words).collect(), others }
    }
}

/// Runs a program plainly, three times under the counter, and under heaptrace; fails unless output and exit status are
/// the same and the totals equal the counter's. Where the counter's runs differ from each other, heaptrace's must lie
/// within their spread, widened by itself on both sides: a fourth draw of a distribution need not lie between three.
pub fn assert_equals_counter(program: &Program, options: &[&str]) -> (Ended, Report) {
    assert_equals_counter_within(program, options, 0, 0)
}

/// The same for a program that keeps something of its surroundings (its parent's process id, where its memory lies),
/// which makes at most so many blocks and bytes of difference from run to run.
pub fn assert_equals_counter_within(program: &Program, options: &[&str], blocks: u64, bytes: u64) -> (Ended, Report) {
    let plain = program.plain();
    let runs: Vec<_> = (0..3).map(|_| program.counted()).collect();
    for (ended, _) in &runs {
        assert_eq!(ended.status, plain.status, "the counter changed the exit status\n{}", ended.stderr);
    }
    let traced = program.traced_with(options);
    assert_same_behaviour(&plain, &traced.ended);
    let mut counted: Vec<Counts> = runs.into_iter().map(|(_, counts)| counts).collect();
    let mut wrong = differences(&traced.report, &counted, blocks, bytes);
    // Three runs in a row may agree by accident: libxml2 seeds its hash tables with the second in which it starts.
    for _ in 0..6 {
        if wrong.is_empty() {
            break;
        }
        wait_for_next_second();
        counted.push(program.counted().1);
        wrong = differences(&traced.report, &counted, blocks, bytes);
    }
    assert!(wrong.is_empty(), "{}: totals differ\n{}", program.exe().display(), wrong.join("\n"));
    traced.report.assert_consistent();
    assert_eq!(traced.report.anomaly("lost"), 0);
    (traced.ended, traced.report)
}

/// What of the totals lies outside the spread of the counter's runs.
fn differences(report: &Report, runs: &[Counts], blocks: u64, bytes: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in COMPARED {
        let counted: Vec<u64> = runs.iter().map(|counts| counts.root[name]).collect();
        let (low, high) = (*counted.iter().min().unwrap(), *counted.iter().max().unwrap());
        let spread = high - low + if name.contains("bytes") { bytes } else { blocks };
        let seen = report.total(name);
        if !(low.saturating_sub(spread)..=high + spread).contains(&seen) {
            wrong.push(format!("{name}: heaptrace {seen}, counter {counted:?}"));
        }
    }
    wrong
}

/// Gives way to others until the clock shows another second.
pub fn wait_for_next_second() {
    let second = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let begun = second();
    while second() == begun {
        std::thread::yield_now();
    }
}

/// Same output and exit status; on standard error heaptrace may add its own lines after the program's.
pub fn assert_same_behaviour(plain: &Ended, traced: &Ended) {
    assert_eq!(traced.text(), plain.text(), "standard output differs\n{}", traced.stderr);
    assert_eq!(
        super::checks::shell_status(&traced.status),
        super::checks::shell_status(&plain.status),
        "exit status differs\n{}",
        traced.stderr
    );
    let missing: Vec<_> = plain.stderr.lines().filter(|line| !traced.stderr.contains(line)).collect();
    assert!(missing.is_empty(), "lines of the program's standard error are missing: {missing:?}");
}
