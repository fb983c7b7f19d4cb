//! The interned sites and their figures.

use super::firsts::Firsts;
use super::traits::Traits;
use super::{SiteKey, SiteStats, SiteTable};
use crate::base::addr::{FunctionId, StackId};
use crate::base::chunk::Chunk;
use crate::base::figures::Amount;
use crate::base::prefetch::prefetch;
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// So many sites have exact sizes on one stack of one thread; see [`SiteKey::size`].
const EXACT_SIZES: u8 = 64;

/// So many are copied when one changes that a view still has.
const CHUNK: usize = 256;

/// So many sites are found without a look into the table of all, at first and at most. Powers of two.
const FIRST_LATEST: usize = 1 << 8;
const MAX_LATEST: usize = 1 << 15;

/// So many times a place was looked at in vain, on average, when there are to be more.
const MANY_TIMES: usize = 8;

/// The id of no site.
const NONE: u32 = u32::MAX;

/// A site: [`SiteKey`] and [`SiteStats`]. The first 64 bytes, one line of the processor's cache, hold the key and all
/// that a free changes in the site that it is charged to.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct Site {
    size: u64,
    interval: u64,
    stack: StackId,
    task: u32,
    function: FunctionId,
    traits: Traits,
    /// See [`Self::charged`]; [`NONE`] at first.
    charged: u32,
    pub(super) deallocated: Amount,
    pub(super) temporary: u64,
    /// How many were freed by another thread.
    pub(super) freed_elsewhere: u64,
    /// The peak epoch that `at_peak` belongs to.
    peak_epoch: u64,
    pub(super) allocated: Amount,
    pub(super) live: Amount,
    at_peak: Amount,
    /// The sum of the lifetimes of the blocks that were freed.
    pub(super) lifetime_ns: u64,
}

const _: () = assert!(size_of::<Site>() == 128 && std::mem::offset_of!(Site, peak_epoch) == 64);

impl Site {
    pub(super) fn stack(&self) -> StackId {
        self.stack
    }

    /// See [`SiteKey::interval`].
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    pub(super) fn task(&self) -> u32 {
        self.task
    }

    pub(super) fn traits(&self) -> Traits {
        self.traits
    }

    /// The site that the free of one of this one's blocks was charged to last, if any, for [`Sites::intern_charged`].
    pub(super) fn charged(&self) -> u32 {
        self.charged
    }

    /// Must be called before `allocated` changes, for each block.
    #[inline(always)]
    pub(super) fn add_traits(&mut self, traits: Traits) {
        if self.traits != traits {
            self.traits = if self.allocated.objects == 0 { traits } else { self.traits.common(traits) };
        }
    }

    /// Must be called before `live` changes. `epoch` counts the maxima of the heap so far: if there was a new one since
    /// the last change, then what is live now was live then.
    #[inline(always)]
    pub(super) fn keep_peak_figures(&mut self, epoch: u64) {
        if self.peak_epoch != epoch {
            self.peak_epoch = epoch;
            self.at_peak = self.live;
        }
    }

    /// `inherited`: the site's blocks came over a fork.
    pub(super) fn stats(&self, epoch: u64, inherited: bool) -> SiteStats {
        SiteStats {
            inherited,
            key: self.key(),
            allocated: self.allocated,
            // What is not live any more; of inherited blocks neither was ever counted.
            freed: if inherited { Amount::default() } else { self.dead() },
            deallocated: self.deallocated,
            live: self.live,
            at_peak: if self.peak_epoch == epoch { self.at_peak } else { self.live },
            temporary: self.temporary,
            lifetime_ns: self.lifetime_ns,
            freed_elsewhere: self.freed_elsewhere,
        }
    }

    /// Forgets everything but what is live.
    fn inherit(&mut self) {
        self.allocated = Amount::default();
        self.deallocated = Amount::default();
        (self.temporary, self.lifetime_ns, self.freed_elsewhere) = (0, 0, 0);
    }

    /// What was allocated and is not live any more.
    fn dead(&self) -> Amount {
        let Self { allocated, live, .. } = self;
        Amount {
            objects: allocated.objects.wrapping_sub(live.objects),
            bytes: allocated.bytes.wrapping_sub(live.bytes),
        }
    }

