//! Callers that a walk of their stacks can't trust.

use super::{assert_same, by};
use crate::suite::counts::assert_sites;
use crate::support::program::Program;
use crate::support::report::functions_of;

/// J14: unwind tables lie, words of the stack are no addresses, a page of the stack can't be read. The program goes on
/// and no call is missing; each has its innermost frames, and those below which nothing is wrong have all.
#[test]
fn j14_stacks_that_lie_are_survived() {
    const WORDS: u64 = 25;
    const ROUNDS: u64 = 100;
    let program = Program::fixture("torn_stacks");
    for options in [&[][..], &["--no-free-stacks"], &["--sample-interval", "500"]] {
        let traced = program.traced_with(&[&["--engine", "jump"], options].concat());
        assert_eq!(traced.ended.text(), "done\n", "{options:?}: {}", traced.ended.stderr);
        let (report, ledger) = (&traced.report, program.ledger());
        assert_eq!(report.text("/engine"), "jump");
        for anomaly in ["lost", "unknown_frees", "double_frees"] {
            assert_eq!(report.anomaly(anomaly), 0, "{anomaly} {options:?}");
        }
        if options.first() == Some(&"--sample-interval") {
            continue;
        }
        assert!(report.number("/cost/events_without_stop") > 10_000, "{}", report.0["cost"]);
        // besides the fixture's own: the C library's block for the thread
        assert_eq!(report.total("allocations"), ledger.total("allocations") + 1);
        assert_sites(report, &ledger);
        let blocks = |functions: &[&str]| report.site_sum(functions, "/allocated/objects");
        for liar in ["too_low", "below", "none", "odd", "too_high", "beyond", "far", "by_rbp_below", "by_rbx"] {
            assert_eq!(blocks(&["torn_allocate", liar]), WORDS * ROUNDS, "{liar} {options:?}");
        }
        assert_eq!(blocks(&["torn_allocate", "by_rbp"]), (WORDS + 10) * ROUNDS);
        assert_eq!(blocks(&["torn_allocate", "honest", "with_word", "work", "start_thread"]), WORDS * ROUNDS);
        // above the page that can't be read: whole, or told to be cut off
        for site in report.sites_at(&["hole_allocate", "above_a_hole"]) {
            let functions = functions_of(site);
            let is_whole = functions.get(2..4).is_some_and(|outer| outer == ["work", "start_thread"]);
            assert!(is_whole || site["quality"] == "truncated", "{functions:?}");
        }
        assert_eq!(blocks(&["hole_allocate", "above_a_hole"]), 2 * ROUNDS);
        assert!(blocks(&["hole_allocate", "above_a_hole", "work", "start_thread"]) >= ROUNDS);
    }
}

/// J11: code that keeps values in rbp, and passes return addresses and addresses of the stack as arguments, has the
/// same profile by both engines.
#[test]
fn j11_odd_callers_are_walked() {
    let program = Program::fixture("odd_callers");
    assert_same(&program, &[]);
    let traced = by("jump", &program, &[]);
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["odd_allocate", "with_rbp", "main"], "/allocated/objects"), 2 * 200 * 8);
    assert_eq!(
        traced.report.site_sum(&["odd_allocate", "stacked", "pressed", "main"], "/allocated/objects"),
        2 * 200 * 4
    );
    traced.report.assert_no_anomaly();
}
