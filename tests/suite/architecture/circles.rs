//! No circles of files in the rooms where everything meets: what a file needs can then be read before the file.

use super::{is_test_code, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Rooms, and of how many files the largest circle in each is; 0: of none. A file counts with its folder. The figures
/// may only become smaller.
const CIRCLES: &[(&str, usize)] = &[("commands", 0), ("export", 0), ("session", 0)];

/// All paths of a tree of imports: `a::{b, c::{d, e}}` is `a::b`, `a::c::d`, `a::c::e`.
fn paths(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let mut found = Vec::new();
    let mut depth = 0;
    let mut branch = String::new();
    for character in rest.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.append(&mut paths(&std::mem::take(&mut branch)));
                continue;
            }
            _ => {}
        }
        branch.push(character);
    }
    found.retain(|path| !path.is_empty());
    found.into_iter().map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// The paths that code names: in `use`, and where it stands for an item itself.
fn named(code: &str) -> Vec<String> {
    let mut found: Vec<String> =
        code.split("use ").skip(1).filter_map(|rest| rest.split_once(';')).flat_map(|(tree, _)| paths(tree)).collect();
    let is_of_path = |character: char| character.is_alphanumeric() || "_:".contains(character);
    let words = code.split(|character| !is_of_path(character));
    found.extend(words.filter(|word| word.starts_with("super::") || word.starts_with("crate::")).map(str::to_owned));
    found.sort();
    found.dedup();
    found
}

/// Which of a room's files import which, and what for.
fn imports_in(room: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let of_room: Vec<_> = sources().into_iter().filter(|source| !is_test_code(&source.path)).collect();
    let folder = format!("src/{room}/");
    let inside = |path: &str| path.strip_prefix(&folder).map(|path| path.trim_end_matches(".rs").to_owned());
    let files: BTreeSet<String> =
        of_room.iter().filter_map(|source| inside(&source.path)?.split('/').next().map(str::to_owned)).collect();
    // names that the room's own file hands on
    let root = of_room.iter().find(|source| source.path == format!("src/{room}.rs")).map(|source| named(&source.code));
    let handed_on: BTreeMap<String, String> = root
        .unwrap_or_default()
        .iter()
        .filter_map(|path| {
            let file = path.split("::").find(|part| *part != "self")?;
            files.contains(file).then(|| (path.rsplit("::").next().unwrap_or_default().to_owned(), file.to_owned()))
        })
        .collect();
    let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in &of_room {
        let Some(place) = inside(&source.path) else { continue };
        let own = place.split('/').next().unwrap_or_default().to_owned();
        let up = "super::".repeat(place.split('/').count());
        for path in named(&source.code) {
            let absolute = format!("crate::{room}::");
            let Some(rest) = path.strip_prefix(&absolute).or_else(|| path.strip_prefix(&up)) else { continue };
            let name = rest.split("::").next().unwrap_or_default();
            let file = if files.contains(name) { Some(name) } else { handed_on.get(name).map(String::as_str) };
            if let Some(file) = file.filter(|file| *file != own) {
                found.entry(own.clone()).or_default().insert(file.to_owned(), path.clone());
            }
        }
    }
    found
}

/// All that a file imports, and what those import, and so on.
fn reached<'a>(from: &str, imports: &'a BTreeMap<String, BTreeMap<String, String>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for other in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(other.as_str()) {
                left.push(other);
            }
        }
    }
    found
}

/// Files import each other in one direction.
#[test]
fn files_import_each_other_in_one_direction() {
    let mut wrong = Vec::new();
    for (room, allowed) in CIRCLES {
        let imports = imports_in(room);
        assert!(imports.len() > 10, "{room}: the imports of {} files were read", imports.len());
        let circle_of = |file: &str| -> BTreeSet<&str> {
            let others = reached(file, &imports);
            others.into_iter().filter(|other| reached(other, &imports).contains(file)).collect()
        };
        let largest = imports.keys().map(|file| circle_of(file)).max_by_key(BTreeSet::len).unwrap_or_default();
        if largest.len() != *allowed {
            wrong.push(format!("{room}: the largest circle has {} files, not {allowed}", largest.len()));
            for (file, others) in imports.iter().filter(|(file, _)| largest.contains(file.as_str())) {
                let others = others.iter().filter(|(other, _)| largest.contains(other.as_str()));
                wrong.extend(others.map(|(other, path)| format!("  {file} imports {other}: {path}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The reader of imports reads every form.
#[test]
fn trees_of_imports_are_read() {
    assert_eq!(paths("a::{b, c::{d, e as f}, self}"), ["a::b", "a::c::d", "a::c::e", "a::self"]);
    assert_eq!(named("use super::a::B; fn f() { super::super::c::d() }"), ["super::a::B", "super::super::c::d"]);
}
