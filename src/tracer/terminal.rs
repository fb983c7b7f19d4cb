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

/// What can be read from a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Nothing yet.
    Nothing,
    /// Something: reading gives it at once.
    Ready,
    /// The terminal has gone: reading says that there is nothing, at once and for ever.
    Gone,
}

/// Waits until something can be read from a terminal, `patience` at most.
pub fn wait_for_input(stream: &impl AsFd, patience: Duration) -> Input {
    let patience = libc::c_int::try_from(patience.as_millis()).unwrap_or(libc::c_int::MAX);
    let mut event = libc::pollfd { fd: stream.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `event` is one valid pollfd.
    let found = unsafe { libc::poll(&raw mut event, 1, patience) };
    match event.revents {
        _ if found <= 0 => Input::Nothing,
        events if events & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 => Input::Gone,
        _ => Input::Ready,
    }
}

/// Whether another job has the terminal that controls us: reading it, or changing its modes, would stop us (SIGTTIN,
/// SIGTTOU), or take it away from that one.
pub fn is_anothers(stream: &impl AsFd) -> bool {
    // SAFETY: only descriptors and ids are passed.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(stream.as_fd().as_raw_fd()), libc::getpgrp()) };
    // no terminal, or not the one that controls us, is nobody's
    foreground >= 0 && foreground != own
}

/// Whether another program uses this terminal: heaptrace is in the background, where writing could even stop it (TOSTOP
/// of termios(3)), or a program has taken the whole screen, as pagers and editors do, which read keys without waiting
/// for a line.
pub fn is_taken(stream: &impl AsFd) -> bool {
    let descriptor = stream.as_fd().as_raw_fd();
    // SAFETY: only a descriptor is passed.
    if unsafe { libc::tcgetpgrp(descriptor) } < 0 {
        // no terminal, or not the one that controls us: nobody's jobs
        return false;
    }
    // SAFETY: all-zero is a valid termios, which the call fills.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `modes` is a valid place.
    let known = unsafe { libc::tcgetattr(descriptor, &raw mut modes) } == 0;
    is_anothers(stream) || known && modes.c_lflag & libc::ICANON == 0
}
