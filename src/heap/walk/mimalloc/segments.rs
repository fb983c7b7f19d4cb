//! Segments (`mi_segment_t`), with the pages that their slices are (`mi_page_t`).

use super::super::{Fault, Finding, Sources};
use super::{SEGMENT, SLICE};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::image::maps::Kind;
use std::collections::BTreeSet;

/// The table of slices has so many at most; what lies behind belongs to the last page (`MI_SLICES_PER_SEGMENT`).
const MAX_SLICES: u64 = SEGMENT / SLICE;
/// Members of a segment, by how far they stand before the table of slices: `used`, `cookie`, `segment_slices`,
/// `segment_info_slices`, `kind`, `slice_entries`, `thread_id`.
const USED: usize = 56;
const COOKIE: usize = 48;
const SLICES: usize = 40;
const INFO: usize = 32;
const KIND: usize = 24;
const ENTRIES: usize = 16;
const THREAD: usize = 8;
/// Where the table may begin.
const TABLE: std::ops::RangeInclusive<usize> = 64..=1024;
/// A segment begins with so many slices of its own at most.
const MAX_INFO: u64 = 4;
/// So many places are looked at, 32 MiB from each other.
const MAX_PLACES: usize = 1 << 18;
/// So much of a thread's heap is looked through.
const HEAP: usize = 4096;

/// Where a page's members stand in its entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    /// An entry's size.
    entry: usize,
    used: Member,
    block_size: Member,
    local_free: usize,
    thread_free: usize,
    heap: usize,
    /// Where the first block is; None: it is told nowhere.
    start: Option<usize>,
}

/// A number's place and width in bytes.
type Member = (usize, usize);

/// Up to 2.1.7, and since.
const LAYOUTS: [Layout; 2] = [
    Layout { entry: 80, used: (24, 4), block_size: (28, 4), local_free: 32, thread_free: 40, heap: 48, start: None },
    Layout {
        entry: 96,
        used: (32, 2),
        block_size: (40, 8),
        local_free: 24,
        thread_free: 56,
        heap: 64,
        start: Some(48),
    },
];
/// In all of them: `capacity`, `reserved`, `free`.
const CAPACITY: usize = 10;
const RESERVED: usize = 12;
const FREE: usize = 16;
/// Larger blocks have their page's size (`MI_HUGE_BLOCK_SIZE`).
const HUGE: u64 = 2 << 30;

/// A page of blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Its first slice.
    pub(super) at: Addr,
    /// Of all its slices.
    pub(super) size: u64,
    pub(super) block_size: u64,
    /// So many blocks were ever handed out, or lie in a list.
    pub(super) capacity: u64,
    /// For so many there is room.
    pub(super) reserved: u64,
    /// So many are in use, as it says itself.
    pub(super) used: u64,
    /// Where its lists begin.
    pub(super) lists: [Addr; 3],
    pub(super) start: Option<Addr>,
    heap: Addr,
}

/// What some slices are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Page(Page),
    /// In no use.
    Free(Addr, u64),
}

/// A segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) at: Addr,
    /// How many slices it has, and how many of them are its own.
    slices: u64,
    pub(super) info: u64,
    pub(super) is_huge: bool,
    /// Its thread's number; 0: it has none.
    pub(super) thread: u64,
    pub(super) spans: Vec<Span>,
    /// From where on its slices make no sense.
    pub(super) broken_at: Option<Addr>,
    /// How many pages are in use, as it says itself.
    used: u64,
}

impl Segment {
    pub(super) fn end(&self) -> Addr {
        self.at.add(self.slices * SLICE)
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.spans.iter().filter_map(|span| match span {
            Span::Page(page) => Some(page),
            Span::Free(..) => None,
        })
    }

    fn is_exact(&self) -> bool {
        self.broken_at.is_none() && self.pages().count() as u64 == self.used
    }
}

/// The segment that holds an address.
pub(super) fn holding(segments: &[Segment], at: Addr) -> Option<&Segment> {
    let next = segments.partition_point(|segment| segment.at <= at);
    segments.get(next.checked_sub(1)?).filter(|segment| at < segment.end())
}

