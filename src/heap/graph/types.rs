//! What blocks are, each type with how sure that is.

use super::Sum;
use super::contents::ContentKind;
use super::declared::{Layout, Layouts};
use crate::heap::leaks::Graph;
use rustc_hash::FxHashMap;

/// How sure a type is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Certainty {
    /// The program's own tables say so.
    Exact,
    /// It looks so, or a pointer that is declared so leads to it.
    Inferred,
    /// Nothing tells.
    Unknown,
}

impl Certainty {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Inferred => "inferred",
            Self::Unknown => "unknown",
        }
    }
}

/// A type of blocks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// How sure it is.
    pub certainty: Certainty,
}

impl Type {
    /// What people are told: its name, and that it only looks so.
    pub fn told(&self) -> String {
        match self.certainty {
            Certainty::Exact | Certainty::Unknown => self.name.clone(),
            Certainty::Inferred => format!("{} (inferred)", self.name),
        }
    }
}

/// The types of all blocks.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// All types.
    pub all: Vec<Type>,
    /// Of each block the number of its type.
    pub of_block: Vec<u32>,
    /// How pointers lie in blocks of types that are declared.
    pub layouts: Vec<Layout>,
    /// Of each type the number of its layout, or [`Layouts::NONE`].
    pub layout_of: Vec<u32>,
}

/// What a table of functions is called, if that is known.
pub trait TableNames {
    /// The C++ class that a table of virtual functions is of, by its number in [`super::contents::Contents::tables`].
    fn class(&mut self, table: u32) -> Option<String>;

    /// The Rust type that a table's first function drops.
    fn dropped(&mut self, table: u32) -> Option<String>;
}

const UNKNOWN: (&str, Certainty) = ("unknown", Certainty::Unknown);
const TEXT: (&str, Certainty) = ("text", Certainty::Inferred);
const ZEROS: (&str, Certainty) = ("zeros", Certainty::Unknown);
const VECTOR: (&str, Certainty) = ("elements of a std::vector", Certainty::Inferred);
const TREE: (&str, Certainty) = ("node of a std::map or std::set", Certainty::Inferred);
const LIST: (&str, Certainty) = ("node of a std::list", Certainty::Inferred);

impl Types {
    /// Finds them: by their own tables, then as they are declared, then by how they look. What looks like nothing is
    /// told by its pointers, where they are those of a container's nodes.
    pub fn find(graph: &Graph, looks: &[ContentKind], layouts: Layouts, names: &mut dyn TableNames) -> Self {
        let mut types = Self { of_block: Vec::with_capacity(graph.blocks().len()), ..Self::default() };
        let mut known: FxHashMap<(Type, u32), u32> = FxHashMap::default();
        let mut of_look: FxHashMap<(bool, u32, u32), u32> = FxHashMap::default();
        let mut of_layout: FxHashMap<u32, u32> = FxHashMap::default();
        let mut fixed: FxHashMap<&str, u32> = FxHashMap::default();
        for (number, look) in looks.iter().enumerate() {
            let block = number as u32;
            let declared = layouts.of(number);
            let layout = declared.map_or(Layouts::NONE, |(layout, _)| layout);
            let mut plain = |types: &mut Self,
                             known: &mut FxHashMap<(Type, u32), u32>,
                             (name, certainty): (&'static str, Certainty)| {
                let one = || Type { name: name.to_owned(), certainty };
                *fixed.entry(name).or_insert_with(|| types.intern(known, one(), Layouts::NONE))
            };
            let mut as_declared = |types: &mut Self, known: &mut FxHashMap<(Type, u32), u32>| {
                let (layout, told) = declared?;
                let one = || Type { name: told.name.clone(), certainty: Certainty::Inferred };
                Some(*of_layout.entry(layout).or_insert_with(|| types.intern(known, one(), layout)))
            };
            let of = match *look {
                ContentKind::Table(table) | ContentKind::Dyn(table) => {
                    let is_class = matches!(look, ContentKind::Table(_));
                    let told = of_look.get(&(is_class, table, layout)).copied();
                    told.unwrap_or_else(|| {
                        let name = if is_class { names.class(table) } else { names.dropped(table) };
                        let exact = name.map(|name| Type { name, certainty: Certainty::Exact });
                        let of = match exact {
                            Some(exact) => types.intern(&mut known, exact, layout),
                            None => as_declared(&mut types, &mut known).unwrap_or_else(|| {
                                let (name, certainty) = UNKNOWN;
                                types.intern(&mut known, Type { name: name.to_owned(), certainty }, Layouts::NONE)
                            }),
                        };
                        of_look.insert((is_class, table, layout), of);
                        of
                    })
                }
                _ if declared.is_some() => {
                    as_declared(&mut types, &mut known).unwrap_or_else(|| plain(&mut types, &mut known, UNKNOWN))
                }
                ContentKind::Text => plain(&mut types, &mut known, TEXT),
                ContentKind::Vector => plain(&mut types, &mut known, VECTOR),
                ContentKind::Zeros => plain(&mut types, &mut known, ZEROS),
                ContentKind::Colour { first, fourth }
                    if first && is_tree_node(graph, block) || fourth && is_libcxx_tree_node(graph, block) =>
                {
                    plain(&mut types, &mut known, TREE)
                }
                ContentKind::Unknown | ContentKind::Colour { .. } if is_list_node(graph, block) => {
                    plain(&mut types, &mut known, LIST)
                }
                ContentKind::Unknown | ContentKind::Colour { .. } => plain(&mut types, &mut known, UNKNOWN),
            };
            types.of_block.push(of);
        }
        types.layouts = layouts.all;
        types
    }

