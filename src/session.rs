//! The loop that joins tracer, unwinder, calls and heap model: it waits for stops, decides what each means, and lets
//! the task go on.
//!
//! A session follows one process: its threads, the images it becomes by exec, and the short-lived children that borrow
//! its memory. All of it runs on one thread, the tracer thread. For every stop a handler answers with an
//! `Action`; the loop alone carries it out, so no path can forget to resume a task.

mod breakoff;
mod children;
mod detach;
mod hit;
mod leakscan;
mod pausing;
mod recording;
mod requests;
mod retry;
mod space;
mod tasks;
mod trapmask;

pub use breakoff::{Aftermath, BreakOff, trace};
pub use leakscan::{HeapCapture, LeakScan, ScanRecord};
pub use recording::{EndedImage, ModuleRecord, Recording};
pub use requests::{Answer, Reply, Requests, Wish};
pub use space::OwnSuppressions;

use crate::allocators::AllocatorTable;
use crate::calls::Calls;
use crate::heapmodel::{HeapModel, Preexisting};
use crate::leaks::ScanOptions;
use crate::profile::{Anomalies, Children, Cost, Exit};
use crate::progress::Progress;
use crate::symbols::Search;
use crate::tracer::affinity::CpuSet;
use crate::tracer::control::{self, Control, SignalMask};
use crate::tracer::guardian::Guardian;
use crate::tracer::launch::{self, Launched, Program};
use crate::tracer::libunwind::Libunwind;
use crate::tracer::limits;
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::seize;
use crate::tracer::status::{Event, SIGTRAP, WaitStatus};
use crate::tracer::waiting::Waiting;
use crate::tracer::{TracerError, procfs};
use leakscan::LeakWatch;
use space::{AddressSpace, Probing};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tasks::{Role, Tasks};

