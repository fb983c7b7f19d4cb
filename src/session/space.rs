//! One address space of the target: its memory, modules, breakpoints, pads, and the unwinder's view of it.

mod annotations;
mod aside;
mod callsite;
mod code;
mod companion;
mod data;
mod exec;
mod facts;
mod fork;
mod helper;
mod libc_frames;
mod named;
mod object;
mod original;

pub(super) use code::Placed;
pub use data::OwnSuppressions;
pub use facts::SharedObjects;
pub use named::Annotation;
pub use original::OriginalMemory;

use super::modulerecord::ModuleRecord;
use crate::addr::{Addr, FunctionId, LoadBias, ModuleId, ObjAddr, StackId};
use crate::allocators::select::{EntryPoint, ModuleSymbols};
use crate::allocators::{AllocatorTable, Family, Kind};
use crate::breakpoints::{BreakpointTable, Probe, Purpose};
use crate::leaks::roots::ModuleData;
use crate::maps::{self, MapIndex, MappedModule};
use crate::symbols::{FileVersion, Search};
use crate::tracer::code::TargetCode;
use crate::tracer::guardian::Guardian;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{RawRegs, Stopped};
use crate::tracer::root::TargetRoot;
use crate::tracer::{Result, TracerError, files, procfs};
use crate::unwinder::{Section, StackTable, UnwindModule, Unwinder};
use facts::{Facts, in_process};
use helper::Late;
use libc_frames::LibcFrames;
use object::Object;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Whether the program that `tid` runs is a 64-bit x86-64 one; true if that can't be told.
pub fn is_64_bit(tid: i32) -> bool {
    let mut header = [0u8; 20];
    let Ok(mut file) = std::fs::File::open(format!("/proc/{tid}/exe")) else { return true };
    if std::io::Read::read_exact(&mut file, &mut header).is_err() {
        return true;
    }
    // ELF header: class at 4 (2 = 64-bit), machine at 18 (62 = x86-64).
    header[4] == 2 && header[18] == 62
}

/// A module that is loaded now.
#[derive(Clone, Debug)]
struct Loaded {
    id: ModuleId,
    mapped: MappedModule,
    bias: LoadBias,
    symbols: ModuleSymbols,
    /// Whether it is the main program.
    is_program: bool,
    /// Where the program begins, if no dynamic linker runs before it.
    start: Option<Addr>,
    /// Functions of an allocator's inside, where the program holds its own allocator.
    internal_code: Vec<Range<Addr>>,
    /// The machinery of exceptions, where a library holds it and an allocator.
    exception_runtime: Vec<Range<Addr>>,
    /// What the leak scan looks through.
    data: ModuleData,
}

/// What is placed at an address once a thread stands at a breakpoint: its probe needs a pad, and there was no room for
/// one near the module.
#[derive(Clone, Copy, Debug)]
struct Deferred {
    addr: Addr,
    to_place: ToPlace,
}

impl Deferred {
    const fn is_entry_at(&self, addr: Addr) -> bool {
        self.addr.0 == addr.0 && matches!(self.to_place, ToPlace::Entry(_))
    }
}

#[derive(Clone, Copy, Debug)]
enum ToPlace {
    Entry(EntryProbe),
    /// A wrapper's probe, which tells what it was told.
    Told(FunctionId),
    Loader,
    SignalAction,
    Exec,
    /// libc's `_exit`.
    Exit,
    /// libc's `ptrace`.
    OwnTracer,
    /// A function by which the program tells of its memory.
    Annotation,
}

impl ToPlace {
    /// Whether allocator calls go unseen without it.
    const fn is_needed_to_see_all(self) -> bool {
        matches!(self, Self::Entry(_) | Self::Told(_) | Self::Loader)
    }
}

/// The probe on an allocator function.
#[derive(Clone, Copy, Debug)]
struct EntryProbe {
    function: FunctionId,
    module: ModuleId,
    size: u64,
    family: Option<Family>,
}

