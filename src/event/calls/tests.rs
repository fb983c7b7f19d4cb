use super::*;
use crate::base::addr::TaskId;
use crate::base::memory::{MemoryImage, ReadMemory};

mod mappings;
mod outs;
mod rounds;
mod simulation;

const APP: ModuleId = ModuleId(0);
const LIBC: ModuleId = ModuleId(1);
const JEMALLOC: ModuleId = ModuleId(2);
const PRELOADED: ModuleId = ModuleId(3);

const SP: u64 = 0x7fff_0000_1000;
const ALT_SP: u64 = 0x5555_0000_8000;
const SITE: Addr = Addr(0x40_1234);
const TASK: TaskId = TaskId { tid: 77, serial: 1 };

/// A thread and what it tells.
struct Thread {
    calls: Calls,
    table: AllocatorTable,
    memory: MemoryImage,
    signal_frame: bool,
    questions: u32,
    events: Vec<EventKind>,
    missed_returns: u64,
}

fn keep(event: EventKind, events: &mut Vec<EventKind>, missed_returns: &mut u64) {
    match event {
        EventKind::Missed(_) => *missed_returns += 1,
        event => events.push(event),
    }
}

struct Context<'a> {
    signal_frame: bool,
    questions: &'a mut u32,
}

impl CallContext for Context<'_> {
    fn same_stack(&mut self, a: u64, b: u64) -> bool {
        a >> 32 == b >> 32
    }
    fn signal_frame_between(&mut self, _outer_sp: u64) -> bool {
        *self.questions += 1;
        self.signal_frame
    }
}

impl Thread {
    fn new() -> Self {
        Self {
            calls: Calls::new(),
            table: AllocatorTable::new(),
            memory: MemoryImage::default(),
            signal_frame: false,
            questions: 0,
            events: Vec::new(),
            missed_returns: 0,
        }
    }

    fn id(&self, symbol: &str) -> FunctionId {
        self.table.lookup(symbol).unwrap()
    }

    /// A call of the C library's function by the program.
    fn entry(&self, symbol: &str, args: &[u64], sp: u64) -> Entry {
        let mut all = [0xdead; 6];
        all[..args.len()].copy_from_slice(args);
        Entry {
            task: TASK,
            function: self.id(symbol),
            args: all,
            sp,
            return_addr: SITE,
            module: LIBC,
            caller_module: APP,
            caller_is_allocator: false,
            is_wrapper: false,
            wrapper: None,
            loops_to_entry: false,
            family: None,
            interval: 0,
        }
    }

    /// True if the entry is a call of its own.
    fn arrive(&mut self, entry: Entry) -> bool {
        let mut context = Context { signal_frame: self.signal_frame, questions: &mut self.questions };
        let (events, missed) = (&mut self.events, &mut self.missed_returns);
        let emit = &mut |event| keep(event, events, missed);
        match self.calls.classify(&entry, &self.table, &mut context, emit) {
            Classified::Nothing => false,
            Classified::Outermost => {
                let entered = self.calls.enter(&entry, StackId(9), Recorded::All, &self.table, emit);
                assert!(entered.watch.is_none_or(|site| site == entry.return_addr));
                true
            }
        }
    }

    fn call(&mut self, symbol: &str, args: &[u64]) -> bool {
        self.arrive(self.entry(symbol, args, SP))
    }

    /// A call by the allocator's own code, deeper down.
    fn inner(&mut self, symbol: &str, args: &[u64]) -> bool {
        let entry = self.entry(symbol, args, SP - 0x40);
        self.arrive(Entry { return_addr: Addr(0x7f00), caller_module: LIBC, caller_is_allocator: true, ..entry })
    }

    fn back_at(&mut self, site: Addr, sp: u64, result: u64) -> ReturnMatch {
        let out = self.calls.out_argument(TASK, site, sp).and_then(|out| self.memory.read_u64(out)).map(Addr);
        let (events, missed) = (&mut self.events, &mut self.missed_returns);
        let emit = &mut |event| keep(event, events, missed);
        self.calls.leave(&Return { task: TASK, site, sp, returned: Returned { result, out, size: None } }, emit)
    }

