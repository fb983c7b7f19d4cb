//! `heaptrace heap`: the memory of a process that nobody has traced, held against the kernel's figures and glibc's own.

mod copies;
mod copies_apart;
mod copies_ends;
mod gdb;
mod jemalloc;
mod mimalloc3;
mod undisturbed;

use crate::support::program::{Program, installed};
use crate::support::running::Running;
use crate::support::{fixtures, procfs};
use heaptrace::internal::heap_of;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// From 2.42 on: threads keep large blocks, too, such with mappings of their own among them.
const LARGE_CACHES: &str = "glibc.malloc.tcache_max=1000000";

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

/// Blocks that were hardly touched: what one holder has of them is no part of what is resident.
#[test]
fn what_is_held_is_told_of_the_blocks_not_of_the_resident_memory() {
    let program = Program::fixture("untouched");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    let ended = Program::new("/bin/true").start_heaptrace(["heap".to_owned(), pid.to_string()]).wait();
    let text = ended.text();
    let paragraph = text.split("\n\n").find(|part| part.starts_with("Most of the resident memory")).unwrap_or(&text);
    let verdict = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(verdict.contains("is in live blocks; of the ") && verdict.contains("touched or not"), "{verdict}");
    let amounts: Vec<f64> = verdict
        .split_whitespace()
        .zip(verdict.split_whitespace().skip(1))
        .filter(|(_, unit)| unit.trim_end_matches(',') == "MiB")
        .map(|(amount, _)| amount.parse().unwrap())
        .collect();
    // 30 MiB were touched of 100, 60 of them by one holder
    let [resident, room, retained] = amounts[..] else { panic!("{verdict}") };
    assert!(resident < 35.0 && room > 99.0 && (59.0..62.0).contains(&retained), "{verdict}");
    running.feed(b"");
    running.wait().success();
}

/// Each chunk is seen as what it is: the sums are those of glibc's own count, and the program's blocks are as many as
/// it keeps.
#[test]
fn the_chunks_are_those_that_glibc_counts() {
    for flags in [&[][..], &["-static"], &["-static-pie"]] {
        let program = Program::new(fixtures::program_with("heap_of", flags));
        let (running, pid, info) = start(&program);
        let answer = heap(pid, &[]);
        assert_eq!(answer["copied"], true, "{flags:?}: {answer}");
        assert_counts(&answer, &info, &format!("{flags:?}"));
        assert!(info.of("smblks") > 0, "{flags:?}");
        end(running, pid);
    }
}

/// The same, and what malloc_trim(0) gives back, with other versions of glibc: without safe-linking, without fast bins,
/// and with caches of large blocks.
#[test]
fn the_chunks_are_those_that_other_glibcs_count() {
    for root in fixtures::other_glibcs() {
        for tunables in ["", LARGE_CACHES] {
            let what = format!("{} {tunables}", root.display());
            let program = Program::new(fixtures::program_of_glibc("heap_of", &root)).env("GLIBC_TUNABLES", tunables);
            let (mut running, pid, info) = start(&program);
            let answer = heap(pid, &[]);
            assert_counts(&answer, &info, &what);
            let told = number(&answer, "/trim/inside") + number(&answer, "/trim/end");
            let before = rollup(pid, "Anonymous");
            running.send("trim");
            assert_eq!(running.value("trimmed"), "1", "{what}");
            assert_eq!(before - rollup(pid, "Anonymous"), told, "{what}");
            end(running, pid);
        }
    }
}

