//! What an event record says, as an event of a heap's stream.

use super::super::decode::{EventRecord, Value};
use super::super::task_of;
use super::super::vocabulary::{Align, PackedCall, Word};
use crate::base::addr::{Addr, ImageId, StackId, TaskId, TestId};
use crate::event::{Call, EventKind, Length, MapChange, MarkName, Missed, Preexisting};
use thiserror::Error;

/// A process has at most so many reallocs open at a time: one for each thread, as a rule.
const MAX_OPEN: usize = 1 << 16;

/// Why a record is no event of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum EventError {
    #[error("an event `{event}` whose argument `{argument}` is missing or impossible")]
    Argument { event: &'static str, argument: &'static str },
    #[error("a realloc that ends without a stack, and has no beginning")]
    NotBegun,
    #[error("more than 65,536 unfinished reallocs in one process")]
    ManyOpen,
}

/// The reallocs of one process that have begun: their ends tell only what differs.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenReallocs(Vec<(Addr, Call)>);

impl OpenReallocs {
    /// Takes the latest one of this thread and block.
    fn take(&mut self, old: Addr, task: TaskId) -> Option<Call> {
        let at = self.0.iter().rposition(|(open, by)| *open == old && by.task == task)?;
        Some(self.0.remove(at).1)
    }

