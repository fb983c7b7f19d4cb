//! The options of the event trace.

use super::values;
use crate::trace::TraceMode;
use clap::Args;
use std::path::PathBuf;

/// How events are written to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceOptions {
    /// The file.
    pub path: PathBuf,
    /// What becomes of it when it grows.
    pub mode: TraceMode,
    /// The limit in bytes, if one was given.
    pub size: Option<u64>,
}

#[derive(Args, Debug)]
pub(super) struct TraceArguments {
    /// Record each allocation, free and realloc to FILE.fxt or, compressed, FILE.fxt.zst
    ///
    /// With time, thread, size, address and stack, in the Fuchsia trace format: Perfetto's UI shows it, docs/trace.md
    /// describes it. With -f all processes are in one file. Until it is complete, the file is called FILE.part.
    /// Example: `heaptrace run --trace app.fxt.zst ./app`.
    #[arg(long, value_name = "FILE", help_heading = "Event trace")]
    pub(super) trace: Option<PathBuf>,

    /// What becomes of a trace that grows: streaming, oneshot or circular
    ///
    /// `streaming` keeps everything; the program waits if the disk is slower. `oneshot` keeps the first --trace-size
    /// bytes, `circular` the last.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "streaming",
        value_parser = values::trace_mode(),
        requires = "trace",
        help_heading = "Event trace"
    )]
    pub(super) trace_mode: TraceMode,

    /// The limit of a oneshot or circular trace (64MiB)
    ///
    /// Names and the final facts about the processes come last, on top of the limit.
    #[arg(long, value_name = "SIZE", value_parser = values::size, requires = "trace", help_heading = "Event trace")]
    pub(super) trace_size: Option<u64>,
}

/// What the arguments mean, if a trace is wanted.
pub(super) fn resolve(arguments: TraceArguments) -> Option<TraceOptions> {
    let TraceArguments { trace, trace_mode: mode, trace_size: size } = arguments;
    trace.map(|path| TraceOptions { path, mode, size })
}
