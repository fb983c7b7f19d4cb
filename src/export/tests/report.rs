//! report.json holds what its schema promises, and the schema refuses what it does not.

use super::*;
use serde_json::Value;

fn schema() -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/report.schema.json")).expect("JSON");
    jsonschema::draft202012::meta::validate(&schema).expect("a schema of draft 2020-12");
    jsonschema::validator_for(&schema).expect("a usable schema")
}

fn report(profile: &Profile) -> Value {
    serde_json::from_slice(&exported(Format::Json, profile)).expect("JSON")
}

#[test]
fn every_report_is_valid() {
    let schema = schema();
    let mut killed = sample_profile();
    killed.meta.process.exit = Some(Exit::Signal(9));
    killed.meta.sample_interval = 4096;
    killed.locations[0].module = None;
    for profile in [sample_profile(), attach_profile(), empty_profile(), check_profile(), killed] {
        let report = report(&profile);
        let errors: Vec<String> = schema.iter_errors(&report).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

/// Two processes of one tree have the same code at different addresses.
#[test]
fn equal_frames_of_different_locations_are_written_once() {
    let mut profile = sample_profile();
    let moved = profile.locations.len();
    profile.locations.push(Location { address: Addr(0x7777_0000_1100), ..profile.locations[0].clone() });
    profile.stacks.edit(|stacks| stacks[2].locations = vec![moved as u32, 5]);
    let report = report(&profile);
    let stack = |at: usize| {
        let site = report["sites"].as_array().expect("sites").iter().find(|site| site["allocated"]["objects"] == at);
        site.expect("the site")["stack"].as_array().expect("a stack").clone()
    };
    assert_eq!(stack(10)[..2], stack(100)[..2]);
    let frames = report["frames"].as_array().expect("frames");
    for (index, frame) in frames.iter().enumerate() {
        assert!(!frames[..index].contains(frame), "{frame} stands there twice");
    }
}

#[test]
fn the_schema_misses_no_field_and_knows_no_other() {
    let schema = schema();
    let good = report(&check_profile());
    let places = [
        "",
        "/totals",
        "/resident",
        "/cost",
        "/anomalies",
        "/modules/0",
        "/images/0",
        "/sites/0",
        "/frames/0",
        "/verdict",
        "/leaks",
        "/leaks/definite",
        "/findings/0",
        "/findings/1",
        "/findings/6/path/0",
        "/suppressions/0",
        "/budgets/0",
    ];
    for place in places {
        let names: Vec<String> = good.pointer(place).and_then(Value::as_object).expect(place).keys().cloned().collect();
        for name in names {
            let mut without = good.clone();
            without.pointer_mut(place).and_then(Value::as_object_mut).expect(place).remove(&name);
            assert!(!schema.is_valid(&without), "{place} without {name}");
        }
        let mut more = good.clone();
        more.pointer_mut(place).and_then(Value::as_object_mut).expect(place).insert("more".into(), Value::Null);
        assert!(!schema.is_valid(&more), "{place} with another field");
    }
    let mut nameless = good;
    nameless["frames"][0]["function"] = Value::Null;
    assert!(!schema.is_valid(&nameless), "function is never null");
}

#[test]
fn fields_stand_in_the_order_of_the_contract() {
    let text = exported_text(Format::Json, &sample_profile());
    let order = [
        "version",
        "heaptrace_version",
        "mode",
        "part",
        "program",
        "pid",
        "command",
        "cwd",
        "started_at",
        "duration_ns",
        "engine",
        "promotion",
        "complete",
        "exit",
        "verdict",
        "totals",
        "resident",
        "cost",
        "anomalies",
        "sampling",
        "allocators",
        "modules",
        "images",
        "children",
        "timeline",
        "histograms",
        "frames",
        "sites",
        "leaks",
        "findings",
        "suppressions",
        "budgets",
        "warnings",
    ];
    let mut from = 0;
    for name in order {
        let at = text[from..].find(&format!("\"{name}\":"));
        from += at.unwrap_or_else(|| panic!("{name} is missing, or too early"));
    }
}

#[test]
fn report_json() {
    let text = exported_text(Format::Json, &sample_profile());
    assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "one line");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    insta::assert_snapshot!(serde_json::to_string_pretty(&report).expect("printable"));
}

#[test]
fn report_json_of_a_check() {
    let report = report(&check_profile());
    let judged =
        ["verdict", "frames", "leaks", "findings", "suppressions", "budgets"].map(|name| (name, &report[name]));
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&std::collections::BTreeMap::from(judged)).expect("printable")
    );
}
