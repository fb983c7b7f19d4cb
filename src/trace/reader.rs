//! From the records of a trace to what they say: definitions, and the events of each process with their places and
//! times.

mod events;
#[cfg(test)]
mod tests;

use super::decode::{DecodeError, Decoder, EventRecord, Record, Tear};
use super::fxt::event_type;
use super::metadata::{End, Function, Module, NODE_BYTES, Names, Process, ProfileEnd, Session};
use super::vocabulary::{CONTINUED, Word};
use super::{FORMAT, process_of};
use crate::base::addr::{ImageId, ModuleId, StackId};
use crate::event::{Event, EventKind};
use crate::unwinder::StackNode;
pub use events::EventError;
use events::OpenReallocs;
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::num::NonZeroU64;
use thiserror::Error;

/// The longest names, all parts of the blob together, in bytes. Those of a large browser take some tens of megabytes.
const LONGEST_NAMES: usize = 128 << 20;

/// The longest of the blobs that hold a list: a command line of some megabytes, the modules and threads of a process.
const LONGEST_LIST: usize = 16 << 20;

/// The longest of all others.
const LONGEST_BLOB: usize = 1 << 20;

/// How many processes a trace may have: more than process ids, a hundred times over.
const MAX_PROCESSES: usize = 1 << 22;

const NANOSECONDS: u64 = 1_000_000_000;

/// Why a trace can't be read on.
#[derive(Debug, Error)]
pub enum TraceError {
    /// Its bytes are not those of a trace.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Another program has written it.
    #[error(
        "this is a Fuchsia trace, but heaptrace did not write it: it does not begin with heaptrace.session. Open it \
         with https://ui.perfetto.dev"
    )]
    NotOurs,
    /// It is of a later version.
    #[error(
        "this trace has format {found}, written by heaptrace {writer}; this heaptrace knows formats up to {FORMAT}: use that version, or a later one"
    )]
    Version {
        /// Its format.
        found: u64,
        /// The version of the heaptrace that wrote it.
        writer: String,
    },
    /// Segments of different sessions in one file.
    #[error("the trace changes from session {first} to session {second}: somebody joined files of two traces")]
    Joined {
        /// That of the first segment.
        first: String,
        /// The other one.
        second: String,
    },
    /// A blob is not what its name says.
    #[error("the trace is damaged: before byte {offset}, {blob} can't be read: {cause}")]
    Blob {
        /// Where the record ends.
        offset: u64,
        /// The blob's name.
        blob: &'static str,
        /// Why.
        cause: String,
    },
    /// An event is not what its category says.
    #[error("the trace is damaged: before byte {offset}, {source}")]
    Event {
        /// Where the record ends.
        offset: u64,
        /// What is wrong.
        source: EventError,
    },
    /// An event of a process that was not described.
    #[error("the trace is damaged: before byte {offset}, it has an event of process {pid}, which it has not described")]
    UnknownProcess {
        /// Where the record ends.
        offset: u64,
        /// Its id.
        pid: i32,
    },
    /// More than can be.
    #[error("the trace is damaged: before byte {offset}, it describes more than 4,194,304 processes")]
    ManyProcesses {
        /// Where the record ends.
        offset: u64,
    },
}

impl TraceError {
    /// Whether the trace is one of ours, and its bytes are not what was written at this place.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Decode(DecodeError::Damaged { .. })
            | Self::Blob { .. }
            | Self::Event { .. }
            | Self::UnknownProcess { .. }
            | Self::ManyProcesses { .. } => true,
            // What can't be unpacked, and not what the system says of a file.
            Self::Decode(DecodeError::Read { source, .. }) => source.raw_os_error().is_none(),
            Self::Decode(DecodeError::Foreign | DecodeError::Empty)
            | Self::NotOurs
            | Self::Version { .. }
            | Self::Joined { .. } => false,
        }
    }
}

