//! Reads blocks and roots, and keeps the pointers to blocks that they hold.

use super::edges::{Edge, Edges, Pointer};
use super::heuristics::Judge;
use super::index::{BlockIndex, WORD, points_behind};
use super::scan::{PartRead, Reader, Unreadable, read_roots};
use super::{InteriorPointers, RootKind, RootWord, Roots, ScanOptions};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::heapmodel::LiveBlock;
use std::ops::Range;

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
    /// Whether it has a tag in its upper bits.
    pub(super) tagged: bool,
}

/// All pointers from roots and blocks to blocks: what must be read while the target stands still.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) index: BlockIndex,
    pub(super) roots: Roots,
    pub(super) from_roots: Vec<RootEdge>,
    pub(super) edges: Edges,
    pub(super) scanned_bytes: u64,
    pub(super) unreadable: Unreadable,
}

/// What [`Graph::join`] needs beside the blocks.
#[derive(Debug)]
pub struct Pointers {
    from_roots: Vec<RootEdge>,
    edges: Edges,
    scanned_bytes: u64,
    unreadable: Unreadable,
}

impl Pointers {
    /// Reads the blocks and the roots. What can't be read is left out and counted; so are the pages of large ranges
    /// that [`ReadMemory::touched`] leaves out, but for the count.
    pub fn read(index: &BlockIndex, roots: &Roots, memory: &mut dyn ReadMemory, options: &ScanOptions) -> Self {
        let (all, starts) = (0..index.blocks().len(), index.starts());
        let blocks = PartRead::of(index, &starts, all, memory, &options.files, &mut ());
        drop(starts);
        Self::with_roots(index, roots, memory, options, blocks)
    }

    /// The same where the blocks were read in two parts, one behind the other.
    pub fn of_parts(
        index: &BlockIndex,
        roots: &Roots,
        memory: &mut dyn ReadMemory,
        options: &ScanOptions,
        [mut blocks, behind]: [PartRead; 2],
    ) -> Self {
        blocks.append(behind);
        Self::with_roots(index, roots, memory, options, blocks)
    }

    fn with_roots(
        index: &BlockIndex,
        roots: &Roots,
        memory: &mut dyn ReadMemory,
        options: &ScanOptions,
        blocks: PartRead,
    ) -> Self {
        let mut reader = Reader::new(memory, &options.files);
        let mut from_roots = read_roots(index, roots, options.every_root, &mut reader);
        let scanned_bytes = blocks.scanned + reader.scanned;
        let mut unreadable = blocks.unreadable.and(reader.unreadable);
        unreadable.bytes += blocks.edges.left_out() * WORD;
        let mut edges = blocks.edges;
        if !roots.stale.is_empty() {
            let first = |block: u32| index.blocks().get(block as usize).map_or(0, |block| block.addr.0);
            edges.drop_stale(first, |at| roots.stale.iter().any(|stale| stale.contains(&Addr(at))));
        }
        let mut pointers: Vec<_> = edges
            .interiors()
            .filter(|(_, interior)| !interior.tagged)
            .map(|(target, interior)| (target, interior.offset, &mut interior.as_start))
            .chain(
                from_roots
                    .iter_mut()
                    .filter(|edge| !edge.tagged)
                    .map(|edge| (edge.target, edge.offset, &mut edge.as_start)),
            )
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
        Self { from_roots, edges, scanned_bytes, unreadable }
    }
}

impl Graph {
    /// Has `root` hold the block that begins at `start`, if there is one.
    pub fn hold(&mut self, start: Addr, root: RootKind) {
        let Some((target, 0)) = self.find(start) else { return };
        let Ok(word) = u32::try_from(self.roots.words.len()) else { return };
        self.roots.words.push(RootWord { value: start.0, kind: root });
        let place = RootPlace::Word(word);
        self.from_roots.push(RootEdge { place, target, as_start: true, offset: 0, tagged: false });
    }

    /// Reads the blocks and the roots, as [`Pointers::read`] does.
    pub fn read(blocks: Vec<LiveBlock>, roots: &Roots, memory: &mut dyn ReadMemory, options: &ScanOptions) -> Self {
        let index = BlockIndex::new(blocks);
        let pointers = Pointers::read(&index, roots, memory, options);
        Self::join(index, roots, pointers)
    }

    /// The graph of blocks and the pointers that were read of them and of these roots.
    pub fn join(index: BlockIndex, roots: &Roots, pointers: Pointers) -> Self {
        let Pointers { from_roots, edges, scanned_bytes, unreadable } = pointers;
        Self { index, roots: roots.clone(), from_roots, edges, scanned_bytes, unreadable }
    }

    /// Takes out the pointers that lie behind the `used` part of their blocks, in bytes; None: all of it is.
    pub fn keep_used(&mut self, used: impl Fn(u32) -> Option<u64>) {
        let Self { index, edges, .. } = self;
        let first = |block: u32| index.blocks().get(block as usize).map_or(0, |block| block.addr.0);
        edges.keep_used(first, used);
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
        self.edges.count()
    }

    /// The numbers of a block's pointers.
    pub fn edges_of(&self, block: u32) -> Range<u32> {
        self.edges.range(block)
    }

    /// The block that the pointer with this number leads to.
    pub fn target(&self, edge: u32) -> Option<u32> {
        self.edges.targets(edge..edge.checked_add(1)?).next()
    }

    /// The blocks that pointers with these numbers lead to.
    pub fn targets_of(&self, edges: Range<u32>) -> impl Iterator<Item = u32> {
        self.edges.targets(edges)
    }

    /// The blocks that a block has pointers to.
    pub fn targets(&self, block: u32) -> impl Iterator<Item = u32> {
        self.targets_of(self.edges.range(block))
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

    /// The pointers of roots: what the root is, where its pointer lies (None: not in memory), and the block that it
    /// points to.
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
        self.unreadable.bytes
    }
}
