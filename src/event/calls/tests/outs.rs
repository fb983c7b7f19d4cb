//! Functions that hand blocks out through a pointer, and tell their sizes only when they return.

use super::*;

/// Returns with what then stands at the pointers.
fn back(thread: &mut Thread, result: u64, block: u64, size: Option<u64>) -> ReturnMatch {
    let (events, missed) = (&mut thread.events, &mut thread.missed_returns);
    let returned = Returned { result, out: Some(Addr(block)), size };
    thread.calls.leave(&Return { task: TASK, site: SITE, sp: SP + 8, returned }, &mut |event| {
        keep(event, events, missed);
    })
}

/// getline with a buffer at 0x100 and its size at 0x108, in which these stand.
fn getline(thread: &mut Thread, old: u64, size: u64) {
    assert!(thread.call("getline", &[0x100, 0x108, 7, 0, old, size]));
    let operation = thread.calls.operation_ending(TASK, SITE, SP + 8).unwrap();
    assert_eq!((operation.out_argument(), operation.size_argument()), (Some(Addr(0x100)), Some(Addr(0x108))));
}

#[test]
fn asprintf_fails_with_a_negative_length() {
    let mut thread = Thread::new();
    assert!(thread.call("asprintf", &[0x100]));
    // its inner malloc, which has a probe, too
    assert!(!thread.inner("malloc", &[8]));
    assert_eq!(back(&mut thread, 7, 0x1000, Some(8)), ReturnMatch::Matched);
    assert!(thread.call("vasprintf", &[0x100]));
    // an int: the upper half is undefined. What stands at the pointer is undefined, too
    back(&mut thread, 0x7777_ffff_ffff, 0x1000, Some(0));
    assert_eq!(thread.told(), ["asprintf 0x1000 8", "vasprintf failed 0"].map(str::to_owned));
}

#[test]
fn success_without_a_block_is_no_failure() {
    let mut thread = Thread::new();
    assert!(thread.call("mi_dupenv_s", &[0x100]));
    back(&mut thread, 0, 0, Some(0));
    assert!(thread.call("posix_memalign", &[0x100, 64, 0]));
    back(&mut thread, 0, 0, None);
    assert_eq!(thread.told(), [""; 0]);
    assert!(thread.call("posix_memalign", &[0x100, 64, 9]));
    back(&mut thread, 12, 0, None);
    assert_eq!(thread.told(), ["posix_memalign failed 9"]);
}

#[test]
fn a_line_may_need_a_block_another_one_or_none() {
    let mut thread = Thread::new();
    getline(&mut thread, 0, 0);
    assert!(!thread.inner("malloc", &[120]));
    back(&mut thread, 5, 0x1000, Some(120));
    assert_eq!(thread.told(), ["getline 0x1000 120"]);
    // it has the room; at the end of the file, too
    for result in [70, u64::MAX] {
        getline(&mut thread, 0x1000, 120);
        back(&mut thread, result, 0x1000, Some(120));
        assert_eq!(thread.told(), ["began 0x1000", "abandoned 0x1000"]);
    }
    getline(&mut thread, 0x1000, 120);
    back(&mut thread, 200, 0x2000, Some(240));
    getline(&mut thread, 0x2000, 240);
    back(&mut thread, 400, 0x2000, Some(480));
    let told = ["began 0x1000", "ended 0x1000 0x2000 240", "began 0x2000", "ended 0x2000 0x2000 480"];
    assert_eq!(thread.told(), told);
    // no memory: the file's end comes without a block
    getline(&mut thread, 0, 0);
    back(&mut thread, u64::MAX, 0, Some(0));
    assert_eq!(thread.told(), [""; 0]);
    // left by a longjmp: the block is as it was
    getline(&mut thread, 0x2000, 480);
    let further_out = thread.entry("malloc", &[1], SP + 0x40);
    assert!(thread.arrive(further_out));
    assert_eq!((thread.told(), thread.missed_returns), (vec!["began 0x2000".into(), "abandoned 0x2000".into()], 1));
}

#[test]
fn a_line_whose_return_can_t_be_seen_is_taken_to_fit() {
    let mut thread = Thread::new();
    for (old, told) in [(0x1000, vec!["began 0x1000", "abandoned 0x1000"]), (0, Vec::new())] {
        getline(&mut thread, old, 120);
        let (events, missed) = (&mut thread.events, &mut thread.missed_returns);
        thread.calls.give_up_latest(TASK, &mut |event| keep(event, events, missed));
        assert_eq!(thread.told(), told);
    }
    assert_eq!(thread.missed_returns, 1, "of what block it was nobody knows");
}
