//! The classes, case by case; random graphs against a naive reference are in `reference`.

mod heuristics;
mod reference;

use super::classify::PathBlock;
use super::{Graph, Heuristics, InteriorPointers, RootKind, RootRange, RootWord, Roots, Scan, ScanOptions};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::heapmodel::{LiveBlock, SiteId};
use crate::profile::leaks::LeakClass::{self, Definite, Indirect, Possible, Reachable};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where the roots of these tests lie.
const ROOTS: u64 = 0x5555_0000_0000;
/// Where block 0 lies; block n lies 4096 bytes times n behind.
const HEAP: u64 = 0x7fff_0000_0000;

/// A made-up process: pages that exist, the roots' one from the beginning.
#[derive(Clone, Debug, Default)]
struct Target {
    pages: BTreeMap<u64, Vec<u8>>,
    blocks: Vec<LiveBlock>,
    words: Vec<RootWord>,
    root_size: u64,
    reads: usize,
    /// After so many reads the process has ended.
    ends_after: Option<usize>,
}

impl ReadMemory for Target {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.reads += 1;
        if self.has_gone() {
            return 0;
        }
        for (i, byte) in buf.iter_mut().enumerate() {
            let at = addr.0 + i as u64;
            let Some(page) = self.pages.get(&(at / 4096)) else { return i };
            *byte = page[(at % 4096) as usize];
        }
        buf.len()
    }

    /// The pages that exist, when the range is larger than a mebibyte or as large.
    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        assert!(range.end.0 - range.start.0 >= 1 << 20, "{range:?}: asked too often");
        let pages = self.pages.range(range.start.0 / 4096..range.end.0.div_ceil(4096));
        pages.map(|(page, _)| Addr(page * 4096)..Addr((page + 1) * 4096)).collect()
    }

    fn has_gone(&self) -> bool {
        self.ends_after.is_some_and(|reads| self.reads >= reads)
    }
}

impl Target {
    /// Blocks of 64 bytes.
    fn new(blocks: usize) -> Self {
        let mut target = Self { root_size: 4096, ..Self::default() };
        (0..blocks).for_each(|n| target.block(block(n), 64));
        target
    }

    fn block(&mut self, addr: u64, size: u64) {
        self.blocks.push(LiveBlock { addr: Addr(addr), size, site: SiteId(0), inherited: false });
        (addr / 4096..=(addr + size) / 4096).for_each(|page| self.map(page * 4096));
    }

    fn map(&mut self, addr: u64) {
        self.pages.entry(addr / 4096).or_insert_with(|| vec![0; 4096]);
    }

    fn put(&mut self, addr: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let at = addr + i as u64;
            self.map(at);
            self.pages.get_mut(&(at / 4096)).unwrap()[(at % 4096) as usize] = *byte;
        }
    }

    fn word(&mut self, addr: u64, value: u64) {
        self.put(addr, &value.to_le_bytes());
    }

    /// Puts a pointer into the roots.
    fn root(&mut self, slot: u64, value: u64) -> &mut Self {
        self.word(ROOTS + slot * 8, value);
        self
    }

    /// Puts a pointer into the second word of a block.
    fn link(&mut self, from: usize, value: u64) -> &mut Self {
        self.word(block(from) + 8, value);
        self
    }

    fn roots(&self) -> Roots {
        let range = RootRange { start: Addr(ROOTS), end: Addr(ROOTS + self.root_size), kind: RootKind::Anonymous };
        Roots { ranges: vec![range], words: self.words.clone(), ..Roots::default() }
    }

    fn scan_with(&mut self, options: &ScanOptions) -> Scan {
        self.map(ROOTS);
        let roots = self.roots();
        Graph::read(self.blocks.clone(), &roots, self, options).classify()
    }

    fn scan(&mut self) -> Scan {
        self.scan_with(&ScanOptions::default())
    }

    fn classes(&mut self) -> Vec<LeakClass> {
        self.scan().blocks().map(|(_, class)| class).collect()
    }
}

fn block(n: usize) -> u64 {
    HEAP + n as u64 * 4096
}

