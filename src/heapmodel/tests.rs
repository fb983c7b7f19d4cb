use super::*;
use crate::allocators::Family;
use crate::base::addr::{ImageId, TaskId};
use crate::base::figures::FindingKind;
use crate::event::{Call, Missed};
use std::collections::HashMap;

mod arenas;
mod capacity;
mod growth;
mod mappings;
mod pertest;
mod reference;

const MALLOC: FunctionId = FunctionId(0);
const FREE: FunctionId = FunctionId(1);
const REALLOC: FunctionId = FunctionId(3);

fn call(function: FunctionId, task: u32, stack: u32) -> Call {
    let task = TaskId { tid: 1000 + task as i32, serial: task };
    Call { function, task, stack: StackId(stack), family: None, align: None, interval: 0 }
}

fn alloc(block: u64, size: u64, task: u32, stack: u32) -> EventKind {
    EventKind::Allocated { block: Addr(block), size, by: call(MALLOC, task, stack) }
}

fn free(block: u64, task: u32, stack: u32) -> EventKind {
    EventKind::Freed { block: Addr(block), internal: false, given_size: None, by: call(FREE, task, stack) }
}

fn began(old: u64, task: u32, stack: u32) -> EventKind {
    EventKind::ReallocBegan { old: Addr(old), by: call(REALLOC, task, stack) }
}

fn ended(old: u64, new: u64, size: u64, task: u32, stack: u32) -> EventKind {
    EventKind::ReallocEnded { old: Addr(old), new: Addr(new), size, by: call(REALLOC, task, stack) }
}

fn model(events: &[EventKind]) -> HeapModel {
    run(HeapModel::new(Preexisting::None), events)
}

/// What happens at a time that does not matter.
fn tell(model: &mut HeapModel, kind: EventKind) {
    model.apply(&Event { seq: 0, time_ns: 0, kind });
}

fn run(mut model: HeapModel, events: &[EventKind]) -> HeapModel {
    events.iter().for_each(|event| tell(&mut model, *event));
    model
}

fn amount(objects: u64, bytes: u64) -> Amount {
    Amount { objects, bytes }
}

fn on_stack(snapshot: &Snapshot, stack: u32) -> Vec<SiteStats> {
    snapshot.sites.iter().filter(|site| site.key.stack == StackId(stack)).collect()
}

#[test]
fn a_dead_block_counts_where_it_was_allocated_and_where_it_was_freed() {
    let snapshot = model(&[alloc(16, 100, 1, 5), alloc(32, 50, 1, 5), free(16, 2, 6)]).snapshot();
    let [first, second] = on_stack(&snapshot, 5)[..] else { panic!("{:?}", snapshot.sites) };
    assert_eq!((first.key.size, first.allocated, first.live), (50, amount(1, 50), amount(1, 50)));
    assert_eq!((second.allocated, second.freed, second.live), (amount(1, 100), amount(1, 100), amount(0, 0)));
    assert_eq!(second.at_peak, amount(1, 100));
    let [at_free] = on_stack(&snapshot, 6)[..] else { panic!("{:?}", snapshot.sites) };
    assert_eq!((at_free.deallocated, at_free.key.task, at_free.key.function), (amount(1, 100), 2, FREE));
    assert_eq!((snapshot.totals.peak_bytes, snapshot.totals.peak_blocks), (150, 2));
}

