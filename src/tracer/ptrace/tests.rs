//! Tasks of the kernel's: what becomes of their reports.

use super::*;
use crate::tracer::control;
use crate::tracer::testing::Sleeper;

/// Looks until there is something to report of a task, which is left there.
fn await_report(tid: i32, so: impl Fn(WaitStatus) -> bool) -> WaitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match peek(tid).unwrap() {
            Some(status) if so(status) => return status,
            _ if Instant::now() > deadline => {
                // else it would stand where it is for ever, and who has started it waits for its end
                let _ = Stopped::regained(tid).resume(0);
                panic!("waited in vain for a report of task {tid}");
            }
            _ => {}
        }
        std::thread::yield_now();
    }
}

/// A task is killed between the look that shows its stop and the moment in which it is let go.
#[test]
fn the_end_of_a_task_is_reported_that_is_killed_as_it_is_let_go() {
    let is_end = |status| matches!(status, WaitStatus::Exited(_) | WaitStatus::Signaled(_));
    for options in [OPTIONS, OPTIONS & !libc::PTRACE_O_TRACEEXIT] {
        let sleeper = Sleeper::start();
        let tid = sleeper.pid();
        assert!(seize_unless_interrupted(tid, options).unwrap());
        interrupt(tid).unwrap();
        assert_eq!(await_report(tid, |_| true), WaitStatus::EventStop);
        control::send(tid, libc::SIGKILL).unwrap();
        await_report(tid, |status| is_end(status) || status == WaitStatus::Event(Event::Exit));
        let_go_on(tid).unwrap();
        await_report(tid, is_end);
    }
}

/// Who was not killed goes on, and has nothing to report.
#[test]
fn a_task_goes_on_that_was_told_to_stop() {
    let sleeper = Sleeper::start();
    let tid = sleeper.pid();
    seize(tid, false).unwrap();
    interrupt(tid).unwrap();
    await_report(tid, |status| status == WaitStatus::EventStop);
    let_go_on(tid).unwrap();
    assert_eq!(peek(tid).unwrap(), None);
    let deadline = Instant::now() + Duration::from_secs(60);
    while procfs::state(tid, tid) != Some(b'S') {
        assert!(Instant::now() < deadline, "it does not sleep again");
        std::thread::yield_now();
    }
}
