//! A deadline for calls that the kernel gives none: wait4 for one task, and PTRACE_SEIZE, which waits for the end of an
//! exec.

use super::{Result, TracerError, control};
use std::time::Duration;

/// Interrupts the system calls of the thread that has made it, again and again as long as it lives: a signal that comes
/// just before a call interrupts nothing, and the next one does.
#[derive(Debug)]
pub struct Alarm {
    timer: libc::timer_t,
}

impl Alarm {
    /// One that comes every `period`, less than a second.
    ///
    /// # Errors
    /// If the kernel has no timer left for us: each takes one of the signals that may be queued (RLIMIT_SIGPENDING).
    pub fn every(period: Duration) -> Result<Self> {
        control::install_wake_up()?;
        let mut timer = std::ptr::null_mut();
        // SAFETY: zeros are a valid sigevent; `timer` is a valid place for the new timer's id.
        let made = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = control::WAKE_UP;
            event.sigev_notify_thread_id = control::thread_id();
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        if made != 0 {
            return Err(TracerError::own("make a timer"));
        }
        let alarm = Self { timer };
        alarm.set(period)?;
        Ok(alarm)
    }

    /// Lets it come every `period`, less than a second, from now on.
    ///
    /// # Errors
    /// The kernel's, which has none for a timer that was made.
    pub fn set(&self, period: Duration) -> Result<()> {
        let period = libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(period.subsec_nanos()) };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer is ours, the times are valid, and the old ones are not asked for.
        if unsafe { libc::timer_settime(self.timer, 0, &raw const times, std::ptr::null_mut()) } != 0 {
            return Err(TracerError::own("set a timer"));
        }
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and is not used again.
        unsafe { libc::timer_delete(self.timer) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_call_that_would_block_for_ever_is_interrupted() {
        let _alarm = Alarm::every(Duration::from_millis(5)).unwrap();
        let began = Instant::now();
        // SAFETY: pause has no preconditions.
        assert_eq!(unsafe { libc::pause() }, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR));
        assert!(began.elapsed() >= Duration::from_millis(1));
    }
}
