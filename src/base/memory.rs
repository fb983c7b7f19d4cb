//! How the pure core reads the target's memory: a trait, so that tests can give it a vector.

use crate::base::addr::Addr;
use std::ops::Range;

/// Reads bytes of the target. What the core is given by the session shows no breakpoint of ours: it puts the original
/// bytes back into what it returns.
pub trait ReadMemory {
    /// Reads up to `buf.len()` bytes from `addr` on, and returns how many could be read before the first
    /// unreadable page. Zero if `addr` itself can't be read.
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize;

    /// Reads a little-endian 64-bit word; None if any byte of it can't be read.
    fn read_u64(&mut self, addr: Addr) -> Option<u64> {
        let mut word = [0; 8];
        (self.read(addr, &mut word) == 8).then(|| u64::from_le_bytes(word))
    }

    /// The little-endian 64-bit word at `addr`, where single words cost no more than many: in memory that is our own.
    /// None elsewhere.
    fn near_word(&mut self, _addr: Addr) -> Option<u64> {
        None
    }

    /// The parts of a large range, ascending, that may hold something that was written there: pages that were never
    /// touched hold nothing, and to read them would only give the target memory. All of it where that is not known.
    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        vec![range]
    }

    /// Whether the page at `at`, which can't be read, holds nothing that the program could read there either: a guard,
    /// or, where a file is
    /// mapped, what lies behind its end. Each such page of a file where that is not known.
    fn holds_nothing(&mut self, _at: Addr, is_file: bool) -> bool {
        is_file
    }

    /// Whether the byte at `addr` can be executed. None where that is not known.
    fn is_executable(&mut self, _addr: Addr) -> Option<bool> {
        None
    }

    /// Whether nothing can be read any more, as whose memory it was has ended: there is no use in going on.
    fn has_gone(&self) -> bool {
        false
    }
}

/// Memory that can be read at several places at a time.
pub trait ReadAgain: ReadMemory + Send + Sized {
    /// A second reader of the same memory; None where that can't be had.
    fn again(&self) -> Option<Self>;
}

/// The little-endian 64-bit word that begins at byte `at`; None if it is not whole.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

impl<M: ReadMemory + ?Sized> ReadMemory for &mut M {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        (**self).read(addr, buf)
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        (**self).touched(range)
    }

    fn holds_nothing(&mut self, at: Addr, is_file: bool) -> bool {
        (**self).holds_nothing(at, is_file)
    }

    fn is_executable(&mut self, addr: Addr) -> Option<bool> {
        (**self).is_executable(addr)
    }

    fn has_gone(&self) -> bool {
        (**self).has_gone()
    }
}

/// A piece of memory held in a vector: the made-up target of unit tests, and a copied stack.
#[derive(Clone, Debug, Default)]
pub struct MemoryImage {
    /// Where the first byte is.
    pub start: Addr,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl ReadMemory for MemoryImage {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let Some(offset) = addr.0.checked_sub(self.start.0).and_then(|o| usize::try_from(o).ok()) else {
            return 0;
        };
        let Some(rest) = self.bytes.get(offset..) else { return 0 };
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        n
    }
}