    fn begin(&mut self, old: Addr, by: Call) -> Result<(), EventError> {
        self.0.push((old, by));
        if self.0.len() > MAX_OPEN { Err(EventError::ManyOpen) } else { Ok(()) }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The arguments of one event.
struct Arguments<'r> {
    record: &'r EventRecord<'r>,
    event: Word,
}

impl Arguments<'_> {
    fn find(&self, name: Word) -> Option<Value<'_>> {
        let found = self.record.arguments().iter().find(|argument| argument.name.word == Some(name));
        found.map(|argument| argument.value)
    }

    fn wrong(&self, argument: Word) -> EventError {
        EventError::Argument { event: self.event.text(), argument: argument.text() }
    }

    fn number(&self, name: Word) -> Result<u64, EventError> {
        match self.find(name) {
            Some(Value::Unsigned(value)) => Ok(value),
            _ => Err(self.wrong(name)),
        }
    }

    fn number_of_32_bits(&self, name: Word) -> Result<u32, EventError> {
        u32::try_from(self.number(name)?).map_err(|_| self.wrong(name))
    }

    fn addr(&self, name: Word) -> Result<Addr, EventError> {
        self.number(name).map(Addr)
    }

    /// A truth; false where nothing is said.
    fn is(&self, name: Word) -> Result<bool, EventError> {
        match self.find(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(Value::Unsigned(value)) => Ok(value != 0),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// The address of a block, which is never null.
    fn block(&self, name: Word) -> Result<Addr, EventError> {
        self.addr(name).and_then(|addr| if addr.is_null() { Err(self.wrong(name)) } else { Ok(addr) })
    }

    fn image(&self) -> Result<ImageId, EventError> {
        self.number_of_32_bits(Word::Image).map(ImageId)
    }

    fn task(&self) -> TaskId {
        task_of(self.record.of.thread)
    }

    fn packed(&self) -> Result<PackedCall, EventError> {
        PackedCall::unpack(self.number_of_32_bits(Word::Call)?).ok_or_else(|| self.wrong(Word::Call))
    }

    fn align(&self, align: Align) -> Result<Option<u64>, EventError> {
        match align {
            Align::Unknown => Ok(None),
            Align::Bytes(bytes) => Ok(Some(bytes)),
            Align::Beside => self.number(Word::Align).map(Some),
        }
    }

    /// The interval that the block was picked with, where it is not the one of the process; else 0.
    fn interval(&self) -> Result<u64, EventError> {
        if self.find(Word::SampleInterval).is_some() { self.number(Word::SampleInterval) } else { Ok(0) }
    }

    /// The call, and whether it is the allocator's own.
    fn call(&self) -> Result<(Call, bool), EventError> {
        let packed = self.packed()?;
        let call = Call {
            function: packed.function,
            task: self.task(),
            stack: StackId(self.number_of_32_bits(Word::Stack)?),
            family: packed.family,
            align: self.align(packed.align)?,
            interval: self.interval()?,
        };
        Ok((call, packed.internal))
    }

    fn map_change(&self) -> Result<MapChange, EventError> {
        Ok(match self.event {
            Word::RemapBegin => {
                MapChange::MoveBegan { old: self.addr(Word::Old)?, old_bytes: self.number(Word::Given)? }
            }
            Word::Unmap => MapChange::Unmapped { start: self.addr(Word::Addr)?, bytes: self.number(Word::Size)? },
            _ => MapChange::Mapped { start: self.addr(Word::Addr)?, bytes: self.number(Word::Size)? },
        })
    }

    /// The call of a realloc that ends: as it began, but for what is told anew.
    fn ended_call(&self, begun: Option<Call>) -> Result<Call, EventError> {
        let Some(mut call) = begun else {
            let told = self.find(Word::Stack).is_some() && self.find(Word::Call).is_some();
            return if told { self.call().map(|(call, _)| call) } else { Err(EventError::NotBegun) };
        };
        if self.find(Word::Stack).is_some() {
            call.stack = StackId(self.number_of_32_bits(Word::Stack)?);
        }
        if self.find(Word::Call).is_some() {
            let packed = self.packed()?;
            (call.function, call.family, call.align) = (packed.function, packed.family, self.align(packed.align)?);
        }
        call.interval = self.interval()?;
        Ok(call)
    }
}

/// Whether this is the first event of a process.
pub(super) fn begins(record: &EventRecord<'_>) -> bool {
    record.category.word == Some(Word::Heap) && matches!(record.name.word, Some(Word::Began | Word::Forked))
}

/// The process that a fork's record names as the parent.
pub(super) fn parent_process(record: &EventRecord<'_>) -> Option<u64> {
    let named = record.arguments().iter().find(|argument| argument.name.word == Some(Word::ParentProcess));
    match named?.value {
        Value::Unsigned(koid) => Some(koid),
        _ => None,
    }
}

/// The event that a record tells of; None for such as a newer writer may tell of. `open` are the process's reallocs in
/// progress.
pub(super) fn read(record: &EventRecord<'_>, open: &mut OpenReallocs) -> Result<Option<EventKind>, EventError> {
    let word = if record.category.word == Some(Word::Heap) { record.name.word } else { record.category.word };
    let Some(event) = word else { return Ok(None) };
    let arguments = Arguments { record, event };
    let kind = match event {
        Word::Alloc => {
            let (by, _) = arguments.call()?;
            EventKind::Allocated { block: arguments.block(Word::Addr)?, size: arguments.number(Word::Size)?, by }
        }
        Word::Free => {
            let (by, internal) = arguments.call()?;
            let given_size = arguments.find(Word::Given).map(|_| arguments.number(Word::Given)).transpose()?;
            EventKind::Freed { block: arguments.block(Word::Addr)?, internal, given_size, by }
        }
        Word::ReallocBegin => {
            let (old, (by, _)) = (arguments.block(Word::Old)?, arguments.call()?);
            open.begin(old, by)?;
            EventKind::ReallocBegan { old, by }
        }
        Word::Realloc => {
            let old = arguments.block(Word::Old)?;
            let by = arguments.ended_call(open.take(old, arguments.task()))?;
            EventKind::ReallocEnded { old, new: arguments.addr(Word::New)?, size: arguments.number(Word::Size)?, by }
        }
        Word::ReallocAbandoned => {
            let (old, task) = (arguments.block(Word::Old)?, arguments.task());
            open.take(old, task);
            EventKind::ReallocAbandoned { old, task }
        }
        Word::AllocUnseen => {
            EventKind::AllocatedUnseen { size: arguments.number(Word::Size)?, by: arguments.call()?.0 }
        }
        Word::Map | Word::Unmap | Word::RemapBegin => {
            EventKind::Mapping { change: arguments.map_change()?, by: arguments.call()?.0 }
        }
        Word::Remap => EventKind::Remapped {
            old: arguments.addr(Word::Old)?,
            old_bytes: Length::of(arguments.number(Word::Given)?),
            new: arguments.addr(Word::New)?,
            new_bytes: Length::of(arguments.number(Word::Size)?),
            by: arguments.call()?.0,
        },
        Word::Failed => EventKind::Failed { size: arguments.number(Word::Size)?, by: arguments.call()?.0 },
        Word::Began => EventKind::Began {
            image: arguments.image()?,
            preexisting: match arguments.is(Word::UnknownBlocks)? {
                true => Preexisting::Unknown,
                false => Preexisting::None,
            },
            free_stacks: arguments.is(Word::FreeStacks)?,
            sample_interval: match arguments.find(Word::SampleInterval) {
                Some(_) => arguments.number(Word::SampleInterval)?,
                None => 0,
            },
        },
        Word::Forked => EventKind::Forked {
            image: arguments.image()?,
            parent: task_of(arguments.number(Word::ParentThread)?),
            child: arguments.task(),
            among_threads: arguments.is(Word::AmongThreads)?,
        },
        Word::Exec => EventKind::Exec { image: arguments.image()? },
        Word::MissedCall => EventKind::Missed(Missed::Call),
        Word::MissedReturn => EventKind::Missed(Missed::Return),
        Word::MissedOuterFrames => EventKind::Missed(Missed::OuterFrames { cut: arguments.is(Word::Cut)? }),
        Word::MissedUnwindRule => EventKind::Missed(Missed::UnwindRule),
        Word::UnknownFreesExpected => EventKind::UnknownFreesExpected,
        Word::Existing => {
            EventKind::Existing { block: arguments.block(Word::Addr)?, size: arguments.number(Word::Size)? }
        }
        Word::Unobserved => EventKind::Unobserved,
        Word::Unwritten => {
            EventKind::Unwritten { block: arguments.block(Word::Addr)?, bytes: arguments.number(Word::Bytes)? }
        }
        Word::ArenaPart => EventKind::ArenaPart {
            arena: arguments.addr(Word::Arena)?,
            is_main: arguments.is(Word::Main)?,
            start: arguments.addr(Word::Addr)?,
            bytes: arguments.number(Word::Bytes)?,
            live: arguments.number(Word::Live)?,
            free: arguments.number(Word::Kept)?,
        },
        Word::Paused => EventKind::Paused(true),
        Word::Resumed => EventKind::Paused(false),
        Word::BlockIgnored => EventKind::BlockIgnored(arguments.addr(Word::Addr)?),
        Word::Mark => {
            let name = match arguments.find(Word::Name) {
                Some(Value::Text(name)) => MarkName::new(name),
                _ => None,
            };
            EventKind::Mark(name.ok_or_else(|| arguments.wrong(Word::Name))?)
        }
        Word::TestBegan => EventKind::TestBegan {
            test: TestId(arguments.number_of_32_bits(Word::Test)?),
            task: arguments.task(),
            alone: arguments.is(Word::Alone)?,
        },
        Word::TestJoined => {
            EventKind::TestJoined { task: arguments.task(), parent: task_of(arguments.number(Word::ParentThread)?) }
        }
        Word::TestEnded => EventKind::TestEnded { task: arguments.task() },
        Word::NotRecorded => EventKind::NotRecorded { task: arguments.task() },
        Word::Counted => EventKind::Counted {
            allocations: arguments.number(Word::Allocations)?,
            bytes: arguments.number(Word::Bytes)?,
        },
        Word::NewBlocksIgnored => {
            EventKind::NewBlocksIgnored { task: arguments.task(), ignore: arguments.is(Word::Ignore)? }
        }
        _ => return Ok(None),
    };
    Ok(Some(kind))
}