/// What went wrong with a whole session; single tasks' troubles are counted instead.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// An operation on the target or on heaptrace's own process.
    #[error(transparent)]
    Tracer(#[from] TracerError),
    /// The program ended before it became the program asked for.
    #[error("{program} ended before its first instruction: {}", breakoff::describe_early_end(*exit))]
    EndedEarly {
        /// The program as the user named it.
        program: String,
        /// How, if that is known.
        exit: Option<Exit>,
    },
    /// A 32-bit (or x32) program.
    #[error("process {pid} is a 32-bit program; heaptrace traces 64-bit x86-64 programs only")]
    Not64Bit {
        /// The process.
        pid: i32,
    },
    /// An allocation has failed; what was kept in reserve is needed to end in good order.
    #[error("out of memory (a limit, such as `ulimit -v`?)")]
    OutOfMemory,
    /// Tracing ended in the middle, by an error or a panic, and the process was let go.
    #[error(transparent)]
    BrokenOff(#[from] BreakOff),
}

/// What to trace.
#[derive(Debug)]
pub enum Target {
    /// Start this program.
    Launch {
        /// The program, found and prepared.
        program: Program,
        /// The signal mask it gets.
        mask: Box<SignalMask>,
    },
    /// Attach to this process.
    Attach {
        /// Its id.
        pid: i32,
    },
}

/// How to trace.
#[derive(Debug)]
pub struct Settings {
    /// The allocator functions to probe.
    pub table: AllocatorTable,
    /// Where debug files are looked for, as heaptrace itself sees them.
    pub search: Search,
    /// Frames after which a stack is cut off.
    pub max_depth: u32,
    /// Whether to unwind at frees too.
    pub free_stacks: bool,
    /// Walk stacks with libunwind, where it is built in.
    pub libunwind: bool,
    /// Share one CPU with the target while it has one thread.
    pub pin: bool,
    /// The kernel kills the target if heaptrace dies: only for a launched program that will not be let go.
    pub exit_kill: bool,
    /// Place no probes until collecting is asked for.
    pub start_paused: bool,
    /// Who cleans up if heaptrace is killed.
    pub guardian: Option<Guardian>,
    /// What others ask while it traces.
    pub requests: Arc<Requests>,
    /// Whether, and how, to look for leaks at the program's end.
    pub leak_scan: Option<ScanOptions>,
}

/// A session in progress; see the module's head.
#[derive(Debug)]
pub struct Session {
    settings: Settings,
    control: Arc<Control>,
    progress: Arc<Progress>,
    began: Instant,
    started_at: SystemTime,
    pid: i32,
    attached: bool,
    exit_kill: bool,
    tasks: Tasks,
    space: AddressSpace,
    calls: Calls,
    model: HeapModel,
    anomalies: Anomalies,
    cost: Cost,
    children: Children,
    images: Vec<EndedImage>,
    thread_names: HashMap<u32, String>,
    warnings: Vec<String>,
    exit: Option<Exit>,
    /// How a thread ended that a signal has ended.
    killed_by: Option<Exit>,
    detached: bool,
    affinity: Option<Pinned>,
    program: String,
    command: Vec<String>,
    cwd: std::path::PathBuf,
    unknown_stops: u64,
    /// Stops that were reported but not served yet, oldest first.
    waiting: VecDeque<(i32, WaitStatus, Stopped)>,
    turn: u32,
    /// New tasks that their parents have announced, but that have not stopped yet.
    expected: HashSet<i32>,
    /// New tasks that stopped before they were announced.
    early: HashSet<i32>,
    wait: Waiting,
    trap_mask: trapmask::TrapMask,
    retry: retry::Retry,
    /// Threads for which the handler for SIGTRAP was taken out a moment ago.
    yielded: HashSet<i32>,
    leaks: LeakWatch,
    pause: pausing::Pause,
    /// The stop that is being answered: what is left of it if that goes wrong.
    serving: Option<Serving>,
    /// A launched program at its first stop, before its first instruction.
    unstarted: Option<(Launched, Stopped)>,
    /// Probes that could not be taken out of the code of a process that lives on.
    unrestored: usize,
    /// Threads that could not be let go.
    stuck: usize,
    /// Probes that could not be written while no thread stood still wait for one that does.
    place_at_stop: bool,
    libunwind: Option<Libunwind>,
}

/// A stop that is being answered.
#[derive(Clone, Copy, Debug)]
struct Serving {
    tid: i32,
    status: WaitStatus,
    /// What was decided, once it was.
    answer: Option<Action>,
}

/// The CPUs from before pinning.
#[derive(Debug)]
struct Pinned {
    own: CpuSet,
    target: CpuSet,
    single: CpuSet,
    target_is_pinned: bool,
}

/// Every this many stops of a program with threads, all that wait are served in turn.
const FAIRNESS: u32 = 16;

/// What to do with a stopped task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Let it run on, delivering this signal (0: none).
    Resume(i32),
    /// Leave it in its group stop.
    Listen,
    /// Let go of it.
    Detach,
    /// It is gone; there is nothing left to resume.
    Gone,
}

impl Session {
    /// Starts or attaches to the target and writes nothing to it yet. To be called on the tracer thread.
    ///
    /// # Errors
    /// If the program can't be executed or the process can't be traced. A program has run no instruction of its own then.
    fn start(
        target: Target,
        settings: Settings,
        control: Arc<Control>,
        progress: Arc<Progress>,
    ) -> Result<Self, SessionError> {
        control.register_tracer()?;
        match target {
            Target::Launch { program, mask } => Self::launch(&program, &mask, settings, control, progress),
            Target::Attach { pid } => Self::attach(pid, settings, control, progress),
        }
    }

