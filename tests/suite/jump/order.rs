//! The order in which calls of several threads are told.

use super::by;
use crate::suite::counts::assert_sites;
use crate::support::program::{Program, Traced};
use crate::support::report::functions_of;

/// J03: two threads get one address in turn, 100,000 times each, and hand it over by malloc and free alone: no call is
/// lost, no free is a double one, and never are there two of that block.
#[test]
fn j03_one_address_is_traded_by_two_threads() {
    let program = Program::fixture("one_address")
        .args(["100000"])
        .stays_on_trap("recorded calls of calloc, as the first instructions");
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

/// J08: the same where one of the threads gets it by a function that stays with the trap engine: what that one's stops
/// tell comes behind what the other thread's ring tells of before.
#[test]
fn j08_functions_of_both_engines_keep_their_order() {
    let program = Program::fixture("one_address")
        .args(["1200", "realloc"])
        .stays_on_trap("recorded calls of realloc, as a branch leads into the first instructions")
        .stays_on_trap("recorded calls of calloc, as the first instructions");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "done\n");
    let report = &traced.report;
    assert_sites(report, &program.ledger());
    let of = |site, figure| report.site_sum(&[site], figure);
    for site in ["trade_allocate", "trade_resize"] {
        assert_eq!((of(site, "/allocated/objects"), of(site, "/freed/objects")), (1200, 1200), "{site}");
    }
    assert!(
        of("trade_allocate", "/at_peak/objects") + of("trade_resize", "/at_peak/objects") <= 1,
        "the block was live twice"
    );
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

/// J05: on one CPU a thread is left standing wherever it is, in the midst of what it records too, while another one
/// that runs before all others allocates. Both come to their ends, and no call is lost.
#[test]
fn j05_a_thread_is_preempted_anywhere() {
    let program = Program::fixture("preempted");
    let plain = program.plain();
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), plain.text(), "{}", traced.ended.stderr);
    assert!(plain.text().ends_with("idle 1\n"), "{}", plain.text());
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
    traced.report.assert_consistent();
}

/// Each way through the tree of `many_stacks` has as many calls, and the sizes of its blocks and no others.
pub(super) fn assert_each_way(traced: &Traced, levels: u32, calls: u64) {
    let mut ways = 0;
    for site in traced.report.sites_at(&["way_allocate"]) {
        let turns: Vec<_> = functions_of(site).into_iter().filter(|name| name == "left" || name == "right").collect();
        assert_eq!(turns.len(), levels as usize, "{site}");
        // innermost first
        let way = turns.iter().fold(0, |way, turn| way << 1 | u64::from(turn == "right"));
        assert_eq!(site["allocated"]["objects"], calls, "{site}");
        assert_eq!(site["allocated"]["bytes"], calls * (1 + way), "{site}");
        assert_eq!(site["freed"]["objects"], calls, "{site}");
        ways += 1;
    }
    assert_eq!(ways, 1 << levels);
}

/// J15: four threads come to 8,192 new stacks each in an order of its own, while the index that these are looked up in
/// is made anew, larger. Each of them has its calls, and no others.
#[test]
fn j15_many_new_stacks_while_the_index_grows() {
    const LEVELS: u32 = 13;
    let program = Program::fixture("many_stacks");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "done\n");
    assert_each_way(&traced, LEVELS, 4);
    traced.report.assert_no_anomaly();
}
