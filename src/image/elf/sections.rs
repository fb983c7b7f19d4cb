//! Sections, notes and links to separate debug files.

use super::{Elf, ElfError, Header, page_floor, slice, unpacking};
use crate::base::addr::{LoadBias, ModuleId, ObjAddr};
use crate::unwinder::{Section, UnwindModule};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{CompressionHeader, NoteIterator, ProgramHeader, SectionHeader};
use object::read::{CompressedData, CompressionFormat};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The longest path that a file may name another by, in bytes (PATH_MAX).
const LONGEST_PATH: usize = 4096;

/// The longest build id, in bytes: usual ones have 8 to 32, of their own choice some more.
const LONGEST_BUILD_ID: usize = 1024;

const UNPACKABLE: ElfError = ElfError::Damaged("a section can't be uncompressed");

/// `.gnu_debuglink`: the name of a separate debug file, as `objcopy --add-gnu-debuglink` writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DebugLink<'d> {
    /// A file name without folders.
    pub name: &'d [u8],
    /// The CRC-32 (as in gzip) of the whole debug file.
    pub crc: u32,
}

/// `.gnu_debugaltlink`: the file that dwz has moved shared DWARF to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AltLink<'d> {
    /// Absolute, or relative to the folder of the file that has the link.
    pub path: &'d [u8],
    /// The file's build id.
    pub build_id: &'d [u8],
}

