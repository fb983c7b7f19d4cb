//! A copy of a process as its readers hold it.

use super::space::OriginalMemory;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::breakpoints::patches::Patches;
use crate::tracer::memory::TargetMemory;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ENDED_EARLY: &str = "the process ended, executed another program or was let go while heaptrace read a copy of \
    its memory: ask again if it still runs";

/// A copy that is to be read, on whatever thread: the memory of the program without our patches.
#[derive(Debug)]
pub(super) struct CopyLease {
    pub(super) memory: CopiedMemory,
    /// Whoever made the copy can end it.
    maker: Box<dyn CopyMaker>,
    has_ended: Arc<AtomicBool>,
}

/// Has the tracer thread end a copy that it has made.
pub(super) trait CopyMaker: Debug + Send {
    /// Ends it, and waits for that. Not for the tracer thread itself.
    fn end(&self);

    /// Asks for its end, and waits for nothing.
    fn order_end(&self);
}

/// The memory of a copy.
#[derive(Debug)]
pub(super) struct CopiedMemory {
    memory: TargetMemory,
    patches: Patches,
}

impl CopiedMemory {
    pub(super) const fn new(memory: TargetMemory, patches: Patches) -> Self {
        Self { memory, patches }
    }

    fn original(&mut self) -> OriginalMemory<'_> {
        OriginalMemory { memory: &mut self.memory, patches: &self.patches }
    }
}

impl ReadMemory for CopiedMemory {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.original().read(addr, buf)
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        self.original().touched(range)
    }

    fn has_gone(&self) -> bool {
        self.memory.has_gone()
    }
}

impl CopyLease {
    /// `has_ended` says so as soon as the copy is killed.
    pub(super) fn new(memory: CopiedMemory, maker: Box<dyn CopyMaker>, has_ended: Arc<AtomicBool>) -> Self {
        Self { memory, maker, has_ended }
    }

    /// Whether it is still there, so that what was read of it is whole. The tracer thread may not know yet that it has
    /// been killed.
    pub(super) fn is_whole(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire) && !self.memory.memory.is_gone()
    }

    /// It has been read. Not for the tracer thread, which ends it meanwhile.
    ///
    /// # Errors
    /// It was ended before, in words: what was read is not whole.
    pub(super) fn end(self) -> Result<(), String> {
        let whole = self.is_whole();
        self.maker.end();
        if whole { Ok(()) } else { Err(ENDED_EARLY.to_owned()) }
    }
}

impl Drop for CopyLease {
    fn drop(&mut self) {
        // Whoever wanted it may have gone: then this is the tracer thread.
        if !self.has_ended.load(Ordering::Acquire) {
            self.maker.order_end();
        }
    }
}
