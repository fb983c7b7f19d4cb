//! The command line: clap types, resolved to Options; no clap type goes further.
//!
//! Two layers: [`args`] holds what the user may type, this file what it means. A command or an option that is planned
//! but does not exist yet is refused here, before anything starts.

mod args;
mod ask;
mod check;
mod convert;
mod core;
mod errors;
mod formats;
mod heap;
mod occasions;
mod pages;
mod saved;
mod series;
mod snapshot;
mod subcommands;
#[cfg(test)]
mod tests;
mod top;
mod trace;
mod values;

use crate::base::engine::EngineChoice;
use crate::base::glob::Selection;
use crate::export::output::DEFAULT_OUTPUT;
use crate::export::{Format, PprofColumns, Value};
use crate::tracer::control::UserSignal;
pub use check::{CheckOptions, LeakKinds};
pub use convert::ConvertOptions;
pub use trace::TraceOptions;

use args::{AttachArguments, ProfileArguments, RunArguments};
pub use ask::{CtlOptions, LeaksOptions, LeaksTarget, Order};
use check::resolve_check;
use clap::{CommandFactory, FromArgMatches};
pub use core::CoreTarget;
pub use heap::{HeapFormat, HeapOptions, HeapTarget};
pub use occasions::Occasions;
pub use saved::{DiffOptions, MergeOptions, ReportOptions, SavedFiles, ViewOptions};
pub use series::{DEFAULT_SERIES, SeriesOptions};
pub use snapshot::SnapshotOptions;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use top::TopOptions;

/// The interval that `--max-overhead` begins with, in bytes.
const MIN_INTERVAL: u64 = 4096;
use subcommands::{Arguments, Subcommand};

/// The exit status of heaptrace's own failures, wrong usage included: one that few programs use themselves, so that a
/// script can distinguish it from the profiled program's own status (as env(1), timeout(1) and xargs(1) have it).
pub const EXIT_OWN_FAILURE: u8 = 125;

/// What the user wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Profile a program from its first instruction.
    Run(RunOptions),
    /// Profile a running process, then leave it as it was.
    Attach(AttachOptions),
    /// Run a program and judge it.
    Check(CheckOptions),
    /// Classify the live blocks of a traced process.
    Leaks(LeaksOptions),
    /// Give an order to the tracer of a process.
    Ctl(CtlOptions),
    /// Show what fills the memory of a process that nobody has traced.
    Heap(HeapOptions),
    /// Write what is live in a traced process now.
    Snapshot(SnapshotOptions),
    /// Watch the heap of a running process.
    Top(TopOptions),
    /// Show a saved profile.
    Report(ReportOptions),
    /// Show a saved profile in a browser.
    View(ViewOptions),
    /// Make a profile of a trace.
    Convert(ConvertOptions),
    /// Make one profile of many.
    Merge(MergeOptions),
    /// Show how two differ.
    Diff(DiffOptions),
    /// Show what this machine allows.
    Doctor(DoctorOptions),
    /// Be the guardian of another heaptrace's target.
    StandGuard {
        /// Whether the target shares a CPU with that.
        pinned: bool,
    },
}

/// Options of `heaptrace run`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// What to start: a path, or a name to be found in $PATH.
    pub program: OsString,
    /// Its arguments, without the program itself.
    pub arguments: Vec<OsString>,
    /// Whether it runs with the fill of glibc's malloc.
    pub perturb: bool,
    /// How to profile it.
    pub profile: ProfileOptions,
}

/// Options of `heaptrace attach`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachOptions {
    /// Which process.
    pub target: AttachTarget,
    /// Whether to wait for it.
    pub wait: Wait,
    /// Whether to classify what is live before letting go.
    pub leaks_at_end: bool,
    /// Whether to look for the blocks that are there already.
    pub existing: bool,
    /// How to profile it.
    pub profile: ProfileOptions,
}

/// Which process to attach to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttachTarget {
    /// The one with this process id; positive.
    Pid(i32),
    /// The only one whose executable or argv\[0\] has this basename.
    Name(String),
}

