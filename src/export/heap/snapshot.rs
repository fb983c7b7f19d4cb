//! `.heapsnapshot`, which the Memory panel of Chrome's developer tools opens.
//!
//! The tools keep all numbers in 32 bits: a block's id is made of the lower 35 bits of its address, so that it is the
//! same in every snapshot of a process. Holders are below the roots, lost blocks below a node of their own.

use crate::export::devtools::{
    ELEMENT, NATIVE, Node, OBJECT, PROPERTY, ROOTS, STRING, SYNTHETIC, Strings, begin, write_edge, write_node,
};
use crate::heap::graph::Held;
use crate::heap::graph::holders::LOST;
use crate::heap::graph::types::Certainty;
use rustc_hash::{FxHashMap, FxHashSet};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};

/// The tools of Chrome 120 and later open so many in some minutes, and hardly more.
const MAX_NODES: usize = 8_000_000;
/// So many different names of places in blocks; places further on are told by their number.
const NAMED_PLACES: u64 = 4096;

/// Nodes before those of holders: the root of all, and what holders hang on.
const BEFORE: usize = 2;

/// Writes it.
///
/// # Errors
/// What `out` says.
pub fn write(held: &Held, out: &mut dyn Write) -> io::Result<()> {
    write_at_most(held, MAX_NODES, out)
}

fn write_at_most(held: &Held, most: usize, out: &mut dyn Write) -> io::Result<()> {
    let folded = fold(held, most);
    Writer { held, folded, strings: Strings::default(), ids: FxHashSet::default() }.write(out)
}

/// Which blocks have a node of their own.
struct Folded {
    /// Of each block, whose node stands for it; empty: each has its own.
    into: Vec<u32>,
    /// Of blocks that stand for others: how many blocks, and their bytes.
    sums: FxHashMap<u32, (u64, u64)>,
    /// Of each block that has a node: its number among them.
    places: Vec<u32>,
    nodes: usize,
}

impl Folded {
    fn stands_for(&self, block: u32) -> u32 {
        self.into.get(block as usize).copied().unwrap_or(block)
    }

    fn place(&self, block: u32) -> u32 {
        let block = self.stands_for(block);
        self.places.get(block as usize).copied().unwrap_or(block)
    }
}

/// Blocks that lead nowhere, are of one type and retained by the same one are one node, if there would be too many
/// else; if there still are, those that retain least go into who retains them.
fn fold(held: &Held, most: usize) -> Folded {
    let holdings = &held.holdings;
    let blocks = holdings.graph.blocks().len();
    let others = BEFORE + holdings.holders.len() + 1;
    let mut folded = Folded { into: Vec::new(), sums: FxHashMap::default(), places: Vec::new(), nodes: blocks };
    if blocks + others <= most {
        return folded;
    }
    let retention = holdings.retention();
    let mut into: Vec<u32> = (0..blocks as u32).collect();
    let mut first: FxHashMap<(usize, u32), u32> = FxHashMap::default();
    for block in 0..blocks as u32 {
        if holdings.graph.edges_of(block).is_empty()
            && let Some(by) = retention.retainer(block as usize)
        {
            let of = held.types.of_block.get(block as usize).copied().unwrap_or(0);
            let one = *first.entry((by, of)).or_insert(block);
            if let Some(slot) = into.get_mut(block as usize) {
                *slot = one;
            }
        }
    }
    drop(first);
    let room = most.saturating_sub(others);
    let mut kept: Vec<(u64, u32)> = Vec::new();
    for (block, one) in into.iter().enumerate() {
        if *one as usize == block {
            kept.push((retention.retained(block), block as u32));
        }
    }
    if kept.len() > room {
        kept.sort_unstable_by(|a, b| b.cmp(a));
        let is_kept: FxHashSet<u32> = kept.iter().take(room).map(|(_, block)| *block).collect();
        for block in 0..blocks {
            let mut at = into.get(block).copied().unwrap_or(0);
            // those on the way end where this one does: none is gone through twice
            let mut way = Vec::new();
            while !is_kept.contains(&at) {
                way.push(at);
                match retention.retainer(at as usize) {
                    Some(by) if by < blocks => at = into.get(by).copied().unwrap_or(by as u32),
                    // nobody is left to stand for it: the largest of all does
                    _ => match kept.first() {
                        Some((_, largest)) if at != *largest => at = *largest,
                        _ => break,
                    },
                }
            }
            for passed in way.into_iter().chain([block as u32]) {
                if let Some(slot) = into.get_mut(passed as usize) {
                    *slot = at;
                }
            }
        }
    }
    folded.places = vec![u32::MAX; blocks];
    folded.nodes = 0;
    for (block, one) in into.iter().enumerate() {
        let size = holdings.graph.blocks().get(block).map_or(0, |block| block.size);
        if *one as usize == block {
            if let Some(place) = folded.places.get_mut(block) {
                *place = folded.nodes as u32;
            }
            folded.nodes += 1;
        } else {
            let sum = folded.sums.entry(*one).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(size));
        }
    }
    folded.into = into;
    folded
}

