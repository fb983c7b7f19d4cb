//! From a recording to a profile: addresses get their names. Processes of one tree share most of their modules, so that
//! what was found once is remembered.

use crate::allocators::frameworks::KNOWN;
use crate::base::addr::{Addr, ModuleId, ObjAddr};
use crate::base::paths::below;
use crate::base::sources::{Lines, Readers};
use crate::profile::build::{BuildInput, LeakInput, LoadedModule, TestInput, build, lack_names};
use crate::profile::check::verdict::Completeness;
use crate::profile::symbolize::{NoSymbols, Resolution, SymFrame, Symbolize};
use crate::profile::{Meta, Mode, ModuleInfo, Profile, SymbolStatus};
use crate::session::{LeakScan, ModuleRecord, Recording};
use crate::symbols::{DebugServers, ModuleSource, PerfMap, Search, Symbolizer};
use crate::trace::metadata::Names;
use crate::tracer::root::TargetRoot;
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

mod early;
mod lookup;
mod nameslog;
mod recorded;
mod scripts;

pub use early::EarlyNames;
pub use lookup::LookupWait;

use lookup::Lookup;
use nameslog::{Logging, NamesLog};
use scripts::Scripted;

/// The number of a profile that belongs to no series, and of the first of a series.
pub const FIRST: u32 = 1;

/// File systems may be so much behind the clock, which they look at once a tick (and some keep full seconds only).
const CLOCK_TICK: Duration = Duration::from_secs(1);

/// A module's path and build id: what makes two of one.
type Identity = (PathBuf, Option<String>);

/// The names of addresses that were asked for so far, by module.
#[derive(Debug, Default)]
pub struct KnownNames {
    modules: FxHashMap<Identity, KnownModule>,
    /// Whether a trace has brought names along; then also which packages would bring missing ones, and what went wrong.
    recorded: bool,
    packages: FxHashMap<PathBuf, Option<String>>,
    /// The packages that were asked for so far, by the file's path below the root folder of its process.
    asked_packages: FxHashMap<PathBuf, Option<String>>,
    warnings: Vec<String>,
    /// How long they are waited for. None: for ever, and signals are somebody else's.
    patience: Option<LookupWait>,
    /// All that was said, if that is to be kept.
    log: Option<NamesLog>,
    /// Lines of source that were looked at.
    lines: Lines,
    /// The look that has begun while the process ended, if one has.
    early: Option<EarlyNames>,
}

impl KnownNames {
    /// None yet; signals end the looking up.
    pub fn with(patience: LookupWait) -> Self {
        Self { patience: Some(patience), ..Self::default() }
    }

    /// Goes on with a look that has begun already, for the next recording, if that has the same modules.
    pub fn go_on_with(&mut self, early: EarlyNames) {
        self.early = Some(early);
    }

    /// Keeps all that is said from now on, for [`Self::take_names`].
    pub fn keep_names(&mut self) {
        self.log = Some(NamesLog::default());
    }

    /// What was said, if it was to be kept.
    pub fn take_names(&mut self) -> Option<Names> {
        self.log.take().map(NamesLog::into_names)
    }

    /// Whether what is said is kept.
    pub fn keeps_names(&self) -> bool {
        self.log.is_some()
    }

    /// The signal that ended the looking up, if one did.
    pub fn ended_by(&self) -> Option<i32> {
        self.patience.as_ref().and_then(LookupWait::ended_by)
    }
}

#[derive(Debug, Default)]
struct KnownModule {
    frames: FxHashMap<ObjAddr, Vec<SymFrame>>,
    status: SymbolStatus,
}

/// Asks only for what is not known yet.
struct Remembering<'a> {
    inner: Box<dyn Symbolize + 'a>,
    known: &'a mut FxHashMap<Identity, KnownModule>,
    packages: Packages<'a>,
    warnings: &'a mut Vec<String>,
    modules: FxHashMap<ModuleId, Identity>,
    /// Whether packages will be asked for.
    asks_packages: bool,
}

