//! Rust: the standard library's boxes, vectors and tables, by the names that demanglers give (with the types of generic
//! functions, where symbols or debug information have them).

use super::Told;
use super::template::{arguments, first};

/// Functions that hand on what their caller has asked for, by how their names begin (behind a `<`).
const PLUMBING: [&str; 11] = [
    "alloc::alloc::",
    "alloc::raw_vec::RawVecInner",
    "alloc::raw_vec::finish_grow",
    "alloc::raw_vec::handle_reserve",
    "alloc::boxed::box_new",
    "hashbrown::raw::RawTableInner",
    "hashbrown::raw::alloc::",
    "std::alloc::",
    "__rust_",
    "__rustc",
    "__rdl_",
];

/// Those that debug information names without a path.
const BARE_PLUMBING: [&str; 9] = [
    "exchange_malloc",
    "alloc_impl_runtime",
    "grow_impl_runtime",
    "alloc_impl",
    "grow_impl",
    "finish_grow",
    "grow_amortized",
    "try_allocate_in",
    "box_new_uninit",
];

/// What the name of a function of Rust says.
pub(super) fn told(name: &str) -> Told {
    let path = name.strip_prefix('<').unwrap_or(name);
    let is_trait = |traits: [&str; 2]| traits.iter().any(|of| name.contains(of));
    if PLUMBING.iter().any(|plumbing| path.starts_with(plumbing))
        || is_trait(["as core::alloc::Allocator>::", "GlobalAlloc"])
    {
        return Told::Nothing;
    }
    let bare = name.split('<').next().unwrap_or(name);
    if BARE_PLUMBING.contains(&bare) {
        return Told::Nothing;
    }
    let found = boxed(path).or_else(|| vector(path)).or_else(|| table(path)).or_else(|| bare_vector(name));
    found.unwrap_or(Told::Other)
}

fn allocates(of: &str) -> Option<Told> {
    // without its types, a generic function has the names of its parameters
    let is_parameter = of.len() == 1 && of.chars().all(|letter| letter.is_ascii_uppercase());
    (!is_parameter)
        .then(|| Told::Allocates(of.replace(", alloc::alloc::Global>", ">").replace(",alloc::alloc::Global>", ">")))
}

/// Boxes are made for one value, which is moved into them; counted ones have their counts before it.
fn boxed(path: &str) -> Option<Told> {
    const MOVES_IN: [&str; 6] = ["new", "pin", "try_new", "try_allocate_for", "allocate_for", "try_clone_from_ref_in"];
    let classes = [
        ("alloc::boxed::Box", ""),
        ("alloc::sync::Arc", "alloc::sync::ArcInner"),
        ("alloc::rc::Rc", "alloc::rc::RcInner"),
    ];
    for (class, inner) in classes {
        let Some((of, method)) = first(path, class) else { continue };
        let Some(Told::Allocates(of)) = allocates(of) else { return None };
        let of = if inner.is_empty() { of } else { format!("{inner}<{of}>") };
        let method = plain_method(method);
        // that one is given a function to run
        let moves_in = MOVES_IN.iter().any(|only| method.starts_with(only)) && !method.starts_with("new_cyclic");
        return Some(if moves_in { Told::Allocates(of) } else { Told::Constructs(of) });
    }
    None
}

/// The name of a method behind its type: `::new`, `>::new`; empty for one of a trait.
fn plain_method(behind: &str) -> &str {
    behind.strip_prefix('>').unwrap_or(behind).strip_prefix("::").unwrap_or_default()
}

fn vector(path: &str) -> Option<Told> {
    if let Some(behind) = path.strip_prefix("alloc::string::String") {
        // what it allocates itself is its text; a method of a trait may run an iterator
        let is_own = !plain_method(behind).is_empty() || behind.starts_with(" as core::clone::Clone");
        return Some(if is_own { Told::Allocates("u8".to_owned()) } else { Told::Constructs("u8".to_owned()) });
    }
    if let Some((of, _)) = first(path, "alloc::raw_vec::RawVec") {
        return allocates(of);
    }
    for class in ["alloc::vec::Vec", "alloc::collections::vec_deque::VecDeque"] {
        if let Some((of, method)) = first(path, class) {
            let moves_only = ["with_capacity", "reserve", "push", "shrink", "into_boxed", "append", "grow"];
            let told = allocates(of)?;
            let method = plain_method(method);
            let only = moves_only.iter().any(|only| method.starts_with(only));
            return Some(match told {
                Told::Allocates(of) if !only => Told::Constructs(of),
                told => told,
            });
        }
    }
    None
}

/// Tables call the program's hash functions, which may allocate what is freed again at once.
fn table(path: &str) -> Option<Told> {
    let of = if let Some((of, _)) = first(path, "hashbrown::raw::RawTable") {
        of.to_owned()
    } else {
        let (arguments, _) = arguments(path, "hashbrown::map::HashMap")?;
        format!("({}, {})", arguments.first()?, arguments.get(1)?)
    };
    match allocates(&of)? {
        Told::Allocates(of) if !of.contains("(K, V)") => Some(Told::Constructs(of)),
        _ => None,
    }
}

/// Where linkage names are missing: `grow_one<alloc::string::String, alloc::alloc::Global>`.
fn bare_vector(name: &str) -> Option<Told> {
    const NAMES: [&str; 8] =
        ["grow_one", "push", "push_mut", "reserve", "reserve_exact", "with_capacity_in", "shrink_to_fit", "push_back"];
    let class = NAMES.iter().find(|known| name.strip_prefix(**known).is_some_and(|rest| rest.starts_with('<')))?;
    match arguments(name, class)?.0.as_slice() {
        [of, "alloc::alloc::Global"] => allocates(of),
        _ => None,
    }
}
