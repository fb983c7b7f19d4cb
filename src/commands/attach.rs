//! `heaptrace attach`: profile a running process, then leave it as it was.

use super::conclude::{Destinations, conclude, conclude_one_of};
use super::instances::Instances;
use super::message;
use super::progress::{self, ProgressLine, Sharing};
use super::settings::settings;
use super::supervise::{Schedule, SessionOutputs, Signals, supervise, take_signals};
use crate::base::progress::Progress;
use crate::cli::{AttachOptions, AttachTarget, EXIT_OWN_FAILURE, ProfileOptions, Verbosity, Wait};
use crate::event::Generation;
use crate::export::Source;
use crate::heap::leaks::ScanOptions;
use crate::session::{SessionError, Target, Traced};
use crate::tracer::permission::{self, ByNameError, Cause, Instance, Refusal};
use crate::tracer::{TracerError, control, procfs};
use anyhow::{anyhow, bail};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// Profiles the process and writes its profile. The exit status is 0 whatever ended the tracing.
///
/// # Errors
/// If an output can't be written, or the process can't be found or traced: then it has not been touched.
pub fn execute(options: &AttachOptions) -> anyhow::Result<u8> {
    let profile = &options.profile;
    let destinations = Destinations::prepare(profile)?.filled_from(Source::Run)?;
    if profile.pin {
        bail!("--pin is for `heaptrace run`: a process that already runs keeps its CPUs");
    }
    if options.leaks_at_end && profile.sample_interval > 0 {
        bail!("--leaks-at-end needs every block: omit --sample-interval and --max-overhead");
    }
    if options.leaks_at_end && profile.occasions.generation != Generation::default() {
        bail!("--leaks-at-end is about all blocks: omit --since and --until");
    }
    require_every_block(options.existing, profile)?;
    // A declaration that can't be understood is refused before anything is waited for.
    settings(profile, false)?;
    match (&options.target, options.wait) {
        (AttachTarget::Name(name), Wait::ForFirst) => wait_for_one(name, options, &destinations),
        (AttachTarget::Name(_), Wait::ForEach) if profile.trace.is_some() => {
            bail!("--trace is for one session, and --again makes one of each process: use --wait");
        }
        (AttachTarget::Name(name), Wait::ForEach) => {
            one_after_the_other(name, options, &destinations.one_for_each_process()?)
        }
        (target, _) => {
            let pid = find(target)?;
            process_of(pid, "attach")?;
            take_signals(profile)?;
            let traced = trace(pid, options, &destinations, progress::wanted(profile, Sharing::Alone))?;
            Ok(status(conclude_it(traced, profile, &destinations)))
        }
    }
}

/// Traces process `pid` to its end, or until the user has had enough.
fn trace(
    pid: i32,
    options: &AttachOptions,
    destinations: &Destinations,
    shows_progress: bool,
) -> anyhow::Result<Traced> {
    let profile = &options.profile;
    let mut settings = settings(profile, false)?;
    settings.profile_each = destinations.take_processes();
    settings.existing = options.existing;
    settings.copy = if options.existing { crate::inspect::means(pid) } else { None };
    settings.leak_scan = options.leaks_at_end.then(ScanOptions::default);
    // Before the trace has a thread, which a signal that it does not block would reach.
    control::block_terminal_stops()?;
    destinations.begin_trace(&mut settings, true)?;
    let progress = Arc::new(Progress::default());
    let mut line = ProgressLine::new(shows_progress);
    let tick = || {
        line.tick(progress.read());
        ControlFlow::Continue(())
    };
    let wanted = SessionOutputs { profile, series: destinations.series(), passers: destinations.passers() };
    let target = Target::Attach { pid };
    let traced = supervise(target, settings, Schedule::of(profile), Signals::ForUs, &wanted, &progress, tick);
    drop(line);
    // Ctrl-C pressed twice in a hurry ends the tracing once; the profile is still wanted.
    let late = control::pending_signals().into_iter().any(control::is_request_to_end);
    control::unblock_terminal_stops()?;
    let mut traced = traced.map_err(|error| explain(error, pid))?;
    if let Some(broken) = &traced.first.broken_off {
        super::tell(&broken.to_string());
    }
    traced.first.dismissed |= late;
    Ok(traced)
}

