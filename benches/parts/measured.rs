//! What runs cost: wall time, and the CPU time of the program and of all that the tool runs; on a machine that is
//! shared in different ways.

use super::basics::{installed, median};
use super::programs::heaptrace;
use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// How the machine is shared.
pub struct Place {
    /// What the tables are called.
    pub name: &'static str,
    /// Which.
    pub sharing: Sharing,
    /// Words before the tool's.
    words: &'static [&'static str],
}

/// Who has which processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Program and tool have all.
    Alone,
    /// Program and tool have one.
    OneProcessor,
    /// Each processor runs a loop of somebody else's, too.
    BusyLoops,
}

pub const PLACES: [Place; 3] = [
    Place { name: "Two processors, nothing else", sharing: Sharing::Alone, words: &[] },
    Place { name: "All on one processor", sharing: Sharing::OneProcessor, words: &["taskset", "-c", "0"] },
    Place { name: "Beside a busy loop on each processor", sharing: Sharing::BusyLoops, words: &[] },
];

/// Seconds.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub wall: f64,
    pub cpu: f64,
}

impl Cost {
    /// The middle of each.
    pub fn median(costs: &[Self]) -> Self {
        Self { wall: median(costs.iter().map(|cost| cost.wall)), cpu: median(costs.iter().map(|cost| cost.cpu)) }
    }

    /// What was added to `other`.
    pub fn beyond(self, other: Self) -> Self {
        Self { wall: self.wall - other.wall, cpu: self.cpu - other.cpu }
    }
}

/// What a tool adds to a program at a place, as a part of what heaptrack adds there.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub sharing: Sharing,
    pub workload: &'static str,
    pub tool: &'static str,
    /// Of wall and CPU time; no seconds.
    pub of_heaptrack: Cost,
    /// The machine was not quiet enough for it to be known.
    pub is_disturbed: bool,
}

/// A way to run a program: a tool with its options.
pub struct Tool {
    pub name: &'static str,
    /// Its words before the program's.
    pub words: Vec<String>,
}

/// The tool that takes samples.
pub const SAMPLING: &str = "--sample-interval 512k";

/// The tools that see each call without a stop, as far as they are installed. heaptrack has no options that would make
/// it faster; its own interpreter is a process beside it, whose CPU time counts as heaptrace's does.
pub fn tools() -> Vec<Tool> {
    let out = format!("{}/bench-heaptrack", env!("CARGO_TARGET_TMPDIR"));
    let mut tools = vec![
        Tool { name: "auto", words: heaptrace(&[]) },
        Tool { name: "--no-free-stacks", words: heaptrace(&["--no-free-stacks"]) },
        Tool { name: SAMPLING, words: heaptrace(&["--sample-interval", "512k"]) },
    ];
    if installed("heaptrack") {
        tools.push(Tool { name: "heaptrack", words: vec!["heaptrack".to_owned(), "-o".to_owned(), out] });
    }
    tools
}

impl Place {
    /// Others use the machine as long as what is returned lives.
    pub fn share(&self) -> Option<Busy> {
        (self.sharing == Sharing::BusyLoops).then(Busy::begin)
    }

    /// Runs a program below a tool's words.
    pub fn cost(&self, tool: &[String], program: &[String]) -> Cost {
        let own = self.words.iter().map(|word| (*word).to_owned());
        let words: Vec<String> = own.chain(tool.iter().cloned()).chain(program.iter().cloned()).collect();
        let mut command = Command::new(&words[0]);
        // python3 has an allocator of its own above malloc's
        command.args(&words[1..]).env("PYTHONMALLOC", "malloc");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (began, cpu) = (Instant::now(), children_cpu());
        let status = command.status().expect("it starts");
        assert!(status.success(), "{words:?}: {status}");
        Cost { wall: began.elapsed().as_secs_f64(), cpu: children_cpu() - cpu }
    }
}

/// The CPU time of all that have ended below us, in seconds: user and system time of children, cutime and cstime
/// (proc_pid_stat(5)).
fn children_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    // fields 16 and 17, counted from 1; the state behind the name is the third
    let ticks: u64 = fields[13..15].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    // USER_HZ is 100 on x86-64
    ticks as f64 / 100.0
}

/// A loop on each processor, as long as this lives.
pub struct Busy(Vec<Child>);

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

/// A text that is also printed as it comes, line by line.
#[derive(Default)]
pub struct Page(pub String);

impl Page {
    pub fn line(&mut self, text: &str) {
        println!("{text}");
        writeln!(self.0, "{text}").expect("a string takes all");
    }
}
