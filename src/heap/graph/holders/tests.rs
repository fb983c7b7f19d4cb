use super::*;
use crate::base::memory::MemoryImage;
use crate::heap::graph::tree;
use crate::heap::leaks::{RootRange, Roots, ScanOptions};
use crate::heapmodel::{LiveBlock, SiteId};

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
    let roots = Roots { ranges: vec![range], ..Roots::default() };
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
    let retention = found.retention();
    assert_eq!((retention.retained(0), retention.retained(6), retention.retained(4)), (128, 192, 64));
    let owners: Vec<Owner> = (0..8).map(|block| found.owner(block)).collect();
    let (several, lost) = (Owner::Several, Owner::Lost);
    assert_eq!(owners, [Owner::Holder(0), Owner::Holder(0), several, Owner::Holder(1), lost, lost, lost, lost]);
    assert_eq!(found.holder_of(8).unwrap().name, "root 0");
}

#[test]
fn what_two_roots_hold_is_retained_by_none() {
    let found = holdings(&[&[block(1)], &[0]], &[block(0), block(0)]);
    assert_eq!(found.shared, Sum { blocks: 2, bytes: 128 });
    assert_eq!(found.retention().retainer(0), None);
    assert_eq!(found.retention().retainer(1), Some(0));
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

/// The blocks that can be reached from some, without one of them.
fn reached(targets: &[Vec<usize>], from: impl IntoIterator<Item = usize>, without: Option<usize>) -> Vec<bool> {
    let mut is_reached = vec![false; targets.len()];
    let mut left: Vec<usize> = from.into_iter().collect();
    while let Some(block) = left.pop() {
        if Some(block) != without && !std::mem::replace(&mut is_reached[block], true) {
            left.extend(&targets[block]);
        }
    }
    is_reached
}

/// Owners, and what the largest retain, of random heaps: against their meaning, one holder and one block taken away
/// after the other.
#[test]
fn owners_and_the_largest_blocks_are_as_if_holders_and_blocks_were_taken_away() {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut several, mut lost, mut below_large) = (0, 0, 0);
    for _ in 0..400 {
        let count = 1 + random(30) as usize;
        let mut random_blocks = |most: u64| -> Vec<usize> {
            let pointers = random(most);
            (0..pointers).map(|_| random(count as u64) as usize).collect()
        };
        let targets: Vec<Vec<usize>> = (0..count).map(|_| random_blocks(4)).collect();
        let roots = random_blocks(5);
        let words = |blocks: &[usize]| blocks.iter().map(|&to| block(to as u64)).collect::<Vec<u64>>();
        let blocks: Vec<Vec<u64>> = targets.iter().map(|blocks| words(blocks)).collect();
        let found = holdings(&blocks.iter().map(Vec::as_slice).collect::<Vec<_>>(), &words(&roots));
        let live = reached(&targets, roots.iter().copied(), None);
        // lost blocks lead to others, too
        let heads: Vec<usize> = found.lost_heads().iter().map(|head| *head as usize).collect();
        for at in 0..roots.len() {
            let is_told = |holder: &Holder| holder.name == format!("root {at}");
            let holder = found.holders.iter().position(is_told).unwrap();
            let others = roots[..at].iter().chain(&roots[at + 1..]).chain(&heads);
            let without = reached(&targets, others.copied(), None);
            for (block, is_live) in live.iter().enumerate() {
                let is_own = *is_live && !without[block];
                assert_eq!(found.owner(block) == Owner::Holder(holder as u32), is_own, "{targets:?} {roots:?} {block}");
            }
        }
        for (block, is_live) in live.iter().enumerate() {
            assert_eq!(found.owner(block) == Owner::Lost, !is_live, "{targets:?} {roots:?} {block}");
            several += u32::from(found.owner(block) == Owner::Several);
            lost += u32::from(found.owner(block) == Owner::Lost);
        }
        let tops: Vec<usize> = roots.iter().chain(&heads).copied().collect();
        assert_eq!(found.largest().len(), count.min(20));
        for &(large, retained) in found.largest() {
            let without = reached(&targets, tops.iter().copied(), Some(large as usize));
            let gone = without.iter().filter(|is_reached| !**is_reached).count() as u64;
            assert_eq!(retained, gone * 64, "{targets:?} {roots:?} {large}");
            assert_eq!(found.retention().retained(large as usize), retained, "{targets:?} {roots:?} {large}");
            below_large += gone - 1;
        }
    }
    assert!(several > 100 && lost > 100 && below_large > 100, "{several} {lost} {below_large}");
}

#[test]
fn nothing_at_all() {
    let found = holdings(&[], &[]);
    assert_eq!((found.reachable, found.lost, found.nodes()), (Sum::default(), Sum::default(), 2));
}
