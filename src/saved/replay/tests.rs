use super::*;
use crate::base::addr::{Addr, ModuleId, ProcessId, StackId, TaskId};
use crate::base::figures::{Amount, Totals};
use crate::event::{Call, Definition, Event, EventSink, MarkName, Preexisting, ProcessDefinition};
use crate::heapmodel::{HeapModel, SiteStats};
use crate::session::Recording;
use crate::trace::reader::Reader;
use crate::trace::recorder::Recorder;
use crate::trace::testing::{Memory, recorder};
use crate::unwinder::StackNode;
use std::path::Path;

const SECOND: u64 = 1_000_000_000;

/// A process whose events are told, to a trace and to a model of its own.
struct Told {
    reader: Box<dyn EventSink>,
    model: HeapModel,
    seq: u64,
}

impl Told {
    fn first(recorder: &Recorder) -> Self {
        let id = ProcessId { pid: 10, number: 0 };
        let model = HeapModel::default();
        let mut told = Self { reader: recorder.reader(id), model, seq: 0 };
        told.tell(
            0,
            EventKind::Began {
                image: ImageId(0),
                preexisting: Preexisting::None,
                free_stacks: true,
                sample_interval: 0,
            },
        );
        told.reader.define(&Definition::Process(ProcessDefinition {
            parent: None,
            program: "made",
            command: &[],
            cwd: Path::new("/"),
        }));
        for id in 1..4 {
            let node =
                StackNode { parent: StackId(id - 1), word: 1 << 57 | (0x1000 + u64::from(id)), module: ModuleId::NONE };
            told.reader.define(&Definition::Stack { id: StackId(id), node });
        }
        told
    }

    fn fork(&self, time_ns: u64) -> Self {
        let id = ProcessId { pid: 11, number: 1 };
        let reader = self.reader.fork(id).unwrap();
        let mut told = Self { reader, model: self.model.clone(), seq: 0 };
        let (parent, child) = (task(1), task(9));
        told.tell(time_ns, EventKind::Forked { image: ImageId(1), parent, child, among_threads: false });
        told
    }

    fn tell(&mut self, time_ns: u64, kind: EventKind) {
        let event = Event { seq: self.seq, time_ns, kind };
        self.seq += 1;
        self.model.apply(&event);
        self.reader.take(&event);
    }

    fn alloc(&mut self, time_ns: u64, serial: u32, addr: u64, size: u64) {
        self.tell(time_ns, EventKind::Allocated { block: Addr(addr), size, by: call(serial, 2) });
    }

    fn free(&mut self, time_ns: u64, serial: u32, addr: u64) {
        let by = call(serial, 3);
        self.tell(time_ns, EventKind::Freed { block: Addr(addr), internal: false, given_size: None, by });
    }
}

fn task(serial: u32) -> TaskId {
    TaskId { tid: i32::try_from(serial).unwrap() + 100, serial }
}

fn call(serial: u32, stack: u32) -> Call {
    let function = FunctionId(u16::try_from(stack).unwrap());
    Call { function, task: task(serial), stack: StackId(stack), family: None, align: None, interval: 0 }
}

fn replayed(memory: &Memory, first: usize, wanted: &ReplayOptions) -> Result<Outcome, ReplayError> {
    let bytes = memory.since_segment(first);
    let mut reader = Reader::new(&bytes[..], false);
    let mut replay = Replay::new(wanted.clone());
    while let Some(item) = reader.next_item().unwrap() {
        replay.take(item);
    }
    replay.finish(reader.gaps(), Ending::Whole)
}

fn part(memory: &Memory, part: TracePart) -> Recording {
    replayed(memory, 0, &ReplayOptions { part, ..ReplayOptions::default() }).unwrap().traced.first
}

/// One block from the first second lives to the end, one is freed in the third; in between some come and go.
fn two_threads(recorder: &Recorder) -> Told {
    let mut told = Told::first(recorder);
    told.alloc(SECOND, 1, 0x1000, 100);
    told.alloc(SECOND, 1, 0x2000, 200);
    told.alloc(2 * SECOND, 2, 0x3000, 400);
    told.alloc(2 * SECOND, 2, 0x4000, 800);
    told.free(3 * SECOND, 1, 0x2000);
    told.free(3 * SECOND, 1, 0x4000);
    told.alloc(4 * SECOND, 1, 0x5000, 1600);
    recorder.flush();
    told
}

