//! jemalloc 5, walked from outside (include/jemalloc/internal: rtree.h, edata.h or extent_structs.h, sc.h, bitmap.h,
//! cache_bin.h, arena_structs.h, base.h; src/tcache.c, base.c).
//!
//! Memory comes in *extents* of whole pages: slabs of regions of one size, single large blocks, and what is in no use.
//! A tree leads from each page to its extent's structure, which tells its own address: by that the tree is found in a
//! module's data, with no symbol. A slab's structure has a bit for each region, and how many are free: by that it is
//! found where they stand.
//!
//! What threads keep in their caches is not free by those bits. An arena has a ring of the caches that take from it,
//! whose links lead back to the arena.
//!
//! Not recognized: builds for addresses of other than 48 bits, or pages of other than 4 KiB.

mod base;
mod extents;
mod tcaches;
mod tree;

use super::words::words_in;
use super::{Allocator, Arena, Chunk, Fault, Finding, Region, Sources, State, Walk};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use base::Blocks;
use extents::{Extent, Extents, Holds, MAX_REGIONS, size_of};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use tree::Tree;

/// Extents are made of such pages.
const PAGE: u64 = 4096;
/// What jemalloc keeps for itself lies at multiples of this.
const CACHE_LINE: u64 = 64;
/// So much wrong is told.
const MAX_FINDINGS: usize = 1 << 12;
/// More blocks are not told.
const MAX_CHUNKS: usize = 1 << 27;
/// A word of a module's data is followed to a block of jemalloc's own from so many places at most.
const MAX_WORDS: usize = 1 << 16;

/// Walks the heap. None if there is none of jemalloc's.
pub fn walk(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    let tree = tree::find(sources, memory)?;
    let mut walk = Walk { allocator: Allocator::Jemalloc, ..Walk::default() };
    if tree.entries.len() >= tree::MAX_ENTRIES {
        note(&mut walk.findings, tree.root.start, Fault::Table);
    }
    let extents = extents::read(&tree.entries, &mut walk.findings, memory)?;
    let mut inside: Vec<Addr> = extents.all.iter().map(|extent| extent.structure).collect();
    inside.extend(&tree.leaves);
    inside.extend(words_of(&tree, &extents, memory));
    let blocks = base::find(inside.into_iter(), sources.mappings, memory);
    let known = tcaches::find(&tree.data, &tree.root, &blocks, sources.mappings, memory);
    let of_threads = OfThreads::read(&known, &extents, &mut walk.findings, memory);
    let owners = owners(&blocks, &extents);
    let numbers = tell_arenas(&mut walk, &extents, &blocks, &owners, &known);
    let is_run = |one: &Extent, next: &Extent| {
        one.end() == next.at && one.arena == next.arena && one.holds != Holds::Unknown && next.holds != Holds::Unknown
    };
    for run in extents.all.chunk_by(is_run) {
        let (Some(begin), Some(end)) = (run.first(), run.last()) else { continue };
        let first = walk.chunks.len();
        for extent in run {
            add(&mut walk, extent, &extents, &of_threads);
        }
        walk.regions.push(Region {
            range: begin.at..end.end(),
            books: begin.at..begin.at,
            arena: numbers.get(&begin.arena).copied(),
            chunks: first..walk.chunks.len(),
            broken_at: (begin.holds == Holds::Unknown).then_some(begin.at),
        });
    }
    for block in blocks.ranges() {
        let first = extents.all.partition_point(|extent| extent.end() <= block.start);
        // what is told to be both is none
        if extents.all.get(first).is_none_or(|extent| extent.at >= block.end) {
            let owner = owners.get(&block.start).and_then(|owner| numbers.get(owner));
            walk.regions.push(Region {
                range: block.end..block.end,
                books: block,
                arena: Some(owner.copied().unwrap_or(0)),
                chunks: 0..0,
                broken_at: None,
            });
        }
    }
    walk.regions.sort_by_key(|region| region.range.start);
    Some(walk)
}

/// Keeps what is wrong, as long as it is not too much.
fn note(findings: &mut Vec<Finding>, at: Addr, what: Fault) {
    if findings.len() < MAX_FINDINGS {
        findings.push(Finding { at, what, before: None });
    }
}

/// A little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The page of an address.
const fn page_of(at: Addr) -> Addr {
    Addr(at.0 & !(PAGE - 1))
}

/// Where the module's data may lead to blocks of jemalloc's own, which no extent's structure is in yet.
fn words_of(tree: &Tree, extents: &Extents, memory: &mut dyn ReadMemory) -> BTreeSet<Addr> {
    let mut words = BTreeSet::new();
    for part in [tree.data.start..tree.root.start, tree.root.end..tree.data.end] {
        words_in(&part, memory, &mut |_, word, _| {
            let at = Addr(word);
            if word.is_multiple_of(CACHE_LINE) && !tree.data.contains(&at) && extents.holding(at).is_none() {
                words.insert(at);
            }
            words.len() < MAX_WORDS
        });
    }
    words
}

