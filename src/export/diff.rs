//! The difference of two profiles: as text, Markdown for a pull request, JSON, folded stacks of both, or pprof.

mod pprof;
mod table;

use super::escape::Json;
use super::text::{grouped, human_bytes};
use super::view::View;
use super::{Format, folded, html};
use crate::profile::diff::{Diff, Kind};
use crate::profile::value::Value;
use crate::profile::{Amount, Profile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The version of the difference in JSON.
const VERSION: u32 = 1;

/// Two profiles, and how they differ.
#[derive(Debug)]
pub struct Comparison<'a> {
    before: View<'a>,
    after: View<'a>,
    /// What has changed.
    pub diff: Diff,
    /// Their names for people.
    names: [&'a str; 2],
}

/// How text is laid out.
#[derive(Clone, Copy, Debug)]
pub struct DiffOptions {
    /// How many stacks are shown of each kind of change.
    pub top: usize,
    /// Whether to use terminal colours.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// The formats that a difference can be written in.
pub const FORMATS: [Format; 7] =
    [Format::Html, Format::PprofGz, Format::Pprof, Format::Folded, Format::Markdown, Format::Json, Format::Txt];

impl<'a> Comparison<'a> {
    /// Compares. Without a value that which both are about is taken, else what is live, else the first that both hold.
    pub fn new(before: (&'a str, &'a Profile), after: (&'a str, &'a Profile), value: Option<Value>) -> Self {
        let names = [before.0, after.0];
        let (before, after) = (View::new(before.1), View::new(after.1));
        let value = value.unwrap_or_else(|| {
            let held = |value: &Value| {
                [&before, &after].into_iter().all(|view| super::sections::is_held(view.profile, *value))
            };
            let (a, b) = (before.value(None), after.value(None));
            let first = if a == b { a } else { Value::Live };
            std::iter::once(first).chain([Value::Live, Value::Allocated]).find(held).unwrap_or(first)
        });
        let diff = Diff::new((before.profile, &before.samples), (after.profile, &after.samples), value);
        Self { before, after, diff, names }
    }

    /// The view that a change's stack is one of.
    const fn view(&self, kind: Kind) -> &View<'a> {
        match kind {
            Kind::Gone => &self.before,
            _ => &self.after,
        }
    }

    /// The difference for a terminal.
    pub fn text(&self, options: &DiffOptions) -> String {
        table::text(self, options)
    }

    /// Writes it in one of [`FORMATS`].
    ///
    /// # Errors
    /// Those of `out`; another format.
    pub fn write(&self, format: Format, options: &DiffOptions, out: &mut dyn Write) -> io::Result<()> {
        match format {
            Format::Txt => out.write_all(self.text(&DiffOptions { color: false, width: 120, ..*options }).as_bytes()),
            Format::Markdown => out.write_all(table::markdown(self, options.top).as_bytes()),
            Format::Json => self.json(out),
            Format::Folded => self.folded(out),
            Format::Html => {
                let [before, after] = self.names;
                html::write_difference((before, &self.before), (after, &self.after), &self.diff, self.headline(), out)
            }
            Format::Pprof => pprof::write(&self.before, &self.after, out),
            Format::PprofGz => pprof::write_gz(&self.before, &self.after, out),
            other => Err(io::Error::other(format!("a difference can't be written as .{other}"))),
        }
    }

    /// `stack BEFORE AFTER`, as difffolded.pl of the flame graph tools has it.
    fn folded(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for change in self.diff.changes.iter() {
            let key = folded::sort_key(self.view(change.kind), change.stack);
            let sums = lines.entry(key).or_default();
            let [before, after] = sums;
            *before = before.saturating_add(change.before.bytes);
            *after = after.saturating_add(change.after.bytes);
        }
        for (stack, [before, after]) in lines {
            writeln!(out, "{} {before} {after}", stack.replace(folded::SORT_SEPARATOR, ";"))?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let Diff { value, before, after, changes, same } = &self.diff;
        let changes = changes.iter().map(|change| {
            let names = self.view(change.kind).frames(change.stack).map(|frame| frame.name).collect();
            JsonChange {
                id: format!("{:016x}", change.id),
                change: change.kind.name(),
                before: change.before,
                after: change.after,
                stack: names,
            }
        });
        let report = JsonDiff {
            version: VERSION,
            heaptrace_version: env!("CARGO_PKG_VERSION"),
            value: value.name(),
            files: self.names,
            before: *before,
            after: *after,
            unchanged_stacks: *same,
            changes: changes.collect(),
        };
        serde_json::to_writer(Json(&mut *out), &report)?;
        out.write_all(b"\n")
    }

    /// The sums, in a sentence.
    fn headline(&self) -> String {
        let Diff { value, before, after, .. } = &self.diff;
        let blocks = |amount: &Amount| format!("{} in {} blocks", human_bytes(amount.bytes), grouped(amount.objects));
        let change = change_text(before.bytes, after.bytes);
        format!("{}: {} before, {} after: {change}", value.title(), blocks(before), blocks(after))
    }
}

/// `+1.20 MiB (+3.4 %)`, or that nothing has changed.
pub(super) fn change_text(before: u64, after: u64) -> String {
    if before == after {
        return "no change".to_owned();
    }
    let share = match before {
        0 => String::new(),
        _ => {
            let share = (after as f64 - before as f64) / before as f64 * 100.0;
            format!(" ({}{:.1} %)", if share < 0.0 { "−" } else { "+" }, share.abs())
        }
    };
    format!("{}{share}", signed_bytes(i128::from(after) - i128::from(before)))
}

/// `+1.20 MiB`, `−3 B`.
pub(super) fn signed_bytes(bytes: i128) -> String {
    let amount = human_bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{}{amount}", if bytes < 0 { "−" } else { "+" })
}

/// `+1,200`, `−3`.
pub(super) fn signed_count(count: i128) -> String {
    let amount = grouped(u64::try_from(count.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{}{amount}", if count < 0 { "−" } else { "+" })
}

#[derive(Serialize)]
struct JsonDiff<'a> {
    version: u32,
    heaptrace_version: &'static str,
    value: &'static str,
    files: [&'a str; 2],
    before: Amount,
    after: Amount,
    unchanged_stacks: u64,
    changes: Vec<JsonChange<'a>>,
}

#[derive(Serialize)]
struct JsonChange<'a> {
    id: String,
    change: &'static str,
    before: Amount,
    after: Amount,
    stack: Vec<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::sample_profile;

    #[test]
    fn changes_are_written_with_their_signs() {
        assert_eq!(change_text(1000, 1500), "+500 B (+50.0 %)");
        assert_eq!(change_text(2048, 1024), "−1.00 KiB (−50.0 %)");
        assert_eq!(change_text(0, 7), "+7 B");
        assert_eq!(change_text(7, 7), "no change");
        assert_eq!((signed_count(-3), signed_count(1200)), ("−3".to_owned(), "+1,200".to_owned()));
    }

    #[test]
    fn every_format_of_a_difference() {
        let before = sample_profile();
        let mut after = sample_profile();
        after.samples.edit(|samples| samples[0].at_peak.bytes += 4096);
        after.functions[6].name = "new_main<|script|>".to_owned();
        let comparison = Comparison::new(("a", &before), ("b", &after), None);
        assert_eq!(comparison.diff.value, Value::Peak);
        let options = DiffOptions { top: 5, color: false, width: 100 };
        for format in FORMATS {
            let mut bytes = Vec::new();
            comparison.write(format, &options, &mut bytes).expect("memory takes everything");
            let text = String::from_utf8_lossy(&bytes);
            match format {
                Format::Folded => {
                    assert!(text.lines().any(|line| line.starts_with("main;parse_document;new_node ")), "{text}")
                }
                Format::Markdown => assert!(text.contains("+4.00 KiB") && !text.contains("<|script|>"), "{text}"),
                Format::Txt => assert!(text.contains("Grown") && text.contains("+4.00 KiB"), "{text}"),
                Format::Json => {
                    let value: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
                    assert_eq!(value["changes"][0]["change"], "grown");
                }
                _ => {}
            }
        }
        assert!(comparison.write(Format::Svg, &options, &mut Vec::new()).is_err());
    }
}
