//! A trace read again: its events give the heaps, its definitions and ends the rest of what a run leaves. So a trace
//! becomes the recordings of the run that wrote it, or those of a part of it.
//!
//! Kept are live blocks, sites and stacks, of processes that have ended what they left, packed; never the events.

mod births;
mod heaps;
mod process;
mod span;
#[cfg(test)]
mod tests;
mod thread;
mod window;

use crate::allocators::AllocatorTable;
use crate::base::addr::{FunctionId, ImageId};
use crate::base::figures::grouped;
use crate::event::{EventKind, MarkName};
use crate::session::{Archive, ArchivedRecording, Traced};
use crate::trace::metadata::{End, Function, Module, Names, Process, Session};
use crate::trace::reader::{Gaps, Item, Nodes, ProcessEvent};
use crate::trace::{TraceMode, process_of};
use process::{Extras, Replayed};
use rustc_hash::FxHashMap;
use span::Span;
pub use span::{Moment, TracePart};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
pub use thread::ThreadChoice;

/// So many threads or marks are named where the one that was asked for is not there.
const NAMED: usize = 12;

/// Why a trace gives no profile.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// No process is in it, or in that part of it.
    #[error("{0}")]
    Nothing(String),
    /// There is no such mark.
    #[error("the trace has no mark named `{wanted}`, or none after the beginning of the part; there are {there}")]
    NoMark {
        /// What was asked for.
        wanted: String,
        /// Names of marks, in words.
        there: String,
    },
    /// No thread is the one that was asked for.
    #[error("the trace has no thread {wanted}; there are {there}")]
    NoThread {
        /// What was asked for.
        wanted: String,
        /// Names and ids of threads, in words.
        there: String,
    },
}

/// What is wanted of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayOptions {
    /// Which part.
    pub part: TracePart,
    /// Whose allocations and frees; None: those of all threads.
    pub thread: Option<ThreadChoice>,
    /// Whether each of several processes gets a profile of its own.
    pub profile_each: bool,
    /// Whether the live blocks are wanted one by one.
    pub blocks: bool,
    /// Whether heaps at moments on the way are wanted.
    pub heaps: bool,
}

impl ReplayOptions {
    /// What is wanted of each process besides its sums.
    const fn extras(&self) -> Extras {
        Extras { blocks: self.blocks, heaps: self.heaps }
    }
}

/// How the reading of a trace has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// All was read.
    Whole,
    /// The file ends in the middle.
    Torn,
    /// What follows can't be read.
    Damaged,
}

/// What was in a trace.
#[derive(Debug)]
pub struct Outcome {
    /// The recordings, as a session leaves them.
    pub traced: Traced,
    /// The names of addresses, if they are there.
    pub names: Option<Names>,
}

/// Takes a trace item by item.
#[derive(Debug, Default)]
pub struct Replay {
    wanted: ReplayOptions,
    span: Span,
    /// Names of marks that were seen.
    marks: Vec<MarkName>,
    session: Option<Session>,
    table: Arc<AllocatorTable>,
    /// Those that have not ended.
    /// In boxes: when the table grows, it is there twice.
    processes: FxHashMap<u64, Box<Replayed>>,
    /// Which process has this image.
    images: FxHashMap<ImageId, u64>,
    archive: Archive,
    /// Those that have, by their numbers.
    ended: BTreeMap<u64, ArchivedRecording>,
    names: Option<Names>,
    /// The time of the first event that is there, and of the latest, in nanoseconds.
    first_ns: Option<u64>,
    latest_ns: u64,
    threads: thread::TraceThreads,
}

impl Replay {
    /// One of a trace of which nothing was read yet.
    pub fn new(wanted: ReplayOptions) -> Self {
        Self { span: wanted.part.span(), wanted, ..Self::default() }
    }

