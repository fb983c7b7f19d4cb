//! glibc's malloc from 2.26 on, walked from outside (malloc/malloc.c, malloc/arena.c).
//!
//! No symbol and no version is needed. The main arena is told by its bins, of which the empty ones point to themselves;
//! where they stand in the structure, and so whether it has fast bins, follows from the ring that links all arenas: it
//! comes back to the main one. The size of a heap's own data is where its arena stands. Thread caches are chunks that
//! hold nothing but lists of chunks of the right sizes. `mp_` is told by what its members can be.
//!
//! Chunks lie side by side: the size of one says where the next is, and a bit of the next one whether it is in use.
//! Those in thread caches and fast bins look as if they were: their lists tell.

mod arenas;
mod foreign;
mod lists;
mod mapped;
mod parameters;

use super::window::Window;
use super::{Arena, Chunk, Fault, Finding, Region, Sources, State, Walk};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::image::maps::{Kind, Mapping};
use arenas::Found;
pub use arenas::{BINS_WORDS, bins_in};
pub use foreign::foreign;
use parameters::Parameters;
use std::ops::Range;

/// Bits of a size word (malloc/malloc.c): the chunk before is in use; alone in a mapping. A third one says that it is
/// in another arena than the main one.
const PREV_IN_USE: u64 = 1;
const IS_MAPPED: u64 = 2;
const FLAGS: u64 = 7;

/// Chunks are multiples of this, and begin at such.
const ALIGNMENT: u64 = 16;
/// The smallest chunk (`MINSIZE`), and the smallest thing with a header, a fence (`CHUNK_HDR_SZ`).
const MIN_CHUNK: u64 = 32;
const FENCE: u64 = 16;

/// So much of a region may be somebody else's between two parts of it: sbrk(3) by the program itself.
const LARGEST_GAP: u64 = 16 << 20;
/// So many such gaps are looked through in a region.
const MAX_GAPS: usize = 64;
/// So many chunks in a row make a beginning believable.
const BELIEVED: usize = 8;

/// What is noted of chunks on the way, for their lists.
#[derive(Default)]
struct ChunkLinks {
    /// The numbers of chunks of which [`lists::may_be_cache`] said so.
    may_be_caches: Vec<usize>,
    /// Of free chunks, where the next one of their bin is; by address.
    links: Vec<(Addr, u64)>,
}

impl ChunkLinks {
    /// Where the next one of the bin is that holds the free chunk at `at`.
    fn next(&self, at: Addr) -> Option<u64> {
        let number = self.links.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        self.links.get(number).map(|(_, next)| *next)
    }
}

/// Walks the heap. None if there is none of glibc's: another allocator, or one that nobody has called.
pub fn walk(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    let found = arenas::find(sources.data, memory)?;
    let heap = brk_heap(sources.mappings);
    let parameters = parameters::find(&found.data, heap.as_ref(), memory);
    let mut walk = Walk::default();
    let mut window = Window::new(memory);
    let mut seen = ChunkLinks::default();
    for number in 0..found.arenas.len() {
        let Some(arena) = found.arenas.get(number) else { continue };
        walk.arenas.push(Arena {
            at: arena.at,
            is_main: number == 0,
            system_bytes: arena.system_bytes,
            threads: Some(arena.threads),
        });
        let regions = if number == 0 {
            main_regions(&found, heap.as_ref(), parameters.as_ref(), sources.mappings, &mut window)
        } else {
            arenas::heaps(&found, arena, &mut window)
        };
        for (books, range) in regions {
            walk_region(&mut walk, Some(number), books, range, arena.top, &mut seen, &mut window);
        }
    }
    mapped::find(&mut walk, sources.mappings, parameters.as_ref(), &mut window);
    walk.mapped_bytes = parameters.map(|parameters| parameters.mapped_bytes);
    walk.regions.sort_unstable_by_key(|region| region.range.start);
    seen.links.sort_unstable_by_key(|(at, _)| *at);
    lists::note(&mut walk, &found, &seen, &mut window);
    Some(walk)
}

/// A part of an arena: the brk area, or a heap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where the arena's structure is.
    pub arena: Addr,
    /// Whether it is the first arena.
    pub is_main: bool,
    /// All of it.
    pub range: Range<Addr>,
    /// How much of it the allocator has for itself at its beginning, in bytes.
    pub books: u64,
}

