//! The loop that joins tracer, unwinder, calls and heap model: it waits for stops, decides what each means, and lets
//! the task go on.
//!
//! What a stop means is decided by the process that it happens in: its threads, the images it becomes by exec, and the
//! short-lived children that share its memory. All of it runs on one thread, the tracer thread. For every stop a handler
//! answers with an `Action`; the loop alone carries it out, so no path can forget to resume a task.

mod action;
mod aftermath;
mod archive;
mod begin;
mod breakoff;
mod children;
mod common;
mod detach;
mod engine;
mod error;
mod finish;
mod heapcapture;
mod hit;
mod identity;
mod leakrecord;
mod leakscan;
mod modulerecord;
mod observer;
mod owntracer;
mod pausing;
mod pinning;
mod process;
mod recording;
mod requests;
mod settings;
mod signalstate;
mod sigtrap_fallback;
mod slots;
mod space;
mod stopcost;
mod stops;
mod tasks;
mod teardown;
mod traced;
mod trap;
mod trapmask;
mod vm_sharers;

pub use aftermath::BreakOff;
pub use breakoff::trace;
pub use error::SessionError;
pub use heapcapture::HeapCapture;
pub use leakrecord::LeakScan;
pub use modulerecord::ModuleRecord;
pub use recording::Recording;
pub use requests::{Answer, Requests, Wish};
pub use settings::{Settings, Target};
pub use space::OwnSuppressions;
pub use traced::Traced;

use crate::profile::Exit;
use crate::tracer::control;
use crate::tracer::guardian::Guardian;
use crate::tracer::launch::Launched;
use crate::tracer::limits;
use crate::tracer::ptrace::Stopped;
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use action::{Action, Serving};
use archive::{Archive, ArchivedRecording};
use common::Common;
use process::Process;
use slots::{Slot, Slots};
use std::time::Instant;
use stops::{Next, Stops};
use tasks::Role;

const GUARDIAN_REPLACED: &str = "the guardian process, which restores the program's code if heaptrace is killed, was killed or stopped \
                                 itself, and has been replaced: is there something that kills processes it does not know?";

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
    /// How many processes are about to be let go, while others are traced on.
    leaving: usize,
    /// A launched program at its first stop, before its first instruction.
    unstarted: Option<(Launched, Stopped)>,
}

