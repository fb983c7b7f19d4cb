//! A thread has hit a breakpoint: the hot path. One stop a hit, no single step: what the breakpoint replaced is emulated
//! here, or runs from its pad.

use super::action::Action;
use super::process::Process;
use super::stops::Stops;
use super::tasks::Role;
use crate::addr::{Addr, FunctionId, StackId};
use crate::allocators::Kind;
use crate::arch::Regs;
use crate::arch::emulate::Outcome;
use crate::arch::step::{Resume, StepOver};
use crate::breakpoints::Breakpoint;
use crate::calls::{CallContext, Classified, Entry, Left, Return};
use crate::memory::ReadMemory;
use crate::session::space::{
    ANNOTATION_TAG, AddressSpace, EXIT_TAG, Ensured, OWN_TRACER_TAG, OriginalMemory, Placed, SIGACTION_TAG,
};
use crate::tracer::ptrace::{RawRegs, Stopped};
use crate::tracer::{Result, TracerError};
use crate::unwinder::Quality;
use std::ops::ControlFlow;

const UNSEEN_RETURNS: &str = "the allocator was called from code that can't hold a breakpoint, as others share it or it is \
                              written to: such calls are counted with their sizes, but their blocks count as freed at once";

impl Process {
    /// A SIGTRAP is about to be delivered: ours, or the program's own.
    pub(super) fn on_trap(&mut self, tid: i32, thread: &Stopped, stops: &mut Stops) -> Result<Action> {
        let (raw, is_moved) = thread.registers_at_trap()?;
        let trap = Addr(raw.0.rip.wrapping_sub(1));
        let Some(breakpoint) = self.space.breakpoints.get(trap).copied() else {
            if is_moved {
                thread.set_registers(&raw)?;
            }
            return self.on_foreign_trap(tid, thread, &raw, trap);
        };
        // Behind an instruction of one byte a thread can stand without having hit our int3. Behind a longer one it can't.
        if !breakpoint.hit_is_certain() && !thread.is_breakpoint_trap()? {
            return self.deliver_trap(tid, thread);
        }
        self.space.memory.new_stop(tid);
        self.stop_cost.stops(self.pid, tid);
        let is_to_be_traced =
            breakpoint.purposes.tags & OWN_TRACER_TAG != 0 && self.is_about_to_be_traced(tid, &raw, stops);
        let leaves = is_to_be_traced || breakpoint.purposes.exec && self.is_about_to_change_rights(tid, &raw, trap);
        // Whatever fails here, the thread must get past the instruction that it has not executed yet.
        let mut counted = false;
        match self.serve_hit(tid, thread, &raw, trap, &breakpoint, stops, &mut counted) {
            Ok(None) => {}
            Ok(Some(action)) => return Ok(action),
            Err(error) if error.is_out_of_reach() => {
                self.expect_again(tid, trap, &raw, &error, counted);
                return Err(error);
            }
            Err(error) => {
                tracing::warn!("{error}");
                self.anomalies.lost += 1;
            }
        }
        self.release_dropped_sites();
        if leaves && self.tasks.get(tid).is_some_and(|task| task.role == Role::Thread) {
            return self.leave_before_call(tid, thread, &raw, trap);
        }
        match self.step_past(thread, &raw, trap, &breakpoint) {
            Err(error) if !error.is_out_of_reach() => {
                tracing::warn!("{error}");
                self.anomalies.lost += 1;
                self.space.lift(trap)?;
                pass_trap_to(thread, &raw, trap)?;
                Ok(Action::Resume(0))
            }
            Err(error) => {
                self.expect_again(tid, trap, &raw, &error, true);
                Err(error)
            }
            Ok(Action::Resume(0)) if leaves => {
                if is_to_be_traced && let Err(error) = self.set_aside_for(tid) {
                    tracing::warn!("{error}");
                    return Ok(Action::Resume(0));
                }
                self.note_child_leaves(tid);
                Ok(Action::Detach)
            }
            other => other,
        }
    }

