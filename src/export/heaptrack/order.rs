//! An order of single events that has the sums of a profile.
//!
//! The blocks of a sample are parted by when they live: throughout (at the peak and at the end), at the peak only, at
//! the end only, at neither. Events then come in this order: the blocks of neither kind one at a time, each freed
//! before the next; all that is live at the peak, which the last one reaches; the frees of those that are not live at
//! the end; what is live at the end besides. Nowhere is more live than at the peak. Blocks of neither kind come behind
//! the peak, where they fit beside what lives throughout: one as large as the peak, alone, would else be taken for it.

use crate::profile::{Amount, Sample};

/// How many, and their bytes in all.
pub(super) type Blocks = Amount;

/// More blocks than this are not told one by one.
const MAX_BLOCKS: u128 = 1 << 26;

/// About how many are told then.
const SAMPLED_BLOCKS: u128 = 1 << 20;

/// The blocks of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The profile's stack.
    pub stack: usize,
    /// Live at the peak and at the end.
    pub throughout: Blocks,
    /// Live at the peak, freed before the end.
    pub peak_only: Blocks,
    /// Allocated after the peak and live at the end.
    pub live_only: Blocks,
    /// Live neither at the peak nor at the end.
    pub rest: Blocks,
    /// How many were temporary: of the rest, but for one that may have made the peak.
    pub temporary: u64,
}

/// All blocks.
#[derive(Debug)]
pub(super) struct Order {
    pub groups: Vec<Group>,
    /// Whether the rest comes before the peak.
    pub rest_first: bool,
    /// The group of which a temporary block makes the peak.
    pub ends_peak: Option<usize>,
    /// How many blocks one event stands for, at most.
    pub joined: u64,
}

impl Order {
    /// Orders the blocks of `samples`.
    pub fn of(samples: impl Iterator<Item = Sample>) -> Self {
        let mut groups: Vec<Group> = samples.filter_map(|sample| Group::of(&sample)).collect();
        let all = |group: &Group| [group.throughout, group.peak_only, group.live_only, group.rest];
        let blocks: u128 = groups.iter().flat_map(all).map(|blocks| u128::from(blocks.objects)).sum();
        let mut joined = 1;
        if blocks > MAX_BLOCKS {
            joined = u64::try_from(blocks / SAMPLED_BLOCKS).unwrap_or(u64::MAX);
            groups.iter_mut().for_each(|group| group.join(joined));
        }
        let sum = |of: fn(&Group) -> Blocks| groups.iter().map(of).fold(Blocks::default(), Blocks::plus).bytes;
        let (throughout, at_peak) =
            (sum(|group| group.throughout), sum(|group| group.throughout.plus(group.peak_only)));
        let largest = groups.iter().map(|group| group.rest.bytes.div_ceil(group.rest.objects.max(1))).max();
        let rest_first = throughout.saturating_add(largest.unwrap_or(0)) > at_peak;
        let passing_peak = |group: &Group| group.temporary > group.rest.objects && group.peak_only.bytes > 0;
        let ends_peak = groups.iter().position(passing_peak);
        Self { groups, rest_first, ends_peak, joined }
    }
}

impl Group {
    /// Parts the blocks of a sample; None if there are none.
    fn of(sample: &Sample) -> Option<Self> {
        let (live, peak) = (sample.live, sample.at_peak);
        // inherited blocks, and those from before a part of a series, are live without having been allocated
        let all = Blocks {
            objects: sample.allocated.objects.max(live.objects).max(peak.objects),
            bytes: sample.allocated.bytes.max(live.bytes).max(peak.bytes),
        };
        if all.objects == 0 {
            return None;
        }
        let throughout = overlap(all, peak, live, sample.temporary);
        let peak_only = minus(peak, throughout);
        let live_only = minus(live, throughout);
        let rest = minus(minus(all, peak), live_only);
        Some(Self { stack: sample.stack, throughout, peak_only, live_only, rest, temporary: sample.temporary })
    }

    /// Tells `joined` blocks as one.
    fn join(&mut self, joined: u64) {
        for blocks in [&mut self.throughout, &mut self.peak_only, &mut self.live_only, &mut self.rest] {
            blocks.objects = blocks.objects.div_ceil(joined);
        }
        self.temporary /= joined;
    }
}

