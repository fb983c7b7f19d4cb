//! glibc's lists of free chunks. Those of thread caches and fast bins tell of chunks that look as if they were in use;
//! those of bins are checked.

use super::super::window::Window;
use super::super::{Chunk, Fault, Finding, State, Walk};
use super::ChunkLinks;
use super::arenas::{BINS_WORDS, FAST_BINS, Found};
use crate::base::addr::Addr;
use std::collections::{HashMap, HashSet};

/// A `tcache_perthread_struct` by the size of its chunk: bytes of each of its counts, and how many lists it has.
const CACHES: [(u64, u64, u64); 3] = [
    // from 2.26 on
    (0x250, 1, 64),
    // from 2.30 on
    (0x290, 2, 64),
    // from 2.42 on: what is left in place of what is there is counted, and there are twelve lists of larger chunks
    (0x300, 2, 76),
];
/// The lists whose chunks have one size each, by steps of 16 from the least on.
const LISTS_OF_ONE_SIZE: u64 = 64;
/// The last of those.
const LARGEST_OF_ONE_SIZE: u64 = 32 + 16 * (LISTS_OF_ONE_SIZE - 1);
/// So many chunks of a cache may be on their way: taken by its thread, or put there, and not yet counted or marked
/// (`tcache_get`, `tcache_put`).
const HALF_DONE: usize = 1;
/// Each chunk is in one list at most: of a heap that is as glibc leaves it, all lists together have no more links than
/// that. So many more are followed to find out what is no list.
const SPARE: usize = 1 << 20;

/// Marks what thread caches and fast bins hold, and looks whether bins lead to free chunks.
pub(super) fn note(walk: &mut Walk, found: &Found, seen: &ChunkLinks, window: &mut Window<'_>) {
    let first = first_chunks(walk);
    let mut links = walk.chunks.len() + SPARE;
    for &number in &seen.may_be_caches {
        let is_live = walk.chunks.get(number).is_some_and(|chunk| chunk.state == State::Live);
        if is_live && let Some(members) = cache(walk, number, first.contains(&number), &mut links, window) {
            set(walk, number, State::Own);
            members.into_iter().for_each(|member| set(walk, member, State::Tcache));
        }
    }
    for arena in &found.arenas {
        if links == 0 {
            return;
        }
        if let Some(bins) = found.fast_bins(arena) {
            for bin in 0..FAST_BINS {
                let size = 32 + 16 * bin;
                let first = window.lone_word(bins.add(8 * bin)).unwrap_or(0);
                // the list is of headers, the link behind them
                match fast_bin(walk, first, size, &mut links, window) {
                    Ok(members) => members.into_iter().for_each(|member| set(walk, member, State::Fast)),
                    Err(finding) => walk.findings.push(finding),
                }
            }
        }
        check_bins(walk, found.bins(arena), &mut links, seen, window);
    }
}

/// The first chunk of each arena. The first one that a thread takes from its arena is its cache (`tcache_init`).
fn first_chunks(walk: &Walk) -> HashSet<usize> {
    let mut first = HashSet::new();
    let mut has_main = false;
    for region in walk.regions.iter().filter(|region| !region.chunks.is_empty()) {
        let is_first = match region.arena {
            Some(0) => !std::mem::replace(&mut has_main, true),
            Some(arena) => walk.arenas.get(arena).is_some_and(|arena| region.books.contains(&arena.at)),
            None => false,
        };
        first.extend(is_first.then_some(region.chunks.start));
    }
    first
}

/// The chunks of a fast bin whose first one is at `first`. Of a list that is damaged, what the kind of links tells that
/// leads further.
fn fast_bin(
    walk: &Walk,
    first: u64,
    size: u64,
    links: &mut usize,
    window: &mut Window<'_>,
) -> Result<Vec<usize>, Finding> {
    let mut followed = |mixed| {
        let before = *links;
        let members = linked(walk, first, Link { mixed, to_block: false }, |of| of == size, links, window);
        members.map_err(|finding| (finding, before - *links))
    };
    followed(true).or_else(|(finding, far)| {
        followed(false).map_err(|(other, further)| if further > far { other } else { finding })
    })
}

