//! The nodes of the trie, and the frames that they add: most nodes take four bytes, the number of their frame.

use super::chunked::Chunked;
use super::index::{Entries, Index};
use crate::base::addr::ModuleId;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// Nodes of a group: a bit each in its word.
const GROUP: usize = 64;

/// Which of 64 nodes do not stand right behind their parents.
#[derive(Clone, Copy, Default, Debug)]
struct Group {
    bits: u64,
    /// How many there are in the groups before.
    before: u32,
}

/// Parents whose children, but for those right behind them, are in one list: they mostly are near each other, as the
/// parents are.
const FAMILY: usize = 16;

const _: () = assert!(GROUP.is_multiple_of(FAMILY), "the first of a group is the first of a family");

/// So many children such a list has at most. Others are in the index.
pub(super) const MAX_LISTED: usize = 16;

/// What is to be known of a node that does not stand right behind its parent.
#[derive(Clone, Copy, Default, Debug)]
struct Branch {
    parent: u32,
    /// The next node of the same list, or bucket.
    next: u32,
}

/// The nodes, by number. Number 0 is the root.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    frames: Chunked<u32>,
    groups: Chunked<Group>,
    branches: Chunked<Branch>,
    /// The first of the list of each [`FAMILY`] of parents; 0: none.
    lists: Chunked<u32>,
}

impl Nodes {
    pub(super) const fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn view(&mut self) -> Self {
        Self {
            frames: self.frames.view(),
            groups: self.groups.view(),
            branches: self.branches.view(),
            lists: self.lists.view(),
        }
    }

    /// The number of the node's frame.
    #[inline]
    pub(super) fn frame(&self, node: u32) -> Option<u32> {
        self.frames.get(node as usize)
    }

    /// The parent of a node that is there; the root is its own.
    #[inline]
    pub(super) fn parent(&self, node: u32) -> u32 {
        self.branch(node).map_or(node.saturating_sub(1), |branch| self.branches.get(branch).unwrap_or_default().parent)
    }

    /// Which of the branches a node is, if it is one.
    #[inline]
    fn branch(&self, node: u32) -> Option<usize> {
        let group = self.groups.get(node as usize / GROUP)?;
        let bit = 1 << (node as usize % GROUP);
        (group.bits & bit != 0).then(|| group.before as usize + (group.bits & (bit - 1)).count_ones() as usize)
    }

    /// The first of the nodes that stand right behind each other up to this one, or one that is nearer.
    #[inline]
    pub(super) fn begin_of_run(&self, node: u32) -> u32 {
        let Some(group) = self.groups.get(node as usize / GROUP) else { return node };
        let place = node % GROUP as u32;
        let up_to_it = group.bits << (GROUP as u32 - 1 - place);
        // the root is in no stack
        (node - up_to_it.leading_zeros().min(place)).max(1)
    }

    /// The numbers of the frames of these nodes, which are of one run.
    #[inline]
    pub(super) fn frames_of_run(&self, nodes: std::ops::RangeInclusive<u32>) -> &[u32] {
        self.frames.part(*nodes.start() as usize..*nodes.end() as usize + 1)
    }

    /// Adds a node: right behind its parent, where `parent` is None.
    pub(super) fn push(&mut self, frame: u32, parent: Option<u32>) {
        let at = self.frames.len();
        if at.is_multiple_of(FAMILY) {
            self.lists.push(0);
        }
        if at.is_multiple_of(GROUP) {
            self.groups.push(Group { bits: 0, before: self.branches.len() as u32 });
        }
        self.frames.push(frame);
        if let Some(parent) = parent {
            self.branches.push(Branch { parent, next: 0 });
            if let Some(group) = self.groups.get_mut(at / GROUP) {
                group.bits |= 1 << (at % GROUP);
            }
        }
    }

    /// Adds a node right behind its parent, which is there.
    #[inline]
    pub(super) fn push_behind(&mut self, frame: u32) {
        // most are neither the first of a family nor of a group
        if self.frames.len().is_multiple_of(FAMILY) || !self.frames.push_within(frame) {
            self.push(frame, None);
        }
    }

    /// Looks for a child of `parent` in its list: the child, or how long the list is.
    #[inline]
    pub(super) fn listed(&self, parent: u32, is_it: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let mut at = self.lists.get(parent as usize / FAMILY).unwrap_or_default();
        let mut length = 0;
        while at != 0 {
            if is_it(at) {
                return Ok(at);
            }
            at = self.next(at);
            length += 1;
        }
        Err(length)
    }

