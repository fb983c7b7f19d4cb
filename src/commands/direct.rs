//! Outputs that keep heaptrace waiting: named pipes without a reader, and readers that do not read. The user is told,
//! and a signal ends the wait.

use super::tell;
use crate::cli::Verbosity;
use crate::export::output::{DirectOutputs, Pause};
use crate::tracer::{control, files};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often an output is tried again.
const POLL: Duration = Duration::from_millis(20);

/// After this time of waiting heaptrace tells the user.
const SILENCE: Duration = Duration::from_secs(1);

/// How long a named pipe may be without a reader: enough to start one by hand in another terminal, but not for ever, as
/// nobody may be there.
const READER_MUST_COME: Duration = Duration::from_secs(60);

/// Why an output was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum GivenUp {
    #[error("no process opened this pipe for reading within {} s; start its reader earlier, or name a file", READER_MUST_COME.as_secs())]
    NoReader,
    #[error("cancelled by {}, as no process reads this pipe", control::signal_name(*signal))]
    InterruptedUnread { signal: i32 },
    #[error("cancelled by {}, as its reader reads nothing", control::signal_name(*signal))]
    InterruptedFull { signal: i32 },
}

/// Waits on behalf of all outputs of one command.
#[derive(Debug)]
pub struct Waiter {
    verbosity: Verbosity,
    current: Option<Wait>,
    /// The signal that ended the waiting; from then on nothing is waited for.
    interrupted: Option<i32>,
}

#[derive(Debug)]
struct Wait {
    path: PathBuf,
    pause: Pause,
    since: Instant,
    told: bool,
}

impl Waiter {
    /// One that tells the user, unless he wants to hear nothing.
    pub fn new(verbosity: Verbosity) -> Self {
        Self { verbosity, current: None, interrupted: None }
    }

    /// The signal that ended the waiting, if one did.
    pub fn interrupted(&self) -> Option<i32> {
        self.interrupted
    }
}

impl DirectOutputs for Waiter {
    fn open(&mut self, path: &Path) -> io::Result<Option<File>> {
        files::open_without_blocking(path)
    }

    fn wait(&mut self, path: &Path, pause: Pause) -> io::Result<()> {
        // Other signals interrupt the wait for these without an answer, which only makes it shorter.
        let signal = || control::next_signal(POLL).filter(|&signal| control::is_request_to_end(signal));
        self.interrupted = self.interrupted.or_else(signal);
        let current = self.current.take().filter(|wait| wait.path == path && wait.pause == pause);
        let mut wait =
            current.unwrap_or_else(|| Wait { path: path.to_owned(), pause, since: Instant::now(), told: false });
        let waited = wait.since.elapsed();
        if let Some(given_up) = verdict(pause, waited, self.interrupted) {
            return Err(io::Error::other(given_up));
        }
        if waited >= SILENCE && !wait.told && self.verbosity != Verbosity::Quiet {
            let what = match pause {
                Pause::NoReader => format!("waiting up to {} s for a reader of", READER_MUST_COME.as_secs()),
                Pause::Full => "waiting for the reader of".to_owned(),
            };
            tell(&format!("{what} {} (Ctrl-C gives up)", path.display()));
            wait.told = true;
        }
        self.current = Some(wait);
        Ok(())
    }
}

/// Whether to give an output up that has kept us waiting for so long. A reader that has come may take its time.
fn verdict(pause: Pause, waited: Duration, interrupted: Option<i32>) -> Option<GivenUp> {
    match (interrupted, pause) {
        (Some(signal), Pause::NoReader) => Some(GivenUp::InterruptedUnread { signal }),
        (Some(signal), Pause::Full) => Some(GivenUp::InterruptedFull { signal }),
        (None, Pause::NoReader) if waited >= READER_MUST_COME => Some(GivenUp::NoReader),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pipe_without_a_reader_is_given_up_unasked() {
        let long = READER_MUST_COME;
        assert_eq!(verdict(Pause::NoReader, long / 2, None), None);
        assert_eq!(verdict(Pause::NoReader, long, None), Some(GivenUp::NoReader));
        assert_eq!(verdict(Pause::Full, long * 100, None), None);
        let signal = control::INTERRUPT;
        assert_eq!(verdict(Pause::NoReader, Duration::ZERO, Some(signal)), Some(GivenUp::InterruptedUnread { signal }));
        assert_eq!(verdict(Pause::Full, Duration::ZERO, Some(signal)), Some(GivenUp::InterruptedFull { signal }));
    }

    #[test]
    fn messages_name_cause_and_cure() {
        assert_eq!(
            GivenUp::NoReader.to_string(),
            "no process opened this pipe for reading within 60 s; start its reader earlier, or name a file"
        );
        assert_eq!(
            GivenUp::InterruptedUnread { signal: control::INTERRUPT }.to_string(),
            "cancelled by Ctrl-C (SIGINT), as no process reads this pipe"
        );
    }
}