/// Blocks from before are live, and never allocated; their frees and moves match, and what their size was asked to be
/// nobody knows.
#[test]
fn blocks_from_before_are_live_until_they_are_freed() {
    let existing = |block: u64, size: u64| EventKind::Existing { block: Addr(block), size };
    let began = EventKind::Began {
        image: ImageId(0),
        preexisting: Preexisting::Unknown,
        free_stacks: true,
        sample_interval: 0,
    };
    let events = [began, existing(16, 24), existing(64, 1000), existing(2000, 24), existing(4000, 40)];
    let model = run(HeapModel::new(Preexisting::None), &events);
    let snapshot = model.snapshot();
    let of_before = |snapshot: &Snapshot| {
        let sites = || snapshot.sites.iter().filter(|site| site.key.stack == StackId::EXISTING);
        assert!(sites().all(|site| site.inherited && site.allocated == amount(0, 0)));
        sites().fold(amount(0, 0), |sum, site| amount(sum.objects + site.live.objects, sum.bytes + site.live.bytes))
    };
    assert_eq!(of_before(&snapshot), amount(4, 1088));
    let Totals { allocations, live_blocks, live_bytes, peak_bytes, .. } = snapshot.totals;
    assert_eq!((allocations, live_blocks, live_bytes, peak_bytes), (0, 4, 1088, 1088));
    assert!(model.live_blocks().all(|block| block.inherited));
    // freed with another size than the allocator's, moved, and an address that was given back unseen
    let by = call(FREE, 1, 7);
    let sized = EventKind::Freed { block: Addr(64), internal: false, given_size: Some(990), by };
    let moved = EventKind::ReallocEnded { old: Addr(2000), new: Addr(3000), size: 100, by };
    let model = run(model, &[alloc(512, 9, 1, 5), free(16, 1, 6), sized, moved, alloc(4000, 30, 1, 5)]);
    let snapshot = model.snapshot();
    assert_eq!(of_before(&snapshot), amount(0, 0));
    assert_eq!((snapshot.totals.preexisting_frees, snapshot.totals.frees, snapshot.totals.allocations), (4, 0, 3));
    assert_eq!((snapshot.totals.live_blocks, snapshot.totals.live_bytes), (3, 139));
    assert!(snapshot.errors.is_empty() && !snapshot.frees_unseen, "{:?}", snapshot.errors);
}

/// An allocation that was not seen may have got the address of a block that was freed before: its free is no second
/// one.
#[test]
fn frees_of_unseen_blocks_are_no_double_frees() {
    let mut model = model(&[alloc(16, 9, 1, 5), free(16, 1, 6)]);
    tell(&mut model, EventKind::UnknownFreesExpected);
    tell(&mut model, free(16, 1, 6));
    assert_eq!((model.snapshot().anomalies.double_frees, model.totals().preexisting_frees), (0, 1));
    // what is seen from then on is judged as ever
    let mut model = run(model, &[alloc(16, 9, 1, 5), free(16, 1, 6), free(16, 1, 7)]);
    assert_eq!(model.snapshot().anomalies.double_frees, 1);
    tell(&mut model, EventKind::Paused(true));
    let mut model = run(model, &[free(16, 1, 6), alloc(32, 9, 1, 5), free(32, 1, 6), free(32, 1, 6)]);
    assert_eq!(model.snapshot().anomalies.double_frees, 1);
    tell(&mut model, EventKind::Paused(false));
    let model = run(model, &[free(32, 1, 6), alloc(32, 9, 1, 5), free(32, 1, 6), free(32, 1, 6)]);
    assert_eq!(model.snapshot().anomalies.double_frees, 2);
}

/// A block was freed unseen, as its address is handed out again. So others may have been allocated unseen. Where an
/// address was freed twice before, that explains it.
#[test]
fn frees_of_what_is_not_live_are_certain_only_where_no_free_is_missed() {
    let kinds = |model: &HeapModel| model.snapshot().errors.iter().map(|error| error.kind).collect::<Vec<_>>();
    let twice = [alloc(16, 9, 1, 5), free(16, 1, 6), free(16, 1, 6)];
    let model = run(model(&twice), &[alloc(16, 9, 1, 5), alloc(16, 9, 1, 5), free(64, 1, 7)]);
    assert_eq!(
        (kinds(&model), model.snapshot().unseen_frees),
        (vec![FindingKind::DoubleFree, FindingKind::InvalidFree], 0)
    );
    let model = run(model, &[alloc(32, 9, 1, 5), alloc(32, 9, 1, 5)]);
    let snapshot = model.snapshot();
    assert!(snapshot.frees_unseen && snapshot.errors.is_empty());
    assert_eq!((snapshot.anomalies.double_frees, snapshot.anomalies.unknown_frees, snapshot.unseen_frees), (1, 1, 1));
}

