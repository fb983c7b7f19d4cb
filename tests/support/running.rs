//! A process that a test started: talk to it over pipes, wait for it with a limit, be sure that nothing of it is left.

use super::procfs;
use super::tempdir::TempDir;
use nix::sys::signal::{SigHandler, Signal, kill, killpg, signal};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a program may take before the test gives up. Generous: a debug build may share two cores with a compiler.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A started process, leader of its own process group.
#[derive(Debug)]
pub struct Running {
    name: String,
    pid: i32,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    output: Receiver<Vec<u8>>,
    exit: Receiver<ExitStatus>,
    stderr: PathBuf,
    /// The folders in which it works must outlive it.
    _folders: [Arc<TempDir>; 2],
    asked: Asked,
    over: bool,
}

/// Which engine a heaptrace is asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The jump engine.
    pub jump: bool,
    /// By `--engine`, not by the tests' environment alone.
    pub by_option: bool,
    /// See [`super::program::Program::stays_on_trap`].
    pub stays_on_trap: Vec<&'static str>,
}

impl Asked {
    /// What a command asks for, if it starts heaptrace.
    pub fn by(command: &Command, stays_on_trap: &[&'static str]) -> Self {
        let mut words = command.get_args().skip_while(|word| *word != "--engine").skip(1);
        let by_option = words.next();
        let by_environment =
            command.get_envs().find(|(name, _)| *name == "HEAPTRACE_ENGINE").and_then(|(_, value)| value);
        let engine = by_option.or(by_environment);
        Self {
            jump: engine.is_some_and(|engine| engine == "jump"),
            by_option: by_option.is_some(),
            stays_on_trap: stays_on_trap.to_vec(),
        }
    }
}

/// How a process ended and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its wait status.
    pub status: ExitStatus,
    /// All that it wrote to standard output.
    pub stdout: Vec<u8>,
    /// All that it wrote to standard error.
    pub stderr: String,
    /// Which engine it was asked for, if it was heaptrace.
    pub asked: Asked,
}

impl Ended {
    /// The exit status; fails if a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by signal {:?}\n{}", self.status.signal(), self.stderr))
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails unless the exit status was 0.
    pub fn success(self) -> Self {
        assert!(
            self.status.success(),
            "ended with {}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            self.text(),
            self.stderr
        );
        self
    }
}

impl Running {
    /// Starts a command; its standard error goes to a file.
    pub fn start(mut command: Command, stderr: PathBuf, folders: [Arc<TempDir>; 2], asked: Asked) -> Self {
        let name = format!("{command:?}");
        command.process_group(0);
        // A shell that has started the tests in the background has them ignore Ctrl-C, and so what they start.
        // SAFETY: no handler is installed.
        unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }.unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let pid = i32::try_from(child.id()).unwrap();
        let stdin = child.stdin.take();
        let mut stdout = child.stdout.take().unwrap();

