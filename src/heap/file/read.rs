//! Reads a heap. What a file says is counted before memory is taken for it, and checked before it is believed.

use super::{
    ALLOCATORS, CERTAINTIES, END, HeapFileError, Identity, MAGIC, OfCore, REMEDIES, STATES, SavedHeap, VERSION,
    WITH_CORES, WITH_MEMBERS,
};
use crate::base::addr::Addr;
use crate::heap::graph::Held;
use crate::heap::graph::declared::Layout;
use crate::heap::graph::duplicates::{Duplicate, Duplicates, looks_secret};
use crate::heap::graph::holders::Holdings;
use crate::heap::graph::pins::Pinned;
use crate::heap::graph::types::{Type, Types};
use crate::heap::leaks::{Graph, Pointer};
use crate::heap::walk::census::{Amount, Census, Use};
use crate::heap::walk::summary::{ChunkSum, SizeRow, Summary};
use crate::heap::walk::trim::Trim;
use crate::heap::walk::{Arena, Chunk, Fault, Finding};
use crate::heapmodel::{LiveBlock, SiteId};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

type Result<T> = std::result::Result<T, HeapFileError>;

/// Frames that need more than 2^this bytes of memory to be unpacked are refused: ours need 2^21.
const WINDOW_LOG: u32 = 24;
/// All that is told in bytes, added up, is not more: sums of it stay within 64 bits.
const MAX_BYTES: u64 = 1 << 58;
/// No address of a program is higher.
const HIGHEST: u64 = 1 << 57;
/// What a block takes of memory, in bytes: in the graph, its index, the search for dominators and what that finds.
const PER_BLOCK: u64 = 200;
/// A pointer.
const PER_POINTER: u64 = 80;
/// A row of other tables, or a text besides its bytes.
const PER_ROW: u64 = 128;

/// Whether `input` begins as such a file.
///
/// # Errors
/// Those of `input`.
pub fn begins(input: impl Read) -> io::Result<bool> {
    let mut start = Vec::new();
    input.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == MAGIC)
}

/// Reads a file; `memory`: how much of that it may take, in bytes.
///
/// # Errors
/// It can't be read, is none of these, or takes more.
pub fn read(mut input: impl BufRead, memory: u64) -> Result<SavedHeap> {
    let mut start = Vec::new();
    input.by_ref().take(12).read_to_end(&mut start).map_err(HeapFileError::Io)?;
    if !start.starts_with(&MAGIC) {
        return Err(if MAGIC.starts_with(&start) { HeapFileError::Torn } else { HeapFileError::Foreign });
    }
    let version = start.get(8..).and_then(|bytes| bytes.first_chunk::<4>().copied()).ok_or(HeapFileError::Torn)?;
    let version = u32::from_le_bytes(version);
    match version {
        1..=VERSION => {}
        0 => return Err(HeapFileError::Damaged("it has version 0, which there never was")),
        newer => return Err(HeapFileError::Newer(newer)),
    }
    let mut decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(HeapFileError::Io)?.single_frame();
    decoder.window_log_max(WINDOW_LOG).map_err(HeapFileError::Io)?;
    let input = io::BufReader::with_capacity(64 << 10, decoder);
    let mut reader = Reader { input, version, memory, left: memory, told: 0 };
    let heap = reader.heap()?;
    if reader.number()? != END {
        return Err(HeapFileError::Damaged("it does not end where it should"));
    }
    if reader.input.read(&mut [0]).map_err(explain)? != 0 {
        return Err(HeapFileError::Damaged("there is more than there should be"));
    }
    let mut behind = reader.input.into_inner().finish();
    match behind.fill_buf().map_err(HeapFileError::Io)? {
        [] => Ok(heap),
        _ => Err(HeapFileError::Damaged("something stands behind its end")),
    }
}

/// What the unpacking says.
fn explain(error: io::Error) -> HeapFileError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => HeapFileError::Torn,
        _ if error.raw_os_error().is_some() => HeapFileError::Io(error),
        _ => HeapFileError::Damaged("it can't be unpacked, or its checksum is another one"),
    }
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

