//! What a leak check costs beside the process it looks at: a million live blocks in two gigabytes of memory, all of it
//! touched. While `read` runs the target stands still; `classify` needs it no more.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a benchmark")]

use heaptrace::internal::{
    Addr, Graph, LiveBlock, RootKind, RootRange, Roots, Scan, ScanOptions, SiteId, TargetMemory,
};
use heaptrace::profile::leaks::LeakClass;
use std::time::Instant;

/// Words of memory in all: 2 GiB.
const WORDS: usize = 1 << 28;
const BLOCKS: usize = 1_000_000;
/// Every so many blocks, one is large.
const LARGE_EVERY: usize = 10;

/// A generator of numbers without rhyme or reason, always the same ones.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn main() {
    println!("{:<50} {:>8} {:>8} {:>9}   blocks by class", "1,000,000 blocks, 2 GiB", "read", "classify", "in all");
    for (name, order) in [("lists in the order of addresses", false), ("lists in no order", true)] {
        let (words, blocks, roots) = heap(order);
        // SAFETY: the benchmark has one thread; the child only waits until it is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: a plain system call.
                unsafe { libc::pause() };
            }
        }
        assert!(child > 0, "fork failed");
        let mut rounds: Vec<_> = (0..5).map(|_| measure(child, &blocks, &roots)).collect();
        // SAFETY: plain system calls on our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        drop(words);
        rounds.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let (read, classify, scan) = rounds.swap_remove(2);
        println!(
            "{name:<50} {read:6.2} s {classify:6.2} s {:7.2} s   {}   (limit 2 s)",
            read + classify,
            classes(&scan)
        );
    }
}

/// Half of the memory belongs to blocks, the rest is a root. Each block points to the next one of its list and to two
/// others; what is left of it are numbers and text. A hundredth of the lists has no root.
fn heap(shuffled: bool) -> (Vec<u64>, Vec<LiveBlock>, Roots) {
    let mut random = Random(1);
    let mut words: Vec<u64> = (0..WORDS as u64).map(|n| if n % 3 == 0 { 0x7361_2073_6920_6f20 } else { n }).collect();
    let base = words.as_ptr() as u64;
    let mut places = Vec::with_capacity(BLOCKS);
    let mut at = 0;
    for n in 0..BLOCKS {
        let size = if n % LARGE_EVERY == 0 { 512 + random.below(1024) } else { 2 + random.below(30) } as usize;
        places.push((at, size));
        at += size + 2;
    }
    assert!(at < WORDS / 2 + WORDS / 8, "{at}");
    let mut order: Vec<usize> = (0..BLOCKS).collect();
    if shuffled {
        (1..BLOCKS).rev().for_each(|n| order.swap(n, random.below(n as u64 + 1) as usize));
    }
    let pointer = |n: usize| base + places[n].0 as u64 * 8;
    for (n, block) in order.iter().enumerate() {
        let (place, size) = places[*block];
        words[place] = if n % 1000 == 999 { 0 } else { pointer(order[(n + 1) % BLOCKS]) };
        words[place + size / 2] = pointer(order[n - n % 1000]);
        words[place + size - 1] = pointer(order[(n / 1000 * 1000 + random.below(1000) as usize) % BLOCKS]) + 8;
    }
    for list in (0..BLOCKS / 1000).filter(|list| list % 100 != 0) {
        words[at + list * 1000] = pointer(order[list * 1000]);
    }
    let blocks = places
        .iter()
        .map(|(at, size)| LiveBlock {
            addr: Addr(base + *at as u64 * 8),
            size: *size as u64 * 8,
            site: SiteId(0),
            inherited: false,
        })
        .collect();
    let range =
        RootRange { start: Addr(base + at as u64 * 8), end: Addr(base + WORDS as u64 * 8), kind: RootKind::Anonymous };
    (words, blocks, Roots { ranges: vec![range], ..Roots::default() })
}

fn measure(child: i32, blocks: &[LiveBlock], roots: &Roots) -> (f64, f64, Scan) {
    let mut memory = TargetMemory::open(child, child).unwrap();
    memory.new_stop(child);
    let blocks = blocks.to_vec();
    let start = Instant::now();
    let graph = Graph::read(blocks, roots, &mut memory, &ScanOptions::default());
    let read = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let scan = graph.classify();
    let classify = start.elapsed().as_secs_f64();
    assert!(scan.scanned_bytes() > 2_000_000_000 && scan.unreadable_bytes() == 0, "it could not read all");
    (read, classify, scan)
}

fn classes(scan: &Scan) -> String {
    let count = |class| scan.blocks().filter(|(_, of_block)| *of_block == class).count();
    LeakClass::ALL.map(|class| format!("{} {}", count(class), class.name())).join(", ")
}
