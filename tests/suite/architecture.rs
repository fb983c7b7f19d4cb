//! The layout holds: imports point down the list of layers, the operating system stays at its edge, unsafe in its few
//! files, no file grows past its limit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod circles;
mod objects;
mod scenarios;
mod words;

/// Which modules of this crate each module may name: such as stand further up. Parts of a module (`unwinder/…`) count
/// as the module. In a room some parts have a place of their own (`heap/leaks`).
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("base/engine", &[]),
    ("image", &[]),
    ("heap", &[]),
    ("saved", &[]),
    ("base/addr", &[]),
    ("base/glob", &[]),
    ("base/mapped", &[]),
    ("base/figures", &[]),
    ("base/advice", &["base/figures"]),
    ("base/leakclass", &[]),
    ("base/progress", &[]),
    ("base/sources", &[]),
    ("base/sampling", &[]),
    ("top/ctl", &["base/figures"]),
    ("base/chunk", &[]),
    ("base/prefetch", &[]),
    ("base/packed", &[]),
    ("base/triggers", &[]),
    ("base/memory", &["base/addr"]),
    ("heap/types", &["base/addr", "base/memory"]),
    ("base/paths", &[]),
    ("arch", &["base/addr", "base/memory"]),
    ("image/maps", &["base/addr", "arch"]),
    ("allocators", &["base/addr"]),
    ("breakpoints/patches", &["base/addr", "arch"]),
    ("breakpoints", &["base/addr", "arch"]),
    ("allocators/frameworks", &["base/addr", "base/memory"]),
    ("heapmodel/fill", &["base/addr", "base/figures", "base/memory"]),
    ("jump", &["base/addr", "arch", "base/memory", "base/sampling"]),
    ("unwinder", &["base/addr", "arch", "base/chunk", "base/memory"]),
    ("event", &["base/addr", "allocators", "unwinder"]),
    ("event/calls", &["base/addr", "allocators", "event"]),
    ("image/corefile", &["base/addr", "arch", "image/maps", "base/memory"]),
    ("unwinder/cpython", &["base/addr", "base/memory"]),
    ("image/elf", &["base/addr", "arch", "image/maps", "unwinder"]),
    (
        "heapmodel",
        &[
            "base/addr",
            "allocators",
            "base/chunk",
            "event",
            "base/figures",
            "base/packed",
            "base/prefetch",
            "base/sampling",
        ],
    ),
    ("heap/walk", &["base/addr", "image/maps", "base/memory"]),
    ("heap/leaks", &["base/addr", "arch", "heapmodel", "heap/walk", "base/leakclass", "image/maps", "base/memory"]),
    ("heap/graph", &["base/addr", "heapmodel", "heap/types", "heap/walk", "heap/leaks", "image/maps", "base/memory"]),
    ("heap/file", &["base/addr", "heap/graph", "heapmodel", "heap/walk", "heap/leaks"]),
    (
        "profile",
        &[
            "base/addr",
            "base/advice",
            "base/figures",
            "heapmodel",
            "base/leakclass",
            "heap/leaks",
            "base/packed",
            "base/sampling",
            "unwinder",
        ],
    ),
    ("trace", &["base/addr", "allocators", "event", "profile", "unwinder"]),
    ("profile/check", &["allocators", "base/figures", "base/glob", "profile"]),
    ("symbols", &["base/addr", "image/elf", "heap/types", "base/mapped", "base/paths", "profile"]),
    (
        "export",
        &[
            "base/addr",
            "base/advice",
            "profile/check",
            "base/figures",
            "heap/file",
            "heap/graph",
            "heap/walk",
            "heap/leaks",
            "base/packed",
            "profile",
            "base/sampling",
            "base/sources",
            "unwinder",
        ],
    ),
    ("saved/import", &["base/addr", "base/advice", "profile", "unwinder"]),
    ("top", &["base/addr", "top/ctl", "export", "base/figures", "heapmodel"]),
    (
        "tracer",
        &[
            "base/addr",
            "arch",
            "image/elf",
            "jump",
            "base/mapped",
            "image/maps",
            "base/memory",
            "breakpoints/patches",
            "base/paths",
        ],
    ),
    (
        "session",
        &[
            "base/engine",
            "base/addr",
            "base/advice",
            "allocators",
            "arch",
            "breakpoints",
            "event/calls",
            "unwinder/cpython",
            "event",
            "image/elf",
            "base/figures",
            "heapmodel/fill",
            "allocators/frameworks",
            "base/glob",
            "heapmodel",
            "heap/walk",
            "jump",
            "base/leakclass",
            "heap/leaks",
            "image/maps",
            "base/memory",
            "breakpoints/patches",
            "profile",
            "base/progress",
            "base/sampling",
            "symbols",
            "trace",
            "tracer",
            "unwinder",
        ],
    ),
    (
        "inspect",
        &[
            "base/addr",
            "arch",
            "image/corefile",
            "image/elf",
            "heap/file",
            "heap/graph",
            "heapmodel",
            "heap/types",
            "heap/walk",
            "heap/leaks",
            "image/maps",
            "base/memory",
            "base/paths",
            "profile",
            "symbols",
            "tracer",
        ],
    ),
    (
        "naming",
        &[
            "base/addr",
            "profile/check",
            "allocators/frameworks",
            "base/paths",
            "profile",
            "session",
            "base/sources",
            "symbols",
            "trace",
            "tracer",
        ],
    ),
    (
        "saved/replay",
        &[
            "base/addr",
            "allocators",
            "event",
            "base/figures",
            "heapmodel",
            "profile",
            "base/sampling",
            "session",
            "symbols",
            "trace",
            "unwinder",
        ],
    ),
    (
        "profiler",
        &[
            "base/engine",
            "allocators",
            "profile/check",
            "event",
            "export",
            "base/glob",
            "heap/file",
            "heap/walk",
            "inspect",
            "heap/leaks",
            "naming",
            "profile",
            "session",
            "symbols",
            "tracer",
        ],
    ),
    (
        "cli",
        &[
            "base/engine",
            "base/addr",
            "profile/check",
            "top/ctl",
            "event",
            "export",
            "base/glob",
            "heap/leaks",
            "profile",
            "saved/replay",
            "trace",
            "tracer",
            "base/triggers",
        ],
    ),
    (
        "commands",
        &[
            "base/engine",
            "base/addr",
            "allocators",
            "profile/check",
            "cli",
            "image/corefile",
            "top/ctl",
            "image/elf",
            "event",
            "export",
            "base/figures",
            "heapmodel/fill",
            "base/glob",
            "saved/import",
            "heap/file",
            "heap/graph",
            "heapmodel",
            "inspect",
            "heap/leaks",
            "naming",
            "profile",
            "base/progress",
            "saved/replay",
            "session",
            "symbols",
            "top",
            "trace",
            "tracer",
            "base/triggers",
            "unwinder",
        ],
    ),
    ("main", &[]),
];

