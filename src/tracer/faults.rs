//! SIGBUS of our own: a file that is shortened while heaptrace has it mapped must not end heaptrace, with which the
//! profile, and in the worst case the target, would go. What is cut off reads as zeros from then on, like the holes of
//! a file.

use super::{Result, TracerError};
use crate::arch::PAGE_SIZE;
use crate::base::mapped;
use std::sync::OnceLock;

/// What was to be done at SIGBUS before: that of std, which tells of overflowed stacks; or nothing, as inherited.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
///
/// # Errors
/// If the kernel refuses.
pub fn survive_shortened_files() -> Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: zeroed is a valid sigaction; queries the disposition only.
    let previous = unsafe {
        let mut previous: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) != 0 {
            return Err(TracerError::own("look at the handler for SIGBUS"));
        }
        previous
    };
    // Known before the handler can run, which needs it.
    if PREVIOUS.set(previous).is_err() {
        return Ok(());
    }
    // SAFETY: the handler is async-signal-safe (see there). SA_ONSTACK: where std has given the thread a stack for
    // signals.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = cut_off as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if result != 0 {
        return Err(TracerError::own("install the handler for SIGBUS"));
    }
    mapped::note_handler();
    Ok(())
}

/// Gives a child between fork and exec what was inherited, if that was to ignore SIGBUS: exec turns our handler into
/// the default. Async-signal-safe.
pub(super) fn restore_inherited() {
    if PREVIOUS.get().is_some_and(|previous| previous.sa_sigaction == libc::SIG_IGN) {
        // SAFETY: SIG_IGN is valid for this signal.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_IGN) };
    }
}

/// Puts zeros in place of what is no longer in a mapped file. Any other SIGBUS is left to what was there before.
extern "C" fn cut_off(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, which has an address for SIGBUS. mmap is a bare system call, though
    // POSIX does not list it as async-signal-safe; it replaces pages of a read-only mapping of ours, of which nobody
    // can have read anything, by others. errno is kept for whom the signal came in between.
    unsafe {
        let errno = *libc::__errno_location();
        if let Some(rest) = mapped::cut_at((*info).si_addr().addr()) {
            let page = rest.start & !(PAGE_SIZE as usize - 1);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let at = std::ptr::without_provenance_mut(page);
            if libc::mmap(at, rest.end - page, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED {
                *libc::__errno_location() = errno;
                return;
            }
        }
        // The instruction runs again, and meets the handler of before, or the default.
        match PREVIOUS.get() {
            Some(previous) => libc::sigaction(libc::SIGBUS, previous, std::ptr::null_mut()),
            None => 0,
        };
        *libc::__errno_location() = errno;
    }
}
