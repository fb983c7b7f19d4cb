//! Arenas (`mi_arena_t`): large pieces of memory that pages lie in. Each begins with a structure of its own, and so
//! many slices are for that and what belongs to it.

use super::super::Sources;
use super::SLICE;
use super::records::Page;
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// So much of an arena's structure is looked at.
const HEAD: usize = 256;
/// `subproc` stands so far before `slice_count`, which `info_slices` follows.
const SUBPROC: usize = 16;
/// So much of the structure that knows all arenas is looked through.
const ALL: usize = 4096;
/// So many such structures are looked through, those that most arenas lead to: a process has one, or a few.
const MAX_ALL: usize = 16;
/// So many arenas are looked at, those that most pages tell of: mimalloc knows 160 at a time.
const MAX_ARENAS: usize = 1 << 12;

/// An arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) at: Addr,
    /// What it has, in bytes.
    pub(super) size: u64,
    /// How much of it is mimalloc's own, at its beginning.
    pub(super) info: u64,
}

impl Area {
    pub(super) const fn end(&self) -> Addr {
        self.at.add(self.size)
    }
}

/// All arenas that are known, ascending and apart from each other. Tells the pages in them how much they have.
pub(super) fn find(pages: &mut [Page], sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Vec<Area> {
    let places = pages.first().map_or(0, |page| page.origins.len());
    let votes = |place: usize| pages.iter().filter(|page| origin(page, place).is_some()).count();
    let Some(place) = (0..places).rev().max_by_key(|place| votes(*place)) else { return Vec::new() };
    // how far the pages of each reach, and how many they are
    let mut reached: BTreeMap<Addr, (u64, u64)> = BTreeMap::new();
    for page in pages.iter_mut() {
        if let Some((arena, end, size)) = origin(page, place) {
            page.size = size;
            let (reach, told) = reached.entry(arena).or_default();
            *reach = end.max(*reach);
            *told += 1;
        }
    }
    let mut areas: BTreeMap<Addr, Area> = BTreeMap::new();
    let mut all: BTreeMap<(u64, usize), u64> = BTreeMap::new();
    let reached = reached.into_iter().map(|(at, (slices, told))| ((at, slices), told));
    for (at, slices) in most(reached, MAX_ARENAS) {
        let bytes = head(at, memory);
        let found = (0..HEAD).step_by(8).find_map(|member| Some((member, area(at, &bytes, member, slices, sources)?)));
        if let Some((member, area)) = found {
            areas.insert(at, area);
            if let Some(known) = member.checked_sub(SUBPROC).and_then(|before| word(&bytes, before)) {
                *all.entry((known, member)).or_default() += 1;
            }
        }
    }
    // such as no page lies in at the moment
    let mut list = [0; ALL];
    for (known, member) in most(all.into_iter(), MAX_ALL) {
        let count = memory.read(Addr(known), &mut list);
        for place in list.get(..count).unwrap_or(&[]).chunks_exact(8).filter_map(|place| word(place, 0)) {
            let at = Addr(place);
            if place == 0 || !place.is_multiple_of(SLICE) || areas.contains_key(&at) {
                continue;
            }
            let bytes = head(at, memory);
            if member.checked_sub(SUBPROC).and_then(|before| word(&bytes, before)) == Some(known) {
                areas.extend(area(at, &bytes, member, 0, sources).map(|area| (at, area)));
            }
        }
    }
    let mut end = Addr::NULL;
    let mut areas: Vec<Area> = areas.into_values().collect();
    areas.retain(|area| {
        let is_apart = area.at >= end;
        if is_apart {
            end = area.end();
        }
        is_apart
    });
    areas
}

/// Those with the most votes, so many at most.
fn most<T>(voted: impl Iterator<Item = (T, u64)>, count: usize) -> Vec<T> {
    let mut voted: Vec<(T, u64)> = voted.collect();
    voted.sort_by_key(|(_, votes)| Reverse(*votes));
    voted.into_iter().take(count).map(|(one, _)| one).collect()
}

fn head(at: Addr, memory: &mut dyn ReadMemory) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    let count = memory.read(at, &mut bytes);
    bytes.truncate(count);
    bytes
}

/// Which arena a page says that it is of, with which slice of that it ends, and how many bytes it has: if its `memid`
/// is there.
fn origin(page: &Page, place: usize) -> Option<(Addr, u64, u64)> {
    let (arena, slices) = (*page.origins.get(place)?, *page.origins.get(place + 1)?);
    let (index, count) = (slices & u64::from(u32::MAX), slices >> 32);
    let size = count * SLICE;
    let is_there = arena != 0
        && arena.is_multiple_of(SLICE)
        && index > 0
        && arena.checked_add(index * SLICE) == Some(page.at.0)
        && count > 0
        && page.at.0.checked_add(size).is_some();
    is_there.then_some((Addr(arena), index + count, size))
}

/// The arena at `at`, if its size stands at `member` of its structure. It has so many slices at least.
fn area(at: Addr, bytes: &[u8], member: usize, least: u64, sources: &Sources<'_>) -> Option<Area> {
    let (slices, info) = (word(bytes, member)?, word(bytes, member + 8)?);
    let size = slices.checked_mul(SLICE)?;
    let end = at.0.checked_add(size)?;
    let is_arena = info > 0 && info < slices && slices >= least.max(2) && is_mapped(at..Addr(end), sources);
    is_arena.then(|| Area { at, size, info: info * SLICE })
}

/// Whether both ends of a range are mapped.
pub(super) fn is_mapped(range: Range<Addr>, sources: &Sources<'_>) -> bool {
    let holds = |at: Addr| {
        let next = sources.mappings.partition_point(|mapping| mapping.end <= at);
        sources.mappings.get(next).is_some_and(|mapping| mapping.contains(at))
    };
    range.start < range.end && holds(range.start) && holds(range.end.sub(1))
}
