//! What can be told of a block by what it and its neighbours hold, read while the process stands still.
//!
//! * A block whose first word points to a C++ table of virtual functions with type information is an object of that
//!   class (Itanium C++ ABI 2.5.2, 2.9.5: the word before the table's address points to the `type_info`, whose second
//!   word is the mangled name; the word before that, the offset to the top, is 0 in a complete object's first table).
//! * A pair of words, a pointer to a block and one to a table that begins with a function, a size and an alignment, is
//!   a Rust `dyn` pointer.
//! * Three ascending pointers, the first to a block's start and the last within it, are libstdc++'s `std::vector`.
//! * Text up to a zero, or to the end, is a string.

use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use crate::heap::leaks::{BlockIndex, BlockVisitor, for_words};
use crate::heapmodel::LiveBlock;
use crate::image::maps::{Kind, Mapping};
use rustc_hash::FxHashMap;
use std::hash::Hasher;
use std::ops::Range;

/// So much is read at once.
const WINDOW: usize = 256 << 10;
/// Of larger blocks only the beginning is looked at.
const LARGEST: u64 = 64 << 10;
/// The beginning.
const BEGINNING: usize = 256;
/// So many different tables are believed.
const MAX_TABLES: usize = 1 << 16;
/// So many places are remembered that tables are or are not at.
const MAX_KNOWN: usize = 2 * MAX_TABLES;
/// The longest name of a type.
const LONGEST_NAME: usize = 4096;
/// Less text than that may be chance.
const SHORTEST_TEXT: usize = 4;
/// So much may be said of blocks before it is looked through.
const MIN_NAMES: usize = 1 << 16;
/// A size in a Rust table is no larger.
const LARGEST_VALUE: u64 = 1 << 40;
/// An alignment in a Rust table is no larger: the compiler has this limit, 2^29.
const LARGEST_ALIGNMENT: u64 = 1 << 29;
/// `Arc` and `Rc` have two counts before the value.
const COUNTS: u64 = 16;
/// What a chunk has more than was asked for, at most.
const SLACK: u64 = 24;

/// What one block looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ContentKind {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// A table of functions stands first: its number.
    Table(u32),
    /// Text.
    Text,
    /// A vector's elements.
    Vector,
    /// What a Rust `dyn` pointer leads to: the number of its table.
    Dyn(u32),
    /// What may be the colour of a tree's node is 0 or 1: its first 32 bits (libstdc++), or the byte behind its first
    /// three words (libc++).
    Colour {
        /// The first bits are.
        first: bool,
        /// The byte is.
        fourth: bool,
    },
    /// Nothing but zeros.
    Zeros,
}

/// A table of functions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Where objects point to.
    pub at: Addr,
    /// The mangled name of the C++ class, as its type information has it.
    pub class: Option<Vec<u8>>,
    /// The first function: of a Rust table, what drops the value; null if it need not be dropped.
    pub first: Addr,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// By block.
    pub looks: Vec<ContentKind>,
    /// By block: a hash of what it holds; 0 for blocks that were not read whole.
    pub hashes: Vec<u64>,
    /// All tables.
    pub tables: Vec<Table>,
}

/// The mapped files, by what they are good for.
#[derive(Debug)]
struct Files {
    ranges: Vec<(Range<u64>, bool)>,
    span: Range<u64>,
}

impl Files {
    fn of(mappings: &[Mapping]) -> Self {
        let files = mappings.iter().filter(|mapping| mapping.kind == Kind::File && mapping.perms.read);
        let ranges: Vec<_> = files.map(|mapping| (mapping.start.0..mapping.end.0, mapping.perms.execute)).collect();
        let start = ranges.first().map_or(0, |(range, _)| range.start);
        let end = ranges.last().map_or(0, |(range, _)| range.end);
        Self { ranges, span: start..end }
    }

    /// Whether there is one at `addr`, and whether it is code.
    fn at(&self, addr: u64) -> Option<bool> {
        if !self.span.contains(&addr) {
            return None;
        }
        let behind = self.ranges.partition_point(|(range, _)| range.start <= addr);
        let (range, code) = self.ranges.get(behind.checked_sub(1)?)?;
        range.contains(&addr).then_some(*code)
    }

