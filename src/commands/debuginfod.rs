//! `--debuginfod`: debug files from servers, by the client of elfutils, which knows the protocol, proxies and the cache
//! that all tools share (`~/.cache/debuginfod_client`).

use crate::symbols::DebugServers;
use crate::tracer::{control, orphans};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// elfutils' client.
const CLIENT: &str = "debuginfod-find";
/// Seconds until a server must have sent something (the client's own default is 90), and for one whole file.
const LIMITS: [(&str, &str); 2] = [("DEBUGINFOD_TIMEOUT", "10"), ("DEBUGINFOD_MAXTIME", "300")];
/// The client's own limits hold before this one: it is for a client that hangs.
const LONGEST: Duration = Duration::from_secs(900);

/// The servers that $DEBUGINFOD_URLS names. After a failure other than "not there" they are not asked again.
#[derive(Debug)]
pub struct Debuginfod {
    client: PathBuf,
    quiet: bool,
    state: Mutex<State>,
    /// Whether the client runs, or was ended by Ctrl-C.
    takes_interrupt: AtomicBool,
    /// Whether nobody waits for an answer any more.
    given_up: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    NotAsked,
    Asked,
    GivenUp,
}

impl Debuginfod {
    /// Prepares to ask; `quiet` leaves out the word about it. Asks nothing yet.
    ///
    /// # Errors
    /// $DEBUGINFOD_URLS names no server, or the client is not installed.
    pub fn prepare(quiet: bool) -> anyhow::Result<Self> {
        if std::env::var_os("DEBUGINFOD_URLS").is_none_or(|urls| urls.to_string_lossy().trim().is_empty()) {
            anyhow::bail!(
                "--debuginfod needs a server: set $DEBUGINFOD_URLS, e.g. to https://debuginfod.elfutils.org/ or to \
                 your distribution's server"
            );
        }
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let client = std::env::split_paths(&folders).map(|folder| folder.join(CLIENT)).find(|path| path.is_file());
        let Some(client) = client else {
            anyhow::bail!("--debuginfod needs the program {CLIENT} (Debian package debuginfod; of elfutils elsewhere)");
        };
        Ok(Self {
            client,
            quiet,
            state: Mutex::new(State::NotAsked),
            takes_interrupt: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        })
    }

    fn ask(&self, build_id: &str) -> Result<Option<PathBuf>, String> {
        let mut command = Command::new(&self.client);
        command.args(["debuginfo", build_id]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in LIMITS {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        // Ctrl-C ends the client, and with it our waiting.
        control::give_inherited_signals(&mut command);
        self.takes_interrupt.store(true, Ordering::Release);
        let answer = self.answer_of(command);
        self.takes_interrupt.fetch_and(answer.is_err(), Ordering::AcqRel);
        answer
    }

    fn answer_of(&self, mut command: Command) -> Result<Option<PathBuf>, String> {
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", self.client.display()))?;
        orphans::note_own(child.id().cast_signed());
        let status = self.wait(&mut child)?;
        let mut said = Vec::new();
        if status.success() {
            read_all(child.stdout.take(), &mut said);
            let path = said.strip_suffix(b"\n").unwrap_or(&said).to_vec();
            return Ok(Some(PathBuf::from(OsString::from_vec(path))));
        }
        read_all(child.stderr.take(), &mut said);
        let said = String::from_utf8_lossy(&said);
        if said.contains("No such file or directory") {
            return Ok(None);
        }
        let last = said.lines().rfind(|line| !line.trim().is_empty()).map_or_else(|| status.to_string(), str::to_owned);
        Err(format!("{CLIENT}: {last}; heaptrace does not ask the servers again"))
    }

    fn wait(&self, child: &mut Child) -> Result<std::process::ExitStatus, String> {
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if began.elapsed() < LONGEST && !self.given_up.load(Ordering::Acquire) => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("{CLIENT} did not end within {} s", began.elapsed().as_secs()));
                }
                Err(error) => return Err(format!("{CLIENT}: {error}")),
            }
        }
    }
}

impl DebugServers for Debuginfod {
    fn fetch(&self, build_id: &str) -> Result<Option<PathBuf>, String> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match *state {
            State::GivenUp => return Ok(None),
            _ if self.given_up.load(Ordering::Acquire) => return Ok(None),
            State::NotAsked if !self.quiet => {
                let _ = writeln!(io::stderr(), "heaptrace: asking debuginfod for debug files (Ctrl-C ends it)");
            }
            State::NotAsked | State::Asked => {}
        }
        *state = State::Asked;
        let answer = self.ask(build_id);
        if answer.is_err() {
            *state = State::GivenUp;
        }
        answer
    }

    fn takes_interrupt(&self) -> bool {
        self.takes_interrupt.load(Ordering::Acquire)
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        // Held while the client is asked: it has ended then.
        drop(self.state.lock());
    }
}

/// The client says a line or two, which fit into the pipe.
fn read_all(from: Option<impl Read>, to: &mut Vec<u8>) {
    if let Some(mut from) = from {
        let _ = from.read_to_end(to);
    }
}
