//! What only such profiles have that were read from a file, or were made of several of these.

use crate::base::advice::Proof;
use crate::base::leakclass::LeakClass;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A class of leaks, as the label of a sample tells it: one for all live blocks of a stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LeakLabel {
    /// The worst class that a stack's live blocks have.
    Class(LeakClass),
    /// A rule of suppression hides all of them.
    Suppressed,
}

impl LeakLabel {
    /// The label's text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Class(class) => class.name(),
            Self::Suppressed => "suppressed",
        }
    }

    /// The label of this text, if it is one.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = LeakClass::ALL.into_iter().map(Self::Class).chain([Self::Suppressed]);
        all.into_iter().find(|label| label.name() == name)
    }
}

/// Which amounts a file holds; the others are zero in the profile, and mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holds {
    /// Blocks live at the end.
    pub live: bool,
    /// All that were allocated.
    pub allocated: bool,
    /// Those that were freed, by the stack that allocated them.
    pub freed: bool,
    /// Those that were freed, by the stack that freed them.
    pub deallocated: bool,
    /// Those live at the peak.
    pub peak: bool,
    /// Those freed before the thread's next allocation.
    pub temporary: bool,
    /// For how long blocks lived. Only report.json has it, and no list of what is missing names it.
    pub lifetimes: bool,
}

impl Holds {
    /// The names, as a comment of pprof files has them, and what each stands for.
    const NAMES: [&'static str; 6] = ["live", "allocated", "freed", "deallocated", "peak", "temporary"];

    /// Everything.
    pub const ALL: Self = Self {
        live: true,
        allocated: true,
        freed: true,
        deallocated: true,
        peak: true,
        temporary: true,
        lifetimes: true,
    };

    const fn list(&self) -> [bool; 6] {
        [self.live, self.allocated, self.freed, self.deallocated, self.peak, self.temporary]
    }

    /// What both hold.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            live: self.live && other.live,
            allocated: self.allocated && other.allocated,
            freed: self.freed && other.freed,
            deallocated: self.deallocated && other.deallocated,
            peak: self.peak && other.peak,
            temporary: self.temporary && other.temporary,
            lifetimes: self.lifetimes && other.lifetimes,
        }
    }

    /// The names of what is not held.
    pub fn missing(&self) -> Vec<&'static str> {
        Self::NAMES.into_iter().zip(self.list()).filter(|(_, held)| !held).map(|(name, _)| name).collect()
    }

    /// Takes out what a list of names says to be missing, with commas between.
    pub fn without(&mut self, missing: &str) {
        let fields = [
            &mut self.live,
            &mut self.allocated,
            &mut self.freed,
            &mut self.deallocated,
            &mut self.peak,
            &mut self.temporary,
        ];
        for (name, field) in Self::NAMES.into_iter().zip(fields) {
            *field &= !missing.split(',').any(|missing| missing == name);
        }
    }
}

/// Who wrote a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// heaptrace.
    Heaptrace,
    /// Fuchsia's memory_sampler, or another tool with its six columns. Each of its files counts live blocks as
    /// allocated.
    MemorySampler,
    /// Another tool.
    Other,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// Who wrote the file.
    pub writer: Writer,
    /// What it holds.
    pub holds: Holds,
    /// Whether the peak is what it is about in the first place, rather than what is live.
    pub about_peak: bool,
    /// Of how many files it was made by merging; 1 if it was not.
    pub files: u64,
    /// The numbers of the parts of the one session that it is of, sorted; empty if it is of several.
    pub parts: Vec<u32>,
    /// Whether the last part is among them; of several sessions: whether all have ended.
    pub last: bool,
    /// The part that its peak is of.
    pub peak_part: u32,
    /// Whether the peak is a sum of peaks that need not have been at one moment.
    pub peak_is_bound: bool,
    /// The sessions in it of which parts are missing, with the parts that are there. Empty for a single session.
    pub open: BTreeMap<String, Vec<u32>>,
    /// The square of the standard error of the allocated bytes, as the file tells that.
    pub variance: u128,
    /// Whether samples have the sizes of their blocks.
    pub sized: bool,
    /// What the file advises, by the stacks of sites; None if it does not say.
    pub advice: Option<Vec<(usize, Proof)>>,
    /// Regular expressions of the allocator's own functions, which pprof hides; of files of ours only.
    pub drop_frames: BTreeSet<String>,
}

