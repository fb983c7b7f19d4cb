//! The live blocks one by one, with their births, for formats that show these.

use crate::base::addr::{Addr, StackId};
use crate::base::sampling::weighted_bytes;
use crate::event::EventKind;
use crate::heapmodel::{HeapModel, LiveBlock};
use crate::profile::births::{Births, Born, Moment};
use rustc_hash::FxHashMap;

/// So many moments are kept; of more, two become one.
const MAX_MOMENTS: usize = 4096;

/// The time that is one moment at first, in nanoseconds.
const FIRST_WIDTH: u64 = 1_000_000;

/// Of the moments of a heap with too many blocks, 2^this become one each time that is tried: in the end there is one.
const COARSER: u32 = 3;

/// How many blocks had been allocated by when.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    /// When it begins, in nanoseconds since the session did, and what had been allocated by then.
    begin: Moment,
    /// For how long a moment lasts.
    width: u64,
    /// The number of each moment since the beginning, and what had been allocated at its end; the first ones first.
    passed: Vec<(u64, u64)>,
    latest_ns: u64,
    existing: u64,
}

impl Moments {
    /// Begins at the beginning of the session.
    pub(super) const fn new() -> Self {
        let begin = Moment { t_ns: 0, births: 0 };
        Self { begin, width: FIRST_WIDTH, passed: Vec::new(), latest_ns: 0, existing: 0 }
    }

    /// Begins anew at this moment.
    pub(super) fn begin(&mut self, t_ns: u64, births: u64) {
        let existing = self.existing;
        *self = Self { begin: Moment { t_ns, births }, latest_ns: t_ns, existing, ..Self::new() };
    }

    /// An event came; afterwards so many blocks had been allocated.
    pub(super) fn note(&mut self, kind: &EventKind, t_ns: u64, births: u64) {
        match kind {
            EventKind::Began { .. } | EventKind::Exec { .. } => {
                self.passed.clear();
                (self.begin.births, self.existing) = (0, 0);
            }
            EventKind::Existing { .. } => self.existing += 1,
            _ => {}
        }
        self.latest_ns = self.latest_ns.max(t_ns);
        let number = t_ns.saturating_sub(self.begin.t_ns) / self.width.max(1);
        match self.passed.last_mut() {
            Some((last, until)) if *last >= number => *until = births,
            Some((_, until)) if *until == births => {}
            None if births == self.begin.births => {}
            Some(_) | None => self.passed.push((number, births)),
        }
        if self.passed.len() > MAX_MOMENTS {
            self.width = self.width.saturating_mul(2);
            let mut halved: Vec<(u64, u64)> = Vec::with_capacity(MAX_MOMENTS);
            for (number, births) in self.passed.drain(..) {
                match halved.last_mut() {
                    Some((last, until)) if *last == number / 2 => *until = births,
                    _ => halved.push((number / 2, births)),
                }
            }
            self.passed = halved;
        }
    }

    fn list(&self) -> Vec<Moment> {
        let end = |number: u64| {
            let passed = number.saturating_add(1).saturating_mul(self.width);
            self.begin.t_ns.saturating_add(passed).min(self.latest_ns)
        };
        let passed = self.passed.iter().map(|&(number, births)| Moment { t_ns: end(number), births });
        std::iter::once(self.begin).chain(passed).collect()
    }

    /// The blocks that are live in `model`, which has counted births since `earlier` others were; as `most` entries at
    /// most.
    pub(super) fn of(&self, model: &HeapModel, earlier: u64, most: usize) -> Births<StackId> {
        let moments = self.list();
        let born = |birth: u64, block: &LiveBlock| {
            let key = model.site(block.site)?.key;
            let birth = if birth == 0 { 0 } else { birth.saturating_add(earlier) };
            let bytes = weighted_bytes(block.size, key.interval);
            Some(Born { birth, bytes, blocks: 1, task: key.task, stack: key.stack, inherited: block.inherited })
        };
        let blocks = || model.live_births().filter_map(|(birth, block)| Some((block.addr, born(birth, &block)?)));
        let mut blocks = fold(blocks, &moments, most);
        blocks.sort_unstable_by_key(|(addr, born)| (born.birth, *addr));
        let blocks = blocks.into_iter().map(|(_, born)| born).collect();
        Births { blocks, moments, existing: self.existing }
    }
}

