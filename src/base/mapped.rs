//! Which parts of heaptrace's memory are files: whoever may write to such a file can shorten it, and then reading ends
//! in SIGBUS instead of an error (mmap(2)). The signal's handler asks here whether the address is such a part, and
//! whoever reads asks later whether anything was cut off. Atomics only: the handler may run at any instruction.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Files that can be mapped at a time: large modules and their debug files.
const MAX_FILES: usize = 512;

static PLACES: [Place; MAX_FILES] = [const { Place::empty() }; MAX_FILES];

/// Whether a signal handler asks here.
static IS_SURVIVED: AtomicBool = AtomicBool::new(false);

/// Notes that reading what was cut off a registered file does not end the process any more.
pub fn note_handler() {
    IS_SURVIVED.store(true, Ordering::Release);
}

/// Whether the process survives reading what was cut off a registered file. A program that embeds heaptrace
/// has no handler unless it installs it.
pub fn is_survived() -> bool {
    IS_SURVIVED.load(Ordering::Acquire)
}

/// One mapped file; empty while `start` is 0.
#[derive(Debug)]
struct Place {
    start: AtomicUsize,
    /// One past the last byte; 0 until the place is filled.
    end: AtomicUsize,
    cut: AtomicBool,
}

impl Place {
    const fn empty() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0), cut: AtomicBool::new(false) }
    }
}

/// A mapped file that the handler knows of as long as this value lives. It must be dropped before the file is unmapped.
#[derive(Debug)]
pub struct Registered(&'static Place);

/// Makes a mapped file known. None if there are too many.
pub fn register(mapping: &[u8]) -> Option<Registered> {
    let Range { start, end } = mapping.as_ptr_range();
    let (start, end) = (start.addr(), end.addr());
    let is_free = |place: &&Place| place.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let place = PLACES.iter().find(is_free)?;
    place.cut.store(false, Ordering::Relaxed);
    place.end.store(end, Ordering::Release);
    Some(Registered(place))
}

impl Registered {
    /// Whether the file was found shorter than it had been: what was behind its new end was read as zeros.
    pub fn is_cut(&self) -> bool {
        self.0.cut.load(Ordering::Acquire)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// From `addr` to the end of the mapped file that it lies in, which is noted to be cut off there. None if it lies in
/// none. Async-signal-safe.
pub fn cut_at(addr: usize) -> Option<Range<usize>> {
    PLACES.iter().find_map(|place| {
        let end = place.end.load(Ordering::Acquire);
        let start = place.start.load(Ordering::Acquire);
        (start != 0 && (start..end).contains(&addr)).then(|| {
            place.cut.store(true, Ordering::Release);
            addr..end
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_a_file_while_that_is_registered() {
        let bytes = vec![0u8; 100];
        let (start, end) = (bytes.as_ptr().addr(), bytes.as_ptr().addr() + 100);
        assert_eq!(cut_at(start), None);
        let registered = register(&bytes).unwrap();
        assert!(!registered.is_cut());
        assert_eq!((cut_at(end), cut_at(start - 1), registered.is_cut()), (None, None, false));
        assert_eq!(cut_at(start + 99), Some(start + 99..end));
        assert!(registered.is_cut());
        drop(registered);
        assert_eq!(cut_at(start), None);
        assert!(!register(&bytes).unwrap().is_cut(), "the next one begins anew");
    }
}
