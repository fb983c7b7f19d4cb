//! Spreads types over blocks: from where they are known, along pointers of known types.
//!
//! Each block is typed once, by the best that is known of it: its own tables, then the first pointer with a declared
//! type that leads to its start (those of variables first, then by the number of pointers on the way). Where a
//! pointer's type can't be right (the block is too small for it) it tells nothing.

use super::{Finish, Places, TypeId, TypeTable};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What allocators add to what was asked for, in bytes: glibc up to 31, by its granularity and smallest chunk.
const ROUNDING: u64 = 31;
/// Blocks from this size on may be rounded up to pages.
const LARGE: u64 = 64 << 10;
/// By so much, in bytes: a page.
const PAGE: u64 = 4096;
/// Of a block's elements so many pointers are looked at to see whether they can be such elements.
const PROBED: usize = 64;
/// An array of objects with destructors begins with their number (Itanium C++ ABI 2.7), in so many bytes.
const COOKIES: [u64; 2] = [8, 16];

/// So many blocks are loaded together.
const LOADED: usize = 256;

/// A pointer of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// How far behind the block's start it lies, in bytes.
    pub at: u64,
    /// The block that it leads to.
    pub target: u32,
    /// How far behind that one's start, in bytes.
    pub into: u64,
}

/// Blocks with their pointers.
pub trait Blocks {
    /// How many there are.
    fn count(&self) -> usize;

    /// Where one is, and what the program may use of it, in bytes.
    fn range(&self, block: u32) -> (Addr, u64);

    /// Its pointers, in the order of their places.
    fn edges(&self, block: u32) -> impl Iterator<Item = Edge>;

    /// Has the processor load what will be asked for of some blocks and of those that they lead to, which are added to
    /// `targets`: of many at once, where the questions come one after the other.
    fn load(&self, blocks: &[u32], targets: &mut Vec<u32>);
}

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Typed {
    /// Its type, or that of its elements.
    pub of: TypeId,
    /// Whether there are several.
    pub many: bool,
    /// Where the first whole one begins, in bytes.
    pub phase: u64,
}

/// A pointer of a known type, from outside of the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead {
    /// The block that it leads to.
    pub target: u32,
    /// How far behind its start, in bytes.
    pub into: u64,
    /// The type that it leads to.
    pub of: TypeId,
    /// Whether it leads behind the last of such.
    pub is_end: bool,
    /// If it is a vector's: where it lies, and what says how many elements there are.
    pub finish: Option<(Addr, Finish)>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    /// What blocks are, each once.
    kinds: Vec<Typed>,
    /// By block, the number of what it is; [`NOTHING`]: that is not known.
    of_block: Vec<u32>,
    /// Of vectors' blocks: how much of it, in bytes, holds elements. What lies behind leads to nothing.
    pub used: FxHashMap<u32, u64>,
}

/// Of a block of which nothing is known.
const NOTHING: u32 = u32::MAX;

impl Spread {
    /// What a block is.
    pub fn of(&self, block: u32) -> Option<Typed> {
        self.kinds.get(*self.of_block.get(block as usize)? as usize).copied()
    }
}

/// Spreads types: `exact` are blocks whose types their own tables tell.
pub fn spread(
    table: &TypeTable,
    blocks: &impl Blocks,
    exact: &[(u32, TypeId)],
    leads: &[Lead],
    memory: &mut dyn ReadMemory,
) -> Spread {
    let found = Spread { of_block: vec![NOTHING; blocks.count()], ..Spread::default() };
    let (numbers, waiting, places) = (FxHashMap::default(), VecDeque::new(), Places::default());
    let mut spreading = Spreading { table, blocks, memory, found, numbers, waiting, places };
    for (block, of) in exact {
        let (_, size) = blocks.range(*block);
        let many = spreading.is_array(*block, *of, size);
        spreading.note(*block, Typed { of: *of, many, phase: 0 });
    }
    for lead in leads {
        spreading.follow(lead);
    }
    spreading.run();
    spreading.found
}

struct Spreading<'a, B> {
    table: &'a TypeTable,
    blocks: &'a B,
    memory: &'a mut dyn ReadMemory,
    found: Spread,
    /// Of each kind of block.
    numbers: FxHashMap<Typed, u32>,
    waiting: VecDeque<u32>,
    places: Places,
}

