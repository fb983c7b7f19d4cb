//! `heaptrace run`: profile a program from its first instruction.

use super::conclude::{Destinations, conclude};
use super::earlynames::EarlyLook;
use super::progress::{self, Notice, ProgressLine, Sharing};
use super::settings::settings;
use super::supervise::{Schedule, SessionOutputs, Signals, supervise, take_signals};
use crate::base::engine::EngineChoice;
use crate::base::progress::Progress;
use crate::cli::{EXIT_OWN_FAILURE, RunOptions};
use crate::export::Source;
use crate::heapmodel::fill;
use crate::image::elf::Elf;
use crate::profile::Exit;
use crate::session::{SessionError, Settings, Target, Traced, TracingAborted, exit_of};
use crate::symbols::Bytes;
use crate::tracer::launch::{self, Program};
use crate::tracer::status::WaitStatus;
use crate::tracer::{TracerError, control, limits, permission};
use anyhow::bail;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Runs the program and writes its profile; the exit status is the program's own.
///
/// # Errors
/// If an output can't be written or the program can't be executed: then nothing has been started.
pub fn execute(options: &RunOptions) -> anyhow::Result<u8> {
    let profile = &options.profile;
    let destinations = Destinations::prepare(profile)?.filled_from(Source::Run)?;
    let mut settings = settings(profile, profile.duration.is_none())?;
    settings.profile_each = destinations.take_processes();
    let mut early = EarlyLook::prepare(&mut settings, profile, &destinations);
    let Some(traced) = trace(options, settings, None, &destinations, &mut early)? else { return Ok(EXIT_OWN_FAILURE) };
    let has_failed = !traced.went_well();
    let (pid, lives_on, exit) = (traced.first.process.pid, traced.first.facts.detached, traced.first.process.exit);
    // What came while the program was traced is its own, and must not end the writing.
    let late = control::pending_signals();
    let concluded = conclude(traced, early.take(), profile, &destinations);
    let status = match exit {
        None if lives_on => Some(wait_for_the_rest(pid, late.into_iter().chain(concluded.interrupted))?),
        _ => exit.map(code_of),
    };
    let status = status.unwrap_or(EXIT_OWN_FAILURE);
    Ok(if status == 0 && (has_failed || concluded.has_failed()) { EXIT_OWN_FAILURE } else { status })
}

/// Starts the program and traces it, to its end as a rule. If tracing broke off, heaptrace has told the user so. None:
/// nothing is left of it then, and the program, which had lived on, has ended.
///
/// # Errors
/// If it can't be executed or traced, or if tracing broke off.
pub(super) fn trace(
    options: &RunOptions,
    mut settings: Settings,
    timeout: Option<Duration>,
    destinations: &Destinations,
    early: &mut EarlyLook,
) -> anyhow::Result<Option<Traced>> {
    let profile = &options.profile;
    if options.perturb && profile.engine == EngineChoice::Jump {
        bail!("--perturb reads blocks while the program is stopped at each call: omit --engine jump");
    }
    settings.perturb = options.perturb;
    let (program, sanitized) = prepare(options)?;
    let privileged = loses_privileges(program.path());
    // Before any thread is there: one that does not block a signal would be ended by it, and heaptrace with it.
    let mask = take_signals(profile)?;
    control::take_job_stop()?;
    early.start(profile);
    destinations.begin_trace(&mut settings, false)?;
    let progress = Arc::new(Progress::default());
    let mut line = ProgressLine::new(progress::wanted(profile, Sharing::WithProgram));
    let target = Target::Launch { program, mask: Box::new(mask) };
    let mut notice = Notice::new(profile, &options.program.to_string_lossy(), settings.leak_scan.is_some());
    let tick = || {
        line.tick(progress.read());
        notice.tick(progress.read());
        ControlFlow::Continue(())
    };
    let schedule = Schedule::of(profile).with_timeout(timeout);
    let wanted = SessionOutputs { profile, series: destinations.series(), passers: destinations.passers() };
    let traced = supervise(target, settings, schedule, Signals::ForTheProgram, &wanted, &progress, tick);
    drop(line);
    control::release_job_stop()?;
    let mut traced = match traced {
        Ok(traced) => traced,
        Err(error) => {
            // The program lives on as a child of ours: whoever waits for us waits for it.
            if let Some(&SessionError::BrokenOff(TracingAborted { child: Some(pid), .. })) = error.downcast_ref() {
                super::tell(&super::message(&error));
                wait_as_parent(pid)?;
                return Ok(None);
            }
            return Err(refused(error));
        }
    };
    if let Some(broken) = &traced.first.broken_off {
        super::tell(&broken.to_string());
        // Writing takes memory, and there may not be enough: whoever waits for us waits for the program, too.
        if limits::is_memory_short()
            && let Some(pid) = broken.child
        {
            wait_as_parent(pid)?;
            traced.first.facts.detached = false;
        }
    }
    if privileged {
        traced.first.facts.warnings.push(
            "the program is set-user-ID or set-group-ID: the kernel runs it without its privileges while it is traced"
                .to_owned(),
        );
    }
    if sanitized {
        traced.first.facts.warnings.push(
            "the program's own leak check (LeakSanitizer) refuses to run under ptrace: heaptrace switched it off \
             (detect_leaks=0)"
                .to_owned(),
        );
    }
    Ok(Some(traced))
}

/// Waits for a program that was let go before its end, as any parent does; it first gets the signals that came
/// meanwhile. Returns its status.
pub(super) fn wait_for_the_rest(pid: i32, mut late: impl Iterator<Item = i32>) -> Result<u8, TracerError> {
    late.try_for_each(|signal| pass_on(pid, signal))?;
    Ok(exit_of(wait_as_parent(pid)?).map_or(EXIT_OWN_FAILURE, code_of))
}

