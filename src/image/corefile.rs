//! A core file: the memory, registers and mappings of a process as the kernel, gdb's `gcore` or a crash handler has
//! kept them. Pure: a file is its bytes.
//!
//! ```text
//! ELF header (ET_CORE), program headers
//! PT_NOTE   of each thread NT_PRSTATUS (its registers) and NT_X86_XSTATE (its vector registers) …,
//!             first of the one that got the signal
//!           NT_PRPSINFO (the program's name), NT_AUXV (where the program and the vdso are),
//!           NT_FILE (which file is mapped where)
//! PT_LOAD   one a mapping: its addresses, and those of its bytes that were kept
//!             (core(5); fs/binfmt_elf.c of the kernel)
//! ```
//!
//! Of files that are mapped and were not written to, a core keeps the first page at most: the rest is read of the
//! files. What a core does not tell is inferred: which mappings are the brk area (by the end of the program's data) and
//! the first thread's stack (by what the kernel has put there), and which are shared (by their names).

mod memory;
mod notes;

use crate::arch::xsave::VectorWord;
use crate::arch::{PAGE_SIZE, Regs};
use crate::base::addr::Addr;
use crate::image::maps::{Kind, Mapping, Perms};
pub use memory::{CoreMemory, FilePart};
use notes::{MappedFile, Notes};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ops::Range;

/// The brk area begins at most so far behind the program's data (`arch_randomize_brk` of the kernel).
const LARGEST_BRK_GAP: u64 = 1 << 30;

/// How compressed files begin that cores are often kept as: zstd, lz4, xz, gzip.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "lz4"), (b"\xfd7zXZ", "xz"), (b"\x1f\x8b", "gzip")];

/// Why a file can't be read as a core.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum CoreFileError {
    #[error("this is not a core file")]
    Foreign,
    #[error("this is a program or a library, not a core file")]
    Program,
    #[error("it is compressed with {0}: uncompress it first (`coredumpctl dump -o core` does that, too)")]
    Compressed(&'static str),
    #[error("it is a core of another kind of machine or of a 32-bit program: heaptrace reads those of x86-64")]
    Machine,
    #[error("it ends before its description of the process: it was not written or copied to its end")]
    Torn,
    #[error("the core is damaged: {0}")]
    Damaged(&'static str),
}

/// A thread as it stood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreThread {
    /// Its id.
    pub tid: i32,
    /// Its registers.
    pub regs: Regs,
    /// What its vector registers held, word by word; empty for one in a system call, which keeps none for the program.
    pub vectors: Vec<VectorWord>,
}

/// Memory whose bytes are in the core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Where the process had it.
    pub range: Range<Addr>,
    /// Where its first byte is in the file.
    pub offset: u64,
}

/// What a core says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoreFile {
    /// The process's id; 0 if the core does not say.
    pub pid: i32,
    /// The name of its program, which the kernel cuts after 15 bytes.
    pub program: String,
    /// Its threads; the one that got the signal first.
    pub threads: Vec<CoreThread>,
    /// All mappings in the order of addresses. One of a file that is known by its name only has no permissions.
    pub mappings: Vec<Mapping>,
    /// What of them is in the file, in the order of addresses, apart from each other.
    pub stored: Vec<Stored>,
    /// How many bytes should be in the file and are not: it was cut.
    pub missing: u64,
    /// An address in the program's own file, if the core says.
    pub entry: Option<Addr>,
}

/// Whether a file that begins so is a core.
pub fn begins_as_core(data: &[u8]) -> bool {
    data.starts_with(b"\x7fELF") && data.get(16..18) == Some(&elf::ET_CORE.0.to_le_bytes())
}

