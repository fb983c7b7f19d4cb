//! The modules that are loaded in an address space. Each owns all that is known of its code: when it is unloaded, that
//! goes with it. Of all that ever were there is a record, which stacks refer to.

mod callsite;
mod companion;
mod data;
mod entered;
mod functions;
pub(super) mod libc_frames;
mod rounds;
mod slots;

pub use data::OwnSuppressions;

use super::facts::{Facts, SharedObjects, in_process};
use super::findings::Findings;
use super::helper::Pending;
use super::image::Image;
use super::modules::libc_frames::LibcFrames;
use super::named::{Annotation, ExecCall};
use super::objectfiles::ObjectFiles;
use crate::allocators::Family;
use crate::allocators::frameworks::Hook;
use crate::allocators::select::ModuleSymbols;
use crate::base::addr::{Addr, FunctionId, LoadBias, ModuleId, ObjAddr, StackId};
use crate::heap::leaks::roots::ModuleData;
use crate::image::maps::MappedModule;
use crate::session::modulerecord::ModuleRecord;
use crate::unwinder::{Section, StackTable, Unwinder};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// Offset of `r_state` in the dynamic linker's `struct r_debug` (<link.h>, 64-bit).
const R_STATE: u64 = 24;

/// Libraries that have an empty function of their own by which programs tell of suppressions.
const SANITIZERS: [&str; 3] = ["libasan", "liblsan", "libclang_rt"];

/// A module that is loaded now.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) id: ModuleId,
    pub(super) mapped: MappedModule,
    pub(super) bias: LoadBias,
    pub(super) symbols: ModuleSymbols,
    /// Whether it is the main program.
    pub(super) is_program: bool,
    /// Where the program begins, if no dynamic linker runs before it.
    pub(super) start: Option<Addr>,
    /// Functions of an allocator's inside, where the program holds its own allocator.
    pub(super) internal_code: Vec<Range<Addr>>,
    /// The machinery of exceptions, where a library holds it and an allocator.
    pub(super) exception_runtime: Vec<Range<Addr>>,
    /// What the leak scan looks through.
    pub(super) data: ModuleData,
    /// What of its code is the allocator's.
    pub(super) allocator_code: Vec<Range<Addr>>,
    /// The allocator's functions that have probes.
    pub(super) entries: Vec<Range<Addr>>,
    /// Where the probed functions begin, and which family a call to them belongs to.
    pub(super) entry_families: FxHashMap<Addr, Option<Family>>,
    /// Functions that only call a probed one: operator new and delete of libstdc++.
    pub(super) wrappers: Vec<(Range<Addr>, Family)>,
    /// Slots through which it calls allocator functions.
    pub(super) slots: Vec<(Addr, FunctionId)>,
    /// Whether these are filled.
    pub(super) is_linked: bool,
    /// The entries of functions that return the address of an allocator function (IFUNC).
    pub(super) resolvers: FxHashMap<Addr, FunctionId>,
    /// All functions by name, where a program holds resolvers.
    pub(super) choices: Vec<(Box<str>, Range<Addr>)>,
    /// What its code calls.
    pub(super) calls: KnownCalls,
    /// Return sites that have a breakpoint only while a call is in progress.
    pub(super) demoted: FxHashSet<Addr>,
    /// Where the dynamic linker, if it is that, says whether its list is complete.
    pub(super) loader_state: Option<Addr>,
    /// Where the C library leads to main, and ends the process.
    pub(super) libc_frames: LibcFrames,
    /// The entries of functions by which the program tells of its memory.
    pub(super) annotations: FxHashMap<Addr, Annotation>,
    /// The entries of functions of test frameworks.
    pub(super) test_hooks: FxHashMap<Addr, Hook>,
    /// The entries of [`super::named::EXEC_CALLS`].
    pub(super) exec_calls: FxHashMap<Addr, ExecCall>,
    /// The program's own function that returns suppressions for leaks.
    pub(super) leak_suppressions: Option<Addr>,
    /// The program's own function that says whether leaks are not looked for.
    pub(super) leaks_turned_off: Option<Addr>,
    /// Whether an allocator in it may walk the stacks of its callers.
    pub(super) walks_stacks: bool,
    /// Whether jemalloc is in it, which does so only by its settings.
    pub(super) has_jemalloc: bool,
    /// The functions of an unwinder in it that look at stacks.
    pub(super) unwinder: Vec<Range<Addr>>,
    /// Whether its code may throw exceptions by an unwinder of its own that nothing tells of.
    pub(super) throws_unseen: bool,
}

