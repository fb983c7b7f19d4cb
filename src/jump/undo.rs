//! What it means that a thread stands in the routine or in a stub, and how it is set back to where it would be without
//! us: to the function's first instruction, or behind the call.
//!
//! The routine saves registers by straight code to places that do not move, so its labels tell for each instruction
//! where they are.

use super::frames::{self, Frame, copy_in};
use super::layout::{
    CELL_HEAD, CELL_RING, CHANGED, COUNTED, FLAG_BEGAN, FRAME_SLOT, RECORD_KEY, REMOVES, SEQ, StubKind, cell_at,
    record_at,
};
use super::sampling::{self, Counted};
use super::shared::Shared;
use super::stub::{
    BACK, DECIDED, ENTERED, ENTRIES, LEFT, LOWERED, PASS, POPPED, POPPED_RESULT, PUSHED, PUSHED_RESULT, RAISED,
    STUB_SIZE, STUBS, Stub,
};
use crate::arch::{Regs, reg};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;

/// Where the parts of the routine are, in bytes from the beginning of the code region: labels of `routine.s`.
#[allow(missing_docs, reason = "they are explained where they stand")]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Code {
    pub begin: u64,
    pub long: u64,
    pub fast_malloc: u64,
    pub fast_bytes: u64,
    pub fast_calls: u64,
    pub fast_counted: u64,
    pub fast_free: u64,
    pub fast_passed: u64,
    pub enter: u64,
    pub enter_body: u64,
    pub clock_entered: u64,
    pub clock_walked: u64,
    pub walked: u64,
    pub claimed: u64,
    pub framed: u64,
    pub entered: u64,
    pub enter_end: u64,
    pub drawn: u64,
    pub change: u64,
    pub remove: u64,
    pub taken_out: u64,
    pub remove_end: u64,
    pub realloc: u64,
    pub began: u64,
    pub commit: u64,
    pub commit_key: u64,
    pub commit_head: u64,
    pub committed: u64,
    pub removed: u64,
    pub committed_end: u64,
    pub committed_done: u64,
    pub full_enter: u64,
    pub count: u64,
    pub count_bytes: u64,
    pub count_calls: u64,
    pub counted: u64,
    pub counted_end: u64,
    pub counted_done: u64,
    pub nested: u64,
    pub claim: u64,
    pub copy: u64,
    pub copied: u64,
    pub pass: u64,
    pub pass_end: u64,
    pub pass_done: u64,
    pub ask: u64,
    pub leave: u64,
    pub leave_body: u64,
    pub released: u64,
    pub ended_head: u64,
    pub left: u64,
    pub left_done: u64,
    pub full_leave: u64,
    pub lost: u64,
    pub foreign: u64,
    pub end: u64,
}

/// What has become of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undone {
    /// It has not begun: the thread goes to the function's first instruction, with these registers. Nothing was
    /// recorded.
    NotBegun(Stub, Regs),
    /// The same, but what is recorded before the function runs was: when the thread comes to the first instruction
    /// again, that counts no more. A frame that it has made is still there.
    Counted(Stub, Regs),
    /// The function has run: the thread goes on behind the call, with these registers. The frame, if its end is yet to
    /// be told, with the function's result.
    Left(Regs, Option<(Frame, u64)>),
}

/// The saved registers, in the order in which they are pushed, and the lengths of the instructions that push and pop
/// them.
const SAVED: [(usize, u64); 8] = [
    (reg::RCX, 1),
    (reg::RDX, 1),
    (reg::RSI, 1),
    (reg::RDI, 1),
    (reg::R8, 2),
    (reg::R9, 2),
    (reg::R10, 2),
    (reg::R11, 2),
];
/// Bytes of `lea rsp, [rsp+32]`, and what it takes away.
const LOCALS_CODE: u64 = 5;
const LOCALS: u64 = 32;
/// Among the locals: the steps that are left (u32), and how the call is picked (u32).
const STEPS_LEFT: u64 = 24;
const CARRY: u64 = 1;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;

/// What is needed to undo.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Where the code region is.
    pub region: Addr,
    /// The labels.
    pub code: &'a Code,
    /// The stubs, by number.
    pub stubs: &'a [Stub],
    /// The cell of the thread.
    pub cell: Option<u16>,
}

