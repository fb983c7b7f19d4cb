//! What heaptrace needs of an ELF file, parsed from its bytes. Pure: the bytes come from a file, from the target's
//! memory (the vdso, deleted files) or from a test.
//!
//! The format is that of the System V gABI and the x86-64 psABI. A file is taken as far as it can be understood: only
//! its header and program headers must be right, while a damaged section or symbol table counts as absent.

use crate::arch::PAGE_SIZE;
use crate::base::addr::{Addr, LoadBias, ObjAddr};
use crate::image::maps::{Kind, Mapping};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionTable};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

mod dynamic;
mod links;
mod minidebug;
mod sections;
mod slots;
mod stackwalk;
mod symbols;
mod tls;
mod unpacking;
mod unwinding;

pub use links::{DebugLink, hex};
pub use minidebug::unpacked_object;
pub use sections::Sections;
pub use slots::SlotOf;
pub use stackwalk::has_jemalloc;
pub use symbols::{Binding, PlainSymbols, Symbol, SymbolKind, Table, base_name};
pub use tls::{Tls, TlsSlot, TlsSlotKind};
pub use unpacking::mind_available_memory;

type Header = elf::FileHeader64<LE>;

/// Why bytes are not taken as an ELF object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElfError {
    /// The magic number is missing.
    #[error("not an ELF file")]
    NotElf,
    /// A 32-bit program of the x32 ABI.
    #[error("an x32 program (32-bit pointers on x86-64), which is not supported")]
    X32,
    /// A 32-bit program for some machine.
    #[error("a 32-bit program, which is not supported")]
    Class32,
    /// A 64-bit program for another machine.
    #[error("a program for another machine (ELF machine number {0}), not for x86-64")]
    Machine(u16),
    /// Neither program nor shared object: an object file, a core dump.
    #[error("neither a program nor a shared object (ELF type {0})")]
    Type(u16),
    /// The headers contradict the bytes.
    #[error("damaged ELF file: {0}")]
    Damaged(&'static str),
    /// A compressed section is out of proportion, or of what memory is free.
    #[error(
        "heaptrace ignores a compressed section of {} that claims to be {}: that is implausible, or more than the free \
         memory",
        unpacking::human(*packed), unpacking::human(*size)
    )]
    Unpacked {
        /// Its bytes in the file.
        packed: u64,
        /// What it says that they become.
        size: u64,
    },
}

/// A PT_LOAD program header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where its first byte is.
    pub addr: ObjAddr,
    /// Its size in memory in bytes; what exceeds `file_size` is zeros.
    pub mem_size: u64,
    /// Where its bytes are in the file.
    pub offset: u64,
    /// How many bytes of it are in the file.
    pub file_size: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
}

impl Segment {
    /// One past its last byte in memory.
    pub const fn end(&self) -> ObjAddr {
        ObjAddr(self.addr.0.saturating_add(self.mem_size))
    }

    /// Whether `addr` lies in it.
    pub fn contains(&self, addr: ObjAddr) -> bool {
        (self.addr..self.end()).contains(&addr)
    }
}

/// Unused bytes between the end of a segment and the end of its last page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slack {
    /// The first of them.
    pub addr: ObjAddr,
    /// Their number.
    pub size: u64,
}

/// A 64-bit little-endian x86-64 program or shared object.
#[derive(Clone, Copy, Debug)]
pub struct Elf<'d> {
    data: &'d [u8],
    image: Image,
    header: &'d Header,
    program_headers: &'d [elf::ProgramHeader64<LE>],
    sections: Sections<'d>,
}

/// How addresses and file offsets lead to bytes.
#[derive(Clone, Copy, Debug)]
enum Image {
    File,
    Memory {
        /// Where the first byte is in the process.
        start: Addr,
        /// The object address of the first byte.
        base: ObjAddr,
    },
}

impl<'d> Elf<'d> {
    /// Parses the bytes of a file. They must be aligned to 8 bytes, as allocated and mapped memory is.
    ///
    /// # Errors
    /// Not ELF, not of our machine, or damaged headers.
    pub fn parse(data: &'d [u8]) -> Result<Self, ElfError> {
        let (header, program_headers) = headers(data, is_loadable)?;
        let sections = Sections { file: data, table: header.sections(LE, data).unwrap_or_default() };
        Ok(Self { data, image: Image::File, header, program_headers, sections })
    }

    /// Parses a file that holds debug information only: split DWARF (`.dwo`, `.dwp`), shared DWARF as dwz makes it. It
    /// is never loaded, so that its type does not matter (mostly it is an object file's). Otherwise as [`Elf::parse`].
    ///
    /// # Errors
    /// Not ELF, not of our machine, or damaged headers.
    pub fn parse_debug(data: &'d [u8]) -> Result<Self, ElfError> {
        let (header, program_headers) = headers(data, |_| true)?;
        let sections = Sections { file: data, table: header.sections(LE, data).unwrap_or_default() };
        Ok(Self { data, image: Image::File, header, program_headers, sections })
    }

