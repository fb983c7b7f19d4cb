//! What the documents and `--help` name is there, and what is there is named.

use super::*;
use clap::ArgAction;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Options of other programs that the documents name, and of the programs that examples run.
const OF_OTHERS: [&str; 33] = [
    "all",
    "bench",
    "build",
    "cap-add",
    "data-binary",
    "enable-prof",
    "fail",
    "features",
    "format-version",
    "heaptrace",
    "hugify",
    "its-option",
    "lib",
    "locked",
    "max-time",
    "mount-proc",
    "option",
    "output-on-failure",
    "path",
    "perf-basic-prof",
    "print-errorlogs",
    "profile",
    "quick",
    "release",
    "security-opt",
    "show-error",
    "silent",
    "soak",
    "target",
    "test",
    "test-dir",
    "use-largepages",
    "wrapper",
];

/// The documents that lie at the top.
const TOP: [&str; 4] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md"];

/// A text, and its name for messages.
type Text = (String, String);

/// The documents in a folder, and in the folders below it.
fn documents_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            documents_in(&path, found);
        } else if path.extension().is_some_and(|end| end == "md" || end == "service") {
            found.push(path);
        }
    }
}

/// Those at the top, and all that lie in docs/.
fn documents() -> Vec<Text> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::from(TOP.map(|name| root.join(name)));
    documents_in(&root.join("docs"), &mut paths);
    let paths = paths.into_iter();
    paths.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).expect("a document"))).collect()
}

/// The commands that users may type.
fn commands() -> Vec<clap::Command> {
    let mut command = command();
    command.build();
    command.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect()
}

/// What `--help` says of everything.
fn helps() -> Vec<Text> {
    let of = |mut command: clap::Command| (format!("{command} --help"), command.render_long_help().to_string());
    commands().into_iter().chain([command()]).map(of).collect()
}

/// The long options of a command, hidden ones too.
fn options_of(command: &clap::Command) -> BTreeSet<String> {
    command.get_arguments().filter_map(clap::Arg::get_long).map(str::to_owned).collect()
}

/// The names behind `--` in a text.
fn options_in(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends =
        text.match_indices("--").filter(|(at, _)| !text[..*at].ends_with(|c: char| is_name(c) || c == '<' || c == '|'));
    let names = ends.map(|(at, dashes)| text[at + dashes.len()..].split(|c| !is_name(c)).next().unwrap_or_default());
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).map(str::to_owned).collect()
}

/// What of a help text is to be typed.
fn code_between_backticks(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(|code| code.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// What of a document is to be typed: what stands between backticks and in lines that are indented.
fn code_in(text: &str) -> Vec<String> {
    let mut code = Vec::new();
    for (part, text) in text.split('`').enumerate() {
        match part % 2 {
            1 if text.contains("\n\n") || text.matches('\n').count() > 1 => {
                code.extend(text.lines().map(str::to_owned))
            }
            1 => code.push(text.replace('\n', " ")),
            _ => code.extend(text.lines().filter(|line| line.starts_with("    ")).map(str::to_owned)),
        }
    }
    // what a sample of the summary says of the cost is no command
    let is_output = |line: &str| line.contains("waited for heaptrace") || line.contains("heaptrace worked on a stop");
    code.retain(|line| !line.trim().is_empty() && !is_output(line));
    code
}

/// The command of heaptrace in a line of code, and the words behind it. (Behind an example, prose may follow.)
fn invocation(code: &str) -> Option<Vec<&str>> {
    let (before, behind) = code.split_once("heaptrace ")?;
    let is_one = !before.ends_with(char::is_alphanumeric) && behind.starts_with(|c: char| c.is_ascii_lowercase());
    is_one.then(|| behind.split_whitespace().map(|word| word.trim_matches(['"', '\''])).collect())
}

/// Of the words behind a command: what is wrong with its own options.
fn fault(words: &[&str], commands: &[clap::Command]) -> Option<String> {
    let (name, words) = words.split_first()?;
    if *name == "help" {
        return None;
    }
    let Some(command) = commands.iter().find(|command| command.get_name() == *name) else {
        return Some(format!("there is no command `{name}`"));
    };
    // What follows the program is the program's.
    let takes_program = command.get_positionals().any(clap::Arg::is_trailing_var_arg_set);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let known = |arg: &&clap::Arg| match word.strip_prefix("--") {
            Some(long) => arg.get_long() == long.split(['=', '[']).next(),
            None => arg.get_short() == word.chars().nth(1),
        };
        match command.get_arguments().find(known) {
            _ if *word == "--" => return None,
            _ if !word.starts_with('-') && takes_program => return None,
            _ if !word.starts_with('-') => {}
            None => return Some(format!("`{name}` has no option {word}")),
            Some(arg) if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) => {
                if !word.contains('=') && !arg.is_require_equals_set() {
                    words.next();
                }
            }
            Some(_) => {}
        }
    }
    None
}

