use super::*;
use crate::heapgraph::tree;
use crate::heapmodel::{LiveBlock, SiteId};
use crate::leaks::{RootRange, Roots, ScanOptions};
use crate::memory::MemoryImage;

const BASE: u64 = 0x10_0000;

/// Blocks of 64 bytes, the n-th with the words of `words[n]`, and roots: each word its holder.
fn holdings(blocks: &[&[u64]], roots: &[u64]) -> Holdings {
    let all = blocks.len() as u64;
    let mut bytes = Vec::new();
    for words in blocks.iter().copied().chain([roots]) {
        let mut piece: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        piece.resize(64, 0);
        bytes.extend(piece);
    }
    let live =
        (0..all).map(|n| LiveBlock { addr: Addr(block(n)), size: 64, site: SiteId(0), inherited: false }).collect();
    let kind = RootKind::Tls { tid: 1 };
    let range = RootRange { start: Addr(block(all)), end: Addr(block(all + 1)), kind };
    let options = ScanOptions { every_root: true, ..ScanOptions::default() };
    let roots = Roots { ranges: vec![range], words: Vec::new() };
    let mut memory = MemoryImage { start: Addr(BASE), bytes };
    let graph = Graph::read(live, &roots, &mut memory, &options);
    Holdings::find(graph, &mut |_, addr: Option<Addr>| format!("root {}", (addr.unwrap().0 - block(all)) / 8))
}

fn block(n: u64) -> u64 {
    BASE + n * 64
}

#[test]
fn each_holder_retains_what_it_alone_leads_to() {
    // root 0 -> 0 -> 1, 2; root 1 -> 3 -> 2; 4 <-> 5 and 6 -> 5 are lost, 7 is lost alone
    let found = holdings(
        &[&[block(1), block(2)], &[0], &[0], &[block(2) + 8], &[block(5)], &[block(4)], &[block(5)], &[0]],
        &[block(0), block(3)],
    );
    let retained: Vec<_> = found.holders.iter().map(|holder| (holder.name.as_str(), holder.retained.blocks)).collect();
    assert_eq!(retained, [("root 0", 2), ("root 1", 1)]);
    assert_eq!(found.shared, Sum { blocks: 1, bytes: 64 });
    assert_eq!(found.reachable, Sum { blocks: 4, bytes: 256 });
    assert_eq!(found.lost, Sum { blocks: 4, bytes: 256 });
    assert_eq!(found.lost_heads(), [6, 7]);
    assert_eq!((found.retained(0), found.retained(6), found.retained(4)), (128, 192, 64));
    let last = found.last_retainers();
    assert_eq!(last, [8, 8, 2, 9, 10, 10, 10, 10]);
    assert_eq!(found.holder_of(8).unwrap().name, "root 0");
}

#[test]
fn what_two_roots_hold_is_retained_by_none() {
    let found = holdings(&[&[block(1)], &[0]], &[block(0), block(0)]);
    assert_eq!(found.shared, Sum { blocks: 2, bytes: 128 });
    assert_eq!(found.retainer(0), None);
    assert_eq!(found.retainer(1), Some(0));
}

#[test]
fn a_tree_tells_the_largest_below() {
    let found = holdings(&[&[block(1), block(2), block(3)], &[block(4)], &[0], &[0], &[0]], &[block(0)]);
    let tree = tree::of(&found, found.node_of(0), 2, 2);
    assert_eq!((tree.retained, tree.below[0].node, tree.below[0].retained), (320, 0, 320));
    let below: Vec<_> = tree.below[0].below.iter().map(|branch| (branch.node, branch.retained)).collect();
    assert_eq!(below, [(1, 128), (2, 64)]);
    assert_eq!(tree.below[0].others, (1, 64));
}

#[test]
fn nothing_at_all() {
    let found = holdings(&[], &[]);
    assert_eq!((found.reachable, found.lost, found.nodes()), (Sum::default(), Sum::default(), 2));
}
