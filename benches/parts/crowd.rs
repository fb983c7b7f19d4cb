//! Many threads that allocate at once, through one tracer: how many calls a second, and that none of them is missing.

use super::basics::median;
use super::programs::{fixture, heaptrace};
use std::path::Path;
use std::process::{Command, Stdio};

/// How many.
const THREADS: [u32; 4] = [1, 2, 4, 8];
/// Calls of all threads together.
const CALLS: u32 = 8_000_000;
/// Frames on the stack at each call, at least.
const DEPTH: u32 = 16;

/// Prints the calls a second of so many threads: pairs of malloc and free of one size from one place, and all kinds of
/// calls of many sizes from several.
pub fn tables() {
    let (pairs, mixed) = (fixture("crowd"), fixture(MIXED));
    println!("\n{:<34} {:>12} {:>12}   limit", "threads, million calls a second", "plain", "jump");
    for threads in THREADS {
        let words = heaptrace(&["--engine", "jump"]);
        let rate = |tool: &[String]| median((0..3).map(|_| run(tool, &pairs, threads, CALLS / 2 / threads).rate()));
        let limit = if threads == 8 { "at least 5" } else { "" };
        println!("{threads:<34} {:>12.1} {:>12.1}   {limit}", rate(&[]), rate(&words));
    }
    println!("{:<34} {:>12} {:>12}   limit", "the same, mixed calls", "plain", "jump");
    for threads in THREADS {
        let plain = median((0..3).map(|_| run(&[], &mixed, threads, CALLS / threads).rate()));
        let jump = mixed_in(&mixed, threads);
        let limit = if threads == 8 { "at least 12, all recorded" } else { "all recorded" };
        println!("{threads:<34} {plain:>12.1} {jump:>12.1}   {limit}");
    }
}

/// The program that makes all kinds of calls.
const MIXED: &str = "mixed_calls";

/// Million mixed calls a second of so many threads under the jump engine, all recorded.
pub fn mixed(threads: u32) -> f64 {
    mixed_in(&fixture(MIXED), threads)
}

fn mixed_in(program: &Path, threads: u32) -> f64 {
    median((0..3).map(|_| recorded(program, threads, CALLS / threads)))
}

/// The lines of figures that a program has printed.
struct Printed(String);

impl Printed {
    fn figure(&self, name: &str) -> &str {
        let figure = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        figure.unwrap_or_else(|| panic!("no {name}:\n{}", self.0))
    }

    fn count(&self, name: &str) -> u64 {
        self.figure(name).parse().expect("a number")
    }

    /// Million calls a second.
    fn rate(&self) -> f64 {
        self.figure("million_calls_a_second").parse().expect("a number")
    }
}

fn run(tool: &[String], program: &Path, threads: u32, calls: u32) -> Printed {
    let own = [program.display().to_string(), threads.to_string(), calls.to_string(), DEPTH.to_string()];
    let mut words = tool.iter().chain(&own);
    let mut command = Command::new(words.next().expect("a program"));
    let output = command.args(words).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Printed(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Million calls a second under the jump engine, of the program that says what it has called. Fails if heaptrace has
/// seen anything else.
fn recorded(program: &Path, threads: u32, calls: u32) -> f64 {
    let (printed, seen) = reported(program, threads, calls);
    // what the C library allocates for the threads themselves is the same without any call
    let (_, others) = reported(program, threads, 0);
    for name in ["allocations", "reallocations", "bytes_allocated"] {
        assert_eq!(
            seen(name) - others(name),
            printed.count(name),
            "{name} that heaptrace has seen, and that were made"
        );
    }
    // the program frees all of its own
    assert!(seen("live_blocks") <= threads.into(), "{} blocks are live: frees are missing", seen("live_blocks"));
    printed.rate()
}

/// What the program says, and the totals that heaptrace reports.
fn reported(program: &Path, threads: u32, calls: u32) -> (Printed, impl Fn(&str) -> u64) {
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-crowd.json");
    let mut words = heaptrace(&["--engine", "jump", "-o"]);
    words.insert(words.len() - 3, report.display().to_string());
    let printed = run(&words, program, threads, calls);
    let text = std::fs::read(report).expect("written");
    let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(value["anomalies"]["lost"], 0);
    (printed, move |name| value["totals"][name].as_u64().expect("a count"))
}
