//! Many threads that allocate at once, through one tracer.

use super::basics::median;
use super::programs::heaptrace;
use std::path::Path;
use std::process::{Command, Stdio};

/// How many.
const THREADS: [u32; 4] = [1, 2, 4, 8];
/// Pairs of all threads together.
const PAIRS: u32 = 4_000_000;

/// Prints the calls a second of so many threads.
pub fn table(program: &Path) {
    println!("\n{:<34} {:>12} {:>12}   limit", "threads, million calls a second", "plain", "jump");
    for threads in THREADS {
        let words = heaptrace(&["--engine", "jump"]);
        let (plain, jump) = (calls(&[], program, threads), calls(&words, program, threads));
        let limit = if threads == 8 { "at least 5" } else { "" };
        println!("{threads:<34} {plain:>12.1} {jump:>12.1}   {limit}");
    }
}

fn calls(tool: &[String], program: &Path, threads: u32) -> f64 {
    median((0..3).map(|_| {
        let own = [program.display().to_string(), threads.to_string(), (PAIRS / threads).to_string(), "16".to_owned()];
        let mut words = tool.iter().chain(&own);
        let mut command = Command::new(words.next().expect("a program"));
        let output = command.args(words).stdin(Stdio::null()).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let figure = text.lines().find_map(|line| line.strip_prefix("million_calls_a_second "));
        figure
            .unwrap_or_else(|| panic!("no figure:\n{text}{}", String::from_utf8_lossy(&output.stderr)))
            .parse()
            .expect("a number")
    }))
}
