//! Interned stacks: a trie rooted at the innermost frame, in at most 24 bytes per node.
//!
//! The walk goes from the allocator's caller outwards, so a node is reached by (node of the frame it called, own
//! address), and a stack's id is the node of its outermost frame. Nodes are never removed and ids never change.
//!
//! A node is 20 bytes in chunks of fixed size, the hash index two bytes more. The index is linear hashing (W. Litwin,
//! 1980): buckets are split one at a time as nodes arrive. So memory never doubles, and no insertion, which a stopped
//! thread waits for, pays for a rehash of everything.
//!
//! A node that stands right behind its parent, as all but the first of a new stack's do, is found there, and is in no bucket.

use super::{Frame, Quality};
use crate::addr::{Addr, FrameAddr, ModuleId, StackId};
use crate::chunk::Chunk;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

/// Entries per chunk of the node and bucket stores.
const CHUNK: usize = 1 << 12;
/// Nodes per bucket on average. Two keeps the index at 2 bytes per node and a look-up at about two node reads.
const LOAD: usize = 2;
/// Bits of an address that are kept: the canonical user and kernel addresses with five page table levels.
const ADDR_BITS: u32 = 57;
const ADDR_MASK: u64 = (1 << ADDR_BITS) - 1;
/// The frame's address is a return address.
const RETURN: u64 = 1 << 57;
/// This frame or one further in was reached by a guess.
const GUESSED: u64 = 1 << 58;
/// No frame: says that the stack below was cut off, or that its end was guessed.
const END: u64 = 1 << 59;
/// With [`END`]: cut off.
const TRUNCATED: u64 = 1 << 60;

/// One frame below its callers. `next` links the nodes of one bucket; 0 (the root, in no bucket) ends the list.
#[derive(Clone, Copy, Default, Debug)]
struct Node {
    /// Address and flags, in two halves so that the node needs no padding.
    low: u32,
    high: u32,
    module: u32,
    parent: u32,
    next: u32,
}

const _: () = assert!(size_of::<Node>() == 20);

impl Node {
    fn word(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }

    fn frame(self) -> Option<Frame> {
        let word = self.word();
        if word & END != 0 {
            return None;
        }
        let addr = Addr(sign_extend(word));
        let addr = if word & RETURN != 0 { FrameAddr::Return(addr) } else { FrameAddr::Instruction(addr) };
        Some(Frame { addr, module: ModuleId(self.module) })
    }
}

/// The address in the low bits of `word`.
const fn sign_extend(word: u64) -> u64 {
    let unused = 64 - ADDR_BITS;
    ((word << unused).cast_signed() >> unused).cast_unsigned()
}

/// Whether code can lie at `addr` at all: the canonical addresses. Others are not kept by [`StackTable`].
pub const fn is_canonical(addr: Addr) -> bool {
    sign_extend(addr.0) == addr.0
}

/// A vector that grows by a chunk at a time, moves what it holds only where a view has it, too, and shares it by chunks.
#[derive(Clone, Debug, Default)]
struct Chunked<T> {
    chunks: Vec<Chunk<Box<[T]>>>,
    len: usize,
}

impl<T: Copy + Default> Chunked<T> {
    fn get(&self, index: usize) -> Option<T> {
        if index >= self.len {
            return None;
        }
        self.chunks.get(index / CHUNK)?.get().get(index % CHUNK).copied()
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.chunks.get_mut(index / CHUNK)?.get_mut().get_mut(index % CHUNK)
    }

    fn view(&mut self) -> Self {
        Self { chunks: self.chunks.iter_mut().map(Chunk::share).collect(), len: self.len }
    }

    fn push(&mut self, value: T) {
        let index = self.len;
        if index / CHUNK == self.chunks.len() {
            self.chunks.push(Chunk::Own(vec![T::default(); CHUNK].into_boxed_slice()));
        }
        if let Some(slot) = self.get_mut(index) {
            *slot = value;
            self.len += 1;
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| size_of_val(&**chunk.get())).sum::<usize>()
            + self.chunks.capacity() * size_of::<Chunk<Box<[T]>>>()
    }
}

/// A node of a [`StackTable`] as it is kept: one frame, or what stands for the end of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StackNode {
    /// The stack without it.
    pub parent: StackId,
    /// The address in bits 0 to 56 (sign-extended), and flags: 57 it is a return address, 58 it or one further in was guessed, 59 it is no
    /// frame but the end of the walk, 60 with 59: the walk was cut off.
    pub word: u64,
    /// The module that the address lies in.
    pub module: ModuleId,
}

