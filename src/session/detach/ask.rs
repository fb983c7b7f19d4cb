//! Whom a detach has to stop or to wake, and how often each was asked.

use crate::breakpoints::patches::PcLocation;
use crate::session::jump::JumpEngine;
use crate::session::sigtrap::{NoThreadAvailable, SigtrapGuard};
use crate::session::stops::Stops;
use crate::session::teardown::Teardown;
use crate::session::tracee::Tracee;
use crate::tracer::procfs::{self, Position};
use crate::tracer::status::SIGTRAP;
use std::collections::{BTreeMap, BTreeSet};

/// What is asked for how often and of whom, in one detach.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Sleeping threads, which need not be stopped.
    pub(super) asleep: BTreeSet<i32>,
    /// Threads that the detach has interrupted.
    asked: BTreeSet<i32>,
    /// Threads that were asked to take the handler for SIGTRAP out.
    tried: BTreeSet<i32>,
    /// The last of them, by process.
    uninstalling: BTreeMap<i32, i32>,
    /// Whether sleeping threads have to be stopped, too.
    everyone: bool,
}

impl Asked {
    /// For a detach for which sleeping threads have to be stopped, too.
    pub(super) fn of_everyone() -> Self {
        Self { everyone: true, ..Self::default() }
    }

    /// [`Teardown::ask_to_uninstall`] for children that share the memory, which have the handler on their own.
    pub(super) fn ask_sharers_to_uninstall(&mut self, tracee: &mut Tracee, sigtrap: &SigtrapGuard) -> bool {
        let mut waiting = false;
        for (pid, chosen) in sigtrap.sharers_to_uninstall(tracee, &self.tried) {
            if self.uninstalling.get(&pid).is_some_and(|tid| tracee.tasks.get(*tid).is_some()) {
                waiting = true;
                continue;
            }
            match chosen {
                Err(NoThreadAvailable) => {}
                Ok(None) => waiting = true,
                Ok(Some(tid)) => {
                    waiting = true;
                    self.tried.insert(tid);
                    self.uninstalling.insert(pid, tid);
                    if let Err(error) = tracee.interrupt(tid) {
                        tracing::warn!("{error}");
                    }
                }
            }
        }
        waiting
    }
}

impl Teardown {
    /// Tells the threads to stop that have to, and notes those that need not. Whether there are some of the former.
    pub(super) fn ask_to_stop(
        &self,
        tracee: &mut Tracee,
        jump: &JumpEngine,
        asked: &mut Asked,
        stops: &mut Stops,
    ) -> bool {
        let mut waiting = false;
        // Where only a stopped thread's code can be changed, one has to be stopped.
        let needs_stop = tracee.space.image.is_refused_while_running() && !tracee.space.probes.breakpoints.is_empty();
        let may_sleep_on = !self.exit_kill && !needs_stop && !asked.everyone;
        for tid in tracee.tasks.tids() {
            let is_last = self.last_to_detach.is_some_and(|(last, _)| last == tid);
            if is_last || asked.asleep.contains(&tid) && !needs_stop {
                continue;
            }
            let Some(task) = tracee.tasks.get(tid).copied() else { continue };
            let group = procfs::thread_group(tid).ok().flatten().unwrap_or(tracee.pid);
            match procfs::state(group, tid) {
                None | Some(b'Z' | b'X') => {
                    tracee.tasks.remove(tid);
                    stops.forget(tid);
                    continue;
                }
                Some(b'S' | b'D' | b'I')
                    if may_sleep_on && tracee.stands_clear(group, tid) && !jump.sleeps_in_a_call(tracee, tid) =>
                {
                    asked.asleep.insert(tid);
                    continue;
                }
                Some(_) if task.listening && may_sleep_on && !procfs::has_pending(tid, SIGTRAP).unwrap_or(true) => {
                    // Its registers were seen, and if need be moved, when it entered the group stop.
                    asked.asleep.insert(tid);
                    continue;
                }
                Some(_) => {}
            }
            waiting = true;
            if !asked.asked.contains(&tid) {
                match tracee.interrupt(tid) {
                    Err(error) => tracing::warn!("{error}"),
                    Ok(()) => {
                        asked.asked.insert(tid);
                    }
                }
            }
        }
        waiting
    }

    /// Whether a thread that has not stopped yet is ready to run, or runs.
    pub(super) fn awaits_a_ready_thread(&self, tracee: &Tracee, asked: &Asked) -> bool {
        let is_last = |tid| self.last_to_detach.is_some_and(|(last, _)| last == tid);
        let mut awaited = tracee.tasks.tids().into_iter().filter(|tid| !is_last(*tid) && !asked.asleep.contains(tid));
        awaited
            .any(|tid| procfs::state(procfs::thread_group(tid).ok().flatten().unwrap_or(tracee.pid), tid) == Some(b'R'))
    }

    /// If our handler for SIGTRAP is still there, or memory of ours: wakes a thread that can take it out. Whether one
    /// is on its way to.
    pub(super) fn ask_to_uninstall(&self, tracee: &mut Tracee, sigtrap: &SigtrapGuard, asked: &mut Asked) -> bool {
        if !self.has_last_calls(tracee, sigtrap) {
            return false;
        }
        if asked.uninstalling.get(&tracee.pid).is_some_and(|tid| tracee.tasks.get(*tid).is_some()) {
            return true;
        }
        let tid = match sigtrap.choose_who_uninstalls(tracee, self, &asked.tried) {
            Ok(Some(tid)) => tid,
            Ok(None) => return true,
            Err(NoThreadAvailable) => return false,
        };
        asked.tried.insert(tid);
        asked.uninstalling.insert(tracee.pid, tid);
        if let Err(error) = tracee.interrupt(tid) {
            tracing::warn!("{error}");
        }
        true
    }
}

impl Tracee {
    /// Whether a sleeping thread stands neither in code of ours nor behind a breakpoint that it has just hit.
    fn stands_clear(&self, group: i32, tid: i32) -> bool {
        match procfs::position(group, tid) {
            Position::Blocked { pc, .. } => self.space.image.locate(pc) == PcLocation::Program,
            Position::Running | Position::Unknown => false,
        }
    }
}