/// Which packages are known to bring which files' debug information. To look for more takes a look into all lists of
/// the system.
struct Packages<'a> {
    /// What a trace has told.
    recorded: &'a FxHashMap<PathBuf, Option<String>>,
    /// See [`KnownNames::asked_packages`].
    asked: &'a mut FxHashMap<PathBuf, Option<String>>,
    root: PathBuf,
}

impl Packages<'_> {
    fn get(&self, file: &Path) -> Option<&Option<String>> {
        self.recorded.get(file).or_else(|| self.asked.get(&below(&self.root, file)))
    }

    fn unknown(&self, files: &[PathBuf]) -> Vec<PathBuf> {
        files.iter().filter(|file| self.get(file).is_none()).cloned().collect()
    }
}

impl Symbolize for Remembering<'_> {
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        let Some(identity) = self.modules.get(&module) else { return self.inner.resolve(module, addrs) };
        let known = self.known.entry(identity.clone()).or_default();
        let new: Vec<ObjAddr> = addrs.iter().filter(|addr| !known.frames.contains_key(addr)).copied().collect();
        if !new.is_empty() {
            let Resolution { frames, status } = self.inner.resolve(module, &new);
            known.frames.extend(new.into_iter().zip(frames));
            known.status.functions |= status.functions;
            known.status.files |= status.files;
            known.status.lines |= status.lines;
            known.status.inlines |= status.inlines;
        }
        let frames = addrs.iter().map(|addr| known.frames.get(addr).cloned().unwrap_or_default()).collect();
        Resolution { frames, status: known.status }
    }

    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        self.inner.variable(module, addr)
    }

    fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
        let unknown = self.packages.unknown(files);
        if !unknown.is_empty() {
            let found = self.inner.debug_packages(&unknown);
            let files = unknown.iter().map(|file| below(&self.packages.root, file));
            self.packages.asked.extend(files.zip(found));
        }
        files.iter().map(|file| self.packages.get(file).cloned().flatten()).collect()
    }

    fn expect(&mut self, questions: &[(ModuleId, Vec<ObjAddr>)]) {
        let mut identities = FxHashSet::default();
        let mut new = Vec::new();
        for (module, addrs) in questions {
            let mut addrs = addrs.clone();
            if let Some(identity) = self.modules.get(module) {
                // Of another module that is the same file, less will be asked then.
                if !identities.insert(identity) {
                    continue;
                }
                if let Some(known) = self.known.get(identity) {
                    addrs.retain(|addr| !known.frames.contains_key(addr));
                }
            }
            if !addrs.is_empty() {
                new.push((*module, addrs));
            }
        }
        self.inner.expect(&new);
    }

    fn expect_packages(&mut self, files: &[PathBuf]) {
        let unknown = if self.asks_packages { self.packages.unknown(files) } else { Vec::new() };
        if !unknown.is_empty() {
            self.inner.expect_packages(&unknown);
        }
    }

    fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(self.warnings);
        warnings.extend(self.inner.take_warnings());
        warnings
    }
}

/// What a module is told by; None where only its file would tell whether it is the same, unless a trace has told its
/// names.
fn identity(module: &ModuleRecord, recorded: bool) -> Option<(ModuleId, Identity)> {
    module.build_id.as_ref().map(|_| ()).or(recorded.then_some(()))?;
    Some((module.id, (module.path.clone(), module.build_id.clone())))
}

