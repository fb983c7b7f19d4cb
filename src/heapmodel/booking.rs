//! What each event changes: the live blocks, the figures of sites, the totals, the peak, the program's errors.

use super::blocks::{Block, MAX_SIZE};
use super::errors::Known;
use super::growth::{self, Stage};
use super::newest::Latest;
use super::reallocs::{OldBlock, Realloc};
use super::traits::Traits;
use super::{HeapModel, SiteKey};
use crate::base::addr::{Addr, FunctionId, StackId};
use crate::base::figures::{Amount, Totals};
use crate::base::sampling::weighted_bytes;
use crate::event::{Call, Preexisting};

/// The thread of blocks that were there before tracing began: threads are numbered from 1 on.
const NO_TASK: u32 = 0;

/// What the free of a block is charged to.
#[derive(Clone, Copy, Debug)]
pub(super) enum FreedBy<'a> {
    /// The call.
    Call(&'a Call),
    /// The realloc that has found another size for it.
    Realloc(&'a Call),
    /// Nobody: the free was not seen.
    Lost,
}

impl HeapModel {
    #[inline(always)]
    pub(super) fn allocate(&mut self, addr: Addr, size: u64, by: &Call) {
        let size = size.min(MAX_SIZE);
        let site = self.sites.intern(site_key(by, size, by.interval), self.figures.peak_epoch);
        let block = Block { size, site, birth: self.births + 1 };
        if let Some(old) = self.blocks.insert(addr, block) {
            self.displace(addr, old);
        }
        self.ignored.born(addr, block.birth, by.task.serial);
        self.book(addr, block, by);
    }

    /// Books the birth of a block that is in its table already.
    #[inline(always)]
    pub(super) fn book(&mut self, addr: Addr, block: Block, by: &Call) {
        let size = block.size;
        let bytes = weighted_bytes(size, by.interval);
        self.births = block.birth;
        self.birth_times.note(block.birth, self.now_ns);
        self.newest.set(by.task.serial, Latest { addr, size, stack: by.stack });
        count(&mut self.figures.sizes, size);
        if let Some(site) = self.sites.get_mut(block.site) {
            site.keep_peak_figures(self.figures.peak_epoch);
            site.add_traits(Traits::of(by));
            add(&mut site.allocated, size);
            add(&mut site.live, size);
        }
        let totals = &mut self.figures.totals;
        totals.allocations += 1;
        totals.bytes_allocated = totals.bytes_allocated.wrapping_add(bytes);
        // Where blocks are sampled, mappings are recorded without being picked.
        if by.interval > 0 || self.figures.sample_interval > 0 {
            totals.counted_allocations += 1;
            totals.counted_bytes = totals.counted_bytes.saturating_add(size);
        }
        totals.live_blocks += 1;
        totals.live_bytes = totals.live_bytes.wrapping_add(bytes);
        if self.tests.born(block.birth, by.task.serial, bytes, self.figures.totals.live_blocks) {
            self.forget_owners();
        }
        self.figures.note_peak(self.now_ns);
        self.add_timeline_point();
    }

    /// A block from before the stream began. It counts as one that came over a fork: live, and never allocated.
    pub(super) fn take_existing(&mut self, addr: Addr, size: u64) {
        let size = size.min(MAX_SIZE);
        let key = SiteKey { stack: StackId::EXISTING, task: NO_TASK, function: FunctionId(0), size, interval: 0 };
        let id = self.sites.intern_inherited(key, self.figures.peak_epoch);
        // older than all that are born
        if let Some(old) = self.blocks.insert(addr, Block { size, site: id, birth: 0 }) {
            self.release(addr, old, FreedBy::Lost);
        }
        if let Some(site) = self.sites.get_mut(id) {
            site.keep_peak_figures(self.figures.peak_epoch);
            add(&mut site.live, size);
        }
        let totals = &mut self.figures.totals;
        totals.live_blocks += 1;
        totals.live_bytes = totals.live_bytes.wrapping_add(size);
        self.figures.note_peak(self.now_ns);
        self.add_timeline_point();
    }

    /// Books a block whose address is not known, and its end.
    pub(super) fn allocate_unseen(&mut self, size: u64, by: &Call) {
        // in the first page, where nothing can be mapped
        const NOWHERE: Addr = Addr(1);
        let newest = self.newest.of(by.task.serial);
        self.allocate(NOWHERE, size, by);
        // nothing says that it was temporary
        match newest {
            Some(newest) => self.newest.set(by.task.serial, newest),
            None => self.newest.forget(by.task.serial),
        }
        if let Some(block) = self.blocks.free(NOWHERE, StackId::EMPTY) {
            self.figures.anomalies.lost += 1;
            self.release(NOWHERE, block, FreedBy::Lost);
            self.add_timeline_point();
        }
    }

    /// The allocator has handed out an address where the model holds a block: that one was freed by a realloc that has
    /// not returned yet, or by what we did not see.
    #[cold]
    #[inline(never)]
    fn displace(&mut self, addr: Addr, block: Block) {
        if let Some(by) = self.reallocs.lose_address(addr, block.birth) {
            self.release(addr, block, FreedBy::Realloc(&by));
        } else {
            // Another thread may have freed it just before the fork, or while nobody looked.
            let figures = &mut self.figures;
            let is_doubtful = block.birth <= figures.inherited_births.max(self.gap.births)
                && self.preexisting == Preexisting::Unknown;
            if !is_doubtful && (figures.frees_unseen || !self.errors.explain(addr, block)) {
                figures.unseen_frees += 1;
                figures.frees_unseen = true;
            }
            self.release(addr, block, FreedBy::Lost);
        }
    }

    #[inline(always)]
    pub(super) fn free(&mut self, addr: Addr, internal: bool, given_size: Option<u64>, by: &Call) {
        if let Some(block) = self.blocks.free(addr, by.stack) {
            let contradicts = self.release(addr, block, FreedBy::Call(by));
            if contradicts || given_size.is_some_and(|given| given != block.size) {
                self.errors.judge_free(addr, block, self.sites.get(block.site), given_size, by);
            }
            self.add_timeline_point();
        } else if !internal && !self.judge_dead(addr, by) {
            self.figures.totals.preexisting_frees += 1;
        }
    }

    pub(super) fn begin_realloc(&mut self, old: Addr, by: Call) -> Realloc {
        let state = if let Some(block) = self.blocks.get(old) {
            let _ = self.errors.judge_family(old, block, self.sites.get(block.site), &by);
            OldBlock::Held { birth: block.birth }
        } else {
            OldBlock::Unknown { preexisting: !self.judge_dead(old, &by) }
        };
        Realloc { old, by, state }
    }

    pub(super) fn end_realloc(&mut self, begun: &Realloc, new: Addr, size: u64, by: &Call) {
        if new.is_null() && size > 0 {
            self.figures.totals.failed += 1;
            return;
        }
        let mut resized = None;
        let known = match begun.state {
            // Unless another thread has freed it meanwhile, and its address may be another block's.
            OldBlock::Held { birth } => match self.blocks.get(begun.old) {
                Some(block) if block.birth == birth => {
                    self.blocks.free(begun.old, by.stack);
                    self.release(begun.old, block, FreedBy::Realloc(by));
                    resized = Some(block);
                    true
                }
                _ => false,
            },
            OldBlock::AddressReused => true,
            OldBlock::Unknown { preexisting } => {
                self.figures.totals.preexisting_frees += u64::from(preexisting);
                false
            }
        };
        if new.is_null() {
            self.add_timeline_point();
        } else {
            if known {
                self.figures.note_realloc(size, by.interval);
            }
            self.allocate(new, size, by);
            if let Some(old) = resized.filter(|old| old.size < size && self.figures.records_all()) {
                let alloc_stack = self.sites.get(old.site).map(|site| site.stack());
                let old = Stage { addr: begun.old, birth: old.birth, bytes: old.size };
                if let Some(stack) = alloc_stack.filter(|stack| *stack != by.stack) {
                    self.growths.note_outgrown(stack);
                }
                self.growths.note_realloc(by.stack, old, Stage { addr: new, birth: self.births, bytes: size });
            }
        }
    }

    /// Judges the free of what is not live. Returns whether it is an error; else the block is from before.
    #[cold]
    #[inline(never)]
    fn judge_dead(&mut self, addr: Addr, by: &Call) -> bool {
        let Self { blocks, sites, paused, preexisting, .. } = self;
        let known = Known { blocks, sites, is_paused: *paused, may_be_older: *preexisting == Preexisting::Unknown };
        self.errors.judge_dead(addr, by, known)
    }

    /// Books the end of a block that is not live any more in the table. Returns whether the call contradicts what is
    /// known of it.
    #[inline(always)]
    fn release(&mut self, addr: Addr, block: Block, by: FreedBy<'_>) -> bool {
        self.capacities.end(addr, block);
        self.give_back(addr, block, true, by)
    }

    /// Books that `block`, or so many bytes of it, is given back; it `ends` with the last of them. Returns whether the
    /// call contradicts what is known of it.
    #[inline(always)]
    pub(super) fn give_back(&mut self, addr: Addr, block: Block, ends: bool, by: FreedBy<'_>) -> bool {
        let (objects, size, records_all) = (u64::from(ends), block.size, self.figures.records_all());
        let Some(site) = self.sites.get_mut(block.site) else { return false };
        let (interval, charged_before) = (site.interval(), site.charged());
        let bytes = weighted_bytes(size, interval);
        let totals = &mut self.figures.totals;
        totals.live_blocks = totals.live_blocks.wrapping_sub(objects);
        totals.live_bytes = totals.live_bytes.wrapping_sub(bytes);
        let inherited = block.birth <= self.figures.inherited_births;
        self.tests.died(block.birth, Amount { objects, bytes });
        site.keep_peak_figures(self.figures.peak_epoch);
        subtract(&mut site.live, objects, size);
        let alloc_stack = site.stack();
        let contradicts = matches!(by, FreedBy::Call(call) if site.traits().contradict(Traits::of(call)));
        if inherited {
            totals.preexisting_frees += objects;
        } else {
            totals.frees += objects;
            totals.bytes_freed = totals.bytes_freed.wrapping_add(bytes);
            let task = site.task();
            if ends {
                count(&mut self.figures.lifetimes, self.births.saturating_sub(block.birth));
                // when a free that was not seen has been is not known
                if let FreedBy::Call(call) | FreedBy::Realloc(call) = by {
                    let age = self.birth_times.age(block.birth, self.now_ns);
                    site.lifetime_ns = site.lifetime_ns.saturating_add(age);
                    if call.task.serial != task {
                        site.freed_elsewhere += 1;
                        if records_all {
                            self.arenas.note(alloc_stack, addr);
                        }
                    }
                }
            }
            if ends && let Some(newest) = self.newest.of(task) {
                if newest.addr == addr {
                    site.temporary += 1;
                    totals.temporary += 1;
                } else if newest.stack == alloc_stack && newest.size > size
                    && growth::is_next_capacity(size, newest.size)
                    && records_all
                    && matches!(by, FreedBy::Call(call) if call.task.serial == task)
                    // another thread may have freed it, and somebody got its address
                    && let Some(larger) = self.blocks.get(newest.addr)
                    && larger.size == newest.size
                    && self.sites.get(larger.site).is_some_and(|site| site.stack() == alloc_stack && site.task() == task)
                {
                    let larger = Stage { addr: newest.addr, birth: larger.birth, bytes: larger.size };
                    self.growths.note_exchange(alloc_stack, Stage { addr, birth: block.birth, bytes: size }, larger);
                }
            }
            let charged = match by {
                FreedBy::Call(call) | FreedBy::Realloc(call) if self.free_stacks => self.sites.intern_charged(
                    block.site,
                    charged_before,
                    site_key(call, size, interval),
                    self.figures.peak_epoch,
                ),
                _ => block.site,
            };
            if let Some(site) = self.sites.get_mut(charged) {
                add_to(&mut site.deallocated, objects, size);
            }
        }
        contradicts
    }

    #[inline(always)]
    pub(super) fn add_timeline_point(&mut self) {
        let Totals { live_bytes, allocations, .. } = self.figures.totals;
        self.timeline.record(self.now_ns, live_bytes, allocations);
    }
}

pub(super) fn site_key(by: &Call, size: u64, interval: u64) -> SiteKey {
    SiteKey { stack: by.stack, task: by.task.serial, function: by.function, size, interval }
}

/// Sums of sizes wrap rather than fail: only made-up sizes can make them so large.
fn add(amount: &mut Amount, bytes: u64) {
    add_to(amount, 1, bytes);
}

fn add_to(amount: &mut Amount, objects: u64, bytes: u64) {
    amount.objects += objects;
    amount.bytes = amount.bytes.wrapping_add(bytes);
}

fn subtract(amount: &mut Amount, objects: u64, bytes: u64) {
    amount.objects = amount.objects.wrapping_sub(objects);
    amount.bytes = amount.bytes.wrapping_sub(bytes);
}

/// Counts a value in its log2 bucket, as [`crate::base::figures::Histograms`] defines them.
pub(super) fn count(buckets: &mut [u64; 65], value: u64) {
    buckets[bucket_of(value)] += 1;
}

/// Always less than 65.
pub(super) fn bucket_of(value: u64) -> usize {
    value.checked_ilog2().map_or(0, |log| log as usize + 1)
}
