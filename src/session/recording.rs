//! What a session leaves behind when it has ended: everything that naming and writing need, and nothing of the process.

use super::leakscan::LeakScan;
use super::process::Process;
use super::shelf::{Shelf, Shelved};
use super::{Aftermath, BreakOff};
use crate::addr::{Addr, FunctionId, LoadBias, ModuleId, StackId};
use crate::allocators::AllocatorTable;
use crate::elf::{Elf, SymbolKind};
use crate::heapmodel::{SiteStats, Snapshot};
use crate::profile::merge::Origin;
use crate::profile::{Amount, Anomalies, Children, Conditions, Cost, Exit, Image, ProcessInfo, Resident};
use crate::symbols::{Bytes, FileVersion, ModuleMemory, Similar};
use crate::tracer::procfs;
use crate::tracer::root::TargetRoot;
use crate::unwinder::StackTable;
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// A module that was loaded at some time.
#[derive(Clone, Debug)]
pub struct ModuleRecord {
    /// Identity: stacks refer to it.
    pub id: ModuleId,
    /// The path as the target sees it, or `[vdso]`.
    pub path: PathBuf,
    /// Whether the file had been deleted or replaced when it was read.
    pub deleted: bool,
    /// The build id, lower-case hex.
    pub build_id: Option<String>,
    /// First process address of the executable segment.
    pub start: Addr,
    /// One past its last process address.
    pub end: Addr,
    /// File offset that `start` maps.
    pub file_offset: u64,
    /// From object to process addresses.
    pub bias: LoadBias,
    /// The file, opened while it was certain to be the one that is mapped.
    pub file: Option<Arc<File>>,
    /// What it was then.
    pub version: Option<FileVersion>,
    /// The bytes in memory, where no file holds them: the vdso, a deleted library.
    pub memory: Option<ModuleMemory>,
    /// Whether it is the main program.
    pub is_program: bool,
    /// The allocator functions probed in it.
    pub probed: Vec<FunctionId>,
}

/// What was found out of all processes of a session.
#[derive(Debug)]
pub struct Traced {
    /// The one that tracing began with.
    pub first: Recording,
    /// Those that were followed, in the order in which they came to be.
    pub others: Vec<Shelved>,
    /// Where those lie.
    pub shelf: Shelf,
}

impl Traced {
    /// All of them; of the others, see [`Shelved::rest`].
    pub fn all(&self) -> impl Iterator<Item = &Recording> {
        std::iter::once(&self.first).chain(self.others.iter().map(Shelved::rest))
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Recording> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(Shelved::rest_mut))
    }

    /// The functions that the user has declared and no program has, in words: taken out of the recordings.
    pub fn take_unknown_functions(&mut self) -> Vec<String> {
        let symbol = |unknown: &str| unknown.split(':').next().unwrap_or_default().to_owned();
        let mut unknown = std::mem::take(&mut self.first.unknown_functions);
        if !self.first.selected {
            unknown = self
                .others
                .iter()
                .map(Shelved::rest)
                .find(|other| other.selected)
                .map_or(unknown, |other| other.unknown_functions.clone());
        }
        for other in self.others.iter().map(Shelved::rest).filter(|other| other.selected) {
            unknown.retain(|mine| other.unknown_functions.iter().any(|theirs| symbol(theirs) == symbol(mine)));
        }
        if !self.others.is_empty() {
            self.first.warnings.extend(unknown.iter().cloned());
        }
        unknown
    }

    /// Whether the tracing ended as it should, and harmed nobody.
    pub fn went_well(&self) -> bool {
        !self.has_harmed() && self.first.broken_off.is_none()
    }

    /// Whether a process was let go without having got all its code back.
    pub fn has_harmed(&self) -> bool {
        self.all().any(|recording| recording.harmed)
    }
}

