//! Reads blocks and roots, and keeps the pointers to blocks that they hold.

use super::heuristics::{Judge, MappedFiles};
use super::index::{BlockIndex, end_of, points_behind};
use super::{InteriorPointers, RootKind, RootRange, Roots, ScanOptions};
use crate::addr::Addr;
use crate::heapmodel::LiveBlock;
use crate::memory::ReadMemory;
use rustc_hash::FxHashSet;

/// So much is read at once: what the second-level cache holds.
const WINDOW: u64 = 256 << 10;

/// In ranges of this size and more, pages that were never touched are left out.
const SPARSE: u64 = 1 << 20;

/// Blocks whose distance is not greater than this are read in one go with what lies between: cheaper than another call.
const READ_THROUGH: u64 = 4096;

const PAGE: u64 = 4096;
const WORD: u64 = 8;

/// A pointer to the start of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// The block pointed to.
    pub(super) target: u32,
    /// Where in its own block the pointer lies: counted in words from its first aligned one, or [`NO_WORD`].
    pub(super) word: u32,
}

/// No place can be named: it lies more than 32 GiB behind the start, or there is no pointer but the block itself.
pub(super) const NO_WORD: u32 = u32::MAX;

/// A pointer of one block to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The number of the block pointed to.
    pub target: u32,
    /// How far behind its own block's start it lies, in bytes. None: there is no word, the block lies in the other one; or it lies further than 32 GiB behind the start.
    pub at: Option<u64>,
    /// How far behind the start of the other block it points, in bytes.
    pub into: u64,
}

/// A pointer into the inside of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interior {
    pub(super) edge: Edge,
    /// Whether it counts as a pointer to the start.
    pub(super) as_start: bool,
    /// How far behind the start it points, in bytes.
    pub(super) offset: u64,
}

/// Where a root's pointer stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum RootPlace {
    /// At this address.
    Memory(Addr),
    /// In this one of [`Roots::words`].
    Word(u32),
}

/// A pointer from a root.
#[derive(Clone, Copy, Debug)]
pub(super) struct RootEdge {
    pub(super) place: RootPlace,
    pub(super) target: u32,
    pub(super) as_start: bool,
    pub(super) offset: u64,
}

/// The pointers of all blocks, in the order of the blocks.
#[derive(Clone, Debug)]
pub(super) struct Edges<E> {
    all: Vec<E>,
    /// Where each block's end.
    ends: Vec<usize>,
}

impl<E> Edges<E> {
    pub(super) fn with_capacity(blocks: usize) -> Self {
        Self { all: Vec::new(), ends: Vec::with_capacity(blocks) }
    }

    /// Adds an edge of `block`. Blocks come in order.
    pub(super) fn push(&mut self, block: u32, edge: E) {
        self.end_blocks(block as usize);
        self.all.push(edge);
    }

    /// Says that all blocks before `block` have all their edges.
    pub(super) fn end_blocks(&mut self, block: usize) {
        self.ends.resize(block.max(self.ends.len()), self.all.len());
    }

    /// Takes out the edges that `is_chance`.
    fn drop_where(&mut self, is_chance: impl Fn(&E) -> bool) {
        let mut kept = 0;
        let mut number = 0;
        let mut ends = self.ends.iter_mut().peekable();
        self.all.retain(|edge| {
            while let Some(end) = ends.next_if(|end| **end <= number) {
                *end = kept;
            }
            number += 1;
            let is_kept = !is_chance(edge);
            kept += usize::from(is_kept);
            is_kept
        });
        ends.for_each(|end| *end = kept);
    }

    pub(super) fn of(&self, block: u32) -> &[E] {
        let block = block as usize;
        let start = block.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(block).copied().unwrap_or(start);
        self.all.get(start..end).unwrap_or(&[])
    }
}

/// All pointers from roots and blocks to blocks: what must be read while the target stands still.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) index: BlockIndex,
    pub(super) roots: Roots,
    pub(super) from_roots: Vec<RootEdge>,
    pub(super) starts: Edges<Edge>,
    pub(super) interiors: Edges<Interior>,
    pub(super) scanned_bytes: u64,
    pub(super) unreadable_bytes: u64,
}

