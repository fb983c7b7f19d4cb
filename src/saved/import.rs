//! Reads saved profiles back: pprof files (ours, and those of other tools as far as they are heap profiles) and
//! report.json. Pure: bytes in, a [`Profile`] out, which `profile.saved` tells from one that was just recorded.
//!
//! Whatever the bytes, nothing panics, and memory is bounded by [`Limits`].

mod budget;
mod comments;
mod kinds;
mod pprof;
mod report;
mod unpack;
mod wire;

use crate::profile::Profile;
use budget::Budget;

/// How much a file may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes that may come out of a compressed file, or that one may have.
    pub unpacked: u64,
    /// What reading it may take of memory, in bytes: the file itself, what comes out of it, and the profile made of
    /// that.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { unpacked: 1 << 30, memory: 4 << 30 }
    }
}

/// Why a file can't be read as a profile. Each names the file, what is wrong, and the way out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum ImportError {
    /// No byte in it.
    #[error("{file}: the file is empty; was it still being written, or the disk full?")]
    Empty { file: String },
    /// Another tool's file, or another kind of ours.
    #[error("{file}: {what}; {cure}")]
    Foreign { file: String, what: &'static str, cure: &'static str },
    /// No known format.
    #[error(
        "{file}: neither a pprof profile nor a report.json; heaptrace reads what `-o NAME.pb.gz`, `-o NAME.pb`, `-o NAME.json` or \
         `-o NAME.json.gz` wrote, and pprof heap profiles of other tools"
    )]
    Unknown { file: String },
    /// The compressed data end too early.
    #[error("{file}: the file ends too early; it was cut off while it was written or copied: get it anew")]
    Torn { file: String },
    /// It contradicts itself.
    #[error("{file}: the file is damaged ({what}); get it anew")]
    Damaged { file: String, what: String },
    /// Out of proportion.
    #[error(
        "{file}: reading this file would take more than {limit} MiB of memory; the file may be malicious, or memory is \
         short: read it on a machine with more"
    )]
    TooLarge { file: String, limit: u64 },
    /// A profile of something else.
    #[error(
        "{file}: not a heap profile: it counts {columns}, not live or allocated blocks (a CPU profile? `go tool pprof` \
         shows it)"
    )]
    NoHeap { file: String, columns: String },
    /// A difference of profiles.
    #[error("{file}: it has negative amounts, as differences of profiles have; give the two profiles themselves")]
    Negative { file: String },
    /// JSON, but no report.
    #[error("{file}: not a report of heaptrace ({reason}); `-o NAME.json` makes one")]
    NoReport { file: String, reason: String },
    /// A report of a later version.
    #[error(
        "{file}: a report of version {version}, this heaptrace reads versions 1 to {newest}; use a newer heaptrace"
    )]
    Version { file: String, version: u64, newest: u64 },
}

/// Reads a profile; `name` is what the file is called in errors.
///
/// # Errors
/// [`ImportError`]: the bytes are no heap profile, or one that is damaged or too large.
pub fn read(bytes: &[u8], name: &str, limits: &Limits) -> Result<Profile, ImportError> {
    let file = name.to_owned();
    if bytes.is_empty() {
        return Err(ImportError::Empty { file });
    }
    let mut budget = Budget::new(limits.memory);
    let content = unpack::unpacked(bytes, name, limits, &mut budget)?;
    let mut profile = match kinds::kind(&content) {
        kinds::Kind::Json => report::read(&content, name, limits, &mut budget),
        kinds::Kind::Foreign(what, cure) => Err(ImportError::Foreign { file, what, cure }),
        kinds::Kind::MaybePprof => pprof::read(&content, name, limits, &mut budget),
        kinds::Kind::Nothing if content.is_empty() => Err(ImportError::Empty { file }),
        kinds::Kind::Nothing => Err(ImportError::Unknown { file }),
    }?;
    // what the file does not tell; sources that are here may be others than those of its program
    profile.find_object_types(&mut |_, _, _| None);
    Ok(profile)
}

#[cfg(test)]
mod tests;
