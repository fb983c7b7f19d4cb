//! Which live blocks keep free memory: a page goes back to the kernel only as a whole.

use crate::heap::walk::census::Pages;
use crate::heap::walk::{Chunk, Region, State, Walk};

use crate::base::addr::Addr;

const PAGE: u64 = 4096;

/// glibc maps blocks of so many bytes and more one by one, unless it has learnt from frees to do so later
/// (`DEFAULT_MMAP_THRESHOLD`); and gives back the end of the main arena from so much on (`DEFAULT_TRIM_THRESHOLD`).
const THRESHOLD: u64 = 128 << 10;

/// What would keep free memory from staying.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Remedy {
    /// Fewer arenas share what is free (`M_ARENA_MAX`).
    FewerArenas,
    /// Large blocks in mappings of their own, which go back when they are freed (`M_MMAP_THRESHOLD`).
    MapLarge,
    /// The end of the main arena goes back earlier (`M_TRIM_THRESHOLD`).
    TrimEarlier,
    /// Blocks of one size side by side: another allocator.
    OtherAllocator,
}

/// What is kept, and by what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// Resident free bytes in pages that hold live blocks.
    pub bytes: u64,
    /// The live blocks in those pages: number and their part of the bytes. A page's bytes are shared out evenly.
    pub by_block: Vec<(u32, u64)>,
}

/// One page.
#[derive(Default)]
struct Page {
    number: u64,
    free: u64,
    live: Vec<u32>,
}

/// Finds them. Blocks are numbered in the order of addresses.
pub fn find(walk: &Walk, pages: &Pages) -> Pinned {
    let mut pinned = Pinned::default();
    let mut number = 0;
    for region in &walk.regions {
        let mut page = Page::default();
        for chunk in walk.of(region) {
            let is_live = chunk.state == State::Live;
            if region.arena.is_some() {
                let own = chunk.own();
                let (start, end) = (own.start.0, own.end.0);
                let last = (end - 1) / PAGE;
                // in between, pages are all its own
                for at in [Some(start / PAGE), (last != start / PAGE).then_some(last)].into_iter().flatten() {
                    if at != page.number {
                        page.flush(pages, &mut pinned);
                        page.number = at;
                    }
                    if is_live {
                        page.live.push(number);
                    } else if chunk.state.is_free() {
                        page.free += end.min((at + 1) * PAGE) - start.max(at * PAGE);
                    }
                }
            }
            number += u32::from(is_live);
        }
        page.flush(pages, &mut pinned);
    }
    pinned
}

impl Page {
    fn flush(&mut self, pages: &Pages, pinned: &mut Pinned) {
        let range = Addr(self.number * PAGE)..Addr((self.number + 1) * PAGE);
        if self.free > 0 && !self.live.is_empty() && pages.of(&range).resident > 0 {
            pinned.bytes += self.free;
            let (share, rest) = (self.free / self.live.len() as u64, self.free % self.live.len() as u64);
            for (nth, &block) in self.live.iter().enumerate() {
                let bytes = share + u64::from((nth as u64) < rest);
                match pinned.by_block.last_mut() {
                    Some((last, sum)) if *last == block => *sum += bytes,
                    _ => pinned.by_block.push((block, bytes)),
                }
            }
        }
        self.free = 0;
        self.live.clear();
    }
}

/// What helps most, with the resident bytes that it is about; None where hardly anything is free.
pub fn remedy(walk: &Walk, pages: &Pages, pinned: &Pinned) -> Option<(Remedy, u64)> {
    let resident = |chunk: &Chunk| pages.of(&chunk.own()).resident;
    let is = |region: &&Region, main: bool| region.arena.is_some_and(|arena| (arena == 0) == main);
    let of = |main: bool, wanted: fn(&Chunk) -> bool| -> u64 {
        let regions = walk.regions.iter().filter(|region| is(region, main));
        regions.flat_map(|region| walk.of(region)).filter(|chunk| wanted(chunk)).map(resident).sum()
    };
    let other_arenas = of(false, |chunk| chunk.state.is_free());
    let large = of(true, |chunk| chunk.state == State::Free && chunk.size() >= THRESHOLD);
    let end = of(true, |chunk| chunk.state == State::Top && chunk.size() >= THRESHOLD);
    let candidates = [
        (other_arenas, Remedy::FewerArenas),
        (large, Remedy::MapLarge),
        (end, Remedy::TrimEarlier),
        (pinned.bytes, Remedy::OtherAllocator),
    ];
    let (bytes, remedy) = candidates.into_iter().max_by_key(|(bytes, _)| *bytes)?;
    (bytes >= THRESHOLD).then_some((remedy, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_both_are_pinned_by_what_lives_in_them() {
        const BASE: u64 = 0x10_0000;
        let mut at = BASE - 8;
        let mut chunk = |size: u64, state: State| {
            let chunk = Chunk::glibc(Addr(at), size, state);
            at += size;
            chunk
        };
        let chunks = vec![
            chunk(1024, State::Live),
            chunk(1024, State::Free),
            chunk(1024, State::Live),
            chunk(1024, State::Tcache),
            // a page of its own, and the beginning of the next
            chunk(4096 + 96, State::Free),
            chunk(4000, State::Live),
            chunk(4096, State::Top),
        ];
        let end = BASE + 16 * 1024;
        let region = Region {
            range: Addr(BASE - 8)..Addr(end),
            books: Addr(BASE - 8)..Addr(BASE - 8),
            arena: Some(0),
            chunks: 0..chunks.len(),
            broken_at: None,
        };
        let walk = Walk { chunks, regions: vec![region], ..Walk::default() };
        let pages = Pages { resident: vec![Addr(BASE)..Addr(end)], swapped: Vec::new() };
        let found = find(&walk, &pages);
        assert_eq!(found, Pinned { bytes: 2048 + 96, by_block: vec![(0, 1024), (1, 1024), (2, 96)] });
        // what is not resident is not pinned
        let pages = Pages { resident: vec![Addr(BASE)..Addr(BASE + 4096)], swapped: Vec::new() };
        assert_eq!(find(&walk, &pages).bytes, 2048);
    }
}
