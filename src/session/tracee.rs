//! What every object of a traced process needs: who the process is, its threads and its memory.

mod calls;
mod standstill;

use super::settings::Settings;
use super::space::AddressSpace;
use super::tasks::{Role, Tasks};
use crate::base::addr::Addr;
use crate::breakpoints::patches::PcLocation;
use crate::tracer::code::write::Threads;
use crate::tracer::control::Control;
use crate::tracer::memory::TargetMemory;
use crate::tracer::procfs::Position;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, procfs, ptrace};
use std::sync::Arc;

/// A process under trace, as the objects that watch it share it. Each of them owns what it decides about, and gets this
/// for the rest.
#[derive(Debug)]
pub(super) struct Tracee {
    pub(super) pid: i32,
    pub(super) tasks: Tasks,
    pub(super) space: AddressSpace,
    pub(super) settings: Arc<Settings>,
    pub(super) control: Arc<Control>,
    /// For the user, each once, in the order in which they came up.
    pub(super) warnings: Vec<String>,
}

impl Tracee {
    /// Keeps a warning for the user, unless it is there already.
    pub(super) fn warn_once(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Whose threads run through the code that is about to be written.
    pub(super) fn whose_threads(&self) -> Threads {
        if self.tasks.has_sharers() { Threads::Run } else { Threads::OfOne(self.pid) }
    }

    /// Asks a thread to stop; its stop comes later. A thread that has ended is no error.
    pub(super) fn interrupt(&mut self, tid: i32) -> Result<()> {
        if let Some(task) = self.tasks.get_mut(tid) {
            task.interrupted = true;
        }
        match ptrace::interrupt(tid) {
            Err(error) if !error.is_out_of_reach() => Err(error),
            _ => Ok(()),
        }
    }

    /// The registers with which a stopped thread goes on after a call for us: in front of a breakpoint of ours that it
    /// has hit.
    pub(super) fn resume_registers(&self, thread: &Stopped) -> Result<RawRegs> {
        let raw = thread.registers()?;
        let location = self.space.image.locate(Addr(raw.0.rip));
        let has_hit = matches!(location, PcLocation::BehindTrap(_)) && thread.is_breakpoint_trap()?;
        Ok(if has_hit { raw.before_trap() } else { raw })
    }

    /// A new image gets no breakpoint before it has the handler.
    pub(super) fn hold_probes_back(&mut self) {
        if self.settings.guardian.is_some() {
            self.space.probes.hold_back();
        }
    }

    /// Whether a task has the program's own actions for signals, rather than a copy.
    pub(super) fn shares_trap_action(&self, tid: i32) -> bool {
        self.tasks.is_own_thread(tid) || procfs::same_signal_actions(tid, self.pid) == Some(true)
    }

    /// Whether another thread may have reset the handler for SIGTRAP: it stands at a stop that was not answered yet,
    /// behind a breakpoint or where nobody knows. One that was only interrupted stands elsewhere.
    pub(super) fn others_may_have_hit(&self, tid: i32) -> bool {
        let has_hit = |other: i32| match procfs::position(self.pid, other) {
            Position::Blocked { pc, .. } => !matches!(self.space.image.locate(pc), PcLocation::Program),
            Position::Running | Position::Unknown => true,
        };
        let stands = |other: i32| procfs::state(self.pid, other) == Some(b't');
        self.tasks.tids().into_iter().any(|other| other != tid && stands(other) && has_hit(other))
    }

    /// A task that has not ended, if there is one.
    pub(super) fn live_task(&self) -> i32 {
        procfs::through_any(self.pid, self.tasks.tids(), Ok).unwrap_or(self.pid)
    }

    /// Whether a task of another process shares the traced process's memory. The event that announced it does not tell:
    /// clone(CLONE_VM|SIGCHLD) is reported as a fork.
    pub(super) fn shares_memory(&mut self, tid: i32) -> Result<bool> {
        // Threads that have ended have no memory any more, also before that is reported.
        let threads = self.tasks.iter().filter(|task| task.role == Role::Thread);
        let mut is_known = false;
        for same in threads.map(|task| procfs::same_memory(tid, task.id.tid)) {
            if same == Some(true) {
                return Ok(true);
            }
            is_known |= same.is_some();
        }
        if is_known {
            return Ok(false);
        }
        // kcmp(2) is refused in some containers: then a byte tells that is written here and read there.
        Ok(self.space.image.is_seen_through(&TargetMemory::open(tid, tid)?).unwrap_or(true))
    }
}
