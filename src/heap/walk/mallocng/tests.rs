use super::super::{Fault, State};
use super::*;
use crate::base::addr::Addr;
use crate::base::memory::MemoryImage;
use crate::image::maps::{Device, Kind, Mapping, Perms};
use proptest::prelude::*;

const DATA: u64 = 0x10_0000;
const TABLE: u64 = 0x200_0000;
const HEAP: u64 = 0x300_0000;
const HEAP_SIZE: u64 = 0x8000;
const SECRET: u64 = 0x1234_5678_9abc_def0;
/// The class of slots of 48 bytes, and that of 496 bytes.
const OF_48: u64 = 2;
const OF_496: u64 = 15;

/// A module's data, a table, and memory for groups.
struct Pieces(Vec<MemoryImage>);

impl ReadMemory for Pieces {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.0.iter_mut().map(|piece| piece.read(addr, buf)).find(|n| *n > 0).unwrap_or(0)
    }
}

impl Pieces {
    /// A table with no entries.
    fn new() -> Self {
        let piece = |start, len: u64| MemoryImage { start: Addr(start), bytes: vec![0; len as usize] };
        let mut pieces = Self(vec![piece(DATA, 0x1000), piece(TABLE, PAGE), piece(HEAP, HEAP_SIZE)]);
        let context = DATA + 0x340;
        for (at, word) in [(0, SECRET), (8, 7 << 32 | 1), (56, TABLE), (64, TABLE)] {
            pieces.put(context + at, word);
        }
        pieces.put(TABLE, SECRET);
        pieces.put(TABLE + 16, 101);
        pieces
    }

    fn put(&mut self, at: u64, word: u64) {
        word.to_le_bytes().into_iter().zip(at..).for_each(|(byte, at)| self.put_byte(at, byte));
    }

    fn put_byte(&mut self, at: u64, byte: u8) {
        for piece in &mut self.0 {
            if let Some(place) = piece.bytes.get_mut(at.wrapping_sub(piece.start.0) as usize) {
                *place = byte;
            }
        }
    }

    /// An entry and the beginning of its group.
    fn group(&mut self, number: u64, mem: u64, free: u64, last: u64, class: u64, pages: u64) {
        let at = TABLE + 24 + 40 * number;
        for (offset, word) in [(0, at), (8, at), (16, mem), (24, free), (32, last | 1 << 5 | class << 6 | pages << 12)]
        {
            self.put(at + offset, word);
        }
        self.put(mem, at);
    }

    /// The header of a block: which slot, how many units behind the group's first one, and how much of the slot it may
    /// not use.
    fn block(&mut self, at: u64, slot: u8, units: u16, unused: u8) {
        let [low, high] = units.to_le_bytes();
        for (byte, place) in [0, slot | unused << 5, low, high].into_iter().zip(at - 4..) {
            self.put_byte(place, byte);
        }
    }

    fn walk(&mut self) -> Option<Walk> {
        let mapping = |start, len, kind| Mapping {
            start: Addr(start),
            end: Addr(start + len),
            perms: Perms { read: true, write: true, ..Perms::default() },
            offset: 0,
            dev: Device::default(),
            inode: 0,
            path: None,
            deleted: false,
            kind,
        };
        let mappings = [
            mapping(DATA, 0x1000, Kind::File),
            mapping(TABLE, PAGE, Kind::Heap),
            mapping(HEAP, HEAP_SIZE, Kind::Anonymous),
        ];
        let data = [Addr(DATA)..Addr(DATA + 0x1000)];
        walk(&Sources { mappings: &mappings, data: &data }, self)
    }
}

fn blocks(walk: &Walk) -> Vec<(u64, u64, State)> {
    walk.chunks.iter().map(|chunk| (chunk.block().0, chunk.usable(), chunk.state)).collect()
}

/// A page of slots of 496 bytes: one is free, one holds a block, one a block further on, one a group of slots of 48
/// bytes.
fn filled() -> Pieces {
    let mut memory = Pieces::new();
    let slot = |number: u64| HEAP + 16 + 496 * number;
    memory.group(0, HEAP, 0b1_0001, 7, OF_496, 1);
    memory.block(slot(1), 1, 31, 3);
    // three units further on, and the rest told at the slot's end
    memory.block(slot(2), 0, 3, 7);
    memory.block(slot(2) + 48, 2, 62 + 3, 5);
    memory.put(slot(3) - 8, 100);
    memory.block(slot(3), 3, 93, 6);
    memory.group(1, slot(3), 0b1_1111_1101, 8, OF_48, 0);
    memory.block(slot(3) + 16 + 48, 1, 3, 0);
    for number in 5..8 {
        memory.block(slot(number), number as u8, 31 * number as u16, 0);
    }
    memory
}

