use super::*;
use crate::heap::types::Shape;
use gimli::SectionId;
use gimli::write::{Address, AttributeValue, DwarfUnit, EndianVec, Expression, Sections, Unit, UnitEntryId};
use std::collections::BTreeMap;

mod builds;

/// Sections by their names.
type Bytes = BTreeMap<SectionId, Vec<u8>>;

/// Made-up DWARF of one unit.
fn made(fill: impl FnOnce(&mut Unit)) -> Bytes {
    let encoding = gimli::Encoding { format: gimli::Format::Dwarf32, version: 5, address_size: 8 };
    let mut dwarf = DwarfUnit::new(encoding);
    fill(&mut dwarf.unit);
    let mut sections = Sections::new(EndianVec::new(gimli::LittleEndian));
    dwarf.write(&mut sections).unwrap();
    let mut bytes = Bytes::new();
    sections
        .for_each(|id, data| {
            bytes.insert(id, data.slice().to_vec());
            Ok::<_, ()>(())
        })
        .unwrap();
    bytes
}

fn read_into(types: &mut DeclaredTypes, bytes: &Bytes, budget: &mut Budget) -> Declarations {
    let data = DwarfData::of_sections(|id| bytes.get(&id).cloned().unwrap_or_default());
    types.read_dwarf(&data, Parts::default(), budget)
}

fn read(bytes: &Bytes) -> (DeclaredTypes, Declarations) {
    let (mut types, mut budget) = (DeclaredTypes::default(), Budget::default());
    let found = read_into(&mut types, bytes, &mut budget);
    assert!(!budget.is_cut());
    (types, found)
}

/// An entry below `parent`; an empty name is none.
fn add(unit: &mut Unit, parent: UnitEntryId, tag: gimli::DwTag, name: &str) -> UnitEntryId {
    let id = unit.add(parent, tag);
    if !name.is_empty() {
        unit.get_mut(id).set(gimli::DW_AT_name, AttributeValue::String(name.as_bytes().to_vec()));
    }
    id
}

fn sized(unit: &mut Unit, tag: gimli::DwTag, name: &str, size: u64) -> UnitEntryId {
    let root = unit.root();
    let id = add(unit, root, tag, name);
    unit.get_mut(id).set(gimli::DW_AT_byte_size, AttributeValue::Udata(size));
    id
}

/// An entry of a type.
fn of(unit: &mut Unit, parent: UnitEntryId, tag: gimli::DwTag, name: &str, to: UnitEntryId) -> UnitEntryId {
    let id = add(unit, parent, tag, name);
    unit.get_mut(id).set(gimli::DW_AT_type, AttributeValue::UnitRef(to));
    id
}

fn member(unit: &mut Unit, parent: UnitEntryId, name: &str, to: UnitEntryId, offset: u64) -> UnitEntryId {
    let id = of(unit, parent, gimli::DW_TAG_member, name, to);
    unit.get_mut(id).set(gimli::DW_AT_data_member_location, AttributeValue::Udata(offset));
    id
}

fn array(unit: &mut Unit, to: UnitEntryId, counts: &[AttributeValue]) -> UnitEntryId {
    let root = unit.root();
    let id = of(unit, root, gimli::DW_TAG_array_type, "", to);
    for count in counts {
        let range = unit.add(id, gimli::DW_TAG_subrange_type);
        unit.get_mut(range).set(gimli::DW_AT_count, count.clone());
    }
    if counts.is_empty() {
        unit.add(id, gimli::DW_TAG_subrange_type);
    }
    id
}

fn variable(unit: &mut Unit, name: &str, to: UnitEntryId, at: u64) -> UnitEntryId {
    let root = unit.root();
    let id = of(unit, root, gimli::DW_TAG_variable, name, to);
    let mut place = Expression::new();
    place.op_addr(Address::Constant(at));
    unit.get_mut(id).set(gimli::DW_AT_location, AttributeValue::Exprloc(place));
    id
}

fn type_of(found: &Declarations, name: &str) -> TypeId {
    found.variables.iter().find(|variable| variable.name == name).unwrap_or_else(|| panic!("{name}: {found:?}")).of
}

