//! The event trace: what happens to the heaps of a session, in a file in the Fuchsia trace format (fxt). docs/trace.md
//! describes it.
//!
//! | what | where |
//! |---|---|
//! | records, headers, limits of the format, of any fxt file | `fxt.rs` |
//! | which records a heap's events become: names, arguments, packed calls | `vocabulary.rs` |
//! | what the records of the format have no room for, as JSON and tables | `metadata.rs` |
//! | events and definitions -> bytes | `writer.rs` |
//! | the writer as a reader of processes' streams | `recorder.rs` |
//!
//! Pure: bytes go to a [`writer::TraceOutput`], files and threads are the caller's affair.

pub mod decode;
pub mod fxt;
pub mod metadata;
pub mod reader;
pub mod recorder;
#[cfg(test)]
pub(crate) mod testing;
pub mod vocabulary;
pub mod writer;

use crate::base::addr::{ProcessId, TaskId};

/// The version of what heaptrace adds to the format: what it calls things, and the blobs.
pub const FORMAT: u32 = 1;

/// Nanoseconds in a tick of the trace's clock; all events' times are multiples of it, see [`crate::event::TICK_NS`].
pub const TICK_NS: u64 = crate::event::TICK_NS;

/// The kernel object id that stands for a process.
pub fn process_koid(process: ProcessId) -> u64 {
    koid(process.number, process.pid)
}

/// The kernel object id that stands for a thread.
pub fn thread_koid(task: TaskId) -> u64 {
    koid(task.serial, task.tid)
}

/// What [`process_koid`] was made of.
pub const fn process_of(koid: u64) -> ProcessId {
    ProcessId { number: (koid >> 32) as u32, pid: (koid as u32).cast_signed() }
}

/// What [`thread_koid`] was made of.
pub const fn task_of(koid: u64) -> TaskId {
    TaskId { serial: (koid >> 32) as u32, tid: (koid as u32).cast_signed() }
}

fn koid(number: u32, id: i32) -> u64 {
    u64::from(number) << 32 | u64::from(id.cast_unsigned())
}

/// What becomes of a trace that grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceMode {
    /// All is kept, whatever the size.
    #[default]
    Streaming,
    /// What comes first is kept, up to a size.
    Oneshot,
    /// What comes last is kept, up to a size.
    Circular,
}

#[cfg(test)]
mod tests;