/// The files that may hold unsafe code.
const UNSAFE: &[&str] = &["src/base/prefetch.rs", "src/symbols/files.rs"];

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

/// The place in the table of what a path of modules leads to: that of a room's part, if it has one.
fn place<'a>(mut path: impl Iterator<Item = &'a str>) -> String {
    let first = path.next().unwrap_or_default();
    let part = path.next().map(|second| format!("{first}/{second}"));
    part.filter(|part| MAY_IMPORT.iter().any(|(name, _)| name == part)).unwrap_or_else(|| first.to_owned())
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
            let module = place(path.trim_start_matches("src/").split(['/', '.']));
            Source { path, module, code: code_of(&text), lines: text.lines().count() }
        })
        .collect()
}

/// The text without comments, the contents of strings and characters, and the items behind `#[cfg(test)]`.
fn code_of(text: &str) -> String {
    without_tests(&without_texts(text))
}

/// Drops comments and the contents of string and character literals; lines stay lines.
fn without_texts(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or('\n');
    let mut code = String::new();
    let mut index = 0;
    while index < characters.len() {
        let start = index;
        match (at(index), at(index + 1)) {
            ('/', '/') => index += characters[index..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(index), at(index + 1)) {
                        ('/', '*') => (depth, index) = (depth + 1, index + 2),
                        ('*', '/') => (depth, index) = (depth - 1, index + 2),
                        _ => index += 1,
                    }
                    if depth == 0 || index >= characters.len() {
                        break;
                    }
                }
            }
            ('r', '"' | '#') if !code.ends_with(|c: char| c.is_alphanumeric() || c == '_') => {
                let hashes = characters[index + 1..].iter().take_while(|c| **c == '#').count();
                index += 1 + hashes;
                if at(index) == '"' {
                    let end = format!("\"{}", "#".repeat(hashes));
                    let rest: String = characters[index + 1..].iter().collect();
                    index += 1 + rest[..rest.find(&end).unwrap()].chars().count() + end.len();
                    code.push_str("\"\"");
                } else {
                    code.extend(&characters[start..index]);
                }
            }
            ('"', _) => {
                index += 1;
                while index < characters.len() && at(index) != '"' {
                    index += if at(index) == '\\' { 2 } else { 1 };
                }
                index += 1;
                code.push_str("\"\"");
            }
            // A lifetime has no second quote behind its first letter.
            ('\'', second) if second == '\\' || at(index + 2) == '\'' => {
                index += if second == '\\' { 3 } else { 2 };
                index += characters[index..].iter().take_while(|c| **c != '\'').count() + 1;
                code.push_str("' '");
            }
            (character, _) => {
                code.push(character);
                index += 1;
            }
        }
        let lines = characters[start..index.min(characters.len())].iter().filter(|c| **c == '\n').count();
        if index > start + 1 {
            code.extend(std::iter::repeat_n('\n', lines));
        }
    }
    code
}

