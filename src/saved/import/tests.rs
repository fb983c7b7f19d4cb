//! What is written is read back; what is none is refused in words.

mod foreign;
mod fuzz;

use super::*;
use crate::export::tests::{attach_profile, check_profile, empty_profile, sample_profile, wasteful};
use crate::export::{ExportOptions, Format, PprofColumns, write};
use crate::profile::leaks::LeakClass;
use crate::profile::saved::{LeakLabel, Writer};
use crate::profile::{Amount, Profile, Sample};
use proptest::prelude::*;

fn written(profile: &Profile, format: Format, pprof_columns: PprofColumns) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = ExportOptions { pprof_columns, ..ExportOptions::default() };
    write(format, profile, &options, &mut bytes).expect("memory takes everything");
    bytes
}

fn read_back(bytes: &[u8]) -> Profile {
    read(bytes, "x", &Limits::default()).expect("our own file")
}

/// Names of the frames of each sample, with its labels and the amounts that `keep` leaves, sorted.
fn content(profile: &Profile, keep: impl Fn(&Sample) -> [Amount; 5]) -> Vec<String> {
    let text = |index: usize| profile.strings[index].as_str();
    let line = |sample: Sample| {
        let locations = profile.locations_of(sample.stack).map(|at| {
            let location = &profile.locations[at as usize];
            let module = location.module.map(|module| &profile.modules[module].path);
            let lines = location.lines.iter().map(|line| {
                let function = &profile.functions[line.function];
                let system_name = &function.system_name;
                format!(
                    "{} {system_name} {:?}:{} {} {}",
                    function.name, function.file, line.line, function.start_line, line.inlined
                )
            });
            format!("{module:?} {} {:?}", location.address, lines.collect::<Vec<_>>())
        });
        let locations: Vec<String> = locations.filter(|location| !location.contains("[unknown stack]")).collect();
        let quality = profile.stacks.row(sample.stack).quality;
        let (thread, alloc_fn, program) = (text(sample.thread), text(sample.alloc_fn), sample.program.map(text));
        format!(
            "{locations:?} {quality:?} {thread} {alloc_fn} {program:?} {} {} {:?}",
            sample.inherited,
            sample.size,
            keep(&sample)
        )
    };
    let samples = profile.samples.iter().filter(|sample| keep(sample) != [Amount::default(); 5]);
    let mut lines: Vec<String> = samples.map(line).collect();
    lines.sort();
    lines
}

fn all_columns(sample: &Sample) -> [Amount; 5] {
    [sample.live, sample.allocated, sample.deallocated, sample.at_peak, Amount::default()]
}

#[test]
fn pprof_keeps_figures_names_and_labels() {
    for profile in [sample_profile(), attach_profile(), check_profile(), empty_profile()] {
        for format in [Format::Pprof, Format::PprofGz] {
            let bytes = written(&profile, format, PprofColumns::All);
            let back = read_back(&bytes);
            assert_eq!(content(&back, all_columns), content(&profile, all_columns));
            assert_eq!(back.totals, profile.totals);
            assert_eq!(back.warnings, profile.warnings);
            assert_eq!(
                back.meta.process,
                crate::profile::ProcessInfo { cwd: "".into(), user_is_unknown: true, ..profile.meta.process.clone() }
            );
            assert_eq!((back.meta.mode, back.meta.complete), (profile.meta.mode, profile.meta.complete));
            assert_eq!((&back.meta.session, back.meta.part), (&profile.meta.session, 1));
            assert_eq!(back.anomalies, profile.anomalies);
            let saved = back.saved.as_ref().expect("it was read");
            assert_eq!((saved.writer, saved.parts.as_slice(), saved.last), (Writer::Heaptrace, &[1][..], true));
            assert!(written(&back, format, PprofColumns::All) == bytes, "the same bytes again");
        }
    }
}

#[test]
fn leak_labels_come_back() {
    let back = read_back(&written(&check_profile(), Format::PprofGz, PprofColumns::All));
    let labels: Vec<_> = back.stacks.iter().filter_map(|stack| stack.leak).collect();
    assert!(labels.contains(&LeakLabel::Class(LeakClass::Reachable)), "{labels:?}");
    assert!(labels.contains(&LeakLabel::Class(LeakClass::Definite)), "{labels:?}");
}