/// What calls were found to call, by return address.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownCalls {
    /// The family of the callee.
    pub(super) families: FxHashMap<Addr, Option<Family>>,
    /// Whether a call in the allocator leads out of it.
    pub(super) outward: FxHashMap<Addr, bool>,
}

impl Module {
    /// The module with the id `id`, of the object that `facts` are about. `until_exit`: the end of the process is of
    /// interest.
    pub(super) fn new(
        id: ModuleId,
        mapped: MappedModule,
        is_program: bool,
        facts: &Facts,
        bias: LoadBias,
        until_exit: bool,
    ) -> Self {
        let here = |ranges: &[Range<ObjAddr>]| ranges.iter().map(|range| in_process(range, bias)).collect();
        let entry = |addr: ObjAddr| bias.to_process(addr);
        let named = &facts.named;
        let name = mapped.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_sanitizer = SANITIZERS.iter().any(|library| name.starts_with(library));
        Self {
            id,
            bias,
            is_program,
            start: facts.static_entry.map(entry),
            internal_code: here(&named.internal_code),
            exception_runtime: here(&named.exception_runtime),
            data: facts.module_data(id, bias),
            allocator_code: Vec::new(),
            entries: Vec::new(),
            entry_families: FxHashMap::default(),
            wrappers: Vec::new(),
            slots: facts.slots.iter().map(|&(at, function)| (entry(at), function)).collect(),
            is_linked: false,
            resolvers: named.resolvers.iter().map(|&(at, function)| (entry(at), function)).collect(),
            choices: named.choices.iter().map(|(name, code)| (name.clone(), in_process(code, bias))).collect(),
            calls: KnownCalls::default(),
            demoted: FxHashSet::default(),
            loader_state: facts.loader.map(|(_, state)| entry(state).add(R_STATE)),
            libc_frames: if until_exit { LibcFrames::of(named, bias) } else { LibcFrames::default() },
            annotations: named.annotations.iter().map(|&(at, told)| (entry(at), told)).collect(),
            test_hooks: facts.test_hooks.iter().map(|&(at, hook)| (entry(at), hook)).collect(),
            exec_calls: named.exec_calls.iter().map(|&(at, call)| (entry(at), call)).collect(),
            leak_suppressions: facts.leak_suppressions.filter(|_| until_exit && !is_sanitizer).map(entry),
            leaks_turned_off: facts.leaks_turned_off.filter(|_| until_exit && !is_sanitizer).map(entry),
            walks_stacks: facts.walks_stacks,
            has_jemalloc: facts.has_jemalloc,
            unwinder: here(&named.unwinder),
            throws_unseen: facts.throws_unseen,
            symbols: ModuleSymbols {
                module: id,
                file_name: name,
                soname: facts.soname.clone(),
                is_c_library: named.sigaction.is_some() || !named.exits.is_empty(),
                symbols: named.allocator.clone(),
            },
            mapped,
        }
    }

    /// Its file's name.
    pub(super) fn name(&self) -> &str {
        &self.symbols.file_name
    }
}

/// The modules themselves, by their ids.
#[derive(Clone, Debug)]
pub(super) struct LoadedModules {
    /// The id that a module gets next, in whichever process of the session.
    next_id: Rc<Cell<u32>>,
    /// In the order of their ids.
    loaded: Vec<Module>,
    /// Of all that ever were there, in the order of their ids.
    pub(super) records: Vec<ModuleRecord>,
    /// Modules that are gone and whose files are still open, the last one at the end.
    unloaded: VecDeque<ModuleId>,
    /// What code outside of modules calls, which is made at run time.
    outside: KnownCalls,
}

