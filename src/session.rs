//! The loop that joins tracer, unwinder, calls and heap model: it waits for stops, decides what each means, and lets
//! the task go on.
//!
//! | Stop | Handler | File |
//! |---|---|---|
//! | the first of a new task | `Session::on_new_task` | `children.rs` |
//! | SIGTRAP: a breakpoint of ours, or the program's own | `Process::on_trap` | `trap.rs`, what it means: `hit.rs` |
//! | another signal | `Process::before_signal` | `trap.rs` |
//! | a group stop (SIGSTOP and its kin) | `Tracee::leave_pad_for_signal` | `trap.rs` |
//! | an interrupt of ours, or the end of a group stop | `Process::decide` | `process.rs` |
//! | clone, fork, vfork | `Session::follow_child`, `Stops::announce` | `children.rs`, `stops.rs` |
//! | the return from vfork | `Process::on_vfork_done` | `detach/early.rs` |
//! | exec | `Session::on_exec` | `exec.rs` |
//! | a task is about to end | `LeakScanner::on_thread_ending`, `Process::on_exit` | `leakscan.rs`, `process.rs` |
//! | a task has ended | `Session::note_end` | `session.rs` |
//! | any, of a process that is being detached from | `Session::on_stop_of_detaching` | `detach.rs` |
//! | any, while all are detached from | `Session::detach_task` | `detach.rs` |
//! | none: somebody asks for something | `Session::obey` | `orders.rs` |
//!
//! What a stop means is decided by the process that it happens in: its threads, the images it becomes by exec, and the
//! short-lived children that share its memory. All of it runs on one thread, the tracer thread. A handler answers with
//! an `Action` (`stop.rs`), which the loop alone carries out, so that no path can forget to resume a task; only where
//! tasks are detached from, `detach.rs` resumes and detaches them itself.
//!
//! A `Process` is dispatch. It consists of objects that know nothing of it, each in its file (`sigtrap.rs`,
//! `leakscan.rs`, `heapcopy.rs`, `existing.rs`, `jump.rs`, `teardown.rs`, …): they own what they decide about, and get
//! the `Tracee` and the `Observer` for the rest. What is to be done elsewhere they answer, and `Process` does it.

mod addedmemory;
mod aftermath;
mod archive;
mod arenas;
mod awaited;
mod begin;
mod breakoff;
mod children;
mod common;
mod copylease;
mod cost;
mod detach;
mod earlyfallback;
mod endings;
mod engine;
mod error;
mod exec;
mod existing;
mod fill;
mod finish;
mod heapcapture;
mod heapcopy;
mod hit;
mod identity;
mod interim;
mod jump;
mod kernelheld;
mod leakrecord;
mod leakscan;
mod misdeclared;
mod modulerecord;
mod nearend;
mod observer;
mod orders;
mod pausing;
mod period;
mod pertest;
mod pinning;
mod process;
mod prospect;
mod recording;
mod requests;
mod resolving;
mod settings;
mod sigtrap;
mod slots;
mod space;
mod stop;
mod stopcost;
mod stops;
mod tasks;
mod teardown;
mod testsrecord;
mod ticker;
mod traced;
mod tracee;
mod tracerecord;
mod trap;
mod unseen;

pub use aftermath::TracingAborted;
pub use archive::{Archive, ArchivedRecording};
pub use breakoff::trace;
pub use endings::{Ended, Endings};
pub use error::SessionError;
pub use heapcapture::HeapCapture;
pub use interim::LiveSnapshot;
pub use leakrecord::LeakScan;
pub use modulerecord::ModuleRecord;
pub use nearend::NearEnd;
pub use period::ReportedTotals;
#[cfg(test)]
pub use prospect::JumpIneligible;
pub use prospect::{EngineForecast, prospect_of};
pub use recording::Recording;
pub use recording::StreamEnd;
pub use requests::{Answer, RequestKind, Requests};
pub use settings::{Settings, Target, new_session_id};
pub use space::OwnSuppressions;
pub use traced::Traced;

