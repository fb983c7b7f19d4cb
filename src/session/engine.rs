//! What an engine reports to the observer of one process, and what the observer answers. The trap engine makes reports,
//! the jump engine tells parts of calls. Which engine sees a function's calls is a property of its probe
//! ([`crate::breakpoints::Probe`]); the trap engine is in `trap.rs`.

use crate::allocators::Family;
use crate::base::addr::{Addr, FunctionId, StackId, TaskId};
use crate::event::Missed;
use crate::event::calls::{CallContext, Entry, Operation, Recorded, Return, Returned, ToldOfBlock};
use crate::jump::layout::Kind;
use crate::unwinder::{Quality, StackTable, Unwound};

/// What an engine saw.
pub(super) enum EngineReport<'a> {
    /// A thread is at the entry of a probed function.
    Entry(Entry, &'a mut dyn EntryContext),
    /// A thread has arrived at a watched return address.
    Return(Return, &'a mut dyn ReturnContext),
    /// No return of the thread's latest call can be watched: it counts as far as its entry tells.
    ReturnUnwatchable(TaskId),
    /// The thread's latest call has not begun: the thread will come to its entry once more.
    EntryComesAgain(TaskId),
    /// A signal is about to be delivered to the thread: what it calls next may be the handler's own.
    Signal(TaskId),
    /// The thread has ended.
    End(TaskId),
    /// Calls went unseen, of any thread: those in progress may have returned.
    CallsUnseen,
}

/// What the engine is to do, or has learnt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EngineReply {
    /// Nothing: the entry is part of a call, or tells all of one; the return is no call's.
    Nothing,
    /// A call has begun whose return to this address is to be seen.
    WatchReturn(Addr),
    /// It was the return of a call.
    CallEnded,
}

/// A part of a call that the routine of the jump engine has recorded, with what the tracer knows of its caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The thread.
    pub(super) task: TaskId,
    /// The function.
    pub(super) function: FunctionId,
    /// Which part.
    pub(super) kind: Kind,
    /// The function's integer arguments, as far as it has any that matter.
    pub(super) args: [u64; 6],
    /// What it has returned, of an end.
    pub(super) returned: Returned,
    /// The stack, or the empty one if there is none to report.
    pub(super) stack: StackId,
    /// What of the stack was not seen.
    pub(super) missed: Option<Missed>,
    /// See [`crate::event::Call::family`].
    pub(super) family: Option<Family>,
    /// Whether the allocator's own code has made the call.
    pub(super) caller_is_allocator: bool,
    /// What an operator that has passed the call on was told of the block that is given back.
    pub(super) told: Option<ToldOfBlock>,
    /// Of the end of a call that has begun by [`Kind::Began`]: what was recorded of that.
    pub(super) recorded: Option<Recorded>,
    /// The interval that the routine has picked the block with, where blocks are sampled; 0: it has not.
    pub(super) interval: u64,
    /// Whether the thread has allocated blocks that were not picked since it picked one last; of a part that gives a
    /// block back.
    pub(super) counted_since: bool,
    /// When it was seen, see [`crate::event::Event::time_ns`].
    pub(super) time_ns: u64,
}

/// What the engine tells of a return only if it is asked.
pub(super) trait ReturnContext {
    /// With which interval in bytes a block of `size` bytes is picked, if the engine decides that; 0: it is not.
    fn picks(&mut self, _size: u64) -> Option<u64> {
        None
    }
    /// What of a stack that was walked at a call's entry was not seen.
    fn missed(&self, stack: StackId) -> Option<Missed>;
}

/// What the engine tells of an entry only if it is asked.
pub(super) trait EntryContext: CallContext {
    /// The stack at the entry. None if it can't be walked, as the thread is gone: the entry then counts as never seen.
    fn stack(&mut self) -> Option<Unwound>;
    /// All stacks of the image, for those who keep a copy.
    fn stacks(&self) -> Option<&StackTable> {
        None
    }
    /// With which interval a block of `size` bytes is picked, if the engine decides that; 0: it is not.
    fn picks(&mut self, _size: u64) -> Option<u64> {
        None
    }
    /// Whether [`Self::unwritten`] is wanted.
    fn looks_at_blocks(&self) -> bool {
        false
    }

    /// Of a call that gives a block back, or resizes it: the block, and how many bytes at its end the program has never
    /// written. None if that is not known, or not wanted.
    fn unwritten(&mut self, _operation: Operation) -> Option<(Addr, u64)> {
        None
    }
    /// Whether the call at hand, of mmap or its kin, is made in the service of an allocator whose functions are on
    /// `stack`.
    fn is_within_allocator(&mut self, _stack: StackId) -> bool {
        false
    }
    /// The wrapper that has made the call, if one has: where it begins, and the family that it belongs to as far as
    /// `stack` tells.
    fn wrapper(&mut self, stack: StackId) -> Option<(Addr, Option<Family>)>;
}

/// What of a stack that was walked down to `max_depth` frames was not seen.
pub(super) fn missed_of(stacks: &StackTable, stack: StackId, max_depth: u32) -> Option<Missed> {
    match stacks.quality(stack) {
        Quality::Complete => None,
        Quality::Guessed => Some(Missed::UnwindRule),
        Quality::Truncated => Some(Missed::OuterFrames { cut: stacks.depth(stack) >= max_depth }),
    }
}
