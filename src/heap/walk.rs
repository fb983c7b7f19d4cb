//! What the allocator's own structures say of a heap that nobody has traced: each block, live or free, found from
//! outside. Pure: memory is a trait.
//!
//! ```text
//! mappings, module data -> glibc    (arenas, chunks, lists of free chunks) -> Walk
//!                       -> mallocng (tables, groups, slots: musl)          -> Walk
//!                       -> mimalloc (segments, pages, lists)               -> Walk
//!                       -> mimalloc3 (map, records of pages, arenas, lists) -> Walk
//!                       -> jemalloc (tree, extents, threads' caches)       -> Walk
//! Walk + resident pages -> census (which byte of resident memory is what)
//!                       -> trim   (what malloc_trim(0) would give back)
//! ```
//!
//! A *chunk* is what the allocator manages: a header and what the program may use. All addresses are process addresses,
//! all sizes in bytes.

pub mod census;
pub mod glibc;
pub mod jemalloc;
pub mod mallocng;
pub mod mimalloc;
pub mod mimalloc3;
pub mod summary;
pub mod trim;
pub mod verdict;
mod window;
mod words;

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::image::maps::{self, Mapping};
use std::ops::Range;

/// What a heap is looked for in.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// All mappings in the order of addresses.
    pub mappings: &'a [Mapping],
    /// The writable segments of all modules.
    pub data: &'a [Range<Addr>],
}

/// Walks the heap. None if there is none that can be: another allocator, or one that nobody has called. Of two
/// allocators it is the one that has handed out more.
pub fn walk(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    let of_libc = glibc::walk(sources, memory).or_else(|| mallocng::walk(sources, memory));
    let of_mimalloc = mimalloc::walk(sources, memory).or_else(|| mimalloc3::walk(sources, memory));
    [of_libc, of_mimalloc, jemalloc::walk(sources, memory)].into_iter().flatten().max_by_key(Walk::live_bytes)
}

/// The writable parts of modules that come from their files, where an allocator keeps what it begins with.
pub fn data_of(mappings: &[Mapping]) -> Vec<Range<Addr>> {
    let modules = maps::modules(mappings);
    let segments = modules.iter().flat_map(|module| &module.segments);
    segments.filter(|segment| segment.perms.write && !segment.perms.shared).map(Mapping::range).collect()
}

/// An allocator that can be walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Allocator {
    /// glibc's malloc.
    #[default]
    Glibc,
    /// musl's mallocng.
    Musl,
    /// mimalloc 2.
    Mimalloc,
    /// mimalloc 3.
    Mimalloc3,
    /// jemalloc.
    Jemalloc,
}

impl Allocator {
    /// Its short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
            Self::Mimalloc | Self::Mimalloc3 => "mimalloc",
            Self::Jemalloc => "jemalloc",
        }
    }
}

impl Allocator {
    /// Whether it does not tell where in its place an aligned block begins.
    pub const fn moves_aligned(self) -> bool {
        matches!(self, Self::Mimalloc | Self::Mimalloc3)
    }

    /// Whether its arenas are those of threads, one each, and what is in no block lies all over them.
    pub const fn is_by_thread(self) -> bool {
        matches!(self, Self::Mimalloc)
    }

    /// Whether what is in no block lies all over its arenas, not at their ends.
    pub const fn has_tops_anywhere(self) -> bool {
        matches!(self, Self::Mimalloc | Self::Mimalloc3 | Self::Jemalloc)
    }
}

/// What a chunk is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Handed out to the program.
    Live,
    /// Given back, and kept for a thread (the tcaches of glibc and jemalloc).
    Tcache,
    /// Given back, and kept in a list of small chunks that are not merged (glibc's fast bins).
    Fast,
    /// Given back, and in a bin.
    Free,
    /// The end of an arena, which was never handed out or has been given back up to its end; also what is in no block
    /// in mimalloc's segments and arenas and jemalloc's arenas.
    Top,
    /// The allocator's own: a thread's cache, a fence at the end of a region.
    Own,
}

impl State {
    /// Whether the program has no use for its memory.
    pub const fn is_free(self) -> bool {
        matches!(self, Self::Tcache | Self::Fast | Self::Free | Self::Top)
    }
}

/// One chunk. There are as many as a process has blocks: it has 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Where its header begins.
    pub at: Addr,
    size_low: u32,
    size_high: u8,
    /// What it is.
    pub state: State,
    /// How many bytes of it lie before what the program is given.
    pub lead: u8,
    /// How many lie behind what the program may use; negative: so much of the chunk behind is this one's while the
    /// program has it.
    pub tail: i8,
}

impl Chunk {
    /// A chunk with a size in bytes, its header included: of 1 TiB and more, as many as are told.
    pub const fn new(at: Addr, size: u64, state: State, lead: u8, tail: i8) -> Self {
        const MAX_CHUNK_SIZE: u64 = (1 << 40) - 1;
        let size = if size > MAX_CHUNK_SIZE { MAX_CHUNK_SIZE } else { size };
        Self { at, size_low: size as u32, size_high: (size >> 32) as u8, state, lead, tail }
    }

    /// Its size in bytes, with its header.
    pub const fn size(&self) -> u64 {
        (self.size_high as u64) << 32 | self.size_low as u64
    }

