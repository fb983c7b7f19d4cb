//! Traces in memory, for tests.

use super::metadata::{Function, Session};
use super::recorder::Recorder;
use super::writer::{Room, TraceOutput, TraceWriter};
use super::{FORMAT, TraceMode};
use std::sync::{Arc, Mutex};

/// A trace in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) segments: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Bytes after which a segment is full.
    pub(crate) segment: Option<usize>,
    /// Bytes after which all is.
    pub(crate) full: Option<usize>,
}

impl Memory {
    /// The bytes of the segments from this one on.
    pub(crate) fn since_segment(&self, first: usize) -> Vec<u8> {
        self.segments.lock().unwrap().iter().skip(first).flatten().copied().collect()
    }

    /// How many segments there are that hold something.
    pub(crate) fn segments(&self) -> usize {
        self.segments.lock().unwrap().iter().filter(|segment| !segment.is_empty()).count()
    }
}

impl TraceOutput for Memory {
    fn take(&mut self, bytes: &mut Vec<u8>) -> Room {
        let mut segments = self.segments.lock().unwrap();
        if segments.is_empty() {
            segments.push(Vec::new());
        }
        let current = segments.last_mut().unwrap();
        current.append(bytes);
        match (self.segment, self.full) {
            (Some(most), _) if current.len() >= most => Room::NewSegment,
            (_, Some(most)) if current.len() >= most => Room::Full,
            _ => Room::Enough,
        }
    }

    fn begin_segment(&mut self, _: u64) {
        self.segments.lock().unwrap().push(Vec::new());
    }
}

/// A session's head.
pub(crate) fn session(trace_mode: TraceMode) -> Session {
    Session {
        format: FORMAT,
        heaptrace: "0.1.0".to_owned(),
        session: "0123456789abcdef".to_owned(),
        started_at_unix_ns: 1,
        trace_mode,
        segment: 0,
        attached: false,
        engine: "trap".to_owned(),
    }
}

/// Writes to this memory; forty functions.
pub(crate) fn recorder(memory: &Memory) -> Recorder {
    let mode = if memory.segment.is_some() { TraceMode::Circular } else { TraceMode::Streaming };
    let functions = (0..40).map(|id| Function { id, name: format!("f{id}"), symbol: format!("s{id}") }).collect();
    let writer = TraceWriter::new(Box::new(memory.clone()), session(mode), functions, 512);
    Recorder::new(writer, mode == TraceMode::Circular, true, Arc::default())
}
