//! Blocks that the program itself says are no leaks.

use super::HeapModel;
use crate::base::addr::Addr;
use rustc_hash::FxHashMap;

/// What a program has said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Ignored {
    /// Addresses in blocks, and how many births there had been then: the block is none that was born later.
    told: FxHashMap<Addr, u64>,
    /// How often threads have said that what they allocate is to be ignored, by their serial numbers. Never zero.
    muted: FxHashMap<u32, u32>,
}

impl Ignored {
    /// In a forked child there is the one thread that forked, under another serial number.
    pub(super) fn fork(&mut self, parent: u32, child: u32) {
        let depth = self.muted.get(&parent).copied();
        self.muted = depth.map(|depth| (child, depth)).into_iter().collect();
    }

    /// A block was born.
    #[inline]
    pub(super) fn born(&mut self, addr: Addr, birth: u64, task: u32) {
        if !self.muted.is_empty() {
            self.note(addr, birth, task);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, addr: Addr, birth: u64, task: u32) {
        if self.muted.contains_key(&task) {
            self.told.insert(addr, birth);
        }
    }

    /// The live block that this address lies in is no leak, whatever becomes of it: one of the `births` so far.
    pub(super) fn add(&mut self, inside: Addr, births: u64) {
        self.told.insert(inside, births);
    }

    /// Whether what a thread allocates from now on is no leak. To switch it on takes as many calls to switch it off.
    pub(super) fn mute(&mut self, task: u32, mute: bool) {
        if mute {
            *self.muted.entry(task).or_default() += 1;
        } else if let Some(depth) = self.muted.get_mut(&task) {
            *depth -= 1;
            if *depth == 0 {
                self.muted.remove(&task);
            }
        }
    }
}

impl HeapModel {
    /// The starts of the live blocks that are no leaks, in no order.
    pub fn ignored_blocks(&self) -> Vec<Addr> {
        let mut found = Vec::new();
        let mut inside = Vec::new();
        for (&addr, &births) in &self.ignored.told {
            match self.blocks.get(addr) {
                Some(block) if block.birth <= births => found.push(addr),
                Some(_) => {}
                None => inside.push((addr, births)),
            }
        }
        inside.sort_unstable();
        if !inside.is_empty() {
            for (start, block) in self.blocks.iter() {
                let end = start.0.saturating_add(block.size);
                let first = inside.partition_point(|(addr, _)| *addr <= start);
                let mut told = inside.iter().skip(first).take_while(|(addr, _)| addr.0 < end);
                if told.any(|(_, births)| block.birth <= *births) {
                    found.push(start);
                }
            }
        }
        found
    }
}
