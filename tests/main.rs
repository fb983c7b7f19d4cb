//! The integration tests, in one binary.
//!
//! `support` builds the fixtures and runs programs with and without heaptrace; `suite` holds the tests, one file per
//! topic. A test that stands for a scenario of `tests/SCENARIOS.md` carries its id in its name (`t16_…`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

#[global_allocator]
static ALLOCATOR: support::allocations::Counting = support::allocations::Counting;

mod support;

mod suite {
    mod advice;
    mod allocators;
    mod anomalies;
    mod architecture;
    mod asleep;
    mod attach;
    mod awkward;
    mod binaries;
    mod builds;
    mod check;
    mod containers;
    mod control;
    mod convert;
    mod convert_parts;
    mod cores;
    mod counts;
    mod death;
    mod debuggers;
    mod debuginfod;
    mod declared;
    mod detach;
    mod dhat;
    mod docs;
    mod emulator;
    mod existing;
    mod failures;
    mod findshlibs;
    mod firefox;
    mod fleet;
    mod follow;
    mod formats;
    mod fuzz;
    mod fuzz_profiles;
    mod fuzz_traces;
    mod guardian;
    mod harness;
    mod heap;
    mod heapfiles;
    mod holders;
    mod hook;
    mod hostile;
    mod hostile_profiles;
    mod html;
    mod injection;
    mod instructions;
    mod jump;
    mod jump_told;
    mod kept_profiles;
    mod kept_signals;
    mod kept_traces;
    mod launch;
    mod leaks;
    mod library;
    mod limits;
    mod links;
    mod lost;
    mod mappings;
    mod merge;
    mod modules;
    mod objects;
    mod occasions;
    mod orphans;
    mod outputs;
    mod own_chain;
    mod packaging;
    mod pairing;
    mod pertest;
    mod pipes;
    mod placing;
    mod pprof;
    mod private_source;
    mod processes;
    mod pushing;
    mod python;
    mod realprograms;
    mod redis;
    mod resident;
    mod resolved;
    mod retries;
    mod sampling;
    mod saved;
    mod schemas;
    mod series;
    mod signals;
    mod snapshot;
    mod stacks;
    mod summaries;
    mod threads;
    mod timelines;
    mod top;
    mod traces;
    mod unwinding;
    mod viewing;
    mod vm_sharers;

    /// How often a test repeats what happens at random moments: a few times, or more with `HEAPTRACE_TEST_FACTOR=10`.
    fn rounds(usual: u32) -> u32 {
        let factor = std::env::var("HEAPTRACE_TEST_FACTOR").ok().and_then(|text| text.parse().ok());
        usual * factor.unwrap_or(1)
    }
}
