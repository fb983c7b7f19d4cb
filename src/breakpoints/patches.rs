//! What is written to the code of one address space: the patches over the program's own code, each with the bytes from
//! before, and the code of ours in room that nobody else uses ([`own`]). Pure: the tracer writes it (`tracer/code.rs`).
//!
//! It answers two questions. Is a program counter in code of ours, and how does the thread leave it:
//! [`Patches::locate`]. What would stand in a range without us: [`Patches::mask`]; whoever shows code (the emulator,
//! the unwinder, copies, the leak scan) shows that.
//!
//! Patches belong to an address space, not to a process or thread: threads and vfork children share one table, a forked
//! child gets a clone, exec starts an empty one. Patches that were taken out are remembered: a thread may have hit the
//! int3 before, and report it after; and a copy of the memory may still hold them.

pub mod own;

use crate::arch::INT3;
use crate::arch::step::Resume;
use crate::base::addr::Addr;
pub use own::{OwnCode, OwnKind};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most bytes that one patch replaces: more than the longest instruction has, and a jump takes 5.
pub const LONGEST: usize = 16;

/// Bytes of the program's code that are replaced by ours: by an int3 today; for a jump, by several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    original: [u8; LONGEST],
    new: [u8; LONGEST],
    len: u8,
}

impl Patch {
    /// A breakpoint over an instruction that begins with `original`.
    pub const fn int3(original: u8) -> Self {
        let (mut before, mut new) = ([0; LONGEST], [0; LONGEST]);
        before[0] = original;
        new[0] = INT3;
        Self { original: before, new, len: 1 }
    }

    /// A patch that replaces `original` by `new`. None if their lengths differ, or are not 1 to [`LONGEST`].
    pub fn new(original: &[u8], new: &[u8]) -> Option<Self> {
        let mut patch = Self { original: [0; LONGEST], new: [0; LONGEST], len: u8::try_from(original.len()).ok()? };
        if original.is_empty() || original.len() != new.len() {
            return None;
        }
        patch.original.get_mut(..original.len())?.copy_from_slice(original);
        patch.new.get_mut(..new.len())?.copy_from_slice(new);
        Some(patch)
    }

    /// How many bytes it replaces: 1 to [`LONGEST`].
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// What stood there.
    pub fn original(&self) -> &[u8] {
        self.original.get(..self.len()).unwrap_or_default()
    }

    /// What stands there instead.
    pub fn replacement(&self) -> &[u8] {
        self.new.get(..self.len()).unwrap_or_default()
    }

    /// One byte of ours that code of ours looks at: no instruction. It is undone before all others.
    pub const fn switch(off: u8, on: u8) -> Self {
        let (mut before, mut new) = ([0; LONGEST], [0; LONGEST]);
        before[0] = off;
        new[0] = on;
        Self { original: before, new, len: 1 }
    }

    /// Whether it is one of [`Self::switch`].
    pub const fn is_switch(&self) -> bool {
        self.len == 1 && self.new[0] != INT3
    }

    /// Whether `found`, read from `offset` bytes into the patch on, can be what the program had there, or what we have
    /// written, wholly or in part. (A patch of several bytes begins with an int3 while the others are exchanged.) If
    /// not, the program has written there since.
    fn explains(&self, offset: usize, found: &[u8]) -> bool {
        let known = self.original.iter().zip(&self.new).skip(offset).zip(offset..);
        found
            .iter()
            .zip(known)
            .all(|(&byte, ((&original, &new), at))| byte == original || byte == new || at == 0 && byte == INT3)
    }

    /// Whether `found`, which stands at the patch's address, is the program's code, or that with our patch in it.
    pub fn is_known(&self, found: &[u8]) -> bool {
        found.len() == self.len() && self.explains(0, found)
    }

    /// Whether `found`, which stands at the patch's address, holds anything of ours that has to be undone.
    pub fn is_written(&self, found: &[u8]) -> bool {
        self.is_known(found) && found != self.original()
    }
}

