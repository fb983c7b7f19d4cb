//! What is known of a call by its function and its stack.

use crate::addr::{Addr, StackId};
use crate::allocators::Family;
use crate::event::Missed;
use rustc_hash::FxHashMap;

/// See the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    pub(super) family: Option<Family>,
    pub(super) caller_is_allocator: bool,
    pub(super) missed: Option<Missed>,
}

/// What is known of all calls of a function from one place, on whatever stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallerFacts {
    pub(super) family: Option<Family>,
    pub(super) caller_is_allocator: bool,
}

/// The facts of all calls that were asked for once, by their places: stacks may be a million, places are some hundreds. The latest ones are found by their
/// stacks: a program allocates in few places at a time.
#[derive(Debug)]
pub(super) struct KnownFacts {
    of_callers: FxHashMap<(u16, Addr), CallerFacts>,
    latest: Box<[Option<(u64, Facts)>; LATEST]>,
}

/// A power of two.
const LATEST: usize = 256;

impl Default for KnownFacts {
    fn default() -> Self {
        Self { of_callers: FxHashMap::default(), latest: Box::new([None; LATEST]) }
    }
}

impl KnownFacts {
    /// The facts of a call, if it is one of the latest.
    #[inline]
    pub(super) fn latest(&self, function: u16, stack: StackId) -> Option<Facts> {
        let key = key(function, stack);
        let (of, facts) = (*self.latest.get(place(key))?)?;
        (of == key).then_some(facts)
    }

    pub(super) fn note_latest(&mut self, function: u16, stack: StackId, facts: Facts) {
        let key = key(function, stack);
        if let Some(latest) = self.latest.get_mut(place(key)) {
            *latest = Some((key, facts));
        }
    }

    pub(super) fn of_caller(&self, function: u16, caller: Addr) -> Option<CallerFacts> {
        self.of_callers.get(&(function, caller)).copied()
    }

    pub(super) fn insert(&mut self, function: u16, caller: Addr, facts: CallerFacts) {
        self.of_callers.insert((function, caller), facts);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn key(function: u16, stack: StackId) -> u64 {
    u64::from(function) << 32 | u64::from(stack.0)
}

/// Functions that are called from one place, as malloc and free, have places of their own.
fn place(key: u64) -> usize {
    (key ^ key >> 29) as usize % LATEST
}
