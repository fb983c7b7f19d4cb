//! The address space of a forked child: a copy, with everything of ours in it.

use super::AddressSpace;
use crate::addr::Addr;
use crate::arch::INT3;
use crate::tracer::guardian::Guardian;
use crate::tracer::memory::TargetMemory;
use crate::tracer::{Result, procfs};
use std::collections::BTreeSet;

/// Bytes that are compared at once.
const PIECE: usize = 4096;

impl AddressSpace {
    /// The address space of the process `child`, whose one task has just come to be as a copy, and is stopped. Other threads
    /// may have gone on since the fork: what has changed meanwhile is changed in the copy, too.
    pub fn fork(&self, child: i32, guardian: Option<&Guardian>) -> Result<Self> {
        let mut memory = TargetMemory::open(child, child)?;
        memory.stands_still(Some(child));
        let guarded = match (guardian, &self.guarded) {
            (Some(guardian), Some(original)) => Some(guardian.guard_copy(child, &memory, original)),
            _ => None,
        };
        let mut copy = Self {
            pid: child,
            memory,
            guarded,
            breakpoints: self.breakpoints.clone(),
            unwinder: self.unwinder.fork(),
            pads: self.pads.clone(),
            maps: self.maps.clone(),
            loaded: self.loaded.clone(),
            records: self.records.clone(),
            allocator_code: self.allocator_code.clone(),
            loader_state: self.loader_state,
            deferred: self.deferred.clone(),
            holds_back: self.holds_back,
            demoted: self.demoted.clone(),
            remote_code: self.remote_code,
            sigtrap_fallback: self.sigtrap_fallback,
            no_remote_calls: self.no_remote_calls,
            mapped_pads: self.mapped_pads,
            entry_families: self.entry_families.clone(),
            wrappers: self.wrappers.clone(),
            call_families: self.call_families.clone(),
            outward_calls: self.outward_calls.clone(),
            stack_families: self.stack_families.clone(),
            probing: self.probing,
            warnings: Vec::new(),
            // The child may get another root, which is looked at with its modules.
            search: self.search.clone(),
            objects: self.objects.clone(),
            pid_inside: procfs::pid_inside(child),
            root: self.root.clone(),
            retired: self.retired.clone(),
            exit_watched: self.exit_watched,
            libc_frames: self.libc_frames.clone(),
            annotations: self.annotations.clone(),
            exec_calls: self.exec_calls.clone(),
            aside_for: BTreeSet::new(),
            leak_suppressions: self.leak_suppressions.clone(),
            blind_spots: self.blind_spots.clone(),
            // The child asks for those itself: it has not yet been told of them.
            awaited_frames: Vec::new(),
        };
        if let Err(error) = copy.catch_up_with(self) {
            // Its caller lets the child go with its own code.
            copy.breakpoints = crate::breakpoints::BreakpointTable::default();
            copy.end_guard();
            return Err(error);
        }
        Ok(copy)
    }

    /// Makes what is written to this copy the same as what is written to `original` now.
    fn catch_up_with(&mut self, original: &Self) -> Result<()> {
        let regions: Vec<_> = original.pads.regions().collect();
        for (start, len) in regions {
            self.copy_code(original, start, usize::try_from(len).unwrap_or(0))?;
        }
        let placed: Vec<_> = self.breakpoints.originals().map(|(addr, _)| (addr, INT3)).collect();
        let removed: Vec<_> = self.breakpoints.removed().filter(|(addr, _)| self.holds_int3(*addr)).collect();
        for (addr, byte) in placed.into_iter().chain(removed) {
            let mut found = [0];
            if self.memory.read_uncached(addr, &mut found) == 1 && found != [byte] {
                self.memory.write_code(addr, &[byte])?;
            }
        }
        Ok(())
    }

    fn copy_code(&mut self, original: &Self, start: Addr, len: usize) -> Result<()> {
        let (mut theirs, mut ours) = ([0; PIECE], [0; PIECE]);
        for offset in (0..len).step_by(PIECE) {
            let at = start.add(offset as u64);
            let size = PIECE.min(len - offset);
            let (Some(theirs), Some(ours)) = (theirs.get_mut(..size), ours.get_mut(..size)) else { continue };
            let read = original.memory.read_uncached(at, theirs);
            if read == size && self.memory.read_uncached(at, ours) == size && theirs != ours {
                self.memory.write_code(at, theirs)?;
            }
        }
        Ok(())
    }
}