impl StackNode {
    /// The frame that the node adds to its parent; None for the end of a walk.
    pub fn frame(self) -> Option<Frame> {
        let [low, high] = [self.word as u32, (self.word >> 32) as u32];
        Node { low, high, module: self.module.0, ..Node::default() }.frame()
    }
}

/// All stacks seen in one process.
///
/// A stack is identified by addresses, their modules and how its frames were found; two walks of the same call chain
/// give the same id if and only if they are of the same quality.
#[derive(Clone, Debug, Default)]
pub struct StackTable {
    /// The root comes with the first frame: an empty table takes no memory.
    nodes: Chunked<Node>,
    /// First node of each bucket.
    buckets: Chunked<u32>,
    /// How many nodes are in buckets.
    indexed: usize,
}

impl StackTable {
    /// A table that holds the empty stack only.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy that shares its memory with this one until one of them changes: some hundred reference counts for a million nodes.
    pub fn view(&mut self) -> Self {
        Self { nodes: self.nodes.view(), buckets: self.buckets.view(), indexed: self.indexed }
    }

    /// The stack `parent` with one more frame, the caller of its outermost one. `guessed`: the frame was found by its
    /// frame pointer, not by CFI. The address must be canonical ([`is_canonical`]). After four billion nodes
    /// `parent` itself is returned.
    pub fn child(&mut self, parent: StackId, frame: Frame, guessed: bool) -> StackId {
        let kind = if matches!(frame.addr, FrameAddr::Return(_)) { RETURN } else { 0 };
        let inherited = self.node(parent).word() & GUESSED;
        let word = frame.addr.raw().0 & ADDR_MASK | kind | inherited | if guessed { GUESSED } else { 0 };
        self.intern(parent, word, frame.module)
    }

    /// The stack `stack`, marked as cut off before its outermost frame. The empty stack counts as cut off already.
    pub fn truncated(&mut self, stack: StackId) -> StackId {
        if stack == StackId::EMPTY {
            return stack;
        }
        self.intern(stack, END | TRUNCATED | GUESSED, ModuleId::NONE)
    }

    /// The stack `stack`, whose last frame was taken for the outermost one by a guess.
    pub fn guessed_end(&mut self, stack: StackId) -> StackId {
        if stack == StackId::EMPTY || self.quality(stack) != Quality::Complete {
            return stack;
        }
        self.intern(stack, END | GUESSED, ModuleId::NONE)
    }

    /// How far `stack` can be trusted. The empty stack is truncated.
    pub fn quality(&self, stack: StackId) -> Quality {
        let word = self.node(stack).word();
        if word & TRUNCATED != 0 || stack == StackId::EMPTY {
            Quality::Truncated
        } else if word & GUESSED != 0 {
            Quality::Guessed
        } else {
            Quality::Complete
        }
    }

    /// The frames of `stack`, innermost (the allocator's caller) first.
    pub fn frames(&self, stack: StackId) -> Vec<Frame> {
        let mut frames: Vec<_> = self.path(stack).filter_map(Node::frame).collect();
        frames.reverse();
        frames
    }

    /// Copies these stacks to another table, each frame as `moved` has it there; qualities stay. Returns which id each stack, and
    /// each beginning of one, has in the other.
    pub fn copy_into(
        &self,
        other: &mut Self,
        stacks: impl IntoIterator<Item = StackId>,
        moved: impl Fn(Frame) -> Frame,
    ) -> FxHashMap<StackId, StackId> {
        let mut ids = FxHashMap::from_iter([StackId::EMPTY, StackId::EXISTING].map(|id| (id, id)));
        for stack in stacks {
            let mut missing = Vec::new();
            let mut at = stack;
            let mut parent = loop {
                if let Some(&known) = ids.get(&at) {
                    break known;
                }
                missing.push(at);
                at = StackId(self.node(at).parent);
            };
            for old in missing.into_iter().rev() {
                let node = self.node(old);
                let (mut word, mut module) = (node.word(), ModuleId(node.module));
                if let Some(frame) = node.frame().map(&moved) {
                    word = word & !ADDR_MASK | frame.addr.raw().0 & ADDR_MASK;
                    module = frame.module;
                }
                parent = other.intern(parent, word, module);
                ids.insert(old, parent);
            }
        }
        ids
    }

