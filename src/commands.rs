//! One file per subcommand: wiring only.

pub mod ask;
pub mod attach;
pub mod binaries;
pub mod check;
pub mod conclude;
mod contents;
pub mod convert;
mod debuggers;
mod debuginfod;
pub mod diff;
pub mod direct;
pub mod doctor;
mod earlynames;
mod heap;
pub mod hook;
pub mod instances;
mod live;
mod lost;
pub mod merge;
mod notes;
mod occasions;
mod profileoptions;
pub mod progress;
pub mod report;
pub mod run;
pub mod saved;
mod saver;
mod series;
pub mod service;
pub mod settings;
mod slowdown;
mod snapshot;
pub mod supervise;
mod top;
pub mod tracefile;
mod tracestore;
pub mod tree;
mod view;

use crate::cli::{Command, EXIT_OWN_FAILURE, Verbosity, When};
use crate::export::escape::lines;
use crate::export::output::Owners;
use crate::image::elf;
use crate::session::SessionError;
use crate::tracer::{TracerError, faults, guardian, ids, limits, procfs};
use std::io::{self, IsTerminal, Write};
use tracing::level_filters::LevelFilter;

/// The exit status if the program could not be executed (POSIX's for shells, as env(1) has it).
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// The exit status if the program was not found.
const EXIT_NOT_FOUND: u8 = 127;

/// Carries out `command` and returns the exit status.
///
/// # Errors
/// heaptrace's own failures; [`exit_status`] says what to exit with.
pub fn execute(command: &Command) -> anyhow::Result<u8> {
    elf::mind_available_memory(limits::available_memory);
    if let Err(error) = faults::survive_shortened_files() {
        tracing::warn!("{error}");
    }
    match command {
        Command::Run(options) => {
            show_diagnostics(options.profile.verbosity, use_color(options.profile.color, &io::stderr()));
            run::execute(options)
        }
        Command::Attach(options) => {
            show_diagnostics(options.profile.verbosity, use_color(options.profile.color, &io::stderr()));
            attach::execute(options)
        }
        Command::Merge(options) => merge::execute(options),
        Command::Diff(options) => diff::execute(options),
        Command::Report(options) => report::execute(options),
        Command::View(options) => view::execute(options),
        Command::Leaks(options) => ask::leaks(options),
        Command::Ctl(options) => ask::control(options),
        Command::Heap(options) => heap::execute(options),
        Command::Snapshot(options) => snapshot::execute(options),
        Command::Top(options) => {
            show_diagnostics(options.profile.verbosity, use_color(options.profile.color, &io::stderr()));
            top::execute(options)
        }
        Command::Check(options) => {
            let profile = &options.run.profile;
            show_diagnostics(profile.verbosity, use_color(profile.color, &io::stderr()));
            check::execute(options)
        }
        Command::Convert(options) => convert::execute(options),
        Command::Doctor(options) => doctor::execute(options),
        Command::StandGuard { pinned } => Ok(guardian::stand_by(*pinned).map(|()| 0)?),
    }
}

/// The exit status that stands for `error`.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    let of_cause = |cause: &(dyn std::error::Error + 'static)| {
        let of_session = match cause.downcast_ref::<SessionError>() {
            Some(SessionError::Tracer(error)) => Some(error),
            _ => None,
        };
        match of_session.or_else(|| cause.downcast_ref::<TracerError>()) {
            Some(TracerError::NotFound { .. }) => Some(EXIT_NOT_FOUND),
            Some(TracerError::Exec { .. }) => Some(EXIT_NOT_EXECUTABLE),
            _ => None,
        }
    };
    error.chain().find_map(of_cause).unwrap_or(EXIT_OWN_FAILURE)
}

/// `error` and its causes in one line. Many errors say their cause themselves, for those who print them alone; it is
/// not said twice.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether to colour what goes to `stream`: by default if it is a terminal that can, and $NO_COLOR
/// (no-color.org) does not forbid it.
pub fn use_color(when: When, stream: &impl IsTerminal) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    when.resolve(stream.is_terminal() && !forbidden && !dumb)
}

/// Whose links, pipes and devices heaptrace writes through.
pub fn owners() -> Owners {
    let outside = ids::users_are_mapped().then_some(ids::OVERFLOW_USER);
    Owners { user: procfs::effective_user(), outside }
}

/// Tells the user something on stderr. There is no one left to tell if that fails.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{}", told(text));
}

/// A message of ours. Lines after the first are indented, so that a file's name can't add one that looks like a message
/// of its own.
fn told(text: &str) -> String {
    format!("heaptrace: {}", lines(text.trim_end_matches('\n'), false).replace('\n', "\n  ").replace("\n  \n", "\n\n"))
}

/// Writes `text` to stdout. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// If stdout can't be written for another reason.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_for_reader(text).map(drop)
}

/// The same. False if nobody reads any more.
///
/// # Errors
/// As for [`print`].
pub fn print_for_reader(text: &str) -> anyhow::Result<bool> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context("could not write to standard output")),
    }
}

/// Sends diagnostics to stderr.
fn show_diagnostics(verbosity: Verbosity, color: bool) {
    let level = match verbosity {
        Verbosity::Quiet | Verbosity::Normal => LevelFilter::ERROR,
        Verbosity::Verbose(1) => LevelFilter::INFO,
        Verbosity::Verbose(2) => LevelFilter::DEBUG,
        Verbosity::Verbose(_) => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(level)
        .with_ansi(color)
        .with_target(false)
        .without_time();
    // An error means that a subscriber is set already: a program that embeds this library has its own.
    let _ = subscriber.try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn failures_to_execute_have_their_own_status_through_any_context() {
        let not_found = Err::<(), _>(TracerError::NotFound { program: "x".into() }).context("a").context("b");
        assert_eq!(exit_status(&not_found.unwrap_err()), 127);
        let source = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(exit_status(&TracerError::Exec { program: "x".into(), source }.into()), 126);
        assert_eq!(exit_status(&TracerError::Died { tid: 1 }.into()), 125);
        assert_eq!(exit_status(&anyhow::anyhow!("anything else")), 125);
    }

    #[test]
    fn a_cause_that_an_error_says_itself_is_not_said_again() {
        let own = |text: &str| TracerError::Own { operation: "fork", source: io::Error::other(text.to_owned()) };
        let error = Err::<(), _>(own("no memory")).context("could not start").unwrap_err();
        assert_eq!(format!("{error:#}"), "could not start: could not fork: no memory: no memory");
        assert_eq!(message(&error), "could not start: could not fork: no memory");
        let error = Err::<(), _>(io::Error::other("disk full")).context("out.svg").unwrap_err();
        assert_eq!(message(&error), "out.svg: disk full");
    }

    #[test]
    fn only_a_terminal_is_coloured_unless_asked_for() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!use_color(When::Auto, &file));
        assert!(use_color(When::Always, &file));
        assert!(!use_color(When::Never, &file));
    }
}
