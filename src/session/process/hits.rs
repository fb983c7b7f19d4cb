//! What it means that a thread has arrived at a breakpoint: an allocator call begins or returns, modules come and go,
//! the program tells of its memory or ends. How the thread gets past the breakpoint is the trap engine's
//! ([`crate::session::trap`]).

use super::Process;
use crate::allocators::Family;
use crate::arch::Regs;
use crate::base::addr::{Addr, FunctionId, StackId, TaskId};
use crate::base::memory::ReadMemory;
use crate::breakpoints::{Engine, Probe};
use crate::event::calls::{CallContext, Operation, Return, Returned};
use crate::event::{EventKind, Missed};
use crate::heapmodel::fill;
use crate::session::awaited::Awaited;
use crate::session::engine::{EngineReply, EngineReport, EntryContext, ReturnContext, missed_of};
use crate::session::hit::Hit;
use crate::session::jump::Jump;
use crate::session::space::{
    ANNOTATION_TAG, AddressSpace, EXIT_TAG, GUARD_TAG, Helper, OriginalMemory, RESOLVER_TAG, SIGACTION_TAG, TEST_TAG,
};
use crate::session::stops::Stops;
use crate::tracer::libunwind::Libunwind;
use crate::tracer::{Result, TracerError};
use crate::unwinder::{StackTable, Unwound};
use std::ops::ControlFlow;

const UNSEEN_RETURNS: &str = "the allocator was called from code that can't hold a breakpoint, as other processes \
    share it or the program writes to it: such calls count with their sizes, but their blocks count as freed at once";

impl Process {
    /// Does what the breakpoint is there for, and notes when the hit has been `counted`.
    pub(in crate::session) fn serve_hit(&mut self, hit: &Hit<'_>, stops: &mut Stops, counted: &mut bool) -> Result<()> {
        let &Hit { tid, thread, raw, at, breakpoint } = hit;
        self.sigtrap.repair_trap(&mut self.tracee, thread, raw, at)?;
        self.sigtrap.keep_fallback(&mut self.tracee, &mut self.teardown, thread, stops)?;
        let regs = raw.regs();
        if self.tracee.tasks.get_mut(tid).is_some_and(|task| task.counted.take(at, regs.sp())) {
            *counted = true;
            return Ok(());
        }
        let purposes = breakpoint.purposes;
        if purposes.is_return() {
            self.on_return(tid, at, &regs)?;
        }
        if let Some(Probe { function, engine: Engine::Trap | Engine::Jump }) = purposes.entry {
            self.on_entry(hit, &regs, function)?;
        }
        *counted = true;
        self.jump.note_picked_blocks(&mut self.observer);
        if purposes.loader && self.tracee.space.modules.loader_is_consistent(&self.tracee.space.image) {
            self.settle();
            self.refresh_modules(Some(tid));
        }
        if purposes.tags & SIGACTION_TAG != 0 {
            self.sigtrap.on_sigaction(&mut self.tracee, thread, raw)?;
            self.note_mode(tid);
        }
        if purposes.tags & GUARD_TAG != 0 {
            self.settle();
            self.jump.hand_over(&mut self.tracee, &mut self.observer, thread, raw)?;
            self.note_mode(tid);
        }
        if purposes.tags & ANNOTATION_TAG != 0 {
            let due = self.leaks.on_annotation(&mut self.tracee, &mut self.observer, (tid, at), &regs, stops)?;
            if let Some(due) = due {
                self.look_at_heap(due.live, Some(due));
            }
        }
        if purposes.tags & TEST_TAG != 0 {
            self.settle();
            self.tests.on_test(&mut self.tracee, &mut self.observer, hit, &regs)?;
        }
        if purposes.tags & RESOLVER_TAG != 0 {
            self.settle();
            self.resolvers.on_hit(&mut self.tracee, &mut self.observer, hit, &regs)?;
        }
        if purposes.tags & EXIT_TAG != 0 {
            let due = self.leaks.on_libc_exit(&mut self.tracee, &self.copies, thread, raw, stops)?;
            if let Some(due) = due {
                self.look_at_heap(due.live, Some(due));
            }
        }
        if self.tracee.space.probes.has_deferred() {
            self.tracee.space.probes.place_deferred(
                &mut self.tracee.space.image,
                &mut self.tracee.space.modules,
                Some(&Helper::at_trap(thread, raw)),
            )?;
            self.awaited = Awaited::Nobody;
        }
        Ok(())
    }