fn assert_counts(answer: &Value, info: &Info, what: &str) {
    let chunks = |state: &str, what: &str| number(answer, &format!("/chunks/{state}/{what}"));
    let arenas = answer["arenas"].as_array().unwrap();
    assert_eq!(arenas.len(), 2, "{what}: {answer}");
    assert_eq!(answer["findings"].as_array().unwrap().len(), 0, "{what}: {answer}");
    assert_eq!(chunks("fast", "count"), info.of("smblks"), "{what}");
    assert_eq!(chunks("fast", "bytes"), info.of("fsmblks"), "{what}");
    assert!(chunks("tcache", "count") > 0, "{what}: {answer}");
    // an arena's end counts as a free block there
    assert_eq!(chunks("free", "count") + chunks("top", "count"), info.of("ordblks"), "{what}");
    let free = chunks("free", "bytes") + chunks("top", "bytes") + chunks("fast", "bytes");
    assert_eq!(free, info.of("fordblks"), "{what}");
    assert_eq!(chunks("mapped", "count"), info.of("hblks"), "{what}");
    assert_eq!(chunks("mapped", "bytes"), info.of("hblkhd"), "{what}");
    assert_eq!(number(answer, "/mapped_bytes_of_allocator"), info.of("hblkhd"), "{what}");
    let system: u64 = arenas.iter().map(|arena| number(arena, "/system_bytes")).sum();
    assert_eq!(system, info.of("arena"), "{what}");
    let kept = answer["sizes"].as_array().unwrap().iter().find(|row| row["usable"] == 5000).unwrap();
    assert!((700..720).contains(&number(kept, "/live")), "{what}: {kept}");
    assert_eq!(number(answer, "/resident"), number(answer, "/resident_of_kernel"), "{what}");
}

/// What `blocks_of` says of its blocks.
struct Blocks {
    /// What it has asked for, and what it may use, by address.
    live: BTreeMap<u64, (u64, u64)>,
    /// Those that it has freed last.
    freed: Vec<u64>,
    /// What its allocator counts, those that threads keep among it; None: it does not count.
    allocated: Option<u64>,
}

/// Starts `blocks_of`, and returns its blocks.
fn start_blocks(program: &Program) -> (Running, i32, Blocks) {
    let mut running = program.start();
    running.send("begin");
    let mut blocks = Blocks { live: BTreeMap::new(), freed: Vec::new(), allocated: None };
    let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    loop {
        let line = running.line();
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["block", at, size, usable] => {
                blocks.live.insert(address(at), (size.parse().unwrap(), usable.parse().unwrap()));
            }
            ["freed", at] => blocks.freed.push(address(at)),
            ["allocated", bytes] => blocks.allocated = Some(bytes.parse().unwrap()),
            ["ready", pid] => return (running, pid.parse().unwrap(), blocks),
            _ => panic!("{line}"),
        }
    }
}

/// All blocks of the program are found, each at its address with the room that it has, and no others but few of the
/// library's own. `further_on`: aligned blocks may begin in the middle of what is told.
fn assert_blocks(program: &Program, allocator: &str, further_on: bool) {
    let what = program.exe().display();
    let (running, pid, blocks) = start_blocks(program);
    let answer = heap(pid, &[]);
    assert_eq!(answer["allocator"], allocator, "{what}");
    assert_eq!(answer["findings"].as_array().unwrap().len(), 0, "{what}: {answer}");
    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"), "{what}");
    let (found, _) = heap_of(pid);
    let mut moved = 0;
    for (at, (size, usable)) in &blocks.live {
        let (begin, room) = found.range(..=at).next_back().unwrap_or_else(|| panic!("{what}: no block at {at:#x}"));
        assert!(usable >= size, "{what}: {at:#x}");
        assert_eq!(begin + room, at + usable, "{what}: {at:#x} of {size}, in one at {begin:#x}");
        moved += usize::from(begin != at);
    }
    assert!(moved == 0 || further_on && moved < blocks.live.len() / 10, "{what}: {moved} of {}", blocks.live.len());
    for at in &blocks.freed {
        let before = found.range(..=at).next_back();
        assert!(before.is_none_or(|(begin, room)| begin + room <= *at), "{what}: {at:#x} is free, and in {before:x?}");
    }
    if let Some(allocated) = blocks.allocated {
        let bytes = |state: &str| number(&answer, &format!("/chunks/{state}/bytes"));
        assert_eq!(["live", "mapped", "tcache", "own"].map(bytes).iter().sum::<u64>(), allocated, "{what}: {answer}");
        assert!(number(&answer, "/chunks/tcache/count") > 300, "{what}: {answer}");
    }
    let threads = number(&answer, "/threads");
    let more = found.len() - blocks.live.len();
    assert!(more as u64 <= 8 + 2 * threads, "{what}: {} blocks, found {}", blocks.live.len(), found.len());
    assert!(blocks.live.len() > 1000 && blocks.freed.len() > 300, "{what}: {}", blocks.live.len());
    end(running, pid);
}

