//! The object files of a process that nobody has traced.

use crate::base::addr::{Addr, LoadBias, ModuleId, ObjAddr};
use crate::heap::leaks::roots::ModuleData;
use crate::image::elf::{self, Elf};
use crate::image::maps::{self, MappedModule, Mapping};
use crate::symbols::{Bytes, ModuleSource};
use crate::tracer::copy::{self, Means, SYSTEM_CALL};
use crate::tracer::remote::function::RESTORER;
use crate::tracer::root::TargetRoot;
use crate::tracer::{files, procfs};
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// An object file that is loaded.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its number among those of the process.
    pub id: ModuleId,
    /// Its path as the process sees it.
    pub path: PathBuf,
    /// Where it is loaded.
    pub bias: LoadBias,
    /// From its first to its last address.
    pub range: Range<Addr>,
    /// What is in it.
    pub bytes: Arc<Bytes>,
    file: Arc<File>,
}

impl Object {
    /// What a symbolizer needs.
    pub fn source(&self) -> ModuleSource {
        let build_id = Elf::parse(&self.bytes).ok().and_then(|elf| elf.build_id_hex());
        ModuleSource {
            path: self.path.clone(),
            build_id,
            file: Some(Arc::clone(&self.file)),
            ..ModuleSource::default()
        }
    }
}

/// The modules of a process.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Those whose files were found.
    pub found: Vec<Object>,
    /// Where the data of all of them are.
    pub data: Vec<ModuleData>,
}

impl Objects {
    /// Says in which module glibc's main arena is.
    pub fn mark_arena(&mut self, arena: Option<Addr>) {
        for module in &mut self.data {
            let holds_it = arena.is_some_and(|at| module.ranges.iter().any(|range| range.contains(&at)));
            module.glibc = holds_it.then_some(None);
        }
    }
}

impl Object {
    /// Where these bytes first stand in its code.
    pub fn code_at(&self, wanted: &[u8]) -> Option<Addr> {
        let elf = Elf::parse(&self.bytes).ok()?;
        elf.segments().filter(|segment| segment.execute).find_map(|segment| {
            let start = usize::try_from(segment.offset).ok()?;
            let end = start.checked_add(usize::try_from(segment.file_size).ok()?)?;
            let at = self.bytes.get(start..end)?.windows(wanted.len()).position(|window| window == wanted)?;
            Some(self.bias.to_process(ObjAddr(segment.addr.0 + at as u64)))
        })
    }

    /// Whether it is the program, and no library.
    pub fn is_program(&self) -> bool {
        Elf::parse(&self.bytes).is_ok_and(|elf| elf.is_program())
    }

    /// Where one of its functions is.
    pub fn function(&self, name: &str) -> Option<Addr> {
        let elf = Elf::parse(&self.bytes).ok()?;
        let symbol = elf.find_symbol(name).filter(elf::Symbol::is_function)?;
        Some(self.bias.to_process(symbol.addr))
    }
}

/// With what a copy of process `pid` can be made: looked up before it stands still. None: there can be none, or it
/// would lack something.
pub fn means(pid: i32) -> Option<Means> {
    copy::is_copied_whole(pid).then(|| of_c_library(pid)).flatten()
}

/// What of the C library process `pid` can make system calls with, and a copy of itself. None: there is no C library.
pub(super) fn of_c_library(pid: i32) -> Option<Means> {
    let mappings = procfs::mappings(pid).ok()?;
    open(pid, pid, &mappings).found.iter().find_map(|object| {
        Some(Means {
            exit: object.function("_exit")?,
            system_call: object.code_at(&SYSTEM_CALL)?,
            restorer: object.code_at(&RESTORER)?,
        })
    })
}

/// Opens the files of the modules in `mappings` through the live task `tid` of process `pid`. Of a file that is gone,
/// the writable mappings stand for its data.
pub fn open(pid: i32, tid: i32, mappings: &[Mapping]) -> Objects {
    let root = TargetRoot::of(tid);
    objects(mappings, |mapped| {
        let mut opened = None;
        let mut accepts = |file: &File, same_inode: bool| {
            // overlayfs shows other inodes in the maps: then the segments must fit at least
            opened = Bytes::of_file(file).ok().filter(|bytes| (same_inode || !mapped.deleted) && fits(bytes, mapped));
            opened.is_some()
        };
        let file = files::open_module(pid, tid, root.as_ref(), mapped, &mut accepts)?;
        Some((file, opened?))
    })
}

/// Whether a file's segments can be what is mapped.
pub(super) fn fits(bytes: &[u8], mapped: &MappedModule) -> bool {
    Elf::parse(bytes).is_ok_and(|elf| elf.load_bias(&mapped.segments).is_some())
}

/// The modules in `mappings`, of which `open` gives the files.
pub(super) fn objects(mappings: &[Mapping], mut open: impl FnMut(&MappedModule) -> Option<(File, Bytes)>) -> Objects {
    let mut objects = Objects::default();
    for (id, mapped) in (0..).map(ModuleId).zip(maps::modules(mappings)) {
        if mapped.is_vdso() {
            continue;
        }
        match open(&mapped).and_then(|(file, bytes)| object(id, &mapped, file, bytes)) {
            Some((object, data)) => {
                objects.found.push(object);
                objects.data.push(data);
            }
            None => {
                let writable = mapped.segments.iter().filter(|segment| segment.perms.write && !segment.perms.shared);
                let ranges = writable.map(Mapping::range).collect();
                objects.data.push(ModuleData { id, ranges, tls_size: 0, glibc: None });
            }
        }
    }
    objects
}

fn object(id: ModuleId, mapped: &MappedModule, file: File, bytes: Bytes) -> Option<(Object, ModuleData)> {
    let elf = Elf::parse(&bytes).ok()?;
    let bias = elf.load_bias(&mapped.segments)?;
    let segments: Vec<_> = elf.segments().collect();
    let data = ModuleData { id, ranges: elf::writable(&segments, bias), tls_size: elf.tls_size(), glibc: None };
    let range = mapped.start()..mapped.end();
    let (path, bytes, file) = (mapped.path.clone(), Arc::new(bytes), Arc::new(file));
    Some((Object { id, path, bias, range, bytes, file }, data))
}
