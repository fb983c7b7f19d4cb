//! glibc's chunks that have a mapping of their own, those above the mmap threshold.

use super::super::window::Window;
use super::super::{Chunk, Region, State, Walk};
use super::parameters::Parameters;
use super::{FLAGS, IS_MAPPED, MIN_CHUNK};
use crate::base::addr::Addr;
use crate::image::maps::{Kind, Mapping};

const PAGE: u64 = 4096;
/// The header: the first word tells how far behind the beginning of its mapping the chunk stands (a bit of it, huge
/// pages), the second one the size.
const HEADER: u8 = 16;
const IS_HUGE: u64 = 1;
/// From 2.43 on the size is less by these bytes than what is left of the mapping (`mmap_size`), and the program may use
/// all but 8 of it.
const NOT_COUNTED: u64 = 16;
const NOT_USED: i8 = 8;
/// What memalign(3) may have been asked for, as powers of two: of a smaller alignment each block is.
const ALIGNMENTS: std::ops::RangeInclusive<u32> = 5..=40;
/// Pages of mappings that are somebody else's are passed over so often to find what lies behind them.
const MAX_PASSED: usize = 1 << 16;

/// Adds those in anonymous mappings: the kernel makes one mapping of neighbours, the program's own among them. Ends
/// once as much is found as there is.
pub(super) fn find(walk: &mut Walk, mappings: &[Mapping], parameters: Option<&Parameters>, window: &mut Window<'_>) {
    let mut left = parameters.map_or(u64::MAX, |parameters| parameters.mapped_bytes);
    let mut passes = MAX_PASSED;
    let mut taken: Vec<_> = walk.regions.iter().map(|region| region.books.start..region.range.end).collect();
    taken.sort_unstable_by_key(|range| range.start);
    for mapping in mappings.iter().filter(|mapping| mapping.kind == Kind::Anonymous && mapping.perms.write) {
        let mut at = mapping.start;
        while at < mapping.end && left > 0 && passes > 0 {
            // heaps of arenas lie in mappings, too
            let next = taken.partition_point(|range| range.end <= at);
            if let Some(heap) = taken.get(next).filter(|range| range.contains(&at)) {
                at = Addr(heap.end.0.next_multiple_of(PAGE));
                continue;
            }
            let Some(chunk) = chunk_at(at, mapping, window) else {
                at = at.add(PAGE);
                passes -= 1;
                continue;
            };
            let number = walk.chunks.len();
            walk.chunks.push(chunk);
            walk.regions.push(Region {
                range: chunk.at..chunk.end(),
                books: at..chunk.at,
                arena: None,
                chunks: number..number + 1,
                broken_at: None,
            });
            left = left.saturating_sub(chunk.end().0 - at.0);
            at = chunk.end();
        }
    }
}

/// The chunk whose mapping begins at `at`. Where memalign(3) has moved it, the header that it had at first is left.
fn chunk_at(at: Addr, mapping: &Mapping, window: &mut Window<'_>) -> Option<Chunk> {
    let first = header_at(at, at, mapping, window)?;
    let moved = ALIGNMENTS.map(|bits| 1u64 << bits).find_map(|alignment| {
        let block = at.0.checked_add(u64::from(HEADER))?.checked_next_multiple_of(alignment)?;
        let moved = block - u64::from(HEADER);
        // what lies before had to have room for a chunk up to 2.42
        let further = if moved - at.0 < MIN_CHUNK { moved.checked_add(alignment) } else { None };
        [Some(moved), further].into_iter().flatten().find_map(|chunk| header_at(Addr(chunk), at, mapping, window))
    });
    Some(moved.unwrap_or(first))
}

/// The chunk whose header is at `chunk`, if one is there, of a mapping that begins at `start`.
fn header_at(chunk: Addr, start: Addr, mapping: &Mapping, window: &mut Window<'_>) -> Option<Chunk> {
    if !mapping.contains(chunk) {
        return None;
    }
    let word = window.lone_word(chunk.add(8))?;
    let before = window.lone_word(chunk)? & !IS_HUGE;
    if word & FLAGS != IS_MAPPED || before != chunk.0 - start.0 {
        return None;
    }
    let told = word & !FLAGS;
    let whole = |size: &u64| {
        let end = chunk.0.checked_add(*size);
        *size >= MIN_CHUNK && end.is_some_and(|end| end <= mapping.end.0) && (before + size).is_multiple_of(PAGE)
    };
    if let Some(size) = Some(told).filter(whole) {
        return Some(Chunk::new(chunk, size, State::Live, HEADER, 0));
    }
    let size = told.checked_add(NOT_COUNTED).filter(whole)?;
    Some(Chunk::new(chunk, size, State::Live, HEADER, NOT_USED))
}
