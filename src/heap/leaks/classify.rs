//! Follows the pointers: from the roots, then among what is left.

use super::edges::NO_WORD;
use super::graph::{Graph, RootPlace};
use super::index::BlockIndex;
use super::scan::Unreadable;
use super::{Doubt, RootKind, Roots, Unavailable};
use crate::base::addr::Addr;
use crate::base::leakclass::LeakClass;
use crate::heapmodel::LiveBlock;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// The smallest signal stack that the kernel takes, in bytes (`MINSIGSTKSZ`, signal(7)).
const MIN_SIGNAL_STACK: u64 = 2048;

/// How a block was come to.
#[derive(Clone, Copy, Debug)]
enum Via {
    /// Not at all so far.
    Nothing,
    Root(RootPlace),
    Block {
        from: u32,
        word: u32,
    },
    /// From the definitely leaked block that it hangs on.
    Leader(u32),
}

/// The class of each block, and how it can be reached.
#[derive(Clone, Debug)]
pub struct Scan {
    index: BlockIndex,
    roots: Roots,
    classes: Vec<LeakClass>,
    via: Vec<Via>,
    /// How far behind a block's start the pointer points that `via` means.
    offsets: Vec<u64>,
    /// Blocks that pointers with tags led to.
    tagged: FxHashSet<u32>,
    scanned_bytes: u64,
    unreadable: Unreadable,
}

/// A way from a root to a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// What the root is.
    pub root: RootKind,
    /// Where the root's pointer lies; None for a [`super::RootWord`].
    pub root_address: Option<Addr>,
    /// The blocks from the root on; the last one is the block itself. Never empty.
    pub steps: Vec<PathBlock>,
}

/// A block on a [`Path`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathBlock {
    /// Its number in [`Scan`].
    pub block: usize,
    /// How far behind its start the pointer to it points, in bytes.
    pub target_offset: u64,
    /// Where in it the pointer to the next block lies, in bytes. None in the last block, where the next block is the
    /// one that this one lies in, and further than 32 GiB behind the start.
    pub next_offset: Option<u64>,
}

impl Graph {
    /// Classifies all blocks.
    pub fn classify(self) -> Scan {
        let Walk { classes, via, offsets, tagged, .. } = self.walk();
        let Self { index, roots, scanned_bytes, unreadable, .. } = self;
        Scan { index, roots, classes, via, offsets, tagged, scanned_bytes, unreadable }
    }

    /// The blocks that no pointer to their start leads to from a root: address and size in bytes. In no order.
    pub fn unreached(&self) -> FxHashSet<(Addr, u64)> {
        let classes = self.walk().classes.into_iter();
        let blocks = self.index.blocks().iter().zip(classes).filter(|(_, class)| *class != LeakClass::Reachable);
        blocks.map(|(block, _)| (block.addr, block.size)).collect()
    }

    fn walk(&self) -> Walk<'_> {
        let blocks = self.index.blocks().len();
        let mut walk = Walk {
            classes: vec![LeakClass::Definite; blocks],
            via: vec![Via::Nothing; blocks],
            offsets: vec![0; blocks],
            tagged: FxHashSet::default(),
            graph: self,
        };
        let candidates = walk.reachable();
        walk.possible(candidates);
        walk.leaked();
        walk
    }
}

/// The state of the search. All searches go breadth first, so that the first way found to a block is a shortest one.
struct Walk<'a> {
    graph: &'a Graph,
    classes: Vec<LeakClass>,
    via: Vec<Via>,
    offsets: Vec<u64>,
    tagged: FxHashSet<u32>,
}

/// A block and how many blocks lie before it on the way.
type AtDepth = (u32, u32);

/// A block that a pointer into its inside leads to.
#[derive(Clone, Copy)]
struct Candidate {
    block: u32,
    depth: u32,
    via: Via,
    offset: u64,
    tagged: bool,
}

