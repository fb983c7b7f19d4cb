//! The parts of the summary and of the text report. Each writes nothing where it has nothing to say.

pub(crate) use super::layout::{Layout, heading, prose};
use super::rows::{RowFrame, Rows, frame_lines, shared_text};
use super::saved;
use super::table::{self, Column, Figures};
use super::text::{self, duration, grouped, human_bytes, percent, plural, printable, right, short_name, wrap};
use super::view::{SiteTotals, StackTotals, UNKNOWN_STACK, View, end_text};
use crate::profile::build::BEFORE_ATTACH;
use crate::profile::saved::Writer;
use crate::profile::value::Value;
use crate::profile::{Amount, Exit, FindingKind, Image, Profile, Resident, Totals};
use crate::unwinder::Quality;
use std::cmp::Reverse;
use std::fmt::Write;

/// How many frames of a stack the tables show.
pub(super) const FRAMES: usize = 3;

/// Of so many programs at most the images are told that exec has replaced.
const PROGRAMS: usize = 8;

/// So many processes are named; of more it is told how many they are.
const NAMED: usize = 3;

/// So many of the sites that may be shown are held before those are chosen that are.
const KEPT: usize = 4096;

/// What is less than one part in so many is little.
const LITTLE: u64 = 4;

/// Which program, and how it ended; then `clause`, if there is one.
pub(crate) fn header(out: &mut String, layout: Layout, profile: &Profile, clause: &str) {
    let meta = &profile.meta;
    if let Some(saved) = &profile.saved {
        saved::header(out, layout, profile, saved);
        sampling_note(out, layout, profile);
        return;
    }
    let end = match meta.process.exit {
        Some(Exit::Code(0)) | None => end_text(meta),
        Some(_) => layout.paint.yellow(&end_text(meta)),
    };
    let children = match profile.processes.len() {
        0 | 1 => String::new(),
        2 => ", and 1 more process".to_owned(),
        all => format!(", and {} more processes", grouped(all as u64 - 1)),
    };
    let inside = meta.process.pid_inside.map(|inside| format!(" ({inside} in its container)")).unwrap_or_default();
    let program = printable(&meta.process.program);
    let (who, after) = (format!("pid {}{inside}{children}:", meta.process.pid), duration(meta.duration_ns));
    let texts = ["heaptrace:", &program, ", ", &who, " ", &end_text(meta), " after ", &after, clause];
    let fits = texts.iter().map(|text| text.chars().count()).sum::<usize>() < layout.width;
    let gap = if fits { " " } else { "\n  " };
    let (name, program) = (layout.paint.bold("heaptrace:"), layout.paint.bold(&program));
    let _ = writeln!(out, "{name} {program}, {who}{gap}{end} after {after}{clause}");
    if !meta.complete && !meta.mode.is_attached() {
        let note = "The profile does not reach the program's regular end.";
        let _ = writeln!(out, "{}", layout.paint.yellow(note));
    }
    if profile.is_since_mark() {
        let _ = writeln!(out, "Live means: allocated since the mark and not yet freed.");
    } else if meta.mode.is_attached() {
        let of_before = if profile.strings.iter().any(|text| text == BEFORE_ATTACH) {
            "and not yet freed; blocks from before the attach are listed by size, as [before attach]."
        } else {
            "since attach and not yet freed."
        };
        let _ = writeln!(out, "Live means: allocated {of_before}");
    }
    sampling_note(out, layout, profile);
}

/// That the amounts are estimates, and how good they are.
fn sampling_note(out: &mut String, layout: Layout, profile: &Profile) {
    let meta = &profile.meta;
    if meta.sample_interval > 0 {
        let intervals = profile.samples.iter().map(|sample| sample.interval);
        let most = intervals.max().unwrap_or(0);
        let interval = match human_bytes(meta.sample_interval) {
            least if most > meta.sample_interval => format!("{least} to {}", human_bytes(most)),
            interval => interval,
        };
        let mut text = format!("Sampled, one byte in {interval} on average: all amounts are estimates.");
        // Other tools don't tell it.
        if profile.saved.as_ref().is_none_or(|saved| saved.writer == Writer::Heaptrace) {
            let error = percent(profile.standard_error(), profile.totals.bytes_allocated);
            let _ = write!(text, " The standard error of the allocated bytes is {error}.");
        }
        let Totals { counted_allocations, counted_bytes, .. } = profile.totals;
        if counted_allocations > 0 {
            let (blocks, bytes) = (grouped(counted_allocations), human_bytes(counted_bytes));
            let _ = write!(text, " Counted one by one, {blocks} allocations of {bytes} were made.");
        }
        let _ = writeln!(out, "{}", wrap(&text, 0, layout.width));
    }
}

