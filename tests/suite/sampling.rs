//! `--sample-interval`: what a sample says of a program that keeps its own account.

use crate::support::ledger::Ledger;
use crate::support::program::{Program, Traced, engine};
use crate::support::{fixtures, procfs};

/// Far more than chance does: five standard errors.
const FAR: f64 = 5.0;

fn sampled(program: &Program, interval: &str) -> (Traced, Ledger) {
    sampled_by(engine(), program, interval)
}

fn sampled_by(engine: &str, program: &Program, interval: &str) -> (Traced, Ledger) {
    let traced = program.traced_with(&["--engine", engine, "--sample-interval", interval]);
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
    traced.report.assert_no_anomaly();
    assert_eq!(traced.report.list("/findings").len(), 0, "a free of what was not recorded is no error");
    (traced, program.ledger())
}

#[test]
fn estimates_agree_with_the_ledger_within_their_error() {
    let program = Program::fixture("sampled");
    let (traced, ledger) = sampled(&program, "2k");
    let error = traced.report.number("/sampling/standard_error") as f64;
    assert_eq!(traced.report.number("/sampling/interval"), 2048);
    let allocated = ledger.total("bytes_allocated") as f64;
    assert!(error > allocated / 1000.0 && error < allocated / 20.0, "{error} of {allocated}");
    for name in ["bytes_allocated", "bytes_freed", "live_bytes", "peak_bytes"] {
        let (told, truth) = (traced.report.total(name) as f64, ledger.total(name) as f64);
        assert!((told - truth).abs() < FAR * error, "{name}: {told} ± {error}, the ledger has {truth}");
    }
    // 3,000 blocks of 48 bytes: each is picked with p = 0.0232, so that the estimate's standard error is 6.5 / 0.0232 *
    // sqrt(3000 p).
    let of_small = traced.report.site_sum(&["small"], "/allocated/objects") as f64;
    assert!((of_small - 3000.0).abs() < FAR * 356.0, "{of_small} blocks of 48 bytes, not 3000");
    // 3,000 of 204.5 bytes on average: p = 0.095; grow has none, and frees of others come after allocations of others.
    let temporary = traced.report.total("temporary") as f64;
    assert!((temporary - 3000.0).abs() < FAR * 170.0, "{temporary} temporary blocks, not 3000");
    assert!(traced.ended.stderr.contains("Sampled"), "{}", traced.ended.stderr);
    let events = traced.report.number("/cost/events");
    let stops_at_each = events > 3000 * 4;
    assert_eq!(stops_at_each, engine() == "trap", "{events} events");
}

/// Five hundred live blocks have no byte or one, and each of these that is picked stands for a whole interval: with 2
/// KiB, two of them, which one run in fifty picks, double the estimate. So the interval is short here.
#[test]
fn estimated_numbers_of_blocks_agree_with_the_ledger() {
    let (traced, ledger) = sampled(&Program::fixture("sampled"), "64");
    // The square root of the sum of (1 - p) / p over the fixture's blocks, with p = 1 - exp(-size / 64), where no bytes
    // count as one.
    for (name, error) in [("allocations", 310.0), ("frees", 242.0), ("live_blocks", 194.0)] {
        let (told, truth) = (traced.report.total(name) as f64, ledger.total(name) as f64);
        assert!((told - truth).abs() < FAR * error, "{name}: {told} ± {error}, the ledger has {truth}");
    }
}

/// Each block that was picked is found again when it is freed.
#[test]
fn a_picked_block_s_free_is_matched() {
    let program = Program::fixture("sampled").args(["all"]);
    let (traced, ledger) = sampled(&program, "1k");
    assert_eq!((ledger.total("live_blocks"), traced.report.total("live_blocks")), (0, 0));
    assert_eq!(traced.report.total("live_bytes"), 0);
    assert!(traced.report.total("bytes_allocated") > 0);
    assert_eq!(traced.report.total("bytes_allocated"), traced.report.total("bytes_freed"));
}

/// One byte in one byte: every block but some of no bytes.
#[test]
fn the_smallest_interval_records_all() {
    let program = Program::fixture("sampled");
    let (traced, ledger) = sampled(&program, "1");
    let (told, truth) = (traced.report.total("bytes_allocated") as f64, ledger.total("bytes_allocated") as f64);
    assert!((told - truth).abs() / truth < 1e-3, "{told}, not {truth}");
}

#[test]
fn what_needs_every_block_is_refused_before_the_program_starts() {
    let program = Program::fixture("sampled");
    let refused = program.start_heaptrace(["check", "--sample-interval", "4k", "/bin/true"]).wait();
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("check needs every block"), "{}", refused.stderr);
    let refused = program.start_heaptrace(["check", "--max-overhead", "3%", "/bin/true"]).wait();
    assert!(refused.stderr.contains("check needs every block"), "{}", refused.stderr);
    let refused = program.start_heaptrace(["run", "--max-overhead", "3%", "--engine", "trap", "/bin/true"]).wait();
    assert!(refused.stderr.contains("whatever the interval"), "{}", refused.stderr);
}

