//! The types of the objects in blocks: by function names, debug information and source, against what the program itself
//! says of them.

use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::report::Report;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes by type as the program has printed them, and by type and certainty as heaptrace tells them.
struct Told {
    ledger: BTreeMap<String, u64>,
    types: BTreeMap<(String, String), u64>,
}

fn told(program: &Program, options: &[&str]) -> Told {
    let traced = program.traced_with(options);
    let text = traced.ended.text();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let ledger = lines.filter_map(|(name, bytes)| Some((name.to_owned(), bytes.parse().ok()?))).collect();
    let types = by_type(program, &traced.profile);
    assert_eq!(by_type_of_sites(&traced.report), types, "the sites of report.json tell the same");
    assert_eq!(by_type(program, &program.report_path()), types, "and what is read from it");
    Told { ledger, types }
}

/// What report.json says: one function may make objects of several types.
fn by_type_of_sites(report: &Report) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for site in report.sites() {
        let whole = site["type"].is_object().then(|| (&site["type"], &site["allocated"]));
        let parts = site["types"].as_array().into_iter().flatten().map(|part| (part, &part["allocated"]));
        for (of, allocated) in whole.into_iter().chain(parts) {
            let text = |key: &str| of[key].as_str().unwrap().to_owned();
            *sums.entry((text("name"), text("certainty"))).or_default() += allocated["bytes"].as_u64().unwrap();
        }
    }
    sums
}

/// What a saved profile says of types.
fn by_type(program: &Program, file: &Path) -> BTreeMap<(String, String), u64> {
    let args = ["report", file.to_str().unwrap(), "--by", "type", "--value", "allocated", "--json"];
    let answer = program.start_heaptrace(args).wait().success();
    let answer: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
    let groups = answer["groups"].as_array().unwrap().iter();
    let sums = groups.filter(|group| group["name"] != "[unknown]").map(|group| {
        let name = group["name"].as_str().unwrap();
        let (name, certainty) = name.strip_suffix(" (inferred)").map_or((name, "exact"), |name| (name, "inferred"));
        ((name.to_owned(), certainty.to_owned()), group["own_bytes"].as_u64().unwrap())
    });
    sums.collect()
}

fn assert_told(told: &Told, exact: &[&str], inferred: &[&str]) {
    for (names, certainty) in [(exact, "exact"), (inferred, "inferred")] {
        for name in names {
            let bytes = told.types.get(&((*name).to_owned(), certainty.to_owned()));
            assert_eq!(bytes, told.ledger.get(*name), "{name}, {certainty}: {:?}", told.types);
        }
    }
}

const CXX_BY_NAME: [&str; 4] = ["Made", "Item", "deep::Pair<Item>", "char"];

#[test]
fn types_of_cxx_are_those_that_the_program_allocates() {
    for flags in [&["-O1"][..], &["-O0"], &["-O2", "-gdwarf-4"]] {
        let told = told(&Program::new(fixtures::program_with("objects", flags)), &[]);
        assert_told(&told, &CXX_BY_NAME, &["Plain", "Record"]);
        let shared: Vec<_> = told.types.keys().filter(|(name, _)| name.contains("Shared")).collect();
        let named = |name: &str| name.starts_with("std::_Sp_counted_ptr_inplace<Shared");
        assert!(shared.len() == 1 && named(&shared[0].0) && shared[0].1 == "exact", "{shared:?}");
    }
}

/// libc++ calls its own things by other names.
#[test]
fn types_of_libcxx_are_those_that_the_program_allocates() {
    let told = told(&Program::new(fixtures::libcxx_program("objects", &["-O1"])), &[]);
    assert_told(&told, &CXX_BY_NAME, &["Plain", "Record"]);
}

/// Source is read only if that is wanted; what is told then is the same, less what only source tells.
#[test]
fn without_source_the_names_tell_what_they_can() {
    let program = Program::new(fixtures::program_with("objects", &["-O1"]));
    let (with, without) = (told(&program, &[]), told(&program, &["--no-source"]));
    let mut expected = with.types;
    expected.retain(|(name, _), _| name != "Plain" && name != "Record");
    assert!(expected.len() >= CXX_BY_NAME.len(), "{expected:?}");
    assert_eq!(without.types, expected);
}

/// Without debug information names of symbols are left: nothing that they tell is more than there is.
#[test]
fn without_debug_information_no_type_has_more_than_the_program_says() {
    let Told { ledger, types } = told(&Program::new(fixtures::program_with("objects", &["-O1", "-g0"])), &[]);
    for ((name, certainty), bytes) in &types {
        let known = ledger.get(name).is_some_and(|known| bytes <= known);
        assert!(known || name.starts_with("std::"), "{name} {certainty} {bytes}: {ledger:?}");
    }
    assert!(types.contains_key(&("char".to_owned(), "exact".to_owned())), "{types:?}");
}

#[test]
fn types_of_rust_are_those_that_the_program_allocates() {
    let exact = ["Boxed", "Item", "Queued"].map(|name| format!("rust_objects::{name}"));
    let counted = "alloc::sync::ArcInner<rust_objects::Counted>".to_owned();
    let exact: Vec<&str> = exact.iter().chain([&counted]).map(String::as_str).collect();
    assert_told(&told(&Program::fixture("rust_objects"), &[]), &exact, &[]);
}

/// A site of the report has a type if all its stacks have that one; those of a function that allocates several have
/// none.
#[test]
fn reports_name_the_types_of_sites() {
    let program = Program::new(fixtures::program_with("objects", &["-O1"]));
    let file = program.folder().join("types.json");
    let traced = program.traced_with(&["-o", file.to_str().unwrap()]);
    let of = |size: u64| {
        let mut sites = traced.report.sites().iter().filter(|site| site["allocated"]["bytes"] == size);
        sites.next().map(|site| site["type"].clone())
    };
    let told = told(&program, &[]);
    let both = told.ledger["Plain"] + told.ledger["Record"];
    assert_eq!(of(both), Some(serde_json::Value::Null), "{:?}", told.ledger);
    let item = serde_json::json!({ "name": "Item", "certainty": "exact" });
    assert_eq!(of(told.ledger["Item"]), Some(item));
    // a report has sites, whose types it keeps
    let report = by_type(&program, &file);
    assert_eq!(report.get(&("Item".to_owned(), "exact".to_owned())), told.ledger.get("Item"), "{report:?}");
}
