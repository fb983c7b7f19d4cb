//! Entries and returns that are hard to pair: code made at run time, call sites that others pass, realloc races,
//! further namespaces.

use super::counts::{TOTALS, assert_sites};
use crate::support::fixtures;
use crate::support::program::{Program, engine};

/// T46: code that is made at run time calls malloc. Where breakpoints can stand in it they do while the call lasts, and
/// the program finds its code unchanged.
#[test]
fn t46_malloc_from_code_made_at_run_time() {
    for mode in ["private", "writable"] {
        let program = Program::fixture("jit").args([mode]);
        let traced = program.traced();
        let report = &traced.report;
        assert_eq!(traced.ended.text(), "done\n", "{mode}: {}", traced.ended.stderr);
        let ledger = program.ledger();
        for name in TOTALS {
            assert_eq!(report.total(name), ledger.total(name), "{mode}: {name}");
        }
        report.assert_consistent();
        assert_eq!(report.anomaly("truncated_stacks"), ledger.total("allocations"), "{mode}: no frame is told above");
        for anomaly in ["lost", "abandoned_calls", "unknown_frees"] {
            assert_eq!(report.anomaly(anomaly), 0, "{mode}: {anomaly}");
        }
    }
}

/// T46: what others share is not written to. Calls at stops are counted with their sizes; that their blocks were not
/// seen is said.
#[test]
fn t46_malloc_from_shared_code_is_counted_with_its_size() {
    let program = Program::fixture("jit").args(["shared"]);
    let traced = program.traced();
    let report = &traced.report;
    assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
    let ledger = program.ledger();
    for name in ["allocations", "bytes_allocated", "failed"] {
        assert_eq!(report.total(name), ledger.total(name), "{name}");
    }
    report.assert_consistent();
    // The jump engine needs no breakpoint where a call returns, but it has some calls seen at stops.
    let lost = report.anomaly("lost");
    if engine() == "jump" {
        assert!((1..10).contains(&lost), "{lost}");
    } else {
        assert_eq!(lost, ledger.total("allocations"));
    }
    assert_eq!(report.anomaly("abandoned_calls"), 0);
    assert_eq!(report.anomaly("unknown_frees"), 0, "{:?}", report.list("/findings"));
    let warnings = report.list("/warnings");
    assert!(warnings.iter().any(|w| w.as_str().unwrap().contains("such calls count with their sizes")), "{warnings:?}");
}

/// T26: a call site that seldom calls the allocator costs no stop each time it is passed.
#[test]
fn t26_a_hot_indirect_call_site_is_demoted() {
    let program = Program::fixture("indirect");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.site_sum(&["through_pointer"], "/live/objects"), 4);
    traced.report.assert_no_anomaly();
    let stops = traced.report.number("/cost/stops");
    assert!(stops < 2000, "{stops} stops for 40 allocations and 20000 calls of something else");
}

/// T27: another thread gets the old block's address before realloc has returned.
#[test]
fn t27_realloc_race_for_one_address() {
    let library = fixtures::library("trade_allocator");
    // What calloc is can't be moved.
    let program =
        Program::new(fixtures::program_linked("trade", &[&library])).stays_on_trap("recorded calls of calloc");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    let live = |function| traced.report.site_sum(&[function], "/live/objects");
    assert_eq!([live("giver_allocate"), live("giver_reallocate"), live("taker_allocate")], [0, 0, 25]);
    assert_eq!(traced.report.total("reallocations"), ledger.total("reallocations"));
    traced.report.assert_no_anomaly();
    traced.report.assert_consistent();
}

/// T35: dlmopen brings a second C library with an allocator of its own; another allocator comes by dlopen(RTLD_LOCAL).
#[test]
fn t35_allocators_in_other_namespaces() {
    // The jump engine sees one allocator only.
    let program = Program::fixture("namespaces")
        .args([fixtures::library("plugin_one"), fixtures::library("bump")])
        .stays_on_trap("recorded calls of");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["plugin_one_allocate", "plugin_allocate"], "/live/objects"), 5);
    assert_eq!(traced.report.site_sum(&["local_allocate"], "/live/objects"), 4);
    traced.report.assert_no_anomaly();
    traced.report.assert_consistent();
}
