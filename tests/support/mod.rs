//! Builds the fixtures, runs programs with and without heaptrace, and reads what they say.

pub mod allocations;
pub mod checks;
pub mod container;
pub mod counter;
pub mod fixtures;
pub mod leakcheck;
pub mod ledger;
pub mod memcheck;
pub mod procfs;
pub mod program;
pub mod python;
pub mod report;
pub mod running;
pub mod stopped;
pub mod tempdir;
pub mod terminal;