/// See the module's head.
#[derive(Debug)]
pub struct AddressSpace {
    pid: i32,
    /// The id that the process has in its own pid namespace, if that is another one.
    pid_inside: Option<i32>,
    /// The process's root folder, if it is not ours.
    root: Option<Arc<TargetRoot>>,
    /// The bytes.
    pub memory: TargetMemory,
    /// What of ours is written to the code.
    pub code: TargetCode,
    /// The breakpoints that are in it.
    pub breakpoints: BreakpointTable,
    /// Walks its stacks.
    pub unwinder: Unwinder,
    maps: MapIndex,
    loaded: Vec<Loaded>,
    records: Vec<ModuleRecord>,
    /// Modules that are gone and whose files are still open, the last one at the end.
    retired: VecDeque<ModuleId>,
    allocator_code: Vec<Range<Addr>>,
    loader_state: Option<Addr>,
    deferred: Vec<Deferred>,
    /// Whether all breakpoints wait until [`AddressSpace::place_held_back`].
    holds_back: bool,
    /// Return sites in modules that have a breakpoint only while a call is in progress.
    demoted: FxHashSet<Addr>,
    no_remote_calls: bool,
    mapped_pads: u64,
    /// Where the probed functions begin, and which family a call to them belongs to.
    entry_families: FxHashMap<Addr, Option<Family>>,
    /// Functions that only call a probed one: operator new and delete of libstdc++.
    wrappers: Vec<(Range<Addr>, Family)>,
    /// What the call in front of a return address was found to call.
    call_families: FxHashMap<Addr, Option<Family>>,
    /// Whether the call in front of a return address in the allocator leads out of it.
    outward_calls: FxHashMap<Addr, bool>,
    /// The families of allocations through wrappers, by stack.
    stack_families: FxHashMap<StackId, Option<Family>>,
    probing: Probing,
    warnings: Vec<String>,
    /// Where debug files are looked for.
    search: Option<Search>,
    /// What is known of files that other processes have loaded, too.
    objects: SharedObjects,
    /// Whether libc's `_exit` is watched.
    exit_watched: bool,
    libc_frames: LibcFrames,
    /// The entries of functions by which the program tells of its memory.
    annotations: FxHashMap<Addr, Annotation>,
    /// The entries of [`named::EXEC_CALLS`].
    exec_calls: FxHashMap<Addr, named::ExecCall>,
    /// Children that share the memory and are not ours, for whom it has no breakpoints at this moment.
    aside_for: BTreeSet<i32>,
    /// The programs' own functions that return suppressions for leaks, and the names of their modules.
    leak_suppressions: Vec<(Addr, String)>,
    /// Allocator functions, and other things of weight, that could not be watched: in words.
    blind_spots: Vec<String>,
    /// Unwind tables of debug files that are still being looked for.
    awaited_frames: Vec<(ModuleId, Late<Option<Section>>)>,
}

/// Which allocator functions have probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Probing {
    /// All.
    #[default]
    All,
    /// Those that end the life of a block, or move it.
    Ends,
    /// None.
    None,
}

impl Probing {
    fn wants(self, function: FunctionId, table: &AllocatorTable) -> bool {
        match self {
            Self::All => true,
            Self::Ends => table.get(function).is_some_and(|f| {
                matches!(f.kind, Kind::Free { .. } | Kind::Realloc { .. } | Kind::ResizeInPlace { .. })
            }),
            Self::None => false,
        }
    }
}

/// Marks the probe on sigaction(2).
pub const SIGACTION_TAG: u8 = 1;

/// Marks the probe on libc's `_exit`.
pub const EXIT_TAG: u8 = 2;

/// Marks the probe on a static program's first instruction.
const START_TAG: u8 = 4;

/// Marks the probe on ptrace(2).
pub const OWN_TRACER_TAG: u8 = 8;

/// Marks the probes on functions by which the program tells of its memory.
pub const ANNOTATION_TAG: u8 = 16;

/// Bytes of one remote mapping for pads: room for about 2000.
const PAD_MAPPING: u64 = 64 * 1024;

/// Offset of `r_state` in the dynamic linker's `struct r_debug` (<link.h>, 64-bit).
const R_STATE: u64 = 24;

