//! Detaching from the target so that it never notices: from all processes ([`Session::detach`]), or from one while the
//! others are traced on ([`Session::begin_detach_of`]).
//!
//! 1. The original code is written back, while threads run (`undo.rs`).
//! 2. Tasks that stand at a stop already are detached from: [`Session::detach_task`].
//! 3. heaptrace interrupts every thread that may stand behind a breakpoint, or in a pad (`ask.rs`). Threads that sleep
//!    are left alone, because a PTRACE_INTERRUPT would end epoll_wait and its kin early: the kernel detaches them when
//!    the tracer thread ends.
//! 4. A task that stops is moved to the original code (`prepare.rs`). It may have to run on, into a stop that is about
//!    to be reported.
//! 5. Where it can make a system call, it takes the SIGTRAP fallback out. Then it is detached from:
//!    [`Session::finish_detach`].
//! 6. Where all threads of a process sleep, and the fallback is still there, or memory of the jump engine
//!    (`region.rs`), one is woken for it (`ask.rs`). One thread stays stopped for it until all others have gone:
//!    [`Session::detach_last`]. Where some could not be stopped, as in a process that is frozen, the fallback stays:
//!    one of them may have hit a breakpoint already, and dies without it when it goes on.
//! 7. The pads are emptied when every thread was seen outside of them. What could not be done is noted (`undo.rs`), for
//!    [`super::aftermath`].
//!
//! A child that is about to do what only a task may that nobody traces is detached from before (`early.rs`).
//!
//! A request on which a task's life depends is repeated: [`insist`].

mod ask;
mod early;
mod prepare;
mod region;
mod undo;

use super::Session;
use super::error::SessionError;
use super::process::Process;
use super::slots::Slot;
use super::stop::{Action, Serving, Stop};
use super::tasks::Role;
use super::unseen;
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::status::{Event, WaitStatus};
use crate::tracer::{insist, procfs};
use ask::Asked;
use prepare::Prepared;
use std::time::{Duration, Instant};

/// How long threads are waited for before the detach goes on without them: those in an uninterruptible sleep can't
/// stop, and can't hit anything either.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The same while one of them is ready to run: it stops as soon as others leave it a processor, and would hit something
/// then.
const PATIENCE_WITH_READY: Duration = Duration::from_secs(60);

/// From then on the wait takes no processor, which the threads may be waiting for.
const SOON: Duration = Duration::from_millis(50);