use crate::event::{EventKind, Missed};
use crate::profile::Exit;
use crate::tracer::TracerError;
use crate::tracer::launch::Launched;
use crate::tracer::limits;
use crate::tracer::ptrace::Stopped;
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use common::Common;
use endings::Ending;
use process::Process;
use requests::Request;
use slots::{Slot, Slots};
use std::time::Instant;
use stop::{Action, Serving, Stop};
use stops::{Next, Stops};
use tasks::Role;
use ticker::Ticker;

/// A session in progress; see the module's head.
#[derive(Debug)]
pub struct Session {
    common: Common,
    processes: Slots<Process>,
    stops: Stops,
    /// The process that tracing began with. Its place may be another one's since, if others are followed.
    first: Slot,
    /// Its id.
    first_pid: i32,
    /// What is left of processes that have ended while others go on.
    finished: Vec<ArchivedRecording>,
    /// Where that lies.
    archive: Archive,
    /// How many processes are being detached from, while others are traced on.
    detaching: usize,
    /// Drives the draining of what the jump engine records.
    ticker: Ticker,
    /// Who waits for a heap whose blocks from before the attach the readers still lack.
    postponed: Vec<Request>,
    /// A launched program at its first stop, before its first instruction.
    unstarted: Option<(Launched, Stopped)>,
}

impl Session {
    /// Traces until the program has ended, or has been detached from because the control thread asked for it.
    ///
    /// # Errors
    /// Only if waiting itself fails; the target's code has been restored then, as far as possible.
    fn run(&mut self) -> Result<(), SessionError> {
        while self.goes_on() {
            // threads that have not been served yet would stand until the walk has ended
            if self.common.control.detach_requested() && !self.awaits_existing() {
                break;
            }
            if limits::is_memory_short() {
                return Err(SessionError::OutOfMemory);
            }
            self.obey()?;
            self.tick();
            if !self.serve_next()? {
                break;
            }
        }
        // What is left shares the memory, or belongs to a process that is detached from.
        if self.processes.iter().any(|process| !process.tracee.tasks.is_empty()) {
            let Self { processes, stops, .. } = self;
            for process in processes.iter_mut().filter(|process| !process.tracee.tasks.is_empty()) {
                process.teardown.detached = process.teardown.exit.is_none();
                if process.teardown.detached {
                    process.scan_before_detach(stops);
                }
            }
            self.detach()?;
        } else {
            self.detach_reported()?;
            for process in self.processes.iter_mut() {
                process.teardown.exit = process.teardown.exit.or(process.teardown.killed_by);
            }
        }
        for process in self.processes.iter_mut() {
            process.cost.measured.wall_ns = process.observer.age_ns();
        }
        Ok(())
    }

    /// Whether the heap of a process lacks blocks from before the attach.
    fn awaits_existing(&self) -> bool {
        self.processes.iter().any(|process| process.existing.are_awaited())
    }

    fn goes_on(&self) -> bool {
        // A child that was forked just before the end still has a copy of our breakpoints: it must be seen.
        if !self.stops.expected.is_empty() || !self.stops.held.is_empty() {
            return true;
        }
        let lives = |process: &Process| !process.tracee.tasks.is_empty() && process.teardown.exit.is_none();
        match self.common.settings.follow {
            true => !self.processes.is_empty(),
            false => self.processes.get(self.first).is_some_and(lives),
        }
    }

    /// Waits for the next stop, or takes one that was collected, and deals with it. False if no task is left.
    fn serve_next(&mut self) -> crate::tracer::Result<bool> {
        // Only the first process is ever pinned.
        let pinned = self.processes.get(self.first).is_some_and(|process| process.affinity.is_shared());
        self.common.progress.serves(false);
        let has_more = self.processes.iter().any(|process| process.existing.has_some_to_tell());
        let look_until = if has_more { Some(Instant::now()) } else { self.ticker.look_until() };
        let next = self.stops.next(pinned, look_until)?;
        self.common.progress.serves(true);
        match next {
            Next::Stop(stop) => {
                self.on_stop(stop)?;
                self.stops.be_fair()?;
            }
            Next::End(tid, status) => self.note_end(tid, status),
            Next::Nothing => self.ticker.wake(),
            Next::NoTasks => return Ok(false),
        }
        Ok(true)
    }

