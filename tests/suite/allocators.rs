//! Other allocators than glibc's, in every way in which they get into a program: exact counts against the fixtures' ledgers.

use super::counts::assert_sites;
use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use crate::support::report::functions_of;
use std::path::{Path, PathBuf};

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

fn installed(file: &str, package: &str) -> PathBuf {
    let path = Path::new(LIBRARIES).join(file);
    assert!(path.exists(), "{} is missing: install the Debian package {package}", path.display());
    path
}

/// The sites are exact and nothing is amiss. Totals may hold more than the ledger: allocators and the C library allocate
/// at their start.
fn assert_exact(program: &Program) -> Traced {
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    for name in ["reallocations", "failed"] {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name} of {}", program.exe().display());
    }
    for anomaly in ["lost", "unknown_frees", "double_frees", "mismatched_frees", "dropped_frames"] {
        assert_eq!(traced.report.anomaly(anomaly), 0, "{anomaly} of {}", program.exe().display());
    }
    traced.report.assert_consistent();
    traced
}

/// T25: jemalloc, tcmalloc and mimalloc preloaded: threads that end, every entry, aliases counted once.
#[test]
fn t25_preloaded_allocators() {
    for (file, package) in [
        ("libjemalloc.so.2", "libjemalloc2"),
        ("libtcmalloc.so.4", "libgoogle-perftools4"),
        ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
        ("libmimalloc.so.2", "libmimalloc2.0"),
    ] {
        let library = installed(file, package);
        let program = Program::fixture("portable").env("LD_PRELOAD", &library);
        assert_exact(&program);
        // C++ operators, which these allocators build themselves
        let program = Program::fixture("operators").env("LD_PRELOAD", &library);
        // mimalloc 2.0.9 aborts where an operator must throw
        if file.starts_with("libmimalloc") {
            continue;
        }
        let traced = program.traced();
        assert_eq!(traced.ended.text(), "done\n", "{file}: {}", traced.ended.stderr);
        assert_sites(&traced.report, &program.ledger());
        for anomaly in ["unknown_frees", "double_frees", "mismatched_frees"] {
            assert_eq!(traced.report.anomaly(anomaly), 0, "{anomaly} with {file}");
        }
    }
}

/// T25: linked as a library.
#[test]
fn t25_linked_allocators() {
    for (name, file, package) in [
        ("-ljemalloc", "libjemalloc.so", "libjemalloc-dev"),
        ("-ltcmalloc_minimal", "libtcmalloc_minimal.so", "libgoogle-perftools-dev"),
        ("-lmimalloc", "libmimalloc.so", "libmimalloc-dev"),
    ] {
        installed(file, package);
        let program = Program::new(fixtures::program_with("portable", &["-Wl,--no-as-needed", name])).args(["more"]);
        assert_exact(&program);
    }
}

/// T25: linked into a dynamic and into a static program: the allocator's functions are the program's own.
#[test]
fn t25_allocators_linked_statically() {
    let jemalloc = installed("libjemalloc.a", "libjemalloc-dev");
    let tcmalloc = installed("libtcmalloc_minimal.a", "libgoogle-perftools-dev");
    let archives = [(&jemalloc, &["-lstdc++", "-lm"][..]), (&tcmalloc, &["-lstdc++", "-lm"])];
    for (archive, libraries) in archives {
        for shape in [&[][..], &["-static"]] {
            let archive = archive.to_str().unwrap();
            let flags = [shape, &["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"], libraries].concat();
            let program = Program::new(fixtures::program_with("portable", &flags)).args(["more"]);
            assert_exact(&program);
        }
    }
}

/// T25: musl, dynamic and static.
#[test]
fn t25_musl() {
    for flags in [&[][..], &["-static"]] {
        let program = Program::new(fixtures::musl_program("portable", flags));
        assert_exact(&program);
    }
}

/// Rust programs whose global allocator calls jemalloc's or tcmalloc's own functions, linked statically.
#[test]
fn rust_global_allocators() {
    installed("libjemalloc.a", "libjemalloc-dev");
    installed("libtcmalloc_minimal.a", "libgoogle-perftools-dev");
    let search = format!("-Lnative={LIBRARIES}");
    for flags in [
        &["--cfg", "jemalloc", &search, "-lstatic:-bundle=jemalloc", "-ldylib=stdc++", "-ldylib=m"][..],
        &[&search, "-lstatic:-bundle=tcmalloc_minimal", "-ldylib=stdc++", "-ldylib=m"],
    ] {
        let program = Program::new(fixtures::program_with("global_allocator", flags));
        let traced = program.traced();
        let text = traced.ended.text();
        let figures: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [_, allocations, frees, bytes] = figures[..] else { panic!("{text:?}\n{}", traced.ended.stderr) };
        // Rust's own calls through the chosen allocator; libstdc++ and the runtime use malloc besides
        let report = &traced.report;
        let through = |path: &str| {
            report
                .sites()
                .iter()
                .filter(|site| is_of_global_allocator(site))
                .map(|site| site.pointer(path).unwrap().as_u64().unwrap())
                .sum::<u64>()
        };
        assert_eq!(through("/allocated/objects"), allocations, "{flags:?}");
        assert_eq!(through("/allocated/bytes"), bytes, "{flags:?}");
        assert!(report.total("frees") >= frees, "{flags:?}");
        for anomaly in ["lost", "unknown_frees", "double_frees", "mismatched_frees"] {
            assert_eq!(report.anomaly(anomaly), 0, "{anomaly} with {flags:?}");
        }
    }
}

/// Whether a block is one of Rust's global allocator: its innermost frame is Rust code, and not std's use of the system's
/// allocator for its threads.
fn is_of_global_allocator(site: &serde_json::Value) -> bool {
    let functions = functions_of(site);
    functions.first().is_some_and(|name| name.contains("alloc::") && !name.contains("std::alloc::System"))
}