    fn is_data(&self, addr: u64) -> bool {
        self.at(addr) == Some(false)
    }

    fn is_code(&self, addr: u64) -> bool {
        self.at(addr) == Some(true)
    }
}

/// Looks at blocks while they are read, part by part.
#[derive(Debug)]
pub struct Looking<'a> {
    index: &'a BlockIndex,
    files: Files,
}

impl<'a> Looking<'a> {
    /// To look at the blocks of `index`.
    pub fn new(index: &'a BlockIndex, mappings: &[Mapping]) -> Self {
        Self { index, files: Files::of(mappings) }
    }

    /// Looks at the blocks with these numbers.
    pub fn part(&'a self, part: Range<usize>) -> Part<'a> {
        Part {
            index: self.index,
            files: &self.files,
            first: part.start,
            looks: vec![ContentKind::Unknown; part.len()],
            hashes: vec![0; part.len()],
            tables: Vec::new(),
            known: FxHashMap::default(),
            named: Names::default(),
        }
    }

    /// Tells what the parts have seen, one behind the other, and looks at the ranges of `roots`, which may hold pairs
    /// that name blocks.
    pub fn finish(&'a self, parts: [Part<'a>; 2], roots: &[Range<Addr>], memory: &mut dyn ReadMemory) -> Contents {
        let [mut all, behind] = parts;
        all.append(behind);
        let mut buffer = vec![0; WINDOW];
        for range in roots {
            let mut at = range.start.0.next_multiple_of(8);
            while at < range.end.0 {
                let wanted = usize::try_from(range.end.0 - at).unwrap_or(WINDOW).min(WINDOW);
                let read = buffer.get_mut(..wanted).map_or(0, |piece| memory.read(Addr(at), piece));
                let bytes = buffer.get(..read).unwrap_or(&[]);
                for_words(bytes, self.index.span(), |at, value| {
                    all.pointer(value, bytes.get(at + 8..).unwrap_or(&[]), memory);
                });
                // what is cut by the end of a piece comes again with the next one
                at += if read == WINDOW { WINDOW as u64 - 16 } else { (read as u64 + 1).next_multiple_of(4096) };
            }
        }
        let Part { mut looks, hashes, tables, named, .. } = all;
        for (block, look) in named.all {
            if let Some(slot) = looks.get_mut(block as usize)
                && !matches!(slot, ContentKind::Table(_) | ContentKind::Text | ContentKind::Dyn(_))
            {
                *slot = look;
            }
        }
        Contents { looks, hashes, tables }
    }
}

/// What was seen of some blocks.
#[derive(Debug)]
pub struct Part<'a> {
    index: &'a BlockIndex,
    files: &'a Files,
    /// The number of its first block.
    first: usize,
    /// By block, from the first on, as are the hashes.
    looks: Vec<ContentKind>,
    hashes: Vec<u64>,
    tables: Vec<Table>,
    /// By where a table is, as a C++ or a Rust one.
    known: FxHashMap<(u64, bool), Option<u32>>,
    /// What others say of blocks, of any part. Their own tables and text are better.
    named: Names,
}

/// What is said of blocks, each [`ContentKind::Vector`] or [`ContentKind::Dyn`], in the order in which it was met.
#[derive(Debug, Default)]
struct Names {
    all: Vec<(u32, ContentKind)>,
    /// How many there were when each block had one.
    least: usize,
}

impl Names {
    /// Adds one. The same may be said of a block as often as there are pointers to it: of more than twice as many as
    /// there are blocks, one is kept of each.
    fn push(&mut self, block: u32, look: ContentKind) {
        if self.all.len() >= 2 * self.least + MIN_NAMES {
            // the first that is a dyn pointer's is believed
            self.all.sort_by_key(|(block, look)| (*block, !matches!(look, ContentKind::Dyn(_))));
            self.all.dedup_by_key(|(block, _)| *block);
            self.least = self.all.len();
        }
        self.all.push((block, look));
    }
}

