//! What tests did, with names.

use crate::base::addr::{StackId, TestId};
use crate::base::leakclass::LeakClass;
use crate::heapmodel::{TestFigures, TestTally};
use crate::profile::Amount;
use crate::profile::pertest::{LiveOfTest, TestRow, Tests};
use std::collections::BTreeMap;

/// What is known of the tests.
#[derive(Clone, Copy, Debug)]
pub struct TestInput<'a> {
    /// Their names, by [`TestId`].
    pub names: &'a [String],
    /// What they have done.
    pub tally: &'a TestTally,
    /// The live blocks of each test, stack and class; None: outside of tests.
    pub live: &'a [(Option<TestId>, StackId, LeakClass, Amount)],
}

/// Makes the table. `exported`: the stack that one is told as; several may be one.
pub(super) fn name(input: &TestInput<'_>, exported: impl Fn(StackId) -> Option<usize>) -> Tests {
    let mut live: BTreeMap<Option<TestId>, BTreeMap<(usize, LeakClass), Amount>> = BTreeMap::new();
    for &(test, stack, class, amount) in input.live {
        let Some(stack) = exported(stack) else { continue };
        let sum = live.entry(test).or_default().entry((stack, class)).or_default();
        *sum = sum.plus(amount);
    }
    let mut live_of = |test| {
        let sums = live.remove(&test).unwrap_or_default();
        sums.into_iter().map(|((stack, class), amount)| LiveOfTest { stack, class, amount }).collect()
    };
    let row = |figures: &TestFigures| TestRow {
        name: input.names.get(figures.test.0 as usize).cloned().unwrap_or_default(),
        runs: figures.runs,
        duration_ns: figures.duration_ns,
        allocated: figures.allocated,
        peak_bytes: figures.peak_bytes,
        kept: figures.kept,
        live: live_of(Some(figures.test)),
        leaked: Amount::default(),
        grown: Vec::new(),
    };
    let rows = input.tally.tests.iter().map(row).collect();
    Tests { rows, outside: live_of(None), outside_leaked: Amount::default(), unassigned: input.tally.unassigned }
}
