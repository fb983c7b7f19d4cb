//! Snapshots that heaptrace takes by itself: by signal, at times, on conditions; and which of them are kept.

use super::death::ControlGroup;
use super::snapshot::account;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Ended;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

/// The fixture that accounts for its calls, and the file in which it does.
fn fixture(arguments: &[&str]) -> (Program, PathBuf) {
    let program = Program::fixture("shared").args(arguments);
    let shared = program.folder().join("shared");
    (program.env("SHARED", &shared), shared)
}

/// The snapshots that lie in a folder, by their numbers.
fn snapshots(folder: &Path) -> Vec<(u32, PathBuf)> {
    let numbered = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name()?.to_str()?.strip_prefix("s.")?.strip_suffix(".json")?.to_owned();
        Some((name.parse().unwrap(), path))
    };
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(folder).unwrap().filter_map(numbered).collect();
    found.sort();
    found
}

fn wait_for(folder: &Path, count: usize) -> Vec<(u32, PathBuf)> {
    let began = Instant::now();
    loop {
        let found = snapshots(folder);
        if found.len() >= count {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{count} snapshots in {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn live_of(path: &Path, ended: &Ended) -> u64 {
    let report = Report::read(path, ended);
    assert_eq!(report.text("/mode"), "snapshot");
    report.site_sum(&["take"], "/live/bytes")
}

fn output(program: &Program) -> String {
    format!("{}/s.%i.json", program.folder().display())
}

/// A program grows by known steps. Each condition fires once, when it begins to hold: not before, by the fixture's own
/// account, and not much later.
#[test]
fn conditions_fire_once_when_they_begin_to_hold() {
    let (program, shared) = fixture(&["grow", "1000000", "60", "50000"]);
    let out = output(&program);
    let options = ["--snapshot-when", "live>20000000", "--snapshot-when", "rss > 40M", "--snapshot-output", &out];
    let mut running = program.start_traced(&options);
    running.value("ready");
    assert_eq!(running.line(), "grown");
    let written = wait_for(program.folder(), 2);
    std::thread::sleep(Duration::from_millis(500));
    running.send("enough");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    let live: Vec<u64> = snapshots(program.folder()).iter().map(|(_, path)| live_of(path, &traced.ended)).collect();
    assert_eq!((written.len(), live.len()), (2, 2), "{live:?}");
    assert!(live[0] > 20_000_000 && live[0] < 35_000_000, "{live:?}");
    // the program itself has some megabytes resident
    assert!(live[1] > 30_000_000 && live[1] < 55_000_000, "{live:?}");
    assert_eq!(traced.report.site_sum(&["take"], "/live/bytes"), account(&shared).bytes[0]);
    assert!(traced.ended.stderr.contains("2 snapshots were written"), "{}", traced.ended.stderr);
}

/// How much is allocated in a second, whatever is given back.
#[test]
fn a_rate_of_allocation_is_a_condition() {
    let (program, _) = fixture(&["load", "2"]);
    let out = output(&program);
    let mut running = program.start_traced(&["--snapshot-when", "rate>10k/s", "--snapshot-output", &out]);
    running.value("ready");
    wait_for(program.folder(), 1);
    running.send("enough");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    assert!(traced.report.total("bytes_allocated") > 10_000);
}

/// The newest two and the largest stay. The program's heap only grows, so the largest is the newest.
#[test]
fn regular_snapshots_are_kept_as_many_as_wanted() {
    let (program, shared) = fixture(&["grow", "1000", "200", "10000"]);
    let out = output(&program);
    let options = ["--snapshot-every", "200ms", "--keep", "2", "--snapshot-output", &out];
    let mut running = program.start_traced(&options);
    running.value("ready");
    assert_eq!(running.line(), "grown");
    running.send("enough");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    let left = snapshots(program.folder());
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left[1].0 >= 4 && left[0].0 + 1 == left[1].0, "{left:?}");
    let live: Vec<u64> = left.iter().map(|(_, path)| live_of(path, &traced.ended)).collect();
    assert!(live[0] < live[1] && live[1] <= account(&shared).bytes[0] && live[0] > 0, "{live:?}");
    assert!(traced.ended.stderr.contains("deleted since, by --keep"), "{}", traced.ended.stderr);
}

/// One signal writes, another one sets marks; the program gets neither.
#[test]
fn signals_to_heaptrace_write_snapshots_and_set_marks() {
    let (program, _) = fixture(&["marks"]);
    let out = output(&program);
    let options = ["--snapshot-on-signal", "USR1", "--mark-on-signal", "USR2", "--snapshot-output", &out];
    let mut running = program.start_traced(&options);
    let pid: i32 = running.value("ready").parse().unwrap();
    let step = |running: &mut crate::support::running::Running, line: &str| {
        running.send(line);
        assert_eq!(running.line(), "ok");
    };
    step(&mut running, "take 3");
    running.signal(Signal::SIGUSR1);
    let first = wait_for(program.folder(), 1);
    running.signal(Signal::SIGUSR2);
    let since = |mark: &str| {
        let path = program.folder().join("since.json");
        let asked = Command::new(HEAPTRACE)
            .args(["snapshot", &pid.to_string(), "--since", mark, "-o"])
            .arg(&path)
            .output()
            .unwrap();
        asked.status.success().then_some(path)
    };
    let began = Instant::now();
    while since("signal-1").is_none() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    step(&mut running, "take 4");
    running.signal(Signal::SIGUSR1);
    let second = wait_for(program.folder(), 2);
    let marked = since("signal-1").unwrap();
    let traced = program.collect(running.wait());
    let live: Vec<u64> = [&first[0].1, &second[1].1, &marked].map(|path| live_of(path, &traced.ended)).into();
    assert_eq!(live, [300, 700, 400]);
}

/// What can't work is refused before the program starts.
#[test]
fn what_can_not_be_watched_is_refused() {
    for (options, reason) in [
        (vec!["--snapshot-when", "rss"], "rss>90%"),
        (vec!["--snapshot-every", "1s", "--snapshot-output", "same.json"], "put %i in the name"),
        (vec!["-f", "--snapshot-every", "1s", "--snapshot-output", "s.%i.json"], "put %i and %p in the name"),
        (vec!["--snapshot-on-signal", "USR1", "--mark-on-signal", "USR1"], "name the same signal"),
        (vec!["--snapshot-every", "1s", "--snapshot-output", "/nowhere/s.%i.svg"], "can't create a file"),
    ] {
        let run =
            Command::new(HEAPTRACE).arg("run").args(&options).args(["--", "/bin/echo", "started"]).output().unwrap();
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), run.stdout.len()), (Some(125), 0), "{options:?}: {text}");
        assert!(text.contains(reason), "{options:?}: {text}");
    }
}

