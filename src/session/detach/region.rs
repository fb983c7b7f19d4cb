//! The memory that the jump engine has added to a process: a detach unmaps it, by the thread that is detached from
//! last, as that thread takes the handler for SIGTRAP out. What a thread may still return through stays, and the
//! summary says so; the next heaptrace unmaps that.

use crate::jump::layout::{REGION_SIZE, SHARED_SIZE};
use crate::session::addedmemory::{AddedMemory, Stays};
use crate::session::jump::JumpEngine;
use crate::session::teardown::Teardown;
use crate::session::tracee::Tracee;
use crate::tracer::ptrace::Stopped;
use crate::tracer::{TracerError, insist, procfs};

impl Teardown {
    /// A detach begins.
    pub(super) fn note_added_memory(&mut self, tracee: &Tracee, jump: &JumpEngine) {
        let was_left = || tracee.space.image.mappings().iter().any(crate::image::maps::Mapping::is_heaptrace_s);
        let is_there = jump.on().is_some() || was_left();
        if matches!(self.added, AddedMemory::None | AddedMemory::Shared) && is_there {
            let is_shared = tracee.tasks.has_sharers();
            self.added = if is_shared { AddedMemory::Shared } else { AddedMemory::Mapped };
        }
    }

    /// Whether a detach has to unmap some. Where the code could not be restored, jumps still lead there.
    pub(super) fn has_memory_to_unmap(&self, tracee: &Tracee) -> bool {
        let is_to_go = match self.added {
            AddedMemory::Mapped | AddedMemory::Failed => true,
            // who shared it may have gone meanwhile, as a child in vfork
            AddedMemory::Shared => !tracee.tasks.has_sharers(),
            AddedMemory::None | AddedMemory::Seen(_) => false,
        };
        let is_restored = self.unrestored_probes == 0;
        is_to_go && is_restored && self.exit.is_none() && !procfs::has_seccomp(tracee.pid)
    }

    /// The process was detached from: tells of what is still mapped.
    pub(super) fn note_added_memory_left(&self, tracee: &mut Tracee) {
        if self.exit.is_some() || procfs::state(tracee.pid, tracee.pid).is_none() {
            return;
        }
        if self.unrestored_probes > 0 && self.added == AddedMemory::Mapped {
            // That the process is damaged is said elsewhere.
            return;
        }
        let filters = || procfs::has_seccomp(tracee.pid);
        let Some((bytes, why)) = left_mapped(self.added, filters) else { return };
        tracee.warn_once(format!(
            "{} KiB of memory that heaptrace has added to process {} stay mapped, as {why}: the next heaptrace that \
             attaches to it unmaps what is no longer needed",
            bytes / 1024,
            tracee.pid
        ));
    }

    /// `thread` is about to be detached from, as the last one that does not sleep. False: it will stop once more.
    pub(super) fn unmap_added_memory(&mut self, tracee: &mut Tracee, jump: &JumpEngine, thread: &Stopped) -> bool {
        if !self.has_memory_to_unmap(tracee) {
            return true;
        }
        let unmapped = insist(|| {
            let resume = tracee.resume_registers(thread)?;
            jump.unmap_regions(tracee, thread, resume)
        });
        match unmapped {
            Ok(stays) => self.added = AddedMemory::Seen(stays),
            Err(TracerError::Unresponsive { .. }) => return false,
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => {
                tracing::warn!("{error}");
                self.added = AddedMemory::Failed;
            }
        }
        true
    }
}

/// How many bytes stay mapped, and why. `filters`: whether the process filters its system calls.
fn left_mapped(added: AddedMemory, filters: impl Fn() -> bool) -> Option<(u64, &'static str)> {
    let all = REGION_SIZE + SHARED_SIZE;
    Some(match added {
        AddedMemory::None | AddedMemory::Seen(Stays { needed: 0, refused: 0 }) => return None,
        AddedMemory::Seen(Stays { needed, refused: 0 }) => (needed, "a thread may still return through it"),
        AddedMemory::Seen(Stays { needed: 0, refused }) => (
            refused,
            "the thread that was to unmap it could not make that system call (seccomp, or no room in the code)",
        ),
        AddedMemory::Seen(Stays { needed, refused }) => (
            needed + refused,
            "a thread may still return through a part, and the one that was to unmap the rest could not make that system call (seccomp, or no room in the code)",
        ),
        AddedMemory::Shared => (all, "other processes share its memory, and may return through it"),
        AddedMemory::Mapped | AddedMemory::Failed if filters() => (all, "it now filters its system calls (seccomp)"),
        AddedMemory::Failed => (all, "an attempt to unmap it has failed"),
        AddedMemory::Mapped => (all, "none of its threads could be stopped to unmap it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_named_with_its_own_reason() {
        let all = REGION_SIZE + SHARED_SIZE;
        let told = |added| left_mapped(added, || false);
        let seen = |needed, refused| told(AddedMemory::Seen(Stays { needed, refused }));
        assert_eq!(told(AddedMemory::None), None);
        assert_eq!(seen(0, 0), None);
        let several = [seen(1, 0), seen(0, 1), seen(1, 1), told(AddedMemory::Shared), told(AddedMemory::Failed)];
        let several: Vec<_> = several.into_iter().chain([told(AddedMemory::Mapped)]).map(Option::unwrap).collect();
        assert_eq!(several.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), [1, 1, 2, all, all, all]);
        let reasons: std::collections::BTreeSet<_> = several.iter().map(|(_, why)| *why).collect();
        assert_eq!(reasons.len(), several.len());
    }
}
