//! Goes through all entries once: what variables there are, and where types are defined.

use super::files::{Die, Files, Source};
use super::resolve::is_rust_table;
use super::texts::{BYTES, text};
use super::{Budget, MAX_DEFINITIONS, MAX_VARIABLES, VariablePlace};
use crate::base::addr::ObjAddr;
use crate::heap::types::{name_hash, usual_name};
use crate::symbols::demangle::LONGEST_NAME;
use crate::symbols::dwarfsections::Slice;
use gimli::{AttributeValue, DwTag, EntriesRaw, Operation, Reader, Unit};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Scopes within scopes.
const DEEPEST: usize = 64;
/// The names of all scopes of a module take so many bytes.
const MAX_SCOPES: usize = 64 << 20;

/// Where a type is defined or declared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definition {
    pub(super) die: Die,
    /// The number of the scope that it is in.
    pub(super) scope: u32,
    pub(super) hash: u64,
}

/// A variable as it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct VariableEntry {
    pub(super) die: Die,
    pub(super) scope: u32,
    pub(super) place: VariablePlace,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// `std::`, `alloc::vec::`.
    pub(super) scopes: Vec<String>,
    /// In the order of entries.
    pub(super) definitions: Vec<Definition>,
    /// The first complete definition of a name.
    pub(super) by_name: FxHashMap<u64, Die>,
    pub(super) variables: Vec<VariableEntry>,
    /// Scopes of variables that are declared in one place and defined in another.
    pub(super) declared_in: FxHashMap<Die, u32>,
    /// Classes with tables of virtual functions.
    pub(super) polymorphic: Vec<Die>,
}

impl Index {
    /// Where a type is defined or declared.
    pub(super) fn definition(&self, die: Die) -> Option<&Definition> {
        let at = self.definitions.binary_search_by_key(&die, |definition| definition.die).ok()?;
        self.definitions.get(at)
    }

    pub(super) fn scope(&self, number: u32) -> &str {
        self.scopes.get(number as usize).map_or("", String::as_str)
    }
}

/// Goes through all entries, until time or room is over: what was found by then is of use.
pub(super) fn index(files: &Files<'_>, budget: &mut Budget) -> Index {
    let mut walk = Walk { index: Index::default(), numbers: FxHashMap::default(), text: 0, is_full: false };
    walk.index.scopes.push(String::new());
    for (file, source) in (0..).zip(&files.all) {
        for (start, _, unit) in &source.units {
            if walk.is_full || !budget.tick(1) {
                break;
            }
            // what is damaged ends here, and the next unit is looked at
            let _ = walk.unit(files, (file, *start, unit), budget);
        }
    }
    walk.index
}

struct Walk {
    index: Index,
    /// Scopes by the one that they are in, and their name.
    numbers: FxHashMap<(u32, Vec<u8>), u32>,
    /// What the scopes' names take, in bytes.
    text: usize,
    /// Whether there is no room for more of this module.
    is_full: bool,
}

/// What entries are in.
struct Scope<'a> {
    depth: isize,
    name: Option<AttributeValue<Slice<'a>>>,
    is_namespace: bool,
    /// Once it was asked for.
    number: Option<u32>,
}

/// A name that is not too long.
fn name<'a>(
    source: &Source<'a>,
    unit: &Unit<Slice<'a>>,
    value: Option<AttributeValue<Slice<'a>>>,
    budget: &mut Budget,
) -> Option<&'a [u8]> {
    let name = text(&source.dwarf, unit, value?);
    if name.is_none() {
        // its end was looked for as far as the longest may reach
        budget.tick(LONGEST_NAME / BYTES);
    }
    name
}

/// What is read of an entry.
#[derive(Default)]
struct Read<'a> {
    name: Option<AttributeValue<Slice<'a>>>,
    location: Option<AttributeValue<Slice<'a>>>,
    is_declaration: bool,
    has_vtable: bool,
}

