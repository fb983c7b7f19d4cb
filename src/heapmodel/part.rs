//! A profile series: what happened in each period, told from the running sums at the periods' ends.

use super::{SiteKey, SiteStats, Snapshot};
use crate::addr::{FunctionId, StackId};
use crate::figures::{Amount, Anomalies, FindingKind, Histograms, Totals};
use rustc_hash::FxHashMap;

/// What had happened by the end of the latest period.
#[derive(Debug, Default)]
pub struct Sums {
    totals: Totals,
    anomalies: Anomalies,
    histograms: Histograms,
    sites: FxHashMap<(SiteKey, bool), Flows>,
    errors: FxHashMap<ErrorKey, u64>,
    /// In nanoseconds since the process's tracing began.
    ended_ns: u64,
}

type ErrorKey = (FindingKind, FunctionId, StackId, Option<StackId>);

/// The figures of a site that only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Flows {
    allocated: Amount,
    freed: Amount,
    deallocated: Amount,
    temporary: u64,
}

impl Sums {
    /// Leaves in `snapshot`, which holds all that has happened to the same heap until `now_ns`, what happened since the latest period
    /// ended; with that a new one begins. What is live, and was at the peak, stays as it is: sites with nothing of either are dropped
    /// where nothing happened. So the parts of a series have the sums of the whole.
    pub fn take_part(&mut self, snapshot: &mut Snapshot, now_ns: u64) {
        let mut sites = FxHashMap::default();
        snapshot.sites.retain_mut(|site| {
            let key = (site.key, site.inherited);
            let flows = Flows {
                allocated: site.allocated,
                freed: site.freed,
                deallocated: site.deallocated,
                temporary: site.temporary,
            };
            let before = self.sites.get(&key).copied().unwrap_or_default();
            sites.insert(key, flows);
            subtract(site, &before);
            let flows = [site.allocated, site.freed, site.deallocated];
            let states = [site.live, site.at_peak];
            flows.iter().chain(&states).any(|amount| *amount != Amount::default())
        });
        self.sites = sites;
        let mut errors = FxHashMap::default();
        snapshot.errors.retain_mut(|error| {
            let key = (error.kind, error.function, error.stack, error.alloc_stack);
            errors.insert(key, error.count);
            error.count -= self.errors.get(&key).copied().unwrap_or_default().min(error.count);
            error.count > 0
        });
        self.errors = errors;
        let totals = std::mem::replace(&mut self.totals, snapshot.totals);
        snapshot.totals = since(&snapshot.totals, &totals);
        let anomalies = std::mem::replace(&mut self.anomalies, snapshot.anomalies);
        snapshot.anomalies = anomalies_since(&snapshot.anomalies, &anomalies);
        let histograms = std::mem::replace(&mut self.histograms, snapshot.histograms.clone());
        buckets_since(&mut snapshot.histograms.size, &histograms.size);
        buckets_since(&mut snapshot.histograms.lifetime, &histograms.lifetime);
        let ended_ns = std::mem::replace(&mut self.ended_ns, now_ns);
        snapshot.timeline.retain(|point| point.t_ns >= ended_ns);
    }

    /// When the latest period ended, in nanoseconds since the process's tracing began.
    pub const fn ended_ns(&self) -> u64 {
        self.ended_ns
    }
}

fn subtract(site: &mut SiteStats, before: &Flows) {
    site.allocated = difference(site.allocated, before.allocated);
    site.freed = difference(site.freed, before.freed);
    site.deallocated = difference(site.deallocated, before.deallocated);
    site.temporary = site.temporary.saturating_sub(before.temporary);
}

fn difference(now: Amount, before: Amount) -> Amount {
    Amount {
        objects: now.objects.saturating_sub(before.objects),
        // as sums of sizes wrap
        bytes: now.bytes.wrapping_sub(before.bytes),
    }
}

fn since(now: &Totals, before: &Totals) -> Totals {
    Totals {
        allocations: now.allocations.saturating_sub(before.allocations),
        frees: now.frees.saturating_sub(before.frees),
        reallocations: now.reallocations.saturating_sub(before.reallocations),
        bytes_allocated: now.bytes_allocated.wrapping_sub(before.bytes_allocated),
        bytes_freed: now.bytes_freed.wrapping_sub(before.bytes_freed),
        temporary: now.temporary.saturating_sub(before.temporary),
        failed: now.failed.saturating_sub(before.failed),
        preexisting_frees: now.preexisting_frees.saturating_sub(before.preexisting_frees),
        ..*now
    }
}

