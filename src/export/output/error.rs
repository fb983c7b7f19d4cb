//! What can go wrong with output files, in words.

use crate::export::FormatError;
use std::io;
use std::path::PathBuf;

/// Why an output can't be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The name says no format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// `-o -` where the program keeps its stdout.
    #[error("`-o -`: stdout belongs to the traced program; name a file")]
    StdoutRefused,
    /// `%` with another character than p, n, i or %.
    #[error("{}: `{found}` is not a pattern; there are %p (pid), %n (program), %i (number in a series), %% (a percent \
        sign)", path.display())]
    Pattern {
        /// The path as given.
        path: PathBuf,
        /// The percent sign with what follows.
        found: String,
    },
    /// The path names a directory.
    #[error("{}: this is a directory; name a file in it", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The path ends in a slash or in dots, but there is no such directory either.
    #[error("{}: does not name a file", path.display())]
    NoFile {
        /// The path as given.
        path: PathBuf,
    },
    /// Another user may have put it there, to choose what is overwritten, or to read along.
    #[error(
        "{}: this {what} belongs to another user (uid {owner}), who could use it to choose which file heaptrace \
         writes; remove it, or choose another name",
        path.display()
    )]
    Planted {
        /// The link, pipe or device.
        path: PathBuf,
        /// Which of them it is.
        what: &'static str,
        /// Whom it belongs to.
        owner: u32,
    },
    /// Sockets can't be opened.
    #[error("{}: this is a socket, which can't be written like a file; name a file or a pipe", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
    },
    /// A pipe or device, whose name says no format.
    #[error("{}: the name of a pipe or device does not end in a format; choose one with --format: {}", path.display(), crate::export::format::names())]
    DirectFormat {
        /// The path as given.
        path: PathBuf,
    },
    /// No file can be created there.
    #[error("{}: can't create a file in this directory: {source}{hint}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
        /// What else to say, behind the reason.
        hint: &'static str,
    },
    /// The file is there but must not be written.
    #[error("{}: {source}", path.display())]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A name that would be the same for every process of a series.
    #[error(
        "{}: each process writes a file of its own here: put %p (process id) or %i (number in the series) in the name",
        path.display()
    )]
    SameForEach {
        /// The path as given.
        path: PathBuf,
    },
    /// A name that would be the same for every snapshot.
    #[error("{}: each snapshot is a file of its own here: put {needs} in the name (%i: its number, %p: process id)", path.display())]
    SameForEachSnapshot {
        /// The path as given.
        path: PathBuf,
        /// The patterns that it has to have.
        needs: &'static str,
    },
    /// A name that would be the same for the parts of every process.
    #[error("{}: each process writes parts of its own here: put %p in the name, too, as in 'heap.%p.%i.pb.gz'", path.display())]
    SameForEachSeries {
        /// The path as given.
        path: PathBuf,
    },
    /// Two outputs are one file.
    #[error("{}: named twice as an output", path.display())]
    Duplicate {
        /// The second path.
        path: PathBuf,
    },
    /// Writing failed.
    #[error("{source}")]
    Write {
        /// Why.
        #[from]
        source: io::Error,
    },
}
