//! What CI systems read. xmllint is needed to run these tests.

use super::*;
use crate::export::github::annotations;
use crate::export::problems::{best_line, problems, source_line};
use crate::export::view::View;
use crate::profile::check::verdict::{Completeness, Policy, judge};
use serde_json::Value;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The sample with a rule and a baseline, judged.
fn judged(mut profile: Profile) -> Profile {
    judge(&mut profile, &Policy::default(), &Completeness::default());
    profile
}

/// Names that break formats which don't escape.
fn evil() -> Profile {
    let mut profile = check_profile();
    for (i, function) in profile.functions.iter_mut().enumerate() {
        function.name = format!("f{i}<&\"']]>`|*_%,:\u{1}\u{fffe}\n::error::x```\n\u{fc}");
        function.file = Some("/home/user/a b%,:<&\"'\u{fc}.c".to_owned());
    }
    profile.meta.process.program = "p<&\"'\u{1b}".to_owned();
    profile.suppressions[0].rule = "<&\"\u{2}".to_owned();
    profile.children.untraced_names = vec!["<&\u{3}%\n".to_owned()];
    judged(profile)
}

fn all() -> [Profile; 5] {
    let mut unfinished = check_profile();
    unfinished.verdict = None;
    let mut blind = check_profile();
    (blind.anomalies.lost, blind.meta.process.exit) = (1, Some(Exit::Signal(11)));
    [judged(check_profile()), judged(empty_profile()), evil(), unfinished, judged(blind)]
}

/// Runs xmllint on a text; what it prints.
fn xmllint(arguments: &[&str], text: &str) -> String {
    let mut child = Command::new("xmllint")
        .args(arguments)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xmllint is installed");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("read");
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

#[test]
fn junit_is_valid_whatever_the_names() {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/src/export/tests/junit.xsd");
    for profile in all() {
        let text = exported_text(Format::JUnit, &profile);
        xmllint(&["--noout", "--schema", schema], &text);
        let counted = |what: &str| xmllint(&["--xpath", &format!("string(/testsuites/testsuite/@{what})")], &text);
        let there = |path: &str| xmllint(&["--xpath", &format!("count(//{path})")], &text);
        for (attribute, path) in [
            ("tests", "testcase"),
            ("failures", "testcase[failure]"),
            ("errors", "testcase[error]"),
            ("skipped", "testcase[skipped]"),
        ] {
            assert_eq!(counted(attribute), there(path), "{attribute} in {text}");
        }
    }
}

/// Who reads a title and goes to the line is at that function, also where the innermost is a library's, from a header.
#[test]
fn function_and_line_of_a_problem_are_of_one_frame() {
    for change in 0..check_profile().functions.len() {
        let mut profile = check_profile();
        profile.functions[change].file = Some("/opt/library/list.h".to_owned());
        let profile = judged(profile);
        let view = View::new(&profile);
        for problem in problems(&view) {
            let stack = problem.stacks[0].1;
            let line = best_line(&view, stack);
            let is_there =
                view.frames(stack).any(|frame| frame.name == problem.function && source_line(&view, &frame) == line);
            assert!(is_there, "{} has {line:?}", problem.function);
        }
    }
}

#[test]
fn junit_of_a_check() {
    insta::assert_snapshot!(exported_text(Format::JUnit, &judged(check_profile())));
}

/// The rules of the standard that the schema can't say, and those of GitHub's documentation of SARIF.
#[test]
fn sarif_keeps_the_standard_s_rules() {
    for profile in all() {
        let log: Value = serde_json::from_slice(&exported(Format::Sarif, &profile)).expect("JSON");
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
        let bases = run["originalUriBaseIds"].as_object().expect("bases");
        assert!(bases["SRCROOT"]["uri"].as_str().is_some_and(|uri| uri.starts_with("file:///") && uri.ends_with('/')));
        assert!(run["invocations"][0]["executionSuccessful"].is_boolean());
        for result in run["results"].as_array().expect("results") {
            let index = result["ruleIndex"].as_u64().expect("an index") as usize;
            assert_eq!(rules[index]["id"], result["ruleId"]);
            assert!(["error", "warning"].contains(&result["level"].as_str().expect("a level")));
            assert!(!result["message"]["text"].as_str().expect("a text").is_empty());
            assert_eq!(result["partialFingerprints"]["heaptraceId/v1"].as_str().map(str::len), Some(16));
            let state = &result["baselineState"];
            assert!(state.is_null() || ["new", "updated", "unchanged"].contains(&state.as_str().expect("a state")));
            assert_eq!(result["locations"].as_array().map(Vec::len), Some(1));
            let flows = result["codeFlows"][0]["threadFlows"].as_array().expect("flows");
            assert_eq!(flows.len(), result["stacks"].as_array().expect("stacks").len());
            assert!(flows.iter().all(|flow| !flow["locations"].as_array().expect("locations").is_empty()));
        }
        let mut places = Vec::new();
        find(&log, "physicalLocation", &mut places);
        for place in places {
            assert!(place["region"]["startLine"].as_u64().is_some_and(|line| line > 0), "{place}");
            let artifact = &place["artifactLocation"];
            let uri = artifact["uri"].as_str().expect("a URI");
            assert!(uri.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>\"\\^`{|}".contains(&byte)), "{uri}");
            // a relative reference's first segment must not look like a scheme
            let relative =
                artifact["uriBaseId"] == "SRCROOT" && !uri.split('/').next().is_some_and(|s| s.contains(':'));
            assert!(relative || uri.starts_with("file:///"), "{place}");
        }
    }
}

