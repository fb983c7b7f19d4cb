//! `heaptrace top`.

use super::{
    AttachTarget, EngineChoice, MIN_INTERVAL, Occasions, ProfileOptions, Refusal, Unwinder, Verbosity, When, values,
};
use crate::base::glob::Selection;
use crate::export::PprofColumns;
use crate::top::ctl::Order;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// The longest time between two answers.
const SLOWEST: Duration = Duration::from_secs(60);

/// The shortest one.
const FASTEST: Duration = Duration::from_millis(100);

/// Sites of an answer on paper.
const ROWS: u16 = 20;

/// Options of `heaptrace top`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopOptions {
    /// The process.
    pub target: AttachTarget,
    /// How often it is looked at.
    pub every: Duration,
    /// What the sites are sorted by at first.
    pub order: Order,
    /// Whether to print instead of drawing.
    pub batch: bool,
    /// After so many looks it is over; None: when the user has had enough.
    pub samples: Option<u64>,
    /// How many sites are printed.
    pub rows: usize,
    /// Whether to look for the blocks that are there already, if nobody traces the process yet.
    pub existing: bool,
    /// How to trace it then.
    pub profile: ProfileOptions,
}

/// Watch the heap of a running process: what is live, what grows, who allocates
///
/// Asks the heaptrace that traces the process (`heaptrace run` or `attach`), and leaves it as it is. If no heaptrace
/// traces it, attaches, as `heaptrace attach` does, and lets the process go at the end; then "live" means allocated
/// since and not yet freed. The screen shows what is live and how fast the process allocates, as graphs over time, and
/// the first sites by the chosen order. The ? key explains the keys. Growth counts from the beginning, or from the last
/// mark (m).
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace top [OPTIONS] PID\n       heaptrace top [OPTIONS] --by-name NAME",
    group = clap::ArgGroup::new("top_target").required(true).multiple(false),
    after_long_help = "\
Examples:
  heaptrace top 1234
      Until q. A process that another heaptrace traces stays traced.
  heaptrace top --by-name redis-server --sort grown
      What grows comes first.
  heaptrace top 1234 --max-overhead 3%
      Attaches, and samples so that recording takes at most 3 % of the program's CPU time.
  heaptrace top 1234 --batch -n 2 --every 10s
      Prints what is there now, and ten seconds later what has grown meanwhile."
)]
pub(super) struct TopArguments {
    /// Process id
    #[arg(value_name = "PID", group = "top_target", value_parser = values::pid)]
    pid: Option<i32>,

    /// The only process whose executable or argv[0] has this basename
    #[arg(long, value_name = "NAME", group = "top_target")]
    by_name: Option<String>,

    /// The time between two updates: 100ms to 60s
    #[arg(long, value_name = "TIME", value_parser = values::duration, default_value = "1s")]
    every: Duration,

    /// What the sites are sorted by at first: live (bytes), grown (bytes), bytes (allocated per second) or calls (per
    /// second)
    #[arg(long, value_name = "COLUMN", value_parser = values::order(), default_value = "live")]
    sort: Order,

    /// Print each update instead of drawing it; also if the output is not a terminal
    #[arg(short, long)]
    batch: bool,

    /// End after this many updates
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,

    /// How many sites --batch prints
    #[arg(long, value_name = "N", default_value_t = ROWS, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,

    /// If no heaptrace traces the process yet: find the blocks that already exist (see `heaptrace help attach`)
    #[arg(long, help_heading = "Tracing")]
    existing: bool,

    /// If no heaptrace traces it yet: how to intercept calls, auto, trap or jump (see `heaptrace help attach`)
    #[arg(long, value_name = "ENGINE", default_value = "auto", value_parser = values::engine, help_heading = "Tracing")]
    engine: EngineChoice,

    /// If no heaptrace traces it yet: record a sample, one byte in BYTES on average; 0: every block
    #[arg(long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = values::size, help_heading = "Tracing")]
    sample_interval: u64,

    /// If no heaptrace traces it yet: sample so that recording takes at most PERCENT of the program's CPU time (3%)
    #[arg(long, value_name = "PERCENT", value_parser = values::permille, help_heading = "Tracing")]
    max_overhead: Option<u32>,

    /// Look for separate debug files here, too; repeatable
    #[arg(long, value_name = "DIR", help_heading = "Tracing")]
    debug_dir: Vec<PathBuf>,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

pub(super) fn resolve(
    arguments: TopArguments,
    debug_path: impl Iterator<Item = PathBuf>,
) -> Result<TopOptions, Refusal> {
    let target = match (arguments.pid, arguments.by_name) {
        (Some(pid), _) => AttachTarget::Pid(pid),
        (None, Some(name)) => AttachTarget::Name(name),
        (None, None) => return Err(Refusal::Usage("top needs a process id or --by-name NAME\n".to_owned())),
    };
    if !(FASTEST..=SLOWEST).contains(&arguments.every) {
        return Err(Refusal::Usage("--every takes 100ms to 60s\n".to_owned()));
    }
    let mut debug_dirs = arguments.debug_dir;
    debug_dirs.extend(debug_path);
    Ok(TopOptions {
        target,
        every: arguments.every,
        order: arguments.sort,
        batch: arguments.batch,
        samples: arguments.samples,
        rows: usize::from(arguments.top),
        existing: arguments.existing,
        profile: ProfileOptions {
            outputs: Vec::new(),
            format: None,
            engine: arguments.engine,
            duration: None,
            start_paused: false,
            delay: None,
            toggle_signal: None,
            occasions: Occasions::default(),
            follow: false,
            selection: Selection::default(),
            // nothing that is shown needs them
            free_stacks: false,
            sample_interval: match (arguments.sample_interval, arguments.max_overhead) {
                (0, Some(_)) => MIN_INTERVAL,
                (interval, _) => interval,
            },
            max_overhead: arguments.max_overhead,
            max_depth: 512,
            alloc_fns: Vec::new(),
            free_fns: Vec::new(),
            mmap: false,
            python: false,
            pin: false,
            unwinder: Unwinder::default(),
            symbolize: true,
            debug_dirs,
            sysroot: None,
            debuginfod: false,
            save_binaries: None,
            on_profile: None,
            series: None,
            pprof_columns: PprofColumns::default(),
            source: false,
            value: None,
            top: None,
            trace: None,
            // whatever is written would stand in the picture
            verbosity: Verbosity::Quiet,
            progress: When::Never,
            color: arguments.color,
        },
    })
}
