//! The address space of a forked child: a copy, with everything of ours in it.

use super::AddressSpace;
use super::findings::Findings;
use crate::tracer::code::TargetCode;
use crate::tracer::guardian::Guardian;
use crate::tracer::memory::TargetMemory;
use crate::tracer::{Result, ids};
use std::collections::BTreeSet;

impl AddressSpace {
    /// The address space of the process `child`, whose one task has just come to be as a copy, and is stopped. Other
    /// threads may have gone on since the fork: what has changed meanwhile is changed in the copy, too.
    pub fn fork(&self, child: i32, guardian: Option<&Guardian>) -> Result<Self> {
        let mut memory = TargetMemory::open(child, child)?;
        memory.stands_still(Some(child));
        let guarded = match (guardian, self.code.guarded()) {
            (Some(guardian), Some(original)) => Some(guardian.guard_copy(child, &memory, original)),
            _ => None,
        };
        let mut copy = Self {
            pid: child,
            memory,
            code: self.code.fork(guarded),
            breakpoints: self.breakpoints.clone(),
            unwinder: self.unwinder.fork(),
            maps: self.maps.clone(),
            modules: self.modules.clone(),
            inroads: self.inroads.clone(),
            ways: self.ways.clone(),
            looks_ahead: false,
            deferred: self.deferred.clone(),
            holds_back: self.holds_back,
            probing: self.probing,
            is_jumped: false,
            is_guarded: false,
            exit_watched: self.exit_watched,
            tests_watched: self.tests_watched,
            python: self.python.forked(),
            pad_mappings: self.pad_mappings,
            stack_families: self.stack_families.clone(),
            findings: Findings { warnings: Vec::new(), blind_spots: self.findings.blind_spots.clone() },
            // The child may get another root, which is looked at with its modules.
            search: self.search.clone(),
            objects: self.objects.clone(),
            // The child asks for those itself: it does not know of them yet.
            awaited_frames: Vec::new(),
            pid_inside: ids::pid_inside(child),
            root: self.root.clone(),
            aside_for: BTreeSet::new(),
        };
        if let Err(error) = copy.code.catch_up_with(&mut copy.memory, &self.memory) {
            // Its caller lets the child go with its own code.
            copy.code.end_guard();
            copy.code = TargetCode::default();
            return Err(error);
        }
        Ok(copy)
    }
}
