//! The tables of groups (`struct meta_area`), and where they begin (`struct malloc_context`).

use super::super::{Fault, Finding, Sources};
use super::{HEADER, PAGE, UNIT, note};
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use crate::image::maps::{Kind, Mapping};
use rustc_hash::FxHashSet;
use std::ops::Range;

/// Members of `struct malloc_context` behind `secret`: `init_done`, and `meta_area_head` with `meta_area_tail` behind
/// it. Where the size of pages is not fixed, it stands between.
const LAYOUTS: [(usize, usize); 2] = [(8, 56), (16, 64)];
/// So many bytes of it are looked at.
const CONTEXT: usize = 80;
/// So much of a module's data is searched.
const MAX_DATA: u64 = 256 << 20;
/// Read at once.
const PIECE: u64 = 1 << 20;

/// Members of `struct meta_area`, and how many entries it has.
const NEXT: usize = 8;
const COUNT: usize = 16;
const ENTRIES: usize = 24;
const ENTRY: usize = 40;
const MAX_ENTRIES: u64 = (PAGE - ENTRIES as u64) / ENTRY as u64;
/// More tables are not read: each tells of 101 groups.
const MAX_TABLES: usize = 1 << 16;

/// Slots' sizes in units, by class (`size_classes`); the last class is that of blocks with mappings of their own.
const CLASSES: [u64; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204, 255, 292,
    340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
];
const ALONE: u8 = 63;

/// Where everything begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) at: Addr,
    secret: u64,
    first: Addr,
}

/// An entry: a group (`struct meta`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: Addr,
    /// Where the group is.
    pub(super) mem: Addr,
    /// A bit for each slot that is free: `avail_mask` and `freed_mask`.
    pub(super) free: u32,
    /// The number of the last slot.
    pub(super) last: u8,
    /// False for what the dynamic linker has given malloc of modules' pages.
    pub(super) is_freeable: bool,
    /// Whether it is in a list of its class; one that is just being made or undone is in none, nor is one all of whose
    /// slots are taken.
    pub(super) is_listed: bool,
    class: u8,
    /// Of its mapping; 0: it has none of its own.
    pub(super) pages: u64,
}

impl Entry {
    /// Whether it is one block that was so large that it has a mapping of its own.
    pub(super) const fn is_alone(&self) -> bool {
        self.class == ALONE
    }

    /// From one slot to the next (`get_stride`).
    pub(super) fn stride(&self) -> u64 {
        if self.last == 0 && self.pages > 0 {
            return self.pages * PAGE - UNIT;
        }
        CLASSES.get(usize::from(self.class)).map_or(0, |units| units * UNIT)
    }

    /// Its memory.
    pub(super) fn range(&self) -> Range<Addr> {
        let size = if self.pages > 0 { self.pages * PAGE } else { UNIT + self.stride() * (u64::from(self.last) + 1) };
        self.mem..self.mem.add(size)
    }

    /// Where a slot begins, and where what may be used of it ends at most.
    pub(super) fn slot(&self, number: u8) -> (Addr, Addr) {
        let begin = self.mem.add(UNIT + self.stride() * u64::from(number));
        (begin, begin.add(self.stride()).sub(HEADER))
    }

    /// Whether a group can be so.
    fn is_possible(&self) -> bool {
        let all = u32::MAX >> (31 - self.last);
        let known = usize::from(self.class) < CLASSES.len() || self.is_alone() && self.last == 0 && self.pages > 0;
        // 2^36 pages are all that a process can have
        known
            && self.mem.0.is_multiple_of(UNIT)
            && self.pages < 1 << 36
            && self.mem.0.checked_add(self.pages * PAGE).is_some()
            && self.free & !all == 0
            && (self.pages == 0 || UNIT + self.stride() * (u64::from(self.last) + 1) <= self.pages * PAGE)
    }
}

/// What the tables tell.
pub(super) struct Tables {
    pub(super) at: Vec<Addr>,
    pub(super) entries: Vec<Entry>,
}

