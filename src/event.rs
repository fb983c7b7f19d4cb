//! The neutral stream of what happens to one process's heap: engines produce it, the heap model and other readers
//! consume it.
//!
//! Everything that changes a reader's state is an event, also what could not be seen: a recorded stream, read again
//! from its beginning, gives the same heap model, byte for byte.

pub mod calls;
mod definition;
#[cfg(any(test, debug_assertions))]
mod log;
mod mapping;
mod mark;

use crate::allocators::Family;
use crate::base::addr::{Addr, FunctionId, ImageId, ProcessId, StackId, TaskId, TestId};
pub use definition::{Definition, ModuleDefinition, ProcessDefinition};
#[cfg(any(test, debug_assertions))]
pub use log::EventLog;
pub use mapping::{Length, MapChange, range_of};
pub use mark::{Generation, MarkName};

/// Events' times are multiples of so many nanoseconds: finer ones would say nothing, as a stop alone takes ten times as
/// long, and fill a trace with noise.
pub const TICK_NS: u64 = 1000;

/// One entry of a process's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its place in the stream of its process: 0, 1, 2, … without gaps. A forked child has a stream of its own.
    pub seq: u64,
    /// Nanoseconds since the session began, in steps of [`TICK_NS`]: one clock for all processes. Never less than that
    /// of the event before.
    pub time_ns: u64,
    /// What happened.
    pub kind: EventKind,
}

/// Who called what, from where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The outermost allocator function of the call.
    pub function: FunctionId,
    /// The calling thread.
    pub task: TaskId,
    /// The stack at the function's entry, from the caller outwards.
    pub stack: StackId,
    /// The family of the function that the *program* called, if that is known: `operator new` where malloc was called
    /// by libstdc++'s operator new. None means that it could not be told; families are compared only if both are known.
    pub family: Option<Family>,
    /// The alignment that operator new was asked for, or that operator delete was told, in bytes; 0 for those without.
    /// None for other functions, and where it can't be told; alignments are compared only if both are known.
    pub align: Option<u64>,
    /// With which mean distance of two sampled bytes the block was picked that the call hands out; 0 where each block
    /// is recorded.
    pub interval: u64,
}

impl EventKind {
    /// The call that the event is of, if it is of one.
    pub const fn call(&self) -> Option<&Call> {
        match self {
            Self::Allocated { by, .. }
            | Self::AllocatedUnseen { by, .. }
            | Self::Freed { by, .. }
            | Self::ReallocBegan { by, .. }
            | Self::ReallocEnded { by, .. }
            | Self::Mapping { by, .. }
            | Self::Remapped { by, .. }
            | Self::Failed { by, .. } => Some(by),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn call_mut(&mut self) -> Option<&mut Call> {
        match self {
            Self::Allocated { by, .. }
            | Self::AllocatedUnseen { by, .. }
            | Self::Freed { by, .. }
            | Self::ReallocBegan { by, .. }
            | Self::ReallocEnded { by, .. }
            | Self::Mapping { by, .. }
            | Self::Remapped { by, .. }
            | Self::Failed { by, .. } => Some(by),
            _ => None,
        }
    }
}

/// Whether the process had blocks before its stream began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preexisting {
    /// No: traced from the first instruction. To free an unknown pointer is an error.
    None,
    /// Nobody knows: attached. An unknown pointer is taken for a block from before.
    Unknown,
}

/// Something that was not seen, or not wholly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// A call that is known to have been missed.
    Call,
    /// A call's return, which did not come: longjmp, exception, dead thread.
    Return,
    /// The outer frames of a call's stack; the stack was deeper than the limit if `cut`.
    OuterFrames {
        /// Whether the limit of depth is the cause.
        cut: bool,
    },
    /// How a frame of a call's stack is to be left: a frame pointer was believed.
    UnwindRule,
}

