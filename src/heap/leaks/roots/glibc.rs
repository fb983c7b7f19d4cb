//! What of memory is glibc's malloc: malloc/malloc.c and malloc/arena.c, the same since glibc 2.3 where it matters
//! here.

use super::pieces::without;
use super::{ModuleData, RootSources, THREAD_STRUCT, mapping_at};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::heap::walk::glibc::{BINS_WORDS, bins_in, foreign};
use crate::heap::walk::{Sources, data_of};
use crate::image::maps::{Kind, Mapping};
use std::collections::BTreeMap;
use std::ops::Range;

/// A chunk's header: its size in the word before the block, that of the chunk before it (or, if mmapped, the distance
/// to the start of the mapping) in the word before that.
const SIZE_WORD: u64 = 8;
const PREV_SIZE_WORD: u64 = 16;

/// Bits of the size word: alone in its mapping; in an arena other than the main one; and all three flags.
const IS_MMAPPED: u64 = 2;
const NON_MAIN_ARENA: u64 = 4;
const FLAGS: u64 = 7;

/// Heaps of other arenas begin at multiples of this (`HEAP_MAX_SIZE`: twice the largest mmap threshold).
const HEAP_ALIGNMENT: u64 = 64 << 20;

/// The offsets of `ar_ptr`, `size` and `mprotect_size` in `struct heap_info` (`prev` is between).
const HEAP_ARENA: u64 = 0;
const HEAP_SIZE: u64 = 16;
const HEAP_MPROTECT_SIZE: u64 = 24;

/// The ranges that malloc owns, blocks, free memory and books alike.
pub(super) fn owned(sources: &RootSources<'_>, memory: &mut dyn ReadMemory) -> Vec<Range<Addr>> {
    let mut owned: Vec<Range<Addr>> = Vec::new();
    let walked = Sources { mappings: sources.mappings, data: &data_of(sources.mappings) };
    let of_program = foreign(&walked, memory);
    for mapping in sources.mappings.iter().filter(|mapping| mapping.kind == Kind::Heap) {
        let mut parts = vec![heap_start(mapping, sources)..mapping.end];
        for hole in &of_program {
            parts = parts.iter().flat_map(|part| without(part, hole)).collect();
        }
        owned.extend(parts);
    }
    let mut heaps: BTreeMap<u64, u64> = BTreeMap::new();
    for mapping in sources.mappings.iter().filter(|m| m.kind == Kind::Anonymous && m.perms.write) {
        let mut at = mapping.start.0.next_multiple_of(HEAP_ALIGNMENT);
        while at < mapping.end.0 {
            if let Some(size) = heap_size(at, mapping, memory) {
                heaps.insert(at, size);
            }
            at += HEAP_ALIGNMENT;
        }
    }
    owned.extend(heaps.iter().map(|(&start, &size)| Addr(start)..Addr(start).add(size)));
    // Of the blocks that are in neither, each has a mapping of its own, or its header tells nothing.
    let mut known: Option<Range<Addr>> = None;
    for block in sources.blocks {
        if known.as_ref().is_some_and(|range| range.contains(&block.addr)) {
            continue;
        }
        let in_heap = heaps.range(..=block.addr.0).next_back().map(|(&start, &size)| Addr(start)..Addr(start + size));
        if let Some(range) = in_heap.filter(|range| range.contains(&block.addr)) {
            known = Some(range);
            continue;
        }
        let Some((_, mapping)) = mapping_at(sources.mappings, block.addr.0) else { continue };
        if mapping.kind == Kind::Heap {
            known = Some(mapping.range());
            continue;
        }
        match mmapped_chunk(block.addr, mapping, memory) {
            Some(chunk) => owned.push(chunk),
            // The main arena grows by mmap where brk can't.
            None => {
                known = Some(mapping.range());
                owned.push(mapping.range());
            }
        }
    }
    owned
}

/// Where malloc's part of a brk heap begins: in a static program the main thread's thread-local data lies before it.
fn heap_start(mapping: &Mapping, sources: &RootSources<'_>) -> Addr {
    let descriptors = sources.threads.iter().filter_map(|thread| thread.regs).map(|regs| Addr(regs.fs_base));
    let Some(descriptor) = descriptors.filter(|&at| mapping.contains(at)).max() else { return mapping.start };
    let first = sources.blocks.iter().map(|block| block.addr).find(|&at| at > descriptor);
    let end = descriptor.add(THREAD_STRUCT);
    first.map_or(end, |first| end.min(first.sub(PREV_SIZE_WORD))).min(mapping.end)
}

/// The size of the heap of another arena that begins at `at`, if one does.
fn heap_size(at: u64, mapping: &Mapping, memory: &mut dyn ReadMemory) -> Option<u64> {
    let arena = memory.read_u64(Addr(at + HEAP_ARENA))?;
    let size = memory.read_u64(Addr(at + HEAP_SIZE))?;
    let accessible = memory.read_u64(Addr(at + HEAP_MPROTECT_SIZE))?;
    // The arena itself stands in the first of its heaps, right behind heap_info: 32 bytes, or 48 since glibc 2.35.
    let arena_heap = arena / HEAP_ALIGNMENT * HEAP_ALIGNMENT;
    let plausible = (32..=64).contains(&arena.wrapping_sub(arena_heap))
        && arena_heap != 0
        && size > 0
        && size <= accessible
        && accessible <= HEAP_ALIGNMENT
        && size.is_multiple_of(4096)
        && at.checked_add(accessible)? <= mapping.end.0;
    plausible.then_some(size)
}

/// The chunk of a block that is alone in its mapping.
fn mmapped_chunk(block: Addr, mapping: &Mapping, memory: &mut dyn ReadMemory) -> Option<Range<Addr>> {
    let header = memory.read_u64(block.sub(SIZE_WORD))?;
    if header & IS_MMAPPED == 0 || header & NON_MAIN_ARENA != 0 {
        return None;
    }
    let before = memory.read_u64(block.sub(PREV_SIZE_WORD))?;
    let chunk = block.sub(PREV_SIZE_WORD);
    let start = chunk.0.checked_sub(before)?;
    let end = chunk.0.checked_add(header & !FLAGS)?;
    (mapping.start.0 <= start && end <= mapping.end.0).then_some(Addr(start)..Addr(end))
}

/// What lies before `bins` in `struct malloc_state` and is malloc's: flags, fast bins, `top` and `last_remainder`.
const BEFORE_BINS: u64 = 0x60;

/// The main arenas: their bins hold addresses of free chunks' headers, which lie inside the block before.
pub(super) fn main_arenas(modules: &[ModuleData], memory: &mut dyn ReadMemory) -> Vec<Range<Addr>> {
    let mut arenas = Vec::new();
    for module in modules {
        match &module.glibc {
            None => {}
            Some(Some(arena)) => arenas.push(arena.clone()),
            // Its symbol is a local one, stripped from most installed libraries.
            Some(None) => arenas.extend(module.ranges.iter().filter_map(|range| find_bins(range, memory))),
        }
    }
    arenas
}

fn find_bins(range: &Range<Addr>, memory: &mut dyn ReadMemory) -> Option<Range<Addr>> {
    let bins = bins_in(range, memory)?;
    Some(Addr(bins.0.saturating_sub(BEFORE_BINS))..bins.add(BINS_WORDS * 8))
}