/// The table of totals.
pub(crate) fn totals(out: &mut String, layout: Layout, profile: &Profile) {
    let totals = &profile.totals;
    let live = match profile.meta.process.exit {
        Some(_) => "at exit",
        None if profile.meta.mode.is_snapshot() => "now",
        None if profile.saved.as_ref().is_some_and(|saved| saved.writer != Writer::Heaptrace) => "",
        None => "at the end of tracing",
    };
    let peak = match (totals.peak_bytes, profile.processes.len()) {
        (0, _) => String::new(),
        (_, 0 | 1) if totals.peak_at_ns == 0 && profile.saved.is_some() => String::new(),
        (_, 0 | 1) => format!("after {}", duration(totals.peak_at_ns)),
        _ => "the sum of each process's own".to_owned(),
    };
    let knows = |value| is_held(profile, value);
    let freed = profile.saved.as_ref().is_none_or(|saved| saved.holds.deallocated || saved.holds.freed);
    let amounts = [
        ("allocated", totals.allocations, totals.bytes_allocated, ""),
        ("freed", totals.frees, totals.bytes_freed, ""),
        ("live", totals.live_blocks, totals.live_bytes, live),
        ("peak", totals.peak_blocks, totals.peak_bytes, &peak),
    ];
    let mapped = profile.mapped();
    let at_peak = mapped.map_or_else(Amount::default, |mapped| mapped.at_peak);
    let amounts =
        amounts.into_iter().chain([("mapped", at_peak.objects, at_peak.bytes, "of the peak: by mmap and its kin")]);
    let held = [knows(Value::Allocated), freed, knows(Value::Live), knows(Value::Peak), mapped.is_some()];
    let amounts: Vec<_> = amounts.zip(held).filter(|(_, held)| *held).map(|(row, _)| row).collect();
    let share = percent(totals.temporary, totals.allocations);
    let older = match profile.processes.len() {
        0 | 1 => "blocks from before tracing began",
        _ => "blocks from before tracing began, or from before a fork",
    };
    let counts = [
        ("temporary", totals.temporary, format!("{share} of all: freed before the thread's next allocation")),
        ("reallocated", totals.reallocations, "each counts as one allocation and one free".to_owned()),
        ("failed", totals.failed, "the allocator returned null".to_owned()),
        ("freed, older", totals.preexisting_frees, format!("{older}, not counted above")),
    ];
    let resident = profile.meta.process.resident;
    let figures: Vec<Figures> = amounts
        .iter()
        .map(|row| (Some(row.1), Some(row.2)))
        .chain([(None, resident.map(|resident| resident.peak_bytes))])
        .chain(counts.iter().map(|row| (Some(row.1), None)))
        .collect();
    let columns = table::amounts(&figures, human_bytes);
    let row = |name: &str, index| format!("  {name:12}  {}", table::line(&columns, index));
    let _ = writeln!(out, "\n{}", layout.paint.dim(&row("", None)));
    for (index, (name, _, _, note)) in amounts.iter().enumerate() {
        let row = row(name, Some(index));
        // Where there is no room, the figures say enough.
        let fits = row.chars().count() + 2 + note.len() <= layout.width;
        let note = if fits && !note.is_empty() { format!("  {}", layout.paint.dim(note)) } else { String::new() };
        let _ = writeln!(out, "{row}{note}");
    }
    if let Some(resident) = &resident {
        let row = row("resident", Some(amounts.len()));
        let indent = row.chars().count() + 2;
        let note = resident_note(resident, profile);
        let (begin, note) = match layout.width.checked_sub(indent) {
            Some(24..) => ("  ", wrap(&note, indent, layout.width)),
            _ => ("\n      ", wrap(&note, 6, layout.width)),
        };
        let _ = writeln!(out, "{row}{begin}{}", layout.paint.dim(&note));
    }
    let blocks = columns.first().map_or(0, Column::width);
    for (name, count, note) in counts.iter().filter(|row| row.1 > 0) {
        let note = wrap(note, 2 + 12 + 2 + blocks + 2, layout.width);
        let _ = writeln!(out, "  {name:12}  {}  {}", right(&grouped(*count), blocks), layout.paint.dim(&note));
    }
}