#[test]
fn the_whole_trace_gives_the_models_snapshot() {
    let memory = Memory::default();
    let told = two_threads(&recorder(&memory));
    let recording = part(&memory, TracePart::Whole);
    let expected = told.model.snapshot();
    assert_eq!(recording.snapshot.sites, expected.sites);
    assert_eq!((recording.snapshot.totals, recording.snapshot.timeline), (expected.totals, expected.timeline));
    let stack = recording.snapshot.sites.row(0).key.stack;
    let frames = recording.stacks.frames(stack);
    assert_eq!(frames.iter().map(|frame| frame.addr.raw().0).collect::<Vec<_>>(), [0x1001, 0x1002]);
    assert_eq!(recording.table.name(FunctionId(7)), "f7");
    assert_eq!((recording.process.pid, recording.number), (10, 0));
}

/// Two threads' blocks, the end of the profile, and one more block.
fn ended_before_the_last_block() -> Memory {
    let memory = Memory::default();
    let recorder = recorder(&memory);
    let mut told = two_threads(&recorder);
    told.reader.profile_ends();
    told.alloc(5 * SECOND, 1, 0x6000, 3200);
    recorder.flush();
    memory
}

/// The profile is of the moment of the scan, parts of the trace are not.
#[test]
fn a_leak_scan_ends_the_profile_and_not_the_trace() {
    let memory = ended_before_the_last_block();
    let live = |wanted| part(&memory, wanted).snapshot.totals.live_bytes;
    assert_eq!(live(TracePart::Whole), 2100);
    assert_eq!(
        (live(TracePart::At(Moment::Time(4 * SECOND))), live(TracePart::At(Moment::Time(5 * SECOND)))),
        (2100, 5300)
    );
    assert_eq!(live(TracePart::Window(Moment::Time(4 * SECOND), None)), 4800);
}

#[test]
fn marks_are_moments() {
    let memory = Memory::default();
    let recorder = recorder(&memory);
    let mut told = Told::first(&recorder);
    let mark = |name| MarkName::new(name).unwrap();
    // all in one tick of the clock: marks stand between events
    for (block, name) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        told.alloc(SECOND, 1, block << 12, block);
        told.tell(SECOND, EventKind::Mark(mark(name)));
    }
    told.free(SECOND, 1, 1 << 12);
    recorder.flush();
    let at = |name| Moment::Mark(mark(name));
    let totals = |wanted| part(&memory, wanted).snapshot.totals;
    assert_eq!((totals(TracePart::At(at("a"))).live_bytes, totals(TracePart::At(at("b"))).live_bytes), (1, 3));
    assert_eq!(totals(TracePart::Whole).live_bytes, 9);
    let window = totals(TracePart::Window(at("a"), Some(at("b"))));
    assert_eq!((window.live_bytes, window.allocations, window.frees), (2, 1, 0));
    let window = totals(TracePart::Window(at("b"), Some(at("a"))));
    assert_eq!((window.live_bytes, window.allocations), (3, 1), "the first behind the beginning");
    let rest = totals(TracePart::Window(at("b"), None));
    assert_eq!((rest.live_bytes, rest.frees), (7, 1));
    assert!(
        part(&memory, TracePart::At(at("a")))
            .facts
            .warnings
            .contains(&"this is the heap at the mark `a` (1.000 s) of the trace".to_owned())
    );
    let wrong = |wanted| {
        replayed(&memory, 0, &ReplayOptions { part: wanted, ..ReplayOptions::default() }).unwrap_err().to_string()
    };
    let there = "or none after the beginning of the part; there are a, b";
    assert_eq!(wrong(TracePart::At(at("c"))), format!("the trace has no mark named `c`, {there}"));
    assert_eq!(wrong(TracePart::Window(at("a"), Some(at("c")))), format!("the trace has no mark named `c`, {there}"));
}

