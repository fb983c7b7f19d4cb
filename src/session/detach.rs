//! Letting go of the target so that it never notices.
//!
//! The order is that of hazards.md section 7: original bytes first, while threads run; then every thread that could be
//! standing in a breakpoint's trap or in a pad is moved to the original code; sleeping threads are left alone, because a
//! PTRACE_INTERRUPT would end epoll_wait and its kin early: the kernel detaches them when the tracer thread ends.

use super::Session;
use super::action::{Action, Serving};
use super::error::SessionError;
use super::process::Process;
use super::signalstate::{NobodyLeft, SIGTRAP_BIT};
use super::slots::Slot;
use super::stops::Stops;
use super::tasks::{Role, Task};
use super::trap::{leave_pad, pass_trap_to};
use crate::addr::Addr;
use crate::patches::PcLocation;
use crate::tracer::procfs::{self, Whereabouts};
use crate::tracer::ptrace::{self, RESUME_FLAG, RawRegs, SYSTEM_CALL_STOP, Stopped, Waited};
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long threads that run are waited for before the detach goes on without them. They only fail to stop in an
/// uninterruptible sleep, in which they can't hit anything either.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often a request is repeated on which a task's life depends.
const ATTEMPTS: u32 = 3;

/// What is asked for how often and of whom, in one detach.
#[derive(Debug, Default)]
struct Asked {
    /// Sleeping threads, which need not be stopped.
    settled: BTreeSet<i32>,
    /// Threads that were told to stop.
    asked: BTreeSet<i32>,
    /// Threads that were asked to take the handler for SIGTRAP out.
    tried: BTreeSet<i32>,
    /// The last of them, by process.
    retiring: BTreeMap<i32, i32>,
    /// Whether sleeping threads have to be stopped, too.
    everyone: bool,
}

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
        for process in self.processes.iter_mut() {
            process.unpin();
            process.note_peak_resident(process.pid);
            process.restore_code();
        }
        self.let_served_go();
        for (tid, status) in std::mem::take(&mut self.stops.held) {
            self.let_go(tid, status, Stopped::regained(tid));
        }
        while let Some((tid, status, stopped)) = self.stops.waiting.pop_front() {
            self.let_go(tid, status, stopped);
        }
        let mut asked = Asked::default();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Err(error) = self.drain_detaching() {
                tracing::warn!("{error}");
            }
            let mut waiting = !self.stops.expected.is_empty();
            for process in self.processes.iter_mut() {
                waiting |= process.ask_to_stop(&mut asked, &mut self.stops);
            }
            if !waiting {
                waiting = self.let_last_go();
            }
            // Everybody sleeps: one of each process that still has our handler has to be woken.
            if !waiting {
                for process in self.processes.iter_mut() {
                    waiting |= process.ask_to_retire(&mut asked);
                    waiting |= process.ask_sharers_to_retire(&mut asked);
                }
            }
            if !waiting {
                break;
            }
            if Instant::now() > deadline {
                tracing::warn!("some threads did not stop for the detach within {} s", PATIENCE.as_secs());
                self.let_last_go();
                break;
            }
            std::thread::yield_now();
        }
        for process in self.processes.iter_mut() {
            process.note_stuck(&asked.settled);
        }
        self.drain_detaching()
    }

    /// Lets go of the threads that were kept stopped until all others had gone. Whether there was one.
    fn let_last_go(&mut self) -> bool {
        let mut last = Vec::new();
        for process in self.processes.iter_mut() {
            last.extend(process.teardown.last_to_detach);
        }
        for (tid, status) in &last {
            self.part_with(*tid, *status, Stopped::regained(*tid), 0);
        }
        for process in self.processes.iter_mut() {
            process.teardown.last_to_detach = None;
        }
        !last.is_empty()
    }

    /// One process of several is to be let go, while the others are traced on: takes its probes away and makes its threads
    /// stop. Each is let go at its next stop.
    pub(super) fn begin_leaving(&mut self, slot: Slot) {
        let Self { processes, stops, .. } = self;
        let Some(process) = processes.get_mut(slot).filter(|process| !process.teardown.detaching) else { return };
        process.scan_before_detach(stops);
        (process.teardown.detaching, process.teardown.detached) = (true, true);
        self.leaving += 1;
        process.unpin();
        process.note_peak_resident(process.pid);
        process.restore_code();
        // The kernel detaches nobody by itself, as the tracer lives on.
        process.ask_to_stop(&mut Asked { everyone: true, ..Asked::default() }, stops);
        self.finish_if_over(slot);
    }

    /// The process of a task that has stopped, if that one is to be let go.
    pub(super) fn leaving_home(&self, tid: i32, status: WaitStatus) -> Option<Slot> {
        let group = || self.processes.find(procfs::thread_group(tid).ok().flatten()?);
        let slot = self.stops.owner_of(tid).or_else(group)?;
        let process = self.processes.get(slot).filter(|process| process.teardown.detaching)?;
        // A child that had shared its memory is a process of its own from its exec on, which is traced.
        let is_other_ones = status == WaitStatus::Event(Event::Exec) && tid != process.pid;
        Some(slot).filter(|_| !is_other_ones)
    }

    /// Lets go of a stopped task of a process that [`Self::begin_leaving`] was called for. What it has forked until now is a
    /// process of its own, which is traced.
    pub(super) fn leave(&mut self, slot: Slot, tid: i32, status: WaitStatus, stopped: Stopped) {
        if self.stops.owner_of(tid).is_none() {
            self.stops.note_arrival(tid);
            self.add_task(slot, tid, Role::Thread);
        }
        if matches!(status, WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone)) {
            self.follow_child(tid, &stopped);
            self.expect_thread(slot, &stopped);
        }
        let has_new_image = status == WaitStatus::Event(Event::Exec);
        if has_new_image && let Some(process) = self.processes.get_mut(slot) {
            for old in process.forget_threads() {
                self.stops.forget(old);
            }
            self.add_task(slot, tid, Role::Thread);
        }
        let child = stopped.event_message().ok().filter(|_| status == WaitStatus::Event(Event::Vfork));
        self.let_go(tid, status, stopped);
        // Nobody will tell of its end.
        if let Some(child) = child.and_then(|child| i32::try_from(child).ok()) {
            self.stops.end_vfork(child);
        }
        let is_last = |process: &Process| process.teardown.last_to_detach.is_some() && process.tasks.len() == 1;
        if self.processes.get(slot).is_some_and(is_last) {
            self.let_last_go();
        }
        let Some(process) = self.processes.get_mut(slot) else { return };
        if !has_new_image && process.tasks.is_empty() && process.teardown.exit.is_none() {
            // Every thread has been seen outside the pads.
            process.clear_pads();
            process.note_trap_action_left();
        }
        self.finish_if_over(slot);
    }

    /// A thread of a process that is to be let go has just made another one: that will stop, too.
    fn expect_thread(&mut self, slot: Slot, parent: &Stopped) {
        let Some(new) = parent.event_message().ok().and_then(|new| i32::try_from(new).ok()) else { return };
        let is_thread = |process: &Process| procfs::thread_group(new).ok().flatten() == Some(process.pid);
        // It may have stopped, and gone, before this was told.
        if self.processes.get(slot).is_some_and(is_thread)
            && self.stops.owner_of(new).is_none()
            && !self.stops.early.contains(&new)
        {
            self.stops.early.insert(new);
            self.add_task(slot, new, Role::Thread);
        }
    }

    /// Takes all stops that are waiting and detaches from those tasks.
    pub(super) fn drain_detaching(&mut self) -> Result<(), SessionError> {
        while let Some((tid, status)) = self.stops.take_end() {
            self.note_end(tid, status);
        }
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
        self.stops.serving = Some(Serving { tid, status, answer: None });
        let slot = self.slot_of(tid);
        if let Some(process) = self.processes.get_mut(slot)
            && !process.space.breakpoints.is_empty()
        {
            process.space.memory.stands_still(Some(tid));
            process.restore_code();
            process.space.memory.stands_still(None);
        }
        let mut parting = self.prepare_parting(tid, status, &stopped);
        for _ in 1..ATTEMPTS {
            match &parting {
                Err(error) if !error.is_out_of_reach() => parting = self.prepare_parting(tid, status, &stopped),
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
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => tracing::warn!("{error}"),
        }
        self.stops.serving = None;
    }

    /// Detaches from a task that has left the pads and the traps, or is in a pad at most.
    pub(super) fn part_with(&mut self, tid: i32, status: WaitStatus, stopped: Stopped, signal: i32) {
        let answer = Some(Action::Resume(signal));
        self.stops.serving = Some(Serving { tid, status: WaitStatus::Signal(signal), answer });
        let slot = self.slot_of(tid);
        let mut left = Ok(());
        if let Some(process) = self.processes.get_mut(slot) {
            left = process.leave_pad(&stopped);
            for _ in 1..ATTEMPTS {
                if left.is_err() {
                    left = process.leave_pad(&stopped);
                }
            }
            if signal == 0 && process.is_to_go_last(tid, status) {
                self.stops.serving = None;
                return;
            }
            if signal == 0 && !process.retire_sigtrap_fallback_by(status, &stopped) {
                // It is let go at its next stop.
                self.stops.serving = None;
                return;
            }
            process.restore_affinity(tid);
        }
        self.stops.begin_to_let_go(tid);
        let mut done = stopped.detach(signal);
        for _ in 1..ATTEMPTS {
            match &done {
                Err(error) if !error.is_out_of_reach() => done = Stopped::regained(tid).detach(signal),
                _ => break,
            }
        }
        if done.is_ok() {
            self.stops.has_left(tid);
        }
        match left.and(done) {
            Err(error) if !error.is_out_of_reach() => tracing::warn!("{error}"),
            _ => self.forget_task(tid),
        }
        self.stops.serving = None;
    }

    /// Moves a stopped thread to where it would be without us, and tells with which signal it is to be let go. Changes
    /// nothing before the last request that can fail, so that it can be called again.
    fn prepare_parting(&mut self, tid: i32, status: WaitStatus, thread: &Stopped) -> crate::tracer::Result<Parting> {
        match status {
            WaitStatus::Event(event @ (Event::Fork | Event::Vfork | Event::VforkDone | Event::Clone)) => {
                let mut retires = false;
                if let Some(process) = self.process_of(tid)
                    && process.is_to_retire_handler(tid)?
                {
                    // A parent in vfork can't stop before its child lets it. That is told of, too.
                    if event != Event::Vfork {
                        process.interrupt(tid)?;
                    }
                    retires = true;
                }
                if event != Event::VforkDone {
                    // The new task stops by itself, and is waited for.
                    self.stops.announce(event, thread)?;
                }
                return Ok(if retires { Parting::RunOn(0) } else { Parting::Detach(0) });
            }
            // A new image, with nothing of ours in it, or the end. A new task may be killed before its first stop.
            WaitStatus::Event(_) => {
                if self.stops.owner_of(tid).is_none() {
                    self.stops.note_arrival(tid);
                }
                return Ok(Parting::Detach(0));
            }
            WaitStatus::Signal(_) | WaitStatus::GroupStop(_) => {}
            _ if self.stops.owner_of(tid).is_none() => self.detach_new_child(thread)?,
            _ => {}
        }
        let slot = self.slot_of(tid);
        match self.processes.get_mut(slot) {
            Some(process) => process.prepare_parting(tid, status, thread),
            None => Ok(Parting::Detach(0)),
        }
    }
}

