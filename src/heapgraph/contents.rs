//! What can be told of a block by what it and its neighbours hold, read while the process stands still.
//!
//! * A block whose first word points to a C++ table of virtual functions with type information is an object of that class (Itanium C++ ABI 2.5.2, 2.9.5: the word before the table's address
//!   points to the `type_info`, whose second word is the mangled name; the word before that, the offset to the top, is 0 in a complete object's first table).
//! * A pair of words, a pointer to a block and one to a table that begins with a function, a size and an alignment, is a Rust `dyn` pointer.
//! * Three ascending pointers, the first to a block's start and the last within it, are libstdc++'s `std::vector`.
//! * Text up to a zero, or to the end, is a string.

use crate::addr::Addr;
use crate::heapmodel::LiveBlock;
use crate::leaks::BlockIndex;
use crate::maps::{Kind, Mapping};
use crate::memory::{ReadMemory, word};
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
const MOST_TABLES: usize = 1 << 16;
/// So many places are remembered that tables are or are not at.
const MOST_KNOWN: usize = 2 * MOST_TABLES;
/// The longest name of a type.
const LONGEST_NAME: usize = 4096;
/// Less text than that may be chance.
const SHORTEST_TEXT: usize = 4;
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
pub enum Look {
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
    /// What may be the colour of a tree's node is 0 or 1: its first 32 bits (libstdc++), or the byte behind its first three words (libc++).
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
    pub looks: Vec<Look>,
    /// By block: a hash of what it holds; 0 for blocks that were not read whole.
    pub hashes: Vec<u64>,
    /// All tables.
    pub tables: Vec<Table>,
}

/// The mapped files, by what they are good for.
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

/// Reads the blocks of `index`, and of `roots` the ranges that may hold pairs that name blocks.
pub fn read(index: &BlockIndex, roots: &[Range<Addr>], mappings: &[Mapping], memory: &mut dyn ReadMemory) -> Contents {
    let blocks = index.blocks();
    let contents =
        Contents { looks: vec![Look::Unknown; blocks.len()], hashes: vec![0; blocks.len()], tables: Vec::new() };
    let files = Files::of(mappings);
    let mut reading = Reading { index, files, memory, contents, known: FxHashMap::default() };
    let mut buffer = vec![0; WINDOW];
    let (mut start, mut held) = (0u64, 0usize);
    for (number, block) in blocks.iter().enumerate() {
        let size = if block.size > LARGEST { BEGINNING } else { block.size as usize };
        let within = |start: u64, held: usize| {
            let offset = usize::try_from(block.addr.0.checked_sub(start)?).ok()?;
            (offset.checked_add(size)? <= held).then_some(offset)
        };
        let offset = within(start, held).or_else(|| {
            let wanted = ahead(blocks, number).clamp(size, WINDOW);
            start = block.addr.0;
            held = buffer.get_mut(..wanted).map_or(0, |piece| reading.memory.read(block.addr, piece));
            within(start, held)
        });
        let Some(bytes) = offset.and_then(|offset| buffer.get(offset..offset + size)) else { continue };
        reading.note(number, block, bytes);
    }
    for range in roots {
        let mut at = range.start.0.next_multiple_of(8);
        while at < range.end.0 {
            let wanted = usize::try_from(range.end.0 - at).unwrap_or(WINDOW).min(WINDOW);
            let read = buffer.get_mut(..wanted).map_or(0, |piece| reading.memory.read(Addr(at), piece));
            reading.pairs(buffer.get(..read).unwrap_or(&[]));
            // what is cut by the end of a piece comes again with the next one
            at += if read == WINDOW { WINDOW as u64 - 16 } else { (read as u64 + 1).next_multiple_of(4096) };
        }
    }
    reading.contents
}

/// How many bytes from block `number` on are worth reading in one go.
fn ahead(blocks: &[LiveBlock], number: usize) -> usize {
    let Some(first) = blocks.get(number) else { return 0 };
    let mut end = first.addr.0;
    for block in blocks.iter().skip(number) {
        let next = block.addr.0.saturating_add(block.size);
        if block.size > LARGEST || block.addr.0 > end.saturating_add(4096) || next - first.addr.0 > WINDOW as u64 {
            break;
        }
        end = next.max(end);
    }
    usize::try_from(end - first.addr.0).unwrap_or(WINDOW)
}

struct Reading<'a> {
    index: &'a BlockIndex,
    files: Files,
    memory: &'a mut dyn ReadMemory,
    contents: Contents,
    /// By where a table is, as a C++ or a Rust one.
    known: FxHashMap<(u64, bool), Option<u32>>,
}