    fn back(&mut self, result: u64) -> ReturnMatch {
        self.back_at(SITE, SP + 8, result)
    }

    /// The events since the last time, without who and when.
    fn told(&mut self) -> Vec<String> {
        let table = &self.table;
        let tell = |event| match event {
            EventKind::Allocated { block, size, by } => format!("{} {block} {size}", table.name(by.function)),
            EventKind::AllocatedUnseen { size, by } => format!("{} unseen {size}", table.name(by.function)),
            EventKind::Freed { block, internal, given_size, by } => {
                let size = given_size.map(|size| format!(" of {size}")).unwrap_or_default();
                format!("{} {block}{size}{}", table.name(by.function), if internal { " internal" } else { "" })
            }
            EventKind::ReallocBegan { old, .. } => format!("began {old}"),
            EventKind::ReallocEnded { old, new, size, .. } => format!("ended {old} {new} {size}"),
            EventKind::ReallocAbandoned { old, .. } => format!("abandoned {old}"),
            EventKind::Failed { size, by } => format!("{} failed {size}", table.name(by.function)),
            other => format!("{other:?}"),
        };
        std::mem::take(&mut self.events).into_iter().map(tell).collect()
    }
}

#[test]
fn an_allocation_counts_at_its_return_a_free_at_its_entry() {
    let mut thread = Thread::new();
    assert!(thread.call("malloc", &[24]));
    assert!(thread.told().is_empty() && thread.calls.pending(TASK));
    assert_eq!(thread.back(0x1000), ReturnMatch::Matched);
    let [EventKind::Allocated { by, .. }] = thread.events[..] else { panic!() };
    assert_eq!((by.stack, by.task), (StackId(9), TASK));
    assert_eq!(thread.told(), ["malloc 0x1000 24"]);
    assert!(!thread.calls.pending(TASK));
    assert!(thread.call("free", &[0x1000]));
    assert_eq!(thread.told(), ["free 0x1000"]);
    assert!(!thread.calls.pending(TASK), "nothing to learn from its return");
    assert!(!thread.call("free", &[0]));
    assert_eq!(thread.back(0), ReturnMatch::Spurious);
    assert!(thread.told().is_empty());
}

#[test]
fn a_return_matches_by_site_and_depth() {
    let mut thread = Thread::new();
    thread.call("malloc", &[24]);
    for (site, sp) in [(SITE, SP), (SITE, SP + 16), (SITE, SP - 56), (Addr(1), SP + 8)] {
        assert_eq!(thread.back_at(site, sp, 0x1000), ReturnMatch::Spurious);
    }
    assert_eq!(thread.back(0x1000), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["malloc 0x1000 24"]);
}

/// A fiber goes on where it is resumed. What else its thread is in goes on, too, and another thread's own call at the
/// same place comes first.
#[test]
fn a_call_may_return_on_another_thread() {
    let elsewhere = TaskId { tid: 78, serial: 2 };
    let at =
        |sp, result| Return { task: elsewhere, site: SITE, sp, returned: Returned { result, out: None, size: None } };
    let mut thread = Thread::new();
    thread.call("malloc", &[24]);
    assert!(thread.arrive(thread.entry("malloc", &[30], ALT_SP)));
    assert_eq!(thread.calls.leave(&at(SP, 1), &mut |_| panic!()), ReturnMatch::Spurious);
    let mut told = Vec::new();
    assert_eq!(thread.calls.leave(&at(SP + 8, 0x1000), &mut |event| told.push(event)), ReturnMatch::Matched);
    let [EventKind::Allocated { block: Addr(0x1000), size: 24, by }] = told[..] else { panic!("{told:?}") };
    assert_eq!(by.task, TASK);
    assert_eq!(thread.back_at(SITE, ALT_SP + 8, 0x2000), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["malloc 0x2000 30"]);
    thread.call("malloc", &[40]);
    let own = Entry { task: elsewhere, ..thread.entry("malloc", &[50], SP) };
    assert!(thread.arrive(own));
    assert_eq!(thread.calls.leave(&at(SP + 8, 0x3000), &mut |event| told.push(event)), ReturnMatch::Matched);
    assert!(matches!(told[1..], [EventKind::Allocated { size: 50, by, .. }] if by.task == elsewhere), "{told:?}");
}

