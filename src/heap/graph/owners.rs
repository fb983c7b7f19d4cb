//! Which holder alone leads to each block, and what the largest blocks retain: all that a summary tells of who holds
//! what. The whole tree of who retains whom ([`super::retention`]) takes several times as long.
//!
//! Each block has the holder from which it was reached; if another one reaches it, too, it has several, and so has all
//! behind it. Its owner changes twice at most. Beside that it has one bit for each of the largest blocks: that a way
//! leads to it which does not pass that one. What can be reached, but not without the large block, would be free
//! without it.
//!
//! All ways are gone side by side: each step waits for memory that is in no cache, and the processor waits for many at
//! once if none depends on another.

use crate::heap::leaks::Graph;
use std::ops::Range;

/// So many of the largest blocks are told with what they retain: one bit each.
pub const LARGEST: usize = 20;

/// So many blocks are carried on from together.
const BATCH: usize = if cfg!(test) { 4 } else { 256 };

/// So many pointers are followed together at most.
const MAX_STEPS: usize = if cfg!(test) { 3 } else { 1 << 16 };

/// No way leads here.
const NONE: u32 = u32::MAX;
/// Several holders lead here.
const SEVERAL: u32 = NONE - 1;
/// Lost blocks lead here, and nothing else.
const LOST: u32 = NONE - 2;

/// Who alone leads to a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A holder, by its number.
    Holder(u32),
    /// Several holders, each of them; or one, and lost blocks.
    Several,
    /// Nobody: only lost blocks lead to it, or nothing.
    Lost,
}

/// The owners of all blocks.
#[derive(Clone, Debug, Default)]
pub struct Owners(Vec<u32>);

impl Owners {
    /// The owner of a block, by its number.
    pub fn of(&self, block: usize) -> Owner {
        match self.0.get(block) {
            None | Some(&(NONE | LOST)) => Owner::Lost,
            Some(&SEVERAL) => Owner::Several,
            Some(&holder) => Owner::Holder(holder),
        }
    }
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) owners: Owners,
    /// Lost blocks that no other one leads to, and one of each circle of such.
    pub(super) lost_heads: Vec<u32>,
    /// The largest blocks, with the bytes that each retains.
    pub(super) largest: Vec<(u32, u64)>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct State {
    owner: u32,
    /// A bit for each of the largest blocks: a way leads here without it.
    without: u32,
}

impl State {
    const fn of(owner: u32) -> Self {
        Self { owner, without: u32::MAX }
    }

    /// What is known when this is known, too.
    const fn join(self, other: Self) -> Self {
        let is_same = self.owner == other.owner;
        let joined = if is_same { self.owner } else { SEVERAL };
        let owner = if self.owner == NONE { other.owner } else { joined };
        Self { owner, without: self.without | other.without }
    }
}

/// Room for one batch: blocks with what is known of them and their edges; what they lead to.
#[derive(Default)]
struct Room {
    ways: Vec<(u32, State, Range<u32>)>,
    steps: Vec<(u32, State)>,
}

/// Carries holders from block to block.
#[derive(Debug)]
pub(super) struct Spread<'a> {
    graph: &'a Graph,
    states: Vec<State>,
    /// The largest blocks; [`NONE`] where there are not so many.
    large: [u32; LARGEST],
    /// Blocks of which more is known than what they lead to was told: those that several holders have, those that one
    /// has, and large ones.
    several: Vec<u32>,
    single: Vec<u32>,
    delayed: Vec<u32>,
}

