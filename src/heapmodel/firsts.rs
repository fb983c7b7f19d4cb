//! The first site of each stack. New stacks have ascending ids, so that neither a new one nor a known one is looked up
//! in a hash table: a bit for each id says whether the stack has a site, and how many have one before it says where.

use crate::base::addr::StackId;

/// Stacks of a group: a bit each in its word.
const GROUP: u32 = 64;

/// A stack that comes later than so many others with higher ids, or whose id is so many groups behind, is not taken:
/// all behind it move.
const MAX_MOVED: usize = 64;

/// Nor is one so many groups behind the last, nor any stack from there on: ids that an event makes up would take
/// memory.
const MAX_SKIPPED: usize = 1 << 10;

/// Which of 64 stacks have a site.
#[derive(Clone, Copy, Default, Debug)]
struct Group {
    bits: u64,
    /// How many have one in the groups before.
    before: u32,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Firsts {
    /// The number of the first group.
    begin: usize,
    groups: Vec<Group>,
    /// Of the stacks that have one, in the order of their ids.
    sites: Vec<u32>,
    /// Stacks with this id or a higher one are not taken.
    end: u32,
}

impl Default for Firsts {
    fn default() -> Self {
        Self { begin: 0, groups: Vec::new(), sites: Vec::new(), end: u32::MAX }
    }
}

impl Firsts {
    /// The first site of the stack, if it has one that was entered.
    #[inline(always)]
    pub(super) fn get(&self, stack: StackId) -> Option<u32> {
        let group = self.groups.get(((stack.0 / GROUP) as usize).wrapping_sub(self.begin))?;
        let bit = 1 << (stack.0 % GROUP);
        let is_there = group.bits & bit != 0;
        is_there.then(|| self.sites.get(group.place(bit)).copied())?
    }

    /// Enters the first site of a stack that has none. False if it can't be entered here: then it never can.
    pub(super) fn enter(&mut self, stack: StackId, site: u32) -> bool {
        if stack.0 >= self.end {
            return false;
        }
        let number = (stack.0 / GROUP) as usize;
        if self.groups.is_empty() {
            self.begin = number;
        }
        let Some(index) = number.checked_sub(self.begin) else { return false };
        if index >= self.groups.len() + MAX_SKIPPED {
            self.end = stack.0;
            return false;
        }
        let bit = 1 << (stack.0 % GROUP);
        let place = self.groups.get(index).map_or(self.sites.len(), |group| group.place(bit));
        if self.sites.len() - place > MAX_MOVED || self.groups.len().saturating_sub(index) > MAX_MOVED {
            return false;
        }
        if index >= self.groups.len() {
            self.groups.resize(index + 1, Group { bits: 0, before: self.sites.len() as u32 });
        }
        let (group, behind) = match self.groups.get_mut(index..) {
            Some([group, behind @ ..]) => (group, behind),
            _ => return false,
        };
        group.bits |= bit;
        behind.iter_mut().for_each(|group| group.before += 1);
        self.sites.insert(place, site);
        true
    }

    /// Bytes of heap, with the copy that the larger table's growth would need.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.groups.capacity() * size_of::<Group>() + self.sites.capacity() * size_of::<u32>()
    }
}

impl Group {
    /// Where the site is of the stack with this bit, or is to be.
    #[inline(always)]
    const fn place(self, bit: u64) -> usize {
        self.before as usize + (self.bits & (bit - 1)).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    /// As a plain map has it; what is not taken is not taken later.
    #[test]
    fn sites_are_found_as_a_plain_map_finds_them() {
        for begin in [0, 1 << 20, u32::MAX - 500_000] {
            let (mut firsts, mut plain, mut refused) = (Firsts::default(), BTreeMap::new(), BTreeMap::new());
            let mut state = u64::from(begin) + 1;
            let mut random = |below: u32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u32 % below
            };
            let mut newest = begin;
            for site in 0..60_000 {
                newest += random(12);
                let back = [0, 0, 0, 5, 80, 3000][random(6) as usize];
                let stack = newest.saturating_sub(random(back + 1));
                if let Entry::Vacant(place) = plain.entry(stack) {
                    if firsts.enter(StackId(stack), site) {
                        assert!(!refused.contains_key(&stack), "{stack} was not taken before");
                        place.insert(site);
                    } else {
                        refused.insert(stack, site);
                    }
                }
                let known = stack.saturating_sub(random(200));
                assert_eq!(firsts.get(StackId(known)), plain.get(&known).copied());
            }
            assert!(plain.iter().all(|(stack, site)| firsts.get(StackId(*stack)) == Some(*site)));
            assert!((100..plain.len() / 4).contains(&refused.len()), "{} beside {}", refused.len(), plain.len());
        }
    }

    #[test]
    fn ids_that_are_made_up_take_no_memory() {
        let mut firsts = Firsts::default();
        assert!(firsts.enter(StackId(70), 1));
        assert!(!firsts.enter(StackId::EXISTING, 2) && !firsts.enter(StackId(1 << 31), 3));
        assert!(firsts.enter(StackId(60_000), 4), "some groups are skipped");
        assert!(!firsts.enter(StackId(3), 5), "below the first group");
        assert_eq!([70, 60_000, 1 << 31, 3].map(|stack| firsts.get(StackId(stack))), [Some(1), Some(4), None, None]);
        assert!(firsts.memory() < 40_000, "{}", firsts.memory());
        // not even when others come near: the one that was refused, and all behind it
        let mut firsts = Firsts::default();
        assert!(firsts.enter(StackId(0), 1) && !firsts.enter(StackId(200_000), 2));
        assert!((1..=3).all(|n| firsts.enter(StackId(60_000 * n), 3)));
        assert!(!firsts.enter(StackId(200_000), 4) && !firsts.enter(StackId(200_001), 5));
        assert!(firsts.enter(StackId(199_999), 6));
    }
}
