//! Processes that heaptrace has not started and that become its children: orphans, where it is the first process of a
//! container, or a subreaper.
//!
//! Nobody else can take their ends, and they would stay zombies. The kernel makes them children of the first thread,
//! which also has children of its own: those are left
//! to whoever waits for them, and those that are traced to the tracer thread.

use super::{control, procfs};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// What heaptrace has started itself, with the moment: another process may get the number of one whose end was taken.
static OWN: Mutex<BTreeMap<i32, Option<u64>>> = Mutex::new(BTreeMap::new());

/// At most so many ends are taken at once.
const MAX_ENDS: usize = 1000;

/// Child `pid` was started by heaptrace. To be called by the thread that has started it, before it waits for it.
pub fn note_own(pid: i32) {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.retain(|&pid, began| procfs::start_time(pid) == *began);
    own.insert(pid, procfs::start_time(pid));
}

fn is_own(pid: i32) -> bool {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.get(&pid).is_some_and(|began| *began == procfs::start_time(pid))
}

/// Takes the ends of children that heaptrace has not started. To be called now and then, by its first thread. The
/// orphans are left alone while they live.
pub fn reap() {
    for _ in 0..MAX_ENDS {
        let Some(pid) = ended() else { return };
        if !take_end(pid) {
            // it is somebody else's, and hides those behind it
            for pid in ended_of_this_thread().into_iter().take(MAX_ENDS) {
                take_end(pid);
            }
            return;
        }
    }
}

/// Takes the end of a child, unless it is somebody else's to take. Whether it was taken.
fn take_end(pid: i32) -> bool {
    if is_own(pid) || procfs::tracer_of(pid) != Some(0) {
        return false;
    }
    let flags = libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: no status and no rusage is asked for.
    let is_taken = unsafe { libc::wait4(pid, std::ptr::null_mut(), flags, std::ptr::null_mut()) } == pid;
    if is_taken {
        tracing::debug!("orphan {pid} has ended");
    }
    is_taken
}

/// The children of the calling thread that have ended, as far as the kernel lists them (CONFIG_PROC_CHILDREN).
fn ended_of_this_thread() -> Vec<i32> {
    let tid = control::thread_id();
    let listed = procfs::read(control::process_id(), &format!("task/{tid}/children")).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let children = listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    children.filter(|&pid| procfs::state(pid, pid) == Some(b'Z')).collect()
}

/// A child of the calling thread that has ended; its end is not taken.
fn ended() -> Option<i32> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL | libc::__WNOTHREAD;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is a valid place for the kernel to write to.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) };
    // SAFETY: zeroed above; waitid fills the fields of SIGCHLD, or leaves them zero.
    let pid = unsafe { info.assume_init().si_pid() };
    (result == 0 && pid > 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn ended_child() -> Child {
        let child = Command::new("true").spawn().unwrap();
        while procfs::state(child.id() as i32, child.id() as i32) != Some(b'Z') {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn an_end_of_our_own_hides_no_orphan() {
        let mut own = ended_child();
        note_own(own.id() as i32);
        let orphan = ended_child().id() as i32;
        reap();
        assert_eq!(procfs::state(orphan, orphan), None, "its end was taken");
        assert!(own.wait().unwrap().success(), "our own end is left to us");
    }

    #[test]
    fn what_has_gone_is_not_remembered() {
        let mut first = ended_child();
        note_own(first.id() as i32);
        first.wait().unwrap();
        let mut second = ended_child();
        note_own(second.id() as i32);
        let is_known = OWN.lock().unwrap().contains_key(&(first.id() as i32));
        assert!(!is_known && is_own(second.id() as i32));
        second.wait().unwrap();
    }
}
