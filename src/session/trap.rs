//! The trap engine: an int3 at each probe and at each return address, one stop a hit, no single step. What the
//! breakpoint replaced is emulated here, or runs from its pad.

use super::engine::EngineReport;
use super::hit::Hit;
use super::observer::Observer;
use super::stop::Action;
use super::tracee::Tracee;
use crate::arch::emulate::Outcome;
use crate::arch::step::{Resume, StepOver};
use crate::base::addr::Addr;
use crate::breakpoints::patches::PcLocation;
use crate::event::{EventKind, Missed};
use crate::session::space::{Helper, Placed};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, TracerError};

/// Before a signal is delivered to a thread outside of the jump engine's routine: no handler may see a pad's address,
/// and a call that the handler interrupts is marked.
pub(super) fn leave_for_signal(tracee: &mut Tracee, observer: &mut Observer, thread: &Stopped) -> Result<()> {
    if let Some(task) = tracee.tasks.get(thread.tid()) {
        observer.observe(EngineReport::Signal(task.id));
    }
    tracee.leave_pad_for_signal(thread)
}

impl Tracee {
    /// Whether a thread has hit a breakpoint of ours at `trap` that is not there any more.
    pub(super) fn is_left_over(&mut self, thread: &Stopped, trap: Addr) -> Result<bool> {
        Ok(self.space.image.code.patches().removed_from(trap).is_some()
            && thread.is_breakpoint_trap()?
            && self.space.image.is_clean(&self.space.modules, trap)?)
    }

    /// A thread at a breakpoint was to make a system call for us, and has not come back in time: it will, to hit the
    /// breakpoint once more.
    pub(super) fn expect_again(&mut self, hit: &Hit<'_>, error: &TracerError, counted: bool) {
        if counted
            && matches!(error, TracerError::Unresponsive { .. })
            && let Some(task) = self.tasks.get_mut(hit.tid)
        {
            task.counted.push(hit.at, hit.raw.0.rsp);
        }
    }

    /// Gets the thread past the replaced instruction.
    pub(super) fn step_past(&mut self, observer: &mut Observer, hit: &Hit<'_>) -> Result<Action> {
        let &Hit { thread, raw, at, breakpoint, .. } = hit;
        if let StepOver::Emulate(instruction) = &breakpoint.planned.step {
            let mut regs = raw.regs();
            regs.rip = at.0;
            if instruction.run(&mut regs, &mut self.space.image.original_memory()) == Outcome::Done {
                thread.pass_trap(raw, &regs)?;
                return Ok(Action::Resume(0));
            }
        }
        let pad = match breakpoint.pad {
            Some(pad) => Placed::Done(pad),
            None => self.space.image.write_pad(&mut self.space.modules, at, Some(&Helper::at_trap(thread, raw)))?,
        };
        match pad {
            Placed::Done(pad) => {
                if let Some(breakpoint) = self.space.probes.breakpoints.get_mut(at) {
                    breakpoint.pad = Some(pad);
                }
                pass_trap_to(thread, raw, pad)?;
            }
            // The instruction reads memory that is not there and can't be moved either: it must fault at its own
            // address.
            Placed::Impossible | Placed::NoRoom => {
                self.space.probes.lift(&mut self.space.image, at)?;
                observer.tell(EventKind::Missed(Missed::Call));
                pass_trap_to(thread, raw, at)?;
            }
        }
        Ok(Action::Resume(0))
    }

    /// Moves a thread that is in a pad back to the original code. If the replaced instruction has not run yet, it goes
    /// back to the breakpoint, whose hit has been counted already.
    pub(super) fn leave_pad_for_signal(&mut self, thread: &Stopped) -> Result<()> {
        let raw = thread.registers()?;
        let PcLocation::Pad(resume) = self.space.image.locate(Addr(raw.0.rip)) else { return Ok(()) };
        leave_pad(thread, &raw, resume)?;
        thread.move_fault_address(raw.0.rip, resume.pc.0)?;
        if self.space.probes.breakpoints.get(resume.pc).is_some()
            && let Some(task) = self.tasks.get_mut(thread.tid())
        {
            task.counted.push(resume.pc, raw.0.rsp.wrapping_add(u64::from(resume.drop)));
        }
        Ok(())
    }
}

/// Moves a thread from a pad to the original code.
pub(super) fn leave_pad(thread: &Stopped, raw: &RawRegs, resume: Resume) -> Result<()> {
    let mut regs = raw.regs();
    resume.apply(&mut regs);
    let mut moved = *raw;
    moved.set_regs(&regs);
    thread.set_registers(&moved)
}

/// Moves a thread that has hit a breakpoint on to `pc`.
pub(super) fn pass_trap_to(thread: &Stopped, raw: &RawRegs, pc: Addr) -> Result<()> {
    let mut regs = raw.regs();
    regs.rip = pc.0;
    thread.pass_trap(raw, &regs)
}
