//! Which blocks of a process that nobody has traced can't be reached any more. The blocks are those of the allocator's walk; the classes are [`crate::leaks`]'s.

use super::core::Core;
use super::looks::{self, Look, Purpose};
use super::modules::Objects;
use super::seen::Seen;
use crate::addr::{LoadBias, ModuleId};
use crate::heapgraph::live_blocks;
use crate::heapwalk::Walk;
use crate::leaks::{Graph, MappedFiles, Scan, ScanOptions};
use crate::memory::ReadMemory;
use crate::symbols::{Search, Symbolizer};
use crate::tracer::{Result, ids, procfs};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What was found.
#[derive(Debug)]
pub struct Lost {
    /// The program's name.
    pub program: String,
    /// How long the process stood still; None: it was seen in a core.
    pub stood: Option<Duration>,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// The names of its threads, by id.
    pub threads: BTreeMap<i32, String>,
    /// The blocks with their classes.
    pub scan: Scan,
    /// How many places of the heap were not as the allocator leaves them: blocks may be missing.
    pub findings: usize,
    /// Whether they may be of a heap that threads are just changing.
    pub in_motion: bool,
    /// What is wrong besides, in sentences.
    pub warnings: Vec<String>,
    objects: Objects,
}

impl Lost {
    /// Names the variables of the process's modules.
    pub fn symbolizer(&self, debug_dirs: &[PathBuf], root: PathBuf) -> Symbolizer {
        let mut symbolizer = Symbolizer::new(Search::new(debug_dirs, None, None, root));
        for object in &self.objects.found {
            symbolizer.add_module(object.id, object.source());
        }
        symbolizer
    }

    /// The path of a module, and where it is loaded.
    pub fn module(&self, id: ModuleId) -> Option<(&std::path::Path, LoadBias)> {
        let object = self.objects.found.iter().find(|object| object.id == id)?;
        Some((&object.path, object.bias))
    }
}

/// Classifies the live blocks of process `pid`, which stands still while they are read. None if its allocator can't be walked.
///
/// # Errors
/// It can't be traced, or its memory can't be read.
pub fn lost(pid: i32, options: &ScanOptions) -> Result<Option<Lost>> {
    ids::require_own()?;
    let program = procfs::program_name(pid, pid);
    let look = looks::look(pid, Purpose::Leaks, |seen, walk, memory| read(seen, walk, memory, options))?;
    let Look { seen, walk, read, copied, stood, in_motion, warnings } = look;
    let lost = walk.zip(read).map(|(walk, read)| told(program, seen, &walk, read));
    Ok(lost.map(|lost| Lost { stood: Some(stood), copied, in_motion, warnings, ..lost }))
}

/// Classifies the live blocks of a process that a core has kept. None if its allocator can't be walked.
pub fn in_core(core: &Arc<Core>, options: &ScanOptions) -> Option<Lost> {
    let seen = Seen::in_core(core);
    let parts = core.file_parts();
    let mut memory = core.memory(&parts);
    let walk = seen.walk(&mut memory)?;
    let read = read(&seen, &walk, &mut memory, options);
    Some(told(core.file.program.clone(), seen, &walk, read))
}

fn told(program: String, seen: Seen, walk: &Walk, (graph, objects): (Graph, Objects)) -> Lost {
    Lost {
        program,
        stood: None,
        copied: false,
        threads: seen.names,
        scan: graph.classify(),
        findings: walk.findings.len(),
        in_motion: false,
        warnings: Vec::new(),
        objects,
    }
}

fn read(seen: &Seen, walk: &Walk, memory: &mut dyn ReadMemory, options: &ScanOptions) -> (Graph, Objects) {
    let blocks = live_blocks(walk);
    let objects = seen.objects(walk);
    let roots = seen.roots(walk, &objects, &blocks, memory);
    let options = ScanOptions { files: MappedFiles::of(&seen.mappings), ..options.clone() };
    (Graph::read(blocks, &roots, memory, &options), objects)
}
