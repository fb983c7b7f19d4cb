//! What the leak scan needs to know of an address space: the modules' data, the allocator's layout, libc's `_exit`.

use super::AddressSpace;
use super::facts::{Facts, LEAK_SUPPRESSIONS, LEAKS_TURNED_OFF};
use super::modules::Module;
use super::probes::{Deferred, ToPlace};
use crate::allocators::AllocatorTable;
use crate::arch::constant::{self, Returned};
use crate::base::addr::{Addr, LoadBias, ModuleId};
use crate::heap::leaks::MappedFiles;
use crate::heap::leaks::roots::{HeapLayout, ModuleData};
use crate::image::maps::Mapping;
use crate::tracer::Result;

/// A program's suppressions are not believed to be longer, in bytes.
const LONGEST_TEXT: usize = 1 << 20;

/// The rule that stands for a program that wants no check for leaks.
const ALL_LEAKS: &[u8] = b"leak:*\n";

/// Suppressions for leaks that the program has in itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnSuppressions {
    /// The module, by its file name.
    pub module: String,
    /// The function that tells them.
    pub function: &'static str,
    /// The text; None if only the program's code, which would have to run, gives it.
    pub text: Option<Vec<u8>>,
}

impl OwnSuppressions {
    /// Whether the program has turned the leak check off, for its own process alone.
    pub fn turn_check_off(&self) -> bool {
        self.function == LEAKS_TURNED_OFF && self.text.is_some()
    }
}

impl AddressSpace {
    /// The suppressions that the program's modules return.
    pub fn own_suppressions(&self) -> Vec<OwnSuppressions> {
        let read = |module: &Module| {
            let text = self.returned_text(module.leak_suppressions?);
            Some(OwnSuppressions { module: module.name().to_owned(), function: LEAK_SUPPRESSIONS, text })
        };
        let turned_off = |module: &Module| {
            let is_off = match self.returned(module.leaks_turned_off?) {
                Some(Returned::Value(value)) => Some(value != 0),
                Some(Returned::Word(_)) | None => None,
            };
            let text = is_off.map(|_| ALL_LEAKS.to_vec());
            let own = OwnSuppressions { module: module.name().to_owned(), function: LEAKS_TURNED_OFF, text };
            (is_off != Some(false)).then_some(own)
        };
        self.modules.iter().filter_map(read).chain(self.modules.iter().filter_map(turned_off)).collect()
    }

    /// What a function returns, if its code tells.
    fn returned(&self, function: Addr) -> Option<Returned> {
        let mut code = [0; 64];
        let read = self.memory.read_uncached(function, &mut code);
        let code = code.get_mut(..read)?;
        self.code.patches().mask(function, code);
        constant::returned(code, function)
    }

    /// The text that a function returns a pointer to, if its code tells.
    fn returned_text(&self, function: Addr) -> Option<Vec<u8>> {
        let start = match self.returned(function)? {
            Returned::Value(value) => value,
            Returned::Word(at) => self.memory.read_word_uncached(at)?,
        };
        if start == 0 {
            return Some(Vec::new());
        }
        let mut text = Vec::new();
        while text.len() < LONGEST_TEXT {
            let mut piece = [0; 256];
            let read = self.memory.read_uncached(Addr(start).add(text.len() as u64), &mut piece);
            let piece = piece.get(..read)?;
            if let Some(end) = piece.iter().position(|&byte| byte == 0) {
                text.extend(piece.get(..end)?);
                return Some(text);
            }
            if piece.is_empty() {
                return None;
            }
            text.extend(piece);
        }
        None
    }

    /// From now on, stops threads at libc's `_exit`. To be called before the modules are loaded.
    pub fn watch_exit(&mut self) {
        self.exit_watched = true;
    }

    pub(super) fn watch_libc_exit(&mut self, facts: &Facts, bias: LoadBias) -> Result<()> {
        for &function in &facts.named.exits {
            self.place_or_defer(Deferred { addr: bias.to_process(function), to_place: ToPlace::Exit }, None)?;
        }
        Ok(())
    }

    /// Reads the maps again.
    pub fn refresh_maps(&mut self, tid: i32) -> Result<()> {
        self.read_maps(tid)
    }

    /// All mappings in the order of addresses, as they were when last read.
    pub fn mappings(&self) -> &[Mapping] {
        self.maps.mappings()
    }

    /// The files that are mapped.
    pub fn mapped_files(&self) -> MappedFiles {
        MappedFiles::of(self.maps.mappings())
    }

    /// The data of all modules that are loaded.
    pub fn module_data(&self) -> Vec<ModuleData> {
        self.modules.iter().map(|module| module.data.clone()).collect()
    }

    /// How the heap is laid out: as glibc's, if no other allocator has taken its place.
    pub fn heap_layout(&self, table: &AllocatorTable) -> HeapLayout {
        let probed = |id: ModuleId| {
            let record = self.modules.record(id);
            record.is_some_and(|record| record.probed.iter().any(|&function| !table.is_declared(function)))
        };
        let mut providers =
            self.modules.iter().filter(|module| probed(module.id)).map(|module| &module.data).peekable();
        let has_provider = providers.peek().is_some();
        if has_provider && providers.all(|data| data.glibc.is_some()) { HeapLayout::Glibc } else { HeapLayout::Other }
    }
}