impl AddressSpace {
    /// Opens the address space that the live task `tid` of process `pid` has now. Reads no maps yet.
    pub fn open(pid: i32, tid: i32, guardian: Option<&Guardian>, objects: &SharedObjects) -> Result<Self> {
        let memory = TargetMemory::open(pid, tid)?;
        let mut unwinder = Unwinder::default();
        if let Some(sp) = procfs::initial_stack(tid) {
            unwinder.set_initial_stack(sp);
        }
        Ok(Self {
            pid,
            pid_inside: procfs::pid_inside(pid),
            root: TargetRoot::of(tid).map(Arc::new),
            code: TargetCode::new(guardian.map(|guardian| guardian.guard(pid, &memory))),
            memory,
            breakpoints: BreakpointTable::default(),
            unwinder,
            maps: MapIndex::new(Vec::new()),
            loaded: Vec::new(),
            records: Vec::new(),
            retired: VecDeque::new(),
            allocator_code: Vec::new(),
            loader_state: None,
            deferred: Vec::new(),
            holds_back: false,
            demoted: FxHashSet::default(),
            no_remote_calls: false,
            mapped_pads: 0,
            entry_families: FxHashMap::default(),
            wrappers: Vec::new(),
            call_families: FxHashMap::default(),
            outward_calls: FxHashMap::default(),
            stack_families: FxHashMap::default(),
            probing: Probing::default(),
            warnings: Vec::new(),
            search: None,
            objects: objects.clone(),
            exit_watched: false,
            libc_frames: LibcFrames::default(),
            annotations: FxHashMap::default(),
            exec_calls: FxHashMap::default(),
            aside_for: BTreeSet::new(),
            leak_suppressions: Vec::new(),
            blind_spots: Vec::new(),
            awaited_frames: Vec::new(),
        })
    }

    /// Reads the maps again through the live task `tid`: drops what belonged to vanished modules, loads new ones and
    /// places their probes. Returns warnings for the user.
    pub fn refresh(&mut self, tid: i32, table: &AllocatorTable, search: &Search) -> Result<Vec<String>> {
        // it may have entered a container, or called chroot(2)
        self.root = TargetRoot::of(tid).map(Arc::new).or(self.root.take());
        let root = self.root.as_ref().map_or_else(|| PathBuf::from("/"), |root| root.path());
        self.search = Some(Search { root, ..search.clone() });
        self.read_maps(tid)?;
        let current = maps::modules(self.maps.mappings());
        self.drop_vanished(&current);
        for mapped in current {
            if !self.loaded.iter().any(|known| same_module(&known.mapped, &mapped)) {
                self.load(tid, mapped, table);
            }
        }
        self.place_probes(table)?;
        self.watch_start()?;
        Ok(std::mem::take(&mut self.warnings))
    }

    /// Warnings that have come up since the last [`AddressSpace::refresh`].
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn read_maps(&mut self, tid: i32) -> Result<()> {
        let text = procfs::read(tid, "maps")?;
        match maps::parse(&text) {
            Ok(mut mappings) => {
                for mapping in &mut mappings {
                    let inside = |path: &PathBuf| self.root.as_ref()?.inside(path);
                    if let Some(path) = mapping.path.as_ref().and_then(inside) {
                        mapping.path = Some(path);
                    }
                }
                self.maps = MapIndex::new(mappings);
            }
            Err(error) => self.note_blind_spot(format!("process {}: {error}", self.pid)),
        }
        Ok(())
    }

    fn drop_vanished(&mut self, current: &[MappedModule]) {
        let (kept, vanished): (Vec<_>, Vec<_>) = std::mem::take(&mut self.loaded)
            .into_iter()
            .partition(|known| current.iter().any(|mapped| same_module(&known.mapped, mapped)));
        self.loaded = kept;
        for module in vanished {
            self.retire_file(module.id);
            let range = module.mapped.start()..module.mapped.end();
            // Nothing is written: the memory is gone, or belongs to somebody else by now.
            self.code.forget(&range);
            self.breakpoints.forget(&range);
            self.unwinder.remove_module(module.id);
            self.call_families.retain(|addr, _| !range.contains(addr));
            self.outward_calls.retain(|addr, _| !range.contains(addr));
            self.entry_families.retain(|addr, _| !range.contains(addr));
            self.wrappers.retain(|(wrapper, _)| !range.contains(&wrapper.start));
            self.allocator_code.retain(|code| !range.contains(&code.start));
            self.deferred.retain(|probe| !range.contains(&probe.addr));
            self.demoted.retain(|site| !range.contains(site));
            self.exec_calls.retain(|entry, _| !range.contains(entry));
            self.leak_suppressions.retain(|(function, _)| !range.contains(function));
            self.libc_frames.remove(&range);
            self.annotations.retain(|function, _| !range.contains(function));
        }
    }

