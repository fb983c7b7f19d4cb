//! The writer as a reader of each process's stream: what processes have in common lies in one [`TraceWriter`].

mod stream;

use super::metadata::{End, Names, ProfileEnd};
use super::writer::{TraceWriter, Written};
use crate::base::addr::ProcessId;
use crate::event::{Definition, Event, EventSink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stream::Stream;

/// Live bytes are told so often at most, in nanoseconds.
const LIVE_EVERY_NS: u64 = 1_000_000;

/// The trace of a session: hands out the readers of its processes. A clone is the same trace.
#[derive(Clone, Debug)]
pub struct Recorder {
    writer: Arc<Mutex<TraceWriter>>,
    circular: bool,
    free_stacks: bool,
    hurry: Arc<AtomicBool>,
}

impl Recorder {
    /// Records with this writer. `circular`: segments are overwritten, so that each has to tell all that it needs.
    /// `free_stacks`: frees come with their stacks. `hurry`: see [`Self::hurry`].
    pub fn new(writer: TraceWriter, circular: bool, free_stacks: bool, hurry: Arc<AtomicBool>) -> Self {
        Self { writer: Arc::new(Mutex::new(writer)), circular, free_stacks, hurry }
    }

    /// Tells the output that tracing is to end soon, also while it keeps the tracer thread waiting.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    /// The reader of a process's stream, from its beginning on.
    pub fn reader(&self, process: ProcessId) -> Box<dyn EventSink> {
        Box::new(ProcessTrace {
            writer: Arc::clone(&self.writer),
            stream: Stream::new(process, self.circular, self.free_stacks),
        })
    }

    /// See [`TraceWriter::hand_over_if_quiet`]. Not now, if an event is being written.
    pub fn look(&self) {
        if let Ok(mut writer) = self.writer.try_lock() {
            writer.hand_over_if_quiet();
        }
    }

    /// All events were told: see [`TraceWriter::begin_end`].
    pub fn begin_end(&self) {
        lock(&self.writer).begin_end();
    }

    /// Writes the end of a process.
    pub fn end(&self, end: &End) {
        lock(&self.writer).end(end);
    }

    /// Writes the names of addresses.
    pub fn names(&self, names: &Names) {
        lock(&self.writer).names(names);
    }

    /// Hands over what has not been yet. What was written until now.
    pub fn flush(&self) -> Written {
        lock(&self.writer).flush()
    }
}

/// After a panic of the tracer thread the rest is still worth being written.
fn lock(writer: &Mutex<TraceWriter>) -> MutexGuard<'_, TraceWriter> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reader of one process's stream.
#[derive(Debug)]
struct ProcessTrace {
    writer: Arc<Mutex<TraceWriter>>,
    stream: Stream,
}

impl EventSink for ProcessTrace {
    fn take(&mut self, event: &Event) {
        let mut writer = lock(&self.writer);
        self.stream.next_seq = event.seq + 1;
        self.stream.follow(event.kind);
        if !writer.takes_events() {
            return;
        }
        self.stream.enter_segment(&mut writer, event.seq);
        writer.make_room_for_strings();
        self.stream.write(event, &mut writer);
        writer.end_event(event.time_ns);
    }

    fn define(&mut self, definition: &Definition<'_>) {
        self.stream.define(definition, &mut lock(&self.writer));
    }

    fn note_live(&mut self, time_ns: u64, bytes: u64) {
        if self.stream.live_told_ns.is_some_and(|told| time_ns < told.saturating_add(LIVE_EVERY_NS)) {
            return;
        }
        self.stream.live_told_ns = Some(time_ns);
        let mut writer = lock(&self.writer);
        if writer.has_room() {
            self.stream.write_live(time_ns, bytes, &mut writer);
        }
    }

    fn profile_ends(&mut self) {
        let mut writer = lock(&self.writer);
        if writer.has_room() {
            self.stream.enter_segment(&mut writer, self.stream.next_seq);
            writer.profile_ends(&ProfileEnd { koid: self.stream.koid, seq: self.stream.next_seq });
        }
    }

    fn fork(&self, child: ProcessId) -> Option<Box<dyn EventSink>> {
        Some(Box::new(Self { writer: Arc::clone(&self.writer), stream: self.stream.fork(child) }))
    }
}
