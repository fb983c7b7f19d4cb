//! `.gnu_debugdata`: the symbol table of an otherwise stripped file, compressed by xz ("MiniDebugInfo", as Fedora has it).

use super::{Elf, ElfError};
use std::io::Read;

/// What is unpacked at most, in bytes: the symbol tables of the largest programs have some tens of megabytes.
const LARGEST: u64 = 512 << 20;
/// Memory for unpacking, in KiB: `xz -9` needs 65 MiB.
const UNPACKING_KIB: u32 = 128 << 10;

impl Elf<'_> {
    /// The object that is packed in the file, whose symbols (functions that are not in `.dynsym`) have this file's addresses;
    /// `None` if there is none.
    ///
    /// # Errors
    /// The section is damaged, or unpacks to more than 512 MiB.
    pub fn mini_debug_info(&self) -> Result<Option<Vec<u8>>, ElfError> {
        let Some(packed) = self.raw_section(".gnu_debugdata").filter(|packed| !packed.is_empty()) else {
            return Ok(None);
        };
        let mut unpacked = Vec::new();
        let reader = lzma_rust2::XzReader::new_mem_limit(packed, true, UNPACKING_KIB);
        match reader.take(LARGEST + 1).read_to_end(&mut unpacked) {
            Ok(size) if size as u64 <= LARGEST => Ok(Some(unpacked)),
            Ok(_) => Err(ElfError::Damaged(".gnu_debugdata unpacks to more than 512 MiB")),
            Err(_) => Err(ElfError::Damaged(".gnu_debugdata can't be unpacked")),
        }
    }
}
