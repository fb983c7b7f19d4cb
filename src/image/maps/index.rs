//! Looking up addresses and free room in an address space.

use super::{Kind, Mapping};
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;

/// How far from `near` a gap may be, in bytes. A rel32 operand reaches 2 GiB; the rest is for the size of the module
/// that `near` belongs to.
const REACH: u64 = 0x7000_0000;
/// Nothing is put below this address: where null pointers with offsets go (vm.mmap_min_addr is 64 KiB at most).
const LOWEST: u64 = 0x10_0000;
/// The end of the user's address space with four-level page tables, less the guard page.
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Room that is left to the stack to grow down (ulimit -s is 8 MiB by default, the kernel keeps 128 MiB free).
const STACK_GROWTH: u64 = 256 << 20;
/// Room that is left to the brk heap to grow up.
const HEAP_GROWTH: u64 = 1 << 30;

/// The mappings of a process, for look-ups.
#[derive(Clone, Debug, Default)]
pub struct MapIndex {
    mappings: Vec<Mapping>,
}

impl MapIndex {
    /// Takes the result of [`super::parse`].
    pub fn new(mut mappings: Vec<Mapping>) -> Self {
        mappings.sort_by_key(|m| m.start);
        Self { mappings }
    }

    /// All mappings in the order of addresses.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that holds `addr`.
    pub fn find(&self, addr: Addr) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= addr);
        self.mappings.get(after.checked_sub(1)?).filter(|m| m.contains(addr))
    }

    /// A page-aligned address at which `size` bytes are free, all of them within the reach of a rel32 operand from
    /// `near` and the module around it.
    ///
    /// The nearest gap below is preferred, since .bss and the heap grow upwards, then the nearest above. Keeps a guard
    /// page on either side and clear of where the stack and the heap may grow to.
    pub fn find_gap(&self, near: Addr, size: u64) -> Option<Addr> {
        let size = size.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        let lowest = near.0.saturating_sub(REACH).max(LOWEST).checked_next_multiple_of(PAGE_SIZE)?;
        let highest = near.0.saturating_add(REACH).min(HIGHEST) / PAGE_SIZE * PAGE_SIZE;
        let fit = |(start, end): (u64, u64)| {
            let start = start.saturating_add(PAGE_SIZE).max(lowest);
            let at = end.saturating_sub(PAGE_SIZE).min(highest).checked_sub(size)?;
            (at >= start).then_some(Addr(at))
        };
        let gaps = self.gaps();
        let above = gaps.partition_point(|&(start, _)| start <= near.0);
        let (below, above) = gaps.split_at_checked(above)?;
        below.iter().rev().copied().find_map(fit).or_else(|| above.iter().copied().find_map(fit))
    }

    /// A page-aligned address in the middle of the largest gap, with `size` bytes free: far from where the kernel puts
    /// the next mapping, so that the program's own lie where they would without us.
    pub fn find_distant_gap(&self, size: u64) -> Option<Addr> {
        // The vsyscall page lies beyond what a program can map.
        let clipped = self.gaps().into_iter().map(|(start, end)| (start.max(LOWEST), end.min(HIGHEST)));
        let (start, end) = clipped.max_by_key(|(start, end)| end.saturating_sub(*start))?;
        let middle = start.checked_add(end.checked_sub(start)?.checked_sub(size)? / 2)?;
        Some(Addr(middle / PAGE_SIZE * PAGE_SIZE))
    }

    /// Whether nothing is mapped in `size` bytes from `at` on, nor where stack and heap may grow to.
    pub fn is_free(&self, at: Addr, size: u64) -> bool {
        let Some(end) = at.0.checked_add(size) else { return false };
        at.0 >= LOWEST && self.gaps().iter().any(|(start, gap_end)| *start <= at.0 && end <= *gap_end)
    }

    /// The free ranges, ascending, without the room that stack and heap may need.
    fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut free_from = 0;
        for mapping in &self.mappings {
            let (mut start, mut end) = (mapping.start.0, mapping.end.0);
            match mapping.kind {
                Kind::Stack => start = start.saturating_sub(STACK_GROWTH),
                Kind::Heap => end = end.saturating_add(HEAP_GROWTH),
                _ => {}
            }
            if start > free_from {
                gaps.push((free_from, start));
            }
            free_from = end.max(free_from);
        }
        if free_from < HIGHEST {
            gaps.push((free_from, HIGHEST));
        }
        gaps
    }
}
