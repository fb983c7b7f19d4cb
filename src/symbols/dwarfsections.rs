//! The sections of DWARF that are read, in a program, a debug file or the files of split DWARF.

use crate::image::elf::Elf;
use gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use std::borrow::Cow;

/// A reader of DWARF.
pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A section of a file, uncompressed.
pub(super) type SectionBytes<'d> = Cow<'d, [u8]>;

/// Whether names and lines, or types, need the section. Places of local variables and macros are of no use here, and
/// large.
pub(super) fn is_wanted(id: SectionId, with_types: bool) -> bool {
    (with_types || id != SectionId::DebugTypes)
        && !matches!(
            id,
            SectionId::DebugLoc
                | SectionId::DebugLocLists
                | SectionId::DebugMacinfo
                | SectionId::DebugMacro
                | SectionId::DebugNames
        )
}

/// How many bytes unpacking the wanted sections of a file takes; `name` says what each is called there.
pub(super) fn unpacked_size(
    elf: &Elf<'_>,
    is_wanted: impl Fn(SectionId) -> bool,
    name: impl Fn(SectionId) -> Option<&'static str>,
) -> u64 {
    let mut size = 0u64;
    let Ok(_) = DwarfSections::load(|id| {
        let name = name(id).filter(|_| is_wanted(id));
        size = size.saturating_add(name.map_or(0, |name| elf.sections().unpacked_size(name)));
        Ok::<_, std::convert::Infallible>(())
    });
    size
}