impl Walk {
    fn unit<'a>(
        &mut self,
        files: &Files<'a>,
        (file, start, unit): (u32, usize, &Unit<Slice<'a>>),
        budget: &mut Budget,
    ) -> gimli::Result<()> {
        let Some(source) = files.all.get(file as usize) else { return Ok(()) };
        let mut entries = unit.entries_raw(None)?;
        let mut scopes: Vec<Scope<'a>> = Vec::new();
        while !entries.is_empty() && !self.is_full {
            let depth = entries.next_depth();
            let offset = entries.next_offset();
            let abbreviation = entries.read_abbreviation()?;
            if !budget.tick(1 + abbreviation.map_or(0, |one| one.attributes().len())) {
                break;
            }
            let Some(abbreviation) = abbreviation else { continue };
            while scopes.pop_if(|scope| scope.depth >= depth).is_some() {}
            let tag = abbreviation.tag();
            let is_type = is_definition(tag);
            let is_scope = is_type || matches!(tag, gimli::DW_TAG_namespace | gimli::DW_TAG_subprogram);
            let is_variable = tag == gimli::DW_TAG_variable || tag == gimli::DW_TAG_member;
            if !is_scope && !is_variable {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let read = read(&mut entries, abbreviation.attributes())?;
            let die = Die { file, offset: start.saturating_add(offset.0) };
            if is_variable {
                match read.location {
                    Some(location) => {
                        if let Some(place) = place(source, unit, &files.tls, location) {
                            let scope = self.number(&mut scopes, source, unit, budget);
                            self.variable(VariableEntry { die, scope, place }, budget);
                        }
                    }
                    // defined elsewhere, where its scope is not told again
                    None if read.is_declaration && self.index.declared_in.len() < MAX_VARIABLES => {
                        let scope = self.number(&mut scopes, source, unit, budget);
                        if scope != 0 {
                            self.index.declared_in.insert(die, scope);
                        }
                    }
                    None => {}
                }
                continue;
            }
            if is_type && let Some(name) = name(source, unit, read.name, budget) {
                let scope = self.number(&mut scopes, source, unit, budget);
                let read_bytes = self.index.scope(scope).len() + name.len();
                if !budget.tick(read_bytes / BYTES) {
                    break;
                }
                self.definition(die, scope, name, &read, budget);
            }
            if abbreviation.has_children() && scopes.len() < DEEPEST {
                let is_namespace = tag == gimli::DW_TAG_namespace;
                scopes.push(Scope { depth, name: read.name, is_namespace, number: None });
            }
        }
        Ok(())
    }

    /// The number of the scope that an entry is in. Most of them hold functions only, and get none.
    fn number<'a>(
        &mut self,
        scopes: &mut [Scope<'a>],
        source: &Source<'a>,
        unit: &Unit<Slice<'a>>,
        budget: &mut Budget,
    ) -> u32 {
        let mut outer = 0;
        for scope in scopes {
            outer = match scope.number {
                Some(number) => number,
                None => match name(source, unit, scope.name, budget) {
                    Some(name) => self.scope(outer, name, budget),
                    None if scope.is_namespace => self.scope(outer, b"(anonymous namespace)", budget),
                    None => outer,
                },
            };
            scope.number = Some(outer);
        }
        outer
    }

    fn scope(&mut self, outer: u32, name: &[u8], budget: &mut Budget) -> u32 {
        if let Some(known) = self.numbers.get(&(outer, name.to_vec())) {
            return *known;
        }
        let before = self.index.scope(outer);
        let told = usual_name(String::from_utf8_lossy(name).into_owned());
        // damaged files have scopes in scopes
        let scope = if before.len() > LONGEST_NAME { before.to_owned() } else { format!("{before}{told}::") };
        self.text += scope.len() + name.len();
        if self.text > MAX_SCOPES {
            self.fill(budget);
            return outer;
        }
        self.index.scopes.push(scope);
        let number = self.index.scopes.len() as u32 - 1;
        self.numbers.insert((outer, name.to_vec()), number);
        number
    }

    fn fill(&mut self, budget: &mut Budget) {
        self.is_full = true;
        budget.cut();
    }

    fn definition(&mut self, die: Die, scope: u32, name: &[u8], read: &Read<'_>, budget: &mut Budget) {
        if self.index.definitions.len() >= MAX_DEFINITIONS {
            self.fill(budget);
            return;
        }
        let index = &mut self.index;
        let name = usual_name(String::from_utf8_lossy(name).into_owned());
        let hash = name_hash(&[index.scope(scope), &name]);
        index.definitions.push(Definition { die, scope, hash });
        if !read.is_declaration {
            let first = *index.by_name.entry(hash).or_insert(die);
            if read.has_vtable && first == die && !is_rust_table(&name) {
                index.polymorphic.push(die);
            }
        }
    }

    fn variable(&mut self, found: VariableEntry, budget: &mut Budget) {
        if self.index.variables.len() >= MAX_VARIABLES {
            self.fill(budget);
            return;
        }
        self.index.variables.push(found);
    }
}

/// Whether an entry defines a type that has a name.
pub(super) const fn is_definition(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
    )
}

fn read<'a>(
    entries: &mut EntriesRaw<'_, Slice<'a>>,
    attributes: &[gimli::AttributeSpecification],
) -> gimli::Result<Read<'a>> {
    let mut read = Read::default();
    for specification in attributes {
        let attribute = entries.read_attribute(*specification)?;
        match attribute.name() {
            gimli::DW_AT_name => read.name = Some(attribute.value()),
            gimli::DW_AT_location => read.location = Some(attribute.value()),
            gimli::DW_AT_declaration | gimli::DW_AT_external => read.is_declaration |= is_set(&attribute),
            gimli::DW_AT_containing_type => read.has_vtable = true,
            _ => {}
        }
    }
    Ok(read)
}

fn is_set<R: Reader>(attribute: &gimli::Attribute<R>) -> bool {
    match attribute.value() {
        AttributeValue::Flag(is_set) => is_set,
        _ => false,
    }
}

/// Where a variable lies that stays where it is; `tls`: where the first values of thread-local ones are.
fn place(
    source: &Source<'_>,
    unit: &Unit<Slice<'_>>,
    tls: &Range<u64>,
    location: AttributeValue<Slice<'_>>,
) -> Option<VariablePlace> {
    let mut operations = location.exprloc_value()?.operations(unit.encoding());
    let first = operations.next().ok()??;
    let (value, is_address) = match first {
        Operation::Address { address } => (address, true),
        Operation::AddressIndex { index } => (source.dwarf.address(unit, index).ok()?, true),
        Operation::UnsignedConstant { value } => (value, false),
        Operation::SignedConstant { value } => (u64::try_from(value).ok()?, false),
        Operation::ConstantIndex { index } => (source.dwarf.address(unit, index).ok()?, false),
        _ => return None,
    };
    match operations.next().ok()? {
        None if is_address && value != 0 => Some(VariablePlace::Static(ObjAddr(value))),
        // in split DWARF GCC's offset is the address of the first value; where it could be either, it is not told
        Some(Operation::TLS) => match (tls.contains(&value), value < tls.end.saturating_sub(tls.start)) {
            (true, false) => Some(VariablePlace::ThreadLocal(value - tls.start)),
            (false, true) => Some(VariablePlace::ThreadLocal(value)),
            _ => None,
        },
        _ => None,
    }
}
