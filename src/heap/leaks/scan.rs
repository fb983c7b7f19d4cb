//! Reads the memory of blocks and roots, and looks up the pointers in it.

use super::Roots;
use super::edges::{Edges, NO_WORD};
use super::graph::{RootEdge, RootPlace};
use super::heuristics::MappedFiles;
use super::index::{BlockIndex, LOW_TAG, Span, WORD, end_of};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::heapmodel::LiveBlock;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// So much is read at once: what the second-level cache holds.
const WINDOW: u64 = 256 << 10;

/// In ranges of this size and more, pages that were never touched are left out.
const SPARSE: u64 = 1 << 20;

/// Blocks whose distance is not greater than this are read in one go with what lies between: cheaper than another call.
const READ_THROUGH: u64 = 4096;

const PAGE: u64 = 4096;

/// So much of what could not be read is named.
const UNREADABLE_NAMED: usize = 4;

/// A word of a block that may be a pointer.
#[derive(Clone, Copy)]
struct Hit {
    block: u32,
    /// As in [`Edge`].
    word: u32,
    /// Without a tag.
    value: u64,
    tagged: bool,
}

/// So many starts are looked through one after the other. Where blocks are spread evenly, it is one or two.
const MAX_LINEAR_STARTS: usize = 16;

/// So many words are looked up together.
const BATCH: usize = 256;

/// The pointers of blocks, while they are collected.
struct BlockEdges<'a> {
    index: &'a BlockIndex,
    starts: &'a [u32],
    /// Edges' blocks are counted from here.
    first: u32,
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

    /// Looks up what has been noted, in two rounds: a pointer leads to memory that is in no cache, and the processor
    /// waits for many such words at once if none depends on another.
    fn look_up(&mut self) {
        let Self { index, starts, first, hits, edges } = self;
        let mut near = [const { None }; BATCH];
        for (near, hit) in near.iter_mut().zip(&*hits) {
            *near = index.starts_near(hit.value);
        }
        for (near, hit) in near.into_iter().zip(hits.drain(..)) {
            let Some(near) = near else { continue };
            // most pointers lead to a start: those lie closer together than the blocks
            let starts =
                starts.get(near.start as usize..near.end as usize).filter(|starts| starts.len() <= MAX_LINEAR_STARTS);
            let starts = starts.unwrap_or(&[]);
            let exact = starts.iter().rposition(|start| *start == hit.value as u32);
            let found = match exact {
                Some(exact) => Some((near.start + exact as u32, 0)),
                None => index.find_among(near, hit.value),
            };
            let counts = |(target, offset): &(u32, u64)| *target != hit.block && (!hit.tagged || *offset < LOW_TAG);
            if let Some((target, offset)) = found.filter(counts) {
                edges.push(hit.block - *first, target, hit.word, (offset, hit.tagged));
            }
        }
    }
}

/// What is done with blocks while their pointers are looked for.
pub trait BlockVisitor {
    /// How many bytes from a block's start it wants to see: 64 KiB at most.
    fn wanted(&self, block: &LiveBlock) -> usize;

    /// Looks at the bytes that it wanted of the block with this number. Blocks come in the order of their numbers; one
    /// that can't be read does not come. More can be read from `memory`.
    fn look(&mut self, number: usize, block: &LiveBlock, bytes: &[u8], memory: &mut dyn ReadMemory);

    /// Looks at a word of these bytes that may point to a block, and at what stands behind it.
    fn pointer(&mut self, value: u64, behind: &[u8], memory: &mut dyn ReadMemory);
}

/// Nothing is.
impl BlockVisitor for () {
    fn wanted(&self, _: &LiveBlock) -> usize {
        0
    }

    fn look(&mut self, _: usize, _: &LiveBlock, _: &[u8], _: &mut dyn ReadMemory) {}

    fn pointer(&mut self, _: u64, _: &[u8], _: &mut dyn ReadMemory) {}
}

/// The pointers of some blocks, for [`super::Pointers::of_parts`].
#[derive(Debug)]
pub struct PartRead {
    /// Blocks are counted from the first of the part.
    pub(super) edges: Edges,
    pub(super) scanned: u64,
    pub(super) unreadable: Unreadable,
}

