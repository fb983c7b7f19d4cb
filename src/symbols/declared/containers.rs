//! What the standard libraries' containers hide: pointers to a common base of nodes, or to bytes, and which of a
//! vector's elements are there.
//!
//! The layouts are read of each program's own debug information; only names are known here: of libstdc++
//! (bits/stl_tree.h, stl_list.h, hashtable_policy.h, stl_vector.h), libc++ (`__tree`, `list`, `__hash_table`, `vector`)
//! and Rust's library (alloc::raw_vec, alloc::collections::btree::node, hashbrown::raw).

use super::resolve::{Made, Resolver};
use crate::heap::types::{Field, Finish, Recast, Shape, TypeId};
use crate::symbols::generics::arguments_of;

/// What nodes begin with, of any element's type.
const BASES: [&str; 9] = [
    "std::_Rb_tree_node_base",
    "std::__detail::_List_node_base",
    "std::__detail::_List_node_header",
    "std::__detail::_Hash_node_base",
    "std::_Fwd_list_node_base",
    "std::__1::__tree_end_node<",
    "std::__1::__tree_node_base<",
    "std::__1::__hash_node_base<",
    "std::__1::__list_node_base<",
];

/// Nodes: what they lead to are such nodes.
const NODES: [&str; 7] = [
    "std::_Rb_tree_node<",
    "std::_List_node<",
    "std::__detail::_Hash_node<",
    "std::_Fwd_list_node<",
    "std::__1::__tree_node<",
    "std::__1::__list_node<",
    "std::__1::__hash_node<",
];

/// A container with nodes: its name, the place of the elements' type among its arguments, and the nodes' names before
/// and behind that.
type WithNodes = (&'static str, usize, &'static [(&'static str, &'static str)]);

/// Containers with nodes.
const WITH_NODES: [WithNodes; 7] = [
    ("std::_Rb_tree<", 1, &[("std::_Rb_tree_node<", ">")]),
    ("std::_List_base<", 0, &[("std::_List_node<", ">")]),
    ("std::_Fwd_list_base<", 0, &[("std::_Fwd_list_node<", ">")]),
    ("std::_Hashtable<", 1, &[("std::__detail::_Hash_node<", ",true>"), ("std::__detail::_Hash_node<", ",false>")]),
    ("std::__1::__tree<", 0, &[("std::__1::__tree_node<", ",void*>")]),
    ("std::__1::__list_imp<", 0, &[("std::__1::__list_node<", ",void*>")]),
    ("std::__1::__hash_table<", 0, &[("std::__1::__hash_node<", ",void*>")]),
];

/// What libc++'s `make_shared` allocates, and within it the room for the value.
const SHARED: [&str; 2] = ["std::__1::__shared_ptr_emplace<", "::_Storage"];

/// Members of vectors: pointers to the first element, behind the last one, and behind the room for more (libc++'s has
/// had two names).
const VECTORS: [[&str; 3]; 3] = [
    ["_M_start", "_M_finish", "_M_end_of_storage"],
    ["__begin_", "__end_", "__end_cap_"],
    ["__begin_", "__end_", "__cap_"],
];

/// Room for a value that is made later.
const ROOM: [&str; 2] = ["__gnu_cxx::__aligned_membuf<", "__gnu_cxx::__aligned_buffer<"];

