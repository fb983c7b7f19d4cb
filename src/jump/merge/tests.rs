use super::super::layout::{RING_AREA, SEQ, ring_at};
use super::super::shared::testing::Made;
use super::*;
use proptest::prelude::{Strategy, any, prop_oneof, proptest};
use std::cell::{Cell, RefCell};

const BLOCK: u64 = 0x5000;

/// One step of a thread's call, as the routine and the allocator do it. Each is one access to memory that others see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Takes the number of a free of the block.
    TakeNumber,
    /// Publishes the record of the free.
    PublishFree,
    /// The allocator takes the block back.
    GiveBack,
    /// The allocator hands the block out, if it has it.
    Get,
    /// Reads how many numbers were taken.
    ReadNumber,
    /// Publishes the record of the allocation.
    PublishAllocation,
}

const FREE: [Step; 3] = [Step::TakeNumber, Step::PublishFree, Step::GiveBack];
const MALLOC: [Step; 3] = [Step::Get, Step::ReadNumber, Step::PublishAllocation];

/// A program whose threads have one block between them.
struct Program {
    shared: Made,
    threads: Vec<(Vec<Step>, usize, u64)>,
    has_block: bool,
}

impl Program {
    fn new(threads: &[Vec<Step>]) -> Self {
        let threads = threads.iter().map(|steps| (steps.clone(), 0, 0)).collect();
        Self { shared: Made::default(), threads, has_block: false }
    }

    /// The thread's next step. False if it has none, or has to wait.
    fn step(&mut self, thread: usize) -> bool {
        let (steps, at, key) = &mut self.threads[thread];
        let Some(&step) = steps.get(*at) else { return false };
        match step {
            Step::TakeNumber => {
                let number = self.shared.word(SEQ);
                self.shared.set_word(SEQ, number + 1);
                *key = 2 * number + 1;
            }
            Step::PublishFree => publish(&self.shared, thread as u16, *key, Kind::Freed),
            Step::GiveBack => self.has_block = true,
            Step::Get if !self.has_block => return false,
            Step::Get => self.has_block = false,
            Step::ReadNumber => *key = 2 * self.shared.word(SEQ),
            Step::PublishAllocation => publish(&self.shared, thread as u16, *key, Kind::Ended),
        }
        *at += 1;
        true
    }

    fn run_to_end(&mut self) {
        while (0..self.threads.len()).any(|thread| self.step(thread)) {}
    }
}

fn publish(shared: &Made, cell: u16, key: u64, kind: Kind) {
    let head = shared.word(cell_at(cell.into()) + CELL_HEAD);
    let at = ring_at(cell.into()) + head % RING_LEAST * RECORD_SIZE;
    shared.set_word(at + RECORD_KEY, key);
    shared.set_word(at + RECORD_WHAT, u64::from(kind as u8) << 48);
    shared.set_word(at + RECORD_ARGS, BLOCK);
    shared.set_word(cell_at(cell.into()) + CELL_HEAD, head + 1);
}

/// The region as the tracer sees it while the program runs: before each of its looks at a head the program makes some
/// steps.
struct Watched<'p> {
    program: &'p RefCell<Program>,
    /// Which threads make a step before each of the looks.
    before: &'p [Vec<usize>],
    looks: Cell<usize>,
}

impl Shared for Watched<'_> {
    fn word(&self, offset: u64) -> u64 {
        if offset < RING_AREA && offset % 1024 == CELL_HEAD {
            let look = self.looks.replace(self.looks.get() + 1);
            for &thread in self.before.get(look).into_iter().flatten() {
                self.program.borrow_mut().step(thread);
            }
        }
        self.program.borrow().shared.word(offset)
    }
    fn half(&self, offset: u64) -> u32 {
        self.program.borrow().shared.half(offset)
    }
    fn set_word(&self, offset: u64, value: u64) {
        self.program.borrow().shared.set_word(offset, value);
    }
    fn set_half(&self, offset: u64, value: u32) {
        self.program.borrow().shared.set_half(offset, value);
    }
    fn replace_word(&self, offset: u64, old: u64, new: u64) -> bool {
        self.program.borrow().shared.replace_word(offset, old, new)
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) -> bool {
        self.program.borrow().shared.copy_out(offset, to)
    }
}

