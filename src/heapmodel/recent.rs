//! The latest frees: what tells a double free from a free of what was never allocated.

use crate::addr::{Addr, StackId};
use hashbrown::HashTable;

/// A block that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Freed {
    pub(super) block: Addr,
    pub(super) size: u64,
    pub(super) alloc_stack: StackId,
    pub(super) free_stack: StackId,
}

/// Remembers a bounded number of freed blocks. To be asked about addresses that are not live only: an entry stays when its
/// address is handed out again, and is replaced when that block is freed in turn.
#[derive(Clone, Debug)]
pub(super) struct RecentFrees {
    ring: Vec<Freed>,
    /// Indices into `ring`, by address.
    by_block: HashTable<u32>,
    next: usize,
    limit: usize,
}

impl RecentFrees {
    /// For the latest `limit` frees.
    pub(super) fn new(limit: u32) -> Self {
        Self { ring: Vec::new(), by_block: HashTable::new(), next: 0, limit: limit.max(1) as usize }
    }

    pub(super) fn remember(&mut self, freed: Freed) {
        self.forget(freed.block);
        let at = self.next;
        self.next = (at + 1) % self.limit;
        if let Some(oldest) = self.ring.get(at).copied() {
            // Only if the table still means this place of the ring: the block may have been forgotten.
            if let Ok(slot) = self.by_block.find_entry(hash(oldest.block), |i| *i as usize == at) {
                slot.remove();
            }
            self.ring[at] = freed;
        } else {
            self.ring.push(freed);
        }
        let ring = &self.ring;
        let rehash = |i: &u32| ring.get(*i as usize).map_or(0, |freed| hash(freed.block));
        self.by_block.insert_unique(hash(freed.block), at as u32, rehash);
    }

    /// Forgets them all.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.by_block.clear();
        self.next = 0;
    }

    fn forget(&mut self, block: Addr) {
        let ring = &self.ring;
        let is = |i: &u32| ring.get(*i as usize).is_some_and(|freed| freed.block == block);
        if let Ok(slot) = self.by_block.find_entry(hash(block), is) {
            slot.remove();
        }
    }

    pub(super) fn get(&self, block: Addr) -> Option<Freed> {
        let found = self.by_block.find(hash(block), |i| self.ring.get(*i as usize).is_some_and(|f| f.block == block));
        found.and_then(|i| self.ring.get(*i as usize)).copied()
    }
}

fn hash(block: Addr) -> u64 {
    let product = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ (product >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
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
        for block in 1..=6 {
            recent.remember(freed(block, 7));
        }
        assert_eq!(recent.get(Addr(2)), None, "the fifth newest");
        assert_eq!(recent.get(Addr(3)), Some(freed(3, 7)));
        recent.forget(Addr(3));
        assert_eq!(recent.get(Addr(3)), None);
        recent.remember(freed(6, 8));
        assert_eq!(recent.get(Addr(6)), Some(freed(6, 8)), "the second free of the block counts");
        for block in 10..13 {
            recent.remember(freed(block, 7));
        }
        assert_eq!(recent.get(Addr(6)), Some(freed(6, 8)), "its old place in the ring was taken, not this one");
        recent.remember(freed(13, 7));
        assert_eq!(recent.get(Addr(6)), None);
        recent.clear();
        assert_eq!(recent.get(Addr(13)), None);
        recent.remember(freed(13, 9));
        assert_eq!(recent.get(Addr(13)), Some(freed(13, 9)));
    }
}
