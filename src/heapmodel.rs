//! The heap as the event stream tells it: live blocks, per-site totals, the peak, errors.
//!
//! Pure. A *site* is what one thread does with blocks of one size on one stack through one function.
//!
//! An event costs a few hash look-ups, whatever the size of the heap. What was live at the peak is known exactly, without a
//! copy of anything: each new maximum begins a new *peak epoch*, and a site notes its live figures when it changes for the
//! first time in an epoch; sites that have not changed since have the same figures as at the peak.

mod blocks;
mod booking;
mod ignored;
mod recent;
mod sites;
mod timeline;

use crate::addr::{Addr, FunctionId, StackId};
use crate::event::HeapEvent;
use crate::figures::{Amount, FindingKind, Histograms, TimelinePoint, Totals};
use blocks::Blocks;
use booking::{ErrorKey, Limbo};
use ignored::Ignored;
use recent::RecentFrees;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use sites::Sites;
use std::collections::BTreeSet;
use timeline::Timeline;

/// So many freed blocks are remembered to tell double frees.
const RECENT_FREES: u32 = 1 << 16;

/// Identity of a site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SiteKey {
    /// The stack of the call.
    pub stack: StackId,
    /// Serial number of the calling thread ([`crate::addr::TaskId::serial`]).
    pub task: u32,
    /// The function called.
    pub function: FunctionId,
    /// Block size in bytes: exact for the first 64 sizes of a stack and thread, then rounded down to eighths of an octave.
    /// (The amounts are exact in any case.)
    pub size: u64,
}

/// The figures of one site; the fields are those of [`crate::profile::Sample`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see profile::Sample")]
pub struct SiteStats {
    pub key: SiteKey,
    pub inherited: bool,
    pub allocated: Amount,
    pub freed: Amount,
    pub deallocated: Amount,
    pub live: Amount,
    pub at_peak: Amount,
    pub temporary: u64,
}

/// An error of the program, see [`crate::profile::Finding`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "see profile::Finding")]
pub struct HeapError {
    pub kind: FindingKind,
    pub count: u64,
    pub block: Addr,
    pub size: Option<u64>,
    pub given_size: Option<u64>,
    pub offset: Option<u64>,
    pub align: Option<u64>,
    pub given_align: Option<u64>,
    pub function: FunctionId,
    pub task: u32,
    pub stack: StackId,
    pub alloc_stack: Option<StackId>,
    pub free_stack: Option<StackId>,
}

/// An immutable view of the model at one moment.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Snapshot {
    pub totals: Totals,
    pub sites: Vec<SiteStats>,
    pub timeline: Vec<TimelinePoint>,
    pub histograms: Histograms,
    /// Without frees of what was not live, if [`Self::frees_unseen`].
    pub errors: Vec<HeapError>,
    /// Whether blocks were freed by ways that are not seen: then blocks may be allocated so, too, and a free of what is not known
    /// to be live is no error.
    pub frees_unseen: bool,
    /// Frees of pointers that were never allocated, where that is an anomaly.
    pub unknown_frees: u64,
    pub double_frees: u64,
    pub mismatched_frees: u64,
    /// Addresses that were handed out while the model still held a block there, which no error of the program explains: frees that
    /// were not seen.
    pub lost: u64,
}

/// A live block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// Its address.
    pub addr: Addr,
    /// Its requested size in bytes.
    pub size: u64,
    /// Where it was allocated, for [`HeapModel::site`].
    pub site: SiteId,
    /// Whether it was inherited over a fork.
    pub inherited: bool,
}

/// An interned site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SiteId(pub u32);

/// Whether the process had blocks before the events began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preexisting {
    /// No: traced from the first instruction. To free an unknown pointer is an error.
    None,
    /// Nobody knows: attached. An unknown pointer is taken for a block from before.
    Unknown,
}

