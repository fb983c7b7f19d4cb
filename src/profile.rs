//! The finished profile: names instead of addresses, tables instead of hash maps. What every exporter reads, and
//! what the offline commands load.
//!
//! Indices point into the tables of the same [`Profile`]; all are checked when a profile is built.

use self::course::HeapHistory;
use crate::base::addr::{Addr, ModuleId};
use crate::base::sampling;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

pub use self::cost::{Conditions, Cost, PromotedAt};
pub use self::facts::RunFacts;
pub use self::samples::Samples;
pub use self::stacks::{Stack, Stacks};
pub use crate::base::figures::{
    Amount, Anomalies, Arena, Capacity, CrossThreadFreed, FindingKind, Growth, Histograms, TimelinePoint, Totals,
};

pub mod births;
pub(crate) mod build;
pub(crate) mod check;
mod cost;
pub mod course;
pub mod diff;
mod facts;
pub(crate) mod identity;
pub mod leaks;
pub mod mapped;
pub(crate) mod merge;
pub mod objects;
pub mod pertest;
mod pool;
pub mod samples;
pub mod saved;
pub mod series;
pub mod stacks;
pub(crate) mod symbolize;
pub mod value;

/// How the profile came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mode {
    /// `heaptrace run`: from the first instruction.
    Run,
    /// `heaptrace attach`: blocks from before are unknown.
    Attach,
    /// `heaptrace check`: run, and judge.
    Check,
    /// `heaptrace snapshot` and its kin: the state of a process that `run` or `check` traces on.
    Snapshot,
    /// The same of one that `attach` traces on: blocks from before are unknown.
    #[serde(rename(serialize = "snapshot"))]
    SnapshotOfAttached,
}

impl Mode {
    /// Whether blocks from before the tracing are unknown.
    pub const fn is_attached(self) -> bool {
        matches!(self, Self::Attach | Self::SnapshotOfAttached)
    }

    /// Whether the process was traced on.
    pub const fn is_snapshot(self) -> bool {
        matches!(self, Self::Snapshot | Self::SnapshotOfAttached)
    }
}

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Exit {
    /// By exit, with this status (0–255).
    Code(i32),
    /// By this signal number.
    Signal(i32),
}

/// A signal for people: `signal 11 (SIGSEGV)`; realtime signals have no name. The numbers are those of x86-64.
pub fn signal_text(signal: i32) -> String {
    const NAMES: &str = "\
        SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM \
        SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF \
        SIGWINCH SIGIO SIGPWR SIGSYS";
    let index = usize::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    match index.and_then(|index| NAMES.split(' ').nth(index)) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

/// A process, and how it was run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// Process id, in heaptrace's namespace.
    pub pid: i32,
    /// The id that the process has in its own pid namespace, if that is another one.
    pub pid_inside: Option<i32>,
    /// Basename of the executable of the last image.
    pub program: String,
    /// The command line of the last image.
    pub command: Vec<String>,
    /// The working directory at the start.
    pub cwd: PathBuf,
    /// When tracing began.
    pub started_at: SystemTime,
    /// Whether the process belonged to another user than heaptrace's: its heap is not for everybody to read.
    pub of_another_user: bool,
    /// Other users than heaptrace's that it belonged to, or that have written what is known of it.
    pub users: BTreeSet<u32>,
    /// Whether it was read from a file, which does not say whose process it was.
    pub user_is_unknown: bool,
    /// How the program ended; None if it lives on.
    pub exit: Option<Exit>,
    /// The most memory that the last image had resident; None if it is not known, or of several processes.
    pub resident: Option<Resident>,
}

/// What was profiled.
#[derive(Clone, Debug)]
pub struct Meta {
    /// The process; of several, the first one.
    pub process: ProcessInfo,
    /// Which command made the profile.
    pub mode: Mode,
    /// Number of this file in a series, from 1 on.
    pub part: u32,
    /// For how long, in nanoseconds.
    pub duration_ns: u64,
    /// `trap` or `jump`.
    pub engine: String,
    /// Whether the profile covers the run to its regular end (false: detached early, or cut off).
    pub complete: bool,
    /// Random id that ties the parts of one series together: 16 hex digits.
    pub session: String,
    /// Mean sampling interval in bytes; 0 when every allocation was recorded.
    pub sample_interval: u64,
}

/// How much memory a process had resident at most, as the kernel tells it (`VmHWM` of proc(5)): from the start of its
/// last image on, also before an attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resident {
    /// In bytes.
    pub peak_bytes: u64,
    /// Whether the allocation of each block was recorded, from the start of the image on.
    pub all_blocks_known: bool,
}