/// Drops each item behind `#[cfg(test)]`: to its closing brace, or to its semicolon.
fn without_tests(code: &str) -> String {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(ATTRIBUTE) {
        kept.push_str(&rest[..at]);
        rest = &rest[at + ATTRIBUTE.len()..];
        let mut depth = 0;
        let end = rest.char_indices().find(|(_, character)| {
            match character {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(character, ';' | '}')
        });
        rest = end.map_or("", |(end, _)| &rest[end + 1..]);
        // A list of imports ends with both.
        rest = rest.strip_prefix(';').unwrap_or(rest);
    }
    kept + rest
}

/// Identifiers that follow `crate::`, alone or in braces. (main.rs sees the library from outside.)
fn imports(code: &str) -> Vec<String> {
    const MARKER: &str = "crate::";
    let mut found = Vec::new();
    for (at, _) in code.match_indices(MARKER) {
        let before = code[..at].chars().next_back().unwrap_or(' ');
        if before.is_alphanumeric() || before == '_' || before == '$' {
            continue;
        }
        let rest = &code[at + MARKER.len()..];
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
                _ if !list && !character.is_alphanumeric() && !"_:".contains(character) => break,
                _ => {}
            }
            item.push(character);
        }
        found.push(item);
    }
    found.into_iter().map(|item| place(item.split("::").map(str::trim))).filter(|name| !name.is_empty()).collect()
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

/// Only what is compiled into the program counts, wherever in a file it stands.
#[test]
fn tests_and_texts_are_no_code() {
    let code = code_of(
        "use a;\n#[cfg(test)]\nuse crate::b::{c, d};\n/* x /* y */ ; */ #[cfg(test)] #[path = \"}\"] mod tests { fn f() { '}'; \"{\" } }\n\
         fn g<'a>(x: &'a str) { r#\"crate::no \"}\"#; b'\\''; }\n#[cfg(test)]\nmod t;\nuse crate::e; // crate::f",
    );
    let words: Vec<_> = code.split_whitespace().collect();
    assert_eq!(words.join(" "), "use a; fn g<'a>(x: &'a str) { \"\"; b' '; } use crate::e;");
}

/// The reader of imports reads every form.
#[test]
fn imports_are_read() {
    let code = code_of(
        "use crate::base::addr::Addr; // crate::no\nuse crate::{trace::{A, B}, event};\nlet a = crate::arch::f(\"crate::no\");",
    );
    assert_eq!(imports(&code), ["base/addr", "trace", "event", "arch"]);
    assert!(names_crate("use nix::sys;", "nix") && names_crate("fn f() { libc::getpid() }", "libc"));
    assert!(!names_crate("use unix::sys;", "nix") && !names_crate("let nix = 1;", "nix"));
}

