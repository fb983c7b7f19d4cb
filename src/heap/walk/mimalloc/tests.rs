use super::super::{Fault, State};
use super::*;
use crate::base::memory::MemoryImage;
use crate::image::maps::{Device, Kind, Mapping, Perms};
use proptest::prelude::*;

const AT: u64 = 0x4000_0000;
const HEAP: u64 = 0x1000_0000;
/// The table of slices and an entry's size, of mimalloc 2.0.9.
const TABLE: u64 = 264;
const ENTRY: u64 = 80;
const THREAD: u64 = 0x7000_1000;
const KEY: u64 = 0x1234_5678_9abc_def0;
/// The first block of the page of blocks of 48 bytes, which has 20, and of that of 8 KiB, which has 4.
const SMALL: u64 = AT + SLICE + 384;
const LARGE: u64 = AT + 2 * SLICE;

/// The beginning of a segment, and a thread's heap.
struct Pieces([MemoryImage; 2]);

impl ReadMemory for Pieces {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.0.iter_mut().map(|piece| piece.read(addr, buf)).find(|n| *n > 0).unwrap_or(0)
    }
}

impl Pieces {
    fn put(&mut self, at: u64, word: u64) {
        for piece in &mut self.0 {
            let place = at.wrapping_sub(piece.start.0) as usize;
            if let Some(bytes) = piece.bytes.get_mut(place..).and_then(|rest| rest.get_mut(..8)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// An entry of the table: how many slices, `capacity`, `reserved`, `used`, the size of blocks, the first blocks of
    /// its lists.
    fn page(&mut self, slice: u64, count: u64, numbers: [u64; 4], lists: [u64; 3]) {
        let at = AT + TABLE + ENTRY * slice;
        let [capacity, reserved, used, size] = numbers;
        let [free, local, other] = lists;
        let words = [count, capacity << 16 | reserved << 32, free, used | size << 32, local, other, HEAP];
        for (word, place) in words.into_iter().zip((at..).step_by(8)) {
            self.put(place, word);
        }
    }

    fn list(&mut self, blocks: &[u64]) {
        for (at, next) in blocks.iter().zip(blocks.iter().skip(1).chain([&0])) {
            self.put(*at, *next);
        }
    }

    fn walk(&mut self) -> Option<Walk> {
        let mapping = |start, len| Mapping {
            start: Addr(start),
            end: Addr(start + len),
            perms: Perms { read: true, write: true, ..Perms::default() },
            offset: 0,
            dev: Device::default(),
            inode: 0,
            path: None,
            deleted: false,
            kind: Kind::Anonymous,
        };
        let mappings = [mapping(HEAP, 0x1000), mapping(AT, SEGMENT)];
        walk(&Sources { mappings: &mappings, data: &[] }, self)
    }
}

const fn small(number: u64) -> u64 {
    SMALL + 48 * number
}

fn filled() -> Pieces {
    let piece = |start, len: u64| MemoryImage { start: Addr(start), bytes: vec![0; len as usize] };
    let mut memory = Pieces([piece(AT, 4 * SLICE), piece(HEAP, 0x1000)]);
    let words = [2, AT ^ KEY, 512, 1, 0, 512, THREAD];
    for (word, place) in words.into_iter().zip((AT + TABLE - 56..).step_by(8)) {
        memory.put(place, word);
    }
    memory.page(0, 1, [0, 0, 0, SLICE], [0; 3]);
    // the low bits of the list of other threads say how it stands
    memory.page(1, 1, [20, 1357, 15, 48], [small(3), small(9), small(5) | 2]);
    memory.list(&[small(3), small(1), small(19)]);
    memory.list(&[small(9)]);
    memory.list(&[small(5), small(6)]);
    memory.page(2, 1, [4, 8, 4, 8192], [0; 3]);
    memory.page(3, 509, [0, 0, 0, 0], [0; 3]);
    // another one has freed this block
    memory.put(HEAP + 2840, LARGE + 8192);
    memory.put(HEAP + 2848, THREAD);
    memory
}

fn blocks(walk: &Walk, state: State) -> Vec<u64> {
    walk.chunks.iter().filter(|chunk| chunk.state == state).map(|chunk| chunk.block().0).collect()
}

#[test]
fn blocks_in_lists_are_free_and_all_others_are_live() {
    let walk = filled().walk().expect("there is a segment");
    assert_eq!(walk.findings, []);
    assert_eq!(
        blocks(&walk, State::Free),
        [1, 3, 5, 6, 9, 19].map(small).into_iter().chain([LARGE + 8192]).collect::<Vec<_>>()
    );
    assert_eq!(blocks(&walk, State::Live).len(), 14 + 3);
    assert_eq!(blocks(&walk, State::Top), [small(20), LARGE + 4 * 8192, AT + 3 * SLICE]);
    let [arena] = &walk.arenas[..] else { panic!("{:?}", walk.arenas) };
    assert_eq!((arena.at, arena.system_bytes, arena.threads), (Addr(HEAP), SEGMENT, Some(1)));
    assert_eq!(walk.regions[0].books, Addr(AT)..Addr(AT + SLICE));
}

#[test]
fn lists_that_cant_be_are_told() {
    let found = |change: fn(&mut Pieces)| {
        let mut memory = filled();
        change(&mut memory);
        let walk = memory.walk().unwrap();
        walk.findings.iter().map(|finding| (finding.at.0, finding.what)).collect::<Vec<_>>()
    };
    // the first word of block 1 is no block's address
    assert_eq!(found(|memory| memory.put(small(1), small(2) + 8)), [(small(2) + 8, Fault::List)]);
    assert_eq!(
        found(|memory| memory.put(small(19), small(3))).iter().map(|found| found.1).collect::<Vec<_>>(),
        [Fault::Circle]
    );
    assert_eq!(found(|memory| memory.put(LARGE + 8192, LARGE + 8192)), [(LARGE + 8192, Fault::Circle)]);
    // more blocks than have room
    let more = found(|memory| memory.page(2, 1, [4, 9, 4, 8192], [0; 3]));
    assert_eq!(more, [(LARGE, Fault::Entry)]);
}

#[test]
fn what_is_no_segment_is_none() {
    let mut memory = filled();
    memory.put(AT + TABLE - 16, 511);
    assert!(memory.walk().is_none());
    let mut memory = filled();
    memory.page(1, 600, [20, 1357, 15, 48], [0; 3]);
    assert!(memory.walk().is_none());
}

proptest! {
    /// Whatever stands in a segment, the walk comes to an end, and no two chunks have a byte in common.
    #[test]
    fn any_heap_is_walked_to_an_end(words in prop::collection::vec((0u64..3, any::<u64>(), any::<u64>()), 0..40)) {
        let mut memory = filled();
        for (place, at, word) in words {
            let word = match word % 6 {
                0 => word,
                1 => AT + word % (4 * SLICE) / 16 * 16,
                2 => small(word / 8 % 30),
                3 => word >> 8 & 0xffff_0001,
                4 => word >> 40 & 0x3ff | (word >> 8 & 0xff) << 32,
                _ => 1,
            };
            let at = match place {
                0 => AT + TABLE + 8 * (at % 60),
                1 => SMALL + 48 * (at % 24),
                _ => AT + TABLE - 8 * (at % 12),
            };
            memory.put(at, word);
        }
        let Some(walk) = memory.walk() else { return Ok(()) };
        for region in &walk.regions {
            let mut end = region.range.start;
            for chunk in walk.of(region) {
                prop_assert!(chunk.at >= end && chunk.end() <= region.range.end, "{chunk:?} in {region:?}");
                end = chunk.end();
            }
        }
    }
}
