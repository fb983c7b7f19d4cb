//! The answer of `heaptrace leaks` for a process that nobody has traced: which blocks are lost is known, and not where
//! they were allocated. So they are told by size.

use super::leaks::{doubt_sentences, untold_sentence};
use super::problems::{leak_sentence, leak_state};
use super::text::{self, Paint, plural};
use crate::base::addr::Addr;
use crate::heap::leaks::{Doubted, Doubts, Path, Scan, Unavailable};
use crate::profile::Amount;
use crate::profile::check::verdict::in_brackets;
use crate::profile::leaks::{ClassAmounts, LeakClass};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The version of the JSON: it grows when a member changes its meaning or goes.
const VERSION: u32 = 1;

/// So many blocks of a way are told; of longer ones the first and the last.
const STEPS: usize = 24;

/// Columns of a line of prose.
const WIDTH: usize = 100;

const NO_STACKS: &str = "The allocation sites are unknown, as nobody traced the process then: `heaptrace attach` \
    records them for later blocks. A size is what the program may use of a block: with glibc's malloc up to 31 bytes \
    more than it asked for, or more if the block is aligned or has a mapping of its own.";

/// What is told.
#[derive(Clone, Copy, Debug)]
pub struct LostReport<'a> {
    /// The process's id.
    pub pid: i32,
    /// The program's name.
    pub program: &'a str,
    /// For how long it stood still, ns; None: it was seen in a core.
    pub stood_ns: Option<u64>,
    /// Whether it stood only to be copied.
    pub copied: bool,
    /// The blocks.
    pub scan: &'a Scan,
    /// How many places of the heap are inconsistent.
    pub findings: usize,
    /// Whether they may be of a heap that threads are just changing.
    pub in_motion: bool,
    /// Only the block that holds this address is told, and why it can still be reached.
    pub explain: Option<Explained<'a>>,
    /// So many sizes of a class are shown as text.
    pub top: usize,
}

/// The block that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Explained<'a> {
    /// The address.
    pub addr: Addr,
    /// A way to the block, with its root in words.
    pub way: Option<(&'a Path, &'a str)>,
}

/// The blocks of one class and size.
#[derive(Clone, Copy, Debug)]
struct Group {
    class: LeakClass,
    size: u64,
    own: Amount,
    /// What hangs on them.
    holds: Amount,
    first: Addr,
}

/// All groups, those with the most bytes first within a class; the classes from the worst on. And the sums of the
/// classes.
fn groups(scan: &Scan) -> (Vec<Group>, ClassAmounts) {
    let mut found: BTreeMap<(LeakClass, u64), Group> = BTreeMap::new();
    let mut totals = ClassAmounts::default();
    let group = |class: LeakClass, size: u64, first: Addr| Group {
        class,
        size,
        own: Amount::default(),
        holds: Amount::default(),
        first,
    };
    for (number, (block, class)) in scan.blocks().enumerate() {
        let one = Amount { objects: 1, bytes: block.size };
        if let Some(total) = totals.get_mut(class as usize) {
            *total = total.plus(one);
        }
        let own = found.entry((class, block.size)).or_insert_with(|| group(class, block.size, block.addr));
        own.own = own.own.plus(one);
        if let Some((leader, class)) = scan.leader(number).and_then(|leader| scan.block(leader)) {
            let of = found.entry((class, leader.size)).or_insert_with(|| group(class, leader.size, leader.addr));
            of.holds = of.holds.plus(one);
        }
    }
    let mut groups: Vec<Group> = found.into_values().collect();
    groups.sort_by_key(|group| (group.class, Reverse(group.own.plus(group.holds).bytes), group.size));
    (groups, totals)
}

/// By what doubtful pointers blocks are reached.
fn doubts(scan: &Scan) -> Doubts {
    let mut doubts = Doubts::default();
    for (number, (block, _)) in scan.blocks().enumerate() {
        if let Some(doubt) = scan.doubt(number) {
            doubts.add(doubt, Doubted { blocks: 1, bytes: block.size });
        }
    }
    doubts
}

