//! Records from the bytes of a trace: what the Fuchsia trace format says, and nothing of what heaptrace makes of it.
//!
//! Reads a stream once, from its beginning, and keeps one record and the tables of strings and threads. Records,
//! arguments and kinds of metadata that are not known are skipped. Source of the format:
//! <https://fuchsia.dev/fuchsia-src/reference/tracing/trace-format>.

use super::fxt::{
    BLOB_DATA, INLINE_STRING, MAGIC, MAX_STRING_BYTES, argument, bits, record, record_type, record_words,
};
use super::vocabulary::Word;
use std::io::{self, Read};
use std::num::NonZeroU64;
use thiserror::Error;

/// An event has at most so many arguments.
pub const MAX_ARGUMENTS: usize = 15;
/// What the strings of one segment may take in all, in bytes. The format would allow a gigabyte; heaptrace's own are
/// the names of functions, arguments and programs.
const MAX_STRINGS_BYTES: usize = 16 << 20;
/// So many bytes that are zero at the end of a file may be what a crash of the machine has left of those that were
/// written last.
const MAX_ZEROS: usize = 64 << 20;
/// Without a record that says it, a tick is a nanosecond.
const DEFAULT_TICKS: NonZeroU64 = NonZeroU64::new(1_000_000_000).unwrap();

/// Why a trace can't be read on.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// It is none.
    #[error("this is not a trace: it does not begin as a Fuchsia trace (.fxt) does")]
    Foreign,
    /// Nothing is in it.
    #[error("the file is empty")]
    Empty,
    /// A record breaks a rule of the format.
    #[error("the trace is damaged: at byte {offset}{}, {what}", if *.packed { " of what was unpacked" } else { "" })]
    Damaged {
        /// Where the record begins.
        offset: u64,
        /// Whether the place counts unpacked bytes.
        packed: bool,
        /// What is wrong.
        what: Damage,
    },
    /// The bytes can't be read, or not be unpacked.
    #[error("at byte {offset}: {source}")]
    Read {
        /// How much was read, unpacked.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
}

/// Which rule of the format does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum Damage {
    #[error("a record of no length")]
    NoLength,
    #[error("a record that is too short for what it says to hold")]
    TooShort,
    #[error("an argument of no length")]
    ArgumentLength,
    #[error("string {0}, which nothing has registered")]
    UnknownString(u16),
    #[error("thread {0}, which nothing has registered")]
    UnknownThread(u8),
    #[error("a string of more than 32000 bytes")]
    LongString,
    #[error("a string that is not UTF-8")]
    NotUtf8,
    #[error("strings of more than 16 MiB")]
    ManyStrings,
    #[error("zero ticks per second")]
    NoTicks,
}

/// Where a trace ends before its time: the process that wrote it was killed, or the file was cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tear {
    /// Where the first record that is not whole begins, in bytes of what was unpacked.
    pub offset: u64,
}

/// A string of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Text<'a> {
    /// The string.
    pub text: &'a str,
    /// The word that it is, if it is one of ours.
    pub word: Option<Word>,
}

/// Who an event is told of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ThreadKoids {
    /// The process's koid.
    pub process: u64,
    /// The thread's.
    pub thread: u64,
}

/// The value of an argument.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Value<'a> {
    /// Integers that are not negative, pointers and koids.
    Unsigned(u64),
    /// Signed integers.
    Signed(i64),
    /// Floating point.
    Float(f64),
    /// Text.
    Text(&'a str),
    /// A truth.
    Bool(bool),
    /// A name without a value, or of a type that is not known.
    #[default]
    None,
}

/// A named value of an event.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Argument<'a> {
    /// Its name.
    pub name: Text<'a>,
    /// Its value.
    pub value: Value<'a>,
}

/// An event record.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EventRecord<'a> {
    /// 0 is an instant, 1 a counter.
    pub kind: u8,
    /// In ticks.
    pub time: u64,
    /// Process and thread.
    pub of: ThreadKoids,
    /// What happened.
    pub category: Text<'a>,
    /// See [`Self::category`].
    pub name: Text<'a>,
    arguments: [Argument<'a>; MAX_ARGUMENTS],
    count: usize,
}

impl<'a> EventRecord<'a> {
    /// Its arguments, in their order.
    pub fn arguments(&self) -> &[Argument<'a>] {
        self.arguments.get(..self.count).unwrap_or_default()
    }
}

