//! Code of ours in an address space, where nothing of the program's is: pads, the code of remote calls, the SIGTRAP
//! fallback. Hands out room near the code that it belongs to, and knows what lies where.
//!
//! The room is the slack behind a module's executable segment (zero bytes up to the page's end), or a mapping that was
//! made in the target. Nothing is moved or freed while its region is mapped: a thread may sleep in it.

mod entry;
mod reach;
mod rounds;

use super::PcLocation;
use crate::arch::step::pad::ResumePoints;
use crate::arch::step::{Resume, StepError, build_pad};
use crate::base::addr::{Addr, ModuleId};
pub use entry::{EntryError, JUMP_LEN, LONGEST_MOVED, PlacedEntry};
pub use reach::{Replaced, first_has_room, jumps_anywhere};
pub use rounds::{flows_to_entry, loops_to_entry};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use thiserror::Error;

/// All that is ours begins at multiples of this: most pads are shorter, so that it is what most of them take.
const ALIGNMENT: u64 = 16;

/// A pad could not be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PadError {
    /// No region within reach has room: add one.
    #[error("no room for a pad near {at}")]
    NoRoom {
        /// The instruction to move.
        at: Addr,
    },
    /// The instruction has no pad anywhere.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// A pad that has a place, to be written before the breakpoint is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedPad {
    /// Where to write it.
    pub addr: Addr,
    /// What to write.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    start: Addr,
    len: u64,
    used: u64,
    owner: Option<ModuleId>,
}

impl Region {
    /// Takes `len` bytes, if there are so many.
    fn take(&mut self, len: u64) -> bool {
        let has_room = len <= self.len - self.used;
        if has_room {
            self.used = (self.used + len).next_multiple_of(ALIGNMENT).min(self.len);
        }
        has_room
    }

    fn distance(&self, addr: Addr) -> u64 {
        self.start.0.abs_diff(addr.0)
    }
}

/// What a piece of our code is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnKind {
    /// The code of remote calls. There is one.
    RemoteCall,
    /// The SIGTRAP fallback. There is one.
    SigtrapFallback,
    /// Anything else.
    Other,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Pad(ResumePoints),
    /// The first instructions of a function, moved: an index into [`OwnCode::entries`].
    Entry(usize),
    Other(OwnKind),
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    len: u64,
    what: What,
}

/// The code of ours in one address space, cloned with it at fork.
#[derive(Clone, Debug, Default)]
pub struct OwnCode {
    regions: Vec<Region>,
    /// By start address.
    pieces: BTreeMap<Addr, Piece>,
    /// The pad of each breakpoint that has ever had one: a breakpoint that comes back finds it there.
    pads: FxHashMap<Addr, Addr>,
    remote_call: Option<Addr>,
    sigtrap_fallback: Option<Addr>,
    entries: Vec<entry::Moved>,
}

impl OwnCode {
    /// Offers `len` bytes at `start` for pads: executable, and used by nobody. Slack of a module that may be unloaded
    /// has an `owner`, and serves this module's code only: its pads must not vanish under another's feet. Space
    /// without an owner stays mapped and serves everyone. Space offered before is ignored.
    pub fn add_region(&mut self, start: Addr, len: u64, owner: Option<ModuleId>) {
        let Some(aligned) = start.0.checked_next_multiple_of(ALIGNMENT) else { return };
        let Some(end) = start.0.checked_add(len) else { return };
        let len = end.saturating_sub(aligned);
        let overlaps = |r: &Region| r.start.0 < end && aligned < r.start.0 + r.len;
        if len > 0 && !self.regions.iter().any(overlaps) {
            self.regions.push(Region { start: Addr(aligned), len, used: 0, owner });
        }
    }

