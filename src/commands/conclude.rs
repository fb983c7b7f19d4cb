//! From a finished recording to files and a summary: names are found now, when the target waits for nothing any more.

use super::binaries::{BinaryStore, SaveError};
use super::debuginfod::Debuginfod;
use super::direct::Waiter;
use super::hook::{self, HookError, Passers, Span};
use super::profileoptions::{export_options, wanted};
use super::series::Series;
use super::tracefile::TraceFile;
use super::{owners, tell, use_color};
use crate::cli::{CheckOptions, ProfileOptions, Verbosity};
use crate::export::escape::printable;
use crate::export::format::Extra;
use crate::export::github::annotations;
use crate::export::leakreport::{CheckReportOptions, LeakScope, LivingLeaksOptions, check_report, living_leaks};
use crate::export::output::{Outcome, Outputs, Scope};
use crate::export::summary::{SummaryOptions, summary};
use crate::export::{ExportOptions, Format, Source};
use crate::naming::{self, EarlyNames, FIRST, KnownNames, LookupWait, NamingOptions};
use crate::profile::Profile;
use crate::profile::check::CheckRules;
use crate::session::{ModuleRecord, Recording, Settings, Traced};
use crate::symbols::DebugServers;
use crate::trace::metadata::Names;
use crate::tracer::control::signal_name;
use crate::tracer::limits;
use crate::tracer::terminal;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

/// What a recording became.
#[derive(Debug)]
pub struct RunOutcome {
    /// The profile.
    pub profile: Profile,
    /// What became of each output file.
    pub files: Vec<Outcome>,
    /// Binaries that could not be saved.
    pub unsaved: Vec<SaveError>,
    /// Files for which the user's command failed.
    pub not_passed_on: Vec<HookError>,
    /// Whether a part of the series or a snapshot could not be written, or passed on; heaptrace has told the user so.
    pub parts_failed: bool,
    /// Functions that the user has declared and that do not exist, in words.
    pub unknown_functions: Vec<String>,
    /// Whether a mark was never set that the profile was to be of.
    pub missing_mark: bool,
    /// Whether the trace is not what was asked for.
    pub trace_failed: bool,
    /// The signal that ended the looking up of names or the waiting for an output, if one did.
    pub interrupted: Option<i32>,
}

/// Where a command writes to, and whom it asks for debug files; checked before the target starts.
#[derive(Debug)]
pub struct Destinations {
    outputs: Outputs,
    servers: Option<Arc<dyn DebugServers>>,
    binaries: Option<BinaryStore>,
    trace: Option<TraceFile>,
    series: Option<Arc<Series>>,
    passers: Passers,
}

impl Destinations {
    /// Checks all that `options` name.
    ///
    /// # Errors
    /// The first that could not be written to; nobody to ask.
    pub fn prepare(options: &ProfileOptions) -> anyhow::Result<Self> {
        let outputs = Outputs::prepare(&options.outputs, options.format, owners())?;
        let binaries = options.save_binaries.as_deref().map(BinaryStore::prepare).transpose()?;
        let quiet = options.verbosity == Verbosity::Quiet;
        let servers = options.debuginfod.then(|| Debuginfod::prepare(quiet)).transpose()?;
        let trace = TraceFile::prepare(options, owners())?;
        let (outputs, series) = Series::prepare(options, outputs)?;
        Ok(Self {
            outputs,
            trace,
            series,
            servers: servers.map(|servers| Arc::new(servers) as Arc<dyn DebugServers>),
            binaries,
            passers: Passers::default(),
        })
    }

    /// Lets a session with these settings write its trace, if one is wanted. `attached`: the process runs already.
    ///
    /// # Errors
    /// The file can't be created.
    pub fn begin_trace(&self, settings: &mut Settings, attached: bool) -> anyhow::Result<()> {
        self.trace.as_ref().map_or(Ok(()), |trace| trace.begin(settings, attached))
    }

    /// The series of profiles that is wanted, if one is.
    pub fn series(&self) -> Option<&Arc<Series>> {
        self.series.as_ref()
    }