/// A record that says something besides filling tables.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(clippy::large_enum_variant, reason = "lives for a moment on the stack, and most are events")]
pub enum Record<'a> {
    /// A segment begins: all tables are empty.
    Segment,
    /// An event.
    Event(EventRecord<'a>),
    /// Raw data (blob type 1).
    Blob {
        /// Its name.
        name: &'a str,
        /// Its bytes.
        payload: &'a [u8],
    },
}

/// What [`Decoder::advance`] has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Segment,
    Event,
    Blob,
}

#[derive(Debug)]
struct Known {
    text: Box<str>,
    word: Option<Word>,
}

/// Reads the records of a trace.
#[derive(Debug)]
pub struct Decoder<R> {
    input: R,
    packed: bool,
    /// Where the next record begins.
    offset: u64,
    /// So many bytes behind the record were read.
    looked_ahead: u64,
    /// The latest record, header included.
    record: Vec<u8>,
    strings: Vec<Option<Known>>,
    strings_bytes: usize,
    threads: Box<[Option<ThreadKoids>; 256]>,
    ticks: NonZeroU64,
    begun: bool,
    tear: Option<Tear>,
}

impl<R: Read> Decoder<R> {
    /// Of an unpacked trace. `packed`: the input comes out of a packed file, which errors say with their places.
    pub fn new(input: R, packed: bool) -> Self {
        Self {
            input,
            packed,
            offset: 0,
            looked_ahead: 0,
            record: Vec::with_capacity(1 << 15),
            strings: Vec::new(),
            strings_bytes: 0,
            threads: Box::new([None; 256]),
            ticks: DEFAULT_TICKS,
            begun: false,
            tear: None,
        }
    }

