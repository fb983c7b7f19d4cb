use super::*;
use crate::base::memory::MemoryImage;
use crate::image::maps::{Device, Perms};
use proptest::prelude::*;

const DATA: u64 = 0x10_0000;
const HEAP: u64 = 0x200_0000;
const HEAP_SIZE: u64 = 0x4000;
/// Where the main arena's bins are: there are fast bins before them.
const BINS: u64 = DATA + 0x100 + 112;

/// Some pieces of memory.
struct Pieces(Vec<MemoryImage>);

impl ReadMemory for Pieces {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.0.iter_mut().map(|piece| piece.read(addr, buf)).find(|n| *n > 0).unwrap_or(0)
    }
}

impl Pieces {
    /// A main arena that has no free chunk yet, and an empty heap.
    fn new() -> Self {
        let piece = |start, len: u64| MemoryImage { start: Addr(start), bytes: vec![0; len as usize] };
        let mut pieces = Self(vec![piece(DATA, 0x2000), piece(HEAP, HEAP_SIZE)]);
        for bin in 0..127 {
            let at = BINS + 16 * bin;
            pieces.put(at, at - 16);
            pieces.put(at + 8, at - 16);
        }
        // the ring of arenas has this one only
        pieces.put(BINS + 254 * 8 + 16, BINS - 112);
        pieces.put(BINS + 254 * 8 + 16 + 24, HEAP_SIZE);
        // `mp_`: n_mmaps_max, and where the brk area began
        pieces.put(DATA + 0x1800, 65536 << 32);
        pieces.put(DATA + 0x1800 + 32, HEAP);
        pieces
    }

