//! Other allocators than glibc's, in every way in which they get into a program: exact counts against the fixtures'
//! ledgers.

use super::counts::assert_sites;
use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use crate::support::report::{functions_of, plain};
use std::path::{Path, PathBuf};

/// The full tcmalloc has a profiler of its own.
const WALKS: &str = "its allocator may walk the stacks of its callers";

/// A function of mimalloc that is too short to be moved.
const SHORT: &str = "recorded calls of mi_heap_realloc";

fn preloaded(name: &str, library: &Path) -> Program {
    let program = Program::fixture(name).env("LD_PRELOAD", library);
    match library.file_name().and_then(|name| name.to_str()) {
        Some("libtcmalloc.so.4") => program.stays_on_trap(WALKS),
        Some("libmimalloc.so.2") => program.stays_on_trap(SHORT),
        _ => program,
    }
}

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

fn installed(file: &str, package: &str) -> PathBuf {
    let path = Path::new(LIBRARIES).join(file);
    assert!(path.exists(), "{} is missing: install the Debian package {package}", path.display());
    path
}

/// The sites are exact and nothing is amiss. Totals may hold more than the ledger: allocators and the C library
/// allocate at their start.
fn assert_exact(program: &Program) -> Traced {
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    for name in ["reallocations", "failed"] {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name} of {}", program.exe().display());
    }
    for anomaly in ["lost", "unknown_frees", "double_frees", "mismatched_frees", "abandoned_calls"] {
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
        let program = preloaded("portable", &library);
        assert_exact(&program);
        // C++ operators, which these allocators build themselves
        let program = preloaded("operators", &library);
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

/// What an allocator's operators throw is allocated, and freed, beside their own call, whoever links the C++ runtime:
/// one block for each exception of the program's new-handler, and none that is not freed.
#[test]
fn exceptions_of_operator_new_are_counted() {
    let jemalloc = installed("libjemalloc_pic.a", "libjemalloc-dev");
    let both = ["-Wl,--whole-archive", jemalloc.to_str().unwrap(), "-Wl,--no-whole-archive"];
    let bundle =
        fixtures::library_with("bundle", &[&both[..], &["-static-libstdc++", "-static-libgcc", "-lm"]].concat());
    let libraries = [
        installed("libjemalloc.so.2", "libjemalloc2"),
        installed("libtcmalloc.so.4", "libgoogle-perftools4"),
        installed("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
        bundle,
    ];
    for library in libraries {
        let name = library.display();
        let traced = preloaded("bad_alloc", &library).traced();
        let text = traced.ended.text();
        let refused: u64 = text.trim().strip_prefix("refused ").and_then(|n| n.parse().ok()).expect(&text);
        assert!(refused >= 40, "{name}: {text}");
        let report = &traced.report;
        let by_handler =
            report.sites().iter().filter(|site| functions_of(site).iter().any(|name| plain(name) == "refuse"));
        let allocated: u64 = by_handler.map(|site| site["allocated"]["objects"].as_u64().unwrap()).sum();
        assert_eq!(allocated, refused, "{name}");
        let thrown = ["__cxa_allocate_exception"];
        let (allocated, live) =
            (report.site_sum(&thrown, "/allocated/objects"), report.site_sum(&thrown, "/live/objects"));
        assert!(allocated >= refused && live == 0, "{name}: {live} of {allocated} exceptions live");
        for anomaly in ["lost", "unknown_frees", "double_frees", "mismatched_frees"] {
            assert_eq!(report.anomaly(anomaly), 0, "{anomaly} with {name}");
        }
    }
}

/// Aligned operators count the size that was asked for, and only what C++ forbids is an error, whoever provides them;
/// `check` names the sizes and alignments of both calls.
#[test]
fn aligned_operators_are_counted_and_judged() {
    let preloaded = [
        ("libjemalloc.so.2", "libjemalloc2"),
        ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
        ("libmimalloc.so.2", "libmimalloc2.0"),
    ];
    let preloaded = preloaded.map(|(file, package)| Some(installed(file, package)));
    for library in preloaded.iter().chain([&None]) {
        let name = library.as_ref().map_or_else(|| "libstdc++".to_owned(), |library| library.display().to_string());
        let program = Program::fixture("aligned_operators");
        let program = library.iter().fold(program, |program, library| program.env("LD_PRELOAD", library));
        let traced = program.traced();
        assert_sites(&traced.report, &program.ledger());
        assert_eq!(traced.report.list("/findings").len(), 0, "{name}: {}", traced.ended.stderr);
        let checked = super::check::check(&program, &["--leak-kinds", "none"], &[]);
        assert_eq!(checked.verdict(), (0, "clean"), "{name}: {}", checked.ended.stderr);
    }
    let checked = super::check::check(&Program::fixture("aligned_operators"), &[], &["wrong"]);
    assert_eq!(checked.verdict(), (23, "errors"), "{}", checked.ended.stderr);
    let figure = |finding: &serde_json::Value, name| finding[name].as_u64();
    let found: Vec<_> = checked
        .report
        .list("/findings")
        .iter()
        .filter(|finding| !finding["kind"].as_str().unwrap().starts_with("leak"))
        .map(|finding| {
            let line = finding["stack"][0]["line"].as_u64().unwrap();
            let figures = ["size", "given_size", "align", "given_align"].map(|name| figure(finding, name));
            (line, finding["kind"].as_str().unwrap(), figures)
        })
        .collect();
    let line = |site| fixtures::site_line("aligned_operators", site);
    for expected in [
        (line("size"), "sized_delete", [Some(32), Some(33), None, None]),
        (line("size_of_array"), "sized_delete", [Some(32), Some(31), None, None]),
        (line("no_alignment"), "aligned_delete", [Some(32), None, Some(64), None]),
        (line("alignment"), "aligned_delete", [Some(32), None, None, Some(256)]),
    ] {
        assert!(found.contains(&expected), "{expected:?} in {found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    let text = &checked.ended.stderr;
    assert!(text.contains("(32 bytes, aligned to 64 bytes) as one"), "{text}");
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
        assert_exact(&program.stays_on_trap(SHORT));
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

/// Whether a block is one of Rust's global allocator: its innermost frame is Rust code, and not std's use of the
/// system's allocator for its threads.
fn is_of_global_allocator(site: &serde_json::Value) -> bool {
    let functions = functions_of(site);
    functions.first().is_some_and(|name| name.contains("alloc::") && !name.contains("std::alloc::System"))
}
