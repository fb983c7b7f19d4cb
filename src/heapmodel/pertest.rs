//! What each test of a test program does with the heap.
//!
//! A block is that of the test in which it was allocated: the one that runs in the allocating thread, or in the thread
//! that has made this one, or, where tests run one after the other, the one that runs. Births count up, so that the
//! tests of all blocks are known by the births at which the test changed.

use super::HeapModel;
use crate::base::addr::TestId;
use crate::base::figures::Amount;
use rustc_hash::FxHashMap;

/// What one test has done, in all of its runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestFigures {
    /// Which one.
    pub test: TestId,
    /// How often it has begun.
    pub runs: u64,
    /// How often it has ended.
    pub ends: u64,
    /// For how long it ran, ns. Of a run that has not ended: until now.
    pub duration_ns: u64,
    /// What it allocated.
    pub allocated: Amount,
    /// The most bytes of blocks of one of its runs that were live at a moment of that run.
    pub peak_bytes: u64,
    /// Blocks of its runs that were live when these ended, or are now.
    pub kept: Amount,
}

/// What all tests have done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TestTally {
    /// In the order in which they began first.
    pub tests: Vec<TestFigures>,
    /// What threads allocated that are in no test, while tests ran.
    pub unassigned: Amount,
}

/// A run of a test that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Running {
    /// Its place in the order of all runs.
    number: u64,
    task: u32,
    /// Whether no other runs meanwhile.
    alone: bool,
    /// Its index among the tests.
    index: usize,
    began_ns: u64,
    /// Its blocks that are live.
    live: Amount,
    /// Births before it.
    births: u64,
}

/// The test of blocks may change so often, beside twice for each that lives, until what is gone is forgotten.
const MAX_OWNERS: u64 = 4096;

/// So many tests may run at a time; with more, the oldest has ended.
const MAX_RUNNING: usize = 4096;

/// So many blocks of one thread are kept until its maker is known; one that has allocated more is none that has just
/// been made.
const MAX_EARLY: u32 = 1000;

/// So many blocks of all such threads.
const MAX_EARLY_OF_ALL: usize = 1 << 16;

/// A block of a thread whose maker is not known: a thread may be seen, and allocate, before the call has returned that
/// has made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Early {
    task: u32,
    bytes: u64,
    live: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tests {
    figures: Vec<TestFigures>,
    by_id: FxHashMap<TestId, usize>,
    running: Vec<Running>,
    begun: u64,
    /// The runs that threads have been made in, by the threads' serial numbers.
    joined: FxHashMap<u32, u64>,
    /// From which birth on which test allocates, ascending.
    owners: Vec<(u64, Option<usize>)>,
    /// By their births.
    early: FxHashMap<u64, Early>,
    /// How many of these each thread has allocated.
    early_of: FxHashMap<u32, u32>,
    /// Of blocks that turned out to be those of a test: its index.
    late_owners: FxHashMap<u64, usize>,
    unassigned: Amount,
}

impl Tests {
    pub(super) fn begin(&mut self, test: TestId, task: u32, alone: bool, (now_ns, births): (u64, u64)) {
        let figures = &mut self.figures;
        let index = *self.by_id.entry(test).or_insert_with(|| {
            let none = Amount::default();
            let new =
                TestFigures { test, runs: 0, ends: 0, duration_ns: 0, allocated: none, peak_bytes: 0, kept: none };
            figures.push(new);
            figures.len() - 1
        });
        if let Some(figures) = figures.get_mut(index) {
            figures.runs += 1;
        }
        self.begun += 1;
        if self.running.len() >= MAX_RUNNING {
            let oldest = self.running.remove(0);
            self.finish(&oldest, now_ns);
        }
        let live = Amount::default();
        self.running.push(Running { number: self.begun, task, alone, index, began_ns: now_ns, live, births });
    }

    pub(super) fn join(&mut self, task: u32, parent: u32) {
        let Some(at) = self.place_of(parent) else { return };
        let Some(run) = self.running.get_mut(at) else { return };
        self.joined.insert(task, run.number);
        if self.early_of.remove(&task).is_none() {
            return;
        }
        let Some(figures) = self.figures.get_mut(run.index) else { return };
        self.early.retain(|birth, early| {
            if early.task == task {
                let amount = Amount { objects: 1, bytes: early.bytes };
                figures.allocated = figures.allocated.plus(amount);
                self.unassigned = self.unassigned.minus(amount);
                self.late_owners.insert(*birth, run.index);
                if early.live {
                    run.live = run.live.plus(amount);
                }
            }
            early.task != task
        });
        figures.peak_bytes = figures.peak_bytes.max(run.live.bytes);
    }

    /// Notes a block of a thread that is in no test.
    fn note_early(&mut self, birth: u64, task: u32, bytes: u64) {
        let count = self.early_of.entry(task).or_insert(0);
        if *count < MAX_EARLY && self.early.len() < MAX_EARLY_OF_ALL {
            *count += 1;
            self.early.insert(birth, Early { task, bytes, live: true });
            if *count == MAX_EARLY {
                self.early.retain(|_, early| early.task != task);
            }
        }
    }

    pub(super) fn end(&mut self, task: u32, now_ns: u64) {
        let Some(at) = self.running.iter().rposition(|running| running.task == task) else { return };
        let run = self.running.remove(at);
        self.finish(&run, now_ns);
    }

    /// A run has ended that is out of the list already.
    fn finish(&mut self, run: &Running, now_ns: u64) {
        if self.running.is_empty() {
            // what threads allocate from now on is of no test
            self.early.clear();
            self.early_of.clear();
        }
        self.joined.retain(|_, joined| *joined != run.number);
        if let Some(figures) = self.figures.get_mut(run.index) {
            figures.ends += 1;
            figures.add_run(run, now_ns);
        }
    }

