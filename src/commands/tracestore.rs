//! Where the pieces of a trace are written to, on the trace's own thread: one file, or a ring of segment files.

use super::tell;
use crate::export::output::GrowingFile;
use crate::profile::ProcessInfo;
use crate::trace::TraceMode;
use crate::tracer::control;
use crate::tracer::files::open_without_blocking;
use anyhow::{Context, bail};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zstd::stream::write::Encoder;

/// How long an output that takes nothing is waited for when tracing is to end.
pub(super) const LAST_CHANCE: Duration = Duration::from_secs(2);

/// A circular trace consists of so many segments of equal size at most.
pub(super) const SEGMENTS: u64 = 8;

/// How often a full pipe is tried again, or one without a reader.
const POLL: Duration = Duration::from_millis(5);

/// After this time of waiting for a reader heaptrace tells the user.
const SILENCE: Duration = Duration::from_secs(1);

/// How long a named pipe may be without a reader.
const READER_MUST_COME: Duration = Duration::from_secs(60);

/// How hard zstd tries. Of a trace of a C compiler (476,000 events, 62 bytes each), level 3 leaves 9.4 bytes an event
/// and takes 8,000,000 events a second, level 6 leaves 8.6 and takes 2,400,000, level 19 leaves 6.9 and takes 30,000.
const LEVEL: i32 = 3;

/// An order to the writing thread.
#[derive(Debug)]
pub(super) enum Message {
    /// Whole records.
    Piece(Vec<u8>),
    /// What was written is to reach the file: nothing may follow for long.
    Flush,
    /// What follows is another segment.
    Segment {
        /// How many events there were before it.
        events: u64,
    },
    /// The trace is whole, and gets its name, which is that of this process where it has patterns.
    Finish {
        /// The process.
        process: Box<ProcessInfo>,
        /// Whether the trace tells of another user's process.
        another_user: bool,
    },
    /// Nothing is worth keeping.
    Discard,
    /// The trace is not whole, and stays as it is.
    Leave,
}

/// What the writing thread tells.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Tracing is to end: nothing is waited for any longer.
    pub(super) hurry: Arc<AtomicBool>,
    /// Whether heaptrace has told the user that the trace is full.
    pub(super) was_full: AtomicBool,
    /// How many messages wait; for a moment it may be one less.
    pub(super) waiting: AtomicI64,
    failed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failure: Option<String>,
    /// The segment that is being written, and its bytes in the file.
    segment: (u64, u64),
    finished: Finished,
}

/// A trace that is whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Finished {
    /// The file's name; None of a pipe.
    pub(super) path: Option<PathBuf>,
    /// Its size.
    pub(super) bytes: u64,
    /// How many events were overwritten.
    pub(super) overwritten: u64,
}

/// A segment of a circular trace.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    /// In the file.
    bytes: u64,
    /// How many events there were before it.
    events_before: u64,
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn is_in_a_hurry(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// What went wrong first.
    pub(super) fn failure(&self) -> Option<String> {
        self.state().failure.clone()
    }

    pub(super) fn fail(&self, failure: String) {
        self.state().failure.get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
    }

    /// Bytes of a segment in the file so far.
    pub(super) fn bytes_of(&self, segment: u64) -> u64 {
        let (current, bytes) = self.state().segment;
        if current == segment { bytes } else { 0 }
    }

    pub(super) fn finished(&self) -> Finished {
        self.state().finished.clone()
    }
}

