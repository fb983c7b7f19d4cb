//! The answer of `heaptrace heap --json`, version 1: docs/heap.md.

use super::held::{advice, owner_name, pinned_by};
use super::{HeapReport, lost, sharing};
use crate::heap::graph::owners::Owner;
use crate::heap::graph::{Held, Sum};
use crate::heap::walk::State;
use crate::heap::walk::census::{Amount, Use};
use crate::heap::walk::summary::{ChunkSum, Summary};
use crate::heap::walk::verdict::{self, Verdict};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The version of the form: it grows when a member changes its meaning or goes.
const VERSION: u32 = 1;

/// So many sizes of blocks are told.
const SIZES: usize = 64;

/// All of it, on one line.
pub fn json(report: &HeapReport<'_>) -> String {
    let census = report.census;
    let mut told = json!({
        "version": VERSION,
        "pid": report.pid,
        "program": report.program,
        "threads": report.threads,
        "stood_ns": report.stood_ns,
        "in_motion": report.in_motion,
        "copied": report.copied,
        "core": report.core.map(|core| json!({ "stored": core.stored, "missing": core.missing })),
        "resident": census.total().resident,
        "resident_of_kernel": report.resident,
        "swapped": census.total().swapped,
        "verdict": name_of(verdict::of(census, report.trim, lost(report))),
        "uses": uses(&census.uses),
        "allocator": report.walk.map(|walk| walk.allocator.name()),
    });
    if let (Some(walk), Some(told)) = (report.walk, told.as_object_mut()) {
        told.extend(heap(report, walk));
        if let Some(of) = report.held {
            told.extend(held(of));
        }
    }
    format!("{told}\n")
}

fn heap(report: &HeapReport<'_>, walk: &Summary) -> Map<String, Value> {
    let mut told = Map::new();
    let mut add = |name: &str, value: Value| told.insert(name.to_owned(), value);
    add("trim", json!(report.trim.map(|trim| json!({ "inside": trim.inside, "end": trim.end }))));
    add("trimmed", json!(report.trimmed));
    add("mapped_bytes_of_allocator", json!(walk.mapped_bytes));
    let all = report.census.arenas.get(..walk.arenas.len()).unwrap_or(&[]);
    let arenas = walk.arenas.iter().zip(all).map(|(arena, of)| {
        json!({
            "address": arena.at.to_string(),
            "main": arena.is_main,
            "threads": arena.threads,
            "system_bytes": arena.system_bytes,
            "uses": uses(of),
        })
    });
    add("arenas", arenas.collect());
    add("chunks", chunks(walk));
    let most = walk.sizes.iter().take(SIZES);
    let rows = most.map(|row| json!({ "usable": row.usable, "live": row.live, "freed": row.freed }));
    add("sizes", rows.collect());
    let findings = walk.findings.iter().map(|finding| {
        json!({
            "address": finding.at.to_string(),
            "what": finding.what.to_string(),
            "block_before": finding.before.map(|before| before.block().to_string()),
        })
    });
    add("findings", findings.collect());
    told
}

/// So many holders, types and groups of live blocks that keep free memory are told.
const ROWS: usize = 1000;

fn sum(of: Sum) -> Value {
    json!({ "blocks": of.blocks, "bytes": of.bytes })
}

