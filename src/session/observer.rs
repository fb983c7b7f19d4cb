//! What the engines see of one process goes in here; what they are to watch comes out.
//!
//! The observer pairs entries with returns (`calls`), stamps what happened, and tells it to all readers of the
//! process's stream; the heap model is the first of them. It knows neither ptrace nor breakpoints.

mod held;
mod parts;
mod pauses;
mod sampled;
mod stream;

use super::engine::{EngineReply, EngineReport, EntryContext};
use crate::allocators::{AllocatorTable, Function, Kind};
use crate::base::addr::{Addr, FunctionId, ImageId, ProcessId, StackId, TaskId};
use crate::base::progress::Progress;
use crate::base::sampling::Sampler;
use crate::event::calls::{Calls, Classified, Entry, MapCall, Operation, Recorded, ReturnMatch};
use crate::event::{Definition, EventKind, EventSink, MarkName, Missed, Preexisting, TICK_NS};
use crate::heapmodel::{HeapModel, HeapView};
use crate::profile::Amount;
use crate::session::modulerecord::ModuleRecord;
use crate::session::recording::StreamEnd;
use crate::trace::recorder::Recorder;
use crate::unwinder::Quality;
use pauses::Pause;
use sampled::recorded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use stream::Stream;

/// What all observers of a session share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// When the session began: the zero of all events' times.
    pub(super) began: Instant,
    pub(super) table: Arc<AllocatorTable>,
    pub(super) free_stacks: bool,
    /// See [`EventKind::Began`].
    pub(super) sample_interval: u64,
    pub(super) max_depth: u32,
    pub(super) progress: Arc<Progress>,
    pub(super) next_image: Arc<AtomicU32>,
    pub(super) next_process: Arc<AtomicU32>,
    /// Where all streams are written to, if they are.
    pub(super) trace: Option<Recorder>,
}

impl Shared {
    /// The process `pid`, as the next in the order of all.
    fn next_process(&self, pid: i32) -> ProcessId {
        ProcessId { pid, number: self.next_process.fetch_add(1, Ordering::Relaxed) }
    }

    fn next_image(&self) -> ImageId {
        ImageId(self.next_image.fetch_add(1, Ordering::Relaxed))
    }

    fn sampler(&self) -> Option<Sampler> {
        (self.sample_interval > 0).then(|| Sampler::seeded(self.sample_interval))
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Observer {
    shared: Shared,
    process: ProcessId,
    calls: Calls,
    /// Chooses which blocks are recorded; None: all.
    sampler: Option<Sampler>,
    stream: Stream,
    /// Calls that ended, and frees.
    events: u64,
    /// Allocations that are not recorded, as the sample did not pick them, since the last report of this.
    counted: Amount,
    /// Calls of their own that the trap engine has seen to begin.
    entered: u64,
    /// What was live when the process was forked.
    inherited_bytes: u64,
    /// What the process contributes to the events that the progress line shows.
    shown_events: u64,
    /// What the process contributes to the live bytes that the progress line shows.
    shown_bytes: u64,
    /// The same of the bytes that it has allocated.
    shown_allocated: u64,
    /// The heap at the newest marks of this image, the oldest first.
    marked: Vec<(MarkName, HeapView)>,
    pause: Pause,
}

impl Observer {
    /// Of the process `pid`, which tracing begins with, or which begins with an image of its own. `paused`: it begins
    /// in a pause.
    pub(super) fn new(shared: &Shared, pid: i32, preexisting: Preexisting, paused: bool) -> Self {
        let process = shared.next_process(pid);
        let mut observer = Self {
            shared: shared.clone(),
            process,
            calls: Calls::new(),
            sampler: shared.sampler(),
            stream: Stream {
                model: HeapModel::default(),
                readers: shared.trace.iter().map(|trace| trace.reader(process)).collect(),
                held: None,
                next_seq: 0,
                image: ImageId::default(),
                told_nodes: 0,
                told_modules: 0,
                changed: Vec::new(),
                follows_blocks: shared.sample_interval > 0,
                #[cfg(debug_assertions)]
                log: None,
            },
            events: 0,
            counted: Amount::default(),
            entered: 0,
            inherited_bytes: 0,
            shown_events: 0,
            shown_bytes: 0,
            shown_allocated: 0,
            marked: Vec::new(),
            pause: Pause::default(),
        };
        #[cfg(debug_assertions)]
        observer.record_if_told();
        let Shared { free_stacks, sample_interval, .. } = *shared;
        let image = shared.next_image();
        observer.stream.image = image;
        observer.tell(EventKind::Began { image, preexisting, free_stacks, sample_interval });
        observer.set_paused(paused);
        observer
    }

    /// Of a forked child, whose only thread `child` is a copy of `parent`. `among_threads`: the parent had others.
    pub(super) fn fork(&self, parent: TaskId, child: TaskId, among_threads: bool) -> Self {
        let process = self.shared.next_process(child.tid);
        let mut observer = Self {
            shared: self.shared.clone(),
            process,
            calls: self.calls.fork(parent, child),
            sampler: self.shared.sampler(),
            stream: Stream {
                model: self.model().clone(),
                readers: self.stream.readers.iter().filter_map(|reader| reader.fork(process)).collect(),
                held: None,
                next_seq: 0,
                image: self.stream.image,
                told_nodes: self.stream.told_nodes,
                told_modules: self.stream.told_modules,
                changed: Vec::new(),
                follows_blocks: self.stream.follows_blocks,
                #[cfg(debug_assertions)]
                log: None,
            },
            events: 0,
            counted: Amount::default(),
            entered: 0,
            inherited_bytes: self.model().live_bytes(),
            shown_events: 0,
            shown_bytes: 0,
            shown_allocated: 0,
            marked: Vec::new(),
            pause: self.pause.of_child(),
        };
        #[cfg(debug_assertions)]
        if let Some(log) = &self.stream.log {
            observer.record(log.of_child());
        }
        let image = self.shared.next_image();
        observer.stream.image = image;
        observer.tell(EventKind::Forked { image, parent, child, among_threads });
        observer
    }

    /// The process has become another program: its calls and its heap are gone.
    pub(super) fn exec(&mut self) {
        self.calls = Calls::new();
        self.inherited_bytes = 0;
        self.marked.clear();
        (self.stream.told_nodes, self.stream.told_modules) = (0, 0);
        let image = self.shared.next_image();
        self.stream.image = image;
        self.tell(EventKind::Exec { image });
    }

    /// Lets another reader follow the stream from here on.
    #[cfg_attr(
        not(any(test, debug_assertions)),
        expect(dead_code, reason = "the readers of release builds are yet to come")
    )]
    fn add_reader(&mut self, reader: Box<dyn EventSink>) {
        self.stream.readers.push(reader);
    }

