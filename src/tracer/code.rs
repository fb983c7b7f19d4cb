//! Writing to the target's code. Nothing else does: the session, the detach, forked children, the guardian, and the
//! repair of what a killed heaptrace has left all write here.
//!
//! The order is always the same: the guardian hears of it, the bytes are written while threads may run, what stands
//! there
//! is read back. A patch is undone only where it still stands, wholly or in part: the program may have written over it.
//!
//! A patch of several bytes begins with an int3 while the others are exchanged, in both directions. So no thread
//! executes half of it, and at whatever moment we are killed, what stands there is one of four states that
//! [`Patch::is_written`] knows.

mod passing;
pub mod write;

use super::Result;
use super::guardian::Guarded;
use super::memory::TargetMemory;
use super::remote::code as remote_code;
use super::sigtrap_fallback::{self, SigtrapFallback};
use crate::arch::{INT3, Regs};
use crate::base::addr::Addr;
use crate::breakpoints::patches::{OwnCode, OwnKind, Patch, Patches};
use std::collections::BTreeMap;
use std::ops::Range;
use write::{Threads, copy, exchange, exchange_all, for_each_found, stands, undo, write, write_originals};

/// The code of one address space: what is written to it, and who undoes that if we are killed.
#[derive(Debug, Default)]
pub struct TargetCode {
    patches: Patches,
    guarded: Option<Guarded>,
}

impl TargetCode {
    /// Code in which nothing of ours is yet.
    pub fn new(guarded: Option<Guarded>) -> Self {
        Self { patches: Patches::default(), guarded }
    }

    /// The code of a copy of the memory, made by a fork: as much of ours is in it, but for what has changed since.
    /// Switches are off there, and stay so.
    pub fn fork(&self, guarded: Option<Guarded>) -> Self {
        let mut patches = self.patches.clone();
        patches.forget_switches();
        Self { patches, guarded }
    }

    /// What is written.
    pub const fn patches(&self) -> &Patches {
        &self.patches
    }

    /// The guard.
    pub const fn guarded(&self) -> Option<&Guarded> {
        self.guarded.as_ref()
    }

    /// Ends the guard: nothing of ours is in the memory any more, or it is gone.
    pub fn end_guard(&mut self) {
        if let Some(guarded) = self.guarded.take() {
            guarded.forget();
        }
    }

    /// Says whether the SIGTRAP fallback is installed now, to who must take it out if we are killed.
    pub fn tell_fallback(&self, installed: Option<SigtrapFallback>) {
        if let Some(guarded) = &self.guarded {
            guarded.sigtrap_fallback(installed);
        }
    }

    /// Says that children which share the memory may have it.
    pub fn tell_fallback_of_others(&self, fallback: SigtrapFallback) {
        if let Some(guarded) = &self.guarded {
            guarded.sigtrap_fallback_of_others(fallback);
        }
    }

    /// Room for code of ours, see [`OwnCode::add_region`].
    pub const fn own(&mut self) -> &mut OwnCode {
        &mut self.patches.own
    }

    /// Puts a patch in. If that fails, the original bytes are put back as far as possible.
    ///
    /// # Errors
    /// Those of [`TargetMemory`]'s writes.
    pub fn place(&mut self, memory: &mut TargetMemory, addr: Addr, patch: Patch) -> Result<()> {
        self.patches.insert(addr, patch);
        if let Some(guarded) = &self.guarded {
            guarded.place(addr, &patch);
        }
        exchange(memory, addr, patch.replacement()).inspect_err(|_| {
            let _ = exchange(memory, addr, patch.original());
            self.patches.remove(addr);
        })
    }

    /// Puts jumps in where int3s of ours stand. No thread stands behind the first of the instructions that they
    /// replace.
    ///
    /// # Errors
    /// Those of [`TargetMemory`]'s writes: then the int3s stand again, as far as possible.
    pub fn place_jumps(&mut self, memory: &mut TargetMemory, jumps: &[(Addr, Patch)], threads: Threads) -> Result<()> {
        let before: Vec<_> = jumps.iter().filter_map(|(addr, _)| Some((*addr, *self.patches.get(*addr)?))).collect();
        for (addr, patch) in jumps {
            self.patches.insert(*addr, *patch);
            if let Some(guarded) = &self.guarded {
                guarded.place(*addr, patch);
            }
        }
        let all: Vec<_> = jumps.iter().map(|(addr, patch)| (*addr, patch.replacement())).collect();
        exchange_all(memory, &all, threads).inspect_err(|_| self.put_back(memory, jumps, &before))
    }

