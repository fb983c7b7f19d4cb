use super::*;
use crate::maps::{Device, Perms};
use crate::memory::MemoryImage;
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

    /// Chunks of these sizes, one behind the other from the heap's beginning on; a free one is told by the next. The rest is the top. Returns where each begins.
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
        let mappings = [mapping(DATA, 0x2000, Kind::File), mapping(HEAP, HEAP_SIZE, Kind::Heap)];
        let data = [Addr(DATA)..Addr(DATA + 0x2000)];
        walk(&Sources { mappings: &mappings, data: &data }, self).expect("there is an arena")
    }
}

fn states(walk: &Walk) -> Vec<(u64, State)> {
    walk.chunks.iter().map(|chunk| (chunk.size, chunk.state)).collect()
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
