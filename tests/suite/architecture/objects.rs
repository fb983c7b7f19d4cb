//! Objects stay objects: the methods of a type stand where the type does, and are few enough to know.

use super::{Source, code_of, is_test_code, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Inherent methods of one type, associated functions among them. Who changes a type reads all of them first: beyond
/// this, nobody does, and it becomes the owner of everything.
const MAX_METHODS: usize = 60;

/// Types that may have fewer: a process is dispatch, and what it consists of decides.
const SMALL: &[(&str, &str, usize)] = &[("Process", "src/session/process.rs", 40)];

/// Types that have methods in other places too, the file of each, and how many other files that is. The figures may
/// only become smaller.
const SCATTERED: &[(&str, &str, usize)] = &[
    ("Area", "src/heap/walk/mimalloc3/arenas.rs", 1),
    ("Graph", "src/heap/leaks/graph.rs", 2),
    ("Process", "src/session/process.rs", 6),
    ("Recording", "src/session/recording.rs", 4),
    ("Rule", "src/unwinder/rule.rs", 1),
    ("Search", "src/symbols/files.rs", 1),
    ("Stream", "src/session/observer/stream.rs", 1),
    ("Teardown", "src/session/teardown.rs", 4),
    ("Tracee", "src/session/tracee.rs", 3),
    ("Work", "src/commands/conclude.rs", 1),
];

/// The inherent methods that one block adds to a type.
struct Inherent {
    name: String,
    methods: usize,
}

/// The identifiers that follow a word, as `struct` or `fn`.
fn named_by<'a>(code: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    let is_of_word = |character: char| character.is_alphanumeric() || character == '_';
    code.match_indices(keyword).filter_map(move |(at, _)| {
        let (before, after) = (&code[..at], &code[at + keyword.len()..]);
        let name = after.trim_start();
        let is_word = !before.ends_with(is_of_word) && name.len() < after.len();
        let end = name.find(|character| !is_of_word(character)).unwrap_or(name.len());
        (is_word && end > 0).then(|| &name[..end])
    })
}

/// The types that a file defines.
fn types(code: &str) -> impl Iterator<Item = &str> {
    ["struct", "enum", "union"].into_iter().flat_map(|keyword| named_by(code, keyword))
}