/// What an allocator does that takes an invalid free for a good one: the block around the address is handed out once
/// more.
#[test]
fn an_invalid_free_explains_an_address_that_is_handed_out_twice() {
    let model = model(&[alloc(16, 90, 1, 5), free(64, 1, 6), alloc(16, 90, 1, 5)]);
    let snapshot = model.snapshot();
    assert_eq!((snapshot.errors.len(), snapshot.unseen_frees, snapshot.frees_unseen), (1, 0, false));
    assert!(run(model, &[alloc(256, 90, 1, 5), alloc(256, 90, 1, 5)]).snapshot().frees_unseen);
}

/// What was freed and what was allocated while nobody looked is no error, and nothing that was lost in the allocator.
#[test]
fn a_gap_makes_older_blocks_doubtful() {
    let mut model = model(&[alloc(16, 90, 1, 5), alloc(160, 90, 1, 5), free(160, 1, 6)]);
    tell(&mut model, EventKind::Unobserved);
    let model = run(model, &[free(160, 1, 6), alloc(16, 90, 1, 5)]);
    let snapshot = model.snapshot();
    assert_eq!((snapshot.errors.len(), snapshot.unseen_frees, snapshot.frees_unseen), (0, 0, false));
    assert!(run(model, &[alloc(16, 90, 1, 5)]).snapshot().frees_unseen, "what came after the gap was seen");
}

/// A thread may be within an unseen call when a gap ends: the block that it is handed may have the address of one that
/// another thread freed since.
#[test]
fn a_call_that_began_in_a_gap_hands_out_what_was_freed_after_it() {
    let by_other = |mut event: EventKind| {
        if let Some(by) = event.call_mut() {
            by.task.serial += 1;
        }
        event
    };
    let doubles = |model: &HeapModel| model.snapshot().anomalies.double_frees;
    for gap in [EventKind::Unobserved, EventKind::Paused(false)] {
        let mut model = HeapModel::default();
        tell(&mut model, gap);
        let model = run(model, &[alloc(16, 90, 1, 5), free(16, 1, 6), by_other(free(16, 1, 6))]);
        assert_eq!((doubles(&model), model.totals().preexisting_frees), (0, 1));
        // from now on both threads' calls were seen
        let model = run(model, &[alloc(16, 90, 1, 5), free(16, 1, 6), by_other(free(16, 1, 6))]);
        assert_eq!((doubles(&model), model.totals().preexisting_frees), (1, 1));
    }
}

#[test]
fn without_free_stacks_the_allocating_site_bears_the_free() {
    let began =
        EventKind::Began { image: ImageId(0), preexisting: Preexisting::None, free_stacks: false, sample_interval: 0 };
    let snapshot = model(&[began, alloc(16, 9, 1, 5), free(16, 2, 0)]).snapshot();
    assert_eq!(snapshot.sites.len(), 1);
    assert_eq!(snapshot.sites.row(0).deallocated, amount(1, 9));
}

#[test]
fn t19_realloc_is_a_free_and_an_allocation_on_its_own_stack() {
    let model = model(&[alloc(16, 100, 1, 5), began(16, 1, 6), ended(16, 64, 300, 1, 6)]);
    let (totals, snapshot) = (model.totals(), model.snapshot());
    assert_eq!((totals.allocations, totals.frees, totals.reallocations), (2, 1, 1));
    assert_eq!((totals.live_blocks, totals.live_bytes, totals.peak_bytes), (1, 300, 300));
    let [freed, allocated] = on_stack(&snapshot, 6)[..] else { panic!("{:?}", snapshot.sites) };
    assert_eq!((freed.key.size, freed.deallocated), (100, amount(1, 100)));
    assert_eq!((allocated.key.size, allocated.live), (300, amount(1, 300)));
}

#[test]
fn t19_realloc_in_place_resizes() {
    let totals = model(&[alloc(16, 100, 1, 5), began(16, 1, 6), ended(16, 16, 40, 1, 6)]).totals();
    assert_eq!((totals.live_blocks, totals.live_bytes, totals.bytes_freed, totals.peak_bytes), (1, 40, 100, 100));
}

