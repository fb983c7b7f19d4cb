//! The object file of a module: found and verified, or read from the process's memory.

use super::SharedObjects;
use super::facts::Facts;
use super::findings::Findings;
use super::helper::Poll;
use super::image::Image;
use super::named::Named;
use super::testhooks::hooks;
use crate::allocators::AllocatorTable;
use crate::allocators::select::AllocatorSymbol;
use crate::base::addr::LoadBias;
use crate::image::elf::{Elf, ElfError, load_bias};
use crate::image::maps::MappedModule;
use crate::profile::symbolize::ScriptNames;
use crate::symbols::{Bytes, Leads, ModuleMemory, Search};
use crate::tracer::files;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A module's object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) facts: Arc<Facts>,
    pub(super) bias: LoadBias,
    /// The file, if it was found.
    pub(super) file: Option<Arc<File>>,
    /// The bytes that stand in for it else.
    pub(super) memory: Option<ModuleMemory>,
}

/// What is in a file that was found.
#[derive(Debug)]
pub(super) enum Contents {
    /// It was read before.
    Known(Arc<Facts>),
    Read(Bytes),
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct ObjectFiles {
    /// Where debug files are looked for.
    pub(super) search: Option<Search>,
    /// What is known of files that other processes have loaded, too.
    pub(super) objects: SharedObjects,
    /// Whether functions of test frameworks are watched.
    tests_watched: bool,
}

/// How long the target may be kept waiting for symbols of a debug file without which its allocator is not seen.
const SYMBOLS_PATIENCE: Duration = Duration::from_secs(3);

impl ObjectFiles {
    /// None was looked for yet.
    pub(super) fn new(objects: &SharedObjects) -> Self {
        Self { search: None, objects: objects.clone(), tests_watched: false }
    }

    /// What the symbols tell that were stripped from a module, `known` being those that were not: of its debug file, or
    /// of what is packed in its file.
    pub(super) fn symbols_elsewhere(
        &self,
        findings: &mut Findings,
        path: &Path,
        elf: &Elf<'_>,
        known: &[AllocatorSymbol],
        is_program: bool,
        table: &AllocatorTable,
    ) -> Option<Named> {
        let search = self.search.clone()?;
        let is_needed = elf.is_static() || table.declared_symbols().next().is_some();
        let (leads, known, table) = (Leads::of(path, elf), known.to_vec(), table.clone());
        let looked = self.objects.soon(SYMBOLS_PATIENCE, move || {
            let companion = search.companion(&leads, |elf| elf.has_symtab())?;
            let elf = companion.elf()?;
            Some(Named::of(&elf, &elf.plain_symbols(), known, is_program, &table))
        });
        match looked {
            Poll::Done(named) => named,
            // A program that is linked with its allocator's library has it there.
            Poll::Pending(_) | Poll::Failed if !is_needed => None,
            Poll::Pending(_) | Poll::Failed => {
                findings.note_blind_spot(format!(
                    "the debug file of {} could not be searched in time: heaptrace does not see allocator functions \
                     that only this file names",
                    path.display()
                ));
                None
            }
        }
    }

    /// The object of a module: of its file, or if that is not to be had, of the process's memory. None if it is no
    /// object file, or not mapped as one.
    pub(super) fn object(
        &self,
        image: &Image,
        findings: &mut Findings,
        tid: i32,
        mapped: &MappedModule,
        is_program: bool,
        table: &AllocatorTable,
    ) -> Option<Object> {
        let opened = if mapped.is_vdso() { None } else { self.open_file(image, findings, tid, mapped, is_program) };
        let Some((file, contents)) = opened else {
            // only a file tells whether code nearby is its own
            if mapped.code().is_empty() {
                return None;
            }
            let memory = ModuleMemory { start: mapped.start(), bytes: image.memory_image(mapped).into() };
            let elf = understood(Elf::parse_memory(&memory.bytes, memory.start), mapped)?;
            let facts = Arc::new(self.facts(findings, &elf, mapped, is_program, table));
            return Some(Object { facts, bias: elf.load_bias(&mapped.segments)?, file: None, memory: Some(memory) });
        };
        let facts = match contents {
            Contents::Known(facts) => facts,
            Contents::Read(bytes) => {
                let elf = understood(Elf::parse(&bytes), mapped)?;
                let blind_spots = findings.blind_spots.len();
                let facts = Arc::new(self.facts(findings, &elf, mapped, is_program, table));
                // In another root, other debug files may be found; and what was not seen must be told each time.
                if image.root.is_none() && findings.blind_spots.len() == blind_spots {
                    self.objects.remember(&file, &facts, is_program);
                }
                facts
            }
        };
        let bias = load_bias(&facts.segments, &mapped.segments)?;
        Some(Object { facts, bias, file: Some(self.objects.share(file)), memory: None })
    }