/// Snapshots that find no room are told at once and at the end, and cost heaptrace's status unless the program has
/// failed itself; those that fit are there.
#[test]
fn a_snapshot_that_finds_no_room_is_told_and_costs_the_status() {
    for (status, expected) in [(0, 125), (3, 3)] {
        let script = format!("sleep 0.5; sleep 0.5; exit {status}");
        let program = Program::new("/bin/sh").args(["-c", &script]);
        for number in 2..=3 {
            std::os::unix::fs::symlink("/dev/full", program.folder().join(format!("s.{number:06}.json"))).unwrap();
        }
        let out = output(&program);
        let running = program.start_traced(&["--snapshot-every", "100ms", "--keep", "100", "--snapshot-output", &out]);
        let ended = running.wait();
        assert_eq!(ended.code(), expected, "{}", ended.stderr);
        let told = "a snapshot is missing: ";
        assert!(ended.stderr.matches(told).count() >= 2, "at once and at the end: {}", ended.stderr);
        assert!(ended.stderr.contains("s.000002.json: No space left on device"), "{}", ended.stderr);
        assert!(live_of(&program.folder().join("s.000001.json"), &ended) == 0);
        program.collect(ended);
    }
}

/// The share is that of the control group's limit: of the machine's memory the program would never have so much.
#[test]
fn a_share_of_the_memory_is_that_of_the_control_group() {
    let Some(group) = ControlGroup::of_memory(64 << 20) else {
        eprintln!("no control group of memory can be made here: not tested");
        return;
    };
    let (inner, shared) = fixture(&[]);
    let script =
        format!("echo $$ > {} && exec {} grow 1000000 45 20000", group.procs().display(), inner.exe().display());
    let program = Program::new("/bin/sh").args(["-c", &script]).env("SHARED", &shared);
    let out = output(&program);
    let options = ["--snapshot-when", "rss>50%", "--snapshot-when", "live>4M", "--snapshot-output", &out];
    let mut running = program.start_traced(&options);
    running.value("ready");
    assert_eq!(running.line(), "grown");
    running.send("enough");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
    let live: Vec<u64> = snapshots(program.folder()).iter().map(|(_, path)| live_of(path, &traced.ended)).collect();
    assert_eq!(live.len(), 2, "each once: {live:?}");
    assert!((4 << 20..12 << 20).contains(&live[0]) && (24 << 20..42 << 20).contains(&live[1]), "{live:?}");
}

/// The largest stays though it is old, beside the newest two.
#[test]
fn the_largest_snapshot_stays() {
    let script = "import time\nx = bytearray(30 << 20)\ntime.sleep(1.5)\ndel x\ntime.sleep(2.5)";
    let program = Program::new("python3").args(["-c", script]);
    let out = output(&program);
    let options = ["--snapshot-every", "500ms", "--keep", "2", "--snapshot-output", &out, "--no-symbolize"];
    let traced = program.collect(program.start_traced(&options).wait());
    let left = snapshots(program.folder());
    let live = |path: &Path| Report::read(path, &traced.ended).total("live_bytes");
    let live: Vec<u64> = left.iter().map(|(_, path)| live(path)).collect();
    assert_eq!(live.len(), 3, "{left:?}");
    assert!(live[0] > 30 << 20 && live[1] < 20 << 20 && live[2] < 20 << 20, "{live:?}");
    assert!(left[0].0 + 1 < left[1].0 && left[1].0 + 1 == left[2].0, "{left:?}");
}