/// Allocations and their bytes that are not in the program's account, but made by the C library, however often it is
/// run.
fn by_library(program: &Program) -> [u64; 2] {
    let traced = program.traced_with(&["--engine", "jump"]);
    let ledger = program.ledger();
    ["allocations", "bytes_allocated"].map(|name| traced.report.total(name) - ledger.total(name))
}

fn assert_counted(traced: &Traced, ledger: &Ledger, by_library: [u64; 2]) {
    let counted = ["counted_allocations", "counted_bytes"].map(|name| traced.report.total(name));
    let [allocations, bytes] = ["allocations", "bytes_allocated"].map(|name| ledger.total(name));
    let truth = [allocations + by_library[0], bytes + by_library[1]];
    assert_eq!(counted, truth, "{}", traced.ended.stderr);
    assert!(traced.ended.stderr.contains("Counted one by one"), "{}", traced.ended.stderr);
}

/// However few are picked: the allocations and their bytes are counted one by one.
#[test]
fn calls_that_are_not_picked_are_counted() {
    for engine in ["trap", "jump"] {
        for interval in ["1", "2k", "512k", "1g"] {
            let (traced, ledger) = sampled_by(engine, &Program::fixture("sampled"), interval);
            assert_counted(&traced, &ledger, [0, 0]);
        }
    }
}

/// Blocks of 8 threads, freed by others: each picked one is found again, and none is counted twice or lost.
#[test]
fn threads_are_sampled_and_counted_by_the_routine() {
    let program = Program::fixture("threads").args(["8"]);
    let by_library = by_library(&program);
    for (interval, interval_bytes) in [("256", 256.0), ("16k", 16384.0_f64)] {
        let (traced, ledger) = sampled_by("jump", &program, interval);
        assert_counted(&traced, &ledger, by_library);
        let live = ledger.total("live_blocks") as f64;
        let told = traced.report.total("live_blocks") as f64;
        // A block of s bytes that is picked stands for interval / s; of these blocks s is 17 to 272, and the mean of 1
        // / s is 1 / 92.
        let error = (live * interval_bytes / 92.0).sqrt();
        assert!(
            (told - live).abs() <= FAR * error + interval_bytes / 17.0,
            "{told} ± {error} live blocks, the ledger has {live}"
        );
    }
}

/// T10: a thousand signals a second take four threads out of the routine wherever they are: each call is counted once,
/// and each picked block found again.
#[test]
fn signals_leave_the_counts_exact() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("storm", &[&bump])).args(["1000"]);
    let by_library = by_library(&program);
    for interval in ["64", "4k", "256k"] {
        let (traced, ledger) = sampled_by("jump", &program, interval);
        assert_eq!(traced.ended.text(), "weathered\n");
        assert_counted(&traced, &ledger, by_library);
        for function in ["handler_allocate", "worker_allocate"] {
            assert_eq!(traced.report.site_sum(&[function], "/live/objects"), 0, "{function}");
        }
    }
}

/// The routine's estimates are right on average: over 20 runs, within five standard errors of their mean.
#[test]
fn estimates_of_the_routine_are_unbiased() {
    const RUNS: u32 = 20;
    let program = Program::fixture("sampled");
    let mut sums = [0.0; 3];
    let (mut error, mut truth) = (0.0, [0.0; 3]);
    for _ in 0..RUNS {
        let (traced, ledger) = sampled_by("jump", &program, "4k");
        error += (traced.report.number("/sampling/standard_error") as f64).powi(2);
        for (at, name) in ["bytes_allocated", "bytes_freed", "live_bytes"].into_iter().enumerate() {
            sums[at] += traced.report.total(name) as f64;
            truth[at] = ledger.total(name) as f64;
        }
    }
    let runs = f64::from(RUNS);
    let error = (error / runs / runs).sqrt();
    for (sum, truth) in sums.into_iter().zip(truth) {
        assert!((sum / runs - truth).abs() < FAR * error, "{} on average, not {truth} (± {error})", sum / runs);
    }
}

