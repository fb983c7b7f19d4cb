//! How a session begins: a program is started, or a process is attached to.

use super::archive::Archive;
use super::common::Common;
use super::error::SessionError;
use super::observer::Shared;
use super::pinning::Affinity;
use super::process::Process;
use super::settings::{Settings, Target};
use super::slots::Slots;
use super::space::{self, AddressSpace, Probing, SharedObjects};
use super::stop::{Action, Serving, Stop};
use super::stops::Stops;
use super::tasks::Role;
use super::ticker::Ticker;
use super::{Session, exit_of};
use crate::base::engine::EngineChoice;
use crate::base::figures::plural;
use crate::base::progress::Progress;
use crate::event::Preexisting;
use crate::tracer::control::{self, Control, SignalMask};
use crate::tracer::guardian;
use crate::tracer::guardian::orphan::{self, Repaired};
use crate::tracer::launch::{self, Program};
use crate::tracer::libunwind::Libunwind;
use crate::tracer::ptrace::{self, Waited};
use crate::tracer::status::{Event, WaitStatus};
use crate::tracer::{chain, procfs, seize};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

impl Session {
    /// Starts or attaches to the target and writes nothing to it yet. To be called on the tracer thread.
    ///
    /// # Errors
    /// If the program can't be executed or the process can't be traced. A program has run no instruction of its own
    /// then.
    pub(super) fn start(
        target: Target,
        settings: Settings,
        control: Arc<Control>,
        progress: Arc<Progress>,
    ) -> Result<Self, SessionError> {
        control.register_tracer()?;
        let libunwind = if settings.libunwind { Some(Rc::new(Libunwind::open()?)) } else { None };
        let began = Instant::now();
        let observers = Shared {
            began,
            table: Arc::clone(&settings.table),
            free_stacks: settings.free_stacks,
            sample_interval: settings.sample_interval,
            max_depth: settings.max_depth,
            progress: Arc::clone(&progress),
            next_image: Arc::default(),
            next_process: Arc::default(),
            trace: settings.trace.clone(),
        };
        let common = Common {
            settings: Arc::new(settings),
            control,
            progress,
            libunwind,
            began,
            observers,
            serials: Arc::default(),
            attached: matches!(target, Target::Attach { .. }),
            objects: SharedObjects::default(),
        };
        match target {
            Target::Launch { program, mask } => Self::launch(&program, &mask, common),
            Target::Attach { pid } => Self::attach(pid, common),
        }
    }

    fn new(process: Process, common: Common) -> Self {
        let first_pid = process.tracee.pid;
        let mut processes = Slots::default();
        let first = processes.insert(first_pid, process);
        Self {
            common,
            processes,
            stops: Stops::new(),
            first,
            first_pid,
            finished: Vec::new(),
            archive: Archive::default(),
            detaching: 0,
            ticker: Ticker::default(),
            postponed: Vec::new(),
            unstarted: None,
        }
    }