/// The heap of one process.
#[derive(Clone, Debug)]
pub struct HeapModel {
    preexisting: Preexisting,
    blind: bool,
    free_stacks: bool,
    blocks: Blocks,
    sites: Sites,
    recent: RecentFrees,
    timeline: Timeline,
    totals: Totals,
    /// Number of maxima of live bytes so far.
    epoch: u64,
    /// Number of allocations in the life of the process and its ancestors: the clock of lifetimes.
    births: u64,
    /// Blocks born up to here came with the fork.
    inherited_births: u64,
    sizes: [u64; 65],
    lifetimes: [u64; 65],
    /// Each thread's latest allocation. It may be dead; what is live at this address then is another thread's.
    newest: FxHashMap<u32, Addr>,
    limbo: Vec<Limbo>,
    errors: FxHashMap<ErrorKey, HeapError>,
    unknown_frees: u64,
    double_frees: u64,
    mismatched_frees: u64,
    lost: u64,
    /// What was freed though no block was live there: an allocator that does not notice hands such an address out twice, or that
    /// of the block that it lies in.
    freed_dead: BTreeSet<Addr>,
    /// Blocks born up to here may have been freed while nobody looked.
    gap_births: u64,
    frees_unseen: bool,
    ignored: Ignored,
}

impl HeapModel {
    /// An empty heap.
    pub fn new(preexisting: Preexisting) -> Self {
        Self {
            preexisting,
            free_stacks: true,
            blocks: Blocks::new(),
            sites: Sites::default(),
            recent: RecentFrees::new(RECENT_FREES),
            timeline: Timeline::new(),
            totals: Totals::default(),
            epoch: 0,
            births: 0,
            inherited_births: 0,
            sizes: [0; 65],
            lifetimes: [0; 65],
            newest: FxHashMap::default(),
            limbo: Vec::new(),
            errors: FxHashMap::default(),
            blind: false,
            unknown_frees: 0,
            double_frees: 0,
            mismatched_frees: 0,
            lost: 0,
            freed_dead: BTreeSet::new(),
            gap_births: 0,
            frees_unseen: false,
            ignored: Ignored::default(),
        }
    }

    /// Frees come without stacks (`--no-free-stacks`): charge `deallocated` to the allocating stack.
    pub fn without_free_stacks(mut self) -> Self {
        self.free_stacks = false;
        self
    }

    /// The model of a forked child: it has all blocks, and has allocated none of them. Its frees of inherited blocks count
    /// as `preexisting_frees`. `child` is the serial number of the child's thread, the copy of `parent`. `among_threads`: there
    /// were other threads, of whose latest calls nobody knows whether they came before the fork or after it.
    #[must_use]
    pub fn fork(&self, parent: u32, child: u32, among_threads: bool) -> Self {
        let mut copy = self.clone();
        if among_threads {
            copy.expect_unknown_frees();
        }
        copy.totals = Totals {
            live_blocks: self.totals.live_blocks,
            live_bytes: self.totals.live_bytes,
            peak_blocks: self.totals.live_blocks,
            peak_bytes: self.totals.live_bytes,
            ..Totals::default()
        };
        copy.epoch += 1;
        copy.inherited_births = copy.births;
        copy.sites.inherit();
        copy.timeline = Timeline::new();
        (copy.sizes, copy.lifetimes) = ([0; 65], [0; 65]);
        copy.ignored.fork(parent, child);
        copy.newest.clear();
        copy.errors.clear();
        (copy.unknown_frees, copy.double_frees, copy.mismatched_frees, copy.lost) = (0, 0, 0, 0);
        copy.limbo.retain_mut(|limbo| {
            let forking = limbo.by.task.serial == parent;
            limbo.by.task.serial = child;
            forking
        });
        copy
    }

