//! The same program with its debug information in every form and place that tools give it: the answers are those for
//! the plain build, which are compared with addr2line's.

use super::*;

/// A program built twice with the same code: with all in one file, and with what `options` make of it.
struct Pair {
    dir: TempDir,
    /// The odd one.
    program: PathBuf,
    addrs: Vec<ObjAddr>,
    /// What the plain one says.
    expected: Resolution,
}

impl Pair {
    fn build(name: &str, compiler: &str, options: &[&str], odd: &[&str]) -> Self {
        let dir = TempDir::new(name);
        // One source for both: its name is part of what is compared.
        let file = dir.join("source.cc");
        fs::write(&file, INLINES).unwrap();
        // In two steps: clang writes split DWARF beside the object file, wherever it is called.
        let build = |folder: &str, more: &[&str]| {
            fs::create_dir(dir.join(folder)).unwrap();
            let (object, out) = (dir.join(folder).join("source.o"), dir.join(folder).join("program"));
            tool(compiler, &[&["-O2", "-c", "-o", text(&object)], options, more, &[text(&file)]].concat());
            tool(compiler, &[&["-o", text(&out)], options, more, &[text(&object)]].concat());
            out
        };
        let plain = build("plain", &[]);
        let program = build("odd", odd);
        let addrs = instructions_of(&plain, &NAMES);
        assert_eq!(addrs, instructions_of(&program, &NAMES), "{name}: the same code");
        let (expected, warnings) = resolve_with(Search::default(), source(&plain), &addrs);
        assert_eq!(warnings, Vec::<String>::new());
        assert!(expected.frames.iter().any(|frames| frames.len() > 1), "{name} has inlines");
        Self { dir, program, addrs, expected }
    }

    fn resolve(&self, search: Search) -> (Resolution, Vec<String>) {
        resolve_with(search, source(&self.program), &self.addrs)
    }

    fn assert_same(&self, search: Search, what: &str) {
        let (found, warnings) = self.resolve(search);
        assert_eq!(warnings, Vec::<String>::new(), "{what}");
        for ((addr, found), expected) in self.addrs.iter().zip(&found.frames).zip(&self.expected.frames) {
            assert_eq!(found, expected, "{what} {addr}");
        }
        assert_eq!(found.status, self.expected.status, "{what}");
    }