/// Where a program counter lies, and how a thread that stands there leaves what is ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PcLocation {
    /// In the program's code, and behind no int3 of ours.
    Program,
    /// Directly behind the int3 of the patch at this address, which stands there, or did. If it has just hit that, the
    /// thread goes on at this address once the original bytes are back.
    BehindTrap(Addr),
    /// In a pad, where one of its instructions begins: this is how the thread goes on in the original code. If that is
    /// at the breakpoint itself, the instruction was not executed yet.
    Pad(Resume),
    /// In the pad of an entry of which several instructions were moved, where one of those begins that is not the
    /// first: this is where it stood. The program's code can't be entered there while the patch stands.
    Moved(Addr),
    /// In the code of a remote call: a thread that runs gets from there to where it belongs by itself.
    RemoteCall,
    /// Elsewhere in code of ours. A thread that runs leaves it by itself.
    Own,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Patches {
    placed: BTreeMap<Addr, Patch>,
    removed: FxHashMap<Addr, Patch>,
    /// Code of ours where nothing of the program's is.
    pub own: OwnCode,
}

impl Patches {
    /// Notes a patch that is about to be written.
    pub fn insert(&mut self, addr: Addr, patch: Patch) {
        self.placed.insert(addr, patch);
        self.removed.remove(&addr);
    }

    /// Notes that the original bytes are back.
    pub fn remove(&mut self, addr: Addr) {
        if let Some(patch) = self.placed.remove(&addr) {
            self.removed.insert(addr, patch);
        }
    }

    /// Forgets all in `range`, whose memory is no longer mapped, or somebody else's by now.
    pub fn forget(&mut self, range: &Range<Addr>) {
        self.placed.retain(|addr, _| !range.contains(addr));
        self.removed.retain(|addr, _| !range.contains(addr));
        self.own.forget(range);
    }

    /// Forgets all switches: a copy of the memory has zeros there.
    pub fn forget_switches(&mut self) {
        self.placed.retain(|_, patch| !patch.is_switch());
        self.removed.retain(|_, patch| !patch.is_switch());
    }

    /// The patch at `addr`.
    pub fn get(&self, addr: Addr) -> Option<&Patch> {
        self.placed.get(&addr)
    }

    /// The patch that was at `addr`, where none is now.
    pub fn removed_from(&self, addr: Addr) -> Option<&Patch> {
        self.removed.get(&addr)
    }

    /// Whether a patch is at `addr`, or was.
    pub fn is_or_was_at(&self, addr: Addr) -> bool {
        self.placed.contains_key(&addr) || self.removed.contains_key(&addr)
    }

    /// All patches in ascending order of address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Addr, &Patch)> {
        self.placed.iter().map(|(addr, patch)| (*addr, patch))
    }

    /// All patches that were taken out, in no particular order.
    pub fn removed(&self) -> impl Iterator<Item = (Addr, &Patch)> {
        self.removed.iter().map(|(addr, patch)| (*addr, patch))
    }

    /// All that a copy of the memory may hold, made at whatever time: patches that are there and that were, in
    /// ascending order.
    pub fn ever(&self) -> BTreeMap<Addr, &Patch> {
        self.removed().chain(self.iter()).collect()
    }

    /// Whether a program counter is in code of ours, and how one leaves it.
    pub fn locate(&self, pc: Addr) -> PcLocation {
        let before = pc.sub(1);
        match self.own.locate(pc) {
            Some(location) => location,
            None if self.is_or_was_at(before) => PcLocation::BehindTrap(before),
            None => PcLocation::Program,
        }
    }

    /// Puts the original bytes over our patches in `bytes`, which were read from `addr` on: where the program has
    /// written over one, it stays. Costs a look at one ordered map where there are none, as in every stack.
    pub fn mask(&self, addr: Addr, bytes: &mut [u8]) {
        let end = Addr(addr.0.saturating_add(bytes.len() as u64));
        let first = Addr(addr.0.saturating_sub(LONGEST as u64 - 1));
        for (at, patch) in self.placed.range(first..end.max(first)) {
            // of the patch and of what was read: where their common part begins in each
            let (skipped, offset) = (addr.0.saturating_sub(at.0) as usize, at.0.saturating_sub(addr.0) as usize);
            let Some(original) = patch.original().get(skipped..) else { continue };
            let Some(rest) = bytes.get_mut(offset..) else { continue };
            let len = original.len().min(rest.len());
            if let (Some(found), Some(original)) = (rest.get_mut(..len), original.get(..len))
                && patch.explains(skipped, found)
            {
                found.copy_from_slice(original);
            }
        }
    }
}

#[cfg(test)]
mod tests;
