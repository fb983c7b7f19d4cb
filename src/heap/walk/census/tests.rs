use super::*;
use crate::heap::walk::{Arena, Chunk};
use crate::image::maps::{Device, Perms};
use proptest::prelude::*;

const HEAP: u64 = 0x10000;

fn mapping(start: u64, end: u64, kind: Kind, shared: bool) -> Mapping {
    Mapping {
        start: Addr(start),
        end: Addr(end),
        perms: Perms { read: true, write: true, execute: false, shared },
        offset: 0,
        dev: Device::default(),
        inode: 0,
        path: None,
        deleted: false,
        kind,
    }
}

fn walk() -> Walk {
    let chunk = |at, size, state| Chunk::glibc(Addr(at), size, state);
    Walk {
        chunks: vec![
            chunk(HEAP, 0x1000, State::Live),
            chunk(HEAP + 0x1000, 0x1000, State::Tcache),
            chunk(HEAP + 0x2000, 0x2000, State::Free),
            chunk(HEAP + 0x4000, 0x1000, State::Top),
        ],
        regions: vec![Region {
            range: Addr(HEAP)..Addr(HEAP + 0x5000),
            books: Addr(HEAP)..Addr(HEAP),
            arena: Some(0),
            chunks: 0..4,
            broken_at: None,
        }],
        arenas: vec![Arena { at: Addr(1), is_main: true, system_bytes: 0x5000, threads: Some(1) }],
        ..Walk::default()
    }
}

/// Each byte of a resident page has one use, and the uses add up to the pages.
#[test]
fn each_resident_byte_has_one_use() {
    let mappings = [
        mapping(HEAP, HEAP + 0x6000, Kind::Heap, false),
        mapping(0x100000, 0x102000, Kind::Anonymous, false),
        mapping(0x200000, 0x203000, Kind::Anonymous, false),
        mapping(0x300000, 0x301000, Kind::File, false),
        mapping(0x400000, 0x401000, Kind::File, true),
        mapping(0x7f0000, 0x7ff000, Kind::Stack, false),
    ];
    // the third page of the heap was given back, the fifth is in swap
    let page = |at: u64, pages: u64| Addr(at)..Addr(at + pages * 0x1000);
    let pages = Pages {
        resident: vec![
            page(HEAP, 2),
            page(HEAP + 0x3000, 1),
            page(HEAP + 0x5000, 1),
            page(0x100000, 2),
            page(0x201000, 1),
            page(0x300000, 1),
            page(0x400000, 1),
            page(0x7fe000, 1),
        ],
        swapped: vec![page(HEAP + 0x4000, 1)],
    };
    let walk = walk();
    let census = take(Some(&walk), &mappings, &[Addr(0x201800)], &pages);
    let resident = |of| census.of(of).resident;
    assert_eq!(resident(Use::Books), 8, "what the first chunk shares with nobody");
    assert_eq!((resident(Use::Headers), resident(Use::Live)), (8, 0xff8));
    assert_eq!(resident(Use::ThreadCaches), 0x1000 - 8);
    assert_eq!((resident(Use::Bins), census.of(Use::Bins).reserved), (0x1000, 0x2000));
    assert_eq!((resident(Use::Tops), census.of(Use::Tops).swapped), (0, 0x1000 - 8));
    assert_eq!(resident(Use::Mappings), 0x3000, "what brk has got behind the top is the program's");
    assert_eq!(resident(Use::Stacks), 0x2000, "the main thread's and the one that a stack pointer tells");
    assert_eq!((resident(Use::Files), resident(Use::Shared)), (0x1000, 0x1000));
    let all: u64 = pages.resident.iter().map(|part| part.end.0 - part.start.0).sum();
    assert_eq!((census.total().resident, census.total().swapped), (all, 0x1000));
    assert_eq!(census.free().reserved, 0x1000 + 0x2000 + 0x1000 - 8);
}

#[test]
fn a_process_without_a_known_heap_is_told_by_its_pages() {
    let mappings = [mapping(HEAP, HEAP + 0x2000, Kind::Heap, false)];
    let pages = Pages { resident: vec![Addr(HEAP)..Addr(HEAP + 0x1000)], swapped: Vec::new() };
    let census = take(None, &mappings, &[], &pages);
    assert_eq!(census.of(Use::Mappings), Amount { reserved: 0x2000, resident: 0x1000, swapped: 0 });
    assert_eq!(census.total().resident, 0x1000);
}

proptest! {
    /// Wherever the ranges lie, and in whatever order they come.
    #[test]
    fn ranges_one_behind_the_other_are_ranges(
        lengths in prop::collection::vec((0..3_u64, 1..4_u64), 0..12),
        ranges in prop::collection::vec((0..40_u64, 0..9_u64), 1..30),
        ascending: bool,
    ) {
        let mut at = 0;
        let mut part = |(gap, length): &(u64, u64)| {
            let start = at + gap;
            at = start + length;
            Addr(start)..Addr(at)
        };
        let resident: Vec<_> = lengths.iter().map(&mut part).collect();
        let pages = Pages { resident: resident.clone(), swapped: Vec::new() };
        let mut ranges: Vec<_> = ranges.iter().map(|&(start, length)| Addr(start)..Addr(start + length)).collect();
        if ascending {
            ranges.sort_by_key(|range| range.start);
        }
        let mut along = Along { pages: &pages, resident: 0, swapped: 0 };
        for range in &ranges {
            let inside = |at: &u64| resident.iter().any(|part| part.contains(&Addr(*at)));
            let expected = (range.start.0..range.end.0).filter(inside).count() as u64;
            prop_assert_eq!(along.of(range).resident, expected);
            prop_assert_eq!(pages.of(range).resident, expected);
        }
    }

    #[test]
    fn uses_are_in_their_order(at in 0..Use::ALL.len()) {
        prop_assert_eq!(Use::ALL[at] as usize, at);
    }
}
