//! The routine, stopped at each of its instructions: undo sets the thread to where it would be without us, and the call is recorded once; and a
//! signal handler that makes calls of its own there does no harm.

use crate::addr::{Addr, ModuleId};
use crate::arch::{Regs, reg};
use crate::jump::frames;
use crate::jump::layout::*;
use crate::jump::nodes::Onward;
use crate::jump::sampling::{note_dead, note_live};
use crate::jump::shared::Shared;
use crate::jump::stub::{ENTERED, LEFT, STUB_SIZE, STUBS};
use crate::jump::undo::Undone;
use crate::tracer::jump::testing::*;

/// The id of the stack that consists of the landing alone.
const KNOWN: u32 = 1;
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

fn what(kind: Kind, function: u16, stack: u64) -> u64 {
    stack | u64::from(function) << 32 | (kind as u64) << 48
}

fn is_ended(what: u64) -> bool {
    (what >> 48) as u8 == Kind::Ended as u8
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
}

impl Bench {
    fn new() -> Self {
        let puppet = Puppet::start();
        Self { puppet, foreign: std::cell::Cell::new(0) }
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

    /// To the landing. The tracer lets the thread go on at each int3, as if it were a nop; where its ring is full, it drains.
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
                let at = ring_at(cell) + number % RING_RECORDS * RECORD_SIZE;
                let what = lab.word(at + RECORD_WHAT);
                let is_odd = lab.word(at + RECORD_KEY) & 1 == 1;
                assert_eq!(is_odd, !is_ended(what), "{what:#x}");
                let of_end = |offset| is_ended(what).then(|| lab.word(at + offset));
                told.push(Told {
                    what,
                    args: [0, 8, 16].map(|arg| lab.word(at + RECORD_ARGS + arg)),
                    caller: lab.word(at + RECORD_CALLER),
                    result: of_end(RECORD_RESULT),
                    out: of_end(RECORD_OUT).filter(|_| what & FLAG_OUT != 0),
                });
            }
        }
        told
    }

    fn left_over(&self) -> (u64, u32, u32) {
        let lab = &self.puppet.lab;
        (lab.word(COPY_BITS), lab.half(cell_at(0) + CELL_DEPTH), lab.half(cell_at(1) + CELL_DEPTH))
    }

    /// Calls that were counted and not recorded, and their bytes; what is left, if nothing was picked; and which blocks are picked ones.
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
        let is_off = lab.peek(lab.base() + STATE_ACTIVE) == 0;
        let heads = self.heads();
        let end = self.finish();
        let foreign = self.foreign.replace(0);
        let told = self.told(heads);
        let records: Vec<u64> = told.iter().map(|told| told.what).collect();
        assert_eq!(records, scenario.records, "{name}");
        let count = |at: u64| lab.word(cell_at(0) + at) + lab.word(cell_at(1) + at);
        assert_eq!((count(CELL_ASKS), count(CELL_DROPPED)), (scenario.asks, scenario.dropped), "{name}");
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
                    let entry = at_entry.unwrap_or_else(|| panic!("{context}: has begun"));
                    assert_eq!((undone.gpr, undone.rip), (entry.gpr, entry.rip), "{context}");
                    if stub.way == Way::Realloc {
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
                        what: frame.what,
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
            for (function, args) in [(MALLOC, [1, 2, 3]), (REALLOC, [9, 9, 9]), (FREE, [5, 5, 5])] {
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

/// These rules are known, and no others.
fn publish_rules(lab: &Lab, known: &[(u64, Onward)]) {
    let mut rules = lab.forget_rules();
    known.iter().for_each(|(ra, onward)| rules.publish(lab, *ra, ModuleId(1), *onward));
}

/// No stack can be found, but the rules of the frames are known: also that of the outer function, above which our own return address lies.
fn within_listed(lab: &Lab, regs: &mut Regs) {
    unknown_caller(lab, regs);
    nested(lab, OUTER, MALLOC, Nested::Own);
    let up = Onward::Caller { form: Form::Rsp, offset: 8, rbp: RBP_SAME };
    publish_rules(lab, &[(lab.landing().0, Onward::End(0)), (lab.inner_return(OUTER), up)]);
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
    let there: Vec<u64> = [0x4000, 0x4001, 0x4002, 0x5000, 0x6000, 0x7777].into_iter().filter(is_there).collect();
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

fn all_scenarios() -> Vec<Scenario> {
    let known = u64::from(KNOWN);
    let ended = |function| what(Kind::Ended, function, known);
    let nothing: fn(&Lab, &mut Regs) = |_, _| {};
    let mut all = Vec::new();
    let mut add = |name, function, args, prepare, records: &[u64], asks, dropped| {
        all.push(Scenario { name, function, args, prepare, records: records.to_vec(), asks, dropped });
    };
    let (malloc, memalign, realloc, free) = (MALLOC, MEMALIGN, REALLOC, FREE);
    let began = |stack| what(Kind::Began, realloc, stack);
    let ended_of = |stack| what(Kind::Ended, realloc, stack) | FLAG_BEGAN;
    add("malloc", malloc, [24, 0, 0], nothing, &[ended(malloc)], 0, 0);
    add("realloc of nothing", realloc, [0, 24, 0], nothing, &[ended(realloc)], 0, 0);
    add("realloc", realloc, [16, 24, 0], nothing, &[began(known), ended_of(known)], 0, 0);
    add("free", free, [16, 0, 0], nothing, &[what(Kind::Freed, free, known)], 0, 0);
    add("free of nothing", free, [0, 0, 0], nothing, &[], 0, 0);
    add("malloc, active off", malloc, [24, 0, 0], |lab, _| lab.poke(lab.base() + STATE_ACTIVE, 0), &[], 0, 0);
    add("free, active off", free, [24, 0, 0], |lab, _| lab.poke(lab.base() + STATE_ACTIVE, 0), &[], 0, 0);
    add("malloc, all ask", malloc, [24, 0, 0], |lab, _| lab.poke(lab.base() + STATE_ACTIVE, 2), &[], 0, 0);
    add("malloc, mode ask", malloc, [24, 0, 0], |lab, _| lab.set_half(cell_at(0) + CELL_MODE, 1), &[], 1, 0);
    let without_cell: fn(&Lab, &mut Regs) = |lab, _| lab.set_word(CELL_INDEX + 16 * cell_slot(lab.fs_base()), 0);
    add("malloc without a cell", malloc, [24, 0, 0], without_cell, &[], 0, 0);
    add("free without a cell", free, [24, 0, 0], without_cell, &[], 0, 0);
    let unlimited: fn(&Lab, &mut Regs) = |lab, _| {
        lab.set_word(cell_at(0) + CELL_STACK_BEGIN, 0);
        lab.set_word(cell_at(0) + CELL_STACK_END, 0);
    };
    add("malloc on an unknown stack", malloc, [24, 0, 0], unlimited, &[], 1, 0);
    let elsewhere: fn(&Lab, &mut Regs) = |lab, regs| lab.set_word(cell_at(0) + CELL_STACK_END, regs.sp() & !0xfff);
    add("malloc on another stack", malloc, [24, 0, 0], elsewhere, &[], 1, 0);
    let caller_only: fn(&Lab, &mut Regs) = |lab, _| lab.set_half(FREE_STACKS, 0);
    add("free, not walked", free, [16, 0, 0], caller_only, &[what(Kind::Freed, free, known) | FLAG_CALLER], 0, 0);
    add("malloc, copied", malloc, [24, 0, 0], unknown_caller, &[what(Kind::Ended, malloc, 0) | FLAG_COPY], 0, 0);
    let copied = |kind, function| what(kind, function, 0) | FLAG_COPY;
    add("free, copied", free, [16, 0, 0], unknown_caller, &[copied(Kind::Freed, free)], 0, 0);
    let both = [copied(Kind::Began, realloc), copied(Kind::Ended, realloc) | FLAG_BEGAN];
    add("realloc, copied", realloc, [16, 24, 0], unknown_caller, &both, 0, 0);
    let listed: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, Onward::End(0))]);
    };
    add("malloc, listed", malloc, [24, 0, 0], listed, &[copied(Kind::Ended, malloc)], 0, 0);
    add("free, listed", free, [16, 0, 0], listed, &[copied(Kind::Freed, free)], 0, 0);
    add("realloc, listed", realloc, [16, 24, 0], listed, &both, 0, 0);
    let listed_in_part: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, Onward::Caller { form: Form::Rsp, offset: 16, rbp: RBP_SAME })]);
    };
    add("malloc, listed in part", malloc, [24, 0, 0], listed_in_part, &[copied(Kind::Ended, malloc)], 0, 0);
    add("within another, listed in part", OUTER, [24, 0, 0], within_listed, &[copied(Kind::Ended, OUTER)], 1, 0);
    let no_slot: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_word(COPY_BITS, u64::MAX);
    };
    add("malloc, no copy slot", malloc, [24, 0, 0], no_slot, &[], 1, 0);
    let last_slot: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_word(COPY_BITS, u64::MAX >> 1);
    };
    add(
        "malloc, the last copy slot",
        malloc,
        [24, 0, 0],
        last_slot,
        &[what(Kind::Ended, malloc, 63) | FLAG_COPY],
        0,
        0,
    );
    let out: fn(&Lab, &mut Regs) = |lab, regs| regs.gpr[reg::RDI] = lab.stack().end - 0x20;
    add("memalign", memalign, [0, 0, 0], out, &[ended(memalign) | FLAG_OUT], 0, 0);
    let out_fails: fn(&Lab, &mut Regs) = |lab, regs| {
        regs.gpr[reg::RDI] = lab.stack().end - 0x20;
        regs.gpr[reg::RSI] = 12;
    };
    add("memalign fails", memalign, [0, 12, 0], out_fails, &[ended(memalign) | FLAG_OUT], 0, 0);

    // the first call is timed
    let timed: fn(&Lab, &mut Regs) = |lab, _| lab.set_half(TIMED, 0);
    add("malloc, timed", malloc, [24, 0, 0], timed, &[ended(malloc)], 0, 0);
    add("free, timed", free, [16, 0, 0], timed, &[what(Kind::Freed, free, known)], 0, 0);
    let timed_copied: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_half(TIMED, 0);
    };
    add("realloc, copied, timed", realloc, [16, 24, 0], timed_copied, &both, 0, 0);

    // within others
    add("part of another, unknown", OUTER, [24, 0, 0], nothing, &[ended(OUTER)], 1, 0);
    add("a jump from another", TAIL, [24, 0, 0], nothing, &[ended(TAIL)], 0, 0);
    let part: fn(&Lab, &mut Regs) = |lab, _| nested(lab, OUTER, MALLOC, Nested::Part);
    add("part of another", OUTER, [24, 0, 0], part, &[ended(OUTER)], 0, 0);
    let own: fn(&Lab, &mut Regs) = |lab, _| nested(lab, OUTER, MALLOC, Nested::Own);
    add("within another", OUTER, [24, 0, 0], own, &[what(Kind::Ended, malloc, 2), ended(OUTER)], 0, 0);
    let own_free: fn(&Lab, &mut Regs) = |lab, _| nested(lab, OUTER_OF_FREE, FREE, Nested::Own);
    let both = [what(Kind::Freed, free, 3), ended(OUTER_OF_FREE)];
    add("free within another", OUTER_OF_FREE, [24, 0, 0], own_free, &both, 0, 0);
    let dead: fn(&Lab, &mut Regs) = |lab, regs| {
        lab.set_word(COPY_BITS, 1 << 5 | 1 << 6);
        frame(lab, 0, 0, regs.sp() - 0x40, 0x1234, what(Kind::Ended, REALLOC, 6) | FLAG_COPY | FLAG_BEGAN);
        frame(lab, 0, 1, regs.sp() - 0x80, 0x1234, what(Kind::Ended, MALLOC, 5) | FLAG_COPY);
    };
    add("malloc, dead frames", malloc, [24, 0, 0], dead, &[ended(malloc)], 0, 2);
    let alive: fn(&Lab, &mut Regs) =
        |lab, regs| frame(lab, 0, 7, regs.sp() + 0x40, 0x1234, what(Kind::Ended, MALLOC, 5));
    add("malloc, all frames in use", malloc, [24, 0, 0], alive, &[], 1, 0);

    // sampled
    fn sample(lab: &Lab, left: u64) {
        lab.set_half(SAMPLED, 1);
        lab.set_word(INTERVAL_AREA + 8, 1000);
        lab.set_word(DISTANCE_AREA + 8, 3 << 32);
        lab.set_word(cell_at(0) + CELL_LEFT, left);
        lab.set_half(cell_at(0) + CELL_INTERVAL, 1);
    }
    let one_short: fn(&Lab, &mut Regs) = |lab, _| sample(lab, 25);
    let just: fn(&Lab, &mut Regs) = |lab, _| sample(lab, 24);
    let picked = 1 << PICKED_SHIFT;
    add("malloc, not picked", malloc, [24, 0, 0], one_short, &[], 0, 0);
    add("malloc, picked", malloc, [24, 0, 0], just, &[ended(malloc) | picked], 0, 0);
    let no_room: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 24);
        (0..8).for_each(|word| lab.set_word(live_bucket(0x4000) + 8 * word, 0xdead_0000));
    };
    add("malloc, picked, no room", malloc, [24, 0, 0], no_room, &[ended(malloc) | picked], 0, 0);
    let just_copied: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        sample(lab, 24);
    };
    let copied_end = what(Kind::Ended, malloc, 0) | FLAG_COPY | picked;
    add("malloc, picked and copied", malloc, [24, 0, 0], just_copied, &[copied_end], 0, 0);
    let part_of_not_picked: fn(&Lab, &mut Regs) = |lab, _| {
        nested(lab, OUTER, MALLOC, Nested::Part);
        sample(lab, 73);
    };
    add("part of another, not picked", OUTER, [24, 3, 0], part_of_not_picked, &[], 0, 0);
    let part_of_picked: fn(&Lab, &mut Regs) = |lab, _| {
        nested(lab, OUTER, MALLOC, Nested::Part);
        sample(lab, 72);
    };
    add("part of another, picked", OUTER, [24, 3, 0], part_of_picked, &[ended(OUTER) | picked], 0, 0);
    let overflow = [u64::MAX, 3, 0];
    add("too large for a number", OUTER, overflow, part_of_picked, &[ended(OUTER) | picked], 0, 0);
    add("realloc of nothing, not picked", realloc, [0, 24, 0], one_short, &[], 0, 0);
    add("realloc, neither picked", realloc, [0x5000, 24, 0], one_short, &[], 0, 0);
    let of_picked: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        note_live(lab, Addr(0x5000));
    };
    add("realloc of a picked one", realloc, [0x5000, 24, 0], of_picked, &[began(known), ended_of(known)], 0, 0);
    add("realloc to nothing", realloc, [0x6000, 0, 0], of_picked, &[began(known), ended_of(known)], 0, 0);
    let both = [began(known) | picked, ended_of(known) | picked];
    add("realloc, picked", realloc, [0x5000, 24, 0], just, &both, 0, 0);
    add("free, not picked", free, [0x6000, 0, 0], of_picked, &[], 0, 0);
    add("free, picked", free, [0x5000, 0, 0], of_picked, &[what(Kind::Freed, free, known)], 0, 0);
    let of_same_page: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        note_live(lab, Addr(0x5000));
    };
    add("free, not picked, of a page with a picked one", free, [0x5010, 0, 0], of_same_page, &[], 0, 0);
    add("realloc, not picked, of such a page", realloc, [0x5010, 24, 0], of_same_page, &[], 0, 0);
    let moves_picked: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 24);
        note_live(lab, Addr(0x5000));
    };
    add("realloc of a picked one, picked", realloc, [0x5000, 24, 0], moves_picked, &both, 0, 0);
    let full_page: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        lab.write(SHARED + PAGE_AREA + 9, &[PAGE_STUCK]);
    };
    add("free in a page that sticks", free, [0x9000, 0, 0], full_page, &[what(Kind::Freed, free, known)], 0, 0);
    let out_just: fn(&Lab, &mut Regs) = |lab, regs| {
        regs.gpr[reg::RDI] = lab.stack().end - 0x20;
        sample(lab, 1);
    };
    add("memalign, picked", memalign, [0, 0, 0], out_just, &[ended(memalign) | FLAG_OUT | picked], 0, 0);
    let dead_counted: fn(&Lab, &mut Regs) = |lab, regs| {
        sample(lab, 100);
        frame(lab, 0, 0, regs.sp() - 0x40, 0x1234, what(Kind::Ended, OUTER, 0) | COUNTED << PICKED_SHIFT);
    };
    add("malloc, a dead frame of a counted call", malloc, [24, 0, 0], dead_counted, &[], 0, 1);

    // no room
    let full: fn(&Lab, &mut Regs) = |lab, _| {
        lab.set_word(cell_at(0) + CELL_HEAD, RING_RECORDS);
        lab.set_word(cell_at(0) + CELL_LIMIT, RING_RECORDS);
    };
    add("malloc, full", malloc, [24, 0, 0], full, &[ended(malloc)], 0, 0);
    add("free, full", free, [24, 0, 0], full, &[what(Kind::Freed, free, known)], 0, 0);
    add("realloc, full", realloc, [24, 0, 0], full, &[began(known), ended_of(known)], 0, 0);
    let full_copied: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_word(cell_at(0) + CELL_HEAD, RING_RECORDS);
        lab.set_word(cell_at(0) + CELL_LIMIT, RING_RECORDS);
    };
    add(
        "realloc, full, copied",
        realloc,
        [24, 0, 0],
        full_copied,
        &[copied(Kind::Began, realloc), copied(Kind::Ended, realloc) | FLAG_BEGAN],
        0,
        0,
    );
    add("free, full, copied", free, [24, 0, 0], full_copied, &[copied(Kind::Freed, free)], 0, 0);
    let drained: fn(&Lab, &mut Regs) = |lab, _| {
        for (at, value) in [(CELL_HEAD, RING_RECORDS), (CELL_LIMIT, RING_RECORDS), (CELL_TAIL, RING_RECORDS)] {
            lab.set_word(cell_at(0) + at, value);
        }
    };
    add("malloc, drained", malloc, [24, 0, 0], drained, &[ended(malloc)], 0, 0);

    // behind the function
    fn in_original(lab: &Lab, regs: &mut Regs, cell: u64) {
        frame(lab, cell, 0, regs.sp(), lab.landing().0, what(Kind::Ended, MALLOC, 1));
        lab.poke(regs.sp(), lab.back(MALLOC));
        regs.rip = lab.original(MALLOC).0;
    }
    let newer: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 0);
        lab.set_word(COPY_BITS, 1 << 5 | 1 << 6);
        frame(lab, 0, 1, regs.sp() - 0x40, 0x1234, what(Kind::Ended, MALLOC, 5) | FLAG_COPY);
        frame(lab, 0, 2, regs.sp() - 0x80, 0x1234, what(Kind::Ended, REALLOC, 6) | FLAG_COPY | FLAG_BEGAN);
    };
    add("leave, newer frames", malloc, [0x61, 0x62, 0x63], newer, &[ended(malloc)], 0, 2);
    let moved: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 1);
        lab.set_half(cell_at(1) + CELL_DEPTH, 1);
    };
    add("leave on another thread", malloc, [0x61, 0x62, 0x63], moved, &[], 0, 0);
    let moved_without_cell: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 1);
        lab.set_word(CELL_INDEX + 16 * cell_slot(lab.fs_base()), 0);
    };
    add("leave without a cell", malloc, [0x61, 0x62, 0x63], moved_without_cell, &[], 0, 0);
    let off: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 0);
        lab.poke(lab.base() + STATE_ACTIVE, 0);
    };
    add("leave, active off", malloc, [0x61, 0x62, 0x63], off, &[], 0, 0);
    all
}