/// What was found out of one process.
#[derive(Debug)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Recording {
    pub snapshot: Snapshot,
    pub stacks: StackTable,
    pub table: Arc<AllocatorTable>,
    /// All modules of the last image, also those unloaded since.
    pub modules: Vec<ModuleRecord>,
    /// Names by [`crate::addr::TaskId::serial`].
    pub thread_names: HashMap<u32, String>,
    pub process: ProcessInfo,
    /// What it shares with the others of a session.
    pub origin: Origin,
    /// The process that made it, where others are followed; None for the first.
    pub parent: Option<i32>,
    /// Its place in the order in which the processes came to be.
    pub number: u64,
    /// Whether the last image was one of those to be traced (`--only`, `--skip`).
    pub selected: bool,
    /// Whether it was let go before it became a program with other rights, or was traced by another process.
    pub let_go: bool,
    /// Its root folder, if it is not ours.
    pub root: Option<Arc<TargetRoot>>,
    pub attached: bool,
    /// Whether the process was let go while it lived.
    pub detached: bool,
    /// Whether it was let go without having got all its code back.
    pub harmed: bool,
    /// Its effective user, if that is known.
    pub user: Option<u32>,
    pub cost: Cost,
    pub anomalies: Anomalies,
    pub children: Children,
    pub images: Vec<Image>,
    pub warnings: Vec<String>,
    /// The leak scan. If one was made, `snapshot` is of its moment.
    pub leaks: LeakScan,
    /// What could not be watched, in words: reasons not to judge the program.
    pub blind_spots: Vec<String>,
    /// Functions that the user has declared and no module has, in words.
    pub unknown_functions: Vec<String>,
    /// Whether the program's time was up (`--timeout`).
    pub timed_out: bool,
    /// Why, if the tracing ended in the middle.
    pub broken_off: Option<BreakOff>,
    /// Whether Ctrl-C was pressed while it was traced.
    pub interrupted: bool,
    /// Whether a signal to heaptrace asked for the end of the tracing.
    pub dismissed: bool,
}

impl Recording {
    /// The stacks that something refers to.
    pub(super) fn stack_ids(&mut self) -> impl Iterator<Item = &mut StackId> {
        let Snapshot { sites, errors, .. } = &mut self.snapshot;
        let scanned = match &mut self.leaks {
            LeakScan::Done(scan) => Some(&mut scan.sites),
            LeakScan::NotWanted | LeakScan::Missed(_) => None,
        };
        let of_errors = errors.iter_mut().flat_map(|error| {
            [Some(&mut error.stack), error.alloc_stack.as_mut(), error.free_stack.as_mut()].into_iter().flatten()
        });
        let of_scan = scanned.into_iter().flat_map(|sites| sites.values_mut()).map(|key| &mut key.stack);
        sites.iter_mut().map(|site| &mut site.key.stack).chain(of_errors).chain(of_scan)
    }
}

impl Process {
    /// What was found out so far, while the process goes on.
    pub(super) fn interim(&mut self) -> Recording {
        let snapshot = self.model.snapshot();
        let (stacks, modules) = self.space.records();
        let modules = modules.to_vec();
        let stacks = stacks.clone();
        self.note_cpu_time();
        self.cost.wall_ns = self.lived_ns();
        self.note_thread_names();
        self.note_peak_resident(self.pid);
        self.record(snapshot, LeakScan::NotWanted, stacks, modules)
    }

    /// Looks once more at what a process can change: the names of its threads, and its user.
    pub(super) fn note_thread_names(&mut self) {
        self.owner.note(self.pid);
        for task in self.tasks.iter() {
            self.thread_names.entry(task.id.serial).or_insert_with(|| procfs::comm(task.id.tid));
        }
    }

