//! What a walk costs: a stack seen before and one seen for the first time, from a copy of the stack (the unwinder
//! alone) and from a stopped process through /proc (with the read of its memory).

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/support/stopped.rs"]
mod stopped;

use heaptrace::internal::{Addr, MemoryImage, ReadMemory, Unwinder};
use std::hint::black_box;
use std::time::Instant;
use stopped::{Stopped, build};

fn main() {
    let mut fixture = Stopped::start(&build("cc", "frames", &["-O2"]));
    // the second stop of the fixture is 300 calls deep
    fixture.wait().unwrap();
    let regs = fixture.go_on().unwrap();
    let modules = fixture.modules();
    let mut live = fixture.memory();
    let mut bytes = vec![0; 256 * 1024];
    let n = live.read(Addr(regs.sp()), &mut bytes);
    bytes.truncate(n);
    let mut copy = MemoryImage { start: Addr(regs.sp()), bytes };

    let fresh = || {
        let mut unwinder = Unwinder::new();
        for (_, module) in &modules {
            unwinder.add_module(module.clone());
        }
        unwinder
    };
    for depth in [5, 20, 40, 300] {
        let mut unwinder = fresh();
        let start = Instant::now();
        black_box(unwinder.unwind_at_entry(&regs, &mut copy, depth));
        let first = start.elapsed();
        let cached = time(|| unwinder.unwind_at_entry(&regs, &mut copy, depth));
        let from_process = time(|| unwinder.unwind_at_entry(&regs, &mut live, depth));
        println!(
            "{depth:4} frames: first walk {:8.1} us, known stack {cached:7.1} ns ({:4.1} a frame), with its read {:7.1} ns",
            first.as_secs_f64() * 1e6,
            cached / f64::from(depth),
            from_process,
        );
    }
}

/// The median over 15 rounds of the time of one call, in nanoseconds.
fn time<T>(mut call: impl FnMut() -> T) -> f64 {
    const CALLS: u32 = 2000;
    let mut rounds: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                black_box(call());
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
