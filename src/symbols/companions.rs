//! Other files that know more of a module than its own file does: what was stripped from it.

use super::files::{Bytes, Search};
use crate::image::elf::{DebugLink, Elf, unpacked_object};
use std::path::{Path, PathBuf};

/// The bytes of a companion.
#[derive(Debug)]
pub enum Companion {
    /// A separate debug file.
    File(Bytes),
    /// The object that was packed in the file itself.
    Packed(Vec<u8>),
}

impl Companion {
    /// The object in it.
    pub fn elf(&self) -> Option<Elf<'_>> {
        let bytes: &[u8] = match self {
            Self::File(bytes) => bytes,
            Self::Packed(bytes) => bytes,
        };
        Elf::parse(bytes).ok()
    }
}

/// What leads from a module to its companions, without its file: another thread can follow it.
#[derive(Clone, Debug)]
pub struct Leads {
    path: PathBuf,
    build_id: Option<Vec<u8>>,
    /// The debug link's name and checksum.
    link: Option<(Vec<u8>, u32)>,
    packed: Option<Vec<u8>>,
}

impl Leads {
    /// Those of `elf`, the file that the target calls `path`.
    pub fn of(path: &Path, elf: &Elf<'_>) -> Self {
        Self {
            path: path.to_owned(),
            build_id: elf.build_id().map(<[u8]>::to_vec),
            link: elf.debug_link().map(|link| (link.name.to_vec(), link.crc)),
            packed: elf.packed_object().map(<[u8]>::to_vec),
        }
    }
}

impl Search {
    /// The first companion of a module of which `suits` is true: its separate debug file, then what is packed in its
    /// file. It may take long to look a file through, and to unpack. What is wrong with these files is told when names
    /// are looked up.
    pub fn companion(&self, leads: &Leads, suits: impl Fn(&Elf<'_>) -> bool) -> Option<Companion> {
        let found = |companion: Companion| companion.elf().is_some_and(|elf| suits(&elf)).then_some(companion);
        let link = leads.link.as_ref().map(|(name, crc)| DebugLink { name, crc: *crc });
        let file = self.debug_file_by(&leads.path, leads.build_id.as_deref(), link.as_ref(), &mut |_| {});
        file.and_then(|(_, bytes)| found(Companion::File(bytes)))
            .or_else(|| found(Companion::Packed(unpacked_object(leads.packed.as_ref()?).ok()?)))
    }
}