/// What a cache whose chunk has this size has: bytes of each count, and lists. It may be larger by what is too little
/// for a chunk.
fn cache_of(size: u64) -> Option<(u64, u64)> {
    CACHES.into_iter().find(|(least, ..)| (*least..*least + 32).contains(&size)).map(|(_, width, lists)| (width, lists))
}

/// Whether a chunk has the size of a thread's cache, and each of its lists is empty or begins where a block can. Of
/// many chunks of such a size few are looked at closely.
pub(super) fn may_be_cache(chunk: Chunk, window: &mut Window<'_>) -> bool {
    let Some((width, lists)) = cache_of(chunk.size()) else { return false };
    let entries = chunk.block().add(width * lists);
    (0..lists).all(|list| window.word(entries.add(8 * list)).is_some_and(|first| first.is_multiple_of(16)))
}

fn set(walk: &mut Walk, number: usize, state: State) {
    if let Some(chunk) = walk.chunks.get_mut(number) {
        chunk.state = state;
    }
}

/// The chunks that a thread's cache holds, if the chunk of this number is one: all of its lists lead to chunks of their
/// sizes, and there is one at least, or it is where caches are.
fn cache(walk: &Walk, number: usize, is_first: bool, links: &mut usize, window: &mut Window<'_>) -> Option<Vec<usize>> {
    // blocks of such a size that hold nothing but zeros may be as many as any
    let chunk = walk.chunks.get(number)?;
    window.see(chunk.block(), chunk.usable());
    [true, false]
        .into_iter()
        .find_map(|mixed| cache_linked(walk, number, is_first, Link { mixed, to_block: true }, links, window))
}

/// The same, with links of one kind.
fn cache_linked(
    walk: &Walk,
    number: usize,
    is_first: bool,
    link: Link,
    links: &mut usize,
    window: &mut Window<'_>,
) -> Option<Vec<usize>> {
    let chunk = walk.chunks.get(number)?;
    let (width, lists) = cache_of(chunk.size())?;
    let (counts, entries) = (chunk.block(), chunk.block().add(width * lists));
    let mut members = Vec::new();
    let mut counted = Counted::default();
    let mut counts_told = HashSet::new();
    let mut keys: HashMap<u64, usize> = HashMap::new();
    for list in 0..lists {
        let first = window.lone_word(entries.add(8 * list))?;
        let at = counts.add(width * list);
        let count = window.lone_word(Addr(at.0 & !7))? >> (8 * (at.0 & 7)) & ((1 << (8 * width)) - 1);
        counts_told.insert(count);
        let of_list = |size: u64| match list {
            0..LISTS_OF_ONE_SIZE => size == 32 + 16 * list,
            _ => size > LARGEST_OF_ONE_SIZE,
        };
        let found = if first == 0 {
            Vec::new()
        } else {
            linked(walk, first.wrapping_sub(16), link, of_list, links, window).ok()?
        };
        if lists == LISTS_OF_ONE_SIZE && !counted.add(count, found.len() as u64) {
            return None;
        }
        if width > 1 {
            for &member in &found {
                // what marks a chunk as one of this cache's (`key`), from 2.29 on
                let told = window.lone_word(walk.chunks.get(member)?.block().add(8))?;
                *keys.entry(told).or_default() += 1;
            }
        }
        members.extend(found);
    }
    let usual = keys.values().copied().max().unwrap_or(0);
    let odd = keys.values().sum::<usize>() - usual;
    if odd > HALF_DONE.min(usual.saturating_sub(1)) || counted.is_chance() && !is_first {
        return None;
    }
    // one that holds nothing has the same count everywhere: nothing, or what it has room for
    (!members.is_empty() || is_first && counts_told.len() == 1).then_some(members)
}

