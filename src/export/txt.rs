//! The text report: the summary's figures, and whole stacks.

use super::ExportOptions;
use super::advice;
use super::cost;
use super::findings;
use super::leaks;
use super::names;
use super::processes;
use super::sections::{self, Largest, Layout};
use super::text::{self, Paint, basename, grouped, human_bytes, percent, printable, right, short_name};
use super::view::{NamedFrame, SiteTotals, StackTotals, TRUNCATED_STACK, View};
use crate::profile::value::Value;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Files are read in editors and pagers: wider than a terminal, and always the same.
const WIDTH: usize = 120;

/// Writes the report.
pub(crate) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let layout = Layout::new(Paint { color: false }, WIDTH);
    let profile = view.profile;
    let mut text = String::new();
    sections::header(&mut text, layout, profile, "");
    origin(&mut text, view);
    sections::totals(&mut text, layout, profile);
    processes::table(&mut text, layout, profile, usize::MAX);
    let sites = view.sites();
    let values = match options.value {
        Some(value) => vec![value],
        None => vec![Value::Live, Value::Peak, Value::Allocated, Value::Temporary],
    };
    for value in values.into_iter().filter(|value| sections::is_held(profile, *value)) {
        match value {
            Value::Temporary => temporary(&mut text, layout, view, sites, options.top),
            value => stacks(&mut text, layout, view, value, sites, options.top),
        }
    }
    advice::section(&mut text, layout, view, usize::MAX);
    histogram(&mut text, layout, "Block sizes, from so many bytes on", &profile.histograms.size);
    histogram(&mut text, layout, "Lifetimes, from so many allocations of the process on", &profile.histograms.lifetime);
    if profile.leaks.is_some() {
        leaks::lost_blocks(&mut text, layout, view, options.top);
        leaks::errors(&mut text, layout, view, usize::MAX);
        leaks::conclusions(&mut text, layout, profile);
    } else {
        findings::write(&mut text, layout, view, usize::MAX);
    }
    sections::anomalies(&mut text, layout, profile);
    names::missing(&mut text, layout, view);
    sections::other_processes(&mut text, layout, profile);
    allocators(&mut text, layout, view);
    cost::cost(&mut text, layout, view);
    sections::warnings(&mut text, layout, profile);
    leaks::verdict(&mut text, layout, profile);
    out.write_all(text.as_bytes())
}

/// What was run, where and when, as far as that is known.
fn origin(out: &mut String, view: &View<'_>) {
    let process = &view.profile.meta.process;
    if !process.command.is_empty() {
        let _ = writeln!(out, "command: {}", text::shell_words(&process.command));
    }
    if !process.cwd.as_os_str().is_empty() {
        let _ = write!(out, "in {}, ", printable(&process.cwd.to_string_lossy()));
    }
    if process.started_at != std::time::UNIX_EPOCH {
        let _ = writeln!(out, "started {}", started(view));
    }
}

fn started(view: &View<'_>) -> String {
    humantime::format_rfc3339_seconds(view.profile.meta.process.started_at).to_string()
}

fn stacks(out: &mut String, layout: Layout, view: &View<'_>, value: Value, sites: &SiteTotals, top: usize) {
    let Largest { shown, count, whole, .. } = Largest::by_bytes(sites, top, |site| site.of(value));
    let title = format!(
        "{}: {} in {}",
        sections::value_title(view, value),
        human_bytes(whole),
        text::plural(count as u64, "stack")
    );
    sections::heading(out, layout, &title);
    for site in shown {
        let amount = site.of(value);
        let share = percent(amount.bytes, whole);
        let (blocks, id) = (text::plural(amount.objects, "block"), view.id_of(&site));
        let lived = if value == Value::Allocated { lifetime(view, &site) } else { String::new() };
        let _ = writeln!(out, "\n  {}, {share}, in {blocks}{lived}  [{id:016x}]", bytes(amount.bytes));
        stack(out, view, &site);
    }
    rest(out, count, top);
}

/// An amount, with the exact number if it was rounded.
fn bytes(bytes: u64) -> String {
    let human = human_bytes(bytes);
    if bytes < 1024 { human } else { format!("{human} ({} B)", grouped(bytes)) }
}

/// For how long the site's freed blocks have lived, on average, if that is known.
fn lifetime(view: &View<'_>, site: &StackTotals) -> String {
    // Less than the clock tells is no figure.
    match site.mean_lifetime_ns().filter(|mean| *mean > 0 && sections::has_lifetimes(view.profile)) {
        Some(mean) if site.live.objects > 0 => format!("; those that were freed lived for {}", text::duration(mean)),
        Some(mean) => format!("; they lived for {}", text::duration(mean)),
        None => String::new(),
    }
}