impl PartRead {
    /// Reads the blocks with the numbers of `part`, and shows each to `beside`. `starts`: [`BlockIndex::starts`].
    pub fn of(
        index: &BlockIndex,
        starts: &[u32],
        part: Range<usize>,
        memory: &mut dyn ReadMemory,
        files: &MappedFiles,
        beside: &mut impl BlockVisitor,
    ) -> Self {
        let mut reader = Reader::new(memory, files);
        let edges = Edges::with_capacity(part.len());
        let mut edges = BlockEdges { index, starts, first: part.start as u32, hits: Vec::with_capacity(BATCH), edges };
        read_blocks(&mut edges, part, &mut reader, beside);
        let edges = edges.edges;
        Self { edges, scanned: reader.scanned, unreadable: reader.unreadable }
    }

    /// Adds the part behind this one.
    pub(super) fn append(&mut self, behind: Self) {
        self.edges.append(behind.edges);
        self.scanned += behind.scanned;
        self.unreadable.append(behind.unreadable);
    }
}

fn read_blocks(
    edges: &mut BlockEdges<'_>,
    part: Range<usize>,
    reader: &mut Reader<'_>,
    beside: &mut impl BlockVisitor,
) {
    let index = edges.index;
    let (blocks, span) = (index.blocks(), &index.spans());
    for (i, block) in blocks.iter().enumerate().take(part.end).skip(part.start) {
        if i.is_multiple_of(BATCH) && reader.memory.has_gone() {
            break;
        }
        let number = i as u32;
        let (start, end) = (block.addr.0, block.addr.0.saturating_add(block.size));
        let first_word = start.div_ceil(WORD);
        let mut last = 0;
        let mut note = |at: u64, value: u64| {
            // runs of one value: fill patterns, arrays of one pointer
            if value != last {
                let word = u32::try_from(at / WORD - first_word).unwrap_or(NO_WORD);
                last = value;
                let (value, tagged) = span.untagged(value);
                edges.note(Hit { block: number, word, value, tagged });
            }
        };
        let holds_blocks = blocks.get(i + 1).is_some_and(|next| next.addr.0 < end);
        let wanted = beside.wanted(block);
        let mut is_done = false;
        if wanted > 0 {
            let is_all = !holds_blocks && wanted as u64 == block.size && start.is_multiple_of(WORD);
            let ahead = || if holds_blocks || block.size >= SPARSE { start } else { read_through(blocks, i) };
            reader.show(start, wanted, ahead, |bytes, memory| {
                beside.look(i, block, bytes, memory);
                for_pointers(bytes, span, |at, value| {
                    if is_all {
                        note(start + at as u64, value);
                    }
                    if span.untagged(value).1 {
                        return;
                    }
                    beside.pointer(value, bytes.get(at + WORD as usize..).unwrap_or(&[]), memory);
                });
                is_done = is_all;
            });
        }
        if is_done {
            reader.scanned += block.size - block.size % WORD;
        } else if holds_blocks {
            for (start, end) in index.free_parts(start, end, i + 1) {
                reader.words(start, end, || end, span, &mut note);
            }
        } else {
            reader.words(start, end, || read_through(blocks, i), span, &mut note);
        }
        if let Some(outer) = index.outer(number) {
            edges.look_up();
            edges.edges.push(number - edges.first, outer, NO_WORD, (0, false));
        }
    }
    edges.look_up();
    edges.edges.end_blocks(part.len());
}

/// Calls `note` with place, in bytes, and value of each whole word whose value lies in `span` (start and length).
pub fn for_words(bytes: &[u8], span: (u64, u64), mut note: impl FnMut(usize, u64)) {
    for (number, word) in bytes.chunks_exact(WORD as usize).enumerate() {
        let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
        if value.wrapping_sub(span.0) < span.1 {
            note(number * WORD as usize, value);
        }
    }
}

/// The same for words that may be pointers with a tag, too.
fn for_pointers(bytes: &[u8], span: &Span, mut note: impl FnMut(usize, u64)) {
    for (number, word) in bytes.chunks_exact(WORD as usize).enumerate() {
        let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
        if span.may_hold(value) {
            note(number * WORD as usize, value);
        }
    }
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

pub(super) fn read_roots(index: &BlockIndex, roots: &Roots, every: bool, reader: &mut Reader<'_>) -> Vec<RootEdge> {
    let mut edges = Vec::new();
    let mut seen = FxHashSet::default();
    let mut note = |place: RootPlace, value: u64, as_start: bool| {
        if let Some((target, offset, tagged)) = index.pointed(value)
            && (every || seen.insert((value, as_start)))
        {
            let as_start = as_start || offset == 0 && !tagged;
            edges.push(RootEdge { place, target, as_start, offset, tagged });
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
                reader.words(start, end, || end, &index.spans(), &mut note);
            }
        } else {
            reader.words(start, end, || end, &index.spans(), &mut note);
        }
    }
    edges
}

