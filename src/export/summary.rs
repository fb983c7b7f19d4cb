//! The summary of one screen that `run` and `attach` print at the end.

use super::advice;
use super::cost;
use super::findings;
use super::names;
use super::output::Outcome;
use super::processes;
use super::sections::{self, Layout};
use super::text::{self, Paint};
use super::view::{Headline, View};
use crate::profile::Profile;
use crate::profile::value::Value;
use std::fmt::Write;

/// How the summary looks.
#[derive(Clone, Copy, Debug)]
pub struct SummaryOptions<'a> {
    /// The one table of stacks to show; None: what is live, the peak, and where most was allocated.
    pub value: Option<Value>,
    /// How many stacks each of its tables shows.
    pub top: usize,
    /// Whether to use terminal colours.
    pub color: bool,
    /// The width of the terminal in columns; less than 60 counts as 60.
    pub width: usize,
    /// What became of the output files.
    pub files: &'a [Outcome],
}

impl Default for SummaryOptions<'_> {
    fn default() -> Self {
        Self { value: None, top: 3, color: false, width: 100, files: &[] }
    }
}

/// The summary: totals, the stacks that matter, what is uncertain, what it cost, and the files written. Ends in a
/// line end.
pub fn summary(profile: &Profile, options: &SummaryOptions<'_>) -> String {
    let view = View::new(profile);
    let layout = Layout::new(Paint { color: options.color }, options.width);
    let mut out = String::new();
    sections::header(&mut out, layout, profile, "");
    sections::totals(&mut out, layout, profile);
    processes::table(&mut out, layout, profile, options.top);
    match options.value {
        Some(value) => sections::stacks_by(&mut out, layout, &view, value, options.top),
        None => sections::top_stacks(&mut out, layout, &view, options.top),
    }
    advice::section(&mut out, layout, &view, options.top.saturating_mul(2));
    findings::write(&mut out, layout, &view, options.top);
    sections::anomalies(&mut out, layout, profile);
    names::missing(&mut out, layout, &view);
    sections::other_processes(&mut out, layout, profile);
    cost::cost(&mut out, layout, &view);
    sections::warnings(&mut out, layout, profile);
    files(&mut out, layout, options.files, &view);
    out
}

/// Above so many files not all are listed.
const MANY: usize = 15;

/// So many are then.
const SHOWN: usize = 10;

/// The output files.
pub(super) fn files(out: &mut String, layout: Layout, files: &[Outcome], view: &View<'_>) {
    if files.is_empty() {
        return;
    }
    sections::heading(out, layout, "Files");
    // Of many processes' files, some stand for all; what went wrong is told in any case.
    let many = files.len() > MANY;
    let shown = files.iter().enumerate().filter(|(at, outcome)| !many || *at < SHOWN || outcome.result.is_err());
    for (_, outcome) in shown.clone() {
        let path = text::printable(&outcome.path.to_string_lossy());
        let _ = match &outcome.result {
            Ok(bytes) => writeln!(out, "  {path}  {}", layout.paint.dim(&text::human_bytes(*bytes))),
            Err(error) => {
                writeln!(out, "  {path}  {}", layout.paint.red(&text::printable(&format!("not written: {error}"))))
            }
        };
    }
    let hidden = files.len() - shown.count();
    if hidden > 0 {
        let _ = writeln!(out, "  {}", layout.paint.dim(&format!("and {} more", text::grouped(hidden as u64))));
    }
    let pprof = files.iter().filter(|outcome| outcome.result.is_ok() && outcome.format.is_pprof());
    let richest = pprof.rev().max_by_key(|outcome| outcome.allocated_bytes);
    // an empty profile is no use to look at
    if let Some(outcome) = richest.filter(|_| view.profile.totals.allocations > 0) {
        let path = text::shell_words(&[outcome.path.to_string_lossy().into_owned()]);
        let what = match view.headline() {
            Headline::Peak => "the peak",
            Headline::Live => "what is live",
        };
        let (begin, command) = (format!("to see {what}:"), format!("go tool pprof -top {path}"));
        let fits = 2 + begin.chars().count() + 1 + command.chars().count() <= layout.width;
        let gap = if fits { " " } else { "\n    " };
        let _ = writeln!(out, "  {}", layout.paint.dim(&format!("{begin}{gap}{command}")));
    }
}
