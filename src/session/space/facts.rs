//! What is needed of an object file, wherever it is loaded: read once for all processes and images of a session.

use super::helper::{Poll, WaitBudget};
use super::named::{Named, extent};
use super::python::{PythonFacts, Scripts};
use crate::allocators::AllocatorTable;
use crate::allocators::frameworks::Hook;
use crate::allocators::select::AllocatorSymbol;
use crate::base::addr::{Addr, FunctionId, LoadBias, ModuleId, ObjAddr};
use crate::heap::leaks::roots::ModuleData;
use crate::image::elf::{self, Elf, Segment, Slack, SlotOf, Symbol, has_jemalloc};
use crate::profile::symbolize::ScriptNames;
use crate::symbols::FileVersion;
use crate::unwinder::UnwindModule;
use crate::unwinder::cpython::PythonFrame;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// By what heaptrace knows glibc's malloc: glibc has these, other C libraries have not.
const GLIBC_SYMBOLS: [&str; 2] = ["gnu_get_libc_version", "__libc_mallopt"];

/// By this function programs tell LeakSanitizer of leaks that they know: `const char
/// *__lsan_default_suppressions(void)` (<sanitizer/lsan_interface.h>).
pub(super) const LEAK_SUPPRESSIONS: &str = "__lsan_default_suppressions";

/// And by this one that it wants no check for leaks, if the result is not 0: `int __lsan_is_turned_off(void)`.
pub(super) const LEAKS_TURNED_OFF: &str = "__lsan_is_turned_off";

/// The function that the dynamic linker calls before and after each change of its list, and the list (<link.h>).
const LOADER_SYMBOLS: [&str; 2] = ["_dl_debug_state", "_r_debug"];

/// See the module's head.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) build_id: Option<String>,
    pub(super) soname: Option<String>,
    pub(super) segments: Vec<Segment>,
    pub(super) slack: Vec<Slack>,
    pub(super) unwind: UnwindModule,
    /// Where a program begins that no dynamic linker loads.
    pub(super) static_entry: Option<ObjAddr>,
    /// What its symbols tell, also those that are in a companion only.
    pub(super) named: Named,
    /// Slots that the dynamic linker fills with the addresses of allocator functions.
    pub(super) slots: Vec<(ObjAddr, FunctionId)>,
    /// The dynamic linker's [`LOADER_SYMBOLS`].
    pub(super) loader: Option<(ObjAddr, ObjAddr)>,
    /// The program's own function that returns suppressions for leaks.
    pub(super) leak_suppressions: Option<ObjAddr>,
    /// The program's own function that says whether leaks are not looked for.
    pub(super) leaks_turned_off: Option<ObjAddr>,
    /// Whether an allocator in it may walk the stacks of its callers.
    pub(super) walks_stacks: bool,
    /// Whether jemalloc is in it, which does so only by its settings.
    pub(super) has_jemalloc: bool,
    /// Whether its code may throw exceptions by an unwinder of its own that nothing tells of.
    pub(super) throws_unseen: bool,
    /// The Python interpreter in it, if it holds one.
    pub(super) python: Option<PythonFacts>,
    /// The functions of test frameworks in it, if they are wanted.
    pub(super) test_hooks: Vec<(ObjAddr, Hook)>,
    tls_size: u64,
    glibc: Option<Option<Range<ObjAddr>>>,
}

impl Facts {
    /// Those of `elf`. `elsewhere` looks for the symbols that were stripped from it, given the allocator functions that
    /// were not, and is asked if they are needed.
    pub(super) fn of(
        elf: &Elf<'_>,
        elsewhere: impl FnOnce(&[AllocatorSymbol]) -> Option<Named>,
        is_program: bool,
        table: &AllocatorTable,
    ) -> Self {
        let plain = elf.plain_symbols();
        let own = Named::of(elf, &plain, Vec::new(), is_program, table);
        let is_needed = wants_companion(elf, &own.allocator, is_program, table);
        let elsewhere = if is_needed { elsewhere(&own.allocator) } else { None };
        let named = elsewhere.unwrap_or(own);
        let [version, mallopt, arena, suppressions, turned_off, notify, state] = plain.find([
            GLIBC_SYMBOLS[0],
            GLIBC_SYMBOLS[1],
            "main_arena",
            LEAK_SUPPRESSIONS,
            LEAKS_TURNED_OFF,
            LOADER_SYMBOLS[0],
            LOADER_SYMBOLS[1],
        ]);
        let has_allocator = !named.allocator.is_empty();
        let is_glibc = version.is_some() || mallopt.is_some();
        let named_unwinder_is_missing = named.unwinder.is_empty();
        let arena = arena.filter(|symbol| symbol.size > 0).map(|symbol| extent(&symbol));
        Self {
            build_id: elf.build_id_hex(),
            soname: elf.soname().map(|name| name.to_string_lossy().into_owned()),
            segments: elf.segments().collect(),
            slack: elf.executable_slack(),
            unwind: elf.unwind_sections(),
            static_entry: Some(elf.entry()).filter(|_| is_program && elf.is_static()),
            slots: allocator_slots(elf, &named, table),
            named,
            loader: notify.zip(state).map(|(notify, state)| (notify.addr, state.addr)),
            leak_suppressions: suppressions.filter(Symbol::is_function).map(|symbol| symbol.addr),
            leaks_turned_off: turned_off.filter(Symbol::is_function).map(|symbol| symbol.addr),
            walks_stacks: has_allocator && elf.may_walk_stacks(&plain, is_program),
            has_jemalloc: has_allocator && has_jemalloc(&plain),
            // the C library's handlers are those of ended threads
            throws_unseen: !is_glibc && named_unwinder_is_missing && elf.may_throw_unseen(&plain),
            python: PythonFacts::of(&plain),
            test_hooks: Vec::new(),
            tls_size: elf.tls_size(),
            glibc: is_glibc.then_some(arena),
        }
    }