#[test]
fn sizes_multiply_and_overflow_fails() {
    let mut thread = Thread::new();
    thread.call("calloc", &[3, 8]);
    thread.back(0x1000);
    thread.call("calloc", &[u64::MAX, 2]);
    thread.back(0);
    thread.call("reallocarray", &[0, 1 << 63, 2]);
    thread.back(0);
    thread.call("reallocarray", &[0x1000, 5, 7]);
    thread.back(0x2000);
    thread.call("reallocarray", &[0x2000, 1 << 63, 2]);
    thread.back(0);
    let all = u64::MAX;
    assert_eq!(
        thread.told(),
        [
            "calloc 0x1000 24".to_owned(),
            format!("calloc failed {all}"),
            format!("reallocarray failed {all}"),
            "began 0x1000".to_owned(),
            "ended 0x1000 0x2000 35".to_owned(),
            "began 0x2000".to_owned(),
            format!("ended 0x2000 0x0 {all}"),
        ]
    );
}

#[test]
fn posix_memalign_tells_through_its_pointer() {
    let mut thread = Thread::new();
    thread.memory = MemoryImage { start: Addr(0x600), bytes: 0xabc0u64.to_le_bytes().to_vec() };
    thread.call("posix_memalign", &[0x600, 64, 10]);
    // The result is an int: garbage above it.
    thread.back(0xffff_ffff_0000_0000);
    thread.call("posix_memalign", &[0x600, 64, 10]);
    thread.back(12);
    thread.call("posix_memalign", &[0x10, 64, 10]);
    thread.back(0);
    assert_eq!(thread.told(), ["posix_memalign 0xabc0 10", "posix_memalign failed 10", "posix_memalign failed 10"]);
}

#[test]
fn t19_realloc_of_null_is_an_allocation_named_by_its_outer_function() {
    let mut thread = Thread::new();
    assert!(thread.call("realloc", &[0, 10]));
    assert!(!thread.call("malloc", &[10]), "glibc jumps to malloc: same stack pointer, same return address");
    thread.back(0x1000);
    assert_eq!(thread.told(), ["realloc 0x1000 10"]);
    assert_eq!(thread.missed_returns, 0);
}

#[test]
fn t19_a_moving_realloc_allocates_and_frees_inside() {
    let mut thread = Thread::new();
    assert!(thread.call("realloc", &[0x1000, 10]));
    assert!(!thread.inner("__libc_malloc", &[10]));
    assert!(!thread.inner("__libc_free", &[0x1000]));
    thread.back(0x2000);
    thread.call("realloc", &[0x2000, 0]);
    thread.back(0);
    thread.call("realloc", &[0x3000, 9]);
    thread.back(0);
    assert_eq!(
        thread.told(),
        [
            "began 0x1000",
            "ended 0x1000 0x2000 10",
            "began 0x2000",
            "ended 0x2000 0x0 0",
            "began 0x3000",
            "ended 0x3000 0x0 9"
        ]
    );
}

#[test]
fn t19_resizing_in_place_counts_only_if_it_worked() {
    let mut thread = Thread::new();
    thread.call("xallocx", &[0x1000, 100, 0, 0]);
    thread.back(112);
    assert_eq!(thread.told(), ["began 0x1000", "ended 0x1000 0x1000 100"]);
    thread.call("xallocx", &[0x1000, 5000, 0, 0]);
    thread.back(112);
    thread.call("mi_expand", &[0x1000, 5000]);
    thread.back(0);
    assert!(thread.told().is_empty());
}

