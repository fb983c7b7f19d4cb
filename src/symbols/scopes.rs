//! Names of C++ functions to which the compiler gives no linkage name: in unnamed namespaces, static, lambdas. The
//! debug information has them without their scope, which its entries' parents tell.

use super::demangle::{LONGEST_NAME, function_name};
use super::dwarfsections::Slice;
use crate::heap::types::usual_name;
use crate::profile::symbolize::FunctionName;
use gimli::{AttributeValue, DebuggingInformationEntry, EntriesCursor, UnitOffset, UnitRef, UnitSectionOffset};
use rustc_hash::FxHashMap;
use std::cell::Cell;

type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// So many entries are followed from one to the next: of functions, of types.
const LONGEST_CHAIN: usize = 16;

/// So many entries are looked at for one name, in all: a file may have any number of them, nested as it likes.
const MAX_ENTRIES: usize = 1 << 18;

/// What may still be done for a name.
#[derive(Clone, Copy)]
struct Rest<'a> {
    chain: usize,
    entries: &'a Cell<usize>,
}

impl Rest<'_> {
    /// For what is inside of what is named; None: that is too deep.
    fn deeper(self) -> Option<Self> {
        Some(Self { chain: self.chain.checked_sub(1)?, ..self })
    }

    /// Another entry is looked at; None: there were too many.
    fn take(self) -> Option<()> {
        self.entries.set(self.entries.get().checked_sub(1)?);
        Some(())
    }
}

/// The entries on the way from one to the unit's, at most.
const DEEPEST: usize = 64;

/// Parameters of a function, at most.
const MAX_PARAMETERS: usize = 64;

/// Names that have been looked for, by unit and entry. Entries of different files may have one place: those have an id.
pub(super) type ScopedNames = FxHashMap<(Option<u64>, UnitSectionOffset, usize), Option<FunctionName>>;

/// As [`scoped_name`], of a function whose name by itself is `own`.
pub(super) fn known_or_scoped(
    known: &mut ScopedNames,
    unit: UnitRef<'_, Slice<'_>>,
    offset: UnitOffset<usize>,
    own: &[u8],
) -> Option<FunctionName> {
    let Named::Own(entry, _) = named(unit, offset)? else { return None };
    let key = (unit.dwo_id.map(|id| id.0), unit.header.offset(), entry.offset().0);
    let look = || {
        let name = scoped_name(unit, entry.offset())?;
        Some(FunctionName { name: name.into(), system_name: String::from_utf8_lossy(own).into() })
    };
    known.entry(key).or_insert_with(look).clone()
}

/// The name of the function with this entry, with its scope, and with its parameters if all of them can be named; None
/// if the name that it has is all that there is: it has a linkage name, no scope, or that of C.
fn scoped_name(unit: UnitRef<'_, Slice<'_>>, offset: UnitOffset<usize>) -> Option<String> {
    let is_cpp = matches!(
        unit.entry(unit.header.root_offset()).ok()?.attr_value(gimli::DW_AT_language)?,
        AttributeValue::Language(
            gimli::DW_LANG_C_plus_plus
                | gimli::DW_LANG_C_plus_plus_03
                | gimli::DW_LANG_C_plus_plus_11
                | gimli::DW_LANG_C_plus_plus_14
                | gimli::DW_LANG_C_plus_plus_17
                | gimli::DW_LANG_C_plus_plus_20
        )
    );
    let entries = Cell::new(MAX_ENTRIES);
    let rest = Rest { chain: LONGEST_CHAIN, entries: &entries };
    if !is_cpp { None } else { function(unit, offset, rest)?.filter(|name| name.len() <= LONGEST_NAME) }
}