/// What a process shares with the one that it was forked from stays shared when it is read itself or as a copy: it
/// needs no more memory afterwards.
#[test]
fn what_is_read_stays_shared() {
    const SCRIPT: &str = "import os, sys
held = [os.urandom(5000) for _ in range(8000)]
child = os.fork()
if child:
    print(child, flush=True)
    os.waitpid(child, 0)
else:
    sys.stdin.readline()";
    for options in [&[][..], &["--no-stop"]] {
        let mut parent = Program::new("/usr/bin/python3").args(["-c", SCRIPT]).start();
        let child: i32 = parent.line().parse().unwrap();
        assert!(rollup(child, "Shared_Dirty") > 40_000_000, "it shares nothing");
        let before = rollup(child, "Shared_Dirty");
        let answer = heap(child, options);
        assert_eq!(answer["copied"], options.is_empty(), "{answer}");
        assert!(number(&answer, "/uses/live/resident") > 40_000_000, "{answer}");
        let after = rollup(child, "Shared_Dirty");
        assert!(after + (4 << 20) > before, "{after} bytes are still shared, of {before}");
        parent.feed(b"\n");
        parent.wait().success();
    }
}

/// After random frees by two threads.
#[test]
fn each_block_of_glibc_is_found_at_its_address() {
    // Static programs lie low, each run elsewhere: links that are mixed with their own place then look much like those
    // that are not.
    let mut programs = vec![fixtures::program_with("blocks_of", &["-static"]); 5];
    programs.push(fixtures::program("blocks_of"));
    programs.extend(fixtures::other_glibcs().iter().map(|root| fixtures::program_of_glibc("blocks_of", root)));
    for program in programs {
        assert_blocks(&Program::new(&program), "glibc", false);
        assert_blocks(&Program::new(&program).env("GLIBC_TUNABLES", LARGE_CACHES), "glibc", false);
    }
}

/// musl's malloc tells the very size that was asked for.
#[test]
fn each_block_of_musl_is_found_at_its_address() {
    for flags in [&[][..], &["-static"]] {
        assert_blocks(&Program::new(fixtures::musl_program("blocks_of", flags)), "musl", false);
    }
}

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// One thread and sixteen, with the library before glibc's malloc, and linked.
#[test]
fn each_block_of_mimalloc_is_found() {
    let library = installed(&Path::new(LIBRARIES).join("libmimalloc.so.2"));
    for threads in ["1", "2", "16"] {
        let program = Program::fixture("blocks_of").args([threads]).env("LD_PRELOAD", &library);
        assert_blocks(&program, "mimalloc", true);
    }
    let linked = fixtures::program_linked("blocks_of", &[&library]);
    assert_blocks(&Program::new(linked), "mimalloc", true);
}

/// Under load, in the midst of its calls: no more is amiss than one thing for each thread.
#[test]
fn a_busy_process_with_mimalloc_is_looked_at_and_lives() {
    let library = installed(&Path::new(LIBRARIES).join("libmimalloc.so.2"));
    let program = Program::fixture("victim").args(["4"]).env("LD_PRELOAD", library);
    let (victim, pid) = super::attach::start_victim(&program);
    for options in [&[][..], &["--no-stop"]] {
        for _ in 0..super::rounds(3) {
            let answer = heap(pid, options);
            assert_eq!(answer["allocator"], "mimalloc", "{answer}");
            assert!(number(&answer, "/uses/live/resident") > 0, "{answer}");
            if options.is_empty() {
                assert!(answer["findings"].as_array().unwrap().len() <= 4, "{answer}");
                assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
            }
        }
    }
    let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
    assert!(text.contains("A thread's heap") && !text.contains("malloc_trim"), "{text}");
    super::attach::assert_victim_well(victim, pid);
}

/// Under load: what a thread is just being given may look odd, one at a time, and all else is told.
#[test]
fn a_busy_process_with_musl_is_looked_at_and_lives() {
    let program = Program::new(fixtures::musl_program("victim", &[])).args(["4"]);
    let (victim, pid) = super::attach::start_victim(&program);
    for _ in 0..super::rounds(5) {
        let answer = heap(pid, &[]);
        assert_eq!(answer["allocator"], "musl", "{answer}");
        assert!(number(&answer, "/uses/live/resident") > 0, "{answer}");
        assert!(answer["findings"].as_array().unwrap().len() <= 4, "{answer}");
        assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
    }
    super::attach::assert_victim_well(victim, pid);
}