    /// Builds the pad for the instruction at `at` and gives it a place, the nearest that is in reach, or the one that
    /// it had before. `code` is as for [`build_pad`], `module` the one that `at` is in.
    ///
    /// # Errors
    /// [`PadError::NoRoom`]: add a region within 2 GiB of `at` and try again. [`PadError::Step`]: there is no pad.
    pub fn allocate(&mut self, code: &[u8], at: Addr, module: ModuleId) -> Result<PlacedPad, PadError> {
        if let Some(&addr) = self.pads.get(&at)
            && let Some(piece) = self.pieces.get_mut(&addr)
        {
            let pad = build_pad(code, at, addr)?;
            if pad.bytes.len() as u64 == piece.len {
                piece.what = What::Pad(pad.resume);
                return Ok(PlacedPad { addr, bytes: pad.bytes });
            }
        }
        let mut candidates: Vec<&mut Region> =
            self.regions.iter_mut().filter(|r| r.owner.is_none_or(|owner| owner == module)).collect();
        candidates.sort_by_key(|r| r.distance(at));
        for region in candidates {
            let addr = region.start.add(region.used);
            let pad = match build_pad(code, at, addr) {
                Ok(pad) => pad,
                Err(StepError::OutOfReach { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let len = pad.bytes.len() as u64;
            if !region.take(len) {
                continue;
            }
            self.pads.insert(at, addr);
            self.pieces.insert(addr, Piece { len, what: What::Pad(pad.resume) });
            return Ok(PlacedPad { addr, bytes: pad.bytes });
        }
        // an instruction that can't be moved is told as such, also where there is no region at all
        match build_pad(code, at, at) {
            Err(error) if !matches!(error, StepError::OutOfReach { .. }) => Err(error.into()),
            _ => Err(PadError::NoRoom { at }),
        }
    }

    /// Sets aside `len` bytes of any module's slack for code that is no pad.
    pub fn reserve(&mut self, len: u64, kind: OwnKind) -> Option<Addr> {
        let at = self.regions.iter_mut().find_map(|region| {
            let at = region.start.add(region.used);
            region.take(len).then_some(at)
        })?;
        match kind {
            OwnKind::RemoteCall => self.remote_call = Some(at),
            OwnKind::SigtrapFallback => self.sigtrap_fallback = Some(at),
            OwnKind::Other => {}
        }
        self.pieces.insert(at, Piece { len, what: What::Other(kind) });
        Some(at)
    }

    /// Notes code of ours of which nothing else is known.
    pub fn note(&mut self, start: Addr, len: u64) {
        self.pieces.insert(start, Piece { len, what: What::Other(OwnKind::Other) });
    }

    /// Where the code of remote calls is.
    pub const fn remote_call(&self) -> Option<Addr> {
        self.remote_call
    }

    /// Where the SIGTRAP fallback is.
    pub const fn sigtrap_fallback(&self) -> Option<Addr> {
        self.sigtrap_fallback
    }

    /// Where in our code `pc` lies. None outside.
    pub(super) fn locate(&self, pc: Addr) -> Option<PcLocation> {
        let (start, piece) = self.pieces.range(..=pc).next_back()?;
        let offset = pc.0 - start.0;
        (offset < piece.len).then_some(match piece.what {
            What::Pad(resume) => resume.get(offset).map_or(PcLocation::Own, PcLocation::Pad),
            What::Entry(index) => self.entries.get(index).map_or(PcLocation::Own, |moved| moved.locate(offset)),
            What::Other(OwnKind::RemoteCall) => PcLocation::RemoteCall,
            What::Other(_) => PcLocation::Own,
        })
    }

    /// Forgets what lies in `range`, which is no longer mapped.
    pub(super) fn forget(&mut self, range: &Range<Addr>) {
        self.regions.retain(|region| !range.contains(&region.start));
        self.pieces.retain(|start, _| !range.contains(start));
        self.pads.retain(|at, pad| !range.contains(at) && !range.contains(pad));
        self.remote_call = self.remote_call.filter(|at| !range.contains(at));
        self.sigtrap_fallback = self.sigtrap_fallback.filter(|at| !range.contains(at));
    }

    /// All addresses that hold code of ours, as few ranges, without the piece that begins at `except`. And without
    /// moved entries: a thread in a stub may come to one at any time, when nothing else of ours is left.
    pub fn ranges(&self, except: Option<Addr>) -> Vec<Range<Addr>> {
        let mut ranges: Vec<Range<Addr>> = Vec::new();
        for (&start, piece) in self.pieces.iter() {
            if Some(start) == except || matches!(piece.what, What::Entry(_)) {
                continue;
            }
            let end = start.add(piece.len);
            match ranges.last_mut() {
                // What is left free for alignment is ours, too.
                Some(last) if start.0 <= last.end.0.next_multiple_of(ALIGNMENT) => last.end = last.end.max(end),
                _ => ranges.push(start..end),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests;