impl<B: Blocks> Spreading<'_, B> {
    fn run(&mut self) {
        let (mut loaded, mut targets) = (0, Vec::new());
        // each block waits once at most
        while let Some(block) = self.waiting.pop_front() {
            if loaded == 0 {
                loaded = self.load(block, &mut targets);
            }
            loaded -= 1;
            let Some(typed) = self.of(block) else { continue };
            let (start, _) = self.blocks.range(block);
            let blocks = self.blocks;
            for edge in blocks.edges(block) {
                let Some(offset) = offset_in(self.table, typed, edge.at) else { continue };
                let Some(place) = self.places.get(self.table, typed.of, offset.1) else { continue };
                let Some(of) = place.leads else { continue };
                let at = start.add(edge.at);
                let finish = place.finish.map(|(ahead, finish)| (Addr(at.0.wrapping_add_signed(ahead)), finish));
                let lead = Lead { target: edge.target, into: edge.into, of, is_end: place.is_end, finish };
                self.follow(&lead);
            }
        }
    }

    /// Loads `block` and those that wait behind it; returns how many.
    fn load(&self, block: u32, targets: &mut Vec<u32>) -> usize {
        let blocks: Vec<u32> = std::iter::once(block).chain(self.waiting.iter().copied().take(LOADED - 1)).collect();
        targets.clear();
        self.blocks.load(&blocks, targets);
        let of = |target: &u32| self.found.of_block.get(*target as usize).copied().unwrap_or(NOTHING);
        std::hint::black_box(targets.iter().fold(0, |any, target| any ^ of(target)));
        blocks.len()
    }

    fn of(&self, block: u32) -> Option<Typed> {
        self.found.of(block)
    }

    fn note(&mut self, block: u32, typed: Typed) {
        if let Some(slot) = self.found.of_block.get_mut(block as usize)
            && *slot == NOTHING
        {
            let kinds = &mut self.found.kinds;
            *slot = *self.numbers.entry(typed).or_insert_with(|| {
                kinds.push(typed);
                kinds.len() as u32 - 1
            });
            self.waiting.push_back(block);
        }
    }

    fn follow(&mut self, lead: &Lead) {
        if self.of(lead.target).is_none()
            && let Some(typed) = self.fit(lead)
        {
            self.note(lead.target, typed);
        }
        // not what a vector that is gone has left
        if self.of(lead.target).is_some_and(|typed| typed.many && typed.of == lead.of && typed.phase == 0) {
            self.note_used(lead);
        }
    }

    /// What the block is that a pointer leads to.
    fn fit(&mut self, lead: &Lead) -> Option<Typed> {
        let (_, usable) = self.blocks.range(lead.target);
        let of = match self.table.get(lead.of)?.grown {
            Some(grown) if lead.into == 0 && self.table.size(grown) <= usable => grown,
            _ => lead.of,
        };
        let size = self.table.size(of);
        if size == 0 || size > usable {
            return None;
        }
        if lead.is_end {
            return (lead.into >= size).then_some(Typed { of, many: true, phase: lead.into % size });
        }
        match lead.into {
            0 if lead.finish.is_some() => Some(Typed { of, many: true, phase: 0 }),
            0 => Some(Typed { of, many: self.is_array(lead.target, of, usable), phase: 0 }),
            // objects with destructors, behind their number
            cookie if COOKIES.contains(&cookie) && self.counts(lead.target, cookie, size, usable) => {
                Some(Typed { of, many: true, phase: cookie })
            }
            _ => None,
        }
    }

    /// Whether the word before the first element is the number of elements that there is room for.
    fn counts(&mut self, block: u32, cookie: u64, size: u64, usable: u64) -> bool {
        let (start, _) = self.blocks.range(block);
        let Some(count) = self.memory.read_u64(start.add(cookie - 8)) else { return false };
        let told = count.checked_mul(size).and_then(|bytes| bytes.checked_add(cookie));
        count > 0 && told.is_some_and(|told| told <= usable && usable - told <= rounding(usable))
    }

    /// Whether a block can be several of a type: there is room for them and for hardly more, and pointers lie only
    /// where elements may have some.
    fn is_array(&mut self, block: u32, of: TypeId, usable: u64) -> bool {
        let size = self.table.size(of);
        if size == 0 || usable / size < 2 || usable % size > rounding(usable) || self.table.is_open(of) {
            return false;
        }
        // one that was rounded up
        if usable - size <= ROUNDING {
            return false;
        }
        let blocks = self.blocks;
        blocks.edges(block).filter(|edge| edge.at >= size).take(PROBED).all(|edge| {
            // what the last whole element leaves is not used
            edge.at / size >= usable / size
                || self.places.get(self.table, of, edge.at % size).is_some_and(|place| place.may_point)
        })
    }

    /// How much of a vector's block holds elements.
    fn note_used(&mut self, lead: &Lead) {
        let Some((at, finish)) = lead.finish.filter(|_| lead.into == 0) else { return };
        if self.blocks.edges(lead.target).next().is_none() {
            return;
        }
        let (start, usable) = self.blocks.range(lead.target);
        let Some(word) = self.memory.read_u64(at) else { return };
        let used = match finish {
            Finish::Pointer(_) => word.checked_sub(start.0),
            Finish::Length(_) => word.checked_mul(self.table.size(lead.of)),
        };
        let Some(used) = used.filter(|used| *used <= usable) else { return };
        let slot = self.found.used.entry(lead.target).or_insert(0);
        *slot = used.max(*slot);
    }
}

const fn rounding(usable: u64) -> u64 {
    if usable >= LARGE { PAGE + ROUNDING } else { ROUNDING }
}

/// The number of the element that a place of a block is in, and how far behind that one's start.
pub fn offset_in(table: &TypeTable, typed: Typed, at: u64) -> Option<(u64, u64)> {
    if !typed.many {
        return Some((0, at.checked_sub(typed.phase)?));
    }
    let size = table.size(typed.of);
    let within = at.checked_sub(typed.phase)?;
    Some((within.checked_div(size)?, within % size))
}
