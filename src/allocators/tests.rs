use super::select::{AllocatorSymbol, EntryPoint, Providers};
use super::*;
use crate::base::addr::ModuleId;
use std::collections::{HashMap, HashSet};

fn kind(table: &AllocatorTable, symbol: &str) -> Kind {
    table.get(table.lookup(symbol).unwrap_or_else(|| panic!("{symbol} is not known"))).unwrap().kind
}

/// Their names in the table are what a demangler that is not ours makes of the symbols; families follow from them.
#[test]
fn operators_are_named_as_the_demangler_does() {
    let table = AllocatorTable::new();
    let operators: Vec<_> = table.iter().filter(|(id, _)| table.is_wrapper_candidate(*id)).collect();
    assert_eq!(operators.len(), 8 + 12);
    for (_, function) in operators {
        let demangled = crate::symbols::function_name(&function.symbol).name;
        assert_eq!(*demangled, *function.name);
        let array = demangled.contains("[]");
        assert_eq!(function.family, if array { Family::NewArray } else { Family::New });
        assert_eq!(matches!(function.kind, Kind::Free { ptr: Arg(0), .. }), demangled.starts_with("operator delete"));
    }
    // Every combination that C++17 has (sized forms exist for delete only, and not with nothrow).
    let names: HashSet<_> = table.iter().map(|(_, function)| function.name.clone()).collect();
    for brackets in ["", "[]"] {
        for extra in ["", ", std::nothrow_t const&", ", std::align_val_t", ", std::align_val_t, std::nothrow_t const&"]
        {
            assert!(names.contains(&format!("operator new{brackets}(unsigned long{extra})")));
            assert!(names.contains(&format!("operator delete{brackets}(void*{extra})")));
        }
        assert!(names.contains(&format!("operator delete{brackets}(void*, unsigned long)")));
        assert!(names.contains(&format!("operator delete{brackets}(void*, unsigned long, std::align_val_t)")));
    }
}

#[test]
fn symbols_are_unique_and_found_with_and_without_version() {
    let table = AllocatorTable::new();
    for (id, function) in table.iter() {
        assert_eq!(table.lookup(&function.symbol), Some(id), "{}", function.symbol);
    }
    assert_eq!(table.lookup("malloc@@GLIBC_2.2.5"), table.lookup("malloc"));
    assert_eq!(table.lookup("mallo"), None);
    assert_eq!(table.lookup("__rust_alloc"), None);
}

/// The prototypes as malloc(3), posix_memalign(3), jemalloc(3), mimalloc.h and tcmalloc.h print them.
#[test]
fn arguments_are_where_the_prototypes_have_them() {
    let table = AllocatorTable::new();
    let alloc = |size| Kind::Alloc { size: Arg(size), count: None };
    let expected = [
        ("malloc", alloc(0)),
        ("calloc", Kind::Alloc { size: Arg(1), count: Some(Arg(0)) }),
        ("realloc", Kind::Realloc { old: Arg(0), size: Arg(1), count: None }),
        ("reallocarray", Kind::Realloc { old: Arg(0), size: Arg(2), count: Some(Arg(1)) }),
        ("posix_memalign", Kind::AllocOut { out: Arg(0), size: Arg(2), success: Success::Zero }),
        ("aligned_alloc", alloc(1)),
        ("memalign", alloc(1)),
        ("__libc_memalign", alloc(1)),
        ("valloc", alloc(0)),
        ("free_aligned_sized", Kind::Free { ptr: Arg(0), size: None }),
        ("_ZnwmSt11align_val_t", alloc(0)),
        ("_rjem_sdallocx", Kind::Free { ptr: Arg(0), size: None }),
        ("_rjem_je_mallocx", alloc(0)),
        ("rallocx", Kind::Realloc { old: Arg(0), size: Arg(1), count: None }),
        ("je_xallocx", Kind::ResizeInPlace { old: Arg(0), size: Arg(1) }),
        ("mi_malloc_aligned", alloc(0)),
        ("mi_aligned_alloc", alloc(1)),
        ("mi_heap_malloc_aligned", alloc(1)),
        ("mi_heap_recalloc", Kind::Realloc { old: Arg(1), size: Arg(3), count: Some(Arg(2)) }),
        ("mi__posix_memalign", Kind::AllocOut { out: Arg(0), size: Arg(2), success: Success::Zero }),
        ("tc_newarray_nothrow", alloc(0)),
        ("tc_memalign", alloc(1)),
    ];
    for (symbol, expected) in expected {
        assert_eq!(kind(&table, symbol), expected, "{symbol}");
    }
}

