//! The table of breakpoints of one address space: what stood at each address, what a hit means, and how the
//! thread gets past it. Pure: it plans the bytes; the tracer writes them.
//!
//! Breakpoints belong to an address space, not to a process or thread: threads and vfork children share one table, a
//! forked child gets a clone, exec starts an empty one. One address can serve several purposes; its int3 goes with
//! the last. No breakpoint is ever lifted to let a thread past it.
//!
//! Addresses of removed breakpoints are remembered: a thread may have hit the int3 before it was taken away, and
//! report it after.

pub mod pads;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::addr::{Addr, FunctionId, ModuleId};
use crate::arch::INT3;
use crate::arch::step::Planned;

pub use pads::PadAllocator;

/// What a hit of a breakpoint means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A probed function begins here.
    Entry(FunctionId),
    /// Calls of probed functions return here. Stays until detach.
    Return,
    /// Calls in progress return here. Goes when none does any more.
    ReturnOnce,
    /// The dynamic loader tells here that its list of modules changes (`r_brk`).
    Loader,
    /// A function of the C library begins that executes a program (execve and its kin).
    Exec,
    /// For the session's own use: one bit of eight.
    Tag(u8),
}

/// All purposes of one breakpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purposes {
    /// The probed function that begins here.
    pub entry: Option<FunctionId>,
    /// Calls return here, now and later.
    pub returns: bool,
    /// Calls in progress return here.
    pub returns_once: bool,
    /// The loader's notification.
    pub loader: bool,
    /// A function that executes a program begins here.
    pub exec: bool,
    /// The session's own bits.
    pub tags: u8,
}

impl Purposes {
    /// Whether calls of probed functions return here.
    pub const fn is_return(&self) -> bool {
        self.returns || self.returns_once
    }

    /// Whether nothing is left to wait for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Entry(function) => self.entry = Some(function),
            Purpose::Return => self.returns = true,
            Purpose::ReturnOnce => self.returns_once = true,
            Purpose::Loader => self.loader = true,
            Purpose::Exec => self.exec = true,
            Purpose::Tag(bits) => self.tags |= bits,
        }
    }

    fn remove(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Entry(function) => self.entry = self.entry.filter(|f| *f != function),
            Purpose::Return => self.returns = false,
            Purpose::ReturnOnce => self.returns_once = false,
            Purpose::Loader => self.loader = false,
            Purpose::Exec => self.exec = false,
            Purpose::Tag(bits) => self.tags &= !bits,
        }
    }
}

/// The code that a breakpoint goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// The byte that the int3 replaces.
    pub original: u8,
    /// The way past the instruction, and its length.
    pub planned: Planned,
    /// The module that the address is in.
    pub module: ModuleId,
}

/// One breakpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breakpoint {
    /// What stood there.
    pub site: Site,
    /// What a hit means.
    pub purposes: Purposes,
    /// Where the pad is, once it was written. Needed from the start for [`StepOver::Pad`](crate::arch::step::StepOver::Pad); for [`StepOver::Emulate`](crate::arch::step::StepOver::Emulate) when
    /// the emulator first asks for it.
    pub pad: Option<Addr>,
    /// Hits that served a purpose, see [`Self::count_return`].
    pub useful: u32,
    /// Hits that did not, as of a return site that other calls and branches come through too.
    pub spurious: u32,
}

impl Breakpoint {
    /// Whether a SIGTRAP that leaves the pc one byte behind the breakpoint can only be its hit. If not, as the
    /// original instruction is one byte long and the pc stands behind it in any case, `si_code` tells.
    pub const fn hit_is_certain(&self) -> bool {
        self.site.planned.len >= 2
    }

    /// Counts a hit of a return site; `matched`: a call in progress returned there. True if it is time to have a breakpoint
    /// there only while a call is in progress: the site is mostly passed by others, as behind an indirect call that calls an
    /// allocator now and then.
    pub const fn count_return(&mut self, matched: bool) -> bool {
        const PATIENCE: u32 = 64;
        const SPURIOUS_PER_USEFUL: u32 = 8;
        if matched {
            self.useful = self.useful.saturating_add(1);
            return false;
        }
        self.spurious = self.spurious.saturating_add(1);
        self.purposes.returns && self.spurious > PATIENCE && self.spurious / SPURIOUS_PER_USEFUL > self.useful
    }
}

/// What the tracer must do after a purpose was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Added {
    /// Write the int3: the breakpoint is new.
    Write,
    /// Nothing: it was there.
    Present,
}

/// What the tracer must do after a purpose was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Removed {
    /// Write this byte if an int3 still stands there: it was the last purpose.
    Restore(u8),
    /// Nothing: other purposes are left.
    Kept,
    /// Nothing: there was no breakpoint.
    Absent,
}

/// The breakpoints of one address space.
#[derive(Clone, Debug, Default)]
pub struct BreakpointTable {
    /// Looked up at every stop.
    by_address: FxHashMap<Addr, Breakpoint>,
    /// The same addresses in order, with the original bytes: for ranges.
    originals: BTreeMap<Addr, u8>,
    /// What stood at the addresses of breakpoints that are gone.
    removed: FxHashMap<Addr, u8>,
}

impl BreakpointTable {
    /// The breakpoint at `addr`.
    pub fn get(&self, addr: Addr) -> Option<&Breakpoint> {
        self.by_address.get(&addr)
    }

