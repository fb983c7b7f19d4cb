//! What happened between two snapshots of one heap: a part of a series of profiles.
//!
//! Allocations, frees and errors of a part are those of its period; what is live is what is live at its end. The peak
//! is told in the part in whose period it was reached: a later part has none, unless it went higher. So the sums of all
//! parts, with the live blocks of the last and the highest peak, are those of the last snapshot.

use super::{HeapError, SiteKey, SiteStats, Snapshot};
use crate::base::addr::StackId;
use crate::base::figures::{Amount, Anomalies, Capacity, FindingKind, Growth, Histograms, TimelinePoint, Totals};
use rustc_hash::FxHashMap;

/// What a snapshot had counted: what parts have told so far.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    sites: FxHashMap<(SiteKey, bool), Counts>,
    errors: FxHashMap<ErrorIdentity, u64>,
    growths: FxHashMap<StackId, Growth>,
    capacities: FxHashMap<StackId, Capacity>,
    totals: Totals,
    histograms: Histograms,
    anomalies: Anomalies,
}

/// Of a site, what only grows.
#[derive(Clone, Copy, Debug)]
struct Counts {
    allocated: Amount,
    freed: Amount,
    deallocated: Amount,
    temporary: u64,
    lifetime_ns: u64,
    freed_elsewhere: u64,
}

/// What makes two errors one: kind, stacks of the call, the allocation and the first free.
type ErrorIdentity = (FindingKind, StackId, Option<StackId>, Option<StackId>);

const fn identity(error: &HeapError) -> ErrorIdentity {
    (error.kind, error.stack, error.alloc_stack, error.free_stack)
}

impl Counted {
    /// All that `snapshot` has counted.
    pub fn by(snapshot: &Snapshot) -> Self {
        let counts = |site: SiteStats| {
            let SiteStats { allocated, freed, deallocated, temporary, lifetime_ns, freed_elsewhere, .. } = site;
            let counts = Counts { allocated, freed, deallocated, temporary, lifetime_ns, freed_elsewhere };
            ((site.key, site.inherited), counts)
        };
        let mut errors = FxHashMap::default();
        for error in &snapshot.errors {
            *errors.entry(identity(error)).or_default() += error.count;
        }
        Self {
            sites: snapshot.sites.iter().map(counts).collect(),
            errors,
            growths: snapshot.growths.iter().copied().collect(),
            capacities: snapshot.capacities.iter().copied().collect(),
            totals: snapshot.totals,
            histograms: snapshot.histograms.clone(),
            anomalies: snapshot.anomalies,
        }
    }

    /// How many allocations that were.
    pub const fn allocations(&self) -> u64 {
        self.totals.allocations
    }
}

impl Snapshot {
    /// What happened since `earlier`, of the same heap; times stay as they are. The timeline has the points behind
    /// `start_ns`. Sites where nothing happened and nothing lives are left out.
    #[must_use]
    pub fn since(&self, earlier: &Counted, start_ns: u64) -> Self {
        let before = &earlier.totals;
        let new_peak = self.totals.peak_bytes > before.peak_bytes;
        let sites = self.sites.iter().filter_map(|mut site| {
            if let Some(counted) = earlier.sites.get(&(site.key, site.inherited)) {
                site.allocated = site.allocated.minus(counted.allocated);
                site.freed = site.freed.minus(counted.freed);
                site.deallocated = site.deallocated.minus(counted.deallocated);
                site.temporary = site.temporary.saturating_sub(counted.temporary);
                site.lifetime_ns = site.lifetime_ns.saturating_sub(counted.lifetime_ns);
                site.freed_elsewhere = site.freed_elsewhere.saturating_sub(counted.freed_elsewhere);
            }
            if !new_peak {
                site.at_peak = Amount::default();
            }
            let amounts = [site.allocated, site.freed, site.deallocated, site.live, site.at_peak];
            amounts.iter().any(|amount| *amount != Amount::default()).then_some(site)
        });
        let mut known = earlier.errors.clone();
        let errors = self.errors.iter().filter_map(|error| {
            // Several may have one identity: what was counted is taken from the first of them.
            let counted = known.entry(identity(error)).or_default();
            let told = error.count.min(*counted);
            *counted -= told;
            (error.count > told).then_some(HeapError { count: error.count - told, ..*error })
        });
        let growths = self.growths.iter().filter_map(|&(stack, growth)| {
            let growth = growth.since(earlier.growths.get(&stack).copied().unwrap_or_default());
            (growth.growths + growth.outgrown > 0).then_some((stack, growth))
        });
        let capacities = self.capacities.iter().filter_map(|&(stack, capacity)| {
            let capacity = capacity.since(earlier.capacities.get(&stack).copied().unwrap_or_default());
            (capacity.blocks > 0).then_some((stack, capacity))
        });
        let timeline = self.timeline.iter().filter(|point| point.t_ns > start_ns);
        let timeline = timeline
            .map(|point| TimelinePoint { allocations: point.allocations.saturating_sub(before.allocations), ..*point });
        Self {
            totals: totals(&self.totals, before, new_peak),
            sites: sites.collect(),
            timeline: timeline.collect(),
            histograms: Histograms {
                size: difference(&self.histograms.size, &earlier.histograms.size),
                lifetime: difference(&self.histograms.lifetime, &earlier.histograms.lifetime),
            },
            growths: growths.collect(),
            capacities: capacities.collect(),
            // what is known of them is of all that was freed until the end
            stranded: Vec::new(),
            errors: errors.collect(),
            anomalies: self.anomalies.since(&earlier.anomalies),
            frees_unseen: self.frees_unseen,
            unseen_frees: self.unseen_frees,
            sample_interval: self.sample_interval,
        }
    }
}

