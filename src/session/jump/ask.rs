//! A thread in the routine asks: it is set back to the function's first instruction, and its call is seen by the trap
//! engine from there on.

use super::fallback::Cause;
use super::{Began, JumpEngine, JumpState, LastFree, Owner};
use crate::allocators::Kind as FunctionKind;
use crate::arch::Regs;
use crate::base::addr::{Addr, FunctionId, StackId, TaskId};
use crate::base::memory::ReadMemory;
use crate::breakpoints::{Breakpoint, Engine, Probe};
use crate::event::Call;
use crate::event::calls::{Entry, Recorded, Returned};
use crate::jump::frames::{self, Frame};
use crate::jump::layout::{COUNTED, FLAG_BEGAN, Kind, Nested, StubKind};
use crate::jump::merge::RecordedStack;
use crate::jump::stub::Stub;
use crate::jump::undo::Undone;
use crate::session::engine::{EngineReport, Part};
use crate::session::observer::Observer;
use crate::session::tracee::Tracee;
use crate::tracer::Result;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

const LOST: &str = "a thread was in a state in which heaptrace's own code never leaves it: has the program written to \
    heaptrace's memory?";

/// What a thread wants that has hit one of the int3s of the routine.
pub(in crate::session) enum Asked {
    /// Nothing more: it goes on as soon as what its trap has changed is put back.
    Answered,
    /// Nobody knows: it goes on.
    Lost,
    /// That its call is seen, of which nothing was recorded: the stub, and the registers at the function's entry.
    Call(Stub, Regs),
}

/// A call that is seen as if its thread had hit the breakpoint at the function's entry.
pub(in crate::session) struct AskedCall {
    stub: Stub,
    entered: Regs,
    /// The call that it is within.
    outer: Option<Frame>,
    /// As the trap of that breakpoint would have left it.
    pub(in crate::session) raw: RawRegs,
    pub(in crate::session) breakpoint: Breakpoint,
}

impl AskedCall {
    /// The function's entry.
    pub(in crate::session) const fn at(&self) -> Addr {
        self.stub.entry
    }
}

impl JumpEngine {
    /// A thread has hit one of the int3s of the routine; `raw` is as the trap has left it.
    pub(in crate::session) fn on_ask(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        tid: i32,
        raw: &RawRegs,
    ) -> Asked {
        let at = Addr(raw.0.rip.wrapping_sub(1));
        let regs = raw.before_trap().regs();
        let Some(jump) = self.on() else { return Asked::Lost };
        let cell = jump.cell_of(tid);
        let offset = at.0.wrapping_sub(jump.region.code.0);
        let (is_ask, is_foreign) = (offset == jump.code.ask, offset == jump.code.foreign);
        match cell {
            // Its ring was full: it looks again. The number of its record is in rax.
            Some(cell) if !is_ask && !is_foreign => self.make_room(tracee, observer, cell, raw.0.rax),
            _ => self.settle(tracee, observer),
        }
        // An operator that was seen at a stop has told of this call: that is no matter of the thread's stack.
        let is_told_of = tracee.tasks.get(tid).is_some_and(|task| observer.was_told(task.id));
        if is_ask && cell.is_some() && !is_told_of {
            self.account.fallbacks.note_ask();
        }
        if is_foreign {
            self.take_foreign_end(tracee, observer, tid, &regs);
        }
        if !is_ask {
            return Asked::Answered;
        }
        self.call_not_begun(tracee, tid, &regs).map_or_else(
            || {
                tracee.warn_once(LOST.to_owned());
                Asked::Lost
            },
            |(stub, entered)| Asked::Call(stub, entered),
        )
    }

    /// The call that a thread in the routine is about to make, if nothing of it was recorded, and its registers at the
    /// function's entry.
    pub(in crate::session) fn call_not_begun(
        &self,
        tracee: &mut Tracee,
        tid: i32,
        regs: &Regs,
    ) -> Option<(Stub, Regs)> {
        let jump = self.on()?;
        match jump.place(jump.cell_of(tid)).undo(regs, jump.shared(), &mut tracee.space.image.memory) {
            Some(Undone::NotBegun(stub, entered)) => Some((stub, entered)),
            _ => None,
        }
    }

    /// A thread has stopped in the routine, before anything of its call was recorded: the call is to be seen as if it
    /// had hit the breakpoint at the function's entry. None if there is none any more: the thread goes on.
    pub(in crate::session) fn prepare_call(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        thread: &Stopped,
        raw: &RawRegs,
        (stub, entered): (Stub, Regs),
    ) -> Result<Option<AskedCall>> {
        let tid = thread.tid();
        let mut at_entry = *raw;
        at_entry.set_regs(&entered);
        at_entry.0.rip = stub.entry.0.wrapping_add(1);
        let outer = self.hand_over(tracee, observer, thread, &at_entry)?;
        self.prepare_cell(tracee, tid, raw.0.fs_base, &entered);
        if stub.way == StubKind::Free && !tracee.settings.free_stacks {
            self.publish_caller(tracee, &entered);
        }
        let Some(breakpoint) = tracee.space.probes.breakpoints.get(stub.entry).copied() else {
            thread.pass_trap(&at_entry, &entered)?;
            return Ok(None);
        };
        self.pass_on_told(observer, tid, &stub, &entered);
        if stub.way == StubKind::Free
            && !stub.is_told()
            && self.was_recorded_before_passed_on(tracee, tid, &stub, &entered)
            && let Some(task) = tracee.tasks.get_mut(tid)
        {
            task.counted.push(stub.entry, entered.sp());
        }
        self.note_counted_since(tracee, observer, tid);
        Ok(Some(AskedCall { stub, entered, outer, raw: at_entry, breakpoint }))
    }

