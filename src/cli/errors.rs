//! What the user is told when the command line can't be carried out.

use super::Refusal;
use crate::tracer::launch::Program;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsStr;

/// Turns clap's error into ours.
pub(super) fn refusal(error: &clap::Error, color: bool) -> Refusal {
    let rendered = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Refusal::Answer(if color { rendered.ansi().to_string() } else { rendered.to_string() })
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Refusal::Usage(format!("a command is missing\n\n{rendered}"))
        }
        _ => Refusal::Usage(explain(error).unwrap_or_else(|| {
            let text = rendered.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let Some(advice) = near_match(error) else { return text.to_owned() };
            match text.lines().find(|line| line.starts_with("  tip: ") && line.contains(" similar ")) {
                Some(theirs) => text.replacen(theirs, &format!("  tip: {advice}"), 1),
                None => text.replacen("\n\n", &format!("\n\n  tip: {advice}\n\n"), 1),
            }
        })),
    }
}

/// A better message than clap's own, where we know one.
fn explain(error: &clap::Error) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => explain_command(word(ContextKind::InvalidSubcommand)?),
        _ => None,
    }
}

fn explain_command(word: &str) -> Option<String> {
    let is_program = Program::new(OsStr::new(word), &[], []).is_ok();
    is_program.then(|| format!("`{word}` is not a command of heaptrace; did you mean `heaptrace run {word}`?\n"))
}

/// A command or an option that may have been meant. clap has its own suggestions, by Jaro's similarity, which finds
/// nothing alike, or the wrong word, in words of three letters of which two have changed places (`rnu`, `--tpo`).
fn near_match(error: &clap::Error) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let command = super::command();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = word(ContextKind::InvalidSubcommand)?;
            let names = command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
            nearest(typed, names).map(|name| format!("a similar command exists: '{name}'"))
        }
        ErrorKind::UnknownArgument => {
            let typed = word(ContextKind::InvalidArg)?.strip_prefix("--")?;
            let typed = typed.split('=').next().unwrap_or(typed);
            // The usage names the command: `Usage: heaptrace run …`.
            let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
            let command = usage.split_whitespace().find_map(|word| command.find_subcommand(word)).unwrap_or(&command);
            let names = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long);
            nearest(typed, names).map(|name| format!("a similar option exists: '--{name}'"))
        }
        _ => None,
    }
}

/// The name that the fewest slips lead to; none if that takes more than one, or two in words of more than four letters.
fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = if typed.len() <= 4 { 1 } else { 2 };
    let found = names.map(|name| (slips(typed, name), name)).min_by_key(|(slips, _)| *slips);
    found.filter(|(slips, _)| *slips <= most).map(|(_, name)| name)
}

/// How many letters were left out, put in, taken for another one, or have changed places with their neighbour (the
/// optimal string alignment distance).
fn slips(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut least = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (a, b, expected) in [
            ("rnu", "run", 1),
            ("tpo", "top", 1),
            ("ru", "run", 1),
            ("", "run", 3),
            ("atach", "attach", 1),
            ("x", "x", 0),
        ] {
            assert_eq!((slips(a, b), slips(b, a)), (expected, expected), "{a} {b}");
        }
    }

    #[test]
    fn near_matches_are_named() {
        let told = |words: &str| match super::super::parse(words.split(' ').map(Into::into), false, |_| None) {
            Err(Refusal::Usage(text)) => text,
            other => panic!("{words}: {other:?}"),
        };
        for (words, expected) in [
            ("heaptrace rnu ./app", "'run'"),
            ("heaptrace chekc ./app", "'check'"),
            ("heaptrace run --tpo 3 ./app", "'--top'"),
            ("heaptrace run --tpo=3 ./app", "'--top'"),
            ("heaptrace attach --durtaion 3 1", "'--duration'"),
        ] {
            let text = told(words);
            assert!(text.contains(expected) && text.matches("similar").count() == 1, "{words}: {text}");
        }
        assert!(!told("heaptrace --xyzzy").contains("similar"));
    }
}
