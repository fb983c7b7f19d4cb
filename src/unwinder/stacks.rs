//! Interned stacks: a trie rooted at the innermost frame.
//!
//! The walk goes from the allocator's caller outwards, so a node is reached by (node of the frame it called, own
//! address), and a stack's id is the node of its outermost frame. Nodes are never removed and ids never change.
//!
//! A node that stands right behind its parent, as all but the first of a new stack's do, is found there, is in no
//! list, and takes four bytes: the number of its frame, as there are few frames in many stacks. The first takes eight
//! more. It is in a list with others whose parents are near its own, or, where these have many, in an index: what was
//! met at about the same time is looked up without a look at memory elsewhere. Where each node has
//! a frame of its own, a node takes 24 bytes at most.

mod chunked;
mod index;
mod nodes;
mod path;

use super::{Frame, Quality};
use crate::base::addr::{Addr, FrameAddr, ModuleId, StackId};
use index::Index;
use nodes::{Frames, MAX_LISTED, Nodes, hash_of_node};
pub use path::StackPath;
use rustc_hash::FxHashMap;

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

/// The address in the low bits of `word`.
const fn sign_extend(word: u64) -> u64 {
    let unused = 64 - ADDR_BITS;
    ((word << unused).cast_signed() >> unused).cast_unsigned()
}

/// What [`StackNode::word`] has of the address alone.
fn word_of(addr: FrameAddr) -> u64 {
    addr.raw().0 & ADDR_MASK | if matches!(addr, FrameAddr::Return(_)) { RETURN } else { 0 }
}

/// Whether code can lie at `addr` at all: the canonical addresses. Others are not kept by [`StackTable`].
pub const fn is_canonical(addr: Addr) -> bool {
    sign_extend(addr.0) == addr.0
}

/// A node of a [`StackTable`] as it is kept: one frame, or what stands for the end of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StackNode {
    /// The stack without it.
    pub parent: StackId,
    /// The address in bits 0 to 56 (sign-extended), and flags: 57 it is a return address, 58 it or one further in was
    /// guessed, 59 it is no frame but the end of the walk, 60 with 59: the walk was cut off.
    pub word: u64,
    /// The module that the address lies in.
    pub module: ModuleId,
}

impl StackNode {
    /// The frame that the node adds to its parent; None for the end of a walk.
    pub fn frame(self) -> Option<Frame> {
        let word = self.word;
        if word & END != 0 {
            return None;
        }
        let addr = Addr(sign_extend(word));
        let addr = if word & RETURN != 0 { FrameAddr::Return(addr) } else { FrameAddr::Instruction(addr) };
        Some(Frame { addr, module: self.module })
    }
}

/// All stacks seen in one process.
///
/// A stack is identified by addresses, their modules and how its frames were found; two walks of the same call chain
/// give the same id if and only if they are of the same quality.
#[derive(Clone, Debug, Default)]
pub struct StackTable {
    /// The root comes with the first frame: an empty table takes no memory.
    nodes: Nodes,
    frames: Frames,
    /// Of the nodes that neither stand right behind their parents nor are in a list.
    index: Index,
}

impl StackTable {
    /// A table that holds the empty stack only.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy that shares its memory with this one until one of them changes: some hundred reference counts for a
    /// million nodes.
    pub fn view(&mut self) -> Self {
        Self { nodes: self.nodes.view(), frames: self.frames.view(), index: self.index.view() }
    }

    /// The stack `parent` with one more frame, the caller of its outermost one. `guessed`: the frame was found by its
    /// frame pointer, not by CFI. The address must be canonical ([`is_canonical`]). After four billion nodes
    /// `parent` itself is returned.
    pub fn child(&mut self, parent: StackId, frame: Frame, guessed: bool) -> StackId {
        let inherited = self.word(parent) & GUESSED;
        let word = word_of(frame.addr) | inherited | if guessed { GUESSED } else { 0 };
        self.intern(parent, word, frame.module)
    }

    /// The number that this frame has in stacks of which no frame was guessed.
    pub(super) fn number_of(&mut self, frame: Frame) -> u32 {
        self.frames.number(word_of(frame.addr), frame.module)
    }