#[test]
fn narrower_sets_of_columns_say_what_is_missing() {
    let profile = sample_profile();
    let sampler = read_back(&written(&profile, Format::Pprof, PprofColumns::Sampler));
    assert_eq!(sampler.totals.peak_bytes, 0);
    assert_eq!(sampler.totals.bytes_freed, profile.totals.bytes_freed);
    let holds = sampler.saved.expect("read").holds;
    assert_eq!(holds.missing(), ["peak"]);
    let go = read_back(&written(&profile, Format::Pprof, PprofColumns::Go));
    assert_eq!(go.saved.as_ref().expect("read").holds.missing(), ["deallocated", "peak"]);
    assert_eq!(go.totals.bytes_freed, profile.totals.bytes_freed);
    // The comment keeps it in mind where empty columns are written.
    let again = read_back(&written(&go, Format::Pprof, PprofColumns::All));
    assert_eq!(again.saved.expect("read").holds.missing(), ["deallocated", "peak"]);
}

#[test]
fn a_sampled_profile_is_scaled_once() {
    let mut profile = sample_profile();
    profile.meta.sample_interval = 4096;
    profile.samples.change(|sample| sample.interval = 4096);
    // its share is of the peak, which is a sum of the samples for those who read it
    profile.meta.process.resident = None;
    let first = written(&profile, Format::Pprof, PprofColumns::All);
    let back = read_back(&first);
    assert_eq!(back.meta.sample_interval, 4096);
    assert_eq!(back.standard_error(), profile.standard_error());
    assert!(back.totals.bytes_allocated > profile.totals.bytes_allocated);
    let report = written(&profile, Format::Json, PprofColumns::All);
    for (format, bytes) in [(Format::Pprof, first), (Format::Json, report)] {
        let back = read_back(&bytes);
        assert!(written(&back, format, PprofColumns::All) == bytes, "the same bytes again");
    }
}

#[test]
fn a_report_is_read_whole() {
    for profile in [sample_profile(), attach_profile(), check_profile(), empty_profile()] {
        for format in [Format::Json, Format::JsonGz] {
            let bytes = written(&profile, format, PprofColumns::All);
            let back = read_back(&bytes);
            assert_eq!(back.totals, profile.totals);
            let again = written(&back, format, PprofColumns::All);
            if format == Format::Json {
                similar_asserts(&String::from_utf8_lossy(&again), &String::from_utf8_lossy(&bytes));
            }
        }
    }
}

/// Like assert_eq, with the place where two long texts differ.
fn similar_asserts(a: &str, b: &str) {
    if let Some(at) = a.bytes().zip(b.bytes()).position(|(a, b)| a != b).or((a.len() != b.len()).then_some(0)) {
        let part = |text: &str| text.chars().skip(at.saturating_sub(120)).take(300).collect::<String>();
        panic!("they differ at {at}:\n{}\n{}", part(a), part(b));
    }
}

#[test]
fn reports_of_earlier_versions_are_read() {
    for (bytes, resident) in [
        (&include_bytes!("../../../tests/kept/profiles/made-up/report-1.json")[..], None),
        (&include_bytes!("../../../tests/kept/profiles/made-up/report-2.json")[..], Some(2_000_000)),
    ] {
        let profile = read_back(bytes);
        assert_eq!(profile.totals.peak_bytes, 1_060_000);
        assert_eq!(profile.anomalies.abandoned_calls, 2);
        assert_eq!(profile.meta.process.resident.map(|resident| resident.peak_bytes), resident);
        let sum: u64 = profile.samples.iter().map(|sample| sample.allocated.bytes).sum();
        assert_eq!(sum, profile.totals.bytes_allocated);
        assert!(profile.functions.iter().any(|function| function.name == "main"));
        assert_eq!(profile.findings.len(), 1);
        let leaks = profile.leaks.expect("a scan");
        assert_eq!(leaks.totals()[0], Amount { objects: 3, bytes: 3072 });
    }
}

/// A file that the release of this name wrote; such stay as they are. A new one is made by running the test with
/// HEAPTRACE_KEEP_FILES=1.
fn kept(name: &str, format: Format) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/profiles/made-up").join(name);
    if std::env::var_os("HEAPTRACE_KEEP_FILES").is_some() && !path.exists() {
        std::fs::write(&path, written(&check_profile(), format, PprofColumns::All)).expect("written");
    }
    std::fs::read(&path).expect("a file that is kept")
}

