//! The live blocks: one entry of 24 bytes each.
//!
//! A hash table doubles when it is full, and holds old and new entries meanwhile. With one table for all blocks that would
//! be three times the need at the worst moment; with 256 tables, only one of which grows at a time, the excess is
//! 1/256 of the whole.

use crate::addr::Addr;
use crate::chunk::Chunk;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;

const SHARDS: usize = 256;

/// The largest size that an entry holds, in bytes: the whole of a 48-bit address space. More can't be allocated.
pub(super) const MAX_SIZE: u64 = (1 << SIZE_BITS) - 1;
const SIZE_BITS: u32 = 48;

/// What is known of a live block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// Requested bytes, at most [`MAX_SIZE`].
    pub(super) size: u64,
    /// Index of the site.
    pub(super) site: u32,
    /// Which allocation of the process it was, from 1 on; exact up to 2^48.
    pub(super) birth: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    /// The size in the lower 48 bits, bits 32–47 of the birth above.
    size_and_birth: u64,
    birth: u32,
    site: u32,
}

const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    fn new(addr: Addr, block: Block) -> Self {
        Self {
            addr: addr.0,
            size_and_birth: block.size.min(MAX_SIZE) | (block.birth >> 32) << SIZE_BITS,
            birth: block.birth as u32,
            site: block.site,
        }
    }

    fn block(&self) -> Block {
        Block {
            size: self.size_and_birth & MAX_SIZE,
            site: self.site,
            birth: (self.size_and_birth >> SIZE_BITS) << 32 | u64::from(self.birth),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Blocks {
    shards: Box<[Chunk<HashTable<Entry>>; SHARDS]>,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { shards: Box::new([const { Chunk::Own(HashTable::new()) }; SHARDS]) }
    }

    /// The same for a view.
    pub(super) fn view(&mut self) -> Self {
        Self { shards: Box::new(self.shards.each_mut().map(Chunk::share)) }
    }

    /// Enters a block; returns what was at this address before, which is replaced.
    #[inline(always)]
    pub(super) fn insert(&mut self, addr: Addr, block: Block) -> Option<Block> {
        let entry = Entry::new(addr, block);
        let hash = hash(addr.0);
        let shard = self.shard(hash);
        if shard.len() == shard.capacity() {
            make_room(shard);
        }
        match shard.entry(hash, |e| e.addr == addr.0, |e| self::hash(e.addr)) {
            Slot::Occupied(mut slot) => Some(std::mem::replace(slot.get_mut(), entry).block()),
            Slot::Vacant(slot) => {
                slot.insert(entry);
                None
            }
        }
    }

    /// Inlined, so that the block is handed over in registers.
    #[inline(always)]
    pub(super) fn remove(&mut self, addr: Addr) -> Option<Block> {
        let hash = hash(addr.0);
        let slot = self.shard(hash).find_entry(hash, |e| e.addr == addr.0).ok()?;
        Some(slot.remove().0.block())
    }

    pub(super) fn get(&self, addr: Addr) -> Option<Block> {
        let hash = hash(addr.0);
        self.shards.get(shard_of(hash))?.get().find(hash, |e| e.addr == addr.0).map(Entry::block)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Addr, Block)> {
        self.shards.iter().flat_map(|shard| shard.get().iter()).map(|entry| (Addr(entry.addr), entry.block()))
    }

    /// Bytes of heap that the tables take, with the copy that the largest shard's growth would need.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let sizes = self.shards.iter().map(|shard| shard.get().allocation_size());
        size_of_val(&*self.shards) + sizes.clone().sum::<usize>() + sizes.max().unwrap_or(0)
    }

    #[inline(always)]
    fn shard(&mut self, hash: u64) -> &mut HashTable<Entry> {
        self.shards[shard_of(hash)].get_mut()
    }
}

