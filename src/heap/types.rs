//! Types of the program's own declarations, and how they spread from variables along pointers over blocks. Pure: tables
//! are built by who reads debug information, or by tests.
//!
//! ```text
//! debug information -> TypeTable (structures with fields, pointers, arrays)
//! variables, objects of known classes, pointers between blocks -> spread -> which block is what
//! ```

pub mod spread;

use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::hash::{Hash, Hasher};

/// A structure within a structure, and so on: no deeper.
const DEEPEST: usize = 48;
/// So many members are passed in the search for one place: overlapping ones may lead to each other.
const MAX_STEPS: usize = 1 << 18;
/// A member that is looked into counts as so many that are passed.
const LOOKED_INTO: usize = 64;
/// So long a path may be, in bytes; the rest of a longer one is not told.
const LONGEST_PATH: usize = 1 << 10;
/// A pointer to a pointer, or an array of arrays, and so on: no longer.
const LONGEST_CHAIN: usize = 16;

/// The number of a type in its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TypeId(pub u32);

/// A member of a structure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// How far behind the structure's start, in bytes.
    pub offset: u64,
    /// Its name; empty: its members count as the structure's own (base classes, unnamed structures).
    pub name: String,
    /// Its type.
    pub of: TypeId,
}

/// How a type is made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// Nothing is known of it: void, functions, what is declared only.
    #[default]
    Opaque,
    /// Bytes and characters: a pointer to one tells nothing, as any memory can be looked at so.
    Bytes,
    /// A number.
    Scalar,
    /// A pointer or a reference.
    Pointer(TypeId),
    /// A structure, its members in the order of their offsets; they may overlap where only one of them is there at a
    /// time (variants).
    Struct(Vec<Field>),
    /// What it holds is one of these, in the order of their offsets, and nobody says which.
    Union(Vec<Field>),
    /// So many of a type; None: as many as there is room for.
    Array(TypeId, Option<u64>),
}

/// What pointers within a container lead to that its declaration hides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recast {
    /// Pointers to a node's base lead to this node; None: it is not known which.
    Nodes(Option<TypeId>),
    /// Pointers to bytes lead to elements of this type.
    Elements(TypeId),
    /// Pointers to bytes lead behind the last element of this type.
    Ends(TypeId),
}

/// Where a vector says how many of its elements there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// A pointer behind the last one lies so far behind the vector's start.
    Pointer(u64),
    /// Their number lies so far behind the vector's start.
    Length(u64),
}

/// A type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TypeInfo {
    /// Its name; empty: it is made of what it points to or holds.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// How it is made.
    pub shape: Shape,
    /// What pointers in it lead to.
    pub recast: Option<Recast>,
    /// The type that it is the beginning of, where a block has room for that.
    pub grown: Option<TypeId>,
    /// Of a vector: where its elements end.
    pub finish: Option<Finish>,
    /// Whether it is what nodes of different types begin with, so that a pointer to it tells nothing.
    pub is_base_node: bool,
}

/// What lies somewhere in a type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The members that lead there: `keys._M_impl._M_start`.
    pub path: String,
    /// The type that a pointer there leads to, if that tells anything.
    pub leads: Option<TypeId>,
    /// Whether it leads behind the last of such.
    pub is_end: bool,
    /// Whether a pointer may lie there at all.
    pub may_point: bool,
    /// Of a pointer to a vector's elements: where it is said how many there are, so far behind (or before) the pointer.
    pub finish: Option<(i64, Finish)>,
}

/// All types.
#[derive(Clone, Debug, Default)]
pub struct TypeTable {
    all: Vec<TypeInfo>,
}

impl TypeTable {
    /// Adds a type.
    pub fn push(&mut self, one: TypeInfo) -> TypeId {
        self.all.push(one);
        TypeId(self.all.len() as u32 - 1)
    }

    /// How many there are.
    #[cfg(test)]
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// A type.
    pub fn get(&self, of: TypeId) -> Option<&TypeInfo> {
        self.all.get(of.0 as usize)
    }

