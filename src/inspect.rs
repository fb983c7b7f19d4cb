//! The memory of a process that nobody has traced, looked at once from outside.

mod holdings;
pub mod lost;
mod modules;
mod names;
pub mod trimming;

use crate::addr::Addr;
use crate::heapgraph::Held;
use crate::heapwalk::census::{self, Census, Pages};
use crate::heapwalk::{self, Allocator, Sources, Walk, trim};
use crate::leaks::roots::{HeapLayout, ThreadState};
use crate::maps::{self, Kind, Mapping};
use crate::tracer::copy::{Copy, Means};
use crate::tracer::memory::TargetMemory;
use crate::tracer::pagemap::PageMap;
use crate::tracer::standstill::{self, StandingThread, Standstill};
use crate::tracer::{Result, TracerError, procfs};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use trimming::NotTrimmed;

/// What was seen.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Its program's name.
    pub program: String,
    /// How many threads it has.
    pub threads: usize,
    /// How long it stood still; None: it ran on meanwhile, and what changed then may be told wrongly.
    pub stood: Option<Duration>,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// The heap; None: its allocator can't be walked.
    pub walk: Option<Walk>,
    /// What its memory is used for.
    pub census: Census,
    /// What the blocks are, and who holds them; None where there is no heap.
    pub held: Option<Held>,
    /// What `malloc_trim(0)` would give back, if the allocator has that.
    pub trim: Option<trim::Trim>,
    /// What became of the call of `malloc_trim(0)`, if one was wanted.
    pub trimmed: Option<std::result::Result<u64, NotTrimmed>>,
    /// The resident memory as the kernel tells it (`Rss` of /proc/PID/smaps_rollup), in bytes.
    pub resident: Option<u64>,
}

/// What is to be done while a process is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meanwhile {
    /// It runs on.
    RunOn,
    /// It stands still.
    StandStill,
    /// It stands still, and calls `malloc_trim(0)` when all has been seen.
    Trim,
}

/// Looks at process `pid`.
///
/// # Errors
/// It can't be traced, or its memory can't be read.
pub fn inspect(pid: i32, meanwhile: Meanwhile) -> Result<Inspection> {
    procfs::require_own()?;
    let program = procfs::program_name(pid, pid);
    let (seen, stood) = if meanwhile == Meanwhile::RunOn {
        let threads: Vec<_> = procfs::tasks(pid)?.into_iter().map(StandingThread::elsewhere).collect();
        let read = look(pid, &threads).and_then(|mut seen| {
            let mut memory = memory_of(pid, seen.tid)?;
            seen.read_heap(pid, &mut memory);
            Ok((seen, None, false))
        });
        (read, None)
    } else {
        let is_copied = meanwhile == Meanwhile::StandStill;
        let means = if is_copied { modules::means(pid) } else { None };
        let look = |still: &Standstill| {
            let mut seen = look(pid, &still.threads())?;
            let mut memory = memory_of(pid, seen.tid)?;
            let copy = copy(still, pid, means, &seen.mappings, &mut memory);
            if copy.as_ref().is_none_or(|copy| !copy.is_whole()) {
                seen.read_heap(pid, &mut memory);
            }
            let trimmed = (meanwhile == Meanwhile::Trim).then(|| trimming::trim(pid, &seen, still)).transpose()?;
            Ok((seen, trimmed, copy))
        };
        let read = |looked: Result<(Seen, _, Option<Copy>)>| {
            let (mut seen, trimmed, copy) = looked?;
            let copy = copy.filter(Copy::is_whole);
            if let Some(copy) = &copy {
                seen.read_heap(pid, &mut copy.memory()?);
            }
            Ok((seen, trimmed, copy.is_some()))
        };
        let (seen, stood) = standstill::stand_still(pid, look, read)?;
        (seen, Some(stood))
    };
    let (seen, trimmed, copied) = seen?;
    // What follows needs no more of the process.
    let census = census::take(seen.walk.as_ref(), &seen.mappings, &seen.stack_pointers, &seen.pages);
    let brk = seen.mappings.iter().rfind(|mapping| mapping.kind == Kind::Heap).map(|heap| heap.end);
    let of_glibc = seen.walk.as_ref().filter(|walk| walk.allocator == Allocator::Glibc);
    let trim = of_glibc.map(|walk| trim::estimate(walk, brk, &seen.pages));
    let held = match (&seen.walk, seen.blocks) {
        (Some(walk), Some(blocks)) => Some(blocks.name(walk, &seen.mappings, &seen.pages)),
        _ => None,
    };
    Ok(Inspection {
        program,
        held,
        threads: seen.stack_pointers.len(),
        stood,
        copied,
        walk: seen.walk,
        census,
        trim,
        trimmed,
        resident: seen.resident,
    })
}