/// Called when nothing can be inserted any more. Where removals have left the table full of tombstones, copies it in its
/// present size; hashbrown itself would double it from half load on, and end with up to 114 bytes per block. A table that
/// really is full (to 15/16 of what it may hold) is left for hashbrown to double.
fn make_room(table: &mut HashTable<Entry>) {
    let full = table.num_buckets() / 8 * 7;
    if table.len() < full / 16 * 15 {
        let mut copy = HashTable::with_capacity(full);
        for entry in table.iter() {
            copy.insert_unique(hash(entry.addr), *entry, |e| hash(e.addr));
        }
        *table = copy;
    }
}

/// hashbrown takes the lowest bits for the place and the highest seven for the tag.
///
/// Blocks that are neighbours are often allocated one after the other, and freed so: those of one KiB have places next to each
/// other, so that the processor finds the second one in its cache where it has met the first. (With places anywhere, a program
/// that frees 60,000 blocks at its end waits for memory twice for each.) The tag depends on all of the address.
fn hash(addr: u64) -> u64 {
    const PLACES: u64 = (1 << 48) - 1;
    let area = (addr >> 10).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let area = (area ^ (area >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let tag = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) << 5 & (0x7f << 57);
    let shard = area >> 8 & (0xff << 48);
    tag | shard | ((area >> 32) * 16 + (addr >> 6 & 15)) & PLACES
}

/// Bits that hashbrown does not use in tables of less than 2^40 entries. Always less than [`SHARDS`].
fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_survive_packing() {
        for (size, birth) in [(0, 0), (MAX_SIZE, 1), (17, (1 << 48) - 1), (MAX_SIZE, 0x1234_5678_9abc)] {
            let block = Block { size, site: u32::MAX, birth };
            assert_eq!(Entry::new(Addr(u64::MAX), block).block(), block);
        }
    }

    /// Bytes per block at every moment of growth up to a million blocks, as a program that allocates and does not free
    /// sees it. The bound leaves 4 of the 64 bytes to what does not grow with the number of blocks.
    #[test]
    fn a_million_blocks_take_at_most_60_bytes_each() {
        let mut blocks = Blocks::new();
        let mut worst = 0.0f64;
        for n in 1..=1_200_000u64 {
            blocks.insert(Addr(0x7f00_0000_0000 + n * 48), Block { size: 32, site: 0, birth: n });
            if n >= 100_000 && n % 128 == 0 {
                worst = worst.max(blocks.memory() as f64 / n as f64);
            }
        }
        assert!(worst <= 60.0, "{worst} bytes per block");
        assert!(worst > 40.0, "{worst}: the measure misses something");
        assert_eq!(blocks.iter().count(), 1_200_000);
    }

    /// The same while blocks come and go, which leaves the tables full of tombstones.
    #[test]
    fn churn_does_not_inflate_the_tables() {
        for live in [200_000u64, 217_000, 255_000] {
            let mut blocks = Blocks::new();
            let addr = |n: u64| Addr(0x7f00_0000_0000 + n.wrapping_mul(0x9e37_79b9) % (1 << 32) * 16);
            for n in 0..3 * live {
                blocks.insert(addr(n), Block { size: 32, site: 0, birth: n });
                if n >= live {
                    assert!(blocks.remove(addr(n - live)).is_some());
                }
                if n >= live && n % 8192 == 0 {
                    let each = blocks.memory() as f64 / live as f64;
                    assert!(each <= 62.5, "{each} bytes per block with {live} live");
                }
            }
        }
    }

    #[test]
    fn shards_are_used_evenly() {
        for stride in [16, 32, 4096, 1 << 21] {
            let mut blocks = Blocks::new();
            for n in 0..100_000u64 {
                blocks.insert(Addr(0x5555_0000_0000 + n * stride), Block { size: 1, site: 0, birth: n });
            }
            let largest = blocks.shards.iter().map(|shard| shard.get().len()).max().unwrap();
            assert!(largest < 1170, "stride {stride}: {largest} blocks in one shard, 390 expected");
        }
    }
}
