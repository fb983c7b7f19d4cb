//! The answer of `heaptrace heap --json`, version 1: docs/heap.md.

use super::{HeapReport, sizes};
use crate::heapwalk::census::{Amount, Use};
use crate::heapwalk::verdict::{self, Verdict};
use crate::heapwalk::{State, Walk};
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
        "copied": report.copied,
        "resident": census.total().resident,
        "resident_of_kernel": report.resident,
        "swapped": census.total().swapped,
        "verdict": name_of(verdict::of(census, report.trim)),
        "uses": uses(&census.uses),
        "allocator": report.walk.map(|walk| walk.allocator.name()),
    });
    if let (Some(walk), Some(told)) = (report.walk, told.as_object_mut()) {
        told.extend(heap(report, walk));
    }
    format!("{told}\n")
}

fn heap(report: &HeapReport<'_>, walk: &Walk) -> Map<String, Value> {
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
    let most = sizes(walk).into_iter().take(SIZES);
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
fn chunks(walk: &Walk) -> Value {
    let mut told = Map::new();
    for region in &walk.regions {
        for chunk in walk.of(region) {
            let name = match (chunk.state, region.arena) {
                (State::Live, None) => "mapped",
                (State::Live, Some(_)) => "live",
                (State::Tcache, _) => "tcache",
                (State::Fast, _) => "fast",
                (State::Free, _) => "free",
                (State::Top, _) => "top",
                (State::Own, _) => "own",
            };
            let sum = told.entry(name).or_insert_with(|| json!({ "count": 0u64, "bytes": 0u64 }));
            let more =
                |sum: &Value, name: &str, by: u64| json!(sum.get(name).and_then(Value::as_u64).unwrap_or(0) + by);
            *sum = json!({ "count": more(sum, "count", 1), "bytes": more(sum, "bytes", chunk.size) });
        }
    }
    Value::Object(told)
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
        Use::Kernel => "kernel",
    }
}

const fn name_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Retention => "retention",
        Verdict::Pinning => "pinning",
        Verdict::Live => "live",
        Verdict::Mappings => "mappings",
        Verdict::Stacks => "stacks",
        Verdict::Files => "files",
        Verdict::Shared => "shared",
        Verdict::Nothing => "nothing",
    }
}
