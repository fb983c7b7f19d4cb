//! Threads of a made-up program, in any interleaving, against what the program knows that it did.

use super::*;
use proptest::prelude::*;

/// What a made-up thread does.
#[derive(Clone, Debug)]
enum Act {
    Malloc {
        size: u64,
        ok: bool,
    },
    Calloc {
        count: u64,
        size: u64,
    },
    /// Jumps to malloc.
    Memalign {
        size: u64,
    },
    PosixMemalign {
        size: u64,
        ok: bool,
    },
    Free,
    FreeNull,
    /// operator delete, which jumps to free or calls it.
    Delete {
        nested: bool,
    },
    /// Jumps to malloc.
    ReallocNull {
        size: u64,
    },
    Realloc {
        size: u64,
        how: How,
    },
    /// The C library's own code allocates: strdup.
    Strdup {
        size: u64,
    },
    /// A call (malloc or realloc) in the middle of which other code runs.
    Interrupted {
        realloc: bool,
        by: Interruption,
        inner: Vec<Act>,
        left_for_good: bool,
    },
    /// A malloc, or a realloc, that branches back to its first instruction so often, with another size each time.
    Retried {
        realloc: bool,
        rounds: u64,
    },
    /// A free that does so, and with `listed` frees so many other blocks in that way.
    FreedInRounds {
        rounds: u64,
        listed: u64,
    },
    /// Code reaches a watched return address at another depth or by a jump.
    PassBy,
}

#[derive(Clone, Copy, Debug)]
enum How {
    InPlace,
    /// With a call of malloc and free inside.
    Moved,
    Failed,
    ToNothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interruption {
    /// A malloc hook or new-handler of the program.
    Hook,
    Signal {
        on_own_stack: bool,
    },
}

/// What the session sees, what the stack looks like then, and what must come of it.
#[derive(Clone, Debug)]
struct Step {
    input: Input,
    /// Frames and signal frames from the outermost to the innermost.
    stack: Vec<Mark>,
    /// Whether it is a call of its own, or the return of one.
    matches: bool,
    events: Vec<EventKind>,
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Entry(Entry),
    Return(Return, Option<(Addr, u64)>),
    Signal(TaskId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Frame(u64),
    Signal,
}

struct Stack<'a>(&'a [Mark]);

impl CallContext for Stack<'_> {
    fn same_stack(&mut self, a: u64, b: u64) -> bool {
        a >> 24 == b >> 24
    }

    /// Walks outwards until the frame, or past its place.
    fn signal_frame_between(&mut self, outer_sp: u64) -> bool {
        for mark in self.0.iter().rev() {
            match mark {
                Mark::Signal => return true,
                Mark::Frame(sp) if self.0.is_empty() || (sp >> 24 == outer_sp >> 24 && *sp >= outer_sp) => {
                    return false;
                }
                Mark::Frame(_) => {}
            }
        }
        false
    }
}

/// Plays one thread's acts.
struct Script<'a> {
    table: &'a AllocatorTable,
    task: TaskId,
    steps: Vec<Step>,
    stack: Vec<Mark>,
    live: Vec<u64>,
    next_block: u64,
    next_site: u64,
    /// Calls left by a longjmp, and which blocks they were about to move.
    dead: u64,
    abandoned: Vec<u64>,
}

