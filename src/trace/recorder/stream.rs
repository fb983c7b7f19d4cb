//! What is written of the events and definitions of one process.

use crate::base::addr::{Addr, ImageId, ProcessId, StackId, TaskId, TestId};
use crate::event::{Call, Definition, Event, EventKind, MapChange, Missed, ModuleDefinition, Preexisting};
use crate::trace::fxt::{argument, event_type};
use crate::trace::metadata::{FilePath, Module, Process};
use crate::trace::vocabulary::Word;
use crate::trace::writer::{EventBuilder, TraceWriter, pack};
use crate::trace::{process_koid, thread_koid};
use crate::unwinder::StackNode;
use rustc_hash::FxHashMap;

/// So many characters of a test's name are written.
const LONGEST_TEST_NAME: usize = 1000;

/// What a thread has begun to resize: stack and packed call.
type OpenRealloc = (StackId, u32);

/// The stacks of an image.
#[derive(Clone, Debug)]
enum Stacks {
    /// Each is written once, before the next event; those that are not yet.
    Passing(Vec<(StackId, StackNode)>),
    /// Each is written again in each segment that refers to it.
    Kept(Kept),
}

#[derive(Clone, Debug, Default)]
struct Kept {
    /// That of the id i at i − 1.
    nodes: Vec<StackNode>,
    /// Which stand in this segment: a bit for each.
    written: Vec<u64>,
}

impl Kept {
    /// The nodes of a stack that do not stand in the segment yet, parents first; they count as written.
    fn take_missing(&mut self, stack: StackId) -> Vec<(StackId, StackNode)> {
        let mut missing = Vec::new();
        let mut at = stack;
        while at != StackId::EMPTY {
            let index = at.0 as usize - 1;
            let (place, bit) = (index / 64, 1 << (index % 64));
            let Some(&node) = self.nodes.get(index) else { break };
            if place >= self.written.len() {
                self.written.resize(place + 1, 0);
            }
            let Some(bits) = self.written.get_mut(place).filter(|bits| **bits & bit == 0) else { break };
            *bits |= bit;
            missing.push((at, node));
            at = node.parent;
        }
        missing.reverse();
        missing
    }
}

/// What is known of a process's stream.
#[derive(Debug)]
pub(super) struct Stream {
    process: ProcessId,
    pub(super) koid: u64,
    free_stacks: bool,
    sample_interval: u64,
    image: ImageId,
    /// The image before; of a forked child its parent's.
    former_image: ImageId,
    /// The process that it was forked from, itself if it was not.
    former_koid: u64,
    /// The number of the next event.
    pub(super) next_seq: u64,
    definition: Option<Process>,
    stacks: Stacks,
    /// The modules of the image; none unless stacks are kept, too.
    modules: Vec<Module>,
    reallocs: FxHashMap<TaskId, OpenRealloc>,
    /// The names of the tests of the image.
    tests: FxHashMap<TestId, String>,
    /// The segment that all this stands in.
    segment: Option<u64>,
    /// When live bytes were told last.
    pub(super) live_told_ns: Option<u64>,
}

impl Stream {
    /// That of a process of which nothing was told yet. `circular`: see [`super::Recorder::new`].
    pub(super) fn new(process: ProcessId, circular: bool, free_stacks: bool) -> Self {
        Self {
            process,
            koid: process_koid(process),
            free_stacks,
            sample_interval: 0,
            image: ImageId::default(),
            former_image: ImageId::default(),
            former_koid: process_koid(process),
            next_seq: 0,
            definition: None,
            stacks: if circular { Stacks::Kept(Kept::default()) } else { Stacks::Passing(Vec::new()) },
            modules: Vec::new(),
            reallocs: FxHashMap::default(),
            tests: FxHashMap::default(),
            segment: None,
            live_told_ns: None,
        }
    }

    /// That of a child that is forked now.
    pub(super) fn fork(&self, child: ProcessId) -> Self {
        let koid = process_koid(child);
        Self {
            process: child,
            koid,
            free_stacks: self.free_stacks,
            sample_interval: self.sample_interval,
            image: self.image,
            former_image: self.former_image,
            former_koid: self.koid,
            next_seq: 0,
            definition: None,
            stacks: self.stacks.clone(),
            modules: self.modules.iter().map(|module| Module { process: koid, ..module.clone() }).collect(),
            reallocs: FxHashMap::default(),
            tests: self.tests.clone(),
            segment: self.segment,
            live_told_ns: None,
        }
    }