impl Reading<'_> {
    fn note(&mut self, number: usize, block: &LiveBlock, bytes: &[u8]) {
        self.pairs(bytes);
        let whole = bytes.len() as u64 == block.size;
        if whole && let Some(slot) = self.contents.hashes.get_mut(number) {
            let mut hasher = rustc_hash::FxHasher::default();
            hasher.write(bytes);
            *slot = hasher.finish().max(1);
        }
        let look = self.look(bytes);
        if let Some(slot) = self.contents.looks.get_mut(number)
            && (matches!(look, Look::Table(_)) || *slot == Look::Unknown)
        {
            *slot = look;
        }
    }

    fn look(&mut self, bytes: &[u8]) -> Look {
        let Some(first) = word(bytes, 0) else { return Look::Unknown };
        if first.is_multiple_of(8)
            && self.files.is_data(first)
            && let Some(table) = self.class_table(first)
        {
            return Look::Table(table);
        }
        if is_text(bytes) {
            return Look::Text;
        }
        if first == 0 && bytes.iter().all(|&byte| byte == 0) {
            return Look::Zeros;
        }
        let (first, fourth) = (first as u32 <= 1, bytes.get(24).is_some_and(|&byte| byte <= 1));
        if first || fourth { Look::Colour { first, fourth } } else { Look::Unknown }
    }

    /// The C++ table at `at`.
    fn class_table(&mut self, at: u64) -> Option<u32> {
        if let Some(known) = self.known.get(&(at, false)) {
            return *known;
        }
        let table = self.read_class_table(at);
        self.remember(at, false, table)
    }

    fn remember(&mut self, at: u64, rust: bool, table: Option<Table>) -> Option<u32> {
        let is_full = self.contents.tables.len() >= MOST_TABLES;
        let number = table.filter(|_| !is_full).map(|table| {
            self.contents.tables.push(table);
            self.contents.tables.len() as u32 - 1
        });
        if number.is_none() && self.known.len() >= MOST_KNOWN {
            // what is none may be asked for again; what is one must not be forgotten: it has its number
            self.known.retain(|_, number| number.is_some());
        }
        self.known.insert((at, rust), number);
        number
    }

    fn read_class_table(&mut self, at: u64) -> Option<Table> {
        let mut before = |back: u64| self.memory.read_u64(Addr(at.wrapping_sub(back)));
        let (top, info, first) = (before(16)?, before(8)?, before(0)?);
        if top != 0 || !(self.files.is_code(first) || first == 0) {
            return None;
        }
        let class = if info == 0 { None } else { Some(self.class_name(info)?) };
        // without type information or a function, any two zeros would do
        (class.is_some() || first != 0).then_some(Table { at: Addr(at), class, first: Addr(first) })
    }

    /// The mangled name in a `type_info`.
    fn class_name(&mut self, info: u64) -> Option<Vec<u8>> {
        if !info.is_multiple_of(8) || !self.files.is_data(info) {
            return None;
        }
        let own_table = self.memory.read_u64(Addr(info))?;
        let name = self.memory.read_u64(Addr(info).add(8))?;
        if !self.files.is_data(own_table) || self.files.at(name).is_none() {
            return None;
        }
        let mut bytes = vec![0; LONGEST_NAME];
        let read = self.memory.read(Addr(name), &mut bytes);
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

    /// Looks for pairs and triples of words that name blocks.
    fn pairs(&mut self, bytes: &[u8]) {
        let span = self.index.span();
        let mut before = [0u64; 2];
        for piece in bytes.chunks_exact(8) {
            let value = u64::from_le_bytes(piece.try_into().unwrap_or_default());
            let [first, second] = before;
            before = [second, value];
            if second.wrapping_sub(span.0) < span.1 && self.files.is_data(value) {
                self.dyn_pointer(second, value);
            }
            if first < value && first <= second && second <= value && first.wrapping_sub(span.0) < span.1 {
                self.vector(first, value);
            }
        }
    }

    fn vector(&mut self, start: u64, end: u64) {
        let Some((block, 0)) = self.index.find(start) else { return };
        let size = self.index.blocks().get(block as usize).map_or(0, |block| block.size);
        let told = end - start;
        if told <= size && size - told <= SLACK {
            self.name(block, Look::Vector);
        }
    }

    fn dyn_pointer(&mut self, data: u64, table: u64) {
        if !table.is_multiple_of(8) {
            return;
        }
        let Some((block, 0)) = self.index.find(data) else { return };
        let size = self.index.blocks().get(block as usize).map_or(0, |block| block.size);
        let number = match self.known.get(&(table, true)) {
            Some(known) => *known,
            None => {
                let read = self.read_dyn_table(table);
                self.remember(table, true, read)
            }
        };
        let Some(number) = number else { return };
        // it may have changed since
        let value = self.memory.read_u64(Addr(table).add(8)).filter(|value| *value <= LARGEST_VALUE);
        let Some(value) = value else { return };
        let fits = |value: u64| value <= size && size - value <= SLACK;
        if fits(value) || fits(value.next_multiple_of(8) + COUNTS) {
            self.name(block, Look::Dyn(number));
        }
    }

    fn read_dyn_table(&mut self, at: u64) -> Option<Table> {
        let mut read = |offset: u64| self.memory.read_u64(Addr(at).add(offset));
        let (first, size, alignment) = (read(0)?, read(8)?, read(16)?);
        let fits = self.files.is_code(first)
            && (1..=LARGEST_VALUE).contains(&size)
            && alignment.is_power_of_two()
            && alignment <= LARGEST_ALIGNMENT
            && size.is_multiple_of(alignment);
        fits.then_some(Table { at: Addr(at), class: None, first: Addr(first) })
    }

    fn name(&mut self, block: u32, look: Look) {
        if let Some(slot) = self.contents.looks.get_mut(block as usize)
            && !matches!(slot, Look::Table(_) | Look::Text | Look::Dyn(_))
        {
            *slot = look;
        }
    }
}

/// Whether the bytes are text up to a zero or to their end, and more than half of them, or nothing but zeros behind it.
fn is_text(bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let printable =
        |text: &[u8]| text.iter().all(|&byte| byte >= 0x20 && byte != 0x7f || matches!(byte, b'\t' | b'\n' | b'\r'));
    text.len() >= SHORTEST_TEXT
        && (text.len() * 2 >= bytes.len() || rest.iter().all(|&byte| byte == 0))
        && printable(text)
        && std::str::from_utf8(text).is_ok()
}
