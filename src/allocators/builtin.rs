//! The functions that are known by name.
//!
//! Sources: C23 and POSIX, malloc(3), the Itanium C++ ABI's mangling (`m` is size_t on x86-64), jemalloc(3), the public
//! headers of gperftools (tcmalloc.h) and mimalloc (mimalloc.h), the dynamic symbol table of glibc 2.36.

use super::{Arg, Family, Function, Kind, MapFunction, Success, Text};

const A1: Arg = Arg(0);
const A2: Arg = Arg(1);
const A3: Arg = Arg(2);
const A4: Arg = Arg(3);

const fn alloc(size: Arg) -> Kind {
    Kind::Alloc { size, count: None }
}

const fn array(count: Arg, size: Arg) -> Kind {
    Kind::Alloc { size, count: Some(count) }
}

const fn realloc(old: Arg, size: Arg) -> Kind {
    Kind::Realloc { old, size, count: None }
}

const fn realloc_array(old: Arg, count: Arg, size: Arg) -> Kind {
    Kind::Realloc { old, size, count: Some(count) }
}

const FREE: Kind = Kind::Free { ptr: A1, size: None };
const FREE_SIZED: Kind = Kind::Free { ptr: A1, size: Some(A2) };
const POSIX_MEMALIGN: Kind = Kind::AllocOut { out: A1, size: A3, success: Success::Zero };

/// What every C allocator has, under whatever prefix.
const C_FUNCTIONS: &[(&str, Kind)] = &[
    ("malloc", alloc(A1)),
    ("free", FREE),
    ("calloc", array(A1, A2)),
    ("realloc", realloc(A1, A2)),
    ("reallocarray", realloc_array(A1, A2, A3)),
    ("posix_memalign", POSIX_MEMALIGN),
    ("aligned_alloc", alloc(A2)),
    ("memalign", alloc(A2)),
    ("valloc", alloc(A1)),
    ("pvalloc", alloc(A1)),
    ("cfree", FREE),
    ("free_sized", FREE_SIZED),
    ("free_aligned_sized", FREE),
];

/// The operators: (symbol, name, kind, family).
const OPERATORS: &[(&str, &str, Kind, Family)] = &[
    ("_Znwm", "operator new(unsigned long)", alloc(A1), Family::New),
    ("_ZnwmRKSt9nothrow_t", "operator new(unsigned long, std::nothrow_t const&)", alloc(A1), Family::New),
    ("_ZnwmSt11align_val_t", "operator new(unsigned long, std::align_val_t)", alloc(A1), Family::New),
    (
        "_ZnwmSt11align_val_tRKSt9nothrow_t",
        "operator new(unsigned long, std::align_val_t, std::nothrow_t const&)",
        alloc(A1),
        Family::New,
    ),
    ("_Znam", "operator new[](unsigned long)", alloc(A1), Family::NewArray),
    ("_ZnamRKSt9nothrow_t", "operator new[](unsigned long, std::nothrow_t const&)", alloc(A1), Family::NewArray),
    ("_ZnamSt11align_val_t", "operator new[](unsigned long, std::align_val_t)", alloc(A1), Family::NewArray),
    (
        "_ZnamSt11align_val_tRKSt9nothrow_t",
        "operator new[](unsigned long, std::align_val_t, std::nothrow_t const&)",
        alloc(A1),
        Family::NewArray,
    ),
    ("_ZdlPv", "operator delete(void*)", FREE, Family::New),
    ("_ZdlPvRKSt9nothrow_t", "operator delete(void*, std::nothrow_t const&)", FREE, Family::New),
    ("_ZdlPvm", "operator delete(void*, unsigned long)", FREE_SIZED, Family::New),
    ("_ZdlPvSt11align_val_t", "operator delete(void*, std::align_val_t)", FREE, Family::New),
    (
        "_ZdlPvSt11align_val_tRKSt9nothrow_t",
        "operator delete(void*, std::align_val_t, std::nothrow_t const&)",
        FREE,
        Family::New,
    ),
    ("_ZdlPvmSt11align_val_t", "operator delete(void*, unsigned long, std::align_val_t)", FREE_SIZED, Family::New),
    ("_ZdaPv", "operator delete[](void*)", FREE, Family::NewArray),
    ("_ZdaPvRKSt9nothrow_t", "operator delete[](void*, std::nothrow_t const&)", FREE, Family::NewArray),
    ("_ZdaPvm", "operator delete[](void*, unsigned long)", FREE_SIZED, Family::NewArray),
    ("_ZdaPvSt11align_val_t", "operator delete[](void*, std::align_val_t)", FREE, Family::NewArray),
    (
        "_ZdaPvSt11align_val_tRKSt9nothrow_t",
        "operator delete[](void*, std::align_val_t, std::nothrow_t const&)",
        FREE,
        Family::NewArray,
    ),
    (
        "_ZdaPvmSt11align_val_t",
        "operator delete[](void*, unsigned long, std::align_val_t)",
        FREE_SIZED,
        Family::NewArray,
    ),
];