/// Whether all went well.
fn conclude_it(traced: Traced, profile: &ProfileOptions, destinations: &Destinations) -> bool {
    let went_well = traced.went_well();
    let concluded = conclude(traced, None, profile, destinations);
    went_well && !concluded.has_failed()
}

const fn status(well: bool) -> u8 {
    if well { 0 } else { EXIT_OWN_FAILURE }
}

/// Profiles the first process of that name, which may have to be waited for.
fn wait_for_one(name: &str, options: &AttachOptions, destinations: &Destinations) -> anyhow::Result<u8> {
    let profile = &options.profile;
    take_signals(profile)?;
    let mut instances = Instances::of(name);
    loop {
        tell(profile, &format!("waiting for {name}"));
        let Some(instance) = instances.next(|| false)? else { return Ok(0) };
        tell(profile, &format!("profiling process {}", instance.pid));
        match trace(instance.pid, options, destinations, progress::wanted(profile, Sharing::Alone)) {
            Ok(traced) => return Ok(status(conclude_it(traced, profile, destinations))),
            Err(error) if has_ended(&instance, &error) => tracing::info!("{}", message(&error)),
            Err(error) => return Err(error),
        }
    }
}

/// Profiles each process of that name. What was recorded is named and written on another thread, as the next process
/// may have begun meanwhile.
fn one_after_the_other(name: &str, options: &AttachOptions, destinations: &Destinations) -> anyhow::Result<u8> {
    let profile = &options.profile;
    take_signals(profile)?;
    let mut instances = Instances::of(name);
    let (finished, to_write) = mpsc::channel::<(u32, Traced)>();
    let enough = AtomicBool::new(false);
    let mut well = true;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut well = true;
            for (number, traced) in to_write {
                let went_well = traced.went_well();
                let concluded = conclude_one_of(traced, number, profile, destinations);
                well &= went_well && !concluded.has_failed();
                if concluded.interrupted.is_some() {
                    enough.store(true, Ordering::Release);
                }
            }
            well
        });
        let mut number = 0;
        let enough = || enough.load(Ordering::Acquire);
        while !enough() {
            tell(profile, &format!("waiting for the next process {name}"));
            let Some(instance) = instances.next(enough)? else { break };
            tell(profile, &format!("profiling process {}", instance.pid));
            // No progress line: it and the summary of the one before would write over each other.
            match trace(instance.pid, options, destinations, false) {
                Ok(traced) => {
                    let dismissed = traced.first.dismissed;
                    number += 1;
                    // The writer ends after us.
                    let _ = finished.send((number, traced));
                    if dismissed {
                        break;
                    }
                }
                Err(error) if has_ended(&instance, &error) => tracing::info!("{}", message(&error)),
                Err(error) => {
                    super::tell(&message(&error));
                    well = false;
                }
            }
        }
        drop(finished);
        well &= writer.join().map_err(|_| anyhow!("the thread that writes the profiles panicked"))?;
        Ok(status(well))
    })
}

/// Whether a process was too short-lived to be attached to. One that is ending is still listed, while there is nothing
/// left to trace.
fn has_ended(instance: &Instance, error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<Refusal>().map(|refusal| &refusal.cause);
    !instance.lives() || matches!(cause, Some(Cause::NoSuchProcess | Cause::Zombie))
}

/// Says what is being done, where there is no progress line yet.
fn tell(profile: &ProfileOptions, what: &str) {
    if profile.verbosity != Verbosity::Quiet {
        // Nobody has to listen.
        super::tell(what);
    }
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

/// Refuses to sample where blocks from before are looked for.
///
/// # Errors
/// Both are wanted.
pub(super) fn require_every_block(existing: bool, profile: &ProfileOptions) -> anyhow::Result<()> {
    if existing && profile.sample_interval > 0 {
        bail!("--existing needs every block: omit --sample-interval and --max-overhead");
    }
    Ok(())
}

/// Refuses the id of a thread; `command`: what the user wanted to do with it.
///
/// # Errors
/// It is one.
pub(super) fn process_of(pid: i32, command: &str) -> anyhow::Result<()> {
    match procfs::thread_group(pid) {
        Ok(Some(process)) if process != pid => {
            bail!("{pid} is a thread of process {process}: heaptrace {command} {process}")
        }
        _ => Ok(()),
    }
}

/// Replaces what the kernel said of a failed attach by its cause.
pub(super) fn explain(error: anyhow::Error, pid: i32) -> anyhow::Error {
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