/// So many resident bytes that are no blocks are worth a look: the code of a program and of its libraries has fewer,
/// mostly.
const MUCH: u64 = 32 << 20;

/// What the most that was resident says of the blocks, and of what the program has mapped by itself.
fn resident_note(resident: &Resident, profile: &Profile) -> String {
    let peak = profile.totals.peak_bytes;
    let about = if profile.meta.sample_interval > 0 { "about " } else { "" };
    let share = |bytes| format!("{about}{}", percent(bytes, resident.peak_bytes));
    match (resident.explained_permille(peak), profile.mapped()) {
        (Some(0..=499), None) if resident.peak_bytes - peak >= MUCH && !profile.records_mappings() => {
            format!(
                "at most; the peak of live blocks is {} of it, and --mmap shows what the program itself maps",
                share(peak)
            )
        }
        (Some(0..=1000), None) => format!("at most; the peak of live blocks is {} of it", share(peak)),
        (Some(_), Some(mapped)) => {
            let at_peak = mapped.at_peak.bytes;
            let (blocks, pages) = (share(peak.saturating_sub(at_peak)), percent(at_peak, resident.peak_bytes));
            format!(
                "at most; at the peak of all that is live, blocks were {blocks} of it, and what the program itself had \
                 mapped {pages}, touched or not"
            )
        }
        (Some(_), None) => "at most, less than the peak of live blocks: some were never touched".to_owned(),
        (None, _) if profile.meta.mode.is_attached() => "at most, the time before tracing began included".to_owned(),
        (None, _) => "at most".to_owned(),
    }
}

/// How much memory was resident at most, and what share of it the blocks explain, in a sentence. None if that is not
/// known.
pub(crate) fn resident_sentence(profile: &Profile) -> Option<String> {
    let resident = profile.meta.process.resident?;
    Some(format!("Resident: {}, {}", human_bytes(resident.peak_bytes), resident_note(&resident, profile)))
}

/// The tables of stacks by live and by peak bytes.
pub(crate) fn top_stacks(out: &mut String, layout: Layout, view: &View<'_>, top: usize) {
    let sites = view.sites();
    let live = Largest::by_bytes(sites, top, |site| site.live);
    let exited = view.profile.meta.process.exit.is_some();
    let now = if exited { "Live at exit" } else { "Live" };
    if live.count == 0 && view.profile.totals.live_blocks == 0 {
        heading(out, layout, now);
        let seen = if view.profile.totals.allocations == 0 {
            "heaptrace saw no allocation."
        } else {
            "Nothing: every block was freed."
        };
        let _ = writeln!(out, "  {seen}");
    } else {
        stack_table(out, layout, view, now, &live, |site| site.live);
    }
    if live.count > 0 && sites.iter().all(|site| site.live == site.at_peak) {
        heading(out, layout, "Live at the peak");
        let _ = writeln!(out, "  The same.");
    } else {
        let peak = Largest::by_bytes(sites, top, |site| site.at_peak);
        stack_table(out, layout, view, "Live at the peak", &peak, |site| site.at_peak);
    }
    throughput(out, layout, view, sites, top);
}

/// The table of stacks by one value.
pub(crate) fn stacks_by(out: &mut String, layout: Layout, view: &View<'_>, value: Value, top: usize) {
    let sorted = Largest::by_bytes(view.sites(), top, |site| site.of(value));
    if sorted.count == 0 {
        heading(out, layout, value_title(view, value));
        let _ = writeln!(out, "  Nothing.");
    }
    stack_table(out, layout, view, value_title(view, value), &sorted, |site| site.of(value));
}

