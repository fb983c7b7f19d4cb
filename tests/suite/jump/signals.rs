//! What handlers and the C library see of a thread that the engine was busy with.

use super::{by, by_with_signals};
use crate::suite::counts::assert_sites;
use crate::suite::guardian::stop_heaptrace;
use crate::support::program::Program;
use crate::support::{fixtures, procfs};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;

/// J19: a thousand signals a second in a loop of malloc and free: each backtrace() in the handler leads to where it was
/// called from, by frames of modules only.
#[test]
fn j19_a_handlers_backtrace_is_whole() {
    let program = Program::fixture("backtrace_in_handler");
    let expected = "seen 1 inside 1 wrong 0\n";
    assert_eq!(program.plain().text(), expected);
    for options in [&[][..], &["--no-free-stacks"], &["--sample-interval", "2000"]] {
        let traced = by("jump", &program, options);
        assert_eq!(traced.ended.text(), expected, "{options:?} {}", traced.ended.stderr);
        assert_eq!(traced.report.anomaly("lost"), 0);
    }
}

/// J20: handlers leave malloc by an exception and by a longjmp, or fork in its midst.
#[test]
fn j20_handlers_leave_malloc() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("out_of_malloc", &[&bump]));
    let traced = by("jump", &program, &[]);
    let text = traced.ended.text();
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["made", made, "left", left] = words[..] else { panic!("{text} {}", traced.ended.stderr) };
    let (made, left): (u64, u64) = (made.parse().unwrap(), left.parse().unwrap());
    let report = &traced.report;
    assert_sites(report, &program.ledger());
    assert_eq!(report.site_sum(&["left_allocate"], "/allocated/objects"), 0);
    // those that were left may have been made, and may have been freed
    let allocated = report.site_sum(&["timed_allocate"], "/allocated/objects");
    assert!((made..=made + left).contains(&allocated), "{allocated} of {made}, {left} left");
    let freed = report.site_sum(&["timed_allocate"], "/freed/objects");
    assert!((made..=allocated).contains(&freed), "{freed} freed of {made}, {left} left");
    let abandoned = report.anomaly("abandoned_calls");
    assert!((200..=200 + left).contains(&abandoned), "{abandoned} abandoned, {left} left");
    for anomaly in ["lost", "unknown_frees", "double_frees", "truncated_stacks"] {
        assert_eq!(report.anomaly(anomaly), 0, "{anomaly}");
    }
    report.assert_consistent();
}

/// J21: a child queues 3,000 realtime signals. None is lost, each has its number and its sender, and all come in order.
#[test]
fn j21_queued_signals_keep_their_order_and_what_they_carry() {
    let program = Program::fixture("queued_signals");
    let expected = "came 1000 1000 1000 wrong 0\n";
    assert_eq!(program.plain().text(), expected);
    for options in [&[][..], &["--sample-interval", "2000"]] {
        let traced = by_with_signals("jump", &program, options, 3000);
        assert_eq!(traced.ended.text(), expected, "{options:?} {}", traced.ended.stderr);
        if options.is_empty() {
            let ledger = program.ledger();
            for name in ["allocations", "frees", "reallocations", "bytes_allocated"] {
                assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
            }
        }
        traced.report.assert_no_anomaly();
    }
}

/// J24: threads are cancelled wherever they are. They are unwound to their cleanup handlers, and of each one call at
/// most is not known to have been made.
#[test]
fn j24_threads_are_cancelled_anywhere() {
    const THREADS: u64 = 300;
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("cancel_anywhere", &[&bump]));
    let traced = by("jump", &program, &[]);
    let text = traced.ended.text();
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["made", made, "cancelled", "300"] = words[..] else { panic!("{text} {}", traced.ended.stderr) };
    let made: u64 = made.parse().unwrap();
    let report = &traced.report;
    assert_sites(report, &program.ledger());
    let allocated = report.site_sum(&["cancelled_allocate"], "/allocated/objects");
    assert!((made..=made + THREADS).contains(&allocated), "{allocated} of {made}");
    let freed = report.site_sum(&["cancelled_allocate"], "/freed/objects");
    assert!((made..=allocated).contains(&freed), "{freed} freed of {made}");
    assert!(report.anomaly("abandoned_calls") <= THREADS, "{}", report.0["anomalies"]);
    for anomaly in ["lost", "unknown_frees", "double_frees", "truncated_stacks"] {
        assert_eq!(report.anomaly(anomaly), 0, "{anomaly}");
    }
    report.assert_consistent();
}

/// J24: a process is stopped and continued sixty times in the midst of its calls. Each thread goes on each time, the
/// handler of SIGCONT runs once each time.
#[test]
fn j24_a_process_is_stopped_and_continued() {
    let program = Program::fixture("stopped_and_continued");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "continued 60\n", "{}", traced.ended.stderr);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
}

/// J22: malloc faults in a broken heap. The handler's backtrace() is what it is without heaptrace, to the instruction.
#[test]
fn j22_a_fault_in_malloc_has_a_whole_backtrace() {
    let program = Program::fixture("broken_heap").args(["fault"]);
    let plain = program.plain();
    assert_eq!(plain.code(), 9);
    assert!(plain.text().starts_with("signal 11 depth "), "{}", plain.text());
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), plain.text());
    assert_eq!(traced.ended.code(), 9);
}

/// J23: the C library ends a program that frees twice, with the same words.
#[test]
fn j23_an_abort_in_free_says_the_same() {
    let program = Program::fixture("broken_heap").args(["twice"]);
    let said = || std::fs::read_to_string(program.folder().join("said")).unwrap();
    let plain = program.plain();
    assert_eq!(plain.status.signal(), Some(Signal::SIGABRT as i32));
    let expected = said();
    assert!(expected.contains("double free"), "{expected}");
    let traced = by("jump", &program, &[]);
    assert_eq!(crate::support::checks::shell_status(&traced.ended.status), 128 + Signal::SIGABRT as i32);
    assert_eq!(said(), expected);
    assert_eq!(traced.report.anomaly("double_frees"), 1);
    assert_eq!(traced.report.anomaly("lost"), 0);
}

/// J25: a program with all signals blocked, and a handler for SIGTRAP, comes to new stacks and fills its ring while
/// heaptrace stands still: the stop that the engine asks for by int3 waits for heaptrace, and neither the mask nor the
/// handler notices.
#[test]
fn j25_all_signals_are_blocked() {
    for mode in ["handled", "blocked", "alone", "ignored"] {
        let program = Program::fixture("sigtrap").args([mode, "100000", "wait"]);
        let mut running = program.start_traced(&["--engine", "jump"]);
        let pid: i32 = running.value("ready").parse().unwrap();
        stop_heaptrace(&running);
        running.send("go");
        procfs::wait_until("the ring is full", || procfs::state(pid) == Some('t'));
        running.signal(Signal::SIGCONT);
        assert_eq!(running.line(), format!("kept {mode}"));
        let traced = program.collect(running.wait().success());
        let report = &traced.report;
        assert_eq!(report.text("/engine"), "jump", "{}", traced.ended.stderr);
        assert_sites(report, &program.ledger());
        report.assert_no_anomaly();
        let ways = report.sites_at(&["pair"]).filter(|site| site["allocated"]["objects"] != 0);
        assert_eq!(ways.count(), 1 << 10);
    }
}
