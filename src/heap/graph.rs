//! What the blocks of a heap are, and who holds them. Pure: what is asked of the process is asked through a trait, and
//! names are given to it.
//!
//! ```text
//! live blocks, roots  -> leaks::Graph (which block points to which)  while the process stands still
//!                     -> contents     (what can be told of a block by what it holds)
//! Graph + names       -> holders      (roots by name; reachable and lost; which holder alone leads to a block: owners)
//! holders             -> retention    (who retains whom, block by block, by dominators: where that is asked for)
//! declarations + Graph -> declared    (types of variables, carried along pointers; names of members)
//! contents + declared -> types
//! chunks + pages      -> pins         (which live blocks keep free pages)
//! ```
//!
//! A block is *retained* by what all ways to it from the roots pass: if that were gone, the block could be freed.
//! Blocks that no pointer leads to are *lost*; they hang below one node of their own.

pub mod contents;
pub mod declared;
pub mod dominators;
pub mod duplicates;
pub mod holders;
pub mod owners;
pub mod pins;
pub mod retention;
pub mod tree;
pub mod types;

use crate::base::addr::Addr;
use crate::heap::walk::{State, Walk};
use crate::heapmodel::{LiveBlock, SiteId};

/// How many blocks, and how much of them their program may use, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Sum {
    /// Their number.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Sum {
    /// One more block.
    pub const fn add(&mut self, bytes: u64) {
        self.blocks = self.blocks.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// All of another sum, too.
    pub const fn join(&mut self, other: Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// All that is told of blocks and their holders.
#[derive(Clone, Debug)]
pub struct Held {
    /// Who holds what.
    pub holdings: holders::Holdings,
    /// What the blocks are.
    pub types: types::Types,
    /// Blocks that hold the same.
    pub duplicates: duplicates::Duplicates,
    /// The beginning of each of [`duplicates::Duplicates::most`], where it is text.
    pub samples: Vec<Option<String>>,
    /// Live blocks that keep free memory.
    pub pinned: pins::Pinned,
    /// What would help most against free memory, and the resident bytes that it is about.
    pub remedy: Option<(pins::Remedy, u64)>,
}

/// The live blocks of a heap, with what the program may use of them, in the order of addresses.
pub fn live_blocks(walk: &Walk) -> Vec<LiveBlock> {
    let count = walk.chunks.iter().filter(|chunk| chunk.state == State::Live).count();
    let mut blocks = Vec::with_capacity(count);
    for region in &walk.regions {
        for chunk in walk.of(region).iter().filter(|chunk| chunk.state == State::Live) {
            let addr: Addr = chunk.block();
            let size = chunk.usable().min(region.range.end.0.saturating_sub(addr.0));
            blocks.push(LiveBlock { addr, size, site: SiteId(0), inherited: false });
        }
    }
    // regions may lie in one another
    blocks.sort_by_key(|block| block.addr);
    blocks
}
