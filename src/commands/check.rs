//! `heaptrace check`: run a program and judge it.

use super::conclude::{Destinations, Judging, conclude_check};
use super::run;
use super::settings::settings;
use crate::cli::{CheckOptions, EXIT_OWN_FAILURE};
use crate::leaks::ScanOptions;
use crate::leaks::verdict::{Circumstances, judge};
use crate::profile::Profile;
use crate::session::{LeakScan, Recording};
use crate::tracer::control;

/// Runs the program, judges it and tells the verdict, which is the exit status.
///
/// # Errors
/// If an output can't be written, a file of the judgement can't be read, or the program can't be executed: then nothing has been
/// started.
pub fn execute(options: &CheckOptions) -> anyhow::Result<u8> {
    let profile = &options.run.profile;
    let destinations = Destinations::prepare(profile)?;
    let mut settings = settings(profile, profile.duration.is_none())?;
    settings.leak_scan = Some(ScanOptions { interior: options.interior, ..ScanOptions::default() });
    let recording = run::trace(&options.run, settings, options.timeout)?;
    let (pid, lives_on) = (recording.pid, recording.detached && recording.exit.is_none());
    let circumstances = Circumstances { timed_out: recording.timed_out, not_scanned: not_scanned(&recording) };
    // What came while the program was traced is its own, and must not end the writing.
    let late = control::pending_signals();
    let mut judge = |profile: &mut Profile| judge(profile, &options.policy, &circumstances);
    let concluded = conclude_check(recording, &destinations, &mut Judging { options, judge: &mut judge });
    let verdict = concluded.profile.verdict.as_ref().map_or(EXIT_OWN_FAILURE, |verdict| verdict.exit_status);
    if lives_on {
        let status = run::wait_for_the_rest(pid, late.into_iter().chain(concluded.interrupted))?;
        return Ok(if status == 0 { verdict } else { status });
    }
    Ok(if verdict == 0 && concluded.has_failed() { EXIT_OWN_FAILURE } else { verdict })
}

/// Why what was seen is not enough to judge; None if it is.
fn not_scanned(recording: &Recording) -> Option<String> {
    let mut causes = recording.blind_spots.clone();
    if let LeakScan::Missed(cause) = &recording.leaks {
        causes.push(cause.clone());
    }
    (!causes.is_empty()).then(|| causes.join("; "))
}
