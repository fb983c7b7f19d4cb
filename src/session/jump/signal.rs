//! Before a signal is delivered, and before the program is let go: a thread that stands in the routine or in a moved
//! instruction is set to where it would be without us, so that a handler, an exception, a longjmp or a core dump sees
//! an untouched program.

use super::JumpState;
use super::fallback::Cause;
use crate::addr::{Addr, TaskId};
use crate::arch::emulate::Outcome;
use crate::arch::step::{StepOver, plan};
use crate::arch::{Regs, reg};
use crate::event::{EventKind, Missed};
use crate::jump::frames;
use crate::jump::layout::{TIMED, TIMED_NEVER};
use crate::jump::shared::Shared;
use crate::jump::undo::Undone;
use crate::patches::PcLocation;
use crate::session::process::Process;
use crate::session::stop::Action;
use crate::session::stops::Stops;
use crate::tracer::Result;
use crate::tracer::code::write::write_word;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::{SIGBUS, SIGILL, SIGSEGV};

/// `push r64` without and with a prefix for r8 to r15.
const PUSH: std::ops::RangeInclusive<u8> = 0x50..=0x57;
const REX_B: u8 = 0x41;

/// Where the routine writes on the stack, from [`RED_ZONE`] bytes below the stack pointer on: what it keeps there,
/// registers that are pushed, and its locals.
const OF_ITS_OWN: u64 = RED_ZONE + 32;

/// Bytes below the stack pointer that no handler writes to (System V ABI for x86-64, 3.2.2).
const RED_ZONE: u64 = 128;

/// More than what is moved of a function, in bytes.
const LONGEST: u64 = 32;

const FAULTED: &str = "memory that heaptrace had added to the program can't be used any more: has the program unmapped it? Calls were seen at stops \
                       from then on";

impl Process {
    /// Takes a stopped thread out of what is ours, and its calls in progress over.
    pub(in crate::session) fn leave_routine(&mut self, tid: i32, thread: &Stopped) -> Result<()> {
        if self.jump.on().is_none() {
            return Ok(());
        }
        self.space.image.memory.new_stop(tid);
        let raw = self.take_out_of_routine(tid, thread)?;
        self.hand_over(tid, thread, &raw)?;
        Ok(())
    }

    /// Takes a stopped thread out of the routine and of moved instructions. Returns the registers that it has then.
    pub(super) fn take_out_of_routine(&mut self, tid: i32, thread: &Stopped) -> Result<RawRegs> {
        self.settle();
        let mut raw = thread.registers()?;
        if let Some(regs) = self.undo(tid, &raw)? {
            raw.set_regs(&regs);
            thread.set_registers(&raw)?;
        }
        if let PcLocation::Moved(at) = self.space.image.locate(Addr(raw.0.rip))
            && let Some(regs) = self.run_moved(at, raw.regs())
        {
            raw.set_regs(&regs);
            thread.set_registers(&raw)?;
        }
        Ok(raw)
    }

    /// Where a thread in the routine goes instead. None if it is not there.
    fn undo(&mut self, tid: i32, raw: &RawRegs) -> Result<Option<Regs>> {
        let Some(jump) = self.jump.on() else { return Ok(None) };
        let undone = jump.place(jump.cell_of(tid)).undo(&raw.regs(), jump.shared(), &mut self.space.image.memory);
        Ok(match undone {
            None => None,
            Some(Undone::NotBegun(_, regs)) => Some(regs),
            Some(Undone::Counted(stub, regs)) => {
                self.settle();
                if let Some(task) = self.tasks.get_mut(tid) {
                    task.counted.push(stub.entry, regs.sp());
                }
                Some(regs)
            }
            Some(Undone::Left(regs, ended)) => {
                self.settle();
                if let Some((frame, result)) = ended {
                    self.tell_end(tid, &frame, result);
                }
                Some(regs)
            }
        })
    }

    /// Carries out the moved instructions from the one that stood at `at` on, until the thread can go on in the
    /// program's code. None if one of them can't be.
    fn run_moved(&mut self, mut at: Addr, mut regs: Regs) -> Option<Regs> {
        let jump = self.jump.on()?;
        let entry = jump.stubs.iter().map(|stub| stub.entry).find(|entry| at > *entry && at.0 - entry.0 < LONGEST)?;
        let end = self.space.image.moved_end(entry)?;
        while (entry..end).contains(&at) {
            let code = self.space.image.original_bytes(at, 15);
            let push = match *code.first_chunk::<2>()? {
                [REX_B, push] if PUSH.contains(&push) => Some((usize::from(push - PUSH.start()) + 8, 2)),
                [push, _] if PUSH.contains(&push) => Some((usize::from(push - PUSH.start()), 1)),
                _ => None,
            };
            match push {
                Some((number, len)) => {
                    let value = regs.gpr.get(dwarf_number(number)?).copied()?;
                    let sp = regs.sp().wrapping_sub(8);
                    write_word(&mut self.space.image.memory, Addr(sp), value).ok()?;
                    regs.gpr[reg::RSP] = sp;
                    at = at.add(len);
                }
                None => {
                    let StepOver::Emulate(instruction) = plan(&code, at).ok()?.step else { return None };
                    regs.rip = at.0;
                    if instruction.run(&mut regs, &mut self.space.image.original_memory()) != Outcome::Done {
                        return None;
                    }
                    // perhaps elsewhere
                    at = Addr(regs.rip);
                }
            }
        }
        regs.rip = at.0;
        Some(regs)
    }