/// What to do if no process has the name that was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wait {
    /// To say so.
    #[default]
    No,
    /// To wait for the first one.
    ForFirst,
    /// To wait for one after the other.
    ForEach,
}

/// Options of `heaptrace doctor`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoctorOptions {
    /// A process to look at, too.
    pub pid: Option<i32>,
    /// Whether to colour the output.
    pub color: When,
    /// Where separate debug files are looked for besides /usr/lib/debug.
    pub debug_dirs: Vec<PathBuf>,
}

/// What `run`, `attach` and `check` share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileOptions {
    /// The files to write, patterns not yet filled in; never empty, but for `check`.
    pub outputs: Vec<PathBuf>,
    /// The format of all of them, whatever their names say.
    pub format: Option<Format>,
    /// How allocator calls are intercepted.
    pub engine: EngineChoice,
    /// Stop tracing after this time; never zero.
    pub duration: Option<Duration>,
    /// Collect nothing until an order to resume.
    pub start_paused: bool,
    /// Collect nothing for this time; then begin.
    pub delay: Option<Duration>,
    /// The signal to heaptrace that pauses and resumes collecting.
    pub toggle_signal: Option<UserSignal>,
    /// When snapshots are written and marks set by themselves.
    pub occasions: Occasions,
    /// Whether every process of the tree is traced.
    pub follow: bool,
    /// Which executables of the tree are.
    pub selection: Selection,
    /// Whether to unwind at frees too.
    pub free_stacks: bool,
    /// One byte in so many is sampled on average; 0: every block is recorded.
    pub sample_interval: u64,
    /// What recording may cost at most, in thousandths of the program's CPU time.
    pub max_overhead: Option<u32>,
    /// Frames after which a stack is cut off; at least 1.
    pub max_depth: usize,
    /// The user's own allocating functions, as typed.
    pub alloc_fns: Vec<String>,
    /// The user's own freeing functions, as typed.
    pub free_fns: Vec<String>,
    /// Whether to record what the program maps by itself.
    pub mmap: bool,
    /// Whether to show Python functions in place of the interpreter's loop.
    pub python: bool,
    /// Share one CPU with the target while it has one thread.
    pub pin: bool,
    /// Who walks the stacks.
    pub unwinder: Unwinder,
    /// Whether to resolve addresses to names.
    pub symbolize: bool,
    /// Where separate debug files are looked for, in this order, before /usr/lib/debug: those of the options, then
    /// those of $HEAPTRACE_DEBUG_PATH.
    pub debug_dirs: Vec<PathBuf>,
    /// A folder below which the target's files are looked for instead of /.
    pub sysroot: Option<PathBuf>,
    /// Whether to fetch debug files from the servers in $DEBUGINFOD_URLS.
    pub debuginfod: bool,
    /// Where to copy the program's files to, for later symbolization.
    pub save_binaries: Option<PathBuf>,
    /// A shell command for each finished file.
    pub on_profile: Option<OsString>,
    /// Whether a series of profiles is wanted, and of what periods.
    pub series: Option<SeriesOptions>,
    /// Which columns a pprof file gets.
    pub pprof_columns: PprofColumns,
    /// Whether pages show the text of source files.
    pub source: bool,
    /// What flame graphs, folded stacks and text reports show; None: what the profile is about.
    pub value: Option<Value>,
    /// How many stacks text reports and the summary show; None: as many as each finds fitting.
    pub top: Option<usize>,
    /// Where all events are written to, if they are.
    pub trace: Option<TraceOptions>,
    /// How much to say on stderr.
    pub verbosity: Verbosity,
    /// Whether to draw the progress line.
    pub progress: When,
    /// Whether to colour what goes to stderr.
    pub color: When,
}

/// Who walks the stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unwinder {
    /// heaptrace itself.
    #[default]
    Own,
    /// libunwind, for comparison, if it is installed.
    Libunwind,
}

/// A choice that can be left to circumstances.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum When {
    /// If the output is a terminal, as a rule.
    #[default]
    Auto,
    /// In any case.
    Always,
    /// In no case.
    Never,
}

