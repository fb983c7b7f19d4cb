use super::super::{Fault, State};
use super::*;
use crate::image::maps::{Device, Kind, Mapping, Perms};
use proptest::prelude::*;
use std::ops::Range;

/// A module's data, in which the tree's root is.
const DATA: u64 = 0x5000_0000;
const ROOT: u64 = DATA + 0x1040;
/// Where an arena's address stands.
const ARENAS: u64 = DATA + 0x20_2000;
/// What the allocator keeps for itself: a leaf, the structures of extents, an arena.
const BASE: u64 = 0x7f00_8000_0000;
const LEAF: u64 = BASE + 0x40c0;
const EXTENTS: u64 = BASE + 0x30_0000;
const ARENA: u64 = BASE + 0x31_0000;
/// What it has handed out.
const HEAP: u64 = 0x7f00_4000_0000;
const SMALL: u64 = HEAP + 0x8000;
const OTHER: u64 = HEAP + 0xb000;
const LARGE: u64 = HEAP + 0x1_0040;
/// A thread's variables.
const THREAD: u64 = 0x7f00_c000_0000;
const LINK: u64 = THREAD + 0x100;
const BINS: u64 = THREAD + 0x200;
/// Mapped memory: where, and how much.
const MAPPED: [(u64, u64); 4] = [(DATA, 0x20_3000), (HEAP, 0x4000_0000), (BASE, 0x40_0000), (THREAD, 0x1000)];

/// Words that are not zero, in what is mapped.
#[derive(Clone)]
struct Words(BTreeMap<u64, u64>);

impl ReadMemory for Words {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let Some((start, len)) = MAPPED.into_iter().find(|(start, len)| (*start..start + len).contains(&addr.0)) else {
            return 0;
        };
        let count = (start + len - addr.0).min(buf.len() as u64) as usize;
        let buf = &mut buf[..count];
        buf.fill(0);
        for (at, word) in self.0.range(addr.0.saturating_sub(7)..addr.0 + count as u64) {
            for (place, byte) in (*at..).zip(word.to_le_bytes()) {
                if let Some(to) = place.checked_sub(addr.0).and_then(|place| buf.get_mut(place as usize)) {
                    *to = byte;
                }
            }
        }
        count
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        let pages = self.0.range(page_of(range.start).0..range.end.0).map(|(at, _)| page_of(Addr(*at)));
        pages.collect::<BTreeSet<_>>().into_iter().map(|page| page..page.add(PAGE)).collect()
    }
}

/// How extents and bins are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V52,
    V53,
}

const BOTH: [Version; 2] = [Version::V52, Version::V53];

impl Words {
    /// An extent and what the tree says of its pages: its class, whether it is a slab, which of its regions are free.
    fn extent(&mut self, version: Version, number: u64, (at, size): (u64, u64), class: u64, free: Option<&[u64]>) {
        let shift = if version == Version::V53 { 20 } else { 18 };
        let structure = EXTENTS + 128 * number;
        let count = free.map_or(0, <[u64]>::len) as u64;
        let slab = u64::from(free.is_some());
        let state = u64::from(class == 232) << 17;
        self.0.insert(structure, slab << 12 | 1 << 13 | state | class << shift | count << (shift + 8));
        self.0.insert(structure + 8, at);
        self.0.insert(structure + 16, size | 7);
        for region in free.unwrap_or(&[]) {
            *self.0.entry(structure + 64 + region / 64 * 8).or_default() |= 1 << (region % 64);
        }
        let page = (at % (1 << 30)) / PAGE;
        for page in page..page + size / PAGE {
            self.0.insert(LEAF + 8 * page, class << 48 | structure | slab);
        }
    }

    /// A thread's cache: for each class from 0 on what lies in it, and for how much there is room.
    fn cache(&mut self, version: Version, bins: &[(&[u64], u64)]) {
        let words = match version {
            Version::V53 => [LINK, LINK, BINS, ARENA, 0],
            Version::V52 => [LINK, LINK, BINS, BINS + 24 * 36, ARENA],
        };
        self.words(LINK, &words);
        let mut end = HEAP + 8;
        for ((cached, room), bin) in bins.iter().zip((BINS..).step_by(24)) {
            let start = end;
            end += 8 * room;
            let head = end - 8 * cached.len() as u64;
            self.words(head, cached);
            match version {
                Version::V53 => {
                    self.words(bin, &[head, 3, head & 0xffff | (start & 0xffff) << 16 | (end & 0xffff) << 32])
                }
                Version::V52 => self.words(bin, &[(cached.len() as u64) << 32, 3, end]),
            }
        }
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        self.0.extend((at..).step_by(8).zip(words.iter().copied()));
    }