impl Resident {
    /// What the blocks had at their peak, in tenths of a percent of what was resident at its peak. The two moments need
    /// not be the same, and blocks that were never touched are not resident: it may be more than the whole. None if not
    /// all blocks are known.
    pub fn explained_permille(&self, peak_bytes: u64) -> Option<u64> {
        if !self.all_blocks_known || self.peak_bytes == 0 {
            return None;
        }
        let (blocks, resident) = (u128::from(peak_bytes), u128::from(self.peak_bytes));
        u64::try_from((blocks * 1000 + resident / 2) / resident).ok()
    }
}

/// A module of the target.
#[derive(Clone, Debug)]
pub struct ModuleInfo {
    /// Identity within the session.
    pub id: ModuleId,
    /// The path as the target sees it, or `[vdso]`.
    pub path: PathBuf,
    /// The build id, lower-case hex.
    pub build_id: Option<String>,
    /// First process address of the executable segment.
    pub start: Addr,
    /// One past its last process address.
    pub end: Addr,
    /// File offset that `start` maps.
    pub file_offset: u64,
    /// What symbolization found for it.
    pub symbols: SymbolStatus,
    /// The package that would bring its debug information, where that was looked up because some was missing.
    pub debug_package: Option<String>,
}

/// What kinds of debug information resolved a module's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SymbolStatus {
    /// At least one function name was resolved.
    pub functions: bool,
    /// At least one file name was resolved.
    pub files: bool,
    /// At least one line number was resolved.
    pub lines: bool,
    /// Inlined frames could be told (DWARF was there).
    pub inlines: bool,
}

/// Which functions of which module had probes.
#[derive(Clone, Debug)]
pub struct AllocatorUse {
    /// Index into [`Profile::modules`].
    pub module: usize,
    /// Names of the probed functions, sorted.
    pub functions: Vec<String>,
}

/// A function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Function {
    /// Demangled, or `module+0xoffset` if unknown.
    pub name: String,
    /// As in the symbol table; equal to `name` if not mangled.
    pub system_name: String,
    /// Source file, if known.
    pub file: Option<String>,
    /// Line of the function's declaration; 0 if unknown.
    pub start_line: u32,
}

impl Function {
    /// What tells a script's file from others on any machine: its name with that of its folder; empty if it is not
    /// known.
    pub fn script_file(&self) -> &str {
        let file = self.file.as_deref().unwrap_or_default();
        let folder = file.rmatch_indices('/').nth(1);
        folder.and_then(|(at, _)| file.get(at + 1..)).unwrap_or(file)
    }
}

/// One function at a location: several for an address with inlined calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Line {
    /// Index into [`Profile::functions`].
    pub function: usize,
    /// Line number; 0 if unknown.
    pub line: u32,
    /// Whether this function was inlined into the next one of the location.
    pub inlined: bool,
}

/// A code address with its names.
#[derive(Clone, Debug)]
pub struct Location {
    /// Index into [`Profile::modules`]; None for code without a module.
    pub module: Option<usize>,
    /// The process address used for look-up (a return address less one).
    pub address: Addr,
    /// The same as the object file counts it.
    pub offset: u64,
    /// Innermost first; the last one is not inlined. Never empty.
    pub lines: Vec<Line>,
}

impl Location {
    /// Whether it is a line of a script, in a function that an interpreter ran.
    pub fn is_script(&self) -> bool {
        self.module.is_none() && Addr(self.offset).script().is_some()
    }
}

/// What one thread did with blocks of one size on one stack through one function.
///
/// In a sampled profile these are the blocks that were recorded, as they are; the exporters scale them up to what they
/// stand for, by `size` and `interval`.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Index into [`Profile::stacks`].
    pub stack: usize,
    /// Index into [`Profile::strings`]: the thread's name.
    pub thread: usize,
    /// Index into [`Profile::strings`]: the allocator function called.
    pub alloc_fn: usize,
    /// Index into [`Profile::strings`]: the program, in a profile of several processes.
    pub program: Option<usize>,
    /// The blocks came over a fork: they are live here, and were allocated by another process.
    pub inherited: bool,
    /// Block size in bytes: exact for the first 64 sizes of a stack and thread, then rounded down to eighths of an
    /// octave.
    pub size: u64,
    /// With which mean distance of two sampled bytes the blocks were picked; 0 where each one is recorded, and in what
    /// was read from a file.
    pub interval: u64,
    /// Allocated here, ever.
    pub allocated: Amount,
    /// Allocated here and freed since, wherever.
    pub freed: Amount,
    /// Freed *on* this stack, wherever allocated.
    pub deallocated: Amount,
    /// Allocated here and still live.
    pub live: Amount,
    /// Allocated here and live at the moment of the process's peak.
    pub at_peak: Amount,
    /// Allocated here and freed before the same thread's next allocation: number of blocks.
    pub temporary: u64,
    /// For how long the blocks lived that were allocated here and freed since: the sum, in nanoseconds.
    pub lifetime_ns: u64,
    /// Allocated here and freed by another thread: number of blocks.
    pub freed_elsewhere: u64,
}