/// A pointer to the inside of a block.
fn inside(n: usize) -> u64 {
    block(n) + 32
}

/// The nine cases of the Valgrind manual (4.2.8); the last block of each is the one that the case is about, block 0 in
/// all.
#[test]
fn the_nine_cases() {
    type Links = &'static [(usize, bool)];
    let chain = |root: Option<bool>, links: Links| {
        // from the root to block n..., at last to block 0; true for a start pointer
        let mut target = Target::new(2);
        let to = |n, start| if start { block(n) } else { inside(n) };
        let first = if links.is_empty() { 0 } else { 1 };
        if let Some(start) = root {
            target.root(3, to(first, start));
        }
        for (from, start) in links {
            target.link(*from, to(0, *start));
        }
        target.classes()
    };
    assert_eq!(chain(Some(true), &[]), [Reachable, Definite], "case 1: RRR -> BBB");
    assert_eq!(chain(Some(true), &[(1, true)]), [Reachable, Reachable], "case 2: RRR -> AAA -> BBB");
    assert_eq!(chain(None, &[]), [Definite, Definite], "case 3: nothing");
    assert_eq!(chain(None, &[(1, true)]), [Indirect, Definite], "case 4: AAA -> BBB");
    assert_eq!(chain(Some(false), &[]), [Possible, Definite], "case 5: RRR -?> BBB");
    assert_eq!(chain(Some(true), &[(1, false)]), [Possible, Reachable], "case 6: RRR -> AAA -?> BBB");
    assert_eq!(chain(Some(false), &[(1, true)]), [Possible, Possible], "case 7: RRR -?> AAA -> BBB");
    assert_eq!(chain(Some(false), &[(1, false)]), [Possible, Possible], "case 8: RRR -?> AAA -?> BBB");
    assert_eq!(chain(None, &[(1, false)]), [Indirect, Definite], "case 9: AAA -?> BBB");
}

#[test]
fn a_start_pointer_found_later_raises_all_that_hangs_on_a_possible_block() {
    let mut target = Target::new(4);
    // 0 is found by its inside first, by its start at the end of a chain 3 -> 2 -> 0; 1 hangs on it
    target.root(0, inside(0)).root(1, block(3)).link(3, block(2)).link(2, block(0)).link(0, block(1));
    assert_eq!(target.classes(), [Reachable; 4]);
    // without the chain's last link
    target.link(2, 0);
    assert_eq!(target.classes(), [Possible, Possible, Reachable, Reachable]);
}

#[test]
fn of_a_leaked_cycle_the_smallest_address_is_definite() {
    let mut target = Target::new(5);
    target.link(2, block(3)).link(3, inside(1)).link(1, block(2));
    target.link(4, block(4));
    let scan = target.scan();
    let classes: Vec<_> = scan.blocks().map(|(_, class)| class).collect();
    assert_eq!(classes, [Definite, Definite, Indirect, Indirect, Definite], "4 points to itself only");
    assert_eq!([2, 3].map(|n| scan.leader(n)), [Some(1), Some(1)]);
    assert_eq!([0, 1, 4].map(|n| scan.leader(n)), [None; 3], "they hang on none");
}

#[test]
fn a_cycle_hangs_on_the_leaked_block_that_leads_to_it() {
    let mut target = Target::new(4);
    // 0 <-> 1, and 3 leads to 1; 2 is led to by 0
    target.link(0, block(1)).link(1, block(0)).link(3, block(1));
    target.word(block(0) + 16, block(2));
    let scan = target.scan();
    let classes: Vec<_> = scan.blocks().map(|(_, class)| class).collect();
    assert_eq!(classes, [Indirect, Indirect, Indirect, Definite]);
    assert_eq!([0, 1, 2].map(|n| scan.leader(n)), [Some(3); 3]);
}

#[test]
fn a_block_that_two_leaked_ones_lead_to_hangs_on_the_first() {
    let mut target = Target::new(3);
    target.link(0, block(1)).link(2, block(1));
    let scan = target.scan();
    assert_eq!(scan.blocks().map(|(_, class)| class).collect::<Vec<_>>(), [Definite, Indirect, Definite]);
    assert_eq!(scan.leader(1), Some(0));
}

