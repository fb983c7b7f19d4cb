//! Engines and other tools side by side: what each adds to a malloc/free pair, at several depths of the stack, and from
//! how many pairs a second on that is more than a tenth of the program's time. Tools that stop the program at each call
//! have a table of their own: none could take as many pairs as the others need. In each table all have the same pairs.

use super::basics::installed;
use super::programs::{STOPPING, heaptrace, pair_by_slope};
use std::path::Path;
use std::process::{Command, Stdio};

/// So many pairs for each tool that does not stop the program.
const RECORDING: [u64; 2] = [500_000, 2_000_000];

/// Frames on the stack at each call.
const DEPTHS: [u32; 3] = [5, 16, 40];

/// The part of a program's time that may be added.
const TOLERATED: f64 = 0.1;

/// What a pair is measured under.
struct Tool {
    name: &'static str,
    /// Its words before the program's; None if it is not to be had here.
    words: Option<Vec<String>>,
}

/// Prints what each tool adds, and how many pairs a second it bears: of tools that record each call where it is made.
pub fn recording(program: &Path) {
    let other = |name: &str, text: &str| installed(name).then(|| words(text));
    let tools = [
        Tool { name: "jump", words: ours(&["--engine", "jump"]) },
        Tool { name: "jump -frees", words: ours(&["--engine", "jump", "--no-free-stacks"]) },
        Tool { name: "sampled", words: ours(&["--engine", "jump", "--sample-interval", "512k"]) },
        Tool { name: "Memcheck", words: other("valgrind", "valgrind -q") },
    ];
    table(program, &tools, RECORDING);
}

/// The same of tools that stop the program at each call.
pub fn stopping(program: &Path) {
    let probes = Uprobes::place();
    let out = format!("{}/bench-engines", env!("CARGO_TARGET_TMPDIR"));
    let perf = probes.is_some().then(|| words(&format!("perf record -q -g -e probe_libc:* -o {out}.perf")));
    let ltrace = installed("ltrace").then(|| words("ltrace -e malloc+free -o /dev/null"));
    let tools = [
        Tool { name: "trap", words: ours(&["--engine", "trap"]) },
        Tool { name: "uprobes", words: perf },
        Tool { name: "ltrace", words: ltrace },
    ];
    table(program, &tools, STOPPING);
}

fn table(program: &Path, tools: &[Tool], counts: [u64; 2]) {
    println!("\nadded a pair, between {} and {} pairs of each:", counts[0], counts[1]);
    println!("{:<12}{}", "", heads(tools));
    let mut added: Vec<Vec<Option<f64>>> = Vec::new();
    for depth in DEPTHS {
        let pair = |words: &[String]| pair_by_slope(words, program, counts, depth);
        let plain = pair(&[]);
        let row: Vec<Option<f64>> = tools.iter().map(|tool| Some(pair(tool.words.as_ref()?) - plain)).collect();
        let cells = cells(&row, |ns| format!("{:.3} us", ns / 1e3));
        println!("depth {depth:<6}{:>12}{cells}", format!("{:.3} us", plain / 1e3));
        added.push(row);
    }
    println!("stays under {:.0} % up to so many pairs a second:", TOLERATED * 100.0);
    for (depth, row) in DEPTHS.iter().zip(&added) {
        let cells = cells(row, |ns| if ns > 0.0 { count(TOLERATED * 1e9 / ns) } else { "any".to_owned() });
        println!("depth {depth:<6}{:>12}{cells}", "");
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Breakpoints of the kernel's own at malloc and free of the C library, as long as this lives.
struct Uprobes;

impl Uprobes {
    /// None where perf or the right to do so is missing.
    fn place() -> Option<Self> {
        let library = "/lib/x86_64-linux-gnu/libc.so.6";
        let placed = perf_probe(&["-x", library, "--add", "malloc", "--add", "free"]);
        placed.then_some(Self)
    }
}

impl Drop for Uprobes {
    fn drop(&mut self) {
        perf_probe(&["--del", "probe_libc:*"]);
    }
}

fn perf_probe(arguments: &[&str]) -> bool {
    let mut command = Command::new("perf");
    command.arg("probe").arg("-q").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn heads(tools: &[Tool]) -> String {
    let names = ["plain"].into_iter().chain(tools.iter().map(|tool| tool.name));
    names.map(|name| format!("{name:>12}")).collect()
}

/// A cell for each tool; `-` for one that is not to be had.
fn cells(row: &[Option<f64>], show: impl Fn(f64) -> String) -> String {
    row.iter().map(|cell| format!("{:>12}", cell.map_or("-".to_owned(), &show))).collect()
}

/// Two digits are all that such a figure is good for.
fn count(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e3 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// `heaptrace run` with these options, if it knows them and the program runs on that engine here. Without such an
/// option there is one engine, which traps.
fn ours(options: &[&str]) -> Option<Vec<String>> {
    let words = heaptrace(options);
    let starts = |words: &[String]| {
        let mut command = Command::new(words.first()?);
        command.args(words.get(1..)?).arg("/bin/true").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().ok().filter(std::process::ExitStatus::success)
    };
    if starts(&words).is_some() {
        return Some(words);
    }
    options.contains(&"trap").then(|| heaptrace(&[]))
}
