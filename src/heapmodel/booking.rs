//! What each event changes: the live blocks, the figures of sites, the totals, the peak, the program's errors.

use super::blocks::{Block, MAX_SIZE};
use super::growth::{self, Stage};
use super::newest::Latest;
use super::traits::Traits;
use super::{HeapError, HeapModel, SiteKey};
use crate::allocators::Family;
use crate::base::addr::{Addr, FunctionId, StackId};
use crate::base::figures::{Amount, FindingKind, TimelinePoint, Totals};
use crate::base::sampling::weighted_bytes;
use crate::event::{Call, Preexisting};

/// A realloc between its entry and its return. The old block counts as live, but its address may be another's already.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRealloc {
    pub(super) old: Addr,
    pub(super) by: Call,
    state: OldBlock,
}

/// The thread of blocks that were there before tracing began: threads are numbered from 1 on.
const NO_TASK: u32 = 0;

/// How many addresses are remembered that were freed though no block was live there.
const MAX_FREED_DEAD: usize = 1 << 16;

/// For so many errors at most the block is looked for that a wrong pointer lies in: it takes a look at all blocks.
const MAX_LOOKED_UP: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OldBlock {
    /// The old block is live; it was born as this allocation.
    Held { birth: u64 },
    /// Its address was handed out to another thread: the block is freed, and counted so.
    AddressReused,
    /// It was not live at the beginning, and may be from before.
    Unknown { preexisting: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ErrorKey {
    pub(super) kind: FindingKind,
    pub(super) function: FunctionId,
    pub(super) stack: StackId,
    pub(super) alloc_stack: Option<StackId>,
}

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
        let site = self.sites.intern(site_key(by, size, by.interval), self.peak_epoch);
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
        count(&mut self.sizes, size);
        if let Some(site) = self.sites.get_mut(block.site) {
            site.keep_peak_figures(self.peak_epoch);
            site.add_traits(Traits::of(by));
            add(&mut site.allocated, size);
            add(&mut site.live, size);
        }
        let totals = &mut self.totals;
        totals.allocations += 1;
        totals.bytes_allocated = totals.bytes_allocated.wrapping_add(bytes);
        // Where blocks are sampled, mappings are recorded without being picked.
        if by.interval > 0 || self.sample_interval > 0 {
            totals.counted_allocations += 1;
            totals.counted_bytes = totals.counted_bytes.saturating_add(size);
        }
        totals.live_blocks += 1;
        totals.live_bytes = totals.live_bytes.wrapping_add(bytes);
        if self.tests.born(block.birth, by.task.serial, bytes, self.totals.live_blocks) {
            self.forget_owners();
        }
        self.note_peak();
        self.add_timeline_point();
    }

    /// A block from before the stream began. It counts as one that came over a fork: live, and never allocated.
    pub(super) fn take_existing(&mut self, addr: Addr, size: u64) {
        let size = size.min(MAX_SIZE);
        let key = SiteKey { stack: StackId::EXISTING, task: NO_TASK, function: FunctionId(0), size, interval: 0 };
        let id = self.sites.intern_inherited(key, self.peak_epoch);
        // older than all that are born
        if let Some(old) = self.blocks.insert(addr, Block { size, site: id, birth: 0 }) {
            self.release(addr, old, FreedBy::Lost);
        }
        if let Some(site) = self.sites.get_mut(id) {
            site.keep_peak_figures(self.peak_epoch);
            add(&mut site.live, size);
        }
        let totals = &mut self.totals;
        totals.live_blocks += 1;
        totals.live_bytes = totals.live_bytes.wrapping_add(size);
        self.note_peak();
        self.add_timeline_point();
    }

    /// More bytes than ever are live: this is the peak until there are more.
    fn note_peak(&mut self) {
        let totals = &mut self.totals;
        if totals.live_bytes > totals.peak_bytes {
            totals.peak_bytes = totals.live_bytes;
            totals.peak_blocks = totals.live_blocks;
            totals.peak_at_ns = self.now_ns;
            self.peak_epoch += 1;
        }
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
            self.anomalies.lost += 1;
            self.release(NOWHERE, block, FreedBy::Lost);
            self.add_timeline_point();
        }
    }

    /// The allocator has handed out an address where the model holds a block: that one was freed by a realloc that has
    /// not returned yet, or by what we did not see.
    #[cold]
    #[inline(never)]
    fn displace(&mut self, addr: Addr, block: Block) {
        let held = OldBlock::Held { birth: block.birth };
        let pending = self.pending.iter_mut().find(|pending| pending.old == addr && pending.state == held);
        if let Some(pending) = pending {
            pending.state = OldBlock::AddressReused;
            let by = pending.by;
            self.release(addr, block, FreedBy::Realloc(&by));
        } else {
            // Another thread may have freed it just before the fork, or while nobody looked.
            let is_doubtful =
                block.birth <= self.inherited_births.max(self.gap.births) && self.preexisting == Preexisting::Unknown;
            let end = Addr(addr.0.saturating_add(block.size.max(1)));
            let is_explained = || self.freed_dead.range(addr..end).next().is_some();
            if !is_doubtful && (self.frees_unseen || !is_explained()) {
                self.unseen_frees += 1;
                self.frees_unseen = true;
            }
            self.release(addr, block, FreedBy::Lost);
        }
    }

    #[inline(always)]
    pub(super) fn free(&mut self, addr: Addr, internal: bool, given_size: Option<u64>, by: &Call) {
        if let Some(block) = self.blocks.free(addr, by.stack) {
            let contradicts = self.release(addr, block, FreedBy::Call(by));
            if contradicts || given_size.is_some_and(|given| given != block.size) {
                self.judge_free(addr, block, given_size, by);
            }
            self.add_timeline_point();
        } else if !internal && !self.judge_dead(addr, by) {
            self.totals.preexisting_frees += 1;
        }
    }

    pub(super) fn begin_realloc(&mut self, old: Addr, by: Call) -> PendingRealloc {
        let state = if let Some(block) = self.blocks.get(old) {
            let _ = self.judge_family(old, block, &by);
            OldBlock::Held { birth: block.birth }
        } else {
            OldBlock::Unknown { preexisting: !self.judge_dead(old, &by) }
        };
        PendingRealloc { old, by, state }
    }

    pub(super) fn end_realloc(&mut self, pending: &PendingRealloc, new: Addr, size: u64, by: &Call) {
        if new.is_null() && size > 0 {
            self.totals.failed += 1;
            return;
        }
        let mut resized = None;
        let known = match pending.state {
            // Unless another thread has freed it meanwhile, and its address may be another block's.
            OldBlock::Held { birth } => match self.blocks.get(pending.old) {
                Some(block) if block.birth == birth => {
                    self.blocks.free(pending.old, by.stack);
                    self.release(pending.old, block, FreedBy::Realloc(by));
                    resized = Some(block);
                    true
                }
                _ => false,
            },
            OldBlock::AddressReused => true,
            OldBlock::Unknown { preexisting } => {
                self.totals.preexisting_frees += u64::from(preexisting);
                false
            }
        };
        if new.is_null() {
            self.add_timeline_point();
        } else {
            if known {
                self.note_realloc(size, by.interval);
            }
            self.allocate(new, size, by);
            if let Some(old) = resized.filter(|old| old.size < size && self.records_all()) {
                let alloc_stack = self.sites.get(old.site).map(|site| site.stack());
                let old = Stage { addr: pending.old, birth: old.birth, bytes: old.size };
                if let Some(stack) = alloc_stack.filter(|stack| *stack != by.stack) {
                    self.growths.note_outgrown(stack);
                }
                self.growths.note_realloc(by.stack, old, Stage { addr: new, birth: self.births, bytes: size });
            }
        }
    }

    /// Whether each block is recorded, so that it is known what follows what.
    const fn records_all(&self) -> bool {
        self.sample_interval == 0
    }

    /// The realloc of `old` that this thread has begun last.
    pub(super) fn take_pending_realloc(&mut self, old: Addr, task: u32) -> Option<PendingRealloc> {
        let at = self.pending.iter().rposition(|pending| pending.old == old && pending.by.task.serial == task)?;
        Some(self.pending.remove(at))
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
        let (objects, size, records_all) = (u64::from(ends), block.size, self.records_all());
        let Some(site) = self.sites.get_mut(block.site) else { return false };
        let (interval, charged_before) = (site.interval(), site.charged());
        let bytes = weighted_bytes(size, interval);
        let totals = &mut self.totals;
        totals.live_blocks = totals.live_blocks.wrapping_sub(objects);
        totals.live_bytes = totals.live_bytes.wrapping_sub(bytes);
        let inherited = block.birth <= self.inherited_births;
        self.tests.died(block.birth, Amount { objects, bytes });
        site.keep_peak_figures(self.peak_epoch);
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
                count(&mut self.lifetimes, self.births.saturating_sub(block.birth));
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
                    self.peak_epoch,
                ),
                _ => block.site,
            };
            if let Some(site) = self.sites.get_mut(charged) {
                add_to(&mut site.deallocated, objects, size);
            }
        }
        contradicts
    }

    /// Reports the free of a live block by a function of another family, or with another size or alignment than it was
    /// allocated with.
    #[cold]
    #[inline(never)]
    fn judge_free(&mut self, addr: Addr, block: Block, given_size: Option<u64>, by: &Call) {
        if !self.judge_family(addr, block, by) {
            self.judge_size(addr, block, given_size, by);
            self.judge_align(addr, block, by);
        }
    }

    /// Reports the free of a live block with another size than it was requested with.
    fn judge_size(&mut self, addr: Addr, block: Block, given_size: Option<u64>, by: &Call) {
        let Some(given) = given_size.filter(|given| *given != block.size) else { return };
        // operator new of no bytes asks malloc for one
        if (given, block.size) == (0, 1) {
            return;
        }
        let alloc_stack = self.sites.get(block.site).map(|site| site.stack());
        if alloc_stack == Some(StackId::EXISTING) {
            // what it asked for is not known
            return;
        }
        self.report(FindingKind::SizedDelete, addr, Some(block.size), by, alloc_stack, None);
        let key = ErrorKey { kind: FindingKind::SizedDelete, function: by.function, stack: by.stack, alloc_stack };
        if let Some(error) = self.errors.get_mut(&key) {
            error.given_size.get_or_insert(given);
        }
    }

    /// Reports the free of a live block by an operator delete of another alignment than operator new was asked for.
    fn judge_align(&mut self, addr: Addr, block: Block, by: &Call) {
        let Some(site) = self.sites.get(block.site) else { return };
        let (Some(align), Some(given)) = (site.traits().align(), by.align) else { return };
        if align == given {
            return;
        }
        let alloc_stack = Some(site.stack());
        self.report(FindingKind::AlignedDelete, addr, Some(block.size), by, alloc_stack, None);
        let key = ErrorKey { kind: FindingKind::AlignedDelete, function: by.function, stack: by.stack, alloc_stack };
        if let Some(error) = self.errors.get_mut(&key).filter(|error| error.count == 1) {
            let told = |align: u64| (align > 0).then_some(align);
            (error.align, error.given_align) = (told(align), told(given));
        }
    }

    /// The live block that `addr` lies in, but does not begin. Looks at all of them.
    fn block_around(&self, addr: Addr) -> Option<(Addr, Block)> {
        self.blocks.iter().find(|(start, block)| *start < addr && addr.0 - start.0 < block.size)
    }

    /// Reports the free of a live block by a function of another family, and whether it is one.
    fn judge_family(&mut self, addr: Addr, block: Block, by: &Call) -> bool {
        let Some(site) = self.sites.get(block.site) else { return false };
        if let (Some(family), Some(freeing)) = (site.traits().family, by.family)
            && family.mismatches(freeing)
        {
            let alloc_stack = Some(site.stack());
            self.anomalies.mismatched_frees += 1;
            self.report(FindingKind::MismatchedFree, addr, Some(block.size), by, alloc_stack, None);
            return true;
        }
        false
    }

    /// Reports the free of a block that is not live, if that is an error; else it is from before.
    #[cold]
    #[inline(never)]
    fn judge_dead(&mut self, addr: Addr, by: &Call) -> bool {
        if self.freed_dead.len() < MAX_FREED_DEAD {
            self.freed_dead.insert(addr);
        }
        if let Some(freed) = self.blocks.freed(addr).filter(|_| !self.paused) {
            self.anomalies.double_frees += 1;
            let alloc_stack = self.sites.get(freed.site).map(|site| site.stack());
            self.report(FindingKind::DoubleFree, addr, Some(freed.size), by, alloc_stack, Some(freed.free_stack));
            return true;
        }
        if self.preexisting == Preexisting::Unknown {
            return false;
        }
        self.anomalies.unknown_frees += 1;
        self.report(FindingKind::InvalidFree, addr, None, by, None, None);
        let key =
            ErrorKey { kind: FindingKind::InvalidFree, function: by.function, stack: by.stack, alloc_stack: None };
        let is_new = self.errors.get(&key).is_some_and(|error| error.count == 1);
        if is_new
            && self.errors.len() <= MAX_LOOKED_UP
            && let Some((start, block)) = self.block_around(addr)
            && let Some(error) = self.errors.get_mut(&key)
        {
            error.size = Some(block.size);
            error.offset = Some(addr.0 - start.0);
            error.alloc_stack = self.sites.get(block.site).map(|site| site.stack());
        }
        true
    }

    fn report(
        &mut self,
        kind: FindingKind,
        block: Addr,
        size: Option<u64>,
        by: &Call,
        alloc_stack: Option<StackId>,
        free_stack: Option<StackId>,
    ) {
        let key = ErrorKey { kind, function: by.function, stack: by.stack, alloc_stack };
        let error = HeapError {
            kind,
            count: 0,
            block,
            size,
            given_size: None,
            offset: None,
            align: None,
            given_align: None,
            function: by.function,
            operator: by.family.and_then(Family::deletes),
            task: by.task.serial,
            stack: by.stack,
            alloc_stack,
            free_stack,
        };
        self.errors.entry(key).or_insert(error).count += 1;
    }

    pub(super) fn add_timeline_point(&mut self) {
        let t_ns = self.now_ns;
        let Totals { live_bytes, allocations, .. } = self.totals;
        self.timeline.record(TimelinePoint { t_ns, live_bytes, allocations });
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
