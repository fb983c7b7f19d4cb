//! Before a signal is delivered, and before the program is let go: a thread that stands in the routine or in a moved
//! instruction is set to where it would be without us, so that a handler, an exception, a longjmp or a core dump sees
//! an untouched program.

use super::fallback::Cause;
use super::{JumpEngine, JumpState};
use crate::arch::emulate::Outcome;
use crate::arch::step::{StepOver, plan};
use crate::arch::{Regs, reg};
use crate::base::addr::{Addr, TaskId};
use crate::breakpoints::patches::PcLocation;
use crate::event::{EventKind, Missed};
use crate::jump::frames;
use crate::jump::layout::{TIMED, TIMED_NEVER};
use crate::jump::shared::Shared;
use crate::jump::undo::Undone;
use crate::session::observer::Observer;
use crate::session::sigtrap::SigtrapGuard;
use crate::session::stop::Action;
use crate::session::tracee::Tracee;
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

const FAULTED: &str = "memory that heaptrace had added to the program became unusable: has the program unmapped it? \
    From then on heaptrace recorded calls at stops";

impl JumpEngine {
    /// Takes a stopped thread out of what is ours, and its calls in progress over.
    pub(in crate::session) fn leave_routine(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        thread: &Stopped,
    ) -> Result<()> {
        if self.on().is_none() {
            return Ok(());
        }
        tracee.space.image.memory.new_stop(thread.tid());
        let raw = self.take_out_of_routine(tracee, observer, thread)?;
        self.hand_over(tracee, observer, thread, &raw)?;
        Ok(())
    }

    /// Takes a stopped thread out of the routine and of moved instructions. Returns the registers that it has then.
    pub(super) fn take_out_of_routine(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        thread: &Stopped,
    ) -> Result<RawRegs> {
        self.settle(tracee, observer);
        let mut raw = thread.registers()?;
        if let Some(regs) = self.undo(tracee, observer, thread.tid(), &raw) {
            raw.set_regs(&regs);
            thread.set_registers(&raw)?;
        }
        if let PcLocation::Moved(at) = tracee.space.image.locate(Addr(raw.0.rip))
            && let Some(regs) = self.run_moved(tracee, at, raw.regs())
        {
            raw.set_regs(&regs);
            thread.set_registers(&raw)?;
        }
        Ok(raw)
    }

    /// Where a thread in the routine goes instead. None if it is not there.
    fn undo(&mut self, tracee: &mut Tracee, observer: &mut Observer, tid: i32, raw: &RawRegs) -> Option<Regs> {
        let jump = self.on()?;
        let undone = jump.place(jump.cell_of(tid)).undo(&raw.regs(), jump.shared(), &mut tracee.space.image.memory);
        match undone {
            None => None,
            Some(Undone::NotBegun(_, regs)) => Some(regs),
            Some(Undone::Counted(stub, regs)) => {
                self.settle(tracee, observer);
                if let Some(task) = tracee.tasks.get_mut(tid) {
                    task.counted.push(stub.entry, regs.sp());
                }
                Some(regs)
            }
            Some(Undone::Left(regs, ended)) => {
                self.settle(tracee, observer);
                if let Some((frame, result)) = ended {
                    self.tell_end(tracee, observer, tid, &frame, result);
                }
                Some(regs)
            }
        }
    }