/// The counts of a cache's lists, held against what is linked.
#[derive(Default)]
struct Counted {
    /// How many lists hold as many as is counted, and some.
    right: usize,
    differences: u64,
}

impl Counted {
    /// Adds a list. Whether it may still be a cache's.
    fn add(&mut self, count: u64, linked: u64) -> bool {
        self.differences = self.differences.saturating_add(count.abs_diff(linked));
        self.right += usize::from(count == linked && count > 0);
        self.differences <= HALF_DONE as u64
    }

    /// Whether it is the program's, which happens to hold one pointer where a cache has its lists.
    const fn is_chance(&self) -> bool {
        self.differences > 0 && self.right == 0
    }
}

/// How a chunk says where the next one of its list is, in the first word of its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link {
    /// Mixed with its own place (`PROTECT_PTR`), from 2.32 on.
    mixed: bool,
    /// It leads to the other one's block, as in a thread's cache; else to its beginning.
    to_block: bool,
}

impl Link {
    /// Where the next chunk begins, 0 for none. Which of the two it is must be asked for a whole list: where the heap
    /// lies low, as in static programs, both may lead to chunks.
    fn next(self, raw: u64, place: Addr) -> u64 {
        let plain = if self.mixed { raw ^ (place.0 >> 12) } else { raw };
        match plain {
            0 => 0,
            block if self.to_block => block.wrapping_sub(16),
            header => header,
        }
    }
}

/// The numbers of the chunks of a list whose first one is at `at` (0: none), whose sizes belong there. `links` may
/// still be followed.
fn linked(
    walk: &Walk,
    mut at: u64,
    link: Link,
    belongs: impl Fn(u64) -> bool,
    links: &mut usize,
    window: &mut Window<'_>,
) -> Result<Vec<usize>, Finding> {
    let mut members = Vec::new();
    let mut from = None;
    while at != 0 {
        let wrong = |what| Finding { at: Addr(at), what, before: from };
        let number = walk.starting_at(Addr(at)).ok_or_else(|| wrong(Fault::List))?;
        let chunk = walk.chunks.get(number).copied().filter(|chunk| {
            // those that look as if they were in use
            chunk.state == State::Live && belongs(chunk.size())
        });
        let chunk = chunk.ok_or_else(|| wrong(Fault::List))?;
        *links = links.checked_sub(1).ok_or_else(|| wrong(Fault::Circle))?;
        members.push(number);
        let place = chunk.block();
        let raw = window.lone_word(place).ok_or_else(|| wrong(Fault::Unreadable))?;
        at = link.next(raw, place);
        from = Some(chunk);
    }
    Ok(members)
}

/// Looks whether the bins lead to free chunks and back.
fn check_bins(walk: &mut Walk, bins: Addr, links: &mut usize, seen: &ChunkLinks, window: &mut Window<'_>) {
    for bin in 0..BINS_WORDS / 2 {
        let head = bins.add(16 * bin).sub(16);
        let mut at = window.lone_word(head.add(16)).unwrap_or(head.0);
        let mut before = None;
        while at != head.0 {
            let chunk = walk.starting_at(Addr(at)).and_then(|number| walk.chunks.get(number)).copied();
            let left = links.checked_sub(1);
            let what = match chunk {
                _ if left.is_none() => Some(Fault::Circle),
                Some(chunk) if chunk.state == State::Free => None,
                _ => Some(Fault::List),
            };
            if let Some(what) = what {
                walk.findings.push(Finding { at: Addr(at), what, before });
                if what == Fault::Circle {
                    return;
                }
                break;
            }
            *links = left.unwrap_or(0);
            before = chunk;
            match seen.next(Addr(at)).or_else(|| window.lone_word(Addr(at).add(16))) {
                Some(next) => at = next,
                None => break,
            }
        }
    }
}
