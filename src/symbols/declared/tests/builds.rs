//! Debug information that compilers have made, whole and damaged.

use super::*;
use crate::image::elf::testing::{TempDir, tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const PROGRAM: &str = "
#include <stddef.h>
struct later;
union either { long number; struct entry *entry; };
struct entry { char kind; long key; char *text; struct entry *next; struct later *later; };
typedef struct { short x, y; void *owner; struct entry *entry; unsigned flag : 3, rest : 9; int behind; } point;
struct __attribute__((packed)) tight { char one; struct entry *two; short three; point four; };
struct table {
    size_t count; struct entry *first, **index; double weights[3][5]; union either either;
    struct { point *points; int more; }; struct entry inner[3]; struct tight tight;
    int (*function)(int); struct entry *const volatile *twice; char end[];
};
struct later { struct table *back; struct later *self; };
struct table g_table = { .count = 1 };
struct tight g_tight;
point g_point;
struct later *g_later;
static struct entry *g_index[7];
__thread struct entry *own_first = (struct entry *)&g_table;
static __thread struct entry *own_second;
int main(int argc, char **argv) { return argc + (argv == NULL) + (g_index[argc] == NULL) + (own_second == own_first); }
";

fn build(dir: &TempDir, flags: &[&str]) -> PathBuf {
    dir.compile("cc", "program", PROGRAM, flags)
}

fn read_file(path: &Path) -> (DeclaredTypes, Declarations) {
    let source = ModuleSource { path: path.to_owned(), ..ModuleSource::default() };
    let (mut types, mut budget) = (DeclaredTypes::default(), Budget::default());
    let found = types.read(&source, &Search::default(), &mut budget);
    assert!(!budget.is_cut());
    (types, found)
}

/// All that is declared is found.
fn is_whole(path: &Path) {
    let (types, found) = read_file(path);
    let table = type_of(&found, "g_table");
    let path_at = |offset| types.table.place(table, offset).unwrap().path;
    assert_eq!(path_at(8), "first");
    let first = types.table.place(table, 8).unwrap().leads.unwrap();
    assert_eq!(types.table.name(first), "entry");
    assert_eq!(types.table.place(first, 24).unwrap().path, "next");
    let later = types.table.place(first, 32).unwrap().leads.unwrap();
    assert_eq!(types.table.place(later, 0).unwrap().leads, Some(table));
    let places: Vec<_> = found.variables.iter().filter(|one| one.name.starts_with("own_")).collect();
    let place = |name: &str| places.iter().find(|one| one.name == name).unwrap().place;
    assert_eq!(place("own_first"), VariablePlace::ThreadLocal(0));
    assert_eq!(place("own_second"), VariablePlace::ThreadLocal(8));
    assert_eq!(found.missing, 0);
    ask_all(&types);
}

/// The members of a structure as gdb tells them: offsets and names, without bit-fields.
fn of_gdb(program: &Path, name: &str) -> Vec<(u64, String)> {
    let ask = format!("ptype /o {name}");
    let told = tool("gdb", &["-nx", "-batch", "-ex", &ask, program.to_str().unwrap()]);
    let mut members = Vec::new();
    let mut opened = None;
    for line in told.lines().skip(1) {
        // `/*      8      |       8 */    char *text;`
        let (head, rest) = line.split_once("*/").unwrap_or(("", line));
        let offset = head.trim_start_matches("/*").split('|').next().unwrap().trim().parse::<u64>().ok();
        let is_first_level = |rest: &str, depth: usize| {
            let text = rest.trim_start();
            rest.len() - text.len() == depth
        };
        let of_name = |text: &str| {
            let text = text.split("[").next().unwrap().trim_end_matches(';').trim();
            let text = text.split(")(").next().unwrap();
            text.rsplit([' ', '*', '}', '(']).next().unwrap().to_owned()
        };
        match offset {
            Some(offset) if is_first_level(rest, 4) && rest.ends_with('{') => opened = Some(offset),
            Some(offset) if is_first_level(rest, 4) && !rest.contains(" : ") => members.push((offset, of_name(rest))),
            None if line.trim_start().starts_with('}') && is_first_level(line, 31) => {
                members.extend(opened.take().map(|offset| (offset, of_name(line))));
            }
            _ => {}
        }
    }
    members.retain(|(_, name)| !name.is_empty());
    members
}

#[test]
fn members_lie_where_gdb_says() {
    let dir = TempDir::new("declared-gdb");
    let program = build(&dir, &["-g"]);
    let (types, found) = read_file(&program);
    for (of, name, least) in [
        ("struct table", "g_table", 9),
        ("struct tight", "g_tight", 4),
        ("point", "g_point", 5),
        ("struct entry", "", 5),
    ] {
        let id = match name {
            "" => types.table.place(type_of(&found, "g_table"), 8).unwrap().leads.unwrap(),
            name => type_of(&found, name),
        };
        let Some(Shape::Struct(fields)) = types.table.get(id).map(|one| &one.shape) else { panic!("{of}") };
        let named = fields.iter().filter(|field| !field.name.is_empty());
        let ours: Vec<_> = named.map(|field| (field.offset, field.name.clone())).collect();
        assert_eq!(ours, of_gdb(&program, of), "{of}");
        assert!(ours.len() >= least, "{ours:?}");
    }
}

#[test]
fn versions_of_dwarf_are_read() {
    let dir = TempDir::new("declared-versions");
    for flags in [
        &["-g", "-gdwarf-5"][..],
        &["-g", "-gdwarf-4"],
        &["-g", "-gdwarf-3", "-gno-strict-dwarf"],
        &["-g", "-gdwarf-4", "-fdebug-types-section"],
        &["-g", "-gdwarf-5", "-fdebug-types-section"],
        &["-g", "-gz"],
    ] {
        println!("{flags:?}");
        is_whole(&build(&dir, flags));
    }
}

#[test]
fn separate_debug_files_are_read() {
    let dir = TempDir::new("declared-debug-file");
    let program = build(&dir, &["-g"]);
    let debug = dir.join("program.debug");
    let [program_text, debug_text] = [&program, &debug].map(|path| path.to_str().unwrap());
    tool("objcopy", &["--only-keep-debug", program_text, debug_text]);
    tool("objcopy", &["--strip-debug", program_text]);
    let (types, found) = read_file(&program);
    assert!(found.variables.is_empty() && types.table.len() == 0);
    tool("objcopy", &[&format!("--add-gnu-debuglink={debug_text}"), program_text]);
    is_whole(&program);
    // by its build id
    fs::remove_file(&debug).unwrap();
    let program = build(&dir, &["-g", "-Wl,--build-id=sha1"]);
    let bytes = fs::read(&program).unwrap();
    let id = Elf::parse(&bytes).unwrap().build_id_hex().unwrap();
    let folder = dir.join("debug").join(".build-id").join(&id[..2]);
    fs::create_dir_all(&folder).unwrap();
    let debug = folder.join(format!("{}.debug", &id[2..]));
    tool("objcopy", &["--only-keep-debug", program_text, debug.to_str().unwrap()]);
    tool("objcopy", &["--strip-debug", program_text]);
    let source = ModuleSource { path: program.clone(), build_id: Some(id), ..ModuleSource::default() };
    let search = Search::new(&[dir.join("debug")], None, None, PathBuf::from("/"));
    let (mut types, mut budget) = (DeclaredTypes::default(), Budget::default());
    let found = types.read(&source, &search, &mut budget);
    assert_eq!(types.table.place(type_of(&found, "g_table"), 8).unwrap().path, "first");
}

#[test]
fn split_dwarf_is_read_where_its_files_are() {
    // binutils' dwp of Debian 12 knows version 4 only
    for (version, has_dwp) in [("-gdwarf-5", false), ("-gdwarf-4", true)] {
        for types in ["-fno-debug-types-section", "-fdebug-types-section"] {
            let dir = TempDir::new("declared-split");
            let program = build(&dir, &["-g", "-gsplit-dwarf", version, types]);
            is_whole(&program);
            let package = program.with_extension("dwp");
            if has_dwp {
                tool("dwp", &["-e", program.to_str().unwrap(), "-o", package.to_str().unwrap()]);
            }
            let units: Vec<_> =
                fs::read_dir(program.parent().unwrap()).unwrap().map(|one| one.unwrap().path()).collect();
            let units: Vec<_> =
                units.iter().filter(|path| path.extension().is_some_and(|name| name == "dwo")).collect();
            assert_eq!(units.len(), 1, "{units:?}");
            units.iter().for_each(|unit| fs::remove_file(unit).unwrap());
            if has_dwp {
                is_whole(&program);
                fs::remove_file(&package).unwrap();
            }
            let (_, found) = read_file(&program);
            assert_eq!((found.missing, found.variables.len()), (1, 0));
        }
    }
}

#[test]
fn what_dwz_has_moved_is_found() {
    let dir = TempDir::new("declared-dwz");
    let one = build(&dir, &["-g"]);
    let other = dir.join("other");
    fs::copy(&one, &other).unwrap();
    let common = dir.join("common.debug");
    let arguments = ["-m", common.to_str().unwrap(), one.to_str().unwrap(), other.to_str().unwrap()];
    assert!(Command::new("dwz").args(arguments).status().unwrap().success());
    assert!(common.exists());
    is_whole(&one);
    is_whole(&other);
    // without it, what is left is told
    fs::remove_file(&common).unwrap();
    let (types, _) = read_file(&one);
    ask_all(&types);
}

/// Numbers that look like chance, the same each time (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// What would take too much unpacked is left out, and that is told.
#[test]
fn what_is_compressed_is_unpacked_up_to_a_limit() {
    let dir = TempDir::new("declared-unpacked");
    let whole = build(&dir, &["-g", "-gz=zlib"]);
    is_whole(&whole);
    let bounded = |most_unpacked: usize, path: &Path| {
        let source = ModuleSource { path: path.to_owned(), ..ModuleSource::default() };
        let (mut types, mut budget) = (DeclaredTypes::default(), Budget { most_unpacked, ..Budget::default() });
        let found = types.read(&source, &Search::default(), &mut budget);
        assert!(found.missing == 0);
        (found.variables.len(), budget.is_cut())
    };
    let all = read_file(&whole).1.variables.len();
    assert_eq!(bounded(1 << 20, &whole), (all, false));
    assert_eq!(bounded(100, &whole), (0, true));
    // the same in a file of split DWARF
    let split = build(&dir, &["-g", "-gsplit-dwarf"]);
    let is_split = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "dwo");
    let parts = fs::read_dir(split.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let part = parts.into_iter().find(is_split).unwrap();
    tool("objcopy", &["--compress-debug-sections=zlib", part.to_str().unwrap()]);
    is_whole(&split);
    assert_eq!(bounded(1 << 20, &split), (all, false));
    assert_eq!(bounded(100, &split), (0, true));
}

#[test]
fn damaged_debug_information_is_borne() {
    const ROUNDS: u64 = 400;
    let dir = TempDir::new("declared-damage");
    let damaged = [SectionId::DebugInfo, SectionId::DebugAbbrev, SectionId::DebugStr, SectionId::DebugTypes];
    let mut whole = 0;
    for flags in [&["-g", "-gdwarf-5"][..], &["-g", "-gdwarf-4", "-fdebug-types-section"]] {
        let file = fs::read(build(&dir, flags)).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let section = |id: SectionId| (id, elf.sections().data(id.name()).unwrap().unwrap_or_default().into_owned());
        let kept = [SectionId::DebugLineStr, SectionId::DebugStrOffsets, SectionId::DebugAddr];
        let bytes: Bytes = damaged.into_iter().chain(kept).map(section).collect();
        for seed in 0..ROUNDS {
            let mut random = Random(seed);
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(16) {
                let Some(section) = bytes.get_mut(&damaged[random.below(4)]).filter(|section| !section.is_empty())
                else {
                    continue;
                };
                let at = random.below(section.len());
                section[at] ^= 1 << random.below(8);
            }
            let since = Instant::now();
            let (mut types, mut budget) = (DeclaredTypes::default(), Budget::lasting(Duration::from_secs(5)));
            let found = read_into(&mut types, &bytes, &mut budget);
            ask_all(&types);
            assert!(since.elapsed() < Duration::from_secs(15), "seed {seed}");
            assert!(types.table.len() < 10_000, "seed {seed}");
            whole += usize::from(found.variables.len() >= 5);
        }
    }
    assert!(whole > 50, "most of it is read where little is damaged: {whole}");
}