    /// The nodes from the id `first` on, each with its own, in the order in which they came: parents first. (The empty stack has none.)
    pub fn nodes_from(&self, first: u32) -> impl Iterator<Item = (StackId, StackNode)> {
        let end = u32::try_from(self.nodes.len).unwrap_or(u32::MAX);
        (first.max(1)..end).map(|id| {
            let node = self.node(StackId(id));
            let (word, module) = (node.word(), ModuleId(node.module));
            (StackId(id), StackNode { parent: StackId(node.parent), word, module })
        })
    }

    /// The node of a stack; None of the empty one, and of ids that were never given.
    pub fn get(&self, stack: StackId) -> Option<StackNode> {
        let node = self.nodes.get(stack.0 as usize).filter(|_| stack != StackId::EMPTY)?;
        Some(StackNode { parent: StackId(node.parent), word: node.word(), module: ModuleId(node.module) })
    }

    /// The stack that `node` makes of its parent. A table that gets the nodes of another one in their order ([`Self::nodes_from`])
    /// has them under the same ids. A parent that is not there counts as the empty stack.
    pub fn insert(&mut self, node: StackNode) -> StackId {
        let parent = if (node.parent.0 as usize) < self.nodes.len { node.parent } else { StackId::EMPTY };
        self.intern(parent, node.word, node.module)
    }

    /// The number of frames of `stack`.
    pub fn depth(&self, stack: StackId) -> u32 {
        self.path(stack).map(|node| u32::from(node.word() & END == 0)).sum()
    }

    /// The stack without its outermost frame (or without its mark of truncation); None for the empty one.
    #[cfg(test)]
    pub fn parent(&self, stack: StackId) -> Option<StackId> {
        (stack != StackId::EMPTY).then(|| StackId(self.node(stack).parent))
    }

    /// The number of nodes, the root included: every id is below.
    #[cfg(test)]
    pub fn node_count(&self) -> usize {
        self.nodes.len.max(1)
    }

    /// Bytes of memory that the table holds, unused slots included.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.nodes.bytes() + self.buckets.bytes()
    }

    fn node(&self, stack: StackId) -> Node {
        self.nodes.get(stack.0 as usize).unwrap_or_default()
    }

    /// The nodes from `stack` down to the innermost frame.
    fn path(&self, stack: StackId) -> impl Iterator<Item = Node> {
        let mut at = stack;
        std::iter::from_fn(move || {
            if at == StackId::EMPTY {
                return None;
            }
            let node = self.nodes.get(at.0 as usize)?;
            at = StackId(node.parent);
            Some(node)
        })
    }

    fn intern(&mut self, parent: StackId, word: u64, module: ModuleId) -> StackId {
        if self.nodes.len == 0 {
            self.nodes.push(Node::default());
            self.buckets.push(0);
        }
        let is_it = |node: Node| node.parent == parent.0 && node.word() == word && node.module == module.0;
        let behind = parent.0 as usize + 1;
        if self.nodes.get(behind).is_some_and(is_it) {
            return StackId(parent.0 + 1);
        }
        let Ok(id) = u32::try_from(self.nodes.len) else { return parent };
        let [low, high] = [word as u32, (word >> 32) as u32];
        let mut new = Node { low, high, module: module.0, parent: parent.0, next: 0 };
        // The latest node has no child yet.
        if behind == self.nodes.len {
            self.nodes.push(new);
            return StackId(id);
        }
        let hash = hash(parent.0, word, module.0);
        let bucket = bucket_of(hash, self.buckets.len);
        let first = self.buckets.get(bucket).unwrap_or_default();
        let mut at = first;
        while at != 0 {
            let node = self.node(StackId(at));
            if is_it(node) {
                return StackId(at);
            }
            at = node.next;
        }
        new.next = first;
        self.nodes.push(new);
        if let Some(head) = self.buckets.get_mut(bucket) {
            *head = id;
        }
        self.indexed += 1;
        if self.indexed > self.buckets.len * LOAD {
            self.split_bucket();
        }
        StackId(id)
    }

    /// Adds one bucket and moves to it, from the one bucket that held them so far, the nodes that belong there.
    fn split_bucket(&mut self) {
        let new = self.buckets.len;
        self.buckets.push(0);
        let old = new - (new + 1).next_power_of_two() / 2;
        let mut at = self.buckets.get(old).unwrap_or_default();
        let mut heads = [0; 2];
        while at != 0 {
            let node = self.node(StackId(at));
            let moves = bucket_of(hash(node.parent, node.word(), node.module), new + 1) == new;
            let head = &mut heads[usize::from(moves)];
            if let Some(node) = self.nodes.get_mut(at as usize) {
                node.next = *head;
            }
            *head = at;
            at = node.next;
        }
        for (bucket, head) in [old, new].into_iter().zip(heads) {
            if let Some(slot) = self.buckets.get_mut(bucket) {
                *slot = head;
            }
        }
    }
}

