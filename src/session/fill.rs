//! Capacity that the program has never written (`--perturb`), as far as the process has to be looked at for it:
//! [`crate::heapmodel::fill`] does the rest.

use super::process::Process;
use crate::base::addr::TaskId;
use crate::event::EventKind;
use crate::event::calls::{Operation, Returned};
use crate::heapmodel::fill::FILL;

impl Process {
    /// A call has ended, and its thread stands behind it: what it has handed out is looked at before the program has
    /// it.
    pub(super) fn note_fill(&mut self, task: TaskId, operation: Operation, returned: Returned) {
        let Some(blocks) = &mut self.fill else { return };
        let memory = &mut self.tracee.space.image.memory;
        let block = operation.handed_out(returned);
        match operation {
            Operation::Allocate { size } | Operation::AllocateOut { size, .. } if !block.is_null() => {
                blocks.handed_out(block, size, memory);
            }
            Operation::Reallocate { old, size } => {
                if let Some(part) = blocks.resized(task.serial, old, (block, size), memory)
                    && let Err(error) = memory.write_fill(part, FILL)
                {
                    tracing::debug!("{error}");
                    blocks.forget(block);
                }
            }
            Operation::ResizeInPlace { old, .. } | Operation::GrowOut { old, .. } => blocks.forget(old),
            _ => {}
        }
    }

    /// Tells of all live blocks, while thread `tid` stands still: the program is about to end.
    pub(super) fn tell_unwritten(&mut self, tid: i32) {
        let Some(blocks) = &self.fill else { return };
        self.tracee.space.image.memory.new_stop(tid);
        for (block, bytes) in blocks.live(&mut self.tracee.space.image.memory) {
            self.observer.tell(EventKind::Unwritten { block, bytes });
        }
    }
}
