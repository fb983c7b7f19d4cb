//! The tests of a program: seen to begin and to end by functions of their framework, told as events.

use super::hit::Hit;
use super::observer::Observer;
use super::testsrecord::{LiveOfTest, TestsRecord};
use super::tracee::Tracee;
use crate::allocators::frameworks::{Hook, HookEvent};
use crate::arch::Regs;
use crate::base::addr::{Addr, StackId, TaskId, TestId};
use crate::base::figures::Amount;
use crate::base::leakclass::LeakClass;
use crate::base::memory::ReadMemory;
use crate::event::{Definition, EventKind};
use crate::heap::leaks::Scan;
use crate::heapmodel::{HeapModel, TestTally};
use crate::tracer::Result;
use rustc_hash::FxHashMap;

const UNSEEN_ENDS: &str = "no breakpoint can be placed where a test returns: heaptrace did not see its end, and counts \
    it as running until the next one begins";

const UNREADABLE_NAME: &str = "the name of a test could not be read, so the report lacks it: heaptrace does not know \
    this version of its framework";

/// A test that has begun and was not seen to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Running {
    task: TaskId,
    /// The stack pointer at its function's entry.
    sp: u64,
    return_addr: Addr,
}

/// The tests of a process: which there are, and which run.
#[derive(Debug, Default)]
pub(super) struct TestTracker {
    names: Vec<String>,
    ids: FxHashMap<String, TestId>,
    /// Functions that are tests, their names, and whether they run one after the other.
    functions: FxHashMap<Addr, (String, bool)>,
    running: Vec<Running>,
    /// Of tests whose framework also begins those that do not run: by an object that it makes of each that does.
    makes_objects: bool,
    /// Threads that have been announced and not come yet, and who has made them.
    coming: Vec<(i32, TaskId)>,
    /// How many tests the report lacks.
    untold: u64,
    /// What was found when memory was read.
    at_scan: Option<(TestTally, Vec<LiveOfTest>)>,
}

impl TestTracker {
    /// That of a copy of the process, whose thread `child` was `parent` there.
    pub(super) fn fork(&self, parent: i32, child: TaskId) -> Self {
        let of_parent = self.running.iter().filter(|running| running.task.tid == parent);
        Self {
            names: self.names.clone(),
            ids: self.ids.clone(),
            functions: self.functions.clone(),
            running: of_parent.map(|running| Running { task: child, ..*running }).collect(),
            makes_objects: self.makes_objects,
            coming: Vec::new(),
            untold: 0,
            at_scan: None,
        }
    }

    /// The number of a test, and whether it is new.
    fn intern(&mut self, name: &str) -> (TestId, bool) {
        if let Some(known) = self.ids.get(name) {
            return (*known, false);
        }
        let id = TestId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        (id, true)
    }

    /// A thread that is in tests for which `is_over` holds is in these no more. How many there were.
    fn leave(&mut self, task: TaskId, is_over: impl Fn(&Running) -> bool) -> usize {
        let before = self.running.len();
        self.running.retain(|running| running.task != task || !is_over(running));
        before - self.running.len()
    }
}

impl TestTracker {
    /// A thread is where a test, or one of its framework's functions, begins or returns to.
    /// What has happened before must be settled.
    pub(super) fn on_test(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        hit: &Hit<'_>,
        regs: &Regs,
    ) -> Result<()> {
        let Some(task) = tracee.tasks.get(hit.tid).map(|task| task.id) else { return Ok(()) };
        let returned = |running: &Running| running.return_addr == hit.at && running.sp + 8 == regs.sp();
        if let Some(at) = self.running.iter().find(|running| running.task == task && returned(running)).copied() {
            // those further in were left by an exception
            self.end_tests(observer, task, |running| running.sp <= at.sp);
        }
        if let Some((name, alone)) = self.functions.get(&hit.at).cloned() {
            return self.begin_test(tracee, observer, hit, regs, (task, &name, alone));
        }
        let Some(hook) = tracee.space.modules.test_hook_at(hit.at) else { return Ok(()) };
        match tracee.space.modules.told_by_framework(&mut tracee.space.image, hook, &regs.arguments()) {
            Some(HookEvent::Runs(name)) => {
                self.makes_objects |= hook == Hook::GoogleTest;
                self.begin_test(tracee, observer, hit, regs, (task, &name, true))
            }
            Some(HookEvent::Tests(tests)) => self.watch_test_functions(tracee, hit, tests, hook != Hook::Libtest),
            None => {
                self.untold += 1;
                tracee.warn_once(UNREADABLE_NAME.to_owned());
                Ok(())
            }
        }
    }

