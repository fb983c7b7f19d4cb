//! `--profile-every`, `--profile-every-allocs`: parts of which each tells of its period, and the last one at the end.

use crate::support::checks::pprof;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Ended;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};

/// The files of a series in its folder, by their numbers.
fn parts(program: &Program, extension: &str) -> Vec<PathBuf> {
    let folder = program.outside("parts");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(extension))
        .collect();
    files.sort();
    files
}

fn traced(program: &Program, options: &[&str]) -> Ended {
    let folder = program.outside("parts");
    std::fs::create_dir(&folder).unwrap();
    let names = ["p.%i.json", "p.%i.pb.gz"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    let mut all = vec!["-o", &names[0], "-o", &names[1]];
    all.extend(options);
    program.start_traced(&all).wait()
}

/// What pprof's `-comments` has behind `key=`.
fn comment(profile: &Path, key: &str) -> String {
    let text = pprof(&["-comments"], &[profile]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    line.unwrap_or_else(|| panic!("{} has no comment {key}:\n{text}", profile.display())).to_owned()
}

/// The total of a column, as pprof adds it up over all files.
fn total(profiles: &[PathBuf], column: &str) -> u64 {
    let files: Vec<&Path> = profiles.iter().map(PathBuf::as_path).collect();
    let text = pprof(&["-top", "-unit=bytes", &format!("-sample_index={column}")], &files);
    let line = text.lines().find(|line| line.contains(" total")).unwrap_or_else(|| panic!("no total in\n{text}"));
    let word = line.rsplit(" of ").next().unwrap().trim_end_matches(" total");
    word.trim_end_matches("bytes").trim_end_matches('B').parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn parts_add_up_to_the_whole() {
    let program = Program::fixture("sampled");
    let ended = traced(&program, &["--profile-every-allocs", "3000"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let whole = program.collect(ended).report;
    let (profiles, ledger) = (parts(&program, ".pb.gz"), program.ledger());
    assert!(profiles.len() >= 3, "{profiles:?}");
    for (column, name) in [
        ("allocated_objects", "allocations"),
        ("allocated_space", "bytes_allocated"),
        ("deallocated_objects", "frees"),
        ("deallocated_space", "bytes_freed"),
    ] {
        assert_eq!(total(&profiles, column), ledger.total(name), "{column}");
    }
    let last = profiles.last().unwrap();
    assert_eq!(total(std::slice::from_ref(last), "residual_allocated_space"), ledger.total("live_bytes"));
    assert_eq!(total(std::slice::from_ref(last), "inuse_objects"), ledger.total("live_blocks"));
    assert_eq!(total(std::slice::from_ref(last), "peak_space"), ledger.total("peak_bytes"));
    let (session, mut ended_at) = (comment(last, "session"), "0".to_owned());
    for (at, profile) in profiles.iter().enumerate() {
        assert_eq!(comment(profile, "part"), (at + 1).to_string());
        assert_eq!(comment(profile, "last"), (profile == last).to_string());
        assert_eq!(comment(profile, "session"), session);
        let period = comment(profile, "period_ns");
        let (from, to) = period.split_once("..").unwrap();
        assert_eq!(from, ended_at, "periods follow each other");
        to.clone_into(&mut ended_at);
    }
    let mut sum = [0; 4];
    for path in parts(&program, ".json") {
        let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for (at, name) in ["allocations", "frees", "reallocations", "temporary"].into_iter().enumerate() {
            sum[at] += report["totals"][name].as_u64().unwrap_or_else(|| panic!("{}", path.display()));
        }
    }
    assert_eq!(sum, ["allocations", "frees", "reallocations", "temporary"].map(|name| whole.total(name)));
}

#[test]
fn parts_are_small_where_little_happens() {
    let program = Program::fixture("sampled");
    let ended = traced(&program, &["--profile-every-allocs", "3000"]);
    let whole = program.collect(ended).report;
    let last = parts(&program, ".json").pop().unwrap();
    let text = std::fs::read_to_string(last).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["sites"].as_array().unwrap().len() <= whole.sites().len());
    let brief = |sites: &[serde_json::Value]| {
        let of = |site: &&serde_json::Value| site["stack"].to_string().contains("brief");
        sites.iter().filter(of).count()
    };
    assert!(brief(whole.sites()) > 0);
    assert!(report["totals"]["allocations"].as_u64() < Some(whole.total("allocations")));
}

/// Parts by time, while four threads allocate; and the last one of a program that is killed.
#[test]
fn a_killed_program_leaves_its_last_part() {
    let program = Program::fixture("forever").args(["4"]);
    let folder = program.outside("parts");
    std::fs::create_dir(&folder).unwrap();
    let log = program.outside("log");
    let (name, hook) = (folder.join("p.%i.pb.gz"), format!("echo \"$HEAPTRACE_FILE\" >> {}", log.display()));
    let mut running =
        program.start_traced(&["-o", name.to_str().unwrap(), "--profile-every", "200ms", "--on-profile", &hook]);
    let pid: i32 = running.value("ready").parse().unwrap();
    procfs::wait_until("two parts are there", || parts(&program, ".pb.gz").len() >= 2);
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code(), 137);
    assert!(ended.stderr.contains("parts of the series: "), "{}", ended.stderr);
    let whole = program.collect(ended).report;
    let profiles = parts(&program, ".pb.gz");
    assert_eq!(total(&profiles, "allocated_objects"), whole.total("allocations"));
    assert_eq!(comment(profiles.last().unwrap(), "last"), "true");
    let passed_on = std::fs::read_to_string(log).unwrap();
    for profile in &profiles {
        let path = profile.display().to_string();
        assert_eq!(passed_on.lines().filter(|line| **line == path).count(), 1, "{path} in\n{passed_on}");
    }
}

#[test]
fn old_parts_are_removed() {
    let program = Program::fixture("sampled");
    let ended = traced(&program, &["--profile-every-allocs", "2000", "--keep", "2"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let profiles = parts(&program, ".pb.gz");
    assert_eq!((profiles.len(), parts(&program, ".json").len()), (2, 2));
    let last: u32 = comment(&profiles[1], "part").parse().unwrap();
    assert!(last >= 3, "{last} parts");
    assert_eq!(comment(&profiles[0], "part"), (last - 1).to_string());
    let report = Report::read(&program.report_path(), &ended);
    assert_eq!(report.total("allocations"), program.ledger().total("allocations"), "the whole is whole");
}

#[test]
fn a_series_without_a_place_for_numbers_is_refused() {
    let program = Program::fixture("sampled");
    for (options, cause) in [
        (&["run", "--profile-every", "1s", "-o", "x.pb.gz"][..], "put %i (its number)"),
        (&["run", "--keep", "3"], "add --profile-every, or --snapshot-every"),
        (&["run", "--min-interval", "3s"], "add --profile-every or --profile-every-allocs"),
        (&["run", "-f", "--profile-every", "1s"], "cannot be used with"),
        (&["check", "--profile-every", "1s"], "check judges the whole run"),
    ] {
        let ended = program.start_heaptrace(options.iter().copied().chain(["--", "/bin/true"])).wait();
        assert_eq!(ended.code(), 125, "{options:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(cause), "{options:?}: {}", ended.stderr);
    }
}