impl Graph {
    /// Reads the blocks and the roots. What can't be read is left out and counted; so are the pages of large ranges that
    /// [`ReadMemory::touched`] leaves out, but for the count.
    pub fn read(blocks: Vec<LiveBlock>, roots: &Roots, memory: &mut dyn ReadMemory, options: &ScanOptions) -> Self {
        let index = BlockIndex::new(blocks);
        let files = &options.files;
        let mut reader = Reader { memory, files, buffer: Vec::new(), start: 0, len: 0, scanned: 0, unreadable: 0 };
        let (starts, mut interiors) = read_blocks(&index, &mut reader);
        let mut from_roots = read_roots(&index, roots, options.every_root, &mut reader);
        let (scanned_bytes, unreadable_bytes) = (reader.scanned, reader.unreadable);
        let mut pointers: Vec<_> = interiors
            .all
            .iter_mut()
            .map(|interior| (interior.edge.target, interior.offset, &mut interior.as_start))
            .chain(from_roots.iter_mut().map(|edge| (edge.target, edge.offset, &mut edge.as_start)))
            .filter(|(_, offset, _)| *offset != 0)
            .collect();
        // in the order of addresses, so that each page is read once
        pointers.sort_unstable_by_key(|(target, offset, _)| (*target, *offset));
        let mut judge = Judge::new(&options.heuristics, &options.files, memory);
        let mut last = None;
        for (target, offset, as_start) in pointers {
            *as_start = match last {
                Some((same_target, same_offset, verdict)) if (same_target, same_offset) == (target, offset) => verdict,
                _ => index.blocks().get(target as usize).is_some_and(|block| match options.interior {
                    InteriorPointers::Reachable if !points_behind(block, offset) => true,
                    _ => judge.is_start(block, offset),
                }),
            };
            last = Some((target, offset, *as_start));
        }
        let is_chance = |target: u32, offset: u64, as_start: bool| {
            !as_start && index.blocks().get(target as usize).is_some_and(|block| points_behind(block, offset))
        };
        from_roots.retain(|edge| !is_chance(edge.target, edge.offset, edge.as_start));
        interiors.drop_where(|interior| is_chance(interior.edge.target, interior.offset, interior.as_start));
        Self { index, roots: roots.clone(), from_roots, starts, interiors, scanned_bytes, unreadable_bytes }
    }

    /// All blocks, in the order of addresses. A block's number is its place in this order.
    pub fn blocks(&self) -> &[LiveBlock] {
        self.index.blocks()
    }

    /// The number of the innermost block that holds `addr`, and how far behind its start that is.
    pub fn find(&self, addr: Addr) -> Option<(u32, u64)> {
        self.index.find(addr.0)
    }

    /// The addresses from the first block's first to the last one's last byte, as start and length: what points elsewhere points to no block.
    pub fn span(&self) -> (u64, u64) {
        self.index.span()
    }

    /// One of the blocks that a block has pointers to, counted from 0.
    pub fn target(&self, block: u32, nth: u32) -> Option<u32> {
        let starts = self.starts.of(block);
        let nth = nth as usize;
        match starts.get(nth) {
            Some(edge) => Some(edge.target),
            None => self.interiors.of(block).get(nth - starts.len()).map(|interior| interior.edge.target),
        }
    }

    /// The pointers of a block.
    pub fn pointers(&self, block: u32) -> impl Iterator<Item = Pointer> {
        let first = self.index.blocks().get(block as usize).map_or(0, |block| block.addr.0);
        let place = move |word: u32| {
            (word != NO_WORD).then(|| (first.div_ceil(WORD) + u64::from(word)).wrapping_mul(WORD).wrapping_sub(first))
        };
        let starts = self.starts.of(block).iter();
        let starts = starts.map(move |edge| Pointer { target: edge.target, at: place(edge.word), into: 0 });
        let interiors = self.interiors.of(block).iter();
        starts.chain(interiors.map(move |Interior { edge, offset, .. }| Pointer {
            target: edge.target,
            at: place(edge.word),
            into: *offset,
        }))
    }

