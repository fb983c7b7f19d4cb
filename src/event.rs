//! The neutral stream of allocator calls: what an engine produces and the heap model consumes.

use crate::addr::{Addr, FunctionId, StackId, TaskId};
use crate::allocators::Family;

/// What all events have in common: who called what, from where, when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The outermost allocator function of the call.
    pub function: FunctionId,
    /// The calling thread.
    pub task: TaskId,
    /// The stack at the function's entry, from the caller outwards.
    pub stack: StackId,
    /// Nanoseconds since tracing began.
    pub time_ns: u64,
    /// The family of the function that the *program* called, if that is known: `operator new` where malloc was called
    /// by libstdc++'s operator new. None means that it could not be told; families are compared only if both are known.
    pub family: Option<Family>,
    /// The alignment that operator new was asked for, or that operator delete was told, in bytes; 0 for those without. None for
    /// other functions, and where it can't be told; alignments are compared only if both are known.
    pub align: Option<u64>,
}

/// One thing that happened to the heap.
///
/// Order matters: a free is reported at the call's *entry*, before the allocator can hand the block out again;
/// an allocation at its *return*. Since the reporting thread waits meanwhile, applying events in the order in
/// which they are reported keeps every address unambiguous, whatever the number of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeapEvent {
    /// A block was handed out.
    Allocated {
        /// Its address; never null.
        block: Addr,
        /// The requested size in bytes; 0 is legal.
        size: u64,
        /// The call.
        by: Call,
    },
    /// A block was handed out, as far as can be told from the call's entry: the return was not seen, so its address is not
    /// known. It counts as given back at once and as a lost event.
    AllocatedUnseen {
        /// The requested size in bytes.
        size: u64,
        /// The call.
        by: Call,
    },
    /// A block is about to be given back.
    Freed {
        /// Its address; never null.
        block: Addr,
        /// Whether the caller is the allocator's own code. glibc frees its thread caches that way when a
        /// thread ends: chunks that the program has freed before. If such a pointer is not live it is ignored.
        internal: bool,
        /// The size that the program said the block has, if it said so (sized operator delete).
        given_size: Option<u64>,
        /// The call.
        by: Call,
    },
    /// A realloc of `old` (never null) has begun: the block's fate is open until the matching
    /// [`HeapEvent::ReallocEnded`]. Meanwhile another thread may be handed the same address.
    ReallocBegan {
        /// The block passed in.
        old: Addr,
        /// The call.
        by: Call,
    },
    /// A realloc has returned. Null `new`: with `size` 0 the block was freed, else it failed and `old` lives on.
    ReallocEnded {
        /// The block passed in.
        old: Addr,
        /// The block handed out: `old` itself (resized in place), another one (moved), or null.
        new: Addr,
        /// The requested size in bytes.
        size: u64,
        /// The call.
        by: Call,
    },
    /// A realloc was abandoned (longjmp, exception, dead thread): `old` counts as it did before.
    ReallocAbandoned {
        /// The block passed in.
        old: Addr,
        /// The thread that began it.
        task: TaskId,
    },
    /// An allocation returned null.
    Failed {
        /// The requested size in bytes.
        size: u64,
        /// The call.
        by: Call,
    },
}
