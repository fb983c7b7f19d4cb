//! Immediate dominators of a directed graph: the node that all ways from the root to another one pass last. What only
//! they lead to is *retained* by them.
//!
//! Semidominators are found as by T. Lengauer and R. E. Tarjan (A Fast Algorithm for Finding Dominators in a Flowgraph,
//! TOPLAS 1, 1979) with simple path compression. A node's immediate dominator is the nearest common ancestor, in the
//! tree of dominators so far, of its parent in the search and its semidominator (L. Georgiadis: Linear-Time Algorithms
//! for Dominators and Related Problems, 2005, "Semi-NCA"): that takes fewer tables than buckets do. The ancestor is
//! looked for over jump pointers (E. W. Myers: An Applicative Random-Access Stack, IPL 17, 1983), as the bare way up
//! may be as long as the graph. In all m log n steps, 32 bytes a node, 4 an edge, 12 more for each node that the search
//! has not done with, and nothing recursive.
//!
//! Most blocks of a heap need no search. A node that only one other leads to is dominated by it; if no way from it
//! leads back to what several lead to, it has no part in who dominates the rest. Such nodes, lists and trees with all
//! that hangs on them, are taken away first, from their ends on.

use std::ops::Range;

/// A node that is not there.
pub const NONE: u32 = u32::MAX;

/// What is asked of a graph. Its nodes and its edges are numbered from 0.
pub trait Successors {
    /// How many nodes it has.
    fn nodes(&self) -> usize;

    /// The numbers of the edges that lead from a node.
    fn edges(&self, node: u32) -> Range<u32>;

    /// The node that an edge leads to. Several edges of a node may lead to the same one.
    fn target(&self, edge: u32) -> u32;
}

/// Who dominates whom.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dominators {
    /// The nodes that can be reached, each behind the one that dominates it.
    pub order: Vec<u32>,
    /// Of each node its immediate dominator; [`NONE`] for the root and what can't be reached.
    pub idom: Vec<u32>,
}

/// Numbers by numbers; what lies outside is [`NONE`].
#[derive(Default)]
struct Table(Vec<u32>);

impl Table {
    fn new(len: usize) -> Self {
        Self(vec![NONE; len])
    }

    fn counting(len: usize) -> Self {
        Self((0..len as u32).collect())
    }

    #[inline]
    fn get(&self, at: u32) -> u32 {
        self.0.get(at as usize).copied().unwrap_or(NONE)
    }

    #[inline]
    fn set(&mut self, at: u32, value: u32) {
        if let Some(slot) = self.0.get_mut(at as usize) {
            *slot = value;
        }
    }
}

/// Finds them, from `root` on. Of a graph with 2^32 edges and more, the root is told as the dominator of all.
pub fn find(graph: &impl Successors, root: u32) -> Dominators {
    let outer = Outer::of(graph, root);
    let mut found = find_among(graph, root, &outer);
    outer.join(root, &mut found);
    found
}

/// Several nodes lead to a node.
const SEVERAL: u32 = NONE - 1;

/// The place of a node that is [`Outer`]: in no table.
const OUTER: u32 = NONE - 1;

/// The nodes that one other leads to, and that lead to nothing but such nodes.
struct Outer {
    /// Of each node the only one that leads to it; [`SEVERAL`]; [`NONE`] if none does.
    source: Table,
    /// They, those at the ends of ways first.
    nodes: Vec<u32>,
}

