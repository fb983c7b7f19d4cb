use super::*;

fn callers<'a>(names: &[&'a str], shows_inlined: bool) -> impl Iterator<Item = Caller<'a>> {
    names.iter().copied().enumerate().map(move |(function, name)| Caller { function, name, shows_inlined })
}

fn of_names(names: &[&str], shows_inlined: bool) -> Option<(String, Certainty)> {
    told(callers(names, shows_inlined), &mut FxHashMap::default()).0
}

/// Names as demanglers give them, of programs that g++, clang and rustc have made.
#[test]
fn names_of_allocating_functions_tell_types() {
    let exact = [
        ("std::__new_allocator<Foo>::allocate(unsigned long, void const*)", "Foo"),
        (
            "__gnu_cxx::new_allocator<std::_Rb_tree_node<std::pair<int const, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > > > >::allocate(unsigned long, void const*)",
            "std::_Rb_tree_node<std::pair<int const, std::string>>",
        ),
        (
            "std::__new_allocator<std::_Sp_counted_ptr_inplace<Baz, std::allocator<void>, (__gnu_cxx::_Lock_policy)2> >::allocate(unsigned long, void const*)",
            "std::_Sp_counted_ptr_inplace<Baz, (__gnu_cxx::_Lock_policy)2>",
        ),
        ("std::__1::allocator<int>::allocate[abi:ne190107](unsigned long)", "int"),
        (
            "std::_Vector_base<std::vector<int, std::allocator<int> >, std::allocator<std::vector<int, std::allocator<int> > > >::_M_allocate(unsigned long)",
            "std::vector<int>",
        ),
        (
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_create(unsigned long&, unsigned long)",
            "char",
        ),
        (
            "void std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_construct<char const*>(char const*, char const*, std::forward_iterator_tag)",
            "char",
        ),
        ("alloc::boxed::Box<a::Node>::new", "a::Node"),
        (
            "<alloc::boxed::Box<dyn core::ops::function::Fn(u8) -> u64>>::new_uninit_in",
            "dyn core::ops::function::Fn(u8) -> u64",
        ),
        (
            "alloc::raw_vec::RawVec<alloc::boxed::Box<a::Node, alloc::alloc::Global>,alloc::alloc::Global>::grow_one",
            "alloc::boxed::Box<a::Node>",
        ),
        ("<alloc::vec::Vec<(u32, alloc::string::String)>>::with_capacity", "(u32, alloc::string::String)"),
        ("<alloc::string::String>::push_str", "u8"),
        ("<alloc::sync::Arc<std::sync::Mutex<u8>>>::new", "alloc::sync::ArcInner<std::sync::Mutex<u8>>"),
        ("grow_one<alloc::string::String, alloc::alloc::Global>", "alloc::string::String"),
    ];
    for (name, of) in exact {
        assert_eq!(of_names(&[name], false), Some((of.to_owned(), Certainty::Exact)), "{name}");
    }
    // these may run the program's code, which is seen only where inlined functions are
    let constructs = [
        ("std::_MakeUniq<Bar>::__single_object std::make_unique<Bar>()", "Bar"),
        (
            "std::__1::unique_ptr<Foo[], std::__1::default_delete<Foo[]>> std::__1::make_unique[abi:ne190107]<Foo []>(unsigned long)",
            "Foo",
        ),
        (
            "void std::vector<Foo, std::allocator<Foo> >::_M_realloc_insert<Foo const&>(__gnu_cxx::__normal_iterator<Foo*, std::vector<Foo, std::allocator<Foo> > >, Foo const&)",
            "Foo",
        ),
        (
            "std::_Rb_tree<int, std::pair<int const, Foo>, std::_Select1st<std::pair<int const, Foo> >, std::less<int>, std::allocator<std::pair<int const, Foo> > >::_M_insert_unique(int)",
            "std::_Rb_tree_node<std::pair<int const, Foo>>",
        ),
        (
            "void std::vector<std::unordered_map<int, int>, std::allocator<std::unordered_map<int, int> > >::_M_realloc_insert<std::unordered_map<int, int> >(int)",
            "std::unordered_map<int, int>",
        ),
        ("std::vector<Foo, std::allocator<Foo> >::reserve(unsigned long)", "Foo"),
        ("<alloc::boxed::Box<a::Node> as core::clone::Clone>::clone", "a::Node"),
        ("<alloc::string::String as core::iter::traits::collect::FromIterator<char>>::from_iter", "u8"),
        ("<alloc::sync::Arc<a::Node>>::new_cyclic::<F>", "alloc::sync::ArcInner<a::Node>"),
        ("<hashbrown::raw::RawTable<(u32, alloc::string::String)>>::reserve_rehash", "(u32, alloc::string::String)"),
        ("<alloc::vec::Vec<u64> as alloc::vec::spec_extend::SpecExtend<u64, I>>::spec_extend", "u64"),
    ];
    for (name, of) in constructs {
        assert_eq!(of_names(&[name], true), Some((of.to_owned(), Certainty::Exact)), "{name}");
        assert_eq!(of_names(&[name], false), Some((of.to_owned(), Certainty::Inferred)), "{name}");
    }
}

