//! New tasks, new images: threads, children that borrow the memory, children that got a copy of it, and exec.

use super::{Action, Session, new_model, space};
use crate::addr::Addr;
use crate::calls::Calls;
use crate::heapmodel::Preexisting;
use crate::profile::Amount;
use crate::session::leakscan::LeakWatch;
use crate::session::recording::EndedImage;
use crate::session::retry::Retry;
use crate::session::space::AddressSpace;
use crate::session::tasks::Role;
use crate::session::trapmask::TrapMask;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{RawRegs, Stopped};
use crate::tracer::{Result, files, procfs};

impl Session {
    /// A task has just been given a child or thread, which will stop by itself.
    pub(super) fn announce(&mut self, parent: &Stopped) -> Result<()> {
        let Ok(new) = i32::try_from(parent.event_message()?) else { return Ok(()) };
        // The parent's stop may be reported when the new task has come and gone.
        let was_early = self.early.remove(&new);
        if !was_early && self.tasks.get(new).is_none() && procfs::state(new, new).is_some() {
            self.expected.insert(new);
        }
        Ok(())
    }

    fn note_arrival(&mut self, tid: i32) {
        if !self.expected.remove(&tid) {
            self.early.insert(tid);
        }
    }

    /// The first stop of a task that is not known yet. Some: that is all there is to do with it.
    pub(super) fn on_new_task(&mut self, stopped: &Stopped) -> Result<Option<Action>> {
        let tid = stopped.tid();
        let is_thread = procfs::thread_group(tid)? == Some(self.pid);
        let borrows = !is_thread && self.borrows_memory(tid)?;
        self.note_arrival(tid);
        if is_thread {
            self.tasks.add(tid, Role::Thread);
            self.unpin();
            self.restore_affinity(tid);
            return Ok(None);
        }
        if borrows {
            self.free_child_of_retry_handler(stopped, false);
            self.tasks.add(tid, Role::Borrower);
            return Ok(None);
        }
        self.let_copy_go(stopped);
        Ok(Some(Action::Detach))
    }

    /// As [`Self::on_new_task`], during a detach: a child with a copy of our breakpoints must not keep them.
    pub(super) fn detach_new_child(&mut self, stopped: &Stopped) -> Result<()> {
        let tid = stopped.tid();
        let is_new = self.tasks.get(tid).is_none();
        let has_copy = is_new && procfs::thread_group(tid)? != Some(self.pid) && !self.borrows_memory(tid)?;
        if is_new {
            self.note_arrival(tid);
        }
        if has_copy {
            self.let_copy_go(stopped);
        }
        Ok(())
    }

    /// Gives a forked child, which is stopped and has one thread, its original code back.
    fn let_copy_go(&mut self, child: &Stopped) {
        let tid = child.tid();
        self.free_child_of_retry_handler(child, true);
        self.children.untraced += 1;
        let clean = || {
            let mut memory = TargetMemory::open(tid, tid)?;
            memory.stands_still(Some(tid));
            self.space.clean_copy(&mut memory)
        };
        // The child's life hangs on it.
        match clean().or_else(|_| clean()) {
            Ok(()) => {}
            Err(error) => self.warn_once(format!("the code of child {tid} could not be restored: {error}")),
        }
        self.restore_affinity(tid);
    }

    /// Whether a task of another process shares the traced process's memory. The event that announced it does not tell:
    /// clone(CLONE_VM|SIGCHLD) is reported as a fork.
    fn borrows_memory(&mut self, tid: i32) -> Result<bool> {
        let live = self.tasks.iter().find(|task| task.role == Role::Thread).map_or(self.pid, |task| task.id.tid);
        Ok(match procfs::same_memory(tid, live) {
            Some(same) => same,
            // kcmp(2) is refused in some containers: then a byte tells that is written here and read there.
            None => self.space.is_seen_through(&TargetMemory::open(tid, tid)?).unwrap_or(true),
        })
    }

