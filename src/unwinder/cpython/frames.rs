//! Which Python frames run in which native ones.

use super::code::Position;
use super::layout::{FrameLayout, Layout, LineTold, Shape};
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};

/// Frames of a thread at most. Python stops at 1,000, unless it is told otherwise.
const MAX_FRAMES: usize = 1 << 14;

/// As many bytes of a frame are read as any release needs.
const HEAD: usize = 120;

/// Whom a frame belongs to (`_PyInterpreterFrame.owner`): a generator.
const OF_GENERATOR: u8 = 1;

/// The same: it lies on the native stack, and is none of a function (3.12 and later).
const ON_NATIVE_STACK: u8 = 3;

/// A native frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeFrame {
    /// Its stack pointer: it ends here.
    pub sp: Addr,
    /// The stack pointer of its caller, which begins here.
    pub cfa: Addr,
    /// Whether it is of the interpreter's loop, by its function's symbol.
    pub is_loop: bool,
    /// Whether its code is the interpreter's: what a compiler has moved out of the loop has no symbol of its own in
    /// stripped files.
    pub is_interpreter: bool,
}

impl NativeFrame {
    fn holds(&self, at: Addr) -> bool {
        self.is_interpreter && self.sp <= at && at < self.cfa
    }
}

/// A Python frame, without its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RawFrame {
    /// Its code object.
    pub(super) code: Addr,
    /// How far it has come.
    pub(super) position: Position,
}

/// The Python frames that run in one native frame, the innermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The native frame's index.
    pub(super) native: usize,
    pub(super) frames: Vec<RawFrame>,
}

/// The runs of the thread whose state is at `thread`, as far as they belong to one of the `native` frames without
/// doubt. None if that can't be told.
pub(super) fn runs<M>(layout: &Layout, memory: &mut M, thread: Addr, native: &[NativeFrame]) -> Option<Vec<Run>>
where
    M: ReadMemory + ?Sized,
{
    let innermost = Addr(memory.read_u64(thread.add(layout.thread.frames))?);
    let mut walk = Walk { layout, memory, left: MAX_FRAMES };
    match layout.shape {
        Shape::Objects { running, line, told, in_units } => {
            let objects = Objects { running, line, told, in_units };
            walk.objects(innermost, native, &objects)
        }
        Shape::Records { current, previous, is_entry } => {
            walk.records(innermost, native, [current, previous, is_entry])
        }
        Shape::Entries { record } => {
            let innermost = match record {
                Some(current) => Addr(walk.memory.read_u64(innermost.add(current))?),
                None => innermost,
            };
            walk.entries(innermost, native)
        }
    }
}

/// See [`Shape::Objects`].
struct Objects {
    running: (u64, u8),
    line: u64,
    told: LineTold,
    in_units: bool,
}

struct Walk<'a, M: ?Sized> {
    layout: &'a Layout,
    memory: &'a mut M,
    /// So many frames more are read.
    left: usize,
}

/// The bytes of a frame.
struct Head([u8; HEAD]);

impl Head {
    fn word(&self, at: u64) -> Option<u64> {
        word(&self.0, usize::try_from(at).ok()?)
    }

    fn addr(&self, at: u64) -> Option<Addr> {
        self.word(at).map(Addr)
    }

    fn byte(&self, at: u64) -> Option<u8> {
        self.0.get(usize::try_from(at).ok()?).copied()
    }

    fn half(&self, at: u64) -> Option<i32> {
        let bytes = self.0.get(usize::try_from(at).ok()?..)?.first_chunk::<4>()?;
        Some(i32::from_le_bytes(*bytes))
    }
}

