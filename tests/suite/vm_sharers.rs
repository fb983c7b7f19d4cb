//! Children that share their parent's memory for long (clone with CLONE_VM), whose actions for signals are their own.

use super::attach::{SHARES, attach_with};
use super::guardian::{assert_untouched, kill_heaptrace};
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use nix::sys::signal::Signal;

/// Starts the pair. Returns the ids of parent and child.
fn start(mode: &str) -> (Running, i32, i32) {
    let mut running = Program::fixture("vm_sharer").args([mode]).start();
    let (parent, child) = ids(&mut running);
    (running, parent, child)
}

fn ids(running: &mut Running) -> (i32, i32) {
    let told = running.value("ready");
    let (parent, child) = told.split_once(' ').unwrap();
    (parent.parse().unwrap(), child.parse().unwrap())
}

/// Both have gone on since, and end as they should.
fn assert_well(mut running: Running) {
    running.send("still alive?");
    assert_eq!(running.line(), "alive");
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    running.wait().success();
}

fn catches_trap(pid: i32) -> bool {
    procfs::catches(pid, Signal::SIGTRAP)
}

/// T42: heaptrace is killed: the child goes on as the parent does.
fn killed(mode: &str) {
    let (mut running, parent, child) = start(mode);
    for _ in 0..crate::suite::rounds(4) {
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&["-v"], parent);
        procfs::wait_until_answered(parent);
        running.send("still alive?");
        assert_eq!(running.line(), "alive");
        procfs::wait_until("the handlers are there", || catches_trap(parent) && catches_trap(child));
        kill_heaptrace(attached.pid(), parent);
        procfs::wait_until_let_go(child);
        assert_untouched(&mut running, parent);
        procfs::assert_left_as_it_was(child);
        assert!(!catches_trap(child), "our handler for SIGTRAP is still in the child");
        attached.assert_killed();
    }
    assert_well(running);
}

/// T42: the child works, too.
#[test]
fn t42_killed_beside_a_busy_sharer() {
    killed("busy");
}

/// T42: the child sleeps in a system call, which is made once more.
#[test]
fn t42_killed_beside_a_sleeping_sharer() {
    killed("asleep");
}

/// A detach leaves none of both with our handler, be there one to take it out that runs or one that has to be woken.
#[test]
fn a_detach_takes_the_handler_out_of_sharers() {
    for mode in ["busy", "asleep"] {
        let (mut running, parent, child) = start(mode);
        for _ in 0..crate::suite::rounds(3) {
            attach_with(&Program::new("/bin/true").stays_on_trap(SHARES), &mut running, parent);
            for pid in [parent, child] {
                procfs::wait_until_let_go(pid);
                procfs::assert_left_as_it_was(pid);
                assert!(!catches_trap(pid), "{mode}: our handler for SIGTRAP is still in {pid}");
            }
        }
        assert_well(running);
    }
}

/// The child finds its own action for SIGTRAP, and dies of one that it is sent.
#[test]
fn t42_the_handler_is_not_seen_in_sharers() {
    for mode in ["asks", "raises"] {
        let program = Program::fixture("vm_sharer").args([mode]);
        let mut running = program.start_traced(&[]);
        let (_, child) = ids(&mut running);
        if mode == "raises" {
            procfs::wait_until("the handler is there", || catches_trap(child));
        }
        for _ in 0..5 {
            running.send("still alive?");
            assert_eq!(running.line(), "alive");
        }
        running.feed(b"");
        assert_eq!(running.line(), "ok");
        running.wait().success();
    }
}
