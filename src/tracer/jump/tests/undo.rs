//! The routine, stopped at each of its instructions: undo sets the thread to where it would be without us, and the call
//! is recorded once; and a signal handler that makes calls of its own there does no harm.

use crate::arch::{Regs, reg};
use crate::base::addr::{Addr, ModuleId};
use crate::jump::frames;
use crate::jump::layout::*;
use crate::jump::nodes::CallerRule;
use crate::jump::sampling::{note_dead, note_live};
use crate::jump::shared::Shared;
use crate::jump::stub::{ENTERED, LEFT, STUB_SIZE, STUBS};
use crate::jump::tails::Tails;
use crate::jump::undo::Undone;
use crate::tracer::jump::testing::*;
use scenarios::all_scenarios;

mod scenarios;

/// The id of the stack that consists of the landing alone.
const KNOWN: u32 = 1;
/// A stack that has no node, and is found by its list.
const LISTED_BEFORE: u32 = 600_000;
/// How far from the end of the stack a call begins, in bytes.
const DEPTH: u64 = 0x200;

/// A record without its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Told {
    what: u64,
    args: [u64; 3],
    caller: u64,
    result: Option<u64>,
    out: Option<u64>,
}

impl Told {
    /// Size and alignment of which an operator before the free was given these, as far as it was.
    fn passed(&self) -> Option<(Option<u64>, u64)> {
        self.result.filter(|_| !is_ended(self.what)).map(|align| (self.out, align))
    }
}

fn what(kind: Kind, function: u16, stack: u64) -> u64 {
    stack | u64::from(function) << 32 | (kind as u64) << 48
}

fn is_ended(what: u64) -> bool {
    (what >> 48) as u8 & KIND_MASK == Kind::Ended as u8
}

struct Scenario {
    name: &'static str,
    function: u16,
    args: [u64; 3],
    prepare: fn(&Lab, &mut Regs),
    /// What is recorded, in this order: the second words.
    records: Vec<u64>,
    asks: u64,
    dropped: u64,
}

struct Bench {
    puppet: Puppet,
    /// What the tracer has told of threads that returned from calls of others.
    foreign: std::cell::Cell<u32>,
    /// How often the thread has asked.
    asked: std::cell::Cell<u64>,
}

impl Bench {
    fn new() -> Self {
        let puppet = Puppet::start();
        Self { puppet, foreign: std::cell::Cell::new(0), asked: std::cell::Cell::new(0) }
    }

    fn begin(&self, scenario: &Scenario) -> Regs {
        let lab = &self.puppet.lab;
        lab.reset();
        let sp = lab.stack().end - DEPTH;
        lab.write(sp - 0x800 - lab.base(), &[0x5a; 0x800 + DEPTH as usize]);
        lab.poke(sp, lab.landing().0);
        let mut regs = self.puppet.call(scenario.function, sp, scenario.args);
        (scenario.prepare)(lab, &mut regs);
        self.puppet.set_regs(&regs);
        regs
    }

    /// To the landing. The tracer lets the thread go on at each int3, as if it were a nop; where its ring is full, it
    /// drains.
    fn finish(&self) -> Regs {
        for _ in 0..50 {
            let met = self.puppet.run();
            if met == Met::Landing {
                return self.puppet.regs();
            }
            self.answer(met);
        }
        panic!("it does not come to an end");
    }

    fn answer(&self, met: Met) {
        let lab = &self.puppet.lab;
        let code = &lab.code;
        if met == Met::Routine(code.foreign) {
            self.foreign.set(self.foreign.get() + 1);
        }
        if met == Met::Routine(code.ask) {
            self.asked.set(self.asked.get() + 1);
        }
        if let Met::Routine(at) = met
            && [code.full_enter, code.full_leave].contains(&at)
        {
            for cell in [0, 1] {
                lab.set_word(cell_at(cell) + CELL_TAIL, lab.word(cell_at(cell) + CELL_HEAD));
            }
        }
    }

