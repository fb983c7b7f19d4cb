//! J26 to J28: allocators with operators new and delete of their own, which exceptions leave.

use super::{assert_same, by};
use crate::suite::counts::assert_sites;
use crate::support::fixtures;
use crate::support::program::Program;
use std::path::{Path, PathBuf};

fn installed(file: &str) -> PathBuf {
    let path = Path::new("/usr/lib/x86_64-linux-gnu").join(file);
    assert!(path.exists(), "{} is missing: ./test installs the packages of the tests", path.display());
    path
}

/// The fixture with an allocator's library, a statically linked one without.
fn all(arguments: [&str; 2]) -> Vec<Program> {
    let preloaded = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"]
        .map(|library| Program::fixture("own_operators").env("LD_PRELOAD", installed(library)).args(arguments));
    let built_in = Program::new(fixtures::program_with("own_operators", &["-static"])).args(arguments);
    preloaded.into_iter().chain([built_in]).collect()
}

/// Calls of the operators are recorded without stops, exceptions leave them as they would without heaptrace, and both
/// engines tell the same.
#[test]
fn j26_operators_that_throw_are_recorded() {
    for program in all(["4000", "0"]) {
        let plain = program.plain().success().text();
        assert!(plain.starts_with("caught 80 asked 100 depth "), "{plain}");
        let traced = by("jump", &program, &[]);
        assert_eq!(traced.ended.text(), plain, "{}", traced.ended.stderr);
        assert_sites(&traced.report, &program.ledger());
        for anomaly in ["lost", "unknown_frees", "double_frees", "mismatched_frees", "truncated_stacks"] {
            assert_eq!(traced.report.anomaly(anomaly), 0, "{anomaly}: {}", traced.ended.stderr);
        }
        assert_same(&program, &[]);
        assert_same(&program, &["--no-free-stacks"]);
    }
    // it aborts where an operator must throw
    let library = installed("libmimalloc.so.2");
    let program = Program::fixture("aligned_operators").env("LD_PRELOAD", library);
    assert_same(&program, &[]);
}

/// Exceptions that have nothing to do with allocation pass the guards without a stop.
#[test]
fn j27_other_exceptions_make_no_stop() {
    for (program, without) in all(["2000", "100000"]).into_iter().zip(all(["2000", "0"])) {
        let few = by("jump", &without, &[]).report.number("/cost/stops");
        let traced = by("jump", &program, &[]);
        assert!(traced.ended.text().trim_end().ends_with(" others 100000"), "{}", traced.ended.text());
        let stops = traced.report.number("/cost/stops");
        assert!(stops < few + 500, "{few} stops, {stops} with 100000 exceptions");
    }
}

/// A library that throws by an unwinder of its own, which has no name, leaves its operators to the trap engine, and the
/// summary says so.
#[test]
fn j28_an_unwinder_without_a_name_is_told() {
    let jemalloc = installed("libjemalloc_pic.a");
    let whole = ["-Wl,--whole-archive", jemalloc.to_str().unwrap(), "-Wl,--no-whole-archive"];
    let flags = [&whole[..], &["-static-libstdc++", "-static-libgcc", "-lm"]].concat();
    for (stripped, expected) in [(&["-s"][..], 1), (&[], 0)] {
        let library = fixtures::library_with("bundle", &[&flags[..], stripped].concat());
        let program = Program::fixture("own_operators").env("LD_PRELOAD", &library).args(["400", "10"]);
        let program = program.stays_on_trap("from code without symbols");
        let plain = program.plain().success().text();
        let traced = program.traced_with(&["--engine", "jump"]);
        assert_eq!(traced.ended.text(), plain, "{}", traced.ended.stderr);
        assert_sites(&traced.report, &program.ledger());
        let warnings = traced.report.list("/warnings");
        let told = |warning: &&serde_json::Value| warning.to_string().contains("from code without symbols");
        assert_eq!(warnings.iter().filter(told).count(), expected, "{}", traced.ended.stderr);
    }
}
