//! What is known of a call by its function and its stack.

use crate::addr::StackId;
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

/// The facts of all calls that were asked for once. The latest ones are found at a place of their own: a program allocates in few places at a time.
#[derive(Debug)]
pub(super) struct KnownFacts {
    all: FxHashMap<u64, Facts>,
    latest: Box<[Option<(u64, Facts)>; LATEST]>,
}

/// A power of two.
const LATEST: usize = 256;

impl Default for KnownFacts {
    fn default() -> Self {
        Self { all: FxHashMap::default(), latest: Box::new([None; LATEST]) }
    }
}

impl KnownFacts {
    #[inline]
    pub(super) fn get(&mut self, function: u16, stack: StackId) -> Option<Facts> {
        let key = key(function, stack);
        let latest = self.latest.get_mut(place(key))?;
        match latest {
            Some((of, facts)) if *of == key => Some(*facts),
            _ => {
                let facts = *self.all.get(&key)?;
                *latest = Some((key, facts));
                Some(facts)
            }
        }
    }

    pub(super) fn insert(&mut self, function: u16, stack: StackId, facts: Facts) {
        self.all.insert(key(function, stack), facts);
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
