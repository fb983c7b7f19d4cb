//! Whole stacks where a program or its C library makes them by hand: start code, fibers, signal trampolines.

use super::counts::assert_sites;
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::report::{Report, functions_of, plain};

/// The functions of each site whose innermost one is `function`, innermost first.
fn stacks_of(report: &Report, function: &str) -> Vec<Vec<String>> {
    let at = [function];
    report.sites_at(&at).map(|site| functions_of(site).iter().map(|name| plain(name).to_owned()).collect()).collect()
}

/// musl has no CFI for its start code. The stacks lead to it all the same; that nothing above is missing is a guess.
#[test]
fn t25_musl_stacks_lead_to_the_start_code() {
    for flags in [&["-static"][..], &[], &["-O0"], &["-static", "-O2", "-fno-omit-frame-pointer"]] {
        let program = Program::new(fixtures::musl_program("start_code", flags));
        let traced = program.traced();
        let report = &traced.report;
        assert_eq!(traced.ended.code(), 0, "{flags:?}");
        assert_sites(report, &program.ledger());
        assert_eq!(report.anomaly("truncated_stacks"), 0, "{flags:?}: {:?}", report.sites());
        for anomaly in ["lost", "unknown_frees", "abandoned_calls"] {
            assert_eq!(report.anomaly(anomaly), 0, "{flags:?} {anomaly}");
        }
        // before_main is called by start code itself; main by libc_start_main_stage2, which has no name in libc.so
        let main = &stacks_of(report, "main")[0];
        assert_eq!((main[0].as_str(), main.last().unwrap().as_str(), main.len()), ("main", "_start", 3), "{main:?}");
        let deep = &stacks_of(report, "deeper")[0];
        assert_eq!(deep[..31], vec!["deeper"; 31]);
        assert_eq!(deep[31..], main[..]);
        assert_eq!(stacks_of(report, "in_thread")[0].len(), 2, "the thread's function and musl's start");
        for site in report.sites() {
            assert_eq!(site["quality"], "guessed", "{site}");
        }
    }
}

/// The same program with glibc, whose start code has CFI: nothing is guessed.
#[test]
fn glibc_stacks_lead_to_the_start_code() {
    for flags in [&[][..], &["-static"], &["-static-pie"]] {
        let program = Program::new(fixtures::program_with("start_code", flags));
        let traced = program.traced();
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
        assert_eq!(stacks_of(&traced.report, "main")[0].last().unwrap(), "_start", "{flags:?}");
    }
}

/// Where CFI leads to what no call has left behind, or the code has taken another stack, the stack is cut, and marked:
/// it has no false caller.
#[test]
fn stacks_are_cut_where_cfi_tells_no_caller() {
    let traced = Program::fixture("other_stack").traced();
    let report = &traced.report;
    assert_eq!(traced.ended.code(), 0);
    for (function, from) in [
        ("allocates_elsewhere", "on_other_stack"),
        ("allocates_above_data", "off_by_a_word"),
        ("allocates_above_bytes_of_a_call", "off_by_a_word"),
        ("allocates_above_code", "off_by_a_word"),
    ] {
        assert_eq!(stacks_of(report, function), [[function, from, "[truncated stack]"]]);
        assert!(report.sites_at(&[function]).all(|site| site["quality"] == "truncated"), "{function}");
    }
    let plain = &stacks_of(report, "allocates_plainly")[0];
    assert_eq!((plain[1].as_str(), plain.last().unwrap().as_str()), ("main", "_start"), "{plain:?}");
    assert_eq!(report.anomaly("truncated_stacks"), 12);
}

/// crtbegin, which calls the static destructors of libraries, has no CFI. Its code tells the caller: nothing is
/// guessed.
#[test]
fn stacks_of_static_destructors_are_complete() {
    let library = fixtures::library("static_destructor");
    let traced = Program::fixture("basic").env("LD_PRELOAD", library).traced();
    let sites: Vec<_> = traced.report.sites_at(&["at_the_end"]).collect();
    assert_eq!(sites.len(), 1, "{:?}", traced.report.sites());
    assert_eq!(sites[0]["quality"], "complete", "{}", sites[0]);
    let stack = &stacks_of(&traced.report, "at_the_end")[0];
    assert!(stack.iter().any(|name| name == "__do_global_dtors_aux") && stack.last().unwrap() == "_start", "{stack:?}");
    assert_eq!(traced.report.anomaly("guessed_stacks"), 0);
}

/// Fibers that makecontext() made: exact counts, whole stacks, and none of the calls dropped as stacks change.
#[test]
fn fibers_have_exact_counts_and_whole_stacks() {
    for flags in [&["-O1"][..], &["-O0"], &["-O2", "-static"]] {
        let program = Program::new(fixtures::program_with("fibers", flags));
        let traced = program.traced();
        let report = &traced.report;
        assert_eq!(traced.ended.text(), "done\n");
        let ledger = program.ledger();
        assert_sites(report, &ledger);
        assert_eq!(report.total("frees"), ledger.total("frees"));
        assert_eq!(report.total("bytes_freed"), ledger.total("bytes_freed"));
        report.assert_no_anomaly();
        let mut found = stacks_of(report, "fiber_allocate");
        found.sort();
        assert_eq!(
            found,
            [
                ["fiber_allocate", "first_fiber", "__start_context"],
                ["fiber_allocate", "second_fiber", "__start_context"]
            ],
            "{flags:?}"
        );
    }
}

/// A handler's stack names the trampoline it returns to, goes on with what was interrupted, and no advice about symbols
/// is given that would change nothing.
#[test]
fn t45_the_signal_trampoline_has_its_name() {
    let traced = Program::fixture("fibers").traced();
    let stack = &stacks_of(&traced.report, "handler_allocate")[0];
    assert_eq!(stack[1], "__restore_rt", "{stack:?}");
    assert_eq!(stack[stack.len() - 2..], ["first_fiber", "__start_context"], "{stack:?}");
    assert!(!traced.ended.stderr.contains("without function names"), "{}", traced.ended.stderr);
}
