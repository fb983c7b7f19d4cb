//! The heap of a process as `heaptrace heap --save` keeps it, and the difference of two. Pure: files are streams of
//! bytes.
//!
//! ```text
//! 8 bytes   8a 'h' 'e' 'a' 'p' 0d 0a 1a
//! 4 bytes   the version, little endian
//! a frame of zstd (RFC 8878) with a checksum of what is in it, and nothing behind
//!   identity, whether it is of a core (since version 2), the report's figures, the census, malloc_trim's,
//!   the heap in sums, types (of version 3 with names of members), blocks and holders, the byte 0x48
//! ```
//!
//! Within the frame all numbers are LEB128, texts are their length and UTF-8, what may be missing begins with 0 or 1,
//! lists with their length. Blocks come in the order of addresses, each address as its distance from the one before. No
//! byte that a block holds is in the file, but the beginnings of equal texts that the report shows.

pub mod diff;
mod read;
mod write;

use crate::heap::graph::Held;
use crate::heap::graph::pins::Remedy;
use crate::heap::graph::types::Certainty;
use crate::heap::walk::census::Census;
use crate::heap::walk::summary::Summary;
use crate::heap::walk::trim::Trim;
use crate::heap::walk::{Allocator, State};
pub use read::{begins, read};
use std::io;
pub use write::write;

/// How such files begin.
const MAGIC: [u8; 8] = *b"\x8aheap\r\n\x1a";
/// What is understood. It grows when older readers would misunderstand.
const VERSION: u32 = 3;
/// From this version on a file says whether it is of a core.
const WITH_CORES: u32 = 2;
/// From this version on a file has the names of members in which pointers lie.
const WITH_MEMBERS: u32 = 3;
/// The last byte in the frame.
const END: u64 = 0x48;

/// Which process it was, and when.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// The process's id.
    pub pid: i32,
    /// When it began, in clock ticks since the machine did; None: not known.
    pub started: Option<u64>,
    /// The kernel's name for this start of the machine; empty: not known.
    pub boot: String,
    /// When it was looked at, in nanoseconds since 1970.
    pub taken_ns: u64,
    /// Whether it was of another user than the one who looked.
    pub another_user: bool,
}

impl Identity {
    /// Whether both are of one process.
    pub fn is_same_process(&self, other: &Self) -> bool {
        self.started.is_some() && (self.pid, self.started, &self.boot) == (other.pid, other.started, &other.boot)
    }
}

/// A core file that memory was read of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OfCore {
    /// How much memory the core has, in bytes.
    pub stored: u64,
    /// How much of that is missing in the file, which was cut.
    pub missing: u64,
}

/// All that was found out about a process's memory.
#[derive(Clone, Debug, Default)]
pub struct SavedHeap {
    /// Which process.
    pub identity: Identity,
    /// Its program's name.
    pub program: String,
    /// How many threads it had.
    pub threads: usize,
    /// For how long it stood still, ns; None: it ran on, or it was a core.
    pub stood_ns: Option<u64>,
    /// The core that it was seen in, if it was no live process.
    pub core: Option<OfCore>,
    /// Whether it stood only to be copied.
    pub copied: bool,
    /// Whether what the walk has found may be of a heap that threads were just changing.
    pub in_motion: bool,
    /// What `malloc_trim(0)` has given back, in bytes, if it was called.
    pub trimmed: Option<u64>,
    /// What the kernel said is resident, in bytes.
    pub resident: Option<u64>,
    /// What all of its memory was used for.
    pub census: Census,
    /// What `malloc_trim(0)` would have given back.
    pub trim: Option<Trim>,
    /// The heap in sums, if its allocator could be walked.
    pub heap: Option<Summary>,
    /// What the blocks were, and who held them.
    pub held: Option<Held>,
}

/// Why a file can't be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum HeapFileError {
    #[error("can't be read: {0}")]
    Io(io::Error),
    #[error("`heaptrace heap --save` has not written this file")]
    Foreign,
    #[error("a newer heaptrace has written this file: it has version {0}, and this heaptrace reads {VERSION}")]
    Newer(u32),
    #[error("the file ends too early: it was not written or copied to its end")]
    Torn,
    #[error("the file is damaged: {0}")]
    Damaged(&'static str),
    #[error(
        "the heap in this file needs more than {0} bytes of memory, which is more than half of what is free, or than 4 GiB"
    )]
    TooLarge(u64),
}

/// The numbers of enums in files are their places here.
const ALLOCATORS: [Allocator; 5] =
    [Allocator::Glibc, Allocator::Musl, Allocator::Mimalloc, Allocator::Jemalloc, Allocator::Mimalloc3];
const STATES: [State; 6] = [State::Live, State::Tcache, State::Fast, State::Free, State::Top, State::Own];
const CERTAINTIES: [Certainty; 3] = [Certainty::Exact, Certainty::Inferred, Certainty::Unknown];
const REMEDIES: [Remedy; 4] = [Remedy::FewerArenas, Remedy::MapLarge, Remedy::TrimEarlier, Remedy::OtherAllocator];