    /// Tells the routine what a call within another one is: with `is_own`, heaptrace records it as a call of its own.
    pub(in crate::session) fn judge_call(&mut self, tracee: &mut Tracee, call: &AskedCall, is_own: bool) {
        if let Some(outer) = call.outer
            && call.stub.way != StubKind::Guard
            && let JumpState::On(jump) = &mut self.state
        {
            let verdict = if is_own { Nested::Own } else { Nested::Part };
            let caller = tracee.space.image.memory.read_u64(Addr(call.entered.sp())).map(Addr).unwrap_or_default();
            jump.judge_nested(outer.function(), call.stub.function, caller, verdict);
        }
    }

    /// The call of a thread that asks may be what an operator has passed on, which the routine has seen.
    fn pass_on_told(&mut self, observer: &mut Observer, tid: i32, stub: &Stub, entered: &Regs) {
        let [block, ..] = entered.arguments();
        let JumpState::On(jump) = &mut self.state else { return };
        let Some(cell) = jump.cell_of(tid) else { return };
        let told = jump.take_told(cell);
        let Some(task) = jump.owner_mut(cell).map(|owner| owner.task) else { return };
        if let Some(told) = told.filter(|told| stub.way == StubKind::Free && told.block.0 == block) {
            observer.tell_of_block(task, told, entered.sp());
        }
    }

    /// A function at `at` that the jump engine leaves to the trap engine is called. If it gives a block back, and
    /// passes that on to one that is recorded, that is the same free. Wrappers of malloc and free are not told of
    /// themselves: what they call is.
    pub(in crate::session) fn note_trapped_call(
        &mut self,
        tracee: &mut Tracee,
        tid: i32,
        at: Addr,
        breakpoint: &Breakpoint,
        entered: &Regs,
    ) {
        let Some(Probe { function, engine: Engine::Trap, .. }) = breakpoint.purposes.entry else { return };
        if tracee.space.modules.wrapper_at(at).is_some() || tracee.settings.table.is_mapping(function) {
            return;
        }
        let Some(known) = tracee.settings.table.get(function) else { return };
        let cause = self.on().and_then(|jump| jump.at_stops.get(&at)).copied().unwrap_or(Cause::OtherModule);
        self.account.fallbacks.note_function(cause, &known.name);
        let kind = known.kind;
        let caller = tracee.space.image.memory.read_u64(Addr(entered.sp()));
        let Some((FunctionKind::Free { ptr, .. }, caller)) = Some(kind).zip(caller) else { return };
        let block = entered.arguments().get(usize::from(ptr.0)).copied().unwrap_or(0);
        let JumpState::On(jump) = &mut self.state else { return };
        if let Some(owner) = jump.cell_of(tid).and_then(|cell| jump.owner_mut(cell)) {
            owner.note_free(LastFree { function: function.0, block, caller }, false);
        }
    }

    /// Whether a free that asks was recorded already, by a function that has passed it on. From here on it is the
    /// latest of its thread.
    fn was_recorded_before_passed_on(&mut self, tracee: &mut Tracee, tid: i32, stub: &Stub, entered: &Regs) -> bool {
        let Some(caller) = tracee.space.image.memory.read_u64(Addr(entered.sp())) else { return false };
        let by_allocator = tracee.space.modules.is_called_by_allocator(&tracee.space.image, Addr(caller));
        let [block, ..] = entered.arguments();
        let JumpState::On(jump) = &mut self.state else { return false };
        let Some(owner) = jump.cell_of(tid).and_then(|cell| jump.owner_mut(cell)) else { return false };
        owner.note_free(LastFree { function: stub.function, block, caller }, by_allocator)
    }

    /// Hands the calls in progress of a stopped thread over to the observer: their return addresses are put back, and
    /// breakpoints placed there. Returns the innermost.
    pub(in crate::session) fn hand_over(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        thread: &Stopped,
        raw: &RawRegs,
    ) -> Result<Option<Frame>> {
        let tid = thread.tid();
        let Some(jump) = self.on() else { return Ok(None) };
        let Some(cell) = jump.cell_of(tid) else { return Ok(None) };
        let all = frames::of_cell(jump.shared(), cell);
        for frame in &all {
            jump.put_back(tracee, frame)?;
        }
        for frame in &all {
            let Some(task) = self.adopt(tracee, observer, tid, frame) else { continue };
            if !tracee.space.ensure_return_site(frame.caller, thread, raw)? {
                observer.observe(EngineReport::ReturnUnwatchable(task));
            }
        }
        if let Some(jump) = self.on() {
            frames::set_depth(jump.shared(), cell, 0);
            all.iter().for_each(|frame| jump.clear_slot(frame));
        }
        Ok(all.last().copied())
    }

