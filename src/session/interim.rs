//! What a living process has left so far: made on the tracer thread in no time, finished by the thread that wants it.

use super::recording::Recording;
use crate::event::{Generation, MarkName};
use crate::heapmodel::{HeapView, SiteTable, Snapshot};
use crate::profile::{Cost, ProcessInfo};
use crate::unwinder::StackTable;

/// The state of a living process at one moment. Its tables are shared with those of the process, which is traced on.
#[derive(Debug)]
pub struct LiveSnapshot {
    /// All but the figures.
    pub(super) recording: Recording,
    pub(super) heap: HeapView,
    /// The mark whose heap it is; None: that of now.
    pub(super) at: Option<MarkName>,
    /// Whether other processes are followed.
    pub(super) follows: bool,
}

/// Which blocks are wanted of a state: those that were allocated behind a mark.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no mark named `{name}` was set in this process, or in this program since its exec: {}", known(set))]
pub struct NoSuchMark {
    /// The name asked for.
    pub name: MarkName,
    /// The marks that there are, the oldest first.
    pub set: Vec<MarkName>,
}

/// So many marks are named where another one is not found.
const NAMED: usize = 10;

/// The names of marks, the newest ones if there are many.
pub(super) fn known(set: &[MarkName]) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in set.iter().rev().map(ToString::to_string) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return "there are none (`heaptrace ctl PID mark NAME` sets one)".to_owned();
    }
    let older = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let older = if older > 0 { format!(" and {older} older ones") } else { String::new() };
    format!("there are {}{older}", names.join(", "))
}

/// How many blocks had been born when the latest mark of this name was set.
///
/// # Errors
/// There is no such mark.
pub(super) fn births_at(heap: &HeapView, name: &MarkName) -> Result<u64, NoSuchMark> {
    let refused = || NoSuchMark { name: *name, set: heap.marks().iter().map(|mark| mark.name).collect() };
    Ok(heap.mark(name).ok_or_else(refused)?.births)
}

impl LiveSnapshot {
    /// The heap of that moment.
    pub fn heap(&self) -> &HeapView {
        &self.heap
    }

    /// What tracing has cost until then.
    pub fn cost(&self) -> &Cost {
        &self.recording.facts.cost
    }

    /// The process.
    pub fn process(&self) -> &ProcessInfo {
        &self.recording.process
    }

    /// How many programs it was before the one that it is.
    pub fn images(&self) -> usize {
        self.recording.facts.images.len()
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
        births_at(&self.heap, name)
    }

    /// What was found out by then. Sums up the figures, which takes time by the number of sites.
    pub fn into_recording(self) -> Recording {
        let snapshot = self.heap.snapshot();
        self.with(snapshot, None)
    }

    /// The same, with nothing but those blocks that were allocated since the latest mark of this name and are live.
    /// Single blocks must have been asked for.
    ///
    /// # Errors
    /// There is no such mark.
    pub fn into_recording_since(self, name: &MarkName) -> Result<Recording, NoSuchMark> {
        let snapshot = self.heap.survivors(self.births_at(name)?).unwrap_or_default();
        Ok(self.with(snapshot, Some(*name)))
    }

    /// What was found out by then, with these sites in place of all figures: to have their stacks named.
    pub fn into_recording_of(self, sites: SiteTable) -> Recording {
        self.with(Snapshot { sites, ..Snapshot::default() }, None)
    }

    fn with(self, snapshot: Snapshot, since: Option<MarkName>) -> Recording {
        let Self { mut recording, follows, at, .. } = self;
        recording.facts.warnings.extend(Generation { since, until: at }.in_words());
        recording.with_figures(snapshot, follows)
    }
}
