//! Stops for signals whose reports are left with the kernel.
//!
//! The kernel gives a thread the signal that it has stopped for if its tracer dies, but only as long as the stop was
//! not waited for: wait4(2) takes the signal with
//! the report. It would be lost, and so would be the trap of a breakpoint: the thread would go on behind it, within an
//! instruction. So the report of such a stop is
//! only looked at (WNOWAIT); all requests are possible without it.
//!
//! A wait for any task then finds this stop again and again, and none behind it. So whoever holds such a stop and wants
//! others asks for each of them.

use super::{Result, Stopped, Waited, look, poll_task, wait_for};
use crate::tracer::status::WaitStatus;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

thread_local! {
    /// Tasks with the signals of their stops, which [`super::wait`] has returned while the kernel still holds them to
    /// be unreported.
    // Never dropped: the C library aborts where it has no memory to note that something is to be.
    static UNCLAIMED: RefCell<ManuallyDrop<Vec<(i32, i32)>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// The task was resumed: its report is no longer there to be taken.
pub(super) fn forget(tid: i32) {
    UNCLAIMED.with_borrow_mut(|unclaimed| unclaimed.retain(|(other, _)| *other != tid));
}

/// Takes a report that was looked at, unless it has to be left. None: it was not there any more, as the task was
/// killed.
pub(super) fn take(tid: i32, status: WaitStatus) -> Result<Option<Waited>> {
    forget(tid);
    if let WaitStatus::Signal(signal) = status {
        UNCLAIMED.with_borrow_mut(|unclaimed| unclaimed.push((tid, signal)));
        return Ok(Some(Waited::Task(tid, status, Some(Stopped { tid }))));
    }
    Ok(match wait_for(tid, libc::__WALL | libc::WNOHANG)? {
        Waited::Nothing | Waited::Interrupted | Waited::NoTasks => None,
        found => Some(found),
    })
}

/// Takes the reports that were left. Some: what has come instead of one, as the task was killed.
pub(super) fn claim_all() -> Result<Option<Waited>> {
    while let Some((tid, signal)) = UNCLAIMED.with_borrow_mut(|unclaimed| unclaimed.pop()) {
        if let Some(other) = claim(tid, signal)? {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// The same for one. A thread that has hit a breakpoint is moved back in front of it before.
fn claim(tid: i32, signal: i32) -> Result<Option<Waited>> {
    let stopped = Stopped { tid };
    if signal == libc::SIGTRAP {
        match stopped.move_before_trap() {
            Err(error) if !error.is_out_of_reach() => return Err(error),
            _ => {}
        }
    }
    Ok(match wait_for(tid, libc::__WALL | libc::WNOHANG)? {
        Waited::Task(_, WaitStatus::Signal(_), Some(_)) | Waited::Nothing | Waited::Interrupted | Waited::NoTasks => {
            None
        }
        other => Some(other),
    })
}

/// Takes the reports of traps only: a thread that is back in front of its breakpoint loses nothing.
fn claim_traps() -> Result<Vec<Waited>> {
    let is_trap = |(_, signal): &(i32, i32)| *signal == libc::SIGTRAP;
    let traps: Vec<(i32, i32)> =
        UNCLAIMED.with_borrow_mut(|unclaimed| unclaimed.extract_if(.., |stop| is_trap(stop)).collect());
    let mut others = Vec::new();
    for (tid, signal) in traps {
        others.extend(claim(tid, signal)?);
    }
    Ok(others)
}

/// Tells of all that there is to report at this moment, without waiting, while the tasks of stops that were told of are
/// held: the signals that they have stopped for
/// are not lost if heaptrace is killed. `known` gives all tasks that are known to be traced; it is asked only where a
/// stop is held that hides others.
///
/// # Errors
/// Those of waitid(2) and wait4(2).
pub fn collect(known: impl FnOnce() -> Vec<i32>, mut then: impl FnMut(i32, WaitStatus, Option<Stopped>)) -> Result<()> {
    let mut tell = |waited| {
        if let Waited::Task(tid, status, stopped) = waited {
            then(tid, status, stopped);
        }
    };
    loop {
        claim_traps()?.into_iter().for_each(&mut tell);
        match look(None, false)? {
            Ok((tid, status)) if !is_held(tid, status) => {
                take(tid, status)?.into_iter().for_each(&mut tell);
            }
            // The kernel tells of those first that have come under trace last: only known ones are hidden.
            Ok(_) => break,
            Err(Waited::Interrupted) => {}
            Err(_) => return Ok(()),
        }
    }
    for tid in known() {
        if let Ok((tid, status)) = look(Some(tid), false)?
            && !is_held(tid, status)
        {
            take(tid, status)?.into_iter().for_each(&mut tell);
        }
    }
    Ok(())
}

/// Whether an earlier call has returned this stop.
fn is_held(tid: i32, status: WaitStatus) -> bool {
    let WaitStatus::Signal(signal) = status else { return false };
    UNCLAIMED.with_borrow(|unclaimed| unclaimed.contains(&(tid, signal)))
}

/// Whether there is something to report of one task. The report of a stop for a signal is left: until the task is
/// resumed, nobody may wait for any task.
///
/// # Errors
/// Those of waitid(2) and wait4(2).
pub fn look_at_task(tid: i32) -> Result<Waited> {
    match look(Some(tid), false)? {
        Ok((tid, status @ WaitStatus::Signal(_))) => Ok(Waited::Task(tid, status, Some(Stopped { tid }))),
        Ok(_) => poll_task(tid),
        Err(nothing) => Ok(nothing),
    }
}