    fn told(&self, heads: [u64; 2]) -> Vec<Told> {
        let lab = &self.puppet.lab;
        let mut told = Vec::new();
        for (cell, head) in (0..).zip(heads) {
            for number in head..lab.word(cell_at(cell) + CELL_HEAD) {
                let at = record_at(cell, lab.word(cell_at(cell) + CELL_RING), number);
                let what = without_number(lab, cell, lab.word(at + RECORD_WHAT));
                let is_odd = lab.word(at + RECORD_KEY) & 1 == 1;
                assert_eq!(is_odd, !is_ended(what), "{what:#x}");
                let is_meant = |flag| is_ended(what) || what & flag != 0;
                let word = |offset, flag| is_meant(flag).then(|| lab.word(at + offset));
                told.push(Told {
                    what,
                    args: [0, 8, 16].map(|arg| lab.word(at + RECORD_ARGS + arg)),
                    caller: lab.word(at + RECORD_CALLER),
                    result: word(RECORD_RESULT, FLAG_TOLD),
                    out: word(RECORD_OUT, FLAG_SIZED).filter(|_| what & (FLAG_OUT | FLAG_SIZED) != 0),
                });
            }
        }
        told
    }

    fn left_over(&self) -> (u64, u32, u32) {
        let lab = &self.puppet.lab;
        (lab.word(COPY_BITS), lab.half(cell_at(0) + CELL_DEPTH), lab.half(cell_at(1) + CELL_DEPTH))
    }

    /// Calls that were counted and not recorded, and their bytes; what is left, if nothing was picked; and which blocks
    /// are picked ones.
    fn counts(&self) -> ([u64; 3], Vec<u64>) {
        let lab = &self.puppet.lab;
        let [calls, bytes, left] = [CELL_CALLS, CELL_BYTES, CELL_LEFT].map(|at| lab.word(cell_at(0) + at));
        ([calls, bytes, if lab.half(cell_at(0) + CELL_DRAW) == 0 && calls > 0 { left } else { 0 }], picked_blocks(lab))
    }

    fn heads(&self) -> [u64; 2] {
        [0, 1].map(|cell| self.puppet.lab.word(cell_at(cell) + CELL_HEAD))
    }