#[test]
fn at_a_moment_the_heap_is_as_it_was_then() {
    let memory = Memory::default();
    two_threads(&recorder(&memory));
    for (at, live, allocations) in
        [(0, 0, 0), (SECOND, 300, 2), (2 * SECOND, 1500, 4), (3 * SECOND, 500, 4), (9 * SECOND, 2100, 5)]
    {
        let totals = part(&memory, TracePart::At(Moment::Time(at))).snapshot.totals;
        assert_eq!((totals.live_bytes, totals.allocations), (live, allocations), "{at}");
    }
    assert!(
        part(&memory, TracePart::At(Moment::Time(2 * SECOND)))
            .facts
            .warnings
            .iter()
            .any(|w| w == "this is the heap at 2.000 s of the trace")
    );
}

#[test]
fn a_window_has_what_was_allocated_in_it_and_all_that_was_freed_in_it() {
    let memory = Memory::default();
    two_threads(&recorder(&memory));
    let recording = part(&memory, TracePart::Window(Moment::Time(2 * SECOND), Some(Moment::Time(3 * SECOND))));
    let totals = recording.snapshot.totals;
    assert_eq!((totals.live_blocks, totals.live_bytes), (1, 400), "allocated since, and live at the end");
    assert_eq!((totals.allocations, totals.bytes_allocated), (2, 1200));
    assert_eq!((totals.frees, totals.bytes_freed), (2, 1000));
    let sum = |amount: fn(&SiteStats) -> Amount| {
        recording.snapshot.sites.iter().map(|site| amount(&site)).fold(Amount::default(), Amount::plus)
    };
    assert_eq!(sum(|site| site.allocated), Amount { objects: 2, bytes: 1200 });
    assert_eq!(sum(|site| site.live), Amount { objects: 1, bytes: 400 });
    assert_eq!(sum(|site| site.deallocated), Amount { objects: 2, bytes: 1000 }, "of blocks from before, too");
    let rest = part(&memory, TracePart::Window(Moment::Time(3 * SECOND + 1), None)).snapshot.totals;
    assert_eq!((rest.allocations, rest.live_bytes, rest.frees), (1, 1600, 0));
    let all = part(&memory, TracePart::Window(Moment::Time(0), None)).snapshot;
    assert_eq!(all.totals.live_bytes, 2100);
    let nothing =
        part(&memory, TracePart::Window(Moment::Time(3_500_000_000), Some(Moment::Time(3_600_000_000)))).snapshot;
    assert_eq!((nothing.totals, nothing.sites.len()), (Totals::default(), 0));
}

#[test]
fn one_threads_part_is_what_it_allocated_and_what_it_freed() {
    let memory = Memory::default();
    two_threads(&recorder(&memory));
    let of = |thread| replayed(&memory, 0, &ReplayOptions { thread: Some(thread), ..ReplayOptions::default() });
    let totals = of(ThreadChoice::Id(102)).unwrap().traced.first.snapshot.totals;
    assert_eq!((totals.allocations, totals.bytes_allocated, totals.live_bytes), (2, 1200, 400));
    assert_eq!((totals.frees, totals.bytes_freed), (0, 0), "the other one has freed its block");
    let totals = of(ThreadChoice::Id(101)).unwrap().traced.first.snapshot.totals;
    assert_eq!((totals.allocations, totals.frees, totals.bytes_freed), (3, 2, 1000));
    let error = of(ThreadChoice::Name("worker".to_owned())).unwrap_err().to_string();
    assert_eq!(error, "the trace has no thread called `worker`; there are ? (101), ? (102)");
}