/// All segments, ascending and apart from each other. None if there is not one.
pub(super) fn find(
    sources: &Sources<'_>,
    findings: &mut Vec<Finding>,
    memory: &mut dyn ReadMemory,
) -> Option<Vec<Segment>> {
    let places = sources
        .mappings
        .iter()
        .filter(|mapping| {
            matches!(mapping.kind, Kind::Anonymous | Kind::Heap) && mapping.perms.write && !mapping.perms.shared
        })
        .flat_map(|mapping| {
            let first = mapping.start.0.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX);
            (first..mapping.end.0.saturating_sub(SLICE - 1)).step_by(SEGMENT as usize)
        })
        .take(MAX_PLACES);
    let mut read = |at: u64| {
        let head = Addr(at)..Addr(at).add(4096);
        let is_touched = memory.touched(head).iter().any(|part| part.start.0 <= at);
        let mut bytes = vec![0; if is_touched { SLICE as usize } else { 0 }];
        let count = memory.read(Addr(at), &mut bytes);
        bytes.truncate(count);
        bytes
    };
    let mut known: Option<(usize, Layout, u64)> = None;
    let mut segments: Vec<Segment> = Vec::new();
    let mut before: Vec<u64> = Vec::new();
    for at in places {
        let bytes = read(at);
        if known.is_none() {
            known = layout_in(Addr(at), &bytes);
            if known.is_none() && !bytes.is_empty() {
                before.push(at);
            }
        }
        if let Some(known) = known {
            segments.extend(segment_in(Addr(at), &bytes, known));
        }
    }
    let known = known?;
    // such as stand before the first that was whole
    let more: Vec<Segment> = before.into_iter().filter_map(|at| segment_in(Addr(at), &read(at), known)).collect();
    segments.splice(0..0, more);
    let mut end = Addr::NULL;
    segments.retain(|segment| {
        let is_apart = segment.at >= end && is_mapped(sources, segment);
        if is_apart {
            end = segment.end();
        }
        if !is_apart || segment.broken_at.is_some() {
            findings.push(Finding { at: segment.broken_at.unwrap_or(segment.at), what: Fault::Entry, before: None });
        }
        is_apart
    });
    Some(segments)
}

/// Whether a segment's beginning and end are mapped, and what lies between is not too much.
fn is_mapped(sources: &Sources<'_>, segment: &Segment) -> bool {
    let last = segment.end().sub(1);
    let next = sources.mappings.partition_point(|mapping| mapping.end <= last);
    sources.mappings.get(next).is_some_and(|mapping| mapping.contains(last))
}

/// Where the table of slices begins, how its entries are, and the number that cookies are mixed with, if this is a
/// segment.
fn layout_in(at: Addr, bytes: &[u8]) -> Option<(usize, Layout, u64)> {
    TABLE.step_by(8).find_map(|table| {
        let key = word(bytes, table - COOKIE)? ^ at.0;
        LAYOUTS.into_iter().map(|layout| (table, layout, key)).find(|known| {
            let segment = segment_in(at, bytes, *known);
            // such as hold no page tell nothing of its members
            segment.is_some_and(|segment| segment.is_exact() && segment.pages().any(|page| page.is_possible()))
        })
    })
}

