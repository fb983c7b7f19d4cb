//! `go tool pprof` as the reader of real profiles.

use crate::support::checks::pprof;
use crate::support::fixtures;
use crate::support::program::Program;

/// All columns, in the order of docs/profile.md.
const COLUMNS: [&str; 12] = [
    "residual_allocated_objects",
    "residual_allocated_space",
    "allocated_objects",
    "allocated_space",
    "deallocated_objects",
    "deallocated_space",
    "peak_objects",
    "peak_space",
    "alloc_objects",
    "alloc_space",
    "inuse_objects",
    "inuse_space",
];

/// The flat value of a function in `pprof -top`, in the unit asked for.
fn flat(top: &str, function: &str) -> Option<u64> {
    top.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let value = words.next()?;
        // flat flat% sum% cum cum% name
        (words.nth(4)? == function).then(|| value.trim_end_matches('B').parse().ok())?
    })
}

/// Every column of a program with known sites has the right value for each function.
#[test]
fn columns_of_known_sites() {
    let traced = Program::fixture("peak").traced();
    let value = |column: &str, function: &str| {
        let index = format!("-sample_index={column}");
        flat(&pprof(&["-top", "-nodefraction=0", "-unit=B", &index], &[&traced.profile]), function).unwrap_or(0)
    };
    for (column, early, high, late, temporary) in [
        ("allocated_objects", 40, 5, 20, 25),
        ("allocated_space", 40_000, 50_000, 20_000, 2500),
        ("residual_allocated_objects", 10, 0, 20, 0),
        ("residual_allocated_space", 10_000, 0, 20_000, 0),
        ("peak_objects", 10, 5, 0, 0),
        ("peak_space", 10_000, 50_000, 0, 0),
        ("alloc_space", 40_000, 50_000, 20_000, 2500),
        ("inuse_objects", 10, 0, 20, 0),
        ("inuse_space", 10_000, 0, 20_000, 0),
        // what is freed belongs to the stack of the free
        ("deallocated_objects", 0, 0, 0, 0),
    ] {
        let found = ["early", "high", "late", "temporary"].map(|function| value(column, function));
        assert_eq!(found, [early, high, late, temporary], "{column}");
    }
    assert_eq!(value("deallocated_objects", "drop"), 60);
    assert_eq!(value("deallocated_space", "drop"), 30_000 + 50_000 + 2500);
}

/// Every report of pprof works on every column, and the default column of a run is the peak.
#[test]
fn every_report_of_pprof() {
    let traced = Program::fixture("sites").traced();
    let profile = traced.profile.as_path();
    for column in COLUMNS {
        for report in ["-top", "-traces", "-peek=.", "-tree", "-raw"] {
            pprof(&[report, &format!("-sample_index={column}")], &[profile]);
        }
    }
    assert!(pprof(&["-top"], &[profile]).contains("Type: peak_space"));
    assert!(pprof(&["-top", "-inuse_space"], &[profile]).contains("inlined"));
    assert!(pprof(&["-top", "-alloc_space"], &[profile]).contains("inlined"));
    assert!(pprof(&["-traces", "-alloc_space"], &[profile]).contains("recursive"));
    let source = format!("-source_path={}", fixtures::source_dir().display());
    let listing = pprof(&["-list=^leaf$", "-alloc_space", "-unit=B", &source], &[profile]);
    let line = fixtures::site_line("sites", "leaf").to_string();
    let at = listing.lines().find(|text| text.contains("SITE: leaf")).expect("the source line");
    assert!(at.contains("3000B") && at.contains(&line), "{at}\n{listing}");
    // sizes are numeric labels; so are ids, which a range without a name would be compared with, too
    assert!(pprof(&["-top", "-alloc_space", "-tagfocus=bytes=1000b:1000b"], &[profile]).contains("inlined"));
    let other = pprof(&["-top", "-alloc_space", "-tagfocus=bytes=2000b:3000b"], &[profile]);
    assert!(!other.contains("inlined"), "{other}");
}

/// The difference of a profile with itself is nothing; with another run of the same program it is nothing either.
#[test]
fn differences() {
    let (first, second) = (Program::fixture("peak"), Program::fixture("peak"));
    let (first, second) = (first.traced(), second.traced());
    for base in [&first.profile, &second.profile] {
        for option in ["-diff_base", "-base"] {
            let argument = format!("{option}={}", base.display());
            let top = pprof(&["-top", "-alloc_space", "-unit=B", &argument], &[&first.profile]);
            assert_eq!(flat(&top, "early").unwrap_or(0), 0, "{option}\n{top}");
        }
    }
}

/// Mappings carry build ids, so that pprof can resolve what we did not.
#[test]
fn mappings_have_build_ids() {
    let traced = Program::fixture("sites").traced();
    let raw = pprof(&["-raw"], &[&traced.profile]);
    let mappings: Vec<_> = raw.lines().skip_while(|line| !line.starts_with("Mappings")).skip(1).collect();
    let first = mappings.first().expect("a mapping");
    assert!(first.contains("/sites"), "the main program comes first: {first}");
    let libc = mappings.iter().find(|line| line.contains("libc.so")).expect("libc");
    let id = libc.split_whitespace().find(|word| word.len() == 40 && word.bytes().all(|b| b.is_ascii_hexdigit()));
    assert!(id.is_some(), "{libc}");
}

/// What pprof shows is who asked for memory, not the standard library's way to it or a wrapper; and code of the program
/// that a library runs on the way is shown as ever. The fixtures tell their account; at all levels of optimisation.
#[test]
fn top_names_functions_of_the_program() {
    for (fixture, flags) in
        [("wrapped", "-O0"), ("wrapped", "-O2"), ("wrapped_rust", "-Copt-level=0"), ("wrapped_rust", "-Copt-level=3")]
    {
        let program = Program::new(fixtures::program_with(fixture, &[flags]));
        let traced = program.traced();
        let arguments = ["-top", "-alloc_space", "-unit=B", "-nodefraction=0", "-nodecount=100000"];
        let top = pprof(&arguments, &[&traced.profile]);
        let flat = |function: &str| {
            let lines = top.lines().filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let name = words.get(5..)?.join(" ");
                let bare = name.split(['(', ' ']).next()?.rsplit("wrapped_rust::").next()?.to_owned();
                (bare == function).then(|| words[0].trim_end_matches('B').parse::<u64>().unwrap())
            });
            lines.sum::<u64>()
        };
        let told = traced.ended.text();
        assert!(told.lines().count() > 4, "{told}");
        for (function, bytes) in told.lines().map(|line| line.split_once(' ').unwrap()) {
            assert_eq!(flat(function).to_string(), bytes, "{function} of {fixture} {flags}\n{top}");
        }
        // the stacks in the file are whole, and nothing is lost from the sum
        let total = format!("{}B total", traced.report.total("bytes_allocated"));
        assert!(top.contains(&total), "{total}\n{top}");
    }
}