/// Names under which glibc (and musl, where it has them) calls its own functions; in glibc 2.36 all but the last two
/// are exported at the address of the public name. They matter for old and for static C libraries.
const LIBC_ALIASES: &[(&str, Kind)] = &[
    ("__libc_malloc", alloc(A1)),
    ("__libc_free", FREE),
    ("__libc_calloc", array(A1, A2)),
    ("__libc_realloc", realloc(A1, A2)),
    ("__libc_reallocarray", realloc_array(A1, A2, A3)),
    ("__libc_memalign", alloc(A2)),
    ("__libc_valloc", alloc(A1)),
    ("__libc_pvalloc", alloc(A1)),
    ("__libc_cfree", FREE),
    ("__posix_memalign", POSIX_MEMALIGN),
];

const fn copy(from: Arg, most: Option<Arg>, unit: u8) -> Text {
    Text::Copied { from, most, unit }
}

/// Functions of the C library whose blocks hold a text, where an allocator brings its own.
const TEXTS: &[(&str, Text)] = &[
    ("strdup", copy(A1, None, 1)),
    ("__strdup", copy(A1, None, 1)),
    ("strndup", copy(A1, Some(A2), 1)),
    ("__strndup", copy(A1, Some(A2), 1)),
    ("wcsdup", copy(A1, None, 4)),
    ("realpath", Text::Found { unless: Some(A2) }),
    ("canonicalize_file_name", Text::Found { unless: None }),
    ("getcwd", Text::Found { unless: Some(A1) }),
    ("get_current_dir_name", Text::Found { unless: None }),
];

/// mimalloc's own names for such functions, behind `mi_`; its wide characters are those of Windows.
const MIMALLOC_TEXTS: &[(&str, Text)] = &[
    ("strdup", copy(A1, None, 1)),
    ("strndup", copy(A1, Some(A2), 1)),
    ("mbsdup", copy(A1, None, 1)),
    ("wcsdup", copy(A1, None, 2)),
    ("realpath", Text::Found { unless: Some(A2) }),
    ("heap_strdup", copy(A2, None, 1)),
    ("heap_strndup", copy(A2, Some(A3), 1)),
    ("heap_realpath", Text::Found { unless: Some(A3) }),
];

/// The same, where the block's address is written to where the first argument points. (The C library's open_memstream
/// and open_wmemstream call malloc and realloc, which are seen; no allocator brings its own.)
const TEXTS_OUT: &[(&str, Kind, Text)] = &[
    ("asprintf", PRINT, Text::Printed),
    ("__asprintf", PRINT, Text::Printed),
    ("__asprintf_chk", PRINT, Text::Printed),
    ("vasprintf", PRINT, Text::Printed),
    ("__vasprintf_chk", PRINT, Text::Printed),
    ("getline", READ_LINE, Text::Line),
    ("__getline", READ_LINE, Text::Line),
    ("getdelim", READ_LINE, Text::Line),
    ("__getdelim", READ_LINE, Text::Line),
];

const PRINT: Kind = Kind::AllocOut { out: A1, size: Text::SIZE, success: Success::Length };
const READ_LINE: Kind = Kind::GrowOut { out: A1, size: A2 };

/// mimalloc's own of these.
const MIMALLOC_TEXTS_OUT: &[(&str, Kind, Text)] =
    &[("dupenv_s", Kind::AllocOut { out: A1, size: Text::SIZE, success: Success::Zero }, Text::Found { unless: None })];

