//! The report that `check` prints at the end: what leaked and where, the errors of the run, what was not checked, the
//! verdict.

mod notes;

use super::findings;
use super::names;
use super::output::Outcome;
use super::pertest;
use super::problems::{leak_sentence, leak_state};
use super::processes;
use super::rows::frame_lines;
use super::sections::{self, Layout};
use super::summary;
use super::table;
use super::telling;
use super::text::{self, Paint, duration, grouped, human_bytes, left, place, plural, printable, short_name};
use super::view::{NamedFrame, View};
use crate::base::addr::Addr;
use crate::profile::check::verdict::{DEFAULT_LEAK_KINDS, in_brackets, unchecked_children};
use crate::profile::leaks::{
    BaselineStatus, LeakClass, LeakSite, Leaks, PathStep, RetentionPath, ScanMoment, Suppression, Verdict, VerdictKind,
};
use crate::profile::{Amount, Profile};
pub(super) use notes::{doubt_sentences, untold_sentence};
use std::cmp::Reverse;
use std::fmt::Write;

/// So many frames of a stack are shown; of longer ones the innermost.
const FRAMES: usize = 30;

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

/// The leak scan of a check of which there is nothing to say but that all is well: most are that of a test that passes.
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

/// What is left at the end of a program that has lost nothing, in one line.
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

