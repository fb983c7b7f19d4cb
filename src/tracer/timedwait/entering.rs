//! A thread makes a timed call once more, with a limit that lies in its memory: what is left stands below its stack's
//! red zone, where a signal's frame would.
//!
//! A signal's handler that ran between that and the call would overwrite it. So the thread goes on from where it has
//! entered the call (a stop of PTRACE_SYSCALL): from there the kernel reads the limit before the thread can do
//! anything else. It reads it once, and the place is free afterwards. The program's own structure is never written:
//! it may be constant, or another thread's, too.
//!
//! PTRACE_DETACH at that stop would end the call at once, with EINTR: it marks the thread as one with a signal. The
//! end of a tracer does not, if the thread runs. So a thread that is to be let go makes its call with the whole limit
//! at first, and a thread of ours interrupts it once more, which ends as soon as the call was entered.

use super::super::memory::TargetMemory;
use super::super::ptrace::{self, SYSTEM_CALL_STOP, Stopped, TIMEOUT};
use super::super::rawregs::{RawRegs, SYSCALL_LEN};
use super::super::remote::function;
use super::super::status::WaitStatus;
use super::super::{Result, TracerError, procfs};
use super::limits::{Argument, to_timespec};
use crate::base::addr::Addr;
use crate::image::maps::Mapping;
use std::time::{Duration, Instant};

/// So long mappings are taken for what they were: threads that go on together need them once.
const MAPPINGS_ARE_KNOWN: Duration = Duration::from_millis(100);

/// So long it is waited for a thread to enter its call, while others may wait for us. It goes on by itself after that.
const ENTERING: Duration = Duration::from_millis(20);

/// Pause between two looks at a thread that has not entered its call yet.
const PAUSE: Duration = Duration::from_micros(20);

/// A call that a thread is to make with a shorter limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tracer) struct Due {
    /// The registers with which it makes it: these two tell whether it still stands there.
    pub(super) rip: u64,
    pub(super) rax: u64,
    /// What points to the limit, and where to.
    pub(super) argument: Argument,
    pub(super) value: u64,
    /// The whole limit, how much of it had passed, and when. None: what stands there from the last time.
    pub(super) limit: Option<(Duration, Duration, Instant)>,
}

/// Where a thread is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tracer) enum Entered {
    /// Where it was: it makes the call with the whole limit.
    Unchanged,
    /// In the call, stopped, and goes on with what is left.
    Inside,
    /// In another stop, which is not taken yet; it makes the call afterwards.
    Elsewhere(WaitStatus),
    /// It runs, and stops when it has entered the call.
    Running,
}

/// Mappings of a process, by one of its threads.
pub(super) type Mappings = Option<(i32, Instant, Vec<Mapping>)>;

/// Where the limit is put: sixteen bytes below the red zone of a thread with these registers.
pub(super) const fn place(regs: &RawRegs) -> u64 {
    const RED_ZONE: u64 = 128;
    regs.0.rsp.wrapping_sub(RED_ZONE + 16) & !15
}

/// Lets a stopped thread enter the call that it is to make.
///
/// # Errors
/// Any failure of a ptrace request.
pub(super) fn enter(thread: &Stopped, due: &Due, mappings: &mut Mappings) -> Result<Entered> {
    let before = thread.registers()?;
    if !due.is_made_by(&before) {
        return Ok(Entered::Unchanged);
    }
    let tid = thread.tid();
    let at = place(&before);
    if let Some((limit, passed, since)) = due.limit {
        let left = limit.saturating_sub(passed + since.elapsed());
        if !has_room(tid, &before, mappings) || !put(tid, at, to_timespec(left)) {
            return Ok(Entered::Unchanged);
        }
    }
    thread.run_to_system_call()?;
    let began = Instant::now();
    loop {
        match ptrace::peek(tid)? {
            Some(WaitStatus::Signal(SYSTEM_CALL_STOP)) => break,
            Some(status) => {
                if let WaitStatus::Signal(signal) = status
                    && is_caught(tid, signal)
                {
                    thread.set_registers(&ended_early(&before))?;
                }
                return Ok(Entered::Elsewhere(status));
            }
            None if began.elapsed() > ENTERING => return Ok(Entered::Running),
            None => std::thread::sleep(PAUSE),
        }
    }
    // The status is not taken: that of a thread that was killed meanwhile would be lost. It ends when the thread goes
    // on.
    let mut inside = thread.registers()?;
    due.argument.set(&mut inside, at);
    thread.set_registers(&inside)?;
    Ok(Entered::Inside)
}

