//! Each thread's latest allocation: a block is temporary that is freed before its thread allocates the next.

use crate::base::addr::{Addr, StackId};
use rustc_hash::FxHashMap;

/// An allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Latest {
    /// Not null.
    pub(super) addr: Addr,
    /// In bytes.
    pub(super) size: u64,
    pub(super) stack: StackId,
}

impl Latest {
    const NONE: Self = Self { addr: Addr::NULL, size: 0, stack: StackId::EMPTY };

    fn known(self) -> Option<Self> {
        (!self.addr.is_null()).then_some(self)
    }
}

impl Default for Latest {
    fn default() -> Self {
        Self::NONE
    }
}

/// By serial numbers of threads. A thread mostly follows itself, so that its allocation stands apart from the table of
/// all.
///
/// The block may be dead; what is live at its address then is another thread's.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest {
    /// Of the thread that has allocated last. Where its block was forgotten, null.
    latest: (u32, Latest),
    others: FxHashMap<u32, Latest>,
}

impl Newest {
    /// The thread's latest allocation.
    #[inline]
    pub(super) fn of(&self, task: u32) -> Option<Latest> {
        if task == self.latest.0 { self.latest.1.known() } else { self.of_other(task) }
    }

    #[inline(never)]
    fn of_other(&self, task: u32) -> Option<Latest> {
        self.others.get(&task).copied()
    }

    /// The thread has allocated this.
    #[inline]
    pub(super) fn set(&mut self, task: u32, block: Latest) {
        if task != self.latest.0 {
            self.change_to(task);
        }
        self.latest.1 = block;
    }

    /// Nothing is known any more of what the thread has allocated last.
    pub(super) fn forget(&mut self, task: u32) {
        if task == self.latest.0 {
            self.latest.1 = Latest::NONE;
        } else {
            self.others.remove(&task);
        }
    }

    #[inline(never)]
    fn change_to(&mut self, task: u32) {
        let (before, block) = std::mem::replace(&mut self.latest, (task, Latest::NONE));
        self.others.remove(&task);
        if let Some(block) = block.known() {
            self.others.insert(before, block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_thread_has_its_own_as_in_a_plain_map() {
        let (mut newest, mut map) = (Newest::default(), HashMap::new());
        let mut state = 1u64;
        for n in 1..20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let task = (state >> 60) as u32 % 5;
            if state >> 40 & 7 == 0 {
                newest.forget(task);
                map.remove(&task);
            } else {
                let block = Latest { addr: Addr(n), size: n % 7, stack: StackId(task) };
                newest.set(task, block);
                map.insert(task, block);
            }
            (0..6).for_each(|task| assert_eq!(newest.of(task), map.get(&task).copied()));
        }
    }
}
