//! Which calls are recorded where blocks are sampled (`--sample-interval`).

use super::Observer;
use crate::allocators::{Function, Text};
use crate::event::EventKind;
use crate::event::calls::{Operation, Recorded, Return};
use crate::heapmodel::HeapModel;
use crate::session::engine::ReturnContext;

impl Observer {
    /// Decides whether the block is recorded that the call hands out which is about to end, where its size was not
    /// known at the entry.
    pub(super) fn pick_at_return(&mut self, at: &Return, context: &mut dyn ReturnContext) {
        let &Return { task, site, sp, returned } = at;
        let Some(sampler) = &mut self.sampler else { return };
        let function = self.calls.function_ending(task, site, sp);
        if !function.and_then(|function| self.shared.table.get(function)).is_some_and(is_sized_at_return) {
            return;
        }
        let operation = self.calls.operation_ending(task, site, sp);
        let Some(size) = operation.and_then(|operation| operation.new_block_at_return(returned)) else { return };
        let by_sampler = || if sampler.picks(size) { self.shared.sample_interval } else { 0 };
        let interval = context.picks(size).unwrap_or_else(by_sampler);
        if interval == 0 {
            self.counted.count(size);
            self.note_not_recorded(task);
            return;
        }
        let stack = self.calls.pick_at_return(at, interval);
        if let Some(missed) = stack.and_then(|stack| context.missed(stack)) {
            self.tell(EventKind::Missed(missed));
        }
    }
}

/// Whether only the return of a call of this function tells how large its block is, so that it can't be picked before.
pub(super) fn is_sized_at_return(function: &Function) -> bool {
    function.text.is_some_and(Text::is_sized_at_return)
}

/// What of a call is recorded where blocks are sampled.
pub(super) fn recorded(operation: Operation, picks: &mut dyn FnMut(u64) -> bool, model: &HeapModel) -> Recorded {
    let (old, picks_new) = match operation {
        Operation::Allocate { size } | Operation::AllocateOut { size, .. } | Operation::Overflow { size } => {
            return if picks(size) { Recorded::All } else { Recorded::Failure };
        }
        Operation::Free { block } => (block, false),
        Operation::Mapping(_) => return Recorded::All,
        // Of what size it is after it was resized is known too late.
        Operation::GrowOut { old, .. } => (old, false),
        Operation::Reallocate { old, size } | Operation::ResizeInPlace { old, size } => {
            // Of no bytes it is a free.
            (old, size > 0 && picks(size))
        }
    };
    match (model.is_live(old), picks_new, operation) {
        (true, _, Operation::Free { .. }) | (true, true, _) => Recorded::All,
        (true, false, _) => Recorded::OldBlock,
        (false, true, _) => Recorded::NewBlock,
        (false, false, _) => Recorded::Failure,
    }
}
