//! Whether each thread of a process has gone through the kernel since code was written, and so fetches its instructions
//! anew: what `membarrier(2)` (MEMBARRIER_CMD_GLOBAL) makes sure of for all processors takes 8 to 16 ms each time, as
//! it waits for the kernel's ticks, and threads that have run into an int3 stand meanwhile. Most threads sleep or have
//! stopped.

use crate::tracer::procfs;
use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long threads are waited for that run. Those of a server sleep soon, or run into an int3.
const PATIENCE: Duration = Duration::from_millis(2);

/// Of more threads it is not asked: each time takes some 10 µs.
const MOST: usize = 256;

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
    let Ok(tids) = procfs::tasks(pid) else { return false };
    // a list ends at a thread that ends while it is made
    if tids.len() > MOST || procfs::thread_count(pid) != Some(tids.len()) {
        return false;
    }
    let mut running: BTreeMap<i32, Running> = BTreeMap::new();
    for tid in tids {
        if is_in_kernel(procfs::state(pid, tid)) {
            continue;
        }
        let Some(turns) = turns(pid, tid) else { return false };
        running.insert(tid, Running { turns });
    }
    let deadline = Instant::now() + PATIENCE;
    while !running.is_empty() && Instant::now() < deadline {
        std::thread::yield_now();
        running
            .retain(|&tid, before| !is_in_kernel(procfs::state(pid, tid)) && !has_come_back(*before, turns(pid, tid)));
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
