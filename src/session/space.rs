//! One address space of the target, in five objects: its memory, modules, probes, the entries that may jump, and the
//! interpreter. Each stands in a file of its name, with a folder. A method that needs another object gets it as an
//! argument; only what changes several at once is a method of the whole.
//!
//! | what | where |
//! |---|---|
//! | opening it, its copy in a forked child, reading the maps, loading modules | here |
//! | **`Image`**: memory, maps and root folder of the process | `image.rs` |
//! | bytes of ours besides breakpoints; remote calls; where a program counter in them is | `image/ours.rs` |
//! | whether code may be patched, pads, room for pads | `image/pads.rs`; the writing itself: `tracer/code.rs` |
//! | breakpoints out of the way of another tracer | `image/aside.rs` |
//! | whether a module's memory is that of a file | `image/compare.rs` |
//! | what a call instruction calls, what a function returns | `image/calls.rs`, `image/returned.rs` |
//! | memory without what is ours in it | `original.rs` |
//! | **`Modules`**: what is known of each module; records of those that are gone | `modules.rs` |
//! | a module's file: found, verified, or read from memory | `objectfiles.rs` |
//! | what is needed of such a file; files that several processes have | `facts.rs`, by symbol `named.rs` |
//! | debug files, and the threads that read them | `modules/companion.rs`, `helper.rs` |
//! | which functions have probes or may have some | `modules/functions.rs`; of test frameworks: `testhooks.rs` |
//! | what a function is that a thread has entered, besides the allocator's | `modules/entered.rs` |
//! | which function a call calls: operator new or malloc | `modules/callsite.rs` |
//! | what is called by an allocator function's name | `modules/slots.rs` |
//! | functions that branch back to their own first instruction | `modules/rounds.rs` |
//! | what the leak scan needs to know | `modules/data.rs`, `modules/libc_frames.rs` |
//! | warnings and blind spots | `findings.rs` |
//! | **`Probes`**: which functions have probes, which probes wait and for what | `probes.rs` |
//! | one breakpoint: placed, taken away | `probes/placing.rs` |
//! | what is watched besides the allocator, in the C library and elsewhere | `probes/watched.rs` |
//! | functions of unwinders that are watched | `probes/guards.rs` |
//! | **`JumpEntries`**: entries that may be patched with jumps | `entries.rs` |
//! | what leads into the midst of them | `entries/inroads.rs` |
//! | both, looked up while the process runs | `entries/ahead.rs` |
//! | **`Python`**: the functions of a Python interpreter | `python.rs` |
//! | the whole: return sites, restoring all code | `breakpoints.rs` |
//! | the whole: probes that come and go while the session lasts | `probing.rs` |
//! | the whole: functions that jump to the jump engine's stubs | `jumps.rs` |

mod breakpoints;
mod entries;
mod facts;
mod findings;
mod helper;
mod image;
mod jumps;
mod modules;
mod named;
mod objectfiles;
mod original;
mod probes;
mod probing;
mod python;
mod testhooks;

pub(super) use breakpoints::{Helper, Placed};
pub use facts::SharedObjects;
pub use jumps::{Candidate, LeftRegion, tells_jemalloc_to_profile};
pub use modules::OwnSuppressions;
pub use named::Annotation;
pub use original::OriginalMemory;
pub use probes::{
    ANNOTATION_TAG, EXIT_TAG, GUARD_TAG, LOCKS_TAG, OWN_TRACER_TAG, Probing, RESOLVER_TAG, SIGACTION_TAG, TEST_TAG,
};

use super::modulerecord::ModuleRecord;
use crate::allocators::AllocatorTable;
use crate::arch::Regs;
use crate::base::addr::Addr;
use crate::image::maps::{self, MappedModule};
use crate::symbols::{FileVersion, Search};
use crate::tracer::code::write::Threads;
use crate::tracer::guardian::Guardian;
use crate::tracer::root::TargetRoot;
use crate::tracer::{Result, files, procfs};
use crate::unwinder::{UnwindModule, Unwound};
use entries::JumpEntries;
use image::Image;
use modules::{Module, Modules};
use objectfiles::Object;
use probes::Probes;
use python::Python;
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
    /// Its memory.
    pub image: Image,
    /// What is loaded.
    pub modules: Modules,
    /// What is watched.
    pub probes: Probes,
    /// What the jump engine may patch.
    pub entries: JumpEntries,
    /// The interpreter in it.
    pub python: Python,
}

impl AddressSpace {
    /// Opens the address space that the live task `tid` of process `pid` has now. Reads no maps yet.
    pub fn open(pid: i32, tid: i32, guardian: Option<&Guardian>, objects: &SharedObjects) -> Result<Self> {
        Ok(Self {
            image: Image::open(pid, tid, guardian)?,
            modules: Modules::new(procfs::initial_stack(tid), objects),
            probes: Probes::default(),
            entries: JumpEntries::default(),
            python: Python::default(),
        })
    }

    /// The address space of the process `child`, whose one task has just come to be as a copy, and is stopped. Other
    /// threads may have gone on since the fork: what has changed meanwhile is changed in the copy, too.
    pub fn fork(&self, child: i32, guardian: Option<&Guardian>) -> Result<Self> {
        Ok(Self {
            image: self.image.fork(child, guardian)?,
            modules: self.modules.fork(),
            probes: self.probes.fork(),
            entries: self.entries.fork(),
            python: self.python.forked(),
        })
    }