    /// Another image, or a copy of the one before.
    pub(super) fn follow(&mut self, kind: EventKind) {
        let next = match kind {
            EventKind::Began { image, sample_interval, .. } => {
                self.sample_interval = sample_interval;
                image
            }
            EventKind::Forked { image, .. } => image,
            EventKind::Exec { image } => {
                match &mut self.stacks {
                    Stacks::Passing(passing) => passing.clear(),
                    Stacks::Kept(kept) => *kept = Kept::default(),
                }
                self.modules.clear();
                self.reallocs.clear();
                self.tests.clear();
                image
            }
            _ => return,
        };
        self.former_image = std::mem::replace(&mut self.image, next);
        for module in &mut self.modules {
            module.image = next.0;
        }
    }

    /// Sees to it that the segment has what an event refers to.
    pub(super) fn enter_segment(&mut self, writer: &mut TraceWriter, next_seq: u64) {
        if self.segment == Some(writer.segment()) {
            return;
        }
        let is_first = self.segment.replace(writer.segment()).is_none();
        self.reallocs.clear();
        if let Stacks::Kept(kept) = &mut self.stacks {
            kept.written.clear();
        }
        if is_first {
            return;
        }
        if let Some(definition) = &mut self.definition {
            definition.next_seq = next_seq;
            definition.image = self.image.0;
            writer.process(definition);
        }
        for module in &self.modules {
            writer.module(module);
        }
    }

    pub(super) fn define(&mut self, definition: &Definition<'_>, writer: &mut TraceWriter) {
        match *definition {
            Definition::Stack { id, node } => match &mut self.stacks {
                // Nobody will refer to it.
                Stacks::Passing(_) if !writer.has_room() => {}
                Stacks::Passing(passing) => passing.push((id, node)),
                Stacks::Kept(kept) => {
                    // Without gaps: what was told before the trace began is not there.
                    let gap = (id.0 as usize).saturating_sub(kept.nodes.len() + 1);
                    let unknown = StackNode { parent: StackId::EMPTY, ..node };
                    kept.nodes.extend(std::iter::repeat_n(unknown, gap));
                    kept.nodes.push(node);
                }
            },
            Definition::Test { id, name } => {
                self.tests.insert(id, name.chars().take(LONGEST_TEST_NAME).collect());
            }
            Definition::Process(process) => {
                self.enter_segment(writer, self.next_seq);
                let process = Process {
                    koid: self.koid,
                    pid: self.process.pid,
                    parent: process.parent,
                    image: self.image.0,
                    next_seq: self.next_seq,
                    free_stacks: self.free_stacks,
                    sample_interval: self.sample_interval,
                    program: process.program.to_owned(),
                    command: process.command.to_vec(),
                    cwd: FilePath::from(process.cwd),
                };
                if writer.has_room() {
                    writer.process(&process);
                }
                self.definition = Some(process);
            }
            Definition::Module(ref module) => {
                self.enter_segment(writer, self.next_seq);
                let module = self.module(module);
                if writer.has_room() {
                    writer.module(&module);
                }
                if matches!(self.stacks, Stacks::Kept(_)) {
                    self.modules.push(module);
                }
            }
        }
    }

    fn module(&self, module: &ModuleDefinition<'_>) -> Module {
        Module {
            process: self.koid,
            image: self.image.0,
            id: module.id.0,
            path: FilePath::from(module.path),
            build_id: module.build_id.map(str::to_owned),
            start: module.start.0,
            end: module.end.0,
            file_offset: module.file_offset,
            bias: module.bias.0,
            is_program: module.is_program,
            probed: module.probed.iter().map(|function| function.0).collect(),
        }
    }

