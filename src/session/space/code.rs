//! What is written to the target's code: breakpoints, pads, and at the end the original bytes.

use super::{AddressSpace, Ensured, PAD_MAPPING};
use crate::addr::{Addr, ModuleId};
use crate::arch::step::{MAX_INSTRUCTION_LEN, Resume, StepOver, plan};
use crate::arch::{INT3, PAGE_SIZE, Regs};
use crate::breakpoints::pads::PadError;
use crate::breakpoints::{Added, Purpose, Purposes, Site};
use crate::maps::Kind;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{RawRegs, Stopped};
use crate::tracer::remote::{self, Caller, RemoteCall};
use crate::tracer::sigtrap_fallback::{self, SigtrapFallback};
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, procfs};
use std::collections::BTreeMap;

/// A thread at a breakpoint stop, which can make a system call for us.
pub(in crate::session) type Helper<'a> = Option<(&'a Stopped, &'a RawRegs)>;

/// What became of a breakpoint to be placed, or of a pad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::session) enum Placed {
    /// It is there.
    Done,
    /// The address can't hold one: no code, memory that others share or write, an instruction that can't be moved.
    Impossible,
    /// It needs a pad and there is no room; a thread at a breakpoint could make some.
    NoRoom,
    /// The helping thread's end was reported meanwhile: this status is to be handled instead.
    Interrupted(WaitStatus),
}

impl AddressSpace {
    /// Makes the return to `site` stop the thread. `thread` stands at a breakpoint.
    pub fn ensure_return_site(&mut self, site: Addr, thread: &Stopped, raw: &RawRegs) -> Result<Ensured> {
        if self.breakpoints.get(site).is_some_and(|b| b.purposes.returns) {
            return Ok(Ensured::Watched);
        }
        // Code outside of modules is made at run time, and changes as it likes: nothing may stay there.
        let at_run_time = self.module_at(site) == ModuleId::NONE;
        let purpose = if at_run_time || self.demoted.contains(&site) { Purpose::ReturnOnce } else { Purpose::Return };
        if at_run_time {
            self.read_maps(thread.tid())?;
            if self.breakpoints.get(site).is_some() && !self.holds_int3(site) {
                // written over since: what the table says of it is no longer true
                self.breakpoints.remove_all(site);
            }
        }
        Ok(match self.place(site, purpose, Some((thread, raw)))? {
            Placed::Done => Ensured::Watched,
            Placed::Impossible | Placed::NoRoom => Ensured::Impossible,
            Placed::Interrupted(status) => Ensured::Interrupted(status),
        })
    }

    /// From now on the return site has a breakpoint only while a call is in progress.
    pub fn demote_return_site(&mut self, site: Addr) {
        tracing::debug!("the return site {site} is mostly passed by others");
        self.demoted.insert(site);
        if let Some(breakpoint) = self.breakpoints.get_mut(site) {
            breakpoint.purposes.returns = false;
            breakpoint.purposes.returns_once = true;
        }
    }

    /// No call returns to a site of one shot any more.
    pub fn end_return_site(&mut self, site: Addr) -> Result<()> {
        self.take_away(site, |purposes| purposes.returns_once.then_some(Purpose::ReturnOnce))
    }