impl Place<'_> {
    /// Whether a program counter is in the routine or in a stub.
    pub fn contains(&self, pc: Addr) -> bool {
        pc >= self.region && pc.0 - self.region.0 < ENTRIES
    }

    /// Whether a program counter is at one of the instructions that read the timestamp counter, which a program may
    /// have been forbidden.
    pub fn is_at_clock(&self, pc: Addr) -> bool {
        let clocks = [self.code.clock_entered, self.code.clock_walked];
        pc.0.checked_sub(self.region.0).is_some_and(|offset| clocks.contains(&offset))
    }

    /// Where the saved registers of a thread in the routine begin, and how many are on the stack: those that were
    /// pushed and not popped yet, the oldest first. None where that is all.
    fn saved(&self, offset: u64) -> Option<usize> {
        let code = self.code;
        if (code.long..code.enter).contains(&offset) {
            // rcx and rdx, whose instructions have a byte each
            let parts = [(code.fast_free, code.fast_passed), (code.fast_malloc, code.fast_counted)];
            let Some((begin, end)) = parts.into_iter().find(|(begin, _)| offset >= *begin) else { return Some(2) };
            let [pushed, popped] = [begin, end].map(|from| offset.saturating_sub(from).min(2));
            return Some((pushed - popped) as usize);
        }
        for (from, to) in [(code.enter, code.enter_body), (code.leave, code.leave_body)] {
            if (from..to).contains(&offset) {
                let mut at = from;
                return Some(
                    SAVED
                        .iter()
                        .take_while(|(_, len)| {
                            at += len;
                            at <= offset
                        })
                        .count(),
                );
            }
        }
        for from in [code.enter_end, code.committed_end, code.counted_end, code.pass_end, code.left] {
            let first = from + LOCALS_CODE;
            let len: u64 = SAVED.iter().map(|(_, len)| len).sum();
            if (first..=first + len).contains(&offset) {
                let mut at = first;
                let popped = SAVED
                    .iter()
                    .rev()
                    .take_while(|(_, len)| {
                        at += len;
                        at <= offset
                    })
                    .count();
                return Some(SAVED.len() - popped);
            }
        }
        None
    }

    /// Sets a thread back that stands at `regs.rip` in the code region: completes or takes back what the routine had
    /// begun in the shared region, and says where the thread goes. None if the thread is not there, or its stack or
    /// cell is not as the routine leaves it.
    pub fn undo<M>(&self, regs: &Regs, shared: &dyn Shared, memory: &mut M) -> Option<Undone>
    where
        M: ReadMemory + ?Sized,
    {
        if !self.contains(Addr(regs.rip)) {
            return None;
        }
        let offset = regs.rip - self.region.0;
        if offset >= STUBS {
            let stub = self.stubs.get(((offset - STUBS) / STUB_SIZE) as usize)?;
            return self.in_stub(stub, (offset - STUBS) % STUB_SIZE, regs, shared, memory);
        }
        let mut regs = *regs;
        // up to the return address into the stub
        match self.saved(offset) {
            Some(count) => {
                let mut at = regs.sp();
                for (register, _) in SAVED.iter().take(count).rev() {
                    regs.gpr[*register] = memory.read_u64(Addr(at))?;
                    at = at.wrapping_add(8);
                }
                regs.gpr[reg::RSP] = at;
            }
            None => {
                let mut at = regs.sp().wrapping_add(LOCALS);
                // what the routine holds in registers is looked at below
                let held = regs;
                for (register, _) in SAVED.iter().rev() {
                    regs.gpr[*register] = memory.read_u64(Addr(at))?;
                    at = at.wrapping_add(8);
                }
                regs.gpr[reg::RSP] = at;
                return self.in_body(offset, &held, regs, shared, memory);
            }
        }
        self.in_body(offset, &regs, regs, shared, memory)
    }

    /// A thread in the routine: `held` are its registers, `regs` those that it had when it called it.
    fn in_body<M>(
        &self,
        offset: u64,
        held: &Regs,
        mut regs: Regs,
        shared: &dyn Shared,
        memory: &mut M,
    ) -> Option<Undone>
    where
        M: ReadMemory + ?Sized,
    {
        let back = memory.read_u64(Addr(regs.sp()))?;
        let in_stubs = back.checked_sub(self.region.0 + STUBS)?;
        let stub = self.stubs.get((in_stubs / STUB_SIZE) as usize)?;
        regs.gpr[reg::RSP] = regs.sp().wrapping_add(8);
        regs.gpr[reg::RAX] = memory.read_u64(Addr(regs.sp()))?;
        regs.gpr[reg::RSP] = regs.sp().wrapping_add(8);
        // the program may have called us from elsewhere
        match (in_stubs % STUB_SIZE, stub.way, offset >= self.code.leave) {
            (LEFT, StubKind::Alloc | StubKind::AllocOut | StubKind::Realloc, true) => {
                return self.in_leave(offset, regs, shared, memory);
            }
            (ENTERED, _, false) => {}
            _ => return None,
        }
        regs.rip = stub.entry.0;
        let code = self.code;
        let what = |register: usize| held.gpr.get(register).copied().unwrap_or(0);
        let local = memory.read_u64(Addr(held.sp().wrapping_add(STEPS_LEFT)));
        let picked = local.filter(|_| self.saved(offset).is_none()).map(|word| word >> 32);
        let is_removing = (code.remove..=code.remove_end).contains(&offset);
        if (code.commit..code.committed_done).contains(&offset) || is_removing {
            if (code.commit..code.committed).contains(&offset) {
                let held = what(reg::RCX);
                let key = if offset == code.commit { held.wrapping_mul(2).wrapping_add(1) } else { held };
                publish(shared, self.cell?, key);
            }
            let block = Addr(regs.gpr.get(reg::RDI).copied().unwrap_or(0));
            let is_taken_out = (code.taken_out..code.remove_end).contains(&offset);
            if is_taken_out && (offset > code.taken_out || held.rflags & ZERO != 0) {
                sampling::uncount_in_page(shared, block);
            } else if picked == Some(REMOVES)
                && !(code.removed..code.committed_done).contains(&offset)
                && offset != code.remove_end
            {
                sampling::note_dead(shared, block);
            }
            return Some(Undone::Counted(*stub, regs));
        }
        let counted = match offset {
            _ if (code.count_bytes..code.count_calls).contains(&offset) => Counted::Left,
            _ if (code.fast_bytes..code.fast_calls).contains(&offset) => Counted::Left,
            _ if (code.count_calls..code.counted).contains(&offset) => Counted::Bytes,
            _ if (code.fast_calls..code.fast_counted).contains(&offset) => Counted::Bytes,
            _ if (code.counted..code.counted_done).contains(&offset) => Counted::Wholly,
            _ if (code.fast_counted..code.fast_free).contains(&offset) => Counted::Wholly,
            // with a frame, if it was counted
            _ if (code.entered..code.drawn).contains(&offset) => Counted::Wholly,
            _ => Counted::Not,
        };
        if picked == Some(CHANGED) && offset != code.enter_body && offset != code.change {
            self.uncount(stub, &regs, Counted::Left, shared);
        }
        let has_frame = (code.claimed..code.realloc).contains(&offset)
            || stub.way == StubKind::Realloc
                && ((code.began..code.commit).contains(&offset)
                    || (code.committed_done..code.nested).contains(&offset));
        let copy = if (code.claimed..code.framed).contains(&offset) {
            copy_in(what(reg::RDX))
        } else if has_frame {
            None
        } else if (code.copy..code.copied).contains(&offset) || offset == code.claim && held.rflags & CARRY == 0 {
            Some((what(reg::RDX) % 64) as u32)
        } else if (code.walked..code.claimed).contains(&offset)
            || (code.realloc..code.commit).contains(&offset)
            || (code.committed_done..code.nested).contains(&offset)
        {
            copy_in(what(reg::RSI))
        } else {
            None
        };
        if let Some(copy) = copy {
            frames::release_copy(shared, copy);
        }
        if (code.claimed..code.framed).contains(&offset) {
            let cell = self.cell?;
            let newest = frames::depth(shared, cell).saturating_sub(1);
            shared.set_word(frames::frame_at(cell, newest) + FRAME_SLOT, 0);
        } else if (code.fast_bytes..code.fast_free).contains(&offset) {
            self.uncount(stub, &regs, counted, shared);
        } else if has_frame || (code.count..code.counted_done).contains(&offset) {
            let has_own = self.drop_own(stub, &regs, counted, shared);
            if !has_own && !has_frame {
                self.uncount(stub, &regs, counted, shared);
            }
        }
        self.trim(shared);
        Some(Undone::NotBegun(*stub, regs))
    }

    /// Frames that are empty are not counted any more: those that were claimed, and dead ones that the thread was about
    /// to drop.
    fn trim(&self, shared: &dyn Shared) {
        let Some(cell) = self.cell else { return };
        let depth = frames::depth(shared, cell);
        let is_empty = |index: &u32| shared.word(frames::frame_at(cell, *index) + FRAME_SLOT) == 0;
        let empty = (0..depth).rev().take_while(is_empty).count() as u32;
        if empty > 0 {
            frames::set_depth(shared, cell, depth - empty);
        }
    }

    /// A thread behind the original: `regs` are those of its return, but for what the stub has pushed.
    fn in_leave<M>(&self, offset: u64, mut regs: Regs, shared: &dyn Shared, memory: &mut M) -> Option<Undone>
    where
        M: ReadMemory + ?Sized,
    {
        let code = self.code;
        let slot = Addr(regs.sp());
        let is_over = (code.left..code.left_done).contains(&offset);
        let is_released = (code.released..code.left).contains(&offset);
        if is_released {
            if let Some(frame) = frames::at_slot(shared, self.cell, slot) {
                shared.set_word(frames::frame_at(frame.cell, frame.index) + FRAME_SLOT, 0);
            }
            publish(shared, self.cell?, shared.word(SEQ).wrapping_mul(2));
        }
        let frame = if is_over || is_released { None } else { frames::at_slot(shared, self.cell, slot) };
        regs.rip = match &frame {
            Some(frame) => {
                frames::forget(shared, self.cell, frame);
                frame.caller.0
            }
            None => memory.read_u64(slot)?,
        };
        // behind that int3 the tracer has told its end
        let frame = frame.filter(|frame| offset != code.foreign + 1 && frame.picked() != COUNTED);
        if self.contains(Addr(regs.rip)) {
            return None;
        }
        regs.gpr[reg::RSP] = regs.sp().wrapping_add(8);
        Some(Undone::Left(regs, frame.map(|frame| (frame, regs.result()))))
    }

    fn in_stub<M>(&self, stub: &Stub, at: u64, regs: &Regs, shared: &dyn Shared, memory: &mut M) -> Option<Undone>
    where
        M: ReadMemory + ?Sized,
    {
        let mut regs = *regs;
        let has_frame = stub.way.has_frame();
        if has_frame && (BACK..PASS).contains(&at) {
            match at {
                BACK => regs.gpr[reg::RSP] = regs.sp().wrapping_sub(8),
                LOWERED | POPPED_RESULT => {}
                PUSHED_RESULT | LEFT => {
                    regs.gpr[reg::RAX] = memory.read_u64(Addr(regs.sp()))?;
                    regs.gpr[reg::RSP] = regs.sp().wrapping_add(8);
                }
                _ => return None,
            }
            let offset = if at >= LEFT { self.code.left } else { self.code.leave };
            return self.in_leave(offset, regs, shared, memory);
        }
        let passed = regs.rflags & CARRY != 0 || !has_frame && at == POPPED && regs.rflags & ZERO != 0 || at == PASS;
        match at {
            PUSHED | 19 | ENTERED => {
                regs.gpr[reg::RAX] = memory.read_u64(Addr(regs.sp()))?;
                regs.gpr[reg::RSP] = regs.sp().wrapping_add(8);
            }
            RAISED if has_frame => regs.gpr[reg::RSP] = regs.sp().wrapping_sub(8),
            _ => {}
        }
        regs.rip = stub.entry.0;
        let is_entered = at >= ENTERED && !(passed && at <= DECIDED) && at != PASS;
        if !is_entered {
            let was_called = at >= ENTERED;
            if was_called && regs.rflags & (CARRY | SIGN) == CARRY | SIGN {
                self.uncount(stub, &regs, Counted::Wholly, shared);
            }
            return Some(Undone::NotBegun(*stub, regs));
        }
        if !has_frame {
            return Some(Undone::Counted(*stub, regs));
        }
        let frame = frames::at_slot(shared, self.cell, Addr(regs.sp()));
        if frame.is_some_and(|frame| frame.what & FLAG_BEGAN != 0) {
            return Some(Undone::Counted(*stub, regs));
        }
        self.drop_own(stub, &regs, Counted::Wholly, shared);
        Some(Undone::NotBegun(*stub, regs))
    }

    /// The call with these registers at its entry has not begun after all: it is counted, or picked, when it comes
    /// again. `counted`: how far it was counted, if it was. Whether it had a frame that says so.
    fn drop_own(&self, stub: &Stub, entered: &Regs, counted: Counted, shared: &dyn Shared) -> bool {
        let Some(frame) = frames::at_slot(shared, self.cell, Addr(entered.sp())) else { return false };
        if let Some(copy) = frame.copy() {
            frames::release_copy(shared, copy);
        }
        frames::forget(shared, self.cell, &frame);
        match frame.picked() {
            0 => {}
            COUNTED => self.uncount(stub, entered, counted, shared),
            interval => sampling::pick_next(shared, frame.cell, interval),
        }
        true
    }

    fn uncount(&self, stub: &Stub, entered: &Regs, counted: Counted, shared: &dyn Shared) {
        let [a, b, c, ..] = entered.arguments();
        if let Some((cell, size)) = self.cell.zip(stub.size.of([a, b, c])) {
            sampling::uncount(shared, cell, size, counted);
        }
    }
}

/// Publishes the record that the thread of the cell was about to publish, with this key.
fn publish(shared: &dyn Shared, cell: u16, key: u64) {
    let at = cell_at(cell.into()) + CELL_HEAD;
    let head = shared.word(at);
    let records = shared.word(cell_at(cell.into()) + CELL_RING);
    shared.set_word(record_at(cell.into(), records, head) + RECORD_KEY, key);
    shared.set_word(at, head.wrapping_add(1));
}
