//! One process under trace: its threads, the images it becomes by exec, its heap, and what heaptrace reports of it.

mod captures;
mod hits;
mod traps;

use super::awaited::Awaited;
use super::common::Common;
use super::cost::CostMeter;
use super::engine::EngineReport;
use super::existing::ExistingBlocks;
use super::fill::UnwrittenCapacity;
use super::heapcopy::HeapCopies;
use super::identity::{Identity, Owner};
use super::jump::JumpEngine;
use super::leakscan::{LeakScanner, ThreadEnding};
use super::observer::Observer;
use super::pertest::TestTracker;
use super::pinning::Affinity;
use super::resolving::Resolvers;
use super::sigtrap::SigtrapGuard;
use super::space::AddressSpace;
use super::stop::{Action, Stop};
use super::stops::Stops;
use super::tasks::{Role, Tasks};
use super::teardown::Teardown;
use super::tracee::Tracee;
use super::trap::leave_for_signal;
use super::unseen;
use crate::base::progress::Progress;
use crate::profile::Children;
use crate::tracer::libunwind::Libunwind;
use crate::tracer::ptrace::{SYSTEM_CALL_STOP, Stopped};
use crate::tracer::status::{Event, SIGTRAP, WaitStatus, is_fault};
use crate::tracer::{Result, procfs};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// See the module's head.
#[derive(Debug)]
pub struct Process {
    pub(super) tracee: Tracee,
    pub(super) progress: Arc<Progress>,
    pub(super) libunwind: Option<Rc<Libunwind>>,
    pub(super) identity: Identity,
    pub(super) sigtrap: SigtrapGuard,
    pub(super) teardown: Teardown,
    pub(super) affinity: Affinity,
    pub(super) leaks: LeakScanner,
    pub(super) tests: TestTracker,
    /// Copies of it that are read, or wanted.
    pub(super) copies: HeapCopies,
    pub(super) existing: ExistingBlocks,
    pub(super) children: Children,
    pub(super) observer: Observer,
    pub(super) cost: CostMeter,
    pub(super) jump: JumpEngine,
    pub(super) unwritten: UnwrittenCapacity,
    /// Whom probes wait for that take a thread to be placed.
    pub(super) awaited: Awaited,
    /// Functions that choose one of an allocator's.
    pub(super) resolvers: Resolvers,
    /// Stops of a kind that we do not know.
    pub(super) unknown_stops: u64,
}

const THROWS_UNSEEN: &str = "the program loaded a library that may throw exceptions from code without symbols: from \
    then on heaptrace recorded calls at stops";

impl Process {
    /// A process without tasks, whose memory is `space`.
    pub(super) fn new(pid: i32, observer: Observer, mut space: AddressSpace, common: &Common) -> Self {
        if common.settings.leak_scan.is_some() {
            space.probes.watch_exit();
        }
        if common.settings.per_test {
            space.modules.files.watch_tests();
        }
        space.python.show_python(common.settings.python);
        let born = Instant::now();
        common.progress.begins(pid, born);
        Self {
            tracee: Tracee {
                pid,
                tasks: Tasks::new(&common.serials),
                space,
                settings: Arc::clone(&common.settings),
                control: Arc::clone(&common.control),
                warnings: Vec::new(),
            },
            progress: Arc::clone(&common.progress),
            libunwind: common.libunwind.clone(),
            identity: Identity {
                parent: None,
                number: u64::from(observer.process().number),
                attached: common.attached,
                began: common.began,
                started_at: SystemTime::now(),
                born,
                program: String::new(),
                command: Vec::new(),
                cwd: procfs::working_directory(pid).unwrap_or_default(),
                owner: Owner::default(),
                selected: true,
                images: Vec::new(),
                thread_names: HashMap::new(),
            },
            sigtrap: SigtrapGuard::default(),
            teardown: Teardown { exit_kill: common.settings.exit_kill && !common.attached, ..Teardown::default() },
            affinity: Affinity::default(),
            leaks: LeakScanner::default(),
            tests: TestTracker::default(),
            copies: HeapCopies::default(),
            existing: ExistingBlocks::default(),
            children: Children::default(),
            observer,
            cost: CostMeter::new(pid, Arc::clone(&common.progress)),
            jump: JumpEngine::new(common.settings.engine, Arc::clone(&common.progress)),
            unwritten: UnwrittenCapacity::new(&common.settings),
            awaited: Awaited::default(),
            resolvers: Resolvers::default(),
            unknown_stops: 0,
        }
    }