    /// Whether servers are asked for debug files.
    pub const fn asks_servers(&self) -> bool {
        self.servers.is_some()
    }

    /// Who runs `--on-profile` for what was written meanwhile.
    pub const fn passers(&self) -> &Passers {
        &self.passers
    }

    /// Whether there is an output for each of several processes.
    pub fn take_processes(&self) -> bool {
        self.outputs.takes_processes() || self.series.is_some()
    }

    /// Refuses files that would be the same for each process of a series.
    ///
    /// # Errors
    /// There is one.
    pub fn one_for_each_process(self) -> anyhow::Result<Self> {
        if let Some(series) = &self.series {
            series.one_for_each_process()?;
        }
        Ok(Self { outputs: self.outputs.one_for_each_process()?, ..self })
    }

    /// Refuses files that hold what profiles from there lack.
    ///
    /// # Errors
    /// There is one.
    pub fn filled_from(self, source: Source) -> anyhow::Result<Self> {
        Ok(Self { outputs: self.outputs.filled_from(source)?, ..self })
    }

    /// Whether the format of some output is so.
    pub fn have(&self, is_so: impl Fn(Format) -> bool) -> bool {
        self.outputs.formats().any(is_so)
    }
}

impl RunOutcome {
    /// Whether something could not be written or passed on, or does not exist that the user has named.
    pub fn has_failed(&self) -> bool {
        let lost = self.files.iter().any(|file| file.result.is_err());
        lost || self.trace_failed
            || self.parts_failed
            || self.missing_mark
            || !self.unsaved.is_empty()
            || !self.not_passed_on.is_empty()
            || !self.unknown_functions.is_empty()
    }
}

/// How a check is judged and told.
#[derive(Clone, Copy, Debug)]
pub struct Judging<'a> {
    /// Its options.
    pub options: &'a CheckOptions,
    /// What it judges by.
    pub rules: &'a CheckRules,
}

/// What is known of the names before the first is asked for.
#[derive(Debug)]
enum Beforehand {
    Nothing,
    /// What stood in a trace.
    Recorded(Names),
    /// A look has begun.
    Early(Box<EarlyNames>),
}

/// Finds the names, writes the files, tells the user, and passes the files on. `early`: the look for names that has
/// begun already, if one has.
pub fn conclude(
    traced: Traced,
    early: Option<EarlyNames>,
    options: &ProfileOptions,
    destinations: &Destinations,
) -> RunOutcome {
    let beforehand = early.map_or(Beforehand::Nothing, |early| Beforehand::Early(Box::new(early)));
    conclude_as(traced, FIRST, options, destinations, None, beforehand)
}

/// The same for what a trace has given, with the names that were in it.
pub fn conclude_trace(
    traced: Traced,
    names: Names,
    options: &ProfileOptions,
    destinations: &Destinations,
) -> RunOutcome {
    conclude_as(traced, FIRST, options, destinations, None, Beforehand::Recorded(names))
}

/// The same for the process with this number in a series of processes.
pub fn conclude_one_of(
    traced: Traced,
    number: u32,
    options: &ProfileOptions,
    destinations: &Destinations,
) -> RunOutcome {
    conclude_as(traced, number, options, destinations, None, Beforehand::Nothing)
}

/// The same for a check: its report takes the place of the summary.
pub fn conclude_check(traced: Traced, destinations: &Destinations, judging: &Judging<'_>) -> RunOutcome {
    let options = judging.options;
    conclude_as(traced, FIRST, &options.run.profile, destinations, Some(judging), Beforehand::Nothing)
}

