//! Sampling by the routine: where it finds a call's size, how it draws, and which blocks it takes for picked ones when
//! they are given back.
//!
//! Each cell counts down from a distance that was drawn: a call that does not get to 0 is counted, and nothing else is
//! done. Which live blocks were picked is in a table of their addresses: who hands a picked block out enters it, and
//! who gives it back takes it out, before the allocator knows. There may be an address too many now and then, never one
//! too few, so that no free of a picked block is passed over, and a free of another one is recorded in vain.

use super::layout::{
    CELL_BYTES, CELL_CALLS, CELL_DRAW, CELL_INTERVAL, CELL_LEFT, CELL_SINCE, DISTANCE_AREA, DISTANCES, INTERVAL_AREA,
    INTERVALS, LIVE_BUCKET, PAGE_AREA, PAGE_BITS, PAGE_FULL, PAGE_STUCK, PAGES, SAMPLED, cell_at, live_bucket,
};
use super::shared::Shared;
use crate::base::addr::Addr;
use crate::base::sampling::{random_seed, unit_distances};
use std::sync::OnceLock;

/// Where the routine finds the size that a function is asked for: bits 0 and 1 say which argument has it; with bit 4,
/// the argument that bits 2 and 3 say multiplies it. The other bits are [`SizeOf::CHANGES`] and [`SizeOf::SIMPLE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeOf(pub u8);

impl SizeOf {
    /// Bits 2 and 3 count.
    pub const MULTIPLIED: u8 = 1 << 4;
    /// The first argument is a block that the function gives back, or changes.
    pub const CHANGES: u8 = 1 << 5;
    /// The function calls no other one that is wrapped, so that a call that is not recorded needs no frame. With
    /// nothing else, that is what malloc has.
    pub const SIMPLE: u8 = 1 << 6;
    /// The function is an operator that passes its call on. It has no record of its own: its size and alignment go into
    /// that of the function that it calls. Bits 0 and 1 say which argument has the size, bits 2 and 3 which one has
    /// the alignment; 0: none, as the first argument is the block.
    pub const TOLD: u8 = 1 << 7;

    /// In argument `size`, times argument `count` (0 to 2 each).
    pub fn new(size: u8, count: Option<u8>) -> Self {
        Self(size & 3 | count.map_or(0, |count| (count & 3) << 2 | Self::MULTIPLIED))
    }

    /// Of an operator that passes its call on: argument `size` has the size, `align` the alignment (1 or 2 each).
    pub fn told(size: Option<u8>, align: Option<u8>) -> Self {
        let [size, align] = [size, align].map(|argument| argument.map_or(0, |number| number & 3));
        Self(Self::TOLD | size | align << 2)
    }

    /// The size that a call with these arguments asks for. None if it is no number.
    pub fn of(self, args: [u64; 3]) -> Option<u64> {
        let at = |number: u8| args.get(usize::from(number & 3)).copied();
        let count = if self.0 & Self::MULTIPLIED == 0 { 1 } else { at(self.0 >> 2)? };
        at(self.0)?.checked_mul(count)
    }
}

/// What [`begin`] puts into [`DISTANCE_AREA`]: [`DISTANCES`] numbers, the same for each caller. To make them takes a
/// millisecond: whoever will need them can have them made beforehand, on another thread. A caller that comes meanwhile
/// waits for them.
pub fn distances() -> &'static [u64] {
    static MADE: OnceLock<Vec<u64>> = OnceLock::new();
    MADE.get_or_init(|| {
        let unit = f64::from(u32::MAX) + 1.0;
        let all = unit_distances(DISTANCES as usize, random_seed());
        all.into_iter().map(|distance| (distance * unit) as u64).collect()
    })
}

/// Begins to sample. `intervals`: by number, in bytes; the one with number 1 is in use. `distances`: of
/// [`distances`].
pub fn begin(shared: &dyn Shared, intervals: &[u64; INTERVALS as usize], distances: &[u64]) {
    for (at, distance) in (DISTANCE_AREA..).step_by(8).zip(distances.iter().take(DISTANCES as usize)) {
        shared.set_word(at, *distance);
    }
    for (at, interval) in (INTERVAL_AREA..).step_by(8).zip(intervals) {
        shared.set_word(at, *interval);
    }
    use_interval(shared, 1);
}

