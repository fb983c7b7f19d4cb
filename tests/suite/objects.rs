//! The types of the objects in blocks: by function names, debug information and source, against what the program itself says of them.

use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use std::collections::BTreeMap;

/// What the program has printed: bytes by type.
fn ledger(traced: &Traced) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, bytes) = line.rsplit_once(' ')?;
        Some((name.to_owned(), bytes.parse().ok()?))
    };
    traced.ended.text().lines().filter_map(line).collect()
}

/// Bytes by type and certainty, as the report has them.
fn told(traced: &Traced) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for site in traced.report.sites() {
        if let (Some(name), Some(certainty)) = (site["type"]["name"].as_str(), site["type"]["certainty"].as_str()) {
            *sums.entry((name.to_owned(), certainty.to_owned())).or_insert(0) +=
                site["allocated"]["bytes"].as_u64().unwrap();
        }
    }
    sums
}

fn assert_told(traced: &Traced, exact: &[&str], inferred: &[&str]) {
    let (ledger, told) = (ledger(traced), told(traced));
    for (names, certainty) in [(exact, "exact"), (inferred, "inferred")] {
        for name in names {
            let bytes = told.get(&((*name).to_owned(), certainty.to_owned()));
            assert_eq!(bytes, ledger.get(*name), "{name}, {certainty}: {told:?}");
        }
    }
}

const CXX_BY_NAME: [&str; 4] = ["Made", "Item", "deep::Pair<Item>", "char"];

#[test]
fn types_of_cxx_are_those_that_the_program_allocates() {
    for flags in [&["-O1"][..], &["-O0"], &["-O2", "-gdwarf-4"]] {
        let program = Program::new(fixtures::program_with("objects", flags));
        let traced = program.traced();
        assert_told(&traced, &CXX_BY_NAME, &["Plain", "Record"]);
        let shared: Vec<_> = told(&traced).into_keys().filter(|(name, _)| name.contains("Shared")).collect();
        let named = |name: &str| name.starts_with("std::_Sp_counted_ptr_inplace<Shared");
        assert!(shared.len() == 1 && named(&shared[0].0) && shared[0].1 == "exact", "{shared:?}");
    }
}

/// libc++ calls its own things by other names.
#[test]
fn types_of_libcxx_are_those_that_the_program_allocates() {
    let traced = Program::new(fixtures::libcxx_program("objects", &["-O1"])).traced();
    assert_told(&traced, &CXX_BY_NAME, &["Plain", "Record"]);
}

/// Source is read only if that is wanted; what is told then is the same, less what only source tells.
#[test]
fn without_source_the_names_tell_what_they_can() {
    let program = Program::new(fixtures::program_with("objects", &["-O1"]));
    let (with, without) = (program.traced(), program.traced_with(&["--no-source"]));
    let mut expected = told(&with);
    expected.retain(|(name, _), _| name != "Plain" && name != "Record");
    assert_eq!(told(&without), expected);
}

/// Without debug information names of symbols are left: nothing that they tell is more than there is.
#[test]
fn without_debug_information_no_type_has_more_than_the_program_says() {
    let traced = Program::new(fixtures::program_with("objects", &["-O1", "-g0"])).traced();
    let (ledger, told) = (ledger(&traced), told(&traced));
    for ((name, certainty), bytes) in &told {
        let known = ledger.get(name).is_some_and(|known| bytes <= known);
        assert!(known || name.starts_with("std::"), "{name} {certainty} {bytes}: {ledger:?}");
    }
    assert!(told.contains_key(&("char".to_owned(), "exact".to_owned())), "{told:?}");
}

#[test]
fn types_of_rust_are_those_that_the_program_allocates() {
    let traced = Program::fixture("rust_objects").traced();
    let exact = ["Boxed", "Item", "Queued"].map(|name| format!("rust_objects::{name}"));
    let counted = "alloc::sync::ArcInner<rust_objects::Counted>".to_owned();
    let exact: Vec<&str> = exact.iter().chain([&counted]).map(String::as_str).collect();
    assert_told(&traced, &exact, &[]);
}

/// The label of pprof files: read back, and by the command that sums by type.
#[test]
fn files_keep_types() {
    let program = Program::new(fixtures::program_with("objects", &["-O1"]));
    let folder = program.folder();
    let [json, pprof] = ["objects.json", "objects.pb.gz"].map(|name| folder.join(name));
    let outputs = ["-o", json.to_str().unwrap(), "-o", pprof.to_str().unwrap()];
    let traced = program.traced_with(&outputs);
    let of_program = ledger(&traced);
    for file in [&json, &pprof] {
        let args = ["report", file.to_str().unwrap(), "--by", "type", "--value", "allocated", "--json"];
        let answer = program.start_heaptrace(args).wait().success();
        let answer: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
        let bytes = |name: &str| {
            let group = answer["groups"].as_array().unwrap().iter().find(|group| group["name"] == name);
            group.and_then(|group| group["own_bytes"].as_u64())
        };
        for (name, told) in [("Plain", "Plain (inferred)"), ("Made", "Made"), ("char", "char")] {
            assert_eq!(bytes(told), of_program.get(name).copied(), "{}: {answer}", file.display());
        }
    }
}
