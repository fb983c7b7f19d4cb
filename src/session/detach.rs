//! Letting go of the target so that it never notices.
//!
//! The order is that of hazards.md section 7: original bytes first, while threads run; then every thread that could be
//! standing in a breakpoint's trap or in a pad is moved to the original code; sleeping threads are left alone, because a
//! PTRACE_INTERRUPT would end epoll_wait and its kin early: the kernel detaches them when the tracer thread ends.

use super::hit::{is_own_trap, leave_pad};
use super::{Session, SessionError};
use crate::addr::Addr;
use crate::tracer::procfs::{self, Whereabouts};
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long threads that run are waited for before the detach goes on without them. They only fail to stop in an
/// uninterruptible sleep, in which they can't hit anything either.
const PATIENCE: Duration = Duration::from_secs(5);

impl Session {
    /// Restores the target's code and lets all its tasks go. Afterwards the tracer thread must end.
    pub(super) fn detach(&mut self) -> Result<(), SessionError> {
        self.unpin();
        self.restore_code();
        for (tid, status, stopped) in std::mem::take(&mut self.waiting) {
            self.let_go(tid, status, stopped);
        }
        let mut settled = BTreeSet::new();
        let mut asked = BTreeSet::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.drain_detaching()?;
            let mut waiting = !self.expected.is_empty();
            for tid in self.tasks.tids() {
                if settled.contains(&tid) {
                    continue;
                }
                let Some(task) = self.tasks.get(tid).copied() else { continue };
                let group = procfs::thread_group(tid).unwrap_or(self.pid);
                match procfs::state(group, tid) {
                    None | Some(b'Z' | b'X') => {
                        self.tasks.remove(tid);
                        continue;
                    }
                    Some(b'S' | b'D' | b'I') if !self.exit_kill && self.stands_clear(group, tid) => {
                        settled.insert(tid);
                        continue;
                    }
                    Some(_) if task.listening && !self.exit_kill && !procfs::has_pending(tid, SIGTRAP) => {
                        // Its registers were seen, and if need be moved, when it entered the group stop.
                        settled.insert(tid);
                        continue;
                    }
                    Some(_) => {}
                }
                waiting = true;
                if asked.insert(tid) {
                    self.interrupt(tid)?;
                }
            }
            if !waiting {
                break;
            }
            if Instant::now() > deadline {
                tracing::warn!("{} threads could not be stopped for the detach", self.tasks.len() - settled.len());
                break;
            }
            std::thread::yield_now();
        }
        // Every thread has now been seen outside the pads, and none can enter one any more.
        if self.tasks.iter().all(|task| settled.contains(&task.id.tid)) {
            self.space.clear_pads();
        }
        self.drain_detaching()
    }

    /// Whether a sleeping thread stands neither in a pad nor behind a breakpoint that it has just hit.
    fn stands_clear(&self, group: i32, tid: i32) -> bool {
        match procfs::whereabouts(group, tid) {
            Whereabouts::Blocked { pc, .. } => {
                self.space.pad_resume(pc).is_none() && !self.space.breakpoints.was_removed(pc.sub(1))
            }
            Whereabouts::Running | Whereabouts::Unknown => false,
        }
    }

    /// Takes all stops that are waiting and detaches from those tasks.
    pub(super) fn drain_detaching(&mut self) -> Result<(), SessionError> {
        loop {
            match ptrace::wait(false)? {
                Waited::Task(tid, status, Some(stopped)) => self.let_go(tid, status, stopped),
                Waited::Task(tid, status, None) => self.note_end(tid, status),
                Waited::Nothing | Waited::NoTasks => return Ok(()),
                Waited::Interrupted => {}
            }
        }
    }

    fn let_go(&mut self, tid: i32, status: WaitStatus, stopped: Stopped) {
        if let Err(error) = self.detach_stopped(tid, status, stopped)
            && !error.is_death()
        {
            tracing::warn!("{error}");
        }
    }

    fn detach_stopped(&mut self, tid: i32, status: WaitStatus, thread: Stopped) -> crate::tracer::Result<()> {
        let signal = match status {
            WaitStatus::Signal(signal) => {
                let raw = thread.registers()?;
                let trap = Addr(raw.0.rip.wrapping_sub(1));
                if signal == SIGTRAP && self.space.breakpoints.was_removed(trap) && is_own_trap(&thread) {
                    thread.set_instruction_pointer(trap.0)?;
                    0
                } else {
                    self.leave_pad(&thread)?;
                    signal
                }
            }
            // The stop was reported before the trap that the thread has run into: without us it would die of that.
            WaitStatus::GroupStop(_) | WaitStatus::EventStop if self.stands_behind_trap(&thread)? => {
                return thread.resume(0);
            }
            WaitStatus::GroupStop(_) => {
                // Detaching from a group stop leaves the process stopped, as it should be.
                self.leave_pad(&thread)?;
                0
            }
            WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone) => {
                // The new task stops by itself, and is waited for.
                self.announce(&thread)?;
                0
            }
            WaitStatus::Event(Event::Exec) => {
                // A new image: nothing of ours is in it.
                0
            }
            WaitStatus::Event(_) => 0,
            _ => {
                self.detach_new_child(tid);
                self.leave_pad(&thread)?;
                if self.tasks.get(tid).is_some_and(|task| task.interrupted) {
                    thread.restart_interrupted_call()?;
                }
                0
            }
        };
        self.tasks.remove(tid);
        self.restore_affinity(tid);
        thread.detach(signal)
    }

    /// Whether a thread has hit a breakpoint, whose signal still waits to be delivered.
    fn stands_behind_trap(&self, thread: &Stopped) -> crate::tracer::Result<bool> {
        let trap = Addr(thread.registers()?.0.rip.wrapping_sub(1));
        Ok(self.space.breakpoints.was_removed(trap) && procfs::has_pending(thread.tid(), SIGTRAP))
    }

    /// Moves a stopped thread out of a pad, to the original code.
    fn leave_pad(&self, thread: &Stopped) -> crate::tracer::Result<()> {
        let raw = thread.registers()?;
        match self.space.pad_resume(Addr(raw.0.rip)) {
            Some(resume) => leave_pad(thread, &raw, resume),
            None => Ok(()),
        }
    }
}
