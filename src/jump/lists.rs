//! Stacks that a thread has listed, as nobody had met them yet: the tracer takes them in the order in which they were
//! written, and knows the latest ones by the numbers that records and frames name.

use super::layout::{
    CELL_LATEST, CELL_LIST_TAIL, CELL_LISTED, LATEST, LIST_MOST, LIST_SKIP, LIST_WORDS, RING_MOST, cell_at, lists_at,
};
use super::shared::Shared;
use std::collections::VecDeque;

/// So many lists are known by their numbers: of all records that a ring holds, and of what a thread remembers
/// ([`CELL_LATEST`]).
const KEPT: usize = 2 * RING_MOST as usize;

const _: () = assert!(KEPT as u64 >= RING_MOST + LIST_WORDS);

/// A list that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct List {
    /// Its place among all words of its thread.
    pub place: u64,
    /// The stack that its first address is the caller of.
    pub parent: u32,
}

/// The lists of one cell.
#[derive(Debug)]
pub struct Lists {
    cell: u16,
    /// So many words were taken.
    taken: u64,
    /// The stacks of the latest lists, by their places, which ascend.
    stacks: VecDeque<(u64, u32)>,
    /// Which of them was asked for last: the next one mostly is the one behind it.
    near: usize,
}

impl Lists {
    /// Of a cell whose thread has listed nothing yet.
    pub fn begin(shared: &dyn Shared, cell: u16) -> Self {
        let lists = Self { cell, taken: shared.word(listed_at(cell)), stacks: VecDeque::new(), near: 0 };
        lists.give_back(shared);
        forget_latest(shared, cell);
        lists
    }

    /// How many words wait to be taken.
    pub fn waiting(&self, shared: &dyn Shared) -> u64 {
        shared.word(listed_at(self.cell)).wrapping_sub(self.taken).min(LIST_WORDS)
    }

    /// The next list, whose addresses are put in `addresses`. What is not as a thread leaves it is passed over.
    pub fn take(&mut self, shared: &impl Shared, addresses: &mut Vec<u64>) -> Option<List> {
        addresses.clear();
        loop {
            let listed = shared.word(listed_at(self.cell));
            let left = listed.wrapping_sub(self.taken);
            let index = self.taken % LIST_WORDS;
            let rest = (LIST_WORDS - index).min(left);
            let word = |index: u64| shared.word(lists_at(self.cell.into()) + 8 * index);
            let first = if (1..=LIST_WORDS).contains(&left) { word(index) } else { 0 };
            let len = first >> 32;
            if left == 0 {
                return None;
            } else if first == LIST_SKIP {
                self.taken = self.taken.wrapping_add(rest);
            } else if (1..=LIST_MOST + 1).contains(&len) && len < rest {
                addresses.extend((1..=len).map(|at| word(index + at)));
                let place = self.taken;
                self.taken = self.taken.wrapping_add(len + 1);
                return Some(List { place, parent: first as u32 });
            } else {
                self.taken = listed;
            }
        }
    }

    /// The stack that the list is.
    pub fn note(&mut self, list: List, stack: u32) {
        self.stacks.push_back((list.place, stack));
        if self.stacks.len() > KEPT {
            self.stacks.pop_front();
            self.near = self.near.saturating_sub(1);
        }
    }

    /// The stack of the list with this number, if it was taken and is one of the latest.
    pub fn stack(&mut self, number: u32) -> Option<u32> {
        // what records name was taken a moment ago
        let after = u64::from((self.taken as u32).wrapping_sub(number));
        let place = self.taken.wrapping_sub(after);
        let is_it = |at: &usize| self.stacks.get(*at).is_some_and(|(of, _)| *of == place);
        let near = [self.near, self.near + 1].into_iter().find(is_it);
        let at = near.or_else(|| self.stacks.binary_search_by_key(&place, |(place, _)| *place).ok())?;
        self.near = at;
        self.stacks.get(at).map(|(_, stack)| *stack)
    }

