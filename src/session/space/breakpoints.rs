//! The breakpoints of an address space: set, at return sites or elsewhere, lifted, with pads behind them, and all taken
//! out at the end. The bytes are written by [`TargetCode`](crate::tracer::code::TargetCode).

use super::AddressSpace;
use crate::arch::PAGE_SIZE;
use crate::arch::step::{MAX_INSTRUCTION_LEN, StepOver, plan};
use crate::base::addr::{Addr, ModuleId};
use crate::breakpoints::patches::own::PadError;
use crate::breakpoints::patches::{Patch, PcLocation};
use crate::breakpoints::{Breakpoint, Purpose, Purposes};
use crate::image::maps::Kind;
use crate::tracer::code::write::{self, Threads};
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::remote::Caller;
use crate::tracer::sigtrap_fallback::SigtrapFallback;
use crate::tracer::{Result, procfs};

/// Bytes of one remote mapping for pads: room for about 2000.
const PAD_MAPPING: u64 = 64 * 1024;

/// The mappings that were made for pads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PadMappings {
    /// How many there are.
    count: u64,
    /// Whether no more can be made.
    are_refused: bool,
}

/// A thread that stands still, and can make a system call for us.
#[derive(Debug)]
pub(in crate::session) struct Helper<'a> {
    pub(in crate::session) thread: &'a Stopped,
    /// The registers with which it goes on.
    pub(in crate::session) resume: RawRegs,
}

impl<'a> Helper<'a> {
    /// One that has hit a breakpoint of ours, and has the registers `raw`.
    pub(in crate::session) fn at_trap(thread: &'a Stopped, raw: &RawRegs) -> Self {
        Self { thread, resume: raw.before_trap() }
    }
}

/// What became of a breakpoint to be placed, of a pad (where that is), or of room for pads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::session) enum Placed<T = ()> {
    /// It is there.
    Done(T),
    /// The address can't hold one: no code, memory that others share or write, an instruction that can't be moved.
    Impossible,
    /// It needs a pad and there is no room; a thread that stands still could make some.
    NoRoom,
}

impl AddressSpace {
    /// Makes the return to `site` stop the thread. `thread` stands at a breakpoint. False if no breakpoint can be
    /// there.
    pub fn ensure_return_site(&mut self, site: Addr, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        if self.breakpoints.get(site).is_some_and(|b| b.purposes.returns) {
            return Ok(true);
        }
        // Code outside of modules is made at run time, and changes as it likes: nothing may stay there.
        let at_run_time = self.module_at(site) == ModuleId::NONE;
        let is_demoted = self.module(site).is_some_and(|module| module.demoted.contains(&site));
        let purpose = if at_run_time || is_demoted || self.is_jumped { Purpose::ReturnOnce } else { Purpose::Return };
        if at_run_time {
            self.read_maps(thread.tid())?;
            // Then what the table says of it is no longer true.
            if self.code.forget_if_overwritten(&self.memory, site) {
                self.breakpoints.remove(site);
            }
        }
        Ok(self.place(site, purpose, Some(&Helper::at_trap(thread, raw)))? == Placed::Done(()))
    }

    /// From now on the return site has a breakpoint only while a call is in progress.
    pub fn demote_return_site(&mut self, site: Addr) {
        tracing::debug!("the return site {site} is mostly passed by others");
        let module = self.module_at(site);
        if let Some(module) = self.modules.get_mut(module) {
            module.demoted.insert(site);
        }
        if let Some(breakpoint) = self.breakpoints.get_mut(site) {
            breakpoint.purposes.returns = false;
            breakpoint.purposes.returns_once = true;
        }
    }

    /// No call returns to a site of one shot any more.
    pub fn end_return_site(&mut self, site: Addr) -> Result<()> {
        self.take_away(site, |purposes| purposes.returns_once.then_some(Purpose::ReturnOnce))
    }

    /// Whether our int3 is gone from `addr`, where none is meant to be any more. In code that is made at run time the
    /// program may have put it back unknowingly, by writing what it had read before: then it is taken away again.
    pub fn is_clean(&mut self, addr: Addr) -> Result<bool> {
        if !self.code.has_returned(&self.memory, addr) {
            return Ok(true);
        }
        if self.module_at(addr) != ModuleId::NONE {
            return Ok(false);
        }
        self.code.lift_returned(&mut self.memory, addr)?;
        Ok(true)
    }

