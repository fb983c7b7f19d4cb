//! What heaptrace writes into the comments of its pprof files, read back. `docs/profile.md` lists the lines.

use super::budget::{Budget, Exhausted};
use crate::profile::saved::{Holds, Saved, Writer, parts_from, parts_in};
use crate::profile::{Anomalies, Exit, Meta, Mode, Profile, Resident, Totals};
use std::collections::BTreeSet;

/// Enters what the comments say into a profile. Without any of heaptrace's own, nothing changes.
///
/// # Errors
/// They would take more memory than the budget has.
pub(super) fn apply<'a>(
    comments: impl Iterator<Item = &'a str> + Clone,
    profile: &mut Profile,
    saved: &mut Saved,
    budget: &mut Budget,
) -> Result<(), Exhausted> {
    // A line may be there many times: each is looked at, and its text may be kept.
    for line in comments.clone() {
        budget.copy(line.len())?;
    }
    if !comments.clone().any(|line| line.strip_prefix("heaptrace ").is_some_and(|rest| !rest.contains('='))) {
        return Ok(());
    }
    saved.writer = Writer::Heaptrace;
    saved.holds = Holds { temporary: false, lifetimes: false, ..Holds::ALL }.and(saved.holds);
    saved.parts = vec![1];
    let Profile { meta, totals, anomalies, warnings, .. } = profile;
    let mut part = 1;
    let (mut sessions, mut parts_told) = (BTreeSet::new(), BTreeSet::new());
    for line in comments {
        if let Some(warning) = line.strip_prefix("warning: ") {
            budget.entries::<String>(1)?;
            warnings.push(warning.to_owned());
        } else if let Some(list) = line.strip_prefix("anomalies: ") {
            pairs(list, |key, value| set_anomaly(anomalies, key, value));
        } else if let Some(list) = line.strip_prefix("totals: ") {
            saved.holds.temporary |= list.contains("temporary=");
            pairs(list, |key, value| set_total(totals, key, value));
        } else if let Some(list) = line.strip_prefix("resident: ") {
            let known = meta.complete || meta.process.exit.is_some();
            pairs(list, |key, value| {
                if key == "peak_bytes" {
                    meta.process.resident = Some(Resident { peak_bytes: value, all_blocks_known: known });
                }
            });
            if let Some(resident) = &mut meta.process.resident {
                resident.all_blocks_known = list.contains("explained=");
            }
        } else if let Some((key, value)) = line.split_once('=') {
            match key {
                "part" => {
                    part = value.parse().unwrap_or(1);
                    budget.hashed::<u32, ()>()?;
                    parts_told.insert(part);
                }
                "session" => {
                    budget.hashed::<&str, ()>()?;
                    sessions.insert(value);
                    meta.session = value.to_owned();
                }
                "command" => meta.process.command = words(value, budget)?,
                "parts" => saved.parts = parts(value, budget)?.unwrap_or_default(),
                "open" => {
                    if let Some((session, list)) = value.split_once(':')
                        && let Some(parts) = parts(list, budget)?
                    {
                        budget.hashed::<String, Vec<u32>>()?;
                        saved.open.insert(session.to_owned(), parts);
                    }
                }
                _ => set(key, value, meta, saved),
            }
        }
    }
    meta.part = part;
    if saved.parts == [1] {
        saved.parts = vec![part];
        saved.peak_part = saved.peak_part.max(part);
    }
    added_by_pprof(sessions.len(), parts_told, profile, saved);
    if profile.meta.session.is_empty() {
        saved.parts.clear();
    }
    Ok(())
}

/// What is true of a file that pprof has made of several of ours, whose comments it strings together: each of ours
/// names one session and one part.
fn added_by_pprof(sessions: usize, parts: BTreeSet<u32>, profile: &mut Profile, saved: &mut Saved) {
    let Profile { meta, totals, warnings, .. } = profile;
    if sessions <= 1 && parts.len() <= 1 {
        return;
    }
    // Sums that no column has are those of one file.
    (totals.temporary, totals.peak_at_ns, saved.holds.temporary) = (0, 0, false);
    if sessions > 1 {
        saved.files = saved.files.max(sessions as u64);
        saved.peak_is_bound = true;
        meta.session.clear();
        (meta.process.pid, meta.process.exit, meta.process.resident) = (0, None, None);
        warnings.push(format!(
            "pprof added up the profiles of {sessions} runs; the program and its end come from one of them (`heaptrace \
             merge` keeps more)"
        ));
    } else {
        saved.files = saved.files.max(parts.len() as u64);
        warnings.push(format!(
            "pprof added up {} parts of one session: what is live counts once in each part (`heaptrace merge` counts \
             it once)",
            parts.len()
        ));
        saved.parts = parts.into_iter().collect();
        // What it calls allocated less live is not what was freed.
        saved.last = false;
    }
}

