//! The SIGTRAP fallback in *VM sharers*: children that share the memory (vfork, posix_spawn, clone with CLONE_VM).
//! Their actions for signals are their own, begun as copies of their parent's. So they have the handler from the start
//! where their parent has it; it is taken out where such a child could notice it, and when it is detached from. Its
//! exec takes it out, too.
//!
//! posix_spawn has its child begin with all signals blocked. A trap then would not reach the handler: the kernel resets
//! it and kills the child, where heaptrace does not stand in between any more. So SIGTRAP is opened for such a child at
//! its first stop. The C libraries take the parent's handlers out only for signals that are blocked (glibc), or that
//! they have installed themselves (musl), and the child puts the mask of before the call back just before its exec.
//!
//! Where the program ignores SIGTRAP, its children have that instead, from their first stop on: what they execute
//! inherits it.

use super::Session;
use super::process::Process;
use super::signalstate::{NoThreadAvailable, SIGTRAP_BIT};
use super::slots::Slot;
use super::stop::Serving;
use super::tasks::Role;
use super::trapmask::looks_forced_open;
use crate::tracer::disturbance::{Disturbance, disturbance};
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::remote::Caller;
use crate::tracer::sigtrap_fallback::SigtrapFallback;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, TracerError, procfs};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often it is looked at whether a child has the handler.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long an attach waits for such children to stop, with these pauses.
const EARLY: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(100);