    fn put_back(&mut self, memory: &mut TargetMemory, jumps: &[(Addr, Patch)], before: &[(Addr, Patch)]) {
        for (addr, patch) in jumps {
            let _ = undo(memory, *addr, patch);
        }
        for (addr, patch) in before {
            if let Err(error) = self.place(memory, *addr, *patch) {
                tracing::warn!("{error}");
            }
        }
    }

    /// Puts int3s in where jumps of ours stand, in a process whose only task is stopped.
    ///
    /// # Errors
    /// The first; what can be written is.
    pub fn end_jumps(&mut self, memory: &mut TargetMemory) -> Result<()> {
        let jumps: Vec<_> = self.patches.iter().filter(|(_, p)| p.len() > 1).map(|(addr, p)| (addr, *p)).collect();
        let mut result = Ok(());
        for (addr, patch) in jumps {
            result = result.and(undo(memory, addr, &patch));
            let original = patch.original().first().copied().unwrap_or(INT3);
            result = result.and(self.place(memory, addr, Patch::int3(original)));
        }
        result
    }

    /// Takes the switch and all jumps out for good. Returns where they were.
    ///
    /// # Errors
    /// The first: what could not be written stays in the table.
    pub fn lift_jumps(&mut self, memory: &mut TargetMemory, threads: Threads) -> Result<Vec<Addr>> {
        let is_ours = |patch: &Patch| patch.len() > 1 || patch.is_switch();
        let all: Vec<_> = self.patches.iter().filter(|(_, p)| is_ours(p)).map(|(addr, p)| (addr, *p)).collect();
        write_originals(memory, all.iter().map(|(addr, patch)| (*addr, patch)), threads)?;
        let lifted: Vec<_> = all.into_iter().map(|(addr, _)| addr).collect();
        for &addr in &lifted {
            self.patches.remove(addr);
            if let Some(guarded) = &self.guarded {
                guarded.lifted(addr);
            }
        }
        Ok(lifted)
    }

    /// Takes the patch at `addr` out for good.
    ///
    /// # Errors
    /// If the original bytes can't be written: then it stays in the table, as whoever tries again must know of it.
    pub fn lift(&mut self, memory: &mut TargetMemory, addr: Addr) -> Result<()> {
        let Some(patch) = self.patches.get(addr) else { return Ok(()) };
        undo(memory, addr, patch)?;
        self.patches.remove(addr);
        if let Some(guarded) = &self.guarded {
            guarded.lifted(addr);
        }
        Ok(())
    }

    /// Forgets the patch at `addr` if the program has written over it since. Whether it has.
    pub fn forget_if_overwritten(&mut self, memory: &TargetMemory, addr: Addr) -> bool {
        let is_gone = self.patches.get(addr).is_some_and(|patch| !stands(memory, addr, patch));
        if is_gone {
            self.patches.remove(addr);
        }
        is_gone
    }

    /// Whether a patch that was taken out stands at `addr` again: code that is made at run time may have been put back
    /// unknowingly, by a program that writes what it had read before.
    pub fn has_returned(&self, memory: &TargetMemory, addr: Addr) -> bool {
        self.patches.removed_from(addr).is_some_and(|patch| stands(memory, addr, patch))
    }

    /// Takes such a one out once more.
    ///
    /// # Errors
    /// If the original bytes can't be written.
    pub fn lift_returned(&self, memory: &mut TargetMemory, addr: Addr) -> Result<()> {
        self.patches.removed_from(addr).map_or(Ok(()), |patch| undo(memory, addr, patch))
    }

    /// Forgets what was in `range`, without writing: the memory is gone, or belongs to somebody else by now.
    pub fn forget(&mut self, range: &Range<Addr>) {
        self.patches.forget(range);
        if let Some(guarded) = &self.guarded {
            guarded.unmapped(range.start, range.end);
        }
    }

    /// Writes the original bytes, and keeps the patches in the table for [`Self::take_up`].
    ///
    /// # Errors
    /// The first; what can be written is.
    pub fn set_aside(&self, memory: &mut TargetMemory) -> Result<()> {
        write_originals(memory, self.patches.iter(), Threads::Run)
    }

    /// Writes the patches again where the original bytes stand. Anything else is not the code that they were made for.
    ///
    /// # Errors
    /// The first; what can be written is.
    pub fn take_up(&self, memory: &mut TargetMemory) -> Result<()> {
        for_each_found(memory, self.patches.iter(), |memory, addr, patch, found| {
            if patch.is_known(found) && found != patch.replacement() {
                exchange(memory, addr, patch.replacement())?;
            }
            Ok(())
        })
    }

