//! A window of time in a trace.

use crate::base::figures::{Amount, Totals};
use crate::event::Preexisting;
use crate::heapmodel::{HeapModel, SiteKey, SiteStats, Snapshot};
use rustc_hash::FxHashMap;

/// What happens in a window of time. What was allocated since it began has a model of its own; what was freed since,
/// whenever it was allocated, is the difference that the model of all makes.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// What was allocated since.
    pub(super) since: HeapModel,
    /// How many blocks had been allocated before.
    pub(super) births_before: u64,
    pub(super) totals_before: Totals,
    pub(super) deallocated_before: FxHashMap<SiteKey, Amount>,
}

impl Window {
    /// It begins now.
    pub(super) fn begin(model: &HeapModel) -> Self {
        let sites = model.snapshot().sites;
        let deallocated = sites.iter().filter(|site| site.deallocated != Amount::default());
        let mut deallocated_before: FxHashMap<SiteKey, Amount> = FxHashMap::default();
        for site in deallocated {
            let sum = deallocated_before.entry(site.key).or_default();
            *sum = sum.plus(site.deallocated);
        }
        let since = HeapModel::new(Preexisting::Unknown);
        Self { since, births_before: model.births(), totals_before: model.totals(), deallocated_before }
    }

    /// The window's part of what `whole` has come to.
    pub(super) fn snapshot(mut self, whole: &HeapModel) -> Snapshot {
        let mut snapshot = self.since.snapshot();
        snapshot.sites.change(|site| site.deallocated = Amount::default());
        for site in whole.snapshot().sites.into_rows() {
            let before = self.deallocated_before.remove(&site.key).unwrap_or_default();
            let deallocated = Amount {
                objects: site.deallocated.objects.saturating_sub(before.objects),
                bytes: site.deallocated.bytes.saturating_sub(before.bytes),
            };
            if deallocated == Amount::default() {
                continue;
            }
            let none = Amount::default();
            snapshot.sites.push(&SiteStats {
                inherited: false,
                allocated: none,
                freed: none,
                deallocated,
                live: none,
                at_peak: none,
                temporary: 0,
                lifetime_ns: 0,
                freed_elsewhere: 0,
                ..site
            });
        }
        let (all, before) = (whole.totals(), self.totals_before);
        snapshot.totals = Totals {
            frees: all.frees.saturating_sub(before.frees),
            bytes_freed: all.bytes_freed.saturating_sub(before.bytes_freed),
            reallocations: all.reallocations.saturating_sub(before.reallocations),
            preexisting_frees: all.preexisting_frees.saturating_sub(before.preexisting_frees),
            ..snapshot.totals
        };
        snapshot
    }
}
