//! Parts of calls that the routine of the jump engine has recorded. They need no pairing: the routine keeps the calls
//! in progress itself.

use super::{Observer, recorded};
use crate::allocators::Kind as FunctionKind;
use crate::base::addr::{Addr, TaskId};
use crate::event::calls::{Entry, Operation, Recorded, ToldOfBlock, align_as_told, is_operator, outcome};
use crate::event::{Call, EventKind, Missed};
use crate::jump::layout::Kind;
use crate::session::engine::Part;
use crate::unwinder::StackTable;
use std::sync::Arc;

impl Observer {
    /// Whether each call is recorded, at the moment.
    pub(in crate::session) fn takes_all(&self) -> bool {
        self.sampler.is_none() && !self.is_paused()
    }

    /// A call has handed out a block, which is not null; where each is recorded.
    #[inline]
    pub(in crate::session) fn take_allocated(&mut self, time_ns: u64, block: Addr, size: u64, by: &Call) {
        self.events += 1;
        self.stream.tell_allocated(time_ns, block, size, by);
    }

    /// A call gives back a block, which is not null, and is `internal` or not: see [`EventKind::Freed`]. Where each
    /// call is recorded.
    #[inline]
    pub(in crate::session) fn take_freed(
        &mut self,
        time_ns: u64,
        (block, internal): (Addr, bool),
        given_size: Option<u64>,
        by: &Call,
    ) {
        self.events += 1;
        self.stream.tell_freed(time_ns, (block, internal), given_size, by);
    }

    /// Reports what the part of a call has done. Returns what is recorded of the call, which its end needs.
    pub(in crate::session) fn take_part(&mut self, part: &Part) -> Recorded {
        let nothing = Recorded::Failure;
        let Some(function) = self.shared.table.get(part.function) else { return nothing };
        let function_kind = function.kind;
        let operation = Operation::of(function_kind, &part.args);
        let align = match (operation, part.told.filter(|_| function.align.is_none() && is_operator(part.family))) {
            (Operation::Free { .. }, Some(told)) => Some(told.align),
            _ => align_as_told(operation, function, &part.args, part.family, &self.shared.table),
        };
        if self.is_paused() && part.recorded.is_none() && !self.is_of_interest_while_paused(part.function, &part.args) {
            return nothing;
        }
        let recorded = match (part.recorded, &self.sampler) {
            (Some(recorded), _) => recorded,
            (None, None) => Recorded::All,
            (None, Some(_)) => recorded(operation, &mut |_| part.interval > 0, &self.stream.model),
        };
        if part.counted_since {
            self.note_not_recorded(part.task);
        }
        let frees = part.kind == Kind::Freed;
        let is_first = part.recorded.is_none();
        let hides_allocation = !frees && is_first && matches!(recorded, Recorded::Failure | Recorded::OldBlock);
        let succeeded = part.kind == Kind::Ended && part.returned.result != 0;
        let hidden = matches!(recorded, Recorded::Failure | Recorded::OldBlock) && succeeded;
        if hidden && let Some(size) = operation.new_block() {
            self.counted.count(size);
        }
        let stream = &mut self.stream;
        if hides_allocation && stream.model.is_latest_recorded(part.task) {
            stream.tell(part.time_ns, EventKind::NotRecorded { task: part.task });
        }
        if let Some(missed) = part.missed.filter(|_| is_first && recorded != Recorded::Failure) {
            stream.tell(part.time_ns, EventKind::Missed(missed));
        }
        let by = Call {
            function: part.function,
            task: part.task,
            stack: part.stack,
            family: part.family,
            align,
            interval: part.interval,
        };
        match (part.kind, operation) {
            (Kind::Freed, Operation::Free { block }) => {
                let given_size = match function_kind {
                    FunctionKind::Free { size: Some(size), .. } => Some(size.of(&part.args)),
                    _ => part.told.and_then(|told| told.size),
                };
                if recorded == Recorded::All && block != Addr::NULL {
                    let internal = part.caller_is_allocator;
                    stream.tell(part.time_ns, EventKind::Freed { block, internal, given_size, by });
                }
            }
            (Kind::Began, Operation::Reallocate { old, .. }) => {
                if let Some(event) = recorded.of(EventKind::ReallocBegan { old, by }) {
                    stream.tell(part.time_ns, event);
                }
            }
            (Kind::Ended, _) => {
                outcome(operation, part.returned, by, &mut |event| {
                    if let Some(event) = recorded.of(event) {
                        stream.tell(part.time_ns, event);
                    }
                });
            }
            // Not by the routine: somebody has written to its memory.
            _ => return nothing,
        }
        if part.kind != Kind::Began {
            self.events += 1;
        }
        recorded
    }