    /// The pointers of roots: what the root is, where its pointer lies (None: not in memory), and the block that it points to.
    pub fn root_pointers(&self) -> impl Iterator<Item = (RootKind, Option<Addr>, u32)> {
        let mut last = None;
        self.from_roots.iter().filter_map(move |edge| match edge.place {
            RootPlace::Word(word) => Some((self.roots.words.get(word as usize)?.kind, None, edge.target)),
            RootPlace::Memory(addr) => {
                // they come by ranges
                let holds = |range: &RootRange| (range.start..range.end).contains(&addr);
                if !last.is_some_and(|range| holds(&range)) {
                    last = self.roots.ranges.iter().find(|range| holds(range)).copied();
                }
                Some((last?.kind, Some(addr), edge.target))
            }
        })
    }

    /// How many bytes of roots and blocks could not be read.
    pub const fn unreadable_bytes(&self) -> u64 {
        self.unreadable_bytes
    }

    /// The blocks that a block has pointers to.
    pub(super) fn targets(&self, block: u32) -> impl Iterator<Item = u32> {
        let starts = self.starts.of(block).iter().map(|edge| edge.target);
        starts.chain(self.interiors.of(block).iter().map(|interior| interior.edge.target))
    }
}

/// A word of a block that may be a pointer.
#[derive(Clone, Copy)]
struct Hit {
    block: u32,
    /// As in [`Edge`].
    word: u32,
    value: u64,
}

/// So many words are looked up together.
const BATCH: usize = 256;

/// The pointers of blocks, while they are collected.
struct BlockEdges<'a> {
    index: &'a BlockIndex,
    hits: Vec<Hit>,
    starts: Edges<Edge>,
    interiors: Edges<Interior>,
}

impl BlockEdges<'_> {
    fn note(&mut self, hit: Hit) {
        if self.hits.len() == BATCH {
            self.look_up();
        }
        self.hits.push(hit);
    }

    /// Looks up what has been noted, in two rounds: a pointer leads to memory that is in no cache, and the processor waits for
    /// many such words at once if none depends on another.
    fn look_up(&mut self) {
        let mut near = [const { None }; BATCH];
        for (near, hit) in near.iter_mut().zip(&self.hits) {
            *near = self.index.starts_near(hit.value);
        }
        for (near, hit) in near.into_iter().zip(self.hits.drain(..)) {
            let Some((target, offset)) = near.and_then(|near| self.index.find_among(near, hit.value)) else { continue };
            let edge = Edge { target, word: hit.word };
            if target == hit.block {
                continue;
            }
            if offset == 0 {
                self.starts.push(hit.block, edge);
            } else {
                self.interiors.push(hit.block, Interior { edge, as_start: false, offset });
            }
        }
    }
}

fn read_blocks(index: &BlockIndex, reader: &mut Reader<'_>) -> (Edges<Edge>, Edges<Interior>) {
    let blocks = index.blocks();
    let span = index.span();
    let (starts, interiors) = (Edges::with_capacity(blocks.len()), Edges::with_capacity(blocks.len()));
    let mut edges = BlockEdges { index, hits: Vec::with_capacity(BATCH), starts, interiors };
    for (i, block) in blocks.iter().enumerate() {
        let number = i as u32;
        let (start, end) = (block.addr.0, block.addr.0.saturating_add(block.size));
        let first_word = start.div_ceil(WORD);
        let mut last = 0;
        let mut note = |at: u64, value: u64| {
            // runs of one value: fill patterns, arrays of one pointer
            if value != last {
                let word = u32::try_from(at / WORD - first_word).unwrap_or(NO_WORD);
                edges.note(Hit { block: number, word, value });
                last = value;
            }
        };
        let holds_blocks = blocks.get(i + 1).is_some_and(|next| next.addr.0 < end);
        if holds_blocks {
            for (start, end) in index.free_parts(start, end, i + 1) {
                reader.words(start, end, || end, span, &mut note);
            }
        } else {
            reader.words(start, end, || read_through(blocks, i), span, &mut note);
        }
        if let Some(outer) = index.outer(number) {
            edges.look_up();
            edges.starts.push(number, Edge { target: outer, word: NO_WORD });
        }
    }
    edges.look_up();
    edges.starts.end_blocks(blocks.len());
    edges.interiors.end_blocks(blocks.len());
    (edges.starts, edges.interiors)
}