impl<M: ReadMemory + ?Sized> Walk<'_, M> {
    /// The bytes of a frame; what is behind the last readable page is zero.
    fn head(&mut self, at: Addr) -> Option<Head> {
        self.left = self.left.checked_sub(1)?;
        let mut bytes = [0; HEAD];
        let least = self.layout.frame.position + 8;
        (self.memory.read(at, &mut bytes) as u64 >= least).then_some(Head(bytes))
    }

    /// Each native frame of the loop runs one frame object: nothing else ties the two together, so there must be as
    /// many of one as of the other.
    fn objects(&mut self, innermost: Addr, native: &[NativeFrame], of: &Objects) -> Option<Vec<Run>> {
        let mut runs = Vec::new();
        let mut at = innermost;
        for (index, _) in native.iter().enumerate().filter(|(_, frame)| frame.is_loop) {
            if at.is_null() {
                return None;
            }
            let head = self.head(at)?;
            let (running, value) = of.running;
            if head.byte(running)? != value {
                return None;
            }
            let is_told = match of.told {
                LineTold::IfTraced(trace) => head.word(trace)? != 0,
                LineTold::IfNotZero => head.half(of.line)? != 0,
            };
            let position = match is_told {
                true => Position::Line(u32::try_from(head.half(of.line)?).ok()?),
                false => {
                    let scale = if of.in_units { 2 } else { 1 };
                    Position::Byte(i64::from(head.half(self.layout.frame.position)?) * scale)
                }
            };
            let frame = RawFrame { code: head.addr(self.layout.frame.code)?, position };
            runs.push(Run { native: index, frames: vec![frame] });
            at = head.addr(self.layout.frame.previous)?;
        }
        at.is_null().then_some(runs)
    }

    /// Each record lies in the native frame that made it.
    fn records(&mut self, innermost: Addr, native: &[NativeFrame], of: [u64; 3]) -> Option<Vec<Run>> {
        let [current, previous, is_entry] = of;
        let mut runs = Vec::new();
        let mut record = innermost;
        let mut from = 0;
        while let Some(index) = holder(native, from, record) {
            let mut at = Addr(self.memory.read_u64(record.add(current))?);
            let mut frames = Vec::new();
            loop {
                let head = self.head(at)?;
                frames.push(self.frame(&head)?);
                at = head.addr(self.layout.frame.previous)?;
                if head.byte(is_entry)? != 0 {
                    break;
                }
            }
            record = Addr(self.memory.read_u64(record.add(previous))?);
            // what runs next is what the record before has
            if record.is_null() || self.memory.read_u64(record.add(current))? != at.0 {
                return None;
            }
            runs.push(Run { native: index, frames });
            from = index + 1;
        }
        Some(runs)
    }

    /// Below the frames that run in a native one is a frame that lies in it.
    fn entries(&mut self, innermost: Addr, native: &[NativeFrame]) -> Option<Vec<Run>> {
        let mut runs = Vec::new();
        let mut at = innermost;
        let mut from = 0;
        let mut frames = Vec::new();
        while !at.is_null() {
            let head = self.head(at)?;
            if head.byte(self.layout.frame.owner)? != ON_NATIVE_STACK {
                frames.push(self.frame(&head)?);
            } else {
                let Some(index) = holder(native, from, at) else { break };
                runs.push(Run { native: index, frames: std::mem::take(&mut frames) });
                from = index + 1;
            }
            at = head.addr(self.layout.frame.previous)?;
        }
        Some(runs)
    }

    /// A frame of 3.11 or later.
    fn frame(&self, head: &Head) -> Option<RawFrame> {
        let FrameLayout { code, position, owner, .. } = self.layout.frame;
        let generator = head.byte(owner)? == OF_GENERATOR;
        let position = Position::Instruction { at: head.word(position)?, generator };
        Some(RawFrame { code: head.addr(code)?, position })
    }
}

/// The native frame that holds an address, from the one at `from` outwards.
fn holder(native: &[NativeFrame], from: usize, at: Addr) -> Option<usize> {
    let rest = native.get(from..)?;
    rest.iter().position(|frame| frame.holds(at)).map(|index| from + index)
}