/// What stands in front of the brace that closes, for one that has just opened.
fn inside(code: &str) -> &str {
    let mut depth = 1;
    let end = code.find(|character| {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    &code[..end.unwrap_or(code.len())]
}

/// The code without what stands in inner braces.
fn outermost(code: &str) -> String {
    let mut depth = 0;
    let is_outer = |character: &char| {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth == 0
    };
    code.chars().filter(is_outer).collect()
}

/// The code behind a list of generic parameters, if it begins with one.
fn without_generics(code: &str) -> &str {
    if !code.starts_with('<') {
        return code;
    }
    let mut depth = 0;
    let mut last = ' ';
    let end = code.find(|character| {
        match character {
            '<' => depth += 1,
            // no arrow of a closure's type
            '>' if last != '-' => depth -= 1,
            _ => {}
        }
        last = character;
        depth == 0
    });
    end.map_or("", |end| &code[end + 1..])
}

/// The inherent `impl` blocks of a file.
fn inherent(code: &str) -> Vec<Inherent> {
    let begins = code.match_indices("impl").filter_map(|(at, keyword)| {
        let line = code[..at].rsplit('\n').next().unwrap_or_default();
        let rest = &code[at + keyword.len()..];
        // not the type of an argument or a result
        let is_item = line.split_whitespace().all(|word| word == "unsafe") && rest.starts_with([' ', '<']);
        is_item.then(|| without_generics(rest))
    });
    let blocks = begins.filter_map(|rest| {
        let (head, body) = rest.split_once('{')?;
        let mut words = head.split_whitespace();
        let is_of_trait = words.clone().any(|word| word == "for");
        let path = words.next()?.split('<').next()?;
        let name = path.rsplit("::").next()?.to_owned();
        (!is_of_trait).then(|| Inherent { name, methods: named_by(&outermost(inside(body)), "fn").count() })
    });
    blocks.collect()
}

/// Whether a file is that of a type which `defined` defines, or lies in its folder.
fn is_own(defined: &str, file: &str) -> bool {
    file == defined || file.strip_prefix(defined.trim_end_matches(".rs")).is_some_and(|rest| rest.starts_with('/'))
}

/// How many folders two files have in common.
fn common_folders(a: &str, b: &str) -> usize {
    a.split('/').zip(b.split('/')).take_while(|(a, b)| a == b).count()
}

/// A type with all that has been found of it.
#[derive(Default)]
struct Object {
    methods: usize,
    /// Files that add methods, and are neither its own nor in its folder.
    elsewhere: BTreeSet<String>,
}

/// Every type that has methods, by its name and the file that defines it: of several of one name, the nearest to the
/// methods, or the first of those.
fn objects(sources: &[Source]) -> BTreeMap<(String, String), Object> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources {
        for name in types(&source.code) {
            places.entry(name).or_default().push(&source.path);
        }
    }
    let mut objects: BTreeMap<(String, String), Object> = BTreeMap::new();
    for source in sources {
        for Inherent { name, methods } in inherent(&source.code) {
            let nearness = |place: &&&str| (is_own(place, &source.path), common_folders(place, &source.path));
            let defined = places.get(name.as_str()).and_then(|places| places.iter().rev().max_by_key(nearness));
            let place = defined.copied().unwrap_or("no file of src");
            let object = objects.entry((name, place.to_owned())).or_default();
            object.methods += methods;
            if !is_own(place, &source.path) {
                object.elsewhere.insert(source.path.clone());
            }
        }
    }
    objects
}

fn objects_of_the_program() -> BTreeMap<(String, String), Object> {
    let sources: Vec<_> = sources().into_iter().filter(|source| !is_test_code(&source.path)).collect();
    let objects = objects(&sources);
    assert!(objects.len() > 300, "{} types with methods", objects.len());
    objects
}

/// Where figures of types are over `limit`, and not just what the list of exceptions says.
fn differences(
    objects: &BTreeMap<(String, String), Object>,
    figure: impl Fn(&Object) -> usize,
    limit: usize,
    exceptions: &[(&str, &str, usize)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for ((name, place), object) in objects {
        let found = figure(object);
        let excepted = exceptions.iter().find(|(of, at, _)| of == name && at == place).map(|(.., figure)| *figure);
        match excepted {
            None if found > limit => wrong.push(format!("{name} of {place}: {found}, and may have {limit}")),
            Some(excepted) if found > excepted => {
                wrong.push(format!("{name} of {place}: {found}, and may have {excepted}"));
            }
            Some(excepted) if found < excepted => {
                wrong.push(format!("{name} of {place}: {found}, which the list of exceptions should say"));
            }
            _ => {}
        }
    }
    let gone = exceptions.iter().filter(|(name, place, figure)| {
        *figure <= limit || !objects.contains_key(&((*name).to_owned(), (*place).to_owned()))
    });
    wrong.extend(gone.map(|(name, place, _)| format!("{name} of {place} is no exception any more")));
    wrong
}

/// No type has more methods than one reads.
#[test]
fn no_object_does_everything() {
    let objects = objects_of_the_program();
    let mut wrong = differences(&objects, |object| object.methods, MAX_METHODS, &[]);
    for (name, place, most) in SMALL {
        let found = objects[&((*name).to_owned(), (*place).to_owned())].methods;
        if found > *most {
            wrong.push(format!("{name} of {place}: {found}, and may have {most}"));
        }
    }
    assert!(wrong.is_empty(), "methods:\n{}", wrong.join("\n"));
}

/// Who reads the file and the folder of a type has seen all that it does.
#[test]
fn methods_stand_where_their_type_does() {
    let objects = objects_of_the_program();
    let wrong = differences(&objects, |object| object.elsewhere.len(), 0, SCATTERED);
    let places = objects.iter().filter(|(_, object)| !object.elsewhere.is_empty());
    let places = places.map(|((name, _), object)| format!("{name}: {:?}", object.elsewhere));
    assert!(
        wrong.is_empty(),
        "other files with methods:\n{}\n\n{}",
        wrong.join("\n"),
        places.collect::<Vec<_>>().join("\n")
    );
}

/// The reader of methods knows every form in which they are written.
#[test]
fn methods_are_read() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        module: String::new(),
        code: code_of(text),
        lines: text.lines().count(),
    };
    let sources = [
        source(
            "src/a/b.rs",
            "pub struct B<'a>(&'a str);\nimpl<'a, F: Fn(u8) -> u8> B<'a> {\n    pub const fn one() { fn inner() {} }\n\
             pub(super) fn two(f: fn(u8)) -> impl Iterator { match 1 { _ => {} } }\n}\n\
             impl Drop for B<'_> {\n    fn drop(&mut self) {}\n}\nfn free() {}\n#[cfg(test)]\nmod tests { impl B { fn no() {} } }",
        ),
        source(
            "src/a/b/c.rs",
            "impl super::B<'_>\nwhere\n    u8: for<'x> X<'x>,\n{\n    // fn no() {}\n    fn three() {}\n}",
        ),
        source("src/a/d.rs", "impl B<'_> { fn four() {} }"),
        source("src/e.rs", "enum B { X }\nimpl B { fn other() {} }"),
    ];
    let objects = objects(&sources);
    let of = |place: &str| &objects[&("B".to_owned(), place.to_owned())];
    assert_eq!((of("src/a/b.rs").methods, of("src/e.rs").methods, objects.len()), (4, 1, 2));
    assert_eq!(of("src/a/b.rs").elsewhere, BTreeSet::from(["src/a/d.rs".to_owned()]));
    assert!(of("src/e.rs").elsewhere.is_empty());
    let wrong = |exceptions| differences(&objects, |object| object.methods, 3, exceptions).len();
    assert_eq!(wrong(&[("B", "src/a/b.rs", 4)]), 0);
    assert_eq!([wrong(&[]), wrong(&[("B", "src/a/b.rs", 5)]), wrong(&[("B", "src/e.rs", 3)])], [1, 1, 3]);
}
