//! The commands for what was saved: report, merge, diff.

use super::{Refusal, When, values};
use crate::export::report::{By, Query};
use crate::export::{Format, PprofColumns, Value};
use crate::profile::check::growth::GrowthLimit;
use clap::Args;
use std::path::PathBuf;

/// Options of `heaptrace report`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportOptions {
    /// The saved profile; `-` for standard input.
    pub file: PathBuf,
    /// What to show; None: the summary.
    pub query: Option<Query>,
    /// Which amounts.
    pub value: Option<Value>,
    /// JSON on standard output.
    pub json: bool,
    /// How many rows are shown; None: as many as each view finds fitting.
    pub top: Option<usize>,
    /// Files to write instead of showing anything.
    pub files: SavedFiles,
    /// Whether to colour the output.
    pub color: When,
}

/// The files that an offline command writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedFiles {
    /// Their names; `-` for standard output.
    pub outputs: Vec<PathBuf>,
    /// The format of all of them, whatever their names say.
    pub format: Option<Format>,
    /// The columns of pprof files.
    pub pprof_columns: PprofColumns,
    /// Whether pages show the text of source files.
    pub source: bool,
}

/// Show a saved profile: the summary, call trees, callers, sums
///
/// FILE is what -o NAME.pb.gz, .pb, .json or .json.gz wrote, a trace (--trace), or a heap profile in pprof's format of
/// another tool (Go's, memory_sampler's). `-` reads standard input. What a format does not hold is not shown: pprof
/// files have no sum of temporary blocks for each stack, report.json no threads.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  heaptrace report heap.pb.gz
      The summary, as at the end of the run.
  heaptrace report heap.pb.gz --callers g_strdup
      Who calls it, with how many bytes live at the peak.
  heaptrace report heap.json --value allocated --by file
      All that was allocated, by source file.
  heaptrace report heap.pb.gz -o heap.html
      A page to look at in a browser.
  heaptrace report heap.pb.gz -o heap.svg -o heap.txt
      The same profile in other formats.")]
pub(super) struct ReportArguments {
    /// The saved profile
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Show all calls as a tree, starting at the outermost function
    #[arg(long, group = "view")]
    tree: bool,

    /// Show who calls this function, as a tree: its name, with or without arguments, or a part of it
    #[arg(long, value_name = "FUNCTION", group = "view")]
    callers: Option<String>,

    /// Show what this function calls, as a tree
    #[arg(long, value_name = "FUNCTION", group = "view")]
    callees: Option<String>,

    /// Show sums by function, file, module, thread or type
    ///
    /// heaptrace knows the types of the objects in blocks where the functions or the lines that allocate them name a
    /// type.
    #[arg(long, value_name = "WHAT", group = "view", value_parser = values::by())]
    by: Option<By>,

    /// Which amounts: live, peak, allocated, freed or temporary
    ///
    /// The default is what the profile is about: peak for a run that has ended, live for a process that lived on.
    #[arg(long, value_name = "VALUE", value_parser = values::value())]
    value: Option<Value>,

    /// Print JSON: report.json, or the view that was chosen
    #[arg(long)]
    json: bool,

    /// How many rows a table shows, and how many branches each function of a tree
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    top: Option<u16>,

    #[command(flatten)]
    files: SavedFilesArguments,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

/// Files that an offline command writes.
#[derive(Args, Debug)]
pub(super) struct SavedFilesArguments {
    /// File to write; repeatable. The end of the name says the format; `-o -` is standard output, and needs --format
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Format of all files, whatever their names say
    #[arg(long, value_name = "FORMAT", value_parser = values::format)]
    format: Option<Format>,

    /// Columns of pprof files: all, sampler or go
    #[arg(long, value_name = "SET", default_value = "all", value_parser = values::pprof_columns())]
    pprof_columns: PprofColumns,

    /// Leave the text of source files out of .html files; heaptrace never includes files whose names look like secrets
    #[arg(long)]
    no_source: bool,
}

impl SavedFilesArguments {
    fn resolve(self) -> Result<SavedFiles, Refusal> {
        let Self { output, format, pprof_columns, no_source } = self;
        if format.is_none() && output.iter().any(|path| path.as_os_str() == "-") {
            return Err(Refusal::Usage(
                "`-o -` (standard output) needs --format, as it has no name that ends in a format\n".to_owned(),
            ));
        }
        if output.is_empty() && format.is_some() {
            return Err(Refusal::Usage(
                "--format is for files: name one with -o, or -o - for standard output\n".to_owned(),
            ));
        }
        Ok(SavedFiles { outputs: output, format, pprof_columns, source: !no_source })
    }
}

pub(super) fn resolve_report(arguments: ReportArguments) -> Result<ReportOptions, Refusal> {
    let query = match (arguments.tree, arguments.callers, arguments.callees, arguments.by) {
        (true, ..) => Some(Query::Tree),
        (_, Some(function), ..) => Some(Query::Callers(function)),
        (_, _, Some(function), _) => Some(Query::Callees(function)),
        (_, _, _, Some(by)) => Some(Query::By(by)),
        _ => None,
    };
    let files = arguments.files.resolve()?;
    if !files.outputs.is_empty() && (query.is_some() || arguments.json) {
        let text = "-o writes the whole profile: leave --tree, --callers, --callees, --by and --json out, or redirect standard output\n";
        return Err(Refusal::Usage(text.to_owned()));
    }
    Ok(ReportOptions {
        file: arguments.file,
        query,
        value: arguments.value,
        json: arguments.json,
        top: arguments.top.map(usize::from),
        files,
        color: arguments.color,
    })
}

/// Options of `heaptrace view`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewOptions {
    /// The saved profile, or a page that was made of one.
    pub file: PathBuf,
    /// By pprof's pages.
    pub pprof: bool,
    /// Whether a page that is made shows lines of source files.
    pub source: bool,
}

