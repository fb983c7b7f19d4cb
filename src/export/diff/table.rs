//! A difference as tables: for a terminal, and as Markdown.

use super::super::escape::{self, markdown_code};
use super::super::rows::{RowFrame, Rows, frame_lines};
use super::super::sections::{Layout, heading};
use super::super::telling::telling_frames;
use super::super::text::{Paint, grouped, human_bytes, plural, printable, right, short_name, wrap};
use super::{Comparison, DiffOptions, change_text, signed_bytes, signed_count};
use crate::profile::diff::{Change, Kind};
use std::fmt::Write;

/// How many frames a row of Markdown names.
const FRAMES: usize = 4;

const fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Grown => "Grown",
        Kind::New => "New",
        Kind::Shrunk => "Shrunk",
        Kind::Gone => "Gone",
    }
}

/// The changes of a kind, the largest `top`, and the sum of all.
fn changes<'c>(comparison: &'c Comparison<'_>, kind: Kind, top: usize) -> (Vec<&'c Change>, usize, i128) {
    let all: Vec<&Change> = comparison.diff.of(kind).collect();
    let (count, sum) = (all.len(), all.iter().map(|change| change.bytes()).sum());
    (all.into_iter().take(top).collect(), count, sum)
}

/// For a terminal.
pub(super) fn text(comparison: &Comparison<'_>, options: &DiffOptions) -> String {
    let layout = Layout::new(Paint { color: options.color }, options.width);
    let [before, after] = comparison.names.map(printable);
    let mut out = format!("{} {before} → {after}\n", layout.paint.bold("heaptrace diff:"));
    let _ = writeln!(out, "{}", wrap(&comparison.headline(), 2, layout.width));
    for note in notes(comparison) {
        let _ = writeln!(out, "{}", layout.paint.yellow(&wrap(&note, 2, layout.width)));
    }
    for kind in Kind::ALL {
        let (shown, count, sum) = changes(comparison, kind, options.top);
        if count > 0 {
            let stacks = plural(count as u64, "stack");
            heading(&mut out, layout, &format!("{}: {} in {stacks}", title(kind), signed_bytes(sum)));
            rows(&mut out, layout, comparison, kind, &shown);
            if count > shown.len() {
                let _ = writeln!(
                    out,
                    "  {}",
                    layout.paint.dim(&format!("and {} more", grouped((count - shown.len()) as u64)))
                );
            }
        }
    }
    if comparison.diff.changes.is_empty() {
        let _ = writeln!(out, "\nNo stack has changed ({} are the same).", grouped(comparison.diff.same));
    } else if comparison.diff.same > 0 {
        let _ = writeln!(out, "\n{} as before.", plural(comparison.diff.same, "stack"));
    }
    out
}

/// What makes the figures less certain.
fn notes(comparison: &Comparison<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let intervals = [&comparison.before, &comparison.after].map(|view| view.profile.meta.sample_interval);
    if intervals != [0, 0] {
        notes.push("At least one of the two is a sample: small differences can be chance.".to_owned());
    }
    for (view, name) in [&comparison.before, &comparison.after].into_iter().zip(comparison.names) {
        if view.profile.saved.as_ref().is_some_and(|saved| saved.is_partial()) {
            notes.push(format!("{} is a part of a session only.", printable(name)));
        }
    }
    notes
}

fn rows(out: &mut String, layout: Layout, comparison: &Comparison<'_>, kind: Kind, shown: &[&Change]) {
    let view = comparison.view(kind);
    let stacks: Vec<usize> = shown.iter().map(|change| change.stack).collect();
    let rows = Rows::new(view, &stacks);
    let count = |change: &Change| format!("{} ×", signed_count(change.objects()));
    let counts = shown.iter().map(|change| count(change).chars().count()).max().unwrap_or(0);
    // Of what is new or gone there is one amount only.
    let both = |change: &Change| match kind {
        Kind::New | Kind::Gone => String::new(),
        _ => format!("{:>10} → {:>10}  ", human_bytes(change.before.bytes), human_bytes(change.after.bytes)),
    };
    let figures = 2 + 11 + 2 + shown.first().map_or(0, |change| both(change).chars().count()) + counts + 2;
    let room = layout.width.saturating_sub(figures).max(24);
    let name = |row: &RowFrame<'_>, width: usize| {
        let gap = if row.gap { "… " } else { "" };
        format!("{gap}{}", short_name(row.frame.name, width.saturating_sub(gap.chars().count())))
    };
    let all = rows.shared.iter().map(|frame| RowFrame { frame: *frame, gap: false, lines: Vec::new() });
    let shared: Vec<RowFrame<'_>> = all.collect();
    let widest =
        rows.rows.iter().flatten().chain(&shared).map(|row| name(row, room).chars().count()).max().unwrap_or(0);
    let names = widest.min(room * 3 / 5);
    let places = room.saturating_sub(names + 2);
    for (change, frames) in shown.iter().zip(&rows.rows) {
        let look = |row: &RowFrame<'_>| (name(row, names), row.place(places));
        let frames: Vec<(String, String)> = frames.iter().map(look).collect();
        let bytes = right(&signed_bytes(change.bytes()), 11);
        let bytes = if change.bytes() > 0 { layout.paint.red(&bytes) } else { layout.paint.green(&bytes) };
        let first = format!("  {bytes}  {}{}  ", both(change), right(&count(change), counts));
        frame_lines(out, layout.paint, (&first, figures), &frames, names, true);
    }
    if !shared.is_empty() {
        let frames: Vec<String> = shared.iter().map(|row| short_name(row.frame.name, 50)).collect();
        let _ = writeln!(out, "  {}", layout.paint.dim(&format!("all of these through {}", frames.join(", "))));
    }
}

/// For a pull request.
pub(super) fn markdown(comparison: &Comparison<'_>, top: usize) -> String {
    let diff = &comparison.diff;
    let [before, after] = comparison.names.map(markdown_code);
    let sign = if diff.growth().is_some() { "⬆" } else { "" };
    let change = change_text(diff.before.bytes, diff.after.bytes);
    let mut out = format!("### Heap: {change} {sign}", change = escape::markdown(&change));
    out.truncate(out.trim_end().len());
    let _ = write!(out, "\n\n{}\n\n{before} → {after}\n", escape::markdown(&comparison.headline()));
    for note in notes(comparison) {
        let _ = write!(out, "\n{}\n", escape::markdown(&note));
    }
    for kind in Kind::ALL {
        let (shown, count, sum) = changes(comparison, kind, top);
        if count == 0 {
            continue;
        }
        let stacks = plural(count as u64, "stack");
        let _ = write!(out, "\n**{}: {} in {stacks}**\n\n", title(kind), signed_bytes(sum));
        let _ = writeln!(out, "| Change | Before | After | Blocks | Stack |\n|---:|---:|---:|---:|---|");
        for change in &shown {
            let frames = telling_frames(comparison.view(kind), change.stack, FRAMES);
            let names: Vec<String> =
                frames.iter().map(|frame| markdown_code(&short_name(frame.name, 60)).replace('|', "\\|")).collect();
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} |",
                signed_bytes(change.bytes()),
                human_bytes(change.before.bytes),
                human_bytes(change.after.bytes),
                signed_count(change.objects()),
                names.join(" ← ")
            );
        }
        if count > shown.len() {
            let _ = write!(out, "\nand {} more\n", grouped((count - shown.len()) as u64));
        }
    }
    if diff.changes.is_empty() {
        let _ = write!(out, "\nNo stack has changed.\n");
    }
    out
}
