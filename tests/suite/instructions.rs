//! How many instructions the tracer executes for what a program waits for: counted by callgrind, so that it is the same
//! on a busy machine and on a slow one.

use crate::support::program::{Program, installed};
use crate::support::report::Report;
use crate::support::running::{Ended, Running};
use crate::support::{checks, procfs};
use nix::sys::signal::Signal;
use std::path::Path;

/// Calls of all threads together, in two runs: the slope between them has neither the start nor stacks that are new.
const CALLS: [u64; 2] = [4_000, 16_000];

/// What is done for an event, from a thread's ring to the heap model: records are taken out of the rings, decoded and
/// merged, what is known of each call is looked up, and the heap model is told.
const DRAIN: &str = "heaptrace::session::jump::drain::*::drain";

/// What is done while a thread stands still, as its process goes over to the jump engine.
const CHANGE: &str = "heaptrace::session::jump::promote::try_to_promote";

/// What an attach does for that while the process still runs.
const AHEAD: &str = "heaptrace::session::space::entries::ahead::*::look_ahead";

/// Instructions of an event at most: half as many again as there were when this was written, 13,500, 2,300 and 1,550.
/// Code without any optimization has most, that of the tests' own profile (1) fewer.
const fn limit() -> u64 {
    match env!("HEAPTRACE_OPT_LEVEL").as_bytes() {
        b"0" => 20_000,
        b"1" => 3_500,
        _ => 2_300,
    }
}

/// The words before heaptrace's own with which callgrind counts the instructions of `function`, what it calls included;
/// of all of heaptrace, if there is none.
fn callgrind(program: &Program, function: Option<&str>) -> Vec<String> {
    let valgrind = installed(Path::new("valgrind")).display().to_string();
    // forked children of heaptrace write files of their own
    let file = format!("--callgrind-out-file={}.%p", program.outside("callgrind").display());
    // A stream that is recorded, as it is in tests, would be part of the work.
    let words = ["env", "-u", "HEAPTRACE_TEST_REPLAY", &valgrind, "-q", "--tool=callgrind"].map(str::to_owned);
    let counted = function.map(|function| format!("--toggle-collect={function}"));
    words.into_iter().chain(counted).chain([file]).collect()
}

/// Waits for the end of a heaptrace that was started so: what it printed, and the instructions.
fn counted(program: &Program, heaptrace: Running) -> (Ended, u64) {
    let file = format!("{}.{}", program.outside("callgrind").display(), heaptrace.pid());
    let ended = heaptrace.wait();
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("callgrind wrote no {file}: {error}"));
    // "summary": Callgrind Format Specification, in Valgrind's manual
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ")).expect("a line of the sum");
    (ended, total.trim().parse().expect("one count"))
}

/// The report of a run with so many calls, and the instructions of the drain.
fn drained(threads: u64, calls: u64) -> (Report, u64) {
    let program = Program::fixture("mixed_calls").args([threads.to_string(), (calls / threads).to_string()]);
    let words = callgrind(&program, Some(DRAIN));
    let mut tool = std::process::Command::new(&words[0]);
    tool.args(&words[1..]).arg(env!("CARGO_BIN_EXE_heaptrace"));
    tool.args(["run", "-q", "--engine", "jump", "--no-symbolize", "-o"]).arg(program.report_path()).arg("--");
    let (ended, count) = counted(&program, program.start_under(tool));
    (Report::read(&program.report_path(), &ended), count)
}

/// Fails if an event takes more instructions than it may.
fn assert_few_instructions(threads: u64) {
    let [few, many] = CALLS.map(|calls| drained(threads, calls));
    let more = CALLS[1] - CALLS[0];
    let events = |report: &Report| report.number("/cost/events_without_stop");
    let drained = events(&many.0) - events(&few.0);
    assert!(drained.abs_diff(more) < more / 20, "{drained} of {more} calls came through a ring");
    assert!(few.1 > 0, "callgrind knows no function {DRAIN}");
    let each = (many.1 - few.1) / drained;
    println!("{threads} threads: {each} instructions an event");
    // Far fewer would mean that the work is done elsewhere, where nobody counts it.
    assert!((limit() / 6..=limit()).contains(&each), "{each} instructions an event, where {} are the limit", limit());
}

