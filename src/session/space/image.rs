//! The process's image: its memory, what of ours is written to its code, and what is mapped.

mod aside;
pub(super) mod calls;
mod compare;
mod ours;
pub(super) mod pads;
mod returned;

use super::OriginalMemory;
use super::findings::Findings;
use super::image::pads::PadMappings;
use crate::base::addr::Addr;
use crate::heap::leaks::MappedFiles;
use crate::image::maps::{self, MapIndex, Mapping};
use crate::tracer::code::TargetCode;
use crate::tracer::guardian::Guardian;
use crate::tracer::memory::TargetMemory;
use crate::tracer::root::TargetRoot;
use crate::tracer::{Result, ids, procfs};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// See the module's head.
#[derive(Debug)]
pub struct Image {
    pub(super) pid: i32,
    /// The id that the process has in its own pid namespace, if that is another one.
    pub(super) pid_inside: Option<i32>,
    /// The process's root folder, if it is not ours.
    pub(super) root: Option<Arc<TargetRoot>>,
    /// The bytes.
    pub memory: TargetMemory,
    /// What of ours is written to the code.
    pub code: TargetCode,
    /// What was mapped when it was last looked.
    pub maps: MapIndex,
    pub(super) pad_mappings: PadMappings,
    /// Children that share the memory and are not ours, for whom it has no breakpoints at this moment.
    pub(super) aside_for: BTreeSet<i32>,
}

impl Image {
    /// That which the live task `tid` of process `pid` has now. Reads no maps yet.
    pub(super) fn open(pid: i32, tid: i32, guardian: Option<&Guardian>) -> Result<Self> {
        let memory = TargetMemory::open(pid, tid)?;
        Ok(Self {
            pid,
            pid_inside: ids::pid_inside(pid),
            root: TargetRoot::of(tid).map(Arc::new),
            code: TargetCode::new(guardian.map(|guardian| guardian.guard(pid, &memory))),
            memory,
            maps: MapIndex::new(Vec::new()),
            pad_mappings: PadMappings::default(),
            aside_for: BTreeSet::new(),
        })
    }

    /// The copy in the process `child`: see [`AddressSpace::fork`](super::AddressSpace::fork).
    pub(super) fn fork(&self, child: i32, guardian: Option<&Guardian>) -> Result<Self> {
        let mut memory = TargetMemory::open(child, child)?;
        memory.stands_still(Some(child));
        let guarded = match (guardian, self.code.guarded()) {
            (Some(guardian), Some(original)) => Some(guardian.guard_copy(child, &memory, original)),
            _ => None,
        };
        let mut copy = Self {
            pid: child,
            pid_inside: ids::pid_inside(child),
            // The child may get another root, which is looked at with its modules.
            root: self.root.clone(),
            memory,
            code: self.code.fork(guarded),
            maps: self.maps.clone(),
            pad_mappings: self.pad_mappings,
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

    /// Reads the maps again, through the live task `tid`.
    pub(super) fn read_maps(&mut self, findings: &mut Findings, tid: i32) -> Result<()> {
        let text = procfs::maps(tid)?;
        match maps::parse(&text) {
            Ok(mut mappings) => {
                for mapping in &mut mappings {
                    let inside = |path: &PathBuf| self.root.as_ref()?.inside(path);
                    if let Some(path) = mapping.path.as_ref().and_then(inside) {
                        mapping.path = Some(path);
                    }
                }
                self.maps = MapIndex::new(mappings);
            }
            Err(error) => findings.note_blind_spot(format!("process {}: {error}", self.pid)),
        }
        Ok(())
    }

    /// The process's root folder, if it is not ours, and the id that it has in its own pid namespace, if it has one.
    pub fn root_and_inner_pid(&self) -> (Option<Arc<TargetRoot>>, Option<i32>) {
        (self.root.clone(), self.pid_inside)
    }

    /// All mappings in the order of addresses, as they were when last read.
    pub fn mappings(&self) -> &[Mapping] {
        self.maps.mappings()
    }

    /// The files that are mapped.
    pub fn mapped_files(&self) -> MappedFiles {
        MappedFiles::of(self.maps.mappings())
    }

    /// The function's first `len` bytes without us.
    pub fn original_bytes(&self, at: Addr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let n = self.read_original(at, &mut bytes);
        bytes.truncate(n);
        bytes
    }

    /// Reads code without us. Returns how many bytes could be read.
    pub(super) fn read_original(&self, at: Addr, to: &mut [u8]) -> usize {
        let n = self.memory.read_uncached(at, to);
        self.code.patches().mask(at, to);
        n
    }

    /// The memory, to read meanwhile.
    pub fn original_memory(&mut self) -> OriginalMemory<'_> {
        OriginalMemory { memory: &mut self.memory, patches: self.code.patches() }
    }
}