/// mmap and its kin, under the names that the C libraries have for them: in glibc 2.36 and musl 1.2 those of one line
/// have one address.
pub(super) const MAPPINGS: &[(&str, MapFunction)] = &[
    ("mmap", MapFunction::Mmap),
    ("mmap64", MapFunction::Mmap),
    ("__mmap", MapFunction::Mmap),
    ("munmap", MapFunction::Munmap),
    ("__munmap", MapFunction::Munmap),
    ("mremap", MapFunction::Mremap),
    ("__mremap", MapFunction::Mremap),
    ("brk", MapFunction::Brk),
    ("__brk", MapFunction::Brk),
    ("sbrk", MapFunction::Sbrk),
    ("__sbrk", MapFunction::Sbrk),
];

/// jemalloc's own interface: always exported, with the build's prefix if it has one.
const JEMALLOC: &[(&str, Kind)] = &[
    ("mallocx", alloc(A1)),
    ("rallocx", realloc(A1, A2)),
    ("xallocx", Kind::ResizeInPlace { old: A1, size: A2 }),
    ("dallocx", FREE),
    ("sdallocx", FREE),
];

/// gperftools' names for its entries, behind `tc_` (C functions are in [`C_FUNCTIONS`]).
const TCMALLOC: &[(&str, Kind)] = &[
    ("malloc_skip_new_handler", alloc(A1)),
    ("new", alloc(A1)),
    ("new_nothrow", alloc(A1)),
    ("new_aligned", alloc(A1)),
    ("new_aligned_nothrow", alloc(A1)),
    ("newarray", alloc(A1)),
    ("newarray_nothrow", alloc(A1)),
    ("newarray_aligned", alloc(A1)),
    ("newarray_aligned_nothrow", alloc(A1)),
    ("delete", FREE),
    ("delete_nothrow", FREE),
    ("delete_sized", FREE),
    ("delete_aligned", FREE),
    ("delete_aligned_nothrow", FREE),
    ("delete_sized_aligned", FREE),
    ("deletearray", FREE),
    ("deletearray_nothrow", FREE),
    ("deletearray_sized", FREE),
    ("deletearray_aligned", FREE),
    ("deletearray_aligned_nothrow", FREE),
    ("deletearray_sized_aligned", FREE),
];

/// mimalloc's own entries, behind `mi_` (C functions are in [`C_FUNCTIONS`]). Alignments follow sizes here. mi_reallocf
/// frees the block when it fails, which is not modelled: the block then counts as live until its address is handed out
/// again.
const MIMALLOC: &[(&str, Kind)] = &[
    ("_posix_memalign", POSIX_MEMALIGN),
    ("malloc_small", alloc(A1)),
    ("zalloc", alloc(A1)),
    ("zalloc_small", alloc(A1)),
    ("mallocn", array(A1, A2)),
    ("reallocn", realloc_array(A1, A2, A3)),
    ("reallocf", realloc(A1, A2)),
    ("rezalloc", realloc(A1, A2)),
    ("recalloc", realloc_array(A1, A2, A3)),
    ("aligned_recalloc", realloc_array(A1, A2, A3)),
    ("aligned_offset_recalloc", realloc_array(A1, A2, A3)),
    ("umalloc", alloc(A1)),
    ("umalloc_small", alloc(A1)),
    ("umalloc_aligned", alloc(A1)),
    ("uzalloc_aligned", alloc(A1)),
    ("ucalloc", array(A1, A2)),
    ("urealloc", realloc(A1, A2)),
    ("ufree", FREE),
    ("free_small", FREE),
    ("_expand", Kind::ResizeInPlace { old: A1, size: A2 }),
    ("expand", Kind::ResizeInPlace { old: A1, size: A2 }),
    ("malloc_aligned", alloc(A1)),
    ("malloc_aligned_at", alloc(A1)),
    ("zalloc_aligned", alloc(A1)),
    ("zalloc_aligned_at", alloc(A1)),
    ("calloc_aligned", array(A1, A2)),
    ("calloc_aligned_at", array(A1, A2)),
    ("realloc_aligned", realloc(A1, A2)),
    ("realloc_aligned_at", realloc(A1, A2)),
    ("rezalloc_aligned", realloc(A1, A2)),
    ("rezalloc_aligned_at", realloc(A1, A2)),
    ("recalloc_aligned", realloc_array(A1, A2, A3)),
    ("recalloc_aligned_at", realloc_array(A1, A2, A3)),
    ("heap_alloc_new", alloc(A2)),
    ("heap_alloc_new_n", array(A2, A3)),
    ("heap_zalloc_small", alloc(A2)),
    ("theap_malloc", alloc(A2)),
    ("theap_malloc_small", alloc(A2)),
    ("theap_malloc_aligned", alloc(A2)),
    ("theap_zalloc", alloc(A2)),
    ("theap_zalloc_small", alloc(A2)),
    ("theap_calloc", array(A2, A3)),
    ("theap_realloc", realloc(A2, A3)),
    ("heap_malloc", alloc(A2)),
    ("heap_malloc_small", alloc(A2)),
    ("heap_zalloc", alloc(A2)),
    ("heap_calloc", array(A2, A3)),
    ("heap_mallocn", array(A2, A3)),
    ("heap_malloc_aligned", alloc(A2)),
    ("heap_malloc_aligned_at", alloc(A2)),
    ("heap_zalloc_aligned", alloc(A2)),
    ("heap_zalloc_aligned_at", alloc(A2)),
    ("heap_calloc_aligned", array(A2, A3)),
    ("heap_calloc_aligned_at", array(A2, A3)),
    ("heap_realloc", realloc(A2, A3)),
    ("heap_reallocn", realloc_array(A2, A3, A4)),
    ("heap_reallocf", realloc(A2, A3)),
    ("heap_realloc_aligned", realloc(A2, A3)),
    ("heap_realloc_aligned_at", realloc(A2, A3)),
    ("heap_rezalloc", realloc(A2, A3)),
    ("heap_recalloc", realloc_array(A2, A3, A4)),
    ("free_size", FREE),
    ("free_aligned", FREE),
    ("free_size_aligned", FREE),
    ("new", alloc(A1)),
    ("new_nothrow", alloc(A1)),
    ("new_aligned", alloc(A1)),
    ("new_aligned_nothrow", alloc(A1)),
    ("new_n", array(A1, A2)),
    ("new_realloc", realloc(A1, A2)),
    ("new_reallocn", realloc_array(A1, A2, A3)),
];