impl Script<'_> {
    fn block(&mut self) -> u64 {
        self.next_block += 16;
        self.next_block
    }

    fn take(&mut self) -> u64 {
        if self.live.is_empty() { self.block() } else { self.live.swap_remove(self.live.len() / 2) }
    }

    fn by(&self, function: FunctionId) -> Call {
        Call { function, task: self.task, stack: StackId(1), family: None, align: None, interval: 0 }
    }

    /// An entry from the program, at a return address that no other call of the script has.
    fn entry(&mut self, symbol: &str, args: &[u64], sp: u64) -> Entry {
        self.next_site += 8;
        let mut all = [0x77; 6];
        all[..args.len()].copy_from_slice(args);
        Entry {
            task: self.task,
            function: self.table.lookup(symbol).unwrap(),
            args: all,
            sp,
            return_addr: Addr(self.next_site),
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

    fn step(&mut self, input: Input, matches: bool, events: Vec<EventKind>) {
        self.steps.push(Step { input, stack: self.stack.clone(), matches, events });
    }

    fn enters(&mut self, entry: Entry, events: Vec<EventKind>) {
        self.step(Input::Entry(entry), true, events);
        self.stack.push(Mark::Frame(entry.sp));
    }

    fn part_of_call(&mut self, entry: Entry) {
        self.step(Input::Entry(entry), false, Vec::new());
    }

    /// A call of the allocator to itself, with its return, which nobody waits for.
    fn inner(&mut self, symbol: &str, args: &[u64], sp: u64) {
        let entry = self.entry(symbol, args, sp - 32);
        self.part_of_call(Entry { caller_module: entry.module, caller_is_allocator: true, ..entry });
        self.passes(entry.return_addr, entry.sp + 8);
    }

    fn returns(&mut self, entry: &Entry, result: u64, memory: Option<(Addr, u64)>, events: Vec<EventKind>) {
        self.stack.pop();
        let at = Return {
            task: self.task,
            site: entry.return_addr,
            sp: entry.sp + 8,
            returned: Returned { result, out: None, size: None },
        };
        self.step(Input::Return(at, memory), true, events);
    }

    fn passes(&mut self, site: Addr, sp: u64) {
        let at = Return { task: self.task, site, sp, returned: Returned { result: 0x10, out: None, size: None } };
        self.step(Input::Return(at, None), false, Vec::new());
    }

    fn allocates(&mut self, entry: &Entry, size: u64, ok: bool) {
        let by = self.by(entry.function);
        if ok {
            let block = self.block();
            self.live.push(block);
            self.returns(entry, block, None, vec![EventKind::Allocated { block: Addr(block), size, by }]);
        } else {
            self.returns(entry, 0, None, vec![EventKind::Failed { size, by }]);
        }
    }

    fn play(&mut self, acts: &[Act], sp: u64) {
        for act in acts {
            self.act(act, sp);
        }
    }

    fn act(&mut self, act: &Act, sp: u64) {
        match act {
            Act::Malloc { size, ok } => {
                let entry = self.entry("malloc", &[*size], sp);
                self.enters(entry, Vec::new());
                self.passes(entry.return_addr, sp - 100);
                self.allocates(&entry, *size, *ok);
            }
            Act::Calloc { count, size } => {
                let entry = self.entry("calloc", &[*count, *size], sp);
                self.enters(entry, Vec::new());
                match count.checked_mul(*size) {
                    Some(size) => self.allocates(&entry, size, true),
                    None => self.allocates(&entry, u64::MAX, false),
                }
            }
            Act::Memalign { size } => {
                let entry = self.entry("memalign", &[64, *size], sp);
                self.enters(entry, Vec::new());
                let malloc = self.table.lookup("malloc").unwrap();
                self.part_of_call(Entry { function: malloc, args: [*size + 64; 6], ..entry });
                self.allocates(&entry, *size, true);
            }
            Act::PosixMemalign { size, ok } => {
                let out = sp + 0x20;
                let entry = self.entry("posix_memalign", &[out, 64, *size], sp);
                self.enters(entry, Vec::new());
                let (block, by) = (self.block(), self.by(entry.function));
                let event = if *ok {
                    self.live.push(block);
                    EventKind::Allocated { block: Addr(block), size: *size, by }
                } else {
                    EventKind::Failed { size: *size, by }
                };
                let result = if *ok { 0xabcd << 32 } else { 12 };
                self.returns(&entry, result, Some((Addr(out), block)), vec![event]);
            }
            Act::Free => {
                let block = self.take();
                let entry = self.entry("free", &[block], sp);
                let by = self.by(entry.function);
                let event = EventKind::Freed { block: Addr(block), internal: false, given_size: None, by };
                self.step(Input::Entry(entry), true, vec![event]);
            }
            Act::FreeNull => {
                let entry = self.entry("free", &[0], sp);
                self.part_of_call(entry);
            }
            Act::Delete { nested } => {
                let block = self.take();
                let entry = Entry { module: JEMALLOC, ..self.entry("_ZdlPv", &[block], sp) };
                let by = self.by(entry.function);
                let event = EventKind::Freed { block: Addr(block), internal: false, given_size: None, by };
                self.step(Input::Entry(entry), true, vec![event]);
                let free = Entry { function: self.table.lookup("free").unwrap(), ..entry };
                let called = Entry {
                    sp: sp - 32,
                    return_addr: Addr(0x7f00),
                    caller_module: JEMALLOC,
                    caller_is_allocator: true,
                    ..free
                };
                self.part_of_call(if *nested { called } else { free });
            }
            Act::ReallocNull { size } => {
                let entry = self.entry("realloc", &[0, *size], sp);
                self.enters(entry, Vec::new());
                let malloc = self.table.lookup("malloc").unwrap();
                self.part_of_call(Entry { function: malloc, args: [*size; 6], ..entry });
                self.allocates(&entry, *size, true);
            }
            Act::Realloc { size, how } => self.realloc(*size, *how, sp),
            Act::Strdup { size } => {
                let entry = self.entry("malloc", &[*size], sp - 64);
                let entry = Entry { caller_module: LIBC, caller_is_allocator: true, ..entry };
                self.enters(entry, Vec::new());
                self.allocates(&entry, *size, true);
            }
            Act::Interrupted { realloc, by, inner, left_for_good } => {
                self.interrupted(*realloc, *by, inner, *left_for_good, sp);
            }
            Act::Retried { realloc, rounds } => {
                let old = if *realloc { self.take() } else { 0 };
                let (name, size_at) = if *realloc { ("realloc", 1) } else { ("malloc", 0) };
                let mut entry = self.entry(name, &[old], sp);
                entry.args[size_at] = 40;
                entry.loops_to_entry = true;
                let by = self.by(entry.function);
                let began = realloc.then_some(EventKind::ReallocBegan { old: Addr(old), by });
                self.enters(entry, began.into_iter().collect());
                for round in 0..*rounds {
                    let mut again = entry;
                    again.args[size_at] = 48 + round;
                    self.part_of_call(again);
                }
                if *realloc {
                    let new = self.block();
                    self.live.push(new);
                    let ended = EventKind::ReallocEnded { old: Addr(old), new: Addr(new), size: 40, by };
                    self.returns(&entry, new, None, vec![ended]);
                } else {
                    self.allocates(&entry, 40, true);
                }
            }
            Act::FreedInRounds { rounds, listed } => {
                let mut entry = self.entry("free", &[0], sp);
                entry.loops_to_entry = true;
                let by = self.by(entry.function);
                for number in 0..=*listed {
                    entry.args[0] = self.take();
                    let block = Addr(entry.args[0]);
                    let freed = EventKind::Freed { block, internal: false, given_size: None, by };
                    self.step(Input::Entry(entry), true, vec![freed]);
                    if number == 0 {
                        self.stack.push(Mark::Frame(entry.sp));
                    }
                    (0..*rounds).for_each(|_| self.part_of_call(entry));
                }
                self.returns(&entry, 0, None, Vec::new());
            }
            Act::PassBy => {
                let site = Addr(self.next_site);
                self.passes(site, sp + 0x500);
            }
        }
    }

    fn realloc(&mut self, size: u64, how: How, sp: u64) {
        let old = self.take();
        let size = if matches!(how, How::ToNothing) { 0 } else { size };
        let entry = self.entry("realloc", &[old, size], sp);
        let by = self.by(entry.function);
        self.enters(entry, vec![EventKind::ReallocBegan { old: Addr(old), by }]);
        let new = match how {
            How::InPlace => old,
            How::Moved => {
                self.inner("__libc_malloc", &[size], sp);
                self.inner("__libc_free", &[old], sp);
                self.block()
            }
            How::Failed | How::ToNothing => 0,
        };
        match how {
            How::InPlace | How::Moved => self.live.push(new),
            How::Failed => self.live.push(old),
            How::ToNothing => {}
        }
        let ended = EventKind::ReallocEnded { old: Addr(old), new: Addr(new), size, by };
        self.returns(&entry, new, None, vec![ended]);
    }

    fn interrupted(&mut self, realloc: bool, by: Interruption, inner: &[Act], left_for_good: bool, sp: u64) {
        let old = self.take();
        let entry = if realloc { self.entry("realloc", &[old, 99], sp) } else { self.entry("malloc", &[99], sp) };
        let call = self.by(entry.function);
        let began = realloc.then_some(EventKind::ReallocBegan { old: Addr(old), by: call });
        self.enters(entry, began.into_iter().collect());
        let depth = self.stack.len();
        // The code that runs in between must be the program's where only the caller tells it from the allocator's.
        let inner_sp = match by {
            Interruption::Hook => sp - 0x400,
            Interruption::Signal { on_own_stack } => {
                self.step(Input::Signal(self.task), false, Vec::new());
                self.stack.push(Mark::Signal);
                // Each alternate stack of the simulation is used once, as a kernel's would be at this depth.
                if on_own_stack { (0x6000_0000_0000 | self.next_site << 24) + 0x8000 } else { sp - 0x400 }
            }
        };
        let strdup_allowed = by != Interruption::Hook;
        let inner: Vec<Act> =
            inner.iter().filter(|act| strdup_allowed || !matches!(act, Act::Strdup { .. })).cloned().collect();
        self.play(&inner, inner_sp);
        self.stack.truncate(depth);
        if left_for_good {
            self.stack.pop();
            self.dead += 1;
            if realloc {
                self.abandoned.push(old);
            }
            self.live.push(old);
            // The program goes on further out: nothing of it may look as if the dead call had made it.
            let further_out = self.entry("malloc", &[1], sp + 8);
            self.enters(further_out, Vec::new());
            self.allocates(&further_out, 1, true);
        } else if realloc {
            let ended = EventKind::ReallocEnded { old: Addr(old), new: Addr(old), size: 99, by: call };
            self.live.push(old);
            self.returns(&entry, old, None, vec![ended]);
        } else {
            self.live.push(old);
            self.allocates(&entry, 99, true);
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let size = 0..5000u64;
    let how = prop_oneof![Just(How::InPlace), Just(How::Moved), Just(How::Failed), Just(How::ToNothing)];
    let leaf = prop_oneof![
        3 => (size.clone(), prop::bool::weighted(0.9)).prop_map(|(size, ok)| Act::Malloc { size, ok }),
        1 => (prop_oneof![0..9u64, Just(u64::MAX)], size.clone()).prop_map(|(count, size)| Act::Calloc { count, size }),
        1 => size.clone().prop_map(|size| Act::Memalign { size }),
        1 => (size.clone(), any::<bool>()).prop_map(|(size, ok)| Act::PosixMemalign { size, ok }),
        3 => Just(Act::Free),
        1 => Just(Act::FreeNull),
        1 => any::<bool>().prop_map(|nested| Act::Delete { nested }),
        1 => size.clone().prop_map(|size| Act::ReallocNull { size }),
        2 => (1..5000u64, how).prop_map(|(size, how)| Act::Realloc { size, how }),
        1 => size.prop_map(|size| Act::Strdup { size }),
        1 => (any::<bool>(), 0..4u64).prop_map(|(realloc, rounds)| Act::Retried { realloc, rounds }),
        1 => (0..3u64, 0..3u64).prop_map(|(rounds, listed)| Act::FreedInRounds { rounds, listed }),
        1 => Just(Act::PassBy),
    ];
    let act = leaf.prop_recursive(3, 20, 5, |inner| {
        let by = prop_oneof![
            Just(Interruption::Hook),
            any::<bool>().prop_map(|on_own_stack| Interruption::Signal { on_own_stack }),
        ];
        (any::<bool>(), by, prop::collection::vec(inner, 0..5), prop::bool::weighted(0.3))
            .prop_map(|(realloc, by, inner, left_for_good)| Act::Interrupted { realloc, by, inner, left_for_good })
    });
    prop::collection::vec(act, 1..25)
}

fn play(
    calls: &mut Calls,
    table: &AllocatorTable,
    step: &Step,
    missed_returns: &mut u64,
) -> Result<Vec<u64>, TestCaseError> {
    let (mut events, mut abandoned) = (Vec::new(), Vec::new());
    let emit = &mut |event| match event {
        EventKind::ReallocAbandoned { old, .. } => abandoned.push(old.0),
        EventKind::Missed(_) => *missed_returns += 1,
        event => events.push(event),
    };
    match &step.input {
        Input::Entry(entry) => {
            let classified = calls.classify(entry, table, &mut Stack(&step.stack), emit);
            prop_assert_eq!(classified == Classified::Outermost, step.matches, "{:?}", step);
            if classified == Classified::Outermost {
                calls.enter(entry, StackId(1), Recorded::All, table, emit);
            }
        }
        Input::Return(at, memory) => {
            let out = calls.out_argument(at.task, at.site, at.sp).map(|out| memory.filter(|(start, _)| *start == out));
            let out = out.flatten().map(|(_, word)| Addr(word));
            let left = calls.leave(&Return { returned: Returned { out, ..at.returned }, ..*at }, emit);
            prop_assert_eq!(left == ReturnMatch::Matched, step.matches, "{:?}", step);
        }
        Input::Signal(task) => calls.signal_delivered(*task),
    }
    prop_assert_eq!(&events, &step.events, "{:?}", step);
    Ok(abandoned)
}

fn task(serial: u32) -> TaskId {
    TaskId { tid: 500 + serial as i32, serial }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_tells_what_each_thread_did(
        threads in prop::collection::vec(acts(), 1..4),
        order in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let table = AllocatorTable::new();
        let mut scripts: Vec<_> = (1..).zip(&threads).map(|(serial, acts)| {
            let mut script = Script {
                table: &table,
                task: task(serial),
                steps: Vec::new(),
                stack: Vec::new(),
                live: Vec::new(),
                next_block: 0x10_0000 * u64::from(serial),
                next_site: 0x40_0000,
                dead: 0,
                abandoned: Vec::new(),
            };
            script.play(acts, 0x7000_0080_0000 | u64::from(serial) << 32);
            script
        }).collect();
        let mut calls = Calls::new();
        let mut at = vec![0; scripts.len()];
        let mut abandoned = vec![Vec::new(); scripts.len()];
        let mut missed_returns = 0;
        for n in 0.. {
            let open: Vec<usize> = (0..scripts.len()).filter(|t| at[*t] < scripts[*t].steps.len()).collect();
            if open.is_empty() {
                break;
            }
            let thread = *order[n % order.len()].get(&open);
            abandoned[thread].extend(play(&mut calls, &table, &scripts[thread].steps[at[thread]], &mut missed_returns)?);
            at[thread] += 1;
        }
        for (script, abandoned) in scripts.iter_mut().zip(&mut abandoned) {
            calls.task_ended(script.task, &mut |event| match event {
                EventKind::ReallocAbandoned { old, .. } => abandoned.push(old.0),
                event => panic!("{event:?}"),
            });
            abandoned.sort_unstable();
            script.abandoned.sort_unstable();
            prop_assert_eq!(&*abandoned, &script.abandoned);
        }
        prop_assert_eq!(missed_returns + calls.ended, scripts.iter().map(|script| script.dead).sum::<u64>());
    }
}
