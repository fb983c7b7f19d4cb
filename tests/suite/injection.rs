//! T43: a panic, or an error, at each call of the edge to the kernel. Whatever breaks in heaptrace, the program lives
//! on with its code restored, heaptrace waits for its own child and says what became of it.
//!
//! The failures are ordered by an environment variable that only builds with debug assertions know
//! (`tracer/injection.rs`): in others the tests are ignored, and say so.

use super::attach::{assert_victim_well, start_victim};
use crate::support::procfs;
use crate::support::program::{Program, engine};
use crate::support::report::Report;
use crate::support::running::Ended;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

/// The numbers of the calls at which something goes wrong: each of the first ones, where start and attach are, then
/// ever fewer. `HEAPTRACE_TEST_FACTOR=10` takes ten times as many.
fn calls(dense: u64, last: u64) -> Vec<u64> {
    let factor = u64::from(crate::suite::rounds(1));
    let mut numbers = Vec::new();
    let mut at = 1;
    while at < last {
        numbers.push(at);
        at += (at / (dense * factor)).max(1);
    }
    numbers
}

fn order(kind: &str, call: u64) -> String {
    format!("{kind}:{call}")
}

/// Fails unless heaptrace failed, and said what became of the program: one of `fates`.
fn assert_broken_off(ended: &Ended, what: &str, fates: &[&str]) {
    assert_eq!(ended.code(), 125, "{what}: {}", ended.stderr);
    assert!(fates.iter().any(|fate| ended.stderr.contains(fate)), "{what}: {}", ended.stderr);
    assert!(!ended.stderr.contains("left damaged"), "{what}: {}", ended.stderr);
}

/// A failure may keep the program from the jump engine in any way.
const WHATEVER: &str = "";

const RUNS_ON: &str = "runs on with its code restored";

/// Numbers of calls for [`run_with`]. The jump engine needs the most calls where it comes, and few once it is there:
/// each of those is among them, whose number is looked for by halves.
fn numbers() -> Vec<u64> {
    if engine() == "trap" {
        return calls(12, 6000);
    }
    let fails = |call: u64| {
        let program = Program::fixture("peak").env("HEAPTRACE_INJECT", order("panic", call));
        program.start_traced(&[]).wait().code() != 0
    };
    let (mut low, mut high) = (1, 20_000);
    assert!(!fails(high), "there are more calls");
    while low < high {
        let middle = u64::midpoint(low, high);
        if fails(middle) { low = middle + 1 } else { high = middle }
    }
    let late = low * 9 / 10;
    let mut numbers = calls(60, late);
    numbers.extend(late..low + 5);
    numbers.push(low * 2);
    numbers
}

/// `run`: a program that has begun always comes to its own end, with its own account right; one that has not begun is
/// not begun at all.
fn run_with(kind: &str) {
    let (mut broken, mut finished, mut never_begun, mut kept) = (0, 0, 0, 0);
    for call in numbers() {
        let what = order(kind, call);
        let program = Program::fixture("peak").env("HEAPTRACE_INJECT", &what).stays_on_trap(WHATEVER);
        let ended = program.start_traced(&[]).wait();
        if ended.text().is_empty() {
            never_begun += 1;
            assert!(!program.outside("ledger").exists(), "{what}");
            assert_ne!(ended.code(), 0, "{what}");
            continue;
        }
        assert_eq!(ended.text(), "done\n", "{what}: {}", ended.stderr);
        assert_eq!(program.ledger().total("live_blocks"), 30, "{what}");
        if ended.code() == 0 {
            finished += 1;
            program.collect(ended);
        } else {
            broken += 1;
            assert_broken_off(&ended, &what, &[RUNS_ON, "the process has ended"]);
            kept += u32::from(program.report_path().exists() && is_true_so_far(&program, ended, &what));
        }
    }
    // there is little to keep before the jump engine comes, and it needs few calls once it is there: 9 to 15 by panics,
    // as stops happen to come, and fewer by errors, which it gets over
    let least = if engine() == "jump" { 0 } else { 10 };
    assert!(kept > least && kept <= broken, "{kept} profiles of {broken} that broke off");
    // the first calls prepare the start; the last numbers are beyond the end
    assert!(never_begun > 3 && broken > 10 && finished > 0, "{never_begun} {broken} {finished}");
}