#[test]
fn t20_memalign_may_tail_jump_to_malloc() {
    let mut thread = Thread::new();
    assert!(thread.call("memalign", &[8, 100]));
    assert!(!thread.call("malloc", &[100]));
    thread.back(0x1000);
    assert_eq!(thread.told(), ["memalign 0x1000 100"]);
}

#[test]
fn t21_delete_and_the_free_that_it_jumps_to_are_one_call() {
    let mut thread = Thread::new();
    let jemalloc = |entry| Entry { module: JEMALLOC, ..entry };
    for (first, return_addr) in [("_ZdaPv", Addr(0x40_1111)), ("_ZdlPvm", Addr(0x40_2222))] {
        let at = |symbol, thread: &Thread| Entry { return_addr, ..jemalloc(thread.entry(symbol, &[0x1000], SP)) };
        for _ in 0..2 {
            assert!(thread.arrive(at(first, &thread)));
            for other in ["_ZdlPv", "free"] {
                assert!(!thread.arrive(at(other, &thread)), "{first} -> {other}");
            }
        }
    }
    assert_eq!(thread.told().len(), 4, "the same call twice is a double free, and told twice");
    // Called rather than jumped to.
    assert!(thread.arrive(jemalloc(thread.entry("_ZdlPv", &[0x2000], SP))));
    let free = jemalloc(thread.entry("free", &[0x2000], SP - 0x20));
    assert!(!thread.arrive(Entry { caller_module: JEMALLOC, caller_is_allocator: true, ..free }));
    // The program's own free of the same pointer, or of another one, is no part of it.
    assert!(thread.arrive(jemalloc(thread.entry("free", &[0x2000], SP - 0x20))));
    assert!(thread.arrive(jemalloc(thread.entry("_ZdlPv", &[0x3000], SP))));
    assert!(thread.arrive(jemalloc(thread.entry("free", &[0x4000], SP))));
    assert_eq!(thread.told().len(), 4);
}

#[test]
fn t21_bad_alloc_and_a_retry_at_the_same_place() {
    let mut thread = Thread::new();
    assert!(thread.call("_Znwm", &[1 << 60]));
    // Thrown and caught; the same call again, with another size.
    assert!(thread.call("_Znwm", &[64]));
    thread.back(0x1000);
    assert_eq!(thread.told(), ["operator new(unsigned long) 0x1000 64"]);
    assert_eq!(thread.missed_returns, 1);
    assert!(!thread.calls.pending(TASK));
}

#[test]
fn t21_a_new_handler_frees_on_its_own() {
    let mut thread = Thread::new();
    thread.call("_Znwm", &[100]);
    let handler = thread.entry("free", &[0x5000], SP - 0x100);
    assert!(thread.arrive(Entry { return_addr: Addr(0x40_9999), ..handler }));
    thread.back(0x1000);
    assert_eq!(thread.told(), ["free 0x5000", "operator new(unsigned long) 0x1000 100"]);
}

#[test]
fn t22_a_longjmp_leaves_dead_frames() {
    let mut thread = Thread::new();
    // Out of a hook under realloc, to a caller further out.
    thread.call("realloc", &[0x1000, 10]);
    assert!(thread.arrive(thread.entry("malloc", &[5], SP - 0x100)), "the hook's own");
    assert!(thread.arrive(thread.entry("malloc", &[20], SP + 0x40)));
    assert_eq!(thread.told(), ["began 0x1000", "abandoned 0x1000"]);
    assert_eq!(thread.missed_returns, 2);
    assert_eq!(thread.back_at(SITE, SP + 0x48, 0x2000), ReturnMatch::Matched);
    // A return proves dead what is above it.
    thread.call("malloc", &[7]);
    thread.arrive(thread.entry("realloc", &[0x2000, 1], SP - 0x100));
    assert_eq!(thread.back(0x3000), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["malloc 0x2000 20", "began 0x2000", "abandoned 0x2000", "malloc 0x3000 7"]);
    assert_eq!(thread.missed_returns, 3);
}

