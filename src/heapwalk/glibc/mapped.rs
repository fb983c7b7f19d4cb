//! glibc's chunks that have a mapping of their own, those above the mmap threshold.

use super::super::window::Window;
use super::super::{Chunk, Region, State, Walk};
use super::parameters::Parameters;
use super::{ALIGNMENT, FLAGS, IS_MAPPED};
use crate::addr::Addr;
use crate::maps::{Kind, Mapping};

const PAGE: u64 = 4096;

/// Adds those that begin mappings, and what follows them there: the kernel makes one mapping of neighbours.
pub(super) fn find(walk: &mut Walk, mappings: &[Mapping], parameters: Option<&Parameters>, window: &mut Window<'_>) {
    if parameters.is_some_and(|parameters| parameters.mapped_bytes == 0) {
        return;
    }
    let mut taken: Vec<_> = walk.regions.iter().map(|region| region.books.start.0..region.range.end.0).collect();
    taken.sort_unstable_by_key(|range| range.start);
    for mapping in mappings.iter().filter(|mapping| mapping.kind == Kind::Anonymous && mapping.perms.write) {
        let mut at = mapping.start;
        while at < mapping.end {
            // heaps of arenas lie in mappings, too
            if let Some(heap) = taken.iter().find(|range| range.contains(&at.0)) {
                at = Addr(heap.end.next_multiple_of(PAGE));
                continue;
            }
            match chunk_at(at, mapping, window) {
                Some((books, chunk)) => {
                    let number = walk.chunks.len();
                    walk.chunks.push(chunk);
                    walk.regions.push(Region {
                        range: chunk.at..chunk.end(),
                        books,
                        arena: None,
                        chunks: number..number + 1,
                        broken_at: None,
                    });
                    at = chunk.end();
                }
                None => break,
            }
        }
    }
}

/// The chunk whose mapping begins at `at`, and what lies before it there, which memalign(3) has left.
fn chunk_at(at: Addr, mapping: &Mapping, window: &mut Window<'_>) -> Option<(std::ops::Range<Addr>, Chunk)> {
    let fits = |chunk: Addr, window: &mut Window<'_>| {
        let before = window.lone_word(chunk)?;
        let word = window.lone_word(chunk.add(8))?;
        let size = word & !FLAGS;
        let end = chunk.0.checked_add(size)?;
        let fits = word & FLAGS == IS_MAPPED
            && before == chunk.0 - at.0
            && size > 0
            && (before + size).is_multiple_of(PAGE)
            && end <= mapping.end.0;
        fits.then_some((at..chunk, Chunk { at: chunk, size, state: State::Live }))
    };
    fits(at, window).or_else(|| {
        // The first word is of the kernel's zeros where the block was aligned: its header stands further on in the page, or in a later one.
        let is_untouched = window.lone_word(at.add(8)) == Some(0);
        let further = (at.0 + ALIGNMENT..(at.0 + PAGE).min(mapping.end.0)).step_by(ALIGNMENT as usize);
        is_untouched.then(|| further.map(Addr).find_map(|chunk| fits(chunk, window))).flatten()
    })
}
