//! The report that `check` prints at the end, and that of `leaks` about a process that still runs.

use super::leaks::{
    bytes, caller_line, class_of_leaks, conclusions, errors, lost_blocks, notes, stack, suppressed_errors, totals,
    verdict, verdict_line, way,
};
use super::names;
use super::output::Outcome;
use super::pertest;
use super::problems::leak_state;
use super::processes;
use super::sections::{self, Layout};
use super::summary;
use super::text::{self, Paint, duration, human_bytes, plural, printable};
use super::view::View;
use crate::base::addr::Addr;
use crate::profile::check::verdict::in_brackets;
use crate::profile::leaks::{LeakClass, Leaks, ScanMoment, VerdictKind};
use crate::profile::{Amount, Profile};
use std::fmt::Write;

/// How the report looks, and what it explains.
#[derive(Clone, Copy, Debug)]
pub struct CheckReportOptions<'a> {
    /// How many sites of each class are shown.
    pub top: usize,
    /// Whether to use terminal colours.
    pub color: bool,
    /// The width of the terminal in columns; less than 60 counts as 60.
    pub width: usize,
    /// What became of the output files.
    pub files: &'a [Outcome],
    /// For which function to show why its blocks can still be reached (`--explain`).
    pub explain: Option<&'a str>,
}

/// The report: leaks, totals by class, errors, what was not checked; the verdict in the last line. Ends in a line end.
pub fn check_report(profile: &Profile, options: &CheckReportOptions<'_>) -> String {
    let view = View::new(profile);
    let layout = Layout::new(Paint { color: options.color }, options.width);
    let mut out = String::new();
    if let Some(leaks) = unremarkable(profile, options) {
        let resident = profile.meta.process.resident.map(|resident| human_bytes(resident.peak_bytes));
        let clause = resident.map(|most| format!(", {most} resident at most")).unwrap_or_default();
        sections::header(&mut out, layout, profile, &clause);
        short(&mut out, layout, profile, leaks);
        pertest::table(&mut out, layout, profile, options.top);
        files_and_verdict(&mut out, layout, profile, options, &view);
        return out;
    }
    sections::header(&mut out, layout, profile, "");
    lost_blocks(&mut out, layout, &view, options.top);
    if let (Some(leaks), Some(function)) = (&profile.leaks, options.explain) {
        explain(&mut out, layout, &view, leaks, function);
    }
    errors(&mut out, layout, &view, options.top);
    pertest::table(&mut out, layout, profile, options.top);
    conclusions(&mut out, layout, profile);
    if let Some(resident) = sections::resident_sentence(profile) {
        let _ = writeln!(out);
        sections::prose(&mut out, layout, &resident);
    }
    processes::table(&mut out, layout, profile, options.top);
    sections::anomalies(&mut out, layout, profile);
    names::missing(&mut out, layout, &view);
    sections::other_processes(&mut out, layout, profile);
    sections::warnings(&mut out, layout, profile);
    summary::files(&mut out, layout, options.files, &view);
    verdict(&mut out, layout, profile);
    out
}

/// The leak scan of a check that has found nothing wrong, as those of most tests that pass.
fn unremarkable<'a>(profile: &'a Profile, options: &CheckReportOptions<'_>) -> Option<&'a Leaks> {
    let leaks = profile.leaks.as_ref()?;
    let [definite, indirect, ..] = leaks.totals();
    let is_clean = profile.verdict.as_ref().is_some_and(|verdict| verdict.kind == VerdictKind::Clean)
        && definite.plus(indirect) == Amount::default()
        && leaks.moment == ScanMoment::Exit
        && leaks.unreadable_bytes == 0
        && profile.findings.is_empty()
        && text::anomalies(&profile.anomalies).iter().all(|anomaly| anomaly.count == 0);
    let is_asked_for_more = options.explain.is_some() || !profile.budgets.is_empty();
    let has_other_news = !profile.processes.is_empty() || profile.children.untraced > 0 || !profile.warnings.is_empty();
    (is_clean && !is_asked_for_more && !has_other_news).then_some(leaks)
}

/// One line about a program that has lost nothing.
fn short(out: &mut String, layout: Layout, profile: &Profile, leaks: &Leaks) {
    let [_, _, possible, _] = leaks.totals();
    let live = Amount { objects: profile.totals.live_blocks, bytes: profile.totals.live_bytes };
    let allocations = plural(profile.totals.allocations, "allocation");
    let mut line = format!("{allocations}; at the end {} left, none of them lost", bytes(live));
    if possible != Amount::default() {
        let _ = write!(line, "; possibly {} (--leak-kinds possible shows where)", bytes(possible));
    }
    let [suppressed, known] = leaks.suppressed_and_known(&profile.suppressions);
    if suppressed != Amount::default() {
        let _ = write!(line, "; {} suppressed", bytes(suppressed));
    }
    if known != Amount::default() {
        let _ = write!(line, "; known: {} (--no-known-leaks shows where)", bytes(known));
    }
    if let Some(errors) = suppressed_errors(profile) {
        let _ = write!(line, "; {errors}");
    }
    sections::prose(out, layout, &line);
}