/// In words. Ends in a line end.
pub fn text(report: &LostReport<'_>, paint: Paint) -> String {
    let mut out = String::new();
    let line = format!(
        "{}, pid {}: its live blocks; {}{}",
        text::printable(report.program),
        report.pid,
        match report.stood_ns {
            Some(ns) => format!("it stood still for {}", text::duration(ns)),
            None => "of a core file".to_owned(),
        },
        if report.copied { ", to be copied" } else { "" }
    );
    let _ = writeln!(out, "{}", paint.bold(&line));
    if let Some(explained) = &report.explain {
        explain(&mut out, report.scan, explained, paint);
        return out;
    }
    let (groups, totals) = groups(report.scan);
    for class in [LeakClass::Definite, LeakClass::Possible] {
        let of_class: Vec<&Group> = groups.iter().filter(|group| group.class == class).collect();
        if of_class.is_empty() {
            continue;
        }
        let title = format!("{}, by size", text::capitalized(leak_state(class)));
        let title = if class == LeakClass::Definite { paint.red(&title) } else { paint.yellow(&title) };
        let _ = writeln!(out, "\n{title}");
        for group in of_class.iter().take(report.top) {
            let _ = writeln!(out, "  {}", leak_sentence(class, group.own, group.holds));
            let each = format!("blocks of {}, the first at {}", plural(group.size, "byte"), group.first);
            let _ = writeln!(out, "    {}", paint.dim(&each));
        }
        if of_class.len() > report.top {
            let _ = writeln!(out, "  and {}", plural((of_class.len() - report.top) as u64, "more size"));
        }
    }
    let _ = writeln!(out, "\n{}", paint.bold("Live"));
    for (class, amount) in LeakClass::ALL.into_iter().zip(totals) {
        let _ = writeln!(
            out,
            "  {} {} in {}",
            text::left(class.name(), 10),
            text::right(&text::human_bytes(amount.bytes), 11),
            plural(amount.objects, "block")
        );
    }
    let _ = writeln!(out, "  {}", paint.dim(&format!("{} searched", text::human_bytes(report.scan.scanned_bytes()))));
    if report.scan.unreadable_bytes() > 0 {
        let unread = text::human_bytes(report.scan.unreadable_bytes());
        let names = in_brackets(report.scan.unreadable_names());
        let line = format!(
            "{unread} could not be read{names}: blocks to which only pointers there lead look lost, and may not be."
        );
        let _ = writeln!(out, "{}", text::wrap(&line, 0, WIDTH));
    }
    for sentence in doubt_sentences(&doubts(report.scan)) {
        let _ = writeln!(out, "{}", text::wrap(&sentence, 0, WIDTH));
    }
    let unasked = report.scan.unasked_threads() as u64;
    let words = |untold: Unavailable| match untold {
        Unavailable::SignalStacks => format!("{} of {}", untold.name(), plural(unasked, "thread")),
        _ => untold.name().to_owned(),
    };
    let untold: Vec<String> = report.scan.untold().into_iter().map(words).collect();
    if let Some(sentence) = untold_sentence(&untold) {
        let _ = writeln!(out, "{}", text::wrap(&sentence, 0, WIDTH));
    }
    if unasked > 0 && report.stood_ns.is_some() {
        let line = format!(
            "heaptrace could not read the signal stacks of {}: it does not report what only handlers that have \
             returned left there.",
            plural(unasked, "thread")
        );
        let _ = writeln!(out, "{}", text::wrap(&line, 0, WIDTH));
    }
    if report.findings > 0 {
        let why = if report.in_motion { ", as threads were changing it" } else { "" };
        let line = format!(
            "{} of the heap are inconsistent{why}: blocks may be missing here (heaptrace heap {} says where).",
            plural(report.findings as u64, "place"),
            report.pid
        );
        let _ = writeln!(out, "{}", paint.red(&text::wrap(&line, 0, WIDTH)));
    }
    let _ = writeln!(out, "\n{}", text::wrap(NO_STACKS, 0, WIDTH));
    out
}

