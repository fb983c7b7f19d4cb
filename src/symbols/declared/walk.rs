//! Goes through all entries once: what variables there are, and where types are defined.

use super::resolve::is_rust_table;
use super::{Budget, MOST_DEFINITIONS, MOST_VARIABLES, VariablePlace};
use crate::addr::ObjAddr;
use crate::heaptypes::{name_hash, usual_name};
use crate::symbols::demangle::LONGEST_NAME;
use crate::symbols::dwarfsections::Slice;
use crate::symbols::split::SplitLoader;
use addr2line::SplitDwarfLoad;
use gimli::{AttributeValue, DebugInfoOffset, DwTag, Dwarf, EntriesRaw, Operation, Reader, Unit, UnitOffset, UnitType};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Scopes within scopes.
const DEEPEST: usize = 64;
/// The clock is looked at after so many entries.
const BETWEEN: u32 = 4096;
/// Split files that are opened.
const MOST_SPLIT: usize = 4096;

/// An entry: which file it is in, and how far behind the start of its section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Die {
    pub(super) file: u32,
    pub(super) offset: usize,
}

/// A file of DWARF with its units, in the order of their places.
pub(super) struct Source<'a> {
    pub(super) dwarf: Arc<Dwarf<Slice<'a>>>,
    pub(super) units: Vec<(usize, usize, Unit<Slice<'a>>)>,
}

/// All files that hold a module's DWARF: its own, what it shares with others, and those of split units.
pub(super) struct Files<'a> {
    pub(super) all: Vec<Source<'a>>,
    /// Units of types by their signature.
    signatures: FxHashMap<u64, Die>,
}

/// The number of the file that [`AttributeValue::DebugInfoRefSup`] is about.
const SUPPLEMENT: u32 = 1;

fn units<'a>(dwarf: &Dwarf<Slice<'a>>, budget: &mut Budget) -> Vec<(usize, usize, Unit<Slice<'a>>)> {
    let mut found = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        if !budget.has_time() {
            break;
        }
        let Some(start) = header.debug_info_offset() else { continue };
        let end = start.0.saturating_add(header.length_including_self());
        if let Ok(unit) = dwarf.unit(header) {
            found.push((start.0, end, unit));
        }
    }
    found
}

impl<'a> Files<'a> {
    pub(super) fn open(
        dwarf: Dwarf<Slice<'a>>,
        supplement: Option<Dwarf<Slice<'a>>>,
        split: Option<SplitLoader<'a, '_>>,
        budget: &mut Budget,
    ) -> Self {
        let dwarf = Arc::new(dwarf);
        let supplement = supplement.unwrap_or_default();
        let supplement = Source { units: units(&supplement, budget), dwarf: Arc::new(supplement) };
        let own = Source { units: units(&dwarf, budget), dwarf: Arc::clone(&dwarf) };
        let mut all = vec![own, supplement];
        if let Some(split) = split {
            Self::open_split(&mut all, split, budget);
        }
        let mut signatures = FxHashMap::default();
        for (file, source) in (0..).zip(&all) {
            for (start, _, unit) in &source.units {
                if let UnitType::Type { type_signature, type_offset }
                | UnitType::SplitType { type_signature, type_offset } = unit.header.type_()
                {
                    let offset = start.saturating_add(type_offset.0);
                    signatures.entry(type_signature.0).or_insert(Die { file, offset });
                }
            }
        }
        Self { all, signatures }
    }

    fn open_split(all: &mut Vec<Source<'a>>, mut split: SplitLoader<'a, '_>, budget: &mut Budget) {
        let Some(own) = all.first() else { return };
        let parent = Arc::clone(&own.dwarf);
        let mut opened = Vec::new();
        for (_, _, skeleton) in &own.units {
            let Some(dwo_id) = skeleton.dwo_id else { continue };
            if opened.len() >= MOST_SPLIT || !budget.has_time() {
                budget.is_over = true;
                break;
            }
            let path = skeleton.dwo_name().ok().flatten().and_then(|name| parent.attr_string(skeleton, name).ok());
            let load = SplitDwarfLoad { dwo_id, comp_dir: skeleton.comp_dir, path, parent: Arc::clone(&parent) };
            let Some(dwarf) = split.load(&load) else { continue };
            let mut units = units(&dwarf, budget);
            for (_, _, unit) in &mut units {
                unit.copy_relocated_attributes(skeleton);
            }
            opened.push(Source { dwarf, units });
        }
        all.extend(opened);
    }

    /// The unit that an entry is in.
    pub(super) fn unit(&self, die: Die) -> Option<(&Source<'a>, &Unit<Slice<'a>>, UnitOffset)> {
        let source = self.all.get(die.file as usize)?;
        let behind = source.units.partition_point(|(start, ..)| *start <= die.offset);
        let (start, end, unit) = source.units.get(behind.checked_sub(1)?)?;
        (die.offset < *end).then_some((source, unit, UnitOffset(die.offset - start)))
    }

    /// What a reference in a unit of `file`, which begins at `start`, leads to.
    pub(super) fn target(&self, file: u32, start: usize, value: AttributeValue<Slice<'a>>) -> Option<Die> {
        match value {
            AttributeValue::UnitRef(UnitOffset(offset)) => Some(Die { file, offset: start.checked_add(offset)? }),
            AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => Some(Die { file, offset }),
            AttributeValue::DebugInfoRefSup(DebugInfoOffset(offset)) => Some(Die { file: SUPPLEMENT, offset }),
            AttributeValue::DebugTypesRef(signature) => self.signatures.get(&signature.0).copied(),
            _ => None,
        }
    }
}

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