    /// A task appears.
    fn add_task(&mut self, slot: Slot, tid: i32, role: Role) {
        if let Some(process) = self.processes.get_mut(slot) {
            let task = process.tracee.tasks.add(tid, role);
            if let Some(joined) = process.tests.on_thread_come(task) {
                process.settle();
                process.observer.tell(joined);
            }
            if role == Role::VmSharer {
                process.jump.note_modes(&process.tracee, &process.observer, &process.sigtrap);
            }
            self.stops.assign(tid, slot);
        }
    }

    /// A task is gone, or no longer ours.
    fn forget_task(&mut self, tid: i32) {
        if let Some(process) = self.stops.owner_of(tid).and_then(|slot| self.processes.get_mut(slot)) {
            process.tracee.tasks.remove(tid);
        }
        self.stops.forget(tid);
    }

    /// Answers a stop: see the table at the head.
    fn on_stop(&mut self, mut stop: Stop) -> crate::tracer::Result<()> {
        if stop.slot.is_none() && self.stops.is_detaching(stop.tid()) {
            return self.detach_dying(stop.stopped);
        }
        if self.detaching > 0
            && let Some(slot) = self.detaching_process(&stop)
        {
            self.on_stop_of_detaching(slot, stop);
            return Ok(());
        }
        let noticed = Instant::now();
        let reported = stop.status;
        let action = match self.decide(&mut stop) {
            Ok(action) => action,
            Err(error) if error.is_out_of_reach() => Action::Gone,
            Err(error) if error.may_come_of_dying() && stop.stopped.is_being_killed() => {
                tracing::debug!("at a stop of task {}, which is being killed: {error}", stop.tid());
                Action::Gone
            }
            Err(error) => self.action_after(error, reported, &stop)?,
        };
        let slot = self.slot_of(&stop);
        self.carry_out(stop, action)?;
        if let Some(process) = self.processes.get_mut(slot) {
            process.cost.count_stop(noticed.elapsed());
        }
        Ok(())
    }

    /// What to do with a task at whose stop something has failed.
    ///
    /// # Errors
    /// What has failed, where nobody knows what to do with the task: to let it run on could be its death.
    fn action_after(&mut self, error: TracerError, reported: WaitStatus, stop: &Stop) -> crate::tracer::Result<Action> {
        let Some(slot) = stop.slot else { return Err(error) };
        if matches!(reported, WaitStatus::Signal(SIGTRAP) | WaitStatus::Event(Event::Exec)) {
            return Err(error);
        }
        tracing::warn!("{error}");
        if let Some(process) = self.processes.get_mut(slot) {
            process.observer.tell(EventKind::Missed(Missed::Call));
        }
        Ok(match reported {
            WaitStatus::Signal(signal) => Action::Resume(signal),
            WaitStatus::GroupStop(_) => Action::Listen,
            _ => Action::Resume(0),
        })
    }

    /// Carries out what was decided for a stop.
    fn carry_out(&mut self, stop: Stop, action: Action) -> crate::tracer::Result<()> {
        let Stop { status, stopped, slot } = stop;
        let tid = stopped.tid();
        if let Some(serving) = &mut self.stops.serving {
            serving.answer = Some(action);
        }
        if let Some(process) = slot.and_then(|slot| self.processes.get_mut(slot)) {
            process.tracee.space.image.memory.stands_still(None);
        }
        let done = match action {
            Action::Resume(signal) => stopped.resume(signal),
            Action::Listen => stopped.listen(),
            Action::Detach => {
                self.forget_task(tid);
                self.stops.begin_detach(tid);
                let done = stopped.detach(0);
                if done.is_ok() {
                    self.stops.end_detach(tid);
                }
                if let Some(slot) = slot {
                    self.finish_if_over(slot);
                }
                done
            }
            Action::Hold => {
                self.stops.held.push((tid, status));
                Ok(())
            }
            Action::Gone => Ok(()),
        };
        match done {
            Err(error) if !error.is_out_of_reach() => return Err(error),
            _ => {}
        }
        self.stops.serving = None;
        Ok(())
    }

