//! Writes a finished [`Profile`] in the formats that other tools, scripts and people read.
//!
//! One file per format, each pure over [`io::Write`]; [`output`] owns the files. All formats look at the profile
//! through the same [`view`]: stacks begin at the allocator's caller, and sampled figures are scaled up.

mod advice;
pub(crate) mod cost;
mod devtools;
mod dhat;
pub mod diff;
pub mod escape;
mod findings;
mod firefox;
mod folded;
pub(crate) mod format;
pub mod frames;
pub mod github;
mod gzip;
pub mod heap;
mod heaptimeline;
mod heaptrack;
mod html;
mod json;
mod junit;
mod layout;
pub mod leakreport;
mod leaks;
pub mod lost;
mod markdown;
mod names;
mod nametraits;
mod options;
mod otlp;
pub mod output;
mod paint;
mod pertest;
mod pftrace;
mod pprof;
mod problems;
mod processes;
pub mod proto;
pub mod report;
mod rows;
mod runtimes;
mod sarif;
mod saved;
mod sections;
pub mod summary;
mod svg;
mod table;
mod telling;
pub(crate) mod text;
mod txt;
mod view;

#[cfg(test)]
pub(crate) use text::shell_words;

#[cfg(test)]
pub(crate) mod tests;

use crate::profile::Profile;
pub use crate::profile::value::Value;
pub use format::{Format, FormatError, Source};
pub use options::{ExportOptions, PprofColumns};
use std::io;

/// Writes `profile` to `out` as `format`.
///
/// # Errors
/// Those of `out`; if the format holds what the profile lacks ([`Format::can_hold`]).
pub fn write(format: Format, profile: &Profile, options: &ExportOptions, out: &mut dyn io::Write) -> io::Result<()> {
    format.write(&view::View::new(profile), options, out)
}
