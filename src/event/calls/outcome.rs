//! What a call of an allocator function does to the heap: told from the function's kind, its arguments and its result
//! alone, whoever has seen them.

use super::mapping::MapCall;
use super::passed_on::NewArguments;
use crate::allocators::{Kind, Success, Text};
use crate::base::addr::Addr;
use crate::event::{Call, EventKind, Missed};

/// What a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// The result is a block of `size` bytes or null.
    Allocate {
        /// Requested bytes.
        size: u64,
    },
    /// `count * size` overflows: the result will be null, and must not be believed if it is not.
    Overflow {
        /// The largest number, as what was asked for does not fit 64 bits.
        size: u64,
    },
    /// The block's address is written to `out`.
    AllocateOut {
        /// Where the block's address is to be read when the call has succeeded.
        out: Addr,
        /// Requested bytes.
        size: u64,
        /// What it returns then.
        success: Success,
    },
    /// The block at `out`, or null, is resized to what `size_at` tells at the return, or stays as it is.
    GrowOut {
        /// Where the block's address is.
        out: Addr,
        /// Where its size is.
        size_at: Addr,
        /// The block that was there at the entry; null: none.
        old: Addr,
        /// Its size in bytes.
        old_size: u64,
    },
    /// `old` (not null) is resized.
    Reallocate {
        /// The block passed in.
        old: Addr,
        /// Requested bytes.
        size: u64,
    },
    /// `old` is resized where it is, or not at all.
    ResizeInPlace {
        /// The block passed in.
        old: Addr,
        /// Requested bytes.
        size: u64,
    },
    /// A block is freed.
    Free {
        /// The block; null frees nothing.
        block: Addr,
    },
    /// What is mapped changes; None: not what counts of it.
    Mapping(Option<MapCall>),
}

/// What a call has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Returned {
    /// The register rax.
    pub result: u64,
    /// What stood at [`Operation::out_argument`] then, if there is one and it could be read.
    pub out: Option<Addr>,
    /// The size of the block, where it was not known at the entry.
    pub size: Option<u64>,
}

impl Operation {
    /// What a call with these six integer arguments is about.
    pub fn of(kind: Kind, args: &[u64; 6]) -> Self {
        match kind {
            Kind::Alloc { size, count } => match product(size.of(args), count.map(|count| count.of(args))) {
                Some(size) => Self::Allocate { size },
                None => Self::Overflow { size: u64::MAX },
            },
            Kind::AllocOut { out, size, success } => {
                Self::AllocateOut { out: Addr(out.of(args)), size: size.of(args), success }
            }
            Kind::GrowOut { out, size } => Self::GrowOut {
                out: Addr(out.of(args)),
                size_at: Addr(size.of(args)),
                old: Addr(Text::OLD.of(args)),
                old_size: Text::SIZE.of(args),
            },
            Kind::Realloc { old, size, count } => {
                let old = Addr(old.of(args));
                match (product(size.of(args), count.map(|count| count.of(args))), old.is_null()) {
                    (Some(size), true) => Self::Allocate { size },
                    (Some(size), false) => Self::Reallocate { old, size },
                    (None, true) => Self::Overflow { size: u64::MAX },
                    (None, false) => Self::Reallocate { old, size: u64::MAX },
                }
            }
            Kind::ResizeInPlace { old, size } => Self::ResizeInPlace { old: Addr(old.of(args)), size: size.of(args) },
            Kind::Free { ptr, .. } => Self::Free { block: Addr(ptr.of(args)) },
            Kind::Mapping(function) => Self::Mapping(MapCall::of(function, args)),
        }
    }

    /// The call with the size that the operator was asked for, if one makes it.
    pub(super) fn as_asked(self, asked: Option<NewArguments>) -> Self {
        match (self, asked) {
            (Self::Allocate { .. }, Some(asked)) => Self::Allocate { size: asked.size },
            (Self::AllocateOut { out, success, .. }, Some(asked)) => {
                Self::AllocateOut { out, size: asked.size, success }
            }
            _ => self,
        }
    }