/// How far to read in one go from block `i` on.
fn read_through(blocks: &[LiveBlock], i: usize) -> u64 {
    let Some(first) = blocks.get(i) else { return 0 };
    let mut end = end_of(first);
    for block in blocks.iter().skip(i + 1) {
        if block.addr.0 > end.saturating_add(READ_THROUGH) || end - first.addr.0 >= WINDOW {
            break;
        }
        end = end.max(end_of(block));
    }
    end
}

fn read_roots(index: &BlockIndex, roots: &Roots, every: bool, reader: &mut Reader<'_>) -> Vec<RootEdge> {
    let mut edges = Vec::new();
    let mut seen = FxHashSet::default();
    let mut note = |place: RootPlace, value: u64, as_start: bool| {
        if let Some((target, offset)) = index.find(value)
            && (every || seen.insert((value, as_start)))
        {
            edges.push(RootEdge { place, target, as_start: as_start || offset == 0, offset });
        }
    };
    for (i, word) in roots.words.iter().enumerate() {
        note(RootPlace::Word(i as u32), word.value, false);
    }
    for range in &roots.ranges {
        let mut note = |at: u64, value: u64| note(RootPlace::Memory(Addr(at)), value, false);
        let (start, end) = (range.start.0, range.end.0);
        if range.kind.may_hold_blocks() {
            for (start, end) in index.free_parts(start, end, index.first_behind(range.start)) {
                reader.words(start, end, || end, index.span(), &mut note);
            }
        } else {
            reader.words(start, end, || end, index.span(), &mut note);
        }
    }
    edges
}

/// Reads memory in large pieces.
struct Reader<'a> {
    memory: &'a mut dyn ReadMemory,
    files: &'a MappedFiles,
    buffer: Vec<u8>,
    /// What the buffer holds.
    start: u64,
    len: usize,
    scanned: u64,
    unreadable: u64,
}

impl Reader<'_> {
    /// Calls `note` with place and value of each aligned word between `start` and `end` whose value lies in `span` (start and
    /// length). If memory must be read, it may be read up to `ahead()`: more words will be asked for.
    fn words(
        &mut self,
        start: u64,
        end: u64,
        ahead: impl Fn() -> u64,
        span: (u64, u64),
        note: &mut impl FnMut(u64, u64),
    ) {
        if end.saturating_sub(start) < SPARSE {
            self.touched_words(start, end, ahead, span, note);
            return;
        }
        for part in self.memory.touched(Addr(start)..Addr(end)) {
            let (start, end) = (part.start.0.max(start), part.end.0.min(end));
            self.touched_words(start, end, || end, span, note);
        }
    }

    fn touched_words(
        &mut self,
        start: u64,
        end: u64,
        ahead: impl Fn() -> u64,
        span: (u64, u64),
        note: &mut impl FnMut(u64, u64),
    ) {
        let Some(mut at) = start.checked_next_multiple_of(WORD) else { return };
        let end = end - end % WORD;
        while at < end {
            let mut held = self.held(at);
            if held.len() < WORD as usize {
                self.fill(at, ahead().max(end));
                held = self.held(at);
            }
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(held.len());
            let words = held.get(..wanted).unwrap_or(&[]).chunks_exact(WORD as usize);
            let n = words.len() as u64 * WORD;
            for (i, word) in words.enumerate() {
                let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
                if value.wrapping_sub(span.0) < span.1 {
                    note(at + i as u64 * WORD, value);
                }
            }
            self.scanned += n;
            at += n;
            if n == 0 {
                let next = (at - at % PAGE).saturating_add(PAGE).min(end);
                // Pages of files that can't be read lie behind the file's end: the program can't read them either.
                if !self.files.contain(Addr(at)) {
                    self.unreadable += next - at;
                }
                at = next;
            }
        }
    }

    /// The bytes in the buffer from `at` on.
    fn held(&self, at: u64) -> &[u8] {
        let offset = at.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        let held = self.buffer.get(..self.len).unwrap_or(&[]);
        offset.and_then(|offset| held.get(offset..)).unwrap_or(&[])
    }

    fn fill(&mut self, at: u64, end: u64) {
        let wanted = (end - at).min(WINDOW) as usize;
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        self.start = at;
        self.len = self.buffer.get_mut(..wanted).map_or(0, |buffer| self.memory.read(Addr(at), buffer));
    }
}
