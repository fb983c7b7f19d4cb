//! What other files know of a loaded module: symbols that were stripped from it, unwind tables of its debug file.

use super::{AddressSpace, OriginalMemory};
use crate::addr::ModuleId;
use crate::allocators::AllocatorTable;
use crate::allocators::select::AllocatorSymbol;
use crate::arch::Regs;
use crate::elf::Elf;
use crate::symbols::{Bytes, Companion};
use crate::unwinder::{Section, Unwound};
use std::path::Path;

/// Whether allocator functions of an object may be found by the symbols of a companion only: a static program's, and those
/// that the user has named. `known` are those of its own file.
pub(super) fn wants_companion(
    elf: &Elf<'_>,
    known: &[AllocatorSymbol],
    is_program: bool,
    table: &AllocatorTable,
) -> bool {
    let is_known = |name: &str| known.iter().any(|symbol| symbol.name == name);
    let is_wanted = (is_program && known.is_empty()) || table.declared_symbols().any(|name| !is_known(name));
    is_wanted && !elf.has_symtab()
}

impl AddressSpace {
    /// The debug file of a stripped module, or what is packed in its file.
    pub(super) fn symbols_elsewhere(&self, path: &Path, elf: &Elf<'_>) -> Option<Companion> {
        self.search.as_ref()?.companion(path, elf, |elf| elf.has_symtab())
    }

    /// The stack of a thread at the entry of a function. Code without CFI makes us look for its module's debug file: what is
    /// built without `.eh_frame` has its tables there.
    pub fn unwind_at_entry(&mut self, regs: &Regs, max_depth: u32) -> Unwound {
        let mut memory = OriginalMemory { memory: &mut self.memory, breakpoints: &self.breakpoints };
        let found = self.unwinder.unwind_at_entry(regs, &mut memory, max_depth);
        let mut is_better = false;
        for module in self.unwinder.take_uncovered() {
            if let Some(section) = self.debug_frame_elsewhere(module) {
                self.unwinder.add_debug_frame(module, section);
                is_better = true;
            }
        }
        if !is_better {
            return found;
        }
        // The callers are other ones now, perhaps of other such modules.
        self.unwind_at_entry(regs, max_depth)
    }

    fn debug_frame_elsewhere(&self, module: ModuleId) -> Option<Section> {
        let record = self.records.get(module.0 as usize)?;
        let bytes = Bytes::of_file(record.file.as_ref()?).ok()?;
        let elf = Elf::parse(&bytes).ok()?;
        let companion =
            self.search.as_ref()?.companion(&record.path, &elf, |elf| elf.section(".debug_frame").is_some())?;
        companion.elf()?.section(".debug_frame")
    }
}
