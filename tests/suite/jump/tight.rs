//! J39: processes in which there is little room. They are on the jump engine, or with the trap engine, which is told;
//! none ends for want of what heaptrace has taken.

use super::by;
use crate::suite::counts::{TOTALS, assert_sites};
use crate::suite::death::ControlGroup;
use crate::support::procfs;
use crate::support::program::{Program, Traced};

fn assert_exact(traced: &Traced, program: &Program) {
    let ledger = program.ledger();
    for name in TOTALS {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
    }
    assert_sites(&traced.report, &ledger);
    traced.report.assert_no_anomaly();
}

/// The memory would not fit into its address space.
#[test]
fn j39_an_address_space_that_is_too_small_is_told() {
    let program = Program::fixture("tight").args(["space"]).stays_on_trap("Cannot allocate memory");
    let traced = program.traced_with(&["--engine", "jump"]);
    assert_eq!((traced.ended.code(), traced.ended.text().as_str()), (0, "done\n"), "{}", traced.ended.stderr);
    assert_eq!(traced.report.text("/engine"), "trap");
    assert!(traced.report.0["warnings"].to_string().contains("Cannot allocate memory"), "{}", traced.ended.stderr);
    assert_exact(&traced, &program);
}

/// Of a control group of 10 MiB the program itself takes 4 MiB.
#[test]
fn j39_a_small_control_group_is_enough() {
    let Some(group) = ControlGroup::of_memory(10 << 20) else {
        eprintln!("no control group of memory can be made here: not tested");
        return;
    };
    let program = Program::fixture("tight").args(["group".as_ref(), group.procs().as_os_str()]);
    let traced = by("jump", &program, &[]);
    assert_eq!((traced.ended.code(), traced.ended.text().as_str()), (0, "done\n"), "{}", traced.ended.stderr);
    assert_exact(&traced, &program);
}

/// Starts the fixture, attaches to it when it is ready, and lets it go on to its end.
fn attached(program: &Program, tracer: &Program) -> Traced {
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let attached = tracer.start_attached(&["--engine", "jump"], pid);
    procfs::wait_until_answered(pid);
    target.send("go on");
    assert_eq!(target.line(), "done");
    target.wait().success();
    tracer.collect(attached.wait().success())
}

/// The process has no descriptor left.
#[test]
fn j39_a_process_without_descriptors_is_told() {
    let program = Program::fixture("tight").args(["files"]);
    let traced = attached(&program, &Program::new("/bin/true").stays_on_trap("Too many open files"));
    assert_eq!(traced.report.text("/engine"), "trap");
    assert!(traced.report.0["warnings"].to_string().contains("Too many open files"), "{}", traced.ended.stderr);
    assert_exact(&traced, &program);
}

/// A process on the engine locks all of its memory: it could not, or would be killed, if the engine's were there still.
#[test]
fn j39_a_process_on_the_engine_locks_its_memory() {
    let why = "the program has locked its memory";
    let limited = Program::fixture("tight").args(["again"]).stays_on_trap(why);
    let mut ways = vec![(limited, None)];
    match ControlGroup::of_memory(32 << 20) {
        None => eprintln!("no control group of memory can be made here: not tested"),
        Some(group) => {
            let program = Program::fixture("tight").args(["again".as_ref(), group.procs().as_os_str()]);
            ways.push((program.stays_on_trap(why), Some(group)));
        }
    }
    for (program, group) in ways {
        let mut running = program.start_traced(&["--engine", "jump"]);
        assert_eq!(running.line(), "done");
        running.value("ready");
        running.send("go on");
        let traced = program.collect(running.wait().success());
        assert_eq!(traced.ended.text().lines().last(), Some("done"), "{}", traced.ended.stderr);
        let report = &traced.report;
        assert_eq!(report.text("/engine"), "jump");
        assert!(report.number("/cost/events_without_stop") > 6000, "{}", report.0["cost"]);
        assert!(report.0["warnings"].to_string().contains(why), "{}", traced.ended.stderr);
        let blocks = |figure| report.site_sum(&["tight_allocate"], figure);
        assert_eq!((blocks("/allocated/objects"), blocks("/freed/objects")), (6 * 1024, 6 * 1024));
        report.assert_no_anomaly();
        drop(group);
    }
}

/// The process locks all memory as it comes: the kernel must not allocate for good what the engine maps, more than a
/// control group has, or more than its user may lock.
#[test]
fn j39_a_process_that_locks_its_memory_is_not_killed() {
    let limit = 32 << 20;
    let locked = Program::fixture("tight").args(["locked"]);
    let Some(group) = ControlGroup::of_memory(limit) else {
        eprintln!("no control group of memory can be made here: not tested");
        return;
    };
    let mut target = locked.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    std::fs::write(group.procs(), pid.to_string()).unwrap();
    let tracer = Program::new("/bin/true");
    let attached_to = tracer.start_attached(&["--engine", "jump"], pid);
    procfs::wait_until_answered(pid);
    target.send("go on");
    assert_eq!(target.line(), "done");
    target.wait().success();
    let traced = tracer.collect(attached_to.wait().success());
    assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
    assert_exact(&traced, &locked);

    let limited = Program::fixture("tight").args(["locked", "limit"]);
    let traced = attached(&limited, &Program::new("/bin/true").stays_on_trap("Resource temporarily unavailable"));
    assert_eq!(traced.report.text("/engine"), "trap");
    assert_eq!(traced.report.site_sum(&["tight_allocate"], "/freed/objects"), 3 * 1024);
    traced.report.assert_no_anomaly();
}