/// Where little is left, as in most programs that end well: where most was allocated, and what was freed at once.
fn throughput(out: &mut String, layout: Layout, view: &View<'_>, sites: &SiteTotals, top: usize) {
    let totals = &view.profile.totals;
    if totals.live_bytes.saturating_mul(LITTLE) > totals.bytes_allocated {
        return;
    }
    let allocated = Largest::by_bytes(sites, top, |site| site.allocated);
    stack_table(out, layout, view, "Allocated in all", &allocated, |site| site.allocated);
    if totals.temporary.saturating_mul(LITTLE) < totals.allocations {
        return;
    }
    let amount = |site: &StackTotals| Amount {
        objects: site.temporary,
        // its blocks differ in size only where the site's do
        bytes: mean(site.allocated).saturating_mul(site.temporary),
    };
    let temporary = sites.iter().filter(|site| site.temporary > 0);
    let rank = |site: &StackTotals| (Reverse((site.temporary, amount(site).bytes)), site.stack);
    let sorted = Largest { by_blocks: true, ..Largest::of(temporary, top, |site| amount(site).bytes, rank) };
    stack_table(out, layout, view, "Temporary, about", &sorted, amount);
}

fn mean(amount: Amount) -> u64 {
    amount.bytes.checked_div(amount.objects).unwrap_or_default()
}

/// The largest of many sites, and how many there are.
#[derive(Debug)]
pub(crate) struct Largest {
    /// As many as are shown, the largest first.
    pub shown: Vec<StackTotals>,
    /// How many sites there are in all.
    pub count: usize,
    /// The bytes of all; where they are ranked by number, the blocks.
    pub whole: u64,
    /// Whether those with most blocks are shown, not those with most bytes.
    pub by_blocks: bool,
}

impl Largest {
    /// The sites with an amount, the first `top` of them by its bytes.
    pub(crate) fn by_bytes(sites: &SiteTotals, top: usize, amount: impl Fn(&StackTotals) -> Amount) -> Self {
        let with_amount = sites.iter().filter(|site| amount(site) != Amount::default());
        let rank = |site: &StackTotals| (Reverse((amount(site).bytes, amount(site).objects)), site.stack);
        Self::of(with_amount, top, |site| amount(site).bytes, rank)
    }

    /// The first `top` of the sites by `rank`, which no two of them share.
    pub(crate) fn of<K: Ord>(
        sites: impl Iterator<Item = StackTotals>,
        top: usize,
        amount: impl Fn(&StackTotals) -> u64,
        rank: impl Fn(&StackTotals) -> K,
    ) -> Self {
        let mut largest = Self { shown: Vec::new(), count: 0, whole: 0, by_blocks: false };
        // of a million sites few are shown: what can't be among them is dropped now and then
        let room = top.saturating_mul(2).max(KEPT);
        let keep = |shown: &mut Vec<StackTotals>| {
            shown.sort_unstable_by_key(&rank);
            shown.truncate(top);
        };
        for site in sites {
            largest.count += 1;
            largest.whole = largest.whole.saturating_add(amount(&site));
            largest.shown.push(site);
            if largest.shown.len() >= room {
                keep(&mut largest.shown);
            }
        }
        keep(&mut largest.shown);
        largest
    }
}