const fn totals(now: &Totals, before: &Totals, new_peak: bool) -> Totals {
    let (peak_blocks, peak_bytes, peak_at_ns) =
        if new_peak { (now.peak_blocks, now.peak_bytes, now.peak_at_ns) } else { (0, 0, 0) };
    Totals {
        allocations: now.allocations.saturating_sub(before.allocations),
        frees: now.frees.saturating_sub(before.frees),
        reallocations: now.reallocations.saturating_sub(before.reallocations),
        bytes_allocated: now.bytes_allocated.saturating_sub(before.bytes_allocated),
        bytes_freed: now.bytes_freed.saturating_sub(before.bytes_freed),
        live_blocks: now.live_blocks,
        live_bytes: now.live_bytes,
        peak_blocks,
        peak_bytes,
        peak_at_ns,
        temporary: now.temporary.saturating_sub(before.temporary),
        failed: now.failed.saturating_sub(before.failed),
        preexisting_frees: now.preexisting_frees.saturating_sub(before.preexisting_frees),
        counted_allocations: now.counted_allocations.saturating_sub(before.counted_allocations),
        counted_bytes: now.counted_bytes.saturating_sub(before.counted_bytes),
    }
}

fn difference(now: &[u64], before: &[u64]) -> Vec<u64> {
    let before = before.iter().chain(std::iter::repeat(&0));
    now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::FunctionId;
    use proptest::prelude::*;

    /// What happens at one of a few sites in one period: allocated and freed blocks of its size, and whether the peak
    /// is there.
    type Step = (u32, u64, u64, bool);

    /// Cumulative snapshots of made-up periods.
    fn snapshots(periods: &[Vec<Step>]) -> Vec<Snapshot> {
        let mut now = Snapshot::default();
        let mut all = Vec::new();
        for period in periods {
            for &(number, allocated, freed, _) in period {
                let size = u64::from(number) * 8 + 8;
                let key = SiteKey {
                    stack: StackId(number / 2),
                    task: number % 2,
                    function: FunctionId(0),
                    size,
                    interval: 0,
                };
                let known = now.sites.iter().position(|site| site.key == key);
                let place = known.unwrap_or_else(|| {
                    let none = Amount::default();
                    now.sites.push(&SiteStats {
                        key,
                        inherited: false,
                        allocated: none,
                        freed: none,
                        deallocated: none,
                        live: none,
                        at_peak: none,
                        temporary: 0,
                        lifetime_ns: 0,
                        freed_elsewhere: 0,
                    });
                    now.sites.len() - 1
                });
                let blocks = |objects| Amount { objects, bytes: objects * size };
                let freed = freed.min(now.sites.row(place).live.objects + allocated);
                now.sites.edit(|sites| {
                    let site = &mut sites[place];
                    site.allocated = site.allocated.plus(blocks(allocated));
                    site.freed = site.freed.plus(blocks(freed));
                    site.deallocated = site.deallocated.plus(blocks(freed));
                    site.live = site.live.plus(blocks(allocated)).minus(blocks(freed));
                });
                now.totals.allocations += allocated;
                now.totals.bytes_allocated += allocated * size;
                now.totals.frees += freed;
                now.totals.live_bytes = now.sites.iter().map(|site| site.live.bytes).sum();
                if now.totals.live_bytes > now.totals.peak_bytes {
                    now.totals.peak_bytes = now.totals.live_bytes;
                    now.sites.change(|site| site.at_peak = site.live);
                }
            }
            all.push(now.clone());
        }
        all
    }

    fn sum(parts: &[Snapshot], of: fn(&SiteStats) -> Amount) -> FxHashMap<SiteKey, Amount> {
        let mut sums: FxHashMap<SiteKey, Amount> = FxHashMap::default();
        for site in parts.iter().flat_map(|part| part.sites.iter()) {
            let amount = sums.entry(site.key).or_default();
            *amount = amount.plus(of(&site));
        }
        sums.retain(|_, amount| *amount != Amount::default());
        sums
    }

    proptest! {
        #[test]
        fn parts_add_up_to_the_whole(
            periods in proptest::collection::vec(
                proptest::collection::vec((0u32..6, 0u64..5, 0u64..5, any::<bool>()), 0..6), 1..8)
        ) {
            let snapshots = snapshots(&periods);
            let mut told = Counted::default();
            let mut parts = Vec::new();
            for snapshot in &snapshots {
                parts.push(snapshot.since(&told, 0));
                told = Counted::by(snapshot);
            }
            let whole = std::slice::from_ref(snapshots.last().expect("a period"));
            prop_assert_eq!(sum(&parts, |site| site.allocated), sum(whole, |site| site.allocated));
            prop_assert_eq!(sum(&parts, |site| site.deallocated), sum(whole, |site| site.deallocated));
            let total = |of: fn(&Totals) -> u64| parts.iter().map(|part| of(&part.totals)).sum::<u64>();
            prop_assert_eq!(total(|totals| totals.allocations), whole[0].totals.allocations);
            prop_assert_eq!(total(|totals| totals.frees), whole[0].totals.frees);
            let last = parts.last().expect("a part");
            prop_assert_eq!(sum(std::slice::from_ref(last), |site| site.live), sum(whole, |site| site.live));
            let peak = parts.iter().max_by_key(|part| part.totals.peak_bytes).expect("a part");
            prop_assert_eq!(sum(std::slice::from_ref(peak), |site| site.at_peak), sum(whole, |site| site.at_peak));
            for part in &parts {
                let idle = |site: &SiteStats| site.allocated.objects + site.freed.objects + site.live.objects + site.at_peak.objects;
                prop_assert!(part.sites.iter().all(|site| idle(&site) > 0));
            }
        }
    }
}
