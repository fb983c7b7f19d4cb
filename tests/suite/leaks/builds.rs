//! examples/ci and action.yml: tests that build tools and GitHub's runner start under `heaptrace check`. Exactly the
//! one that leaks fails.

use super::ci::{examples_of, shell};
use crate::support::fixtures;
use crate::support::program::Program;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The project of the examples, in a folder of its own.
fn project() -> Program {
    let program = Program::new("/bin/bash");
    for entry in std::fs::read_dir(package("examples/ci")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            crate::support::copy_file(&path, program.folder().join(path.file_name().unwrap())).unwrap();
        }
    }
    program
}

/// Runs a script there: whether it succeeded, and what it said.
fn run(script: &str) -> (bool, String) {
    let ended = shell(project().env("LC_ALL", "C.UTF-8").env("HOME", "/nonexistent"), script).plain();
    (ended.status.success(), format!("{}\n{}", ended.text(), ended.stderr))
}

/// Of a script that runs the tests `tidy` and `leaky` under heaptrace: the former passes, the latter fails for its
/// leak. `line` tells what the tool says of one.
#[track_caller]
fn only_the_leaky_one_fails(script: &str, line: impl Fn(&str, bool) -> &'static str) {
    let (success, said) = run(script);
    assert!(!success, "{script}\n{said}");
    let has =
        |name: &str, passed: bool| said.lines().any(|text| text.contains(name) && text.contains(line(name, passed)));
    assert!(has("tidy", true) && !has("tidy", false), "{script}\n{said}");
    assert!(has("leaky", false) && !has("leaky", true), "{script}\n{said}");
    assert!(said.contains("renamed") && said.contains("leaky.c:7"), "where it is lost\n{said}");
    assert!(said.contains("LEAKS: 4 bytes in 1 block leaked"), "{said}");
}

#[test]
fn ctest() {
    let line = |_: &str, passed| if passed { "Passed" } else { "***Failed" };
    for example in examples_of("ctest") {
        only_the_leaky_one_fails(&example.text, line);
    }
    let (success, said) = run("cmake -B build\ncmake --build build\nctest --test-dir build");
    assert!(success && said.contains("100% tests passed"), "without heaptrace\n{said}");
}

#[test]
fn meson() {
    let line = |_: &str, passed| if passed { " OK " } else { " FAIL " };
    for example in examples_of("meson") {
        only_the_leaky_one_fails(&example.text, line);
    }
    let (success, said) = run("meson setup build\nmeson test -C build");
    assert!(success && said.contains(" OK "), "without heaptrace\n{said}");
}

#[test]
fn pytest() {
    let build = "cc -g -o tidy tidy.c\ncc -g -o leaky leaky.c\n";
    let line = |_: &str, passed| if passed { "PASSED" } else { "FAILED" };
    for example in examples_of("checked") {
        let script = format!("{build}{}", example.text.replace("pytest", "pytest -v -p no:cacheprovider"));
        only_the_leaky_one_fails(&script, line);
    }
    let (success, said) = run(&format!("{build}python3 -m pytest"));
    assert!(success && said.contains("2 passed"), "without heaptrace\n{said}");
}