/// A list of parts, if it is one.
fn parts(text: &str, budget: &mut Budget) -> Result<Option<Vec<u32>>, Exhausted> {
    let Some(count) = parts_in(text) else { return Ok(None) };
    budget.copy(count * size_of::<u32>())?;
    Ok(parts_from(text))
}

fn set(key: &str, value: &str, meta: &mut Meta, saved: &mut Saved) {
    let number = || value.parse::<u64>().unwrap_or(0);
    match key {
        "program" => meta.process.program = value.to_owned(),
        "pid" => meta.process.pid = value.parse().unwrap_or(0),
        "cwd" => meta.process.cwd = value.into(),
        "engine" => meta.engine = value.to_owned(),
        "complete" => meta.complete = value == "true",
        "last" => saved.last = value == "true",
        "mode" => {
            meta.mode = match value {
                "attach" => Mode::Attach,
                "check" => Mode::Check,
                "snapshot" => Mode::Snapshot,
                "snapshot of attached" => Mode::SnapshotOfAttached,
                _ => Mode::Run,
            }
        }
        "exit" => meta.process.exit = exit(value),
        "variance" => saved.variance = value.parse().unwrap_or(0),
        "files" => saved.files = number().max(1),
        "peak_part" => saved.peak_part = value.parse().unwrap_or(1),
        "peak" => saved.peak_is_bound = value == "upper bound",
        "missing" => saved.holds.without(value),
        _ => {}
    }
}

/// `code 0` or `signal 11`.
fn exit(text: &str) -> Option<Exit> {
    let (kind, number) = text.split_once(' ')?;
    match (kind, number.parse().ok()?) {
        ("code", number) => Some(Exit::Code(number)),
        ("signal", number) => Some(Exit::Signal(number)),
        _ => None,
    }
}

fn pairs(list: &str, mut each: impl FnMut(&str, u64)) {
    for (key, value) in list.split(' ').filter_map(|pair| pair.split_once('=')) {
        if let Ok(value) = value.parse() {
            each(key, value);
        }
    }
}

fn set_anomaly(anomalies: &mut Anomalies, key: &str, value: u64) {
    let field = match key {
        "lost" => &mut anomalies.lost,
        "truncated_stacks" => &mut anomalies.truncated_stacks,
        "guessed_stacks" => &mut anomalies.guessed_stacks,
        "unknown_frees" => &mut anomalies.unknown_frees,
        "double_frees" => &mut anomalies.double_frees,
        "mismatched_frees" => &mut anomalies.mismatched_frees,
        // its name before this one
        "abandoned_calls" | "dropped_frames" => &mut anomalies.abandoned_calls,
        _ => return,
    };
    *field = value;
}

fn set_total(totals: &mut Totals, key: &str, value: u64) {
    let field = match key {
        "reallocations" => &mut totals.reallocations,
        "temporary" => &mut totals.temporary,
        "failed" => &mut totals.failed,
        "preexisting_frees" => &mut totals.preexisting_frees,
        "peak_at_ns" => &mut totals.peak_at_ns,
        "counted_allocations" => &mut totals.counted_allocations,
        "counted_bytes" => &mut totals.counted_bytes,
        _ => return,
    };
    *field = value;
}

/// The words of a command line, as a shell would read them: quotes of `'`, and a backslash before a single character.
fn words(line: &str, budget: &mut Budget) -> Result<Vec<String>, Exhausted> {
    // They grow letter by letter.
    budget.take(line.len())?;
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        if word.is_none() && c != ' ' {
            budget.entries::<String>(1)?;
            budget.copy(0)?;
        }
        match c {
            ' ' => words.extend(word.take()),
            '\'' => word.get_or_insert_default().extend(characters.by_ref().take_while(|c| *c != '\'')),
            '\\' => word.get_or_insert_default().extend(characters.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_read_as_they_are_quoted() {
        for line in [&["./app"][..], &["a b", "it's", "", "x=1"], &["--é", "\\"], &[]] {
            let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
            let text = crate::export::shell_words(&line);
            assert_eq!(words(&text, &mut Budget::new(10_000)), Ok(line));
            assert_eq!(text.is_empty(), words(&text, &mut Budget::new(2)).is_ok());
        }
    }
}
