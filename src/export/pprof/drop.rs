//! Which functions pprof leaves out: those that only manage memory for their callers.
//!
//! How readers use the list (`Profile.RemoveUninteresting` of github.com/google/pprof): each name, cut at its first `(`
//! other than those of `operator()` and `(anonymous namespace)`, is matched as a whole. In each stack the frame nearest
//! to the root that matches goes, and **all that it called**. A stack that matches up to its root stays as it is. So
//! only functions that never run code of the program may be named here, or its functions would be lost behind them:
//! `Vec::push` may, `Vec::extend` may not (it runs an iterator). The one exception is the growth of a hash table, which
//! may hash keys; and an allocator of the program's own is the way to memory as any other. Inlined functions are cut
//! within a location, also where nothing else of the stack is left.
//!
//! The patterns are in Go's syntax, and have no `|` outside of parentheses: see [`alternatives`].
//!
//! [`alternatives`]: crate::profile::identity::alternatives

/// Types between angle brackets as Rust writes them, but never `A as B`: a method of the program's trait is its own.
macro_rules! types {
    () => {
        r"<(?:[^ ]|, |; | \+ |(?:dyn|mut|const) )*>"
    };
}

/// The standard allocator of C++, at the end of the arguments of a template.
macro_rules! standard {
    () => {
        r"std::(?:__1::)?allocator<.*> ?>"
    };
}

/// A type of C++ whose constructors are none.
macro_rules! scalar {
    () => {
        r"(?:bool|char|signed char|unsigned char|short|unsigned short|int|unsigned int|long|unsigned long|long long|unsigned long long|float|double|wchar_t|char8_t|char16_t|char32_t|[A-Za-z0-9_:]*(?: const)?\*)"
    };
}

/// `std::string` and its kin, in all spellings.
macro_rules! cxx_string {
    () => {
        r"std::(?:__cxx11::|__1::)?(?:w?string|basic_string<(?:char|wchar_t|char8_t|char16_t|char32_t), std::(?:__1::)?char_traits<[a-z0-9_]*>, std::(?:__1::)?allocator<[a-z0-9_]*> ?>)"
    };
}

/// Rust: the crate `alloc`, the standard allocators, and those that a program names as its own.
const RUST: [&str; 21] = [
    r"<?alloc::alloc::.*",
    r"<?alloc::raw_vec::.*",
    r"(?:__rustc::)?__r(?:ust|dl|g)_(?:alloc|alloc_zeroed|realloc|dealloc)",
    r"<.* as core::alloc::(?:global::GlobalAlloc|GlobalAlloc|Allocator)>::[a-z_]*",
    r"std::.*<impl core::alloc::global::GlobalAlloc for std::alloc::System>::[a-z_]*",
    r"<?std::alloc::System>?::[a-z_]*",
    concat!(
        r"<?alloc::vec::Vec",
        types!(),
        r">?::(?:try_)?(?:with_capacity|with_capacity_in|reserve|reserve_exact|push|push_mut|shrink_to|shrink_to_fit|append_elements|into_boxed_slice)"
    ),
    concat!(
        r"<?alloc::collections::vec_deque::VecDeque",
        types!(),
        r">?::(?:with_capacity|with_capacity_in|reserve|reserve_exact|grow|push_back|push_front)"
    ),
    concat!(
        r"<?alloc::(?:boxed::Box|rc::Rc|sync::Arc)",
        types!(),
        r">?::(?:new|new_in|pin|new_uninit|new_uninit_in|try_new_uninit_in|try_new_in|allocate_for_layout|allocate_for_slice|try_allocate_for_layout)"
    ),
    r"<?alloc::string::String>?::(?:with_capacity|reserve|reserve_exact|push|push_str|insert|insert_str|shrink_to_fit|into_boxed_str)",
    r"<alloc::string::String as core::(?:clone::Clone|fmt::Write)>::(?:clone|clone_from|write_str|write_char)",
    r"<alloc::string::String as core::convert::From<(?:&str|&mut str|char|&alloc::string::String|alloc::boxed::Box<str>)>>::from",
    r"(?:alloc::str::<impl alloc::borrow::ToOwned for str>|<str as alloc::borrow::ToOwned>|<(?:str|alloc::string::String) as alloc::string::ToString>)::[a-z_]*",
    r"alloc::boxed::box_new(?:_uninit)?",
    r"<alloc::boxed::Box<.*> as core::ops::drop::Drop>::drop",
    r"core::ptr::drop_in_place(?:::)?<alloc::(?:string::String|raw_vec::RawVec<.*>)>",
    concat!(
        r"<?alloc::collections::btree::node::[A-Za-z]*",
        types!(),
        r">?::(?:new|new_leaf|new_internal|split|insert_recursing|push_internal_level)"
    ),
    concat!(r"<?alloc::collections::btree::map::entry::VacantEntry", types!(), r">?::(?:insert|insert_entry)"),
    concat!(
        r"<?(?:hashbrown::map::HashMap|hashbrown::set::HashSet|std::collections::hash::map::HashMap|std::collections::hash::set::HashSet)",
        types!(),
        r">?::(?:with_capacity|with_capacity_in|with_capacity_and_hasher|with_capacity_and_hasher_in|reserve|try_reserve|shrink_to_fit)"
    ),
    r"<?hashbrown::raw::(?:alloc::.*|RawTable(?:Inner)?(?:<.*>)?>?::(?:new_uninitialized|fallible_with_capacity|with_capacity|with_capacity_in|prepare_resize|resize|resize_inner|reserve|reserve_rehash|reserve_rehash_inner|try_reserve|find_or_find_insert_slot|find_or_find_insert_index|free_buckets))(?:::<.*>)?",
    concat!(r"<?smallvec::SmallVec", types!(), r">?::(?:grow|try_grow|reserve|try_reserve|reserve_one_unchecked|push)"),
];