    /// A thread at the breakpoint `at` was to make a system call for us, and has not come back in time: it will, to hit the breakpoint
    /// once more.
    fn expect_again(&mut self, tid: i32, at: Addr, raw: &RawRegs, error: &TracerError, counted: bool) {
        if counted
            && matches!(error, TracerError::Unresponsive { .. })
            && let Some(task) = self.tasks.get_mut(tid)
        {
            task.counted.push(at, raw.0.rsp);
        }
    }

    /// Does what the breakpoint is there for, and notes when the hit has been `counted`. Some: that is all there is to do with the
    /// thread.
    #[expect(clippy::too_many_arguments, reason = "all of a hit, and who may hear of it")]
    fn serve_hit(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        trap: Addr,
        breakpoint: &Breakpoint,
        stops: &mut Stops,
        counted: &mut bool,
    ) -> Result<Option<Action>> {
        if let Some(status) = self.repair_trap(tid, thread, raw, trap)? {
            return Ok(Some(Action::Instead(status)));
        }
        if let Some(status) = self.keep_sigtrap_fallback(tid, thread, stops)? {
            return Ok(Some(Action::Instead(status)));
        }
        let regs = raw.regs();
        if self.counted_before_signal(tid, trap, regs.sp()) {
            *counted = true;
            return Ok(None);
        }
        if breakpoint.purposes.is_return() {
            self.on_return(tid, trap, &regs)?;
        }
        if let Some(function) = breakpoint.purposes.entry
            && let Some(action) = self.on_entry(tid, thread, raw, &regs, function, trap)?
        {
            return Ok(Some(action));
        }
        *counted = true;
        if breakpoint.purposes.loader && self.space.loader_is_consistent() {
            self.refresh_modules(tid);
        }
        if breakpoint.purposes.tags & SIGACTION_TAG != 0
            && let Some(status) = self.on_sigaction(thread, raw)?
        {
            return Ok(Some(Action::Instead(status)));
        }
        if breakpoint.purposes.tags & ANNOTATION_TAG != 0 {
            self.on_annotation(tid, &regs, trap, stops)?;
        }
        if breakpoint.purposes.tags & EXIT_TAG != 0 {
            self.on_libc_exit(tid, raw, stops)?;
        }
        if self.space.has_deferred()
            && let Some(status) = self.space.place_deferred(thread, raw)?
        {
            return Ok(Some(Action::Instead(status)));
        }
        Ok(None)
    }

    /// Gets the thread past the replaced instruction.
    fn step_past(&mut self, thread: &Stopped, raw: &RawRegs, at: Addr, breakpoint: &Breakpoint) -> Result<Action> {
        if let StepOver::Emulate(instruction) = &breakpoint.site.planned.step {
            let mut regs = raw.regs();
            regs.rip = at.0;
            if instruction.run(&mut regs, &mut self.space.original_memory()) == Outcome::Done {
                thread.pass_trap(raw, &regs)?;
                return Ok(Action::Resume(0));
            }
        }
        let pad = match breakpoint.pad {
            Some(pad) => Ok(pad),
            None => self.space.write_pad(at, Some((thread, raw)))?,
        };
        match pad {
            Ok(pad) => {
                if let Some(breakpoint) = self.space.breakpoints.get_mut(at) {
                    breakpoint.pad = Some(pad);
                }
                pass_trap_to(thread, raw, pad)?;
            }
            Err(Placed::Interrupted(status)) => return Ok(Action::Instead(status)),
            // The instruction reads memory that is not there and can't be moved either: it must fault at its own address.
            Err(_) => {
                self.space.lift(at)?;
                self.anomalies.lost += 1;
                pass_trap_to(thread, raw, at)?;
            }
        }
        Ok(Action::Resume(0))
    }

