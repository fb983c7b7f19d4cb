//! The latest frees: what tells a double free from a free of what was never allocated.

use crate::addr::{Addr, StackId};

/// A block that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Freed {
    pub(super) block: Addr,
    pub(super) size: u64,
    pub(super) alloc_stack: StackId,
    pub(super) free_stack: StackId,
}

/// So many lists the freed blocks are spread over, by their addresses.
const LISTS: usize = 1 << 16;

/// A freed block in the ring, with the one before it in its list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    freed: Freed,
    /// The number of the free before, see [`RecentFrees::lists`].
    before: u32,
}

/// Remembers a bounded number of freed blocks. To be asked about addresses that are not live only: an entry stays when its
/// address is handed out again, and the newer one counts when that block is freed in turn.
///
/// To remember a free is to write two places, one of which is next to the one before. Nothing is ever taken out: what was
/// overwritten in the ring is told by its age.
#[derive(Clone, Debug)]
pub(super) struct RecentFrees {
    ring: Vec<Entry>,
    /// The number of the latest free in each list, counted from 1 on; 0: none. Made at the first free.
    lists: Vec<u32>,
    /// How many frees there were. Before there are more than it can count, all are forgotten.
    count: u32,
    /// So many of them are forgotten.
    forgotten: u32,
    /// A power of two.
    limit: u32,
}

impl RecentFrees {
    /// For the latest `limit` frees, rounded up to a power of two.
    pub(super) fn new(limit: u32) -> Self {
        Self {
            ring: Vec::new(),
            lists: Vec::new(),
            count: 0,
            forgotten: 0,
            limit: limit.clamp(1, 1 << 31).next_power_of_two(),
        }
    }

    #[inline]
    pub(super) fn remember(&mut self, freed: Freed) {
        if self.lists.is_empty() || self.count == u32::MAX {
            *self = Self { lists: vec![0; LISTS], ..Self::new(self.limit) };
        }
        let at = self.place(self.count);
        self.count += 1;
        let Some(list) = self.lists.get_mut(list_of(freed.block)) else { return };
        let entry = Entry { freed, before: std::mem::replace(list, self.count) };
        match self.ring.get_mut(at) {
            Some(place) => *place = entry,
            None => self.ring.push(entry),
        }
    }

    /// Forgets them all.
    pub(super) const fn forget(&mut self) {
        self.forgotten = self.count;
    }

    /// The latest free of this address, if it is one of the latest frees.
    pub(super) fn get(&self, block: Addr) -> Option<Freed> {
        let mut number = *self.lists.get(list_of(block))?;
        while number > self.forgotten && self.count - number < self.limit {
            let entry = self.ring.get(self.place(number - 1))?;
            if entry.freed.block == block {
                return Some(entry.freed);
            }
            number = entry.before;
        }
        None
    }

    /// Where the free is, or was, before which there had been `count`.
    const fn place(&self, count: u32) -> usize {
        (count & (self.limit - 1)) as usize
    }
}

/// Blocks that are neighbours are often freed one after the other: their lists are neighbours, too.
const fn list_of(block: Addr) -> usize {
    let page = (block.0 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (page ^ block.0 >> 4) as usize % LISTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(block: u64, free_stack: u32) -> Freed {
        Freed { block: Addr(block), size: 1, alloc_stack: StackId(0), free_stack: StackId(free_stack) }
    }

    #[test]
    fn the_latest_frees_are_known() {
        let mut recent = RecentFrees::new(4);
        assert_eq!(recent.get(Addr(1)), None);
        for block in 1..=6 {
            recent.remember(freed(block, 7));
        }
        assert_eq!(recent.get(Addr(2)), None, "the fifth newest");
        assert_eq!(recent.get(Addr(3)), Some(freed(3, 7)));
        recent.remember(freed(6, 8));
        assert_eq!(recent.get(Addr(6)), Some(freed(6, 8)), "the second free of the block counts");
        for block in 10..13 {
            recent.remember(freed(block, 7));
        }
        assert_eq!(recent.get(Addr(6)), Some(freed(6, 8)), "its old place in the ring was taken, not this one");
        recent.remember(freed(13, 7));
        assert_eq!(recent.get(Addr(6)), None);
        recent.forget();
        assert_eq!(recent.get(Addr(13)), None);
        recent.remember(freed(13, 9));
        assert_eq!(recent.get(Addr(13)), Some(freed(13, 9)));
    }

    #[test]
    fn any_frees_are_known_as_a_plain_list_knows_them() {
        let mut recent = RecentFrees::new(64);
        let mut all: Vec<Freed> = Vec::new();
        let mut state = 1u64;
        for n in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some in one list, some not.
            let block = 0x7f00_0000_0000 + (state >> 40) % 40 * if state >> 63 == 0 { 1 << 28 } else { 16 };
            all.push(freed(block, n));
            recent.remember(freed(block, n));
            for known in all.iter().rev().take(200) {
                let expected = all.iter().rev().take(64).find(|freed| freed.block == known.block);
                assert_eq!(recent.get(known.block), expected.copied());
            }
        }
    }

    #[test]
    fn after_four_billion_frees_it_begins_anew() {
        let mut recent = RecentFrees::new(4);
        recent.remember(freed(1, 7));
        recent.count = u32::MAX;
        recent.remember(freed(2, 7));
        assert_eq!((recent.get(Addr(1)), recent.get(Addr(2))), (None, Some(freed(2, 7))));
    }
}