#[test]
fn declarations_say_where_things_are() {
    let symbol = |name: &str| Target::Symbol(name.to_owned());
    let alloc = |spec| AllocatorTable::parse_alloc_fn(spec).unwrap();
    let free = |spec| AllocatorTable::parse_free_fn(spec).unwrap();
    assert_eq!(alloc("get"), Declaration { target: symbol("get"), kind: Kind::Alloc { size: Arg(0), count: None } });
    assert_eq!(alloc("pool_get:size=arg2").kind, Kind::Alloc { size: Arg(1), count: None });
    assert_eq!(alloc("g:size=arg6,count=arg1").kind, Kind::Alloc { size: Arg(5), count: Some(Arg(0)) });
    assert_eq!(alloc("g:result=ret").kind, Kind::Alloc { size: Arg(0), count: None });
    assert_eq!(
        alloc("g:result=arg3, size=arg2").kind,
        Kind::AllocOut { out: Arg(2), size: Arg(1), success: Success::Zero }
    );
    assert_eq!(
        alloc("g:old=arg1,size=arg2,count=arg3").kind,
        Kind::Realloc { old: Arg(0), size: Arg(1), count: Some(Arg(2)) }
    );
    assert_eq!(
        free("pool_put:ptr=arg2"),
        Declaration { target: symbol("pool_put"), kind: Kind::Free { ptr: Arg(1), size: None } }
    );
    assert_eq!(free("pool::put").target, symbol("pool::put"));
    assert_eq!(alloc("pool::get:size=arg2").target, symbol("pool::get"));
    let offset = Target::Offset { module: "libpool.so.1".to_owned(), offset: ObjAddr(0x1a2b) };
    assert_eq!(free("libpool.so.1+0x1a2b:ptr=arg1").target, offset);
    assert_eq!(free("a+0xzz").target, symbol("a+0xzz"));
}

#[test]
fn wrong_declarations_are_refused_with_the_reason() {
    let alloc = |spec| AllocatorTable::parse_alloc_fn(spec).unwrap_err();
    let text = |spec| alloc(spec).to_string();
    for empty in ["", ":size=arg1", "  :size=arg1", "+0x10"] {
        assert!(matches!(alloc(empty), SpecError::EmptyName(_)), "{empty}");
    }
    assert_eq!(text("f:sise=arg1"), "unknown key 'sise' in 'f:sise=arg1'; known are size, count, old, result");
    assert_eq!(text("f:size=arg7"), "'arg7' in 'f:size=arg7' is not an argument; write arg1 to arg6");
    assert_eq!(text("f:result=rax"), "'rax' in 'f:result=rax' is not an argument; write arg1 to arg6 or ret");
    for bad in ["f:size=arg0", "f:size=arg10", "f:size=2", "f:size=", "f:size=ret", "f:size=arg1é"] {
        assert!(matches!(alloc(bad), SpecError::BadArgument { .. }), "{bad}");
    }
    for bad in ["f:", "f:size", "f:size=arg1,"] {
        assert!(matches!(alloc(bad), SpecError::NoValue { .. }), "{bad}");
    }
    assert!(matches!(alloc("f:size=arg1,size=arg2"), SpecError::RepeatedKey { .. }));
    assert!(matches!(alloc("f:result=arg1,count=arg2"), SpecError::Combination(_)));
    assert!(matches!(AllocatorTable::parse_free_fn("f:size=arg1").unwrap_err(), SpecError::UnknownKey { .. }));
}

fn module(id: u32, file_name: &str, symbols: &[(&str, u64)]) -> ModuleSymbols {
    let symbols =
        symbols.iter().map(|(name, addr)| AllocatorSymbol { name: (*name).to_owned(), addr: ObjAddr(*addr), size: 32 });
    ModuleSymbols {
        module: ModuleId(id),
        file_name: file_name.to_owned(),
        soname: None,
        is_c_library: false,
        symbols: symbols.collect(),
    }
}

