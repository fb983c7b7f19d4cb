//! What has changed from one profile to another, stack by stack. Pure.
//!
//! Stacks are the same if their functions have the same names, innermost first: so builds compare whose addresses and
//! lines differ.

use super::value::Value;
use super::{Amount, Profile, Samples};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// In which way a stack has changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// It has more than before.
    Grown,
    /// It had nothing before.
    New,
    /// It has less than before.
    Shrunk,
    /// It has nothing any more.
    Gone,
}

impl Kind {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Grown, Self::New, Self::Shrunk, Self::Gone];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grown => "grown",
            Self::New => "new",
            Self::Shrunk => "shrunk",
            Self::Gone => "gone",
        }
    }
}

/// A stack that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// A hash of the names of its functions.
    pub id: u64,
    /// How.
    pub kind: Kind,
    /// An index into the stacks of the later profile; of the earlier one if it is gone.
    pub stack: usize,
    /// What it had.
    pub before: Amount,
    /// What it has.
    pub after: Amount,
}

impl Change {
    /// By how many bytes it has changed.
    pub fn bytes(&self) -> i128 {
        i128::from(self.after.bytes) - i128::from(self.before.bytes)
    }

    /// By how many blocks.
    pub fn objects(&self) -> i128 {
        i128::from(self.after.objects) - i128::from(self.before.objects)
    }
}

/// All changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diff {
    /// What was compared.
    pub value: Value,
    /// The sum of the earlier profile.
    pub before: Amount,
    /// The sum of the later one.
    pub after: Amount,
    /// The stacks that have changed, those first that have by most bytes.
    pub changes: Vec<Change>,
    /// How many stacks are as they were.
    pub same: u64,
}

impl Diff {
    /// Compares; `before` and `after` come with their samples as they are to be counted, scaled up if they are of
    /// picked blocks.
    pub fn new(before: (&Profile, &Samples), after: (&Profile, &Samples), value: Value) -> Self {
        let old = sums(before, value);
        let new = sums(after, value);
        let mut changes = Vec::new();
        let mut same = 0;
        for (id, (stack, now)) in &new {
            let was = old.get(id).map_or(Amount::default(), |(_, was)| *was);
            if was == *now {
                same += u64::from(*now != Amount::default());
                continue;
            }
            let kind = match (was == Amount::default(), *now == Amount::default()) {
                (true, _) => Kind::New,
                (_, true) => Kind::Gone,
                _ if (now.bytes, now.objects) > (was.bytes, was.objects) => Kind::Grown,
                _ => Kind::Shrunk,
            };
            // a stack without amounts is one of the later profile all the same
            let stack = if kind == Kind::Gone { old.get(id).map_or(*stack, |(stack, _)| *stack) } else { *stack };
            changes.push(Change { id: *id, kind, stack, before: was, after: *now });
        }
        for (id, (stack, was)) in
            old.iter().filter(|(id, (_, was))| !new.contains_key(*id) && *was != Amount::default())
        {
            changes.push(Change { id: *id, kind: Kind::Gone, stack: *stack, before: *was, after: Amount::default() });
        }
        changes.sort_by_key(|change| (Reverse(change.bytes().abs()), Reverse(change.objects().abs()), change.id));
        let sum = |sums: &FxHashMap<u64, (usize, Amount)>| {
            sums.values().fold(Amount::default(), |sum, (_, amount)| sum.plus(*amount))
        };
        Self { value, before: sum(&old), after: sum(&new), changes, same }
    }

    /// By how many bytes the sum has grown; None if it has not.
    pub fn growth(&self) -> Option<u64> {
        self.after.bytes.checked_sub(self.before.bytes).filter(|growth| *growth > 0)
    }

    /// The changes of a kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.kind == kind)
    }
}

/// Of each stack's id a stack and the sum.
fn sums((profile, samples): (&Profile, &Samples), value: Value) -> FxHashMap<u64, (usize, Amount)> {
    let mut ids = vec![None; profile.stacks.len()];
    let mut sums: FxHashMap<u64, (usize, Amount)> = FxHashMap::default();
    for sample in samples.iter() {
        let id = match ids.get_mut(sample.stack) {
            Some(known) => *known.get_or_insert_with(|| profile.site_id(sample.stack)),
            None => continue,
        };
        let (_, sum) = sums.entry(id).or_insert((sample.stack, Amount::default()));
        *sum = sum.plus(value.of(&sample));
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::sample_profile;

    fn compared(change: impl Fn(&mut Profile)) -> Diff {
        let before = sample_profile();
        let mut after = sample_profile();
        change(&mut after);
        Diff::new((&before, &before.samples), (&after, &after.samples), Value::Allocated)
    }

    #[test]
    fn a_profile_differs_from_itself_in_nothing() {
        let diff = compared(|_| {});
        assert!(diff.changes.is_empty() && diff.same > 0 && diff.growth().is_none());
        assert_eq!(diff.before, diff.after);
    }

    #[test]
    fn other_addresses_and_lines_are_no_change() {
        let diff = compared(|profile| {
            for location in &mut profile.locations {
                location.address.0 += 0x1000;
                location.lines.iter_mut().for_each(|line| line.line += 3);
            }
        });
        assert!(diff.changes.is_empty(), "{:?}", diff.changes);
    }

    #[test]
    fn each_kind_of_change_is_told() {
        let grown = compared(|profile| profile.samples.edit(|samples| samples[0].allocated.bytes += 100));
        assert_eq!(
            grown.changes.iter().map(|change| (change.kind, change.bytes())).collect::<Vec<_>>(),
            [(Kind::Grown, 100)]
        );
        assert_eq!(grown.growth(), Some(100));
        let shrunk = compared(|profile| profile.samples.edit(|samples| samples[0].allocated.bytes -= 10));
        assert_eq!((shrunk.changes[0].kind, shrunk.changes[0].bytes(), shrunk.growth()), (Kind::Shrunk, -10, None));
        let gone = compared(|profile| {
            profile.samples.edit(|samples| samples.remove(0));
        });
        assert_eq!(gone.changes[0].kind, Kind::Gone);
        let renamed = compared(|profile| profile.functions[0].name = "other_node".to_owned());
        let kinds: Vec<Kind> = renamed.changes.iter().map(|change| change.kind).collect();
        assert!(kinds.contains(&Kind::New) && kinds.contains(&Kind::Gone), "{kinds:?}");
        assert_eq!(renamed.growth(), None);
    }
}
