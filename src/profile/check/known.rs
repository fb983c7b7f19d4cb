//! Leaks that are known: of libraries that allocate something once and keep it, and what an allocator has for itself.
//! They are no fault of the program's that is checked.
//!
//! The table (`known.supp`) has a version, which each report names, so that it can be told why two reports differ.

use super::suppressions::Suppressions;
use crate::allocators::AllocatorTable;
use crate::profile::leaks::KNOWN_LEAKS;
use crate::profile::{Location, ModuleInfo, Profile};

/// The table.
const TABLE: &str = include_str!("known.supp");

/// A place that has more lost blocks than this has lost them again and again: that is no leak that is known.
pub(super) const MAX_BLOCKS: u64 = 32;

/// So many blocks may hang on them.
pub(super) const MAX_HELD: u64 = 1024;

/// What an allocator's own module has allocated in its constructors is called.
pub(super) const OF_ALLOCATOR: &str = "what the allocator keeps for itself";

/// The rules of the table. None if it can't be read, which a test excludes.
pub(super) fn table() -> Option<Suppressions> {
    Suppressions::read(TABLE.as_bytes(), KNOWN_LEAKS).ok()
}

/// Whether a block with this stack was allocated by a constructor of a module that has the allocator: the dynamic
/// linker has called the module, and nothing of the program is on the stack.
pub(super) fn is_of_allocator(profile: &Profile, stack: usize) -> bool {
    let locations = profile.locations_of(stack).filter_map(|index| profile.locations.get(index as usize));
    let modules: Vec<Option<usize>> = locations.map(|location: &Location| location.module).collect();
    let is_linker = |module: &Option<usize>| {
        let path = module.and_then(|index| profile.modules.get(index)).and_then(|module| module.path.file_name());
        path.is_some_and(|name| name.to_string_lossy().starts_with("ld-"))
    };
    let linker = modules.iter().rev().take_while(|module| is_linker(module)).count();
    let Some((constructor, inner)) = modules.get(..modules.len() - linker).and_then(<[_]>::split_last) else {
        return false;
    };
    let is_program = |module: &ModuleInfo| {
        module.path.file_name().is_some_and(|name| name.to_string_lossy() == profile.meta.process.program)
    };
    let program = profile.modules.iter().position(is_program);
    // one of which only functions are probed that the user has named may leak in its constructors as any other does
    let table = AllocatorTable::new();
    let is_known = |function: &String| table.lookup(function).is_some();
    let is_allocator = |module: &Option<usize>| {
        let of_module = profile.allocators.iter().filter(|allocator| Some(allocator.module) == *module);
        *module != program && of_module.flat_map(|allocator| &allocator.functions).any(is_known)
    };
    // what the linker calls from within are other modules' constructors
    linker > 0
        && is_allocator(constructor)
        && inner.iter().all(|module| module.is_some() && *module != program && !is_linker(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read() {
        assert!(!table().expect("a table").is_empty());
        let version = KNOWN_LEAKS.rsplit(' ').next().unwrap();
        assert!(TABLE.lines().next().unwrap().ends_with(&format!("Version {version}.")), "{KNOWN_LEAKS}");
    }
}
