//! Who holds the blocks: roots by name, what each retains, what is lost.

use super::Sum;
use super::dominators::{self, Dominators, NONE, Successors};
use crate::addr::Addr;
use crate::leaks::{Graph, RootKind};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// So many holders are told by their names; what comes behind is told by one of them.
const MOST_HOLDERS: usize = 1 << 20;

/// So many pointers of holders are told by the members that they lie in.
const MOST_NAMED: usize = 1 << 20;

/// The name of the holder of what comes behind.
const OTHERS: &str = "other roots";

/// The name of what holds blocks that nothing leads to.
pub const LOST: &str = "(lost blocks)";

/// What holds blocks without being one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// `global `x` in program`, `stack of thread 12 (main)`.
    pub name: String,
    /// What would be free if it were gone.
    pub retained: Sum,
}

/// A pointer of a holder: its number, the block, and the variable's member that it lies in.
pub type RootEdge = (u32, u32, Option<Box<str>>);

/// What roots are called.
pub trait RootNames {
    /// Who holds what a root leads to, by what it is and where its pointer lies.
    fn holder(&mut self, kind: RootKind, addr: Option<Addr>) -> String;

    /// The member of a variable in which a pointer lies, with the variable's name: `g_server.keys._M_impl._M_start`.
    fn member(&mut self, addr: Addr) -> Option<String>;
}

impl<F: FnMut(RootKind, Option<Addr>) -> String> RootNames for F {
    fn holder(&mut self, kind: RootKind, addr: Option<Addr>) -> String {
        self(kind, addr)
    }

    fn member(&mut self, _: Addr) -> Option<String> {
        None
    }
}

/// All that was found. Nodes are numbered: blocks as in the graph, then holders, then the lost blocks' node, then the root of all.
#[derive(Clone, Debug)]
pub struct Holdings {
    /// The pointers.
    pub graph: Graph,
    /// In the order in which they were met.
    pub holders: Vec<Holder>,
    /// Which holder points to which block, by holder: holder, block.
    root_edges: Vec<(u32, u32)>,
    /// Of each of these the name of the variable's member that the first pointer lies in.
    root_names: Vec<Option<Box<str>>>,
    /// Blocks that no other lost block leads to, and one of each circle of such.
    lost_heads: Vec<u32>,
    dominators: Dominators,
    /// Of each node, itself included: bytes.
    retained: Vec<u64>,
    /// Blocks that a root leads to.
    pub reachable: Sum,
    /// The others.
    pub lost: Sum,
    /// Reachable blocks that no one holder retains, with what hangs on them.
    pub shared: Sum,
}

/// The graph with its holders. Its edges are numbered: those of blocks as in the graph, then those of holders, those to the heads of lost blocks, those of the root of all.
struct Nodes<'a> {
    graph: &'a Graph,
    holders: u32,
    root_edges: &'a [(u32, u32)],
    /// Where the edges of each holder begin, and where those of the last one end.
    starts: &'a [u32],
    lost_heads: &'a [u32],
    /// The numbers of the first edge of a holder, to a lost block, of the root.
    first: [u32; 3],
}

impl<'a> Nodes<'a> {
    /// Edges that no number is left for are left out, those of blocks first.
    fn new(
        graph: &'a Graph,
        holders: usize,
        root_edges: &'a [(u32, u32)],
        starts: &'a [u32],
        lost_heads: &'a [u32],
    ) -> Self {
        let mut left = (u32::MAX as usize).saturating_sub(holders + 1);
        let mut take = |edges: usize| {
            let taken = edges.min(left);
            left -= taken;
            taken as u32
        };
        let (lost, held, blocks) = (take(lost_heads.len()), take(root_edges.len()), take(graph.edge_count()));
        let first = [blocks, blocks + held, blocks + held + lost];
        Self { graph, holders: holders as u32, root_edges, starts, lost_heads, first }
    }

    fn blocks(&self) -> u32 {
        self.graph.blocks().len() as u32
    }

    fn lost(&self) -> u32 {
        self.blocks() + self.holders
    }
}

impl Successors for Nodes<'_> {
    fn nodes(&self) -> usize {
        self.lost() as usize + 2
    }

    fn edges(&self, node: u32) -> Range<u32> {
        let [held, lost, root] = self.first;
        let Some(holder) = node.checked_sub(self.blocks()) else {
            let edges = self.graph.edges_of(node);
            return edges.start.min(held)..edges.end.min(held);
        };
        match holder {
            holder if holder < self.holders => {
                let start = |holder: u32| self.starts.get(holder as usize).copied().unwrap_or(0);
                let number = |at: u32| held.saturating_add(at).min(lost);
                number(start(holder))..number(start(holder + 1))
            }
            holder if holder == self.holders => lost..root,
            // the root of all leads to holders and to the lost blocks
            _ => root..root + self.holders + 1,
        }
    }

    fn target(&self, edge: u32) -> u32 {
        let [held, lost, root] = self.first;
        let target = if edge < held {
            self.graph.target(edge)
        } else if edge < lost {
            self.root_edges.get((edge - held) as usize).map(|(_, block)| *block)
        } else if edge < root {
            self.lost_heads.get((edge - lost) as usize).copied()
        } else {
            Some(self.blocks() + (edge - root))
        };
        target.unwrap_or(NONE)
    }
}

