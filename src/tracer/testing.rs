//! For tests: a process to read from, and to write to.

use super::procfs;
use std::process::{Child, Command, Stdio};

/// `cat`, which waits for input until it is dropped. Not our own process: what is loaded is probed, too.
#[derive(Debug)]
pub struct Sleeper(Child);

impl Sleeper {
    /// Starts it, and waits until it has become itself and sleeps.
    pub fn start() -> Self {
        let sleeper = Self(Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
        let pid = sleeper.pid();
        // in read(2) of its standard input (proc(5)): while it is loaded it may sleep in other calls, and needs what
        // lies on its stack
        let asleep =
            || String::from_utf8_lossy(&procfs::read(pid, "syscall").unwrap_or_default()).starts_with("0 0x0 ");
        let has_libc = || String::from_utf8_lossy(&procfs::read(pid, "maps").unwrap()).contains("libc.so");
        while !has_libc() || !asleep() {
            std::thread::yield_now();
        }
        sleeper
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