    /// Tells the readers what the process is, or what belongs to it.
    pub(super) fn define(&mut self, definition: &Definition<'_>) {
        self.stream.define(definition);
    }

    /// The profile is of this moment: that of a leak scan.
    pub(super) fn profile_ends(&mut self) {
        for reader in &mut self.stream.readers {
            reader.profile_ends();
        }
    }

    /// Tells the readers of the modules that are new among all of the image.
    pub(super) fn define_modules(&mut self, modules: &[ModuleRecord]) {
        if self.stream.readers.is_empty() {
            return;
        }
        for module in modules.iter().skip(self.stream.told_modules) {
            self.stream.define(&Definition::Module(module.definition()));
        }
        self.stream.told_modules = modules.len();
    }

    /// Where its stream ends, if it does.
    pub(super) const fn stream_end(&self) -> StreamEnd {
        let Self { process, ref stream, .. } = *self;
        StreamEnd { process, image: stream.image, next_seq: stream.next_seq, without_inherited: false }
    }

    /// Which process of the session it is.
    pub(super) const fn process(&self) -> ProcessId {
        self.process
    }

    /// Takes what an engine saw at a stop; what it has recorded without one goes to [`Self::take_part`].
    pub(super) fn observe(&mut self, report: EngineReport<'_>) -> EngineReply {
        match report {
            EngineReport::Entry(entry, context) => self.enter(entry, context),
            EngineReport::Return(at, context) => {
                self.pick_at_return(&at, context);
                let time_ns = self.now_ns();
                let stream = &mut self.stream;
                match self.calls.leave(&at, &mut |kind| stream.tell(time_ns, kind)) {
                    ReturnMatch::Matched => {
                        self.count_event();
                        EngineReply::CallEnded
                    }
                    ReturnMatch::Spurious => EngineReply::Nothing,
                }
            }
            EngineReport::ReturnUnwatchable(task) => {
                // Its block will be freed some day: that is no error of the program.
                self.tell(EventKind::UnknownFreesExpected);
                self.with_calls(|calls, tell| calls.give_up_latest(task, tell));
                self.count_event();
                EngineReply::Nothing
            }
            EngineReport::EntryComesAgain(task) => {
                self.with_calls(|calls, tell| calls.take_back_latest(task, tell));
                EngineReply::Nothing
            }
            EngineReport::Signal(task) => {
                self.calls.signal_delivered(task);
                EngineReply::Nothing
            }
            EngineReport::End(task) => {
                self.with_calls(|calls, tell| calls.task_ended(task, tell));
                EngineReply::Nothing
            }
            EngineReport::CallsUnseen => {
                self.with_calls(Calls::forget_all);
                EngineReply::Nothing
            }
        }
    }