/// (module, address, name, family)
fn chosen<'a>(table: &'a AllocatorTable, probes: &[EntryPoint]) -> Vec<(u32, u64, &'a str, Option<Family>)> {
    probes.iter().map(|p| (p.module.0, p.addr.0, table.name(p.function), p.family)).collect()
}

const MALLOC: Option<Family> = Some(Family::Malloc);

/// Names and addresses of glibc 2.36 and libstdc++ 12 of Debian.
fn glibc(id: u32) -> ModuleSymbols {
    module(
        id,
        "libc.so.6",
        &[
            ("__libc_free", 0x98ef0),
            ("cfree@GLIBC_2.2.5", 0x98ef0),
            ("free@@GLIBC_2.2.5", 0x98ef0),
            ("__libc_malloc@@GLIBC_2.2.5", 0x98930),
            ("malloc@@GLIBC_2.2.5", 0x98930),
            ("__libc_memalign", 0x99610),
            ("memalign", 0x99610),
            ("aligned_alloc", 0x99610),
            ("printf", 0x50000),
        ],
    )
}

fn libstdcxx(id: u32) -> ModuleSymbols {
    module(id, "libstdc++.so.6", &[("_Znwm", 0xa9570), ("_ZdlPv", 0xa78d0), ("_Znam", 0xa95d0)])
}

#[test]
fn t20_aliases_are_one_function_and_wrappers_get_no_probe() {
    let table = AllocatorTable::new();
    let providers = table.select_providers(&[libstdcxx(1), glibc(2)]);
    assert_eq!(
        chosen(&table, &providers.probes),
        [(2, 0x98930, "malloc", MALLOC), (2, 0x98ef0, "free", MALLOC), (2, 0x99610, "aligned_alloc", MALLOC)]
    );
    assert_eq!(
        chosen(&table, &providers.wrappers),
        [
            (1, 0xa78d0, "operator delete(void*)", Some(Family::New)),
            (1, 0xa9570, "operator new(unsigned long)", Some(Family::New)),
            (1, 0xa95d0, "operator new[](unsigned long)", Some(Family::NewArray)),
        ]
    );
}

#[test]
fn operators_that_pass_on_get_a_probe_if_they_are_told_more() {
    let names =
        ["_ZdlPv", "_ZdlPvm", "_ZdlPvmSt11align_val_t", "_ZdlPvSt11align_val_t", "_Znwm", "_ZnwmSt11align_val_t"];
    let places = [0x100, 0x200, 0x300, 0x400, 0x500, 0x600];
    let sized = module(1, "libstdc++.so.6", &std::array::from_fn::<_, 6, _>(|n| (names[n], places[n])));
    let jemalloc = module(3, "libjemalloc.so.2", &[("malloc", 0x100), ("_ZdlPvm", 0x200)]);
    let mut table = AllocatorTable::new();
    let modules = [sized, glibc(2), jemalloc];
    let before = table.select_providers(&modules);
    let told =
        |providers: &Providers| providers.told.iter().map(|probe| (probe.module.0, probe.addr.0)).collect::<Vec<_>>();
    assert_eq!(told(&before), [(1, 0x600)], "aligned operator new, always");
    table.watch_deletes();
    let providers = table.select_providers(&modules);
    assert_eq!(told(&providers), [(1, 0x200), (1, 0x300), (1, 0x400), (1, 0x600)]);
    assert_eq!((providers.probes, providers.wrappers), (before.probes, before.wrappers), "all else stays as it is");
}

#[test]
fn every_allocator_of_the_process_gets_probes() {
    let table = AllocatorTable::new();
    let jemalloc = module(
        1,
        "libjemalloc.so.2",
        &[("malloc", 0x23910), ("_Znwm", 0xade30), ("_ZdlPv", 0xae0d0), ("free", 0x27c60), ("mallocx", 0x294e0)],
    );
    let with_prefix = module(3, "app", &[("_rjem_malloc", 0x100), ("_rjem_sdallocx", 0x200), ("_Znwm", 0x300)]);
    let providers = table.select_providers(&[with_prefix, jemalloc, glibc(2)]);
    let probes = chosen(&table, &providers.probes);
    assert!(probes.contains(&(1, 0xade30, "operator new(unsigned long)", Some(Family::New))), "{probes:?}");
    assert!(probes.contains(&(1, 0x294e0, "mallocx", Some(Family::Other))));
    assert!(probes.contains(&(2, 0x98930, "malloc", MALLOC)));
    assert!(probes.contains(&(3, 0x100, "_rjem_malloc", Some(Family::Other))));
    assert_eq!(chosen(&table, &providers.wrappers).iter().map(|w| (w.0, w.1)).collect::<Vec<_>>(), [(3, 0x300)]);
}