/// All of them. Order is rank: where several names have one address, the first in this order names the function.
pub(super) fn functions() -> Vec<Function> {
    let mut all = Vec::with_capacity(256);
    let mut add = |symbol: String, name: Option<&str>, kind, family| {
        let align = align_of(&symbol);
        let name = name.map_or_else(|| symbol.clone(), str::to_owned);
        all.push(Function { name, symbol, kind, family, align, text: None });
    };
    for &(symbol, kind) in C_FUNCTIONS {
        add(symbol.to_owned(), None, kind, Family::Malloc);
    }
    for &(symbol, name, kind, family) in OPERATORS {
        add(symbol.to_owned(), Some(name), kind, family);
    }
    for &(symbol, kind) in LIBC_ALIASES {
        add(symbol.to_owned(), None, kind, Family::Malloc);
    }
    for &(symbol, kind) in JEMALLOC {
        add(symbol.to_owned(), None, kind, Family::Other);
    }
    for prefix in ["je_", "_rjem_", "_rjem_je_"] {
        for &(symbol, kind) in C_FUNCTIONS.iter().chain(JEMALLOC) {
            add(format!("{prefix}{symbol}"), None, kind, Family::Other);
        }
    }
    for &(symbol, kind) in C_FUNCTIONS.iter().chain(TCMALLOC) {
        add(format!("tc_{symbol}"), None, kind, Family::Other);
    }
    for &(symbol, kind) in C_FUNCTIONS.iter().chain(MIMALLOC) {
        add(format!("mi_{symbol}"), None, kind, Family::Other);
    }
    let returned = |&(symbol, text): &(&'static str, Text)| (symbol, alloc(Text::SIZE), text);
    let texts = TEXTS.iter().map(returned).chain(TEXTS_OUT.iter().copied());
    let texts = texts.map(|(symbol, kind, text)| (symbol.to_owned(), kind, text, Family::Malloc));
    let mimallocs = MIMALLOC_TEXTS.iter().map(returned).chain(MIMALLOC_TEXTS_OUT.iter().copied());
    let mimallocs = mimallocs.map(|(symbol, kind, text)| (format!("mi_{symbol}"), kind, text, Family::Other));
    all.extend(texts.chain(mimallocs).map(|(symbol, kind, text, family)| {
        let name = symbol.clone();
        Function { name, symbol, kind, family, align: None, text: Some(text) }
    }));
    all
}

/// Where one of [`OPERATORS`] is told an alignment: behind the size, and behind the block.
fn align_of(symbol: &str) -> Option<Arg> {
    let (arguments, _) = symbol.split_once("St11align_val_t")?;
    Some(if arguments.ends_with("Pvm") { A3 } else { A2 })
}