impl Process {
    /// Tells the threads to stop that have to, and notes those that need not. Whether there are some of the former.
    fn ask_to_stop(&mut self, asked: &mut Asked, stops: &mut Stops) -> bool {
        let mut waiting = false;
        // Where only a stopped thread's code can be changed, one has to be stopped.
        let needs_stop = self.space.is_refused_while_running() && !self.space.breakpoints.is_empty();
        let may_sleep_on = !self.teardown.exit_kill && !needs_stop && !asked.everyone;
        for tid in self.tasks.tids() {
            let is_last = self.teardown.last_to_detach.is_some_and(|(last, _)| last == tid);
            if is_last || asked.settled.contains(&tid) && !needs_stop {
                continue;
            }
            let Some(task) = self.tasks.get(tid).copied() else { continue };
            let group = procfs::thread_group(tid).ok().flatten().unwrap_or(self.pid);
            match procfs::state(group, tid) {
                None | Some(b'Z' | b'X') => {
                    self.tasks.remove(tid);
                    stops.forget(tid);
                    continue;
                }
                Some(b'S' | b'D' | b'I') if may_sleep_on && self.stands_clear(group, tid) => {
                    asked.settled.insert(tid);
                    continue;
                }
                Some(_) if task.listening && may_sleep_on && !procfs::has_pending(tid, SIGTRAP).unwrap_or(true) => {
                    // Its registers were seen, and if need be moved, when it entered the group stop.
                    asked.settled.insert(tid);
                    continue;
                }
                Some(_) => {}
            }
            waiting = true;
            if !asked.asked.contains(&tid) {
                match self.interrupt(tid) {
                    Err(error) => tracing::warn!("{error}"),
                    Ok(()) => {
                        asked.asked.insert(tid);
                    }
                }
            }
        }
        waiting
    }

