//! Runs the benchmark programs, plainly and under tools.

use super::basics::median;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Compiles a fixture of the tests.
pub fn fixture(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.c"));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}"));
    let status = Command::new("cc")
        .args(["-g", "-O2", "-fno-builtin", "-fno-optimize-sibling-calls", "-fno-inline", "-o"])
        .arg(&path)
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "building {name}");
    path
}

/// `heaptrace run` with its outputs in the build directory. It writes its summary too, as a user's run does: `-q` would
/// leave out the work for it.
pub fn heaptrace(options: &[&str]) -> Vec<String> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench.pb.gz");
    let mut words = vec![env!("CARGO_BIN_EXE_heaptrace").to_owned(), "run".into()];
    words.extend(options.iter().map(|option| (*option).to_owned()));
    words.extend(["-o".into(), out.display().to_string(), "--".into()]);
    words
}

/// So many pairs for each tool that stops the program at each call.
pub const STOPPING: [u64; 2] = [2_500, 10_000];

/// Nanoseconds of a pair of malloc and free, with `depth` frames on the stack, below the words of a tool: the slope
/// between two counts of pairs, so that what a tool does once is no part of it. The medians of three runs of each.
pub fn pair_by_slope(tool: &[String], program: &Path, counts: [u64; 2], depth: u32) -> f64 {
    let [few, many] = counts.map(|count| pairs(tool, program, count, depth) * count as f64);
    (many - few) / (counts[1] - counts[0]) as f64
}

/// Runs the program of malloc/free pairs: nanoseconds a pair, all that happens meanwhile included, the median of three
/// runs.
fn pairs(tool: &[String], program: &Path, count: u64, depth: u32) -> f64 {
    median((0..3).map(|_| {
        let output = command(tool, program).args([count.to_string(), depth.to_string()]).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("ns_per_pair "));
        let line = line
            .unwrap_or_else(|| panic!("{tool:?} printed no time:\n{text}{}", String::from_utf8_lossy(&output.stderr)));
        line.trim().parse().expect("a number")
    }))
}

/// Wall time of a command in seconds, the median of eleven runs.
pub fn wall(words: &[String]) -> f64 {
    median((0..11).map(|_| {
        let begin = Instant::now();
        let status = Command::new(&words[0])
            .args(&words[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("it starts");
        assert!(status.success(), "{words:?}");
        begin.elapsed().as_secs_f64()
    }))
}

/// Runs a program under heaptrace until it says `holding`, and returns heaptrace's peak resident bytes so far.
pub fn resident(tool: &[String], program: &Path, args: &[&str]) -> u64 {
    let mut child =
        command(tool, program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert!(line.starts_with("holding"), "{line:?}");
    let peak = peak_resident(&child);
    let mut input = child.stdin.take().expect("piped");
    writeln!(input, "go on").expect("it reads");
    drop(input);
    output.read_to_string(&mut line).expect("the rest");
    assert!(child.wait().expect("it ends").success());
    peak
}

fn peak_resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes * 1024
}

fn command(tool: &[String], program: &Path) -> Command {
    let mut words = tool.iter();
    let mut command = match words.next() {
        Some(first) => Command::new(first),
        None => return Command::new(program),
    };
    command.args(words).arg(program).stdin(Stdio::null());
    command
}
