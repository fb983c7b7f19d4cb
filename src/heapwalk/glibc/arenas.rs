//! Where glibc's arenas are, and the heaps of those that are not the main one.

use super::super::window::Window;
use crate::addr::Addr;
use crate::memory::ReadMemory;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// Words of `bins` in `struct malloc_state`: two for each of 127 bins.
pub const BINS_WORDS: u64 = 254;
/// So many bins must be empty, and so point to themselves, to be told from other data. After start all are.
const EMPTY_BINS: u64 = 24;

/// Members of `struct malloc_state`, from its `bins` on: `top` and `last_remainder` before, `binmap` (16 bytes), `next`, `next_free`,
/// `attached_threads`, `system_mem`, `max_system_mem` behind.
const TOP: u64 = 16;
const NEXT: u64 = BINS_WORDS * 8 + 16;
const THREADS: u64 = NEXT + 16;
const SYSTEM: u64 = NEXT + 24;
const END: u64 = NEXT + 40;
/// Where `bins` may begin in it: behind a lock, flags, `top` and `last_remainder`, and perhaps ten fast bins.
const BINS_AT: std::ops::RangeInclusive<u64> = 24..=128;
/// Where it begins if there are fast bins: ten words before `top`, a word of flags and one of lock before those.
const BINS_BEHIND_FAST: u64 = 112;
/// Fast bins.
pub(super) const FAST_BINS: u64 = 10;

/// Arenas of a process: eight a processor unless the program wants more.
const MOST_ARENAS: usize = 1 << 16;

/// Heaps of other arenas begin at multiples of this (`HEAP_MAX_SIZE`: twice the largest mmap threshold).
const HEAP_ALIGNMENT: u64 = 64 << 20;
/// The offsets of `ar_ptr`, `prev` and `size` in `struct heap_info`.
const HEAP_ARENA: u64 = 0;
const HEAP_PREV: u64 = 8;
const HEAP_SIZE: u64 = 16;

/// An arena.
#[derive(Clone, Debug)]
pub(super) struct ArenaAt {
    pub(super) at: Addr,
    pub(super) top: Addr,
    pub(super) system_bytes: u64,
    pub(super) threads: u64,
}

/// The arenas of a process.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The main one first.
    pub(super) arenas: Vec<ArenaAt>,
    /// Where `bins` begins in each.
    pub(super) bins: u64,
    /// The data that holds the main one.
    pub(super) data: Range<Addr>,
}

impl Found {
    /// Where the fast bins of an arena are, if it has any.
    pub(super) fn fast_bins(&self, arena: &ArenaAt) -> Option<Addr> {
        (self.bins >= BINS_BEHIND_FAST).then(|| arena.at.add(self.bins - TOP - FAST_BINS * 8))
    }

    /// Where the bins of an arena are.
    pub(super) fn bins(&self, arena: &ArenaAt) -> Addr {
        arena.at.add(self.bins)
    }
}

/// Finds the main arena in modules' data, and by it the others.
pub(super) fn find(data: &[Range<Addr>], memory: &mut dyn ReadMemory) -> Option<Found> {
    data.iter().find_map(|range| {
        let bins = bins_in(range, memory)?;
        let (offset, others) = BINS_AT.step_by(8).find_map(|offset| {
            let others = ring(bins, offset, memory)?;
            Some((offset, others))
        })?;
        let mut arenas = Vec::with_capacity(others.len() + 1);
        for at in std::iter::once(bins.sub(offset)).chain(others) {
            arenas.push(ArenaAt {
                at,
                top: Addr(memory.read_u64(at.add(offset - TOP))?),
                system_bytes: memory.read_u64(at.add(offset + SYSTEM))?,
                threads: memory.read_u64(at.add(offset + THREADS))?,
            });
        }
        Some(Found { arenas, bins: offset, data: range.clone() })
    })
}

/// The arenas behind the main one, if `bins` stands so far behind its beginning: then the ring comes back there.
fn ring(bins: Addr, offset: u64, memory: &mut dyn ReadMemory) -> Option<Vec<Addr>> {
    let main = bins.sub(offset);
    let mut others = Vec::new();
    let mut at = Addr(memory.read_u64(bins.add(NEXT))?);
    while at != main {
        let heap = Addr(at.0 / HEAP_ALIGNMENT * HEAP_ALIGNMENT);
        let is_arena = memory.read_u64(heap.add(HEAP_ARENA)) == Some(at.0);
        if !is_arena || others.len() >= MOST_ARENAS {
            return None;
        }
        others.push(at);
        at = Addr(memory.read_u64(at.add(offset + NEXT))?);
    }
    Some(others)
}

/// The heaps of an arena that is not the main one: what lies before the chunks of each, and where these are.
pub(super) fn heaps(found: &Found, arena: &ArenaAt, window: &mut Window<'_>) -> Vec<(Range<Addr>, Range<Addr>)> {
    let first = Addr(arena.at.0 / HEAP_ALIGNMENT * HEAP_ALIGNMENT);
    // It stands right behind the first heap's own data.
    let own = arena.at.0 - first.0;
    let mut all = Vec::new();
    let mut seen = FxHashSet::default();
    let mut heap = Addr(arena.top.0 / HEAP_ALIGNMENT * HEAP_ALIGNMENT);
    // a heap that comes again is none
    while !heap.is_null() && seen.insert(heap) {
        let (Some(owner), Some(prev), Some(size)) = (
            window.lone_word(heap.add(HEAP_ARENA)),
            window.lone_word(heap.add(HEAP_PREV)),
            window.lone_word(heap.add(HEAP_SIZE)),
        ) else {
            break;
        };
        if owner != arena.at.0 || size > HEAP_ALIGNMENT {
            break;
        }
        let books = if heap == first { own + found.bins + END } else { own };
        let start = super::aligned(heap.add(books));
        if start < heap.add(size) {
            all.push((heap..start, start..heap.add(size)));
        }
        heap = Addr(prev);
    }
    all
}

/// Where `bins` of a main arena begins, if one is in `range`: an empty bin is a list head, two words that point 16 bytes before themselves. The last bin always
/// is one.
pub fn bins_in(range: &Range<Addr>, memory: &mut dyn ReadMemory) -> Option<Addr> {
    let size = usize::try_from(range.end.0.checked_sub(range.start.0)?).ok()?;
    let mut bytes = vec![0; size];
    let read = memory.read(range.start, &mut bytes);
    bytes.truncate(read);
    let misaligned = range.start.0.next_multiple_of(8) - range.start.0;
    let bytes = bytes.get(usize::try_from(misaligned).ok()?..)?;
    let base = range.start.add(misaligned);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))).collect();
    let empty: Vec<u64> = words
        .windows(2)
        .zip((base.0..).step_by(8))
        .filter(|(pair, at)| pair.iter().all(|&word| word == at - 16))
        .map(|(_, at)| at)
        .collect();
    empty.iter().rev().find_map(|&last| {
        let first = last.checked_sub((BINS_WORDS - 2) * 8)?;
        let count = empty.iter().filter(|&&at| (first..=last).contains(&at) && (at - first).is_multiple_of(16)).count();
        (count as u64 >= EMPTY_BINS).then_some(Addr(first))
    })
}
