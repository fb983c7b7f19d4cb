//! What is watched in the C library besides the allocator: exec, as a program with other rights must not be traced,
//! ptrace, as a task can have one tracer only, mlockall, and changes of signal actions.

use super::AddressSpace;
use super::facts::Facts;
use super::named::ExecCall;
use super::probes::{Deferred, ToPlace};
use crate::base::addr::{Addr, LoadBias};
use crate::tracer::Result;
use crate::tracer::files::Executed;
use crate::tracer::rawregs::RawRegs;

impl AddressSpace {
    /// If the module is the C library: watches the program's changes of signal actions (`signal` calls `sigaction`,
    /// too), execve(2), ptrace(2) and mlockall(2).
    pub(super) fn watch_libc(&mut self, facts: &Facts, bias: LoadBias) -> Result<()> {
        if let Some(sigaction) = facts.named.sigaction {
            let addr = bias.to_process(sigaction);
            self.place_or_defer(Deferred { addr, to_place: ToPlace::SignalAction }, None)?;
        }
        for &(function, _) in &facts.named.exec_calls {
            let addr = bias.to_process(function);
            self.place_or_defer(Deferred { addr, to_place: ToPlace::Exec }, None)?;
        }
        if let Some(ptrace) = facts.named.ptrace {
            let addr = bias.to_process(ptrace);
            self.place_or_defer(Deferred { addr, to_place: ToPlace::OwnTracer }, None)?;
        }
        if let Some(mlockall) = facts.named.mlockall {
            let addr = bias.to_process(mlockall);
            self.place_or_defer(Deferred { addr, to_place: ToPlace::LocksMemory }, None)?;
        }
        Ok(())
    }

    /// Which file a thread is about to execute that stands at the entry `at` of one of the
    /// [`super::named::EXEC_CALLS`].
    pub fn executed(&mut self, raw: &RawRegs, at: Addr) -> Option<Executed> {
        let (first, second) = (raw.0.rdi, raw.0.rsi);
        // An int, in the lower half.
        let descriptor = (first as u32).cast_signed();
        Some(match self.module(at)?.exec_calls.get(&at)? {
            ExecCall::Path => Executed { start: None, path: self.memory.read_c_string(Addr(first))? },
            ExecCall::PathFrom => Executed {
                start: Some(descriptor).filter(|descriptor| *descriptor >= 0),
                path: self.memory.read_c_string(Addr(second))?,
            },
            ExecCall::Open => Executed { start: Some(descriptor), path: Vec::new() },
        })
    }
}
