//! What the user may type: clap's structures, and the texts of `--help`.

use super::occasions::OccasionArguments;
use super::series::SeriesArguments;
use super::trace::TraceArguments;
use super::{EngineChoice, Unwinder, When, formats, values};
use crate::export::{Format, PprofColumns, Value};
use crate::tracer::control::UserSignal;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Profile a program from its first instruction to its end
///
/// The program keeps its input and output; heaptrace writes to stderr only, and exits with the program's own status
/// (128+N if signal N ended it). If heaptrace itself fails the status is 125; 126 if the program could not be executed,
/// 127 if it was not found.
///
/// Ctrl-C goes to the program, as always; press it twice to stop tracing and let the program run on untraced.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace run [OPTIONS] [--] PROGRAM [ARGUMENTS]...",
    after_long_help = "\
Examples:
  heaptrace run ./app input.txt
      Writes heaptrace.app.PID.pb.gz; look at it with `go tool pprof -top FILE` or `go tool pprof -http=: FILE`.
  heaptrace run -o heap.pb.gz -o heap.svg -o heap.json -- ./app -v
      Three files at once. Options behind the program's name are the program's.
  heaptrace run --duration 1m -o first-minute.svg ./server
      Traces one minute, then lets the server run on at full speed and waits for it.
  heaptrace run -f --only 'cc1*' -o make.svg -- make
      All runs of the compiler under make, in one flame graph.
  heaptrace run --pin ./app
      Several times faster in virtual machines, if the program has one thread."
)]
pub(super) struct RunArguments {
    /// The program and its arguments. The first word that is not an option ends heaptrace's own options
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,

    #[command(flatten)]
    pub(super) profile: ProfileArguments,

    #[command(flatten)]
    pub(super) perturb: PerturbArguments,
}

/// What `run` and `check` share besides.
#[derive(Args, Debug)]
pub(super) struct PerturbArguments {
    /// Report how much of its blocks the program never writes
    ///
    /// The program runs with the fill of glibc's malloc (GLIBC_TUNABLES: glibc.malloc.perturb, and
    /// glibc.malloc.tcache_count=0, as blocks of the threads' caches are not filled), and so do its children. Bytes at
    /// the end of a block that still hold the fill when the program frees the block, or ends, were never written.
    /// calloc's blocks and those of another allocator are not part of this. The fill touches each byte of a block: the
    /// program takes more memory and more time, and it runs on `--engine trap`.
    #[arg(long, conflicts_with_all = ["sample_interval", "max_overhead"], help_heading = "Tracing")]
    pub(super) perturb: bool,
}

/// Profile a running process, then leave it as it was
///
/// No thread is stopped to attach. Tracing ends with --duration, Ctrl-C, or the process itself; the process then goes
/// on with its code as it was before. heaptrace knows only what is allocated meanwhile: "live" means allocated since
/// attach and not yet freed.
///
/// Attaching needs the rights of a debugger: your own process and kernel.yama.ptrace_scope 0, or root. `heaptrace
/// doctor` says what is missing.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace attach [OPTIONS] PID\n       heaptrace attach [OPTIONS] --by-name NAME",
    group = clap::ArgGroup::new("target").required(true).multiple(false),
    after_long_help = "\
Examples:
  heaptrace attach 1234 --duration 30s
      Writes heaptrace.NAME.1234.pb.gz after half a minute.
  heaptrace attach --by-name redis-server -o redis.svg
      Until Ctrl-C. Several processes of that name are an error that lists them.
  heaptrace attach --by-name worker --wait --again -o /var/tmp/%n.%i.pb.gz
      Profiles each process called worker, from its start to its end. docs/systemd.md makes a service of it."
)]
pub(super) struct AttachArguments {
    /// Process id
    #[arg(value_name = "PID", group = "target", allow_negative_numbers = true, value_parser = values::pid)]
    pub(super) pid: Option<i32>,

    /// Process id, as gdb takes it
    #[arg(short = 'p', long = "pid", value_name = "PID", group = "target", allow_negative_numbers = true, value_parser = values::pid)]
    pub(super) pid_option: Option<i32>,

    /// The only process whose executable or argv[0] has this basename
    #[arg(long, value_name = "NAME", group = "target")]
    pub(super) by_name: Option<String>,

    /// Wait until a process of that name starts, unless there is one already
    ///
    /// Of several, heaptrace takes the oldest that has no tracer. Copies that a process makes of itself by fork don't
    /// count while it lives.
    #[arg(long, help_heading = "Tracing")]
    pub(super) wait: bool,

