//! The blocks of a page, and its lists of those that are free: mimalloc 2 and 3 have the same.

use super::super::{Chunk, Fault, Finding, State};
use super::SLICE;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;

/// Lists of blocks that are larger are read word by word.
const LARGE: u64 = 4096;
/// What a page of smaller blocks has at most, in bytes.
const LARGEST_PAGE: u64 = 8 * SLICE;

/// The blocks of one page that were ever handed out, or lie in a list: side by side, all of one size.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap::walk) struct Blocks {
    /// Where the first one is.
    pub(in crate::heap::walk) start: Addr,
    /// What each has, in bytes.
    pub(in crate::heap::walk) size: u64,
    /// How many they are.
    pub(in crate::heap::walk) capacity: u64,
    /// The first blocks of the lists `free`, `local_free` and `xthread_free`.
    pub(in crate::heap::walk) lists: [Addr; 3],
}

/// What the lists say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::heap::walk) struct Free {
    /// For each block whether it is in one.
    pub(in crate::heap::walk) blocks: Vec<bool>,
    /// How many blocks each list has.
    pub(in crate::heap::walk) listed: [u64; 3],
}

impl Blocks {
    /// Which of them begins at `at`.
    pub(in crate::heap::walk) fn number(&self, at: Addr) -> Option<usize> {
        let offset = at.0.checked_sub(self.start.0)?;
        let number = offset.checked_div(self.size)?;
        (offset.is_multiple_of(self.size) && number < self.capacity).then_some(usize::try_from(number).ok()?)
    }

    /// Follows the lists.
    pub(in crate::heap::walk) fn free(&self, findings: &mut Vec<Finding>, memory: &mut dyn ReadMemory) -> Free {
        let mut free = Free { blocks: vec![false; usize::try_from(self.capacity).unwrap_or(0)], listed: [0; 3] };
        let is_small = self.size < LARGE && self.lists.iter().any(|list| !list.is_null());
        let mut bytes = vec![0; if is_small { (self.capacity * self.size).min(LARGEST_PAGE) as usize } else { 0 }];
        let read = memory.read(self.start, &mut bytes);
        bytes.truncate(read);
        for (list, listed) in self.lists.into_iter().zip(&mut free.listed) {
            let mut at = list;
            let mut before = None;
            while !at.is_null() {
                let what = match self.number(at) {
                    _ if *listed >= self.capacity => Some(Fault::Circle),
                    None => Some(Fault::List),
                    Some(number) => {
                        if let Some(is_free) = free.blocks.get_mut(number) {
                            *is_free = true;
                        }
                        *listed += 1;
                        None
                    }
                };
                let next = || {
                    let offset = usize::try_from(at.0 - self.start.0).ok()?;
                    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk::<8>()?))
                };
                let next = match what {
                    Some(_) => None,
                    None => next().or_else(|| memory.read_u64(at)),
                };
                let Some(next) = next else {
                    findings.push(Finding { at, what: what.unwrap_or(Fault::Unreadable), before });
                    break;
                };
                before = Some(chunk(at, self.size, State::Free));
                at = Addr(next);
            }
        }
        free
    }

    /// Where each of them begins.
    pub(in crate::heap::walk) fn places(&self) -> impl Iterator<Item = Addr> + use<> {
        let step = usize::try_from(self.size).unwrap_or(usize::MAX).max(1);
        (self.start.0..).step_by(step).take(usize::try_from(self.capacity).unwrap_or(0)).map(Addr)
    }
}

/// A chunk without a header.
pub(in crate::heap::walk) const fn chunk(at: Addr, size: u64, state: State) -> Chunk {
    Chunk::new(at, size, state, 0, 0)
}
