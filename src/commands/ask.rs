//! `heaptrace leaks` and `heaptrace ctl`: ask the heaptrace that traces a process.

use super::attach::find;
use super::conclude::terminal_width;
use super::{print, use_color};
use crate::cli::{CtlOptions, LeaksOptions, Order};
use crate::ctl::{self, Command, Look, Request, Response};
use crate::export::summary::SummaryOptions;
use crate::tracer::socket;
use anyhow::{Context, bail};

/// Asks the tracer which blocks are lost, and prints its answer. The exit status is 0 whatever it says.
///
/// # Errors
/// If the process is not traced by a heaptrace of this user, or its heap can't be read.
pub fn leaks(options: &LeaksOptions) -> anyhow::Result<u8> {
    let pid = find(&options.target)?;
    let command = Command::Leaks {
        increased: options.increased,
        explain: options.explain.map(|addr| addr.0),
        json: options.json,
    };
    let color = use_color(options.color, &std::io::stdout());
    let width = terminal_width().unwrap_or(SummaryOptions::default().width);
    print(&ask(pid, command, Look { top: options.top, color, width })?)?;
    Ok(0)
}

/// Carries the order to the tracer. The exit status is 0 if it has been carried out.
///
/// # Errors
/// If the process is not traced by a heaptrace of this user, or that one refuses.
pub fn control(options: &CtlOptions) -> anyhow::Result<u8> {
    let pid = find(&options.target)?;
    let command = match options.order {
        Order::Pause => Command::Pause,
        Order::Resume => Command::Resume,
        Order::Detach => Command::Detach,
    };
    let text = ask(pid, command, Look { top: None, color: false, width: 0 })?;
    print(&text)?;
    Ok(0)
}

fn ask(pid: i32, command: Command, look: Look) -> anyhow::Result<String> {
    let (mut stream, known_as) = socket::connect_to_tracer_of(pid)?;
    let no_answer = || format!("the heaptrace that traces process {pid} gave no answer");
    ctl::send(&Request { version: ctl::VERSION, pid: known_as, command, look }, &mut stream).with_context(no_answer)?;
    match ctl::receive(&mut stream).with_context(no_answer)? {
        Response::Done(text) => Ok(text),
        Response::Failed(reason) => bail!("process {pid}: {reason}"),
    }
}