    /// Watches functions that are tests. `alone`: they run one after the other.
    fn watch_test_functions(
        &mut self,
        tracee: &mut Tracee,
        hit: &Hit<'_>,
        tests: Vec<(Addr, String)>,
        alone: bool,
    ) -> Result<()> {
        for (function, name) in tests {
            if !tracee.space.watch_test(function, hit.thread, hit.raw)? {
                self.untold += 1;
                tracee.warn_once(format!("no probe could be placed at the test {name}: the report lacks it"));
                continue;
            }
            let (known, is_alone) = self.functions.entry(function).or_default();
            *is_alone = alone;
            // of equal functions a linker has made one
            if !known.is_empty() && *known != name {
                known.push_str(", ");
                known.push_str(&name);
            } else if known.is_empty() {
                *known = name;
            }
        }
        Ok(())
    }

    /// `alone`: it runs by itself.
    fn begin_test(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        hit: &Hit<'_>,
        regs: &Regs,
        (task, name, alone): (TaskId, &str, bool),
    ) -> Result<()> {
        let sp = regs.sp();
        // left by an exception
        self.end_tests(observer, task, |running| running.sp <= sp);
        let return_addr = tracee.space.image.original_memory().read_u64(Addr(sp)).map(Addr);
        let watched = match return_addr {
            Some(at) => tracee.space.watch_test(at, hit.thread, hit.raw)?,
            None => false,
        };
        if !watched {
            tracee.warn_once(UNSEEN_ENDS.to_owned());
        }
        let (test, is_new) = self.intern(name);
        if is_new {
            observer.define(&Definition::Test { id: test, name });
        }
        self.running.push(Running { task, sp, return_addr: return_addr.unwrap_or(Addr::NULL) });
        observer.tell(EventKind::TestBegan { test, task, alone });
        Ok(())
    }

    fn end_tests(&mut self, observer: &mut Observer, task: TaskId, is_over: impl Fn(&Running) -> bool) {
        for _ in 0..self.leave(task, is_over) {
            observer.tell(EventKind::TestEnded { task });
        }
    }

    /// A thread has made another one, `child`, which may have come already. What to report then, once all that has
    /// happened before is settled.
    pub(super) fn on_thread_made(&mut self, tracee: &Tracee, parent: i32, child: Option<i32>) -> Option<EventKind> {
        let (parent, child) = (tracee.tasks.get(parent)?.id, child?);
        if !tracee.settings.per_test {
            return None;
        }
        if let Some(task) = tracee.tasks.get(child).map(|task| task.id) {
            return Some(EventKind::TestJoined { task, parent });
        }
        // one of this number that has never come, comes no more
        self.coming.retain(|(announced, _)| *announced != child);
        self.coming.push((child, parent));
        None
    }

    /// A thread has come, which may have been announced. What to report then, as above.
    pub(super) fn on_thread_come(&mut self, task: TaskId) -> Option<EventKind> {
        let at = self.coming.iter().position(|(child, _)| *child == task.tid)?;
        let (_, parent) = self.coming.swap_remove(at);
        Some(EventKind::TestJoined { task, parent })
    }

    /// A thread is about to disappear, from wherever it is.
    pub(super) fn end_tests_of(&mut self, observer: &mut Observer, task: TaskId) {
        self.end_tests(observer, task, |_| true);
    }

    /// Memory was read, and these are the classes of its blocks.
    pub(super) fn note_scan(&mut self, tracee: &Tracee, observer: &Observer, scan: &Scan) {
        if tracee.settings.per_test {
            let model = observer.model();
            self.at_scan = Some((model.tests(), live_by_test(model, scan)));
        }
    }

    /// What is known of its tests, if that is wanted.
    pub(super) fn record(&self, tracee: &Tracee, observer: &Observer) -> Option<TestsRecord> {
        if !tracee.settings.per_test {
            return None;
        }
        let (mut tally, live) = self.at_scan.clone().unwrap_or_else(|| (observer.model().tests(), Vec::new()));
        if self.makes_objects {
            tally.tests.retain(|test| test.allocated.objects > 0);
        }
        let (names, has_framework) = (self.names.clone(), tracee.space.modules.has_test_hooks());
        Some(TestsRecord { names, tally, live, has_framework, untold: self.untold })
    }
}

/// The live blocks by the tests that they are of.
fn live_by_test(model: &HeapModel, scan: &Scan) -> Vec<LiveOfTest> {
    let births: FxHashMap<Addr, u64> = model.block_births().map(|(birth, block)| (block.addr, birth)).collect();
    let mut sums: FxHashMap<(Option<TestId>, StackId, LeakClass), Amount> = FxHashMap::default();
    for (number, (block, class)) in scan.blocks().enumerate() {
        let leader = scan.leader(number).and_then(|leader| scan.block(leader)).map_or(block, |(leader, _)| leader);
        let Some(site) = model.site(leader.site) else { continue };
        let test = births.get(&block.addr).and_then(|birth| model.test_of(*birth));
        let sum = sums.entry((test, site.key.stack, class)).or_default();
        *sum = sum.plus(Amount { objects: 1, bytes: block.size });
    }
    let mut live: Vec<LiveOfTest> =
        sums.into_iter().map(|((test, stack, class), amount)| (test, stack, class, amount)).collect();
    live.sort_unstable_by_key(|(test, stack, class, _)| (*test, *stack, *class as usize));
    live
}
