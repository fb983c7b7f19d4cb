//! A thread has stopped by SIGTRAP: at a breakpoint, in the jump engine's routine, or for the program itself.

use super::Process;
use crate::arch::Regs;
use crate::base::addr::Addr;
use crate::event::{EventKind, Missed};
use crate::jump::stub::Stub;
use crate::session::hit::Hit;
use crate::session::jump::{Asked, AtEntry, JumpEngine};
use crate::session::space::{LOCKS_TAG, OWN_TRACER_TAG};
use crate::session::stop::Action;
use crate::session::stops::Stops;
use crate::session::tasks::Role;
use crate::session::trap::pass_trap_to;
use crate::tracer::Result;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

impl Process {
    /// A SIGTRAP is about to be delivered: ours, or the program's own.
    pub(in crate::session) fn on_trap(&mut self, tid: i32, thread: &Stopped, stops: &mut Stops) -> Result<Action> {
        let (raw, is_moved) = thread.registers_at_trap()?;
        let at = Addr(raw.0.rip.wrapping_sub(1));
        if self.jump.on().is_some_and(|jump| jump.contains(at)) && thread.is_breakpoint_trap()? {
            return self.on_ask(tid, thread, &raw, stops);
        }
        let Some(breakpoint) = self.tracee.space.probes.breakpoints.get(at).copied() else {
            if is_moved {
                thread.set_registers(&raw)?;
            }
            if self.tracee.is_left_over(thread, at)? {
                pass_trap_to(thread, &raw, at)?;
                return Ok(Action::Resume(0));
            }
            self.before_signal(tid, thread)?;
            return self.sigtrap.deliver_trap(&mut self.tracee, thread);
        };
        // Behind an instruction of one byte a thread can stand without having hit our int3. Behind a longer one it
        // can't.
        if !breakpoint.hit_is_certain() && !thread.is_breakpoint_trap()? {
            self.before_signal(tid, thread)?;
            return self.sigtrap.deliver_trap(&mut self.tracee, thread);
        }
        self.tracee.space.image.memory.new_stop(tid);
        self.cost.stop_cost.stops(self.tracee.pid, tid);
        let mut breakpoint = breakpoint;
        if breakpoint.purposes.entry.is_some_and(|probe| !self.tracee.settings.table.is_mapping(probe.function)) {
            let entry = AtEntry {
                thread,
                raw: &raw,
                cost: &self.cost.measured,
                program: &self.identity.program,
                is_selected: self.identity.selected,
            };
            self.jump.promote(&mut self.tracee, &mut self.observer, &entry, stops)?;
            breakpoint = self.tracee.space.probes.breakpoints.get(at).copied().unwrap_or(breakpoint);
        }
        if self.jump.on().is_some() {
            self.settle();
            self.jump.hand_over(&mut self.tracee, &mut self.observer, thread, &raw)?;
            self.jump.note_trapped_call(&mut self.tracee, tid, at, &breakpoint, &raw.before_trap().regs());
            if breakpoint.purposes.tags & LOCKS_TAG != 0 {
                self.jump.make_way_for_locks(&mut self.tracee, thread, &raw)?;
            }
        }
        let hit = &Hit { tid, thread, raw: &raw, at, breakpoint: &breakpoint };
        let action = self.on_hit(hit, stops);
        self.note_mode(tid);
        action
    }

    /// A thread has hit one of the int3s of the jump engine's routine; `raw` is as the trap has left it.
    fn on_ask(&mut self, tid: i32, thread: &Stopped, raw: &RawRegs, stops: &mut Stops) -> Result<Action> {
        self.tracee.space.image.memory.new_stop(tid);
        self.cost.stop_cost.stops(self.tracee.pid, tid);
        match self.jump.on_ask(&mut self.tracee, &mut self.observer, tid, raw) {
            Asked::Call(stub, entered) => return self.see_at_stop(thread, raw, (stub, entered), stops),
            Asked::Answered => {
                let at = Addr(raw.0.rip.wrapping_sub(1));
                self.sigtrap.repair_trap(&mut self.tracee, thread, raw, at)?;
            }
            Asked::Lost => {}
        }
        thread.pass_trap(raw, &raw.regs())?;
        Ok(Action::Resume(0))
    }

