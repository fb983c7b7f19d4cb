//! What reading a file may take of memory, whatever is in it.

/// A table that grows by doubling has room for twice its entries at most.
const GROWING: usize = 2;

/// A hash table has room for 16/7 of its entries at most, and is there a second time, half as large, while it grows.
const HASHED: usize = 4;

/// What a block of memory takes besides its bytes.
const BLOCK: usize = 16;

/// There is nothing left of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exhausted;

/// What may still be taken, in bytes. Everything that grows with a file is taken from it before it is allocated.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    pub(super) const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub(super) const fn left(&self) -> u64 {
        self.0
    }

    /// Takes so many bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(bytes as u64).ok_or(Exhausted)?;
        Ok(())
    }

    /// Takes what a table that grows needs for so many entries.
    pub(super) fn entries<T>(&mut self, count: usize) -> Result<(), Exhausted> {
        self.take(count.saturating_mul(size_of::<T>() * GROWING))
    }

    /// Takes what a hash table needs for one more entry.
    pub(super) fn hashed<K, V>(&mut self) -> Result<(), Exhausted> {
        self.take((size_of::<(K, V)>() + 1) * HASHED)
    }

    /// Takes what a copy of a text, or of a list, needs for its contents.
    pub(super) fn copy(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.take(bytes.saturating_add(BLOCK))
    }
}
