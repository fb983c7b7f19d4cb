//! An immutable view of the model at one moment, which shares its tables with it.
//!
//! To make one takes the tracer thread some hundred reference counts, whatever the number of blocks. What the model
//! changes afterwards it copies first, piece by piece: 256 sites, or 1/256 of the blocks. The figures are summed up on
//! the thread that wants them.

use super::blocks::Blocks;
use super::booking::count;
use super::figures::Figures;
use super::marks::Mark;
use super::ranges::Mapping;
use super::sites::Sites;
use super::timeline::Timeline;
use super::{HeapError, HeapModel, LiveBlock, SiteId, SiteStats, SiteTable, Snapshot, live_block};
use crate::base::addr::{Addr, StackId};
use crate::base::figures::{Amount, Capacity, CrossThreadFreed, Growth, TimelinePoint, Totals};
use crate::event::MarkName;
use rustc_hash::FxHashMap;

/// See the module's head.
#[derive(Clone, Debug)]
pub struct HeapView {
    sites: Sites,
    /// If it was asked for.
    blocks: Option<Blocks>,
    /// What the program has mapped by itself, if blocks were asked for.
    mapped: Vec<Mapping>,
    figures: Figures,
    errors: Vec<HeapError>,
    growths: Vec<(StackId, Growth)>,
    capacities: Vec<(StackId, Capacity)>,
    stranded: Vec<(StackId, CrossThreadFreed)>,
    timeline: Timeline,
    marks: Vec<Mark>,
}

impl HeapModel {
    /// A view of this moment. `with_blocks`: single blocks are wanted, too, for [`HeapView::live_blocks`].
    pub fn view(&mut self, with_blocks: bool) -> HeapView {
        HeapView {
            sites: self.sites.view(),
            blocks: with_blocks.then(|| self.blocks.view()),
            mapped: if with_blocks { self.mapped.ranges.mappings() } else { Vec::new() },
            figures: self.figures(),
            errors: self.errors.list(),
            growths: self.growths.list(),
            capacities: self.capacities.list(),
            stranded: self.arenas.list(),
            timeline: self.timeline.clone(),
            marks: self.marks().to_vec(),
        }
    }

    /// There are no more events: gives back what only these need.
    pub fn end(&mut self) {
        self.sites.end();
    }

    /// All figures now. Sites and errors are sorted; equal event streams give equal snapshots.
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = snapshot(&self.sites, &self.figures(), self.errors.list(), &self.timeline);
        let (growths, capacities) = (self.growths.list(), self.capacities.list());
        Snapshot { growths, capacities, stranded: self.arenas.list(), ..snapshot }
    }

    /// The figures, with the program's errors in numbers.
    fn figures(&self) -> Figures {
        let mut figures = self.figures;
        figures.anomalies = self.anomalies();
        figures
    }
}