impl<'a> Spread<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let states = vec![State { owner: NONE, without: 0 }; graph.blocks().len()];
        let (several, single, delayed) = (Vec::new(), Vec::new(), Vec::new());
        Self { graph, states, large: largest(graph), several, single, delayed }
    }

    /// A holder leads to a block.
    pub(super) fn begin(&mut self, block: u32, holder: u32) {
        self.reach(&[(block, State::of(holder.min(LOST - 1)))]);
    }

    pub(super) fn is_reached(&self, block: u32) -> bool {
        self.states.get(block as usize).is_some_and(|state| state.owner != NONE)
    }

    /// Carries on what has changed, until nothing does.
    pub(super) fn run(&mut self) {
        let (mut work, mut room) = (Vec::new(), Room::default());
        loop {
            // What several have goes first, and what is behind the large blocks last: most blocks are then gone through
            // once.
            if !self.several.is_empty() {
                std::mem::swap(&mut work, &mut self.several);
                self.carry_on(&work, true, &mut room);
            } else if !self.single.is_empty() {
                std::mem::swap(&mut work, &mut self.single);
                self.carry_on(&work, false, &mut room);
            } else if let Some(from) = self.delayed.pop() {
                let Some(&(mut state)) = self.states.get(from as usize) else { continue };
                if let Some(bit) = self.large.iter().position(|large| *large == from) {
                    state.without &= !(1 << bit);
                }
                room.steps.clear();
                self.follow(state, self.graph.edges_of(from), &mut room.steps);
                self.reach(&room.steps);
            } else {
                break;
            }
            work.clear();
        }
    }

    /// Carries on from blocks that `several` or a single holder have.
    fn carry_on(&mut self, changed: &[u32], several: bool, room: &mut Room) {
        let Room { ways, steps } = room;
        for batch in changed.chunks(BATCH) {
            // in rounds, none of whose loads depends on another of its own
            ways.clear();
            ways.extend(batch.iter().map(|&from| {
                let state = self.states.get(from as usize).copied().unwrap_or(State { owner: NONE, without: 0 });
                (from, state, self.graph.edges_of(from))
            }));
            steps.clear();
            for (from, state, edges) in &*ways {
                // several have it meanwhile: it is carried on as one of those
                if (state.owner == SEVERAL) != several {
                    continue;
                }
                if self.large.contains(from) {
                    self.delayed.push(*from);
                    continue;
                }
                self.follow(*state, edges.clone(), steps);
            }
            self.reach(steps);
        }
    }

    /// Adds the steps along `edges` to those that are to be noted. A block may have millions of pointers: they are
    /// noted in between.
    fn follow(&mut self, state: State, edges: Range<u32>, steps: &mut Vec<(u32, State)>) {
        for start in edges.clone().step_by(MAX_STEPS) {
            if steps.len() >= MAX_STEPS {
                self.reach(steps);
                steps.clear();
            }
            let end = edges.end.min(start.saturating_add(MAX_STEPS as u32));
            steps.extend(self.graph.targets_of(start..end).map(|to| (to, state)));
        }
    }

    /// Notes what leads to blocks. Written without a branch on what is loaded: to guess it wrong is to wait for it.
    fn reach(&mut self, steps: &[(u32, State)]) {
        let Self { states, several, single, .. } = self;
        let (mut several_end, mut single_end) = (several.len(), single.len());
        several.resize(several_end + steps.len(), 0);
        single.resize(single_end + steps.len(), 0);
        for &(to, by) in steps {
            let Some(state) = states.get_mut(to as usize) else { continue };
            let joined = state.join(by);
            let changes = (joined.owner != state.owner) | (joined.without != state.without);
            *state = joined;
            if let (Some(a), Some(b)) = (several.get_mut(several_end), single.get_mut(single_end)) {
                (*a, *b) = (to, to);
            }
            several_end += usize::from(changes & (joined.owner == SEVERAL));
            single_end += usize::from(changes & (joined.owner != SEVERAL));
        }
        several.truncate(several_end);
        single.truncate(single_end);
    }

    /// Tells what was found when all holders are known.
    pub(super) fn finish(mut self) -> Found {
        self.run();
        let lost_heads = lost_heads(self.graph, |block| self.is_reached(block));
        lost_heads.iter().for_each(|&block| self.reach(&[(block, State::of(LOST))]));
        self.run();
        let mut retained = [0u64; LARGEST];
        for (block, state) in self.graph.blocks().iter().zip(&self.states) {
            let missing = !state.without;
            if missing != 0 {
                for (_, sum) in retained.iter_mut().enumerate().filter(|(bit, _)| missing >> bit & 1 == 1) {
                    *sum = sum.saturating_add(block.size);
                }
            }
        }
        let size = |block: u32| self.graph.blocks().get(block as usize).map_or(0, |block| block.size);
        let told = self.large.iter().zip(retained).filter(|(block, _)| **block != NONE);
        let largest = told.map(|(block, below)| (*block, below.saturating_add(size(*block)))).collect();
        let owners = Owners(self.states.iter().map(|state| state.owner).collect());
        Found { owners, lost_heads, largest }
    }
}

/// The largest blocks, the first of equal ones first.
fn largest(graph: &Graph) -> [u32; LARGEST] {
    let mut found: [(u64, u32); LARGEST] = [(0, NONE); LARGEST];
    for (number, block) in (0..).zip(graph.blocks()) {
        let Some((least, of)) = found.last_mut() else { break };
        if *of == NONE || block.size > *least {
            (*least, *of) = (block.size, number);
            found.sort_by_key(|(size, number)| (*number == NONE, std::cmp::Reverse(*size), *number));
        }
    }
    found.map(|(_, number)| number)
}

/// The blocks from which all that is not `reached` can be, and none of which another one leads to: in two rounds, as a
/// later one may lead to an earlier one.
fn lost_heads(graph: &Graph, reached: impl Fn(u32) -> bool) -> Vec<u32> {
    let blocks = graph.blocks().len() as u32;
    let marks = || (0..blocks).map(&reached).collect::<Vec<bool>>();
    let mut seen = marks();
    let mut heads: Vec<u32> = (0..blocks).filter(|&block| flood(graph, block, &mut seen)).collect();
    seen = marks();
    heads.reverse();
    heads.retain(|&block| flood(graph, block, &mut seen));
    heads.reverse();
    heads
}

/// Marks a block and all that it leads to; whether it was not marked before.
fn flood(graph: &Graph, block: u32, marks: &mut [bool]) -> bool {
    let mut is_new = |block: &u32| marks.get_mut(*block as usize).is_some_and(|mark| !std::mem::replace(mark, true));
    if !is_new(&block) {
        return false;
    }
    let mut reached = vec![block];
    while let Some(from) = reached.pop() {
        reached.extend(graph.targets(from).filter(&mut is_new));
    }
    true
}
