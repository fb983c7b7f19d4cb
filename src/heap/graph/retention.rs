//! Who retains whom, block by block: the tree of dominators, with the bytes that would be free without each node.

use super::dominators::{self, Dominators, NONE, Successors};
use crate::heap::leaks::Graph;
use std::ops::Range;

/// Nodes are numbered as in [`super::holders::Holdings`].
#[derive(Clone, Debug)]
pub struct Retention {
    dominators: Dominators,
    /// Of each node, itself included: bytes.
    retained: Vec<u64>,
}

impl Retention {
    /// Finds it for holders that point to blocks (`root_edges`: holder, block, sorted), and for lost blocks, which hang
    /// on their heads.
    pub(super) fn find(graph: &Graph, holders: usize, root_edges: &[(u32, u32)], lost_heads: &[u32]) -> Self {
        let starts: Vec<u32> =
            (0..=holders as u32).map(|holder| root_edges.partition_point(|edge| edge.0 < holder) as u32).collect();
        let nodes = Nodes::new(graph, holders, root_edges, &starts, lost_heads);
        let dominators = dominators::find(&nodes, nodes.lost() + 1);
        let mut retained: Vec<u64> = graph.blocks().iter().map(|block| block.size).collect();
        retained.resize(nodes.nodes(), 0);
        for &node in dominators.order.iter().rev() {
            let bytes = at(&retained, node as usize);
            let by = dominators.idom.get(node as usize).filter(|by| **by != NONE);
            if let Some(sum) = by.and_then(|by| retained.get_mut(*by as usize)) {
                *sum = sum.saturating_add(bytes);
            }
        }
        Self { dominators, retained }
    }

    /// What a node retains, itself included, in bytes.
    pub fn retained(&self, node: usize) -> u64 {
        at(&self.retained, node)
    }

    /// The node that retains another one at once; None: several holders have it.
    pub fn retainer(&self, node: usize) -> Option<usize> {
        let by = *self.dominators.idom.get(node).filter(|by| **by != NONE)? as usize;
        (by + 1 != self.retained.len()).then_some(by)
    }

    /// All nodes that can be reached, each behind the one that retains it.
    pub fn order(&self) -> &[u32] {
        &self.dominators.order
    }
}

fn at(of: &[u64], node: usize) -> u64 {
    of.get(node).copied().unwrap_or(0)
}

/// The graph with its holders. Its edges are numbered: those of blocks as in the graph, then those of holders, those to
/// the heads of lost blocks, those of the root of all.
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
