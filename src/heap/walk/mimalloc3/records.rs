//! Records of pages (`mi_page_t`).

use super::super::mimalloc::blocks::Blocks;
use super::super::{Fault, Finding};
use super::map::Map;
use super::{KERNEL_PAGE, SLICE, note};
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};

/// Members of a record, by their places: `free`; `used`, `capacity`, `reserved`; `local_free`, `xthread_free`,
/// `block_size`, and where the first block is.
const FREE: usize = 8;
const COUNTS: usize = 16;
const LOCAL_FREE: usize = 24;
const THREAD_FREE: usize = 32;
const BLOCK_SIZE: usize = 40;
const START: usize = 48;
/// So much of a record is read: up to `memid`, which says where its page's memory is from.
pub(super) const RECORD: usize = 160;
/// Its `memid` lies behind this.
const MEMID: usize = 56;

/// How a record says where the first block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// By its address: up to 3.3.
    Address,
    /// By how many words it lies behind the record, in 4 bytes: since 3.4.
    Distance,
}

impl Layout {
    pub(super) const ALL: [Self; 2] = [Self::Address, Self::Distance];
}

/// A page of blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Its first slice.
    pub(super) at: Addr,
    /// How much its slices have, as far as that is known; else as much as its blocks need.
    pub(super) size: u64,
    /// Where its record is.
    pub(super) record: Addr,
    /// How many blocks are in use, as it says itself: those that other threads have given back among them.
    pub(super) used: u64,
    /// For so many blocks there is room.
    reserved: u64,
    pub(super) blocks: Blocks,
    /// What may say where its memory is from.
    pub(super) origins: [u64; (RECORD - MEMID) / 8],
}

impl Page {
    /// Reads the record at `record`, which the map has from the slice at `slice` on. None if it is none.
    pub(super) fn read(record: Addr, slice: Addr, layout: Layout, memory: &mut dyn ReadMemory) -> Option<Self> {
        let mut bytes = [0; RECORD];
        let read = memory.read(record, &mut bytes);
        let bytes = bytes.get(..read)?;
        let start = match layout {
            Layout::Address => word(bytes, START)?,
            Layout::Distance => record.0.checked_add((word(bytes, START)? & u64::from(u32::MAX)) * 8)?,
        };
        let counts = word(bytes, COUNTS)?;
        let count = |place: u32| counts >> (16 * place) & 0xffff;
        let list = |place: usize, mask: u64| word(bytes, place).map(|list| Addr(list & mask));
        // a lone page may begin a slice before its blocks, with its record; the map has it from there on, or from its
        // blocks on
        let is_before = record.0.is_multiple_of(SLICE) && record.0 < start && start - record.0 <= SLICE;
        if start / SLICE != slice.0 / SLICE && !(is_before && record == slice) {
            return None;
        }
        let at = if is_before { record } else { slice };
        let blocks = Blocks {
            start: Addr(start),
            size: word(bytes, BLOCK_SIZE)?,
            capacity: count(1),
            // the lowest bit says whether a thread has the page
            lists: [list(FREE, u64::MAX)?, list(LOCAL_FREE, u64::MAX)?, list(THREAD_FREE, !1)?],
        };
        let mut origins = [0; (RECORD - MEMID) / 8];
        for (number, origin) in origins.iter_mut().enumerate() {
            *origin = word(bytes, MEMID + 8 * number).unwrap_or(0);
        }
        let mut page = Self { at, size: 0, record, used: count(0), reserved: count(2), blocks, origins };
        page.size = page.needed()?.checked_next_multiple_of(KERNEL_PAGE)?;
        at.0.checked_add(page.size)?;
        Some(page)
    }

    /// How much its blocks need, from its first slice on.
    pub(super) fn needed(&self) -> Option<u64> {
        let blocks = self.blocks.size.checked_mul(self.reserved)?;
        blocks.checked_add(self.blocks.start.0.checked_sub(self.at.0)?)
    }

    pub(super) const fn end(&self) -> Addr {
        self.at.add(self.size)
    }

    /// Whether its record lies at its beginning.
    pub(super) fn has_record_before(&self) -> bool {
        self.record == self.at
    }

    /// Whether a page can be so. One that is just being made has no blocks yet.
    pub(super) fn is_possible(&self) -> bool {
        let Blocks { start, size, capacity, lists } = self.blocks;
        let fits = self.needed().is_some_and(|needed| needed <= self.size) && start.0.is_multiple_of(8);
        let is_block = |list: &Addr| list.is_null() || (start..self.end()).contains(list);
        fits && size >= 8
            && size.is_multiple_of(8)
            && self.reserved > 0
            && capacity <= self.reserved
            && self.used <= capacity
            && lists.iter().all(is_block)
    }
}

/// All pages that the map leads to, ascending. None if there are none. That the map leads to more than was read is
/// told, too.
pub(super) fn read(map: &Map, findings: &mut Vec<Finding>, memory: &mut dyn ReadMemory) -> Option<Vec<Page>> {
    if map.is_cut {
        note(findings, Finding { at: map.at, what: Fault::Table, before: None });
    }
    let mut pages = Vec::with_capacity(map.pages.len());
    for (record, slice) in &map.pages {
        match Page::read(*record, *slice, map.layout, memory) {
            Some(page) => pages.push(page),
            None => note(findings, Finding { at: *slice, what: Fault::Entry, before: None }),
        }
    }
    pages.sort_by_key(|page| page.at);
    (!pages.is_empty()).then_some(pages)
}
