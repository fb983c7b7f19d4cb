//! Series of profiles: what the parts tell adds up to what happened, whatever ends the program.

use crate::suite::attach::{assert_victim_well, start_victim};
use crate::support::checks::pprof;
use crate::support::procfs;
use crate::support::program::{Program, Traced};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The parts that there are, in order.
fn parts(program: &Program) -> Vec<PathBuf> {
    let folder = program.outside("part").parent().unwrap().to_owned();
    let mut parts: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("part."));
    parts.sort();
    parts
}

/// Waits until there is something to count so often: how fast parts follow each other is a matter of the machine.
fn wait_for(least: usize, mut count: impl FnMut() -> usize) {
    let began = Instant::now();
    while count() < least {
        assert!(began.elapsed() < Duration::from_secs(60), "there are only {}", count());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The option that makes parts.
fn part_name(program: &Program) -> String {
    program.outside("part.%i.pb.gz").display().to_string()
}

/// A column by function, over all profiles, as pprof sums them up.
fn column(column: &str, profiles: &[&Path]) -> BTreeMap<String, u64> {
    let index = format!("-sample_index={column}");
    let top = pprof(&["-top", "-nodefraction=0", "-nodecount=100000", "-unit=B", &index], profiles);
    let mut functions = BTreeMap::new();
    for line in top.lines().skip_while(|line| !line.contains("flat%")).skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = words[0].trim_end_matches('B').parse::<u64>().unwrap();
        if value > 0 {
            functions.insert(words[5..].join(" "), value);
        }
    }
    functions
}

/// The comments of a profile, by key.
fn comments(profile: &Path) -> BTreeMap<String, String> {
    let text = pprof(&["-comments"], &[profile]);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The parts together are the whole, and their comments tell them apart.
fn assert_parts_add_up(parts: &[PathBuf], traced: &Traced) {
    let all: Vec<&Path> = parts.iter().map(PathBuf::as_path).collect();
    let lifetime: &Path = &traced.profile;
    for name in ["allocated_objects", "allocated_space", "deallocated_objects", "deallocated_space", "alloc_space"] {
        assert_eq!(column(name, &all), column(name, &[lifetime]), "{name}");
    }
    let last = *all.last().unwrap();
    for name in ["residual_allocated_objects", "residual_allocated_space", "inuse_space"] {
        assert_eq!(column(name, &[last]), column(name, &[lifetime]), "{name}");
    }
    let total = |part: &&&Path| column("peak_space", &[part]).values().sum::<u64>();
    let highest = all.iter().max_by_key(total).unwrap();
    assert_eq!(column("peak_space", &[highest]), column("peak_space", &[lifetime]));
    assert_eq!(column("peak_objects", &[highest]), column("peak_objects", &[lifetime]));

    let told: Vec<_> = all.iter().map(|part| comments(part)).collect();
    let mut end = "0.000s".to_owned();
    for (place, told) in told.iter().enumerate() {
        assert_eq!(told["session"], comments(all[0])["session"]);
        assert_eq!(told["part"], (place + 1).to_string());
        assert_eq!(told["last"], (place + 1 == all.len()).to_string());
        let (from, until) = told["period"].split_once('-').unwrap();
        assert_eq!(from, end, "periods follow each other");
        end = until.to_owned();
    }
    assert_eq!(end, format!("{:.3}s", traced.report.number("/duration_ns") as f64 / 1e9));

    let merged = traced.profile.with_file_name("merged.pb.gz");
    let words = ["merge", "-o"].map(PathBuf::from).into_iter().chain([merged.clone()]).chain(parts.iter().cloned());
    Program::new("/bin/true").start_heaptrace(words).wait().success();
    let totals = |profile: &Path| {
        let text = pprof(&["-comments"], &[profile]);
        text.lines().find(|line| line.starts_with("totals: ")).unwrap().to_owned()
    };
    assert_eq!(totals(&merged), totals(lifetime), "reallocations, failures, the moment of the peak, temporary blocks");
    assert_eq!(column("peak_space", &[&merged]), column("peak_space", &[lifetime]));
}

/// A run, by time: threads allocate without end, and other threads free.
#[test]
fn parts_of_a_run_add_up() {
    let program = Program::fixture("victim").args(["3"]);
    let name = part_name(&program);
    let mut running = program.start_traced(&["--profile-every", "300ms", "-o", &name]);
    running.value("ready");
    wait_for(3, || parts(&program).len());
    running.send("still alive?");
    assert_eq!(running.line(), "alive");
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    let traced = program.collect(running.wait().success());
    let parts = parts(&program);
    assert_parts_add_up(&parts, &traced);
    // What pprof makes of them tells that live blocks count more than once.
    let sum = program.outside("sum.pb.gz");
    pprof(&["-proto", &format!("-output={}", sum.display())], &[&parts[0], &parts[1]]);
    let shown = Program::new("/bin/true").start_heaptrace([Path::new("report"), &sum]).wait().success().text();
    assert!(shown.contains("pprof has added up 2 parts of one session"), "{shown}");
    assert!(pprof(&["-top"], &[&parts[0]]).contains("Type: inuse_space"));
    assert!(pprof(&["-top"], &[parts.last().unwrap()]).contains("Type: inuse_space"), "a part, too");
}

/// An attach, by allocations; the process lives on.
#[test]
fn parts_of_an_attach_add_up() {
    let victim = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&victim);
    let tracer = Program::new("/bin/true");
    let name = part_name(&tracer);
    let options = ["--profile-every-allocs", "500", "--min-interval", "200ms", "-o", &name];
    let began = Instant::now();
    let attached = tracer.start_attached(&options, pid);
    wait_for(3, || parts(&tracer).len());
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    let parts = parts(&tracer);
    assert!(parts.len() as u128 <= began.elapsed().as_millis() / 200 + 1, "at most five in a second: {parts:?}");
    assert_parts_add_up(&parts, &traced);
    for part in parts.iter().rev().skip(1) {
        assert!(column("allocated_objects", &[part]).values().sum::<u64>() >= 500, "{}", part.display());
    }
    assert_victim_well(victim, pid);
}

/// A program that is killed leaves its last part, and with it the whole.
#[test]
fn a_killed_program_leaves_its_last_part() {
    for signal in [Signal::SIGKILL, Signal::SIGSEGV] {
        let program = Program::fixture("victim").args(["2"]);
        let name = part_name(&program);
        let mut running = program.start_traced(&["--profile-every", "250ms", "-o", &name]);
        let pid = running.value("ready").parse().unwrap();
        wait_for(2, || parts(&program).len());
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
        let ended = running.wait();
        assert_eq!(ended.code(), 128 + signal as i32, "{}", ended.stderr);
        let traced = program.collect(ended);
        let parts = parts(&program);
        assert_parts_add_up(&parts, &traced);
    }
}

/// Old parts go, the last one stays; each was passed on with its time.
#[test]
fn only_the_newest_parts_are_kept() {
    let program = Program::fixture("victim").args(["1"]);
    let name = part_name(&program);
    let log = program.outside("log");
    let command = format!("echo \"$HEAPTRACE_FILE $HEAPTRACE_FROM $HEAPTRACE_UNTIL\" >> {}", log.display());
    let options = ["--profile-every", "100ms", "--keep", "2", "-o", &name, "--on-profile", &command];
    let mut running = program.start_traced(&options);
    running.value("ready");
    wait_for(5, || std::fs::read_to_string(&log).unwrap_or_default().lines().count());
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    let ended = running.wait().success();
    let parts = parts(&program);
    let numbers: Vec<usize> =
        parts.iter().map(|part| part.file_name().unwrap().to_str().unwrap()[5..11].parse().unwrap()).collect();
    let last = *numbers.last().unwrap();
    assert!(last >= 5 && numbers == [last - 2, last - 1, last], "{numbers:?}\n{}", ended.stderr);
    let log = std::fs::read_to_string(&log).unwrap();
    let passed: Vec<Vec<&str>> = log.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(passed.len(), last + 2, "each part, the report and the profile of all: {log}");
    for words in &passed {
        let times: Vec<u64> = words[1..].iter().map(|time| time.parse().unwrap()).collect();
        assert!(times[0] <= times[1] && times[1] - times[0] <= 60 && times[0] > 1_600_000_000, "{words:?}");
    }
}

/// What can't be is refused before anything starts.
#[test]
fn refusals_name_the_way_out() {
    let program = Program::new("/bin/true");
    for (options, expected) in [
        (&["run", "--profile-every", "1s", "-o", "a.pb.gz", "--", "/bin/true"][..], "put %i in it"),
        (&["run", "--min-interval", "3s", "--", "/bin/true"], "--profile-every TIME"),
        (&["run", "-f", "--profile-every", "1s", "--", "/bin/true"], "cannot be used with"),
        (&["attach", "--by-name", "x", "--again", "--profile-every", "1s"], "can't be used with --again"),
        (&["check", "--profile-every", "1s", "--", "/bin/true"], "is for `run` and `attach`"),
    ] {
        let ended = program.start_heaptrace(options).wait();
        assert_eq!(ended.code(), 125, "{options:?}");
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
}