/// What was read.
struct Seen {
    /// A live thread.
    tid: i32,
    mappings: Vec<Mapping>,
    stack_pointers: Vec<Addr>,
    states: Vec<ThreadState>,
    /// The names of its threads, by id.
    names: BTreeMap<i32, String>,
    pages: Pages,
    walk: Option<Walk>,
    blocks: Option<holdings::Blocks>,
    resident: Option<u64>,
}

impl Seen {
    /// Reads the heap, and who holds what, from `memory`: the process's, or a copy's.
    fn read_heap(&mut self, pid: i32, memory: &mut TargetMemory) {
        self.walk = walk(&self.mappings, memory);
        self.blocks = self.walk.as_ref().map(|walk| holdings::read(pid, self, walk, memory));
    }
}

/// A copy of a process that stands still, if it can be had.
fn copy(
    still: &Standstill,
    pid: i32,
    means: Option<Means>,
    mappings: &[Mapping],
    memory: &mut TargetMemory,
) -> Option<Copy> {
    Copy::make(still, pid, means?, mappings, memory).unwrap_or_else(|error| {
        tracing::debug!("no copy is made: {error}");
        None
    })
}

/// The memory of a process whose thread `tid` lives.
fn memory_of(pid: i32, tid: i32) -> Result<TargetMemory> {
    let mut memory = TargetMemory::open(pid, tid)?.keeping_shared();
    memory.new_stop(tid);
    Ok(memory)
}

fn walk(mappings: &[Mapping], memory: &mut TargetMemory) -> Option<Walk> {
    heapwalk::walk(&Sources { mappings, data: &data_of(mappings) }, memory)
}

fn look(pid: i32, threads: &[StandingThread]) -> Result<Seen> {
    let tid = live(pid, threads)?;
    let mappings = procfs::mappings(tid)?;
    let mut pagemap = PageMap::open(tid)?;
    let mut pages = Pages::default();
    // what the kernel maps of its own counts for no process
    for mapping in mappings.iter().filter(|mapping| mapping.kind != Kind::Vvar && mapping.kind != Kind::Vsyscall) {
        if let Some(placed) = pagemap.placed(&mapping.range()) {
            pages.resident.extend(placed.in_memory);
            pages.swapped.extend(placed.in_swap);
        }
    }
    let resident = resident_of(tid);
    let stack_pointers = threads
        .iter()
        .filter_map(|thread| match &thread.regs {
            Some(regs) => Some(Addr(regs.regs().sp())),
            None => match procfs::position(pid, thread.tid) {
                procfs::Position::Blocked { sp, .. } => Some(sp),
                _ => None,
            },
        })
        .collect();
    let states = threads.iter().map(|thread| state(pid, thread)).collect();
    let names = threads.iter().map(|thread| (thread.tid, procfs::comm(thread.tid))).collect();
    Ok(Seen { tid, mappings, stack_pointers, states, names, pages, walk: None, blocks: None, resident })
}

/// Where a thread stands, as far as it can be told.
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

/// How the heap's own memory is told from roots.
fn layout_of(walk: &Walk) -> HeapLayout {
    match walk.allocator {
        Allocator::Glibc => HeapLayout::Glibc,
        Allocator::Musl => HeapLayout::Other,
    }
}

/// A thread that lives: one that stands still if any does.
fn live(pid: i32, threads: &[StandingThread]) -> Result<i32> {
    let live = threads.iter().find(|thread| thread.regs.is_some()).or(threads.first());
    Ok(live.ok_or(TracerError::Died { tid: pid })?.tid)
}

/// The writable parts of modules that come from their files, where an allocator keeps what it begins with.
fn data_of(mappings: &[Mapping]) -> Vec<Range<Addr>> {
    let modules = maps::modules(mappings);
    let segments = modules.iter().flat_map(|module| &module.segments);
    segments.filter(|segment| segment.perms.write && !segment.perms.shared).map(Mapping::range).collect()
}

fn resident_of(tid: i32) -> Option<u64> {
    let text = procfs::read(tid, "smaps_rollup").ok()?;
    let text = String::from_utf8_lossy(&text);
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB"))?;
    kibibytes.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}
