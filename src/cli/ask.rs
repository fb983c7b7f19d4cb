//! The commands that ask the heaptrace which traces a process.

use super::{AttachTarget, Refusal, values};
use clap::Args;

/// Options of `heaptrace ctl`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtlOptions {
    /// The traced process.
    pub target: AttachTarget,
    /// What its tracer is to do.
    pub order: Order,
}

/// An order to a tracer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Record nothing for a while.
    Pause,
    /// Go on recording.
    Resume,
    /// Let the process go, and write the profile.
    Detach,
}

/// Give an order to the heaptrace that traces a process
///
/// Only the same user and root may. The tracer is found by the process that it traces.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace ctl PID ORDER\n       heaptrace ctl --by-name NAME ORDER",
    after_long_help = "\
Examples:
  heaptrace ctl 1234 pause
      Records no more allocations until `heaptrace ctl 1234 resume`; the process runs faster meanwhile.
  heaptrace ctl 1234 detach
      Lets process 1234 go and writes its profile, as Ctrl-C in `heaptrace attach` does."
)]
pub(super) struct CtlArguments {
    /// Process id, and what its tracer is to do: pause, resume or detach
    #[arg(value_name = "PID ORDER", required = true, num_args = 1..=2)]
    words: Vec<String>,

    /// The only process whose executable, or whose own name for itself (argv[0]), has this basename
    #[arg(long, value_name = "NAME")]
    by_name: Option<String>,
}

pub(super) fn resolve(arguments: CtlArguments) -> Result<CtlOptions, Refusal> {
    let usage = |text: String| {
        Refusal::Usage(format!("{text}\n\nUsage: heaptrace ctl PID|--by-name NAME pause|resume|detach\n"))
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
        (Some(other), None) => {
            return Err(usage(format!("there is no order `{other}`; there are `pause`, `resume` and `detach`")));
        }
        (_, Some(extra)) => return Err(usage(format!("`{extra}` is one word too many"))),
        (None, None) => return Err(usage("the order is missing".to_owned())),
    };
    Ok(CtlOptions { target, order })
}