    /// How many instructions of the routine and the stubs were looked at.
    fn check(&self, scenario: &Scenario) -> usize {
        let lab = &self.puppet.lab;
        let name = scenario.name;
        // undisturbed
        self.begin(scenario);
        self.foreign.set(0);
        self.asked.set(0);
        let is_off = lab.peek(lab.base() + STATE_ACTIVE) == 0;
        let heads = self.heads();
        let end = self.finish();
        let foreign = self.foreign.replace(0);
        let told = self.told(heads);
        let records: Vec<u64> = told.iter().map(|told| told.what).collect();
        assert_eq!(records, scenario.records, "{name}");
        let count = |at: u64| lab.word(cell_at(0) + at) + lab.word(cell_at(1) + at);
        assert_eq!((self.asked.get(), count(CELL_DROPPED)), (scenario.asks, scenario.dropped), "{name}");
        // who finds no cell counts that nowhere, nor is one looked for where all ask
        let key = CELL_INDEX + 16 * cell_slot(lab.fs_base());
        let has_cell = lab.word(key) != 0 && lab.word(key + 8) < CELLS;
        let is_counted = has_cell && lab.peek(lab.base() + STATE_ACTIVE) == Active::Record as u64;
        assert_eq!(count(CELL_ASKS), if is_counted { scenario.asks } else { 0 }, "{name}");
        let (left_over, counts) = (self.left_over(), self.counts());
        let seq = lab.word(SEQ);
        // instruction by instruction
        let mut trace = vec![self.begin(scenario)];
        let mut met = Vec::new();
        let mut at_entry = None;
        let mut seen = std::collections::HashMap::<u64, u32>::new();
        loop {
            let regs = self.puppet.regs();
            if regs.rip == lab.landing().0 {
                break;
            }
            if lab.stubs.iter().any(|stub| stub.entry.0 == regs.rip) {
                at_entry = Some(regs);
            }
            let times = seen.entry(regs.rip).or_default();
            *times += 1;
            if lab.place(None).contains(Addr(regs.rip)) && *times <= 4 {
                met.push((trace.len() - 1, at_entry, lab.snapshot(), self.foreign.get()));
            }
            self.puppet.step();
            trace.push(self.puppet.regs());
            if let Some(Met::Routine(at)) = self.puppet.met()
                && trace[trace.len() - 2].rip == lab.base() + at
            {
                self.answer(Met::Routine(at));
            }
        }
        assert_eq!(self.puppet.regs().gpr, end.gpr, "{name}");
        let outside = |regs: &&Regs| !lab.place(None).contains(Addr(regs.rip));
        for (number, at_entry, snapshot, foreign_before) in &met {
            lab.restore(snapshot);
            self.foreign.set(*foreign_before);
            let regs = &trace[*number];
            let offset = regs.rip - lab.base();
            let context = format!("{name}, at {offset:#x}");
            let cell = if lab.word(CELL_INDEX + 16 * cell_slot(lab.fs_base())) == 0 {
                None
            } else {
                Some(lab.half(CELL_INDEX + 16 * cell_slot(lab.fs_base()) + 8) as u16)
            };
            let undone = lab.place(cell).undo(regs, lab, &mut StackOf(lab));
            let mut expected = told.clone();
            let (mut extra, mut end_at_stop) = (None, None);
            match undone.unwrap_or_else(|| panic!("{context}: not undone")) {
                Undone::NotBegun(_, undone) => {
                    let entry = at_entry.unwrap_or_else(|| panic!("{context}: has begun"));
                    assert_eq!((undone.gpr, undone.rip), (entry.gpr, entry.rip), "{context}");
                    self.puppet.set_regs(&undone);
                }
                Undone::Counted(stub, mut undone) => {
                    assert!(!self.told(heads).is_empty(), "{context}: nothing was recorded");
                    let entry = at_entry.unwrap_or_else(|| panic!("{context}: has begun"));
                    assert_eq!((undone.gpr, undone.rip), (entry.gpr, entry.rip), "{context}");
                    if stub.way == StubKind::Realloc {
                        let frame = frames::at_slot(lab, cell, Addr(undone.sp())).unwrap();
                        assert_eq!((frame.caller.0, frame.args), (lab.peek(undone.sp()), scenario.args), "{context}");
                        assert_ne!(frame.what & FLAG_BEGAN, 0, "{context}");
                        frames::forget(lab, cell, &frame);
                        end_at_stop = Some(frame);
                        expected.retain(|told| !is_ended(told.what));
                    }
                    undone.rip = stub.original.0;
                    self.puppet.set_regs(&undone);
                }
                Undone::Left(undone, frame) => {
                    let behind = trace[*number..].iter().find(outside).unwrap();
                    assert_eq!((undone.gpr, undone.rip), (behind.gpr, behind.rip), "{context}");
                    extra = frame.map(|(frame, result)| Told {
                        what: without_number(lab, frame.cell.into(), frame.what),
                        args: frame.args,
                        caller: frame.caller.0,
                        result: Some(result),
                        out: (frame.what & FLAG_OUT != 0)
                            .then(|| if result as u32 == 0 { lab.peek(frame.args[0]) } else { 0 }),
                    });
                    self.puppet.set_regs(&undone);
                    if let Some(end) = extra.filter(|_| lab.half(SAMPLED) != 0) {
                        tell_table(lab, &end);
                    }
                }
            }
            let finished = self.finish();
            assert_eq!(finished.gpr, end.gpr, "{context}");
            if let Some(frame) = end_at_stop.filter(|_| lab.half(SAMPLED) != 0) {
                let result = Some(finished.result());
                tell_table(lab, &Told { what: frame.what, args: frame.args, caller: 0, result, out: None });
            }
            let mut now = self.told(heads);
            if foreign == 1 {
                assert_eq!(u32::from(extra.is_some()) + self.foreign.get(), foreign, "{context}");
            } else if !is_off {
                now.extend(extra);
            }
            now.sort_by_key(|told| (told.what >> 48 & 0xff, told.what));
            expected.sort_by_key(|told| (told.what >> 48 & 0xff, told.what));
            assert_eq!(now, expected, "{context}");
            assert_eq!((self.left_over(), self.counts()), (left_over, counts.clone()), "{context}");
            assert_eq!(lab.word(SEQ), seq, "{context}");

            // a handler runs there, and nobody is told of it
            lab.restore(snapshot);
            let mut in_handler = *regs;
            let calls = [
                (MALLOC, [1, 2, 3]),
                (REALLOC, [9, 9, 9]),
                (FREE, [5, 5, 5]),
                (SAMPLED_MALLOC, [1, 2, 3]),
                (SAMPLED_FREE, [5, 5, 5]),
            ];
            for (function, args) in calls {
                in_handler.gpr[reg::RSP] = (regs.sp() - 0x300) & !15;
                lab.poke(in_handler.sp(), lab.handler_landing().0);
                in_handler.gpr[reg::RDI] = args[0];
                in_handler.rip = lab.entry(function).0;
                self.puppet.set_regs(&in_handler);
                loop {
                    match self.puppet.run() {
                        Met::HandlerLanding => break,
                        met => self.answer(met),
                    }
                }
            }
            self.puppet.set_regs(regs);
            assert_eq!(self.finish().gpr, end.gpr, "{context}, with a handler");
            // what the handler's walks have left is no part of the stack that the walk was about
            let is_walking = (lab.code.remove_end..lab.code.claim).contains(&offset);
            if name.starts_with("latest walk") && is_walking {
                let last = self.told(heads).last().map(|told| told.what);
                assert_eq!(last, told.last().map(|told| told.what), "{context}, with a handler");
            }
        }
        met.len()
    }
}

