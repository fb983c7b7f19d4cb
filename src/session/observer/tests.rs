use super::*;
use crate::allocators::Family;
use crate::base::addr::{FunctionId, ModuleId, ProcessId};
use crate::event::Event;
use crate::event::calls::{CallContext, Return, Returned};
use crate::session::engine::ReturnContext;
use crate::unwinder::Unwound;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const SITE: Addr = Addr(0x40_1234);
const SP: u64 = 0x7fff_0000_1000;
const TASK: TaskId = TaskId { tid: 7, serial: 1 };

const UNWOUND: Unwound = Unwound { stack: StackId(5), depth: 64, quality: Quality::Complete };

/// A reader that keeps what it is told, and its children's.
#[derive(Clone, Debug, Default)]
struct Reader {
    events: Rc<RefCell<Vec<Event>>>,
    child: Rc<RefCell<Vec<Event>>>,
}

impl EventSink for Reader {
    fn take(&mut self, event: &Event) {
        self.events.borrow_mut().push(*event);
    }

    fn fork(&self, _: ProcessId) -> Option<Box<dyn EventSink>> {
        Some(Box::new(Self { events: Rc::clone(&self.child), child: Rc::default() }))
    }
}

/// A stack of which nothing else is known.
struct Stack(Option<Unwound>);

impl CallContext for Stack {
    fn same_stack(&mut self, _: u64, _: u64) -> bool {
        true
    }
    fn signal_frame_between(&mut self, _: u64) -> bool {
        false
    }
}

impl ReturnContext for Stack {
    fn missed(&self, _: StackId) -> Option<Missed> {
        (self.0?.quality == Quality::Guessed).then_some(Missed::UnwindRule)
    }
}

impl EntryContext for Stack {
    fn stack(&mut self) -> Option<Unwound> {
        self.0
    }
    fn wrapper(&mut self, _: StackId) -> Option<(Addr, Option<Family>)> {
        None
    }
}

struct Thread {
    observer: Observer,
    reader: Reader,
}

impl Thread {
    fn new(preexisting: Preexisting, paused: bool) -> Self {
        Self::sampled(preexisting, paused, 0)
    }

    fn sampled(preexisting: Preexisting, paused: bool, sample_interval: u64) -> Self {
        let shared = Shared {
            began: Instant::now(),
            table: Arc::new(AllocatorTable::new()),
            free_stacks: true,
            sample_interval,
            max_depth: 64,
            progress: Arc::default(),
            next_image: Arc::default(),
            next_process: Arc::default(),
            trace: None,
        };
        let mut observer = Observer::new(&shared, 7, preexisting, paused);
        let reader = Reader::default();
        observer.add_reader(Box::new(reader.clone()));
        Self { observer, reader }
    }

    fn enters(&mut self, symbol: &str, args: &[u64], quality: Quality) -> EngineReply {
        let function = self.observer.shared.table.lookup(symbol).unwrap();
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let module = ModuleId(0);
        let entry = Entry {
            task: TASK,
            function,
            args: all,
            sp: SP,
            return_addr: SITE,
            module,
            caller_module: ModuleId(1),
            caller_is_allocator: false,
            is_wrapper: false,
            wrapper: None,
            loops_to_entry: false,
            family: None,
            interval: 0,
        };
        let unwound = Unwound { quality, ..UNWOUND };
        self.observer.observe(EngineReport::Entry(entry, &mut Stack(Some(unwound))))
    }

    fn returns(&mut self, result: u64) -> EngineReply {
        let returned = Returned { result, out: None, size: None };
        self.ends(returned, Quality::Complete)
    }

    fn ends(&mut self, returned: Returned, quality: Quality) -> EngineReply {
        let at = Return { task: TASK, site: SITE, sp: SP + 8, returned };
        self.observer.observe(EngineReport::Return(at, &mut Stack(Some(Unwound { quality, ..UNWOUND }))))
    }

    fn allocates(&mut self, block: u64) {
        assert_eq!(self.enters("malloc", &[10], Quality::Complete), EngineReply::WatchReturn(SITE));
        assert_eq!(self.returns(block), EngineReply::CallEnded);
    }

