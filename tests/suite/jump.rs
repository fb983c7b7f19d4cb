//! The jump engine against the trap engine, the fixtures' ledgers and the program's own text. `./test` runs whole
//! suites with it, too.

mod children;
mod deep;
mod deletes;
mod entries;
mod left;
mod operators;
mod order;
mod same;
mod signals;
mod stack;
mod surroundings;
mod tight;
mod torn;

use super::counts::assert_sites;
use super::guardian::stop_heaptrace;
use crate::support::program::{Program, Traced};
use crate::support::{fixtures, procfs};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Runs a program by the engine. It must have been on the jump engine, which its few stops show: the trap engine has
/// one for each event at least. Signals that others send are stops, too, however slow the machine is.
fn by(engine: &str, program: &Program, options: &[&str]) -> Traced {
    by_with_signals(engine, program, options, 0)
}

/// The same of a program that gets so many signals: on a slow machine it has few events beside them.
fn by_with_signals(engine: &str, program: &Program, options: &[&str], signals: u64) -> Traced {
    let traced = program.traced_with(&[&["--engine", engine], options].concat());
    // where nothing is allocated there is nothing to change the code for
    let sees = if traced.report.number("/cost/events") == 0 { "trap" } else { engine };
    assert_eq!(traced.report.text("/engine"), sees);
    let (stops, events) = (traced.report.number("/cost/stops"), traced.report.number("/cost/events"));
    if engine == "jump" && events > 5000 {
        assert!(
            stops.saturating_sub(signals) < events / 2,
            "{stops} stops for {events} events: {}",
            traced.ended.stderr
        );
    }
    traced
}

/// What must be the same: sums, errors, histograms, and all sites with all of their figures but times.
fn told(traced: &Traced) -> Vec<(&'static str, Value)> {
    let report = &traced.report.0;
    let mut sites: Vec<Value> = report["sites"].as_array().unwrap().clone();
    sites.sort_by_key(|site| site["id"].to_string());
    for site in &mut sites {
        site.as_object_mut().unwrap().remove("mean_lifetime_ns").expect("each site has it");
    }
    let mut totals = report["totals"].clone();
    totals.as_object_mut().unwrap().retain(|name, _| !name.ends_with("_ns"));
    vec![
        ("totals", totals),
        ("anomalies", report["anomalies"].clone()),
        ("sizes", report["histograms"]["size"].clone()),
        ("lifetimes", report["histograms"]["lifetime"].clone()),
        ("sites", Value::Array(sites)),
    ]
}

fn assert_same(program: &Program, options: &[&str]) {
    let (trap, jump) = (by("trap", program, options), by("jump", program, options));
    for ((name, trap), (_, jump)) in told(&trap).into_iter().zip(told(&jump)) {
        assert_eq!(trap, jump, "{name} of {} with {options:?}", program.exe().display());
    }
    assert!(jump.report.list("/warnings").iter().all(|warning| !warning.to_string().contains("trap engine")));
}