    fn key(&self) -> SiteKey {
        SiteKey {
            stack: self.stack,
            task: self.task,
            function: self.function,
            size: self.size,
            interval: self.interval,
        }
    }

    #[inline(always)]
    fn is(&self, key: &SiteKey) -> bool {
        self.size == key.size && self.is_but_for_size(key)
    }

    #[inline(always)]
    fn is_but_for_size(&self, key: &SiteKey) -> bool {
        self.stack == key.stack
            && self.task == key.task
            && self.function == key.function
            && self.interval == key.interval
    }
}

/// The first site of a stack and thread, unless it is the only one of its stack.
#[derive(Clone, Copy, Debug)]
struct First {
    id: u32,
    /// How many of exact size the two have, up to [`EXACT_SIZES`].
    sizes: u8,
}

/// The site that was found for a key. That of a rounded size stands for many sizes, of which each is found so.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Or [`NONE`].
    id: u32,
    /// The key's exact size; of one that is larger nothing is kept.
    size: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sites {
    /// In pieces, so that growth copies nothing and wastes at most one piece.
    chunks: Vec<Chunk<Vec<Site>>>,
    /// The first site of each stack, but for some stacks that came out of their order. Most stacks have no other.
    of_stacks: Firsts,
    /// All that are not there.
    by_key: HashTable<u32>,
    /// What was found last for each value of [`place_of`]. At least twice as many values as there are sites, up to
    /// [`MAX_LATEST`], and more where that does not do: each size of a site that is rounded has its own.
    latest: Box<[Found]>,
    /// How often a look there was in vain, since it has as many places as now.
    in_vain: usize,
    /// By stack and thread, where there is more than what is in `of_stacks`.
    first: HashTable<First>,
    /// Sites with lower ids hold blocks that came over a fork, and get no new ones.
    inherited: u32,
}

impl Sites {
    /// The same for a view, which interns nothing.
    pub(super) fn view(&mut self) -> Self {
        Self {
            chunks: self.chunks.iter_mut().map(Chunk::share).collect(),
            of_stacks: Firsts::default(),
            by_key: HashTable::new(),
            latest: Box::default(),
            in_vain: 0,
            first: HashTable::new(),
            inherited: self.inherited,
        }
    }

