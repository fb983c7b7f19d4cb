//! Whole runs of real programs, start and end of the tool included: plain, under heaptrace, under heaptrack. In turn,
//! so that a machine whose speed changes is as slow for each. And what heaptrace takes after the program's end.

use super::basics::{installed, median};
use super::programs::heaptrace;
use super::workloads::{Workload, long, workloads};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs of each.
const ROUNDS: usize = 5;

/// Prints the seconds of each, heaptrace's as a part of heaptrack's, and the end.
pub fn table() {
    let out = format!("{}/bench-whole", env!("CARGO_TARGET_TMPDIR"));
    let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let heaptrack = installed("heaptrack").then(|| words(format!("heaptrack -o {out}")));
    println!(
        "\n{:<16} {:>9} {:>9} {:>9} {:>10} {:>9}   ratios to heaptrack, limit 1; of cc1, limit of the end 0.150 s",
        "whole run", "plain", "auto", "jump", "heaptrack", "end"
    );
    for workload in programs() {
        let mut times: [Vec<f64>; 4] = Default::default();
        let mut ends = Vec::new();
        let jump = heaptrace(&["--engine", "jump"]);
        // Of a program that starts children its heaptrack records nothing, and is fast: that is no figure.
        let heaptrack = heaptrack.clone().filter(|heaptrack| records(heaptrack, &workload));
        let tools = [Some(Vec::new()), Some(heaptrace(&[])), Some(jump.clone()), heaptrack];
        for round in 0..=ROUNDS {
            for (tool, times) in tools.iter().zip(&mut times) {
                let Some(tool) = tool else { continue };
                let time = seconds(tool, &workload);
                // the first one warms up
                if round > 0 {
                    times.push(time);
                }
            }
            ends.push(end(&jump, &workload));
        }
        let [plain, auto, jump, heaptrack] = times.map(|times| (!times.is_empty()).then(|| median(times.into_iter())));
        let cell = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3} s"));
        let ratio = |time: Option<f64>| time.zip(heaptrack).map_or("-".to_owned(), |(a, b)| format!("{:.2}", a / b));
        println!(
            "{:<16} {:>9} {:>9} {:>9} {:>10} {:>9}   auto {}, jump {}",
            workload.name,
            cell(plain),
            cell(auto),
            cell(jump),
            cell(heaptrack),
            cell(Some(median(ends.into_iter()))),
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

fn command(tool: &[String], workload: &Workload) -> Command {
    let mut words = tool.iter().chain(&workload.words);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Whether heaptrack says that it has seen allocations.
fn records(heaptrack: &[String], workload: &Workload) -> bool {
    let told = command(heaptrack, workload).stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it starts");
    let told = [told.stdout, told.stderr].concat();
    let seen = String::from_utf8_lossy(&told)
        .lines()
        .filter_map(|line| line.trim().strip_prefix("allocations:")?.trim().parse::<u64>().ok())
        .max();
    let records = seen.is_some_and(|seen| seen > 0);
    if !records {
        println!("{}: heaptrack has recorded nothing", workload.name);
    }
    records
}

fn seconds(tool: &[String], workload: &Workload) -> f64 {
    let begin = Instant::now();
    let status = command(tool, workload).status().expect("it starts");
    assert!(status.success(), "{} under {tool:?}: {status}", workload.name);
    begin.elapsed().as_secs_f64()
}

/// Seconds from the end of a program of the long runs to heaptrace's, the middle of some; None if it is not installed.
pub fn end_of_long(name: &str) -> Option<f64> {
    let workload = long().into_iter().find(|workload| workload.name == name)?;
    Some(median((0..ROUNDS).map(|_| end(&heaptrace(&[]), &workload))))
}

/// Seconds from the program's end to the tool's, to a millisecond.
fn end(tool: &[String], workload: &Workload) -> f64 {
    let mut child = command(tool, workload).spawn().expect("it starts");
    let name = Path::new(&workload.words[0]).file_name().and_then(|name| name.to_str()).expect("a name");
    let mut program = None;
    let mut ended = None;
    loop {
        if child.try_wait().expect("it is ours").is_some() {
            return ended.map_or(0.0, |ended: Instant| ended.elapsed().as_secs_f64());
        }
        match program {
            None => program = child_called(child.id(), name),
            Some(pid) if ended.is_none() && !runs(pid) => ended = Some(Instant::now()),
            Some(_) => {}
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The child of a process that has executed a program of this name.
fn child_called(parent: u32, name: &str) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    pids.into_iter().find(|pid| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
        exe.is_ok_and(|exe| exe.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
    })
}

/// Whether a process is there, and has not ended.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