/// Show a saved profile in a browser
///
/// FILE is what `heaptrace report` reads, or a page (-o NAME.html). heaptrace keeps the page in ~/.cache/heaptrace, and
/// prints its path, for browsers on another machine. It tries $BROWSER first, then xdg-open.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  heaptrace view heap.pb.gz
      What `heaptrace report heap.pb.gz -o heap.html` writes, opened.
  heaptrace view --pprof heap.json
      The same profile as `go tool pprof -http=:` shows it.")]
pub(super) struct ViewArguments {
    /// The saved profile, or a page
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Show it with `go tool pprof -http=:`, or with pprof
    #[arg(long)]
    pprof: bool,

    /// Leave the text of source files out of the page; heaptrace never includes files whose names look like secrets
    #[arg(long, conflicts_with = "pprof")]
    no_source: bool,
}

pub(super) fn resolve_view(arguments: ViewArguments) -> ViewOptions {
    ViewOptions { file: arguments.file, pprof: arguments.pprof, source: !arguments.no_source }
}

/// Options of `heaptrace merge`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergeOptions {
    /// What to merge.
    pub files: Vec<PathBuf>,
    /// memory_sampler's files that are the last ones of a process.
    pub finals: Vec<PathBuf>,
    /// Whether files of different sampling are added up as estimates.
    pub scale: bool,
    /// The sampling interval of memory_sampler's files, in bytes, where they don't say it.
    pub sampler_interval: Option<u64>,
    /// Whether files that can't be read are left out.
    pub skip_unreadable: bool,
    /// What pictures show.
    pub value: Option<Value>,
    /// Whether to say nothing but errors.
    pub quiet: bool,
    /// Where to.
    pub output: SavedFiles,
}

/// Options of `heaptrace diff`.
#[derive(Clone, PartialEq, Debug)]
pub struct DiffOptions {
    /// The earlier profile.
    pub before: PathBuf,
    /// The later one.
    pub after: PathBuf,
    /// What to compare.
    pub value: Option<Value>,
    /// How many stacks are shown of each kind of change.
    pub top: Option<usize>,
    /// Answer with JSON.
    pub json: bool,
    /// By how much the sum may grow.
    pub limits: Vec<GrowthLimit>,
    /// Files to write instead of showing anything.
    pub output: SavedFiles,
    /// Whether to colour the output.
    pub color: When,
}

// Equal are limits that were typed alike; none of them is a NaN.
impl Eq for DiffOptions {}

