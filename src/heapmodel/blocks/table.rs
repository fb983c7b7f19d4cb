//! A hash table of entries in buckets of two cache lines: whoever knows an address knows which lines to fetch, so that
//! those of many addresses can be fetched at once.
//!
//! An entry is in one of two buckets, the first one if it has room ("Balanced allocations", Azar et al., 1994); where
//! both are full, one of theirs moves to its other one (cuckoo hashing, Pagh and Rodler, 2001). So nearly all places
//! are used before a table doubles.

use super::Entry;
use crate::base::prefetch::{populate, prefetch};

/// Entries of a bucket.
const PLACES: usize = 5;

/// Buckets of the smallest table: a power of two.
const FEWEST: usize = 2;

/// Words of an entry.
const ENTRY: usize = 3;

/// Words of a bucket: its entries, and [`SPILLED`].
const BUCKET: usize = 16;

/// In a bucket: not 0 once an entry that this is the first bucket of was put in its second one.
const SPILLED: usize = PLACES * ENTRY;

/// Bytes of a bucket, and what it is aligned to.
const ALIGNMENT: usize = BUCKET * size_of::<u64>();

/// A table with this many buckets, 32 KiB, or more has memory for all of them from the start: it is filled soon.
const POPULATED: usize = 256;

type Bucket = [u64; BUCKET];

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// All buckets, in plain words: an allocator that is asked for aligned memory leaves pieces of it behind.
    words: Vec<u64>,
    /// So many words lie before the first bucket.
    skipped: usize,
    /// One less than the number of buckets, which is a power of two; 0 where there are none.
    mask: usize,
}

/// Where an entry is: the number of its bucket, and its place there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    bucket: usize,
    place: usize,
}

impl Clone for Table {
    fn clone(&self) -> Self {
        let Some(buckets) = self.words.get(self.skipped..).filter(|words| !words.is_empty()) else {
            return Self::default();
        };
        let mut copy = Self::with_buckets(self.mask + 1);
        if let Some(words) = copy.words.get_mut(copy.skipped..) {
            let len = words.len().min(buckets.len());
            words[..len].copy_from_slice(&buckets[..len]);
        }
        copy
    }
}

impl Table {
    /// An empty one with so many buckets, a power of two.
    fn with_buckets(buckets: usize) -> Self {
        let mut words = vec![0u64; (buckets + 1) * BUCKET];
        // without an answer the buckets have more lines than they need
        let skipped = words.as_ptr().align_offset(ALIGNMENT);
        let skipped = if skipped < BUCKET { skipped } else { 0 };
        words.truncate(skipped + buckets * BUCKET);
        if buckets >= POPULATED {
            populate(&mut words);
        }
        Self { words, skipped, mask: buckets - 1 }
    }

    #[inline(always)]
    fn bucket(&self, bucket: usize) -> Option<&Bucket> {
        self.words.get(self.skipped + bucket * BUCKET..)?.first_chunk()
    }

    #[inline(always)]
    fn bucket_mut(&mut self, bucket: usize) -> Option<&mut Bucket> {
        self.words.get_mut(self.skipped + bucket * BUCKET..)?.first_chunk_mut()
    }

    /// Has the lines of an address's first bucket fetched.
    #[inline(always)]
    pub(super) fn prefetch(&self, addr: u64) {
        self.prefetch_bucket(self.first(hash(addr)));
    }

    #[inline(always)]
    fn prefetch_bucket(&self, at: usize) {
        if let Some(bucket) = self.bucket(at) {
            prefetch(&bucket[0]);
            prefetch(&bucket[SPILLED]);
        }
    }

    /// The entry of an address, if it is in its first bucket. If not, and it is or will be in the second one, has that
    /// fetched.
    #[inline(always)]
    pub(super) fn look_closer(&self, addr: u64) -> Option<Entry> {
        let bucket = self.bucket(self.first(hash(addr)))?;
        match place_of(bucket, addr) {
            Some(place) => Some(Entry::of(*bucket.get(place * ENTRY..)?.first_chunk()?)),
            None => {
                if bucket[SPILLED] != 0 || place_of(bucket, 0).is_none() {
                    self.prefetch_bucket(self.second(addr));
                }
                None
            }
        }
    }