    fn launch(program: &Program, mask: &SignalMask, common: Common) -> Result<Self, SessionError> {
        let settings = &common.settings;
        let affinity = if settings.pin { Affinity::pin()? } else { Affinity::default() };
        common.make_ahead();
        let mut child = launch::launch(program, mask, affinity.single(), settings.exit_kill)?;
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
                // Its file may be on a disk that does not answer.
                Waited::Interrupted if common.control.detach_requested() => {
                    return Err(SessionError::NotStarted { program: program.name().to_owned() });
                }
                Waited::Interrupted => {
                    if let Some(signal) = common.control.take_forward() {
                        control::send(child.pid, signal)
                            .or_else(|e| if e.is_out_of_reach() { Ok(()) } else { Err(e) })?;
                    }
                }
                Waited::Task(..) => {}
                Waited::Nothing | Waited::NoTasks => {
                    return Err(SessionError::EndedEarly { program: program.name().to_owned(), exit: None });
                }
            }
        };
        // Of a script this is the interpreter. It has not executed anything yet, and ends with this.
        if !space::is_64_bit(child.pid) {
            return Err(SessionError::Not64Bit { what: program.name().to_owned() });
        }
        let space = AddressSpace::open(child.pid, child.pid, settings.guardian.as_ref(), &common.objects)?;
        let mut process = Process::new(child.pid, common.new_observer(child.pid, Preexisting::None), space, &common);
        process.affinity = affinity;
        let mut session = Self::new(process, common);
        session.add_task(session.first, child.pid, Role::Thread);
        session.unstarted = Some((child, stopped));
        Ok(session)
    }

    fn attach(pid: i32, common: Common) -> Result<Self, SessionError> {
        if !space::is_64_bit(pid) {
            return Err(SessionError::Not64Bit { what: format!("process {pid}") });
        }
        chain::require_outside(pid)?;
        // one that has a lock on it for ever must not keep everybody out
        let _ = guardian::await_others(pid);
        // Else its breakpoints would be taken for the program's own code. Whoever may not look hears why below.
        let repaired = orphan::repair(pid).ok().flatten();
        let threads = seize::seize_to_patch(pid)?;
        let open = |tid| AddressSpace::open(pid, tid, common.settings.guardian.as_ref(), &common.objects);
        let tids = threads.iter().map(|thread| thread.tid);
        let (live, mut space) = procfs::through_any(pid, tids, |tid| Ok((tid, open(tid)?)))?;
        let sharers = seize::seize_sharers(pid, live)?;
        common.make_ahead();
        if common.settings.engine != EngineChoice::Trap {
            space.entries.look_ahead_at_entries();
        }
        let mut process = Process::new(pid, common.new_observer(pid, Preexisting::Unknown), space, &common);
        process.tracee.warnings.extend(repaired.map(describe_repair));
        let mut session = Self::new(process, common);
        for (seized, role) in [(threads, Role::Thread), (sharers, Role::VmSharer)] {
            for task in seized {
                session.add_task(session.first, task.tid, role);
                if task.unannounced {
                    session.stops.early.insert(task.tid);
                }
                if task.interrupted
                    && let Some(process) = session.processes.get_mut(session.first)
                    && let Some(noted) = process.tracee.tasks.get_mut(task.tid)
                {
                    noted.interrupted = true;
                }
            }
        }
        Ok(session)
    }

    /// Places all probes that can be placed now, and lets a launched program run.
    pub(super) fn begin(&mut self) -> crate::tracer::Result<()> {
        let Some(process) = self.processes.get_mut(self.first) else { return Ok(()) };
        if let Some((launched, _)) = &self.unstarted {
            let pid = launched.pid;
            process.tracee.space.image.memory.stands_still(Some(pid));
            process.begin_image(pid);
            let action = Action::Resume(0);
            if let Some((mut launched, stopped)) = self.unstarted.take() {
                launched.begins();
                let status = WaitStatus::Event(Event::Exec);
                self.stops.serving = Some(Serving { tid: pid, status, answer: Some(action) });
                self.carry_out(Stop { status, stopped, slot: Some(self.first) }, action)?;
            }
            return Ok(());
        }
        process.tracee.hold_probes_back();
        process.prepare()?;
        self.call_for_trap_action_early(self.first)?;
        self.protect_sharers_early(self.first)?;
        let Some(process) = self.processes.get_mut(self.first) else { return Ok(()) };
        if process.tracee.settings.existing {
            let Process { tracee, observer, existing, copies, cost, sigtrap, teardown, .. } = &mut *process;
            existing.look(tracee, observer, copies, cost, &mut self.stops)?;
            sigtrap.install_fallback_while_all_stand(tracee, teardown, &mut self.stops)?;
        }
        process.sigtrap.begin_to_watch_trap_action();
        process.tracee.apply_probing(&process.observer, process.identity.selected);
        process.place_first();
        self.place_early(self.first)
    }
}

/// What was found of an earlier heaptrace, in words.
fn describe_repair(repaired: Repaired) -> String {
    let Repaired { breakpoints, left, unproved } = repaired;
    let mut text = format!(
        "an earlier heaptrace was killed together with its guardian: this one removed {} from the program's code",
        plural(breakpoints as u64, "breakpoint")
    );
    if left > 0 {
        text.push_str(&format!(
            "; it could not remove {left} more, and the program will die if it reaches one of them"
        ));
    }
    if unproved > 0 {
        text.push_str(&format!(
            "; the code also differs from the files in {}, which may be the program's own changes: heaptrace left this \
             alone",
            plural(unproved as u64, "byte")
        ));
    }
    text
}

impl Process {
    /// At an attach: gets to know the image. The probes of the allocator come last, as busy threads run into them at
    /// once.
    fn prepare(&mut self) -> crate::tracer::Result<()> {
        let live = self.tracee.live_task();
        self.identity.describe(self.tracee.pid, self.tracee.pid);
        self.identity.select(&self.tracee.settings, live);
        self.observer.define(&self.identity.definition());
        self.sigtrap.note_trap_action(&self.tracee, live);
        self.tracee.space.set_probing(Probing::None, &self.tracee.settings.table)?;
        self.refresh_modules(None);
        Ok(())
    }

    /// At an attach: places the first probes of all, now that the handler for SIGTRAP is installed if it can be. A
    /// thread that hits any probe before that dies of it if heaptrace is killed; and in the first moments of an image
    /// the dynamic linker's is hit within microseconds. An image that the process has become since gets its probes at
    /// its own first stop.
    fn place_first(&mut self) {
        if self.sigtrap.awaits_first_stop() || !self.tracee.space.probes.holds_back() {
            return;
        }
        // Modules may have come and gone since the image was looked at.
        self.refresh_modules(None);
        match self.tracee.space.place_held_back() {
            Err(error) if !error.is_out_of_reach() => self.tracee.warn_once(error.to_string()),
            _ => {}
        }
        // The dynamic linker is watched only now.
        self.refresh_modules(None);
    }
}