#[test]
fn files_of_each_version_are_read() {
    for (name, format) in [("pprof-0.1.0.pb.gz", Format::PprofGz), ("report-3.json.gz", Format::JsonGz)] {
        let profile = read_back(&kept(name, format));
        let expected = check_profile();
        assert_eq!(profile.totals, expected.totals, "{name}");
        assert_eq!(profile.meta.process.program, "app");
        assert_eq!(profile.meta.process.exit, expected.meta.process.exit);
        assert_eq!(profile.anomalies, expected.anomalies);
        assert_eq!(profile.warnings, expected.warnings);
        assert!(profile.functions.iter().any(|function| function.name == "parse_document"), "{name}");
    }
}

fn refused(bytes: &[u8]) -> String {
    read(bytes, "dir/x.pb.gz", &Limits::default()).expect_err("no profile").to_string()
}

#[test]
fn what_is_no_profile_is_refused_with_cause_and_way_out() {
    let pprof = written(&sample_profile(), Format::Pprof, PprofColumns::All);
    let gz = written(&sample_profile(), Format::PprofGz, PprofColumns::All);
    let json = written(&sample_profile(), Format::Json, PprofColumns::All);
    let version = String::from_utf8(json.clone()).expect("UTF-8").replace("\"version\":3", "\"version\":99");
    for (bytes, expected) in [
        (&b""[..], "empty"),
        (&gz[..gz.len() / 2], "ends too early"),
        (&pprof[..pprof.len() / 2], "damaged"),
        (&json[..json.len() / 2], "ends too early"),
        (b"heap profile:  1: 2 [ 3: 4] @ heapprofile", "pprof -proto"),
        (b"heap_v2/524288\n", "jemalloc"),
        (b"{\"dhatFileVersion\":2}", "not a report of heaptrace"),
        (version.as_bytes(), "version 99"),
        (b"#!/bin/sh\n", "text, not a profile"),
        (&[0xff; 9], "neither a pprof profile nor a report.json"),
        (b"\x7fELF\x02", "heaptrace run"),
    ] {
        let error = refused(bytes);
        assert!(error.starts_with("dir/x.pb.gz: ") && error.contains(expected), "{expected}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

fn amount() -> impl Strategy<Value = Amount> {
    (0u64..1 << 40, 0u64..1 << 50).prop_map(|(objects, bytes)| Amount { objects, bytes })
}

/// A report says what it said, and so does what is made of it; kinds of later versions are left out.
#[test]
fn advice_stays_as_it_was_told() {
    let advice = |profile: &Profile| -> Vec<serde_json::Value> {
        let report: serde_json::Value =
            serde_json::from_slice(&written(profile, Format::Json, PprofColumns::All)).expect("JSON");
        let entries = report["advice"].as_array().expect("a list").iter();
        entries.map(|of| serde_json::json!([of["kind"], of["figures"], of["site"], of["text"]])).collect()
    };
    let told = advice(&wasteful());
    assert_eq!(told.len(), 4);
    let json = written(&wasteful(), Format::Json, PprofColumns::All);
    assert_eq!(advice(&read_back(&json)), told);
    let later = String::from_utf8(json).expect("text").replace("\"kind\":\"growth\"", "\"kind\":\"later\"");
    assert_eq!(advice(&read_back(later.as_bytes())), told[1..]);
}

proptest! {
    /// Whatever the figures and names, what is written is read.
    #[test]
    fn what_is_written_is_read(
        figures in prop::collection::vec((0usize..6, 0usize..2, 2usize..6, 0u64..1 << 40, prop::bool::ANY,
            (amount(), amount(), amount(), amount())), 0..40),
        names in prop::collection::vec("[ -~äöüλ🌀]{1,12}", 9),
    ) {
        let mut profile = sample_profile();
        for (function, name) in profile.functions.iter_mut().zip(&names) {
            function.name.clone_from(name);
            function.system_name = format!("{name}x");
        }
        let mut known = std::collections::HashSet::new();
        profile.samples = figures.into_iter().filter(|f| known.insert((f.0, f.1, f.2, f.3, f.4))).map(
            |(stack, thread, alloc_fn, size, inherited, (live, more, deallocated, at_peak))| Sample {
                interval: 0,
                stack, thread, alloc_fn, program: None, inherited, size, live, deallocated, at_peak,
                allocated: live.plus(more), freed: more, temporary: 0, lifetime_ns: 0, freed_elsewhere: 0,
            }).collect();
        let back = read_back(&written(&profile, Format::PprofGz, PprofColumns::All));
        let with_freed = |sample: &Sample| [sample.live, sample.allocated, sample.deallocated, sample.at_peak, sample.freed];
        prop_assert_eq!(content(&back, with_freed), content(&profile, with_freed));
    }
}