    /// All that has happened until now is in the model from here on: an engine passes to the observer what it has seen,
    /// and calls missed what it can't pass on any more. Callers settle before the process changes as a whole (fork,
    /// exec, the end of a thread, modules that come and go) and before its heap is looked at (a capture, a leak scan, a
    /// pause, a detach, the end). The trap engine tells all it sees at the stop itself: it has nothing to add. The jump
    /// engine drains its rings.
    pub(super) fn settle(&mut self) {
        self.jump.settle(&mut self.tracee, &mut self.observer);
    }

    /// The same, and all blocks from before the attach are in the model, too: the heap is about to be looked at.
    pub(super) fn settle_heap(&mut self) {
        self.settle();
        self.existing.await_told(&mut self.tracee, &mut self.observer);
    }

    /// It has ended, while others go on: what it holds is given back, as far as its recording does not need it.
    pub(super) fn end(&mut self) {
        self.tracee.space.image.code.end_guard();
        self.observer.end();
        self.progress.ends(self.tracee.pid);
    }

    /// What a stop of one of its tasks means; of all but exec.
    pub(super) fn decide(&mut self, stop: &Stop, stops: &mut Stops) -> Result<Action> {
        let (tid, stopped) = (stop.tid(), &stop.stopped);
        let was_interrupted = self.tracee.tasks.get_mut(tid).is_some_and(|task| std::mem::take(&mut task.interrupted));
        match stop.status {
            WaitStatus::Signal(SIGTRAP) => self.on_trap(tid, stopped, stops),
            // Of a call for us that was not waited for to its end: the thread goes on by its own way back.
            WaitStatus::Signal(SYSTEM_CALL_STOP) => Ok(Action::Resume(0)),
            WaitStatus::Signal(signal) if self.jump.is_routine_fault(signal, stopped)? => {
                self.on_routine_fault(stopped, signal, stops)
            }
            WaitStatus::Signal(signal) => {
                self.before_signal(tid, stopped)?;
                if is_fault(signal) {
                    self.progress.fault();
                }
                Ok(Action::Resume(signal))
            }
            WaitStatus::GroupStop(_) => {
                self.tracee.leave_pad_for_signal(stopped)?;
                // the call that it is set back to was seen
                self.note_mode(tid);
                if let Some(task) = self.tracee.tasks.get_mut(tid) {
                    task.listening = true;
                }
                Ok(Action::Listen)
            }
            WaitStatus::EventStop => {
                if let Some(task) = self.tracee.tasks.get_mut(tid) {
                    task.listening = false;
                }
                if was_interrupted {
                    stopped.restart_interrupted_call()?;
                }
                self.sigtrap.install_fallback_if_asked(&mut self.tracee, &mut self.teardown, stopped, stops)?;
                self.awaited.place_at_stop(&mut self.tracee, stopped)?;
                if self.copies.await_a_thread() {
                    self.copies.on_interrupted(&mut self.tracee, stopped)?;
                    self.go_on_with_captures(Some(stopped), stops)?;
                }
                Ok(Action::Resume(0))
            }
            WaitStatus::Event(event) => self.on_event(tid, event, stopped, stops),
            WaitStatus::Unknown(raw) => {
                self.unknown_stops += 1;
                tracing::warn!("unknown stop {raw:#x} of task {tid}");
                Ok(Action::Resume(0))
            }
            WaitStatus::Exited(_) | WaitStatus::Signaled(_) => Ok(Action::Gone),
        }
    }

    /// Before a signal is delivered: its handler must see an untouched program.
    pub(super) fn before_signal(&mut self, tid: i32, stopped: &Stopped) -> Result<()> {
        self.jump.leave_routine(&mut self.tracee, &mut self.observer, stopped)?;
        leave_for_signal(&mut self.tracee, &mut self.observer, stopped)?;
        self.note_mode(tid);
        Ok(())
    }