    /// If our handler for SIGTRAP is still there: wakes a thread that can take it out. Whether one is on its way to.
    fn ask_to_retire(&mut self, asked: &mut Asked) -> bool {
        if !self.has_handler_to_retire() {
            return false;
        }
        if asked.retiring.get(&self.pid).is_some_and(|tid| self.tasks.get(*tid).is_some()) {
            return true;
        }
        let tid = match self.choose_who_retires(&asked.tried) {
            Ok(Some(tid)) => tid,
            Ok(None) => return true,
            Err(NobodyLeft) => return false,
        };
        asked.tried.insert(tid);
        asked.retiring.insert(self.pid, tid);
        if let Err(error) = self.interrupt(tid) {
            tracing::warn!("{error}");
        }
        true
    }

    /// The same for children that share the memory, which have the handler on their own.
    fn ask_sharers_to_retire(&mut self, asked: &mut Asked) -> bool {
        let mut waiting = false;
        for (pid, chosen) in self.sharers_to_retire(&asked.tried) {
            if asked.retiring.get(&pid).is_some_and(|tid| self.tasks.get(*tid).is_some()) {
                waiting = true;
                continue;
            }
            match chosen {
                Err(NobodyLeft) => {}
                Ok(None) => waiting = true,
                Ok(Some(tid)) => {
                    waiting = true;
                    asked.tried.insert(tid);
                    asked.retiring.insert(pid, tid);
                    if let Err(error) = self.interrupt(tid) {
                        tracing::warn!("{error}");
                    }
                }
            }
        }
        waiting
    }