#[test]
fn a_forked_child_begins_with_its_parents_blocks() {
    let memory = Memory::default();
    let recorder = recorder(&memory);
    let mut parent = two_threads(&recorder);
    let mut child = parent.fork(5 * SECOND);
    child.free(6 * SECOND, 9, 0x1000);
    child.alloc(6 * SECOND, 9, 0x9000, 7);
    parent.free(7 * SECOND, 1, 0x5000);
    recorder.flush();
    let wanted = ReplayOptions { profile_each: true, ..ReplayOptions::default() };
    let mut traced = replayed(&memory, 0, &wanted).unwrap().traced;
    assert_eq!(traced.first.snapshot.sites, parent.model.snapshot().sites);
    let other = traced.archive.take(traced.others.pop().unwrap());
    assert_eq!(other.snapshot.totals, child.model.snapshot().totals);
    assert_eq!(other.facts.origin.inherited_bytes, 2100);
    assert_eq!(other.facts.origin.inherited, Amount { objects: 2, bytes: 2000 });
    assert_eq!((other.number, other.process.pid), (1, 11));
    // within a window, the parent's blocks of the window are inherited only
    let wanted = ReplayOptions {
        part: TracePart::Window(Moment::Time(4 * SECOND), None),
        profile_each: true,
        ..ReplayOptions::default()
    };
    let mut traced = replayed(&memory, 0, &wanted).unwrap().traced;
    let other = traced.archive.take(traced.others.pop().unwrap());
    assert_eq!((other.snapshot.totals.allocations, other.facts.origin.inherited_bytes), (1, 1600));
    assert_eq!(other.facts.origin.inherited, Amount { objects: 1, bytes: 1600 });
}

#[test]
fn what_was_overwritten_is_told_and_frees_of_it_are_preexisting() {
    let memory = Memory { segment: Some(3000), ..Memory::default() };
    let recorder = recorder(&memory);
    let mut told = Told::first(&recorder);
    for n in 0..500 {
        told.alloc(n * SECOND, 1, 0x10_0000 + n * 64, 1 << (n % 7));
    }
    let last = memory.segments() - 1;
    for n in 0..500 {
        told.free((500 + n) * SECOND, 1, 0x10_0000 + n * 64);
    }
    recorder.flush();
    let recording = replayed(&memory, last, &ReplayOptions::default()).unwrap().traced.first;
    let totals = recording.snapshot.totals;
    assert!(totals.allocations > 0 && totals.allocations < 100, "{totals:?}");
    assert_eq!(totals.frees, totals.allocations);
    assert_eq!((totals.live_blocks, totals.preexisting_frees), (0, 500 - totals.frees));
    let gone = 501 - totals.allocations;
    let warning = format!("the first {gone} events were overwritten: ");
    assert!(recording.facts.warnings.iter().any(|text| text.starts_with(&warning)), "{:?}", recording.facts.warnings);
    assert!(recording.snapshot.errors.is_empty());
}

/// The live blocks one by one are those of the sums; a block has the same birth in each part of a trace that it lives
/// in.
#[test]
fn births_are_those_of_the_whole_trace() {
    let memory = ended_before_the_last_block();
    let of = |part, thread| {
        let wanted = ReplayOptions { part, thread, blocks: true, ..ReplayOptions::default() };
        let recording = replayed(&memory, 0, &wanted).unwrap().traced.first;
        let births = recording.course.births.unwrap();
        let live = recording.snapshot.totals.live_bytes;
        assert_eq!(births.blocks.iter().map(|born| born.bytes).sum::<u64>(), live);
        let blocks: Vec<(u64, u64)> = births.blocks.iter().map(|born| (born.birth, born.bytes)).collect();
        let moments: Vec<(u64, u64)> = births.moments.iter().map(|moment| (moment.t_ns, moment.births)).collect();
        assert!(births.blocks.iter().all(|born| recording.stacks.frames(born.stack).len() == 2));
        (blocks, moments)
    };
    const MS: u64 = 1_000_000;
    let moments = [(0, 0), (SECOND + MS, 2), (2 * SECOND + MS, 4), (4 * SECOND, 5)];
    assert_eq!(of(TracePart::Whole, None), (vec![(1, 100), (3, 400), (5, 1600)], moments.to_vec()));
    let at = |seconds| Moment::Time(seconds * SECOND);
    assert_eq!(of(TracePart::At(at(2)), None).0, [(1, 100), (2, 200), (3, 400), (4, 800)]);
    let window = of(TracePart::Window(at(2), None), None);
    assert_eq!(window.0, [(3, 400), (5, 1600), (6, 3200)]);
    assert_eq!(window.1, [(2 * SECOND, 2), (2 * SECOND + MS, 4), (4 * SECOND + MS, 5), (5 * SECOND, 6)]);
    assert_eq!(of(TracePart::Whole, Some(ThreadChoice::Id(102))).0, [(3, 400)]);
}