/// Says what helps if the kernel does not let a child be traced.
fn refused(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<SessionError>() {
        Some(SessionError::Tracer(TracerError::Task { operation: "seize", .. })) => {
            // A tracer that follows our forks has the child before us.
            let cause = match permission::own_tracer() {
                Some((pid, name)) => format!(
                    "process {pid} ({name}) traces heaptrace and its children, and a process can have only one tracer; \
                     run heaptrace without it, or without its option to follow forks"
                ),
                None => {
                    "tracing is not permitted here, not even of heaptrace's own child (a container's seccomp profile, \
                     or Yama's ptrace_scope 3): `heaptrace doctor` says what to change"
                        .to_owned()
                }
            };
            error.context(cause)
        }
        Some(SessionError::Tracer(TracerError::ProcFile { .. })) => error.context(
            "the program can't be traced: this user may execute its file but not read it, or it is set-user-ID",
        ),
        _ => error,
    }
}

/// Waits for the program that was let go, passing signals on as before.
fn wait_as_parent(pid: i32) -> Result<WaitStatus, TracerError> {
    loop {
        if let Some(status) = launch::poll_child(pid)? {
            return Ok(status);
        }
        if let Some(signal) = control::next_signal(POLL) {
            pass_on(pid, signal)?;
        }
    }
}

/// Gives a signal of ours to the program that was let go, unless the terminal has done so, or it was meant for
/// heaptrace alone (--toggle-signal). The program may have ended.
fn pass_on(pid: i32, signal: i32) -> Result<(), TracerError> {
    if signal == control::INTERRUPT || signal == control::QUIT || !control::is_request_to_end(signal) {
        return Ok(());
    }
    control::send(pid, signal).or_else(|error| if error.is_out_of_reach() { Ok(()) } else { Err(error) })
}

/// How often the end of a program that was let go is looked for.
const POLL: Duration = Duration::from_millis(20);

/// The exit status that a shell would report.
fn code_of(exit: Exit) -> u8 {
    let code = match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
    };
    u8::try_from(code & 0xff).unwrap_or(EXIT_OWN_FAILURE)
}

/// Finds the program, and tells whether the environment had to be changed for it.
fn prepare(options: &RunOptions) -> Result<(Program, bool), TracerError> {
    let program = Program::new(&options.program, &options.arguments, std::env::vars_os())?;
    let sanitized = has_leak_sanitizer(program.path());
    if !sanitized && !options.perturb {
        return Ok((program, false));
    }
    let mut environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    if sanitized {
        for name in ["ASAN_OPTIONS", "LSAN_OPTIONS"] {
            add_to(&mut environment, name, "detect_leaks=0");
        }
    }
    if options.perturb {
        // Of a tunable that is named twice the last counts.
        let fill = format!("glibc.malloc.perturb={}:glibc.malloc.tcache_count=0", fill::PERTURB);
        add_to(&mut environment, "GLIBC_TUNABLES", &fill);
    }
    Ok((Program::new(&options.program, &options.arguments, environment)?, sanitized))
}

/// Adds to a variable that holds options with colons between.
fn add_to(environment: &mut Vec<(OsString, OsString)>, name: &str, options: &str) {
    match environment.iter_mut().find(|(key, _)| key == name) {
        Some((_, value)) if value.is_empty() => *value = options.into(),
        Some((_, value)) => {
            value.push(":");
            value.push(options);
        }
        None => environment.push((name.into(), options.into())),
    }
}

/// Whether the file's set-user-ID or set-group-ID bit would give the program other rights than ours (execve(2): not
/// while it is traced by somebody without CAP_SYS_PTRACE).
fn loses_privileges(path: &Path) -> bool {
    let own = std::fs::metadata("/proc/self");
    let (Ok(file), Ok(own)) = (std::fs::metadata(path), own) else { return false };
    let sets_user = file.mode() & 0o4000 != 0 && file.uid() != own.uid();
    let sets_group = file.mode() & 0o2000 != 0 && file.gid() != own.gid();
    (sets_user || sets_group) && own.uid() != 0
}

/// Whether the program brings a LeakSanitizer, which ends a program that is traced with an error of its own.
fn has_leak_sanitizer(path: &Path) -> bool {
    let Ok(bytes) = Bytes::open(path) else { return false };
    let Ok(elf) = Elf::parse(&bytes) else { return false };
    let by_library = elf.needed().iter().any(|library| {
        let library = library.to_string_lossy();
        library.starts_with("liblsan.so")
            || library.starts_with("libasan.so")
            || library.starts_with("libclang_rt.asan")
    });
    by_library || elf.defines_any(&["__lsan_init", "__asan_init"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(code_of(Exit::Code(3)), 3);
        assert_eq!(code_of(Exit::Signal(9)), 137);
    }

    #[test]
    fn options_come_behind_those_that_a_variable_has() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        let mut environment = pairs(&[("A", "x=1"), ("B", "")]);
        ["A", "B", "C"].into_iter().for_each(|name| add_to(&mut environment, name, "y=2"));
        assert_eq!(environment, pairs(&[("A", "x=1:y=2"), ("B", "y=2"), ("C", "y=2")]));
    }

    #[test]
    fn an_ordinary_program_has_no_leak_sanitizer() {
        assert!(!has_leak_sanitizer(Path::new("/bin/true")));
        assert!(!has_leak_sanitizer(Path::new("/does/not/exist")));
    }
}
