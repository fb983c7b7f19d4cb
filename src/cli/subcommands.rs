//! The command line as a whole: one of the subcommands.

use super::args::{AttachArguments, DoctorArguments, RunArguments};
use super::ask::{CtlArguments, LeaksArguments};
use super::check::CheckArguments;
use super::convert::ConvertArguments;
use super::heap::HeapArguments;
use super::pages::{CompletionsArguments, ManArguments};
use super::saved::{DiffArguments, MergeArguments, ReportArguments, ViewArguments};
use super::snapshot::SnapshotArguments;
use super::top::TopArguments;
use crate::tracer::guardian;
use clap::Parser;

/// Heap profiler for native Linux x86-64 programs. It works from outside, as a debugger does: no rebuild, no relink, no
/// LD_PRELOAD.
#[derive(Parser, Debug)]
#[command(
    name = "heaptrace",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  heaptrace run ./app                       profile a program from start to end
  heaptrace run -o heap.svg ./app --option  the same, and draw a flame graph
  heaptrace attach 1234 --duration 30s      profile a running process for half a minute
  heaptrace top 1234                        watch what is live in it, and what grows
  heaptrace check ./app_test                fail if the program leaks or frees wrongly
  heaptrace report heap.pb.gz               show a saved profile again
  heaptrace diff old.pb.gz new.pb.gz        what has grown, what is new
  heaptrace doctor                          if one of these is refused

`heaptrace help COMMAND` explains the options of a command."
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Subcommand,
}

#[derive(clap::Subcommand, Debug)]
pub(super) enum Subcommand {
    Run(RunArguments),
    Attach(AttachArguments),
    Check(Box<CheckArguments>),
    Leaks(LeaksArguments),
    Ctl(CtlArguments),
    Heap(HeapArguments),
    Snapshot(SnapshotArguments),
    Top(TopArguments),
    Report(ReportArguments),
    View(ViewArguments),
    Convert(ConvertArguments),
    Diff(DiffArguments),
    Merge(MergeArguments),
    Doctor(DoctorArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
    /// Started by heaptrace itself
    #[command(name = guardian::COMMAND, hide = true)]
    StandGuard {
        /// The program shares a CPU with heaptrace
        #[arg(long = guardian::PINNED)]
        pinned: bool,
    },
}
