//! The trace's file: checked before the target starts, written on a thread of its own, given its name when it is whole.
//!
//! The tracer thread hands over pieces of records by a queue of few of them: if the disk, a pipe's reader or the
//! compression is slower than the program, the program waits. What goes wrong ends the trace, not the tracing.

use super::tell;
use super::tracestore::{Finished, Message, Progress, SEGMENTS, Store};
use crate::base::figures::{grouped, plural};
use crate::cli::{ProfileOptions, Verbosity};
use crate::export::output::{GrowingFile, Owners};
use crate::profile::ProcessInfo;
use crate::session::{Recording, Settings, Traced};
use crate::trace::metadata::{Function, Names, Session};
use crate::trace::recorder::Recorder;
use crate::trace::writer::{PIECE, Room, TraceOutput, TraceWriter, Written};
use crate::trace::{FORMAT, TraceMode};
use crate::tracer::control;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// So many pieces wait at most.
const QUEUE: usize = 8;

/// How often a full queue is looked at.
const POLL: Duration = Duration::from_micros(500);

/// After this time of waiting for a reader at the end heaptrace tells the user.
const SILENCE: Duration = Duration::from_secs(1);

/// How often is looked then whether a signal has come.
const SIGNAL_POLL: Duration = Duration::from_millis(20);

/// The size of a trace that has a limit, unless another one is asked for.
const DEFAULT_SIZE: u64 = 64 << 20;

/// Less would hold hardly more than the names of the modules.
const MIN_SIZE: u64 = 256 << 10;

/// A trace that is to be written.
#[derive(Debug)]
pub struct TraceFile {
    file: Arc<GrowingFile>,
    mode: TraceMode,
    size: u64,
    compressed: bool,
    quiet: bool,
    running: Mutex<Option<Running>>,
}

/// A trace that is being written.
#[derive(Debug)]
struct Running {
    recorder: Recorder,
    progress: Arc<Progress>,
    queue: SyncSender<Message>,
    writer: Option<JoinHandle<()>>,
}

/// What became of a trace.
#[derive(Debug)]
pub struct TraceOutcome {
    /// What heaptrace tells the user.
    pub text: String,
    /// Whether it is not what was asked for.
    pub has_failed: bool,
    /// The signal that ended the waiting for a reader, if one did.
    pub interrupted: Option<i32>,
}

impl TraceFile {
    /// Checks the file that `options` name, if they name one.
    ///
    /// # Errors
    /// It can't be written.
    pub fn prepare(options: &ProfileOptions, owners: Owners) -> anyhow::Result<Option<Self>> {
        let Some(trace) = &options.trace else { return Ok(None) };
        let shown = trace.path.display();
        let size = match (trace.mode, trace.size) {
            (TraceMode::Streaming, Some(_)) => {
                bail!("--trace-size is for traces with a limit: add --trace-mode oneshot or circular")
            }
            (_, Some(size)) if size < MIN_SIZE => bail!("--trace-size: the minimum is {} KiB", MIN_SIZE >> 10),
            (_, size) => size.unwrap_or(DEFAULT_SIZE),
        };
        let Some(compressed) = is_compressed(&trace.path) else {
            bail!(
                "--trace {shown}: the name does not end in a format; name a trace FILE.fxt or, compressed, FILE.fxt.zst"
            )
        };
        let file = GrowingFile::prepare(&trace.path, owners)?;
        if file.direct().is_some() && trace.mode == TraceMode::Circular {
            bail!("--trace {shown}: a circular trace needs a file, not a pipe or device");
        }
        let quiet = options.verbosity == Verbosity::Quiet;
        Ok(Some(Self { file: Arc::new(file), mode: trace.mode, size, compressed, quiet, running: Mutex::new(None) }))
    }

