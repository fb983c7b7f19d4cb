//! Advice: its figures are those that the program has counted itself, and there is none where there is nothing to advise.

use crate::support::program::{Program, Traced};
use crate::support::report::{functions_of, plain};
use serde_json::{Value, json};

/// What a function of the program says of itself.
fn counted(traced: &Traced, function: &str) -> Vec<u64> {
    let text = traced.ended.text();
    let line =
        text.lines().find_map(|line| line.strip_prefix(&format!("{function} "))).unwrap_or_else(|| panic!("{text}"));
    line.split(' ').map(|figure| figure.parse().unwrap()).collect()
}

/// The advice of a kind, of which there is one at the function.
fn told<'a>(traced: &'a Traced, kind: &str, function: &str) -> &'a Value {
    let all = traced.report.0["advice"].as_array().unwrap();
    let is_there = |of: &Value| functions_of(of).iter().any(|name| plain(name) == function);
    let found: Vec<&Value> = all.iter().filter(|of| of["kind"] == kind && is_there(of)).collect();
    assert_eq!(found.len(), 1, "{kind} at {function}: {all:#?}");
    found[0]
}

#[test]
fn advice_has_the_figures_that_the_program_counts() {
    let program = Program::fixture("advised");
    let traced = program.traced();
    for function in ["fill", "append"] {
        let [buffers, growths, copies, copied, largest] = counted(&traced, function)[..] else { panic!() };
        let expected = json!({
            "buffers": buffers, "growths": growths, "copies": copies, "copied_bytes": copied, "largest_bytes": largest,
        });
        let advice = told(&traced, "growth", function);
        assert_eq!(advice["figures"], expected, "{function}");
        assert!(copies > 8, "{function}: {copies}");
    }
    let figures = |kind, function| &told(&traced, kind, function)["figures"];
    let temporaries = figures("temporaries", "moment");
    let [times] = counted(&traced, "moment")[..] else { panic!() };
    assert_eq!((&temporaries["temporary"], &temporaries["allocations"]), (&json!(times), &json!(times)));
    assert_eq!(temporaries["all_allocations"], traced.report.total("allocations"));
    let [size, excess, blocks, bytes] = counted(&traced, "just_too_large")[..] else { panic!() };
    let expected = json!({ "size": size, "excess": excess, "blocks": blocks, "bytes": bytes });
    assert_eq!(figures("size_class", "just_too_large"), &expected);
    let [elsewhere, freed, bytes] = counted(&traced, "hand_over")[..] else { panic!() };
    let expected = json!({ "freed_elsewhere": elsewhere, "freed": freed, "bytes": bytes });
    assert_eq!(figures("freed_elsewhere", "hand_over"), &expected);
    let [blocks, bytes] = counted(&traced, "most_of_all")[..] else { panic!() };
    let expected = json!({ "blocks": blocks, "bytes": bytes, "peak_bytes": traced.report.total("peak_bytes") });
    assert_eq!(figures("largest_at_peak", "most_of_all"), &expected);
    assert_eq!(traced.report.list("/advice").len(), 6, "{:#?}", traced.report.list("/advice"));

    // people are told the first of them, in the same words
    let said = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for advice in traced.report.list("/advice").iter().take(5) {
        let text = advice["text"].as_str().unwrap();
        assert!(said.contains(text), "{text}: {said}");
        assert!(text.contains("advised.cc:"), "a place: {text}");
    }
}

/// What is read from a report is what it says, whatever it is made into.
#[test]
fn advice_stays_in_a_report_that_is_read() {
    let program = Program::fixture("advised");
    let (json, again) = (program.outside("x.json"), program.outside("y.json"));
    program.start_traced(&["-o", json.to_str().unwrap()]).wait().success();
    let ended = program
        .start_heaptrace(["report", json.to_str().unwrap(), "-o", again.to_str().unwrap()].map(str::to_owned))
        .wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let read = |path: &std::path::Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let texts = |report: &Value| -> Vec<Value> {
        report["advice"]
            .as_array()
            .unwrap()
            .iter()
            .map(|advice| json!([advice["text"], advice["figures"], advice["site"]]))
            .collect()
    };
    assert_eq!(texts(&read(&again)), texts(&read(&json)));
    assert_eq!(texts(&read(&json)).len(), 6);
}

/// Little programs that keep what they have: nothing proves that they could do better.
#[test]
fn no_advice_without_proof() {
    for fixture in ["peak", "threads"] {
        let traced = Program::fixture(fixture).traced();
        assert_eq!(traced.report.list("/advice"), &[] as &[Value], "{fixture}");
        assert!(!traced.ended.stderr.contains("Advice"), "{}", traced.ended.stderr);
    }
}
