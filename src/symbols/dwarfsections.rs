//! The sections of DWARF that are read, in a program, a debug file or the files of split DWARF.

use gimli::{EndianSlice, LittleEndian, SectionId};
use std::borrow::Cow;

/// A reader of DWARF.
pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A section of a file, uncompressed.
pub(super) type SectionBytes<'d> = Cow<'d, [u8]>;

/// Whether names and lines, or types, need the section. Places of local variables and macros are of no use here, and large.
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