    /// Go on to the next process of that name after each, until Ctrl-C; implies --wait
    ///
    /// One at a time, each with files of its own: their names need %p (process id) or %i (number in the series).
    #[arg(long, help_heading = "Tracing")]
    pub(super) again: bool,

    /// Before letting go, report which of the blocks allocated meanwhile can no longer be reached
    ///
    /// The process stands still for a moment for this.
    #[arg(long, help_heading = "Tracing")]
    pub(super) leaks_at_end: bool,

    /// Find the blocks that already exist, in the allocator's own structures (glibc, musl, mimalloc, jemalloc)
    ///
    /// The report lists them as `[before attach]`, by size: live totals are complete, and heaptrace recognizes their
    /// frees. The process stands still while heaptrace copies it, for some hundredths of a second, and runs on while
    /// heaptrace reads the copy. If it can't be copied, it stands still while heaptrace reads it, about a second for a
    /// GiB of small blocks, and the summary says so.
    #[arg(long, help_heading = "Tracing")]
    pub(super) existing: bool,

    #[command(flatten)]
    pub(super) profile: ProfileArguments,
}

/// Show what this machine allows, and what to change
///
/// Checks the kernel's settings, really traces a child for a moment, measures what a stop costs here, and looks for
/// debug files. The exit status is 0 if programs can be profiled here, else 1.
///
/// With PID, it also says which engine would record that process, and why, as far as that shows from outside; and
/// whether a heaptrace that was killed together with its guardian has left breakpoints in it. It changes nothing there:
/// `heaptrace attach` removes them before it begins.
#[derive(Args, Debug)]
pub(super) struct DoctorArguments {
    /// A process to inspect, too
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) pid: Option<i32>,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    pub(super) color: When,
}

#[derive(Args, Debug)]
pub(super) struct ProfileArguments {
    /// File to write; repeatable
    #[arg(short, long, value_name = "FILE", help_heading = "Output", long_help = formats::output_of_a_run())]
    pub(super) output: Vec<PathBuf>,

    #[arg(long, value_name = "FORMAT", value_parser = values::format, help_heading = "Output", help = formats::names_of_a_run())]
    pub(super) format: Option<Format>,

    /// Shell command to run for each finished file, whose path is in $HEAPTRACE_FILE
    ///
    /// It runs when the file is complete; in a series (--profile-every) the program runs on meanwhile. $HEAPTRACE_FROM
    /// and $HEAPTRACE_UNTIL hold the time that the file covers, in seconds since 1970. Its output goes to stderr. If it
    /// fails, heaptrace says so, and exits with 125 if the program exited with 0. When the tracing is over, heaptrace
    /// waits for it up to 30 seconds; Ctrl-C ends it.
    #[arg(long, value_name = "CMD", help_heading = "Output")]
    pub(super) on_profile: Option<OsString>,

    #[command(flatten)]
    pub(super) series: SeriesArguments,

    /// Columns of pprof files
    ///
    /// `sampler`: the six of Fuchsia's memory_sampler. `go`: the four of Go's heap profiles. `all`: both, and the peak.
    #[arg(long, value_name = "SET", default_value = "all", value_parser = values::pprof_columns(), help_heading = "Output")]
    pub(super) pprof_columns: PprofColumns,

    /// Read no source files: .html files lack their text, and types that only source files name stay unknown
    ///
    /// heaptrace never reads source files whose names look like secrets.
    #[arg(long, help_heading = "Output")]
    pub(super) no_source: bool,

    /// What .svg, .folded and .txt files show, and .html at first: live, peak, allocated, freed or temporary
    ///
    /// The default is peak for a run and live for an attached process; a .txt shows all of them. An empty column gives
    /// way to the next one that is not. pprof files hold all but temporary.
    #[arg(long, value_name = "VALUE", value_parser = values::value(), help_heading = "Output")]
    pub(super) value: Option<Value>,

    /// How many stacks the summary and .txt files show
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Output")]
    pub(super) top: Option<u16>,

