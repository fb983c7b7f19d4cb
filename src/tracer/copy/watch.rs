//! A copy does not outlive its program: whoever reads the copy is on another thread, so a thread of its own waits for
//! the program's end.

use crate::tracer::control;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{PipeWriter, pipe};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Kills a copy when its program ends, as long as this value is there.
#[derive(Debug)]
pub(super) struct Watch {
    has_ended: Arc<AtomicBool>,
    /// What the thread waits for besides: that this is closed. None where there is no thread.
    thread: Option<(PipeWriter, JoinHandle<()>)>,
}

impl Watch {
    /// Watches program `pid`, which stands still, for process `copy`, whose end the calling thread will wait for not
    /// before it has dropped this.
    pub(super) fn begin(pid: i32, copy: i32) -> Self {
        let has_ended = Arc::<AtomicBool>::default();
        let thread = watch(pid, copy, Arc::clone(&has_ended)).map_err(|error| {
            // Linux before 5.3, or no descriptor is left: the copy is killed when it has been read
            tracing::debug!("heaptrace can't watch for the end of process {pid}: {error}");
        });
        Self { has_ended, thread: thread.ok() }
    }

    /// Of a copy that is over: there is nothing to watch for.
    pub(super) fn over() -> Self {
        Self { has_ended: Arc::default(), thread: None }
    }

    /// Whether the program has ended, and so the copy.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some((closed, thread)) = self.thread.take() else { return };
        drop(closed);
        // it has nothing to tell
        let _ = thread.join();
    }
}

fn watch(pid: i32, copy: i32, has_ended: Arc<AtomicBool>) -> std::io::Result<(PipeWriter, JoinHandle<()>)> {
    // SAFETY: pidfd_open takes two numbers; the result is a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(std::io::Error::last_os_error)?;
    // SAFETY: a new descriptor that is nobody else's.
    let program = unsafe { OwnedFd::from_raw_fd(fd) };
    let (until, closed) = pipe()?;
    let wait = move || {
        let mut watched = [program.as_fd(), until.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        while poll(&mut watched, PollTimeout::NONE) == Err(nix::Error::EINTR) {}
        let [program, until] = watched.map(|fd| fd.any().unwrap_or(false));
        if program && !until {
            has_ended.store(true, Ordering::Release);
            if let Err(error) = control::send(copy, control::KILL) {
                tracing::debug!("{error}");
            }
        }
    };
    let thread = Builder::new().name("watch".to_owned()).spawn(wait)?;
    Ok((closed, thread))
}
