//! `heaptrace convert`: what may be typed, and what it means.

use super::args::ProfileArguments;
use super::{ProfileOptions, Refusal, Verbosity, When, formats, resolve_profile, values};
use crate::export::Value;
use crate::export::{Format, PprofColumns};
use crate::saved::replay::{Moment, ThreadChoice, TracePart};
use clap::{Args, Parser};
use std::path::{Path, PathBuf};

/// The name of the output that is standard output.
const STDOUT: &str = "-";

/// Options of `heaptrace convert`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvertOptions {
    /// The trace.
    pub trace: PathBuf,
    /// Which part of it.
    pub part: TracePart,
    /// Whose allocations and frees; None: those of all threads.
    pub thread: Option<ThreadChoice>,
    /// What goes to standard output.
    pub stdout: Option<Format>,
    /// What to write, and where names are looked for. The outputs may be none if `stdout` is there.
    pub profile: ProfileOptions,
}

/// Make a profile of a trace
///
/// A trace that `--trace FILE.fxt` has written holds every allocation and free of a run. Without more options the
/// profile is that of the run itself. Names come from the trace. A trace made with --no-symbolize gets its names here,
/// if the files of the program are there: heaptrace uses only files with the build ids in the trace.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace convert [OPTIONS] TRACE",
    after_long_help = "\
Examples:
  heaptrace convert t.fxt.zst -o out.pb.gz -o out.svg
      The profile of the run, in two formats.
  heaptrace convert t.fxt --at 12.5s -o then.svg
      The heap as it was 12.5 seconds after the run began.
  heaptrace convert t.fxt --from 1m --to 5m -o grown.pb.gz
      What was allocated in those four minutes and is live at their end: what finds a leak in a server that is warm.
  heaptrace convert t.fxt --from @warm --to @done -o grown.svg
      The same between two marks, which `heaptrace ctl PID mark warm` has set.
  heaptrace convert t.fxt --thread worker -o - --format txt | less
      What the threads called worker have allocated and freed.
  heaptrace convert t.fxt --debug-dir saved -o out.pb.gz
      On another machine, with what `--save-binaries saved` has copied."
)]
pub(super) struct ConvertArguments {
    /// The trace: a .fxt or .fxt.zst, or a pipe; - is standard input
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// File to write; repeatable
    #[arg(short, long, value_name = "FILE", help_heading = "Output", long_help = formats::output_of_a_trace())]
    output: Vec<PathBuf>,

    #[arg(long, value_name = "FORMAT", value_parser = values::format, help_heading = "Output", help = formats::names_of_a_trace())]
    format: Option<Format>,

    /// Columns of pprof files
    ///
    /// `sampler`: the six of Fuchsia's memory_sampler. `go`: the four of Go's heap profiles. `all`: both, and the peak.
    #[arg(long, value_name = "SET", default_value = "all", value_parser = values::pprof_columns(), help_heading = "Output")]
    pprof_columns: PprofColumns,

    /// Leave the text of source files out of .html files; heaptrace never includes files whose names look like secrets
    #[arg(long, help_heading = "Output")]
    no_source: bool,

    /// Which column .svg, .folded and .txt show: live, peak, allocated, freed or temporary
    ///
    /// An empty column gives way to the next. The default is peak; for a part of the trace, what is live at its end.
    #[arg(long, value_name = "VALUE", value_parser = values::value(), help_heading = "Output")]
    value: Option<Value>,

    /// How many stacks the summary and .txt files show
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Output")]
    top: Option<u16>,

    /// The heap at this time after the beginning: 12.5s, 500ms, 1m; or at a mark: @NAME
    ///
    /// The profile leaves out what happened later, and processes that had ended by then. `heaptrace ctl PID mark NAME`
    /// and --mark-on-signal set marks; if several have the same name, the first one counts.
    #[arg(long, value_name = "TIME|@MARK", conflicts_with_all = ["from", "to"], value_parser = values::moment, help_heading = "Part")]
    at: Option<Moment>,

    /// Only what happens from this time, or mark, on
    ///
    /// The live columns then hold what was allocated since and is live at the end, or at --to; the allocated and freed
    /// columns hold what happened in between.
    #[arg(long, value_name = "TIME|@MARK", value_parser = values::moment, help_heading = "Part")]
    from: Option<Moment>,

    /// Only what happens before this time, or mark; without --from, since the beginning
    #[arg(long, value_name = "TIME|@MARK", value_parser = values::moment, help_heading = "Part")]
    to: Option<Moment>,

