//! The answer of `heaptrace heap`, in words first.

pub mod diff;
mod held;
mod json;
mod markdown;
pub mod pprof;
mod sharing;
pub mod snapshot;

use super::escape::markdown_code;
use super::text::{self, Paint};
use crate::base::addr::Addr;
use crate::heap::file::{OfCore, SavedHeap};
use crate::heap::graph::Held;
use crate::heap::walk::census::{Amount, Census, Use};
use crate::heap::walk::summary::Summary;
use crate::heap::walk::trim::Trim;
use crate::heap::walk::verdict::{self, Verdict};
use crate::heap::walk::{Allocator, Finding, State};
pub use held::tree;
pub use json::json;
pub use markdown::markdown_report;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What is told.
#[derive(Clone, Copy, Debug)]
pub struct HeapReport<'a> {
    /// The process's id.
    pub pid: i32,
    /// The program's name.
    pub program: &'a str,
    /// How many threads it has.
    pub threads: usize,
    /// For how long it stood still, ns; None: it ran on.
    pub stood_ns: Option<u64>,
    /// The core that it was seen in, if it was no live process.
    pub core: Option<OfCore>,
    /// Whether it stood only to be copied.
    pub copied: bool,
    /// Whether what the walk has found may be of a heap that threads are just changing.
    pub in_motion: bool,
    /// The heap, if its allocator can be walked.
    pub walk: Option<&'a Summary>,
    /// What all of its memory is used for.
    pub census: &'a Census,
    /// What the blocks are, and who holds them.
    pub held: Option<&'a Held>,
    /// What `malloc_trim(0)` would give back.
    pub trim: Option<&'a Trim>,
    /// What it has given back, in bytes, if it was called.
    pub trimmed: Option<u64>,
    /// What the kernel says is resident, in bytes.
    pub resident: Option<u64>,
}

impl<'a> From<&'a SavedHeap> for HeapReport<'a> {
    fn from(heap: &'a SavedHeap) -> Self {
        Self {
            pid: heap.identity.pid,
            program: &heap.program,
            threads: heap.threads,
            stood_ns: heap.stood_ns,
            core: heap.core,
            copied: heap.copied,
            in_motion: heap.in_motion,
            walk: heap.heap.as_ref(),
            held: heap.held.as_ref(),
            census: &heap.census,
            trim: heap.trim.as_ref(),
            trimmed: heap.trimmed,
            resident: heap.resident,
        }
    }
}

/// A name in a table of Markdown.
fn cell(name: &str) -> String {
    markdown_code(&text::short_name(name, CELL)).replace('|', "\\|")
}

/// Characters of it.
const CELL: usize = 80;

/// Live blocks are resident as good as wholly from this share of their room on: a numerator and a denominator.
const TOUCHED: (u64, u64) = (19, 20);

/// So many findings are told one by one.
const FINDINGS: usize = 10;
/// So many arenas.
const ARENAS: usize = 12;
/// Sizes of blocks.
const SIZES: usize = 8;
/// A holder is named in the verdict if it has one part in so many of what can be reached.
const NOTABLE: u64 = 4;
/// Columns of a line of prose.
const WIDTH: usize = 100;

const MAIN: &str = "main";
const ENDS: &str = "freed, at the ends of arenas";

/// Uses with their names, in the order in which they are told.
const USES: [(Use, &str); 14] = [
    (Use::Live, "live blocks"),
    (Use::Headers, "their headers and rounding"),
    (Use::ThreadCaches, "freed, in threads' caches"),
    (Use::FastBins, "freed, in fast bins"),
    (Use::Bins, "freed, in bins"),
    (Use::Tops, ENDS),
    (Use::Books, "the allocator's own data"),
    (Use::Unknown, "heap that is not understood"),
    (Use::Mappings, "the program's own mappings"),
    (Use::Stacks, "stacks of threads"),
    (Use::Files, "files: code, constants, data"),
    (Use::Shared, "shared memory"),
    (Use::Heaptrace, "added by heaptrace"),
    (Use::Kernel, "the kernel's"),
];

/// All of it.
pub fn text(report: &HeapReport<'_>, paint: Paint) -> String {
    let mut out = String::new();
    let total = report.census.total();
    let _ = writeln!(
        out,
        "{}, {}pid {}: {} {}{} in {}",
        report.program,
        if report.core.is_some() { "a core of " } else { "" },
        report.pid,
        text::human_bytes(total.resident),
        if report.core.is_some() { "in use" } else { "resident" },
        if total.swapped > 0 { format!(", {} in swap,", text::human_bytes(total.swapped)) } else { String::new() },
        text::plural(report.threads as u64, "thread"),
    );
    let _ = writeln!(out, "\n{}", paint.bold(&text::wrap(&sentence(report), 0, WIDTH)));
    uses(&mut out, report, paint);
    if let Some(walk) = report.walk {
        given_back(&mut out, report, walk, paint);
        arenas(&mut out, report, walk, paint);
        blocks(&mut out, walk, paint);
        if let Some(told) = report.held {
            held::text(&mut out, told, paint);
        }
        findings(&mut out, report, walk, paint);
    }
    cost(&mut out, report);
    out
}