    /// A chunk of glibc's: two words before the block, of which the first belongs to the chunk before.
    pub const fn glibc(at: Addr, size: u64, state: State) -> Self {
        Self::new(at, size, state, 16, -8)
    }

    /// Where the memory begins that the program is given.
    pub const fn block(&self) -> Addr {
        self.at.add(self.lead as u64)
    }

    /// How much of it the program may use.
    pub const fn usable(&self) -> u64 {
        self.size().saturating_sub(self.lead as u64).saturating_add_signed(-(self.tail as i64))
    }

    /// One past its last byte, less what it has of the next one.
    pub const fn end(&self) -> Addr {
        self.at.add(self.size())
    }

    /// Which bytes are this chunk's and no other's: all of it, or moved by what it shares with those beside it.
    pub const fn own(&self) -> Range<Addr> {
        let shared = if self.tail < 0 { self.tail.unsigned_abs() as u64 } else { 0 };
        self.at.add(shared)..self.end().add(shared)
    }
}

/// Where chunks lie side by side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// From the first chunk's header on.
    pub range: Range<Addr>,
    /// The allocator's books before the first chunk: an arena's or a heap's own data. Empty if there are none.
    pub books: Range<Addr>,
    /// The number of its arena; None: a chunk that has a mapping of its own.
    pub arena: Option<usize>,
    /// Which of [`Walk::chunks`].
    pub chunks: Range<usize>,
    /// From where on it could not be understood: what is between here and the end is in no chunk.
    pub broken_at: Option<Addr>,
}

/// A set of regions with lists of free chunks of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arena {
    /// Where its structure is.
    pub at: Addr,
    /// Whether it is the first one, which grows by brk(2).
    pub is_main: bool,
    /// What it has got from the kernel, as it says itself.
    pub system_bytes: u64,
    /// Threads that use it, as it says itself; None: it does not say.
    pub threads: Option<u64>,
}

/// Something that is not as the allocator leaves it: the program has written where it must not, or the heap was read
/// while it changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where.
    pub at: Addr,
    /// What is wrong.
    pub what: Fault,
    /// The chunk before, if one is known: what was written too far.
    pub before: Option<Chunk>,
}

/// What is wrong at a [`Finding`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Fault {
    /// The size word can't be one.
    #[error("a chunk's size is {0:#x}, which no chunk can have there")]
    Size(u64),
    /// The word could not be read.
    #[error("a chunk's header can't be read")]
    Unreadable,
    /// The size that a free chunk repeats behind its end is another one.
    #[error(
        "the chunk before is free and has {0} bytes by its header, and another size by its end: something was written over one of them"
    )]
    End(u64),
    /// A list leads there.
    #[error("a list of free chunks leads to an address at which no free chunk begins")]
    List,
    /// A list has no end.
    #[error("a list of free chunks runs in a circle")]
    Circle,
    /// The tables of musl's malloc end early, or mimalloc's map leads to more than is read.
    #[error("the allocator's tables do not continue where they should, or lead to more than heaptrace reads")]
    Table,
    /// An entry in them makes no sense, or overlaps another one.
    #[error("an entry in the allocator's tables points to a group of blocks that can't be there")]
    Entry,
    /// A group does not lead back to its entry.
    #[error("a group of blocks does not lead back to the allocator's tables: something was written over its beginning")]
    Group,
    /// A page's count of blocks is not that of its lists.
    #[error(
        "a page's lists of free blocks have more or fewer blocks than the page counts: something was written over one \
         of them, or threads are changing them at the moment"
    )]
    Count,
    /// What stands before a live block is no header.
    #[error(
        "there is no valid header before a live block: something was written over it, or a thread is allocating the \
         block at the moment"
    )]
    Header,
    /// A zero that must follow a live block does not.
    #[error("the zero that the allocator leaves after a live block is missing: something was written beyond its end")]
    Overrun,
}

/// All that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Walk {
    /// Whose heap it is.
    pub allocator: Allocator,
    /// All chunks, by address within each region.
    pub chunks: Vec<Chunk>,
    /// In the order of addresses.
    pub regions: Vec<Region>,
    /// The main one first.
    pub arenas: Vec<Arena>,
    /// What is not as it should be.
    pub findings: Vec<Finding>,
    /// What the allocator says it has in chunks with mappings of their own; None if that is not known.
    pub mapped_bytes: Option<u64>,
}

impl Walk {
    /// What may be used of all live blocks.
    pub fn live_bytes(&self) -> u64 {
        let live = self.chunks.iter().filter(|chunk| chunk.state == State::Live);
        live.fold(0, |sum, chunk| sum.saturating_add(chunk.usable()))
    }

    /// The chunks of a region, ascending.
    pub fn of(&self, region: &Region) -> &[Chunk] {
        self.chunks.get(region.chunks.clone()).unwrap_or(&[])
    }

    /// The chunk that begins at `at`, by its number.
    pub fn starting_at(&self, at: Addr) -> Option<usize> {
        let region = self.regions.partition_point(|region| region.range.end <= at);
        let region = self.regions.get(region).filter(|region| region.range.start <= at)?;
        let first = region.chunks.start;
        self.of(region).binary_search_by_key(&at, |chunk| chunk.at).ok().map(|index| first + index)
    }
}
