//! The pointers of blocks to blocks, packed: millions of them are kept.

use super::index::WORD;
use std::ops::Range;

/// A pointer to a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// The block pointed to.
    pub(super) target: u32,
    /// Where in its own block the pointer lies: counted in words from its first aligned one, or [`NO_PLACE`]; of a
    /// pointer into the inside of a block, and of one far behind its block's start, [`INSIDE`] and its number in
    /// [`Edges::interiors`].
    place: u32,
}

/// No place can be named: it lies more than 32 GiB behind the start, or there is no pointer but the block itself.
pub(super) const NO_WORD: u32 = u32::MAX;

/// Marks an [`Edge`] into the inside of a block.
const INSIDE: u32 = 1 << 31;

/// [`NO_WORD`] in an [`Edge`].
const NO_PLACE: u32 = INSIDE - 1;

/// A pointer of one block to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The number of the block pointed to.
    pub target: u32,
    /// How far behind its own block's start it lies, in bytes. None: there is no word, the block lies in the other one;
    /// or it lies further than 32 GiB behind the start.
    pub at: Option<u64>,
    /// How far behind the start of the other block it points, in bytes.
    pub into: u64,
}

/// What is known of a pointer into the inside of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interior {
    /// How far behind the start it points, in bytes.
    pub(super) offset: u64,
    /// As of an edge to a start.
    word: u32,
    /// Whether it counts as a pointer to the start.
    pub(super) as_start: bool,
    /// Whether it has a tag in its upper bits.
    pub(super) tagged: bool,
}

/// The pointers of all blocks, in the order of the blocks, those of one in the order of their places.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    all: Vec<Edge>,
    /// Where each block's end.
    ends: Vec<u32>,
    interiors: Vec<Interior>,
    /// How many were left out: there are more than can be numbered.
    left_out: u64,
}

impl Edges {
    pub(super) fn with_capacity(blocks: usize) -> Self {
        Self { ends: Vec::with_capacity(blocks), ..Self::default() }
    }

    /// Adds a pointer of `block`, so far behind the start of `target`, and tagged or not. Blocks come in order.
    pub(super) fn push(&mut self, block: u32, target: u32, word: u32, (offset, tagged): (u64, bool)) {
        self.end_blocks(block as usize);
        if self.all.len() >= u32::MAX as usize {
            self.left_out += 1;
            return;
        }
        let number = self.interiors.len() as u32;
        let fits = offset == 0 && !tagged && (word < NO_PLACE || word == NO_WORD);
        if fits || number >= INSIDE {
            self.all.push(Edge { target, place: word.min(NO_PLACE) });
        } else {
            self.all.push(Edge { target, place: INSIDE | number });
            self.interiors.push(Interior { offset, word, as_start: offset == 0 && !tagged, tagged });
        }
    }

    /// Says that all blocks before `block` have all their edges.
    pub(super) fn end_blocks(&mut self, block: usize) {
        self.ends.resize(block.max(self.ends.len()), self.all.len() as u32);
    }

    /// What is known of an edge into the inside of a block; None of one to a start.
    pub(super) fn interior(&self, edge: Edge) -> Option<&Interior> {
        interior(&self.interiors, edge)
    }

    /// Where an edge's pointer lies: a number of words, or [`NO_WORD`].
    pub(super) fn word(&self, edge: Edge) -> u32 {
        word(&self.interiors, edge)
    }

    /// How far behind its block's start, which is at `first`, an edge's pointer lies, in bytes.
    pub(super) fn place(&self, first: u64, edge: Edge) -> Option<u64> {
        place(&self.interiors, first, edge)
    }

    /// The edges into the insides of blocks: target, and what is known.
    pub(super) fn interiors(&mut self) -> impl Iterator<Item = (u32, &mut Interior)> {
        let inside = self.all.iter().filter(|edge| edge.place & INSIDE != 0);
        inside.map(|edge| edge.target).zip(&mut self.interiors)
    }

    /// Takes out the edges that `is_chance`.
    pub(super) fn drop_where(&mut self, is_chance: impl Fn(u32, &Interior) -> bool) {
        let interiors = std::mem::take(&mut self.interiors);
        self.keep(|_, edge| !interior(&interiors, edge).is_some_and(|inner| is_chance(edge.target, inner)));
        self.interiors = interiors;
    }