    /// The breakpoint at `addr`, to count a hit or to note its pad.
    pub fn get_mut(&mut self, addr: Addr) -> Option<&mut Breakpoint> {
        self.by_address.get_mut(&addr)
    }

    /// Adds a purpose at `addr`. `site` is asked only if there is no breakpoint yet; its error leaves the table as
    /// it was.
    ///
    /// # Errors
    /// Those of `site`.
    pub fn add<E>(&mut self, addr: Addr, purpose: Purpose, site: impl FnOnce() -> Result<Site, E>) -> Result<Added, E> {
        if let Some(breakpoint) = self.by_address.get_mut(&addr) {
            breakpoint.purposes.add(purpose);
            return Ok(Added::Present);
        }
        let site = site()?;
        let mut purposes = Purposes::default();
        purposes.add(purpose);
        self.by_address.insert(addr, Breakpoint { site, purposes, pad: None, useful: 0, spurious: 0 });
        self.originals.insert(addr, site.original);
        self.removed.remove(&addr);
        Ok(Added::Write)
    }

    /// Removes a purpose at `addr`, and with the last the breakpoint.
    pub fn remove(&mut self, addr: Addr, purpose: Purpose) -> Removed {
        let Some(breakpoint) = self.by_address.get_mut(&addr) else { return Removed::Absent };
        breakpoint.purposes.remove(purpose);
        if !breakpoint.purposes.is_empty() {
            return Removed::Kept;
        }
        let original = breakpoint.site.original;
        self.drop_breakpoint(addr);
        Removed::Restore(original)
    }

    /// Whether the breakpoint at `addr` would go with this purpose.
    pub fn is_last(&self, addr: Addr, purpose: Purpose) -> bool {
        self.get(addr).is_some_and(|breakpoint| {
            let mut rest = breakpoint.purposes;
            rest.remove(purpose);
            rest.is_empty()
        })
    }

    /// Drops the breakpoint at `addr` with all its purposes, and returns the byte to restore.
    pub fn remove_all(&mut self, addr: Addr) -> Option<u8> {
        let original = self.by_address.get(&addr)?.site.original;
        self.drop_breakpoint(addr);
        Some(original)
    }

    /// Drops all breakpoints in `start..end`, whose memory is no longer mapped: nothing is to be written. Returns
    /// how many there were.
    pub fn remove_range(&mut self, start: Addr, end: Addr) -> usize {
        let gone: Vec<Addr> = self.range(start, end).map(|(addr, _)| addr).collect();
        for &addr in &gone {
            self.drop_breakpoint(addr);
        }
        gone.len()
    }

    /// What stood at `addr`, if a breakpoint was there earlier and none is now.
    pub fn removed_original(&self, addr: Addr) -> Option<u8> {
        self.removed.get(&addr).copied()
    }

    /// Whether a breakpoint stood at `addr` earlier and none does now: a SIGTRAP one byte behind it is a late report,
    /// and the thread goes on at `addr`.
    pub fn was_removed(&self, addr: Addr) -> bool {
        self.removed.contains_key(&addr)
    }

    /// Whether a breakpoint stands at `addr`, or stood there earlier.
    pub fn is_or_was_there(&self, addr: Addr) -> bool {
        self.by_address.contains_key(&addr) || self.was_removed(addr)
    }

    /// Forgets the removed breakpoints in `start..end`: a new module was mapped there, whose own int3s are its own.
    pub fn forget_removed(&mut self, start: Addr, end: Addr) {
        self.removed.retain(|addr, _| !(start..end).contains(addr));
    }

    /// All breakpoints in ascending order of address, with the bytes to restore.
    pub fn originals(&self) -> impl ExactSizeIterator<Item = (Addr, u8)> {
        self.originals.iter().map(|(addr, original)| (*addr, *original))
    }

    /// All breakpoints that are gone, with the bytes that stood there: a copy of the memory may still hold them.
    pub fn removed(&self) -> impl Iterator<Item = (Addr, u8)> {
        self.removed.iter().map(|(addr, original)| (*addr, *original))
    }

    /// All breakpoints in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Addr, &Breakpoint)> {
        self.by_address.iter().map(|(addr, breakpoint)| (*addr, breakpoint))
    }

    /// How many breakpoints there are.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Puts the original bytes over our int3s in `bytes`, which were read from `addr` on: where the program has written over
    /// one, it stays. Costs a look at one ordered map where there are none, as in every stack.
    pub fn mask(&self, addr: Addr, bytes: &mut [u8]) {
        let end = Addr(addr.0.saturating_add(bytes.len() as u64));
        for (at, original) in self.range(addr, end) {
            if let Some(byte) = usize::try_from(at.0 - addr.0).ok().and_then(|offset| bytes.get_mut(offset))
                && *byte == INT3
            {
                *byte = original;
            }
        }
    }

    fn range(&self, start: Addr, end: Addr) -> impl Iterator<Item = (Addr, u8)> {
        // BTreeMap::range panics if the bounds are the wrong way round
        self.originals.range(start..end.max(start)).map(|(addr, original)| (*addr, *original))
    }

    fn drop_breakpoint(&mut self, addr: Addr) {
        self.by_address.remove(&addr);
        if let Some(original) = self.originals.remove(&addr) {
            self.removed.insert(addr, original);
        }
    }
}

#[cfg(test)]
mod tests;
