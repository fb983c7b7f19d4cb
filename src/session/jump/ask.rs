//! A thread in the routine asks: it is set back to the function's first instruction, and its call is seen by the trap
//! engine from there on.

use super::fallback::Cause;
use super::{JumpState, LastFree};
use crate::addr::{Addr, FunctionId, StackId};
use crate::allocators::Kind as FunctionKind;
use crate::arch::Regs;
use crate::breakpoints::{Breakpoint, Engine, Probe};
use crate::calls::{Entry, Recorded, Returned};
use crate::event::Call;
use crate::jump::frames::{self, Frame};
use crate::jump::layout::{COUNTED, FLAG_BEGAN, FRAME_SLOT, Kind, Nested, StubKind};
use crate::jump::merge::RecordedStack;
use crate::jump::stub::Stub;
use crate::jump::undo::Undone;
use crate::memory::ReadMemory;
use crate::session::engine::{EngineReport, Part};
use crate::session::hit::Hit;
use crate::session::process::Process;
use crate::session::stop::Action;
use crate::session::stops::Stops;
use crate::tracer::Result;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

const LOST: &str =
    "a thread was not as heaptrace's own code leaves it: has the program written to memory that belongs to heaptrace?";

impl Process {
    /// A thread has hit one of the int3s of the routine; `raw` is as the trap has left it.
    pub(in crate::session) fn on_ask(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        stops: &mut Stops,
    ) -> Result<Action> {
        self.space.image.memory.new_stop(tid);
        self.stop_cost.stops(self.pid, tid);
        let at = Addr(raw.0.rip.wrapping_sub(1));
        let regs = raw.before_trap().regs();
        let Some(jump) = self.jump.on() else { return Ok(Action::Resume(0)) };
        let cell = jump.cell_of(tid);
        let offset = at.0.wrapping_sub(jump.region.code.0);
        let (is_ask, is_foreign) = (offset == jump.code.ask, offset == jump.code.foreign);
        match cell {
            // Its ring was full: it looks again. The number of its record is in rax.
            Some(cell) if !is_ask && !is_foreign => self.make_room(cell, raw.0.rax),
            _ => self.settle(),
        }
        let Some(jump) = self.jump.on() else { return Ok(Action::Resume(0)) };
        // An operator that was seen at a stop has told of this call: that is no matter of the thread's stack.
        let is_told_of = self.tasks.get(tid).is_some_and(|task| self.observer.was_told(task.id));
        if is_ask && cell.is_some() && !is_told_of {
            self.fallbacks.note_ask();
        }
        let undone = if is_ask {
            jump.place(cell).undo(&regs, jump.shared(), &mut self.space.image.memory)
        } else {
            if is_foreign {
                self.take_foreign_end(tid, &regs);
            }
            self.repair_trap(tid, thread, raw, at)?;
            thread.pass_trap(raw, &raw.regs())?;
            return Ok(Action::Resume(0));
        };
        let Some(Undone::NotBegun(stub, entered)) = undone else {
            self.warn_once(LOST.to_owned());
            thread.pass_trap(raw, &raw.regs())?;
            return Ok(Action::Resume(0));
        };
        self.see_at_stop(tid, thread, raw, &stub, &entered, stops)
    }

    /// A thread has stopped in the routine, before anything of its call was recorded: the call is seen as if it had hit
    /// the breakpoint at the function's entry.
    pub(super) fn see_at_stop(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        stub: &Stub,
        entered: &Regs,
        stops: &mut Stops,
    ) -> Result<Action> {
        let mut at_entry = *raw;
        at_entry.set_regs(entered);
        at_entry.0.rip = stub.entry.0.wrapping_add(1);
        let outer = self.hand_over(tid, thread, &at_entry)?;
        self.prepare_cell(tid, raw.0.fs_base, entered);
        if stub.way == StubKind::Free && !self.settings.free_stacks {
            self.publish_caller(entered);
        }
        let Some(breakpoint) = self.space.probes.breakpoints.get(stub.entry).copied() else {
            thread.pass_trap(&at_entry, entered)?;
            return Ok(Action::Resume(0));
        };
        self.pass_on_told(tid, stub, entered);
        if stub.way == StubKind::Free
            && !stub.is_told()
            && self.was_recorded_before_passed_on(tid, stub, entered)
            && let Some(task) = self.tasks.get_mut(tid)
        {
            task.counted.push(stub.entry, entered.sp());
        }
        self.note_counted_since(tid);
        let before = self.observer.calls_seen();
        let hit = &Hit { tid, thread, raw: &at_entry, at: stub.entry, breakpoint: &breakpoint };
        let action = self.on_hit(hit, stops);
        if let Some(outer) = outer
            && stub.way != StubKind::Guard
            && let JumpState::On(jump) = &mut self.jump
        {
            let is_own = self.observer.calls_seen() != before;
            let verdict = if is_own { Nested::Own } else { Nested::Part };
            let caller = self.space.image.memory.read_u64(Addr(entered.sp())).map(Addr).unwrap_or_default();
            jump.judge_nested(outer.function(), stub.function, caller, verdict);
        }
        self.note_mode(tid);
        action
    }

