//! Capacity that the program has never written (`--perturb`), as far as the process has to be looked at for it:
//! [`crate::heapmodel::fill`] does the rest.

use super::observer::Observer;
use super::settings::Settings;
use super::tracee::Tracee;
use crate::base::addr::TaskId;
use crate::event::EventKind;
use crate::event::calls::{Operation, Returned};
use crate::heapmodel::fill::{self, FILL};

/// The blocks of a process whose ends are known, if that is wanted.
#[derive(Debug)]
pub(super) struct UnwrittenCapacity {
    pub(super) blocks: Option<fill::Blocks>,
}

impl UnwrittenCapacity {
    /// Of a process, or an image of it, that begins. That of a forked child, too: capacity counts where it was
    /// allocated, which is another process.
    pub(super) fn new(settings: &Settings) -> Self {
        Self { blocks: settings.perturb.then(fill::Blocks::default) }
    }

    /// What is said of blocks that could not be looked at.
    pub(super) fn untold(&self) -> Option<String> {
        self.blocks.as_ref().and_then(fill::Blocks::untold)
    }

    /// A call has ended, and its thread stands behind it: what it has handed out is looked at before the program has
    /// it.
    pub(super) fn note_returned(
        &mut self,
        tracee: &mut Tracee,
        task: TaskId,
        operation: Operation,
        returned: Returned,
    ) {
        let Some(blocks) = &mut self.blocks else { return };
        let memory = &mut tracee.space.image.memory;
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
    pub(super) fn tell(&self, tracee: &mut Tracee, observer: &mut Observer, tid: i32) {
        let Some(blocks) = &self.blocks else { return };
        tracee.space.image.memory.new_stop(tid);
        for (block, bytes) in blocks.live(&mut tracee.space.image.memory) {
            observer.tell(EventKind::Unwritten { block, bytes });
        }
    }
}