    fn walk(&mut self) -> Option<Walk> {
        let mapping = |(start, len)| Mapping {
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
        let mut mappings = MAPPED.map(mapping).to_vec();
        mappings.sort_unstable_by_key(|mapping| mapping.start);
        // what comes of a file is the first page only
        walk(&Sources { mappings: &mappings, data: &[Addr(DATA)..Addr(DATA + 0x20_3000)] }, self)
    }
}

const fn small(region: u64) -> u64 {
    SMALL + 48 * region
}

/// Blocks of 48 and 32 bytes, a large one, what is free, and a thread's cache, which has two of the blocks of 48 bytes.
fn filled(version: Version) -> Words {
    let mut words = Words(BTreeMap::new());
    words.words(BASE, &[0x40_0000, 0, 0, BASE + 0x3f_0000, 0x1_0000]);
    words.words(ROOT + 8 * (HEAP >> 30), &[LEAF]);
    words.words(ARENAS, &[ARENA]);
    words.words(ARENA, &[1 | 1 << 32]);
    words.words(ARENA + 0x28a0, &[LINK]);
    words.extent(version, 0, (HEAP, 0x8000), 39, None);
    words.extent(version, 1, (SMALL, 0x3000), 3, Some(&(100..256).collect::<Vec<_>>()));
    words.extent(version, 2, (OTHER, 0x1000), 2, Some(&(0..128).filter(|region| *region != 5).collect::<Vec<_>>()));
    words.extent(version, 3, (HEAP + 0xc000, 0x4000), 232, None);
    words.extent(version, 4, (LARGE, 0x5000), 36, None);
    let none = (&[][..], 8);
    let mut bins = [none; 36];
    let cached = [small(10), small(11)];
    bins[3] = (&cached, 20);
    words.cache(version, &bins);
    words
}

fn blocks(walk: &Walk, state: State) -> Vec<u64> {
    walk.chunks.iter().filter(|chunk| chunk.state == state).map(|chunk| chunk.block().0).collect()
}

#[test]
fn regions_are_what_their_bits_and_the_caches_say() {
    for version in BOTH {
        let walk = filled(version).walk().expect("there is a tree");
        assert_eq!(walk.findings, [], "{version:?}");
        let mut live: Vec<u64> = (0..100).filter(|region| ![10, 11].contains(region)).map(small).collect();
        live.extend([OTHER + 5 * 32, LARGE]);
        assert_eq!(blocks(&walk, State::Live), live, "{version:?}");
        assert_eq!(blocks(&walk, State::Tcache), [small(10), small(11)], "{version:?}");
        assert_eq!(blocks(&walk, State::Free).len(), 156 + 127, "{version:?}");
        assert_eq!(blocks(&walk, State::Top), [HEAP + 0xc000], "{version:?}");
        assert_eq!(blocks(&walk, State::Own), [HEAP], "{version:?}");
        let large = walk.chunks.iter().find(|chunk| chunk.at == Addr(LARGE)).unwrap();
        assert_eq!(large.usable(), 16384);
        let [arena] = &walk.arenas[..] else { panic!("{:?}", walk.arenas) };
        assert_eq!((arena.at, arena.threads, arena.is_main), (Addr(ARENA), Some(1), true));
        assert_eq!(arena.system_bytes, 0x1_5000 + 0x40_0000);
        let [heap, base] = &walk.regions[..] else { panic!("{:?}", walk.regions) };
        assert_eq!((heap.range.clone(), heap.broken_at), (Addr(HEAP)..Addr(HEAP + 0x1_5000), None));
        assert_eq!(base.books, Addr(BASE)..Addr(BASE + 0x40_0000));
    }
}

/// As jemalloc(3) lists them.
#[test]
fn classes_have_the_sizes_of_the_manual() {
    let groups: [&[u64]; 4] = [
        &[8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024],
        &[1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336],
        &[16384, 20480, 24576, 28672, 32768, 40960, 49152, 57344],
        &[65536, 81920, 98304, 114_688, 131_072],
    ];
    for (class, size) in (0..).zip(groups.concat()) {
        assert_eq!(size_of(class), size, "{class}");
    }
    // the largest one, 7 EiB
    assert_eq!(size_of(231), 7 << 60);
}

#[test]
fn what_cant_be_is_told() {
    let found = |change: fn(&mut Words)| {
        let mut words = filled(Version::V53);
        change(&mut words);
        let walk = words.walk().unwrap();
        let broken = walk.regions.iter().find_map(|region| region.broken_at);
        (walk.findings.iter().map(|finding| (finding.at.0, finding.what)).collect::<Vec<_>>(), broken)
    };
    // a block that is too large for its extent; the others are told
    let too_large = found(|words| words.extent(Version::V53, 4, (LARGE, 0x1000), 36, None));
    assert_eq!(too_large, (vec![(LARGE - 0x40, Fault::Entry)], Some(Addr(LARGE - 0x40))));
    // the tree leads to an extent elsewhere
    let elsewhere = found(|words| words.words(EXTENTS + 128 * 3 + 8, &[HEAP + 0x9000]));
    assert_eq!(elsewhere, (vec![(HEAP + 0xc000, Fault::Entry)], None));
    // of two that have pages in common the first one counts
    let overlapping = found(|words| words.words(EXTENTS + 128 * 3 + 16, &[0x5000]));
    assert_eq!(overlapping, (vec![(HEAP + 0x1_0000, Fault::Entry)], None));
    // the cache leads into the middle of a region, and to one of another class
    let in_cache =
        found(|words| words.cache(Version::V53, &[(&[], 8), (&[], 8), (&[], 8), (&[small(1) + 8, OTHER], 8)]));
    assert_eq!(in_cache.0, [(small(1) + 8, Fault::List), (OTHER, Fault::List)]);
}

/// Where most slabs are well, one that is not is told, and nothing in it.
#[test]
fn a_slab_that_miscounts_is_told() {
    let mut words = filled(Version::V53);
    for number in 0..20 {
        let free: Vec<u64> = (number..128).collect();
        words.extent(Version::V53, 10 + number, (HEAP + 0x2_0000 + 0x1000 * number, 0x1000), 2, Some(&free));
    }
    *words.0.get_mut(&(EXTENTS + 128 * 15)).unwrap() -= 1 << 28;
    let walk = words.walk().unwrap();
    let at = Addr(HEAP + 0x2_5000);
    assert_eq!(walk.findings, [Finding { at, what: Fault::Entry, before: None }]);
    assert!(!walk.chunks.iter().any(|chunk| (at..at.add(PAGE)).contains(&chunk.at)));
}

#[test]
fn what_is_no_heap_is_none() {
    let is_none = |change: fn(&mut Words)| {
        let mut words = filled(Version::V53);
        change(&mut words);
        words.walk().is_none()
    };
    assert!(!is_none(|_| ()));
    // the root would begin before the module's data
    assert!(is_none(|words| {
        words.0.remove(&(ROOT + 8 * (HEAP >> 30)));
        words.words(DATA + 0x1000, &[LEAF]);
    }));
    // a leaf in no block of the allocator's
    assert!(is_none(|words| words.words(BASE, &[0x40_0000, 0, 0, 0, 0])));
    // slabs that all miscount
    assert!(is_none(|words| {
        *words.0.get_mut(&(EXTENTS + 128)).unwrap() -= 1 << 28;
        *words.0.get_mut(&(EXTENTS + 256)).unwrap() -= 1 << 28;
    }));
}

/// Rings and lists that have no end, or lead nowhere.
#[test]
fn circles_come_to_an_end() {
    // a ring whose second link leads to itself
    let mut words = filled(Version::V53);
    words.words(LINK, &[LINK + 0x40, LINK - 0x40]);
    words.words(LINK + 0x40, &[LINK + 0x40, LINK, BINS, ARENA]);
    words.words(LINK - 0x40, &[LINK]);
    let walk = words.walk().unwrap();
    assert_eq!(blocks(&walk, State::Live).len(), 100);
    // blocks of the allocator's own that lead to each other
    let mut words = filled(Version::V53);
    words.words(BASE, &[0x40_0000, THREAD, 0, BASE + 0x3f_0000, 0x1_0000]);
    words.words(THREAD, &[0x20_0000, BASE, 0, THREAD + 0x1f_0000, 0x1_0000]);
    assert!(words.walk().is_some());
}

proptest! {
    /// Whatever stands in its structures, the walk comes to an end, and no two chunks have a byte in common.
    #[test]
    fn any_heap_is_walked_to_an_end(
        is_old in any::<bool>(),
        words in prop::collection::vec((0u64..7, any::<u64>(), any::<u64>()), 0..40),
    ) {
        let mut memory = filled(if is_old { Version::V52 } else { Version::V53 });
        for (place, at, word) in words {
            let word = match word % 8 {
                0 => word,
                1 => HEAP + word / 8 % 0x2_0000,
                2 => EXTENTS + word / 8 % 8 * 128,
                3 => LEAF,
                4 => word >> 8 & 0xffff_f001,
                5 => BASE + word / 8 % 64 * 0x1_0000,
                6 => LINK + word / 8 % 8 * 8,
                _ => 1 << (word / 8 % 64),
            };
            let at = match place {
                0 => EXTENTS + 8 * (at % 80),
                1 => LEAF + 8 * (at % 24),
                2 => ROOT + 8 * (HEAP >> 30) + 8 * (at % 3),
                3 => LINK + 8 * (at % 8),
                4 => BINS + 8 * (at % 120),
                5 => BASE + 8 * (at % 8),
                _ => ARENA + 0x28a0 - 8 * (at % 8),
            };
            memory.0.insert(at, word);
        }
        let Some(walk) = memory.walk() else { return Ok(()) };
        let mut last = Addr::NULL;
        for region in &walk.regions {
            prop_assert!(region.books.start >= last, "{region:?}");
            last = region.range.end;
            let mut end = region.range.start;
            for chunk in walk.of(region) {
                prop_assert!(chunk.at >= end && chunk.end() <= region.range.end, "{chunk:?} in {region:?}");
                end = chunk.end();
            }
        }
    }
}