#[test]
fn t22_a_dead_thread_abandons_its_calls() {
    let mut thread = Thread::new();
    thread.call("realloc", &[0x1000, 10]);
    let events = &mut thread.events;
    thread.calls.task_ended(TASK, &mut |event| events.push(event));
    assert_eq!(thread.told(), ["began 0x1000", "abandoned 0x1000"]);
    assert!(!thread.calls.pending(TASK));
    assert_eq!(thread.missed_returns, 0, "the program may be ending: then nothing was lost");
    thread.call("malloc", &[10]);
    assert_eq!(thread.missed_returns, 1, "it goes on");
}

/// Calls went unseen: a return to the place of one from before is another one's, and nothing was missed that is not
/// told as a gap.
#[test]
fn what_was_in_progress_when_calls_went_unseen_is_forgotten() {
    let mut thread = Thread::new();
    thread.call("realloc", &[0x1000, 10]);
    let events = &mut thread.events;
    thread.calls.forget_all(&mut |event| events.push(event));
    assert_eq!(thread.told(), ["began 0x1000", "abandoned 0x1000"]);
    assert_eq!(thread.back(0x3000), ReturnMatch::Spurious);
    thread.call("malloc", &[7]);
    assert_eq!(thread.back(0x4000), ReturnMatch::Matched);
    assert_eq!((thread.told(), thread.missed_returns), (vec!["malloc 0x4000 7".to_owned()], 0));
}

#[test]
fn t22_another_call_at_the_same_depth_proves_the_old_one_dead() {
    let mut thread = Thread::new();
    thread.call("malloc", &[10]);
    assert!(thread.arrive(Entry { return_addr: Addr(0x40_5555), ..thread.entry("calloc", &[1, 2], SP) }));
    assert_eq!(thread.missed_returns, 1);
    // An allocation does not jump to free.
    assert!(thread.arrive(Entry { return_addr: Addr(0x40_5555), ..thread.entry("free", &[0x10], SP) }));
    assert_eq!(thread.missed_returns, 2);
}

#[test]
fn t23_a_signal_handlers_malloc_is_its_own() {
    for sp in [SP - 0x400, ALT_SP] {
        let mut thread = Thread::new();
        // strdup: its malloc is called by libc, as the nested calls of a realloc are.
        let strdup = |thread: &Thread| {
            let entry = thread.entry("malloc", &[3], sp);
            Entry { return_addr: Addr(0x7f01), caller_module: LIBC, caller_is_allocator: true, ..entry }
        };
        thread.call("malloc", &[10]);
        if sp < SP && sp >> 32 == SP >> 32 {
            assert!(!thread.arrive(strdup(&thread)));
        }
        assert_eq!(thread.questions, 0, "no stack is walked before there is a signal");
        thread.calls.signal_delivered(TASK);
        thread.signal_frame = true;
        assert!(thread.arrive(strdup(&thread)), "in the handler");
        assert_eq!(thread.back_at(Addr(0x7f01), sp + 8, 0x2000), ReturnMatch::Matched);
        assert!(thread.arrive(thread.entry("free", &[0x2000], sp)));
        thread.signal_frame = false;
        assert_eq!(thread.back(0x1000), ReturnMatch::Matched);
        assert_eq!(thread.told(), ["malloc 0x2000 3", "free 0x2000", "malloc 0x1000 10"]);
        assert_eq!(thread.missed_returns, 0);
    }
}

