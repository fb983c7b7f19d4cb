//! Reallocs in progress: between entry and return the old block counts as live, but its address may be another's
//! already.

use crate::base::addr::Addr;
use crate::event::Call;

/// A realloc that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Realloc {
    pub(super) old: Addr,
    pub(super) by: Call,
    pub(super) state: OldBlock,
}

/// What became of the old block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OldBlock {
    /// The old block is live; it was born as this allocation.
    Held { birth: u64 },
    /// Its address was handed out to another thread: the block is freed, and counted so.
    AddressReused,
    /// It was not live at the beginning, and may be from before.
    Unknown { preexisting: bool },
}

/// Those that have not returned, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub(super) struct Reallocs {
    pending: Vec<Realloc>,
}

impl Reallocs {
    pub(super) fn push(&mut self, realloc: Realloc) {
        self.pending.push(realloc);
    }

    /// Takes out the realloc of `old` that this thread has begun last.
    pub(super) fn take(&mut self, old: Addr, task: u32) -> Option<Realloc> {
        let at = self.pending.iter().rposition(|pending| pending.old == old && pending.by.task.serial == task)?;
        Some(self.pending.remove(at))
    }

    /// The address of a block is handed out while the block counts as live. Returns the call that has freed it, if that
    /// is one of these.
    pub(super) fn lose_address(&mut self, addr: Addr, birth: u64) -> Option<Call> {
        let held = OldBlock::Held { birth };
        let pending = self.pending.iter_mut().find(|pending| pending.old == addr && pending.state == held)?;
        pending.state = OldBlock::AddressReused;
        Some(pending.by)
    }

    /// The process is a copy of another one, whose thread `parent` is `child` here.
    pub(super) fn fork(&mut self, parent: u32, child: u32) {
        self.pending.retain_mut(|pending| {
            let is_forking = pending.by.task.serial == parent;
            pending.by.task.serial = child;
            is_forking
        });
    }
}
