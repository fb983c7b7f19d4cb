//! What a session leaves behind when it has ended: everything that naming and writing need, and nothing of the process.

use super::leakscan::LeakScan;
use super::{Aftermath, BreakOff, Session};
use crate::addr::{Addr, FunctionId, LoadBias, ModuleId};
use crate::allocators::AllocatorTable;
use crate::elf::{Elf, SymbolKind};
use crate::heapmodel::Snapshot;
use crate::profile::{Amount, Anomalies, Children, Conditions, Cost, Exit, Totals};
use crate::symbols::{Bytes, FileVersion, ModuleMemory, Similar};
use crate::tracer::procfs;
use crate::tracer::root::TargetRoot;
use crate::unwinder::StackTable;
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// A module that was loaded at some time.
#[derive(Debug)]
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
    pub file: Option<File>,
    /// What it was then.
    pub version: Option<FileVersion>,
    /// The bytes in memory, where no file holds them: the vdso, a deleted library.
    pub memory: Option<ModuleMemory>,
    /// Whether it is the main program.
    pub is_program: bool,
    /// The allocator functions probed in it.
    pub probed: Vec<FunctionId>,
}

/// An image of the process that an exec replaced.
#[derive(Clone, Debug)]
pub struct EndedImage {
    /// Basename of its executable.
    pub program: String,
    /// Its totals at the exec.
    pub totals: Totals,
    /// What was live then, gone with the address space.
    pub gone_with_exec: Amount,
}

/// A finished session.
#[derive(Debug)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Recording {
    pub snapshot: Snapshot,
    pub stacks: StackTable,
    pub table: AllocatorTable,
    /// All modules of the last image, also those unloaded since.
    pub modules: Vec<ModuleRecord>,
    /// Names by [`crate::addr::TaskId::serial`].
    pub thread_names: HashMap<u32, String>,
    pub pid: i32,
    /// The id that the process has in its own pid namespace, if that is another one than ours.
    pub pid_inside: Option<i32>,
    /// Its root folder, if it is not ours.
    pub root: Option<Arc<TargetRoot>>,
    pub attached: bool,
    /// Whether the process was let go while it lived.
    pub detached: bool,
    /// Whether it was let go without having got all its code back.
    pub harmed: bool,
    pub program: String,
    pub command: Vec<String>,
    pub cwd: PathBuf,
    pub started_at: SystemTime,
    pub exit: Option<Exit>,
    pub cost: Cost,
    pub anomalies: Anomalies,
    pub children: Children,
    pub images: Vec<EndedImage>,
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

impl ModuleRecord {
    /// A second record of the same module, with a file of its own.
    fn duplicate(&self) -> Self {
        Self {
            path: self.path.clone(),
            build_id: self.build_id.clone(),
            file: self.file.as_ref().and_then(|file| file.try_clone().ok()),
            memory: self.memory.clone(),
            probed: self.probed.clone(),
            ..*self
        }
    }
}

impl Session {
    /// What the session has found out so far, while it goes on.
    pub(super) fn interim(&mut self) -> Recording {
        let snapshot = self.model.snapshot();
        let (stacks, modules) = self.space.records();
        let modules = modules.iter().map(ModuleRecord::duplicate).collect();
        let stacks = stacks.clone();
        self.cost.wall_ns = self.elapsed_ns();
        self.note_thread_names();
        self.record(snapshot, LeakScan::NotWanted, stacks, modules)
    }

    fn note_thread_names(&mut self) {
        for task in self.tasks.iter() {
            self.thread_names.entry(task.id.serial).or_insert_with(|| procfs::comm(task.id.tid));
        }
    }

    /// Ends the session: what it has found out, until it was broken off if it was.
    pub fn finish(mut self, broken_off: Option<BreakOff>) -> Recording {
        if broken_off.is_some() {
            self.detached = self.exit.is_none();
            self.cost.wall_ns = self.elapsed_ns();
        }
        self.note_thread_names();
        let mut leaks = match self.settings.leak_scan {
            Some(_) => std::mem::take(&mut self.leaks).into_scan(self.exit),
            None => LeakScan::NotWanted,
        };
        let snapshot = match &mut leaks {
            LeakScan::Done(scan) => std::mem::take(&mut scan.snapshot),
            LeakScan::NotWanted | LeakScan::Missed(_) => self.model.snapshot(),
        };
        let (stacks, modules) = self.space.take_records();
        let mut recording = self.record(snapshot, leaks, stacks, modules);
        if let Some(broken) = &broken_off {
            recording.warnings.push(format!("{broken}. What it did afterwards is not in here"));
        }
        recording.broken_off = broken_off;
        recording
    }

    fn record(&self, snapshot: Snapshot, leaks: LeakScan, stacks: StackTable, modules: Vec<ModuleRecord>) -> Recording {
        let (root, pid_inside) = self.space.whereabouts();
        let mut blind_spots = self.space.blind_spots();
        let mut anomalies = self.anomalies;
        let mut warnings = self.warnings.clone();
        anomalies.dropped_frames += self.calls.dropped_frames();
        anomalies.lost += snapshot.lost;
        anomalies.unknown_frees = snapshot.unknown_frees;
        anomalies.double_frees = snapshot.double_frees;
        anomalies.mismatched_frees = snapshot.mismatched_frees;
        if self.unknown_stops > 0 {
            warnings
                .push(format!("{} stops of a kind that heaptrace does not know were passed on", self.unknown_stops));
        }
        if !self.space.has_probes() && self.exit.is_none_or(|exit| exit != Exit::Signal(9)) {
            warnings.push(format!(
                "no allocator function was found in {} or its libraries, so nothing was recorded: a statically linked \
                 program needs its symbol table, in itself or in a debug file (--debug-dir). Or name its functions with \
                 --alloc-fn and --free-fn, as 'module+0xoffset' if there is no symbol",
                self.program
            ));
        }
        let unknown_functions = unknown_functions(&self.settings.table, &modules);
        warnings.extend(unknown_functions.iter().cloned());
        blind_spots.extend(unknown_functions.iter().cloned());
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
            table: self.settings.table.clone(),
            modules,
            thread_names: self.thread_names.clone(),
            pid: self.pid,
            pid_inside,
            root,
            attached: self.attached,
            detached: self.detached,
            harmed,
            program: self.program.clone(),
            command: self.command.clone(),
            cwd: self.cwd.clone(),
            started_at: self.started_at,
            exit: self.exit,
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