/// The same by their bare names, as debug information without linkage names (`debug = 1`, `line-tables-only`) has them
/// where they are inlined: only names that nobody else gives, or those whose types say that it is Rust's allocator. A
/// name of which a tuple comes first ends at the `<` for pprof; hardly any function of C++ is called so, with a `(`
/// behind it.
const RUST_INLINED: [&str; 6] = [
    r"(?:exchange_malloc|try_allocate_in|grow_amortized|finish_grow|do_reserve_and_handle|reserve_for_push)(?:<.*>)?",
    r"(?:alloc|grow|shrink|deallocate)_impl_runtime",
    // the allocator is the last argument, or that before the hasher; within an argument it says nothing
    r"(?:push|push_mut|push_back|push_front|grow|new_in|reserve|reserve_exact|try_reserve|with_capacity_in|shrink_to_fit)<(?:.*, )?alloc::alloc::Global(?:, hashbrown::map::make_hasher::.*)?>",
    r"(?:grow_one|reserve_rehash|with_capacity_zeroed_in|append_elements|find_or_find_insert_index|find_or_find_insert_slot)<.*alloc::alloc::Global.*>",
    r"(?:to_vec|to_vec_in|spec_extend|from_elem|extend_from_slice)<(?:[a-z0-9]*, )?alloc::alloc::Global>",
    r"(?:push_mut|reserve_rehash|grow_one|find_or_find_insert_index|find_or_find_insert_slot)<",
];

