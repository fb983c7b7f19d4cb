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

use super::process::Process;
use super::signalstate::{FallbackState, IGNORING, NoThreadAvailable, SIGTRAP_BIT, TrapAction};
use super::slots::Slot;
use super::stop::{Action, Serving};
use super::stops::Stops;
use super::tasks::{Role, Task};

use super::Session;
use crate::tracer::disturbance::{Disturbance, disturbance};
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::remote::{Caller, KernelAction};
use crate::tracer::sigtrap_fallback::SigtrapFallback;
use crate::tracer::status::{SIGTRAP, WaitStatus};
use crate::tracer::{Result, TracerError, control, insist, procfs};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often it is looked at whether the handler is still there: a trap in a thread that blocks SIGTRAP removes it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long an attach waits for a thread that runs to stop.
const EARLY: Duration = Duration::from_secs(1);

/// So often an attach looks for a thread that can be interrupted, after such pauses or the stops of others.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Which thread is interrupted at an attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WhoCalls {
    /// This one.
    This(i32),
    /// None at this moment; one may come.
    NobodyYet,
    /// Each would notice it.
    Nobody,
}

/// The default action.
const DEFAULT: KernelAction = [0; 4];

impl Session {
    /// At an attach, before there is any probe: lets a thread install the handler, one that runs, or one that sleeps
    /// and
    /// does not notice. Were it left to the first that hits a probe, all that hit one at that moment would die of
    /// theirs
    /// if heaptrace was killed then. This serves threads that have stopped meanwhile: at the first stop of a new image
    /// the handler is installed, too. Only where all threads sleep in calls that would have to be made anew with their
    /// whole time limits, the first that hits a probe has to do it.
    ///
    /// If the program has an action of its own, a thread asks for that instead, any sleeping one if need be: the first
    /// that hits a probe may have SIGTRAP blocked, and the action would be lost.
    pub(super) fn call_for_trap_action_early(&mut self, slot: Slot) -> Result<()> {
        let Some(process) = self.processes.get(slot) else { return Ok(()) };
        let learns = process.has_trap_action_to_learn();
        let deadline = Instant::now() + EARLY;
        let (mut asked, mut looks) = (None, 0);
        while Instant::now() < deadline {
            let Some(process) = self.processes.get_mut(slot).filter(|process| match learns {
                true => process.has_trap_action_to_learn(),
                false => process.has_no_sigtrap_fallback_yet(),
            }) else {
                return Ok(());
            };
            asked = asked.filter(|tid| process.tracee.tasks.get(*tid).is_some());
            if asked.is_none() {
                match process.who_can_make_a_call(learns) {
                    WhoCalls::This(tid) => {
                        process.tracee.interrupt(tid)?;
                        asked = Some(tid);
                    }
                    WhoCalls::NobodyYet if looks < LOOKS => looks += 1,
                    WhoCalls::NobodyYet | WhoCalls::Nobody => return Ok(()),
                }
            }
            match ptrace::wait(false)? {
                Waited::Task(stopped_tid, status, Some(stopped)) => {
                    if asked == Some(stopped_tid) && status == WaitStatus::EventStop {
                        self.stops.serving = Some(Serving { tid: stopped_tid, status, answer: None });
                        process.tracee.space.memory.stands_still(Some(stopped_tid));
                        let called = match learns {
                            true => process
                                .tracee
                                .resume_registers(&stopped)
                                .and_then(|resume| process.learn_trap_action(&stopped, resume)),
                            false => process.keep_sigtrap_fallback(stopped_tid, &stopped, &self.stops),
                        };
                        let status = match called {
                            Err(TracerError::Overtaken { status, .. }) => status,
                            Err(error) if error.is_out_of_reach() => status,
                            Err(error) => return Err(error),
                            Ok(()) => status,
                        };
                        let stop = self.stops.stop(status, stopped);
                        return self.on_stop(stop);
                    }
                    let stop = self.stops.stop(status, stopped);
                    self.on_stop(stop)?;
                }
                Waited::Task(ended, status, None) => self.note_end(ended, status),
                Waited::NoTasks => return Ok(()),
                Waited::Nothing | Waited::Interrupted if asked.is_none() => std::thread::sleep(PAUSE),
                Waited::Nothing | Waited::Interrupted => std::thread::yield_now(),
            }
        }
        Ok(())
    }
}