#[test]
fn each_instruction_can_be_undone_and_interrupted() {
    let bench = Bench::new();
    let mut looked_at = 0;
    let mut bad = 0;
    for scenario in all_scenarios() {
        let lab = &bench.puppet.lab;
        let mut nodes = lab.forget_nodes(INDEX_LEAST);
        assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, Onward::End(KNOWN)));
        assert!(nodes.publish(lab, 2, 0, lab.inner_return(OUTER), Onward::End(2)));
        assert!(nodes.publish(lab, 3, 0, lab.inner_return(OUTER_OF_FREE), Onward::End(3)));
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
    assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, Onward::End(KNOWN)));
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

/// What a call changes in its cell and in the pages.
#[test]
fn picked_calls_draw_and_note_their_blocks() {
    let bench = Bench::new();
    let lab = &bench.puppet.lab;
    let mut nodes = lab.forget_nodes(INDEX_LEAST);
    assert!(nodes.publish(lab, KNOWN, 0, lab.landing().0, Onward::End(KNOWN)));
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
    assert_eq!(run("memalign, picked"), ([0, 0, 3001, 0], 1, vec![0x7777]));
    assert_eq!(run("realloc of a picked one"), ([0, 0, 1, 0], 0, vec![]));
    assert_eq!(run("realloc of a picked one, picked"), ([0, 0, 3001, 0], 1, vec![0x4002]));
    assert_eq!(run("realloc, picked"), ([0, 0, 3001, 0], 1, vec![0x4002]));
    assert_eq!(run("realloc to nothing"), ([0, 0, 25, 0], 0, vec![0x5000]));
    assert_eq!(run("free, not picked"), ([0, 0, 25, 0], 0, vec![0x5000]));
    bench.begin(scenarios.iter().find(|scenario| scenario.name == "malloc, picked, no room").unwrap());
    bench.finish();
    assert_eq!(lab.read_bytes(SHARED + PAGE_AREA + 4, 1), [PAGE_FULL]);
    assert_eq!(run("free, picked"), ([0, 0, 25, 0], 0, vec![]));
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
