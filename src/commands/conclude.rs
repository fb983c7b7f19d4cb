//! From a finished recording to files and a summary: names are found now, when the target waits for nothing any more.

use super::binaries::{BinaryStore, SaveError};
use super::debuginfod::Debuginfod;
use super::direct::Waiter;
use super::hook::{self, HookError};
use super::use_color;
use crate::addr::Addr;
use crate::cli::{CheckOptions, ProfileOptions, Verbosity};
use crate::export::ExportOptions;
use crate::export::github::annotations;
use crate::export::leaks::{CheckReportOptions, LivingLeaksOptions, check_report, living_leaks};
use crate::export::output::{Outcome, Outputs, Scope, StdoutPolicy};
use crate::export::summary::{SummaryOptions, summary};
use crate::paths::below;
use crate::profile::build::{BuildInput, LeakInput, LoadedModule, build};
use crate::profile::symbolize::{NoSymbols, Symbolize};
use crate::profile::{Image, Meta, Mode, ModuleInfo, Profile, SymbolStatus};
use crate::session::{LeakScan, ModuleRecord, Recording};
use crate::symbols::{DebugServers, ModuleSource, PerfMap, Search, Symbolizer};
use crate::tracer::root::TargetRoot;
use rustc_hash::FxHashMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// File systems may be so much behind the clock, which they look at once a tick (and some keep full seconds only).
const CLOCK_TICK: Duration = Duration::from_secs(1);

/// The number of a profile that belongs to no series, and of the first of a series.
const FIRST: u32 = 1;

/// What a recording became.
#[derive(Debug)]
pub struct Concluded {
    /// The profile.
    pub profile: Profile,
    /// What became of each output file.
    pub files: Vec<Outcome>,
    /// Binaries that could not be saved.
    pub unsaved: Vec<SaveError>,
    /// Files for which the user's command failed.
    pub not_passed_on: Vec<HookError>,
    /// Functions that the user has declared and that do not exist, in words.
    pub unknown_functions: Vec<String>,
    /// The signal that ended the waiting for an output, if one did.
    pub interrupted: Option<i32>,
}

/// Where a command writes to, and whom it asks for debug files; checked before the target starts.
#[derive(Debug)]
pub struct Destinations {
    outputs: Outputs,
    servers: Option<Arc<dyn DebugServers>>,
    binaries: Option<BinaryStore>,
}

impl Destinations {
    /// Checks all that `options` name.
    ///
    /// # Errors
    /// The first that could not be written to; nobody to ask.
    pub fn prepare(options: &ProfileOptions) -> anyhow::Result<Self> {
        let outputs = Outputs::prepare(&options.outputs, options.format, StdoutPolicy::Refused)?;
        let binaries = options.save_binaries.as_deref().map(BinaryStore::prepare).transpose()?;
        let quiet = options.verbosity == Verbosity::Quiet;
        let servers = options.debuginfod.then(|| Debuginfod::prepare(quiet)).transpose()?;
        Ok(Self { outputs, servers: servers.map(|servers| Arc::new(servers) as Arc<dyn DebugServers>), binaries })
    }

    /// Refuses files that would be the same for each process of a series.
    ///
    /// # Errors
    /// There is one.
    pub fn one_for_each_process(self) -> anyhow::Result<Self> {
        Ok(Self { outputs: self.outputs.one_for_each_process()?, ..self })
    }

    /// Refuses files that only `check` can fill.
    ///
    /// # Errors
    /// There is one.
    pub fn without_verdict(self) -> anyhow::Result<Self> {
        Ok(Self { outputs: self.outputs.without_verdict()?, ..self })
    }
}

impl Concluded {
    /// Whether something could not be written or passed on, or does not exist that the user has named.
    pub fn has_failed(&self) -> bool {
        let lost = self.files.iter().any(|file| file.result.is_err());
        lost || !self.unsaved.is_empty() || !self.not_passed_on.is_empty() || !self.unknown_functions.is_empty()
    }
}

/// How a check is told.
pub struct Judging<'a> {
    /// Its options.
    pub options: &'a CheckOptions,
    /// Sets the verdict, once all has a name.
    pub judge: &'a mut dyn FnMut(&mut Profile),
}

impl std::fmt::Debug for Judging<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judging").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Finds the names, writes the files, tells the user, and passes the files on.
pub fn conclude(recording: Recording, options: &ProfileOptions, destinations: &Destinations) -> Concluded {
    conclude_as(recording, FIRST, options, destinations, None)
}