impl LoadedModules {
    /// None yet. `next_id` counts those of all processes of the session.
    pub(super) fn new(next_id: Rc<Cell<u32>>) -> Self {
        Self {
            next_id,
            loaded: Vec::new(),
            records: Vec::new(),
            unloaded: VecDeque::new(),
            outside: KnownCalls::default(),
        }
    }

    /// An id for a module, which no other of the session has.
    pub(super) fn new_id(&self) -> ModuleId {
        let id = self.next_id.get();
        self.next_id.set(id.saturating_add(1));
        ModuleId(id)
    }

    /// Adds a module, which has its id and its record's of [`Self::new_id`].
    pub(super) fn push(&mut self, module: Module, record: ModuleRecord) {
        self.loaded.push(module);
        self.records.push(record);
    }

    /// All that are loaded.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Module> {
        self.loaded.iter()
    }

    /// The loaded module with this id.
    pub(super) fn get(&self, id: ModuleId) -> Option<&Module> {
        let index = self.loaded.binary_search_by_key(&id, |module| module.id).ok()?;
        self.loaded.get(index)
    }

    /// The same, to note what was found out of it.
    pub(super) fn get_mut(&mut self, id: ModuleId) -> Option<&mut Module> {
        let index = self.loaded.binary_search_by_key(&id, |module| module.id).ok()?;
        self.loaded.get_mut(index)
    }

    /// The record of a module that is or was loaded.
    pub(super) fn record(&self, id: ModuleId) -> Option<&ModuleRecord> {
        let index = self.records.binary_search_by_key(&id, |record| record.id).ok()?;
        self.records.get(index)
    }

    /// The same, to be completed.
    pub(super) fn record_mut(&mut self, id: ModuleId) -> Option<&mut ModuleRecord> {
        let index = self.records.binary_search_by_key(&id, |record| record.id).ok()?;
        self.records.get_mut(index)
    }

    /// What the code of module `id` calls; of [`ModuleId::NONE`]: what is outside of modules.
    pub(super) fn calls(&self, id: ModuleId) -> &KnownCalls {
        self.get(id).map_or(&self.outside, |module| &module.calls)
    }

    /// The same, to note what was found out.
    pub(super) fn calls_mut(&mut self, id: ModuleId) -> &mut KnownCalls {
        match self.loaded.binary_search_by_key(&id, |module| module.id) {
            Ok(index) => &mut self.loaded[index].calls,
            Err(_) => &mut self.outside,
        }
    }

    /// Whether a snapshot of the maps shows a module that is known.
    pub(super) fn has(&self, mapped: &MappedModule) -> bool {
        self.loaded.iter().any(|known| same_module(&known.mapped, mapped))
    }

    /// Removes those that are not in `current`, a snapshot of the maps.
    pub(super) fn take_vanished(&mut self, current: &[MappedModule]) -> Vec<Module> {
        let stays = |module: &Module| current.iter().any(|mapped| same_module(&module.mapped, mapped));
        let vanished: Vec<Module> = self.loaded.extract_if(.., |module| !stays(module)).collect();
        for module in &vanished {
            self.close_file_in_time(module.id);
        }
        vanished
    }

    /// A module is gone. Its file stays open for a while: another one may come to its path. Thousands of libraries may
    /// come and go, but they are seldom of so many files.
    fn close_file_in_time(&mut self, id: ModuleId) {
        const MAX_KEPT: usize = 64;
        let opened = |id: ModuleId| self.record(id).filter(|record| record.file.is_some());
        let Some(version) = opened(id).map(|record| record.version) else { return };
        let mut others = self.unloaded.iter().copied().chain(self.loaded.iter().map(|module| module.id));
        let closed = if version.is_some() && others.any(|other| opened(other).is_some_and(|o| o.version == version)) {
            Some(id)
        } else {
            self.unloaded.push_back(id);
            if self.unloaded.len() > MAX_KEPT { self.unloaded.pop_front() } else { None }
        };
        if let Some(record) = closed.and_then(|id| self.record_mut(id)) {
            record.file = None;
        }
    }
}