    /// Trace child processes, too: none, or all of the tree. `-f` alone means all
    ///
    /// If the file's name has a %p (the default has), each process that called the allocator gets a profile of its own;
    /// files with other names hold one profile of all. heaptrace then waits for all processes of the tree, and exits
    /// with the status of the first. (A program that replaces itself by exec is followed in any case.)
    #[arg(
        short = 'f',
        long,
        value_name = "WHICH",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "all",
        value_parser = values::follow(),
        action = clap::ArgAction::Set,
        help_heading = "Processes"
    )]
    pub(super) follow_forks: bool,

    /// With -f, record only these executables: a name, or a path if it has a slash, with * and ?; repeatable
    ///
    /// The other programs of the tree run without probes; their children are followed.
    #[arg(long, value_name = "GLOB", help_heading = "Processes")]
    pub(super) only: Vec<String>,

    /// With -f, record all executables but these; repeatable
    #[arg(long, value_name = "GLOB", help_heading = "Processes")]
    pub(super) skip: Vec<String>,

    /// Stop tracing after this time: 30, 30s, 500ms, 1m; a number without unit is seconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::duration, help_heading = "Tracing")]
    pub(super) duration: Option<Duration>,

    /// Collect nothing until --toggle-signal or `heaptrace ctl PID resume` says so
    ///
    /// Until then the program runs at full speed.
    #[arg(long, help_heading = "Tracing")]
    pub(super) start_paused: bool,

    /// Collect nothing for this time, then begin; --duration counts from then on
    #[arg(long, value_name = "TIME", value_parser = values::duration, conflicts_with = "start_paused", help_heading = "Tracing")]
    pub(super) delay: Option<Duration>,

    /// A signal that pauses collecting, and resumes it, when heaptrace (not the program) gets it: USR1 or USR2
    ///
    /// In a pause heaptrace does not record allocations, but it records frees of blocks that it knows. `heaptrace ctl
    /// PID pause` does the same.
    #[arg(long, value_name = "SIGNAL", value_parser = values::user_signal(), help_heading = "Tracing")]
    pub(super) toggle_signal: Option<UserSignal>,

    #[command(flatten)]
    pub(super) occasions: OccasionArguments,

    /// How calls of the allocator are intercepted: auto, trap or jump
    ///
    /// `trap` puts a breakpoint at each entry and return of the allocator's functions: the thread stops at each. `jump`
    /// runs heaptrace's code in the program, which records the call and its stack without a stop, at a fraction of the
    /// cost. It adds 154 MiB of address space to the program, and takes memory only for what it uses. In programs where
    /// `jump` can't run, heaptrace uses `trap`, and the summary says why. `auto` begins with `trap`, and changes to
    /// `jump` when stops have taken a fifth of the program's time, and over 2 ms: most short programs never get there.
    #[arg(long, value_name = "ENGINE", default_value = "auto", value_parser = values::engine, help_heading = "Tracing")]
    pub(super) engine: EngineChoice,

    /// Record a sample: one byte in BYTES on average, with the block that it lies in (512k; 0: every block)
    ///
    /// Each byte is equally likely to be picked, and a block counts as often as it stands for, so that the figures are
    /// right on average; the summary says how far they can be off. heaptrace also counts the allocations and their
    /// bytes exactly. In busy programs, a call that is not picked takes some nanoseconds (see --engine); with `--engine
    /// trap` the program still stops at every call, and sampling saves only the stack walks. A sample can't show leaks
    /// and errors.
    #[arg(long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = values::size, help_heading = "Tracing")]
    pub(super) sample_interval: u64,

    /// Sample so that recording takes at most PERCENT of the program's CPU time (3%)
    ///
    /// The interval begins with --sample-interval, or 4 KiB, and is doubled or halved by what recording takes. Each
    /// block counts as often as it stands for, so that the figures are right on average however the interval changes.
    /// This holds for what is recorded in the program itself; stops of the trap engine (see --engine) come on top, and
    /// a program that allocates all the time pays some nanoseconds for each call whatever the interval.
    #[arg(long, value_name = "PERCENT", value_parser = values::permille, help_heading = "Tracing")]
    pub(super) max_overhead: Option<u32>,

    /// Do not unwind at frees
    ///
    /// Makes frees cheaper. Deallocated bytes are then charged to the stack that allocated the block.
    #[arg(long, help_heading = "Tracing")]
    pub(super) no_free_stacks: bool,

    /// Cut stacks off after this many frames; they are marked as truncated
    #[arg(long, value_name = "N", default_value = "512", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Tracing")]
    pub(super) max_depth: u16,

    /// A function of your own that allocates, like `pool_get:size=arg2`; repeatable
    ///
    /// The name of a symbol or MODULE+0xOFFSET, then what its arguments mean: size=argN, count=argN (the block has size
    /// times count bytes), old=argN (the block that it resizes). Arguments are numbered from 1; without any, the size
    /// is the first. The block is what the function returns; with result=argN it is stored where argument N points to,
    /// as posix_memalign does.
    #[arg(long, value_name = "SPEC", help_heading = "Tracing")]
    pub(super) alloc_fn: Vec<String>,

    /// A function of your own that frees, like `pool_put:ptr=arg1`; repeatable
    #[arg(long, value_name = "SPEC", help_heading = "Tracing")]
    pub(super) free_fn: Vec<String>,

    /// Record what the program itself maps, too: mmap without a file, munmap, mremap, brk and sbrk
    ///
    /// As allocations of their own, in whole pages, whether touched or not; their functions and the pprof label
    /// `family` distinguish them from blocks. What an allocator maps for its blocks does not count, and neither do
    /// files. heaptrace does not see system calls that a program makes without the C library's functions. The mappings
    /// include the stacks of threads, as the C library maps those. They never count as leaks.
    #[arg(long, help_heading = "Tracing")]
    pub(super) mmap: bool,

    /// Show the functions of Python programs, with their files and lines, in place of the interpreter's loop
    ///
    /// For CPython 3.8 to 3.13: read from outside at each call of the allocator, and only where the interpreter's own
    /// structures prove which functions run; elsewhere the native frame stays. Such a program runs on `--engine trap`,
    /// which stops it at each call. Python's own allocator takes small objects from arenas, which are mapped:
    /// PYTHONMALLOC=malloc shows each object.
    #[arg(long, help_heading = "Tracing")]
    pub(super) python: bool,

    /// Share one CPU with the program as long as it has one thread
    ///
    /// Each stop then costs far less, above all in virtual machines. It is not the default, as the program can see it
    /// in its CPU affinity.
    #[arg(long, help_heading = "Tracing")]
    pub(super) pin: bool,

    /// Who walks the stacks: own or libunwind
    ///
    /// libunwind is a second opinion, for stacks that are in doubt. It has to be installed (Debian's package is
    /// libunwind8), and is slow: the program stops at each call, whatever the engine.
    #[arg(long, value_name = "WHICH", default_value = "own", value_parser = values::unwinder, hide = cfg!(target_feature = "crt-static"), help_heading = "Tracing")]
    pub(super) unwinder: Unwinder,

    /// Write addresses instead of names
    ///
    /// Frames are named MODULE+0xOFFSET; pprof can resolve them later from the build ids in the profile.
    #[arg(long, help_heading = "Symbols")]
    pub(super) no_symbolize: bool,

    /// Look for separate debug files here, too; repeatable
    ///
    /// A folder like /usr/lib/debug, which is always searched last. $HEAPTRACE_DEBUG_PATH adds more, with colons
    /// between.
    #[arg(long, value_name = "DIR", help_heading = "Symbols")]
    pub(super) debug_dir: Vec<PathBuf>,

    /// Look for the program's files below this folder instead of /
    #[arg(long, value_name = "DIR", help_heading = "Symbols")]
    pub(super) sysroot: Option<PathBuf>,

    /// Fetch missing debug files from the servers in $DEBUGINFOD_URLS
    ///
    /// When tracing has ended, heaptrace runs debuginfod-find (Debian package debuginfod), which keeps what it fetches
    /// in ~/.cache/debuginfod_client. The servers learn the build ids of the program and its libraries.
    #[arg(long, help_heading = "Symbols")]
    pub(super) debuginfod: bool,

    /// Copy the program and its libraries here, to find names later or elsewhere
    ///
    /// `--debug-dir DIR` reads the copies, and so does google/pprof with PPROF_BINARY_PATH=DIR (`go tool pprof` can't).
    /// Files without a build id are left out. A folder can take the files of many runs.
    #[arg(long, value_name = "DIR", help_heading = "Symbols")]
    pub(super) save_binaries: Option<PathBuf>,

    #[command(flatten)]
    pub(super) trace: TraceArguments,

    /// Errors only: no progress line, no summary
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Display")]
    pub(super) quiet: bool,

    /// Say what happens; twice: why; three times: everything
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Display")]
    pub(super) verbose: u8,

    /// Progress line: auto means on a terminal that the program does not write to
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when(), help_heading = "Display")]
    pub(super) progress: When,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when(), help_heading = "Display")]
    pub(super) color: When,
}