    fn new(
        pid: i32,
        attached: bool,
        mut space: AddressSpace,
        settings: Settings,
        control: Arc<Control>,
        progress: Arc<Progress>,
    ) -> crate::tracer::Result<Self> {
        let exit_kill = settings.exit_kill && !attached;
        if settings.leak_scan.is_some() {
            space.watch_exit();
        }
        let preexisting = if attached { Preexisting::Unknown } else { Preexisting::None };
        let model = new_model(preexisting, &settings);
        let pause = pausing::Pause::new(settings.start_paused);
        let libunwind = if settings.libunwind { Some(Libunwind::open()?) } else { None };
        Ok(Self {
            settings,
            control,
            progress,
            began: Instant::now(),
            started_at: SystemTime::now(),
            pid,
            attached,
            exit_kill,
            tasks: Tasks::default(),
            space,
            calls: Calls::default(),
            model,
            anomalies: Anomalies::default(),
            cost: Cost::default(),
            children: Children::default(),
            images: Vec::new(),
            thread_names: HashMap::new(),
            warnings: Vec::new(),
            exit: None,
            killed_by: None,
            detached: false,
            affinity: None,
            program: String::new(),
            command: Vec::new(),
            cwd: procfs::working_directory(pid).unwrap_or_default(),
            unknown_stops: 0,
            waiting: VecDeque::new(),
            turn: 0,
            expected: HashSet::new(),
            early: HashSet::new(),
            wait: Waiting::new(),
            trap_mask: trapmask::TrapMask::default(),
            retry: retry::Retry::default(),
            yielded: HashSet::new(),
            leaks: LeakWatch::default(),
            pause,
            serving: None,
            unstarted: None,
            unrestored: 0,
            stuck: 0,
            place_at_stop: false,
            libunwind,
        })
    }

    fn launch(
        program: &Program,
        mask: &SignalMask,
        settings: Settings,
        control: Arc<Control>,
        progress: Arc<Progress>,
    ) -> Result<Self, SessionError> {
        let affinity = if settings.pin { pin()? } else { None };
        let mut child = launch::launch(program, mask, affinity.as_ref().map(|p| &p.single), settings.exit_kill)?;
        let stopped = loop {
            match ptrace::wait(true)? {
                Waited::Task(tid, WaitStatus::Event(Event::Exec), Some(stopped)) if tid == child.pid => break stopped,
                Waited::Task(_, WaitStatus::Signal(signal), Some(stopped)) => stopped.resume(signal)?,
                Waited::Task(_, WaitStatus::GroupStop(_), Some(stopped)) => stopped.listen()?,
                Waited::Task(_, _, Some(stopped)) => stopped.resume(0)?,
                Waited::Task(tid, status, None) if tid == child.pid => {
                    child.begins();
                    return Err(match child.exec_failure() {
                        Some(error) => error.into(),
                        None => SessionError::EndedEarly { program: program.name().to_owned(), exit: exit_of(status) },
                    });
                }
                Waited::Task(..) | Waited::Interrupted => {}
                Waited::Nothing | Waited::NoTasks => {
                    return Err(SessionError::EndedEarly { program: program.name().to_owned(), exit: None });
                }
            }
        };
        let space = AddressSpace::open(child.pid, child.pid, settings.guardian.as_ref())?;
        let mut session = Self::new(child.pid, false, space, settings, control, progress)?;
        session.affinity = affinity;
        session.tasks.add(child.pid, Role::Thread);
        session.unstarted = Some((child, stopped));
        Ok(session)
    }