impl Walk<'_> {
    /// Finds what hangs on start pointers from the roots on. Returns what pointers into the inside led to first, in the
    /// order of depth; some of those blocks may have become reachable since.
    fn reachable(&mut self) -> Vec<Candidate> {
        let graph = self.graph;
        let mut candidates = Candidates { all: Vec::new(), known: vec![false; self.classes.len()] };
        let mut queue = VecDeque::new();
        for edge in &graph.from_roots {
            let via = Via::Root(edge.place);
            if edge.as_start {
                self.reach(edge.target, via, edge.offset, 0, &mut queue);
            } else {
                candidates.add(Candidate {
                    block: edge.target,
                    depth: 0,
                    via,
                    offset: edge.offset,
                    tagged: edge.tagged,
                });
            }
        }
        while let Some((from, depth)) = queue.pop_front() {
            let depth = depth + 1;
            let edges = &graph.edges;
            // those to starts first
            for edge in edges.of(from).iter().filter(|edge| edges.interior(**edge).is_none()) {
                self.reach(edge.target, Via::Block { from, word: edges.word(*edge) }, 0, depth, &mut queue);
            }
            for edge in edges.of(from) {
                let Some(interior) = edges.interior(*edge) else { continue };
                let (via, offset) = (Via::Block { from, word: edges.word(*edge) }, interior.offset);
                if interior.as_start {
                    self.reach(edge.target, via, offset, depth, &mut queue);
                } else if self.is_new(edge.target) {
                    candidates.add(Candidate { block: edge.target, depth, via, offset, tagged: interior.tagged });
                }
            }
        }
        candidates.all
    }

    fn reach(&mut self, target: u32, via: Via, offset: u64, depth: u32, queue: &mut VecDeque<AtDepth>) {
        if self.is_new(target) {
            self.set(target, LeakClass::Reachable, via, offset);
            queue.push_back((target, depth));
        }
    }

    /// Finds what hangs on the candidates. They and what is found meanwhile are taken in the order of depth.
    fn possible(&mut self, candidates: Vec<Candidate>) {
        let graph = self.graph;
        let mut candidates = candidates.into_iter().peekable();
        let mut queue: VecDeque<AtDepth> = VecDeque::new();
        loop {
            let next_depth = queue.front().map_or(u32::MAX, |(_, depth)| *depth);
            if let Some(Candidate { block, depth, via, offset, tagged }) =
                candidates.next_if(|candidate| candidate.depth <= next_depth)
            {
                if self.is_new(block) {
                    self.set(block, LeakClass::Possible, via, offset);
                    if tagged {
                        self.tagged.insert(block);
                    }
                    // candidates of a depth come before the first block of that depth is taken: none deeper waits yet
                    queue.push_back((block, depth));
                }
                continue;
            }
            let Some((from, depth)) = queue.pop_front() else { return };
            let edges = &graph.edges;
            for is_start in [true, false] {
                for edge in edges.of(from).iter().filter(|edge| edges.interior(**edge).is_none() == is_start) {
                    if self.is_new(edge.target) {
                        let interior = edges.interior(*edge);
                        let offset = interior.map_or(0, |interior| interior.offset);
                        if interior.is_some_and(|interior| interior.tagged) {
                            self.tagged.insert(edge.target);
                        }
                        self.set(
                            edge.target,
                            LeakClass::Possible,
                            Via::Block { from, word: edges.word(*edge) },
                            offset,
                        );
                        queue.push_back((edge.target, depth + 1));
                    }
                }
            }
        }
    }

    /// Sorts out what no root leads to. Definite are the blocks that no other leaked block leads to, and of each cycle
    /// that no block outside of it leads to, the one with the smallest address. All others hang on one of these.
    ///
    /// (Memcheck takes the blocks in the order of addresses and stops at what an earlier one has taken. If a later
    /// block leads into the middle of a cycle, it finds two definite blocks.)
    fn leaked(&mut self) {
        let blocks = self.classes.len() as u32;
        let found: Vec<bool> = (0..blocks).map(|block| !self.is_new(block)).collect();
        // blocks that none with a smaller address leads to
        let mut visited = found.clone();
        let mut leaders: Vec<u32> =
            (0..blocks).filter(|block| self.flood(*block, |block| !mark(&mut visited, block))).collect();
        // of these, the ones that none with a greater address leads to either
        visited = found;
        leaders.reverse();
        leaders.retain(|leader| self.flood(*leader, |block| !mark(&mut visited, block)));
        for leader in leaders.into_iter().rev() {
            self.take(leader);
        }
    }

    /// Visits a leaked block and all that it leads to, if `is_new` says yes to it; that is asked of each block met.
    fn flood(&self, block: u32, mut is_new: impl FnMut(u32) -> bool) -> bool {
        if !is_new(block) {
            return false;
        }
        let mut stack = vec![block];
        while let Some(from) = stack.pop() {
            stack.extend(self.graph.targets(from).filter(|target| is_new(*target)));
        }
        true
    }

    /// Lets all that hangs on a leader, and on none before it, be its own.
    fn take(&mut self, leader: u32) {
        let graph = self.graph;
        let mut stack = vec![leader];
        while let Some(from) = stack.pop() {
            for target in graph.targets(from) {
                if target != leader && self.is_new(target) {
                    self.set(target, LeakClass::Indirect, Via::Leader(leader), 0);
                    stack.push(target);
                }
            }
        }
    }

    fn is_new(&self, block: u32) -> bool {
        matches!(self.via.get(block as usize), Some(Via::Nothing))
    }

    fn set(&mut self, block: u32, class: LeakClass, via: Via, offset: u64) {
        let block = block as usize;
        if let (Some(old_class), Some(old_via), Some(old_offset)) =
            (self.classes.get_mut(block), self.via.get_mut(block), self.offsets.get_mut(block))
        {
            (*old_class, *old_via, *old_offset) = (class, via, offset);
        }
    }
}