    fn on_entry(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        regs: &Regs,
        function: FunctionId,
        at: Addr,
    ) -> Result<Option<Action>> {
        let Some(task) = self.tasks.get(tid).map(|task| task.id) else { return Ok(None) };
        if self.is_paused() && !self.is_of_interest_while_paused(function, regs) {
            return Ok(None);
        }
        let Some(return_addr) = self.space.memory.read_u64(Addr(regs.sp())).map(Addr) else {
            self.anomalies.lost += 1;
            return Ok(None);
        };
        if self.cost.events == 0 && self.cost.known_cpu_ns == 0 {
            self.note_undisturbed_time();
        }
        let (frees, is_aligned) = self
            .settings
            .table
            .get(function)
            .map_or((false, false), |f| (matches!(f.kind, Kind::Free { .. }), f.align.is_some()));
        let is_wrapper = (frees || is_aligned) && self.space.wrapper_at(at) == Some(at);
        let mut entry = Entry {
            task,
            function,
            args: regs.arguments(),
            sp: regs.sp(),
            return_addr,
            module: self.space.module_at(at),
            caller_module: self.space.module_at(return_addr),
            family: self.space.family_of_call(at, return_addr, frees),
            caller_is_allocator: self.space.is_called_by_allocator(return_addr),
            is_wrapper,
            wrapper: is_wrapper.then_some(at),
        };
        let (model, table) = (&mut self.model, &self.settings.table);
        let mut context = StackQuestions { space: &mut self.space, regs, tid };
        let classified = self.calls.classify(&entry, table, &mut context, &mut |event| model.apply(&event));
        if classified == Classified::Nothing {
            return Ok(None);
        }
        let stack = if frees && !self.settings.free_stacks { StackId::EMPTY } else { self.unwind(thread, raw, at)? };
        entry.wrapper = self.space.wrapper_at(return_addr.sub(1));
        if entry.wrapper.is_some() {
            entry.family = self.space.family_through_wrapper(stack);
        }
        let time_ns = self.lived_ns();
        let (model, table) = (&mut self.model, &self.settings.table);
        let entered = self.calls.enter(&entry, stack, time_ns, table, &mut |event| model.apply(&event));
        if frees {
            self.count_event();
        }
        let Some(site) = entered.watch else { return Ok(None) };
        let ensured = match self.space.ensure_return_site(site, thread, raw) {
            Err(error @ TracerError::Unresponsive { .. }) => {
                let model = &mut self.model;
                self.calls.take_back_latest(task, &mut |event| model.apply(&event));
                return Err(error);
            }
            ensured => ensured?,
        };
        match ensured {
            Ensured::Watched => {
                self.stop_cost.enters(self.pid, tid);
                Ok(None)
            }
            Ensured::Impossible => {
                self.warn_once(UNSEEN_RETURNS.to_owned());
                // Its block will be freed some day: that is no error of the program.
                self.model.expect_unknown_frees();
                let model = &mut self.model;
                self.calls.give_up_latest(task, time_ns, &mut |event| model.apply(&event));
                self.count_event();
                Ok(None)
            }
            Ensured::Interrupted(status) => Ok(Some(Action::Instead(status))),
        }
    }

    /// The stack of a thread that stands at the entry `at`.
    fn unwind(&mut self, thread: &Stopped, raw: &RawRegs, at: Addr) -> Result<StackId> {
        let space = &mut self.space;
        let max_depth = self.settings.max_depth;
        let unwound = match &self.libunwind {
            None => space.unwind_at_entry(&raw.regs(), max_depth),
            Some(libunwind) => {
                let callers = libunwind.callers_of(thread, raw, at.0, max_depth)?;
                space.unwinder.intern(&callers.frames, callers.truncated)
            }
        };
        match unwound.quality {
            Quality::Complete => {}
            Quality::Guessed => self.anomalies.guessed_stacks += 1,
            Quality::Truncated => {
                self.anomalies.truncated_stacks += 1;
                self.anomalies.cut_stacks += u64::from(unwound.depth >= self.settings.max_depth);
            }
        }
        Ok(unwound.stack)
    }

    fn on_return(&mut self, tid: i32, site: Addr, regs: &Regs) -> Result<()> {
        let Some(task) = self.tasks.get(tid).map(|task| task.id) else { return Ok(()) };
        let at = Return { task, site, sp: regs.sp(), result: regs.result(), time_ns: self.lived_ns() };
        let model = &mut self.model;
        let left = self.calls.leave(&at, &mut self.space.original_memory(), &mut |event| model.apply(&event));
        let matched = left == Left::Matched;
        if matched {
            self.count_event();
        } else {
            self.end_watch_while_paused(site);
        }
        if self.space.breakpoints.get_mut(site).is_some_and(|breakpoint| breakpoint.count_return(matched)) {
            self.space.demote_return_site(site);
        }
        self.release_return_site(site)
    }