#[test]
fn events_of_one_thread_take_few_instructions() {
    assert_few_instructions(1);
}

#[test]
fn events_of_four_threads_take_few_instructions() {
    assert_few_instructions(4);
}

/// Runs with so many calls, each on a stack of its own: the slope between them is that of a new stack of 16 frames.
const STACKS: [u64; 2] = [1_000, 4_000];

/// Instructions of a new stack at most, from the list of its callers to the compressed file: half as many again as
/// there were when this was written, 176,400, 33,400 and 21,100.
const fn limit_of_stack() -> u64 {
    match env!("HEAPTRACE_OPT_LEVEL").as_bytes() {
        b"0" => 265_000,
        b"1" => 50_000,
        _ => 31_500,
    }
}

/// The number of stacks in the profile, and the instructions of all that heaptrace does.
fn with_stacks(calls: u64) -> (u64, u64) {
    let program = Program::fixture("distinct_stacks").args([calls.to_string()]);
    let words = callgrind(&program, None);
    let (mut tool, profile) = (std::process::Command::new(&words[0]), program.outside("profile.pb.gz"));
    tool.args(&words[1..]).arg(env!("CARGO_BIN_EXE_heaptrace"));
    tool.args(["run", "-q", "--engine", "jump", "--no-free-stacks", "-o"]).arg(&profile).arg("--");
    let (ended, count) = counted(&program, program.start_under(tool));
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let raw = checks::pprof(&["-raw"], &[&profile]);
    let samples = raw.split_once("Samples:").and_then(|(_, rest)| rest.split_once("Locations")).expect("samples").0;
    // "values: locations"; labels stand on lines of their own
    let is_sample =
        |line: &&str| line.split_once(':').is_some_and(|(values, _)| values.trim().ends_with(char::is_numeric));
    (samples.lines().filter(is_sample).count() as u64, count)
}

#[test]
fn a_new_stack_takes_few_instructions() {
    let [few, many] = STACKS.map(with_stacks);
    let more = STACKS[1] - STACKS[0];
    assert_eq!(many.0 - few.0, more, "each call has a stack of its own");
    let each = (many.1 - few.1) / more;
    println!("{each} instructions a new stack");
    let limit = limit_of_stack();
    // Far fewer would mean that the work is done elsewhere, where nobody counts it.
    assert!((limit / 6..=limit).contains(&each), "{each} instructions a new stack, where {limit} are the limit");
}

/// The instructions of a function in an attach that goes over to the jump engine.
fn of_attach(function: &str) -> u64 {
    let program = Program::fixture("forever").env("HEAPTRACE_ENGINE", "jump");
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let words = callgrind(&program, Some(function));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut heaptrace = program.start_attached_under(&words, pid);
    // the memory that the engine shares with the process
    let is_changed =
        || std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("memfd:heaptrace"));
    heaptrace.wait_until("the process is on the jump engine", is_changed);
    heaptrace.signal(Signal::SIGINT);
    let (ended, count) = counted(&program, heaptrace);
    assert_eq!(Report::read(&program.report_path(), &ended).text("/engine"), "jump");
    procfs::assert_left_as_it_was(pid);
    target.signal(Signal::SIGKILL);
    target.assert_killed();
    count
}

/// A request to a server takes as much longer. Nearly all of the work is decoding of the allocator's code.
#[test]
fn an_attach_looks_at_code_while_the_process_still_runs() {
    let (ahead, change) = (of_attach(AHEAD), of_attach(CHANGE));
    println!("{ahead} instructions ahead, {change} while a thread stands");
    assert!(change > 0, "callgrind knows no function {CHANGE}");
    assert!(3 * change < ahead, "{change} instructions while a thread stands, and only {ahead} before");
}