    /// Whether a frame of `stack` was guessed.
    pub(super) fn is_guessed(&self, stack: StackId) -> bool {
        self.word(stack) & GUESSED != 0
    }

    /// As [`Self::child`], with the frame that has this number ([`Self::number_of`]): none is looked for.
    #[inline]
    pub(super) fn numbered_child(&mut self, parent: StackId, number: u32) -> StackId {
        let behind = parent.0.wrapping_add(1);
        if behind as usize == self.nodes.len() {
            self.nodes.push_behind(number);
            return StackId(behind);
        }
        if behind != 0 && self.nodes.frame(behind) == Some(number) && self.nodes.parent(behind) == parent.0 {
            return StackId(behind);
        }
        self.intern_numbered(parent, number)
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
        let word = self.word(stack);
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
        let mut frames: Vec<_> = self.path(stack).filter_map(StackNode::frame).collect();
        frames.reverse();
        frames
    }

    /// Adds the numbers of the frames of `stack` to `numbers`, innermost first; the mark of a walk's end has one, too.
    /// Two frames
    /// have the same number if they are the same, and were found in the same way.
    pub fn add_frame_numbers(&self, stack: StackId, numbers: &mut Vec<u32>) {
        let start = numbers.len();
        let mut at = stack.0;
        while at != 0
            && let Some(frame) = self.nodes.frame(at)
        {
            numbers.push(frame);
            at = self.nodes.parent(at);
        }
        numbers.get_mut(start..).unwrap_or_default().reverse();
    }

    /// All numbers that [`Self::add_frame_numbers`] gives for these stacks, each once, ascending. Looks at each node
    /// once, however
    /// many stacks it is in.
    pub fn frame_numbers_of_all(&self, stacks: &[StackId]) -> Vec<u32> {
        let mut nodes = vec![false; self.nodes.len()];
        let mut frames = vec![false; self.frames.len()];
        for stack in stacks {
            let mut last = stack.0;
            while last != 0 && (last as usize) < nodes.len() {
                // of a run those from its beginning on are seen first
                let begin = self.nodes.begin_of_run(last);
                let run = nodes.get_mut(begin as usize..=last as usize).unwrap_or_default();
                let seen = run.iter().rposition(|is_seen| *is_seen).map_or(0, |latest| latest + 1);
                run.get_mut(seen..).unwrap_or_default().fill(true);
                for number in self.nodes.frames_of_run(begin..=last).get(seen..).unwrap_or_default() {
                    frames.get_mut(*number as usize).into_iter().for_each(|is_seen| *is_seen = true);
                }
                if seen > 0 {
                    break;
                }
                last = self.nodes.parent(begin);
            }
        }
        (0..).zip(frames).filter(|(_, is_seen)| *is_seen).map(|(number, _)| number).collect()
    }

    /// The frame with this number, if it is of one.
    pub fn frame_of_number(&self, number: u32) -> Option<Frame> {
        let (word, module) = self.frames.get(number);
        let node = StackNode { parent: StackId::EMPTY, word, module };
        if number == 0 || number as usize >= self.frames.len() { None } else { node.frame() }
    }