    /// Whether our int3 is gone from `addr`, where none is meant to be any more. In code that is made at run time the program
    /// may have put it back unknowingly, by writing what it had read before: then it is taken away again.
    pub fn is_clean(&mut self, addr: Addr) -> Result<bool> {
        if !self.holds_int3(addr) {
            return Ok(true);
        }
        match self.breakpoints.removed_original(addr) {
            Some(original) if self.module_at(addr) == ModuleId::NONE => {
                self.memory.write_code(addr, &[original])?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Places a breakpoint, or adds a purpose to the one that is there.
    pub(super) fn place(&mut self, addr: Addr, purpose: Purpose, helper: Helper<'_>) -> Result<Placed> {
        if self.breakpoints.get(addr).is_none() {
            if !self.may_patch(addr, helper)? {
                return Ok(Placed::Impossible);
            }
            let code = self.original_code(addr);
            let Some(&original) = code.first() else { return Ok(Placed::Impossible) };
            let planned = match plan(&code, addr) {
                Ok(planned) => planned,
                Err(error) => {
                    tracing::debug!("{error}");
                    return Ok(Placed::Impossible);
                }
            };
            let module = self.module_at(addr);
            let pad = match planned.step {
                StepOver::Emulate(_) => None,
                StepOver::Pad => match self.write_pad(addr, helper)? {
                    Ok(pad) => Some(pad),
                    Err(other) => return Ok(other),
                },
            };
            // Without it, nobody could tell later that the breakpoint is ours: see `guardian::orphan`.
            self.remote_code()?;
            let site = || Ok::<_, std::convert::Infallible>(Site { original, planned, module });
            let Ok(added) = self.breakpoints.add(addr, purpose, site);
            if let Some(breakpoint) = self.breakpoints.get_mut(addr) {
                breakpoint.pad = pad;
            }
            if let Some(guarded) = &self.guarded {
                guarded.place(addr, original);
            }
            if added == Added::Write
                && let Err(error) = self.memory.write_code(addr, &[INT3])
            {
                let _ = self.memory.write_code(addr, &[original]);
                self.breakpoints.remove_all(addr);
                return Err(error);
            }
            return Ok(Placed::Done);
        }
        let known = || Err::<Site, ()>(());
        let _present = self.breakpoints.add(addr, purpose, known);
        Ok(Placed::Done)
    }

    /// Writes the pad of the instruction at `addr`.
    pub(in crate::session) fn write_pad(
        &mut self,
        addr: Addr,
        helper: Helper<'_>,
    ) -> Result<std::result::Result<Addr, Placed>> {
        let code = self.original_code(addr);
        let module = self.module_at(addr);
        let mut result = self.pads.allocate(&code, addr, module);
        if matches!(result, Err(PadError::NoRoom { .. })) {
            match self.map_pads(addr, helper)? {
                Placed::Done => {}
                other => return Ok(Err(other)),
            }
            result = self.pads.allocate(&code, addr, module);
        }
        match result {
            Ok(pad) => {
                self.write_new_code(pad.addr, &pad.bytes)?;
                Ok(Ok(pad.addr))
            }
            Err(error) => {
                tracing::debug!("{error}");
                Ok(Err(Placed::Impossible))
            }
        }
    }

    /// Writes code of ours to where zeros are.
    fn write_new_code(&mut self, at: Addr, bytes: &[u8]) -> Result<()> {
        if let Some(guarded) = &self.guarded {
            guarded.code(at, bytes.len() as u64);
        }
        self.memory.write_code(at, bytes)
    }

    /// Up to 15 bytes of the program's own code.
    fn original_code(&self, addr: Addr) -> Vec<u8> {
        let mut code = vec![0; MAX_INSTRUCTION_LEN];
        let n = self.memory.read_uncached(addr, &mut code);
        code.truncate(n);
        self.breakpoints.mask(addr, &mut code);
        code
    }

    /// Whether a breakpoint may be written at `addr`: private code that nobody writes to. (What a program makes at run time
    /// may be writable: the caller of an allocator stays as it is until the call returns.)
    fn may_patch(&mut self, addr: Addr, helper: Helper<'_>) -> Result<bool> {
        let patchable = |space: &Self| {
            let mapping = space.maps.find(addr)?;
            let may_be_written = mapping.kind == Kind::Anonymous && space.module_at(addr) == ModuleId::NONE;
            Some(mapping.perms.execute && !mapping.perms.shared && (!mapping.perms.write || may_be_written))
        };
        if let Some(answer) = patchable(self) {
            return Ok(answer);
        }
        let Some((thread, _)) = helper else { return Ok(false) };
        self.read_maps(thread.tid())?;
        Ok(patchable(self).unwrap_or(false))
    }

    /// Offers the zero bytes behind a module's code for pads.
    pub(super) fn add_slack(&mut self, start: Addr, size: u64, module: ModuleId) {
        let mut bytes = vec![0; usize::try_from(size.min(PAGE_SIZE)).unwrap_or(0)];
        let n = self.memory.read_uncached(start, &mut bytes);
        let zeros = bytes[..n].iter().rev().take_while(|&&b| b == 0).count();
        // The bytes next to the code may belong to it, where its size is not told exactly.
        let first = (n - zeros) as u64;
        self.pads.add_region(start.add(first), zeros as u64, Some(module));
    }

    /// Lets the helping thread map memory for pads within reach of `near`.
    fn map_pads(&mut self, near: Addr, helper: Helper<'_>) -> Result<Placed> {
        let Some((thread, raw)) = helper else { return Ok(Placed::NoRoom) };
        if self.no_remote_calls || procfs::has_seccomp(thread.tid()) {
            // A filter may kill the program for a system call that it would never make itself.
            self.no_remote_calls = true;
            return Ok(Placed::Impossible);
        }
        self.read_maps(thread.tid())?;
        let Some(gap) = self.maps.find_gap(near, PAD_MAPPING) else { return Ok(Placed::Impossible) };
        // It stands at a breakpoint of ours.
        let Some(mut caller) = self.caller(thread, raw.before_trap())? else { return Ok(Placed::Impossible) };
        match caller.map_code(gap, PAD_MAPPING)? {
            RemoteCall::Done(result) if result.cast_unsigned() == gap.0 => {
                self.pads.add_region(gap, PAD_MAPPING, None);
                self.mapped_pads += 1;
                Ok(Placed::Done)
            }
            RemoteCall::Done(result) => {
                tracing::debug!("no memory for pads near {near}: {result}");
                self.no_remote_calls = true;
                Ok(Placed::Impossible)
            }
            RemoteCall::Ended(status) => Ok(Placed::Interrupted(status)),
        }
    }

    /// Prepares a thread for a remote call, after which it goes on with the registers `home`. None if there is no room.
    pub fn caller<'a>(&'a mut self, thread: &'a Stopped, home: RawRegs) -> Result<Option<Caller<'a>>> {
        let Some(code) = self.remote_code()? else { return Ok(None) };
        Ok(Some(Caller { thread, home, code, memory: &mut self.memory }))
    }

    /// Where the code of remote system calls goes: in a module's slack. It is written for each call.
    fn remote_code(&mut self) -> Result<Option<Addr>> {
        if self.remote_code.is_none()
            && let Some(at) = self.pads.reserve(remote::code::SIZE as u64)
        {
            self.write_new_code(at, &remote::code::image(&Regs::default(), 0))?;
            self.remote_code = Some(at);
        }
        Ok(self.remote_code)
    }

    /// Whether a thread with this program counter is on its way through the code of a remote system call.
    pub fn is_in_remote_code(&self, pc: Addr) -> bool {
        self.remote_code.is_some_and(|at| (at..at.add(remote::code::SIZE as u64)).contains(&pc))
    }

    /// The handler for SIGTRAP, ready to be installed; written at first use, to a module's slack. None if there is no room.
    pub fn sigtrap_fallback(&mut self) -> Result<Option<SigtrapFallback>> {
        if self.sigtrap_fallback.is_none()
            && let Some(call) = self.remote_code()?
            && let Some(at) = self.pads.reserve(sigtrap_fallback::SIZE)
        {
            self.write_new_code(at, &sigtrap_fallback::image(at))?;
            self.sigtrap_fallback = Some(SigtrapFallback { at, call });
        }
        Ok(self.sigtrap_fallback)
    }

    /// The handler for SIGTRAP, if it was ever made ready.
    pub const fn known_sigtrap_fallback(&self) -> Option<SigtrapFallback> {
        self.sigtrap_fallback
    }

    /// Says whether the handler is installed now, to who must take it out if we are killed.
    pub fn tell_guardian_of(&self, handler: Option<SigtrapFallback>) {
        if let Some(guarded) = &self.guarded {
            guarded.sigtrap_fallback(handler);
        }
    }

    /// Says that children which share the memory may have the handler.
    pub fn tell_guardian_of_sharers(&self, handler: SigtrapFallback) {
        if let Some(guarded) = &self.guarded {
            guarded.sigtrap_fallback_of_others(handler);
        }
    }

    /// Tells a new guardian what stands in this memory, and whether the handler for SIGTRAP is installed.
    pub fn guard_anew(&self, handler: Option<SigtrapFallback>) {
        let Some(guarded) = &self.guarded else { return };
        guarded.begin_anew(self.pid, &self.memory);
        for (addr, original) in self.breakpoints.removed() {
            guarded.place(addr, original);
            guarded.lifted(addr);
        }
        for (addr, original) in self.breakpoints.originals() {
            guarded.place(addr, original);
        }
        for (start, len) in self.pads.regions() {
            guarded.code(start, len);
        }
        if let Some(known) = self.sigtrap_fallback {
            guarded.sigtrap_fallback_of_others(known);
        }
        guarded.sigtrap_fallback(handler);
    }

    /// Where a thread whose program counter is in a pad belongs in the original code.
    pub fn pad_resume(&self, pc: Addr) -> Option<Resume> {
        self.pads.find(pc).map(|found| found.resume)
    }

    /// Whether an int3 stands at `addr`.
    pub fn holds_int3(&self, addr: Addr) -> bool {
        let mut byte = [0];
        self.memory.read_uncached(addr, &mut byte) == 1 && byte == [INT3]
    }

    /// Ends the watch for returns to `addr`.
    pub fn unwatch_return(&mut self, addr: Addr) -> Result<()> {
        self.take_away(addr, |purposes| purposes.returns.then_some(Purpose::Return))
    }

    /// Takes one purpose from a breakpoint, and the breakpoint away with its last.
    pub(super) fn take_away(&mut self, addr: Addr, which: impl Fn(&Purposes) -> Option<Purpose>) -> Result<()> {
        let Some(purpose) = self.breakpoints.get(addr).and_then(|breakpoint| which(&breakpoint.purposes)) else {
            return Ok(());
        };
        if self.breakpoints.is_last(addr, purpose) {
            return self.lift(addr);
        }
        let _kept = self.breakpoints.remove(addr, purpose);
        Ok(())
    }

    /// Takes one breakpoint away for good.
    pub fn lift(&mut self, addr: Addr) -> Result<()> {
        let Some(original) = self.breakpoints.get(addr).map(|breakpoint| breakpoint.site.original) else {
            return Ok(());
        };
        if self.holds_int3(addr) {
            self.memory.write_code(addr, &[original])?;
        }
        // Not before: what fails here must be known to whoever tries again.
        self.breakpoints.remove_all(addr);
        if let Some(guarded) = &self.guarded {
            guarded.lifted(addr);
        }
        Ok(())
    }

    /// Writes all original bytes back, while threads may run, and remembers the addresses as removed. What fails is tried
    /// once more, and stays in the table if it fails again; the last error is returned then.
    pub fn restore(&mut self) -> Result<()> {
        let mut result = Ok(());
        for _ in 0..2 {
            result = Ok(());
            let all: Vec<_> = self.breakpoints.originals().collect();
            for (addr, _) in all {
                if let Err(error) = self.lift(addr) {
                    result = Err(error);
                }
            }
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Whether the kernel refuses to change the code of a thread that runs.
    pub const fn is_refused_while_running(&self) -> bool {
        self.memory.is_refused()
    }

    /// Zeroes what pads have used. Only when no thread can be in one. `kept` stays.
    pub fn clear_pads(&mut self, kept: Option<SigtrapFallback>) {
        let used: Vec<_> = self.pads.regions().collect();
        for (start, len) in used {
            let mut zeros = vec![0; usize::try_from(len).unwrap_or(0)];
            if let Some(handler) = kept
                && let Some(offset) = handler.at.0.checked_sub(start.0).filter(|offset| *offset < len)
            {
                let mut image = sigtrap_fallback::image(handler.at);
                self.memory.read_uncached(handler.at, &mut image);
                for (byte, kept) in zeros.iter_mut().skip(usize::try_from(offset).unwrap_or(0)).zip(image) {
                    *byte = kept;
                }
            }
            if let Err(error) = self.memory.write_code(start, &zeros) {
                tracing::debug!("{error}");
            }
        }
    }

    /// Bytes of the mappings that were made for pads. They stay behind, inert.
    pub const fn mapped_pad_bytes(&self) -> u64 {
        self.mapped_pads * PAD_MAPPING
    }

    /// Whether what is written to this address space shows in `other`: they are one. None if it can't be tried.
    pub fn is_seen_through(&mut self, other: &TargetMemory) -> Option<bool> {
        let at = self.pads.reserve(1)?;
        let mut byte = [0];
        if self.memory.write_code(at, &[INT3]).is_err() {
            // Its last task has ended, and it with that: who lives has another one.
            return Some(false);
        }
        let read = other.read_uncached(at, &mut byte);
        self.memory.write_code(at, &[0]).ok()?;
        (read == 1).then_some(byte == [INT3])
    }

    /// Whether the memory of process `pid` is a copy of this one, by the int3s in it.
    pub fn is_copied_in(&self, pid: i32) -> bool {
        let Ok(memory) = TargetMemory::open(pid, pid) else { return false };
        let holds = |addr| {
            let mut byte = [0];
            memory.read_uncached(addr, &mut byte) == 1 && byte == [INT3]
        };
        self.breakpoints.originals().any(|(addr, _)| holds(addr))
    }

    /// Writes the original bytes to a copy of this address space: the memory of a forked child that is stopped and has no other
    /// thread.
    pub fn restore_copy(&self, copy: &mut TargetMemory) -> Result<()> {
        let mut pages: BTreeMap<Addr, Vec<(usize, u8)>> = BTreeMap::new();
        for (addr, original) in self.breakpoints.originals().chain(self.breakpoints.removed()) {
            let offset = addr.0 % PAGE_SIZE;
            pages.entry(addr.sub(offset)).or_default().push((offset as usize, original));
        }
        for (page, changes) in pages {
            let mut bytes = vec![0; PAGE_SIZE as usize];
            let n = copy.read_uncached(page, &mut bytes);
            bytes.truncate(n);
            for (offset, original) in changes {
                if let Some(byte) = bytes.get_mut(offset)
                    && *byte == INT3
                {
                    *byte = original;
                    copy.write_code(page.add(offset as u64), &[original])?;
                }
            }
        }
        Ok(())
    }

    /// Zeroes the pads in such a copy.
    pub fn clear_pads_of_copy(&self, copy: &mut TargetMemory) -> Result<()> {
        for (start, len) in self.pads.regions() {
            copy.write_code(start, &vec![0; usize::try_from(len).unwrap_or(0)])?;
        }
        Ok(())
    }
}