    fn facts(
        &self,
        findings: &mut Findings,
        elf: &Elf<'_>,
        mapped: &MappedModule,
        is_program: bool,
        table: &AllocatorTable,
    ) -> Facts {
        let tests_watched = self.tests_watched;
        let elsewhere =
            |known: &[AllocatorSymbol]| self.symbols_elsewhere(findings, &mapped.path, elf, known, is_program, table);
        let mut facts = Facts::of(elf, elsewhere, is_program, table);
        if tests_watched {
            facts.test_hooks = hooks(elf);
        }
        facts
    }

    /// The module's file, if it is certain to be the one that is mapped: its build id is that of the process's memory,
    /// or, if there is none, its code.
    fn open_file(
        &self,
        image: &Image,
        findings: &mut Findings,
        tid: i32,
        mapped: &MappedModule,
        is_program: bool,
    ) -> Option<(File, Contents)> {
        let wanted = image.mapped_build_id(mapped);
        let (mut contents, mut is_other) = (None, false);
        let mut accepts = |file: &File, same_inode: bool| {
            let known = wanted.as_ref().and_then(|wanted| self.objects.find(file, wanted, is_program));
            if let Some(known) = known {
                contents = Some(Contents::Known(known));
                return true;
            }
            let accepted = Bytes::of_file(file).ok().filter(|bytes| match &wanted {
                Some(wanted) => Elf::parse(bytes).is_ok_and(|elf| elf.build_id_hex().as_ref() == Some(wanted)),
                None if same_inode => image.holds_head(mapped, bytes),
                None => image.holds_head(mapped, bytes) && image.holds_code(mapped, bytes),
            });
            is_other |= same_inode && accepted.is_none();
            contents = accepted.map(Contents::Read);
            contents.is_some()
        };
        let file = files::open_module(image.pid, tid, image.root.as_deref(), mapped, &mut accepts);
        // Without code and without a file it is no module.
        if file.is_none() && !mapped.code().is_empty() {
            let why = if is_other {
                "is not the file that the program has mapped (its contents differ)"
            } else {
                "was replaced or deleted after it had been mapped, or can't be read"
            };
            findings.warnings.push(format!(
                "{} {why}: it is read from the process's memory, which has fewer symbols",
                mapped.path.display()
            ));
        }
        file.zip(contents)
    }

    /// The lines of scripts in stacks of the session.
    pub fn scripts(&self) -> ScriptNames {
        self.objects.scripts()
    }

    /// Tests are to be seen, in modules that are loaded from now on.
    pub const fn watch_tests(&mut self) {
        self.tests_watched = true;
    }
}

/// An object, if the bytes of a module were understood.
fn understood<'d>(parsed: Result<Elf<'d>, ElfError>, mapped: &MappedModule) -> Option<Elf<'d>> {
    // Mapped executable, but no object file of ours: a JIT's cache file, a 32-bit library under a translator.
    parsed.inspect_err(|error| tracing::debug!("{}: {error}", mapped.path.display())).ok()
}

#[cfg(test)]
mod tests {
    use super::super::modules::Module;
    use super::super::probes::{Deferred, ToPlace};
    use super::*;
    use crate::arch::PAGE_SIZE;
    use crate::base::addr::Addr;
    use crate::image::maps;
    use crate::session::space::{AddressSpace, SharedObjects};
    use crate::symbols::Search;
    use crate::tracer::testing::Sleeper;
    use std::ops::Range;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn is_libc(module: &MappedModule) -> bool {
        module.path.to_string_lossy().contains("libc.so")
    }

