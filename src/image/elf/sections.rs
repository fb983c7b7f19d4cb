//! Sections: what the header of each says, and its bytes, which may be compressed.

use super::{ElfError, Header, unpacking};
use crate::base::addr::ObjAddr;
use crate::unwinder::Section;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{CompressionHeader, SectionHeader, SectionTable};
use object::read::{CompressedData, CompressionFormat};
use std::borrow::Cow;
use std::ops::Range;

const UNPACKABLE: ElfError = ElfError::Damaged("a section can't be uncompressed");

/// The sections of an [`super::Elf`]. There are none in memory images, which hold section headers by chance only.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'d> {
    pub(super) file: &'d [u8],
    pub(super) table: SectionTable<'d, Header>,
}

impl<'d> Sections<'d> {
    /// Whether there is a section of this name with bytes in the file.
    pub fn has(&self, name: &str) -> bool {
        self.header(name).is_some_and(|s| s.sh_type(LE) != elf::SHT_NOBITS && s.sh_size(LE) > 0)
    }

    /// Whether it describes functions, lines and types (DWARF's `.debug_info`, compressed or not).
    pub fn has_debug_info(&self) -> bool {
        self.has(".debug_info") || self.has(".zdebug_info")
    }

    /// Whether it has unwind tables that are not loaded (DWARF's `.debug_frame`, compressed or not).
    pub fn has_debug_frame(&self) -> bool {
        self.has(".debug_frame") || self.has(".zdebug_frame")
    }

    /// The object addresses of a section of this name.
    pub fn range(&self, name: &str) -> Option<Range<ObjAddr>> {
        let section = self.header(name)?;
        let start = section.sh_addr(LE);
        Some(ObjAddr(start)..ObjAddr(start.checked_add(section.sh_size(LE))?))
    }

    /// The object addresses of the section with this index; `None` also if it is not loaded.
    pub fn range_by_index(&self, index: u16) -> Option<Range<ObjAddr>> {
        let section = self.table.section(object::read::SectionIndex(usize::from(index))).ok()?;
        let start = Some(section.sh_addr(LE)).filter(|&a| a != 0)?;
        Some(ObjAddr(start)..ObjAddr(start.checked_add(section.sh_size(LE))?))
    }

    /// Whether the section with this index holds instructions.
    pub fn is_code(&self, index: u16) -> bool {
        let section = self.table.section(object::read::SectionIndex(usize::from(index)));
        section.is_ok_and(|section| section.sh_flags(LE).contains(elf::SHF_EXECINSTR))
    }

