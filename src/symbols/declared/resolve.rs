//! Makes types of the entries that variables lead to, and of all that these lead to.

use super::containers;
use super::files::{Die, Files};
use super::texts::{self, BYTES};
use super::walk::{Definition, Index, VariableEntry, is_definition};
use super::{Budget, Declarations, DeclaredTypes, DeclaredVariable, Of, VariablePlace};
use crate::heap::types::{Field, Shape, TypeId, TypeInfo, name_hash, usual_name};
use crate::symbols::demangle::LONGEST_NAME;
use crate::symbols::dwarfsections::Slice;
use gimli::{AttributeValue, DebuggingInformationEntry, Operation, Unit};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// References that are followed from a name to what it stands for: damaged files go in circles.
const LONGEST_CHAIN: usize = 64;
/// Members of one structure.
const MAX_MEMBERS: usize = 1 << 16;
/// Types that one is made for.
const MAX_PARAMS: usize = 256;
/// A pointer's size where it is not told: in x86-64.
const POINTER: u64 = 8;
/// What compilers of Rust call the table of functions of a value behind a `dyn` pointer, and its type.
const RUST_TABLE: &str = "{vtable}";
const RUST_TABLE_TYPE: &str = "{vtable_type}";

type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// Makes the types of all variables.
pub(super) fn resolve(
    types: &mut DeclaredTypes,
    files: &Files<'_>,
    index: &Index,
    budget: &mut Budget,
) -> Declarations {
    let mut resolver = Resolver {
        files,
        index,
        types,
        budget,
        known: FxHashMap::default(),
        same: FxHashMap::default(),
        waiting: VecDeque::new(),
        void: None,
    };
    let mut found = Declarations::default();
    for variable in &index.variables {
        if !resolver.budget.tick(1) || !resolver.budget.take(Of::Variables, 1) {
            break;
        }
        resolver.variable(variable, &mut found);
        resolver.complete();
    }
    for die in &index.polymorphic {
        if !resolver.budget.tick(1) {
            break;
        }
        resolver.of(*die);
        resolver.complete();
    }
    found
}

/// A structure whose entries were read.
pub(super) struct Made {
    pub(super) id: TypeId,
    /// With its scopes.
    pub(super) name: String,
    /// The types that it was made for, by name.
    pub(super) params: Vec<(String, Die)>,
}

pub(super) struct Resolver<'r, 'a> {
    files: &'r Files<'a>,
    index: &'r Index,
    pub(super) types: &'r mut DeclaredTypes,
    budget: &'r mut Budget,
    known: FxHashMap<Die, TypeId>,
    /// One type, as several units define it: by name, size and line.
    same: FxHashMap<(u64, u64, u64), TypeId>,
    waiting: VecDeque<(Die, TypeId)>,
    void: Option<TypeId>,
}

