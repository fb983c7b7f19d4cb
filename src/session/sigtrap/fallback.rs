//! When the target has the SIGTRAP fallback ([`crate::tracer::sigtrap_fallback`]), and when it must not.
//!
//! It is installed by a thread at a breakpoint, if the program leaves SIGTRAP alone, or ignores it. The program must
//! not notice it: before a SIGTRAP of its own is delivered, or it looks at or changes SIGTRAP's action, the handler is
//! taken out, until the thread is back at a breakpoint and the action is one of these; a forked child that is detached
//! from does not keep it; nor does a process that is detached from.
//!
//! A program that ignores SIGTRAP could not be given that back at each hit, which resets it: when the kernel is told to
//! ignore a signal, it forgets those that wait to be delivered (sigaction(2), "flush"), and with them the traps of
//! other threads that have just run into breakpoints. Those would go on within an instruction. So it is given back when
//! no thread can be at a breakpoint: by the last that is detached from.

use super::{FallbackState, IGNORING, NoThreadAvailable, SIGTRAP_BIT, SigtrapGuard, TrapAction};
use crate::session::stop::Action;
use crate::session::stops::Stops;
use crate::session::tasks::{Role, Task};
use crate::session::teardown::Teardown;
use crate::session::tracee::Tracee;
use crate::tracer::disturbance::{Disturbance, disturbance};
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::Stopped;
use crate::tracer::remote::{Caller, KernelAction};
use crate::tracer::sigtrap_fallback::SigtrapFallback;
use crate::tracer::status::{SIGTRAP, WaitStatus};
use crate::tracer::{Result, TracerError, control, procfs};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often it is looked at whether the handler is still there: a trap in a thread that blocks SIGTRAP removes it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The default action.
const DEFAULT: KernelAction = [0; 4];

