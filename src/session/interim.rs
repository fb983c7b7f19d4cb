//! What a living process has left so far: made on the tracer thread in no time, finished by the thread that wants it.

use super::recording::Recording;
use crate::event::MarkName;
use crate::heapmodel::{HeapView, Snapshot};
use crate::unwinder::StackTable;

/// The state of a living process at one moment. Its tables are shared with those of the process, which is traced on.
#[derive(Debug)]
pub struct Interim {
    /// All but the figures.
    pub(super) recording: Recording,
    pub(super) heap: HeapView,
    /// Whether other processes are followed.
    pub(super) follows: bool,
}

/// Which blocks are wanted of a state: those that were allocated behind a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no mark of the name `{name}` was set in this process, or in this program since its exec{}", known(*.set))]
pub struct NoSuchMark {
    /// The name asked for.
    pub name: MarkName,
    /// How many marks there are.
    pub set: usize,
}

fn known(set: usize) -> String {
    match set {
        0 => ": there are none (`heaptrace ctl PID mark NAME` sets one)".to_owned(),
        set => format!(": there are {set} others"),
    }
}

impl Interim {
    /// The heap of that moment.
    pub fn heap(&self) -> &HeapView {
        &self.heap
    }

    /// The same without all else.
    pub fn into_heap(self) -> HeapView {
        self.heap
    }

    /// The stacks of that moment.
    pub fn share_stacks(&mut self) -> StackTable {
        self.recording.stacks.view()
    }

    /// How many blocks had been born when the latest mark of this name was set.
    ///
    /// # Errors
    /// There is no such mark.
    pub fn births_at(&self, name: &MarkName) -> Result<u64, NoSuchMark> {
        let refused = NoSuchMark { name: *name, set: self.heap.marks().len() };
        Ok(self.heap.mark(name).ok_or(refused)?.births)
    }

    /// What was found out by then. Sums up the figures, which takes time by the number of sites.
    pub fn into_recording(self) -> Recording {
        let snapshot = self.heap.snapshot();
        self.with(snapshot)
    }

    /// The same, with nothing but those blocks that were allocated since the latest mark of this name and are live. Single blocks must
    /// have been asked for.
    ///
    /// # Errors
    /// There is no such mark.
    pub fn into_recording_since(self, name: &MarkName) -> Result<Recording, NoSuchMark> {
        let snapshot = self.heap.survivors(self.births_at(name)?).unwrap_or_default();
        Ok(self.with(snapshot))
    }

    fn with(self, snapshot: Snapshot) -> Recording {
        let Self { recording, follows, .. } = self;
        recording.with_figures(snapshot, follows)
    }
}
