//! What a program maps by itself, beside its allocator: mmap(2) without a file, munmap(2), mremap(2), brk(2).

use crate::addr::Addr;
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
    /// A mremap(2) has begun. The old place may be another thread's before the matching [`MapChange::Moved`] is told.
    MoveBegan {
        /// Where it is.
        old: Addr,
        /// How much it is.
        old_bytes: u64,
    },
    /// A mremap(2) has returned: memory has another size, or is elsewhere.
    Moved {
        /// Where it was.
        old: Addr,
        /// How much it was.
        old_bytes: u64,
        /// Where it is; null if nothing has changed.
        new: Addr,
        /// How much it is.
        new_bytes: u64,
    },
}

/// The addresses of `bytes` from `start` on, as far as there are such.
pub fn range_of(start: Addr, bytes: u64) -> Range<u64> {
    start.0..start.0.saturating_add(bytes)
}
