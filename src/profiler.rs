//! Tracing as a library: a [`Profiler`] runs a program under trace and returns its [`Profile`].
//!
//! It writes nothing, and leaves the calling process's signals alone but for SIGURG, whose default is to be ignored. It
//! starts no guardian: if the calling process dies, the kernel kills the program. Files of more than 32 MB are mapped
//! while names are looked up: where somebody shortens one just then, the calling process gets SIGBUS, for which it
//! installs no handler.

mod heap;

use crate::allocators::AllocatorTable;
use crate::base::engine::EngineChoice;
use crate::base::glob::Selection;
use crate::event::Generation;
use crate::heap::leaks::ScanOptions;
use crate::naming::{self, KnownNames, NamingOptions};
use crate::profile::Profile;
use crate::profile::check::CheckRules;
use crate::session::{self, LeakScan, OwnSuppressions, Recording, SessionError, Settings, Target};
use crate::symbols::Search;
use crate::tracer::TracerError;
use crate::tracer::control::{Control, SignalMask};
use crate::tracer::launch::Program;
pub use heap::{Heap, HeapError, LiveBlocks};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

/// How many frames of a stack are kept unless another number is chosen.
pub(crate) const DEFAULT_MAX_DEPTH: u32 = 512;

/// How programs are profiled.
#[derive(Clone, Debug)]
pub struct Profiler {
    max_depth: u32,
    free_stacks: bool,
    engine: EngineChoice,
    sample_interval: u64,
    symbolize: bool,
    debug_dirs: Vec<PathBuf>,
}

impl Default for Profiler {
    fn default() -> Self {
        Self {
            max_depth: DEFAULT_MAX_DEPTH,
            free_stacks: true,
            engine: EngineChoice::default(),
            sample_interval: 0,
            symbolize: true,
            debug_dirs: Vec::new(),
        }
    }
}

/// Why there is no profile: the program could not be executed or traced, or tracing broke off. The text says which.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ProfilerError(#[from] Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Tracer(#[from] TracerError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("could not start the tracer thread: {0}")]
    Thread(std::io::Error),
    #[error("the tracer thread panicked")]
    Panic,
}

impl Profiler {
    /// Whole stacks, at allocations and at frees, with names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts stacks off after this many frames, at least one.
    #[must_use]
    pub fn max_depth(self, frames: u32) -> Self {
        Self { max_depth: frames.max(1), ..self }
    }

    /// Whether stacks are walked at frees, too: without, tracing costs less, and what is freed counts where it was
    /// allocated.
    #[must_use]
    pub fn free_stacks(self, walk: bool) -> Self {
        Self { free_stacks: walk, ..self }
    }

    /// How calls of the allocator are recorded.
    #[must_use]
    pub fn engine(self, engine: EngineChoice) -> Self {
        Self { engine, ..self }
    }

    /// Records a sample: one byte in so many on average, and the block that it lies in. The figures of a profile are
    /// then estimates of the whole. 0 records all blocks. [`Self::check`] records all of them in any case.
    #[must_use]
    pub fn sample_interval(self, bytes: u64) -> Self {
        Self { sample_interval: bytes, ..self }
    }

    /// Whether addresses get names.
    #[must_use]
    pub fn symbolize(self, names: bool) -> Self {
        Self { symbolize: names, ..self }
    }

    /// Looks for separate debug files in this folder, too, before /usr/lib/debug.
    #[must_use]
    pub fn debug_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.debug_dirs.push(folder.into());
        self
    }

    /// Runs `program` (a path, or a name to be found in $PATH) to its end.
    ///
    /// # Errors
    /// If it can't be executed or traced, or if tracing broke off and left nothing.
    pub fn run(&self, program: impl AsRef<OsStr>, arguments: &[OsString]) -> Result<Profile, ProfilerError> {
        let recording = self.trace(program.as_ref(), arguments, None)?;
        Ok(naming::build_profile(recording, self.wanted(), &mut KnownNames::default()))
    }

    /// The same, and judges it: [`Profile::verdict`] is set, and [`Profile::leaks`] if memory could be read.
    ///
    /// # Errors
    /// As those of [`Self::run`]. What could not be seen is no error: it makes the verdict inconclusive.
    pub fn check(
        &self,
        program: impl AsRef<OsStr>,
        arguments: &[OsString],
        rules: &CheckRules,
    ) -> Result<Profile, ProfilerError> {
        let mut recording = self.trace(program.as_ref(), arguments, Some(ScanOptions::default()))?;
        let mut rules = rules.clone();
        if let LeakScan::Done(scan) = &recording.leaks {
            let to_be_added = scan.own_suppressions.iter().filter(|own| !own.turn_check_off());
            for OwnSuppressions { module, function, text } in to_be_added {
                recording.facts.warnings.extend(rules.add_own_suppressions(module, function, text.as_deref()));
            }
        }
        let circumstances = naming::circumstances(&recording);
        let wanted = NamingOptions { check: true, ..self.wanted() };
        let mut profile = naming::build_profile(recording, wanted, &mut KnownNames::default());
        rules.judge(&mut profile, &circumstances);
        Ok(profile)
    }

    fn wanted(&self) -> NamingOptions<'_> {
        NamingOptions { symbolize: self.symbolize, debug_dirs: &self.debug_dirs, ..NamingOptions::default() }
    }

    fn trace(
        &self,
        program: &OsStr,
        arguments: &[OsString],
        leak_scan: Option<ScanOptions>,
    ) -> Result<Recording, Failure> {
        let program = Program::new(program, arguments, std::env::vars_os())?;
        let target = Target::Launch { program, mask: Box::new(SignalMask::of_this_thread()?) };
        let mut table = AllocatorTable::new();
        if leak_scan.is_some() {
            table.watch_deletes();
        }
        let settings = Settings {
            table: Arc::new(table),
            search: Search::new(&self.debug_dirs, None, None, PathBuf::from("/")),
            max_depth: self.max_depth,
            free_stacks: self.free_stacks,
            sample_interval: if leak_scan.is_some() { 0 } else { self.sample_interval },
            max_overhead: None,
            engine: self.engine,
            libunwind: false,
            pin: false,
            exit_kill: true,
            existing: false,
            copy: None,
            start_paused: false,
            guardian: None,
            requests: Arc::default(),
            leak_scan,
            per_test: false,
            python: false,
            perturb: false,
            follow: false,
            selection: Selection::default(),
            profile_each: true,
            session: session::new_session_id(),
            generation: Generation::default(),
            trace: None,
            endings: None,
            near_end: None,
        };
        let trace = move || session::trace(target, settings, &Arc::new(Control::new(false)), Arc::default());
        let tracer = std::thread::Builder::new().name("tracer".to_owned()).spawn(trace).map_err(Failure::Thread)?;
        Ok(tracer.join().map_err(|_| Failure::Panic)??.first)
    }
}
