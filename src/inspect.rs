//! The memory of a process that nobody has traced, looked at once from outside: alive, or in a core file.

mod ahead;
pub mod core;
mod declarations;
mod holdings;
mod inside;
mod looks;
pub mod lost;
mod modules;
mod names;
mod seen;
mod threadlocals;
pub mod trimming;

use self::core::Core;
use crate::heap::file::{Identity, SavedHeap};
use crate::heap::graph::{Held, pins};
use crate::heap::walk::census::{self, Census};
use crate::heap::walk::summary::Summary;
use crate::heap::walk::{Allocator, Walk, trim};
use crate::image::maps::Kind;
use crate::tracer::memory::TargetMemory;
use crate::tracer::standstill::StandingThread;
use crate::tracer::{Result, ids, procfs};
use declarations::Declarations;
use looks::{Attempt, Purpose};
pub use modules::means;
use seen::ProcessView;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trimming::NotTrimmed;

/// What was seen.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Its program's name.
    pub program: String,
    /// How many threads it has.
    pub threads: usize,
    /// How long it stood still; None: it ran on meanwhile, and what changed then may be wrong here, or it was seen in
    /// a core.
    pub stood: Option<Duration>,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// Whether what the walk has found may be of a heap that threads are just changing.
    pub in_motion: bool,
    /// The heap in sums; None: its allocator can't be walked.
    pub heap: Option<Summary>,
    /// What its memory is used for.
    pub census: Census,
    /// What the blocks are, and who holds them; None where there is no heap.
    pub held: Option<Held>,
    /// What `malloc_trim(0)` would give back, if the allocator has that.
    pub trim: Option<trim::Trim>,
    /// What became of the call of `malloc_trim(0)`, if one was wanted.
    pub trimmed: Option<std::result::Result<u64, NotTrimmed>>,
    /// What is missing, in sentences.
    pub warnings: Vec<String>,
    /// The resident memory as the kernel tells it (`VmRSS` of /proc/PID/status), in bytes.
    pub resident: Option<u64>,
}

impl From<Inspection> for SavedHeap {
    /// What was seen, of nobody known.
    fn from(seen: Inspection) -> Self {
        Self {
            identity: Identity::default(),
            core: None,
            program: seen.program,
            threads: seen.threads,
            stood_ns: seen.stood.map(|stood| u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX)),
            copied: seen.copied,
            in_motion: seen.in_motion,
            trimmed: None,
            resident: seen.resident,
            census: seen.census,
            trim: seen.trim,
            heap: seen.heap,
            held: seen.held,
        }
    }
}

/// Which process `pid` is, now.
pub fn identity(pid: i32) -> Identity {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Identity {
        pid,
        started: procfs::start_time(pid),
        boot: procfs::boot_id(),
        taken_ns: u64::try_from(since.as_nanos()).unwrap_or(0),
        another_user: ids::users(pid).iter().any(|&user| user != procfs::effective_user()),
    }
}

/// What is to be done while a process is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meanwhile {
    /// It runs on.
    RunOn,
    /// It stands still.
    StandStill,
    /// It stands still, and once more when all has been seen, to call `malloc_trim(0)`.
    Trim,
}

/// Looks at process `pid`; `with_types`: debug information is read for the types of its variables.
///
/// # Errors
/// It can't be traced, or its memory can't be read.
pub fn inspect(pid: i32, meanwhile: Meanwhile, with_types: bool) -> Result<Inspection> {
    ids::require_own()?;
    let declared = with_types.then(|| Declarations::of_process(pid));
    let declared = declared.as_ref();
    let read =
        |seen: &ProcessView, walk: &Walk, memory: &mut TargetMemory| holdings::read(seen, walk, memory, declared);
    let program = procfs::program_name(pid, pid);
    let (look, trimmed) = match meanwhile {
        Meanwhile::RunOn => (run_on(pid, read)?, None),
        Meanwhile::StandStill => (looks::look(pid, Purpose::Census, read)?, None),
        Meanwhile::Trim => {
            let look = looks::look(pid, Purpose::Census, read)?;
            let (trimmed, stood) = trimming::trim(&look.seen, look.walk.as_ref())?;
            (Attempt { stood: look.stood + stood, ..look }, Some(trimmed))
        }
    };
    let stood = (meanwhile != Meanwhile::RunOn).then_some(look.stood);
    Ok(Inspection { trimmed, stood, ..told(program, look, declared) })
}

