//! What programs map by themselves (`--mmap`): by the ledger of a fixture, which the kernel's maps prove, and by
//! Python's account of its arenas.

use super::counts::assert_sites;
use crate::support::checks::pprof;
use crate::support::fixtures;
use crate::support::ledger::Ledger;
use crate::support::procfs;
use crate::support::program::{Program, Traced};
use crate::support::python::python;
use crate::support::report::Report;
use serde_json::Value;
use std::path::Path;

/// What a ledger and a report both have, and the peak, which a fixture of several threads can't tell.
const TOTALS: [&str; 8] =
    ["allocations", "frees", "reallocations", "failed", "bytes_allocated", "bytes_freed", "live_blocks", "live_bytes"];
const PEAK: [&str; 2] = ["peak_blocks", "peak_bytes"];

fn assert_totals(report: &Report, ledger: &Ledger, names: &[&str]) {
    let difference = |name: &&&str| report.total(name) != ledger.total(name);
    let shown = |name: &&str| format!("{name}: heaptrace {}, ledger {}", report.total(name), ledger.total(name));
    let wrong: Vec<_> = names.iter().filter(difference).map(shown).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Traces it with `--mmap`: the report must be the ledger's.
fn assert_exact(program: &Program, names: &[&str]) -> Traced {
    let traced = program.traced_with(&["--mmap"]);
    let ledger = program.ledger();
    assert_totals(&traced.report, &ledger, names);
    assert_sites(&traced.report, &ledger);
    traced.report.assert_consistent();
    traced.report.assert_no_anomaly();
    traced
}

/// The functions of the fixture that map.
const OWN: [&str; 6] = ["whole", "holes", "several", "of_files", "moves", "kept"];

fn bytes_of(report: &Report, functions: &[&str]) -> u64 {
    functions.iter().map(|function| report.site_sum(&[function], "/allocated/bytes")).sum()
}

/// All that was mapped, by whomever.
fn mapped(report: &Report) -> u64 {
    report.number("/mapped/allocated/bytes")
}

fn fixture(word: &str) -> Program {
    Program::fixture("mappings").args([word])
}

/// Parts of mappings, several at a time, files in between, moves, failures; and beside them malloc's own, which don't
/// count.
#[test]
fn mappings_are_those_of_the_ledger() {
    let program = fixture("single");
    let said = program.plain().text();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(matches!(words[..], ["kernel", kernel, "ledger", ledger] if kernel == ledger), "{said}");
    let traced = assert_exact(&program, &[&TOTALS[..], &PEAK].concat());
    let report = &traced.report;
    assert_eq!(mapped(report), bytes_of(report, &OWN));
    assert_eq!(report.site_sum(&["kept"], "/live/bytes"), 100 * 4096);
    assert_eq!(report.number("/mapped/live/bytes"), words[1].parse::<u64>().unwrap());
    let family = pprof(&["-tags"], &[&traced.profile]);
    assert!(family.contains("family: Total") && family.contains("mmap"), "{family}");
    let text = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("of the peak: by mmap and its kin"), "{text}");
    assert!(text.contains("what the program itself had mapped"), "{text}");
}

#[test]
fn mappings_of_musl_and_static_programs() {
    let programs = [
        // the dynamic linker has malloc map a page, before any function with a probe is called
        (fixtures::musl_program("mappings", &[]), 4096),
        (fixtures::musl_program("mappings", &["-static"]), 0),
        (fixtures::program_with("mappings", &["-static"]), 0),
    ];
    for (program, of_the_linker) in programs {
        let program = Program::new(program).args(["single"]);
        let traced = program.traced_with(&["--mmap"]);
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_consistent();
        let excess = mapped(&traced.report) - bytes_of(&traced.report, &OWN);
        assert!(excess <= of_the_linker, "{}: {excess}", program.exe().display());
    }
}

#[test]
fn the_program_break_is_the_programs_and_mallocs() {
    assert_exact(&fixture("breaks"), &[&TOTALS[..], &PEAK].concat());
    let program = Program::new(fixtures::musl_program("mappings", &["-static"])).args(["breaks"]);
    let traced = program.traced_with(&["--mmap"]);
    assert_totals(&traced.report, &program.ledger(), &TOTALS);
    // sbrk's call of brk and the program's own have one module here
    let program = Program::new(fixtures::program_with("mappings", &["-static"])).args(["breaks"]);
    let traced = program.traced_with(&["--mmap"]);
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.number("/mapped/live/bytes"), 4096);
}

/// Threads that get each other's addresses as soon as they are free.
#[test]
fn mappings_of_threads() {
    for _ in 0..super::rounds(2) {
        let program = fixture("threads");
        let traced = program.traced_with(&["--mmap"]);
        let (report, ledger) = (&traced.report, program.ledger());
        assert_sites(report, &ledger);
        assert_totals(report, &ledger, &["reallocations", "failed"]);
        assert_eq!(mapped(report), 4 * 200 * (3 + 7) * 4096, "only they map");
        assert_eq!((report.number("/mapped/live/bytes"), report.site_sum(&["strand"], "/live/objects")), (0, 0));
        report.assert_consistent();
        report.assert_no_anomaly();
    }
}