impl Holdings {
    /// Finds them. What stacks and registers point to is held by them only where nothing else leads to it: such pointers come and go, and words of ended calls stay. `names`: what to call a root, by what it is and where its pointer lies.
    pub fn find(graph: Graph, names: &mut dyn RootNames) -> Self {
        let named = names;
        let mut names: Vec<String> = Vec::new();
        let mut known: FxHashMap<String, u32> = FxHashMap::default();
        let mut root_edges = Vec::new();
        let mut are_named = 0;
        let mut lasting = vec![false; graph.blocks().len()];
        let lasting_roots = graph.root_pointers().filter(|(kind, ..)| !is_passing(*kind));
        flood(&graph, lasting_roots.map(|(.., block)| block), &mut lasting);
        for (kind, addr, block) in graph.root_pointers() {
            if is_passing(kind) && lasting.get(block as usize) == Some(&true) {
                continue;
            }
            let mut called = named.holder(kind, addr);
            if names.len() >= MOST_HOLDERS && !known.contains_key(&called) {
                OTHERS.clone_into(&mut called);
            }
            let holder = *known.entry(called).or_insert_with_key(|called| {
                names.push(called.clone());
                names.len() as u32 - 1
            });
            let member = addr.filter(|_| are_named < MOST_NAMED).and_then(|addr| named.member(addr));
            are_named += usize::from(member.is_some());
            root_edges.push((holder, block, member.map(String::into_boxed_str)));
        }
        drop(known);
        Self::beyond(graph, names, root_edges, lasting)
    }

    /// The same of holders that are known: their names, and which of them point to which blocks, with the names of members.
    pub fn of(graph: Graph, names: Vec<String>, root_edges: Vec<RootEdge>) -> Self {
        let reached = vec![false; graph.blocks().len()];
        Self::beyond(graph, names, root_edges, reached)
    }

    /// The same where it is known of some blocks that roots lead to them.
    fn beyond(graph: Graph, names: Vec<String>, mut root_edges: Vec<RootEdge>, lasting: Vec<bool>) -> Self {
        // the first of several pointers gives the name
        root_edges.sort_by_key(|(holder, block, _)| (*holder, *block));
        root_edges.dedup_by_key(|(holder, block, _)| (*holder, *block));
        let (root_edges, root_names): (Vec<_>, Vec<_>) =
            root_edges.into_iter().map(|(holder, block, name)| ((holder, block), name)).unzip();
        let lost_heads = lost_heads(&graph, &root_edges, lasting);
        let starts: Vec<u32> =
            (0..=names.len() as u32).map(|holder| root_edges.partition_point(|edge| edge.0 < holder) as u32).collect();
        let nodes = Nodes::new(&graph, names.len(), &root_edges, &starts, &lost_heads);
        let root = nodes.lost() + 1;
        let dominators = dominators::find(&nodes, root);
        Self { root_names, ..Self::sum_up(graph, names, root_edges, lost_heads, dominators) }
    }

    fn sum_up(
        graph: Graph,
        names: Vec<String>,
        root_edges: Vec<(u32, u32)>,
        lost_heads: Vec<u32>,
        dominators: Dominators,
    ) -> Self {
        let blocks = graph.blocks();
        let first_holder = blocks.len();
        let lost = first_holder + names.len();
        let root = lost + 1;
        let mut retained: Vec<u64> = blocks.iter().map(|block| block.size).collect();
        retained.resize(root + 1, 0);
        let mut counts: Vec<u32> = vec![1; first_holder];
        counts.resize(root + 1, 0);
        let mut shared = Sum::default();
        for &node in dominators.order.iter().rev() {
            let node = node as usize;
            let by = dominators.idom.get(node).map_or(usize::MAX, |by| *by as usize);
            let (bytes, count) = (at(&retained, node), counts.get(node).copied().unwrap_or(0));
            if by == root && node < first_holder {
                shared.join(Sum { blocks: u64::from(count), bytes });
            }
            if let (Some(of), Some(number)) = (retained.get_mut(by), counts.get_mut(by)) {
                *of = of.saturating_add(bytes);
                *number = number.saturating_add(count);
            }
        }
        let sum =
            |node: usize| Sum { blocks: u64::from(counts.get(node).copied().unwrap_or(0)), bytes: at(&retained, node) };
        let holders = names.into_iter().enumerate();
        let holders = holders.map(|(number, name)| Holder { name, retained: sum(first_holder + number) }).collect();
        let (all, lost) = (sum(root), sum(lost));
        let reachable = Sum { blocks: all.blocks - lost.blocks, bytes: all.bytes.saturating_sub(lost.bytes) };
        let root_names = Vec::new();
        Self { holders, root_edges, root_names, lost_heads, retained, reachable, lost, shared, graph, dominators }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.retained.len()
    }