/// `--max-overhead`: the interval rises with what recording takes, each block has the weight of the interval that it
/// was picked with, and the estimates stay right on average: over 6 runs, within five standard errors of their mean.
#[test]
fn an_interval_that_changes_leaves_estimates_unbiased() {
    const RUNS: u32 = 6;
    let program = Program::fixture("churning").args(["1500000"]);
    let (mut sums, mut error, mut truth) = ([0.0; 3], 0.0, [0.0; 3]);
    for _ in 0..RUNS {
        let traced = program.traced_with(&["--engine", "jump", "--max-overhead", "0.5%"]);
        let (report, ledger) = (&traced.report, program.ledger());
        report.assert_no_anomaly();
        assert!(traced.ended.stderr.contains("Sampled, one byte in 4.00 KiB to "), "{}", traced.ended.stderr);
        let counted = ["counted_allocations", "counted_bytes"].map(|name| report.total(name));
        assert_eq!(counted, ["allocations", "bytes_allocated"].map(|name| ledger.total(name)));
        error += (report.number("/sampling/standard_error") as f64).powi(2);
        for (at, name) in ["bytes_allocated", "bytes_freed", "allocations"].into_iter().enumerate() {
            sums[at] += report.total(name) as f64;
            truth[at] = ledger.total(name) as f64;
        }
    }
    let runs = f64::from(RUNS);
    let error = (error / runs / runs).sqrt();
    for (at, name) in ["bytes allocated", "bytes freed"].into_iter().enumerate() {
        let (mean, truth) = (sums[at] / runs, truth[at]);
        assert!((mean - truth).abs() < FAR * error, "{name}: {mean} on average, not {truth} (± {error})");
    }
    // blocks of 16 bytes stand for more than those of 496: their number is less certain than their bytes
    let (mean, truth) = (sums[2] / runs, truth[2]);
    assert!((mean / truth - 1.0).abs() < 2.0 * FAR * error / (sums[0] / runs), "{mean} blocks, not {truth}");
}

/// What is allocated in a pause is not counted.
#[test]
fn a_pause_is_not_counted() {
    for engine in ["trap", "jump"] {
        let program = Program::fixture("steps");
        let mut running = program.start_traced(&["--engine", engine, "--sample-interval", "64k"]);
        let pid: i32 = running.value("ready").parse().unwrap();
        let mut step = |line: &str| {
            running.send(line);
            assert_eq!(running.line(), "ok");
        };
        step("a 10 100");
        procfs::order(pid, "pause");
        step("a 7 10");
        procfs::order(pid, "resume");
        step("b 1 50");
        let traced = program.collect(running.wait());
        assert_eq!(traced.ended.code(), 0);
        let counted = ["counted_allocations", "counted_bytes"].map(|name| traced.report.total(name));
        assert_eq!(counted, [11, 1050], "{engine}");
    }
}

/// An allocator's own asprintf and getline, whose blocks have their sizes at the return: they are picked there by
/// these, so that their estimates are right on average, over 10 runs within five standard errors; and all are counted.
#[test]
fn blocks_whose_sizes_are_known_at_the_return_only_are_sampled() {
    const RUNS: u32 = 10;
    const INTERVAL: f64 = 2048.0;
    let lines: String = (0..2000).map(|n| "x".repeat(30 + n * 53 % 700) + "\n").collect();
    // unoptimized: malloc begins so that the routine records it
    let library = fixtures::library_with("brings_lines", &["-O0"]);
    let program = Program::new(fixtures::program_linked("sampled_texts", &[&library])).input(lines);
    let program = program.stays_on_trap("arguments");
    // of the printed ones in all and at the end, and of the buffers of lines at the end: what is told, and what is true
    let (mut sums, mut truth) = ([0.0; 3], [0.0; 3]);
    for _ in 0..RUNS {
        let traced = program.traced_with(&["--engine", engine(), "--sample-interval", "2k"]);
        traced.report.assert_no_anomaly();
        assert_eq!(traced.report.list("/findings").len(), 0, "a free of what was not recorded is no error");
        let numbers: Vec<u64> = traced.ended.text().split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [blocks, bytes, _, printed, live, of_lines] = numbers[..] else { panic!("{numbers:?}") };
        let counted = ["counted_allocations", "counted_bytes"].map(|name| traced.report.total(name));
        assert_eq!(counted, [blocks, bytes], "{}", traced.ended.stderr);
        let of = |function, what| traced.report.site_sum(&[function], what) as f64;
        let told = [of("prints", "/allocated/bytes"), of("prints", "/live/bytes"), of("reads_line", "/live/bytes")];
        for (sum, told) in sums.iter_mut().zip(told) {
            *sum += told;
        }
        truth = [printed, live, of_lines].map(|number| number as f64);
    }
    for (sum, truth) in sums.into_iter().zip(truth) {
        let mean = sum / f64::from(RUNS);
        // A block of s bytes adds s² (1 - p) / p to the variance, p = 1 - exp(-s / interval): less than s times the
        // interval.
        let error = (truth * INTERVAL / f64::from(RUNS)).sqrt();
        assert!((mean - truth).abs() < FAR * error, "{mean} on average, not {truth} (± {error})");
    }
}