    /// Opens the file, and lets a session with these settings write to it. `attached`: the process runs already.
    ///
    /// # Errors
    /// The file can't be created.
    pub fn begin(&self, settings: &mut Settings, attached: bool) -> anyhow::Result<()> {
        // What an attempt has left that came to nothing.
        drop(self.take());
        let Self { mode, size, compressed, .. } = *self;
        let progress = Arc::new(Progress::default());
        let store = Store::open(Arc::clone(&self.file), mode, size, compressed, Arc::clone(&progress), self.quiet)?;
        let (queue, pieces) = sync_channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("trace".to_owned())
            .spawn(move || store.serve(&pieces))
            .context("could not start the thread that writes the trace")?;
        let limit = match mode {
            TraceMode::Streaming => u64::MAX,
            TraceMode::Oneshot => size,
            TraceMode::Circular => size / SEGMENTS,
        };
        let output = QueueOutput {
            queue: queue.clone(),
            progress: Arc::clone(&progress),
            mode,
            limit,
            compressed,
            segment: 0,
            handed_over: 0,
            shown: self.file.shown(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let session = Session {
            format: FORMAT,
            heaptrace: env!("CARGO_PKG_VERSION").to_owned(),
            session: settings.session.clone(),
            started_at_unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            trace_mode: mode,
            segment: 0,
            attached,
            engine: settings.engine.name().to_owned(),
        };
        let functions = settings.table.iter().map(|(id, function)| Function {
            id: id.0,
            name: function.name.clone(),
            symbol: function.symbol.clone(),
        });
        let piece = usize::try_from(limit / 16).unwrap_or(PIECE).clamp(4096, PIECE);
        let writer_of_records = TraceWriter::new(Box::new(output), session, functions.collect(), piece);
        let circular = mode == TraceMode::Circular;
        let recorder = Recorder::new(writer_of_records, circular, settings.free_stacks, Arc::clone(&progress.hurry));
        settings.trace = Some(recorder.clone());
        let running = Running { recorder, progress, queue, writer: Some(writer) };
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    /// Tells the ends of all processes, with what was found out of them since; what the profile is to say of the trace
    /// goes into it.
    pub fn end_processes(&self, traced: &mut Traced) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(running) = running.as_ref() else { return };
        let (written, _) = self.attended(&running.progress, || {
            running.recorder.begin_end();
            running.recorder.flush()
        });
        let written = written.unwrap_or_default();
        let shown = self.file.shown();
        if let Some(failure) = running.progress.failure() {
            traced.first.facts.warnings.push(format!("the trace {} ended early: {failure}", shown.display()));
        } else if written.dropped > 0 {
            traced.first.facts.warnings.push(format!(
                "the trace {} was full after {} events (--trace-size): it lacks {} more",
                shown.display(),
                written.events,
                written.dropped
            ));
        }
        let ends: Vec<_> = traced.all().map(Recording::trace_end).collect();
        let _ = self.attended(&running.progress, || ends.iter().for_each(|end| running.recorder.end(end)));
    }

    /// Writes the names, and gives the file its own, as that of `process`. None if nothing was begun.
    pub fn finish(&self, names: Option<&Names>, process: &ProcessInfo, another_user: bool) -> Option<TraceOutcome> {
        let mut running = self.take()?;
        let progress = Arc::clone(&running.progress);
        let (written, interrupted) = self.attended(&progress, move || {
            if let Some(names) = names {
                running.recorder.names(names);
            }
            let written = running.recorder.flush();
            running.end_with(Message::Finish { process: Box::new(process.clone()), another_user });
            written
        });
        Some(TraceOutcome { interrupted, ..outcome(&progress, written.unwrap_or_default(), &self.file.shown()) })
    }

    /// Does what may have to wait for a reader; a signal ends the waiting.
    fn attended<T: Send>(&self, progress: &Progress, work: impl FnOnce() -> T + Send) -> (Option<T>, Option<i32>) {
        std::thread::scope(|scope| {
            let began = Instant::now();
            let mut told = self.quiet;
            let mut interrupted = None;
            let worker = scope.spawn(work);
            while !worker.is_finished() {
                if began.elapsed() < SILENCE {
                    std::thread::sleep(POLL);
                    continue;
                }
                if !told {
                    told = true;
                    tell(&format!("waiting for the reader of {} (Ctrl-C gives up)", self.file.shown().display()));
                }
                let signal = control::next_signal(SIGNAL_POLL).filter(|&signal| control::is_request_to_end(signal));
                if interrupted.is_none() && signal.is_some() {
                    interrupted = signal;
                    progress.hurry.store(true, Ordering::Relaxed);
                }
            }
            (worker.join().ok(), interrupted)
        })
    }

    fn take(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn outcome(progress: &Progress, written: Written, shown: &Path) -> TraceOutcome {
    match progress.failure() {
        Some(failure) => {
            TraceOutcome { text: format!("{}: {failure}", shown.display()), has_failed: true, interrupted: None }
        }
        None => {
            let Finished { path, bytes, overwritten } = progress.finished();
            let path = path.unwrap_or_else(|| shown.to_owned());
            let kept = written.events.saturating_sub(overwritten);
            let mut text = format!("trace: {} ({}, {})", path.display(), plural(kept, "event"), plural(bytes, "byte"));
            if overwritten > 0 {
                text.push_str(&format!(
                    "; {} events before them were overwritten (--trace-size)",
                    grouped(overwritten)
                ));
            }
            if written.dropped > 0 {
                text.push_str(&format!(
                    "; then it was full: it lacks {} later events (--trace-size)",
                    grouped(written.dropped)
                ));
            }
            TraceOutcome { text, has_failed: false, interrupted: None }
        }
    }
}

impl Running {
    fn end_with(&mut self, last: Message) {
        // If the thread is gone there is nobody to end.
        let _ = self.queue.send(last);
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            self.progress.fail("the thread that writes it panicked".to_owned());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.writer.is_some() {
            let came_to_nothing = self.recorder.flush().events == 0;
            self.end_with(if came_to_nothing { Message::Discard } else { Message::Leave });
        }
    }
}

/// Hands pieces over to the writing thread.
#[derive(Debug)]
struct QueueOutput {
    queue: SyncSender<Message>,
    progress: Arc<Progress>,
    mode: TraceMode,
    /// Bytes of the file after which there is no room, or after which a segment is long enough.
    limit: u64,
    compressed: bool,
    segment: u64,
    /// Bytes of this segment.
    handed_over: u64,
    shown: PathBuf,
}

impl QueueOutput {
    /// Waits until there is room. False: the trace has ended.
    fn send(&self, mut message: Message) -> bool {
        let mut hurry_since = None;
        loop {
            message = match self.queue.try_send(message) {
                Ok(()) => {
                    self.progress.waiting.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(message)) => message,
            };
            if self.progress.has_failed() {
                return false;
            }
            if self.progress.is_in_a_hurry()
                && hurry_since.get_or_insert_with(Instant::now).elapsed() > super::tracestore::LAST_CHANCE
            {
                self.progress.fail("its reader, or the disk, stopped taking data before tracing could end".to_owned());
                return false;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl TraceOutput for QueueOutput {
    fn take(&mut self, bytes: &mut Vec<u8>) -> Room {
        if self.progress.has_failed() {
            return Room::Gone;
        }
        self.handed_over += bytes.len() as u64;
        let next = Vec::with_capacity(bytes.capacity());
        if !self.send(Message::Piece(std::mem::replace(bytes, next))) {
            return Room::Gone;
        }
        let in_file = if self.compressed { self.progress.bytes_of(self.segment) } else { self.handed_over };
        match self.mode {
            TraceMode::Oneshot if in_file >= self.limit => {
                if !self.progress.was_full.swap(true, Ordering::Relaxed) {
                    tell(&format!(
                        "the trace {} is full (--trace-size): it lacks what happens from now on, but the profile will \
                         have it",
                        self.shown.display()
                    ));
                }
                Room::Full
            }
            TraceMode::Circular if in_file >= self.limit => Room::NewSegment,
            _ => Room::Enough,
        }
    }

    fn flush(&mut self) {
        // The next piece reports a failure.
        let _ = self.send(Message::Flush);
    }

    fn is_idle(&self) -> bool {
        self.progress.waiting.load(Ordering::Relaxed) <= 0
    }

    fn begin_segment(&mut self, events: u64) {
        self.segment += 1;
        self.handed_over = 0;
        // The next piece reports a failure.
        let _ = self.send(Message::Segment { events });
    }
}

/// Whether the name is that of a compressed trace; pipes and devices get what is not compressed, whatever they are
/// called.
fn is_compressed(path: &Path) -> Option<bool> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let is_special = || std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    match name {
        name if name.ends_with(b".fxt.zst") => Some(true),
        name if name.ends_with(b".fxt") || is_special() => Some(false),
        _ => None,
    }
}
