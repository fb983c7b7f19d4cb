//! Slots that the dynamic linker fills with addresses of functions: what a call through the PLT or the global offset
//! table goes to.

use super::dynamic::DynamicTables;
use super::{Elf, slice};
use crate::base::addr::ObjAddr;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::SectionHeader;

/// What a slot is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotOf<'d> {
    /// The function of this name, whoever defines it (R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT).
    Symbol(&'d [u8]),
    /// What the resolver at this address of the same object returns (R_X86_64_IRELATIVE).
    ResolvedBy(ObjAddr),
}

/// See the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FunctionSlot<'d> {
    /// Where it is.
    pub at: ObjAddr,
    /// What it is for.
    pub of: SlotOf<'d>,
}

impl<'d> Elf<'d> {
    /// All of them, in any order. Those of a static program are for resolved functions only.
    pub fn function_slots(&self) -> Vec<FunctionSlot<'d>> {
        let symbols = self.dynamic_tables();
        let tables = self.relocation_tables();
        let entries = tables.into_iter().flat_map(|bytes| {
            let count = bytes.len() / size_of::<elf::Rela64<LE>>();
            object::pod::slice_from_bytes::<elf::Rela64<LE>>(bytes, count).map_or(&[][..], |(entries, _)| entries)
        });
        entries.filter_map(|entry| slot(entry, symbols)).collect()
    }

    /// What the dynamic linker reads; where there is none, what the program's own start does.
    fn relocation_tables(&self) -> Vec<&'d [u8]> {
        let tags = [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)];
        let of = |(start, size)| slice(self.bytes_from(self.dynamic_address(start)?)?, 0, self.dynamic_value(size)?);
        let dynamic: Vec<_> = tags.into_iter().filter_map(of).collect();
        if !dynamic.is_empty() {
            return dynamic;
        }
        let is_loaded = |section: &&elf::SectionHeader64<LE>| {
            section.sh_type.get(LE) == elf::SHT_RELA && section.sh_flags(LE).contains(elf::SHF_ALLOC)
        };
        self.sections.table.iter().filter(is_loaded).filter_map(|section| section.data(LE, self.data).ok()).collect()
    }
}

fn slot<'d>(entry: &elf::Rela64<LE>, symbols: Option<DynamicTables<'d>>) -> Option<FunctionSlot<'d>> {
    let of = match entry.r_type(LE, false) {
        elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => SlotOf::Symbol(symbols?.name(entry.r_sym(LE, false))?),
        elf::R_X86_64_IRELATIVE => SlotOf::ResolvedBy(ObjAddr(entry.r_addend.get(LE).cast_unsigned())),
        _ => return None,
    };
    Some(FunctionSlot { at: ObjAddr(entry.r_offset.get(LE)), of })
}