/// The handler leaves by siglongjmp, and the dead call is found although one on another stack lies above it.
#[test]
fn t23_frames_of_another_stack_are_passed_over() {
    let mut thread = Thread::new();
    thread.call("realloc", &[0x1000, 10]);
    thread.calls.signal_delivered(TASK);
    thread.signal_frame = true;
    assert!(thread.arrive(thread.entry("malloc", &[3], ALT_SP)));
    thread.signal_frame = false;
    assert!(thread.arrive(thread.entry("malloc", &[4], SP + 0x10)));
    assert_eq!(thread.told(), ["began 0x1000", "abandoned 0x1000"]);
    assert_eq!(thread.back_at(SITE, SP + 0x18, 0x2000), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["malloc 0x2000 4"]);
}

#[test]
fn t24_frees_by_the_allocators_own_code_are_marked() {
    let mut thread = Thread::new();
    assert!(thread.inner("free", &[0x1000]));
    assert_eq!(thread.told(), ["free 0x1000 internal"]);
}

/// LD_PRELOAD: the interposer's malloc and free call the C library's, or jump to them.
#[test]
fn an_interposer_and_what_it_calls_are_one_call() {
    let mut thread = Thread::new();
    let outer = |thread: &Thread, symbol, arg| Entry { module: PRELOADED, ..thread.entry(symbol, &[arg], SP) };
    let passed_on = |thread: &Thread, symbol, arg| {
        let entry = thread.entry(symbol, &[arg], SP - 0x30);
        Entry { return_addr: Addr(0x7e00), caller_module: PRELOADED, caller_is_allocator: true, ..entry }
    };
    assert!(thread.arrive(outer(&thread, "malloc", 10)));
    assert!(!thread.arrive(passed_on(&thread, "malloc", 10)));
    // It prints: the C library allocates for that, through the interposer.
    let buffer = Entry { caller_module: LIBC, caller_is_allocator: true, ..outer(&thread, "malloc", 1024) };
    let buffer = Entry { sp: SP - 0x200, return_addr: Addr(0x7f05), ..buffer };
    assert!(thread.arrive(buffer));
    assert_eq!(thread.back_at(Addr(0x7f05), SP - 0x200 + 8, 0x9000), ReturnMatch::Matched);
    thread.back(0x1000);
    assert!(thread.arrive(outer(&thread, "free", 0x1000)));
    assert!(!thread.arrive(passed_on(&thread, "free", 0x1000)));
    assert!(thread.arrive(outer(&thread, "malloc", 20)));
    assert!(!thread.call("malloc", &[20]), "tail jump");
    thread.back(0x2000);
    assert_eq!(thread.told(), ["malloc 0x9000 1024", "malloc 0x1000 10", "free 0x1000", "malloc 0x2000 20"]);
    assert_eq!(thread.missed_returns, 0);
}

#[test]
fn what_a_declared_function_calls_is_part_of_it() {
    let mut thread = Thread::new();
    thread.table.declare(AllocatorTable::parse_alloc_fn("pool_get:size=arg2").unwrap());
    thread.table.declare(AllocatorTable::parse_free_fn("pool_put:ptr=arg2").unwrap());
    let pool = |thread: &Thread, symbol, args: &[u64]| Entry { module: APP, ..thread.entry(symbol, args, SP) };
    assert!(thread.arrive(pool(&thread, "pool_get", &[0x500, 12])));
    assert!(!thread.arrive(thread.entry("malloc", &[4096], SP - 0x50)));
    thread.back(0x1000);
    assert!(thread.arrive(pool(&thread, "pool_put", &[0x500, 0x1000])));
    assert!(thread.calls.pending(TASK));
    assert!(!thread.arrive(thread.entry("free", &[0x8000], SP - 0x50)));
    assert_eq!(thread.back(0), ReturnMatch::Matched);
    assert!(thread.arrive(thread.entry("free", &[0x9000], SP - 0x50)));
    assert_eq!(thread.told(), ["pool_get 0x1000 12", "pool_put 0x1000", "free 0x9000"]);
}

