//! Where probes get room, and when they stand: also in programs that leave none, and that are attached to while no
//! thread comes to a probe.

use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;

/// What it allocates, and frees, at one line.
const AT_A_LINE: u64 = 100;

fn start() -> (Running, i32) {
    start_of("full_pages")
}

fn start_of(fixture: &str) -> (Running, i32) {
    let mut running = Program::fixture(fixture).start();
    let pid = running.value("ready").parse().unwrap();
    (running, pid)
}

fn step(running: &mut Running) {
    running.send("go");
    assert_eq!(running.line(), "done");
}

/// Its allocator's functions need room for their first instructions elsewhere, and it sleeps at the attach. The first
/// call is seen like all others, and by both engines.
#[test]
fn an_attach_to_a_program_without_room_sees_all() {
    for options in [&["--engine", "trap"][..], &["--engine", "jump"], &["--existing"], &["-f"]] {
        let (mut running, pid) = start();
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(options, pid);
        procfs::wait_until_answered(pid);
        for _ in 0..3 {
            step(&mut running);
        }
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        let seen = ["allocations", "frees"].map(|name| traced.report.total(name));
        assert_eq!(seen, [3 * AT_A_LINE; 2], "{options:?}: {}", traced.ended.stderr);
        procfs::assert_left_as_it_was(pid);
        step(&mut running);
        running.feed(b"");
        running.wait().success();
    }
}

/// The same where collecting begins in a program that runs.
#[test]
fn collecting_that_begins_later_sees_all() {
    let program = Program::fixture("full_pages");
    let mut running = program.start_traced(&["--start-paused"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running);
    procfs::order(pid, "resume");
    procfs::wait_until("a probe is written", || {
        procfs::text_differences(pid).iter().any(|(path, _)| path.ends_with("full_pages"))
    });
    step(&mut running);
    step(&mut running);
    running.feed(b"");
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.total("allocations"), 2 * AT_A_LINE, "{}", traced.ended.stderr);
}

/// Text that was moved to anonymous memory is still the program's, also where nothing of the file is next to it: stacks
/// lead through it, and have names.
#[test]
fn stacks_lead_through_text_that_was_moved() {
    let (mut running, pid) = start_of("moved_text");
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    step(&mut running);
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    let through = traced.report.site_sum(&["work", "outer", "main"], "/allocated/objects");
    assert_eq!(through, AT_A_LINE, "{}", traced.ended.stderr);
    running.feed(b"");
    running.wait().success();
}

/// The kernel executes the dynamic linker; the program is what that loads, with its own name and its own part in the
/// allocator.
#[test]
fn a_program_that_the_linker_was_told_to_load_has_its_own_name() {
    let exe = crate::support::fixtures::program("full_pages");
    let linker = "/lib64/ld-linux-x86-64.so.2";
    let program = Program::new(linker).args(["--inhibit-cache"]).args([&exe]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running);
    running.feed(b"");
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.text("/program"), "full_pages");
    assert_eq!(traced.report.number("/pid"), u64::try_from(pid).unwrap());
    assert_eq!(traced.report.total("allocations"), AT_A_LINE, "{}", traced.ended.stderr);
    assert!(traced.ended.stderr.contains("full_pages"), "{}", traced.ended.stderr);
}
