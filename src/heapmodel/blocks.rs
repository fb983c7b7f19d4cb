//! The blocks: one entry of 24 bytes for each that is live, and for those that were freed lately.
//!
//! What was freed last tells a double free from a free of what was never allocated. The entry of a freed block stays
//! where it is, so that to remember it costs nothing; allocators hand out the same addresses again and again, and a new
//! block finds the entry that it replaces. What has expired is replaced when its bucket is full.
//!
//! A table doubles when it is full, and holds old and new entries meanwhile. With one table for all blocks that would
//! be three times the need at the worst moment; with 256 tables, only one of which grows at a time, the excess is
//! 1/256 of the whole.

mod table;

use crate::base::addr::{Addr, StackId};
use crate::base::chunk::Chunk;
use table::{Table, shard_of};

const SHARDS: usize = 256;

/// The largest size that an entry holds, in bytes: the whole of the half of a 48-bit address space that is a process's.
/// More can't be allocated.
pub(super) const MAX_SIZE: u64 = (1 << SIZE_BITS) - 1;
const SIZE_BITS: u32 = 47;

/// Behind the size: whether the block is live.
const LIVE: u64 = 1 << SIZE_BITS;

/// Behind that are bits 32 to 47 of the birth of a live block, or the generation of a freed one.
const UPPER: u32 = SIZE_BITS + 1;

/// So many frees are a generation.
const GENERATION: u32 = 1 << 12;

/// So many generations of freed blocks are remembered, besides the latest one.
const REMEMBERED: u16 = 16;

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

/// What is known of a block that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Freed {
    /// In bytes.
    pub(super) size: u64,
    /// Index of the site that it was of.
    pub(super) site: u32,
    pub(super) free_stack: StackId,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Of the block; 0: there is none.
    addr: u64,
    /// The size, [`LIVE`], and what is said at [`UPPER`].
    state: u64,
    /// The lower half of the birth of a live block; the stack of the free of a freed one.
    birth_or_stack: u32,
    site: u32,
}

impl Entry {
    const NONE: Self = Self { addr: 0, state: 0, birth_or_stack: 0, site: 0 };

    /// From the words that it is kept in.
    #[inline(always)]
    const fn of([addr, state, rest]: [u64; 3]) -> Self {
        Self { addr, state, birth_or_stack: rest as u32, site: (rest >> 32) as u32 }
    }

    #[inline(always)]
    const fn words(&self) -> [u64; 3] {
        [self.addr, self.state, self.birth_or_stack as u64 | (self.site as u64) << 32]
    }

    fn new(addr: Addr, block: Block) -> Self {
        Self {
            addr: addr.0,
            state: block.size.min(MAX_SIZE) | LIVE | (block.birth >> 32) << UPPER,
            birth_or_stack: block.birth as u32,
            site: block.site,
        }
    }

    fn size(&self) -> u64 {
        self.state & MAX_SIZE
    }

    fn is_live(&self) -> bool {
        self.state & LIVE != 0
    }

    /// The block, if it is live.
    fn block(&self) -> Option<Block> {
        self.is_live().then(|| Block {
            size: self.size(),
            site: self.site,
            birth: (self.state >> UPPER) << 32 | u64::from(self.birth_or_stack),
        })
    }

    /// The block is freed, or forgotten if the generation is 0.
    fn end(&mut self, generation: u16, free_stack: StackId) {
        self.state = self.size() | u64::from(generation) << UPPER;
        self.birth_or_stack = free_stack.0;
    }

    /// Whether the block is live, or was freed in this generation or later.
    fn is_of_use(&self, oldest: u16) -> bool {
        Self::is_state_of_use(self.state, oldest)
    }

