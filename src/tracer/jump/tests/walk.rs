//! The routine's walk against `Rule::execute` on made-up stacks.

use crate::arch::reg;
use crate::base::addr::ModuleId;
use crate::jump::layout::*;
use crate::jump::lists::{self, Lists};
use crate::jump::nodes::CallerRule;
use crate::jump::shared::Shared;
use crate::jump::tails::Tails;
use crate::tracer::jump::testing::*;
use crate::unwinder::rule::{Base, Cpu, Rows, Rule, SAME, Step};
use crate::unwinder::window::{StackBuffer, StackWindow};
use std::collections::{HashMap, HashSet};

const STACKS: u32 = 100_000;
/// Stacks from one empty trie to the next.
const AGE: u32 = 1000;
/// Where in [`crate::unwinder::rule::Saved`] rbp is.
const RBP: usize = 1;

/// Marsaglia's xorshift, so that each run makes the same stacks.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How to go on from a made-up return address.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    Rule(Base, i32, i8),
    End,
    Unknown,
}

pub(super) fn make(random: &mut Random) -> Made {
    if random.one_in(12) {
        return Made::End;
    }
    if random.one_in(40) {
        return Made::Unknown;
    }
    let offset = 8 * (1 + random.below(20)) as i32;
    let saved = |random: &mut Random, most: u64| {
        if random.one_in(3) || most == 0 { SAME } else { -2 - random.below(most) as i8 }
    };
    match random.below(3) {
        0 => Made::Rule(Base::Rsp, offset, saved(random, (offset / 8 - 1) as u64)),
        1 => Made::Rule(Base::Rbp, 16, saved(random, 1)),
        _ => Made::Rule(Base::LoadRbp, -8, [0, 1, SAME][random.below(3) as usize]),
    }
}

fn rule(base: Base, offset: i32, rbp: i8) -> Rule {
    let mut saved = [SAME; 6];
    saved[RBP] = rbp;
    Rule::Compact { base, offset, saved }
}

/// The same as the routine is told of it, where the stack is number `node`.
pub(super) fn onward(made: Made, node: u32) -> CallerRule {
    match made {
        Made::End => CallerRule::End(node),
        Made::Unknown => CallerRule::Unknown,
        Made::Rule(base, offset, rbp) => CallerRule::Caller {
            form: match base {
                Base::Rsp => Form::Rsp,
                Base::Rbp => Form::Rbp,
                Base::LoadRbp => Form::LoadRbp,
            },
            offset,
            rbp: if rbp == SAME { RBP_SAME } else { rbp.into() },
        },
    }
}

/// What a walk comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Walked {
    Stack(u32),
    /// The stack up to which nodes are known, and the return addresses from there on.
    List(u32, Vec<u64>),
    Miss,
}

/// Where a walk goes on from a frame.
pub(super) enum Next {
    /// To the caller.
    Caller(Base),
    /// It is the outermost one.
    Ended,
    /// Nowhere: the stack is not as the rule says, or there is none.
    Lost,
}

/// From a frame to its caller, as the rules of the unwinder say.
pub(super) fn step(lab: &Lab, how: Made, cpu: &mut Cpu) -> Next {
    let (base, offset, rbp) = match how {
        Made::End => return Next::Ended,
        Made::Unknown => return Next::Lost,
        Made::Rule(base, offset, rbp) => (base, offset, rbp),
    };
    // no word below the frame, and none beyond the stack
    let old = cpu.sp();
    let words = old..=lab.stack().end - 8;
    let frame_pointer = cpu.gpr[reg::RBP];
    if base == Base::LoadRbp && !words.contains(&frame_pointer.wrapping_add_signed(offset.into())) {
        return Next::Lost;
    }
    let mut buffer = StackBuffer::default();
    let mut memory = StackOf(lab);
    let mut window = StackWindow::new(&mut buffer, &mut memory, old);
    if rule(base, offset, rbp).execute(&Rows::default(), cpu, &mut window) != Step::Caller {
        return Next::Lost;
    }
    let cfa = cpu.sp();
    let near = if base == Base::LoadRbp { frame_pointer } else { cfa };
    let saved = near.wrapping_add_signed(8 * i64::from(rbp));
    if cfa <= old || cfa - old > LARGEST_FRAME || rbp != SAME && !words.contains(&saved) {
        return Next::Lost;
    }
    Next::Caller(base)
}