    /// The node of a holder, by its number.
    pub fn node_of(&self, holder: usize) -> usize {
        self.graph.blocks().len() + holder
    }

    /// The holder that a node is.
    pub fn holder_of(&self, node: usize) -> Option<&Holder> {
        self.holders.get(node.checked_sub(self.graph.blocks().len())?)
    }

    /// The node that lost blocks hang on.
    pub fn lost_node(&self) -> usize {
        self.graph.blocks().len() + self.holders.len()
    }

    /// What a node retains, itself included, in bytes.
    pub fn retained(&self, node: usize) -> u64 {
        at(&self.retained, node)
    }

    /// The node that retains another one at once; None: several holders have it.
    pub fn retainer(&self, node: usize) -> Option<usize> {
        let by = *self.dominators.idom.get(node).filter(|by| **by != NONE)? as usize;
        (by + 1 != self.nodes()).then_some(by)
    }

    /// All nodes that can be reached, each behind the one that retains it.
    pub fn order(&self) -> &[u32] {
        &self.dominators.order
    }

    /// The last of those who retain a node: a holder, the lost blocks' node, or a block that several holders have.
    pub fn last_retainer(&self, node: usize) -> Option<usize> {
        let mut at = node;
        let mut found = None;
        // a dominator's dominators come to an end
        while let Some(by) = self.retainer(at) {
            found = Some(by);
            at = by;
        }
        found
    }

    /// Of each block, the last of those who retain it, itself if nobody does.
    pub fn last_retainers(&self) -> Vec<u32> {
        let mut last: Vec<u32> = (0..self.nodes() as u32).collect();
        for &node in &self.dominators.order {
            if let Some(by) = self.retainer(node as usize) {
                let told = last.get(by).copied().unwrap_or(node);
                if let Some(slot) = last.get_mut(node as usize) {
                    *slot = told;
                }
            }
        }
        last.truncate(self.graph.blocks().len());
        last
    }

    /// The blocks that a holder points to.
    pub fn held_by(&self, holder: usize) -> impl Iterator<Item = u32> {
        let holder = holder as u32;
        let first = self.root_edges.partition_point(|edge| edge.0 < holder);
        self.root_edges.iter().skip(first).take_while(move |edge| edge.0 == holder).map(|edge| edge.1)
    }

    /// The member of a holder's variable in which its pointer to a block lies, with the variable's name.
    pub fn member(&self, holder: usize, block: u32) -> Option<&str> {
        let at = self.root_edges.binary_search(&(u32::try_from(holder).ok()?, block)).ok()?;
        self.root_names.get(at)?.as_deref()
    }

    /// Whether the member of any pointer of a holder is known.
    pub fn has_members(&self) -> bool {
        self.root_names.iter().any(Option::is_some)
    }

    /// Lost blocks that no other lost one leads to, and one of each circle of such.
    pub fn lost_heads(&self) -> &[u32] {
        &self.lost_heads
    }

    /// The numbers of the holders, those who retain most first.
    pub fn by_retained(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.holders.len()).collect();
        order.sort_by_key(|&number| {
            let holder = self.holders.get(number);
            holder.map(|holder| (std::cmp::Reverse(holder.retained.bytes), &holder.name))
        });
        order
    }
}

const fn is_passing(kind: RootKind) -> bool {
    matches!(kind, RootKind::Stack { .. } | RootKind::Register { .. })
}

fn at(of: &[u64], node: usize) -> u64 {
    of.get(node).copied().unwrap_or(0)
}

/// The blocks from which all that no root leads to can be reached, and none of which another one leads to: in two rounds, as a later one may lead to an earlier one. `reached`: what some roots lead to.
fn lost_heads(graph: &Graph, root_edges: &[(u32, u32)], mut reached: Vec<bool>) -> Vec<u32> {
    let blocks = graph.blocks().len() as u32;
    flood(graph, root_edges.iter().map(|(_, block)| *block), &mut reached);
    let mut seen = reached.clone();
    let mut heads: Vec<u32> = (0..blocks).filter(|&block| flood(graph, [block], &mut seen)).collect();
    seen = reached;
    heads.reverse();
    heads.retain(|&block| flood(graph, [block], &mut seen));
    heads.reverse();
    heads
}

/// Marks blocks and all that they lead to; whether any was not marked before. All ways are gone side by side: each step waits for memory that is in no cache, and the processor waits for many at once if none depends on another.
fn flood(graph: &Graph, blocks: impl IntoIterator<Item = u32>, marks: &mut [bool]) -> bool {
    let mut is_new = |block: &u32| marks.get_mut(*block as usize).is_some_and(|mark| !std::mem::replace(mark, true));
    let mut reached: Vec<u32> = blocks.into_iter().filter(&mut is_new).collect();
    let any = !reached.is_empty();
    let mut next = Vec::new();
    while !reached.is_empty() {
        for from in reached.drain(..) {
            next.extend(graph.targets(from).filter(&mut is_new));
        }
        std::mem::swap(&mut reached, &mut next);
    }
    any
}

#[cfg(test)]
mod tests;