/// What a trace says, one after the other.
#[derive(Debug)]
pub enum Item<'a> {
    /// A segment begins.
    Session(&'a Session),
    /// The allocator functions that events can be about.
    Functions(Vec<Function>),
    /// What a process is now.
    Process(Process),
    /// A module of a process.
    Module(Module),
    /// Nodes of the stacks of an image, parents first.
    Stacks(ImageId, Nodes<'a>),
    /// An event.
    Event(ProcessEvent),
    /// The moment that the profile of a process is of.
    ProfileEnd(ProfileEnd),
    /// The end of a process.
    End(Box<End>),
    /// The names of addresses.
    Names(Names),
}

/// An event of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEvent {
    /// The process's koid.
    pub process: u64,
    /// Of a fork: the koid of the process that it is a copy of.
    pub parent: Option<u64>,
    /// The event.
    pub event: Event,
}

/// Nodes of stacks, each with its id in its image.
#[derive(Clone, Copy, Debug)]
pub struct Nodes<'a>(&'a [u8]);

impl Iterator for Nodes<'_> {
    type Item = (StackId, StackNode);

    fn next(&mut self) -> Option<Self::Item> {
        let (node, rest) = self.0.split_first_chunk::<NODE_BYTES>()?;
        self.0 = rest;
        let (ids, node) = node.split_first_chunk::<8>()?;
        let (word, node) = node.split_first_chunk::<8>()?;
        let (module, _) = node.split_first_chunk::<4>()?;
        let ids = u64::from_le_bytes(*ids);
        let (id, parent) = (StackId(ids as u32), StackId((ids >> 32) as u32));
        let module = ModuleId(u32::from_le_bytes(*module));
        Some((id, StackNode { parent, word: u64::from_le_bytes(*word), module }))
    }
}

/// The stream of a process, as far as it was read.
#[derive(Debug, Default)]
struct Stream {
    next_seq: u64,
    reallocs: OpenReallocs,
}

/// What is not in the file, or was not understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gaps {
    /// Events that were overwritten before the first one that is there.
    pub overwritten: u64,
    /// Events that are missing in between.
    pub missing: u64,
    /// Events at the ends of processes that there was no room for.
    pub cut_off: u64,
    /// Events of kinds that a later heaptrace may know.
    pub unknown: u64,
}

/// Reads a trace.
#[derive(Debug)]
pub struct Reader<R> {
    decoder: Decoder<R>,
    session: Option<Session>,
    /// Whether the segment has said what it is.
    introduced: bool,
    processes: FxHashMap<u64, Stream>,
    /// The blob whose parts are being read.
    blob: Vec<u8>,
    /// The latest blob of stacks.
    nodes: Vec<u8>,
    longest_names: usize,
    gaps: Gaps,
}

/// What a record says that is no event, before it is put into the caller's hands.
enum Said {
    Nothing,
    Event(ProcessEvent),
    /// All parts of a blob are there.
    Blob(Word),
}

impl<R: Read> Reader<R> {
    /// Of an unpacked trace, see [`Decoder::new`].
    pub fn new(input: R, packed: bool) -> Self {
        Self {
            decoder: Decoder::new(input, packed),
            session: None,
            introduced: false,
            processes: FxHashMap::default(),
            blob: Vec::new(),
            nodes: Vec::new(),
            longest_names: LONGEST_NAMES,
            gaps: Gaps::default(),
        }
    }

    /// Refuses names of more bytes than that; as they are kept they take up to ten times as many.
    #[must_use]
    pub fn with_names_up_to(self, bytes: usize) -> Self {
        Self { longest_names: bytes.min(LONGEST_NAMES), ..self }
    }

    /// What comes next; None at the end.
    ///
    /// # Errors
    /// See [`TraceError`]. A file that ends in the middle of a record is none, see [`Self::tear`].
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, TraceError> {
        loop {
            match self.read()? {
                None => return Ok(None),
                Some(Said::Nothing) => {}
                Some(Said::Event(told)) => return Ok(Some(Item::Event(told))),
                Some(Said::Blob(word)) => return self.item(word).map(Some),
            }
        }
    }

    /// Where the trace ends before its time; known at its end.
    pub const fn tear(&self) -> Option<Tear> {
        self.decoder.tear()
    }

    /// After an error: how many bytes follow from the beginning of the record on that it is about, at most `most`.
    pub fn skip_rest(&mut self, most: u64) -> u64 {
        self.decoder.skip_rest(most)
    }

