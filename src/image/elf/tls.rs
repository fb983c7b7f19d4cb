//! Thread-local variables: where their first values are, and how a library's code finds those of a thread.
//!
//! The dynamic linker fills slots for that, by relocations of the x86-64 psABI and of "ELF Handling For Thread-Local
//! Storage" (Drepper) with its extension by descriptors (Oliva, Araújo). They are the only place that says where a
//! library's variables are in the same way for each C library.

use super::Elf;
use super::dynamic::DynamicTables;
use crate::base::addr::ObjAddr;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::ProgramHeader;
use std::ops::Range;

/// So many slots of a library are looked at: all of them say the same.
const MAX_SLOTS: usize = 8;

/// Thread-local variables (PT_TLS).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// Where their first values are, as addresses in the object; those of zeros are in memory only.
    pub image: Range<u64>,
    /// To so many bytes each thread's block of them is aligned.
    pub align: u64,
}

/// What the dynamic linker writes to a [`TlsSlot`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TlsSlotKind {
    /// How far behind the thread pointer the variable is (R_X86_64_TPOFF64).
    Offset,
    /// The number of the module in threads' vectors (R_X86_64_DTPMOD64).
    Module,
    /// A function and its argument (R_X86_64_TLSDESC).
    Descriptor,
}

/// A word, or two, that say where a variable of this object is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TlsSlot {
    /// Whether it names a symbol, which another object's may take the place of.
    pub by_symbol: bool,
    /// What stands there.
    pub kind: TlsSlotKind,
    /// Where it is.
    pub at: ObjAddr,
    /// How far behind the start of the block its variable is, in bytes. For [`TlsSlotKind::Module`]: nothing.
    pub variable: u64,
}

impl Elf<'_> {
    /// Its thread-local variables, if it has some (PT_TLS).
    pub fn tls(&self) -> Option<Tls> {
        let header = self.program_header(elf::PT_TLS)?;
        let start = header.p_vaddr(LE);
        let image = start..start.checked_add(header.p_memsz(LE))?;
        Some(Tls { image, align: header.p_align(LE).max(1) })
    }

    /// The size of its thread-local variables in bytes, with what aligns them (PT_TLS).
    pub fn tls_size(&self) -> u64 {
        let header = self.program_header(elf::PT_TLS);
        header.map_or(0, |h| h.p_memsz(LE).checked_next_multiple_of(h.p_align(LE).max(1)).unwrap_or(0))
    }

    /// Slots that say where its own thread-local variables are, surest first: those without a symbol.
    pub fn tls_slots(&self) -> Vec<TlsSlot> {
        let tables = [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)];
        let symbols = self.dynamic_tables();
        let (mut plain, mut symbolic) = (Vec::new(), Vec::new());
        for (start, size) in tables {
            let bytes = self.dynamic_address(start).and_then(|start| self.bytes_from(start));
            let size = self.dynamic_value(size).and_then(|size| usize::try_from(size).ok());
            let (Some(bytes), Some(size)) = (bytes, size) else { continue };
            let bytes = bytes.get(..size.min(bytes.len())).unwrap_or_default();
            let count = bytes.len() / size_of::<elf::Rela64<LE>>();
            let entries = object::pod::slice_from_bytes::<elf::Rela64<LE>>(bytes, count).map_or(&[][..], |(e, _)| e);
            for slot in entries.iter().filter_map(|entry| slot(entry, symbols)) {
                let slots = if slot.by_symbol { &mut symbolic } else { &mut plain };
                if slots.len() < MAX_SLOTS {
                    slots.push(slot);
                }
                if plain.len() == MAX_SLOTS {
                    return plain;
                }
            }
        }
        plain.append(&mut symbolic);
        plain
    }
}

fn slot(entry: &elf::Rela64<LE>, symbols: Option<DynamicTables<'_>>) -> Option<TlsSlot> {
    let kind = match entry.r_type(LE, false) {
        elf::R_X86_64_TPOFF64 => TlsSlotKind::Offset,
        elf::R_X86_64_DTPMOD64 => TlsSlotKind::Module,
        elf::R_X86_64_TLSDESC => TlsSlotKind::Descriptor,
        _ => return None,
    };
    let symbol = entry.r_sym(LE, false);
    let value = if symbol == 0 { 0 } else { symbols?.defined_value(symbol)? };
    let variable = value.wrapping_add_signed(entry.r_addend.get(LE));
    Some(TlsSlot { by_symbol: symbol != 0, kind, at: ObjAddr(entry.r_offset.get(LE)), variable })
}