    /// Makes a call in progress the observer's.
    pub(super) fn adopt(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        tid: i32,
        frame: &Frame,
    ) -> Option<TaskId> {
        let task = tracee.tasks.get(tid)?.id;
        let was_counted = frame.picked() == COUNTED;
        let Self { state: JumpState::On(jump), account } = self else { return None };
        let began = jump.owner_mut(frame.cell).and_then(|owner| owner.take_began(frame));
        let stack = match began {
            Some(began) => began.stack,
            None if was_counted => StackId::EMPTY,
            None => jump.stack_of(tracee, account, frame.cell, frame.stack(), frame.caller),
        };
        let is_walked = !was_counted && !matches!(frame.stack(), RecordedStack::Caller(_));
        let facts = jump.facts_of(tracee, frame.function(), stack, frame.caller, is_walked);
        let entry_addr = jump.stubs.iter().find(|stub| stub.function == frame.function()).map(|stub| stub.entry);
        let interval = jump.interval_of(frame.picked());
        let function = FunctionId(frame.function());
        let entry = Entry {
            task,
            function,
            args: [frame.args[0], frame.args[1], frame.args[2], 0, 0, 0],
            sp: frame.slot.0,
            return_addr: frame.caller,
            module: tracee.space.modules.module_at(entry_addr?),
            caller_module: tracee.space.modules.module_at(frame.caller),
            caller_is_allocator: facts.caller_is_allocator,
            is_wrapper: false,
            wrapper: None,
            loops_to_entry: false,
            family: facts.family,
            interval,
        };
        observer.define_stacks(tracee.space.modules.unwinder.stacks());
        let by = Call { function, task, stack, family: facts.family, align: None, interval };
        let missed = facts.missed.filter(|_| began.is_none());
        let recorded = began.map(|began| began.recorded).or(was_counted.then_some(Recorded::Failure));
        observer.adopt(&entry, by, recorded, missed, frame.picked() != 0);
        Some(task)
    }

    /// A function has returned to another thread than the one that had called it, as fibers do: its end is told here.
    fn take_foreign_end(&mut self, tracee: &mut Tracee, observer: &mut Observer, tid: i32, regs: &Regs) {
        const SLOT: u64 = 112;
        const RESULT: u64 = 104;
        let slot = Addr(regs.sp().wrapping_add(SLOT));
        let result = tracee.space.image.memory.read_u64(Addr(regs.sp().wrapping_add(RESULT))).unwrap_or(0);
        let Some(jump) = self.on() else { return };
        if let Some(frame) = frames::at_slot(jump.shared(), jump.cell_of(tid), slot) {
            self.tell_end(tracee, observer, tid, &frame, result);
        }
    }

    /// Tells the end of a call that the routine has not recorded.
    pub(super) fn tell_end(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        tid: i32,
        frame: &Frame,
        result: u64,
    ) {
        if frame.picked() == COUNTED {
            return;
        }
        let Some(task) = tracee.tasks.get(tid).map(|task| task.id) else { return };
        let out = tracee.space.image.memory.read_u64(Addr(frame.args[0])).map(Addr);
        let Self { state: JumpState::On(jump), account } = self else { return };
        let began = jump.owner_mut(frame.cell).and_then(|owner| owner.take_began(frame));
        let stack = match began {
            Some(began) => began.stack,
            None => jump.stack_of(tracee, account, frame.cell, frame.stack(), frame.caller),
        };
        let facts = jump.facts_of(tracee, frame.function(), stack, frame.caller, true);
        let interval = jump.interval_of(frame.picked());
        observer.define_stacks(tracee.space.modules.unwinder.stacks());
        let part = Part {
            task,
            function: FunctionId(frame.function()),
            kind: Kind::Ended,
            args: [frame.args[0], frame.args[1], frame.args[2], 0, 0, 0],
            returned: Returned { result, out, size: None },
            stack,
            missed: facts.missed,
            family: facts.family,
            caller_is_allocator: facts.caller_is_allocator,
            told: None,
            recorded: began.map(|began| began.recorded),
            interval,
            counted_since: false,
            time_ns: observer.now_ns(),
        };
        observer.take_part(&part);
        self.note_picked_blocks(observer);
    }
}

impl Owner {
    /// What the observer knows of the beginning of the call that is in progress in `frame`, if that call began by
    /// giving a block back.
    fn take_began(&mut self, frame: &Frame) -> Option<Began> {
        let is_it = |one: &Began| one.function == frame.function() && one.old == frame.args[0];
        let at = self.began.iter().rposition(is_it).filter(|_| frame.what & FLAG_BEGAN != 0)?;
        Some(self.began.remove(at))
    }
}
