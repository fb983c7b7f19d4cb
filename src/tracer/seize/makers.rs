//! Threads that were in the midst of making another task when they were seized.
//!
//! The kernel decides at the beginning of clone(2) whether the new task is traced (`kernel_clone`, `copy_process` of
//! kernel/fork.c): one that was begun a moment before its maker was seized is not, and nobody reports it. A maker that
//! has no processor for some milliseconds, or waits for memory, has a task to come that no list of /proc shows yet; a
//! breakpoint would end the program there. So each thread must be seen outside of such a call before breakpoints are
//! written. Those that sleep elsewhere are not touched. heaptrace stops those that run, which go on at once: a clone
//! that has not come far begins anew then, and its task is traced.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::tracer::memory::TargetMemory;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, procfs, ptrace};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long makers are waited for: the kernel needs some 50 µs for a thread, but a busy machine may not let it run.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Pause between two looks at those that are waited for.
const PAUSE: Duration = Duration::from_micros(100);

/// Of a call that waits until its new task has executed a program (CLONE_VFORK of clone(2)). The task is there while it
/// waits.
const VFORK: u64 = 0x4000;

/// How a thread may be in the midst of making a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Maker {
    /// It runs, or is ready to, which may be in such a call.
    Runs,
    /// It sleeps in such a call.
    Sleeps,
}

/// What a thread's line in /proc/PID/task/TID/syscall says of it (proc(5)); `flags_at` reads a word of its memory.
fn maker(line: &str, flags_at: impl FnOnce(u64) -> Option<u64>) -> Option<Maker> {
    let mut words = line.split_whitespace();
    let number = words.next()?;
    if number == "running" {
        return Some(Maker::Runs);
    }
    let first = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let flags = match number.parse::<i64>().ok()? {
        libc::SYS_fork => Some(0),
        libc::SYS_clone => first,
        // the first member of its arguments
        libc::SYS_clone3 => first.and_then(flags_at),
        _ => return None,
    };
    flags.is_none_or(|flags| flags & VFORK == 0).then_some(Maker::Sleeps)
}

fn maker_of(pid: i32, tid: i32) -> Option<Maker> {
    // Of a thread that lives, and whose line can't be read, nothing is known: a task that it makes would not be traced.
    let Some(line) = procfs::system_call_line(pid, tid) else {
        return goes_on(pid, tid).then_some(Maker::Runs);
    };
    let maker = maker(&line, |at| TargetMemory::open(pid, tid).ok()?.read_u64(Addr(at)))?;
    // one that is stopped at the end of the call has made its task; and that stops with its maker's registers
    (maker == Maker::Runs || goes_on(pid, tid)).then_some(maker)
}

/// Whether a thread has neither stopped nor ended. A look that fails once does not say that it is gone.
fn goes_on(pid: i32, tid: i32) -> bool {
    let state = || procfs::state(pid, tid);
    matches!(state().or_else(state), Some(b'S' | b'D' | b'R' | b'?'))
}

/// Waits until each of `tids`, seized threads of process `pid`, was seen outside of a call that makes a task. Returns
/// those that it has interrupted and that have stopped for something else: they stop once more.
///
/// # Errors
/// Those of ptrace(2).
pub(super) fn await_all(pid: i32, tids: impl Iterator<Item = i32>) -> Result<Vec<i32>> {
    let mut awaited: BTreeMap<i32, Maker> = tids.filter_map(|tid| Some((tid, maker_of(pid, tid)?))).collect();
    let mut owing = Vec::new();
    for (tid, _) in awaited.iter().filter(|(_, maker)| **maker == Maker::Runs) {
        match ptrace::interrupt(*tid) {
            Err(error) if !error.is_out_of_reach() => return Err(error),
            _ => {}
        }
    }
    let began = Instant::now();
    while !awaited.is_empty() && began.elapsed() < TIMEOUT {
        for (tid, maker) in awaited.clone() {
            if maker == Maker::Sleeps {
                match maker_of(pid, tid) {
                    Some(Maker::Sleeps) => {}
                    // it may be in that call still, or in the next one
                    Some(Maker::Runs) => {
                        ptrace::interrupt(tid)
                            .or_else(|error| if error.is_out_of_reach() { Ok(()) } else { Err(error) })?;
                        awaited.insert(tid, Maker::Runs);
                    }
                    None => drop(awaited.remove(&tid)),
                }
                continue;
            }
            let (seen, stops_again) = match look_at_interrupted(pid, tid) {
                // it has ended since, and makes nothing any more
                Err(error) if error.is_out_of_reach() => (true, false),
                looked => looked?,
            };
            if seen {
                awaited.remove(&tid);
            }
            if stops_again {
                owing.push(tid);
            }
        }
        if !awaited.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
    if !awaited.is_empty() {
        tracing::warn!("threads {:?} were never seen outside clone(2)", awaited.keys());
        owing.extend(awaited.iter().filter(|(_, maker)| **maker == Maker::Runs).map(|(tid, _)| *tid));
    }
    Ok(owing)
}

/// Whether an interrupted thread was seen outside, and whether its stop for that is still to come. A stop for
/// anything else is left to be reported.
fn look_at_interrupted(pid: i32, tid: i32) -> Result<(bool, bool)> {
    match ptrace::peek(tid)? {
        Some(WaitStatus::EventStop) => ptrace::let_go_on(tid).map(|()| (true, false)),
        Some(WaitStatus::Exited(_) | WaitStatus::Signaled(_)) => Ok((true, false)),
        Some(_) => Ok((true, true)),
        // gone, or asleep where nothing is made, as in an exec that waits for the other threads
        None => match maker_of(pid, tid) {
            Some(_) => Ok((false, false)),
            None => Ok((true, procfs::state(pid, tid).is_some())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_or_sleeps_in_a_clone_may_be_making_a_task() {
        let of = |line: &str| maker(line, |at| (at == 0x7f00).then_some(VFORK | 0x100));
        assert_eq!(of("running\n"), Some(Maker::Runs));
        // a thread, a process
        assert_eq!(of("56 0x51f00 0x7f7f1657cff0 0x0 0x0 0x0 0x0 0x7f7f16d7ceb8 0x7f7f16e89b42"), Some(Maker::Sleeps));
        assert_eq!(of("57 0x0 0x0 0x0 0x0 0x0 0x0 0x7f7f16d7ceb8 0x7f7f16e89b42"), Some(Maker::Sleeps));
        // posix_spawn(3), by either call; vfork(2)
        assert_eq!(of("56 0x4111 0x0 0x0 0x0 0x0 0x0 0x7f7f16d7ceb8 0x7f7f16e89b42"), None);
        assert_eq!(of("435 0x7f00 0x58 0x0 0x0 0x0 0x0 0x7f7f16d7ceb8 0x7f7f16e89b42"), None);
        assert_eq!(of("58 0x0 0x0 0x0 0x0 0x0 0x0 0x7f7f16d7ceb8 0x7f7f16e89b42"), None);
        // what can't be read may be anything
        assert_eq!(of("435 0x8f00 0x58 0x0 0x0 0x0 0x0 0x7f7f16d7ceb8 0x7f7f16e89b42"), Some(Maker::Sleeps));
        for elsewhere in ["232 0x4 0x0 0x0 0x0 0x0 0x0 0x7ff 0x7ff", "-1 0x7fff 0x7f7f", ""] {
            assert_eq!(of(elsewhere), None, "{elsewhere}");
        }
    }
}
