//! Capacity that was never written: what was told of a live block counts when the block ends, and at the end of all for
//! those that live then.

use super::HeapModel;
use super::blocks::Block;
use crate::base::addr::{Addr, StackId};
use crate::base::figures::Capacity;
use rustc_hash::FxHashMap;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Capacities {
    by_stack: FxHashMap<StackId, Capacity>,
    /// What was told last of blocks that have not ended.
    live: FxHashMap<Addr, Told>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    birth: u64,
    stack: StackId,
    capacity: Capacity,
}

impl Capacities {
    /// The block at this address has ended.
    #[inline]
    pub(super) fn end(&mut self, addr: Addr, block: Block) {
        if !self.live.is_empty() {
            self.book(addr, block);
        }
    }

    #[cold]
    #[inline(never)]
    fn book(&mut self, addr: Addr, block: Block) {
        if let Some(told) = self.live.remove(&addr).filter(|told| told.birth == block.birth) {
            let sum = self.by_stack.entry(told.stack).or_default();
            *sum = sum.plus(told.capacity);
        }
    }

    /// By stack, sorted.
    pub(super) fn list(&self) -> Vec<(StackId, Capacity)> {
        let mut sums = self.by_stack.clone();
        for told in self.live.values() {
            let sum = sums.entry(told.stack).or_default();
            *sum = sum.plus(told.capacity);
        }
        let mut list: Vec<(StackId, Capacity)> = sums.into_iter().collect();
        list.sort_unstable_by_key(|(stack, _)| *stack);
        list
    }
}

impl HeapModel {
    /// So many bytes at the end of this block were never written so far. Blocks that came with a fork are their
    /// parent's.
    pub(super) fn note_unwritten(&mut self, addr: Addr, bytes: u64) {
        let Some(block) = self.blocks.get(addr).filter(|block| block.birth > self.figures.inherited_births) else {
            return;
        };
        let Some(stack) = self.sites.get(block.site).map(|site| site.stack()) else { return };
        let capacity = Capacity { blocks: 1, bytes: block.size, never_written_bytes: bytes.min(block.size) };
        self.capacities.live.insert(addr, Told { birth: block.birth, stack, capacity });
    }
}
