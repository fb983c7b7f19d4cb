//! Whether the memory of a module is that of a file.

use crate::arch::PAGE_SIZE;
use crate::base::addr::{Addr, LoadBias, ObjAddr};
use crate::image::elf::{Elf, Segment};
use crate::image::maps::{Kind, MappedModule, Mapping};
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
        head(mapped).is_none_or(|(at, size)| is_of_data(at, mapped, file) || self.holds(at, size, file, 0))
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

    /// Takes text that was moved to anonymous memory into its module, by what the file has at its addresses: that of a
    /// JIT is something else.
    pub(in crate::session::space) fn adopt_moved_text(
        &self,
        mapped: &mut MappedModule,
        segments: &[Segment],
        bias: LoadBias,
        file: Option<&File>,
    ) {
        mapped.adopt(|code| file.and_then(|file| self.offset_in_file(code, segments, bias, file)));
    }

    /// Where a mapping begins in an object's file, if some of its pages hold what the file has at their addresses.
    fn offset_in_file(&self, mapping: &Mapping, segments: &[Segment], bias: LoadBias, file: &File) -> Option<u64> {
        let pages = mapping.size() / PAGE_SIZE;
        let step = pages.div_ceil(PAGES_COMPARED).max(1);
        let compared = (0..pages).step_by(usize::try_from(step).unwrap_or(1)).chain([pages.saturating_sub(1)]);
        let mut first = None;
        for page in compared {
            let at = mapping.start.add(page * PAGE_SIZE);
            let (offset, size) = page_in_file(bias.to_object(at), segments)?;
            let memory = self.original_bytes(at, usize::try_from(size).unwrap_or(0));
            let mut found = vec![0; memory.len()];
            if found.is_empty() || file.read_exact_at(&mut found, offset).is_err() || found != memory {
                return None;
            }
            first = first.or(Some(offset));
        }
        first
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

/// Where in the file a page of code begins, and how many of its bytes come from there.
fn page_in_file(page: ObjAddr, segments: &[Segment]) -> Option<(u64, u64)> {
    let touches = |segment: &&Segment| {
        let first = segment.addr.0 / PAGE_SIZE * PAGE_SIZE;
        segment.execute && (first..segment.addr.0.saturating_add(segment.file_size)).contains(&page.0)
    };
    let segment = segments.iter().find(touches)?;
    // before the segment, its first page has what the file has there; the rest of its last page may hold anything
    let offset = segment.offset.wrapping_add(page.0).wrapping_sub(segment.addr.0);
    let size = PAGE_SIZE.min(segment.addr.0.saturating_add(segment.file_size).saturating_sub(page.0));
    Some((offset, size))
}

/// Where the headers and notes are mapped, and in how many bytes; None if they are not.
fn head(mapped: &MappedModule) -> Option<(Addr, u64)> {
    const HEAD: u64 = 4 * PAGE_SIZE;
    let first = mapped.segments.first().filter(|first| first.offset == 0)?;
    Some((first.start, first.size().min(HEAD)))
}

/// Whether a module's data are mapped at `at`, with relocated pointers. In small objects they share the file's first
/// page with the headers, and are the first piece that is left where the text was moved.
fn is_of_data(at: Addr, mapped: &MappedModule, file: &[u8]) -> bool {
    let Ok(elf) = Elf::parse(file) else { return false };
    let Some(bias) = elf.load_bias(&mapped.segments) else { return false };
    let page = bias.to_object(at).0;
    elf.segments().any(|segment| segment.write && segment.addr.0 / PAGE_SIZE * PAGE_SIZE == page)
}