    /// Makes this copy of the code, in `memory`, the same as the one that it was made from is now, in `theirs`: what
    /// has changed since the fork is changed here, too.
    ///
    /// # Errors
    /// If something can't be written.
    pub fn catch_up_with(&self, memory: &mut TargetMemory, theirs: &TargetMemory) -> Result<()> {
        for range in self.patches.own.ranges(None) {
            copy(memory, theirs, &range)?;
        }
        self.take_up(memory)?;
        let removed = self.patches.removed().collect::<BTreeMap<_, _>>();
        write_originals(memory, removed.into_iter(), Threads::Stand)
    }

    /// Writes code of ours to room that was set aside for it, where zeros are.
    ///
    /// # Errors
    /// Those of [`TargetMemory`]'s writes.
    pub fn write_own(&self, memory: &mut TargetMemory, at: Addr, bytes: &[u8]) -> Result<()> {
        if let Some(guarded) = &self.guarded {
            guarded.code(at, bytes.len() as u64);
        }
        write(memory, at, bytes)
    }

    /// Writes code of the jump engine, which stays as it is for good: threads may be in it, or come to it from there,
    /// when all patches are gone.
    ///
    /// # Errors
    /// Those of [`TargetMemory`]'s writes.
    pub fn write_jump_code(&self, memory: &mut TargetMemory, at: Addr, bytes: &[u8]) -> Result<()> {
        write(memory, at, bytes)
    }

    /// Where the code of remote system calls goes; written anew for each call. None if there is no room.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn remote_call(&mut self, memory: &mut TargetMemory) -> Result<Option<Addr>> {
        let image = || remote_code::image(&Regs::default(), 0);
        self.own_at(memory, self.patches.own.remote_call(), OwnKind::RemoteCall, remote_code::SIZE as u64, |_| image())
    }

    /// The SIGTRAP fallback, ready to be installed; written at first use. None if there is no room.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn sigtrap_fallback(&mut self, memory: &mut TargetMemory) -> Result<Option<SigtrapFallback>> {
        let Some(call) = self.remote_call(memory)? else { return Ok(None) };
        let known = self.patches.own.sigtrap_fallback();
        let image = sigtrap_fallback::image;
        let at = self.own_at(memory, known, OwnKind::SigtrapFallback, sigtrap_fallback::SIZE, image)?;
        Ok(at.map(|at| SigtrapFallback { at, call }))
    }

    fn own_at(
        &mut self,
        memory: &mut TargetMemory,
        known: Option<Addr>,
        kind: OwnKind,
        size: u64,
        image: impl FnOnce(Addr) -> Vec<u8>,
    ) -> Result<Option<Addr>> {
        if known.is_some() {
            return Ok(known);
        }
        let at = self.patches.own.reserve(size, kind);
        if let Some(at) = at {
            self.write_own(memory, at, &image(at))?;
        }
        Ok(at)
    }

    /// The SIGTRAP fallback, if it was ever made ready.
    pub fn known_sigtrap_fallback(&self) -> Option<SigtrapFallback> {
        let own = &self.patches.own;
        own.sigtrap_fallback().zip(own.remote_call()).map(|(at, call)| SigtrapFallback { at, call })
    }

    /// Whether what is written to `memory` shows in `other`: they are one. None if it can't be tried.
    pub fn is_seen_through(&mut self, memory: &mut TargetMemory, other: &TargetMemory) -> Option<bool> {
        let at = self.patches.own.reserve(1, OwnKind::Other)?;
        let mut byte = [0];
        if self.write_own(memory, at, &[INT3]).is_err() {
            // Its last task has ended, and it with that: who lives has another one.
            return Some(false);
        }
        let read = other.read_uncached(at, &mut byte);
        write(memory, at, &[0]).ok()?;
        (read == 1).then_some(byte == [INT3])
    }

    /// Tells a new guardian what stands in the memory of process `pid`, and whether the SIGTRAP fallback is installed.
    pub fn guard_anew(&self, memory: &TargetMemory, pid: i32, installed: Option<SigtrapFallback>) {
        let Some(guarded) = &self.guarded else { return };
        guarded.begin_anew(pid, memory);
        for (addr, patch) in self.patches.removed() {
            guarded.place(addr, patch);
            guarded.lifted(addr);
        }
        for (addr, patch) in self.patches.iter() {
            guarded.place(addr, patch);
        }
        for range in self.patches.own.ranges(None) {
            guarded.code(range.start, range.end.0 - range.start.0);
        }
        if let Some(known) = self.known_sigtrap_fallback() {
            guarded.sigtrap_fallback_of_others(known);
        }
        guarded.sigtrap_fallback(installed);
    }
}

#[cfg(test)]
mod tests;