/// The same for the process with this number in a series of processes.
pub fn conclude_one_of(
    recording: Recording,
    number: u32,
    options: &ProfileOptions,
    destinations: &Destinations,
) -> Concluded {
    conclude_as(recording, number, options, destinations, None)
}

/// The same for a check: its report takes the place of the summary.
pub fn conclude_check(recording: Recording, destinations: &Destinations, judging: &mut Judging<'_>) -> Concluded {
    let options = judging.options;
    conclude_as(recording, FIRST, &options.run.profile, destinations, Some(judging))
}

fn conclude_as(
    mut recording: Recording,
    number: u32,
    options: &ProfileOptions,
    destinations: &Destinations,
    judging: Option<&mut Judging<'_>>,
) -> Concluded {
    let saved = destinations.binaries.as_ref().map(|store| store.save(&recording.modules)).unwrap_or_default();
    recording.warnings.extend(saved.warnings);
    let interrupted = recording.interrupted;
    let unknown_functions = std::mem::take(&mut recording.unknown_functions);
    let check = judging.as_ref().map(|judging| judging.options);
    let asked = Asked {
        check: check.is_some(),
        explain: check.and_then(|check| check.explain.as_deref()),
        block: None,
        servers: destinations.servers.as_ref(),
    };
    let mut profile = profile(recording, options, asked);
    profile.meta.part = number;
    if let Some(judging) = judging {
        (judging.judge)(&mut profile);
    }
    let top = options.top;
    let defaults = ExportOptions::default();
    let export = ExportOptions { pprof_columns: options.pprof_columns, top: top.unwrap_or(defaults.top), ..defaults };
    let mut waiter = Waiter::new(options.verbosity);
    let files = destinations.outputs.write(Scope::All, &profile, &export, &mut waiter);
    if check.is_some_and(|check| check.github) {
        let _ = io::stderr().write_all(annotations(&profile).as_bytes());
    }
    if options.verbosity != Verbosity::Quiet {
        let defaults = SummaryOptions::default();
        let top = top.unwrap_or(defaults.top);
        let color = use_color(options.color, &io::stderr());
        let width = terminal_width().unwrap_or(defaults.width);
        let text = match check {
            Some(check) => {
                let explain = check.explain.as_deref();
                check_report(&profile, &CheckReportOptions { top, color, width, files: &files, explain })
            }
            None => {
                let leaks = LivingLeaksOptions { top, color, width, increased: false, block: None };
                let leaks = living_leaks(&profile, &leaks);
                let gap = if leaks.is_empty() { "" } else { "\n" };
                format!("{leaks}{gap}{}", summary(&profile, &SummaryOptions { top, color, width, files: &files }))
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
            let _ = writeln!(io::stderr(), "heaptrace: {reason}");
        }
        for unknown in &unknown_functions {
            let _ = writeln!(io::stderr(), "heaptrace: {unknown}");
        }
        for file in &files {
            if let Err(error) = &file.result {
                let _ = writeln!(io::stderr(), "heaptrace: {}: {error}", file.path.display());
            }
        }
    }
    if let Some(folder) = options.save_binaries.as_ref().filter(|_| options.verbosity != Verbosity::Quiet) {
        let _ = writeln!(io::stderr(), "{} binaries are in {}", saved.present, folder.display());
    }
    for error in &saved.failures {
        let _ = writeln!(io::stderr(), "heaptrace: {error}");
    }
    let not_passed_on = options.on_profile.as_ref().map(|command| hook::run(command, &files)).unwrap_or_default();
    for error in &not_passed_on {
        let _ = writeln!(io::stderr(), "heaptrace: {error}");
    }
    Concluded {
        profile,
        files,
        unsaved: saved.failures,
        not_passed_on,
        unknown_functions,
        interrupted: waiter.interrupted(),
    }
}

/// What a profile is made for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Whether a check will judge it.
    pub check: bool,
    /// Why the blocks of the functions with this in their names can still be reached.
    pub explain: Option<&'a str>,
    /// Why the block at this address can.
    pub block: Option<Addr>,
    /// Who is asked for debug files that are not there.
    pub servers: Option<&'a Arc<dyn DebugServers>>,
}

