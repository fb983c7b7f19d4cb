//! What jemalloc keeps for itself (`base_block_t`): blocks at multiples of 2 MiB, in which its structures lie.

use super::PAGE;
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use crate::image::maps::Mapping;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks begin at multiples of this, and have as much or a multiple (`BASE_BLOCK_MIN_ALIGN`).
const BLOCK: u64 = 2 << 20;
/// A block begins with its size and the next one's address; the rest is an extent for what is not in use yet.
const HEADER: usize = 256;
/// A block is looked for so far below what lies in it.
const FARTHEST: u64 = 1 << 12;
/// A leaf of the tree lies so near to the beginning of its block.
const NEAR: u64 = 32;
/// So many blocks are looked at.
const MAX_BLOCKS: usize = 1 << 20;

/// Such blocks, apart from each other, by where they begin: each with its end.
#[derive(Debug, Default)]
pub(super) struct Blocks(BTreeMap<Addr, Addr>);

impl Blocks {
    /// In the order of addresses.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<Addr>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// The block that holds an address.
    pub(super) fn holding(&self, at: Addr) -> Option<Range<Addr>> {
        let (start, end) = self.0.range(..=at).next_back()?;
        (at < *end).then_some(*start..*end)
    }

    fn add(&mut self, block: Range<Addr>) -> bool {
        let is_apart = self.0.range(..block.end).next_back().is_none_or(|(_, end)| *end <= block.start);
        is_apart && self.0.insert(block.start, block.end).is_none()
    }
}

/// Where the blocks end that begin at a place or below, as far as it was looked at: few readings tell most of what a
/// program's data leads to from what lies in a block.
#[derive(Debug, Default)]
pub(super) struct Heads(FxHashMap<u64, Option<Addr>>);

impl Heads {
    /// Whether an address lies in a block.
    pub(super) fn holds(&mut self, at: u64, memory: &mut dyn ReadMemory) -> bool {
        let place = at / BLOCK * BLOCK;
        let end = self.0.entry(place).or_insert_with(|| {
            let places = (0..NEAR).map_while(|number| place.checked_sub(number * BLOCK));
            places.take_while(|place| *place > 0).find_map(|place| block_at(place, memory)).map(|(end, _)| end)
        });
        end.is_some_and(|end| at < end.0)
    }
}

/// Finds the blocks that hold `inside`, and those to which they lead.
pub(super) fn find(inside: impl Iterator<Item = Addr>, mappings: &[Mapping], memory: &mut dyn ReadMemory) -> Blocks {
    let mut blocks = Blocks::default();
    let mut tried: FxHashSet<u64> = FxHashSet::default();
    // most of them lie in the same blocks
    let places: BTreeSet<u64> = inside.map(|at| at.0 / BLOCK * BLOCK).collect();
    for place in places {
        if blocks.holding(Addr(place)).is_some() {
            continue;
        }
        let Some(mapping) = mappings.iter().find(|mapping| mapping.contains(Addr(place))) else { continue };
        let lowest = mapping.start.0.max(place.saturating_sub(FARTHEST * BLOCK));
        let mut begin = place;
        while begin >= lowest && tried.insert(begin) && tried.len() < MAX_BLOCKS {
            if let Some((end, next)) = block_at(begin, memory) {
                if end.0 > place {
                    blocks.add(Addr(begin)..end);
                    follow(next, &mut blocks, memory);
                }
                break;
            }
            let Some(below) = begin.checked_sub(BLOCK) else { break };
            begin = below;
        }
    }
    blocks
}

/// Adds the blocks of a list.
fn follow(mut next: u64, blocks: &mut Blocks, memory: &mut dyn ReadMemory) {
    while next != 0 && blocks.0.len() < MAX_BLOCKS {
        let Some((end, after)) = block_at(next, memory) else { break };
        if !blocks.add(Addr(next)..end) {
            break;
        }
        next = after;
    }
}

/// Where the block at `begin` ends, and which one is next in its list; None if there is none. What is not in use of it
/// reaches to its end.
fn block_at(begin: u64, memory: &mut dyn ReadMemory) -> Option<(Addr, u64)> {
    let mut bytes = [0; HEADER];
    let read = memory.read(Addr(begin), &mut bytes);
    let bytes = bytes.get(..read)?;
    let (size, next) = (word(bytes, 0)?, word(bytes, 8)?);
    let end = begin.checked_add(size)?;
    let is_possible = size >= BLOCK && size.is_multiple_of(PAGE) && next.is_multiple_of(PAGE) && next != begin;
    if !is_possible {
        return None;
    }
    let is_rest = |place: usize| {
        let (rest, size) = (word(bytes, place)?, word(bytes, place + 8)?);
        (rest > begin && rest.checked_add(size) == Some(end)).then_some(())
    };
    (16..HEADER - 16).step_by(8).find_map(is_rest).map(|()| (Addr(end), next))
}