    /// The files in the program's folder that end so.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.join("odd")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
    }

    fn name(&self) -> &str {
        self.program.to_str().unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Split DWARF of both compilers and both versions: beside the objects, moved beside the program, in a package.
#[test]
fn split_dwarf_says_what_whole_dwarf_says() {
    for (name, compiler, version, packer) in [
        // binutils' dwp of Debian 12 knows version 4 only; llvm-dwp of that age loops over GCC's version 5
        ("split-gcc5", "c++", "-gdwarf-5", None),
        ("split-gcc4", "c++", "-gdwarf-4", Some("dwp")),
        ("split-clang5", "clang++", "-gdwarf-5", Some("llvm-dwp")),
        ("split-clang4", "clang++", "-gdwarf-4", Some("dwp")),
        ("split-types", "c++", "-gdwarf-5", None),
    ] {
        let mut odd = vec!["-gsplit-dwarf"];
        odd.extend(Some("-fdebug-types-section").filter(|_| name == "split-types"));
        let pair = Pair::build(name, compiler, &["-g", version], &odd);
        let units = pair.files("dwo");
        assert_eq!(units.len(), 1, "{name}: {units:?}");
        pair.assert_same(Search::default(), &format!("{name}: .dwo where it was written"));

        let elsewhere = pair.dir.join("unit.dwo");
        if let Some(packer) = packer {
            // A package beside the program, then in a tree of debug files.
            let package = pair.dir.join("odd/program.dwp");
            tool(packer, &["-e", pair.name(), "-o", text(&package)]);
            fs::rename(&units[0], &elsewhere).unwrap();
            pair.assert_same(Search::default(), &format!("{name}: .dwp"));
            let tree = pair.dir.join("tree");
            let in_tree = tree.join(package.strip_prefix("/").unwrap());
            fs::create_dir_all(in_tree.parent().unwrap()).unwrap();
            fs::rename(&package, &in_tree).unwrap();
            let search = Search { debug_dirs: vec![tree], ..Search::default() };
            pair.assert_same(search, &format!("{name}: .dwp in a debug folder"));
        } else {
            fs::rename(&units[0], &elsewhere).unwrap();
        }

        // Without any: lines and outermost functions are left, and what is missing is said.
        let (without, warnings) = pair.resolve(Search::default());
        assert!(warnings.len() == 1 && warnings[0].contains(".dwo") && warnings[0].contains("dwp"), "{warnings:?}");
        for (found, expected) in without.frames.iter().zip(&pair.expected.frames) {
            let outer = |frames: &[SymFrame]| frames.last().unwrap().function.as_ref().unwrap().name.clone();
            assert_eq!(outer(found), outer(expected));
            assert_eq!(found[0].line, expected[0].line, "{name}: the line table stays in the program");
        }

        // Another unit in its place is refused.
        let other = Pair::build(&format!("{name}-other"), compiler, &["-g", version, "-DOTHER"], &["-gsplit-dwarf"]);
        fs::copy(&other.files("dwo")[0], &units[0]).unwrap();
        let (wrong, warnings) = pair.resolve(Search::default());
        assert_eq!(wrong, without);
        assert!(warnings.iter().any(|warning| warning.contains("id differs")), "{name}: {warnings:?}");
    }
}

/// Every form in which sections are compressed. And type units, where binutils 2.40 finds no inlined calls.
#[test]
fn compressed_debug_sections_say_the_same() {
    for (name, options) in [
        ("gz-zlib", &["-gz=zlib"][..]),
        ("gz-zlib-gnu", &["-Wl,--compress-debug-sections=zlib-gnu"]),
        ("gz-zstd", &["-Wl,--compress-debug-sections=zstd"]),
        ("type-units", &["-fdebug-types-section"]),
    ] {
        let pair = Pair::build(name, "c++", &["-g"], options);
        let bytes = fs::read(&pair.program).unwrap();
        let sections = tool("readelf", &["-SW", pair.name()]);
        let line = sections.lines().find(|line| line.contains("debug_info")).unwrap();
        let is_compressed = line.contains(" C ") || line.contains(".zdebug_info");
        assert_eq!(is_compressed, name != "type-units", "{name}: {line}");
        assert!(Elf::parse(&bytes).unwrap().sections().has_debug_info());
        pair.assert_same(Search::default(), name);
    }
}

/// Other linkers and layouts. Addresses differ there, so that the answers are compared with addr2line's.
#[test]
fn every_linker_and_layout_agrees_with_addr2line() {
    let dir = TempDir::new("symbols-layouts");
    for (name, compiler, options) in [
        ("gold", "c++", &["-fuse-ld=gold"][..]),
        ("lld", "c++", &["-fuse-ld=lld"]),
        ("lto", "c++", &["-flto", "-ffat-lto-objects"]),
        (
            "text-segments",
            "c++",
            &["-ffunction-sections", "-Wl,-z,noseparate-code", "-Wl,--section-start=.fini=0x900000"],
        ),
        ("large-pages", "c++", &["-Wl,-z,max-page-size=0x200000", "-Wl,-z,separate-code"]),
        ("static-pie", "c++", &["-static-pie"]),
        ("fixed", "c++", &["-no-pie", "-Wl,-Ttext-segment=0x40000000"]),
    ] {
        let file = dir.join("source.cc");
        fs::write(&file, INLINES).unwrap();
        let program = dir.join(name);
        tool(compiler, &[&["-g", "-O2", "-o", text(&program)], options, &[text(&file)]].concat());
        let addrs = instructions_of(&program, &["main", "volume", "plain", "hidden"]);
        assert!(addrs.len() > 20, "{name}: {addrs:?}");
        let (resolution, warnings) = resolve_with(Search::default(), source(&program), &addrs);
        assert_eq!(warnings, Vec::<String>::new(), "{name}");
        for ((addr, frames), expected) in addrs.iter().zip(&resolution.frames).zip(addr2line(&program, &addrs)) {
            let lines = |frames: &[(String, String)]| -> Vec<_> {
                frames.iter().map(|f| f.1.rsplit_once(':').unwrap().1.to_owned()).collect()
            };
            assert_eq!(lines(&ours(frames)), lines(&expected), "{name} {addr}");
            // binutils names LTO's unit, `<artificial>`, instead of the file; a static C library has no lines
            let mut files = frames.iter().filter_map(|frame| frame.file.as_deref());
            assert!(files.all(|named| named == text(&file)), "{name} {addr}: {frames:?}");
        }
    }
}

/// MiniDebugInfo as Fedora builds it: all functions of a stripped program have their names.
#[test]
fn packed_symbol_tables_name_functions() {
    let pair = Pair::build("symbols-packed", "c++", &["-g"], &[]);
    let (stripped, packed) = pack_symbols(&pair.dir, &pair.program);
    fs::rename(&stripped, &pair.program).unwrap();
    let (found, warnings) = pair.resolve(Search::default());
    assert_eq!((warnings, found.status), (vec![], SymbolStatus { functions: true, ..SymbolStatus::default() }));
    for (frames, expected) in found.frames.iter().zip(&pair.expected.frames) {
        assert_eq!(frames.last().unwrap().function, expected.last().unwrap().function);
    }

    // A damaged one is told, and nothing else is lost.
    let mut damaged = fs::read(&packed).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    fs::write(&packed, damaged).unwrap();
    let option = format!("--update-section=.gnu_debugdata={}", text(&packed));
    tool("objcopy", &[&option, pair.name()]);
    let (found, warnings) = pair.resolve(Search::default());
    assert!(found.frames.iter().all(Vec::is_empty));
    assert!(warnings[0].contains("gnu_debugdata"), "{warnings:?}");
}

/// A copy of the program without symbols but with `.gnu_debugdata`, and that section's bytes, both in `dir`.
fn pack_symbols(dir: &TempDir, program: &Path) -> (PathBuf, PathBuf) {
    let (mini, packed, stripped) = (dir.join("mini"), dir.join("mini.xz"), dir.join("stripped"));
    tool("objcopy", &["--only-keep-debug", text(program), text(&mini)]);
    tool("strip", &["--strip-debug", "--remove-section=.comment", text(&mini)]);
    tool("xz", &["--keep", "--force", text(&mini)]);
    tool("strip", &["--strip-all", "-o", text(&stripped), text(program)]);
    tool("objcopy", &[&format!("--add-section=.gnu_debugdata={}", text(&packed)), text(&stripped)]);
    (stripped, packed)
}

/// Debian's debug packages move what several files share to one of their own, by dwz.
#[test]
fn dwarf_shared_by_dwz_says_the_same() {
    let pair = Pair::build("symbols-dwz", "c++", &["-g", "-gdwarf-4", "-Wl,--build-id=0xabcdef0155"], &[]);
    let (twin, shared) = (pair.dir.join("odd/twin"), pair.dir.join("odd/shared"));
    fs::copy(&pair.program, &twin).unwrap();
    tool("dwz", &["-m", text(&shared), "-r", pair.name(), text(&twin)]);
    let bytes = fs::read(&pair.program).unwrap();
    assert!(Elf::parse(&bytes).unwrap().debug_alt_link().is_some());
    let (mut found, warnings) = pair.resolve(Search::default());
    assert_eq!(warnings, Vec::<String>::new());
    for (frame, expected) in found.frames.iter_mut().flatten().zip(pair.expected.frames.iter().flatten()) {
        // A declaration that was moved to the other file is not looked up.
        if frame.start_line == 0 {
            frame.start_line = expected.start_line;
            // Nor is its scope.
            let bare = frame.function.as_ref().filter(|function| function.name == function.system_name);
            if bare.map(|bare| &bare.system_name) == expected.function.as_ref().map(|known| &known.system_name) {
                frame.function.clone_from(&expected.function);
            }
        }
    }
    assert_eq!(found, pair.expected);
    let whole = fs::read(&shared).unwrap();
    fs::write(&shared, &whole[..whole.len() / 2]).unwrap();
    let (_, warnings) = pair.resolve(Search::default());
    assert!(!warnings.is_empty());
    fs::remove_file(&shared).unwrap();
    let (found, warnings) = pair.resolve(Search::default());
    assert!(warnings.iter().any(|warning| warning.contains("shared")), "{warnings:?}");
    for (frames, expected) in found.frames.iter().zip(&pair.expected.frames) {
        assert_eq!(frames.first().map(|f| f.line), expected.first().map(|f| f.line));
    }
}

const GENERIC: &str = "
#[no_mangle]
#[inline(never)]
pub extern \"C\" fn grow(n: u64) -> usize {
    let mut all: Vec<[u64; 4]> = Vec::new();
    for i in 0..n {
        all.push([i; 4]);
    }
    all.len() + std::hint::black_box(&all).len()
}
fn main() { println!(\"{}\", grow(9)); }
";

/// Rust's older mangling has `Vec<T,A>`, the debug information what T and A are; the newer one says it itself.
#[test]
fn generic_functions_of_rust_have_their_arguments() {
    let dir = TempDir::new("symbols-generic");
    let file = dir.join("program.rs");
    fs::write(&file, GENERIC).unwrap();
    for mangling in [&[][..], &["-Csymbol-mangling-version=v0"]] {
        let program = dir.join("program");
        tool("rustc", &[&["-g", "-O", "-o", text(&program), text(&file)], mangling].concat());
        let addrs = instructions_of(&program, &["grow"]);
        let (resolution, _) = resolve_with(Search::default(), source(&program), &addrs);
        let names = resolution.frames.iter().flatten().filter_map(|frame| Some(frame.function.as_ref()?.name.as_ref()));
        let pushes: Vec<&str> = names.filter(|name| name.contains("Vec<") && name.contains(">::push")).collect();
        assert!(!pushes.is_empty(), "{mangling:?}");
        assert!(pushes.iter().all(|name| name.contains("Vec<[u64; 4]")), "{mangling:?}: {pushes:?}");
    }
}