    /// What the leak scan needs to know of it as the module `id`.
    pub(super) fn module_data(&self, id: ModuleId, bias: LoadBias) -> ModuleData {
        ModuleData {
            id,
            ranges: elf::writable(&self.segments, bias),
            tls_size: self.tls_size,
            glibc: self.glibc.as_ref().map(|arena| arena.as_ref().map(|arena| in_process(arena, bias))),
        }
    }

    /// Bytes of its unwind tables, which are most of it.
    fn size(&self) -> usize {
        let UnwindModule { eh_frame_hdr, eh_frame, debug_frame, .. } = &self.unwind;
        [eh_frame_hdr, eh_frame, debug_frame].into_iter().flatten().map(|section| section.bytes.len()).sum()
    }
}

/// The slots of an object through which it calls allocator functions.
fn allocator_slots(elf: &Elf<'_>, named: &Named, table: &AllocatorTable) -> Vec<(ObjAddr, FunctionId)> {
    let function_of = |of: SlotOf<'_>| match of {
        SlotOf::Symbol(name) => table.lookup(std::str::from_utf8(name).ok()?).filter(|id| !table.is_mapping(*id)),
        SlotOf::ResolvedBy(resolver) => {
            named.resolvers.iter().find(|(addr, _)| *addr == resolver).map(|(_, function)| *function)
        }
    };
    elf.function_slots().into_iter().filter_map(|slot| Some((slot.at, function_of(slot.of)?))).collect()
}

/// Whether allocator functions of an object may be found by the symbols of a companion only: a static program's, and
/// those that the user has named. `known` are those of its own file.
fn wants_companion(elf: &Elf<'_>, known: &[AllocatorSymbol], is_program: bool, table: &AllocatorTable) -> bool {
    let is_known = |name: &str| known.iter().any(|symbol| symbol.name == name);
    let is_wanted = (is_program && known.is_empty()) || table.declared_symbols().any(|name| !is_known(name));
    is_wanted && !elf.has_symtab()
}

/// A range of the object's addresses, where the process has it.
pub(super) fn in_process(range: &Range<ObjAddr>, bias: LoadBias) -> Range<Addr> {
    bias.to_process(range.start)..bias.to_process(range.end)
}

/// What tells an object file whose contents need not be looked at again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Identity {
    version: FileVersion,
    build_id: String,
    is_program: bool,
}

/// Facts that are remembered at most. A build executes a few dozen programs over and over.
const MAX_FILES: usize = 256;

/// Bytes of unwind tables that are remembered at most.
const MAX_BYTES: usize = 64 << 20;

/// What the processes of a session know of object files, and which they have open, and the lines of scripts in their
/// stacks. A handle: clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedObjects(Rc<RefCell<Objects>>);

#[derive(Debug, Default)]
struct Objects {
    /// With the moment of the last use, in uses.
    facts: FxHashMap<Identity, (u64, Arc<Facts>)>,
    bytes: usize,
    uses: u64,
    /// For what is read on other threads.
    patience: WaitBudget,
    /// Files that are open, by device and inode.
    files: FxHashMap<(u64, u64), Weak<File>>,
    /// The id of the next module, in whichever process.
    next_module: Rc<Cell<u32>>,
    scripts: Scripts,
}

impl SharedObjects {
    /// The counter of module ids of the session.
    pub(super) fn next_module(&self) -> Rc<Cell<u32>> {
        Rc::clone(&self.0.borrow().next_module)
    }

    /// The number of a line of a function, the same in all processes of the session.
    pub(super) fn number_of(&self, frame: &PythonFrame) -> Option<u32> {
        self.0.borrow_mut().scripts.number_of(frame)
    }

    /// The lines by their numbers, so far.
    pub fn scripts(&self) -> ScriptNames {
        self.0.borrow().scripts.names()
    }

