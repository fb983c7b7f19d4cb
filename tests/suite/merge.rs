//! `heaptrace merge` and `heaptrace diff` on real profiles, with `go tool pprof` as the oracle.

use crate::support::checks::pprof;
use crate::support::program::{Program, Traced};
use crate::support::running::Ended;
use std::path::{Path, PathBuf};

fn heaptrace(args: &[&str]) -> Ended {
    Program::new("/bin/true").start_heaptrace(args.iter().copied()).wait()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The rows of `pprof -top`.
fn top(args: &[&str], files: &[&Path], column: &str) -> Vec<String> {
    let index = format!("-sample_index={column}");
    let all = [&["-top", "-nodefraction=0", "-unit=B", &index], args].concat();
    let out = pprof(&all, files);
    out.lines().skip_while(|line| !line.contains("flat%")).map(str::to_owned).collect()
}

fn two() -> (Program, [PathBuf; 2]) {
    let program = Program::fixture("peak");
    let Traced { profile, .. } = program.traced();
    let first = program.outside("first.pb.gz");
    crate::support::copy_file(&profile, &first).unwrap();
    let other = Program::fixture("sites");
    let second = program.outside("second.pb.gz");
    crate::support::copy_file(other.traced().profile, &second).unwrap();
    (program, [first, second])
}

/// Of different sessions everything adds up, as pprof adds it; whatever the order, the file is the same.
#[test]
fn pprof_adds_the_same() {
    let (program, [first, second]) = two();
    let (one, other) = (program.outside("one.pb.gz"), program.outside("other.pb.gz"));
    heaptrace(&["merge", "-o", text(&one), text(&first), text(&second)]).success();
    heaptrace(&["merge", "-o", text(&other), text(&second), text(&first)]).success();
    assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap());
    for column in ["residual_allocated_space", "allocated_objects", "deallocated_space", "peak_space", "inuse_objects"]
    {
        assert_eq!(top(&[], &[&one], column), top(&[], &[&first, &second], column), "{column}");
    }
    pprof(&["-raw"], &[&one]);
    let comments = pprof(&["-comments"], &[&one]);
    assert!(comments.contains("files=2") && comments.contains("peak=upper bound"), "{comments}");
    let summary = heaptrace(&["report", text(&one)]).success().text();
    assert!(summary.contains("merged of 2 files") && summary.contains("upper bound"), "{summary}");
}

/// What would be wrong is refused, and nothing is written.
#[test]
fn merging_is_refused_where_it_would_be_wrong() {
    let (program, [first, second]) = two();
    let (copy, torn, out) =
        (program.outside("copy.pb.gz"), program.outside("torn.pb.gz"), program.outside("out.pb.gz"));
    crate::support::copy_file(&first, &copy).unwrap();
    let bytes = std::fs::read(&first).unwrap();
    std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    for (files, expected) in [
        (vec![&first, &copy], "the same part of one session"),
        (vec![&first, &first], "named twice"),
        (vec![&first, &torn, &second], "--skip-unreadable leaves them out"),
    ] {
        let mut args = vec!["merge", "-o", text(&out)];
        args.extend(files.iter().map(|file| text(file)));
        let ended = heaptrace(&args);
        assert_eq!(ended.code(), 125);
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
        assert!(!out.exists());
    }
    let ended = heaptrace(&["merge", "--skip-unreadable", "-o", text(&out), text(&first), text(&torn), text(&second)]);
    assert!(ended.stderr.contains("torn.pb.gz: the file ends too early"), "{}", ended.stderr);
    assert!(ended.success().stderr.contains("2 of 3 files merged"));
    let one = program.outside("one.pb.gz");
    let ended = heaptrace(&["merge", "--skip-unreadable", "-o", text(&one), text(&first), text(&torn)]);
    assert!(ended.success().stderr.contains("1 of 2 files merged"));
    assert_eq!(top(&[], &[&one], "alloc_space"), top(&[], &[&first], "alloc_space"));
    assert!(heaptrace(&["merge", text(&first)]).stderr.contains("merge needs a file to write"));
}

/// A report does not tell its session, and is refused beside another file of its run all the same.
#[test]
fn a_report_and_a_profile_of_one_run_are_not_added() {
    let (one, other) = (Program::fixture("peak"), Program::fixture("sites"));
    let profile = one.traced().profile;
    other.traced();
    let (out, copy) = (one.outside("sum.pb.gz"), one.outside("copy.json"));
    crate::support::copy_file(one.report_path(), &copy).unwrap();
    for file in [&profile, &copy] {
        let ended = heaptrace(&["merge", "-o", text(&out), text(&one.report_path()), text(file)]);
        assert_eq!(ended.code(), 125, "{}", ended.stderr);
        assert!(ended.stderr.contains("are of the same run, so that its blocks would count twice"), "{}", ended.stderr);
    }
    heaptrace(&["merge", "-o", text(&out), text(&one.report_path()), text(&other.report_path())]).success();
}

