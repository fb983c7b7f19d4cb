//! Children that ask to be traced by their parents, as those of debuggers do: a task can have one tracer only, so that they are
//! detached from before they ask.

use super::observer::Seen;
use super::process::Process;
use super::stops::Stops;
use super::tasks::Role;
use crate::event::EventKind;
use crate::tracer::Result;
use crate::tracer::ptrace::{RawRegs, Stopped};

/// PTRACE_TRACEME of <sys/ptrace.h>.
const TRACEME: u32 = 0;

impl Process {
    /// Whether a task at the entry of ptrace(2) asks to be traced by its parent, and can be detached from before it does: a followed
    /// child with one thread, or a child in vfork(2), whose parent tells when it no longer shares the memory.
    pub(super) fn is_about_to_be_traced(&self, tid: i32, raw: &RawRegs, stops: &Stops) -> bool {
        raw.0.rdi as u32 == TRACEME
            && self.tasks.get(tid).is_some_and(|task| match task.role {
                Role::VmSharer => stops.is_in_vfork(tid),
                Role::Thread => self.identity.parent.is_some() && self.tasks.len() == 1,
            })
    }

    /// Clears the way for a child in vfork(2) that is about to be detached from.
    pub(super) fn set_aside_for(&mut self, child: i32) -> Result<()> {
        self.space.set_aside_for(child)?;
        if self.tasks.iter().filter(|task| task.role == Role::Thread).count() > 1 {
            self.observer.observe(Seen::Told(EventKind::Unobserved));
            self.space.blind(
                "a child was let go, as its parent was to trace it: what other threads allocated and freed before it had \
                 executed its program was not seen"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// A thread comes back from vfork(2): its child no longer shares the memory.
    pub(super) fn on_vfork_done(&mut self, tid: i32, thread: &Stopped, stops: &mut Stops) -> Result<()> {
        let Ok(child) = i32::try_from(thread.event_message()?) else { return Ok(()) };
        stops.end_vfork(child);
        if self.space.is_aside_for(child) {
            self.space.memory.new_stop(tid);
            self.refresh_modules(tid);
            self.space.take_up_after(child)?;
            self.observer.observe(Seen::Told(EventKind::Unobserved));
        }
        Ok(())
    }
}