    /// Parses an object from the memory that it is mapped to: `data` begins with the ELF header, at `start` in the
    /// process, and has all segments at their distances (holes filled with anything). There are no section
    /// headers in this view; symbols come from PT_DYNAMIC.
    ///
    /// # Errors
    /// Not ELF, not of our machine, or damaged headers.
    pub fn parse_memory(data: &'d [u8], start: Addr) -> Result<Self, ElfError> {
        let (header, program_headers) = headers(data, is_loadable)?;
        let first = program_headers.iter().filter(|h| h.p_type(LE) == elf::PT_LOAD).map(|h| h.p_vaddr(LE)).min();
        let base = ObjAddr(page_floor(first.ok_or(ElfError::Damaged("no segment to load"))?));
        let image = Image::Memory { start, base };
        Ok(Self {
            data,
            image,
            header,
            program_headers,
            sections: Sections { file: data, table: SectionTable::default() },
        })
    }

    /// Its sections.
    pub const fn sections(&self) -> Sections<'d> {
        self.sections
    }

    /// Whether no dynamic linker loads it or its libraries: a static (or static-pie) program, the vdso, ld.so itself.
    pub fn is_static(&self) -> bool {
        self.interpreter().is_none() && self.needed().is_empty()
    }

    /// The address of its first instruction; 0 in libraries.
    pub fn entry(&self) -> ObjAddr {
        ObjAddr(self.header.e_entry(LE))
    }

    /// The dynamic linker that it asks for (PT_INTERP).
    pub fn interpreter(&self) -> Option<PathBuf> {
        let header = self.program_header(elf::PT_INTERP)?;
        let bytes = self.header_bytes(header)?;
        let path = bytes.split(|&b| b == 0).next().filter(|p| !p.is_empty())?;
        Some(PathBuf::from(OsStr::from_bytes(path)))
    }

    /// The segments to load, in the order of the headers (ascending addresses).
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'d> {
        self.program_headers.iter().filter(|h| h.p_type(LE) == elf::PT_LOAD).map(|h| {
            let flags = h.p_flags(LE);
            Segment {
                addr: ObjAddr(h.p_vaddr(LE)),
                mem_size: h.p_memsz(LE),
                offset: h.p_offset(LE),
                file_size: h.p_filesz(LE),
                read: flags.contains(elf::PF_R),
                write: flags.contains(elf::PF_W),
                execute: flags.contains(elf::PF_X),
            }
        })
    }

    /// What of a segment comes from the file.
    pub fn segment_bytes(&self, segment: &Segment) -> Option<&'d [u8]> {
        let rest = self.bytes_from(segment.addr)?;
        rest.get(..usize::try_from(segment.file_size).ok()?.min(rest.len()))
    }

    /// Whether it may be loaded anywhere, so that its code and tables hold no addresses as they are.
    pub fn is_moved(&self) -> bool {
        self.header.e_type(LE) == elf::ET_DYN
    }

    /// The unused bytes behind each executable segment, up to the end of its last page or the next segment.
    ///
    /// The process has the file's next bytes there (the page is mapped whole), in most files zeros: look before use.
    pub fn executable_slack(&self) -> Vec<Slack> {
        self.segments()
            .filter(|s| s.execute && s.mem_size == s.file_size)
            .filter_map(|s| {
                let page_end = s.end().0.checked_next_multiple_of(PAGE_SIZE)?;
                let next = self.segments().map(|n| n.addr.0).filter(|&n| n >= s.end().0).min();
                let end = next.map_or(page_end, |n| page_end.min(page_floor(n)));
                let size = end.checked_sub(s.end().0).filter(|&size| size > 0)?;
                Some(Slack { addr: s.end(), size })
            })
            .collect()
    }

    /// Where the object is loaded, told from the mappings of its file. Executable ones are trusted first: data segments
    /// may share a page of the file with others, and so be mapped at several addresses.
    pub fn load_bias(&self, mappings: &[Mapping]) -> Option<LoadBias> {
        if let Image::Memory { start, base } = self.image {
            return Some(LoadBias(start.0.wrapping_sub(base.0)));
        }
        load_bias(&self.segments().collect::<Vec<_>>(), mappings)
    }

    fn program_header(&self, p_type: elf::ProgramType) -> Option<&'d elf::ProgramHeader64<LE>> {
        self.program_headers.iter().find(|h| h.p_type(LE) == p_type)
    }

    /// The bytes that a program header stands for.
    fn header_bytes(&self, header: &elf::ProgramHeader64<LE>) -> Option<&'d [u8]> {
        match self.image {
            Image::File => header.data(LE, self.data).ok(),
            Image::Memory { .. } => slice(self.bytes_from(ObjAddr(header.p_vaddr(LE)))?, 0, header.p_filesz(LE)),
        }
    }

    /// The bytes from `addr` to the end of its segment's file part (file), or of the image (memory).
    fn bytes_from(&self, addr: ObjAddr) -> Option<&'d [u8]> {
        match self.image {
            Image::File => {
                let segment = self.segments().find(|s| s.contains(addr))?;
                let skip = addr.0 - segment.addr.0;
                let rest = segment.file_size.checked_sub(skip)?;
                slice(self.data, segment.offset.checked_add(skip)?, rest)
            }
            Image::Memory { base, .. } => {
                let offset = addr.0.checked_sub(base.0)?;
                self.data.get(usize::try_from(offset).ok()?..)
            }
        }
    }

    /// What a pointer of PT_DYNAMIC stands for: the dynamic linker replaces the object addresses there by process
    /// addresses, in most objects.
    fn dynamic_pointer(&self, value: u64) -> ObjAddr {
        match self.image {
            Image::Memory { start, base } if (start.0..=start.add(self.data.len() as u64).0).contains(&value) => {
                LoadBias(start.0.wrapping_sub(base.0)).to_object(Addr(value))
            }
            _ => ObjAddr(value),
        }
    }
}