    /// A section's bytes, uncompressed. `None` if there is no such section, or none of its bytes are in the file.
    ///
    /// # Errors
    /// The section lies outside of the file or can't be uncompressed.
    pub fn data(&self, name: &str) -> Result<Option<Cow<'d, [u8]>>, ElfError> {
        self.in_file(name).map(|(section, is_old)| self.uncompressed(section, is_old)).transpose()
    }

    /// The size in bytes that a section has once it is uncompressed, where [`Self::beginning`] can uncompress
    /// the beginning alone: it is compressed with zlib, and may be uncompressed.
    pub fn size_of_inflated(&self, name: &str) -> Option<usize> {
        let (section, is_old) = self.in_file(name)?;
        let compressed = self.compressed(section, is_old).ok().flatten()?;
        let size = usize::try_from(compressed.uncompressed_size).ok()?;
        (compressed.format == CompressionFormat::Zlib).then_some(size)
    }

    /// The first `size` bytes of a section that zlib has compressed; the rest is not uncompressed. `None`: it is
    /// compressed in another way or not at all, or it has fewer bytes.
    ///
    /// # Errors
    /// Those of [`Self::data`], as far as they show in what is uncompressed: the checksum is at the end.
    pub fn beginning(&self, name: &str, size: usize) -> Result<Option<Vec<u8>>, ElfError> {
        let Some((section, is_old)) = self.in_file(name) else { return Ok(None) };
        let Some(compressed) = self.compressed(section, is_old)? else { return Ok(None) };
        if compressed.format != CompressionFormat::Zlib || compressed.uncompressed_size < size as u64 {
            return Ok(None);
        }
        unpacking::beginning(compressed.data, size).ok_or(UNPACKABLE).map(Some)
    }

    /// The section of this name that has bytes in the file, and whether it is compressed in the old style.
    fn in_file(&self, name: &str) -> Option<(&'d elf::SectionHeader64<LE>, bool)> {
        let compressed_name = name.strip_prefix(".debug_").map(|rest| format!(".zdebug_{rest}"));
        let named = |name: &str| self.header(name).filter(|s| s.sh_type(LE) != elf::SHT_NOBITS);
        let plain = named(name).map(|section| (section, false));
        plain.or_else(|| compressed_name.as_deref().and_then(named).map(|section| (section, true)))
    }

    /// How many bytes unpacking the sections of this name takes; 0: none is compressed.
    pub fn unpacked_size(&self, name: &str) -> u64 {
        let old_name = name.strip_prefix(".debug_").map(|rest| format!(".zdebug_{rest}"));
        let size = |section: &elf::SectionHeader64<LE>| {
            let found = self.table.section_name(LE, section).ok()?;
            let is_old = old_name.as_deref().is_some_and(|name| found == name.as_bytes());
            let is_new = found == name.as_bytes() && section.sh_flags(LE).contains(elf::SHF_COMPRESSED);
            let data = (is_old || is_new).then(|| section.data(LE, self.file).ok()).flatten()?;
            let compressed = if is_old { old_compression(data) } else { new_compression(data) };
            compressed.map(|compressed| compressed.uncompressed_size)
        };
        self.table.iter().filter_map(size).fold(0, u64::saturating_add)
    }

    /// The bytes of all sections of this name, one behind the other: object files may have several.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub fn joined_data(&self, name: &str) -> Result<Cow<'d, [u8]>, ElfError> {
        let is_named = |section: &&elf::SectionHeader64<LE>| {
            self.table.section_name(LE, section).is_ok_and(|found| found == name.as_bytes())
        };
        let mut sections = self.table.iter().filter(is_named);
        let (Some(first), Some(second)) = (sections.next(), sections.next()) else {
            return Ok(self.data(name)?.unwrap_or_default());
        };
        let mut joined = Vec::new();
        let mut left = self.file.len() as u64;
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
        section.data(LE, self.file).map_err(|_| ElfError::Damaged("a section lies outside of the file"))
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
    pub fn loaded(&self, name: &str) -> Option<Section> {
        let header = self.header(name)?;
        if header.sh_type(LE) == elf::SHT_NOBITS || header.sh_flags(LE).contains(elf::SHF_COMPRESSED) {
            return None;
        }
        let bytes = header.data(LE, self.file).ok().filter(|bytes| unpacking::may_copy(bytes.len()))?;
        Some(Section { addr: ObjAddr(header.sh_addr(LE)), bytes: bytes.into() })
    }

    /// `.debug_frame`, uncompressed if need be, which takes time: not for a thread that others wait for. Absent if
    /// damaged.
    pub fn debug_frame(&self) -> Option<Section> {
        let data = self
            .data(".debug_frame")
            .ok()
            .flatten()
            .filter(|data| !data.is_empty() && unpacking::may_copy(data.len()))?;
        Some(Section { addr: ObjAddr(0), bytes: data.into() })
    }

    fn header(&self, name: &str) -> Option<&'d elf::SectionHeader64<LE>> {
        self.table.section_by_name(LE, name.as_bytes()).map(|(_, section)| section)
    }

    pub(super) fn raw(&self, name: &str) -> Option<&'d [u8]> {
        self.header(name)?.data(LE, self.file).ok()
    }
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
