//! The page of a difference: the stacks of both profiles in one tree, with what they had and have.

use super::super::json;
use super::super::view::{StackTotals, View};
use super::numbers::Numbers;
use super::source::Source;
use super::tree::{CallTree, by_name};
use super::{Column, Words, page};
use crate::profile::diff::Diff;
use crate::profile::merge::{Merger, Origin};
use crate::profile::value::Value;
use crate::profile::{Amount, Meta, Profile, Sample};
use serde::Serialize;
use std::io::{self, Write};

/// What the page can show of each site of a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// What is more than before, of sites of which it is.
    Grown,
    /// What is less, of the others.
    Shrunk,
    /// What there is in the later profile.
    After,
    /// What there was in the earlier one.
    Before,
}

impl Side {
    /// In the order of their keys.
    const ALL: [Self; 4] = [Self::Grown, Self::Shrunk, Self::After, Self::Before];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Grown => "grown",
            Self::Shrunk => "shrunk",
            Self::After => "after",
            Self::Before => "before",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Grown => "Grown",
            Self::Shrunk => "Shrunk",
            Self::After => "After",
            Self::Before => "Before",
        }
    }

    /// That of a site of [`joined`] profiles.
    pub(super) const fn of(self, site: &StackTotals) -> Amount {
        let (before, after) = (site.freed, site.allocated);
        match self {
            Self::Grown => after.minus(before),
            Self::Shrunk => before.minus(after),
            Self::After => after,
            Self::Before => before,
        }
    }
}

/// What is compared.
#[derive(Serialize)]
pub(super) struct WordsDifference<'a> {
    /// The names of the files.
    files: [&'a str; 2],
    /// Which amounts.
    value: &'static str,
    before: Amount,
    after: Amount,
    /// How many stacks have the same as before.
    unchanged: u64,
}

/// Writes the page of what has changed from `before` to `after`, which come with the names of their files.
///
/// # Errors
/// What `out` says.
pub(in super::super) fn write(
    before: (&str, &View<'_>),
    after: (&str, &View<'_>),
    diff: &Diff,
    headline: String,
    out: &mut dyn Write,
) -> io::Result<()> {
    let joined = joined(before.1, after.1, diff.value);
    let view = View::new(&joined);
    let table = json::frames(&view);
    let columns = Side::ALL.map(Column::Side);
    let most = |site: &StackTotals| site.allocated.bytes.max(site.freed.bytes);
    let tree = CallTree::new(&view, &table, &by_name(&table), most);
    let mut numbers = Numbers::new(&table);
    numbers.tree(&tree);
    numbers.sites(&view, &tree, &columns);
    let has_grown = view.sites().iter().any(|site| Side::Grown.of(&site).bytes > 0);
    let has_shrunk = view.sites().iter().any(|site| Side::Shrunk.of(&site).bytes > 0);
    let first = match (has_grown, has_shrunk) {
        (true, _) => Side::Grown,
        (false, true) => Side::Shrunk,
        (false, false) => Side::After,
    };
    let title = format!("{} → {} – heaptrace", before.0, after.0);
    let words = Words {
        title: title.clone(),
        report: json::head(&view, &table),
        strings: &numbers.strings,
        columns: columns.iter().map(|column| column.words(&view)).collect(),
        lifetimes: false,
        column: first.name(),
        header: vec![headline],
        resident: None,
        cost: Vec::new(),
        unnamed: Vec::new(),
        anomalies: Vec::new(),
        advice: Vec::new(),
        problems: Vec::new(),
        threads: Vec::new(),
        marks: &[],
        resident_course: &[],
        attached: false,
        source: &Source::default(),
        difference: Some(WordsDifference {
            files: [before.0, after.0],
            value: diff.value.title(),
            before: diff.before,
            after: diff.after,
            unchanged: diff.same,
        }),
    };
    page(&title, &words, &numbers.bytes, out)
}

/// One profile of both: what a stack had of `value` in the earlier one is what it has freed here, what it has in the
/// later one is what it has allocated.
fn joined(before: &View<'_>, after: &View<'_>, value: Value) -> Profile {
    let side = |view: &View<'_>, is_after: bool| {
        let profile = view.profile;
        let none = Amount::default();
        let sample = |sample: Sample| {
            let amount = value.of(&sample);
            Sample {
                inherited: false,
                interval: 0,
                allocated: if is_after { amount } else { none },
                freed: if is_after { none } else { amount },
                deallocated: none,
                live: none,
                at_peak: none,
                temporary: 0,
                lifetime_ns: 0,
                freed_elsewhere: 0,
                ..sample
            }
        };
        let samples = view.samples.iter().map(sample).collect();
        Profile {
            strings: profile.strings.clone(),
            functions: profile.functions.clone(),
            locations: profile.locations.clone(),
            modules: profile.modules.clone(),
            stacks: profile.stacks.clone(),
            samples,
            ..Profile::empty(Meta { sample_interval: 0, ..profile.meta.clone() })
        }
    };
    let mut merger = Merger::new(side(after, true), &Origin::default());
    merger.add(side(before, false), &Origin::default());
    // Neither's course is the other's.
    Profile { timeline: Vec::new(), ..merger.finish(Vec::new()) }
}