    /// The same, by the word that says it.
    #[inline(always)]
    const fn is_state_of_use(state: u64, oldest: u16) -> bool {
        (state & LIVE != 0) | (state >> UPPER >= oldest as u64)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Blocks {
    shards: Box<[Chunk<Table>; SHARDS]>,
    /// Of what is freed now, from 1 on.
    generation: u16,
    /// The first generation that is remembered.
    oldest: u16,
    /// So many frees are to come in this one.
    left: u32,
}

impl Blocks {
    pub(super) fn new() -> Self {
        let shards = Box::new(std::array::from_fn(|_| Chunk::default()));
        Self { shards, generation: 1, oldest: 1, left: GENERATION }
    }

    /// The same for a view.
    pub(super) fn view(&mut self) -> Self {
        Self { shards: Box::new(self.shards.each_mut().map(Chunk::share)), ..*self }
    }

    /// Has that fetched where the entry of an address is, or would be: of many addresses in a row the processor waits
    /// for memory once.
    #[inline(always)]
    pub(super) fn prefetch(&self, addr: Addr) {
        self.shards[shard_of(addr.0, SHARDS)].get().prefetch(addr.0);
    }

    /// The same with what depends on that, which is there by now. The site of the live block at this address, if that
    /// is known without waiting for more.
    #[inline(always)]
    pub(super) fn look_closer(&self, addr: Addr) -> Option<u32> {
        let entry = self.shards[shard_of(addr.0, SHARDS)].get().look_closer(addr.0)?;
        entry.is_live().then_some(entry.site)
    }

    /// Enters a block; returns the live one that was at this address before, which is replaced. The address is not
    /// null.
    #[inline(always)]
    pub(super) fn insert(&mut self, addr: Addr, block: Block) -> Option<Block> {
        let oldest = self.oldest;
        self.shard(addr).insert(&Entry::new(addr, block), oldest)?.block()
    }

    /// The live block at this address is freed, or resized elsewhere, by a call on this stack.
    ///
    /// Inlined, so that the block is handed over in registers.
    #[inline(always)]
    pub(super) fn free(&mut self, addr: Addr, free_stack: StackId) -> Option<Block> {
        let generation = self.generation;
        let shard = self.shard(addr);
        let place = shard.find(addr.0)?;
        let mut entry = shard.get(place)?;
        let block = entry.block()?;
        entry.end(generation, free_stack);
        shard.set(place, &entry);
        self.left -= 1;
        if self.left == 0 {
            self.begin_generation();
        }
        Some(block)
    }

    /// Forgets all freed blocks.
    pub(super) fn forget_freed(&mut self) {
        self.begin_generation();
        self.oldest = self.generation;
    }

    #[cold]
    #[inline(never)]
    fn begin_generation(&mut self) {
        if self.generation == u16::MAX {
            self.renumber();
        }
        self.left = GENERATION;
        self.generation += 1;
        self.oldest = self.oldest.max(self.generation.saturating_sub(REMEMBERED));
    }

    /// Makes the oldest generation that is remembered the first one, once in some 65,000.
    fn renumber(&mut self) {
        let before = self.oldest - 1;
        for shard in self.shards.iter_mut().map(Chunk::get_mut) {
            let freed: Vec<_> = shard.places().filter(|(_, entry)| !entry.is_live()).collect();
            for (place, mut entry) in freed {
                let generation = (entry.state >> UPPER) as u16;
                entry.end(generation.saturating_sub(before), StackId(entry.birth_or_stack));
                shard.set(place, &entry);
            }
        }
        (self.generation, self.oldest) = (self.generation - before, 1);
    }

    fn entry(&self, addr: Addr) -> Option<Entry> {
        let shard = self.shards.get(shard_of(addr.0, SHARDS))?.get();
        shard.get(shard.find(addr.0)?)
    }

    /// The live block that `addr` lies in, but does not begin. Looks at all of them.
    pub(super) fn around(&self, addr: Addr) -> Option<(Addr, Block)> {
        self.iter().find(|(start, block)| *start < addr && addr.0 - start.0 < block.size)
    }

    /// The live block at this address.
    pub(super) fn get(&self, addr: Addr) -> Option<Block> {
        self.entry(addr)?.block()
    }

    /// The block at this address that is not live, if its free is one of the latest, of which there are at least
    /// `GENERATION * REMEMBERED`.
    pub(super) fn freed(&self, addr: Addr) -> Option<Freed> {
        let entry = self.entry(addr).filter(|entry| !entry.is_live() && entry.is_of_use(self.oldest))?;
        Some(Freed { size: entry.size(), site: entry.site, free_stack: StackId(entry.birth_or_stack) })
    }

    /// The live blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Addr, Block)> {
        let entries = self.shards.iter().flat_map(|shard| shard.get().iter());
        entries.filter_map(|entry| Some((Addr(entry.addr), entry.block()?)))
    }

    /// Bytes of heap that the tables take, with the copy that the largest shard's growth would need.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let sizes = self.shards.iter().map(|shard| shard.get().memory());
        size_of_val(&*self.shards) + sizes.clone().sum::<usize>() + sizes.max().unwrap_or(0)
    }

