//! The memory of a process that nobody has traced, looked at once from outside.

mod holdings;
mod modules;
mod names;

use crate::addr::Addr;
use crate::heapgraph::Held;
use crate::heapwalk::census::{self, Census, Pages};
use crate::heapwalk::{Walk, glibc, trim};
use crate::maps::{self, Kind, Mapping};
use crate::tracer::memory::TargetMemory;
use crate::tracer::pagemap::PageMap;
use crate::tracer::standstill::{self, StandingThread};
use crate::tracer::{Result, TracerError, procfs};
use std::ops::Range;
use std::time::Duration;

/// What was seen.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Its program's name.
    pub program: String,
    /// How many threads it has.
    pub threads: usize,
    /// How long it stood still; None: it ran on meanwhile, and what changed then may be told wrongly.
    pub stood: Option<Duration>,
    /// The heap; None: its allocator can't be walked.
    pub walk: Option<Walk>,
    /// What its memory is used for.
    pub census: Census,
    /// What the blocks are, and who holds them; None where there is no heap.
    pub held: Option<Held>,
    /// What `malloc_trim(0)` would give back.
    pub trim: Option<trim::Trim>,
    /// The resident memory as the kernel tells it (`Rss` of /proc/PID/smaps_rollup), in bytes.
    pub resident: Option<u64>,
}

/// Looks at process `pid`, which stands still meanwhile unless it is to `run_on`.
///
/// # Errors
/// It can't be traced, or its memory can't be read.
pub fn inspect(pid: i32, run_on: bool) -> Result<Inspection> {
    procfs::require_own()?;
    let program = procfs::program_name(pid, pid);
    let (seen, stood) = if run_on {
        let threads: Vec<_> = procfs::tasks(pid)?.into_iter().map(|tid| StandingThread { tid, regs: None }).collect();
        (look(pid, &threads), None)
    } else {
        let (seen, stood) = standstill::stand_still(pid, |threads| look(pid, threads))?;
        (seen, Some(stood))
    };
    let seen = seen?;
    // What follows needs no more of the process.
    let census = census::take(seen.walk.as_ref(), &seen.mappings, &seen.stack_pointers, &seen.pages);
    let brk = seen.mappings.iter().rfind(|mapping| mapping.kind == Kind::Heap).map(|heap| heap.end);
    let trim = seen.walk.as_ref().map(|walk| trim::estimate(walk, brk, &seen.pages));
    let held = match (&seen.walk, seen.blocks) {
        (Some(walk), Some(blocks)) => Some(blocks.name(walk, &seen.mappings, &seen.pages)),
        _ => None,
    };
    Ok(Inspection {
        program,
        held,
        threads: seen.stack_pointers.len(),
        stood,
        walk: seen.walk,
        census,
        trim,
        resident: seen.resident,
    })
}

/// What was read.
struct Seen {
    mappings: Vec<Mapping>,
    stack_pointers: Vec<Addr>,
    pages: Pages,
    walk: Option<Walk>,
    blocks: Option<holdings::Blocks>,
    resident: Option<u64>,
}

fn look(pid: i32, threads: &[StandingThread]) -> Result<Seen> {
    let live = threads.iter().find(|thread| thread.regs.is_some()).or(threads.first());
    let tid = live.ok_or(TracerError::Died { tid: pid })?.tid;
    // /proc/PID's own files are empty once its first thread has ended
    let text = procfs::read(tid, "maps")?;
    let mappings = maps::parse(&text).map_err(|error| TracerError::Own {
        operation: "read the memory map of the process",
        source: std::io::Error::other(error),
    })?;
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
    let data = data_of(&mappings);
    let mut memory = TargetMemory::open(pid, tid)?;
    memory.new_stop(tid);
    let walk = glibc::walk(&glibc::Sources { mappings: &mappings, data: &data }, &mut memory);
    let blocks = walk.as_ref().map(|walk| holdings::read(pid, tid, threads, &mappings, walk, &mut memory));
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
    Ok(Seen { mappings, stack_pointers, pages, walk, blocks, resident })
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
