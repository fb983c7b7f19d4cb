//! One address space of the target: its memory, modules, breakpoints, and the unwinder's view of it.
//!
//! | what | where |
//! |---|---|
//! | opening it, reading the maps, loading modules | here |
//! | what is known of each module; what goes when it is unloaded | `modules.rs` |
//! | which functions have probes, which probes wait and for what | `probes.rs` |
//! | whether a breakpoint can be placed, its pad, room for pads, lifting | `breakpoints.rs`; the writing itself: `tracer/code.rs` |
//! | breakpoints out of the way of another tracer | `aside.rs` |
//! | entries of functions that jump to the jump engine's stubs | `jumps.rs`; what leads into the midst of them: `inroads.rs` |
//! | functions that branch back to their own first instruction | `rounds.rs` |
//! | both, looked up while the process runs | `ahead.rs` |
//! | the copy in a forked child | `fork.rs` |
//! | memory without what is ours in it | `original.rs` |
//! | a module's file: found, verified, or read from memory | `object.rs` |
//! | what is needed of such a file; files that several processes have | `facts.rs`, by symbol `named.rs` |
//! | debug files, and the threads that read them | `companion.rs`, `helper.rs` |
//! | which function a call calls: operator new or malloc | `callsite.rs` |
//! | what is called by an allocator function's name, resolvers of IFUNCs | `slots.rs` |
//! | the functions of a Python interpreter | `python.rs` |
//! | what is watched in the C library: sigaction, exec, ptrace | `watched_libc.rs`; for the leak scan `data.rs`, `libc_frames.rs`, `annotations.rs` |

mod ahead;
mod annotations;
mod aside;
mod breakpoints;
mod callsite;
mod companion;
mod data;
mod facts;
mod findings;
mod fork;
mod guards;
mod helper;
mod inroads;
mod jumps;
mod libc_frames;
mod modules;
mod named;
mod object;
mod original;
mod probes;
mod python;
mod rounds;
mod slots;
mod testhooks;
mod watched_libc;

pub(super) use breakpoints::{Helper, Placed};
pub use data::OwnSuppressions;
pub use facts::SharedObjects;
pub use jumps::{Candidate, LeftRegion, tells_jemalloc_to_profile};
pub use named::Annotation;
pub use original::OriginalMemory;
pub use probes::{
    ANNOTATION_TAG, EXIT_TAG, GUARD_TAG, LOCKS_TAG, OWN_TRACER_TAG, Probing, RESOLVER_TAG, SIGACTION_TAG, TEST_TAG,
};

