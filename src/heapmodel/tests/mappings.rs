//! What the program maps by itself.

use super::*;
use crate::event::{Length, MapChange, MarkName};

const MMAP: FunctionId = FunctionId(40);

fn told(change: MapChange, task: u32, stack: u32) -> EventKind {
    EventKind::Mapping { change, by: Call { family: Some(Family::Mapping), ..call(MMAP, task, stack) } }
}

fn map(start: u64, bytes: u64, task: u32, stack: u32) -> EventKind {
    told(MapChange::Mapped { start: Addr(start), bytes }, task, stack)
}

fn unmap(start: u64, bytes: u64, task: u32, stack: u32) -> EventKind {
    told(MapChange::Unmapped { start: Addr(start), bytes }, task, stack)
}

fn moved(old: (u64, u64), new: (u64, u64), task: u32, stack: u32) -> EventKind {
    let (old_bytes, new_bytes) = (Length::of(old.1), Length::of(new.1));
    let by = Call { family: Some(Family::Mapping), ..call(MMAP, task, stack) };
    EventKind::Remapped { old: Addr(old.0), old_bytes, new: Addr(new.0), new_bytes, by }
}

const MOVE_BEGAN: MapChange = MapChange::MoveBegan { old: Addr(1000), old_bytes: 100 };

#[test]
fn a_mapping_is_one_object_until_its_last_byte_is_gone() {
    let mut model = model(&[map(1000, 100, 1, 5), unmap(1040, 20, 2, 6)]);
    let snapshot = model.snapshot();
    let totals = snapshot.totals;
    assert_eq!((totals.allocations, totals.bytes_allocated, totals.frees, totals.bytes_freed), (1, 100, 0, 20));
    assert_eq!((totals.live_blocks, totals.live_bytes, totals.peak_bytes), (1, 80, 100));
    let [site] = on_stack(&snapshot, 5)[..] else { panic!("{:?}", snapshot.sites) };
    assert_eq!((site.allocated, site.freed, site.live), (amount(1, 100), amount(0, 20), amount(1, 80)));
    assert_eq!(site.at_peak, amount(1, 100));
    let [freeing] = on_stack(&snapshot, 6)[..] else { panic!("{:?}", snapshot.sites) };
    assert_eq!(freeing.deallocated, amount(0, 20));
    // the rest, and what was never mapped
    tell(&mut model, unmap(0, 5000, 1, 7));
    let snapshot = model.snapshot();
    let totals = snapshot.totals;
    assert_eq!((totals.frees, totals.bytes_freed, totals.live_blocks, totals.live_bytes), (1, 100, 0, 0));
    assert_eq!((totals.temporary, snapshot.anomalies.unknown_frees), (1, 0));
    assert_eq!(on_stack(&snapshot, 7)[0].deallocated, amount(1, 80));
}

#[test]
fn what_is_mapped_over_a_mapping_takes_its_place() {
    let snapshot = model(&[map(1000, 100, 1, 5), map(1050, 100, 1, 6), map(2000, 0, 1, 7)]).snapshot();
    let totals = snapshot.totals;
    assert_eq!((totals.live_blocks, totals.live_bytes, totals.peak_bytes, totals.frees), (2, 150, 150, 0));
    assert_eq!(on_stack(&snapshot, 5)[0].live, amount(1, 50));
    assert!(on_stack(&snapshot, 7).is_empty(), "nothing was mapped");
}

#[test]
fn a_block_may_begin_where_a_mapping_does() {
    let mut model = model(&[map(1000, 100, 1, 5), alloc(1000, 10, 1, 6), free(1000, 1, 6), free(1040, 1, 6)]);
    assert_eq!((model.totals().live_bytes, model.anomalies().unknown_frees), (100, 1));
    assert!(model.has_mapped(Addr(1099), 1) && !model.has_mapped(Addr(1100), 100));
    tell(&mut model, alloc(1000, 10, 1, 6));
    tell(&mut model, unmap(1000, 100, 1, 5));
    assert_eq!((model.totals().live_bytes, model.totals().live_blocks), (10, 1), "nobody has freed the block");
    let blocks: Vec<Addr> = model.live_blocks().map(|block| block.addr).collect();
    assert_eq!(blocks, [Addr(1000)]);
    tell(&mut model, map(1000, 100, 1, 5));
    let births: Vec<(u64, Addr)> = model.block_births().map(|(birth, block)| (birth, block.addr)).collect();
    assert_eq!((births, model.live_births().count()), (vec![(3, Addr(1000))], 2), "that of the block");
}

