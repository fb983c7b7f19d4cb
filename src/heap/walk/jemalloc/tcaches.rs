//! The caches of threads (`tcache_t`): stacks of free regions, which are not free by their slabs.
//!
//! An arena has a ring of those that take from it. Each link of it (`cache_bin_array_descriptor_t`) leads to the bins
//! of one, and is followed by the arena's address: by that the ring is found, at whatever place of the arena it begins.

use super::super::words::words_in;
use super::base::Blocks;
use super::extents::SMALL_CLASSES;
use super::{CACHE_LINE, number};
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use crate::image::maps::Mapping;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// A ring begins so near to the beginning of its arena.
const ARENA: u64 = 64 << 10;
/// So many arenas are looked through (`MALLOCX_ARENA_LIMIT`), and what else the module's data leads to.
const MAX_ARENAS: usize = 1 << 14;
/// So many caches are in a ring at most.
const MAX_CACHES: usize = 1 << 17;
/// The size of a bin (`cache_bin_t`).
const BIN: usize = 24;
/// So many bins are there at most: blocks of up to 8 MiB.
const MAX_BINS: usize = 80;
/// So many bins at least have room, or what was taken for them is something else.
const MIN_BINS: usize = 4;
/// A stack is never larger, in bytes.
const LARGEST_STACK: u64 = 1 << 16;

/// A stack of what is cached of a size class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stack {
    pub(super) class: u64,
    /// All of it, in use or not.
    pub(super) room: Range<Addr>,
    /// Where the addresses of what is cached stand.
    pub(super) cached: Range<Addr>,
}

/// An arena with the caches that take from it.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    pub(super) at: Addr,
    /// How many threads take from it, as it says itself.
    pub(super) threads: u64,
    pub(super) caches: Vec<Vec<Stack>>,
}

/// How links and bins are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// Since 5.3: all bins side by side, each with where its stack begins now and, in 16 bits each, where it does when
    /// it is full and empty.
    Places,
    /// Up to 5.2: those of slabs and those of large blocks apart, each with how many there are, and where its stack
    /// ends.
    Counts,
}

impl Layout {
    const ALL: [Self; 2] = [Self::Places, Self::Counts];

    /// The words of a link that lead to bins, and the one that is the arena's address.
    const fn bins(self) -> Range<usize> {
        match self {
            Self::Places => 16..24,
            Self::Counts => 16..32,
        }
    }

    /// The stacks of the bins to which a link leads. None if they are none.
    fn stacks(self, link: &[u8], memory: &mut dyn ReadMemory) -> Option<Vec<Stack>> {
        let mut bytes = vec![0; BIN * MAX_BINS];
        let mut read = |at: u64| {
            let count = if at.is_multiple_of(8) { memory.read(Addr(at), &mut bytes) } else { 0 };
            bytes.get(..count).unwrap_or(&[]).to_vec()
        };
        let first = read(word(link, self.bins().start)?);
        let stacks = match self {
            Self::Places => side_by_side(&first),
            Self::Counts => {
                let small = first.get(..BIN * SMALL_CLASSES as usize)?;
                let mut stacks = one_behind_another(small, 0, None);
                // the larger ones' stacks lie behind those
                if stacks.len() as u64 == SMALL_CLASSES {
                    let end = stacks.last().map(|stack| stack.room.end);
                    stacks.extend(one_behind_another(&read(word(link, self.bins().start + 8)?), SMALL_CLASSES, end));
                }
                stacks
            }
        };
        (stacks.len() >= MIN_BINS).then_some(stacks)
    }
}

/// The stacks of 5.3's bins, as long as each begins where the one before ends.
fn side_by_side(bins: &[u8]) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for (class, bin) in (0..).zip(bins.chunks_exact(BIN)) {
        let short = |place: usize| number(bin.get(place..place + 2).unwrap_or(&[]));
        let (Some(head), full, empty) = (word(bin, 0), short(18), short(20)) else { break };
        // places are known by their lowest bits
        let below = |from: u64, to: u64| to.wrapping_sub(from) & (LARGEST_STACK - 1);
        let (used, room) = (below(head, empty), below(full, empty));
        let Some(end) = head.checked_add(used) else { break };
        let Some(start) = end.checked_sub(room) else { break };
        let is_next = stacks.last().is_none_or(|last| last.room.end.0 == start);
        if room == 0 || used > room || !head.is_multiple_of(8) || !room.is_multiple_of(8) || !is_next {
            break;
        }
        stacks.push(Stack { class, room: Addr(start)..Addr(end), cached: Addr(head)..Addr(end) });
    }
    stacks
}

