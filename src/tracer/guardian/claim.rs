//! A *claim*: as long as it is held, what stands in a process's code is somebody's who will still write there.
//!
//! When heaptrace is killed its guardian goes on to write for up to some seconds: to code, to the slack of modules, to
//! the action for SIGTRAP. A heaptrace that attaches meanwhile took what it found for left by nobody, and both wrote to
//! the same places. So an attach waits until nobody has a claim any more, and so does whoever asks what is left there.
//!
//! A claim is a shared lock (flock(2)) on the process's folder in /proc, and belongs to a descriptor. The tracer takes
//! it before it writes anything, and the guardian gets the same descriptor with its first record: the kernel drops the
//! lock when both have closed it, so there is no moment in between.

use crate::tracer::procfs;
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// So long an attach waits for a guardian. It needs some 50 ms as a rule, and up to ten seconds where threads don't
/// come out of our code; anyone may hold such a lock for ever.
const TIMEOUT: Duration = Duration::from_secs(12);

/// So long the process of the claim may be traced by somebody who is no guardian until that is told: one that was
/// killed a moment ago still shows as its tracer.
const DOUBT: Duration = Duration::from_millis(200);

/// So long a claim is tried to be had. Who looks for others holds the lock for some microseconds.
const PATIENCE_TO_CLAIM: Duration = Duration::from_millis(20);

const PAUSE: Duration = Duration::from_millis(1);

/// See the module's head. Where it can't be had, there is none.
#[derive(Debug)]
pub(super) struct Claim(Option<File>);

impl Claim {
    /// On process `pid`.
    pub(super) fn on(pid: i32) -> Self {
        let Some(file) = folder(pid) else { return Self(None) };
        let began = Instant::now();
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Self(Some(file)),
                Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE_TO_CLAIM => std::thread::sleep(PAUSE),
                Err(error) => {
                    tracing::debug!("no claim on process {pid}: {error}");
                    return Self(None);
                }
            }
        }
    }

    /// The descriptor that it belongs to.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

fn folder(pid: i32) -> Option<File> {
    File::open(format!("/proc/{pid}")).ok()
}

/// Waits until no guardian will write to process `pid` any more, or only one whose heaptrace lives: that one traces the
/// process, and whoever seizes it hears so. Twelve seconds at most: false if somebody has a claim even then.
pub fn await_others(pid: i32) -> bool {
    let Some(file) = folder(pid) else { return true };
    let began = Instant::now();
    let mut traced_since = None;
    while began.elapsed() < TIMEOUT {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            // it is given back when the file is closed
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
        match procfs::tracer_of_process(pid) {
            None => return true,
            Some(tracer) if tracer == 0 || is_guardian(tracer) => traced_since = None,
            Some(_) => {
                if traced_since.get_or_insert_with(Instant::now).elapsed() > DOUBT {
                    return true;
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    tracing::debug!("somebody has had a lock on /proc/{pid} for {TIMEOUT:?}");
    false
}

fn is_guardian(tid: i32) -> bool {
    let process = procfs::thread_group(tid).ok().flatten().unwrap_or(tid);
    super::is_guardian(&procfs::command_line(process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracer::ptrace;
    use crate::tracer::testing::Sleeper;
    use std::process::Command;
    use std::thread::JoinHandle;

    /// Waits for others' claims on another thread, which begins to wait before this returns. It returns when it has
    /// ended, and what it was told.
    fn waiting(pid: i32) -> JoinHandle<(Instant, bool)> {
        let open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let folder = format!("/proc/{pid}");
            links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to.as_os_str() == &*folder)).count()
        };
        let before = open();
        let waits = std::thread::spawn(move || {
            let is_free = await_others(pid);
            (Instant::now(), is_free)
        });
        while open() == before && !waits.is_finished() {
            std::thread::yield_now();
        }
        waits
    }

    /// Both ends of the socket may have it; it ends with the last.
    #[test]
    fn a_claim_lasts_as_long_as_anybody_has_it() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let claim = Claim::on(pid);
        let other = claim.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(Claim::on(pid).descriptor().is_some(), "claims exclude each other");
        drop(claim);
        let waits = waiting(pid);
        let dropped = Instant::now();
        drop(other);
        let (ended, is_free) = waits.join().unwrap();
        assert!(ended >= dropped, "it did not wait");
        assert!(is_free && dropped.elapsed() < TIMEOUT / 2, "it waited on");
    }

    /// Ended before, and while it is waited for.
    #[test]
    fn who_has_ended_is_not_waited_for() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let claim = Claim::on(pid);
        let began = Instant::now();
        let waits = waiting(pid);
        drop(sleeper);
        assert!(waits.join().unwrap().1 && await_others(pid));
        assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
        drop(claim);
        assert!(await_others(pid));
    }

    /// A heaptrace that traces has a claim as long as it does so.
    #[test]
    fn who_is_traced_by_no_guardian_is_not_waited_for() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let claim = Claim::on(pid);
        ptrace::seize(pid, false).unwrap();
        let began = Instant::now();
        assert!(await_others(pid));
        let took = began.elapsed();
        assert!(took > DOUBT && took < TIMEOUT / 2, "{took:?}");
        drop(claim);
    }

    /// Anybody may have such a lock for ever. Here it is another program: a child that another test forks meanwhile
    /// would have a lock of ours, too, for as long as it lives.
    #[test]
    fn a_claim_that_stays_is_told() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut other = Command::new("flock");
        other.args(["--shared", "--no-fork", &format!("/proc/{pid}"), "sleep", "600"]);
        let mut other = other.spawn().unwrap();
        let file = folder(pid).unwrap();
        while file.try_lock().is_ok() {
            file.unlock().unwrap();
            std::thread::yield_now();
        }
        let began = Instant::now();
        assert!(!await_others(pid));
        assert!(began.elapsed() >= TIMEOUT);
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(await_others(pid));
    }
}
