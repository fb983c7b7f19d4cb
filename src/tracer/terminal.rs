//! What heaptrace knows of the terminal that it writes to.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The width in columns. None if this is no terminal, or one that does not tell (ioctl_tty(2), TIOCGWINSZ).
pub fn width(stream: &impl AsFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and `size` is what the request fills.
    let result = unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Waits until something can be read from a terminal, `patience` at most. False if the terminal has gone: reading it says then that
/// there is nothing, at once and for ever.
pub fn wait_for_input(stream: &impl AsFd, patience: Duration) -> bool {
    let patience = libc::c_int::try_from(patience.as_millis()).unwrap_or(libc::c_int::MAX);
    let mut event = libc::pollfd { fd: stream.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `event` is one valid pollfd.
    let found = unsafe { libc::poll(&raw mut event, 1, patience) };
    found <= 0 || event.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
}

/// Whether another program uses this terminal: heaptrace is in the background, where writing could even stop it (TOSTOP of
/// termios(3)), or a program has taken the whole screen, as pagers and editors do, which read keys without waiting for a line.
pub fn is_taken(stream: &impl AsFd) -> bool {
    let descriptor = stream.as_fd().as_raw_fd();
    // SAFETY: only descriptors and ids are passed.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(descriptor), libc::getpgrp()) };
    if foreground < 0 {
        // no terminal, or not the one that controls us: nobody's jobs
        return false;
    }
    // SAFETY: all-zero is a valid termios, which the call fills.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `modes` is a valid place.
    let known = unsafe { libc::tcgetattr(descriptor, &raw mut modes) } == 0;
    foreground != own || known && modes.c_lflag & libc::ICANON == 0
}
