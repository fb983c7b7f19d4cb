//! Symbol tables.

use super::{Elf, Header};
use crate::base::addr::ObjAddr;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{SectionHeader, Sym, SymbolTable};
use std::borrow::{Borrow, Cow};

/// What a symbol stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SymbolKind {
    /// Code (STT_FUNC).
    Function,
    /// Code that returns the address of the function to use (STT_GNU_IFUNC): the symbol's address is the *resolver's*.
    IndirectFunction,
    /// A variable (STT_OBJECT).
    Object,
    /// Unstated (STT_NOTYPE): labels of assembly code.
    Untyped,
}

/// Which of several symbols of one name the linker takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Binding {
    /// Known in its own file only.
    Local,
    /// Known to all.
    Global,
    /// Known to all, gives way to a global one.
    Weak,
}

/// The table that a symbol is from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Table {
    /// `.symtab`: all symbols; stripped from most installed files.
    Symtab,
    /// `.dynsym`: what the dynamic linker needs.
    Dynsym,
}

/// What is behind so many bytes of a name is left out: without an end, it goes on to that of the file's strings.
const LONGEST_NAME: usize = 64 << 10;

/// The same where they are no text.
const LONGEST_DAMAGED: usize = 256;

/// A defined symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol<'d> {
    /// As the table has it; in `.symtab` maybe with a version (`memcpy@@GLIBC_2.14`, see [`base_name`]).
    pub name: Cow<'d, str>,
    /// Where it is.
    pub addr: ObjAddr,
    /// Its size in bytes; 0 if unstated.
    pub size: u64,
    /// What it is.
    pub kind: SymbolKind,
    /// Its binding.
    pub binding: Binding,
    /// Where it was found.
    pub table: Table,
    /// The index of its section.
    pub section: u16,
}

impl Symbol<'_> {
    /// Whether it is code: a function, or the resolver of one.
    pub const fn is_function(&self) -> bool {
        matches!(self.kind, SymbolKind::Function | SymbolKind::IndirectFunction)
    }
}

/// The name without its version: `memcpy` for `memcpy@@GLIBC_2.14`.
pub fn base_name(name: &str) -> &str {
    // Most names are short: to go through their bytes takes less than to begin a search.
    match name.bytes().position(|byte| byte == b'@') {
        Some(at) if at > 0 => name.get(..at).unwrap_or(name),
        _ => name,
    }
}

