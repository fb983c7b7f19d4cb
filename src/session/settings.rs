//! What a session is asked for.

use super::endings::Endings;
use super::nearend::NearEnd;
use super::requests::Requests;
use crate::allocators::AllocatorTable;
use crate::base::engine::EngineChoice;
use crate::base::glob::Selection;
use crate::event::Generation;
use crate::heap::leaks::ScanOptions;
use crate::symbols::Search;
use crate::trace::recorder::Recorder;
use crate::tracer::control::SignalMask;
use crate::tracer::copy::Means;
use crate::tracer::guardian::Guardian;
use crate::tracer::launch::Program;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What to trace.
#[derive(Debug)]
pub enum Target {
    /// Start this program.
    Launch {
        /// The program, found and prepared.
        program: Program,
        /// The signal mask it gets.
        mask: Box<SignalMask>,
    },
    /// Attach to this process.
    Attach {
        /// Its id.
        pid: i32,
    },
}

/// How to trace.
#[derive(Debug)]
pub struct Settings {
    /// The allocator functions to probe.
    pub table: Arc<AllocatorTable>,
    /// Where debug files are looked for, as heaptrace itself sees them.
    pub search: Search,
    /// Frames after which a stack is cut off.
    pub max_depth: u32,
    /// Whether to unwind at frees too.
    pub free_stacks: bool,
    /// One byte in so many is sampled on average, and the blocks that hold such a byte are recorded; 0: all blocks.
    pub sample_interval: u64,
    /// What recording may cost at most, in thousandths of the program's CPU time: the interval is doubled while it
    /// costs more. None: the interval stays.
    pub max_overhead: Option<u32>,
    /// When processes are put on the jump engine.
    pub engine: EngineChoice,
    /// Walk stacks with libunwind.
    pub libunwind: bool,
    /// Share one CPU with the target while it has one thread.
    pub pin: bool,
    /// The kernel kills the target if heaptrace dies: only for a launched program that will not be detached from.
    pub exit_kill: bool,
    /// At an attach, whether to look for the blocks that are there already.
    pub existing: bool,
    /// With what a copy of the process can be made for that, if there can be one.
    pub copy: Option<Means>,
    /// Place no probes until collecting is asked for.
    pub start_paused: bool,
    /// Who cleans up if heaptrace is killed.
    pub guardian: Option<Guardian>,
    /// What others ask while it traces.
    pub requests: Arc<Requests>,
    /// Whether, and how, to look for leaks at the program's end.
    pub leak_scan: Option<ScanOptions>,
    /// Whether the report has tests, one by one.
    pub per_test: bool,
    /// Whether stacks have the functions of a Python interpreter instead of its loop.
    pub python: bool,
    /// Whether what blocks hold at their ends is looked at: the program runs with glibc's fill
    /// ([`crate::heapmodel::fill`]).
    pub perturb: bool,
    /// Whether every process of the tree is traced, rather than the first one only.
    pub follow: bool,
    /// Which executables are traced.
    pub selection: Selection,
    /// Whether a profile of each process is wanted, rather than only one of all.
    pub profile_each: bool,
    /// A random id that ties the files of the session together, see [`new_session_id`].
    pub session: String,
    /// Of which blocks the recording is to be at its end.
    pub generation: Generation,
    /// Where all events are written to, if they are.
    pub trace: Option<Recorder>,
    /// Who hears what ends while the session goes on, if somebody does.
    pub endings: Option<Endings>,
    /// Who hears what the process is about to leave, if somebody does.
    pub near_end: Option<Sender<NearEnd>>,
}

/// An id for a session that no other one has: 16 hex digits.
pub fn new_session_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library's hasher is seeded from the kernel's random numbers.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(now.as_nanos());
    format!("{:016x}", hasher.finish())
}