/// The stacks of 5.2's bins, as long as each ends behind the one before: they grow downwards, and none is larger than
/// what lies between.
fn one_behind_another(bins: &[u8], first: u64, before: Option<Addr>) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    let mut before = before;
    for (class, bin) in (first..).zip(bins.chunks_exact(BIN)) {
        let (Some(counts), Some(end)) = (word(bin, 0), word(bin, 16)) else { break };
        let used = 8 * (counts >> 32);
        // where the first begins is told nowhere
        let start = before.map_or_else(|| end.saturating_sub(used.max(8)), |before| before.0);
        let room = end.saturating_sub(start);
        if room == 0 || room >= LARGEST_STACK || used > room || !end.is_multiple_of(8) {
            break;
        }
        stacks.push(Stack { class, room: Addr(start)..Addr(end), cached: Addr(end - used)..Addr(end) });
        before = Some(Addr(end));
    }
    stacks
}

/// Finds the arenas to which the module's `data` leads, with the caches of all threads that take from them. `root`:
/// where in it the tree's root is.
pub(super) fn find(
    data: &Range<Addr>,
    root: &Range<Addr>,
    blocks: &Blocks,
    mappings: &[Mapping],
    memory: &mut dyn ReadMemory,
) -> Vec<Arena> {
    let mut places: BTreeSet<Addr> = BTreeSet::new();
    for part in [data.start..root.start, root.end..data.end] {
        words_in(&part, memory, &mut |_, word, _| {
            if word.is_multiple_of(CACHE_LINE) && blocks.holding(Addr(word)).is_some() {
                places.insert(Addr(word));
            }
            places.len() < MAX_ARENAS
        });
    }
    places.into_iter().filter_map(|at| arena_at(at, blocks, mappings, memory)).collect()
}

/// The arena at `at`. None if there is none, or no thread with a cache takes from it.
fn arena_at(at: Addr, blocks: &Blocks, mappings: &[Mapping], memory: &mut dyn ReadMemory) -> Option<Arena> {
    let end = blocks.holding(at)?.end.min(at.add(ARENA));
    let mut heads: Vec<Addr> = Vec::new();
    words_in(&(at..end), memory, &mut |_, word, _| {
        if word.is_multiple_of(8) && blocks.holding(Addr(word)).is_none() && is_writable(Addr(word), mappings) {
            heads.push(Addr(word));
        }
        true
    });
    let caches = heads.into_iter().find_map(|head| {
        let layout = Layout::ALL.into_iter().find(|layout| is_link(head, *layout, at, memory).is_some())?;
        Some(ring(head, layout, at, memory))
    })?;
    // how many take from it for the program, how many for what is the allocator's own (`nthreads`)
    let threads = memory.read_u64(at)? & u64::from(u32::MAX);
    Some(Arena { at, threads, caches })
}

fn is_writable(at: Addr, mappings: &[Mapping]) -> bool {
    let next = mappings.partition_point(|mapping| mapping.end <= at);
    mappings.get(next).is_some_and(|mapping| mapping.contains(at) && mapping.perms.write && !mapping.perms.shared)
}

/// The link at `at`, and the next one, if it is one of the ring of `arena`.
fn is_link(at: Addr, layout: Layout, arena: Addr, memory: &mut dyn ReadMemory) -> Option<([u8; 40], Addr)> {
    let mut link = [0; 40];
    let read = memory.read(at, &mut link);
    let of_arena = read == link.len() && word(&link, layout.bins().end)? == arena.0;
    let (next, before) = (Addr(word(&link, 0)?), Addr(word(&link, 8)?));
    // the one before leads here
    (of_arena && memory.read_u64(before)? == at.0).then_some((link, next))
}

/// The caches of a ring, as long as it goes on.
fn ring(head: Addr, layout: Layout, arena: Addr, memory: &mut dyn ReadMemory) -> Vec<Vec<Stack>> {
    let mut seen: FxHashSet<Addr> = FxHashSet::default();
    let mut caches = Vec::new();
    let mut at = head;
    while seen.len() < MAX_CACHES && seen.insert(at) {
        let Some((link, next)) = is_link(at, layout, arena, memory) else { break };
        caches.extend(layout.stacks(&link, memory));
        at = next;
    }
    caches
}
