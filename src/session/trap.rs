//! The trap engine: an int3 at each probe and at each return address, one stop a hit, no single step. What the
//! breakpoint replaced is emulated here, or runs from its pad.

use super::engine::EngineReport;
use super::hit::Hit;
use super::process::Process;
use super::stop::Action;
use super::stops::Stops;
use super::tasks::Role;
use crate::addr::Addr;
use crate::arch::emulate::Outcome;
use crate::arch::step::{Resume, StepOver};
use crate::patches::PcLocation;
use crate::session::space::{Helper, LOCKS_TAG, OWN_TRACER_TAG, Placed};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, TracerError};

impl Process {
    /// A SIGTRAP is about to be delivered: ours, or the program's own.
    pub(super) fn on_trap(&mut self, tid: i32, thread: &Stopped, stops: &mut Stops) -> Result<Action> {
        let (raw, is_moved) = thread.registers_at_trap()?;
        let at = Addr(raw.0.rip.wrapping_sub(1));
        if self.jump.on().is_some_and(|jump| jump.contains(at)) && thread.is_breakpoint_trap()? {
            return self.on_ask(tid, thread, &raw, stops);
        }
        let Some(breakpoint) = self.space.probes.breakpoints.get(at).copied() else {
            if is_moved {
                thread.set_registers(&raw)?;
            }
            return self.on_foreign_trap(tid, thread, &raw, at);
        };
        // Behind an instruction of one byte a thread can stand without having hit our int3. Behind a longer one it
        // can't.
        if !breakpoint.hit_is_certain() && !thread.is_breakpoint_trap()? {
            return self.deliver_trap(tid, thread);
        }
        self.space.image.memory.new_stop(tid);
        self.stop_cost.stops(self.pid, tid);
        let mut breakpoint = breakpoint;
        if breakpoint.purposes.entry.is_some_and(|probe| !self.settings.table.is_mapping(probe.function)) {
            self.promote(thread, &raw, stops)?;
            breakpoint = self.space.probes.breakpoints.get(at).copied().unwrap_or(breakpoint);
        }
        if self.jump.on().is_some() {
            self.settle();
            self.hand_over(tid, thread, &raw)?;
            self.note_trapped_call(tid, at, &breakpoint, &raw.before_trap().regs());
            if breakpoint.purposes.tags & LOCKS_TAG != 0 {
                self.make_way_for_locks(thread, &raw)?;
            }
        }
        let hit = &Hit { tid, thread, raw: &raw, at, breakpoint: &breakpoint };
        let action = self.on_hit(hit, stops);
        self.note_mode(tid);
        action
    }

    /// A thread stands behind a breakpoint of ours, or is taken to.
    pub(super) fn on_hit(&mut self, hit: &Hit<'_>, stops: &mut Stops) -> Result<Action> {
        let &Hit { tid, thread, raw, at, breakpoint } = hit;
        let is_to_be_traced =
            breakpoint.purposes.tags & OWN_TRACER_TAG != 0 && self.is_about_to_be_traced(tid, raw, stops);
        let leaves = is_to_be_traced || breakpoint.purposes.exec && self.is_about_to_change_rights(tid, raw, at);
        // Whatever fails here, the thread must get past the instruction that it has not executed yet.
        let mut counted = false;
        match self.serve_hit(hit, stops, &mut counted) {
            Ok(()) => {}
            Err(error) if error.is_out_of_reach() => {
                self.expect_again(hit, &error, counted);
                return Err(error);
            }
            Err(error) => {
                tracing::warn!("{error}");
                self.note_missed_call();
            }
        }
        self.release_dropped_sites();
        if leaves && self.tasks.get(tid).is_some_and(|task| task.role == Role::Thread) {
            return self.detach_before_call(tid, thread, raw, at);
        }
        match self.step_past(hit) {
            Err(error) if !error.is_out_of_reach() => {
                tracing::warn!("{error}");
                self.note_missed_call();
                self.space.probes.lift(&mut self.space.image, at)?;
                pass_trap_to(thread, raw, at)?;
                Ok(Action::Resume(0))
            }
            Err(error) => {
                self.expect_again(hit, &error, true);
                Err(error)
            }
            Ok(Action::Resume(0)) if leaves => {
                if is_to_be_traced && let Err(error) = self.set_aside_for(tid) {
                    tracing::warn!("{error}");
                    return Ok(Action::Resume(0));
                }
                self.close_trap_of_sharer(thread);
                self.note_child_detached(tid);
                Ok(Action::Detach)
            }
            other => other,
        }
    }

    /// A thread at a breakpoint was to make a system call for us, and has not come back in time: it will, to hit the
    /// breakpoint once more.
    fn expect_again(&mut self, hit: &Hit<'_>, error: &TracerError, counted: bool) {
        if counted
            && matches!(error, TracerError::Unresponsive { .. })
            && let Some(task) = self.tasks.get_mut(hit.tid)
        {
            task.counted.push(hit.at, hit.raw.0.rsp);
        }
    }

    /// Gets the thread past the replaced instruction.
    fn step_past(&mut self, hit: &Hit<'_>) -> Result<Action> {
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
                self.note_missed_call();
                pass_trap_to(thread, raw, at)?;
            }
        }
        Ok(Action::Resume(0))
    }

    /// Before a signal is delivered: no handler may see a pad's address, and a call that the handler interrupts is
    /// marked.
    pub(super) fn before_signal(&mut self, tid: i32, thread: &Stopped) -> Result<()> {
        self.leave_routine(tid, thread)?;
        if let Some(task) = self.tasks.get(tid) {
            self.observer.observe(EngineReport::Signal(task.id));
        }
        self.leave_pad_for_signal(tid, thread)?;
        self.note_mode(tid);
        Ok(())
    }

    /// Moves a thread that is in a pad back to the original code. If the replaced instruction has not run yet, it goes
    /// back to the breakpoint, whose hit has been counted already.
    pub(super) fn leave_pad_for_signal(&mut self, tid: i32, thread: &Stopped) -> Result<()> {
        let raw = thread.registers()?;
        let PcLocation::Pad(resume) = self.space.image.locate(Addr(raw.0.rip)) else { return Ok(()) };
        leave_pad(thread, &raw, resume)?;
        thread.move_fault_address(raw.0.rip, resume.pc.0)?;
        if self.space.probes.breakpoints.get(resume.pc).is_some()
            && let Some(task) = self.tasks.get_mut(tid)
        {
            task.counted.push(resume.pc, raw.0.rsp.wrapping_add(u64::from(resume.drop)));
        }
        Ok(())
    }

    pub(super) fn was_counted_before_signal(&mut self, tid: i32, at: Addr, sp: u64) -> bool {
        self.tasks.get_mut(tid).is_some_and(|task| task.counted.take(at, sp))
    }

    /// A SIGTRAP whose address is none of our breakpoints.
    fn on_foreign_trap(&mut self, tid: i32, thread: &Stopped, raw: &RawRegs, trap: Addr) -> Result<Action> {
        if self.space.image.code.patches().removed_from(trap).is_some()
            && thread.is_breakpoint_trap()?
            && self.space.image.is_clean(&self.space.modules, trap)?
        {
            pass_trap_to(thread, raw, trap)?;
            return Ok(Action::Resume(0));
        }
        self.deliver_trap(tid, thread)
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