impl SigtrapGuard {
    /// A thread stands at a breakpoint: installs the handler, or installs it again, or takes it out.
    pub(in crate::session) fn keep_fallback(
        &mut self,
        tracee: &mut Tracee,
        teardown: &mut Teardown,
        thread: &Stopped,
        stops: &Stops,
    ) -> Result<()> {
        let tid = thread.tid();
        let handler = match self.fallback {
            FallbackState::Never => return Ok(()),
            FallbackState::Set(_, Some(looked))
                if looked.elapsed() < POLL_INTERVAL && tracee.tasks.is_own_thread(tid) =>
            {
                return Ok(());
            }
            _ if !tracee.shares_trap_action(tid) => return self.keep_fallback_of_sharer(tracee, thread),
            FallbackState::Set(handler, _) => {
                if procfs::status_signals(tid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0) {
                    self.fallback = FallbackState::Set(handler, Some(Instant::now()));
                    return Ok(());
                }
                handler
            }
            FallbackState::Unset => {
                // Back at a breakpoint, the thread is done with what the handler had to be taken out for.
                self.yielded.remove(&tid);
                if !self.yielded.is_empty() || !self.leaves_trap_alone() {
                    return Ok(());
                }
                match self.prepare_fallback(tracee)? {
                    Some(handler) => handler,
                    None => {
                        self.fallback = FallbackState::Never;
                        return Ok(());
                    }
                }
            }
        };
        // A filter may kill the program for a system call that it would never make itself.
        if procfs::has_seccomp(tid) {
            self.fallback = FallbackState::Never;
            return Ok(());
        }
        // Not afterwards: it may be installed although the call is broken off.
        self.fallback = FallbackState::Set(handler, None);
        tracee.space.image.code.tell_fallback(Some(handler));
        let resume = tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut tracee.space.image.memory };
        match handler.install(&mut caller)? {
            0 => {
                self.fallback = FallbackState::Set(handler, Some(Instant::now()));
                self.note_handler_installed();
                // From now on the program can do without us.
                if teardown.exit_kill && tracee.tasks.len() == 1 && stops.expected.is_empty() {
                    thread.live_on()?;
                    teardown.exit_kill = false;
                }
            }
            error => {
                tracing::debug!("no handler for SIGTRAP: {error}");
                self.fallback = FallbackState::Never;
                tracee.space.image.code.tell_fallback(None);
            }
        }
        Ok(())
    }

    /// All threads stand still, and the breakpoints come next: one of the interrupted threads installs the handler
    /// before that.
    pub(in crate::session) fn install_fallback_while_all_stand(
        &mut self,
        tracee: &mut Tracee,
        teardown: &mut Teardown,
        stops: &mut Stops,
    ) -> Result<()> {
        let told = |(tid, status, _): &&(i32, WaitStatus, Stopped)| {
            *status == WaitStatus::EventStop && tracee.tasks.is_own_thread(*tid)
        };
        let Some((tid, _, thread)) = stops.waiting.iter().find(told) else { return Ok(()) };
        tracee.space.image.memory.stands_still(Some(*tid));
        let kept = self.keep_fallback(tracee, teardown, thread, stops);
        tracee.space.image.memory.stands_still(None);
        match kept {
            Err(TracerError::Overtaken { tid, status }) => {
                stops.overtake(tid, status);
                Ok(())
            }
            Err(error) if error.is_out_of_reach() => Ok(()),
            kept => kept,
        }
    }

    /// The thread of a new image is to install the handler. At the event of its exec it can't, as the kernel has yet to
    /// return from that call; at its next stop it has run nothing either.
    pub(in crate::session) fn ask_for_fallback(&mut self, tracee: &mut Tracee, tid: i32) -> Result<()> {
        if tracee.settings.guardian.is_none() {
            return Ok(());
        }
        self.fallback_at_stop = true;
        tracee.interrupt(tid)
    }

    /// A thread has stopped as heaptrace has interrupted it: that may be the stop at which it is to install the
    /// handler.
    pub(in crate::session) fn install_fallback_if_asked(
        &mut self,
        tracee: &mut Tracee,
        teardown: &mut Teardown,
        thread: &Stopped,
        stops: &Stops,
    ) -> Result<()> {
        if !std::mem::take(&mut self.fallback_at_stop) {
            return Ok(());
        }
        let installed = self.install_fallback_first(tracee, teardown, thread, stops);
        self.fallback_at_stop = matches!(installed, Err(TracerError::Overtaken { .. }));
        installed
    }

    /// That stop: afterwards the breakpoints are placed.
    fn install_fallback_first(
        &mut self,
        tracee: &mut Tracee,
        teardown: &mut Teardown,
        thread: &Stopped,
        stops: &Stops,
    ) -> Result<()> {
        let kept = self.keep_fallback(tracee, teardown, thread, stops);
        if matches!(kept, Err(TracerError::Overtaken { .. })) {
            return kept;
        }
        tracee.space.place_held_back()?;
        kept
    }

    pub(in crate::session) const fn has_no_fallback_yet(&self) -> bool {
        matches!(self.fallback, FallbackState::Unset)
    }

    pub(in crate::session) fn prepare_fallback(&self, tracee: &mut Tracee) -> Result<Option<SigtrapFallback>> {
        let Some(handler) =
            (if tracee.settings.guardian.is_none() { None } else { tracee.space.image.sigtrap_fallback()? })
        else {
            return Ok(None);
        };
        handler.puts_back(self.ignores_trap(), &mut tracee.space.image.memory)?;
        Ok(Some(handler))
    }

    fn remove_fallback(&mut self, tracee: &mut Tracee, thread: &Stopped, handler: SigtrapFallback) -> Result<()> {
        let resume = tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut tracee.space.image.memory };
        handler.remove(&mut caller)?;
        self.fallback = FallbackState::Unset;
        tracee.space.image.code.tell_fallback(None);
        Ok(())
    }

    /// Puts the program's own action back: takes the handler out, if it may be there.
    pub(in crate::session) fn uninstall_fallback(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<()> {
        match self.fallback.handler() {
            Some(handler) => self.remove_fallback(tracee, thread, handler),
            None if self.has_lost_ignoring(tracee) => {
                let resume = tracee.resume_registers(thread)?;
                self.set_trap_action(tracee, thread, resume, IGNORING)
            }
            None => Ok(()),
        }
    }

    /// A thread with SIGTRAP blocked was at a breakpoint: the kernel has then taken the handler out.
    pub(in crate::session) const fn suspect_fallback(&mut self) {
        if let FallbackState::Set(handler, _) = self.fallback {
            self.fallback = FallbackState::Set(handler, None);
        }
    }

    /// The program asks for SIGTRAP's action, or sets it: it must find its own.
    pub(in crate::session) fn yield_trap_action(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<()> {
        if !tracee.shares_trap_action(thread.tid()) {
            return self.uninstall_fallback_of_sharer(tracee, thread);
        }
        self.yielded.insert(thread.tid());
        self.uninstall_fallback(tracee, thread)
    }

    /// Lets the program have a SIGTRAP that is none of ours, of a thread that is where it would be without us.
    pub(in crate::session) fn deliver_trap(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<Action> {
        let tid = thread.tid();
        let shares = tracee.shares_trap_action(tid);
        if shares && self.ignores_trap() {
            // What somebody has sent (SI_USER and the like) is ignored.
            if thread.signal_code()? <= 0 {
                return Ok(Action::Resume(0));
            }
            // What the kernel forces is not: the action is reset.
            self.trap_mask.action = TrapAction::Default;
            self.fallback = FallbackState::Unset;
            tracee.space.image.code.tell_fallback(None);
            let resume = tracee.resume_registers(thread)?;
            self.set_trap_action(tracee, thread, resume, DEFAULT)?;
        } else if shares && self.fallback.handler().is_some() || !shares && self.has_fallback_of_sharer(tracee, tid) {
            self.yield_trap_action(tracee, thread)?;
        } else {
            return Ok(Action::Resume(SIGTRAP));
        }
        // The remote call has used up the stop at which the signal could be delivered.
        control::send_to_thread(procfs::thread_group(tid)?.unwrap_or(tracee.pid), tid, SIGTRAP)?;
        Ok(Action::Resume(0))
    }

    /// The first stop of a process that the traced one has made, and whose memory is given: it gets the default action
    /// back.
    pub(in crate::session) fn free_child_of_fallback(
        &self,
        tracee: &Tracee,
        child: &Stopped,
        memory: &mut TargetMemory,
    ) -> Result<()> {
        // A child may have been made before the handler was taken out of its parent.
        let taken_out = || tracee.space.image.code.known_sigtrap_fallback().filter(|_| self.leaves_trap_alone());
        let Some(handler) = self.fallback.handler().or_else(taken_out) else { return Ok(()) };
        let has = |key| procfs::status_signals(child.tid(), key).is_none_or(|set| set & SIGTRAP_BIT != 0);
        let is_as_it_was = !has("SigCgt") && (!self.ignores_trap() || has("SigIgn"));
        if is_as_it_was || procfs::has_seccomp(child.tid()) {
            return Ok(());
        }
        handler.remove(&mut Caller { thread: child, resume: child.registers()?, code: handler.call, memory })?;
        Ok(())
    }

    /// That of a followed child, which thread `tid` of its parent has just forked, and which is stopped: it has the
    /// handler if its parent had it at that moment.
    pub(in crate::session) fn inherit(
        &mut self,
        tracee: &mut Tracee,
        teardown: &mut Teardown,
        (parent, tid): (&Self, i32),
        child: &Stopped,
    ) -> Result<()> {
        self.trap_mask = parent.trap_mask.of_forked(tid, child.tid());
        if matches!(parent.fallback, FallbackState::Never) {
            self.fallback = FallbackState::Never;
            return Ok(());
        }
        let caught = procfs::status_signals(child.tid(), "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        if let Some(handler) = tracee.space.image.code.known_sigtrap_fallback().filter(|_| caught)
            && self.leaves_trap_alone()
        {
            self.fallback = FallbackState::Set(handler, None);
            tracee.space.image.code.tell_fallback(Some(handler));
            if teardown.exit_kill {
                child.live_on()?;
                teardown.exit_kill = false;
            }
        }
        Ok(())
    }

    /// Whether a detach has to take the handler out.
    pub(in crate::session) fn has_handler_to_uninstall(&self, tracee: &Tracee, teardown: &Teardown) -> bool {
        // A filter may kill the program for a system call that it would never make itself.
        (self.fallback.handler().is_some() || self.has_lost_ignoring(tracee))
            && teardown.exit.is_none()
            && !procfs::has_seccomp(tracee.pid)
    }

    /// Which of the threads, all of which sleep, is disturbed least by being interrupted to take the handler out. An
    /// error if there is none that could; None if there is none at this moment.
    pub(in crate::session) fn choose_who_uninstalls(
        &self,
        tracee: &Tracee,
        teardown: &Teardown,
        tried: &BTreeSet<i32>,
    ) -> std::result::Result<Option<i32>, NoThreadAvailable> {
        let is_candidate = |task: &&Task| task.role == Role::Thread && !tried.contains(&task.id.tid);
        let candidates: Vec<&Task> = tracee.tasks.iter().filter(is_candidate).collect();
        let rank = |task: &Task| match task.listening {
            true => Some(Disturbance::Stopped),
            false => disturbance(tracee.pid, task.id.tid),
        };
        // memory can wait for the next heaptrace
        let is_worth_it =
            |rank: &Disturbance| self.has_handler_to_uninstall(tracee, teardown) || *rank <= Disturbance::Unnoticed;
        let ranked = candidates.iter().filter_map(|task| Some((rank(task).filter(is_worth_it)?, task.id.tid)));
        let best = ranked.min().map(|(_, tid)| tid);
        // A parent in vfork (D) comes back when its child has executed its program.
        let may_come = |task: &Task| !matches!(procfs::state(tracee.pid, task.id.tid), None | Some(b'Z' | b'X'));
        let is_awaited = self.has_handler_to_uninstall(tracee, teardown) && candidates.into_iter().any(may_come);
        if best.is_none() && !is_awaited { Err(NoThreadAvailable) } else { Ok(best) }
    }

    /// Every thread was seen outside the pads: empties them, but for the SIGTRAP fallback if it could not be taken out.
    pub(in crate::session) fn clear_pads(&self, tracee: &mut Tracee) {
        let others =
            || tracee.space.image.code.known_sigtrap_fallback().filter(|_| self.is_fallback_in_sharers(tracee));
        let kept = self.fallback.handler().or_else(others);
        tracee.space.image.clear_own_code(kept);
    }
}