/// The segment at `at`, if there is one.
fn segment_in(at: Addr, bytes: &[u8], (table, layout, key): (usize, Layout, u64)) -> Option<Segment> {
    let of = |before: usize| word(bytes, table.checked_sub(before)?);
    let (slices, info, entries, used) = (of(SLICES)?, of(INFO)?, of(ENTRIES)?, of(USED)?);
    let kind = of(KIND)? & u64::from(u32::MAX);
    let cookie = of(COOKIE)?;
    let is_possible = cookie ^ at.0 == key
        && cookie != 0
        && (1..=MAX_INFO).contains(&info)
        && (info + 1..1 << 32).contains(&slices)
        && entries == slices.min(MAX_SLICES)
        && used < entries
        && (kind == 0 && slices == MAX_SLICES || kind == 1)
        && at.0.checked_add(slices * SLICE).is_some();
    if !is_possible {
        return None;
    }
    let mut segment =
        Segment { at, slices, info, is_huge: kind == 1, thread: of(THREAD)?, spans: Vec::new(), broken_at: None, used };
    let entry = |index: u64| {
        let begin = table + usize::try_from(index).ok()? * layout.entry;
        bytes.get(begin..begin + layout.entry)
    };
    let count = |entry: &[u8]| (number(entry, (0, 4)), number(entry, (4, 4)));
    if entry(0).map(count) != Some((info, 0)) {
        return None;
    }
    let mut index = info;
    while index < entries {
        let place = at.add(index * SLICE);
        let known = entry(index).map(|entry| (entry, count(entry)));
        let Some((entry, (count, 0))) = known.filter(|(_, (count, _))| (1..=slices - index).contains(count)) else {
            segment.broken_at = Some(place);
            break;
        };
        let size = count * SLICE;
        let span = if number(entry, layout.block_size) == 0 {
            Span::Free(place, size)
        } else {
            Span::Page(page_in(place, size, entry, layout))
        };
        segment.spans.push(span);
        index += count;
    }
    Some(segment)
}

fn page_in(at: Addr, size: u64, entry: &[u8], layout: Layout) -> Page {
    let told = number(entry, layout.block_size);
    let list = |place| Addr(number(entry, (place, 8)) & !3);
    Page {
        at,
        size,
        block_size: if told < HUGE { told } else { size },
        capacity: number(entry, (CAPACITY, 2)),
        reserved: number(entry, (RESERVED, 2)),
        used: number(entry, layout.used),
        lists: [list(FREE), list(layout.local_free), list(layout.thread_free)],
        start: layout.start.map(|start| Addr(number(entry, (start, 8)))),
        heap: Addr(number(entry, (layout.heap, 8))),
    }
}

impl Page {
    pub(super) const fn end(&self) -> Addr {
        self.at.add(self.size)
    }

    /// Whether a page can be so. One that is just being made, or undone, has no blocks yet.
    pub(super) fn is_possible(&self) -> bool {
        let start = self.start.unwrap_or(self.at);
        let fits = (self.at..self.end()).contains(&start)
            && self.block_size.checked_mul(self.reserved).is_some_and(|all| all <= self.end().0 - start.0);
        let lists = self.lists.iter().all(|list| list.is_null() || (start..self.end()).contains(list));
        self.capacity == 0
            || fits && lists && self.block_size >= 8 && self.capacity <= self.reserved && self.used <= self.capacity
    }
}

/// A thread's heap (`mi_heap_t`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Heap {
    pub(super) thread: u64,
    pub(super) at: Addr,
    /// The first block of its list `thread_delayed_free`.
    pub(super) delayed: Addr,
}

/// All heaps that have pages, by threads. Behind the list stands the thread's number.
pub(super) fn heaps(segments: &[Segment], memory: &mut dyn ReadMemory) -> Vec<Heap> {
    let mut all: BTreeSet<(u64, Addr)> = BTreeSet::new();
    for segment in segments.iter().filter(|segment| segment.thread != 0) {
        all.extend(segment.pages().filter(|page| !page.heap.is_null()).map(|page| (segment.thread, page.heap)));
    }
    let mut bytes = [0; HEAP];
    let heaps = all.into_iter().filter_map(|(thread, at)| {
        let read = memory.read(at, &mut bytes);
        let words = |from: usize| bytes.get(from..read).unwrap_or(&[]).chunks_exact(8).map(|word| number(word, (0, 8)));
        let (delayed, _) = words(0).zip(words(8)).find(|(_, next)| *next == thread)?;
        Some(Heap { thread, at, delayed: Addr(delayed) })
    });
    heaps.collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

/// A little-endian number; 0 where there is none.
fn number(bytes: &[u8], (at, width): Member) -> u64 {
    let bytes = bytes.get(at..at + width).unwrap_or(&[]);
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
