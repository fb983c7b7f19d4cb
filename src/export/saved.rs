//! What the summary and the text report say of a profile that was read from a file.

use super::layout::Layout;
use super::text::{duration, grouped, plural, printable, wrap};
use super::view::end_text;
use crate::profile::saved::{Saved, Writer, ranges};
use crate::profile::{Mode, Profile};
use std::fmt::Write;

/// The first lines: what the file is a profile of, and what it does not say.
pub(super) fn header(out: &mut String, layout: Layout, profile: &Profile, saved: &Saved) {
    let process = &profile.meta.process;
    let program = if process.program.is_empty() { "unknown program".to_owned() } else { printable(&process.program) };
    let after = duration(profile.meta.duration_ns);
    let known = process.exit.is_some() || profile.meta.mode != Mode::Run;
    // The parts of a series are written like snapshots.
    let is_snapshot = profile.meta.mode.is_snapshot() && process.exit.is_none() && !saved.is_partial();
    let what = match (saved.files, known, saved.writer) {
        (2.., _, _) if saved.parts.is_empty() => format!("merged of {}", plural(saved.files, "file")),
        (2.., _, _) => format!("pid {}, parts {} of a session, {after} in all", process.pid, ranges(&saved.parts)),
        (_, _, Writer::Heaptrace) if is_snapshot => format!("pid {}: a snapshot after {after}", process.pid),
        (_, true, Writer::Heaptrace) => format!("pid {}: {} after {after}", process.pid, end_text(&profile.meta)),
        (_, _, Writer::Heaptrace) if process.pid != 0 => format!("pid {}, traced for {after}", process.pid),
        (_, _, _) if profile.meta.duration_ns == 0 => "a heap profile".to_owned(),
        _ => format!("a heap profile of {after}"),
    };
    let (name, program) = (layout.paint.bold("heaptrace:"), layout.paint.bold(&program));
    let _ = writeln!(out, "{name} {program}, {what}");
    for note in notes(profile, saved) {
        let _ = writeln!(out, "{}", wrap(&note, 0, layout.width));
    }
}

/// Sentences about what the figures mean.
fn notes(profile: &Profile, saved: &Saved) -> Vec<String> {
    let mut notes = Vec::new();
    if saved.is_partial() {
        let parts = ranges(&saved.parts);
        notes.push(format!(
            "A part of a session (part {parts}): allocated and freed cover that time only. `heaptrace merge` joins the \
             parts."
        ));
    }
    if !saved.open.is_empty() {
        notes.push(format!("Parts of {} are missing.", plural(saved.open.len() as u64, "session")));
    }
    if saved.peak_is_bound {
        notes.push(
            "The peak is the sum of the processes' own peaks: an upper bound, as these need not have been at the same \
             moment."
                .to_owned(),
        );
    }
    if profile.is_since_mark() {
        notes.push("Live means: allocated since the mark and not yet freed.".to_owned());
    } else if profile.meta.mode.is_attached() && saved.files == 1 {
        notes.push("Live means: allocated since attach and not yet freed.".to_owned());
    }
    let missing: Vec<&str> = saved.holds.missing().into_iter().filter(|name| *name != "deallocated").collect();
    if !missing.is_empty() {
        notes.push(format!("The file does not say: {}.", missing.join(", ")));
    }
    if saved.writer == Writer::MemorySampler && profile.meta.sample_interval == 0 {
        notes.push("memory_sampler writes its samples as they are: all amounts are too low.".to_owned());
    }
    if saved.files > 1 && !profile.meta.complete {
        notes.push(format!("Some of the {} do not reach the regular end of their program.", grouped(saved.files)));
    }
    notes
}
