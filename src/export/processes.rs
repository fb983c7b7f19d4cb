//! The table of processes, where a profile has several.

use super::sections::{Layout, heading, prose};
use super::text::{grouped, human_bytes, left, plural, printable, right, short_name};
use super::view::exit_text;
use crate::profile::leaks::VerdictKind;
use crate::profile::{ProcessRow, Profile, Seen};
use std::cmp::Reverse;
use std::fmt::Write;

/// At least so many processes are shown, if there are as many.
const SHOWN: usize = 10;

/// Columns for a program's name.
const NAME: usize = 20;

/// The processes with the highest peaks, and how many more there are. Nothing if there is but one.
pub(super) fn table(out: &mut String, layout: Layout, profile: &Profile, top: usize) {
    if profile.processes.is_empty() {
        return;
    }
    heading(out, layout, "Processes");
    let mut rows: Vec<&ProcessRow> = profile.processes.iter().filter(|row| row.seen == Seen::Recorded).collect();
    let others = profile.processes.len() - rows.len();
    // What failed comes first, then what is big.
    rows.sort_by_key(|row| (!fails(row), Reverse(own_peak(row))));
    let shown = rows.get(..top.max(SHOWN)).unwrap_or(&rows);
    if !shown.is_empty() {
        lines(out, layout, shown);
    }
    if let Some(rest) = rows.get(shown.len()..).filter(|rest| !rest.is_empty()) {
        let allocations = rest.iter().map(|row| row.totals.allocations).sum();
        let more = format!("and {} more, with {}", grouped(rest.len() as u64), plural(allocations, "allocation"));
        let _ = writeln!(out, "  {}", layout.paint.dim(&format!("{more} (--top N shows more, -o NAME.json all)")));
    }
    if others > 0 {
        let count = |seen: Seen| profile.processes.iter().filter(|row| row.seen == seen).count() as u64;
        let kinds = [
            (count(Seen::Silent), "without any call of the allocator"),
            (count(Seen::Skipped), "not selected (--only, --skip)"),
            (count(Seen::LetGo), "let go, to become programs with other rights or another tracer's"),
        ];
        let kinds: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", grouped(*count)))
            .collect();
        prose(out, layout, &format!("Besides: {}", kinds.join("; ")));
    }
}

fn lines(out: &mut String, layout: Layout, rows: &[&ProcessRow]) {
    let judged = rows.iter().any(|row| row.verdict.is_some());
    let verdict = if judged { "verdict" } else { "" };
    let end = rows.iter().map(|row| exit_text(row.exit).chars().count()).max().unwrap_or(0);
    let title = format!(
        "  {:>7}  {}  {:>11}  {:>10}  {:>10}  {:>10}  {:>10}  {}  {verdict}",
        "pid",
        left("program", NAME),
        "allocations",
        "peak",
        "live",
        "inherited",
        "resident",
        left("end", end)
    );
    let _ = writeln!(out, "{}", layout.paint.dim(title.trim_end()));
    for row in rows {
        let line = format!(
            "  {:>7}  {}  {}  {:>10}  {:>10}  {:>10}  {:>10}  {}  ",
            row.pid,
            left(&short_name(&printable(&row.program), NAME), NAME),
            right(&grouped(row.totals.allocations), 11),
            human_bytes(own_peak(row)),
            human_bytes(row.totals.live_bytes.saturating_sub(row.inherited.bytes)),
            if row.inherited.bytes > 0 { human_bytes(row.inherited.bytes) } else { String::new() },
            row.resident.map(|resident| human_bytes(resident.peak_bytes)).unwrap_or_default(),
            left(&exit_text(row.exit), end),
        );
        let verdict = match &row.verdict {
            Some(verdict) if verdict.kind == VerdictKind::Clean => layout.paint.dim("clean"),
            Some(verdict) => layout.paint.red(&verdict.kind.name().replace('_', " ")),
            None => String::new(),
        };
        let _ = writeln!(out, "{}", format!("{line}{verdict}").trim_end());
    }
}

/// The peak of its own blocks.
const fn own_peak(row: &ProcessRow) -> u64 {
    row.totals.peak_bytes.saturating_sub(row.inherited_at_peak.bytes)
}

fn fails(row: &ProcessRow) -> bool {
    row.verdict.as_ref().is_some_and(|verdict| verdict.kind != VerdictKind::Clean)
}
