//! Signals pass untouched, job control works.

use super::counts::assert_sites;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Running;
use crate::support::{fixtures, procfs};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// T10: thousands of realtime signals with payloads arrive once each, in order, with sender and code; their handler and
/// two other threads allocate, and all is counted.
#[test]
fn t10_signal_storm_with_payloads() {
    let program = Program::fixture("signals").args(["2000"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "payloads 2000\n");
    let ledger = program.ledger();
    assert_eq!(ledger.sites["handler_allocate"]["allocations"], 2000);
    assert_sites(&traced.report, &ledger);
    traced.report.assert_no_anomaly();
}

/// T10, T23: a thousand signals a second interrupt four threads wherever they are, in the allocator and in the middle
/// of what stands in for a replaced instruction; the handlers allocate on alternate stacks. Payloads arrive, errno and
/// the blocks are kept, all is counted.
#[test]
fn t10_a_signal_a_millisecond() {
    t23_or_t10("1000");
}

/// T23: the same with few signals: each handler's frames are told from those of the call that it interrupts.
#[test]
fn t23_handlers_allocate_on_alternate_stacks() {
    let report = t23_or_t10("200");
    let handlers: Vec<_> = report.sites_at(&["handler_allocate", "on_signal"]).collect();
    assert!(!handlers.is_empty());
}

fn t23_or_t10(signals: &str) -> Report {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("storm", &[&bump])).args([signals]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "weathered\n");
    let ledger = program.ledger();
    assert!(ledger.sites["handler_allocate"]["allocations"] >= signals.parse().unwrap());
    assert_sites(&traced.report, &ledger);
    for function in ["handler_allocate", "worker_allocate"] {
        assert_eq!(traced.report.site_sum(&[function], "/live/objects"), 0, "{function}");
    }
    traced.report.assert_no_anomaly();
    traced.report.assert_consistent();
    traced.report
}

/// T07: a probe hit while SIGTRAP is blocked, handled or ignored: the kernel then resets mask and disposition, and they
/// must be as before when the program looks.
#[test]
fn t07_sigtrap_blocked() {
    sigtrap_is_kept("blocked");
}

/// T07 with a handler for SIGTRAP.
#[test]
fn t07_sigtrap_blocked_with_handler() {
    sigtrap_is_kept("handled");
}

/// T07 with no other signal blocked, so that the mask does not tell.
#[test]
fn t07_sigtrap_alone_blocked() {
    sigtrap_is_kept("alone");
}

/// T07 with SIGTRAP ignored.
#[test]
fn t07_sigtrap_blocked_and_ignored() {
    sigtrap_is_kept("ignored");
}

/// T07 with SIGTRAP ignored by several threads at once: when the kernel is told anew to ignore a signal, it forgets
/// those that wait, the traps of threads among them that have just hit a probe.
#[test]
fn t07_sigtrap_ignored_by_threads() {
    for _ in 0..crate::suite::rounds(1) {
        let program = Program::fixture("ignoring").args(["8"]);
        let traced = program.traced();
        assert_eq!(traced.ended.text(), "ok\n", "{}", traced.ended.stderr);
        // beside the ledger's, each thread's stack and handle
        assert_eq!(traced.report.site_sum(&["work"], "/allocated/objects"), program.ledger().total("allocations"));
        traced.report.assert_no_anomaly();
    }
}

fn sigtrap_is_kept(mode: &str) {
    let program = Program::fixture("sigtrap").args([mode]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), format!("kept {mode}\n"), "{}", traced.ended.stderr);
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
}

/// T08: breakpoints, raised SIGTRAPs and illegal instructions of the program's own reach its handlers.
#[test]
fn t08_own_breakpoints_and_sigtraps() {
    let program = Program::fixture("own_int3");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "own 50 raised 100 illegal 50\n");
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
    traced.report.assert_no_anomaly();
}

/// T17: no signal handler ever sees a program counter or a frame in a displaced instruction.
#[test]
fn t17_handlers_see_no_displaced_code() {
    let program = Program::fixture("pad_signals").args(["500"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
}

/// T18: a fault of the instruction behind malloc is reported at that instruction, with the right address.
#[test]
fn t18_fault_at_a_return_site() {
    let program = Program::fixture("fault_at_return");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "faults 50\n");
    assert_eq!(traced.report.total("failed"), 50);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
}

/// T09: a program that stops itself stays stopped until someone continues it, and its SIGCONT handler runs once a stop.
#[test]
fn t09_program_that_stops_itself() {
    let program = Program::fixture("stops_itself");
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("pid").parse().unwrap();
    for round in 0..5 {
        assert_eq!(running.value("stopping"), round.to_string());
        wait_until_stopped(pid);
        kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    }
    assert_eq!(running.line(), "done");
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
}

/// T09: the real parent of an attached process sees the same stops and continues as without a tracer, for SIGSTOP and
/// the terminal's stop signals.
#[test]
fn t09_parent_sees_stops_and_continues() {
    let program = Program::fixture("job_parent");
    let mut parent = program.start();
    let child: i32 = parent.value("child").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], child);
    procfs::wait_until_probed(child);
    for signal in [19, 20, 21, 22, 19, 20, 21, 22] {
        parent.send("cycle");
        assert_eq!(parent.line(), format!("stopped by {signal}, continued"));
    }
    parent.feed(b"");
    assert_eq!(parent.line(), "terminated");
    parent.wait().success();
    let traced = tracer.collect(attached.wait().success());
    assert_eq!(traced.report.0["exit"]["signal"], 15);
}