    /// How large the block is that it hands out, if it succeeds; None where it is not to hand out a new one.
    pub const fn new_block(self) -> Option<u64> {
        match self {
            Self::Allocate { size } | Self::AllocateOut { size, .. } => Some(size),
            Self::Reallocate { size, .. } if size > 0 => Some(size),
            _ => None,
        }
    }

    /// The block that it has handed out; null if it has not.
    pub fn handed_out(self, returned: Returned) -> Addr {
        match self {
            Self::Allocate { .. } | Self::Reallocate { .. } => Addr(returned.result),
            Self::AllocateOut { success, .. } => {
                returned.out.filter(|_| success.is_told_by(returned.result)).unwrap_or(Addr::NULL)
            }
            Self::GrowOut { .. } => returned.out.unwrap_or(Addr::NULL),
            Self::Overflow { .. } | Self::ResizeInPlace { .. } | Self::Free { .. } | Self::Mapping(_) => Addr::NULL,
        }
    }

    /// The size in bytes of the block that it has handed out anew; None if it has failed, or left the block that was
    /// there as it was.
    pub fn new_block_at_return(self, returned: Returned) -> Option<u64> {
        let block = self.handed_out(returned);
        let (size, is_new) = match self {
            Self::GrowOut { old, old_size, .. } => {
                let size = returned.size.unwrap_or(old_size);
                (size, (block, size) != (old, old_size))
            }
            _ => (returned.size.or_else(|| self.new_block())?, true),
        };
        (is_new && !block.is_null()).then_some(size)
    }

    /// Whether it can only hand out a block.
    pub(super) const fn allocates(self) -> bool {
        matches!(self, Self::Allocate { .. } | Self::Overflow { .. } | Self::AllocateOut { .. })
    }

    /// Where the block's address is to be read at the return.
    pub const fn out_argument(self) -> Option<Addr> {
        match self {
            Self::AllocateOut { out, .. } | Self::GrowOut { out, .. } => Some(out),
            _ => None,
        }
    }

    /// Where the block's size is to be read at the return.
    pub const fn size_argument(self) -> Option<Addr> {
        match self {
            Self::GrowOut { size_at, .. } => Some(size_at),
            _ => None,
        }
    }

    /// The block that is resized from the entry on, until the return tells what has become of it.
    pub(super) fn resizes_from_entry(self) -> Option<Addr> {
        match self {
            Self::Reallocate { old, .. } => Some(old),
            Self::GrowOut { old, .. } => Some(old).filter(|old| !old.is_null()),
            _ => None,
        }
    }
}

/// What of a call is recorded. With sampling not all blocks are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// Everything.
    All,
    /// Nothing but that it failed: neither the block that it ends nor the one that it hands out is recorded.
    Failure,
    /// A realloc of a block that is recorded, into one that is not: it is a free.
    OldBlock,
    /// A realloc of a block that is not recorded, into one that is: it is an allocation.
    NewBlock,
}

impl Recorded {
    /// The same of a call whose new block turns out to be recorded, too, when it returns.
    pub const fn with_new_block(self) -> Self {
        match self {
            Self::All | Self::OldBlock => Self::All,
            Self::Failure | Self::NewBlock => Self::NewBlock,
        }
    }