/// The verdict.
fn sentence(report: &HeapReport<'_>) -> String {
    let census = report.census;
    let total = census.total().resident;
    let free = census.free().resident;
    let share = |bytes: u64| text::percent(bytes, total);
    let bytes = text::human_bytes;
    let of = |of: Use| census.of(of).resident;
    let trim = report.trim.map_or(0, Trim::bytes);
    let lost = lost(report);
    match verdict::of(census, report.trim, lost) {
        // blocks of which only a part was ever written
        Verdict::Leak if lost > of(Use::Live) => format!(
            "Leak: {} is in blocks that no pointer leads to, at most {} ({}) of it resident.",
            bytes(lost),
            bytes(of(Use::Live)),
            share(of(Use::Live))
        ),
        Verdict::Leak => format!("Leak: {} ({}) is in blocks that no pointer leads to.", bytes(lost), share(lost)),
        Verdict::Retention => format!(
            "Retention: {} ({}) of the resident memory is freed, and the allocator keeps it. malloc_trim(0) would give {} of it back.",
            bytes(free),
            share(free),
            bytes(trim)
        ),
        Verdict::Pinning if report.trim.is_none() => format!(
            "Pinning: {} ({}) of the resident memory is freed, and the allocator keeps it beside live blocks. {}",
            bytes(free),
            share(free),
            match report.walk.map(|walk| walk.allocator) {
                Some(Allocator::Mimalloc | Allocator::Mimalloc3) => {
                    "mi_collect(true), if its threads call it, gives back what shares no page of mimalloc's with a live block."
                }
                Some(Allocator::Jemalloc) => {
                    "mallctl(\"arena.4096.purge\") gives back what is in no slab with a live block, and not kept for threads."
                }
                _ => "It has no call that would give it back.",
            }
        ),
        Verdict::Pinning => format!(
            "Pinning: {} ({}) of the resident memory is freed, but malloc_trim(0) would give only {} of it back: the rest shares pages with \
             live blocks, is kept for threads, or lies at the ends of other arenas than the first.",
            bytes(free),
            share(free),
            bytes(trim)
        ),
        Verdict::Live => {
            let live = of(Use::Live) + of(Use::Headers);
            let room = census.of(Use::Live).reserved;
            let held = report.held.map_or_else(String::new, |held| growth(held, room, live));
            format!("Most of the resident memory, {} ({}), is in live blocks{held}.", bytes(live), share(live))
        }
        Verdict::Mappings => format!(
            "Most of the resident memory, {} ({}), is in the program's own mappings{}.",
            bytes(of(Use::Mappings)),
            share(of(Use::Mappings)),
            if report.walk.is_none() { ", or the heap of an allocator that can't be walked" } else { "" }
        ),
        Verdict::Stacks => format!(
            "Most of the resident memory, {} ({}), is stacks: {}, {} reserved.",
            bytes(of(Use::Stacks)),
            share(of(Use::Stacks)),
            text::plural(report.threads as u64, "thread"),
            bytes(census.of(Use::Stacks).reserved)
        ),
        Verdict::Files => format!(
            "Most of the resident memory, {} ({}), is files: code, constants, and data that is mapped.",
            bytes(of(Use::Files)),
            share(of(Use::Files))
        ),
        Verdict::Shared => {
            format!("Most of the resident memory, {} ({}), is shared.", bytes(of(Use::Shared)), share(of(Use::Shared)))
        }
        Verdict::Nothing => "Nothing of it is in memory.".to_owned(),
    }
}

/// Bytes that are lost.
fn lost(report: &HeapReport<'_>) -> u64 {
    report.held.map_or(0, |held| held.holdings.lost.bytes)
}

/// Who holds most of what can be reached. `room`: bytes of all live blocks, of which `resident` are in memory; what is
/// held is
/// counted in whole blocks, too, so it must not be told as a part of what is resident.
fn growth(held: &Held, room: u64, resident: u64) -> String {
    let holdings = &held.holdings;
    let first = holdings.by_retained().into_iter().find_map(|number| holdings.holders.get(number));
    match first {
        Some(holder) if holder.retained.bytes * NOTABLE >= holdings.reachable.bytes => {
            let (retained, name) = (text::human_bytes(holder.retained.bytes), &holder.name);
            match resident.saturating_mul(TOUCHED.1) < room.saturating_mul(TOUCHED.0) {
                false => format!("; {retained} of that is held by {name}"),
                true => format!(
                    "; of the {} that these blocks have room for, touched or not, {retained} is held by {name}",
                    text::human_bytes(room)
                ),
            }
        }
        _ => "; no one holder has a quarter of that".to_owned(),
    }
}