impl Sample {
    /// Adds the amounts of another one, of the same key.
    pub(crate) fn add(&mut self, other: &Self) {
        self.allocated = self.allocated.plus(other.allocated);
        self.freed = self.freed.plus(other.freed);
        self.deallocated = self.deallocated.plus(other.deallocated);
        self.live = self.live.plus(other.live);
        self.at_peak = self.at_peak.plus(other.at_peak);
        self.temporary = self.temporary.saturating_add(other.temporary);
        self.lifetime_ns = self.lifetime_ns.saturating_add(other.lifetime_ns);
        self.freed_elsewhere = self.freed_elsewhere.saturating_add(other.freed_elsewhere);
    }
}

impl Profile {
    /// One with nothing in it.
    pub(crate) fn empty(meta: Meta) -> Self {
        Self {
            meta,
            totals: Totals::default(),
            cost: Cost::default(),
            anomalies: Anomalies::default(),
            allocators: Vec::new(),
            modules: Vec::new(),
            images: Vec::new(),
            children: Children::default(),
            timeline: Vec::new(),
            histograms: Histograms::default(),
            strings: Vec::new(),
            functions: Vec::new(),
            locations: Vec::new(),
            stacks: Stacks::default(),
            samples: Samples::default(),
            growths: Vec::new(),
            capacities: Vec::new(),
            stranded: Vec::new(),
            findings: Vec::new(),
            leaks: None,
            tests: None,
            suppressions: Vec::new(),
            verdict: None,
            budgets: Vec::new(),
            warnings: Vec::new(),
            processes: Vec::new(),
            saved: None,
            course: HeapHistory::default(),
        }
    }

    /// The standard error of the allocated bytes in a sampled profile, in bytes; 0 in an exact one.
    pub(crate) fn standard_error(&self) -> u64 {
        if let Some(saved) = &self.saved {
            return u64::try_from(saved.variance.isqrt()).unwrap_or(u64::MAX);
        }
        let variance =
            |sample: Sample| sample.allocated.objects as f64 * sampling::variance(sample.size, sample.interval);
        self.samples.iter().map(variance).sum::<f64>().sqrt().round() as u64
    }
}

/// An earlier image of the process, replaced by exec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Image {
    /// The process, as one profile may be of several.
    pub pid: i32,
    /// Basename of its executable.
    pub program: String,
    /// Its totals at the exec.
    pub totals: Totals,
    /// Blocks live at the exec, gone with the address space: neither leaks nor residual.
    pub gone_with_exec: Amount,
}

impl Image {
    /// Whether nothing happened in it.
    pub const fn is_empty(&self) -> bool {
        self.totals.allocations + self.totals.frees + self.totals.preexisting_frees + self.totals.failed == 0
    }
}

/// Children of the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Children {
    /// Traced to their end.
    pub followed: u64,
    /// Left to run untraced.
    pub untraced: u64,
    /// Names of the programs of untraced children, as far as known, without repeats.
    pub untraced_names: Vec<String>,
}

/// What became of a followed process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Seen {
    /// It called the allocator, and that was recorded.
    Recorded,
    /// It made no call of the allocator.
    Silent,
    /// Its program is not one of those to be traced (`--only`, `--skip`).
    Skipped,
    /// It was let go before it became a program with other rights, which the kernel gives to nobody who is traced, or
    /// the tracee of another process.
    LetGo,
}

/// One process of several.
#[derive(Clone, Debug)]
pub struct ProcessRow {
    /// Process id, in heaptrace's namespace.
    pub pid: i32,
    /// The process that made it; None for the first.
    pub parent: Option<i32>,
    /// Basename of the executable of its last image.
    pub program: String,
    /// How it ended; None if it lives on, or was let go.
    pub exit: Option<Exit>,
    /// What became of it.
    pub seen: Seen,
    /// Its own totals; inherited blocks are live in it, too.
    pub totals: Totals,
    /// What is live in it at its end that came over a fork.
    pub inherited: Amount,
    /// What of its peak did.
    pub inherited_at_peak: Amount,
    /// The most memory that its last image had resident, if that is known.
    pub resident: Option<Resident>,
    /// What `check` says of it.
    pub verdict: Option<leaks::Verdict>,
}