#[test]
fn blocks_are_in_the_slots_that_are_not_free() {
    let walk = filled().walk().expect("there is a context");
    assert!(walk.findings.iter().all(|finding| finding.what != Fault::Entry), "{:?}", walk.findings);
    let slot = |number: u64| HEAP + 16 + 496 * number;
    let all = blocks(&walk);
    for expected in [
        (slot(0), 492, State::Free),
        (slot(1), 489, State::Live),
        (slot(2) + 48, 492 - 48 - 100, State::Live),
        (slot(3) + 16, 44, State::Free),
        (slot(3) + 64, 44, State::Live),
        (slot(4), 492, State::Free),
        (slot(7), 492, State::Live),
    ] {
        assert!(all.contains(&expected), "{expected:x?} in {all:x?}");
    }
    assert_eq!(all.iter().filter(|block| block.0 >= slot(3) && block.0 < slot(4)).count(), 9, "{all:x?}");
    assert_eq!((walk.allocator, walk.arenas[0].system_bytes), (Allocator::Musl, 2 * PAGE));
}

/// How a block that is further on tells the rest that it may not use.
#[test]
fn what_is_not_used_is_told_at_the_end_of_the_slot() {
    let mut memory = Pieces::new();
    memory.group(0, HEAP, 0, 0, 63, 2);
    memory.block(HEAP + 16, 0, 4, 7);
    memory.block(HEAP + 16 + 64, 0, 4, 5);
    // behind it is the room of a header that nobody has
    memory.put(HEAP + 2 * PAGE - 8, 200);
    let walk = memory.walk().expect("there is a context");
    assert_eq!(blocks(&walk), [(HEAP + 80, 2 * PAGE - 4 - 80 - 200, State::Live)]);
    assert_eq!((walk.regions.last().unwrap().arena, walk.findings.len()), (None, 0), "{walk:?}");
}

#[test]
fn what_was_written_over_is_told_and_the_others_are_found() {
    let slot = |number: u64| HEAP + 16 + 496 * number;
    let found = |change: fn(&mut Pieces)| {
        let mut memory = filled();
        let clean = memory.walk().unwrap();
        change(&mut memory);
        let walk = memory.walk().unwrap();
        assert_eq!(walk.chunks.len(), clean.chunks.len());
        walk.findings.into_iter().filter(|finding| !clean.findings.contains(finding)).collect::<Vec<_>>()
    };
    // a byte behind block 1
    let findings = found(|memory| memory.put_byte(HEAP + 16 + 496 + 489, 0x41));
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((finding.what, finding.at), (Fault::Overrun, Addr(slot(1) + 489)));
    assert_eq!(finding.before.map(|chunk| chunk.block().0), Some(slot(1)));
    // the header of block 6
    let findings = found(|memory| memory.put(HEAP + 16 + 496 * 6 - 8, 0x4141_4141_4141_4141));
    let header = findings.iter().find(|finding| finding.what == Fault::Header).unwrap();
    assert_eq!((header.at, header.before.map(|chunk| chunk.block().0)), (Addr(slot(6)), Some(slot(5))));
    // the group's beginning
    let findings = found(|memory| memory.put(HEAP, 0));
    assert_eq!(findings.iter().map(|finding| finding.what).collect::<Vec<_>>(), [Fault::Group]);
}

/// Tables that lead in a circle, and groups that lie over each other.
#[test]
fn tables_that_cant_be_come_to_an_end() {
    let mut memory = filled();
    memory.put(TABLE + 8, TABLE);
    memory.group(2, HEAP + 32, 0, 0, 63, 3);
    memory.group(3, HEAP + 0x7000, 0, 31, 47, 1);
    let walk = memory.walk().unwrap();
    let of = |what| walk.findings.iter().filter(|finding| finding.what == what).count();
    assert_eq!((of(Fault::Table), of(Fault::Entry)), (1, 2), "{:?}", walk.findings);
    assert!(Pieces(vec![MemoryImage { start: Addr(DATA), bytes: vec![0; 0x1000] }]).walk().is_none());
}

proptest! {
    /// Whatever stands in the tables and in the groups, the walk comes to an end, and no two chunks have a byte in
    /// common.
    #[test]
    fn any_heap_is_walked_to_an_end(words in prop::collection::vec((any::<bool>(), 0u64..4096, any::<u64>()), 0..80)) {
        let mut memory = filled();
        for (in_table, at, word) in words {
            // mostly what could be one of a table's: a group's place, masks, the word of bits
            let word = match word % 5 {
                0 => word,
                1 => HEAP + word % HEAP_SIZE / 16 * 16,
                2 => word >> 8 & 0xffff_ffff,
                3 => word >> 20 & 0xfff | (word >> 8 & 7) << 12,
                _ => TABLE + 24 + 40 * (word % 101),
            };
            let at = if in_table { TABLE + 16 + 8 * (at % 60) } else { HEAP + 8 * (at % (HEAP_SIZE / 8)) };
            memory.put(at, word);
        }
        let Some(walk) = memory.walk() else { return Ok(()) };
        for pair in walk.regions.windows(2) {
            prop_assert!(pair[0].range.end <= pair[1].books.start, "{pair:?}");
        }
        for region in &walk.regions {
            let mut end = region.range.start;
            for chunk in walk.of(region) {
                prop_assert!(chunk.at >= end && chunk.end() <= region.range.end, "{chunk:?} in {region:?}");
                end = chunk.end();
            }
        }
    }
}