    fn load(&mut self, tid: i32, mapped: MappedModule, table: &AllocatorTable) {
        let id = ModuleId(u32::try_from(self.records.len()).unwrap_or(u32::MAX));
        let code = mapped.code();
        if code.is_empty() {
            return;
        }
        let is_program = files::is_program(tid, self.root.as_deref(), &mapped);
        let Some(Object { facts, bias, file, memory }) = self.object(tid, &mapped, is_program, table) else { return };
        self.unwinder.add_module(UnwindModule { id, code: code.clone(), bias, ..facts.unwind.clone() });
        for slack in &facts.slack {
            self.add_slack(bias.to_process(slack.addr), slack.size, id);
        }
        let first = code.first().cloned().unwrap_or_default();
        self.records.push(ModuleRecord {
            id,
            path: mapped.path.clone(),
            build_id: facts.build_id.clone(),
            start: first.start,
            end: code.last().map_or(first.end, |last| last.end),
            file_offset: mapped.segments.iter().find(|s| s.start == first.start).map_or(0, |s| s.offset),
            bias,
            version: file.as_deref().and_then(FileVersion::of),
            file,
            memory,
            is_program,
            probed: Vec::new(),
        });
        if let Err(error) = self.watch_libc(&facts, bias) {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.watch_loader(&facts, bias) {
            self.note_blind_spot(format!("libraries that are loaded later will not be seen: {error}"));
        }
        if self.exit_watched {
            self.note_leak_suppressions(&facts, bias, &mapped.path);
            if let Err(error) = self.watch_libc_exit(&facts, bias) {
                tracing::debug!("{error}");
            }
        }
        if let Err(error) = self.watch_annotations(&facts, bias) {
            tracing::debug!("{error}");
        }
        let data = facts.module_data(id, bias);
        let here = |ranges: &[Range<ObjAddr>]| ranges.iter().map(|range| in_process(range, bias)).collect();
        let (internal_code, exception_runtime) =
            (here(&facts.named.internal_code), here(&facts.named.exception_runtime));
        let start = facts.static_entry.map(|entry| bias.to_process(entry));
        let symbols = ModuleSymbols {
            module: id,
            file_name: mapped.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            soname: facts.soname.clone(),
            symbols: facts.named.allocator.clone(),
        };
        self.loaded.push(Loaded {
            id,
            mapped,
            bias,
            symbols,
            is_program,
            start,
            internal_code,
            exception_runtime,
            data,
        });
    }
}

impl AddressSpace {
    /// Which functions get probes from now on: places what is missing, takes away what is too much.
    pub fn set_probing(&mut self, probing: Probing, table: &AllocatorTable) -> Result<()> {
        self.probing = probing;
        let unwanted: Vec<Addr> = self
            .breakpoints
            .iter()
            .filter(|(_, breakpoint)| {
                breakpoint.purposes.entry.is_some_and(|probe| !probing.wants(probe.function, table))
            })
            .map(|(addr, _)| addr)
            .collect();
        for addr in unwanted {
            self.take_away(addr, |purposes| purposes.entry.map(Purpose::Entry))?;
        }
        self.place_probes(table)
    }