#[test]
fn t19_realloc_to_nothing_is_a_free_only() {
    let model = model(&[alloc(16, 100, 1, 5), began(16, 1, 6), ended(16, 0, 0, 1, 6)]);
    let totals = model.totals();
    assert_eq!((totals.allocations, totals.frees, totals.reallocations), (1, 1, 0));
    assert_eq!((totals.live_blocks, totals.failed), (0, 0));
    assert_eq!(on_stack(&model.snapshot(), 6)[0].deallocated, amount(1, 100));
}

#[test]
fn t19_a_failed_realloc_changes_nothing() {
    let before = [alloc(16, 100, 1, 5)];
    let mut model = model(&before);
    let site = model.snapshot().sites.row(0);
    tell(&mut model, began(16, 1, 6));
    tell(&mut model, ended(16, 0, 1 << 60, 1, 6));
    let totals = model.totals();
    assert_eq!((totals.failed, totals.frees, totals.live_bytes), (1, 0, 100));
    assert_eq!(format!("{:?}", model.snapshot().sites), format!("{:?}", [site]));
    tell(&mut model, free(16, 1, 7));
    assert_eq!((model.totals().frees, model.snapshot().errors.len()), (1, 0));
}

#[test]
fn t22_an_abandoned_realloc_leaves_the_block_live() {
    let task = call(REALLOC, 1, 6).task;
    let mut model = model(&[alloc(16, 100, 1, 5), began(16, 1, 6)]);
    tell(&mut model, EventKind::ReallocAbandoned { old: Addr(16), task });
    assert_eq!((model.totals().live_bytes, model.totals().frees), (100, 0));
    // The address is not in pending any more: another block there means that a free was lost.
    tell(&mut model, alloc(16, 7, 2, 8));
    assert_eq!(model.snapshot().unseen_frees, 1);
}

#[test]
fn t24_the_allocator_may_free_what_is_dead_the_program_may_not() {
    let internal =
        |block| EventKind::Freed { block: Addr(block), internal: true, given_size: None, by: call(FREE, 1, 9) };
    let mut model = model(&[alloc(16, 8, 1, 5), free(16, 1, 6), internal(16), internal(4096)]);
    let snapshot = model.snapshot();
    assert_eq!((snapshot.anomalies.double_frees, snapshot.anomalies.unknown_frees, snapshot.errors.len()), (0, 0, 0));
    // But what is live it does free: fclose is libc's code, too.
    tell(&mut model, alloc(32, 8, 1, 5));
    tell(&mut model, internal(32));
    assert_eq!(model.totals().live_blocks, 0);
    tell(&mut model, free(16, 3, 10));
    let [error] = model.snapshot().errors[..] else { panic!() };
    assert_eq!((error.kind, error.block, error.size, error.count), (FindingKind::DoubleFree, Addr(16), Some(8), 1));
    assert_eq!((error.alloc_stack, error.free_stack), (Some(StackId(5)), Some(StackId(6))));
    assert_eq!((error.stack, error.task, error.function), (StackId(10), 3, FREE));
}

#[test]
fn t27_another_thread_is_handed_the_address_of_a_block_in_limbo() {
    let model =
        model(&[alloc(16, 100, 1, 5), began(16, 1, 6), alloc(16, 30, 2, 7), ended(16, 64, 200, 1, 6), free(16, 2, 8)]);
    let (totals, snapshot) = (model.totals(), model.snapshot());
    assert_eq!((totals.allocations, totals.frees, totals.reallocations), (3, 2, 1));
    assert_eq!((totals.live_blocks, totals.live_bytes, snapshot.unseen_frees), (1, 200, 0));
    assert_eq!(on_stack(&snapshot, 6)[0].deallocated, amount(1, 100), "on the realloc's stack");
    assert_eq!(on_stack(&snapshot, 8)[0].deallocated, amount(1, 30));
    assert!(snapshot.errors.is_empty());
}

/// The program's own bug, but it must not take the innocent block along.
#[test]
fn t27_a_block_freed_during_its_realloc_is_not_confused_with_the_next_one_there() {
    let model =
        model(&[alloc(16, 100, 1, 5), began(16, 1, 6), free(16, 2, 7), alloc(16, 30, 2, 8), ended(16, 64, 200, 1, 6)]);
    assert_eq!((model.totals().live_blocks, model.totals().live_bytes), (2, 230));
}

