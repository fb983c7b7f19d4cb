//! Tasks that are detached from before they do what only a task may that nobody traces: ask to be traced by their
//! parents, as the children of debuggers do (a task can have one tracer only), or execute a file with other rights.

use crate::base::addr::Addr;
use crate::event::EventKind;
use crate::session::engine::EngineReport;
use crate::session::jump::Cause;
use crate::session::process::Process;
use crate::session::stop::Action;
use crate::session::stops::Stops;
use crate::session::trap::pass_trap_to;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, procfs};

impl Process {
    /// The only thread of a followed child stands at execve(2), of a file that gives other rights, or asks for another
    /// tracer: lets it go as if it had never been traced.
    pub(in crate::session) fn detach_before_call(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        at: Addr,
    ) -> Result<Action> {
        self.settle();
        let name = self
            .tracee
            .space
            .modules
            .executed(&self.tracee.space.image, raw, at)
            .map_or_else(|| procfs::thread_name(tid), |executed| executed.name(tid));
        self.tracee.space.restore(self.tracee.whose_threads())?;
        self.sigtrap.uninstall_fallback(&mut self.tracee, thread)?;
        pass_trap_to(thread, raw, at)?;
        self.tracee.space.image.clear_own_code(None);
        self.children.untraced += 1;
        self.children.untraced_names.push(name);
        (self.teardown.detached_early, self.teardown.detached) = (true, true);
        self.affinity.restore(tid);
        Ok(Action::Detach)
    }

    /// A child that has shared the memory is detached from, at its exec or just before it.
    pub(in crate::session) fn note_child_detached(&mut self, tid: i32) {
        if let Some(task) = self.tracee.tasks.get(tid).copied() {
            self.end_calls_of(task.id);
        }
        self.sigtrap.forget_trap_of_sharer(tid);
        self.children.untraced += 1;
        let name = procfs::thread_name(tid);
        if !name.is_empty() && !self.children.untraced_names.contains(&name) {
            self.children.untraced_names.push(name);
        }
        self.affinity.restore(tid);
    }

    /// Clears the way for a child in vfork(2) that is about to be detached from.
    pub(in crate::session) fn set_aside_for(&mut self, child: i32) -> Result<()> {
        self.settle_heap();
        self.tracee.space.image.set_aside_for(child)?;
        if self.tracee.tasks.has_several_threads() {
            self.observer.tell(EventKind::Unobserved);
            self.existing.forget();
            self.tracee.space.modules.findings.note_blind_spot(
                "heaptrace let a child go for its parent to trace: it missed what other threads allocated and freed \
                 until the child had executed its program"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// A thread comes back from vfork(2): its child no longer shares the memory.
    pub(in crate::session) fn on_vfork_done(&mut self, tid: i32, thread: &Stopped, stops: &mut Stops) -> Result<()> {
        let Ok(child) = i32::try_from(thread.event_message()?) else { return Ok(()) };
        stops.end_vfork(child);
        if self.tracee.space.image.is_aside_for(child) {
            self.settle_heap();
            self.observer.observe(EngineReport::CallsUnseen);
            self.tracee.tasks.forget_counted_in_gap();
            self.tracee.space.image.memory.new_stop(tid);
            self.tracee.release_dropped_sites(&mut self.observer);
            self.refresh_modules(Some(tid));
            // A thread that has run meanwhile may stand between the instructions that a jump would overwrite.
            if self.tracee.space.image.is_last_aside(child)
                && self.jump.on().is_some()
                && self.tracee.tasks.has_several_threads()
            {
                self.jump.go_back_to_stops(&mut self.tracee, Cause::SetAside)?;
            }
            self.tracee.space.image.take_up_after(child)?;
            self.observer.tell(EventKind::Unobserved);
            self.existing.forget();
        }
        Ok(())
    }
}
