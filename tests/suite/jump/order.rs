//! The order in which calls of several threads are told.

use super::by;
use crate::suite::counts::assert_sites;
use crate::support::program::Program;

/// J03: two threads get one address in turn, 100,000 times each, and hand it over by malloc and free alone: no call is lost, no free is a double
/// one, and never are there two of that block.
#[test]
fn j03_one_address_is_traded_by_two_threads() {
    let program = Program::fixture("one_address")
        .args(["100000"])
        .stays_on_trap("has seen calls of calloc, as the first instructions");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "done\n");
    let report = &traced.report;
    assert_sites(report, &program.ledger());
    let of_site = |figure| report.site_sum(&["trade_allocate"], figure);
    assert_eq!(of_site("/allocated/objects"), 200_000);
    assert_eq!(of_site("/freed/objects"), 200_000);
    assert_eq!(of_site("/at_peak/objects"), 1, "the block was live twice");
    // its frees go by the block: each was the allocating thread's own, and the next allocation came after it
    assert_eq!(report.total("frees"), 200_000);
    report.assert_no_anomaly();
    report.assert_consistent();
}

/// J04: of a queue of 100 places never more than 100 blocks are live, and when it was full they were.
#[test]
fn j04_a_bounded_queue_keeps_its_bound() {
    let program = Program::fixture("bounded_queue").args(["25000"]);
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "done\n");
    let report = &traced.report;
    assert_sites(report, &program.ledger());
    let of_site = |figure| report.site_sum(&["queue_allocate"], figure);
    assert_eq!(of_site("/allocated/objects"), 100_000);
    assert_eq!(of_site("/freed/objects"), 100_000);
    assert_eq!(of_site("/live/objects"), 0);
    assert_eq!(of_site("/at_peak/objects"), 100);
    // and one block for each thread
    assert!(report.total("peak_blocks") <= 108, "{} blocks", report.total("peak_blocks"));
    report.assert_no_anomaly();
    report.assert_consistent();
}