/// The difference is the one that `pprof -diff_base` shows, percentages included.
#[test]
fn a_difference_is_pprof_s() {
    let (program, [first, second]) = two();
    let out = program.outside("diff.pb.gz");
    heaptrace(&["diff", text(&first), text(&second), "-o", text(&out)]).success();
    for column in ["peak_space", "alloc_objects", "inuse_space", "deallocated_space"] {
        let base = format!("-diff_base={}", first.display());
        assert_eq!(top(&[], &[&out], column), top(&[&base], &[&second], column), "{column}");
    }
    pprof(&["-raw"], &[&out]);
    let error = heaptrace(&["report", text(&out)]);
    assert!(error.stderr.contains("negative amounts"), "{}", error.stderr);
}

/// Each way to tell a difference, and the exit status where it is too large.
#[test]
fn differences_are_told_and_judged() {
    let (program, [first, second]) = two();
    let same = heaptrace(&["diff", text(&first), text(&first), "--fail-if-grown", "0"]).success().text();
    assert!(same.contains("No stack has changed"), "{same}");
    let shown = heaptrace(&["diff", text(&first), text(&second), "--value", "allocated"]).success().text();
    assert!(shown.contains("New: +") && shown.contains("Gone: −") && shown.contains("early"), "{shown}");
    let (md, json, folded) = (program.outside("d.md"), program.outside("d.json"), program.outside("d.folded"));
    heaptrace(&["diff", text(&first), text(&second), "-o", text(&md), "-o", text(&json), "-o", text(&folded)])
        .success();
    assert!(std::fs::read_to_string(&md).unwrap().starts_with("### Heap: "));
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let delta: i64 = value["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["after"]["bytes"].as_i64().unwrap() - change["before"]["bytes"].as_i64().unwrap())
        .sum();
    assert_eq!(delta, value["after"]["bytes"].as_i64().unwrap() - value["before"]["bytes"].as_i64().unwrap());
    let lines = std::fs::read_to_string(&folded).unwrap();
    assert!(
        lines.lines().all(|line| line.rsplitn(3, ' ').take(2).all(|number| number.parse::<u64>().is_ok())),
        "{lines}"
    );
    // one way the sum grows, the other way it shrinks
    let codes = |args: &[&str]| {
        [[&first, &second], [&second, &first]]
            .map(|[a, b]| heaptrace(&[&["diff", text(a), text(b), "--value", "allocated"], args].concat()).code())
    };
    let mut grown = codes(&["--fail-if-grown", "0"]);
    grown.sort();
    assert_eq!(grown, [0, 23]);
    assert_eq!(codes(&["--fail-if-grown", "1G", "--fail-if-grown", "100000%"]), [0, 0]);
    let mut grown = codes(&["--fail-if-grown", "1G", "--fail-if-grown", "0.1%"]);
    grown.sort();
    assert_eq!(grown, [0, 23]);
    let error = heaptrace(&["diff", text(&first), text(&second), "-o", "x.svg"]);
    assert!(error.stderr.contains("heaptrace writes a difference as .html .pb.gz"), "{}", error.stderr);
}

/// A fleet's profiles: as many as there are processes, each of a session of its own.
fn fleet(folder: &Path, count: usize) -> Vec<PathBuf> {
    let program = Program::fixture("peak");
    let plain = program.outside("one.pb");
    heaptrace(&["report", text(&program.traced().profile), "-o", text(&plain)]).success();
    let bytes = std::fs::read(&plain).unwrap();
    let key = b"session=";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let file = |number: usize| {
        let mut bytes = bytes.clone();
        bytes[at..at + 16].copy_from_slice(format!("{number:016x}").as_bytes());
        let path = folder.join(format!("{number}.pb"));
        std::fs::write(&path, bytes).unwrap();
        path
    };
    (0..count).map(file).collect()
}

/// 10,000 profiles take hardly more memory than 100, and each of them counts.
#[test]
fn a_fleet_is_merged_in_bounded_memory() {
    let program = Program::fixture("peak");
    let folder = program.outside("fleet");
    std::fs::create_dir(&folder).unwrap();
    let files = fleet(&folder, 10_000);
    let merged = |count: usize| {
        let out = program.outside(&format!("{count}.pb.gz"));
        let mut args = vec!["merge".to_owned(), "-o".to_owned(), text(&out).to_owned()];
        args.extend(files[..count].iter().map(|file| text(file).to_owned()));
        let running = program.start_heaptrace(&args);
        let mut peak_kib = 0;
        while running.is_alive() {
            let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            peak_kib = peak_kib.max(kib.unwrap_or(0));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        running.wait().success();
        let report = heaptrace(&["report", "--json", text(&out)]).success().text();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        (peak_kib, report["totals"]["allocations"].as_u64().unwrap())
    };
    let (few_kib, few) = merged(100);
    let (many_kib, many) = merged(10_000);
    assert_eq!(many, few * 100);
    assert!(many_kib < few_kib + 16 * 1024, "{few_kib} KiB for 100 files, {many_kib} for 10,000");
}
