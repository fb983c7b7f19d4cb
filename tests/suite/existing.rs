//! `attach --existing`: blocks from before the attach are live, their frees match, and totals are whole.

use crate::support::procfs;
use crate::support::program::Program;
use crate::support::python;
use crate::support::report::Report;
use crate::support::running::Running;
use serde_json::Value;
use std::process::Command;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

/// Blocks and bytes that the process has, as the allocator's structures say.
fn live_in(pid: i32) -> (u64, u64) {
    let output = Command::new(HEAPTRACE).args(["heap", "--json", &pid.to_string()]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |key: &str| answer["reachable"][key].as_u64().unwrap() + answer["lost"][key].as_u64().unwrap();
    (sum("blocks"), sum("bytes"))
}

fn start(threads: &str) -> (Running, i32) {
    let mut running = Program::fixture("before_attach").args([threads]).start();
    let pid = running.value("ready").parse().unwrap();
    (running, pid)
}

/// What of the report's live blocks is from before the attach.
fn from_before(report: &Report) -> (u64, u64) {
    let sum = |pointer: &str| report.site_sum(&["[before attach]"], pointer);
    (sum("/live/objects"), sum("/live/bytes"))
}

#[test]
fn blocks_from_before_are_live_until_they_are_freed() {
    for engine in ["trap", "jump"] {
        let (mut running, pid) = start("0");
        let (blocks, bytes) = live_in(pid);
        let tracer = Program::new("/bin/true").stays_on_trap("this test names the engine");
        let trace = tracer.folder().join("t.fxt");
        let attached =
            tracer.start_attached(&["--existing", "--engine", engine, "--trace", trace.to_str().unwrap()], pid);
        procfs::wait_until_answered(pid);
        running.send("go");
        let gone = running.value("gone");
        let (gone, gone_bytes) = gone.split_once(' ').unwrap();
        let (gone, gone_bytes): (u64, u64) = (gone.parse().unwrap(), gone_bytes.parse().unwrap());
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        let report = &traced.report;
        assert_eq!(from_before(report), (blocks - gone, bytes - gone_bytes), "{engine}");
        assert_eq!(report.total("preexisting_frees"), gone, "{engine}");
        // the moved ones and the new ones
        let moved = 100;
        assert_eq!(report.total("allocations"), moved + 200, "{engine}");
        assert_eq!(report.total("bytes_allocated"), moved * 40_000 + 200 * 77, "{engine}");
        assert_eq!(report.total("live_blocks"), blocks - gone + moved + 200, "{engine}");
        assert_eq!(report.anomaly("lost"), 0, "{engine}");
        assert_eq!(report.anomaly("unknown_frees"), 0, "{engine}");
        let text = traced.ended.stderr.as_str();
        assert!(
            text.contains("[before attach]") && text.contains("blocks from before the attach are listed by size"),
            "{text}"
        );
        // the same out of the trace
        let again = tracer.folder().join("again.json");
        let output = Command::new(HEAPTRACE)
            .args(["convert", trace.to_str().unwrap(), "-q", "-o"])
            .arg(&again)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let replayed = Report::with_stacks(serde_json::from_slice(&std::fs::read(&again).unwrap()).unwrap());
        assert_eq!(from_before(&replayed), (blocks - gone, bytes - gone_bytes), "{engine}");
        assert_eq!(replayed.0["totals"], report.0["totals"], "{engine}");
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}

/// The same of mimalloc 3: what was there is known, and what of it is freed.
#[test]
fn blocks_of_mimalloc_3_from_before_are_live() {
    for library in python::MIMALLOCS.map(python::mimalloc) {
        let program = Program::fixture("before_attach").env("LD_PRELOAD", &library);
        let mut running = program.start();
        let pid = running.value("ready").parse().unwrap();
        let (blocks, bytes) = live_in(pid);
        assert!((1000..1020).contains(&blocks), "{blocks}");
        let tracer = Program::new("/bin/true").stays_on_trap("this test is of the walk");
        let attached = tracer.start_attached(&["--existing", "--engine", "trap"], pid);
        procfs::wait_until_answered(pid);
        running.send("go");
        let gone = running.value("gone");
        let (gone, gone_bytes) = gone.split_once(' ').unwrap();
        let (gone, gone_bytes): (u64, u64) = (gone.parse().unwrap(), gone_bytes.parse().unwrap());
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        assert_eq!(from_before(&traced.report), (blocks - gone, bytes - gone_bytes));
        assert_eq!(traced.report.total("preexisting_frees"), gone);
        assert!(traced.ended.stderr.contains("an aligned block begins"), "{}", traced.ended.stderr);
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}

/// Threads that are inside of the allocator at that moment leave it first: no block is told that is none, and none is
/// missing.
#[test]
fn busy_threads_leave_the_allocator_first() {
    for round in 0..crate::suite::rounds(5) {
        let (mut running, pid) = start("3");
        let tracer = Program::new("/bin/true").stays_on_trap("they come and go too fast");
        let attached = tracer.start_attached(&["--existing"], pid);
        procfs::wait_until_answered(pid);
        running.send("go");
        let gone = running.value("gone");
        let gone: u64 = gone.split_once(' ').unwrap().0.parse().unwrap();
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        let text = traced.ended.stderr.as_str();
        assert!(!text.contains("--existing:"), "{round}: {text}");
        let frees = traced.report.total("preexisting_frees");
        // each thread may have had one block in its hands
        assert!((gone..=gone + 3).contains(&frees), "{round}: {frees} of {gone}");
        assert_eq!(traced.report.anomaly("lost"), 0, "{round}");
        let (blocks, bytes) = from_before(&traced.report);
        // what the program still has of its own, and what the C library keeps
        let own = 1000 - gone;
        assert!((own..own + 20).contains(&blocks), "{round}: {blocks} blocks, {bytes} bytes");
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}

/// Threads that wait for work are not inside of the allocator, though they stand in the same library.
#[test]
fn waiting_threads_are_not_inside_of_the_allocator() {
    let mut running = Program::fixture("before_attach").args(["0", "5"]).start();
    let pid = running.value("ready").parse().unwrap();
    let (blocks, bytes) = live_in(pid);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&["--existing"], pid);
    procfs::wait_until_answered(pid);
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    assert!(!traced.ended.stderr.contains("--existing:"), "{}", traced.ended.stderr);
    assert_eq!(from_before(&traced.report), (blocks, bytes));
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
}

/// So many small blocks that walking over them takes long enough to be caught at it.
const MANY: u64 = 1_500_000;

/// So often a test tries to be faster than the walk.
const TRIES: u32 = 5;

/// The fixture with so many small blocks, and a thread that watches the clock.
fn start_large(blocks: u64) -> (Running, i32) {
    let mut running = Program::fixture("before_attach").args(["0", "0", &blocks.to_string()]).start();
    let pid = running.value("ready").parse().unwrap();
    (running, pid)
}

/// The blocks of the fixture itself, as it says; the C library has some besides.
fn assert_about(blocks: u64, own: u64, what: &str) {
    assert!((own..own + 20).contains(&blocks), "{what}: {blocks} blocks, {own} of them its own");
}

/// Waits until it is copied and runs on. The probes were placed while it stood.
fn wait_until_copied(pid: i32) {
    procfs::wait_until("the process is copied", || !procfs::children(pid).is_empty());
    procfs::wait_until("the process runs on", || procfs::state(pid) != Some('t'));
}

/// The process stands only to be copied, and runs while the copy is walked. What it frees, moves and allocates
/// meanwhile counts as if the blocks had been known from the beginning.
#[test]
fn blocks_that_are_freed_while_the_copy_is_walked_are_known() {
    for engine in ["trap", "jump"] {
        assert!((0..TRIES).any(|_| frees_in_the_midst_of_the_walk(engine)), "{engine}: the walk was always over");
    }
}

/// Whether the walk still went on when all had happened.
fn frees_in_the_midst_of_the_walk(engine: &'static str) -> bool {
    let (mut running, pid) = start_large(MANY);
    let (blocks, bytes) = live_in(pid);
    assert_about(blocks, 1000 + MANY, engine);
    let tracer = Program::new("/bin/true").stays_on_trap("this test names the engine");
    let trace = tracer.folder().join("t.fxt");
    let attached = tracer.start_attached(&["--existing", "--engine", engine, "--trace", trace.to_str().unwrap()], pid);
    wait_until_copied(pid);
    running.send("go");
    let gone = running.value("gone");
    let in_the_midst = !procfs::children(pid).is_empty();
    let (gone, gone_bytes) = gone.split_once(' ').unwrap();
    let (gone, gone_bytes): (u64, u64) = (gone.parse().unwrap(), gone_bytes.parse().unwrap());
    procfs::wait_until_answered(pid);
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    let report = &traced.report;
    assert!(!traced.ended.stderr.contains("--existing:"), "{engine}: {}", traced.ended.stderr);
    assert_eq!(from_before(report), (blocks - gone, bytes - gone_bytes), "{engine}");
    assert_eq!(report.total("preexisting_frees"), gone, "{engine}");
    let moved = 100;
    assert_eq!(report.total("allocations"), moved + 200, "{engine}");
    assert_eq!(report.total("live_blocks"), blocks - gone + moved + 200, "{engine}");
    assert_eq!(report.anomaly("lost"), 0, "{engine}");
    assert_eq!(report.anomaly("unknown_frees"), 0, "{engine}");
    // the same out of the trace: its events are in the order of their times
    let again = tracer.folder().join("again.json");
    let output =
        Command::new(HEAPTRACE).args(["convert", trace.to_str().unwrap(), "-q", "-o"]).arg(&again).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let replayed = Report::with_stacks(serde_json::from_slice(&std::fs::read(&again).unwrap()).unwrap());
    assert_eq!(replayed.0["totals"], report.0["totals"], "{engine}");
    procfs::wait_until("the status of the copy is taken", || procfs::children(pid).is_empty());
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
    in_the_midst
}

/// By the program's own clock no thread stands for longer than a tenth of a second, however many blocks there are.
#[test]
fn the_process_stands_only_to_be_copied() {
    const MAX_US: u64 = 100_000;
    let greatest_gap = || {
        let (mut running, pid) = start_large(MANY);
        let tracer =
            Program::new("/bin/true").stays_on_trap("what the jump engine needs a standstill for is not meant");
        let attached = tracer.start_attached(&["--existing", "--engine", "trap"], pid);
        procfs::wait_until_answered(pid);
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        assert_about(from_before(&traced.report).0, 1000 + MANY, "trap");
        let told_us = traced.report.number("/cost/stopped_max_ns") / 1000;
        running.send("go");
        running.value("gone");
        running.send("gap");
        let gap: u64 = running.value("gap").parse().unwrap();
        running.feed(b"");
        running.wait().success();
        (gap, told_us)
    };
    // others want the processors, too
    let mut gaps = Vec::new();
    let stands_shortly = |(gap, told): &(u64, u64)| *gap < MAX_US && *told < MAX_US;
    while gaps.len() < TRIES as usize && !gaps.iter().any(stands_shortly) {
        gaps.push(greatest_gap());
    }
    assert!(gaps.iter().any(stands_shortly), "us, and as told: {gaps:?}");
}

/// The program ends while its copy is walked, and waits for that.
#[test]
fn a_program_that_ends_in_the_midst_of_the_walk_is_told_whole() {
    for engine in ["trap", "jump"] {
        let (mut running, pid) = start_large(MANY);
        let tracer = Program::new("/bin/true").stays_on_trap("this test names the engine");
        let attached = tracer.start_attached(&["--existing", "--engine", engine], pid);
        wait_until_copied(pid);
        running.feed(b"");
        let traced = tracer.collect(attached.wait().success());
        assert!(!traced.ended.stderr.contains("--existing:"), "{engine}: {}", traced.ended.stderr);
        // at the end of its input it does what it does at `go`, too
        assert_about(from_before(&traced.report).0, 400 + MANY, engine);
        running.wait().success();
    }
}

/// A child that is made while the copy is walked has no probe in its memory, and what the process has is known as ever.
#[test]
fn a_fork_in_the_midst_of_the_walk_harms_nobody() {
    for engine in ["trap", "jump"] {
        let (mut running, pid) = start_large(MANY);
        let (blocks, _) = live_in(pid);
        let tracer = Program::new("/bin/true").stays_on_trap("this test names the engine");
        let attached = tracer.start_attached(&["--existing", "--engine", engine], pid);
        wait_until_copied(pid);
        running.send("go");
        let gone = running.value("gone");
        let gone: u64 = gone.split(' ').next().unwrap().parse().unwrap();
        running.send("fork");
        assert_eq!(running.value("child"), "7", "{engine}");
        procfs::wait_until_answered(pid);
        procfs::order(pid, "detach");
        let report = tracer.collect(attached.wait().success()).report;
        assert_eq!(from_before(&report).0, blocks - gone, "{engine}");
        assert_eq!(report.total("allocations"), 300, "{engine}: the child's are none of its own");
        assert_eq!(report.anomaly("unknown_frees"), 0, "{engine}");
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}

/// An exec while the copy is walked: what the image before had is gone with it, and the new one is seen from its
/// beginning.
#[test]
fn an_exec_in_the_midst_of_the_walk_begins_anew() {
    for engine in ["trap", "jump"] {
        let (mut running, pid) = start_large(MANY);
        let (blocks, _) = live_in(pid);
        let tracer = Program::new("/bin/true").stays_on_trap("this test names the engine");
        let attached = tracer.start_attached(&["--existing", "--engine", engine], pid);
        wait_until_copied(pid);
        running.send("go");
        let gone = running.value("gone");
        let gone: u64 = gone.split(' ').next().unwrap().parse().unwrap();
        running.send("exec");
        assert_eq!(running.value("ready"), pid.to_string(), "{engine}");
        procfs::wait_until_answered(pid);
        procfs::order(pid, "detach");
        let report = tracer.collect(attached.wait().success()).report;
        assert_eq!(report.number("/images/0/gone_with_exec/objects"), blocks - gone + 300, "{engine}");
        assert_about(report.total("live_blocks"), 1000, engine);
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}

/// Somebody kills the copy, as the kernel does where memory is short.
#[test]
fn a_copy_that_is_killed_in_the_midst_of_the_walk_is_told() {
    for engine in ["trap", "jump"] {
        assert!((0..TRIES).any(|_| kills_the_copy(engine)), "{engine}: the walk was always over");
    }
}

/// Whether the walk still went on.
fn kills_the_copy(engine: &'static str) -> bool {
    let (mut running, pid) = start_large(MANY);
    let tracer = Program::new("/bin/true").stays_on_trap("this test names the engine");
    let attached = tracer.start_attached(&["--existing", "--engine", engine], pid);
    wait_until_copied(pid);
    for copy in procfs::children(pid) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(copy), nix::sys::signal::Signal::SIGKILL);
    }
    running.send("go");
    running.value("gone");
    procfs::wait_until_answered(pid);
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    let text = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_told = text.contains("the copy of the process ended early: blocks from before");
    let blocks = from_before(&traced.report).0;
    if is_told {
        assert_eq!(blocks, 0, "{engine}");
    } else {
        assert_about(blocks, 400 + MANY, engine);
    }
    assert_eq!(traced.report.total("allocations"), 100 + 200, "{engine}");
    assert_eq!(traced.report.total("preexisting_frees"), 600, "{engine}");
    assert_eq!(traced.report.anomaly("unknown_frees"), 0, "{engine}");
    procfs::wait_until("the status of the copy is taken", || procfs::children(pid).is_empty());
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
    is_told
}

/// Where there can be no copy, the process stands while its heap is read, and that is told.
#[test]
fn a_process_that_can_t_be_copied_stands_still() {
    for (argument, copied) in [("", true), ("shared", true), ("dontfork", false), ("seccomp", false)] {
        let mut running = Program::fixture("copied").args([argument]).start();
        let pid: i32 = running.value("ready").parse().unwrap();
        let tracer = Program::new("/bin/true").stays_on_trap("this test is of the copy");
        let attached = tracer.start_attached(&["--existing", "--engine", "trap"], pid);
        procfs::wait_until_answered(pid);
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        let text = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        let stood = text.contains("while heaptrace read its heap, as it could not be copied");
        assert_eq!(stood, !copied, "{argument}: {text}");
        assert_about(from_before(&traced.report).0, 2000, argument);
        running.send("well");
        assert_eq!(running.line(), "well", "{argument}");
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}

#[test]
fn what_can_t_be_had_is_said() {
    let output =
        Command::new(HEAPTRACE).args(["attach", "--existing", "--sample-interval", "512KiB", "1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--existing needs every block"));
}

/// What the allocator keeps of freed blocks leads to none: lost are those that only such memory leads to.
#[test]
fn what_only_freed_memory_leads_to_is_lost() {
    for engine in ["trap", "jump"] {
        let mut running = Program::fixture("leaks/left_in_freed").start();
        let pid: i32 = running.value("ready").parse().unwrap();
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&["--existing", "--engine", engine], pid);
        procfs::wait_until_answered(pid);
        running.send("go");
        let lost: u64 = running.value("lost").parse().unwrap();
        let output = Command::new(HEAPTRACE).args(["leaks", "--json", &pid.to_string()]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["leaks"]["definite"]["blocks"], lost, "{engine}: {}", answer["leaks"]);
        procfs::order(pid, "detach");
        attached.wait().success();
        procfs::assert_left_as_it_was(pid);
        running.feed(b"");
        running.wait().success();
    }
}