/// One step of the merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum One {
    Record(u16, Record),
    None(Next),
}

fn next(merge: &mut Merge, shared: &dyn Shared) -> One {
    let mut taken = Vec::new();
    let next = merge.take(shared, 1, &mut taken);
    match *taken {
        [] => One::None(next),
        [(cell, record)] => One::Record(cell, record),
        _ => panic!("more than was asked for"),
    }
}

fn take_all(merge: &mut Merge, shared: &dyn Shared, taken: &mut Vec<Kind>) {
    merge.look(shared);
    while let One::Record(_, record) = next(merge, shared) {
        taken.push(record.kind);
    }
}

fn opened(threads: usize) -> Merge {
    let mut merge = Merge::default();
    (0..threads).for_each(|cell| merge.open(cell as u16, 0, RING_LEAST));
    merge
}

/// All orders in which the steps can be made, each a list of threads.
fn orders(left: &[usize], so_far: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if left.iter().all(|n| *n == 0) {
        all.push(so_far.clone());
    }
    for thread in 0..left.len() {
        if left[thread] > 0 {
            let mut left = left.to_vec();
            left[thread] -= 1;
            so_far.push(thread);
            orders(&left, so_far, all);
            so_far.pop();
        }
    }
}

/// One thread frees the block, another one gets it and frees it: at whatever moments the heads are read, in each order
/// of all steps, the records come in the order in which the block lived, and all of them come.
#[test]
fn a_block_s_events_come_in_the_order_of_its_life() {
    let threads = [FREE.to_vec(), [MALLOC, FREE].concat()];
    let mut all = Vec::new();
    orders(&[3, 6], &mut Vec::new(), &mut all);
    assert_eq!(all.len(), 84);
    let mut seen_halves = 0;
    for order in &all {
        let n = order.len();
        for (a, b, c, d) in (0..=n)
            .flat_map(|a| (a..=n).flat_map(move |b| (b..=n).flat_map(move |c| (c..=n).map(move |d| (a, b, c, d)))))
        {
            let before = [&order[..a], &order[a..b], &order[b..c], &order[c..d]].map(<[usize]>::to_vec);
            let program = RefCell::new(Program::new(&threads));
            let watched = Watched { program: &program, before: &before, looks: Cell::new(0) };
            let (mut merge, mut taken) = (opened(2), Vec::new());
            take_all(&mut merge, &watched, &mut taken);
            seen_halves += usize::from(taken.len() == 1);
            program.borrow_mut().run_to_end();
            take_all(&mut merge, &watched, &mut taken);
            assert_eq!(taken, [Kind::Freed, Kind::Ended, Kind::Freed], "{order:?} {a} {b} {c} {d}");
        }
    }
    assert!(seen_halves > 1000);
}

#[test]
fn a_number_that_does_not_come_is_passed_over_when_all_must_be_had() {
    let mut program = Program::new(&[FREE.to_vec(), FREE.to_vec()]);
    program.step(0);
    (0..3).for_each(|_| assert!(program.step(1)));
    let mut merge = opened(2);
    merge.look(&program.shared);
    assert_eq!(next(&mut merge, &program.shared), One::None(Next::Waits));
    merge.skip();
    assert!(matches!(next(&mut merge, &program.shared), One::Record(1, _)));
    assert_eq!(next(&mut merge, &program.shared), One::None(Next::Empty));
    // it comes late
    program.run_to_end();
    merge.look(&program.shared);
    assert!(matches!(next(&mut merge, &program.shared), One::Record(0, Record { key: 1, .. })));
}

/// A thread that was away between its number and its record publishes that while the heads are read: what has waited
/// for it is not taken for nothing.
#[test]
fn a_record_that_comes_between_the_readings_is_looked_for_again() {
    let program = RefCell::new(Program::new(&[FREE.to_vec(), FREE.to_vec()]));
    program.borrow_mut().step(0);
    (0..3).for_each(|_| assert!(program.borrow_mut().step(1)));
    let before = [vec![], vec![], vec![0], vec![]];
    let watched = Watched { program: &program, before: &before, looks: Cell::new(0) };
    let mut merge = opened(2);
    merge.look(&watched);
    assert_eq!(next(&mut merge, &watched), One::None(Next::Waits));
    merge.look(&watched);
    assert!(matches!(next(&mut merge, &watched), One::Record(0, Record { key: 1, .. })));
    assert!(matches!(next(&mut merge, &watched), One::Record(1, Record { key: 3, .. })));
    assert_eq!(next(&mut merge, &watched), One::None(Next::Empty));
}