/// What a profile is made for, and where names are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamingOptions<'a> {
    /// Whether a check will judge it.
    pub check: bool,
    /// Whether the process is traced on.
    pub snapshot: bool,
    /// Why the blocks of the functions with this in their names can still be reached.
    pub explain: Option<&'a str>,
    /// Why the block at this address can.
    pub block: Option<Addr>,
    /// Whether addresses get names at all.
    pub symbolize: bool,
    /// Folders of separate debug files, which come before /usr/lib/debug.
    pub debug_dirs: &'a [PathBuf],
    /// A folder below which the target's files are looked for instead of its root.
    pub sysroot: Option<&'a Path>,
    /// Who is asked for debug files that are not there.
    pub servers: Option<&'a Arc<dyn DebugServers>>,
    /// Whether source files may be read, for the types that they name.
    pub source: bool,
    /// Whether the process may have been another machine's: what it has left in /tmp is not looked for.
    pub elsewhere: bool,
    /// Whether nothing will show which packages would bring missing names: they are not looked for.
    pub packages_unseen: bool,
}

/// Gives a recording its names.
pub fn build_profile(recording: Recording, wanted: NamingOptions<'_>, known: &mut KnownNames) -> Profile {
    let session = recording.image_session();
    let doubtful_sizes = recording.doubtful_sizes();
    let process = recording.process;
    let root = root_folder(recording.root.as_deref());
    let map_name = format!("/tmp/perf-{}.map", process.pid_inside.unwrap_or(process.pid));
    let perf_map = PerfMap {
        path: below(&root, Path::new(&map_name)),
        owner: recording.facts.user,
        not_before: process.started_at.checked_sub(CLOCK_TICK).filter(|_| !recording.facts.attached),
    };
    let meta = Meta {
        mode: match wanted.check {
            true => Mode::Check,
            false => match (recording.facts.attached, wanted.snapshot) {
                (false, false) => Mode::Run,
                (true, false) => Mode::Attach,
                (false, true) => Mode::Snapshot,
                (true, true) => Mode::SnapshotOfAttached,
            },
        },
        part: FIRST,
        duration_ns: recording.facts.cost.wall_ns,
        engine: if recording.facts.cost.conditions.jump { "jump" } else { "trap" }.to_owned(),
        complete: recording.broken_off.is_none()
            && (!recording.facts.detached || recording.facts.attached || recording.facts.detached_early),
        session,
        sample_interval: recording.snapshot.sample_interval,
        process,
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
    let scripts = recording.scripts;
    let names = recording.thread_names;
    let thread_name = |serial: u32| names.get(&serial).cloned().unwrap_or_default();
    let function_name = |id| recording.table.name(id).to_owned();
    // of many profiles of a session each file is read once
    let mut lines = std::mem::take(&mut known.lines);
    let mut symbolizer: Box<dyn Symbolize> = if wanted.symbolize {
        let early = known.early.take().and_then(|early| early.of(&modules));
        let inner = early.unwrap_or_else(|| symbolizer(&modules, wanted, root.clone()));
        let inner = if wanted.elsewhere { inner } else { inner.with_perf_map(perf_map) };
        let KnownNames { modules: known, recorded, packages, asked_packages, warnings, patience, log, .. } = known;
        let packages = Packages { recorded: packages, asked: asked_packages, root: root.clone() };
        let inner: Box<dyn Symbolize> = match patience {
            None => Box::new(inner),
            Some(patience) => {
                let paths = modules.iter().map(|module| (module.id, module.path.clone())).collect();
                match Lookup::start(inner, paths, patience) {
                    Ok(lookup) => Box::new(lookup),
                    Err(inner) => inner,
                }
            }
        };
        let mut identities: FxHashMap<_, _> = modules.iter().filter_map(|module| identity(module, *recorded)).collect();
        let generated = (PathBuf::new(), None);
        if known.contains_key(&generated) {
            identities.insert(ModuleId::NONE, generated);
        }
        let asks_packages = !wanted.packages_unseen;
        let inner: Box<dyn Symbolize> =
            Box::new(Remembering { inner, known, packages, warnings, modules: identities, asks_packages });
        let inner: Box<dyn Symbolize> = Box::new(Scripted { inner, names: scripts });
        match log {
            None => inner,
            Some(log) => {
                let identity = |module: &ModuleRecord| (Some(module.path.clone()), module.build_id.clone());
                let modules = modules.iter().map(|module| (module.id, identity(module))).collect();
                Box::new(Logging { inner, log, modules })
            }
        }
    } else {
        Box::new(Scripted { inner: Box::new(NoSymbols), names: scripts })
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
        copied: scan.copied,
        explain: wanted.explain,
        block: wanted.block,
    });
    let tests =
        recording.tests.as_ref().map(|tests| TestInput { names: &tests.names, tally: &tests.tally, live: &tests.live });
    let mut course = recording.course;
    // Stacks of a program before the last exec mean nothing any more.
    course.heaps.retain(|heap| heap.images == recording.facts.images.len());
    let mut snapshot = recording.snapshot;
    let sites = std::mem::take(&mut snapshot.sites);
    let input = BuildInput {
        meta,
        anomalies: recording.anomalies,
        cost: recording.facts.cost,
        snapshot: &snapshot,
        sites,
        stacks: &recording.stacks,
        modules: loaded,
        allocators,
        thread_name: &thread_name,
        function_name: &function_name,
        images: recording.facts.images,
        children: recording.facts.children,
        warnings: recording.facts.warnings.into_iter().chain(doubtful_sizes).collect(),
        course,
        leaks,
        tests,
    };
    let unordered = build(input, symbolizer.as_mut());
    drop(recording.stacks);
    let mut profile = unordered.ordered();
    if wanted.symbolize && !wanted.packages_unseen {
        name_packages(&mut profile, symbolizer.as_mut());
    }
    // a path of another root folder means another file here
    let may_read = wanted.source && !wanted.elsewhere && root == Path::new("/") && wanted.sysroot.is_none();
    let users = Readers::of_process(&profile.meta.process.users, profile.meta.process.user_is_unknown);
    profile.find_object_types(&mut |module, file, line| may_read.then(|| lines.line(module, file, line, &users))?);
    drop(symbolizer);
    known.lines = lines;
    profile
}