    /// Takes out the edges that lie behind the `used` part of their blocks, which begin at `first`, in bytes.
    pub(super) fn keep_used(&mut self, first: impl Fn(u32) -> u64, used: impl Fn(u32) -> Option<u64>) {
        let interiors = std::mem::take(&mut self.interiors);
        let mut last = None;
        self.keep(|block, edge| {
            let used = match last {
                Some((same, used)) if same == block => used,
                _ => last.insert((block, used(block))).1,
            };
            used.is_none_or(|used| place(&interiors, first(block), edge).is_none_or(|at| at < used))
        });
        self.interiors = interiors;
    }

    /// Takes out the edges whose place, in a block that begins at `first`, `is_stale`.
    pub(super) fn drop_stale(&mut self, first: impl Fn(u32) -> u64, is_stale: impl Fn(u64) -> bool) {
        let interiors = std::mem::take(&mut self.interiors);
        self.keep(|block, edge| {
            let first = first(block);
            place(&interiors, first, edge).is_none_or(|at| !is_stale(first.saturating_add(at)))
        });
        self.interiors = interiors;
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.all.len()
    }

    /// How many were left out.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes out the edges that are not to be `kept`, by their block. No second table is made of them: there may be
    /// gigabytes.
    fn keep(&mut self, mut is_kept: impl FnMut(u32, Edge) -> bool) {
        let (mut kept, mut number, mut block) = (0, 0, 0);
        let mut ends = self.ends.iter_mut().peekable();
        self.all.retain(|edge| {
            while let Some(end) = ends.next_if(|end| **end <= number) {
                *end = kept;
                block += 1;
            }
            number += 1;
            let is_kept = is_kept(block, *edge);
            kept += u32::from(is_kept);
            is_kept
        });
        ends.for_each(|end| *end = kept);
    }

    /// Adds the edges of the blocks behind these.
    pub(super) fn append(&mut self, behind: Self) {
        let room = (u32::MAX as usize).saturating_sub(self.all.len());
        let (edges, inner) = (self.all.len() as u32, self.interiors.len() as u32);
        self.left_out += behind.left_out + behind.all.len().saturating_sub(room) as u64;
        self.ends.extend(behind.ends.into_iter().map(|end| end.saturating_add(edges)));
        let moved = |edge: Edge| match edge.place & INSIDE {
            0 => edge,
            _ => match (edge.place & !INSIDE).saturating_add(inner) {
                number if number < INSIDE => Edge { place: INSIDE | number, ..edge },
                _ => Edge { place: NO_PLACE, ..edge },
            },
        };
        self.all.extend(behind.all.into_iter().take(room).map(moved));
        self.interiors.extend(behind.interiors.into_iter().take((INSIDE - inner.min(INSIDE)) as usize));
    }

    /// The targets of the edges with these numbers.
    pub(super) fn targets(&self, range: Range<u32>) -> impl Iterator<Item = u32> {
        self.all.get(range.start as usize..range.end as usize).unwrap_or(&[]).iter().map(|edge| edge.target)
    }

    /// Where a block's edges are.
    pub(super) fn range(&self, block: u32) -> Range<u32> {
        let block = block as usize;
        let start = block.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        start..self.ends.get(block).copied().unwrap_or(start)
    }

    pub(super) fn of(&self, block: u32) -> &[Edge] {
        let Range { start, end } = self.range(block);
        self.all.get(start as usize..end as usize).unwrap_or(&[])
    }
}

fn interior(interiors: &[Interior], edge: Edge) -> Option<&Interior> {
    if edge.place & INSIDE == 0 { None } else { interiors.get((edge.place & !INSIDE) as usize) }
}

fn word(interiors: &[Interior], edge: Edge) -> u32 {
    match interior(interiors, edge) {
        Some(interior) => interior.word,
        None if edge.place >= NO_PLACE => NO_WORD,
        None => edge.place,
    }
}

fn place(interiors: &[Interior], first: u64, edge: Edge) -> Option<u64> {
    let word = word(interiors, edge);
    (word != NO_WORD).then(|| (first.div_ceil(WORD) + u64::from(word)).wrapping_mul(WORD).wrapping_sub(first))
}
