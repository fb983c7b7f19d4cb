//! The table of processes, where a profile has several.

use super::sections::{Layout, heading, prose};
use super::table::{self, Column};
use super::text::{grouped, human_bytes, plural, printable, short_name, wrap};
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
        let more = wrap(&format!("{more} (--top N shows more, -o NAME.json all)"), 2, layout.width);
        let _ = writeln!(out, "  {}", layout.paint.dim(&more));
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
    let column = |title, is_text, cell: &dyn Fn(&ProcessRow) -> String| {
        let cells = rows.iter().map(|row| cell(row)).collect();
        Column { title, cells, is_text, least: 0 }
    };
    let verdict = |row: &ProcessRow| match &row.verdict {
        Some(verdict) if verdict.kind == VerdictKind::Clean => "clean".to_owned(),
        Some(verdict) => verdict.kind.name().replace('_', " "),
        None => String::new(),
    };
    let mut columns = vec![
        column("pid", false, &|row| row.pid.to_string()),
        column("program", true, &|row| short_name(&printable(&row.program), NAME)),
        column("allocations", false, &|row| grouped(row.totals.allocations)),
        column("peak", false, &|row| human_bytes(own_peak(row))),
        column("live", false, &|row| human_bytes(row.totals.live_bytes.saturating_sub(row.inherited.bytes))),
        column("inherited", false, &|row| match row.inherited.bytes {
            0 => String::new(),
            bytes => human_bytes(bytes),
        }),
        column("resident", false, &|row| {
            row.resident.map(|resident| human_bytes(resident.peak_bytes)).unwrap_or_default()
        }),
        column("end", true, &|row| exit_text(row.exit)),
        column("verdict", true, &verdict),
    ];
    columns.retain(|column| column.cells.iter().any(|cell| !cell.is_empty()));
    // Where there is no room, what is missed least goes first; report.json has all.
    for dispensable in ["inherited", "resident", "allocations", "live"] {
        if 2 + columns.iter().map(|column| column.width() + 2).sum::<usize>() - 2 > layout.width {
            columns.retain(|column| column.title != dispensable);
        }
    }
    let line = |row| format!("  {}", table::line(&columns, row)).trim_end().to_owned();
    let _ = writeln!(out, "{}", layout.paint.dim(&line(None)));
    for (index, row) in rows.iter().enumerate() {
        let text = line(Some(index));
        let text = match verdict(row) {
            verdict if verdict.is_empty() => text,
            verdict => {
                let painted = if fails(row) { layout.paint.red(&verdict) } else { layout.paint.dim(&verdict) };
                format!("{}{painted}", text.strip_suffix(verdict.as_str()).unwrap_or(&text))
            }
        };
        let _ = writeln!(out, "{text}");
    }
}

/// The peak of its own blocks.
const fn own_peak(row: &ProcessRow) -> u64 {
    row.totals.peak_bytes.saturating_sub(row.inherited_at_peak.bytes)
}

fn fails(row: &ProcessRow) -> bool {
    row.verdict.as_ref().is_some_and(|verdict| verdict.kind != VerdictKind::Clean)
}
