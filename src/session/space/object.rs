//! The object file of a module: found and verified, or read from the process's memory.

use super::AddressSpace;
use super::facts::Facts;
use super::testhooks::hooks;
use crate::allocators::AllocatorTable;
use crate::allocators::select::AllocatorSymbol;
use crate::arch::PAGE_SIZE;
use crate::base::addr::{Addr, LoadBias};
use crate::image::elf::{Elf, ElfError, Segment, load_bias};
use crate::image::maps::{Kind, MappedModule, Mapping};
use crate::symbols::{Bytes, ModuleMemory};
use crate::tracer::files;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// So much of a module's code is compared with a file, in bytes.
const MAX_CODE: u64 = 16 << 20;

/// So many pages of code are compared with a file, where the addresses say already that it may be the file's.
const PAGES_COMPARED: u64 = 16;

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
enum Contents {
    /// It was read before.
    Known(Arc<Facts>),
    Read(Bytes),
}

impl AddressSpace {
    /// The object of a module: of its file, or if that is not to be had, of the process's memory. None if it is no
    /// object file, or not mapped as one.
    pub(super) fn object(
        &mut self,
        tid: i32,
        mapped: &MappedModule,
        is_program: bool,
        table: &AllocatorTable,
    ) -> Option<Object> {
        let opened = if mapped.is_vdso() { None } else { self.open_file(tid, mapped, is_program) };
        let Some((file, contents)) = opened else {
            let memory = ModuleMemory { start: mapped.start(), bytes: self.memory_image(mapped).into() };
            let elf = understood(Elf::parse_memory(&memory.bytes, memory.start), mapped)?;
            let facts = Arc::new(self.facts(&elf, mapped, is_program, table));
            return Some(Object { facts, bias: elf.load_bias(&mapped.segments)?, file: None, memory: Some(memory) });
        };
        let facts = match contents {
            Contents::Known(facts) => facts,
            Contents::Read(bytes) => {
                let elf = understood(Elf::parse(&bytes), mapped)?;
                let blind_spots = self.findings.blind_spots.len();
                let facts = Arc::new(self.facts(&elf, mapped, is_program, table));
                // In another root, other debug files may be found; and what was not seen must be told each time.
                if self.root.is_none() && self.findings.blind_spots.len() == blind_spots {
                    self.objects.remember(&file, &facts, is_program);
                }
                facts
            }
        };
        let bias = load_bias(&facts.segments, &mapped.segments)?;
        Some(Object { facts, bias, file: Some(self.objects.share(file)), memory: None })
    }

    fn facts(&mut self, elf: &Elf<'_>, mapped: &MappedModule, is_program: bool, table: &AllocatorTable) -> Facts {
        let tests_watched = self.tests_watched;
        let elsewhere = |known: &[AllocatorSymbol]| self.symbols_elsewhere(&mapped.path, elf, known, is_program, table);
        let mut facts = Facts::of(elf, elsewhere, is_program, table);
        if tests_watched {
            facts.test_hooks = hooks(elf);
        }
        facts
    }

    /// The module's file, if it is certain to be the one that is mapped: its build id is that of the process's memory,
    /// or, if there is none, its code.
    fn open_file(&mut self, tid: i32, mapped: &MappedModule, is_program: bool) -> Option<(File, Contents)> {
        let wanted = self.mapped_build_id(mapped);
        let (mut contents, mut is_other) = (None, false);
        let mut accepts = |file: &File, same_inode: bool| {
            let known = wanted.as_ref().and_then(|wanted| self.objects.find(file, wanted, is_program));
            if let Some(known) = known {
                contents = Some(Contents::Known(known));
                return true;
            }
            let accepted = Bytes::of_file(file).ok().filter(|bytes| match &wanted {
                Some(wanted) => Elf::parse(bytes).is_ok_and(|elf| elf.build_id_hex().as_ref() == Some(wanted)),
                None if same_inode => self.holds_head(mapped, bytes),
                None => self.holds_head(mapped, bytes) && self.holds_code(mapped, bytes),
            });
            is_other |= same_inode && accepted.is_none();
            contents = accepted.map(Contents::Read);
            contents.is_some()
        };
        let file = files::open_module(self.pid, tid, self.root.as_deref(), mapped, &mut accepts);
        if file.is_none() {
            let why = if is_other {
                "is not the file that the program has mapped (its contents differ)"
            } else {
                "was replaced or deleted after it had been mapped, or can't be read"
            };
            self.findings.warnings.push(format!(
                "{} {why}: it is read from the process's memory, which has fewer symbols",
                mapped.path.display()
            ));
        }
        file.zip(contents)
    }