    fn put(&mut self, at: u64, word: u64) {
        for piece in &mut self.0 {
            let offset = at.wrapping_sub(piece.start.0) as usize;
            if let Some(place) = piece.bytes.get_mut(offset..offset.saturating_add(8)) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Chunks of these sizes, one behind the other from the heap's beginning on; a free one is told by the next. The
    /// rest is the top. Returns where each begins.
    fn chunks(&mut self, chunks: &[(u64, State)]) -> Vec<u64> {
        let mut at = HEAP;
        let mut before = State::Live;
        let mut starts = Vec::new();
        for &(size, state) in chunks {
            starts.push(at);
            self.put(at + 8, size | u64::from(before != State::Free));
            if state == State::Free {
                self.put(at + size, size);
            }
            before = state;
            at += size;
        }
        self.put(at + 8, (HEAP + HEAP_SIZE - at) | u64::from(before != State::Free));
        self.put(BINS - 16, at);
        starts
    }

    fn walk(&mut self) -> Walk {
        let perms = Perms { read: true, write: true, ..Perms::default() };
        let mapping = |start, len: u64, kind| Mapping {
            start: Addr(start),
            end: Addr(start + len),
            perms,
            offset: 0,
            dev: Device::default(),
            inode: 0,
            path: None,
            deleted: false,
            kind,
        };
        let mut mappings = vec![mapping(DATA, 0x2000, Kind::File), mapping(HEAP, HEAP_SIZE, Kind::Heap)];
        let others = self.0.get(2..).unwrap_or(&[]).iter();
        mappings.extend(others.map(|piece| mapping(piece.start.0, piece.bytes.len() as u64, Kind::Anonymous)));
        let data = [Addr(DATA)..Addr(DATA + 0x2000)];
        walk(&Sources { mappings: &mappings, data: &data }, self).expect("there is an arena")
    }
}

fn states(walk: &Walk) -> Vec<(u64, State)> {
    walk.chunks.iter().map(|chunk| (chunk.size(), chunk.state)).collect()
}

#[test]
fn chunks_are_what_the_next_one_says() {
    let mut memory = Pieces::new();
    let starts = memory.chunks(&[(0x40, State::Live), (0x50, State::Free), (0x20, State::Live)]);
    // the bin that holds the free one, and leads back
    let bin = BINS;
    memory.put(bin, starts[1]);
    memory.put(starts[1] + 16, bin - 16);
    let walk = memory.walk();
    let top = HEAP_SIZE - 0xb0;
    assert_eq!(states(&walk), [(0x40, State::Live), (0x50, State::Free), (0x20, State::Live), (top, State::Top)]);
    assert_eq!((walk.arenas.len(), walk.arenas[0].system_bytes), (1, HEAP_SIZE));
    assert!(walk.findings.is_empty(), "{:?}", walk.findings);
    assert_eq!(walk.starting_at(Addr(starts[2])), Some(2));
    assert_eq!(walk.starting_at(Addr(starts[2] + 16)), None);
}

/// The links of thread caches and fast bins are mixed with their places, as glibc does from 2.32 on, or plain.
#[test]
fn what_lists_hold_is_free_though_it_looks_live() {
    for mixed in [true, false] {
        let mut memory = Pieces::new();
        let link = |place: u64, to: u64| if mixed { (place >> 12) ^ to } else { to };
        let sizes = [0x290, 0x30, 0x30, 0x20, 0x20, 0x60];
        let starts = memory.chunks(&sizes.map(|size| (size, State::Live)));
        // the cache's list of chunks of 0x30 bytes, of blocks, with a key behind each link
        memory.put(starts[0] + 16, 2 << 16);
        memory.put(starts[0] + 16 + 128 + 8, starts[1] + 16);
        for (at, next) in [(starts[1], starts[2] + 16), (starts[2], 0)] {
            memory.put(at + 16, link(at + 16, next));
            memory.put(at + 24, 0x1234_5678);
        }
        // the fast bin of chunks of 0x20 bytes, of headers
        memory.put(BINS - 16 - 80, starts[3]);
        for (at, next) in [(starts[3], starts[4]), (starts[4], 0)] {
            memory.put(at + 16, link(at + 16, next));
        }
        let walk = memory.walk();
        let expected = [State::Own, State::Tcache, State::Tcache, State::Fast, State::Fast, State::Live, State::Top];
        assert_eq!(walk.chunks.iter().map(|chunk| chunk.state).collect::<Vec<_>>(), expected, "{mixed}");
        assert!(walk.findings.is_empty(), "{:?}", walk.findings);
    }
}

/// A thread that is stopped within `tcache_get` or `tcache_put` leaves one count, or one mark, that does not fit. What
/// merely looks like a list is none.
#[test]
fn a_cache_is_understood_while_its_thread_takes_from_it() {
    // counts of both lists, key of the first chunk, and whether it is a cache then
    let cases = [
        ((2, 1), 0x1234_5678, true),
        ((3, 1), 0x1234_5678, true),
        ((1, 1), 0x1234_5678, true),
        ((2, 0), 0x1234_5678, true),
        ((2, 1), 0, true),
        ((3, 0), 0x1234_5678, false),
        ((0, 1), 0x1234_5678, false),
    ];
    for ((count, other), key, is_cache) in cases {
        let mut memory = Pieces::new();
        let starts = memory.chunks(&[0x290, 0x30, 0x30, 0x40].map(|size| (size, State::Live)));
        memory.put(starts[0] + 16, count << 16 | other << 32);
        memory.put(starts[0] + 16 + 128 + 8, starts[1] + 16);
        memory.put(starts[0] + 16 + 128 + 16, starts[3] + 16);
        for (at, next, key) in
            [(starts[1], starts[2] + 16, key), (starts[2], 0, 0x1234_5678), (starts[3], 0, 0x1234_5678)]
        {
            memory.put(at + 16, ((at + 16) >> 12) ^ next);
            memory.put(at + 24, key);
        }
        let walk = memory.walk();
        let expected = if is_cache { State::Tcache } else { State::Live };
        assert!(walk.chunks[1..4].iter().all(|chunk| chunk.state == expected), "{count} {other} {key:#x}: {walk:?}");
        assert!(walk.findings.is_empty());
    }
    // a block of the program's with a pointer to another one, whose first word is zero
    let mut memory = Pieces::new();
    let starts = memory.chunks(&[0x40, 0x290, 0x30].map(|size| (size, State::Live)));
    memory.put(starts[1] + 16 + 128 + 8, starts[2] + 16);
    assert_eq!(states(&memory.walk())[..3], [0x40, 0x290, 0x30].map(|size| (size, State::Live)));
}

/// The first chunk of an arena is a cache also where it holds nothing yet, or is just about to.
#[test]
fn a_cache_that_holds_nothing_is_known_by_its_place() {
    let first = |size: u64, words: &[(u64, u64)]| {
        let mut memory = Pieces::new();
        let starts = memory.chunks(&[size, 0x30, size].map(|size| (size, State::Live)));
        words.iter().for_each(|(at, word)| memory.put(starts[0] + 16 + at, *word));
        let walk = memory.walk();
        assert_eq!(walk.chunks[2].state, State::Live, "it may be the program's");
        walk.chunks[0].state
    };
    let room: Vec<(u64, u64)> = (0..76 / 4).map(|word| (8 * word, 0x0007_0007_0007_0007)).collect();
    assert_eq!(first(0x290, &[]), State::Own);
    assert_eq!(first(0x300, &room), State::Own);
    // a list of one, which is not counted yet
    assert_eq!(first(0x290, &[(128 + 8, HEAP + 0x290 + 16)]), State::Own);
    // a thread without one has a block there
    assert_eq!(first(0x2a0, &[(8, 7)]), State::Live);
    assert_eq!(first(0x290, &[(8, 7), (16, 9)]), State::Live);
}

/// From 2.42 on: counts of what is left, and lists of larger chunks behind those of one size each. Its own chunk is
/// larger where what was left would have made no chunk.
#[test]
fn caches_of_large_chunks_are_understood() {
    for spare in [0, 16] {
        let mut memory = Pieces::new();
        let starts = memory.chunks(&[0x300 + spare, 0x30, 0x600, 0x20].map(|size| (size, State::Live)));
        let entries = starts[0] + 16 + 2 * 76;
        memory.put(entries + 8, starts[1] + 16);
        memory.put(entries + 8 * 65, starts[2] + 16);
        for at in [starts[1], starts[2]] {
            memory.put(at + 16, (at + 16) >> 12);
            memory.put(at + 24, 0x1234_5678);
        }
        let expected = [State::Own, State::Tcache, State::Tcache, State::Live, State::Top];
        assert_eq!(memory.walk().chunks.iter().map(|chunk| chunk.state).collect::<Vec<_>>(), expected, "{spare}");
    }
}

/// The main arena is found by lists that lead to chunks and back, also where no list but the last one is empty.
#[test]
fn an_arena_is_found_whose_bins_are_full() {
    let mut memory = Pieces::new();
    let free: Vec<_> = (0..252).map(|n| (0x20, if n % 2 == 0 { State::Free } else { State::Live })).collect();
    let starts = memory.chunks(&free);
    for (bin, at) in starts.iter().step_by(2).enumerate() {
        let head = BINS + 16 * bin as u64 - 16;
        for (place, word) in [(head + 16, *at), (head + 24, *at), (at + 16, head), (at + 24, head)] {
            memory.put(place, word);
        }
    }
    let walk = memory.walk();
    assert_eq!(walk.chunks.iter().filter(|chunk| chunk.state == State::Free).count(), 126);
    assert!(walk.findings.is_empty(), "{:?}", walk.findings);
    // another thread's data, in which everything leads nowhere
    for bin in 0..20 {
        memory.put(BINS + 16 * bin, 0x77);
    }
    assert_eq!(bins_in(&(Addr(DATA)..Addr(DATA + 0x2000)), &mut memory), None);
}

/// Chunks with mappings of their own, neighbours in one mapping: from 2.43 on their size is less by a header;
/// memalign(3) moves the block on and leaves the first header.
#[test]
fn mapped_chunks_are_found_beside_each_other() {
    const MAPPED: u64 = 0x500_0000;
    let mut memory = Pieces::new();
    memory.chunks(&[(0x20, State::Live)]);
    memory.0.push(MemoryImage { start: Addr(MAPPED), bytes: vec![0; 0x9000] });
    let mut put = |at: u64, before: u64, size: u64| {
        memory.put(at, before);
        memory.put(at + 8, size | IS_MAPPED);
    };
    put(MAPPED, 0, 0x1000);
    // a page of the program's
    put(MAPPED + 0x2000, 0, 0x2000 - 16);
    put(MAPPED + 0x4000, 0, 0x2000);
    put(MAPPED + 0x4000 + 0xf0, 0xf0, 0x2000 - 0xf0);
    put(MAPPED + 0x6000, 0, 0x2000 - 16);
    put(MAPPED + 0x8000, 0, 0x1000 - 16);
    put(MAPPED + 0x8000 + 0x10, 0x10, 0x1000 - 32);
    put(MAPPED + 0x6000 + 0xff0, 0xff0, 0x1000);
    for (at, word) in [(0, 65536 << 32 | 5), (8, 5), (16, 0x8000), (24, 0x8000)] {
        memory.put(DATA + 0x1800 + at, word);
    }
    let walk = memory.walk();
    let mapped = walk.regions.iter().filter(|region| region.arena.is_none());
    let blocks: Vec<_> =
        mapped.flat_map(|region| walk.of(region)).map(|chunk| (chunk.block().0 - MAPPED, chunk.usable())).collect();
    assert_eq!(
        blocks,
        [(16, 0xff0), (0x2010, 0x2000 - 24), (0x4100, 0x1f00), (0x7000, 0x1000 - 8), (0x8020, 0x1000 - 40)]
    );
}

#[test]
fn what_was_written_over_is_told_with_what_stands_before_it() {
    let mut memory = Pieces::new();
    let starts = memory.chunks(&[(0x40, State::Live), (0x50, State::Live), (0x20, State::Live)]);
    memory.put(starts[1] + 8, 0x4141_4141_4141_4141);
    let walk = memory.walk();
    let [finding] = &walk.findings[..] else { panic!("{:?}", walk.findings) };
    assert_eq!((finding.at, finding.what), (Addr(starts[1]), Fault::Size(0x4141_4141_4141_4141)));
    assert_eq!(finding.before.map(|chunk| chunk.at), Some(Addr(HEAP)));
    assert_eq!(walk.regions[0].broken_at, Some(Addr(starts[1])));

    let mut memory = Pieces::new();
    let starts = memory.chunks(&[(0x50, State::Free), (0x40, State::Live)]);
    memory.put(starts[1], 0x60);
    assert_eq!(memory.walk().findings[0].what, Fault::End(0x50));

    // a list that bites its tail
    let mut memory = Pieces::new();
    let starts = memory.chunks(&[(0x20, State::Live), (0x20, State::Live)]);
    memory.put(BINS - 16 - 80, starts[0]);
    memory.put(starts[0] + 16, starts[1]);
    memory.put(starts[1] + 16, starts[0]);
    assert_eq!(memory.walk().findings[0].what, Fault::Circle);
    // and one that leads nowhere
    memory.put(starts[1] + 16, 0x77);
    assert_eq!(memory.walk().findings[0].what, Fault::List);
}

proptest! {
    /// Whatever stands in a heap, the walk comes to an end, and its chunks lie in the heap, one behind the other.
    #[test]
    fn any_heap_is_walked_to_an_end(words in prop::collection::vec((0..HEAP_SIZE / 8, any::<u64>()), 0..60),
                                    sizes in prop::collection::vec(2u64..30, 1..40)) {
        let mut memory = Pieces::new();
        let chunks: Vec<_> = sizes.iter().map(|n| (16 * n, if n % 3 == 0 { State::Free } else { State::Live })).collect();
        memory.chunks(&chunks);
        for (at, word) in words {
            // mostly what could be a size, or an address in the heap
            let word = match word % 4 {
                0 => word,
                1 => word % 0x1000,
                2 => HEAP + word % HEAP_SIZE / 16 * 16,
                _ => (HEAP + word % HEAP_SIZE / 16 * 16) ^ (HEAP >> 12),
            };
            memory.put(HEAP + 8 * at, word);
        }
        let walk = memory.walk();
        let mut end = Addr(HEAP);
        for chunk in &walk.chunks {
            prop_assert!(chunk.at >= end && chunk.end().0 <= HEAP + HEAP_SIZE, "{chunk:?}");
            end = chunk.end();
        }
    }
}