impl<'d> Elf<'d> {
    /// The defined functions of `.symtab`, then those of `.dynsym`. Most of the latter come up in both.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'d>> {
        self.all_symbols().filter(Symbol::is_function)
    }

    /// The labels of assembly code that other files may know, in `.symtab`: functions whose authors did not say so,
    /// such as musl's `_start`.
    pub fn global_labels(&self) -> impl Iterator<Item = Symbol<'d>> {
        self.table_symbols(elf::SHT_SYMTAB, Table::Symtab).filter(|symbol| self.is_global_label(symbol))
    }

    /// Whether a symbol is one of the [`Elf::global_labels`].
    pub fn is_global_label(&self, symbol: &Symbol<'_>) -> bool {
        symbol.kind == SymbolKind::Untyped
            && symbol.table == Table::Symtab
            && symbol.binding != Binding::Local
            && self.sections.is_code(symbol.section)
    }

    /// Whether a symbol is a label of code that other files may know, in whichever table: a function whose author did
    /// not say so.
    pub fn is_code_label(&self, symbol: &Symbol<'_>) -> bool {
        symbol.kind == SymbolKind::Untyped
            && symbol.binding != Binding::Local
            && self.segments().any(|segment| segment.execute && segment.contains(symbol.addr))
    }

    /// All defined symbols that are functions, variables or untyped labels; `.symtab` first.
    pub fn all_symbols(&self) -> impl Iterator<Item = Symbol<'d>> {
        let dynamic = if self.lacks_sections() { self.dynamic_tables() } else { None };
        self.table_symbols(elf::SHT_SYMTAB, Table::Symtab)
            .chain(self.table_symbols(elf::SHT_DYNSYM, Table::Dynsym))
            .chain(dynamic.into_iter().flat_map(|tables| tables.symbols()))
    }

    /// The first symbol of this name, versions aside; a global one before a local one.
    pub fn find_symbol(&self, name: &str) -> Option<Symbol<'d>> {
        let [found] = find_first(self.all_symbols(), [name]);
        found
    }

    /// The symbols of functions and variables that are looked for by name, in one go through the tables.
    pub fn plain_symbols(&self) -> PlainSymbols<'d> {
        let of = |section, table| self.symbols_if(section, table, is_plain);
        let dynamic = if self.lacks_sections() { self.dynamic_tables() } else { None };
        let dynamic = dynamic.into_iter().flat_map(|tables| tables.symbols());
        let all = of(elf::SHT_SYMTAB, Table::Symtab).chain(of(elf::SHT_DYNSYM, Table::Dynsym)).chain(dynamic);
        PlainSymbols { all: all.collect() }
    }

    /// Whether one of these symbols is defined, by exactly this name. The other names are not even read to their ends.
    pub fn defines_any(&self, names: &[&str]) -> bool {
        let is_one = |symbol: &Symbol<'_>| names.contains(&&*symbol.name);
        let is_one_of = |section, table| {
            self.symbols_if(section, table, |rest| {
                names
                    .iter()
                    .any(|name| rest.strip_prefix(name.as_bytes()).is_some_and(|behind| behind.first() == Some(&0)))
            })
            .any(|symbol| is_one(&symbol))
        };
        let dynamic = if self.lacks_sections() { self.dynamic_tables() } else { None };
        is_one_of(elf::SHT_SYMTAB, Table::Symtab)
            || is_one_of(elf::SHT_DYNSYM, Table::Dynsym)
            || dynamic.is_some_and(|tables| tables.symbols().any(|symbol| is_one(&symbol)))
    }

    /// Whether it refers to one of these symbols, and leaves it to other objects to define it.
    pub fn imports_any(&self, names: &[&str]) -> bool {
        let symbols: SymbolTable<'d, Header> =
            self.sections.table.symbols(LE, self.data, elf::SHT_DYNSYM).unwrap_or_default();
        let is_undefined = |symbol: &elf::Sym64<LE>| symbol.st_shndx(LE) == elf::SHN_UNDEF;
        symbols.iter().filter(|symbol| is_undefined(symbol)).any(|symbol| {
            let name = symbol.name(LE, symbols.strings()).unwrap_or_default();
            names.iter().any(|wanted| wanted.as_bytes() == name)
        })
    }

    /// Whether the table of all symbols is there.
    pub fn has_symtab(&self) -> bool {
        self.sections.table.iter().any(|s| s.sh_type.get(LE) == elf::SHT_SYMTAB)
    }

    fn table_symbols(&self, section: elf::SectionType, table: Table) -> impl Iterator<Item = Symbol<'d>> + use<'d> {
        self.symbols_if(section, table, |_| true)
    }

    /// Those of which the name `is_wanted`. It is given all strings from the beginning of the name on.
    fn symbols_if<W: Fn(&[u8]) -> bool>(
        &self,
        section: elf::SectionType,
        table: Table,
        is_wanted: W,
    ) -> impl Iterator<Item = Symbol<'d>> + use<'d, W> {
        let symbols: SymbolTable<'d, Header> = self.sections.table.symbols(LE, self.data, section).unwrap_or_default();
        let strings =
            self.sections.table.section(symbols.string_section()).and_then(|section| section.data(LE, self.data));
        let strings = strings.unwrap_or_default();
        symbols.iter().filter_map(move |symbol| {
            let rest = strings.get(symbol.st_name.get(LE) as usize..)?;
            if !is_wanted(rest) {
                return None;
            }
            let name = symbol.name(LE, symbols.strings()).ok()?;
            function_or_object(symbol, name, table)
        })
    }
}