/// One table: bytes, share, blocks, and the frames that tell most.
pub(crate) fn stack_table(
    out: &mut String,
    layout: Layout,
    view: &View<'_>,
    title: &str,
    sites: &Largest,
    amount: impl Fn(&StackTotals) -> Amount,
) {
    let Largest { shown, count, whole, by_blocks } = sites;
    let whole = *whole;
    if shown.is_empty() {
        return;
    }
    let all = grouped(*count as u64);
    let which = match (shown.len(), *count) {
        (_, 1) => "in one stack".to_owned(),
        (some, of) if some == of => format!("in {all} stacks"),
        (1, _) if *by_blocks => format!("in {all} stacks; the one with most blocks:"),
        (1, _) => format!("in {all} stacks; the largest:"),
        (some, _) if *by_blocks => format!("in {all} stacks; the {some} with most blocks:"),
        (some, _) => format!("in {all} stacks; the {some} largest:"),
    };
    heading(out, layout, &format!("{title}: {} {which}", human_bytes(whole)));
    let stacks: Vec<usize> = shown.iter().map(|site| site.stack).collect();
    let Rows { shared, rows } = Rows::new(view, &stacks);
    if !shared.is_empty() {
        let begin = "  all of these through ";
        let text = shared_text(&shared, layout.width.saturating_sub(begin.len()));
        let _ = writeln!(out, "{}", layout.paint.dim(&format!("{begin}{text}")));
    }
    let count = |site: &StackTotals| format!("{} ×", grouped(amount(site).objects));
    let counts = shown.iter().map(|site| count(site).chars().count()).max().unwrap_or(0);
    let figures = 2 + 10 + 2 + 7 + 2 + counts + 2;
    let room = layout.width.saturating_sub(figures);
    let widest = rows.iter().flatten().map(|row| row_name(row, room).chars().count()).max().unwrap_or(0);
    // places get what names leave, but at least two fifths
    let names = widest.min(room * 3 / 5);
    let places = room.saturating_sub(names + 2);
    let lines = |frames: &[RowFrame<'_>]| -> Vec<(String, String)> {
        frames.iter().map(|row| (row_name(row, names), row.place(places))).collect()
    };
    let looks: Vec<Vec<(String, String)>> = rows.iter().map(|frames| lines(frames)).collect();
    for (index, (site, look)) in shown.iter().zip(&looks).enumerate() {
        let bytes = human_bytes(amount(site).bytes);
        let share = percent(amount(site).bytes, whole);
        let first = format!("  {bytes:>10}  {share:>7}  {}  ", right(&count(site), counts));
        frame_lines(out, layout.paint, (&first, figures), look, names, true);
        // names too long to show where they differ
        if looks.iter().enumerate().any(|(other, known)| other != index && known == look) {
            let id = format!("(in report.txt: [{:016x}])", view.id_of(site));
            let indent = figures.min(layout.width.saturating_sub(id.len()));
            let _ = writeln!(out, "{:indent$}{}", "", layout.paint.dim(&id));
        }
        if let Some(doubt) = doubt(view, site.stack, site.quality) {
            let doubt = layout.paint.yellow(&wrap(doubt, figures, layout.width));
            let _ = writeln!(out, "{}{doubt}", " ".repeat(figures));
        }
    }
}

/// The name of a row's frame, behind a mark where frames are left out.
fn row_name(row: &RowFrame<'_>, width: usize) -> String {
    if row.gap {
        format!("… {}", short_name(row.frame.name, width.saturating_sub(2)))
    } else {
        short_name(row.frame.name, width)
    }
}

/// Whether the profile knows a value: files of some formats have not all of them.
pub(crate) fn is_held(profile: &Profile, value: Value) -> bool {
    let Some(saved) = &profile.saved else { return true };
    match value {
        Value::Live => saved.holds.live,
        Value::Peak => saved.holds.peak,
        Value::Allocated => saved.holds.allocated,
        Value::Freed => saved.holds.freed,
        // pprof files have the sum, and not that of each stack
        Value::Temporary => saved.holds.temporary && profile.samples.iter().any(|sample| sample.temporary > 0),
    }
}

/// Whether the profile knows for how long blocks lived.
pub(crate) fn has_lifetimes(profile: &Profile) -> bool {
    profile.saved.as_ref().is_none_or(|saved| saved.holds.lifetimes)
}