/// Make one profile of many: the parts of a series, the processes of a fleet
///
/// Parts of one session: what was allocated and freed adds up; what is live comes from the newest part, the peak from
/// the part with the largest. Different sessions: everything adds up; the peak is then an upper bound, as the single
/// peaks need not have been at the same moment. The order of the files makes no difference, and merged files can be
/// merged again. The memory that merging takes grows with the number of different stacks, not of files.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace merge [OPTIONS] -o OUTPUT FILE...",
    after_long_help = "\
Examples:
  heaptrace merge -o all.pb.gz app.*.pb.gz
      All parts of a series, or the profiles of many processes.
  heaptrace merge --skip-unreadable -o fleet.pb.gz -o fleet.svg hosts/*/*.pb.gz
      Names torn files and leaves them out; without the option, one torn file stops the merge.
  heaptrace merge --final sampler.9.pb -o all.pb.gz sampler.*.pb
      Of Fuchsia's memory_sampler, whose files don't say which is the last.
  heaptrace merge --scale=1MiB --final sampler.9.pb -o all.pb.gz sampler.*.pb app.pb.gz
      Its sampled blocks scaled up to what they stand for, which can be added to heaptrace's."
)]
pub(super) struct MergeArguments {
    /// The saved profiles
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    output: SavedFilesArguments,

    /// One of memory_sampler's files that is the last of its process; repeatable
    #[arg(long = "final", value_name = "FILE")]
    finals: Vec<PathBuf>,

    /// Add up files that were sampled differently, or not at all: all amounts are then estimates
    ///
    /// heaptrace's files have estimates anyway. memory_sampler's count each sampled block once, and don't say how many
    /// stand for it: BYTES is its sampling interval (`kSamplingIntervalBytes` in its source).
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, value_parser = values::size)]
    scale: Option<Option<u64>>,

    /// Name the files that can't be read, and leave them out; without this, nothing is written
    #[arg(long)]
    skip_unreadable: bool,

    /// What .svg, .folded and .txt files show: live, peak, allocated, freed or temporary
    #[arg(long, value_name = "VALUE", value_parser = values::value())]
    value: Option<Value>,

    /// Errors only
    #[arg(short, long)]
    quiet: bool,
}

/// Show what has changed from one saved profile, or heap, to another
///
/// Compares the sums of each stack. Stacks are the same if their functions have the same names, so builds compare even
/// if their addresses and lines differ. A and B are files that `heaptrace report` reads; or two files that `heaptrace
/// heap --save` has written, which compare by type and holder, and block by block if they are of one process. The exit
/// status is 23 if B has grown by more than --fail-if-grown allows, else 0.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  heaptrace diff before.pb.gz after.pb.gz
      Stacks that have grown, are new, have shrunk or are gone, the largest changes first.
  heaptrace diff main.json branch.json --value allocated -o diff.md --fail-if-grown 5%
      A comment for a pull request; exit status 23 if the branch allocates over 5 % more.
  heaptrace diff before.pb.gz after.pb.gz -o diff.pb.gz
      For `go tool pprof`, as its -diff_base shows it.
  heaptrace diff before.heap after.heap
      Blocks that came, went and stayed, by type and by who holds them.")]
pub(super) struct DiffArguments {
    /// The earlier profile
    #[arg(value_name = "A")]
    before: PathBuf,

    /// The later profile
    #[arg(value_name = "B")]
    after: PathBuf,

    /// What to compare: live, peak, allocated, freed or temporary
    ///
    /// The default is peak if both are of runs that have ended, else live.
    #[arg(long, value_name = "VALUE", value_parser = values::value())]
    value: Option<Value>,

    /// How many stacks to show of each kind of change; for heaps, how many types and holders
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    top: Option<u16>,

    /// Print JSON, as .json files have it
    #[arg(long, conflicts_with_all = ["output", "format"])]
    json: bool,

    /// Exit with status 23 if the sum has grown by more than this: 5%, or 1MiB; repeatable, each counts
    #[arg(long, value_name = "LIMIT", value_parser = values::growth_limit)]
    fail_if_grown: Vec<GrowthLimit>,

    /// File to write; repeatable: .html (a page with what has grown in red), .pb.gz, .pb, .folded (before and after,
    /// for difffolded's kin), .md, .json or .txt; for heaps only the last three
    ///
    /// `-o -` is standard output, and needs --format.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Format of all files, whatever their names say
    #[arg(long, value_name = "FORMAT", value_parser = values::format)]
    format: Option<Format>,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

pub(super) fn resolve_merge(arguments: MergeArguments) -> Result<MergeOptions, Refusal> {
    let output = arguments.output.resolve()?;
    if output.outputs.is_empty() {
        return Err(Refusal::Usage("merge needs a file to write: -o NAME.pb.gz\n".to_owned()));
    }
    Ok(MergeOptions {
        files: arguments.files,
        finals: arguments.finals,
        scale: arguments.scale.is_some(),
        sampler_interval: arguments.scale.flatten().filter(|bytes| *bytes > 0),
        skip_unreadable: arguments.skip_unreadable,
        value: arguments.value,
        quiet: arguments.quiet,
        output,
    })
}

pub(super) fn resolve_diff(arguments: DiffArguments) -> Result<DiffOptions, Refusal> {
    let (output, format) = (arguments.output, arguments.format);
    Ok(DiffOptions {
        before: arguments.before,
        after: arguments.after,
        value: arguments.value,
        top: arguments.top.map(usize::from),
        json: arguments.json,
        limits: arguments.fail_if_grown,
        output: SavedFilesArguments { output, format, pprof_columns: PprofColumns::All, no_source: false }.resolve()?,
        color: arguments.color,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_growth_are_shares_or_sizes() {
        assert_eq!(values::growth_limit("5%"), Ok(GrowthLimit::Percent(5.0)));
        assert_eq!(values::growth_limit("0.5 %"), Ok(GrowthLimit::Percent(0.5)));
        assert_eq!(values::growth_limit("1MiB"), Ok(GrowthLimit::Bytes(1 << 20)));
        for wrong in ["", "%", "-1%", "nan%", "inf%", "5 parsecs"] {
            assert!(values::growth_limit(wrong).is_err(), "{wrong}");
        }
    }
}