    /// exec succeeded: the task is now the only one of its process, in a new address space without anything of ours.
    pub(super) fn on_exec(&mut self, tid: i32, stopped: &Stopped) -> Result<Action> {
        if tid != self.pid {
            // A child that had borrowed the memory. Its siblings' records stay.
            self.note_child_leaves(tid);
            return Ok(Action::Detach);
        }
        let former = i32::try_from(stopped.event_message()?).unwrap_or(tid);
        tracing::debug!("exec by task {former} of process {tid}");
        for old in self.tasks.tids() {
            // Siblings vanish, some without any event. Borrowers live on, in the old address space.
            if self.tasks.get(old).is_some_and(|task| task.role == Role::Thread)
                && let Some(task) = self.tasks.remove(old)
            {
                self.end_calls_of(task.id);
            }
        }
        self.end_image();
        let mut space = match AddressSpace::open(self.pid, tid, self.settings.guardian.as_ref()) {
            Ok(space) => space,
            Err(error) if error.is_death() => return Err(error),
            Err(error) => {
                self.describe_image(tid);
                self.warnings.push(format!("{} runs untraced, as its memory can't be read: {error}", self.program));
                self.detached = true;
                self.restore_affinity(tid);
                return Ok(Action::Detach);
            }
        };
        if self.settings.leak_scan.is_some() {
            space.watch_exit();
        }
        std::mem::swap(&mut space, &mut self.space);
        // Borrowers of the old memory would run into breakpoints that nobody knows any more.
        if !self.tasks.is_empty()
            && let Err(error) = space.restore()
        {
            self.warn_once(format!("the code of an earlier image could not be restored: {error}"));
        }
        space.end_guard();
        self.tasks.begin_image();
        self.tasks.add(tid, Role::Thread);
        self.calls = Calls::default();
        self.trap_mask = TrapMask::default();
        self.retry = Retry::default();
        self.yielded.clear();
        self.leaks = LeakWatch::default();
        self.model = new_model(Preexisting::None, &self.settings);
        self.forget_paused_blocks();
        Ok(self.begin_image(tid))
    }

    /// A child that has borrowed the memory is let go, at its exec or just before it.
    pub(super) fn note_child_leaves(&mut self, tid: i32) {
        if let Some(task) = self.tasks.get(tid).copied() {
            self.end_calls_of(task.id);
        }
        self.children.untraced += 1;
        let name = procfs::comm(tid);
        if !name.is_empty() && !self.children.untraced_names.contains(&name) {
            self.children.untraced_names.push(name);
        }
        self.restore_affinity(tid);
    }

    /// Whether a task at the entry of execve(2) is a child that borrows the memory, and the file would run with other rights:
    /// those the kernel gives only to who is not traced (execve(2)). Such a child is let go before its exec. If the exec fails
    /// nevertheless, it is on its own among our breakpoints: hence only where the file is there and may be executed.
    pub(super) fn is_about_to_change_rights(&mut self, tid: i32, raw: &RawRegs) -> bool {
        if self.tasks.get(tid).is_none_or(|task| task.role != Role::Borrower) {
            return false;
        }
        let path = self.space.memory.read_c_string(Addr(raw.0.rdi));
        path.is_some_and(|path| files::changes_rights(tid, &path))
    }

    fn end_calls_of(&mut self, task: crate::addr::TaskId) {
        let model = &mut self.model;
        self.calls.task_ended(task, &mut |event| model.apply(&event));
    }

    /// Keeps the totals of the image that exec has just replaced.
    fn end_image(&mut self) {
        let totals = self.model.totals();
        self.anomalies.dropped_frames += self.calls.dropped_frames();
        self.images.push(EndedImage {
            program: std::mem::take(&mut self.program),
            totals,
            gone_with_exec: Amount { objects: totals.live_blocks, bytes: totals.live_bytes },
        });
    }

    /// At the first stop of a new image, before its first instruction.
    pub(super) fn begin_image(&mut self, tid: i32) -> Action {
        self.describe_image(tid);
        if !space::is_64_bit(tid) {
            self.warnings.push(format!(
                "{} is a 32-bit program: it runs untraced, as heaptrace traces 64-bit x86-64 programs only",
                self.program
            ));
            self.detached = true;
            self.restore_affinity(tid);
            return Action::Detach;
        }
        self.note_trap_action(tid);
        self.apply_probing();
        self.refresh_modules(tid);
        Action::Resume(0)
    }

    /// Notes name and command line of the current image.
    pub(super) fn describe_image(&mut self, tid: i32) {
        self.command = procfs::command_line(self.pid);
        self.program = procfs::program_name(self.pid, tid);
    }

    /// Reads the maps again: probes for new modules, nothing left of vanished ones.
    pub(super) fn refresh_modules(&mut self, tid: i32) {
        match self.space.refresh(tid, &self.settings.table, &self.settings.search) {
            Ok(warnings) => {
                for warning in warnings {
                    self.warn_once(warning);
                }
            }
            Err(error) if error.is_death() => {}
            Err(error) => self.warn_once(error.to_string()),
        }
    }

    pub(super) fn warn_once(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
