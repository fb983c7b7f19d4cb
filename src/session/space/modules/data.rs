//! What the leak scan needs to know of an address space: the modules' data, the allocator's layout, libc's `_exit`.

use crate::allocators::AllocatorTable;
use crate::arch::constant::Returned;
use crate::base::addr::ModuleId;
use crate::heap::leaks::roots::{HeapLayout, ModuleData};
use crate::session::space::facts::{LEAK_SUPPRESSIONS, LEAKS_TURNED_OFF};
use crate::session::space::image::Image;
use crate::session::space::modules::{Module, Modules};

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

impl Modules {
    /// The suppressions that the program's modules return.
    pub fn own_suppressions(&self, image: &Image) -> Vec<OwnSuppressions> {
        let read = |module: &Module| {
            let text = image.returned_text(module.leak_suppressions?);
            Some(OwnSuppressions { module: module.name().to_owned(), function: LEAK_SUPPRESSIONS, text })
        };
        let turned_off = |module: &Module| {
            let is_off = match image.returned(module.leaks_turned_off?) {
                Some(Returned::Value(value)) => Some(value != 0),
                Some(Returned::Word(_)) | None => None,
            };
            let text = is_off.map(|_| ALL_LEAKS.to_vec());
            let own = OwnSuppressions { module: module.name().to_owned(), function: LEAKS_TURNED_OFF, text };
            (is_off != Some(false)).then_some(own)
        };
        self.loaded.iter().filter_map(read).chain(self.loaded.iter().filter_map(turned_off)).collect()
    }

    /// The data of all modules that are loaded.
    pub fn module_data(&self) -> Vec<ModuleData> {
        self.loaded.iter().map(|module| module.data.clone()).collect()
    }

    /// How the heap is laid out: as glibc's, if no other allocator has taken its place.
    pub fn heap_layout(&self, table: &AllocatorTable) -> HeapLayout {
        let probed = |id: ModuleId| {
            let record = self.loaded.record(id);
            record.is_some_and(|record| record.probed.iter().any(|&function| !table.is_declared(function)))
        };
        let mut providers = self.loaded.iter().filter(|module| probed(module.id)).map(|module| &module.data).peekable();
        let has_provider = providers.peek().is_some();
        if has_provider && providers.all(|data| data.glibc.is_some()) { HeapLayout::Glibc } else { HeapLayout::Other }
    }
}
