//! The merge against all interleavings of threads that write rings while it reads, and all values that the memory model
//! lets each of them see (by loom). The threads do in Rust what the routine does, with its order of stores: the
//! processor's are releases, its loads acquires.

use super::super::layout::{SEQ, ring_at};
use super::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

/// More switches from a thread that could go on are not tried: the number of orders grows with each.
const PREEMPTIONS: usize = 3;

/// So many records a ring gets at most.
const RECORDS: usize = 2;

/// The words of the region that the threads write, and the first argument of each record.
struct Rings {
    seq: AtomicU64,
    heads: Vec<AtomicU64>,
    /// By ring and number: key, what, argument.
    records: Vec<[[AtomicU64; 3]; RECORDS]>,
}

impl Rings {
    fn new(count: usize) -> Self {
        let record = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            seq: AtomicU64::new(0),
            heads: (0..count).map(|_| AtomicU64::new(0)).collect(),
            records: (0..count).map(|_| std::array::from_fn(|_| record())).collect(),
        }
    }

    fn publish(&self, ring: usize, number: usize, key: u64, kind: Kind, block: u64) {
        let [key_word, what, argument] = &self.records[ring][number];
        what.store(u64::from(kind as u8) << 48, Ordering::Release);
        argument.store(block, Ordering::Release);
        key_word.store(key, Ordering::Release);
        self.heads[ring].store(number as u64 + 1, Ordering::Release);
    }

    /// What the routine does before a free or at the beginning of a realloc: `lock xadd`, then the record.
    fn gives_back(&self, ring: usize, number: usize, kind: Kind, block: u64) {
        let taken = self.seq.fetch_add(1, Ordering::AcqRel);
        self.publish(ring, number, 2 * taken + 1, kind, block);
    }

    /// What it does behind the function that has handed a block out.
    fn hands_out(&self, ring: usize, number: usize, block: u64) {
        let taken = self.seq.load(Ordering::Acquire);
        self.publish(ring, number, 2 * taken, Kind::Ended, block);
    }

    /// The word at an offset of the region, if it is one that the threads write.
    fn find(&self, offset: u64) -> Option<&AtomicU64> {
        let head = |ring: usize| cell_at(ring as u64) + CELL_HEAD;
        if let Some(ring) = (0..self.heads.len()).find(|ring| head(*ring) == offset) {
            return self.heads.get(ring);
        }
        let ring = (0..self.records.len())
            .find(|ring| (ring_at(*ring as u64)..ring_at(*ring as u64 + 1)).contains(&offset))?;
        let inside = offset - ring_at(ring as u64);
        let record = self.records[ring].get((inside / RECORD_SIZE) as usize)?;
        match inside % RECORD_SIZE {
            RECORD_KEY => record.first(),
            RECORD_WHAT => record.get(1),
            RECORD_ARGS => record.get(2),
            _ => None,
        }
    }
}

