//! The table of breakpoints of one address space: what a hit means, and how the thread gets past it. Pure. What stood
//! there before is in the table of [patches](crate::breakpoints::patches).
//!
//! Breakpoints belong to an address space, not to a process or thread: threads and vfork children share one table, a
//! forked child gets a clone, exec starts an empty one. One address can serve several purposes; its int3 goes with
//! the last. No breakpoint is ever lifted to let a thread past it.

pub mod patches;

use crate::arch::step::Planned;
#[cfg(doc)]
use crate::arch::step::StepOver;
use crate::base::addr::{Addr, FunctionId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// How the calls of a probed function are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// By an int3 at its entry, and one at each address that it returns to.
    Trap,
    /// By a jump at its entry to code of ours, which records the call, or asks: then it is seen as by the trap engine.
    Jump,
}

/// A function whose calls are seen. Its engine is its own: its neighbours may have another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The function.
    pub function: FunctionId,
    /// What sees its calls.
    pub engine: Engine,
}

impl Probe {
    /// A probe of the trap engine.
    pub const fn trap(function: FunctionId) -> Self {
        Self { function, engine: Engine::Trap }
    }
}

/// What a hit of a breakpoint means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A probed function begins here.
    Entry(Probe),
    /// Calls of probed functions return here. Stays until detach.
    Return,
    /// Calls in progress return here. Goes when none does any more.
    ReturnOnce,
    /// The dynamic loader tells here that its list of modules changes (`r_brk`).
    Loader,
    /// A function of the C library begins that executes a program (execve and its kin).
    Exec,
    /// For the session's own use: one bit of eight.
    Tag(u16),
}

/// All purposes of one breakpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purposes {
    /// The probed function that begins here.
    pub entry: Option<Probe>,
    /// Calls return here, now and later.
    pub returns: bool,
    /// Calls in progress return here.
    pub returns_once: bool,
    /// The loader's notification.
    pub loader: bool,
    /// A function that executes a program begins here.
    pub exec: bool,
    /// The session's own bits.
    pub tags: u16,
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
            Purpose::Entry(probe) => self.entry = Some(probe),
            Purpose::Return => self.returns = true,
            Purpose::ReturnOnce => self.returns_once = true,
            Purpose::Loader => self.loader = true,
            Purpose::Exec => self.exec = true,
            Purpose::Tag(bits) => self.tags |= bits,
        }
    }

    fn remove(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Entry(probe) => self.entry = self.entry.filter(|entry| entry.function != probe.function),
            Purpose::Return => self.returns = false,
            Purpose::ReturnOnce => self.returns_once = false,
            Purpose::Loader => self.loader = false,
            Purpose::Exec => self.exec = false,
            Purpose::Tag(bits) => self.tags &= !bits,
        }
    }
}

/// One breakpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breakpoint {
    /// The way past the instruction that stood there, and its length.
    pub planned: Planned,
    /// What a hit means.
    pub purposes: Purposes,
    /// Where the pad is, once it was written. Needed from the start for [`StepOver::Pad`]; for [`StepOver::Emulate`]
    /// when the emulator first asks for it.
    pub pad: Option<Addr>,
    /// Whether the function that begins here branches back to its first instruction; None: nobody has asked yet.
    pub loops_to_entry: Option<bool>,
    /// Hits that served a purpose, see [`Self::count_return`].
    pub useful: u32,
    /// Hits that did not, as of a return site that other calls and branches come through too.
    pub spurious: u32,
}

impl Breakpoint {
    /// One that has not been hit yet.
    pub fn new(planned: Planned, pad: Option<Addr>, purpose: Purpose) -> Self {
        let mut purposes = Purposes::default();
        purposes.add(purpose);
        Self { planned, purposes, pad, loops_to_entry: None, useful: 0, spurious: 0 }
    }

    /// Whether a SIGTRAP that leaves the pc one byte behind the breakpoint can only be its hit. If not, as the
    /// original instruction is one byte long and the pc stands behind it in any case, `si_code` tells.
    pub const fn hit_is_certain(&self) -> bool {
        self.planned.len >= 2
    }

    /// Counts a hit of a return site; `matched`: a call in progress returned there. True if it is time to have a
    /// breakpoint there only while a call is in progress: the site is mostly passed by others, as behind an indirect
    /// call that calls an allocator now and then.
    pub const fn count_return(&mut self, matched: bool) -> bool {
        const MIN_RETURNS: u32 = 64;
        const SPURIOUS_PER_USEFUL: u32 = 8;
        if matched {
            self.useful = self.useful.saturating_add(1);
            return false;
        }
        self.spurious = self.spurious.saturating_add(1);
        self.purposes.returns && self.spurious > MIN_RETURNS && self.spurious / SPURIOUS_PER_USEFUL > self.useful
    }
}

/// The breakpoints of one address space.
#[derive(Clone, Debug, Default)]
pub struct BreakpointTable {
    /// Looked up at every stop.
    by_address: FxHashMap<Addr, Breakpoint>,
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

    /// Adds a purpose to the breakpoint at `addr`. False if there is none.
    pub fn add(&mut self, addr: Addr, purpose: Purpose) -> bool {
        let found = self.by_address.get_mut(&addr);
        found.map(|breakpoint| breakpoint.purposes.add(purpose)).is_some()
    }

    /// Enters a new breakpoint.
    pub fn insert(&mut self, addr: Addr, breakpoint: Breakpoint) {
        self.by_address.insert(addr, breakpoint);
    }

    /// Removes a purpose at `addr`, unless it is the last one: then the breakpoint itself has to go, and false is
    /// returned.
    pub fn remove_purpose(&mut self, addr: Addr, purpose: Purpose) -> bool {
        let Some(breakpoint) = self.by_address.get_mut(&addr) else { return true };
        let mut rest = breakpoint.purposes;
        rest.remove(purpose);
        if rest.is_empty() {
            return false;
        }
        breakpoint.purposes = rest;
        true
    }

    /// Drops the breakpoint at `addr` with all its purposes.
    pub fn remove(&mut self, addr: Addr) {
        self.by_address.remove(&addr);
    }

    /// Drops all breakpoints in `range`, whose memory is no longer mapped.
    pub fn forget(&mut self, range: &Range<Addr>) {
        self.by_address.retain(|addr, _| !range.contains(addr));
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
}

#[cfg(test)]
mod tests;
