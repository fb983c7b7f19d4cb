//! One CPU for heaptrace and the program, while that has one thread (`--pin`).

use super::tasks::Tasks;
use crate::tracer::Result;
use crate::tracer::affinity::CpuSet;

/// The CPUs of a process. Without `--pin` nothing is done about them.
#[derive(Debug, Default)]
pub(super) struct Affinity(Option<Pinned>);

/// The CPUs from before pinning.
#[derive(Debug)]
struct Pinned {
    own: CpuSet,
    target: CpuSet,
    single: CpuSet,
    target_is_pinned: bool,
}

impl Affinity {
    /// Moves heaptrace to one CPU, for the target to join it, unless there is but one.
    pub(super) fn pin() -> Result<Self> {
        let own = CpuSet::of(0)?;
        let Some(single) = own.single() else { return Ok(Self(None)) };
        single.apply(0)?;
        Ok(Self(Some(Pinned { own, target: own, single, target_is_pinned: true })))
    }

    /// The one CPU.
    pub(super) fn single(&self) -> Option<&CpuSet> {
        self.0.as_ref().map(|pinned| &pinned.single)
    }

    /// Whether the program shares our CPU.
    pub(super) fn is_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|pinned| pinned.target_is_pinned)
    }

    /// Ends the sharing: the program, whose tasks these are, has a second thread now.
    pub(super) fn unpin(&mut self, tasks: &Tasks) {
        let Some(pinned) = &mut self.0 else { return };
        if !std::mem::take(&mut pinned.target_is_pinned) {
            return;
        }
        for tid in tasks.tids() {
            let _ = pinned.target.apply(tid);
        }
        let _ = pinned.own.apply(0);
    }

    /// Gives a task the CPUs that it would have without us: new ones inherit their parent's.
    pub(super) fn restore(&self, tid: i32) {
        if let Some(pinned) = &self.0 {
            let _ = pinned.target.apply(tid);
        }
    }
}
