//! New images: what becomes of a process, and of a child that shares its memory, when it executes a program.

use super::common::Common;
use super::endings::Ending;
use super::fill::UnwrittenCapacity;
use super::process::Process;
use super::slots::Slot;
use super::stop::{Action, Stop};
use super::{Session, space};
use crate::event::Preexisting;
use crate::session::leakscan::LeakScanner;
use crate::session::pertest::TestTracker;
use crate::session::space::AddressSpace;
use crate::session::tasks::Role;
use crate::tracer::code::write::Threads;
use crate::tracer::{Result, procfs};

impl Session {
    /// exec succeeded: the task is now the only one of its process, in a new address space without anything of ours.
    pub(super) fn on_exec(&mut self, stop: &mut Stop) -> Result<Action> {
        let tid = stop.tid();
        let former = i32::try_from(stop.stopped.event_message()?).unwrap_or(tid);
        tracing::debug!("exec by task {former} of process {tid}");
        let Self { processes, stops, .. } = self;
        let Some(slot) = stop.slot else { return Ok(Action::Gone) };
        let Some(process) = processes.get_mut(slot) else { return Ok(Action::Gone) };
        if tid != process.tracee.pid {
            // A child that had shared the memory. Its siblings' records stay.
            process.sigtrap.close_trap_of_sharer(&stop.stopped);
            if self.common.settings.follow {
                return self.follow_sharer(slot, stop, former);
            }
            process.note_child_detached(tid);
            return Ok(Action::Detach);
        }
        process.existing.await_told(&mut process.tracee, &mut process.observer);
        process.copies.end_all();
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
                process.tracee.warn_once(format!("{program}, process {tid}, runs untraced, as {why}"));
                process.note_child_detached(tid);
                return Ok(Action::Detach);
            }
        };
        process.affinity.unpin(&process.tracee.tasks);
        process.affinity.restore(tid);
        process.children.followed += 1;
        process.tracee.space.image.memory.stands_still(None);
        for old in [tid, former] {
            if let Some(task) = process.tracee.tasks.remove(old) {
                process.end_calls_of(task.id);
            }
            process.sigtrap.forget_trap_of_sharer(old);
            self.stops.forget(old);
        }
        let parent = process.tracee.pid;
        let mut child = Process::new(tid, self.common.new_observer(tid, Preexisting::None), space, &self.common);
        child.identity.parent = Some(parent);
        child.tracee.hold_probes_back();
        child.begin_image(tid);
        let slot = self.processes.insert(tid, child);
        self.add_task(slot, tid, Role::Thread);
        stop.slot = Some(slot);
        if let Some(child) = self.processes.get_mut(slot) {
            child.sigtrap.ask_for_fallback(&mut child.tracee, tid)?;
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
    /// A new image: another address space, with nothing of ours in it, unless the exec was under way when we attached.
    fn on_exec(&mut self, tid: i32, common: &Common) -> Result<Action> {
        self.settle();
        let is_shared = !self.tracee.tasks.is_empty();
        // Nobody lives in the old memory: if it is there, it is the new image's, which has been looked at too early.
        let is_first = self.identity.attached && self.identity.images.is_empty() && self.observer.events() == 0;
        let too_early = is_first && !is_shared && !self.tracee.space.image.memory.is_gone();
        // Whoever lives in the old memory does not stand still.
        self.tracee.space.image.memory.stands_still(too_early.then_some(tid));
        if (is_shared || too_early)
            && let Err(error) = self.tracee.space.restore(Threads::Run)
        {
            self.tracee.warn_once(format!("the code of an earlier image could not be restored: {error}"));
        }
        if too_early {
            self.tracee.space.image.clear_own_code(None);
            self.tracee.warnings.clear();
        }
        let mut space = match open_new_image(self.tracee.pid, tid, common)? {
            Ok(space) => space,
            Err(why) => return Ok(self.detach_new_image(tid, &why)),
        };
        if !too_early {
            if let Some(endings) = self.tracee.settings.endings.clone().filter(|_| self.observer.events() > 0) {
                endings.tell(Ending::Image(Box::new(self.interim(false))), &common.settings.requests);
            }
            self.identity.end_image(self.tracee.pid, self.observer.model().totals());
        }
        if self.tracee.settings.leak_scan.is_some() {
            space.probes.watch_exit();
        }
        if self.tracee.settings.per_test {
            space.modules.files.watch_tests();
        }
        space.python.show_python(self.tracee.settings.python);
        std::mem::swap(&mut space, &mut self.tracee.space);
        space.image.code.end_guard();
        self.jump.begin_image(&mut self.tracee, &self.identity.program, self.observer.events());
        self.sigtrap.leave_sharers_behind(&self.tracee);
        self.tracee.tasks.begin_image();
        self.tracee.tasks.add(tid, Role::Thread);
        self.sigtrap.begin_image();
        self.leaks = LeakScanner::default();
        self.existing.forget();
        self.tests = TestTracker::default();
        self.unwritten = UnwrittenCapacity::new(&self.tracee.settings);
        self.cost.peak_resident = None;
        self.observer.exec();
        self.tracee.hold_probes_back();
        self.begin_image(tid);
        self.sigtrap.ask_for_fallback(&mut self.tracee, tid)?;
        Ok(Action::Resume(0))
    }

    /// The process has become a program that can't be traced, and runs on without us. What is told of it is the image
    /// before, as an empty profile would be no use.
    fn detach_new_image(&mut self, tid: i32, why: &str) -> Action {
        let new = procfs::program_name(self.tracee.pid, tid);
        let text = format!("{} executed {new}, which runs untraced, as {why}", self.identity.program);
        self.leaks.give_up(text.clone());
        self.tracee.warnings.push(format!("{text}. This is what {} did until then", self.identity.program));
        self.tracee.space.image.code.end_guard();
        self.teardown.detached = true;
        self.affinity.restore(tid);
        self.sigtrap.note_trap_action_left(&mut self.tracee);
        Action::Detach
    }

    /// Other threads vanish in an exec, some without any event. VM sharers live on, in the old address space. Returns
    /// who has vanished.
    pub(super) fn forget_threads(&mut self) -> Vec<i32> {
        let threads: Vec<_> =
            self.tracee.tasks.iter().filter(|task| task.role == Role::Thread).map(|task| task.id).collect();
        for task in &threads {
            self.tracee.tasks.remove(task.tid);
            self.end_calls_of(*task);
        }
        threads.into_iter().map(|task| task.tid).collect()
    }

    /// At the first stop of a new image, before its first instruction.
    pub(super) fn begin_image(&mut self, tid: i32) {
        self.identity.describe(self.tracee.pid, tid);
        self.sigtrap.note_trap_action(&self.tracee, tid);
        self.identity.select(&self.tracee.settings, tid);
        self.observer.define(&self.identity.definition());
        self.tracee.apply_probing(&self.observer, self.identity.selected);
        self.refresh_modules(Some(tid));
    }
}