fn frame(lab: &Lab, cell: u64, index: u64, slot: u64, caller: u64, what: u64) {
    let at = cell_at(cell) + CELL_FRAMES + index * FRAME_SIZE;
    lab.set_word(at + FRAME_SLOT, slot);
    lab.set_word(at + FRAME_CALLER, caller);
    lab.set_word(at + FRAME_WHAT, what);
    for (arg, value) in [(0, 0x61), (8, 0x62), (16, 0x63)] {
        lab.set_word(at + FRAME_ARGS + arg, value);
    }
    lab.set_half(cell_at(cell) + CELL_DEPTH, index as u32 + 1);
}

/// A call of `inner` that `outer` makes is judged so.
fn nested(lab: &Lab, outer: u16, inner: u16, verdict: Nested) {
    let at = lab.inner_return(outer);
    let mut slot = nested_slot(at);
    // another call of the same hash is there
    lab.set_word(NESTED + 16 * slot, at + 1);
    slot = (slot + 1) % NESTED_KEYS;
    lab.set_word(NESTED + 16 * slot, at);
    lab.set_half(NESTED + 16 * slot + 8, u32::from(outer) | u32::from(inner) << 16);
    lab.set_half(NESTED + 16 * slot + 12, verdict as u32);
}

/// The word of a record or frame, without the number of a list, if it has one: which list it is does not matter, if it
/// says the same.
fn without_number(lab: &Lab, cell: u64, what: u64) -> u64 {
    if what & FLAG_LISTED == 0 {
        return what;
    }
    let list = lists_at(cell) + what % LIST_WORDS * 8;
    assert_eq!([lab.word(list), lab.word(list + 8)], [1 << 32, lab.landing().0], "{what:#x}");
    what & !u64::from(u32::MAX)
}