/// The difference, without blocks of negative size or bytes of no block.
fn minus(blocks: Blocks, others: Blocks) -> Blocks {
    let objects = blocks.objects.saturating_sub(others.objects);
    Blocks { objects, bytes: if objects == 0 { 0 } else { blocks.bytes.saturating_sub(others.bytes) } }
}

/// How many of the blocks live at the peak are live at the end: not told by the profile, but bounded by the sums. As
/// few as there can be, so that all temporary blocks are among the rest.
fn overlap(all: Blocks, peak: Blocks, live: Blocks, temporary: u64) -> Blocks {
    let both = u128::from(peak.objects) + u128::from(live.objects);
    let at_least = |others: u128| u64::try_from(both.saturating_sub(others)).unwrap_or(u64::MAX);
    let most = peak.objects.min(live.objects);
    let least = at_least(u128::from(all.objects)).min(most);
    let wanted = at_least(u128::from(all.objects.saturating_sub(temporary))).clamp(least, most);
    let candidates = [wanted, wanted.saturating_add(1).min(most), wanted.saturating_sub(1).max(least), most, least];
    let fitting = candidates.into_iter().find_map(|objects| {
        let bytes = bytes_of_overlap(objects, all, peak, live)?;
        Some(Blocks { objects, bytes })
    });
    fitting.unwrap_or(Blocks { objects: wanted, bytes: if wanted == 0 { 0 } else { peak.bytes.min(live.bytes) } })
}

/// The bytes of so many blocks in common, so that no kind of blocks that has no block has bytes. None if there are no
/// such.
fn bytes_of_overlap(objects: u64, all: Blocks, peak: Blocks, live: Blocks) -> Option<u64> {
    let wide = |bytes: u64| i128::from(bytes);
    let needed = wide(peak.bytes) + wide(live.bytes) - wide(all.bytes);
    let (mut low, mut high) = (needed.max(0), wide(peak.bytes.min(live.bytes)));
    let mut exactly = |bytes: i128| (low, high) = (low.max(bytes), high.min(bytes));
    if objects == 0 {
        exactly(0);
    }
    if objects == peak.objects {
        exactly(wide(peak.bytes));
    }
    if objects == live.objects {
        exactly(wide(live.bytes));
    }
    if wide(all.objects) + wide(objects) == wide(peak.objects) + wide(live.objects) {
        exactly(needed);
    }
    let even = u128::from(peak.bytes) * u128::from(objects) / u128::from(peak.objects.max(1));
    let even = i128::try_from(even).unwrap_or(i128::MAX);
    (low <= high).then(|| even.clamp(low, high)).and_then(|bytes| u64::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::sample_profile;
    use proptest::prelude::*;

    /// Sums of blocks that there really were: sizes, whether live at the peak, whether at the end.
    fn sample_of(blocks: &[(u64, bool, bool)], temporary: u64) -> Sample {
        let sum = |of: &dyn Fn(&(u64, bool, bool)) -> bool| {
            let chosen = blocks.iter().filter(|block| of(block));
            chosen.fold(Amount::default(), |sum, block| sum.plus(Amount { objects: 1, bytes: block.0 }))
        };
        let none = Amount::default();
        Sample {
            allocated: sum(&|_| true),
            at_peak: sum(&|block| block.1),
            live: sum(&|block| block.2),
            freed: none,
            deallocated: none,
            temporary,
            ..sample_profile().samples.row(0)
        }
    }

    proptest! {
        #[test]
        fn the_sums_are_kept(blocks in proptest::collection::vec((64u64..72, any::<bool>(), any::<bool>()), 1..40)) {
            let neither = blocks.iter().filter(|block| !block.1 && !block.2).count() as u64;
            for temporary in [0, neither / 2, neither] {
                let sample = sample_of(&blocks, temporary);
                let group = Group::of(&sample).expect("blocks");
                prop_assert_eq!(group.throughout.plus(group.peak_only), sample.at_peak);
                prop_assert_eq!(group.throughout.plus(group.live_only), sample.live);
                prop_assert_eq!(group.throughout.plus(group.live_only).plus(group.peak_only).plus(group.rest), sample.allocated);
                prop_assert!(group.rest.objects >= temporary);
            }
        }
    }
}
