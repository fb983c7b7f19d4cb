//! What a pair of malloc and free costs under each tool: the slope between two counts of pairs, which are the same for all, so
//! that what a tool does once, at its start and end, is a figure of its own. Wall time, and the CPU time of the program and of all
//! that the tool runs. In turn, so that a machine whose speed changes is as slow for each.

use super::basics::{installed, median};
use super::programs::{fixture, heaptrace};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// So many pairs, the same for each tool.
const COUNTS: [u64; 2] = [1_000_000, 4_000_000];

/// Turns, each of which gives a slope.
const ROUNDS: usize = 5;

/// Frames on the stack at each call.
const DEPTH: u32 = 16;

/// What the pairs are.
struct Workload {
    name: &'static str,
    /// LIVE, SIZES, DEPTHS and RANDOM of the program.
    arguments: [u32; 4],
}

const WORKLOADS: [Workload; 4] = [
    Workload { name: "one block, one size", arguments: [1, 1, 1, 0] },
    Workload { name: "one block, 500 sizes", arguments: [1, 500, 1, 0] },
    Workload { name: "1,024 live, 500 sizes, 4 depths, in no order", arguments: [1024, 500, 4, 1] },
    Workload { name: "100,000 live, 500 sizes, 4 depths, in no order", arguments: [100_000, 500, 4, 1] },
];

/// How the machine is shared.
struct Place {
    name: &'static str,
    /// Words before the tool's.
    words: &'static [&'static str],
    /// Whether each processor runs a loop of somebody else's.
    is_busy: bool,
}

const PLACES: [Place; 3] = [
    Place { name: "all processors", words: &[], is_busy: false },
    Place { name: "all on one processor", words: &["taskset", "-c", "0"], is_busy: false },
    Place { name: "beside a busy loop on each processor", words: &[], is_busy: true },
];

/// Seconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

/// What is added to the plain program: nanoseconds a pair, and seconds once.
struct Added {
    pair: Cost,
    once: Cost,
}

/// Prints a table for each place, in Markdown: docs/performance.md has them.
pub fn table() {
    let program = fixture("mixed");
    let out = format!("{}/bench-mixed", env!("CARGO_TARGET_TMPDIR"));
    let mut tools = vec![
        ("auto", heaptrace(&[])),
        ("--no-free-stacks", heaptrace(&["--no-free-stacks"])),
        ("--sample-interval 512k", heaptrace(&["--sample-interval", "512k"])),
    ];
    if installed("heaptrack") {
        tools.push(("heaptrack", vec!["heaptrack".to_owned(), "-o".to_owned(), out]));
    }
    for place in PLACES {
        let _others = place.is_busy.then(Busy::begin);
        println!("\n{}, ns a pair: wall / CPU; and once, ms: wall / CPU\n", place.name);
        println!("| pairs | tool | a pair | of heaptrack's | once |\n|---|---|---|---|---|");
        for workload in &WORKLOADS {
            print!("{}", rows(&program, &place, workload, &tools));
        }
    }
}

fn rows(program: &Path, place: &Place, workload: &Workload, tools: &[(&str, Vec<String>)]) -> String {
    let mut all: Vec<[Vec<Cost>; 2]> = (0..=tools.len()).map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        let plain = (Vec::new(), 0);
        let each = std::iter::once(plain).chain(tools.iter().zip(1..).map(|((_, words), at)| (words.clone(), at)));
        for (words, at) in each {
            for (pairs, costs) in COUNTS.into_iter().zip(&mut all[at]) {
                costs.push(cost(&words, program, place, workload, pairs));
            }
        }
    }
    let plain = line(&all[0]);
    let added: Vec<Added> = all[1..].iter().map(|costs| line(costs).less(&plain)).collect();
    let heaptrack = tools.iter().position(|(name, _)| *name == "heaptrack").and_then(|at| added.get(at));
    let mut text = format!("| {} | plain | {:.0} / {:.0} | | |\n", workload.name, plain.pair.wall, plain.pair.cpu);
    for ((name, _), added) in tools.iter().zip(&added) {
        let part = heaptrack.map_or("-".to_owned(), |of| {
            format!("{:.2} / {:.2}", added.pair.wall / of.pair.wall, added.pair.cpu / of.pair.cpu)
        });
        let (pair, once) = (added.pair, added.once);
        let once = format!("{:.0} / {:.0}", once.wall * 1e3, once.cpu * 1e3);
        writeln!(text, "| | {name} | +{:.0} / +{:.0} | {part} | {once} |", pair.wall, pair.cpu).expect("a string");
    }
    text
}

/// The line through the middle costs of the two counts.
fn line(costs: &[Vec<Cost>; 2]) -> Added {
    let [few, many] = costs.each_ref().map(|costs| Cost {
        wall: median(costs.iter().map(|cost| cost.wall)),
        cpu: median(costs.iter().map(|cost| cost.cpu)),
    });
    let [least, most] = COUNTS.map(|count| count as f64);
    let slope = |few: f64, many: f64| (many - few) / (most - least);
    let (wall, cpu) = (slope(few.wall, many.wall), slope(few.cpu, many.cpu));
    Added {
        pair: Cost { wall: wall * 1e9, cpu: cpu * 1e9 },
        once: Cost { wall: few.wall - wall * least, cpu: few.cpu - cpu * least },
    }
}

impl Added {
    fn less(self, plain: &Self) -> Self {
        let less = |one: Cost, other: Cost| Cost { wall: one.wall - other.wall, cpu: one.cpu - other.cpu };
        Self { pair: less(self.pair, plain.pair), once: less(self.once, plain.once) }
    }
}

fn cost(tool: &[String], program: &Path, place: &Place, workload: &Workload, pairs: u64) -> Cost {
    let mut words: Vec<String> =
        place.words.iter().map(|word| (*word).to_owned()).chain(tool.iter().cloned()).collect();
    words.extend([program.display().to_string(), pairs.to_string(), DEPTH.to_string()]);
    words.extend(workload.arguments.iter().map(u32::to_string));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let (began, cpu) = (Instant::now(), children_cpu());
    let status = command.status().expect("it starts");
    assert!(status.success(), "{words:?}: {status}");
    Cost { wall: began.elapsed().as_secs_f64(), cpu: children_cpu() - cpu }
}

/// The CPU time of all that have ended below us, in seconds: user and system time of children, cutime and cstime (proc_pid_stat(5)).
fn children_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    // fields 16 and 17, counted from 1; the state behind the name is the third
    let ticks: u64 = fields[13..15].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    // USER_HZ is 100 on x86-64
    ticks as f64 / 100.0
}

/// A loop on each processor, as long as this lives.
struct Busy(Vec<Child>);

impl Busy {
    fn begin() -> Self {
        let processors = std::thread::available_parallelism().expect("a number").get();
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Self((0..processors).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // it has ended by itself otherwise
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