type Placed = (Addr, Born<StackId>);

/// All of them, or, if they are more than `most`, those of one stack and thread together that were born at about one
/// time: about as little as suffices.
fn fold<I: Iterator<Item = Placed>>(blocks: impl Fn() -> I, moments: &[Moment], most: usize) -> Vec<Placed> {
    let all: Vec<Placed> = blocks().take(most.saturating_add(1)).collect();
    if all.len() <= most {
        return all;
    }
    drop(all);
    let mut shift = 0;
    loop {
        let is_last = moments.len() >> shift == 0;
        if let Some(sums) = fold_by(blocks(), moments, shift, most, is_last) {
            return sums;
        }
        shift += COARSER;
    }
}

/// Those that were born in the same 2^`shift` moments together; None if these are too many, unless there is nothing
/// `is_last` that could be done: then what has no room is told without its stack.
fn fold_by(
    blocks: impl Iterator<Item = Placed>,
    moments: &[Moment],
    shift: u32,
    most: usize,
    is_last: bool,
) -> Option<Vec<Placed>> {
    let mut sums: FxHashMap<(StackId, u32, usize, bool), Placed> = FxHashMap::default();
    for (addr, born) in blocks {
        let moment = moments.partition_point(|moment| moment.births < born.birth) >> shift;
        let mut key = (born.stack, born.task, moment, born.inherited);
        let mut entry = (addr, born);
        if sums.len() + 1 >= most && !sums.contains_key(&key) {
            if !is_last {
                return None;
            }
            key = (StackId::EMPTY, 0, 0, false);
            entry.1 = Born { task: 0, stack: StackId::EMPTY, inherited: false, ..born };
        }
        let sum = sums.entry(key).or_insert((addr, Born { bytes: 0, blocks: 0, ..entry.1 }));
        sum.1.bytes = sum.1.bytes.saturating_add(born.bytes);
        sum.1.blocks = sum.1.blocks.saturating_add(born.blocks);
        if (born.birth, addr) < (sum.1.birth, sum.0) {
            (sum.1.birth, sum.0) = (born.birth, addr);
        }
    }
    Some(sums.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(birth: u64, stack: u32) -> Placed {
        (
            Addr(birth * 16),
            Born { birth, bytes: birth + 10, blocks: 1, task: 1, stack: StackId(stack), inherited: false },
        )
    }

    /// Blocks of five stacks in turn, ten in each moment.
    #[test]
    fn too_many_blocks_are_folded_and_none_is_lost() {
        let moments: Vec<Moment> = (0..=10).map(|n| Moment { t_ns: n, births: n * 10 }).collect();
        let blocks = || (1..=100).map(|birth| placed(birth, birth as u32 % 5 + 1));
        let bytes: u64 = blocks().map(|(_, born)| born.bytes).sum();
        for (most, told) in [(100, 100), (99, 50), (52, 50), (50, 10), (12, 10), (4, 4), (1, 1)] {
            let mut folded = fold(blocks, &moments, most);
            assert_eq!(folded.len(), told, "{most}");
            assert_eq!(folded.iter().map(|(_, born)| born.bytes).sum::<u64>(), bytes, "{most}");
            assert_eq!(folded.iter().map(|(_, born)| born.blocks).sum::<u32>(), 100, "{most}");
            folded.sort_unstable_by_key(|(_, born)| born.birth);
            folded.dedup_by_key(|(_, born)| born.birth);
            assert_eq!(folded.len(), told, "{most}: each has a birth of its own");
        }
    }

    #[test]
    fn many_moments_are_thinned_out() {
        let mut moments = Moments::new();
        let mark = EventKind::Unobserved;
        for n in 0..100_000_u64 {
            moments.note(&mark, n * 700_000, n / 2);
        }
        let list = moments.list();
        assert!((MAX_MOMENTS / 4..=MAX_MOMENTS + 1).contains(&list.len()), "{}", list.len());
        assert!(list.is_sorted_by(|a, b| a.t_ns < b.t_ns && a.births < b.births), "{list:?}");
        assert_eq!(list.last(), Some(&Moment { t_ns: 99_999 * 700_000, births: 49_999 }));
        for moment in &list {
            let then = (moment.t_ns / 700_000).min(99_999) / 2;
            assert!(then.abs_diff(moment.births) <= 1, "{moment:?}: {then}");
        }
    }
}
