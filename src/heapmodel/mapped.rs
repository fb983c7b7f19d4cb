//! What the program maps by itself. It counts as blocks do, in the same sites and totals, but lies apart from them:
//! blocks that a program's own allocator hands out may begin where a mapping does, and a mapping may end bit by bit.
//!
//! A mapping is one object until nothing is left of it; its bytes are given back as they go.

use super::HeapModel;
use super::blocks::{Block, MAX_SIZE};
use super::booking::{FreedBy, site_key};
use super::ranges::{Cut, Mapping, Ranges};
use crate::base::addr::Addr;
use crate::event::{Call, MapChange, range_of};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// All mappings, whenever they were made.
const ALL: u64 = u64::MAX;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Mapped {
    pub(super) ranges: Ranges,
    /// By their threads, the moves in progress.
    moves: FxHashMap<u32, Move>,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    /// How many allocations there had been when it began: what was mapped later at the old place is another's.
    births: u64,
    /// Whether anything was known to be mapped there.
    is_known: bool,
}

impl Mapped {
    /// The process is a copy of another one, whose thread `parent` is `child` here.
    pub(super) fn fork(&mut self, parent: u32, child: u32) {
        self.moves = self.moves.get(&parent).map(|begun| (child, *begun)).into_iter().collect();
    }
}

impl HeapModel {
    pub(super) fn change_mappings(&mut self, change: MapChange, by: &Call) {
        match change {
            MapChange::Mapped { start, bytes } => self.map(start, bytes, by),
            MapChange::Unmapped { start, bytes } => {
                self.unmap(range_of(start, bytes), ALL, by);
            }
            MapChange::MoveBegan { old, old_bytes } => {
                let is_known = self.has_mapped(old, old_bytes);
                self.mapped.moves.insert(by.task.serial, Move { births: self.births, is_known });
            }
        }
    }

    /// A mremap(2) has returned: so many bytes at `old` are so many at `new` now; null: it has failed.
    pub(super) fn remap(&mut self, (old, old_bytes): (Addr, u64), (new, new_bytes): (Addr, u64), by: &Call) {
        let begun = self.mapped.moves.remove(&by.task.serial);
        let (births, was_known) = begun.map_or((ALL, false), |begun| (begun.births, begun.is_known));
        if new.is_null() {
            // What is of a file does not count.
            self.figures.totals.failed += u64::from(begun.is_none() || was_known);
        // Where another one has got the place meanwhile, that was told as its end.
        } else if self.unmap(range_of(old, old_bytes), births, by) || was_known {
            self.figures.note_realloc(new_bytes, by.interval);
            self.map(new, new_bytes, by);
        } else {
            // It is of a file, or from before, and has taken the place of what was there.
            self.unmap(range_of(new, new_bytes), ALL, by);
        }
    }

    /// Whether the program is known to have mapped any of this.
    pub fn has_mapped(&self, start: Addr, bytes: u64) -> bool {
        self.mapped.ranges.touches(range_of(start, bytes))
    }

    fn map(&mut self, start: Addr, bytes: u64, by: &Call) {
        let bytes = bytes.min(MAX_SIZE).min(u64::MAX - start.0);
        if bytes == 0 {
            return;
        }
        self.unmap(range_of(start, bytes), ALL, by);
        let site = self.sites.intern(site_key(by, bytes, by.interval), self.figures.peak_epoch);
        let birth = self.births + 1;
        self.mapped.ranges.insert(Mapping { start, bytes, site, birth });
        self.book(start, Block { size: bytes, site, birth }, by);
    }

    /// Returns whether anything was known to be mapped there.
    fn unmap(&mut self, range: Range<u64>, latest: u64, by: &Call) -> bool {
        let cuts = self.mapped.ranges.cut(range, latest);
        for Cut { of, ends } in &cuts {
            let piece = Block { size: of.bytes, site: of.site, birth: of.birth };
            self.give_back(of.start, piece, *ends, FreedBy::Call(by));
        }
        if !cuts.is_empty() {
            self.add_timeline_point();
        }
        !cuts.is_empty()
    }
}
