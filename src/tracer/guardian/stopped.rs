//! A heaptrace that is stopped while the program waits for it: the program stands until it goes on.
//!
//! Ctrl-Z stops `run` and its program together, as a job, and is left so; nothing else that can be blocked stops
//! heaptrace. But SIGSTOP does. So the guardian looks now and then whether heaptrace is stopped, and a thread of the
//! program stands: then it has heaptrace go on.

use crate::tracer::{control, procfs};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often to look, in ms.
const LOOK_AROUND: u8 = 200;

/// After so many looks in a row at which the program waited for a heaptrace that was stopped, that goes on.
const STOPPED: u32 = 2;

/// Looks after the heaptrace at the other end of a socket.
#[derive(Debug)]
pub(super) struct StopWatcher {
    heaptrace: Option<i32>,
    looked: Instant,
    stopped: u32,
}

impl StopWatcher {
    /// For the process that has made the pair of sockets.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Self {
        let heaptrace = getsockopt(&socket, PeerCredentials).ok().map(|peer| peer.pid()).filter(|&pid| pid > 0);
        Self { heaptrace, looked: Instant::now(), stopped: 0 }
    }

    /// Waits until something can be read from the socket, or its end. `traced` gives the processes that heaptrace
    /// traces.
    pub(super) fn wait<P: Iterator<Item = i32>>(&mut self, socket: BorrowedFd<'_>, traced: impl Fn() -> P) {
        loop {
            let found = poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], PollTimeout::from(LOOK_AROUND));
            if self.looked.elapsed() >= Duration::from_millis(LOOK_AROUND.into()) {
                self.look(traced());
            }
            match found {
                Ok(0) | Err(nix::Error::EINTR) => {}
                // the reader meets an error, too
                _ => return,
            }
        }
    }

    fn look(&mut self, mut traced: impl Iterator<Item = i32>) {
        self.looked = Instant::now();
        let Some(heaptrace) = self.heaptrace else { return };
        let holds = is_stopped_by_force(heaptrace) && traced.any(waits);
        self.stopped = if holds { self.stopped + 1 } else { 0 };
        if self.stopped >= STOPPED {
            self.stopped = 0;
            if let Err(error) = control::send(heaptrace, libc::SIGCONT) {
                tracing::debug!("{error}");
            }
        }
    }
}

/// Whether a heaptrace is stopped, and not with its job: for that it does not block the signal for once.
fn is_stopped_by_force(heaptrace: i32) -> bool {
    procfs::state(heaptrace, heaptrace) == Some(b'T')
        && procfs::status_signals(heaptrace, "SigBlk")
            .is_some_and(|blocked| blocked & 1 << (control::JOB_STOP - 1) != 0)
}

/// Whether a thread of a process stands for its tracer.
fn waits(pid: i32) -> bool {
    procfs::tasks(pid).unwrap_or_default().into_iter().any(|tid| procfs::state(pid, tid) == Some(b't'))
}
