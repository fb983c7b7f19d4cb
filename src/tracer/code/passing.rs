//! Whether each thread of a process has gone through the kernel since code was written, and so fetches its instructions
//! anew: what `membarrier(2)` (MEMBARRIER_CMD_GLOBAL) makes sure of for all processors takes 8 to 16 ms each time, as
//! it waits for the kernel's ticks, and threads that have run into an int3 stand meanwhile. Most threads sleep or have
//! stopped.

use crate::tracer::{TracerError, procfs};
use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long threads are waited for that run. Those of a server sleep soon, or run into an int3.
const TIMEOUT: Duration = Duration::from_millis(2);

/// Of more threads it is not asked: each time takes some 10 µs.
const MAX_THREADS: usize = 256;

/// What is known of a thread that has not been seen in the kernel yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Running {
    /// How often it had been given a processor when this was looked at first.
    turns: u64,
}

/// Whether all threads of the process `pid` have been in the kernel since this was called. False: some may have run
/// on, or it can't be known.
pub(super) fn all_pass(pid: i32) -> bool {
    // what was written before shows to a thread that is seen in the kernel now
    fence(Ordering::SeqCst);
    threads_of(&[pid]).is_some_and(|threads| all_of(&threads))
}

/// The same of the threads of all processes that share its memory, too: children that have not executed their program
/// yet. One that comes later begins in the kernel.
pub(super) fn all_pass_with_sharers(pid: i32) -> bool {
    fence(Ordering::SeqCst);
    with_sharers(pid).and_then(|pids| threads_of(&pids)).is_some_and(|threads| all_of(&threads))
}

/// A process and those that share its memory. None if the kernel does not tell.
fn with_sharers(pid: i32) -> Option<Vec<i32>> {
    procfs::can_tell_sharers(pid).then(|| std::iter::once(pid).chain(procfs::sharers(pid)).collect())
}

/// All threads of the first of these processes, and of the others as far as they are still there, each with its
/// process. None if they are too many, or not all are known.
fn threads_of(pids: &[i32]) -> Option<Vec<(i32, i32)>> {
    let mut threads = Vec::new();
    for (at, &pid) in pids.iter().enumerate() {
        let tids = match procfs::tasks(pid) {
            Ok(tids) => tids,
            Err(TracerError::Died { .. }) if at > 0 => continue,
            Err(_) => return None,
        };
        // a list ends at a thread that ends while it is made
        if procfs::thread_count(pid) != Some(tids.len()) {
            return None;
        }
        threads.extend(tids.into_iter().map(|tid| (pid, tid)));
    }
    (threads.len() <= MAX_THREADS).then_some(threads)
}

/// Whether all of these threads, each with its process, have been in the kernel since this was called.
fn all_of(threads: &[(i32, i32)]) -> bool {
    let mut running: BTreeMap<(i32, i32), Running> = BTreeMap::new();
    for &(pid, tid) in threads {
        if is_in_kernel(procfs::state(pid, tid)) {
            continue;
        }
        let Some(turns) = turns(pid, tid) else { return false };
        running.insert((pid, tid), Running { turns });
    }
    let deadline = Instant::now() + TIMEOUT;
    while !running.is_empty() && Instant::now() < deadline {
        std::thread::yield_now();
        running.retain(|&(pid, tid), before| {
            !is_in_kernel(procfs::state(pid, tid)) && !has_come_back(*before, turns(pid, tid))
        });
    }
    running.is_empty()
}

/// Whether a thread in this state executes no instruction of its program: it sleeps, has stopped or has ended. None: it
/// is gone. What can't be read ('?') tells nothing.
const fn is_in_kernel(state: Option<u8>) -> bool {
    !matches!(state, Some(b'R' | b'?'))
}

/// How often a thread has been given a processor: the third figure of `/proc/PID/schedstat`
/// (Documentation/scheduler/sched-stats.rst). It stays 0 where the kernel does not count that.
fn turns(pid: i32, tid: i32) -> Option<u64> {
    let text = procfs::read(pid, &format!("task/{tid}/schedstat")).ok()?;
    String::from_utf8_lossy(&text).split_whitespace().nth(2)?.parse().ok()
}

/// Whether a thread has been given a processor since: it came back from the kernel.
fn has_come_back(before: Running, turns: Option<u64>) -> bool {
    turns.is_some_and(|turns| turns != before.turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracer::testing::Sleeper;

    extern "C" fn pauses(_: *mut libc::c_void) -> libc::c_int {
        loop {
            // SAFETY: it touches no memory but errno.
            unsafe { libc::pause() };
        }
    }

    /// As a child of posix_spawn(3) does until it executes its program.
    #[test]
    fn threads_of_children_that_share_the_memory_count() {
        let own = std::process::id().cast_signed();
        let other = Sleeper::start();
        let mut stack = vec![0u8; 1 << 16];
        // SAFETY: the child uses only this stack, which lives until it has ended.
        let child = unsafe {
            let end = stack.as_mut_ptr().add(stack.len()).cast();
            libc::clone(pauses, end, libc::CLONE_VM | libc::SIGCHLD, std::ptr::null_mut())
        };
        assert!(child > 0);
        let pids = with_sharers(own);
        let threads = threads_of(&[other.pid(), child]);
        // SAFETY: no memory of ours is touched.
        let ended =
            unsafe { libc::kill(child, libc::SIGKILL) == 0 && libc::waitpid(child, std::ptr::null_mut(), 0) > 0 };
        assert!(ended);
        let pids = pids.unwrap();
        assert!(pids.contains(&own) && pids.contains(&child) && !pids.contains(&other.pid()), "{pids:?}");
        assert_eq!(threads, Some(vec![(other.pid(), other.pid()), (child, child)]));
        // one that has gone meanwhile has passed
        assert_eq!(threads_of(&[other.pid(), child]), Some(vec![(other.pid(), other.pid())]));
        assert_eq!(threads_of(&[child]), None);
    }

    #[test]
    fn who_runs_is_in_the_program_until_it_had_another_turn() {
        assert!(
            [Some(b'S'), Some(b'D'), Some(b't'), Some(b'T'), Some(b'Z'), None].map(is_in_kernel).iter().all(|is| *is)
        );
        assert!(![Some(b'R'), Some(b'?')].map(is_in_kernel).iter().any(|is| *is));
        let before = Running { turns: 7 };
        assert_eq!([Some(7), Some(8), None].map(|turns| has_come_back(before, turns)), [false, true, false]);
    }
}
