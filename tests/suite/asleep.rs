//! heaptrace is killed just after it has attached to a process all of whose threads sleep: they wake up into
//! breakpoints that nobody watches.

use crate::support::procfs;
use crate::support::program::Program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn killed_while_all_sleep(way: &str) {
    let mut target = Program::fixture("asleep").args([way]).start();
    let pid: i32 = target.value("ready").parse().unwrap();
    procfs::wait_until("it sleeps", || procfs::state(pid) == Some('S'));
    let attached = Program::new("/bin/true").start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    assert!(procfs::catches(pid, Signal::SIGTRAP), "{way}: its first hit would kill it without heaptrace");
    let guardian = procfs::children(attached.pid())[0];
    let guardian = Pid::from_raw(guardian);
    // It comes late, as on a busy machine.
    kill(guardian, Signal::SIGSTOP).unwrap();
    procfs::wait_until("the guardian stands still", || procfs::state(guardian.as_raw()) == Some('T'));
    attached.signal(Signal::SIGKILL);
    attached.assert_killed();
    procfs::wait_until("nobody traces it", || procfs::tracer_of(pid) == 0);
    target.send("allocate");
    procfs::wait_until("it tries again and again", || procfs::state(pid) == Some('R'));
    kill(guardian, Signal::SIGCONT).unwrap();
    assert_eq!(target.line(), "allocated");
    procfs::wait_until("the handler is out", || !procfs::catches(pid, Signal::SIGTRAP));
    procfs::wait_until_let_go(pid);
    procfs::assert_left_as_it_was(pid);
    target.feed(b"");
    target.wait().success();
}

#[test]
fn t42_a_program_that_sleeps_in_poll_lives_on_without_heaptrace() {
    killed_while_all_sleep("poll");
}

#[test]
fn t42_a_program_that_sleeps_in_epoll_wait_without_a_limit_lives_on_without_heaptrace() {
    killed_while_all_sleep("epoll");
}

#[test]
fn t42_a_program_that_sleeps_in_epoll_wait_with_a_limit_lives_on_without_heaptrace() {
    killed_while_all_sleep("limited");
}