impl<'a> Resolver<'_, 'a> {
    /// Reads an entry. None: it can't be read, or time is over.
    fn entry(&mut self, die: Die) -> Option<Entry<'a>> {
        let (_, unit, offset) = self.files.unit(die)?;
        let entry = unit.entry(offset).ok()?;
        self.budget.tick(steps(&entry)).then_some(entry)
    }

    fn start(&self, die: Die) -> usize {
        self.files.unit(die).map_or(0, |(_, _, offset)| die.offset.saturating_sub(offset.0))
    }

    fn reference(&self, die: Die, entry: &Entry<'a>, name: gimli::DwAt) -> Option<Die> {
        self.files.target(die.file, self.start(die), entry.attr_value(name)?)
    }

    /// Reads a text. None: it can't be read, or there is no room for it.
    fn text(&mut self, die: Die, value: AttributeValue<Slice<'a>>) -> Option<String> {
        let (source, unit, _) = self.files.unit(die)?;
        let Some(text) = texts::text(&source.dwarf, unit, value) else {
            // its end was looked for as far as the longest may reach
            self.budget.tick(LONGEST_NAME / BYTES);
            return None;
        };
        self.budget.tick(text.len() / BYTES);
        self.budget.take(Of::Text, text.len()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    /// A name with its scopes. None: there is no room for it.
    fn scoped(&mut self, scope: u32, name: &str) -> Option<String> {
        let scope = self.index.scope(scope);
        self.budget.take(Of::Text, scope.len()).then(|| format!("{scope}{name}"))
    }

    fn name(&mut self, die: Die, entry: &Entry<'a>) -> Option<String> {
        self.text(die, entry.attr_value(gimli::DW_AT_name)?).map(usual_name)
    }

    fn push(&mut self, one: TypeInfo) -> Option<TypeId> {
        self.budget.take(Of::Types, 1).then(|| self.types.table.push(one))
    }

    fn void(&mut self) -> TypeId {
        *self.void.get_or_insert_with(|| self.types.table.push(TypeInfo::default()))
    }

    fn variable(&mut self, variable: &VariableEntry, found: &mut Declarations) {
        let (mut die, mut scope) = (variable.die, variable.scope);
        let (mut name, mut of) = (None, None);
        for _ in 0..LONGEST_CHAIN {
            let Some(entry) = self.entry(die) else { return };
            name = name.or_else(|| self.name(die, &entry));
            of = of.or_else(|| self.reference(die, &entry, gimli::DW_AT_type));
            let further = [gimli::DW_AT_specification, gimli::DW_AT_abstract_origin];
            match further.into_iter().find_map(|attribute| self.reference(die, &entry, attribute)) {
                Some(next) => {
                    scope = self.index.declared_in.get(&next).copied().unwrap_or(scope);
                    die = next;
                }
                None => break,
            }
        }
        let (Some(name), Some(of)) = (name, of) else { return };
        if name.ends_with(RUST_TABLE) {
            let value = self.entry(of).and_then(|entry| self.reference(of, &entry, gimli::DW_AT_containing_type));
            if let (Some(value), VariablePlace::Static(at)) = (value, variable.place) {
                found.tables.push((at, self.of(value)));
            }
            return;
        }
        let Some(name) = self.scoped(scope, &name) else { return };
        let of = self.of(of);
        found.variables.push(DeclaredVariable { place: variable.place, name, of });
    }

    /// The type that an entry describes, or stands for.
    pub(super) fn of(&mut self, die: Die) -> TypeId {
        let mut at = die;
        let mut passed = Vec::new();
        let mut alias = None;
        let found = loop {
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            passed.push(at);
            let Some(entry) = self.entry(at).filter(|_| passed.len() < LONGEST_CHAIN) else { break self.void() };
            match entry.tag() {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type
                | gimli::DW_TAG_immutable_type
                | gimli::DW_TAG_packed_type
                | gimli::DW_TAG_template_alias => {
                    if let Some(name) = self.name(at, &entry) {
                        alias = Some(name);
                    }
                    match self.reference(at, &entry, gimli::DW_AT_type) {
                        Some(next) => at = next,
                        None => break self.void(),
                    }
                }
                _ => break self.make(at, &entry, alias),
            }
        };
        for one in passed {
            self.known.insert(one, found);
        }
        found
    }

    fn make(&mut self, die: Die, entry: &Entry<'a>, alias: Option<String>) -> TypeId {
        let size = |entry: &Entry<'a>| entry.attr_value(gimli::DW_AT_byte_size).and_then(|size| size.udata_value());
        let made = match entry.tag() {
            tag if is_definition(tag) => return self.make_definition(die, entry, alias),
            gimli::DW_TAG_base_type => {
                let (name, size) = (self.name(die, entry).unwrap_or_default(), size(entry).unwrap_or(0));
                let shape = if size == 1 { Shape::Bytes } else { Shape::Scalar };
                let key = (name_hash(&[&name]), size, 0);
                if let Some(same) = self.same.get(&key) {
                    return *same;
                }
                let made = self.push(TypeInfo { name, size, shape, ..TypeInfo::default() });
                if let Some(made) = made {
                    self.same.insert(key, made);
                }
                made
            }
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => {
                let name = self.name(die, entry).unwrap_or_default();
                let made = self.push(TypeInfo { name, size: size(entry).unwrap_or(POINTER), ..TypeInfo::default() });
                self.wait(die, made)
            }
            gimli::DW_TAG_array_type => {
                let made = self.push(TypeInfo { size: size(entry).unwrap_or(0), ..TypeInfo::default() });
                self.wait(die, made)
            }
            _ => None,
        };
        made.unwrap_or_else(|| self.void())
    }

    fn wait(&mut self, die: Die, made: Option<TypeId>) -> Option<TypeId> {
        self.waiting.extend(made.map(|made| (die, made)));
        made
    }

    fn make_definition(&mut self, die: Die, entry: &Entry<'a>, alias: Option<String>) -> TypeId {
        let definition = self.index.definition(die).copied();
        let is_whole =
            |entry: &Entry<'a>| !entry.has_attr(gimli::DW_AT_declaration) && !entry.has_attr(gimli::DW_AT_signature);
        let is_complete = is_whole(entry);
        if !is_complete {
            // in a unit of its own, or of another one
            let by_signature = self.reference(die, entry, gimli::DW_AT_signature);
            let complete = by_signature.or_else(|| self.index.by_name.get(&definition?.hash).copied());
            if let Some(complete) = complete.filter(|complete| *complete != die) {
                return match self.known.get(&complete) {
                    Some(known) => *known,
                    None => match self.entry(complete) {
                        Some(entry) if is_whole(&entry) => {
                            let made = self.make_definition(complete, &entry, None);
                            self.known.insert(complete, made);
                            made
                        }
                        _ => self.void(),
                    },
                };
            }
        }
        let number = |name| entry.attr_value(name).and_then(|value| value.udata_value()).unwrap_or(0);
        let size = number(gimli::DW_AT_byte_size);
        let key = definition.map(|Definition { hash, .. }| (hash, size, number(gimli::DW_AT_decl_line)));
        if let Some(same) = key.and_then(|key| self.same.get(&key)) {
            return *same;
        }
        let own = self.name(die, entry);
        let name = match (own, definition) {
            (Some(name), Some(definition)) => self.scoped(definition.scope, &name).unwrap_or(name),
            (Some(name), None) => name,
            (None, _) => alias.unwrap_or_default(),
        };
        let is_enum = entry.tag() == gimli::DW_TAG_enumeration_type;
        let shape = if is_enum { Shape::Scalar } else { Shape::Opaque };
        let Some(made) = self.push(TypeInfo { name, size, shape, ..TypeInfo::default() }) else { return self.void() };
        if let Some(key) = key {
            self.same.insert(key, made);
            if is_complete {
                self.types.by_name.entry(key.0).or_insert(made);
            }
        }
        if is_complete && !is_enum {
            self.waiting.push_back((die, made));
        }
        made
    }

    /// The type of a qualified name.
    pub(super) fn named(&mut self, name: &str) -> Option<TypeId> {
        let die = *self.index.by_name.get(&name_hash(&[name]))?;
        Some(self.of(die))
    }

    /// Reads all entries that wait, and those that they lead to.
    fn complete(&mut self) {
        while let Some((die, id)) = self.waiting.pop_front() {
            if !self.budget.tick(1) {
                self.waiting.clear();
                return;
            }
            let Some(entry) = self.entry(die) else { continue };
            match entry.tag() {
                gimli::DW_TAG_array_type => self.array(die, &entry, id),
                tag if is_definition(tag) => {
                    // what could be read of a damaged one is kept
                    self.structure(die, tag == gimli::DW_TAG_union_type, id);
                }
                _ => {
                    let to = self.reference(die, &entry, gimli::DW_AT_type);
                    let to = match to {
                        Some(to) => self.of(to),
                        None => self.void(),
                    };
                    self.set(id, Shape::Pointer(to));
                }
            }
        }
    }

    fn set(&mut self, id: TypeId, shape: Shape) {
        if let Some(one) = self.types.table.get_mut(id) {
            one.shape = shape;
        }
    }

    fn array(&mut self, die: Die, entry: &Entry<'a>, id: TypeId) {
        let Some(element) = self.reference(die, entry, gimli::DW_AT_type) else { return };
        let element = self.of(element);
        let Some((_, unit, offset)) = self.files.unit(die) else { return };
        let mut count: Option<u64> = Some(1);
        let _ = each_child(unit, offset, self.budget, &mut |depth, child, _| {
            if depth == 1 && child.tag() == gimli::DW_TAG_subrange_type {
                let number = |name| child.attr_value(name).and_then(|value: AttributeValue<_>| value.udata_value());
                let own = number(gimli::DW_AT_count)
                    .or_else(|| number(gimli::DW_AT_upper_bound).and_then(|last| last.checked_add(1)));
                count = count.zip(own).and_then(|(count, own)| count.checked_mul(own));
            }
        });
        self.set(id, Shape::Array(element, count));
    }

    fn structure(&mut self, die: Die, is_union: bool, id: TypeId) {
        let Some((_, unit, offset)) = self.files.unit(die) else { return };
        let start = self.start(die);
        let mut members: Vec<(u64, Option<AttributeValue<Slice<'a>>>, Die)> = Vec::new();
        let mut params = Vec::new();
        let (files, budget) = (self.files, &mut *self.budget);
        let _ = each_child(unit, offset, budget, &mut |depth, child, above| {
            let is_own = depth == 1 || above == [gimli::DW_TAG_variant_part, gimli::DW_TAG_variant];
            let target = || files.target(die.file, start, child.attr_value(gimli::DW_AT_type)?);
            match child.tag() {
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance if is_own && members.len() < MAX_MEMBERS => {
                    let is_elsewhere = [gimli::DW_AT_external, gimli::DW_AT_declaration, gimli::DW_AT_data_bit_offset]
                        .iter()
                        .any(|attribute| child.has_attr(*attribute));
                    if let (Some(of), Some(offset), false) = (target(), member_offset(unit, child), is_elsewhere) {
                        let name = child.attr_value(gimli::DW_AT_name);
                        members.push((offset, name.filter(|_| child.tag() == gimli::DW_TAG_member), of));
                    }
                }
                gimli::DW_TAG_template_type_parameter if depth == 1 && params.len() < MAX_PARAMS => {
                    if let (Some(name), Some(of)) = (child.attr_value(gimli::DW_AT_name), target()) {
                        params.push((name, of));
                    }
                }
                _ => {}
            }
        });
        if !self.budget.take(Of::Fields, members.len()) {
            return;
        }
        let mut fields: Vec<Field> = Vec::with_capacity(members.len());
        for (offset, name, of) in members {
            let name = match name {
                None => String::new(),
                // without its name it would look like a base class
                Some(name) => match self.text(die, name) {
                    Some(name) => name,
                    None => continue,
                },
            };
            fields.push(Field { offset, name, of: self.of(of) });
        }
        fields.sort_by_key(|field| field.offset);
        let params = params.into_iter();
        let params = params.filter_map(|(name, of)| Some((self.text(die, name)?, of))).collect();
        let name = self.types.table.get(id).map_or_else(String::new, |one| one.name.clone());
        self.set(id, if is_union { Shape::Union(fields) } else { Shape::Struct(fields) });
        containers::complete(self, &Made { id, name, params });
    }
}

/// What reading an entry takes.
fn steps(entry: &Entry<'_>) -> usize {
    entry.attrs().iter().fold(1, |steps, attribute| steps + 1 + texts::steps(&attribute.value()))
}

/// How far behind its structure's start a member lies, in bytes.
fn member_offset(unit: &Unit<Slice<'_>>, member: &Entry<'_>) -> Option<u64> {
    match member.attr_value(gimli::DW_AT_data_member_location) {
        None => Some(0),
        Some(AttributeValue::Exprloc(expression)) => {
            let mut operations = expression.operations(unit.encoding());
            match (operations.next().ok()??, operations.next().ok()?) {
                (Operation::PlusConstant { value }, None) => Some(value),
                // a base class that is found at run time
                _ => None,
            }
        }
        Some(value) => value.udata_value(),
    }
}

/// Goes through what is below an entry: its depth, the entry, and the tags of those between.
fn each_child<'a>(
    unit: &Unit<Slice<'a>>,
    offset: gimli::UnitOffset,
    budget: &mut Budget,
    found: &mut dyn FnMut(usize, &Entry<'a>, &[gimli::DwTag]),
) -> gimli::Result<()> {
    let mut entries = unit.entries_raw(Some(offset))?;
    let mut entry = Entry::null();
    let mut above: Vec<gimli::DwTag> = Vec::new();
    let mut is_first = true;
    while !entries.is_empty() {
        let depth = usize::try_from(entries.next_depth()).unwrap_or(0);
        if !is_first && depth == 0 {
            break;
        }
        let is_one = entries.read_entry(&mut entry)?;
        if !budget.tick(steps(&entry)) {
            break;
        }
        if !is_one {
            continue;
        }
        if !is_first {
            above.truncate(depth - 1);
            found(depth, &entry, &above);
            above.push(entry.tag());
        }
        is_first = false;
    }
    Ok(())
}

/// Whether a class is a table of functions, not one that has some.
pub(super) fn is_rust_table(name: &str) -> bool {
    name.ends_with(RUST_TABLE_TYPE)
}