/// Whether a name that begins so is none of a function within a class or a namespace, which is what most of C++'s and
/// all of Rust's are (Itanium C++ ABI, 5.1; Rust RFC 2603).
fn is_plain(beginning: &[u8]) -> bool {
    !matches!(beginning, [b'_', b'Z', b'N', ..] | [b'_', b'R', b'A'..=b'Z', ..])
}

/// Symbols of an object, without those that stand for functions within classes and namespaces: of a large program's a
/// small part, in which each look for a name takes little.
#[derive(Debug)]
pub struct PlainSymbols<'d> {
    all: Vec<Symbol<'d>>,
}

impl<'d> PlainSymbols<'d> {
    /// Whether a symbol of this name would be among them.
    pub fn may_have(name: &str) -> bool {
        is_plain(name.as_bytes())
    }

    /// All of them, as [`Elf::all_symbols`].
    pub fn iter(&self) -> impl Iterator<Item = &Symbol<'d>> {
        self.all.iter()
    }

    /// As [`Elf::find_symbol`], of several names.
    pub fn find<const N: usize>(&self, names: [&str; N]) -> [Option<Symbol<'d>>; N] {
        find_first(self.all.iter(), names)
    }

    /// Whether one of these is defined.
    pub fn has_any(&self, names: &[&str]) -> bool {
        self.iter().any(|symbol| names.contains(&&*symbol.name))
    }
}

/// The first symbol of each name, versions aside; a global one before a local one.
fn find_first<'d, const N: usize>(
    symbols: impl Iterator<Item = impl Borrow<Symbol<'d>>>,
    names: [&str; N],
) -> [Option<Symbol<'d>>; N] {
    let mut found = [const { None::<Symbol<'d>> }; N];
    for symbol in symbols {
        let symbol = symbol.borrow();
        // There are many symbols, and few begin as one that is wanted: only of those a version is looked for.
        let is_named = |wanted: &str| symbol.name.starts_with(wanted) && base_name(&symbol.name) == wanted;
        let Some(place) = names.iter().zip(&mut found).find(|(wanted, _)| is_named(wanted)) else { continue };
        let known = place.1;
        if known.as_ref().is_none_or(|known| known.binding == Binding::Local && symbol.binding != Binding::Local) {
            *known = Some(symbol.clone());
        }
    }
    found
}

/// A name as text. One that is none is kept by its beginning: it becomes memory of its own.
fn text_of(name: &[u8]) -> Cow<'_, str> {
    let name = name.get(..LONGEST_NAME).unwrap_or(name);
    match std::str::from_utf8(name) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(name.get(..LONGEST_DAMAGED).unwrap_or(name)),
    }
}

/// The symbol, if it is defined and of a kind that has an address in a section.
pub(super) fn function_or_object<'d>(symbol: &elf::Sym64<LE>, name: &'d [u8], table: Table) -> Option<Symbol<'d>> {
    let kind = match symbol.st_type() {
        elf::STT_FUNC => SymbolKind::Function,
        elf::STT_GNU_IFUNC => SymbolKind::IndirectFunction,
        elf::STT_OBJECT => SymbolKind::Object,
        elf::STT_NOTYPE => SymbolKind::Untyped,
        _ => return None,
    };
    let section = symbol.st_shndx(LE);
    if section == elf::SHN_UNDEF || section == elf::SHN_ABS || section == elf::SHN_COMMON || name.is_empty() {
        return None;
    }
    let binding = match symbol.st_bind() {
        elf::STB_LOCAL => Binding::Local,
        elf::STB_WEAK => Binding::Weak,
        _ => Binding::Global,
    };
    Some(Symbol {
        name: text_of(name),
        addr: ObjAddr(symbol.st_value(LE)),
        size: symbol.st_size(LE),
        kind,
        binding,
        table,
        section: section.0,
    })
}
