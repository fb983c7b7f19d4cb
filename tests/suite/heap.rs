//! `heaptrace heap`: the memory of a process that nobody has traced, held against the kernel's figures and glibc's own.

use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::running::Running;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn ask(pid: i32, options: &[&str]) -> Output {
    Command::new(HEAPTRACE).arg("heap").args(options).arg(pid.to_string()).output().unwrap()
}

/// The answer as JSON.
fn heap(pid: i32, options: &[&str]) -> Value {
    let output = ask(pid, &[&["--json"], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(answer: &Value, pointer: &str) -> u64 {
    answer.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// A field of /proc/PID/smaps_rollup, in bytes.
fn rollup(pid: i32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// What `mallinfo2` says in the program itself.
struct Info(Vec<(String, u64)>);

impl Info {
    fn of(&self, name: &str) -> u64 {
        self.0.iter().find(|(known, _)| known == name).unwrap().1
    }
}

fn start(program: &Program) -> (Running, i32, Info) {
    let mut running = program.start();
    running.send("begin");
    let names = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "fsmblks", "fordblks", "keepcost"];
    let info = names.map(|name| (name.to_owned(), running.value(name).parse().unwrap()));
    let pid = running.value("ready").parse().unwrap();
    (running, pid, Info(info.to_vec()))
}

fn end(mut running: Running, pid: i32) {
    procfs::assert_left_as_it_was(pid);
    running.send("well");
    assert_eq!(running.line(), "well");
    running.feed(b"");
    running.wait().success();
}

/// Each chunk is seen as what it is: the sums are those of glibc's own count, and the program's blocks are as many as it keeps.
#[test]
fn the_chunks_are_those_that_glibc_counts() {
    for flags in [&[][..], &["-static"], &["-static-pie"]] {
        let program = Program::new(crate::support::fixtures::program_with("heap_of", flags));
        let (running, pid, info) = start(&program);
        let answer = heap(pid, &[]);
        let chunks = |state: &str, what: &str| number(&answer, &format!("/chunks/{state}/{what}"));
        let arenas = answer["arenas"].as_array().unwrap();
        assert_eq!(arenas.len(), 2, "{flags:?}: {answer}");
        assert_eq!(answer["copied"], true, "{flags:?}: {answer}");
        assert_eq!(answer["findings"].as_array().unwrap().len(), 0, "{flags:?}: {answer}");
        assert_eq!(chunks("fast", "count"), info.of("smblks"), "{flags:?}");
        assert_eq!(chunks("fast", "bytes"), info.of("fsmblks"), "{flags:?}");
        assert!(info.of("smblks") > 0 && chunks("tcache", "count") > 0, "{flags:?}: {answer}");
        // an arena's end counts as a free block there
        assert_eq!(chunks("free", "count") + chunks("top", "count"), info.of("ordblks"), "{flags:?}");
        let free = chunks("free", "bytes") + chunks("top", "bytes") + chunks("fast", "bytes");
        assert_eq!(free, info.of("fordblks"), "{flags:?}");
        assert_eq!(chunks("mapped", "count"), info.of("hblks"), "{flags:?}");
        assert_eq!(chunks("mapped", "bytes"), info.of("hblkhd"), "{flags:?}");
        assert_eq!(number(&answer, "/mapped_bytes_of_allocator"), info.of("hblkhd"), "{flags:?}");
        let system: u64 = arenas.iter().map(|arena| number(arena, "/system_bytes")).sum();
        assert_eq!(system, info.of("arena"), "{flags:?}");
        let kept = answer["sizes"].as_array().unwrap().iter().find(|row| row["usable"] == 5000).unwrap();
        assert!((700..720).contains(&number(kept, "/live")), "{flags:?}: {kept}");
        end(running, pid);
    }
}

/// The uses of memory add up to what the kernel says is resident.
#[test]
fn the_sum_is_the_resident_memory() {
    let program = Program::fixture("heap_of");
    let (running, pid, _) = start(&program);
    let answer = heap(pid, &[]);
    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
    assert_eq!(number(&answer, "/resident"), rollup(pid, "Rss"));
    let sum: u64 = answer["uses"].as_object().unwrap().values().map(|of| number(of, "/resident")).sum();
    assert_eq!(sum, number(&answer, "/resident"));
    end(running, pid);
    // a real program, with another thread's stacks, files and shared memory
    let mut sleeper = Program::new("/usr/bin/python3")
        .args([
            "-c",
            "import threading,sys,json\nthreading.Thread(target=sys.stdin.readline).start()\nprint('up', flush=True)",
        ])
        .start();
    assert_eq!(sleeper.line(), "up");
    let answer = heap(sleeper.pid(), &[]);
    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
    assert_eq!(answer["allocator"], "glibc");
    assert!(number(&answer, "/uses/live/resident") > 500_000, "{answer}");
    sleeper.feed(b"\n");
    sleeper.wait().success();
}

/// What malloc_trim(0) would give back is what it gives back, to the page; afterwards it would give nothing.
#[test]
fn trim_is_told_to_the_page() {
    let program = Program::fixture("heap_of");
    let (mut running, pid, _) = start(&program);
    let answer = heap(pid, &[]);
    let told = number(&answer, "/trim/inside") + number(&answer, "/trim/end");
    assert!(told > 10 << 20, "{answer}");
    assert_eq!(answer["verdict"], "retention");
    let before = rollup(pid, "Anonymous");
    running.send("trim");
    assert_eq!(running.value("trimmed"), "1");
    assert_eq!(before - rollup(pid, "Anonymous"), told);
    let answer = heap(pid, &[]);
    assert_eq!(number(&answer, "/trim/inside") + number(&answer, "/trim/end"), 0, "{answer}");
    end(running, pid);
}

/// What `--trim` says that it gave back is what was told before, and what the kernel says; the program is well.
#[test]
fn trim_gives_back_what_was_told() {
    for flags in [&[][..], &["-static"], &["-static-pie"]] {
        let program = Program::new(crate::support::fixtures::program_with("heap_of", flags));
        let (running, pid, _) = start(&program);
        let before = rollup(pid, "Anonymous");
        let answer = heap(pid, &["--trim"]);
        let told = number(&answer, "/trim/inside") + number(&answer, "/trim/end");
        assert!(told > 10 << 20, "{flags:?}: {answer}");
        assert_eq!(number(&answer, "/trimmed"), told, "{flags:?}: {answer}");
        // the call may be the first that goes so deep into its thread's stack
        let less = before - rollup(pid, "Anonymous");
        assert!(less <= told && less + (16 << 10) >= told, "{flags:?}: {less} of {told}");
        let answer = heap(pid, &["--trim"]);
        assert_eq!(number(&answer, "/trim/inside") + number(&answer, "/trim/end"), 0, "{flags:?}: {answer}");
        assert_eq!(answer["trimmed"], 0, "{flags:?}: {answer}");
        end(running, pid);
    }
}

/// The threads of a busy program may be inside of malloc: then nothing is called, or all is well.
#[test]
fn trim_of_a_busy_process_does_no_harm() {
    let program = Program::fixture("victim").args(["4"]);
    let (victim, pid) = super::attach::start_victim(&program);
    let mut called = 0;
    for _ in 0..super::rounds(20) {
        let output = ask(pid, &["--trim", "--json"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || told.contains("try again"), "{told}");
        called += u32::from(output.status.success());
    }
    assert!(called > 0);
    super::attach::assert_victim_well(victim, pid);
}

/// A thread in a signal handler that has interrupted malloc calls nothing, nor does a stopped process.
#[test]
fn trim_is_called_at_safe_moments_only() {
    let program = Program::fixture("sleeps_in_handler");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    let refused = ask(pid, &["--trim"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("try again"), "{refused:?}");
    running.feed(b"");
    running.wait().success();
    let program = Program::fixture("heap_of");
    let (running, pid, _) = start(&program);
    running.signal(nix::sys::signal::Signal::SIGSTOP);
    procfs::wait_until("it is stopped", || procfs::state(pid) == Some('T'));
    let refused = ask(pid, &["--trim"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("try again"), "{refused:?}");
    assert_eq!(procfs::state(pid), Some('T'));
    running.signal(nix::sys::signal::Signal::SIGCONT);
    end(running, pid);
}

/// Runs heaptrace until it is let to its end, with each failure at each so many-th of its calls. `check` looks at the process after each.
fn break_off(options: &[&str], pid: i32, step: usize, mut check: impl FnMut(&str)) {
    for failure in ["abort", "error"] {
        for call in (1..).step_by(step) {
            let order = format!("{failure}:{call}");
            let output = Command::new(HEAPTRACE)
                .args([options, &["--json", &pid.to_string()]].concat())
                .env("HEAPTRACE_INJECT", &order)
                .output()
                .unwrap();
            procfs::assert_left_as_it_was(pid);
            check(&order);
            // an error may be of no weight
            if output.status.success() && (failure == "abort" || call > 300) {
                break;
            }
        }
    }
}

/// At whatever moment heaptrace is killed, or fails: the thread goes on that has called malloc_trim for it.
#[test]
fn trim_that_is_broken_off_does_no_harm() {
    let program = Program::fixture("copied");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    break_off(&["heap", "--trim"], pid, 5, |order| {
        running.send("well");
        assert_eq!(running.line(), "well", "{order}");
    });
    running.feed(b"");
    running.wait().success();
    // while it is at work
    let program = Program::fixture("heap_of");
    let (mut running, pid, _) = start(&program);
    break_off(&["heap", "--trim"], pid, 797, |order| {
        running.send("well");
        assert_eq!(running.line(), "well", "{order}");
    });
    end(running, pid);
}

/// The children of a single-threaded process, dead ones too.
fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// The process stands only to be copied. It gets no signal for that, sees no child, and none is left.
#[test]
fn a_copy_is_read_and_nothing_is_left_of_it() {
    let program = Program::fixture("copied");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    for _ in 0..super::rounds(5) {
        assert_eq!(heap(pid, &[])["copied"], true);
        assert!(children(pid).is_empty());
        let output = Command::new(HEAPTRACE).args(["leaks", "--json", &pid.to_string()]).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["copied"], true, "{answer}");
        assert_eq!(answer["leaks"]["definite"]["blocks"], 0, "{answer}");
        assert!(children(pid).is_empty());
        running.send("well");
        assert_eq!(running.line(), "well");
    }
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
}

/// Where the copy would lack something, or can't be had, the process itself is read.
#[test]
fn what_cant_be_copied_is_read_where_it_is() {
    let program = Program::fixture("copied").args(["dontfork"]);
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    assert_eq!(heap(pid, &[])["copied"], false);
    let output = Command::new(HEAPTRACE).args(["leaks", "--json", &pid.to_string()]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["copied"], false, "{answer}");
    assert_eq!(answer["leaks"]["definite"]["blocks"], 0, "a block hangs on memory that is not copied: {answer}");
    assert!(children(pid).is_empty());
    running.send("well");
    assert_eq!(running.line(), "well");
    running.feed(b"");
    running.wait().success();
}

/// At whatever moment heaptrace is killed, or fails: no copy lives on, and the program goes on.
#[test]
fn a_copy_that_is_broken_off_does_no_harm() {
    let program = Program::fixture("copied");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    break_off(&["heap"], pid, 7, |order| {
        let lives = |child: &i32| procfs::state(*child).is_some_and(|state| state != 'Z');
        procfs::wait_until(&format!("{order}: no copy lives"), || !children(pid).iter().any(lives));
        running.send("well");
        assert_eq!(running.line(), "well", "{order}");
    });
    running.feed(b"");
    running.wait().success();
}

/// A header that was written over is found, with the block before it; the rest of the heap is told all the same.
#[test]
fn an_overrun_is_found_where_it_is() {
    let program = Program::fixture("heap_of");
    let (mut running, pid, _) = start(&program);
    running.send("overrun");
    let block = running.value("overrun");
    let answer = heap(pid, &[]);
    let findings = answer["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["block_before"] == block.as_str()), "{block}: {answer}");
    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
    assert!(number(&answer, "/uses/unknown_heap/resident") > 0, "{answer}");
    let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
    assert!(text.contains(&format!("at {block}")), "{text}");
    end(running, pid);
}

/// A process that stands still for a moment goes on as it was: sleeps end when they would have, and a stopped one stays stopped.
#[test]
fn t05_a_look_wakes_no_sleepers() {
    let program = Program::fixture("sleepers").args(["3000"]);
    let mut sleepers = program.start();
    let pid: i32 = sleepers.value("asleep").parse().unwrap();
    for _ in 0..3 {
        heap(pid, &[]);
        heap(pid, &["--trim"]);
    }
    while let Some(line) = sleepers.line_or_end() {
        assert!(line.contains(" on time "), "{line}");
    }
    sleepers.wait().success();
    let program = Program::fixture("heap_of");
    let (running, pid, _) = start(&program);
    running.signal(nix::sys::signal::Signal::SIGSTOP);
    procfs::wait_until("it is stopped", || procfs::state(pid) == Some('T'));
    heap(pid, &[]);
    assert_eq!(procfs::state(pid), Some('T'));
    running.signal(nix::sys::signal::Signal::SIGCONT);
    end(running, pid);
}

/// Under load, with and without a stop: it is told, and nothing breaks.
#[test]
fn a_busy_process_is_looked_at_and_lives() {
    let program = Program::fixture("victim").args(["4"]);
    let (victim, pid) = super::attach::start_victim(&program);
    for options in [&[][..], &["--no-stop"]] {
        for _ in 0..super::rounds(5) {
            let answer = heap(pid, options);
            assert!(number(&answer, "/uses/live/resident") > 0, "{answer}");
            let stood = answer["stood_ns"].is_u64();
            assert_eq!(stood, options.is_empty(), "{answer}");
            if stood {
                assert_eq!(answer["findings"].as_array().unwrap().len(), 0, "{answer}");
            }
        }
    }
    super::attach::assert_victim_well(victim, pid);
}

/// What can't be looked at is refused with its cause; another allocator is told as one.
#[test]
fn what_cant_be_walked_is_told() {
    let gone = ask(i32::MAX, &[]);
    assert_eq!(gone.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no such process"), "{gone:?}");
    let jemalloc = installed(Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"));
    let program = Program::fixture("victim").args(["1"]).env("LD_PRELOAD", jemalloc);
    let (victim, pid) = super::attach::start_victim(&program);
    let answer = heap(pid, &[]);
    assert!(answer["allocator"].is_null(), "{answer}");
    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
    let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
    assert!(text.contains("can't be walked"), "{text}");
    super::attach::assert_victim_well(victim, pid);
}