    /// The stacks that an event refers to.
    fn write_stacks(&mut self, stack: StackId, writer: &mut TraceWriter) {
        match &mut self.stacks {
            Stacks::Passing(passing) if passing.is_empty() => {}
            Stacks::Passing(passing) => {
                writer.stacks(self.image.0, passing);
                passing.clear();
            }
            Stacks::Kept(kept) => {
                let missing = kept.take_missing(stack);
                if !missing.is_empty() {
                    writer.stacks(self.image.0, &missing);
                }
            }
        }
    }

    pub(super) fn write_live(&mut self, time_ns: u64, bytes: u64, writer: &mut TraceWriter) {
        self.enter_segment(writer, self.next_seq);
        writer.make_room_for_strings();
        let name = writer.word(Word::LiveBytes);
        let mut record = EventBuilder::new(event_type::COUNTER, Word::Heap, name);
        record.number(writer.word(Word::Bytes), bytes);
        record.push(u64::from(self.process.number));
        writer.event(self.koid, None, time_ns, &record);
    }

    pub(super) fn write(&mut self, event: &Event, writer: &mut TraceWriter) {
        let (record, task) = match event.kind {
            EventKind::Allocated { block, size, by } => {
                let mut record = self.call_record(Word::Alloc, by, writer);
                record.wide(argument::POINTER, writer.word(Word::Addr), block.0);
                record.number(writer.word(Word::Size), size);
                end_call(&mut record, by, false, self.sample_interval, writer);
                (record, Some(by.task))
            }
            EventKind::AllocatedUnseen { size, by } | EventKind::Failed { size, by } => {
                let is_failed = matches!(event.kind, EventKind::Failed { .. });
                let mut record = self.call_record(if is_failed { Word::Failed } else { Word::AllocUnseen }, by, writer);
                record.number(writer.word(Word::Size), size);
                end_call(&mut record, by, false, self.sample_interval, writer);
                (record, Some(by.task))
            }
            EventKind::Freed { block, internal, given_size, by } => {
                let mut record = self.call_record(Word::Free, by, writer);
                record.wide(argument::POINTER, writer.word(Word::Addr), block.0);
                if let Some(given) = given_size {
                    record.number(writer.word(Word::Given), given);
                }
                end_call(&mut record, by, internal, self.sample_interval, writer);
                (record, Some(by.task))
            }
            EventKind::ReallocBegan { old, by } => {
                let mut record = self.call_record(Word::ReallocBegin, by, writer);
                record.wide(argument::POINTER, writer.word(Word::Old), old.0);
                end_call(&mut record, by, false, self.sample_interval, writer);
                self.reallocs.insert(by.task, (by.stack, pack(&by, false).0));
                (record, Some(by.task))
            }
            EventKind::ReallocEnded { old, new, size, by } => {
                (self.realloc_record(old, new, size, by, writer), Some(by.task))
            }
            EventKind::Mapping { change, by } => (self.mapping_record(change, by, writer), Some(by.task)),
            EventKind::Remapped { old, old_bytes, new, new_bytes, by } => {
                let mut record = self.call_record(Word::Remap, by, writer);
                record.wide(argument::POINTER, writer.word(Word::Old), old.0);
                record.number(writer.word(Word::Given), old_bytes.bytes());
                record.wide(argument::POINTER, writer.word(Word::New), new.0);
                record.number(writer.word(Word::Size), new_bytes.bytes());
                end_call(&mut record, by, false, self.sample_interval, writer);
                (record, Some(by.task))
            }
            EventKind::ReallocAbandoned { old, task } => {
                self.reallocs.remove(&task);
                let name = writer.word(Word::ReallocAbandoned);
                let mut record = EventBuilder::instant(Word::ReallocAbandoned, name);
                record.wide(argument::POINTER, writer.word(Word::Old), old.0);
                (record, Some(task))
            }
            kind => match heap_word(kind) {
                Some(word) => self.heap_record(kind, word, writer),
                None => return,
            },
        };
        writer.event(self.koid, task, event.time_ns, &record);
    }

    fn call_record(&mut self, category: Word, by: Call, writer: &mut TraceWriter) -> EventBuilder {
        self.write_stacks(by.stack, writer);
        EventBuilder::instant(category, writer.function_name(by.function))
    }

