//! The shared region as the tracer reads and writes it.
//!
//! The program can write there at any time, so that each read may give anything; no value read is trusted before it was
//! checked.

use super::layout::SHARED_SIZE;

/// The words of a region of [`SHARED_SIZE`] bytes. Offsets are in bytes from its beginning. What lies outside of it, or
/// is not aligned to its size, reads as 0 and is not written.
pub trait Shared {
    /// The word at `offset`, with what was written before it in the program (acquire).
    fn word(&self, offset: u64) -> u64;
    /// The half word at `offset`, likewise.
    fn half(&self, offset: u64) -> u32;
    /// Writes a word, after all that was written before (release).
    fn set_word(&self, offset: u64, value: u64);
    /// Writes a half word, likewise.
    fn set_half(&self, offset: u64, value: u32);
    /// Changes a word from `old` to `new` in one step. False if it was not `old`.
    fn replace_word(&self, offset: u64, old: u64, new: u64) -> bool;
    /// Copies bytes out, which the program may be changing meanwhile. False if they do not all lie in the region.
    fn copy_out(&self, offset: u64, to: &mut [u8]) -> bool;
    /// The words there will be read soon. Changes nothing.
    fn prefetch(&self, _offset: u64) {}
    /// As [`Self::copy_out`], with words.
    fn copy_words(&self, offset: u64, to: &mut [u64; 8]) -> bool {
        let is_inside = lies_inside(offset, size_of_val(to) as u64);
        if is_inside {
            for (word, at) in to.iter_mut().zip((offset..).step_by(8)) {
                *word = self.word(at);
            }
        }
        is_inside
    }
}

/// Whether `len` bytes at `offset` lie in the region.
#[inline(always)]
pub const fn lies_inside(offset: u64, len: u64) -> bool {
    len <= SHARED_SIZE && offset <= SHARED_SIZE - len
}

/// A region in our own memory alone, for tests.
#[cfg(test)]
pub mod testing {
    use super::{Shared, lies_inside};
    use std::cell::RefCell;
    use std::collections::HashMap;

    /// Only words that were written take memory.
    #[derive(Debug, Default)]
    pub struct Made(RefCell<HashMap<u64, u64>>);

    impl Shared for Made {
        fn word(&self, offset: u64) -> u64 {
            let known = self.0.borrow();
            if offset.is_multiple_of(8) && lies_inside(offset, 8) {
                known.get(&offset).copied().unwrap_or(0)
            } else {
                0
            }
        }
        fn half(&self, offset: u64) -> u32 {
            if !offset.is_multiple_of(4) {
                return 0;
            }
            (self.word(offset & !7) >> (8 * (offset & 4))) as u32
        }
        fn set_word(&self, offset: u64, value: u64) {
            if offset.is_multiple_of(8) && lies_inside(offset, 8) {
                self.0.borrow_mut().insert(offset, value);
            }
        }
        fn set_half(&self, offset: u64, value: u32) {
            if offset.is_multiple_of(4) {
                let shift = 8 * (offset & 4);
                let rest = self.word(offset & !7) & !(0xffff_ffff << shift);
                self.set_word(offset & !7, rest | u64::from(value) << shift);
            }
        }
        fn replace_word(&self, offset: u64, old: u64, new: u64) -> bool {
            let is_old = self.word(offset) == old;
            if is_old {
                self.set_word(offset, new);
            }
            is_old
        }
        fn copy_out(&self, offset: u64, to: &mut [u8]) -> bool {
            let inside = lies_inside(offset, to.len() as u64);
            for (at, byte) in (offset..).zip(to.iter_mut().filter(|_| inside)) {
                *byte = self.word(at & !7).to_le_bytes()[(at & 7) as usize];
            }
            inside
        }
    }
}