    /// A type, to be completed.
    pub fn get_mut(&mut self, of: TypeId) -> Option<&mut TypeInfo> {
        self.all.get_mut(of.0 as usize)
    }

    /// Its size in bytes, 0 if that is not known.
    pub fn size(&self, of: TypeId) -> u64 {
        let (mut at, mut times) = (of, 1u64);
        for _ in 0..LONGEST_CHAIN {
            match self.get(at) {
                Some(TypeInfo { size: 0, shape: Shape::Array(element, Some(count)), .. }) => {
                    times = times.saturating_mul(*count);
                    at = *element;
                }
                one => return one.map_or(0, |one| one.size.saturating_mul(times)),
            }
        }
        0
    }

    /// Its name: `node`, `node *`, `long[4]`.
    pub fn name(&self, of: TypeId) -> String {
        let mut behind = String::new();
        let mut at = of;
        for _ in 0..LONGEST_CHAIN {
            let Some(one) = self.get(at) else { break };
            match &one.shape {
                _ if !one.name.is_empty() => return format!("{}{behind}", one.name),
                Shape::Pointer(to) => {
                    if behind.starts_with(" *") {
                        behind.insert(1, '*')
                    } else {
                        behind.insert_str(0, " *")
                    }
                    at = *to;
                }
                Shape::Array(element, count) => {
                    let count = count.map_or_else(String::new, |count| count.to_string());
                    // behind those of the arrays that it is within
                    let within = behind.find([' ', '*']).unwrap_or(behind.len());
                    behind.insert_str(within, &format!("[{count}]"));
                    at = *element;
                }
                Shape::Opaque => return format!("void{behind}"),
                Shape::Struct(_) => return format!("(unnamed struct){behind}"),
                Shape::Union(_) => return format!("(unnamed union){behind}"),
                Shape::Bytes | Shape::Scalar => break,
            }
        }
        format!("?{behind}")
    }

    /// Whether a pointer to it tells what a block is.
    pub fn tells(&self, of: TypeId) -> bool {
        self.get(of).is_some_and(|one| {
            !one.is_base_node && self.size(of) > 0 && !matches!(one.shape, Shape::Opaque | Shape::Bytes)
        })
    }

    /// Whether an array of unknown length is its end: a block of it may be as large as it likes.
    pub fn is_open(&self, of: TypeId) -> bool {
        let mut at = of;
        for _ in 0..DEEPEST {
            match self.get(at).map(|one| &one.shape) {
                Some(Shape::Array(_, None | Some(0))) => return true,
                Some(Shape::Struct(fields)) => match fields.last() {
                    Some(last) => at = last.of,
                    None => return false,
                },
                _ => return false,
            }
        }
        false
    }

    /// What lies so many bytes behind the start of a type; None: nothing that is named.
    pub fn place(&self, of: TypeId, offset: u64) -> Option<Place> {
        let mut steps = MAX_STEPS;
        self.place_in(&Way { of, offset, recast: None, vector: None, depth: 0 }, &mut steps)
    }

    fn place_in(&self, way: &Way, steps: &mut usize) -> Option<Place> {
        *steps = steps.checked_sub(LOOKED_INTO)?;
        if way.depth >= DEEPEST {
            return None;
        }
        let one = self.get(way.of)?;
        let way = Way {
            recast: one.recast.or(way.recast),
            vector: one.finish.map(|finish| (way.offset, finish)).or(way.vector),
            ..*way
        };
        match &one.shape {
            Shape::Pointer(to) if way.offset == 0 => Some(self.pointer(*to, &way)),
            Shape::Pointer(_) | Shape::Opaque => None,
            Shape::Bytes | Shape::Scalar => (way.offset < one.size).then(Place::default),
            Shape::Array(of, count) => {
                let size = self.size(*of);
                let number = way.offset.checked_div(size)?;
                if count.is_some_and(|count| count > 0 && number >= count) {
                    return None;
                }
                let inner = Way { of: *of, offset: way.offset % size, depth: way.depth + 1, ..way };
                let mut place = self.place_in(&inner, steps)?;
                let dot = if place.path.is_empty() || place.path.starts_with('[') { "" } else { "." };
                place.path = format!("[{number}]{dot}{}", place.path);
                shorten(&mut place.path);
                Some(place)
            }
            Shape::Struct(fields) => self.place_among(fields, &way, steps),
            Shape::Union(fields) => {
                let place = self.place_among(fields, &way, steps)?;
                Some(Place { leads: None, is_end: false, may_point: true, finish: None, ..place })
            }
        }
    }

