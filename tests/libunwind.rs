//! The tests about unwinding once more, in a build with the second unwinder as an oracle: `cargo test --features libunwind --test libunwind`.
//! A small binary, so that the others need not be built twice.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

#[allow(dead_code, reason = "the other tests use the rest")]
mod support;
#[path = "suite/unwinding.rs"]
mod unwinding;
