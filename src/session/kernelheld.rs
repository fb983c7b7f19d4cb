//! What the kernel holds for a process that ends: its threads are asked for their signal stacks, too.
//!
//! A thread that lives on is not asked: a system call that it waits in would begin anew for it.

use super::process::Process;
use super::stops::Stops;
use crate::addr::Addr;
use crate::leaks::KernelHeld;
use crate::maps::Mapping;
use crate::patches::PcLocation;
use crate::tracer::kernelheld::{self, Held};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, TracerError};
use std::ops::Range;

/// Signal stacks of threads, by their ids.
pub(super) type SignalStacks = Vec<(i32, Range<Addr>)>;

impl Process {
    /// What the kernel tells of the process, which has these mappings. `live`: a thread that lives; `signal_stacks`:
    /// those of its threads, if all could be asked.
    pub(super) fn held_by_kernel(live: i32, mappings: &[Mapping], signal_stacks: Option<SignalStacks>) -> KernelHeld {
        let Held { timers, epoll, has_aio, has_io_uring } = kernelheld::of(live, mappings);
        let mut held = KernelHeld::new(timers, epoll, has_aio, has_io_uring);
        held.add_signal_stacks(signal_stacks);
        held
    }

    /// Has `own`, which stands at a breakpoint of ours, and all threads that heaptrace has interrupted ask for their
    /// signal
    /// stacks. None: not all could.
    ///
    /// # Errors
    /// What was reported of `own` instead.
    pub(super) fn signal_stacks(&mut self, own: &Stopped, stops: &mut Stops) -> Result<Option<SignalStacks>> {
        let mut stacks = Vec::new();
        let resume = self.resume_registers(own)?;
        let mut all = match self.signal_stack(own, resume) {
            Ok(Some(stack)) => {
                stacks.extend(stack.map(|stack| (own.tid(), stack)));
                true
            }
            Ok(None) => false,
            Err(error @ TracerError::Overtaken { .. }) => return Err(error),
            Err(error) => {
                tracing::debug!("{error}");
                false
            }
        };
        let mut overtaken = Vec::new();
        for (tid, status, thread) in &stops.waiting {
            if !self.is_own_thread(*tid) {
                continue;
            }
            let resume = if *status == WaitStatus::EventStop { self.can_be_asked(thread) } else { None };
            match resume.map(|resume| self.signal_stack(thread, resume)) {
                Some(Ok(Some(stack))) => stacks.extend(stack.map(|stack| (*tid, stack))),
                Some(Err(TracerError::Overtaken { tid, status })) => overtaken.push((tid, status)),
                None | Some(Ok(None) | Err(_)) => all = false,
            }
        }
        overtaken.into_iter().for_each(|(tid, status)| stops.overtake(tid, status));
        Ok(all.then_some(stacks))
    }

    /// The registers with which a thread goes on that heaptrace has interrupted; None: it stands in code of ours.
    fn can_be_asked(&self, thread: &Stopped) -> Option<RawRegs> {
        let raw = thread.registers().ok()?;
        let resume = raw.repeating_system_call().unwrap_or(raw);
        (self.space.locate(Addr(resume.0.rip)) == PcLocation::Program).then_some(resume)
    }

    fn signal_stack(&mut self, thread: &Stopped, resume: RawRegs) -> Result<Option<Option<Range<Addr>>>> {
        let Some(mut caller) = self.space.caller(thread, resume)? else { return Ok(None) };
        kernelheld::signal_stack(&mut caller)
    }
}
