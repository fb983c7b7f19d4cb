//! The layout holds: imports point down the list of layers, the operating system stays at its edge, unsafe in its few
//! files, no file grows past its limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which modules of this crate each module may name. Parts of a module (`unwinder/…`) count as the module.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("addr", &[]),
    ("glob", &[]),
    ("mapped", &[]),
    ("memory", &["addr"]),
    ("paths", &[]),
    ("arch", &["addr", "memory"]),
    ("maps", &["addr", "arch"]),
    ("allocators", &["addr"]),
    ("breakpoints", &["addr", "arch", "memory"]),
    ("event", &["addr", "allocators"]),
    ("calls", &["addr", "allocators", "event", "memory"]),
    ("elf", &["addr", "arch", "maps", "memory", "unwinder"]),
    ("unwinder", &["addr", "arch", "memory"]),
    ("profile", &["addr", "allocators", "event", "heapmodel", "leaks", "maps", "unwinder"]),
    ("heapmodel", &["addr", "allocators", "event", "profile"]),
    ("leaks", &["addr", "allocators", "arch", "elf", "glob", "heapmodel", "maps", "memory", "profile"]),
    ("progress", &[]),
    ("ctl", &[]),
    ("symbols", &["addr", "elf", "mapped", "maps", "memory", "paths", "profile", "unwinder"]),
    ("export", &["addr", "leaks", "profile", "unwinder"]),
    ("tracer", &["addr", "allocators", "arch", "breakpoints", "elf", "mapped", "maps", "memory", "paths", "unwinder"]),
    (
        "session",
        &[
            "addr",
            "allocators",
            "arch",
            "breakpoints",
            "calls",
            "elf",
            "event",
            "export",
            "glob",
            "heapmodel",
            "leaks",
            "maps",
            "memory",
            "profile",
            "progress",
            "symbols",
            "tracer",
            "unwinder",
        ],
    ),
    ("cli", &["addr", "allocators", "export", "glob", "leaks", "profile", "tracer"]),
    (
        "commands",
        &[
            "addr",
            "allocators",
            "cli",
            "ctl",
            "elf",
            "export",
            "glob",
            "leaks",
            "maps",
            "paths",
            "profile",
            "progress",
            "session",
            "symbols",
            "tracer",
            "unwinder",
        ],
    ),
    ("main", &["cli", "commands", "tracer"]),
];

/// The files that may hold unsafe code.
const UNSAFE: &[&str] = &["src/symbols/files.rs"];

/// Folders in which any file may: the edge to the operating system.
const UNSAFE_FOLDERS: &[&str] = &["src/tracer/"];

/// The hard limit of lines in a file.
const LONGEST: usize = 700;

struct Source {
    /// Relative to the package.
    path: String,
    /// The top-level module that it belongs to.
    module: String,
    /// Its text without comments and strings, and without unit tests.
    code: String,
    lines: usize,
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    rust_files(&package().join("src"), &mut files);
    files.sort();
    assert!(files.len() > 10, "the sources are missing");
    files
        .into_iter()
        .map(|file| {
            let text = std::fs::read_to_string(&file).unwrap();
            let path = file.strip_prefix(package()).unwrap().display().to_string();
            let module = path.trim_start_matches("src/").split(['/', '.']).next().unwrap().to_owned();
            Source { path, module, code: code_of(&text), lines: text.lines().count() }
        })
        .collect()
}

/// Drops comments, strings, and all from the unit tests on.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        let mut in_string = false;
        let mut previous = ' ';
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            if !in_string && character == '/' && characters.peek() == Some(&'/') {
                break;
            }
            if character == '"' && previous != '\\' && previous != '\'' {
                in_string = !in_string;
            }
            if !in_string {
                code.push(character);
            }
            previous = character;
        }
        code.push('\n');
    }
    code
}

