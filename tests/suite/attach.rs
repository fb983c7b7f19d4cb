//! Attaching to running processes.

use crate::support::procfs;
use crate::support::program::{Program, Traced};
use crate::support::running::Running;
use nix::sys::signal::Signal;
use std::time::Instant;

/// A process is not put on the jump engine while it has a child in its memory.
pub const SHARES: &str = "it shares its memory with a child";

/// Starts the self-checking victim and returns its process id.
pub fn start_victim(program: &Program) -> (Running, i32) {
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    (victim, pid)
}

/// Asks whether all threads still work, ends the victim and hears that nothing was wrong.
pub fn assert_victim_well(mut victim: Running, pid: i32) {
    victim.assert_alive();
    procfs::assert_left_as_it_was(pid);
    victim.send("still alive?");
    assert_eq!(victim.line(), "alive");
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

fn attach_for(pid: i32, options: &[&str]) -> Traced {
    collect_for(&Program::new("/bin/true"), pid, options)
}

fn collect_for(tracer: &Program, pid: i32, options: &[&str]) -> Traced {
    tracer.collect(tracer.start_attached(options, pid).wait().success())
}

/// Attaches to a victim, from when all probes stand until each of its threads may have worked, and lets it go.
pub fn attach_while_it_works(victim: &mut Running, pid: i32) -> Traced {
    attach_with(&Program::new("/bin/true"), victim, pid)
}

/// The same with a tracer of the test's own.
pub fn attach_with(tracer: &Program, victim: &mut Running, pid: i32) -> Traced {
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    // a hundred pairs later
    victim.send("still alive?");
    assert_eq!(victim.line(), "alive");
    procfs::order(pid, "detach");
    tracer.collect(attached.wait().success())
}

/// A process under load is profiled for a while and left as it was.
#[test]
fn attach_for_a_duration() {
    let program = Program::fixture("victim").args(["4"]);
    let (victim, pid) = start_victim(&program);
    let began = Instant::now();
    let traced = attach_for(pid, &["--duration", "500ms"]);
    let seen_from_here = began.elapsed().as_nanos();
    let report = &traced.report;
    assert!(report.site_sum(&["victim_allocate", "work"], "/allocated/objects") > 0);
    assert_eq!(report.text("/mode"), "attach");
    assert_eq!(report.number("/pid"), u64::try_from(pid).unwrap());
    assert!(report.0["exit"].is_null(), "it lives on");
    assert_eq!(report.anomaly("lost"), 0);
    assert_eq!(report.anomaly("double_frees"), 0);
    // blocks from before are no anomaly
    assert_eq!(report.anomaly("unknown_frees"), 0);
    assert!(report.total("preexisting_frees") > 0);
    let duration = u128::from(report.number("/duration_ns"));
    assert!((500_000_000..seen_from_here).contains(&duration), "{duration} of {seen_from_here}");
    assert_victim_well(victim, pid);
}

/// T03: two hundred threads, none missed: one missed thread is one death by SIGTRAP.
#[test]
fn t03_two_hundred_threads() {
    let program = Program::fixture("victim").args(["200"]);
    let (victim, pid) = start_victim(&program);
    for _ in 0..2 {
        let traced = attach_for(pid, &["--duration", "300ms"]);
        assert_eq!(traced.report.anomaly("lost"), 0);
    }
    assert_victim_well(victim, pid);
}

/// T04: attach, and detach, again and again, while threads are created and joined.
#[test]
fn t04_attach_during_thread_churn() {
    let program = Program::fixture("victim").args(["2", "churn"]);
    let (victim, pid) = start_victim(&program);
    for _ in 0..crate::suite::rounds(4) {
        attach_for(pid, &["--duration", "50ms"]);
    }
    assert_victim_well(victim, pid);
}

/// T04: attach, and detach, again and again, while children are started in every way. One that shares the memory, as
/// vfork and posix_spawn have it, runs into its parent's breakpoints; one that is forked has a copy of them.
#[test]
fn t04_attach_while_children_are_started() {
    let program = Program::fixture("victim").args(["2", "spawn"]);
    let (mut victim, pid) = start_victim(&program);
    for round in 0..crate::suite::rounds(6) {
        let tracer = Program::new("/bin/true").stays_on_trap(SHARES);
        collect_for(&tracer, pid, &["--duration", &format!("{}ms", 5 + round * 17 % 60)]);
        victim.assert_alive();
    }
    assert_victim_well(victim, pid);
}

/// `--by-name` finds the process by its executable's name, longer than the kernel's fifteen characters.
#[test]
fn attach_by_name() {
    let program = Program::fixture("victim");
    let name = format!("a-rather-long-victim-name-{}", std::process::id());
    let copy = program.folder().join(&name);
    crate::support::copy_file(program.exe(), &copy).unwrap();
    let (victim, pid) = start_victim(&Program::new(&copy).args(["1"]));
    let tracer = Program::new("/bin/true");
    let report = tracer.report_path();
    let ended = tracer
        .start_heaptrace(["attach", "--by-name", &name, "--duration", "200ms", "-o", report.to_str().unwrap()])
        .wait()
        .success();
    let report = crate::support::report::Report::read(&report, &ended);
    assert_eq!(report.number("/pid"), u64::try_from(pid).unwrap());
    assert_eq!(report.text("/program"), name);
    assert_victim_well(victim, pid);
}

/// `--by-name` of what was started by a link (redis-server is one to redis-check-rdb on Debian), and of what the
/// dynamic linker was told to load: the name that each was started by, in the report too.
#[test]
fn attach_by_the_name_that_a_program_was_started_by() {
    let exe = Program::fixture("victim");
    let id = std::process::id();
    let (linked, loaded) = (format!("linked-victim-{id}"), format!("loaded-victim-{id}"));
    let link = exe.folder().join(&linked);
    std::os::unix::fs::symlink(exe.exe(), &link).unwrap();
    let copy = exe.folder().join(&loaded);
    crate::support::copy_file(exe.exe(), &copy).unwrap();
    let by_link = Program::new(&link).args(["1"]);
    let by_linker = Program::new("/lib64/ld-linux-x86-64.so.2").args([copy.as_os_str(), "1".as_ref()]);
    for (name, started) in [(linked, by_link), (loaded, by_linker)] {
        let (victim, pid) = start_victim(&started);
        let tracer = Program::new("/bin/true");
        let report = tracer.report_path();
        let options = ["attach", "--by-name", &name, "--duration", "200ms", "-o", report.to_str().unwrap()];
        let ended = tracer.start_heaptrace(options).wait().success();
        let report = crate::support::report::Report::read(&report, &ended);
        assert_eq!((report.number("/pid"), report.text("/program")), (u64::try_from(pid).unwrap(), name.as_str()));
        assert_victim_well(victim, pid);
    }
}

/// `--by-name` with two matches names both and touches neither.
#[test]
fn attach_by_ambiguous_name() {
    let program = Program::fixture("victim");
    let name = format!("one-of-two-victims-{}", std::process::id());
    let copy = program.folder().join(&name);
    crate::support::copy_file(program.exe(), &copy).unwrap();
    let program = Program::new(&copy).args(["1"]);
    let ((first, first_pid), (second, second_pid)) = (start_victim(&program), start_victim(&program));
    let tracer = Program::new("/bin/true");
    let ended = tracer.start_heaptrace(["attach", "--by-name", &name]).wait();
    assert_eq!(ended.code(), 125);
    for pid in [first_pid, second_pid] {
        assert!(ended.stderr.contains(&pid.to_string()), "{}", ended.stderr);
    }
    assert_victim_well(first, first_pid);
    assert_victim_well(second, second_pid);
}

/// A process that ends while it is traced: the profile is written, heaptrace ends with 0 whatever the status.
#[test]
fn attached_process_ends() {
    let program = Program::fixture("forever").args(["2"]);
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    target.signal(Signal::SIGKILL);
    let traced = tracer.collect(attached.wait());
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
    assert_eq!(traced.report.0["exit"]["signal"], 9);
    target.wait();
}

/// `run --duration` detaches, writes, waits as a plain parent and passes on the program's status.
#[test]
fn run_with_duration_detaches() {
    let program = Program::new("/bin/sh").args(["-c", "read line; exit 17"]);
    let mut running = program.start_traced(&["--duration", "200ms"]);
    procfs::wait_until("the report is written", || program.report_path().exists());
    assert!(running.is_alive());
    running.send("now end");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 17);
    assert_eq!(traced.report.0["complete"], false);
}
