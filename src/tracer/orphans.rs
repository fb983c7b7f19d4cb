//! Processes that heaptrace has not started and that become its children: orphans, where it is the first process of a
//! container, or a subreaper.
//!
//! Nobody else can take their ends, and they would stay zombies. The kernel makes them children of the first thread,
//! which also has children of its own: those are left
//! to whoever waits for them, and those that are traced to the tracer thread.

use super::procfs;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// What heaptrace has started itself.
static OWN: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// At most so many ends are taken at once.
const MOST: usize = 1000;

/// Child `pid` was started by heaptrace. To be called by the thread that has started it, before it waits for it.
pub fn note_own(pid: i32) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
}

/// Takes the ends of children that heaptrace has not started. To be called now and then, by its first thread. The
/// orphans are left alone while they live.
pub fn reap() {
    for _ in 0..MOST {
        let Some(pid) = ended() else { return };
        let is_own = OWN.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid);
        // Those behind it come next time.
        if is_own || procfs::tracer_of(pid) != Some(0) {
            return;
        }
        // SAFETY: no status and no rusage is asked for.
        let reaped =
            unsafe { libc::wait4(pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL, std::ptr::null_mut()) };
        if reaped != pid {
            return;
        }
        tracing::debug!("orphan {pid} has ended");
    }
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
