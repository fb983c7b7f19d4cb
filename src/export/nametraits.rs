//! What the name and the source file of a function say of it.

use crate::profile::identity::{is_unresolved, without_arguments};

/// What a function's name and source file say of it. A profile has far fewer functions than frames, so each is looked
/// at once (`View::location_frames`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NameTraits(u8);

impl NameTraits {
    const PLUMBING: u8 = 1;
    const STANDARD_SOURCE: u8 = 1 << 1;
    const WRAPPER: u8 = 1 << 2;
    const UNRESOLVED: u8 = 1 << 3;
    const PYTHON_LOOP: u8 = 1 << 4;

    /// Those of a function.
    pub(crate) fn of(name: &str, file: Option<&str>) -> Self {
        let traits = [
            (Self::PLUMBING, is_plumbing_by_name(name)),
            (Self::STANDARD_SOURCE, file.is_some_and(is_standard_source)),
            (Self::WRAPPER, is_wrapper(name)),
            (Self::UNRESOLVED, is_unresolved(name)),
            (Self::PYTHON_LOOP, name == PYTHON_LOOP),
        ];
        Self(traits.into_iter().filter(|(_, has)| *has).fold(0, |all, (bit, _)| all | bit))
    }

    /// Whether it belongs to a standard library, to the way to an allocator, or to what runs before `main`. Where
    /// inlined calls are not known, the program's own function bears the file of what was inlined into it: the file
    /// counts for `inlined` functions only.
    pub(crate) fn is_plumbing(self, inlined: bool) -> bool {
        self.0 & Self::PLUMBING != 0 || inlined && self.0 & Self::STANDARD_SOURCE != 0
    }

    /// Whether it only calls the allocator, see [`is_wrapper`].
    pub(crate) fn is_wrapper(self) -> bool {
        self.0 & Self::WRAPPER != 0
    }

    /// Whether the address has no name.
    pub(crate) fn is_unresolved(self) -> bool {
        self.0 & Self::UNRESOLVED != 0
    }

    /// Whether it is the function of CPython in which Python's functions run.
    pub(crate) fn is_python_loop(self) -> bool {
        self.0 & Self::PYTHON_LOOP != 0
    }
}

/// The function of CPython in which Python's functions run.
const PYTHON_LOOP: &str = "_PyEval_EvalFrameDefault";

/// Whether a function is known to do no more than to call the allocator and to end the program, or throw, where that
/// fails.
fn is_wrapper(name: &str) -> bool {
    const FUNCTIONS: &str = "\
        xmalloc xcalloc xrealloc xstrdup xstrndup xmemdup xzalloc xmallocz xmemdupz xcharalloc xreallocarray \
        g_malloc g_malloc0 g_realloc g_malloc_n g_malloc0_n";
    FUNCTIONS.split(' ').any(|function| function == without_arguments(name))
}

/// Whether a source file is one of a standard library, of Rust (as rustc has it, or `/rust/deps/…` for what it is built
/// with) or C++: where debug information has lines only, inlined functions have bare names, such as `alloc`.
fn is_standard_source(file: &str) -> bool {
    const BEGINNINGS: [&str; 5] =
        ["/rustc/", "/rust/deps/", "library/std/src/", "library/core/src/", "library/alloc/src/"];
    const PARTS: [&str; 3] = ["/rustlib/src/rust/library/", "/hashbrown-0.", "/include/c++/"];
    BEGINNINGS.iter().any(|beginning| file.starts_with(beginning)) || PARTS.iter().any(|part| file.contains(part))
}

fn is_plumbing_by_name(name: &str) -> bool {
    const CRATES: [&str; 9] =
        ["std::", "core::", "alloc::", "hashbrown::", "__gnu_cxx::", "<std::", "<core::", "<alloc::", "<hashbrown::"];
    const START: [&str; 6] =
        ["_start", "__libc_start_main", "__libc_start_call_main", "start_thread", "clone3", "__clone3"];
    let bare = name.split_once('@').map_or(name, |(bare, _)| bare);
    CRATES.iter().any(|prefix| name.starts_with(prefix))
        // the return type of a C++ template comes first: `void std::vector<…>::push_back(…)`
        || name.split(['<', '(']).next().is_some_and(|head| head.contains(" std::") || head.contains(" __gnu_cxx::"))
        || name.starts_with("<T as ")
        // a Rust program's own global allocator
        || name.contains(" as core::alloc::global::GlobalAlloc>::")
        // libstdc++'s way to call what a thread runs; its debug information leaves `std::` out
        || name.starts_with("__invoke")
        || START.contains(&bare)
        || bare.starts_with("__libc_start_main")
        || bare.starts_with("__rust_")
}
