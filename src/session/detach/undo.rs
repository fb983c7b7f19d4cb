//! What a detach undoes in a process, and what is known of what it could not.

use super::ask::Asked;
use crate::session::jump::JumpEngine;
use crate::session::sigtrap::{SIGTRAP_BIT, SigtrapGuard};
use crate::session::tasks::Task;
use crate::session::teardown::Teardown;
use crate::session::tracee::Tracee;
use crate::tracer::ptrace::Stopped;
use crate::tracer::status::{SIGTRAP, WaitStatus};
use crate::tracer::{Result, TracerError, insist, procfs};

impl Teardown {
    /// Writes the original code back, as far as that can be done now. What was recorded must be settled.
    pub(super) fn restore_code(&mut self, tracee: &mut Tracee) {
        if let Err(error) = tracee.space.restore(tracee.whose_threads()) {
            tracing::warn!("the target's code could not be restored: {error}");
            // A process that dies of it takes its memory with it: what was missing must be known then.
            self.unrestored_probes = tracee.space.probes.breakpoints.len();
        } else if self.exit.is_none() && procfs::state(tracee.pid, tracee.pid).is_some() {
            self.unrestored_probes = 0;
        }
    }

    /// Whether the last thread that is detached from has to make system calls before.
    pub(super) fn has_last_calls(&self, tracee: &Tracee, sigtrap: &SigtrapGuard) -> bool {
        sigtrap.has_handler_to_uninstall(tracee, self) || self.has_memory_to_unmap(tracee)
    }

    /// The same, if this thread can make them. It may have been seen for the first time just now.
    pub(super) fn has_last_calls_for(&self, tracee: &Tracee, sigtrap: &SigtrapGuard, tid: i32) -> Result<bool> {
        if procfs::thread_group(tid)? == Some(tracee.pid) {
            return Ok(self.has_last_calls(tracee, sigtrap));
        }
        Ok(!tracee.shares_trap_action(tid) && sigtrap.has_fallback_of_sharer(tracee, tid))
    }

    /// A thread is about to be detached from at this stop, where all original bytes are back: if it is one at which it
    /// can make a system call, it takes the handler out. False if it is still about to: it will stop once more.
    pub(super) fn make_last_calls(
        &mut self,
        tracee: &mut Tracee,
        sigtrap: &mut SigtrapGuard,
        jump: &JumpEngine,
        status: WaitStatus,
        thread: &Stopped,
    ) -> bool {
        let fits = matches!(status, WaitStatus::Signal(SIGTRAP) | WaitStatus::EventStop | WaitStatus::GroupStop(_));
        if !fits || !self.has_last_calls_for(tracee, sigtrap, thread.tid()).unwrap_or(false) {
            return true;
        }
        let shares = tracee.shares_trap_action(thread.tid());
        if shares && self.keeps_handler_for_others(tracee, sigtrap, thread.tid()) {
            return true;
        }
        let retired = insist(|| match shares {
            true if !sigtrap.has_handler_to_uninstall(tracee, self) => Ok(()),
            true => sigtrap.uninstall_fallback(tracee, thread),
            false => sigtrap.uninstall_fallback_of_sharer(tracee, thread),
        });
        match retired {
            Err(TracerError::Unresponsive { .. }) => return false,
            Err(error) if !error.is_out_of_reach() => tracing::warn!("{error}"),
            _ => {}
        }
        !shares || self.unmap_added_memory(tracee, jump, thread)
    }

    /// Whether a thread that is about to be detached from stays stopped until all others have gone: it then takes the
    /// handler for SIGTRAP out.
    pub(super) fn stays_until_last(
        &mut self,
        tracee: &Tracee,
        sigtrap: &SigtrapGuard,
        tid: i32,
        status: WaitStatus,
    ) -> bool {
        let fits = matches!(status, WaitStatus::Signal(SIGTRAP) | WaitStatus::EventStop | WaitStatus::GroupStop(_));
        let goes_last = fits
            && self.last_to_detach.is_none()
            && self.keeps_handler_to_the_last(tracee, sigtrap)
            && tracee.tasks.is_own_thread(tid)
            && self.has_last_calls(tracee, sigtrap)
            && tracee.tasks.len() > 1;
        if goes_last {
            self.last_to_detach = Some((tid, status));
        }
        goes_last
    }

    /// Whether the handler for SIGTRAP must be there until no other thread may be at a breakpoint. Where others are
    /// traced on, each thread is waited for however long it takes, so none of them needs it: the tracer takes its trap.
    /// But where the signal is ignored, a trap resets that; and others may return through memory that the last one
    /// unmaps.
    fn keeps_handler_to_the_last(&self, tracee: &Tracee, sigtrap: &SigtrapGuard) -> bool {
        sigtrap.ignores_trap() || !self.detaching || self.has_memory_to_unmap(tracee)
    }

    /// Whether the handler for SIGTRAP stays for now, as others than this thread may still be at a breakpoint.
    fn keeps_handler_for_others(&self, tracee: &Tracee, sigtrap: &SigtrapGuard, tid: i32) -> bool {
        let is_last = self.last_to_detach.is_some_and(|(last, _)| last == tid);
        self.keeps_handler_to_the_last(tracee, sigtrap) && tracee.tasks.len() > 1 && (!is_last || self.threads_awaited)
    }

    /// At the end of a detach: which threads could not be detached from. If there are none, the pads are emptied.
    pub(super) fn note_stuck_threads(&mut self, tracee: &mut Tracee, sigtrap: &SigtrapGuard, asked: &Asked) {
        let sleeps = |task: &&Task| asked.asleep.contains(&task.id.tid);
        self.stuck_threads = tracee.tasks.len() - tracee.tasks.iter().filter(sleeps).count();
        if self.stuck_threads > 0 {
            tracing::warn!("{} threads could not be stopped for the detach", self.stuck_threads);
        } else {
            // Every thread has now been seen outside the pads, and none can enter one any more.
            sigtrap.clear_pads(tracee);
        }
        let is_caught = procfs::status_signals(tracee.pid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        let filters = sigtrap.handler().is_some() && procfs::has_seccomp(tracee.pid);
        if is_caught && (filters || sigtrap.has_handler_to_uninstall(tracee, self)) {
            let why = if filters {
                "it now filters its system calls (seccomp)"
            } else {
                "none of its threads could be stopped to remove it"
            };
            tracee.warn_once(format!(
                "heaptrace's handler for SIGTRAP stays in process {}, as {why}: a SIGTRAP of its own would not end it",
                tracee.pid
            ));
        }
        sigtrap.note_trap_action_left(tracee);
        self.note_added_memory_left(tracee);
    }
}
