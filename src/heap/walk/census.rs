//! Which byte of a process's resident memory is what: a heap's blocks and free memory, and what is no heap.
//!
//! Pages are resident, bytes are used: of a page that holds a live block and a free one each gets what is its own, so
//! that the sum is the resident memory.

use super::{Allocator, Region, State, Walk};
use crate::base::addr::Addr;
use crate::image::maps::{Kind, Mapping};
use std::collections::BTreeMap;
use std::ops::Range;

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Use {
    /// What the program may use of its live blocks.
    Live,
    /// The headers of live blocks, and what is lost between them.
    Headers,
    /// Given back, and kept for a thread.
    ThreadCaches,
    /// Given back, and kept in lists of small chunks that are not merged.
    FastBins,
    /// Given back, and in bins.
    Bins,
    /// The ends of arenas.
    Tops,
    /// The allocator's own data in its memory.
    Books,
    /// In the allocator's memory, and not understood.
    Unknown,
    /// The program's own anonymous mappings.
    Mappings,
    /// Stacks of threads.
    Stacks,
    /// Files: code, constants, and data of modules.
    Files,
    /// Memory that other processes may have, too.
    Shared,
    /// What the kernel has given.
    Kernel,
    /// What a heaptrace has left there, or has there now.
    Heaptrace,
}

impl Use {
    /// All of them, in their order. Saved heaps number them by their places here: new ones come last.
    pub const ALL: [Self; 14] = [
        Self::Live,
        Self::Headers,
        Self::ThreadCaches,
        Self::FastBins,
        Self::Bins,
        Self::Tops,
        Self::Books,
        Self::Unknown,
        Self::Mappings,
        Self::Stacks,
        Self::Files,
        Self::Shared,
        Self::Kernel,
        Self::Heaptrace,
    ];
}

const _: () = assert!(Use::ALL.len() == Use::Heaptrace as usize + 1, "the last one is the last one");

/// How much of it there is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// Of address space.
    pub reserved: u64,
    /// In memory.
    pub resident: u64,
    /// In swap.
    pub swapped: u64,
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.reserved += other.reserved;
        self.resident += other.resident;
        self.swapped += other.swapped;
    }
}

/// Which pages of a process are where: ascending, apart from each other, in whole pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pages {
    /// In memory, and the process's: not the kernel's page of zeros.
    pub resident: Vec<Range<Addr>>,
    /// In swap.
    pub swapped: Vec<Range<Addr>>,
}

impl Pages {
    /// How much of a range is where.
    pub fn of(&self, range: &Range<Addr>) -> Amount {
        Along { pages: self, resident: 0, swapped: 0 }.of(range)
    }
}

/// Looks at ranges that lie one behind the other, as millions of chunks do: each begins where the last one was, or in
/// the next part.
struct Along<'p> {
    pages: &'p Pages,
    /// The first part of either list that ends behind the last range's start.
    resident: usize,
    swapped: usize,
}

impl Along<'_> {
    fn of(&mut self, range: &Range<Addr>) -> Amount {
        Amount {
            reserved: range.end.0.saturating_sub(range.start.0),
            resident: overlap(&self.pages.resident, &mut self.resident, range),
            swapped: overlap(&self.pages.swapped, &mut self.swapped, range),
        }
    }
}

/// How many bytes of `range` lie in `parts`. `first`: where to look first for the first part that ends behind its
/// start; set to that.
fn overlap(parts: &[Range<Addr>], first: &mut usize, range: &Range<Addr>) -> u64 {
    let ends_before = |at: usize| parts.get(at).is_some_and(|part| part.end <= range.start);
    let is_first = |at: usize| !ends_before(at) && (at == 0 || ends_before(at - 1));
    if !is_first(*first) {
        let next = *first + 1;
        *first = if is_first(next) { next } else { parts.partition_point(|part| part.end <= range.start) };
    }
    parts
        .iter()
        .skip(*first)
        .take_while(|part| part.start < range.end)
        .map(|part| part.end.min(range.end).0 - part.start.max(range.start).0)
        .sum()
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// All of the process, by use.
    pub uses: BTreeMap<Use, Amount>,
    /// The heap's part of that, by arena; the last one holds chunks with mappings of their own.
    pub arenas: Vec<BTreeMap<Use, Amount>>,
}

impl Census {
    /// How much there is for one use.
    pub fn of(&self, of: Use) -> Amount {
        self.uses.get(&of).copied().unwrap_or_default()
    }

    /// All of it.
    pub fn total(&self) -> Amount {
        self.uses.values().fold(Amount::default(), |mut sum, amount| {
            sum += *amount;
            sum
        })
    }

    /// What the program has given back, and still takes memory.
    pub fn free(&self) -> Amount {
        [Use::ThreadCaches, Use::FastBins, Use::Bins, Use::Tops].into_iter().fold(Amount::default(), |mut sum, of| {
            sum += self.of(of);
            sum
        })
    }
}

