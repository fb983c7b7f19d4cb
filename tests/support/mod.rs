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

use std::path::Path;
use std::process::Command;

/// Copies a file, which may be executed at once: a process of its own writes it. A descriptor of this one would be
/// inherited by what other tests start meanwhile, and a file that somebody has open to write can't be executed
/// (ETXTBSY).
///
/// # Errors
/// If cp fails, which says why.
pub fn copy_file(from: impl AsRef<Path>, to: impl AsRef<Path>) -> std::io::Result<()> {
    let done = Command::new("cp").arg("--").args([from.as_ref(), to.as_ref()]).status()?;
    if done.success() { Ok(()) } else { Err(std::io::Error::other(format!("cp: {done}"))) }
}
