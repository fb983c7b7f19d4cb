//! What is told of a heap's chunks without naming each of them: sums by state and by size.

use super::{Allocator, Arena, Finding, State, Walk};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Chunks of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChunkSum {
    /// How many there are.
    pub count: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// What their program may use of them, in bytes.
    pub usable: u64,
}

impl ChunkSum {
    /// All of another sum, too.
    pub const fn join(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.usable = self.usable.saturating_add(other.usable);
    }
}

/// Blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SizeRow {
    /// What the program may use of each, in bytes.
    pub usable: u64,
    /// How many are live.
    pub live: u64,
    /// How many were freed.
    pub freed: u64,
}

/// A heap in sums.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Whose heap it is.
    pub allocator: Allocator,
    /// The main one first.
    pub arenas: Vec<Arena>,
    /// What is not as it should be.
    pub findings: Vec<Finding>,
    /// What the allocator says it has in chunks with mappings of their own; None if that is not known.
    pub mapped_bytes: Option<u64>,
    /// Chunks by what they are; true: live ones that have mappings of their own.
    pub chunks: BTreeMap<(State, bool), ChunkSum>,
    /// All sizes, those with the most live bytes first, then those with the most freed ones. The ends of arenas are no
    /// blocks.
    pub sizes: Vec<SizeRow>,
}

impl Summary {
    /// Those of the chunks whose state is `wanted`.
    pub fn of(&self, wanted: fn(State) -> bool) -> ChunkSum {
        let mut sum = ChunkSum::default();
        self.chunks.iter().filter(|((state, _), _)| wanted(*state)).for_each(|(_, of)| sum.join(*of));
        sum
    }
}

impl Walk {
    /// The heap in sums.
    pub fn summary(&self) -> Summary {
        let mut chunks: BTreeMap<(State, bool), ChunkSum> = BTreeMap::new();
        for region in &self.regions {
            for chunk in self.of(region) {
                let key = (chunk.state, chunk.state == State::Live && region.arena.is_none());
                let one = ChunkSum { count: 1, bytes: chunk.size(), usable: chunk.usable() };
                chunks.entry(key).or_default().join(one);
            }
        }
        Summary {
            allocator: self.allocator,
            arenas: self.arenas.clone(),
            findings: self.findings.clone(),
            mapped_bytes: self.mapped_bytes,
            chunks,
            sizes: self.sizes(),
        }
    }

    fn sizes(&self) -> Vec<SizeRow> {
        let mut rows: FxHashMap<u64, SizeRow> = FxHashMap::default();
        for chunk in self.chunks.iter().filter(|chunk| !matches!(chunk.state, State::Top | State::Own)) {
            let usable = chunk.usable();
            let row = rows.entry(usable).or_insert(SizeRow { usable, live: 0, freed: 0 });
            *if chunk.state == State::Live { &mut row.live } else { &mut row.freed } += 1;
        }
        let mut rows: Vec<SizeRow> = rows.into_values().collect();
        let bytes = |row: &SizeRow, count: u64| Reverse(row.usable.saturating_mul(count));
        rows.sort_unstable_by_key(|row| (bytes(row, row.live), bytes(row, row.freed), row.usable));
        rows
    }
}
