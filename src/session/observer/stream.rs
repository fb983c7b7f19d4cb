//! The stream of one process: what happened, stamped, told to its readers in order.

use super::held::Held;
use crate::base::addr::{Addr, ImageId};
use crate::event::{Call, Definition, Event, EventKind, EventSink};
use crate::heapmodel::HeapModel;
use crate::unwinder::StackTable;

/// The readers, and the stamp of the next event.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) model: HeapModel,
    pub(super) readers: Vec<Box<dyn EventSink>>,
    /// What comes later than blocks that are still looked for. The model does not have it yet.
    pub(super) held: Option<Held>,
    pub(super) next_seq: u64,
    pub(super) image: ImageId,
    /// The readers have this number of stack nodes, and of modules, of this image.
    pub(super) told_nodes: u32,
    pub(super) told_modules: usize,
    /// See [`super::Observer::take_changed_blocks`].
    pub(super) changed: Vec<Addr>,
    /// Whether anybody asks for them.
    pub(super) follows_blocks: bool,
    #[cfg(debug_assertions)]
    pub(super) log: Option<crate::event::EventLog>,
}

impl Stream {
    #[inline]
    pub(super) fn tell(&mut self, time_ns: u64, kind: EventKind) {
        match &mut self.held {
            None => self.take(time_ns, kind),
            Some(held) => held.push(time_ns, kind),
        }
    }

    /// Whether the model is the only one that takes what comes.
    #[inline]
    fn is_for_the_model_alone(&self) -> bool {
        self.held.is_none() && self.readers.is_empty() && !self.follows_blocks
    }

    /// The same as [`Self::tell`] with [`EventKind::Allocated`], of which no event is made where nobody needs one.
    #[inline]
    pub(super) fn tell_allocated(&mut self, time_ns: u64, block: Addr, size: u64, by: &Call) {
        if self.is_for_the_model_alone() {
            self.next_seq += 1;
            self.model.take_allocated(time_ns, block, size, by);
        } else {
            self.tell(time_ns, EventKind::Allocated { block, size, by: *by });
        }
    }

    /// The same with [`EventKind::Freed`].
    #[inline]
    pub(super) fn tell_freed(
        &mut self,
        time_ns: u64,
        (block, internal): (Addr, bool),
        given_size: Option<u64>,
        by: &Call,
    ) {
        if self.is_for_the_model_alone() {
            self.next_seq += 1;
            self.model.take_freed(time_ns, (block, internal), given_size, by);
        } else {
            self.tell(time_ns, EventKind::Freed { block, internal, given_size, by: *by });
        }
    }

    /// Whether the program is known to have mapped any of this.
    pub(super) fn has_mapped(&self, start: Addr, bytes: u64) -> bool {
        self.model.has_mapped(start, bytes) || self.held.as_ref().is_some_and(|held| held.may_have_mapped(start, bytes))
    }

    #[inline]
    pub(super) fn take(&mut self, time_ns: u64, kind: EventKind) {
        let event = Event { seq: self.next_seq, time_ns, kind };
        self.next_seq += 1;
        self.model.apply(&event);
        if self.follows_blocks {
            match kind {
                EventKind::Allocated { block, .. } | EventKind::Freed { block, .. } => self.changed.push(block),
                EventKind::ReallocEnded { old, new, .. } => self.changed.extend([old, new]),
                _ => {}
            }
        }
        for reader in &mut self.readers {
            reader.take(&event);
            reader.note_live(time_ns, self.model.live_bytes());
        }
    }

    pub(super) fn define(&mut self, definition: &Definition<'_>) {
        for reader in &mut self.readers {
            reader.define(definition);
        }
    }

    /// Tells the readers of stacks that are new.
    pub(super) fn define_stacks(&mut self, stacks: &StackTable) {
        for (id, node) in stacks.nodes_from(self.told_nodes) {
            self.define(&Definition::Stack { id, node });
            self.told_nodes = id.0 + 1;
        }
    }
}