#[test]
fn mappings_are_no_candidates_for_leaks_but_count_as_born() {
    let mut model = model(&[map(1000, 100, 1, 5), alloc(64, 10, 1, 6)]);
    assert_eq!(model.live_blocks().count(), 1);
    let births: Vec<(u64, u64)> = model.live_births().map(|(birth, block)| (birth, block.size)).collect();
    assert_eq!(births, [(2, 10), (1, 100)]);
    let name = MarkName::new("m").unwrap();
    tell(&mut model, EventKind::Mark(name));
    tell(&mut model, map(5000, 50, 1, 5));
    tell(&mut model, unmap(5000, 10, 1, 5));
    let view = model.view(true);
    let survivors = view.survivors(view.mark(&name).unwrap().births).unwrap();
    assert_eq!((survivors.totals.live_blocks, survivors.totals.live_bytes), (1, 40));
}

#[test]
fn a_move_is_an_allocation_and_a_free() {
    let model = model(&[map(1000, 100, 1, 5), moved((1000, 100), (3000, 300), 1, 6), moved((9000, 10), (0, 0), 1, 6)]);
    let totals = model.totals();
    assert_eq!((totals.reallocations, totals.allocations, totals.frees, totals.failed), (1, 2, 1, 1));
    assert_eq!(
        (totals.bytes_allocated, totals.bytes_freed, totals.live_bytes, totals.peak_bytes),
        (400, 100, 300, 300)
    );
    // of a part, in its place
    let snapshot = run(model, &[moved((3200, 100), (3200, 150), 1, 7)]).snapshot();
    assert_eq!((snapshot.totals.live_blocks, snapshot.totals.live_bytes), (2, 350));
    assert_eq!(on_stack(&snapshot, 6).iter().map(|site| site.live.bytes).sum::<u64>(), 200);
}

#[test]
fn what_has_moved_that_is_not_known_does_not_count() {
    let totals = model(&[map(1000, 100, 1, 5), moved((5000, 100), (1050, 100), 1, 6)]).totals();
    assert_eq!((totals.live_bytes, totals.allocations, totals.reallocations), (50, 1, 0));
    let totals = model(&[told(MOVE_BEGAN, 1, 6), moved((1000, 100), (0, 0), 1, 6)]).totals();
    assert_eq!((totals.failed, totals.reallocations), (0, 0));
}

/// Before the thread that moves has stopped again, another one may get the old place.
#[test]
fn the_old_place_of_a_move_in_progress_may_be_another_mapping() {
    let events =
        [map(1000, 100, 1, 5), told(MOVE_BEGAN, 1, 6), map(1000, 50, 2, 7), moved((1000, 100), (3000, 200), 1, 6)];
    let snapshot = model(&events).snapshot();
    assert_eq!((snapshot.totals.live_blocks, snapshot.totals.live_bytes), (2, 250));
    assert_eq!(on_stack(&snapshot, 7)[0].live, amount(1, 50));
    // all of it
    let events =
        [map(1000, 100, 1, 5), told(MOVE_BEGAN, 1, 6), map(900, 300, 2, 7), moved((1000, 100), (3000, 200), 1, 6)];
    let totals = model(&events).totals();
    assert_eq!((totals.live_blocks, totals.live_bytes, totals.reallocations, totals.frees), (2, 500, 1, 1));
}

#[test]
fn a_forked_child_has_its_parents_mappings() {
    let parent = TaskId { tid: 1, serial: 1 };
    let child = TaskId { tid: 2, serial: 9 };
    let fork = EventKind::Forked { image: ImageId(2), parent, child, among_threads: false };
    let mut model = model(&[map(1000, 100, 1, 5), told(MOVE_BEGAN, 1, 6), fork]);
    assert_eq!((model.totals().live_bytes, model.totals().allocations), (100, 0));
    tell(&mut model, map(4000, 10, 9, 7));
    tell(&mut model, moved((1000, 100), (2000, 100), 9, 6));
    assert_eq!((model.totals().live_bytes, model.totals().preexisting_frees), (110, 1));
    tell(&mut model, EventKind::Exec { image: ImageId(3) });
    assert_eq!((model.totals().live_bytes, model.has_mapped(Addr(0), u64::MAX)), (0, false));
}

/// All mappings are recorded, with their own weight.
#[test]
fn a_sample_of_blocks_has_all_mappings() {
    let began = EventKind::Began {
        image: ImageId(1),
        preexisting: Preexisting::None,
        free_stacks: true,
        sample_interval: 4096,
    };
    let totals = model(&[began, map(1000, 100, 1, 5), map(2000, 100, 1, 5), unmap(1000, 100, 1, 5)]).totals();
    assert_eq!((totals.allocations, totals.frees, totals.live_bytes, totals.peak_bytes), (2, 1, 100, 200));
    assert_eq!((totals.counted_allocations, totals.counted_bytes), (2, 200));
}