#[test]
fn what_a_leaked_block_points_to_may_still_be_possible_or_reachable() {
    let mut target = Target::new(3);
    target.root(0, block(1)).root(1, inside(2)).link(0, block(1));
    target.word(block(0) + 16, block(2));
    assert_eq!(target.classes(), [Definite, Reachable, Possible]);
}

#[test]
fn extents_are_the_requested_sizes() {
    let mut target = Target::new(0);
    target.block(HEAP, 24);
    target.block(HEAP + 24, 0);
    target.block(HEAP + 32, 16);
    target.block(HEAP + 48, 1);
    assert_eq!(target.root(0, HEAP + 24).classes(), [Definite, Reachable, Definite, Definite], "empty, behind another");
    assert_eq!(target.root(0, HEAP + 25).classes(), [Definite; 4], "the padding behind an empty block");
    assert_eq!(target.root(0, HEAP + 23).classes(), [Possible, Definite, Definite, Definite], "the last byte");
    assert_eq!(target.root(0, HEAP + 48).classes(), [Definite, Definite, Definite, Reachable], "one past 2's end");
    assert_eq!(target.root(0, HEAP + 49).classes(), [Definite; 4], "one past the end of all");
    assert_eq!(target.root(0, HEAP - 1).classes(), [Definite; 4], "one before all");
}

#[test]
fn only_whole_aligned_words_are_pointers() {
    let mut target = Target::new(2);
    target.word(ROOTS + 4, block(0));
    assert_eq!(target.classes(), [Definite, Definite], "not aligned");
    // a block that begins and ends between words: the pointers at its edges are cut
    let odd = block(8) + 4;
    target.block(odd, 16);
    target.root(9, odd);
    target.word(block(8), block(0));
    target.word(block(8) + 16, block(0));
    assert_eq!(target.classes(), [Definite, Definite, Reachable]);
    target.word(block(8) + 8, block(0));
    assert_eq!(target.classes(), [Reachable, Definite, Reachable]);
    assert_eq!(target.scan().path_to(0).unwrap().steps[0].next_offset, Some(4));
}

#[test]
fn interior_pointers_can_count() {
    let mut target = Target::new(3);
    target.root(0, inside(0)).link(0, inside(1));
    let scan = target.scan_with(&ScanOptions { interior: InteriorPointers::Reachable, ..ScanOptions::default() });
    assert_eq!(scan.blocks().map(|(_, class)| class).collect::<Vec<_>>(), [Reachable, Reachable, Definite]);
    assert_eq!(scan.path_to(1).unwrap().steps[1].target_offset, 32);
}

#[test]
fn registers_are_roots() {
    let mut target = Target::new(2);
    let rbx = RootKind::Register { tid: 7, name: "rbx" };
    target.words = vec![RootWord { value: block(0), kind: rbx }];
    target.link(0, inside(1));
    let scan = target.scan();
    assert_eq!(scan.blocks().map(|(_, class)| class).collect::<Vec<_>>(), [Reachable, Possible]);
    let path = scan.path_to(1).unwrap();
    assert_eq!((path.root, path.root_address), (rbx, None));
    let steps = [
        PathBlock { block: 0, target_offset: 0, next_offset: Some(8) },
        PathBlock { block: 1, target_offset: 32, next_offset: None },
    ];
    assert_eq!(path.steps, steps);
}

