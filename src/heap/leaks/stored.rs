//! A graph made of pointers that were read before.

use super::Roots;
use super::edges::{Edges, NO_WORD, Pointer};
use super::graph::Graph;
use super::index::{BlockIndex, WORD};
use super::scan::Unreadable;
use crate::heapmodel::LiveBlock;

impl Graph {
    /// Makes one of blocks in the order of addresses, of equal ones the largest first, and of their pointers as
    /// [`Graph::pointers`] tells them: `next` gives each with the number of the block that it lies in, in the order of
    /// the blocks, and None at the end. It has no roots.
    ///
    /// # Errors
    /// Those of `next`.
    pub fn of_pointers<E>(
        blocks: Vec<LiveBlock>,
        mut next: impl FnMut(&[LiveBlock]) -> Result<Option<(u32, Pointer)>, E>,
    ) -> Result<Self, E> {
        let index = BlockIndex::new(blocks);
        let blocks = index.blocks();
        let mut edges = Edges::with_capacity(0);
        while let Some((block, pointer)) = next(blocks)? {
            let first = blocks.get(block as usize).map_or(0, |block| block.addr.0);
            let word = pointer.at.map_or(NO_WORD, |at| {
                let word = (first.wrapping_add(at) / WORD).wrapping_sub(first.div_ceil(WORD));
                u32::try_from(word).unwrap_or(NO_WORD)
            });
            edges.push(block, pointer.target, word, (pointer.into, false));
        }
        edges.end_blocks(blocks.len());
        let roots = Roots::default();
        Ok(Self { index, roots, from_roots: Vec::new(), edges, scanned_bytes: 0, unreadable: Unreadable::default() })
    }
}