/// What an allocator maps for its blocks is its own: of the program's, as declared, and of a library.
#[test]
fn what_allocators_map_does_not_count() {
    let program = fixture("pool");
    let traced = program.traced_with(&["--mmap", "--alloc-fn", "arena_get"]);
    assert_totals(&traced.report, &program.ledger(), &TOTALS);
    assert_sites(&traced.report, &program.ledger());
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    assert!(Path::new(library).exists(), "install the Debian package libjemalloc2");
    let program = fixture("single").env("LD_PRELOAD", library);
    let traced = program.traced_with(&["--mmap"]);
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(mapped(&traced.report), bytes_of(&traced.report, &OWN));
    traced.report.assert_consistent();
}

/// Nothing of it is there unless it is asked for.
#[test]
fn mappings_are_recorded_only_if_that_is_asked_for() {
    let traced = fixture("single").traced();
    assert_eq!(traced.report.0["mapped"], Value::Null);
    assert_eq!(traced.report.site_sum(&["kept"], "/allocated/objects"), 0);
    assert!(!traced.ended.stderr.contains("mmap"), "{}", traced.ended.stderr);
}

/// Memory from before is not known, and may be unmapped.
#[test]
fn mappings_of_an_attached_process() {
    let program = fixture("late");
    let mut running = program.start();
    running.value("ready");
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&["--mmap"], running.pid());
    procfs::wait_until_answered(running.pid());
    running.send("go");
    running.wait().success();
    let traced = tracer.collect(attached.wait().success());
    assert_sites(&traced.report, &program.ledger());
    assert_totals(&traced.report, &program.ledger(), &["bytes_allocated", "bytes_freed", "live_bytes"]);
    traced.report.assert_no_anomaly();
}

/// What is mapped for good is no leak.
#[test]
fn what_stays_mapped_is_no_leak() {
    let program = fixture("pool");
    let checked = program.checked(&["--mmap"]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
    assert_eq!(checked.report.site_sum(&["kept"], "/live/bytes"), 100 * 4096);
    assert_eq!(checked.report.text("/verdict/result"), "clean");
}

/// A sample of blocks has all mappings, and none of malloc's own, whichever calls of malloc are not recorded.
#[test]
fn mappings_beside_a_sample() {
    let program = fixture("single");
    for engine in ["trap", "jump"] {
        let traced = program.traced_with(&["--mmap", "--engine", engine, "--sample-interval", "256k"]);
        let (report, ledger) = (&traced.report, program.ledger());
        for function in OWN {
            let bytes = bytes_of(report, &[function]);
            assert_eq!(bytes, ledger.sites[function]["bytes_allocated"], "{engine}: {function}");
        }
        assert_eq!(mapped(report), bytes_of(report, &OWN), "{engine}");
    }
}

/// A trace has them: what is made of it afterwards is what the run made.
#[test]
fn mappings_in_a_trace() {
    let program = fixture("single");
    let (trace, again) = (program.outside("mappings.fxt.zst"), program.outside("again.json"));
    let traced = program.traced_with(&["--mmap", "--trace", trace.to_str().unwrap()]);
    let converted = ["convert", trace.to_str().unwrap(), "-o", again.to_str().unwrap()];
    let ended = program.start_heaptrace(converted).wait().success();
    let again = Report::read(&again, &ended);
    for part in ["/totals", "/sites", "/mapped", "/histograms"] {
        assert_eq!(again.0.pointer(part), traced.report.0.pointer(part), "{part}");
    }
}

/// Python maps arenas for its objects, and counts them: `arena` is how often, and how many there were at most.
const ARENAS: &str = "import sys
many = [(str(n), n) for n in range(300000)]
del many
sys._debugmallocstats()";

#[test]
fn arenas_of_python() {
    let exe = python().arg("-c").arg("import sys, os; print(os.path.realpath(sys.executable))").output().unwrap();
    let exe = String::from_utf8(exe.stdout).unwrap();
    let program = Program::new(exe.trim()).args(["-c", ARENAS]);
    let traced = program.traced_with(&["--mmap"]);
    let told = |what: &str| -> u64 {
        let line = traced.ended.stderr.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what}"));
        line.rsplit('=').next().unwrap().trim().replace(',', "").parse().unwrap()
    };
    let (arenas, most) = (told("# arenas allocated total"), told("# arenas highwater mark"));
    assert!(most >= 10, "{most}");
    // it maps stacks for its own frames, too
    let sites = || traced.report.sites_at(&["_PyObject_ArenaMmap", "new_arena"]);
    let sum = |pointer: &str| sites().map(|site| site.pointer(pointer).and_then(Value::as_u64).unwrap()).sum::<u64>();
    assert_eq!(sum("/allocated/objects"), arenas);
    assert!(sum("/at_peak/objects") == most, "{} at the peak, {most} said", sum("/at_peak/objects"));
}
