//! mmap and its kin among the calls of an allocator.

use super::*;
use crate::event::MapChange;

/// MAP_PRIVATE | MAP_ANONYMOUS.
const ANONYMOUS: u64 = 0x22;
const PAGES: [u64; 5] = [0, 8192, 3, ANONYMOUS, u64::MAX];

fn thread() -> Thread {
    let mut thread = Thread::new();
    thread.table = AllocatorTable::new().with_mappings();
    thread
}

/// What is mapped and unmapped, and the places and lengths of moves.
fn changes(thread: &mut Thread) -> Vec<Result<MapChange, [u64; 4]>> {
    let change = |event| match event {
        EventKind::Mapping { change, .. } => Some(Ok(change)),
        EventKind::Remapped { old, old_bytes, new, new_bytes, .. } => {
            Some(Err([old.0, old_bytes.bytes(), new.0, new_bytes.bytes()]))
        }
        _ => None,
    };
    std::mem::take(&mut thread.events).into_iter().filter_map(change).collect()
}

fn mapped(start: u64, bytes: u64) -> Result<MapChange, [u64; 4]> {
    Ok(MapChange::Mapped { start: Addr(start), bytes })
}

#[test]
fn the_programs_own_mappings_are_told() {
    let mut thread = thread();
    assert!(thread.call("mmap", &PAGES));
    assert_eq!(thread.back(0x7000), ReturnMatch::Matched);
    assert!(thread.call("munmap", &[0x7000, 4096]));
    assert!(!thread.calls.pending(TASK), "its entry tells all");
    assert!(thread.call("mremap", &[0x8000, 4096, 8192, 1]));
    assert_eq!(thread.back(0x9000), ReturnMatch::Matched);
    let moved = Err([0x8000, 4096, 0x9000, 8192]);
    let began = Ok(MapChange::MoveBegan { old: Addr(0x8000), old_bytes: 4096 });
    let unmapped = Ok(MapChange::Unmapped { start: Addr(0x7000), bytes: 4096 });
    assert_eq!(changes(&mut thread), [mapped(0x7000, 8192), unmapped, began, moved]);
    assert!(!thread.call("mmap", &[0, 8192, 3, 2, 5]), "a file");
    assert!(!thread.call("munmap", &[0x7000, 0]), "nothing");
}

#[test]
fn an_allocators_mappings_are_part_of_its_calls() {
    let mut thread = thread();
    assert!(thread.call("malloc", &[1 << 20]));
    assert!(!thread.inner("mmap", &PAGES));
    assert_eq!(thread.back(0x7010), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["malloc 0x7010 1048576"]);
    // sbrk calls brk
    assert!(thread.call("sbrk", &[4096]));
    assert!(!thread.inner("brk", &[0x6000, 0x5000]));
    assert_eq!(thread.back(0x5000), ReturnMatch::Matched);
    assert_eq!(changes(&mut thread), [mapped(0x5000, 4096)]);
}

/// Another library's allocator maps when its own threads want it; the C library's own code maps stacks, too.
#[test]
fn whose_code_maps_outside_of_calls() {
    let mut thread = thread();
    let entry = Entry { caller_is_allocator: true, caller_module: JEMALLOC, ..thread.entry("mmap", &PAGES, SP) };
    assert!(!thread.arrive(entry));
    assert!(thread.arrive(Entry { caller_module: LIBC, ..entry }));
    assert_eq!(thread.back(0x7000), ReturnMatch::Matched);
    // whose memory it was, only the model can tell
    let entry = thread.entry("munmap", &[0x7000, 4096], SP);
    assert!(thread.arrive(Entry { caller_is_allocator: true, caller_module: JEMALLOC, ..entry }));
}

/// A signal handler's call is its own, also in the middle of malloc.
#[test]
fn a_handler_in_an_allocators_call_maps_for_the_program() {
    let mut thread = thread();
    assert!(thread.call("malloc", &[10]));
    thread.calls.signal_delivered(TASK);
    thread.signal_frame = true;
    assert!(thread.arrive(thread.entry("mmap", &PAGES, SP - 0x400)));
    assert_eq!(thread.back_at(SITE, SP - 0x400 + 8, 0x7000), ReturnMatch::Matched);
    assert_eq!(thread.back(0x100), ReturnMatch::Matched);
    assert_eq!(thread.told().len(), 2);
}

#[test]
fn a_mapping_whose_return_is_not_seen_is_missed() {
    let mut thread = thread();
    assert!(thread.call("mmap", &PAGES));
    let (events, missed) = (&mut thread.events, &mut thread.missed_returns);
    thread.calls.give_up_latest(TASK, &mut |event| keep(event, events, missed));
    assert_eq!((thread.events.len(), thread.missed_returns), (0, 1));
}
