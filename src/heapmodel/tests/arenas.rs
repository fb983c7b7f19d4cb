//! Which arenas blocks lay in that other threads freed.

use super::*;
use crate::base::figures::{Arena, CrossThreadFreed};

/// What lies between two multiples of this is of one arena.
const SPAN: u64 = 64 << 20;

fn told(events: &[EventKind]) -> Vec<(u32, u64, u64)> {
    let list = model(events).snapshot().stranded.into_iter();
    list.map(|(stack, CrossThreadFreed { blocks, arena })| (stack.0, arena.address, blocks)).collect()
}

fn part(arena: u64, start: u64, bytes: u64) -> EventKind {
    let (arena, start) = (Addr(arena), Addr(start));
    EventKind::ArenaPart { arena, is_main: arena.0 == 7, start, bytes, live: bytes / 4, free: bytes / 2 }
}

/// A block that thread 1 allocates, and another one frees.
fn handed_over(block: u64, stack: u32) -> [EventKind; 2] {
    [alloc(block, 100, 1, stack), free(block, 2, 9)]
}

#[test]
fn a_block_lay_in_the_arena_that_has_a_part_there() {
    let at = 5 * SPAN;
    let events = [
        handed_over(at + 4096, 5),
        handed_over(at + 8192, 5),
        handed_over(at + SPAN + 16, 5),
        handed_over(at + SPAN + 32, 6),
        // in no arena
        handed_over(at + 3 * SPAN, 6),
        // its own thread's
        [alloc(at + 64, 100, 1, 5), free(at + 64, 1, 9)],
        [part(at + 48, at, 1 << 20), part(at + SPAN + 48, at + SPAN, 1 << 20)],
    ];
    let first = at + 48;
    let second = at + SPAN + 48;
    assert_eq!(told(&events.concat()), [(5, first, 2), (5, second, 1), (6, second, 1)]);
    let untold = &events.concat()[..12];
    assert_eq!(told(untold), []);
    assert_eq!(model(untold).freed_elsewhere(), (5, 6));
}

/// The main arena begins anywhere, and an arena may have several parts, each of which is told anew.
#[test]
fn parts_of_an_arena_are_summed_up() {
    let at = 5 * SPAN;
    let mut events = handed_over(at + SPAN + 100, 5).to_vec();
    events.extend([part(7, at + SPAN - 4096, 100), part(7, at + SPAN - 4096, 3 * SPAN), part(7, at + 8 * SPAN, 400)]);
    let stranded = model(&events).snapshot().stranded;
    let bytes = 3 * SPAN + 400;
    let arena = Arena { address: 7, is_main: true, system_bytes: bytes, live_bytes: bytes / 4, free_bytes: bytes / 2 };
    assert_eq!(stranded, [(StackId(5), CrossThreadFreed { blocks: 1, arena })]);
}

/// What a parent's threads did is not the child's affair.
#[test]
fn a_forked_child_begins_anew() {
    let at = 5 * SPAN;
    let mut events = handed_over(at + 100, 5).to_vec();
    let (parent, child) = (call(MALLOC, 1, 0).task, call(MALLOC, 3, 0).task);
    events.push(EventKind::Forked { image: ImageId(2), parent, child, among_threads: false });
    events.push(part(at + 48, at, 1 << 20));
    assert_eq!(told(&events), []);
}
