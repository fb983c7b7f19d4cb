//! The figures of the whole heap, and what they say where only sampled blocks are recorded: each of these counts as
//! many times as it stands for.

use super::{HeapError, SiteStats};
use crate::base::figures::{Anomalies, FindingKind, Histograms, Totals};
use crate::base::sampling::weight;
use crate::event::Missed;

/// All of the model that has a fixed size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) totals: Totals,
    /// Number of maxima of live bytes so far.
    pub(super) peak_epoch: u64,
    pub(super) sample_interval: u64,
    /// Reallocs, as far as the recorded ones tell, where blocks are sampled.
    sampled_reallocations: f64,
    /// Blocks born up to here came with the fork.
    pub(super) inherited_births: u64,
    pub(super) sizes: [u64; 65],
    pub(super) lifetimes: [u64; 65],
    pub(super) anomalies: Anomalies,
    /// Whether blocks were freed by ways that are not seen, by this process or those that it is a copy of.
    pub(super) frees_unseen: bool,
    pub(super) unseen_frees: u64,
}

impl Figures {
    /// Those of a heap without blocks. `sample_interval`: see [`super::Snapshot::sample_interval`].
    pub(super) fn new(sample_interval: u64) -> Self {
        Self {
            totals: Totals::default(),
            peak_epoch: 0,
            sample_interval,
            sampled_reallocations: 0.0,
            inherited_births: 0,
            sizes: [0; 65],
            lifetimes: [0; 65],
            anomalies: Anomalies::default(),
            frees_unseen: false,
            unseen_frees: 0,
        }
    }

    /// Those of a copy of the process: it has the blocks, of which so many were born, and has done nothing.
    pub(super) fn fork(&self, births: u64) -> Self {
        let Totals { live_blocks, live_bytes, .. } = self.totals;
        Self {
            totals: Totals {
                live_blocks,
                live_bytes,
                peak_blocks: live_blocks,
                peak_bytes: live_bytes,
                ..Totals::default()
            },
            peak_epoch: self.peak_epoch + 1,
            inherited_births: births,
            frees_unseen: self.frees_unseen,
            ..Self::new(self.sample_interval)
        }
    }

    /// The same without sums that begin anew in [`super::HeapView::survivors`].
    pub(super) fn of_survivors(&self) -> Self {
        Self { sizes: [0; 65], lifetimes: [0; 65], sampled_reallocations: 0.0, ..*self }
    }

    /// Whether each block is recorded, so that it is known what follows what.
    pub(super) const fn records_all(&self) -> bool {
        self.sample_interval == 0
    }

    /// Begins a peak if more bytes than ever are live: this is the peak until there are more.
    #[inline]
    pub(super) fn note_peak(&mut self, now_ns: u64) {
        let totals = &mut self.totals;
        if totals.live_bytes > totals.peak_bytes {
            totals.peak_bytes = totals.live_bytes;
            totals.peak_blocks = totals.live_blocks;
            totals.peak_at_ns = now_ns;
            self.peak_epoch += 1;
        }
    }

    /// A recorded block was resized, or moved: into one of `size` bytes, picked with `interval`.
    pub(super) fn note_realloc(&mut self, size: u64, interval: u64) {
        self.totals.reallocations += 1;
        if interval > 0 {
            self.sampled_reallocations += weight(size, interval);
        }
    }

    /// Counts what was not seen, or not wholly.
    pub(super) fn count_missed(&mut self, missed: Missed) {
        let anomalies = &mut self.anomalies;
        match missed {
            Missed::Call => anomalies.lost += 1,
            Missed::Return => anomalies.abandoned_calls += 1,
            Missed::OuterFrames { cut } => {
                anomalies.truncated_stacks += 1;
                anomalies.cut_stacks += u64::from(cut);
            }
            Missed::UnwindRule => anomalies.guessed_stacks += 1,
        }
    }

    /// Whether an error is one, as far as is known: not where frees went unseen.
    pub(super) fn tells(&self, error: &HeapError) -> bool {
        !self.frees_unseen || !matches!(error.kind, FindingKind::DoubleFree | FindingKind::InvalidFree)
    }

    /// The sums; where blocks are sampled, as far as all `sites` tell.
    pub(super) fn totals_of<I: Iterator<Item = SiteStats>>(&self, sites: impl Fn() -> I) -> Totals {
        if self.records_all() {
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
        if self.records_all() {
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