impl HeapView {
    /// All figures of its moment, as [`HeapModel::snapshot`] gave them then.
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = snapshot(&self.sites, &self.figures, self.errors.clone(), &self.timeline);
        let (growths, capacities) = (self.growths.clone(), self.capacities.clone());
        Snapshot { growths, capacities, stranded: self.stranded.clone(), ..snapshot }
    }

    /// The stacks of [`Self::snapshot`]'s sites and errors, in no order, some more than once.
    pub fn stacks(&self) -> Vec<StackId> {
        let errors = self.errors.iter().filter(|error| self.figures.tells(error)).flat_map(HeapError::stacks);
        self.sites().map(|site| site.key.stack).chain(errors).collect()
    }

    /// The figures of all sites, in no order.
    pub fn sites(&self) -> impl Iterator<Item = SiteStats> {
        self.sites.stats(self.figures.peak_epoch)
    }

    /// One byte in so many is sampled on average; 0: every block is recorded.
    pub fn sample_interval(&self) -> u64 {
        self.figures.sample_interval
    }

    /// The sums. Where blocks are sampled, their numbers are those of the sample.
    pub fn totals(&self) -> Totals {
        self.figures.totals
    }

    /// The marks that had been set, the oldest first.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The latest mark of this name.
    pub fn mark(&self, name: &MarkName) -> Option<&Mark> {
        self.marks.iter().rev().find(|mark| mark.name == *name)
    }

    /// All live blocks, in no order, without what the program has mapped by itself; none if they were not asked for.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> {
        let inherited = self.figures.inherited_births;
        self.blocks.iter().flat_map(Blocks::iter).map(move |(addr, block)| live_block(addr, &block, inherited))
    }

    /// Which allocation the live block at this address was, counted from 1. None if there is no such block, or blocks
    /// were not asked for.
    pub fn birth(&self, addr: Addr) -> Option<u64> {
        self.blocks.as_ref()?.get(addr).map(|block| block.birth)
    }

    /// The figures of a site; None for an id of another model.
    pub fn site(&self, id: SiteId) -> Option<SiteStats> {
        self.sites.stats_of(id.0, self.figures.peak_epoch)
    }

    /// The blocks that are live and were born later than `births` others: as a snapshot in which nothing else ever
    /// happened. None if single blocks were not asked for.
    pub fn survivors(&self, births: u64) -> Option<Snapshot> {
        let mut by_site: FxHashMap<u32, Amount> = FxHashMap::default();
        let mut figures = self.figures.of_survivors();
        let blocks = self.blocks.as_ref()?.iter().map(|(_, block)| (block.birth, block.site, block.size));
        let mapped = self.mapped.iter().map(|mapping| (mapping.birth, mapping.site, mapping.bytes));
        for (_, site, bytes) in blocks.chain(mapped).filter(|(birth, ..)| *birth > births) {
            let amount = by_site.entry(site).or_default();
            *amount = amount.plus(Amount { objects: 1, bytes });
            count(&mut figures.sizes, bytes);
        }
        let stats = |(site, live): (&u32, &Amount)| {
            let SiteStats { key, inherited, .. } = self.site(SiteId(*site))?;
            let (none, live) = (Amount::default(), *live);
            let allocated = if inherited { none } else { live };
            Some(SiteStats {
                key,
                inherited,
                allocated,
                freed: none,
                deallocated: none,
                live,
                at_peak: live,
                temporary: 0,
                lifetime_ns: 0,
                freed_elsewhere: 0,
            })
        };
        let mut sites: Vec<SiteStats> = by_site.iter().filter_map(stats).collect();
        sites.sort_unstable_by_key(SiteStats::order);
        let weighted = |amount: Amount, site: &SiteStats| amount.times(site.key.weight());
        let live = sites.iter().fold(Amount::default(), |sum, site| sum.plus(weighted(site.live, site)));
        let allocated = sites.iter().fold(Amount::default(), |sum, site| sum.plus(weighted(site.allocated, site)));
        figures.totals = Totals {
            allocations: allocated.objects,
            bytes_allocated: allocated.bytes,
            live_blocks: live.objects,
            live_bytes: live.bytes,
            peak_blocks: live.objects,
            peak_bytes: live.bytes,
            ..Totals::default()
        };
        Some(collect(sites.into_iter().collect(), &figures, Vec::new(), Vec::new()))
    }
}

fn snapshot(sites: &Sites, figures: &Figures, errors: Vec<HeapError>, timeline: &Timeline) -> Snapshot {
    collect(sites.table(figures.peak_epoch), figures, errors, timeline.points())
}

fn collect(sites: SiteTable, figures: &Figures, mut errors: Vec<HeapError>, timeline: Vec<TimelinePoint>) -> Snapshot {
    errors.retain(|error| figures.tells(error));
    errors.sort_unstable_by_key(|error| (error.kind, error.stack, error.alloc_stack, error.function));
    Snapshot {
        totals: figures.totals_of(|| sites.iter()),
        histograms: figures.histograms_of(sites.iter()),
        sites,
        timeline,
        growths: Vec::new(),
        capacities: Vec::new(),
        stranded: Vec::new(),
        errors,
        anomalies: figures.anomalies,
        frees_unseen: figures.frees_unseen,
        unseen_frees: figures.unseen_frees,
        sample_interval: figures.sample_interval,
    }
}