use super::modulerecord::ModuleRecord;
use crate::allocators::{AllocatorTable, Family};
use crate::base::addr::{Addr, ModuleId, StackId};
use crate::breakpoints::BreakpointTable;
use crate::image::maps::{self, MapIndex, MappedModule};
use crate::symbols::{FileVersion, Search};
use crate::tracer::code::TargetCode;
use crate::tracer::code::write::Threads;
use crate::tracer::guardian::Guardian;
use crate::tracer::memory::TargetMemory;
use crate::tracer::root::TargetRoot;
use crate::tracer::{Result, files, ids, procfs};
use crate::unwinder::{Section, StackTable, UnwindModule, Unwinder};
use ahead::Ways;
use breakpoints::PadMappings;
use findings::Findings;
use helper::Pending;
use inroads::FileInroads;
use modules::{Module, Modules};
use object::Object;
use probes::Deferred;
use python::Python;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Whether the program that `tid` runs is a 64-bit x86-64 one; true if that is not known.
pub fn is_64_bit(tid: i32) -> bool {
    let mut header = [0u8; 20];
    let Ok(mut file) = std::fs::File::open(format!("/proc/{tid}/exe")) else { return true };
    if std::io::Read::read_exact(&mut file, &mut header).is_err() {
        return true;
    }
    // ELF header: class at 4 (2 = 64-bit), machine at 18 (62 = x86-64).
    header[4] == 2 && header[18] == 62
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
    /// What was mapped when it was last looked.
    pub maps: MapIndex,
    modules: Modules,
    /// What leads into the functions of a module that were to be patched last.
    inroads: FxHashMap<ModuleId, FileInroads>,
    /// What the code of functions says that may be patched, by their entries.
    ways: FxHashMap<Addr, Ways>,
    /// Whether that is to be looked up before the next probes are placed.
    looks_ahead: bool,
    /// What waits to be placed.
    deferred: Vec<Deferred>,
    /// Whether all breakpoints wait until [`AddressSpace::place_held_back`].
    holds_back: bool,
    probing: Probing,
    /// Whether the jump engine sees the allocator's calls: a return is watched for one call only.
    is_jumped: bool,
    /// Whether the functions of unwinders that look at stacks are watched.
    is_guarded: bool,
    /// Whether libc's `_exit` is watched.
    exit_watched: bool,
    /// Whether functions of test frameworks are watched.
    tests_watched: bool,
    /// The interpreter in it.
    python: Python,
    pad_mappings: PadMappings,
    /// The families of allocations through wrappers, by stack.
    stack_families: FxHashMap<StackId, Family>,
    findings: Findings,
    /// Where debug files are looked for.
    search: Option<Search>,
    /// What is known of files that other processes have loaded, too.
    objects: SharedObjects,
    /// Unwind tables of debug files that are still being looked for.
    awaited_frames: Vec<(ModuleId, Pending<Option<Section>>)>,
    /// Children that share the memory and are not ours, for whom it has no breakpoints at this moment.
    aside_for: BTreeSet<i32>,
}

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
            pid_inside: ids::pid_inside(pid),
            root: TargetRoot::of(tid).map(Arc::new),
            code: TargetCode::new(guardian.map(|guardian| guardian.guard(pid, &memory))),
            memory,
            breakpoints: BreakpointTable::default(),
            unwinder,
            maps: MapIndex::new(Vec::new()),
            modules: Modules::new(objects.next_module()),
            inroads: FxHashMap::default(),
            ways: FxHashMap::default(),
            looks_ahead: false,
            deferred: Vec::new(),
            holds_back: false,
            probing: Probing::default(),
            is_jumped: false,
            is_guarded: false,
            exit_watched: false,
            tests_watched: false,
            python: Python::default(),
            pad_mappings: PadMappings::default(),
            stack_families: FxHashMap::default(),
            findings: Findings::default(),
            search: None,
            objects: objects.clone(),
            awaited_frames: Vec::new(),
            aside_for: BTreeSet::new(),
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
            if !self.modules.has(&mapped) {
                self.load(tid, mapped, table);
            }
        }
        self.look_ahead(table);
        self.place_probes(table)?;
        if self.find_called_functions(table) {
            self.place_probes(table)?;
        }
        self.guard_new_modules()?;
        self.watch_start()?;
        Ok(self.take_warnings())
    }

    fn read_maps(&mut self, tid: i32) -> Result<()> {
        let text = procfs::maps(tid)?;
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
        for module in self.modules.take_vanished(current) {
            let range = module.mapped.start()..module.mapped.end();
            // Nothing is written: the memory is gone, or belongs to somebody else by now.
            self.code.forget(&range);
            self.breakpoints.forget(&range);
            self.unwinder.remove_module(module.id);
            self.python.forget(module.id);
            self.inroads.remove(&module.id);
            self.ways.retain(|entry, _| !range.contains(entry));
            self.deferred.retain(|probe| !range.contains(&probe.addr));
        }
    }

    fn load(&mut self, tid: i32, mut mapped: MappedModule, table: &AllocatorTable) {
        if mapped.code().is_empty() {
            return;
        }
        let id = self.modules.new_id();
        let is_program = files::is_program(tid, self.root.as_deref(), &mapped);
        let Some(Object { facts, bias, file, memory }) = self.object(tid, &mapped, is_program, table) else { return };
        self.leave_strangers_out(&mut mapped, &facts, bias, file.as_deref());
        let code = mapped.code();
        self.unwinder.add_module(UnwindModule { id, code: code.clone(), bias, ..facts.unwind.clone() });
        for slack in &facts.slack {
            self.add_slack(bias.to_process(slack.addr), slack.size, id);
        }
        let first = code.first().cloned().unwrap_or_default();
        let record = ModuleRecord {
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
        };
        self.modules.push(Module::new(id, mapped, is_program, &facts, bias, self.exit_watched), record);
        if let Err(error) = self.watch_libc(&facts, bias) {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.watch_loader(&facts, bias) {
            self.note_blind_spot(format!("libraries that are loaded later will not be seen: {error}"));
        }
        if self.exit_watched
            && let Err(error) = self.watch_libc_exit(&facts, bias)
        {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.watch_annotations(&facts, bias) {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.watch_test_hooks(&facts, bias) {
            tracing::debug!("{error}");
        }
        let resolvers: Vec<Addr> = facts.named.resolvers.iter().map(|(at, _)| bias.to_process(*at)).collect();
        if let Err(error) = self.watch_resolvers(&resolvers) {
            self.note_blind_spot(format!("allocator functions that are chosen at run time may be missed: {error}"));
        }
        self.note_python(id, &facts, bias);
    }
}

impl AddressSpace {
    /// An address as it is the same in each process: `module+0xoffset`.
    pub(super) fn place_in_module(&self, addr: Addr) -> String {
        let Some(module) = self.module(addr) else { return addr.to_string() };
        format!("{}+{:#x}", module.name(), module.bias.to_object(addr).0)
    }

    /// Whether the dynamic linker's list is complete (RT_CONSISTENT), rather than about to change.
    pub fn loader_is_consistent(&mut self) -> bool {
        let mut state = [0; 4];
        let at = self.modules.iter().find_map(|module| module.loader_state);
        at.is_none_or(|at| self.memory.read_uncached(at, &mut state) < 4 || state == [0; 4])
    }

    /// The loaded module whose code `addr` lies in.
    fn module(&self, addr: Addr) -> Option<&Module> {
        self.modules.get(self.unwinder.module_of(addr)?)
    }

    /// The id of the module whose code `addr` lies in.
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

    /// Where the program break is (brk(2)), in whole pages, if the kernel tells.
    pub fn program_break(&mut self, tid: i32) -> Option<Addr> {
        let _ = self.read_maps(tid);
        let heaps = self.maps.mappings().iter().filter(|mapping| mapping.kind == maps::Kind::Heap);
        heaps.map(|mapping| mapping.end).max().or_else(|| procfs::first_break(tid))
    }

    /// Whether any allocator function has a probe.
    pub fn has_probes(&self) -> bool {
        let is_allocators = |family: &Option<Family>| *family != Some(Family::Mapping);
        self.modules.iter().any(|module| module.entry_families.values().any(is_allocators))
    }

    /// What is left of the address space when it is gone: the stacks, and all modules that they may refer to.
    pub fn take_records(&mut self) -> (StackTable, Vec<ModuleRecord>) {
        (std::mem::take(&mut self.unwinder).into_stacks(), std::mem::take(&mut self.modules.records))
    }

    /// The process's root folder, if it is not ours, and the id that it has in its own pid namespace, if it has one.
    pub fn root_and_inner_pid(&self) -> (Option<Arc<TargetRoot>>, Option<i32>) {
        (self.root.clone(), self.pid_inside)
    }

    /// All modules so far.
    pub fn module_records(&self) -> &[ModuleRecord] {
        &self.modules.records
    }

    /// The stacks so far, sharing their memory with those that are still found, and all modules that they may refer to.
    pub fn share_records(&mut self) -> (StackTable, Vec<ModuleRecord>) {
        (self.unwinder.share_stacks(), self.modules.records.clone())
    }
}

impl Drop for AddressSpace {
    /// The last resort, for a panic: no breakpoint outlives its table. (In a process that has ended nothing is
    /// written.)
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Err(error) = self.restore(Threads::Run)
        {
            tracing::warn!("{error}");
        }
    }
}