/// Identifiers that follow `crate::`, alone or in braces; and `heaptrace::` in main.rs.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for marker in ["crate::", "heaptrace::"] {
        for (at, _) in code.match_indices(marker) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || before == '_' || before == '$' {
                continue;
            }
            let rest = &code[at + marker.len()..];
            let (rest, list) = match rest.strip_prefix('{') {
                Some(inside) => (inside, true),
                None => (rest, false),
            };
            let mut depth = 0;
            let mut item = String::new();
            for character in rest.chars() {
                match character {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 && list => {
                        found.push(std::mem::take(&mut item));
                        continue;
                    }
                    _ if !list && !character.is_alphanumeric() && character != '_' => break,
                    _ => {}
                }
                item.push(character);
            }
            found.push(item);
        }
    }
    found
        .into_iter()
        .map(|item| item.trim().split("::").next().unwrap_or("").trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Whether the code names an external crate.
fn names_crate(code: &str, name: &str) -> bool {
    let used = |text: &str| {
        code.match_indices(text).any(|(at, _)| {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            !before.is_alphanumeric() && before != '_' && before != ':'
        })
    };
    used(&format!("{name}::")) || used(&format!("use {name};")) || used(&format!("use {name} as"))
}

/// Whether a file belongs to unit tests as a whole.
fn is_test_code(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("/testing.rs") || path.contains("/tests/")
}

/// The reader of imports reads every form.
#[test]
fn imports_are_read() {
    let code = code_of(
        "use crate::addr::Addr; // crate::no\nuse crate::{maps::{A, B}, elf};\nlet a = crate::arch::f(\"crate::no\");",
    );
    assert_eq!(imports(&code), ["addr", "maps", "elf", "arch"]);
    assert!(names_crate("use nix::sys;", "nix") && names_crate("fn f() { libc::getpid() }", "libc"));
    assert!(!names_crate("use unix::sys;", "nix") && !names_crate("let nix = 1;", "nix"));
}

/// Imports point down the layers only; a module that the table does not know must be given its place.
#[test]
fn imports_point_down() {
    let allowed: BTreeMap<_, _> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources() {
        if source.module == "lib" {
            continue;
        }
        let Some(may) = allowed.get(source.module.as_str()) else {
            wrong.push(format!("{}: the module {} has no place in the layers", source.path, source.module));
            continue;
        };
        for name in imports(&source.code) {
            let is_module = allowed.contains_key(name.as_str());
            if is_module && name != source.module && !may.contains(&name.as_str()) && !is_test_code(&source.path) {
                wrong.push(format!("{} imports {name}", source.path));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// nix and libc in tracer/ only; clap and indicatif in cli, commands and main only.
#[test]
fn crates_stay_in_their_places() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (names, places) in
            [(["nix", "libc"], &["tracer"][..]), (["clap", "indicatif"], &["cli", "commands", "main"])]
        {
            for name in names {
                if names_crate(&source.code, name) && !places.contains(&source.module.as_str()) {
                    wrong.push(format!("{} uses {name}", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// unsafe in the named files only, and always with the reason beside it.
#[test]
fn unsafe_stays_in_few_files() {
    let mut wrong = Vec::new();
    for source in sources() {
        let uses = source.code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        let allowed = UNSAFE.contains(&source.path.as_str())
            || UNSAFE_FOLDERS.iter().any(|folder| source.path.starts_with(folder))
            || source.path == "src/tracer.rs";
        if uses && !allowed {
            wrong.push(source.path);
        }
    }
    assert!(wrong.is_empty(), "unsafe in {wrong:?}");
}

/// The symbols, profiles and formats know nothing of processes: only the edge and the session may trace.
#[test]
fn pure_modules_open_no_process() {
    let mut wrong = Vec::new();
    for source in sources() {
        let pure = [
            "addr",
            "arch",
            "maps",
            "allocators",
            "breakpoints",
            "calls",
            "event",
            "heapmodel",
            "leaks",
            "unwinder",
            "memory",
            "profile",
            "elf",
        ];
        if !pure.contains(&source.module.as_str()) {
            continue;
        }
        for name in ["std::fs", "std::process", "std::env", "std::net", "std::thread"] {
            if source.code.contains(name) && !is_test_code(&source.path) {
                wrong.push(format!("{} uses {name}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No file is longer than the limit, no folder has a mod.rs, main.rs stays under a hundred lines.
#[test]
fn files_stay_small() {
    let mut wrong = Vec::new();
    for source in sources() {
        let limit = if source.path == "src/main.rs" { 100 } else { LONGEST };
        if source.lines > limit {
            wrong.push(format!("{}: {} lines", source.path, source.lines));
        }
        if source.path.ends_with("/mod.rs") {
            wrong.push(format!("{}: name it after its folder", source.path));
        }
    }
    let mut others = Vec::new();
    rust_files(&package().join("tests"), &mut others);
    rust_files(&package().join("benches"), &mut others);
    for file in others {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        if lines > LONGEST {
            wrong.push(format!("{}: {lines} lines", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
