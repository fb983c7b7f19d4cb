//! Blocks in a piece of memory that behaves as glibc's does, and the bytes that a program has written of them.

use super::*;
use crate::base::memory::MemoryImage;
use proptest::prelude::*;

const START: Addr = Addr(0x10000);
const TASK: u32 = 1;

/// Memory in which blocks lie at chosen places, with chunk heads before them.
struct Heap {
    memory: MemoryImage,
    blocks: Blocks,
}

impl Heap {
    fn new() -> Self {
        Self { memory: MemoryImage { start: START, bytes: vec![0x33; 1 << 20] }, blocks: Blocks::default() }
    }

    fn set(&mut self, at: Addr, bytes: &[u8]) {
        let place = usize::try_from(at.0 - START.0).unwrap();
        self.memory.bytes[place..place + bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, at: Addr, length: u64) -> Vec<u8> {
        let place = usize::try_from(at.0 - START.0).unwrap();
        self.memory.bytes[place..place + usize::try_from(length).unwrap()].to_vec()
    }

    /// The chunk that glibc takes for so many bytes.
    fn set_head(&mut self, block: Addr, size: u64) {
        let chunk = (size + 8).next_multiple_of(16).max(32);
        self.set(block.sub(8), &(chunk | 1).to_le_bytes());
    }

    fn malloc(&mut self, block: Addr, size: u64) {
        self.set_head(block, size);
        self.set(block, &vec![FILL; usize::try_from(size).unwrap()]);
        self.blocks.handed_out(block, size, &mut self.memory);
    }

    /// As glibc does it: what was used of the old chunk is copied, nothing is filled. Then what the session does.
    fn realloc(&mut self, old: Addr, old_size: u64, new: Addr, size: u64) {
        self.blocks.resizes(TASK, old, true, &mut self.memory);
        let usable = (old_size + 8).next_multiple_of(16).max(32) - 8;
        let kept = self.get(old, usable.min(size));
        self.set_head(new, size);
        self.set(new, &kept);
        if let Some(part) = self.blocks.resized(TASK, old, (new, size), &mut self.memory) {
            assert_eq!(part.end, new.add(size));
            assert!(part.start >= new.add(usable), "what may be the program's is not written over");
            self.set(part.start, &vec![FILL; usize::try_from(part.end.0 - part.start.0).unwrap()]);
        }
    }

    fn free(&mut self, block: Addr) -> Option<u64> {
        self.blocks.given_back(block, &mut self.memory)
    }
}

fn block(number: u64) -> Addr {
    START.add(0x1000 + number * 0x20000)
}

#[test]
fn the_end_that_still_holds_the_fill_was_never_written() {
    let mut heap = Heap::new();
    for (size, written, expected) in [(100, 0, 100), (100, 1, 99), (100, 99, 1), (100, 100, 0), (100_000, 7, 99_993)] {
        heap.malloc(block(1), size);
        heap.set(block(1), &vec![0x44; written]);
        assert_eq!(heap.free(block(1)), Some(expected), "{written} of {size}");
        assert_eq!(heap.free(block(1)), None);
    }
    // a last byte alone
    heap.malloc(block(1), 100);
    heap.set(block(1).add(99), &[0]);
    assert_eq!(heap.free(block(1)), Some(0));
    // what a program writes of the very same byte can't be told from the fill
    heap.malloc(block(1), 100);
    heap.set(block(1), &[0x44; 50]);
    heap.set(block(1).add(50), &[FILL; 50]);
    assert_eq!(heap.free(block(1)), Some(50));
}

#[test]
fn of_blocks_without_the_fill_nothing_is_told() {
    let mut heap = Heap::new();
    heap.set(block(1), &[0; 100]);
    heap.blocks.handed_out(block(1), 100, &mut heap.memory);
    assert_eq!(heap.free(block(1)), None);
    assert!(heap.blocks.untold().unwrap().contains("none of 1 block had"));
    heap.set(block(1), &[FILL; 100]);
    heap.set(block(1).add(3), &[0]);
    heap.blocks.handed_out(block(1), 100, &mut heap.memory);
    assert_eq!(heap.free(block(1)), None, "it held something else");
    heap.malloc(block(1), 100);
    assert!(heap.blocks.untold().unwrap().contains("1 of 3 blocks"));
    // it can't be read
    heap.blocks.handed_out(Addr(8), 100, &mut heap.memory);
    assert_eq!(heap.free(Addr(8)), None);
    heap.blocks.handed_out(block(2), 0, &mut heap.memory);
    assert_eq!(heap.free(block(2)), None);
    assert!(heap.blocks.untold().unwrap().contains("1 of 4 blocks"));
}

#[test]
fn what_a_realloc_adds_is_filled_but_for_what_the_old_chunk_held() {
    let mut heap = Heap::new();
    // a chunk of 100 bytes has room for 104
    heap.malloc(block(1), 100);
    heap.set(block(1), &[0x44; 100]);
    heap.realloc(block(1), 100, block(2), 1000);
    assert_eq!(heap.get(block(2).add(100), 4), [0x33; 4]);
    assert_eq!(heap.free(block(2)), Some(900));
    // what a program has written there, as it may, stays
    heap.malloc(block(1), 100);
    heap.set(block(1), &[0x44; 104]);
    heap.realloc(block(1), 100, block(2), 1000);
    assert_eq!(heap.get(block(2).add(100), 4), [0x44; 4]);
    heap.set(block(2).add(100), &[0x55; 2]);
    assert_eq!(heap.free(block(2)), Some(898));
    // a block of which nothing is known
    heap.set(block(1), &[0; 100]);
    heap.blocks.handed_out(block(1), 100, &mut heap.memory);
    heap.realloc(block(1), 100, block(2), 1000);
    assert_eq!(heap.free(block(2)), None);
    // no chunk of glibc's
    heap.malloc(block(1), 100);
    heap.set(block(1).sub(8), &0x9999u64.to_le_bytes());
    assert_eq!(heap.blocks.resizes(TASK, block(1), true, &mut heap.memory), Some(100));
    assert_eq!(heap.blocks.resized(TASK, block(1), (block(2), 1000), &mut heap.memory), None);
    assert_eq!(heap.free(block(2)), None);
}

/// What is left of a realloc whose return was not seen says nothing about the next block at its address.
#[test]
fn a_realloc_that_was_never_seen_to_end_leaves_nothing_behind() {
    let mut heap = Heap::new();
    heap.malloc(block(1), 40);
    heap.blocks.resizes(TASK, block(1), true, &mut heap.memory);
    // the block was freed unseen, and calloc hands its address out
    heap.set_head(block(1), 400);
    heap.set(block(1), &[0; 400]);
    heap.blocks.handed_out(block(1), 400, &mut heap.memory);
    assert_eq!(heap.blocks.resizes(TASK, block(1), true, &mut heap.memory), None);
    assert_eq!(heap.blocks.resized(TASK, block(1), (block(1), 500), &mut heap.memory), None, "to be filled");
}

#[test]
fn a_realloc_that_fails_changes_nothing() {
    let mut heap = Heap::new();
    heap.malloc(block(1), 100);
    heap.set(block(1), &[0x44; 30]);
    assert_eq!(heap.blocks.resizes(TASK, block(1), true, &mut heap.memory), Some(70));
    assert_eq!(heap.blocks.resized(TASK, block(1), (Addr::NULL, 1000), &mut heap.memory), None);
    assert_eq!(heap.blocks.live(&mut heap.memory), [(block(1), 70)]);
    // of no bytes: it is freed
    heap.blocks.resizes(TASK, block(1), true, &mut heap.memory);
    heap.blocks.resized(TASK, block(1), (Addr::NULL, 0), &mut heap.memory);
    assert_eq!(heap.free(block(1)), None);
}

proptest! {
    /// Resized again and again, with writes between, that begin anywhere and are of anything but the fill.
    #[test]
    fn it_is_known_from_where_on_nothing_was_written(
        first in 1u64..3000,
        steps in proptest::collection::vec((1u64..9000, proptest::collection::vec((any::<u16>(), 0u64..40), 0..2)), 0..8),
    ) {
        let mut heap = Heap::new();
        heap.malloc(block(1), first);
        // up to here the program has written
        let (mut size, mut written, mut at) = (first, 0u64, 1);
        for (next, writes) in steps {
            for (place, length) in writes {
                let place = u64::from(place) % size;
                let length = length.min(size - place);
                heap.set(block(at).add(place), &vec![0x44; usize::try_from(length).unwrap()]);
                if length > 0 {
                    written = written.max(place + length);
                }
            }
            heap.realloc(block(at), size, block(3 - at), next);
            (size, written, at) = (next, written.min(next), 3 - at);
        }
        prop_assert_eq!(heap.blocks.live(&mut heap.memory), [(block(at), size - written)]);
        prop_assert_eq!(heap.free(block(at)), Some(size - written));
    }
}
