//! Walks that meet the frames of the thread's latest walk again, against the unwinder's rules on stacks that change
//! from the inside, as those of programs do.

use super::walk::{Made, Next, Random, Walked, assert_copied, make, onward, step};
use crate::arch::{Regs, reg};
use crate::base::addr::ModuleId;
use crate::jump::layout::*;
use crate::jump::lists::{self, Lists};
use crate::jump::nodes::CallerRule;
use crate::jump::shared::Shared;
use crate::jump::tails::Tails;
use crate::tracer::jump::testing::*;
use crate::unwinder::rule::{Base, Cpu, SAME};
use std::collections::HashMap;

const CALLS: u32 = 60_000;
/// Calls from one set of rules to the next.
const AGE: u32 = 500;

/// A frame on the stack.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The stack pointer behind its return address, which is in the word below.
    at: u64,
    /// What rbp must be there for the walk to go on; None: it does not matter.
    rbp: Option<u64>,
}

/// A stack that grows and shrinks at its inner end.
struct Stack<'a> {
    lab: &'a Lab,
    /// The outermost one first.
    frames: Vec<Frame>,
}

impl<'a> Stack<'a> {
    /// With an outermost frame at `ra`: 0, or one at which walks end.
    fn begin(lab: &'a Lab, at: u64, ra: u64) -> Self {
        lab.poke(at - 8, ra);
        Self { lab, frames: vec![Frame { at, rbp: None }] }
    }

    /// The outermost frame of all calls a function that returns to `ra`, with frames of `made`. Whether that can be.
    fn push(&mut self, random: &mut Random, ra: u64, made: Made) -> bool {
        let Some(outer) = self.frames.last().copied() else { return false };
        let Made::Rule(base, offset, saved) = made else { return false };
        let (at, rbp) = match base {
            Base::Rsp => (outer.at - offset as u64, None),
            Base::Rbp => (outer.at - 8 * (2 + random.below(20)), Some(outer.at - 16)),
            Base::LoadRbp => {
                let at = outer.at - 8 * (4 + random.below(20));
                (at, Some(at + 8))
            }
        };
        let near = if base == Base::LoadRbp { at + 8 } else { outer.at };
        let rbp = match (saved, rbp) {
            (SAME, None) => outer.rbp,
            (SAME, rbp) if outer.rbp.is_some_and(|needed| Some(needed) != rbp) => return false,
            (SAME, rbp) => rbp,
            (saved, rbp) => {
                let place = near.wrapping_add_signed(8 * i64::from(saved));
                self.lab.poke(place, outer.rbp.unwrap_or(random.below(1 << 40)));
                rbp
            }
        };
        if base == Base::LoadRbp {
            self.lab.poke(at, outer.at);
        }
        self.lab.poke(at - 8, ra);
        self.frames.push(Frame { at, rbp });
        true
    }

    /// The registers of a call from the innermost frame.
    fn call(&self, puppet: &Puppet, random: &mut Random) -> Regs {
        let innermost = self.frames[self.frames.len() - 1];
        let mut regs = puppet.call(FREE, innermost.at - 8, [0x4000, 2, 3]);
        let any = [random.below(1 << 40), innermost.at + 8 * random.below(64)][random.below(2) as usize];
        regs.gpr[reg::RBP] = innermost.rbp.unwrap_or(any);
        regs
    }
}

/// What the unwinder's rules say of the walk of a call with these registers.
fn expected(lab: &Lab, regs: &Regs, made: &HashMap<u64, Made>, known: Option<u64>) -> Walked {
    let mut cpu = Cpu { gpr: regs.gpr, pc: lab.landing().0 };
    cpu.gpr[reg::RSP] = regs.sp() + 8;
    let (mut parent, mut list) = (0, Vec::new());
    loop {
        let ra = cpu.pc;
        if ra == 0 {
            break if list.is_empty() { Walked::Stack(parent) } else { Walked::List(parent, list) };
        }
        if known == Some(ra) && parent == 0 && list.is_empty() {
            parent = 1;
        } else {
            list.push(ra);
            if list.len() as u32 + parent > lab.half(LIST_DEPTH) {
                break Walked::List(parent, list);
            }
        }
        match step(lab, made.get(&ra).copied().unwrap_or(Made::Unknown), &mut cpu) {
            Next::Caller(_) => {}
            Next::Ended => break if list.is_empty() { Walked::Stack(parent) } else { Walked::List(parent, list) },
            Next::Lost => break Walked::Miss,
        }
    }
}