    fn told(&self) -> Vec<Event> {
        std::mem::take(&mut self.reader.events.borrow_mut())
    }
}

fn stamps_are_in_order(events: &[Event], first: u64) {
    assert!(events.iter().zip(first..).all(|(event, seq)| event.seq == seq), "{events:?}");
    assert!(events.is_sorted_by_key(|event| event.time_ns), "{events:?}");
}

#[test]
fn every_reader_gets_what_the_model_gets_in_order_and_stamped() {
    let mut thread = Thread::new(Preexisting::None, false);
    thread.allocates(0x1000);
    assert_eq!(thread.enters("realloc", &[0x1000, 20], Quality::Guessed), EngineReply::WatchReturn(SITE));
    thread.returns(0x2000);
    assert_eq!(thread.enters("free", &[0x2000], Quality::Truncated), EngineReply::Nothing);
    assert_eq!(thread.returns(0), EngineReply::Nothing, "nothing is learnt from a free's return");
    let events = thread.told();
    stamps_are_in_order(&events, 1);
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert!(
        matches!(
            kinds[..],
            [
                EventKind::Allocated { block: Addr(0x1000), size: 10, .. },
                EventKind::Missed(Missed::UnwindRule),
                EventKind::ReallocBegan { old: Addr(0x1000), .. },
                EventKind::ReallocEnded { new: Addr(0x2000), size: 20, .. },
                EventKind::Missed(Missed::OuterFrames { cut: true }),
                EventKind::Freed { block: Addr(0x2000), .. },
            ]
        ),
        "{kinds:?}"
    );
    assert_eq!((thread.observer.events(), thread.observer.model().totals().live_blocks), (3, 0));
}

#[test]
fn what_comes_while_existing_blocks_are_looked_for_is_told_after_them() {
    let mut thread = Thread::new(Preexisting::Unknown, false);
    thread.observer.hold_back();
    thread.enters("free", &[0x5000], Quality::Complete);
    thread.allocates(0x5000);
    thread.allocates(0x9000);
    let totals = |thread: &Thread| thread.observer.model().totals();
    assert_eq!((thread.observer.held(), thread.told().len(), totals(&thread).live_blocks), (Some(3), 0, 0));
    thread.observer.tell_held(Duration::MAX);
    assert_eq!(thread.observer.held(), Some(3), "nobody knows the blocks yet");
    // more than are told at a time
    thread
        .observer
        .take_existing((1..=1000).map(|number| (Addr(number * 0x1000 + 8), 24)).chain([(Addr(0x5000), 100)]).collect());
    let mut pieces = 0;
    while thread.observer.held().is_some() {
        thread.observer.tell_held(Duration::ZERO);
        pieces += 1;
        if pieces == 2 {
            thread.enters("free", &[0x9000], Quality::Complete);
        }
    }
    assert!(pieces > 10, "{pieces} pieces");
    let events = thread.told();
    stamps_are_in_order(&events, 1);
    let is_existing = |event: &Event| matches!(event.kind, EventKind::Existing { .. });
    assert!(events[..1001].iter().all(is_existing) && events[..1001].iter().all(|e| e.time_ns == events[0].time_ns));
    assert_eq!(events.len(), 1001 + 4);
    let told = totals(&thread);
    // the one from before is gone, and another one lives in its place
    assert_eq!((told.preexisting_frees, told.allocations, told.frees, told.live_blocks), (1, 2, 1, 1001));
    thread.allocates(0x1_0000);
    assert_eq!((thread.told().len(), totals(&thread).live_blocks), (1, 1002));
}