/// Reads memory in large pieces.
pub(super) struct Reader<'a> {
    memory: &'a mut dyn ReadMemory,
    files: &'a MappedFiles,
    buffer: Vec<u8>,
    /// What the buffer holds.
    start: u64,
    len: usize,
    pub(super) scanned: u64,
    pub(super) unreadable: Unreadable,
}

/// What could not be read, and may hold pointers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Unreadable {
    /// How many bytes.
    pub(super) bytes: u64,
    /// What it is, by the mapped file's path or the first address; some of it, where it is much.
    pub(super) names: Vec<String>,
    /// One past the last byte.
    end: u64,
}

impl Unreadable {
    /// Adds what lies from `start` to `end`, by its name.
    fn add(&mut self, start: u64, end: u64, name: impl FnOnce() -> String) {
        self.bytes += end - start;
        if self.names.is_empty() || self.end != start {
            self.note(name());
        }
        self.end = end;
    }

    fn note(&mut self, name: String) {
        if self.names.len() < UNREADABLE_NAMED && !self.names.contains(&name) {
            self.names.push(name);
        }
    }

    fn append(&mut self, more: Self) {
        self.bytes += more.bytes;
        more.names.into_iter().for_each(|name| self.note(name));
    }

    /// The two together.
    pub(super) fn and(mut self, more: Self) -> Self {
        self.append(more);
        self
    }
}

impl<'a> Reader<'a> {
    pub(super) const fn new(memory: &'a mut dyn ReadMemory, files: &'a MappedFiles) -> Self {
        let unreadable = Unreadable { bytes: 0, names: Vec::new(), end: 0 };
        Self { memory, files, buffer: Vec::new(), start: 0, len: 0, scanned: 0, unreadable }
    }

    /// Calls `note` with place and value of each aligned word between `start` and `end` that may point into `span`,
    /// with a tag or without one. If memory must be read, it may be read up to `ahead()`: more words will be asked for.
    fn words(&mut self, start: u64, end: u64, ahead: impl Fn() -> u64, span: &Span, note: &mut impl FnMut(u64, u64)) {
        if end.saturating_sub(start) < SPARSE {
            self.touched_words(start, end, ahead, span, note);
            return;
        }
        for part in self.memory.touched(Addr(start)..Addr(end)) {
            let (start, end) = (part.start.0.max(start), part.end.0.min(end));
            self.touched_words(start, end, || end, span, note);
        }
    }

    /// Shows so many bytes from `start` on, [`WINDOW`] at most, if they can be read. If memory must be read, it may be
    /// read up to `ahead()`.
    fn show(
        &mut self,
        start: u64,
        wanted: usize,
        ahead: impl Fn() -> u64,
        look: impl FnOnce(&[u8], &mut dyn ReadMemory),
    ) {
        if self.held(start).len() < wanted {
            self.fill(start, ahead().max(start.saturating_add(wanted as u64)));
        }
        let offset = start.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        let held = self.buffer.get(..self.len).unwrap_or(&[]);
        if let Some(bytes) = offset.and_then(|offset| held.get(offset..offset.checked_add(wanted)?)) {
            look(bytes, self.memory);
        }
    }

    fn touched_words(
        &mut self,
        start: u64,
        end: u64,
        ahead: impl Fn() -> u64,
        span: &Span,
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
            let held = held.get(..wanted).unwrap_or(&[]);
            let n = held.len() as u64 / WORD * WORD;
            for_pointers(held, span, |place, value| note(at + place as u64, value));
            self.scanned += n;
            at += n;
            if n == 0 {
                let next = (at - at % PAGE).saturating_add(PAGE).min(end);
                if !self.memory.holds_nothing(Addr(at), self.files.contain(Addr(at))) {
                    self.unreadable.add(at, next, || self.files.name_at(Addr(at)));
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