    /// Has a site fetched, of which blocks are given back soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, id: u32) {
        if let Some(site) = self.get(id) {
            prefetch(&site.size);
            prefetch(&site.peak_epoch);
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u32) -> Option<&Site> {
        site(&self.chunks, id)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Site> {
        self.chunks.get_mut(id as usize / CHUNK)?.get_mut().get_mut(id as usize % CHUNK)
    }

    /// The figures of all sites.
    pub(super) fn stats(&self, epoch: u64) -> impl Iterator<Item = SiteStats> {
        (0..).zip(self.chunks.iter().flat_map(Chunk::get)).map(move |(id, site)| site.stats(epoch, id < self.inherited))
    }

    /// The same, sorted.
    pub(super) fn table(&self, epoch: u64) -> SiteTable {
        if self.stats(epoch).is_sorted_by_key(|site| site.order()) {
            return self.stats(epoch).collect();
        }
        let stats = |id: u32| self.stats_of(id, epoch);
        let stack = |id: u32| self.get(id).map_or(StackId::EMPTY, |site| site.stack);
        let mut order: Vec<(StackId, u32)> = (0..self.len()).map(|id| (stack(id), id)).collect();
        order.sort_unstable_by(|(stack_a, a), (stack_b, b)| {
            let rest = |id: u32| stats(id).as_ref().map(SiteStats::order);
            stack_a.cmp(stack_b).then_with(|| rest(*a).cmp(&rest(*b)))
        });
        order.into_iter().filter_map(|(_, id)| stats(id)).collect()
    }

    /// The figures of one site.
    pub(super) fn stats_of(&self, id: u32, epoch: u64) -> Option<SiteStats> {
        self.get(id).map(|site| site.stats(epoch, id < self.inherited))
    }

    /// No site is asked for any more: what finds them by their keys is given back.
    pub(super) fn end(&mut self) {
        self.of_stacks = Firsts::default();
        self.by_key = HashTable::new();
        self.first = HashTable::new();
        self.latest = Box::default();
    }

    /// The process is a copy of another one from now on: what was allocated before is that one's.
    pub(super) fn inherit(&mut self) {
        self.chunks.iter_mut().flat_map(Chunk::get_mut).for_each(Site::inherit);
        self.of_stacks = Firsts::default();
        self.by_key.clear();
        self.first.clear();
        self.latest = Box::default();
        self.inherited = self.len();
    }

    fn len(&self) -> u32 {
        let before = self.chunks.len().saturating_sub(1) * CHUNK;
        (before + self.chunks.last().map_or(0, |chunk| chunk.get().len())) as u32
    }

    /// The site of the key, made if there is none. `key.size` is the exact size; the site's may be rounded down.
    #[inline(always)]
    pub(super) fn intern(&mut self, key: SiteKey, epoch: u64) -> u32 {
        match self.latest.get(place_of(&key, self.latest.len())) {
            Some(found) if u64::from(found.size) == key.size && self.takes(found.id, &key) => found.id,
            _ => self.intern_slowly(key, epoch),
        }
    }

    /// The same for the free of a block of the site `of`, whose [`Site::charged`] is `before`: most are freed where the
    /// one before was.
    #[inline(always)]
    pub(super) fn intern_charged(&mut self, of: u32, before: u32, key: SiteKey, epoch: u64) -> u32 {
        if self.is_of(before, &key) {
            return before;
        }
        let id = self.intern(key, epoch);
        if let Some(site) = self.get_mut(of) {
            site.charged = id;
        }
        id
    }

    /// Whether this is the site of the key, and gets new blocks.
    #[inline(always)]
    fn is_of(&self, id: u32, key: &SiteKey) -> bool {
        id >= self.inherited && self.get(id).is_some_and(|site| site.is(key))
    }

    /// Whether this is a site of the key but for its size, and gets new blocks.
    #[inline(always)]
    fn takes(&self, id: u32, key: &SiteKey) -> bool {
        id >= self.inherited && self.get(id).is_some_and(|site| site.is_but_for_size(key))
    }

    /// The same for blocks that are live and were never allocated.
    pub(super) fn intern_inherited(&mut self, key: SiteKey, epoch: u64) -> u32 {
        let id = self.find(&key, key.place_hash()).unwrap_or_else(|| self.add(key, epoch));
        self.inherited = self.inherited.max(id + 1);
        id
    }

    #[inline(never)]
    fn intern_slowly(&mut self, key: SiteKey, epoch: u64) -> u32 {
        let id = self.find(&key, key.place_hash()).unwrap_or_else(|| self.add(key, epoch));
        let places = self.latest.len();
        self.in_vain += 1;
        let is_small = 2 * (self.len() - self.inherited) as usize >= places || self.in_vain >= MANY_TIMES * places;
        if places < MAX_LATEST && is_small {
            let places = (4 * places).clamp(FIRST_LATEST, MAX_LATEST);
            self.in_vain = 0;
            self.latest = vec![Found { id: NONE, size: 0 }; places].into_boxed_slice();
        }
        let place = place_of(&key, self.latest.len());
        if let (Some(latest), Ok(size)) = (self.latest.get_mut(place), u32::try_from(key.size)) {
            *latest = Found { id, size };
        }
        id
    }

    /// The site of a key that has none of its exact size.
    fn add(&mut self, mut key: SiteKey, epoch: u64) -> u32 {
        let first = self.of_stacks.get(key.stack);
        if first.is_none() && self.of_stacks.enter(key.stack, self.len()) {
            return self.push(&key, epoch);
        }
        let first_hash = hash(&(key.stack, key.task));
        let chunks = &self.chunks;
        let of_both = |id: u32| site(chunks, id).is_some_and(|site| site.stack == key.stack && site.task == key.task);
        let first = first.filter(|id| of_both(*id));
        let mut sizes = self.first.find_mut(first_hash, |first| of_both(first.id)).map(|first| &mut first.sizes);
        let is_in_table = sizes.is_some();
        let known = sizes.as_deref().copied().unwrap_or(u8::from(first.is_some()));
        // where a size matters for what a block stands for
        let exact_below = crate::base::sampling::certain_from(key.interval);
        let is_rounded = known >= EXACT_SIZES && key.size >= exact_below;
        if is_rounded {
            key.size = round_down(key.size);
            if let Some(id) = self.find(&key, key.place_hash()) {
                return id;
            }
        } else if let Some(sizes) = &mut sizes {
            **sizes = known.saturating_add(1);
        }
        let id = self.push(&key, epoch);
        let chunks = &self.chunks;
        if !is_in_table {
            let entry = First { id: first.unwrap_or(id), sizes: known + 1 };
            let rehash = |first: &First| site(chunks, first.id).map_or(0, |s| hash(&(s.stack, s.task)));
            self.first.insert_unique(first_hash, entry, rehash);
        }
        let rehash = |id: &u32| site(chunks, *id).map_or(0, |s| s.key().place_hash());
        self.by_key.insert_unique(key.place_hash(), id, rehash);
        id
    }

    fn find(&self, key: &SiteKey, hash: u64) -> Option<u32> {
        let is_it = |id: &u32| self.get(*id).is_some_and(|site| site.is(key));
        let first = self.of_stacks.get(key.stack).filter(is_it);
        first.or_else(|| self.by_key.find(hash, is_it).copied())
    }

    fn push(&mut self, key: &SiteKey, epoch: u64) -> u32 {
        let none = Amount::default();
        let site = Site {
            size: key.size,
            interval: key.interval,
            stack: key.stack,
            task: key.task,
            function: key.function,
            traits: Traits::UNKNOWN,
            charged: NONE,
            peak_epoch: epoch,
            allocated: none,
            deallocated: none,
            live: none,
            at_peak: none,
            temporary: 0,
            lifetime_ns: 0,
            freed_elsewhere: 0,
        };
        let before = self.chunks.len().saturating_sub(1) * CHUNK;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.get().len() < CHUNK => {
                let chunk = chunk.get_mut();
                chunk.push(site);
                (before + chunk.len() - 1) as u32
            }
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(site);
                self.chunks.push(Chunk::Own(chunk));
                ((self.chunks.len() - 1) * CHUNK) as u32
            }
        }
    }

    /// Bytes of heap that grow with the number of sites, with the copy that the larger table's growth would need.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let tables = [self.by_key.allocation_size(), self.first.allocation_size()];
        self.chunks.len() * CHUNK * size_of::<Site>()
            + self.chunks.capacity() * size_of::<Chunk<Vec<Site>>>()
            + self.of_stacks.memory()
            + tables.iter().sum::<usize>()
    }
}

