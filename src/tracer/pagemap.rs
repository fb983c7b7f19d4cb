//! Which pages of a process were ever touched: /proc/PID/pagemap (the kernel's
//! Documentation/admin-guide/mm/pagemap.rst).
//!
//! A page that is neither in memory nor in swap holds nothing that the process has written, and to read it would only
//! give it memory. Sanitizers map terabytes that they never touch: PAGEMAP_SCAN (Linux 6.7) skips them quickly; older
//! kernels give one word for each page.

use super::{Result, TracerError};
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;
use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Ranges of at most so many bytes are taken as they are: to ask costs more than to read them.
const SMALL: u64 = 16 * PAGE_SIZE;

/// Bits of a pagemap word: in memory; in swap.
const IN_MEMORY: u64 = 1 << 63;
const IN_SWAP: u64 = 1 << 62;

/// Set for a guard (`MADV_GUARD_INSTALL`, Linux 6.13), which a word tells since 6.15: nobody can read it, and it holds
/// nothing.
const GUARD: u64 = 1 << 58;

/// Words read at once.
const CHUNK: u64 = 1 << 16;

/// `struct pm_scan_arg` of <linux/fs.h>.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of <linux/fs.h>.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// A guard; since Linux 6.18.
const PAGE_IS_GUARD: u64 = 1 << 8;
/// The page of zeros that all processes share, and that counts for none.
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// Where the pages of a range are: ascending, joined where they touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlacedPages {
    /// In memory.
    pub in_memory: Vec<Range<Addr>>,
    /// In swap.
    pub in_swap: Vec<Range<Addr>>,
}

/// The pages of one process.
#[derive(Debug)]
pub struct PageMap {
    file: File,
    can_scan: bool,
    /// Whether PAGEMAP_SCAN tells guards.
    tells_guards: Cell<bool>,
}

impl PageMap {
    /// Opens that of the live task `tid`.
    pub fn open(tid: i32) -> Result<Self> {
        let path = format!("/proc/{tid}/pagemap");
        let file = File::open(&path).map_err(|source| TracerError::ProcFile { path, source })?;
        Ok(Self { file, can_scan: true, tells_guards: Cell::new(true) })
    }

    /// The parts of `range` that may hold something, ascending. All of it where the kernel does not tell.
    pub fn present(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        if range.end.0.saturating_sub(range.start.0) <= SMALL {
            return vec![range];
        }
        if self.can_scan {
            match self.scan(&range) {
                Some(parts) => return parts,
                None => self.can_scan = false,
            }
        }
        self.read(&range).unwrap_or_else(|| vec![range])
    }

    /// The pages of `range` that are in memory and count as the process's, and those in swap, ascending. Before Linux
    /// 6.7 the kernel's page of zeros, which pages have that were read only, is not told from others.
    pub fn placed(&mut self, range: &Range<Addr>) -> Option<PlacedPages> {
        let mut found = PlacedPages::default();
        let is_scanned = self.can_scan
            && self
                .scan_all(range, |range, categories| {
                    if categories & PAGE_IS_SWAPPED != 0 {
                        push(&mut found.in_swap, range);
                    } else if categories & PAGE_IS_PFNZERO == 0 {
                        push(&mut found.in_memory, range);
                    }
                })
                .is_some();
        if !is_scanned {
            self.can_scan = false;
            found = PlacedPages::default();
            self.read_all(range, |range, word| {
                push(if word & IN_SWAP != 0 { &mut found.in_swap } else { &mut found.in_memory }, range);
            })?;
        }
        Some(found)
    }