/// Of which arena each block of jemalloc's own is, by the extents whose structures it holds.
fn owners(blocks: &Blocks, extents: &Extents) -> BTreeMap<Addr, u64> {
    let mut votes: BTreeMap<(Addr, u64), u64> = BTreeMap::new();
    for extent in &extents.all {
        if let Some(block) = blocks.holding(extent.structure) {
            *votes.entry((block.start, extent.arena)).or_default() += 1;
        }
    }
    let mut owners: BTreeMap<Addr, (u64, u64)> = BTreeMap::new();
    for ((block, arena), count) in votes {
        let best = owners.entry(block).or_insert((count, arena));
        *best = (*best).max((count, arena));
    }
    owners.into_iter().map(|(block, (_, arena))| (block, arena)).collect()
}

/// Tells of the arenas that have extents. Returns their places in [`Walk::arenas`], by their numbers.
fn tell_arenas(
    walk: &mut Walk,
    extents: &Extents,
    blocks: &Blocks,
    owners: &BTreeMap<Addr, u64>,
    known: &[tcaches::Arena],
) -> FxHashMap<u64, usize> {
    let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
    for extent in &extents.all {
        let sum = bytes.entry(extent.arena).or_default();
        *sum = sum.saturating_add(extent.size);
    }
    for (place, (number, mapped)) in bytes.iter().enumerate() {
        let is_own = |at: &Addr| {
            let block = blocks.holding(*at);
            block.is_some_and(|block| owners.get(&block.start) == Some(number))
        };
        let arena = known.iter().find(|arena| is_own(&arena.at));
        let own: Vec<_> = blocks.ranges().filter(|block| is_own(&block.start)).collect();
        walk.arenas.push(Arena {
            // of one from which no thread takes only the memory is known
            at: arena.map_or_else(|| own.first().map_or(Addr::NULL, |block| block.start), |arena| arena.at),
            is_main: place == 0,
            system_bytes: own.iter().fold(*mapped, |sum, block| sum.saturating_add(block.end.0 - block.start.0)),
            threads: arena.map(|arena| arena.threads),
        });
    }
    bytes.into_keys().zip(0..).collect()
}

/// What lies in threads' caches, and the blocks in which those keep account of it.
#[derive(Debug, Default)]
struct OfThreads {
    cached: FxHashSet<Addr>,
    own: FxHashSet<Addr>,
}

impl OfThreads {
    fn read(
        arenas: &[tcaches::Arena],
        extents: &Extents,
        findings: &mut Vec<Finding>,
        memory: &mut dyn ReadMemory,
    ) -> Self {
        let mut found = Self::default();
        let place = |at: Addr| {
            let extent = extents.holding(at)?;
            Some((extent.class()?, extent.place(at)?.0))
        };
        let mut bytes = Vec::new();
        for cache in arenas.iter().flat_map(|arena| &arena.caches) {
            // all stacks of a cache lie in one block
            let own = cache.first().and_then(|stack| place(stack.room.end.sub(8)));
            found.own.extend(own.map(|(_, begin)| begin));
            for stack in cache {
                bytes.resize((stack.cached.end.0 - stack.cached.start.0) as usize, 0);
                let read = memory.read(stack.cached.start, &mut bytes);
                for word in bytes.get(..read).unwrap_or(&[]).chunks_exact(8) {
                    let at = Addr(number(word));
                    if place(at) == Some((stack.class, at)) {
                        found.cached.insert(at);
                    } else {
                        note(findings, at, Fault::List);
                    }
                }
            }
        }
        found
    }

    fn state(&self, at: Addr) -> State {
        match () {
            () if self.cached.contains(&at) => State::Tcache,
            () if self.own.contains(&at) => State::Own,
            () => State::Live,
        }
    }
}

/// Adds what an extent holds.
fn add(walk: &mut Walk, extent: &Extent, extents: &Extents, of_threads: &OfThreads) {
    let chunk = |at: Addr, size: u64, state: State| Chunk::new(at, size, state, 0, 0);
    let chunks = &mut walk.chunks;
    if chunks.len() >= MAX_CHUNKS {
        note(&mut walk.findings, extent.at, Fault::Entry);
        return;
    }
    match extent.holds {
        Holds::Regions { class, bits } => {
            let size = size_of(class);
            chunks.extend((0..(extent.size / size).min(MAX_REGIONS)).map(|region| {
                let at = extent.at.add(region * size);
                let is_free = extents.is_free(bits, region);
                chunk(at, size, if is_free { State::Free } else { of_threads.state(at) })
            }));
        }
        Holds::Block { class, at } => chunks.push(chunk(at, size_of(class), of_threads.state(at))),
        Holds::Nothing => chunks.push(chunk(extent.at, extent.size, State::Top)),
        Holds::Unknown => {}
    }
}

#[cfg(test)]
mod tests;
