use super::super::{Fault, State};
use super::records::Layout;
use super::*;
use crate::base::memory::MemoryImage;
use crate::image::maps::{Device, Kind, Mapping, Perms};
use proptest::prelude::*;

/// A module's data, and the map behind: one for addresses of 38 bits, with parts for the first and the third 512 MiB.
const DATA: u64 = 0x0010_0000;
const MAP: u64 = 0x0020_0000;
const PARTS: [u64; 2] = [MAP + 4096, MAP + 4096 + SLICE];
/// An arena of eight slices, of which the first is its own; records lie at its second kernel page.
const ARENA: u64 = 0x4000_0000;
const SLICES: u64 = 8;
const RECORDS: u64 = ARENA + 4096;
/// What knows all arenas, and one that no page lies in.
const ALL: u64 = DATA + 256;
const EMPTY: u64 = 0x5000_0000;
/// A page with memory of its own, which begins with its record.
const LONE: u64 = 0x4800_0000;
const LONE_SIZE: u64 = 100_000;
/// The first block of the page of blocks of 48 bytes, which has 20, and of that of 8 KiB, which has 4.
const SMALL: u64 = ARENA + SLICE;
const LARGE: u64 = ARENA + 2 * SLICE;

/// Parts of a process's memory, and how records are.
struct Pieces(Vec<MemoryImage>, Layout);

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

    fn put_all(&mut self, at: u64, words: &[u64]) {
        for (word, place) in words.iter().zip((at..).step_by(8)) {
            self.put(place, *word);
        }
    }

    /// A record, `used`, `capacity`, `reserved`, the size of blocks, the first blocks of its lists, and where its
    /// memory is from.
    fn record(&mut self, at: u64, start: u64, numbers: [u64; 4], lists: [u64; 3], origin: [u64; 2]) {
        let [used, capacity, reserved, size] = numbers;
        let [free, local, other] = lists;
        let told = match self.1 {
            Layout::Address => start,
            // the other half of the word is another member's
            Layout::Distance => ((start - at) / 8) | (0xffff_ffff << 32),
        };
        let counts = used | capacity << 16 | reserved << 32;
        self.put_all(at, &[0x7000_1002, free, counts, local, other, size, told, 0, 0, 0, 0]);
        self.put_all(at + 88, &origin);
        let (part, place) = if start < 1 << 29 { (PARTS[0], start) } else { (PARTS[1], start - (2 << 29)) };
        let slices = (size * reserved).div_ceil(SLICE);
        for slice in 0..slices {
            self.put(part + 8 * (place / SLICE + slice), at);
        }
    }

    fn list(&mut self, blocks: &[u64]) {
        for (at, next) in blocks.iter().zip(blocks.iter().skip(1).chain([&0])) {
            self.put(*at, *next);
        }
    }

    fn walk(&mut self) -> Option<Walk> {
        walk_by(map::BUDGET, self)
    }
}

/// Walks the heap that [`filled`] makes, by the mappings that it has.
fn walk_by(budget: u64, memory: &mut dyn ReadMemory) -> Option<Walk> {
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
        mapping(DATA, 4096, Kind::File),
        mapping(MAP, 4096 + 2 * SLICE, Kind::Anonymous),
        mapping(ARENA, SLICES * SLICE, Kind::Anonymous),
        mapping(LONE, 3 * SLICE, Kind::Anonymous),
        mapping(EMPTY, 4 * SLICE, Kind::Anonymous),
    ];
    walk_within(budget, &Sources { mappings: &mappings, data: &[mappings[0].range()] }, memory)
}

/// Counts how often one word is read alone.
struct Counting(Pieces, u64, usize);

impl ReadMemory for Counting {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.2 += usize::from(addr == Addr(self.1) && buf.len() == 8);
        self.0.read(addr, buf)
    }
}

const fn small(number: u64) -> u64 {
    SMALL + 48 * number
}

const fn of_arena(slice: u64, count: u64) -> [u64; 2] {
    [ARENA, slice | count << 32]
}

