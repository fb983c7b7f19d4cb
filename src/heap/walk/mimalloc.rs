//! mimalloc 2, walked from outside (include/mimalloc/types.h, src/segment.c, page.c, free.c).
//!
//! Memory comes in *segments*, at multiples of 32 MiB. A segment begins with a table of its *slices* of 64 KiB; so many
//! slices are a *page* of blocks of one size, or are in use for nothing. A segment's cookie is its address, mixed with
//! one number of the process. By that and by the chain of its slices segments are found in all mappings, with no
//! symbol.
//!
//! What is free in a page is in its lists: of what can be handed out, of what its own thread has given back, and of
//! what others have; besides each thread has a list of what others have given back of its full pages. All other blocks
//! that were ever handed out are live. An aligned block may begin further on in its place: where is told nowhere.
//!
//! Builds that encode their lists (secure and debug ones) have other tables, and are not recognized.

pub(super) mod blocks;
mod pages;
mod segments;

use super::{Allocator, Arena, Fault, Finding, Region, Sources, Walk};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use rustc_hash::FxHashSet;
use segments::{Heap, Segment};
use std::collections::BTreeMap;

/// Segments begin at multiples of this, and a normal one has as much (`MI_SEGMENT_SIZE`).
const SEGMENT: u64 = 32 << 20;
/// A slice (`MI_SEGMENT_SLICE_SIZE`).
const SLICE: u64 = 64 << 10;
/// So much wrong is told.
const MAX_FINDINGS: usize = 1 << 12;
/// More blocks are not told.
const MAX_CHUNKS: usize = 1 << 27;

/// Walks the heap. None if there is none of mimalloc's.
pub fn walk(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    let mut walk = Walk { allocator: Allocator::Mimalloc, ..Walk::default() };
    let found = segments::find(sources, &mut walk.findings, memory)?;
    let heaps = segments::heaps(&found, memory);
    let delayed = delayed(&found, &heaps, &mut walk.findings, memory);
    let rule = pages::rule(&found);
    walk.arenas = arenas(sources, &found, &heaps);
    for segment in &found {
        let first = walk.chunks.len();
        let broken_at = pages::add(&mut walk, segment, rule, &delayed, memory).or(segment.broken_at);
        let books = segment.at..segment.at.add(segment.info * SLICE);
        let arena = heap_of(segment, &heaps);
        walk.regions.push(Region {
            range: books.end..segment.end(),
            books,
            arena: if segment.is_huge { None } else { walk.arenas.iter().position(|known| known.at == arena) },
            chunks: first..walk.chunks.len(),
            broken_at,
        });
    }
    walk.findings.truncate(MAX_FINDINGS);
    Some(walk)
}

/// The heap of a segment's thread; null: its thread has ended, and nobody has taken it.
fn heap_of(segment: &Segment, heaps: &[Heap]) -> Addr {
    let first = heaps.partition_point(|heap| heap.thread < segment.thread);
    heaps.get(first).filter(|heap| heap.thread == segment.thread).map_or(Addr::NULL, |heap| heap.at)
}

/// One for each thread's heap.
fn arenas(sources: &Sources<'_>, segments: &[Segment], heaps: &[Heap]) -> Vec<Arena> {
    let mut arenas: BTreeMap<Addr, u64> = BTreeMap::new();
    for segment in segments {
        *arenas.entry(heap_of(segment, heaps)).or_default() += segment.end().0 - segment.at.0;
    }
    let is_main = |at: Addr| {
        let mapping = sources.mappings.iter().find(|mapping| mapping.contains(at));
        // in a module's data, or in the memory behind, which the kernel has filled with zeros
        mapping.is_some_and(|mapping| {
            sources.data.iter().any(|data| data.end == mapping.start || data.start == mapping.start)
        })
    };
    let mut arenas: Vec<Arena> = arenas
        .into_iter()
        .map(|(at, system_bytes)| Arena {
            at,
            is_main: is_main(at),
            system_bytes,
            threads: Some(u64::from(!at.is_null())),
        })
        .collect();
    arenas.sort_by_key(|arena| !arena.is_main);
    arenas
}

/// The blocks in the lists of what other threads have given back of full pages.
fn delayed(
    segments: &[Segment],
    heaps: &[Heap],
    findings: &mut Vec<Finding>,
    memory: &mut dyn ReadMemory,
) -> FxHashSet<Addr> {
    let mut all = FxHashSet::default();
    for heap in heaps {
        let mut at = heap.delayed;
        while !at.is_null() {
            let what = if segments::holding(segments, at).is_none() {
                Fault::List
            } else if !all.insert(at) {
                Fault::Circle
            } else if let Some(next) = memory.read_u64(at) {
                at = Addr(next);
                continue;
            } else {
                Fault::Unreadable
            };
            findings.push(Finding { at, what, before: None });
            break;
        }
    }
    all
}

#[cfg(test)]
mod tests;