fn line(out: &mut String, name: &str, amount: Amount, total: u64) {
    let _ = writeln!(
        out,
        "  {} {} {} {}{}",
        text::left(name, 30),
        text::right(&text::human_bytes(amount.resident), 11),
        text::right(&text::percent(amount.resident, total), 7),
        text::right(&text::human_bytes(amount.reserved), 13),
        if amount.swapped > 0 { format!("  {} in swap", text::human_bytes(amount.swapped)) } else { String::new() },
    );
}

fn uses(out: &mut String, report: &HeapReport<'_>, paint: Paint) {
    let total = report.census.total();
    let head = format!("  {:<30} {:>11} {:>7} {:>13}", "Memory", "resident", "", "address space");
    let _ = writeln!(out, "\n{}", paint.dim(&head));
    for (of, name) in USES {
        let amount = report.census.of(of);
        if amount.resident > 0 || amount.swapped > 0 {
            let is_anywhere = of == Use::Tops && report.walk.is_some_and(|walk| walk.allocator.has_tops_anywhere());
            line(out, if is_anywhere { "freed or new, in no block" } else { name }, amount, total.resident);
        }
    }
    line(out, "in all", total, total.resident);
    if let Some(told) = report.resident
        && told != total.resident
    {
        let _ = writeln!(
            out,
            "  The kernel counts {} ({} {}).",
            text::human_bytes(told),
            text::human_bytes(told.abs_diff(total.resident)),
            if told > total.resident { "more" } else { "less" }
        );
    }
}

fn given_back(out: &mut String, report: &HeapReport<'_>, walk: &Summary, paint: Paint) {
    let Some(trim) = report.trim else { return };
    let free = report.census.free();
    let _ = writeln!(out, "\n{}", paint.bold("What would give memory back"));
    let others: u64 = report
        .census
        .arenas
        .iter()
        .take(walk.arenas.len())
        .skip(1)
        .map(|uses| uses.get(&Use::Tops).map_or(0, |amount| amount.resident))
        .sum();
    let _ = writeln!(
        out,
        "  malloc_trim(0)  {}: {} inside of the arenas, {} at the end of the first",
        text::human_bytes(trim.bytes()),
        text::human_bytes(trim.inside),
        text::human_bytes(trim.end)
    );
    if let Some(bytes) = report.trimmed {
        let _ = writeln!(
            out,
            "  It was called and has given back {}. All else here is as it was before.",
            text::human_bytes(bytes)
        );
    }
    let caches = report.census.of(Use::ThreadCaches).resident;
    let left = free.resident.saturating_sub(trim.bytes() + others + caches);
    for (bytes, why) in [
        (
            others,
            "at the ends of other arenas, which malloc_trim leaves alone: fewer arenas (M_ARENA_MAX) would share them",
        ),
        (caches, "kept for threads until they end"),
        (left, "in pages that hold live blocks, too"),
    ] {
        if bytes > 0 {
            let _ = writeln!(out, "  would stay      {} {why}", text::human_bytes(bytes));
        }
    }
    let returned = free.reserved.saturating_sub(free.resident + free.swapped);
    if returned > 0 {
        let _ = writeln!(out, "  Given back already, or never touched: {}.", text::human_bytes(returned));
    }
}

fn arenas(out: &mut String, report: &HeapReport<'_>, walk: &Summary, paint: Paint) {
    let is_by_thread = walk.allocator.is_by_thread();
    let first = if is_by_thread { "A thread's heap" } else { "Arena" };
    let end = if walk.allocator.has_tops_anywhere() { "in no block" } else { "of it at end" };
    let head =
        format!("  {first:<20} {:>8} {:>12} {:>12} {end:>12} {:>12}", "threads", "live", "freed", "address space");
    let _ = writeln!(out, "\n{}", paint.dim(&head));
    let mut rows: Vec<(String, String, &BTreeMap<Use, Amount>)> = walk
        .arenas
        .iter()
        .zip(&report.census.arenas)
        .map(|(arena, uses)| {
            let name = match arena.at {
                _ if arena.is_main => MAIN.to_owned(),
                Addr::NULL => "of ended threads".to_owned(),
                at => at.to_string(),
            };
            (name, arena.threads.map_or_else(String::new, |threads| threads.to_string()), uses)
        })
        .collect();
    if let Some(mapped) = report.census.arenas.last().filter(|uses| !uses.is_empty()) {
        rows.push(("mapped one by one".to_owned(), String::new(), mapped));
    }
    let resident = |uses: &BTreeMap<Use, Amount>, all: &[Use]| -> u64 {
        all.iter().filter_map(|of| uses.get(of)).map(|amount| amount.resident).sum()
    };
    let all_freed = [Use::ThreadCaches, Use::FastBins, Use::Bins, Use::Tops];
    let hidden = rows.len().saturating_sub(ARENAS);
    rows.sort_by_key(|(_, _, uses)| Reverse(uses.values().map(|amount| amount.resident).sum::<u64>()));
    for (name, threads, uses) in rows.into_iter().take(ARENAS) {
        let _ = writeln!(
            out,
            "  {name:<20} {threads:>8} {:>12} {:>12} {:>12} {:>12}",
            text::human_bytes(resident(uses, &[Use::Live])),
            text::human_bytes(resident(uses, &all_freed)),
            text::human_bytes(resident(uses, &[Use::Tops])),
            text::human_bytes(uses.values().map(|amount| amount.reserved).sum()),
        );
    }
    if hidden > 0 {
        let _ = writeln!(out, "  and {}", text::plural(hidden as u64, "smaller one"));
    }
}