/// A stopped thread is about to be let go, and is to enter a call afterwards. None if it is to end that call early
/// instead.
///
/// # Errors
/// Any failure of a ptrace request.
pub(super) fn before_letting_go(thread: &Stopped, due: Due) -> Result<Option<Due>> {
    let regs = thread.registers()?;
    if due.value == place(&regs) && due.is_made_by(&regs) && has_caught_signal(thread.tid()) {
        // its handler would overwrite the limit that an earlier heaptrace has left there
        thread.set_registers(&ended_early(&regs))?;
        return Ok(None);
    }
    Ok(Some(due))
}

impl Due {
    fn is_made_by(&self, regs: &RawRegs) -> bool {
        (regs.0.rip, regs.0.rax, self.argument.get(regs)) == (self.rip, self.rax, self.value)
    }

    /// Has thread `tid`, which was let go, enter the call, by a thread of ours that lets go of it by its end.
    pub(in crate::tracer) fn by_another_thread(self, tid: i32) {
        let work = move || self.once_more(tid);
        let begun = std::thread::Builder::new().name("timed wait".to_owned()).spawn(work);
        let done = begun.map(|thread| thread.join().unwrap_or(Ok(())));
        match done {
            Ok(Ok(())) => {}
            // it makes the call with the whole limit
            Ok(Err(error)) => tracing::debug!("{error}"),
            Err(error) => tracing::debug!("{error}"),
        }
    }

    fn once_more(self, tid: i32) -> Result<()> {
        ptrace::seize_unless_interrupted(tid, libc::PTRACE_O_TRACESYSGOOD)?;
        ptrace::interrupt(tid)?;
        let began = Instant::now();
        loop {
            match ptrace::peek(tid)? {
                Some(WaitStatus::EventStop) => break,
                // the kernel goes on with it when this thread ends
                Some(_) => return Ok(()),
                None if began.elapsed() > TIMEOUT => return Err(TracerError::Unresponsive { tid }),
                None => std::thread::sleep(PAUSE),
            }
        }
        ptrace::poll_task(tid)?;
        let thread = Stopped::regained(tid);
        let raw = thread.registers()?;
        if let Some(again) = raw.repeating_system_call() {
            thread.set_registers(&again)?;
        }
        match enter(&thread, &self, &mut None)? {
            Entered::Unchanged | Entered::Inside => thread.resume(0),
            Entered::Elsewhere(_) | Entered::Running => Ok(()),
        }
    }
}

fn has_room(tid: i32, regs: &RawRegs, mappings: &mut Mappings) -> bool {
    let Ok(Some(process)) = procfs::thread_group(tid) else { return false };
    let is_known = matches!(mappings, Some((of, at, _)) if *of == process && at.elapsed() < MAPPINGS_ARE_KNOWN);
    if !is_known {
        *mappings = procfs::mappings(tid).ok().map(|read| (process, Instant::now(), read));
    }
    mappings.as_ref().is_some_and(|(_, _, mappings)| function::has_room(regs, mappings))
}

/// Writes what is left of a limit over that limit, in memory that the program may write to itself, as the kernel does
/// when the call ends.
pub(super) fn shorten(tid: i32, at: Addr, limit: Duration, passed: Duration) {
    let is_written = |mapping: &Mapping| mapping.perms.write && mapping.contains(at) && mapping.contains(at.add(15));
    if procfs::mappings(tid).is_ok_and(|mappings| mappings.iter().any(is_written)) {
        put(tid, at.0, to_timespec(limit.saturating_sub(passed)));
    }
}

fn put(tid: i32, at: u64, bytes: [u8; 16]) -> bool {
    let written = TargetMemory::open(tid, tid).and_then(|mut memory| memory.write_data(Addr(at), &bytes));
    written.inspect_err(|error| tracing::debug!("{error}")).is_ok()
}

/// Whether a thread is about to run a handler of a signal.
fn has_caught_signal(tid: i32) -> bool {
    let of = |key| procfs::status_signals(tid, key).unwrap_or(0);
    (of("SigPnd") | of("ShdPnd")) & !of("SigBlk") & of("SigCgt") != 0
}

/// Whether the process has a handler for a signal. The call then ends early, as it would without us.
fn is_caught(tid: i32, signal: i32) -> bool {
    let caught = procfs::status_signals(tid, "SigCgt").unwrap_or(0);
    u32::try_from(signal - 1).ok().and_then(|bit| caught.checked_shr(bit)).is_some_and(|caught| caught & 1 == 1)
}

/// Of a thread in front of a call: as it is behind it, when that has ended early.
fn ended_early(before: &RawRegs) -> RawRegs {
    let mut behind = *before;
    behind.0.rip = before.0.rip.wrapping_add(SYSCALL_LEN);
    behind.0.rax = i64::from(-libc::EINTR).cast_unsigned();
    behind.0.orig_rax = u64::MAX;
    behind
}
