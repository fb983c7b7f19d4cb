//! The table of tests (`check --per-test`), as text and in Markdown.

use super::escape::markdown_code;
use super::sections::{Layout, heading, prose};
use super::table::{self, Column};
use super::text::{duration, grouped, human_bytes, plural, printable, short_name, wrap};
use crate::profile::pertest::{TestRow, Tests};
use crate::profile::{Amount, Profile};
use std::cmp::Reverse;
use std::fmt::Write;

/// At least so many tests are shown, if there are as many.
const SHOWN: usize = 10;

/// The tests that fail, then those with the highest peaks, and how many more there are.
fn shown(tests: &Tests, top: usize) -> (Vec<&TestRow>, usize) {
    let mut rows: Vec<&TestRow> = tests.rows.iter().collect();
    rows.sort_by_key(|row| (!row.fails(), Reverse(row.leaked.bytes), Reverse(row.peak_bytes)));
    let least = rows.iter().filter(|row| row.fails()).count().max(SHOWN).max(top);
    let rest = rows.len().saturating_sub(least);
    rows.truncate(least);
    (rows, rest)
}

/// What is allocated, and what is lost, in no test or in nobody knows which, in words.
fn beside(tests: &Tests) -> Vec<String> {
    let amount = |amount: Amount| format!("{} in {}", human_bytes(amount.bytes), plural(amount.objects, "block"));
    let mut told = Vec::new();
    if tests.outside_leaked != Amount::default() {
        told.push(format!("Leaked outside of tests: {}", amount(tests.outside_leaked)));
    }
    if tests.unassigned != Amount::default() {
        told.push(format!(
            "{} were allocated while tests ran by threads that none of them has made",
            amount(tests.unassigned)
        ));
    }
    told
}

/// What has grown, in words; empty where nothing has.
pub(super) fn growth(row: &TestRow) -> String {
    let told = row.grown.iter().map(|grown| {
        let number = |n: u64| if grown.what.is_bytes() { human_bytes(n) } else { grouped(n) };
        format!("{} from {} to {}", grown.what.name(), number(grown.before), number(grown.after))
    });
    told.collect::<Vec<_>>().join(", ")
}

/// The table; nothing if tests were not looked at.
pub(super) fn table(out: &mut String, layout: Layout, profile: &Profile, top: usize) {
    let Some(tests) = &profile.tests else { return };
    heading(out, layout, &format!("Tests: {}", grouped(tests.rows.len() as u64)));
    let (rows, rest) = shown(tests, top);
    let column = |title, is_text, cell: &dyn Fn(&TestRow) -> String| {
        let cells = rows.iter().map(|row| cell(row)).collect();
        Column { title, cells, is_text, least: 0 }
    };
    let more = |bytes: u64| if bytes == 0 { String::new() } else { human_bytes(bytes) };
    let mut columns = vec![
        column("leaked", false, &|row| more(row.leaked.bytes)),
        column("blocks", false, &|row| {
            if row.leaked.objects == 0 { String::new() } else { grouped(row.leaked.objects) }
        }),
        column("kept", false, &|row| more(row.kept.bytes)),
        column("peak", false, &|row| human_bytes(row.peak_bytes)),
        column("allocations", false, &|row| grouped(row.allocated.objects)),
        column("runs", false, &|row| if row.runs == 1 { String::new() } else { grouped(row.runs) }),
        column("time", false, &|row| duration(row.duration_ns)),
    ];
    columns.retain(|column| column.cells.iter().any(|cell| !cell.is_empty()));
    if !rows.is_empty() {
        let width = table::line(&columns, None).chars().count();
        let _ = writeln!(out, "  {}  {}", layout.paint.dim(&table::line(&columns, None)), layout.paint.dim("test"));
        for (index, row) in rows.iter().enumerate() {
            let name = short_name(&printable(&row.name), layout.width.saturating_sub(width + 4).max(20));
            let name = if row.fails() { layout.paint.red(&name) } else { name };
            let _ = writeln!(out, "  {}  {name}", table::line(&columns, Some(index)));
            if !row.grown.is_empty() {
                let _ = writeln!(out, "  {:width$}  {}", "", layout.paint.yellow(&format!("grown: {}", growth(row))));
            }
        }
    }
    if rest > 0 {
        let more = format!("and {} (--top N shows more, -o NAME.json all)", plural(rest as u64, "test"));
        let _ = writeln!(out, "  {}", layout.paint.dim(&wrap(&more, 2, layout.width)));
    }
    beside(tests).iter().for_each(|told| prose(out, layout, told));
}

/// The same in Markdown.
pub(super) fn markdown(text: &mut String, profile: &Profile, top: usize) {
    let Some(tests) = &profile.tests else { return };
    let (rows, rest) = shown(tests, top);
    let _ = writeln!(text, "\n#### Tests: {}\n", grouped(tests.rows.len() as u64));
    if !rows.is_empty() {
        let _ = writeln!(text, "| test | leaked | kept | peak | allocations | grown |\n|---|--:|--:|--:|--:|---|");
    }
    for row in rows {
        let mark = if row.fails() { "**" } else { "" };
        let name = markdown_code(&row.name).replace('|', "\\|");
        let _ = writeln!(
            text,
            "| {mark}{name}{mark} | {} | {} | {} | {} | {} |",
            grouped(row.leaked.bytes),
            grouped(row.kept.bytes),
            grouped(row.peak_bytes),
            grouped(row.allocated.objects),
            growth(row)
        );
    }
    if rest > 0 {
        let _ = writeln!(text, "\nand {} more", grouped(rest as u64));
    }
    for told in beside(tests) {
        let _ = writeln!(text, "\n{told}");
    }
}