fn anomalies_since(now: &Anomalies, before: &Anomalies) -> Anomalies {
    let count = |of: fn(&Anomalies) -> u64| of(now).saturating_sub(of(before));
    Anomalies {
        lost: count(|a| a.lost),
        truncated_stacks: count(|a| a.truncated_stacks),
        cut_stacks: count(|a| a.cut_stacks),
        guessed_stacks: count(|a| a.guessed_stacks),
        unknown_frees: count(|a| a.unknown_frees),
        double_frees: count(|a| a.double_frees),
        mismatched_frees: count(|a| a.mismatched_frees),
        abandoned_calls: count(|a| a.abandoned_calls),
    }
}

fn buckets_since(now: &mut [u64], before: &[u64]) {
    for (now, before) in now.iter_mut().zip(before) {
        *now = now.saturating_sub(*before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::heapmodel::HeapModel;
    use crate::heapmodel::tests::reference::streams;
    use proptest::prelude::*;

    fn flows_of(snapshot: &Snapshot, into: &mut FxHashMap<(SiteKey, bool), Flows>) {
        for site in &snapshot.sites {
            let sum = into.entry((site.key, site.inherited)).or_default();
            sum.allocated = sum.allocated.plus(site.allocated);
            sum.freed = sum.freed.plus(site.freed);
            sum.deallocated = sum.deallocated.plus(site.deallocated);
            sum.temporary += site.temporary;
        }
    }

    proptest! {
        /// Wherever a stream is cut into periods: what happened in the parts is what happened in all, and what is live is that of the
        /// moment.
        #[test]
        fn parts_add_up(kinds in streams(), cuts in proptest::collection::vec(0usize..200, 0..5)) {
            let mut model = HeapModel::default();
            let mut sums = Sums::default();
            let (mut flows, mut allocations, mut errors) = (FxHashMap::default(), 0, 0);
            for (at, kind) in kinds.iter().enumerate() {
                let time_ns = at as u64 * 100;
                model.apply(&Event { seq: at as u64, time_ns, kind: *kind });
                if cuts.contains(&at) || at + 1 == kinds.len() {
                    let whole = model.snapshot();
                    let mut part = whole.clone();
                    sums.take_part(&mut part, time_ns);
                    flows_of(&part, &mut flows);
                    allocations += part.totals.allocations;
                    errors += part.errors.iter().map(|error| error.count).sum::<u64>();
                    prop_assert_eq!(part.totals.live_bytes, whole.totals.live_bytes);
                    let live = |of: &Snapshot| of.sites.iter().map(|site| site.live.bytes).sum::<u64>();
                    let at_peak = |of: &Snapshot| of.sites.iter().map(|site| site.at_peak.bytes).sum::<u64>();
                    prop_assert_eq!((live(&part), at_peak(&part)), (live(&whole), at_peak(&whole)));
                }
            }
            let whole = model.snapshot();
            let mut expected = FxHashMap::default();
            flows_of(&whole, &mut expected);
            flows.retain(|_, sum: &mut Flows| *sum != Flows::default());
            expected.retain(|_, sum: &mut Flows| *sum != Flows::default());
            prop_assert_eq!(flows, expected);
            prop_assert_eq!(allocations, whole.totals.allocations);
            // Where frees are not seen, errors that were told before turn out to be none.
            if !whole.frees_unseen {
                prop_assert_eq!(errors, whole.errors.iter().map(|error| error.count).sum::<u64>());
            }
        }
    }

    #[test]
    fn a_site_where_nothing_happens_and_nothing_lives_is_left_out() {
        let amount = |objects| Amount { objects, bytes: objects * 8 };
        let site = |stack, live| SiteStats {
            key: SiteKey { stack: StackId(stack), task: 1, function: FunctionId(0), size: 8 },
            inherited: false,
            allocated: amount(5),
            freed: amount(5 - live),
            deallocated: amount(5 - live),
            live: amount(live),
            at_peak: Amount::default(),
            temporary: 0,
        };
        let whole = Snapshot { sites: vec![site(1, 0), site(2, 3)], ..Snapshot::default() };
        let mut sums = Sums::default();
        for (now_ns, expected) in [(10, vec![1, 2]), (20, vec![2])] {
            let mut part = whole.clone();
            sums.take_part(&mut part, now_ns);
            assert_eq!(part.sites.iter().map(|site| site.key.stack.0).collect::<Vec<_>>(), expected);
        }
        assert_eq!(sums.ended_ns(), 20);
    }
}