struct Reader<R> {
    input: R,
    /// The file's.
    version: u32,
    /// What may be taken of memory.
    memory: u64,
    /// What is left of it.
    left: u64,
    /// What was told in bytes.
    told: u64,
}

impl<R: BufRead> Reader<R> {
    fn byte(&mut self) -> Result<u8> {
        let &byte = self.input.fill_buf().map_err(explain)?.first().ok_or(HeapFileError::Torn)?;
        self.input.consume(1);
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(HeapFileError::Damaged("a number is too large"))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T> {
        T::try_from(self.number()?).map_err(|_| HeapFileError::Damaged("a number is too large"))
    }

    fn flag(&mut self) -> Result<bool> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(HeapFileError::Damaged("something is neither there nor missing")),
        }
    }

    /// Amounts that are added up.
    fn bytes(&mut self) -> Result<u64> {
        let bytes = self.number()?;
        self.count_in(bytes)?;
        Ok(bytes)
    }

    fn count_in(&mut self, bytes: u64) -> Result<()> {
        self.told = self.told.saturating_add(bytes);
        if self.told > MAX_BYTES {
            return Err(HeapFileError::Damaged("it has more memory than there can be"));
        }
        Ok(())
    }

    fn maybe(&mut self) -> Result<Option<u64>> {
        if self.flag()? { self.number().map(Some) } else { Ok(None) }
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or(HeapFileError::TooLarge(self.memory))?;
        Ok(())
    }

    fn text(&mut self) -> Result<String> {
        let length = self.number()?;
        self.charge(length.saturating_mul(2).saturating_add(PER_ROW))?;
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(length).read_to_end(&mut bytes).map_err(explain)?;
        if (read as u64) < length {
            return Err(HeapFileError::Torn);
        }
        String::from_utf8(bytes).map_err(|_| HeapFileError::Damaged("a text is none"))
    }

    fn one_of<T: Copy>(&mut self, table: &[T]) -> Result<T> {
        let number: usize = self.small()?;
        table.get(number).copied().ok_or(HeapFileError::Damaged("a kind of something is none"))
    }

    /// A list of what `one` reads, each of which takes so much memory.
    fn list<T>(&mut self, each: u64, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let length = self.number()?;
        let mut list = Vec::new();
        for _ in 0..length {
            self.charge(each)?;
            list.push(one(self)?);
        }
        Ok(list)
    }

    fn heap(&mut self) -> Result<SavedHeap> {
        let identity = Identity {
            pid: self.small()?,
            started: self.maybe()?,
            boot: self.text()?,
            taken_ns: self.number()?,
            another_user: self.flag()?,
        };
        let of_core = self.version >= WITH_CORES && self.flag()?;
        let core = if of_core { Some(OfCore { stored: self.bytes()?, missing: self.number()? }) } else { None };
        Ok(SavedHeap {
            identity,
            core,
            program: self.text()?,
            threads: self.small()?,
            stood_ns: self.maybe()?,
            copied: self.flag()?,
            in_motion: self.flag()?,
            trimmed: self.maybe()?,
            resident: self.maybe()?,
            census: Census { uses: self.uses()?, arenas: self.list(PER_ROW, Self::uses)? },
            trim: if self.flag()? { Some(Trim { inside: self.bytes()?, end: self.bytes()? }) } else { None },
            heap: if self.flag()? { Some(self.summary()?) } else { None },
            held: if self.flag()? { Some(self.held()?) } else { None },
        })
    }

    fn uses(&mut self) -> Result<BTreeMap<Use, Amount>> {
        let rows = self.list(PER_ROW, |reader| {
            let of = reader.one_of(&Use::ALL)?;
            Ok((of, Amount { reserved: reader.bytes()?, resident: reader.bytes()?, swapped: reader.bytes()? }))
        })?;
        Ok(rows.into_iter().collect())
    }

    fn summary(&mut self) -> Result<Summary> {
        Ok(Summary {
            allocator: self.one_of(&ALLOCATORS)?,
            mapped_bytes: self.maybe()?,
            arenas: self.list(PER_ROW, |reader| {
                let (at, is_main) = (Addr(reader.number()?), reader.flag()?);
                Ok(Arena { at, is_main, system_bytes: reader.number()?, threads: reader.maybe()? })
            })?,
            findings: self.list(PER_ROW, |reader| {
                let (at, what) = (Addr(reader.number()?), reader.fault()?);
                Ok(Finding { at, what, before: if reader.flag()? { Some(reader.chunk()?) } else { None } })
            })?,
            chunks: {
                let rows = self.list(PER_ROW, |reader| {
                    let key = (reader.one_of(&STATES)?, reader.flag()?);
                    let sum = ChunkSum { count: reader.number()?, bytes: reader.bytes()?, usable: reader.bytes()? };
                    Ok((key, sum))
                })?;
                rows.into_iter().collect()
            },
            sizes: self.list(PER_ROW, |reader| {
                let row = SizeRow { usable: reader.number()?, live: reader.number()?, freed: reader.number()? };
                reader.count_in(row.usable.saturating_mul(row.live))?;
                reader.count_in(row.usable.saturating_mul(row.freed))?;
                Ok(row)
            })?,
        })
    }

    fn chunk(&mut self) -> Result<Chunk> {
        let (at, size, state, lead) = (Addr(self.number()?), self.bytes()?, self.one_of(&STATES)?, self.small::<u8>()?);
        let tail = i8::try_from(unzigzag(self.number()?));
        let tail = tail.map_err(|_| HeapFileError::Damaged("a number is too large"))?;
        Ok(Chunk::new(at, size, state, lead, tail))
    }

    fn fault(&mut self) -> Result<Fault> {
        let (code, size) = (self.number()?, self.number()?);
        Ok(match code {
            0 => Fault::Size(size),
            1 => Fault::Unreadable,
            2 => Fault::End(size),
            3 => Fault::List,
            4 => Fault::Circle,
            5 => Fault::Table,
            6 => Fault::Entry,
            7 => Fault::Group,
            8 => Fault::Header,
            9 => Fault::Overrun,
            10 => Fault::Count,
            _ => return Err(HeapFileError::Damaged("a kind of something is none")),
        })
    }

    fn held(&mut self) -> Result<Held> {
        let all =
            self.list(PER_ROW, |reader| Ok(Type { name: reader.text()?, certainty: reader.one_of(&CERTAINTIES)? }))?;
        let (layouts, layout_of) =
            if self.version >= WITH_MEMBERS { self.layouts(all.len())? } else { (Vec::new(), Vec::new()) };
        let (blocks, of_block) = self.blocks(all.len())?;
        let graph = self.graph(blocks)?;
        let count = graph.blocks().len() as u32;
        let mut root_edges = Vec::new();
        let mut names = Vec::new();
        for holder in 0..self.small::<u32>()? {
            self.charge(PER_BLOCK)?;
            names.push(self.text()?);
            let mut last: u32 = 0;
            for _ in 0..self.number()? {
                self.charge(PER_POINTER)?;
                let block = last.checked_add(self.small()?).filter(|block| *block < count);
                last = block.ok_or(HeapFileError::Damaged("a holder has a block that is not there"))?;
                let is_named = self.version >= WITH_MEMBERS && self.flag()?;
                let member = if is_named { Some(self.text()?.into_boxed_str()) } else { None };
                root_edges.push((holder, last, member));
            }
        }
        if u32::try_from(names.len() as u64 + u64::from(count) + 2).is_err() {
            return Err(HeapFileError::Damaged("it has more blocks than can be numbered"));
        }
        let holdings = Holdings::of(graph, names, root_edges);
        let (wasted, wasted_text) = (self.number()?, self.number()?);
        let equal = self.list(PER_ROW, Self::duplicate)?;
        let (most, mut samples): (_, Vec<Option<String>>) = equal.into_iter().unzip();
        // whoever has written them need not have left secrets out
        for sample in &mut samples {
            sample.take_if(|text| looks_secret(text));
        }
        let bytes = self.number()?;
        let mut last = 0i64;
        let by_block = self.list(PER_ROW, |reader| {
            last = last.wrapping_add(unzigzag(reader.number()?));
            let block = u32::try_from(last).map_err(|_| HeapFileError::Damaged("a block is not there"))?;
            Ok((block, reader.number()?))
        })?;
        let remedy = if self.flag()? { Some((self.one_of(&REMEDIES)?, self.number()?)) } else { None };
        Ok(Held {
            holdings,
            types: Types { all, of_block, layouts, layout_of },
            duplicates: Duplicates { wasted, wasted_text, most },
            samples,
            pinned: Pinned { bytes, by_block },
            remedy,
        })
    }

    /// How pointers lie in blocks, and of each type the number of its layout.
    fn layouts(&mut self, types: usize) -> Result<(Vec<Layout>, Vec<u32>)> {
        let layouts = self.list(PER_ROW, |reader| {
            let (name, stride, phase) = (reader.text()?, reader.number()?, reader.number()?);
            let mut places = reader.list(PER_ROW, |reader| Ok((reader.number()?, reader.text()?)))?;
            places.sort_unstable();
            Ok(Layout { name, stride, phase, places })
        })?;
        let mut layout_of = Vec::new();
        for _ in 0..types {
            let number: u32 = self.small()?;
            if number as usize > layouts.len() {
                return Err(HeapFileError::Damaged("a type lies in memory as none does"));
            }
            layout_of.push(number.wrapping_sub(1));
        }
        Ok((layouts, layout_of))
    }

    /// The blocks, and the number of the type of each.
    fn blocks(&mut self, types: usize) -> Result<(Vec<LiveBlock>, Vec<u32>)> {
        let mut of_block = Vec::new();
        let (mut last, mut last_size) = (0u64, u64::MAX);
        let blocks = self.list(PER_BLOCK, |reader| {
            let addr = last.checked_add(reader.number()?).filter(|addr| *addr < HIGHEST);
            let addr = addr.ok_or(HeapFileError::Damaged("a block lies where none can"))?;
            let size = reader.bytes()?;
            if addr.saturating_add(size) > HIGHEST || (addr == last && size > last_size) {
                return Err(HeapFileError::Damaged("a block lies where none can"));
            }
            (last, last_size) = (addr, size);
            let of: u32 = reader.small()?;
            if of as usize >= types {
                return Err(HeapFileError::Damaged("a block has a type that is not there"));
            }
            of_block.push(of);
            Ok(LiveBlock { addr: Addr(addr), size, site: SiteId(0), inherited: false })
        })?;
        if u32::try_from(blocks.len()).is_err() {
            return Err(HeapFileError::Damaged("it has more blocks than can be numbered"));
        }
        Ok((blocks, of_block))
    }

    fn graph(&mut self, blocks: Vec<LiveBlock>) -> Result<Graph> {
        let count = blocks.len() as u32;
        let (mut block, mut left) = (None, 0u64);
        Graph::of_pointers(blocks, |_| {
            while left == 0 {
                let next = block.map_or(0, |block| block + 1);
                if next >= count {
                    return Ok(None);
                }
                block = Some(next);
                left = self.number()?;
            }
            left -= 1;
            self.charge(PER_POINTER)?;
            let from = block.unwrap_or(0);
            let target = i64::from(from).checked_add(unzigzag(self.number()?));
            let target = target.and_then(|target| u32::try_from(target).ok()).filter(|target| *target < count);
            let target = target.ok_or(HeapFileError::Damaged("a pointer leads to a block that is not there"))?;
            Ok(Some((from, Pointer { target, at: self.number()?.checked_sub(1), into: self.number()? })))
        })
    }

    fn duplicate(&mut self) -> Result<(Duplicate, Option<String>)> {
        let one = Duplicate { block: self.small()?, count: self.number()?, size: self.number()?, text: self.flag()? };
        if one.count == 0 {
            return Err(HeapFileError::Damaged("there are no blocks that are equal"));
        }
        self.count_in(one.size.saturating_mul(one.count))?;
        Ok((one, if self.flag()? { Some(self.text()?) } else { None }))
    }
}
