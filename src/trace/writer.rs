//! Events, definitions and blobs become records, and records bytes.
//!
//! A segment begins with the records that say what it is, with all tables empty; strings and threads are entered into
//! the tables when they are first used, and anew when a table is full. Bytes are handed over in pieces of whole
//! records.

use super::fxt::{self, argument, event_type, object_type};
use super::metadata::{End, Function, Module, NODE_BYTES, Names, Process, ProfileEnd, Session};
use super::vocabulary::{Align, CONTINUED, PROVIDER, PackedCall, Word};
use super::{TICK_NS, thread_koid};
use crate::base::addr::{FunctionId, StackId, TaskId};
use crate::unwinder::StackNode;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// What an output says when it has taken bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is room for more.
    Enough,
    /// The segment is as long as it may be: what follows is to begin a new one.
    NewSegment,
    /// There is no room for more events; the last blobs are still taken.
    Full,
    /// The output has failed: nothing more is taken.
    Gone,
}

/// Where the bytes of a trace go.
pub trait TraceOutput: Send + std::fmt::Debug {
    /// Takes whole records, and leaves an empty buffer behind. It may wait until there is room.
    fn take(&mut self, bytes: &mut Vec<u8>) -> Room;

    /// Lets what was taken reach the file.
    fn flush(&mut self) {}

    /// Whether nothing waits to be written, so that to take bytes takes no time.
    fn is_idle(&self) -> bool {
        true
    }

    /// What is taken from here on begins a segment. So many events of heaps were written before it.
    fn begin_segment(&mut self, events: u64);
}

/// What a trace has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Events of heaps that were written.
    pub events: u64,
    /// Events that were not, as the output was full or had failed.
    pub dropped: u64,
    /// Bytes, before any compression.
    pub bytes: u64,
}

/// Pieces of about so many bytes are handed over, unless a smaller one is asked for.
pub const PIECE: usize = 128 << 10;

/// After so long at most, in nanoseconds, a piece is handed over though it is small.
const LONGEST_WAIT_NS: u64 = 1_000_000_000;

/// No event enters more strings than this.
const STRINGS_OF_EVENT: u16 = 16;

/// See the module's head.
#[derive(Debug)]
pub struct TraceWriter {
    output: Box<dyn TraceOutput>,
    session: Session,
    functions: Vec<Function>,
    buffer: Vec<u8>,
    piece: usize,
    /// Indices in the string table; 0: not entered.
    words: [u16; Word::ALL.len()],
    /// The same of functions' names, by [`FunctionId`].
    function_names: Vec<u16>,
    next_string: u16,
    threads: FxHashMap<(u64, u64), u8>,
    next_thread: u8,
    /// The thread of the latest event, and its index.
    latest_thread: ((u64, u64), u8),
    room: Room,
    written: Written,
    /// When the latest piece was handed over.
    handed_over_ns: u64,
    /// Whether all events were told: what comes now belongs to the last segment, whatever its size.
    is_ending: bool,
    /// How many events there were at the latest look.
    events_at_look: u64,
    /// How many bytes had been handed over when the output was told to keep none back.
    flushed: u64,
}

/// An event that is being put together.
pub(super) struct EventBuilder {
    kind: u64,
    category: Word,
    name: u16,
    words: [u64; 16],
    len: usize,
    arguments: usize,
}

impl TraceWriter {
    /// Begins a trace. `piece`: about so many bytes are handed over at once; none are before the first are that many.
    pub fn new(output: Box<dyn TraceOutput>, session: Session, functions: Vec<Function>, piece: usize) -> Self {
        let function_names = vec![0; functions.len()];
        let mut writer = Self {
            output,
            session,
            functions,
            buffer: Vec::with_capacity(piece + piece / 4),
            piece,
            words: [0; Word::ALL.len()],
            function_names,
            next_string: 1,
            threads: FxHashMap::default(),
            next_thread: 1,
            latest_thread: ((0, 0), 0),
            room: Room::Enough,
            written: Written::default(),
            handed_over_ns: 0,
            is_ending: false,
            events_at_look: 0,
            flushed: 0,
        };
        writer.begin_segment();
        writer
    }