    /// What is not there of what was read.
    pub const fn gaps(&self) -> Gaps {
        self.gaps
    }

    /// How much was read, in bytes of what was unpacked.
    pub const fn offset(&self) -> u64 {
        self.decoder.offset()
    }

    fn read(&mut self) -> Result<Option<Said>, TraceError> {
        let ticks = self.decoder.ticks();
        let Some(record) = self.decoder.next_record()? else { return Ok(None) };
        match record {
            Record::Segment => {
                self.introduced = false;
                self.blob.clear();
                Ok(Some(Said::Nothing))
            }
            Record::Event(_) if !self.introduced => Err(TraceError::NotOurs),
            Record::Event(record) if u64::from(record.kind) != event_type::INSTANT => Ok(Some(Said::Nothing)),
            Record::Event(record) => {
                let event = next_event(&record, ticks, &mut self.processes, &mut self.gaps);
                match event {
                    Ok(Some(told)) => Ok(Some(Said::Event(told))),
                    Ok(None) => Ok(Some(Said::Nothing)),
                    Err(wrong) => {
                        let (offset, pid) = (self.decoder.offset(), wrong.pid);
                        Err(match wrong.source {
                            Some(source) => TraceError::Event { offset, source },
                            None => TraceError::UnknownProcess { offset, pid },
                        })
                    }
                }
            }
            Record::Blob { name, payload } => {
                let whole = name.strip_suffix(CONTINUED);
                let Some(word) = Word::of(whole.unwrap_or(name)) else { return Ok(Some(Said::Nothing)) };
                if !self.introduced && word != Word::SessionBlob {
                    return Err(TraceError::NotOurs);
                }
                let most = match word {
                    Word::NamesBlob => self.longest_names,
                    Word::FunctionsBlob | Word::ProcessBlob | Word::EndBlob => LONGEST_LIST,
                    _ => LONGEST_BLOB,
                };
                if self.blob.len() + payload.len() > most {
                    let cause = format!("it is longer than {most} bytes");
                    return Err(TraceError::Blob { offset: self.decoder.offset(), blob: word.text(), cause });
                }
                self.blob.extend_from_slice(payload);
                Ok(Some(if whole.is_some() { Said::Nothing } else { Said::Blob(word) }))
            }
        }
    }

