//! What other files know of a loaded module: symbols that were stripped from it, unwind tables of its debug file.

use super::{AddressSpace, OriginalMemory};
use crate::addr::ModuleId;
use crate::allocators::{AllocatorTable, ModuleSymbols};
use crate::arch::Regs;
use crate::elf::Elf;
use crate::symbols::{Bytes, Companion};
use crate::unwinder::{Section, Unwound};
use std::path::Path;

impl AddressSpace {
    /// The debug file (or what is packed in the file) of a stripped module, if allocator functions may be found by its
    /// symbols only: a static program's, and those that the user has named.
    pub(super) fn symbols_elsewhere(
        &self,
        path: &Path,
        elf: &Elf<'_>,
        is_program: bool,
        known: &ModuleSymbols,
        table: &AllocatorTable,
    ) -> Option<Companion> {
        let is_known = |name: &str| known.symbols.iter().any(|symbol| symbol.name == name);
        let is_wanted =
            (is_program && known.symbols.is_empty()) || table.declared_symbols().any(|name| !is_known(name));
        if elf.has_symtab() || !is_wanted {
            return None;
        }
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
