//! The memory that the jump engine has added to a process: a detach unmaps it, by the thread that is detached from last, as that thread takes the handler for SIGTRAP out. What
//! a thread may still return through stays, and is told; the next heaptrace unmaps that.

use crate::jump::layout::{REGION_SIZE, SHARED_SIZE};
use crate::session::process::Process;
use crate::tracer::ptrace::Stopped;
use crate::tracer::{TracerError, insist, procfs};

/// What has become of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::session) enum AddedMemory {
    /// There is none, or it is not known yet.
    #[default]
    None,
    /// It is to be unmapped.
    Mapped,
    /// It was looked at: so many bytes of it stay.
    Seen(u64),
}

impl Process {
    /// A detach begins.
    pub(super) fn note_added_memory(&mut self) {
        let was_left = || self.space.mappings().iter().any(crate::maps::Mapping::is_heaptrace_s);
        let is_there = self.jump.on().is_some() || was_left();
        if self.teardown.added == AddedMemory::None && is_there && !self.tasks.has_sharers() {
            self.teardown.added = AddedMemory::Mapped;
        }
    }

    /// Whether a detach has to unmap some. Where the code could not be restored, jumps still lead there.
    pub(in crate::session) fn has_memory_to_unmap(&self) -> bool {
        let teardown = &self.teardown;
        let is_wanted = teardown.added == AddedMemory::Mapped && teardown.exit.is_none();
        is_wanted && teardown.unrestored_probes == 0 && !procfs::has_seccomp(self.pid)
    }

    /// Whether the last thread that is detached from has to make system calls before.
    pub(in crate::session) fn has_last_calls(&self) -> bool {
        self.has_handler_to_uninstall() || self.has_memory_to_unmap()
    }

    /// `thread` is about to be detached from, as the last one that does not sleep. False: it will stop once more.
    pub(in crate::session) fn unmap_added_memory(&mut self, thread: &Stopped) -> bool {
        if !self.has_memory_to_unmap() {
            return true;
        }
        let unmapped = insist(|| {
            let resume = self.resume_registers(thread)?;
            self.unmap_regions(thread, resume)
        });
        match unmapped {
            Ok(stays) => self.teardown.added = AddedMemory::Seen(stays),
            Err(TracerError::Unresponsive { .. }) => return false,
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => tracing::warn!("{error}"),
        }
        true
    }

    /// The process was detached from: tells of what is still mapped.
    pub(super) fn note_added_memory_left(&mut self) {
        if self.teardown.exit.is_some() || procfs::state(self.pid, self.pid).is_none() {
            return;
        }
        let (bytes, why) = match self.teardown.added {
            AddedMemory::None | AddedMemory::Seen(0) => return,
            AddedMemory::Seen(bytes) => (bytes, "a thread may still return through it"),
            AddedMemory::Mapped if procfs::has_seccomp(self.pid) => {
                (REGION_SIZE + SHARED_SIZE, "it filters its system calls by now (seccomp)")
            }
            AddedMemory::Mapped if self.teardown.unrestored_probes > 0 => {
                (REGION_SIZE + SHARED_SIZE, "its code could not be restored")
            }
            AddedMemory::Mapped => (REGION_SIZE + SHARED_SIZE, "none of its threads could be stopped to unmap it"),
        };
        self.warn_once(format!(
            "{} KiB of memory that heaptrace has added to process {} stay mapped, as {why}: the next heaptrace that attaches to it unmaps what is not needed any more",
            bytes / 1024,
            self.pid
        ));
    }
}
