//! Immediate dominators of a directed graph: the node that all ways from the root to another one pass last. What only they lead to is *retained* by them.
//!
//! T. Lengauer, R. E. Tarjan: A Fast Algorithm for Finding Dominators in a Flowgraph, TOPLAS 1 (1979), with simple path compression: m log n steps, and nothing recursive.

/// A node that is not there.
pub const NONE: u32 = u32::MAX;

/// What is asked of a graph. Its nodes are numbered from 0.
pub trait Successors {
    /// How many nodes it has.
    fn nodes(&self) -> usize;

    /// One of the nodes that a node leads to, counted from 0; None behind the last one. A node may come several times.
    fn successor(&self, node: u32, nth: u32) -> Option<u32>;
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

/// Finds them, from `root` on.
pub fn find(graph: &dyn Successors, root: u32) -> Dominators {
    let Search { order, number, parent } = search(graph, root);
    let nodes = order.len();
    let (starts, sources) = predecessors(graph, &order, &number);
    // From here on nodes are told by their place in the order of the search.
    let mut forest =
        Forest { ancestor: parent, label: Table::counting(nodes), semi: Table::counting(nodes), path: Vec::new() };
    let mut dominator = Table::new(nodes);
    let (mut bucket, mut next) = (Table::new(nodes), Table::new(nodes));
    for node in (1..nodes as u32).rev() {
        let parent = forest.ancestor.get(node);
        let mut semi = forest.semi.get(node);
        let range = starts.get(node) as usize..starts.get(node + 1) as usize;
        for &source in sources.get(range).unwrap_or(&[]) {
            let best = forest.eval(source, node);
            semi = semi.min(forest.semi.get(best));
        }
        forest.semi.set(node, semi);
        next.set(node, bucket.get(semi));
        bucket.set(semi, node);
        let mut waiting = bucket.get(parent);
        bucket.set(parent, NONE);
        while waiting != NONE {
            let best = forest.eval(waiting, node - 1);
            let is_better = forest.semi.get(best) < forest.semi.get(waiting);
            dominator.set(waiting, if is_better { best } else { parent });
            waiting = next.get(waiting);
        }
    }
    let mut idom = vec![NONE; graph.nodes()];
    for node in 1..nodes as u32 {
        if dominator.get(node) != forest.semi.get(node) {
            dominator.set(node, dominator.get(dominator.get(node)));
        }
        let told = order.get(dominator.get(node) as usize).copied().unwrap_or(NONE);
        if let Some(slot) = order.get(node as usize).and_then(|&at| idom.get_mut(at as usize)) {
            *slot = told;
        }
    }
    Dominators { order, idom }
}

/// What a search, depth first, finds.
struct Search {
    /// Nodes in the order in which they were met.
    order: Vec<u32>,
    /// Of each node its place there.
    number: Table,
    /// By place: the place of the node that it was met from.
    parent: Table,
}

fn search(graph: &dyn Successors, root: u32) -> Search {
    let mut number = Table::new(graph.nodes());
    let (mut order, mut parent) = (Vec::new(), Vec::new());
    let mut stack = Vec::new();
    if (root as usize) < graph.nodes() {
        number.set(root, 0);
        order.push(root);
        parent.push(NONE);
        stack.push((root, 0));
    }
    while let Some((node, nth)) = stack.last_mut() {
        let (from, wanted) = (*node, *nth);
        *nth += 1;
        match graph.successor(from, wanted) {
            Some(to) if number.get(to) == NONE && (to as usize) < graph.nodes() => {
                number.set(to, order.len() as u32);
                order.push(to);
                parent.push(number.get(from));
                stack.push((to, 0));
            }
            Some(_) => {}
            None => {
                stack.pop();
            }
        }
    }
    Search { order, number, parent: Table(parent) }
}

/// Of each node, by place, where it is led to from: its part of the second list is from its entry in the first to the next one's. Edges behind the 2^32nd are left out.
fn predecessors(graph: &dyn Successors, order: &[u32], number: &Table) -> (Table, Vec<u32>) {
    let mut starts = Table(vec![0; order.len() + 1]);
    let mut edges = 0u32;
    let targets = |node: u32| (0..).map_while(move |nth| graph.successor(node, nth));
    for &node in order {
        for to in targets(node) {
            if edges == NONE {
                break;
            }
            edges += 1;
            let at = number.get(to);
            starts.set(at, starts.get(at).wrapping_add(1));
        }
    }
    // each entry becomes the end of its part, and, filled from behind, its start
    let mut sum = 0u32;
    for entry in &mut starts.0 {
        sum = sum.wrapping_add(*entry);
        *entry = sum;
    }
    let mut sources = vec![0; edges as usize];
    let mut left = edges;
    for (from, &node) in order.iter().enumerate() {
        for to in targets(node) {
            if left == 0 {
                break;
            }
            left -= 1;
            let at = number.get(to);
            let place = starts.get(at).wrapping_sub(1);
            starts.set(at, place);
            if let Some(slot) = sources.get_mut(place as usize) {
                *slot = from as u32;
            }
        }
    }
    (starts, sources)
}

/// The trees that the search's edges make, from the last nodes on.
struct Forest {
    /// Of nodes that are linked, an ancestor; of others, the parent.
    ancestor: Table,
    label: Table,
    semi: Table,
    path: Vec<u32>,
}

impl Forest {
    /// The node with the smallest semidominator on the way from `node` up to, and without, its tree's root. Nodes behind `last` are linked.
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
            if self.semi.get(best) < self.semi.get(self.label.get(below)) {
                self.label.set(below, best);
            }
            best = self.label.get(below);
            self.ancestor.set(below, top);
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Lists(Vec<Vec<u32>>);

    impl Successors for Lists {
        fn nodes(&self) -> usize {
            self.0.len()
        }

        fn successor(&self, node: u32, nth: u32) -> Option<u32> {
            self.0[node as usize].get(nth as usize).copied()
        }
    }

    fn reached(graph: &Lists, without: Option<u32>) -> Vec<bool> {
        let mut seen = vec![false; graph.0.len()];
        let mut stack = vec![0];
        while let Some(node) = stack.pop() {
            if Some(node) != without && !std::mem::replace(&mut seen[node as usize], true) {
                stack.extend(&graph.0[node as usize]);
            }
        }
        seen
    }

    proptest! {
        /// By what the word says: a node dominates what is out of reach without it; the immediate one is dominated by all others that do.
        #[test]
        fn they_are_what_the_definition_says(graph in prop::collection::vec(prop::collection::vec(0u32..24, 0..4), 24)) {
            let graph = Lists(graph);
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
    fn a_long_chain_with_ways_back_takes_no_stack_and_no_time() {
        const N: u32 = 300_000;
        let mut graph = vec![Vec::new(); N as usize];
        for node in 0..N - 1 {
            graph[node as usize] = vec![node + 1, node.saturating_sub(1), node / 2];
        }
        let found = find(&Lists(graph), 0);
        assert!((1..N).all(|node| found.idom[node as usize] == node - 1));
    }
}
