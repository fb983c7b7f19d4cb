//! tests/SCENARIOS.md is the list that tests are named by: each id in a test's name stands there, and each that stands
//! there is tried.

use super::{package, rust_files, without_texts};
use std::collections::BTreeMap;

/// The ids that the name of a test begins with: `t22` and `t23` of `t22_t23_signal_handler…`.
fn ids(name: &str) -> Vec<&str> {
    name.split('_').take_while(|part| is_id(part)).collect()
}

fn is_id(part: &str) -> bool {
    part.len() == 3 && part.starts_with(['t', 'j']) && part[1..].bytes().all(|byte| byte.is_ascii_digit())
}

/// The functions of a file that tests are: their names begin behind `fn`.
fn functions(code: &str) -> impl Iterator<Item = &str> {
    let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    std::iter::from_fn(move || {
        words.find(|word| *word == "fn")?;
        words.next()
    })
}

/// Each id of the list with the rest of its line.
fn listed() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(package().join("tests/SCENARIOS.md")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("- "));
    lines
        .map(|line| {
            let (id, rest) = line.split_once(": ").unwrap_or_else(|| panic!("no id: {line}"));
            (id.to_lowercase(), rest.to_owned())
        })
        .collect()
}

#[test]
fn names_are_read() {
    assert_eq!(ids("t22_t23_signal_handler_and_longjmp"), ["t22", "t23"]);
    assert_eq!(ids("t23_or_t10"), ["t23"]);
    assert!(ids("tells_a_reason").is_empty() && ids("t1_x").is_empty() && ids("j1a_x").is_empty());
    let code = without_texts("fn t01_a() {} // fn t02_b\nasync fn j03_c() { \"fn t04_d\" }");
    assert_eq!(functions(&code).collect::<Vec<_>>(), ["t01_a", "j03_c"]);
}

/// A newcomer who meets `t42_…` finds what it stands for, and nothing is listed that nobody tries.
#[test]
fn tests_are_named_by_the_list_of_scenarios() {
    let mut files = Vec::new();
    rust_files(&package().join("tests"), &mut files);
    rust_files(&package().join("src"), &mut files);
    let mut tests: BTreeMap<String, String> = BTreeMap::new();
    for file in files {
        let code = without_texts(&std::fs::read_to_string(&file).unwrap());
        for name in functions(&code) {
            for id in ids(name) {
                tests.insert(id.to_owned(), name.to_owned());
            }
        }
    }
    let listed = listed();
    let mut wrong = Vec::new();
    for (id, name) in &tests {
        if !listed.iter().any(|(known, _)| known == id) {
            wrong.push(format!("{name}: tests/SCENARIOS.md has no line {}", id.to_uppercase()));
        }
    }
    for (index, (id, rest)) in listed.iter().enumerate() {
        if !is_id(id) || listed[..index].iter().any(|(earlier, _)| earlier == id) {
            wrong.push(format!("tests/SCENARIOS.md: {id} is no id, or stands there twice"));
        }
        if tests.contains_key(id) == rest.contains("where it is tried: ") {
            wrong.push(format!("tests/SCENARIOS.md: {id} needs a test, or else \"where it is tried: …\""));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
