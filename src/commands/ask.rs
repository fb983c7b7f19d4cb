//! `heaptrace leaks` and `heaptrace ctl`: ask the heaptrace that traces a process.

use super::attach::find;
use super::conclude::terminal_width;
use super::{lost, print, tell, use_color};
use crate::cli::{CtlOptions, LeaksOptions, LeaksTarget, Order};
use crate::export::escape::{Json, lines};
use crate::export::summary::SummaryOptions;
use crate::top::ctl::{self, Command, ProtocolError, Request, Response, TextStyle};
use crate::tracer::control;
use crate::tracer::socket::{self, AskError, TracerOf};
use anyhow::{Context, anyhow, bail};
use serde::de::IgnoredAny;
use std::io::{self, BufReader, Write};
use std::time::{Duration, Instant};

/// How long a tracer may take to classify a heap and to find the names for it.
const PATIENCE_FOR_LEAKS: Duration = Duration::from_secs(300);

/// How long it may take to carry out an order.
const TIMEOUT: Duration = Duration::from_secs(60);

/// After this time without an answer heaptrace tells the user.
const SILENCE: Duration = Duration::from_secs(3);

/// How often to look whether a process has been let go: the kernel does not report that.
const POLL: Duration = Duration::from_millis(5);

/// Asks the tracer which blocks are lost, and prints its answer; where nobody traces the process, looks from outside.
/// The exit status is 0 whatever there is.
///
/// # Errors
/// If somebody else traces the process, or its heap can't be read.
pub fn leaks(options: &LeaksOptions) -> anyhow::Result<u8> {
    let target = match &options.target {
        LeaksTarget::Process(target) => target,
        LeaksTarget::Core(core) => return lost::tell_lost_in_core(core, options),
    };
    let pid = find(target)?;
    let command = Command::Leaks {
        increased: options.increased,
        explain: options.explain.map(|addr| addr.0),
        json: options.json,
    };
    let color = use_color(options.color, &io::stdout());
    let width = terminal_width(&io::stdout()).unwrap_or(SummaryOptions::default().width);
    let mut tracer = match socket::connect_to_tracer_of(pid) {
        Err(AskError::NotTraced { contained, .. }) => {
            let told = lost::tell_lost(pid, options, color);
            // a tracer outside of this container keeps others away, and can't be seen from here
            return if contained {
                told.context("if it is traced from outside this container, ask there")
            } else {
                told
            };
        }
        asked => asked?,
    };
    let text = ask(&mut tracer, pid, command, TextStyle { top: options.top, color, width }, PATIENCE_FOR_LEAKS)?;
    print(&if options.json { report(pid, &text)? } else { lines(&text, color) })?;
    Ok(0)
}

/// Carries the order to the tracer. The exit status is 0 if it has been carried out.
///
/// # Errors
/// If the process is not traced by a heaptrace of this user, or that one refuses.
pub fn control(options: &CtlOptions) -> anyhow::Result<u8> {
    let pid = find(&options.target)?;
    let command = match &options.order {
        Order::Mark(name) => Command::Mark { name: name.clone() },
        Order::Pause => Command::Pause,
        Order::Resume => Command::Resume,
        Order::Detach => Command::Detach,
    };
    let mut tracer = socket::connect_to_tracer_of(pid)?;
    let asked = ask(&mut tracer, pid, command, TextStyle { top: None, color: false, width: 0 }, TIMEOUT);
    let text = match options.order {
        Order::Detach => wait_until_let_go(&tracer, pid, asked)?,
        Order::Pause | Order::Resume | Order::Mark(_) => asked?,
    };
    print(&lines(&text, false))?;
    Ok(0)
}

/// Waits until no thread is traced any more: the answer says that the tracer has begun. It may have come to its own end
/// before it could answer, which is as good.
fn wait_until_let_go(tracer: &TracerOf, pid: i32, asked: anyhow::Result<String>) -> anyhow::Result<String> {
    let broke =
        |error: &anyhow::Error| matches!(error.downcast_ref(), Some(ProtocolError::Closed | ProtocolError::Io(_)));
    if asked.as_ref().is_err_and(|error| !broke(error)) {
        return asked;
    }
    let since = Instant::now();
    while tracer.still_traces() {
        if since.elapsed() > TIMEOUT {
            bail!("process {pid} is still being traced after {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(asked.unwrap_or_default())
}

fn ask(
    tracer: &mut TracerOf,
    pid: i32,
    command: Command,
    look: TextStyle,
    patience: Duration,
) -> anyhow::Result<String> {
    let limit = command.longest_answer();
    put(tracer, pid, command, look, patience)?;
    tracer.conversation.look_out(waiting(pid, patience, false));
    let mut answers = BufReader::new(&mut tracer.conversation);
    match ctl::receive(&mut answers, limit).with_context(|| no_answer(pid))? {
        Response::Done(text) => Ok(text),
        Response::Failed(reason) => Err(refused(pid, &reason)),
        Response::Snapshot(_) | Response::Top(_) => {
            bail!("process {pid}: its tracer gave an answer of the wrong kind")
        }
    }
}

pub(super) fn no_answer(pid: i32) -> String {
    format!("the heaptrace that traces process {pid} gave no answer")
}

/// What is done while no answer comes: after a while the user is told once, unless `quiet`; a signal that heaptrace has
/// blocked ends the waiting.
pub(super) fn waiting(pid: i32, patience: Duration, quiet: bool) -> impl FnMut() -> io::Result<()> + Send {
    let since = Instant::now();
    let mut told = quiet;
    move || {
        if let Some(signal) = control::waiting_request_to_end() {
            return Err(io::Error::other(format!("cancelled by {}", control::signal_name(signal))));
        }
        if !told && since.elapsed() >= SILENCE {
            told = true;
            tell(&format!(
                "waiting up to {} s for the heaptrace that traces process {pid}: it is busy, or answers others first \
                 (Ctrl-C gives up)",
                patience.as_secs()
            ));
        }
        Ok(())
    }
}

/// Asks the question. The answer is to come within `patience`.
pub(super) fn put(
    tracer: &mut TracerOf,
    pid: i32,
    command: Command,
    look: TextStyle,
    patience: Duration,
) -> anyhow::Result<()> {
    let request = Request { version: command.version(), pid: tracer.known_as, command, look };
    tracer.conversation.wait_at_most(patience);
    ctl::send(&request, &mut tracer.conversation, ctl::LONGEST_QUESTION).with_context(|| no_answer(pid))
}

/// Why the tracer does not do it. One of an older version does not know the question.
pub(super) fn refused(pid: i32, reason: &str) -> anyhow::Error {
    let is_older = reason.contains("unknown variant") || reason.contains("of the protocol, the request has");
    let hint = if is_older { ": the heaptrace that traces it is older than this one, and can't do that" } else { "" };
    anyhow!("process {pid}: {reason}{hint}")
}

/// A report.json of another heaptrace, without characters that do something where they are shown.
fn report(pid: i32, text: &str) -> anyhow::Result<String> {
    let refused = || format!("the answer of the heaptrace that traces process {pid} is not JSON");
    serde_json::from_str::<IgnoredAny>(text).with_context(refused)?;
    let mut escaped = Vec::with_capacity(text.len());
    Json(&mut escaped).write_all(text.as_bytes()).with_context(refused)?;
    String::from_utf8(escaped).with_context(refused)
}
