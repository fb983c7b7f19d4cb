//! A hash index of entries that are linked to each other: linear hashing (W. Litwin, 1980). Buckets are split one at a
//! time as entries arrive, so memory never doubles, and no
//! insertion, which a stopped thread waits for, pays for a rehash of everything.

use super::chunked::Chunked;

/// Entries per bucket on average. Two keeps the index at 2 bytes per entry and a look-up at about two reads of entries.
const LOAD: usize = 2;

/// The entries of an index, by number. Number 0 is in no bucket.
pub(super) trait Entries {
    /// The next entry of the same bucket; 0: none.
    fn next(&self, entry: u32) -> u32;
    fn set_next(&mut self, entry: u32, next: u32);
    fn hash(&self, entry: u32) -> u64;
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// The first entry of each bucket.
    heads: Chunked<u32>,
    /// How many entries are in buckets.
    entered: usize,
}

impl Index {
    pub(super) fn view(&mut self) -> Self {
        Self { heads: self.heads.view(), entered: self.entered }
    }

    /// The entry with this hash that is the one that is looked for.
    #[inline]
    pub(super) fn find(&self, entries: &impl Entries, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.heads.get(bucket_of(hash, self.heads.len()))?;
        while at != 0 {
            if is_it(at) {
                return Some(at);
            }
            at = entries.next(at);
        }
        None
    }

    /// Enters an entry that is not there.
    pub(super) fn enter(&mut self, entries: &mut impl Entries, hash: u64, entry: u32) {
        if self.heads.len() == 0 {
            self.heads.push(0);
        }
        if let Some(head) = self.heads.get_mut(bucket_of(hash, self.heads.len())) {
            entries.set_next(entry, *head);
            *head = entry;
        }
        self.entered += 1;
        if self.entered > self.heads.len() * LOAD {
            self.split_bucket(entries);
        }
    }

    /// Adds one bucket and moves to it, from the one bucket that held them so far, the entries that belong there.
    fn split_bucket(&mut self, entries: &mut impl Entries) {
        let new = self.heads.len();
        self.heads.push(0);
        let old = new - (new + 1).next_power_of_two() / 2;
        let mut at = self.heads.get(old).unwrap_or_default();
        let mut heads = [0; 2];
        while at != 0 {
            let next = entries.next(at);
            let moves = bucket_of(entries.hash(at), new + 1) == new;
            let head = &mut heads[usize::from(moves)];
            entries.set_next(at, *head);
            *head = at;
            at = next;
        }
        for (bucket, head) in [old, new].into_iter().zip(heads) {
            if let Some(slot) = self.heads.get_mut(bucket) {
                *slot = head;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.heads.bytes()
    }

    /// The most entries that a bucket has.
    #[cfg(test)]
    pub(super) fn longest(&self, entries: &impl Entries) -> usize {
        let next = |&at: &u32| Some(entries.next(at)).filter(|&at| at != 0);
        let of_bucket = |bucket| std::iter::successors(self.heads.get(bucket).filter(|&at| at != 0), next).count();
        (0..self.heads.len()).map(of_bucket).max().unwrap_or(0)
    }
}

/// Where `hash` lives among `count` buckets: the next power of two decides, and the buckets that do not exist yet are
/// still part of those that they will be split from.
fn bucket_of(hash: u64, count: usize) -> usize {
    let size = count.next_power_of_two();
    let bucket = hash as usize & (size - 1);
    if bucket < count { bucket } else { bucket - size / 2 }
}