/// The title of a table of a value.
pub(crate) fn value_title(view: &View<'_>, value: Value) -> &'static str {
    match value {
        Value::Live if view.profile.meta.process.exit.is_some() => "Live at exit",
        value => value.title(),
    }
}

/// What to say of a stack that is not certain.
pub(crate) fn doubt(view: &View<'_>, stack: usize, quality: Quality) -> Option<&'static str> {
    match quality {
        Quality::Complete => None,
        // the one frame says so already
        _ if view.frames(stack).all(|frame| frame.name == UNKNOWN_STACK) => None,
        Quality::Guessed => Some("(guessed: a frame without unwind table)"),
        Quality::Truncated => Some("(outer frames are missing)"),
    }
}

/// The kinds of what was not seen, or is not certain. What stands among the errors in the use of the heap is neither,
/// and is
/// not told again.
pub(crate) fn doubts(profile: &Profile) -> Vec<text::Anomaly> {
    let told = |kind: FindingKind| -> u64 {
        profile.findings.iter().filter(|finding| finding.kind == kind).map(|finding| finding.count).sum()
    };
    let mut anomalies = profile.anomalies;
    for (count, kind) in [
        (&mut anomalies.unknown_frees, FindingKind::InvalidFree),
        (&mut anomalies.double_frees, FindingKind::DoubleFree),
        (&mut anomalies.mismatched_frees, FindingKind::MismatchedFree),
    ] {
        *count = count.saturating_sub(told(kind));
    }
    text::anomalies(&anomalies).into_iter().filter(|anomaly| anomaly.count > 0).collect()
}

/// What was not seen, or is not certain.
pub(crate) fn anomalies(out: &mut String, layout: Layout, profile: &Profile) {
    let found = doubts(profile);
    if found.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", layout.paint.yellow("Not seen, or not certain"));
    let counts = found.iter().map(|anomaly| grouped(anomaly.count).len()).max().unwrap_or(0);
    let indent = 2 + counts + 2 + 16 + 2;
    for anomaly in found {
        let count = right(&grouped(anomaly.count), counts);
        let _ = writeln!(out, "  {count}  {:16}  {}", anomaly.label, wrap(anomaly.meaning, indent, layout.width));
    }
}

/// Earlier images of the process, and children.
pub(crate) fn other_processes(out: &mut String, layout: Layout, profile: &Profile) {
    let children = &profile.children;
    let followed = if profile.processes.is_empty() { children.followed } else { 0 };
    if profile.images.is_empty() && followed == 0 && children.untraced == 0 {
        return;
    }
    heading(out, layout, "Other images and processes");
    images(out, layout, profile);
    let noun = |count: u64| if count == 1 { "child" } else { "children" };
    if followed > 0 {
        prose(out, layout, &format!("{} {} traced too", grouped(followed), noun(followed)));
    }
    if children.untraced > 0 {
        let names = &children.untraced_names;
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let count = children.untraced;
        let line = format!("{} {}{names} ran untraced: not in these numbers", grouped(count), noun(count));
        let _ = writeln!(out, "  {}", layout.paint.yellow(&wrap(&printable(&line), 2, layout.width)));
    }
}

/// Earlier images, those of one program together.
fn images(out: &mut String, layout: Layout, profile: &Profile) {
    let mut programs: Vec<&str> = Vec::new();
    for image in &profile.images {
        if !programs.contains(&image.program.as_str()) {
            programs.push(&image.program);
        }
    }
    let allocated = |program: &&str| {
        let images = profile.images.iter().filter(|image| image.program == **program);
        images.fold(0u64, |sum, image| sum.saturating_add(image.totals.bytes_allocated))
    };
    if programs.len() > PROGRAMS {
        programs.sort_by_key(|program| Reverse(allocated(program)));
    }
    for program in programs.iter().take(PROGRAMS) {
        let images: Vec<&Image> = profile.images.iter().filter(|image| image.program == *program).collect();
        let sum = |of: fn(&Image) -> u64| images.iter().fold(0u64, |sum, image| sum.saturating_add(of(image)));
        let mut pids: Vec<String> = images.iter().map(|image| image.pid.to_string()).collect();
        pids.dedup();
        let times = match (images.len(), pids.as_slice()) {
            (1, [_]) if profile.processes.is_empty() => String::new(),
            (1, [pid]) => format!(" (process {pid})"),
            (count, [_]) if profile.processes.is_empty() => format!(" ({} times)", grouped(count as u64)),
            (count, [pid]) => format!(" ({} times in process {pid})", grouped(count as u64)),
            (count, _) if count == pids.len() && count <= NAMED => format!(" (processes {})", pids.join(", ")),
            (count, _) if count == pids.len() => format!(" (in {} processes)", grouped(count as u64)),
            (count, _) => format!(" ({} times in {} processes)", grouped(count as u64), grouped(pids.len() as u64)),
        };
        prose(
            out,
            layout,
            &format!(
                "before exec, {program}{times}: {}, {}; {} gone with it, not counted above",
                plural(sum(|image| image.totals.allocations), "allocation"),
                human_bytes(sum(|image| image.totals.bytes_allocated)),
                human_bytes(sum(|image| image.gone_with_exec.bytes))
            ),
        );
    }
    if let Some(more @ 1..) = programs.len().checked_sub(PROGRAMS) {
        prose(out, layout, &format!("and images of {}", plural(more as u64, "more program")));
    }
}

/// What the session wants the user to know.
pub(crate) fn warnings(out: &mut String, layout: Layout, profile: &Profile) {
    if profile.warnings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", layout.paint.yellow("Warnings"));
    for warning in &profile.warnings {
        prose(out, layout, warning);
    }
}
