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

use super::mask::looks_forced_open;
use super::{NoThreadAvailable, SIGTRAP_BIT, SigtrapGuard};
use crate::session::Session;
use crate::session::slots::Slot;
use crate::session::stop::Serving;
use crate::session::tasks::Role;
use crate::session::tracee::Tracee;
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
    pub(in crate::session) fn protect_sharers_early(&mut self, slot: Slot) -> Result<()> {
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
                        status = process.sigtrap.protect_sharer(&mut process.tracee, &stopped).unwrap_or(status);
                    }
                    let stop = self.stops.stop(status, stopped);
                    self.on_stop(stop)?;
                }
                Waited::Task(ended, status, None) => self.note_end(ended, status),
                Waited::NoTasks => return Ok(()),
                Waited::Nothing | Waited::Interrupted => {
                    let Some(process) = self.processes.get_mut(slot) else { return Ok(()) };
                    for tid in process.sigtrap.sharers_to_protect(&process.tracee) {
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

impl SigtrapGuard {
    /// The handler that a task may have which shares the memory. None: it has none, or not ours, or is not to make
    /// system calls.
    fn fallback_of_sharer(&self, tracee: &Tracee, tid: i32) -> Option<SigtrapFallback> {
        let handler = tracee.space.image.code.known_sigtrap_fallback()?;
        let catches = procfs::status_signals(tid, "SigCgt").is_some_and(|set| set & SIGTRAP_BIT != 0);
        // A copy of the memory has a copy of the handler, and none of the code for remote calls that is written here.
        let shares = || {
            tracee.tasks.get(tid).is_some_and(|task| task.role == Role::VmSharer)
                || procfs::same_memory(tid, tracee.pid) == Some(true)
        };
        let is_own = || self.sharers.own.contains(&group_of(tid));
        (catches && shares() && !is_own() && !procfs::has_seccomp(tid)).then_some(handler)
    }

    /// Whether a task that shares the memory may have our handler.
    pub(in crate::session) fn has_fallback_of_sharer(&self, tracee: &Tracee, tid: i32) -> bool {
        self.fallback_of_sharer(tracee, tid).is_some()
    }

    /// A child that shares the memory stands at a breakpoint: installs the handler if it has none.
    pub(in crate::session) fn keep_fallback_of_sharer(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<()> {
        let tid = thread.tid();
        if self.sharers.looked.get(&tid).is_some_and(|looked| looked.elapsed() < POLL_INTERVAL) || self.ignores_trap() {
            return Ok(());
        }
        self.sharers.looked.insert(tid, Instant::now());
        // Where it is blocked the handler would be of no use.
        if !lacks_fallback(tid) || has(tid, "SigBlk") {
            return Ok(());
        }
        let Some(handler) = self.prepare_fallback(tracee)? else { return Ok(()) };
        self.install_fallback_of_sharer(tracee, thread, handler)
    }

    /// A child that shares the memory has stopped before it has run into any breakpoint: installs the handler if it
    /// has none, as one that began before its parent had it, and opens SIGTRAP for it.
    fn give_fallback_to_sharer(&mut self, tracee: &mut Tracee, child: &Stopped) -> Result<()> {
        let tid = child.tid();
        if lacks_fallback(tid) && !self.ignores_trap() {
            let mask = child.signal_mask()?;
            // One that blocks this signal for reasons of its own would die in spite of the handler.
            let is_open = mask & SIGTRAP_BIT == 0 || looks_forced_open(mask & !SIGTRAP_BIT);
            if let Some(handler) = self.prepare_fallback(tracee)?.filter(|_| is_open) {
                self.install_fallback_of_sharer(tracee, child, handler)?;
            }
        }
        self.open_trap_of_sharer(tracee, child);
        Ok(())
    }

    /// The same at a stop that nobody has answered yet. Some: this was reported of the child meanwhile.
    pub(in crate::session) fn protect_sharer(&mut self, tracee: &mut Tracee, child: &Stopped) -> Option<WaitStatus> {
        self.let_sharer_ignore_trap(tracee, child);
        tracee.space.image.memory.stands_still(Some(child.tid()));
        let given = self.give_fallback_to_sharer(tracee, child);
        tracee.space.image.memory.stands_still(None);
        match given {
            Err(TracerError::Overtaken { status, .. }) => return Some(status),
            // It is no worse off than without.
            Err(error) => tracing::debug!("no handler for SIGTRAP in child {}: {error}", child.tid()),
            Ok(()) => {}
        }
        None
    }

    fn install_fallback_of_sharer(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        handler: SigtrapFallback,
    ) -> Result<()> {
        tracee.space.image.code.tell_fallback_of_others(handler);
        let resume = tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut tracee.space.image.memory };
        handler.install(&mut caller)?;
        self.note_handler_installed();
        Ok(())
    }

    /// The children that share the memory, have no handler, and don't notice an interruption.
    fn sharers_to_protect(&self, tracee: &Tracee) -> Vec<i32> {
        if tracee.settings.guardian.is_none() || self.ignores_trap() {
            return Vec::new();
        }
        let may = |pid, tid| disturbance(pid, tid).is_some_and(|found| found <= Disturbance::Unnoticed);
        let all = vm_sharers(tracee).into_iter().flat_map(|(pid, tids)| tids.into_iter().map(move |tid| (pid, tid)));
        all.filter(|(pid, tid)| lacks_fallback(*tid) && may(*pid, *tid)).map(|(_, tid)| tid).collect()
    }

    /// Takes the handler out of a child that shares the memory, if it may be there.
    pub(in crate::session) fn uninstall_fallback_of_sharer(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
    ) -> Result<()> {
        let tid = thread.tid();
        let Some(handler) = self.fallback_of_sharer(tracee, tid) else { return Ok(()) };
        self.sharers.looked.insert(tid, Instant::now());
        let resume = tracee.resume_registers(thread)?;
        let mut caller = Caller { thread, resume, code: handler.call, memory: &mut tracee.space.image.memory };
        handler.remove(&mut caller).map(drop)
    }

    /// The first stop of a child that shares the memory, of a program that ignores SIGTRAP: so does the child.
    pub(in crate::session) fn let_sharer_ignore_trap(&self, tracee: &Tracee, child: &Stopped) {
        let tid = child.tid();
        if !self.ignores_trap() || procfs::same_signal_actions(tid, tracee.pid) != Some(false) {
            return;
        }
        let freed = TargetMemory::open(tid, tid).and_then(|mut memory| {
            memory.stands_still(Some(tid));
            self.free_child_of_fallback(tracee, child, &mut memory)
        });
        if let Err(error) = freed
            && !error.is_out_of_reach()
        {
            tracing::warn!("{error}");
        }
    }

    /// The first stop of a child that shares the memory: opens SIGTRAP for it if it has the handler and blocks all
    /// signals.
    pub(in crate::session) fn open_trap_of_sharer(&mut self, tracee: &Tracee, child: &Stopped) {
        let tid = child.tid();
        if self.fallback_of_sharer(tracee, tid).is_none() {
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
            Ok(opened) => self.sharers.opened.extend(opened.map(|mask| (tid, mask))),
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// A child for which SIGTRAP was opened is about to be let go, or has executed its program: blocks the signal again
    /// where the mask is not another one by now.
    pub(in crate::session) fn close_trap_of_sharer(&mut self, child: &Stopped) {
        let Some(opened) = self.sharers.opened.remove(&child.tid()) else { return };
        let closed = child.signal_mask().and_then(|mask| match mask == opened {
            true => child.set_signal_mask(mask | SIGTRAP_BIT),
            false => Ok(()),
        });
        if let Err(error) = closed {
            tracing::debug!("{error}");
        }
    }

    /// The mask of a task for which SIGTRAP was opened: where it is the same since, no trap has opened it.
    pub(in crate::session) fn opened_for_sharer(&self, tid: i32) -> Option<u64> {
        self.sharers.opened.get(&tid).copied()
    }

    /// A child that shares the memory calls sigaction(2) for SIGTRAP.
    pub(in crate::session) fn note_own_action_of_sharer(&mut self, tid: i32, sets: bool) {
        if sets {
            self.sharers.own.insert(group_of(tid));
        }
    }

    /// A task has ended, or has memory of its own from now on.
    pub(in crate::session) fn forget_trap_of_sharer(&mut self, tid: i32) {
        self.sharers.looked.remove(&tid);
        self.sharers.opened.remove(&tid);
        self.sharers.own.remove(&tid);
    }

    /// The program has other memory by now, by exec, while children live on in what it had: our handler stays behind in
    /// them.
    pub(in crate::session) fn leave_sharers_behind(&mut self, tracee: &Tracee) {
        let left: Vec<i32> = vm_sharers(tracee).into_keys().collect();
        self.sharers.own.extend(left);
    }

    /// Whether a child that shares the memory may have our handler.
    pub(in crate::session) fn is_fallback_in_sharers(&self, tracee: &Tracee) -> bool {
        vm_sharers(tracee).into_values().flatten().any(|tid| self.has_fallback_of_sharer(tracee, tid))
    }

    /// At a detach in which all sleep: the tasks to wake that have to take the handler out of the children, one of
    /// each.
    pub(in crate::session) fn sharers_to_uninstall(
        &self,
        tracee: &Tracee,
        tried: &BTreeSet<i32>,
    ) -> Vec<(i32, std::result::Result<Option<i32>, NoThreadAvailable>)> {
        let mut chosen = Vec::new();
        for (pid, tids) in vm_sharers(tracee) {
            let has_handler = |tid: &i32| self.has_fallback_of_sharer(tracee, *tid) && !tracee.shares_trap_action(*tid);
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

/// The tasks that share the memory, by process.
fn vm_sharers(tracee: &Tracee) -> BTreeMap<i32, Vec<i32>> {
    let mut processes = BTreeMap::<i32, Vec<i32>>::new();
    for task in tracee.tasks.iter().filter(|task| task.role == Role::VmSharer) {
        processes.entry(group_of(task.id.tid)).or_default().push(task.id.tid);
    }
    processes
}

/// Whether SIGTRAP is in a set of signals of a task. One that can't be read may have it.
fn has(tid: i32, set: &str) -> bool {
    procfs::status_signals(tid, set).is_none_or(|set| set & SIGTRAP_BIT != 0)
}

/// Whether a task leaves SIGTRAP alone, and may be given a handler for it.
fn lacks_fallback(tid: i32) -> bool {
    !has(tid, "SigCgt") && !has(tid, "SigIgn") && !procfs::has_seccomp(tid)
}

/// The process that a task belongs to.
fn group_of(tid: i32) -> i32 {
    procfs::thread_group(tid).ok().flatten().unwrap_or(tid)
}
