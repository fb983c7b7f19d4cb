//! Other files that know more of a module than its own file does: what was stripped from it.

use super::files::{Bytes, Search};
use crate::elf::Elf;
use std::path::Path;

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

impl Search {
    /// The first companion of `elf`, the file that the target calls `path`, of which `suits` is true: its separate debug file,
    /// then what is packed in it. What is wrong with these files is told when names are looked up.
    pub fn companion(&self, path: &Path, elf: &Elf<'_>, suits: impl Fn(&Elf<'_>) -> bool) -> Option<Companion> {
        let found = |companion: Companion| companion.elf().is_some_and(|elf| suits(&elf)).then_some(companion);
        let file = self.debug_file(path, elf.build_id(), Some(elf), &mut |_| {});
        file.and_then(|(_, bytes)| found(Companion::File(bytes)))
            .or_else(|| found(Companion::Packed(elf.mini_debug_info().ok()??)))
    }
}