/// Gives a recording its names.
pub fn profile(recording: Recording, options: &ProfileOptions, asked: Asked<'_>) -> Profile {
    let meta = Meta {
        mode: match asked.check {
            true => Mode::Check,
            false if recording.attached => Mode::Attach,
            false => Mode::Run,
        },
        part: FIRST,
        program: recording.program,
        pid: recording.pid,
        pid_inside: recording.pid_inside,
        command: recording.command,
        cwd: recording.cwd,
        started_at: recording.started_at,
        duration_ns: recording.cost.wall_ns,
        engine: "trap".to_owned(),
        complete: recording.broken_off.is_none() && (!recording.detached || recording.attached),
        exit: recording.exit,
        session: session_id(recording.pid, recording.started_at),
        sample_interval: 0,
    };
    let mut modules = recording.modules;
    modules.sort_by_key(|module| !module.is_program);
    let allocators = modules
        .iter()
        .filter(|module| !module.probed.is_empty())
        .map(|module| {
            let names = module.probed.iter().map(|&function| recording.table.name(function).to_owned());
            (module.id, names.collect())
        })
        .collect();
    let loaded = modules.iter().map(loaded_module).collect();
    let names = recording.thread_names;
    let thread_name = |serial: u32| names.get(&serial).cloned().unwrap_or_default();
    let function_name = |id| recording.table.name(id).to_owned();
    let images = recording.images.into_iter().map(|image| Image {
        program: image.program,
        totals: image.totals,
        gone_with_exec: image.gone_with_exec,
    });
    let root = recording.root.as_deref().map_or_else(|| PathBuf::from("/"), TargetRoot::path);
    let map_name = format!("/tmp/perf-{}.map", recording.pid_inside.unwrap_or(recording.pid));
    let perf_map = PerfMap {
        path: below(&root, Path::new(&map_name)),
        not_before: recording.started_at.checked_sub(CLOCK_TICK).filter(|_| !recording.attached),
    };
    let mut symbolizer: Box<dyn Symbolize> = if options.symbolize {
        Box::new(symbolizer(modules, options, root, asked.servers.cloned()).with_perf_map(perf_map))
    } else {
        Box::new(NoSymbols)
    };
    let scan = match &recording.leaks {
        LeakScan::Done(scan) => Some(scan),
        LeakScan::NotWanted | LeakScan::Missed(_) => None,
    };
    let site = |id| scan.and_then(|scan| scan.sites.get(&id).copied());
    let name_of_tid = |tid: i32| scan.and_then(|scan| scan.thread_names.get(&tid).cloned());
    let leaks = scan.map(|scan| LeakInput {
        scan: &scan.scan,
        site: &site,
        thread_name: &name_of_tid,
        moment: scan.moment,
        stopped_ns: scan.stopped_ns,
        explain: asked.explain,
        block: asked.block,
    });
    let input = BuildInput {
        meta,
        anomalies: recording.anomalies,
        cost: recording.cost,
        snapshot: &recording.snapshot,
        stacks: &recording.stacks,
        modules: loaded,
        allocators,
        thread_name: &thread_name,
        function_name: &function_name,
        images: images.collect(),
        children: recording.children,
        warnings: recording.warnings,
        leaks,
    };
    build(input, symbolizer.as_mut()).profile
}

fn loaded_module(module: &ModuleRecord) -> LoadedModule {
    LoadedModule {
        info: ModuleInfo {
            id: module.id,
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            start: module.start,
            end: module.end,
            file_offset: module.file_offset,
            symbols: SymbolStatus::default(),
        },
        bias: module.bias,
    }
}

fn symbolizer(
    modules: Vec<ModuleRecord>,
    options: &ProfileOptions,
    root: PathBuf,
    servers: Option<Arc<dyn DebugServers>>,
) -> Symbolizer {
    let search = Search { servers, ..Search::new(&options.debug_dirs, None, options.sysroot.clone(), root) };
    let mut symbolizer = Symbolizer::new(search);
    let mut opened = FxHashMap::default();
    let mut sources = Vec::new();
    for module in modules {
        let ModuleRecord { id, path, build_id, file, version, memory, .. } = module;
        let file = file.map(Arc::new);
        opened.extend(version.zip(file.clone()));
        sources.push((id, ModuleSource { path, build_id, file, version, memory }));
    }
    for (id, mut source) in sources {
        // of a library that was loaded a thousand times one file is open
        source.file = source.file.or_else(|| opened.get(&source.version?).cloned());
        symbolizer.add_module(id, source);
    }
    symbolizer
}

/// An id that ties the files of one session together: 16 hex digits.
fn session_id(pid: i32, started_at: std::time::SystemTime) -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library's hasher is seeded from the kernel's random numbers.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_i32(pid);
    hasher.write_u128(started_at.duration_since(std::time::UNIX_EPOCH).map(|t| t.as_nanos()).unwrap_or_default());
    format!("{:016x}", hasher.finish())
}

/// The terminal's width in columns, as the shell tells it.
pub fn terminal_width() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}
