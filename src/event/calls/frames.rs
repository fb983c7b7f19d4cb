//! The calls in progress on one thread, and how an entry relates to them.

use super::outcome::{Operation, Recorded};
use super::passed_on::{DeleteArguments, LastFree, NewArguments};
use super::{CallContext, Dropping, Entry, Return};
use crate::allocators::Family;
use crate::base::addr::{Addr, FunctionId, ModuleId, StackId, TaskId};
use crate::event::Call;

/// A thread can't be in more calls at a time: each one above the first needs a signal handler, a new-handler or a hook.
/// The oldest is dropped. (uprobes has the same limit.)
const MAX_DEPTH: usize = 64;

/// One call in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    pub(super) operation: Operation,
    pub(super) recorded: Recorded,
    pub(super) entry_sp: u64,
    pub(super) site: Addr,
    stack: StackId,
    pub(super) module: ModuleId,
    /// The module that the call has been passed on to (an interposer calls the next allocator), or `module`.
    inner_module: ModuleId,
    task: TaskId,
    pub(super) function: FunctionId,
    pub(super) family: Option<Family>,
    pub(super) align: Option<u64>,
    pub(super) interval: u64,
    /// The user declared the function: whatever probed function it calls is part of the call.
    declared: bool,
    /// A signal arrived since: deeper entries may be a handler's.
    interrupted: bool,
}

impl PendingCall {
    pub(super) fn of(entry: &Entry, operation: Operation, by: &Call, recorded: Recorded, declared: bool) -> Self {
        Self {
            operation,
            recorded,
            entry_sp: entry.sp,
            site: entry.return_addr,
            stack: by.stack,
            module: entry.module,
            inner_module: entry.module,
            task: entry.task,
            function: entry.function,
            family: by.family,
            align: by.align,
            interval: by.interval,
            declared,
            interrupted: false,
        }
    }

    /// Whether it returns to `site` with the stack pointer `sp`.
    fn returns_to(&self, site: Addr, sp: u64) -> bool {
        self.site == site && self.entry_sp.wrapping_add(8) == sp
    }

    /// What its events say of who called.
    pub(super) fn call(&self) -> Call {
        let &Self { function, task, stack, family, align, interval, .. } = self;
        Call { function, task, stack, family, align, interval }
    }

    /// Whether the function of this frame may have jumped to the one entered, which has found the same stack pointer
    /// and return address. The same function again is a new call, made after this one was left by a longjmp or an
    /// exception, unless [`Self::goes_round`]; and so is a free after what only allocates.
    fn may_tail_jump(&self, entry: &Entry, is_free: bool) -> bool {
        (self.function, self.module) != (entry.function, entry.module) && !(is_free && self.operation.allocates())
    }

    /// Whether the entry is the function's own branch back to its first instruction, within this call, which has not
    /// returned. A call from the same place after a longjmp out of this one looks the same: then, too, the program is
    /// given one block, and only its size may be another.
    fn goes_round(&self, entry: &Entry) -> bool {
        entry.loops_to_entry && (self.function, self.module) == (entry.function, entry.module)
    }

    /// Whether it frees another block than `freed`.
    fn frees_another(&self, freed: Option<Addr>) -> bool {
        matches!(self.operation, Operation::Free { block } if freed != Some(block))
    }

    /// Whether nothing is to be learnt from its return but that it is over: a free, told at its entry, whose function
    /// may come to its first instruction once more. What it calls is judged as if it were not there.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.operation, Operation::Free { .. }) && !self.declared
    }

    /// Whether a deeper entry was called by the allocator in this call's service. Other allocators' code doesn't count:
    /// an interposer that prints makes the C library allocate, and that comes to the interposer again.
    fn calls_within(&self, entry: &Entry) -> bool {
        let passed_on = entry.caller_module == self.inner_module && entry.module != self.module;
        entry.caller_is_allocator && (entry.caller_module == self.module || passed_on)
    }
}

/// How an entry relates to the calls in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    PartOfCall,
    Independent,
}

/// The calls in progress on one thread, outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    frames: Vec<PendingCall>,
    pub(super) last_free: Option<LastFree>,
    pub(super) delete_arguments: Option<DeleteArguments>,
    pub(super) new_arguments: Option<NewArguments>,
}

impl Frames {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn was_told(&self) -> bool {
        self.delete_arguments.is_some() || self.new_arguments.is_some()
    }

    pub(super) fn forget_told(&mut self) {
        (self.delete_arguments, self.new_arguments) = (None, None);
    }

