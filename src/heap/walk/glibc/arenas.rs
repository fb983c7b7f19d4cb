//! Where glibc's arenas are, and the heaps of those that are not the main one.

use super::super::window::Window;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// Words of `bins` in `struct malloc_state`: two for each of 127 bins.
pub const BINS_WORDS: u64 = 254;
/// So many of them may be no lists: a thread changes one at the moment, or the program has written over a chunk.
const MAX_WRONG: usize = 8;
/// So many bins are looked at that are not empty, of all that look like the last one.
const MAX_READS: usize = 1 << 16;

/// Members of `struct malloc_state`, from its `bins` on: `top` and `last_remainder` before, `binmap` (16 bytes),
/// `next`, `next_free`, `attached_threads`, `system_mem`, `max_system_mem` behind.
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
const MAX_ARENAS: usize = 1 << 16;

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
        if !is_arena || others.len() >= MAX_ARENAS {
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

/// Where `bins` of a main arena begins, if one is in `range`. Each bin is the head of a list, two words that lead to
/// chunks and back; if it is empty, both point 16 bytes before themselves. The last one always is.
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
    let is_empty = |(pair, at): &(&[u64], u64)| pair.iter().all(|&word| word == at.wrapping_sub(16));
    let mut reads = MAX_READS;
    let empty: Vec<u64> = words.windows(2).zip((base.0..).step_by(8)).filter(is_empty).map(|(_, at)| at).collect();
    // from the end on: an empty one before the last would make bins of what stands before them
    empty.iter().rev().filter_map(|last| last.checked_sub((BINS_WORDS - 2) * 8)).find_map(|first| {
        let index = usize::try_from(first.checked_sub(base.0)? / 8).ok()?;
        let bins = words.get(index..)?.get(..BINS_WORDS as usize)?;
        let mut wrong = 0;
        for (bin, head) in bins.chunks_exact(2).zip((first - 16..).step_by(16)) {
            wrong += usize::from(!is_bin(bin, head, &mut reads, memory));
            if wrong > MAX_WRONG {
                return None;
            }
        }
        Some(Addr(first))
    })
}

/// Whether two words are a bin whose list has its head at `head`.
fn is_bin(bin: &[u64], head: u64, reads: &mut usize, memory: &mut dyn ReadMemory) -> bool {
    let [first, last] = *bin else { return false };
    if first == head || last == head {
        return first == last;
    }
    if first == 0 || last == 0 || *reads == 0 {
        return false;
    }
    *reads -= 1;
    memory.read_u64(Addr(first).add(24)) == Some(head) && memory.read_u64(Addr(last).add(16)) == Some(head)
}
