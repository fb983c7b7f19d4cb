//! The calls in progress on one thread, and how an entry relates to them.

use super::{CallContext, Dropping, Entry, Return};
use crate::addr::{Addr, FunctionId, ModuleId, StackId, TaskId};
use crate::allocators::Family;
use crate::event::Call;

/// A thread can't be in more calls at a time: each one above the first needs a signal handler, a new-handler or a hook.
/// The oldest is dropped. (uprobes has the same limit.)
const MAX_DEPTH: usize = 64;

/// What a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pending {
    /// The result is a block or null.
    Alloc { size: u64 },
    /// `count * size` overflows: the result will be null.
    Overflow { size: u64 },
    /// The block's address is written to `out`.
    AllocOut { out: Addr, size: u64 },
    /// `old` (not null) is resized.
    Realloc { old: Addr, size: u64 },
    /// `old` is resized where it is, or not at all.
    ResizeInPlace { old: Addr, size: u64 },
    /// A block was freed; pending only in functions that the user declared.
    Free { block: Addr },
}

impl Pending {
    /// The call with the size that the operator was asked for, if one makes it.
    pub(super) fn as_told(self, told: Option<ToldNew>) -> Self {
        match (self, told) {
            (Self::Alloc { .. }, Some(told)) => Self::Alloc { size: told.size },
            (Self::AllocOut { out, .. }, Some(told)) => Self::AllocOut { out, size: told.size },
            _ => self,
        }
    }
}

/// One call in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) pending: Pending,
    pub(super) entry_sp: u64,
    pub(super) site: Addr,
    pub(super) stack: StackId,
    pub(super) module: ModuleId,
    /// The module that the call has been passed on to (an interposer calls the next allocator), or `module`.
    inner_module: ModuleId,
    task: TaskId,
    pub(super) function: FunctionId,
    pub(super) family: Option<Family>,
    pub(super) align: Option<u64>,
    /// The user declared the function: whatever probed function it calls is part of the call.
    declared: bool,
    /// A signal arrived since: deeper entries may be a handler's.
    interrupted: bool,
}

impl Frame {
    pub(super) fn of(entry: &Entry, pending: Pending, by: &Call, declared: bool) -> Self {
        Self {
            pending,
            entry_sp: entry.sp,
            site: entry.return_addr,
            stack: by.stack,
            module: entry.module,
            inner_module: entry.module,
            task: entry.task,
            function: entry.function,
            family: by.family,
            align: by.align,
            declared,
            interrupted: false,
        }
    }

    /// Whether the function of this frame may have jumped to the one entered, which has found the same stack pointer and
    /// return address. The same function again is a new call, made after this one was left by a longjmp or an
    /// exception; and so is a free after what only allocates.
    fn may_tail_jump(&self, entry: &Entry, is_free: bool) -> bool {
        let allocates =
            matches!(self.pending, Pending::Alloc { .. } | Pending::Overflow { .. } | Pending::AllocOut { .. });
        (self.function, self.module) != (entry.function, entry.module) && !(is_free && allocates)
    }

    /// Whether a deeper entry was called by the allocator in this call's service. Other allocators' code doesn't count: an
    /// interposer that prints makes the C library allocate, and that comes to the interposer again.
    fn calls_within(&self, entry: &Entry) -> bool {
        let passed_on = entry.caller_module == self.inner_module && entry.module != self.module;
        entry.caller_is_allocator && (entry.caller_module == self.module || passed_on)
    }
}

/// The thread's latest free. The entry tells all that a free does; but where the entered function passes the pointer on
/// (operator delete to free, an interposer to the C library) there comes another entry for the same call.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastFree {
    block: Addr,
    sp: u64,
    site: Addr,
    function: FunctionId,
    module: ModuleId,
}

impl LastFree {
    pub(super) fn of(entry: &Entry, block: Addr) -> Self {
        Self { block, sp: entry.sp, site: entry.return_addr, function: entry.function, module: entry.module }
    }

    /// Whether the entry, which frees `block`, belongs to this free.
    pub(super) fn includes(&self, entry: &Entry, block: Addr) -> bool {
        if self.block != block || (self.function, self.module) == (entry.function, entry.module) {
            return false;
        }
        let tail_jump = entry.sp == self.sp && entry.return_addr == self.site;
        let nested = entry.sp < self.sp && entry.caller_is_allocator && entry.caller_module == self.module;
        tail_jump || nested
    }
}