/// Asks all that is asked of tables: it ends, whatever is in them.
fn ask_all(types: &DeclaredTypes) {
    for number in 0..u32::try_from(types.table.len()).unwrap() {
        let of = TypeId(number);
        let table = &types.table;
        let _ = (table.name(of), table.size(of), table.tells(of), table.is_open(of));
        for offset in [0, 1, 8, 16, 24, 40, 1 << 12, 1 << 40, u64::MAX] {
            let place = table.place(of, offset);
            assert!(place.is_none_or(|place| place.path.len() < 2048));
        }
    }
}

#[test]
fn structures_arrays_unions_and_what_names_stand_for() {
    let bytes = made(|unit| {
        let root = unit.root();
        let long = sized(unit, gimli::DW_TAG_base_type, "long int", 8);
        let int = sized(unit, gimli::DW_TAG_base_type, "int", 4);
        let node = sized(unit, gimli::DW_TAG_structure_type, "node", 96);
        let pointer = of(unit, root, gimli::DW_TAG_pointer_type, "", node);
        let (two, three) = (AttributeValue::Udata(2), AttributeValue::Udata(3));
        let rows = array(unit, int, &[two, three]);
        let either = sized(unit, gimli::DW_TAG_union_type, "", 8);
        member(unit, either, "number", long, 0);
        member(unit, either, "node", pointer, 0);
        let hidden = sized(unit, gimli::DW_TAG_structure_type, "", 8);
        member(unit, hidden, "points", pointer, 0);
        let open = array(unit, pointer, &[]);
        member(unit, node, "key", long, 0);
        // not in the order of their places
        member(unit, node, "rows", rows, 16);
        member(unit, node, "next", pointer, 8);
        member(unit, node, "either", either, 40);
        member(unit, node, "", hidden, 48);
        let bits = of(unit, node, gimli::DW_TAG_member, "bits", int);
        unit.get_mut(bits).set(gimli::DW_AT_data_bit_offset, AttributeValue::Udata(56 * 8 + 3));
        let shared = of(unit, node, gimli::DW_TAG_member, "shared", pointer);
        unit.get_mut(shared).set(gimli::DW_AT_external, AttributeValue::Flag(true));
        member(unit, node, "open", open, 64);
        let inner = of(unit, root, gimli::DW_TAG_typedef, "inner", node);
        let constant = of(unit, root, gimli::DW_TAG_const_type, "", inner);
        let outer = of(unit, root, gimli::DW_TAG_typedef, "outer", constant);
        let plain = sized(unit, gimli::DW_TAG_structure_type, "", 8);
        member(unit, plain, "next", pointer, 0);
        let alias = of(unit, root, gimli::DW_TAG_typedef, "alias", plain);
        variable(unit, "g_node", node, 0x1000);
        variable(unit, "g_outer", outer, 0x2000);
        variable(unit, "g_alias", alias, 0x3000);
        variable(unit, "g_rows", rows, 0x4000);
    });
    let (types, found) = read(&bytes);
    let table = &types.table;
    let node = type_of(&found, "g_node");
    assert_eq!(type_of(&found, "g_outer"), node);
    assert_eq!(table.name(node), "node");
    assert_eq!(table.name(type_of(&found, "g_alias")), "alias");
    assert_eq!(table.size(type_of(&found, "g_rows")), 24);
    let told = |offset: u64| table.place(node, offset).map(|place| (place.path, place.leads == Some(node)));
    let is = |path: &str, leads| Some((path.to_owned(), leads));
    assert_eq!(told(0), is("key", false));
    assert_eq!(told(8), is("next", true));
    assert_eq!(told(16 + 4 * 4), is("rows[4]", false));
    assert_eq!(told(40), is("either.node", false));
    assert_eq!(told(48), is("points", true));
    assert_eq!(told(56), None, "bits are not looked at");
    assert_eq!(told(64 + 8 * 9), is("open[9]", true));
    assert_eq!(table.name(type_of(&found, "g_rows")), "int[6]");
    assert!(table.is_open(node));
    ask_all(&types);
}

