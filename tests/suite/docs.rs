//! The commands in docs/agents.md and docs/guide: each does what is said there. And what packages install: pages for
//! man, completions.

use super::attach::{assert_victim_well, start_victim};
use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

/// The commands of a page, as it shows them: in lines that are indented by four.
fn commands(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

fn in_shell(command: &str, folder: &Path) -> Command {
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", Path::new(HEAPTRACE).parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder).env("PATH", path);
    shell
}

fn shell(command: &str, folder: &Path) -> Output {
    in_shell(command, folder).output().unwrap()
}

/// Whether an answer has anything in it.
fn tells(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(values) => !values.is_empty() && values.iter().all(tells),
        Value::Object(values) => !values.is_empty() && values.values().all(tells),
        _ => true,
    }
}

/// In the order of the page: some read what others have written.
#[test]
fn the_commands_for_scripts_answer() {
    let dir = TempDir::new();
    crate::support::copy_file(fixtures::program("sites"), dir.path().join("app")).unwrap();
    for name in ["main.json", "branch.json"] {
        assert!(shell(&format!("heaptrace run -o {name} -- ./app"), dir.path()).status.success());
    }
    let mut running = Program::fixture("blocks_of").start();
    running.send("begin");
    let pid: i32 = loop {
        if let Some(pid) = running.line().strip_prefix("ready ") {
            break pid.parse().unwrap();
        }
    };
    let commands = commands("agents.md");
    assert!(commands.len() > 12, "{commands:?}");
    for command in commands {
        let output = shell(&command.replace(" 1234", &format!(" {pid}")), dir.path());
        let (said, told) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        // that program leaks
        let expected = if command.starts_with("heaptrace check") { 23 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{command}: {said}{told}");
        if command.starts_with("jq") {
            let values = serde_json::Deserializer::from_str(&told).into_iter::<Value>();
            let values: Vec<Value> = values.map(|value| value.unwrap()).collect();
            assert!(!values.is_empty() && values.iter().all(tells), "{command}: {told}");
        } else if command.ends_with("--json") {
            let value: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{command}: {error}: {told}"));
            assert!(value.as_object().is_some_and(|value| value.len() > 3), "{command}: {told}");
        }
        if let Some(file) = command.split_once(" -o ").and_then(|(_, rest)| rest.split(' ').next()) {
            let size = std::fs::metadata(dir.path().join(file)).map(|metadata| metadata.len());
            assert!(size.is_ok_and(|size| size > 0), "{command}: {file}");
        }
    }
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait();
}

/// The pages of the guide: each with a program of its own, which leaks, and a process that allocates all the time.
#[test]
fn the_commands_of_the_guide_do_what_is_said() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide");
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let mut pages: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    pages.sort();
    assert!(pages.len() > 7, "{pages:?}");
    for page in pages {
        let page = page.to_str().unwrap();
        assert!(page == "README.md" || index.contains(&format!("[{page}]({page})")), "{page} is not in the index");
        run_page(&format!("guide/{page}"));
    }
}

/// Runs the commands of a page in their order. `# 23` says that one exits with that status, `&` that one goes on
/// meanwhile.
fn run_page(page: &str) {
    let commands = commands(page);
    if commands.is_empty() {
        return;
    }
    let dir = TempDir::new();
    crate::support::copy_file(fixtures::program("sites"), dir.path().join("app")).unwrap();
    let (victim, pid) = start_victim(&Program::fixture("victim").args(["2", "churn"]));
    let mut meanwhile = Vec::new();
    for command in commands {
        let (text, status) = command.split_once(" # ").unwrap_or((&command, "0"));
        let text = text.trim().replace(" 1234", &format!(" {pid}"));
        if let Some(text) = text.strip_suffix(" &") {
            meanwhile.push(in_shell(text, dir.path()).spawn().unwrap());
            let asked = format!("heaptrace ctl {pid} mark begun");
            procfs::wait_until("it is traced", || shell(&asked, dir.path()).status.success());
            continue;
        }
        let mut output = shell(&text, dir.path());
        for _ in 0..50 {
            // the threads may hold a lock whenever it looks
            if !text.ends_with("--trim") || output.status.success() {
                break;
            }
            output = shell(&text, dir.path());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), status.parse().ok(), "{page}: {command}: {said}");
        assert!(!said.contains("panicked"), "{page}: {command}: {said}");
        for (_, rest) in text.match_indices(" -o ").map(|(at, option)| text.split_at(at + option.len())) {
            let file = rest.split(' ').next().unwrap();
            let size = std::fs::metadata(dir.path().join(file)).map(|metadata| metadata.len());
            assert!(size.is_ok_and(|size| size > 0), "{page}: {command}: {file}: {said}");
        }
    }
    for mut one in meanwhile {
        assert!(one.wait().unwrap().success(), "{page}");
    }
    assert_victim_well(victim, pid);
}

/// What bash offers for the last of some words, with the completions that heaptrace prints.
fn completed(words: &[&str]) -> Vec<String> {
    let script = format!(
        "eval \"$(heaptrace completions bash)\"; COMP_WORDS=({words}); COMP_CWORD={at}; _heaptrace heaptrace '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words = words.join(" "),
        at = words.len() - 1,
        last = words[words.len() - 1],
        before = words[words.len() - 2],
    );
    let path = format!("{}:{}", Path::new(HEAPTRACE).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash").args(["-c", &script]).env("PATH", path).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    assert_eq!(completed(&["heaptrace", "sn"]), ["snapshot"]);
    assert_eq!(completed(&["heaptrace", "run", "--sample-i"]), ["--sample-interval"]);
    assert_eq!(completed(&["heaptrace", "report", "--value", "pe"]), ["peak"]);
    for shell in ["zsh", "fish"] {
        let output = answer(&["completions", shell]);
        assert!(output.contains("sample-interval"), "{shell}");
    }
}

fn answer(arguments: &[&str]) -> String {
    let output = Command::new(HEAPTRACE).args(arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// groff sets each command's page without a complaint, and it has all options that `--help` has.
#[test]
fn pages_for_man_have_what_help_has() {
    let dir = TempDir::new();
    let page = dir.path().join("page.1");
    for command in [
        "",
        "run",
        "attach",
        "check",
        "leaks",
        "ctl",
        "heap",
        "snapshot",
        "top",
        "report",
        "view",
        "completions",
        "man",
        "convert",
        "diff",
        "merge",
        "doctor",
    ] {
        let given = |words: [&'static str; 2]| words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>();
        std::fs::write(&page, answer(&given(["man", command]))).unwrap();
        let output = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=2000n"]).arg(&page).output();
        let output = output.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command}");
        // it sets hyphens where a minus is not asked for
        let text = String::from_utf8(output.stdout).unwrap().replace('\u{2010}', "-");
        let help = answer(&given([command, "--help"]));
        let long = |word: &&str| word.starts_with("--") && word.len() > 2;
        let options = help.lines().filter_map(|line| line.split_whitespace().take(2).find(long));
        for option in options.map(|option| option.split(['=', '[', ',', '.']).next().unwrap()) {
            assert!(text.contains(option), "{command}: {option}: {text}");
        }
    }
}