/// C++: libstdc++, libc++, and the allocating functions of large libraries.
const CXX: [&str; 20] = [
    // not `construct`, which runs constructors
    r"(?:std::__new_allocator|__gnu_cxx::new_allocator|__gnu_cxx::malloc_allocator)<.*>::(?:de)?allocate",
    concat!(r"std::(?:__1::)?allocator_traits<", standard!(), r"::(?:de)?allocate(?:_at_least)?(?:\[abi:[a-z0-9]*\])?"),
    // names of what std::make_shared allocates end for pprof at the `(` of their lock policy; nothing is constructed by
    // these
    r"(?:std::__new_allocator|__gnu_cxx::new_allocator|std::allocator_traits<std::allocator)<std::_Sp_counted_ptr_inplace<.*",
    r"std::(?:__1::)?allocator<.*>::(?:de)?allocate(?:_at_least)?(?:\[abi:[a-z0-9]*\])?",
    concat!(
        r"(?:void |[^ ]*& )?std::vector<",
        scalar!(),
        r", std::allocator<",
        scalar!(),
        // iterators and values of the program run its code
        r"> ?>::[~A-Za-z_=]*(?:<(?:(?:void|",
        scalar!(),
        r")(?: const)?&*(?:, )?)*>)?"
    ),
    concat!(
        r"std::_Vector_base<.*, ",
        standard!(),
        r"::(?:_M_allocate|_M_deallocate|_M_create_storage|~?_Vector_base)"
    ),
    r"std::_Bvector_base<std::allocator<bool> ?>::(?:_M_allocate|_M_deallocate|~?_Bvector_base)",
    concat!(
        r"std::_Deque_base<.*, ",
        standard!(),
        r"::(?:_M_allocate_node|_M_allocate_map|_M_create_nodes|_M_initialize_map|_M_deallocate_node|_M_deallocate_map|_M_destroy_nodes|~?_Deque_base)"
    ),
    concat!(r"std::deque<.*, ", standard!(), r"::(?:_M_reallocate_map|_M_reserve_map_at_back|_M_reserve_map_at_front)"),
    concat!(
        r"std::(?:__cxx11::)?(?:_List_base|list|_Fwd_list_base|_Rb_tree)<.*, ",
        standard!(),
        r"::(?:_M_get_node|_M_put_node)"
    ),
    r"std::__detail::_Hashtable_alloc<std::allocator<.*> ?>::(?:_M_allocate_buckets|_M_deallocate_buckets|_M_deallocate_node_ptr)",
    r"std::_Hashtable<.*>::(?:_M_allocate_buckets|_M_deallocate_buckets|_M_rehash|_M_rehash_aux)",
    r"std::__allocated_ptr<std::allocator<.*",
    r"std::__allocate_guarded<std::allocator<.*",
    concat!(
        cxx_string!(),
        r"::(?:~?basic_string(?:<std::allocator<[a-z0-9_]*> ?>)?|~?string|_M_[a-z_]*|__[a-z_]*|_Rep::_[SM]_[a-z_]*|reserve|resize|append|assign|insert|replace|push_back|substr|operator=|operator\+=)(?:\[abi:[a-z0-9]*\])?"
    ),
    concat!(r"(?:void |char\* )?", cxx_string!(), r"::_[SM]_construct<(?:char const\*|char\*|bool)>"),
    r"(?:void\* |void )?std::__1::__libcpp_(?:allocate|deallocate|operator_new|operator_delete).*",
    r"std::__1::__allocation_result<.*> std::__1::__allocate_at_least.*",
    concat!(r"std::__1::vector<.*, ", standard!(), r"::(?:__vallocate|__vdeallocate)(?:\[abi:[a-z0-9]*\])?"),
    r"(?:QArrayData::(?:allocate|allocate1|allocate2|reallocateUnaligned|deallocate)|llvm::(?:safe_malloc|safe_calloc|safe_realloc|allocate_buffer|deallocate_buffer|SmallVectorBase<.*>::(?:grow_pod|mallocForGrow)))",
];

/// C: wrappers that check the result or count, by the names under which they are known: GNU programs, GLib, OpenSSL,
/// Python, Redis, SQLite, jq, FFmpeg, libuv, nginx, Perl.
const C: [&str; 12] = [
    r"(?:sh_)?x(?:i|2|n)?(?:malloc|calloc|realloc|zalloc|mallocarray|reallocarray|charalloc|nmalloc|nrealloc|memdup|strdup|strndup|palloc|free)",
    r"rpl_(?:malloc|calloc|realloc|free)",
    r"g_(?:try_)?(?:malloc|malloc0|realloc|malloc_n|malloc0_n|realloc_n|free|free_sized|memdup|memdup2|strdup|strndup|slice_alloc|slice_alloc0|slice_copy|slice_free1)",
    r"CRYPTO_(?:malloc|zalloc|calloc|realloc|clear_realloc|free|clear_free|memdup|strdup|strndup)",
    r"(?:_?Py(?:Mem|Object)_(?:Raw|Debug|DebugRaw)?(?:Malloc|Calloc|Realloc|Free|Alloc|Strdup|RawStrdup)|pymalloc_(?:alloc|realloc|free)|_PyMem_Arena(?:Alloc|Free)|_PyObject_Arena(?:Malloc|Mmap|Free|Munmap))",
    r"z(?:try)?(?:malloc|calloc|realloc|free)(?:_usable|_usable_internal)?",
    r"sqlite3(?:_|Mem|Db)?(?:[mM]alloc|[rR]ealloc|[fF]ree)(?:64|Zero|Raw|RawNN|OrFree|NN|NNFreeNN)?",
    r"(?:mallocWithAlarm|dbMallocRawFinish|dbReallocFinish)",
    r"jv_mem_(?:alloc|alloc_unguarded|calloc|calloc_unguarded|realloc|strdup|strdup_unguarded|free)",
    r"av_(?:malloc|mallocz|malloc_array|calloc|realloc|realloc_f|realloc_array|reallocp|free|freep|strdup|memdup)",
    r"(?:uv__(?:malloc|calloc|realloc|reallocf|strdup|strndup|free)|ngx_(?:alloc|calloc|memalign))",
    r"Perl_(?:safesys(?:malloc|calloc|realloc|free)|savepv|savepvn)",
];

/// All patterns, each of which may stand beside others as it is.
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    RUST.into_iter().chain(RUST_INLINED).chain(CXX).chain(C)
}
