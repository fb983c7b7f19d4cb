//! What each new stack costs: the slope between runs of 400,000 and of a million calls, each on a stack of its own, of
//! 16 frames. Wall and CPU time, and how much memory heaptrace had resident at most. The two take turns.

use super::basics::median;
use super::programs::{fixture, heaptrace};
use std::process::{Command, Stdio};
use std::time::Instant;

/// So many stacks. The program has 4^10 of them.
const COUNTS: [u32; 2] = [400_000, 1_000_000];

/// Runs of each.
const ROUNDS: usize = 5;

/// The project's limits: microseconds of wall time and bytes of memory for each new stack.
const MAX_MICROSECONDS: f64 = 2.0;
const MAX_BYTES: f64 = 200.0;

/// What a run took.
#[derive(Clone, Copy)]
struct Run {
    /// Seconds.
    wall: f64,
    /// Seconds, of heaptrace and the program.
    cpu: f64,
    /// Bytes that the largest process of the run had resident at most.
    resident: f64,
}

impl Run {
    fn median(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(runs.iter().map(figure));
        Self { wall: of(|run| run.wall), cpu: of(|run| run.cpu), resident: of(|run| run.resident) }
    }
}

/// Prints both runs, alone and under heaptrace, and what a new stack takes.
pub fn table() {
    let program = fixture("distinct_stacks").display().to_string();
    let ways = [("the program alone", Vec::new()), ("heaptrace, engine jump", heaptrace(&["--engine", "jump"]))];
    let mut runs: [[Vec<Run>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for ((_, tool), runs) in ways.iter().zip(&mut runs) {
            for (count, runs) in COUNTS.into_iter().zip(runs) {
                let words: Vec<String> = tool.iter().chain([&program, &count.to_string()]).cloned().collect();
                runs.push(run(&words));
            }
        }
    }
    println!("\n{:<44} {:>9} {:>9} {:>9}", "new stacks of 16 frames", "wall", "CPU", "resident");
    for ((name, _), runs) in ways.iter().zip(&runs) {
        let [few, many] = runs.each_ref().map(|runs| Run::median(runs));
        for (count, run) in COUNTS.into_iter().zip([few, many]) {
            let name = format!("{name}, {count} stacks");
            println!("{name:<44} {:>7.2} s {:>7.2} s {:>5.0} MiB", run.wall, run.cpu, run.resident / 1024.0 / 1024.0);
        }
        let slope = |figure: fn(&Run) -> f64| (figure(&many) - figure(&few)) / f64::from(COUNTS[1] - COUNTS[0]);
        println!(
            "{:<44} {:>6.2} µs {:>6.2} µs {:>7.0} B   limit {MAX_MICROSECONDS} µs of wall time, {MAX_BYTES} B",
            "  each new stack",
            slope(|run| run.wall) * 1e6,
            slope(|run| run.cpu) * 1e6,
            slope(|run| run.resident)
        );
    }
}

/// Runs a command to its end.
#[expect(clippy::zombie_processes, reason = "wait4(2) takes its end, with what it has used")]
fn run(words: &[String]) -> Run {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let child = command.spawn().expect("it starts");
    // SAFETY: all zeros are a valid rusage, which holds only numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both places live until the call returns.
    let ended = unsafe { libc::wait4(child.id().cast_signed(), &raw mut status, 0, &raw mut usage) };
    let wall = began.elapsed().as_secs_f64();
    assert!(ended == child.id().cast_signed() && status == 0, "{words:?}: {status}");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    // ru_maxrss is in KiB, of the process or the largest of its children (getrusage(2))
    Run { wall, cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime), resident: usage.ru_maxrss as f64 * 1024.0 }
}