#[test]
fn an_address_handed_out_twice_means_a_lost_free() {
    let snapshot = model(&[alloc(16, 100, 1, 5), alloc(16, 30, 1, 6)]).snapshot();
    assert_eq!((snapshot.unseen_frees, snapshot.totals.live_blocks, snapshot.totals.live_bytes), (1, 1, 30));
    assert_eq!(snapshot.totals.frees, 1);
    assert_eq!(on_stack(&snapshot, 5)[0].deallocated, amount(1, 100));
}

#[test]
fn unknown_frees_are_errors_only_if_all_was_seen() {
    let events = [free(16, 1, 5), free(16, 1, 5), free(32, 1, 6), began(48, 1, 7), ended(48, 64, 10, 1, 7)];
    let seen = model(&events).snapshot();
    assert_eq!((seen.anomalies.unknown_frees, seen.totals.preexisting_frees, seen.totals.live_blocks), (4, 0, 1));
    let counts: Vec<_> = seen.errors.iter().map(|e| (e.kind, e.stack.0, e.count)).collect();
    let invalid = FindingKind::InvalidFree;
    assert_eq!(counts, [(invalid, 5, 2), (invalid, 6, 1), (invalid, 7, 1)]);
    let attached = run(HeapModel::new(Preexisting::Unknown), &events).snapshot();
    assert_eq!((attached.anomalies.unknown_frees, attached.totals.preexisting_frees, attached.errors.len()), (0, 4, 0));
    assert_eq!((attached.totals.frees, attached.totals.reallocations, attached.totals.allocations), (0, 0, 1));
}

#[test]
fn families_are_judged_only_if_both_are_known() {
    let with = |mut event: EventKind, f: Option<Family>| {
        match &mut event {
            EventKind::Allocated { by, .. } | EventKind::Freed { by, .. } | EventKind::ReallocBegan { by, .. } => {
                by.family = f;
            }
            _ => panic!(),
        }
        event
    };
    let kinds = [None, Some(Family::Malloc), Some(Family::New), Some(Family::NewArray), Some(Family::Other)];
    for allocated in kinds {
        for freed in kinds {
            let events = [with(alloc(16, 8, 1, 5), allocated), with(free(16, 1, 6), freed)];
            let judged = |f| matches!(f, Some(Family::Malloc | Family::New | Family::NewArray));
            let expected = u64::from(judged(allocated) && judged(freed) && allocated != freed);
            assert_eq!(model(&events).snapshot().anomalies.mismatched_frees, expected, "{allocated:?} {freed:?}");
        }
    }
    let realloc = [with(alloc(16, 8, 1, 5), Some(Family::New)), with(began(16, 1, 6), Some(Family::Malloc))];
    let [error] = model(&realloc).snapshot().errors[..] else { panic!() };
    assert_eq!((error.kind, error.alloc_stack), (FindingKind::MismatchedFree, Some(StackId(5))));
    // Of one site, some blocks of unknown family.
    let mixed = [
        with(alloc(16, 8, 1, 5), Some(Family::New)),
        with(alloc(32, 8, 1, 5), None),
        with(free(16, 1, 6), Some(Family::Malloc)),
    ];
    assert_eq!(model(&mixed).snapshot().anomalies.mismatched_frees, 0);
}

#[test]
fn a_wrong_size_at_a_sized_delete_is_an_error() {
    let sized = |block, size: u64| match free(block, 1, 6) {
        EventKind::Freed { block, internal, by, .. } => {
            EventKind::Freed { block, internal, given_size: Some(size), by }
        }
        _ => panic!(),
    };
    let events = [alloc(16, 8, 1, 5), sized(16, 8), alloc(32, 1, 1, 5), sized(32, 0)];
    assert!(model(&events).snapshot().errors.is_empty(), "operator new of no bytes asks malloc for one");
    let events = [alloc(16, 8, 1, 5), sized(16, 4), alloc(16, 8, 1, 5), sized(16, 2)];
    let [error] = model(&events).snapshot().errors[..] else { panic!() };
    assert_eq!((error.kind, error.count, error.block), (FindingKind::SizedDelete, 2, Addr(16)));
    assert_eq!((error.size, error.given_size, error.alloc_stack), (Some(8), Some(4), Some(StackId(5))));
    let events = [alloc(16, 8, 1, 5), free(16, 1, 6), sized(16, 4)];
    let [error] = model(&events).snapshot().errors[..] else { panic!() };
    assert_eq!((error.kind, error.given_size), (FindingKind::DoubleFree, None));
}

