//! What of ours stands in the code besides breakpoints: places for remote calls, the SIGTRAP fallback, the jump
//! engine's switches.

use crate::base::addr::{Addr, ModuleId};
use crate::breakpoints::patches::PcLocation;
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;
use crate::tracer::Result;
use crate::tracer::code::write;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::remote::Caller;
use crate::tracer::sigtrap_fallback::SigtrapFallback;

impl Image {
    /// Whether our int3 is gone from `addr`, where none is meant to be any more. In code that is made at run time the
    /// program may have put it back unknowingly, by writing what it had read before: then it is taken away again.
    pub fn is_clean(&mut self, modules: &Modules, addr: Addr) -> Result<bool> {
        if !self.code.has_returned(&self.memory, addr) {
            return Ok(true);
        }
        if modules.module_at(addr) != ModuleId::NONE {
            return Ok(false);
        }
        self.code.lift_returned(&mut self.memory, addr)?;
        Ok(true)
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

    /// Whether what is written to this address space shows in `other`: they are one. None if it can't be tried.
    pub fn is_seen_through(&mut self, other: &TargetMemory) -> Option<bool> {
        self.code.is_seen_through(&mut self.memory, other)
    }

    /// Whether the memory of process `pid` is a copy of this one, by the patches in it.
    pub fn is_copied_in(&self, pid: i32) -> bool {
        let Ok(memory) = TargetMemory::open(pid, pid) else { return false };
        self.code.patches().iter().any(|(addr, patch)| write::stands(&memory, addr, patch))
    }

    /// Puts int3s where the jumps were, in a process whose only task is stopped: its functions are seen by the trap
    /// engine again. Threads that get to a moved instruction run it in its pad as before.
    pub fn end_jumps(&mut self) -> Result<()> {
        self.code.end_jumps(&mut self.memory)
    }

    /// Where the program's code goes on behind the instructions of the function at `entry` that were moved.
    pub fn moved_end(&self, entry: Addr) -> Option<Addr> {
        self.code.patches().own.moved_end(entry)
    }

    /// The stubs pass all calls through from here on.
    pub fn stop_routine(&mut self) -> Result<()> {
        let switches = self.code.patches().iter().filter(|(_, patch)| patch.is_switch());
        let all: Vec<_> = switches.map(|(addr, _)| addr).collect();
        all.into_iter().try_for_each(|addr| self.code.lift(&mut self.memory, addr))
    }

    /// The routine is not there any more: nothing of it is written to from here on.
    pub fn forget_routine(&mut self) -> Result<()> {
        let switches = self.code.patches().iter().filter(|(_, patch)| patch.is_switch());
        let all: Vec<_> = switches.map(|(addr, _)| addr).collect();
        for addr in all {
            self.code.forget_if_overwritten(&self.memory, addr);
        }
        Ok(())
    }
}
