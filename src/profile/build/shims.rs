//! Functions that only hand a call on to the allocator: who called *them* is of interest.

use crate::profile::symbolize::FunctionName;

/// A function between the program and the allocator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Shim {
    /// A global C++ operator, by its name for people: which one was called matters (new or new[]).
    Operator(String),
    /// Part of Rust's way to its global allocator.
    Rust,
}

/// The mangled names of the global operators new, new[], delete, delete[] begin so (Itanium C++ ABI, 5.1.3.3); those of
/// classes are nested names, `_ZN…`.
const OPERATORS: [&str; 4] = ["_Znw", "_Zna", "_Zdl", "_Zda"];

/// The same for people, without arguments.
const OPERATOR_NAMES: [&str; 4] = ["operator new", "operator new[]", "operator delete", "operator delete[]"];

/// What rustc generates to reach the global allocator (`rustc_ast::expand::allocator`), without module path.
const RUST_SHIMS: [&str; 12] = [
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rust_dealloc",
    "__rdl_alloc",
    "__rdl_alloc_zeroed",
    "__rdl_realloc",
    "__rdl_dealloc",
    "__rg_alloc",
    "__rg_alloc_zeroed",
    "__rg_realloc",
    "__rg_dealloc",
];

/// Rust's default allocator, which calls malloc, where it was not inlined into the shims.
const RUST_SYSTEM: [&str; 2] =
    ["GlobalAlloc for std::alloc::System>::", "<std::alloc::System as core::alloc::global::GlobalAlloc>::"];

/// The names of the functions between the program and the allocator, without arguments.
pub fn shim_names() -> impl Iterator<Item = &'static str> {
    OPERATOR_NAMES.into_iter().chain(RUST_SHIMS)
}

/// Whether the function is a shim.
pub(super) fn shim(function: &FunctionName) -> Option<Shim> {
    let FunctionName { name, system_name } = function;
    let is_bare_operator = || OPERATOR_NAMES.iter().any(|op| name.starts_with(op));
    if OPERATORS.iter().any(|op| system_name.starts_with(op)) || is_bare_operator() {
        return Some(Shim::Operator(name.as_ref().to_owned()));
    }
    let last = name.rsplit("::").next().unwrap_or(name);
    let is_root = matches!(name.strip_suffix(last), Some("" | "__rustc::" | "alloc::alloc::" | "std::alloc::"));
    let is_generated = is_root && RUST_SHIMS.contains(&last);
    (is_generated || RUST_SYSTEM.iter().any(|system| name.contains(system))).then_some(Shim::Rust)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, system_name: &str) -> Option<Shim> {
        shim(&FunctionName { name: name.into(), system_name: system_name.into() })
    }

    #[test]
    fn global_operators_and_rust_s_allocator_are_shims_and_others_are_not() {
        let operator = |name: &str| Some(Shim::Operator(name.to_owned()));
        assert_eq!(of("operator new(unsigned long)", "_Znwm"), operator("operator new(unsigned long)"));
        assert_eq!(of("operator delete[](void*)", "_ZdaPv"), operator("operator delete[](void*)"));
        assert_eq!(of("__rustc::__rust_alloc", "_RNvC7___rustc12___rust_alloc"), Some(Shim::Rust));
        assert_eq!(of("__rdl_realloc", "__rdl_realloc"), Some(Shim::Rust));
        let system = "std::sys::alloc::unix::<impl core::alloc::global::GlobalAlloc for std::alloc::System>::alloc";
        assert_eq!(of(system, "_ZN"), Some(Shim::Rust));
        assert_eq!(of("Pool::operator new(unsigned long)", "_ZN4PoolnwEm"), None);
        assert_eq!(of("mine::__rust_alloc", "x"), None);
        assert_eq!(of("alloc::raw_vec::finish_grow", "x"), None);
        assert_eq!(of("", ""), None);
    }
}