    /// What is to be told of `event`, which belongs to such a call.
    #[inline]
    pub fn of(self, event: EventKind) -> Option<EventKind> {
        match (self, event) {
            (Self::All, event) => Some(event),
            (_, EventKind::Failed { .. } | EventKind::Missed(_)) => Some(event),
            (Self::Failure | Self::NewBlock, EventKind::ReallocEnded { new: Addr::NULL, size, by, .. }) => {
                (size > 0).then_some(EventKind::Failed { size, by })
            }
            (Self::NewBlock, EventKind::ReallocEnded { new, size, by, .. }) => {
                Some(EventKind::Allocated { block: new, size, by })
            }
            (Self::NewBlock, EventKind::Allocated { .. } | EventKind::AllocatedUnseen { .. }) => Some(event),
            (Self::OldBlock, EventKind::ReallocEnded { old, new, size, by }) => {
                let size = if new.is_null() { size } else { 0 };
                Some(EventKind::ReallocEnded { old, new: Addr::NULL, size, by })
            }
            (Self::OldBlock, EventKind::ReallocBegan { .. } | EventKind::ReallocAbandoned { .. }) => Some(event),
            _ => None,
        }
    }
}

/// Tells what a call has done that has returned. A free was told at its entry, and so was the beginning of a realloc.
#[inline]
pub fn outcome<F: FnMut(EventKind) + ?Sized>(operation: Operation, returned: Returned, by: Call, tell: &mut F) {
    let allocated = |block: Addr, size| match block {
        Addr::NULL => EventKind::Failed { size, by },
        block => EventKind::Allocated { block, size, by },
    };
    match operation {
        // Nothing was asked for that there is: an environment variable, a block of no bytes.
        Operation::AllocateOut { success, .. }
            if returned.out == Some(Addr::NULL) && success.is_told_by(returned.result) => {}
        Operation::Allocate { size } | Operation::AllocateOut { size, .. } => {
            tell(allocated(operation.handed_out(returned), returned.size.unwrap_or(size)));
        }
        Operation::GrowOut { old, .. } => {
            let new = operation.handed_out(returned);
            match (old.is_null(), operation.new_block_at_return(returned)) {
                (true, None) => {}
                (true, Some(size)) => tell(EventKind::Allocated { block: new, size, by }),
                (false, None) => tell(EventKind::ReallocAbandoned { old, task: by.task }),
                (false, Some(size)) => tell(EventKind::ReallocEnded { old, new, size, by }),
            }
        }
        Operation::Overflow { size } => tell(EventKind::Failed { size, by }),
        Operation::Reallocate { old, size } => {
            tell(EventKind::ReallocEnded { old, new: operation.handed_out(returned), size, by });
        }
        Operation::ResizeInPlace { old, size } if returned.result >= size && !old.is_null() => {
            tell(EventKind::ReallocBegan { old, by });
            tell(EventKind::ReallocEnded { old, new: old, size, by });
        }
        Operation::Mapping(Some(call)) => tell(call.ended(returned.result, by)),
        Operation::ResizeInPlace { .. } | Operation::Free { .. } | Operation::Mapping(None) => {}
    }
}

/// Tells what a call has done whose return can't be seen: it is taken to succeed, as nearly all calls do.
pub(super) fn unseen_outcome(operation: Operation, by: Call, tell: &mut dyn FnMut(EventKind)) {
    match operation {
        Operation::Allocate { size } | Operation::AllocateOut { size, .. } => {
            tell(EventKind::AllocatedUnseen { size, by });
        }
        Operation::Overflow { size } => tell(EventKind::Failed { size, by }),
        Operation::Reallocate { old, size } => {
            tell(EventKind::ReallocEnded { old, new: Addr::NULL, size: 0, by });
            if size > 0 {
                tell(EventKind::AllocatedUnseen { size, by });
            }
        }
        // Mostly it is large enough.
        Operation::GrowOut { old, .. } if !old.is_null() => tell(EventKind::ReallocAbandoned { old, task: by.task }),
        Operation::GrowOut { .. } => tell(EventKind::Missed(Missed::Call)),
        // Where memory was mapped is not known.
        Operation::Mapping(_) => tell(EventKind::Missed(Missed::Call)),
        Operation::ResizeInPlace { .. } | Operation::Free { .. } => {}
    }
}

fn product(size: u64, count: Option<u64>) -> Option<u64> {
    size.checked_mul(count.unwrap_or(1))
}
