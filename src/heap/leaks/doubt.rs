//! Why blocks are only possibly leaked: by what pointers they are reached. Where the same is true of many, it is how
//! the program keeps them.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// What makes a pointer to a block doubtful.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// It has bits in its upper 16.
    Tagged,
    /// It points so many bytes behind the block's start.
    Behind(u64),
}

/// Blocks, and the sum of their sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Doubted {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How many blocks are reached by which doubtful pointers.
#[derive(Clone, Debug, Default)]
pub struct Doubts {
    counted: FxHashMap<Doubt, Doubted>,
}

/// So many kinds of pointers are told.
const MAX_TOLD: usize = 4;

/// What a kind of pointers must lead to, to be told: so many blocks.
const MIN_BLOCKS: u64 = 10;

/// Bits below this may be a tag as well as a place behind a header.
const LOW_TAG: u64 = 8;

impl Doubts {
    /// Counts blocks that are reached in this way.
    pub fn add(&mut self, doubt: Doubt, more: Doubted) {
        let doubted = self.counted.entry(doubt).or_default();
        doubted.blocks += more.blocks;
        doubted.bytes = doubted.bytes.saturating_add(more.bytes);
    }

    /// Adds those of others.
    pub fn merge(&mut self, others: &Self) {
        others.counted.iter().for_each(|(doubt, doubted)| self.add(*doubt, *doubted));
    }

    /// Tagged pointers, and the places behind starts that repeat; those with most bytes first.
    pub fn told(&self) -> Vec<(Doubt, Doubted)> {
        let is_told = |doubt: &Doubt, doubted: &Doubted| *doubt == Doubt::Tagged || doubted.blocks >= MIN_BLOCKS;
        let told = self.counted.iter().filter(|(doubt, doubted)| is_told(doubt, doubted));
        let mut told: Vec<_> = told.map(|(doubt, doubted)| (*doubt, *doubted)).collect();
        told.sort_by_key(|(doubt, doubted)| (Reverse(doubted.bytes), *doubt != Doubt::Tagged, offset_of(*doubt)));
        told.truncate(MAX_TOLD);
        told
    }

    /// What most of the blocks are reached by, with the number of those.
    pub fn most(&self) -> Option<(Doubt, Doubted)> {
        let rank = |(doubt, doubted): &(Doubt, Doubted)| (doubted.blocks, Reverse(offset_of(*doubt)));
        self.counted.iter().map(|(doubt, doubted)| (*doubt, *doubted)).max_by_key(rank)
    }
}

const fn offset_of(doubt: Doubt) -> u64 {
    match doubt {
        Doubt::Tagged => 0,
        Doubt::Behind(offset) => offset,
    }
}

impl Doubt {
    /// Its name in report.json: `tagged`, `behind 3`.
    pub fn name(self) -> String {
        match self {
            Self::Tagged => "tagged".to_owned(),
            Self::Behind(offset) => format!("behind {offset}"),
        }
    }

    /// The one with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let offset = || name.strip_prefix("behind ")?.parse().ok();
        if name == "tagged" { Some(Self::Tagged) } else { offset().map(Self::Behind) }
    }

    /// In words, behind "by pointers".
    pub fn words(self) -> String {
        match self {
            Self::Tagged => "that are tagged: some of their upper 16 bits are set".to_owned(),
            Self::Behind(1) => "1 byte behind their start: tagged, or behind a header of 1 byte".to_owned(),
            Self::Behind(offset) if offset < LOW_TAG => {
                format!("{offset} bytes behind their start: tagged, or behind a header of {offset} bytes")
            }
            Self::Behind(offset) => {
                format!("{offset} bytes behind their start, as behind a header")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubted(blocks: u64, bytes: u64) -> Doubted {
        Doubted { blocks, bytes }
    }

    #[test]
    fn what_repeats_is_told_with_the_most_bytes_first() {
        let mut doubts = Doubts::default();
        for (doubt, blocks, bytes) in [(3, 10, 500), (5, 20, 400), (48, 9, 9000)] {
            doubts.add(Doubt::Behind(doubt), doubted(blocks, bytes));
        }
        doubts.add(Doubt::Tagged, doubted(1, 8));
        let mut all = Doubts::default();
        all.merge(&doubts);
        let told = [
            (Doubt::Behind(3), doubted(10, 500)),
            (Doubt::Behind(5), doubted(20, 400)),
            (Doubt::Tagged, doubted(1, 8)),
        ];
        assert_eq!(all.told(), told);
        assert_eq!(all.most(), Some((Doubt::Behind(5), doubted(20, 400))));
        assert_eq!(Doubts::default().most(), None);
    }
}