    /// Places a breakpoint, or adds a purpose to the one that is there.
    pub(super) fn place(&mut self, addr: Addr, purpose: Purpose, helper: Option<&Helper<'_>>) -> Result<Placed> {
        if self.breakpoints.add(addr, purpose) {
            return Ok(Placed::Done(()));
        }
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
        let pad = match planned.step {
            StepOver::Emulate(_) => None,
            StepOver::Pad => match self.write_pad(addr, helper)? {
                Placed::Done(pad) => Some(pad),
                Placed::Impossible => return Ok(Placed::Impossible),
                Placed::NoRoom => return Ok(Placed::NoRoom),
            },
        };
        // Without it, nobody could tell later that the breakpoint is ours: see `guardian::orphan`.
        self.code.remote_call(&mut self.memory)?;
        self.code.place(&mut self.memory, addr, Patch::int3(original))?;
        self.breakpoints.insert(addr, Breakpoint::new(planned, pad, purpose));
        Ok(Placed::Done(()))
    }

    /// Writes the pad of the instruction at `addr`.
    pub(in crate::session) fn write_pad(&mut self, addr: Addr, helper: Option<&Helper<'_>>) -> Result<Placed<Addr>> {
        let code = self.original_code(addr);
        let module = self.module_at(addr);
        let mut result = self.code.own().allocate(&code, addr, module);
        if matches!(result, Err(PadError::NoRoom { .. })) {
            match self.map_pads(addr, helper)? {
                Placed::Done(()) => {}
                Placed::Impossible => return Ok(Placed::Impossible),
                Placed::NoRoom => return Ok(Placed::NoRoom),
            }
            result = self.code.own().allocate(&code, addr, module);
        }
        match result {
            Ok(pad) => {
                self.code.write_own(&mut self.memory, pad.addr, &pad.bytes)?;
                Ok(Placed::Done(pad.addr))
            }
            Err(error) => {
                tracing::debug!("{error}");
                Ok(Placed::Impossible)
            }
        }
    }

    /// Up to 15 bytes of the program's own code.
    fn original_code(&self, addr: Addr) -> Vec<u8> {
        let mut code = vec![0; MAX_INSTRUCTION_LEN];
        let n = self.memory.read_uncached(addr, &mut code);
        code.truncate(n);
        self.code.patches().mask(addr, &mut code);
        code
    }

    /// Whether a breakpoint may be written at `addr`: private code that nobody writes to. (What a program makes at run
    /// time may be writable: the caller of an allocator stays as it is until the call returns.)
    fn may_patch(&mut self, addr: Addr, helper: Option<&Helper<'_>>) -> Result<bool> {
        let patchable = |space: &Self| {
            let mapping = space.maps.find(addr)?;
            let may_be_written = mapping.kind == Kind::Anonymous && space.module_at(addr) == ModuleId::NONE;
            Some(mapping.perms.execute && !mapping.perms.shared && (!mapping.perms.write || may_be_written))
        };
        if let Some(answer) = patchable(self) {
            return Ok(answer);
        }
        let Some(Helper { thread, .. }) = helper else { return Ok(false) };
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
        self.code.own().add_region(start.add(first), zeros as u64, Some(module));
    }

    /// Lets the helping thread map memory for pads within reach of `near`.
    pub(super) fn map_pads(&mut self, near: Addr, helper: Option<&Helper<'_>>) -> Result<Placed> {
        let Some(&Helper { thread, resume }) = helper else { return Ok(Placed::NoRoom) };
        if self.pad_mappings.are_refused || procfs::has_seccomp(thread.tid()) {
            // A filter may kill the program for a system call that it would never make itself.
            self.pad_mappings.are_refused = true;
            return Ok(Placed::Impossible);
        }
        self.read_maps(thread.tid())?;
        let Some(gap) = self.maps.find_gap(near, PAD_MAPPING) else { return Ok(Placed::Impossible) };
        let Some(mut caller) = self.caller(thread, resume)? else { return Ok(Placed::Impossible) };
        match caller.map_code(gap, PAD_MAPPING)? {
            result if result.cast_unsigned() == gap.0 => {
                self.code.own().add_region(gap, PAD_MAPPING, None);
                self.pad_mappings.count += 1;
                Ok(Placed::Done(()))
            }
            result => {
                tracing::debug!("no memory for pads near {near}: {result}");
                self.pad_mappings.are_refused = true;
                Ok(Placed::Impossible)
            }
        }
    }