/// One thing that happened to the heap, or to what can be seen of it.
///
/// Order matters: a free is reported at the call's *entry*, before the allocator can hand the block out again; an
/// allocation at its *return*. Since the reporting thread waits meanwhile, applying events in the order in which they
/// are reported keeps every address unambiguous, whatever the number of threads; but for the old address of a realloc
/// in progress, see [`EventKind::ReallocBegan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// Tracing begins: the first event of a process that is no traced process's fork.
    Began {
        /// Which image; the stacks of events that follow are its own.
        image: ImageId,
        /// Whether there were blocks before.
        preexisting: Preexisting,
        /// Whether frees come with their stacks. Else what they give back is charged to the allocating stack.
        free_stacks: bool,
        /// One byte in so many is sampled on average, and the blocks that hold such a byte are told
        /// ([`crate::base::sampling`]); 0: all blocks.
        sample_interval: u64,
    },
    /// The process came to be by a fork: the first event of its stream. All that has happened in its parent so far
    /// counts as its own past.
    Forked {
        /// Which image: it begins with the stacks of its parent's.
        image: ImageId,
        /// The thread that forked.
        parent: TaskId,
        /// Its copy, the only thread of the new process.
        child: TaskId,
        /// Whether there were other threads, of whose latest calls nobody knows whether they came before the fork or
        /// after it.
        among_threads: bool,
    },
    /// The process has become another program: its heap is empty.
    Exec {
        /// Which image; the stacks of events that follow are its own.
        image: ImageId,
    },
    /// A block was handed out.
    Allocated {
        /// Its address; never null.
        block: Addr,
        /// The requested size in bytes; 0 is legal.
        size: u64,
        /// The call.
        by: Call,
    },
    /// A block was handed out, as far as can be told from the call's entry: the return was not seen, so its address is
    /// not known. It counts as given back at once and as a lost event.
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
    /// A realloc of `old` (never null), or a call that may resize it, has begun: the block's fate is open until the
    /// matching [`EventKind::ReallocEnded`]. Meanwhile another thread may be handed the same address.
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
    /// A realloc was abandoned (longjmp, exception, dead thread), or the call has left the block as it was, as getline
    /// does with one that is large enough: `old` counts as it did before.
    ReallocAbandoned {
        /// The block passed in.
        old: Addr,
        /// The thread that began it.
        task: TaskId,
    },
    /// The program has changed by itself what is mapped without a file (`--mmap`).
    Mapping {
        /// What has changed.
        change: MapChange,
        /// The call.
        by: Call,
    },
    /// A mremap(2) has returned (`--mmap`): memory has another size, or is elsewhere. All amounts are whole pages.
    Remapped {
        /// Where it was.
        old: Addr,
        /// How much it was.
        old_bytes: Length,
        /// Where it is; null if nothing has changed.
        new: Addr,
        /// How much it is.
        new_bytes: Length,
        /// The call.
        by: Call,
    },
    /// Where blocks are sampled: the thread allocates one that is not recorded, and its allocation before that was.
    /// (What it frees from now on is not temporary.)
    NotRecorded {
        /// The thread.
        task: TaskId,
    },
    /// Where blocks are sampled: so many allocations were made since this was told last that are not recorded
    /// otherwise.
    Counted {
        /// How many.
        allocations: u64,
        /// The bytes that were asked for.
        bytes: u64,
    },
    /// An allocation returned null.
    Failed {
        /// The requested size in bytes.
        size: u64,
        /// The call.
        by: Call,
    },
    /// Something was not seen, or not wholly.
    Missed(Missed),
    /// A block that was there before the stream began, found in the allocator's own structures. Told before any call.
    Existing {
        /// Its address; never null.
        block: Addr,
        /// What the program may use of it, in bytes: what it asked for is not known.
        size: u64,
    },
    /// There are blocks from now on whose allocation was not seen: to free an unknown pointer is no error any more.
    UnknownFreesExpected,
    /// The program has never written so many bytes at the end of this live block (`--perturb`): told before the block
    /// is given back or resized, and of all live ones at the end. What was told of it before is to be forgotten.
    Unwritten {
        /// Its address; never null.
        block: Addr,
        /// How many.
        bytes: u64,
    },
    /// What a part of one of glibc's arenas holds, found in its own structures. It is told at the end, of all parts of
    /// all arenas, where threads free much of what others have allocated. What was told of the part before is to be
    /// forgotten.
    ArenaPart {
        /// The address of the arena's structure.
        arena: Addr,
        /// Whether it is the first one, which grows by brk(2).
        is_main: bool,
        /// Where the part begins.
        start: Addr,
        /// All that the arena has there from the kernel, in bytes.
        bytes: u64,
        /// That of live blocks, with their headers.
        live: u64,
        /// That which is free, and kept.
        free: u64,
    },
    /// For a moment nothing was observed: blocks may have come, and gone.
    Unobserved,
    /// Collecting pauses, or goes on: during a pause no allocation is reported, only ends and moves of blocks that are
    /// known.
    Paused(bool),
    /// The program says that the live block which this address lies in is no leak.
    BlockIgnored(Addr),
    /// The program says that what a thread allocates from now on is no leak, or is one again. It nests.
    NewBlocksIgnored {
        /// The thread.
        task: TaskId,
        /// Whether they are ignored.
        ignore: bool,
    },
    /// Somebody has set a mark here: what is allocated from now on belongs to a new generation.
    Mark(MarkName),
    /// A test of the program has begun in a thread. What that thread allocates from now on is the test's.
    TestBegan {
        /// Which one; [`Definition::Test`] has its name.
        test: TestId,
        /// The thread.
        task: TaskId,
        /// Whether no other test runs meanwhile: then so is what threads allocate that are in no test.
        alone: bool,
    },
    /// What this thread allocates is of the test in which another one is, until that ends: it has been made by it.
    /// Nothing if that is in none.
    TestJoined {
        /// The thread.
        task: TaskId,
        /// The one that has made it.
        parent: TaskId,
    },
    /// The test that has begun last in this thread and not ended yet has ended. Without one nothing has.
    TestEnded {
        /// The thread.
        task: TaskId,
    },
}

/// A reader of a process's stream.
pub trait EventSink: std::fmt::Debug {
    /// Takes the next event.
    fn take(&mut self, event: &Event);

    /// Takes what the events that follow refer to.
    fn define(&mut self, _: &Definition<'_>) {}

    /// Takes the bytes that are live, after each event.
    fn note_live(&mut self, _time_ns: u64, _bytes: u64) {}

    /// What follows no longer counts for the profile of the process, which is of this moment.
    fn profile_ends(&mut self) {}

    /// The reader of a `child` that is forked at this place of the stream; the child's first event,
    /// [`EventKind::Forked`], comes to that one. None if children are not read.
    fn fork(&self, child: ProcessId) -> Option<Box<dyn EventSink>>;
}