fn temporary(out: &mut String, layout: Layout, view: &View<'_>, sites: &SiteTotals, top: usize) {
    let with_temporary = sites.iter().filter(|site| site.temporary > 0);
    let Largest { shown, count, whole, .. } =
        Largest::of(with_temporary, top, |site| site.temporary, |site| (Reverse(site.temporary), site.stack));
    if count == 0 {
        return;
    }
    let title = format!("Temporary, freed before the thread's next allocation: {}", text::plural(whole, "block"));
    sections::heading(out, layout, &title);
    for site in shown {
        let share = percent(site.temporary, site.allocated.objects);
        let blocks = text::plural(site.temporary, "block");
        let (lived, id) = (lifetime(view, &site), view.id_of(&site));
        let _ = writeln!(out, "\n  {blocks}, {share} of those allocated here{lived}  [{id:016x}]");
        stack(out, view, &site);
    }
    rest(out, count, top);
}

/// All frames of a stack, each with its place.
fn stack(out: &mut String, view: &View<'_>, site: &StackTotals) {
    let mut lines =
        view.frames(site.stack).map(|frame| format!("{}{}", short_name(frame.name, WIDTH), frame_place(&frame)));
    let mut current = lines.next().map(|line| (line, 1u64));
    let mut is_cut = false;
    while let Some((line, times)) = current {
        let next = lines.next();
        // a recursion is one line, not hundreds
        if next.as_ref() == Some(&line) {
            current = Some((line, times + 1));
            continue;
        }
        let repeated = if times > 1 { format!("  × {}", grouped(times)) } else { String::new() };
        let _ = writeln!(out, "      {line}{repeated}");
        is_cut = line == TRUNCATED_STACK;
        current = next.map(|line| (line, 1));
    }
    if let Some(doubt) = sections::doubt(view, site.stack, site.quality).filter(|_| !is_cut) {
        let _ = writeln!(out, "      {doubt}");
    }
}

fn frame_place(frame: &NamedFrame<'_>) -> String {
    let place = frame.place(usize::MAX);
    match (place.is_empty(), frame.inlined) {
        (true, _) => String::new(),
        (false, false) => format!("  {place}"),
        (false, true) => format!("  {place} (inlined)"),
    }
}

fn rest(out: &mut String, all: usize, top: usize) {
    if all > top {
        let _ = writeln!(out, "\n  and {} more", grouped((all - top) as u64));
    }
}

/// Bars over powers of two, without the empty buckets at both ends.
fn histogram(out: &mut String, layout: Layout, title: &str, buckets: &[u64]) {
    const BAR: u64 = 50;
    let Some(first) = buckets.iter().position(|count| *count > 0) else { return };
    let last = buckets.iter().rposition(|count| *count > 0).unwrap_or(first);
    let largest = buckets.iter().max().copied().unwrap_or(1).max(1);
    let whole = buckets.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
    let counts = grouped(largest).len();
    sections::heading(out, layout, title);
    for (bucket, count) in buckets.iter().enumerate().take(last + 1).skip(first) {
        // rounded up: a bar for all that is not zero
        let length = (u128::from(*count) * u128::from(BAR)).div_ceil(u128::from(largest)) as usize;
        let bar = "#".repeat(length);
        let row = format!(
            "  {:>8}  {}  {:>7}  {bar}",
            lower_bound(bucket),
            right(&grouped(*count), counts),
            percent(*count, whole)
        );
        let _ = writeln!(out, "{}", row.trim_end());
    }
}

/// The smallest value of a bucket: 0, 1, 2, 4, … 1 k, 2 k, …
fn lower_bound(bucket: usize) -> String {
    const UNITS: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let Some(power) = bucket.checked_sub(1) else { return "0".to_owned() };
    format!("{}{}", 1u64 << (power % 10), UNITS.get(power / 10).copied().unwrap_or(" ?"))
}

fn allocators(out: &mut String, layout: Layout, view: &View<'_>) {
    if view.profile.allocators.is_empty() {
        return;
    }
    sections::heading(out, layout, "Probed functions");
    for allocator in &view.profile.allocators {
        let module = view.profile.modules.get(allocator.module);
        let name = module.map(|module| basename(&module.path)).unwrap_or_default();
        let line = format!("{name}: {}", printable(&allocator.functions.join(" ")));
        let _ = writeln!(out, "  {}", text::wrap(&line, 4, layout.width));
    }
}