    fn enter(&mut self, mut entry: Entry, context: &mut dyn EntryContext) -> EngineReply {
        if self.is_paused() && !self.is_of_interest_while_paused(entry.function, &entry.args) {
            return EngineReply::Nothing;
        }
        let time_ns = self.now_ns();
        let Self { shared, calls, sampler, stream, entered, counted, .. } = self;
        let function = shared.table.get(entry.function);
        let mapping = function.and_then(|function| map_call(function, &entry.args));
        let frees = function.is_some_and(|f| matches!(f.kind, Kind::Free { .. }))
            || mapping.is_some_and(MapCall::is_told_at_entry);
        let classified = calls.classify(&entry, &shared.table, context, &mut |kind| stream.tell(time_ns, kind));
        let concerns = |call: MapCall| call.concerns(|start, bytes| stream.has_mapped(start, bytes));
        if classified == Classified::Nothing || mapping.and_then(concerns) == Some(false) {
            return EngineReply::Nothing;
        }
        *entered += 1;
        let is_picked_at_return = sampler.is_some() && function.is_some_and(sampled::is_sized_at_return);
        let recorded = match sampler {
            None => Recorded::All,
            // They are few, and may be large.
            Some(_) if mapping.is_some() => Recorded::All,
            Some(sampler) => {
                let operation = calls.operation_at(&entry, &shared.table);
                let interval = &mut entry.interval;
                let mut picks = |size| {
                    if is_picked_at_return {
                        return false;
                    }
                    let by_sampler = || if sampler.picks(size) { shared.sample_interval } else { 0 };
                    *interval = context.picks(size).unwrap_or_else(by_sampler);
                    *interval > 0
                };
                operation.map_or(Recorded::All, |operation| recorded(operation, &mut picks, &stream.model))
            }
        };
        let hides_allocation =
            !frees && !is_picked_at_return && matches!(recorded, Recorded::Failure | Recorded::OldBlock);
        if hides_allocation && let Some(size) = calls.operation_at(&entry, &shared.table).and_then(Operation::new_block)
        {
            counted.count(size);
        }
        if hides_allocation && stream.model.is_latest_recorded(entry.task) {
            stream.tell(time_ns, EventKind::NotRecorded { task: entry.task });
        }
        if recorded == Recorded::Failure && !is_picked_at_return {
            let entered =
                calls.enter(&entry, StackId::EMPTY, recorded, &shared.table, &mut |kind| stream.tell(time_ns, kind));
            if frees {
                self.count_event();
            }
            return entered.watch.map_or(EngineReply::Nothing, EngineReply::WatchReturn);
        }
        let stack = if frees && !shared.free_stacks {
            StackId::EMPTY
        } else {
            let Some(unwound) = context.stack() else { return EngineReply::Nothing };
            // What is known to be mapped has been so by the program, whoever unmaps it.
            if mapping.is_some() && !frees && context.is_within_allocator(unwound.stack) {
                return EngineReply::Nothing;
            }
            match unwound.quality {
                Quality::Complete => {}
                // It is reported if the sample picks its block.
                _ if recorded == Recorded::Failure => {}
                Quality::Guessed => stream.tell(time_ns, EventKind::Missed(Missed::UnwindRule)),
                Quality::Truncated => {
                    let cut = unwound.depth >= shared.max_depth;
                    stream.tell(time_ns, EventKind::Missed(Missed::OuterFrames { cut }));
                }
            }
            if !stream.readers.is_empty()
                && let Some(stacks) = context.stacks()
            {
                stream.define_stacks(stacks);
            }
            unwound.stack
        };
        let wrapper = if mapping.is_none() { context.wrapper(stack) } else { None };
        entry.wrapper = wrapper.map(|(start, _)| start);
        if let Some((_, family)) = wrapper {
            entry.family = family;
        }
        let time_ns = self.now_ns();
        let Self { shared, calls, stream, .. } = self;
        if context.looks_at_blocks()
            && let Some(operation) = calls.operation_at(&entry, &shared.table)
            && let Some((block, bytes)) = context.unwritten(operation)
        {
            stream.tell(time_ns, EventKind::Unwritten { block, bytes });
        }
        let entered = calls.enter(&entry, stack, recorded, &shared.table, &mut |kind| stream.tell(time_ns, kind));
        if frees {
            self.count_event();
        }
        entered.watch.map_or(EngineReply::Nothing, EngineReply::WatchReturn)
    }

    /// Where to read the block's address before a [`EngineReport::Return`] of these is reported.
    pub(super) fn out_argument(&self, task: TaskId, site: Addr, sp: u64) -> Option<Addr> {
        self.calls.out_argument(task, site, sp)
    }