/// What the blocks are, and who holds them.
fn held(of: &Held) -> Map<String, Value> {
    let holdings = &of.holdings;
    let mut told = Map::new();
    let mut add = |name: &str, value: Value| told.insert(name.to_owned(), value);
    add("reachable", sum(holdings.reachable));
    add("lost", sum(holdings.lost));
    add("held_by_several", sum(holdings.shared));
    let holders = holdings.by_retained().into_iter().filter_map(|number| holdings.holders.get(number));
    let holders = holders
        .take(ROWS)
        .map(|holder| json!({ "name": holder.name, "blocks": holder.retained.blocks, "bytes": holder.retained.bytes }));
    add("holders", holders.collect());
    let types = of.types.sums(&holdings.graph).into_iter().take(ROWS).map(|(of, sum)| {
        json!({ "name": of.name, "certainty": of.certainty.name(), "blocks": sum.blocks, "bytes": sum.bytes })
    });
    add("types", types.collect());
    let pinned = pinned_by(of)
        .into_iter()
        .take(ROWS)
        .map(|(of, by, sum)| json!({ "type": of, "holder": by, "blocks": sum.blocks, "bytes": sum.bytes }));
    let pinned: Vec<Value> = pinned.collect();
    let remedy = of.remedy.map(|(remedy, bytes)| json!({ "what": advice(remedy), "bytes": bytes }));
    add("pinned", json!({ "bytes": of.pinned.bytes, "by": pinned, "remedy": remedy }));
    let most =
        of.duplicates.most.iter().zip(&of.samples).map(
            |(one, sample)| json!({ "size": one.size, "count": one.count, "wasted": one.wasted(), "text": sample }),
        );
    let most: Vec<Value> = most.collect();
    add(
        "duplicates",
        json!({ "wasted": of.duplicates.wasted, "wasted_text": of.duplicates.wasted_text, "most": most }),
    );
    let advice = sharing::advice(of).into_iter();
    let advice = advice.map(|of| json!({ "kind": of.kind, "figures": of.figures, "text": of.text }));
    add("advice", advice.collect());
    let largest = holdings.largest().iter().filter_map(|&(number, retained)| {
        let block = holdings.graph.blocks().get(number as usize)?;
        let owner = holdings.owner(number as usize);
        Some(json!({
            "address": block.addr.to_string(),
            "bytes": block.size,
            "retained": retained,
            "type": of.types.of(number as usize).map(|of| of.name.as_str()),
            "holder": (owner != Owner::Several).then(|| owner_name(holdings, owner)),
        }))
    });
    add("largest", largest.collect());
    told
}

fn uses(of: &BTreeMap<Use, Amount>) -> Value {
    let told = of.iter().map(|(of, amount)| {
        let amount = json!({
            "resident": amount.resident,
            "swapped": amount.swapped,
            "reserved": amount.reserved,
        });
        (name_of_use(*of).to_owned(), amount)
    });
    Value::Object(told.collect())
}

/// Number and bytes of chunks, headers included, by what they are; those with mappings of their own apart.
fn chunks(walk: &Summary) -> Value {
    let mut sums: BTreeMap<&str, ChunkSum> = BTreeMap::new();
    for ((state, is_mapped), sum) in &walk.chunks {
        let name = match state {
            State::Live if *is_mapped => "mapped",
            State::Live => "live",
            State::Tcache => "tcache",
            State::Fast => "fast",
            State::Free => "free",
            State::Top => "top",
            State::Own => "own",
        };
        sums.entry(name).or_default().join(*sum);
    }
    let told = sums.into_iter().map(|(name, sum)| (name.to_owned(), json!({ "count": sum.count, "bytes": sum.bytes })));
    Value::Object(told.collect())
}

const fn name_of_use(of: Use) -> &'static str {
    match of {
        Use::Live => "live",
        Use::Headers => "headers",
        Use::ThreadCaches => "thread_caches",
        Use::FastBins => "fast_bins",
        Use::Bins => "bins",
        Use::Tops => "tops",
        Use::Books => "allocator",
        Use::Unknown => "unknown_heap",
        Use::Mappings => "mappings",
        Use::Stacks => "stacks",
        Use::Files => "files",
        Use::Shared => "shared",
        Use::Heaptrace => "heaptrace",
        Use::Kernel => "kernel",
    }
}

const fn name_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Retention => "retention",
        Verdict::Pinning => "pinning",
        Verdict::Leak => "leak",
        Verdict::Live => "live",
        Verdict::Mappings => "mappings",
        Verdict::Stacks => "stacks",
        Verdict::Files => "files",
        Verdict::Shared => "shared",
        Verdict::Nothing => "nothing",
    }
}