    /// Judges an entry by the innermost call on the same stack. Calls on other stacks (of a signal handler, of fibers)
    /// can't be compared and are passed over; calls that the entry proves dead are dropped.
    pub(super) fn relate_to_pending(
        &mut self,
        entry: &Entry,
        freed: Option<Addr>,
        context: &mut dyn CallContext,
        dropping: &mut Dropping<'_, '_>,
    ) -> Verdict {
        let mut next = self.frames.len();
        while let Some(at) = next.checked_sub(1) {
            next = at;
            let Some(frame) = self.frames.get_mut(at) else { break };
            let alive = if entry.sp == frame.entry_sp {
                let is_same_place = entry.return_addr == frame.site;
                if is_same_place && frame.may_tail_jump(entry, freed.is_some()) {
                    frame.inner_module = entry.module;
                    return Verdict::PartOfCall;
                }
                if is_same_place && frame.goes_round(entry) {
                    if !frame.frees_another(freed) {
                        return Verdict::PartOfCall;
                    }
                    // The function has called itself by a jump: the next one's return is also this one's.
                    self.frames.remove(at);
                    return Verdict::Independent;
                }
                false
            } else if frame.interrupted && context.signal_frame_between(frame.entry_sp) {
                return Verdict::Independent;
            } else if !context.same_stack(entry.sp, frame.entry_sp) {
                continue;
            } else {
                entry.sp < frame.entry_sp
            };
            if alive && frame.is_told() {
                continue;
            }
            if alive {
                // An allocator calls nobody else who would map, and sbrk calls brk.
                if frame.declared || entry.family == Some(Family::Mapping) || frame.calls_within(entry) {
                    frame.inner_module = entry.module;
                    return Verdict::PartOfCall;
                }
                return Verdict::Independent;
            }
            let dead = self.frames.remove(at);
            dropping.drop(&dead, entry.task);
        }
        Verdict::Independent
    }

    pub(super) fn push(&mut self, frame: PendingCall, dropping: &mut Dropping<'_, '_>) {
        if self.frames.len() >= MAX_DEPTH {
            let oldest = self.frames.remove(0);
            dropping.drop(&oldest, frame.task);
        }
        self.frames.push(frame);
    }

    /// Takes the innermost call that returns here, and drops all that began after it.
    pub(super) fn pop(&mut self, at: &Return, dropping: &mut Dropping<'_, '_>) -> Option<PendingCall> {
        let index = self.frames.iter().rposition(|frame| frame.returns_to(at.site, at.sp))?;
        for skipped in self.frames.drain(index + 1..).rev() {
            dropping.drop(&skipped, at.task);
        }
        self.frames.pop()
    }

    /// Takes the innermost call that returns here, on another thread: of those that began after it nothing is known.
    pub(super) fn take(&mut self, at: &Return) -> Option<PendingCall> {
        let index = self.frames.iter().rposition(|frame| frame.returns_to(at.site, at.sp))?;
        Some(self.frames.remove(index))
    }

    pub(super) fn interrupt(&mut self) {
        if let Some(top) = self.frames.last_mut() {
            top.interrupted = true;
        }
    }

    /// Those of a forked child, whose thread is a copy of this one.
    pub(super) fn of_copy(&self, child: TaskId) -> Self {
        let mut copy = self.clone();
        copy.frames.iter_mut().for_each(|frame| frame.task = child);
        copy
    }

    /// The innermost call that returns here.
    pub(super) fn returning(&self, site: Addr, sp: u64) -> Option<&PendingCall> {
        self.frames.iter().rev().find(|frame| frame.returns_to(site, sp))
    }

    /// The same, to be changed.
    pub(super) fn returning_mut(&mut self, site: Addr, sp: u64) -> Option<&mut PendingCall> {
        self.frames.iter_mut().rev().find(|frame| frame.returns_to(site, sp))
    }

    pub(super) fn pop_latest(&mut self) -> Option<PendingCall> {
        self.frames.pop()
    }

    /// Whether any of the calls returns to `site`.
    pub(super) fn return_to(&self, site: Addr) -> bool {
        self.frames.iter().any(|frame| frame.site == site)
    }

    /// Whose the outermost call is, by its thread's serial number.
    pub(super) fn owner(&self) -> Option<u32> {
        self.frames.first().map(|frame| frame.task.serial)
    }

    /// Drops all calls, which were of thread `task`; None: of who has begun them.
    pub(super) fn drop_all(&mut self, task: Option<TaskId>, dropping: &mut Dropping<'_, '_>) {
        for frame in self.frames.drain(..).rev() {
            dropping.drop(&frame, task.unwrap_or(frame.task));
        }
    }
}
