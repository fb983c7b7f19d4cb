//! The trie of stacks as the routine walks it: which of the tracer's stacks are published in the shared region, and
//! how.
//!
//! A node has the number of its stack in the tracer's table. Only the tracer writes nodes, while threads walk them:
//! `ra` last, and a table of the index that grows is whole before it is told of.

use super::layout::{
    Form, INDEX_AREA, INDEX_LEAST, INDEX_MOST, INDEX_WORD, IS_NEXT, LARGEST_FRAME, NODE_AREA, NODE_DEPTH, NODE_FORM,
    NODE_HINT, NODE_OFFSET, NODE_PARENT, NODE_RA, NODE_SIZE, NODE_STACK, NODES, RBP_SAME, index_slot,
};
use super::shared::Shared;

/// How the routine goes on from a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallerRule {
    /// It does not know: it makes a copy.
    Unknown,
    /// To the caller, by one of the first three forms.
    Caller {
        /// Which.
        form: Form,
        /// Bytes from the form's base.
        offset: i32,
        /// Where the caller's rbp is saved, in words; [`RBP_SAME`]: nowhere.
        rbp: i16,
    },
    /// Nowhere: the walk ends, and the stack is this one.
    End(u32),
}

impl CallerRule {
    /// The routine does not look whether an offset of the stack pointer can be true.
    fn checked(self) -> Self {
        match self {
            Self::Caller { form: Form::Rsp, offset, .. } if !(1..=LARGEST_FRAME as i64).contains(&offset.into()) => {
                Self::Unknown
            }
            other => other,
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Nodes {
    /// The nodes that are published, by number.
    published: Vec<Published>,
    /// How many of them are in the index.
    indexed: u64,
    slots: u64,
    /// Nodes that found no room, and the latest of these: they have ascending numbers.
    refused: u64,
    latest_refused: u32,
}

#[derive(Clone, Copy, Default, Debug)]
struct Published {
    parent: u32,
    /// The depth, and [`INDEXED`] and [`WALKED`].
    depth_and_flags: u32,
    ra: u64,
}

const _: () = assert!(size_of::<Published>() == 16);

const INDEXED: u32 = 1 << 31;
const WALKED: u32 = 1 << 30;

impl Published {
    fn new(parent: u32, ra: u64, depth: u32, is_indexed: bool, is_walked: bool) -> Self {
        let flags = if is_indexed { INDEXED } else { 0 } | if is_walked { WALKED } else { 0 };
        Self { parent, depth_and_flags: depth & !(INDEXED | WALKED) | flags, ra }
    }

    const fn depth(self) -> u32 {
        self.depth_and_flags & !(INDEXED | WALKED)
    }

    const fn is_indexed(self) -> bool {
        self.depth_and_flags & INDEXED != 0
    }

    const fn is_walked(self) -> bool {
        self.depth_and_flags & WALKED != 0
    }
}

impl Nodes {
    /// None but the empty stack, in a region that holds zeros.
    pub fn new(shared: &impl Shared) -> Self {
        let nodes = Self { published: Vec::new(), indexed: 0, slots: INDEX_LEAST, refused: 0, latest_refused: 0 };
        nodes.tell_index(shared);
        nodes
    }

    /// Whether the stack `id` can't have a node, as there are too many.
    #[inline]
    pub const fn has_no_room(id: u32) -> bool {
        id as u64 >= NODES
    }

    /// How many nodes found no room.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether the stack `id` is known to the routine.
    pub fn is_published(&self, id: u32) -> bool {
        id == 0 || self.published.get(id as usize).is_some_and(|node| node.ra != 0)
    }

    /// The numbers of all published nodes.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.published.iter().enumerate().filter(|(_, node)| node.ra != 0).map(|(id, _)| id as u32)
    }

    /// Publishes the stack `id`: `parent` with a frame at `ra`. The parent must be published. False if there is no
    /// room, or it was.
    #[inline]
    pub fn publish(&mut self, shared: &impl Shared, id: u32, parent: u32, ra: u64, onward: CallerRule) -> bool {
        if Self::has_no_room(id) {
            self.refuse(id);
            return false;
        }
        self.publish_there(shared, id, parent, ra, onward)
    }

    fn publish_there(&mut self, shared: &impl Shared, id: u32, parent: u32, ra: u64, onward: CallerRule) -> bool {
        if ra == 0 || self.is_published(id) || !self.is_published(parent) {
            return false;
        }
        let is_indexed = needs_index(shared, id, parent);
        if is_indexed && 2 * (self.indexed + 1) > self.slots && !self.grow(shared) {
            self.refuse(id);
            return false;
        }
        let index = id as usize;
        if self.published.len() <= index {
            self.published.resize(index + 1, Published::default());
        }
        let onward = onward.checked();
        let depth = self.published.get(parent as usize).map_or(0, |node| node.depth()) + 1;
        if let Some(node) = self.published.get_mut(index) {
            *node = Published::new(parent, ra, depth, is_indexed, matches!(onward, CallerRule::Caller { .. }));
        }
        let at = node_at(id);
        shared.set_half(at + NODE_PARENT, parent);
        shared.set_half(at + NODE_HINT, 0);
        shared.set_half(at + NODE_DEPTH, depth);
        write_onward(shared, at, onward);
        shared.set_word(at + NODE_RA, ra);
        if is_indexed {
            self.enter(shared, id, parent, ra);
            self.indexed += 1;
        } else if id != parent + 1 {
            shared.set_half(node_at(parent) + NODE_HINT, id);
        }
        self.tell_next(shared, id, true);
        true
    }

    /// Tells the node before this one, if that is its parent's, whether its caller's node is the next one.
    fn tell_next(&self, shared: &impl Shared, id: u32, is_next: bool) {
        let Some(node) = self.published.get(id as usize).filter(|node| node.parent + 1 == id && node.parent != 0)
        else {
            return;
        };
        let form = node_at(node.parent) + NODE_FORM;
        let rest = shared.half(form) & !IS_NEXT;
        shared.set_half(form, rest | if is_next { IS_NEXT } else { 0 });
    }

    /// Whether the routine knows the way from the node's frame to its caller.
    pub fn is_walked(&self, id: u32) -> bool {
        self.published.get(id as usize).is_some_and(|node| node.is_walked())
    }

    #[inline]
    fn refuse(&mut self, id: u32) {
        if id > self.latest_refused {
            self.latest_refused = id;
            self.refused += 1;
        }
    }

    /// The walk that comes to the published node `id` ends there, with the stack `stack`.
    pub fn end_at(&self, shared: &impl Shared, id: u32, stack: u32) {
        if id != 0 && self.is_published(id) {
            write_onward(shared, node_at(id), CallerRule::End(stack));
        }
    }

    /// The node matches nothing any more: what was at its address is gone. Its number is not used again.
    pub fn forget(&mut self, shared: &impl Shared, id: u32) {
        self.tell_next(shared, id, false);
        if let Some(node) = self.published.get_mut(id as usize) {
            node.ra = 0;
            shared.set_word(node_at(id) + NODE_RA, 0);
        }
    }

    /// Enters a node into the table of the index that is in use.
    fn enter(&self, shared: &impl Shared, id: u32, parent: u32, ra: u64) {
        let mask = self.slots - 1;
        let first = index_slot(parent, ra, mask);
        // half the slots are free, unless the program writes there
        for step in 0..self.slots {
            let slot = INDEX_AREA + 4 * (self.slots + ((first + step) & mask));
            if shared.half(slot) == 0 {
                shared.set_half(slot, id);
                return;
            }
        }
    }

    /// Makes a table of twice the slots and tells of it. False if it is the largest, and three quarters full.
    fn grow(&mut self, shared: &impl Shared) -> bool {
        if self.slots >= INDEX_MOST {
            return 4 * (self.indexed + 1) <= 3 * self.slots;
        }
        self.slots *= 2;
        for (id, node) in self.published.iter().enumerate().filter(|(_, node)| node.ra != 0 && node.is_indexed()) {
            self.enter(shared, id as u32, node.parent, node.ra);
        }
        self.tell_index(shared);
        true
    }

    fn tell_index(&self, shared: &impl Shared) {
        shared.set_word(INDEX_WORD, (self.slots - 1) << 32 | (INDEX_AREA + 4 * self.slots));
    }
}

/// Whether a new node must be in the index: it is neither right behind its parent, where the walk looks first, nor its
/// parent's hint. Children of the empty stack are looked for in the index alone where frees are not walked.
fn needs_index(shared: &impl Shared, id: u32, parent: u32) -> bool {
    parent == 0 || id != parent + 1 && shared.half(node_at(parent) + NODE_HINT) != 0
}

/// Where a node begins in the shared region.
const fn node_at(id: u32) -> u64 {
    NODE_AREA + id as u64 * NODE_SIZE
}

fn write_onward(shared: &impl Shared, at: u64, onward: CallerRule) {
    if let CallerRule::End(stack) = onward {
        shared.set_half(at + NODE_STACK, stack);
    }
    write_rule(shared, at + NODE_FORM, onward);
}

/// Writes how the walk goes on, as it stands in a node from [`NODE_FORM`] on, to `at`.
pub(super) fn write_rule(shared: &(impl Shared + ?Sized), at: u64, onward: CallerRule) {
    let (form, rbp) = match onward {
        CallerRule::Unknown => (Form::Unknown, RBP_SAME),
        CallerRule::Caller { form, offset, rbp } => {
            shared.set_half(at + (NODE_OFFSET - NODE_FORM), offset.cast_unsigned());
            (form, rbp)
        }
        CallerRule::End(_) => (Form::End, RBP_SAME),
    };
    // form in the low byte, rbp in the upper half
    shared.set_half(at, form as u32 | u32::from(rbp.cast_unsigned()) << 16);
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::Made;
    use super::*;
    use std::collections::HashMap;

    /// A look-up as the routine does it, from the region alone.
    fn find(shared: &Made, parent: u32, ra: u64) -> Option<u32> {
        let hint = shared.half(node_at(parent) + NODE_HINT);
        let matches = |id: u32| shared.word(node_at(id)) == ra && shared.half(node_at(id) + NODE_PARENT) == parent;
        for id in [parent + 1, hint] {
            if id != 0 && matches(id) {
                return Some(id);
            }
        }
        let word = shared.word(INDEX_WORD);
        let (base, mask) = (word & 0xffff_ffff, word >> 32);
        let mut slot = index_slot(parent, ra, mask);
        loop {
            match shared.half(base + 4 * slot) {
                0 => return None,
                id if matches(id) => return Some(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    #[test]
    fn each_node_is_found_while_the_index_grows() {
        let shared = Made::default();
        let mut nodes = Nodes::new(&shared);
        let mut known: HashMap<(u32, u64), u32> = HashMap::new();
        for id in 1..20_000u32 {
            let (parent, ra) = (id / 3, 0x40_0000 + u64::from(id % 7) * 16 + u64::from(id) * 4096);
            assert!(nodes.publish(&shared, id, parent, ra, CallerRule::Unknown));
            assert!(!nodes.publish(&shared, id, parent, ra, CallerRule::Unknown), "twice");
            known.insert((parent, ra), id);
        }
        for (&(parent, ra), &id) in &known {
            assert_eq!(find(&shared, parent, ra), Some(id));
            assert_eq!(find(&shared, parent, ra + 1), None);
        }
        nodes.forget(&shared, 77);
        let (&(parent, ra), _) = known.iter().find(|(_, id)| **id == 77).unwrap();
        assert_eq!(find(&shared, parent, ra), None);
        assert!(!nodes.is_published(77) && nodes.iter().count() == 19_998);
    }

    /// `main` calls in a quarter of a million stacks: each of its nodes begins a search of its own, mostly.
    #[test]
    fn nodes_of_one_return_address_are_spread_over_the_index() {
        let slots = (1..250_000).map(|parent| index_slot(parent, 0x7f34_5678_9abc, (1 << 19) - 1));
        let different = slots.collect::<std::collections::HashSet<_>>().len();
        assert!(different > 180_000, "{different}");
    }

    #[test]
    fn what_has_no_parent_or_no_room_stays_unknown() {
        let shared = Made::default();
        let mut nodes = Nodes::new(&shared);
        assert!(!nodes.publish(&shared, 5, 4, 0x1000, CallerRule::Unknown), "the parent is not there");
        assert!(!nodes.publish(&shared, NODES as u32, 0, 0x1000, CallerRule::Unknown));
        assert!(nodes.publish(&shared, NODES as u32 - 1, 0, 0x1000, CallerRule::Unknown));
        assert!(!nodes.publish(&shared, NODES as u32, 0, 0x1000, CallerRule::Unknown));
        assert_eq!(nodes.refused(), 1, "the same stack");
        assert!(!nodes.publish(&shared, NODES as u32 + 1, 0, 0x2000, CallerRule::Unknown));
        assert_eq!(nodes.refused(), 2);
    }

    #[test]
    fn a_node_says_whether_the_next_one_is_a_callers() {
        let shared = Made::default();
        let mut nodes = Nodes::new(&shared);
        let onward = |offset| CallerRule::Caller { form: Form::Rsp, offset, rbp: RBP_SAME };
        let form = |id: u32| shared.half(node_at(id) + NODE_FORM);
        for (id, parent) in [(1, 0), (2, 1), (4, 2), (3, 1)] {
            assert!(nodes.publish(&shared, id, parent, 0x1000 * u64::from(id), onward(32)));
        }
        let plain = super::super::layout::FORM_PLAIN;
        assert_eq!([1, 2, 3, 4].map(|id| form(id) == plain), [true, false, false, false]);
        assert_eq!(form(2), plain & !IS_NEXT);
        assert!(nodes.publish(&shared, 5, 4, 0x5000, CallerRule::Unknown));
        assert_eq!((form(4), form(5) & 0xffff), (plain, 0));
        nodes.forget(&shared, 2);
        nodes.forget(&shared, 4);
        assert_eq!((form(1), form(4)), (plain & !IS_NEXT, plain));
        for (id, offset) in [(6, 0), (7, -8), (8, LARGEST_FRAME as i32 + 1)] {
            assert!(nodes.publish(&shared, id, 0, 0x1000 * u64::from(id), onward(offset)));
            assert_eq!(form(id) & 0xff, Form::Unknown as u32, "no frame has such a size");
        }
    }

    #[test]
    fn a_node_says_how_to_go_on() {
        let shared = Made::default();
        let mut nodes = Nodes::new(&shared);
        let onward = CallerRule::Caller { form: Form::LoadRbp, offset: -8, rbp: -2 };
        assert!(nodes.publish(&shared, 1, 0, 0x1000, onward));
        let at = node_at(1);
        let mut bytes = [0; NODE_SIZE as usize];
        assert!(shared.copy_out(at, &mut bytes));
        assert_eq!(bytes[..8], 0x1000u64.to_le_bytes());
        assert_eq!(bytes[NODE_FORM as usize], 3);
        assert_eq!(bytes[super::super::layout::NODE_RBP as usize..][..2], (-2i16).to_le_bytes());
        assert_eq!(bytes[NODE_OFFSET as usize..][..4], (-8i32).to_le_bytes());
        nodes.end_at(&shared, 1, 9);
        assert!(shared.copy_out(at, &mut bytes));
        assert_eq!((bytes[NODE_FORM as usize], bytes[NODE_STACK as usize]), (4, 9));
    }
}