    fn on_event(&mut self, tid: i32, event: Event, stopped: &Stopped, stops: &mut Stops) -> Result<Action> {
        match event {
            Event::Clone | Event::Fork | Event::Vfork => {
                stops.announce(event, stopped)?;
                if event == Event::Vfork {
                    self.jump.share_cell(tid, true);
                    self.note_mode(tid);
                }
                if event == Event::Clone {
                    let child = i32::try_from(stopped.event_message()?).ok();
                    if let Some(joined) = self.tests.on_thread_made(&self.tracee, tid, child) {
                        self.settle();
                        self.observer.tell(joined);
                    }
                    self.affinity.unpin(&self.tracee.tasks);
                }
                Ok(Action::Resume(0))
            }
            Event::VforkDone => {
                self.jump.share_cell(tid, false);
                self.note_mode(tid);
                self.on_vfork_done(tid, stopped, stops)?;
                Ok(Action::Resume(0))
            }
            // The session's, as the process may become another one's.
            Event::Exec => Ok(Action::Resume(0)),
            Event::Exit => {
                self.settle();
                if self.tracee.tasks.iter().all(|task| task.id.tid == tid || task.role != Role::Thread || task.ending) {
                    self.existing.await_told(&mut self.tracee, &mut self.observer);
                }
                let noted = match self.leaks.on_thread_ending(&mut self.tracee, tid, stopped, stops) {
                    Ok(ThreadEnding::One) => Ok(()),
                    Ok(ThreadEnding::Last(due)) => {
                        self.look_at_heap(tid, due);
                        Ok(())
                    }
                    Err(error) => Err(error),
                };
                self.on_exit(tid);
                if self.tracee.tasks.iter().all(|task| task.role != Role::Thread || task.ending) {
                    self.copies.end_all();
                    if self.identity.selected {
                        captures::tell_near_end(&mut self.tracee, &mut self.observer);
                    }
                }
                noted?;
                Ok(Action::Resume(0))
            }
        }
    }

    /// A task is about to end: its name is still there, and what it had begun will not return.
    fn on_exit(&mut self, tid: i32) {
        self.cost.note_cpu_time();
        // The memory is there until the last thread has gone on from here. To a first thread that has ended others are
        // left, of which any may be the last.
        if tid == self.tracee.pid || self.tracee.tasks.get(self.tracee.pid).is_none_or(|first| first.ending) {
            self.cost.note_peak_resident(tid);
            self.settle();
            unseen::judge(&mut self.tracee, &mut self.observer, &self.identity, tid);
        }
        self.sigtrap.forget_thread(tid);
        if tid == self.tracee.pid {
            self.identity.owner.note(tid);
        }
        if let Some(task) = self.tracee.tasks.get(tid).copied() {
            self.identity.thread_names.insert(task.id.serial, procfs::thread_name(tid));
            self.jump.free_cell(&mut self.tracee, &mut self.observer, task.id);
            self.end_calls_of(task.id);
            self.tests.end_tests_of(&mut self.observer, task.id);
            self.tracee.release_dropped_sites(&mut self.observer);
        }
    }

    pub(super) fn end_calls_of(&mut self, task: crate::base::addr::TaskId) {
        self.settle();
        self.observer.observe(EngineReport::End(task));
        self.resolvers.forget(task.tid);
    }

    /// Reads the maps again: probes for new modules, nothing left of vanished ones. None: threads run, each of which
    /// may end at any moment.
    pub(super) fn refresh_modules(&mut self, tid: Option<i32>) {
        let Tracee { pid, tasks, space, settings, .. } = &mut self.tracee;
        let mut look = |tid| space.refresh(tid, &settings.table, &settings.search);
        let refreshed = match tid {
            Some(tid) => look(tid),
            None => procfs::through_any(*pid, tasks.tids(), look),
        };
        match refreshed {
            Ok(warnings) => {
                for warning in warnings {
                    self.tracee.warn_once(warning);
                }
            }
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => self.tracee.warn_once(error.to_string()),
        }
        self.jump.forget_stale_nodes(&self.tracee);
        if self.tracee.space.probes.guards_are_passed(&self.tracee.space.modules) && self.jump.on().is_some() {
            self.tracee.warn_once(THROWS_UNSEEN.to_owned());
            self.jump.note_modes(&self.tracee, &self.observer, &self.sigtrap);
        }
        self.observer.define_modules(self.tracee.space.modules.module_records());
    }
}
