//! Letting go of the target so that it never notices.
//!
//! The order is that of hazards.md section 7: original bytes first, while threads run; then every thread that could be
//! standing in a breakpoint's trap or in a pad is moved to the original code; sleeping threads are left alone, because a
//! PTRACE_INTERRUPT would end epoll_wait and its kin early: the kernel detaches them when the tracer thread ends.

use super::hit::{leave_pad, pass_trap_to};
use super::retry::NobodyLeft;
use super::tasks::Task;
use super::{Action, Serving, Session, SessionError};
use crate::addr::Addr;
use crate::tracer::procfs::{self, Whereabouts};
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long threads that run are waited for before the detach goes on without them. They only fail to stop in an
/// uninterruptible sleep, in which they can't hit anything either.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a request is repeated on which a task's life depends.
const ATTEMPTS: u32 = 3;

/// How a stopped task leaves the tracing.
enum Parting {
    /// Detached, with this signal delivered.
    Detach(i32),
    /// Not yet: it runs on, with this signal delivered, into a stop that is about to be reported.
    RunOn(i32),
}

impl Session {
    /// Restores the target's code and lets all its tasks go. Afterwards the tracer thread must end. May be called again if
    /// it was broken off.
    pub(super) fn detach(&mut self) -> Result<(), SessionError> {
        self.unpin();
        self.restore_code();
        self.let_served_go();
        while let Some((tid, status, stopped)) = self.waiting.pop_front() {
            self.let_go(tid, status, stopped);
        }
        let mut settled = BTreeSet::new();
        let mut asked = BTreeSet::new();
        let mut tried = BTreeSet::new();
        let mut retiring = None;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Err(error) = self.drain_detaching() {
                tracing::warn!("{error}");
            }
            let mut waiting = !self.expected.is_empty();
            // Where only a stopped thread's code can be changed, one has to be stopped.
            let needs_stop = self.space.is_refused_while_running() && !self.space.breakpoints.is_empty();
            for tid in self.tasks.tids() {
                if settled.contains(&tid) && !needs_stop {
                    continue;
                }
                let Some(task) = self.tasks.get(tid).copied() else { continue };
                let group = procfs::thread_group(tid).ok().flatten().unwrap_or(self.pid);
                match procfs::state(group, tid) {
                    None | Some(b'Z' | b'X') => {
                        self.tasks.remove(tid);
                        continue;
                    }
                    Some(b'S' | b'D' | b'I') if !self.exit_kill && !needs_stop && self.stands_clear(group, tid) => {
                        settled.insert(tid);
                        continue;
                    }
                    Some(_)
                        if task.listening
                            && !self.exit_kill
                            && !needs_stop
                            && !procfs::has_pending(tid, SIGTRAP).unwrap_or(true) =>
                    {
                        // Its registers were seen, and if need be moved, when it entered the group stop.
                        settled.insert(tid);
                        continue;
                    }
                    Some(_) => {}
                }
                waiting = true;
                if !asked.contains(&tid) {
                    match self.interrupt(tid) {
                        Err(error) => tracing::warn!("{error}"),
                        Ok(()) => {
                            asked.insert(tid);
                        }
                    }
                }
            }
            if !waiting && !self.has_handler_to_retire() {
                break;
            }
            if !waiting {
                // Everybody sleeps: one has to be woken.
                match retiring.filter(|&tid| self.tasks.get(tid).is_some()) {
                    Some(_) => {}
                    None => match self.choose_who_retires(&tried) {
                        Ok(None) => {}
                        Ok(Some(tid)) => {
                            tried.insert(tid);
                            retiring = Some(tid);
                            if let Err(error) = self.interrupt(tid) {
                                tracing::warn!("{error}");
                            }
                        }
                        Err(NobodyLeft) => break,
                    },
                }
            }
            if Instant::now() > deadline {
                break;
            }
            std::thread::yield_now();
        }
        let is_settled = |task: &&Task| settled.contains(&task.id.tid);
        self.stuck = self.tasks.len() - self.tasks.iter().filter(is_settled).count();
        if self.stuck > 0 {
            tracing::warn!("{} threads could not be stopped for the detach", self.stuck);
        } else {
            // Every thread has now been seen outside the pads, and none can enter one any more.
            self.space.clear_pads(self.retry.handler());
        }
        self.drain_detaching()
    }

    /// Writes the original code back, as far as that can be done now.
    fn restore_code(&mut self) {
        if let Err(error) = self.space.restore() {
            tracing::warn!("the target's code could not be restored: {error}");
            // A process that dies of it takes its memory with it: what was missing must be known then.
            self.unrestored = self.space.breakpoints.len();
        } else if self.exit.is_none() && procfs::state(self.pid, self.pid).is_some() {
            self.unrestored = 0;
        }
    }

    /// Whether a sleeping thread stands neither in a pad nor behind a breakpoint that it has just hit.
    fn stands_clear(&self, group: i32, tid: i32) -> bool {
        match procfs::whereabouts(group, tid) {
            Whereabouts::Blocked { pc, .. } => {
                self.space.pad_resume(pc).is_none() && !self.space.breakpoints.is_or_was_there(pc.sub(1))
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

    /// Lets go of a stopped task: tries again what fails, as a task that stays stopped would be let go by the kernel in the
    /// state it is in.
    pub(super) fn let_go(&mut self, tid: i32, status: WaitStatus, stopped: Stopped) {
        self.serving = Some(Serving { tid, status, answer: None });
        if !self.space.breakpoints.is_empty() {
            self.space.memory.stands_still(Some(tid));
            self.restore_code();
            self.space.memory.stands_still(None);
        }
        let mut parting = self.prepare_parting(tid, status, &stopped);
        for _ in 1..ATTEMPTS {
            match &parting {
                Err(error) if !error.is_death() => parting = self.prepare_parting(tid, status, &stopped),
                _ => break,
            }
        }
        match parting {
            Ok(Parting::Detach(signal)) => self.part_with(tid, status, stopped, signal),
            Ok(Parting::RunOn(signal)) => {
                let mut done = stopped.resume(signal);
                for _ in 1..ATTEMPTS {
                    if done.is_err() {
                        done = Stopped::regained(tid).resume(signal);
                    }
                }
            }
            Err(error) if error.is_death() => {}
            Err(error) => tracing::warn!("{error}"),
        }
        self.serving = None;
    }

    /// Detaches from a task that has left the pads and the traps, or is in a pad at most.
    pub(super) fn part_with(&mut self, tid: i32, status: WaitStatus, stopped: Stopped, signal: i32) {
        self.serving = Some(Serving { tid, status: WaitStatus::Signal(signal), answer: Some(Action::Resume(signal)) });
        let mut left = self.leave_pad(&stopped);
        for _ in 1..ATTEMPTS {
            if left.is_err() {
                left = self.leave_pad(&stopped);
            }
        }
        if signal == 0 {
            self.retire_retry_handler_by(status, &stopped);
        }
        self.restore_affinity(tid);
        let mut done = stopped.detach(signal);
        for _ in 1..ATTEMPTS {
            match &done {
                Err(error) if !error.is_death() => done = Stopped::regained(tid).detach(signal),
                _ => break,
            }
        }
        match left.and(done) {
            Err(error) if !error.is_death() => tracing::warn!("{error}"),
            _ => {
                self.tasks.remove(tid);
            }
        }
        self.serving = None;
    }

    /// Moves a stopped thread to where it would be without us, and tells with which signal it is to be let go. Changes
    /// nothing before the last request that can fail, so that it can be called again.
    fn prepare_parting(&mut self, tid: i32, status: WaitStatus, thread: &Stopped) -> crate::tracer::Result<Parting> {
        let signal = match status {
            WaitStatus::Signal(signal) => {
                let raw = thread.registers()?;
                let trap = Addr(raw.0.rip.wrapping_sub(1));
                let is_ours = signal == SIGTRAP && self.space.breakpoints.is_or_was_there(trap);
                // A call that it was making for us may have been broken off.
                if is_ours && (thread.is_breakpoint_trap()? || thread.is_at_system_call()?) {
                    pass_trap_to(thread, &raw, trap)?;
                    0
                } else {
                    self.leave_pad(thread)?;
                    if self.is_to_retire_handler(tid)? {
                        self.interrupt(tid)?;
                        return Ok(Parting::RunOn(signal));
                    }
                    signal
                }
            }
            // The stop was reported before the trap that the thread has run into: without us it would die of that.
            WaitStatus::GroupStop(_) | WaitStatus::EventStop if self.stands_behind_trap(thread)? => {
                return Ok(Parting::RunOn(0));
            }
            WaitStatus::GroupStop(_) => {
                // Detaching from a group stop leaves the process stopped, as it should be.
                self.leave_pad(thread)?;
                0
            }
            WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone) => {
                // A parent in vfork can't stop before its child lets it.
                let retires = status != WaitStatus::Event(Event::Vfork) && self.is_to_retire_handler(tid)?;
                if retires {
                    self.interrupt(tid)?;
                }
                // The new task stops by itself, and is waited for.
                self.announce(thread)?;
                if retires {
                    return Ok(Parting::RunOn(0));
                }
                0
            }
            WaitStatus::Event(Event::Exec) => {
                // A new image: nothing of ours is in it.
                0
            }
            WaitStatus::Event(_) => 0,
            _ => {
                self.detach_new_child(thread)?;
                self.leave_pad(thread)?;
                if self.tasks.get(tid).is_some_and(|task| task.interrupted) {
                    thread.restart_interrupted_call()?;
                }
                0
            }
        };
        Ok(Parting::Detach(signal))
    }

    /// Whether a thread has hit a breakpoint, whose signal still waits to be delivered.
    fn stands_behind_trap(&self, thread: &Stopped) -> crate::tracer::Result<bool> {
        let trap = Addr(thread.registers()?.0.rip.wrapping_sub(1));
        Ok(self.space.breakpoints.is_or_was_there(trap) && procfs::has_pending(thread.tid(), SIGTRAP)?)
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