struct Writer<'a> {
    held: &'a Held,
    folded: Folded,
    strings: Strings,
    ids: FxHashSet<u32>,
}

impl Writer<'_> {
    fn write(mut self, out: &mut dyn Write) -> io::Result<()> {
        let holders = self.held.holdings.holders.len();
        let nodes = BEFORE + holders + 1 + self.folded.nodes;
        let edges = self.count_edges();
        begin(out, nodes as u64, edges, 0)?;
        self.write_nodes(out)?;
        out.write_all(b"],\n\"edges\":[")?;
        self.write_edges(out)?;
        out.write_all(b"],\n\"trace_function_infos\":[],\"trace_tree\":[],\"samples\":[],\"locations\":[],\n")?;
        self.strings.end(out)
    }

    fn blocks(&self) -> u32 {
        self.held.holdings.graph.blocks().len() as u32
    }

    /// The blocks that have nodes.
    fn own(&self) -> impl Iterator<Item = u32> + use<'_> {
        (0..self.blocks()).filter(|&block| self.folded.stands_for(block) == block)
    }

    fn count_of(&self, block: u32) -> u64 {
        self.held.holdings.graph.pointers(block).count() as u64
    }

    fn count_edges(&self) -> u64 {
        let holdings = &self.held.holdings;
        let of_holders: u64 = (0..holdings.holders.len()).map(|holder| holdings.held_by(holder).count() as u64).sum();
        let of_blocks: u64 = self.own().map(|block| self.count_of(block)).sum();
        2 + holdings.holders.len() as u64 + of_holders + holdings.lost_heads().len() as u64 + of_blocks
    }

    /// A number that no other node has, from `wanted` on.
    fn id(&mut self, wanted: u32, odd: bool) -> u32 {
        let mut at = wanted & 0x7fff_ffff;
        loop {
            let id = at * 2 + u32::from(odd);
            if id != 0 && self.ids.insert(id) {
                return id;
            }
            // far from its neighbours
            at = at.wrapping_add(0x1234_5677) & 0x7fff_ffff;
        }
    }

    fn write_nodes(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let held = self.held;
        let holdings = &held.holdings;
        let mut first = true;
        let heads = [("", 2u64), (ROOTS, holdings.holders.len() as u64)];
        for (number, (name, edges)) in heads.into_iter().enumerate() {
            let name = self.strings.number(name);
            self.ids.insert(number as u32 * 2 + 1);
            let node = Node { kind: SYNTHETIC, name, id: number as u32 * 2 + 1, size: 0, edges, trace: 0 };
            write_node(out, &node, &mut first)?;
        }
        for (number, holder) in holdings.holders.iter().enumerate() {
            let id = self.named_id(&holder.name);
            let name = self.strings.number(&holder.name);
            let edges = holdings.held_by(number).count() as u64;
            write_node(out, &Node { kind: SYNTHETIC, name, id, size: 0, edges, trace: 0 }, &mut first)?;
        }
        let (id, name) = (self.named_id(LOST), self.strings.number(LOST));
        let edges = holdings.lost_heads().len() as u64;
        write_node(out, &Node { kind: SYNTHETIC, name, id, size: 0, edges, trace: 0 }, &mut first)?;
        for (number, block) in holdings.graph.blocks().iter().enumerate() {
            let number = number as u32;
            if self.folded.stands_for(number) != number {
                continue;
            }
            let (kind, name) = self.name_of(number, block.size);
            // glibc's blocks begin at multiples of 16
            let id = self.id((block.addr.0 >> 4) as u32, true);
            let more = self.folded.sums.get(&number).map_or(0, |sum| sum.1);
            let (size, edges) = (block.size.saturating_add(more), self.count_of(number));
            let node = Node { kind, name, id, size, edges, trace: 0 };
            write_node(out, &node, &mut first)?;
        }
        Ok(())
    }

    fn named_id(&mut self, name: &str) -> u32 {
        let mut hasher = rustc_hash::FxHasher::default();
        name.hash(&mut hasher);
        self.id(hasher.finish() as u32, false)
    }

    fn name_of(&mut self, block: u32, size: u64) -> (u32, u32) {
        let of = self.held.types.of(block as usize);
        let (kind, mut name) = match of {
            Some(of) if of.certainty == Certainty::Exact => (OBJECT, of.name.clone()),
            Some(of) if of.name == "text" => (STRING, of.name.clone()),
            Some(of) if of.certainty == Certainty::Inferred => (OBJECT, of.name.clone()),
            _ => (NATIVE, format!("block of {size} bytes")),
        };
        if let Some((count, _)) = self.folded.sums.get(&block) {
            name = format!("{name} (and {count} more)");
        }
        (kind, self.strings.number(&name))
    }

    fn write_edges(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let held = self.held;
        let holdings = &held.holdings;
        let mut first = true;
        let holders = holdings.holders.len() as u64;
        let lost = BEFORE as u64 + holders;
        write_edge(out, (ELEMENT, 1, 1), &mut first)?;
        write_edge(out, (ELEMENT, 2, lost), &mut first)?;
        for holder in 0..holders {
            write_edge(out, (ELEMENT, holder as u32 + 1, BEFORE as u64 + holder), &mut first)?;
        }
        let first_block = lost + 1;
        for holder in 0..holdings.holders.len() {
            for (nth, block) in holdings.held_by(holder).enumerate() {
                let to = first_block + u64::from(self.folded.place(block));
                let edge = match holdings.member(holder, block) {
                    Some(member) => (PROPERTY, self.strings.number(member), to),
                    None => (ELEMENT, nth as u32 + 1, to),
                };
                write_edge(out, edge, &mut first)?;
            }
        }
        for (nth, block) in holdings.lost_heads().iter().enumerate() {
            let to = first_block + u64::from(self.folded.place(*block));
            write_edge(out, (ELEMENT, nth as u32 + 1, to), &mut first)?;
        }
        for block in 0..self.blocks() {
            if self.folded.stands_for(block) != block {
                continue;
            }
            for pointer in holdings.graph.pointers(block) {
                let to = first_block + u64::from(self.folded.place(pointer.target));
                let member = pointer.at.filter(|at| *at < NAMED_PLACES);
                let member = member.and_then(|at| held.types.field(block as usize, at));
                let edge = match (pointer.at, member) {
                    (_, Some(member)) => (PROPERTY, self.strings.number(&member), to),
                    (Some(at), None) if at < NAMED_PLACES => (PROPERTY, self.strings.number(&format!("+{at:#x}")), to),
                    (at, None) => (ELEMENT, at.map_or(0, |at| u32::try_from(at / 8).unwrap_or(u32::MAX)), to),
                };
                write_edge(out, edge, &mut first)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::Addr;
    use crate::base::memory::MemoryImage;
    use crate::heap::graph::contents::ContentKind;
    use crate::heap::graph::declared::Layouts;
    use crate::heap::graph::holders::Holdings;
    use crate::heap::graph::types::{TableNames, Types};
    use crate::heap::graph::{duplicates, pins};
    use crate::heap::leaks::{Graph, RootKind, RootWord, Roots, ScanOptions};
    use crate::heapmodel::{LiveBlock, SiteId};
    use serde_json::Value;

    struct Nobody;

    impl TableNames for Nobody {
        fn class(&mut self, _: u32) -> Option<String> {
            None
        }

        fn dropped(&mut self, _: u32) -> Option<String> {
            None
        }
    }

    const BASE: u64 = 0x10_0000;
    const BLOCKS: u64 = 60;

    /// A block that leads to 59 others, of which the last three lead to the first of them.
    fn held() -> Held {
        let at = |block: u64| BASE + block * 512;
        let live = (0..BLOCKS).map(|n| LiveBlock { addr: Addr(at(n)), size: 500, site: SiteId(0), inherited: false });
        let mut bytes = vec![0; (BLOCKS * 512) as usize];
        let mut put = |from: u64, word: u64, to: u64| {
            let place = (from * 512 + word * 8) as usize;
            bytes[place..place + 8].copy_from_slice(&at(to).to_le_bytes());
        };
        (1..BLOCKS).for_each(|n| put(0, n - 1, n));
        (BLOCKS - 3..BLOCKS).for_each(|n| put(n, 1, 1));
        let word = RootWord { value: BASE, kind: RootKind::Anonymous };
        let roots = Roots { words: vec![word], ..Roots::default() };
        let mut memory = MemoryImage { start: Addr(BASE), bytes };
        let graph = Graph::read(live.collect(), &roots, &mut memory, &ScanOptions::default());
        let types = Types::find(&graph, &[ContentKind::Unknown; BLOCKS as usize], Layouts::default(), &mut Nobody);
        let holdings = Holdings::find(graph, &mut |_, _: Option<Addr>| "root".to_owned());
        Held {
            holdings,
            types,
            duplicates: duplicates::Duplicates::default(),
            samples: Vec::new(),
            pinned: pins::Pinned::default(),
            remedy: None,
        }
    }

    #[test]
    fn too_many_nodes_are_folded_and_no_byte_is_lost() {
        let held = held();
        for (most, nodes) in [(1000, 64), (64, 64), (63, 9), (8, 8), (5, 5)] {
            let mut out = Vec::new();
            write_at_most(&held, most, &mut out).unwrap();
            let file: Value = serde_json::from_slice(&out).unwrap();
            let numbers = |name: &str| -> Vec<u64> {
                file[name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
            };
            let (told, edges) = (numbers("nodes"), numbers("edges"));
            assert_eq!(told.len(), nodes * 7, "{most}");
            assert_eq!(file["snapshot"]["node_count"], nodes);
            assert_eq!(told.chunks(7).map(|node| node[3]).sum::<u64>(), BLOCKS * 500, "{most}");
            assert_eq!(told.chunks(7).map(|node| node[4]).sum::<u64>() * 3, edges.len() as u64, "{most}");
            assert!(edges.chunks(3).all(|edge| edge[2] < told.len() as u64), "{most}");
        }
    }
}