    /// What the blob says whose parts were read.
    fn item(&mut self, word: Word) -> Result<Item<'_>, TraceError> {
        if word == Word::StacksBlob {
            return self.stacks();
        }
        let bytes = std::mem::take(&mut self.blob);
        Ok(match word {
            Word::FunctionsBlob => Item::Functions(self.json(word, &bytes)?),
            Word::ProcessBlob => {
                let process: Process = self.json(word, &bytes)?;
                self.introduce(&process)?;
                Item::Process(process)
            }
            Word::ModuleBlob => Item::Module(self.json(word, &bytes)?),
            Word::ProfileBlob => Item::ProfileEnd(self.json(word, &bytes)?),
            Word::EndBlob => {
                let end: Box<End> = Box::new(self.json(word, &bytes)?);
                if let Some(stream) = self.processes.remove(&end.koid) {
                    let cut_off = end.next_seq.saturating_sub(stream.next_seq);
                    self.gaps.cut_off = self.gaps.cut_off.saturating_add(cut_off);
                }
                Item::End(end)
            }
            Word::NamesBlob => Item::Names(self.json(word, &bytes)?),
            _ => {
                let session = self.json_of_session(&bytes)?;
                if let Some(first) = self.session.as_ref().filter(|first| first.session != session.session) {
                    return Err(TraceError::Joined { first: first.session.clone(), second: session.session });
                }
                self.introduced = true;
                Item::Session(self.session.insert(session))
            }
        })
    }

    fn stacks(&mut self) -> Result<Item<'_>, TraceError> {
        let wrong = |cause: String, offset| TraceError::Blob { offset, blob: Word::StacksBlob.text(), cause };
        let offset = self.decoder.offset();
        std::mem::swap(&mut self.blob, &mut self.nodes);
        self.blob.clear();
        let Some((head, nodes)) = self.nodes.split_first_chunk::<8>() else {
            return Err(wrong("it has no head".to_owned(), offset));
        };
        let head = u64::from_le_bytes(*head);
        let (image, count) = (head as u32, head >> 32);
        if nodes.len() as u64 != count * NODE_BYTES as u64 {
            return Err(wrong(format!("{} bytes for {count} nodes", nodes.len()), offset));
        }
        Ok(Item::Stacks(ImageId(image), Nodes(nodes)))
    }

    fn json<T: DeserializeOwned>(&self, word: Word, bytes: &[u8]) -> Result<T, TraceError> {
        serde_json::from_slice(bytes).map_err(|error| TraceError::Blob {
            offset: self.decoder.offset(),
            blob: word.text(),
            cause: error.to_string(),
        })
    }

    /// The session's blob, whose format has to be known before the rest of it can be.
    fn json_of_session(&self, bytes: &[u8]) -> Result<Session, TraceError> {
        #[derive(serde::Deserialize)]
        struct Head {
            format: u64,
            #[serde(default)]
            heaptrace: String,
        }
        let Head { format, heaptrace } = self.json(Word::SessionBlob, bytes)?;
        if format > u64::from(FORMAT) || format == 0 {
            return Err(TraceError::Version { found: format, writer: heaptrace });
        }
        self.json(Word::SessionBlob, bytes)
    }

    /// A process begins, or is told of again.
    fn introduce(&mut self, process: &Process) -> Result<(), TraceError> {
        if self.processes.len() >= MAX_PROCESSES {
            return Err(TraceError::ManyProcesses { offset: self.decoder.offset() });
        }
        let gap = match self.processes.get_mut(&process.koid) {
            None => {
                let stream = Stream { next_seq: process.next_seq, ..Stream::default() };
                self.processes.insert(process.koid, stream);
                &mut self.gaps.overwritten
            }
            Some(stream) => {
                let gap = process.next_seq.saturating_sub(stream.next_seq);
                stream.next_seq = process.next_seq;
                self.gaps.missing = self.gaps.missing.saturating_add(gap);
                return Ok(());
            }
        };
        *gap = gap.saturating_add(process.next_seq);
        Ok(())
    }
}

/// What is wrong with an event; without a source, its process is not known.
struct WrongEvent {
    pid: i32,
    source: Option<EventError>,
}

/// The event that a record tells of, with its process; None for one of an unknown kind.
fn next_event(
    record: &EventRecord<'_>,
    ticks: NonZeroU64,
    processes: &mut FxHashMap<u64, Stream>,
    gaps: &mut Gaps,
) -> Result<Option<ProcessEvent>, WrongEvent> {
    let koid = record.of.process;
    let pid = process_of(koid).pid;
    // Its first event comes before it is described.
    if !processes.contains_key(&koid) && events::begins(record) && processes.len() < MAX_PROCESSES {
        processes.insert(koid, Stream::default());
    }
    let Some(stream) = processes.get_mut(&koid) else { return Err(WrongEvent { pid, source: None }) };
    let seq = stream.next_seq;
    stream.next_seq = seq.saturating_add(1);
    let kind = events::read(record, &mut stream.reallocs).map_err(|source| WrongEvent { pid, source: Some(source) })?;
    let Some(kind) = kind else {
        gaps.unknown += 1;
        return Ok(None);
    };
    if matches!(kind, EventKind::Exec { .. }) {
        stream.reallocs.clear();
    }
    let parent = matches!(kind, EventKind::Forked { .. }).then(|| events::parent_process(record)).flatten();
    let event = Event { seq, time_ns: nanoseconds(record.time, ticks), kind };
    Ok(Some(ProcessEvent { process: koid, parent, event }))
}

fn nanoseconds(time: u64, ticks: NonZeroU64) -> u64 {
    // The usual clocks divide a second evenly.
    let ticks = ticks.get();
    match NANOSECONDS % ticks {
        0 => time.saturating_mul(NANOSECONDS / ticks),
        _ => u64::try_from(u128::from(time) * u128::from(NANOSECONDS) / u128::from(ticks)).unwrap_or(u64::MAX),
    }
}