    /// Whether a thread that is about to be let go stays stopped until all others have gone: it then puts back that the program
    /// ignores SIGTRAP.
    fn is_to_go_last(&mut self, tid: i32, status: WaitStatus) -> bool {
        let fits = matches!(status, WaitStatus::Signal(SIGTRAP) | WaitStatus::EventStop | WaitStatus::GroupStop(_));
        let goes_last = fits
            && self.teardown.last_to_detach.is_none()
            && self.ignores_trap()
            && self.is_own_thread(tid)
            && self.has_handler_to_retire()
            && self.tasks.len() > 1;
        if goes_last {
            self.teardown.last_to_detach = Some((tid, status));
        }
        goes_last
    }

    /// Whether others than the thread that goes last may still be at a breakpoint.
    pub(super) fn has_others_to_let_go(&self, tid: i32) -> bool {
        self.tasks.len() > 1 && self.teardown.last_to_detach.is_none_or(|(last, _)| last != tid)
    }

    /// Every thread was seen outside the pads: empties them, but for the handler if it could not be taken out.
    fn clear_pads(&mut self) {
        let others = || self.space.code.known_sigtrap_fallback().filter(|_| self.is_sigtrap_fallback_in_sharers());
        let kept = self.signals.fallback.handler().or_else(others);
        self.space.clear_own_code(kept);
    }