    /// Copies these stacks to another table, each frame as `moved` has it there; qualities stay. Returns which id each
    /// stack, and each beginning of one, has in the other.
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
                at = self.node(at).parent;
            };
            for old in missing.into_iter().rev() {
                let node = self.node(old);
                let StackNode { mut word, mut module, .. } = node;
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

    /// The nodes from the id `first` on, each with its own, in the order in which they came: parents first. (The empty
    /// stack has none.)
    pub fn nodes_from(&self, first: u32) -> impl Iterator<Item = (StackId, StackNode)> {
        let end = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        (first.max(1)..end).map(|id| (StackId(id), self.node(StackId(id))))
    }

    /// Whether there is such a stack that is not empty. Reads none of it: it is asked at each call.
    pub const fn contains(&self, stack: StackId) -> bool {
        stack.0 != StackId::EMPTY.0 && (stack.0 as usize) < self.nodes.len()
    }

    /// The node of a stack; None of the empty one, and of ids that were never given.
    pub fn get(&self, stack: StackId) -> Option<StackNode> {
        let frame = self.nodes.frame(stack.0).filter(|_| stack != StackId::EMPTY)?;
        let (word, module) = self.frames.get(frame);
        Some(StackNode { parent: StackId(self.nodes.parent(stack.0)), word, module })
    }

    /// The stack that `node` makes of its parent. A table that gets the nodes of another one in their order
    /// ([`Self::nodes_from`]) has them under the same ids. A parent that is not there counts as the empty stack.
    pub fn insert(&mut self, node: StackNode) -> StackId {
        let parent = if (node.parent.0 as usize) < self.nodes.len() { node.parent } else { StackId::EMPTY };
        self.intern(parent, node.word, node.module)
    }

    /// The number of frames of `stack`.
    pub fn depth(&self, stack: StackId) -> u32 {
        self.path(stack).map(|node| u32::from(node.word & END == 0)).sum()
    }

    /// The stack without its outermost frame (or without its mark of truncation); None for the empty one.
    #[cfg(test)]
    pub fn parent(&self, stack: StackId) -> Option<StackId> {
        (stack != StackId::EMPTY).then(|| self.node(stack).parent)
    }

    /// The number of nodes, the root included: every id is below.
    #[cfg(test)]
    pub fn node_count(&self) -> usize {
        self.nodes.len().max(1)
    }

    /// Bytes of memory that the table holds, unused slots included.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.nodes.bytes() + self.frames.bytes() + self.index.bytes()
    }

    /// The node of a stack; of the empty one, and of ids that were never given, an empty one.
    fn node(&self, stack: StackId) -> StackNode {
        self.get(stack).unwrap_or(StackNode { parent: StackId::EMPTY, word: 0, module: ModuleId(0) })
    }

    /// See [`StackNode::word`]; 0 of the empty stack, and of ids that were never given.
    fn word(&self, stack: StackId) -> u64 {
        self.nodes.frame(stack.0).map_or(0, |frame| self.frames.get(frame).0)
    }

    /// The nodes from `stack` down to the innermost frame.
    fn path(&self, stack: StackId) -> impl Iterator<Item = StackNode> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let node = self.get(at)?;
            at = node.parent;
            Some(node)
        })
    }

    fn intern(&mut self, parent: StackId, word: u64, module: ModuleId) -> StackId {
        if self.nodes.len() == 0 {
            self.nodes.push(0, None);
        }
        let nodes = &self.nodes;
        // An id that was never given has no node behind it, either.
        let behind = parent.0.wrapping_add(1);
        let is_behind = |frame: u32| self.frames.is(frame, word, module) && nodes.parent(behind) == parent.0;
        if behind != 0 && nodes.frame(behind).is_some_and(is_behind) {
            return StackId(behind);
        }
        if u32::try_from(nodes.len()).is_err() {
            return parent;
        }
        let frame = self.frames.number(word, module);
        self.intern_numbered(parent, frame)
    }

    /// The child of `parent` with this frame, which does not stand right behind it unless it is new.
    fn intern_numbered(&mut self, parent: StackId, frame: u32) -> StackId {
        if self.nodes.len() == 0 {
            self.nodes.push(0, None);
        }
        let nodes = &self.nodes;
        let Ok(id) = u32::try_from(nodes.len()) else { return parent };
        // The latest node has no child yet.
        if parent.0.wrapping_add(1) == id {
            self.nodes.push(frame, None);
            return StackId(id);
        }
        let is_it = |at: u32| nodes.frame(at) == Some(frame) && nodes.parent(at) == parent.0;
        let length = match nodes.listed(parent.0, is_it) {
            Ok(known) => return StackId(known),
            Err(length) => length,
        };
        if length < MAX_LISTED {
            self.nodes.push(frame, Some(parent.0));
            self.nodes.list(parent.0, id);
            return StackId(id);
        }
        let hash = hash_of_node(parent.0, frame);
        if let Some(known) = self.index.find(nodes, hash, is_it) {
            return StackId(known);
        }
        self.nodes.push(frame, Some(parent.0));
        self.index.enter(&mut self.nodes, hash, id);
        StackId(id)
    }
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
        assert_eq!(copy.nodes.len(), table.nodes.len());
        assert!(copy.nodes_from(0).eq(table.nodes_from(0)));
        let last = u32::try_from(table.nodes.len()).unwrap() - 1;
        assert_eq!(table.nodes_from(last).map(|(id, _)| id).collect::<Vec<_>>(), [StackId(last)]);
        assert_eq!(copy.frames(StackId(last)), table.frames(StackId(last)));
    }

    /// The numbers of frames stand for the frames, and those of many stacks are each there once.
    #[test]
    fn frames_have_numbers() {
        let mut table = StackTable::new();
        let mut stacks = Vec::new();
        for n in 0..3_000u64 {
            let inner = table.child(StackId::EMPTY, frame(0x1000 + n % 30), n % 7 == 0);
            let stack = table.child(inner, frame(n * n % 977), false);
            stacks.push(if n % 11 == 0 { table.truncated(stack) } else { stack });
        }
        let some: Vec<StackId> = stacks.iter().copied().step_by(50).collect();
        let (mut numbers, mut all, mut path) = (Vec::new(), std::collections::BTreeSet::new(), StackPath::default());
        for stack in &some {
            numbers.clear();
            numbers.push(7);
            table.add_frame_numbers(*stack, &mut numbers);
            assert_eq!(numbers.remove(0), 7, "what was there stays");
            table.follow(*stack, &mut path);
            assert_eq!(path.numbers(), numbers);
            let frames: Vec<Frame> = numbers.iter().filter_map(|number| table.frame_of_number(*number)).collect();
            assert_eq!(frames, table.frames(*stack));
            all.extend(numbers.iter().copied());
        }
        assert_eq!(table.frame_numbers_of_all(&some), Vec::from_iter(all));
        assert_eq!((table.frame_of_number(0), table.frame_of_number(1 << 30)), (None, None));
        assert!(table.frame_numbers_of_all(&[StackId::EMPTY, StackId::EXISTING, StackId(1 << 30)]).is_empty());
    }

    /// Whatever the order of the stacks, and also of those that there are not.
    #[test]
    fn a_path_has_the_frames_of_the_stack_that_was_followed_last() {
        let mut table = StackTable::new();
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut stacks = vec![StackId::EMPTY, StackId::EXISTING, StackId(1 << 30)];
        for _ in 0..2_000 {
            let parent = stacks[stacks.len().saturating_sub(1 + random(12))];
            let parent = if table.contains(parent) { parent } else { StackId::EMPTY };
            stacks.push(table.child(parent, frame(0x1000 + random(5) as u64), false));
        }
        let (mut path, mut numbers) = (StackPath::default(), Vec::new());
        for round in 0..6_000 {
            let stack = if round < stacks.len() { stacks[round] } else { stacks[random(stacks.len())] };
            table.follow(stack, &mut path);
            numbers.clear();
            table.add_frame_numbers(stack, &mut numbers);
            assert_eq!(path.numbers(), numbers);
        }
        assert!(table.depth(stacks[2_000]) > 20);
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

    /// 16 new frames each, of some hundred functions: with a site of the model's a new stack is to take 200 bytes.
    #[test]
    fn new_stacks_of_known_frames_take_few_bytes() {
        let mut table = StackTable::new();
        let before = table.memory();
        for number in 0..20_000u64 {
            let mut stack = StackId::EMPTY;
            for depth in 0..16 {
                let choice = if depth < 6 { number >> (3 * depth) & 7 } else { depth };
                stack = table.child(stack, frame(0x40_0000 + depth * 256 + choice), false);
            }
        }
        let each = (table.memory() - before) / 20_000;
        assert!(each < 80, "{each} bytes");
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
        let longest = table.index.longest(&table.nodes);
        assert!(longest < 20, "longest chain {longest}");
    }
}