    /// Where the entry of an address is.
    #[inline(always)]
    pub(super) fn find(&self, addr: u64) -> Option<Place> {
        let hash = hash(addr);
        let at = self.first(hash);
        let first = self.bucket(at)?;
        match place_of(first, addr) {
            Some(place) => Some(Place { bucket: at, place }),
            None if first[SPILLED] == 0 => None,
            None => {
                let at = self.second(addr);
                Some(Place { bucket: at, place: place_of(self.bucket(at)?, addr)? })
            }
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, at: Place) -> Option<Entry> {
        let words = self.bucket(at.bucket)?.get(at.place * ENTRY..)?.first_chunk()?;
        Some(Entry::of(*words))
    }

    #[inline(always)]
    pub(super) fn set(&mut self, at: Place, entry: &Entry) {
        if let Some(bucket) = self.bucket_mut(at.bucket)
            && let Some(words) = bucket.get_mut(at.place * ENTRY..).and_then(|words| words.first_chunk_mut())
        {
            *words = entry.words();
        }
    }

    /// Puts an entry in; returns the one of this address that it replaces, or [`Entry::NONE`]. Where there is no room,
    /// entries of blocks that were freed before the generation `oldest` make some.
    #[inline(always)]
    pub(super) fn insert(&mut self, entry: &Entry, oldest: u16) -> Option<Entry> {
        let at = self.first(hash(entry.addr));
        if let Some(bucket) = self.bucket(at) {
            let place = match (place_of(bucket, entry.addr), bucket[SPILLED]) {
                (Some(place), _) => Some(place),
                (None, 0) => place_of(bucket, 0),
                (None, _) => None,
            };
            if let Some(place) = place.map(|place| Place { bucket: at, place }) {
                let before = self.get(place);
                self.set(place, entry);
                return before;
            }
        }
        self.insert_elsewhere(entry, oldest)
    }

    /// The same where the first bucket is full, or has been: not rare in heaps that grow.
    #[inline(never)]
    fn insert_elsewhere(&mut self, entry: &Entry, oldest: u16) -> Option<Entry> {
        if let Some(place) = self.find(entry.addr) {
            let before = self.get(place);
            self.set(place, entry);
            return before;
        }
        while !self.place(entry, self.both(entry.addr), oldest) {
            self.grow(oldest);
        }
        None
    }

    /// Puts an entry of a new address in one of `both` its buckets, if there is room or some can be made.
    #[inline]
    fn place(&mut self, entry: &Entry, both: [usize; 2], oldest: u16) -> bool {
        let [first, second] = both;
        self.put(entry, first, oldest)
            || self.put_second(entry, both, oldest)
            || self.make_place(first, oldest) && self.put(entry, first, oldest)
            || self.make_place(second, oldest) && self.put_second(entry, both, oldest)
    }

    /// Puts an entry in this bucket, if that has a place that is free or of no use.
    #[inline(always)]
    fn put(&mut self, entry: &Entry, at: usize, oldest: u16) -> bool {
        let Some(bucket) = self.bucket_mut(at) else { return false };
        let Some(place) = place_of(bucket, 0).or_else(|| useless_place_of(bucket, oldest)) else { return false };
        if let Some(words) = bucket.get_mut(place * ENTRY..).and_then(|words| words.first_chunk_mut()) {
            *words = entry.words();
        }
        true
    }

    /// The same with the second of its buckets.
    #[inline(always)]
    fn put_second(&mut self, entry: &Entry, [first, second]: [usize; 2], oldest: u16) -> bool {
        let is_put = self.put(entry, second, oldest);
        if is_put
            && first != second
            && let Some(first) = self.bucket_mut(first)
        {
            first[SPILLED] = 1;
        }
        is_put
    }

    /// Moves one of the bucket's entries to its other one, if that has room.
    #[inline(never)]
    fn make_place(&mut self, at: usize, oldest: u16) -> bool {
        (0..PLACES).any(|place| {
            let place = Place { bucket: at, place };
            let Some(entry) = self.get(place) else { return false };
            let both @ [first, second] = self.both(entry.addr);
            let moved = if second == at {
                first != at && self.put(&entry, first, oldest)
            } else {
                self.put_second(&entry, both, oldest)
            };
            if moved {
                self.set(place, &Entry::NONE);
            }
            moved
        })
    }

    /// Doubles the table.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, oldest: u16) {
        let mut buckets = if self.words.is_empty() { FEWEST } else { 2 * (self.mask + 1) };
        loop {
            let mut larger = Self::with_buckets(buckets);
            let mut kept = self.iter().filter(|entry| entry.is_of_use(oldest));
            if kept.all(|entry| larger.place(&entry, larger.both(entry.addr), oldest)) {
                drop(kept);
                *self = larger;
                return;
            }
            buckets *= 2;
        }
    }