/// Where the arenas are, the main one first, without a look at anything in them. None in a process whose heap is
/// another
/// allocator's, or that has not called it.
pub fn arenas(data: &[Range<Addr>], memory: &mut dyn ReadMemory) -> Vec<Addr> {
    arenas::find(data, memory).map(|found| found.arenas.iter().map(|arena| arena.at).collect()).unwrap_or_default()
}

/// The parts of the arenas in the order of addresses, without a look at their chunks. An arena that has got another
/// number of bytes from the kernel than its parts have is left out: somebody else's memory lies in between.
pub fn parts(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Vec<Part> {
    let Some(found) = arenas::find(sources.data, memory) else { return Vec::new() };
    let heap = brk_heap(sources.mappings);
    let parameters = parameters::find(&found.data, heap.as_ref(), memory);
    let mut window = Window::new(memory);
    let mut all = Vec::new();
    for (number, arena) in found.arenas.iter().enumerate() {
        let is_main = number == 0;
        let regions = match is_main {
            true => main_regions(&found, heap.as_ref(), parameters.as_ref(), sources.mappings, &mut window),
            false => arenas::heaps(&found, arena, &mut window),
        };
        let size = |(books, range): &(Range<Addr>, Range<Addr>)| range.end.0 - books.start.0;
        if regions.iter().map(size).fold(0, u64::saturating_add) == arena.system_bytes {
            all.extend(regions.into_iter().map(|(books, range)| Part {
                arena: arena.at,
                is_main,
                books: range.start.0 - books.start.0,
                range: books.start..range.end,
            }));
        }
    }
    all.sort_unstable_by_key(|part| part.range.start);
    all
}

/// The bytes of the chunk that holds a block of so many bytes, unless what was left of a free one was too small to stay
/// for itself: then it has 16 more.
pub const fn chunk_of(size: u64) -> u64 {
    let chunk = size.saturating_add(8 + ALIGNMENT - 1) & !(ALIGNMENT - 1);
    if chunk < MIN_CHUNK { MIN_CHUNK } else { chunk }
}

/// The brk area.
fn brk_heap(mappings: &[Mapping]) -> Option<Range<Addr>> {
    let mut heaps = mappings.iter().filter(|mapping| mapping.kind == Kind::Heap);
    let first = heaps.next()?;
    Some(first.start..heaps.next_back().map_or(first.end, |last| last.end))
}

/// The main arena's regions, with no books of its own in them: the brk area, and the mapping that holds its top where
/// brk could not grow.
fn main_regions(
    found: &Found,
    heap: Option<&Range<Addr>>,
    parameters: Option<&Parameters>,
    mappings: &[Mapping],
    window: &mut Window<'_>,
) -> Vec<(Range<Addr>, Range<Addr>)> {
    let Some(main) = found.arenas.first() else { return Vec::new() };
    let mut starts = Vec::new();
    if let Some(heap) = heap {
        let told = parameters.and_then(|parameters| parameters.brk_base).filter(|base| heap.contains(base));
        // in a static program, thread-local data may lie before
        let start = told.map(aligned).or_else(|| first_chunk(heap, main.top, window));
        starts.extend(start.map(|start| start..heap.end));
    }
    let holds_top = |range: &Range<Addr>| range.contains(&main.top);
    if !starts.iter().any(holds_top) {
        let mapping = mappings.iter().find(|mapping| mapping.contains(main.top) && mapping.perms.write);
        starts.extend(mapping.map(Mapping::range));
    }
    starts.into_iter().map(|range| (range.start..range.start, range)).collect()
}

fn aligned(at: Addr) -> Addr {
    Addr(at.0.next_multiple_of(ALIGNMENT))
}

/// The first place in a heap from which chunk after chunk follows.
fn first_chunk(heap: &Range<Addr>, top: Addr, window: &mut Window<'_>) -> Option<Addr> {
    let limit = heap.end.0.min(heap.start.0.saturating_add(LARGEST_GAP));
    (aligned(heap.start).0..limit)
        .step_by(ALIGNMENT as usize)
        .map(Addr)
        .find(|&at| begins_chunks(at, heap.end, top, window))
}

/// Whether some chunks follow each other from `at` on, or the top does.
fn begins_chunks(mut at: Addr, end: Addr, top: Addr, window: &mut Window<'_>) -> bool {
    for _ in 0..BELIEVED {
        if at == top {
            return true;
        }
        match window.word(at.add(8)).map(|word| size_in(word, at, end)) {
            Some(Some(size)) => at = at.add(size),
            _ => return false,
        }
    }
    true
}

/// The size in a size word, if a chunk at `at` in a region that ends at `end` can have it.
fn size_in(word: u64, at: Addr, end: Addr) -> Option<u64> {
    let size = word & !FLAGS;
    let fits = size >= MIN_CHUNK && size.is_multiple_of(ALIGNMENT) && size <= end.0.saturating_sub(at.0);
    (fits && word & IS_MAPPED == 0).then_some(size)
}

/// Adds a region with its chunks.
fn walk_region(
    walk: &mut Walk,
    arena: Option<usize>,
    books: Range<Addr>,
    range: Range<Addr>,
    top: Addr,
    seen: &mut ChunkLinks,
    window: &mut Window<'_>,
) {
    let first = walk.chunks.len();
    let mut at = range.start;
    let mut broken_at = None;
    let mut gaps = 0;
    while at < range.end {
        let Some(word) = window.word(at.add(8)) else {
            broken_at = Some(at);
            break;
        };
        // The bit of this one says what the one before is.
        if word & PREV_IN_USE == 0
            && let Some(before) = walk.chunks.get_mut(first..).and_then(<[Chunk]>::last_mut)
            && before.state == State::Live
        {
            before.state = State::Free;
            let before = *before;
            // it is at hand now: to come back for it from each list is a reading each
            seen.links.extend(window.lone_word(before.block()).map(|next| (before.at, next)));
            if window.word(at) != Some(before.size()) {
                walk.findings.push(Finding { at, what: Fault::End(before.size()), before: Some(before) });
            }
        }
        let size = word & !FLAGS;
        if at == top {
            let size = size.min(range.end.0 - at.0);
            walk.chunks.push(Chunk::glibc(at, size, State::Top));
            at = at.add(size);
            break;
        }
        // the top is the last one
        let end = if at < top && top < range.end { top } else { range.end };
        match size_in(word, at, end) {
            Some(size) => {
                let chunk = Chunk::glibc(at, size, State::Live);
                if lists::may_be_cache(chunk, window) {
                    seen.may_be_caches.push(walk.chunks.len());
                }
                walk.chunks.push(chunk);
                at = at.add(size);
            }
            // A fence: the end of a heap, or of a part of the brk area behind which somebody else has taken some.
            None if size <= FENCE && is_fence(walk, first, size) => {
                walk.chunks.push(Chunk::glibc(at, FENCE, State::Own));
                at = at.add(FENCE);
                if size == 0 {
                    break;
                }
                if is_second_fence(walk, first) {
                    gaps += 1;
                    let next = (gaps <= MAX_GAPS).then(|| after_gap(at, range.end, top, window)).flatten();
                    match next {
                        Some(next) => at = next,
                        None => break,
                    }
                }
            }
            None => {
                broken_at = Some(at);
                break;
            }
        }
    }
    if let Some(at) = broken_at {
        let before = walk.chunks.get(first..).and_then(<[Chunk]>::last).copied();
        let what = window.word(at.add(8)).map_or(Fault::Unreadable, Fault::Size);
        walk.findings.push(Finding { at, what, before });
    }
    let range = range.start..if broken_at.is_some() { range.end } else { at };
    walk.regions.push(Region { range, books, arena, chunks: first..walk.chunks.len(), broken_at });
}

/// Whether what has no size of a chunk can be a fence: it ends a region, so chunks stand before it.
fn is_fence(walk: &Walk, first: usize, size: u64) -> bool {
    walk.chunks.len() > first && (size == FENCE || is_after_fence(walk, first) || size == 0)
}

fn is_after_fence(walk: &Walk, first: usize) -> bool {
    walk.chunks.get(first..).and_then(<[Chunk]>::last).is_some_and(|chunk| chunk.state == State::Own)
}

fn is_second_fence(walk: &Walk, first: usize) -> bool {
    let chunks = walk.chunks.get(first..).unwrap_or(&[]);
    matches!(chunks, [.., a, b] if a.state == State::Own && b.state == State::Own)
}

/// Where chunks go on behind what is somebody else's.
fn after_gap(from: Addr, end: Addr, top: Addr, window: &mut Window<'_>) -> Option<Addr> {
    let limit = end.0.min(from.0.saturating_add(LARGEST_GAP));
    (from.0..limit).step_by(ALIGNMENT as usize).map(Addr).find(|&at| begins_chunks(at, end, top, window))
}

#[cfg(test)]
mod tests;
