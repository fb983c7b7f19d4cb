//! Attaching to all threads of a running process, without stopping any.

use super::{Result, TracerError, procfs, ptrace};
use std::collections::BTreeSet;

/// Seizes every thread of `pid` and returns their ids.
///
/// Threads created meanwhile by a seized thread are seized with it; those created by a thread that was not seized yet
/// are found by listing again, until two passes in a row find nothing new (gdb's rule). No breakpoint may be written
/// before this has returned: a thread that is not traced would die of it.
///
/// # Errors
/// What the kernel said of the leader, or, if it has ended, of all threads; or /proc is not ours.
pub fn seize_all(pid: i32) -> Result<Vec<i32>> {
    procfs::require_own()?;
    // TracerPid names the tracing *thread*.
    let own_tid = super::control::thread_id();
    let mut seized = BTreeSet::new();
    let mut quiet_passes = 0;
    let mut refused = None;
    while quiet_passes < 2 {
        let mut found_new = false;
        for tid in procfs::tasks(pid)? {
            if seized.contains(&tid) {
                continue;
            }
            match ptrace::seize(tid, false) {
                Ok(()) => {
                    seized.insert(tid);
                    found_new = true;
                }
                // A zombie leader can't be seized; a thread that ends meanwhile neither.
                Err(TracerError::Died { .. }) => {}
                Err(error) => {
                    if procfs::tracer_of(tid) == Some(own_tid) {
                        seized.insert(tid);
                        found_new = true;
                    } else if matches!(procfs::state(pid, tid), Some(b'Z' | b'X') | None) {
                        // Ending: nothing will run in it any more.
                    } else if seized.is_empty() {
                        return Err(error);
                    } else {
                        refused = Some(error);
                    }
                }
            }
        }
        quiet_passes = if found_new { 0 } else { quiet_passes + 1 };
    }
    match refused {
        Some(error) => Err(error),
        None if seized.is_empty() => Err(TracerError::Died { tid: pid }),
        None => Ok(seized.into_iter().collect()),
    }
}