/// As [`scoped_name`]; the inner None: there is no scope to add.
fn function(unit: UnitRef<'_, Slice<'_>>, offset: UnitOffset<usize>, rest: Rest<'_>) -> Option<Option<String>> {
    let (entry, own_name) = match named(unit, offset)? {
        Named::Linkage(_) => return Some(None),
        Named::Own(entry, name) => (entry, name),
    };
    let parents = parents(unit, entry.offset(), rest)?;
    let of_namespace = parents.last().is_none_or(|parent| parent.tag() == gimli::DW_TAG_namespace);
    // a function of C in a namespace is known to others, and by its name alone
    let is_external = entry.attr_value(gimli::DW_AT_external) == Some(AttributeValue::Flag(true));
    if parents.is_empty() || (of_namespace && is_external) {
        return Some(None);
    }
    let mut name = scope(unit, &parents, rest)?;
    name.push_str(&in_short(&own_name));
    if let Some(parameters) = parameters(unit, entry.offset(), rest) {
        name.push_str(&parameters);
    }
    Some(Some(name))
}

/// What names a function.
enum Named<'a> {
    Linkage(String),
    /// The entry that has the name.
    Own(Entry<'a>, String),
}

fn named<'a>(unit: UnitRef<'_, Slice<'a>>, offset: UnitOffset<usize>) -> Option<Named<'a>> {
    let mut offset = offset;
    for _ in 0..LONGEST_CHAIN {
        let entry = unit.entry(offset).ok()?;
        let linkage = [gimli::DW_AT_linkage_name, gimli::DW_AT_MIPS_linkage_name];
        if let Some(name) = linkage.into_iter().find_map(|attribute| text(unit, &entry, attribute)) {
            return Some(Named::Linkage(name));
        }
        if let Some(name) = text(unit, &entry, gimli::DW_AT_name) {
            return Some(Named::Own(entry, name));
        }
        let further = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
        match further.into_iter().find_map(|attribute| entry.attr_value(attribute))? {
            AttributeValue::UnitRef(next) => offset = next,
            _ => return None,
        }
    }
    None
}

fn text<'a>(unit: UnitRef<'_, Slice<'a>>, entry: &Entry<'a>, attribute: gimli::DwAt) -> Option<String> {
    let text = unit.attr_string(entry.attr_value(attribute)?).ok()?;
    (text.len() <= LONGEST_NAME).then(|| text.to_string_lossy().into_owned())
}

/// The entries around that at `offset`, but the unit's: outermost first.
fn parents<'a>(unit: UnitRef<'_, Slice<'a>>, offset: UnitOffset<usize>, rest: Rest<'_>) -> Option<Vec<Entry<'a>>> {
    let mut parents = Vec::new();
    let mut cursor: EntriesCursor<'_, Slice<'a>> = unit.entries();
    cursor.next_dfs().ok()?;
    while parents.len() < DEEPEST {
        // to the first child, from which siblings lead on: past the children of each, where the file says how far
        cursor.next_entry().ok()?.then_some(())?;
        loop {
            rest.take()?;
            let at = cursor.current()?.offset();
            if at == offset {
                return Some(parents);
            }
            let mut next = cursor.clone();
            match next.next_sibling() {
                Ok(Some(sibling)) if sibling.offset() <= offset => cursor = next,
                Ok(_) => break,
                Err(_) => return None,
            }
        }
        parents.push(cursor.current()?.clone());
    }
    None
}

/// The text of a scope, with the colons behind it.
fn scope<'a>(unit: UnitRef<'_, Slice<'a>>, parents: &[Entry<'a>], rest: Rest<'_>) -> Option<String> {
    let mut scope = String::new();
    let mut function_around = None;
    // the name of a function has all scopes around it
    let first = parents.iter().rposition(|parent| parent.tag() == gimli::DW_TAG_subprogram).unwrap_or(0);
    for parent in parents.iter().skip(first) {
        let own_name = text(unit, parent, gimli::DW_AT_name);
        let name = match parent.tag() {
            gimli::DW_TAG_lexical_block => continue,
            gimli::DW_TAG_namespace => own_name.unwrap_or_else(|| "(anonymous namespace)".to_owned()),
            gimli::DW_TAG_subprogram => {
                function_around = Some(parent.offset());
                match named(unit, parent.offset())? {
                    Named::Linkage(name) => function_name(&name).name.as_ref().to_owned(),
                    Named::Own(_, name) => {
                        let rest = rest.deeper()?;
                        function(unit, parent.offset(), rest)?.unwrap_or(name)
                    }
                }
            }
            gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type => match own_name {
                Some(name) => in_short(&name),
                None => lambda(unit, parent.offset(), function_around, rest.deeper()?)
                    .unwrap_or_else(|| "{unnamed type}".to_owned()),
            },
            _ => return None,
        };
        scope.push_str(&name);
        scope.push_str("::");
        if scope.len() > LONGEST_NAME {
            return None;
        }
    }
    Some(scope)
}

