//! What unwinding needs of an object.

use super::{Elf, page_floor, unpacking};
use crate::base::addr::{LoadBias, ModuleId, ObjAddr};
use crate::unwinder::{Section, UnwindModule};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::ProgramHeader;
use std::sync::Arc;

impl Elf<'_> {
    /// Everything that unwinding needs, as far as it is there and not compressed (see
    /// [`super::Sections::debug_frame`]): the module without its identity and its place in a process.
    pub fn unwind_sections(&self) -> UnwindModule {
        let eh_frame_hdr = self.eh_frame_hdr();
        UnwindModule {
            id: ModuleId::NONE,
            code: Vec::new(),
            bias: LoadBias(0),
            eh_frame: self.sections.loaded(".eh_frame").or_else(|| self.eh_frame_of(eh_frame_hdr.as_ref()?)),
            debug_frame: self.sections.loaded(".debug_frame"),
            text: self.sections.range(".text").map(|r| r.start),
            got: self.sections.range(".got").map(|r| r.start),
            entry: Some(self.entry()).filter(|entry| entry.0 != 0),
            eh_frame_hdr,
        }
    }

    fn eh_frame_hdr(&self) -> Option<Section> {
        let header = self.program_header(elf::PT_GNU_EH_FRAME)?;
        let bytes = self.header_bytes(header).filter(|b| !b.is_empty() && unpacking::may_copy(b.len()))?;
        Some(Section { addr: ObjAddr(header.p_vaddr(LE)), bytes: Arc::from(bytes) })
    }

    /// Without section headers: `.eh_frame` begins where its header says; its end is marked by a zero length, at the
    /// latest by the end of its segment.
    fn eh_frame_of(&self, hdr: &Section) -> Option<Section> {
        let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(hdr.addr.0);
        let parsed = gimli::EhFrameHdr::new(&hdr.bytes, gimli::LittleEndian).parse(&bases, 8).ok()?;
        let gimli::Pointer::Direct(addr) = parsed.eh_frame_ptr() else { return None };
        let addr = ObjAddr(addr);
        let bytes = self.bytes_from(addr)?;
        // A memory image goes on behind the segment, with other segments.
        let segment = self.segments().find(|s| s.contains(addr))?;
        let end = page_floor(segment.end().0.checked_add(crate::arch::PAGE_SIZE - 1)?);
        let size = usize::try_from(end.checked_sub(addr.0)?).ok()?.min(bytes.len());
        unpacking::may_copy(size).then_some(())?;
        Some(Section { addr, bytes: Arc::from(bytes.get(..size)?) })
    }
}
