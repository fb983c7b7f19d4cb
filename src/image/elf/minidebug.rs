//! `.gnu_debugdata`: the symbol table of an otherwise stripped file, compressed by xz ("MiniDebugInfo", as Fedora has
//! it).

use super::{Elf, ElfError, unpacking};
use std::io::Read;

/// Memory for unpacking, in KiB: `xz -9` needs 65 MiB.
const UNPACKING_KIB: u32 = 128 << 10;

/// The largest packed object, in bytes. Those of Fedora's largest programs have less than 10 MB.
const LARGEST_PACKED: usize = 64 << 20;

impl<'d> Elf<'d> {
    /// The object that is packed in the file, whose symbols (functions that are not in `.dynsym`) have this file's
    /// addresses; `None` if there is none.
    ///
    /// # Errors
    /// The section is damaged, or unpacks to more than it should.
    pub fn mini_debug_info(&self) -> Result<Option<Vec<u8>>, ElfError> {
        self.packed_object().map_or(Ok(None), |packed| unpacked_object(packed).map(Some))
    }

    /// That object as it is packed, for [`unpacked_object`].
    /// It may be copied while the program is traced: what no linker packs, because it is too large, is none.
    pub fn packed_object(&self) -> Option<&'d [u8]> {
        self.sections.raw(".gnu_debugdata").filter(|packed| (1..=LARGEST_PACKED).contains(&packed.len()))
    }
}

/// Unpacks the object of [`Elf::packed_object`].
///
/// # Errors
/// It is damaged, or unpacks to more than it should.
pub fn unpacked_object(packed: &[u8]) -> Result<Vec<u8>, ElfError> {
    let mut unpacked = Vec::new();
    let most = unpacking::most_bytes_of(packed.len() as u64);
    let reader = lzma_rust2::XzReader::new_mem_limit(packed, true, UNPACKING_KIB);
    match reader.take(most.saturating_add(1)).read_to_end(&mut unpacked) {
        Ok(size) if size as u64 <= most => Ok(unpacked),
        Ok(size) => Err(ElfError::Unpacked { packed: packed.len() as u64, size: size as u64 }),
        Err(_) => Err(ElfError::Damaged(".gnu_debugdata can't be unpacked")),
    }
}