/// One byte behind a block of musl's is found, with the block; the others are told all the same.
#[test]
fn an_overrun_is_found_in_musl_too() {
    let program = Program::new(fixtures::musl_program("blocks_of", &[]));
    let (mut running, pid, blocks) = start_blocks(&program);
    running.send("overrun");
    let block = running.value("overrun");
    let answer = heap(pid, &[]);
    let [finding] = &answer["findings"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!(finding["block_before"], block.as_str(), "{answer}");
    let at = u64::from_str_radix(block.trim_start_matches("0x"), 16).unwrap();
    assert_eq!(finding["address"], format!("{:#x}", at + blocks.live[&at].0), "{answer}");
    assert!(answer["trim"].is_null(), "{answer}");
    assert_eq!(
        number(&answer, "/chunks/live/count") + number(&answer, "/chunks/mapped/count"),
        blocks.live.len() as u64
    );
    let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
    assert!(text.contains("written beyond its end") && !text.contains("malloc_trim"), "{text}");
    end(running, pid);
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
        let program = Program::new(fixtures::program_with("heap_of", flags));
        let (running, pid, _) = start(&program);
        let before = rollup(pid, "Anonymous");
        let answer = heap(pid, &["--trim"]);
        let told = number(&answer, "/trim/inside") + number(&answer, "/trim/end");
        assert!(told > 10 << 20, "{flags:?}: {answer}");
        assert_eq!(number(&answer, "/trimmed"), told, "{flags:?}: {answer}");
        // it stands for the call, not for the walk
        assert_eq!(answer["copied"], true, "{flags:?}: {answer}");
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
    let (mut tried, mut called) = (0, 0);
    while tried < super::rounds(8) || called == 0 {
        // whether the locks of all arenas are free at a moment is chance: not once in so many is none
        assert!(tried < 1000, "never called");
        tried += 1;
        let output = ask(pid, &["--trim", "--json"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || told.contains("try again"), "{told}");
        called += u32::from(output.status.success());
    }
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

/// More calls than heaptrace makes to look at a heap.
const MAX_CALLS: usize = 200_000;

/// heaptrace waits for two minutes for a function that it has a thread call.
const LONGEST_STAND: Duration = Duration::from_secs(60);

/// What `HEAPTRACE_INJECT` says before and after the number of a call: heaptrace is killed there, or the call fails.
const AT_ONCE: [(&str, &str); 2] = [("abort", ""), ("error", "")];

/// It fails so often that it does not help to repeat it.
const IN_VAIN: [(&str, &str); 1] = [("error", ":thrice")];

/// Runs heaptrace until it is let to its end, with each of these failures at each so many-th of its calls: at one of
/// four such calls, at all with `HEAPTRACE_TEST_FACTOR=4`. `check` looks at the process after each.
fn break_off(failures: &[(&str, &str)], options: &[&str], pid: i32, step: usize, mut check: impl FnMut(&str)) {
    for (failure, further) in failures {
        let mut is_over = false;
        for call in (1..MAX_CALLS).step_by((4 * step).div_ceil(super::rounds(1) as usize)) {
            let order = format!("{failure}:{call}{further}");
            let began = Instant::now();
            let output = Command::new(HEAPTRACE)
                .args([options, &["--json", &pid.to_string()]].concat())
                .env("HEAPTRACE_INJECT", &order)
                .output()
                .unwrap();
            assert!(began.elapsed() < LONGEST_STAND, "{order}: it waited for the process");
            procfs::assert_left_as_it_was(pid);
            check(&order);
            // an error may be of no weight
            is_over = output.status.success() && (*failure == "abort" || call > 300);
            if is_over {
                break;
            }
        }
        assert!(is_over, "{options:?} makes more than {MAX_CALLS} calls, or fails");
    }
}

/// At whatever moment heaptrace is killed, or fails: the thread goes on that has called malloc_trim for it.
#[test]
fn trim_that_is_broken_off_does_no_harm() {
    let program = Program::fixture("copied");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    break_off(&AT_ONCE, &["heap", "--trim"], pid, 19, |order| {
        running.send("well");
        assert_eq!(running.line(), "well", "{order}");
    });
    running.feed(b"");
    running.wait().success();
    // while it is at work
    let program = Program::fixture("heap_of");
    let (mut running, pid, _) = start(&program);
    break_off(&AT_ONCE, &["heap", "--trim"], pid, 1499, |order| {
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

fn assert_no_copy_lives(pid: i32, order: &str) {
    let lives = |child: &i32| procfs::state(*child).is_some_and(|state| state != 'Z');
    procfs::wait_until(&format!("{order}: no copy lives"), || !children(pid).iter().any(lives));
}

/// A program of which `command` makes a copy goes on, and no copy lives, wherever the command fails so.
fn goes_on_though_broken_off(failures: &[(&str, &str)], command: &str, step: usize) {
    let mut running = Program::fixture("copied").start();
    let pid: i32 = running.value("ready").parse().unwrap();
    break_off(failures, &[command], pid, step, |order| {
        assert_no_copy_lives(pid, order);
        running.send("well");
        assert_eq!(running.line(), "well", "{order}");
    });
    running.feed(b"");
    running.wait().success();
}

/// A thread that is left within a call made for heaptrace, as its requests failed however often it made them, is asked
/// nothing more while the process stands: `leaks` would have it make a copy when it has told of its signal stack.
#[test]
fn a_thread_within_a_call_is_not_asked_for_another() {
    goes_on_though_broken_off(&IN_VAIN, "leaks", 5);
}

/// At whatever moment heaptrace is killed, or fails: no copy lives on, and the program goes on.
#[test]
fn a_copy_that_is_broken_off_does_no_harm() {
    goes_on_though_broken_off(&AT_ONCE, "heap", 11);
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

/// A chunk that would reach beyond its arena's top is none, with its address and the block before it.
#[test]
fn a_chunk_that_reaches_beyond_the_top_is_found() {
    let mut running = Program::fixture("broken_heap").args(["beyond"]).start();
    let told = running.value("beyond");
    let (chunk, before) = told.split_once(' ').unwrap();
    let pid: i32 = running.value("ready").parse().unwrap();
    let answer = heap(pid, &[]);
    let findings = answer["findings"].as_array().unwrap();
    let is_told = |finding: &&Value| finding["address"] == chunk && finding["block_before"] == before;
    assert!(findings.iter().any(|finding| is_told(&finding)), "{told}: {findings:?}");
    assert_eq!(findings.len(), 1, "{findings:?}");
    running.feed(b"");
    running.wait().success();
}

/// A process that stands still for a moment goes on as it was: sleeps end when they would have, and a stopped one stays
/// stopped.
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
        for _ in 0..super::rounds(3) {
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

/// A thread that has just made a system call when it is stopped, and has its process copied then, does not make it once
/// more.
#[test]
fn no_system_call_is_made_twice() {
    let dir = crate::support::tempdir::TempDir::new();
    let file = dir.path().join("numbers");
    let mut running = Program::fixture("writes").args([file.to_str().unwrap()]).start();
    let pid: i32 = running.value("ready").parse().unwrap();
    for _ in 0..super::rounds(12) {
        assert_eq!(heap(pid, &[])["copied"], true);
    }
    running.assert_alive();
    running.signal(nix::sys::signal::Signal::SIGKILL);
    running.wait();
    let bytes = std::fs::read(&file).unwrap();
    let numbers = bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
    let wrong = numbers.enumerate().find(|(place, number)| *place as u64 != *number);
    assert_eq!(wrong, None, "of {} numbers", bytes.len() / 8);
}

/// What can't be looked at is refused with its cause; another allocator is told as one.
#[test]
fn what_cant_be_walked_is_told() {
    let gone = ask(i32::MAX, &[]);
    assert_eq!(gone.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no such process"), "{gone:?}");
    let library = installed(&Path::new(LIBRARIES).join("libtcmalloc.so.4"));
    let program = Program::fixture("victim").args(["1"]).env("LD_PRELOAD", &library);
    let (victim, pid) = super::attach::start_victim(&program);
    let answer = heap(pid, &[]);
    assert!(answer["allocator"].is_null(), "{answer}");
    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
    let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
    assert!(text.contains("can't be walked"), "{text}");
    super::attach::assert_victim_well(victim, pid);
}
