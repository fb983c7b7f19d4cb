//! What a thread's registers and the memory tell of its calls, and which places are watched for them.

use super::Tracee;
use crate::allocators::{Kind, MapFunction};
use crate::arch::Regs;
use crate::base::addr::{Addr, FunctionId, TaskId};
use crate::base::memory::ReadMemory;
use crate::event::calls::{Entry, Returned};
use crate::session::observer::Observer;
use crate::session::space::Probing;
use crate::session::stops::Stops;
use crate::session::tasks::Role;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, files};

/// PTRACE_TRACEME of <sys/ptrace.h>.
const TRACEME: u32 = 0;

impl Tracee {
    /// What is known of a call at the entry `at` without a walk of the stack.
    pub(in crate::session) fn entry_at(
        &mut self,
        observer: &Observer,
        task: TaskId,
        function: FunctionId,
        regs: &Regs,
        at: Addr,
        return_addr: Addr,
    ) -> Entry {
        let (frees, is_aligned) = self
            .settings
            .table
            .get(function)
            .map_or((false, false), |f| (matches!(f.kind, Kind::Free { .. }), f.align.is_some()));
        let mut args = regs.arguments();
        if let Some(text) = self.settings.table.get(function).and_then(|f| f.text) {
            let mut memory = self.space.image.original_memory();
            text.complete(&mut args, &mut |at, bytes| memory.read(at, bytes));
        }
        let sets_break = self.settings.table.get(function).is_some_and(|f| f.kind == Kind::Mapping(MapFunction::Brk));
        if sets_break {
            // Where it is now: nothing else tells by how much it moves. Of sbrk's call, the program's or malloc's,
            // nobody asks: it costs a look at all maps, at each growth of a heap.
            let is_sbrks = self.space.modules.is_called_by_sbrk(at, return_addr, &self.settings.table);
            let asked = !is_sbrks && !observer.concerns_next(task);
            let end = asked.then(|| self.space.program_break(task.tid)).flatten();
            args[1] = end.map_or(0, |end| end.0);
        }
        let is_wrapper = (frees || is_aligned) && self.space.modules.wrapper_at(at) == Some(at);
        Entry {
            task,
            function,
            args,
            sp: regs.sp(),
            return_addr,
            module: self.space.modules.module_at(at),
            caller_module: self.space.modules.module_at(return_addr),
            family: self.space.modules.family_of_call(&self.space.image, at, return_addr, frees),
            interval: 0,
            caller_is_allocator: self.space.modules.is_called_by_allocator(&self.space.image, return_addr),
            is_wrapper,
            wrapper: is_wrapper.then_some(at),
            loops_to_entry: self.space.probes.loops_to_entry(
                &self.space.image,
                &mut self.space.modules,
                &self.space.entries,
                at,
            ),
        }
    }

    /// The size of the block that a call has returned, where its function could not tell it at the entry.
    pub(in crate::session) fn size_at_return(
        &mut self,
        observer: &Observer,
        task: TaskId,
        site: Addr,
        regs: &Regs,
        block: Addr,
    ) -> Option<u64> {
        let function = observer.function_ending(task, site, regs.sp())?;
        let text = self.settings.table.get(function)?.text?;
        let operation = observer.operation_ending(task, site, regs.sp())?;
        let mut memory = self.space.image.original_memory();
        if let Some(at) = operation.size_argument() {
            return memory.read_u64(at);
        }
        // Where it has failed, what stands at the pointer is no block.
        let returned = Returned { result: regs.result(), out: Some(block), size: None };
        if operation.handed_out(returned).is_null() {
            return None;
        }
        text.size_at_return(block, regs.result(), &mut |at, bytes| memory.read(at, bytes))
    }

    /// Takes a return site of one shot away once no call returns there any more.
    pub(in crate::session) fn release_return_site(&mut self, observer: &Observer, site: Addr) -> Result<()> {
        let is_once =
            self.space.probes.breakpoints.get(site).is_some_and(|breakpoint| breakpoint.purposes.returns_once);
        // Last, as it looks at all threads.
        if is_once && !observer.awaits(site) {
            self.space.end_return_site(site)?;
            if self.space.probes.breakpoints.get(site).is_none() {
                self.tasks.forget_counted(site);
            }
        }
        Ok(())
    }

    /// Takes return breakpoints of one shot away whose calls will not return.
    pub(in crate::session) fn release_dropped_sites(&mut self, observer: &mut Observer) {
        for site in observer.take_dropped_returns() {
            if let Err(error) = self.release_return_site(observer, site) {
                tracing::warn!("{error}");
            }
        }
    }

    /// Gives the current address space the probes that are wanted now.
    pub(in crate::session) fn apply_probing(&mut self, observer: &Observer, is_selected: bool) {
        let probing = match (observer.is_paused(), observer.model().totals().live_blocks) {
            _ if !is_selected => Probing::None,
            (false, _) => Probing::All,
            (true, 0) => Probing::None,
            (true, _) => Probing::Ends,
        };
        match self.space.set_probing(probing, &self.settings.table) {
            Ok(()) => {}
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => self.warn_once(error.to_string()),
        }
    }

    /// A return breakpoint was hit that no call waits for any more.
    pub(in crate::session) fn end_watch_while_paused(&mut self, observer: &Observer, site: Addr) {
        if observer.is_paused()
            && !observer.has_pending_calls()
            && let Err(error) = self.space.unwatch_return(site)
            && !error.is_out_of_reach()
        {
            self.warn_once(error.to_string());
        }
    }

    /// Whether a task at the entry of ptrace(2) asks to be traced by its parent, and can be detached from before it
    /// does: a followed child with one thread, or a child in vfork(2), whose parent tells when it no longer shares the
    /// memory.
    pub(in crate::session) fn is_about_to_be_traced(
        &self,
        tid: i32,
        raw: &RawRegs,
        stops: &Stops,
        is_child: bool,
    ) -> bool {
        raw.0.rdi as u32 == TRACEME
            && self.tasks.get(tid).is_some_and(|task| match task.role {
                Role::VmSharer => stops.is_in_vfork(tid),
                Role::Thread => is_child && self.tasks.len() == 1,
            })
    }

    /// Whether a task at the entry of execve(2) or one of its kin, `at`, is a child that shares the memory, and the
    /// file would run with other rights: those the kernel gives only to who is not traced (execve(2)). Such a child is
    /// detached from before its exec. If the exec fails nevertheless, it is on its own among our breakpoints: hence
    /// only where the file is there and may be executed.
    pub(in crate::session) fn is_about_to_change_rights(
        &mut self,
        tid: i32,
        raw: &RawRegs,
        at: Addr,
        is_child: bool,
    ) -> bool {
        let may_leave = |role| match role {
            Role::VmSharer => true,
            // A process of its own: if it has no other thread that would stay behind, and is not the one asked for.
            Role::Thread => is_child && self.tasks.len() == 1,
        };
        if !self.tasks.get(tid).is_some_and(|task| may_leave(task.role)) {
            return false;
        }
        self.space
            .modules
            .executed(&self.space.image, raw, at)
            .is_some_and(|executed| files::changes_rights(tid, &executed))
    }
}