    /// Prepares a thread for a remote call, after which it goes on with the registers `resume`. None if there is no
    /// room.
    pub fn caller<'a>(&'a mut self, thread: &'a Stopped, resume: RawRegs) -> Result<Option<Caller<'a>>> {
        let Some(code) = self.code.remote_call(&mut self.memory)? else { return Ok(None) };
        Ok(Some(Caller { thread, resume, code, memory: &mut self.memory }))
    }

    /// The SIGTRAP fallback, ready to be installed; written at first use, to a module's slack. None if there is no
    /// room.
    pub fn sigtrap_fallback(&mut self) -> Result<Option<SigtrapFallback>> {
        self.code.sigtrap_fallback(&mut self.memory)
    }

    /// Tells a new guardian what stands in this memory, and whether the SIGTRAP fallback is installed.
    pub fn guard_anew(&self, installed: Option<SigtrapFallback>) {
        self.code.guard_anew(&self.memory, self.pid, installed);
    }

    /// Whether a program counter is in code of ours, and how one leaves it.
    pub fn locate(&self, pc: Addr) -> PcLocation {
        self.code.patches().locate(pc)
    }

    /// Ends the watch for returns to `addr`.
    pub fn unwatch_return(&mut self, addr: Addr) -> Result<()> {
        self.take_away(addr, |purposes| purposes.returns.then_some(Purpose::Return))
    }

    /// Takes one purpose from a breakpoint, and the breakpoint away with its last.
    pub(super) fn take_away(&mut self, addr: Addr, which: impl Fn(&Purposes) -> Option<Purpose>) -> Result<()> {
        let purpose = self.breakpoints.get(addr).and_then(|breakpoint| which(&breakpoint.purposes));
        if purpose.is_some_and(|purpose| !self.breakpoints.remove_purpose(addr, purpose)) {
            return self.lift(addr);
        }
        Ok(())
    }

    /// Takes one breakpoint away for good.
    pub fn lift(&mut self, addr: Addr) -> Result<()> {
        self.code.lift(&mut self.memory, addr)?;
        // Not before: what fails here must be known to whoever tries again.
        self.breakpoints.remove(addr);
        Ok(())
    }

    /// Writes all original bytes back, while threads may run, and remembers the addresses as removed. What fails is
    /// tried once more, and stays in the table if it fails again; the last error is returned then.
    pub fn restore(&mut self, threads: Threads) -> Result<()> {
        let mut result = Ok(());
        for _ in 0..2 {
            result = self.lift_jumps(threads);
            let all: Vec<_> = self.code.patches().iter().map(|(addr, _)| addr).collect();
            for addr in all {
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
    pub fn clear_own_code(&mut self, kept: Option<SigtrapFallback>) {
        if let Err(error) = write::clear_own(&mut self.memory, self.code.patches(), kept.map(|kept| kept.at)) {
            tracing::debug!("{error}");
        }
    }

    /// Bytes of the mappings that were made for pads. They stay behind, inert.
    pub const fn mapped_pad_bytes(&self) -> u64 {
        self.pad_mappings.count * PAD_MAPPING
    }

    /// Whether what is written to this address space shows in `other`: they are one. None if it can't be tried.
    pub fn is_seen_through(&mut self, other: &TargetMemory) -> Option<bool> {
        self.code.is_seen_through(&mut self.memory, other)
    }

    /// Whether the memory of process `pid` is a copy of this one, by the patches in it.
    pub fn is_copied_in(&self, pid: i32) -> bool {
        let Ok(memory) = TargetMemory::open(pid, pid) else { return false };
        self.code.patches().iter().any(|(addr, patch)| write::stands(&memory, addr, patch))
    }
}