    /// Among members: of several that lie there the one that has a pointer, if they do not lead to different types.
    fn place_among(&self, fields: &[Field], way: &Way, steps: &mut usize) -> Option<Place> {
        let mut best: Option<Place> = None;
        // behind the last member there may be more of it
        let last = fields.last().map_or(0, |field| field.offset);
        for field in fields {
            *steps = steps.checked_sub(1)?;
            let Some(offset) = way.offset.checked_sub(field.offset) else { break };
            if offset >= self.size(field.of) {
                *steps = steps.checked_sub(if field.offset == last { LOOKED_INTO } else { 0 })?;
                if field.offset != last || !self.is_open(field.of) {
                    continue;
                }
            }
            let inner = Way { of: field.of, offset, depth: way.depth + 1, ..*way };
            let Some(mut place) = self.place_in(&inner, steps) else { continue };
            if !field.name.is_empty() {
                let dot = if place.path.is_empty() || place.path.starts_with('[') { "" } else { "." };
                place.path = format!("{}{dot}{}", field.name, place.path);
                shorten(&mut place.path);
            }
            match &mut best {
                None => best = Some(place),
                Some(best) => {
                    // of several that lie there nobody says whose the vector's length is
                    let differ = best.may_point && place.may_point && best.finish != place.finish;
                    match (best.leads, place.leads) {
                        (None, Some(_)) => *best = place,
                        (None, None) if !best.may_point && place.may_point => *best = place,
                        (Some(one), Some(other)) if one != other => {
                            *best = Place { path: std::mem::take(&mut best.path), may_point: true, ..Place::default() };
                        }
                        _ => {}
                    }
                    if differ {
                        best.finish = None;
                    }
                }
            }
        }
        best
    }

    fn pointer(&self, to: TypeId, way: &Way) -> Place {
        let is_bytes = self.get(to).is_some_and(|one| one.shape == Shape::Bytes);
        let is_base = self.get(to).is_some_and(|one| one.is_base_node);
        let (leads, is_end) = match way.recast {
            Some(Recast::Nodes(node)) if is_base => (node, false),
            Some(Recast::Elements(of)) if is_bytes => (Some(of), false),
            Some(Recast::Ends(of)) if is_bytes => (Some(of), true),
            _ => (Some(to), false),
        };
        let leads = leads.filter(|to| self.tells(*to));
        let finish = way.vector.and_then(|(before, finish)| {
            let at = match finish {
                Finish::Pointer(at) | Finish::Length(at) => at,
            };
            // the pointer to the end has no end
            let is_start = match finish {
                Finish::Pointer(_) => before < at,
                Finish::Length(_) => true,
            };
            let ahead = i64::try_from(at).ok()?.checked_sub(i64::try_from(before).ok()?)?;
            is_start.then_some((ahead, finish))
        });
        Place { path: String::new(), leads, is_end, may_point: true, finish }
    }
}

/// Ends a path that is too long.
fn shorten(path: &mut String) {
    if path.len() > LONGEST_PATH {
        let starts = path.char_indices().map(|(start, _)| start);
        path.truncate(starts.take_while(|start| *start < LONGEST_PATH).last().unwrap_or(0));
        path.push('…');
    }
}