/// From here on distances are drawn with the interval of this number. Those that were drawn before are counted down as
/// they are.
pub fn use_interval(shared: &dyn Shared, number: u32) {
    shared.set_half(SAMPLED, number);
}

/// Lets a new thread of the cell begin at the place `random` of the distances.
pub fn begin_cell(shared: &dyn Shared, cell: u16, random: u32) {
    let at = cell_at(cell.into());
    let number = shared.half(SAMPLED);
    let interval = shared.word(INTERVAL_AREA + 8 * u64::from(number));
    let distance = shared.word(DISTANCE_AREA + u64::from(random) % DISTANCES * 8);
    let left = (u128::from(distance) * u128::from(interval)) >> 32;
    shared.set_word(at + CELL_LEFT, u64::try_from(left).unwrap_or(u64::MAX - 1) + 1);
    shared.set_half(at + CELL_INTERVAL, number);
    shared.set_half(at + CELL_DRAW, random);
    shared.set_word(at + CELL_SINCE, shared.word(at + CELL_CALLS));
}

/// The number of the interval that the next block of the cell's thread, of `size` bytes, is picked with, as the routine
/// would decide. None if it is not.
pub fn picks(shared: &dyn Shared, cell: u16, size: u64) -> Option<u32> {
    let at = cell_at(cell.into());
    match shared.word(at + CELL_LEFT).checked_sub(size.max(1)) {
        Some(left) if left > 0 => {
            shared.set_word(at + CELL_LEFT, left);
            None
        }
        _ => {
            let number = shared.half(at + CELL_INTERVAL);
            begin_cell(shared, cell, shared.half(at + CELL_DRAW).wrapping_add(1));
            Some(number)
        }
    }
}

/// The next call of the cell's thread is picked, with the interval of this number: it is the one that was, and comes
/// again.
pub fn pick_next(shared: &dyn Shared, cell: u16, interval: u64) {
    let at = cell_at(cell.into());
    shared.set_word(at + CELL_LEFT, 0);
    shared.set_half(at + CELL_INTERVAL, interval as u32);
}

/// How far a call is counted in its cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Counted {
    /// Not at all.
    Not,
    /// In [`CELL_LEFT`].
    Left,
    /// In [`CELL_BYTES`], too.
    Bytes,
    /// In all places.
    Wholly,
}

/// A call that was counted comes again: it was not.
pub fn uncount(shared: &dyn Shared, cell: u16, size: u64, counted: Counted) {
    let at = cell_at(cell.into());
    let change = |place: u64, by: u64| shared.set_word(at + place, shared.word(at + place).wrapping_add(by));
    if counted >= Counted::Left {
        change(CELL_LEFT, size.max(1));
    }
    if counted >= Counted::Bytes {
        change(CELL_BYTES, size.wrapping_neg());
    }
    if counted >= Counted::Wholly {
        change(CELL_CALLS, u64::MAX);
    }
}

/// A picked block begins to live: before its address is handed out. Nothing changes if it is known.
pub fn note_live(shared: &dyn Shared, block: Addr) {
    if words_of(block).any(|word| shared.word(word) == block.0) {
        return;
    }
    change_page(shared, block, |count| (count < PAGE_STUCK).then(|| count + 1));
    if !words_of(block).any(|word| shared.replace_word(word, 0, block.0)) {
        change_page(shared, block, |_| Some(PAGE_FULL));
    }
}

/// A picked block has ended. Nothing changes if it is not known.
pub fn note_dead(shared: &dyn Shared, block: Addr) {
    if words_of(block).any(|word| shared.replace_word(word, block.0, 0)) {
        uncount_in_page(shared, block);
    }
}

/// A block was taken out of its bucket.
pub fn uncount_in_page(shared: &dyn Shared, block: Addr) {
    change_page(shared, block, |count| if (1..PAGE_STUCK).contains(&count) { Some(count - 1) } else { None });
}