    /// Takes over a call in progress: see [`crate::event::calls::Calls::adopt`]. `recorded`: what the stream has of its
    /// beginning, if anything; `missed`: what of its stack nobody saw, if the stream does not say so yet; `picked`:
    /// whether the routine has picked its block, where blocks are sampled, or has counted the call.
    pub(in crate::session) fn adopt(
        &mut self,
        entry: &Entry,
        by: Call,
        recorded: Option<Recorded>,
        missed: Option<Missed>,
        picked: bool,
    ) {
        let table = Arc::clone(&self.shared.table);
        let Some(function) = table.get(entry.function) else { return };
        let operation = Operation::of(function.kind, &entry.args);
        let by = Call { align: align_as_told(operation, function, &entry.args, entry.family, &table), ..by };
        let decided = match (recorded, &self.sampler) {
            (Some(recorded), _) => recorded,
            (None, None) => Recorded::All,
            (None, Some(_)) => super::recorded(operation, &mut |_| picked, &self.stream.model),
        };
        let hides_allocation = !picked && matches!(decided, Recorded::Failure | Recorded::OldBlock);
        if hides_allocation && let Some(size) = operation.new_block() {
            self.counted.count(size);
        }
        if let Some(missed) = missed.filter(|_| decided != Recorded::Failure) {
            self.tell(EventKind::Missed(missed));
        }
        self.with_calls(|calls, tell| calls.adopt(entry, operation, &by, (decided, false), tell));
    }

    /// The thread has allocated a block that is not recorded.
    pub(in crate::session) fn note_not_recorded(&mut self, task: TaskId) {
        if self.stream.model.is_latest_recorded(task) {
            self.tell(EventKind::NotRecorded { task });
        }
    }

    /// Blocks that began or ended to be live since this was last asked, some of them several times; nothing if all are
    /// recorded.
    pub(in crate::session) fn take_changed_blocks(&mut self) -> Vec<Addr> {
        std::mem::take(&mut self.stream.changed)
    }

    /// How many calls of their own were seen to begin by the trap engine.
    pub(in crate::session) const fn calls_seen(&self) -> u64 {
        self.entered
    }

    /// Whether something is known of the thread that concerns its next call: see
    /// [`crate::event::calls::Calls::concerns_next`].
    pub(in crate::session) fn concerns_next(&self, task: TaskId) -> bool {
        self.calls.concerns_next(task)
    }

    /// Whether an operator has told of the thread's next call, and nothing else concerns that.
    pub(in crate::session) fn was_told(&self, task: TaskId) -> bool {
        self.calls.was_told_only(task)
    }

    /// An operator has told so much of a block: see [`crate::event::calls::Calls::tell`].
    pub(in crate::session) fn tell_of_block(&mut self, task: TaskId, told: ToldOfBlock, sp: u64) {
        self.calls.tell(task, told, sp);
    }

    /// What an operator has told is forgotten.
    pub(in crate::session) fn forget_told(&mut self, task: TaskId) {
        self.calls.forget_told(task);
    }

    /// Tells the readers of all stacks that are new.
    pub(in crate::session) fn define_stacks(&mut self, stacks: &StackTable) {
        if !self.stream.readers.is_empty() {
            self.stream.define_stacks(stacks);
        }
    }
}