/// Completes what was just read.
pub(super) fn complete(resolver: &mut Resolver<'_, '_>, made: &Made) {
    // of one version of the library or another
    let name = made.name.replace("std::__cxx11::", "std::").replace("std::__debug::", "std::");
    if BASES.iter().any(|base| name == *base || base.ends_with('<') && name.starts_with(base)) {
        change(resolver, made.id, |one| one.is_base_node = true);
    }
    if NODES.iter().any(|node| is_one(&name, node)) {
        let to_itself = Recast::Nodes(Some(made.id));
        change(resolver, made.id, |one| one.recast = Some(to_itself));
    }
    for (container, place, nodes) in WITH_NODES {
        if is_one(&name, container) {
            // as the nodes' names have them
            let of = arguments_of(&made.name).and_then(|arguments| arguments.get(place).map(|one| (*one).to_owned()));
            let node = of.and_then(|of| {
                nodes.iter().find_map(|(before, behind)| resolver.named(&format!("{before}{of}{behind}")))
            });
            change(resolver, made.id, |one| one.recast = Some(Recast::Nodes(node)));
        }
    }
    if ROOM.iter().any(|room| is_one(&name, room))
        && let Some((_, of)) = made.params.first()
    {
        let of = resolver.of(*of);
        value(resolver, made.id, "_M_storage", of);
    }
    if let Some(owner) = made.name.strip_suffix(SHARED[1]).filter(|owner| is_one(owner, SHARED[0]))
        && let Some(of) = arguments_of(owner).and_then(|arguments| Some((*arguments.first()?).to_owned()))
        && let Some(of) = resolver.named(&of)
        // an allocator with members would stand before it
        && resolver.types.table.size(of) == resolver.types.table.size(made.id)
    {
        value(resolver, made.id, "__blob_", of);
    }
    vector(resolver, made.id);
    rust(resolver, made, &name);
}

/// Whether a name is of a template, and of nothing within it.
fn is_one(name: &str, template: &str) -> bool {
    let Some(arguments) = name.strip_prefix(template) else { return false };
    let mut depth = 1u32;
    for (at, character) in arguments.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if arguments.get(..at).is_some_and(|before| before.ends_with('-')) => {}
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1 == arguments.len();
        }
    }
    false
}

fn change(resolver: &mut Resolver<'_, '_>, id: TypeId, how: impl FnOnce(&mut crate::heap::types::TypeInfo)) {
    if let Some(one) = resolver.types.table.get_mut(id) {
        how(one);
    }
}

/// Makes it a structure of one value.
fn value(resolver: &mut Resolver<'_, '_>, id: TypeId, name: &str, of: TypeId) {
    change(resolver, id, |one| {
        one.shape = Shape::Struct(vec![Field { offset: 0, name: name.to_owned(), of }]);
    });
}

/// A structure that has a vector's pointers to its first element, behind its last one and behind its room.
fn vector(resolver: &mut Resolver<'_, '_>, id: TypeId) {
    let table = &resolver.types.table;
    let Some(Shape::Struct(fields)) = table.get(id).map(|one| &one.shape) else { return };
    for [start, finish, room] in VECTORS {
        let of = |wanted: &str| fields.iter().find(|field| field.name == wanted);
        let (Some(start), Some(finish), Some(_)) = (of(start), of(finish), of(room)) else { continue };
        if start.of == finish.of && start.offset < finish.offset {
            let finish = Finish::Pointer(finish.offset);
            change(resolver, id, |one| one.finish = Some(finish));
            return;
        }
    }
}

fn rust(resolver: &mut Resolver<'_, '_>, made: &Made, name: &str) {
    let param = |resolver: &mut Resolver<'_, '_>, wanted: &str| {
        let (_, of) = made.params.iter().find(|(name, _)| name == wanted)?;
        Some(resolver.of(*of))
    };
    if is_one(name, "alloc::raw_vec::RawVec<") {
        let of = param(resolver, "T").map(Recast::Elements);
        change(resolver, made.id, |one| one.recast = of);
    } else if is_one(name, "alloc::vec::Vec<") {
        let table = &resolver.types.table;
        if let Some(Shape::Struct(fields)) = table.get(made.id).map(|one| &one.shape)
            && let Some(len) = fields.iter().find(|field| field.name == "len")
        {
            let finish = Finish::Length(len.offset);
            change(resolver, made.id, |one| one.finish = Some(finish));
        }
    } else if is_one(name, "hashbrown::raw::RawTable<") {
        let of = param(resolver, "T").map(Recast::Ends);
        change(resolver, made.id, |one| one.recast = of);
    } else if let Some(rest) = name.strip_prefix("alloc::collections::btree::node::LeafNode<") {
        let grown = resolver.named(&format!("alloc::collections::btree::node::InternalNode<{rest}"));
        change(resolver, made.id, |one| one.grown = grown);
    } else if is_one(name, "core::mem::maybe_uninit::MaybeUninit<")
        && let Some(of) = param(resolver, "T")
    {
        value(resolver, made.id, "value", of);
    }
}