impl Outer {
    fn of(graph: &impl Successors, root: u32) -> Self {
        let nodes = graph.nodes();
        let (mut source, mut left) = (Table::new(nodes), Table(Vec::with_capacity(nodes)));
        for node in 0..nodes as u32 {
            // to how many nodes it leads that have not been taken away; one that several lead to is never
            let mut count = 0u32;
            for to in graph.edges(node).map(|edge| graph.target(edge)) {
                let Some(known) = source.0.get_mut(to as usize) else { continue };
                if *known != node {
                    count = count.saturating_add(1);
                    *known = if *known == NONE { node } else { SEVERAL };
                }
            }
            left.0.push(count);
        }
        // what can't be reached by any edge, and the root, are not theirs
        let is_outer = |source: &Table, node: u32| source.get(node) < SEVERAL && node != root;
        let mut outer: Vec<u32> =
            (0..nodes as u32).filter(|&node| left.get(node) == 0 && is_outer(&source, node)).collect();
        // all ends are followed side by side: the processor then waits for the memory of many at once
        let mut next = 0;
        while let Some(&node) = outer.get(next) {
            next += 1;
            let before = source.get(node);
            let count = left.get(before).wrapping_sub(1);
            left.set(before, count);
            if count == 0 && is_outer(&source, before) {
                outer.push(before);
            }
        }
        Self { source, nodes: outer }
    }

    /// Adds them to what was found of the others.
    fn join(&self, root: u32, found: &mut Dominators) {
        for &node in self.nodes.iter().rev() {
            let by = self.source.get(node);
            let is_reached = by == root || found.idom.get(by as usize).is_some_and(|above| *above != NONE);
            if let Some(slot) = found.idom.get_mut(node as usize).filter(|_| is_reached) {
                *slot = by;
                found.order.push(node);
            }
        }
    }
}

/// Finds those of all nodes but the outer ones.
fn find_among(graph: &impl Successors, root: u32, outer: &Outer) -> Dominators {
    let mut search = search(graph, root, outer);
    let nodes = search.order.len();
    let found = predecessors(graph, &mut search);
    let Search { order, number, parent, mut starts, only } = search;
    drop(only);
    let Some(sources) = found else {
        let mut idom = number.0;
        idom.iter_mut().filter(|number| **number < OUTER).for_each(|number| *number = root);
        idom.iter_mut().filter(|number| **number == OUTER).for_each(|number| *number = NONE);
        if let Some(slot) = idom.get_mut(root as usize) {
            *slot = NONE;
        }
        return Dominators { order, idom };
    };
    drop(number);
    // From here on nodes are told by their place in the order of the search.
    let mut forest = Forest { ancestor: Table(parent.0.clone()), label: Table::counting(nodes), path: Vec::new() };
    let mut end = starts.get(nodes as u32);
    for node in (1..nodes as u32).rev() {
        let start = starts.get(node);
        let mut semi = forest.ancestor.get(node);
        for &source in sources.get(start as usize..end as usize).unwrap_or(&[]) {
            semi = semi.min(forest.eval(source, node));
        }
        forest.label.set(node, semi);
        // the edges of this one are done: its semidominator takes their place
        starts.set(node, semi);
        end = start;
    }
    drop((forest, sources));
    let dominator = nearest_ancestors(parent, &starts);
    drop(starts);
    let mut idom = vec![NONE; graph.nodes()];
    for node in 1..nodes as u32 {
        let told = order.get(dominator.get(node) as usize).copied().unwrap_or(NONE);
        if let Some(slot) = order.get(node as usize).and_then(|&at| idom.get_mut(at as usize)) {
            *slot = told;
        }
    }
    Dominators { order, idom }
}

/// Of each node, the first on the way up from its parent that is not behind its semidominator.
fn nearest_ancestors(parent: Table, semi: &Table) -> Table {
    let nodes = parent.0.len();
    let mut dominator = parent;
    let (mut depth, mut jump) = (Table(vec![0; nodes]), Table(vec![0; nodes]));
    for node in 1..nodes as u32 {
        let (mut at, last) = (dominator.get(node), semi.get(node));
        while at > last {
            // numbers descend on the way up
            let far = jump.get(at);
            at = if far >= last { far } else { dominator.get(at) };
        }
        dominator.set(node, at);
        depth.set(node, depth.get(at).wrapping_add(1));
        let far = jump.get(at);
        let is_even =
            depth.get(at).wrapping_sub(depth.get(far)) == depth.get(far).wrapping_sub(depth.get(jump.get(far)));
        jump.set(node, if is_even { jump.get(far) } else { at });
    }
    dominator
}