    /// Does `work` on a thread of its own and waits for it up to `most`, less if the session has waited for long
    /// already.
    pub(super) fn soon<T: Send + 'static>(&self, most: Duration, work: impl FnOnce() -> T + Send + 'static) -> Poll<T> {
        self.0.borrow_mut().patience.wait(most, work)
    }

    /// What is known of this version of a file, if the object in it has this build id.
    pub(super) fn find(&self, file: &File, build_id: &str, is_program: bool) -> Option<Arc<Facts>> {
        let version = FileVersion::of(file)?;
        let objects = &mut *self.0.borrow_mut();
        objects.uses += 1;
        let identity = Identity { version, build_id: build_id.to_owned(), is_program };
        let (used, facts) = objects.facts.get_mut(&identity)?;
        *used = objects.uses;
        Some(Arc::clone(facts))
    }

    /// Remembers what was found in a file. One without a build id is read each time: only its contents prove it.
    pub(super) fn remember(&self, file: &File, facts: &Arc<Facts>, is_program: bool) {
        let (Some(version), Some(build_id)) = (FileVersion::of(file), facts.build_id.clone()) else { return };
        self.0.borrow_mut().insert(Identity { version, build_id, is_program }, Arc::clone(facts));
    }

    /// The descriptor of the same file that another process has open, if one has.
    pub(super) fn share(&self, file: File) -> Arc<File> {
        use std::os::unix::fs::MetadataExt;
        let file = Arc::new(file);
        let Ok(metadata) = file.metadata() else { return file };
        let files = &mut self.0.borrow_mut().files;
        let identity = (metadata.dev(), metadata.ino());
        if let Some(known) = files.get(&identity).and_then(Weak::upgrade) {
            return known;
        }
        if files.len() == files.capacity() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(identity, Arc::downgrade(&file));
        file
    }
}

impl Objects {
    fn insert(&mut self, identity: Identity, facts: Arc<Facts>) {
        self.uses += 1;
        self.bytes += facts.size();
        if let Some((_, replaced)) = self.facts.insert(identity, (self.uses, facts)) {
            self.bytes -= replaced.size();
        }
        while self.facts.len() > MAX_FILES || self.bytes > MAX_BYTES {
            let oldest = self.facts.iter().min_by_key(|(_, (used, _))| *used).map(|(identity, _)| identity.clone());
            let Some((_, forgotten)) = oldest.and_then(|identity| self.facts.remove(&identity)) else { return };
            self.bytes -= forgotten.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::Bytes;
    use std::path::Path;

    fn facts_of(path: &Path) -> (File, Arc<Facts>) {
        let file = File::open(path).unwrap();
        let bytes = Bytes::of_file(&file).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        (file, Arc::new(Facts::of(&elf, |_| None, true, &AllocatorTable::new())))
    }

    /// A file is known by what it is, not by its path; and one that was written to is another one.
    #[test]
    fn a_file_that_has_changed_is_not_known() {
        let folder = std::env::temp_dir().join(format!("heaptrace-facts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        std::fs::copy("/bin/cat", &program).unwrap();
        let objects = SharedObjects::default();
        let (file, facts) = facts_of(&program);
        let build_id = facts.build_id.clone().unwrap();
        assert!(objects.find(&file, &build_id, true).is_none());
        objects.remember(&file, &facts, true);
        let known = objects.find(&File::open(&program).unwrap(), &build_id, true).unwrap();
        assert!(Arc::ptr_eq(&known, &facts));
        assert!(objects.find(&file, "00", true).is_none() && objects.find(&file, &build_id, false).is_none());
        std::fs::rename(&program, folder.join("renamed")).unwrap();
        assert!(objects.find(&file, &build_id, true).is_some());
        std::fs::copy("/bin/cat", &program).unwrap();
        assert!(objects.find(&File::open(&program).unwrap(), &build_id, true).is_none());
        let written = File::options().append(true).open(folder.join("renamed")).unwrap();
        std::io::Write::write_all(&mut &written, b"x").unwrap();
        assert!(objects.find(&file, &build_id, true).is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Thousands of programs may be executed; what was used last is kept.
    #[test]
    fn the_memory_of_files_is_bounded() {
        let (file, facts) = facts_of(Path::new("/bin/cat"));
        let objects = SharedObjects::default();
        let version = FileVersion::of(&file).unwrap();
        let identity = |i: usize| Identity { version, build_id: i.to_string(), is_program: true };
        for i in 0..2 * MAX_FILES {
            objects.0.borrow_mut().insert(identity(i), Arc::clone(&facts));
            assert!(objects.find(&file, "0", true).is_some(), "0 is in use all the time, also at {i}");
        }
        let inside = objects.0.borrow();
        assert!(facts.size() > 0 && inside.facts.len() == MAX_FILES);
        assert_eq!(inside.bytes, MAX_FILES * facts.size());
        assert!(inside.facts.contains_key(&identity(2 * MAX_FILES - 1)) && !inside.facts.contains_key(&identity(1)));
    }

    #[test]
    fn one_descriptor_serves_all_who_need_the_file() {
        let objects = SharedObjects::default();
        let open = |path: &str| File::open(path).unwrap();
        let first = objects.share(open("/bin/cat"));
        assert!(Arc::ptr_eq(&first, &objects.share(open("/bin/cat"))));
        assert!(!Arc::ptr_eq(&first, &objects.share(open("/bin/ls"))));
        drop(first);
        assert_eq!(Arc::strong_count(&objects.share(open("/bin/cat"))), 1);
    }
}
