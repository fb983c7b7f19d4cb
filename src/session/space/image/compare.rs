//! Whether the memory of a module is that of a file.

use crate::arch::PAGE_SIZE;
use crate::base::addr::{Addr, LoadBias};
use crate::image::elf::{Elf, Segment};
use crate::image::maps::{Kind, MappedModule, Mapping};
use crate::session::space::facts::Facts;
use crate::session::space::image::Image;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// So much of a module's code is compared with a file, in bytes.
const MAX_CODE: u64 = 16 << 20;

/// So many pages of code are compared with a file, where the addresses say already that it may be the file's.
const PAGES_COMPARED: u64 = 16;

impl Image {
    /// The build id in the process's memory, where the beginning of the file is mapped and holds it.
    pub(in crate::session::space) fn mapped_build_id(&self, mapped: &MappedModule) -> Option<String> {
        let (at, size) = head(mapped)?;
        Elf::parse_memory(&self.original_bytes(at, usize::try_from(size).unwrap_or(0)), at).ok()?.build_id_hex()
    }

    /// Whether the process's memory begins as a file with these bytes, where the beginning of the file is mapped. The
    /// headers stand there, with the sizes of all parts.
    pub(in crate::session::space) fn holds_head(&self, mapped: &MappedModule, file: &[u8]) -> bool {
        head(mapped).is_none_or(|(at, size)| self.holds(at, size, file, 0))
    }

    /// Whether the process's code is that of a file with these bytes.
    pub(in crate::session::space) fn holds_code(&self, mapped: &MappedModule, file: &[u8]) -> bool {
        let mut code = mapped.segments.iter().filter(|segment| segment.perms.execute && segment.kind == Kind::File);
        code.all(|segment| self.holds(segment.start, segment.size().min(MAX_CODE), file, segment.offset))
    }

    pub(in crate::session::space) fn holds(&self, at: Addr, size: u64, file: &[u8], offset: u64) -> bool {
        let Some(file) = usize::try_from(offset).ok().and_then(|offset| file.get(offset..)) else { return false };
        let memory = self.original_bytes(at, usize::try_from(size).unwrap_or(0));
        // behind the end of the file, the last page has zeros
        let (inside, behind) = memory.split_at(memory.len().min(file.len()));
        !inside.is_empty() && file.starts_with(inside) && behind.iter().all(|&byte| byte == 0)
    }

    /// Takes anonymous code out of a module that lies between pieces of its file, and is not what the file has there: a
    /// JIT's. Text that was moved
    /// to huge pages is.
    pub(in crate::session::space) fn leave_strangers_out(
        &self,
        mapped: &mut MappedModule,
        facts: &Facts,
        bias: LoadBias,
        file: Option<&File>,
    ) {
        let mut end = mapped.start();
        mapped.segments.retain(|segment| {
            let is_apart = segment.kind == Kind::Anonymous && segment.perms.is_code() && segment.start != end;
            let stays = !is_apart || file.is_some_and(|file| self.is_files(segment, &facts.segments, bias, file));
            if stays {
                end = segment.end;
            }
            stays
        });
    }

    /// Whether some pages of a mapping hold what an object's file has at their addresses.
    pub(in crate::session::space) fn is_files(
        &self,
        mapping: &Mapping,
        segments: &[Segment],
        bias: LoadBias,
        file: &File,
    ) -> bool {
        let pages = mapping.size() / PAGE_SIZE;
        let step = pages.div_ceil(PAGES_COMPARED).max(1);
        let mut compared = (0..pages).step_by(usize::try_from(step).unwrap_or(1)).chain([pages.saturating_sub(1)]);
        compared.all(|page| {
            let at = mapping.start.add(page * PAGE_SIZE);
            let addr = bias.to_object(at);
            let Some(segment) = segments.iter().find(|segment| segment.contains(addr)) else { return false };
            // the rest of a segment's last page may hold anything
            let size = PAGE_SIZE.min(segment.file_size.saturating_sub(addr.0 - segment.addr.0));
            let memory = self.original_bytes(at, usize::try_from(size).unwrap_or(0));
            let mut found = vec![0; memory.len()];
            !found.is_empty()
                && file.read_exact_at(&mut found, segment.offset + (addr.0 - segment.addr.0)).is_ok()
                && found == memory
        })
    }

    /// The module's memory from its first to its last byte, unreadable pages as zeros.
    pub(in crate::session::space) fn memory_image(&self, mapped: &MappedModule) -> Vec<u8> {
        let (start, end) = (mapped.start(), mapped.end());
        let size = usize::try_from(end.0 - start.0).unwrap_or(0).min(1 << 30);
        let mut image = vec![0; size];
        for (i, page) in image.chunks_mut(PAGE_SIZE as usize).enumerate() {
            let at = start.add(i as u64 * PAGE_SIZE);
            self.memory.read_uncached(at, page);
            self.code.patches().mask(at, page);
        }
        image
    }
}

/// Where the headers and notes are mapped, and in how many bytes; None if they are not.
fn head(mapped: &MappedModule) -> Option<(Addr, u64)> {
    const HEAD: u64 = 4 * PAGE_SIZE;
    let first = mapped.segments.first().filter(|first| first.offset == 0)?;
    Some((first.start, first.size().min(HEAD)))
}
