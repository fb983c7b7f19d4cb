//! What might stop heaptrace must not do so while a process stands still for it: that would stand until heaptrace goes
//! on.
//!
//! The terminal's stops (Ctrl-Z) wait. SIGSTOP can't: so a process of our own, a guardian, looks whether heaptrace has
//! been stopped, and has it go on. In both cases heaptrace stops when the
//! process has been let go.

use super::control::{self, SignalMask, TERMINAL_STOPS};
use super::{Result, TracerError};
use std::io::{PipeWriter, pipe};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How often the guardian looks, in ms.
const LOOK_AROUND: i32 = 50;

/// After so many looks in a row at which heaptrace was stopped it goes on.
const STOPPED: u32 = 6;

/// How long the guardian's end is waited for, and the pause between two looks: it ends at once.
const TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(200);

/// The guardian's exit status if it has made heaptrace go on.
const WOKE: i32 = 1;

/// Holds the terminal's stops back from the calling thread, and from those that it makes, as long as it is there.
#[derive(Debug)]
pub(super) struct WithoutTerminalStops {
    before: SignalMask,
}

impl WithoutTerminalStops {
    /// From now on.
    ///
    /// # Errors
    /// The kernel's, which has none for valid signals.
    pub(super) fn begin() -> Result<Self> {
        Ok(Self { before: control::block(&TERMINAL_STOPS)? })
    }

    /// With the mask from before on this thread.
    pub(super) fn suspended(&self) -> Result<Self> {
        Ok(Self { before: control::set_mask(&self.before)? })
    }
}

impl Drop for WithoutTerminalStops {
    fn drop(&mut self) {
        // what came meanwhile is delivered now
        let _ = control::set_mask(&self.before);
    }
}

/// A process that has heaptrace go on should it be stopped, as long as this value is there.
#[derive(Debug)]
pub(super) struct Resumer {
    child: i32,
    /// The guardian ends when this is closed, and so when we do.
    open: Option<PipeWriter>,
}

impl Resumer {
    /// Starts it.
    ///
    /// # Errors
    /// The kernel's: no process or descriptor is left.
    pub(super) fn begin() -> Result<Self> {
        let own = |source| TracerError::Own { operation: "make a pipe", source };
        let (end, open) = pipe().map_err(own)?;
        let stat = std::ffi::CString::new(format!("/proc/{}/stat", control::process_id())).unwrap_or_default();
        let (heaptrace, end, closed) = (control::process_id(), end.as_raw_fd(), open.as_raw_fd());
        // SAFETY: the child makes system calls only, which allocate nothing and take no lock, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(TracerError::own("start a guardian")),
            0 => look_after(heaptrace, &stat, end, closed),
            child => Ok(Self { child, open: Some(open) }),
        }
    }
}

impl Resumer {
    /// Takes the guardian's exit status. None of one that does not end, as it was stopped or frozen: it was killed
    /// then.
    fn end(&self) -> Option<i32> {
        let began = Instant::now();
        let mut status = 0;
        loop {
            // SAFETY: `status` is a valid place; the child is ours.
            match unsafe { libc::waitpid(self.child, &raw mut status, libc::WNOHANG) } {
                0 if began.elapsed() < TIMEOUT => std::thread::sleep(PAUSE),
                0 => {
                    if let Err(error) = control::send(self.child, libc::SIGKILL) {
                        tracing::debug!("{error}");
                    }
                    return None;
                }
                child if child == self.child => return Some(status),
                _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => return None,
            }
        }
    }
}

impl Drop for Resumer {
    fn drop(&mut self) {
        drop(self.open.take());
        let Some(status) = self.end() else { return };
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == WOKE {
            // now it may
            if let Err(error) = control::send(control::process_id(), libc::SIGSTOP) {
                tracing::debug!("{error}");
            }
        }
    }
}

/// The guardian's work.
fn look_after(heaptrace: i32, stat: &std::ffi::CStr, end: i32, closed: i32) -> ! {
    // SAFETY: system calls with valid arguments, of a process that is a copy of ours with one thread; no signal handler
    // of ours runs in it, as all signals are blocked.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        // no terminal reaches it, and nobody who stops or ends heaptrace by its name or group
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"guardian".as_ptr());
        libc::close(closed);
        let (mut stopped, mut woke) = (0, 0);
        loop {
            let mut watched = libc::pollfd { fd: end, events: libc::POLLIN, revents: 0 };
            if libc::poll(&raw mut watched, 1, LOOK_AROUND) != 0 {
                libc::_exit(woke);
            }
            stopped = if is_stopped(stat) { stopped + 1 } else { 0 };
            if stopped >= STOPPED {
                libc::kill(heaptrace, libc::SIGCONT);
                (stopped, woke) = (0, WOKE);
            }
        }
    }
}

/// Whether a process is stopped, by its /proc/PID/stat. Allocates nothing.
fn is_stopped(stat: &std::ffi::CStr) -> bool {
    let mut text = [0u8; 128];
    // SAFETY: the path is terminated, and `text` has room for what is read.
    let read = unsafe {
        let fd = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let read = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        read
    };
    let read = text.get(..usize::try_from(read).unwrap_or(0)).unwrap_or(&[]);
    // the state stands behind the name, which is at most 15 bytes and may hold anything
    let name_end = read.iter().rposition(|&byte| byte == b')');
    name_end.and_then(|end| read.get(end + 2)) == Some(&b'T')
}
