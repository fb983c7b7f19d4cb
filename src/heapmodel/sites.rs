//! The interned sites and their figures.

use super::traits::Traits;
use super::{SiteKey, SiteStats};
use crate::addr::{FunctionId, StackId};
use crate::chunk::Chunk;
use crate::figures::Amount;
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// So many sites have exact sizes on one stack of one thread; see [`SiteKey::size`].
const EXACT_SIZES: u8 = 64;

/// So many are copied when one changes that a view still has.
const CHUNK: usize = 256;

/// So many sites are found without a look into the table of all, at first and at most. Powers of two.
const FIRST_LATEST: usize = 1 << 8;
const MOST_LATEST: usize = 1 << 15;

/// The id of no site.
const NONE: u32 = u32::MAX;

/// A site: [`SiteKey`] and [`SiteStats`]. The first 64 bytes, one line of the processor's cache, hold the key and all that a free changes in the
/// site that it is charged to.
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

    /// Must be called before `live` changes. `epoch` counts the maxima of the heap so far: if there was a new one since the
    /// last change, then what is live now was live then.
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

    fn is(&self, key: &SiteKey) -> bool {
        self.size == key.size
            && self.stack == key.stack
            && self.task == key.task
            && self.function == key.function
            && self.interval == key.interval
    }
}