/// These rules are known, and no others.
fn publish_rules(lab: &Lab, known: &[(u64, CallerRule)]) {
    let mut rules = lab.forget_rules();
    known.iter().for_each(|(ra, onward)| rules.publish(lab, *ra, ModuleId(1), *onward));
}

/// No stack can be found, but the rules of the frames are known: also that of the outer function, above which our own
/// return address lies.
fn within_listed(lab: &Lab, regs: &mut Regs) {
    unknown_caller(lab, regs);
    nested(lab, OUTER, MALLOC, Nested::Own);
    let up = CallerRule::Caller { form: Form::Rsp, offset: 8, rbp: RBP_SAME };
    publish_rules(lab, &[(lab.landing().0, CallerRule::End(0)), (lab.inner_return(OUTER), up)]);
}

/// No stack can be found.
fn unknown_caller(lab: &Lab, _: &mut Regs) {
    lab.set_word(INDEX_WORD, 0);
    lab.set_half(NODE_AREA + NODE_HINT, 0);
    lab.set_word(NODE_AREA + NODE_SIZE + NODE_RA, 0);
}

/// Of those that the scenarios have. Their pages' counters must say the same.
fn picked_blocks(lab: &Lab) -> Vec<u64> {
    let is_there = |block: &u64| (0..8).any(|word| lab.word(live_bucket(*block) + 8 * word) == *block);
    let pages = lab.read_bytes(SHARED + PAGE_AREA, 8);
    let there: Vec<u64> =
        [0x4000, 0x4001, 0x4002, 0x4007, 0x5000, 0x6000, 0x7777].into_iter().filter(is_there).collect();
    let counted: Vec<usize> =
        (0..8).map(|page| there.iter().filter(|block| **block >> PAGE_BITS == page).count()).collect();
    // one too many where a thread was interrupted while it entered a block
    assert!(pages.iter().zip(counted).all(|(page, count)| usize::from(*page) >= count), "{pages:?} {there:x?}");
    there
}

/// As the tracer does for an end that it tells.
fn tell_table(lab: &Lab, end: &Told) {
    let block = if end.what & FLAG_OUT != 0 { end.out } else { end.result };
    if end.what & FLAG_BEGAN != 0 {
        note_dead(lab, Addr(end.args[0]));
    }
    if let Some(block) = block.filter(|block| *block != 0 && end.what >> PICKED_SHIFT != 0) {
        note_live(lab, Addr(block));
    }
}

#[test]
fn each_instruction_can_be_undone_and_interrupted() {
    let bench = Bench::new();
    let mut looked_at = 0;
    let mut bad = 0;
    for scenario in all_scenarios() {
        let lab = &bench.puppet.lab;
        let mut nodes = lab.forget_nodes(INDEX_LEAST);
        assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, CallerRule::End(KNOWN)));
        assert!(nodes.publish(lab, 2, 0, lab.inner_return(OUTER), CallerRule::End(2)));
        assert!(nodes.publish(lab, 3, 0, lab.inner_return(OUTER_OF_FREE), CallerRule::End(3)));
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.check(&scenario)));
        match checked {
            Ok(n) => looked_at += n,
            Err(_) => {
                eprintln!("^ {}", scenario.name);
                bad += 1;
            }
        }
    }
    assert_eq!(bad, 0);
    assert!(looked_at > 3000, "{looked_at}");
}