#[test]
fn a_call_whose_return_will_not_be_seen_counts_with_its_size() {
    let mut thread = Thread::new();
    let calls: [(&str, &[u64]); 7] = [
        ("malloc", &[10]),
        ("calloc", &[u64::MAX, 2]),
        ("posix_memalign", &[0x600, 64, 20]),
        ("realloc", &[0x1000, 30]),
        ("realloc", &[0x2000, 0]),
        ("realloc", &[0, 40]),
        ("xallocx", &[0x3000, 50, 0, 0]),
    ];
    for (symbol, args) in calls {
        assert!(thread.call(symbol, args));
        assert!(thread.calls.awaits(SITE));
        let emit = &mut |event| thread.events.push(event);
        thread.calls.give_up_latest(TASK, emit);
        assert!(!thread.calls.awaits(SITE) && !thread.calls.pending(TASK));
    }
    assert_eq!(
        thread.told(),
        [
            "malloc unseen 10".to_owned(),
            format!("calloc failed {}", u64::MAX),
            "posix_memalign unseen 20".to_owned(),
            "began 0x1000".to_owned(),
            "ended 0x1000 0x0 0".to_owned(),
            "realloc unseen 30".to_owned(),
            "began 0x2000".to_owned(),
            "ended 0x2000 0x0 0".to_owned(),
            "realloc unseen 40".to_owned(),
        ]
    );
    assert_eq!((thread.missed_returns, thread.calls.take_dropped_sites()), (0, vec![]));
}

#[test]
fn a_call_that_is_taken_back_has_not_begun() {
    let mut thread = Thread::new();
    for _ in 0..2 {
        assert!(thread.call("realloc", &[0x1000, 30]));
        let emit = &mut |event| thread.events.push(event);
        thread.calls.take_back_latest(TASK, emit);
        assert!(!thread.calls.pending(TASK));
    }
    assert!(thread.call("realloc", &[0x1000, 30]));
    assert_eq!(thread.back(0x1000), ReturnMatch::Matched);
    let told = thread.told();
    assert_eq!(
        told[..5],
        ["began 0x1000", "abandoned 0x1000", "began 0x1000", "abandoned 0x1000", "began 0x1000"],
        "{told:?}"
    );
    assert_eq!((told.len(), thread.missed_returns), (6, 0), "{told:?}");
}

#[test]
fn the_sites_of_dropped_calls_are_told_once() {
    let mut thread = Thread::new();
    thread.call("malloc", &[10]);
    // another call with the same stack pointer: the first one was left by a longjmp
    let again = Entry { return_addr: Addr(0x7777), ..thread.entry("malloc", &[20], SP) };
    assert!(thread.arrive(again));
    assert_eq!(thread.calls.take_dropped_sites(), [SITE]);
    assert!(thread.calls.take_dropped_sites().is_empty());
    assert!(thread.calls.awaits(Addr(0x7777)) && !thread.calls.awaits(SITE));
}

#[test]
fn depth_is_bounded_and_the_oldest_goes() {
    let mut thread = Thread::new();
    for depth in 0..100 {
        assert!(thread.arrive(thread.entry("malloc", &[depth], SP - depth * 0x100)));
    }
    assert_eq!(thread.missed_returns, 36);
    for depth in (36..100).rev() {
        assert_eq!(thread.back_at(SITE, SP - depth * 0x100 + 8, 0x1000 + depth), ReturnMatch::Matched);
    }
    assert_eq!(thread.told().len(), 64);
    assert_eq!(thread.back_at(SITE, SP - 35 * 0x100 + 8, 1), ReturnMatch::Spurious);
}