impl Saved {
    /// What a file of ours says that holds a whole run.
    pub fn whole() -> Self {
        Self {
            writer: Writer::Heaptrace,
            holds: Holds::ALL,
            about_peak: true,
            files: 1,
            parts: vec![1],
            last: true,
            peak_part: 1,
            peak_is_bound: false,
            open: BTreeMap::new(),
            variance: 0,
            sized: true,
            advice: None,
            drop_frames: BTreeSet::new(),
        }
    }

    /// Whether it is a part of a session, and not all of it.
    pub fn is_partial(&self) -> bool {
        !is_whole(&self.parts, self.last)
    }
}

impl super::Profile {
    /// Adds the amounts of all samples to the totals. What was freed is told by the stacks that freed, if
    /// `deallocated`, else by those that allocated.
    pub(crate) fn add_sums(&mut self, deallocated: bool) {
        let totals = &mut self.totals;
        for sample in self.samples.iter() {
            let freed = if deallocated { sample.deallocated } else { sample.freed };
            for (objects, bytes, amount) in [
                (&mut totals.allocations, &mut totals.bytes_allocated, sample.allocated),
                (&mut totals.frees, &mut totals.bytes_freed, freed),
                (&mut totals.live_blocks, &mut totals.live_bytes, sample.live),
                (&mut totals.peak_blocks, &mut totals.peak_bytes, sample.at_peak),
            ] {
                *objects = objects.saturating_add(amount.objects);
                *bytes = bytes.saturating_add(amount.bytes);
            }
        }
    }
}

/// Whether these parts, of which one may be the last, are all of a session. No part at all: several sessions.
pub fn is_whole(parts: &[u32], last: bool) -> bool {
    parts.is_empty() || last && parts.iter().copied().eq(1..=parts.len() as u32)
}

/// `1-3,7`: numbers of parts, which must be sorted.
pub fn ranges(parts: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = parts;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(u64::from(first)..).take_while(|(part, expected)| u64::from(**part) == *expected);
        let length = run.count().max(1);
        let last = rest.get(length - 1).copied().unwrap_or(first);
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&if first == last { first.to_string() } else { format!("{first}-{last}") });
        rest = rest.get(length..).unwrap_or_default();
    }
    text
}

/// The most parts that are read from a list of them.
const PARTS: u64 = 1 << 20;

/// The ranges in what [`ranges`] writes; None for one that is something else.
fn ranges_of(text: &str) -> impl Iterator<Item = Option<RangeInclusive<u32>>> {
    text.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last >= first).then_some(first..=last)
    })
}

/// How many parts are listed in what [`ranges`] writes; None if it is something else, or too much.
pub fn parts_in(text: &str) -> Option<usize> {
    let sum = ranges_of(text).try_fold(0_u64, |sum, range| {
        let range = range?;
        Some(sum + u64::from(range.end() - range.start()) + 1).filter(|sum| *sum <= PARTS)
    });
    sum.and_then(|sum| usize::try_from(sum).ok())
}

/// Reads what [`ranges`] writes; None if it is something else, or too much.
pub fn parts_from(text: &str) -> Option<Vec<u32>> {
    let mut parts: Vec<u32> = Vec::with_capacity(parts_in(text)?);
    ranges_of(text).flatten().for_each(|range| parts.extend(range));
    parts.sort_unstable();
    parts.dedup();
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        for (parts, text) in
            [(&[1][..], "1"), (&[1, 2, 3, 7], "1-3,7"), (&[4, 6], "4,6"), (&[0, u32::MAX], "0,4294967295")]
        {
            assert_eq!(ranges(parts), text);
            assert_eq!(parts_from(text).as_deref(), Some(parts));
            assert_eq!(parts_in(text), Some(parts.len()));
        }
        for wrong in ["", "x", "3-1", "1-4294967295", "1,,2"] {
            assert_eq!(parts_from(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_missing_is_told_and_read() {
        let mut holds = Holds::ALL;
        holds.without("peak,freed");
        assert!(!holds.peak && !holds.freed && holds.live);
        assert_eq!(holds.missing(), ["freed", "peak"]);
    }
}