/// What the routine makes of it. A list is given back.
fn walked(puppet: &Puppet, regs: &Regs, lists: &mut Lists) -> Walked {
    let lab = &puppet.lab;
    lab.set_word(COPY_BITS, 0);
    lab.set_word(cell_at(0) + CELL_HEAD, 0);
    lists::forget_latest(lab, 0);
    puppet.set_regs(regs);
    assert_eq!(puppet.run(), Met::Landing);
    assert_eq!(lab.word(cell_at(0) + CELL_HEAD), 1);
    let what = lab.word(ring_at(0) + RECORD_WHAT);
    if what & FLAG_LISTED != 0 {
        let mut list = Vec::new();
        let taken = lists.take(lab, &mut list).expect("a list that the record names");
        lists.give_back(lab);
        Walked::List(taken.parent, list)
    } else if what & FLAG_COPY != 0 {
        assert_copied(lab, regs);
        Walked::Miss
    } else {
        Walked::Stack(what as u32)
    }
}

fn publish_rules(lab: &Lab, made: &HashMap<u64, Made>) {
    let mut rules = lab.forget_rules();
    made.iter().for_each(|(ra, made)| rules.publish(lab, *ra, ModuleId(1), onward(*made, 0)));
}

/// Rules with all forms; the landing's goes on.
fn make_rules(lab: &Lab, random: &mut Random) -> HashMap<u64, Made> {
    let mut made: HashMap<u64, Made> = (0..40).map(|code| (0x5000_0000 + code * 0x11, make(random))).collect();
    made.insert(0x6000_0000, Made::End);
    made.insert(lab.landing().0, Made::Rule(Base::Rsp, 8 + 8 * random.below(8) as i32, SAME));
    made
}

#[test]
fn a_walk_that_meets_the_latest_one_is_as_the_rules_say() {
    let puppet = Puppet::start();
    let lab = &puppet.lab;
    lab.reset();
    let mut random = Random(0x0fed_cba9_8765_4321);
    let mut lists = Lists::begin(lab, 0);
    let end = lab.stack().end;
    let (mut made, mut codes, mut known) = (HashMap::new(), Vec::new(), None);
    let (mut tails, mut tailed) = (Tails::default(), HashMap::new());
    let mut stack = Stack::begin(lab, end - 0x40, 0);
    let (mut found, mut listed, mut missed, mut torn_and_found) = (0, 0, 0, 0);
    for number in 0..CALLS {
        if number % AGE == 0 {
            made = make_rules(lab, &mut random);
            publish_rules(lab, &made);
            codes = made.keys().copied().filter(|ra| *ra != lab.landing().0).collect();
            codes.sort_unstable();
            let mut nodes = lab.forget_nodes(INDEX_LEAST);
            known = random.one_in(2).then_some(lab.landing().0);
            if let Some(ra) = known {
                assert!(nodes.publish(lab, 1, 0, ra, onward(made[&ra], 1)));
            }
            tails.clear(lab);
            tailed.clear();
            lab.set_half(LIST_DEPTH, 5 + random.below(40) as u32);
            stack = Stack::begin(lab, end - 0x40, 0);
        }
        lab.set_half(TAILED, 1);
        if random.one_in(50) {
            let ra = [0, 0x6000_0000][random.below(2) as usize];
            stack = Stack::begin(lab, end - 0x40 - 8 * random.below(4), ra);
        }
        let kept = stack.frames.len() - (random.below(4) as usize).min(stack.frames.len() - 1);
        stack.frames.truncate(kept);
        for _ in 0..random.below(5) {
            let ra = codes[random.below(codes.len() as u64) as usize];
            if stack.frames.len() < 50 {
                stack.push(&mut random, ra, made[&ra]);
            }
        }
        assert!(stack.push(&mut random, lab.landing().0, made[&lab.landing().0]));
        let regs = stack.call(&puppet, &mut random);
        let torn = random.one_in(4).then(|| {
            let place = regs.sp() + 8 + 8 * random.below((end - regs.sp()) / 8 - 1);
            let was = lab.peek(place);
            let frame = stack.frames[random.below(stack.frames.len() as u64) as usize];
            let ra = codes[random.below(codes.len() as u64) as usize];
            lab.poke(place, [0, ra, frame.at, frame.at - 16, u64::MAX - 7][random.below(5) as usize]);
            (place, was)
        });
        let right = match expected(lab, &regs, &made, known) {
            Walked::List(parent, list) => match tailed.get(&(parent, list.clone())) {
                Some(stack) => Walked::Stack(*stack),
                None => {
                    let new = NODES as u32 + number;
                    if random.one_in(8) {
                        Walked::List(parent, list)
                    } else {
                        tails.publish(lab, tail_hash(parent.into(), &list), new);
                        tailed.insert((parent, list), new);
                        Walked::Stack(new)
                    }
                }
            },
            other => other,
        };
        lab.set_half(walk_at(0) + WALK_SKIPS, 0);
        assert_eq!(walked(&puppet, &regs, &mut lists), right, "call {number}: {:x?}", stack.frames);
        match right {
            Walked::Stack(_) => {
                found += 1;
                torn_and_found += u32::from(torn.is_some());
            }
            Walked::List(..) => listed += 1,
            Walked::Miss => missed += 1,
        }
        if let Some((place, was)) = torn {
            lab.poke(place, was);
        }
        stack.frames.pop();
    }
    assert!(found > 30_000 && listed > 2000 && missed > 500, "{found} {listed} {missed}");
    assert!(torn_and_found > 2000, "{torn_and_found}");
}