#[test]
fn a_call_whose_stack_cant_be_walked_counts_as_never_entered() {
    let mut thread = Thread::new(Preexisting::None, false);
    let function = FunctionId(0);
    let module = ModuleId(0);
    let entry = Entry {
        task: TASK,
        function,
        args: [10; 6],
        sp: SP,
        return_addr: SITE,
        module,
        caller_module: module,
        caller_is_allocator: false,
        is_wrapper: false,
        wrapper: None,
        loops_to_entry: false,
        family: None,
        interval: 0,
    };
    assert_eq!(thread.observer.observe(EngineReport::Entry(entry, &mut Stack(None))), EngineReply::Nothing);
    assert_eq!((thread.returns(0x1000), thread.told().len()), (EngineReply::Nothing, 0));
}

#[test]
fn in_a_pause_only_known_blocks_are_of_interest() {
    let mut thread = Thread::new(Preexisting::None, false);
    thread.allocates(0x1000);
    assert!(thread.observer.set_paused(true) && !thread.observer.set_paused(true));
    assert_eq!(thread.enters("malloc", &[10], Quality::Complete), EngineReply::Nothing);
    assert_eq!(thread.enters("realloc", &[0x9000, 10], Quality::Complete), EngineReply::Nothing);
    assert_eq!(thread.enters("free", &[0x1000], Quality::Complete), EngineReply::Nothing);
    assert!(thread.observer.set_paused(false));
    let kinds: Vec<_> = thread.told().into_iter().map(|event| event.kind).collect();
    let [EventKind::Allocated { .. }, EventKind::Paused(true), EventKind::Freed { .. }, EventKind::Paused(false)] =
        kinds[..]
    else {
        panic!("{kinds:?}")
    };
    assert_eq!(thread.observer.model().totals().live_blocks, 0);
}

#[test]
fn a_forked_childs_stream_begins_anew_and_its_ids_are_its_own() {
    let mut thread = Thread::new(Preexisting::None, false);
    thread.allocates(0x1000);
    thread.enters("malloc", &[7], Quality::Complete);
    let child = TaskId { tid: 8, serial: 2 };
    let mut forked = thread.observer.fork(TASK, child, false);
    // the child's copy of the thread returns from the malloc that the parent's is in, too
    let returned = Returned { result: 0x3000, out: None, size: None };
    assert_eq!(
        forked.observe(EngineReport::Return(
            Return { task: child, site: SITE, sp: SP + 8, returned },
            &mut Stack(Some(UNWOUND))
        )),
        EngineReply::CallEnded
    );
    forked.exec();
    let events = std::mem::take(&mut *thread.reader.child.borrow_mut());
    stamps_are_in_order(&events, 0);
    let [first, second, third] = &events[..] else { panic!("{events:?}") };
    let EventKind::Forked { image, parent: TASK, .. } = first.kind else { panic!("{first:?}") };
    let EventKind::Allocated { by, .. } = second.kind else { panic!("{second:?}") };
    let EventKind::Exec { image: next } = third.kind else { panic!("{third:?}") };
    assert_eq!((image, next, by.task), (ImageId(1), ImageId(2), child));
    assert_eq!((forked.model().totals().live_blocks, thread.observer.model().totals().live_blocks), (0, 1));
    assert_eq!(
        (thread.observer.inherited_bytes(), forked.inherited_bytes()),
        (0, 0),
        "exec has ended what it had inherited"
    );
    stamps_are_in_order(&thread.told(), 1);
}

#[test]
fn what_awaits_a_return_is_known_and_what_never_will() {
    let mut thread = Thread::new(Preexisting::None, false);
    thread.enters("malloc", &[10], Quality::Complete);
    thread.observer.observe(EngineReport::End(TASK));
    assert_eq!((thread.observer.awaits(SITE), thread.observer.take_dropped_returns()), (false, vec![SITE]));
    thread.enters("malloc", &[10], Quality::Complete);
    assert_eq!((thread.observer.awaits(SITE), thread.observer.take_dropped_returns()), (true, vec![]));
    thread.observer.observe(EngineReport::ReturnUnwatchable(TASK));
    assert!(!thread.observer.awaits(SITE));
    let last = thread.told().pop().unwrap();
    assert!(matches!(last.kind, EventKind::AllocatedUnseen { size: 10, .. }), "{last:?}");
}