/// One call in 256 is timed, or none.
#[test]
fn calls_are_timed_now_and_then() {
    let bench = Bench::new();
    let lab = &bench.puppet.lab;
    let mut nodes = lab.forget_nodes(INDEX_LEAST);
    assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, CallerRule::End(KNOWN)));
    let malloc = all_scenarios().into_iter().find(|scenario| scenario.name == "malloc").unwrap();
    for (timed, calls, expected) in
        [(TIMED_MARK, 2048, 6..=10), (0, 1, 1..=1), (TIMED_MARK, 1, 0..=0), (TIMED_NEVER, 512, 0..=0)]
    {
        let mut regs = bench.begin(&malloc);
        lab.set_half(TIMED, timed);
        for _ in 0..calls {
            lab.poke(regs.sp(), lab.landing().0);
            bench.puppet.set_regs(&regs);
            bench.finish();
            regs = bench.puppet.call(malloc.function, regs.sp(), malloc.args);
        }
        let (ticks, count) = (lab.word(cell_at(0) + CELL_TSC), lab.word(cell_at(0) + CELL_TIMED));
        assert_eq!(lab.word(cell_at(0) + CELL_HEAD), calls);
        assert!(expected.contains(&count), "{count} of {calls} with {timed}");
        assert!(ticks >= count && ticks <= count * TIMED_MOST, "{ticks} ticks for {count}");
    }
}

/// A free has size and alignment of the operators before it that have passed its block on, and of no others.
#[test]
fn a_free_has_what_operators_have_passed_on() {
    let bench = Bench::new();
    let lab = &bench.puppet.lab;
    let mut nodes = lab.forget_nodes(INDEX_LEAST);
    assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, CallerRule::End(KNOWN)));
    let scenarios = all_scenarios();
    let run = |name: &str, before: &[(u64, u64)]| {
        bench.begin(scenarios.iter().find(|scenario| scenario.name == name).unwrap());
        before.iter().for_each(|(at, value)| lab.set_word(cell_at(0) + at, *value));
        let heads = bench.heads();
        bench.finish();
        let told = bench.told(heads);
        told.last().and_then(Told::passed)
    };
    assert_eq!(run("free", &[]), None);
    assert_eq!(run("sized delete", &[]), Some((Some(24), 0)));
    assert_eq!(run("aligned delete", &[]), Some((None, 32)));
    assert_eq!(run("sized and aligned delete", &[]), Some((Some(24), 32)));
    assert_eq!(run("aligned delete on to a realloc", &[]), None);
    // an operator was called before, whose call has not come to a free yet
    let sized = [(CELL_TOLD_SIZE, 40), (CELL_TOLD_ALIGN, 64), (CELL_TOLD_FLAGS, FLAG_TOLD | FLAG_SIZED)];
    let block = |block, head| [&sized[..], &[(CELL_TOLD, block), (CELL_TOLD_HEAD, head)]].concat();
    assert_eq!(run("free", &block(16, 0)), Some((Some(40), 64)));
    assert_eq!(run("aligned delete", &block(16, 0)), Some((Some(40), 32)));
    assert_eq!(run("sized delete", &block(16, 0)), Some((Some(24), 0)));
    for other in [block(48, 0), block(16, 7)] {
        assert_eq!(run("free", &other), None, "of another block, or before another record");
        assert_eq!(run("aligned delete", &other), Some((None, 32)));
    }
    assert_eq!(run("free of nothing", &block(0, 0)), None);
}