/// The end of a short report: the verdict, behind the files if there are any.
fn files_and_verdict(
    out: &mut String,
    layout: Layout,
    profile: &Profile,
    options: &CheckReportOptions<'_>,
    view: &View<'_>,
) {
    summary::files(out, layout, options.files, view);
    if let Some(verdict) = &profile.verdict {
        let gap = if options.files.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}{}", verdict_line(layout, profile, verdict));
    }
}

/// Why the blocks that a function allocated can still be reached.
fn explain(out: &mut String, layout: Layout, view: &View<'_>, leaks: &Leaks, function: &str) {
    sections::heading(out, layout, &format!("Blocks allocated through {}", printable(function)));
    let mut found = false;
    for site in leaks.sites.iter().filter(|site| view.profile.passes_through(site.stack, function)) {
        found = true;
        for class in LeakClass::ALL {
            let amount = site.amounts.get(class as usize).copied().unwrap_or_default();
            if amount == Amount::default() {
                continue;
            }
            let line = format!("{} are {}", bytes(amount), leak_state(class));
            let _ = writeln!(out, "\n  {}", layout.paint.bold(&line));
            let _ = writeln!(out, "    {}", caller_line(layout, view, site));
            stack(out, layout, view, site.stack, 6);
            way(out, layout, view, site.path_of(class), class);
        }
    }
    if !found {
        sections::prose(
            out,
            layout,
            "None that is still live. A function is found by any part of its name; inlined ones need debug information.",
        );
    }
}

/// Which blocks the report of a scan is about, in a process that still runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeakScope {
    /// All that are live.
    All,
    /// What has grown since the scan before (`--increased`).
    Grown,
    /// All, as there was no scan before, though only growth was asked for.
    FirstScan,
}

/// How the report of [`living_leaks`] looks, and what it is about.
#[derive(Clone, Copy, Debug)]
pub struct LivingLeaksOptions {
    /// How many sites of each class are shown.
    pub top: usize,
    /// Whether to use terminal colours.
    pub color: bool,
    /// The width of the terminal in columns; less than 80 counts as 80.
    pub width: usize,
    /// Which blocks the figures are of.
    pub scope: LeakScope,
    /// The address that was asked for.
    pub block: Option<Addr>,
}

/// What a program that still runs has lost by now. Ends in a line end.
pub fn living_leaks(profile: &Profile, options: &LivingLeaksOptions) -> String {
    let Some(leaks) = &profile.leaks else { return String::new() };
    let view = View::new(profile);
    let layout = Layout::new(Paint { color: options.color }, options.width);
    let mut out = String::new();
    let subject = format!("{}, pid {}", printable(&profile.meta.process.program), profile.meta.process.pid);
    let what = match options.scope {
        LeakScope::All => "its live blocks",
        LeakScope::Grown => "what has grown since the last scan",
        LeakScope::FirstScan => "all its live blocks, as this is the first scan: the next shows what has grown",
    };
    let copied = if leaks.copied { ", to be copied" } else { "" };
    let line = format!("{subject}: {what}; it stood still for {}{copied}", duration(leaks.stopped_ns));
    let _ = writeln!(out, "{}", layout.paint.bold(&line));
    if let Some(addr) = options.block {
        asked_block(&mut out, layout, &view, leaks, addr);
        return out;
    }
    // Most of what grows can be reached: a cache that nobody bounds, a list that nobody empties.
    let reachable = (options.scope != LeakScope::All).then_some(LeakClass::Reachable);
    for class in [LeakClass::Definite, LeakClass::Possible].into_iter().chain(reachable) {
        class_of_leaks(&mut out, layout, &view, leaks, class, (&[true; 4], options.top));
    }
    notes::doubts(&mut out, layout, &leaks.doubts());
    totals(&mut out, layout, leaks, &profile.suppressions);
    let unread = match leaks.unreadable_bytes {
        0 => String::new(),
        bytes => {
            format!(", {} more could not be read{}", human_bytes(bytes), in_brackets(&leaks.unreadable_names))
        }
    };
    let looked = format!("{} searched{unread}", human_bytes(leaks.scanned_bytes));
    let _ = writeln!(out, "  {}", layout.paint.dim(&looked));
    notes::untold(&mut out, layout, &leaks.untold);
    if profile.meta.mode.is_attached() {
        sections::prose(
            &mut out,
            layout,
            "Blocks from before the attach are unknown: their memory, and that of freed blocks, counts as reachable. \
             So heaptrace may miss a leak, but it reports no false ones.",
        );
    }
    out
}

fn asked_block(out: &mut String, layout: Layout, view: &View<'_>, leaks: &Leaks, addr: Addr) {
    let Some(asked) = &leaks.asked else {
        let _ = writeln!(out, "\nThere is no live block at {addr} that was allocated while heaptrace was watching.");
        return;
    };
    let line = format!("The block of {} at {} is {}", plural(asked.size, "byte"), asked.block, leak_state(asked.class));
    let _ = writeln!(out, "\n  {}", layout.paint.bold(&line));
    stack(out, layout, view, asked.stack, 6);
    way(out, layout, view, asked.path.as_ref(), asked.class);
}
