//! What entries say of the call that a thread makes next: operator new and delete that only pass the call on have seen
//! size and alignment, and a free is passed on to another function.

use super::Entry;
use crate::base::addr::{Addr, FunctionId, ModuleId};

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
    pub(super) fn is_same_free(&self, entry: &Entry, block: Addr) -> bool {
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
pub(super) struct DeleteArguments {
    pub(super) block: Addr,
    pub(super) size: Option<u64>,
    /// 0 for an operator without alignment.
    pub(super) align: u64,
    pub(super) sp: u64,
}

impl DeleteArguments {
    /// With the size that the operator before it was told, if that has passed the call on to this one: sized ones call
    /// those without.
    pub(super) fn after(self, before: Option<Self>, entry: &Entry) -> Self {
        let before = before.filter(|before| before.is_passed_on(entry, self.block));
        Self { size: self.size.or(before.and_then(|before| before.size)), ..self }
    }

    /// Whether the thread's next free is the one that the operator makes: of the same block, by a jump or a call.
    pub(super) fn is_passed_on(&self, entry: &Entry, block: Addr) -> bool {
        self.block == block && self.sp.checked_sub(entry.sp).is_some_and(|depth| depth <= WRAPPER_FRAMES)
    }
}

/// The same, as the jump engine has recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToldOfBlock {
    /// The block.
    pub block: Addr,
    /// Its size in bytes, if the operator is told that.
    pub size: Option<u64>,
    /// Its alignment in bytes; 0 for an operator without.
    pub align: u64,
}

impl ToldOfBlock {
    /// As of a thread whose stack pointer was `sp`.
    pub(super) const fn at(self, sp: u64) -> DeleteArguments {
        DeleteArguments { block: self.block, size: self.size, align: self.align, sp }
    }
}

/// What an aligned operator new that calls another allocator function was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewArguments {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) sp: u64,
    pub(super) wrapper: Option<Addr>,
}

impl NewArguments {
    /// Whether the operator makes the call. It may do so several times, with new-handlers in between, which call
    /// others.
    pub(super) fn is_passed_on(&self, entry: &Entry) -> bool {
        self.is_near(entry) && entry.wrapper.is_some() && entry.wrapper == self.wrapper
    }

    /// The same, as far as the stack pointers tell.
    pub(super) fn is_near(&self, entry: &Entry) -> bool {
        self.sp.checked_sub(entry.sp).is_some_and(|depth| depth <= WRAPPER_FRAMES)
    }
}
