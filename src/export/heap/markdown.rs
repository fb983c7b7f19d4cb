//! The answer of `heaptrace heap` in Markdown, for a ticket.

use super::held::advice;
use super::{HeapReport, USES, sentence, sharing};
use crate::export::escape::{markdown, markdown_code};
use crate::export::text::{self, grouped, human_bytes, plural};
use crate::heap::graph::holders::LOST;
use crate::heap::graph::{Held, Sum};
use std::fmt::Write;

/// Rows of a table.
const ROWS: usize = 10;

/// All of it.
pub fn markdown_report(report: &HeapReport<'_>) -> String {
    let total = report.census.total();
    let mut out = format!("### Heap of {}: {} resident\n", markdown_code(report.program), human_bytes(total.resident));
    let threads = plural(report.threads as u64, "thread");
    let _ = write!(out, "\n{}\n\nProcess {}, {threads}.\n", markdown(&sentence(report)), report.pid);
    let _ = write!(out, "\n| Memory | Resident | | Address space |\n|---|---:|---:|---:|\n");
    for (of, name) in USES {
        let amount = report.census.of(of);
        if amount.resident > 0 || amount.swapped > 0 {
            let share = text::percent(amount.resident, total.resident);
            let (resident, reserved) = (human_bytes(amount.resident), human_bytes(amount.reserved));
            let _ = writeln!(out, "| {name} | {resident} | {} | {reserved} |", markdown(&share));
        }
    }
    if let Some(held) = report.held {
        tables(&mut out, held);
    }
    if let Some(trim) = report.trim {
        let _ = write!(out, "\n`malloc_trim(0)` would give {} back.\n", human_bytes(trim.bytes()));
    }
    if let Some((remedy, bytes)) = report.held.and_then(|held| held.remedy) {
        let _ = write!(out, "\n{} by {}.\n", human_bytes(bytes), markdown(advice(remedy)));
    }
    for advice in report.held.map(sharing::advice).unwrap_or_default() {
        let _ = write!(out, "\n{}.\n", markdown(&advice.text));
    }
    let findings = report.walk.map_or(&[][..], |walk| &walk.findings);
    if !findings.is_empty() {
        let _ = write!(out, "\nInconsistent places in the heap:\n\n");
        for finding in findings.iter().take(ROWS) {
            let _ = writeln!(out, "- at {}: {}", finding.at, markdown(&finding.what.to_string()));
        }
        if findings.len() > ROWS {
            let _ = writeln!(out, "- and {} more", findings.len() - ROWS);
        }
    }
    out
}

fn tables(out: &mut String, held: &Held) {
    let holdings = &held.holdings;
    let order = holdings.by_retained();
    let holders = order.iter().filter_map(|&number| holdings.holders.get(number));
    let mut rows: Vec<(String, Sum)> = holders
        .filter(|holder| holder.retained.blocks > 0)
        .map(|holder| (holder.name.clone(), holder.retained))
        .collect();
    let rest = [("(held by several of them)", holdings.shared), (LOST, holdings.lost)];
    let rest = rest.into_iter().filter(|(_, sum)| sum.blocks > 0).map(|(name, sum)| (name.to_owned(), sum));
    table(out, "Retained", "Holder", &mut rows, rest.collect());
    let sums = held.types.sums(&holdings.graph);
    let mut rows = sums.into_iter().map(|(of, sum)| (of.told(), sum)).collect();
    table(out, "Bytes", "Type", &mut rows, Vec::new());
}

fn table(out: &mut String, bytes: &str, name: &str, rows: &mut Vec<(String, Sum)>, last: Vec<(String, Sum)>) {
    let mut others = Sum::default();
    rows.iter().skip(ROWS).for_each(|(_, sum)| others.join(*sum));
    let hidden = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    let _ = write!(out, "\n| {bytes} | Blocks | {name} |\n|---:|---:|---|\n");
    for (name, sum) in rows.iter().chain(&last) {
        let _ = writeln!(out, "| {} | {} | {} |", human_bytes(sum.bytes), grouped(sum.blocks), super::cell(name));
    }
    if hidden > 0 {
        let _ = writeln!(
            out,
            "| {} | {} | {} |",
            human_bytes(others.bytes),
            grouped(others.blocks),
            plural(hidden as u64, "other")
        );
    }
}
