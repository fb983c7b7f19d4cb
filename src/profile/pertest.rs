//! What each test of a test program did with the heap: the part of a profile that `check --per-test` adds.

use super::leaks::{LeakClass, LeakSite, Leaks};
use super::{Amount, Profile};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Live blocks of one test, one stack and one class, when memory was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveOfTest {
    /// Index into [`super::Profile::stacks`]: where they were allocated; of indirectly leaked ones, where the block was
    /// that they hang on.
    pub stack: usize,
    /// What became of them.
    pub class: LeakClass,
    /// How many.
    pub amount: Amount,
}

/// One test.
#[derive(Clone, Debug)]
pub struct TestRow {
    /// Its name, as its framework has it.
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// For how long, in all, ns. Tracing makes it longer.
    pub duration_ns: u64,
    /// What it allocated.
    pub allocated: Amount,
    /// The most bytes of blocks of one of its runs that were live at a moment of that run.
    pub peak_bytes: u64,
    /// Its blocks that were live when it ended.
    pub kept: Amount,
    /// Its blocks that were live when memory was read, sorted. Not known of a profile from a file.
    pub live: Vec<LiveOfTest>,
    /// What of these counts as leaked: see [`Judge`].
    pub leaked: Amount,
    /// What has grown by more than it may since the baseline.
    pub grown: Vec<Grown>,
}

impl TestRow {
    /// Whether the test fails by what it does with the heap.
    pub fn fails(&self) -> bool {
        self.leaked != Amount::default() || !self.grown.is_empty()
    }
}

/// A figure of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The number of its allocations.
    Allocations,
    /// [`TestRow::peak_bytes`].
    Peak,
    /// The bytes of [`TestRow::kept`].
    Kept,
}

impl Figure {
    /// Its name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocations => "allocations",
            Self::Peak => "peak",
            Self::Kept => "kept",
        }
    }

    /// Whether it counts bytes.
    pub const fn is_bytes(self) -> bool {
        !matches!(self, Self::Allocations)
    }
}

/// A figure that has grown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grown {
    /// Which one.
    pub what: Figure,
    /// What it was.
    pub before: u64,
    /// What it is.
    pub after: u64,
}

/// All tests.
#[derive(Clone, Debug, Default)]
pub struct Tests {
    /// In the order in which they began.
    pub rows: Vec<TestRow>,
    /// Blocks that were live when memory was read and belong to no test, sorted.
    pub outside: Vec<LiveOfTest>,
    /// What of these counts as leaked.
    pub outside_leaked: Amount,
    /// What threads allocated while tests ran that none of these has made.
    pub unassigned: Amount,
}

/// The sites of a leak scan by their stacks, to judge blocks by.
#[derive(Debug, Default)]
pub struct Judge<'a> {
    sites: FxHashMap<usize, &'a LeakSite>,
    leak_kinds: [bool; 4],
}

impl<'a> Judge<'a> {
    /// By a scan, if one was made, and which classes count.
    pub fn new(leaks: Option<&'a Leaks>, leak_kinds: [bool; 4]) -> Self {
        let sites = leaks.into_iter().flat_map(|leaks| &leaks.sites).map(|site| (site.stack, site)).collect();
        Self { sites, leak_kinds }
    }

    /// Of a profile that was judged.
    pub fn of(profile: &'a Profile) -> Self {
        let leak_kinds = profile.verdict.as_ref().map_or([false; 4], |verdict| verdict.leak_kinds);
        Self::new(profile.leaks.as_ref(), leak_kinds)
    }

    /// What of these blocks counts as leaked: of a class that does, neither suppressed nor known from the baseline.
    pub fn leaked(&self, live: &[LiveOfTest]) -> Amount {
        let counts =
            |of: &&LiveOfTest| self.sites.get(&of.stack).is_some_and(|site| site.counts(&self.leak_kinds, of.class));
        live.iter().filter(counts).fold(Amount::default(), |sum, of| sum.plus(of.amount))
    }

    /// The stacks of what counts, the most bytes first.
    pub fn leaking_stacks(&self, live: &[LiveOfTest]) -> Vec<(usize, LeakClass, Amount)> {
        let counts = |of: &&LiveOfTest| self.leaked(std::slice::from_ref(*of)) != Amount::default();
        // what hangs on a lost block is told with it
        let told = |class| if class == LeakClass::Indirect { LeakClass::Definite } else { class };
        let mut stacks: Vec<_> = live.iter().filter(counts).map(|of| (of.stack, told(of.class), of.amount)).collect();
        stacks.sort_by_key(|(stack, class, amount)| (std::cmp::Reverse(amount.bytes), *stack, *class as usize));
        stacks
    }
}