/// An open file that may be a pipe whose reader is slow.
#[derive(Debug)]
struct Patient {
    file: File,
    progress: Arc<Progress>,
    bytes: u64,
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut hurry_since = None;
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.progress.is_in_a_hurry()
                        && hurry_since.get_or_insert_with(Instant::now).elapsed() > LAST_CHANCE
                    {
                        return Err(io::Error::other("its reader stopped reading before tracing could end"));
                    }
                    std::thread::sleep(POLL);
                }
                done => {
                    let written = done?;
                    self.bytes += written as u64;
                    return Ok(written);
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The open end of a segment.
enum Sink {
    Plain(Patient),
    Packed(Encoder<'static, Patient>),
}

impl Sink {
    fn new(file: File, compressed: bool, progress: &Arc<Progress>) -> io::Result<Self> {
        let patient = Patient { file, progress: Arc::clone(progress), bytes: 0 };
        Ok(if compressed { Self::Packed(Encoder::new(patient, LEVEL)?) } else { Self::Plain(patient) })
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.write_all(piece),
            Self::Packed(out) => out.write_all(piece),
        }
    }

    /// Lets everything reach the file, so that it could be read from there.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Packed(out) => out.flush(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Plain(out) => out.bytes,
            Self::Packed(out) => out.get_ref().bytes,
        }
    }

    fn finish(self) -> io::Result<(File, u64)> {
        let out = match self {
            Self::Plain(out) => out,
            Self::Packed(out) => out.finish()?,
        };
        Ok((out.file, out.bytes))
    }
}

/// See the module's head.
pub(super) struct Store {
    file: Arc<GrowingFile>,
    mode: TraceMode,
    size: u64,
    compressed: bool,
    progress: Arc<Progress>,
    sink: Option<Sink>,
    /// The number of the segment that is being written.
    segment: u64,
    /// How many events there were before it.
    events_before: u64,
    /// Segments that are whole, the oldest first.
    ring: VecDeque<Segment>,
}

impl Store {
    /// Creates the file, or opens the pipe.
    pub(super) fn open(
        file: Arc<GrowingFile>,
        mode: TraceMode,
        size: u64,
        compressed: bool,
        progress: Arc<Progress>,
        quiet: bool,
    ) -> anyhow::Result<Self> {
        let open = match file.direct() {
            Some(path) => open_pipe(path, quiet)?,
            None => file.create((mode == TraceMode::Circular).then_some(0))?,
        };
        let sink = Sink::new(open, compressed, &progress).context("zstd does not begin")?;
        Ok(Self {
            file,
            mode,
            size,
            compressed,
            progress,
            sink: Some(sink),
            segment: 0,
            events_before: 0,
            ring: VecDeque::new(),
        })
    }