impl When {
    /// The choice, where `auto` is what circumstances suggest.
    pub const fn resolve(self, auto: bool) -> bool {
        match self {
            Self::Auto => auto,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// How much to say on stderr.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// The progress line and the summary.
    #[default]
    Normal,
    /// Diagnostics too; 1 = what happens, 2 = why, 3 = everything.
    Verbose(u8),
}

/// Why there is no command to carry out: a text to print instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The user asked for this text (`--help`, `--version`): it goes to stdout, exit status 0.
    Answer(String),
    /// The command line is wrong: this goes to stderr, exit status [`EXIT_OWN_FAILURE`].
    Usage(String),
}

/// What makes the profile of a whole trace, with names from where the environment says, and writes nothing.
///
/// # Errors
/// None that the user could cause.
pub fn whole_trace(trace: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Result<ConvertOptions, Refusal> {
    convert::whole(trace, binary_path(&variable))
}

/// Where files with the names of a trace's addresses are looked for besides the usual places.
fn binary_path(variable: &dyn Fn(&str) -> Option<OsString>) -> std::vec::IntoIter<PathBuf> {
    let folders = ["HEAPTRACE_DEBUG_PATH", "PPROF_BINARY_PATH"].map(|name| variable(name).unwrap_or_default());
    let folders: Vec<PathBuf> = folders.iter().flat_map(std::env::split_paths).collect();
    folders.into_iter().filter(|folder| !folder.as_os_str().is_empty()).collect::<Vec<_>>().into_iter()
}

/// Reads a command line, program name included. `color`: whether help may hold terminal colours; `variable`: reads the
/// environment.
///
/// # Errors
/// [`Refusal`]: help was asked for, or the command line is wrong.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    color: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, Refusal> {
    let matches = command().try_get_matches_from(arguments).map_err(|error| errors::refusal(&error, color))?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(|error| errors::refusal(&error, color))?;
    let debug_path = variable("HEAPTRACE_DEBUG_PATH").unwrap_or_default();
    let debug_path = || std::env::split_paths(&debug_path).filter(|dir| !dir.as_os_str().is_empty());
    Ok(match arguments.command {
        Subcommand::Run(arguments) => Command::Run(resolve_run(arguments, debug_path())?),
        Subcommand::Attach(arguments) => Command::Attach(resolve_attach(arguments, debug_path())?),
        Subcommand::Leaks(arguments) => Command::Leaks(ask::resolve_leaks(arguments)?),
        Subcommand::Merge(arguments) => Command::Merge(saved::resolve_merge(arguments)?),
        Subcommand::Diff(arguments) => Command::Diff(saved::resolve_diff(arguments)?),
        Subcommand::View(arguments) => Command::View(saved::resolve_view(arguments)),
        Subcommand::Report(arguments) => Command::Report(saved::resolve_report(arguments)?),
        Subcommand::Ctl(arguments) => Command::Ctl(ask::resolve(arguments)?),
        Subcommand::Snapshot(arguments) => Command::Snapshot(snapshot::resolve(arguments)?),
        Subcommand::Top(arguments) => Command::Top(top::resolve(arguments, debug_path())?),
        Subcommand::Heap(arguments) => Command::Heap(heap::resolve(arguments)?),
        Subcommand::Convert(arguments) => Command::Convert(convert::resolve(arguments, binary_path(&variable))?),
        Subcommand::Check(arguments) => Command::Check(resolve_check(*arguments, debug_path())?),
        Subcommand::Completions(arguments) => return Err(pages::completions(&arguments)),
        Subcommand::Man(arguments) => return Err(pages::man(&arguments)),
        Subcommand::StandGuard { pinned } => Command::StandGuard { pinned },
        Subcommand::Doctor(arguments) => {
            let (pid, color) = (arguments.pid, arguments.color);
            Command::Doctor(DoctorOptions { pid, color, debug_dirs: debug_path().collect() })
        }
    })
}

fn command() -> clap::Command {
    // Help that runs over the whole width of a wide terminal is hard to read.
    let command = Arguments::command().max_term_width(100);
    // Refused with a reason: a process that runs already keeps its CPUs.
    command.mut_subcommand("attach", |attach| attach.mut_arg("pin", |pin| pin.hide(true)))
}

fn resolve_run(arguments: RunArguments, debug_path: impl Iterator<Item = PathBuf>) -> Result<RunOptions, Refusal> {
    let mut words = arguments.command.into_iter();
    Ok(RunOptions {
        // clap has seen to it that there is one.
        program: words.next().unwrap_or_default(),
        arguments: words.collect(),
        perturb: arguments.perturb.perturb,
        profile: resolve_profile(arguments.profile, debug_path)?,
    })
}

fn resolve_attach(
    arguments: AttachArguments,
    debug_path: impl Iterator<Item = PathBuf>,
) -> Result<AttachOptions, Refusal> {
    let target = match (arguments.pid.or(arguments.pid_option), arguments.by_name) {
        (Some(pid), _) => AttachTarget::Pid(pid),
        (None, Some(name)) => AttachTarget::Name(name),
        (None, None) => return Err(Refusal::Usage("attach needs a process id or --by-name NAME\n".to_owned())),
    };
    if (arguments.wait || arguments.again) && matches!(target, AttachTarget::Pid(_)) {
        return Err(Refusal::Usage(
            "--wait and --again are for --by-name: a process id is there or is not\n".to_owned(),
        ));
    }
    Ok(AttachOptions {
        target,
        wait: match (arguments.again, arguments.wait) {
            (true, _) => Wait::ForEach,
            (false, true) => Wait::ForFirst,
            (false, false) => Wait::No,
        },
        leaks_at_end: arguments.leaks_at_end,
        existing: arguments.existing,
        profile: resolve_profile(arguments.profile, debug_path)?,
    })
}

fn resolve_profile(
    arguments: ProfileArguments,
    debug_path: impl Iterator<Item = PathBuf>,
) -> Result<ProfileOptions, Refusal> {
    let occasions = arguments.occasions.resolve();
    let series = series::resolve(&arguments.series, occasions.keep)?;
    let default = if series.is_some() { DEFAULT_SERIES } else { DEFAULT_OUTPUT };
    let mut outputs = arguments.output;
    if outputs.is_empty() {
        outputs.push(
            arguments
                .format
                .map_or_else(
                    || default.to_owned(),
                    // A name that says what is in the file.
                    |format| default.replace(Format::PprofGz.name(), format.name()),
                )
                .into(),
        );
    }
    let mut debug_dirs = arguments.debug_dir;
    debug_dirs.extend(debug_path);
    Ok(ProfileOptions {
        outputs,
        format: arguments.format,
        engine: arguments.engine,
        duration: arguments.duration,
        start_paused: arguments.start_paused,
        delay: arguments.delay,
        toggle_signal: arguments.toggle_signal,
        occasions,
        follow: arguments.follow_forks,
        selection: Selection { only: arguments.only, skip: arguments.skip },
        free_stacks: !arguments.no_free_stacks,
        sample_interval: match (arguments.sample_interval, arguments.max_overhead) {
            (0, Some(_)) => MIN_INTERVAL,
            (interval, _) => interval,
        },
        max_overhead: arguments.max_overhead,
        max_depth: usize::from(arguments.max_depth),
        alloc_fns: arguments.alloc_fn,
        mmap: arguments.mmap,
        python: arguments.python,
        free_fns: arguments.free_fn,
        pin: arguments.pin,
        unwinder: arguments.unwinder,
        symbolize: !arguments.no_symbolize,
        debug_dirs,
        sysroot: arguments.sysroot,
        debuginfod: arguments.debuginfod,
        save_binaries: arguments.save_binaries,
        on_profile: arguments.on_profile,
        series,
        pprof_columns: arguments.pprof_columns,
        source: !arguments.no_source,
        value: arguments.value,
        top: arguments.top.map(usize::from),
        trace: trace::resolve(arguments.trace),
        verbosity: match (arguments.quiet, arguments.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, level) => Verbosity::Verbose(level.min(3)),
        },
        progress: arguments.progress,
        color: arguments.color,
    })
}
