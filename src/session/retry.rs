//! When the target has our handler for SIGTRAP ([`crate::tracer::retry`]), and when it must not.
//!
//! It is installed by a thread at a breakpoint, if the program leaves SIGTRAP alone. The program must not notice it: before a
//! SIGTRAP of its own is delivered, or it looks at or changes SIGTRAP's action, the handler is taken out, until the thread is
//! back at a breakpoint and the action is the default one; a forked child that is let go does not keep it; nor does a process
//! that is detached from.

use super::tasks::{Role, Task};
use super::trapmask::{SIGTRAP_BIT, TrapAction};
use super::{Action, Session};
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::remote::RemoteCall;
use crate::tracer::retry::{self, Disturbance, RetryHandler};
use crate::tracer::status::{SIGTRAP, WaitStatus};
use crate::tracer::{Result, control, procfs};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Whether the handler is installed in the current image.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Retry {
    /// Not yet.
    #[default]
    Unset,
    /// It is, or was when it was looked at last; None: it may have been taken away since.
    Set(RetryHandler, Option<Instant>),
    /// It is to be taken out by the next thread at a breakpoint.
    Leaving(RetryHandler),
    /// It is not, and will not be.
    Never,
}

impl Retry {
    /// The handler, if it may be there.
    pub(super) const fn handler(self) -> Option<RetryHandler> {
        match self {
            Self::Set(handler, _) | Self::Leaving(handler) => Some(handler),
            Self::Unset | Self::Never => None,
        }
    }
}

/// How often it is looked at whether the handler is still there: a trap in a thread that blocks SIGTRAP removes it.
const LOOK: Duration = Duration::from_millis(100);

/// How long a detach waits for a thread at a breakpoint before it interrupts one.
const PATIENCE: Duration = Duration::from_millis(5);

/// How long it waits for an interrupted thread.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

impl Session {
    /// A thread stands at a breakpoint: installs the handler, or installs it again, or takes it out. Some: the thread's end was
    /// reported instead.
    pub(super) fn keep_retry_handler(&mut self, tid: i32, thread: &Stopped) -> Result<Option<WaitStatus>> {
        let handler = match self.retry {
            Retry::Never => return Ok(None),
            Retry::Set(_, Some(looked)) if looked.elapsed() < LOOK => return Ok(None),
            _ if !self.is_own_thread(tid) => return Ok(None),
            Retry::Leaving(handler) => return self.remove_retry_handler(thread, handler),
            Retry::Set(handler, _) => {
                if procfs::status_signals(tid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0) {
                    self.retry = Retry::Set(handler, Some(Instant::now()));
                    return Ok(None);
                }
                handler
            }
            Retry::Unset => {
                // Back at a breakpoint, the thread is done with what the handler had to be taken out for.
                self.yielded.remove(&tid);
                if !self.yielded.is_empty() || self.trap_mask.action != TrapAction::Default {
                    return Ok(None);
                }
                match self.prepare_retry_handler()? {
                    Some(handler) => handler,
                    None => {
                        self.retry = Retry::Never;
                        return Ok(None);
                    }
                }
            }
        };
        // A filter may kill the program for a system call that it would never make itself.
        if procfs::has_seccomp(tid) {
            self.retry = Retry::Never;
            return Ok(None);
        }
        match handler.install(thread)? {
            RemoteCall::Ended(status) => return Ok(Some(status)),
            RemoteCall::Done(0) => {
                self.retry = Retry::Set(handler, Some(Instant::now()));
                self.space.tell_guardian_of(Some(handler));
                // From now on the program can do without us.
                if self.exit_kill && self.tasks.len() == 1 && self.expected.is_empty() {
                    thread.live_on()?;
                    self.exit_kill = false;
                }
            }
            RemoteCall::Done(error) => {
                tracing::debug!("no handler for SIGTRAP: {error}");
                self.retry = Retry::Never;
            }
        }
        Ok(None)
    }

    fn is_own_thread(&self, tid: i32) -> bool {
        self.tasks.get(tid).is_some_and(|task| task.role == Role::Thread)
    }

    fn prepare_retry_handler(&mut self) -> Result<Option<RetryHandler>> {
        if self.settings.guardian.is_none() { Ok(None) } else { self.space.retry_handler() }
    }

    fn remove_retry_handler(&mut self, thread: &Stopped, handler: RetryHandler) -> Result<Option<WaitStatus>> {
        match handler.remove(thread, &mut self.space.memory)? {
            RemoteCall::Ended(status) => Ok(Some(status)),
            RemoteCall::Done(_) => {
                self.retry = if matches!(self.retry, Retry::Leaving(_)) { Retry::Never } else { Retry::Unset };
                self.space.tell_guardian_of(None);
                Ok(None)
            }
        }
    }

    /// A thread with SIGTRAP blocked was at a breakpoint: the kernel has then taken the handler out.
    pub(super) const fn suspect_retry_handler(&mut self) {
        if let Retry::Set(handler, _) = self.retry {
            self.retry = Retry::Set(handler, None);
        }
    }

    /// The program asks for SIGTRAP's action, or sets it: it must find its own.
    pub(super) fn yield_trap_action(&mut self, thread: &Stopped) -> Result<Option<WaitStatus>> {
        // A child that borrows the memory has actions of its own.
        if !self.is_own_thread(thread.tid()) {
            return Ok(None);
        }
        self.yielded.insert(thread.tid());
        match self.retry.handler() {
            Some(handler) => self.remove_retry_handler(thread, handler),
            None => Ok(None),
        }
    }

