//! Capacity that was never written.

use super::*;
use crate::base::figures::Capacity;

fn told(events: &[EventKind]) -> Vec<(u32, Capacity)> {
    model(events).snapshot().capacities.into_iter().map(|(stack, capacity)| (stack.0, capacity)).collect()
}

fn unwritten(block: u64, bytes: u64) -> EventKind {
    EventKind::Unwritten { block: Addr(block), bytes }
}

const fn capacity(blocks: u64, bytes: u64, never_written_bytes: u64) -> Capacity {
    Capacity { blocks, bytes, never_written_bytes }
}

#[test]
fn what_was_told_last_of_a_block_counts() {
    let ended = [alloc(16, 100, 1, 5), unwritten(16, 60), unwritten(16, 40), free(16, 2, 9)];
    assert_eq!(told(&ended), [(5, capacity(1, 100, 40))]);
    // those that live count, too
    let live = [alloc(16, 100, 1, 5), alloc(4096, 50, 1, 5), unwritten(16, 60), unwritten(4096, 0)];
    assert_eq!(told(&live), [(5, capacity(2, 150, 60))]);
    assert_eq!(told(&[ended.as_slice(), &live].concat()), [(5, capacity(3, 250, 100))]);
    // not what nothing was told of
    assert_eq!(told(&[alloc(16, 100, 1, 5), free(16, 1, 9)]), []);
    assert_eq!(told(&[unwritten(16, 60), alloc(16, 100, 1, 5), free(16, 1, 9)]), []);
    // nor more than there is
    assert_eq!(told(&[alloc(16, 100, 1, 5), unwritten(16, u64::MAX)]), [(5, capacity(1, 100, 100))]);
}

/// The block at the same address that comes later is another one.
#[test]
fn what_was_told_of_a_block_is_not_its_successors() {
    let lost = [alloc(16, 100, 1, 5), unwritten(16, 60), alloc(16, 30, 1, 6), free(16, 1, 9)];
    assert_eq!(told(&lost), [(5, capacity(1, 100, 60))]);
}