    /// Gives the thread the room of all that was taken.
    pub fn give_back(&self, shared: &dyn Shared) {
        shared.set_word(cell_at(self.cell.into()) + CELL_LIST_TAIL, self.taken);
    }
}

/// What the thread of a cell has listed lately it lists anew: addresses may be other modules' than they were.
pub fn forget_latest(shared: &dyn Shared, cell: u16) {
    for entry in 0..LATEST {
        shared.set_word(cell_at(cell.into()) + CELL_LATEST + 16 * entry, 0);
    }
}

const fn listed_at(cell: u16) -> u64 {
    cell_at(cell as u64) + CELL_LISTED
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::Made;
    use super::*;

    /// As the routine writes: one list after the other, none of them round the end.
    fn list(shared: &Made, cell: u16, parent: u32, addresses: &[u64]) -> u32 {
        let mut listed = shared.word(listed_at(cell));
        let put = |place: u64, word| shared.set_word(lists_at(cell.into()) + 8 * (place % LIST_WORDS), word);
        if listed % LIST_WORDS + addresses.len() as u64 + 1 > LIST_WORDS {
            put(listed, LIST_SKIP);
            listed = listed.next_multiple_of(LIST_WORDS);
        }
        put(listed, u64::from(parent) | (addresses.len() as u64) << 32);
        addresses.iter().zip(listed + 1..).for_each(|(address, place)| put(place, *address));
        shared.set_word(listed_at(cell), listed + addresses.len() as u64 + 1);
        listed as u32
    }

    #[test]
    fn lists_come_back_in_their_order_and_are_known_by_their_numbers() {
        let shared = Made::default();
        // short of where numbers begin anew
        shared.set_word(listed_at(3), (1 << 32) - 5 * LIST_WORDS);
        let mut lists = Lists::begin(&shared, 3);
        let mut addresses = Vec::new();
        for round in 0..8000u32 {
            let made: Vec<Vec<u64>> = (0..3u64).map(|n| (0..=(u64::from(round) * 7 + n) % 60).collect()).collect();
            let numbers: Vec<u32> = made.iter().map(|made| list(&shared, 3, round, made)).collect();
            for (made, number) in made.iter().zip(&numbers) {
                assert_eq!(lists.stack(*number), None);
                let list = lists.take(&shared, &mut addresses).unwrap();
                assert_eq!((&addresses, list.parent, list.place as u32), (made, round, *number));
                lists.note(list, number ^ 5);
            }
            assert_eq!((lists.take(&shared, &mut addresses), lists.waiting(&shared)), (None, 0));
            assert!(numbers.iter().all(|number| lists.stack(*number) == Some(number ^ 5)));
            lists.give_back(&shared);
            assert_eq!(shared.word(cell_at(3) + CELL_LIST_TAIL), shared.word(listed_at(3)));
        }
        assert!(lists.stacks.len() <= KEPT, "those that nobody can name are forgotten");
    }

    #[test]
    fn what_the_program_writes_there_does_no_harm() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 30
        };
        let shared = Made::default();
        let mut lists = Lists::begin(&shared, 0);
        let mut addresses = Vec::new();
        for _ in 0..20_000 {
            let word = [LIST_SKIP, random(), random() << 32, u64::MAX - 1][random() as usize % 4];
            shared.set_word(lists_at(0) + 8 * (random() % LIST_WORDS), word);
            let listed = lists.taken.wrapping_add([random() % 50, random(), LIST_WORDS][random() as usize % 3]);
            shared.set_word(listed_at(0), listed);
            while let Some(list) = lists.take(&shared, &mut addresses) {
                assert!(!addresses.is_empty() && addresses.len() as u64 <= LIST_MOST + 1);
                lists.note(list, 1);
            }
            assert_eq!(lists.taken, listed);
        }
    }
}