    /// Takes a return site of one shot away once no call returns there any more.
    fn release_return_site(&mut self, site: Addr) -> Result<()> {
        let is_once = self.space.breakpoints.get(site).is_some_and(|breakpoint| breakpoint.purposes.returns_once);
        if is_once && !self.calls.awaits(site) { self.space.end_return_site(site) } else { Ok(()) }
    }

    /// Does so for calls that will not return.
    pub(super) fn release_dropped_sites(&mut self) {
        for site in self.calls.take_dropped_sites() {
            if let Err(error) = self.release_return_site(site) {
                tracing::warn!("{error}");
            }
        }
    }

    fn count_event(&mut self) {
        self.cost.events += 1;
        let own = self.model.totals().live_bytes.saturating_sub(self.inherited_bytes);
        self.progress.event();
        self.progress.live(&mut self.shown_bytes, own);
    }

    /// Before a signal is delivered: no handler may see a pad's address, and a call that the handler interrupts is marked.
    pub(super) fn before_signal(&mut self, tid: i32, thread: &Stopped) -> Result<()> {
        if let Some(task) = self.tasks.get(tid) {
            self.calls.signal_delivered(task.id);
        }
        self.leave_pad_for_signal(tid, thread)
    }

    /// Moves a thread that is in a pad back to the original code. If the replaced instruction has not run yet, it goes
    /// back to the breakpoint, whose hit has been counted already.
    pub(super) fn leave_pad_for_signal(&mut self, tid: i32, thread: &Stopped) -> Result<()> {
        let raw = thread.registers()?;
        let Some(resume) = self.space.pad_resume(Addr(raw.0.rip)) else { return Ok(()) };
        leave_pad(thread, &raw, resume)?;
        thread.move_fault_address(raw.0.rip, resume.pc.0)?;
        if self.space.breakpoints.get(resume.pc).is_some()
            && let Some(task) = self.tasks.get_mut(tid)
        {
            task.counted.push(resume.pc, raw.0.rsp.wrapping_add(u64::from(resume.drop)));
        }
        Ok(())
    }

    fn counted_before_signal(&mut self, tid: i32, at: Addr, sp: u64) -> bool {
        self.tasks.get_mut(tid).is_some_and(|task| task.counted.take(at, sp))
    }

    /// A SIGTRAP whose address is none of our breakpoints.
    fn on_foreign_trap(&mut self, tid: i32, thread: &Stopped, raw: &RawRegs, trap: Addr) -> Result<Action> {
        if self.space.breakpoints.was_removed(trap) && thread.is_breakpoint_trap()? && self.space.is_clean(trap)? {
            pass_trap_to(thread, raw, trap)?;
            return Ok(Action::Resume(0));
        }
        self.deliver_trap(tid, thread)
    }
}

/// The rare questions of [`crate::calls`], answered from the maps and by a walk of the stack.
struct StackQuestions<'a> {
    space: &'a mut AddressSpace,
    regs: &'a Regs,
    tid: i32,
}

impl CallContext for StackQuestions<'_> {
    fn same_stack(&mut self, a: u64, b: u64) -> bool {
        self.space.same_mapping(Addr(a), Addr(b), self.tid)
    }

    fn signal_frame_between(&mut self, outer_sp: u64) -> bool {
        let space = &mut *self.space;
        let mut found = false;
        let mut memory = OriginalMemory { memory: &mut space.memory, breakpoints: &space.breakpoints };
        space.unwinder.walk(self.regs, &mut memory, true, &mut |frame| {
            if frame.cfa.is_some_and(|cfa| cfa.0 > outer_sp) && !frame.is_signal_frame {
                return ControlFlow::Break(());
            }
            found |= frame.is_signal_frame;
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
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