/// The rules of the outer frames are gone: only who knows the frames from the walk before finds its way. A new
/// generation of rules, a frame that is another one, or an rbp that is: nobody does.
#[test]
fn outer_frames_are_known_as_long_as_nothing_has_changed() {
    let puppet = Puppet::start();
    let lab = &puppet.lab;
    lab.reset();
    let mut random = Random(0x1357_9bdf_0246_8ace);
    let mut lists = Lists::begin(lab, 0);
    let landing = lab.landing().0;
    let made = HashMap::from([
        (landing, Made::Rule(Base::Rsp, 32, -2)),
        (0x5000_0000, Made::Rule(Base::Rsp, 48, SAME)),
        (0x5000_0011, Made::Rule(Base::Rbp, 16, -2)),
        (0x5000_0022, Made::Rule(Base::LoadRbp, -8, 1)),
        (0x5000_0033, Made::Rule(Base::Rsp, 64, -3)),
        (0x6000_0000, Made::End),
    ]);
    lab.forget_nodes(INDEX_LEAST);
    let mut stack = Stack::begin(lab, lab.stack().end - 0x40, 0x6000_0000);
    for code in [0x33, 0x11, 0, 0x22, 0x11, 0x33, 0] {
        assert!(stack.push(&mut random, 0x5000_0000 + code, made[&(0x5000_0000 + code)]));
    }
    assert!(stack.push(&mut random, landing, made[&landing]));
    let regs = stack.call(&puppet, &mut random);
    let Walked::List(0, list) = expected(lab, &regs, &made, None) else { panic!("no list") };
    assert_eq!(list.len(), 9);
    let id = NODES as u32 + 7;
    let learn = || {
        publish_rules(lab, &made);
        Tails::default().publish(lab, tail_hash(0, &list), id);
        let mut lists = Lists::begin(lab, 0);
        lab.set_half(walk_at(0) + WALK_SKIPS, 0);
        assert_eq!(walked(&puppet, &regs, &mut lists), Walked::Stack(id));
        // none of the rules but that of the innermost frame
        lab.write(SHARED + RULE_AREA, &vec![0; (RULES * RULE_SIZE) as usize]);
        let mut rules = crate::jump::rules::Rules::default();
        rules.publish(lab, landing, ModuleId(1), onward(made[&landing], 0));
    };
    learn();
    assert_eq!(walked(&puppet, &regs, &mut lists), Walked::Stack(id));
    let innermost_changed = {
        let mut changed = regs;
        changed.gpr[reg::RBP] ^= 0x1000;
        changed
    };
    assert_eq!(walked(&puppet, &innermost_changed, &mut lists), Walked::Stack(id), "nothing depends on that rbp");
    lab.set_half(RULES_GENERATION, lab.half(RULES_GENERATION) + 1);
    assert_eq!(walked(&puppet, &regs, &mut lists), Walked::Miss, "another generation");
    // each word that the rules have read
    let (mut read, mut unread) = (0, 0);
    learn();
    for place in (regs.sp() + 8..lab.stack().end).step_by(8) {
        let was = lab.peek(place);
        lab.poke(place, was ^ 0x10);
        let is_read = expected(lab, &regs, &made, None) != Walked::List(0, list.clone());
        lab.set_half(walk_at(0) + WALK_SKIPS, 0);
        let now = walked(&puppet, &regs, &mut lists);
        assert_eq!(
            now,
            if is_read { Walked::Miss } else { Walked::Stack(id) },
            "{:#x} of the stack",
            place - regs.sp()
        );
        *if is_read { &mut read } else { &mut unread } += 1;
        lab.poke(place, was);
        if is_read {
            learn();
        }
    }
    // eight return addresses, what the third frame from the inside is found by, and three words that frames keep rbp in
    assert!(read == 8 + 1 + 3 && unread > 10, "{read} {unread}");
}

/// After a walk that had no way to its end the next ones do not try.
#[test]
fn walks_in_vain_are_rare() {
    let puppet = Puppet::start();
    let lab = &puppet.lab;
    lab.reset();
    lab.forget_nodes(INDEX_LEAST);
    lab.set_half(TAILED, 1);
    let stack = Stack::begin(lab, lab.stack().end - 0x40, lab.landing().0);
    let mut lists = Lists::begin(lab, 0);
    let mut rules = lab.forget_rules();
    rules.publish(lab, 0x5000_0000, ModuleId(1), CallerRule::End(0));
    let regs = stack.call(&puppet, &mut Random(7));
    for calls in 0..200 {
        assert_eq!(walked(&puppet, &regs, &mut lists), Walked::Miss);
        assert_eq!(lab.half(walk_at(0) + WALK_NUMBER), 1 + calls / (1 + WALK_SKIPPED));
    }
}