/// What a search, depth first, finds.
#[derive(Default)]
struct Search {
    /// Nodes in the order in which they were met.
    order: Vec<u32>,
    /// Of each node its place there.
    number: Table,
    /// By place: the place of the node that it was met from.
    parent: Table,
    /// By place: how many edges lead to it. One entry more.
    starts: Table,
    /// Of nodes that have one edge, as most of a list or of a tree's long branch have, where it leads. To look there is
    /// to wait for memory that is in no cache once, not twice.
    only: Table,
}

impl Search {
    /// Notes a node that was met from the one at the place `from`, and tells its place.
    #[inline]
    fn meet(&mut self, node: u32, from: u32) -> u32 {
        let place = self.order.len() as u32;
        self.number.set(node, place);
        self.order.push(node);
        self.parent.0.push(from);
        self.starts.0.push(u32::from(from != NONE));
        place
    }
}

fn search(graph: &impl Successors, root: u32, outer: &Outer) -> Search {
    let mut search = Search { number: Table::new(graph.nodes()), ..Search::default() };
    // they are known from the beginning, and have no place
    outer.nodes.iter().for_each(|&node| search.number.set(node, OUTER));
    if root as usize >= graph.nodes() {
        search.starts.0.push(0);
        return search;
    }
    let only = |node: u32| match graph.edges(node) {
        Range { start, end } if start.checked_add(1) == Some(end) => graph.target(start),
        _ => NONE,
    };
    search.only.0.extend((0..graph.nodes() as u32).map(only));
    // Nodes with edges that have not been gone. One whose last edge is gone is not come back to: that would be one more
    // look at such memory.
    let mut open: Vec<(u32, Range<u32>)> = Vec::new();
    let (mut from, mut to) = (NONE, root);
    loop {
        if (to as usize) < graph.nodes() {
            let known = search.number.get(to);
            if known == NONE {
                from = search.meet(to, from);
                let next = search.only.get(to);
                if next != NONE {
                    to = next;
                    continue;
                }
                open.push((from, graph.edges(to)));
            } else if let Some(count) = search.starts.0.get_mut(known as usize) {
                *count = count.saturating_add(1);
            }
        }
        // the next edge of the last node that has any
        let next = loop {
            let Some((node, edges)) = open.last_mut() else { break None };
            let (node, edge) = (*node, edges.next());
            if edges.start == edges.end {
                open.pop();
            }
            if let Some(edge) = edge {
                break Some((node, graph.target(edge)));
            }
        };
        let Some(next) = next else { break };
        (from, to) = next;
    }
    search.starts.0.push(0);
    search
}

/// Of each node, by place, where it is led to from: its part of the list is from its entry in `starts` to the next
/// one's. None if there are too many edges.
fn predecessors(graph: &impl Successors, search: &mut Search) -> Option<Vec<u32>> {
    let Search { order, number, starts, only, .. } = search;
    let nodes = order.len();
    // each entry becomes the end of its part, and, filled from behind, its start
    let mut sum = 0u32;
    for entry in starts.0.iter_mut().take(nodes) {
        sum = sum.checked_add(*entry).filter(|sum| *sum != NONE)?;
        *entry = sum;
    }
    starts.set(nodes as u32, sum);
    let mut sources = vec![0; sum as usize];
    // in the order of the search: what a node leads to is often the next one
    for ((from, &node), next) in (0..).zip(&*order).zip(order.iter().skip(1).chain([&NONE])) {
        let mut note = |to: u32| {
            let at = if to == *next { from + 1 } else { number.get(to) };
            let place = starts.get(at).wrapping_sub(1);
            starts.set(at, place);
            if let Some(slot) = sources.get_mut(place as usize) {
                *slot = from;
            }
        };
        match only.get(node) {
            NONE => graph.edges(node).map(|edge| graph.target(edge)).for_each(note),
            to => note(to),
        }
    }
    Some(sources)
}

/// The trees that the search's edges make, from the last nodes on.
struct Forest {
    /// Of nodes that are linked, an ancestor; of others, the parent.
    ancestor: Table,
    /// Of nodes that are linked, the smallest semidominator on the way up to that ancestor.
    label: Table,
    path: Vec<u32>,
}

