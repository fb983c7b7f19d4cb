//! New tasks, new images: threads, children that share the memory, children that got a copy of it, and exec.

use super::common::Common;
use super::observer::Seen;
use super::process::Process;
use super::slots::Slot;
use super::stop::{Action, Stop};
use super::trap::pass_trap_to;
use super::{Session, space};
use crate::addr::Addr;
use crate::event::Preexisting;
use crate::profile::{Amount, Image};
use crate::session::leakrecord::LeakWatch;
use crate::session::signalstate::FallbackState;
use crate::session::space::AddressSpace;
use crate::session::tasks::Role;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{RawRegs, Stopped};
use crate::tracer::{Result, code, files, insist, procfs};

impl Session {
    /// The first stop of a task that is not known yet. Some: that is all there is to do with it.
    pub(super) fn on_new_task(&mut self, stop: &mut Stop) -> Result<Option<Action>> {
        let tid = stop.tid();
        if let Some(slot) = procfs::thread_group(tid)?.and_then(|group| self.processes.find(group)) {
            self.stops.note_arrival(tid);
            if let Some(process) = self.processes.get_mut(slot) {
                process.unpin();
                process.restore_affinity(tid);
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
            if let Some(process) = self.processes.get(slot) {
                process.let_sharer_ignore_trap(&stop.stopped);
            }
            self.add_task(slot, tid, Role::VmSharer);
            stop.slot = Some(slot);
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
            process.clean_copy_to_detach(child);
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
                && process.shares_memory(tid)?
            {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// A task of the process in `slot` tells of a child or thread that it has just made. A process is followed from here on, from its first stop, for
    /// which the parent waits: with a copy of what is known of its parent, or as one who shares that one's memory.
    pub(super) fn follow_child(&mut self, slot: Slot, parent: &Stopped) {
        let has_gone = || {
            let child = parent.event_message().ok().and_then(|child| i32::try_from(child).ok());
            child.is_some_and(|child| matches!(procfs::state(child, child), None | Some(b'Z' | b'X')))
        };
        match self.try_to_follow_child(slot, parent) {
            Err(error) if !error.is_out_of_reach() && !has_gone() => {
                self.stops.announcement_lost = true;
                if let Some(process) = self.processes.get_mut(slot) {
                    process.warn_once(format!("children run untraced from here on: {error}"));
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
        if process.shares_memory(child)? {
            process.let_sharer_ignore_trap(&stopped);
            self.add_task(slot, child, Role::VmSharer);
        } else {
            let copy = process.fork(parent.tid(), &stopped, &self.common)?;
            let slot = self.processes.insert(child, copy);
            self.stops.assign(child, slot);
        }
        self.stops.early.remove(&child);
        self.stops.release(child);
        Ok(())
    }

    /// The process in `slot` is over, and has not told of children that have stopped already: they are detached from.
    pub(super) fn detach_held_children_of(&mut self, slot: Slot) {
        let held = std::mem::take(&mut self.stops.held);
        for (tid, status) in held {
            let is_copy = |process: &Process| process.space.is_copied_in(tid);
            if self.parent_of(tid).is_some_and(|parent| parent != slot)
                || !self.processes.get(slot).is_some_and(is_copy)
            {
                self.stops.held.push((tid, status));
                continue;
            }
            let child = Stopped::regained(tid);
            if let Some(process) = self.processes.get_mut(slot) {
                process.children.untraced += u64::from(self.stops.begin_detach(tid));
                process.clean_copy_to_detach(&child);
            }
            match child.detach(0) {
                Ok(()) => self.stops.end_detach(tid),
                Err(error) if error.is_out_of_reach() => {}
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    /// exec succeeded: the task is now the only one of its process, in a new address space without anything of ours.
    pub(super) fn on_exec(&mut self, stop: &mut Stop) -> Result<Action> {
        let tid = stop.tid();
        let former = i32::try_from(stop.stopped.event_message()?).unwrap_or(tid);
        tracing::debug!("exec by task {former} of process {tid}");
        let Self { processes, stops, .. } = self;
        let Some(slot) = stop.slot else { return Ok(Action::Gone) };
        let Some(process) = processes.get_mut(slot) else { return Ok(Action::Gone) };
        if tid != process.pid {
            // A child that had shared the memory. Its siblings' records stay.
            if self.common.settings.follow {
                return self.follow_sharer(slot, stop, former);
            }
            process.note_child_detached(tid);
            return Ok(Action::Detach);
        }
        let gone = process.forget_threads();
        gone.into_iter().for_each(|old| stops.forget(old));
        stops.assign(tid, slot);
        process.on_exec(tid, &self.common)
    }

    /// A child that had shared the memory has got its own, by exec.
    fn follow_sharer(&mut self, owner: Slot, stop: &mut Stop, former: i32) -> Result<Action> {
        let tid = stop.tid();
        let opened = open_new_image(tid, tid, &self.common);
        let Some(process) = self.processes.get_mut(owner) else { return Ok(Action::Gone) };
        let space = match opened? {
            Ok(space) => space,
            Err(why) => {
                let program = procfs::program_name(tid, tid);
                process.warn_once(format!("{program}, process {tid}, runs untraced, as {why}"));
                process.note_child_detached(tid);
                return Ok(Action::Detach);
            }
        };
        process.unpin();
        process.restore_affinity(tid);
        process.children.followed += 1;
        process.space.memory.stands_still(None);
        for old in [tid, former] {
            if let Some(task) = process.tasks.remove(old) {
                process.end_calls_of(task.id);
            }
            process.forget_trap_of_sharer(old);
            self.stops.forget(old);
        }
        let parent = process.pid;
        let mut child = Process::new(tid, self.common.new_observer(Preexisting::None), space, &self.common);
        child.identity.parent = Some(parent);
        child.hold_probes_back();
        child.begin_image(tid);
        let slot = self.processes.insert(tid, child);
        self.add_task(slot, tid, Role::Thread);
        stop.slot = Some(slot);
        if let Some(child) = self.processes.get_mut(slot) {
            child.ask_for_sigtrap_fallback(tid)?;
        }
        // The memory that it had shared may have been all that was left of that process.
        self.finish_if_over(owner);
        Ok(Action::Resume(0))
    }
}

/// The memory of a process that exec has just given a new image, or in words why it can't be traced.
fn open_new_image(pid: i32, tid: i32, common: &Common) -> Result<std::result::Result<AddressSpace, String>> {
    if !space::is_64_bit(tid) {
        return Ok(Err("it is a 32-bit program, and heaptrace traces 64-bit x86-64 programs only".to_owned()));
    }
    match AddressSpace::open(pid, tid, common.settings.guardian.as_ref(), &common.objects) {
        Ok(space) => Ok(Ok(space)),
        Err(error) if error.is_out_of_reach() => Err(error),
        Err(error) => Ok(Err(format!("its memory can't be read: {error}"))),
    }
}

impl Process {
    /// The process of `child`, which has just come to be as a copy of the task `parent` of this one, and is stopped.
    fn fork(&mut self, parent: i32, child: &Stopped, common: &Common) -> Result<Self> {
        let tid = child.tid();
        self.settle();
        self.unpin();
        self.restore_affinity(tid);
        self.note_thread_names();
        let space = self.space.fork(tid, self.settings.guardian.as_ref())?;
        let tasks = self.tasks.fork(parent, tid);
        let serial = |tasks: &super::tasks::Tasks, tid| tasks.get(tid).map(|task| task.id);
        let among_threads = self.tasks.len() > 1;
        let observer = match (serial(&self.tasks, parent), serial(&tasks, tid)) {
            (Some(parent), Some(child)) => self.observer.fork(parent, child, among_threads),
            _ => common.new_observer(Preexisting::Unknown),
        };
        let mut copy = Self::new(tid, observer, space, common);
        copy.tasks = tasks;
        copy.leaks = self.leaks.fork();
        copy.identity.parent = Some(self.pid);
        copy.identity.selected = self.identity.selected;
        copy.teardown.exit_kill = self.teardown.exit_kill;
        copy.identity.program.clone_from(&self.identity.program);
        copy.identity.owner = self.identity.owner;
        copy.identity.command.clone_from(&self.identity.command);
        copy.identity.thread_names.clone_from(&self.identity.thread_names);
        copy.signals.trap_mask = self.signals.trap_mask.of_forked(parent, tid);
        copy.inherit_sigtrap_fallback(self, child)?;
        self.children.followed += 1;
        Ok(copy)
    }

    /// Gives a forked child, which is stopped and has one thread, its original code back. The order is the one in which it lives
    /// on if we are killed meanwhile: without breakpoints it needs no handler, without the handler and its remote call no pads.
    fn clean_copy_to_detach(&mut self, child: &Stopped) {
        let tid = child.tid();
        match TargetMemory::open(tid, tid).and_then(|memory| self.clean_copy(child, memory)) {
            Err(error) if !error.is_out_of_reach() => {
                self.warn_once(format!("the code of child {tid} could not be restored: {error}"));
            }
            _ => {}
        }
        self.restore_affinity(tid);
    }

    fn clean_copy(&self, child: &Stopped, mut memory: TargetMemory) -> Result<()> {
        memory.stands_still(Some(child.tid()));
        let patches = self.space.code.patches();
        // The child's life hangs on it.
        insist(|| code::restore_copy(&mut memory, patches))?;
        match self.free_child_of_sigtrap_fallback(child, &mut memory) {
            Err(error) if error.is_out_of_reach() => return Err(error),
            // Its code is still there, then.
            Err(error) => {
                tracing::warn!("{error}");
                return Ok(());
            }
            Ok(()) => {}
        }
        insist(|| code::clear_own(&mut memory, patches, None))
    }

    /// Whether a task of another process shares the traced process's memory. The event that announced it does not tell:
    /// clone(CLONE_VM|SIGCHLD) is reported as a fork.
    fn shares_memory(&mut self, tid: i32) -> Result<bool> {
        let live = self.tasks.iter().find(|task| task.role == Role::Thread).map_or(self.pid, |task| task.id.tid);
        Ok(match procfs::same_memory(tid, live) {
            Some(same) => same,
            // kcmp(2) is refused in some containers: then a byte tells that is written here and read there.
            None => self.space.is_seen_through(&TargetMemory::open(tid, tid)?).unwrap_or(true),
        })
    }

    /// Other threads vanish in an exec, some without any event. VM sharers live on, in the old address space. Returns who
    /// has vanished.
    pub(super) fn forget_threads(&mut self) -> Vec<i32> {
        let threads: Vec<_> = self.tasks.iter().filter(|task| task.role == Role::Thread).map(|task| task.id).collect();
        for task in &threads {
            self.tasks.remove(task.tid);
            self.end_calls_of(*task);
        }
        threads.into_iter().map(|task| task.tid).collect()
    }

    /// A new image: another address space, with nothing of ours in it, unless the exec was under way when we attached.
    fn on_exec(&mut self, tid: i32, common: &Common) -> Result<Action> {
        self.settle();
        let is_shared = !self.tasks.is_empty();
        // Nobody lives in the old memory: if it is there, it is the new image's, which has been looked at too early.
        let is_first = self.identity.attached && self.identity.images.is_empty() && self.observer.events() == 0;
        let too_early = is_first && !is_shared && !self.space.memory.is_gone();
        // Whoever lives in the old memory does not stand still.
        self.space.memory.stands_still(too_early.then_some(tid));
        if (is_shared || too_early)
            && let Err(error) = self.space.restore()
        {
            self.warn_once(format!("the code of an earlier image could not be restored: {error}"));
        }
        if too_early {
            self.space.clear_own_code(None);
            self.warnings.clear();
        }
        let mut space = match open_new_image(self.pid, tid, common)? {
            Ok(space) => space,
            Err(why) => return Ok(self.detach_new_image(tid, &why)),
        };
        if !too_early {
            self.end_image();
        }
        if self.settings.leak_scan.is_some() {
            space.watch_exit();
        }
        std::mem::swap(&mut space, &mut self.space);
        space.code.end_guard();
        self.leave_sharers_behind();
        self.tasks.begin_image();
        self.tasks.add(tid, Role::Thread);
        self.signals.trap_mask = self.signals.trap_mask.of_next_image();
        self.signals.fallback = FallbackState::default();
        self.signals.yielded.clear();
        self.leaks = LeakWatch::default();
        self.peak_resident = None;
        self.observer.exec();
        self.hold_probes_back();
        self.begin_image(tid);
        self.ask_for_sigtrap_fallback(tid)?;
        Ok(Action::Resume(0))
    }

    /// The process has become a program that can't be traced, and runs on without us. What is told of it is the image before, as an
    /// empty profile would be no use.
    fn detach_new_image(&mut self, tid: i32, why: &str) -> Action {
        let new = procfs::program_name(self.pid, tid);
        let text = format!("{} became {new} by exec, which runs untraced, as {why}", self.identity.program);
        self.leaks.give_up(text.clone());
        self.warnings.push(format!("{text}. This is what {} did until then", self.identity.program));
        self.space.code.end_guard();
        self.teardown.detached = true;
        self.restore_affinity(tid);
        self.note_trap_action_left();
        Action::Detach
    }

    /// A child that has shared the memory is detached from, at its exec or just before it.
    pub(super) fn note_child_detached(&mut self, tid: i32) {
        if let Some(task) = self.tasks.get(tid).copied() {
            self.end_calls_of(task.id);
        }
        self.forget_trap_of_sharer(tid);
        self.children.untraced += 1;
        let name = procfs::comm(tid);
        if !name.is_empty() && !self.children.untraced_names.contains(&name) {
            self.children.untraced_names.push(name);
        }
        self.restore_affinity(tid);
    }

    /// Whether a task at the entry of execve(2) or one of its kin, `at`, is a child that shares the memory, and the file would run with other rights:
    /// those the kernel gives only to who is not traced (execve(2)). Such a child is detached from before its exec. If the exec fails
    /// nevertheless, it is on its own among our breakpoints: hence only where the file is there and may be executed.
    pub(super) fn is_about_to_change_rights(&mut self, tid: i32, raw: &RawRegs, at: Addr) -> bool {
        let may_leave = |role| match role {
            Role::VmSharer => true,
            // A process of its own: if it has no other thread that would stay behind, and is not the one asked for.
            Role::Thread => self.identity.parent.is_some() && self.tasks.len() == 1,
        };
        if !self.tasks.get(tid).is_some_and(|task| may_leave(task.role)) {
            return false;
        }
        self.space.executed(raw, at).is_some_and(|executed| files::changes_rights(tid, &executed))
    }

    /// The only thread of a followed child stands at execve(2), of a file that gives other rights, or asks for another tracer:
    /// lets it go as if it had never been traced.
    pub(super) fn detach_before_call(&mut self, tid: i32, thread: &Stopped, raw: &RawRegs, at: Addr) -> Result<Action> {
        let name = self.space.executed(raw, at).map_or_else(|| procfs::comm(tid), |executed| executed.name(tid));
        self.space.restore()?;
        self.retire_sigtrap_fallback(thread)?;
        pass_trap_to(thread, raw, at)?;
        self.space.clear_own_code(None);
        self.children.untraced += 1;
        self.children.untraced_names.push(name);
        (self.teardown.detached_early, self.teardown.detached) = (true, true);
        self.restore_affinity(tid);
        Ok(Action::Detach)
    }

    pub(super) fn end_calls_of(&mut self, task: crate::addr::TaskId) {
        self.observer.observe(Seen::End(task));
    }

    /// Keeps the totals of the image that exec has just replaced.
    fn end_image(&mut self) {
        let totals = self.observer.model().totals();
        self.identity.images.push(Image {
            pid: self.pid,
            program: std::mem::take(&mut self.identity.program),
            totals,
            gone_with_exec: Amount { objects: totals.live_blocks, bytes: totals.live_bytes },
        });
    }

    /// At the first stop of a new image, before its first instruction.
    pub(super) fn begin_image(&mut self, tid: i32) {
        self.describe_image(tid);
        self.note_trap_action(tid);
        self.select_image(tid);
        self.apply_probing();
        self.refresh_modules(tid);
    }

    /// Whether the current image is one of those that are to be traced.
    pub(super) fn select_image(&mut self, tid: i32) {
        let executable = procfs::executable(tid).unwrap_or_default();
        self.identity.selected = self.settings.selection.takes(&executable, &self.identity.program);
    }

    /// Notes name and command line of the current image.
    pub(super) fn describe_image(&mut self, tid: i32) {
        self.identity.command = procfs::command_line(self.pid);
        self.identity.program = procfs::program_name(self.pid, tid);
        self.identity.owner.note(tid);
    }

    /// Reads the maps again: probes for new modules, nothing left of vanished ones.
    pub(super) fn refresh_modules(&mut self, tid: i32) {
        match self.space.refresh(tid, &self.settings.table, &self.settings.search) {
            Ok(warnings) => {
                for warning in warnings {
                    self.warn_once(warning);
                }
            }
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => self.warn_once(error.to_string()),
        }
    }

    pub(super) fn warn_once(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