    /// Takes one event, in the order in which they were reported.
    pub fn apply(&mut self, event: &HeapEvent) {
        match *event {
            HeapEvent::Allocated { block, size, by } => self.allocate(block, size, &by),
            HeapEvent::AllocatedUnseen { size, by } => self.allocate_unseen(size, &by),
            HeapEvent::Freed { block, internal, given_size, by } => self.free(block, internal, given_size, &by),
            HeapEvent::ReallocBegan { old, by } => {
                let limbo = self.begin_realloc(old, by);
                self.limbo.push(limbo);
            }
            HeapEvent::ReallocEnded { old, new, size, by } => {
                let limbo = match self.take_limbo(old, by.task.serial) {
                    Some(limbo) => limbo,
                    None => self.begin_realloc(old, by),
                };
                self.end_realloc(&limbo, new, size, &by);
            }
            HeapEvent::ReallocAbandoned { old, task } => {
                self.take_limbo(old, task.serial);
            }
            HeapEvent::Failed { .. } => self.totals.failed += 1,
        }
    }

    /// The sums so far. Cheap.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether there can be blocks whose allocation was not seen.
    pub fn may_have_unknown_blocks(&self) -> bool {
        self.preexisting == Preexisting::Unknown
    }

    /// Whether a block is known to live at `addr`.
    pub fn is_live(&self, addr: Addr) -> bool {
        self.blocks.get(addr).is_some()
    }

    /// There are blocks now whose allocation was not seen: frees of unknown blocks count as preexisting. Each of them may have
    /// got the address of one that was freed before.
    pub fn expect_unknown_frees(&mut self) {
        self.preexisting = Preexisting::Unknown;
        self.recent.clear();
    }

    /// For a moment nothing was seen: blocks may have come, and gone.
    pub fn note_gap(&mut self) {
        self.expect_unknown_frees();
        self.gap_births = self.births;
    }

    /// Whether allocations are not seen for a while: then no free of a block that is not known is an error.
    pub fn set_blind(&mut self, blind: bool) {
        self.blind = blind;
        self.expect_unknown_frees();
    }

    /// A view of everything but the single blocks. Sites and errors are sorted; equal event streams give equal views.
    pub fn snapshot(&self) -> Snapshot {
        let mut sites: Vec<_> = self.sites.stats(self.epoch).collect();
        sites.sort_unstable_by_key(|site| {
            (site.key.stack, site.key.task, site.key.function, site.key.size, site.inherited)
        });
        let is_certain = |error: &&HeapError| {
            !self.frees_unseen || !matches!(error.kind, FindingKind::DoubleFree | FindingKind::InvalidFree)
        };
        let mut errors: Vec<_> = self.errors.values().filter(is_certain).copied().collect();
        errors.sort_unstable_by_key(|error| (error.kind, error.stack, error.alloc_stack, error.function));
        Snapshot {
            totals: self.totals,
            sites,
            timeline: self.timeline.points(),
            histograms: Histograms { size: histogram(&self.sizes), lifetime: histogram(&self.lifetimes) },
            errors,
            frees_unseen: self.frees_unseen,
            unknown_frees: self.unknown_frees,
            double_frees: self.double_frees,
            mismatched_frees: self.mismatched_frees,
            lost: self.lost,
        }
    }

    /// All live blocks, in no order.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> {
        self.blocks.iter().map(|(addr, block)| LiveBlock {
            addr,
            size: block.size,
            site: SiteId(block.site),
            inherited: block.birth <= self.inherited_births,
        })
    }

    /// The figures of a site; None for an id of another model.
    pub fn site(&self, id: SiteId) -> Option<SiteStats> {
        self.sites.stats_of(id.0, self.epoch)
    }

    /// Bytes of heap that blocks and sites take, at the worst moment of growth.
    pub fn memory(&self) -> usize {
        self.blocks.memory() + self.sites.memory()
    }
}

/// The buckets up to the last one that is not empty.
fn histogram(buckets: &[u64; 65]) -> Vec<u64> {
    let end = buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    buckets.iter().take(end).copied().collect()
}

#[cfg(test)]
mod tests;
