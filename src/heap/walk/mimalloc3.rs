//! mimalloc 3, walked from outside (include/mimalloc/types.h, src/page-map.c, arena.c, page.c, free.c).
//!
//! Memory is in use by *slices* of 64 KiB; so many slices are a *page* of blocks of one size. A map in two levels leads
//! from each slice to its page's record, and a record tells where its blocks begin: by that the map is found from a
//! module's data, with no symbol. Most pages lie in *arenas*, which records lead to; what lies in an arena and in no
//! page is in no use, or mimalloc's own.
//!
//! What is free in a page is in its lists: of what can be handed out, of what its own thread has given back, and of
//! what others have. All other blocks that were ever handed out are live: those of threads that have ended, too. An
//! aligned block may begin further on in its place: where is told nowhere.
//!
//! A record counts its blocks besides. Builds that encode their lists (secure and debug ones) have lists that do not
//! agree with that, and are not recognized.

mod arenas;
mod map;
mod records;

use super::mimalloc::blocks::{Free, chunk};
use super::{Allocator, Arena, Fault, Finding, Region, Sources, State, Walk};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use arenas::Area;
use records::Page;

/// A slice (`MI_ARENA_SLICE_SIZE`).
const SLICE: u64 = 64 << 10;
/// A page of the kernel's.
const KERNEL_PAGE: u64 = 4096;
/// So much wrong is told.
const MAX_FINDINGS: usize = 1 << 12;
/// More blocks are not told.
const MAX_CHUNKS: usize = 1 << 27;

/// Walks the heap. None if there is none of mimalloc 3's.
pub fn walk(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    walk_within(map::BUDGET, sources, memory)
}

/// Walks the heap, and looks at so many words for its map.
fn walk_within(budget: u64, sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    let mut walk = Walk { allocator: Allocator::Mimalloc3, ..Walk::default() };
    let mut pages = records::read(&map::find(sources, budget, memory)?, &mut walk.findings, memory)?;
    let areas = arenas::find(&mut pages, sources, memory);
    let mut judged = Judged::default();
    for area in &areas {
        add_area(&mut walk, area, &pages, &mut judged, memory);
    }
    let mut end = Addr::NULL;
    for page in &pages {
        // the first area that does not end before it
        let next = areas.get(areas.partition_point(|area| area.end() <= page.at));
        if next.is_some_and(|area| area.at <= page.at) {
            continue;
        }
        let is_apart = page.at >= end && next.is_none_or(|area| page.end() <= area.at);
        let is_there = is_apart && page.is_possible() && arenas::is_mapped(page.at..page.end(), sources);
        if is_there && walk.chunks.len() < MAX_CHUNKS {
            end = page.end();
            add_lone(&mut walk, page, &mut judged, memory);
        } else {
            note(&mut walk.findings, Finding { at: page.at, what: Fault::Entry, before: None });
        }
    }
    if !judged.is_ours() {
        return None;
    }
    walk.arenas = areas.iter().map(Area::told).collect();
    walk.regions.sort_by_key(|region| region.range.start);
    Some(walk)
}

/// Keeps what is wrong, as long as it is not too much.
fn note(findings: &mut Vec<Finding>, finding: Finding) {
    if findings.len() < MAX_FINDINGS {
        findings.push(finding);
    }
}

/// How many pages have lists that agree with what their records count.
#[derive(Clone, Copy, Default, Debug)]
struct Judged {
    agree: u64,
    others: u64,
}

impl Judged {
    /// Takes what the lists of a page say. Whether that agrees: a thread may just be taking one block, or giving it
    /// back.
    fn take(&mut self, page: &Page, free: &Free, is_whole: bool) -> bool {
        let [first, own, others] = free.listed;
        let counted = page.used + first + own;
        let agrees = is_whole && counted.abs_diff(page.blocks.capacity) <= 1 && others <= page.used + 1;
        // one without lists says nothing of how these are linked
        if free.listed != [0; 3] || !is_whole {
            *(if agrees { &mut self.agree } else { &mut self.others }) += 1;
        }
        agrees
    }

    const fn is_ours(self) -> bool {
        self.agree > 0 && self.agree >= self.others
    }
}

/// Adds an arena with the pages in it.
fn add_area(walk: &mut Walk, area: &Area, pages: &[Page], judged: &mut Judged, memory: &mut dyn ReadMemory) {
    let first = walk.chunks.len();
    let begin = area.at.add(area.info);
    let (mut end, mut broken_at) = (begin, None);
    let from = pages.partition_point(|page| page.at < area.at);
    for page in pages.iter().skip(from).take_while(|page| page.at < area.end()) {
        let has_room = page.at >= end && page.end() <= area.end();
        if !has_room || !page.is_possible() || walk.chunks.len() >= MAX_CHUNKS {
            note(&mut walk.findings, Finding { at: page.at, what: Fault::Entry, before: None });
            broken_at = broken_at.or(Some(page.at.max(begin)));
            continue;
        }
        if end < page.at {
            walk.chunks.push(chunk(end, page.at.0 - end.0, State::Top));
        }
        if page.has_record_before() {
            walk.chunks.push(chunk(page.at, page.blocks.start.0 - page.at.0, State::Own));
        }
        add_blocks(walk, page, judged, memory);
        end = page.end();
    }
    if end < area.end() {
        walk.chunks.push(chunk(end, area.end().0 - end.0, State::Top));
    }
    walk.regions.push(Region {
        range: begin..area.end(),
        books: area.at..begin,
        arena: Some(walk.regions.len()),
        chunks: first..walk.chunks.len(),
        broken_at,
    });
}

/// Adds a page that has its memory of the kernel.
fn add_lone(walk: &mut Walk, page: &Page, judged: &mut Judged, memory: &mut dyn ReadMemory) {
    let first = walk.chunks.len();
    add_blocks(walk, page, judged, memory);
    let books = if page.has_record_before() { page.at..page.blocks.start } else { page.at..page.at };
    walk.regions.push(Region {
        range: books.end..page.end(),
        books,
        arena: None,
        chunks: first..walk.chunks.len(),
        broken_at: None,
    });
}

fn add_blocks(walk: &mut Walk, page: &Page, judged: &mut Judged, memory: &mut dyn ReadMemory) {
    let mut wrong = Vec::new();
    let free = page.blocks.free(&mut wrong, memory);
    let is_whole = wrong.is_empty();
    if !judged.take(page, &free, is_whole) && is_whole {
        wrong.push(Finding { at: page.record, what: Fault::Count, before: None });
    }
    for finding in wrong {
        note(&mut walk.findings, finding);
    }
    let size = page.blocks.size;
    for (at, is_free) in page.blocks.places().zip(free.blocks) {
        walk.chunks.push(chunk(at, size, if is_free { State::Free } else { State::Live }));
    }
    let behind = page.blocks.start.add(size * page.blocks.capacity);
    let left = page.end().0 - behind.0;
    // less than a block is lost by rounding
    if left >= size {
        walk.chunks.push(chunk(behind, left, State::Top));
    }
}

impl Area {
    const fn told(&self) -> Arena {
        Arena { at: self.at, is_main: false, system_bytes: self.size, threads: None }
    }
}

#[cfg(test)]
mod tests;
