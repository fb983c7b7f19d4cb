//! The table of output formats. All that heaptrace knows of a format stands in its row: `--format`, the ends of file
//! names, the help, and who writes it.

use super::options::ExportOptions;
use super::view::View;
use super::{dhat, firefox, folded, heaptimeline, heaptrack, html, json, junit, markdown, otlp};
use super::{pftrace, pprof, sarif, svg, txt};
use std::fmt;
use std::io;
use std::path::Path;

/// A row of the table.
#[derive(Clone, Copy)]
struct Row {
    /// What `--format` calls it: the end of the file name, without the leading dot.
    ending: &'static str,
    /// What it is, in the help of `-o`. Rows next to each other with the same words share one mention.
    what: &'static str,
    /// What a profile must have for it, besides sums.
    needs: Needs,
    /// What it shows, besides sums, if somebody records it.
    shows: &'static [Extra],
    write: Writer,
}

type Writer = fn(&View<'_>, &ExportOptions, &mut dyn io::Write) -> io::Result<()>;

/// What most formats have in common. `write` is in each row.
const ROW: Row = Row { ending: "", what: "", needs: Needs::Sums, shows: &[], write: |_, _, _| Ok(()) };

/// What a format can't do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    /// What each profile has.
    Sums,
    /// The verdict of a check.
    Verdict,
    /// The single blocks of a trace.
    Blocks,
}

/// What costs to record or to find out, and only some formats show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extra {
    /// The heap at several moments of the run.
    Timeline,
    /// The heap at several moments of a trace that is converted.
    Heaps,
    /// The packages that would bring missing names.
    Packages,
}

/// Makes of the table the enum `Format`, and the row of each.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident { $($field:ident: $value:expr),* $(,)? })*) => {
        /// A file format.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        impl Format {
            /// All formats that exist, in the order in which they are listed to the user.
            pub const ALL: [Self; [$(stringify!($format)),*].len()] = [$(Self::$format),*];

            const fn row(self) -> Row {
                match self {
                    $(Self::$format => Row { $($field: $value,)* ..ROW },)*
                }
            }
        }
    };
}

formats! {
    /// pprof, compressed with gzip: what `go tool pprof` and its many relatives read.
    PprofGz {
        ending: "pb.gz",
        what: "pprof",
        write: pprof::write_gz,
    }
    /// pprof, uncompressed.
    Pprof {
        ending: "pb",
        what: "pprof",
        write: pprof::write,
    }
    /// A flame graph to open in a browser.
    Svg {
        ending: "svg",
        what: "flame graph",
        write: svg::write,
    }
    /// A report to look at in a browser, in one file that needs no network.
    Html {
        ending: "html",
        what: "report for a browser",
        write: html::write,
        shows: &[Extra::Timeline, Extra::Heaps, Extra::Packages],
    }
    /// Folded stacks: one line per stack, for flame graph tools.
    Folded {
        ending: "folded",
        what: "folded stacks",
        write: folded::write,
    }
    /// report.json, for scripts; `docs/report.schema.json` describes it.
    Json {
        ending: "json",
        what: "report",
        write: |view, _, out| json::write(view, out),
    }
    /// The same, compressed with gzip.
    JsonGz {
        ending: "json.gz",
        what: "report",
        write: |view, _, out| json::write_gz(view, out),
    }
    /// A report to read.
    Txt {
        ending: "txt",
        what: "text",
        write: txt::write,
        shows: &[Extra::Packages],
    }
    /// A trace for Perfetto: heap profiles and the live bytes over time.
    Perfetto {
        ending: "pftrace",
        what: "Perfetto",
        write: |view, _, out| pftrace::write(view, out),
        shows: &[Extra::Timeline],
    }
    /// heaptrack's format, compressed with zstd: what its GUI and `heaptrack_print` read.
    Heaptrack {
        ending: "heaptrack.zst",
        what: "heaptrack",
        write: |view, _, out| heaptrack::write(view, out),
    }
    /// What Valgrind's DHAT writes: for its viewer and the Firefox Profiler.
    Dhat {
        ending: "dhat.json",
        what: "Valgrind's dh_view",
        write: |view, _, out| dhat::write(view, out),
    }
    /// The Firefox Profiler's own format.
    Firefox {
        ending: "firefox.json",
        what: "Firefox Profiler",
        write: |view, _, out| firefox::write(view, out),
    }
    /// The same, compressed with gzip.
    FirefoxGz {
        ending: "firefox.json.gz",
        what: "Firefox Profiler",
        write: |view, _, out| firefox::write_gz(view, out),
    }
    /// OpenTelemetry's profiles, which are alpha.
    Otlp {
        ending: "otlp.pb",
        what: "OpenTelemetry profiles, alpha: readers of other versions may refuse it",
        write: otlp::write,
    }
    /// A summary in Markdown of what `check` found.
    Markdown {
        ending: "md",
        what: "Markdown",
        write: |view, options, out| markdown::write(view, options.top, out),
        needs: Needs::Verdict,
    }
    /// What `check` found, as JUnit's XML.
    JUnit {
        ending: "junit.xml",
        what: "JUnit's XML",
        write: |view, _, out| junit::write(view, out),
        needs: Needs::Verdict,
    }
    /// What `check` found, as SARIF 2.1.0.
    Sarif {
        ending: "sarif",
        what: "SARIF",
        write: |view, _, out| sarif::write(view, out),
        needs: Needs::Verdict,
    }
    /// The live blocks and their allocations over time, for Chrome's developer tools.
    HeapTimeline {
        ending: "heaptimeline",
        what: "live blocks one by one, for Chrome's developer tools (Memory, Load)",
        write: |view, _, out| heaptimeline::write(view, out),
        needs: Needs::Blocks,
    }
}