#[test]
fn a_ring_is_taken_in_rounds_and_its_room_given_back() {
    let shared = Made::default();
    let mut merge = opened(1);
    let mut taken = Vec::new();
    for round in 0..3 * RING_LEAST {
        publish(&shared, 0, 2 * round + 1, Kind::Freed);
        if round % 1000 == 999 {
            take_all(&mut merge, &shared, &mut taken);
            assert_eq!(shared.word(cell_at(0) + CELL_TAIL), round + 1);
        }
    }
    take_all(&mut merge, &shared, &mut taken);
    assert_eq!(taken.len() as u64, 3 * RING_LEAST);
}

#[test]
fn a_ring_that_has_grown_holds_four_times_as_many() {
    let shared = Made::default();
    let mut merge = Merge::default();
    let begin = 5 * RING_MOST - 100;
    [CELL_HEAD, CELL_TAIL].iter().for_each(|at| shared.set_word(cell_at(0) + at, begin));
    merge.open(0, begin, RING_MOST);
    for number in begin..begin + RING_MOST {
        let at = record_at(0, RING_MOST, number);
        shared.set_word(at + RECORD_KEY, 2 * (number - begin) + 1);
        shared.set_word(at + RECORD_WHAT, u64::from(Kind::Freed as u8) << 48);
        shared.set_word(at + RECORD_ARGS, number);
    }
    shared.set_word(cell_at(0) + CELL_HEAD, begin + RING_MOST);
    merge.look(&shared);
    assert_eq!((merge.left(0), merge.fullest(false)), (RING_MOST, RING_MOST));
    let mut taken = Vec::new();
    assert_eq!(merge.take(&shared, usize::MAX, &mut taken), Next::Empty);
    assert!(taken.iter().map(|(_, record)| record.args[0]).eq(begin..begin + RING_MOST));
    shared.set_word(cell_at(0) + CELL_HEAD, begin + 2 * RING_MOST + 1);
    merge.look(&shared);
    assert_eq!(merge.take(&shared, 1, &mut taken), Next::Damaged(0), "more than it has room for");
}

/// Numbers of records that a program can make a head say: any, and those near the end of a ring.
fn heads() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..4 * RING_LEAST]
}

proptest! {
    /// Whatever the program writes over cells and records, anywhere in its rings: nothing panics, the number of records
    /// taken is bounded, and what is told as damaged is not read again. `PROPTEST_CASES=100000 cargo test fuzz_rings`
    /// looks for longer.
    #[test]
    fn fuzz_rings(
        cells in proptest::collection::vec((0..4u64, 0..128u64, any::<u64>()), 0..40),
        records in proptest::collection::vec((0..3u64, 0..RING_LEAST * RECORD_SIZE / 8, any::<u64>()), 1..300),
        said in proptest::collection::vec(heads(), 3),
    ) {
        let shared = Made::default();
        let mut merge = opened(3);
        for (cell, at, value) in &cells {
            shared.set_word(cell_at(*cell) + at * 8, *value);
        }
        for (ring, at, value) in &records {
            shared.set_word(ring_at(*ring) + at * 8, *value);
        }
        for (cell, head) in (0..).zip(&said) {
            shared.set_word(cell_at(cell) + CELL_HEAD, *head);
        }
        merge.look(&shared);
        let (mut records, mut damaged) = (0u64, Vec::new());
        loop {
            match next(&mut merge, &shared) {
                One::Record(cell, _) => {
                    assert!(!damaged.contains(&cell));
                    records += 1;
                }
                One::None(Next::Damaged(cell)) => damaged.push(cell),
                One::None(Next::Waits) => merge.skip(),
                One::None(Next::Empty | Next::Enough) => break,
            }
            assert!(records <= 3 * RING_LEAST, "{records}");
        }
    }
}