    /// Whatever is known of addresses, and what was written to them.
    fn known(space: &AddressSpace, range: &Range<Addr>) -> Vec<&'static str> {
        let here = |addr: Addr| range.contains(&addr);
        [
            ("breakpoints", space.probes.breakpoints.iter().any(|(addr, _)| here(addr))),
            ("patches", space.image.code.patches().iter().any(|(addr, _)| here(addr))),
            ("removed", space.image.code.patches().removed().any(|(addr, _)| here(addr))),
            ("own code", space.image.code.patches().own.ranges(None).iter().any(|code| here(code.start))),
            ("unwinder", space.modules.unwinder.module_of(range.start).is_some()),
            ("deferred", space.probes.deferred.iter().any(|probe| here(probe.addr))),
            ("modules", space.modules.loaded.iter().any(|module| here(module.mapped.code()[0].start))),
        ]
        .into_iter()
        .filter_map(|(name, is_known)| is_known.then_some(name))
        .collect()
    }

    #[test]
    fn what_is_known_of_a_module_goes_with_it() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let table = AllocatorTable::new();
        let mut space = AddressSpace::open(pid, pid, None, &SharedObjects::default()).unwrap();
        space.refresh(pid, &table, &Search::default()).unwrap();
        let code = |space: &AddressSpace, wanted: &dyn Fn(&Module) -> bool| {
            space.modules.loaded.iter().find(|module| wanted(module)).unwrap().mapped.code()[0].clone()
        };
        let libc = code(&space, &|module| is_libc(&module.mapped));
        let program = code(&space, &|module| module.is_program);
        // what takes threads at breakpoints, or another program, to come about
        for at in [libc.start, program.start] {
            space.probes.deferred.push(Deferred { addr: at, to_place: ToPlace::Exit });
        }
        let probe = space.probes.breakpoints.iter().map(|(addr, _)| addr).find(|addr| libc.contains(addr)).unwrap();
        space.probes.lift(&mut space.image, probe).unwrap();
        assert_eq!(known(&space, &libc).len(), 7, "{:?}", known(&space, &libc));
        let before = known(&space, &program);
        assert!(before.contains(&"deferred") && before.contains(&"unwinder"), "{before:?}");

        let without_libc: Vec<_> =
            maps::modules(space.image.maps.mappings()).into_iter().filter(|module| !is_libc(module)).collect();
        space.drop_vanished(&without_libc);
        assert_eq!(known(&space, &libc), [""; 0]);
        assert_eq!(known(&space, &program), before);
    }

    /// One byte tells a file from the one that is mapped, in its headers or in its code.
    #[test]
    fn headers_and_code_tell_a_file_without_a_build_id() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut space = AddressSpace::open(pid, pid, None, &SharedObjects::default()).unwrap();
        space.image.read_maps(&mut space.modules.findings, pid).unwrap();
        let libc = maps::modules(space.image.maps.mappings()).into_iter().find(is_libc).unwrap();
        let bytes = std::fs::read(&libc.path).unwrap();
        assert!(space.image.holds_head(&libc, &bytes) && space.image.holds_code(&libc, &bytes));
        let changed_at = |offset: u64| {
            let mut bytes = bytes.clone();
            bytes[usize::try_from(offset).unwrap()] ^= 1;
            bytes
        };
        let code = libc.segments.iter().find(|segment| segment.perms.execute).unwrap();
        for offset in [code.offset, code.offset + code.size() / 2] {
            assert!(!space.image.holds_code(&libc, &changed_at(offset)));
        }
        assert!(!space.image.holds_head(&libc, &changed_at(0x30)));
        // another file at the same place; the same by another name
        assert!(!libc.is_same_load(&MappedModule { inode: libc.inode + 1, ..libc.clone() }));
        assert!(libc.is_same_load(&MappedModule { path: "/renamed".into(), ..libc.clone() }));
    }

    /// A module as the maps would show it if another file had come by its path and its inode number.
    #[test]
    fn a_file_with_another_build_id_is_not_taken_for_the_one_that_is_mapped() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut space = AddressSpace::open(pid, pid, None, &SharedObjects::default()).unwrap();
        space.image.read_maps(&mut space.modules.findings, pid).unwrap();
        let mut libc = maps::modules(space.image.maps.mappings()).into_iter().find(is_libc).unwrap();
        let table = AllocatorTable::new();
        let object =
            space.modules.files.object(&space.image, &mut space.modules.findings, pid, &libc, false, &table).unwrap();
        assert!(
            object.file.is_some() && space.modules.findings.warnings.is_empty(),
            "{:?}",
            space.modules.findings.warnings
        );
        let from_file = object.facts.build_id.clone();
        assert!(from_file.is_some());
        // the second time its facts are known
        let again =
            space.modules.files.object(&space.image, &mut space.modules.findings, pid, &libc, false, &table).unwrap();
        assert!(Arc::ptr_eq(&object.facts, &again.facts) && again.bias == object.bias);
        assert_eq!(space.image.mapped_build_id(&libc), from_file);

        let other = Path::new("/bin/ls").canonicalize().unwrap();
        libc.inode = other.metadata().unwrap().ino();
        libc.dev = files::device(other.metadata().unwrap().dev());
        libc.path = other;
        // no link of the kernel's leads to the right one
        libc.segments[0].end = libc.segments[0].start.add(2 * PAGE_SIZE);
        assert!(
            space
                .modules
                .files
                .object(&space.image, &mut space.modules.findings, pid, &libc, false, &table)
                .is_some_and(|object| object.file.is_none())
        );
        assert!(
            space.modules.findings.warnings[0].contains("its contents differ"),
            "{:?}",
            space.modules.findings.warnings
        );
        // what is read from memory instead
        space.load(pid, libc, &table);
        let record = space.modules.loaded.records.last().unwrap();
        assert!(record.file.is_none() && record.memory.is_some());
        assert_eq!(record.build_id, from_file);
    }
}