    /// Lets the program have a SIGTRAP that is none of ours.
    pub(super) fn deliver_trap(&mut self, tid: i32, thread: &Stopped) -> Result<Action> {
        self.before_signal(tid, thread)?;
        if self.retry.handler().is_none() || !self.is_own_thread(tid) {
            return Ok(Action::Resume(SIGTRAP));
        }
        if let Some(status) = self.yield_trap_action(thread)? {
            return self.decide(tid, status, thread);
        }
        // The remote call has used up the stop at which the signal could be delivered.
        control::send_to_thread(self.pid, tid, SIGTRAP)?;
        Ok(Action::Resume(0))
    }

    /// The first stop of a process that the traced one has made: it gets the default action back.
    pub(super) fn free_child_of_retry_handler(&self, child: &Stopped, has_copy: bool) {
        // A child may have been made before the handler was taken out of its parent.
        let taken_out = || self.space.known_retry_handler().filter(|_| self.trap_mask.action == TrapAction::Default);
        let Some(handler) = self.retry.handler().or_else(taken_out) else { return };
        if procfs::status_signals(child.tid(), "SigCgt").is_some_and(|set| set & SIGTRAP_BIT == 0) {
            return;
        }
        if !has_copy && procfs::same_signal_actions(child.tid(), self.pid) != Some(false) {
            return;
        }
        if procfs::has_seccomp(child.tid()) {
            return;
        }
        let removed =
            TargetMemory::open(child.tid(), child.tid()).and_then(|mut memory| handler.remove(child, &mut memory));
        if let Err(error) = removed
            && !error.is_death()
        {
            tracing::warn!("{error}");
        }
    }

    /// At a detach, while breakpoints are still there: takes the handler out.
    pub(super) fn retire_retry_handler(&mut self) -> Result<()> {
        let Retry::Set(handler, _) = self.retry else { return Ok(()) };
        if procfs::has_seccomp(self.pid) {
            return Ok(());
        }
        self.retry = Retry::Leaving(handler);
        for (tid, status, stopped) in std::mem::take(&mut self.waiting) {
            self.on_stop(tid, status, stopped);
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.retry, Retry::Leaving(_)) && Instant::now() < deadline {
            if !self.serve_waiting()? {
                std::thread::yield_now();
            }
        }
        let mut tried = BTreeSet::new();
        let deadline = Instant::now() + STOP_PATIENCE;
        while Instant::now() < deadline
            && let Retry::Leaving(handler) = self.retry
        {
            let candidates =
                self.tasks.iter().filter(|task| task.role == Role::Thread && !tried.contains(&task.id.tid));
            let rank = |task: &Task| match task.listening {
                true => Some(Disturbance::Stopped),
                false => retry::disturbance(self.pid, task.id.tid),
            };
            let best = candidates.filter_map(|task| Some((rank(task)?, task.id.tid))).min();
            let Some((disturbance, tid)) = best else { break };
            // One that runs may have come to a breakpoint first.
            if disturbance != Disturbance::None {
                tried.insert(tid);
            }
            match self.retire_by(tid, handler) {
                Ok(()) => {}
                Err(error) if error.is_death() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Serves one stop, if there is one.
    fn serve_waiting(&mut self) -> Result<bool> {
        match ptrace::wait(false)? {
            Waited::Task(tid, status, Some(stopped)) => self.on_stop(tid, status, stopped),
            Waited::Task(tid, status, None) => self.note_end(tid, status),
            Waited::Interrupted => {}
            Waited::Nothing | Waited::NoTasks => return Ok(false),
        }
        Ok(true)
    }

    /// Interrupts a thread, which then takes the handler out.
    fn retire_by(&mut self, tid: i32, handler: RetryHandler) -> Result<()> {
        ptrace::interrupt(tid)?;
        let listening = self.tasks.get(tid).is_some_and(|task| task.listening);
        let deadline = Instant::now() + STOP_PATIENCE;
        while matches!(self.retry, Retry::Leaving(_)) && Instant::now() < deadline {
            match ptrace::wait(false)? {
                Waited::Task(stopped_tid, status, Some(thread))
                    if stopped_tid == tid
                        && (status == WaitStatus::EventStop
                            || listening && matches!(status, WaitStatus::GroupStop(_))) =>
                {
                    match self.remove_retry_handler(&thread, handler) {
                        Ok(Some(status)) => {
                            self.on_stop(tid, status, thread);
                            return Ok(());
                        }
                        // Let go, it goes on with its group stop; running on, it would leave that.
                        Ok(None) if status != WaitStatus::EventStop => {
                            self.tasks.remove(tid);
                            return thread.detach(0);
                        }
                        Ok(None) => return thread.resume(0),
                        Err(error) => {
                            if !error.is_death() {
                                thread.resume(0)?;
                            }
                            return Err(error);
                        }
                    }
                }
                Waited::Task(stopped_tid, status, Some(stopped)) => self.on_stop(stopped_tid, status, stopped),
                Waited::Task(stopped_tid, status, None) => self.note_end(stopped_tid, status),
                Waited::NoTasks => return Ok(()),
                Waited::Interrupted | Waited::Nothing => std::thread::yield_now(),
            }
        }
        Ok(())
    }
}
