//! One process under trace: its threads, the images it becomes by exec, its heap, and what is to be told of it.

use super::borrowers::BorrowersTraps;
use super::leakscan::LeakWatch;
use super::pausing::Pause;
use super::sigtrap_fallback::FallbackState;
use super::space::{AddressSpace, SharedObjects};
use super::stopcost::StopCost;
use super::stops::Stops;
use super::tasks::Tasks;
use super::trapmask::TrapMask;
use super::{Action, Settings};
use crate::calls::Calls;
use crate::heapmodel::{HeapModel, Preexisting};
use crate::profile::{Anomalies, Children, Cost, Exit, Image};
use crate::progress::Progress;
use crate::tracer::affinity::CpuSet;
use crate::tracer::control::Control;
use crate::tracer::cputime::{self, CpuTime};
use crate::tracer::libunwind::Libunwind;
use crate::tracer::ptrace::{SYSTEM_CALL_STOP, Stopped};
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use crate::tracer::{Result, procfs};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// What all processes of a session share.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) settings: Arc<Settings>,
    pub(super) control: Arc<Control>,
    pub(super) progress: Arc<Progress>,
    pub(super) libunwind: Option<Rc<Libunwind>>,
    pub(super) began: Instant,
    pub(super) attached: bool,
    pub(super) numbers: Arc<AtomicU64>,
    pub(super) objects: SharedObjects,
}

impl Common {
    /// The place of the next process in the order of all.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Process {
    pub(super) settings: Arc<Settings>,
    pub(super) control: Arc<Control>,
    pub(super) progress: Arc<Progress>,
    pub(super) libunwind: Option<Rc<Libunwind>>,
    /// When the session began.
    pub(super) began: Instant,
    /// When this process did, as far as we know it.
    pub(super) started_at: SystemTime,
    pub(super) born: Instant,
    pub(super) pid: i32,
    /// The process that made it; None if tracing began with this one.
    pub(super) parent: Option<i32>,
    /// Its place in the order of all.
    pub(super) number: u64,
    pub(super) attached: bool,
    /// Whether its current image is one of those that are to be traced.
    pub(super) selected: bool,
    /// Whether it was let go before it became a program with other rights, or was traced by another process.
    pub(super) let_go: bool,
    /// The kernel would kill it with us.
    pub(super) exit_kill: bool,
    pub(super) tasks: Tasks,
    pub(super) space: AddressSpace,
    pub(super) calls: Calls,
    pub(super) model: HeapModel,
    pub(super) anomalies: Anomalies,
    pub(super) cost: Cost,
    pub(super) children: Children,
    pub(super) images: Vec<Image>,
    pub(super) thread_names: HashMap<u32, String>,
    pub(super) warnings: Vec<String>,
    pub(super) exit: Option<Exit>,
    /// How a thread ended that a signal has ended.
    pub(super) killed_by: Option<Exit>,
    pub(super) detached: bool,
    /// Whether it is about to be let go, while others are traced on.
    pub(super) leaving: bool,
    pub(super) affinity: Option<Pinned>,
    pub(super) program: String,
    pub(super) owner: Owner,
    pub(super) command: Vec<String>,
    pub(super) cwd: PathBuf,
    pub(super) unknown_stops: u64,
    pub(super) trap_mask: TrapMask,
    pub(super) fallback: FallbackState,
    /// The handler for SIGTRAP is to be installed at the next stop.
    pub(super) fallback_at_stop: bool,
    pub(super) borrowers_traps: BorrowersTraps,
    /// The thread that is let go last, stopped meanwhile.
    pub(super) last_to_go: Option<(i32, WaitStatus)>,
    /// Threads for which the handler for SIGTRAP was taken out a moment ago.
    pub(super) yielded: HashSet<i32>,
    pub(super) leaks: LeakWatch,
    pub(super) pause: Pause,
    /// Probes that could not be taken out of the code of a process that lives on.
    pub(super) unrestored: usize,
    /// Threads that could not be let go.
    pub(super) stuck: usize,
    /// Probes that could not be written while no thread stood still wait for one that does.
    pub(super) place_at_stop: bool,
    /// What was live when it was forked.
    pub(super) inherited_bytes: u64,
    /// The most that its current image is known to have had resident, in bytes.
    pub(super) peak_resident: Option<u64>,
    /// What it contributes to the live bytes that the progress line shows.
    pub(super) shown_bytes: u64,
    /// The CPU time that it had used when tracing began.
    pub(super) cpu_before: CpuTime,
    /// What a stop takes of its CPU time.
    pub(super) stop_cost: StopCost,
}

