//! The modules of a process that nobody traces: where their data is, and where their names can be had.

use crate::addr::{Addr, LoadBias, ModuleId};
use crate::elf::Elf;
use crate::leaks::roots::ModuleData;
use crate::maps::{self, MappedModule, Mapping};
use crate::memory::ReadMemory;
use crate::symbols::{Bytes, FileVersion, ModuleMemory, ModuleSource};
use crate::tracer::files;
use crate::tracer::root::TargetRoot;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// So much of a module's memory is read where its file is not to be had, in bytes.
const MOST_MEMORY: u64 = 16 << 20;
/// So much of its beginning, which has the headers and mostly the build id.
const HEAD: u64 = 4096;

/// A module.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) data: ModuleData,
    pub(super) range: Range<Addr>,
    pub(super) bias: LoadBias,
    pub(super) source: ModuleSource,
}

/// Finds them, through the live task `tid`. `arena`: where glibc's main arena is.
pub(super) fn find(
    pid: i32,
    tid: i32,
    root: Option<&TargetRoot>,
    mappings: &[Mapping],
    arena: Option<Addr>,
    memory: &mut dyn ReadMemory,
) -> Vec<Module> {
    let mapped = maps::modules(mappings);
    let mapped = mapped.iter().filter(|module| !module.is_vdso());
    mapped
        .enumerate()
        .filter_map(|(number, module)| {
            look(ModuleId(u32::try_from(number).ok()?), pid, tid, root, module, arena, memory)
        })
        .collect()
}

fn look(
    id: ModuleId,
    pid: i32,
    tid: i32,
    root: Option<&TargetRoot>,
    mapped: &MappedModule,
    arena: Option<Addr>,
    memory: &mut dyn ReadMemory,
) -> Option<Module> {
    let range = mapped.start()..mapped.end();
    let head = read(mapped.start()..mapped.start().add(HEAD).min(mapped.end()), memory);
    let wanted = Elf::parse_memory(&head, mapped.start()).ok().and_then(|elf| elf.build_id_hex());
    let mut bytes = None;
    let mut accepts = |file: &File, same: bool| {
        let found = Bytes::of_file(file).ok().filter(|bytes| match (Elf::parse(bytes), &wanted) {
            (Ok(elf), Some(_)) => elf.build_id_hex() == wanted,
            (Ok(_), None) => same && !head.is_empty() && bytes.starts_with(head.get(..64).unwrap_or(&head)),
            (Err(_), _) => false,
        });
        bytes = found;
        bytes.is_some()
    };
    let file = files::open_module(pid, tid, root, mapped, &mut accepts);
    let image = match &bytes {
        Some(_) => None,
        None => {
            let end = mapped.end().min(mapped.start().add(MOST_MEMORY));
            let bytes = read(mapped.start()..end, memory);
            Some(ModuleMemory { start: mapped.start(), bytes: bytes.into() })
        }
    };
    let elf = match (&bytes, &image) {
        (Some(bytes), _) => Elf::parse(bytes).ok()?,
        (None, Some(image)) => Elf::parse_memory(&image.bytes, image.start).ok()?,
        (None, None) => return None,
    };
    let bias = elf.load_bias(&mapped.segments)?;
    let writable = elf.segments().filter(|segment| segment.write && segment.mem_size > 0);
    let data = ModuleData {
        id,
        ranges: writable.map(|segment| bias.to_process(segment.addr)..bias.to_process(segment.end())).collect(),
        tls_size: elf.tls_size(),
        glibc: arena.is_some_and(|arena| range.contains(&arena)).then_some(None),
    };
    let version = file.as_ref().and_then(FileVersion::of);
    let source = ModuleSource {
        path: mapped.path.clone(),
        build_id: elf.build_id_hex(),
        file: file.map(Arc::new),
        version,
        memory: image,
    };
    Some(Module { data, range, bias, source })
}

/// The bytes of a range, zeros where they can't be read.
fn read(range: Range<Addr>, memory: &mut dyn ReadMemory) -> Vec<u8> {
    let size = usize::try_from(range.end.0.saturating_sub(range.start.0)).unwrap_or(0);
    let mut bytes = vec![0; size];
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let read = memory.read(range.start.add(at as u64), rest);
        at = if read == 0 { (at + 4096) / 4096 * 4096 } else { at + read };
    }
    bytes
}