    /// What was found out, at the end, or until the tracing was broken off if it was.
    pub(super) fn finish(mut self, broken_off: Option<&BreakOff>) -> Recording {
        if self.exit.is_none() {
            self.note_cpu_time();
        }
        if broken_off.is_some() {
            self.detached = self.exit.is_none();
            self.note_peak_resident(self.pid);
            self.cost.wall_ns = self.lived_ns();
        }
        self.note_thread_names();
        self.warnings.extend(self.space.take_warnings());
        let mut leaks = match self.settings.leak_scan {
            Some(_) => std::mem::take(&mut self.leaks).into_scan(self.exit),
            None => LeakScan::NotWanted,
        };
        let snapshot = match &mut leaks {
            LeakScan::Done(scan) => std::mem::take(&mut scan.snapshot),
            LeakScan::NotWanted | LeakScan::Missed(_) => self.model.snapshot(),
        };
        let mut snapshot = snapshot;
        // What was inherited and is gone says nothing.
        snapshot.sites.retain(|site| !site.inherited || site.live.objects > 0 || site.at_peak.objects > 0);
        let (stacks, modules) = self.space.take_records();
        let mut recording = self.record(snapshot, leaks, stacks, modules);
        if self.settings.follow {
            // In the profile of all they are another process's. (Ways to a leak may lead over them.)
            if !self.settings.profile_each && self.settings.leak_scan.is_none() {
                recording.snapshot.sites.retain(|site| !site.inherited);
            }
        }
        if let Some(broken) = broken_off {
            recording.warnings.push(format!("{broken}. What it did afterwards is not in here"));
        }
        recording.broken_off = broken_off.cloned();
        recording
    }

    fn record(&self, snapshot: Snapshot, leaks: LeakScan, stacks: StackTable, modules: Vec<ModuleRecord>) -> Recording {
        let (root, pid_inside) = self.space.whereabouts();
        let mut blind_spots = self.space.blind_spots();
        let inherited = |amount: fn(&SiteStats) -> Amount| {
            let sites = snapshot.sites.iter().filter(|site| site.inherited);
            sites.map(amount).fold(Amount::default(), Amount::plus)
        };
        let origin = Origin {
            start_ns: u64::try_from(self.born.duration_since(self.began).as_nanos()).unwrap_or(u64::MAX),
            inherited_bytes: self.inherited_bytes,
            inherited: inherited(|site| site.live),
            inherited_at_peak: inherited(|site| site.at_peak),
        };
        let mut anomalies = self.anomalies;
        let mut warnings = self.warnings.clone();
        anomalies.dropped_frames += self.calls.dropped_frames();
        anomalies.lost += snapshot.lost;
        anomalies.unknown_frees = snapshot.unknown_frees;
        anomalies.double_frees = snapshot.double_frees;
        anomalies.mismatched_frees = snapshot.mismatched_frees;
        let doubtful = snapshot.unknown_frees + snapshot.double_frees;
        if snapshot.frees_unseen && doubtful > 0 {
            warnings.push(format!(
                "{doubtful} frees of what was not live are not told as errors, as this allocator has ways in and out that are not \
                 seen: {} times it gave an address out anew whose block nobody was seen to free (--alloc-fn and --free-fn can \
                 name such functions)",
                snapshot.lost
            ));
        }
        if self.unknown_stops > 0 {
            warnings
                .push(format!("{} stops of a kind that heaptrace does not know were passed on", self.unknown_stops));
        }
        if self.selected && !self.space.has_probes() && self.exit.is_none_or(|exit| exit != Exit::Signal(9)) {
            warnings.push(format!(
                "no allocator function was found in {} or its libraries, so nothing was recorded: a statically linked \
                 program needs its symbol table, in itself or in a debug file (--debug-dir). Or name its functions with \
                 --alloc-fn and --free-fn, as 'module+0xoffset' if there is no symbol",
                self.program
            ));
        }
        let unknown_functions =
            if self.selected { unknown_functions(&self.settings.table, &modules) } else { Vec::new() };
        // Of several programs, one may have what another has not.
        if !self.settings.follow {
            warnings.extend(unknown_functions.iter().cloned());
            blind_spots.extend(unknown_functions.iter().cloned());
        }
        let paused = self.pause.total();
        if !paused.is_zero() {
            warnings.push(format!(
                "collecting paused for {:.2} s in all: what was allocated then is not in here",
                paused.as_secs_f64()
            ));
        }
        if self.detached && self.space.mapped_pad_bytes() > 0 {
            warnings.push(format!(
                "{} KiB of empty executable memory stay behind in the process: unmapping them safely is not possible",
                self.space.mapped_pad_bytes() / 1024
            ));
        }
        let aftermath = self.aftermath();
        let harmed = matches!(aftermath, Aftermath::Damaged { .. } | Aftermath::Killed { .. });
        if harmed {
            warnings.push(aftermath.to_string());
        }
        Recording {
            snapshot,
            stacks,
            table: Arc::clone(&self.settings.table),
            modules,
            thread_names: self.thread_names.clone(),
            process: ProcessInfo {
                pid: self.pid,
                pid_inside,
                program: self.program.clone(),
                command: self.command.clone(),
                cwd: self.cwd.clone(),
                started_at: self.started_at,
                of_another_user: self.owner.is_another,
                exit: self.exit,
                resident: self
                    .peak_resident
                    .map(|peak_bytes| Resident { peak_bytes, all_blocks_known: !self.model.may_have_unknown_blocks() }),
            },
            origin,
            parent: self.parent,
            number: self.number,
            selected: self.selected,
            let_go: self.let_go,
            root,
            attached: self.attached,
            detached: self.detached,
            harmed,
            user: self.owner.user,
            cost: Cost {
                conditions: Conditions {
                    threads: self.tasks.threads_ever(),
                    pinned: self.settings.pin,
                    free_stacks: self.settings.free_stacks,
                },
                ..self.cost
            },
            anomalies,
            children: self.children.clone(),
            images: self.images.clone(),
            warnings,
            leaks,
            blind_spots,
            unknown_functions,
            timed_out: self.control.has_timed_out(),
            broken_off: None,
            interrupted: false,
            dismissed: false,
        }
    }
}