/// Which blocks are recorded is set from outside: all with an interval of a byte, none with the largest.
fn picks(thread: &mut Thread, all: bool) {
    thread.observer.sampler = Some(Sampler::new(if all { 1 } else { u64::MAX }, 1));
}

#[test]
fn of_a_block_that_is_not_picked_nothing_is_told_and_no_stack_is_walked() {
    let mut thread = Thread::sampled(Preexisting::None, false, 4096);
    thread.told();
    picks(&mut thread, false);
    assert_eq!(thread.enters("malloc", &[10], Quality::Truncated), EngineReply::WatchReturn(SITE));
    assert_eq!(thread.returns(0x1000), EngineReply::CallEnded);
    assert_eq!(thread.enters("realloc", &[0x1000, 20], Quality::Guessed), EngineReply::WatchReturn(SITE));
    thread.returns(0x2000);
    assert_eq!(thread.enters("free", &[0x2000], Quality::Truncated), EngineReply::Nothing);
    assert_eq!(thread.told(), []);
    thread.enters("malloc", &[10], Quality::Complete);
    thread.returns(0);
    let failed: Vec<_> = thread.told().iter().map(|event| event.kind).collect();
    assert!(matches!(failed[..], [EventKind::Failed { size: 10, .. }]), "failures are told in any case: {failed:?}");
}

#[test]
fn a_picked_block_is_not_temporary_if_another_was_allocated_before_its_end() {
    let mut thread = Thread::sampled(Preexisting::None, false, 1);
    for (between, temporary) in [(false, 1), (true, 1), (true, 1), (false, 2)] {
        picks(&mut thread, true);
        thread.allocates(0x1000);
        if between {
            picks(&mut thread, false);
            thread.allocates(0x2000);
            thread.allocates(0x3000);
        }
        thread.enters("free", &[0x1000], Quality::Complete);
        assert_eq!(thread.observer.model().totals().temporary, temporary);
    }
    let told = thread.told().iter().filter(|event| matches!(event.kind, EventKind::NotRecorded { .. })).count();
    assert_eq!(told, 2, "once for each picked block at most");
}

#[test]
fn a_realloc_is_a_free_or_an_allocation_where_only_one_of_its_blocks_is_picked() {
    let mut thread = Thread::sampled(Preexisting::None, false, 1);
    thread.told();
    picks(&mut thread, true);
    thread.allocates(0x1000);
    picks(&mut thread, false);
    thread.enters("realloc", &[0x1000, 20], Quality::Complete);
    thread.returns(0x1000);
    assert!(!thread.observer.model().is_live(Addr(0x1000)), "it has shrunk out of the sample");
    let totals = thread.observer.model().totals();
    assert_eq!((totals.allocations, totals.frees, totals.reallocations), (1, 1, 0));
    picks(&mut thread, true);
    thread.enters("realloc", &[0x1000, 30], Quality::Complete);
    thread.returns(0x3000);
    assert!(thread.observer.model().is_live(Addr(0x3000)));
    thread.enters("realloc", &[0x3000, 40], Quality::Complete);
    thread.returns(0);
    assert!(thread.observer.model().is_live(Addr(0x3000)), "a realloc that fails leaves the block");
    picks(&mut thread, false);
    thread.enters("realloc", &[0x3000, 40], Quality::Complete);
    thread.returns(0);
    assert!(thread.observer.model().is_live(Addr(0x3000)), "also where the new block would not be picked");
    assert_eq!(thread.enters("free", &[0x3000], Quality::Complete), EngineReply::Nothing);
    let totals = thread.observer.model().totals();
    assert_eq!((totals.allocations, totals.frees, totals.live_blocks, totals.failed), (2, 2, 0, 2));
    assert_eq!(thread.observer.model().anomalies(), crate::base::figures::Anomalies::default());
    assert_eq!(totals.preexisting_frees, 0);
}

/// What a call of a function is told that hands its block out through a pointer, with these sizes and this pointer.
fn ends_with(thread: &mut Thread, result: u64, block: u64, size: u64, quality: Quality) {
    thread.ends(Returned { result, out: Some(Addr(block)), size: Some(size) }, quality);
}

