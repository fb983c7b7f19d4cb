//! New tasks: threads, children that share the memory, and children that got a copy of it.

use super::Session;
use super::common::Common;
use super::pinning::Affinity;
use super::process::Process;
use super::sigtrap::SigtrapGuard;
use super::slots::Slot;
use super::stop::{Action, Stop};
use super::tracee::Tracee;
use crate::event::Preexisting;
use crate::session::tasks::Role;
use crate::tracer::code::write;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::Stopped;
use crate::tracer::{Result, insist, procfs};

impl Session {
    /// The first stop of a task that is not known yet. Some: that is all there is to do with it.
    pub(super) fn on_new_task(&mut self, stop: &mut Stop) -> Result<Option<Action>> {
        let tid = stop.tid();
        if let Some(slot) = procfs::thread_group(tid)?.and_then(|group| self.processes.find(group)) {
            self.stops.note_arrival(tid);
            if let Some(process) = self.processes.get_mut(slot) {
                process.affinity.unpin(&process.tracee.tasks);
                process.affinity.restore(tid);
            }
            self.add_task(slot, tid, Role::Thread);
            stop.slot = Some(slot);
            return Ok(None);
        }
        if self.common.settings.follow && !self.stops.announcement_lost {
            // Which thread is its parent, and so in which calls it is, only that one's stop tells.
            return Ok(Some(Action::Hold));
        }
        if let Some(slot) = self.memory_owner_of(tid)? {
            self.stops.note_arrival(tid);
            self.add_task(slot, tid, Role::VmSharer);
            stop.slot = Some(slot);
            if let Some(process) = self.processes.get_mut(slot) {
                stop.status = process.sigtrap.protect_sharer(&mut process.tracee, &stop.stopped).unwrap_or(stop.status);
            }
            return Ok(None);
        }
        self.begin_detach_of_copy(&stop.stopped);
        Ok(Some(Action::Detach))
    }

    /// As [`Self::on_new_task`], during a detach: a child with a copy of our breakpoints must not keep them.
    pub(super) fn detach_new_child(&mut self, stopped: &Stopped) -> Result<()> {
        let tid = stopped.tid();
        let is_thread = procfs::thread_group(tid)?.is_some_and(|group| self.processes.find(group).is_some());
        if is_thread || self.memory_owner_of(tid)?.is_some() {
            self.stops.note_arrival(tid);
        } else {
            self.begin_detach_of_copy(stopped);
        }
        Ok(())
    }

    /// A new process with a copy of our breakpoints, which is stopped, is not to be traced: clears it.
    fn begin_detach_of_copy(&mut self, child: &Stopped) {
        let tid = child.tid();
        let slot = self.parent_of(tid).unwrap_or(self.first);
        let is_new = self.stops.begin_detach(tid);
        if is_new {
            self.stops.note_arrival(tid);
        }
        if let Some(process) = self.processes.get_mut(slot) {
            process.children.untraced += u64::from(is_new);
            let Process { tracee, sigtrap, affinity, .. } = process;
            clean_copy_to_detach(tracee, sigtrap, affinity, child);
        }
    }

    /// The process that a stopped task belongs to, or if it is a new one, that of its parent.
    pub(super) fn slot_of(&self, stop: &Stop) -> Slot {
        stop.slot.or_else(|| self.parent_of(stop.tid())).unwrap_or(self.first)
    }

    /// The process of a new task's parent, if that is one of ours and lives.
    fn parent_of(&self, tid: i32) -> Option<Slot> {
        let parent = procfs::status_number(tid, "PPid")?;
        self.processes.find(parent).or_else(|| self.stops.owner_of(parent))
    }

