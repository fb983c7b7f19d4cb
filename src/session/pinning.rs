//! One CPU for heaptrace and the program, while that has one thread (`--pin`).

use crate::tracer::Result;
use crate::tracer::affinity::CpuSet;

/// The CPUs from before pinning.
#[derive(Debug)]
pub(super) struct Pinned {
    own: CpuSet,
    target: CpuSet,
    single: CpuSet,
    target_is_pinned: bool,
}

impl Pinned {
    /// Moves heaptrace to one CPU, for the target to join it. None: there is but one.
    pub(super) fn pin() -> Result<Option<Self>> {
        let own = CpuSet::of(0)?;
        let Some(single) = own.single() else { return Ok(None) };
        single.apply(0)?;
        Ok(Some(Self { own, target: own, single, target_is_pinned: true }))
    }

    /// The one CPU.
    pub(super) const fn single(&self) -> &CpuSet {
        &self.single
    }
}

impl Pinned {
    /// Whether the program shares our CPU.
    pub(super) const fn is_shared(&self) -> bool {
        self.target_is_pinned
    }

    /// Ends the sharing: the program, whose tasks these are, has a second thread now.
    pub(super) fn end(&mut self, tasks: &[i32]) {
        if !std::mem::take(&mut self.target_is_pinned) {
            return;
        }
        for &tid in tasks {
            let _ = self.target.apply(tid);
        }
        let _ = self.own.apply(0);
    }

    /// Gives a task the CPUs that it would have without us: new ones inherit their parent's.
    pub(super) fn restore(&self, tid: i32) {
        let _ = self.target.apply(tid);
    }
}