#[test]
fn another_alignment_at_a_delete_is_an_error_where_both_are_known() {
    let aligned = |event, align| match event {
        EventKind::Allocated { block, size, by } => EventKind::Allocated { block, size, by: Call { align, ..by } },
        EventKind::Freed { block, internal, given_size, by } => {
            EventKind::Freed { block, internal, given_size, by: Call { align, ..by } }
        }
        other => other,
    };
    let judged = |asked, given| {
        let events = [aligned(alloc(64, 8, 1, 5), asked), aligned(free(64, 1, 6), given)];
        model(&events).snapshot().errors
    };
    for (asked, given) in [(None, Some(64)), (Some(64), None), (Some(64), Some(64)), (Some(0), Some(0)), (None, None)] {
        assert!(judged(asked, given).is_empty(), "{asked:?} {given:?}");
    }
    for (asked, given, told) in [(64, 0, (Some(64), None)), (0, 64, (None, Some(64))), (16, 32, (Some(16), Some(32)))] {
        let [error] = judged(Some(asked), Some(given))[..] else { panic!() };
        assert_eq!((error.kind, error.align, error.given_align), (FindingKind::AlignedDelete, told.0, told.1));
    }
    let mixed = [
        aligned(alloc(64, 8, 1, 5), Some(64)),
        aligned(alloc(128, 8, 1, 5), Some(32)),
        aligned(free(64, 1, 6), Some(0)),
    ];
    assert!(model(&mixed).snapshot().errors.is_empty(), "blocks of one site with several alignments");
}

#[test]
fn a_pointer_into_a_live_block_is_told_with_that_block() {
    let events = [alloc(0x1000, 10, 1, 5), alloc(0x2000, 10, 1, 7), free(0x1004, 1, 6), free(0x1000, 1, 8)];
    let [error] = model(&events).snapshot().errors[..] else { panic!() };
    assert_eq!(
        (error.kind, error.block, error.offset, error.size),
        (FindingKind::InvalidFree, Addr(0x1004), Some(4), Some(10))
    );
    assert_eq!(error.alloc_stack, Some(StackId(5)));
    for outside in [0x100a, 0xfff] {
        let [error] = model(&[alloc(0x1000, 10, 1, 5), free(outside, 1, 6)]).snapshot().errors[..] else { panic!() };
        assert_eq!((error.offset, error.size, error.alloc_stack), (None, None, None));
    }
}

#[test]
fn temporary_is_what_its_thread_frees_before_it_allocates_again() {
    let count = |events: &[EventKind]| model(events).totals().temporary;
    assert_eq!(count(&[alloc(16, 8, 1, 5), free(16, 1, 6)]), 1);
    assert_eq!(count(&[alloc(16, 8, 1, 5), alloc(32, 8, 2, 5), free(16, 2, 6)]), 1, "other threads don't matter");
    assert_eq!(count(&[alloc(16, 8, 1, 5), alloc(32, 8, 1, 5), free(16, 1, 6)]), 0);
    assert_eq!(count(&[alloc(16, 8, 1, 5), alloc(32, 8, 1, 5), free(32, 1, 6), free(16, 1, 6)]), 1);
}

#[test]
fn histograms_count_sizes_and_lifetimes_in_powers_of_two() {
    let mut events = vec![alloc(16, 0, 1, 5), free(16, 1, 6), alloc(16, 1, 1, 5)];
    events.extend((0..5).map(|n| alloc(1000 + n * 16, 7 + n, 1, 5)));
    events.push(free(16, 1, 6));
    let histograms = model(&events).snapshot().histograms;
    // Sizes 0, 1, 7, 8, 9, 10, 11; lifetimes 0 and 5.
    assert_eq!(histograms.size, [1, 1, 0, 1, 4]);
    assert_eq!(histograms.lifetime, [1, 0, 0, 1]);
}