impl BlockVisitor for Part<'_> {
    fn wanted(&self, block: &LiveBlock) -> usize {
        if block.size > LARGEST { BEGINNING } else { block.size as usize }
    }

    fn look(&mut self, number: usize, block: &LiveBlock, bytes: &[u8], memory: &mut dyn ReadMemory) {
        let number = number.wrapping_sub(self.first);
        let whole = bytes.len() as u64 == block.size;
        if whole && let Some(slot) = self.hashes.get_mut(number) {
            let mut hasher = rustc_hash::FxHasher::default();
            hasher.write(bytes);
            *slot = hasher.finish().max(1);
        }
        let look = self.look_of(bytes, memory);
        if let Some(slot) = self.looks.get_mut(number) {
            *slot = look;
        }
    }

    /// It may begin a pair or a triple of words that name a block.
    fn pointer(&mut self, value: u64, behind: &[u8], memory: &mut dyn ReadMemory) {
        let Some(second) = word(behind, 0) else { return };
        if self.files.is_data(second) {
            self.dyn_pointer(value, second, memory);
        }
        if let Some(third) = word(behind, 8).filter(|third| value < *third && (value..=*third).contains(&second)) {
            self.vector(value, third);
        }
    }
}

impl Part<'_> {
    /// Adds the part behind this one, with its own numbers of tables.
    fn append(&mut self, behind: Self) {
        let mut numbers = vec![None; behind.tables.len()];
        for (&(at, rust), number) in &behind.known {
            let Some(number) = number.map(|number| number as usize) else { continue };
            let own = match self.known.get(&(at, rust)) {
                Some(Some(own)) => Some(*own),
                _ => self.remember(at, rust, behind.tables.get(number).cloned()),
            };
            numbers.get_mut(number).into_iter().for_each(|slot| *slot = own);
        }
        let own = |number: u32| numbers.get(number as usize).copied().flatten();
        let told = |look: ContentKind| match look {
            ContentKind::Table(number) => own(number).map(ContentKind::Table),
            ContentKind::Dyn(number) => own(number).map(ContentKind::Dyn),
            other => Some(other),
        };
        self.looks.extend(behind.looks.into_iter().map(|look| told(look).unwrap_or_default()));
        self.hashes.extend(behind.hashes);
        for (block, look) in behind.named.all {
            if let Some(look) = told(look) {
                self.named.push(block, look);
            }
        }
    }

    fn look_of(&mut self, bytes: &[u8], memory: &mut dyn ReadMemory) -> ContentKind {
        let Some(first) = word(bytes, 0) else { return ContentKind::Unknown };
        if first.is_multiple_of(8)
            && self.files.is_data(first)
            && let Some(table) = self.class_table(first, memory)
        {
            return ContentKind::Table(table);
        }
        if is_text(bytes) {
            return ContentKind::Text;
        }
        if first == 0 && is_zero(bytes) {
            return ContentKind::Zeros;
        }
        let (first, fourth) = (first as u32 <= 1, bytes.get(24).is_some_and(|&byte| byte <= 1));
        if first || fourth { ContentKind::Colour { first, fourth } } else { ContentKind::Unknown }
    }

    /// The C++ table at `at`.
    fn class_table(&mut self, at: u64, memory: &mut dyn ReadMemory) -> Option<u32> {
        if let Some(known) = self.known.get(&(at, false)) {
            return *known;
        }
        let table = self.read_class_table(at, memory);
        self.remember(at, false, table)
    }

    fn remember(&mut self, at: u64, rust: bool, table: Option<Table>) -> Option<u32> {
        let is_full = self.tables.len() >= MAX_TABLES;
        let number = table.filter(|_| !is_full).map(|table| {
            self.tables.push(table);
            self.tables.len() as u32 - 1
        });
        if number.is_none() && self.known.len() >= MAX_KNOWN {
            // what is none may be asked for again; what is one must not be forgotten: it has its number
            self.known.retain(|_, number| number.is_some());
        }
        self.known.insert((at, rust), number);
        number
    }

    fn read_class_table(&self, at: u64, memory: &mut dyn ReadMemory) -> Option<Table> {
        let mut before = |back: u64| memory.read_u64(Addr(at.wrapping_sub(back)));
        let (top, info, first) = (before(16)?, before(8)?, before(0)?);
        if top != 0 || !(self.files.is_code(first) || first == 0) {
            return None;
        }
        let class = if info == 0 { None } else { Some(self.class_name(info, memory)?) };
        // without type information or a function, any two zeros would do
        (class.is_some() || first != 0).then_some(Table { at: Addr(at), class, first: Addr(first) })
    }

    /// The mangled name in a `type_info`.
    fn class_name(&self, info: u64, memory: &mut dyn ReadMemory) -> Option<Vec<u8>> {
        if !info.is_multiple_of(8) || !self.files.is_data(info) {
            return None;
        }
        let own_table = memory.read_u64(Addr(info))?;
        let name = memory.read_u64(Addr(info).add(8))?;
        if !self.files.is_data(own_table) || self.files.at(name).is_none() {
            return None;
        }
        let mut bytes = vec![0; LONGEST_NAME];
        let read = memory.read(Addr(name), &mut bytes);
        bytes.truncate(read);
        let end = bytes.iter().position(|&byte| byte == 0)?;
        bytes.truncate(end);
        // names of classes without linkage begin with an asterisk (GCC, <typeinfo>)
        if bytes.first() == Some(&b'*') {
            bytes.remove(0);
        }
        let fits = !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_graphic());
        fits.then_some(bytes)
    }

    fn vector(&mut self, start: u64, end: u64) {
        let Some((block, 0)) = self.index.find(start) else { return };
        let size = self.index.blocks().get(block as usize).map_or(0, |block| block.size);
        let told = end - start;
        if told <= size && size - told <= SLACK {
            self.named.push(block, ContentKind::Vector);
        }
    }

    fn dyn_pointer(&mut self, data: u64, table: u64, memory: &mut dyn ReadMemory) {
        if !table.is_multiple_of(8) {
            return;
        }
        let Some((block, 0)) = self.index.find(data) else { return };
        let size = self.index.blocks().get(block as usize).map_or(0, |block| block.size);
        let number = match self.known.get(&(table, true)) {
            Some(known) => *known,
            None => {
                let read = self.read_dyn_table(table, memory);
                self.remember(table, true, read)
            }
        };
        let Some(number) = number else { return };
        // it may have changed since
        let value = memory.read_u64(Addr(table).add(8)).filter(|value| *value <= LARGEST_VALUE);
        let Some(value) = value else { return };
        let fits = |value: u64| value <= size && size - value <= SLACK;
        if fits(value) || fits(value.next_multiple_of(8) + COUNTS) {
            self.named.push(block, ContentKind::Dyn(number));
        }
    }

    fn read_dyn_table(&self, at: u64, memory: &mut dyn ReadMemory) -> Option<Table> {
        let mut read = |offset: u64| memory.read_u64(Addr(at).add(offset));
        let (first, size, alignment) = (read(0)?, read(8)?, read(16)?);
        let fits = self.files.is_code(first)
            && (1..=LARGEST_VALUE).contains(&size)
            && alignment.is_power_of_two()
            && alignment <= LARGEST_ALIGNMENT
            && size.is_multiple_of(alignment);
        fits.then_some(Table { at: Addr(at), class: None, first: Addr(first) })
    }
}

