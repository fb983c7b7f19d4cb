//! Buffers that grow bit by bit.

use super::*;
use crate::base::figures::Growth;

fn growths(events: &[EventKind]) -> Vec<(u32, Growth)> {
    model(events).snapshot().growths.into_iter().map(|(stack, growth)| (stack.0, growth)).collect()
}

/// Blocks of 100, 200, 400 and 800 bytes, each of which takes what the one before holds.
fn doubled(first: u64, task: u32, stack: u32) -> Vec<EventKind> {
    let mut events = vec![alloc(first, 100, task, stack)];
    for step in 1..4 {
        events.extend([alloc(first + step * 1024, 100 << step, task, stack), free(first + (step - 1) * 1024, task, 9)]);
    }
    events
}

#[test]
fn a_vector_grows_by_larger_blocks_of_one_stack() {
    let growth = Growth { buffers: 1, growths: 3, copies: 3, copied_bytes: 700, largest_bytes: 800, outgrown: 0 };
    assert_eq!(growths(&doubled(0x10000, 1, 5)), [(5, growth)]);
    let twice: Vec<EventKind> = doubled(0x10000, 1, 5).into_iter().chain(doubled(0x20000, 1, 5)).collect();
    let both = Growth { buffers: 2, growths: 6, copies: 6, copied_bytes: 1400, largest_bytes: 800, outgrown: 0 };
    assert_eq!(growths(&twice), [(5, both)]);
    // two threads, step by step: each follows itself
    let (one, other) = (doubled(0x10000, 1, 5), doubled(0x20000, 2, 6));
    let mixed: Vec<EventKind> = one.into_iter().zip(other).flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(growths(&mixed), [(5, growth), (6, growth)]);
}

#[test]
fn what_is_no_copy_into_a_larger_block_is_no_growth() {
    let none: [(u32, Growth); 0] = [];
    let sizes = |old, new| [alloc(16, old, 1, 5), alloc(4096, new, 1, 5), free(16, 1, 9)];
    for (old, new) in [(100, 100), (200, 100), (100, 130), (100, 300), (0, 16)] {
        assert_eq!(growths(&sizes(old, new)), none, "{old} to {new}");
    }
    for (old, new) in [(100, 150), (100, 200), (31, 61), (15, 31), (3, 4)] {
        assert_eq!(growths(&sizes(old, new)).len(), 1, "{old} to {new}");
    }
    let other_stack = [alloc(16, 100, 1, 5), alloc(4096, 200, 1, 6), free(16, 1, 9)];
    let other_thread = [alloc(16, 100, 1, 5), alloc(4096, 200, 1, 5), free(16, 2, 9)];
    let one_between = [alloc(16, 100, 1, 5), alloc(4096, 200, 1, 5), alloc(8192, 1, 1, 6), free(16, 1, 9)];
    for events in [&other_stack[..], &other_thread, &one_between] {
        assert_eq!(growths(events), none);
    }
}

/// A realloc in its place copies nothing; nor does one that moves whole mappings.
#[test]
fn a_realloc_copies_where_it_moves() {
    let resize = |old, new, size| [began(old, 1, 7), ended(old, new, size, 1, 7)];
    let mut events = vec![alloc(0x1000, 100, 1, 5)];
    events.extend(resize(0x1000, 0x1000, 110));
    events.extend(resize(0x1000, 0x2000, 120));
    events.extend(resize(0x2000, 0x3000, 60));
    events.extend(resize(0x3000, 0x4000, 200_000));
    let growth = Growth { buffers: 2, growths: 3, copies: 2, copied_bytes: 170, largest_bytes: 200_000, outgrown: 0 };
    let outgrown = (5, Growth { outgrown: 1, ..Growth::default() });
    assert_eq!(growths(&events), [outgrown, (7, growth)]);
    let mapped = [alloc(0x10010, 200_000, 1, 5)].into_iter().chain(resize(0x10010, 0x90010, 300_000));
    let moved = Growth { buffers: 1, growths: 1, copies: 0, copied_bytes: 0, largest_bytes: 300_000, outgrown: 0 };
    assert_eq!(growths(&mapped.collect::<Vec<_>>()), [outgrown, (7, moved)]);
}

/// A buffer that grows once at each of two places is a series at neither.
#[test]
fn growth_at_another_place_begins_anew() {
    let resize = |stack, old, new, size| [began(old, 1, stack), ended(old, new, size, 1, stack)];
    let mut events = vec![alloc(0x1000, 100, 1, 5)];
    events.extend(resize(6, 0x1000, 0x2000, 200));
    events.extend(resize(7, 0x2000, 0x3000, 300));
    let of = |stack| {
        growths(&events)
            .into_iter()
            .find(|(at, _)| *at == stack)
            .map(|(_, growth)| (growth.buffers, growth.growths, growth.outgrown))
    };
    assert_eq!((of(5), of(6), of(7)), (Some((0, 0, 1)), Some((1, 1, 1)), Some((1, 1, 0))));
}

/// Two buffers that are resized in turns, at one place: the end of one's old block is no growth into the other's.
#[test]
fn buffers_in_turns_are_not_taken_for_each_other() {
    let resize = |old, new, size| [began(old, 1, 7), ended(old, new, size, 1, 7)];
    let mut events = vec![alloc(0x1000, 100, 1, 7), alloc(0x2000, 200, 1, 7)];
    events.extend(resize(0x1000, 0x3000, 150));
    events.extend(resize(0x2000, 0x4000, 250));
    let growth = Growth { buffers: 2, growths: 2, copies: 2, copied_bytes: 300, largest_bytes: 250, outgrown: 0 };
    assert_eq!(growths(&events), [(7, growth)]);
}

/// A child has grown nothing yet, and what was recorded of a sample says nothing of series.
#[test]
fn growth_is_a_processs_own_and_needs_each_block() {
    let (parent, child) = (call(MALLOC, 1, 0).task, call(MALLOC, 2, 0).task);
    let mut events = doubled(0x10000, 1, 5);
    events.push(EventKind::Forked { image: ImageId(0), parent, child, among_threads: false });
    assert_eq!(growths(&events), []);
    let began =
        EventKind::Began { image: ImageId(0), preexisting: Preexisting::None, free_stacks: true, sample_interval: 512 };
    assert_eq!(growths(&[vec![began], doubled(0x10000, 1, 5)].concat()), []);
}
