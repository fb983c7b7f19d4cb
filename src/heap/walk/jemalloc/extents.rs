//! Extents (`edata_t`, `extent_t` up to 5.2): slabs of regions of one size, large blocks, and what is in no use.

use super::super::window::Window;
use super::super::{Fault, Finding};
use super::tree::Entry;
use super::{PAGE, note, page_of};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;

/// Where an extent's members stand in all versions: `e_bits`, `e_addr`, `e_size_esn`.
const BITS: u64 = 0;
const ADDRESS: u64 = 8;
const SIZE: u64 = 16;
/// The number of its arena is in the lowest bits, whether it is a slab in the next one (`EDATA_BITS_ARENA_WIDTH`).
const ARENA: u64 = (1 << 12) - 1;
const SLAB: u64 = 1 << 12;
/// Where the number of its size class may begin (`EDATA_BITS_SZIND_SHIFT`); the number of free regions stands behind
/// (`EDATA_BITS_NFREE_WIDTH` bits).
const CLASS: std::ops::RangeInclusive<u32> = 14..=40;
const CLASS_BITS: u32 = 8;
const FREE: u64 = (1 << 10) - 1;
/// Where the bits of its regions may begin (`e_slab_data`): first where they do as a rule.
const REGIONS: [u64; 12] = [64, 24, 32, 40, 48, 56, 72, 80, 88, 96, 104, 112];
/// A slab has so many regions at most (`SC_SLAB_MAXREGS`).
pub(super) const MAX_REGIONS: u64 = 512;
/// The layout is found by so many slabs.
const SAMPLE: usize = 4096;
/// There are so many size classes (`SC_NSIZES`): an extent in no use has this number.
pub(super) const CLASSES: u64 = 232;
/// Of those so many are of regions in slabs (`SC_NBINS`).
pub(super) const SMALL_CLASSES: u64 = 36;

/// The size of a class's blocks (`sz_index2size`): 8, then four at equal distances up to each power of two.
pub(super) const fn size_of(class: u64) -> u64 {
    match class {
        0 => 8,
        1..=4 => 16 * class,
        _ => {
            let (group, step) = ((class - 1) / 4, (class - 1) % 4 + 1);
            let base = 32 << group;
            base + base / 4 * step
        }
    }
}

/// What an extent is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// Regions of a size class; the bits of those that are free begin at this number in [`Extents::bits`].
    Regions { class: u64, bits: usize },
    /// One block.
    Block { class: u64, at: Addr },
    /// Nothing.
    Nothing,
    /// It is not known what.
    Unknown,
}

/// An extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Where its structure is.
    pub(super) structure: Addr,
    /// Its first page.
    pub(super) at: Addr,
    /// In bytes, a multiple of pages.
    pub(super) size: u64,
    /// The number of its arena.
    pub(super) arena: u64,
    pub(super) holds: Holds,
}

impl Extent {
    pub(super) const fn end(&self) -> Addr {
        self.at.add(self.size)
    }

    /// Where the region or the block begins that holds an address, and how many bytes it has.
    pub(super) fn place(&self, at: Addr) -> Option<(Addr, u64)> {
        let (begin, size) = match self.holds {
            Holds::Regions { class, .. } => {
                let size = size_of(class);
                let number = at.0.checked_sub(self.at.0)? / size;
                if number >= self.size / size {
                    return None;
                }
                (self.at.add(number * size), size)
            }
            Holds::Block { class, at } => (at, size_of(class)),
            Holds::Nothing | Holds::Unknown => return None,
        };
        (begin.0..begin.0 + size).contains(&at.0).then_some((begin, size))
    }

    /// The number of its blocks' size class.
    pub(super) const fn class(&self) -> Option<u64> {
        match self.holds {
            Holds::Regions { class, .. } | Holds::Block { class, .. } => Some(class),
            Holds::Nothing | Holds::Unknown => None,
        }
    }
}