#[test]
fn a_forked_child_is_in_its_parents_calls() {
    let mut thread = Thread::new();
    thread.call("malloc", &[10]);
    let child = TaskId { tid: 78, serial: 2 };
    let mut calls = thread.calls.fork(TASK, child);
    assert!(calls.pending(child) && !calls.pending(TASK) && thread.calls.pending(TASK));
    let mut told = Vec::new();
    let at =
        Return { task: child, site: SITE, sp: SP + 8, returned: Returned { result: 0x1000, out: None, size: None } };
    assert_eq!(calls.leave(&at, &mut |event| told.push(event)), ReturnMatch::Matched);
    let [EventKind::Allocated { by, .. }] = told[..] else { panic!() };
    assert_eq!(by.task, child);
}

/// A sized operator delete that only passes the block on has a probe for its size: the free stays the one that follows.
#[test]
fn a_sized_delete_tells_the_size_of_the_free_that_it_makes() {
    let mut thread = Thread::new();
    let wrapper = |thread: &Thread, block, size, sp| Entry {
        is_wrapper: true,
        module: ModuleId(7),
        ..thread.entry("_ZdlPvm", &[block, size], sp)
    };
    let entry = wrapper(&thread, 0x10, 24, SP);
    assert!(!thread.arrive(entry), "no call of its own");
    assert_eq!(thread.told(), Vec::<String>::new());
    assert!(thread.call("free", &[0x10]), "by a jump");
    assert_eq!(thread.told(), ["free 0x10 of 24"]);
    thread.call("free", &[0x10]);
    assert_eq!(thread.told(), ["free 0x10"], "told once");

    let entry = wrapper(&thread, 0x20, 8, SP + 0x40);
    thread.arrive(entry);
    thread.call("free", &[0x20]);
    assert_eq!(thread.told(), ["free 0x20 of 8"], "by a call from a small frame");
    for (block, sp) in [(0x20, SP + 0x1000), (0x20, SP - 8), (0x28, SP)] {
        let entry = wrapper(&thread, block, 8, sp);
        thread.arrive(entry);
        thread.call("free", &[0x20]);
        assert_eq!(thread.told(), ["free 0x20"], "another free");
    }
    let entry = wrapper(&thread, 0x30, 8, SP);
    thread.arrive(entry);
    thread.call("malloc", &[1]);
    thread.call("free", &[0x30]);
    assert_eq!(thread.told(), ["free 0x30"], "not the next call");
    // jemalloc and others free in the sized operator itself
    thread.call("_ZdlPvm", &[0x40, 16]);
    assert_eq!(thread.told(), ["operator delete(void*, unsigned long) 0x40 of 16"]);
}

/// The size that an aligned operator new was asked for is that of the block, as often as it tries; a new-handler's own
/// call has its own.
#[test]
fn an_aligned_new_tells_the_size_of_the_call_that_it_makes() {
    let mut thread = Thread::new();
    let operator = Some(Addr(0x7f10_0000));
    let told = |thread: &Thread| Entry {
        is_wrapper: true,
        wrapper: operator,
        ..thread.entry("_ZnwmSt11align_val_t", &[33, 128], SP)
    };
    let entry = told(&thread);
    assert!(!thread.arrive(entry), "no call of its own");
    let inner = |thread: &Thread, sp| Entry { wrapper: operator, ..thread.entry("aligned_alloc", &[128, 128], sp) };
    for result in [0, 0x1000] {
        let entry = inner(&thread, SP - 0x40);
        assert!(thread.arrive(entry));
        thread.back_at(SITE, SP - 0x38, result);
        if result == 0 {
            let handler = thread.entry("malloc", &[7], SP - 0x80);
            assert!(thread.arrive(handler));
            thread.back_at(SITE, SP - 0x78, 0x500);
        }
    }
    let expected = ["aligned_alloc failed 33", "malloc 0x500 7", "aligned_alloc 0x1000 33"];
    assert_eq!(thread.told(), expected);
    let entry = thread.entry("aligned_alloc", &[128, 128], SP - 0x40);
    assert!(thread.arrive(entry), "not by the operator");
    thread.back_at(SITE, SP - 0x38, 0x2000);
    assert_eq!(thread.told(), ["aligned_alloc 0x2000 128"]);
}
