//! The program's errors, as its frees show them.

use super::blocks::{Block, Blocks};
use super::sites::{Site, Sites};
use crate::allocators::Family;
use crate::base::addr::{Addr, FunctionId, StackId};
use crate::base::figures::{Anomalies, FindingKind};
use crate::event::Call;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// How many addresses are remembered that were freed though no block was live there.
const MAX_FREED_DEAD: usize = 1 << 16;

/// For so many errors at most the block is looked for that a wrong pointer lies in: it takes a look at all blocks.
const MAX_LOOKED_UP: usize = 256;

/// An error of the program, see `profile::Finding`.
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
    pub operator: Option<&'static str>,
    pub task: u32,
    pub stack: StackId,
    pub alloc_stack: Option<StackId>,
    pub free_stack: Option<StackId>,
}

impl HeapError {
    /// All stacks that it names.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + use<> {
        [Some(self.stack), self.alloc_stack, self.free_stack].into_iter().flatten()
    }
}

/// Errors that are counted as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ErrorKey {
    kind: FindingKind,
    function: FunctionId,
    stack: StackId,
    alloc_stack: Option<StackId>,
}

/// What is known of blocks when a free is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'m> {
    pub(super) blocks: &'m Blocks,
    pub(super) sites: &'m Sites,
    /// Whether calls go unseen at the moment.
    pub(super) is_paused: bool,
    /// Whether there can be blocks whose allocation was not seen.
    pub(super) may_be_older: bool,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Errors {
    found: FxHashMap<ErrorKey, HeapError>,
    /// What was freed though no block was live there: an allocator that does not notice hands such an address out
    /// twice, or that of the block that it lies in.
    freed_dead: BTreeSet<Addr>,
    unknown_frees: u64,
    double_frees: u64,
    mismatched_frees: u64,
}

impl Errors {
    /// The process is a copy of the one that has made these errors.
    pub(super) fn fork(&mut self) {
        *self = Self { freed_dead: std::mem::take(&mut self.freed_dead), ..Self::default() };
    }

    /// All of them, in no order.
    pub(super) fn list(&self) -> Vec<HeapError> {
        self.found.values().copied().collect()
    }

    /// Adds their numbers to what was not seen.
    pub(super) const fn count_in(&self, missed: Anomalies) -> Anomalies {
        let Self { unknown_frees, double_frees, mismatched_frees, .. } = *self;
        Anomalies { unknown_frees, double_frees, mismatched_frees, ..missed }
    }

    /// Whether one of them is a reason why the address of a live block is handed out.
    pub(super) fn explain(&self, addr: Addr, block: Block) -> bool {
        let end = Addr(addr.0.saturating_add(block.size.max(1)));
        self.freed_dead.range(addr..end).next().is_some()
    }

    /// Reports the free of a live block by a function of another family, or with another size or alignment than it was
    /// allocated with.
    #[cold]
    #[inline(never)]
    pub(super) fn judge_free(
        &mut self,
        addr: Addr,
        block: Block,
        site: Option<&Site>,
        given_size: Option<u64>,
        by: &Call,
    ) {
        if !self.judge_family(addr, block, site, by) {
            self.judge_size(addr, block, site, given_size, by);
            self.judge_align(addr, block, site, by);
        }
    }

    /// Reports the free of a live block with another size than it was requested with.
    fn judge_size(&mut self, addr: Addr, block: Block, site: Option<&Site>, given_size: Option<u64>, by: &Call) {
        let Some(given) = given_size.filter(|given| *given != block.size) else { return };
        // operator new of no bytes asks malloc for one
        if (given, block.size) == (0, 1) {
            return;
        }
        let alloc_stack = site.map(Site::stack);
        if alloc_stack == Some(StackId::EXISTING) {
            // what it asked for is not known
            return;
        }
        self.report(FindingKind::SizedDelete, addr, Some(block.size), by, alloc_stack, None);
        let key = ErrorKey { kind: FindingKind::SizedDelete, function: by.function, stack: by.stack, alloc_stack };
        if let Some(error) = self.found.get_mut(&key) {
            error.given_size.get_or_insert(given);
        }
    }

    /// Reports the free of a live block by an operator delete of another alignment than operator new was asked for.
    fn judge_align(&mut self, addr: Addr, block: Block, site: Option<&Site>, by: &Call) {
        let Some(site) = site else { return };
        let (Some(align), Some(given)) = (site.traits().align(), by.align) else { return };
        if align == given {
            return;
        }
        let alloc_stack = Some(site.stack());
        self.report(FindingKind::AlignedDelete, addr, Some(block.size), by, alloc_stack, None);
        let key = ErrorKey { kind: FindingKind::AlignedDelete, function: by.function, stack: by.stack, alloc_stack };
        if let Some(error) = self.found.get_mut(&key).filter(|error| error.count == 1) {
            let told = |align: u64| (align > 0).then_some(align);
            (error.align, error.given_align) = (told(align), told(given));
        }
    }

    /// Reports the free of a live block by a function of another family, and whether it is one.
    pub(super) fn judge_family(&mut self, addr: Addr, block: Block, site: Option<&Site>, by: &Call) -> bool {
        let Some(site) = site else { return false };
        if let (Some(family), Some(freeing)) = (site.traits().family, by.family)
            && family.mismatches(freeing)
        {
            let alloc_stack = Some(site.stack());
            self.mismatched_frees += 1;
            self.report(FindingKind::MismatchedFree, addr, Some(block.size), by, alloc_stack, None);
            return true;
        }
        false
    }

    /// Reports the free of a block that is not live, if that is an error; else it is from before.
    pub(super) fn judge_dead(&mut self, addr: Addr, by: &Call, known: Known<'_>) -> bool {
        if self.freed_dead.len() < MAX_FREED_DEAD {
            self.freed_dead.insert(addr);
        }
        if let Some(freed) = known.blocks.freed(addr).filter(|_| !known.is_paused) {
            self.double_frees += 1;
            let alloc_stack = known.sites.get(freed.site).map(|site| site.stack());
            self.report(FindingKind::DoubleFree, addr, Some(freed.size), by, alloc_stack, Some(freed.free_stack));
            return true;
        }
        if known.may_be_older {
            return false;
        }
        self.unknown_frees += 1;
        self.report(FindingKind::InvalidFree, addr, None, by, None, None);
        let key =
            ErrorKey { kind: FindingKind::InvalidFree, function: by.function, stack: by.stack, alloc_stack: None };
        let is_new = self.found.get(&key).is_some_and(|error| error.count == 1);
        if is_new
            && self.found.len() <= MAX_LOOKED_UP
            && let Some((start, block)) = known.blocks.around(addr)
            && let Some(error) = self.found.get_mut(&key)
        {
            error.size = Some(block.size);
            error.offset = Some(addr.0 - start.0);
            error.alloc_stack = known.sites.get(block.site).map(|site| site.stack());
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
        self.found.entry(key).or_insert(error).count += 1;
    }
}