/// Finds the context in modules' data, and in the memory behind, which the kernel has filled with zeros for them.
pub(super) fn find(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Context> {
    let behind = |range: &Range<Addr>| {
        let follows = |mapping: &&Mapping| {
            mapping.start == range.end
                && mapping.kind == Kind::Anonymous
                && mapping.perms.write
                && !mapping.perms.shared
        };
        sources.mappings.iter().find(follows).map(Mapping::range)
    };
    for data in sources.data {
        let whole = data.start..behind(data).map_or(data.end, |more| more.end);
        let whole = whole.start..whole.end.min(whole.start.add(MAX_DATA));
        for part in memory.touched(whole) {
            let mut at = Addr(part.start.0.next_multiple_of(8));
            while at < part.end {
                let len = (part.end.0 - at.0).min(PIECE + CONTEXT as u64);
                let mut bytes = vec![0; usize::try_from(len).ok()?];
                let read = memory.read(at, &mut bytes);
                bytes.truncate(read);
                if let Some(context) = context_in(at, &bytes, memory) {
                    return Some(context);
                }
                at = at.add(PIECE);
            }
        }
    }
    None
}

fn context_in(at: Addr, bytes: &[u8], memory: &mut dyn ReadMemory) -> Option<Context> {
    (0..bytes.len().saturating_sub(CONTEXT - 1)).step_by(8).find_map(|offset| {
        let context = bytes.get(offset..)?;
        let secret = word(context, 0)?;
        LAYOUTS.into_iter().find_map(|(done, head)| {
            let (first, last) = (word(context, head)?, word(context, head + 8)?);
            let is_table = |at: u64| at != 0 && at.is_multiple_of(PAGE);
            let told = secret != 0 && word(context, done)? & u64::from(u32::MAX) == 1;
            if !told || !is_table(first) || !is_table(last) {
                return None;
            }
            let mut begins = |table: u64| {
                let count = memory.read_u64(Addr(table).add(COUNT as u64));
                memory.read_u64(Addr(table)) == Some(secret)
                    && count.is_some_and(|count| count & u64::from(u32::MAX) == MAX_ENTRIES)
            };
            (begins(first) && begins(last)).then_some(Context { at: at.add(offset as u64), secret, first: Addr(first) })
        })
    })
}

/// Reads all tables. One that is none ends them.
pub(super) fn read(context: &Context, findings: &mut Vec<Finding>, memory: &mut dyn ReadMemory) -> Tables {
    let mut tables = Tables { at: Vec::new(), entries: Vec::new() };
    let mut seen = FxHashSet::default();
    let mut at = context.first;
    while !at.is_null() {
        let mut bytes = [0; PAGE as usize];
        let is_table = at.0.is_multiple_of(PAGE)
            && memory.read(at, &mut bytes) == bytes.len()
            && word(&bytes, 0) == Some(context.secret);
        if !is_table || !seen.insert(at) || seen.len() > MAX_TABLES {
            note(findings, Finding { at, what: Fault::Table, before: None });
            break;
        }
        tables.at.push(at);
        let (_, entries) = bytes.split_at(ENTRIES);
        for (entry, number) in entries.chunks_exact(ENTRY).zip(0..) {
            let place = at.add(ENTRIES as u64 + ENTRY as u64 * number);
            let Some(entry) = entry_in(place, entry) else { continue };
            if entry.is_possible() {
                tables.entries.push(entry);
            } else if entry.is_listed {
                note(findings, Finding { at: place, what: Fault::Entry, before: None });
            }
        }
        at = Addr(word(&bytes, NEXT).unwrap_or(0));
    }
    tables
}

/// An entry in use: `prev`, `next`, `mem`, the masks, and a word of bits for `last_idx`, `freeable`, `sizeclass` and
/// `maplen`.
fn entry_in(at: Addr, bytes: &[u8]) -> Option<Entry> {
    let mem = Addr(word(bytes, 16).filter(|&mem| mem != 0)?);
    let masks = word(bytes, 24)?;
    let bits = word(bytes, 32)?;
    Some(Entry {
        at,
        mem,
        free: (masks | masks >> 32) as u32,
        last: (bits & 31) as u8,
        is_listed: word(bytes, 8)? != 0,
        is_freeable: bits >> 5 & 1 == 1,
        class: (bits >> 6 & 63) as u8,
        pages: bits >> 12,
    })
}