    /// The build id in the process's memory, where the beginning of the file is mapped and holds it.
    fn mapped_build_id(&self, mapped: &MappedModule) -> Option<String> {
        let (at, size) = head(mapped)?;
        Elf::parse_memory(&self.original(at, size), at).ok()?.build_id_hex()
    }

    /// Whether the process's memory begins as a file with these bytes, where the beginning of the file is mapped. The
    /// headers stand there, with the sizes of all parts.
    fn holds_head(&self, mapped: &MappedModule, file: &[u8]) -> bool {
        head(mapped).is_none_or(|(at, size)| self.holds(at, size, file, 0))
    }

    /// Whether the process's code is that of a file with these bytes.
    fn holds_code(&self, mapped: &MappedModule, file: &[u8]) -> bool {
        let mut code = mapped.segments.iter().filter(|segment| segment.perms.execute && segment.kind == Kind::File);
        code.all(|segment| self.holds(segment.start, segment.size().min(MAX_CODE), file, segment.offset))
    }

    fn holds(&self, at: Addr, size: u64, file: &[u8], offset: u64) -> bool {
        let Some(file) = usize::try_from(offset).ok().and_then(|offset| file.get(offset..)) else { return false };
        let memory = self.original(at, size);
        // behind the end of the file, the last page has zeros
        let (inside, behind) = memory.split_at(memory.len().min(file.len()));
        !inside.is_empty() && file.starts_with(inside) && behind.iter().all(|&byte| byte == 0)
    }

    /// Takes anonymous code out of a module that lies between pieces of its file, and is not what the file has there: a
    /// JIT's. Text that was moved
    /// to huge pages is.
    pub(super) fn leave_strangers_out(
        &self,
        mapped: &mut MappedModule,
        facts: &Facts,
        bias: LoadBias,
        file: Option<&File>,
    ) {
        let mut end = mapped.start();
        mapped.segments.retain(|segment| {
            let is_apart = segment.kind == Kind::Anonymous && segment.perms.is_code() && segment.start != end;
            let stays = !is_apart || file.is_some_and(|file| self.is_files(segment, &facts.segments, bias, file));
            if stays {
                end = segment.end;
            }
            stays
        });
    }

    /// Whether some pages of a mapping hold what an object's file has at their addresses.
    fn is_files(&self, mapping: &Mapping, segments: &[Segment], bias: LoadBias, file: &File) -> bool {
        let pages = mapping.size() / PAGE_SIZE;
        let step = pages.div_ceil(PAGES_COMPARED).max(1);
        let mut compared = (0..pages).step_by(usize::try_from(step).unwrap_or(1)).chain([pages.saturating_sub(1)]);
        compared.all(|page| {
            let at = mapping.start.add(page * PAGE_SIZE);
            let addr = bias.to_object(at);
            let Some(segment) = segments.iter().find(|segment| segment.contains(addr)) else { return false };
            // the rest of a segment's last page may hold anything
            let size = PAGE_SIZE.min(segment.file_size.saturating_sub(addr.0 - segment.addr.0));
            let memory = self.original(at, size);
            let mut found = vec![0; memory.len()];
            !found.is_empty()
                && file.read_exact_at(&mut found, segment.offset + (addr.0 - segment.addr.0)).is_ok()
                && found == memory
        })
    }

    /// What the program itself has at `at`, up to the first page that can't be read.
    fn original(&self, at: Addr, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let n = self.memory.read_uncached(at, &mut bytes);
        bytes.truncate(n);
        self.code.patches().mask(at, &mut bytes);
        bytes
    }

    /// The module's memory from its first to its last byte, unreadable pages as zeros.
    pub(super) fn memory_image(&self, mapped: &MappedModule) -> Vec<u8> {
        let (start, end) = (mapped.start(), mapped.end());
        let size = usize::try_from(end.0 - start.0).unwrap_or(0).min(1 << 30);
        let mut image = vec![0; size];
        for (i, page) in image.chunks_mut(PAGE_SIZE as usize).enumerate() {
            let at = start.add(i as u64 * PAGE_SIZE);
            self.memory.read_uncached(at, page);
            self.code.patches().mask(at, page);
        }
        image
    }
}

/// An object, if the bytes of a module were understood.
fn understood<'d>(parsed: Result<Elf<'d>, ElfError>, mapped: &MappedModule) -> Option<Elf<'d>> {
    // Mapped executable, but no object file of ours: a JIT's cache file, a 32-bit library under a translator.
    parsed.inspect_err(|error| tracing::debug!("{}: {error}", mapped.path.display())).ok()
}

/// Where the headers and notes are mapped, and in how many bytes; None if they are not.
fn head(mapped: &MappedModule) -> Option<(Addr, u64)> {
    const HEAD: u64 = 4 * PAGE_SIZE;
    let first = mapped.segments.first().filter(|first| first.offset == 0)?;
    Some((first.start, first.size().min(HEAD)))
}