    fn mapping_record(&mut self, change: MapChange, by: Call, writer: &mut TraceWriter) -> EventBuilder {
        let category = match change {
            MapChange::Mapped { .. } => Word::Map,
            MapChange::Unmapped { .. } => Word::Unmap,
            MapChange::MoveBegan { .. } => Word::RemapBegin,
        };
        let mut record = self.call_record(category, by, writer);
        match change {
            MapChange::Mapped { start, bytes } | MapChange::Unmapped { start, bytes } => {
                record.wide(argument::POINTER, writer.word(Word::Addr), start.0);
                record.number(writer.word(Word::Size), bytes);
            }
            MapChange::MoveBegan { old, old_bytes } => {
                record.wide(argument::POINTER, writer.word(Word::Old), old.0);
                record.number(writer.word(Word::Given), old_bytes);
            }
        }
        end_call(&mut record, by, false, self.sample_interval, writer);
        record
    }

    /// What stands in the record of the beginning is left out.
    fn realloc_record(&mut self, old: Addr, new: Addr, size: u64, by: Call, writer: &mut TraceWriter) -> EventBuilder {
        let open = self.reallocs.remove(&by.task);
        let mut record = self.call_record(Word::Realloc, by, writer);
        record.wide(argument::POINTER, writer.word(Word::Old), old.0);
        record.wide(argument::POINTER, writer.word(Word::New), new.0);
        record.number(writer.word(Word::Size), size);
        let (packed, beside) = pack(&by, false);
        if open.is_none_or(|(stack, _)| stack != by.stack) {
            record.small(argument::U32, writer.word(Word::Stack), by.stack.0);
        }
        if open.is_none_or(|(_, call)| call != packed) || beside.is_some() {
            record.small(argument::U32, writer.word(Word::Call), packed);
        }
        if let Some(align) = beside {
            record.wide(argument::U64, writer.word(Word::Align), align);
        }
        end_sampled(&mut record, by, self.sample_interval, writer);
        record
    }

    /// What is no call, and is called so.
    fn heap_record(&mut self, kind: EventKind, word: Word, writer: &mut TraceWriter) -> (EventBuilder, Option<TaskId>) {
        let name = writer.word(word);
        let mut record = EventBuilder::instant(Word::Heap, name);
        let mut task = None;
        match kind {
            EventKind::Began { image, preexisting, free_stacks, sample_interval } => {
                record.small(argument::U32, writer.word(Word::Image), image.0);
                record.flag(writer.word(Word::UnknownBlocks), preexisting == Preexisting::Unknown);
                record.flag(writer.word(Word::FreeStacks), free_stacks);
                record.number(writer.word(Word::SampleInterval), sample_interval);
            }
            EventKind::Forked { image, parent, child, among_threads } => {
                record.small(argument::U32, writer.word(Word::Image), image.0);
                record.small(argument::U32, writer.word(Word::ParentImage), self.former_image.0);
                record.wide(argument::KOID, writer.word(Word::ParentProcess), self.former_koid);
                record.wide(argument::KOID, writer.word(Word::ParentThread), thread_koid(parent));
                record.flag(writer.word(Word::AmongThreads), among_threads);
                task = Some(child);
            }
            EventKind::Exec { image } => record.small(argument::U32, writer.word(Word::Image), image.0),
            EventKind::Missed(Missed::OuterFrames { cut }) => record.flag(writer.word(Word::Cut), cut),
            EventKind::Mark(name) => record.text(writer.word(Word::Name), name.as_str()),
            EventKind::BlockIgnored(block) => record.wide(argument::POINTER, writer.word(Word::Addr), block.0),
            EventKind::Existing { block, size } => {
                record.wide(argument::POINTER, writer.word(Word::Addr), block.0);
                record.number(writer.word(Word::Size), size);
            }
            EventKind::Unwritten { block, bytes } => {
                record.wide(argument::POINTER, writer.word(Word::Addr), block.0);
                record.number(writer.word(Word::Bytes), bytes);
            }
            EventKind::ArenaPart { arena, is_main, start, bytes, live, free } => {
                record.wide(argument::POINTER, writer.word(Word::Arena), arena.0);
                record.flag(writer.word(Word::Main), is_main);
                record.wide(argument::POINTER, writer.word(Word::Addr), start.0);
                record.number(writer.word(Word::Bytes), bytes);
                record.number(writer.word(Word::Live), live);
                record.number(writer.word(Word::Kept), free);
            }
            EventKind::NotRecorded { task: thread } | EventKind::TestEnded { task: thread } => task = Some(thread),
            EventKind::TestJoined { task: thread, parent } => {
                record.wide(argument::KOID, writer.word(Word::ParentThread), thread_koid(parent));
                task = Some(thread);
            }
            EventKind::TestBegan { test, task: thread, alone } => {
                record.flag(writer.word(Word::Alone), alone);
                record.small(argument::U32, writer.word(Word::Test), test.0);
                if let Some(name) = self.tests.get(&test) {
                    record.text(writer.word(Word::Name), name);
                }
                task = Some(thread);
            }
            EventKind::Counted { allocations, bytes } => {
                record.number(writer.word(Word::Allocations), allocations);
                record.number(writer.word(Word::Bytes), bytes);
            }
            EventKind::NewBlocksIgnored { task: thread, ignore } => {
                record.flag(writer.word(Word::Ignore), ignore);
                task = Some(thread);
            }
            _ => {}
        }
        (record, task)
    }
}