#[test]
fn entries_that_lead_to_themselves_end() {
    let bytes = made(|unit| {
        let root = unit.root();
        let link = |unit: &mut Unit, id: UnitEntryId, attribute, to| {
            unit.get_mut(id).set(attribute, AttributeValue::UnitRef(to));
        };
        let itself = add(unit, root, gimli::DW_TAG_typedef, "itself");
        link(unit, itself, gimli::DW_AT_type, itself);
        let one = add(unit, root, gimli::DW_TAG_typedef, "one");
        let other = of(unit, root, gimli::DW_TAG_const_type, "", one);
        link(unit, one, gimli::DW_AT_type, other);
        let pointer = add(unit, root, gimli::DW_TAG_pointer_type, "");
        link(unit, pointer, gimli::DW_AT_type, pointer);
        let rows = array(unit, pointer, &[AttributeValue::Udata(4)]);
        link(unit, rows, gimli::DW_AT_type, rows);
        let whole = sized(unit, gimli::DW_TAG_structure_type, "whole", 64);
        for _ in 0..8 {
            member(unit, whole, "part", whole, 0);
        }
        let base = of(unit, whole, gimli::DW_TAG_inheritance, "", whole);
        link(unit, base, gimli::DW_AT_type, whole);
        let (egg, hen) =
            (sized(unit, gimli::DW_TAG_structure_type, "egg", 8), sized(unit, gimli::DW_TAG_structure_type, "hen", 8));
        member(unit, egg, "hen", hen, 0);
        member(unit, hen, "egg", egg, 0);
        let declared = add(unit, root, gimli::DW_TAG_structure_type, "declared");
        unit.get_mut(declared).set(gimli::DW_AT_declaration, AttributeValue::Flag(true));
        link(unit, declared, gimli::DW_AT_signature, declared);
        for (number, of) in (0..).zip([itself, one, pointer, rows, whole, egg, declared]) {
            variable(unit, &format!("g_{number}"), of, 0x1000 + 8 * number);
        }
        let again = variable(unit, "again", egg, 0x9000);
        link(unit, again, gimli::DW_AT_specification, again);
        let nameless = variable(unit, "", egg, 0x9100);
        link(unit, nameless, gimli::DW_AT_abstract_origin, nameless);
        // to a place that is no entry
        let nowhere = variable(unit, "nowhere", egg, 0x9200);
        unit.get_mut(nowhere).set(gimli::DW_AT_type, AttributeValue::Data4(3));
    });
    let (types, found) = read(&bytes);
    assert_eq!(found.variables.len(), 8, "{found:?}");
    ask_all(&types);
}

#[test]
fn sizes_that_no_memory_has_are_borne() {
    let most = || AttributeValue::Udata(u64::MAX);
    let bytes = made(|unit| {
        let root = unit.root();
        let int = sized(unit, gimli::DW_TAG_base_type, "int", u64::MAX);
        let pointer = of(unit, root, gimli::DW_TAG_pointer_type, "", int);
        let rows = array(unit, int, &[most(), most()]);
        let negative = array(unit, pointer, &[AttributeValue::Sdata(-1)]);
        let none = sized(unit, gimli::DW_TAG_structure_type, "none", 0);
        let nothings = array(unit, none, &[most()]);
        let large = sized(unit, gimli::DW_TAG_structure_type, "large", u64::MAX);
        member(unit, large, "last", pointer, u64::MAX);
        member(unit, large, "rows", rows, u64::MAX - 1);
        member(unit, large, "nothings", nothings, 1);
        for (number, of) in (0..).zip([int, rows, negative, nothings, large]) {
            variable(unit, &format!("g_{number}"), of, u64::MAX - number);
        }
    });
    let (types, found) = read(&bytes);
    assert_eq!(found.variables.len(), 5);
    let large = type_of(&found, "g_4");
    assert_eq!(types.table.place(large, u64::MAX).unwrap().path, "last");
    ask_all(&types);
}

/// A module with a structure of so many members, and a variable of it.
fn module(name: &str, members: u64) -> Bytes {
    made(|unit| {
        let root = unit.root();
        let of_name = sized(unit, gimli::DW_TAG_structure_type, name, 8 * members);
        let pointer = of(unit, root, gimli::DW_TAG_pointer_type, "", of_name);
        for number in 0..members {
            member(unit, of_name, &format!("m{number}"), pointer, 8 * number);
        }
        variable(unit, "variable", of_name, 0x1000);
    })
}

