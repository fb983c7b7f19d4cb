//! How a process ends, or leaves the tracing, and what could not be undone then.

use super::addedmemory::AddedMemory;
use super::aftermath::TargetState;
use super::tracee::Tracee;
use crate::profile::Exit;
use crate::tracer::procfs;
use crate::tracer::status::WaitStatus;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Teardown {
    /// How it ended, once it has.
    pub(super) exit: Option<Exit>,
    /// How a thread ended that a signal has ended.
    pub(super) killed_by: Option<Exit>,
    /// The kernel would kill it with us.
    pub(super) exit_kill: bool,
    /// Whether it was detached from while it lived, or is about to be.
    pub(super) detached: bool,
    /// Whether that was before it became a program with other rights, or was traced by another process.
    pub(super) detached_early: bool,
    /// Whether it is being detached from while others are traced on.
    pub(super) detaching: bool,
    /// The thread that is detached from last, with the stop that it waits in.
    pub(super) last_to_detach: Option<(i32, WaitStatus)>,
    /// Whether some of its threads had not stopped to be detached from, and did not sleep elsewhere either, when that
    /// was last looked at.
    pub(super) threads_awaited: bool,
    /// The memory that the jump engine has added.
    pub(super) added: AddedMemory,
    /// Probes that could not be taken out of the code of a process that lives on.
    pub(super) unrestored_probes: usize,
    /// Threads that could not be stopped to be detached from.
    pub(super) stuck_threads: usize,
}

impl Teardown {
    /// What has become of the process when nothing of ours is to be done any more.
    pub(super) fn aftermath(&self, tracee: &Tracee) -> TargetState {
        let pid = tracee.pid;
        let is_gone = tracee.tasks.is_empty() && matches!(procfs::state(pid, pid), None | Some(b'Z' | b'X'));
        let (probes, threads) = (self.unrestored_probes, self.stuck_threads);
        match (self.exit.is_some() || is_gone, probes, threads) {
            (true, 0, _) => TargetState::Ended,
            (true, ..) => TargetState::Killed { pid, probes },
            (false, 0, 0) => TargetState::Restored { pid },
            (false, ..) => TargetState::Damaged { pid, probes, threads },
        }
    }
}
