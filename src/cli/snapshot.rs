//! `heaptrace snapshot`.

use super::{AttachTarget, Refusal, values};
use crate::export::{Format, PprofColumns};
use clap::Args;
use std::path::PathBuf;

/// Where snapshots go if nobody says where.
pub const DEFAULT_SNAPSHOT: &str = "heaptrace.%n.%p.snapshot.%i.pb.gz";

/// Options of `heaptrace snapshot`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotOptions {
    /// The traced process.
    pub target: AttachTarget,
    /// The files to write, patterns not yet filled in; `-` for stdout. Empty only where there are `contents`.
    pub outputs: Vec<PathBuf>,
    /// The format of all of them.
    pub format: Option<Format>,
    /// Which columns a pprof file gets.
    pub pprof_columns: PprofColumns,
    /// Only what was allocated since this mark.
    pub since: Option<String>,
    /// What was live at this mark.
    pub until: Option<String>,
    /// The folder for what blocks hold.
    pub contents: Option<PathBuf>,
    /// How much that may be, in bytes.
    pub contents_limit: u64,
    /// Whether to print errors only.
    pub quiet: bool,
}

impl SnapshotOptions {
    /// What is meant without any options but a process, and without a word.
    pub fn of(pid: i32) -> Self {
        Self {
            target: AttachTarget::Pid(pid),
            outputs: vec![DEFAULT_SNAPSHOT.into()],
            format: None,
            pprof_columns: PprofColumns::default(),
            since: None,
            until: None,
            contents: None,
            contents_limit: 0,
            quiet: true,
        }
    }
}

/// Write what is live in a traced process now
///
/// Asks the heaptrace that traces the process (`heaptrace run` or `attach`); the process runs on meanwhile. All blocks
/// in the files were live at the same moment. With -f, PID can be a child.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace snapshot [OPTIONS] PID\n       heaptrace snapshot [OPTIONS] --by-name NAME",
    group = clap::ArgGroup::new("snapshot_target").required(true).multiple(false),
    after_long_help = "\
Examples:
  heaptrace snapshot 1234
      Writes heaptrace.NAME.1234.snapshot.000001.pb.gz; the next one is number 2.
  heaptrace snapshot --by-name redis-server -o now.svg -o now.pb.gz
      A flame graph and a profile of the same moment.
  heaptrace snapshot 1234 --format txt -o - | less
      To read at once.
  heaptrace snapshot 1234 --contents blocks
      What the blocks hold: `xxd blocks/0x55d0c0ffee10` shows one, blocks/index.tsv says who allocated it.
  heaptrace snapshot 1234 --since before -o left.svg
      What was allocated since `heaptrace ctl 1234 mark before`, and not given back."
)]
pub(super) struct SnapshotArguments {
    /// Process id
    #[arg(value_name = "PID", group = "snapshot_target", value_parser = values::pid)]
    pid: Option<i32>,

    /// The only process whose executable or argv[0] has this basename
    #[arg(long, value_name = "NAME", group = "snapshot_target")]
    by_name: Option<String>,

    /// File to write, or - for standard output; repeatable
    ///
    /// The end of the name says the format, as for `heaptrace run`. In names, %p stands for the process id, %n for the
    /// program's name, %i for the number of the snapshot. Without -o: heaptrace.%n.%p.snapshot.%i.pb.gz.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Format of all files, whatever their names say
    #[arg(long, value_name = "FORMAT", value_parser = values::format)]
    format: Option<Format>,

    /// Columns of pprof files
    #[arg(long, value_name = "SET", default_value = "all", value_parser = values::pprof_columns())]
    pprof_columns: PprofColumns,

    /// Only blocks that were allocated since this mark (`heaptrace ctl PID mark NAME`) and are live now, or at --until
    #[arg(long, value_name = "MARK")]
    since: Option<String>,

    /// What was live when this mark was set, instead of now; of the newest four marks
    #[arg(long, value_name = "MARK", conflicts_with = "contents")]
    until: Option<String>,

    /// Write what the blocks hold, too: a file for each block in a new folder, named after its address, and index.tsv
    ///
    /// The process runs on meanwhile: the index marks blocks that were freed before heaptrace had read them. The limit
    /// is 100,000 blocks; --since chooses some. Only its owner can read the folder.
    #[arg(long, value_name = "DIR")]
    contents: Option<PathBuf>,

    /// How much --contents may write
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "1GiB")]
    contents_limit: u64,

    /// Errors only
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn resolve(arguments: SnapshotArguments) -> Result<SnapshotOptions, Refusal> {
    let target = match (arguments.pid, arguments.by_name) {
        (Some(pid), _) => AttachTarget::Pid(pid),
        (None, Some(name)) => AttachTarget::Name(name),
        (None, None) => return Err(Refusal::Usage("snapshot needs a process id or --by-name NAME\n".to_owned())),
    };
    let mut outputs = arguments.output;
    if outputs.is_empty() && arguments.contents.is_none() {
        let format = arguments.format.unwrap_or(Format::PprofGz);
        outputs.push(DEFAULT_SNAPSHOT.replace(Format::PprofGz.name(), format.name()).into());
    }
    Ok(SnapshotOptions {
        target,
        outputs,
        format: arguments.format,
        pprof_columns: arguments.pprof_columns,
        since: arguments.since,
        until: arguments.until,
        contents: arguments.contents,
        contents_limit: arguments.contents_limit,
        quiet: arguments.quiet,
    })
}