/// The frames of a wrapper are few and small: so far below it is the function that it calls, in bytes.
const WRAPPER_FRAMES: u64 = 512;

/// What a sized or aligned operator delete that only passes the block on was told about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldDelete {
    pub(super) block: Addr,
    pub(super) size: Option<u64>,
    /// 0 for an operator without alignment.
    pub(super) align: u64,
    pub(super) sp: u64,
}

impl ToldDelete {
    /// With the size that the operator before it was told, if that has passed the call on to this one: sized ones call those
    /// without.
    pub(super) fn after(self, before: Option<Self>, entry: &Entry) -> Self {
        let before = before.filter(|before| before.is_passed_on(entry, self.block));
        Self { size: self.size.or(before.and_then(|before| before.size)), ..self }
    }

    /// Whether the thread's next free is the one that the operator makes: of the same block, by a jump or a call.
    pub(super) fn is_passed_on(&self, entry: &Entry, block: Addr) -> bool {
        self.block == block && self.sp.checked_sub(entry.sp).is_some_and(|depth| depth <= WRAPPER_FRAMES)
    }
}

/// What an aligned operator new that calls another allocator function was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldNew {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) sp: u64,
    pub(super) wrapper: Option<Addr>,
}

impl ToldNew {
    /// Whether the operator makes the call. It may do so several times, with new-handlers in between, which call others.
    pub(super) fn is_passed_on(&self, entry: &Entry) -> bool {
        let is_below = self.sp.checked_sub(entry.sp).is_some_and(|depth| depth <= WRAPPER_FRAMES);
        is_below && entry.wrapper.is_some() && entry.wrapper == self.wrapper
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
    frames: Vec<Frame>,
    pub(super) last_free: Option<LastFree>,
    pub(super) told_delete: Option<ToldDelete>,
    pub(super) told_new: Option<ToldNew>,
}

impl Frames {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Judges an entry by the innermost call on the same stack. Calls on other stacks (of a signal handler, of fibers) can't
    /// be compared and are passed over; calls that the entry proves dead are dropped.
    pub(super) fn judge(
        &mut self,
        entry: &Entry,
        is_free: bool,
        context: &mut dyn CallContext,
        dropping: &mut Dropping<'_, '_>,
    ) -> Verdict {
        let mut next = self.frames.len();
        while let Some(at) = next.checked_sub(1) {
            next = at;
            let Some(frame) = self.frames.get_mut(at) else { break };
            let alive = if entry.sp == frame.entry_sp {
                if entry.return_addr == frame.site && frame.may_tail_jump(entry, is_free) {
                    frame.inner_module = entry.module;
                    return Verdict::PartOfCall;
                }
                false
            } else if frame.interrupted && context.signal_frame_between(frame.entry_sp) {
                return Verdict::Independent;
            } else if !context.same_stack(entry.sp, frame.entry_sp) {
                continue;
            } else {
                entry.sp < frame.entry_sp
            };
            if alive {
                if frame.declared || frame.calls_within(entry) {
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

    pub(super) fn push(&mut self, frame: Frame, dropping: &mut Dropping<'_, '_>) {
        if self.frames.len() >= MAX_DEPTH {
            let oldest = self.frames.remove(0);
            dropping.drop(&oldest, frame.task);
        }
        self.frames.push(frame);
    }

    /// Takes the innermost call that returns here, and drops all that began after it.
    pub(super) fn pop(&mut self, at: &Return, dropping: &mut Dropping<'_, '_>) -> Option<Frame> {
        let returns = |frame: &Frame| frame.site == at.site && frame.entry_sp.wrapping_add(8) == at.sp;
        let index = self.frames.iter().rposition(returns)?;
        for skipped in self.frames.drain(index + 1..).rev() {
            dropping.drop(&skipped, at.task);
        }
        self.frames.pop()
    }

    pub(super) fn interrupt(&mut self) {
        if let Some(top) = self.frames.last_mut() {
            top.interrupted = true;
        }
    }

    pub(super) fn pop_latest(&mut self) -> Option<Frame> {
        self.frames.pop()
    }

    /// Whether any of the calls returns to `site`.
    pub(super) fn return_to(&self, site: Addr) -> bool {
        self.frames.iter().any(|frame| frame.site == site)
    }

    pub(super) fn drop_all(&mut self, task: TaskId, dropping: &mut Dropping<'_, '_>) {
        for frame in self.frames.drain(..).rev() {
            dropping.drop(&frame, task);
        }
    }
}
