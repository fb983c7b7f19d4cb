//! The commands for what was saved: report, merge, diff.

use super::{Refusal, When, values};
use crate::export::report::{By, Query};
use crate::export::{Format, PprofColumns, Value};
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
}

/// Show a saved profile: the summary, call trees, callers, sums
///
/// FILE is what -o NAME.pb.gz, .pb, .json or .json.gz wrote, or a heap profile in pprof's format of another tool (Go's,
/// memory_sampler's). `-` reads standard input. What a format does not hold is not shown: pprof files have no sum of
/// temporary blocks for each stack, report.json no threads.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  heaptrace report heap.pb.gz
      The summary, as at the end of the run.
  heaptrace report heap.pb.gz --callers g_strdup
      Who calls it, with how many bytes live at the peak.
  heaptrace report heap.json --value allocated --by file
      All that was allocated, by source file.
  heaptrace report heap.pb.gz -o heap.svg -o heap.txt
      The same profile in other formats.")]
pub(super) struct ReportArguments {
    /// The saved profile
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Show all calls as a tree, from the outermost function on
    #[arg(long, group = "view")]
    tree: bool,

    /// Show who calls this function, as a tree: its name, with or without arguments, or a part of it
    #[arg(long, value_name = "FUNCTION", group = "view")]
    callers: Option<String>,

    /// Show whom this function calls, as a tree
    #[arg(long, value_name = "FUNCTION", group = "view")]
    callees: Option<String>,

    /// Show sums by function, file, module or thread
    #[arg(long, value_name = "WHAT", group = "view", value_parser = values::by())]
    by: Option<By>,

    /// Which amounts: live, peak, allocated, freed or temporary
    ///
    /// Without it those that the profile is about: at the peak of a run that has ended, live of a process that lived on.
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
}

impl SavedFilesArguments {
    fn resolve(self) -> Result<SavedFiles, Refusal> {
        let Self { output, format, pprof_columns } = self;
        if format.is_none() && output.iter().any(|path| path.as_os_str() == "-") {
            return Err(Refusal::Usage(
                "`-o -` (standard output) needs --format, as it has no name to say it\n".to_owned(),
            ));
        }
        if output.is_empty() && format.is_some() {
            return Err(Refusal::Usage(
                "--format is for files: name one with -o, or -o - for standard output\n".to_owned(),
            ));
        }
        Ok(SavedFiles { outputs: output, format, pprof_columns })
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