/// What was declared with --alloc-fn and --free-fn and is in none of the modules, with what may have been meant.
fn unknown_functions(table: &AllocatorTable, modules: &[ModuleRecord]) -> Vec<String> {
    let is_probed = |id| modules.iter().any(|module| module.probed.contains(&id));
    let mut unknown = Vec::new();
    for (_, function) in table.iter().filter(|(id, _)| table.is_declared(*id) && !is_probed(*id)) {
        let wanted = &function.symbol;
        if !table.declared_symbols().any(|symbol| symbol == wanted) {
            unknown
                .push(format!("{wanted}: no such module was loaded, or it has no code there (--alloc-fn, --free-fn)"));
            continue;
        }
        let mut similar = Similar::to(wanted);
        let mut defined = None;
        for file in modules.iter().filter_map(|module| module.file.as_ref()) {
            let Ok(bytes) = Bytes::of_file(file) else { continue };
            let Ok(elf) = Elf::parse(&bytes) else { continue };
            defined = defined.or_else(|| elf.find_symbol(wanted).map(|symbol| symbol.kind));
            similar.look_through(&elf);
        }
        let similar = similar.into_names();
        match defined {
            // Another name of a function that has a probe.
            Some(SymbolKind::Function) => {}
            Some(_) => unknown.push(format!(
                "{wanted}: this symbol is no function whose place is known, so its calls were not seen (--alloc-fn, --free-fn)"
            )),
            None if similar.is_empty() => {
                unknown.push(format!("{wanted}: no module defines this function (--alloc-fn, --free-fn)"));
            }
            None => unknown.push(format!(
                "{wanted}: no module defines this function (--alloc-fn, --free-fn); similar: {}",
                similar.join(", ")
            )),
        }
    }
    unknown
}