/// All values of a key, at any depth.
fn find<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key));
            fields.values().for_each(|field| find(field, key, found));
        }
        Value::Array(items) => items.iter().for_each(|item| find(item, key, found)),
        _ => {}
    }
}

#[test]
fn sarif_of_a_check() {
    let log: Value = serde_json::from_slice(&exported(Format::Sarif, &judged(check_profile()))).expect("JSON");
    let results = log["runs"][0]["results"].as_array().expect("results");
    let told: Vec<String> = results
        .iter()
        .map(|result| {
            let place = &result["locations"][0]["physicalLocation"];
            let (state, hidden) = (&result["baselineState"], !result["suppressions"].is_null());
            let (uri, line) = (&place["artifactLocation"]["uri"], &place["region"]["startLine"]);
            format!("{} {} {uri}:{line} {state} {hidden}", result["level"], result["ruleId"])
        })
        .collect();
    assert_eq!(
        told,
        [
            "\"error\" \"double_free\" \"src/main.c\":55 null false",
            "\"error\" \"leak_definite\" \"src/node.c\":9 \"updated\" false",
            "\"warning\" \"leak_definite\" \"src/beta.rs\":3 null true",
            "\"warning\" \"leak_possible\" \"src/node.c\":9 \"unchanged\" false",
            "\"warning\" \"leak_possible\" null:null null false",
        ]
    );
    let flow = &results[1]["codeFlows"][0]["threadFlows"][0]["locations"];
    let names: Vec<&str> =
        flow.as_array().expect("a flow").iter().filter_map(|at| at["location"]["message"]["text"].as_str()).collect();
    assert_eq!(names, ["main", "parse_document", "new_node"], "from the outermost function on");
}

#[test]
fn markdown_of_a_check() {
    insta::assert_snapshot!(exported_text(Format::Markdown, &judged(check_profile())));
}

#[test]
fn markdown_leaves_no_name_unescaped() {
    let text = exported_text(Format::Markdown, &evil());
    for line in text.lines() {
        assert!(!line.contains("f0<&") || line.starts_with("    "), "outside of a code block: {line}");
    }
    assert_eq!(text.matches("```").count() % 2, 0);
    assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
}

#[test]
fn github_annotations_of_a_check() {
    let lines = annotations(&judged(check_profile()));
    assert_eq!(
        lines.lines().collect::<Vec<_>>(),
        [
            "::error title=heaptrace%3A app::1 error in the use of the heap; 3,200 bytes in 5 blocks leaked that the baseline does \
             not know (definite, indirect)",
            "::error file=src/main.c,line=55,title=freed twice in clean;up (heaptrace)::freed twice: the block at \
             0x555555570010 (64 bytes), by free in thread worker; 3 times",
            "::error file=src/node.c,line=9,title=definite leak in new_node (heaptrace)::3,200 bytes in 5 blocks (3,072 direct \
             + 128 indirect) are definitely lost",
            "::warning file=src/node.c,line=9,title=possible leak in new_node (heaptrace)::1,024 bytes in 1 block are possibly \
             lost",
            "::warning title=possible leak in [unknown stack] (heaptrace)::32 bytes in 1 block are possibly lost",
        ]
    );
    assert_eq!(annotations(&judged(empty_profile())).lines().count(), 1, "inconclusive: not read");
    // no name begins a command of its own, or ends a property
    for line in annotations(&evil()).lines() {
        assert!(line.starts_with("::error ") || line.starts_with("::warning "), "{line}");
        let properties = line.split("::").nth(1).expect("properties");
        assert!(properties.split(',').all(|property| property.split('=').count() == 2), "{properties}");
    }
}

/// Sites that differ in lines only are one problem: CI systems follow it by its id.
#[test]
fn sites_of_one_id_are_one_problem() {
    let mut profile = check_profile();
    let mut stack = profile.stacks.row(0);
    stack.locations[1] = 8;
    profile.stacks.push(stack);
    let leaks = profile.leaks.as_mut().expect("leaks");
    let mut site = leaks.sites[0].clone();
    site.stack = 6;
    leaks.sites.push(site);
    let text = exported_text(Format::JUnit, &judged(profile));
    assert_eq!(text.matches("definite leak in new_node").count(), 1);
    assert!(text.contains("6,400 bytes in 10 blocks (6,144 direct + 256 indirect)"), "{text}");
}

#[test]
fn leaks_within_their_budget_fail_nowhere() {
    let mut profile = check_profile();
    profile.findings.clear();
    let limits = crate::profile::check::verdict::Limits { max_leaked_bytes: Some(3200), ..Default::default() };
    judge(&mut profile, &Policy { limits, ..Policy::default() }, &Completeness::default());
    assert_eq!(profile.verdict.as_ref().map(|verdict| verdict.exit_status), Some(0));
    assert!(!exported_text(Format::JUnit, &profile).contains("<failure"));
    assert!(!annotations(&profile).contains("::error"));
}