    /// Whether the page at `at` is a guard.
    pub fn is_guard(&self, at: Addr) -> bool {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, at.0 / PAGE_SIZE * 8).is_ok() && u64::from_le_bytes(word) & GUARD != 0
    }

    fn scan(&self, range: &Range<Addr>) -> Option<Vec<Range<Addr>>> {
        let mut parts = Vec::new();
        self.scan_all(range, |range, _| push(&mut parts, range))?;
        Some(parts)
    }

    /// Tells of each run of pages that hold something, with its categories. Guards hold nothing.
    fn scan_all(&self, range: &Range<Addr>, mut tell: impl FnMut(Range<Addr>, u64)) -> Option<()> {
        let mut regions = [PageRegion::default(); 512];
        let end = range.end.0.checked_next_multiple_of(PAGE_SIZE)?;
        let mut start = range.start.0 / PAGE_SIZE * PAGE_SIZE;
        while start < end {
            let guards = if self.tells_guards.get() { PAGE_IS_GUARD } else { 0 };
            let mut arguments = ScanArguments {
                size: size_of::<ScanArguments>() as u64,
                start,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | guards,
                ..ScanArguments::default()
            };
            // SAFETY: `arguments` is the structure that this request reads and writes; `vec` and `vec_len` describe
            // `regions`, which lives longer than the call.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
            if count < 0 && self.tells_guards.replace(false) {
                // a kernel from before that category
                continue;
            }
            let found = regions.get(..usize::try_from(count).ok()?)?;
            for region in found.iter().filter(|region| region.categories & PAGE_IS_GUARD == 0) {
                tell(Addr(region.start)..Addr(region.end), region.categories);
            }
            if arguments.walk_end <= start {
                break;
            }
            start = arguments.walk_end;
        }
        Some(())
    }

    fn read(&self, range: &Range<Addr>) -> Option<Vec<Range<Addr>>> {
        let mut parts = Vec::new();
        self.read_all(range, |range, _| push(&mut parts, range))?;
        Some(parts)
    }

    /// Tells of each page that holds something, with its word.
    fn read_all(&self, range: &Range<Addr>, mut tell: impl FnMut(Range<Addr>, u64)) -> Option<()> {
        let mut page = range.start.0 / PAGE_SIZE;
        let last = range.end.0.div_ceil(PAGE_SIZE);
        let mut bytes = vec![0; usize::try_from(CHUNK.min(last - page) * 8).ok()?];
        while page < last {
            let count = CHUNK.min(last - page);
            let words = bytes.get_mut(..usize::try_from(count * 8).ok()?)?;
            self.file.read_exact_at(words, page * 8).ok()?;
            for (word, page) in words.chunks_exact(8).zip(page..) {
                let word = u64::from_le_bytes(word.try_into().ok()?);
                if word & (IN_MEMORY | IN_SWAP) != 0 && word & GUARD == 0 {
                    tell(Addr(page * PAGE_SIZE)..Addr((page + 1) * PAGE_SIZE), word);
                }
            }
            page += count;
        }
        Some(())
    }
}

/// Appends a range, joined with the last one if they touch.
fn push(parts: &mut Vec<Range<Addr>>, range: Range<Addr>) {
    match parts.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => parts.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways of asking tell of a mapping of ours, of which two pages were written to.
    #[test]
    fn pages_that_were_written_to_are_told() {
        const PAGES: usize = 4096;
        let size = PAGES * PAGE_SIZE as usize;
        // SAFETY: a new mapping of our own, which stays until the process ends; what is written to lies inside it.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            for index in [700, 701, 3000] {
                base.cast::<u8>().add(index * PAGE_SIZE as usize).write(1);
            }
            base as u64
        };
        let mut map = PageMap::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let range = Addr(base)..Addr(base + size as u64);
        for can_scan in [true, false] {
            map.can_scan = can_scan;
            let parts = map.present(range.clone());
            let holds = |index: u64| parts.iter().any(|part| part.contains(&Addr(base + index * PAGE_SIZE)));
            assert!(holds(700) && holds(701) && holds(3000), "{can_scan}: {parts:?}");
            let bytes: u64 = parts.iter().map(|part| part.end.0 - part.start.0).sum();
            // Where huge pages are on, one page brings its neighbours.
            assert!(bytes < range.end.0 - range.start.0, "{can_scan}: {bytes}");
        }
    }
}
