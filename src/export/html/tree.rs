//! The call tree of all sites: a node for each function on each way to it, whatever the lines.

use super::super::json::frames::{FrameTable, ReportFrame};
use super::super::view::{StackTotals, View};
use crate::profile::Profile;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::hash::Hash;

/// The nodes in preorder. The first one is the root, which has no frame.
#[derive(Debug, Default)]
pub(super) struct CallTree {
    /// How far each node is from the root.
    pub depths: Vec<u32>,
    /// An index into the table of frames for each node: the first frame that was found for it.
    pub frames: Vec<u32>,
    /// The node of each site of the view.
    pub of_site: Vec<u32>,
    /// Those of the stacks of heaps on the way.
    pub of_stack: FxHashMap<usize, u32>,
}

/// A node while the tree grows. Callers come before those whom they call.
struct TrieNode {
    parent: u32,
    /// What it is: function, file and module.
    place: u32,
    frame: u32,
    total: u64,
}

impl CallTree {
    /// The tree of the view's sites: `places` says of each frame which node it is ([`by_place`], [`by_name`]). Of those
    /// that one function calls, those come first whose sites have most by `weigh`.
    pub fn new(view: &View<'_>, table: &FrameTable<'_>, places: &[u32], weigh: impl Fn(&StackTotals) -> u64) -> Self {
        let mut nodes = vec![TrieNode { parent: 0, place: u32::MAX, frame: 0, total: 0 }];
        let mut known: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut stack: Vec<u32> = Vec::new();
        let mut enter = |index: usize, bytes: u64| {
            stack.clear();
            stack.extend(table.stack(index));
            let mut at = 0;
            for frame in stack.iter().rev() {
                let place = places.get(*frame as usize).copied().unwrap_or(u32::MAX);
                let next = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                let node = *known.entry((at, place)).or_insert(next);
                if node == next {
                    nodes.push(TrieNode { parent: at, place, frame: *frame, total: 0 });
                }
                at = node;
            }
            if let Some(node) = nodes.get_mut(at as usize) {
                node.total = node.total.saturating_add(bytes);
            }
            at
        };
        let of_site = view.sites().iter().map(|site| enter(site.stack, weigh(&site))).collect();
        let of_stack = stacks_of_heaps(view.profile).map(|stack| (stack, enter(stack, 0))).collect();
        for index in (1..nodes.len()).rev() {
            let Some((parent, total)) = nodes.get(index).map(|node| (node.parent, node.total)) else { continue };
            if let Some(parent) = nodes.get_mut(parent as usize) {
                parent.total = parent.total.saturating_add(total);
            }
        }
        Self::in_order(&nodes, (of_site, of_stack), table)
    }

    fn in_order(nodes: &[TrieNode], leaves: (Vec<u32>, FxHashMap<usize, u32>), table: &FrameTable<'_>) -> Self {
        let name = |node: &TrieNode| table.frames().get(node.frame as usize).map_or("", |frame| frame.function);
        let mut children: Vec<u32> = (1..nodes.len() as u32).collect();
        children.sort_by_key(|index| {
            nodes.get(*index as usize).map(|node| (node.parent, Reverse(node.total), name(node), node.place))
        });
        let parent_of = |child: u32| nodes.get(child as usize).map_or(0, |node| node.parent);
        let mut tree = Self::default();
        let mut order = vec![0u32; nodes.len()];
        let mut waiting = vec![(0u32, 0u32)];
        while let Some((index, depth)) = waiting.pop() {
            if let Some(number) = order.get_mut(index as usize) {
                *number = tree.depths.len() as u32;
            }
            tree.depths.push(depth);
            tree.frames.push(nodes.get(index as usize).map_or(0, |node| node.frame));
            let begin = children.partition_point(|child| parent_of(*child) < index);
            let end = children.partition_point(|child| parent_of(*child) <= index);
            let below = children.get(begin..end).unwrap_or_default();
            waiting.extend(below.iter().rev().map(|child| (*child, depth + 1)));
        }
        (tree.of_site, tree.of_stack) = leaves;
        for node in tree.of_site.iter_mut().chain(tree.of_stack.values_mut()) {
            *node = order.get(*node as usize).copied().unwrap_or_default();
        }
        tree
    }
}

/// The stacks of the heaps that are known of moments on the way, each once.
pub(super) fn stacks_of_heaps(profile: &Profile) -> impl Iterator<Item = usize> {
    let stacks: BTreeSet<usize> =
        profile.course.heaps.iter().flat_map(|heap| &heap.stacks).map(|(stack, ..)| *stack).collect();
    stacks.into_iter()
}

/// For each frame a number for its function, file and module: lines and addresses make no difference.
pub(super) fn by_place(table: &FrameTable<'_>) -> Vec<u32> {
    numbered(
        table.frames().iter().map(|ReportFrame { function, file, module, .. }| (*function, *file, module.as_deref())),
    )
}

/// For each frame a number for its function's name: builds compare whose files are elsewhere.
pub(super) fn by_name(table: &FrameTable<'_>) -> Vec<u32> {
    numbered(table.frames().iter().map(|frame| frame.function))
}

/// Equal ones have the same number.
fn numbered<T: Eq + Hash>(all: impl Iterator<Item = T>) -> Vec<u32> {
    let mut known: FxHashMap<T, u32> = FxHashMap::default();
    all.map(|one| {
        let next = known.len() as u32;
        *known.entry(one).or_insert(next)
    })
    .collect()
}