/// The first site of a stack and thread.
#[derive(Clone, Copy, Debug)]
struct First {
    id: u32,
    /// How many of exact size the two have, up to [`EXACT_SIZES`].
    sizes: u8,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sites {
    /// In pieces, so that growth copies nothing and wastes at most one piece.
    chunks: Vec<Chunk<Vec<Site>>>,
    by_key: HashTable<u32>,
    /// The site that was found last for each value of [`place_of`], or [`NONE`]. At least twice as many values as there are sites, up to [`MOST_LATEST`].
    latest: Box<[u32]>,
    /// By stack and thread.
    first: HashTable<First>,
    /// Sites with lower ids hold blocks that came over a fork, and get no new ones.
    inherited: u32,
}

impl Sites {
    /// The same for a view, which interns nothing.
    pub(super) fn view(&mut self) -> Self {
        Self {
            chunks: self.chunks.iter_mut().map(Chunk::share).collect(),
            by_key: HashTable::new(),
            latest: Box::default(),
            first: HashTable::new(),
            inherited: self.inherited,
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&Site> {
        site(&self.chunks, id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Site> {
        self.chunks.get_mut(id as usize / CHUNK)?.get_mut().get_mut(id as usize % CHUNK)
    }

    /// The figures of all sites.
    pub(super) fn stats(&self, epoch: u64) -> impl Iterator<Item = SiteStats> {
        (0..).zip(self.chunks.iter().flat_map(Chunk::get)).map(move |(id, site)| site.stats(epoch, id < self.inherited))
    }

    /// The figures of one site.
    pub(super) fn stats_of(&self, id: u32, epoch: u64) -> Option<SiteStats> {
        self.get(id).map(|site| site.stats(epoch, id < self.inherited))
    }

    /// The process is a copy of another one from now on: what was allocated before is that one's.
    pub(super) fn inherit(&mut self) {
        self.chunks.iter_mut().flat_map(Chunk::get_mut).for_each(Site::inherit);
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
        let latest = self.latest.get(place_of(&key, self.latest.len())).copied();
        match latest.filter(|id| self.is_of(*id, &key)) {
            Some(id) => id,
            None => self.intern_slowly(key, epoch),
        }
    }

    /// The same for the free of a block of the site `of`, whose [`Site::charged`] is `before`: most are freed where the one before was.
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
        if places < MOST_LATEST && 2 * (self.len() - self.inherited) as usize >= places {
            let places = (4 * places).clamp(FIRST_LATEST, MOST_LATEST);
            self.latest = vec![NONE; places].into_boxed_slice();
        }
        if let Some(latest) = self.latest.get_mut(place_of(&key, self.latest.len())) {
            *latest = id;
        }
        id
    }

    /// The site of a key that has none of its exact size.
    fn add(&mut self, mut key: SiteKey, epoch: u64) -> u32 {
        let first_hash = hash(&(key.stack, key.task));
        let chunks = &self.chunks;
        let of_both =
            |first: &First| site(chunks, first.id).is_some_and(|s| s.stack == key.stack && s.task == key.task);
        // where a size matters for what a block stands for
        let exact_below = crate::sampling::certain_from(key.interval);
        let first = self.first.find_mut(first_hash, of_both);
        let is_first = first.is_none();
        if let Some(first) = first {
            if first.sizes >= EXACT_SIZES && key.size >= exact_below {
                key.size = round_down(key.size);
                if let Some(id) = self.find(&key, key.place_hash()) {
                    return id;
                }
            } else {
                first.sizes = first.sizes.saturating_add(1);
            }
        }
        let id = self.push(&key, epoch);
        let chunks = &self.chunks;
        if is_first {
            let rehash = |first: &First| site(chunks, first.id).map_or(0, |s| hash(&(s.stack, s.task)));
            self.first.insert_unique(first_hash, First { id, sizes: 1 }, rehash);
        }
        let rehash = |id: &u32| site(chunks, *id).map_or(0, |s| s.key().place_hash());
        self.by_key.insert_unique(key.place_hash(), id, rehash);
        id
    }

    fn find(&self, key: &SiteKey, hash: u64) -> Option<u32> {
        self.by_key.find(hash, |id| self.get(*id).is_some_and(|site| site.is(key))).copied()
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
            + tables.iter().sum::<usize>()
    }
}

impl SiteKey {
    /// How many blocks each recorded one stands for.
    pub fn weight(&self) -> f64 {
        crate::sampling::weight(self.size, self.interval)
    }

    /// hashbrown takes the lowest bits for the place and the highest seven for the tag. Two keys that differ in stack and thread only differ in it, too.
    const fn place_hash(&self) -> u64 {
        let call = (self.stack.0 as u64) << 32 | self.task as u64;
        let block = self.size ^ self.interval.rotate_left(32) ^ (self.function.0 as u64) << 48;
        let hash = (call ^ block.wrapping_mul(0xff51_afd7_ed55_8ccd)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    }
}

/// Where [`Sites::latest`], with so many places, may have the site of this key. Stacks that were met one after the other are next to each
/// other there, for one size, thread and function. Keys that differ in their interval alone share a place.
#[inline(always)]
const fn place_of(key: &SiteKey, places: usize) -> usize {
    let rest = key.size ^ (key.task as u64) << 32 ^ (key.function.0 as u64) << 48;
    let rest = (rest.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    rest.wrapping_add(key.stack.0 as usize) & places.wrapping_sub(1)
}

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
mod tests {
    use super::*;
    use crate::addr::TaskId;
    use crate::allocators::Family;
    use crate::event::Call;

    fn call() -> Call {
        let task = TaskId { tid: 1, serial: 1 };
        Call { function: FunctionId(0), task, stack: StackId(1), family: None, align: None, interval: 0 }
    }

    fn key(stack: u32, size: u64) -> SiteKey {
        SiteKey { stack: StackId(stack), task: 1, function: FunctionId(0), size, interval: 0 }
    }

    #[test]
    fn sizes_round_down_to_eighths_of_an_octave() {
        let rounded: Vec<u64> = [0, 1, 15, 16, 17, 18, 1023, 1024, 1151, 1152, u64::MAX].map(round_down).into();
        assert_eq!(rounded, [0, 1, 15, 16, 16, 18, 960, 1024, 1024, 1152, 0xf << 60]);
    }

    #[test]
    fn the_first_64_sizes_of_a_stack_are_exact() {
        let mut sites = Sites::default();
        let size_of_site = |sites: &mut Sites, stack, size| {
            let id = sites.intern(key(stack, size), 0);
            sites.get(id).unwrap().size
        };
        for n in 0..64 {
            assert_eq!(size_of_site(&mut sites, 1, 1001 + n), 1001 + n);
        }
        assert_eq!(size_of_site(&mut sites, 1, 2001), 1920);
        assert_eq!(size_of_site(&mut sites, 1, 2002), 1920, "the same site");
        assert_eq!(size_of_site(&mut sites, 1, 1033), 1033, "known sizes stay exact");
        assert_eq!(size_of_site(&mut sites, 2, 2001), 2001, "another stack");
        assert_eq!(sites.stats(0).count(), 66);
    }

    #[test]
    fn sites_are_found_as_a_plain_map_finds_them() {
        let (mut sites, mut map) = (Sites::default(), std::collections::HashMap::new());
        let mut state = 1u64;
        for n in 0..400_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // more and more, some often, others seldom
            let stack = (state >> 40) % (1 + n / (1 + (state >> 33) % 32));
            let key = SiteKey {
                task: (state >> 20) as u32 % 2,
                function: FunctionId((state >> 16) as u16 % 2),
                interval: state >> 12 & 4096,
                ..key(stack as u32, 16 + (state >> 8) % 3)
            };
            if n == 300_000 {
                sites.inherit();
                map.clear();
            }
            let id = sites.intern(key, 0);
            assert_eq!(*map.entry(key).or_insert(id), id);
            assert!(sites.get(id).unwrap().is(&key) && id >= sites.inherited);
        }
        assert!(map.len() > 2 * MOST_LATEST && sites.latest.len() == MOST_LATEST, "{}", map.len());
    }

    #[test]
    fn what_was_found_last_is_found_without_the_table() {
        let mut sites = Sites::default();
        let place = |key: &SiteKey| place_of(key, FIRST_LATEST);
        let same: Vec<SiteKey> = (0..).map(|stack| key(stack, 8)).filter(|key| place(key) == 7).take(2).collect();
        let [one, two] = same[..] else { panic!() };
        let ids = [one, two].map(|key| sites.intern(key, 0));
        assert_eq!((sites.latest[7], sites.intern(one, 0), sites.latest[7]), (ids[1], ids[0], ids[0]));
        sites.by_key.clear();
        assert_eq!(sites.intern(one, 0), ids[0]);
        assert_ne!(sites.intern(two, 0), ids[1], "which is not there any more");
    }

    #[test]
    fn frees_are_charged_where_the_one_before_was_or_elsewhere() {
        let mut sites = Sites::default();
        let [of, one, two] = [1, 2, 3].map(|stack| sites.intern(key(stack, 8), 0));
        let charge = |sites: &mut Sites, key| {
            let before = sites.get(of).unwrap().charged();
            sites.intern_charged(of, before, key, 0)
        };
        for (stack, id) in [(2, one), (2, one), (3, two), (2, one)] {
            assert_eq!(charge(&mut sites, key(stack, 8)), id);
            assert_eq!(sites.get(of).unwrap().charged(), id);
        }
        sites.by_key.clear();
        sites.latest = Box::default();
        assert_eq!(charge(&mut sites, key(2, 8)), one, "remembered");
        assert!(charge(&mut sites, key(2, 9)) > two, "of another size");
        sites.inherit();
        let new = charge(&mut sites, key(2, 9));
        assert!(new >= sites.inherited, "the one before is from before the fork");
    }

    #[test]
    fn a_site_keeps_what_all_its_blocks_have_in_common() {
        let traits = |family, align| Traits::of(&Call { family, align, ..call() });
        let [malloc, new] = [Some(Family::Malloc), Some(Family::New)];
        let mut site = Sites::default();
        let id = site.intern(key(1, 1), 0);
        let site = site.get_mut(id).unwrap();
        let mut told = |traits| {
            site.add_traits(traits);
            site.allocated.count(1);
            (site.traits().family, site.traits().align())
        };
        assert_eq!(told(traits(new, Some(16))), (new, Some(16)));
        assert_eq!(told(traits(new, None)), (new, None));
        assert_eq!(told(traits(malloc, Some(16))), (None, None));
        assert_eq!(told(traits(malloc, Some(16))), (None, None));
    }

    /// The worst case: every site on a stack of its own.
    #[test]
    fn a_site_takes_at_most_164_bytes() {
        let mut sites = Sites::default();
        let mut worst = 0.0f64;
        for n in 0..300_000u32 {
            sites.intern(key(n, 8), 0);
            if n > 20_000 && n % 64 == 0 {
                worst = worst.max(sites.memory() as f64 / f64::from(n));
            }
        }
        assert!(worst <= 164.0, "{worst} bytes per site");
        assert!(worst > 120.0, "{worst}: the measure misses something");
    }
}
