//! Sites by what their frames are called: those with a text in them, and the sums by function and by module.
//!
//! What a stack is called is found out once, by others: it takes longer than all the rest.

use super::watch::Row;
use crate::base::addr::StackId;
use crate::base::figures::Amount;
use crate::top::ctl::{Change, Grouping, Order};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// What is known of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Label {
    /// Numbers of names.
    function: u32,
    module: u32,
    has_text: bool,
}

/// What the stacks of a process are called, as far as that was found out.
#[derive(Debug, Default)]
pub struct Labels {
    text: String,
    image: u32,
    names: Vec<String>,
    numbers: FxHashMap<String, u32>,
    labels: FxHashMap<StackId, Label>,
}

/// Stacks that are one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// What they have in common.
    pub name: String,
    /// The row of the one that comes first.
    pub first: usize,
    /// How many they are.
    pub stacks: u64,
    /// What is live.
    pub live: Amount,
    /// How that has changed since the base.
    pub grown: Change,
    /// What was allocated since the last answer.
    pub recent: Amount,
}

impl Labels {
    /// Another answer, to a question for this text: what is known of another one, or of another program, counts no
    /// more.
    pub fn begin(&mut self, text: &str, image: u32) {
        if self.text != text || self.image != image {
            *self = Self { text: text.to_owned(), image, ..Self::default() };
        }
    }

    /// Whether a stack's names are known.
    pub fn knows(&self, stack: StackId) -> bool {
        self.labels.contains_key(&stack)
    }

    /// A stack's allocations are put down to this function and this module; `has_text`: the text is in one of its
    /// frames.
    pub fn learn(&mut self, stack: StackId, function: String, module: String, has_text: bool) {
        let label = Label { function: self.number(function), module: self.number(module), has_text };
        self.labels.insert(stack, label);
    }

    fn number(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }

    /// Whether a stack has the text; one that is not known has none.
    pub fn has_text(&self, stack: StackId) -> bool {
        self.labels.get(&stack).is_some_and(|label| label.has_text)
    }

    /// What a stack counts to.
    fn group_of(&self, stack: StackId, grouping: Grouping) -> Option<u32> {
        let label = self.labels.get(&stack).filter(|label| label.has_text)?;
        match grouping {
            Grouping::Site => None,
            Grouping::Function => Some(label.function),
            Grouping::Module => Some(label.module),
        }
    }

    /// Which of the rows, the first ones first, are to be named for an answer with so many sites: those that are not
    /// known yet, and those that may be shown.
    pub fn to_name(&self, rows: &[Row], grouping: Grouping, sites: usize) -> Vec<usize> {
        let mut left = sites;
        let mut seen = rustc_hash::FxHashSet::default();
        let mut is_wanted = |row: &Row| match grouping {
            _ if !self.knows(row.stack) => true,
            Grouping::Site => {
                let is_wanted = left > 0 && self.has_text(row.stack);
                left -= usize::from(is_wanted);
                is_wanted
            }
            Grouping::Function | Grouping::Module => {
                self.group_of(row.stack, grouping).is_some_and(|group| seen.insert(group))
            }
        };
        rows.iter().enumerate().filter(|(_, row)| is_wanted(row)).map(|(at, _)| at).collect()
    }

    /// The sums of the rows that have the text, the `most` that come first.
    pub fn groups(&self, rows: &[Row], grouping: Grouping, order: Order, most: usize) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut places: FxHashMap<u32, usize> = FxHashMap::default();
        for (at, row) in rows.iter().enumerate() {
            let Some(number) = self.group_of(row.stack, grouping) else { continue };
            let new = groups.len();
            let place = *places.entry(number).or_insert(new);
            match groups.get_mut(place) {
                Some(group) => {
                    group.stacks += 1;
                    group.live = group.live.plus(row.live);
                    group.grown = group.grown.plus(row.grown);
                    group.recent = group.recent.plus(row.recent);
                }
                None => groups.push(Group {
                    name: self.names.get(number as usize).cloned().unwrap_or_default(),
                    first: at,
                    stacks: 1,
                    live: row.live,
                    grown: row.grown,
                    recent: row.recent,
                }),
            }
        }
        // equal ones in the order of the stacks that come first
        groups.sort_by_key(|group| Reverse(order.rank(group.live, group.grown, group.recent)));
        groups.truncate(most);
        groups
    }
}
