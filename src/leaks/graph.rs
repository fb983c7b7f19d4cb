//! Reads blocks and roots, and keeps the pointers to blocks that they hold.

use super::heuristics::{Judge, MappedFiles};
use super::index::{BlockIndex, end_of, points_behind};
use super::{InteriorPointers, RootKind, Roots, ScanOptions};
use crate::addr::Addr;
use crate::heapmodel::LiveBlock;
use crate::memory::ReadMemory;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// So much is read at once: what the second-level cache holds.
const WINDOW: u64 = 256 << 10;

/// In ranges of this size and more, pages that were never touched are left out.
const SPARSE: u64 = 1 << 20;

/// Blocks whose distance is not greater than this are read in one go with what lies between: cheaper than another call.
const READ_THROUGH: u64 = 4096;

const PAGE: u64 = 4096;
const WORD: u64 = 8;

/// A pointer to a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// The block pointed to.
    pub(super) target: u32,
    /// Where in its own block the pointer lies: counted in words from its first aligned one, or [`NO_PLACE`]; of a pointer into the inside of a block, and of one far behind its block's start,
    /// [`INSIDE`] and its number in [`Edges::interiors`].
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
    /// How far behind its own block's start it lies, in bytes. None: there is no word, the block lies in the other one; or it lies further than 32 GiB behind the start.
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

    /// Adds a pointer of `block`, so far behind the start of `target`. Blocks come in order.
    pub(super) fn push(&mut self, block: u32, target: u32, word: u32, offset: u64) {
        self.end_blocks(block as usize);
        if self.all.len() >= u32::MAX as usize {
            self.left_out += 1;
            return;
        }
        let number = self.interiors.len() as u32;
        let fits = offset == 0 && (word < NO_PLACE || word == NO_WORD);
        if fits || number >= INSIDE {
            self.all.push(Edge { target, place: word.min(NO_PLACE) });
        } else {
            self.all.push(Edge { target, place: INSIDE | number });
            self.interiors.push(Interior { offset, word, as_start: offset == 0 });
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
    fn place(&self, first: u64, edge: Edge) -> Option<u64> {
        place(&self.interiors, first, edge)
    }

    /// The edges into the insides of blocks: target, and what is known.
    fn interiors(&mut self) -> impl Iterator<Item = (u32, &mut Interior)> {
        let inside = self.all.iter().filter(|edge| edge.place & INSIDE != 0);
        inside.map(|edge| edge.target).zip(&mut self.interiors)
    }

    /// Takes out the edges that `is_chance`.
    fn drop_where(&mut self, is_chance: impl Fn(u32, &Interior) -> bool) {
        let interiors = std::mem::take(&mut self.interiors);
        self.keep(|_, edge| !interior(&interiors, edge).is_some_and(|inner| is_chance(edge.target, inner)));
        self.interiors = interiors;
    }

    /// Takes out the edges that are not to be `kept`, by their block. No second table is made of them: there may be gigabytes.
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

    /// Where a block's edges are.
    fn range(&self, block: u32) -> Range<u32> {
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

/// All pointers from roots and blocks to blocks: what must be read while the target stands still.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) index: BlockIndex,
    pub(super) roots: Roots,
    pub(super) from_roots: Vec<RootEdge>,
    pub(super) edges: Edges,
    pub(super) scanned_bytes: u64,
    pub(super) unreadable_bytes: u64,
}

/// What [`Graph::join`] needs beside the blocks.
#[derive(Debug)]
pub struct Pointers {
    from_roots: Vec<RootEdge>,
    edges: Edges,
    scanned_bytes: u64,
    unreadable_bytes: u64,
}

impl Pointers {
    /// Reads the blocks and the roots. What can't be read is left out and counted; so are the pages of large ranges that
    /// [`ReadMemory::touched`] leaves out, but for the count.
    pub fn read(index: &BlockIndex, roots: &Roots, memory: &mut dyn ReadMemory, options: &ScanOptions) -> Self {
        let files = &options.files;
        let mut reader = Reader { memory, files, buffer: Vec::new(), start: 0, len: 0, scanned: 0, unreadable: 0 };
        let mut edges = read_blocks(index, &mut reader);
        let mut from_roots = read_roots(index, roots, options.every_root, &mut reader);
        let (scanned_bytes, unreadable_bytes) = (reader.scanned, reader.unreadable + edges.left_out * WORD);
        let mut pointers: Vec<_> = edges
            .interiors()
            .map(|(target, interior)| (target, interior.offset, &mut interior.as_start))
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
        edges.drop_where(|target, interior| is_chance(target, interior.offset, interior.as_start));
        Self { from_roots, edges, scanned_bytes, unreadable_bytes }
    }
}

impl Graph {
    /// Reads the blocks and the roots, as [`Pointers::read`] does.
    pub fn read(blocks: Vec<LiveBlock>, roots: &Roots, memory: &mut dyn ReadMemory, options: &ScanOptions) -> Self {
        let index = BlockIndex::new(blocks);
        let pointers = Pointers::read(&index, roots, memory, options);
        Self::join(index, roots, pointers)
    }

    /// The graph of blocks and the pointers that were read of them and of these roots.
    pub fn join(index: BlockIndex, roots: &Roots, pointers: Pointers) -> Self {
        let Pointers { from_roots, edges, scanned_bytes, unreadable_bytes } = pointers;
        Self { index, roots: roots.clone(), from_roots, edges, scanned_bytes, unreadable_bytes }
    }

    /// Takes out the pointers of blocks that are not to be `kept`: by block, and how far behind its start they lie, in bytes.
    pub fn keep(&mut self, kept: impl Fn(u32, u64) -> bool) {
        let Self { index, edges, .. } = self;
        let interiors = std::mem::take(&mut edges.interiors);
        edges.keep(|block, edge| {
            let first = index.blocks().get(block as usize).map_or(0, |block| block.addr.0);
            place(&interiors, first, edge).is_none_or(|at| kept(block, at))
        });
        edges.interiors = interiors;
    }

    /// All blocks, in the order of addresses. A block's number is its place in this order.
    pub fn blocks(&self) -> &[LiveBlock] {
        self.index.blocks()
    }

    /// The number of the innermost block that holds `addr`, and how far behind its start that is.
    pub fn find(&self, addr: Addr) -> Option<(u32, u64)> {
        self.index.find(addr.0)
    }

    /// Frees what only helps to find blocks fast.
    pub(crate) fn shrink(&mut self) {
        self.index.shrink();
    }

    /// How many pointers blocks have to blocks. They are numbered in the order of the blocks that they lie in.
    pub fn edge_count(&self) -> usize {
        self.edges.all.len()
    }

    /// The numbers of a block's pointers.
    pub fn edges_of(&self, block: u32) -> Range<u32> {
        self.edges.range(block)
    }

    /// The block that the pointer with this number leads to.
    pub fn target(&self, edge: u32) -> Option<u32> {
        self.edges.all.get(edge as usize).map(|edge| edge.target)
    }

    /// The blocks that a block has pointers to.
    pub fn targets(&self, block: u32) -> impl Iterator<Item = u32> {
        self.edges.of(block).iter().map(|edge| edge.target)
    }

    fn pointer(&self, block: u32, edge: Edge) -> Pointer {
        let first = self.index.blocks().get(block as usize).map_or(0, |block| block.addr.0);
        let at = self.edges.place(first, edge);
        Pointer { target: edge.target, at, into: self.edges.interior(edge).map_or(0, |interior| interior.offset) }
    }

    /// The pointers of a block, in the order of their places.
    pub fn pointers(&self, block: u32) -> impl Iterator<Item = Pointer> {
        self.edges.of(block).iter().map(move |edge| self.pointer(block, *edge))
    }

    /// The pointer that lies so many bytes behind a block's start.
    pub fn pointer_at(&self, block: u32, offset: u64) -> Option<Pointer> {
        let start = self.index.blocks().get(block as usize)?.addr.0;
        let word = u32::try_from((start.checked_add(offset)? / WORD).checked_sub(start.div_ceil(WORD))?).ok()?;
        let edges = self.edges.of(block);
        let found = edges.binary_search_by_key(&word, |edge| self.edges.word(*edge)).ok()?;
        Some(self.pointer(block, *edges.get(found)?)).filter(|pointer| pointer.at == Some(offset))
    }

    /// The pointers of roots: what the root is, where its pointer lies (None: not in memory), and the block that it points to.
    pub fn root_pointers(&self) -> impl Iterator<Item = (RootKind, Option<Addr>, u32)> {
        self.root_targets().map(|(kind, addr, block, _)| (kind, addr, block))
    }

    /// The same, and how far behind the block's start each points, in bytes.
    pub fn root_targets(&self) -> impl Iterator<Item = (RootKind, Option<Addr>, u32, u64)> {
        let mut ranges = self.roots.ranges.iter().peekable();
        self.from_roots.iter().filter_map(move |edge| match edge.place {
            RootPlace::Word(word) => Some((self.roots.words.get(word as usize)?.kind, None, edge.target, edge.offset)),
            RootPlace::Memory(addr) => {
                // they come in the order of the ranges
                while ranges.next_if(|range| !(range.start..range.end).contains(&addr)).is_some() {}
                Some((ranges.peek()?.kind, Some(addr), edge.target, edge.offset))
            }
        })
    }

    /// How many bytes of roots and blocks could not be read.
    pub const fn unreadable_bytes(&self) -> u64 {
        self.unreadable_bytes
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
    edges: Edges,
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
            if target != hit.block {
                self.edges.push(hit.block, target, hit.word, offset);
            }
        }
    }
}

fn read_blocks(index: &BlockIndex, reader: &mut Reader<'_>) -> Edges {
    let blocks = index.blocks();
    let span = index.span();
    let edges = Edges::with_capacity(blocks.len());
    let mut edges = BlockEdges { index, hits: Vec::with_capacity(BATCH), edges };
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
            edges.edges.push(number, outer, NO_WORD, 0);
        }
    }
    edges.look_up();
    edges.edges.end_blocks(blocks.len());
    edges.edges
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