#[test]
fn what_documents_and_help_name_is_there() {
    let commands = commands();
    let known: BTreeSet<String> = commands.iter().flat_map(options_of).chain(["version".to_owned()]).collect();
    let mut faults = Vec::new();
    for (name, text) in documents().into_iter().chain(helps()) {
        let of_nobody = options_in(&text).into_iter().filter(|option| !known.contains(option));
        let of_nobody = of_nobody.filter(|option| !OF_OTHERS.contains(&option.as_str()));
        faults.extend(of_nobody.map(|option| format!("{name}: there is no option --{option}")));
        let is_help = name.ends_with("--help");
        let examples =
            text.split_once("\nExamples:\n").filter(|_| is_help).map(|(_, examples)| examples).unwrap_or_default();
        let examples = examples.lines().map(str::trim_start).filter(|line| line.starts_with("heaptrace "));
        let code = if is_help { code_between_backticks(&text) } else { code_in(&text) };
        for code in code.into_iter().chain(examples.map(str::to_owned)) {
            let found = invocation(&code).and_then(|words| fault(&words, &commands));
            faults.extend(found.map(|fault| format!("{name}: {fault}: {}", code.trim())));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_option_is_named_in_help_or_in_a_document() {
    let named: BTreeSet<String> = documents().iter().chain(&helps()).flat_map(|(_, text)| options_in(text)).collect();
    for command in commands() {
        for option in options_of(&command) {
            assert!(named.contains(&option), "{command} --{option} is named nowhere");
        }
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            assert!(arg.get_help().is_some(), "{command}: {arg} is not explained");
        }
    }
}

#[test]
fn faults_of_documents_are_found() {
    let commands = commands();
    let fault = |code: &str| invocation(code).and_then(|words| fault(&words, &commands));
    for wrong in [
        "heaptrace levitate a b",
        "sudo heaptrace run --nmap ./app",
        "heaptrace attach 1234 --leak-kinds definite",
        "heaptrace attach 1234 -Z",
        "heaptrace run --duration 5 --tpo 3",
    ] {
        assert!(fault(wrong).is_some(), "{wrong}");
    }
    for right in [
        "heaptrace run ./app --its-option",
        "heaptrace run -o a.svg -f --only 'cc1*' --max-depth=3 -- make --jobs 3",
        "heaptrace attach 1234 --duration 30s -o -x",
        "heaptrace ctl 1234 pause|resume",
        "heaptrace: cargo, pid 3",
    ] {
        assert_eq!(fault(right), None, "{right}");
    }
    let found = options_in("`--one` (--two=3) --three[=4] a--b --- --Five <!-- tested --> x --six.");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["one", "six", "three", "two"]);
    let code = code_in("prose `code`\n    indented\n```sh\nfenced one\nfenced two\n```\nprose heaptrace is good");
    assert_eq!(code.join("|"), "code|    indented|sh|fenced one|fenced two");
}
