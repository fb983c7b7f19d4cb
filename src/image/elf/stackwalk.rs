//! Whether an allocator in an object walks the stacks of its callers, as sanitizers and heap profilers do.

use super::{Elf, PlainSymbols};

/// What the runtimes of the sanitizers define: they walk the stacks of whoever calls malloc.
const SANITIZER_SYMBOLS: [&str; 5] = ["__asan_init", "__lsan_init", "__msan_init", "__tsan_init", "__hwasan_init"];

/// What walks stacks. The allocator of a library that imports one of these may do so in malloc.
const UNWINDERS: [&str; 5] = ["_Unwind_Backtrace", "backtrace", "unw_backtrace", "unw_step", "_ULx86_64_step"];

/// What jemalloc defines, with the prefixes that it is built with.
const JEMALLOC_SYMBOLS: [&str; 3] = ["mallctl", "je_mallctl", "_rjem_mallctl"];

/// What an exception is thrown by, and goes through functions by: libgcc's unwinder and the personalities of C++, C and
/// Rust.
const EXCEPTIONS: [&str; 6] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "__gxx_personality_v0",
    "__gcc_personality_v0",
    "rust_eh_personality",
    "__cxa_throw",
];

impl Elf<'_> {
    /// Whether code in it may throw exceptions by an unwinder that has no symbol: it has tables of handlers, imports
    /// nothing that such code needs, and does not name what throws.
    pub fn may_throw_unseen(&self, symbols: &PlainSymbols<'_>) -> bool {
        self.sections.has(".gcc_except_table") && !self.imports_any(&EXCEPTIONS) && !symbols.has_any(&EXCEPTIONS[..1])
    }

    /// Whether the allocator that is in it, be it the program or a library, may walk the stacks of its callers.
    pub fn may_walk_stacks(&self, symbols: &PlainSymbols<'_>, is_program: bool) -> bool {
        symbols.has_any(&SANITIZER_SYMBOLS) || !is_program && self.imports_any(&UNWINDERS)
    }
}

/// Whether jemalloc is in an object with these symbols, which walks stacks only if it is told to.
pub fn has_jemalloc(symbols: &PlainSymbols<'_>) -> bool {
    symbols.has_any(&JEMALLOC_SYMBOLS)
}