const NO_TEST_RAN: &str = "heaptrace saw no test begin: none was chosen, or the tests run in other processes";

fn no_framework() -> String {
    format!(
        "heaptrace found no test framework in the program (it knows {KNOWN}, by their symbols, which `strip` removes): \
         with another framework, run each test in a process of its own, without --per-test"
    )
}

/// What a profile does not say of its recording, and a judge has to know.
pub fn circumstances(recording: &Recording) -> Completeness {
    let mut causes = recording.facts.blind_spots.clone();
    if let LeakScan::Missed(cause) = &recording.leaks {
        causes.push(cause.clone());
    }
    let no_tests = recording.tests.as_ref().and_then(|tests| {
        let has_run = !tests.tally.tests.is_empty();
        match (has_run, tests.has_framework) {
            (true, _) if tests.untold > 0 => {
                Some(format!("heaptrace could not report a test ({} times); the warnings say why", tests.untold))
            }
            (true, _) => None,
            (false, true) if tests.untold == 0 => Some(NO_TEST_RAN.to_owned()),
            (false, true) => Some("heaptrace could report no test; the warnings say why".to_owned()),
            (false, false) => Some(no_framework()),
        }
    });
    Completeness {
        no_tests,
        timed_out: recording.facts.timed_out,
        not_scanned: (!causes.is_empty()).then(|| causes.join("; ")),
        is_child: recording.facts.parent.is_some(),
        turned_off_by: turned_off_by(recording),
    }
}

/// The module by which a process has turned its own leak check off.
fn turned_off_by(recording: &Recording) -> Option<String> {
    let LeakScan::Done(scan) = &recording.leaks else { return None };
    scan.own_suppressions.iter().find(|own| own.turn_check_off()).map(|own| own.module.clone())
}

