//! A time in which calls went unseen, and what stays in doubt after it.

use rustc_hash::FxHashSet;

/// What is in doubt since a process was last unobserved.
///
/// When the gap ends, a thread may be within a call that began unseen: so the block that it is handed then is not seen
/// either. It may have an address that another thread was seen to free since. That is over when the thread is seen to
/// call again.
#[derive(Clone, Debug, Default)]
pub(super) struct Gap {
    /// Blocks born up to here may have been freed unseen.
    pub(super) births: u64,
    is_over: bool,
    /// The serial numbers of the threads that were seen to call since, and the latest of them.
    seen: FxHashSet<u32>,
    latest: Option<u32>,
}

impl Gap {
    /// Calls are seen again, from now on.
    pub(super) fn end(&mut self) {
        *self = Self { births: self.births, is_over: true, ..Self::default() };
    }

    /// Whether there was a gap: then [`Self::is_first_of`] wants to know of each call.
    pub(super) const fn was_there(&self) -> bool {
        self.is_over
    }

    /// Whether this is the first call of a thread that is seen since the gap.
    pub(super) fn is_first_of(&mut self, task: u32) -> bool {
        // a thread mostly follows itself
        self.latest.replace(task) != Some(task) && self.seen.insert(task)
    }
}
