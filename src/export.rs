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
pub mod frames;
pub mod github;
mod gzip;
pub mod heap;
mod heaptimeline;
mod heaptrack;
mod html;
mod json;
mod junit;
pub mod leaks;
pub mod lost;
mod markdown;
mod names;
mod otlp;
pub mod output;
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
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

/// A file format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// pprof, compressed with gzip: what `go tool pprof` and its many relatives read.
    PprofGz,
    /// pprof, uncompressed.
    Pprof,
    /// Folded stacks: one line per stack, for flame graph tools.
    Folded,
    /// A flame graph to open in a browser.
    Svg,
    /// A report to look at in a browser, in one file that needs no network.
    Html,
    /// report.json, for scripts; `docs/report.schema.json` describes it.
    Json,
    /// The same, compressed with gzip.
    JsonGz,
    /// A report to read.
    Txt,
    /// A summary in Markdown of what `check` found.
    Markdown,
    /// What `check` found, as JUnit's XML.
    JUnit,
    /// What `check` found, as SARIF 2.1.0.
    Sarif,
    /// A trace for Perfetto: heap profiles and the live bytes over time.
    Perfetto,
    /// heaptrack's format, compressed with zstd: what its GUI and `heaptrack_print` read.
    Heaptrack,
    /// OpenTelemetry's profiles, which are alpha.
    Otlp,
    /// The live blocks and their allocations over time, for Chrome's developer tools.
    HeapTimeline,
    /// What Valgrind's DHAT writes: for its viewer and the Firefox Profiler.
    Dhat,
    /// The Firefox Profiler's own format.
    Firefox,
    /// The same, compressed with gzip.
    FirefoxGz,
}

impl Format {
    /// All formats that exist, in the order in which they are listed to the user.
    pub const ALL: [Self; 18] = [
        Self::PprofGz,
        Self::Pprof,
        Self::Folded,
        Self::Svg,
        Self::Html,
        Self::Json,
        Self::JsonGz,
        Self::Txt,
        Self::Markdown,
        Self::JUnit,
        Self::Sarif,
        Self::Perfetto,
        Self::Heaptrack,
        Self::Otlp,
        Self::Dhat,
        Self::Firefox,
        Self::FirefoxGz,
        Self::HeapTimeline,
    ];

    /// The name that `--format` takes: the end of the file name, without the leading dot.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PprofGz => "pb.gz",
            Self::Pprof => "pb",
            Self::Folded => "folded",
            Self::Svg => "svg",
            Self::Html => "html",
            Self::Json => "json",
            Self::JsonGz => "json.gz",
            Self::Txt => "txt",
            Self::Markdown => "md",
            Self::JUnit => "junit.xml",
            Self::Sarif => "sarif",
            Self::Perfetto => "pftrace",
            Self::Heaptrack => "heaptrack.zst",
            Self::Otlp => "otlp.pb",
            Self::HeapTimeline => "heaptimeline",
            Self::Dhat => "dhat.json",
            Self::Firefox => "firefox.json",
            Self::FirefoxGz => "firefox.json.gz",
        }
    }

    /// Whether this is one of the two forms of pprof's format.
    pub const fn is_pprof(self) -> bool {
        matches!(self, Self::PprofGz | Self::Pprof)
    }

    /// Whether a profile that comes from `source` has what the format holds.
    ///
    /// # Errors
    /// It has not.
    pub const fn can_hold(self, source: Source) -> Result<(), FormatError> {
        match (self, source) {
            (Self::Markdown | Self::JUnit | Self::Sarif, Source::Run | Source::Trace) => {
                Err(FormatError::CheckOnly { format: self })
            }
            (Self::HeapTimeline, Source::Run | Source::Check) => Err(FormatError::TraceOnly { format: self }),
            _ => Ok(()),
        }
    }

    /// The format of a file by the longest known end of its name.
    ///
    /// # Errors
    /// The name ends like no format, or like one that is planned but does not exist yet (`app.dhat.json.gz` is not
    /// taken for a report.json.gz).
    pub fn from_path(path: &Path) -> Result<Self, FormatError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self::longest(|suffix| name.strip_suffix(suffix).is_some_and(|stem| stem.len() > 1 && stem.ends_with('.')))
            .unwrap_or_else(|| Err(FormatError::UnknownSuffix { name: path.display().to_string() }))
    }

    /// The format that `--format NAME` asks for; a leading dot is allowed.
    ///
    /// # Errors
    /// There is no such format, or not yet.
    pub fn from_name(name: &str) -> Result<Self, FormatError> {
        let bare = name.strip_prefix('.').unwrap_or(name);
        Self::longest(|suffix| bare == suffix)
            .unwrap_or_else(|| Err(FormatError::UnknownName { name: name.to_owned() }))
    }

    /// The longest suffix that `matches`, among those that exist and those that are planned.
    fn longest(matches: impl Fn(&str) -> bool) -> Option<Result<Self, FormatError>> {
        let existing = Self::ALL.into_iter().map(|format| (format.name(), Ok(format)));
        let planned = PLANNED.into_iter().map(|suffix| (suffix, Err(FormatError::NotYet { suffix })));
        existing
            .chain(planned)
            .filter(|(suffix, _)| matches(suffix))
            .max_by_key(|(suffix, _)| suffix.len())
            .map(|x| x.1)
    }
}