    /// All entries, each with its place.
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, Entry)> {
        let buckets = if self.words.is_empty() { 0 } else { self.mask + 1 };
        let all = (0..buckets).flat_map(|bucket| (0..PLACES).map(move |place| Place { bucket, place }));
        all.filter_map(|place| Some((place, self.get(place)?))).filter(|(_, entry)| entry.addr != 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.places().map(|(_, entry)| entry)
    }

    /// Bytes of heap that it takes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.words) + if self.words.is_empty() { 0 } else { ALIGNMENT - self.skipped * size_of::<u64>() }
    }

    fn both(&self, addr: u64) -> [usize; 2] {
        [self.first(hash(addr)), self.second(addr)]
    }

    #[inline(always)]
    const fn first(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }

    /// Another one than the first.
    #[inline(always)]
    const fn second(&self, addr: u64) -> usize {
        let distance = (mixed(addr) >> 24) as usize | 1;
        (hash(addr) as usize ^ distance) & self.mask
    }
}

/// Where in a bucket the entry of an address is. All are compared, as that costs less than to guess which one it is.
#[inline(always)]
fn place_of(bucket: &Bucket, addr: u64) -> Option<usize> {
    let mut found = PLACES;
    for place in 0..PLACES {
        found = if bucket[place * ENTRY] == addr { place } else { found };
    }
    (found < PLACES).then_some(found)
}

/// Where in a bucket there is an entry of a block that was freed before the generation `oldest`. Most have none, so
/// that all are looked at without a branch.
#[inline(always)]
fn useless_place_of(bucket: &Bucket, oldest: u16) -> Option<usize> {
    let mut found = PLACES;
    for place in (0..PLACES).rev() {
        found = if Entry::is_state_of_use(bucket[place * ENTRY + 1], oldest) { found } else { place };
    }
    (found < PLACES).then_some(found)
}

/// Blocks that lie together have their entries together: a program takes and frees such ones in a row, and heaptrace
/// then finds in its caches what it looks for. 64 bytes of heap, 2 to the power of this, have one bucket (two blocks of
/// glibc's, four of the smallest that other allocators hand out).
const WINDOW: u32 = 6;

/// 2 to the power of this many windows, 2 KiB of heap, have their buckets in a row, a page of the table.
const ROW: u32 = 5;

/// Which bucket is the first one of an address (the lowest 48 bits), and which shard it is in (the highest eight,
/// [`shard_of`]). Addresses at odd multiples of 8 are in another row than the rest: a window has eight of them both.
#[inline(always)]
pub(super) const fn hash(addr: u64) -> u64 {
    let row = addr >> (WINDOW + ROW) << 1 | addr >> 3 & 1;
    mixed(row) ^ addr >> WINDOW & ((1 << ROW) - 1)
}

/// A number of which each bit depends on all bits of the one given.
#[inline(always)]
const fn mixed(number: u64) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = number.wrapping_mul(MULTIPLIER);
    (hash ^ hash >> 32).wrapping_mul(MULTIPLIER)
}

/// Which of so many tables an address is in: a power of two, up to 256.
#[inline(always)]
pub(super) const fn shard_of(addr: u64, shards: usize) -> usize {
    (hash(addr) >> 56) as usize % shards
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A KiB of heap with blocks of 32 bytes: 16 buckets in a row, in the same shard, each with two of them.
    #[test]
    fn blocks_that_lie_together_have_entries_together() {
        for begin in [0x5555_0000_0000u64, 0x7f12_3456_7800] {
            let addrs: Vec<u64> = (0..32).map(|n| begin + 16 + 32 * n).collect();
            let mut buckets: Vec<u64> = addrs.iter().map(|addr| hash(*addr)).collect();
            assert!(addrs.iter().all(|addr| shard_of(*addr, 256) == shard_of(begin, 256)));
            assert!(buckets.iter().all(|bucket| bucket >> ROW == buckets[0] >> ROW), "one row: {buckets:x?}");
            buckets.dedup();
            assert_eq!(buckets.len(), 16, "{buckets:x?}");
        }
    }
}