impl<'d> Elf<'d> {
    /// The build id (NT_GNU_BUILD_ID), 20 bytes mostly.
    pub fn build_id(&self) -> Option<&'d [u8]> {
        // Debug files keep the note's section while their program headers point nowhere; stripped files and memory
        // images may have program headers only.
        let by_section = self.sections.iter().filter_map(|s| s.notes(LE, self.data).ok().flatten());
        let by_header = self.program_headers.iter().filter(|h| h.p_type(LE) == elf::PT_NOTE).filter_map(|h| {
            // An alignment of 0 or 1 means 4.
            NoteIterator::<Header>::new(LE, h.p_align(LE).max(4), self.header_bytes(h)?).ok()
        });
        by_section.chain(by_header).find_map(build_id_of)
    }

    /// The build id as lower-case hex.
    pub fn build_id_hex(&self) -> Option<String> {
        self.build_id().map(hex)
    }

    /// The link to the separate debug file.
    pub fn debug_link(&self) -> Option<DebugLink<'d>> {
        let data = self.raw_section(".gnu_debuglink")?;
        let name = data.split(|&b| b == 0).next().filter(|n| (1..=LONGEST_PATH).contains(&n.len()))?;
        // The name's terminator and padding to 4 bytes lie between.
        let crc = slice(data, (name.len() as u64 + 1).checked_next_multiple_of(4)?, 4)?;
        Some(DebugLink { name, crc: u32::from_le_bytes(crc.try_into().ok()?) })
    }

    /// The link to the file of shared DWARF.
    pub fn debug_alt_link(&self) -> Option<AltLink<'d>> {
        let data = self.raw_section(".gnu_debugaltlink")?;
        let path = data.split(|&b| b == 0).next().filter(|p| (1..=LONGEST_PATH).contains(&p.len()))?;
        let build_id = data.get(path.len() + 1..).filter(|id| id.len() <= LONGEST_BUILD_ID)?;
        Some(AltLink { path, build_id })
    }

    /// Whether there is a section of this name with bytes in the file.
    pub fn has_section(&self, name: &str) -> bool {
        self.section_header(name).is_some_and(|s| s.sh_type(LE) != elf::SHT_NOBITS && s.sh_size(LE) > 0)
    }

    /// Whether it describes functions, lines and types (DWARF's `.debug_info`, compressed or not).
    pub fn has_debug_info(&self) -> bool {
        self.has_section(".debug_info") || self.has_section(".zdebug_info")
    }

    /// Whether it has unwind tables that are not loaded (DWARF's `.debug_frame`, compressed or not).
    pub fn has_debug_frame(&self) -> bool {
        self.has_section(".debug_frame") || self.has_section(".zdebug_frame")
    }

    /// The object addresses of a section of this name.
    pub fn section_range(&self, name: &str) -> Option<Range<ObjAddr>> {
        let section = self.section_header(name)?;
        let start = section.sh_addr(LE);
        Some(ObjAddr(start)..ObjAddr(start.checked_add(section.sh_size(LE))?))
    }

    /// The object addresses of the section with this index; `None` also if it is not loaded.
    pub fn section_range_by_index(&self, index: u16) -> Option<Range<ObjAddr>> {
        let section = self.sections.section(object::read::SectionIndex(usize::from(index))).ok()?;
        let start = Some(section.sh_addr(LE)).filter(|&a| a != 0)?;
        Some(ObjAddr(start)..ObjAddr(start.checked_add(section.sh_size(LE))?))
    }

    /// Whether the section with this index holds instructions.
    pub fn is_code_section(&self, index: u16) -> bool {
        let section = self.sections.section(object::read::SectionIndex(usize::from(index)));
        section.is_ok_and(|section| section.sh_flags(LE).contains(elf::SHF_EXECINSTR))
    }

    /// A section's bytes, uncompressed. `None` if there is no such section, or none of its bytes are in the file.
    ///
    /// # Errors
    /// The section lies outside of the file or can't be uncompressed.
    pub fn section_data(&self, name: &str) -> Result<Option<Cow<'d, [u8]>>, ElfError> {
        self.section_in_file(name).map(|(section, is_old)| self.uncompressed(section, is_old)).transpose()
    }

    /// The size in bytes that a section has once it is uncompressed, where [`Elf::section_beginning`] can uncompress
    /// the beginning alone: it is compressed with zlib, and may be uncompressed.
    pub fn size_of_inflated(&self, name: &str) -> Option<usize> {
        let (section, is_old) = self.section_in_file(name)?;
        let compressed = self.compressed(section, is_old).ok().flatten()?;
        let size = usize::try_from(compressed.uncompressed_size).ok()?;
        (compressed.format == CompressionFormat::Zlib).then_some(size)
    }

    /// The first `size` bytes of a section that zlib has compressed; the rest is not uncompressed. `None`: it is
    /// compressed in another way or not at all, or it has fewer bytes.
    ///
    /// # Errors
    /// Those of [`Elf::section_data`], as far as they show in what is uncompressed: the checksum is at the end.
    pub fn section_beginning(&self, name: &str, size: usize) -> Result<Option<Vec<u8>>, ElfError> {
        let Some((section, is_old)) = self.section_in_file(name) else { return Ok(None) };
        let Some(compressed) = self.compressed(section, is_old)? else { return Ok(None) };
        if compressed.format != CompressionFormat::Zlib || compressed.uncompressed_size < size as u64 {
            return Ok(None);
        }
        unpacking::beginning(compressed.data, size).ok_or(UNPACKABLE).map(Some)
    }

    /// The section of this name that has bytes in the file, and whether it is compressed in the old style.
    fn section_in_file(&self, name: &str) -> Option<(&'d elf::SectionHeader64<LE>, bool)> {
        let compressed_name = name.strip_prefix(".debug_").map(|rest| format!(".zdebug_{rest}"));
        let named = |name: &str| self.section_header(name).filter(|s| s.sh_type(LE) != elf::SHT_NOBITS);
        let plain = named(name).map(|section| (section, false));
        plain.or_else(|| compressed_name.as_deref().and_then(named).map(|section| (section, true)))
    }

    /// How many bytes unpacking the sections of this name takes; 0: none is compressed.
    pub fn unpacked_size(&self, name: &str) -> u64 {
        let old_name = name.strip_prefix(".debug_").map(|rest| format!(".zdebug_{rest}"));
        let size = |section: &elf::SectionHeader64<LE>| {
            let found = self.sections.section_name(LE, section).ok()?;
            let is_old = old_name.as_deref().is_some_and(|name| found == name.as_bytes());
            let is_new = found == name.as_bytes() && section.sh_flags(LE).contains(elf::SHF_COMPRESSED);
            let data = (is_old || is_new).then(|| section.data(LE, self.data).ok()).flatten()?;
            let compressed = if is_old { old_compression(data) } else { new_compression(data) };
            compressed.map(|compressed| compressed.uncompressed_size)
        };
        self.sections.iter().filter_map(size).fold(0, u64::saturating_add)
    }

    /// The bytes of all sections of this name, one behind the other: object files may have several.
    ///
    /// # Errors
    /// As [`Elf::section_data`].
    pub fn joined_section_data(&self, name: &str) -> Result<Cow<'d, [u8]>, ElfError> {
        let is_named = |section: &&elf::SectionHeader64<LE>| {
            self.sections.section_name(LE, section).is_ok_and(|found| found == name.as_bytes())
        };
        let mut sections = self.sections.iter().filter(is_named);
        let (Some(first), Some(second)) = (sections.next(), sections.next()) else {
            return Ok(self.section_data(name)?.unwrap_or_default());
        };
        let mut joined = Vec::new();
        let mut left = self.data.len() as u64;
        for section in [first, second].into_iter().chain(sections) {
            let overlap = ElfError::Damaged("sections overlap");
            left = left.checked_sub(section.sh_size(LE)).ok_or(overlap)?;
            joined.extend_from_slice(&self.uncompressed(section, false)?);
        }
        Ok(Cow::Owned(joined))
    }

    fn uncompressed(&self, section: &elf::SectionHeader64<LE>, old_style: bool) -> Result<Cow<'d, [u8]>, ElfError> {
        match self.compressed(section, old_style)? {
            Some(compressed) => compressed.decompress().map_err(|_| UNPACKABLE),
            None => Ok(Cow::Borrowed(self.bytes_of(section)?)),
        }
    }

    /// The bytes of a section as they are in the file.
    fn bytes_of(&self, section: &elf::SectionHeader64<LE>) -> Result<&'d [u8], ElfError> {
        section.data(LE, self.data).map_err(|_| ElfError::Damaged("a section lies outside of the file"))
    }

    /// What is to be unpacked of a section; None: it is not compressed.
    fn compressed(
        &self,
        section: &elf::SectionHeader64<LE>,
        old_style: bool,
    ) -> Result<Option<CompressedData<'d>>, ElfError> {
        let data = self.bytes_of(section)?;
        let compressed = if old_style {
            old_compression(data)
        } else if section.sh_flags(LE).contains(elf::SHF_COMPRESSED) {
            new_compression(data)
        } else {
            return Ok(None);
        };
        let compressed = compressed.ok_or(UNPACKABLE)?;
        if compressed.uncompressed_size > unpacking::most_bytes_of(compressed.data.len() as u64) {
            return Err(ElfError::Unpacked {
                packed: compressed.data.len() as u64,
                size: compressed.uncompressed_size,
            });
        }
        Ok(Some(compressed))
    }

    /// A section with its address, for the unwinder. Absent if damaged, compressed, or larger than any linker's.
    pub fn section(&self, name: &str) -> Option<Section> {
        let header = self.section_header(name)?;
        if header.sh_type(LE) == elf::SHT_NOBITS || header.sh_flags(LE).contains(elf::SHF_COMPRESSED) {
            return None;
        }
        let bytes = header.data(LE, self.data).ok().filter(|bytes| unpacking::may_copy(bytes.len()))?;
        Some(Section { addr: ObjAddr(header.sh_addr(LE)), bytes: bytes.into() })
    }

    /// `.debug_frame`, uncompressed if need be, which takes time: not for a thread that others wait for. Absent if
    /// damaged.
    pub fn debug_frame(&self) -> Option<Section> {
        let data = self
            .section_data(".debug_frame")
            .ok()
            .flatten()
            .filter(|data| !data.is_empty() && unpacking::may_copy(data.len()))?;
        Some(Section { addr: ObjAddr(0), bytes: data.into() })
    }

    /// Everything that unwinding needs, as far as it is there and not compressed (see [`Elf::debug_frame`]): the module
    /// without its identity and its place in a process.
    pub fn unwind_sections(&self) -> UnwindModule {
        let eh_frame_hdr = self.eh_frame_hdr();
        UnwindModule {
            id: ModuleId::NONE,
            code: Vec::new(),
            bias: LoadBias(0),
            eh_frame: self.section(".eh_frame").or_else(|| self.eh_frame_of(eh_frame_hdr.as_ref()?)),
            debug_frame: self.section(".debug_frame"),
            text: self.section_range(".text").map(|r| r.start),
            got: self.section_range(".got").map(|r| r.start),
            entry: Some(self.entry()).filter(|entry| entry.0 != 0),
            eh_frame_hdr,
        }
    }

    fn eh_frame_hdr(&self) -> Option<Section> {
        let header = self.program_header(elf::PT_GNU_EH_FRAME)?;
        let bytes = self.header_bytes(header).filter(|b| !b.is_empty() && unpacking::may_copy(b.len()))?;
        Some(Section { addr: ObjAddr(header.p_vaddr(LE)), bytes: Arc::from(bytes) })
    }

    /// Without section headers: `.eh_frame` begins where its header says; its end is marked by a zero length, at the
    /// latest by the end of its segment.
    fn eh_frame_of(&self, hdr: &Section) -> Option<Section> {
        let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(hdr.addr.0);
        let parsed = gimli::EhFrameHdr::new(&hdr.bytes, gimli::LittleEndian).parse(&bases, 8).ok()?;
        let gimli::Pointer::Direct(addr) = parsed.eh_frame_ptr() else { return None };
        let addr = ObjAddr(addr);
        let bytes = self.bytes_from(addr)?;
        // A memory image goes on behind the segment, with other segments.
        let segment = self.segments().find(|s| s.contains(addr))?;
        let end = page_floor(segment.end().0.checked_add(crate::arch::PAGE_SIZE - 1)?);
        let size = usize::try_from(end.checked_sub(addr.0)?).ok()?.min(bytes.len());
        unpacking::may_copy(size).then_some(())?;
        Some(Section { addr, bytes: Arc::from(bytes.get(..size)?) })
    }

    fn section_header(&self, name: &str) -> Option<&'d elf::SectionHeader64<LE>> {
        self.sections.section_by_name(LE, name.as_bytes()).map(|(_, section)| section)
    }

    pub(super) fn raw_section(&self, name: &str) -> Option<&'d [u8]> {
        self.section_header(name)?.data(LE, self.data).ok()
    }
}