/// All extents.
#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Ascending, and apart from each other.
    pub(super) all: Vec<Extent>,
    /// For each region of each slab whether it is free, in words.
    bits: Vec<u64>,
}

impl Extents {
    /// The extent that holds an address.
    pub(super) fn holding(&self, at: Addr) -> Option<&Extent> {
        let next = self.all.partition_point(|extent| extent.at <= at);
        self.all.get(next.checked_sub(1)?).filter(|extent| at < extent.end())
    }

    /// Whether a region of a slab is free.
    pub(super) fn is_free(&self, bits: usize, region: u64) -> bool {
        let word = usize::try_from(region / 64).ok().and_then(|word| self.bits.get(bits.checked_add(word)?));
        word.is_some_and(|word| word >> (region % 64) & 1 != 0)
    }
}

/// Where those of an extent's members are that are not everywhere at the same place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    /// The first bit of the number of its size class.
    class: u32,
    /// Where the bits of its regions begin.
    regions: u64,
}

impl Layout {
    const fn class_in(self, bits: u64) -> u64 {
        bits >> self.class & ((1 << CLASS_BITS) - 1)
    }

    /// How many of a slab's regions are free.
    const fn free_in(self, bits: u64) -> u64 {
        bits >> (self.class + CLASS_BITS) & FREE
    }

    /// Whether two bits of its state are those of an extent in use (`extent_state_active`); 5.3 has one more.
    const fn is_active(self, bits: u64) -> bool {
        bits >> (self.class - 2) & 3 == 0
    }

    /// Whether the bits of a slab's regions are as many as it says, and none lie behind the last region.
    fn fits(self, told: &ExtentRecord, regions: u64) -> bool {
        let mut free = 0;
        for number in 0..regions.div_ceil(64) {
            let Some(word) = told.word(self.regions + 8 * number) else { return false };
            if regions - 64 * number < 64 && word >> (regions - 64 * number) != 0 {
                return false;
            }
            free += u64::from(word.count_ones());
        }
        free == self.free_in(told.bits)
    }
}

/// An extent's structure, all read at one moment: the program may go on changing it.
#[derive(Clone, Copy, Debug)]
struct ExtentRecord {
    structure: Addr,
    words: [u64; WORDS],
    /// How many of the words could be read.
    read: usize,
    bits: u64,
    address: Addr,
    size: u64,
}

/// The words of a structure, with those of the bits of most regions.
const WORDS: usize = (112 + MAX_REGIONS / 8) as usize / 8;

impl ExtentRecord {
    /// The word at this place of the structure.
    fn word(&self, place: u64) -> Option<u64> {
        self.words.get(..self.read)?.get(usize::try_from(place / 8).ok()?).copied()
    }
}

fn told(structure: Addr, window: &mut Window<'_>) -> Option<ExtentRecord> {
    let mut words = [0; WORDS];
    let mut read = 0;
    for (to, place) in words.iter_mut().zip((0..).step_by(8)) {
        let Some(word) = window.word(structure.add(place)) else { break };
        *to = word;
        read += 1;
    }
    let told = ExtentRecord { structure, words, read, bits: 0, address: Addr::NULL, size: 0 };
    let (bits, address, size) = (told.word(BITS)?, Addr(told.word(ADDRESS)?), told.word(SIZE)? & !(PAGE - 1));
    let is_possible = size > 0 && page_of(address).0.checked_add(size).is_some_and(|end| end < 1 << 47);
    is_possible.then_some(ExtentRecord { bits, address, size, ..told })
}

/// How many regions of a class a slab has.
fn regions_of(class: u64, size: u64) -> Option<u64> {
    let regions = size / size_of(class);
    (class < SMALL_CLASSES && (1..=MAX_REGIONS).contains(&regions)).then_some(regions)
}