    /// The run that a thread allocates in.
    fn run_of(&mut self, task: u32) -> Option<&mut Running> {
        let alone =
            self.running.len().checked_sub(1).filter(|last| self.running.get(*last).is_some_and(|run| run.alone));
        let at = self.place_of(task).or(alone)?;
        self.running.get_mut(at)
    }

    /// The place of the run that a thread is in, or was made in.
    fn place_of(&self, task: u32) -> Option<usize> {
        let own = self.running.iter().rposition(|run| run.task == task);
        own.or_else(|| {
            let joined = self.joined.get(&task)?;
            self.running.iter().rposition(|run| run.number == *joined)
        })
    }

    /// A block was born, one of so many that live. Its number is greater than those of all before. Returns whether
    /// [`Self::keep_owners`] is due.
    #[inline]
    pub(super) fn born(&mut self, birth: u64, task: u32, size: u64, live: u64) -> bool {
        if self.figures.is_empty() {
            return false;
        }
        self.assign(birth, task, size);
        self.owners.len() as u64 > 2 * live + MAX_OWNERS
    }

    /// Forgets whose the blocks were that are gone: with tests side by side, the test changes at nearly every birth.
    /// `births`: of all that live.
    fn keep_owners(&mut self, mut births: Vec<u64>) {
        births.sort_unstable();
        let all = std::mem::take(&mut self.owners);
        let ends = all.iter().skip(1).map(|(first, _)| *first).chain([u64::MAX]);
        for (&(first, owner), end) in all.iter().zip(ends) {
            let next = births.get(births.partition_point(|birth| *birth < first));
            let is_needed = end == u64::MAX || next.is_some_and(|birth| *birth < end);
            if is_needed && self.owners.last().is_none_or(|(_, last)| *last != owner) {
                self.owners.push((first, owner));
            }
        }
        self.late_owners.retain(|birth, _| births.binary_search(birth).is_ok());
    }

    fn assign(&mut self, birth: u64, task: u32, size: u64) {
        let bytes = Amount { objects: 1, bytes: size };
        let run = self.run_of(task).map(|run| {
            run.live = run.live.plus(bytes);
            (run.index, run.live.bytes)
        });
        let owner = run.map(|(index, _)| index);
        if self.owners.last().is_none_or(|(_, last)| *last != owner) {
            self.owners.push((birth, owner));
        }
        match run.and_then(|(index, live)| Some((self.figures.get_mut(index)?, live))) {
            Some((figures, live)) => {
                figures.allocated = figures.allocated.plus(bytes);
                figures.peak_bytes = figures.peak_bytes.max(live);
            }
            None if self.running.is_empty() => {}
            None => {
                self.unassigned = self.unassigned.plus(bytes);
                self.note_early(birth, task, size);
            }
        }
    }

    /// A block has ended, or so much of a mapping.
    #[inline]
    pub(super) fn died(&mut self, birth: u64, ended: Amount) {
        if !self.running.is_empty() {
            self.give_back(birth, ended);
        }
    }

    fn give_back(&mut self, birth: u64, ended: Amount) {
        if let Some(early) = self.early.get_mut(&birth) {
            early.live &= ended.objects == 0;
            return;
        }
        let Some(index) = self.owner(birth) else { return };
        let is_its = |run: &&mut Running| run.index == index && run.births < birth;
        if let Some(run) = self.running.iter_mut().rev().find(is_its) {
            run.live = run.live.minus(ended);
        }
    }

    /// The index of the test that the block is of which was born as this one.
    fn owner(&self, birth: u64) -> Option<usize> {
        let late = self.late_owners.get(&birth).copied();
        late.or_else(|| {
            let at = self.owners.partition_point(|(first, _)| *first <= birth).checked_sub(1)?;
            self.owners.get(at)?.1
        })
    }

    /// The process is a copy: only what runs in its one thread goes on, as something new. Inherited blocks are none of
    /// its tests'.
    pub(super) fn fork(&mut self, parent: u32, child: u32, births: u64) {
        let before = std::mem::take(self);
        let run = before.place_of(parent).and_then(|at| before.running.get(at));
        let test = |run: &Running| before.figures.get(run.index).map(|figures| figures.test);
        if let Some((test, run)) = run.and_then(|run| Some((test(run)?, run))) {
            self.begin(test, child, run.alone, (0, births));
        }
    }

    /// How often the test of a block has changed, as far as that is still known.
    #[cfg(test)]
    pub(super) fn owners_kept(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn tally(&self, now_ns: u64) -> TestTally {
        let mut tests = self.figures.clone();
        for run in &self.running {
            if let Some(figures) = tests.get_mut(run.index) {
                figures.add_run(run, now_ns);
            }
        }
        TestTally { tests, unassigned: self.unassigned }
    }
}

impl TestFigures {
    fn add_run(&mut self, run: &Running, now_ns: u64) {
        self.duration_ns = self.duration_ns.saturating_add(now_ns.saturating_sub(run.began_ns));
        self.kept = self.kept.plus(run.live);
    }
}

impl HeapModel {
    #[cold]
    pub(super) fn forget_owners(&mut self) {
        let births = self.live_births().map(|(birth, _)| birth).collect();
        self.tests.keep_owners(births);
    }

    /// What each test has done until now.
    pub fn tests(&self) -> TestTally {
        self.tests.tally(self.now_ns)
    }

    /// The test in which the block was allocated that has this number ([`HeapModel::live_births`]).
    pub fn test_of(&self, birth: u64) -> Option<TestId> {
        let index = self.tests.owner(birth)?;
        self.tests.figures.get(index).map(|figures| figures.test)
    }
}
