use super::*;
use crate::image::elf::testing::{TempDir, tool};
use crate::image::elf::{Symbol, Table};
use crate::image::maps;
use std::fs;
use std::path::Path;

mod builds;
mod units;

const INLINES: &str = "
#include <string>
#include <cstdio>
namespace shapes {
struct Box {
    int side;
    template <typename T> __attribute__((always_inline)) inline T grown(T by) const { return static_cast<T>(side) * by + 1; }
    int volume(int by) const;
};
static inline __attribute__((always_inline)) int twice(int x) { return x * 2 + std::puts(\"twice\"); }
__attribute__((noinline)) int Box::volume(int by) const {
    int once = grown(by);
    return twice(once) - twice(by);
}
namespace { __attribute__((noinline)) int hidden(const Box &box) { return box.volume(3) + 1; } }
}
extern \"C\" __attribute__((noinline)) int plain(int n) { return shapes::hidden(shapes::Box{n}) + 5; }
int main(int argc, char **) { return plain(argc); }
";

fn source(path: &Path) -> ModuleSource {
    ModuleSource { path: path.to_owned(), ..ModuleSource::default() }
}

fn resolve_with(search: Search, source: ModuleSource, addrs: &[ObjAddr]) -> (Resolution, Vec<String>) {
    let mut symbolizer = Symbolizer::new(search);
    symbolizer.add_module(ModuleId(0), source);
    let resolution = symbolizer.resolve(ModuleId(0), addrs);
    assert_eq!(resolution.frames.len(), addrs.len());
    (resolution, symbolizer.take_warnings())
}

/// Our answer in the form of `addr2line -i -f`.
fn ours(frames: &[SymFrame]) -> Vec<(String, String)> {
    frames
        .iter()
        .map(|f| {
            let name = f.function.as_ref().map_or("??", |n| n.system_name.as_ref()).to_owned();
            let file = f.file.as_deref().unwrap_or("??");
            (name, format!("{file}:{}", if f.line == 0 { "?".to_owned() } else { f.line.to_string() }))
        })
        .collect()
}

/// binutils' answer for each address.
fn addr2line(program: &Path, addrs: &[ObjAddr]) -> Vec<Vec<(String, String)>> {
    let mut arguments = vec!["-a".to_owned(), "-i".into(), "-f".into(), "-e".into(), program.to_str().unwrap().into()];
    arguments.extend(addrs.iter().map(ToString::to_string));
    let output = tool("addr2line", &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut answers: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            answers.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        answers.last_mut().unwrap().push((line.to_owned(), place.to_owned()));
    }
    answers
}

/// Every instruction of a function.
fn instructions(program: &Path, function: &Symbol<'_>) -> Vec<ObjAddr> {
    let (start, stop) = (format!("--start-address={}", function.addr), function.addr.0 + function.size);
    let output = tool("objdump", &["-d", &start, &format!("--stop-address={stop:#x}"), program.to_str().unwrap()]);
    let addresses = output.lines().filter_map(|line| u64::from_str_radix(line.trim().split_once(":\t")?.0, 16).ok());
    addresses.map(ObjAddr).collect()
}

fn instructions_of(program: &Path, names: &[&str]) -> Vec<ObjAddr> {
    let bytes = fs::read(program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let mut all: Vec<ObjAddr> = elf
        .symbols()
        .filter(|s| s.table == Table::Symtab && names.iter().any(|n| s.name.contains(n)))
        .flat_map(|s| instructions(program, &s))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Whose code a line of [`INLINES`] is.
fn function_of_line(line: usize) -> &'static str {
    let text = INLINES.lines().nth(line - 1).unwrap();
    let first =
        ["grown(T by)", "twice(int", "hidden(const", "plain(int", "main("].into_iter().find(|n| text.contains(n));
    first.map_or("volume", |n| n.split('(').next().unwrap())
}

const NAMES: [&str; 4] = ["volume", "hidden", "plain", "main"];

#[test]
fn inlines_and_lines_agree_with_addr2line() {
    let dir = TempDir::new("symbols-inlines");
    for (name, options) in [
        ("dwarf5", &["-g", "-O2"][..]),
        ("dwarf4", &["-gdwarf-4", "-O1"]),
        ("compressed", &["-g", "-O2", "-gz"]),
        ("unoptimized", &["-g", "-O0"]),
        ("sections", &["-g", "-O2", "-ffunction-sections", "-no-pie"]),
    ] {
        let program = dir.compile("c++", name, INLINES, options);
        let addrs = instructions_of(&program, &NAMES);
        assert!(addrs.len() > 20, "{addrs:?}");
        let (resolution, warnings) = resolve_with(Search::default(), source(&program), &addrs);
        assert_eq!(warnings, Vec::<String>::new());
        let expected = addr2line(&program, &addrs);
        for ((addr, frames), expected) in addrs.iter().zip(&resolution.frames).zip(expected) {
            let frames = ours(frames);
            let places = |frames: &[(String, String)]| frames.iter().map(|f| f.1.clone()).collect::<Vec<_>>();
            assert_eq!(places(&frames), places(&expected), "{name} {addr}");
            assert_eq!(frames.last().unwrap().0, expected.last().unwrap().0, "{name} {addr}");
            // binutils 2.40 repeats the outer name for inlined functions without a linkage name: the source tells
            // these.
            for (function, place) in &frames {
                let line: usize = place.rsplit_once(':').unwrap().1.parse().unwrap();
                assert!(function.contains(function_of_line(line)), "{name} {addr}: {function} at {place}");
            }
        }
        assert!(name == "unoptimized" || resolution.frames.iter().any(|f| f.len() > 1), "{name} has no inlines");
        let all = SymbolStatus { functions: true, files: true, lines: true, inlines: true };
        assert_eq!(resolution.status, all);
    }
}

#[test]
fn declarations_have_their_lines() {
    let dir = TempDir::new("symbols-declared");
    let program = dir.compile("c++", "program", INLINES, &["-g", "-O2"]);
    let (resolution, _) = resolve_with(Search::default(), source(&program), &instructions_of(&program, &["volume"]));
    let declared = |name: &str| {
        let number = INLINES.lines().position(|l| l.contains(name)).unwrap() + 1;
        u32::try_from(number).unwrap()
    };
    let mut seen = 0;
    for frame in resolution.frames.iter().flatten() {
        let expected = match frame.function.as_ref().unwrap().name.as_ref() {
            "shapes::Box::volume(int) const" => declared("int Box::volume"),
            name if name.contains("twice") => declared("int twice(int x)"),
            name if name.contains("grown") => declared("T grown(T by)"),
            other => panic!("{other}"),
        };
        assert_eq!(frame.start_line, expected, "{frame:?}");
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn a_stripped_program_is_named_by_its_separate_debug_file() {
    let dir = TempDir::new("symbols-separate");
    let program = dir.compile("c++", "program", INLINES, &["-g", "-O2", "-Wl,--build-id=0xabcdef0123"]);
    let addrs = instructions_of(&program, &NAMES);
    let (whole, _) = resolve_with(Search::default(), source(&program), &addrs);
    let place = dir.join(".build-id/ab/cdef0123.debug");
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    let name = program.to_str().unwrap();
    tool("objcopy", &["--only-keep-debug", "--compress-debug-sections=zstd", name, place.to_str().unwrap()]);
    tool("strip", &[name]);
    let (stripped, warnings) = resolve_with(Search::default(), source(&program), &addrs);
    assert_eq!((&stripped.status, warnings), (&SymbolStatus::default(), vec![]));
    assert!(stripped.frames.iter().all(Vec::is_empty), "stripped: no names rather than wrong ones");

    let search = || Search { debug_dirs: vec![dir.path().to_owned()], ..Search::default() };
    let (separate, warnings) = resolve_with(search(), source(&program), &addrs);
    assert_eq!((&separate, warnings), (&whole, vec![]));

    // Replaced by another program: not used, but the debug file of the old one still is.
    fs::copy("/bin/true", &program).unwrap();
    let old = ModuleSource { build_id: Some("abcdef0123".into()), ..source(&program) };
    let (replaced, warnings) = resolve_with(search(), old, &addrs);
    assert_eq!(replaced, whole);
    assert!(warnings[0].contains("build id differs"), "{warnings:?}");
}

#[test]
fn bare_dwarf_names_give_way_to_mangled_symbols() {
    let dir = TempDir::new("symbols-bare");
    let program = dir.compile("clang++", "program.cc", INLINES, &["-x", "c++", "-gline-tables-only", "-O1"]);
    let (resolution, _) = resolve_with(Search::default(), source(&program), &instructions_of(&program, &["volume"]));
    for frames in &resolution.frames {
        let outermost = frames.last().unwrap();
        assert_eq!(&*outermost.function.as_ref().unwrap().name, "shapes::Box::volume(int) const");
        assert!(outermost.file.is_some());
    }
}

#[test]
fn rust_inlines_agree_with_addr2line() {
    let program = std::env::current_exe().unwrap();
    let bytes = fs::read(&program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let addrs: Vec<ObjAddr> = elf
        .symbols()
        .filter(|s| s.table == Table::Symtab && s.name.contains("heaptrace") && s.name.contains("maps") && s.size > 0)
        .map(|s| ObjAddr(s.addr.0 + s.size / 2))
        .collect();
    assert!(addrs.len() > 30, "{}", addrs.len());
    let (resolution, warnings) = resolve_with(Search::default(), source(&program), &addrs);
    assert_eq!(warnings, Vec::<String>::new());
    let mut same = 0;
    for (frames, expected) in resolution.frames.iter().zip(addr2line(&program, &addrs)) {
        let lines = |frames: &[(String, String)]| frames.iter().map(|f| f.1.clone()).collect::<Vec<_>>();
        same += usize::from(lines(&ours(frames)) == lines(&expected));
    }
    assert_eq!(same, addrs.len(), "of {} places", addrs.len());
}

fn own_modules() -> Vec<maps::MappedModule> {
    maps::modules(&maps::parse(&fs::read("/proc/self/maps").unwrap()).unwrap())
}

#[test]
fn libc_is_named_by_its_debug_package() {
    let libc = own_modules().into_iter().find(|m| m.path.to_string_lossy().contains("libc.so")).unwrap();
    let bytes = fs::read(&libc.path).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let malloc = elf.find_symbol("malloc").unwrap();
    let addr = ObjAddr(malloc.addr.0 + malloc.size / 2);
    let (resolution, _) = resolve_with(Search::default(), source(&libc.path), &[addr]);
    let frames = &resolution.frames[0];
    let id = elf.build_id_hex().unwrap();
    let package = format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    if Path::new(&package).exists() {
        assert!(frames.last().unwrap().file.as_ref().unwrap().ends_with("malloc.c"), "{frames:?}");
        let line = |place: &str| place.rsplit_once(':').unwrap().1.to_owned();
        let expected = &addr2line(package.as_ref(), &[addr])[0];
        let (ours, expected) = (ours(frames).pop().unwrap(), expected.last().unwrap());
        assert_eq!((ours.0, line(&ours.1)), (expected.0.clone(), line(&expected.1)));
        assert_eq!(&*frames.last().unwrap().function.as_ref().unwrap().name, "__libc_malloc");
    } else {
        assert_eq!(&*frames[0].function.as_ref().unwrap().name, "malloc");
    }
    // Without it the exported names remain, for their own bytes only.
    let bare = Search { debug_dirs: vec![], ..Search::default() };
    let last = ObjAddr(malloc.addr.0 + malloc.size - 1);
    let (resolution, _) = resolve_with(bare, source(&libc.path), &[last]);
    assert_eq!(&*resolution.frames[0][0].function.as_ref().unwrap().name, "malloc");
    assert_eq!(resolution.status, SymbolStatus { functions: true, ..SymbolStatus::default() });
}

#[test]
fn the_vdso_is_named_from_memory() {
    use std::os::unix::fs::FileExt;
    let vdso = own_modules().into_iter().find(maps::MappedModule::is_vdso).unwrap();
    let mut bytes = vec![0; usize::try_from(vdso.end().0 - vdso.start().0).unwrap()];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, vdso.start().0).unwrap();
    let symbol = Elf::parse_memory(&bytes, vdso.start()).unwrap().find_symbol("__vdso_clock_gettime").unwrap().addr;
    let memory = Some(ModuleMemory { start: vdso.start(), bytes: bytes.into() });
    let source = ModuleSource { memory, ..source(&vdso.path) };
    let (resolution, warnings) = resolve_with(Search::default(), source, &[symbol]);
    assert_eq!(warnings, Vec::<String>::new());
    assert!(resolution.frames[0][0].function.as_ref().unwrap().name.ends_with("clock_gettime"));
}

#[test]
fn damaged_and_missing_files_are_warnings() {
    let dir = TempDir::new("symbols-damaged");
    let (resolution, warnings) = resolve_with(Search::default(), source(&dir.join("gone")), &[ObjAddr(1)]);
    assert!(resolution.frames[0].is_empty());
    assert!(warnings[0].contains("gone"), "{warnings:?}");

    let program = dir.compile("c++", "program", INLINES, &["-g", "-O2"]);
    let addrs = instructions_of(&program, &NAMES);
    let whole = fs::read(&program).unwrap();
    let info = Elf::parse(&whole).unwrap();
    // The bytes of the DWARF sections, wherever they are in the file.
    for section in [".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_rnglists"] {
        let data = info.sections().data(section).unwrap().unwrap();
        let at = whole.windows(data.len()).position(|w| w == &*data).unwrap();
        for step in [1, 3, 7] {
            let mut damaged = whole.clone();
            for byte in damaged[at..at + data.len()].iter_mut().step_by(step) {
                *byte = byte.wrapping_add(0x55);
            }
            fs::write(&program, damaged).unwrap();
            let (resolution, _) = resolve_with(Search::default(), source(&program), &addrs);
            assert!(resolution.status.functions, "the symbol table is left");
        }
    }
}
