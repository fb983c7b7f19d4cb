//! What is told of a heap of which only sampled blocks are recorded: each counts as many times as it stands for.

use super::view::Figures;
use super::{HeapModel, SiteStats};
use crate::base::figures::{Histograms, Totals};
use crate::base::sampling::weight;

impl HeapModel {
    /// A recorded block was resized, or moved: into one of `size` bytes, picked with `interval`.
    pub(super) fn note_realloc(&mut self, size: u64, interval: u64) {
        self.totals.reallocations += 1;
        if interval > 0 {
            self.sampled_reallocations += weight(size, interval);
        }
    }
}

impl Figures {
    /// The sums; where blocks are sampled, as far as all `sites` tell.
    pub(super) fn totals_of<I: Iterator<Item = SiteStats>>(&self, sites: impl Fn() -> I) -> Totals {
        if self.sample_interval == 0 {
            return self.totals;
        }
        let count = |blocks: fn(&SiteStats) -> u64| {
            let weighted = |site: SiteStats| blocks(&site) as f64 * site.key.weight();
            sites().map(weighted).sum::<f64>().round() as u64
        };
        Totals {
            allocations: count(|site| site.allocated.objects),
            frees: count(|site| site.freed.objects),
            live_blocks: count(|site| site.live.objects),
            peak_blocks: count(|site| site.at_peak.objects),
            temporary: count(|site| site.temporary),
            reallocations: self.sampled_reallocations.round() as u64,
            ..self.totals
        }
    }

    /// The histograms; where blocks are sampled, as far as `sites` tell: not how long blocks lived, as that is counted
    /// in allocations.
    pub(super) fn histograms_of(&self, sites: impl Iterator<Item = SiteStats>) -> Histograms {
        if self.sample_interval == 0 {
            return Histograms { size: histogram(&self.sizes), lifetime: histogram(&self.lifetimes) };
        }
        let mut sizes = [0.0; 65];
        for site in sites {
            if let Some(bucket) = sizes.get_mut(super::booking::bucket_of(site.key.size)) {
                *bucket += site.allocated.objects as f64 * site.key.weight();
            }
        }
        Histograms { size: histogram(&sizes.map(|blocks| blocks.round() as u64)), lifetime: Vec::new() }
    }
}

/// The buckets up to the last one that is not empty.
fn histogram(buckets: &[u64; 65]) -> Vec<u64> {
    let end = buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    buckets.iter().take(end).copied().collect()
}