    /// Reads the maps again through the live task `tid`: drops what belonged to vanished modules, loads new ones and
    /// places their probes. Returns warnings for the user.
    pub fn refresh(&mut self, tid: i32, table: &AllocatorTable, search: &Search) -> Result<Vec<String>> {
        // it may have entered a container, or called chroot(2)
        self.image.root = TargetRoot::of(tid).map(Arc::new).or(self.image.root.take());
        let root = self.image.root.as_ref().map_or_else(|| PathBuf::from("/"), |root| root.path());
        self.modules.files.search = Some(Search { root, ..search.clone() });
        self.image.read_maps(&mut self.modules.findings, tid)?;
        let current = maps::modules(self.image.maps.mappings());
        self.drop_vanished(&current);
        for mapped in current {
            if !self.modules.loaded.has(&mapped) {
                self.load(tid, mapped, table);
            }
        }
        self.entries.look_ahead(&self.image, &mut self.modules, table);
        self.probes.place_probes(&mut self.image, &mut self.modules, table)?;
        if self.modules.find_called_functions(&self.image, table) {
            self.probes.place_probes(&mut self.image, &mut self.modules, table)?;
        }
        self.probes.guard_new_modules(&mut self.image, &mut self.modules)?;
        self.probes.watch_start(&mut self.image, &mut self.modules)?;
        Ok(self.modules.findings.take_warnings())
    }

    fn drop_vanished(&mut self, current: &[MappedModule]) {
        for module in self.modules.loaded.take_vanished(current) {
            let range = module.mapped.start()..module.mapped.end();
            // Nothing is written: the memory is gone, or belongs to somebody else by now.
            self.image.code.forget(&range);
            self.probes.breakpoints.forget(&range);
            self.modules.unwinder.remove_module(module.id);
            self.python.forget(module.id);
            self.entries.inroads.remove(&module.id);
            self.entries.ways.retain(|entry, _| !range.contains(entry));
            self.probes.deferred.retain(|probe| !range.contains(&probe.addr));
        }
    }

    fn load(&mut self, tid: i32, mut mapped: MappedModule, table: &AllocatorTable) {
        let is_program = files::is_program(tid, self.image.root.as_deref(), &mapped);
        let Some(Object { facts, bias, file, memory }) =
            self.modules.files.object(&self.image, &mut self.modules.findings, tid, &mapped, is_program, table)
        else {
            return;
        };
        self.image.adopt_moved_text(&mut mapped, &facts.segments, bias, file.as_deref());
        let code = mapped.code();
        if code.is_empty() {
            return;
        }
        let id = self.modules.loaded.new_id();
        self.modules.unwinder.add_module(UnwindModule { id, code: code.clone(), bias, ..facts.unwind.clone() });
        for slack in &facts.slack {
            self.image.add_slack(bias.to_process(slack.addr), slack.size, id);
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
        self.modules.loaded.push(Module::new(id, mapped, is_program, &facts, bias, self.probes.exit_watched), record);
        if let Err(error) = self.probes.watch_libc(&mut self.image, &mut self.modules, &facts, bias) {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.probes.watch_loader(&mut self.image, &mut self.modules, &facts, bias) {
            self.modules.findings.note_blind_spot(format!("libraries that are loaded later will not be seen: {error}"));
        }
        if self.probes.exit_watched
            && let Err(error) = self.probes.watch_libc_exit(&mut self.image, &mut self.modules, &facts, bias)
        {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.probes.watch_annotations(&mut self.image, &mut self.modules, &facts, bias) {
            tracing::debug!("{error}");
        }
        if let Err(error) = self.probes.watch_test_hooks(&mut self.image, &mut self.modules, &facts, bias) {
            tracing::debug!("{error}");
        }
        let resolvers: Vec<Addr> = facts.named.resolvers.iter().map(|(at, _)| bias.to_process(*at)).collect();
        if let Err(error) = self.probes.watch_resolvers(&mut self.image, &mut self.modules, &resolvers) {
            self.modules
                .findings
                .note_blind_spot(format!("allocator functions that are chosen at run time may be missed: {error}"));
        }
        self.python.note_python(&mut self.modules.findings, &self.probes, id, &facts, bias);
    }

    /// Whether two stack pointers of task `tid` lie in one mapping.
    pub fn same_mapping(&mut self, a: Addr, b: Addr, tid: i32) -> bool {
        // A stack may be newer than the maps, or have grown since.
        if self.image.maps.find(a).is_none() || self.image.maps.find(b).is_none() {
            let _ = self.image.read_maps(&mut self.modules.findings, tid);
        }
        self.image.maps.find(a).is_some_and(|mapping| mapping.contains(b))
    }

    /// Where the program break is (brk(2)), in whole pages, if the kernel tells.
    pub fn program_break(&mut self, tid: i32) -> Option<Addr> {
        let _ = self.image.read_maps(&mut self.modules.findings, tid);
        let heaps = self.image.maps.mappings().iter().filter(|mapping| mapping.kind == maps::Kind::Heap);
        heaps.map(|mapping| mapping.end).max().or_else(|| procfs::first_break(tid))
    }

    /// Reads the maps again.
    pub fn refresh_maps(&mut self, tid: i32) -> Result<()> {
        self.image.read_maps(&mut self.modules.findings, tid)
    }

    /// The stack of a thread at the entry of a function, with the functions of an interpreter if these are wanted.
    pub fn unwind_call(&mut self, regs: &Regs, max_depth: u32) -> Unwound {
        let native = self.modules.unwind_at_entry(&mut self.image, regs, max_depth);
        if self.probes.is_jumped {
            return native;
        }
        self.python.told_stack(&mut self.image, &mut self.modules, regs, native, max_depth)
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