        let (line_sender, lines) = channel();
        let (output_sender, output) = channel();
        std::thread::spawn(move || {
            let bytes = read_lines(&mut stdout, &line_sender);
            let _ = output_sender.send(bytes);
        });
        let (exit_sender, exit) = channel();
        std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = exit_sender.send(status);
            }
        });
        Self { name, pid, stdin, lines, output, exit, stderr, _folders: folders, asked, over: false }
    }

    /// Its process id, which is its process group's too.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The next line it writes to standard output, without the newline.
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => self.give_up("no line of output"),
            Err(RecvTimeoutError::Disconnected) => self.give_up("standard output was closed"),
        }
    }

    /// The next line, or None if it ends or closes standard output without one.
    pub fn line_or_end(&mut self) -> Option<String> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => self.give_up("no line of output"),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Reads a line that must be `PREFIX VALUE` and returns the value.
    pub fn value(&mut self, prefix: &str) -> String {
        let line = self.line();
        match line.strip_prefix(prefix) {
            Some(value) => value.trim().to_owned(),
            None => self.give_up(&format!("expected a line {prefix:?}, got {line:?}")),
        }
    }

    /// Writes a line to its standard input.
    pub fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        if let Err(error) = writeln!(stdin, "{line}").and_then(|()| stdin.flush()) {
            self.give_up(&format!("it does not read standard input: {error}"));
        }
    }

    /// Writes all bytes and closes its standard input. A program that does not read them is no error.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(bytes);
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).unwrap();
    }

    /// What it has written to standard error by now.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap()).into_owned()
    }

    /// Whether it has not been reaped yet.
    pub fn is_alive(&self) -> bool {
        procfs::state(self.pid).is_some_and(|state| state != 'Z')
    }

    /// Closes standard input and waits until it has ended, its output is closed and its process group is empty.
    pub fn wait(self) -> Ended {
        self.wait_at_most(LIMIT)
    }

    /// The same with another limit.
    pub fn wait_at_most(mut self, limit: Duration) -> Ended {
        self.stdin = None;
        let status = match self.exit.recv_timeout(limit) {
            Ok(status) => status,
            Err(_) => self.give_up("it did not end"),
        };
        let stdout = match self.output.recv_timeout(LIMIT) {
            Ok(bytes) => bytes,
            Err(_) => self.give_up("it ended, but someone holds its standard output open"),
        };
        let leftover = procfs::group_members(self.pid);
        if !leftover.is_empty() && !leftover.iter().all(|pid| ends_soon(*pid)) {
            self.give_up(&format!("it ended, but left processes {leftover:?}"));
        }
        self.over = true;
        let stderr = self.stderr_so_far();
        Ended { status, stdout, stderr, asked: self.asked.clone() }
    }

    /// Fails unless SIGKILL has ended it.
    pub fn assert_killed(self) {
        let ended = self.wait();
        assert_eq!(ended.status.signal(), Some(Signal::SIGKILL as i32), "{}", ended.stderr);
    }

    /// Fails unless it is alive, with the way in which it ended.
    pub fn assert_alive(&mut self) {
        if !self.is_alive() {
            self.give_up("it is dead");
        }
    }

    /// As [`procfs::wait_until`]; who waits in vain hears how this process ended, or what its threads do.
    pub fn wait_until(&mut self, what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !so() {
            if Instant::now() > deadline {
                self.give_up(&format!("waited in vain until {what}"));
            }
            std::thread::yield_now();
        }
    }

    /// Kills the whole group and fails with all that is known.
    fn give_up(&mut self, why: &str) -> ! {
        let status = self.exit.recv_timeout(Duration::from_millis(100)).map(|status| status.to_string());
        let said: Vec<_> = self.lines.try_iter().collect();
        let states: Vec<_> = procfs::group_members(self.pid)
            .into_iter()
            .map(|pid| {
                let name = procfs::status_field(pid, "Name").unwrap_or_default();
                (pid, name, procfs::state(pid), procfs::tracer_of(pid))
            })
            .collect();
        let threads: Vec<_> = procfs::threads(self.pid).into_iter().map(|tid| procfs::waits(self.pid, tid)).collect();
        let _ = killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        self.over = true;
        panic!(
            "{why}\n{}\nended: {}; lines not read: {said:?}\nprocesses (pid, name, state, tracer): {states:?}\nits threads:\n{}\n--- stderr\n{}",
            self.name,
            status.unwrap_or_else(|_| "not yet".to_owned()),
            threads.join("\n"),
            String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default())
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            let _ = killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

/// Waits up to five seconds for the end of a process that is on its way out.
fn ends_soon(pid: i32) -> bool {
    // SAFETY: pidfd_open takes two integers and returns a file descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd) = i32::try_from(fd) else { return false };
    if fd < 0 {
        return true;
    }
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one valid pollfd for the duration of the call, and `fd` is ours to close.
    unsafe {
        let ready = libc::poll(&raw mut poll, 1, 5000);
        libc::close(fd);
        ready == 1
    }
}

/// Passes on each line as it comes and returns all bytes at the end.
fn read_lines(from: &mut impl Read, lines: &Sender<String>) -> Vec<u8> {
    let (mut all, mut begun) = (Vec::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
        while let Some(length) = all[begun..].iter().position(|byte| *byte == b'\n') {
            let _ = lines.send(String::from_utf8_lossy(&all[begun..begun + length]).into_owned());
            begun += length + 1;
        }
    }
    all
}