    /// The number of the segment that is being written.
    pub const fn segment(&self) -> u64 {
        self.session.segment
    }

    /// Whether events are taken. Those that are not are counted.
    pub(super) const fn takes_events(&mut self) -> bool {
        self.written.dropped += (!self.has_room()) as u64;
        self.has_room()
    }

    /// Whether there is room.
    pub(super) const fn has_room(&self) -> bool {
        matches!(self.room, Room::Enough)
    }

    /// What was written so far.
    pub const fn written(&self) -> Written {
        self.written
    }

    /// There will be no more events: what is written from now on, ends and names, begins no segment, for which older
    /// ones would have to go.
    pub fn begin_end(&mut self) {
        self.is_ending = true;
    }

    /// To be called about once a second: hands over what no event has followed since the last call, if the output takes
    /// it at once. A program that sleeps would let it wait for ever.
    pub fn hand_over_if_quiet(&mut self) {
        let is_quiet = std::mem::replace(&mut self.events_at_look, self.written.events) == self.written.events;
        let is_out = self.buffer.is_empty() && self.flushed == self.written.bytes;
        if is_quiet && !is_out && self.output.is_idle() {
            self.hand_over();
            self.output.flush();
            self.flushed = self.written.bytes;
        }
    }

    /// Hands over what has not been yet.
    pub fn flush(&mut self) -> Written {
        self.hand_over();
        self.written
    }

    /// Writes what a process is.
    pub fn process(&mut self, process: &Process) {
        self.json(Word::ProcessBlob, process);
        self.kernel_object(object_type::PROCESS, process.koid, &process.program, None);
    }

    /// Writes a module.
    pub fn module(&mut self, module: &Module) {
        self.json(Word::ModuleBlob, module);
    }

    /// Writes a process's end, and the names of its threads for those who show a trace.
    pub fn end(&mut self, end: &End) {
        for (serial, name) in &end.thread_names {
            if let Some((_, thread)) = self
                .threads
                .keys()
                .find(|(process, thread)| *process == end.koid && super::task_of(*thread).serial == *serial)
            {
                self.kernel_object(object_type::THREAD, *thread, name, Some(end.koid));
            }
        }
        self.json(Word::EndBlob, end);
        self.check_room();
    }

    /// Writes that the events of a process that follow do not count for its profile.
    pub(super) fn profile_ends(&mut self, moment: &ProfileEnd) {
        self.json(Word::ProfileBlob, moment);
    }

    /// Writes the names of addresses.
    pub fn names(&mut self, names: &Names) {
        self.json(Word::NamesBlob, names);
        self.check_room();
    }

    /// Writes nodes of stacks, parents first.
    pub(super) fn stacks(&mut self, image: u32, nodes: &[(StackId, StackNode)]) {
        for nodes in nodes.chunks((fxt::MAX_BLOB_BYTES - 8) / NODE_BYTES) {
            let bytes = 8 + nodes.len() * NODE_BYTES;
            let name = self.word(Word::StacksBlob);
            self.put(fxt::blob(name, bytes));
            self.put(u64::from(image) | (nodes.len() as u64) << 32);
            for (id, node) in nodes {
                self.put(u64::from(id.0) | u64::from(node.parent.0) << 32);
                self.put(node.word);
                self.put(u64::from(node.module.0));
            }
        }
    }

    /// Writes an event of a process at a time. Without a thread it is the process's own.
    pub(super) fn event(&mut self, process: u64, task: Option<TaskId>, time_ns: u64, record: &EventBuilder) {
        let EventBuilder { kind, category, name, ref words, len, arguments } = *record;
        let thread = self.thread(process, task.map_or(process & u64::from(u32::MAX), thread_koid));
        let category = self.word(category);
        self.put(fxt::event(kind, 2 + len, arguments, thread, category, name));
        self.put(time_ns / TICK_NS);
        for word in words.iter().take(len) {
            self.put(*word);
        }
    }

    /// An event of the heap is whole.
    pub(super) fn end_event(&mut self, time_ns: u64) {
        self.written.events += 1;
        let is_late = time_ns >= self.handed_over_ns + LONGEST_WAIT_NS;
        if is_late || self.buffer.len() >= self.piece {
            self.handed_over_ns = time_ns;
            self.hand_over();
        }
        if is_late {
            self.output.flush();
        }
    }