    fn attach(
        pid: i32,
        settings: Settings,
        control: Arc<Control>,
        progress: Arc<Progress>,
    ) -> Result<Self, SessionError> {
        if !space::is_64_bit(pid) {
            return Err(SessionError::Not64Bit { pid });
        }
        let threads = seize::seize_all(pid)?;
        // Threads end while we look, and a leader that has ended has no memory any more.
        let lives = |tid: i32| !matches!(procfs::state(pid, tid), None | Some(b'Z' | b'X'));
        let open = |tid| AddressSpace::open(pid, tid, settings.guardian.as_ref());
        let opened = threads
            .iter()
            .map(|thread| thread.tid)
            .filter(|&tid| lives(tid))
            .find_map(|tid| Some((tid, open(tid).ok()?)));
        let (live, space) = match opened {
            Some(opened) => opened,
            None => (pid, open(pid)?),
        };
        let borrowers = seize::seize_sharers(pid, live)?;
        let mut session = Self::new(pid, true, space, settings, control, progress)?;
        for (seized, role) in [(threads, Role::Thread), (borrowers, Role::Borrower)] {
            for task in seized {
                session.tasks.add(task.tid, role);
                if task.unannounced {
                    session.early.insert(task.tid);
                }
            }
        }
        Ok(session)
    }

    /// Places all probes that can be placed now, and lets a launched program run.
    fn begin(&mut self) -> crate::tracer::Result<()> {
        if let Some((launched, _)) = &self.unstarted {
            let pid = launched.pid;
            self.space.memory.stands_still(Some(pid));
            let action = self.begin_image(pid);
            if let Some((mut launched, stopped)) = self.unstarted.take() {
                launched.begins();
                self.serving = Some(Serving { tid: pid, status: WaitStatus::Event(Event::Exec), answer: Some(action) });
                self.carry_out(pid, stopped, action)?;
            }
            return Ok(());
        }
        let lives = |tid: &i32| !matches!(procfs::state(self.pid, *tid), None | Some(b'Z' | b'X'));
        let live = self.tasks.tids().into_iter().find(lives).unwrap_or(self.pid);
        self.describe_image(self.pid);
        self.note_trap_action(live);
        // The allocator's probes come last: busy threads run into them at once.
        self.space.set_probing(Probing::None, &self.settings.table)?;
        self.refresh_modules(live);
        self.install_retry_handler_early()?;
        self.apply_probing();
        self.ask_for_stop_if_refused(live)
    }

    /// Where code can be changed only through a thread that stands still, one has to.
    fn ask_for_stop_if_refused(&mut self, tid: i32) -> crate::tracer::Result<()> {
        if self.space.is_refused_while_running() && !self.place_at_stop {
            self.interrupt(tid)?;
            self.place_at_stop = true;
        }
        Ok(())
    }

    /// Traces until the program has ended, or has been let go because the control thread asked for it.
    ///
    /// # Errors
    /// Only if waiting itself fails; the target's code has been restored then, as far as possible.
    fn run(&mut self) -> Result<(), SessionError> {
        // A child that was forked just before the end still has a copy of our breakpoints: it must be seen.
        while (!self.tasks.is_empty() && self.exit.is_none()) || !self.expected.is_empty() {
            if self.control.detach_requested() {
                break;
            }
            if limits::is_memory_short() {
                return Err(SessionError::OutOfMemory);
            }
            while let Some(request) = self.settings.requests.take() {
                self.answer(request);
            }
            if let Some(pause) = self.control.take_pause() {
                self.set_paused(pause);
            }
            if let Some(signal) = self.control.take_forward() {
                control::send(self.pid, signal).or_else(|e| if e.is_death() { Ok(()) } else { Err(e) })?;
            }
            if self.control.take_end() {
                self.scan_and_kill()?;
            }
            if !self.serve_next()? {
                break;
            }
        }
        // What is left borrows the memory, or belongs to a process that is let go.
        if !self.tasks.is_empty() {
            self.detached = self.exit.is_none();
            if self.detached {
                self.scan_before_detach();
            }
            self.detach()?;
        } else {
            self.drain_detaching()?;
            self.exit = self.exit.or(self.killed_by);
        }
        self.cost.wall_ns = self.elapsed_ns();
        Ok(())
    }

