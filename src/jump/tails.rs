//! Stacks whose nodes have no room, as the routine finds them: it walks to the end by the rules of return addresses,
//! lists these, and looks the hash of the list up. An entry has
//! 16 bytes, however deep the stack; a stack that has none is told of once, and found from then on.
//!
//! A hash has 64 bits: that two of a million stacks have the same one has a probability of 1 in 40 million.

use super::layout::{TAIL_AREA, TAIL_HASH, TAIL_SIZE, TAIL_STACK, TAILED, TAILS, tail_slot};
use super::shared::Shared;

/// Which lists are published. Only the tracer writes the table, while threads read it.
#[derive(Debug, Default)]
pub struct Tails {
    used: u64,
}

impl Tails {
    /// Publishes that the list with this hash is the stack `stack`.
    pub fn publish(&mut self, shared: &dyn Shared, hash: u64, stack: u32) {
        if stack == 0 {
            return;
        }
        if 4 * (self.used + 1) > 3 * TAILS {
            // those that are still in use come again
            self.clear(shared);
        }
        let first = tail_slot(hash);
        // a quarter is free, unless the program writes there
        for step in 0..TAILS {
            let at = TAIL_AREA + (first + step) % TAILS * TAIL_SIZE;
            match shared.word(at + TAIL_HASH) {
                0 => {
                    shared.set_half(at + TAIL_STACK, stack);
                    shared.set_word(at + TAIL_HASH, hash);
                    self.used += 1;
                    shared.set_half(TAILED, 1);
                    return;
                }
                // another thread has listed it, too
                found if found == hash => return,
                _ => {}
            }
        }
    }

    /// Frees all entries: modules have gone, or the table is full.
    pub fn clear(&mut self, shared: &dyn Shared) {
        if std::mem::take(&mut self.used) > 0 {
            shared.set_half(TAILED, 0);
            for entry in 0..TAILS {
                let at = TAIL_AREA + entry * TAIL_SIZE + TAIL_HASH;
                // a page that was never written stays so
                if shared.word(at) != 0 {
                    shared.set_word(at, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{HASH, tail_hash};
    use super::super::shared::testing::Made;
    use super::*;

    /// A look-up as the routine does it, from the region alone.
    fn find(shared: &Made, hash: u64) -> Option<u32> {
        let mut slot = tail_slot(hash);
        loop {
            let at = TAIL_AREA + slot * TAIL_SIZE;
            match shared.word(at + TAIL_HASH) {
                0 => return None,
                found if found == hash => return Some(shared.half(at + TAIL_STACK)),
                _ => slot = (slot + 1) % TAILS,
            }
        }
    }

    #[test]
    fn each_list_is_found_by_its_hash_until_all_are_freed() {
        let (shared, mut tails) = (Made::default(), Tails::default());
        let hash = |stack: u32| tail_hash(7, &[0x40_0000 + u64::from(stack), 0x50_0000]);
        for stack in 1..5000 {
            tails.publish(&shared, hash(stack), stack);
            tails.publish(&shared, hash(stack), 77);
        }
        assert!((1..5000).all(|stack| find(&shared, hash(stack)) == Some(stack)));
        assert_eq!((find(&shared, hash(5000)), shared.half(TAILED)), (None, 1));
        tails.clear(&shared);
        assert!((1..5000).all(|stack| find(&shared, hash(stack)).is_none()));
        assert_eq!(shared.half(TAILED), 0);
    }

    #[test]
    fn a_full_table_begins_anew() {
        let (shared, mut tails) = (Made::default(), Tails::default());
        tails.used = 3 * TAILS / 4 - 1;
        tails.publish(&shared, 3, 1);
        assert_eq!(find(&shared, 3), Some(1));
        tails.publish(&shared, HASH, 2);
        assert_eq!((find(&shared, 3), find(&shared, HASH), tails.used), (None, Some(2), 1));
    }

    #[test]
    fn the_hash_is_of_the_addresses_in_their_order() {
        let lists: [(u64, &[u64]); 6] =
            [(0, &[]), (0, &[1]), (0, &[1, 2]), (0, &[2, 1]), (1, &[1, 2]), (0, &[1, 2, 0])];
        let mut hashes: Vec<u64> = lists.iter().map(|(parent, callers)| tail_hash(*parent, callers)).collect();
        assert!(hashes.iter().all(|hash| *hash != 0));
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), lists.len());
        let near = (0..64u64).flat_map(|parent| (0..64).map(move |caller| tail_hash(parent, &[0x40_0000 + caller])));
        let near: std::collections::HashSet<u64> = near.collect();
        assert_eq!(near.len(), 64 * 64, "of neighbours");
    }
}
