//! Code objects: a function's name, file and lines, remembered as long as the same object is there.

use super::layout::Layout;
use super::lines::line_at;
use super::text::{self, LENGTH, TYPE};
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::rc::Rc;

/// Code objects that are remembered at most.
const MAX_CODE_OBJECTS: usize = 1 << 16;

/// What is remembered of them takes so many bytes at most.
const MAX_BYTES: usize = 64 << 20;

/// So many bytes of code objects are read and searched for one stack.
const MAX_READ: usize = 8 << 20;

/// As many bytes of a code object are read as the last field of any release needs.
const HEAD: usize = 208;

/// How far before the instructions the index of the first one stands that counts: a frame before it has not begun
/// (`_co_firsttraceable`).
const FIRST_TRACEABLE: u64 = 16;

/// How far behind the first line the number stands that no other code object has (`co_version` of 3.12 and 3.13).
pub(super) const SERIAL: u64 = 24;

/// Bytes of an instruction's unit.
const UNIT: i64 = 2;

/// A Python function, as its code object tells it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PythonFunction {
    /// Its name: the qualified one since 3.11.
    pub name: String,
    /// Its file, as the interpreter calls it.
    pub file: String,
    /// The line that it begins in.
    pub first_line: u32,
}

/// The addresses of types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TypeAddresses {
    pub(super) code: Addr,
    pub(super) text: Addr,
}

/// Where a frame stands in its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// In this line, as the frame says itself.
    Line(u32),
    /// At this byte of the code; -1 or less: before the first one.
    Byte(i64),
    /// At the instruction with this address. `generator`: it belongs to a generator, which counts from its beginning.
    Instruction { at: u64, generator: bool },
}

/// What a code object has besides texts. Two objects with the same one may differ only if they never lived at the same
/// time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    file: Addr,
    name: Addr,
    lines: Addr,
    first_line: u32,
    /// 0: it does not tell, or not for good.
    serial: u32,
    /// So many units of instructions.
    units: u64,
    first_traceable: u32,
}

/// A code object that was read.
#[derive(Clone, Debug)]
pub(super) struct Code {
    at: Addr,
    head: Head,
    function: Rc<PythonFunction>,
    lines: Vec<u8>,
    /// Its texts and lines as whole objects, where they were; none if the object has a number of its own.
    objects: Vec<(Addr, Vec<u8>)>,
    layout: Layout,
    /// The number of the call at which it was the same last.
    seen: u64,
}

/// What of a string or byte string changes while it is the same: the count of its references, and its hash, which comes
/// when it is asked for.
const CHANGING: [Range<usize>; 2] = [0..8, 24..32];

impl Code {
    /// How many bytes it takes.
    fn size(&self) -> usize {
        let texts = self.function.name.len() + self.function.file.len();
        self.objects.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + texts + self.lines.len() + size_of::<Self>()
    }

    /// Whether its texts and lines are those that it had.
    fn has_its_texts<M: ReadMemory + ?Sized>(&self, memory: &mut M) -> bool {
        self.objects.iter().all(|(at, before)| {
            let Some(now) = text::read(memory, *at, before.len() as u64) else { return false };
            let bytes = now.iter().zip(before).enumerate();
            bytes.into_iter().all(|(i, (now, before))| now == before || CHANGING.iter().any(|range| range.contains(&i)))
        })
    }

    /// The function.
    pub(super) fn function(&self) -> Rc<PythonFunction> {
        Rc::clone(&self.function)
    }

    /// The line of a position, 0 if its code has none there; `Some(None)` if the frame has not begun; None if there is
    /// no such position.
    pub(super) fn line(&self, position: Position) -> Option<Option<u32>> {
        let at = match position {
            Position::Line(line) => return Some(Some(line)),
            Position::Byte(at) => at,
            Position::Instruction { at, generator } => {
                let begin = self.at.0.wrapping_add(self.layout.code.instructions);
                let at = at.wrapping_sub(begin).cast_signed();
                let end = i64::try_from(self.head.units).ok()?.checked_mul(UNIT)?;
                if at % UNIT != 0 || at < -UNIT || at >= end {
                    return None;
                }
                if !generator && at < i64::from(self.head.first_traceable) * UNIT {
                    return Some(None);
                }
                at
            }
        };
        Some(Some(line_at(self.layout.lines, &self.lines, self.head.first_line, at).unwrap_or(0)))
    }
}

/// The code objects of a process.
#[derive(Clone, Debug)]
pub(super) struct Codes {
    layout: Layout,
    types: TypeAddresses,
    known: FxHashMap<Addr, Code>,
    /// The bytes of all that is known.
    bytes: usize,
    /// The number of the stack that is looked at.
    call: u64,
    /// So many bytes may still be read for it.
    left: usize,
}

