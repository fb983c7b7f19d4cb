//! heaptrace: a heap profiler and leak checker for native Linux x86-64 programs that works from outside the target.

pub mod addr;
pub mod allocators;
pub mod arch;
pub mod breakpoints;
pub mod calls;
pub mod cli;
pub mod commands;
pub mod ctl;
pub mod elf;
pub mod event;
pub mod export;
pub mod glob;
pub mod heapmodel;
pub mod leaks;
pub mod mapped;
pub mod maps;
pub mod memory;
pub mod paths;
pub mod profile;
pub mod progress;
pub mod session;
pub mod symbols;
pub mod tracer;
pub mod unwinder;
