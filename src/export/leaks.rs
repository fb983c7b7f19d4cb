//! What reports say of leaks: what leaked and where, the totals by class, the errors of the run, the verdict.

pub(super) mod notes;

use super::findings;
use super::problems::{leak_sentence, leak_state};
use super::rows::frame_lines;
use super::sections::{self, Layout};
use super::table;
use super::telling;
use super::text::{self, grouped, left, plural, printable, short_name};
use super::view::{NamedFrame, View};
use crate::profile::check::verdict::{DEFAULT_LEAK_KINDS, unchecked_children};
use crate::profile::leaks::{
    BaselineStatus, LeakClass, LeakSite, Leaks, PathStep, RetentionPath, ScanMoment, Suppression, Verdict, VerdictKind,
};
use crate::profile::{Amount, Profile};
pub(super) use notes::{doubt_sentences, untold_sentence};
use std::cmp::Reverse;
use std::fmt::Write;

/// So many frames of a stack are shown; of longer ones the innermost.
const FRAMES: usize = 30;

/// How many errors suppressions hide, in words.
pub(super) fn suppressed_errors(profile: &Profile) -> Option<String> {
    let hidden = profile.suppressions.iter().map(|rule| rule.hidden_errors).fold(0, u64::saturating_add);
    (hidden > 0).then(|| format!("{} suppressed", plural(hidden, "error")))
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
pub(super) fn class_of_leaks(
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
pub(super) fn bytes(amount: Amount) -> String {
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
pub(super) fn caller_line(layout: Layout, view: &View<'_>, site: &LeakSite) -> String {
    let (function, thread) = (printable(view.string(site.alloc_fn)), printable(view.string(site.thread)));
    layout.paint.dim(&format!("by {function} in thread {thread}"))
}

/// The frames of a stack, names and places in columns.
pub(super) fn stack(out: &mut String, layout: Layout, view: &View<'_>, stack: usize, indent: usize) {
    let of_program = telling::program_frames(view, stack);
    let all = of_program.len();
    let frames: Vec<NamedFrame<'_>> = of_program.into_iter().take(FRAMES).collect();
    let room = layout.width.saturating_sub(indent);
    let names: Vec<String> = frames.iter().map(|frame| short_name(frame.name, room * 3 / 5)).collect();
    let widest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |(frame, name): (&NamedFrame<'_>, String)| {
        let inlined = if frame.inlined { " (inlined)" } else { "" };
        (name, format!("{}{inlined}", frame.place(room.saturating_sub(widest + 2 + inlined.len()))))
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
pub(super) fn totals(out: &mut String, layout: Layout, leaks: &Leaks, suppressions: &[Suppression]) {
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

/// The way from a root to a block, or why there is none.
pub(super) fn way(out: &mut String, layout: Layout, view: &View<'_>, path: Option<&RetentionPath>, class: LeakClass) {
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

/// `-> 64 bytes at 0x…, from worker_main (worker.c:12); +16`
fn path_step(out: &mut String, layout: Layout, view: &View<'_>, step: &PathStep, is_last: bool) {
    let inside = if step.target_offset == 0 { String::new() } else { format!(" +{}", step.target_offset) };
    let size = plural(step.size, "byte");
    let telling = telling::telling_frames(view, step.stack, 1);
    let from = telling.first().map(|frame| {
        let place = frame.place(layout.width / 4);
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
pub(super) fn verdict_line(layout: Layout, profile: &Profile, verdict: &Verdict) -> String {
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
