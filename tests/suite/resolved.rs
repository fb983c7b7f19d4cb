//! Allocator functions that no symbol of a function leads to: chosen at run time (IFUNC), labels of assembly code,
//! functions beside malloc that return texts; and programs that allocate by none that is known. What the program would
//! call is probed, or it is said that it is not.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::{Checked, Program, Traced};
use std::path::{Path, PathBuf};

/// What `loses_one` allocates and what of it is lost.
const ALLOCATIONS: u64 = 1001;
const LOST: u64 = 123;

/// Why the jump engine leaves some of these functions alone: they are that short, or their first instructions can't be
/// moved, or something leads into these.
const SHORT: [&str; 4] = [
    "leads into the first instructions",
    "as the code is shorter than a jump",
    "as none of its allocator's functions can be wrapped",
    "as the first instructions can't be moved to make room for a jump",
];

fn knows_short(program: Program) -> Program {
    SHORT.into_iter().fold(program, Program::stays_on_trap)
}

fn libraries() -> [PathBuf; 2] {
    [fixtures::library_with("chosen_allocator", &[]), fixtures::library("untyped_allocator")]
}

/// `loses_one` with a library that heaptrace itself does not get.
fn preloaded(library: &Path) -> Program {
    let preload = format!("LD_PRELOAD={}", library.display());
    Program::new("/usr/bin/env").args([preload.as_ref(), fixtures::program("loses_one").as_os_str()])
}

