//! Which blocks of a process that nobody has traced can't be reached any more. The blocks are those of the allocator's walk; the classes are [`crate::leaks`]'s.

use super::modules::{self, Objects};
use super::{copy, layout_of, live, memory_of, state, walk};
use crate::addr::{LoadBias, ModuleId};
use crate::heapgraph::live_blocks;
use crate::leaks::roots::{RootSources, ThreadState, find};
use crate::leaks::{Graph, MappedFiles, Scan, ScanOptions};
use crate::maps::Mapping;
use crate::symbols::{Search, Symbolizer};
use crate::tracer::copy::Copy;
use crate::tracer::memory::TargetMemory;
use crate::tracer::standstill::{self, Standstill};
use crate::tracer::{Result, procfs};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// What was found.
#[derive(Debug)]
pub struct Lost {
    /// The program's name.
    pub program: String,
    /// How long the process stood still.
    pub stood: Duration,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// The names of its threads, by id.
    pub threads: HashMap<i32, String>,
    /// The blocks with their classes.
    pub scan: Scan,
    /// How many places of the heap were not as the allocator leaves them: blocks may be missing.
    pub findings: usize,
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
    procfs::require_own()?;
    let program = procfs::program_name(pid, pid);
    let means = modules::means(pid);
    let look = |still: &Standstill| {
        let threads = still.threads();
        let tid = live(pid, &threads)?;
        let mappings = procfs::mappings(tid)?;
        let mut memory = memory_of(pid, tid)?;
        // what is shared changes under a copy, too
        let means = means.filter(|_| !mappings.iter().any(is_shared));
        let copy = copy(still, pid, means, &mappings, &mut memory);
        let states = threads.iter().map(|thread| state(pid, thread)).collect();
        let names = threads.iter().map(|thread| (thread.tid, procfs::comm(thread.tid))).collect();
        let seen = Seen { tid, mappings, states, names };
        let is_copied = copy.as_ref().is_some_and(Copy::is_whole);
        let read = (!is_copied).then(|| read(pid, &seen, &mut memory, options));
        Ok((seen, read, copy))
    };
    let then = |looked: Result<(Seen, Option<Option<Read>>, Option<Copy>)>| {
        let (seen, done, copy) = looked?;
        let is_copied = done.is_none();
        let done = match (done, &copy) {
            (None, Some(copy)) => read(pid, &seen, &mut copy.memory()?, options),
            (done, _) => done.flatten(),
        };
        Ok(done.map(|read| (seen.names, read, is_copied)))
    };
    let (read, stood) = standstill::stand_still(pid, look, then)?;
    let Some((threads, read, copied)) = read? else { return Ok(None) };
    let Read { graph, objects, findings } = read;
    Ok(Some(Lost { program, stood, copied, threads, scan: graph.classify(), findings, objects }))
}

/// Memory that others may write to, too.
fn is_shared(mapping: &Mapping) -> bool {
    mapping.perms.shared && mapping.perms.write
}

/// What was seen while the process stood still.
struct Seen {
    tid: i32,
    mappings: Vec<Mapping>,
    states: Vec<ThreadState>,
    names: HashMap<i32, String>,
}

struct Read {
    graph: Graph,
    objects: Objects,
    findings: usize,
}

fn read(pid: i32, seen: &Seen, memory: &mut TargetMemory, options: &ScanOptions) -> Option<Read> {
    let walk = walk(&seen.mappings, memory)?;
    let blocks = live_blocks(&walk);
    let mut objects = modules::open(pid, seen.tid, &seen.mappings);
    objects.mark_arena(walk.arenas.first().map(|arena| arena.at));
    let sources = RootSources {
        mappings: &seen.mappings,
        modules: &objects.data,
        threads: &seen.states,
        pid,
        registered: &[],
        blocks: &blocks,
        layout: layout_of(&walk),
        heap_is_known: true,
    };
    let roots = find(&sources, memory);
    let options = ScanOptions { files: MappedFiles::of(&seen.mappings), ..options.clone() };
    let graph = Graph::read(blocks, &roots, memory, &options);
    Some(Read { graph, objects, findings: walk.findings.len() })
}