/// Goes through all entries.
pub(super) fn index(files: &Files<'_>, budget: &mut Budget) -> Index {
    let mut walk = Walk { index: Index::default(), numbers: FxHashMap::default(), passed: 0 };
    walk.index.scopes.push(String::new());
    for (file, source) in (0..).zip(&files.all) {
        for (start, _, unit) in &source.units {
            if budget.is_over {
                break;
            }
            // what is damaged ends here, and the next unit is looked at
            let _ = walk.unit(source, file, *start, unit, budget);
        }
    }
    walk.index
}

struct Walk {
    index: Index,
    /// Scopes by the one that they are in, and their name.
    numbers: FxHashMap<(u32, Vec<u8>), u32>,
    passed: u32,
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
        source: &Source<'a>,
        file: u32,
        start: usize,
        unit: &Unit<Slice<'a>>,
        budget: &mut Budget,
    ) -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        let mut scopes: Vec<(isize, u32)> = Vec::new();
        while !entries.is_empty() {
            self.passed = self.passed.wrapping_add(1);
            if self.passed.is_multiple_of(BETWEEN) && !budget.has_time() {
                break;
            }
            let depth = entries.next_depth();
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while scopes.pop_if(|(outer, _)| *outer >= depth).is_some() {}
            let tag = abbreviation.tag();
            let is_type = is_definition(tag);
            let is_scope = is_type || matches!(tag, gimli::DW_TAG_namespace | gimli::DW_TAG_subprogram);
            let is_variable = tag == gimli::DW_TAG_variable || tag == gimli::DW_TAG_member;
            if !is_scope && !is_variable {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let read = read(&mut entries, abbreviation.attributes())?;
            let scope = scopes.last().map_or(0, |(_, scope)| *scope);
            let die = Die { file, offset: start.saturating_add(offset.0) };
            if is_variable {
                self.variable(source, unit, die, scope, &read, budget);
                continue;
            }
            let name = read.name.and_then(|name| source.dwarf.attr_string(unit, name).ok());
            let name = name.map(|name| name.slice()).filter(|name| name.len() <= LONGEST_NAME);
            if is_type && let Some(name) = name {
                self.definition(die, scope, name, &read, budget);
            }
            if abbreviation.has_children() && scopes.len() < DEEPEST {
                let inner = match name {
                    Some(name) => self.scope(scope, name),
                    None if tag == gimli::DW_TAG_namespace => self.scope(scope, b"(anonymous namespace)"),
                    None => scope,
                };
                scopes.push((depth, inner));
            }
        }
        Ok(())
    }

    fn scope(&mut self, outer: u32, name: &[u8]) -> u32 {
        let Self { index, numbers, .. } = self;
        *numbers.entry((outer, name.to_vec())).or_insert_with(|| {
            let name = usual_name(String::from_utf8_lossy(name).into_owned());
            let before = index.scopes.get(outer as usize).map_or("", String::as_str);
            // damaged files have scopes in scopes
            let scope = if before.len() > LONGEST_NAME { before.to_owned() } else { format!("{before}{name}::") };
            index.scopes.push(scope);
            index.scopes.len() as u32 - 1
        })
    }

    fn definition(&mut self, die: Die, scope: u32, name: &[u8], read: &Read<'_>, budget: &mut Budget) {
        let index = &mut self.index;
        if index.definitions.len() >= MOST_DEFINITIONS {
            budget.is_over = true;
            return;
        }
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

    fn variable<'a>(
        &mut self,
        source: &Source<'a>,
        unit: &Unit<Slice<'a>>,
        die: Die,
        scope: u32,
        read: &Read<'a>,
        budget: &mut Budget,
    ) {
        let Some(location) = read.location else {
            // defined elsewhere, where its scope is not told again
            if scope != 0 && read.is_declaration && self.index.declared_in.len() < MOST_VARIABLES {
                self.index.declared_in.insert(die, scope);
            }
            return;
        };
        let Some(place) = place(source, unit, location) else { return };
        if self.index.variables.len() >= MOST_VARIABLES {
            budget.is_over = true;
            return;
        }
        self.index.variables.push(VariableEntry { die, scope, place });
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

/// Where a variable lies that stays where it is.
fn place(source: &Source<'_>, unit: &Unit<Slice<'_>>, location: AttributeValue<Slice<'_>>) -> Option<VariablePlace> {
    let mut operations = location.exprloc_value()?.operations(unit.encoding());
    let first = operations.next().ok()??;
    let second = operations.next().ok()?;
    let value = match first {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } => source.dwarf.address(unit, index).ok()?,
        // offsets of thread-local data
        Operation::UnsignedConstant { value } => value,
        Operation::SignedConstant { value } => u64::try_from(value).ok()?,
        Operation::ConstantIndex { index } => source.dwarf.address(unit, index).ok()?,
        _ => return None,
    };
    let is_address = matches!(first, Operation::Address { .. } | Operation::AddressIndex { .. });
    match second {
        None if is_address && value != 0 => Some(VariablePlace::Static(ObjAddr(value))),
        Some(Operation::TLS) => Some(VariablePlace::ThreadLocal(value)),
        _ => None,
    }
}