impl Process {
    /// A thread stands at a breakpoint: installs the handler, or installs it again, or takes it out.
    pub(super) fn keep_sigtrap_fallback(&mut self, tid: i32, thread: &Stopped, stops: &Stops) -> Result<()> {
        let handler = match self.signals.fallback {
            FallbackState::Never => return Ok(()),
            FallbackState::Set(_, Some(looked))
                if looked.elapsed() < POLL_INTERVAL && self.tracee.tasks.is_own_thread(tid) =>
            {
                return Ok(());
            }
            _ if !self.shares_trap_action(tid) => return self.keep_sigtrap_fallback_of_sharer(tid, thread),
            FallbackState::Set(handler, _) => {
                if procfs::status_signals(tid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0) {
                    self.signals.fallback = FallbackState::Set(handler, Some(Instant::now()));
                    return Ok(());
                }
                handler
            }
            FallbackState::Unset => {
                // Back at a breakpoint, the thread is done with what the handler had to be taken out for.
                self.signals.yielded.remove(&tid);
                if !self.signals.yielded.is_empty() || !self.leaves_trap_alone() {
                    return Ok(());
                }
                match self.prepare_sigtrap_fallback()? {
                    Some(handler) => handler,
                    None => {
                        self.signals.fallback = FallbackState::Never;
                        return Ok(());
                    }
                }
            }
        };
        // A filter may kill the program for a system call that it would never make itself.
        if procfs::has_seccomp(tid) {
            self.signals.fallback = FallbackState::Never;
            return Ok(());
        }
        // Not afterwards: it may be installed although the call is broken off.
        self.signals.fallback = FallbackState::Set(handler, None);
        self.tracee.space.code.tell_fallback(Some(handler));
        let resume = self.tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut self.tracee.space.memory };
        match handler.install(&mut caller)? {
            0 => {
                self.signals.fallback = FallbackState::Set(handler, Some(Instant::now()));
                self.note_handler_installed();
                // From now on the program can do without us.
                if self.teardown.exit_kill && self.tracee.tasks.len() == 1 && stops.expected.is_empty() {
                    thread.live_on()?;
                    self.teardown.exit_kill = false;
                }
            }
            error => {
                tracing::debug!("no handler for SIGTRAP: {error}");
                self.signals.fallback = FallbackState::Never;
                self.tracee.space.code.tell_fallback(None);
            }
        }
        Ok(())
    }

    /// All threads stand still, and the breakpoints come next: one of the interrupted threads installs the handler
    /// before that.
    pub(super) fn install_sigtrap_fallback_while_all_stand(&mut self, stops: &mut Stops) -> Result<()> {
        let told = |(tid, status, _): &&(i32, WaitStatus, Stopped)| {
            *status == WaitStatus::EventStop && self.tracee.tasks.is_own_thread(*tid)
        };
        let Some((tid, _, thread)) = stops.waiting.iter().find(told) else { return Ok(()) };
        self.tracee.space.memory.stands_still(Some(*tid));
        let kept = self.keep_sigtrap_fallback(*tid, thread, stops);
        self.tracee.space.memory.stands_still(None);
        match kept {
            Err(TracerError::Overtaken { tid, status }) => {
                stops.overtake(tid, status);
                Ok(())
            }
            Err(error) if error.is_out_of_reach() => Ok(()),
            kept => kept,
        }
    }

    /// A new image gets no breakpoint before it has the handler.
    pub(super) fn hold_probes_back(&mut self) {
        if self.tracee.settings.guardian.is_some() {
            self.tracee.space.hold_back();
        }
    }

    /// The thread of a new image is to install the handler. At the event of its exec it can't, as the kernel has yet to
    /// return from that call; at its next stop it has run nothing either.
    pub(super) fn ask_for_sigtrap_fallback(&mut self, tid: i32) -> Result<()> {
        if self.tracee.settings.guardian.is_none() {
            return Ok(());
        }
        self.signals.fallback_at_stop = true;
        self.tracee.interrupt(tid)
    }

    /// That stop: afterwards the breakpoints are placed.
    pub(super) fn install_sigtrap_fallback_first(&mut self, thread: &Stopped, stops: &Stops) -> Result<()> {
        let kept = self.keep_sigtrap_fallback(thread.tid(), thread, stops);
        if matches!(kept, Err(TracerError::Overtaken { .. })) {
            return kept;
        }
        self.tracee.space.place_held_back()?;
        kept
    }

    /// The thread that is disturbed least by an interruption. One that sleeps in a timed call is taken only if `anyone`
    /// will do.
    fn who_can_make_a_call(&self, anyone: bool) -> WhoCalls {
        let may = |found: &Disturbance| match found {
            Disturbance::None | Disturbance::Unnoticed => true,
            Disturbance::Longer => anyone,
            Disturbance::Stopped => false,
        };
        let mut passing = false;
        let mut best = None;
        for tid in self.tracee.tasks.tids().into_iter().filter(|tid| self.tracee.tasks.is_own_thread(*tid)) {
            match disturbance(self.tracee.pid, tid) {
                Some(found) if may(&found) => best = best.min(Some((found, tid))).or(Some((found, tid))),
                Some(_) => {}
                // It has stopped for us, as at an exec; or it waits for a disk, or has a signal to deal with.
                None => passing |= !matches!(procfs::state(self.tracee.pid, tid), None | Some(b'Z' | b'X')),
            }
        }
        match best {
            Some((_, tid)) => WhoCalls::This(tid),
            None if passing => WhoCalls::NobodyYet,
            None => WhoCalls::Nobody,
        }
    }

    const fn has_no_sigtrap_fallback_yet(&self) -> bool {
        matches!(self.signals.fallback, FallbackState::Unset)
    }

    pub(super) fn prepare_sigtrap_fallback(&mut self) -> Result<Option<SigtrapFallback>> {
        let Some(handler) =
            (if self.tracee.settings.guardian.is_none() { None } else { self.tracee.space.sigtrap_fallback()? })
        else {
            return Ok(None);
        };
        handler.puts_back(self.ignores_trap(), &mut self.tracee.space.memory)?;
        Ok(Some(handler))
    }

    fn remove_sigtrap_fallback(&mut self, thread: &Stopped, handler: SigtrapFallback) -> Result<()> {
        let resume = self.tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut self.tracee.space.memory };
        handler.remove(&mut caller)?;
        self.signals.fallback = FallbackState::Unset;
        self.tracee.space.code.tell_fallback(None);
        Ok(())
    }

    /// Puts the program's own action back: takes the handler out, if it may be there.
    pub(super) fn uninstall_sigtrap_fallback(&mut self, thread: &Stopped) -> Result<()> {
        match self.signals.fallback.handler() {
            Some(handler) => self.remove_sigtrap_fallback(thread, handler),
            None if self.has_lost_ignoring() => {
                let resume = self.tracee.resume_registers(thread)?;
                self.set_trap_action(thread, resume, IGNORING)
            }
            None => Ok(()),
        }
    }

    /// A thread with SIGTRAP blocked was at a breakpoint: the kernel has then taken the handler out.
    pub(super) const fn suspect_sigtrap_fallback(&mut self) {
        if let FallbackState::Set(handler, _) = self.signals.fallback {
            self.signals.fallback = FallbackState::Set(handler, None);
        }
    }

    /// The program asks for SIGTRAP's action, or sets it: it must find its own.
    pub(super) fn yield_trap_action(&mut self, thread: &Stopped) -> Result<()> {
        if !self.shares_trap_action(thread.tid()) {
            return self.uninstall_sigtrap_fallback_of_sharer(thread);
        }
        self.signals.yielded.insert(thread.tid());
        self.uninstall_sigtrap_fallback(thread)
    }

    /// Lets the program have a SIGTRAP that is none of ours.
    pub(super) fn deliver_trap(&mut self, tid: i32, thread: &Stopped) -> Result<Action> {
        self.before_signal(tid, thread)?;
        let shares = self.shares_trap_action(tid);
        if shares && self.ignores_trap() {
            // What somebody has sent (SI_USER and the like) is ignored.
            if thread.signal_code()? <= 0 {
                return Ok(Action::Resume(0));
            }
            // What the kernel forces is not: the action is reset.
            self.signals.trap_mask.action = TrapAction::Default;
            self.signals.fallback = FallbackState::Unset;
            self.tracee.space.code.tell_fallback(None);
            let resume = self.tracee.resume_registers(thread)?;
            self.set_trap_action(thread, resume, DEFAULT)?;
        } else if shares && self.signals.fallback.handler().is_some()
            || !shares && self.has_sigtrap_fallback_of_sharer(tid)
        {
            self.yield_trap_action(thread)?;
        } else {
            return Ok(Action::Resume(SIGTRAP));
        }
        // The remote call has used up the stop at which the signal could be delivered.
        control::send_to_thread(procfs::thread_group(tid)?.unwrap_or(self.tracee.pid), tid, SIGTRAP)?;
        Ok(Action::Resume(0))
    }

    /// The first stop of a process that the traced one has made, and whose memory is given: it gets the default action
    /// back.
    pub(super) fn free_child_of_sigtrap_fallback(&self, child: &Stopped, memory: &mut TargetMemory) -> Result<()> {
        // A child may have been made before the handler was taken out of its parent.
        let taken_out = || self.tracee.space.code.known_sigtrap_fallback().filter(|_| self.leaves_trap_alone());
        let Some(handler) = self.signals.fallback.handler().or_else(taken_out) else { return Ok(()) };
        let has = |key| procfs::status_signals(child.tid(), key).is_none_or(|set| set & SIGTRAP_BIT != 0);
        let is_as_it_was = !has("SigCgt") && (!self.ignores_trap() || has("SigIgn"));
        if is_as_it_was || procfs::has_seccomp(child.tid()) {
            return Ok(());
        }
        handler.remove(&mut Caller { thread: child, resume: child.registers()?, code: handler.call, memory })?;
        Ok(())
    }

    /// A followed child, which has just been forked and is stopped, has the handler if its parent had it at that
    /// moment.
    pub(super) fn inherit_sigtrap_fallback(&mut self, parent: &Self, child: &Stopped) -> Result<()> {
        if matches!(parent.signals.fallback, FallbackState::Never) {
            self.signals.fallback = FallbackState::Never;
            return Ok(());
        }
        let caught = procfs::status_signals(child.tid(), "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        if let Some(handler) = self.tracee.space.code.known_sigtrap_fallback().filter(|_| caught)
            && self.leaves_trap_alone()
        {
            self.signals.fallback = FallbackState::Set(handler, None);
            self.tracee.space.code.tell_fallback(Some(handler));
            if self.teardown.exit_kill {
                child.live_on()?;
                self.teardown.exit_kill = false;
            }
        }
        Ok(())
    }

    /// Whether a detach has to take the handler out.
    pub(super) fn has_handler_to_uninstall(&self) -> bool {
        // A filter may kill the program for a system call that it would never make itself.
        (self.signals.fallback.handler().is_some() || self.has_lost_ignoring())
            && self.teardown.exit.is_none()
            && !procfs::has_seccomp(self.tracee.pid)
    }

    /// Whether a detach has to take the handler out, or to unmap memory, and this thread can do it. It may have been
    /// seen for the first time just now.
    pub(super) fn is_to_uninstall_handler(&self, tid: i32) -> Result<bool> {
        if procfs::thread_group(tid)? == Some(self.tracee.pid) {
            return Ok(self.has_last_calls());
        }
        Ok(!self.shares_trap_action(tid) && self.has_sigtrap_fallback_of_sharer(tid))
    }

    /// A thread is about to be detached from at this stop, where all original bytes are back: if it is one at which it
    /// can make a system call, it takes the handler out. False if it is still about to: it will stop once more.
    pub(super) fn uninstall_sigtrap_fallback_by(&mut self, status: WaitStatus, thread: &Stopped) -> bool {
        let fits = matches!(status, WaitStatus::Signal(SIGTRAP) | WaitStatus::EventStop | WaitStatus::GroupStop(_));
        if !fits || !self.is_to_uninstall_handler(thread.tid()).unwrap_or(false) {
            return true;
        }
        let shares = self.shares_trap_action(thread.tid());
        if shares && self.keeps_handler_for_others(thread.tid()) {
            return true;
        }
        let retired = insist(|| match shares {
            true if !self.has_handler_to_uninstall() => Ok(()),
            true => self.uninstall_sigtrap_fallback(thread),
            false => self.uninstall_sigtrap_fallback_of_sharer(thread),
        });
        match retired {
            Err(TracerError::Unresponsive { .. }) => return false,
            Err(error) if !error.is_out_of_reach() => tracing::warn!("{error}"),
            _ => {}
        }
        !shares || self.unmap_added_memory(thread)
    }

    /// Which of the threads, all of which sleep, is disturbed least by being interrupted to take the handler out. An
    /// error if there is none that could; None if there is none at this moment.
    pub(super) fn choose_who_uninstalls(
        &self,
        tried: &BTreeSet<i32>,
    ) -> std::result::Result<Option<i32>, NoThreadAvailable> {
        let is_candidate = |task: &&Task| task.role == Role::Thread && !tried.contains(&task.id.tid);
        let candidates: Vec<&Task> = self.tracee.tasks.iter().filter(is_candidate).collect();
        let rank = |task: &Task| match task.listening {
            true => Some(Disturbance::Stopped),
            false => disturbance(self.tracee.pid, task.id.tid),
        };
        // memory can wait for the next heaptrace
        let is_worth_it = |rank: &Disturbance| self.has_handler_to_uninstall() || *rank <= Disturbance::Unnoticed;
        let ranked = candidates.iter().filter_map(|task| Some((rank(task).filter(is_worth_it)?, task.id.tid)));
        let best = ranked.min().map(|(_, tid)| tid);
        // A parent in vfork (D) comes back when its child has executed its program.
        let may_come = |task: &Task| !matches!(procfs::state(self.tracee.pid, task.id.tid), None | Some(b'Z' | b'X'));
        let is_awaited = self.has_handler_to_uninstall() && candidates.into_iter().any(may_come);
        if best.is_none() && !is_awaited { Err(NoThreadAvailable) } else { Ok(best) }
    }
}
