//! What a recording has that earlier parts of a series have not told.

use super::leakrecord::LeakScan;
use super::recording::Recording;
use crate::heapmodel::Counted;
use crate::profile::course::HeapHistory;
use crate::profile::symbolize::ScriptNames;
use crate::profile::{Anomalies, Cost, RunFacts};

/// What parts of a series have told of a process.
#[derive(Clone, Debug)]
pub struct ReportedTotals {
    /// Images that the process has had before; each begins with a new heap.
    images: usize,
    heap: Counted,
    anomalies: Anomalies,
    cost: Cost,
}

impl ReportedTotals {
    /// Whether it is of the image that `recording` is of.
    pub const fn is_of_image(&self, recording: &Recording) -> bool {
        self.images == recording.facts.images.len()
    }

    /// When the last part ended, in nanoseconds since tracing began.
    pub const fn until_ns(&self) -> u64 {
        self.cost.wall_ns
    }
}

impl Recording {
    /// All that it tells.
    pub fn told(&self) -> ReportedTotals {
        ReportedTotals {
            images: self.facts.images.len(),
            heap: Counted::by(&self.snapshot),
            anomalies: self.anomalies,
            cost: self.facts.cost,
        }
    }

    /// How many allocations it has that `told` has not.
    pub fn allocations_since(&self, told: Option<&ReportedTotals>) -> u64 {
        let before =
            told.filter(|told| told.images == self.facts.images.len()).map_or(0, |told| told.heap.allocations());
        self.snapshot.totals.allocations.saturating_sub(before)
    }

    /// The part of it that `told` has not, without a leak scan. After an exec that is all of the new image, as the old
    /// one's heap is gone.
    #[must_use]
    pub fn since(&self, told: Option<&ReportedTotals>) -> Self {
        let nothing = Counted::default();
        let same_image = told.filter(|told| told.images == self.facts.images.len());
        let start_ns = told.map_or(0, ReportedTotals::until_ns);
        let snapshot = self.snapshot.since(same_image.map_or(&nothing, |told| &told.heap), start_ns);
        let before = told.map(|told| told.cost).unwrap_or_default();
        let anomalies = same_image.map_or(self.anomalies, |told| self.anomalies.since(&told.anomalies));
        Self {
            snapshot,
            stacks: self.stacks.clone(),
            table: self.table.clone(),
            modules: self.modules.clone(),
            scripts: ScriptNames::clone(&self.scripts),
            thread_names: self.thread_names.clone(),
            process: self.process.clone(),
            session: self.session.clone(),
            stream: self.stream,
            facts: RunFacts { cost: self.facts.cost.since(&before), ..self.facts.clone() },
            number: self.number,
            root: self.root.clone(),
            anomalies,
            leaks: LeakScan::NotWanted,
            tests: None,
            missing_mark: self.missing_mark.clone(),
            course: HeapHistory::default(),
            broken_off: self.broken_off.clone(),
            interrupted: self.interrupted,
            dismissed: self.dismissed,
        }
    }
}