#[test]
fn a_limit_that_one_module_reaches_leaves_room_for_the_next() {
    for (what, most) in [(Of::Fields, 50), (Of::Types, 1), (Of::Text, 100)] {
        let (mut types, mut budget) = (DeclaredTypes::default(), Budget::default());
        let slot = budget.left.iter_mut().find(|(of, _)| *of == what).unwrap();
        slot.1 = if what == Of::Types { 3 } else { most };
        read_into(&mut types, &module("large", 200), &mut budget);
        assert_eq!(budget.is_cut(), what != Of::Types, "{what:?}");
        if what == Of::Text {
            // it is what is left that counts
            continue;
        }
        let found = read_into(&mut types, &module("small", 3), &mut budget);
        let small = type_of(&found, "variable");
        let is_there = types.table.place(small, 16).is_some_and(|place| place.path == "m2");
        assert_eq!(is_there, what == Of::Fields, "{what:?}");
        assert!(budget.is_cut());
        ask_all(&types);
    }
}

#[test]
fn scopes_that_take_too_much_room_end_the_module_only() {
    let long = "n".repeat(60_000);
    let bytes = made(|unit| {
        let root = unit.root();
        let outer = add(unit, root, gimli::DW_TAG_namespace, &long);
        let inner = add(unit, outer, gimli::DW_TAG_namespace, &long);
        for number in 0..1500 {
            let scope = add(unit, inner, gimli::DW_TAG_namespace, &format!("s{number}"));
            // it is for what is in them that scopes are named
            add(unit, scope, gimli::DW_TAG_enumeration_type, "within");
        }
        let int = sized(unit, gimli::DW_TAG_base_type, "int", 4);
        variable(unit, "behind", int, 0x1000);
    });
    let (mut types, mut budget) = (DeclaredTypes::default(), Budget::default());
    let found = read_into(&mut types, &bytes, &mut budget);
    assert!(budget.is_cut());
    assert!(found.variables.is_empty());
    let found = read_into(&mut types, &module("small", 3), &mut budget);
    assert_eq!(types.table.place(type_of(&found, "variable"), 8).unwrap().path, "m1");
}

#[test]
fn when_time_is_over_the_rest_is_left_out() {
    let (mut types, mut budget) = (DeclaredTypes::default(), Budget::lasting(Duration::ZERO));
    let found = read_into(&mut types, &module("large", 200), &mut budget);
    assert!(budget.is_cut());
    assert!(found.variables.is_empty());
    // each stage takes a part of what is left
    let mut budget = Budget::lasting(Duration::from_secs(3600));
    budget.begin();
    let first = budget.stage;
    budget.is_late = true;
    budget.begin();
    assert!(budget.has_time() && first < budget.until);
}

/// Tables of abbreviations that reach into each other are read once, each up to the next.
#[test]
fn overlapping_tables_of_abbreviations_take_no_more_than_their_section() {
    let bytes = module("one", 3);
    let mut headers = Vec::new();
    let abbreviations = bytes[&SectionId::DebugAbbrev].len() as u32;
    for offset in 0..abbreviations {
        // a unit of version 5 without entries but one, of unknown form
        headers.extend([9, 0, 0, 0, 5, 0, 1, 8]);
        headers.extend(offset.to_le_bytes());
        headers.push(1);
    }
    let mut hostile = bytes.clone();
    hostile.insert(SectionId::DebugInfo, headers);
    let (mut types, mut budget) = (DeclaredTypes::default(), Budget::default());
    read_into(&mut types, &hostile, &mut budget);
    let (_, left) = budget.left.iter().find(|(of, _)| *of == Of::Abbreviations).unwrap();
    assert!(MAX_ABBREVIATIONS - left <= abbreviations as usize);
    assert_eq!(types.table.len(), 0);
}

#[test]
fn shapes_are_as_they_are_declared() {
    let (types, found) = read(&module("few", 2));
    let few = types.table.get(type_of(&found, "variable")).unwrap();
    let Shape::Struct(fields) = &few.shape else { panic!("{few:?}") };
    assert_eq!(
        fields.iter().map(|field| (field.offset, field.name.as_str())).collect::<Vec<_>>(),
        [(0, "m0"), (8, "m1")]
    );
}
