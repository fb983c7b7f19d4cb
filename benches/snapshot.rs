//! What an event costs the tables of the heap and of the stacks, and what a view of them costs while 1,000,000 blocks
//! are live: on the tracer thread, and on the one that wants the figures.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use heaptrace::internal::heap::{
    Call, Event, EventKind, Frame, FunctionId, HeapModel, Preexisting, StackId, StackTable, TaskId,
};
use heaptrace::internal::{Addr, FrameAddr, ModuleId};
use std::hint::black_box;
use std::time::Instant;

/// Live blocks.
const LIVE: u64 = 1_000_000;
/// Different stacks, of each of which there are blocks of four sizes.
const STACKS: u32 = 20_000;

fn main() {
    let mut model = HeapModel::new(Preexisting::None);
    let mut seq = 0;
    let mut tell = |model: &mut HeapModel, kind| {
        seq += 1;
        model.apply(&Event { seq, time_ns: seq * 1000, kind });
    };
    let call = |n: u64| Call {
        function: FunctionId(0),
        task: TaskId { tid: 7, serial: 1 },
        stack: StackId((n.wrapping_mul(0x9e37_79b9) % u64::from(STACKS)) as u32 + 1),
        family: None,
        align: None,
        interval: 0,
    };
    let block = |n: u64| Addr(0x7f00_0000_0000 + n.wrapping_mul(0x9e37_79b1) % (1 << 32) * 16);
    let size = |n: u64| 16 << (n % 4);
    for n in 0..LIVE {
        tell(&mut model, EventKind::Allocated { block: block(n), size: size(n), by: call(n) });
    }
    let mut at = LIVE;
    let mut pairs = |model: &mut HeapModel| {
        let start = Instant::now();
        for n in at..at + 200_000 {
            tell(model, EventKind::Freed { block: block(n - LIVE), internal: false, given_size: None, by: call(n) });
            tell(model, EventKind::Allocated { block: block(n), size: size(n), by: call(n) });
        }
        at += 200_000;
        start.elapsed().as_secs_f64() * 1e9 / 200_000.0
    };
    println!("free and malloc in the model:      {:8.1} ns", median((0..15).map(|_| pairs(&mut model))));

    let mut stacks = StackTable::new();
    let mut walk = |outer: u64| {
        let mut stack = StackId::EMPTY;
        for depth in 0..20 {
            let addr = Addr(0x40_0000 + depth * 64 + if depth > 8 { outer * 4096 } else { 0 });
            stack = stacks.child(stack, Frame { addr: FrameAddr::Return(addr), module: ModuleId(1) }, false);
        }
        black_box(stack)
    };
    let first = Instant::now();
    (0..u64::from(STACKS)).for_each(|outer| _ = walk(outer));
    println!("a new stack of 20 frames, interned:{:8.1} ns", first.elapsed().as_secs_f64() * 1e9 / f64::from(STACKS));
    let mut known = || {
        let start = Instant::now();
        (0..u64::from(STACKS)).for_each(|outer| _ = walk(outer));
        start.elapsed().as_secs_f64() * 1e9 / f64::from(STACKS)
    };
    println!("a known one:                       {:8.1} ns", median((0..15).map(|_| known())));

    for with_blocks in [false, true] {
        let start = Instant::now();
        let (view, stacks_view) = (model.view(with_blocks), stacks.view());
        let made = start.elapsed();
        let after = pairs(&mut model);
        println!(
            "a view{}: {:.1} us for {LIVE} blocks and their stacks; 200,000 pairs after it: {after:.1} ns each",
            if with_blocks { " with blocks" } else { "" },
            made.as_secs_f64() * 1e6
        );
        drop((view, stacks_view));
    }
    let view = model.view(true);
    let start = Instant::now();
    let survivors = view.survivors(LIVE + 1_000_000).map(|snapshot| snapshot.totals.live_blocks);
    println!("{survivors:?} blocks born after a mark: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    let snapshot = view.snapshot();
    println!("figures of {} sites: {:.1} ms", snapshot.sites.len(), start.elapsed().as_secs_f64() * 1e3);
}

fn median(rounds: impl Iterator<Item = f64>) -> f64 {
    let mut rounds: Vec<f64> = rounds.collect();
    rounds.sort_unstable_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or_default()
}
