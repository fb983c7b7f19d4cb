//! Which blocks of a process that nobody has traced can't be reached any more. The blocks are those of the allocator's walk; the classes are [`crate::leaks`]'s.

use super::modules::{self, Objects};
use super::{data_of, live, mappings_of};
use crate::addr::{Addr, LoadBias, ModuleId};
use crate::heapmodel::{LiveBlock, SiteId};
use crate::heapwalk::{Chunk, State, Walk, glibc};
use crate::leaks::roots::{HeapLayout, RootSources, ThreadState, find};
use crate::leaks::{Graph, MappedFiles, Scan, ScanOptions};
use crate::symbols::{Search, Symbolizer};
use crate::tracer::memory::TargetMemory;
use crate::tracer::standstill::{self, StandingThread};
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
    let (read, stood) = standstill::stand_still(pid, |still| read(pid, &still.threads(), options))?;
    let Some(read) = read? else { return Ok(None) };
    let Read { graph, objects, threads, findings } = read;
    Ok(Some(Lost { program, stood, threads, scan: graph.classify(), findings, objects }))
}

struct Read {
    graph: Graph,
    objects: Objects,
    threads: HashMap<i32, String>,
    findings: usize,
}

fn read(pid: i32, threads: &[StandingThread], options: &ScanOptions) -> Result<Option<Read>> {
    let tid = live(pid, threads)?;
    let mappings = mappings_of(tid)?;
    let mut memory = TargetMemory::open(pid, tid)?;
    memory.new_stop(tid);
    let data = data_of(&mappings);
    let Some(walk) = glibc::walk(&glibc::Sources { mappings: &mappings, data: &data }, &mut memory) else {
        return Ok(None);
    };
    let blocks = blocks(&walk);
    let mut objects = modules::open(pid, tid, &mappings);
    let main = walk.arenas.first().map(|arena| arena.at);
    for module in &mut objects.data {
        let holds_arena = main.is_some_and(|at| module.ranges.iter().any(|range| range.contains(&at)));
        module.glibc = holds_arena.then_some(None);
    }
    let states: Vec<ThreadState> = threads.iter().map(|thread| state(pid, thread)).collect();
    let sources = RootSources {
        mappings: &mappings,
        modules: &objects.data,
        threads: &states,
        pid,
        registered: &[],
        blocks: &blocks,
        layout: HeapLayout::Glibc,
        heap_is_known: true,
    };
    let roots = find(&sources, &mut memory);
    let options = ScanOptions { files: MappedFiles::of(&mappings), ..options.clone() };
    let graph = Graph::read(blocks, &roots, &mut memory, &options);
    let threads = threads.iter().map(|thread| (thread.tid, procfs::comm(thread.tid))).collect();
    Ok(Some(Read { graph, objects, threads, findings: walk.findings.len() }))
}

/// The live blocks of a walk in the order of addresses. Where they were allocated nobody knows.
fn blocks(walk: &Walk) -> Vec<LiveBlock> {
    let mut blocks = Vec::new();
    for region in &walk.regions {
        // a chunk with a mapping of its own has no next one, whose first word would be its own
        let shared = if region.arena.is_some() { 0 } else { Chunk::HEADER };
        let live = walk.of(region).iter().filter(|chunk| chunk.state == State::Live);
        blocks.extend(live.map(|chunk| LiveBlock {
            addr: chunk.block(),
            size: chunk.usable().saturating_sub(shared),
            site: SiteId(0),
            inherited: false,
        }));
    }
    blocks.sort_unstable_by_key(|block| block.addr);
    blocks
}

fn state(pid: i32, thread: &StandingThread) -> ThreadState {
    match &thread.regs {
        Some(regs) => ThreadState::stopped(thread.tid, regs.regs(), thread.vectors.clone()),
        None => ThreadState::elsewhere(
            thread.tid,
            match procfs::position(pid, thread.tid) {
                procfs::Position::Blocked { sp: Addr(sp), .. } => Some(sp),
                _ => None,
            },
        ),
    }
}