fn filled(layout: Layout) -> Pieces {
    let piece = |start, len: u64| MemoryImage { start: Addr(start), bytes: vec![0; len as usize] };
    let pieces = vec![
        piece(DATA, 4096),
        piece(MAP, 4096 + 2 * SLICE),
        piece(ARENA, 4 * SLICE),
        piece(LONE, 2 * SLICE),
        piece(EMPTY, 4096),
    ];
    let mut memory = Pieces(pieces, layout);
    // other words may be taken for a map's address first
    memory.put_all(DATA + 64, &[EMPTY, LONE, MAP]);
    memory.put_all(MAP, &[PARTS[0], 0, PARTS[1]]);
    memory.put_all(ALL, &[1, 0, 0, 2, ARENA, EMPTY]);
    memory.put_all(ARENA, &[ARENA, SLICES * SLICE, 0x1_0101_0000_0004, ALL, 0, SLICES, 1, 0xffff_ffff]);
    memory.put_all(EMPTY, &[EMPTY, 4 * SLICE, 0x1_0101_0000_0004, ALL, 1, 4, 1, 0xffff_ffff]);
    // the low bit of the list of other threads says whether a thread has the page
    let lists = [small(3), small(9), small(5) | 1];
    memory.record(RECORDS, SMALL, [16, 20, 1365, 48], lists, of_arena(1, 1));
    memory.list(&[small(3), small(1), small(19)]);
    memory.list(&[small(9)]);
    memory.list(&[small(5), small(6)]);
    memory.record(RECORDS + 112, LARGE, [4, 4, 16, 8192], [0, 0, 1], of_arena(2, 2));
    memory.record(LONE, LONE + SLICE, [1, 1, 1, LONE_SIZE], [0; 3], [LONE, 3 * SLICE]);
    memory
}

fn blocks(walk: &Walk, state: State) -> Vec<u64> {
    walk.chunks.iter().filter(|chunk| chunk.state == state).map(|chunk| chunk.block().0).collect()
}

#[test]
fn blocks_in_lists_are_free_and_all_others_are_live() {
    for layout in Layout::ALL {
        let walk = filled(layout).walk().expect("there is a map");
        assert_eq!(walk.findings, []);
        assert_eq!(blocks(&walk, State::Free), [1, 3, 5, 6, 9, 19].map(small));
        let live = blocks(&walk, State::Live);
        assert_eq!(live.len(), 14 + 4 + 1);
        assert_eq!(live.last(), Some(&(LONE + SLICE)));
        assert_eq!(walk.chunks.last().unwrap().usable(), LONE_SIZE);
        let tops = [small(20), LARGE + 4 * 8192, ARENA + 4 * SLICE, EMPTY + SLICE];
        assert_eq!(blocks(&walk, State::Top), tops);
        let arenas: Vec<_> = walk.arenas.iter().map(|arena| (arena.at.0, arena.system_bytes)).collect();
        assert_eq!(arenas, [(ARENA, SLICES * SLICE), (EMPTY, 4 * SLICE)]);
        let regions: Vec<_> = walk.regions.iter().map(|region| (region.books.clone(), region.arena)).collect();
        let books = |from: u64| Addr(from)..Addr(from + SLICE);
        assert_eq!(regions, [(books(ARENA), Some(0)), (books(LONE), None), (books(EMPTY), Some(1))]);
    }
}

/// As in 3.2: a page begins with its record.
#[test]
fn records_may_lie_before_their_blocks() {
    let mut memory = filled(Layout::Address);
    memory.record(LARGE, LARGE + 8192, [4, 4, 15, 8192], [0, 0, 1], of_arena(2, 2));
    let walk = memory.walk().unwrap();
    assert_eq!(walk.findings, []);
    assert_eq!(blocks(&walk, State::Own), [LARGE]);
    assert!(blocks(&walk, State::Live).contains(&(LARGE + 8192)));
    // one that begins a slice before its blocks is in the map from there on, too
    let before = blocks(&walk, State::Live);
    memory.put(PARTS[1] + 8 * ((LONE - (2 << 29)) / SLICE), LONE);
    let walk = memory.walk().unwrap();
    assert_eq!(walk.findings, []);
    assert_eq!(blocks(&walk, State::Live), before);
}

#[test]
fn lists_that_cant_be_are_told() {
    let found = |change: fn(&mut Pieces)| {
        let mut memory = filled(Layout::Distance);
        // two pages more that are well, or nothing would be believed
        for slice in 4..7 {
            let start = ARENA + slice * SLICE;
            memory.0.push(MemoryImage { start: Addr(start), bytes: vec![0; 64] });
            memory.record(RECORDS + 112 * slice, start, [1, 2, 2, 8192], [start, 0, 1], of_arena(slice, 1));
        }
        change(&mut memory);
        let walk = memory.walk().unwrap();
        walk.findings.iter().map(|finding| (finding.at.0, finding.what)).collect::<Vec<_>>()
    };
    assert_eq!(found(|_| {}), []);
    // the first word of block 1 is no block's address
    assert_eq!(found(|memory| memory.put(small(1), small(2) + 8)), [(small(2) + 8, Fault::List)]);
    assert_eq!(
        found(|memory| memory.put(small(19), small(3))).iter().map(|found| found.1).collect::<Vec<_>>(),
        [Fault::Circle]
    );
    // a list that ends too early; one that misses one block may be just changed
    assert_eq!(found(|memory| memory.put(small(3), 0)), [(RECORDS, Fault::Count)]);
    assert_eq!(found(|memory| memory.put(small(1), 0)), []);
    // more blocks than have room
    let more = found(|memory| memory.put(RECORDS + 112 + 16, 4 | 4 << 16 | 17 << 32));
    assert_eq!(more, [(LARGE, Fault::Entry)]);
}