#[cfg(test)]
mod tests {
    use super::super::modules::{Module, same_module};
    use super::super::probes::{Deferred, ToPlace};
    use super::*;
    use crate::image::maps;
    use crate::session::space::SharedObjects;
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
            ("breakpoints", space.breakpoints.iter().any(|(addr, _)| here(addr))),
            ("patches", space.code.patches().iter().any(|(addr, _)| here(addr))),
            ("removed", space.code.patches().removed().any(|(addr, _)| here(addr))),
            ("own code", space.code.patches().own.ranges(None).iter().any(|code| here(code.start))),
            ("unwinder", space.unwinder.module_of(range.start).is_some()),
            ("deferred", space.deferred.iter().any(|probe| here(probe.addr))),
            ("modules", space.modules.iter().any(|module| here(module.mapped.code()[0].start))),
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
            space.modules.iter().find(|module| wanted(module)).unwrap().mapped.code()[0].clone()
        };
        let libc = code(&space, &|module| is_libc(&module.mapped));
        let program = code(&space, &|module| module.is_program);
        // what takes threads at breakpoints, or another program, to come about
        for at in [libc.start, program.start] {
            space.deferred.push(Deferred { addr: at, to_place: ToPlace::Exit });
        }
        let probe = space.breakpoints.iter().map(|(addr, _)| addr).find(|addr| libc.contains(addr)).unwrap();
        space.lift(probe).unwrap();
        assert_eq!(known(&space, &libc).len(), 7, "{:?}", known(&space, &libc));
        let before = known(&space, &program);
        assert!(before.contains(&"deferred") && before.contains(&"unwinder"), "{before:?}");

        let without_libc: Vec<_> =
            maps::modules(space.maps.mappings()).into_iter().filter(|module| !is_libc(module)).collect();
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
        space.read_maps(pid).unwrap();
        let libc = maps::modules(space.maps.mappings()).into_iter().find(is_libc).unwrap();
        let bytes = std::fs::read(&libc.path).unwrap();
        assert!(space.holds_head(&libc, &bytes) && space.holds_code(&libc, &bytes));
        let changed_at = |offset: u64| {
            let mut bytes = bytes.clone();
            bytes[usize::try_from(offset).unwrap()] ^= 1;
            bytes
        };
        let code = libc.segments.iter().find(|segment| segment.perms.execute).unwrap();
        for offset in [code.offset, code.offset + code.size() / 2] {
            assert!(!space.holds_code(&libc, &changed_at(offset)));
        }
        assert!(!space.holds_head(&libc, &changed_at(0x30)));
        // another file at the same place; the same by another name
        assert!(!same_module(&libc, &MappedModule { inode: libc.inode + 1, ..libc.clone() }));
        assert!(same_module(&libc, &MappedModule { path: "/renamed".into(), ..libc.clone() }));
    }

    /// A module as the maps would show it if another file had come by its path and its inode number.
    #[test]
    fn a_file_with_another_build_id_is_not_taken_for_the_one_that_is_mapped() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut space = AddressSpace::open(pid, pid, None, &SharedObjects::default()).unwrap();
        space.read_maps(pid).unwrap();
        let mut libc = maps::modules(space.maps.mappings()).into_iter().find(is_libc).unwrap();
        let table = AllocatorTable::new();
        let object = space.object(pid, &libc, false, &table).unwrap();
        assert!(object.file.is_some() && space.findings.warnings.is_empty(), "{:?}", space.findings.warnings);
        let from_file = object.facts.build_id.clone();
        assert!(from_file.is_some());
        // the second time its facts are known
        let again = space.object(pid, &libc, false, &table).unwrap();
        assert!(Arc::ptr_eq(&object.facts, &again.facts) && again.bias == object.bias);
        assert_eq!(space.mapped_build_id(&libc), from_file);

        let other = Path::new("/bin/ls").canonicalize().unwrap();
        libc.inode = other.metadata().unwrap().ino();
        libc.dev = files::device(other.metadata().unwrap().dev());
        libc.path = other;
        // no link of the kernel's leads to the right one
        libc.segments[0].end = libc.segments[0].start.add(2 * PAGE_SIZE);
        assert!(space.object(pid, &libc, false, &table).is_some_and(|object| object.file.is_none()));
        assert!(space.findings.warnings[0].contains("its contents differ"), "{:?}", space.findings.warnings);
        // what is read from memory instead
        space.load(pid, libc, &table);
        let record = space.modules.records.last().unwrap();
        assert!(record.file.is_none() && record.memory.is_some());
        assert_eq!(record.build_id, from_file);
    }
}