impl Codes {
    /// None yet.
    pub(super) fn new(layout: Layout, types: TypeAddresses) -> Self {
        Self { layout, types, known: FxHashMap::default(), bytes: 0, call: 0, left: 0 }
    }

    /// Another stack is looked at: what was known before may have changed.
    pub(super) fn begin_call(&mut self) {
        self.call += 1;
        self.left = MAX_READ;
    }

    /// The function of the code object at `at`, and the line of a position in it; `Some(None)` where that has not
    /// begun. None if there is no such object or position, or too much would have to be read. Numbers of code objects
    /// count where `is_of_first`, in the interpreter that came first: others count anew.
    pub(super) fn named<M>(
        &mut self,
        memory: &mut M,
        at: Addr,
        position: Position,
        is_of_first: bool,
    ) -> Option<Option<(Rc<PythonFunction>, u32)>>
    where
        M: ReadMemory + ?Sized,
    {
        self.look(memory, at, is_of_first)?;
        let code = self.known.get(&at)?;
        self.left = self.left.checked_sub(code.lines.len())?;
        Some(code.line(position)?.map(|line| (code.function(), line)))
    }

    /// Looks at the code object at `at`, as it is now: another one may have come to the place of one that was known.
    fn look<M: ReadMemory + ?Sized>(&mut self, memory: &mut M, at: Addr, is_of_first: bool) -> Option<()> {
        if self.known.get(&at).is_some_and(|known| known.seen == self.call) {
            // the thread stands
            return Some(());
        }
        let head = self.head(memory, at, is_of_first)?;
        // without a number of its own an object is another one if its texts are
        let known = self.known.get(&at).filter(|known| known.head == head);
        let compared = known.map_or(0, |known| known.objects.iter().map(|(_, bytes)| bytes.len()).sum());
        self.left = self.left.checked_sub(compared + HEAD)?;
        let is_same = known.is_some_and(|known| head.serial != 0 || known.has_its_texts(memory));
        if !is_same {
            let new = self.read(memory, at, head)?;
            self.left = self.left.checked_sub(new.size())?;
            if self.known.len() >= MAX_CODE_OBJECTS || self.bytes + new.size() > MAX_BYTES {
                self.known.clear();
                self.bytes = 0;
            }
            self.bytes += new.size();
            let before = self.known.insert(at, new);
            self.bytes -= before.map_or(0, |before| before.size());
        }
        self.known.get_mut(&at)?.seen = self.call;
        Some(())
    }

    fn head<M: ReadMemory + ?Sized>(&self, memory: &mut M, at: Addr, is_of_first: bool) -> Option<Head> {
        let mut bytes = [0; HEAD];
        let read = memory.read(at, &mut bytes);
        let bytes = bytes.get(..read)?;
        let of = &self.layout.code;
        let word_at = |offset: u64| word(bytes, usize::try_from(offset).ok()?);
        let half_at = |offset: u64| word_at(offset).map(|word| word as u32);
        if word_at(TYPE) != Some(self.types.code.0) {
            return None;
        }
        let is_new = of.instructions > 0;
        Some(Head {
            file: Addr(word_at(of.file)?),
            name: Addr(word_at(of.name)?),
            lines: Addr(word_at(of.lines)?),
            first_line: half_at(of.first_line)?,
            serial: if of.has_serial && is_of_first { half_at(of.first_line + SERIAL)? } else { 0 },
            units: if is_new { word_at(LENGTH)? } else { 0 },
            first_traceable: if is_new { half_at(of.instructions.checked_sub(FIRST_TRACEABLE)?)? } else { 0 },
        })
    }

    fn read<M: ReadMemory + ?Sized>(&self, memory: &mut M, at: Addr, head: Head) -> Option<Code> {
        let mut text = |at| text::string(memory, at, self.types.text, self.layout.text);
        let ((name, name_size), (file, file_size)) = (text(head.name)?, text(head.file)?);
        let (lines, lines_size) = text::bytes(memory, head.lines)?;
        let function = PythonFunction { name, file, first_line: head.first_line };
        let mut objects = Vec::new();
        if head.serial == 0 {
            for (at, size) in [(head.name, name_size), (head.file, file_size), (head.lines, lines_size)] {
                objects.push((at, text::read(memory, at, size)?));
            }
        }
        let before = self.known.get(&at).map(|known| &known.function);
        let function = before.filter(|before| ***before == function).map_or_else(|| Rc::new(function), Rc::clone);
        Some(Code { at, head, function, lines, objects, layout: self.layout, seen: self.call })
    }
}