impl Session {
    /// Restores the target's code and detaches from all its tasks. Afterwards the tracer thread must end. May be called
    /// again if it was broken off.
    pub(super) fn detach(&mut self) -> Result<(), SessionError> {
        let Self { processes, stops, .. } = self;
        for process in processes.iter_mut() {
            process.existing.await_told(&mut process.tracee, &mut process.observer);
            process.copies.end_before_detach(&mut process.tracee, process.teardown.exit, stops);
            process.affinity.unpin(&process.tracee.tasks);
            process.cost.note_peak_resident(process.tracee.pid);
            process.teardown.note_added_memory(&process.tracee, &process.jump);
            process.settle();
            let Process { tracee, observer, identity, .. } = &mut *process;
            unseen::judge(tracee, observer, identity, tracee.pid);
            process.settle();
            process.teardown.restore_code(&mut process.tracee);
        }
        self.detach_served();
        for (tid, status) in std::mem::take(&mut self.stops.held) {
            let stop = self.stops.stop(status, Stopped::regained(tid));
            self.detach_task(stop);
        }
        while let Some(stop) = self.stops.take_waiting() {
            self.detach_task(stop);
        }
        let mut asked = Asked::default();
        let began = Instant::now();
        loop {
            if let Err(error) = self.detach_reported() {
                tracing::warn!("{error}");
            }
            // A new thread may be at a breakpoint before it is known whose it is.
            let expecting = !self.stops.expected.is_empty();
            let mut waiting = expecting;
            for process in self.processes.iter_mut() {
                let Process { tracee, jump, teardown, .. } = process;
                teardown.threads_awaited = teardown.ask_to_stop(tracee, jump, &mut asked, &mut self.stops);
                waiting |= process.teardown.threads_awaited;
            }
            waiting |= self.detach_last(|process| !expecting && !process.teardown.threads_awaited);
            // Everybody sleeps: one of each process that still has our handler has to be woken.
            if !waiting {
                for process in self.processes.iter_mut() {
                    let Process { tracee, sigtrap, teardown, .. } = process;
                    waiting |= teardown.ask_to_uninstall(tracee, sigtrap, &mut asked);
                    waiting |= asked.ask_sharers_to_uninstall(tracee, sigtrap);
                }
            }
            if !waiting {
                break;
            }
            let waited = began.elapsed();
            let is_ready =
                || self.processes.iter().any(|process| process.teardown.awaits_a_ready_thread(&process.tracee, &asked));
            if waited > PATIENCE_WITH_READY || waited > TIMEOUT && !is_ready() {
                tracing::warn!("some threads did not stop for the detach within {} s", waited.as_secs());
                self.detach_last(|_| true);
                break;
            }
            if waited < SOON {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for process in self.processes.iter_mut() {
            process.teardown.note_stuck_threads(&mut process.tracee, &process.sigtrap, &asked);
        }
        self.detach_reported()
    }

    /// Detaches from the threads, of some processes, that were kept stopped until all others had gone. Whether there
    /// was one.
    fn detach_last(&mut self, of: impl Fn(&Process) -> bool) -> bool {
        let last: Vec<_> =
            self.processes.iter().filter(|process| of(process)).filter_map(|p| p.teardown.last_to_detach).collect();
        for (tid, status) in &last {
            let stop = self.stops.stop(*status, Stopped::regained(*tid));
            self.finish_detach(stop, 0);
        }
        for process in self.processes.iter_mut().filter(|process| of(process)) {
            process.teardown.last_to_detach = None;
        }
        !last.is_empty()
    }

    /// One process of several is to be detached from, while the others are traced on: takes its probes away and makes
    /// its threads stop. Each is detached from at its next stop: [`Self::on_stop_of_detaching`].
    pub(super) fn begin_detach_of(&mut self, slot: Slot) {
        let Self { processes, stops, .. } = self;
        let Some(process) = processes.get_mut(slot).filter(|process| !process.teardown.detaching) else { return };
        process.scan_before_detach(stops);
        process.copies.end_before_detach(&mut process.tracee, process.teardown.exit, stops);
        (process.teardown.detaching, process.teardown.detached) = (true, true);
        self.detaching += 1;
        process.affinity.unpin(&process.tracee.tasks);
        process.cost.note_peak_resident(process.tracee.pid);
        process.teardown.note_added_memory(&process.tracee, &process.jump);
        process.settle();
        let Process { tracee, observer, identity, .. } = &mut *process;
        unseen::judge(tracee, observer, identity, tracee.pid);
        process.settle();
        process.teardown.restore_code(&mut process.tracee);
        // The kernel detaches nobody by itself, as the tracer lives on.
        process.teardown.ask_to_stop(&mut process.tracee, &process.jump, &mut Asked::of_everyone(), stops);
        self.finish_if_over(slot);
    }

    /// The process of a task that has stopped, if that one is being detached from.
    pub(super) fn detaching_process(&self, stop: &Stop) -> Option<Slot> {
        let group = || self.processes.find(procfs::thread_group(stop.tid()).ok().flatten()?);
        let slot = stop.slot.or_else(group)?;
        let process = self.processes.get(slot).filter(|process| process.teardown.detaching)?;
        // A child that had shared its memory is a process of its own from its exec on, which is traced.
        let is_other_ones = stop.status == WaitStatus::Event(Event::Exec) && stop.tid() != process.tracee.pid;
        Some(slot).filter(|_| !is_other_ones)
    }

    /// Detaches from a stopped task of a process that [`Self::begin_detach_of`] was called for. What it has forked
    /// until now is a process of its own, which is traced.
    pub(super) fn on_stop_of_detaching(&mut self, slot: Slot, mut stop: Stop) {
        let (tid, status) = (stop.tid(), stop.status);
        if stop.slot.is_none() {
            self.stops.note_arrival(tid);
            self.add_task(slot, tid, Role::Thread);
            stop.slot = Some(slot);
        }
        if matches!(status, WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone)) {
            self.follow_child(slot, &stop.stopped);
            self.expect_thread(slot, &stop.stopped);
        }
        let has_new_image = status == WaitStatus::Event(Event::Exec);
        if has_new_image && let Some(process) = self.processes.get_mut(slot) {
            for old in process.forget_threads() {
                self.stops.forget(old);
            }
            self.add_task(slot, tid, Role::Thread);
        }
        let child = stop.stopped.event_message().ok().filter(|_| status == WaitStatus::Event(Event::Vfork));
        self.detach_task(stop);
        // Nobody will tell of its end.
        if let Some(child) = child.and_then(|child| i32::try_from(child).ok()) {
            self.stops.end_vfork(child);
        }
        let is_last = |process: &Process| process.teardown.last_to_detach.is_some() && process.tracee.tasks.len() == 1;
        if self.processes.get(slot).is_some_and(is_last) {
            self.detach_last(|_| true);
        }
        let Some(process) = self.processes.get_mut(slot) else { return };
        if !has_new_image && process.tracee.tasks.is_empty() && process.teardown.exit.is_none() {
            // Every thread has been seen outside the pads.
            process.sigtrap.clear_pads(&mut process.tracee);
            process.sigtrap.note_trap_action_left(&mut process.tracee);
            process.teardown.note_added_memory_left(&mut process.tracee);
        }
        self.finish_if_over(slot);
    }

    /// A thread of a process that is being detached from has just made another one: that will stop, too.
    fn expect_thread(&mut self, slot: Slot, parent: &Stopped) {
        let Some(new) = parent.event_message().ok().and_then(|new| i32::try_from(new).ok()) else { return };
        let is_thread = |process: &Process| procfs::thread_group(new).ok().flatten() == Some(process.tracee.pid);
        // It may have stopped, and gone, before this was told.
        if self.processes.get(slot).is_some_and(is_thread)
            && self.stops.owner_of(new).is_none()
            && !self.stops.early.contains(&new)
        {
            self.stops.early.insert(new);
            self.add_task(slot, new, Role::Thread);
        }
    }

    /// Takes all stops that are reported and detaches from those tasks.
    pub(super) fn detach_reported(&mut self) -> Result<(), SessionError> {
        while let Some((tid, status)) = self.stops.take_end() {
            self.note_end(tid, status);
        }
        loop {
            match ptrace::wait(false)? {
                Waited::Task(_, status, Some(stopped)) => {
                    let stop = self.stops.stop(status, stopped);
                    self.detach_task(stop);
                }
                Waited::Task(tid, status, None) => self.note_end(tid, status),
                Waited::Nothing | Waited::NoTasks => return Ok(()),
                Waited::Interrupted => {}
            }
        }
    }

    /// Detaches from the task in whose stop the session broke off.
    fn detach_served(&mut self) {
        let Some(Serving { tid, status, answer }) = self.stops.serving else { return };
        let stop = self.stops.stop(status, Stopped::regained(tid));
        match answer {
            None | Some(Action::Hold) => self.detach_task(stop),
            Some(Action::Gone) => self.stops.serving = None,
            Some(Action::Resume(signal)) => self.finish_detach(stop, signal),
            Some(Action::Listen | Action::Detach) => self.finish_detach(stop, 0),
        }
    }

    /// Detaches from a stopped task, or lets it run on into the stop at which that can be done. It is not left stopped
    /// if that can be helped: the kernel would detach it in the state that it is in.
    fn detach_task(&mut self, stop: Stop) {
        self.stops.serving = Some(Serving { tid: stop.tid(), status: stop.status, answer: None });
        let slot = self.slot_of(&stop);
        if let Some(process) = self.processes.get_mut(slot)
            && !process.tracee.space.probes.breakpoints.is_empty()
        {
            process.tracee.space.image.memory.stands_still(Some(stop.tid()));
            process.settle();
            process.teardown.restore_code(&mut process.tracee);
            process.tracee.space.image.memory.stands_still(None);
        }
        match insist(|| self.prepare_detach(slot, &stop)) {
            Ok(Prepared::Detach(signal)) => self.finish_detach(stop, signal),
            Ok(Prepared::RunOn(signal)) => {
                let _ = insist(|| Stopped::regained(stop.tid()).resume(signal));
            }
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => tracing::warn!("{error}"),
        }
        self.stops.serving = None;
    }

    /// Detaches from a task that has left the pads and the traps, or is in a pad at most, delivering `signal` (0:
    /// none).
    fn finish_detach(&mut self, stop: Stop, signal: i32) {
        let tid = stop.tid();
        let answer = Some(Action::Resume(signal));
        self.stops.serving = Some(Serving { tid, status: WaitStatus::Signal(signal), answer });
        let slot = self.slot_of(&stop);
        let mut left = Ok(());
        if let Some(process) = self.processes.get_mut(slot) {
            let Process { tracee, observer, jump, sigtrap, teardown, .. } = process;
            left = insist(|| jump.leave_routine_for_good(tracee, observer, &stop.stopped));
            left = left.and(insist(|| tracee.leave_pad(&stop.stopped)));
            sigtrap.close_trap_of_sharer(&stop.stopped);
            // Such a thread is detached from last, or at its next stop.
            if signal == 0
                && (teardown.stays_until_last(tracee, sigtrap, tid, stop.status)
                    || !teardown.make_last_calls(tracee, sigtrap, jump, stop.status, &stop.stopped))
            {
                self.stops.serving = None;
                return;
            }
            process.affinity.restore(tid);
        }
        self.stops.begin_detach(tid);
        let done = insist(|| Stopped::regained(tid).detach(signal));
        if done.is_ok() {
            self.stops.end_detach(tid);
        }
        match left.and(done) {
            Err(error) if !error.is_out_of_reach() => tracing::warn!("{error}"),
            _ => self.forget_task(tid),
        }
        self.stops.serving = None;
    }

    /// A task was killed when it was to be detached from, and stops once more at its end.
    pub(super) fn detach_dying(&mut self, stopped: Stopped) -> crate::tracer::Result<()> {
        let tid = stopped.tid();
        match stopped.detach(0) {
            Ok(()) => self.stops.end_detach(tid),
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