    /// Puts a node that is in no list yet into that of its parent.
    pub(super) fn list(&mut self, parent: u32, node: u32) {
        if let Some(first) = self.lists.get_mut(parent as usize / FAMILY) {
            let next = std::mem::replace(first, node);
            self.set_next(node, next);
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.frames.bytes() + self.groups.bytes() + self.branches.bytes() + self.lists.bytes()
    }
}

impl Entries for Nodes {
    fn next(&self, entry: u32) -> u32 {
        self.branch(entry).and_then(|branch| self.branches.get(branch)).unwrap_or_default().next
    }

    fn set_next(&mut self, entry: u32, next: u32) {
        if let Some(branch) = self.branch(entry).and_then(|branch| self.branches.get_mut(branch)) {
            branch.next = next;
        }
    }

    fn hash(&self, entry: u32) -> u64 {
        hash_of_node(self.parent(entry), self.frame(entry).unwrap_or_default())
    }
}

/// The hash of a node in the index of nodes.
pub(super) fn hash_of_node(parent: u32, frame: u32) -> u64 {
    hash(u64::from(parent) << 32 | u64::from(frame), 0)
}

fn hash(one: u64, two: u64) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(one);
    hasher.write_u64(two);
    hasher.finish()
}

/// What a node adds to its parent: an address with its flags, and the module that it lies in.
#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    /// In two halves, so that the entry needs no padding.
    low: u32,
    high: u32,
    module: u32,
    next: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Entry {
    const fn is(self, word: u64, module: ModuleId) -> bool {
        self.low == word as u32 && self.high == (word >> 32) as u32 && self.module == module.0
    }

    fn word(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

#[derive(Clone, Debug, Default)]
struct Table(Chunked<Entry>);

impl Entries for Table {
    fn next(&self, entry: u32) -> u32 {
        self.0.get(entry as usize).unwrap_or_default().next
    }

    fn set_next(&mut self, entry: u32, next: u32) {
        if let Some(entry) = self.0.get_mut(entry as usize) {
            entry.next = next;
        }
    }

    fn hash(&self, entry: u32) -> u64 {
        let entry = self.0.get(entry as usize).unwrap_or_default();
        hash(entry.word(), entry.module.into())
    }
}

/// Each frame once, by number: of a million nodes there are some thousands. Number 0 is the root's.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    table: Table,
    index: Index,
    /// What was found last, by hash: nearly all frames of new stacks are among some hundred. Of [`LATEST`] places, once
    /// there is a frame.
    latest: Box<[u32]>,
}

/// A power of two.
const LATEST: usize = 256;

impl Frames {
    pub(super) fn view(&mut self) -> Self {
        Self { table: Table(self.table.0.view()), index: self.index.view(), latest: Box::default() }
    }

    /// Whether the frame with this number is this one.
    #[inline]
    pub(super) fn is(&self, number: u32, word: u64, module: ModuleId) -> bool {
        self.table.0.get(number as usize).is_some_and(|entry| entry.is(word, module))
    }

    /// How many numbers were given: all are below.
    pub(super) const fn len(&self) -> usize {
        self.table.0.len()
    }

    /// The frame with this number: its word, and its module.
    #[inline]
    pub(super) fn get(&self, number: u32) -> (u64, ModuleId) {
        let entry = self.table.0.get(number as usize).unwrap_or_default();
        (entry.word(), ModuleId(entry.module))
    }

    /// The number of a frame. Frames are fewer than nodes, which have numbers of 32 bits.
    pub(super) fn number(&mut self, word: u64, module: ModuleId) -> u32 {
        let hash = hash(word, module.0.into());
        let place = hash as usize % LATEST;
        match self.latest.get(place) {
            Some(known) if *known != 0 && self.is(*known, word, module) => return *known,
            _ => {}
        }
        let number = self.look_up(word, module, hash);
        if self.latest.is_empty() {
            self.latest = vec![0; LATEST].into_boxed_slice();
        }
        self.latest.get_mut(place).into_iter().for_each(|latest| *latest = number);
        number
    }

    fn look_up(&mut self, word: u64, module: ModuleId, hash: u64) -> u32 {
        if self.table.0.len() == 0 {
            self.table.0.push(Entry::default());
        }
        if let Some(known) = self.index.find(&self.table, hash, |number| self.is(number, word, module)) {
            return known;
        }
        let number = self.table.0.len() as u32;
        self.table.0.push(Entry { low: word as u32, high: (word >> 32) as u32, module: module.0, next: 0 });
        self.index.enter(&mut self.table, hash, number);
        number
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.table.0.bytes() + self.index.bytes() + size_of_val(&*self.latest)
    }
}