    /// Takes what comes next.
    pub fn take(&mut self, item: Item<'_>) {
        match item {
            Item::Event(told) => self.event(&told),
            Item::Stacks(image, nodes) => self.stacks(image, nodes),
            Item::Session(session) => {
                if self.session.is_none() {
                    self.session = Some(session.clone());
                }
            }
            Item::Functions(functions) => self.functions(&functions),
            Item::Process(process) => self.process(process),
            Item::Module(module) => self.module(module),
            Item::ProfileEnd(moment) => {
                let process = self.processes.get_mut(&moment.koid).filter(|_| self.span == Span::Whole);
                process.into_iter().for_each(|process| process.profile_ends());
            }
            Item::End(end) => self.end(*end),
            Item::Names(names) => self.names = Some(names),
        }
    }

    fn event(&mut self, told: &ProcessEvent) {
        let ProcessEvent { process: koid, parent, event } = *told;
        self.first_ns.get_or_insert(event.time_ns);
        self.latest_ns = self.latest_ns.max(event.time_ns);
        let mut ends = false;
        let extras = self.wanted.extras();
        match event.kind {
            EventKind::Mark(name) => {
                if self.marks.len() < NAMED && !self.marks.contains(&name) {
                    self.marks.push(name);
                }
                ends = self.span.reach_mark(self.wanted.part, name, event.time_ns);
            }
            EventKind::Began { image, .. } | EventKind::Exec { image } => {
                self.images.insert(image, koid);
            }
            EventKind::Forked { image, .. } => {
                self.images.insert(image, koid);
                let copy = parent.and_then(|parent| self.processes.get_mut(&parent)).map(|parent| {
                    parent.reach(event.time_ns, self.span);
                    parent.fork(koid)
                });
                let mut copy = copy.unwrap_or_else(|| Replayed::new(koid, extras));
                if let Some(described) = self.processes.remove(&koid) {
                    copy.describe_as(*described);
                }
                self.processes.insert(koid, Box::new(copy));
            }
            _ => {}
        }
        let process = self.processes.entry(koid).or_insert_with(|| Box::new(Replayed::new(koid, extras)));
        if self.wanted.thread.is_some() {
            self.threads.note(&event.kind);
        }
        process.take(&event, self.span);
        if ends {
            process.end_part();
        }
    }

    fn stacks(&mut self, image: ImageId, nodes: Nodes<'_>) {
        if let Some(process) = self.images.get(&image).and_then(|koid| self.processes.get_mut(koid)) {
            process.add_stacks(image, nodes);
        }
    }

    fn functions(&mut self, functions: &[Function]) {
        let names = functions.iter().map(|function| (FunctionId(function.id), function.name.as_str()));
        self.table = Arc::new(AllocatorTable::of_names(names));
    }

    fn process(&mut self, described: Process) {
        let (koid, extras) = (described.koid, self.wanted.extras());
        self.images.insert(ImageId(described.image), koid);
        self.processes.entry(koid).or_insert_with(|| Box::new(Replayed::new(koid, extras))).describe(described);
    }

    fn module(&mut self, module: Module) {
        if let Some(process) = self.processes.get_mut(&module.process) {
            process.add_module(module);
        }
    }

    /// A process has ended: what it leaves is packed. Its end is told once more when all have, with what was found out
    /// since.
    fn end(&mut self, end: End) {
        let koid = end.koid;
        let Some(process) = self.processes.remove(&koid).map(|process| *process) else {
            if let Some(ended) = self.ended.get_mut(&number_of(koid)) {
                process::amend(ended.rest_mut(), end, self.span);
            }
            return;
        };
        self.images.retain(|_, of| *of != koid);
        self.leave(process, Some(end));
    }

    /// Packs what a process leaves, if it lived in that part of the trace.
    fn leave(&mut self, process: Replayed, end: Option<End>) {
        let Some(session) = &self.session else { return };
        let Some(mut recording) = process.into_recording(end, self.span, &self.table, session) else { return };
        if let Some(thread) = &self.wanted.thread {
            self.threads.keep_only(thread, &mut recording);
        }
        if !self.wanted.profile_each && recording.facts.parent.is_some() {
            recording.snapshot.sites.retain(|site| !site.inherited);
            if let Some(births) = &mut recording.course.births {
                births.blocks.retain(|born| !born.inherited);
            }
        }
        self.ended.insert(recording.number, self.archive.add(recording));
    }