impl Forest {
    /// The smallest semidominator on the way from `node` up to, and without, its tree's root. Nodes behind `last` are
    /// linked; of others, the node itself.
    fn eval(&mut self, node: u32, last: u32) -> u32 {
        if node <= last {
            return node;
        }
        let mut at = node;
        while at > last {
            let above = self.ancestor.get(at);
            if above <= last || above == NONE {
                break;
            }
            self.path.push(at);
            at = above;
        }
        let mut best = self.label.get(at);
        let top = self.ancestor.get(at);
        while let Some(below) = self.path.pop() {
            best = best.min(self.label.get(below));
            self.label.set(below, best);
            self.ancestor.set(below, top);
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Lists {
        of: Vec<Vec<u32>>,
        starts: Vec<u32>,
        targets: Vec<u32>,
    }

    impl Lists {
        fn new(of: Vec<Vec<u32>>) -> Self {
            let mut sum = 0;
            let starts = std::iter::once(0)
                .chain(of.iter().map(|list| {
                    sum += list.len() as u32;
                    sum
                }))
                .collect();
            Self { starts, targets: of.concat(), of }
        }
    }

    impl Successors for Lists {
        fn nodes(&self) -> usize {
            self.of.len()
        }

        fn edges(&self, node: u32) -> Range<u32> {
            self.starts[node as usize]..self.starts[node as usize + 1]
        }

        fn target(&self, edge: u32) -> u32 {
            self.targets[edge as usize]
        }
    }

    fn reached(graph: &Lists, without: Option<u32>) -> Vec<bool> {
        let mut seen = vec![false; graph.of.len()];
        let mut stack = vec![0];
        while let Some(node) = stack.pop() {
            if Some(node) != without && !std::mem::replace(&mut seen[node as usize], true) {
                stack.extend(&graph.of[node as usize]);
            }
        }
        seen
    }

    proptest! {
        /// By what the word says: a node dominates what is out of reach without it; the immediate one is dominated by
        /// all others that do.
        #[test]
        fn they_are_what_the_definition_says(graph in prop::collection::vec(prop::collection::vec(0u32..24, 0..4), 24)) {
            let graph = Lists::new(graph);
            let found = find(&graph, 0);
            let all = reached(&graph, None);
            let cut: Vec<Vec<bool>> = (0..24).map(|node| reached(&graph, Some(node))).collect();
            let dominates = |by: usize, node: usize| by != node && all[node] && all[by] && !cut[by][node];
            for node in 0..24 {
                let by: Vec<usize> = (0..24).filter(|&by| dominates(by, node)).collect();
                let immediate = by.iter().copied().find(|&one| by.iter().all(|&other| other == one || dominates(other, one)));
                prop_assert_eq!(found.idom[node], immediate.map_or(NONE, |by| by as u32));
            }
            prop_assert_eq!(found.order.len(), all.iter().filter(|reached| **reached).count());
        }
    }

    #[test]
    fn a_long_chain_that_each_node_is_joined_to_from_its_top_takes_no_time() {
        // each node's dominator is the root, which lies as far up as can be
        const N: u32 = 300_000;
        let mut graph: Vec<Vec<u32>> =
            (0..N).map(|node| if node + 1 < N { vec![node + 1] } else { Vec::new() }).collect();
        graph[0] = (1..N).collect();
        let found = find(&Lists::new(graph), 0);
        assert!((1..N).all(|node| found.idom[node as usize] == 0));
    }

    #[test]
    fn a_long_chain_with_ways_back_takes_no_stack_and_no_time() {
        const N: u32 = 300_000;
        let mut graph = vec![Vec::new(); N as usize];
        for node in 0..N - 1 {
            graph[node as usize] = vec![node + 1, node.saturating_sub(1), node / 2];
        }
        let found = find(&Lists::new(graph), 0);
        assert!((1..N).all(|node| found.idom[node as usize] == node - 1));
    }
}
