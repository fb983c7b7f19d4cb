//! The difference of two heaps: for a terminal, as Markdown, as JSON.

use crate::export::diff::{change_text, signed_bytes, signed_count};
use crate::export::escape::{markdown, markdown_code};
use crate::export::text::{self, Paint, grouped, human_bytes, plural, short_name};
use crate::heap::file::SavedHeap;
use crate::heap::file::diff::{HeapDiff, Row};
use crate::heap::graph::Sum;
use serde_json::{Value, json};
use std::fmt::Write;

/// The version of the form: it grows when a member changes its meaning or goes.
const VERSION: u32 = 1;
/// Columns that a name may take.
const WIDTH: usize = 60;

/// Two heaps with the names of their files, and how they differ.
#[derive(Clone, Copy, Debug)]
pub struct HeapComparison<'a> {
    /// The earlier one.
    pub before: (&'a str, &'a SavedHeap),
    /// The later one.
    pub after: (&'a str, &'a SavedHeap),
    /// What has changed.
    pub diff: &'a HeapDiff,
}

impl HeapComparison<'_> {
    fn headline(&self) -> String {
        let all = &self.diff.all;
        let told = |sum: Sum| format!("{} in {}", human_bytes(sum.bytes), plural(sum.blocks, "live block"));
        format!(
            "{} before, {} after: {}",
            told(all.before),
            told(all.after),
            change_text(all.before.bytes, all.after.bytes)
        )
    }

    /// Whose heaps they are, and what of that makes the figures less certain.
    fn notes(&self) -> String {
        let (before, after) = (self.before.1, self.after.1);
        let who = |heap: &SavedHeap| format!("{}, pid {}", heap.program, heap.identity.pid);
        if !self.diff.same_process {
            return format!(
                "Two processes ({}; {}): by type and holder only, as their blocks can't be matched.",
                who(before),
                who(after)
            );
        }
        let later = after.identity.taken_ns.checked_sub(before.identity.taken_ns);
        let later = later.map_or_else(|| "before the first".to_owned(), |ns| format!("{} later", text::duration(ns)));
        let all = &self.diff.all;
        let told = |sum: Sum| format!("{} ({})", plural(sum.blocks, "block"), human_bytes(sum.bytes));
        format!(
            "One process ({}), the second {later}: {} came, {} went, {} stayed.",
            who(after),
            told(all.came),
            told(all.went),
            told(all.stayed())
        )
    }

    fn tables(&self) -> [(&'static str, &[Row]); 2] {
        [("Type", &self.diff.types), ("Holder", &self.diff.holders)]
    }

    /// What came and went, if that is known, else nothing.
    fn moves(&self, row: &Row) -> [String; 3] {
        if !self.diff.same_process {
            return Default::default();
        }
        let moved = i128::from(row.moved_in.blocks) - i128::from(row.moved_out.blocks);
        let moved = if row.moved_in == row.moved_out { String::new() } else { signed_count(moved) };
        [grouped(row.came.blocks), grouped(row.went.blocks), moved]
    }

    /// For a terminal; `top` rows of each table.
    pub fn text(&self, top: usize, paint: Paint) -> String {
        let mut out = format!("{} {} → {}\n", paint.bold("heaptrace diff:"), self.before.0, self.after.0);
        let _ = writeln!(out, "  {}", text::wrap(&self.headline(), 2, 100));
        let _ = writeln!(out, "  {}", text::wrap(&self.notes(), 2, 100));
        for (name, rows) in self.tables() {
            if rows.is_empty() {
                let _ = writeln!(out, "\nNo {} has changed.", name.to_lowercase());
                continue;
            }
            let moves = if self.diff.same_process {
                format!(" {:>10} {:>10} {:>10}", "came", "went", "moved")
            } else {
                String::new()
            };
            let head = format!("  {:>12} {:>12} {:>10}{moves}  {name}", "change", "after", "blocks");
            let _ = writeln!(out, "\n{}", paint.dim(&head));
            for row in rows.iter().take(top) {
                let [came, went, moved] = self.moves(row);
                let moves =
                    if self.diff.same_process { format!(" {came:>10} {went:>10} {moved:>10}") } else { String::new() };
                let change = text::right(&signed_bytes(row.growth()), 12);
                let change = match row.growth() {
                    1.. => paint.red(&change),
                    0 => change,
                    _ => paint.green(&change),
                };
                let blocks = i128::from(row.after.blocks) - i128::from(row.before.blocks);
                let _ = writeln!(
                    out,
                    "  {change} {:>12} {:>10}{moves}  {}",
                    human_bytes(row.after.bytes),
                    signed_count(blocks),
                    short_name(&row.name, WIDTH)
                );
            }
            if rows.len() > top {
                let _ = writeln!(out, "  and {} more", grouped((rows.len() - top) as u64));
            }
        }
        out
    }

    /// For a ticket.
    pub fn markdown(&self, top: usize) -> String {
        let all = &self.diff.all;
        let mut out = format!("### Heap: {}\n", markdown(&change_text(all.before.bytes, all.after.bytes)));
        let _ = write!(out, "\n{} → {}\n", markdown_code(self.before.0), markdown_code(self.after.0));
        let _ = write!(out, "\n{}\n\n{}\n", markdown(&self.headline()), markdown(&self.notes()));
        for (name, rows) in self.tables().into_iter().filter(|(_, rows)| !rows.is_empty()) {
            let (heads, lines) =
                if self.diff.same_process { (" Came | Went | Moved |", "---:|---:|---:|") } else { ("", "") };
            let _ = write!(
                out,
                "\n| Change | Before | After | Blocks |{heads} {name} |\n|---:|---:|---:|---:|{lines}---|\n"
            );
            for row in rows.iter().take(top) {
                let moves = self.moves(row);
                let moves = if self.diff.same_process { format!(" {} |", moves.join(" | ")) } else { String::new() };
                let blocks = i128::from(row.after.blocks) - i128::from(row.before.blocks);
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} |{moves} {} |",
                    signed_bytes(row.growth()),
                    human_bytes(row.before.bytes),
                    human_bytes(row.after.bytes),
                    signed_count(blocks),
                    super::cell(&row.name)
                );
            }
            if rows.len() > top {
                let _ = write!(out, "\nand {} more\n", grouped((rows.len() - top) as u64));
            }
        }
        out
    }

    /// All of it, on one line.
    pub fn json(&self) -> String {
        let sum = |of: Sum| json!({ "blocks": of.blocks, "bytes": of.bytes });
        let same = self.diff.same_process;
        let row = |row: &Row| {
            let known = |of: Sum| if same { sum(of) } else { Value::Null };
            json!({
                "name": row.name,
                "before": sum(row.before),
                "after": sum(row.after),
                "came": known(row.came),
                "went": known(row.went),
                "stayed": known(row.stayed()),
                "moved_in": known(row.moved_in),
                "moved_out": known(row.moved_out),
            })
        };
        let file = |(name, heap): (&str, &SavedHeap)| json!({ "file": name, "pid": heap.identity.pid, "program": heap.program, "taken_ns": heap.identity.taken_ns });
        let rows = |rows: &[Row]| -> Vec<Value> { rows.iter().map(row).collect() };
        let told = json!({
            "version": VERSION,
            "before": file(self.before),
            "after": file(self.after),
            "same_process": same,
            "all": row(&self.diff.all),
            "types": rows(&self.diff.types),
            "holders": rows(&self.diff.holders),
        });
        format!("{told}\n")
    }
}
