//! `cargo bench --bench model [-- PROGRAM…]`: what an event costs the heap model, on the streams of real programs,
//! recorded in this run.
//!
//! The limit is what the jump engine needs: the model is its consumer.

#![allow(clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark that can't measure must not go on")]

mod parts {
    pub mod basics;
    #[allow(dead_code, reason = "others use the rest")]
    pub mod workloads;
}

use heaptrace::internal::Addr;
use heaptrace::internal::heap::{HeapModel, Preexisting};
use heaptrace::internal::trace::{Event, EventKind};
use parts::basics::median;
use parts::workloads::{calls, record, workloads};
use std::hint::black_box;
use std::time::{Duration, Instant};

fn main() {
    println!("{:<10} {:>10} {:>12} {:>12}   limit", "program", "events", "ns an event", "fastest");
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let names: Vec<&str> = workloads().iter().map(|workload| workload.name).collect();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        panic!("{unknown} is none of {}", names.join(", "));
    }
    for workload in workloads() {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == workload.name) {
            continue;
        }
        let Some(events) = record(&workload) else {
            println!("{:<10} could not be recorded", workload.name);
            continue;
        };
        let mut fastest = f64::MAX;
        let middle = median((0..9).map(|_| {
            let each = read(&events);
            fastest = fastest.min(each);
            each
        }));
        let limit = if matches!(workload.name, "jq" | "xmllint") { 60 } else { 40 };
        println!("{:<10} {:>10} {middle:>12.1} {fastest:>12.1}   {limit}", workload.name, calls(&events));
    }
}

/// So many events at once are in the processor's nearest cache, where the consumer of a ring has just made them. Read
/// from a list of 40 MB, their 88 bytes each took 4 ns of an event.
const BATCH: usize = 128;

/// The block of an event that allocates or frees one.
fn block(event: &Event) -> Option<Addr> {
    match event.kind {
        EventKind::Allocated { block, .. } | EventKind::Freed { block, .. } => Some(block),
        EventKind::ReallocEnded { new, .. } => Some(new),
        _ => None,
    }
}

/// Nanoseconds an event.
fn read(events: &[Event]) -> f64 {
    let mut model = HeapModel::new(Preexisting::None);
    let mut batch = Vec::with_capacity(BATCH);
    let mut took = Duration::ZERO;
    for events in events.chunks(BATCH) {
        batch.clear();
        batch.extend_from_slice(events);
        let begin = Instant::now();
        let batch = black_box(&batch);
        for (at, event) in batch.iter().enumerate() {
            model.look_ahead(at, |at| batch.get(at).and_then(block));
            model.apply(event);
        }
        took += begin.elapsed();
    }
    black_box(model.live_bytes());
    took.as_secs_f64() * 1e9 / events.len().max(1) as f64
}