#[test]
fn sizes_that_no_machine_has_do_no_harm() {
    let events: Vec<_> = (1..100).map(|n| alloc(n * 16, u64::MAX - n, 1, 5)).collect();
    let mut model = model(&events);
    (1..100).for_each(|n| tell(&mut model, free(n * 16, 1, 6)));
    assert_eq!((model.totals().live_bytes, model.totals().live_blocks), (0, 0));
}

#[test]
fn a_forked_child_inherits_blocks_but_not_counts() {
    let parent = model(&[alloc(16, 100, 1, 5), alloc(32, 50, 1, 6), free(32, 1, 7), began(16, 1, 8)]);
    let mut child = parent.clone();
    let task = |serial| TaskId { tid: 7, serial };
    tell(&mut child, EventKind::Forked { image: ImageId(1), parent: task(1), child: task(2), among_threads: false });
    let totals = child.totals();
    assert_eq!((totals.allocations, totals.frees, totals.live_bytes, totals.peak_bytes), (0, 0, 100, 100));
    assert!(child.live_blocks().all(|block| block.inherited));
    let site = on_stack(&child.snapshot(), 5)[0];
    assert_eq!((site.allocated, site.live, site.at_peak), (amount(0, 0), amount(1, 100), amount(1, 100)));
    // The child's copy of the forking thread ends the realloc that the parent's began.
    tell(&mut child, ended(16, 64, 10, 2, 8));
    tell(&mut child, alloc(80, 10, 2, 9));
    let totals = child.totals();
    assert_eq!((totals.preexisting_frees, totals.frees, totals.allocations, totals.reallocations), (1, 0, 2, 1));
    assert_eq!((totals.live_bytes, child.live_blocks().filter(|block| block.inherited).count()), (20, 0));
    assert_eq!(parent.totals().live_bytes, 100);
}

/// A long program keeps to its bounds: blocks come and go on few sites, and memory stays.
#[test]
fn memory_does_not_grow_with_time() {
    let mut model = HeapModel::new(Preexisting::None);
    for n in 0..300_000u64 {
        tell(&mut model, alloc(16 + (n % 1000) * 16, n % 500, 1, (n % 7) as u32));
        if n == 10_000 {
            assert!(model.memory() < 1 << 20);
        }
        tell(&mut model, free(16 + (n % 1000) * 16, 1, 50));
    }
    assert!(model.memory() < 1 << 20, "{}", model.memory());
    assert!(model.snapshot().timeline.len() <= 1024);
    // and where each block has an address of its own: those that were freed lately are remembered, in whole rows of
    // addresses, of which one shard has more than another
    let mut model = HeapModel::new(Preexisting::None);
    for n in 1..=600_000 {
        tell(&mut model, alloc(16 * n, 8, 1, 5));
        tell(&mut model, free(16 * n, 1, 50));
    }
    assert!(model.memory() < 10 << 20, "{}", model.memory());
}

#[test]
fn live_blocks_lead_to_their_sites() {
    let model = model(&[alloc(16, 100, 1, 5), alloc(32, 50, 1, 6)]);
    let found: HashMap<_, _> =
        model.live_blocks().map(|b| (b.addr.0, (b.size, model.site(b.site).unwrap().key.stack.0))).collect();
    assert_eq!(found, HashMap::from([(16, (100, 5)), (32, (50, 6))]));
}

#[test]
fn exec_empties_the_heap_and_keeps_what_was_missed() {
    let twice = [alloc(16, 9, 1, 5), alloc(16, 9, 1, 5), EventKind::Missed(Missed::Call), free(64, 1, 6)];
    let model = run(model(&twice), &[EventKind::Exec { image: ImageId(1) }, alloc(16, 7, 1, 5)]);
    let (snapshot, totals) = (model.snapshot(), model.totals());
    assert_eq!((totals.allocations, totals.live_bytes, snapshot.unseen_frees, snapshot.frees_unseen), (1, 7, 0, false));
    assert_eq!((snapshot.anomalies.lost, snapshot.anomalies.unknown_frees), (2, 0));
}