    /// Before an event's strings are looked up: the table has room for all of them.
    pub(super) fn make_room_for_strings(&mut self) {
        if self.next_string > fxt::MAX_STRING_INDEX - STRINGS_OF_EVENT {
            self.forget_strings();
        }
    }

    /// The index of a word in the string table.
    pub(super) fn word(&mut self, word: Word) -> u16 {
        match self.words.get(word as usize) {
            Some(&index) if index != 0 => index,
            _ => {
                let index = self.enter(word.text());
                if let Some(slot) = self.words.get_mut(word as usize) {
                    *slot = index;
                }
                index
            }
        }
    }

    /// The index of a function's name in the string table.
    pub(super) fn function_name(&mut self, function: FunctionId) -> u16 {
        let at = usize::from(function.0);
        match self.function_names.get(at) {
            Some(&0) => {
                let name = self.functions.get(at).map(|function| function.name.clone()).unwrap_or_default();
                let index = self.enter(&name);
                if let Some(slot) = self.function_names.get_mut(at) {
                    *slot = index;
                }
                index
            }
            Some(&index) => index,
            // The empty string.
            None => 0,
        }
    }

    fn enter(&mut self, text: &str) -> u16 {
        let bytes = cut(text, fxt::MAX_STRING_BYTES);
        let index = self.next_string;
        self.next_string += 1;
        self.put(fxt::string(index, bytes.len()));
        self.put_padded(bytes);
        index
    }

    fn forget_strings(&mut self) {
        self.words = [0; Word::ALL.len()];
        self.function_names.fill(0);
        self.next_string = 1;
    }

    fn thread(&mut self, process: u64, thread: u64) -> u8 {
        let key = (process, thread);
        if self.latest_thread == (key, self.latest_thread.1) && self.latest_thread.1 != 0 {
            return self.latest_thread.1;
        }
        let index = match self.threads.get(&key) {
            Some(&index) => index,
            None => {
                if self.threads.len() >= usize::from(fxt::MAX_THREAD_INDEX) {
                    self.forget_threads();
                }
                let index = self.next_thread;
                self.next_thread = self.next_thread.wrapping_add(1);
                self.put(fxt::thread(index));
                self.put(process);
                self.put(thread);
                self.threads.insert(key, index);
                index
            }
        };
        self.latest_thread = (key, index);
        index
    }

    fn forget_threads(&mut self) {
        self.threads.clear();
        self.next_thread = 1;
        self.latest_thread = ((0, 0), 0);
    }

    fn begin_segment(&mut self) {
        self.forget_strings();
        self.forget_threads();
        let (name, id) = PROVIDER;
        self.put(fxt::MAGIC);
        self.put(fxt::provider_info(id, name.len()));
        self.put_padded(name.as_bytes());
        self.put(fxt::provider_section(id));
        self.put(fxt::initialization());
        self.put(1_000_000_000 / TICK_NS);
        let session = self.session.clone();
        self.json(Word::SessionBlob, &session);
        let functions = std::mem::take(&mut self.functions);
        self.json(Word::FunctionsBlob, &functions);
        self.functions = functions;
    }

    fn kernel_object(&mut self, kind: u64, koid: u64, name: &str, process: Option<u64>) {
        let name = cut(name, fxt::MAX_STRING_BYTES);
        let argument = process.map(|process| (self.word(Word::Process), process));
        let words = 2 + fxt::words_of(name.len()) + if argument.is_some() { 2 } else { 0 };
        // An empty string has no text that could follow.
        let reference = if name.is_empty() { 0 } else { fxt::INLINE_STRING | name.len() as u16 };
        self.put(fxt::kernel_object(kind, words, reference, usize::from(argument.is_some())));
        self.put(koid);
        self.put_padded(name);
        if let Some((word, process)) = argument {
            self.put(fxt::wide_argument(argument::KOID, word));
            self.put(process);
        }
    }