/// How many errors suppressions hide, in words.
fn suppressed_errors(profile: &Profile) -> Option<String> {
    let hidden = profile.suppressions.iter().map(|rule| rule.hidden_errors).fold(0, u64::saturating_add);
    (hidden > 0).then(|| format!("{} suppressed", plural(hidden, "error")))
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

/// The leaks site by site.
pub(super) fn lost_blocks(out: &mut String, layout: Layout, view: &View<'_>, top: usize) {
    let Some(leaks) = &view.profile.leaks else { return };
    let kinds = view.profile.verdict.as_ref().map_or(DEFAULT_LEAK_KINDS, |verdict| verdict.leak_kinds);
    for class in [LeakClass::Definite, LeakClass::Possible, LeakClass::Reachable] {
        if is_shown(&kinds, class) {
            class_of_leaks(out, layout, view, leaks, class, (&kinds, top));
        }
    }
}

/// The totals of the leak scan, and the budgets.
pub(super) fn conclusions(out: &mut String, layout: Layout, profile: &Profile) {
    if let Some(leaks) = &profile.leaks {
        totals(out, layout, leaks, &profile.suppressions);
        notes::moment(out, layout, leaks);
    }
    if let Some(errors) = suppressed_errors(profile) {
        sections::prose(out, layout, &format!("{errors}."));
    }
    budgets(out, layout, profile);
}

/// Whether blocks were lost in a way that the report shows site by site: definite and possible ones always, others if
/// they count.
fn is_shown(kinds: &[bool; 4], class: LeakClass) -> bool {
    matches!(class, LeakClass::Definite | LeakClass::Possible) || kinds.get(class as usize).copied().unwrap_or(false)
}

/// The sites with blocks of a class that are not suppressed, biggest first.
fn class_of_leaks(
    out: &mut String,
    layout: Layout,
    view: &View<'_>,
    leaks: &Leaks,
    class: LeakClass,
    (kinds, top): (&[bool; 4], usize),
) {
    let mut sites: Vec<&LeakSite> = leaks.sites.iter().filter(|site| site.hidden_by(class).is_none()).collect();
    sites.retain(|site| site.lost(class) != Amount::default());
    sites.sort_by_key(|site| Reverse((site.lost(class).bytes, site.lost(class).objects)));
    if sites.is_empty() {
        return;
    }
    let counted = sites.iter().any(|site| site.fails(kinds, class));
    let whole = sites.iter().fold(Amount::default(), |sum, site| sum.plus(site.lost(class)));
    let places = plural(sites.len() as u64, "place");
    let title = format!("{} {}, in {places}", text::capitalized(leak_state(class)), bytes(whole));
    if class == LeakClass::Possible && !kinds.get(class as usize).copied().unwrap_or(false) {
        let line = format!("{title}; --leak-kinds {} shows where", class.name());
        let _ = writeln!(out, "\n{}", layout.paint.dim(&text::wrap(&line, 2, layout.width)));
        return;
    }
    let note = if counted { "" } else { ", which the verdict does not count" };
    let title = format!("{title}{note}");
    let title = if counted { layout.paint.red(&title) } else { layout.paint.yellow(&title) };
    let _ = writeln!(out, "\n{title}");
    let shown = sites.get(..top).unwrap_or(&sites);
    for site in shown {
        let _ = writeln!(out, "\n  {}", site_line(layout, site, class));
        let _ = writeln!(out, "    {}", caller_line(layout, view, site));
        if class == LeakClass::Possible {
            notes::doubt(out, layout, site);
        }
        stack(out, layout, view, site.stack, 6);
    }
    let rest = sites.get(shown.len()..).unwrap_or_default();
    if !rest.is_empty() {
        let bytes_left = rest.iter().fold(Amount::default(), |sum, site| sum.plus(site.lost(class)));
        let places = plural(rest.len() as u64, "more place");
        let _ = writeln!(out, "\n  and {} in {places} (--top N shows more, -o NAME.json all)", bytes(bytes_left));
    }
}

/// `3,200 bytes in 5 blocks`
fn bytes(amount: Amount) -> String {
    format!("{} in {}", plural(amount.bytes, "byte"), plural(amount.objects, "block"))
}

fn site_line(layout: Layout, site: &LeakSite, class: LeakClass) -> String {
    let direct = site.amounts.get(class as usize).copied().unwrap_or_default();
    let indirect = if class == LeakClass::Definite { site.holds } else { Amount::default() };
    let line = layout.paint.bold(&leak_sentence(class, direct, indirect));
    let news = match site.compared(class) {
        Some(BaselineStatus::New) => layout.paint.yellow("; new"),
        Some(BaselineStatus::Grown) => layout.paint.yellow("; grown"),
        Some(BaselineStatus::Known) => layout.paint.dim("; known from the baseline"),
        None => String::new(),
    };
    format!("{line}{news}")
}

/// The function and the thread that allocated.
fn caller_line(layout: Layout, view: &View<'_>, site: &LeakSite) -> String {
    let (function, thread) = (printable(view.string(site.alloc_fn)), printable(view.string(site.thread)));
    layout.paint.dim(&format!("by {function} in thread {thread}"))
}

/// The frames of a stack, names and places in columns.
fn stack(out: &mut String, layout: Layout, view: &View<'_>, stack: usize, indent: usize) {
    let of_program = telling::program_frames(view, stack);
    let all = of_program.len();
    let frames: Vec<NamedFrame<'_>> = of_program.into_iter().take(FRAMES).collect();
    let room = layout.width.saturating_sub(indent);
    let names: Vec<String> = frames.iter().map(|frame| short_name(frame.name, room * 3 / 5)).collect();
    let widest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |(frame, name): (&NamedFrame<'_>, String)| {
        let inlined = if frame.inlined { " (inlined)" } else { "" };
        (name, format!("{}{inlined}", place(frame, room.saturating_sub(widest + 2 + inlined.len()))))
    };
    let lines: Vec<(String, String)> = frames.iter().zip(names).map(line).collect();
    frame_lines(out, layout.paint, (&" ".repeat(indent), indent), &lines, widest, false);
    if all > frames.len() {
        let more = plural((all - frames.len()) as u64, "outer frame");
        let _ = writeln!(out, "{:indent$}{}", "", layout.paint.dim(&format!("and {more}")));
    }
    if let Some(doubt) = sections::doubt(view, stack, view.quality(stack)) {
        let _ = writeln!(out, "{:indent$}{}", "", layout.paint.yellow(doubt));
    }
}

/// The errors of the run, with all their stacks.
pub(super) fn errors(out: &mut String, layout: Layout, view: &View<'_>, top: usize) {
    findings::write_by(out, layout, view.profile, top, |out, finding| {
        let known = if finding.baseline == Some(BaselineStatus::Known) { "; known from the baseline" } else { "" };
        out.push('\n');
        sections::prose(out, layout, &format!("{}{known}", findings::finding_sentence(finding)));
        for (title, index) in finding.stacks() {
            let _ = writeln!(out, "    {}", layout.paint.dim(title));
            stack(out, layout, view, index, 6);
        }
    });
}

/// One line for each class.
fn totals(out: &mut String, layout: Layout, leaks: &Leaks, suppressions: &[Suppression]) {
    let [definite, indirect, possible, reachable] = leaks.totals();
    let [suppressed, known] = leaks.suppressed_and_known(suppressions);
    let own: Vec<_> = suppressions.iter().filter(|rule| !rule.is_known_leak()).collect();
    let used = own.iter().filter(|rule| rule.hidden != Amount::default()).count();
    let rules = format!("by {} of {}", used, plural(own.len() as u64, "rule"));
    let mut rows = vec![
        ("definite", definite, "lost: nothing points to them"),
        ("indirect", indirect, "lost with them: only lost blocks point to them"),
        ("possible", possible, "only inner or tagged pointers lead to them"),
        ("reachable", reachable, "the program can still reach them"),
    ];
    if !own.is_empty() {
        rows.push(("suppressed", suppressed, &rules));
    }
    if known != Amount::default() {
        rows.push(("known", known, "of libraries (--no-known-leaks counts them)"));
    }
    let amounts: Vec<_> = rows.iter().map(|(_, amount, _)| (Some(amount.objects), Some(amount.bytes))).collect();
    let columns = table::amounts(&amounts, table::rounded);
    let title = match leaks.moment {
        ScanMoment::Exit | ScanMoment::LastThread => "Live at exit",
        ScanMoment::Request | ScanMoment::Program => "Live",
    };
    let title = format!("{title:12}  {}", table::line(&columns, None));
    let _ = writeln!(out, "\n{}", layout.paint.bold(title.trim_end()));
    for (index, (name, Amount { objects, .. }, meaning)) in rows.into_iter().enumerate() {
        let is_bad = objects > 0 && matches!(name, "definite" | "indirect");
        let name = left(name, 10);
        let name = if is_bad { layout.paint.red(&name) } else { name };
        let figures = table::line(&columns, Some(index));
        let _ = writeln!(out, "  {name}  {figures}  {}", layout.paint.dim(meaning));
    }
}

fn budgets(out: &mut String, layout: Layout, profile: &Profile) {
    if profile.budgets.is_empty() {
        return;
    }
    sections::heading(out, layout, "Budgets");
    let widest = profile.budgets.iter().map(|budget| budget.name.len()).max().unwrap_or(0);
    for budget in &profile.budgets {
        let numbers = format!("{} of {}", grouped(budget.actual), grouped(budget.limit));
        let state = if budget.ok() { layout.paint.dim("kept") } else { layout.paint.red("exceeded") };
        let _ = writeln!(out, "  --{}  {numbers}, {state}", left(budget.name, widest));
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

/// The way from a root to a block, or why there is none.
fn way(out: &mut String, layout: Layout, view: &View<'_>, path: Option<&RetentionPath>, class: LeakClass) {
    match (path, class) {
        (Some(path), _) => {
            let at = path.root_address.map(|address| format!(", at {address}")).unwrap_or_default();
            let _ = writeln!(out, "    {}{at}", printable(&path.root));
            steps(out, layout, view, &path.steps);
        }
        (None, LeakClass::Definite) => out.push_str("    no pointer to it was found\n"),
        (None, LeakClass::Indirect) => out.push_str("    only blocks that are lost themselves point to it\n"),
        (None, _) => out.push_str("    the way to it was not kept\n"),
    }
}

/// Links of lists and the like repeat after so many steps at most.
const LONGEST_PERIOD: usize = 4;

/// So often a link is repeated at least where the rest is folded.
const REPEATS: usize = 3;

/// The steps of a way, those of a chain of equal links once.
fn steps(out: &mut String, layout: Layout, view: &View<'_>, steps: &[PathStep]) {
    let mut at = 0;
    while let Some(step) = steps.get(at) {
        let rest = steps.get(at..).unwrap_or_default();
        let (period, repeats) = repetition(rest);
        if repeats < REPEATS {
            path_step(out, layout, view, step, at + 1 == steps.len());
            at += 1;
            continue;
        }
        for step in rest.iter().take(period) {
            path_step(out, layout, view, step, false);
        }
        let links = plural((period * (repeats - 1)) as u64, "more block");
        let _ = writeln!(out, "    {}", layout.paint.dim(&format!("-> … {links} in the same way")));
        at += period * repeats;
    }
}

/// After how many steps the beginning repeats itself, and how often it is there.
fn repetition(steps: &[PathStep]) -> (usize, usize) {
    let link = |step: &PathStep| (step.size, step.stack, step.target_offset, step.next_offset);
    let times = |period: usize| {
        let equal = steps.iter().zip(steps.iter().skip(period)).take_while(|(a, b)| link(a) == link(b)).count();
        equal / period + 1
    };
    (1..=LONGEST_PERIOD).map(|period| (period, times(period))).find(|(_, times)| *times >= REPEATS).unwrap_or((1, 1))
}

/// Which blocks a scan of a living process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeakScope {
    /// All that are live.
    All,
    /// What has grown since the scan before (`--increased`).
    Grown,
    /// What has grown was asked for, and no scan was made before: all.
    FirstScan,
}

/// What [`living_leaks`] tells.
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

/// What of a program that lives on is lost by now. Ends in a line end.
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

/// `-> 64 bytes at 0x…, from worker_main (worker.c:12); +16`
fn path_step(out: &mut String, layout: Layout, view: &View<'_>, step: &PathStep, is_last: bool) {
    let inside = if step.target_offset == 0 { String::new() } else { format!(" +{}", step.target_offset) };
    let size = plural(step.size, "byte");
    let telling = telling::telling_frames(view, step.stack, 1);
    let from = telling.first().map(|frame| {
        let place = place(frame, layout.width / 4);
        let place = if place.is_empty() { place } else { format!(" ({place})") };
        format!(", from {}{place}", short_name(frame.name, layout.width / 3))
    });
    let next = match step.next_offset {
        Some(offset) => format!(", whose word at +{offset} points on"),
        None if is_last => ", the block".to_owned(),
        None => String::new(),
    };
    let line = format!("-> {}{inside}: {size}{}{next}", step.block, from.unwrap_or_default());
    let _ = writeln!(out, "    {}", text::wrap(&line, 7, layout.width));
}

/// The verdict, if there is one, in one line behind an empty one.
pub(super) fn verdict(out: &mut String, layout: Layout, profile: &Profile) {
    if let Some(verdict) = &profile.verdict {
        let _ = writeln!(out, "\n{}", verdict_line(layout, profile, verdict));
    }
}

/// The verdict, in one line.
fn verdict_line(layout: Layout, profile: &Profile, verdict: &Verdict) -> String {
    let name = match verdict.kind {
        VerdictKind::Clean => "clean",
        VerdictKind::Leaks => "LEAKS",
        VerdictKind::Errors => "ERRORS",
        VerdictKind::OverBudget => "OVER BUDGET",
        VerdictKind::Inconclusive => "INCONCLUSIVE",
        VerdictKind::ProgramFailed => "PROGRAM FAILED",
    };
    let mut reasons = verdict.reasons.clone();
    let unchecked = (profile.children.untraced > 0).then(|| unchecked_children(profile));
    reasons.extend(unchecked.filter(|sentence| !verdict.reasons.contains(sentence)));
    let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    let name = match verdict.kind {
        VerdictKind::Clean => layout.paint.green(name),
        VerdictKind::Inconclusive => layout.paint.yellow(name),
        _ => layout.paint.red(name),
    };
    let status = format!("(exit status {})", verdict.exit_status);
    format!("{} {name}{} {}", layout.paint.bold("heaptrace:"), printable(&why), layout.paint.dim(&status))
}