    /// Does what another heaptrace has asked for, through the thread that talks to it.
    fn answer(&mut self, request: requests::Request) {
        let reply = if request.pid == self.pid {
            match request.wish {
                Wish::Detach => {
                    self.control.request_detach();
                    Ok(Answer::Detaching)
                }
                Wish::Capture => self.capture().map(|capture| Answer::Captured(Box::new(capture))),
                Wish::Pause(pause) => {
                    self.control.request_pause(pause);
                    let already = self.is_paused() == pause;
                    self.set_paused(pause);
                    Ok(Answer::Paused { already })
                }
            }
        } else {
            Err(format!("this heaptrace traces process {}", self.pid))
        };
        // The one who asked may have gone.
        let _ = request.reply.send(reply);
    }

    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Waits for the next stop, or takes one that was collected, and deals with it. False if no task is left.
    fn serve_next(&mut self) -> crate::tracer::Result<bool> {
        if let Some((tid, status, stopped)) = self.waiting.pop_front() {
            self.on_stop(tid, status, stopped)?;
            return Ok(true);
        }
        let pinned = self.affinity.as_ref().is_some_and(|pinned| pinned.target_is_pinned);
        match self.wait.next(self.tasks.len(), pinned)? {
            Waited::Task(tid, status, Some(stopped)) => {
                self.on_stop(tid, status, stopped)?;
                self.turn = self.turn.wrapping_add(1);
                if self.tasks.len() > 1 && self.turn.is_multiple_of(FAIRNESS) {
                    self.collect_waiting()?;
                }
            }
            Waited::Task(tid, status, None) => self.note_end(tid, status),
            Waited::Interrupted | Waited::Nothing => {}
            Waited::NoTasks => return Ok(false),
        }
        Ok(true)
    }

    /// Collects all stops that are there, to be served in turn. The kernel reports the newest task first: without this,
    /// old threads would stand still while new ones are busy.
    fn collect_waiting(&mut self) -> crate::tracer::Result<()> {
        loop {
            match ptrace::wait(false)? {
                Waited::Task(tid, status, Some(stopped)) => {
                    // An older stop of the same id belonged to a leader that another thread's exec has replaced.
                    self.waiting.retain(|(older, ..)| *older != tid);
                    self.waiting.push_back((tid, status, stopped));
                }
                Waited::Task(tid, status, None) => self.note_end(tid, status),
                Waited::Interrupted => {}
                Waited::Nothing | Waited::NoTasks => return Ok(()),
            }
        }
    }