#[test]
fn a_walk_is_as_the_rules_say() {
    let puppet = Puppet::start();
    let lab = &puppet.lab;
    lab.reset();
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut nodes = lab.forget_nodes(INDEX_LEAST);
    let mut known = HashMap::new();
    let mut codes = Vec::new();
    let mut ruled = HashSet::new();
    let mut deepest = 0;
    let end = lab.stack().end;
    let (mut found, mut listed, mut missed, mut ended_by_zero, mut forms) = (0, 0, 0, 0, [0; 3]);
    let mut lists = Lists::begin(lab, 0);
    let (mut tails, mut tailed, mut found_by_tail) = (Tails::default(), HashMap::new(), 0);
    for number in 0..STACKS {
        if number % AGE == 0 {
            nodes = lab.forget_nodes(INDEX_LEAST);
            known.clear();
            tails = Tails::default();
            lab.write(SHARED + TAIL_AREA, &vec![0; (TAILS * TAIL_SIZE) as usize]);
            tailed.clear();
            codes = (0..60).map(|code| (0x5000_0000 + code * 0x11, make(&mut random))).collect();
            codes.push((lab.landing().0, make(&mut random)));
            deepest = 1 + random.below(30);
            lab.set_half(LIST_DEPTH, deepest as u32);
            let mut rules = lab.forget_rules();
            ruled.clear();
            for (ra, made) in &codes {
                if !random.one_in(10) && !matches!(made, Made::Unknown) {
                    rules.publish(lab, *ra, ModuleId(1), onward(*made, 0));
                    ruled.insert(*ra);
                }
            }
        }
        let made: HashMap<u64, Made> = codes.iter().copied().collect();
        // From the inside to the outside; rbp is chosen where a frame needs it, if its place is still open.
        let sp = end - 0x1000 - 8 * random.below(16);
        lab.write(sp - 0x100 - lab.base(), &vec![0; (end - sp + 0x100) as usize]);
        let mut regs = puppet.call(MALLOC, sp, [1, 2, 3]);
        regs.gpr[reg::RBP] = sp + 8 * random.below(0x300);
        lab.poke(sp, lab.landing().0);
        let mut open = Some(None);
        let mut at = sp + 8;
        let mut ra = lab.landing().0;
        while at + 0x200 < end {
            let Some(Made::Rule(base, offset, saved)) = made.get(&ra) else { break };
            let put = |regs: &mut crate::arch::Regs, open: &mut Option<Option<u64>>, value: u64| match open.take() {
                Some(None) => regs.gpr[reg::RBP] = value,
                Some(Some(place)) => lab.poke(place, value),
                None => {}
            };
            let cfa = if *base == Base::Rsp { at + *offset as u64 } else { at + 8 * (2 + random.below(20)) };
            let near = match base {
                Base::Rsp => cfa,
                Base::Rbp => {
                    put(&mut regs, &mut open, cfa - 16);
                    cfa
                }
                Base::LoadRbp => {
                    let rbp = at + 8;
                    put(&mut regs, &mut open, rbp);
                    lab.poke(rbp - 8, cfa + 8);
                    rbp
                }
            };
            let cfa = if *base == Base::LoadRbp { cfa + 8 } else { cfa };
            if *saved != SAME {
                let place = near.wrapping_add_signed(8 * i64::from(*saved));
                lab.poke(place, at + 8 * random.below(40));
                open = Some(Some(place));
            }
            ra = if random.one_in(15) { 0 } else { codes[random.below(codes.len() as u64) as usize].0 };
            lab.poke(cfa - 8, ra);
            at = cfa;
        }
        if random.one_in(10) {
            // a torn one
            let place = sp + 8 + 8 * random.below(60);
            lab.poke(place, [0, u64::MAX - 7, end, end - 8, sp, 8, 1 << 63][random.below(7) as usize]);
        }
        // what the rules say; nodes are made on the way, mostly
        let mut rows_cpu = Cpu { gpr: regs.gpr, pc: lab.landing().0 };
        rows_cpu.gpr[reg::RSP] = sp + 8;
        let mut parent = 0;
        let learns = !random.one_in(3);
        let stops_at = random.below(12);
        let mut depth = 0;
        let mut list: Option<Vec<u64>> = None;
        let expected = loop {
            let ra = rows_cpu.pc;
            if ra == 0 {
                ended_by_zero += 1;
                break match list {
                    Some(list) => Walked::List(parent, list),
                    None if parent == 0 => Walked::Miss,
                    None => Walked::Stack(parent),
                };
            }
            let how = made.get(&ra).copied().unwrap_or(Made::Unknown);
            let may_learn = learns && depth < stops_at && known.len() < INDEX_LEAST as usize - 2 && list.is_none();
            match known.get(&(parent, ra)) {
                Some(node) if list.is_none() => parent = *node,
                _ if may_learn => {
                    let node = known.len() as u32 + 1;
                    assert!(nodes.publish(lab, node, parent, ra, onward(how, node)));
                    known.insert((parent, ra), node);
                    parent = node;
                }
                _ if list.is_none() && depth > deepest => break Walked::Miss,
                _ => {
                    let list = list.get_or_insert_default();
                    list.push(ra);
                    if depth + 1 > deepest {
                        break Walked::List(parent, std::mem::take(list));
                    }
                    if !ruled.contains(&ra) {
                        break Walked::Miss;
                    }
                }
            }
            depth += 1;
            match step(lab, how, &mut rows_cpu) {
                Next::Caller(base) => forms[base as usize] += 1,
                Next::Ended => {
                    break match list {
                        Some(list) => Walked::List(parent, list),
                        None => Walked::Stack(parent),
                    };
                }
                Next::Lost => break Walked::Miss,
            }
        };
        // a list that was published is a stack
        let expected = match expected {
            Walked::List(parent, list) => match tailed.get(&(parent, list.clone())) {
                Some(stack) => {
                    found_by_tail += 1;
                    Walked::Stack(*stack)
                }
                None => {
                    if random.one_in(2) {
                        let stack = NODES as u32 + number;
                        tails.publish(lab, tail_hash(parent.into(), &list), stack);
                        tailed.insert((parent, list), stack);
                        found_by_tail += 1;
                        Walked::Stack(stack)
                    } else {
                        Walked::List(parent, list)
                    }
                }
            },
            other => other,
        };
        lab.set_word(COPY_BITS, 0);
        lab.set_word(cell_at(0) + CELL_HEAD, 0);
        lists::forget_latest(lab, 0);
        puppet.set_regs(&regs);
        assert_eq!(puppet.run(), Met::Landing, "stack {number}");
        assert_eq!(lab.word(cell_at(0) + CELL_HEAD), 1, "stack {number}");
        let what = lab.word(ring_at(0) + RECORD_WHAT);
        let walked = if what & FLAG_LISTED != 0 {
            let mut list = Vec::new();
            let taken = lists.take(lab, &mut list).expect("a list that the record names");
            assert_eq!(taken.place as u32, what as u32, "stack {number}");
            lists.give_back(lab);
            Walked::List(taken.parent, list)
        } else if what & FLAG_COPY != 0 {
            Walked::Miss
        } else {
            Walked::Stack(what as u32)
        };
        assert_eq!(walked, expected, "stack {number}");
        match walked {
            Walked::Stack(_) => {
                found += 1;
                assert_eq!(lab.word(COPY_BITS), 0, "no slot is kept");
            }
            Walked::List(..) => {
                listed += 1;
                assert_eq!(lab.word(COPY_BITS), 0, "no slot is taken");
            }
            Walked::Miss => {
                missed += 1;
                assert_copied(lab, &regs);
            }
        }
    }
    assert!(found > 30_000 && listed > 5_000 && missed > 10_000, "{found} {listed} {missed}");
    assert!(found_by_tail > 5_000, "{found_by_tail}");
    assert!(ended_by_zero > 2000, "{ended_by_zero}");
    assert!(forms.iter().all(|form| *form > 20_000), "{forms:?}");
}

/// The copy has the registers and the stack as at the function's first instruction.
pub(super) fn assert_copied(lab: &Lab, regs: &crate::arch::Regs) {
    assert_eq!(lab.word(COPY_BITS), 1);
    use reg::*;
    let order = [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15];
    for (at, register) in (0..).step_by(8).zip(order) {
        assert_eq!(lab.word(COPY_AREA + at), regs.gpr[register], "register {register}");
    }
    let len = lab.stack().end - regs.sp();
    assert_eq!(lab.word(COPY_AREA + COPY_LEN), len);
    let mut copied = vec![0; len as usize];
    assert!(lab.copy_out(COPY_AREA + COPY_STACK, &mut copied));
    let mut stack = lab.read_bytes(regs.sp() - lab.base(), len);
    // by the time of the copy the caller's address still stood there, as now
    stack.truncate(copied.len());
    assert!(copied == stack);
}
