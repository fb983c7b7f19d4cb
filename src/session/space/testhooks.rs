//! Where test frameworks run their tests.

use crate::allocators::frameworks::{Hook, hook};
use crate::base::addr::ObjAddr;
use crate::image::elf::{Elf, base_name};

/// The functions of frameworks in an object.
pub(super) fn hooks(elf: &Elf<'_>) -> Vec<(ObjAddr, Hook)> {
    let mut found: Vec<(ObjAddr, Hook)> =
        elf.symbols().filter_map(|symbol| Some((symbol.addr, hook(base_name(&symbol.name))?))).collect();
    found.sort_by_key(|(addr, _)| *addr);
    found.dedup_by_key(|(addr, _)| *addr);
    found
}