    fn on_stop(&mut self, tid: i32, status: WaitStatus, stopped: Stopped) -> crate::tracer::Result<()> {
        let noticed = Instant::now();
        self.cost.stops += 1;
        let action = match self.decide(tid, status, &stopped) {
            Ok(action) => action,
            Err(error) if error.is_death() => Action::Gone,
            // Nobody knows what to do with the task: to let it run on could be its death.
            Err(error) if self.tasks.get(tid).is_none() => return Err(error),
            Err(error) => match status {
                WaitStatus::Signal(SIGTRAP) | WaitStatus::Event(Event::Exec) => return Err(error),
                _ => {
                    tracing::warn!("{error}");
                    self.anomalies.lost += 1;
                    match status {
                        WaitStatus::Signal(signal) => Action::Resume(signal),
                        WaitStatus::GroupStop(_) => Action::Listen,
                        _ => Action::Resume(0),
                    }
                }
            },
        };
        self.carry_out(tid, stopped, action)?;
        let ns = u64::try_from(noticed.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.cost.stopped_ns += ns;
        self.cost.stopped_max_ns = self.cost.stopped_max_ns.max(ns);
        self.progress.stop(ns);
        Ok(())
    }

    /// Carries out what was decided for a stop.
    fn carry_out(&mut self, tid: i32, stopped: Stopped, action: Action) -> crate::tracer::Result<()> {
        if let Some(serving) = &mut self.serving {
            serving.answer = Some(action);
        }
        self.space.memory.stands_still(None);
        let done = match action {
            Action::Resume(signal) => stopped.resume(signal),
            Action::Listen => stopped.listen(),
            Action::Detach => {
                self.tasks.remove(tid);
                stopped.detach(0)
            }
            Action::Gone => Ok(()),
        };
        match done {
            Err(error) if !error.is_death() => return Err(error),
            _ => {}
        }
        self.serving = None;
        Ok(())
    }

    fn decide(&mut self, tid: i32, status: WaitStatus, stopped: &Stopped) -> crate::tracer::Result<Action> {
        self.serving = Some(Serving { tid, status, answer: None });
        self.space.memory.stands_still(Some(tid));
        if self.tasks.get(tid).is_none()
            && let Some(action) = self.on_new_task(stopped)?
        {
            return Ok(action);
        }
        let was_interrupted = self.tasks.get_mut(tid).is_some_and(|task| std::mem::take(&mut task.interrupted));
        match status {
            WaitStatus::Signal(SIGTRAP) => self.on_trap(tid, stopped),
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
                if std::mem::take(&mut self.place_at_stop) {
                    self.space.place_refused()?;
                }
                Ok(Action::Resume(0))
            }
            WaitStatus::Event(event) => self.on_event(tid, event, stopped),
            WaitStatus::Unknown(raw) => {
                self.unknown_stops += 1;
                tracing::warn!("unknown stop {raw:#x} of task {tid}");
                Ok(Action::Resume(0))
            }
            // Reported while the task made a call for us.
            WaitStatus::Exited(_) | WaitStatus::Signaled(_) => {
                self.note_end(tid, status);
                Ok(Action::Gone)
            }
        }
    }

    fn on_event(&mut self, tid: i32, event: Event, stopped: &Stopped) -> crate::tracer::Result<Action> {
        match event {
            Event::Clone | Event::Fork | Event::Vfork => {
                self.announce(stopped)?;
                if event == Event::Clone {
                    self.unpin();
                }
                Ok(Action::Resume(0))
            }
            Event::VforkDone => Ok(Action::Resume(0)),
            Event::Exec => self.on_exec(tid, stopped),
            Event::Exit => {
                let noted = self.on_last_words(tid, stopped);
                self.on_exit(tid);
                noted?;
                Ok(Action::Resume(0))
            }
        }
    }

    /// A task is about to end: its name is still there, and what it had begun will not return.
    fn on_exit(&mut self, tid: i32) {
        self.forget_trap_mask(tid);
        self.yielded.remove(&tid);
        if let Some(task) = self.tasks.get(tid).copied() {
            self.thread_names.insert(task.id.serial, procfs::comm(tid));
            let model = &mut self.model;
            self.calls.task_ended(task.id, &mut |event| model.apply(&event));
            self.release_dropped_sites();
        }
    }

    fn note_end(&mut self, tid: i32, status: WaitStatus) {
        self.tasks.remove(tid);
        self.expected.remove(&tid);
        if tid == self.pid {
            self.exit = exit_of(status);
        } else if matches!(status, WaitStatus::Signaled(_)) {
            // A signal ends all threads of a process. A leader that was ending already could not be attached to.
            self.killed_by = exit_of(status);
        }
    }

    /// Ends the sharing of one CPU: the program has a second thread now.
    fn unpin(&mut self) {
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
    fn restore_affinity(&self, tid: i32) {
        if let Some(pinned) = &self.affinity {
            let _ = pinned.target.apply(tid);
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

fn new_model(preexisting: Preexisting, settings: &Settings) -> HeapModel {
    let model = HeapModel::new(preexisting);
    if settings.free_stacks { model } else { model.without_free_stacks() }
}

fn pin() -> Result<Option<Pinned>, SessionError> {
    let own = CpuSet::of(0)?;
    let Some(single) = own.single() else { return Ok(None) };
    single.apply(0)?;
    Ok(Some(Pinned { own, target: own, single, target_is_pinned: true }))
}