/// Where a profile comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From a run, or a saved one: it has sums.
    Run,
    /// From a check: it has a verdict, too.
    Check,
    /// From a trace: it has single blocks, too.
    Trace,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names that are reserved for formats of later versions: refused, never mistaken for a shorter one.
const PLANNED: [&str; 1] = ["dhat.json.gz"];

/// Lists the formats that exist, for messages.
fn available() -> String {
    Format::ALL.map(|format| format!(".{format}")).join(" ")
}

/// Lists what `--format` takes.
fn names() -> String {
    Format::ALL.map(Format::name).join(" ")
}

/// Why a file name or `--format` names no format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No format has this ending.
    #[error(
        "{name}: the end of the name says no known format; there are {} (or choose one with --format)",
        available()
    )]
    UnknownSuffix {
        /// The path.
        name: String,
    },
    /// `--format` with an unknown name.
    #[error("there is no format `{name}`; there are {}", available())]
    UnknownName {
        /// What was asked for.
        name: String,
    },
    /// A format that only `check` can fill.
    #[error("the format .{format} holds the verdict of a check: use `heaptrace check`")]
    CheckOnly {
        /// The format.
        format: Format,
    },
    /// A format that is made of single blocks.
    #[error(
        "the format .{format} is made of a trace: write one with --trace FILE.fxt.zst, then use `heaptrace convert`"
    )]
    TraceOnly {
        /// The format.
        format: Format,
    },
    /// Planned, but not there.
    #[error("the format .{suffix} does not exist yet; there are {}", available())]
    NotYet {
        /// Its ending.
        suffix: &'static str,
    },
}

/// Which columns a pprof file has (`--pprof-columns`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PprofColumns {
    /// Those of memory_sampler, the peak, and Go's: every consumer finds what it looks for.
    #[default]
    All,
    /// The six columns of Fuchsia's memory_sampler.
    Sampler,
    /// The four columns of Go's heap profiles.
    Go,
}

impl PprofColumns {
    /// All of them, by their names.
    pub(crate) const NAMES: [(&str, Self); 3] = [("all", Self::All), ("sampler", Self::Sampler), ("go", Self::Go)];

    /// What `--pprof-columns` calls it.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, columns)| *columns == self).map_or("all", |(name, _)| name)
    }

    /// The columns of this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, columns)| *columns)
    }
}

/// What the formats leave to the user.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The columns of pprof files.
    pub pprof_columns: PprofColumns,
    /// Whether pages show the text of source files.
    pub source: bool,
    /// How many stacks a text report shows in each of its tables.
    pub top: usize,
    /// The title of a flame graph; None: made from the program's name and the column.
    pub title: Option<String>,
    /// What flame graphs, folded stacks and text reports show; None: what the profile is about.
    pub value: Option<Value>,
    /// Whether no further part of the same session will follow.
    pub last: bool,
    /// What `%i` in names stands for; None: the number of the part.
    pub number: Option<u32>,
    /// Of a part of a series, from when to when it is, in nanoseconds since tracing began.
    pub period: Option<Range<u64>>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            pprof_columns: PprofColumns::All,
            source: true,
            top: 20,
            title: None,
            value: None,
            last: true,
            number: None,
            period: None,
        }
    }
}

/// Writes `profile` to `out` as `format`.
///
/// # Errors
/// Those of `out`; if the format holds what the profile lacks ([`Format::can_hold`]).
pub fn write(format: Format, profile: &Profile, options: &ExportOptions, out: &mut dyn io::Write) -> io::Result<()> {
    let view = view::View::new(profile);
    match format {
        Format::PprofGz => pprof::write_gz(&view, options, out),
        Format::Pprof => pprof::write(&view, options, out),
        Format::Folded => folded::write(&view, options, out),
        Format::Svg => svg::write(&view, options, out),
        Format::Html => html::write(&view, options, out),
        Format::Json => json::write(&view, out),
        Format::JsonGz => json::write_gz(&view, out),
        Format::Txt => txt::write(&view, options, out),
        Format::Markdown => markdown::write(&view, options.top, out),
        Format::JUnit => junit::write(&view, out),
        Format::Sarif => sarif::write(&view, out),
        Format::Perfetto => pftrace::write(&view, out),
        Format::Heaptrack => heaptrack::write(&view, out),
        Format::Otlp => otlp::write(&view, options, out),
        Format::HeapTimeline => heaptimeline::write(&view, out),
        Format::Dhat => dhat::write(&view, out),
        Format::Firefox => firefox::write(&view, out),
        Format::FirefoxGz => firefox::write_gz(&view, out),
    }
}
