//! `heaptrace snapshot`: asks the heaptrace that traces a process for what is live, and writes it with the rights of
//! the one who asks.

use super::ask::{no_answer, put, refused, waiting};
use super::attach::find;
use super::contents::Folder;
use super::direct::Waiter;
use super::{owners, tell};
use crate::base::figures::plural;
use crate::cli::{EXIT_OWN_FAILURE, SnapshotOptions, Verbosity};
use crate::export::output::{Outcome, Outputs, Subject};
use crate::export::{Format, Source};
use crate::top::ctl::{self, Command, Response, SnapshotHead, SnapshotQuestion, TextStyle};
use crate::tracer::{control, socket};
use anyhow::{Context, anyhow, bail};
use std::io::{self, BufReader, Read, Write};
use std::time::Duration;

/// How long the tracer may take to find names, and to write.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Writes the snapshot. The exit status is 125 if a file could not be written.
///
/// # Errors
/// An output can't be written; the process is not traced, or its tracer can't tell.
pub fn execute(options: &SnapshotOptions) -> anyhow::Result<u8> {
    let (to_stdout, paths): (Vec<_>, Vec<_>) =
        options.outputs.iter().cloned().partition(|path| path.as_os_str() == "-");
    let stdout_format = match (to_stdout.len(), options.format) {
        (0, _) => None,
        (1, Some(format)) => Some(format),
        (1, None) => bail!("`-o -` does not name a format: choose one with --format"),
        (_, _) => bail!("`-o -` was given twice"),
    };
    stdout_format.map_or(Ok(()), |format| format.can_hold(Source::Run))?;
    let outputs = Outputs::prepare(&paths, options.format, owners())?.filled_from(Source::Run)?;
    let pid = find(&options.target)?;
    if options.contents.is_none() {
        return ask(pid, options, outputs, stdout_format, None);
    }
    // A signal must not leave the folder half full.
    control::block_own_signals()?;
    let folder = options.contents.as_deref().map(Folder::prepare).transpose()?;
    match (ask(pid, options, outputs, stdout_format, folder), control::waiting_request_to_end()) {
        (Err(error), Some(signal)) => {
            tell(&format!("{}; no contents were written", super::message(&error)));
            Ok(128 + u8::try_from(signal).unwrap_or_default())
        }
        (asked, _) => asked,
    }
}

/// Writes a snapshot where `heaptrace snapshot` does without options; in words, what became of it.
///
/// # Errors
/// The file can't be written; the process is not traced any more, or its tracer can't tell.
pub(super) fn write_one(pid: i32) -> anyhow::Result<String> {
    let options = SnapshotOptions::of(pid);
    let outputs = Outputs::prepare(&options.outputs, None, owners())?.filled_from(Source::Run)?;
    let Taken { head, written, .. } = take(pid, &options, outputs, None, None)?;
    let (told, _) = what_was_written(&head, &written);
    Ok(told.join("; "))
}

/// What has come of a snapshot.
struct Taken {
    head: SnapshotHead,
    written: Vec<Outcome>,
    stdout: Option<Vec<u8>>,
}

/// Asks, and writes what comes.
fn ask(
    pid: i32,
    options: &SnapshotOptions,
    outputs: Outputs,
    stdout_format: Option<Format>,
    folder: Option<Folder>,
) -> anyhow::Result<u8> {
    let Taken { head, written, stdout } = take(pid, options, outputs, stdout_format, folder)?;
    let (told, well) = what_was_written(&head, &written);
    for (text, file) in told.iter().zip(&written) {
        if !options.quiet || file.result.is_err() {
            tell(text);
        }
    }
    if let Some(bytes) = stdout {
        let mut out = io::stdout().lock();
        match out.write_all(&bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(anyhow!(error).context("could not write to standard output"));
            }
            _ => {}
        }
    }
    Ok(if well { 0 } else { EXIT_OWN_FAILURE })
}

/// What became of each file, in words, and whether all were written.
fn what_was_written(head: &SnapshotHead, written: &[Outcome]) -> (Vec<String>, bool) {
    let told = |file: &Outcome| match &file.result {
        Ok(bytes) => format!(
            "{}: {}; {} live, {}",
            file.path.display(),
            plural(*bytes, "byte"),
            plural(head.live_blocks, "block"),
            plural(head.live_bytes, "byte")
        ),
        Err(error) => format!("{}: {error}", file.path.display()),
    };
    (written.iter().map(told).collect(), written.iter().all(|file| file.result.is_ok()))
}

/// Asks, and writes what comes to files.
fn take(
    pid: i32,
    options: &SnapshotOptions,
    outputs: Outputs,
    stdout_format: Option<Format>,
    folder: Option<Folder>,
) -> anyhow::Result<Taken> {
    let formats: Vec<Format> = outputs.formats().chain(stdout_format).collect();
    let mut tracer = socket::connect_to_tracer_of(pid)?;
    let question = SnapshotQuestion {
        formats: formats.iter().map(|format| format.name().to_owned()).collect(),
        pprof_columns: options.pprof_columns.name().to_owned(),
        since: options.since.clone(),
        until: options.until.clone(),
        contents: folder.as_ref().map(|_| options.contents_limit),
    };
    let look = TextStyle { top: None, color: false, width: 0 };
    put(&mut tracer, pid, Command::Snapshot(question), look, TIMEOUT)?;
    tracer.conversation.look_out(waiting(pid, TIMEOUT, options.quiet));
    let mut answers = BufReader::new(&mut tracer.conversation);
    let head = match ctl::receive(&mut answers, ctl::LONGEST_ANSWER).with_context(|| no_answer(pid))? {
        Response::Snapshot(head) => head,
        Response::Failed(reason) => return Err(refused(pid, &reason)),
        Response::Done(_) | Response::Top(_) => bail!("process {pid}: its tracer gave an answer of the wrong kind"),
    };
    let mut files = files(&head, formats.len(), &mut answers).with_context(|| no_answer(pid))?;
    if let Some(folder) = folder {
        let blocks = head.blocks.ok_or_else(|| anyhow!("process {pid}: its tracer sent no contents"))?;
        let shown = options.contents.clone().unwrap_or_default();
        let bytes = folder.receive(blocks, options.contents_limit, &mut answers)?;
        folder.finish()?;
        if !options.quiet {
            tell(&format!(
                "{}: {} with {}, and index.tsv",
                shown.display(),
                plural(blocks, "block"),
                plural(bytes, "byte")
            ));
        }
    }
    let stdout = if stdout_format.is_some() { files.pop() } else { None };
    control::block_own_signals()?;
    let verbosity = if options.quiet { Verbosity::Quiet } else { Verbosity::Normal };
    let subject = Subject {
        program: &head.program,
        pid,
        number: head.number,
        of_another_user: head.of_another_user,
        allocated_bytes: head.live_bytes,
    };
    let written = outputs.write_contents(&subject, &files, &mut Waiter::new(verbosity));
    Ok(Taken { head, written, stdout })
}

/// The files that follow the head of an answer.
fn files(head: &SnapshotHead, wanted: usize, from: &mut impl Read) -> anyhow::Result<Vec<Vec<u8>>> {
    if head.files.len() != wanted || head.files.iter().any(|length| *length > ctl::LONGEST_FILE) {
        bail!("its files are not the requested ones");
    }
    let read = |length: &u64| {
        let mut file = Vec::new();
        from.by_ref().take(*length).read_to_end(&mut file)?;
        if file.len() as u64 == *length { Ok(file) } else { bail!("the connection broke inside a file") }
    };
    head.files.iter().map(read).collect()
}
