//! What a heap was on the way to the end, for formats that show time.

use super::births::Births;
use crate::base::figures::Amount;
use std::collections::BTreeMap;

/// So many heaps are kept; more are thinned out evenly.
const MAX_HEAPS: usize = 64;

/// So many points of the resident memory are kept.
const MAX_POINTS: usize = 1024;

/// Heaps of earlier moments and the resident memory over time, the oldest first. `S` names a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapHistory<S> {
    /// Heaps at snapshots and at the ends of parts.
    pub heaps: Vec<HeapAt<S>>,
    /// Time in nanoseconds since recording began, and bytes resident then.
    pub resident: Vec<(u64, u64)>,
    /// When marks were set, in nanoseconds since recording began, and their names.
    pub marks: Vec<(u64, String)>,
    /// The blocks that are live at the end, if they are wanted one by one.
    pub births: Option<Births<S>>,
    /// The least time between two points of the resident memory, in nanoseconds.
    apart_ns: u64,
    /// Of so many heaps one is kept.
    stride: u32,
    /// How many heaps came since the last one that was kept.
    skipped: u32,
}

/// A heap at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapAt<S> {
    /// Nanoseconds since recording began.
    pub t_ns: u64,
    /// How many programs the process had executed before the present one: stacks are of that one.
    pub images: usize,
    /// For each stack what had been allocated by then, and what was live.
    pub stacks: Vec<(S, Amount, Amount)>,
}

impl<S> Default for HeapHistory<S> {
    fn default() -> Self {
        Self {
            heaps: Vec::new(),
            resident: Vec::new(),
            marks: Vec::new(),
            births: None,
            apart_ns: 0,
            stride: 1,
            skipped: 0,
        }
    }
}

impl<S> HeapHistory<S> {
    /// With these marks only.
    pub fn of_marks(marks: Vec<(u64, String)>) -> Self {
        Self { marks, ..Self::default() }
    }

    /// Only the blocks at the end, if these are wanted.
    pub fn of_births(births: Option<Births<S>>) -> Self {
        Self { births, ..Self::default() }
    }

    /// Adds a heap, later than those before; where there are many, not each.
    pub fn add_heap(&mut self, heap: HeapAt<S>) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.heaps.push(heap);
        if self.heaps.len() >= MAX_HEAPS {
            let mut kept = false;
            self.heaps.retain(|_| {
                kept = !kept;
                kept
            });
            self.stride = self.stride.saturating_mul(2);
        }
    }

    /// Adds a point of the resident memory, later than those before; where there are many, not each.
    pub fn add_resident(&mut self, t_ns: u64, bytes: u64) {
        if self.resident.last().is_some_and(|(last, _)| t_ns.saturating_sub(*last) < self.apart_ns.max(1)) {
            return;
        }
        self.resident.push((t_ns, bytes));
        if self.resident.len() >= MAX_POINTS {
            let mut kept = false;
            self.resident.retain(|_| {
                kept = !kept;
                kept
            });
            let span = t_ns.saturating_sub(self.resident.first().map_or(0, |(first, _)| *first));
            self.apart_ns = span / (MAX_POINTS as u64 / 2);
        }
    }

    /// The same with other names of stacks; those that have none are left out, and those of one name summed up.
    pub fn named<T: Ord>(self, name: impl Fn(&S) -> Option<T>) -> HeapHistory<T> {
        let heaps = self.heaps.into_iter().map(|heap| heap.named(&name));
        let (apart_ns, stride, skipped) = (self.apart_ns, self.stride, self.skipped);
        let births = self.births.map(|births| births.named(&name));
        HeapHistory {
            heaps: heaps.collect(),
            resident: self.resident,
            marks: self.marks,
            births,
            apart_ns,
            stride,
            skipped,
        }
    }
}

impl<S> HeapAt<S> {
    /// See [`HeapHistory::named`].
    pub fn named<T: Ord>(self, name: impl Fn(&S) -> Option<T>) -> HeapAt<T> {
        let mut sums: BTreeMap<T, (Amount, Amount)> = BTreeMap::new();
        for (stack, allocated, live) in self.stacks {
            let Some(stack) = name(&stack) else { continue };
            let sum = sums.entry(stack).or_default();
            *sum = (sum.0.plus(allocated), sum.1.plus(live));
        }
        let stacks = sums.into_iter().map(|(stack, (allocated, live))| (stack, allocated, live)).collect();
        HeapAt { t_ns: self.t_ns, images: self.images, stacks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_moments_are_thinned_out_evenly() {
        let mut course = HeapHistory::default();
        for t_ns in 0..100_000 {
            course.add_resident(t_ns, t_ns);
            course.add_heap(HeapAt { t_ns, images: 0, stacks: vec![(1, Amount::default(), Amount::default())] });
        }
        let gaps = |times: Vec<u64>| times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
        let resident: Vec<u64> = course.resident.iter().map(|(t_ns, _)| *t_ns).collect();
        let heaps: Vec<u64> = course.heaps.iter().map(|heap| heap.t_ns).collect();
        assert!((MAX_POINTS / 4..MAX_POINTS).contains(&resident.len()), "{}", resident.len());
        assert!((MAX_HEAPS / 4..MAX_HEAPS).contains(&heaps.len()), "{}", heaps.len());
        for times in [resident, heaps] {
            let gaps = gaps(times);
            let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
            assert!(*most <= 4 * least, "{least} to {most}");
        }
    }
}
