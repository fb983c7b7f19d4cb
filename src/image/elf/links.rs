//! The build id, and links to separate debug files.

use super::{Elf, Header, slice};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{NoteIterator, ProgramHeader, SectionHeader};

/// The longest path that a file may name another by, in bytes (PATH_MAX).
const LONGEST_PATH: usize = 4096;

/// The longest build id, in bytes: usual ones have 8 to 32, of their own choice some more.
const LONGEST_BUILD_ID: usize = 1024;

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
        let by_section = self.sections.table.iter().filter_map(|s| s.notes(LE, self.data).ok().flatten());
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
        let data = self.sections.raw(".gnu_debuglink")?;
        let name = data.split(|&b| b == 0).next().filter(|n| (1..=LONGEST_PATH).contains(&n.len()))?;
        // The name's terminator and padding to 4 bytes lie between.
        let crc = slice(data, (name.len() as u64 + 1).checked_next_multiple_of(4)?, 4)?;
        Some(DebugLink { name, crc: u32::from_le_bytes(crc.try_into().ok()?) })
    }

    /// The link to the file of shared DWARF.
    pub fn debug_alt_link(&self) -> Option<AltLink<'d>> {
        let data = self.sections.raw(".gnu_debugaltlink")?;
        let path = data.split(|&b| b == 0).next().filter(|p| (1..=LONGEST_PATH).contains(&p.len()))?;
        let build_id = data.get(path.len() + 1..).filter(|id| id.len() <= LONGEST_BUILD_ID)?;
        Some(AltLink { path, build_id })
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