fn blocks(out: &mut String, walk: &Summary, paint: Paint) {
    let (live, free) = (walk.of(|state| state == State::Live), walk.of(State::is_free));
    let _ = writeln!(
        out,
        "\n{}\n  {} live with room for {}; {} freed of {}",
        paint.bold("Blocks"),
        text::plural(live.count, "block"),
        text::human_bytes(live.usable),
        text::plural(free.count, "block"),
        text::human_bytes(free.usable)
    );
    let rows = &walk.sizes;
    let head = format!("  {:>12} {:>12} {:>12} {:>10}", "size", "live", "freed", "live bytes");
    let _ = writeln!(out, "{}", paint.dim(&head));
    for row in rows.iter().take(SIZES) {
        let _ = writeln!(
            out,
            "  {:>12} {:>12} {:>12} {:>10}",
            text::grouped(row.usable),
            text::grouped(row.live),
            text::grouped(row.freed),
            text::human_bytes(row.usable * row.live)
        );
    }
    let largest = rows.iter().filter(|row| row.live > 0).map(|row| row.usable).max();
    if let Some(largest) = largest {
        let _ = writeln!(out, "  The largest live block has {}.", text::human_bytes(largest));
    }
}

fn findings(out: &mut String, report: &HeapReport<'_>, walk: &Summary, paint: Paint) {
    if walk.findings.is_empty() {
        return;
    }
    let title = format!("{} in the heap", text::plural(walk.findings.len() as u64, "inconsistent place"));
    if report.in_motion {
        let title = format!("{title}: threads were changing the heap, which may be the only cause");
        let _ = writeln!(out, "\n{}", paint.yellow(&title));
    } else {
        let _ = writeln!(out, "\n{}", paint.red(&title));
    }
    for Finding { at, what, before } in walk.findings.iter().take(FINDINGS) {
        let _ = writeln!(out, "  at {at}: {what}");
        if let Some(before) = before {
            let _ = writeln!(out, "    before it: a block of {} at {}", text::grouped(before.usable()), before.block());
        }
    }
    if walk.findings.len() > FINDINGS {
        let _ = writeln!(out, "  and {} more", walk.findings.len() - FINDINGS);
    }
}

/// What a core does not tell.
fn of_core(core: OfCore) -> String {
    let mut told = format!(
        "Read from a core file with {} of memory. It does not say which pages were resident: those that hold anything but zeros count.",
        text::human_bytes(core.stored)
    );
    if core.missing > 0 {
        let missing = text::human_bytes(core.missing);
        let _ =
            write!(told, " The file was cut: {missing} more should be in it, and what lay there is reported wrongly.");
    }
    told
}

fn cost(out: &mut String, report: &HeapReport<'_>) {
    let _ = match (report.stood_ns, report.core) {
        (_, Some(core)) => writeln!(out, "\n{}", text::wrap(&of_core(core), 0, WIDTH)),
        (Some(ns), None) => {
            let way = match (report.copied, report.trimmed) {
                (true, None) => ", to be copied; the copy was read",
                (true, Some(_)) => ", to be copied and to call malloc_trim(0); the copy was read",
                (false, _) => "",
            };
            writeln!(out, "\nThe process stood still for {}{way}.", text::duration(ns))
        }
        (None, None) => writeln!(out, "\nThe process ran on meanwhile: what it changed then may be reported wrongly."),
    };
    if report.walk.is_none() {
        let _ = writeln!(
            out,
            "Its allocator can't be walked (glibc's, musl's, mimalloc's and jemalloc's can): memory is reported by pages alone, its heap among the program's own mappings."
        );
    }
}
