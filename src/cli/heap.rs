//! `heaptrace heap`.

use super::{AttachTarget, Refusal, When, values};
use clap::Args;

/// Options of `heaptrace heap`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapOptions {
    /// The process.
    pub target: AttachTarget,
    /// Whether it runs on while it is looked at.
    pub run_on: bool,
    /// Whether it is to call `malloc_trim(0)`.
    pub trim: bool,
    /// Answer with JSON.
    pub json: bool,
    /// Whether to colour the answer.
    pub color: When,
}

/// Tell what the memory of a process is used for that was never traced
///
/// Walks the allocator's own structures (glibc's malloc, musl's) and the kernel's tables of pages: live blocks, what was freed and still takes memory, what
/// malloc_trim(0) would give back, the program's own mappings, stacks, files. Nothing need have been installed in the process. It stands still for a
/// moment; the answer says how long.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace heap [OPTIONS] PID\n       heaptrace heap [OPTIONS] --by-name NAME",
    group = clap::ArgGroup::new("heap_target").required(true).multiple(false),
    after_long_help = "\
Examples:
  heaptrace heap 1234
      Where the resident memory of process 1234 went, and what would give it back.
  heaptrace heap --by-name redis-server --no-stop
      The same while it runs on.
  heaptrace heap 1234 --trim
      The same, then malloc_trim(0) in process 1234 and what that gave back."
)]
pub(super) struct HeapArguments {
    /// Process id
    #[arg(value_name = "PID", group = "heap_target", value_parser = values::pid)]
    pid: Option<i32>,

    /// The only process whose executable, or whose own name for itself (argv[0]), has this basename
    #[arg(long, value_name = "NAME", group = "heap_target")]
    by_name: Option<String>,

    /// Let the process run on meanwhile: what it changes then may be told wrongly
    #[arg(long)]
    no_stop: bool,

    /// Have the process call malloc_trim(0), and tell what that gave back
    ///
    /// One of its threads that sleeps makes the call, while no thread holds a lock of malloc. Where there is no such moment, heaptrace says so and
    /// calls nothing: try again then.
    #[arg(long, conflicts_with = "no_stop")]
    trim: bool,

    /// Print JSON instead of text; docs/heap.md describes it
    #[arg(long)]
    json: bool,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

pub(super) fn resolve(arguments: HeapArguments) -> Result<HeapOptions, Refusal> {
    let target = match (arguments.pid, arguments.by_name) {
        (Some(pid), _) => AttachTarget::Pid(pid),
        (None, Some(name)) => AttachTarget::Name(name),
        (None, None) => return Err(Refusal::Usage("heap needs a process id or --by-name NAME\n".to_owned())),
    };
    Ok(HeapOptions {
        target,
        run_on: arguments.no_stop,
        trim: arguments.trim,
        json: arguments.json,
        color: arguments.color,
    })
}
