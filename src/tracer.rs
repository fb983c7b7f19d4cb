//! The OS edge: ptrace, the memory of the target, processes and signals.
//!
//! Everything here is thin: it does what it is told and reports what the kernel said. What a stop *means* is
//! decided in [`crate::session`]. All ptrace calls of a session come from one thread, the *tracer thread*: the kernel
//! checks the calling thread, not the process.

pub mod affinity;
pub mod alarm;
pub mod chain;
pub mod code;
pub mod control;
pub mod copy;
pub mod cputime;
pub mod disturbance;
pub mod execevents;
pub mod faults;
mod fileend;
pub mod files;
pub mod guardian;
pub mod ids;
mod injection;
pub mod jump;
pub mod kernelheld;
pub mod launch;
pub mod libunwind;
pub mod limits;
mod loadedby;
pub mod mapquery;
pub mod memory;
pub mod orphans;
pub mod pagemap;
pub mod permission;
pub mod pressure;
pub mod probe;
pub mod procfs;
pub mod ptrace;
pub mod rawregs;
pub mod remote;
pub mod root;
pub mod seize;
mod servedfiles;
pub mod sigtrap_fallback;
pub mod socket;
pub mod standstill;
pub mod status;
pub mod terminal;
#[cfg(test)]
pub mod testing;
mod timedwait;
mod undisturbed;
pub mod waiting;

use std::io;
use std::path::{Path, PathBuf};

