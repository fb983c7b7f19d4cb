//! From an address to the live block that it lies in.
//!
//! The blocks are sorted by address. They lie in few *regions* with wide gaps between; a region is cut into buckets,
//! about one for each block in it, and a table tells where the blocks of each bucket begin.

use crate::base::addr::Addr;
use crate::heapmodel::LiveBlock;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::ops::Range;

/// The bytes of a word of the target's.
pub(super) const WORD: u64 = 8;

/// A gap of so many bytes begins a new region.
const GAP: u64 = 1 << 20;

/// Blocks begin at multiples of 2 to the power of this, nearly always.
const SMALLEST_BUCKET: u32 = 4;

#[derive(Clone, Copy, Debug)]
struct Region {
    start: u64,
    /// One past the last byte of its blocks.
    end: u64,
    /// Log2 of the bucket's size.
    shift: u32,
    /// Where its buckets begin in the table. The entry behind its last one is the region's too.
    bucket: usize,
}

/// The bits of a word that are an address in user space.
pub(super) const ADDRESS: u64 = (1 << 48) - 1;

/// The lowest bits of a pointer that are no part of it where it has a tag there: blocks begin at multiples of this.
pub(super) const LOW_TAG: u64 = 8;

/// Where blocks lie: a quick test of words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// From the first block to the last one: start and length.
    all: (u64, u64),
    /// The same before and behind the widest gap. Text has bits where a tag would be: in the gap lies what looks like
    /// it.
    parts: [(u64, u64); 2],
}

impl Span {
    /// Whether a word may be a pointer to a block, with a tag in its upper 16 bits or without one.
    pub(super) fn may_hold(&self, word: u64) -> bool {
        let within = |(start, len): (u64, u64), word: u64| word.wrapping_sub(start) < len;
        within(self.all, word) || word > ADDRESS && self.parts.iter().any(|part| within(*part, word & ADDRESS))
    }

    /// A word that [`Self::may_hold`] without its tag, and whether it has one.
    pub(super) const fn untagged(&self, word: u64) -> (u64, bool) {
        let is_tagged = word > ADDRESS && word.wrapping_sub(self.all.0) >= self.all.1;
        if is_tagged { (word & ADDRESS, true) } else { (word, false) }
    }
}

/// The sorted blocks.
#[derive(Clone, Debug)]
pub struct BlockIndex {
    blocks: Vec<LiveBlock>,
    regions: Vec<Region>,
    /// Of each bucket: the first block that begins in it or behind it.
    table: Vec<u32>,
    /// For blocks that begin in another one: the innermost of those. Usually empty.
    outer: FxHashMap<u32, u32>,
}

/// One past a block's last byte. Empty blocks count as one byte long: else nothing could point to them.
pub(super) fn end_of(block: &LiveBlock) -> u64 {
    block.addr.0.saturating_add(block.size.max(1))
}

/// One past the last address that may mean a block: those of the sizes of [`COOKIES`] have one more, see
/// [`points_behind`].
fn reach_of(block: &LiveBlock) -> u64 {
    end_of(block).saturating_add(u64::from(COOKIES.contains(&block.size)))
}

/// What C++'s `new T[n]` stores in front of the elements, in bytes: their number, at the elements' alignment (Itanium
/// C++ ABI, 2.7 "Array operator new cookies"). Of `new T[0]` that is all, and the program's pointer is one past it.
const COOKIES: [u64; 2] = [8, 16];

/// Whether a pointer so many bytes behind a block's start is one past its end: what it means must be found out.
pub(super) const fn points_behind(block: &LiveBlock, offset: u64) -> bool {
    offset == block.size && block.size > 0
}

impl BlockIndex {
    /// Sorts blocks.
    pub fn new(mut blocks: Vec<LiveBlock>) -> Self {
        // numbers of blocks are 32 bits; the table of 2^32 blocks would fill 100 GB before
        blocks.truncate(u32::MAX as usize);
        blocks.sort_unstable_by_key(|block| (block.addr, Reverse(block.size)));
        let mut index = Self { blocks, regions: Vec::new(), table: Vec::new(), outer: FxHashMap::default() };
        index.find_outer();
        index.build();
        index
    }