impl Format {
    /// The name that `--format` takes: the end of the file name, without the leading dot.
    pub const fn name(self) -> &'static str {
        self.row().ending
    }

    /// Whether this is one of the two forms of pprof's format.
    pub const fn is_pprof(self) -> bool {
        matches!(self, Self::PprofGz | Self::Pprof)
    }

    /// Whether the format shows it.
    pub(crate) fn shows(self, extra: Extra) -> bool {
        self.row().shows.contains(&extra)
    }

    /// Whether the format is made of single blocks.
    pub(crate) fn needs_blocks(self) -> bool {
        self.row().needs == Needs::Blocks
    }

    /// Whether a profile that comes from `source` has what the format holds.
    ///
    /// # Errors
    /// It has not.
    pub const fn can_hold(self, source: Source) -> Result<(), FormatError> {
        match (self.row().needs, source) {
            (Needs::Verdict, Source::Run | Source::Trace) => Err(FormatError::CheckOnly { format: self }),
            (Needs::Blocks, Source::Run | Source::Check) => Err(FormatError::TraceOnly { format: self }),
            _ => Ok(()),
        }
    }

    /// Writes what `view` shows.
    pub(super) fn write(self, view: &View<'_>, options: &ExportOptions, out: &mut dyn io::Write) -> io::Result<()> {
        (self.row().write)(view, options, out)
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
#[non_exhaustive]
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

/// The formats that need no more than a profile has, for the help of `-o`: their endings, and what they are.
pub(crate) fn described() -> String {
    described_of(Needs::Sums)
}

/// The formats that need the verdict of a check, likewise.
pub(crate) fn described_of_checks() -> String {
    described_of(Needs::Verdict)
}

/// The formats that need the single blocks of a trace, likewise.
pub(crate) fn described_of_traces() -> String {
    described_of(Needs::Blocks)
}

fn described_of(needs: Needs) -> String {
    let rows: Vec<Row> = Format::ALL.map(Format::row).into_iter().filter(|row| row.needs == needs).collect();
    let same = rows.chunk_by(|one, next| one.what == next.what);
    let texts = same.map(|rows| {
        let endings: Vec<String> = rows.iter().map(|row| format!(".{}", row.ending)).collect();
        format!("{} ({})", endings.join(" or "), rows.first().map_or("", |row| row.what))
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// What `--format` takes for a profile from one of these, for its help.
pub(crate) fn names_from(sources: &[Source]) -> String {
    let can_hold = |format: &Format| sources.iter().any(|source| format.can_hold(*source).is_ok());
    Format::ALL.into_iter().filter(can_hold).map(Format::name).collect::<Vec<_>>().join(", ")
}

/// Names that are reserved for formats of later versions: refused, never mistaken for a shorter one.
const PLANNED: [&str; 1] = ["dhat.json.gz"];

/// Lists the formats that exist, for messages.
fn available() -> String {
    Format::ALL.map(|format| format!(".{format}")).join(" ")
}

/// Lists what `--format` takes.
pub(super) fn names() -> String {
    Format::ALL.map(Format::name).join(" ")
}

/// Why a file name or `--format` names no format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No format has this ending.
    #[error("{name}: the name does not end in a known format; there are {} (or choose one with --format)", available())]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that explains the formats is the oracle: it has each of them, and no other.
    #[test]
    fn the_table_is_that_of_the_page() {
        let page = include_str!("../../docs/profile.md");
        let rows = page.lines().filter(|line| line.starts_with("| `."));
        let first_cell = |row: &'static str| row.split('|').nth(1).unwrap_or_default();
        let endings = rows.flat_map(|row| first_cell(row).split(',')).map(|ending| ending.trim().trim_matches('`'));
        let mut of_page: Vec<&str> = endings.collect();
        let mut of_table: Vec<String> = Format::ALL.map(|format| format!(".{format}")).to_vec();
        of_page.sort_unstable();
        of_table.sort_unstable();
        assert_eq!(of_page, of_table);
    }

    #[test]
    fn the_help_has_each_format_where_it_can_be_written() {
        let list = |text: String| text.split(", ").map(str::to_owned).collect::<Vec<_>>();
        assert!(described().starts_with(".pb.gz or .pb (pprof), .svg (flame graph), "), "{}", described());
        assert!(described_of_checks().contains(".sarif (SARIF)") && !described().contains("sarif"));
        assert!(described_of_traces().starts_with(".heaptimeline (live blocks"));
        assert_eq!(list(names_from(&[Source::Trace])).last().map(String::as_str), Some("heaptimeline"));
        let of_run = list(names_from(&[Source::Run, Source::Check]));
        assert!(of_run.contains(&"junit.xml".to_owned()) && !of_run.contains(&"heaptimeline".to_owned()));
    }
}