/// An operation on the target that failed.
#[derive(Debug, thiserror::Error)]
pub enum TracerError {
    /// The task is gone (ESRCH): killed, or replaced by another thread's exec. Its end, if not reaped yet, will be
    /// reported by the next wait.
    #[error("task {tid} has died")]
    Died {
        /// The task.
        tid: i32,
    },
    /// The task runs, or is held up by the kernel, and has not stopped in time. It is resumed and will report its next
    /// stop; nothing can be asked of it until then.
    #[error("task {tid} did not stop in time")]
    Unresponsive {
        /// The task.
        tid: i32,
    },
    /// Something else was reported of the task while it was to do something for us: its end, mostly. That is to be
    /// handled now.
    #[error("task {tid} stopped for another reason: {status:?}")]
    Overtaken {
        /// The task.
        tid: i32,
        /// What was reported. If it is a stop, the task is in that stop now.
        status: status::WaitStatus,
    },
    /// The task, or another one of its process, filters its system calls (seccomp): one of ours may end it.
    #[error("task {tid} filters its system calls (seccomp): one more call may end the program")]
    Filtered {
        /// The task.
        tid: i32,
    },
    /// The program has ended while a copy of its memory was read.
    #[error("process {pid} ended while heaptrace read a copy of its memory")]
    EndedMeanwhile {
        /// The process.
        pid: i32,
    },
    /// Any other failure of a system call on a task.
    #[error("could not {operation} task {tid}: {source}")]
    Task {
        /// What was tried, as an infinitive: "seize".
        operation: &'static str,
        /// The task.
        tid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process traces heaptrace, or what traces that: see [`chain`].
    #[error("{}", chain::describe(*pid, way))]
    OwnTracer {
        /// The process.
        pid: i32,
        /// The tracer of heaptrace, that one's tracer, and so on to the process; each with its name, empty if unknown.
        way: Vec<(i32, String)>,
    },
    /// A file under /proc could not be read.
    #[error("could not read {path}: {source}")]
    ProcFile {
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// /proc shows another pid namespace than the one heaptrace lives in, or nothing: ids there mean other processes.
    #[error(
        "/proc {}: heaptrace needs that of its own pid namespace. Mount it (`mount -t proc proc /proc`; for unshare, \
         add --mount-proc)",
        if *mounted { "belongs to another pid namespace, where process ids mean other processes" } else { "is not mounted" }
    )]
    ForeignProc {
        /// Whether there is one at all.
        mounted: bool,
    },
    /// The target's memory could not be written.
    #[error("could not write to the memory of process {pid} at {addr}: {source}")]
    Write {
        /// The process.
        pid: i32,
        /// Where.
        addr: crate::base::addr::Addr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The write succeeded, but the bytes read back differ: another agent writes there, or the kernel forbids it.
    #[error("what heaptrace writes to the code of process {pid} at {addr} does not stay there")]
    NotKept {
        /// The process.
        pid: i32,
        /// Where.
        addr: crate::base::addr::Addr,
    },
    /// The program could not be executed.
    #[error("could not execute {program}: {source}")]
    Exec {
        /// The program as the user named it.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program does not exist.
    #[error("{program}: not found")]
    NotFound {
        /// The program as the user named it.
        program: String,
    },
    /// Another user has taken the name of our folder for the control socket.
    #[error("{}", planted(folder, *owner))]
    PlantedFolder {
        /// The folder.
        folder: PathBuf,
        /// Whom it belongs to.
        owner: u32,
    },
    /// The second unwinder can't be had.
    #[error("could not load libunwind: {why}. {remedy}, or omit --unwinder libunwind")]
    NoLibunwind {
        /// What is missing, or forbids it.
        why: String,
        /// What could be done about it.
        remedy: &'static str,
    },
    /// Something that concerns heaptrace itself.
    #[error("could not {operation}: {source}")]
    Own {
        /// What was tried, as an infinitive.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What to tell of a folder for control sockets that is another user's.
fn planted(folder: &Path, owner: u32) -> String {
    format!(
        "{} belongs to another user (uid {owner}), so heaptrace can't make a control socket there: remove it, or start \
         heaptrace with $TMPDIR set to a folder of your own",
        folder.display()
    )
}

impl TracerError {
    /// The error of a failed system call on `tid`, from `errno`; ESRCH becomes [`TracerError::Died`].
    ///
    /// ptrace(2): a task may be killed, or vanish in another thread's exec, at any moment, also between the wait
    /// that reported its stop and the next request. That is no failure of heaptrace: the caller forgets the task
    /// and lets the next wait tell how it ended.
    pub(crate) fn last(operation: &'static str, tid: i32) -> Self {
        let source = io::Error::last_os_error();
        if source.raw_os_error() == Some(libc::ESRCH) {
            Self::Died { tid }
        } else {
            Self::Task { operation, tid, source }
        }
    }

    /// Whether the task is merely gone, or on its own for now, or in another stop: there is nothing left to be done at
    /// the one from before. What has become of it is told by the next wait, or by [`Self::Overtaken`].
    pub const fn is_out_of_reach(&self) -> bool {
        matches!(self, Self::Died { .. } | Self::Unresponsive { .. } | Self::Overtaken { .. })
    }

    /// Whether it may have come of the end of a task that is being killed: its memory and its files under /proc go
    /// before it has ended.
    pub const fn may_come_of_dying(&self) -> bool {
        matches!(self, Self::ProcFile { .. } | Self::Write { .. } | Self::NotKept { .. } | Self::Task { .. })
    }

    /// Whether a refusal may be of the moment: see [`seize::seize_all`].
    fn may_pass(&self) -> bool {
        matches!(self, Self::Task { source, .. } if source.raw_os_error() == Some(libc::EPERM))
    }

    /// An error of heaptrace itself, from the last errno.
    pub(crate) fn own(operation: &'static str) -> Self {
        Self::Own { operation, source: io::Error::last_os_error() }
    }
}

/// How often [`insist`] makes a request.
const ATTEMPTS: u32 = 3;

/// Makes a request on which a task's life depends, and repeats it if it fails, unless the task is out of reach.
///
/// # Errors
/// That of the last attempt.
pub(crate) fn insist<T>(mut request: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match request() {
            Err(error) if !error.is_out_of_reach() => {}
            done => return done,
        }
    }
    request()
}

/// Result of an operation on the target.
pub type Result<T> = std::result::Result<T, TracerError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_repeated_unless_its_task_is_out_of_reach() {
        let refused = || TracerError::Task { operation: "resume", tid: 1, source: io::ErrorKind::Other.into() };
        let attempts = |fails: u32, error: fn() -> TracerError| {
            let mut made = 0;
            let done = insist(|| {
                made += 1;
                if made > fails { Ok(()) } else { Err(error()) }
            });
            (made, done.is_ok())
        };
        assert_eq!(attempts(0, refused), (1, true));
        assert_eq!(attempts(ATTEMPTS - 1, refused), (ATTEMPTS, true));
        assert_eq!(attempts(ATTEMPTS, refused), (ATTEMPTS, false));
        assert_eq!(attempts(1, || TracerError::Died { tid: 1 }), (1, false));
    }
}
