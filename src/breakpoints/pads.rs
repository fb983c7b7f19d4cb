//! Where pads go: hands out space near the code, and finds the pad that a thread is in.
//!
//! The space is the slack behind a module's executable segment (zero bytes up to the page's end), or a mapping that
//! was made in the target. A pad is never moved or freed while its region is mapped: a thread may sleep in it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::addr::{Addr, ModuleId};
use crate::arch::step::{Resume, StepError, build_pad, pad::ResumePoints};
use thiserror::Error;

/// Pads begin at multiples of this: most are shorter, so that it is what most of them take.
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

/// A thread's pc lies in a pad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPad {
    /// Where the pad begins.
    pub pad: Addr,
    /// The breakpoint that it belongs to.
    pub breakpoint: Addr,
    /// How the thread goes on in the original code. If `resume.pc` is the breakpoint itself, the instruction was
    /// not executed yet and the breakpoint will be hit once more for the same arrival.
    pub resume: Resume,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    start: Addr,
    len: u64,
    used: u64,
    owner: Option<ModuleId>,
}

impl Region {
    fn contains(&self, addr: Addr) -> bool {
        addr.0.wrapping_sub(self.start.0) < self.len
    }

    fn distance(&self, addr: Addr) -> u64 {
        self.start.0.abs_diff(addr.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u8,
    breakpoint: Addr,
    resume: ResumePoints,
}

/// The pads of one address space, cloned with it at fork.
#[derive(Clone, Debug, Default)]
pub struct PadAllocator {
    regions: Vec<Region>,
    /// By start address.
    pads: BTreeMap<Addr, Entry>,
    /// The pad of each breakpoint that has ever had one: a breakpoint that comes back finds it there.
    by_breakpoint: FxHashMap<Addr, Addr>,
}

impl PadAllocator {
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

    /// Builds the pad for the instruction at `at` and gives it a place, the nearest that is in reach, or the one that it
    /// had before. `code` is as for [`build_pad`], `module` the one that `at` is in.
    ///
    /// # Errors
    /// [`PadError::NoRoom`]: add a region within 2 GiB of `at` and try again. [`PadError::Step`]: there is no pad.
    pub fn allocate(&mut self, code: &[u8], at: Addr, module: ModuleId) -> Result<PlacedPad, PadError> {
        if let Some(&addr) = self.by_breakpoint.get(&at)
            && let Some(entry) = self.pads.get(&addr)
        {
            let pad = build_pad(code, at, addr)?;
            if pad.bytes.len() == usize::from(entry.len) {
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
            if len > region.len - region.used {
                continue;
            }
            region.used = (region.used + len).next_multiple_of(ALIGNMENT).min(region.len);
            self.by_breakpoint.insert(at, addr);
            self.pads.insert(addr, Entry { len: len as u8, breakpoint: at, resume: pad.resume });
            return Ok(PlacedPad { addr, bytes: pad.bytes });
        }
        // an instruction that can't be moved is told as such, also where there is no region at all
        match build_pad(code, at, at) {
            Err(error) if !matches!(error, StepError::OutOfReach { .. }) => Err(error.into()),
            _ => Err(PadError::NoRoom { at }),
        }
    }

    /// Sets aside `len` bytes of any module's slack for code that is no pad.
    pub fn reserve(&mut self, len: u64) -> Option<Addr> {
        let region = self.regions.iter_mut().find(|r| r.len - r.used >= len)?;
        let at = region.start.add(region.used);
        region.used = (region.used + len).next_multiple_of(ALIGNMENT).min(region.len);
        Some(at)
    }

    /// The pad that `pc` lies in. None outside of pads, or where no instruction of the pad begins.
    pub fn find(&self, pc: Addr) -> Option<InPad> {
        if !self.regions.iter().any(|r| r.contains(pc)) {
            return None;
        }
        let (&pad, entry) = self.pads.range(..=pc).next_back()?;
        let offset = pc.0 - pad.0;
        if offset >= u64::from(entry.len) {
            return None;
        }
        Some(InPad { pad, breakpoint: entry.breakpoint, resume: entry.resume.get(offset)? })
    }

    /// Drops the regions in `start..end`, which are no longer mapped, and their pads.
    pub fn remove_range(&mut self, start: Addr, end: Addr) {
        self.regions.retain(|r| !(start..end).contains(&r.start));
        self.pads.retain(|pad, _| !(start..end).contains(pad));
        self.by_breakpoint.retain(|at, pad| !(start..end).contains(at) && !(start..end).contains(pad));
    }

    /// The space used so far: (start, length) of each region that has pads, for zeroing at detach.
    pub fn regions(&self) -> impl Iterator<Item = (Addr, u64)> {
        self.regions.iter().filter(|r| r.used > 0).map(|r| (r.start, r.used))
    }

    /// How many pads there are.
    pub fn len(&self) -> usize {
        self.pads.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pads.is_empty()
    }
}

#[cfg(test)]
mod tests;