    /// A blob of JSON, in as many records as it takes.
    fn json(&mut self, word: Word, value: &impl Serialize) {
        let json = match serde_json::to_vec(value) {
            Ok(json) => json,
            // There are no keys in it that are no texts, which alone could fail.
            Err(error) => format!("{{\"error\":\"{error}\"}}").into_bytes(),
        };
        let pieces = json.len().div_ceil(fxt::MAX_BLOB_BYTES);
        for (number, piece) in json.chunks(fxt::MAX_BLOB_BYTES).enumerate() {
            self.make_room_for_strings();
            let name = if number + 1 < pieces {
                // Seldom: it is not worth a place in the table.
                self.enter(&format!("{}{CONTINUED}", word.text()))
            } else {
                self.word(word)
            };
            self.put(fxt::blob(name, piece.len()));
            self.put_padded(piece);
        }
    }

    fn put(&mut self, word: u64) {
        self.buffer.extend_from_slice(&word.to_le_bytes());
    }

    fn put_padded(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        let padded = self.buffer.len().next_multiple_of(8);
        self.buffer.resize(padded, 0);
    }

    fn check_room(&mut self) {
        if self.buffer.len() >= self.piece {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.room == Room::Gone {
            self.buffer.clear();
            return;
        }
        self.written.bytes += self.buffer.len() as u64;
        let room = self.output.take(&mut self.buffer);
        self.buffer.clear();
        match (self.room, room) {
            (Room::Full, Room::Enough | Room::NewSegment) => {}
            (_, Room::NewSegment) if self.is_ending => {}
            (_, Room::NewSegment) => {
                self.output.begin_segment(self.written.events);
                self.session.segment += 1;
                self.begin_segment();
            }
            (_, room) => self.room = room,
        }
    }
}

impl EventBuilder {
    /// One of a kind of events.
    pub(super) const fn new(kind: u64, category: Word, name: u16) -> Self {
        Self { kind, category, name, words: [0; 16], len: 0, arguments: 0 }
    }

    /// One that lasts no time.
    pub(super) const fn instant(category: Word, name: u16) -> Self {
        Self::new(event_type::INSTANT, category, name)
    }

    pub(super) fn small(&mut self, kind: u64, name: u16, value: u32) {
        self.arguments += 1;
        self.push(fxt::small_argument(kind, name, value));
    }

    pub(super) fn wide(&mut self, kind: u64, name: u16, value: u64) {
        self.arguments += 1;
        self.push(fxt::wide_argument(kind, name));
        self.push(value);
    }

    /// A number, as short as it can be.
    pub(super) fn number(&mut self, name: u16, value: u64) {
        match u32::try_from(value) {
            Ok(value) => self.small(argument::U32, name, value),
            Err(_) => self.wide(argument::U64, name, value),
        }
    }

    pub(super) fn flag(&mut self, name: u16, value: bool) {
        self.small(argument::BOOL, name, u32::from(value));
    }

    /// A short text, which stands in the record itself.
    pub(super) fn text(&mut self, name: u16, text: &str) {
        self.arguments += 1;
        let bytes = cut(text, 8 * (self.words.len() - self.len - 1));
        let reference = if bytes.is_empty() { 0 } else { fxt::INLINE_STRING | bytes.len() as u16 };
        let words = 1 + fxt::words_of(bytes.len());
        self.push(fxt::header(argument::STRING, words) | u64::from(name) << 16 | u64::from(reference) << 32);
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.push(u64::from_le_bytes(word));
        }
    }

    /// A word that is no argument.
    pub(super) fn push(&mut self, word: u64) {
        if let Some(slot) = self.words.get_mut(self.len) {
            *slot = word;
            self.len += 1;
        }
    }
}

/// What a call is, without thread and stack, and its alignment if that can't be packed.
pub(super) fn pack(call: &crate::event::Call, internal: bool) -> (u32, Option<u64>) {
    let align = Align::of(call.align);
    let packed = PackedCall { function: call.function, family: call.family, align, internal }.pack();
    (packed, call.align.filter(|_| align == Align::Beside))
}

/// The beginning of a text, of so many bytes at most, whole characters.
fn cut(text: &str, most: usize) -> &[u8] {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text.get(..end).unwrap_or_default().as_bytes()
}