    fn on_entry(&mut self, hit: &Hit<'_>, regs: &Regs, function: FunctionId) -> Result<()> {
        let &Hit { tid, thread, raw, at, .. } = hit;
        let Some(task) = self.tracee.tasks.get(tid).map(|task| task.id) else { return Ok(()) };
        let text = self.tracee.settings.table.get(function).and_then(|f| f.text);
        if text.is_some_and(|text| !text.allocates(&regs.arguments())) {
            return Ok(());
        }
        let Some(return_addr) = self.tracee.space.image.memory.read_u64(Addr(regs.sp())).map(Addr) else {
            self.observer.tell(EventKind::Missed(Missed::Call));
            return Ok(());
        };
        if self.observer.events() == 0 && self.cost.measured.known_cpu_ns == 0 {
            self.cost.note_undisturbed_time(&self.jump);
        }
        let entry = self.tracee.entry_at(&self.observer, task, function, regs, at, return_addr);
        let (libunwind, max_depth) = (self.libunwind.as_deref(), self.tracee.settings.max_depth);
        let space = &mut self.tracee.space;
        let cell = self.jump.on().and_then(|jump| Some((jump, jump.cell_of(tid)?)));
        let fill = self.unwritten.blocks.as_mut();
        let table = &self.tracee.settings.table;
        let has_chunks = fill.is_some() && !table.is_declared(function) && REALLOCS.contains(&table.name(function));
        let mut stack = EntryStack {
            space,
            regs,
            hit,
            task,
            return_addr,
            libunwind,
            max_depth,
            cell,
            fill,
            has_chunks,
            failure: None,
            unwound: None,
        };
        let answer = self.observer.observe(EngineReport::Entry(entry, &mut stack));
        let EntryStack { failure, unwound, .. } = stack;
        if let Some(error) = failure {
            return Err(error);
        }
        if let Some(unwound) = unwound {
            self.jump.publish_stack(&self.tracee, unwound);
        }
        let EngineReply::WatchReturn(site) = answer else { return Ok(()) };
        match self.tracee.space.ensure_return_site(site, thread, raw) {
            Ok(true) => {
                self.cost.stop_cost.enters(self.tracee.pid, tid);
                Ok(())
            }
            Ok(false) => {
                self.tracee.warn_once(UNSEEN_RETURNS.to_owned());
                self.observer.observe(EngineReport::ReturnUnwatchable(task));
                Ok(())
            }
            Err(error @ TracerError::Unresponsive { .. }) => {
                self.observer.observe(EngineReport::EntryComesAgain(task));
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn on_return(&mut self, tid: i32, site: Addr, regs: &Regs) -> Result<()> {
        let Some(task) = self.tracee.tasks.get(tid).map(|task| task.id) else { return Ok(()) };
        let out = self.observer.out_argument(task, site, regs.sp());
        let out = out.and_then(|out| self.tracee.space.image.original_memory().read_u64(out)).map(Addr);
        let size = self.tracee.size_at_return(&self.observer, task, site, regs, out.unwrap_or(Addr(regs.result())));
        let returned = Returned { result: regs.result(), out, size };
        let ending = self.unwritten.blocks.as_ref().and_then(|_| self.observer.operation_ending(task, site, regs.sp()));
        let cell = self.jump.on().and_then(|jump| Some((jump, jump.cell_of(tid)?)));
        let mut context = EndedCall {
            stacks: self.tracee.space.modules.unwinder.stacks(),
            max_depth: self.tracee.settings.max_depth,
            cell,
        };
        let at = Return { task, site, sp: regs.sp(), returned };
        let answer = self.observer.observe(EngineReport::Return(at, &mut context));
        let matched = answer == EngineReply::CallEnded;
        if matched && let Some(operation) = ending {
            self.unwritten.note_returned(&mut self.tracee, task, operation, returned);
        }
        if matched && self.jump.on().is_some() {
            self.observer.forget_told(task);
        }
        if !matched {
            self.tracee.end_watch_while_paused(&self.observer, site);
        }
        if self.tracee.space.probes.breakpoints.get_mut(site).is_some_and(|breakpoint| breakpoint.count_return(matched))
        {
            self.tracee.space.demote_return_site(site);
        }
        self.tracee.release_return_site(&self.observer, site)
    }
}

/// The functions of glibc that resize blocks.
const REALLOCS: [&str; 2] = ["realloc", "reallocarray"];

/// The stack of a thread at the entry of an allocator function, and the rare questions of [`crate::event::calls`],
/// answered from the maps and by a walk.
struct EntryStack<'a> {
    space: &'a mut AddressSpace,
    regs: &'a Regs,
    hit: &'a Hit<'a>,
    task: TaskId,
    return_addr: Addr,
    libunwind: Option<&'a Libunwind>,
    max_depth: u32,
    /// The thread's cell, if it has one.
    cell: Option<(&'a Jump, u16)>,
    /// The blocks whose ends are known, if that is wanted.
    fill: Option<&'a mut fill::Blocks>,
    /// Whether the function has the name of one of glibc's that resize blocks.
    has_chunks: bool,
    /// Why the stack could not be walked.
    failure: Option<TracerError>,
    /// What was found, if it was asked for.
    unwound: Option<Unwound>,
}

/// What a thread at the return of an allocator function is asked for.
struct EndedCall<'a> {
    stacks: &'a StackTable,
    max_depth: u32,
    /// The thread's cell, if it has one.
    cell: Option<(&'a Jump, u16)>,
}

impl ReturnContext for EndedCall<'_> {
    fn picks(&mut self, size: u64) -> Option<u64> {
        self.cell.and_then(|(jump, cell)| jump.picks(cell, size))
    }

    fn missed(&self, stack: StackId) -> Option<Missed> {
        missed_of(self.stacks, stack, self.max_depth)
    }
}

impl CallContext for EntryStack<'_> {
    fn same_stack(&mut self, a: u64, b: u64) -> bool {
        self.space.same_mapping(Addr(a), Addr(b), self.hit.tid)
    }

    fn signal_frame_between(&mut self, outer_sp: u64) -> bool {
        let space = &mut *self.space;
        let mut found = false;
        let mut memory = OriginalMemory { memory: &mut space.image.memory, patches: space.image.code.patches() };
        space.modules.unwinder.walk(self.regs, &mut memory, true, &mut |frame| {
            if frame.cfa.is_some_and(|cfa| cfa.0 > outer_sp) && !frame.is_signal_frame {
                return ControlFlow::Break(());
            }
            found |= frame.is_signal_frame;
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }
}

impl EntryContext for EntryStack<'_> {
    fn stack(&mut self) -> Option<Unwound> {
        let Some(libunwind) = self.libunwind else {
            self.unwound = Some(self.space.unwind_call(&self.hit.raw.regs(), self.max_depth));
            return self.unwound;
        };
        match libunwind.callers_of(self.hit.thread, self.hit.raw, self.hit.at.0, self.max_depth) {
            Ok(callers) => Some(self.space.modules.unwinder.intern(&callers.frames, callers.truncated)),
            Err(error) => {
                self.failure = Some(error);
                None
            }
        }
    }

    fn stacks(&self) -> Option<&StackTable> {
        Some(self.space.modules.unwinder.stacks())
    }

    fn picks(&mut self, size: u64) -> Option<u64> {
        self.cell.and_then(|(jump, cell)| jump.picks(cell, size))
    }

    fn looks_at_blocks(&self) -> bool {
        self.fill.is_some()
    }

    fn unwritten(&mut self, operation: Operation) -> Option<(Addr, u64)> {
        let memory = &mut self.space.image.memory;
        let (block, bytes) = match operation {
            Operation::Free { block } => (block, self.fill.as_mut()?.given_back(block, memory)),
            Operation::Reallocate { old, .. } => {
                (old, self.fill.as_mut()?.resizes(self.task.serial, old, self.has_chunks, memory))
            }
            _ => return None,
        };
        Some((block, bytes?))
    }

    fn is_within_allocator(&mut self, stack: StackId) -> bool {
        self.space.modules.is_within_allocator(&self.space.image, stack, self.hit.at)
    }

    fn wrapper(&mut self, stack: StackId) -> Option<(Addr, Option<Family>)> {
        let wrapper = self.space.modules.wrapper_at(self.return_addr.sub(1))?;
        Some((wrapper, self.space.modules.family_through_wrapper(&self.space.image, stack).0))
    }
}
