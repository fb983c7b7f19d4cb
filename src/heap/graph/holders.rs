//! Who holds the blocks: roots by name, what each retains, what is lost.

use super::Sum;
use super::owners::{self, Owner, Owners};
use super::retention::Retention;
use crate::base::addr::Addr;
use crate::heap::leaks::{Graph, RootKind};
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// So many holders are told by their names; what comes behind is told by one of them.
const MAX_HOLDERS: usize = 1 << 20;

/// So many pointers of holders are told by the members that they lie in.
const MAX_NAMED: usize = 1 << 20;

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

/// All that was found. Nodes are numbered: blocks as in the graph, then holders, then the lost blocks' node, then the
/// root of all.
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
    owners: Owners,
    /// The largest blocks, with the bytes that each retains.
    largest: Vec<(u32, u64)>,
    /// Found when somebody asks: it takes as long as all the rest.
    retention: OnceLock<Retention>,
    /// Blocks that a root leads to.
    pub reachable: Sum,
    /// The others.
    pub lost: Sum,
    /// Reachable blocks that no one holder retains.
    pub shared: Sum,
}

impl Holdings {
    /// Finds them. `names`: what to call a root, by what it is and where its pointer lies.
    pub fn find(graph: Graph, names: &mut dyn RootNames) -> Self {
        let found = Finding::begin(&graph, names).finish(names);
        Self::of_found(graph, found)
    }

    /// The same, of what was found of the same graph.
    pub fn of_found(graph: Graph, found: FoundHolders) -> Self {
        Self::sum_up(graph, found.naming.names, found.naming.edges, found.owners)
    }

    /// The same of holders that are known: their names, and which of them point to which blocks, with the names of
    /// members.
    pub fn of(graph: Graph, names: Vec<String>, root_edges: Vec<RootEdge>) -> Self {
        let mut spread = owners::Spread::new(&graph);
        root_edges.iter().for_each(|(holder, block, _)| spread.begin(*block, *holder));
        let found = spread.finish();
        Self::sum_up(graph, names, root_edges, found)
    }

    fn sum_up(graph: Graph, names: Vec<String>, mut root_edges: Vec<RootEdge>, found: owners::Found) -> Self {
        // the first of several pointers gives the name
        root_edges.sort_by_key(|(holder, block, _)| (*holder, *block));
        root_edges.dedup_by_key(|(holder, block, _)| (*holder, *block));
        let (root_edges, root_names) =
            root_edges.into_iter().map(|(holder, block, name)| ((holder, block), name)).unzip();
        let owners::Found { owners, lost_heads, largest } = found;
        let mut sums = vec![Sum::default(); names.len()];
        let (mut lost, mut shared) = (Sum::default(), Sum::default());
        for (number, block) in graph.blocks().iter().enumerate() {
            match owners.of(number) {
                Owner::Holder(holder) => sums.get_mut(holder as usize).into_iter().for_each(|sum| sum.add(block.size)),
                Owner::Several => shared.add(block.size),
                Owner::Lost => lost.add(block.size),
            }
        }
        let mut reachable = shared;
        sums.iter().for_each(|sum| reachable.join(*sum));
        let holders = names.into_iter().zip(sums).map(|(name, retained)| Holder { name, retained }).collect();
        let retention = OnceLock::new();
        Self { graph, holders, root_edges, root_names, lost_heads, owners, largest, retention, reachable, lost, shared }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.lost_node() + 2
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

    /// Who alone leads to a block.
    pub fn owner(&self, block: usize) -> Owner {
        self.owners.of(block)
    }

    /// The largest blocks, and what each of them retains, itself included, in bytes.
    pub fn largest(&self) -> &[(u32, u64)] {
        &self.largest
    }

    /// Who retains whom, block by block. The first time that takes as long as all the rest.
    pub fn retention(&self) -> &Retention {
        self.retention
            .get_or_init(|| Retention::find(&self.graph, self.holders.len(), &self.root_edges, &self.lost_heads))
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

/// Holdings that are being found, step by step: the longest step needs no names. What stacks and registers point to is
/// held by them only where nothing else leads to it: such pointers come and go, and words of ended calls stay.
#[derive(Debug)]
pub struct Finding<'a> {
    graph: &'a Graph,
    naming: Naming,
    spread: owners::Spread<'a>,
}

/// Holders, and which blocks each alone leads to.
#[derive(Debug)]
pub struct FoundHolders {
    naming: Naming,
    owners: owners::Found,
}

impl<'a> Finding<'a> {
    /// Names the roots that last.
    pub fn begin(graph: &'a Graph, names: &mut dyn RootNames) -> Self {
        let (mut naming, mut spread) = (Naming::default(), owners::Spread::new(graph));
        for (kind, addr, block) in graph.root_pointers().filter(|(kind, ..)| !is_passing(*kind)) {
            spread.begin(block, naming.note(names, kind, addr, block));
        }
        Self { graph, naming, spread }
    }

    /// Finds what they lead to.
    pub fn follow(&mut self) {
        self.spread.run();
    }

    /// Finds what else there is.
    pub fn finish(mut self, names: &mut dyn RootNames) -> FoundHolders {
        self.follow();
        let Self { graph, mut naming, mut spread } = self;
        let passing = graph.root_pointers().filter(|(kind, ..)| is_passing(*kind));
        let alone: Vec<_> = passing.filter(|(.., block)| !spread.is_reached(*block)).collect();
        for (kind, addr, block) in alone {
            spread.begin(block, naming.note(names, kind, addr, block));
        }
        FoundHolders { naming, owners: spread.finish() }
    }
}

/// Gives numbers to holders, by their names.
#[derive(Debug, Default)]
struct Naming {
    names: Vec<String>,
    known: FxHashMap<String, u32>,
    /// How many pointers have the name of a member.
    members: usize,
    edges: Vec<RootEdge>,
}

impl Naming {
    /// Notes a root's pointer to a block; returns its holder's number.
    fn note(&mut self, called: &mut dyn RootNames, kind: RootKind, addr: Option<Addr>, block: u32) -> u32 {
        let mut name = called.holder(kind, addr);
        if self.names.len() >= MAX_HOLDERS && !self.known.contains_key(&name) {
            OTHERS.clone_into(&mut name);
        }
        let names = &mut self.names;
        let holder = *self.known.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        });
        let member = addr.filter(|_| self.members < MAX_NAMED).and_then(|addr| called.member(addr));
        self.members += usize::from(member.is_some());
        self.edges.push((holder, block, member.map(String::into_boxed_str)));
        holder
    }
}

#[cfg(test)]
mod tests;