#[test]
fn where_families_share_an_address_none_is_claimed() {
    let table = AllocatorTable::new();
    let tcmalloc = module(
        1,
        "libtcmalloc.so.4",
        &[
            ("tc_free", 0x10),
            ("_ZdlPv", 0x10),
            ("free", 0x10),
            ("tc_malloc", 0x20),
            ("malloc", 0x20),
            ("tc_new", 0x30),
            ("_Znwm", 0x30),
        ],
    );
    let providers = table.select_providers(&[tcmalloc]);
    assert_eq!(
        chosen(&table, &providers.probes),
        [
            (1, 0x10, "free", None),
            (1, 0x20, "malloc", MALLOC),
            (1, 0x30, "operator new(unsigned long)", Some(Family::New))
        ]
    );
}

#[test]
fn the_dynamic_linker_is_no_provider_except_where_it_is_the_c_library() {
    let table = AllocatorTable::new();
    let symbols = [("malloc", 0x10), ("__libc_memalign", 0x20)];
    let providers = table.select_providers(&[module(1, "ld-linux-x86-64.so.2", &symbols)]);
    assert_eq!(providers, Providers::default());
    let by_soname = ModuleSymbols { soname: Some("ld-linux-x86-64.so.2".into()), ..module(1, "ld-2.31.so", &symbols) };
    assert_eq!(table.select_providers(&[by_soname]), Providers::default());
    assert_eq!(table.select_providers(&[module(1, "ld-musl-x86_64.so.1", &symbols)]).probes.len(), 2);
}

#[test]
fn symbols_without_size_are_not_trusted() {
    let table = AllocatorTable::new();
    let mut libc = glibc(1);
    libc.symbols.iter_mut().for_each(|symbol| symbol.size = 0);
    assert_eq!(table.select_providers(&[libc]), Providers::default());
}

#[test]
fn declared_functions_are_found_by_symbol_and_by_offset() {
    let mut table = AllocatorTable::new();
    let get = table.declare(AllocatorTable::parse_alloc_fn("pool_get:size=arg2").unwrap());
    let put = table.declare(AllocatorTable::parse_free_fn("libpool.so+0x40:ptr=arg2").unwrap());
    assert!(table.is_declared(get) && table.is_declared(put));
    assert!(!table.is_declared(table.lookup("malloc").unwrap()));
    assert_eq!(table.name(put), "libpool.so+0x40");
    let pool = module(1, "libpool.so", &[("pool_get", 0x10), ("malloc", 0x40)]);
    let other = module(2, "libother.so", &[("pool_get", 0x70)]);
    let probes: HashMap<_, _> = table
        .select_providers(&[pool, other])
        .probes
        .iter()
        .map(|probe| ((probe.module.0, probe.addr.0), probe.function))
        .collect();
    assert_eq!(probes, HashMap::from([((1, 0x10), get), ((1, 0x40), put), ((2, 0x70), get)]));
    // A built-in name may be redefined.
    let malloc = table.declare(AllocatorTable::parse_alloc_fn("malloc:size=arg3").unwrap());
    assert_eq!(table.lookup("malloc"), Some(malloc));
}