#[test]
fn a_block_whose_size_the_return_tells_is_picked_there() {
    let mut thread = Thread::sampled(Preexisting::None, false, 4096);
    thread.told();
    // by its size at the return: there are 1,000 bytes until the next picked one
    let just_above = (1..).find(|seed| (500..1500).contains(&bytes_to_next(4096, *seed))).unwrap();
    thread.observer.sampler = Some(Sampler::new(4096, just_above));
    assert_eq!(thread.enters("asprintf", &[0x100], Quality::Guessed), EngineReply::WatchReturn(SITE));
    ends_with(&mut thread, 99, 0x1000, 100, Quality::Guessed);
    assert_eq!(thread.told(), [], "neither the block nor that its stack was guessed");
    thread.enters("asprintf", &[0x100], Quality::Guessed);
    ends_with(&mut thread, 1999, 0x2000, 2000, Quality::Guessed);
    let told: Vec<_> = thread.told().iter().map(|event| event.kind).collect();
    let [EventKind::Missed(Missed::UnwindRule), EventKind::Allocated { block, size, by }] = told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((block, size, by.stack, by.interval), (Addr(0x2000), 2000, StackId(5), 4096));
    // a failure is told in any case, and is no block that was counted
    picks(&mut thread, false);
    thread.enters("asprintf", &[0x100], Quality::Complete);
    ends_with(&mut thread, u64::MAX, 0x1000, 0, Quality::Complete);
    assert!(matches!(thread.told()[..], [Event { kind: EventKind::Failed { .. }, .. }]));
    thread.observer.tell_counted();
    let counted: Vec<_> = thread.told().iter().map(|event| event.kind).collect();
    assert_eq!(counted, [EventKind::Counted { allocations: 1, bytes: 100 }]);
}

/// After how many bytes a sampler of this seed picks its first block.
fn bytes_to_next(interval: u64, seed: u64) -> u64 {
    let mut sampler = Sampler::new(interval, seed);
    (1..).find(|_| sampler.picks(1)).unwrap()
}

#[test]
fn a_line_that_outgrows_its_block_is_picked_or_not_when_that_is_known() {
    let mut thread = Thread::sampled(Preexisting::None, false, 1);
    let line = |thread: &mut Thread, pick: bool, (old, old_size): (u64, u64), (new, new_size): (u64, u64)| {
        picks(thread, pick);
        thread.enters("getline", &[0x100, 0x108, 0, 0, old, old_size], Quality::Complete);
        ends_with(thread, 5, new, new_size, Quality::Complete);
        let model = thread.observer.model();
        let totals = model.totals();
        (model.is_live(Addr(old)), model.is_live(Addr(new)), totals.allocations, totals.frees)
    };
    // a new one
    assert_eq!(line(&mut thread, false, (0, 0), (0x1000, 120)), (false, false, 0, 0));
    assert_eq!(line(&mut thread, true, (0, 0), (0x2000, 120)), (false, true, 1, 0));
    // as it was, whether it is recorded or not
    assert_eq!(line(&mut thread, true, (0x1000, 120), (0x1000, 120)), (false, false, 1, 0));
    assert_eq!(line(&mut thread, false, (0x2000, 120), (0x2000, 120)), (true, true, 1, 0));
    // into the sample, within it, out of it
    assert_eq!(line(&mut thread, true, (0x1000, 120), (0x3000, 240)), (false, true, 2, 0));
    assert_eq!(line(&mut thread, true, (0x3000, 240), (0x4000, 480)), (false, true, 3, 1));
    assert_eq!(line(&mut thread, false, (0x4000, 480), (0x5000, 960)), (false, false, 3, 2));
    assert_eq!(thread.observer.model().anomalies(), crate::base::figures::Anomalies::default());
    thread.told();
    thread.observer.tell_counted();
    let counted: Vec<_> = thread.told().iter().map(|event| event.kind).collect();
    assert_eq!(counted, [EventKind::Counted { allocations: 2, bytes: 1080 }], "those that were not picked");
}