    /// Places the probes of all modules that have none yet.
    fn place_probes(&mut self, table: &AllocatorTable) -> Result<()> {
        let symbols: Vec<_> = self.loaded.iter().map(|module| module.symbols.clone()).collect();
        let providers = table.select_providers(&symbols);
        for wrapper in providers.wrappers {
            let Some((start, _)) = self.process_address(&wrapper) else { continue };
            let range = start..start.add(wrapper.size.max(1));
            if let Some(family) = wrapper.family
                && !self.wrappers.iter().any(|(known, _)| *known == range)
            {
                self.wrappers.push((range, family));
            }
        }
        for probe in providers.told {
            let Some((addr, _)) = self.process_address(&probe) else { continue };
            let is_waiting =
                self.deferred.iter().any(|other| other.addr == addr && matches!(other.to_place, ToPlace::Told(_)));
            let is_placed = self.breakpoints.get(addr).is_some_and(|breakpoint| breakpoint.purposes.entry.is_some());
            if !is_waiting && !is_placed && self.probing.wants(probe.function, table) {
                self.place_or_defer(Deferred { addr, to_place: ToPlace::Told(probe.function) }, None)?;
            }
        }
        for probe in providers.probes {
            let Some((addr, id)) = self.process_address(&probe) else { continue };
            let is_placed = self.breakpoints.get(addr).is_some_and(|b| b.purposes.entry.is_some());
            if is_placed {
                self.entry_families.insert(addr, probe.family);
                continue;
            }
            if self.deferred.iter().any(|other| other.is_entry_at(addr)) {
                continue;
            }
            let entry = EntryProbe { function: probe.function, module: id, size: probe.size, family: probe.family };
            if self.probing.wants(probe.function, table) {
                self.place_or_defer(Deferred { addr, to_place: ToPlace::Entry(entry) }, None)?;
            } else {
                // It can be placed when collecting goes on.
                self.note_placed(addr, entry);
            }
        }
        Ok(())
    }

    /// A probe stands: only now its function counts as probed.
    fn note_placed(&mut self, addr: Addr, entry: EntryProbe) {
        self.entry_families.insert(addr, entry.family);
        self.note_allocator_code(entry.module, addr, entry.size);
        if let Some(record) = self.records.get_mut(entry.module.0 as usize)
            && !record.probed.contains(&entry.function)
        {
            record.probed.push(entry.function);
        }
    }

    /// An address as it is the same in each process: `module+0xoffset`.
    pub(super) fn place_in_module(&self, addr: Addr) -> String {
        let is_here = |module: &&Loaded| module.mapped.code().iter().any(|code| code.contains(&addr));
        let Some(module) = self.loaded.iter().find(is_here) else { return addr.to_string() };
        let name = module.mapped.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name}+{:#x}", module.bias.to_object(addr).0)
    }

    fn process_address(&self, probe: &EntryPoint) -> Option<(Addr, ModuleId)> {
        let module = self.loaded.iter().find(|module| module.id == probe.module)?;
        Some((module.bias.to_process(probe.addr), module.id))
    }

    fn place_or_defer(&mut self, probe: Deferred, helper: code::Helper<'_>) -> Result<()> {
        if self.holds_back {
            self.deferred.push(probe);
            return Ok(());
        }
        let purpose = match probe.to_place {
            ToPlace::Entry(entry) => Purpose::Entry(Probe::trap(entry.function)),
            ToPlace::Told(function) => Purpose::Entry(Probe::trap(function)),
            ToPlace::Loader => Purpose::Loader,
            ToPlace::SignalAction => Purpose::Tag(SIGACTION_TAG),
            ToPlace::Exec => Purpose::Exec,
            ToPlace::Exit => Purpose::Tag(EXIT_TAG),
            ToPlace::OwnTracer => Purpose::Tag(OWN_TRACER_TAG),
            ToPlace::Annotation => Purpose::Tag(ANNOTATION_TAG),
        };
        let placed = match self.place(probe.addr, purpose, helper) {
            Err(TracerError::Write { .. }) if self.memory.is_refused() => Placed::NoRoom,
            Err(error @ TracerError::Overtaken { .. }) => {
                self.deferred.push(probe);
                return Err(error);
            }
            placed => placed?,
        };
        match placed {
            Placed::Done(()) => {
                if let ToPlace::Entry(entry) = probe.to_place {
                    self.note_placed(probe.addr, entry);
                }
            }
            Placed::NoRoom => self.deferred.push(probe),
            Placed::Impossible => {
                let place = self.place_in_module(probe.addr);
                let missed = format!("no probe could be placed at {place}: calls of that function are missed");
                if probe.to_place.is_needed_to_see_all() {
                    self.note_blind_spot(missed)
                } else {
                    self.warnings.push(missed)
                }
            }
        }
        Ok(())
    }