/// An unnamed class that can be called, as c++filt names a lambda: numbered among those of equal parameters in the
/// function around it, by the places in its source. (gcc up to 12 numbers all of a function together.) None: it is no
/// lambda.
fn lambda(
    unit: UnitRef<'_, Slice<'_>>,
    at: UnitOffset<usize>,
    around: Option<UnitOffset<usize>>,
    rest: Rest<'_>,
) -> Option<String> {
    let own = LambdaAt::of(unit, at, rest)?;
    let parameters = own.parameters.clone();
    let Some(around) = around else { return Some(format!("{{lambda{parameters}}}")) };
    let mut before = 0;
    let mut seen = 0;
    let mut blocks = vec![around];
    while let Some(block) = blocks.pop() {
        let mut tree = unit.entries_tree(Some(block)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Some(child) = children.next().ok()? {
            seen += 1;
            if seen > MAX_SIBLINGS || rest.take().is_none() {
                return Some(format!("{{lambda{parameters}}}"));
            }
            match child.entry().tag() {
                gimli::DW_TAG_lexical_block => blocks.push(child.entry().offset()),
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type
                    if child.entry().attr_value(gimli::DW_AT_name).is_none() =>
                {
                    let other = LambdaAt::of(unit, child.entry().offset(), rest);
                    before += usize::from(
                        other.is_some_and(|other| other.parameters == parameters && other.place < own.place),
                    );
                }
                _ => {}
            }
        }
    }
    Some(format!("{{lambda{parameters}#{}}}", before + 1))
}

/// Entries in a function that are looked at for lambdas, at most.
const MAX_SIBLINGS: usize = 10_000;

/// What tells lambdas apart.
struct LambdaAt {
    parameters: String,
    /// Line and column.
    place: [Option<u64>; 2],
}

impl LambdaAt {
    fn of(unit: UnitRef<'_, Slice<'_>>, at: UnitOffset<usize>, rest: Rest<'_>) -> Option<Self> {
        let rest = rest.deeper()?;
        let mut tree = unit.entries_tree(Some(at)).ok()?;
        let root = tree.root().ok()?;
        let place = [gimli::DW_AT_decl_line, gimli::DW_AT_decl_column]
            .map(|attribute| root.entry().attr_value(attribute).and_then(|value| value.udata_value()));
        let mut children = root.children();
        while let Some(child) = children.next().ok()? {
            let entry = child.entry();
            let name = (entry.tag() == gimli::DW_TAG_subprogram).then(|| text(unit, entry, gimli::DW_AT_name));
            if name.flatten().is_some_and(|name| name == "operator()") {
                let parameters = parameters(unit, entry.offset(), rest)?;
                let parameters = parameters.strip_suffix(" const").unwrap_or(&parameters).to_owned();
                return Some(Self { parameters, place });
            }
        }
        None
    }
}

/// The parameters of a function in parentheses, and `const` behind them where its object is. None: not all can be
/// named.
fn parameters(unit: UnitRef<'_, Slice<'_>>, offset: UnitOffset<usize>, rest: Rest<'_>) -> Option<String> {
    let mut tree = unit.entries_tree(Some(offset)).ok()?;
    let mut children = tree.root().ok()?.children();
    let mut types = Vec::new();
    let mut qualifiers = "";
    while let Some(child) = children.next().ok()? {
        let entry = child.entry();
        match entry.tag() {
            gimli::DW_TAG_formal_parameter => {
                let AttributeValue::UnitRef(of) = entry.attr_value(gimli::DW_AT_type)? else { return None };
                if entry.attr_value(gimli::DW_AT_artificial).is_some() {
                    qualifiers = if types.is_empty() { qualifiers_of_object(unit, of) } else { "" };
                } else {
                    types.push(type_name(unit, without_qualifiers(unit, of)?, rest.deeper()?)?);
                }
            }
            gimli::DW_TAG_unspecified_parameters => types.push("...".to_owned()),
            _ => {}
        }
        if types.len() > MAX_PARAMETERS {
            return None;
        }
    }
    Some(format!("({}){qualifiers}", types.join(", ")))
}

fn target(entry: &Entry<'_>) -> Option<UnitOffset<usize>> {
    match entry.attr_value(gimli::DW_AT_type)? {
        AttributeValue::UnitRef(of) => Some(of),
        _ => None,
    }
}

/// What stands behind the parameters of a member function to whose objects this type points. The pointer may be const,
/// too.
fn qualifiers_of_object(unit: UnitRef<'_, Slice<'_>>, of: UnitOffset<usize>) -> &'static str {
    let target_at = |of| unit.entry(of).ok().and_then(|entry| target(&entry));
    let tag_at = |of| unit.entry(of).ok().map(|entry| entry.tag());
    let object = without_qualifiers(unit, of).and_then(target_at);
    let tags = [object.and_then(tag_at), object.and_then(target_at).and_then(tag_at)];
    match tags {
        [Some(gimli::DW_TAG_const_type), Some(gimli::DW_TAG_volatile_type)]
        | [Some(gimli::DW_TAG_volatile_type), Some(gimli::DW_TAG_const_type)] => " const volatile",
        [Some(gimli::DW_TAG_const_type), _] => " const",
        [Some(gimli::DW_TAG_volatile_type), _] => " volatile",
        _ => "",
    }
}