    /// The next record; None at the end.
    ///
    /// # Errors
    /// See [`DecodeError`]. A file that ends in the middle of a record is none: [`Self::tear`] tells.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, DecodeError> {
        let Some(kind) = self.advance()? else { return Ok(None) };
        let record = match kind {
            Kind::Segment => Ok(Record::Segment),
            Kind::Event => self.event().map(Record::Event),
            Kind::Blob => self.blob(),
        };
        record.map(Some).map_err(|what| self.damaged(what))
    }

    /// Where the trace ends before its time; known when [`Self::next_record`] has given None.
    pub const fn tear(&self) -> Option<Tear> {
        self.tear
    }

    /// How much was read, in bytes of what was unpacked.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the record begins that was read last.
    pub fn record_start(&self) -> u64 {
        self.offset.saturating_sub(u64::try_from(self.record.len()).unwrap_or(u64::MAX))
    }

    /// Reads on to the end without a look, or `most` bytes; how many there were behind the latest record's beginning.
    pub fn skip_rest(&mut self, most: u64) -> u64 {
        let mut skipped = self.offset - self.record_start() + self.looked_ahead;
        let mut buffer = [0; 1 << 14];
        while skipped < most {
            match read_some(&mut self.input, &mut buffer) {
                Ok(count) if count > 0 => skipped = skipped.saturating_add(count as u64),
                _ => break,
            }
        }
        skipped
    }

    /// Ticks per second of the current segment.
    pub const fn ticks(&self) -> NonZeroU64 {
        self.ticks
    }

    /// Where the record is that was read last.
    fn damaged(&self, what: Damage) -> DecodeError {
        DecodeError::Damaged { offset: self.record_start(), packed: self.packed, what }
    }

    /// Reads records until one says something.
    fn advance(&mut self) -> Result<Option<Kind>, DecodeError> {
        loop {
            let Some(header) = self.read_record()? else { return Ok(None) };
            match record_type(header) {
                record::METADATA if header == MAGIC => {
                    self.begun = true;
                    self.strings.clear();
                    self.strings_bytes = 0;
                    self.threads.fill(None);
                    self.ticks = DEFAULT_TICKS;
                    return Ok(Some(Kind::Segment));
                }
                record::INITIALIZATION => self.initialize().map_err(|what| self.damaged(what))?,
                record::STRING => self.register_string(header).map_err(|what| self.damaged(what))?,
                record::THREAD => self.register_thread(header).map_err(|what| self.damaged(what))?,
                record::EVENT => return Ok(Some(Kind::Event)),
                record::BLOB if bits(header, 48, 55) == BLOB_DATA => return Ok(Some(Kind::Blob)),
                _ => {}
            }
        }
    }

    /// Reads the next record that is not a large one. None at the end, or at a tear.
    fn read_record(&mut self) -> Result<Option<u64>, DecodeError> {
        loop {
            self.record.resize(8, 0);
            match self.fill(0)? {
                0 => {
                    self.record.clear();
                    return if self.begun { Ok(None) } else { Err(DecodeError::Empty) };
                }
                8 => {}
                _ => return self.torn(),
            }
            let header = word_at(&self.record, 0).unwrap_or_default();
            if !self.begun && header != MAGIC {
                return Err(DecodeError::Foreign);
            }
            let words = record_words(header);
            if words == 0 {
                // File systems give a file that was being written when the power failed its length, but not its
                // contents.
                if header == 0 && self.only_zeros_follow()? {
                    return self.torn();
                }
                self.offset += 8;
                return Err(self.damaged(Damage::NoLength));
            }
            let length = words * 8;
            if record_type(header) == record::LARGE_BLOB {
                let rest = length as u64 - 8;
                let skipped = io::copy(&mut self.input.by_ref().take(rest), &mut io::sink());
                match self.or_end(skipped)? {
                    Some(skipped) if skipped == rest => self.offset += 8 + rest,
                    _ => return self.torn(),
                }
                continue;
            }
            // At most 32760 bytes.
            self.record.resize(length, 0);
            if self.fill(8)? < length {
                return self.torn();
            }
            self.offset += length as u64;
            return Ok(Some(header));
        }
    }

    /// Fills the record from `from` on; how much of it is filled then.
    fn fill(&mut self, mut from: usize) -> Result<usize, DecodeError> {
        while let Some(rest) = self.record.get_mut(from..).filter(|rest| !rest.is_empty()) {
            let read = read_some(&mut self.input, rest);
            match self.or_end(read)? {
                None | Some(0) => break,
                Some(count) => from += count,
            }
        }
        Ok(from)
    }

    /// What was read; None where the input ends in the middle of a packed frame.
    fn or_end<T>(&self, read: io::Result<T>) -> Result<Option<T>, DecodeError> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(DecodeError::Read { offset: self.offset, source }),
        }
    }

    fn torn<T>(&mut self) -> Result<Option<T>, DecodeError> {
        self.record.clear();
        if !self.begun {
            return Err(DecodeError::Foreign);
        }
        self.tear = Some(Tear { offset: self.offset });
        Ok(None)
    }

    /// Whether all that follows are zeros, of which a file has no more than [`MAX_ZEROS`].
    fn only_zeros_follow(&mut self) -> Result<bool, DecodeError> {
        let mut buffer = [0; 1 << 14];
        let mut zeros = 0;
        while zeros < MAX_ZEROS {
            let read = read_some(&mut self.input, &mut buffer);
            let read = self.or_end(read)?;
            self.looked_ahead += read.unwrap_or(0) as u64;
            match read {
                None | Some(0) => return Ok(true),
                Some(count) if buffer.iter().take(count).any(|byte| *byte != 0) => return Ok(false),
                Some(count) => zeros += count,
            }
        }
        Ok(false)
    }

    fn initialize(&mut self) -> Result<(), Damage> {
        self.ticks = NonZeroU64::new(self.words().word()?).ok_or(Damage::NoTicks)?;
        Ok(())
    }

    fn register_string(&mut self, header: u64) -> Result<(), Damage> {
        let index = usize::try_from(bits(header, 16, 30)).unwrap_or(0);
        let text: Box<str> = self.words().text(bits(header, 32, 46))?.into();
        if index == 0 {
            return Ok(());
        }
        if self.strings.len() <= index {
            self.strings.resize_with(index + 1, || None);
        }
        let word = Word::of(&text);
        if let Some(slot) = self.strings.get_mut(index) {
            let before = slot.as_ref().map_or(0, |known| known.text.len());
            self.strings_bytes = self.strings_bytes + text.len() - before;
            *slot = Some(Known { text, word });
        }
        if self.strings_bytes > MAX_STRINGS_BYTES { Err(Damage::ManyStrings) } else { Ok(()) }
    }

    fn register_thread(&mut self, header: u64) -> Result<(), Damage> {
        let mut words = self.words();
        let koids = ThreadKoids { process: words.word()?, thread: words.word()? };
        let index = usize::try_from(bits(header, 16, 23)).unwrap_or(0);
        if let Some(slot) = self.threads.get_mut(index).filter(|_| index != 0) {
            *slot = Some(koids);
        }
        Ok(())
    }

    /// The words of the record behind its header.
    fn words(&self) -> Words<'_> {
        Words { bytes: self.record.get(8..).unwrap_or_default() }
    }

    /// The string that a reference means.
    fn string<'a>(&'a self, reference: u64, words: &mut Words<'a>) -> Result<Text<'a>, Damage> {
        // 16 bits
        let reference = u16::try_from(reference & 0xffff).unwrap_or(0);
        if reference == 0 {
            return Ok(Text::default());
        }
        if reference & INLINE_STRING != 0 {
            let text = words.text(u64::from(reference & !INLINE_STRING))?;
            return Ok(Text { text, word: Word::of(text) });
        }
        match self.strings.get(usize::from(reference)) {
            Some(Some(known)) => Ok(Text { text: &known.text, word: known.word }),
            _ => Err(Damage::UnknownString(reference)),
        }
    }

    fn event(&self) -> Result<EventRecord<'_>, Damage> {
        let header = word_at(&self.record, 0).ok_or(Damage::TooShort)?;
        let mut words = self.words();
        let time = words.word()?;
        // 8 bits
        let thread = u8::try_from(bits(header, 24, 31)).unwrap_or(0);
        let of = match thread {
            0 => ThreadKoids { process: words.word()?, thread: words.word()? },
            index => self.threads.get(usize::from(index)).copied().flatten().ok_or(Damage::UnknownThread(index))?,
        };
        let category = self.string(bits(header, 32, 47), &mut words)?;
        let name = self.string(bits(header, 48, 63), &mut words)?;
        let count = usize::try_from(bits(header, 20, 23)).unwrap_or(0);
        let mut arguments = [Argument::default(); MAX_ARGUMENTS];
        for slot in arguments.iter_mut().take(count) {
            *slot = self.argument(&mut words)?;
        }
        let kind = u8::try_from(bits(header, 16, 19)).unwrap_or(0);
        Ok(EventRecord { kind, time, of, category, name, arguments, count })
    }

    fn argument<'a>(&'a self, words: &mut Words<'a>) -> Result<Argument<'a>, Damage> {
        let header = words.word()?;
        let length = usize::try_from(bits(header, 4, 15)).unwrap_or(0) * 8;
        let length = length.checked_sub(8).ok_or(Damage::ArgumentLength)?;
        let (own, rest) = words.bytes.split_at_checked(length).ok_or(Damage::TooShort)?;
        words.bytes = rest;
        let mut own = Words { bytes: own };
        let name = self.string(bits(header, 16, 31), &mut own)?;
        let half = bits(header, 32, 63);
        let value = match record_type(header) {
            // 32 bits, by the mask
            argument::I32 => Value::Signed(i64::from((half as u32).cast_signed())),
            argument::U32 => Value::Unsigned(half),
            argument::I64 => Value::Signed(own.word()?.cast_signed()),
            argument::U64 | argument::POINTER | argument::KOID => Value::Unsigned(own.word()?),
            argument::DOUBLE => Value::Float(f64::from_bits(own.word()?)),
            argument::STRING => Value::Text(self.string(half, &mut own)?.text),
            argument::BOOL => Value::Bool(half & 1 != 0),
            _ => Value::None,
        };
        Ok(Argument { name, value })
    }

    fn blob(&self) -> Result<Record<'_>, Damage> {
        let header = word_at(&self.record, 0).ok_or(Damage::TooShort)?;
        let mut words = self.words();
        let name = self.string(bits(header, 16, 31), &mut words)?.text;
        let payload = words.stream(bits(header, 32, 46))?;
        Ok(Record::Blob { name, payload })
    }
}

/// Reads what there is, also if a signal comes meanwhile.
fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The rest of a record, or of an argument.
#[derive(Clone, Copy)]
struct Words<'a> {
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<u64, Damage> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(Damage::TooShort)?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// `length` bytes, and what fills the last word up.
    fn stream(&mut self, length: u64) -> Result<&'a [u8], Damage> {
        let length = usize::try_from(length).map_err(|_| Damage::TooShort)?;
        let (stream, rest) = self.bytes.split_at_checked(length.next_multiple_of(8)).ok_or(Damage::TooShort)?;
        self.bytes = rest;
        stream.get(..length).ok_or(Damage::TooShort)
    }

    fn text(&mut self, length: u64) -> Result<&'a str, Damage> {
        let bytes = self.stream(length)?;
        if bytes.len() > MAX_STRING_BYTES {
            return Err(Damage::LongString);
        }
        std::str::from_utf8(bytes).map_err(|_| Damage::NotUtf8)
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;