/// Reads the bytes of a core.
///
/// # Errors
/// They are none, or none that can be read.
pub fn parse(data: &[u8]) -> Result<CoreFile, CoreFileError> {
    let headers = program_headers(data)?;
    let mut notes = Notes::default();
    for header in headers.iter().filter(|header| header.p_type(LE) == elf::PT_NOTE) {
        notes.read(header.data(LE, data).map_err(|()| CoreFileError::Torn)?);
    }
    if notes.threads.is_empty() {
        return Err(CoreFileError::Damaged("it has no thread"));
    }
    notes.files.sort_by_key(|file| file.range.start);
    let mut core = CoreFile {
        pid: notes.pid.or(notes.threads.first().map(|thread| thread.tid)).unwrap_or(0),
        program: notes.program,
        threads: notes.threads,
        entry: notes.auxiliary.entry.map(Addr),
        ..CoreFile::default()
    };
    let mut loads: Vec<&ProgramHeader64<LE>> =
        headers.iter().filter(|header| header.p_type(LE) == elf::PT_LOAD && header.p_memsz(LE) > 0).collect();
    loads.sort_by_key(|header| header.p_vaddr(LE));
    for header in loads {
        core.add_load(header, &notes.files, data.len() as u64);
    }
    core.add_files_without_memory(&notes.files);
    let auxiliary = notes.auxiliary;
    core.name_kernels(&[auxiliary.random, auxiliary.program_name], auxiliary.vdso);
    let data_end = auxiliary.program_headers.and_then(|at| core.data_end(at, auxiliary.program_header_count, data));
    core.name_brk_area(data_end);
    Ok(core)
}

fn program_headers(data: &[u8]) -> Result<&[ProgramHeader64<LE>], CoreFileError> {
    if let Some((_, packer)) = COMPRESSED.iter().find(|(magic, _)| data.starts_with(magic)) {
        return Err(CoreFileError::Compressed(packer));
    }
    if !data.starts_with(b"\x7fELF") {
        return Err(CoreFileError::Foreign);
    }
    let half = |at: usize| Some(u16::from_le_bytes(*data.get(at..)?.first_chunk::<2>()?));
    let (class, encoding) = (data.get(4).copied(), data.get(5).copied());
    if class != Some(elf::ELFCLASS64.0) || encoding != Some(elf::ELFDATA2LSB.0) || half(18) != Some(elf::EM_X86_64.0) {
        return Err(if data.len() < 20 { CoreFileError::Torn } else { CoreFileError::Machine });
    }
    if half(16) != Some(elf::ET_CORE.0) {
        return Err(CoreFileError::Program);
    }
    let header = FileHeader64::<LE>::parse(data).map_err(|_| CoreFileError::Torn)?;
    header.program_headers(LE, data).map_err(|_| CoreFileError::Torn)
}

impl CoreFile {
    fn add_load(&mut self, header: &ProgramHeader64<LE>, files: &[MappedFile], length: u64) {
        let before = self.mappings.last().map_or(0, |mapping| mapping.end.0);
        let start = header.p_vaddr(LE);
        let Some(end) = start.checked_add(header.p_memsz(LE)).filter(|_| start >= before) else { return };
        let range = Addr(start)..Addr(end);
        let flags = header.p_flags(LE);
        let perms = Perms {
            read: flags.contains(elf::PF_R),
            write: flags.contains(elf::PF_W),
            execute: flags.contains(elf::PF_X),
            shared: false,
        };
        let behind = files.partition_point(|file| file.range.start <= range.start);
        let file =
            behind.checked_sub(1).and_then(|last| files.get(last)).filter(|file| file.range.contains(&range.start));
        self.mappings.push(mapping(range, perms, file));

        let kept = header.p_filesz(LE).min(header.p_memsz(LE));
        let there = length.saturating_sub(header.p_offset(LE)).min(kept);
        self.missing = self.missing.saturating_add(kept - there);
        if there > 0 {
            self.stored.push(Stored { range: Addr(start)..Addr(start + there), offset: header.p_offset(LE) });
        }
    }

    /// gdb leaves out what no byte is kept of. That a file was mapped there is known nevertheless.
    fn add_files_without_memory(&mut self, files: &[MappedFile]) {
        let mut added: Vec<Mapping> = Vec::new();
        for file in files {
            let behind = self.mappings.partition_point(|mapping| mapping.end <= file.range.start);
            let is_free = self.mappings.get(behind).is_none_or(|next| next.start >= file.range.end);
            let is_new = added.last().is_none_or(|last| last.end <= file.range.start);
            if is_free && is_new && file.range.start < file.range.end {
                added.push(mapping(file.range.clone(), Perms::default(), Some(file)));
            }
        }
        if !added.is_empty() {
            self.mappings.extend(added);
            self.mappings.sort_by_key(|mapping| mapping.start);
        }
    }