    /// At the end of a detach: who could not be let go. If that is nobody, the pads are emptied.
    fn note_stuck(&mut self, settled: &BTreeSet<i32>) {
        let is_settled = |task: &&Task| settled.contains(&task.id.tid);
        self.teardown.stuck_threads = self.tasks.len() - self.tasks.iter().filter(is_settled).count();
        if self.teardown.stuck_threads > 0 {
            tracing::warn!("{} threads could not be stopped for the detach", self.teardown.stuck_threads);
        } else {
            // Every thread has now been seen outside the pads, and none can enter one any more.
            self.clear_pads();
        }
        let is_caught = procfs::status_signals(self.pid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        if is_caught && self.has_handler_to_retire() {
            self.warn_once(format!(
                "the handler for SIGTRAP stays behind in process {}, as none of its threads could be stopped to take it out: a \
                 SIGTRAP of its own would not end it",
                self.pid
            ));
        }
        self.note_trap_action_left();
    }

    /// Writes the original code back, as far as that can be done now.
    fn restore_code(&mut self) {
        self.settle();
        if let Err(error) = self.space.restore() {
            tracing::warn!("the target's code could not be restored: {error}");
            // A process that dies of it takes its memory with it: what was missing must be known then.
            self.teardown.unrestored_probes = self.space.breakpoints.len();
        } else if self.teardown.exit.is_none() && procfs::state(self.pid, self.pid).is_some() {
            self.teardown.unrestored_probes = 0;
        }
    }

    /// Whether a sleeping thread stands neither in code of ours nor behind a breakpoint that it has just hit.
    fn stands_clear(&self, group: i32, tid: i32) -> bool {
        match procfs::whereabouts(group, tid) {
            Whereabouts::Blocked { pc, .. } => self.space.locate(pc) == PcLocation::Program,
            Whereabouts::Running | Whereabouts::Unknown => false,
        }
    }

    fn prepare_parting(&mut self, tid: i32, status: WaitStatus, thread: &Stopped) -> crate::tracer::Result<Parting> {
        let signal = match status {
            // Of a call for us that was not waited for to its end.
            WaitStatus::Signal(SYSTEM_CALL_STOP) => {
                self.interrupt(tid)?;
                return Ok(Parting::RunOn(0));
            }
            WaitStatus::EventStop if self.space.locate(Addr(thread.registers()?.0.rip)) == PcLocation::RemoteCall => {
                self.interrupt(tid)?;
                return Ok(Parting::RunOn(0));
            }
            WaitStatus::Signal(signal) => {
                let raw = thread.registers()?;
                let trap = Addr(raw.0.rip.wrapping_sub(1));
                if signal == SIGTRAP && self.is_past_trap(thread, &raw)? {
                    let (at_trap, is_moved) = thread.registers_at_trap()?;
                    if is_moved {
                        self.repair_trap_at_parting(thread, &at_trap, Addr(raw.0.rip))?;
                    }
                    self.leave_pad(thread)?;
                    0
                } else if signal == SIGTRAP
                    && self.space.locate(Addr(raw.0.rip)) == PcLocation::BehindTrap(trap)
                    && thread.is_breakpoint_trap()?
                {
                    self.repair_trap_at_parting(thread, &raw, trap)?;
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
            _ => {
                self.leave_pad(thread)?;
                if self.tasks.get(tid).is_some_and(|task| task.interrupted) {
                    thread.restart_interrupted_call()?;
                }
                0
            }
        };
        Ok(Parting::Detach(signal))
    }

    /// Whether a thread that has stopped for a breakpoint of ours has been moved to where it goes on: behind that, or, by a call
    /// that it was making for us, in front of it.
    fn is_past_trap(&self, thread: &Stopped, raw: &RawRegs) -> crate::tracer::Result<bool> {
        if raw.0.eflags & RESUME_FLAG != 0 && thread.is_breakpoint_trap()? {
            return Ok(true);
        }
        Ok(self.space.code.patches().is_or_was_at(Addr(raw.0.rip)) && !thread.has_signal_to_deliver()?)
    }

    /// Whether a thread has hit a breakpoint, whose signal still waits to be delivered.
    fn stands_behind_trap(&self, thread: &Stopped) -> crate::tracer::Result<bool> {
        let location = self.space.locate(Addr(thread.registers()?.0.rip));
        Ok(matches!(location, PcLocation::BehindTrap(_)) && procfs::has_pending(thread.tid(), SIGTRAP)?)
    }

    /// Moves a stopped thread out of a pad, to the original code.
    fn leave_pad(&self, thread: &Stopped) -> crate::tracer::Result<()> {
        let raw = thread.registers()?;
        match self.space.locate(Addr(raw.0.rip)) {
            PcLocation::Pad(resume) => leave_pad(thread, &raw, resume),
            _ => Ok(()),
        }
    }
}
