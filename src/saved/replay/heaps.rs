//! What each stack had allocated and live at moments on the way, for formats that show what happened in a part of the
//! time.

use crate::base::addr::StackId;
use crate::event::EventKind;
use crate::heapmodel::HeapModel;
use crate::profile::course::HeapAt;

/// So many heaps are kept at most; of more each second one is left out.
const MAX_HEAPS: usize = 96;

/// The time between two heaps at first, in nanoseconds.
const FIRST_STEP: u64 = 1_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Heaps {
    kept: Vec<HeapAt<StackId>>,
    step_ns: u64,
    /// When the next one is due.
    next_ns: u64,
}

impl Heaps {
    /// Begins at this moment.
    pub(super) const fn new(t_ns: u64) -> Self {
        Self { kept: Vec::new(), step_ns: FIRST_STEP, next_ns: t_ns }
    }

    /// An event is about to come: the heap before it is kept, if one is due. Of a new program nothing is known of
    /// before.
    pub(super) fn note(&mut self, kind: &EventKind, t_ns: u64, model: &HeapModel) {
        if matches!(kind, EventKind::Began { .. } | EventKind::Exec { .. } | EventKind::Forked { .. }) {
            *self = Self::new(t_ns);
        }
        if t_ns < self.next_ns {
            return;
        }
        let sites = model.snapshot().sites;
        let stacks = sites.iter().map(|site| {
            let weight = site.key.weight();
            (site.key.stack, site.allocated.times(weight), site.live.times(weight))
        });
        // Sums over threads, functions and sizes take less memory.
        let heap = HeapAt { t_ns, images: 0, stacks: stacks.collect() };
        self.kept.push(heap.named(|stack| Some(*stack)));
        if self.kept.len() >= MAX_HEAPS {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.step_ns = self.step_ns.saturating_mul(2);
        }
        self.next_ns = t_ns.saturating_add(self.step_ns);
    }

    /// The heaps, by names of stacks of our own, as those of a process that has executed so many programs before.
    pub(super) fn finish(self, images: usize, name: impl Fn(StackId) -> StackId) -> Vec<HeapAt<StackId>> {
        let own = |heap: HeapAt<StackId>| HeapAt { images, ..heap.named(|stack| Some(name(*stack))) };
        self.kept.into_iter().map(own).collect()
    }
}
