//! What is known of a call by its function and its stack.

use crate::allocators::Family;
use crate::base::addr::{Addr, StackId};
use crate::event::Missed;
use rustc_hash::FxHashMap;

/// See the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    pub(super) family: Option<Family>,
    pub(super) caller_is_allocator: bool,
    pub(super) missed: Option<Missed>,
}

/// What is known of all calls of a function by one caller, a return address, on whatever stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallerFacts {
    pub(super) family: Option<Family>,
    pub(super) caller_is_allocator: bool,
}

/// The facts of all calls that were asked for once, by function and caller: stacks may be a million, callers are some
/// hundreds. The latest ones are found by their stacks: a program allocates from few callers at a time, and recursive
/// ones on some thousand stacks.
#[derive(Debug)]
pub(super) struct KnownFacts {
    of_callers: FxHashMap<(u16, Addr), CallerFacts>,
    /// A slot for each of the latest stacks. At least one slot, and a power of two.
    latest: Vec<Option<(u64, Facts)>>,
    /// How often facts were noted since there are so many slots as now.
    noted: usize,
}

/// The number of slots at first, and at most (256 KiB). Powers of two.
const FIRST_LATEST: usize = 1 << 8;
const MAX_LATEST: usize = 1 << 14;

/// There are to be more slots when facts were noted so many times for each of them, on average.
const MANY_TIMES: usize = 8;

impl Default for KnownFacts {
    fn default() -> Self {
        Self { of_callers: FxHashMap::default(), latest: vec![None; FIRST_LATEST], noted: 0 }
    }
}

impl KnownFacts {
    /// The facts of a call, if it is one of the latest.
    #[inline]
    pub(super) fn latest(&self, function: u16, stack: StackId) -> Option<Facts> {
        let key = key(function, stack);
        let (of, facts) = (*self.latest.get(self.slot(key))?)?;
        (of == key).then_some(facts)
    }

    /// Notes the facts of a call. Not of the empty stack: calls whose stacks are not known have different callers.
    pub(super) fn note_latest(&mut self, function: u16, stack: StackId, facts: Facts) {
        if stack == StackId::EMPTY {
            return;
        }
        let key = key(function, stack);
        self.noted += 1;
        let slots = self.latest.len();
        if slots < MAX_LATEST && self.noted > MANY_TIMES * slots {
            self.noted = 0;
            self.latest = vec![None; slots * 4];
        }
        let slot = self.slot(key);
        if let Some(latest) = self.latest.get_mut(slot) {
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

    /// By the stack alone: its innermost return address calls one function, and stacks that were met one after the
    /// other have slots of their own.
    #[inline]
    fn slot(&self, key: u64) -> usize {
        key as u32 as usize & (self.latest.len() - 1)
    }
}

fn key(function: u16, stack: StackId) -> u64 {
    u64::from(function) << 32 | u64::from(stack.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_once_there_is_room_for_all_and_nothing_else_ever() {
        let mut known = KnownFacts::default();
        let facts = |function: u16, stack: u32| Facts {
            family: None,
            caller_is_allocator: (u32::from(function) + stack).is_multiple_of(3),
            missed: stack.is_multiple_of(5).then_some(Missed::UnwindRule),
        };
        let calls = || (1..3001u32).map(|stack| (stack as u16 % 7, StackId(stack)));
        let mut found = 0;
        for _ in 0..40 {
            found = 0;
            for (function, stack) in calls() {
                match known.latest(function, stack) {
                    Some(latest) => {
                        assert_eq!(latest, facts(function, stack.0));
                        found += 1;
                    }
                    None => known.note_latest(function, stack, facts(function, stack.0)),
                }
            }
        }
        assert!(found > 2900, "{found} of 3,000");
        assert_eq!(known.latest(7, StackId(1)), None);
        known.clear();
        assert_eq!(known.latest(1, StackId(1)), None);
    }

    #[test]
    fn of_an_empty_stack_nothing_is_kept() {
        let mut known = KnownFacts::default();
        let facts = |family| Facts { family: Some(family), caller_is_allocator: false, missed: None };
        known.note_latest(1, StackId::EMPTY, facts(Family::New));
        known.note_latest(1, StackId(7), facts(Family::NewArray));
        assert_eq!(known.latest(1, StackId::EMPTY), None, "another call of it has another caller");
        assert_eq!(known.latest(1, StackId(7)), Some(facts(Family::NewArray)));
    }
}