/// Whether two snapshots of the maps show the same load of the same file.
pub(super) fn same_module(a: &MappedModule, b: &MappedModule) -> bool {
    // Not by the path: a file that is renamed stays mapped.
    a.start() == b.start() && a.inode == b.inode && a.dev == b.dev
}

/// See the module's head.
#[derive(Debug)]
pub struct Modules {
    /// Walks the stacks of those who run in them.
    pub unwinder: Unwinder,
    pub(super) loaded: LoadedModules,
    /// Where their files are looked for, and what is known of them.
    pub files: ObjectFiles,
    /// What has come up while they were looked at.
    pub findings: Findings,
    /// The families of allocations through wrappers, by stack.
    pub(super) stack_families: FxHashMap<StackId, Family>,
    /// Unwind tables of debug files that are still being looked for.
    pub(super) awaited_frames: Vec<(ModuleId, Pending<Option<Section>>)>,
}

impl Modules {
    /// None yet, of a process whose first thread began its stack at `initial_stack`.
    pub(super) fn new(initial_stack: Option<Addr>, objects: &SharedObjects) -> Self {
        let mut unwinder = Unwinder::default();
        if let Some(sp) = initial_stack {
            unwinder.set_initial_stack(sp);
        }
        Self {
            unwinder,
            loaded: LoadedModules::new(objects.next_module()),
            files: ObjectFiles::new(objects),
            findings: Findings::default(),
            stack_families: FxHashMap::default(),
            awaited_frames: Vec::new(),
        }
    }

    /// Those of a forked child.
    pub(super) fn fork(&self) -> Self {
        Self {
            unwinder: self.unwinder.fork(),
            loaded: self.loaded.clone(),
            files: self.files.clone(),
            findings: Findings { warnings: Vec::new(), blind_spots: self.findings.blind_spots.clone() },
            stack_families: self.stack_families.clone(),
            // The child asks for those itself: it does not know of them yet.
            awaited_frames: Vec::new(),
        }
    }

    /// An address as it is the same in each process: `module+0xoffset`.
    pub(super) fn place_in_module(&self, addr: Addr) -> String {
        let Some(module) = self.module(addr) else { return addr.to_string() };
        format!("{}+{:#x}", module.name(), module.bias.to_object(addr).0)
    }

    /// Whether the dynamic linker's list is complete (RT_CONSISTENT), rather than about to change.
    pub fn loader_is_consistent(&self, image: &Image) -> bool {
        let mut state = [0; 4];
        let at = self.loaded.iter().find_map(|module| module.loader_state);
        at.is_none_or(|at| image.memory.read_uncached(at, &mut state) < 4 || state == [0; 4])
    }

    /// The loaded module whose code `addr` lies in.
    pub(super) fn module(&self, addr: Addr) -> Option<&Module> {
        self.loaded.get(self.unwinder.module_of(addr)?)
    }

    /// The id of the module whose code `addr` lies in.
    pub fn module_at(&self, addr: Addr) -> ModuleId {
        self.unwinder.module_of(addr).unwrap_or(ModuleId::NONE)
    }

    /// Whether any allocator function has a probe.
    pub fn has_probes(&self) -> bool {
        let is_allocators = |family: &Option<Family>| *family != Some(Family::Mapping);
        self.loaded.iter().any(|module| module.entry_families.values().any(is_allocators))
    }

    /// What is left of the address space when it is gone: the stacks, and all modules that they may refer to.
    pub fn take_records(&mut self) -> (StackTable, Vec<ModuleRecord>) {
        (std::mem::take(&mut self.unwinder).into_stacks(), std::mem::take(&mut self.loaded.records))
    }

    /// All modules so far.
    pub fn module_records(&self) -> &[ModuleRecord] {
        &self.loaded.records
    }

    /// The stacks so far, sharing their memory with those that are still found, and all modules that they may refer to.
    pub fn share_records(&mut self) -> (StackTable, Vec<ModuleRecord>) {
        (self.unwinder.share_stacks(), self.loaded.records.clone())
    }
}
