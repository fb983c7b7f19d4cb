//! What a program maps by itself, beside its allocator: mmap(2) without a file, munmap(2), mremap(2), brk(2).

use crate::base::addr::Addr;
use std::ops::Range;

/// A change of what is mapped without a file. All amounts are in bytes, and whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapChange {
    /// Memory was mapped. What was mapped there before is gone.
    Mapped {
        /// Where it begins.
        start: Addr,
        /// How much; 0 changes nothing.
        bytes: u64,
    },
    /// Memory is about to be unmapped, or something else was mapped there that does not count.
    Unmapped {
        /// Where it begins.
        start: Addr,
        /// How much, mapped by whatever calls; 0 changes nothing.
        bytes: u64,
    },
    /// A mremap(2) has begun. The old place may be another thread's before the matching [`super::EventKind::Remapped`]
    /// is told.
    MoveBegan {
        /// Where it is.
        old: Addr,
        /// How much it is.
        old_bytes: u64,
    },
}

/// A length in bytes, packed, so that no event is larger for two of them. Address spaces of programs have 2^47 bytes;
/// from 2^48 on it is the largest length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Length([u8; 6]);

impl Length {
    /// So many bytes.
    pub const fn of(bytes: u64) -> Self {
        let [a, b, c, d, e, f, above @ ..] = bytes.to_le_bytes();
        if u16::from_le_bytes(above) == 0 { Self([a, b, c, d, e, f]) } else { Self([u8::MAX; 6]) }
    }

    /// How many bytes.
    pub const fn bytes(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// The addresses of `bytes` from `start` on, as far as there are such.
pub fn range_of(start: Addr, bytes: u64) -> Range<u64> {
    start.0..start.0.saturating_add(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_whole_as_far_as_programs_have_memory() {
        for bytes in [0, 1, 4096, 1 << 47, (1 << 48) - 1] {
            assert_eq!(Length::of(bytes).bytes(), bytes);
        }
        for bytes in [1 << 48, u64::MAX] {
            assert_eq!(Length::of(bytes).bytes(), (1 << 48) - 1);
        }
    }
}