impl SiteKey {
    /// How many blocks each recorded one stands for.
    pub fn weight(&self) -> f64 {
        crate::base::sampling::weight(self.size, self.interval)
    }

    /// hashbrown takes the lowest bits for the place and the highest seven for the tag. Two keys that differ in stack
    /// and thread only differ in it, too.
    const fn place_hash(&self) -> u64 {
        let call = (self.stack.0 as u64) << 32 | self.task as u64;
        let block = self.size ^ self.interval.rotate_left(32) ^ (self.function.0 as u64) << 48;
        let hash = (call ^ block.wrapping_mul(0xff51_afd7_ed55_8ccd)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    }
}

/// Where [`Sites::latest`], with so many places, may have the site of this key. Stacks that were met one after the
/// other are next to each other there, for one size, thread and function. Keys that differ in their interval alone
/// share a place.
#[inline(always)]
const fn place_of(key: &SiteKey, places: usize) -> usize {
    let rest = key.size ^ (key.task as u64) << 32 ^ (key.function.0 as u64) << 48;
    let rest = (rest.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    rest.wrapping_add(key.stack.0 as usize) & places.wrapping_sub(1)
}

#[inline(always)]
fn site(chunks: &[Chunk<Vec<Site>>], id: u32) -> Option<&Site> {
    chunks.get(id as usize / CHUNK)?.get().get(id as usize % CHUNK)
}

/// Eight steps to an octave: the highest four bits stay.
fn round_down(size: u64) -> u64 {
    let shift = size.checked_ilog2().unwrap_or(0).saturating_sub(3);
    size >> shift << shift
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    // FxHasher's multiplications leave the lowest bits poor; its finish rotates for that.
    hasher.finish()
}

#[cfg(test)]
mod tests;