/// The user whom a process belongs to. It may change its user at any time: what it was is not forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// The effective user, when it was looked at last.
    pub user: Option<u32>,
    /// Whether it has ever had another user id than heaptrace's.
    pub is_another: bool,
}

impl Owner {
    /// Looks at it, while task `tid` of it is there.
    pub(super) fn note(&mut self, tid: i32) {
        let users = procfs::users(tid);
        self.user = users.get(1).copied().or(self.user);
        self.is_another |= users.iter().any(|&user| user != procfs::effective_user());
    }
}

/// The CPUs from before pinning.
#[derive(Debug)]
pub(super) struct Pinned {
    own: CpuSet,
    target: CpuSet,
    single: CpuSet,
    target_is_pinned: bool,
}

impl Pinned {
    /// Moves heaptrace to one CPU, for the target to join it. None: there is but one.
    pub(super) fn pin() -> Result<Option<Self>> {
        let own = CpuSet::of(0)?;
        let Some(single) = own.single() else { return Ok(None) };
        single.apply(0)?;
        Ok(Some(Self { own, target: own, single, target_is_pinned: true }))
    }

    /// The one CPU.
    pub(super) const fn single(&self) -> &CpuSet {
        &self.single
    }
}

/// After so many stops the CPU time is asked for.
const STOPS_PER_LOOK: u64 = 1024;

impl Process {
    /// A process without tasks, whose memory is `space`.
    pub(super) fn new(pid: i32, preexisting: Preexisting, mut space: AddressSpace, common: &Common) -> Self {
        if common.settings.leak_scan.is_some() {
            space.watch_exit();
        }
        let exit_kill = common.settings.exit_kill && !common.attached;
        let model = new_model(preexisting, &common.settings);
        common.progress.begins(pid);
        Self {
            exit_kill,
            model,
            pause: Pause::new(common.control.is_paused()),
            settings: Arc::clone(&common.settings),
            control: Arc::clone(&common.control),
            progress: Arc::clone(&common.progress),
            libunwind: common.libunwind.clone(),
            began: common.began,
            started_at: SystemTime::now(),
            born: Instant::now(),
            pid,
            parent: None,
            number: common.next_number(),
            attached: common.attached,
            selected: true,
            let_go: false,
            tasks: Tasks::default(),
            space,
            calls: Calls::default(),
            anomalies: Anomalies::default(),
            cost: Cost::default(),
            children: Children::default(),
            images: Vec::new(),
            thread_names: HashMap::new(),
            warnings: Vec::new(),
            exit: None,
            killed_by: None,
            detached: false,
            leaving: false,
            affinity: None,
            program: String::new(),
            owner: Owner::default(),
            command: Vec::new(),
            cwd: procfs::working_directory(pid).unwrap_or_default(),
            unknown_stops: 0,
            trap_mask: TrapMask::default(),
            fallback: FallbackState::default(),
            fallback_at_stop: false,
            borrowers_traps: BorrowersTraps::default(),
            last_to_go: None,
            yielded: HashSet::new(),
            leaks: LeakWatch::default(),
            unrestored: 0,
            stuck: 0,
            place_at_stop: false,
            inherited_bytes: 0,
            peak_resident: None,
            shown_bytes: 0,
            cpu_before: cputime::of_process(pid).unwrap_or_default(),
            stop_cost: StopCost::default(),
        }
    }

    /// For how long it was traced, ns: what the times of its events and of its end are told in.
    pub(super) fn lived_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// It has ended, while others go on: what it holds is given back, as far as its recording does not need it.
    pub(super) fn end(&mut self) {
        self.space.end_guard();
        self.progress.live(&mut self.shown_bytes, 0);
        self.progress.ends(self.pid);
    }

    /// A stop was answered, which took `time`.
    pub(super) fn count_stop(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.cost.stops += 1;
        self.cost.stopped_ns += ns;
        self.cost.stopped_max_ns = self.cost.stopped_max_ns.max(ns);
        self.progress.stop();
        // It may be killed, so that its end can't be asked.
        if self.cost.stops.is_multiple_of(STOPS_PER_LOOK) {
            self.note_cpu_time();
        }
    }

    /// Notes the CPU time until now.
    pub(super) fn note_cpu_time(&mut self) {
        if let Some(now) = cputime::of_process(self.pid) {
            self.cost.cpu_ns = now.all_ns.saturating_sub(self.cpu_before.all_ns);
            self.cost.user_ns = now.user_ns.saturating_sub(self.cpu_before.user_ns);
        }
        if let Some(each) = self.stop_cost.mean_ns() {
            self.cost.stops_cpu_ns = self.cost.stops.saturating_mul(each);
            self.progress.stop_takes(each);
        }
    }

