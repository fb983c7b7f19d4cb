//! What a detach undoes in a process, and what is known of what it could not.

use super::ask::Asked;
use crate::session::process::Process;
use crate::session::signalstate::SIGTRAP_BIT;
use crate::session::tasks::Task;
use crate::session::teardown::Teardown;
use crate::session::tracee::Tracee;
use crate::tracer::procfs;
use crate::tracer::status::{SIGTRAP, WaitStatus};

impl Teardown {
    /// Writes the original code back, as far as that can be done now. What was recorded must be settled.
    pub(super) fn restore_code(&mut self, tracee: &mut Tracee) {
        if let Err(error) = tracee.space.restore(tracee.whose_threads()) {
            tracing::warn!("the target's code could not be restored: {error}");
            // A process that dies of it takes its memory with it: what was missing must be known then.
            self.unrestored_probes = tracee.space.breakpoints.len();
        } else if self.exit.is_none() && procfs::state(tracee.pid, tracee.pid).is_some() {
            self.unrestored_probes = 0;
        }
    }
}

impl Process {
    /// Whether a thread that is about to be detached from stays stopped until all others have gone: it then takes the
    /// handler for SIGTRAP out.
    pub(super) fn stays_until_last(&mut self, tid: i32, status: WaitStatus) -> bool {
        let fits = matches!(status, WaitStatus::Signal(SIGTRAP) | WaitStatus::EventStop | WaitStatus::GroupStop(_));
        let goes_last = fits
            && self.teardown.last_to_detach.is_none()
            && self.keeps_handler_to_the_last()
            && self.tracee.tasks.is_own_thread(tid)
            && self.has_last_calls()
            && self.tracee.tasks.len() > 1;
        if goes_last {
            self.teardown.last_to_detach = Some((tid, status));
        }
        goes_last
    }

    /// Whether the handler for SIGTRAP must be there until no other thread may be at a breakpoint. Where others are
    /// traced on, each thread is waited for however long it takes, so none of them needs it: the tracer takes its trap.
    /// But where the signal is ignored, a trap resets that; and others may return through memory that the last one
    /// unmaps.
    fn keeps_handler_to_the_last(&self) -> bool {
        self.ignores_trap() || !self.teardown.detaching || self.teardown.has_memory_to_unmap(&self.tracee)
    }

    /// Whether the handler for SIGTRAP stays for now, as others than this thread may still be at a breakpoint.
    pub(in crate::session) fn keeps_handler_for_others(&self, tid: i32) -> bool {
        let is_last = self.teardown.last_to_detach.is_some_and(|(last, _)| last == tid);
        self.keeps_handler_to_the_last() && self.tracee.tasks.len() > 1 && (!is_last || self.teardown.threads_awaited)
    }

    /// Every thread was seen outside the pads: empties them, but for the SIGTRAP fallback if it could not be taken out.
    pub(super) fn clear_pads(&mut self) {
        let others =
            || self.tracee.space.code.known_sigtrap_fallback().filter(|_| self.is_sigtrap_fallback_in_sharers());
        let kept = self.signals.fallback.handler().or_else(others);
        self.tracee.space.clear_own_code(kept);
    }

    /// At the end of a detach: which threads could not be detached from. If there are none, the pads are emptied.
    pub(super) fn note_stuck_threads(&mut self, asked: &Asked) {
        let sleeps = |task: &&Task| asked.asleep.contains(&task.id.tid);
        self.teardown.stuck_threads = self.tracee.tasks.len() - self.tracee.tasks.iter().filter(sleeps).count();
        if self.teardown.stuck_threads > 0 {
            tracing::warn!("{} threads could not be stopped for the detach", self.teardown.stuck_threads);
        } else {
            // Every thread has now been seen outside the pads, and none can enter one any more.
            self.clear_pads();
        }
        let is_caught = procfs::status_signals(self.tracee.pid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        let filters = self.signals.fallback.handler().is_some() && procfs::has_seccomp(self.tracee.pid);
        if is_caught && (filters || self.has_handler_to_uninstall()) {
            let why = if filters {
                "it filters its system calls by now (seccomp)"
            } else {
                "none of its threads could be stopped to take it out"
            };
            self.tracee.warn_once(format!(
                "the handler for SIGTRAP stays behind in process {}, as {why}: a SIGTRAP of its own would not end it",
                self.tracee.pid
            ));
        }
        self.note_trap_action_left();
        self.teardown.note_added_memory_left(&mut self.tracee);
    }
}