    /// Carries out orders until the end.
    pub(super) fn serve(mut self, messages: &Receiver<Message>) {
        for message in messages {
            let done = match message {
                Message::Piece(_) | Message::Segment { .. } | Message::Flush if self.progress.has_failed() => Ok(()),
                Message::Piece(piece) => self.write(&piece),
                Message::Flush => self.flush(),
                Message::Segment { events } => self.next_segment(events),
                Message::Finish { process, another_user } => {
                    if !self.progress.has_failed()
                        && let Err(error) = self.finish(&process, another_user)
                    {
                        self.fail(&error, false);
                    }
                    return;
                }
                Message::Discard => {
                    self.discard();
                    return;
                }
                Message::Leave => {
                    let _ = self.sink.take().map(Sink::finish);
                    return;
                }
            };
            if let Err(error) = done {
                self.fail(&error, true);
            }
            self.progress.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn write(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        sink.write(piece)?;
        self.note_bytes();
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.sink.as_mut().map_or(Ok(()), Sink::flush)?;
        self.note_bytes();
        Ok(())
    }

    fn note_bytes(&self) {
        let Some(sink) = &self.sink else { return };
        self.progress.state().segment = (self.segment, sink.bytes());
    }

    fn end_segment(&mut self) -> anyhow::Result<()> {
        let Some(sink) = self.sink.take() else { return Ok(()) };
        let (_, bytes) = sink.finish()?;
        self.ring.push_back(Segment { number: self.segment, bytes, events_before: self.events_before });
        Ok(())
    }

    /// Makes room for another segment, and begins it. So many `events` came before it.
    fn next_segment(&mut self, events: u64) -> anyhow::Result<()> {
        self.end_segment()?;
        let next = self.size / SEGMENTS;
        while self.ring.len() > 1 && self.ring.iter().map(|segment| segment.bytes).sum::<u64>() + next > self.size {
            if let Some(oldest) = self.ring.pop_front() {
                fs::remove_file(self.file.part(Some(oldest.number)))?;
            }
        }
        self.events_before = events;
        self.segment += 1;
        let file = self.file.create(Some(self.segment))?;
        self.sink = Some(Sink::new(file, self.compressed, &self.progress)?);
        self.progress.state().segment = (self.segment, 0);
        Ok(())
    }

    fn finish(&mut self, process: &ProcessInfo, another_user: bool) -> anyhow::Result<()> {
        let (file, bytes) = if self.mode == TraceMode::Circular {
            self.end_segment()?;
            let mut whole = self.file.create(None)?;
            for segment in &self.ring {
                io::copy(&mut File::open(self.file.part(Some(segment.number)))?, &mut whole)?;
            }
            let bytes = whole.stream_position()?;
            (whole, bytes)
        } else {
            let Some(sink) = self.sink.take() else { return Ok(()) };
            sink.finish()?
        };
        let path = match self.file.direct() {
            Some(_) => None,
            None => Some(self.file.finish(&file, process, another_user)?),
        };
        let overwritten = self.ring.front().map_or(0, |oldest| oldest.events_before);
        for segment in std::mem::take(&mut self.ring) {
            fs::remove_file(self.file.part(Some(segment.number)))?;
        }
        self.progress.state().finished = Finished { path, bytes, overwritten };
        Ok(())
    }

    fn discard(&mut self) {
        self.sink = None;
        if self.file.direct().is_some() {
            return;
        }
        let circular = self.mode == TraceMode::Circular;
        let segments = self.ring.iter().map(|segment| segment.number).chain([self.segment]);
        let parts: Vec<Option<u64>> = if circular { segments.map(Some).collect() } else { vec![None] };
        for part in parts {
            // It was ours; what can't be removed is left.
            let _ = fs::remove_file(self.file.part(part));
        }
    }

    /// The trace ends here. `at_once`: the user does not know yet, and will not for a while.
    fn fail(&mut self, error: &anyhow::Error, at_once: bool) {
        // What was written is still worth something; an error of this is no news.
        let _ = self.sink.take().map(Sink::finish);
        let mut text = format!("{error:#}");
        if self.file.direct().is_none() {
            let piece = (self.mode == TraceMode::Circular).then_some(self.segment);
            text.push_str(&format!("; {} holds what was recorded until then", self.file.part_shown(piece).display()));
        }
        if at_once {
            tell(&format!("the trace ends, the program goes on: {}: {text}", self.file.shown().display()));
        }
        self.progress.fail(text);
    }
}

/// Opens a pipe or a device; a named pipe as soon as it has a reader.
fn open_pipe(path: &Path, quiet: bool) -> anyhow::Result<File> {
    let began = Instant::now();
    let mut told = quiet;
    loop {
        if let Some(file) = open_without_blocking(path).with_context(|| path.display().to_string())? {
            return Ok(file);
        }
        let waited = began.elapsed();
        if waited > READER_MUST_COME {
            bail!(
                "{}: no process opened this pipe for reading within {} s; start its reader earlier, or name a file",
                path.display(),
                READER_MUST_COME.as_secs()
            );
        }
        if waited > SILENCE && !told {
            told = true;
            tell(&format!("waiting for a reader of {} (Ctrl-C gives up)", path.display()));
        }
        if let Some(signal) = control::next_signal(POLL).filter(|&signal| control::is_request_to_end(signal)) {
            bail!(
                "{}: no process opened this pipe for reading before {}",
                path.display(),
                control::signal_name(signal)
            );
        }
    }
}