    fn intern(&mut self, known: &mut FxHashMap<(Type, u32), u32>, one: Type, layout: u32) -> u32 {
        let (all, layout_of) = (&mut self.all, &mut self.layout_of);
        *known.entry((one, layout)).or_insert_with_key(|(one, layout)| {
            all.push(one.clone());
            layout_of.push(*layout);
            all.len() as u32 - 1
        })
    }

    /// The name of the member of a block that lies so many bytes behind its start.
    pub fn field(&self, block: usize, at: u64) -> Option<String> {
        let of = *self.of_block.get(block)?;
        let layout = *self.layout_of.get(of as usize)?;
        self.layouts.get(layout as usize)?.field(at)
    }

    /// The type of a block.
    pub fn of(&self, block: usize) -> Option<&Type> {
        self.all.get(*self.of_block.get(block)? as usize)
    }

    /// The types with their blocks, those with most bytes first.
    pub fn sums(&self, graph: &Graph) -> Vec<(&Type, Sum)> {
        let mut by_number = vec![Sum::default(); self.all.len()];
        for (block, of) in graph.blocks().iter().zip(&self.of_block) {
            if let Some(sum) = by_number.get_mut(*of as usize) {
                sum.add(block.size);
            }
        }
        // of one name are those that lie differently in memory
        let mut sums: FxHashMap<&Type, Sum> = FxHashMap::default();
        self.all.iter().zip(by_number).for_each(|(of, sum)| sums.entry(of).or_default().join(sum));
        let mut sums: Vec<(&Type, Sum)> = sums.into_iter().collect();
        sums.sort_by_key(|(of, sum)| (std::cmp::Reverse(sum.bytes), &of.name, of.certainty));
        sums
    }
}

/// A node of a libstdc++ tree (`_Rb_tree_node_base`: colour, parent, left, right) has a parent that has it as a child,
/// or, at the top, a header as its parent, whose parent it is.
fn is_tree_node(graph: &Graph, block: u32) -> bool {
    let at = |block: u32, offset: u64| graph.pointer_at(block, offset);
    let leads =
        |from: u32, offset: u64| at(from, offset).is_some_and(|pointer| pointer.target == block && pointer.into == 0);
    match at(block, 8) {
        Some(parent) if parent.into == 0 => leads(parent.target, 16) || leads(parent.target, 24),
        Some(parent) => leads(parent.target, parent.into + 8),
        // the header is in no block: its children know it
        None => [16, 24].into_iter().filter_map(|offset| at(block, offset)).any(|child| {
            child.into == 0 && at(child.target, 8).is_some_and(|back| back.target == block && back.into == 0)
        }),
    }
}

/// A node of a libc++ tree (`__tree_node_base`: left, right, parent, colour): it is one of the children that its parent
/// has, which are two different ones, and its own children know it.
fn is_libcxx_tree_node(graph: &Graph, block: u32) -> bool {
    let at = |block: u32, offset: u64| graph.pointer_at(block, offset);
    let leads = |from: u32, offset: u64, to: u32| {
        at(from, offset).is_some_and(|pointer| pointer.target == to && pointer.into == 0)
    };
    let mut children = [0, 8].into_iter().filter_map(|offset| at(block, offset));
    let know = |child: crate::heap::leaks::Pointer| child.into == 0 && leads(child.target, 16, block);
    match at(block, 16) {
        Some(parent) if parent.into == 0 => {
            leads(parent.target, 0, block) != leads(parent.target, 8, block) && children.all(know)
        }
        // the header, in another object
        Some(parent) => leads(parent.target, parent.into, block) && children.all(know),
        // the header is in no block: the children know it
        None => children.next().is_some_and(know) && children.all(know),
    }
}

/// A node of a list of libstdc++ (`_List_node_base`: next, prev) or libc++ (`__list_node_base`: prev, next): the next
/// one's prev is it, or the prev one's next.
fn is_list_node(graph: &Graph, block: u32) -> bool {
    let at = |block: u32, offset: u64| graph.pointer_at(block, offset);
    let back = |to: Option<crate::heap::leaks::Pointer>, offset: u64| {
        to.is_some_and(|to| {
            let back = at(to.target, to.into + offset);
            back.is_some_and(|back| back.target == block && back.into == 0)
        })
    };
    back(at(block, 0), 8) || back(at(block, 8), 0)
}
