//! In which arenas of glibc blocks lay that other threads have freed: known by the addresses of the blocks, once the
//! parts of the arenas are told.

use super::HeapModel;
use crate::base::addr::{Addr, StackId};
use crate::base::figures::{Arena, CrossThreadFreed};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// glibc's arenas, but for the main one, consist of heaps, each of which begins at a multiple of 2 to this power and
/// has no more bytes than that (`HEAP_MAX_SIZE` in malloc/arena.c): what lies between two multiples is of one arena.
const SPAN_BITS: u32 = 26;

/// So many pairs of a stack and a span are kept apart.
const MAX_PAIRS: usize = 1 << 16;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Arenas {
    /// How many blocks other threads have freed.
    freed_elsewhere: u64,
    /// How many of them lay where, by the stacks of their allocations.
    by_span: FxHashMap<(StackId, u64), u64>,
    /// What the arenas have, by where it begins.
    parts: BTreeMap<Addr, Part>,
}

/// A part of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) arena: Addr,
    pub(super) is_main: bool,
    pub(super) bytes: u64,
    pub(super) live: u64,
    pub(super) free: u64,
}

impl Arenas {
    /// Another thread has freed a block that was allocated on this stack.
    #[inline(never)]
    pub(super) fn note(&mut self, stack: StackId, block: Addr) {
        self.freed_elsewhere = self.freed_elsewhere.saturating_add(1);
        let key = (stack, block.0 >> SPAN_BITS);
        if let Some(count) = self.by_span.get_mut(&key) {
            *count = count.saturating_add(1);
        } else if self.by_span.len() < MAX_PAIRS {
            self.by_span.insert(key, 1);
        }
    }

    /// What begins at `start` is this part of an arena.
    pub(super) fn tell(&mut self, start: Addr, part: Part) {
        self.parts.insert(start, part);
    }

    /// By stack and arena, sorted. Empty as long as no part is told.
    pub(super) fn list(&self) -> Vec<(StackId, CrossThreadFreed)> {
        if self.parts.is_empty() {
            return Vec::new();
        }
        let mut arenas: BTreeMap<Addr, Arena> = BTreeMap::new();
        for part in self.parts.values() {
            let (address, is_main) = (part.arena.0, part.is_main);
            let none = Arena { address, is_main, system_bytes: 0, live_bytes: 0, free_bytes: 0 };
            let sum = arenas.entry(part.arena).or_insert(none);
            sum.system_bytes = sum.system_bytes.saturating_add(part.bytes);
            sum.live_bytes = sum.live_bytes.saturating_add(part.live);
            sum.free_bytes = sum.free_bytes.saturating_add(part.free);
        }
        let mut sums: BTreeMap<(StackId, Addr), u64> = BTreeMap::new();
        for ((stack, span), blocks) in &self.by_span {
            let Some(arena) = self.arena_in(*span) else { continue };
            let sum = sums.entry((*stack, arena)).or_default();
            *sum = sum.saturating_add(*blocks);
        }
        let stranded =
            |((stack, arena), blocks)| Some((stack, CrossThreadFreed { blocks, arena: *arenas.get(&arena)? }));
        sums.into_iter().filter_map(stranded).collect()
    }

    /// The arena that has a part in a span.
    fn arena_in(&self, span: u64) -> Option<Addr> {
        let first = Addr(span << SPAN_BITS);
        let last = Addr(first.0 | ((1 << SPAN_BITS) - 1));
        let (start, part) = self.parts.range(..=last).next_back()?;
        (start.0.saturating_add(part.bytes) > first.0).then_some(part.arena)
    }
}

impl HeapModel {
    /// How many blocks were freed by another thread than the one that had allocated them, and how many in all. Cheap.
    /// Where blocks are sampled the first is 0.
    pub const fn freed_elsewhere(&self) -> (u64, u64) {
        (self.arenas.freed_elsewhere, self.figures.totals.frees)
    }
}
