//! Buffers that grow bit by bit: by realloc to a larger size, or as `std::vector` does it, by a new block of up to
//! twice the size, into which all is copied before the old one is freed.
//!
//! The second kind is told by a free: the thread's newest block comes from the same stack as the one that it frees, and
//! is larger by so much that the smaller one may have been full. Which block came of which is known for a bounded
//! number of them, so that series may be taken for shorter ones.

use crate::base::addr::{Addr, StackId};
use crate::base::figures::Growth;
use rustc_hash::FxHashMap;

/// So many blocks at once are known to have grown.
const REMEMBERED: usize = 1 << 12;

/// Whole pages behind a header of so many bytes are blocks that glibc has mapped each for itself, of at least
/// [`MIN_MAPPED`] bytes: mremap(2) moves those, which copies nothing.
const MAPPED_AT: u64 = 16;
const PAGE: u64 = 4096;
const MIN_MAPPED: u64 = 128 << 10;

/// A block that has come of a growth: its address, and which allocation it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grown {
    addr: Addr,
    birth: u64,
    /// Where it has.
    stack: StackId,
}

impl Grown {
    const NONE: Self = Self { addr: Addr::NULL, birth: 0, stack: StackId::EMPTY };
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Growths {
    by_stack: FxHashMap<StackId, Growth>,
    /// Made with the first one. A block's place follows from its address.
    grown: Box<[Grown]>,
}

/// A block of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) addr: Addr,
    pub(super) birth: u64,
    pub(super) bytes: u64,
}

/// Whether a new block of this size is what becomes of one that was full: from one and a half times its size to twice,
/// and a little more for what a string has behind its end, or a header.
pub(super) const fn is_next_capacity(old: u64, new: u64) -> bool {
    const HEADER: u64 = 32;
    let least = old.saturating_add(old / 2);
    least.saturating_sub(1) <= new && new <= old.saturating_mul(2).saturating_add(HEADER) && old > 0
}

impl Growths {
    /// A buffer has got a larger block by realloc, called on this stack.
    pub(super) fn note_realloc(&mut self, stack: StackId, old: Stage, new: Stage) {
        let is_copied = old.addr != new.addr && !(is_mapped(old) && is_mapped(new));
        self.note(stack, old, new, is_copied);
    }

    /// A block from this stack has grown by a realloc on another one.
    pub(super) fn note_outgrown(&mut self, stack: StackId) {
        self.by_stack.entry(stack).or_default().outgrown += 1;
    }

    /// A buffer has got a larger block, allocated on this stack, and its old one is freed.
    #[cold]
    #[inline(never)]
    pub(super) fn note_exchange(&mut self, stack: StackId, old: Stage, new: Stage) {
        self.note(stack, old, new, true);
    }

    fn note(&mut self, stack: StackId, old: Stage, new: Stage, is_copied: bool) {
        let is_series = self.take(old, stack);
        self.remember(new, stack);
        let growth = self.by_stack.entry(stack).or_default();
        growth.buffers += u64::from(!is_series);
        growth.growths += 1;
        growth.largest_bytes = growth.largest_bytes.max(new.bytes);
        if is_copied {
            growth.copies += 1;
            growth.copied_bytes = growth.copied_bytes.saturating_add(old.bytes);
        }
    }

    /// By stack, sorted.
    pub(super) fn list(&self) -> Vec<(StackId, Growth)> {
        let mut list: Vec<(StackId, Growth)> = self.by_stack.iter().map(|(stack, growth)| (*stack, *growth)).collect();
        list.sort_unstable_by_key(|(stack, _)| *stack);
        list
    }

    /// Whether this block has come of a growth on this stack. It is of no use from now on.
    fn take(&mut self, block: Stage, stack: StackId) -> bool {
        let wanted = Grown { addr: block.addr, birth: block.birth, stack };
        match self.grown.get_mut(place(block.addr)).filter(|grown| **grown == wanted) {
            Some(grown) => {
                *grown = Grown::NONE;
                true
            }
            None => false,
        }
    }

    fn remember(&mut self, block: Stage, stack: StackId) {
        if self.grown.is_empty() {
            self.grown = vec![Grown::NONE; REMEMBERED].into_boxed_slice();
        }
        if let Some(grown) = self.grown.get_mut(place(block.addr)) {
            *grown = Grown { addr: block.addr, birth: block.birth, stack };
        }
    }
}

const fn is_mapped(block: Stage) -> bool {
    block.addr.0 % PAGE == MAPPED_AT && block.bytes >= MIN_MAPPED
}

const fn place(addr: Addr) -> usize {
    (addr.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % REMEMBERED
}