    /// The first thread's stack holds what the kernel has put at its end; the vdso is where the kernel has told the
    /// program, and its data before it.
    fn name_kernels(&mut self, on_stack: &[Option<u64>], vdso: Option<u64>) {
        let mut before: Option<usize> = None;
        for number in 0..self.mappings.len() {
            let Some(mapping) = self.mappings.get_mut(number).filter(|mapping| mapping.kind == Kind::Anonymous) else {
                continue;
            };
            let start = mapping.start;
            if on_stack.iter().flatten().any(|&at| mapping.contains(Addr(at))) {
                mapping.kind = Kind::Stack;
            } else if vdso == Some(start.0) {
                mapping.kind = Kind::Vdso;
                mapping.path = Some("[vdso]".into());
                // one or two mappings with no byte in the core
                let mut end = start;
                while let Some(data) = before.and_then(|before| self.mappings.get_mut(before))
                    && data.end == end
                    && data.kind == Kind::Anonymous
                    && !data.perms.write
                {
                    data.kind = Kind::Vvar;
                    end = data.start;
                    before = before.and_then(|before| before.checked_sub(1));
                }
            } else if start.0 >= 1 << 63 {
                mapping.kind = Kind::Vsyscall;
            }
            before = Some(number);
        }
    }

    /// The end of the program's data, by its program headers at `at` in memory.
    fn data_end(&self, at: u64, count: u64, data: &[u8]) -> Option<Addr> {
        let mut memory = CoreMemory::new(self, data, &[]);
        let table = memory::read_exact(&mut memory, Addr(at), count.checked_mul(56).filter(|size| *size < 1 << 20)?)?;
        let headers: Vec<[u64; 3]> = table
            .chunks_exact(56)
            .filter_map(|header| {
                let word = |place| crate::base::memory::word(header, place);
                let kind = u64::from(u32::from_le_bytes(*header.first_chunk::<4>()?));
                Some([kind, word(16)?, word(40)?])
            })
            .collect();
        // a program without one is loaded where its headers say
        let own = headers.iter().find(|[kind, ..]| *kind == u64::from(elf::PT_PHDR.0));
        let bias = own.map_or(0, |[_, vaddr, _]| at.wrapping_sub(*vaddr));
        let loads = headers.iter().filter(|[kind, ..]| *kind == u64::from(elf::PT_LOAD.0));
        let end = loads.filter_map(|[_, vaddr, size]| vaddr.checked_add(*size)).max()?;
        Some(Addr(bias.wrapping_add(end)))
    }

    /// The brk area: the first writable memory without a file behind the program's data, and what follows it without a
    /// gap.
    fn name_brk_area(&mut self, data_end: Option<Addr>) {
        let Some(data_end) = data_end.and_then(|end| end.0.checked_next_multiple_of(PAGE_SIZE)).map(Addr) else {
            return;
        };
        let limit = Addr(data_end.0.saturating_add(LARGEST_BRK_GAP));
        let mut end = None;
        for mapping in self.mappings.iter_mut().filter(|mapping| mapping.end > data_end) {
            let is_candidate = mapping.kind == Kind::Anonymous && mapping.perms.write;
            match end {
                None if mapping.start > limit => return,
                None if is_candidate => {}
                None => continue,
                Some(end) if is_candidate && mapping.start == end => {}
                Some(_) => return,
            }
            mapping.kind = Kind::Heap;
            end = Some(mapping.end);
        }
    }
}

fn mapping(range: Range<Addr>, perms: Perms, file: Option<&MappedFile>) -> Mapping {
    let Range { start, end } = range;
    let mut mapping = Mapping {
        start,
        end,
        perms,
        offset: 0,
        dev: crate::image::maps::Device::default(),
        inode: 0,
        path: None,
        deleted: false,
        kind: Kind::Anonymous,
    };
    if let Some(file) = file {
        mapping.kind = Kind::File;
        mapping.offset = file.offset.saturating_add(start.0.saturating_sub(file.range.start.0));
        mapping.deleted = file.deleted;
        mapping.perms.shared = file.is_shared_memory();
        mapping.path = Some(file.path.clone());
    }
    mapping
}

#[cfg(test)]
mod tests;