    /// The call of a thread that asks may be what an operator has passed on, whose record was drained.
    fn pass_on_told(&mut self, tid: i32, stub: &Stub, entered: &Regs) {
        let [block, ..] = entered.arguments();
        let Some(jump) = self.jump.on_mut() else { return };
        let Some(owner) = jump.cell_of(tid).and_then(|cell| jump.owner_mut(cell)) else { return };
        let (task, told) = (owner.task, owner.told.take());
        if let Some(told) = told.filter(|told| stub.way == StubKind::Free && told.block.0 == block) {
            self.observer.tell_of_block(task, told, entered.sp());
        }
    }

    /// A function at `at` that the jump engine leaves to the trap engine is called. If it gives a block back, and
    /// passes that on to one that is recorded, that is the same free. Wrappers of malloc and free are not told of
    /// themselves: what they call is.
    pub(in crate::session) fn note_trapped_call(
        &mut self,
        tid: i32,
        at: Addr,
        breakpoint: &Breakpoint,
        entered: &Regs,
    ) {
        let Some(Probe { function, engine: Engine::Trap, .. }) = breakpoint.purposes.entry else { return };
        if self.space.modules.wrapper_at(at).is_some() || self.settings.table.is_mapping(function) {
            return;
        }
        let Some(known) = self.settings.table.get(function) else { return };
        let cause = self.jump.on().and_then(|jump| jump.at_stops.get(&at)).copied().unwrap_or(Cause::OtherModule);
        self.fallbacks.note_function(cause, &known.name);
        let kind = known.kind;
        let caller = self.space.image.memory.read_u64(Addr(entered.sp()));
        let Some((FunctionKind::Free { ptr, .. }, caller)) = Some(kind).zip(caller) else { return };
        let block = entered.arguments().get(usize::from(ptr.0)).copied().unwrap_or(0);
        let Some(jump) = self.jump.on_mut() else { return };
        if let Some(owner) = jump.cell_of(tid).and_then(|cell| jump.owner_mut(cell)) {
            owner.note_free(LastFree { function: function.0, block, caller }, false);
        }
    }

    /// Whether a free that asks was recorded already, by a function that has passed it on. From here on it is the
    /// latest of its thread.
    fn was_recorded_before_passed_on(&mut self, tid: i32, stub: &Stub, entered: &Regs) -> bool {
        let Some(caller) = self.space.image.memory.read_u64(Addr(entered.sp())) else { return false };
        let by_allocator = self.space.modules.is_called_by_allocator(&self.space.image, Addr(caller));
        let [block, ..] = entered.arguments();
        let Some(jump) = self.jump.on_mut() else { return false };
        let Some(owner) = jump.cell_of(tid).and_then(|cell| jump.owner_mut(cell)) else { return false };
        owner.note_free(LastFree { function: stub.function, block, caller }, by_allocator)
    }

    /// Hands the calls in progress of a stopped thread over to the observer: their return addresses are put back, and
    /// breakpoints placed there. Returns the innermost.
    pub(in crate::session) fn hand_over(&mut self, tid: i32, thread: &Stopped, raw: &RawRegs) -> Result<Option<Frame>> {
        let Some(jump) = self.jump.on() else { return Ok(None) };
        let Some(cell) = jump.cell_of(tid) else { return Ok(None) };
        let all = frames::of_cell(jump.shared(), cell);
        for frame in &all {
            self.put_back(frame)?;
        }
        for frame in &all {
            let Some(task) = self.adopt(tid, cell, frame) else { continue };
            if !self.space.ensure_return_site(frame.caller, thread, raw)? {
                self.observer.observe(EngineReport::ReturnUnwatchable(task));
            }
        }
        if let Some(jump) = self.jump.on() {
            frames::set_depth(jump.shared(), cell, 0);
            for frame in &all {
                clear_slot(jump, frame);
            }
        }
        Ok(all.last().copied())
    }

