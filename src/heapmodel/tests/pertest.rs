//! What each test has done, by the stream.

use super::*;
use crate::base::addr::{ImageId, TestId};

fn thread(serial: u32) -> TaskId {
    TaskId { tid: 1000 + serial as i32, serial }
}

fn began(test: u32, task: u32) -> EventKind {
    EventKind::TestBegan { test: TestId(test), task: thread(task), alone: true }
}

fn began_among(test: u32, task: u32) -> EventKind {
    EventKind::TestBegan { test: TestId(test), task: thread(task), alone: false }
}

fn ended(task: u32) -> EventKind {
    EventKind::TestEnded { task: thread(task) }
}

/// Allocated, peak and kept of each test, in the order in which they began.
fn told(model: &HeapModel) -> Vec<(u32, Amount, u64, Amount)> {
    model.tests().tests.iter().map(|t| (t.test.0, t.allocated, t.peak_bytes, t.kept)).collect()
}

#[test]
fn what_a_test_allocates_is_its_own_until_it_ends() {
    let before = [alloc(16, 1000, 1, 5), began(0, 1), alloc(32, 100, 1, 5), alloc(48, 50, 1, 5)];
    let within = [free(16, 1, 6), free(32, 1, 6), alloc(64, 30, 1, 5), ended(1), alloc(80, 7, 1, 5)];
    let model = run(model(&before), &within);
    assert_eq!(told(&model), [(0, amount(3, 180), 150, amount(2, 80))], "freed of before the test is not its gain");
    let model = run(model, &[began(1, 1), free(48, 1, 6), alloc(96, 9, 1, 5), free(96, 1, 6), ended(1)]);
    assert_eq!(told(&model), [(0, amount(3, 180), 150, amount(2, 80)), (1, amount(1, 9), 9, amount(0, 0))]);
    let births: Vec<(u64, u64)> = model.live_births().map(|(birth, block)| (birth, block.addr.0)).collect();
    let test_at = |addr: u64| births.iter().find(|(_, a)| *a == addr).and_then(|(birth, _)| model.test_of(*birth));
    assert_eq!([test_at(64), test_at(80)], [Some(TestId(0)), None]);
    assert_eq!(model.tests().unassigned, amount(0, 0), "outside of tests is not unknown");
}

#[test]
fn a_test_that_runs_again_adds_up_and_has_the_largest_peak() {
    let one = [began(3, 1), alloc(16, 100, 1, 5), free(16, 1, 6), ended(1)];
    let two = [began(3, 1), alloc(16, 60, 1, 5), alloc(32, 60, 1, 5), ended(1)];
    let model = run(model(&one), &two);
    let tests = model.tests().tests;
    assert_eq!((tests.len(), tests[0].runs, tests[0].ends), (1, 2, 2));
    assert_eq!(told(&model), [(3, amount(3, 220), 120, amount(2, 120))]);
    // what the run before has kept is not of this one: freeing it gives nothing back
    let model = run(model, &[began(3, 1), free(16, 1, 6), alloc(64, 5, 1, 5), ended(1)]);
    assert_eq!(told(&model), [(3, amount(4, 225), 120, amount(3, 125))]);
}

/// Tests that run at the same time are told by their threads, and by those that have made these.
#[test]
fn threads_tell_tests_that_run_at_the_same_time() {
    let joined = |task, parent| EventKind::TestJoined { task: thread(task), parent: thread(parent) };
    let both = [began_among(0, 1), alloc(16, 1, 9, 5), began_among(1, 2), alloc(32, 10, 1, 5), alloc(48, 100, 2, 5)];
    let model = run(model(&both), &[joined(7, 2), joined(8, 7), joined(6, 9), alloc(64, 20, 8, 5), alloc(80, 3, 6, 5)]);
    let model = run(model, &[free(48, 1, 6), ended(2), alloc(96, 1000, 8, 5), ended(1), alloc(112, 7, 9, 5)]);
    assert_eq!(told(&model), [(0, amount(1, 10), 10, amount(1, 10)), (1, amount(2, 120), 120, amount(1, 20))]);
    assert_eq!(model.tests().unassigned, amount(3, 1004), "while a test ran, in none");
}

