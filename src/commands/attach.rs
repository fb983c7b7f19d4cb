//! `heaptrace attach`: profile a running process, then leave it as it was.

use super::conclude::{Destinations, conclude};
use super::progress::{self, ProgressLine, Sharing};
use super::settings::settings;
use super::supervise::{Schedule, Signals, supervise, take_signals};
use crate::cli::{AttachOptions, AttachTarget, EXIT_OWN_FAILURE};
use crate::leaks::ScanOptions;
use crate::progress::Progress;
use crate::session::{SessionError, Target};
use crate::tracer::permission::{self, ByNameError};
use crate::tracer::{TracerError, control, procfs};
use anyhow::bail;
use std::sync::Arc;

/// Profiles the process and writes its profile. The exit status is 0 whatever ended the tracing.
///
/// # Errors
/// If an output can't be written, or the process can't be found or traced: then it has not been touched.
pub fn execute(options: &AttachOptions) -> anyhow::Result<u8> {
    let profile = &options.profile;
    let destinations = Destinations::prepare(profile)?.without_verdict()?;
    let pid = find(&options.target)?;
    if profile.pin {
        bail!("--pin is for `heaptrace run`: a process that runs already keeps its CPUs");
    }
    if let Ok(Some(process)) = procfs::thread_group(pid)
        && process != pid
    {
        bail!("{pid} is a thread of process {process}: heaptrace attach {process}");
    }
    let mut settings = settings(profile, false)?;
    settings.profile_each = destinations.take_processes();
    settings.leak_scan = options.leaks_at_end.then(ScanOptions::default);
    take_signals(profile)?;
    control::block_terminal_stops()?;
    let progress = Arc::new(Progress::default());
    let mut line = ProgressLine::new(progress::wanted(profile, Sharing::Alone));
    let tick = || line.tick(progress.read());
    let traced =
        supervise(Target::Attach { pid }, settings, Schedule::of(profile), Signals::ForUs, profile, &progress, tick);
    drop(line);
    let traced = traced.map_err(|error| explain(error, pid))?;
    let harmed = traced.has_harmed();
    // Ctrl-C pressed twice in a hurry ends the tracing once; the profile is still wanted.
    control::pending_signals();
    control::unblock_terminal_stops()?;
    let concluded = conclude(traced, profile, &destinations);
    Ok(if harmed || concluded.has_failed() { EXIT_OWN_FAILURE } else { 0 })
}

/// The process that is meant.
///
/// # Errors
/// If a name does not lead to one process.
pub fn find(target: &AttachTarget) -> Result<i32, ByNameError> {
    match target {
        AttachTarget::Pid(pid) => Ok(*pid),
        AttachTarget::Name(name) => permission::find_by_name(name),
    }
}

/// Replaces what the kernel said of a failed attach by its cause.
fn explain(error: anyhow::Error, pid: i32) -> anyhow::Error {
    match error.downcast::<SessionError>() {
        Ok(SessionError::Tracer(error)) => refused(error, pid),
        Ok(other) => other.into(),
        Err(error) => error,
    }
}

/// Why the attempt to attach to `pid` failed, in words that help: cause and cure where /proc tells them.
pub fn refused(error: TracerError, pid: i32) -> anyhow::Error {
    match permission::explain_error(error, pid) {
        Ok(refusal) => refusal.into(),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_refusal_is_explained_and_other_errors_are_left_alone() {
        let own = i32::try_from(std::process::id()).unwrap();
        let denied =
            |errno| TracerError::Task { operation: "seize", tid: own, source: io::Error::from_raw_os_error(errno) };
        let text = refused(denied(libc_eperm()), own).to_string();
        assert_eq!(
            text,
            format!("could not attach to process {own}: it is heaptrace itself. Trace one heaptrace with another")
        );
        let text = refused(TracerError::NotFound { program: "x".into() }, own).to_string();
        assert_eq!(text, "x: not found");
    }

    /// EPERM, without libc, which has no place here.
    const fn libc_eperm() -> i32 {
        1
    }
}