fn assert_all_seen(program: Program) {
    let program = knows_short(program).input("go\n");
    let traced = program.traced();
    let [allocations, frees] = ["allocations", "frees"].map(|name| traced.report.total(name));
    assert!(allocations >= ALLOCATIONS && allocations - frees >= 1, "{allocations} {frees}: {}", traced.ended.stderr);
    assert_eq!(traced.report.site_sum(&["lose", "allocate"], "/allocated/objects"), ALLOCATIONS - 1);
    traced.report.assert_no_anomaly();
    let checked = program.checked(&[]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    assert_eq!(lost(&checked), LOST, "{}", checked.ended.stderr);
}

/// Bytes that are definitely lost.
fn lost(checked: &Checked) -> u64 {
    checked.report.number("/leaks/definite/bytes")
}

/// Preloaded and linked, bound at once and at the first call, and in static programs, where the program's own start
/// calls the resolvers.
#[test]
fn functions_that_no_symbol_names_as_such_are_seen() {
    for library in libraries() {
        assert_all_seen(preloaded(&library));
        let linked = || Program::new(fixtures::program_linked("loses_one", &[&library]));
        assert_all_seen(linked());
        assert_all_seen(linked().env("LD_BIND_NOW", "1"));
    }
    for kind in ["-static", "-static-pie"] {
        assert_all_seen(Program::new(fixtures::program_with("loses_one", &["-DINSIDE", kind])));
        let without_cfi = ["-DINSIDE", kind, "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
        assert_all_seen(Program::new(fixtures::program_with("loses_one", &without_cfi)));
        assert_all_seen(Program::new(fixtures::program_with("loses_one", &["-DINSIDE", "-DPLAIN", kind])));
    }
}

/// Where they were chosen before heaptrace came, the slots tell.
#[test]
fn functions_that_were_chosen_before_an_attach_are_seen() {
    for library in libraries() {
        let program = Program::fixture("loses_one").env("LD_PRELOAD", &library).env("LD_BIND_NOW", "1");
        let mut running = program.start();
        let pid = running.value("ready").parse().unwrap();
        let tracer = knows_short(Program::new("/bin/true"));
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        running.send("go");
        assert_eq!(running.line(), "done");
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        assert_eq!(traced.report.total("allocations"), ALLOCATIONS, "{}", traced.ended.stderr);
        running.feed(b"");
        running.wait().success();
    }
}

/// What is called in no module has no probe: nothing is judged then, and all are told.
#[test]
fn calls_that_go_where_no_probe_can_be_are_told() {
    let library = fixtures::library_with("chosen_allocator", &["-DUNSEEN"]);
    let program = knows_short(preloaded(&library).input("go\n"));
    let checked = program.checked(&[]);
    assert_eq!(checked.ended.code(), 125, "{}", checked.ended.stderr);
    let traced = program.traced();
    assert!(traced.report.0["warnings"].to_string().contains("which has no probe"), "{}", traced.ended.stderr);
}

/// "heaptrace saw no allocation" of a program that has a heap is no clean bill.
#[test]
fn a_heap_of_which_no_call_was_seen_is_told() {
    let program = Program::fixture("by_break");
    let checked = program.checked(&[]);
    assert_eq!(checked.ended.code(), 125, "{}", checked.ended.stderr);
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0);
    assert!(traced.ended.stderr.contains("heaptrace saw no call of an allocator function"), "{}", traced.ended.stderr);
    // a program that has none has nothing to be told of
    let without = Program::new(fixtures::program_with("by_break", &["-DWITHOUT"]));
    let checked = without.checked(&[]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
    assert!(!without.traced().ended.stderr.contains("no call of an allocator"));
}

/// An allocator's own strdup and its kin: each block is known when it is freed, and has the size of its text.
#[test]
fn texts_that_an_allocator_makes_by_itself_are_seen() {
    let library = fixtures::library("brings_texts");
    let program = Program::new(fixtures::program_linked("texts", &[&library]));
    let program = knows_short(program.stays_on_trap("arguments"));
    let traced = program.traced();
    let numbers: Vec<u64> = traced.ended.text().split_whitespace().map(|number| number.parse().unwrap()).collect();
    let seen = ["allocations", "bytes_allocated", "frees"].map(|name| traced.report.total(name));
    assert_eq!(seen.as_slice(), numbers, "{}", traced.ended.stderr);
    traced.report.assert_no_anomaly();
    // the C library's call malloc, which is what is counted
    let traced = Program::fixture("texts").traced();
    let seen = ["allocations", "frees"].map(|name| traced.report.total(name));
    assert!(seen[0] >= numbers[0] && seen[0] - seen[1] >= numbers[0] - numbers[2], "{seen:?}");
    assert!(traced.report.0.to_string().contains("malloc"));
    traced.report.assert_no_anomaly();
}

/// An allocator's own asprintf, getline and their kin, which hand blocks out through a pointer: each block is known
/// when it is freed, and has the size that the allocator has given it.
#[test]
fn blocks_that_an_allocator_hands_out_through_pointers_are_seen() {
    let lines: String = (0..100).map(|n| "x".repeat(n * 37 % 101 + n) + "\n").collect();
    let library = fixtures::library("brings_lines");
    let program = |exe| Program::new(exe).input(lines.clone()).env("TEXT", "of the environment");
    let program_of_library = program(fixtures::program_linked("lines", &[&library])).stays_on_trap("arguments");
    let program_of_library = knows_short(program_of_library);
    let traced = program_of_library.traced();
    let numbers: Vec<u64> = traced.ended.text().split_whitespace().map(|number| number.parse().unwrap()).collect();
    let seen = ["allocations", "bytes_allocated", "frees"].map(|name| traced.report.total(name));
    assert_eq!(seen.as_slice(), numbers, "{}", traced.ended.stderr);
    assert_eq!(traced.report.total("failed"), 1, "{}", traced.ended.stderr);
    traced.report.assert_no_anomaly();
    // the C library's call malloc and realloc, which is what is counted
    let of_libc = program(fixtures::program("lines")).traced();
    for function in ["asprintf", "vasprintf", "getline", "getdelim", "mi_dupenv_s"] {
        let probes = |traced: &Traced| traced.report.0["allocators"].to_string().contains(&format!("\"{function}\""));
        assert!(probes(&traced) && !probes(&of_libc), "{function}");
    }
    of_libc.report.assert_no_anomaly();
}

/// DT_SYMBOLIC: the library calls its own allocator where the program has another, which all others call.
#[test]
fn a_symbolic_library_s_own_allocator_is_seen() {
    let library = fixtures::library_with("symbolic_library", &["-Wl,-Bsymbolic"]);
    let dynamic = std::process::Command::new("readelf").arg("-d").arg(&library).output().unwrap();
    assert!(String::from_utf8_lossy(&dynamic.stdout).contains("SYMBOLIC"), "{}", library.display());
    let program = Program::new(fixtures::program_linked("own_malloc", &[&library]))
        .stays_on_trap("as the jump engine records the calls of one allocator only");
    let program = knows_short(program);
    let traced = program.traced();
    let count = |function: &str| traced.report.site_sum(&[function], "/allocated/objects");
    assert_eq!((count("allocates_outside"), count("allocates_here")), (300, 701), "{}", traced.ended.stderr);
    traced.report.assert_no_anomaly();
    let checked = program.checked(&[]);
    assert_eq!((checked.ended.code(), lost(&checked)), (23, 77), "{}", checked.ended.stderr);
}