    /// Places what had to wait for a thread at a breakpoint.
    pub fn place_deferred(&mut self, thread: &Stopped, raw: &RawRegs) -> Result<()> {
        while let Some(probe) = self.deferred.pop() {
            self.place_or_defer(probe, Some((thread, raw)))?;
        }
        Ok(())
    }

    /// Places what had to wait for a thread that stands still, wherever it does.
    pub fn place_refused(&mut self) -> Result<()> {
        for probe in std::mem::take(&mut self.deferred) {
            self.place_or_defer(probe, None)?;
        }
        Ok(())
    }

    /// From now on breakpoints are only noted.
    pub const fn hold_back(&mut self) {
        self.holds_back = true;
    }

    /// Places what was held back, if anything was.
    pub fn place_held_back(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.holds_back) {
            return Ok(());
        }
        self.place_refused()?;
        self.watch_start()
    }

    /// Whether probes wait for a thread at a breakpoint.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Probes that wait for a thread at a breakpoint may be the very first ones of a static program. Its first instruction
    /// is one that needs no pad (`endbr64`, `xor %ebp, %ebp`).
    fn watch_start(&mut self) -> Result<()> {
        let start =
            self.loaded.iter().find_map(|module| module.start).filter(|_| self.has_deferred() && !self.holds_back);
        if let Some(start) = start {
            self.place(start, Purpose::Tag(START_TAG), None)?;
        }
        Ok(())
    }

    /// If the module is the dynamic linker: watches the function that it calls before and after each change of its list.
    fn watch_loader(&mut self, facts: &Facts, bias: LoadBias) -> Result<()> {
        let Some((notify, state)) = facts.loader else { return Ok(()) };
        self.loader_state = Some(bias.to_process(state).add(R_STATE));
        self.place_or_defer(Deferred { addr: bias.to_process(notify), to_place: ToPlace::Loader }, None)?;
        Ok(())
    }

    /// Whether the dynamic linker's list is complete (RT_CONSISTENT), rather than about to change.
    pub fn loader_is_consistent(&mut self) -> bool {
        let mut state = [0; 4];
        self.loader_state.is_none_or(|at| self.memory.read_uncached(at, &mut state) < 4 || state == [0; 4])
    }

    /// The module whose code `addr` lies in.
    pub fn module_at(&self, addr: Addr) -> ModuleId {
        self.unwinder.module_of(addr).unwrap_or(ModuleId::NONE)
    }

    /// Whether two stack pointers of task `tid` lie in one mapping.
    pub fn same_mapping(&mut self, a: Addr, b: Addr, tid: i32) -> bool {
        // A stack may be newer than the maps, or have grown since.
        if self.maps.find(a).is_none() || self.maps.find(b).is_none() {
            let _ = self.read_maps(tid);
        }
        self.maps.find(a).is_some_and(|mapping| mapping.contains(b))
    }

    /// Whether any allocator function has a probe.
    pub fn has_probes(&self) -> bool {
        !self.entry_families.is_empty()
    }

    /// What is left of the address space when it is gone: the stacks, and all modules that they may refer to.
    pub fn take_records(&mut self) -> (StackTable, Vec<ModuleRecord>) {
        (std::mem::take(&mut self.unwinder).into_stacks(), std::mem::take(&mut self.records))
    }

    /// The process's root folder, if it is not ours, and the id that it has in its own pid namespace, if it has one.
    pub fn root_and_inner_pid(&self) -> (Option<Arc<TargetRoot>>, Option<i32>) {
        (self.root.clone(), self.pid_inside)
    }

    /// The stacks so far, and all modules that they may refer to.
    pub fn records(&self) -> (&StackTable, &[ModuleRecord]) {
        (self.unwinder.stacks(), &self.records)
    }
}

impl Drop for AddressSpace {
    /// The last resort, for a panic: no breakpoint outlives its table. (In a process that has ended nothing is written.)
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Err(error) = self.restore()
        {
            tracing::warn!("{error}");
        }
    }
}

/// Whether two snapshots of the maps show the same load of the same file.
fn same_module(a: &MappedModule, b: &MappedModule) -> bool {
    // Not by the path: a file that is renamed stays mapped.
    a.start() == b.start() && a.inode == b.inode && a.dev == b.dev
}