fn explain(out: &mut String, scan: &Scan, explained: &Explained<'_>, paint: Paint) {
    let Some((block, class)) = scan.find(explained.addr).and_then(|number| scan.block(number)) else {
        let _ = writeln!(out, "\nThere is no live block at {}.", explained.addr);
        return;
    };
    let line = format!("The block of {} at {} is {}", plural(block.size, "byte"), block.addr, leak_state(class));
    let _ = writeln!(out, "\n  {}", paint.bold(&line));
    match (explained.way, class) {
        (Some((path, root)), _) => {
            let at = path.root_address.map(|address| format!(", at {address}")).unwrap_or_default();
            let _ = writeln!(out, "    {}{at}", text::printable(root));
            let steps = path.steps.len();
            for (index, step) in path.steps.iter().enumerate() {
                if steps > STEPS && index == STEPS / 2 {
                    let _ = writeln!(out, "    -> … {}", plural((steps - STEPS) as u64, "more block"));
                }
                if steps > STEPS && (STEPS / 2..steps - STEPS / 2).contains(&index) {
                    continue;
                }
                let Some((block, _)) = scan.block(step.block) else { continue };
                let inside = if step.target_offset == 0 { String::new() } else { format!(" +{}", step.target_offset) };
                let next = match step.next_offset {
                    Some(offset) => format!(", whose word at +{offset} points on"),
                    None if index + 1 == steps => ", the block".to_owned(),
                    None => String::new(),
                };
                let _ = writeln!(out, "    -> {}{inside}: {}{next}", block.addr, plural(block.size, "byte"));
            }
        }
        (None, LeakClass::Indirect) => out.push_str("    only blocks that are lost themselves point to it\n"),
        (None, _) => out.push_str("    no pointer to it was found\n"),
    }
}

/// As JSON, version 1, on one line: docs/heap.md. The names are those of report.json where that has the same.
pub fn json(report: &LostReport<'_>) -> String {
    let (groups, totals) = groups(report.scan);
    let amount = |amount: Amount| json!({ "blocks": amount.objects, "bytes": amount.bytes });
    let mut leaks: serde_json::Map<String, Value> =
        LeakClass::ALL.into_iter().zip(totals).map(|(class, total)| (class.name().to_owned(), amount(total))).collect();
    leaks.insert("moment".to_owned(), json!("request"));
    leaks.insert("stopped_ns".to_owned(), json!(report.stood_ns));
    leaks.insert("scanned_bytes".to_owned(), json!(report.scan.scanned_bytes()));
    leaks.insert("unreadable_names".to_owned(), json!(report.scan.unreadable_names()));
    leaks.insert("unreadable_bytes".to_owned(), json!(report.scan.unreadable_bytes()));
    let untold: Vec<&str> = report.scan.untold().into_iter().map(Unavailable::name).collect();
    leaks.insert("untold".to_owned(), json!(untold));
    leaks.insert("unasked_threads".to_owned(), json!(report.scan.unasked_threads()));
    let doubts = doubts(report.scan).told();
    let doubts =
        doubts.iter().map(|(doubt, of)| json!({ "doubt": doubt.name(), "blocks": of.blocks, "bytes": of.bytes }));
    leaks.insert("doubts".to_owned(), doubts.collect());
    let sizes: Vec<Value> = groups
        .iter()
        .map(|group| {
            json!({
                "kind": group.class.finding_kind(),
                "size": group.size,
                "direct": amount(group.own),
                "indirect": amount(group.holds),
                "first": group.first.to_string(),
            })
        })
        .collect();
    let told = json!({
        "version": VERSION,
        "pid": report.pid,
        "program": report.program,
        "leaks": leaks,
        "copied": report.copied,
        "stacks_known": false,
        "heap_findings": report.findings,
        "in_motion": report.in_motion,
        "sizes": sizes,
        "explained": report.explain.as_ref().map(|explained| explained_json(report.scan, explained)),
    });
    format!("{told}\n")
}

/// Null if no live block is there.
fn explained_json(scan: &Scan, explained: &Explained<'_>) -> Value {
    let Some((block, class)) = scan.find(explained.addr).and_then(|number| scan.block(number)) else {
        return Value::Null;
    };
    let mut path = Vec::new();
    if let Some((way, root)) = explained.way {
        path.push(json!({ "root": root, "address": way.root_address.map(|address| address.to_string()) }));
        path.extend(way.steps.iter().filter_map(|step| {
            let (block, _) = scan.block(step.block)?;
            Some(json!({
                "address": block.addr.to_string(),
                "size": block.size,
                "target_offset": step.target_offset,
                "next_offset": step.next_offset,
            }))
        }));
    }
    json!({ "kind": class.finding_kind(), "block": block.addr.to_string(), "size": block.size, "path": path })
}
