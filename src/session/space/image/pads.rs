//! Pads: instructions that breakpoints replace, moved to where they can run; and room for them.

use crate::arch::PAGE_SIZE;
use crate::arch::step::MAX_INSTRUCTION_LEN;
use crate::base::addr::{Addr, ModuleId};
use crate::breakpoints::patches::own::PadError;
use crate::image::maps::Kind;
use crate::session::space::breakpoints::{Helper, Placed};
use crate::session::space::findings::Findings;
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;
use crate::tracer::{Result, procfs};

/// Bytes of one remote mapping for pads: room for about 2000.
const PAD_MAPPING: u64 = 64 * 1024;

/// The mappings that were made for pads.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::session::space) struct PadMappings {
    /// How many there are.
    count: u64,
    /// Whether no more can be made.
    are_refused: bool,
}

impl Image {
    /// Writes the pad of the instruction at `addr`.
    pub(in crate::session) fn write_pad(
        &mut self,
        modules: &mut Modules,
        addr: Addr,
        helper: Option<&Helper<'_>>,
    ) -> Result<Placed<Addr>> {
        let code = self.original_bytes(addr, MAX_INSTRUCTION_LEN);
        let module = modules.module_at(addr);
        let mut result = self.code.own().allocate(&code, addr, module);
        if matches!(result, Err(PadError::NoRoom { .. })) {
            match self.map_pads(&mut modules.findings, addr, helper)? {
                Placed::Done(()) => {}
                Placed::Impossible => return Ok(Placed::Impossible),
                Placed::NoRoom => return Ok(Placed::NoRoom),
            }
            result = self.code.own().allocate(&code, addr, module);
        }
        match result {
            Ok(pad) => {
                self.code.write_own(&mut self.memory, pad.addr, &pad.bytes)?;
                Ok(Placed::Done(pad.addr))
            }
            Err(error) => {
                tracing::debug!("{error}");
                Ok(Placed::Impossible)
            }
        }
    }

    /// Whether a breakpoint may be written at `addr`: private code that nobody writes to. (What a program makes at run
    /// time may be writable: the caller of an allocator stays as it is until the call returns.)
    pub(in crate::session::space) fn may_patch(
        &mut self,
        modules: &mut Modules,
        addr: Addr,
        helper: Option<&Helper<'_>>,
    ) -> Result<bool> {
        let patchable = |image: &Self, modules: &Modules| {
            let mapping = image.maps.find(addr)?;
            let may_be_written = mapping.kind == Kind::Anonymous && modules.module_at(addr) == ModuleId::NONE;
            Some(mapping.perms.execute && !mapping.perms.shared && (!mapping.perms.write || may_be_written))
        };
        if let Some(answer) = patchable(self, modules) {
            return Ok(answer);
        }
        let Some(Helper { thread, .. }) = helper else { return Ok(false) };
        self.read_maps(&mut modules.findings, thread.tid())?;
        Ok(patchable(self, modules).unwrap_or(false))
    }

    /// Offers the zero bytes behind a module's code for pads.
    pub(in crate::session::space) fn add_slack(&mut self, start: Addr, size: u64, module: ModuleId) {
        let mut bytes = vec![0; usize::try_from(size.min(PAGE_SIZE)).unwrap_or(0)];
        let n = self.memory.read_uncached(start, &mut bytes);
        let zeros = bytes[..n].iter().rev().take_while(|&&b| b == 0).count();
        // The bytes next to the code may belong to it, where its exact size is unknown.
        let first = (n - zeros) as u64;
        self.code.own().add_region(start.add(first), zeros as u64, Some(module));
    }

    /// Lets the helping thread map memory for pads within reach of `near`.
    pub(in crate::session::space) fn map_pads(
        &mut self,
        findings: &mut Findings,
        near: Addr,
        helper: Option<&Helper<'_>>,
    ) -> Result<Placed> {
        let Some(&Helper { thread, resume }) = helper else { return Ok(Placed::NoRoom) };
        if self.pad_mappings.are_refused || procfs::has_seccomp(thread.tid()) {
            // A filter may kill the program for a system call that it would never make itself.
            self.pad_mappings.are_refused = true;
            return Ok(Placed::Impossible);
        }
        self.read_maps(findings, thread.tid())?;
        let Some(gap) = self.maps.find_gap(near, PAD_MAPPING) else { return Ok(Placed::Impossible) };
        let Some(mut caller) = self.caller(thread, resume)? else { return Ok(Placed::Impossible) };
        match caller.map_code(gap, PAD_MAPPING)? {
            result if result.cast_unsigned() == gap.0 => {
                self.code.own().add_region(gap, PAD_MAPPING, None);
                self.pad_mappings.count += 1;
                Ok(Placed::Done(()))
            }
            result => {
                tracing::debug!("no memory for pads near {near}: {result}");
                self.pad_mappings.are_refused = true;
                Ok(Placed::Impossible)
            }
        }
    }

    /// Bytes of the mappings that were made for pads. They stay behind, inert.
    pub const fn mapped_pad_bytes(&self) -> u64 {
        self.pad_mappings.count * PAD_MAPPING
    }
}