/// Looks at what a core has kept of a process.
pub fn in_core(core: &Arc<Core>, with_types: bool) -> Inspection {
    let declared = with_types.then(|| Declarations::of_core(core));
    let declared = declared.as_ref();
    let seen = ProcessView::in_core(core);
    let parts = core.file_parts();
    let mut memory = core.memory(&parts);
    let walk = seen.walk(&mut memory);
    let read = walk.as_ref().map(|walk| holdings::read(&seen, walk, &mut memory, declared));
    let look =
        Attempt { seen, walk, read, copied: false, stood: Duration::ZERO, in_motion: false, warnings: Vec::new() };
    told(core.file.program.clone(), look, declared)
}

/// What was seen, with its names. It needs no more of the process.
fn told(program: String, look: Attempt<holdings::Blocks>, declared: Option<&Declarations>) -> Inspection {
    let Attempt { seen, walk, read, copied, in_motion, mut warnings, .. } = look;
    let brk = seen.mappings.iter().rfind(|mapping| mapping.kind == Kind::Heap).map(|heap| heap.end);
    let of_glibc = walk.as_ref().filter(|walk| walk.allocator == Allocator::Glibc);
    let count = || {
        let census = census::take(walk.as_ref(), &seen.mappings, &seen.stack_pointers(), &seen.pages);
        let trim = of_glibc.map(|walk| trim::estimate(walk, brk, &seen.pages));
        // only there blocks of all sizes lie side by side; the remedies are its settings
        let pinned = of_glibc.map(|walk| pins::find(walk, &seen.pages)).unwrap_or_default();
        let remedy = of_glibc.and_then(|walk| pins::remedy(walk, &seen.pages, &pinned));
        (census, trim, pinned, remedy, walk.as_ref().map(Walk::summary))
    };
    // of millions of blocks each takes seconds; without a thread one is done after the other
    let (counted, held) = std::thread::scope(|scope| {
        let counting = Builder::new().name("census".to_owned()).spawn_scoped(scope, count).ok();
        let blocks = walk.as_ref().zip(read);
        let held = blocks.map(|(_, blocks)| blocks.name(&seen.mappings, declared));
        (counting.and_then(|counting| counting.join().ok()), held)
    });
    let (census, trim, pinned, remedy, heap) = counted.unwrap_or_else(count);
    let held = held.map(|held| Held { pinned, remedy, ..held });
    warnings.extend(declared.map(|declared| declared.warnings.clone()).unwrap_or_default());
    Inspection {
        program,
        held,
        threads: seen.states.len(),
        stood: None,
        copied,
        in_motion,
        heap,
        census,
        trim,
        trimmed: None,
        warnings,
        resident: seen.resident,
    }
}

/// Walks the heap of process `pid`, which runs on. None if its allocator can't be walked.
///
/// # Errors
/// Its memory can't be read.
pub fn walk(pid: i32) -> Result<Option<Walk>> {
    let seen = running(pid)?;
    Ok(seen.walk(&mut seen.memory()?))
}

/// A process that runs on is looked at so many times at most.
const MAX_RUNNING: u32 = 4;

/// Looks at a process that runs on. While threads change it, a heap may not look like one: then it is looked at again.
fn run_on<T>(pid: i32, read: impl Fn(&ProcessView, &Walk, &mut TargetMemory) -> T) -> Result<Attempt<T>> {
    let mut left = MAX_RUNNING;
    loop {
        left -= 1;
        let seen = running(pid)?.with_pages()?;
        let mut memory = seen.memory()?;
        let walk = seen.walk(&mut memory);
        if walk.is_some() || left == 0 {
            let read = walk.as_ref().map(|walk| read(&seen, walk, &mut memory));
            let warnings = Vec::new();
            return Ok(Attempt { seen, walk, read, copied: false, stood: Duration::ZERO, in_motion: true, warnings });
        }
    }
}

fn running(pid: i32) -> Result<ProcessView> {
    let threads: Vec<_> = procfs::tasks(pid)?.into_iter().map(StandingThread::elsewhere).collect();
    ProcessView::of(pid, &threads)
}