fn conclude_as(
    mut traced: Traced,
    number: u32,
    options: &ProfileOptions,
    destinations: &Destinations,
    judging: Option<&Judging<'_>>,
    beforehand: Beforehand,
) -> RunOutcome {
    limits::give_back_freed();
    let modules: Vec<ModuleRecord> = traced.all().flat_map(|recording| recording.modules.iter().cloned()).collect();
    let another_user = traced.all().any(|recording| recording.process.of_another_user);
    let saved = destinations.binaries.as_ref().map(|store| store.save(&modules, another_user)).unwrap_or_default();
    drop(modules);
    traced.first.facts.warnings.extend(saved.warnings);
    if traced.all().all(|recording| !recording.facts.selected) {
        traced.first.facts.warnings.push("--only and --skip choose none of the programs that were executed".to_owned());
    }
    let interrupted = traced.first.interrupted;
    let unsaved = traced.unsaved;
    let missing_mark = traced.first.missing_mark.take();
    let unknown_functions = traced.take_unknown_functions();
    if let Some(trace) = &destinations.trace {
        trace.end_processes(&mut traced);
    }
    let check = judging.as_ref().map(|judging| judging.options);
    let top = options.top;
    let export = ExportOptions { number: Some(number), ..export_options(options) };
    let mut waiter = Waiter::new(options.verbosity);
    let outputs = &destinations.outputs;
    let servers = destinations.servers.as_ref();
    let tell_slowness: Option<fn(&str)> = (options.verbosity != Verbosity::Quiet).then_some(tell);
    let mut known = KnownNames::with(LookupWait::new(tell_slowness, servers));
    if destinations.trace.is_some() && options.symbolize {
        known.keep_names();
    }
    let elsewhere = matches!(beforehand, Beforehand::Recorded(_));
    match beforehand {
        Beforehand::Nothing => {}
        Beforehand::Recorded(names) => known.learn(names),
        Beforehand::Early(early) => known.go_on_with(*early),
    }
    let mut work = Work { options, outputs, servers, export, known, judging, elsewhere };
    let last_part = destinations.series.as_ref().and_then(|series| {
        work.export.period = traced.others.is_empty().then_some(0..traced.first.facts.cost.wall_ns);
        series.write_last(&traced.first, &mut work.known, &mut waiter)
    });
    let (profile, mut files) = if traced.others.is_empty() {
        // What was not chosen has no file of its own.
        let scope = if traced.first.facts.selected { Scope::All } else { Scope::Tree };
        let profile = work.name(traced.first);
        let files = work.outputs.write(scope, &profile, &work.export, &mut waiter);
        (profile, files)
    } else {
        work.tree(traced, &mut waiter)
    };
    let last_part = last_part.map(|part| {
        let place = files.len();
        files.extend(part.files);
        (place, part.span)
    });
    let naming_ended_by = work.known.ended_by();
    let names = work.known.take_names();
    let trace = destinations.trace.as_ref();
    let trace = trace.and_then(|trace| trace.finish(names.as_ref(), &profile.meta.process, another_user));
    if check.is_some_and(|check| check.github) {
        let _ = io::stderr().write_all(annotations(&profile).as_bytes());
    }
    if options.verbosity != Verbosity::Quiet {
        let defaults = SummaryOptions::default();
        let top = top.unwrap_or(defaults.top);
        let color = use_color(options.color, &io::stderr());
        let width = terminal_width(&io::stderr()).unwrap_or(defaults.width);
        let text = match check {
            Some(check) => {
                let explain = check.explain.as_deref();
                check_report(&profile, &CheckReportOptions { top, color, width, files: &files, explain })
            }
            None => {
                let leaks = LivingLeaksOptions { top, color, width, scope: LeakScope::All, block: None };
                let leaks = living_leaks(&profile, &leaks);
                let gap = if leaks.is_empty() { "" } else { "\n" };
                format!(
                    "{leaks}{gap}{}",
                    summary(&profile, &SummaryOptions { value: None, top, color, width, files: &files })
                )
            }
        };
        if interrupted && io::stderr().is_terminal() {
            // The terminal has written "^C".
            let _ = writeln!(io::stderr());
        }
        // Nobody is left to tell if stderr is closed; the files are there.
        let _ = io::stderr().write_all(text.as_bytes());
    } else {
        for reason in profile.verdict.iter().flat_map(|verdict| &verdict.reasons) {
            tell(reason);
        }
        for unknown in unknown_functions.iter().chain(&missing_mark) {
            tell(unknown);
        }
        for file in &files {
            if let Err(error) = &file.result {
                tell(&format!("{}: {error}", file.path.display()));
            }
        }
    }
    if let Some(folder) = options.save_binaries.as_ref().filter(|_| options.verbosity != Verbosity::Quiet) {
        let _ = writeln!(io::stderr(), "{} binaries are in {}", saved.present, printable(&folder.to_string_lossy()));
    }
    if let Some(trace) = &trace {
        if trace.has_failed {
            tell(&trace.text);
        } else if options.verbosity != Verbosity::Quiet {
            let _ = writeln!(io::stderr(), "{}", printable(&trace.text));
        }
    }
    for error in &saved.failures {
        tell(&error.to_string());
    }
    let (place, span) = last_part.unwrap_or((files.len(), Span::of(&profile)));
    let (of_all, of_part) = files.split_at_checked(place).unwrap_or((&files, &[]));
    let quiet = options.verbosity == Verbosity::Quiet;
    // Only now: a command that hangs must not hold up what is written at the end.
    let parts_passed_on = destinations.passers.finish();
    let mut not_passed_on = Vec::new();
    if let Some(command) = &options.on_profile {
        hook::run(command, of_all, Span::of(&profile), quiet, &mut not_passed_on);
        hook::run(command, of_part, span, quiet, &mut not_passed_on);
    }
    for error in &not_passed_on {
        tell(&error.to_string());
    }
    RunOutcome {
        profile,
        files,
        unsaved: saved.failures,
        not_passed_on,
        parts_failed: unsaved
            || !parts_passed_on
            || destinations.series.as_ref().is_some_and(|series| series.has_failed()),
        unknown_functions,
        missing_mark: missing_mark.is_some(),
        trace_failed: trace.as_ref().is_some_and(|trace| trace.has_failed),
        interrupted: waiter.interrupted().or(naming_ended_by).or(trace.and_then(|trace| trace.interrupted)),
    }
}