    /// What the call is about that ends with this return, before its report.
    pub(super) fn operation_ending(&self, task: TaskId, site: Addr, sp: u64) -> Option<Operation> {
        self.calls.operation_ending(task, site, sp)
    }

    /// The function whose call ends with a return to `site`.
    pub(super) fn function_ending(&self, task: TaskId, site: Addr, sp: u64) -> Option<FunctionId> {
        self.calls.function_ending(task, site, sp)
    }

    /// Return addresses of calls that were dropped since the last question.
    pub(super) fn take_dropped_returns(&mut self) -> Vec<Addr> {
        self.calls.take_dropped_sites()
    }

    /// Whether any thread is in a call that returns to `site`.
    pub(super) fn awaits(&self, site: Addr) -> bool {
        self.calls.awaits(site)
    }

    /// Whether any thread is in a call whose return is awaited.
    pub(super) fn has_pending_calls(&self) -> bool {
        self.calls.any_pending()
    }

    /// The heap at this moment, to be kept.
    pub(super) fn view(&mut self, with_blocks: bool) -> HeapView {
        self.stream.model.view(with_blocks)
    }

    /// The heap as the events tell it.
    pub(super) const fn model(&self) -> &HeapModel {
        &self.stream.model
    }

    /// There are no more events: the model gives back what only these need.
    pub(super) fn end_model(&mut self) {
        self.stream.model.end();
    }

    /// For how long the stream has lasted, in nanoseconds: by the clock of its events, so that none of them comes after
    /// the end that is measured by this.
    pub(super) fn age_ns(&self) -> u64 {
        self.model().age_ns(self.now_ns())
    }

    /// How many calls were recorded.
    pub(super) const fn events(&self) -> u64 {
        self.events
    }

    /// Bytes that were live when the process was forked.
    pub(super) const fn inherited_bytes(&self) -> u64 {
        self.inherited_bytes
    }

    /// The process has ended, while others go on.
    pub(super) fn end(&mut self) {
        self.shared.progress.live(&mut self.shown_bytes, 0);
    }

    /// Tells how many allocations were made that are not recorded.
    pub(super) fn tell_counted(&mut self) {
        let Amount { objects, bytes } = std::mem::take(&mut self.counted);
        if objects > 0 {
            self.tell(EventKind::Counted { allocations: objects, bytes });
        }
    }

    fn with_calls(&mut self, act: impl FnOnce(&mut Calls, &mut dyn FnMut(EventKind))) {
        let time_ns = self.now_ns();
        let stream = &mut self.stream;
        act(&mut self.calls, &mut |kind| stream.tell(time_ns, kind));
    }

    /// Tells the readers of the process's stream.
    pub(super) fn tell(&mut self, kind: EventKind) {
        let time_ns = self.now_ns();
        self.stream.tell(time_ns, kind);
    }

    pub(super) fn now_ns(&self) -> u64 {
        let elapsed = self.shared.began.elapsed();
        let part = u64::from(elapsed.subsec_nanos()) / TICK_NS * TICK_NS;
        elapsed.as_secs().saturating_mul(1_000_000_000).saturating_add(part)
    }

    fn count_event(&mut self) {
        self.events += 1;
        self.show_progress();
    }

    /// Lets others see what has come so far.
    pub(super) fn show_progress(&mut self) {
        let own = self.model().live_bytes().saturating_sub(self.inherited_bytes);
        self.shared.progress.events(&mut self.shown_events, self.events);
        self.shared.progress.live(&mut self.shown_bytes, own);
        let allocated = self.model().allocated_bytes();
        self.shared.progress.allocated(&mut self.shown_allocated, allocated);
    }
}

/// What the call is about, if it is one of mmap or its kin that counts.
fn map_call(function: &Function, args: &[u64; 6]) -> Option<MapCall> {
    match function.kind {
        Kind::Mapping(function) => MapCall::of(function, args),
        _ => None,
    }
}

/// In builds with debug assertions the tests can have the stream recorded and read again at the end: it must give the
/// same model.
#[cfg(debug_assertions)]
impl Observer {
    /// The environment variable that says so.
    const RECORD: &str = "HEAPTRACE_TEST_REPLAY";

    fn record_if_told(&mut self) {
        if std::env::var_os(Self::RECORD).is_some() {
            self.record(crate::event::EventLog::default());
        }
    }

    fn record(&mut self, log: crate::event::EventLog) {
        self.add_reader(Box::new(log.clone()));
        self.stream.log = Some(log);
    }

    /// Whether the recorded stream, read from its beginning, gives the model that there is, byte for byte.
    pub(super) fn equals_its_replay(&self) -> bool {
        self.stream.log.as_ref().is_none_or(|log| {
            let mut again = HeapModel::default();
            log.replay(&mut again);
            again.contents() == self.model().contents()
        })
    }
}

#[cfg(test)]
mod tests;