#[test]
fn what_is_not_so_is_none() {
    // no word leads to the map
    let mut memory = filled(Layout::Distance);
    memory.put(DATA + 80, MAP + 8);
    assert!(memory.walk().is_none());
    // its records are none
    let mut memory = filled(Layout::Distance);
    for place in [RECORDS, RECORDS + 112, LONE] {
        memory.put(place + 48, 0);
    }
    assert!(memory.walk().is_none());
    // lists are encoded
    let mut memory = filled(Layout::Address);
    for block in [3, 1, 19, 9, 5, 6] {
        memory.put(small(block), 0x1234_5678_9abc_def0 ^ block);
    }
    assert!(memory.walk().is_none());
}

#[test]
fn what_many_words_lead_to_is_tried_once() {
    let mut memory = filled(Layout::Distance);
    memory.put_all(DATA + 64, &[EMPTY; 20]);
    memory.put(DATA + 64 + 8 * 20, MAP);
    let mut memory = Counting(memory, EMPTY, 0);
    assert!(walk_by(map::BUDGET, &mut memory).is_some());
    assert_eq!(memory.2, 1);
}

#[test]
fn a_map_that_is_not_read_to_its_end_is_told() {
    let findings = |budget: u64| {
        let walk = walk_by(budget, &mut filled(Layout::Distance))?;
        Some(walk.findings.iter().map(|finding| (finding.at.0, finding.what)).collect::<Vec<_>>())
    };
    let budgets: Vec<u64> = (0..1 << 14).collect();
    let whole = budgets.partition_point(|budget| findings(*budget) != Some(Vec::new())) as u64;
    assert!((2..1 << 14).contains(&whole), "{whole}");
    assert_eq!(findings(0), None);
    // the last word that it leads to was the last one that was looked at: of more nothing is known
    assert_eq!(findings(whole - 1), Some(vec![(MAP, Fault::Table)]));
    // up to the page of large blocks
    let walk = walk_by(whole - 4, &mut filled(Layout::Distance)).unwrap();
    let told: Vec<_> = walk.findings.iter().map(|finding| (finding.at.0, finding.what)).collect();
    assert_eq!(told, [(MAP, Fault::Table)]);
    assert_eq!(blocks(&walk, State::Live).last(), Some(&(LARGE + 3 * 8192)));
}

#[test]
fn findings_are_kept_as_long_as_they_are_not_too_many() {
    let mut findings = Vec::new();
    for at in 0..MAX_FINDINGS as u64 + 2 {
        note(&mut findings, Finding { at: Addr(at), what: Fault::Entry, before: None });
    }
    assert_eq!(findings.len(), MAX_FINDINGS);
    assert_eq!(findings.last().map(|finding| finding.at.0), Some(MAX_FINDINGS as u64 - 1));
}

proptest! {
    /// Whatever stands there, the walk comes to an end, and no two chunks have a byte in common.
    #[test]
    fn any_heap_is_walked_to_an_end(is_distance: bool, words in prop::collection::vec((0u64..7, any::<u64>(), any::<u64>()), 0..40)) {
        let mut memory = filled(if is_distance { Layout::Distance } else { Layout::Address });
        for (place, at, word) in words {
            let word = match word % 8 {
                0 => word,
                1 => ARENA + word % (4 * SLICE) / 16 * 16,
                2 => small(word / 8 % 30),
                3 => word >> 8 & 0xffff_0001,
                4 => word >> 40 & 0x3ff | (word >> 8 & 0xff) << 32,
                5 => MAP + word % (2 * SLICE) / 8 * 8,
                6 => RECORDS + 112 * (word / 8 % 4),
                _ => 1,
            };
            let at = match place {
                0 => RECORDS + 8 * (at % 42),
                1 => SMALL + 48 * (at % 24),
                2 => LONE + 8 * (at % 16),
                3 => PARTS[1] + 8 * (at % 12),
                4 => ARENA + 8 * (at % 10),
                5 => DATA + 64 + 8 * (at % 34),
                _ => MAP + 8 * (at % 4),
            };
            memory.put(at, word);
        }
        let Some(walk) = memory.walk() else { return Ok(()) };
        let mut end = Addr::NULL;
        for region in &walk.regions {
            prop_assert!(region.books.start >= end, "{region:?}");
            end = region.range.start;
            for chunk in walk.of(region) {
                prop_assert!(chunk.at >= end && chunk.end() <= region.range.end, "{chunk:?} in {region:?}");
                end = chunk.end();
            }
            end = region.range.end;
        }
    }
}