fn words_of(block: Addr) -> impl Iterator<Item = u64> {
    let bucket = live_bucket(block.0);
    (bucket..bucket + LIVE_BUCKET).step_by(8)
}

fn change_page(shared: &dyn Shared, block: Addr, change: impl Fn(u8) -> Option<u8>) {
    let at = PAGE_AREA + (block.0 >> PAGE_BITS) % PAGES;
    let (word, shift) = (at & !7, 8 * (at & 7));
    loop {
        let old = shared.word(word);
        let Some(count) = change((old >> shift) as u8) else { return };
        if shared.replace_word(word, old, old & !(0xff << shift) | u64::from(count) << shift) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jump::shared::testing::Made;

    #[test]
    fn sizes_are_found_where_the_table_says() {
        assert_eq!(SizeOf::new(0, None).of([24, 3, 5]), Some(24));
        assert_eq!(SizeOf::new(2, None).of([24, 3, 5]), Some(5));
        assert_eq!(SizeOf::new(0, Some(1)).of([24, 3, 5]), Some(72));
        assert_eq!(SizeOf::new(1, Some(2)).of([24, u64::MAX, 5]), None);
        assert_eq!(SizeOf(3).of([1, 2, 3]), None);
    }

    #[test]
    fn pages_are_counted_up_to_where_they_stick() {
        let made = Made::default();
        let (one, other) = (Addr(0x5555_0000_1230), Addr(0x5555_0000_2230));
        let count = |block: Addr| {
            let at = PAGE_AREA + (block.0 >> PAGE_BITS) % PAGES;
            (made.word(at & !7) >> (8 * (at & 7))) as u8
        };
        note_dead(&made, one);
        assert_eq!(count(one), 0);
        note_live(&made, one);
        note_live(&made, one.add(64));
        note_live(&made, other);
        note_dead(&made, one);
        note_dead(&made, one);
        assert_eq!((count(one), count(other)), (1, 1));
        let all: Vec<Addr> = (0..300).map(|number| Addr(one.0 & !0xfff).add(number * 8)).collect();
        all.iter().for_each(|block| note_live(&made, *block));
        all.iter().for_each(|block| note_dead(&made, *block));
        assert_eq!((count(one), count(other)), (PAGE_STUCK, 1));
    }

    #[test]
    fn where_a_bucket_is_full_the_page_sticks() {
        let made = Made::default();
        let bucket = live_bucket(0x5555_0000_1230);
        let mut same = (0x5555_0000_0000..).step_by(16).filter(|block| live_bucket(*block) == bucket).map(Addr);
        let blocks: Vec<Addr> = same.by_ref().take(9).collect();
        let count = |block: Addr| {
            let at = PAGE_AREA + (block.0 >> PAGE_BITS) % PAGES;
            (made.word(at & !7) >> (8 * (at & 7))) as u8
        };
        blocks.iter().for_each(|block| note_live(&made, *block));
        assert_eq!((count(blocks[0]), count(blocks[8])), (1, PAGE_FULL));
        note_live(&made, blocks[0]);
        blocks.iter().for_each(|block| note_dead(&made, *block));
        assert_eq!((count(blocks[0]), count(blocks[8])), (0, PAGE_FULL));
    }

    #[test]
    fn what_was_counted_can_be_taken_back() {
        let made = Made::default();
        let all = || [CELL_LEFT, CELL_BYTES, CELL_CALLS].map(|place| made.word(cell_at(3) + place));
        for place in [CELL_LEFT, CELL_BYTES, CELL_CALLS] {
            made.set_word(cell_at(3) + place, 100);
        }
        uncount(&made, 3, 24, Counted::Not);
        assert_eq!(all(), [100, 100, 100]);
        uncount(&made, 3, 24, Counted::Left);
        assert_eq!(all(), [124, 100, 100]);
        uncount(&made, 3, 0, Counted::Wholly);
        assert_eq!(all(), [125, 100, 99]);
    }
}