    /// Whether the signal of this number is a fault of the routine's own.
    pub(in crate::session) fn is_routine_fault(&self, signal: i32, thread: &Stopped) -> Result<bool> {
        let Some(jump) = self.jump.on() else { return Ok(false) };
        if !matches!(signal, SIGSEGV | SIGBUS | SIGILL) {
            return Ok(false);
        }
        Ok(jump.contains(Addr(thread.registers()?.0.rip)) && thread.signal_code()? > 0)
    }

    /// The routine has faulted: the thread goes on as if it had not been there.
    pub(in crate::session) fn after_routine_fault(
        &mut self,
        tid: i32,
        thread: &Stopped,
        signal: i32,
        stops: &mut Stops,
    ) -> Result<Action> {
        let at = thread.fault_address()?;
        let raw = thread.registers()?;
        let pc = Addr(raw.0.rip);
        if at.wrapping_sub(raw.0.rsp.wrapping_sub(RED_ZONE)) < OF_ITS_OWN
            && let Some(action) = self.see_without_stack(tid, thread, &raw, stops)?
        {
            return Ok(action);
        }
        self.leave_routine(tid, thread)?;
        self.note_mode(tid);
        if let Some(jump) = self.jump.on()
            && jump.place(None).is_at_clock(pc)
        {
            jump.shared().set_half(TIMED, TIMED_NEVER);
            return Ok(Action::Resume(0));
        }
        if let Some(jump) = self.jump.on()
            && let Some(cell) = jump.cell_of(tid)
            && jump.knows_stack(cell, at)
        {
            // What was behind the thread's stack, and belonged to its mapping, is gone: it asks next time.
            jump.set_stack(cell, u64::MAX, 0);
            return Ok(Action::Resume(0));
        }
        self.warn_once(FAULTED.to_owned());
        // what could not be fetched is not there any more, and must not be jumped to
        if signal == SIGSEGV && at == pc.0 {
            self.space.image.forget_routine()?;
        } else {
            self.space.image.stop_routine()?;
        }
        self.go_back_to_stops(Cause::Unusable)?;
        // nobody knows where it would go on
        let is_left = thread.registers()?.0.rip != pc.0;
        if !is_left {
            self.tell(EventKind::Missed(Missed::Call));
        }
        Ok(Action::Resume(if is_left { 0 } else { signal }))
    }

    /// The stubs are not jumped to any more: what follows is seen at stops.
    pub(in crate::session) fn go_back_to_stops(&mut self, cause: Cause) -> Result<()> {
        self.space.probe_anew(&self.settings.table, self.whose_threads())?;
        if let JumpState::On(jump) = &mut self.jump {
            jump.at_stops.extend(jump.stubs.iter().map(|stub| (stub.entry, cause)));
        }
        Ok(())
    }

    /// The stack has no room for what the routine puts there. The function itself may need less: the call is seen at
    /// this stop.
    fn see_without_stack(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        stops: &mut Stops,
    ) -> Result<Option<Action>> {
        self.space.image.memory.new_stop(tid);
        self.stop_cost.stops(self.pid, tid);
        self.settle();
        let Some(jump) = self.jump.on() else { return Ok(None) };
        let undone = jump.place(jump.cell_of(tid)).undo(&raw.regs(), jump.shared(), &mut self.space.image.memory);
        let Some(Undone::NotBegun(stub, entered)) = undone else { return Ok(None) };
        self.see_at_stop(tid, thread, raw, &stub, &entered, stops).map(Some)
    }

    /// A thread is about to end: what it was in will not return, and its cell is free for another one.
    pub(in crate::session) fn free_cell(&mut self, tid: i32, task: TaskId) {
        let Some(jump) = self.jump.on() else { return };
        let Some(cell) = jump.cell_of(tid) else { return };
        self.settle();
        let left = self.jump.on().map(|jump| frames::of_cell(jump.shared(), cell)).unwrap_or_default();
        for frame in &left {
            self.adopt(tid, cell, frame);
        }
        let JumpState::On(jump) = &mut self.jump else { return };
        frames::set_depth(jump.shared(), cell, 0);
        let owner = jump.take_cell(tid);
        for began in owner.into_iter().flat_map(|owner| owner.began) {
            self.abandon(task, &began);
        }
    }
}

/// The number in DWARF, as in [`Regs::gpr`], of the register with this number in instructions.
fn dwarf_number(number: usize) -> Option<usize> {
    const NUMBERS: [usize; 8] = [reg::RAX, reg::RCX, reg::RDX, reg::RBX, reg::RSP, reg::RBP, reg::RSI, reg::RDI];
    if number < 8 { NUMBERS.get(number).copied() } else { (number < 16).then_some(number) }
}