/// Where tests run one after the other, all threads work for the one that runs.
#[test]
fn a_test_that_runs_alone_has_what_all_threads_do() {
    let model =
        model(&[began(0, 1), alloc(16, 1, 9, 5), ended(1), alloc(32, 10, 9, 5), began(1, 1), alloc(48, 5, 9, 5)]);
    assert_eq!(told(&model), [(0, amount(1, 1), 1, amount(1, 1)), (1, amount(1, 5), 5, amount(1, 5))]);
    assert_eq!(model.tests().unassigned, amount(0, 0));
}

#[test]
fn a_test_without_an_end_runs_until_now_and_a_copy_of_its_process_begins_it_anew() {
    let parent = model(&[began(7, 1), alloc(16, 100, 1, 5), alloc(32, 10, 1, 5)]);
    let figures = parent.tests().tests[0];
    assert_eq!((figures.runs, figures.ends, figures.kept), (1, 0, amount(2, 110)));
    let forked = EventKind::Forked { image: ImageId(1), parent: thread(1), child: thread(2), among_threads: false };
    let child = run(parent.clone(), &[forked, free(16, 2, 6), alloc(48, 3, 2, 5)]);
    assert_eq!(told(&child), [(7, amount(1, 3), 3, amount(1, 3))]);
    assert_eq!(told(&run(child, &[EventKind::Exec { image: ImageId(2) }])), []);
    // what never began can't end
    assert_eq!(told(&run(parent, &[ended(5)])), [(7, amount(2, 110), 110, amount(2, 110))]);
}

#[test]
fn what_a_thread_allocates_before_its_maker_is_known_is_its_makers_tests() {
    let joined = || EventKind::TestJoined { task: thread(2), parent: thread(1) };
    let early = [began_among(0, 1), began_among(1, 3), alloc(16, 100, 2, 5), alloc(32, 50, 2, 5), free(16, 2, 6)];
    let before = model(&early);
    assert_eq!((told(&before)[0].1, before.tests().unassigned), (amount(0, 0), amount(2, 150)));
    let model =
        run(before, &[joined(), alloc(48, 7, 2, 5), free(48, 2, 6), free(32, 2, 6), alloc(64, 9, 2, 5), ended(1)]);
    assert_eq!(told(&model)[0], (0, amount(4, 166), 57, amount(1, 9)));
    assert_eq!(model.tests().unassigned, amount(0, 0));
    let births: Vec<u64> = model.live_births().map(|(birth, _)| birth).collect();
    assert_eq!(births.iter().map(|birth| model.test_of(*birth)).collect::<Vec<_>>(), [Some(TestId(0))]);
    // one that has no maker in a test keeps what it has
    let stranger =
        [began_among(0, 1), alloc(16, 100, 2, 5), EventKind::TestJoined { task: thread(2), parent: thread(4) }];
    assert_eq!(super::model(&stranger).tests().unassigned, amount(1, 100));
}

#[test]
fn what_is_known_of_blocks_that_are_gone_is_forgotten() {
    let mut model = model(&[began_among(0, 1), began_among(1, 2)]);
    for round in 0..20_000u64 {
        let (own, kept) = (16 + round * 64, round % 1000 == 0);
        let events = [alloc(own, 1, 1, 5), alloc(own + 32, 2, 2, 5)];
        model = run(model, &events);
        if !kept {
            model = run(model, &[free(own, 1, 6), free(own + 32, 2, 6)]);
        }
    }
    assert!(model.tests.owners_kept() < 10_000, "{}", model.tests.owners_kept());
    let tests: Vec<_> = model.live_births().map(|(birth, block)| (model.test_of(birth), block.size)).collect();
    assert_eq!(tests.len(), 40);
    assert!(tests.iter().all(|(test, size)| *test == Some(TestId(*size as u32 - 1))), "{tests:?}");
}