/// Sets a block's mark; whether it was set before.
fn mark(marks: &mut [bool], block: u32) -> bool {
    marks.get_mut(block as usize).is_none_or(|mark| std::mem::replace(mark, true))
}

/// The first candidate for each block.
struct Candidates {
    all: Vec<Candidate>,
    known: Vec<bool>,
}

impl Candidates {
    fn add(&mut self, candidate: Candidate) {
        if !mark(&mut self.known, candidate.block) {
            self.all.push(candidate);
        }
    }
}

impl Scan {
    /// All blocks in the order of addresses, with their classes. A block's number is its place in this order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (LiveBlock, LeakClass)> {
        self.index.blocks().iter().copied().zip(self.classes.iter().copied())
    }

    /// A block by its number.
    pub fn block(&self, number: usize) -> Option<(LiveBlock, LeakClass)> {
        Some((*self.index.blocks().get(number)?, *self.classes.get(number)?))
    }

    /// The number of the block that holds `addr`; of several, the innermost one.
    pub fn find(&self, addr: Addr) -> Option<usize> {
        self.index.find(addr.0).map(|(block, _)| block as usize)
    }

    /// The definitely leaked block that an indirectly leaked one hangs on. Each hangs on one, even if several lead to
    /// it.
    pub fn leader(&self, number: usize) -> Option<usize> {
        match self.via.get(number) {
            Some(Via::Leader(leader)) => Some(*leader as usize),
            _ => None,
        }
    }

    /// How the pointer leads to a possibly leaked block that the way to it ends with; None where that leads to its
    /// start, or of another block.
    pub fn doubt(&self, number: usize) -> Option<Doubt> {
        let offset = *self.offsets.get(number).filter(|_| self.classes.get(number) == Some(&LeakClass::Possible))?;
        let is_tagged = self.tagged.contains(&u32::try_from(number).ok()?);
        match offset {
            _ if is_tagged => Some(Doubt::Tagged),
            0 => None,
            offset => Some(Doubt::Behind(offset)),
        }
    }

    /// A way from a root to a reachable or possibly leaked block with as few blocks on it as there can be; None for
    /// others. To a reachable block it has pointers to starts only.
    pub fn path_to(&self, number: usize) -> Option<Path> {
        let mut steps = Vec::new();
        let mut number = number;
        let mut next_offset = None;
        loop {
            steps.push(PathBlock { block: number, target_offset: *self.offsets.get(number)?, next_offset });
            match *self.via.get(number)? {
                Via::Nothing | Via::Leader(_) => return None,
                Via::Block { from, word } => {
                    number = from as usize;
                    let addr = self.index.blocks().get(number)?.addr.0;
                    next_offset = (word != NO_WORD).then(|| (addr.div_ceil(8) + u64::from(word)) * 8 - addr);
                }
                Via::Root(place) => {
                    steps.reverse();
                    let (root, root_address) = match place {
                        RootPlace::Word(word) => (self.roots.words.get(word as usize)?.kind, None),
                        RootPlace::Memory(addr) => {
                            let range =
                                self.roots.ranges.iter().find(|range| (range.start..range.end).contains(&addr))?;
                            (range.kind, Some(addr))
                        }
                    };
                    return Some(Path { root, root_address, steps });
                }
            }
        }
    }

    /// Where the kernel may hold pointers that it tells nobody: blocks that only it leads to look lost. Nothing if none
    /// does.
    pub fn untold(&self) -> Vec<Unavailable> {
        let lost = self.blocks().filter(|(_, class)| *class == LeakClass::Definite).map(|(block, _)| block.size).max();
        let may_be_held = |untold: &Unavailable| {
            lost.is_some_and(|lost| *untold != Unavailable::SignalStacks || lost >= MIN_SIGNAL_STACK)
        };
        self.roots.untold.iter().copied().filter(may_be_held).collect()
    }

    /// Of how many threads it is not known where their signal stacks lie.
    pub const fn unasked_threads(&self) -> usize {
        self.roots.unasked_threads
    }

    /// How many bytes of roots and blocks were looked through.
    pub fn scanned_bytes(&self) -> u64 {
        self.scanned_bytes
    }

    /// How many bytes of roots and blocks could not be read.
    pub fn unreadable_bytes(&self) -> u64 {
        self.unreadable.bytes
    }

    /// What could not be read, by name: some of it, where it is much.
    pub fn unreadable_names(&self) -> &[String] {
        &self.unreadable.names
    }
}