    /// Makes a call in progress the observer's.
    pub(super) fn adopt(&mut self, tid: i32, cell: u16, frame: &Frame) -> Option<crate::addr::TaskId> {
        let task = self.tasks.get(tid)?.id;
        let was_counted = frame.picked() == COUNTED;
        let mut jump = self.jump.take_on()?;
        let began = jump.owner_mut(cell).and_then(|owner| {
            let is_it = |one: &super::Began| one.function == frame.function() && one.old == frame.args[0];
            let at = owner.began.iter().rposition(is_it).filter(|_| frame.what & FLAG_BEGAN != 0)?;
            Some(owner.began.remove(at))
        });
        let stack = match began {
            Some(began) => began.stack,
            None if was_counted => StackId::EMPTY,
            None => self.stack_of(&mut jump, frame.cell, frame.stack(), frame.caller),
        };
        let is_walked = !was_counted && !matches!(frame.stack(), RecordedStack::Caller(_));
        let facts = self.facts_of(&mut jump, frame.function(), stack, frame.caller, is_walked);
        let entry_addr = jump.stubs.iter().find(|stub| stub.function == frame.function()).map(|stub| stub.entry);
        let interval = jump.interval_of(frame.picked());
        self.jump = JumpState::On(jump);
        let function = FunctionId(frame.function());
        let entry = Entry {
            task,
            function,
            args: [frame.args[0], frame.args[1], frame.args[2], 0, 0, 0],
            sp: frame.slot.0,
            return_addr: frame.caller,
            module: self.space.modules.module_at(entry_addr?),
            caller_module: self.space.modules.module_at(frame.caller),
            caller_is_allocator: facts.caller_is_allocator,
            is_wrapper: false,
            wrapper: None,
            loops_to_entry: false,
            family: facts.family,
            interval,
        };
        self.observer.define_stacks(self.space.modules.unwinder.stacks());
        let by = Call { function, task, stack, family: facts.family, align: None, interval };
        let missed = facts.missed.filter(|_| began.is_none());
        let recorded = began.map(|began| began.recorded).or(was_counted.then_some(Recorded::Failure));
        self.observer.adopt(&entry, by, recorded, missed, frame.picked() != 0);
        Some(task)
    }

    /// A function has returned to another thread than the one that had called it, as fibers do: its end is told here.
    fn take_foreign_end(&mut self, tid: i32, regs: &Regs) {
        const SLOT: u64 = 112;
        const RESULT: u64 = 104;
        let slot = Addr(regs.sp().wrapping_add(SLOT));
        let result = self.space.image.memory.read_u64(Addr(regs.sp().wrapping_add(RESULT))).unwrap_or(0);
        let Some(jump) = self.jump.on() else { return };
        if let Some(frame) = frames::at_slot(jump.shared(), jump.cell_of(tid), slot) {
            self.tell_end(tid, &frame, result);
        }
    }

    /// Tells the end of a call that the routine has not recorded.
    pub(super) fn tell_end(&mut self, tid: i32, frame: &Frame, result: u64) {
        if frame.picked() == COUNTED {
            return;
        }
        let Some(task) = self.tasks.get(tid).map(|task| task.id) else { return };
        let out = self.space.image.memory.read_u64(Addr(frame.args[0])).map(Addr);
        let Some(mut jump) = self.jump.take_on() else { return };
        let began = jump.owner_mut(frame.cell).and_then(|owner| {
            let is_it = |one: &super::Began| one.function == frame.function() && one.old == frame.args[0];
            let at = owner.began.iter().rposition(is_it).filter(|_| frame.what & FLAG_BEGAN != 0)?;
            Some(owner.began.remove(at))
        });
        let stack = match began {
            Some(began) => began.stack,
            None => self.stack_of(&mut jump, frame.cell, frame.stack(), frame.caller),
        };
        let facts = self.facts_of(&mut jump, frame.function(), stack, frame.caller, true);
        let interval = jump.interval_of(frame.picked());
        self.jump = JumpState::On(jump);
        self.observer.define_stacks(self.space.modules.unwinder.stacks());
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
            time_ns: self.observer.now_ns(),
        };
        self.observer.take_part(&part);
        self.note_picked_blocks();
    }
}

/// The frame is not to be found any more by its slot.
fn clear_slot(jump: &super::Jump, frame: &Frame) {
    use crate::jump::layout::{CELL_FRAMES, FRAME_SIZE, cell_at};
    use crate::jump::shared::Shared;
    let at = cell_at(frame.cell.into()) + CELL_FRAMES + u64::from(frame.index) * FRAME_SIZE;
    jump.shared().set_word(at + FRAME_SLOT, 0);
}