/// Looks up which packages would bring the names and lines that are missing.
fn name_packages(profile: &mut Profile, symbolizer: &mut dyn Symbolize) {
    let statuses: Vec<SymbolStatus> = profile.modules.iter().map(|module| module.symbols).collect();
    let lacking = lack_names(&statuses, &profile.locations, &profile.functions);
    let lacking = || lacking.iter().copied();
    let paths: Vec<PathBuf> = profile
        .modules
        .iter()
        .zip(lacking())
        .filter(|(_, lacks)| *lacks)
        .map(|(module, _)| module.path.clone())
        .collect();
    let mut packages = symbolizer.debug_packages(&paths).into_iter();
    for (module, _) in profile.modules.iter_mut().zip(lacking()).filter(|(_, lacks)| *lacks) {
        module.debug_package = packages.next().flatten();
    }
}

/// Where files of the process are looked for: in its root folder, where that is another one than ours.
fn root_folder(root: Option<&TargetRoot>) -> PathBuf {
    root.map_or_else(|| PathBuf::from("/"), TargetRoot::path)
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
            debug_package: None,
        },
        bias: module.bias,
    }
}

fn symbolizer(modules: &[ModuleRecord], wanted: NamingOptions<'_>, root: PathBuf) -> Symbolizer {
    let search = Search::new(wanted.debug_dirs, None, wanted.sysroot.map(Path::to_owned), root);
    let search = Search { servers: wanted.servers.cloned(), ..search };
    let mut symbolizer = Symbolizer::new(search);
    // of a library that was loaded a thousand times one file is open
    let opened: FxHashMap<_, _> =
        modules.iter().filter_map(|module| Some((module.version?, module.file.clone()?))).collect();
    for ModuleRecord { id, path, build_id, file, version, memory, .. } in modules {
        let file = file.clone().or_else(|| opened.get(version.as_ref()?).cloned());
        let (path, build_id) = (path.clone(), build_id.clone());
        symbolizer.add_module(*id, ModuleSource { path, build_id, file, version: *version, memory: memory.clone() });
    }
    symbolizer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is asked for packages.
    #[derive(Default)]
    struct Asked(std::rc::Rc<std::cell::RefCell<Vec<Vec<PathBuf>>>>);

    impl Symbolize for Asked {
        fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
            NoSymbols.resolve(module, addrs)
        }

        fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
            self.0.borrow_mut().push(files.to_vec());
            files.iter().map(|file| Some(format!("package of {}", file.display()))).collect()
        }
    }

    /// The lists of a system are read for files that nobody has asked for yet, and those of another root folder are
    /// others.
    #[test]
    fn packages_are_asked_for_once() {
        let (asked, mut warnings, mut asked_packages) = (Asked::default().0, Vec::new(), FxHashMap::default());
        let recorded = FxHashMap::from_iter([(PathBuf::from("/r"), Some("of the trace".to_owned()))]);
        let mut ask = |root: &str, files: &[&str]| {
            let mut known = FxHashMap::default();
            let mut remembering = Remembering {
                inner: Box::new(Asked(asked.clone())),
                known: &mut known,
                packages: Packages { recorded: &recorded, asked: &mut asked_packages, root: root.into() },
                warnings: &mut warnings,
                modules: FxHashMap::default(),
                asks_packages: true,
            };
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            remembering.debug_packages(&files).into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        assert_eq!(ask("/", &["/a", "/r"]), ["package of /a", "of the trace"]);
        assert_eq!(ask("/", &["/b", "/a"]), ["package of /b", "package of /a"]);
        assert_eq!(ask("/", &["/a", "/b", "/r"]).len(), 3);
        assert_eq!(ask("/proc/7/root", &["/a"]), ["package of /a"]);
        let questions: Vec<_> = asked.borrow().iter().flatten().map(|file| file.display().to_string()).collect();
        assert_eq!(questions, ["/a", "/b", "/a"]);
        assert_eq!(asked.borrow().len(), 3);
    }
}
