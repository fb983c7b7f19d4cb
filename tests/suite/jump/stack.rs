//! Stacks of all shapes, at their end, and without one.

use super::{assert_same, by};
use crate::suite::counts::{TOTALS, assert_sites};
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::report::functions_of;

/// J09: a handler allocates on an alternate stack of what the kernel needs and 1 KiB more.
#[test]
fn j09_a_small_signal_stack_is_large_enough() {
    let program = Program::fixture("small_signal_stack").args(["1024"]);
    assert_eq!(program.plain().text(), "done\n");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
}

/// J10: a program that has come to the end of its stack, and is helped out by its handler, has come as deep as without
/// heaptrace. No call is missing: neither there nor afterwards.
#[test]
fn j10_the_end_of_the_stack_is_where_it_was() {
    let program = Program::fixture("to_the_guard");
    let depths = |text: &str| -> Vec<u64> {
        text.lines().filter_map(|line| line.strip_prefix("depth ")).map(|depth| depth.parse().unwrap()).collect()
    };
    let plain = program.plain();
    let expected = depths(&plain.text());
    assert_eq!(expected.len(), 3);
    let traced_with = |options: &[&str]| {
        let traced = by("jump", &program, options);
        assert!(traced.ended.text().ends_with("done\n"), "{}", traced.ended.stderr);
        for (expected, seen) in expected.iter().zip(depths(&traced.ended.text())) {
            assert!(expected.abs_diff(seen) <= 1, "{seen} frames instead of {expected}: {options:?}");
        }
        traced
    };
    let sampled = traced_with(&["--sample-interval", "512k"]);
    let traced = traced_with(&["--max-depth", "32"]);
    assert_eq!(sampled.report.total("counted_allocations"), traced.report.total("allocations"));
    let report = &traced.report;
    assert!(report.list("/warnings").is_empty(), "{:?}", report.list("/warnings"));
    assert_eq!(report.anomaly("lost"), 0);
    // the first round is at the first depth: each of its levels has allocated and freed
    assert_eq!(report.site_sum(&["descend"], "/allocated/objects"), expected.iter().sum::<u64>());
    assert_eq!(report.site_sum(&["descend"], "/live/objects"), 0);
    assert_eq!(report.site_sum(&["on_fault"], "/allocated/objects"), 3);
    assert_eq!(report.site_sum(&["main"], "/allocated/objects"), 1000);
}

/// J12, J17: realigned frames, frames of any size, 600 frames, 100 KiB of stack below a new leaf.
#[test]
fn j12_j17_stacks_of_all_shapes_are_the_same() {
    for flags in [&[][..], &["-O2", "-fomit-frame-pointer"], &["-O2", "-fno-omit-frame-pointer"]] {
        let program = Program::new(fixtures::program_with("stack_shapes", flags));
        assert_same(&program, &[]);
        let ledger = program.ledger();
        let traced = by("jump", &program, &[]);
        for name in TOTALS {
            assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
        }
        assert_sites(&traced.report, &ledger);
        // 600 frames and what leads to main are more than are walked: 200 allocations and as many frees
        assert_eq!(traced.report.anomaly("truncated_stacks"), 400, "{flags:?}");
        for (outer, times) in [("realigned", 200), ("of_any_size", 200), ("both", 200), ("deep", 400)] {
            assert_eq!(traced.report.site_sum(&["leaf", outer], "/allocated/objects"), times, "{outer} {flags:?}");
        }
        let ends_in_main =
            |at: &[&str]| traced.report.sites_at(at).all(|site| functions_of(site).iter().any(|name| name == "main"));
        assert!(ends_in_main(&["leaf", "both"]) && ends_in_main(&["leaf_0", "above_much"]));
    }
}

/// J17: above a frame that is too large to be copied, calls at one place ask once: with the stacks of frees and without
/// them.
#[test]
fn j17_calls_above_a_large_frame_need_no_stops() {
    let program = Program::fixture("large_frame");
    for options in [&[][..], &["--no-free-stacks"]] {
        let traced = by("jump", &program, options);
        let ledger = program.ledger();
        for name in TOTALS {
            assert_eq!(traced.report.total(name), ledger.total(name), "{name} {options:?}");
        }
        assert_sites(&traced.report, &ledger);
        traced.report.assert_no_anomaly();
        let stops = traced.report.number("/cost/stops");
        assert!(stops < 100, "{stops} stops {options:?}");
    }
}

/// J12: 100,000 levels, each with a block.
#[test]
fn j12_deep_recursion_is_counted() {
    let traced = by("jump", &Program::fixture("recursion").args(["100000"]), &[]);
    let report = &traced.report;
    assert_eq!(traced.ended.code(), 0);
    assert_eq!((report.total("allocations"), report.total("frees")), (100_000, 100_000));
    assert_eq!((report.total("peak_blocks"), report.total("peak_bytes")), (100_000, 10_000_000));
    assert_eq!(report.site_sum(&["descend"], "/freed/objects"), 100_000);
    assert_eq!(report.anomaly("lost"), 0);
}

/// J13: 1,000 fibers, whose stacks begin elsewhere than the thread's, and fibers that leave malloc in its midst and
/// return from it on another thread.
#[test]
fn j13_fibers_go_on_where_they_are_resumed() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("many_fibers", &[&bump]));
    for engine in ["trap", "jump"] {
        let traced = program.traced_with(&["--engine", engine]);
        assert_eq!(traced.report.text("/engine"), engine);
        assert_eq!(traced.ended.text(), "done\n", "{engine}: {}", traced.ended.stderr);
        let ledger = program.ledger();
        assert_sites(&traced.report, &ledger);
        for function in ["fiber_allocate", "moved_allocate"] {
            assert_eq!(traced.report.site_sum(&[function], "/live/objects"), 0, "{engine}: {function}");
        }
        traced.report.assert_no_anomaly();
        traced.report.assert_consistent();
    }
}

/// J16: 64 threads come to new stacks at once, more than can be copied at a time.
#[test]
fn j16_new_stacks_of_all_threads_at_once() {
    let program = Program::fixture("new_stacks");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    // each way through the tree is a stack, and each was gone twice
    let sites: Vec<_> = traced.report.sites_at(&["leaf_allocate"]).collect();
    assert_eq!(sites.len(), 768);
    assert!(sites.iter().all(|site| site["allocated"]["objects"] == 2));
    traced.report.assert_no_anomaly();
}

/// J18: code of no module calls malloc where a library was, and will be again: each is told by its own name.
#[test]
fn j18_a_library_comes_where_code_of_nobody_was() {
    let library = fixtures::library("plugin_one");
    let program = Program::fixture("code_then_library").args([library]);
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "at 1\nat 1\nat 1\ndone\n", "{}", traced.ended.stderr);
    let report = &traced.report;
    let at = ["plugin_one_allocate", "plugin_allocate", "call", "main"];
    assert_eq!(report.site_sum(&at, "/allocated/objects"), 900);
    assert_eq!(report.site_sum(&at, "/allocated/bytes"), 300 * (1000 + 1001 + 1002));
    assert_eq!(report.anomaly("truncated_stacks"), 900);
    let nobodys = |site: &&serde_json::Value| functions_of(site)[0].starts_with("[jit]");
    let bytes: u64 =
        report.sites().iter().filter(nobodys).map(|site| site["allocated"]["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 300 * (2000 + 2001 + 2002));
}