#[test]
fn names_of_others_tell_nothing() {
    for name in [
        "go()",
        "main",
        "Pool<Foo>::allocate(unsigned long)",
        "alloc::raw_vec::RawVec<T,A>::reserve::do_reserve_and_handle",
        "alloc::boxed::Box<T>::new",
        "std::allocator<Foo>::~allocator()",
        "std::function<void (int)>::operator()(int) const",
        "std::__new_allocator<Foo",
        "operator<<(std::ostream&, Foo const&)",
        "std::vector<bool, std::allocator<bool> >::_M_insert_aux(std::_Bit_iterator, bool)",
        "",
        "std::_Deque_base<int, std::allocator<int> >::_M_initialize_map(unsigned long)",
    ] {
        assert_eq!(of_names(&[name], true), None, "{name}");
    }
}

#[test]
fn the_first_that_does_not_only_hand_on_tells() {
    let rust = [
        "alloc::alloc::alloc",
        "<alloc::alloc::Global>::alloc_impl_runtime",
        "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
        "alloc::raw_vec::RawVecInner<alloc::alloc::Global>::with_capacity_in",
        "alloc::raw_vec::RawVec<u8,alloc::alloc::Global>::with_capacity_in",
    ];
    assert_eq!(of_names(&rust, true), Some(("u8".to_owned(), Certainty::Exact)));
    // a container that calls the program, which allocates for itself
    let own = ["go()", "std::vector<Foo, std::allocator<Foo> >::resize(unsigned long)"];
    assert_eq!(of_names(&own, true), None);
    assert_eq!(told(callers(&[&rust[..], &["x"]].concat(), true), &mut FxHashMap::default()).1, 4);
}

#[test]
fn lines_of_source_tell_types() {
    for (line, of) in [
        ("  f = new Foo;", "Foo"),
        ("/* the first */ f = new Foo;", "Foo"),
        ("return new ns::Bar<int, 3>(x, y);", "ns::Bar<int, 3>"),
        ("auto p = new (std::nothrow) Baz[7];", "Baz"),
        ("p = new unsigned long[n];", "unsigned long"),
        ("q = (Qux*)malloc(sizeof(Qux));", "Qux"),
        ("struct node *n = calloc(7, sizeof(struct node));", "node"),
        ("s = xmalloc (sizeof (struct sym) * n); // malloc(sizeof(int))", "sym"),
        ("v = (value_t **) malloc(n);", "value_t*"),
        ("v = static_cast<Item *>(malloc(n));", "Item"),
        ("w = g_new0(Widget, 3);", "Widget"),
        ("p = realloc(p, n * sizeof(char *));", "char*"),
    ] {
        for in_template in [false, true] {
            assert_eq!(source::told(line, in_template).as_deref(), Some(of), "{line}");
        }
    }
    // in a template these are its parameters, more likely
    for (line, of) in [("return new T;", "T"), ("p = new _Functor(f);", "_Functor"), ("(A *)malloc(sizeof(A))", "A")] {
        assert_eq!(source::told(line, false).as_deref(), Some(of), "{line}");
        assert_eq!(source::told(line, true), None, "{line}");
    }
    for line in [
        "",
        "x = malloc(n);",
        "/* was: new Foo */ p = pool_get(n);",
        " * new Foo",
        "return new Foo, says it */",
        "x = malloc(sizeof(*x));",
        "x = malloc(sizeof(a.b));",
        "x = malloc(sizeof *x);",
        "x = malloc(sizeof(A) + sizeof(B));",
        "f = new Foo; b = new Bar;",
        "p = ::operator new(sizeof(Foo));",
        "puts(\"new Foo\");",
        "x = (void *)malloc(n);",
        "// new Foo",
        "new",
        "malloc(",
        "malloc(sizeof(",
        "x = new A<",
    ] {
        assert_eq!(source::told(line, false), None, "{line}");
    }
}