/// A parameter's own const and volatile are no part of a function's type.
fn without_qualifiers(unit: UnitRef<'_, Slice<'_>>, of: UnitOffset<usize>) -> Option<UnitOffset<usize>> {
    let mut of = of;
    for _ in 0..LONGEST_CHAIN {
        let entry = unit.entry(of).ok()?;
        match entry.tag() {
            gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type | gimli::DW_TAG_typedef => of = target(&entry)?,
            _ => return Some(of),
        }
    }
    None
}

/// A type as c++filt writes it. None: it is none of the usual ones.
fn type_name(unit: UnitRef<'_, Slice<'_>>, of: UnitOffset<usize>, rest: Rest<'_>) -> Option<String> {
    let rest = rest.deeper()?;
    let entry = unit.entry(of).ok()?;
    let inner = |suffix: &str| match entry.attr_value(gimli::DW_AT_type) {
        None => Some(format!("void{suffix}")),
        Some(AttributeValue::UnitRef(of)) => Some(type_name(unit, of, rest)? + suffix),
        Some(_) => None,
    };
    match entry.tag() {
        gimli::DW_TAG_base_type => text(unit, &entry, gimli::DW_AT_name).map(usual_name),
        gimli::DW_TAG_pointer_type => inner("*"),
        gimli::DW_TAG_reference_type => inner("&"),
        gimli::DW_TAG_rvalue_reference_type => inner("&&"),
        gimli::DW_TAG_const_type => inner(" const"),
        gimli::DW_TAG_volatile_type => inner(" volatile"),
        gimli::DW_TAG_typedef => inner(""),
        gimli::DW_TAG_structure_type
        | gimli::DW_TAG_class_type
        | gimli::DW_TAG_union_type
        | gimli::DW_TAG_enumeration_type => {
            let name = text(unit, &entry, gimli::DW_AT_name)?;
            Some(scope(unit, &parents(unit, of, rest)?, rest)? + &in_short(&name))
        }
        _ => None,
    }
}

/// A name whose template arguments have the names of integers as c++filt does.
fn in_short(name: &str) -> String {
    let Some((head, arguments)) = name.split_once('<') else { return name.to_owned() };
    format!("{head}<{}", usual_name(arguments.to_owned()))
}
