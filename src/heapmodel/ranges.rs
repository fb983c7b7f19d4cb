//! What is mapped, in pieces: a mapping may lose its beginning, its middle, or its end.

use crate::base::addr::Addr;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// What is left of one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    /// Where it began when it was made.
    pub(super) start: Addr,
    /// How much of it is left, in bytes.
    pub(super) bytes: u64,
    /// Index of the site.
    pub(super) site: u32,
    /// Which allocation of the process it was.
    pub(super) birth: u64,
}

/// What was cut out of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    /// The mapping; `bytes` is what was cut out.
    pub(super) of: Mapping,
    /// Whether nothing is left of it.
    pub(super) ends: bool,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    birth: u64,
}

/// Pieces of mappings, none of which overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    /// By their starts.
    pieces: BTreeMap<u64, Piece>,
    /// By their births, which no two have in common.
    mappings: FxHashMap<u64, Mapping>,
}

impl Ranges {
    /// Enters a mapping where nothing is.
    pub(super) fn insert(&mut self, mapping: Mapping) {
        let Mapping { start, bytes, birth, .. } = mapping;
        let end = start.0.saturating_add(bytes);
        if end > start.0 {
            self.pieces.insert(start.0, Piece { end, birth });
            self.mappings.insert(birth, Mapping { bytes: end - start.0, ..mapping });
        }
    }

    /// Takes out what lies in `range` of the mappings that were born up to `latest`.
    pub(super) fn cut(&mut self, range: Range<u64>, latest: u64) -> Vec<Cut> {
        let found: Vec<(u64, Piece)> = self.overlapping(&range).filter(|(_, piece)| piece.birth <= latest).collect();
        let cut = |(start, piece): (u64, Piece)| {
            let (from, to) = (start.max(range.start), piece.end.min(range.end));
            self.pieces.remove(&start);
            if start < from {
                self.pieces.insert(start, Piece { end: from, ..piece });
            }
            if to < piece.end {
                self.pieces.insert(to, piece);
            }
            let mapping = self.mappings.get_mut(&piece.birth)?;
            mapping.bytes = mapping.bytes.saturating_sub(to - from);
            let (of, ends) = (Mapping { bytes: to - from, ..*mapping }, mapping.bytes == 0);
            if ends {
                self.mappings.remove(&piece.birth);
            }
            Some(Cut { of, ends })
        };
        found.into_iter().filter_map(cut).collect()
    }

    /// Whether any of `range` is mapped.
    pub(super) fn touches(&self, range: Range<u64>) -> bool {
        self.overlapping(&range).next().is_some()
    }

    /// What is left of each mapping, the oldest first.
    pub(super) fn mappings(&self) -> Vec<Mapping> {
        let mut all: Vec<Mapping> = self.mappings.values().copied().collect();
        all.sort_unstable_by_key(|mapping| mapping.birth);
        all
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let Range { start, end } = *range;
        let end = end.max(start);
        let before = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end > start && end > start);
        before.into_iter().chain(self.pieces.range(start..end)).map(|(start, piece)| (*start, *piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All that were ever made.
    const ALL: u64 = u64::MAX;

    fn mapping(start: u64, bytes: u64, birth: u64) -> Mapping {
        Mapping { start: Addr(start), bytes, site: birth as u32 * 10, birth }
    }

    fn cuts(ranges: &mut Ranges, range: Range<u64>) -> Vec<(u64, u64, bool)> {
        ranges.cut(range, ALL).iter().map(|cut| (cut.of.birth, cut.of.bytes, cut.ends)).collect()
    }

    #[test]
    fn a_mapping_loses_its_middle_and_then_its_ends() {
        let mut ranges = Ranges::default();
        ranges.insert(mapping(100, 100, 1));
        assert_eq!(cuts(&mut ranges, 140..160), [(1, 20, false)]);
        assert!(!ranges.touches(140..160) && ranges.touches(139..140) && ranges.touches(160..161));
        assert_eq!(cuts(&mut ranges, 140..160), []);
        assert_eq!(ranges.mappings(), [mapping(100, 80, 1)]);
        assert_eq!(cuts(&mut ranges, 0..1000), [(1, 40, false), (1, 40, true)]);
        assert_eq!((ranges.mappings(), ranges.pieces.len()), (vec![], 0));
    }

    #[test]
    fn one_range_covers_several_and_spares_what_is_younger() {
        let mut ranges = Ranges::default();
        for birth in 1..=4 {
            ranges.insert(mapping(birth * 100, 100, birth));
        }
        let told: Vec<u64> = ranges.cut(150..450, 3).iter().map(|cut| cut.of.bytes).collect();
        assert_eq!(told, [50, 100, 100]);
        assert_eq!(ranges.mappings(), [mapping(100, 50, 1), mapping(400, 100, 4)]);
        assert_eq!(cuts(&mut ranges, 450..450), []);
        let backwards = Range { start: 450, end: 100 };
        assert_eq!(cuts(&mut ranges, backwards), []);
        ranges.insert(mapping(700, 0, 5));
        assert_eq!(ranges.mappings().len(), 2, "nothing was mapped");
    }

    proptest! {
        /// Against a table that has the owner of each page.
        #[test]
        fn pieces_are_those_of_a_table_of_pages(
            steps in proptest::collection::vec((any::<bool>(), 0u64..24, 1u64..10, 0u64..40), 1..60)
        ) {
            let mut ranges = Ranges::default();
            let mut pages = [0u64; 40];
            for (birth, (maps, start, len, latest)) in (1..).zip(steps) {
                let latest = if maps { ALL } else { latest };
                let mut lost = BTreeMap::<u64, u64>::new();
                for page in &mut pages[start as usize..(start + len) as usize] {
                    if *page > 0 && *page <= latest {
                        *lost.entry(*page).or_default() += 1;
                        *page = 0;
                    }
                }
                let mut told = BTreeMap::<u64, u64>::new();
                for cut in ranges.cut(start..start + len, latest) {
                    *told.entry(cut.of.birth).or_default() += cut.of.bytes;
                    prop_assert_eq!(cut.of.site, cut.of.birth as u32 * 10);
                    let is_left = ranges.mappings().iter().any(|mapping| mapping.birth == cut.of.birth);
                    prop_assert!(!(cut.ends && is_left));
                }
                prop_assert_eq!(told, lost);
                if maps {
                    ranges.insert(mapping(start, len, birth));
                    pages[start as usize..(start + len) as usize].fill(birth);
                }
                let mut left = BTreeMap::<u64, u64>::new();
                pages.iter().filter(|owner| **owner > 0).for_each(|owner| *left.entry(*owner).or_default() += 1);
                let told: BTreeMap<u64, u64> = ranges.mappings().iter().map(|m| (m.birth, m.bytes)).collect();
                prop_assert_eq!(told, left);
                for (page, owner) in (0..).zip(pages) {
                    prop_assert_eq!(ranges.touches(page..page + 1), owner > 0);
                }
            }
        }
    }
}