    /// A thread has stopped in the jump engine's routine, before anything of its call was recorded: the call is seen as
    /// if it had hit the breakpoint at the function's entry.
    fn see_at_stop(
        &mut self,
        thread: &Stopped,
        raw: &RawRegs,
        call: (Stub, Regs),
        stops: &mut Stops,
    ) -> Result<Action> {
        let tid = thread.tid();
        let Some(call) = self.jump.prepare_call(&mut self.tracee, &mut self.observer, thread, raw, call)? else {
            return Ok(Action::Resume(0));
        };
        let before = self.observer.calls_seen();
        let hit = &Hit { tid, thread, raw: &call.raw, at: call.at(), breakpoint: &call.breakpoint };
        let action = self.on_hit(hit, stops);
        self.jump.judge_call(&mut self.tracee, &call, self.observer.calls_seen() != before);
        self.note_mode(tid);
        action
    }

    /// The jump engine's routine has faulted. Where the thread's stack has no room for it, the call is seen at this
    /// stop.
    pub(in crate::session) fn on_routine_fault(
        &mut self,
        thread: &Stopped,
        signal: i32,
        stops: &mut Stops,
    ) -> Result<Action> {
        if JumpEngine::lacks_stack(thread)? {
            let (tid, raw) = (thread.tid(), thread.registers()?);
            self.tracee.space.image.memory.new_stop(tid);
            self.cost.stop_cost.stops(self.tracee.pid, tid);
            self.settle();
            if let Some(call) = self.jump.call_not_begun(&mut self.tracee, tid, &raw.regs()) {
                return self.see_at_stop(thread, &raw, call, stops);
            }
        }
        self.jump.after_routine_fault(&mut self.tracee, &mut self.observer, &self.sigtrap, thread, signal)
    }

    /// Whether the jump engine records the thread's calls, or asks for them, from here on.
    pub(in crate::session) fn note_mode(&self, tid: i32) {
        self.jump.note_mode(&self.tracee, &self.observer, &self.sigtrap, tid);
    }

    /// A thread stands behind a breakpoint of ours, or is taken to.
    pub(in crate::session) fn on_hit(&mut self, hit: &Hit<'_>, stops: &mut Stops) -> Result<Action> {
        let &Hit { tid, thread, raw, at, breakpoint } = hit;
        let is_child = self.identity.parent.is_some();
        let is_to_be_traced = breakpoint.purposes.tags & OWN_TRACER_TAG != 0
            && self.tracee.is_about_to_be_traced(tid, raw, stops, is_child);
        let leaves = is_to_be_traced
            || breakpoint.purposes.exec && self.tracee.is_about_to_change_rights(tid, raw, at, is_child);
        // Whatever fails here, the thread must get past the instruction that it has not executed yet.
        let mut counted = false;
        match self.serve_hit(hit, stops, &mut counted) {
            Ok(()) => {}
            Err(error) if error.is_out_of_reach() => {
                self.tracee.expect_again(hit, &error, counted);
                return Err(error);
            }
            Err(error) => {
                tracing::warn!("{error}");
                self.observer.tell(EventKind::Missed(Missed::Call));
            }
        }
        self.tracee.release_dropped_sites(&mut self.observer);
        if leaves && self.tracee.tasks.get(tid).is_some_and(|task| task.role == Role::Thread) {
            return self.detach_before_call(tid, thread, raw, at);
        }
        match self.tracee.step_past(&mut self.observer, hit) {
            Err(error) if !error.is_out_of_reach() => {
                tracing::warn!("{error}");
                self.observer.tell(EventKind::Missed(Missed::Call));
                self.tracee.space.probes.lift(&mut self.tracee.space.image, at)?;
                pass_trap_to(thread, raw, at)?;
                Ok(Action::Resume(0))
            }
            Err(error) => {
                self.tracee.expect_again(hit, &error, true);
                Err(error)
            }
            Ok(Action::Resume(0)) if leaves => {
                if is_to_be_traced && let Err(error) = self.set_aside_for(tid) {
                    tracing::warn!("{error}");
                    return Ok(Action::Resume(0));
                }
                self.sigtrap.close_trap_of_sharer(thread);
                self.note_child_detached(tid);
                Ok(Action::Detach)
            }
            other => other,
        }
    }
}