#[test]
fn the_words_of_live_blocks_in_data_and_anonymous_memory_are_no_roots() {
    // a pool in a static array: blocks 4 and 5 point to each other
    let mut target = Target::new(1);
    target.block(ROOTS + 64, 32);
    target.block(ROOTS + 128, 32);
    target.word(ROOTS + 64, ROOTS + 128);
    target.word(ROOTS + 128, ROOTS + 64);
    target.word(ROOTS + 136, block(0));
    assert_eq!(target.classes(), [Definite, Indirect, Indirect]);
    target.word(ROOTS + 96, ROOTS + 128);
    assert_eq!(target.classes(), [Reachable; 3], "between them there are roots");

    // but a stack that lies in a block is a root
    let mut target = Target::new(2);
    target.word(block(0) + 16, block(1));
    let mut roots = target.roots();
    roots.ranges.push(RootRange { start: Addr(block(0)), end: Addr(block(0) + 64), kind: RootKind::Stack { tid: 1 } });
    let scan = Graph::read(target.blocks.clone(), &roots, &mut target, &ScanOptions::default()).classify();
    assert_eq!(scan.blocks().map(|(_, class)| class).collect::<Vec<_>>(), [Definite, Reachable]);
    let path = scan.path_to(1).unwrap();
    assert_eq!((path.root, path.root_address), (RootKind::Stack { tid: 1 }, Some(Addr(block(0) + 16))));
}

#[test]
fn the_inner_of_two_blocks_has_the_bytes_and_holds_the_outer() {
    let mut target = Target::new(0);
    // a pool of 1024 bytes with two blocks, and a block elsewhere
    target.block(HEAP, 1024);
    target.block(HEAP + 64, 64);
    target.block(HEAP + 256, 64);
    target.block(HEAP + 8192, 64);
    target.word(HEAP + 72, HEAP + 8192);
    assert_eq!(
        target.classes(),
        [Indirect, Definite, Definite, Indirect],
        "all leaked; the pool hangs on a block of it"
    );
    target.root(0, HEAP + 64);
    assert_eq!(target.classes(), [Reachable, Reachable, Definite, Reachable]);
    target.root(0, HEAP);
    assert_eq!(target.classes(), [Reachable, Definite, Definite, Indirect], "72 is not read as the pool's");
    target.word(HEAP + 128, HEAP + 256);
    assert_eq!(target.classes(), [Reachable, Definite, Reachable, Indirect], "behind the inner block it is the pool's");
    target.root(0, HEAP + 512);
    assert_eq!(target.classes(), [Possible, Definite, Possible, Indirect]);
    assert_eq!(target.scan().find(Addr(HEAP + 130)), Some(0));
    assert_eq!(target.scan().find(Addr(HEAP + 70)), Some(1));
    target.root(0, HEAP + 64);
    let path = target.scan().path_to(0).unwrap();
    assert_eq!(path.steps.last().unwrap(), &PathBlock { block: 0, target_offset: 0, next_offset: None });
    assert_eq!(path.steps[0], PathBlock { block: 1, target_offset: 0, next_offset: None });
}

#[test]
fn holes_are_counted_and_skipped() {
    let mut target = Target::new(3);
    target.root_size = 5 * 4096;
    target.map(ROOTS + 4 * 4096);
    target.word(ROOTS + 4 * 4096 + 8, block(1));
    // a block that nothing is mapped for
    target.blocks.push(LiveBlock { addr: Addr(0x7ffe_0000_0100), size: 8000, site: SiteId(0), inherited: false });
    let scan = target.scan();
    assert_eq!(scan.blocks().map(|(_, class)| class).collect::<Vec<_>>(), [Definite, Definite, Reachable, Definite]);
    assert_eq!(scan.unreadable_bytes(), 3 * 4096 + 8000);
    assert_eq!(scan.scanned_bytes(), 2 * 4096 + 3 * 64);
}

#[test]
fn what_was_never_touched_is_not_read() {
    let mut target = Target::new(2);
    target.root(0, HEAP + (1 << 30));
    // a tebibyte of which two pages exist, and the pointer in the first is half in the block
    let large = LiveBlock { addr: Addr(HEAP + (1 << 30) - 4), size: 1 << 40, site: SiteId(0), inherited: false };
    target.blocks.push(large);
    target.word(HEAP + (1 << 35), block(1));
    target.word(large.addr.0 - 4, block(0));
    target.root(1, large.addr.0);
    let scan = target.scan();
    assert_eq!(scan.blocks().map(|(_, class)| class).collect::<Vec<_>>(), [Definite, Reachable, Reachable]);
    assert_eq!(scan.path_to(1).unwrap().steps[0].next_offset, Some((1 << 35) - (1 << 30) + 4));
    assert_eq!(scan.unreadable_bytes(), 0);
}

