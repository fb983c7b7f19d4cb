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
    assert!(shown.contains("pprof added up 2 parts of one session"), "{shown}");
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

/// All allocations and frees that files tell.
fn counts(files: &[PathBuf]) -> [u64; 2] {
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    ["allocated_objects", "deallocated_objects"].map(|name| column(name, &files).values().sum())
}

/// Where children are followed each process has a series of its own, whose last part is there when it ends.
#[test]
fn each_process_has_a_series_of_its_own() {
    let victim = Program::fixture("victim");
    let script = format!("{{ sleep 1; }} | {0} 1 & {0} 1; wait", victim.exe().display());
    let program = Program::new("/bin/sh").args(["-c", &script]);
    let (name, whole) = (program.outside("part.%p.%i.pb.gz"), program.outside("whole.%p.pb.gz"));
    let names = [name, whole.clone()].map(|path| path.display().to_string());
    let options = ["-f", "--profile-every", "400ms", "-o", &names[0], "-o", &names[1]];
    let mut running = program.start_traced(&options);
    let is_last = |part: &PathBuf| comments(part).get("last").is_some_and(|last| last == "true");
    let of_victims = |part: &&PathBuf| comments(part).get("program").is_some_and(|name| name == "victim");
    // The first has ended while the second goes on: the last parts of both are not awaited together.
    wait_for(1, || parts(&program).iter().filter(of_victims).filter(|part| is_last(part)).count());
    wait_for(4, || parts(&program).iter().filter(of_victims).count());
    running.feed(b"");
    running.wait().success();
    let mut by_process: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for part in parts(&program) {
        let pid = part.file_name().unwrap().to_str().unwrap().split('.').nth(1).unwrap().to_owned();
        by_process.entry(pid).or_default().push(part);
    }
    let (mut sessions, mut wholes) = (std::collections::BTreeSet::new(), Vec::new());
    let mut longest = 0;
    for (pid, parts) in &by_process {
        let whole = PathBuf::from(names[1].replace("%p", pid));
        let told: Vec<_> = parts.iter().map(|part| comments(part)).collect();
        let newest = told.last().unwrap()["session"].clone();
        let of_image: Vec<PathBuf> = parts
            .iter()
            .zip(&told)
            .filter(|(_, told)| told["session"] == newest)
            .map(|(part, _)| part.clone())
            .collect();
        assert_eq!(counts(&of_image), counts(std::slice::from_ref(&whole)), "{pid}");
        assert_eq!(comments(&whole)["session"], newest);
        assert!(
            is_last(parts.last().unwrap())
                && told.iter().filter(|told| told["session"] == newest && told["last"] == "true").count() == 1
        );
        assert!(sessions.insert(newest), "each has a session of its own");
        longest = longest.max(of_image.len());
        wholes.push(whole);
    }
    assert!(by_process.len() >= 3 && longest >= 3, "{by_process:?}");
    // So they can be merged.
    let merge = |name: &str, files: &[PathBuf]| {
        let out = program.outside(name);
        let words = ["merge", "-o"].map(PathBuf::from).into_iter().chain([out.clone()]).chain(files.iter().cloned());
        Program::new("/bin/true").start_heaptrace(words).wait().success();
        out
    };
    let sum = merge("sum.pb.gz", &wholes);
    assert_eq!(counts(&[sum]), counts(&wholes));
}

/// An exec ends the series of a program, whose last part is written then, and begins another one.
#[test]
fn an_exec_begins_another_series() {
    let peak = Program::fixture("peak");
    let script = format!("for i in 1 2 3 4 5; do x=$x$i; sleep 0.2; done; exec {}", peak.exe().display());
    let program = Program::new("/bin/sh").args(["-c", &script]).env("LEDGER", peak.outside("ledger"));
    let name = part_name(&program);
    let traced = program.collect(program.start_traced(&["--profile-every", "300ms", "-o", &name]).wait());
    let all = parts(&program);
    let told: Vec<_> = all.iter().map(|part| comments(part)).collect();
    let split = told.iter().position(|told| told["program"] == "peak").expect("parts of the second image");
    let (old, new) = (&all[..split], &all[split..]);
    assert!(split >= 2, "{told:?}");
    for told in [&told[..split], &told[split..]] {
        let numbers: Vec<String> = told.iter().map(|told| told["part"].clone()).collect();
        assert_eq!(numbers, (1..=told.len()).map(|part| part.to_string()).collect::<Vec<_>>());
        assert!(told.iter().all(|one| one["session"] == told[0]["session"]));
        assert_eq!(told.iter().map(|told| told["last"] == "true").position(|last| last), Some(told.len() - 1));
    }
    assert_ne!(told[0]["session"], told[split]["session"]);
    assert_eq!(counts(old)[0], traced.report.number("/images/0/totals/allocations"));
    assert_eq!(counts(new), counts(std::slice::from_ref(&traced.profile)));
    let text = pprof(&["-comments"], &[&all[split - 1]]);
    assert!(text.contains("an exec ended it, and all that was live with it"), "{text}");
}

/// A check writes parts meanwhile, and judges the whole.
#[test]
fn a_check_writes_parts_and_judges_the_whole() {
    let program = Program::fixture("victim").args(["2"]);
    let name = part_name(&program);
    let mut running = program.start_checked(&["--profile-every", "300ms", "--max-allocations", "10", "-o", &name]);
    running.value("ready");
    wait_for(3, || parts(&program).len());
    running.feed(b"");
    let ended = running.wait();
    assert_eq!(ended.code(), 23, "{}", ended.stderr);
    assert!(ended.stderr.contains("max-allocations"), "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(program.report_path()).unwrap()).unwrap();
    let all = parts(&program);
    assert_eq!(counts(&all)[0], report["totals"]["allocations"].as_u64().unwrap());
    assert_eq!(report["verdict"]["result"], "over_budget");
    assert_eq!(comments(all.last().unwrap())["last"], "true");
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
        (
            &["run", "-f", "--profile-every", "1s", "-o", "a.%i.pb.gz", "--", "/bin/true"],
            "a.%i.pb.gz: each process writes parts of its own here: put %p in the name, too",
        ),
        (
            &["attach", "--by-name", "x", "--again", "--profile-every", "1s", "-o", "a.%i.pb.gz"],
            "a.%i.pb.gz: each process writes parts of its own here: put %p in the name, too",
        ),
        (&["check", "--profile-every", "1s", "--", "/bin/true"], "put %i in it"),
    ] {
        let ended = program.start_heaptrace(options).wait();
        assert_eq!(ended.code(), 125, "{options:?}");
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
}
