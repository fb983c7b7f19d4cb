//! What every room uses and what knows no target: words that others share (addresses, figures, classes of leaks,
//! advice, samples), the trait by which the core reads memory, and small helpers (patterns, paths, mapped files, tables
//! in shared pieces, counters of the progress line).

pub mod addr;
pub mod advice;
pub mod chunk;
pub mod engine;
pub mod figures;
pub mod glob;
pub mod leakclass;
pub mod mapped;
pub mod memory;
pub mod packed;
pub mod paths;
pub mod prefetch;
pub mod progress;
pub mod sampling;
pub mod sources;
pub mod triggers;