fn hash(parent: u32, word: u64, module: u32) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(u64::from(parent) << 32 | u64::from(module));
    hasher.write_u64(word);
    hasher.finish()
}

/// Where `hash` lives among `count` buckets: the next power of two decides, and the buckets that do not exist yet are
/// still part of those that they will be split from.
fn bucket_of(hash: u64, count: usize) -> usize {
    let size = count.next_power_of_two();
    let bucket = hash as usize & (size - 1);
    if bucket < count { bucket } else { bucket - size / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn frame(addr: u64) -> Frame {
        Frame { addr: FrameAddr::Return(Addr(addr)), module: ModuleId(3) }
    }

    #[test]
    fn a_part_is_copied_with_its_frames_and_qualities_and_grows_on() {
        let mut table = StackTable::new();
        let mut all = Vec::new();
        for outer in 0..200u64 {
            let mut stack = StackId::EMPTY;
            for depth in 0..20 {
                stack = table.child(stack, frame(0x400000 + depth * outer), depth == 7 && outer % 3 == 0);
            }
            all.push(if outer % 5 == 0 { table.truncated(stack) } else { stack });
        }
        let some: Vec<StackId> = all.iter().copied().step_by(10).collect();
        let mut kept = StackTable::new();
        let ids = table.copy_into(&mut kept, some.iter().copied(), |frame| frame);
        assert!(
            kept.node_count() <= 20 * 21 + 1 && kept.node_count() < table.node_count() / 4,
            "{} nodes",
            kept.node_count()
        );
        for old in some {
            let new = ids[&old];
            assert_eq!((kept.frames(new), kept.quality(new)), (table.frames(old), table.quality(old)));
            let grown = kept.child(new, frame(0x1234), false);
            assert_eq!(kept.parent(grown), Some(new));
        }
    }

    #[test]
    fn a_table_of_another_one_s_nodes_has_the_same_ids() {
        let mut table = StackTable::new();
        for n in 0..20_000u64 {
            let inner = table.child(StackId::EMPTY, frame(0x1000 + n % 300), n % 7 == 0);
            let stack = table.child(inner, frame(n * n % 977), false);
            if n % 11 == 0 {
                table.truncated(stack);
            }
        }
        assert_eq!(StackTable::new().nodes_from(0).count(), 0);
        let mut copy = StackTable::new();
        for (id, node) in table.nodes_from(0) {
            assert_eq!(copy.insert(node), id);
        }
        assert_eq!(copy.nodes.len, table.nodes.len);
        assert!(copy.nodes_from(0).eq(table.nodes_from(0)));
        let last = u32::try_from(table.nodes.len).unwrap() - 1;
        assert_eq!(table.nodes_from(last).map(|(id, _)| id).collect::<Vec<_>>(), [StackId(last)]);
        assert_eq!(copy.frames(StackId(last)), table.frames(StackId(last)));
    }

    #[test]
    fn frames_come_back_innermost_first() {
        let mut table = StackTable::new();
        let frames = [
            frame(0x401000),
            Frame { addr: FrameAddr::Instruction(Addr(0x7fff_f7dd_1000)), module: ModuleId(0) },
            Frame { addr: FrameAddr::Return(Addr(0xffff_ffff_ff60_0007)), module: ModuleId::NONE },
        ];
        let mut stack = StackId::EMPTY;
        for f in frames {
            stack = table.child(stack, f, false);
        }
        assert_eq!(table.frames(stack), frames);
        assert_eq!(table.depth(stack), 3);
        assert_eq!(table.quality(stack), Quality::Complete);
        assert_eq!(table.frames(table.parent(stack).unwrap()), frames[..2]);
        assert_eq!(table.frames(StackId::EMPTY), []);
        assert_eq!(table.quality(StackId::EMPTY), Quality::Truncated);
        assert_eq!(table.frames(StackId(77)), [], "an id of another table does no harm");
    }

    #[test]
    fn kind_module_and_quality_are_part_of_the_identity() {
        let mut table = StackTable::new();
        let plain = table.child(StackId::EMPTY, frame(0x10), false);
        assert_eq!(table.child(StackId::EMPTY, frame(0x10), false), plain);
        let other = [
            table.child(StackId::EMPTY, frame(0x10), true),
            table.child(StackId::EMPTY, Frame { addr: FrameAddr::Instruction(Addr(0x10)), ..frame(0) }, false),
            table.child(StackId::EMPTY, Frame { module: ModuleId(4), ..frame(0x10) }, false),
            table.child(plain, frame(0x10), false),
            table.truncated(plain),
        ];
        for (i, a) in other.iter().enumerate() {
            assert_ne!(*a, plain);
            assert!(!other[i + 1..].contains(a));
        }
    }

    #[test]
    fn a_guess_marks_every_stack_built_on_it() {
        let mut table = StackTable::new();
        let inner = table.child(StackId::EMPTY, frame(1), false);
        let guessed = table.child(inner, frame(2), true);
        let outer = table.child(guessed, frame(3), false);
        assert_eq!(table.quality(inner), Quality::Complete);
        assert_eq!(table.quality(outer), Quality::Guessed);
        assert_eq!(table.guessed_end(outer), outer);
        let end = table.guessed_end(inner);
        assert_eq!((table.quality(end), table.depth(end)), (Quality::Guessed, 1));
        let cut = table.truncated(outer);
        assert_eq!((table.quality(cut), table.depth(cut)), (Quality::Truncated, 3));
        assert_eq!(table.frames(cut).len(), 3);
        assert_eq!(table.truncated(StackId::EMPTY), StackId::EMPTY);
    }

    /// The same pushes into a map of the standard library give the same identities.
    #[test]
    fn identities_agree_with_a_plain_map() {
        let mut table = StackTable::new();
        let mut map: HashMap<(StackId, u64), StackId> = HashMap::new();
        let mut state = 1u64;
        let mut ids = vec![StackId::EMPTY];
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let parent = ids[(state >> 33) as usize % ids.len().min(5000)];
            let addr = 0x5555_0000_0000 + (state >> 20) % 64 * 16;
            let id = table.child(parent, frame(addr), false);
            assert_eq!(*map.entry((parent, addr)).or_insert(id), id);
            if table.node_count() > ids.len() {
                ids.push(id);
            }
        }
        assert_eq!(table.node_count(), map.len() + 1);
        for (&(parent, addr), &id) in &map {
            assert_eq!(table.child(parent, frame(addr), false), id);
            assert_eq!((table.parent(id), table.frames(id).last().copied()), (Some(parent), Some(frame(addr))));
        }
    }

    #[test]
    fn a_view_keeps_its_stacks_while_the_table_grows_and_shares_the_rest() {
        let mut table = StackTable::new();
        let grow = |table: &mut StackTable, from: u64, to: u64| -> Vec<StackId> {
            (from..to).map(|addr| table.child(StackId::EMPTY, frame(addr * 16), false)).collect()
        };
        let early = grow(&mut table, 1, 10_000);
        let before = table.clone();
        let mut view = table.view();
        let late = grow(&mut table, 10_000, 30_000);
        assert_eq!(grow(&mut table, 1, 30_000), [early.clone(), late].concat(), "all ids stay");
        assert_eq!(view.node_count(), before.node_count());
        for stack in &early {
            assert_eq!(view.frames(*stack), before.frames(*stack));
        }
        assert_eq!(grow(&mut view, 1, 10_000), early, "a view knows its stacks, too");
    }

    #[test]
    fn at_most_24_bytes_per_node_at_every_size() {
        let mut table = StackTable::new();
        let mut stack = StackId::EMPTY;
        for i in 0..400_000u64 {
            stack = table.child(if i % 40 == 0 { StackId::EMPTY } else { stack }, frame(0x40_0000 + i), false);
            if i > 100_000 {
                assert!(
                    table.memory() <= 24 * table.node_count(),
                    "{} bytes for {} nodes",
                    table.memory(),
                    table.node_count()
                );
            }
        }
        let longest = (0..table.buckets.len)
            .map(|bucket| {
                let next = |&at: &u32| Some(table.node(StackId(at)).next).filter(|&at| at != 0);
                std::iter::successors(table.buckets.get(bucket).filter(|&at| at != 0), next).count()
            })
            .max();
        assert!(longest < Some(20), "longest chain {longest:?}");
    }
}