/// Takes the census. `stack_pointers`: those of all threads, by which their stacks are known.
pub fn take(walk: Option<&Walk>, mappings: &[Mapping], stack_pointers: &[Addr], pages: &Pages) -> Census {
    let arenas = walk.map_or(0, |walk| walk.arenas.len() + 1);
    let mut census = Census { uses: BTreeMap::new(), arenas: vec![BTreeMap::new(); arenas] };
    let mut of_heap: Vec<(Range<Addr>, Amount)> = Vec::new();
    for region in walk.iter().flat_map(|walk| &walk.regions) {
        let whole = region.books.start..region.range.end;
        let arena = region.arena.unwrap_or(arenas.saturating_sub(1));
        let mut told = Amount::default();
        let mut sums = [Amount::default(); Use::ALL.len()];
        let mut along = Along { pages, resident: 0, swapped: 0 };
        for (of, range) in walk.iter().flat_map(|walk| parts(walk, region)) {
            let amount = along.of(&range);
            told += amount;
            if let Some(sum) = sums.get_mut(of as usize) {
                *sum += amount;
            }
        }
        for (of, amount) in Use::ALL.into_iter().zip(sums) {
            add(&mut census, Some(arena), of, amount);
        }
        let all = pages.of(&whole);
        let rest = less(all, told);
        add(&mut census, Some(arena), between(walk.map(|walk| walk.allocator), region), rest);
        of_heap.push((whole, all));
    }
    of_heap.sort_unstable_by_key(|(range, _)| range.start);
    for mapping in mappings {
        let mut amount = pages.of(&mapping.range());
        let first = of_heap.partition_point(|(range, _)| range.start < mapping.start);
        let inside = of_heap.iter().skip(first).take_while(|(range, _)| range.start < mapping.end);
        for (_, of_region) in inside {
            amount = less(amount, *of_region);
        }
        let of = use_of(mapping, stack_pointers);
        add(&mut census, None, of, amount);
    }
    census
}

/// What lies between a region's chunks: where it is understood, the program's in glibc's heap, by sbrk(2), and what is
/// lost by rounding in others'.
const fn between(allocator: Option<Allocator>, region: &Region) -> Use {
    match allocator {
        _ if region.broken_at.is_some() => Use::Unknown,
        Some(Allocator::Musl | Allocator::Mimalloc | Allocator::Mimalloc3 | Allocator::Jemalloc) => Use::Headers,
        _ => Use::Mappings,
    }
}

const fn less(all: Amount, part: Amount) -> Amount {
    Amount {
        reserved: all.reserved.saturating_sub(part.reserved),
        resident: all.resident.saturating_sub(part.resident),
        swapped: all.swapped.saturating_sub(part.swapped),
    }
}

fn add(census: &mut Census, arena: Option<usize>, of: Use, amount: Amount) {
    if amount == Amount::default() {
        return;
    }
    *census.uses.entry(of).or_default() += amount;
    if let Some(uses) = arena.and_then(|arena| census.arenas.get_mut(arena)) {
        *uses.entry(of).or_default() += amount;
    }
}

/// The parts of a region, each with its use.
fn parts<'a>(walk: &'a Walk, region: &'a Region) -> impl Iterator<Item = (Use, Range<Addr>)> + 'a {
    let chunks = walk.of(region);
    // the first chunk has nobody before it whose word it could share
    let shared = chunks.first().map_or(region.range.start..region.range.start, |first| first.at..first.own().start);
    let books = [(Use::Books, region.books.clone()), (Use::Books, shared)];
    let of_chunks = chunks.iter().flat_map(move |chunk| {
        let own = chunk.own();
        let end = own.end.min(region.range.end);
        let block = chunk.block().min(end);
        let behind = block.add(chunk.usable()).min(end);
        match chunk.state {
            State::Live => [(Use::Headers, own.start..block), (Use::Live, block..behind), (Use::Headers, behind..end)],
            state => [(use_of_state(state), own.start..end), (Use::Books, end..end), (Use::Books, end..end)],
        }
    });
    books.into_iter().chain(of_chunks).filter(|(_, range)| range.start < range.end)
}

const fn use_of_state(state: State) -> Use {
    match state {
        State::Live => Use::Live,
        State::Tcache => Use::ThreadCaches,
        State::Fast => Use::FastBins,
        State::Free => Use::Bins,
        State::Top => Use::Tops,
        State::Own => Use::Books,
    }
}

fn use_of(mapping: &Mapping, stack_pointers: &[Addr]) -> Use {
    match mapping.kind {
        Kind::Stack => Use::Stacks,
        _ if mapping.is_heaptrace_s() => Use::Heaptrace,
        _ if mapping.perms.shared => Use::Shared,
        Kind::Anonymous if stack_pointers.iter().any(|sp| mapping.contains(*sp)) => Use::Stacks,
        Kind::Anonymous | Kind::Heap => Use::Mappings,
        Kind::File => Use::Files,
        Kind::Vdso | Kind::Vvar | Kind::Vsyscall | Kind::Other => Use::Kernel,
    }
}

#[cfg(test)]
mod tests;
