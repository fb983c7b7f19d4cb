//! Attaching to all that runs in the memory of a process, without stopping anything.

use super::{Result, TracerError, procfs, ptrace};
use std::collections::{BTreeMap, BTreeSet};

/// A task that was seized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seized {
    /// Its id.
    pub tid: i32,
    /// It came under trace by itself, as a seized task created it, which is still to be reported.
    pub unannounced: bool,
}

/// Seizes every thread of `pid`.
///
/// Threads created meanwhile by a seized thread are seized with it; those created by a thread that was not seized yet
/// are found by listing again, until two passes in a row find nothing new (gdb's rule). No breakpoint may be written
/// before this has returned: a thread that is not traced would die of it.
///
/// # Errors
/// What the kernel said of the leader, or, if it has ended, of all threads; or /proc is not ours.
pub fn seize_all(pid: i32) -> Result<Vec<Seized>> {
    procfs::require_own()?;
    // TracerPid names the tracing *thread*.
    let own_tid = super::control::thread_id();
    let mut seized = BTreeMap::new();
    let mut quiet_passes = 0;
    let mut refused = None;
    while quiet_passes < 2 {
        let mut found_new = false;
        for tid in procfs::tasks(pid)? {
            if seized.contains_key(&tid) {
                continue;
            }
            match ptrace::seize(tid, false) {
                Ok(()) => {
                    seized.insert(tid, false);
                    found_new = true;
                }
                // A zombie leader can't be seized; a thread that ends meanwhile neither.
                Err(TracerError::Died { .. }) => {}
                Err(error) => {
                    if procfs::tracer_of(tid) == Some(own_tid) {
                        seized.insert(tid, true);
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
        None => Ok(seized.into_iter().map(|(tid, unannounced)| Seized { tid, unannounced }).collect()),
    }
}

/// Seizes the tasks of other processes that share the memory of process `pid`, of which `live` is a task that has not ended:
/// children between vfork(2) or posix_spawn(3) and their exec, above all. An untraced one would die of a
/// breakpoint that its parent is given. To be called when all of `pid` is seized: what it starts from then on is seized with
/// it.
///
/// # Errors
/// If there is one that can't be traced, as another tracer has it.
pub fn seize_sharers(pid: i32, live: i32) -> Result<Vec<Seized>> {
    let mut seized = Vec::new();
    let mut processes = BTreeSet::new();
    let mut quiet_passes = 0;
    while quiet_passes < 2 {
        let mut found_new = false;
        for process in procfs::processes()? {
            if process == pid || processes.contains(&process) || !shares_memory(process, live) {
                continue;
            }
            match seize_all(process) {
                Ok(tasks) => seized.extend(tasks),
                // It ended, or executed another program, which is what it is there for.
                Err(_) if !shares_memory(process, live) => continue,
                Err(error) => return Err(error),
            }
            processes.insert(process);
            found_new = true;
        }
        quiet_passes = if found_new { 0 } else { quiet_passes + 1 };
    }
    Ok(seized)
}

/// Whether a process shares the memory of another one's task.
fn shares_memory(process: i32, live: i32) -> bool {
    match procfs::same_memory(process, live) {
        Some(same) => same,
        // kcmp(2) is refused in some containers. To trace a copy of the process until it executes something does no harm.
        None => procfs::forked_from(process)
            .is_some_and(|parent| parent == procfs::thread_group(live).ok().flatten().unwrap_or(live)),
    }
}
