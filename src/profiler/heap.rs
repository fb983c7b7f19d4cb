//! The heap of a process that nobody traces, as a library: [`Heap`].

use crate::export::heap::{HeapReport, json, text};
use crate::export::text::Paint;
use crate::heap::file::{self, SavedHeap};
use crate::heap::walk::State;
use crate::inspect::{self, Meanwhile};
use crate::tracer::TracerError;
use std::io;

/// What the memory of a process is used for, found from outside by its allocator's own structures. Nobody has traced
/// the process, and it is left as it was; it stands still while its memory is copied.
///
/// ```no_run
/// let heap = heaptrace::Heap::of(1234)?;
/// if let Some(live) = heap.live() {
///     println!("{}: {} blocks, {} bytes", heap.program(), live.blocks, live.bytes);
/// }
/// println!("{}", heap.text());
/// heap.save(&mut std::fs::File::create("now.heap")?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Heap {
    seen: SavedHeap,
    warnings: Vec<String>,
}

/// The live blocks of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LiveBlocks {
    /// How many there are.
    pub blocks: u64,
    /// What the program may use of them, in bytes.
    pub bytes: u64,
}

/// Why a process could not be looked at: the text names the cause, and the way out if there is one.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HeapError(TracerError);

impl Heap {
    /// Looks at process `pid`. Debug information is read for the types of its variables.
    ///
    /// If it is a child of the calling process, no other thread may wait for it meanwhile (waitpid(2)): that thread
    /// would get the stops that are meant for this one.
    ///
    /// # Errors
    /// It can't be traced (there is none, the right is missing, another debugger has it), or its memory can't be read.
    pub fn of(pid: i32) -> Result<Self, HeapError> {
        let identity = inspect::identity(pid);
        let mut seen = inspect::inspect(pid, Meanwhile::StandStill, true).map_err(HeapError)?;
        let warnings = std::mem::take(&mut seen.warnings);
        Ok(Self { seen: SavedHeap { identity, ..seen.into() }, warnings })
    }

    /// The name of its program.
    pub fn program(&self) -> &str {
        &self.seen.program
    }

    /// Its live blocks; None: its allocator can't be walked.
    pub fn live(&self) -> Option<LiveBlocks> {
        let live = self.seen.heap.as_ref()?.of(|state| state == State::Live);
        Some(LiveBlocks { blocks: live.count, bytes: live.usable })
    }

    /// What is missing, in sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// All of it in words, as `heaptrace heap PID` prints it.
    pub fn text(&self) -> String {
        text(&HeapReport::from(&self.seen), Paint { color: false })
    }

    /// All of it, as `heaptrace heap --json PID` prints it.
    pub fn json(&self) -> String {
        json(&HeapReport::from(&self.seen))
    }

    /// Writes it as a `.heap` file, which `heaptrace heap FILE` reads again and `heaptrace diff` compares.
    ///
    /// # Errors
    /// `out` could not be written.
    pub fn save(&self, out: &mut impl io::Write) -> io::Result<()> {
        file::write(&self.seen, out)
    }
}