/// An error in the program's use of the heap, once per kind and pair of stacks.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// How often it happened.
    pub count: u64,
    /// The address of the first instance.
    pub block: Addr,
    /// The size of the block in bytes, if it is known.
    pub size: Option<u64>,
    /// The size that the offending call gave, if it gave a wrong one.
    pub given_size: Option<u64>,
    /// If the pointer lies inside a live block: how many bytes from its beginning. `size` and `alloc_stack` are then
    /// that block's.
    pub offset: Option<u64>,
    /// Of an error about alignments: the one that the block was requested with in bytes; None if with none.
    pub align: Option<u64>,
    /// Of an error about alignments: the one that the offending call gave; None if none.
    pub given_align: Option<u64>,
    /// The stack of the offending call: an index into [`Profile::stacks`].
    pub stack: usize,
    /// Where the block was allocated, if known.
    pub alloc_stack: Option<usize>,
    /// Where the block was freed first, if known.
    pub free_stack: Option<usize>,
    /// Name of the thread.
    pub thread: String,
    /// The offending function.
    pub function: String,
    /// How it compares with the baseline of `check`, if there is one.
    pub baseline: Option<leaks::BaselineStatus>,
}

impl Profile {
    /// Whether only blocks are in it that were allocated since a mark (`--since`): a warning says so, and names the
    /// mark.
    pub(crate) fn is_since_mark(&self) -> bool {
        self.warnings.iter().any(|warning| warning.contains("allocated since the mark `"))
    }

    /// Makes it a profile of the time from `start_ns` on: times count from there. What happened before must not be in
    /// it.
    pub(crate) fn begin_at(&mut self, start_ns: u64) {
        let process = &mut self.meta.process;
        process.started_at =
            process.started_at.checked_add(Duration::from_nanos(start_ns)).unwrap_or(process.started_at);
        self.totals.peak_at_ns = self.totals.peak_at_ns.saturating_sub(start_ns);
        self.timeline.iter_mut().for_each(|point| point.t_ns = point.t_ns.saturating_sub(start_ns));
        self.course.heaps.iter_mut().for_each(|heap| heap.t_ns = heap.t_ns.saturating_sub(start_ns));
        self.course.marks.retain(|(t_ns, _)| *t_ns >= start_ns);
        self.course.marks.iter_mut().for_each(|(t_ns, _)| *t_ns -= start_ns);
        self.course.resident.retain(|(t_ns, _)| *t_ns >= start_ns);
        self.course.resident.iter_mut().for_each(|(t_ns, _)| *t_ns -= start_ns);
    }
}

/// Everything that a run found out.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Profile {
    pub meta: Meta,
    pub totals: Totals,
    pub cost: Cost,
    pub anomalies: Anomalies,
    pub allocators: Vec<AllocatorUse>,
    /// The main program first.
    pub modules: Vec<ModuleInfo>,
    pub images: Vec<Image>,
    pub children: Children,
    pub timeline: Vec<TimelinePoint>,
    pub histograms: Histograms,
    pub strings: Vec<String>,
    pub functions: Vec<Function>,
    pub locations: Vec<Location>,
    pub stacks: Stacks,
    pub samples: Samples,
    /// How buffers have grown, each stack once: an index into `stacks`. Only of what was just recorded.
    pub growths: Vec<(usize, Growth)>,
    /// How much of their blocks the program has not used (`--perturb`), each stack once: an index into `stacks`.
    pub capacities: Vec<(usize, Capacity)>,
    /// Which arenas of glibc blocks lay in that other threads have freed: by stack, an index into `stacks`, and arena.
    /// Only of what was just recorded, and where much was freed so.
    pub stranded: Vec<(usize, CrossThreadFreed)>,
    pub findings: Vec<Finding>,
    /// The leak scan, if one was made.
    pub leaks: Option<leaks::Leaks>,
    /// What each test did, if that was asked for.
    pub tests: Option<pertest::Tests>,
    /// All suppression rules that were in force, in the order of their files and lines.
    pub suppressions: Vec<leaks::Suppression>,
    /// The verdict of `check`.
    pub verdict: Option<leaks::Verdict>,
    /// The budgets of `check`, in the order of its options.
    pub budgets: Vec<leaks::Budget>,
    /// Sentences for the user: what was not seen, and what to do about it.
    pub warnings: Vec<String>,
    /// The processes that this is a profile of, if there are several, in the order in which they came to be.
    pub processes: Vec<ProcessRow>,
    /// What is known besides of a profile that was read from a file; None of one that was just recorded. The figures of
    /// such a profile are scaled up already if it is sampled.
    pub saved: Option<Box<saved::Saved>>,
    /// What it was on the way to the end, if that was noted; stacks are indices into `stacks`.
    pub course: HeapHistory<usize>,
}