/// What a call changes in its cell and in the pages.
#[test]
fn picked_calls_draw_and_note_their_blocks() {
    let bench = Bench::new();
    let lab = &bench.puppet.lab;
    let mut nodes = lab.forget_nodes(INDEX_LEAST);
    assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, CallerRule::End(KNOWN)));
    let scenarios = all_scenarios();
    let run = |name: &str| {
        bench.begin(scenarios.iter().find(|scenario| scenario.name == name).unwrap());
        bench.finish();
        let cell = [CELL_CALLS, CELL_BYTES, CELL_LEFT, CELL_SINCE].map(|at| lab.word(cell_at(0) + at));
        let blocks = picked_blocks(lab);
        let pages = lab.read_bytes(SHARED + PAGE_AREA, 8);
        assert_eq!(pages.into_iter().map(usize::from).sum::<usize>(), blocks.len(), "{name}");
        (cell, lab.half(cell_at(0) + CELL_DRAW), blocks)
    };
    assert_eq!(run("malloc, not picked"), ([1, 24, 1, 0], 0, vec![]));
    assert_eq!(run("realloc, neither picked"), ([1, 24, 1, 0], 0, vec![]));
    assert_eq!(run("malloc, picked"), ([0, 0, 3001, 0], 1, vec![0x4000]));
    assert_eq!(run("malloc, not picked, the fast way"), ([1, 24, 1, 0], 0, vec![]));
    assert_eq!(run("malloc of nothing, the fast way"), ([1, 0, 1, 0], 0, vec![]));
    assert_eq!(run("malloc, the key elsewhere, the fast way"), ([1, 24, 1, 0], 0, vec![]));
    assert_eq!(run("malloc, a dead frame, the fast way"), ([1, 24, 76, 0], 0, vec![]));
    assert_eq!(run("part of another, not picked, the fast way"), ([1, 72, 1, 0], 0, vec![]));
    assert_eq!(run("malloc, picked, the fast way"), ([0, 0, 3001, 0], 1, vec![0x4007]));
    assert_eq!(run("memalign, picked"), ([0, 0, 3001, 0], 1, vec![0x7777]));
    assert_eq!(run("realloc of a picked one"), ([0, 0, 1, 0], 0, vec![]));
    assert_eq!(run("realloc of a picked one, picked"), ([0, 0, 3001, 0], 1, vec![0x4002]));
    assert_eq!(run("realloc, picked"), ([0, 0, 3001, 0], 1, vec![0x4002]));
    assert_eq!(run("realloc to nothing"), ([0, 0, 25, 0], 0, vec![0x5000]));
    assert_eq!(run("free, not picked"), ([0, 0, 25, 0], 0, vec![0x5000]));
    assert_eq!(run("free, not picked, the fast way"), ([0, 0, 25, 0], 0, vec![0x5000]));
    bench.begin(scenarios.iter().find(|scenario| scenario.name == "malloc, picked, no room").unwrap());
    bench.finish();
    assert_eq!(lab.read_bytes(SHARED + PAGE_AREA + 4, 1), [PAGE_FULL]);
    assert_eq!(run("free, picked"), ([0, 0, 25, 0], 0, vec![]));
    assert_eq!(run("free, picked, the fast way"), ([0, 0, 25, 0], 0, vec![]));
}

/// A program may jump into the routine, or write to what it works with: whatever comes of it, we don't panic.
#[test]
fn a_program_that_meddles_is_survived() {
    let lab = Lab::new();
    lab.reset();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed >> 8
    };
    let (mut none, mut some) = (0, 0);
    for round in 0..200_000 {
        if round % 10 == 0 {
            for _ in 0..4 {
                lab.set_word(cell_at(0) + random() % CELL_SIZE / 8 * 8, random() << (random() % 64));
            }
            for at in (lab.stack().end - 0x200..lab.stack().end).step_by(8) {
                let stub = STUBS + random() % 16 * STUB_SIZE + [ENTERED, LEFT, random() % 64][random() as usize % 3];
                lab.poke(at, [lab.base() + stub, random(), at][random() as usize % 3]);
            }
        }
        let near_end = lab.stack().end - random() % 0x30 * 8;
        let mut regs = Regs { rip: lab.base() + random() % (STUBS + 8 * STUB_SIZE), ..Regs::default() };
        regs.gpr.fill_with(&mut random);
        regs.rflags = random();
        regs.gpr[reg::RSP] = [near_end, near_end, u64::MAX - random() % 128, random()][random() as usize % 4];
        let cell = [None, Some(0), Some(CELLS as u16 - 1)][random() as usize % 3];
        match lab.place(cell).undo(&regs, &lab, &mut StackOf(&lab)) {
            None => none += 1,
            Some(_) => some += 1,
        }
    }
    assert!(none > 10_000 && some > 10_000, "{none} {some}");
}