#[test]
fn nothing_at_all() {
    let scan = Target::default().scan();
    assert_eq!(scan.blocks().len(), 0);
    assert_eq!((scan.find(Addr(0)), scan.path_to(0), scan.leader(0), scan.block(0)), (None, None, None, None));
}

#[test]
fn blocks_at_the_edges_of_the_address_space() {
    let mut target = Target::new(0);
    let at = |addr, size| LiveBlock { addr: Addr(addr), size, site: SiteId(0), inherited: false };
    target.blocks = vec![at(8, 16), at(u64::MAX - 20, 100), at(u64::MAX, 0)];
    target.words = vec![RootWord { value: u64::MAX - 8, kind: RootKind::Anonymous }];
    assert_eq!(target.classes(), [Definite, Possible, Definite]);
}

#[test]
fn a_path_is_a_shortest_one() {
    // 0 by a chain of three, or by the inside at once; 5 and 6 hang on 0
    let mut target = Target::new(7);
    target.root(4, block(1)).link(1, block(2)).link(2, block(3)).link(3, block(0)).link(0, inside(5)).link(5, block(6));
    let numbers = |scan: &Scan, n| scan.path_to(n).unwrap().steps.iter().map(|step| step.block).collect::<Vec<_>>();
    let scan = target.scan();
    assert_eq!(numbers(&scan, 0), [1, 2, 3, 0]);
    assert_eq!(numbers(&scan, 6), [1, 2, 3, 0, 5, 6]);
    assert_eq!(scan.path_to(4), None);
    assert_eq!(scan.path_to(0).unwrap().root_address, Some(Addr(ROOTS + 32)));
    target.root(5, inside(4)).link(4, block(6));
    assert_eq!(numbers(&target.scan(), 6), [4, 6], "shorter over another possible block, though found later");
    target.root(6, block(3));
    assert_eq!(numbers(&target.scan(), 0), [3, 0]);
}

#[test]
fn a_list_of_a_million_blocks() {
    const N: u64 = 1_000_000;
    let node = |n: u64| HEAP + n * 32;
    let mut image = crate::base::memory::MemoryImage { start: Addr(HEAP), bytes: vec![0; N as usize * 32] };
    let order = |n: u64| (n * 7919) % N;
    for n in 0..N - 1 {
        let at = (order(n) * 32) as usize;
        image.bytes[at..at + 8].copy_from_slice(&node(order(n + 1)).to_le_bytes());
    }
    let blocks: Vec<_> =
        (0..N).map(|n| LiveBlock { addr: Addr(node(n)), size: 24, site: SiteId(0), inherited: false }).collect();
    let leaked = Graph::read(blocks.clone(), &Roots::default(), &mut image, &ScanOptions::default()).classify();
    assert_eq!(leaked.blocks().filter(|(_, class)| *class == Definite).count(), 1);
    assert_eq!(leaked.leader(order(N - 1) as usize), Some(order(0) as usize));
    let words = vec![RootWord { value: node(order(0)), kind: RootKind::Anonymous }];
    let live =
        Graph::read(blocks, &Roots { words, ..Roots::default() }, &mut image, &ScanOptions::default()).classify();
    assert!(live.blocks().all(|(_, class)| class == Reachable));
    assert_eq!(live.path_to(order(N - 1) as usize).unwrap().steps.len(), N as usize);
}

#[test]
fn neighbours_are_read_in_one_go() {
    let mut target = Target::new(0);
    (0..1000).for_each(|n| target.block(HEAP + n * 48, 40));
    target.scan();
    assert!(target.reads < 10, "{} reads", target.reads);
}

#[test]
fn memory_whose_process_has_ended_is_not_read_on() {
    let mut target = Target::new(0);
    (0..100_000).for_each(|n| target.block(HEAP + n * 48, 40));
    target.ends_after = Some(20);
    target.scan();
    assert!(target.reads < 2_000, "{} reads", target.reads);
}