impl Session {
    /// Traces until the program has ended, or has been let go because the control thread asked for it.
    ///
    /// # Errors
    /// Only if waiting itself fails; the target's code has been restored then, as far as possible.
    fn run(&mut self) -> Result<(), SessionError> {
        while self.goes_on() {
            if self.common.control.detach_requested() {
                break;
            }
            if limits::is_memory_short() {
                return Err(SessionError::OutOfMemory);
            }
            self.obey()?;
            if !self.serve_next()? {
                break;
            }
        }
        // What is left shares the memory, or belongs to a process that is let go.
        if self.processes.iter().any(|process| !process.tasks.is_empty()) {
            let Self { processes, stops, .. } = self;
            for process in processes.iter_mut().filter(|process| !process.tasks.is_empty()) {
                process.teardown.detached = process.teardown.exit.is_none();
                if process.teardown.detached {
                    process.scan_before_detach(stops);
                }
            }
            self.detach()?;
        } else {
            self.drain_detaching()?;
            for process in self.processes.iter_mut() {
                process.teardown.exit = process.teardown.exit.or(process.teardown.killed_by);
            }
        }
        for process in self.processes.iter_mut() {
            process.cost.wall_ns = process.lived_ns();
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        // A child that was forked just before the end still has a copy of our breakpoints: it must be seen.
        if !self.stops.expected.is_empty() || !self.stops.held.is_empty() {
            return true;
        }
        let lives = |process: &Process| !process.tasks.is_empty() && process.teardown.exit.is_none();
        match self.common.settings.follow {
            true => !self.processes.is_empty(),
            false => self.processes.get(self.first).is_some_and(lives),
        }
    }

    /// Does what others have asked for meanwhile.
    fn obey(&mut self) -> Result<(), SessionError> {
        if self.common.control.take_guard() {
            self.guard_anew();
        }
        while let Some(request) = self.common.settings.requests.take() {
            self.answer(request);
        }
        if let Some(pause) = self.common.control.take_pause() {
            for process in self.processes.iter_mut() {
                process.set_paused(pause);
            }
        }
        if let Some(signal) = self.common.control.take_forward() {
            // If the first one has ended, its children are what is left of the program.
            let first = self.processes.find(self.first_pid).and_then(|slot| self.processes.get(slot));
            let to: Vec<i32> = match first.filter(|process| process.teardown.exit.is_none()) {
                Some(first) => vec![first.pid],
                None => self.processes.iter().map(|process| process.pid).collect(),
            };
            for pid in to {
                control::send(pid, signal).or_else(|e| if e.is_out_of_reach() { Ok(()) } else { Err(e) })?;
            }
        }
        if self.common.control.take_end() {
            for process in self.processes.iter_mut() {
                process.scan_and_kill(&mut self.stops)?;
            }
        }
        Ok(())
    }

    /// The guardian was killed, and there is another one: it is told what stands in the memory of all.
    fn guard_anew(&mut self) {
        if !self.common.settings.guardian.as_ref().is_some_and(Guardian::take_over) {
            return;
        }
        for process in self.processes.iter_mut() {
            process.space.guard_anew(process.signals.fallback.handler());
        }
        let first = self.processes.find(self.first_pid).and_then(|slot| self.processes.get_mut(slot));
        if let Some(process) = first {
            process.warn_once(GUARDIAN_REPLACED.to_owned());
        }
    }

    /// Does what another heaptrace has asked for, through the thread that talks to it.
    fn answer(&mut self, request: requests::Request) {
        if request.wish == Wish::Detach
            && request.pid != self.first_pid
            && let Some(slot) = self.processes.find(request.pid)
        {
            self.begin_leaving(slot);
            let _ = request.reply.send(Ok(Answer::Detaching));
            return;
        }
        let process = self.processes.find(request.pid).and_then(|slot| self.processes.get_mut(slot));
        let reply = match process {
            Some(process) => match request.wish {
                Wish::Detach => {
                    self.common.control.request_detach();
                    Ok(Answer::Detaching)
                }
                Wish::Capture => process.capture(&mut self.stops).map(|capture| Answer::Captured(Box::new(capture))),
                Wish::Pause(pause) => {
                    self.common.control.request_pause(pause);
                    Ok(Answer::Paused { already: !process.set_paused(pause) })
                }
            },
            None => {
                let others = match self.processes.iter().filter(|process| process.pid != self.first_pid).count() {
                    0 => String::new(),
                    count => format!(" and {count} of its children"),
                };
                Err(format!("this heaptrace traces process {}{others}", self.first_pid))
            }
        };
        // The one who asked may have gone.
        let _ = request.reply.send(reply);
    }

    /// Waits for the next stop, or takes one that was collected, and deals with it. False if no task is left.
    fn serve_next(&mut self) -> crate::tracer::Result<bool> {
        // Only the first process is ever pinned.
        let pinned = self.processes.get(self.first).is_some_and(Process::is_pinned);
        self.common.progress.serves(false);
        let next = self.stops.next(pinned)?;
        self.common.progress.serves(true);
        match next {
            Next::Stop(tid, status, stopped) => {
                self.on_stop(tid, status, stopped)?;
                self.stops.be_fair()?;
            }
            Next::End(tid, status) => self.note_end(tid, status),
            Next::Nothing => {}
            Next::NoTasks => return Ok(false),
        }
        Ok(true)
    }

    fn process_of(&mut self, tid: i32) -> Option<&mut Process> {
        let slot = self.stops.owner_of(tid)?;
        self.processes.get_mut(slot)
    }

    /// A task appears.
    fn add_task(&mut self, slot: Slot, tid: i32, role: Role) {
        if let Some(process) = self.processes.get_mut(slot) {
            process.tasks.add(tid, role);
            self.stops.assign(tid, slot);
        }
    }

    /// A task is gone, or no longer ours.
    fn forget_task(&mut self, tid: i32) {
        if let Some(process) = self.process_of(tid) {
            process.tasks.remove(tid);
        }
        self.stops.forget(tid);
    }

    fn on_stop(&mut self, tid: i32, status: WaitStatus, stopped: Stopped) -> crate::tracer::Result<()> {
        if self.stops.is_let_go(tid) && self.stops.owner_of(tid).is_none() {
            return self.part_with_dying(tid, stopped);
        }
        if self.leaving > 0
            && let Some(slot) = self.leaving_home(tid, status)
        {
            self.leave(slot, tid, status, stopped);
            return Ok(());
        }
        let noticed = Instant::now();
        let action = match self.decide(tid, status, &stopped) {
            Ok(action) => action,
            Err(error) if error.is_out_of_reach() => Action::Gone,
            // Nobody knows what to do with the task: to let it run on could be its death.
            Err(error) if self.stops.owner_of(tid).is_none() => return Err(error),
            Err(error) => match status {
                WaitStatus::Signal(SIGTRAP) | WaitStatus::Event(Event::Exec) => return Err(error),
                _ => {
                    tracing::warn!("{error}");
                    if let Some(process) = self.process_of(tid) {
                        process.note_missed_call();
                    }
                    match status {
                        WaitStatus::Signal(signal) => Action::Resume(signal),
                        WaitStatus::GroupStop(_) => Action::Listen,
                        _ => Action::Resume(0),
                    }
                }
            },
        };
        let slot = self.slot_of(tid);
        self.carry_out(tid, stopped, action)?;
        if let Some(process) = self.processes.get_mut(slot) {
            process.count_stop(noticed.elapsed());
        }
        Ok(())
    }

    /// A task was killed when it was to be let go, and stops once more at its end.
    fn part_with_dying(&mut self, tid: i32, stopped: Stopped) -> crate::tracer::Result<()> {
        match stopped.detach(0) {
            Ok(()) => self.stops.has_left(tid),
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Carries out what was decided for a stop.
    fn carry_out(&mut self, tid: i32, stopped: Stopped, action: Action) -> crate::tracer::Result<()> {
        let mut status_of_serving = WaitStatus::EventStop;
        if let Some(serving) = &mut self.stops.serving {
            serving.answer = Some(action);
            status_of_serving = serving.status;
        }
        if let Some(process) = self.process_of(tid) {
            process.space.memory.stands_still(None);
        }
        let done = match action {
            Action::Resume(signal) => stopped.resume(signal),
            Action::Listen => stopped.listen(),
            Action::Detach => {
                let slot = self.stops.owner_of(tid);
                self.forget_task(tid);
                self.stops.begin_to_let_go(tid);
                let done = stopped.detach(0);
                if done.is_ok() {
                    self.stops.has_left(tid);
                }
                if let Some(slot) = slot {
                    self.finish_if_over(slot);
                }
                done
            }
            Action::Hold => {
                self.stops.held.push((tid, status_of_serving));
                Ok(())
            }
            Action::Gone | Action::Instead(_) => Ok(()),
        };
        match done {
            Err(error) if !error.is_out_of_reach() => return Err(error),
            _ => {}
        }
        self.stops.serving = None;
        Ok(())
    }

    fn decide(&mut self, tid: i32, status: WaitStatus, stopped: &Stopped) -> crate::tracer::Result<Action> {
        let mut status = status;
        loop {
            self.stops.serving = Some(Serving { tid, status, answer: None });
            if self.stops.owner_of(tid).is_none()
                && let Some(action) = self.on_new_task(stopped)?
            {
                return Ok(action);
            }
            match self.decide_in_process(tid, status, stopped)? {
                Action::Instead(other) => status = other,
                action => return Ok(action),
            }
        }
    }

    fn decide_in_process(&mut self, tid: i32, status: WaitStatus, stopped: &Stopped) -> crate::tracer::Result<Action> {
        let Self { processes, stops, .. } = self;
        let Some(process) = stops.owner_of(tid).and_then(|slot| processes.get_mut(slot)) else {
            return Ok(Action::Gone);
        };
        process.space.memory.stands_still(Some(tid));
        match status {
            WaitStatus::Event(Event::Exec) => return self.on_exec(tid, stopped),
            // Reported while the task made a call for us.
            WaitStatus::Exited(_) | WaitStatus::Signaled(_) => {
                self.note_end(tid, status);
                return Ok(Action::Gone);
            }
            WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone) if self.common.settings.follow => {
                self.follow_child(tid, stopped);
            }
            _ => {}
        }
        let Self { processes, stops, .. } = self;
        match stops.owner_of(tid).and_then(|slot| processes.get_mut(slot)) {
            Some(process) => process.decide(tid, status, stopped, stops),
            None => Ok(Action::Gone),
        }
    }

    fn note_end(&mut self, tid: i32, status: WaitStatus) {
        // The program that was started is our child, also when it has been let go.
        let Some(slot) = self.stops.owner_of(tid).or_else(|| self.processes.find(tid)) else { return };
        if let Some(process) = self.processes.get_mut(slot) {
            let task = process.tasks.remove(tid);
            if tid == process.pid {
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
        let is_awaited = process.pid == self.first_pid && process.teardown.exit.is_none() && !self.common.attached;
        if !self.common.settings.follow || !process.tasks.is_empty() || is_awaited {
            return;
        }
        self.release_held_children_of(slot);
        if let Some(mut process) = self.processes.remove(slot) {
            self.leaving -= usize::from(process.teardown.detaching);
            process.teardown.detached &= process.teardown.exit.or(process.teardown.killed_by).is_none();
            process.cost.wall_ns = process.lived_ns();
            process.teardown.exit = process.teardown.exit.or(process.teardown.killed_by);
            process.end();
            self.finished.push(self.archive.add(process.finish(None)));
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
