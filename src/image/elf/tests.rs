use super::testing::{TempDir, tool};
use super::*;
use crate::image::maps;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PROGRAM: &str = "
#include <stdio.h>
int answer = 42;
__attribute__((noinline)) static int helper(int x) { return x + 1; }
int visible(int x) { return helper(x) * 2; }
int main(void) { printf(\"%d\", visible(answer)); return 0; }
";

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// The lines of `readelf` that hold all the words.
fn readelf(option: &str, path: &Path, words: &[&str]) -> Vec<String> {
    let output = tool("readelf", &["-W", option, path.to_str().unwrap()]);
    output.lines().filter(|l| words.iter().all(|w| l.contains(w))).map(str::to_owned).collect()
}

type Functions = BTreeSet<(String, u64, u64)>;

/// Defined functions (name, address, size) as readelf lists them.
fn functions_by_readelf(path: &Path, table: Table) -> Functions {
    let wanted = if table == Table::Symtab { "'.symtab'" } else { "'.dynsym'" };
    let mut here = false;
    let mut found = BTreeSet::new();
    for line in readelf("--syms", path, &[]) {
        if line.starts_with("Symbol table") {
            here = line.contains(wanted);
        }
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[_, value, size, kind, _, _, section, name, ..] = fields.as_slice() else { continue };
        if !here || !matches!(kind, "FUNC" | "IFUNC") || matches!(section, "UND" | "ABS") {
            continue;
        }
        let size = size.strip_prefix("0x").map_or_else(|| size.parse(), |hex| u64::from_str_radix(hex, 16)).unwrap();
        let name = if table == Table::Dynsym { base_name(name) } else { name };
        found.insert((name.to_owned(), u64::from_str_radix(value, 16).unwrap(), size));
    }
    found
}

fn functions(elf: &Elf<'_>, table: Table) -> Functions {
    elf.symbols().filter(|s| s.table == table).map(|s| (s.name.into_owned(), s.addr.0, s.size)).collect()
}

#[track_caller]
fn assert_same(ours: &Functions, theirs: &Functions, what: &dyn std::fmt::Debug) {
    let mut different = ours.symmetric_difference(theirs).peekable();
    assert!(different.peek().is_none(), "{what:?}: {:?}", different.take(10).collect::<Vec<_>>());
}

/// Each module of this process with its path.
fn own_modules() -> Vec<maps::MappedModule> {
    maps::modules(&maps::parse(&read("/proc/self/maps".as_ref())).unwrap())
}

fn memory_of(module: &maps::MappedModule) -> Vec<u8> {
    let memory = fs::File::open("/proc/self/mem").unwrap();
    let mut bytes = vec![0; usize::try_from(module.end().0 - module.start().0).unwrap()];
    for segment in module.segments.iter().filter(|s| s.perms.read) {
        let at = usize::try_from(segment.start.0 - module.start().0).unwrap();
        let size = usize::try_from(segment.size()).unwrap();
        memory.read_exact_at(&mut bytes[at..at + size], segment.start.0).unwrap();
    }
    bytes
}

fn own_libc() -> maps::MappedModule {
    own_modules().into_iter().find(|m| m.path.to_string_lossy().contains("libc.so")).unwrap()
}

#[test]
fn headers_and_symbols_agree_with_readelf() {
    let dir = TempDir::new("elf-headers");
    let dynamic = dir.compile("cc", "dynamic", PROGRAM, &["-O1", "-g", "-Wl,--build-id"]);
    let fixed = dir.compile("cc", "fixed", PROGRAM, &["-O1", "-no-pie", "-static", "-Wl,--build-id"]);
    for path in [&dynamic, &fixed, &std::env::current_exe().unwrap(), &own_libc().path] {
        let bytes = read(path);
        let elf = Elf::parse(&bytes).unwrap();
        assert_same(&functions(&elf, Table::Symtab), &functions_by_readelf(path, Table::Symtab), path);
        assert_same(&functions(&elf, Table::Dynsym), &functions_by_readelf(path, Table::Dynsym), path);
        let id = readelf("-n", path, &["Build ID"]);
        assert_eq!(elf.build_id_hex().as_deref(), id.first().and_then(|l| l.split_whitespace().last()));
        let entry = readelf("-h", path, &["Entry point"]);
        assert!(entry[0].ends_with(&format!("{:#x}", elf.entry().0)), "{entry:?}");
        assert_eq!(elf.segments().count(), readelf("-l", path, &[" LOAD "]).len());
        let interpreter = readelf("-l", path, &["interpreter"]);
        assert_eq!(elf.interpreter().is_some(), !interpreter.is_empty(), "{path:?}");
        let needed: Vec<_> = elf.needed().into_iter().map(|n| format!("[{}]", n.display())).collect();
        let expected = readelf("-d", path, &["(NEEDED)"]);
        assert_eq!(needed, expected.iter().map(|l| l.split_whitespace().last().unwrap()).collect::<Vec<_>>());
    }
    let bytes = read(&fixed);
    let elf = Elf::parse(&bytes).unwrap();
    assert!(elf.is_static());
    assert!(elf.symbols().any(|s| s.kind == SymbolKind::IndirectFunction), "static glibc has indirect functions");
    let bytes = read(&dynamic);
    let elf = Elf::parse(&bytes).unwrap();
    assert!(!elf.is_static());
    assert_eq!(elf.find_symbol("answer").unwrap().kind, SymbolKind::Object);
    assert_eq!(elf.find_symbol("helper").unwrap().binding, Binding::Local);
    let libc = read(&own_libc().path);
    assert_eq!(Elf::parse(&libc).unwrap().soname().unwrap(), "libc.so.6");
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let dir = TempDir::new("elf-refused");
    let object = dir.compile("cc", "object.o", PROGRAM, &["-c"]);
    assert_eq!(Elf::parse(&read(&object)).unwrap_err(), ElfError::Type(1));
    assert_eq!(Elf::parse(b"#!/bin/sh\n").unwrap_err(), ElfError::NotElf);
    let program = dir.compile("cc", "program", PROGRAM, &[]);
    let patched = |at: usize, value: u8| {
        let mut bytes = read(&program);
        bytes[at] = value;
        Elf::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(patched(4, 1), ElfError::X32);
    assert_eq!(patched(18, 183), ElfError::Machine(183));
    let mut arm32 = read(&program);
    (arm32[4], arm32[18]) = (1, 40);
    assert_eq!(Elf::parse(&arm32).unwrap_err(), ElfError::Class32);
    assert!(matches!(Elf::parse(&read(&program)[..80]).unwrap_err(), ElfError::Damaged(_)));
}

#[test]
fn sections_are_uncompressed() {
    let dir = TempDir::new("elf-compressed");
    let plain = dir.compile("cc", "plain", PROGRAM, &["-g"]);
    let bytes = read(&plain);
    let expected = Elf::parse(&bytes).unwrap().sections().data(".debug_info").unwrap().unwrap();
    for kind in ["zlib", "zlib-gnu", "zstd"] {
        let out = dir.join(kind);
        let option = format!("--compress-debug-sections={kind}");
        tool("objcopy", &[&option, plain.to_str().unwrap(), out.to_str().unwrap()]);
        let bytes = read(&out);
        let elf = Elf::parse(&bytes).unwrap();
        assert!(bytes.len() < read(&plain).len(), "{kind}: not compressed");
        assert_eq!(elf.sections().data(".debug_info").unwrap().unwrap(), expected, "{kind}");
        assert_eq!(elf.sections().unpacked_size(".debug_info"), expected.len() as u64, "{kind}");
    }
    assert_eq!(Elf::parse(&bytes).unwrap().sections().unpacked_size(".debug_info"), 0);
    assert_eq!(Elf::parse(&bytes).unwrap().sections().data(".nothing").unwrap(), None);
}

#[test]
fn programs_are_told_from_libraries() {
    let dir = TempDir::new("elf-programs");
    let executed = format!(
        "{PROGRAM} const char interpreter[] __attribute__((section(\".interp\"))) = \"/lib64/ld-linux-x86-64.so.2\";"
    );
    let is_program = |name: &str, source: &str, flags: &[&str]| {
        Elf::parse(&read(&dir.compile("cc", name, source, flags))).unwrap().is_program()
    };
    for flag in ["-no-pie", "-pie", "-static-pie"] {
        assert!(is_program(&flag[1..], PROGRAM, &[flag]), "{flag}");
    }
    assert!(!is_program("library", PROGRAM, &["-shared", "-fPIC"]));
    // what an older linker makes of a program: nothing but its dynamic linker says so
    assert!(is_program("silent", &executed, &["-shared", "-fPIC"]));
    // a library that can be executed, as glibc is
    assert!(!is_program("executed", &executed, &["-shared", "-fPIC", "-Wl,-soname,executed.so"]));
}

#[test]
fn debug_links_are_read() {
    let dir = TempDir::new("elf-links");
    let program = dir.compile("cc", "program", PROGRAM, &["-g"]);
    let debug = dir.join("program.debug");
    let (program_name, debug_name) = (program.to_str().unwrap(), debug.to_str().unwrap());
    tool("objcopy", &["--only-keep-debug", program_name, debug_name]);
    tool("objcopy", &["--strip-debug", &format!("--add-gnu-debuglink={debug_name}"), program_name]);
    let bytes = read(&program);
    let elf = Elf::parse(&bytes).unwrap();
    let link = elf.debug_link().unwrap();
    assert_eq!(link.name, b"program.debug");
    let mut crc = flate2::Crc::new();
    crc.update(&read(&debug));
    assert_eq!(link.crc, crc.sum());
    // The debug file is an object too, without the bytes of its code.
    let bytes = read(&debug);
    let debug = Elf::parse(&bytes).unwrap();
    assert_eq!(debug.build_id(), elf.build_id());
    assert!(debug.sections().has(".debug_info") && !debug.sections().has(".text"));
    assert_eq!(elf.debug_alt_link(), None);
}

#[test]
fn the_bias_is_what_the_loader_says() {
    use findshlibs::SharedLibrary;
    let modules = own_modules();
    let mut seen = 0;
    findshlibs::TargetSharedLibrary::each(|library| {
        let path = if library.name().is_empty() { std::env::current_exe().unwrap() } else { library.name().into() };
        let Ok(path) = path.canonicalize() else { return };
        let Some(module) = modules.iter().find(|m| m.path == path) else { return };
        let bytes = read(&path);
        let bias = Elf::parse(&bytes).unwrap().load_bias(&module.segments);
        assert_eq!(bias, Some(LoadBias(library.virtual_memory_bias().0 as u64)), "{path:?}");
        seen += 1;
    });
    assert!(seen >= 3, "the test program, libc and the dynamic linker");
}

#[test]
fn the_vdso_is_read_from_memory() {
    let vdso = own_modules().into_iter().find(maps::MappedModule::is_vdso).unwrap();
    let bytes = memory_of(&vdso);
    let elf = Elf::parse_memory(&bytes, vdso.start()).unwrap();
    // Written to a file it is a whole ELF file, with sections.
    let dir = TempDir::new("elf-vdso");
    let file = dir.join("vdso.so");
    fs::write(&file, &bytes).unwrap();
    let expected = functions_by_readelf(&file, Table::Dynsym);
    assert!(expected.iter().any(|(name, ..)| name == "__vdso_clock_gettime"), "{expected:?}");
    assert_same(&functions(&elf, Table::Dynsym), &expected, &file);
    assert_eq!(elf.load_bias(&vdso.segments), Some(LoadBias(vdso.start().0)));
    let sections = elf.unwind_sections();
    let whole = Elf::parse(&bytes).unwrap();
    assert_eq!(elf.build_id(), whole.build_id());
    let expected = whole.sections().loaded(".eh_frame").unwrap();
    let eh_frame = sections.eh_frame.unwrap();
    assert_eq!(eh_frame.addr, expected.addr);
    assert!(eh_frame.bytes.starts_with(&expected.bytes));
}

#[test]
fn a_library_read_from_memory_has_the_file_s_dynamic_symbols() {
    let module = own_libc();
    let (image, file) = (memory_of(&module), read(&module.path));
    let (memory, file) = (Elf::parse_memory(&image, module.start()).unwrap(), Elf::parse(&file).unwrap());
    assert_same(&functions(&memory, Table::Dynsym), &functions(&file, Table::Dynsym), &module.path);
    assert_eq!(memory.soname(), file.soname());
    assert_eq!(memory.build_id(), file.build_id());
    assert_eq!(memory.load_bias(&[]), file.load_bias(&module.segments));
    let (a, b) = (memory.unwind_sections(), file.unwind_sections());
    assert_eq!(a.eh_frame_hdr.unwrap().bytes, b.eh_frame_hdr.unwrap().bytes);
    assert_eq!(a.eh_frame.as_ref().unwrap().addr, b.eh_frame.as_ref().unwrap().addr);
    assert!(a.eh_frame.unwrap().bytes.starts_with(&b.eh_frame.unwrap().bytes));
}

#[test]
fn without_section_headers_the_program_headers_do() {
    let path = own_libc().path;
    let whole = read(&path);
    let mut cut = whole.clone();
    // e_shoff at 40, e_shnum at 60, e_shstrndx at 62.
    cut[40..48].fill(0);
    cut[60..64].fill(0);
    let (whole, cut) = (Elf::parse(&whole).unwrap(), Elf::parse(&cut).unwrap());
    assert_same(&functions(&cut, Table::Dynsym), &functions(&whole, Table::Dynsym), &path);
    assert_eq!(cut.build_id(), whole.build_id());
    assert_eq!(cut.unwind_sections().eh_frame.unwrap().addr, whole.unwind_sections().eh_frame.unwrap().addr);
}

#[test]
fn slack_lies_behind_the_code_and_within_its_page() {
    let bytes = read(&own_libc().path);
    let elf = Elf::parse(&bytes).unwrap();
    let slack = elf.executable_slack();
    assert_eq!(slack.len(), 1);
    let code = elf.segments().find(|s| s.execute).unwrap();
    assert_eq!(slack[0].addr, code.end());
    assert_eq!((slack[0].addr.0 + slack[0].size) % PAGE_SIZE, 0);
    assert!(slack[0].size < PAGE_SIZE);
}

fn exercise(elf: &Elf<'_>) {
    let _ = elf.all_symbols().count();
    let _ = (elf.build_id_hex(), elf.debug_link(), elf.debug_alt_link(), elf.interpreter(), elf.needed(), elf.soname());
    let _ = (elf.unwind_sections(), elf.executable_slack(), elf.sections().data(".debug_info"));
    let _ = elf.load_bias(&[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_files_do_not_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40), cut in any::<prop::sample::Index>(), whole in any::<bool>()) {
        use std::sync::OnceLock;
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        let bytes = BYTES.get_or_init(|| {
            read(&TempDir::new("elf-damaged").compile("cc", "program", PROGRAM, &["-g", "-gz=zlib"]))
        });
        let mut bytes = bytes.clone();
        for (at, value) in changes {
            // Most changes hit the headers, the sections and the dynamic table.
            let n = at.index(bytes.len());
            let n = if value % 3 == 0 { n } else if value % 3 == 1 { n % 1024 } else { bytes.len() - 1 - n % 4096 };
            bytes[n] = value;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(elf) = Elf::parse(&bytes) {
            exercise(&elf);
        }
        if let Ok(elf) = Elf::parse_memory(&bytes, Addr(0x7f00_0000_0000)) {
            exercise(&elf);
        }
    }
}

/// As nm tells which symbols are defined: whole names only, in whichever table, and none that are only imported.
#[test]
fn a_defined_name_is_found_whole() {
    let dir = TempDir::new("defines");
    let source = "#include <stdio.h>\nint whole_name_longer(void) { return 1; }\nint whole_name(void) { return 2; }\n\
                  static int __attribute__((used)) local_one(void) { return 3; }\n\
                  int main(void) { return puts(\"\") + whole_name() + whole_name_longer(); }\n";
    let program = dir.compile("cc", "program", source, &["-rdynamic"]);
    let stripped = dir.join("stripped");
    tool("strip", &[program.to_str().unwrap(), "-o", stripped.to_str().unwrap()]);
    for (path, options) in [(&program, &["--defined-only"][..]), (&stripped, &["--defined-only", "-D"])] {
        let listed = tool("nm", &[options, &[path.to_str().unwrap()]].concat());
        let is_listed = |name: &str| listed.lines().any(|line| line.split_whitespace().last() == Some(name));
        let bytes = read(path);
        let elf = Elf::parse(&bytes).unwrap();
        for name in ["whole_name", "whole_name_longer", "local_one", "whole_nam", "hole_name", "puts", "main", "m"] {
            assert_eq!(elf.defines_any(&[name]), is_listed(name), "{name} in {}", path.display());
        }
        assert!(elf.defines_any(&["absent", "whole_name"]) && !elf.defines_any(&["absent"]) && is_listed("whole_name"));
    }
}
