//! The jump engine against the trap engine, the fixtures' ledgers and the program's own text. `./test` runs whole suites with it, too.

use super::counts::assert_sites;
use crate::support::procfs;
use crate::support::program::{Program, Traced};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Runs a program by the engine. It must have been on the jump engine, which its few stops show.
fn by(engine: &str, program: &Program, options: &[&str]) -> Traced {
    let traced = program.traced_with(&[&["--engine", engine], options].concat());
    assert_eq!(traced.report.text("/engine"), engine);
    let (stops, events) = (traced.report.number("/cost/stops"), traced.report.number("/cost/events"));
    if engine == "jump" && events > 5000 {
        assert!(stops < events / 4, "{stops} stops for {events} events: {}", traced.ended.stderr);
    }
    traced
}

/// What must be the same: sums, errors, histograms, and all sites with all of their figures.
fn told(traced: &Traced) -> Vec<(&'static str, Value)> {
    let report = &traced.report.0;
    let mut sites: Vec<Value> = report["sites"].as_array().unwrap().clone();
    sites.sort_by_key(|site| site["id"].to_string());
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

/// J01: programs with one thread have the same profile, sample by sample.
#[test]
fn j01_fixtures_have_the_same_profile() {
    for name in ["known", "sites", "peak", "recursion", "steps", "fibers"] {
        assert_same(&Program::fixture(name), &[]);
    }
    assert_same(&Program::fixture("known"), &["--no-free-stacks"]);
    assert_same(&Program::fixture("recursion"), &["--max-depth", "16"]);
}

#[test]
fn j01_real_programs_have_the_same_profile() {
    let sql = "create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 2000) \
               insert into t select x, x * x from c; create index i on t(b); select count(*) from t where b > 100;";
    assert_same(&Program::new("sqlite3").args([":memory:", sql]), &[]);
    assert_same(&Program::new("jq").args(["-n", "[range(3000)] | map(tostring) | add | length"]), &[]);
    assert_same(
        &Program::new("perl").args(["-e", "my %h; $h{$_} = \"x$_\" for 1 .. 2000; print 1"]).env("PERL_HASH_SEED", "0"),
        &[],
    );
    assert_same(&Program::new("ls").args(["-l", "/usr/bin"]), &[]);
}

/// J06: each call of many threads is there.
#[test]
fn j06_threads_are_counted_exactly() {
    let program = Program::fixture("threads").args(["8"]);
    let traced = by("jump", &program, &[]);
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
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
        procfs::wait_until("the tracer has detached", || {
            procfs::threads(pid).into_iter().all(|thread| procfs::tracer_of(thread) == 0)
        });
        procfs::assert_text_intact(pid);
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
    let program = Program::fixture("known").env("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
    let traced = program.start_traced(&["--engine", "jump"]).wait().success();
    let told = traced.stderr.replace(['\n', ' '], "");
    assert!(told.contains("thetrapengine,notthejumpengine,hasseenknown"), "{}", traced.stderr);
}
