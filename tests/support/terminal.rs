//! A program on a terminal of its own: a pty, and a terminal emulator that is not ours to see what came there.

use super::running::LIMIT;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How often is looked at the screen.
const LOOK: u16 = 50;

/// See the module.
pub struct Terminal {
    child: Child,
    master: std::fs::File,
    /// Keeps the terminal open when the program has ended.
    slave: OwnedFd,
    screen: vt100::Parser,
    /// All that came.
    bytes: Vec<u8>,
    modes: Vec<u8>,
}

impl Terminal {
    /// Starts a program on a terminal of so many columns and rows.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: both numbers are places for descriptors, the size is one; the rest may be null.
        let opened = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, std::ptr::null_mut(), std::ptr::null(), &raw const size)
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call has opened both, and nobody else has them.
        let (master, slave) = unsafe { (std::fs::File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        for descriptor in [master.as_raw_fd(), slave.as_raw_fd()] {
            // SAFETY: only numbers are passed.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        let copy = || slave.try_clone().unwrap();
        command.env("TERM", "xterm-256color").stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: setsid and ioctl are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let modes = modes(&slave);
        let child = command.spawn().unwrap();
        // the command holds copies of the terminal
        drop(command);
        Self {
            child,
            master,
            slave,
            screen: vt100::Parser::new(lines(rows), lines(columns), 0),
            bytes: Vec::new(),
            modes,
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// The terminal goes away: the program, which leads its session, gets SIGHUP and can read nothing any more.
    pub fn hang_up(&mut self) {
        self.master = std::fs::File::open("/dev/null").unwrap();
    }

    /// Makes it larger or smaller.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and `size` is what the request reads.
        assert_eq!(unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
        self.screen.screen_mut().set_size(lines(rows), lines(columns));
    }

    /// What stands there now.
    pub fn contents(&self) -> String {
        self.screen.screen().contents()
    }

    /// Waits until what stands there is as it should be.
    pub fn wait_until(&mut self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            self.take();
            let contents = self.contents();
            if so(&contents) {
                return contents;
            }
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || since.elapsed() > LIMIT {
                self.take();
                assert!(so(&self.contents()), "{what} never came; ended: {ended:?}\n{}", self.contents());
            }
        }
    }

    /// Takes what has come, and waits a moment for it.
    fn take(&mut self) {
        let mut poll = libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd.
        while unsafe { libc::poll(&raw mut poll, 1, i32::from(LOOK)) } == 1 {
            let mut some = [0; 1 << 14];
            let Ok(count @ 1..) = self.master.read(&mut some) else { return };
            self.screen.process(&some[..count]);
            self.bytes.extend_from_slice(&some[..count]);
        }
    }

    /// Waits for the program's end. The terminal must be as it was: its modes, its cursor, its first screen.
    pub fn wait(mut self) -> Left {
        let since = Instant::now();
        let status = loop {
            self.take();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(since.elapsed() < LIMIT, "it does not end\n{}", self.contents());
            std::thread::sleep(Duration::from_millis(5));
        };
        self.take();
        assert_eq!(modes(&self.slave), self.modes, "the terminal's modes");
        let screen = self.screen.screen();
        assert!(
            !screen.alternate_screen() && !screen.hide_cursor(),
            "the terminal has its screen and its cursor again"
        );
        Left { status, text: self.contents(), bytes: std::mem::take(&mut self.bytes) }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program leaves on its terminal.
pub struct Left {
    pub status: ExitStatus,
    /// What stands there.
    pub text: String,
    /// All that ever came.
    pub bytes: Vec<u8>,
}

/// A terminal has at least one line and one column.
fn lines(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

/// The modes of a terminal, byte for byte.
fn modes(terminal: &OwnedFd) -> Vec<u8> {
    // SAFETY: all-zero is a valid termios, which the call fills.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, `modes` is a valid place.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut modes) }, 0);
    let flags = [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag];
    flags.iter().flat_map(|flag| flag.to_le_bytes()).chain(modes.c_cc).collect()
}