/// What each module imports of the others, tests left out, and the first file that does it.
fn edges() -> BTreeMap<String, BTreeMap<String, String>> {
    let sources: Vec<_> = sources().into_iter().filter(|source| !is_test_code(&source.path)).collect();
    let modules: BTreeSet<String> = sources.iter().map(|source| source.module.clone()).collect();
    let mut edges: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in sources.into_iter().filter(|source| source.module != "lib") {
        let others = imports(&source.code).into_iter().filter(|name| modules.contains(name) && *name != source.module);
        let others: Vec<_> = others.collect();
        let of_module = edges.entry(source.module).or_default();
        for name in others {
            of_module.entry(name).or_insert_with(|| source.path.clone());
        }
    }
    edges
}

/// Imports point to modules further up in the table only, so that there is no circle; a module that the table does not
/// know must be given its place, and the table allows nothing that no module does.
#[test]
fn imports_point_down() {
    let edges = edges();
    let allowed: BTreeMap<_, _> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for (module, others) in &edges {
        let Some(may) = allowed.get(module.as_str()) else {
            wrong.push(format!("the module {module} has no place in the layers"));
            continue;
        };
        let forbidden = others.iter().filter(|(name, _)| !may.contains(&name.as_str()));
        wrong.extend(forbidden.map(|(name, path)| format!("{path} imports {name}")));
    }
    for (index, (module, may)) in MAY_IMPORT.iter().enumerate() {
        let above = &MAY_IMPORT[..index];
        let upwards = may.iter().filter(|name| !above.iter().any(|(above, _)| above == *name));
        wrong.extend(upwards.map(|name| format!("{module} stands above {name} in the table, and may not import it")));
        let used = edges.get(*module);
        let unused = may.iter().filter(|name| used.is_none_or(|used| !used.contains_key(**name)));
        wrong.extend(unused.map(|name| format!("{module} may import {name}, and does not")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// nix and libc in tracer/ only, libc also where the kernel is asked for memory; clap and indicatif in cli, commands
/// and main only; ratatui in top and commands only.
#[test]
fn crates_stay_in_their_places() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (names, places) in [
            (&["nix"][..], &["tracer"][..]),
            (&["libc"], &["tracer", "base/prefetch"]),
            (&["clap", "indicatif"], &["cli", "commands", "main"]),
            (&["ratatui"], &["top", "commands"]),
        ] {
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

/// The target's code is written in one place: who tells the guardian, checks what stands there and restores it.
#[test]
fn one_file_writes_the_target_s_code() {
    // What leads to the target's memory, and who may call it.
    let writers: [(&str, &[&str]); 5] = [
        (".write_fill(", &["src/session/fill.rs"]),
        (".write_code(", &["src/tracer/code/write.rs", "src/tracer/memory.rs"]),
        (
            ".write_data(",
            &[
                "src/tracer/code/write.rs",
                "src/tracer/copy.rs",
                "src/tracer/copy/apart.rs",
                "src/tracer/kernelheld.rs",
                "src/tracer/remote.rs",
                "src/tracer/remote/function.rs",
                "src/tracer/timedwait/entering.rs",
            ],
        ),
        ("ptrace::poke(", &["src/tracer/memory.rs"]),
        (".write_all_at(", &["src/tracer/memory.rs"]),
    ];
    let mut wrong = Vec::new();
    for source in sources() {
        for (call, files) in writers {
            if source.code.contains(call) && !files.contains(&source.path.as_str()) {
                wrong.push(format!("{} calls {call}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
            "patches",
            "calls",
            "event",
            "heapmodel",
            "jump",
            "leaks",
            "unwinder",
            "memory",
            "profile",
            "elf",
            "figures",
            "leakclass",
            "check",
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
    rust_files(&package().join("crates"), &mut others);
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

/// A newcomer sees rooms, not a list: few modules stand at the top of `src/`.
#[test]
fn few_modules_stand_at_the_top() {
    let of_files = sources().into_iter().map(|source| source.path);
    let of_files = of_files.filter_map(|path| Some(path.strip_prefix("src/")?.split(['/', '.']).next()?.to_owned()));
    let modules: BTreeSet<String> = of_files.filter(|name| name != "lib" && name != "main").collect();
    assert!(modules.len() <= 24, "{} modules: {modules:?}", modules.len());
}
