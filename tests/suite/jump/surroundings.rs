//! Programs that change what they run in after they came to the engine: filters, mappings, thread pointers, children.

use super::by;
use crate::suite::attach::{assert_victim_well, start_victim};
use crate::suite::counts::{TOTALS, assert_sites};
use crate::support::fixtures;
use crate::support::leakcheck::{Amount, Found};
use crate::support::ledger::Ledger;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use std::path::Path;

/// J38: system calls are filtered after the process came to the engine. It survives, also new places, new threads and a
/// detach, and nothing is missing.
#[test]
fn j38_a_filter_comes_later() {
    for filter in ["executable", "unknown"] {
        let program = Program::fixture("late_filter").args([filter]);
        assert_eq!(program.plain().text(), "end\n", "{filter}");
        let traced = by("jump", &program, &[]);
        assert_eq!(traced.ended.text(), "end\n", "{filter}: {}", traced.ended.stderr);
        assert_eq!(traced.ended.code(), 0);
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// J38: such a process is let go, and lives.
#[test]
fn j38_a_filtered_process_is_let_go() {
    for filter in ["executable", "unknown"] {
        let program = Program::fixture("late_filter").args([filter, "wait"]);
        let mut running = program.start_traced(&["--engine", "jump"]);
        let pid: i32 = running.value("ready").parse().unwrap();
        procfs::order(pid, "detach");
        // What stands in for the default action of SIGTRAP stays, as it can't be taken out by a system call: it lies in
        // the program's own file.
        let is_clean = || {
            let is_library = |path: &Path| path.to_string_lossy().contains("libc");
            procfs::text_differences(pid).iter().all(|(path, _)| !is_library(path))
        };
        let is_free = || procfs::threads(pid).into_iter().all(|thread| procfs::tracer_of(thread) == 0);
        procfs::wait_until("it is let go", || is_free() && is_clean());
        running.send("go on");
        assert_eq!(running.line(), "done", "{filter}");
        running.feed(b"");
        assert_eq!(running.line(), "end", "{filter}");
        let traced = program.collect(running.wait().success());
        assert_eq!(traced.report.text("/engine"), "jump");
        assert_eq!(traced.report.site_sum(&["many_places"], "/allocated/objects"), 1000);
    }
}

/// J40: a program unmaps what it does not know, the engine's memory among it. It goes on, its handler sees no fault,
/// and all of its calls are seen: from then on at stops, which is told.
#[test]
fn j40_what_is_ours_is_unmapped() {
    for what in ["shared", "code", "all"] {
        let program = Program::fixture("unmaps_strangers").args([what]).stays_on_trap("became unusable");
        assert_eq!(program.plain().text(), "unmapped 0\n");
        // and where the routine's shortest parts are what finds it gone
        let sampled = program.traced_with(&["--engine", "jump", "--sample-interval", "512k"]);
        assert_eq!(sampled.ended.code(), 0, "{what}: {}", sampled.ended.stderr);
        assert_eq!(sampled.report.total("counted_allocations"), program.ledger().total("allocations"), "{what}");
        let traced = program.traced_with(&["--engine", "jump"]);
        let text = traced.ended.text();
        assert!(text.starts_with("unmapped ") && text != "unmapped 0\n", "{what}: {text} {}", traced.ended.stderr);
        assert_eq!(traced.ended.code(), 0, "{what}");
        assert_eq!(traced.report.text("/engine"), "jump");
        let (seen, made) = (traced.report.total("allocations"), program.ledger().total("allocations"));
        let told = traced
            .report
            .list("/warnings")
            .iter()
            .any(|told| told.to_string().contains("has the program unmapped it?"));
        assert!(told, "{what}: {:?}", traced.report.list("/warnings"));
        assert_eq!(seen, made, "{what}");
        for anomaly in ["lost", "unknown_frees", "double_frees"] {
            assert_eq!(traced.report.anomaly(anomaly), 0, "{what}: {anomaly}");
        }
    }
}

/// J41: a thread has another thread pointer, by turns.
#[test]
fn j41_the_thread_pointer_changes() {
    for args in [&[][..], &["alien"]] {
        let program = Program::fixture("other_thread_pointer").args(args);
        let traced = by("jump", &program, &[]);
        assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
        let ledger = program.ledger();
        for name in TOTALS {
            assert_eq!(traced.report.total(name), ledger.total(name), "{name} {args:?}");
        }
        assert_sites(&traced.report, &ledger);
        traced.report.assert_no_anomaly();
    }
}

/// J48: what the engine keeps of addresses, in its memory and where the routine was on the stack, holds no block.
#[test]
fn j48_blocks_named_by_the_engine_alone_are_lost() {
    let program = Program::fixture("named_nowhere");
    let checked = program.checked(&["--engine", "jump"]);
    assert_eq!(checked.report.text("/engine"), "jump");
    assert!(checked.report.number("/cost/events_without_stop") > 400);
    let found = Found::from_report(&checked.report);
    let bytes = (100..400).sum::<u64>() + (5000..5100).sum::<u64>() + (200..250).sum::<u64>();
    let [definite, indirect, possible, reachable] = found.totals();
    assert_eq!(definite, Amount { blocks: 450, bytes });
    assert_eq!((indirect, possible), (Amount::default(), Amount::default()));
    assert_eq!(reachable, Amount { blocks: 20, bytes: 20 * 70 });
}

/// J33, J34: children that are forked while others allocate have their own calls, all of them; those of children in
/// vfork are the parent's.
#[test]
fn j33_j34_children_are_counted_exactly() {
    const FIGURES: [&str; 4] = ["allocations", "frees", "bytes_allocated", "bytes_freed"];
    let program = Program::fixture("fork_in_threads");
    let traced = by("jump", &program, &[]);
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["borrower_allocate"], "/freed/objects"), 100);
    traced.report.assert_no_anomaly();

    // the threads have just ended when the children in vfork come: one of these was taken for a process of its own now
    // and then
    let each = program.outside("each.%p.json");
    let ended = program.start_traced(&["--engine", "jump", "-f", "-o", each.to_str().unwrap()]).wait();
    let traced = program.collect(ended);
    assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
    let mut children = 0;
    for entry in std::fs::read_dir(each.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("each.") {
            continue;
        }
        let report = Report::read(&path, &traced.ended);
        report.assert_no_anomaly();
        assert_eq!(report.text("/engine"), "jump");
        let Some(number) = report.number("/exit/code").checked_sub(30) else {
            // the parent: what the C library allocates for a thread is not in its account
            let ledger = program.ledger();
            assert_sites(&report, &ledger);
            assert_eq!(report.total("frees"), ledger.total("frees"));
            continue;
        };
        let ledger = Ledger::read(Path::new(&format!("{}.{number}", program.outside("ledger").display())));
        for name in FIGURES {
            assert_eq!(report.total(name), ledger.total(name), "{name} of child {number}");
        }
        assert_sites(&report, &ledger);
        assert!(report.number("/cost/events_without_stop") > 5000, "{}", report.0["cost"]);
        children += 1;
    }
    assert_eq!(children, 3);
}

/// J43: where the kernel has no membarrier(2), the code of eight threads that are in the midst of it is changed and
/// restored all the same, by waiting.
#[test]
fn j43_code_is_changed_without_membarrier() {
    let program = Program::fixture("victim").args(["8"]);
    let (mut victim, pid) = start_victim(&program);
    let tool = fixtures::program("without_membarrier");
    for _ in 0..3 {
        let tracer = Program::new("/bin/true").env("HEAPTRACE_ENGINE", "jump");
        let attached = tracer.start_attached_under(&[tool.to_str().unwrap()], pid);
        procfs::wait_until_answered(pid);
        victim.send("still alive?");
        assert_eq!(victim.line(), "alive");
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
        assert_eq!(traced.report.anomaly("lost"), 0);
        procfs::assert_left_as_it_was(pid);
    }
    assert_victim_well(victim, pid);
}