/// mmap and its kin are there only if they are asked for, and only the C library's.
#[test]
fn mappings_are_told_by_the_c_library() {
    let table = AllocatorTable::new();
    assert!(builtin::MAPPINGS.iter().all(|(symbol, _)| table.lookup(symbol).is_none()));
    let mut table = table.with_mappings();
    let declared = table.declare(AllocatorTable::parse_alloc_fn("pool_get").unwrap());
    let [brk, mmap] = ["brk", "mmap"].map(|name| table.lookup(name).unwrap());
    assert!(
        table.is_declared(declared) && !table.is_declared(brk) && table.is_mapping(brk) && !table.is_mapping(declared)
    );
    let symbol = |name: &str, addr| AllocatorSymbol { name: name.to_owned(), addr: ObjAddr(addr), size: 8 };
    let module = |id, file: &str, symbols| ModuleSymbols {
        is_c_library: false,
        module: ModuleId(id),
        file_name: file.to_owned(),
        soname: None,
        symbols,
    };
    let app = module(0, "app", vec![symbol("brk", 16), symbol("malloc", 32)]);
    let names =
        [("malloc", 16), ("munmap@@GLIBC_2.2.5", 32), ("__mmap", 48), ("mmap64", 48), ("mmap", 48), ("brk", 64)];
    let libc = module(1, "libc.so.6", names.map(|(name, at)| symbol(name, at)).to_vec());
    let providers = table.select_providers(&[app, libc]);
    let probes: Vec<(u32, u64, &str, Option<Family>)> =
        providers.probes.iter().map(|p| (p.module.0, p.addr.0, table.name(p.function), p.family)).collect();
    let (malloc, mapping) = (Some(Family::Malloc), Some(Family::Mapping));
    let expected = [
        (0, 32, "malloc", malloc),
        (1, 16, "malloc", malloc),
        (1, 32, "munmap", mapping),
        (1, 48, "mmap", mapping),
        (1, 64, "brk", mapping),
    ];
    assert_eq!(probes, expected);
    assert_eq!(table.name(mmap), "mmap");
    // those that profiles name
    for (_, function) in table.iter().filter(|(id, _)| table.is_mapping(*id)) {
        let canonical = function.name.trim_start_matches("__").trim_end_matches("64");
        assert!(crate::profile::mapped::FUNCTIONS.contains(&canonical), "{canonical}");
    }
}

/// What calls brk in a program that holds the C library.
#[test]
fn sbrk_is_found_by_its_symbol() {
    let symbol = |name: &str, addr| AllocatorSymbol { name: name.to_owned(), addr: ObjAddr(addr), size: 16 };
    let symbols = vec![symbol("brk", 16), symbol("__sbrk", 32), symbol("sbrk@@GLIBC_2.2.5", 32), symbol("malloc", 48)];
    let module =
        ModuleSymbols { module: ModuleId(0), file_name: "app".to_owned(), soname: None, is_c_library: false, symbols };
    let table = AllocatorTable::new();
    assert!(!table.is_sbrk_at(&module, ObjAddr(32)), "nobody has asked for it");
    let table = table.with_mappings();
    let found: Vec<u64> = (0..80).filter(|at| table.is_sbrk_at(&module, ObjAddr(*at))).collect();
    assert_eq!(found, (32..48).collect::<Vec<u64>>());
}

/// An allocator's own strdup uses what is inside of it; the C library's calls malloc.
#[test]
fn functions_that_return_texts_are_probed_where_an_allocator_brings_them() {
    let table = AllocatorTable::new();
    let names =
        [("malloc", 0x100), ("strdup", 0x200), ("realpath", 0x300), ("__asprintf_chk", 0x400), ("getline", 0x500)];
    let probed = |module: ModuleSymbols| -> Vec<u64> {
        table.select_providers(&[module]).probes.iter().map(|probe| probe.addr.0).collect()
    };
    assert_eq!(probed(module(1, "libbrings.so", &names)), [0x100, 0x200, 0x300, 0x400, 0x500]);
    let libc = ModuleSymbols { is_c_library: true, ..module(1, "libc.so.6", &names) };
    assert_eq!(probed(libc), [0x100]);
    // a static program with mimalloc, whose strdup has both names, and the C library's realpath
    let both = [("malloc", 0x100), ("strdup", 0x200), ("mi_strdup", 0x200), ("realpath", 0x300)];
    let program = ModuleSymbols { is_c_library: true, ..module(1, "app", &both) };
    assert_eq!(probed(program), [0x100, 0x200]);
    // a library with a strdup and no malloc calls somebody's
    assert_eq!(probed(module(1, "libtext.so", &names[1..])), [0; 0]);
}