/// A file of YAML, by Python's reader.
fn yaml(text: &str) -> Value {
    let read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.argv[1])))";
    let output = Command::new("/usr/bin/python3").args(["-c", read, text]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What GitHub's runner puts for `${{ inputs.NAME }}`: what the step was given, else the default.
fn expanded(text: &str, action: &Value, with: &BTreeMap<&str, String>) -> String {
    match text.strip_prefix("${{ inputs.").and_then(|rest| rest.strip_suffix(" }}")) {
        None => text.to_owned(),
        Some(name) => {
            let input = &action["inputs"][name];
            assert!(input["description"].is_string(), "{name} is no input");
            let default = || input["default"].as_str().map(str::to_owned);
            with.get(name).cloned().or_else(default).unwrap_or_else(|| panic!("{name} is required"))
        }
    }
}

/// How a step of the action ended, what its log, the job's summary and the outputs say, and where it ran.
struct Step {
    status: i32,
    log: String,
    summary: String,
    outputs: BTreeMap<String, String>,
    program: Program,
}

/// Runs the step of action.yml as GitHub's runner does (actions/runner, `ScriptHandler`): the script in a file, by bash
/// with `--noprofile --norc -eo pipefail`, with the variables that it sets.
fn act(fixture: &str, with: &[(&str, &str)]) -> Step {
    let action = yaml(&std::fs::read_to_string(package("action.yml")).unwrap());
    assert_eq!(action["runs"]["using"], "composite");
    let [step] = &action["runs"]["steps"].as_array().unwrap()[..] else { panic!("one step") };
    assert_eq!(step["shell"], "bash");
    let with: BTreeMap<&str, String> = with.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    for name in with.keys() {
        assert!(action["inputs"].get(name).is_some(), "{name} is no input");
    }
    let script = step["run"].as_str().unwrap();
    assert!(!script.contains("${{"), "inputs may be commands\n{script}");
    let used = serde_json::to_string(step).unwrap();
    for name in action["inputs"].as_object().unwrap().keys() {
        assert!(used.contains(&format!("inputs.{name} ")), "{name} is of no use");
    }
    let program = Program::new("/bin/bash");
    std::os::unix::fs::symlink(fixtures::program(fixture), program.folder().join("unit_tests")).unwrap();
    let file = |name: &str| program.outside(name);
    std::fs::write(file("step.sh"), script).unwrap();
    let heaptrace = Path::new(env!("CARGO_BIN_EXE_heaptrace")).parent().unwrap();
    let mut command = Command::new("/bin/bash");
    command.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(file("step.sh")).env_clear();
    command.env("PATH", format!("{}:/usr/bin:/bin", heaptrace.display())).env("RUNNER_TEMP", file(""));
    command.env("GITHUB_OUTPUT", file("outputs")).env("GITHUB_STEP_SUMMARY", file("summary.md"));
    command.env("GITHUB_ACTIONS", "true").env("CI", "true").env("GITHUB_WORKSPACE", program.folder());
    for (name, value) in step["env"].as_object().unwrap() {
        command.env(name, expanded(value.as_str().unwrap(), &action, &with));
    }
    let folder = expanded(step["working-directory"].as_str().unwrap(), &action, &with);
    let output = command.current_dir(program.folder().join(folder)).output().unwrap();
    let outputs = std::fs::read_to_string(file("outputs")).unwrap_or_default();
    let outputs = outputs.lines().filter_map(|line| line.split_once('='));
    Step {
        status: output.status.code().unwrap(),
        log: format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        summary: std::fs::read_to_string(file("summary.md")).unwrap_or_default(),
        outputs: outputs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        program,
    }
}

#[test]
fn the_action_judges_as_check_does() {
    let clean = act("leaks/clean/plain", &[("command", "./unit_tests")]);
    assert_eq!((clean.status, clean.outputs["status"].as_str()), (0, "0"), "{}", clean.log);
    assert!(!clean.log.contains("::error") && clean.summary.contains("clean"), "{}{}", clean.log, clean.summary);

    let leaky = act("leaks/chains", &[("command", "./unit_tests")]);
    assert_eq!((leaky.status, leaky.outputs["status"].as_str()), (23, "23"), "{}", leaky.log);
    assert!(leaky.log.contains("::error") && leaky.summary.contains("leaked"), "{}{}", leaky.log, leaky.summary);
    let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(&leaky.outputs[name]).unwrap()).unwrap() };
    assert_eq!(read("report")["verdict"]["result"], "leaks");
    assert_eq!(read("sarif")["version"], "2.1.0");

    // its outputs are those of the step
    let action = yaml(&std::fs::read_to_string(package("action.yml")).unwrap());
    for (name, output) in action["outputs"].as_object().unwrap() {
        assert_eq!(output["value"], format!("${{{{ steps.check.outputs.{name} }}}}"));
        assert!(leaky.outputs.contains_key(name), "{name}");
    }
    assert_eq!(action["runs"]["steps"][0]["id"], "check");

    let baseline = leaky.outputs["report"].as_str();
    let known = act("leaks/chains", &[("command", "./unit_tests"), ("baseline", baseline)]);
    assert_eq!(known.status, 0, "{}", known.log);
    let reachable = act("leaks/clean/plain", &[("command", "./unit_tests"), ("max-peak", "1")]);
    assert_eq!(reachable.status, 23, "a budget\n{}", reachable.log);
    let missing = act("leaks/clean/plain", &[("command", "./no_such_program")]);
    assert_eq!(missing.status, 127, "{}", missing.log);
    drop(leaky.program);
}

/// Words are cut as a shell would cut them, and nothing in them is run.
#[test]
fn the_action_hands_arguments_on() {
    let [example] = &examples_of("action")[..] else { panic!("one example") };
    let step = &yaml(&example.text)[0];
    assert!(step["uses"].as_str().unwrap().contains("heaptrace@"));
    let with: Vec<(&str, &str)> = step["with"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
        .collect();
    let told = act("leaks/clean/plain", &with);
    assert_eq!(told.status, 0, "{}", told.log);
    let report: Value = serde_json::from_slice(&std::fs::read(&told.outputs["report"]).unwrap()).unwrap();
    assert_eq!(report["command"], serde_json::json!(["./unit_tests", "--quick", "a name"]));
    assert_eq!(report["budgets"][0]["name"], "max-peak");

    let hostile = "$(touch ran) `touch ran` '*' ; touch ran";
    let told = act("leaks/clean/plain", &[("command", "./unit_tests"), ("args", hostile)]);
    assert_eq!(told.status, 0, "{}", told.log);
    assert!(!told.program.folder().join("ran").exists());
    let report: Value = serde_json::from_slice(&std::fs::read(&told.outputs["report"]).unwrap()).unwrap();
    assert_eq!(report["command"].as_array().unwrap().len(), 9, "{}", report["command"]);

    let blank = act("leaks/clean/plain", &[("command", "./unit_tests"), ("args", "  ")]);
    assert_eq!(blank.status, 0, "{}", blank.log);
    let report: Value = serde_json::from_slice(&std::fs::read(&blank.outputs["report"]).unwrap()).unwrap();
    assert_eq!(report["command"], serde_json::json!(["./unit_tests"]));

    // never green for what was not understood
    let open = act("leaks/clean/plain", &[("command", "./unit_tests"), ("args", "'open")]);
    assert!(open.status != 0 && open.outputs.is_empty(), "{}", open.log);
}
