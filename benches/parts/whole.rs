//! Whole runs of real programs, start and end of the tool included: plain, under heaptrace, under heaptrack. In turn, so that a machine whose
//! speed changes is as slow for each.

use super::basics::{installed, median};
use super::programs::heaptrace;
use super::workloads::{Workload, workloads};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs of each.
const ROUNDS: usize = 5;

/// Prints the seconds of each, and heaptrace's as a part of heaptrack's.
pub fn table() {
    let out = format!("{}/bench-whole", env!("CARGO_TARGET_TMPDIR"));
    let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let heaptrack = installed("heaptrack").then(|| words(format!("heaptrack -o {out}")));
    println!(
        "\n{:<16} {:>9} {:>9} {:>9} {:>10}   ratios to heaptrack, limit 1",
        "whole run", "plain", "auto", "jump", "heaptrack"
    );
    for workload in programs() {
        let mut times: [Vec<f64>; 4] = Default::default();
        let tools = [Some(Vec::new()), Some(heaptrace(&[])), Some(heaptrace(&["--engine", "jump"])), heaptrack.clone()];
        for round in 0..=ROUNDS {
            for (tool, times) in tools.iter().zip(&mut times) {
                let Some(tool) = tool else { continue };
                let time = seconds(tool, &workload);
                // the first one warms up
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let [plain, auto, jump, heaptrack] = times.map(|times| (!times.is_empty()).then(|| median(times.into_iter())));
        let cell = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3} s"));
        let ratio = |time: Option<f64>| time.zip(heaptrack).map_or("-".to_owned(), |(a, b)| format!("{:.2}", a / b));
        println!(
            "{:<16} {:>9} {:>9} {:>9} {:>10}   auto {}, jump {}",
            workload.name,
            cell(plain),
            cell(auto),
            cell(jump),
            cell(heaptrack),
            ratio(auto),
            ratio(jump)
        );
    }
}

/// Those of the heap model's bench, and cargo.
fn programs() -> Vec<Workload> {
    let mut all = workloads();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let words = [env!("CARGO"), "metadata", "--locked", "--format-version", "1", "--manifest-path", manifest];
    all.push(Workload { name: "cargo metadata", words: words.iter().map(|word| (*word).to_owned()).collect() });
    all
}

fn seconds(tool: &[String], workload: &Workload) -> f64 {
    let mut words = tool.iter().chain(&workload.words);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status().expect("it starts");
    assert!(status.success(), "{} under {tool:?}: {status}", workload.name);
    begin.elapsed().as_secs_f64()
}
