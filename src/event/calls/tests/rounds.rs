//! Functions that branch back to their own first instruction.

use super::*;

/// Thread and all: the program has called a function that may come to its first instruction again.
fn comes(thread: &mut Thread, symbol: &str, args: &[u64]) -> bool {
    let entry = thread.entry(symbol, args, SP);
    thread.arrive(Entry { loops_to_entry: true, ..entry })
}

#[test]
fn an_allocation_that_tries_again_is_one_call_of_what_was_asked_for() {
    let mut thread = Thread::new();
    assert!(comes(&mut thread, "malloc", &[100]));
    // rounded up meanwhile
    assert!(!comes(&mut thread, "malloc", &[112]) && !comes(&mut thread, "malloc", &[112]));
    assert_eq!(thread.back(0x1000), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["malloc 0x1000 100"]);
    // after the return it is another call, from the same place
    assert!(comes(&mut thread, "malloc", &[100]));
    thread.back(0x2000);
    assert!(comes(&mut thread, "realloc", &[0x1000, 200]) && !comes(&mut thread, "realloc", &[0x1000, 208]));
    thread.back(0x3000);
    assert_eq!(thread.told(), ["malloc 0x2000 100", "began 0x1000", "ended 0x1000 0x3000 200"]);
    assert!(comes(&mut thread, "posix_memalign", &[0x9000, 64, 10]));
    assert!(!comes(&mut thread, "posix_memalign", &[0x9000, 64, 10]));
    thread.back(12);
    assert_eq!(thread.told(), ["posix_memalign failed 10"]);
    assert_eq!(thread.missed_returns, 0);
}

#[test]
fn without_such_a_branch_it_is_a_new_call_after_a_longjmp() {
    let mut thread = Thread::new();
    assert!(thread.call("malloc", &[100]) && thread.call("malloc", &[112]));
    assert_eq!(thread.missed_returns, 1);
    thread.back(0x1000);
    assert_eq!(thread.told(), ["malloc 0x1000 112"]);
}

#[test]
fn a_free_that_tries_again_is_one_and_one_of_another_block_is_another() {
    let mut thread = Thread::new();
    assert!(comes(&mut thread, "free", &[0x1000]) && !comes(&mut thread, "free", &[0x1000]));
    assert_eq!(thread.back(0), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["free 0x1000"]);
    // the program's own double free: a return lies between them
    assert!(comes(&mut thread, "free", &[0x1000]));
    thread.back(0);
    assert_eq!(thread.told(), ["free 0x1000"]);
    // a list, freed by a function that ends in a jump to itself; the last one tries again
    assert!(comes(&mut thread, "free", &[0x1000]) && comes(&mut thread, "free", &[0x2000]));
    assert!(comes(&mut thread, "free", &[0x3000]) && !comes(&mut thread, "free", &[0x3000]));
    assert!(!comes(&mut thread, "free", &[0]), "the end of the list");
    // which is a ring: a double free
    assert!(comes(&mut thread, "free", &[0x1000]));
    assert_eq!(thread.back(0), ReturnMatch::Matched);
    assert_eq!(thread.back(0), ReturnMatch::Spurious, "all return at once");
    assert_eq!(thread.told(), ["free 0x1000", "free 0x2000", "free 0x3000", "free 0x1000"]);
    assert!(!thread.calls.pending(TASK));
    assert_eq!(thread.missed_returns, 0);
}

#[test]
fn what_such_a_free_calls_is_judged_as_if_it_were_not_awaited() {
    let mut thread = Thread::new();
    // operator delete, which passes the block on
    let delete = Entry { loops_to_entry: true, ..thread.entry("_ZdlPv", &[0x1000], SP) };
    assert!(thread.arrive(delete));
    assert!(!thread.inner("free", &[0x1000]), "the same block");
    assert!(thread.inner("free", &[0x2000]), "another one");
    thread.back(0);
    // a free that was left by a longjmp is not missed: the stream has it
    assert!(comes(&mut thread, "free", &[0x3000]));
    let further_out = thread.entry("malloc", &[1], SP + 0x40);
    assert!(thread.arrive(further_out));
    assert_eq!(thread.missed_returns, 0);
    assert_eq!(thread.calls.take_dropped_sites(), [SITE]);
}

#[test]
fn declared_functions_come_round_in_the_same_way() {
    let mut thread = Thread::new();
    thread.table.declare(AllocatorTable::parse_free_fn("pool_drop:ptr=arg2").unwrap());
    assert!(comes(&mut thread, "pool_drop", &[7, 0x1000]) && !comes(&mut thread, "pool_drop", &[8, 0x1000]));
    assert!(!thread.inner("free", &[0x9000]), "part of it");
    assert!(comes(&mut thread, "pool_drop", &[7, 0x2000]));
    assert_eq!(thread.back(0), ReturnMatch::Matched);
    assert_eq!(thread.told(), ["pool_drop 0x1000", "pool_drop 0x2000"]);
    assert_eq!(thread.missed_returns, 0);
}