/// Where the writable ones of an object's segments are in a process.
pub fn writable(segments: &[Segment], bias: LoadBias) -> Vec<Range<Addr>> {
    let writable = segments.iter().filter(|segment| segment.write && segment.mem_size > 0);
    writable.map(|segment| bias.to_process(segment.addr)..bias.to_process(segment.end())).collect()
}

/// As [`Elf::load_bias`] of the file with these segments.
pub fn load_bias(segments: &[Segment], mappings: &[Mapping]) -> Option<LoadBias> {
    let bias_of = |mapping: &Mapping| {
        let covers = |s: &&Segment| {
            let end = s.offset.checked_add(s.file_size).and_then(|e| e.checked_next_multiple_of(PAGE_SIZE));
            s.execute == mapping.perms.execute
                && (s.write || s.execute || !mapping.perms.write)
                && page_floor(s.offset) <= mapping.offset
                && end.is_some_and(|end| mapping.offset < end)
        };
        let segment = segments.iter().find(covers)?;
        let object = segment.addr.0.wrapping_add(mapping.offset).wrapping_sub(segment.offset);
        Some(LoadBias(mapping.start.0.wrapping_sub(object)))
    };
    let files = || mappings.iter().filter(|m| m.kind == Kind::File);
    files().filter(|m| m.perms.execute).chain(files().filter(|m| !m.perms.execute)).find_map(bias_of)
}

fn is_loadable(e_type: u16) -> bool {
    e_type == elf::ET_EXEC.0 || e_type == elf::ET_DYN.0
}

/// Checks the identification and reads the headers that everything depends on.
fn headers(data: &[u8], accepts: impl Fn(u16) -> bool) -> Result<(&Header, &[elf::ProgramHeader64<LE>]), ElfError> {
    // e_ident: magic, class, data encoding; e_type and e_machine stand at 16 and 18 in every class.
    if !data.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    let (class, encoding) = (data.get(4), data.get(5));
    let half = |at| Some(u16::from_le_bytes([*data.get(at)?, *data.get(at + 1)?]));
    let (e_type, machine) = half(16).zip(half(18)).ok_or(ElfError::Damaged("the header is cut off"))?;
    if encoding != Some(&elf::ELFDATA2LSB.0) {
        return Err(ElfError::Machine(machine.swap_bytes()));
    }
    if class == Some(&elf::ELFCLASS32.0) {
        return Err(if machine == elf::EM_X86_64.0 { ElfError::X32 } else { ElfError::Class32 });
    }
    if machine != elf::EM_X86_64.0 {
        return Err(ElfError::Machine(machine));
    }
    if !accepts(e_type) {
        return Err(ElfError::Type(e_type));
    }
    let header = Header::parse(data).map_err(|_| ElfError::Damaged("the header is cut off or misaligned"))?;
    let program_headers = header
        .program_headers(LE, data)
        .map_err(|_| ElfError::Damaged("the program headers lie outside of the file"))?;
    Ok((header, program_headers))
}

fn slice(data: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    data.get(start..start.checked_add(usize::try_from(size).ok()?)?)
}

const fn page_floor(addr: u64) -> u64 {
    addr - addr % PAGE_SIZE
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