/// So many bytes are looked at at once: what has no early end, the compiler does with the processor's wide registers.
const WIDE: usize = 64;

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(WIDE).all(|piece| piece.iter().fold(0, |any, byte| any | byte) == 0)
}

fn first_zero(bytes: &[u8]) -> Option<usize> {
    let has_zero = |piece: &[u8]| piece.iter().fold(false, |any, byte| any | (*byte == 0));
    let piece = bytes.chunks(WIDE).position(has_zero)? * WIDE;
    Some(piece + bytes.get(piece..)?.iter().position(|byte| *byte == 0)?)
}

fn is_printable(text: &[u8]) -> bool {
    let printable = |byte: u8| (byte >= 0x20) & (byte != 0x7f) | (byte == b'\t') | (byte == b'\n') | (byte == b'\r');
    text.chunks(WIDE).all(|piece| piece.iter().fold(true, |all, byte| all & printable(*byte)))
}

/// Whether the bytes are text up to a zero or to their end, and more than half of them, or nothing but zeros behind it.
fn is_text(bytes: &[u8]) -> bool {
    let (text, rest) = bytes.split_at(first_zero(bytes).unwrap_or(bytes.len()));
    text.len() >= SHORTEST_TEXT
        && is_printable(text)
        && (text.len() * 2 >= bytes.len() || is_zero(rest))
        && std::str::from_utf8(text).is_ok()
}
