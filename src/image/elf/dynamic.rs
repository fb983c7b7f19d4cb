//! PT_DYNAMIC: what the dynamic linker reads, and the only way to symbols where there are no section headers.

use super::symbols::{Symbol, Table, function_or_object};
use super::{Elf, Header, Image, slice};
use crate::base::addr::ObjAddr;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Dyn, FileHeader, GnuHashTable, HashTable};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The size of an entry of a symbol table (Elf64_Sym).
const SYMBOL_SIZE: u64 = 24;

/// The tables that PT_DYNAMIC points to.
#[derive(Clone, Copy, Debug)]
pub(super) struct DynamicTables<'d> {
    symbols: &'d [u8],
    strings: &'d [u8],
}

impl<'d> Elf<'d> {
    /// The name by which others depend on it (DT_SONAME).
    pub fn soname(&self) -> Option<OsString> {
        let offset = self.dynamic_value(elf::DT_SONAME)?;
        Some(OsString::from_vec(self.dynamic_string(offset)?.to_vec()))
    }

    /// The libraries that it depends on (DT_NEEDED), in order.
    pub fn needed(&self) -> Vec<OsString> {
        self.dynamic()
            .filter(|(tag, _)| *tag == elf::DT_NEEDED)
            .filter_map(|(_, offset)| Some(OsString::from_vec(self.dynamic_string(offset)?.to_vec())))
            .collect()
    }

    /// Entries of PT_DYNAMIC up to DT_NULL.
    fn dynamic(&self) -> impl Iterator<Item = (elf::DynamicTag, u64)> + use<'d> {
        let bytes = self.program_header(elf::PT_DYNAMIC).and_then(|h| self.header_bytes(h)).unwrap_or_default();
        let count = bytes.len() / size_of::<elf::Dyn64<LE>>();
        let entries = object::pod::slice_from_bytes::<elf::Dyn64<LE>>(bytes, count).map_or(&[][..], |(e, _)| e);
        entries.iter().map(|e| (e.d_tag(LE), e.val(LE))).take_while(|(tag, _)| *tag != elf::DT_NULL)
    }

    /// Whether it is a program, and no library: of a fixed address, one that says so (DF_1_PIE, which older linkers do
    /// not set), or one that asks for a dynamic linker and has no name for others to depend on it by. Libraries that
    /// can be executed have one.
    pub fn is_program(&self) -> bool {
        let says_so = || self.dynamic_value(elf::DT_FLAGS_1).is_some_and(|flags| flags & elf::DF_1_PIE.0 != 0);
        let is_executed =
            || self.program_header(elf::PT_INTERP).is_some() && self.dynamic_value(elf::DT_SONAME).is_none();
        self.header.e_type(LE) == elf::ET_EXEC || says_so() || is_executed()
    }

    pub(super) fn dynamic_value(&self, wanted: elf::DynamicTag) -> Option<u64> {
        self.dynamic().find(|(tag, _)| *tag == wanted).map(|(_, value)| value)
    }

    pub(super) fn dynamic_address(&self, wanted: elf::DynamicTag) -> Option<ObjAddr> {
        self.dynamic_value(wanted).map(|value| self.dynamic_pointer(value))
    }

    fn dynamic_strings(&self) -> Option<&'d [u8]> {
        slice(self.bytes_from(self.dynamic_address(elf::DT_STRTAB)?)?, 0, self.dynamic_value(elf::DT_STRSZ)?)
    }

    fn dynamic_string(&self, offset: u64) -> Option<&'d [u8]> {
        string_at(self.dynamic_strings()?, offset)
    }

    /// The dynamic symbols without the help of section headers.
    pub(super) fn dynamic_tables(&self) -> Option<DynamicTables<'d>> {
        let table = self.dynamic_address(elf::DT_SYMTAB)?;
        let size = u64::from(self.dynamic_symbol_count(table)?).checked_mul(SYMBOL_SIZE)?;
        let symbols = self.bytes_from(table)?;
        let symbols = symbols.get(..usize::try_from(size).ok()?.min(symbols.len()))?;
        Some(DynamicTables { symbols, strings: self.dynamic_strings()? })
    }

    /// The number of dynamic symbols, which no tag states: the hash tables cover all. Failing these, the string table
    /// mostly follows the symbols.
    fn dynamic_symbol_count(&self, table: ObjAddr) -> Option<u32> {
        let hash = |tag| self.bytes_from(self.dynamic_address(tag)?);
        if let Some(bytes) = hash(elf::DT_HASH)
            && let Ok(hash) = HashTable::<Header>::parse(LE, bytes)
        {
            return Some(hash.symbol_table_length());
        }
        if let Some(bytes) = hash(elf::DT_GNU_HASH)
            && let Ok(hash) = GnuHashTable::<Header>::parse(LE, whole_words(bytes))
            && let Some(count) = hash.symbol_table_length(LE)
        {
            return Some(count);
        }
        let gap = self.dynamic_address(elf::DT_STRTAB)?.0.checked_sub(table.0)?;
        u32::try_from(gap / SYMBOL_SIZE).ok()
    }

    /// Whether there are no sections to find symbols by.
    pub(super) fn lacks_sections(&self) -> bool {
        matches!(self.image, Image::Memory { .. }) || self.sections.table.is_empty()
    }
}

impl<'d> DynamicTables<'d> {
    /// The value of a symbol that is defined here, by its number.
    pub(super) fn defined_value(self, number: u32) -> Option<u64> {
        let start = usize::try_from(u64::from(number) * SYMBOL_SIZE).ok()?;
        let (symbol, _) = object::pod::from_bytes::<elf::Sym64<LE>>(self.symbols.get(start..)?).ok()?;
        (symbol.st_shndx.get(LE) != elf::SHN_UNDEF).then(|| symbol.st_value.get(LE))
    }

    /// The name of a symbol, by its number.
    pub(super) fn name(self, number: u32) -> Option<&'d [u8]> {
        let start = usize::try_from(u64::from(number) * SYMBOL_SIZE).ok()?;
        let (symbol, _) = object::pod::from_bytes::<elf::Sym64<LE>>(self.symbols.get(start..)?).ok()?;
        string_at(self.strings, u64::from(symbol.st_name.get(LE)))
    }

    pub(super) fn symbols(self) -> impl Iterator<Item = Symbol<'d>> {
        let count = self.symbols.len() / size_of::<elf::Sym64<LE>>();
        let entries = object::pod::slice_from_bytes::<elf::Sym64<LE>>(self.symbols, count).map_or(&[][..], |(e, _)| e);
        entries.iter().filter_map(move |symbol| {
            let name = string_at(self.strings, u64::from(symbol.st_name.get(LE)))?;
            function_or_object(symbol, name, Table::Dynsym)
        })
    }
}

/// `GnuHashTable` takes all that follows as its chains.
fn whole_words(bytes: &[u8]) -> &[u8] {
    bytes.get(..bytes.len() / 4 * 4).unwrap_or_default()
}

fn string_at(strings: &[u8], offset: u64) -> Option<&[u8]> {
    strings.get(usize::try_from(offset).ok()?..)?.split(|&b| b == 0).next()
}
