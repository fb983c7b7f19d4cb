//! `--sample-interval`: what a sample says of a program that keeps its own account.

use crate::support::ledger::Ledger;
use crate::support::program::{Program, Traced};

/// Far more than chance does: five standard errors.
const FAR: f64 = 5.0;

fn sampled(program: &Program, interval: &str) -> (Traced, Ledger) {
    let traced = program.traced_with(&["--sample-interval", interval]);
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
    traced.report.assert_no_anomaly();
    assert_eq!(traced.report.list("/findings").len(), 0, "a free of what was not recorded is no error");
    (traced, program.ledger())
}

#[test]
fn estimates_agree_with_the_ledger_within_their_error() {
    let program = Program::fixture("sampled");
    let (traced, ledger) = sampled(&program, "2k");
    let error = traced.report.number("/sampling/standard_error") as f64;
    assert_eq!(traced.report.number("/sampling/interval"), 2048);
    let allocated = ledger.total("bytes_allocated") as f64;
    assert!(error > allocated / 1000.0 && error < allocated / 20.0, "{error} of {allocated}");
    for name in ["bytes_allocated", "bytes_freed", "live_bytes", "peak_bytes"] {
        let (told, truth) = (traced.report.total(name) as f64, ledger.total(name) as f64);
        assert!((told - truth).abs() < FAR * error, "{name}: {told} ± {error}, the ledger has {truth}");
    }
    // 3,000 blocks of 48 bytes: each is picked with p = 0.0232, so that the estimate's standard error is 6.5 / 0.0232 * sqrt(3000 p).
    let of_small = traced.report.site_sum(&["small"], "/allocated/objects") as f64;
    assert!((of_small - 3000.0).abs() < FAR * 356.0, "{of_small} blocks of 48 bytes, not 3000");
    for name in ["allocations", "frees", "live_blocks"] {
        let (told, truth) = (traced.report.total(name) as f64, ledger.total(name) as f64);
        assert!((told - truth).abs() < truth * 0.9, "{name}: {told}, the ledger has {truth}");
    }
    // 3,000 of 204.5 bytes on average: p = 0.095; grow has none, and frees of others come after allocations of others.
    let temporary = traced.report.total("temporary") as f64;
    assert!((temporary - 3000.0).abs() < FAR * 170.0, "{temporary} temporary blocks, not 3000");
    assert!(traced.ended.stderr.contains("Sampled"), "{}", traced.ended.stderr);
    let events = traced.report.number("/cost/events");
    assert!(events > 3000 * 4, "the program stops at every call: {events} events");
}

/// Each block that was picked is found again when it is freed.
#[test]
fn a_picked_block_s_free_is_matched() {
    let program = Program::fixture("sampled").args(["all"]);
    let (traced, ledger) = sampled(&program, "1k");
    assert_eq!((ledger.total("live_blocks"), traced.report.total("live_blocks")), (0, 0));
    assert_eq!(traced.report.total("live_bytes"), 0);
    assert!(traced.report.total("bytes_allocated") > 0);
    assert_eq!(traced.report.total("bytes_allocated"), traced.report.total("bytes_freed"));
}

/// One byte in one byte: every block but some of no bytes.
#[test]
fn the_smallest_interval_records_all() {
    let program = Program::fixture("sampled");
    let (traced, ledger) = sampled(&program, "1");
    let (told, truth) = (traced.report.total("bytes_allocated") as f64, ledger.total("bytes_allocated") as f64);
    assert!((told - truth).abs() / truth < 1e-3, "{told}, not {truth}");
}

#[test]
fn what_needs_every_block_is_refused_before_the_program_starts() {
    let program = Program::fixture("sampled");
    let refused = program.start_heaptrace(["check", "--sample-interval", "4k", "/bin/true"]).wait();
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("check needs every block"), "{}", refused.stderr);
}
