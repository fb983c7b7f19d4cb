//! How much memory was resident at most, and what share of it the blocks explain.

use crate::support::checks::pprof;
use crate::support::program::Program;
use crate::support::report::Report;

const MIB: u64 = 1 << 20;

/// The kernel keeps these figures by CPU and sums them up roughly.
const TOLERANCE: u64 = 2 * MIB;

/// What the fixture says of itself, in bytes.
fn said(text: &str) -> u64 {
    let kib = text.lines().find_map(|line| line.strip_prefix("resident ")).expect("what getrusage says");
    1024 * kib.parse::<u64>().unwrap()
}

/// The text with one space where lines are broken or filled.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn peak(report: &Report) -> u64 {
    report.number("/resident/peak_bytes")
}

/// 100 MiB of malloc's and 60 of mmap's: the peak is the kernel's, the share that of malloc's blocks; in each file.
#[test]
fn peak_resident_memory_and_the_share_of_blocks() {
    let program = Program::fixture("resident").args(["100", "60", "0"]);
    let (text, markdown) = (program.outside("report.txt"), program.outside("report.md"));
    let (junit, sarif) = (program.outside("report.junit.xml"), program.outside("report.sarif"));
    let traced = program.traced_with(&["-o", text.to_str().unwrap()]);
    let (report, said) = (&traced.report, said(&traced.ended.text()));
    assert!(peak(report).abs_diff(said) <= TOLERANCE, "{} seen, {said} said", peak(report));
    assert!(peak(report) >= 160 * MIB);
    let share = (report.total("peak_bytes") * 1000 + peak(report) / 2) / peak(report);
    assert_eq!(report.number("/resident/explained_permille"), share);
    assert!((600..=630).contains(&share), "{share}");
    let row = format!("at most; the peak of live blocks is {}.", share / 10);
    for text in [traced.ended.stderr.clone(), std::fs::read_to_string(&text).unwrap()] {
        assert!(plain(&text).contains(&row), "{text}");
    }
    let comments = pprof(&["-comments"], &[&traced.profile]);
    assert!(
        comments.contains(&format!("resident: peak_bytes={} explained={}.", peak(report), share / 10)),
        "{comments}"
    );
    let outputs = [&markdown, &junit, &sarif].map(|path| ["-o", path.to_str().unwrap()]).concat();
    let checked = program.checked(&outputs);
    assert!(peak(&checked.report).abs_diff(said) <= TOLERANCE);
    // A check that finds nothing is told in three lines; the first one has it.
    let first = checked.ended.stderr.lines().find(|line| line.contains("pid")).unwrap();
    let told = first.rsplit(", ").next().and_then(|clause| clause.strip_suffix(" MiB resident at most")).unwrap();
    assert!(
        (told.parse::<f64>().unwrap() - said as f64 / MIB as f64).abs() * MIB as f64 <= TOLERANCE as f64,
        "{first}"
    );
    let (junit, sarif) = (std::fs::read_to_string(&junit).unwrap(), std::fs::read_to_string(&sarif).unwrap());
    let most = peak(&checked.report);
    assert!(junit.contains(&format!("<property name=\"resident.peak_bytes\" value=\"{most}\"/>")), "{junit}");
    let sarif: serde_json::Value = serde_json::from_str(&sarif).unwrap();
    assert_eq!(sarif.pointer("/runs/0/invocations/0/properties/residentPeakBytes"), Some(&most.into()));
    let share = checked.report.number("/resident/explained_permille");
    let row = format!("at most; the peak of live blocks is {}.", share / 10);
    let text = std::fs::read_to_string(&markdown).unwrap();
    assert!(text.contains("Resident: 16") && plain(&text).contains(&row), "{text}");
}

/// Memory that was asked for and never touched is not resident.
#[test]
fn untouched_blocks_are_not_resident() {
    let traced = Program::fixture("resident").args(["10", "10", "500"]).traced();
    assert!(traced.report.number("/resident/explained_permille") > 1000);
    assert!(peak(&traced.report) < 200 * MIB);
    assert!(plain(&traced.ended.stderr).contains("some were never touched"), "{}", traced.ended.stderr);
}

/// What counts is the last image, as for all other figures.
#[test]
fn an_image_that_exec_replaced_does_not_count() {
    let traced = Program::fixture("resident").args(["150", "10", "0", "again"]).traced();
    // The kernel's account of the process knows its earlier image, too.
    assert!(said(&traced.ended.text()) >= 160 * MIB);
    assert!((2 * MIB..20 * MIB).contains(&peak(&traced.report)), "{}", peak(&traced.report));
}

/// The kernel tells of the whole life of an attached process, of whose blocks only some are known: no share is claimed.
#[test]
fn no_share_is_claimed_after_an_attach() {
    let program = Program::fixture("resident").args(["50", "50", "0"]);
    let mut running = program.start();
    // Not the oracle here: getrusage(2) counts what the process was before its exec, too, which is this test program.
    running.value("resident");
    let pid = running.pid();
    let tracer = Program::new("/bin/true");
    let traced = tracer.collect(tracer.start_attached(&["--duration", "100ms"], pid).wait().success());
    assert!((100 * MIB..110 * MIB).contains(&peak(&traced.report)), "{}", peak(&traced.report));
    assert!(traced.report.0["resident"]["explained_permille"].is_null());
    assert!(traced.ended.stderr.contains("the time before tracing began included"), "{}", traced.ended.stderr);
    running.feed(b"");
    running.wait().success();
}

/// Of a tree each process has its own.
#[test]
fn each_process_of_a_tree_has_its_own_peak_resident_memory() {
    let exe = crate::support::fixtures::program("resident");
    let line = format!("{0} 20 1 0 && {0} 90 1 0; true", exe.display());
    let traced = Program::new("/bin/sh").args(["-c", &line]).traced_with(&["-f"]);
    assert!(traced.report.0["resident"].is_null());
    let rows = traced.report.list("/processes").iter().filter(|row| row["program"] == "resident");
    let peaks: Vec<u64> = rows.map(|row| row["resident"]["peak_bytes"].as_u64().unwrap() / MIB).collect();
    assert!(peaks.len() == 2 && (21..40).contains(&peaks[0]) && (91..110).contains(&peaks[1]), "{peaks:?}");
    assert!(traced.ended.stderr.contains("resident"), "{}", traced.ended.stderr);
}
