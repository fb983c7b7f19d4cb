//! What the formats leave to the user.

use crate::profile::value::Value;
use std::ops::Range;

/// Which columns a pprof file has (`--pprof-columns`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
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