    fn find_outer(&mut self) {
        let mut open: Vec<(u32, u64)> = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            while open.pop_if(|(_, end)| *end <= block.addr.0).is_some() {}
            if let Some((outer, _)) = open.last() {
                self.outer.insert(i as u32, *outer);
            }
            open.push((i as u32, end_of(block)));
        }
    }

    fn build(&mut self) {
        let mut first = 0;
        while let Some(block) = self.blocks.get(first) {
            let start = block.addr.0;
            let mut end = reach_of(block);
            let mut behind = first + 1;
            while let Some(next) = self.blocks.get(behind)
                && next.addr.0 <= end.saturating_add(GAP)
            {
                end = end.max(reach_of(next));
                behind += 1;
            }
            self.add_region(start, end, first, behind);
            first = behind;
        }
    }

    fn add_region(&mut self, start: u64, end: u64, first: usize, behind: usize) {
        let per_block = (end - start) / (behind - first) as u64;
        let shift = per_block.checked_ilog2().unwrap_or(0).max(SMALLEST_BUCKET);
        self.regions.push(Region { start, end, shift, bucket: self.table.len() });
        let buckets = ((end - start) >> shift) + 1;
        let mut at = first;
        for bucket in 0..buckets {
            let bucket_start = start + (bucket << shift);
            while at < behind && self.blocks.get(at).is_some_and(|block| block.addr.0 < bucket_start) {
                at += 1;
            }
            self.table.push(at as u32);
        }
        self.table.push(behind as u32);
    }

    /// All blocks, in the order of addresses. A block's number is its place in this order.
    pub fn blocks(&self) -> &[LiveBlock] {
        &self.blocks
    }

    /// The lower halves of all blocks' addresses, by which pointers to starts are found fast; nothing where those of
    /// blocks near each other could be equal.
    pub fn starts(&self) -> Vec<u32> {
        let is_clear = self.regions.iter().all(|region| region.shift < u32::BITS);
        self.blocks.iter().filter(|_| is_clear).map(|block| block.addr.0 as u32).collect()
    }

    /// The block in front of which half of all bytes lie.
    pub fn middle(&self) -> usize {
        let half = self.blocks.iter().fold(0u64, |sum, block| sum.saturating_add(block.size / 2));
        let mut before = 0u64;
        let mut is_before = |block: &LiveBlock| {
            before = before.saturating_add(block.size);
            before <= half
        };
        self.blocks.iter().position(|block| !is_before(block)).unwrap_or(self.blocks.len())
    }

    /// The addresses from the first block's first to the last one's last byte: a quick test, as start and length.
    pub fn span(&self) -> (u64, u64) {
        match (self.regions.first(), self.regions.last()) {
            (Some(first), Some(last)) => (first.start, last.end - first.start),
            _ => (0, 0),
        }
    }

    /// The same for pointers that may have a tag.
    pub(super) fn spans(&self) -> Span {
        let of = |regions: &[Region]| match (regions.first(), regions.last()) {
            (Some(first), Some(last)) => (first.start, last.end - first.start),
            _ => (0, 0),
        };
        let gap = |at: usize| {
            let pair = self.regions.get(at - 1).zip(self.regions.get(at));
            pair.map_or(0, |(before, behind)| behind.start.saturating_sub(before.end))
        };
        let widest = (1..self.regions.len()).max_by_key(|at| gap(*at)).unwrap_or(self.regions.len());
        let (before, behind) = self.regions.split_at(widest);
        Span { all: self.span(), parts: [of(before), of(behind)] }
    }

    /// The block that a word points to, how far behind its start, and whether the word has a tag in its upper 16 bits:
    /// then the rest must be the start.
    pub(super) fn pointed(&self, word: u64) -> Option<(u32, u64, bool)> {
        if let Some((target, offset)) = self.find(word) {
            return Some((target, offset, false));
        }
        let (target, offset) = (word > ADDRESS).then(|| self.find(word & ADDRESS)).flatten()?;
        (offset < LOW_TAG).then_some((target, offset, true))
    }

    /// The innermost block that holds `addr`, or else the one that it [`points_behind`]; and how far behind its start
    /// that is.
    pub fn find(&self, addr: u64) -> Option<(u32, u64)> {
        self.find_among(self.starts_near(addr)?, addr)
    }

    /// The blocks that begin in the bucket of `addr`; None if no block can hold it.
    pub(super) fn starts_near(&self, addr: u64) -> Option<Range<u32>> {
        let behind = self.regions.partition_point(|region| region.start <= addr);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        if addr >= region.end {
            return None;
        }
        if self.table.is_empty() {
            let before = self.blocks.partition_point(|block| block.addr.0 <= addr) as u32;
            return Some(before.checked_sub(1)?..before);
        }
        let bucket = region.bucket + ((addr - region.start) >> region.shift) as usize;
        Some(*self.table.get(bucket)?..*self.table.get(bucket + 1)?)
    }

    /// Frees the table: what is looked for from now on takes longer.
    pub(super) fn shrink(&mut self) {
        self.table = Vec::new();
    }

    /// What [`Self::find`] says, from what [`Self::starts_near`] says.
    pub(super) fn find_among(&self, near: Range<u32>, addr: u64) -> Option<(u32, u64)> {
        let starts = self.blocks.get(near.start as usize..near.end as usize)?;
        let before = near.start as usize + starts.partition_point(|block| block.addr.0 <= addr);
        let last = before.checked_sub(1)? as u32;
        let mut at = Some(last);
        while let Some(number) = at {
            let block = self.blocks.get(number as usize)?;
            if addr < end_of(block) {
                return Some((number, addr.checked_sub(block.addr.0)?));
            }
            at = self.outer.get(&number).copied();
        }
        let block = self.blocks.get(last as usize)?;
        (addr < reach_of(block)).then_some((last, addr.checked_sub(block.addr.0)?))
    }

    /// The innermost other block that a block begins in.
    pub(super) fn outer(&self, block: u32) -> Option<u32> {
        if self.outer.is_empty() { None } else { self.outer.get(&block).copied() }
    }

    /// The parts of `start..end` that no block lies in, of those from block `first` on.
    pub(super) fn free_parts(&self, start: u64, end: u64, first: usize) -> impl Iterator<Item = (u64, u64)> {
        let mut at = start;
        let mut blocks = self.blocks.iter().skip(first).peekable();
        let mut done = false;
        std::iter::from_fn(move || {
            while !done {
                let piece = match blocks.peek() {
                    Some(block) if block.addr.0 < end => {
                        let piece = (at, block.addr.0);
                        at = at.max(end_of(block));
                        blocks.next();
                        piece
                    }
                    _ => {
                        done = true;
                        (at, end)
                    }
                };
                if piece.0 < piece.1 {
                    return Some(piece);
                }
            }
            None
        })
    }

    /// The first block that ends behind `addr`, or one before it.
    pub(super) fn first_behind(&self, addr: Addr) -> usize {
        let mut at = self.blocks.partition_point(|block| block.addr <= addr).saturating_sub(1);
        while let Some(outer) = self.outer(at as u32) {
            at = outer as usize;
        }
        at
    }
}
