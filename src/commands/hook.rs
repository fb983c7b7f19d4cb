//! `--on-profile`: a command of the user's for each finished file, to upload it or attach it to a crash report.

use crate::export::output::Outcome;
use crate::profile::Profile;
use crate::tracer::control;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable that holds the file's path.
const FILE_VARIABLE: &str = "HEAPTRACE_FILE";

/// The variables that hold when what is in the file began and ended, in seconds since 1970.
const FROM_VARIABLE: &str = "HEAPTRACE_FROM";
const UNTIL_VARIABLE: &str = "HEAPTRACE_UNTIL";

/// The time that a profile is of, in whole seconds since 1970; the end is rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    from: u64,
    until: u64,
}

impl Span {
    /// That of `profile`.
    pub fn of(profile: &Profile) -> Self {
        let start = profile.meta.process.started_at;
        let end = start.checked_add(Duration::from_nanos(profile.meta.duration_ns)).unwrap_or(start);
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { from: seconds(start).as_secs(), until: seconds(end).as_millis().div_ceil(1000) as u64 }
    }
}

/// Why the command did not do its work for a file.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The shell could not be started.
    #[error("--on-profile could not be run for {}: {source}", file.display())]
    Start {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The command failed.
    #[error("--on-profile failed for {}: {status}", file.display())]
    Failed {
        /// The file.
        file: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
}

/// Runs `command` by /bin/sh once for each regular file that was written, one after the other. To be called on a
/// thread that nobody waits for who is traced. Returns what failed.
pub fn run(command: &OsStr, files: &[Outcome], span: Span) -> Vec<HookError> {
    let written = files.iter().filter(|file| file.result.is_ok() && file.path.is_file());
    written.filter_map(|file| run_for(command, &file.path, span).err()).collect()
}

fn run_for(command: &OsStr, file: &Path, span: Span) -> Result<(), HookError> {
    let error = |source| HookError::Start { file: file.to_owned(), source };
    // The command may change its folder before it looks at the file.
    let path = std::path::absolute(file).map_err(error)?;
    // Standard input and output are the program's, which may still run.
    let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(error)?;
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env(FILE_VARIABLE, path).stdin(Stdio::null()).stdout(stderr);
    shell.env(FROM_VARIABLE, span.from.to_string()).env(UNTIL_VARIABLE, span.until.to_string());
    // Ctrl-C ends the command and Ctrl-Z stops it: what we have blocked for ourselves must not be blocked in it.
    control::give_inherited_signals(&mut shell);
    let status = shell.status().map_err(error)?;
    if status.success() { Ok(()) } else { Err(HookError::Failed { file: file.to_owned(), status }) }
}