/// The name of an event of the category `heap`; None for the events of calls, which have records of their own.
fn heap_word(kind: EventKind) -> Option<Word> {
    Some(match kind {
        EventKind::Began { .. } => Word::Began,
        EventKind::Forked { .. } => Word::Forked,
        EventKind::Exec { .. } => Word::Exec,
        EventKind::Missed(Missed::Call) => Word::MissedCall,
        EventKind::Missed(Missed::Return) => Word::MissedReturn,
        EventKind::Missed(Missed::OuterFrames { .. }) => Word::MissedOuterFrames,
        EventKind::Missed(Missed::UnwindRule) => Word::MissedUnwindRule,
        EventKind::UnknownFreesExpected => Word::UnknownFreesExpected,
        EventKind::Existing { .. } => Word::Existing,
        EventKind::Unobserved => Word::Unobserved,
        EventKind::Unwritten { .. } => Word::Unwritten,
        EventKind::ArenaPart { .. } => Word::ArenaPart,
        EventKind::Paused(true) => Word::Paused,
        EventKind::Paused(false) => Word::Resumed,
        EventKind::BlockIgnored(_) => Word::BlockIgnored,
        EventKind::NewBlocksIgnored { .. } => Word::NewBlocksIgnored,
        EventKind::Mark(_) => Word::Mark,
        EventKind::TestBegan { .. } => Word::TestBegan,
        EventKind::TestJoined { .. } => Word::TestJoined,
        EventKind::TestEnded { .. } => Word::TestEnded,
        EventKind::NotRecorded { .. } => Word::NotRecorded,
        EventKind::Counted { .. } => Word::Counted,
        EventKind::Allocated { .. }
        | EventKind::AllocatedUnseen { .. }
        | EventKind::Freed { .. }
        | EventKind::ReallocBegan { .. }
        | EventKind::ReallocEnded { .. }
        | EventKind::ReallocAbandoned { .. }
        | EventKind::Mapping { .. }
        | EventKind::Remapped { .. }
        | EventKind::Failed { .. } => return None,
    })
}

/// The last arguments of each call. `interval`: that of the process, with which most blocks are picked.
fn end_call(record: &mut EventBuilder, by: Call, internal: bool, interval: u64, writer: &mut TraceWriter) {
    let (packed, beside) = pack(&by, internal);
    record.small(argument::U32, writer.word(Word::Stack), by.stack.0);
    record.small(argument::U32, writer.word(Word::Call), packed);
    if let Some(align) = beside {
        record.wide(argument::U64, writer.word(Word::Align), align);
    }
    end_sampled(record, by, interval, writer);
}

/// The interval of a block that was picked with another one than most.
fn end_sampled(record: &mut EventBuilder, by: Call, interval: u64, writer: &mut TraceWriter) {
    if by.interval != 0 && by.interval != interval {
        record.number(writer.word(Word::SampleInterval), by.interval);
    }
}
