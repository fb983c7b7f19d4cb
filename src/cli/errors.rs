//! What the user is told when the command line can't be carried out.

use super::Refusal;
use crate::tracer::launch::Program;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsStr;

/// Commands of later versions.
const PLANNED_COMMANDS: [&str; 8] = ["heap", "snapshot", "top", "report", "view", "diff", "merge", "convert"];

/// Options of later versions.
const PLANNED_OPTIONS: [&str; 5] = ["-f", "--follow-forks", "--only", "--skip", "--sample-interval"];

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
            text.strip_prefix("error: ").unwrap_or(&text).to_owned()
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
        ErrorKind::UnknownArgument => explain_option(word(ContextKind::InvalidArg)?),
        _ => None,
    }
}

fn explain_option(word: &str) -> Option<String> {
    let name = word.split('=').next().unwrap_or(word);
    PLANNED_OPTIONS.contains(&name).then(|| format!("the option {name} does not exist yet in this version\n"))
}

fn explain_command(word: &str) -> Option<String> {
    let is_program = Program::new(OsStr::new(word), &[], []).is_ok();
    if PLANNED_COMMANDS.contains(&word) {
        let program = if is_program {
            format!(" (to profile the program of that name: `heaptrace run {word}`)")
        } else {
            String::new()
        };
        return Some(format!("the command `{word}` does not exist yet in this version{program}\n"));
    }
    is_program.then(|| format!("`{word}` is no command of heaptrace; did you mean `heaptrace run {word}`?\n"))
}
