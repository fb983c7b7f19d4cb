//! Moving a stopped task to where it would be without us.

use crate::arch::step::Resume;
use crate::base::addr::Addr;
use crate::breakpoints::patches::PcLocation;
use crate::session::Session;
use crate::session::process::Process;
use crate::session::sigtrap::SigtrapGuard;
use crate::session::slots::Slot;
use crate::session::stop::Stop;
use crate::session::teardown::Teardown;
use crate::session::tracee::Tracee;
use crate::session::trap::{leave_pad, pass_trap_to};
use crate::tracer::ptrace::{RESUME_FLAG, SYSTEM_CALL_STOP, Stopped};
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use crate::tracer::{Result, procfs};

/// How a stopped task goes on in a detach.
pub(super) enum Prepared {
    /// Detached, with this signal delivered.
    Detach(i32),
    /// Not yet detached: it runs on, with this signal delivered, into a stop that is about to be reported.
    RunOn(i32),
}

impl Session {
    /// Moves a stopped task, of the process in `slot` or a new one that is no process of ours, to where it would be
    /// without us, and tells how it goes on. Changes nothing before the last request that can fail, so that it can be
    /// called again.
    pub(super) fn prepare_detach(&mut self, slot: Slot, stop: &Stop) -> Result<Prepared> {
        let Stop { status, stopped: thread, slot: known } = stop;
        match *status {
            WaitStatus::Event(event @ (Event::Fork | Event::Vfork | Event::VforkDone | Event::Clone)) => {
                let mut uninstalls = false;
                if known.is_some()
                    && let Some(process) = self.processes.get_mut(slot)
                    && process.teardown.has_last_calls_for(&process.tracee, &process.sigtrap, stop.tid())?
                {
                    // A parent in vfork can't stop before its child lets it. The summary says that, too.
                    if event != Event::Vfork {
                        process.tracee.interrupt(stop.tid())?;
                    }
                    uninstalls = true;
                }
                if event != Event::VforkDone {
                    // The new task stops by itself, and is waited for.
                    self.stops.announce(event, thread)?;
                }
                return Ok(if uninstalls { Prepared::RunOn(0) } else { Prepared::Detach(0) });
            }
            // A new image, with nothing of ours in it, or the end. A new task may be killed before its first stop.
            WaitStatus::Event(_) => {
                if known.is_none() {
                    self.stops.note_arrival(stop.tid());
                }
                return Ok(Prepared::Detach(0));
            }
            WaitStatus::Signal(_) | WaitStatus::GroupStop(_) => {}
            _ if known.is_none() => self.detach_new_child(thread)?,
            _ => {}
        }
        match self.processes.get_mut(slot) {
            Some(Process { tracee, sigtrap, teardown, .. }) => teardown.prepare(tracee, sigtrap, *status, thread),
            None => Ok(Prepared::Detach(0)),
        }
    }
}

impl Teardown {
    fn prepare(
        &self,
        tracee: &mut Tracee,
        sigtrap: &mut SigtrapGuard,
        status: WaitStatus,
        thread: &Stopped,
    ) -> Result<Prepared> {
        let tid = thread.tid();
        let signal = match status {
            // Of a call for us that was not waited for to its end.
            WaitStatus::Signal(SYSTEM_CALL_STOP) => {
                tracee.interrupt(tid)?;
                return Ok(Prepared::RunOn(0));
            }
            WaitStatus::EventStop
                if tracee.space.image.locate(Addr(thread.registers()?.0.rip)) == PcLocation::RemoteCall =>
            {
                tracee.interrupt(tid)?;
                return Ok(Prepared::RunOn(0));
            }
            WaitStatus::Signal(signal) => {
                let raw = thread.registers()?;
                let trap = Addr(raw.0.rip.wrapping_sub(1));
                if signal == SIGTRAP && tracee.is_past_trap(thread, &raw)? {
                    let (at_trap, is_moved) = thread.registers_at_trap()?;
                    if is_moved {
                        sigtrap.repair_trap_for_detach(tracee, thread, &at_trap, Addr(raw.0.rip))?;
                    }
                    tracee.leave_pad(thread)?;
                    0
                } else if signal == SIGTRAP
                    && tracee.space.image.locate(Addr(raw.0.rip)) == PcLocation::BehindTrap(trap)
                    && thread.is_breakpoint_trap()?
                {
                    sigtrap.repair_trap_for_detach(tracee, thread, &raw, trap)?;
                    pass_trap_to(thread, &raw, trap)?;
                    0
                } else {
                    tracee.leave_pad(thread)?;
                    if self.has_last_calls_for(tracee, sigtrap, tid)? {
                        tracee.interrupt(tid)?;
                        return Ok(Prepared::RunOn(signal));
                    }
                    signal
                }
            }
            // The stop was reported before the trap that the thread has run into: without us it would die of that.
            WaitStatus::GroupStop(_) | WaitStatus::EventStop if tracee.stands_behind_trap(thread)? => {
                return Ok(Prepared::RunOn(0));
            }
            WaitStatus::GroupStop(_) => {
                // Detaching from a group stop leaves the process stopped, as it should be.
                tracee.leave_pad(thread)?;
                0
            }
            _ => {
                tracee.leave_pad(thread)?;
                if tracee.tasks.get(tid).is_some_and(|task| task.interrupted) {
                    thread.restart_interrupted_call()?;
                }
                0
            }
        };
        Ok(Prepared::Detach(signal))
    }
}

impl Tracee {
    /// Whether a thread that has stopped for a breakpoint of ours has been moved to where it goes on: behind that, or,
    /// by a call that it was making for us, in front of it.
    fn is_past_trap(&self, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        if raw.0.eflags & RESUME_FLAG != 0 && thread.is_breakpoint_trap()? {
            return Ok(true);
        }
        Ok(self.space.image.code.patches().is_or_was_at(Addr(raw.0.rip)) && !thread.has_signal_to_deliver()?)
    }

    /// Whether a thread has hit a breakpoint, whose signal still waits to be delivered.
    fn stands_behind_trap(&self, thread: &Stopped) -> Result<bool> {
        let location = self.space.image.locate(Addr(thread.registers()?.0.rip));
        Ok(matches!(location, PcLocation::BehindTrap(_)) && procfs::has_pending(thread.tid(), SIGTRAP)?)
    }

    /// Moves a stopped thread out of a pad, to the original code.
    pub(super) fn leave_pad(&self, thread: &Stopped) -> Result<()> {
        let raw = thread.registers()?;
        match self.space.image.locate(Addr(raw.0.rip)) {
            PcLocation::Pad(resume) => leave_pad(thread, &raw, resume),
            // What was moved is back where it belongs.
            PcLocation::Moved(at) => leave_pad(thread, &raw, Resume::at(at)),
            _ => Ok(()),
        }
    }
}
