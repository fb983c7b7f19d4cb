//! What it would mean to a thread to be interrupted.

use super::{procfs, rawregs, timedwait};

/// How well a thread can be interrupted without being disturbed; less is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Disturbance {
    /// It runs.
    None,
    /// It sleeps in a system call that goes on with what is left, or that has no time limit and is made anew, or is
    /// made anew with what is left ([`timedwait`]).
    Unnoticed,
    /// Its process is stopped by a signal, and it is left so.
    Stopped,
    /// It sleeps in a system call that has to be made anew, with its whole time limit.
    Longer,
}

/// What it would mean to a thread of process `pid` to be interrupted now. None if it must not be: it is gone, can't be
/// stopped, or has a signal to deal with first.
pub fn disturbance(pid: i32, tid: i32) -> Option<Disturbance> {
    match procfs::state(pid, tid)? {
        b'R' => Some(Disturbance::None),
        b'T' => Some(Disturbance::Stopped),
        b'S' if procfs::has_deliverable_signal(tid) => None,
        b'S' => {
            let text = procfs::read(tid, "syscall").unwrap_or_default();
            Some(asleep(&text, || timedwait::can_tell(tid)))
        }
        _ => None,
    }
}

/// The same of a thread that was asleep a moment ago, by the text of its file `syscall` (proc(5)).
fn asleep(text: &[u8], knows_what_is_left: impl FnOnce() -> bool) -> Disturbance {
    match call_in(text) {
        Some((number, arguments)) if !is_longer(number, arguments, knows_what_is_left) => Disturbance::Unnoticed,
        None if text.starts_with(b"running") => Disturbance::None,
        _ => Disturbance::Longer,
    }
}

/// Number and arguments of the system call in the text of a file `syscall` (proc(5)). None if the thread is in none.
fn call_in(text: &[u8]) -> Option<(i64, [u64; 6])> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some((number, arguments))
}

/// Whether a call that is made anew may take longer than it would have: it ends early, and it has a time limit, or its
/// socket may have one (SO_RCVTIMEO).
/// `knows_what_is_left`: whether the kernel says how long the thread has slept.
fn is_longer(
    number: i64,
    [_, _, timeout_of_signals, timeout, timeout_of_messages, _]: [u64; 6],
    knows_what_is_left: impl FnOnce() -> bool,
) -> bool {
    if !rawregs::ENDING_EARLY.contains(&number) {
        return false;
    }
    match number {
        // milliseconds, of which fewer than none are without end
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (timeout as i32) >= 0 && !knows_what_is_left(),
        // else a time is pointed to
        libc::SYS_rt_sigtimedwait => timeout_of_signals != 0,
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => timeout != 0,
        libc::SYS_io_getevents | rawregs::SYS_IO_PGETEVENTS => timeout_of_messages != 0,
        libc::SYS_semop | libc::SYS_msgrcv | libc::SYS_msgsnd => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longer(text: &str) -> Option<bool> {
        call_in(text.as_bytes()).map(|(number, arguments)| is_longer(number, arguments, || false))
    }

    #[test]
    fn epoll_wait_takes_no_longer_where_it_is_known_what_is_left() {
        for (number, expected) in [
            (libc::SYS_epoll_wait, false),
            (libc::SYS_epoll_pwait, false),
            (libc::SYS_epoll_pwait2, true),
            (libc::SYS_semtimedop, true),
        ] {
            assert_eq!(is_longer(number, [5, 0x7_ffd0, 1, 100, 0, 0], || true), expected, "{number}");
        }
    }

    #[test]
    fn a_thread_that_has_woken_up_runs() {
        assert_eq!(asleep(b"running\n", || false), Disturbance::None);
        assert_eq!(asleep(b"35 0x7ffd0 0x0 0x0 0x0 0x0 0x0 0x7ffc0 0x7f1230\n", || false), Disturbance::Unnoticed);
        assert_eq!(asleep(b"45 0x5 0x7ffd0 0x400 0x0 0x0 0x0 0x7ffc0 0x7f1230\n", || false), Disturbance::Longer);
        assert_eq!(asleep(b"", || false), Disturbance::Longer);
    }

    #[test]
    fn a_call_without_a_time_limit_takes_no_longer_when_it_is_made_anew() {
        for (text, expected) in [
            // nanosleep goes on with what is left
            ("35 0x7ffd0 0x0 0x0 0x0 0x0 0x0 0x7ffc0 0x7f1230", Some(false)),
            ("230 0x1 0x0 0x7ffd0 0x0 0x0 0x0 0x7ffc0 0x7f1230", Some(false)),
            ("232 0x5 0x7ffd0 0x400 0xffffffff 0x0 0x0 0x7ffc0 0x7f1230", Some(false)),
            ("232 0x5 0x7ffd0 0x400 0x64 0x0 0x0 0x7ffc0 0x7f1230", Some(true)),
            ("281 0x5 0x7ffd0 0x400 0xffffffffffffffff 0x0 0x0 0x7ffc0 0x7f1230", Some(false)),
            ("441 0x5 0x7ffd0 0x400 0x0 0x0 0x0 0x7ffc0 0x7f1230", Some(false)),
            ("441 0x5 0x7ffd0 0x400 0x7ffe0 0x0 0x0 0x7ffc0 0x7f1230", Some(true)),
            ("128 0x7ffd0 0x0 0x0 0x8 0x0 0x0 0x7ffc0 0x7f1230", Some(false)),
            ("128 0x7ffd0 0x0 0x7ffe0 0x8 0x0 0x0 0x7ffc0 0x7f1230", Some(true)),
            // its socket may have a limit
            ("45 0x5 0x7ffd0 0x400 0x0 0x0 0x0 0x7ffc0 0x7f1230", Some(true)),
            ("running", None),
            ("-1 0x7ffc0 0x7f1230", None),
            ("", None),
        ] {
            assert_eq!(longer(text), expected, "{text}");
        }
    }
}