    /// Carries out the moved instructions from the one that stood at `at` on, until the thread can go on in the
    /// program's code. None if one of them can't be.
    fn run_moved(&self, tracee: &mut Tracee, mut at: Addr, mut regs: Regs) -> Option<Regs> {
        let jump = self.on()?;
        let entry = jump.stubs.iter().map(|stub| stub.entry).find(|entry| at > *entry && at.0 - entry.0 < LONGEST)?;
        let end = tracee.space.image.moved_end(entry)?;
        while (entry..end).contains(&at) {
            let code = tracee.space.image.original_bytes(at, 15);
            let push = match *code.first_chunk::<2>()? {
                [REX_B, push] if PUSH.contains(&push) => Some((usize::from(push - PUSH.start()) + 8, 2)),
                [push, _] if PUSH.contains(&push) => Some((usize::from(push - PUSH.start()), 1)),
                _ => None,
            };
            match push {
                Some((number, len)) => {
                    let value = regs.gpr.get(dwarf_number(number)?).copied()?;
                    let sp = regs.sp().wrapping_sub(8);
                    write_word(&mut tracee.space.image.memory, Addr(sp), value).ok()?;
                    regs.gpr[reg::RSP] = sp;
                    at = at.add(len);
                }
                None => {
                    let StepOver::Emulate(instruction) = plan(&code, at).ok()?.step else { return None };
                    regs.rip = at.0;
                    if instruction.run(&mut regs, &mut tracee.space.image.original_memory()) != Outcome::Done {
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
        let Some(jump) = self.on() else { return Ok(false) };
        if !matches!(signal, SIGSEGV | SIGBUS | SIGILL) {
            return Ok(false);
        }
        Ok(jump.contains(Addr(thread.registers()?.0.rip)) && thread.signal_code()? > 0)
    }

    /// Whether a thread whose fault is the routine's own has no room on its stack for what the routine puts there. The
    /// function itself may need less.
    pub(in crate::session) fn lacks_stack(thread: &Stopped) -> Result<bool> {
        let at = thread.fault_address()?;
        Ok(at.wrapping_sub(thread.registers()?.0.rsp.wrapping_sub(RED_ZONE)) < OF_ITS_OWN)
    }

    /// The routine has faulted: the thread goes on as if it had not been there.
    pub(in crate::session) fn after_routine_fault(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        sigtrap: &SigtrapGuard,
        thread: &Stopped,
        signal: i32,
    ) -> Result<Action> {
        let tid = thread.tid();
        let at = thread.fault_address()?;
        let pc = Addr(thread.registers()?.0.rip);
        self.leave_routine(tracee, observer, thread)?;
        self.note_mode(tracee, observer, sigtrap, tid);
        if let Some(jump) = self.on()
            && jump.place(None).is_at_clock(pc)
        {
            jump.shared().set_half(TIMED, TIMED_NEVER);
            return Ok(Action::Resume(0));
        }
        if let Some(jump) = self.on()
            && let Some(cell) = jump.cell_of(tid)
            && jump.knows_stack(cell, at)
        {
            // What was behind the thread's stack, and belonged to its mapping, is gone: it asks next time.
            jump.set_stack(cell, u64::MAX, 0);
            return Ok(Action::Resume(0));
        }
        tracee.warn_once(FAULTED.to_owned());
        // what could not be fetched is not there any more, and must not be jumped to
        if signal == SIGSEGV && at == pc.0 {
            tracee.space.image.forget_routine()?;
        } else {
            tracee.space.image.stop_routine()?;
        }
        self.go_back_to_stops(tracee, Cause::Unusable)?;
        // nobody knows where it would go on
        let is_left = thread.registers()?.0.rip != pc.0;
        if !is_left {
            observer.tell(EventKind::Missed(Missed::Call));
        }
        Ok(Action::Resume(if is_left { 0 } else { signal }))
    }

    /// The stubs are not jumped to any more: what follows is seen at stops.
    pub(in crate::session) fn go_back_to_stops(&mut self, tracee: &mut Tracee, cause: Cause) -> Result<()> {
        tracee.space.probe_anew(&tracee.settings.table, tracee.whose_threads())?;
        if let JumpState::On(jump) = &mut self.state {
            jump.at_stops.extend(jump.stubs.iter().map(|stub| (stub.entry, cause)));
        }
        Ok(())
    }

    /// A thread is about to end: what it was in will not return, and its cell is free for another one.
    pub(in crate::session) fn free_cell(&mut self, tracee: &mut Tracee, observer: &mut Observer, task: TaskId) {
        let tid = task.tid;
        let Some(jump) = self.on() else { return };
        let Some(cell) = jump.cell_of(tid) else { return };
        self.settle(tracee, observer);
        let left = self.on().map(|jump| frames::of_cell(jump.shared(), cell)).unwrap_or_default();
        for frame in &left {
            self.adopt(tracee, observer, tid, frame);
        }
        let JumpState::On(jump) = &mut self.state else { return };
        frames::set_depth(jump.shared(), cell, 0);
        let owner = jump.take_cell(tid);
        for began in owner.into_iter().flat_map(|owner| owner.began) {
            began.abandon(task, observer);
        }
    }
}

/// The number in DWARF, as in [`Regs::gpr`], of the register with this number in instructions.
fn dwarf_number(number: usize) -> Option<usize> {
    const NUMBERS: [usize; 8] = [reg::RAX, reg::RCX, reg::RDX, reg::RBX, reg::RSP, reg::RBP, reg::RSI, reg::RDI];
    if number < 8 { NUMBERS.get(number).copied() } else { (number < 16).then_some(number) }
}