    /// Before the first call of the allocator: until now, hardly any stop has been in the way.
    pub(super) fn note_undisturbed_time(&mut self) {
        self.note_cpu_time();
        let cost = Cost { user_ns: 0, ..self.cost };
        self.cost.known_cpu_ns = cost.own_cpu_ns();
    }

    /// What a stop of one of its tasks means; of all but exec.
    pub(super) fn decide(
        &mut self,
        tid: i32,
        status: WaitStatus,
        stopped: &Stopped,
        stops: &mut Stops,
    ) -> Result<Action> {
        let was_interrupted = self.tasks.get_mut(tid).is_some_and(|task| std::mem::take(&mut task.interrupted));
        match status {
            WaitStatus::Signal(SIGTRAP) => self.on_trap(tid, stopped, stops),
            // Of a call for us that was not waited for to its end: the thread goes on by its own way back.
            WaitStatus::Signal(SYSTEM_CALL_STOP) => Ok(Action::Resume(0)),
            WaitStatus::Signal(signal) => {
                self.before_signal(tid, stopped)?;
                Ok(Action::Resume(signal))
            }
            WaitStatus::GroupStop(_) => {
                self.leave_pad_for_signal(tid, stopped)?;
                if let Some(task) = self.tasks.get_mut(tid) {
                    task.listening = true;
                }
                Ok(Action::Listen)
            }
            WaitStatus::EventStop => {
                if let Some(task) = self.tasks.get_mut(tid) {
                    task.listening = false;
                }
                if was_interrupted {
                    stopped.restart_interrupted_call()?;
                }
                if std::mem::take(&mut self.fallback_at_stop)
                    && let Some(other) = self.install_sigtrap_fallback_first(stopped, stops)?
                {
                    return Ok(Action::Instead(other));
                }
                if std::mem::take(&mut self.place_at_stop) {
                    self.space.place_refused()?;
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

    fn on_event(&mut self, tid: i32, event: Event, stopped: &Stopped, stops: &mut Stops) -> Result<Action> {
        match event {
            Event::Clone | Event::Fork | Event::Vfork => {
                stops.announce(event, stopped)?;
                if event == Event::Clone {
                    self.unpin();
                }
                Ok(Action::Resume(0))
            }
            Event::VforkDone => {
                self.on_vfork_done(tid, stopped, stops)?;
                Ok(Action::Resume(0))
            }
            // The session's, as the process may become another one's.
            Event::Exec => Ok(Action::Resume(0)),
            Event::Exit => {
                let noted = self.on_last_words(tid, stopped, stops);
                self.on_exit(tid);
                noted?;
                Ok(Action::Resume(0))
            }
        }
    }

    /// A task is about to end: its name is still there, and what it had begun will not return.
    fn on_exit(&mut self, tid: i32) {
        self.note_cpu_time();
        // The memory is there until the last thread has gone on from here. To a first thread that has ended others are left, of
        // which any may be the last.
        if tid == self.pid || self.tasks.get(self.pid).is_none_or(|first| first.ending) {
            self.note_peak_resident(tid);
        }
        self.forget_trap_mask(tid);
        self.yielded.remove(&tid);
        if tid == self.pid {
            self.owner.note(tid);
        }
        if let Some(task) = self.tasks.get(tid).copied() {
            self.thread_names.insert(task.id.serial, procfs::comm(tid));
            self.end_calls_of(task.id);
            self.release_dropped_sites();
        }
    }

    /// Notes how much memory was resident at most until now, as far as task `tid` still has it.
    pub(super) fn note_peak_resident(&mut self, tid: i32) {
        self.peak_resident = self.peak_resident.max(procfs::peak_resident(tid));
    }

    /// Whether it shares our CPU.
    pub(super) fn is_pinned(&self) -> bool {
        self.affinity.as_ref().is_some_and(|pinned| pinned.target_is_pinned)
    }

    /// Ends the sharing of one CPU: the program has a second thread now.
    pub(super) fn unpin(&mut self) {
        let Some(pinned) = &mut self.affinity else { return };
        if !pinned.target_is_pinned {
            return;
        }
        pinned.target_is_pinned = false;
        for tid in self.tasks.tids() {
            let _ = pinned.target.apply(tid);
        }
        let _ = pinned.own.apply(0);
    }

    /// Gives a task the CPUs that it would have without us: new ones inherit their parent's.
    pub(super) fn restore_affinity(&self, tid: i32) {
        if let Some(pinned) = &self.affinity {
            let _ = pinned.target.apply(tid);
        }
    }
}

pub(super) fn new_model(preexisting: Preexisting, settings: &Settings) -> HeapModel {
    let model = HeapModel::new(preexisting);
    if settings.free_stacks { model } else { model.without_free_stacks() }
}
