//! The commands that ask the heaptrace which traces a process.

use super::core::{CoreArguments, CoreTarget};
use super::values::PidOrFile;
use super::{AttachTarget, Refusal, When, values};
use crate::base::addr::Addr;
use clap::Args;

/// What `heaptrace leaks` looks at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaksTarget {
    /// A process.
    Process(AttachTarget),
    /// What a core has kept of one.
    Core(CoreTarget),
}

/// Options of `heaptrace leaks`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaksOptions {
    /// The process, or a core of it.
    pub target: LeaksTarget,
    /// Show only what has grown since the last scan.
    pub increased: bool,
    /// Show why the block at this address can still be reached.
    pub explain: Option<Addr>,
    /// Answer with report.json.
    pub json: bool,
    /// How many sites to show.
    pub top: Option<usize>,
    /// Whether to colour the answer.
    pub color: When,
}

/// Classify the live blocks of a process
///
/// Asks the `heaptrace run` or `heaptrace attach` that traces the process, of the same user. If no heaptrace traces it,
/// reads it from outside, in programs with the malloc of glibc, musl, mimalloc or jemalloc; then it lists blocks by
/// size, as their stacks are unknown. The process stands still once, for a moment; the answer says how long. Blocks
/// that can no longer be reached are leaks. In an attached process, blocks from before the attach are unknown; their
/// memory counts as reachable, so heaptrace reports no false leaks.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace leaks [OPTIONS] PID\n       heaptrace leaks [OPTIONS] --by-name NAME\n       heaptrace leaks [OPTIONS] --core CORE [PROGRAM]",
    group = clap::ArgGroup::new("leaks_target").required(true).multiple(true).args(["what", "by_name", "core"]),
    after_long_help = "\
Examples:
  heaptrace leaks 1234
      What is lost by now, by allocating stack.
  heaptrace leaks --by-name redis-server --increased
      What is lost, or grew, since the last time.
  heaptrace leaks 1234 --explain 0x55d0c0ffee10
      Why that block can still be reached: from which global variable or stack, through which blocks.
  heaptrace leaks --core core.1234 ./app
      What was lost in ./app when this core file was written."
)]
pub(super) struct LeaksArguments {
    /// Process id; with --core, the program
    #[arg(value_name = "PID", conflicts_with = "by_name", value_parser = values::pid_or_file)]
    what: Option<PidOrFile>,

    /// The only process whose executable or argv[0] has this basename
    #[arg(long, value_name = "NAME")]
    by_name: Option<String>,

    #[command(flatten)]
    core: CoreArguments,

    /// Show only what has grown since the last scan of this process: sites of lost blocks, and of reachable ones
    #[arg(long, conflicts_with = "core")]
    increased: bool,

    /// Show why the block at this address can still be reached; hexadecimal, any address inside the block
    #[arg(long, value_name = "ADDR", value_parser = values::address)]
    explain: Option<Addr>,

    /// Print report.json instead of text; for a process that no heaptrace traces, the JSON that docs/heap.md describes
    #[arg(long)]
    json: bool,

    /// How many sites to show
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    top: Option<u16>,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

pub(super) fn resolve_leaks(arguments: LeaksArguments) -> Result<LeaksOptions, Refusal> {
    let target = match (arguments.what, arguments.by_name) {
        (what, _) if arguments.core.is_named() => {
            arguments.core.target(what.map(PidOrFile::into_path)).map(LeaksTarget::Core)
        }
        (Some(PidOrFile::Pid(pid)), _) => Some(LeaksTarget::Process(AttachTarget::Pid(pid))),
        // says what is wrong with it
        (Some(PidOrFile::File(path)), _) => {
            let error = values::pid(&path.to_string_lossy()).err();
            return Err(Refusal::Usage(format!("{}\n", error.unwrap_or_default())));
        }
        (None, Some(name)) => Some(LeaksTarget::Process(AttachTarget::Name(name))),
        (None, None) => None,
    };
    let Some(target) = target else {
        return Err(Refusal::Usage("leaks needs a process id, --by-name NAME, or --core CORE\n".to_owned()));
    };
    Ok(LeaksOptions {
        target,
        increased: arguments.increased,
        explain: arguments.explain,
        json: arguments.json,
        top: arguments.top.map(usize::from),
        color: arguments.color,
    })
}

/// Options of `heaptrace ctl`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtlOptions {
    /// The traced process.
    pub target: AttachTarget,
    /// The order for its tracer.
    pub order: Order,
}

/// An order to a tracer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Record nothing for a while.
    Pause,
    /// Go on recording.
    Resume,
    /// Let the process go, and write the profile.
    Detach,
    /// Set a mark of this name.
    Mark(String),
}

/// Give an order to the heaptrace that traces a process
///
/// Only the same user and root may do so. heaptrace finds the tracer by the process that it traces.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace ctl PID ORDER\n       heaptrace ctl --by-name NAME ORDER",
    after_long_help = "\
Examples:
  heaptrace ctl 1234 pause
      Records no more allocations until `heaptrace ctl 1234 resume`; the process runs faster meanwhile.
  heaptrace ctl 1234 detach
      Lets process 1234 go and writes what was recorded, as Ctrl-C in `heaptrace attach` does. With -f: the first
      process takes all others with it; another one goes alone, and they are traced on.
  heaptrace ctl 1234 mark warm
      Sets a mark. `heaptrace snapshot 1234 --since warm` then shows what was allocated since and is still there. With -f it is
      set in all processes."
)]
pub(super) struct CtlArguments {
    /// Process id, and the order for its tracer: pause, resume, detach, or mark NAME
    #[arg(value_name = "PID ORDER", required = true, num_args = 1..=3)]
    words: Vec<String>,

    /// The only process whose executable or argv[0] has this basename
    #[arg(long, value_name = "NAME")]
    by_name: Option<String>,
}

pub(super) fn resolve(arguments: CtlArguments) -> Result<CtlOptions, Refusal> {
    let usage = |text: String| {
        Refusal::Usage(format!("{text}\n\nUsage: heaptrace ctl PID|--by-name NAME pause|resume|detach|mark NAME\n"))
    };
    let mut words = arguments.words.into_iter();
    let target = match arguments.by_name {
        Some(name) => AttachTarget::Name(name),
        None => AttachTarget::Pid(
            words.next().as_deref().map_or(Err("a process id is missing".to_owned()), values::pid).map_err(usage)?,
        ),
    };
    let order = match (words.next().as_deref(), words.next()) {
        (Some("pause"), None) => Order::Pause,
        (Some("resume"), None) => Order::Resume,
        (Some("detach"), None) => Order::Detach,
        (Some("mark"), Some(name)) => Order::Mark(name),
        (Some("mark"), None) => return Err(usage("the mark's name is missing".to_owned())),
        (Some(other), None) => {
            return Err(usage(format!(
                "there is no order `{other}`; there are `pause`, `resume`, `detach` and `mark`"
            )));
        }
        (_, Some(extra)) => return Err(usage(format!("`{extra}` is one word too many"))),
        (None, None) => return Err(usage("the order is missing".to_owned())),
    };
    if let Some(extra) = words.next() {
        return Err(usage(format!("`{extra}` is one word too many")));
    }
    Ok(CtlOptions { target, order })
}