/// J06: each call of many threads is there.
#[test]
fn j06_threads_are_counted_exactly() {
    for threads in ["8", "16"] {
        let program = Program::fixture("threads").args([threads]);
        let traced = by("jump", &program, &[]);
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// J07: one thread alone is in the midst of its calls when the first other ones come, and they when more do.
#[test]
fn j07_threads_come_in_the_midst_of_calls() {
    let program = Program::fixture("threads").args(["6", "3000", "between"]);
    let traced = by("jump", &program, &[]);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
    traced.report.assert_consistent();
}

/// J46: heaptrace stands still while the rings fill: the program's threads wait for it, and no call is lost.
#[test]
fn j46_a_stopped_tracer_is_waited_for() {
    const THREADS: usize = 4;
    let program = Program::fixture("threads").args([&THREADS.to_string(), "20000", "wait"]);
    let mut running = program.start_traced(&["--engine", "jump"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    stop_heaptrace(&running);
    running.send("go");
    // whose ring is full asks, and stands there
    let asks = |tid: &i32| procfs::state(*tid) == Some('t');
    procfs::wait_until("the rings are full", || procfs::threads(pid).iter().filter(|tid| asks(tid)).count() == THREADS);
    running.signal(Signal::SIGCONT);
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.text("/engine"), "jump");
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
}

/// J47: a program writes at random over the memory that heaptrace shares with it, but for the return addresses of calls
/// in progress. It goes on, comes to its end and computes what it should; heaptrace tells what has happened, and writes
/// its report.
#[test]
fn j47_a_program_that_scribbles_is_survived() {
    let mut told = 0;
    for options in [&[][..], &["--no-free-stacks"], &["--sample-interval", "300"]] {
        for seed in ["3", "4"] {
            let program = Program::fixture("scribbler").args(["5000", seed]);
            let traced = program.traced_with(&[&["--engine", "jump"], options].concat());
            assert_eq!(traced.ended.text(), "right\n", "{}", traced.ended.stderr);
            let warnings = traced.report.list("/warnings");
            told += usize::from(warnings.iter().any(|told| told.to_string().contains("written to heaptrace's memory")));
        }
    }
    assert!(told > 0, "nothing that was written to was ever noticed");
}

/// A program that has forbidden itself the timestamp counter, which the routine reads now and then, is recorded like
/// others.
#[test]
fn a_program_without_timestamps_is_recorded() {
    let program = Program::fixture("no_timestamps");
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), "ok\n");
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
    assert!(traced.report.list("/warnings").is_empty(), "{}", traced.ended.stderr);
}

/// `auto` begins with the trap engine, and changes in the midst of the calls of many threads: none is lost, and none
/// told twice.
#[test]
fn auto_changes_while_threads_work() {
    for rounds in ["2000", "10000"] {
        let program = Program::fixture("threads").args(["8", rounds]).env("HEAPTRACE_ENGINE", "auto");
        let traced = program.traced();
        assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
        let without_stop = traced.report.number("/cost/events_without_stop");
        let events = traced.report.number("/cost/events");
        assert!(without_stop > 0 && without_stop < events, "{without_stop} of {events}");
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// A short run is left to the trap engine.
#[test]
fn auto_leaves_short_runs_alone() {
    let traced = Program::fixture("known").env("HEAPTRACE_ENGINE", "auto").traced();
    assert_eq!(traced.report.text("/engine"), "trap", "{}", traced.ended.stderr);
    assert_eq!(traced.report.number("/cost/events_without_stop"), 0);
}

/// A process with threads is attached to, and each of their calls from then on is there.
#[test]
fn j44_threads_are_counted_exactly_from_an_attach_on() {
    let program = Program::fixture("threads").args(["8", "5000", "wait"]);
    for engine in ["jump", "auto"] {
        let mut target = program.start();
        let pid: i32 = target.value("ready").parse().unwrap();
        let tracer = Program::new("/bin/true").env("HEAPTRACE_ENGINE", engine);
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        target.send("go");
        target.wait().success();
        let traced = tracer.collect(attached.wait().success());
        assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
        assert!(traced.report.number("/cost/events_without_stop") > 0);
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// J44: a detach leaves no memory mapped in a process that goes on to allocate.
#[test]
fn j44_regions_do_not_stay() {
    let program = Program::fixture("victim").args(["4"]);
    let (mut victim, pid) = super::attach::start_victim(&program);
    let before = left::added(pid);
    for _ in 0..crate::suite::rounds(4) {
        let tracer = Program::new("/bin/true").env("HEAPTRACE_ENGINE", "jump");
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        victim.send("still alive?");
        assert_eq!(victim.line(), "alive");
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        assert_eq!(traced.report.text("/engine"), "jump");
        traced.report.assert_no_anomaly();
        procfs::assert_text_intact(pid);
        assert_eq!(left::added(pid), before, "{}", traced.ended.stderr);
    }
    super::attach::assert_victim_well(victim, pid);
}

/// J45: threads that are in wrapped calls, or sleep in them, go on after a detach, in code that is the file's.
#[test]
fn j45_a_detach_leaves_busy_threads_whole() {
    for _ in 0..3 {
        let program = Program::fixture("victim").args(["4"]);
        let mut running = program.start_traced(&["--engine", "jump"]);
        let pid: i32 = running.value("ready").parse().unwrap();
        for _ in 0..2 {
            running.send("still alive?");
            assert_eq!(running.line(), "alive");
            running.signal(Signal::SIGINT);
            let waits =
                || procfs::status_field(running.pid(), "ShdPnd").is_none_or(|set| !set.trim_matches('0').is_empty());
            procfs::wait_until("Ctrl-C is taken", || !waits());
        }
        procfs::wait_until_let_go(pid);
        running.send("still alive?");
        assert_eq!(running.line(), "alive");
        running.feed(b"");
        assert_eq!(running.line(), "ok");
        let traced = program.collect(running.wait().success());
        assert_eq!(traced.report.text("/engine"), "jump");
    }
}

/// Where it can't be had, the trap engine sees the program, and the summary says why.
#[test]
fn programs_beyond_its_reach_are_told() {
    let program = Program::fixture("seccomp");
    let traced = program.start_traced(&["--engine", "jump"]).wait();
    let told = traced.stderr.replace(['\n', ' '], "");
    assert!(told.contains("thetrapengine,notthejumpengine,recordedseccomp"), "{}", traced.stderr);
}

/// J29, J30: an allocator that walks the stack of its caller must not meet our return address there.
#[test]
fn j30_allocators_that_walk_stacks_stay_at_stops() {
    let sanitized =
        Program::new(fixtures::program_with("known", &["-fsanitize=address"])).env("ASAN_OPTIONS", "detect_leaks=0");
    let profiled = Program::fixture("known")
        .env("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
        .env("MALLOC_CONF", "abort_conf:false,prof:true");
    for program in [sanitized, profiled] {
        let program = program.stays_on_trap("its allocator may walk the stacks of its callers");
        let traced = program.traced_with(&["--engine", "jump"]);
        assert_eq!(traced.report.text("/engine"), "trap", "{}", traced.ended.stderr);
        let told = traced.ended.stderr.replace(['\n', ' '], "");
        assert!(told.contains("asitsallocatormaywalkthestacks"), "{}", traced.ended.stderr);
    }
}

/// An allocator with operators of its own: all of its functions are on the jump engine.
#[test]
fn another_allocator_is_recorded_whole() {
    let jemalloc = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    let program = Program::fixture("threads").args(["4"]).env("LD_PRELOAD", jemalloc);
    let traced = by("jump", &program, &[]);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
    assert!(traced.report.list("/warnings").is_empty(), "{:?}", traced.report.list("/warnings"));
    assert_same(&Program::fixture("operators").env("LD_PRELOAD", jemalloc), &[]);
}