    #[inline(always)]
    fn shard(&mut self, addr: Addr) -> &mut Table {
        self.shards[shard_of(addr.0, SHARDS)].get_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_survive_packing() {
        for (size, birth) in [(0, 0), (MAX_SIZE, 1), (17, (1 << 48) - 1), (MAX_SIZE, 0x1234_5678_9abc)] {
            let block = Block { size, site: u32::MAX, birth };
            let mut entry = Entry::new(Addr(u64::MAX), block);
            assert_eq!(entry.block(), Some(block));
            entry.end(u16::MAX, StackId(7));
            assert_eq!((entry.block(), entry.size(), entry.site), (None, size, u32::MAX));
            assert!(entry.is_of_use(u16::MAX));
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

    /// The same while blocks come and go, for each that is live or remembered.
    #[test]
    fn churn_does_not_inflate_the_tables() {
        let remembered = u64::from(GENERATION) * (u64::from(REMEMBERED) + 1);
        for live in [200_000u64, 217_000, 255_000] {
            let mut blocks = Blocks::new();
            let addr = |n: u64| Addr(0x7f00_0000_0000 + n.wrapping_mul(0x9e37_79b9) % (1 << 32) * 16);
            for n in 0..3 * live {
                blocks.insert(addr(n), Block { size: 32, site: 0, birth: n });
                if n >= live {
                    assert!(blocks.free(addr(n - live), StackId::EMPTY).is_some());
                }
                if n >= live && n % 8192 == 0 {
                    let known = live + remembered.min(n - live);
                    let each = blocks.memory() as f64 / known as f64;
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
            let largest = blocks.shards.iter().map(|shard| shard.get().iter().count()).max().unwrap();
            assert!(largest < 1170, "stride {stride}: {largest} blocks in one shard, 390 expected");
        }
    }

    fn block(n: u64) -> Block {
        Block { size: n % 100, site: n as u32 % 7, birth: n }
    }

    #[test]
    fn what_was_freed_lately_is_known_until_the_address_is_handed_out_again() {
        let mut blocks = Blocks::new();
        assert_eq!((blocks.freed(Addr(16)), blocks.free(Addr(16), StackId(1))), (None, None));
        blocks.insert(Addr(16), block(5));
        assert_eq!((blocks.freed(Addr(16)), blocks.get(Addr(16))), (None, Some(block(5))));
        assert_eq!(blocks.free(Addr(16), StackId(1)), Some(block(5)));
        let freed = Freed { size: 5, site: 5, free_stack: StackId(1) };
        assert_eq!((blocks.freed(Addr(16)), blocks.get(Addr(16))), (Some(freed), None));
        assert_eq!(blocks.free(Addr(16), StackId(2)), None, "not twice");
        assert_eq!((blocks.freed(Addr(16)), blocks.iter().count()), (Some(freed), 0));
        assert_eq!(blocks.insert(Addr(16), block(6)), None, "nothing live was there");
        assert_eq!(blocks.insert(Addr(16), block(7)), Some(block(6)));
        blocks.free(Addr(16), StackId(3));
        assert_eq!(blocks.freed(Addr(16)), Some(Freed { size: 7, site: 0, free_stack: StackId(3) }));
        blocks.forget_freed();
        assert_eq!(blocks.freed(Addr(16)), None);
        assert_eq!(blocks.insert(Addr(16), block(8)), None);
        blocks.free(Addr(16), StackId(4));
        assert!(blocks.freed(Addr(16)).is_some());
    }

    #[test]
    fn blocks_are_found_as_plain_maps_find_them() {
        use std::collections::HashMap;
        let (mut blocks, mut live, mut freed) = (Blocks::new(), HashMap::new(), HashMap::new());
        let (mut state, mut frees, mut forgotten) = (1u64, 0u64, 0);
        let mut looked_closer = 0u64;
        let certain = u64::from(GENERATION) * u64::from(REMEMBERED);
        for n in 1..1_000_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // near each other, at the same offset of many pages, or anywhere
            let any = state >> 20;
            let addr = match state >> 62 {
                0 | 1 => 0x5555_0000_0000 + any % 50_000 * 16,
                2 => 0x7f00_0000_0010 + any % 20_000 * 4096,
                _ => (any % 200_000 + 1) * 0x10_0008,
            };
            if let Some(site) = blocks.look_closer(Addr(addr)) {
                assert_eq!(live.get(&addr).map(|block: &Block| block.site), Some(site));
                looked_closer += 1;
            }
            if state >> 18 & 1 == 0 {
                assert_eq!(blocks.insert(Addr(addr), block(n)), live.insert(addr, block(n)));
                freed.remove(&addr);
            } else {
                let ended = live.remove(&addr);
                assert_eq!(blocks.free(Addr(addr), StackId(n as u32)), ended);
                if let Some(ended) = ended {
                    frees += 1;
                    freed.insert(
                        addr,
                        (frees, Freed { size: ended.size, site: ended.site, free_stack: StackId(n as u32) }),
                    );
                }
            }
            if n == 300_000 {
                blocks.forget_freed();
                forgotten = frees;
            }
            if n % 50_000 == 0 {
                assert_eq!(
                    blocks.iter().collect::<HashMap<_, _>>(),
                    live.iter().map(|(addr, block)| (Addr(*addr), *block)).collect()
                );
                for (addr, (number, ended)) in &freed {
                    let told = blocks.freed(Addr(*addr));
                    let age = frees - number;
                    if *number > forgotten && age < certain {
                        assert_eq!(told, Some(*ended));
                    } else if *number <= forgotten || age > certain + u64::from(GENERATION) {
                        assert_eq!(told, None, "{age}");
                    }
                }
            }
        }
        assert!(freed.values().any(|(number, _)| frees - number > certain + u64::from(GENERATION)), "{frees}");
        assert!(looked_closer > 100_000, "{looked_closer}: most are in their first buckets");
    }

    #[test]
    fn when_generations_end_they_are_counted_anew() {
        let mut blocks = Blocks::new();
        for n in 1..=4 {
            blocks.insert(Addr(16 * n), block(n));
        }
        blocks.free(Addr(16), StackId(1));
        (blocks.generation, blocks.oldest) = (u16::MAX - 1, u16::MAX - 1 - REMEMBERED);
        blocks.free(Addr(32), StackId(2));
        blocks.left = 1;
        blocks.free(Addr(48), StackId(3));
        blocks.left = 1;
        blocks.free(Addr(64), StackId(4));
        let known = |blocks: &Blocks| {
            [16, 32, 48, 64].map(|addr| blocks.freed(Addr(addr)).map_or(0, |freed| freed.free_stack.0))
        };
        assert_eq!((known(&blocks), blocks.oldest < 3), ([0, 2, 3, 4], true));
        for _ in 2..REMEMBERED {
            blocks.begin_generation();
        }
        assert_eq!(known(&blocks), [0, 2, 3, 4]);
        blocks.begin_generation();
        assert_eq!(known(&blocks), [0, 0, 0, 4]);
        blocks.begin_generation();
        assert_eq!(known(&blocks), [0; 4]);
    }

    #[test]
    fn a_table_does_not_grow_for_what_it_has() {
        let mut blocks = Blocks::new();
        let addr = |n: u64| Addr(0x5555_0000_0000 + n * 32);
        for n in 1..100_000 {
            blocks.insert(addr(n), block(n));
        }
        let memory = blocks.memory();
        for n in 1..100_000 {
            assert_eq!(blocks.insert(addr(n), block(n + 1)), Some(block(n)));
        }
        assert_eq!(blocks.memory(), memory);
    }

    /// Blocks of whole pages, or larger ones, begin at the same offset of each; a table is nearly full before it
    /// doubles.
    #[test]
    fn no_distance_between_blocks_needs_more_room() {
        for stride in [8, 16, 24, 48, 4096, 4112, 1 << 16, 1 << 21, 1 << 26] {
            let mut blocks = Blocks::new();
            for n in 1..=200_000u64 {
                blocks.insert(Addr(n * stride + 16), Block { size: 1, site: 0, birth: n });
            }
            let each = blocks.memory() as f64 / 200_000.0;
            assert!(each <= 60.0, "stride {stride}: {each} bytes a block");
        }
    }
}