    /// Only what these threads allocate and free: a thread's id, or a name that several may have
    #[arg(long, value_name = "NAME|TID", help_heading = "Part")]
    thread: Option<String>,

    /// Write addresses instead of names
    #[arg(long, help_heading = "Symbols")]
    no_symbolize: bool,

    /// Look for separate debug files, and for copies of binaries, here, too; repeatable
    ///
    /// A folder like /usr/lib/debug, which is always searched last, one that --save-binaries has filled, or one with
    /// BUILD-ID/NAME in it. $HEAPTRACE_DEBUG_PATH and $PPROF_BINARY_PATH add more, with colons between.
    #[arg(long, value_name = "DIR", help_heading = "Symbols")]
    debug_dir: Vec<PathBuf>,

    /// Look for the program's files below this folder instead of /
    #[arg(long, value_name = "DIR", help_heading = "Symbols")]
    sysroot: Option<PathBuf>,

    /// Fetch missing debug files from the servers in $DEBUGINFOD_URLS
    #[arg(long, help_heading = "Symbols")]
    debuginfod: bool,

    /// Errors only: no progress bar, no summary
    #[arg(short, long, help_heading = "Display")]
    quiet: bool,

    /// Progress bar: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when(), help_heading = "Display")]
    progress: When,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when(), help_heading = "Display")]
    color: When,
}

/// What `heaptrace run` takes where nothing is said.
#[derive(Parser, Debug)]
struct Defaults {
    #[command(flatten)]
    profile: ProfileArguments,
}

pub(super) fn resolve(
    arguments: ConvertArguments,
    debug_path: impl Iterator<Item = PathBuf>,
) -> Result<ConvertOptions, Refusal> {
    let usage = |text: &str| Refusal::Usage(format!("{text}\n"));
    let part = match (arguments.at, arguments.from, arguments.to) {
        (Some(at), ..) => TracePart::At(at),
        (None, Some(Moment::Time(from)), Some(Moment::Time(to))) if to <= from => {
            return Err(usage("--to must be later than --from"));
        }
        (None, None, None) => TracePart::Whole,
        (None, from, to) => TracePart::Window(from.unwrap_or(Moment::Time(0)), to),
    };
    let to_stdout = arguments.output.iter().any(|output| output == Path::new(STDOUT));
    let stdout = match (to_stdout, arguments.format) {
        (true, None) => return Err(usage("`-o -` does not name a format: choose one with --format")),
        (true, format) => format,
        (false, _) => None,
    };
    let defaults = Defaults::try_parse_from(["heaptrace"]).map_err(|error| usage(&error.to_string()))?;
    let given = ProfileArguments { output: arguments.output, format: arguments.format, ..defaults.profile };
    let given = ProfileArguments { debug_dir: arguments.debug_dir, sysroot: arguments.sysroot, ..given };
    let mut profile = resolve_profile(given, debug_path)?;
    profile.outputs.retain(|output| output != Path::new(STDOUT));
    profile.symbolize = !arguments.no_symbolize;
    profile.debuginfod = arguments.debuginfod;
    profile.pprof_columns = arguments.pprof_columns;
    profile.source = !arguments.no_source;
    profile.value = arguments.value;
    profile.top = arguments.top.map(usize::from);
    profile.verbosity = if arguments.quiet { Verbosity::Quiet } else { Verbosity::Normal };
    profile.progress = arguments.progress;
    profile.color = arguments.color;
    let thread = arguments.thread.map(|thread| match thread.parse() {
        Ok(id) => ThreadChoice::Id(id),
        Err(_) => ThreadChoice::Name(thread),
    });
    Ok(ConvertOptions { trace: arguments.trace, part, thread, stdout, profile })
}

/// What makes the profile of a whole trace and writes nothing.
///
/// # Errors
/// Never, but clap can't know that.
pub fn whole(trace: &Path, debug_path: impl Iterator<Item = PathBuf>) -> Result<ConvertOptions, Refusal> {
    let defaults = Defaults::try_parse_from(["heaptrace"]).map_err(|error| Refusal::Usage(error.to_string()))?;
    let mut profile = resolve_profile(defaults.profile, debug_path)?;
    profile.outputs.clear();
    profile.verbosity = Verbosity::Quiet;
    Ok(ConvertOptions { trace: trace.to_owned(), part: TracePart::Whole, thread: None, stdout: None, profile })
}
