//! The object file of a module: found and verified, or read from the process's memory.

use super::AddressSpace;
use crate::arch::PAGE_SIZE;
use crate::elf::Elf;
use crate::maps::MappedModule;
use crate::symbols::Bytes;
use crate::tracer::files;
use std::fs::File;

impl AddressSpace {
    /// The module's file, if it is certain to be the one that is mapped: the inode is the same, and the build id that of the
    /// process's memory.
    pub(super) fn open_file(&mut self, tid: i32, mapped: &MappedModule) -> (Option<File>, Option<Bytes>) {
        let wanted = self.mapped_build_id(mapped);
        let (mut bytes, mut is_other) = (None, false);
        let mut accepts = |file: &File| {
            bytes = Bytes::of_file(file).ok();
            let id = bytes.as_ref().and_then(|bytes| Elf::parse(bytes).ok()?.build_id_hex());
            is_other = wanted.is_some() && id != wanted;
            !is_other
        };
        let file = files::open_module(self.pid, tid, mapped, &mut accepts);
        if file.is_none() {
            bytes = None;
            let why = if is_other {
                "is not the file that the program has mapped (its build id differs)"
            } else {
                "was replaced or deleted after it had been mapped"
            };
            self.warnings.push(format!(
                "{} {why}: it is read from the process's memory, which has fewer symbols",
                mapped.path.display()
            ));
        }
        (file, bytes)
    }

    /// The build id in the process's memory, where the beginning of the file is mapped and holds it.
    fn mapped_build_id(&self, mapped: &MappedModule) -> Option<String> {
        // headers and notes stand at the beginning
        const HEAD: u64 = 4 * PAGE_SIZE;
        let first = mapped.segments.first().filter(|first| first.offset == 0)?;
        let mut head = vec![0; usize::try_from(first.size().min(HEAD)).ok()?];
        let n = self.memory.read_uncached(first.start, &mut head);
        head.truncate(n);
        Elf::parse_memory(&head, first.start).ok()?.build_id_hex()
    }

    /// The module's memory from its first to its last byte, unreadable pages as zeros.
    pub(super) fn memory_image(&self, mapped: &MappedModule) -> Vec<u8> {
        let (start, end) = (mapped.start(), mapped.end());
        let size = usize::try_from(end.0 - start.0).unwrap_or(0).min(1 << 30);
        let mut image = vec![0; size];
        for (i, page) in image.chunks_mut(PAGE_SIZE as usize).enumerate() {
            let at = start.add(i as u64 * PAGE_SIZE);
            self.memory.read_uncached(at, page);
            self.breakpoints.mask(at, page);
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::AllocatorTable;
    use crate::maps;
    use crate::tracer::procfs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    /// A process to read from. Not our own: what is loaded is probed, too.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.0.id()).unwrap()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A module as the maps would show it if another file had come by its path and its inode number.
    #[test]
    fn a_file_with_another_build_id_is_not_taken_for_the_one_that_is_mapped() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let asleep = || matches!(procfs::whereabouts(pid, pid), procfs::Whereabouts::Blocked { .. });
        let has_libc = || String::from_utf8_lossy(&procfs::read(pid, "maps").unwrap()).contains("libc.so");
        while !has_libc() || !asleep() {
            std::thread::yield_now();
        }
        let mut space = AddressSpace::open(pid, pid, None).unwrap();
        space.read_maps(pid).unwrap();
        let is_libc = |module: &MappedModule| module.path.to_string_lossy().contains("libc.so");
        let mut libc = maps::modules(space.maps.mappings()).into_iter().find(is_libc).unwrap();
        let (file, bytes) = space.open_file(pid, &libc);
        assert!(file.is_some() && space.warnings.is_empty(), "{:?}", space.warnings);
        let from_file = Elf::parse(&bytes.unwrap()).unwrap().build_id_hex();
        assert!(from_file.is_some());
        assert_eq!(space.mapped_build_id(&libc), from_file);

        let other = Path::new("/bin/ls").canonicalize().unwrap();
        libc.inode = other.metadata().unwrap().ino();
        libc.path = other;
        let (file, bytes) = space.open_file(pid, &libc);
        assert!(file.is_none() && bytes.is_none());
        assert!(space.warnings[0].contains("build id differs"), "{:?}", space.warnings);
        // what is read from memory instead
        let table = AllocatorTable::new();
        space.load(pid, libc, &table);
        let record = space.records.last().unwrap();
        assert!(record.file.is_none() && record.memory.is_some());
        assert_eq!(record.build_id, from_file);
    }
}