/// Reads the extents to which the tree leads. None if they are not jemalloc's: no slab is as it says itself.
pub(super) fn read(entries: &[Entry], findings: &mut Vec<Finding>, memory: &mut dyn ReadMemory) -> Option<Extents> {
    // the first page of each
    let mut entries = entries.to_vec();
    entries.sort_unstable_by_key(|entry| (entry.extent, entry.page));
    entries.dedup_by_key(|entry| entry.extent);
    let mut window = Window::new(memory);
    let layout = layout(&entries, &mut window)?;
    let mut extents = Extents::default();
    for entry in &entries {
        let told = told(entry.extent, &mut window);
        let is_there = |told: &ExtentRecord| page_of(told.address) == entry.page;
        let Some(told) = told.filter(is_there) else {
            note(findings, entry.page, Fault::Entry);
            continue;
        };
        let holds = holds(&told, layout, &mut extents.bits);
        if holds == Holds::Unknown {
            note(findings, entry.page, Fault::Entry);
        }
        let arena = told.bits & ARENA;
        let ExtentRecord { structure, size, .. } = told;
        extents.all.push(Extent { structure, at: entry.page, size, arena, holds });
    }
    extents.all.sort_unstable_by_key(|extent| extent.at);
    let mut end = Addr::NULL;
    extents.all.retain(|extent| {
        let is_apart = extent.at >= end;
        if is_apart {
            end = extent.end();
        } else {
            note(findings, extent.at, Fault::Entry);
        }
        is_apart
    });
    Some(extents)
}

/// What an extent is used for.
fn holds(told: &ExtentRecord, layout: Layout, bits: &mut Vec<u64>) -> Holds {
    let class = layout.class_in(told.bits);
    // one in no use may still say that it is a slab
    if class >= CLASSES || !layout.is_active(told.bits) {
        return Holds::Nothing;
    }
    if told.bits & SLAB == 0 {
        let end = page_of(told.address).add(told.size);
        return match () {
            () if told.address.0.checked_add(size_of(class)).is_some_and(|last| last <= end.0) => {
                Holds::Block { class, at: told.address }
            }
            () => Holds::Unknown,
        };
    }
    let regions = regions_of(class, told.size);
    let Some(regions) = regions.filter(|regions| layout.fits(told, *regions)) else {
        return Holds::Unknown;
    };
    let first = bits.len();
    bits.extend((0..regions.div_ceil(64)).map_while(|number| told.word(layout.regions + 8 * number)));
    Holds::Regions { class, bits: first }
}

/// The layout by which the most slabs, and more than half of them, have as many free regions as they say, and the class
/// that the tree says. A program that runs on changes some of them meanwhile.
fn layout(entries: &[Entry], window: &mut Window<'_>) -> Option<Layout> {
    let slabs: Vec<&Entry> = entries.iter().filter(|entry| entry.is_slab).collect();
    let step = slabs.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<(ExtentRecord, u64)> = slabs
        .into_iter()
        .step_by(step)
        .filter_map(|entry| Some((told(entry.extent, window)?, u64::from(entry.class))))
        .filter(|(told, _)| told.bits & SLAB != 0)
        .collect();
    let fits = |layout: Layout| {
        let fitting = sample.iter().filter(|(told, class)| {
            let regions = regions_of(*class, told.size).filter(|_| layout.class_in(told.bits) == *class);
            regions.is_some_and(|regions| layout.fits(told, regions))
        });
        fitting.count()
    };
    let mut best: Option<(usize, Layout)> = None;
    for class in CLASS {
        for regions in REGIONS {
            let layout = Layout { class, regions };
            let fitting = fits(layout);
            if fitting > best.map_or(0, |(most, _)| most) {
                best = Some((fitting, layout));
            }
        }
    }
    let (fitting, layout) = best?;
    let in_use = sample.iter().filter(|(told, _)| layout.class_in(told.bits) < CLASSES).count();
    (fitting * 2 > in_use).then_some(layout)
}