    /// What a stop means, and what else was reported of the task while that was found out.
    fn decide(&mut self, stop: &mut Stop) -> crate::tracer::Result<Action> {
        loop {
            self.stops.serving = Some(Serving { tid: stop.tid(), status: stop.status, answer: None });
            if stop.slot.is_none()
                && let Some(action) = self.on_new_task(stop)?
            {
                return Ok(action);
            }
            match self.decide_in_process(stop) {
                Err(TracerError::Overtaken { status, .. }) => stop.status = status,
                decided => return decided,
            }
        }
    }

    fn decide_in_process(&mut self, stop: &mut Stop) -> crate::tracer::Result<Action> {
        let Some(slot) = stop.slot else { return Ok(Action::Gone) };
        let Some(process) = self.processes.get_mut(slot) else { return Ok(Action::Gone) };
        process.tracee.space.image.memory.stands_still(Some(stop.tid()));
        match stop.status {
            WaitStatus::Event(Event::Exec) => return self.on_exec(stop),
            // Reported while the task made a call for us.
            WaitStatus::Exited(_) | WaitStatus::Signaled(_) => {
                self.note_end(stop.tid(), stop.status);
                return Ok(Action::Gone);
            }
            WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone) if self.common.settings.follow => {
                self.follow_child(slot, &stop.stopped);
            }
            _ => {}
        }
        match self.processes.get_mut(slot) {
            Some(process) => process.decide(stop, &mut self.stops),
            None => Ok(Action::Gone),
        }
    }

    fn note_end(&mut self, tid: i32, status: WaitStatus) {
        if self.processes.iter_mut().any(|process| process.copies.note_end_of_copy(&mut process.tracee, tid)) {
            return;
        }
        // The program that was started is our child, also when it was detached from.
        let Some(slot) = self.stops.owner_of(tid).or_else(|| self.processes.find(tid)) else { return };
        if let Some(process) = self.processes.get_mut(slot) {
            let task = process.tracee.tasks.remove(tid);
            if tid == process.tracee.pid {
                process.teardown.exit = exit_of(status);
            } else if matches!(status, WaitStatus::Signaled(_)) && task.is_some_and(|task| task.role == Role::Thread) {
                // A signal ends all threads of a process. A leader that was ending already could not be attached to.
                process.teardown.killed_by = exit_of(status);
            }
        }
        self.stops.forget(tid);
        self.finish_if_over(slot);
    }

    /// Where others are followed: keeps of a process without tasks what it has found out, and nothing else.
    fn finish_if_over(&mut self, slot: Slot) {
        let Some(process) = self.processes.get(slot) else { return };
        let is_awaited =
            process.tracee.pid == self.first_pid && process.teardown.exit.is_none() && !self.common.attached;
        if !self.common.settings.follow || !process.tracee.tasks.is_empty() || is_awaited {
            return;
        }
        self.detach_held_children_of(slot);
        if let Some(mut process) = self.processes.remove(slot) {
            self.detaching -= usize::from(process.teardown.detaching);
            process.teardown.detached &= process.teardown.exit.or(process.teardown.killed_by).is_none();
            process.cost.measured.wall_ns = process.observer.age_ns();
            process.teardown.exit = process.teardown.exit.or(process.teardown.killed_by);
            process.end();
            let recording = process.finish(None);
            if let Some(endings) = &self.common.settings.endings {
                endings.tell(Ending::Process(Box::new(recording.since(None))), &self.common.settings.requests);
            }
            self.finished.push(self.archive.add(recording));
        }
    }
}

/// How a process ended, if the status says that it has.
pub fn exit_of(status: WaitStatus) -> Option<Exit> {
    match status {
        WaitStatus::Exited(code) => Some(Exit::Code(code)),
        WaitStatus::Signaled(signal) => Some(Exit::Signal(signal)),
        _ => None,
    }
}
