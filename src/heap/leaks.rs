//! The leak scan: what of the live blocks can still be reached. (What that says of the program,
//! [`crate::profile::check`] decides.)
//!
//! Pure. [`Graph::read`] reads each live block and each root once, in the order of addresses, and keeps the pointers it
//! finds: the target must stand still for that. [`Graph::classify`] then follows the pointers without the target, and
//! [`Scan`] tells the class of each block and a shortest way to it.
//!
//! The classes are Memcheck's (Valgrind manual, 4.2.8). Every aligned word is taken for a pointer if its value lies in
//! a block: there is no knowledge of types, nor of words that were never written. A word that would be a pointer to a
//! block's start without its upper 16 bits is one with a tag: what hangs on it is possibly leaked.
//!
//! A block may lie in another one: memory pools, with blocks that the user declared by `--alloc-fn`. Then each byte
//! belongs to the innermost block, and a block holds the one that it lies in: the pool's memory can't be given back
//! while one of its blocks is in use.

mod classify;
mod doubt;
mod edges;
mod graph;
mod heuristics;
mod index;
mod kernel;
pub mod roots;
mod scan;
mod stored;

use crate::base::addr::{Addr, ModuleId};
use std::ops::Range;

pub use classify::{Path, Scan};
pub use doubt::{Doubt, Doubted, Doubts};
pub use edges::Pointer;
pub use graph::{Graph, Pointers};
pub use heuristics::{Heuristics, MappedFiles};
pub use index::BlockIndex;
pub use kernel::{KernelHeld, KernelHolder, Unavailable};
pub use scan::{BlockVisitor, PartRead, for_words};

/// What a root is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RootKind {
    /// Writable data of a module.
    Data {
        /// The module.
        module: ModuleId,
    },
    /// A thread's stack, from the stack pointer (less the red zone) on.
    Stack {
        /// The thread.
        tid: i32,
    },
    /// A thread's thread-local variables.
    Tls {
        /// The thread.
        tid: i32,
    },
    /// The values of `pthread_setspecific`, and what else the thread library keeps for a thread.
    ThreadData {
        /// The thread.
        tid: i32,
    },
    /// A register of a thread.
    Register {
        /// The thread.
        tid: i32,
        /// Its name: `rax`.
        name: &'static str,
    },
    /// Writable memory without a file that is not the allocator's.
    Anonymous,
    /// Memory that the program has registered (`__lsan_register_root_region`).
    Registered,
    /// The program's word that a block is no leak (`__lsan_ignore_object`, `__lsan_disable`).
    Ignored,
    /// A thread in the allocator, which of several can't be told: it was just giving the block to the program, or being
    /// given it back.
    InMotion,
    /// The kernel, which hands the pointer back to the program.
    Kernel(KernelHolder),
}

impl RootKind {
    /// Whether live blocks that lie in such a range are blocks there, and no roots: memory that may be a pool.
    const fn may_hold_blocks(self) -> bool {
        matches!(self, Self::Data { .. } | Self::Anonymous)
    }
}

/// Memory whose aligned words are roots. Live blocks in [`RootKind::Data`] and [`RootKind::Anonymous`] ranges are left
/// out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootRange {
    /// The first byte.
    pub start: Addr,
    /// One past the last byte.
    pub end: Addr,
    /// What it is.
    pub kind: RootKind,
}

/// A pointer that is not in memory, or that is no start pointer and must count as one (the dtv).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootWord {
    /// The pointer.
    pub value: u64,
    /// Where it was found.
    pub kind: RootKind,
}

/// Where the search for pointers begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roots {
    /// Memory. Where ranges overlap, the first one names the root.
    pub ranges: Vec<RootRange>,
    /// Single values.
    pub words: Vec<RootWord>,
    /// What holds old words only, in blocks, too: no pointer there counts.
    pub stale: Vec<Range<Addr>>,
    /// Where else the kernel may hold pointers.
    pub untold: Vec<Unavailable>,
    /// Of how many threads it is not known where their signal stacks lie.
    pub unasked_threads: usize,
}

/// What pointers into the inside of blocks are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InteriorPointers {
    /// They may be chance: what hangs on them alone is possibly leaked, as Memcheck has it.
    #[default]
    Possible,
    /// As good as pointers to the start, as LeakSanitizer has it.
    Reachable,
}

/// How to look.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// What pointers into the inside of blocks are worth.
    pub interior: InteriorPointers,
    /// Which pointers into the inside count as pointers to the start. All by default.
    pub heuristics: Heuristics,
    /// The target's mapped files: C++ tables of virtual functions are told by them. Empty: none are found.
    pub files: MappedFiles,
    /// Whether each root that points to a block is kept. Else the first of those with one value is, which is all that a
    /// path needs.
    pub every_root: bool,
}

#[cfg(test)]
mod tests;