/// What was recorded before tracing broke off is in the profile, which says that it is not all.
fn is_true_so_far(program: &Program, ended: Ended, what: &str) -> bool {
    let report = program.collect(ended).report;
    assert_eq!(report.0["complete"], false, "{what}");
    assert!(report.total("allocations") <= program.ledger().total("allocations"), "{what}");
    report.assert_consistent();
    let warnings = report.list("/warnings");
    assert!(
        warnings.iter().any(|text| text.as_str().is_some_and(|text| text.contains("tracing stopped early"))),
        "{what}: {warnings:?}"
    );
    report.total("allocations") > 0
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_panics_under_run() {
    run_with("panic");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_errors_under_run() {
    run_with("error");
}

/// `run -f`: a program that forks comes to its own end, and so do its children.
fn run_tree_with(kind: &str) {
    let (mut broken, mut finished) = (0, 0);
    for call in calls(4, 12_000) {
        let what = order(kind, call);
        let program = Program::fixture("tree").args(["many", "4"]).env("HEAPTRACE_INJECT", &what);
        let ended = program.start_traced(&["-f"]).wait();
        if ended.text().is_empty() {
            assert!(!program.outside("ledger").exists(), "{what}");
            assert_ne!(ended.code(), 0, "{what}");
            continue;
        }
        assert_eq!(ended.text(), "children 4\n", "{what}: {}", ended.stderr);
        if ended.code() == 0 {
            finished += 1;
        } else {
            broken += 1;
            assert_broken_off(&ended, &what, &[RUNS_ON, "the process has ended"]);
        }
    }
    // most errors are got over
    assert!(broken > 0 && finished > 0, "{broken} {finished}");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_panics_under_run_of_a_tree() {
    run_tree_with("panic");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_errors_under_run_of_a_tree() {
    run_tree_with("error");
}

/// `run --duration` with threads that check themselves, let go in the middle: they work on, untraced, on intact code.
fn run_for_a_while_with(kind: &str) {
    let mut broken = 0;
    for call in calls(2, 20_000) {
        let what = order(kind, call);
        let program = Program::fixture("victim").args(["3", "churn"]).env("HEAPTRACE_INJECT", &what);
        let mut running = program.start_traced(&["--duration", "150ms"]);
        let mut first = String::new();
        if let Some(line) = running.line_or_end() {
            first = line;
        }
        let Some(pid) = first.strip_prefix("ready ") else {
            assert_ne!(running.wait().code(), 0, "{what}");
            continue;
        };
        let pid: i32 = pid.parse().unwrap();
        // the pads are emptied last, when all threads have been let go
        procfs::wait_until_let_go(pid);
        procfs::assert_left_as_it_was(pid);
        running.send("still alive?");
        assert_eq!(running.line(), "alive", "{what}");
        running.feed(b"");
        assert_eq!(running.line(), "ok", "{what}");
        let ended = running.wait();
        if ended.code() != 0 {
            broken += 1;
            assert_broken_off(&ended, &what, &[RUNS_ON]);
        }
    }
    // many errors are got over: a probe less, a warning more
    assert!(broken > 0, "{broken}");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_panics_under_run_for_a_while() {
    run_for_a_while_with("panic");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_errors_under_run_for_a_while() {
    run_for_a_while_with("error");
}

/// `attach`: one process under load is attached to again and again, and never harmed.
fn attach_with(kind: &str) {
    let program = Program::fixture("victim").args(["3", "churn"]);
    let (mut victim, pid) = start_victim(&program);
    // Whether heaptrace broke off.
    let mut attach = |call: u64| {
        let what = order(kind, call);
        let tracer = Program::new("/bin/true").env("HEAPTRACE_INJECT", &what);
        let ended = tracer.start_attached(&["--duration", "60ms"], pid).wait();
        victim.assert_alive();
        procfs::assert_left_as_it_was(pid);
        victim.send("still alive?");
        assert_eq!(victim.line(), "alive", "{what}");
        if ended.code() != 0 {
            assert_eq!(ended.code(), 125, "{what}: {}", ended.stderr);
            assert!(!ended.stderr.contains("left damaged"), "{what}: {}", ended.stderr);
        }
        ended.code() != 0
    };
    let broken = calls(3, 20_000).into_iter().filter(|call| attach(*call)).count();
    // Most errors are got over, those of the looks at each thread above all: of 34, two to eight are not with the jump
    // engine. Where it is none by chance, others are tried.
    let has_broken = broken > 0 || (1..20_000).step_by(211).any(&mut attach);
    assert!(has_broken, "nothing that was ordered to fail has broken heaptrace off");
    assert_victim_well(victim, pid);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_panics_under_attach() {
    attach_with("panic");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_errors_under_attach() {
    attach_with("error");
}

/// If the code can't be restored, by whatever means, that is what the message says, and it comes true.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t43_what_can_not_be_restored_is_told() {
    let program = Program::fixture("victim").args(["2"]);
    // Where busy threads are slow to stop, the call comes before the allocator has its breakpoints, and the program,
    // which runs into no other, lives on: then a later call.
    // Where heaptrace makes fewer calls than that, none fails: then an earlier one.
    for call in [1500, 3000, 6000, 12_000, 24_000, 1000, 700, 400] {
        let (victim, pid) = start_victim(&program);
        let tracer = Program::new("/bin/true").env("HEAPTRACE_INJECT", format!("error:{call}:code"));
        let ended = tracer.start_attached(&["--duration", "2s"], pid).wait();
        if ended.code() == 0 {
            assert_victim_well(victim, pid);
            continue;
        }
        assert_eq!(ended.code(), 125, "{}", ended.stderr);
        if ended.stderr.contains(RUNS_ON) {
            // no code had been changed yet
            victim.wait().success();
            continue;
        }
        let is_left = ended.stderr.contains("left damaged");
        // Busy threads run into a breakpoint at once: it may be over by then.
        assert!(is_left || ended.stderr.contains("was damaged"), "{}", ended.stderr);
        assert!(ended.stderr.contains("SIGTRAP"), "{}", ended.stderr);
        let died = victim.wait();
        if died.status.signal() == Some(5) {
            return;
        }
        assert!(is_left && died.status.code() == Some(0), "{}: {}", died.status, ended.stderr);
    }
    panic!("the program never ran into a breakpoint");
}

/// Where the kernel refuses all writes to /proc/PID/mem (Linux 6.12 and later can), code is changed through stopped
/// threads: nothing is missed, and nothing is left behind.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn code_is_written_through_stopped_threads_where_proc_mem_is_refused() {
    let refused = |program: Program| program.env("HEAPTRACE_INJECT", "error:0:writes");
    let program = refused(Program::fixture("peak"));
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
    traced.report.assert_no_anomaly();

    let program = Program::fixture("victim").args(["3", "churn"]);
    let (mut victim, pid) = start_victim(&program);
    let tracer = refused(Program::new("/bin/true"));
    let ended = tracer.start_attached(&["--duration", "500ms"], pid).wait().success();
    let report = Report::read(&tracer.report_path(), &ended);
    assert!(report.site_sum(&["victim_allocate", "work"], "/allocated/objects") > 50);
    assert_eq!(procfs::tracer_of(pid), 0);
    // pads stay behind in the slack of a module, no breakpoint does in its code
    for (file, offset) in procfs::text_differences(pid) {
        let mut byte = [0xff];
        FileExt::read_exact_at(&std::fs::File::open(&file).unwrap(), &mut byte, offset).unwrap();
        assert_eq!(byte, [0], "{} at {offset:x}", file.display());
    }
    victim.send("still alive?");
    assert_eq!(victim.line(), "alive");
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();

    let program = refused(Program::fixture("fork_many").args(["20"]));
    assert_eq!(program.traced().ended.text(), "children 20\n");
}

/// A program is killed while it makes a system call for us, each of them in turn: its end is told, by whichever request
/// it comes.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn a_program_killed_in_a_call_for_heaptrace_has_an_end() {
    for options in [&[] as &[&str], &["-f"]] {
        let mut call = 0;
        loop {
            call += 1;
            let program = Program::fixture("peak").env("HEAPTRACE_INJECT", format!("call:killed:{call}"));
            let ended = program.stays_on_trap(WHATEVER).start_traced(options).wait();
            if ended.code() == 0 {
                break;
            }
            assert_eq!(ended.code(), 128 + 9, "call {call}, {options:?}: {}", ended.stderr);
            assert!(ended.stderr.contains("killed by signal 9"), "call {call}, {options:?}: {}", ended.stderr);
        }
        // the handler of SIGTRAP is installed and removed; the jump engine maps its memory besides
        let least = if engine() == "jump" { 8 } else { 1 };
        assert!(call > least, "{call} calls, {options:?}");
    }
}

/// A thread of the program installs a filter of system calls for all threads in the moment in which another one is
/// about to make a call for us. That one does not make it, and the program lives.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn a_filter_for_all_threads_comes_just_before_a_call() {
    let mut program = Program::fixture("filters_all").start();
    let pid: i32 = program.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true").env("HEAPTRACE_INJECT", "call:filtered");
    let attached = tracer.start_attached(&[], pid);
    assert_eq!(program.line(), "filtered");
    procfs::wait_until_probed(pid);
    program.send("go on");
    assert_eq!(program.line(), "allocated");
    program.feed(b"");
    program.wait().success();
    attached.wait().success();
}