/// A hash of a type's qualified name, in which neither spaces count, nor what follows numbers (`3ul`), nor on which
/// side of a type its `const` stands: compilers and demanglers write them differently.
pub fn name_hash(parts: &[&str]) -> u64 {
    let mut name = NameHasher::default();
    for part in parts {
        let mut rest = part.as_bytes();
        while let Some((&byte, behind)) = rest.split_first() {
            let (word, next) = rest.split_at(rest.iter().take_while(|byte| is_of_word(**byte)).count());
            rest = if word.is_empty() { behind } else { next };
            match word {
                b"const" => name.levels |= 1,
                [] => name.take(byte),
                _ => word.iter().for_each(|byte| name.take(*byte)),
            }
        }
    }
    name.end_type();
    name.hasher.finish()
}

const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A [`name_hash`] on the way.
#[derive(Default)]
struct NameHasher {
    hasher: rustc_hash::FxHasher,
    is_number: bool,
    last: u8,
    /// Whether `const` was said of the type that is being read, in the lowest bit; above that of those in whose
    /// arguments it is.
    levels: u64,
}

impl NameHasher {
    fn take(&mut self, byte: u8) {
        match byte {
            b' ' => return,
            b'*' | b'&' | b',' => self.end_type(),
            b'<' | b'(' => self.levels <<= 1,
            b'>' | b')' => {
                self.end_type();
                self.levels >>= 1;
            }
            _ => {}
        }
        let is_within = is_of_word(self.last);
        self.is_number = if byte.is_ascii_digit() {
            self.is_number || !is_within
        } else {
            self.is_number && byte.is_ascii_lowercase()
        };
        self.last = byte;
        if !(self.is_number && matches!(byte, b'u' | b'l')) {
            byte.hash(&mut self.hasher);
        }
    }

    /// The type that was read is whole, or what follows is of a pointer to it.
    fn end_type(&mut self) {
        if self.levels & 1 != 0 {
            b' '.hash(&mut self.hasher);
            self.levels &= !1;
        }
    }
}

/// A name as most write it: GCC says `long unsigned int` in names of templates, demanglers and others say `unsigned
/// long`.
pub fn usual_name(name: String) -> String {
    if !name.contains(" int") {
        return name;
    }
    let mut name = name;
    for (long, short) in [
        ("long long unsigned int", "unsigned long long"),
        ("long unsigned int", "unsigned long"),
        ("short unsigned int", "unsigned short"),
        ("long long int", "long long"),
        ("long int", "long"),
        ("short int", "short"),
    ] {
        if name.contains(long) {
            name = name.replace(long, short);
        }
    }
    name
}

/// Where a search for a place is.
#[derive(Clone, Copy)]
struct Way {
    of: TypeId,
    offset: u64,
    recast: Option<Recast>,
    /// The vector that it is in: how far behind its start, and what it says of its end.
    vector: Option<(u64, Finish)>,
    depth: usize,
}

/// Places that were looked up.
#[derive(Debug, Default)]
pub struct Places {
    known: FxHashMap<(TypeId, u64), Option<Place>>,
    /// What their paths take, in bytes.
    text: usize,
}

impl Places {
    /// So many are kept.
    const MAX_KEPT: usize = 1 << 18;
    /// So many bytes of paths.
    const MAX_TEXT: usize = 32 << 20;

    /// What [`TypeTable::place`] says.
    pub fn get<'a>(&'a mut self, table: &TypeTable, of: TypeId, offset: u64) -> Option<&'a Place> {
        let Self { known, text } = self;
        if known.len() >= Self::MAX_KEPT || *text >= Self::MAX_TEXT {
            known.clear();
            *text = 0;
        }
        let look_up = || {
            let place = table.place(of, offset);
            *text += place.as_ref().map_or(0, |place| place.path.len());
            place
        };
        known.entry((of, offset)).or_insert_with(look_up).as_ref()
    }
}

/// The way to a place in an array: `[3].next`.
pub fn in_element(number: u64, path: &str) -> String {
    let mut told = String::with_capacity(path.len() + 8);
    // writing to a string never fails
    let _ = write!(told, "[{number}]");
    if !path.is_empty() && !path.starts_with('[') {
        told.push('.');
    }
    told.push_str(path);
    told
}

#[cfg(test)]
mod tests;