/// Bytes as lower-case hex, the way in which build ids are written.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn build_id_of(mut notes: NoteIterator<'_, Header>) -> Option<&[u8]> {
    while let Ok(Some(note)) = notes.next() {
        let is_build_id = note.name() == elf::ELF_NOTE_GNU && note.n_type(LE) == elf::NT_GNU_BUILD_ID;
        if is_build_id && (1..=LONGEST_BUILD_ID).contains(&note.desc().len()) {
            return Some(note.desc());
        }
    }
    None
}

/// SHF_COMPRESSED: an Elf64_Chdr, then the compressed bytes.
fn new_compression(data: &[u8]) -> Option<CompressedData<'_>> {
    let (header, data) = object::pod::from_bytes::<elf::CompressionHeader64<LE>>(data).ok()?;
    let format = match header.ch_type(LE) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return None,
    };
    Some(CompressedData { format, data, uncompressed_size: header.ch_size(LE) })
}

/// `.zdebug_*`: "ZLIB", the uncompressed size in 8 big-endian bytes, a zlib stream.
fn old_compression(data: &[u8]) -> Option<CompressedData<'_>> {
    let (size, data) = data.strip_prefix(b"ZLIB")?.split_first_chunk::<8>()?;
    Some(CompressedData { format: CompressionFormat::Zlib, data, uncompressed_size: u64::from_be_bytes(*size) })
}
