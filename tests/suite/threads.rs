//! Exact counts whatever the threads do.

use super::counts::assert_sites;
use crate::support::counter::assert_equals_counter;
use crate::support::procfs;
use crate::support::program::Program;

/// T16: eight threads free each other's blocks; calls, bytes and what is left are exact, and the blocks hold what their
/// makers wrote.
#[test]
fn t16_eight_threads_exact_counts() {
    let program = Program::fixture("threads").args(["8", "2500"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "threads 8 rounds 2500\n");
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.site_sum(&["make_block"], "/live/objects"), ledger.total("live_blocks"));
    assert_eq!(traced.report.site_sum(&["make_block"], "/live/bytes"), ledger.total("live_bytes"));
    traced.report.assert_consistent();
    traced.report.assert_no_anomaly();
}

/// What libc allocates for a thread belongs to the totals, too. One worker: what is left in the slots is then the same
/// in each run.
#[test]
fn thread_equals_the_counter() {
    assert_equals_counter(&Program::fixture("threads").args(["1", "500"]), &[]);
}

/// T24: threads end with full caches, which glibc frees by itself: no false double or unknown free.
#[test]
fn t24_thread_exit_with_full_tcache() {
    let program = Program::fixture("churn").args(["200"]);
    let (_, report) = assert_equals_counter(&program, &[]);
    assert_sites(&report, &program.ledger());
    report.assert_no_anomaly();
}

/// T12: the leader is gone, its zombie remains, the workers go on and one of them ends the process.
#[test]
fn t12_leader_exits_and_workers_allocate() {
    let program = Program::fixture("leader_exit");
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 11);
    assert_eq!(traced.ended.text(), "workers done\n");
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.site_sum(&["worker_allocate"], "/live/bytes"), ledger.total("live_bytes"));
    traced.report.assert_no_anomaly();
}

/// T12: attach to a process whose leader is gone: its maps and memory can be reached through the other threads only,
/// which go on afterwards on code that is as it was.
#[test]
fn t12_attach_after_the_leader_has_ended() {
    let program = Program::fixture("leader_exit").args(["wait"]);
    let mut running = program.start();
    let live: i32 = running.value("ready").parse().unwrap();
    assert_eq!(procfs::state(running.pid()), Some('Z'));
    for _ in 0..2 {
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&["--duration", "300ms"], running.pid());
        let traced = tracer.collect(attached.wait().success());
        assert!(traced.report.site_sum(&["worker_allocate"], "/allocated/objects") > 100);
        assert_eq!(traced.report.anomaly("lost"), 0);
        procfs::assert_text_intact(live);
    }
    // it is found by its other threads, too, whoever asks
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], running.pid());
    procfs::wait_until_answered(running.pid());
    // and why it can't be traced twice
    let second = Program::new("/bin/true").start_attached(&[], running.pid()).wait();
    assert_eq!(second.code(), 125, "{}", second.stderr);
    assert!(second.stderr.contains(&format!("(process {}) already traces it", attached.pid())), "{}", second.stderr);
    procfs::order(running.pid(), "detach");
    attached.wait().success();
    running.feed(b"");
    assert_eq!(running.line(), "workers done");
    assert_eq!(running.wait().code(), 11);
}

/// `--pin` must not force the threads of a program onto one processor for ever, nor lose an event of them.
#[test]
fn pinned_threads_are_exact() {
    let program = Program::fixture("threads").args(["4", "500"]);
    let traced = program.traced_with(&["--pin"]);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
}
