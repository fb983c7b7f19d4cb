//! C++: the allocators and containers of libstdc++ and libc++, by their names.

use super::Told;
use super::template::{arguments, first, qualified};

/// Allocators: their `allocate` gets memory for objects of their argument, and does nothing else.
const ALLOCATORS: [&str; 6] = [
    "std::__new_allocator",
    "__gnu_cxx::new_allocator",
    "__gnu_cxx::__new_allocator",
    "__gnu_cxx::malloc_allocator",
    "std::allocator",
    "std::pmr::polymorphic_allocator",
];

/// Functions that hand on what their caller has asked for.
const PLUMBING: [&str; 4] =
    ["operator new", "std::__libcpp_", "std::__allocate_at_least", "std::pmr::new_delete_resource"];

/// What the name of a function of C++ says.
pub(super) fn told(name: &str) -> Told {
    let plain = plain(name);
    let name = qualified(&plain);
    if PLUMBING.iter().any(|plumbing| name.starts_with(plumbing) || plain.starts_with(plumbing)) {
        return Told::Nothing;
    }
    if !name.starts_with("std::") && !name.starts_with("__gnu_cxx::") {
        return Told::Other;
    }
    for class in ALLOCATORS {
        if let Some((of, method)) = first(name, class) {
            return if method.starts_with("::allocate") { allocates(of) } else { Told::Other };
        }
    }
    if let Some((of, _)) = first(name, "std::make_unique").or_else(|| first(name, "std::make_unique_for_overwrite")) {
        return constructs(of);
    }
    if let Some((of, method)) = first(name, "std::basic_string") {
        // what a string allocates itself is its text, and that has no constructors
        return if method.is_empty() { Told::Other } else { allocates(of) };
    }
    container(name).unwrap_or(Told::Other)
}

/// A method of a container that has not been inlined, or of which what it has inlined is not known.
fn container(name: &str) -> Option<Told> {
    for class in ["std::_Vector_base", "std::vector", "std::_Deque_base", "std::deque"] {
        if let Some((of, method)) = first(name, class) {
            // without the arguments of its own
            let method = method.split('<').next().unwrap_or(method);
            return Some(match method {
                // of a vector of bits, and of a deque's table with its first pieces, nothing is told
                "::_M_initialize_map" => Told::Other,
                _ if of == "bool" => Told::Other,
                // a deque's table of its pieces
                "::_M_allocate_map" | "::_M_reallocate_map" => allocates(&format!("{of}*")),
                "::_M_allocate" | "::_M_create_storage" | "::_M_allocate_node" | "::__vallocate" => allocates(of),
                _ => constructs(of),
            });
        }
    }
    if let Some((arguments, _)) = arguments(name, "std::_Rb_tree") {
        return Some(constructs(&format!("std::_Rb_tree_node<{}>", arguments.get(1)?)));
    }
    for class in ["std::list", "std::_List_base"] {
        if let Some((of, _)) = first(name, class) {
            return Some(constructs(&format!("std::_List_node<{of}>")));
        }
    }
    None
}

/// A name without what differs between standard libraries and their versions: inline namespaces and tags of the ABI.
fn plain(name: &str) -> String {
    let mut plain = name.replace("std::__1::", "std::").replace("std::__cxx11::", "std::");
    while let Some(start) = plain.find("[abi:") {
        let Some(length) = plain.get(start..).and_then(|tag| tag.find(']')) else { break };
        plain.replace_range(start..=start + length, "");
    }
    plain
}

fn allocates(of: &str) -> Told {
    Told::Allocates(object(of))
}

fn constructs(of: &str) -> Told {
    Told::Constructs(object(of))
}

/// A type's name: that of its elements, if it is an array. What is the same in all, the standard allocator, says
/// nothing.
fn object(of: &str) -> String {
    let name = of.strip_suffix("[]").unwrap_or(of).trim_end();
    let mut name = name.replace("> >", ">>").replace("> >", ">>");
    name = name.replace("std::basic_string<char, std::char_traits<char>, std::allocator<char>>", "std::string");
    // the last argument of containers
    while let Some(start) = name.find(", std::allocator<") {
        let inside = name.get(start + 2..).unwrap_or_default();
        let Some((_, rest)) = first(inside, "std::allocator") else { break };
        let end = name.len() - rest.len();
        name.replace_range(start..end, "");
    }
    name
}