    /// All was read; `gaps` says what of it is not there.
    ///
    /// # Errors
    /// If nothing of what was asked for is in it.
    pub fn finish(mut self, gaps: Gaps, ending: Ending) -> Result<Outcome, ReplayError> {
        let mut open: Vec<_> = std::mem::take(&mut self.processes).into_values().collect();
        open.sort_unstable_by_key(|process| process.number());
        for process in open {
            self.leave(*process, None);
        }
        if let Some(missing) = self.span.missing_mark(self.wanted.part) {
            let there: Vec<&str> = self.marks.iter().map(MarkName::as_str).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            return Err(ReplayError::NoMark { wanted: missing.as_str().to_owned(), there });
        }
        let seconds = Seconds(self.latest_ns);
        let first_ns = self.first_ns.unwrap_or(0);
        let nothing = match self.span {
            span if gaps.overwritten > 0 && span.end().is_some_and(|end| end < first_ns) => format!(
                "that part of the trace was overwritten (--trace-mode circular): the trace now begins at {}",
                Seconds(first_ns)
            ),
            Span::Whole => "the trace holds no process".to_owned(),
            Span::At(_) => format!("no process lived then: the trace ends after {seconds}"),
            Span::Window(..) => format!("nothing was traced then: the trace ends after {seconds}"),
        };
        let Some((_, first)) = self.ended.pop_first() else { return Err(ReplayError::Nothing(nothing)) };
        let Some(session) = self.session else { return Err(ReplayError::Nothing(nothing)) };
        let first = self.archive.take(first);
        let others = std::mem::take(&mut self.ended).into_values().collect();
        let mut traced = Traced { first, is_renumbered: false, others, archive: self.archive, unsaved: false };
        let idle = match &self.wanted.thread {
            Some(thread) => self.threads.check(thread)?,
            None => None,
        };
        let gaps = match traced.first.facts.warnings.iter().any(|text| text.starts_with("the trace ")) {
            // The run has said so itself.
            true => Gaps { cut_off: 0, ..gaps },
            false => gaps,
        };
        let notes = notes(&session, gaps, ending);
        let part = self.wanted.part.in_words(self.span);
        traced.first.facts.warnings.extend(notes.into_iter().chain(part).chain(idle));
        Ok(Outcome { traced, names: self.names })
    }
}

/// What of the run is not in the trace, in words.
fn notes(session: &Session, gaps: Gaps, ending: Ending) -> Vec<String> {
    let mut notes = Vec::new();
    if gaps.overwritten > 0 {
        notes.push(format!(
            "the first {} events were overwritten: blocks that they allocated are unknown, and frees of these count as \
             frees of preexisting blocks",
            grouped(gaps.overwritten)
        ));
    }
    if gaps.missing > 0 {
        notes.push(format!("{} events are missing in the middle of the trace", grouped(gaps.missing)));
    }
    if gaps.cut_off > 0 {
        let why = match session.trace_mode {
            TraceMode::Oneshot => "as the trace had reached its maximum size (--trace-mode oneshot)",
            TraceMode::Streaming | TraceMode::Circular => "as writing the trace failed",
        };
        notes.push(format!("the trace ends early: it lacks the last {} events, {why}", gaps.cut_off));
    }
    if gaps.unknown > 0 {
        notes.push(format!(
            "{} events are of kinds that this heaptrace does not know: heaptrace {} wrote the trace",
            gaps.unknown, session.heaptrace
        ));
    }
    match ending {
        Ending::Whole => {}
        Ending::Torn => notes.push("the trace is cut off: this profile lacks what came afterwards".to_owned()),
        Ending::Damaged => {
            notes.push("the trace is damaged: this profile lacks what comes after that place".to_owned())
        }
    }
    notes
}

/// A time for people, of nanoseconds.
#[derive(Clone, Copy)]
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03} s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1000)
    }
}

/// The order of a process among all.
fn number_of(koid: u64) -> u64 {
    u64::from(process_of(koid).number)
}