/// T09: heaptrace is stopped by SIGSTOP, which it can't block. The program that it traces does not stand for that at
/// its next allocation: heaptrace goes on.
#[test]
fn t09_a_program_does_not_stand_because_its_tracer_is_stopped() {
    // one that was started, and one that was attached to
    let mut started = Program::fixture("asleep").args(["poll"]).start_traced(&[]);
    let pid: i32 = started.value("ready").parse().unwrap();
    goes_on_without(&mut started, pid);
    started.feed(b"");
    started.wait().success();

    let mut attached_to = Program::fixture("asleep").args(["poll"]).start();
    let pid: i32 = attached_to.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true").start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    let heaptrace = Pid::from_raw(procfs::tracer_of(pid));
    goes_on_without(&mut attached_to, pid);
    // Ctrl-Z does nothing there
    kill(heaptrace, Signal::SIGTSTP).unwrap();
    attached_to.send("once more");
    assert_eq!(attached_to.line(), "allocated");
    attached_to.feed(b"");
    attached_to.wait().success();
    tracer.wait().success();
}

/// The tracer of a process is stopped, and the process allocates.
fn goes_on_without(program: &mut Running, pid: i32) {
    procfs::wait_until_probed(pid);
    let tracer = procfs::tracer_of(pid);
    kill(Pid::from_raw(tracer), Signal::SIGSTOP).unwrap();
    procfs::wait_until("heaptrace is stopped", || procfs::state(tracer) == Some('T'));
    program.send("go on");
    assert_eq!(program.line(), "allocated");
}

/// T09: Ctrl-Z stops a program and the heaptrace that has started it together, as it stops any job, and both go on
/// together.
#[test]
fn t09_a_job_stops_with_heaptrace() {
    let mut job = Program::fixture("asleep").args(["poll"]).start_traced(&[]);
    let pid: i32 = job.value("ready").parse().unwrap();
    procfs::wait_until_probed(pid);
    let group = Pid::from_raw(job.pid());
    for _ in 0..2 {
        killpg(group, Signal::SIGTSTP).unwrap();
        procfs::wait_until("heaptrace is stopped", || procfs::state(job.pid()) == Some('T'));
        wait_until_stopped(pid);
        // longer than the guardian needs to see it
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert_eq!(procfs::state(job.pid()), Some('T'), "heaptrace went on by itself");
        killpg(group, Signal::SIGCONT).unwrap();
        job.send("go on");
        assert_eq!(job.line(), "allocated");
    }
    job.feed(b"");
    job.wait().success();
}

/// Waits until a process is stopped for good: every look at its state, many times over, shows it so.
pub fn wait_until_stopped(pid: i32) {
    let mut in_a_row = 0;
    procfs::wait_until("the process is stopped", || {
        let stopped = matches!(procfs::state(pid), Some('T' | 't'));
        in_a_row = if stopped { in_a_row + 1 } else { 0 };
        in_a_row > 500
    });
}

/// T06: a known deviation, inherent in ptrace: a signal that is ignored by default ends a sleep in epoll_wait of a
/// traced process. The untraced program must not see it, and the traced one must live on.
#[test]
fn t06_ignored_sigchld_in_epoll_wait() {
    let program = Program::fixture("ignored_sigchld").input("go\n");
    assert!(program.plain().text().ends_with("slept\n"));
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0);
    let said = traced.ended.text();
    assert!(said.ends_with("slept\n") || said.ends_with("interrupted\n"), "{said}");
}

/// Signals sent to heaptrace by SIGTERM are passed to the program, which ends by it; the profile is written.
#[test]
fn t41_sigterm_to_heaptrace_ends_the_program() {
    // Under nohup all children would ignore it.
    // SAFETY: the default action is installed; no handler runs.
    unsafe { nix::sys::signal::signal(Signal::SIGHUP, nix::sys::signal::SigHandler::SigDfl) }.unwrap();
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let program = Program::new(fixtures::program("forever"));
        let mut running = program.start_traced(&[]);
        running.value("ready");
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.code(), status);
        let traced = program.collect(ended);
        assert_eq!(traced.report.0["exit"]["signal"], status - 128);
        assert_eq!(traced.report.site_sum(&["main"], "/live/bytes"), 4321);
    }
}

/// T41: Ctrl-C goes to the whole foreground group: a program that ends by it ends heaptrace, with 130.
#[test]
fn t41_ctrl_c_in_run() {
    let program = Program::new(fixtures::program("forever"));
    let mut running = program.start_traced(&[]);
    running.value("ready");
    killpg(Pid::from_raw(running.pid()), Signal::SIGINT).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code(), 130);
    let traced = program.collect(ended);
    assert_eq!(traced.report.site_sum(&["main"], "/live/bytes"), 4321);
}

/// T41: Ctrl-C reaching only heaptrace: the first is not an end (the program gets its own), the second detaches and the
/// program, ignorant of it, goes on to its own end.
#[test]
fn t41_second_ctrl_c_detaches() {
    let program = Program::fixture("victim").args(["2"]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    running.signal(Signal::SIGINT);
    running.send("still alive?");
    assert_eq!(running.line(), "alive");
    assert_ne!(procfs::tracer_of(pid), 0, "one Ctrl-C detaches nothing");
    // two that wait become one
    let waits = || procfs::status_field(running.pid(), "ShdPnd").is_none_or(|set| !set.trim_matches('0').is_empty());
    procfs::wait_until("the first Ctrl-C is taken", || !waits());
    running.signal(Signal::SIGINT);
    procfs::wait_until_let_go(pid);
    running.send("still alive?");
    assert_eq!(running.line(), "alive");
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.0["complete"], false);
}