impl Shared for Rings {
    fn word(&self, offset: u64) -> u64 {
        match self.find(offset) {
            Some(word) => word.load(Ordering::Acquire),
            None if offset == SEQ => self.seq.load(Ordering::Acquire),
            None => 0,
        }
    }
    fn half(&self, _: u64) -> u32 {
        0
    }
    /// The merge writes tails only, which nobody reads here.
    fn set_word(&self, _: u64, _: u64) {}
    fn set_half(&self, _: u64, _: u32) {}
    fn replace_word(&self, _: u64, _: u64, _: u64) -> bool {
        false
    }
    fn copy_out(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

/// Lets threads write while the rings are looked at twice, and then takes the rest. In the order in which they come:
/// kinds and blocks.
fn merged(rings: &Arc<Rings>, threads: Vec<thread::JoinHandle<()>>) -> Vec<(Kind, u64)> {
    let mut merge = Merge::default();
    (0..rings.heads.len()).for_each(|cell| merge.open(cell as u16, 0, RING_LEAST));
    let mut taken = Vec::new();
    let look = |merge: &mut Merge, taken: &mut Vec<(u16, Record)>| {
        merge.look(&**rings);
        merge.take(&**rings, 16, taken)
    };
    look(&mut merge, &mut taken);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(look(&mut merge, &mut taken), Next::Empty);
    taken.iter().map(|(_, record)| (record.kind, record.args[0])).collect()
}

fn check(program: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(program);
}

/// A block is handed out by one thread and given back by another, which then gets it again.
#[test]
fn a_block_that_changes_hands_lives_in_order() {
    check(|| {
        let rings = Arc::new(Rings::new(2));
        let passed = Arc::new(AtomicBool::new(false));
        let maker = thread::spawn({
            let (rings, passed) = (Arc::clone(&rings), Arc::clone(&passed));
            move || {
                rings.hands_out(0, 0, 7);
                passed.store(true, Ordering::Release);
            }
        });
        let user = thread::spawn({
            let (rings, passed) = (Arc::clone(&rings), Arc::clone(&passed));
            move || {
                if passed.load(Ordering::Acquire) {
                    rings.gives_back(1, 0, Kind::Freed, 7);
                    rings.hands_out(1, 1, 7);
                }
            }
        });
        let came = merged(&rings, vec![maker, user]);
        let whole = [(Kind::Ended, 7), (Kind::Freed, 7), (Kind::Ended, 7)];
        assert!(came == whole || came == whole[..1], "{came:?}");
    });
}

/// One thread gives a block back, by a realloc that moves; the allocator hands its address to another one.
#[test]
fn an_address_is_given_back_before_it_is_handed_out_again() {
    for kind in [Kind::Freed, Kind::Began] {
        check(move || {
            let rings = Arc::new(Rings::new(2));
            let is_free = Arc::new(AtomicBool::new(false));
            let giver = thread::spawn({
                let (rings, is_free) = (Arc::clone(&rings), Arc::clone(&is_free));
                move || {
                    rings.gives_back(0, 0, kind, 7);
                    // the allocator takes it
                    is_free.store(true, Ordering::Release);
                    if kind == Kind::Began {
                        rings.hands_out(0, 1, 8);
                    }
                }
            });
            let taker = thread::spawn({
                let (rings, is_free) = (Arc::clone(&rings), Arc::clone(&is_free));
                move || {
                    if is_free.load(Ordering::Acquire) {
                        rings.hands_out(1, 0, 7);
                    }
                }
            });
            let came = merged(&rings, vec![giver, taker]);
            let of_seven: Vec<Kind> = came.iter().filter(|(_, block)| *block == 7).map(|(kind, _)| *kind).collect();
            assert!(of_seven == [kind, Kind::Ended] || of_seven == [kind], "{came:?}");
            let of_eight = came.iter().filter(|(_, block)| *block == 8).count();
            assert_eq!(of_eight, usize::from(kind == Kind::Began), "{came:?}");
        });
    }
}

/// Two threads give blocks of their own back: whatever is seen when, each record comes, in the order of the numbers.
#[test]
fn no_number_is_passed_over() {
    check(|| {
        let rings = Arc::new(Rings::new(2));
        let threads = (0..2)
            .map(|ring| {
                let rings = Arc::clone(&rings);
                thread::spawn(move || {
                    (0..2).for_each(|n| rings.gives_back(ring, n, Kind::Freed, 10 * ring as u64 + n as u64))
                })
            })
            .collect();
        let mut came: Vec<u64> = merged(&rings, threads).into_iter().map(|(_, block)| block).collect();
        let of = |ring: u64| came.iter().copied().filter(|block| block / 10 == ring).collect::<Vec<_>>();
        assert!(of(0) == [0, 1] && of(1) == [10, 11], "{came:?}");
        came.sort_unstable();
        assert_eq!(came, [0, 1, 10, 11]);
    });
}