/// What making profiles of recordings needs.
pub(super) struct Work<'a> {
    pub(super) options: &'a ProfileOptions,
    pub(super) outputs: &'a Outputs,
    /// Who is asked for debug files.
    pub(super) servers: Option<&'a Arc<dyn DebugServers>>,
    pub(super) export: ExportOptions,
    pub(super) known: KnownNames,
    pub(super) judging: Option<&'a Judging<'a>>,
    /// See [`NamingOptions::elsewhere`].
    pub(super) elsewhere: bool,
}

impl Work<'_> {
    /// Whether something that is written shows which packages would bring missing names.
    fn shows_packages(&self) -> bool {
        let is_told = self.judging.is_some() || self.options.verbosity != Verbosity::Quiet;
        is_told || self.known.keeps_names() || self.outputs.formats().any(|format| format.shows(Extra::Packages))
    }

    /// Gives a recording its names, and if it is a check's, its verdict.
    pub(super) fn name(&mut self, recording: Recording) -> Profile {
        let check = self.judging.as_ref().map(|judging| judging.options);
        let explain = check.and_then(|check| check.explain.as_deref());
        let wanted = NamingOptions {
            check: check.is_some(),
            explain,
            servers: self.servers,
            elsewhere: self.elsewhere,
            packages_unseen: !self.shows_packages(),
            ..wanted(self.options)
        };
        let mut circumstances = naming::circumstances(&recording);
        let mut profile = naming::build_profile(recording, wanted, &mut self.known);
        if let Some(signal) = self.known.ended_by() {
            let cause = format!("{} ended the search for names, which suppressions need", signal_name(signal));
            let before = circumstances.not_scanned.take();
            circumstances.not_scanned = Some(before.into_iter().chain([cause]).collect::<Vec<_>>().join("; "));
        }
        if let Some(judging) = self.judging {
            judging.rules.judge(&mut profile, &circumstances);
        }
        profile
    }
}

/// The width in columns of the terminal that `stream` is; where it is none, what $COLUMNS says.
pub fn terminal_width(stream: &impl AsFd) -> Option<usize> {
    terminal::width(stream).or_else(|| std::env::var("COLUMNS").ok()?.parse().ok())
}