    /// The process whose memory a task of another process shares.
    fn memory_owner_of(&mut self, tid: i32) -> Result<Option<Slot>> {
        let candidates = match self.parent_of(tid) {
            Some(parent) => vec![parent],
            // It may be a child of its grandparent (CLONE_PARENT), or an orphan.
            None => self.processes.slots(),
        };
        for slot in candidates {
            if let Some(process) = self.processes.get_mut(slot)
                && process.tracee.shares_memory(tid)?
            {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// A task of the process in `slot` tells of a child or thread that it has just made. A process is followed from
    /// here on, from its first stop, for which the parent waits: with a copy of what is known of its parent, or as one
    /// who shares that one's memory.
    pub(super) fn follow_child(&mut self, slot: Slot, parent: &Stopped) {
        let has_gone = || {
            let child = parent.event_message().ok().and_then(|child| i32::try_from(child).ok());
            child.is_some_and(|child| matches!(procfs::state(child, child), None | Some(b'Z' | b'X')))
        };
        match self.try_to_follow_child(slot, parent) {
            Err(error) if !error.is_out_of_reach() && !has_gone() => {
                self.stops.announcement_lost = true;
                if let Some(process) = self.processes.get_mut(slot) {
                    process.tracee.warn_once(format!("children run untraced from here on: {error}"));
                }
                for (tid, _) in self.stops.held.clone() {
                    self.stops.release(tid);
                }
            }
            _ => {}
        }
    }

    fn try_to_follow_child(&mut self, slot: Slot, parent: &Stopped) -> Result<()> {
        let Ok(child) = i32::try_from(parent.event_message()?) else { return Ok(()) };
        if self.stops.owner_of(child).is_some() {
            return Ok(());
        }
        if procfs::thread_group(child)?.is_some_and(|group| self.processes.find(group).is_some()) {
            return Ok(());
        }
        // If this breaks off, its first stop is still to be waited for: it has our breakpoints.
        self.stops.expected.insert(child);
        let is_held = self.stops.hold(child)?;
        self.stops.expected.remove(&child);
        // From here on it is known, and not to be waited for.
        self.stops.early.insert(child);
        if !is_held {
            return Ok(());
        }
        let Some(process) = self.processes.get_mut(slot) else { return Ok(()) };
        let stopped = Stopped::regained(child);
        let mut overtaken = None;
        if process.tracee.shares_memory(child)? {
            self.add_task(slot, child, Role::VmSharer);
            if let Some(process) = self.processes.get_mut(slot) {
                overtaken = process.sigtrap.protect_sharer(&mut process.tracee, &stopped);
                process.tracee.space.image.memory.stands_still(Some(parent.tid()));
            }
        } else {
            let copy = process.fork(parent.tid(), &stopped, &self.common)?;
            let slot = self.processes.insert(child, copy);
            self.stops.assign(child, slot);
        }
        self.stops.early.remove(&child);
        self.stops.release(child);
        if let Some(status) = overtaken {
            self.stops.overtake(child, status);
        }
        Ok(())
    }

    /// The process in `slot` is over, and has not told of children that have stopped already: they are detached from.
    pub(super) fn detach_held_children_of(&mut self, slot: Slot) {
        let held = std::mem::take(&mut self.stops.held);
        for (tid, status) in held {
            let is_copy = |process: &Process| process.tracee.space.image.is_copied_in(tid);
            if self.parent_of(tid).is_some_and(|parent| parent != slot)
                || !self.processes.get(slot).is_some_and(is_copy)
            {
                self.stops.held.push((tid, status));
                continue;
            }
            let child = Stopped::regained(tid);
            if let Some(process) = self.processes.get_mut(slot) {
                process.children.untraced += u64::from(self.stops.begin_detach(tid));
                let Process { tracee, sigtrap, affinity, .. } = process;
                clean_copy_to_detach(tracee, sigtrap, affinity, &child);
            }
            match child.detach(0) {
                Ok(()) => self.stops.end_detach(tid),
                Err(error) if error.is_out_of_reach() => {}
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
}

impl Process {
    /// The process of `child`, which has just come to be as a copy of the task `parent` of this one, and is stopped.
    fn fork(&mut self, parent: i32, child: &Stopped, common: &Common) -> Result<Self> {
        let tid = child.tid();
        self.settle_heap();
        self.affinity.unpin(&self.tracee.tasks);
        self.affinity.restore(tid);
        self.identity.note_thread_names(&self.tracee);
        let mut space = self.tracee.space.fork(tid, self.tracee.settings.guardian.as_ref())?;
        // The copy has nothing of the memory that its parent shares with us.
        space.image.end_jumps()?;
        let tasks = self.tracee.tasks.fork(parent, tid);
        let serial = |tasks: &super::tasks::Tasks, tid| tasks.get(tid).map(|task| task.id);
        let among_threads = self.tracee.tasks.len() > 1;
        let observer = match (serial(&self.tracee.tasks, parent), serial(&tasks, tid)) {
            (Some(parent), Some(child)) => self.observer.fork(parent, child, among_threads),
            _ => common.new_observer(tid, Preexisting::Unknown),
        };
        let mut copy = Self::new(tid, observer, space, common);
        copy.tracee.tasks = tasks;
        copy.leaks = self.leaks.fork();
        copy.existing = self.existing.fork();
        if let Some(task) = copy.tracee.tasks.get(tid) {
            copy.tests = self.tests.fork(parent, task.id);
        }
        copy.identity.parent = Some(self.tracee.pid);
        copy.identity.selected = self.identity.selected;
        copy.teardown.exit_kill = self.teardown.exit_kill;
        copy.identity.program.clone_from(&self.identity.program);
        copy.identity.owner = self.identity.owner.clone();
        copy.identity.command.clone_from(&self.identity.command);
        copy.identity.thread_names.clone_from(&self.identity.thread_names);
        copy.observer.define(&copy.identity.definition());
        copy.sigtrap.inherit(&mut copy.tracee, &mut copy.teardown, (&self.sigtrap, parent), child)?;
        self.children.followed += 1;
        Ok(copy)
    }
}

/// Gives a forked child, which is stopped and has one thread, its original code back. The order is the one in which
/// it lives on if we are killed meanwhile: without breakpoints it needs no handler, without the handler and its
/// remote call no pads.
fn clean_copy_to_detach(tracee: &mut Tracee, sigtrap: &SigtrapGuard, affinity: &Affinity, child: &Stopped) {
    let tid = child.tid();
    match TargetMemory::open(tid, tid).and_then(|memory| clean_copy(tracee, sigtrap, child, memory)) {
        Err(error) if !error.is_out_of_reach() => {
            tracee.warn_once(format!("the code of child {tid} could not be restored: {error}"));
        }
        _ => {}
    }
    affinity.restore(tid);
}

fn clean_copy(tracee: &Tracee, sigtrap: &SigtrapGuard, child: &Stopped, mut memory: TargetMemory) -> Result<()> {
    memory.stands_still(Some(child.tid()));
    let patches = tracee.space.image.code.patches();
    // The child's life hangs on it.
    insist(|| write::restore_copy(&mut memory, patches))?;
    match sigtrap.free_child_of_fallback(tracee, child, &mut memory) {
        Err(error) if error.is_out_of_reach() => return Err(error),
        // Its code is still there, then.
        Err(error) => {
            tracing::warn!("{error}");
            return Ok(());
        }
        Ok(()) => {}
    }
    insist(|| write::clear_own(&mut memory, patches, None))
}