impl Session {
    /// At an attach, before there is any probe: gives the handler to the children that share the memory, as those that
    /// began before their parent had it run to the probe on execve without. What has stopped is served first: among
    /// that are children that were made since the process was seized.
    pub(super) fn protect_sharers_early(&mut self, slot: Slot) -> Result<()> {
        let deadline = Instant::now() + EARLY;
        let (mut asked, mut awaited) = (BTreeSet::new(), BTreeSet::new());
        while Instant::now() < deadline {
            match ptrace::wait(false)? {
                Waited::Task(tid, mut status, Some(stopped)) => {
                    if awaited.remove(&tid)
                        && status == WaitStatus::EventStop
                        && let Some(process) = self.processes.get_mut(slot)
                    {
                        self.stops.serving = Some(Serving { tid, status, answer: None });
                        status = process.protect_sharer(&stopped).unwrap_or(status);
                    }
                    let stop = self.stops.stop(status, stopped);
                    self.on_stop(stop)?;
                }
                Waited::Task(ended, status, None) => self.note_end(ended, status),
                Waited::NoTasks => return Ok(()),
                Waited::Nothing | Waited::Interrupted => {
                    let Some(process) = self.processes.get_mut(slot) else { return Ok(()) };
                    for tid in process.sharers_to_protect() {
                        if asked.insert(tid) {
                            process.tracee.interrupt(tid)?;
                            awaited.insert(tid);
                        }
                    }
                    awaited.retain(|tid| process.tracee.tasks.get(*tid).is_some());
                    if awaited.is_empty() {
                        return Ok(());
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
        Ok(())
    }
}

impl Process {
    /// Whether a task has the program's own actions for signals, rather than a copy.
    pub(super) fn shares_trap_action(&self, tid: i32) -> bool {
        self.tracee.tasks.is_own_thread(tid) || procfs::same_signal_actions(tid, self.tracee.pid) == Some(true)
    }

    /// The handler that a task may have which shares the memory. None: it has none, or not ours, or is not to make
    /// system calls.
    fn sigtrap_fallback_of_sharer(&self, tid: i32) -> Option<SigtrapFallback> {
        let handler = self.tracee.space.code.known_sigtrap_fallback()?;
        let catches = procfs::status_signals(tid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        // A copy of the memory has a copy of the handler, and none of the code for remote calls that is written here.
        let shares = || {
            self.tracee.tasks.get(tid).is_some_and(|task| task.role == Role::VmSharer)
                || procfs::same_memory(tid, self.tracee.pid) == Some(true)
        };
        let is_own = || self.signals.sharers.own.contains(&group_of(tid));
        (catches && shares() && !is_own() && !procfs::has_seccomp(tid)).then_some(handler)
    }

    /// Whether a task that shares the memory may have our handler.
    pub(super) fn has_sigtrap_fallback_of_sharer(&self, tid: i32) -> bool {
        self.sigtrap_fallback_of_sharer(tid).is_some()
    }

    /// A child that shares the memory stands at a breakpoint: installs the handler if it has none.
    pub(super) fn keep_sigtrap_fallback_of_sharer(&mut self, tid: i32, thread: &Stopped) -> Result<()> {
        if self.signals.sharers.looked.get(&tid).is_some_and(|looked| looked.elapsed() < POLL_INTERVAL)
            || self.ignores_trap()
        {
            return Ok(());
        }
        self.signals.sharers.looked.insert(tid, Instant::now());
        // Where it is blocked the handler would be of no use.
        if !lacks_sigtrap_fallback(tid) || has(tid, "SigBlk") {
            return Ok(());
        }
        let Some(handler) = self.prepare_sigtrap_fallback()? else { return Ok(()) };
        self.install_sigtrap_fallback_of_sharer(thread, handler)
    }

    /// A child that shares the memory has stopped before it has run into any breakpoint: installs the handler if it
    /// has none, as one that began before its parent had it, and opens SIGTRAP for it.
    fn give_sigtrap_fallback_to_sharer(&mut self, child: &Stopped) -> Result<()> {
        let tid = child.tid();
        if lacks_sigtrap_fallback(tid) && !self.ignores_trap() {
            let mask = child.signal_mask()?;
            // One that blocks this signal for reasons of its own would die in spite of the handler.
            let is_open = mask & SIGTRAP_BIT == 0 || looks_forced_open(mask & !SIGTRAP_BIT);
            if let Some(handler) = self.prepare_sigtrap_fallback()?.filter(|_| is_open) {
                self.install_sigtrap_fallback_of_sharer(child, handler)?;
            }
        }
        self.open_trap_of_sharer(child);
        Ok(())
    }

    /// The same at a stop that nobody has answered yet. Some: this was reported of the child meanwhile.
    pub(super) fn protect_sharer(&mut self, child: &Stopped) -> Option<WaitStatus> {
        self.let_sharer_ignore_trap(child);
        self.tracee.space.memory.stands_still(Some(child.tid()));
        let given = self.give_sigtrap_fallback_to_sharer(child);
        self.tracee.space.memory.stands_still(None);
        match given {
            Err(TracerError::Overtaken { status, .. }) => return Some(status),
            // It is no worse off than without.
            Err(error) => tracing::debug!("no handler for SIGTRAP in child {}: {error}", child.tid()),
            Ok(()) => {}
        }
        None
    }

    fn install_sigtrap_fallback_of_sharer(&mut self, thread: &Stopped, handler: SigtrapFallback) -> Result<()> {
        self.tracee.space.code.tell_fallback_of_others(handler);
        let resume = self.tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut self.tracee.space.memory };
        handler.install(&mut caller)?;
        self.note_handler_installed();
        Ok(())
    }

    /// The children that share the memory, have no handler, and don't notice an interruption.
    fn sharers_to_protect(&self) -> Vec<i32> {
        if self.tracee.settings.guardian.is_none() || self.ignores_trap() {
            return Vec::new();
        }
        let may = |pid, tid| disturbance(pid, tid).is_some_and(|found| found <= Disturbance::Unnoticed);
        let all = self.vm_sharers().into_iter().flat_map(|(pid, tids)| tids.into_iter().map(move |tid| (pid, tid)));
        all.filter(|(pid, tid)| lacks_sigtrap_fallback(*tid) && may(*pid, *tid)).map(|(_, tid)| tid).collect()
    }

    /// Takes the handler out of a child that shares the memory, if it may be there.
    pub(super) fn uninstall_sigtrap_fallback_of_sharer(&mut self, thread: &Stopped) -> Result<()> {
        let tid = thread.tid();
        let Some(handler) = self.sigtrap_fallback_of_sharer(tid) else { return Ok(()) };
        self.signals.sharers.looked.insert(tid, Instant::now());
        let resume = self.tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut self.tracee.space.memory };
        handler.remove(&mut caller).map(drop)
    }

    /// The first stop of a child that shares the memory, of a program that ignores SIGTRAP: so does the child.
    pub(super) fn let_sharer_ignore_trap(&self, child: &Stopped) {
        let tid = child.tid();
        if !self.ignores_trap() || procfs::same_signal_actions(tid, self.tracee.pid) != Some(false) {
            return;
        }
        let freed = TargetMemory::open(tid, tid).and_then(|mut memory| {
            memory.stands_still(Some(tid));
            self.free_child_of_sigtrap_fallback(child, &mut memory)
        });
        if let Err(error) = freed
            && !error.is_out_of_reach()
        {
            tracing::warn!("{error}");
        }
    }

    /// The first stop of a child that shares the memory: opens SIGTRAP for it if it has the handler and blocks all
    /// signals.
    pub(super) fn open_trap_of_sharer(&mut self, child: &Stopped) {
        let tid = child.tid();
        if self.sigtrap_fallback_of_sharer(tid).is_none() {
            return;
        }
        let opened = child.signal_mask().and_then(|mask| {
            let open = mask & !SIGTRAP_BIT;
            if mask == open || !looks_forced_open(open) {
                return Ok(None);
            }
            child.set_signal_mask(open).map(|()| Some(open))
        });
        match opened {
            Ok(opened) => self.signals.sharers.opened.extend(opened.map(|mask| (tid, mask))),
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// A child for which SIGTRAP was opened is about to be let go, or has executed its program: blocks the signal again
    /// where the mask is not another one by now.
    pub(super) fn close_trap_of_sharer(&mut self, child: &Stopped) {
        let Some(opened) = self.signals.sharers.opened.remove(&child.tid()) else { return };
        let closed = child.signal_mask().and_then(|mask| match mask == opened {
            true => child.set_signal_mask(mask | SIGTRAP_BIT),
            false => Ok(()),
        });
        if let Err(error) = closed {
            tracing::debug!("{error}");
        }
    }

    /// The mask of a task for which SIGTRAP was opened: where it is the same since, no trap has opened it.
    pub(super) fn opened_for_sharer(&self, tid: i32) -> Option<u64> {
        self.signals.sharers.opened.get(&tid).copied()
    }

    /// A child that shares the memory calls sigaction(2) for SIGTRAP.
    pub(super) fn note_own_action_of_sharer(&mut self, tid: i32, sets: bool) {
        if sets {
            self.signals.sharers.own.insert(group_of(tid));
        }
    }

    /// A task has ended, or has memory of its own from now on.
    pub(super) fn forget_trap_of_sharer(&mut self, tid: i32) {
        self.signals.sharers.looked.remove(&tid);
        self.signals.sharers.opened.remove(&tid);
        self.signals.sharers.own.remove(&tid);
    }

    /// The program has other memory by now, by exec, while children live on in what it had: our handler stays behind in
    /// them.
    pub(super) fn leave_sharers_behind(&mut self) {
        let left: Vec<i32> = self.vm_sharers().into_keys().collect();
        self.signals.sharers.own.extend(left);
    }

    /// The tasks that share the memory, by process.
    fn vm_sharers(&self) -> BTreeMap<i32, Vec<i32>> {
        let mut processes = BTreeMap::<i32, Vec<i32>>::new();
        for task in self.tracee.tasks.iter().filter(|task| task.role == Role::VmSharer) {
            processes.entry(group_of(task.id.tid)).or_default().push(task.id.tid);
        }
        processes
    }

    /// Whether a child that shares the memory may have our handler.
    pub(super) fn is_sigtrap_fallback_in_sharers(&self) -> bool {
        self.vm_sharers().into_values().flatten().any(|tid| self.has_sigtrap_fallback_of_sharer(tid))
    }

    /// At a detach in which all sleep: the tasks to wake that have to take the handler out of the children, one of
    /// each.
    pub(super) fn sharers_to_uninstall(
        &self,
        tried: &BTreeSet<i32>,
    ) -> Vec<(i32, std::result::Result<Option<i32>, NoThreadAvailable>)> {
        let mut chosen = Vec::new();
        for (pid, tids) in self.vm_sharers() {
            let has_handler = |tid: &i32| self.has_sigtrap_fallback_of_sharer(*tid) && !self.shares_trap_action(*tid);
            if !tids.first().is_some_and(has_handler) {
                continue;
            }
            let left: Vec<i32> = tids.into_iter().filter(|tid| !tried.contains(tid)).collect();
            let best = left.iter().filter_map(|&tid| Some((disturbance(pid, tid)?, tid))).min();
            let may_come = |tid: &i32| !matches!(procfs::state(pid, *tid), None | Some(b'Z' | b'X'));
            chosen.push((
                pid,
                match best {
                    Some((_, tid)) => Ok(Some(tid)),
                    None if left.iter().any(may_come) => Ok(None),
                    None => Err(NoThreadAvailable),
                },
            ));
        }
        chosen
    }
}

/// Whether SIGTRAP is in a set of signals of a task. One that can't be read may have it.
fn has(tid: i32, set: &str) -> bool {
    procfs::status_signals(tid, set).is_none_or(|set| set & SIGTRAP_BIT != 0)
}

/// Whether a task leaves SIGTRAP alone, and may be given a handler for it.
fn lacks_sigtrap_fallback(tid: i32) -> bool {
    !has(tid, "SigCgt") && !has(tid, "SigIgn") && !procfs::has_seccomp(tid)
}

/// The process that a task belongs to.
fn group_of(tid: i32) -> i32 {
    procfs::thread_group(tid).ok().flatten().unwrap_or(tid)
}
