//! What the format has no records for, as it stands in the blobs of a trace: JSON, and tables of stacks. No file, no
//! handle: what a reader gets is what stands here.
//!
//! Fields that a later version adds have defaults, so that it reads what this one writes; unknown fields are ignored.

use super::TraceMode;
use crate::profile::{Exit, Resident, RunFacts, SymbolStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// `heaptrace.session`, the first blob of each segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Session {
    /// [`super::FORMAT`] of the heaptrace that wrote it.
    pub format: u32,
    /// The version of that heaptrace.
    pub heaptrace: String,
    /// A random id, 16 hex digits: the same in the profiles of the session.
    pub session: String,
    /// When the session began, its clock's zero, in nanoseconds since 1970.
    pub started_at_unix_ns: u64,
    /// What becomes of the trace when it grows.
    pub trace_mode: TraceMode,
    /// The number of the segment, from 0 on. If the first one of a file is not 0, older ones have been overwritten.
    pub segment: u64,
    /// Whether the first process ran before it was traced.
    pub attached: bool,
    /// What was asked for: `trap`, `jump`, or `auto`.
    pub engine: String,
}

/// One entry of `heaptrace.functions`: an allocator function that events can be about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Function {
    /// Its number in packed calls.
    pub id: u16,
    /// For people.
    pub name: String,
    /// As in the symbol table, or as the user has declared it.
    pub symbol: String,
}

/// `heaptrace.process`: when a process begins, after each exec, and at the beginning of each segment that it lives in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// See [`super::process_koid`].
    pub koid: u64,
    /// Its id in heaptrace's namespace.
    pub pid: i32,
    /// The process that made it, if others are followed.
    pub parent: Option<i32>,
    /// Its image at this place of the trace.
    pub image: u32,
    /// The place in its stream of its next event in the trace.
    pub next_seq: u64,
    /// Whether frees come with their stacks.
    pub free_stacks: bool,
    /// One byte in so many is sampled; 0: all blocks are recorded.
    #[serde(default)]
    pub sample_interval: u64,
    /// The name of the program that it executes.
    pub program: String,
    /// Its command line.
    pub command: Vec<String>,
    /// The working directory that it began with.
    pub cwd: FilePath,
}

/// `heaptrace.module`: an object file in a process's memory, told when it is loaded, and again in [`End::modules`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Module {
    /// The process, see [`super::process_koid`].
    pub process: u64,
    /// In which of its images.
    pub image: u32,
    /// Its id: unique in a session, but a forked child has its parent's modules under the same ids.
    pub id: u32,
    /// The path as the process sees it, or `[vdso]`.
    pub path: FilePath,
    /// The build id, lower-case hex.
    pub build_id: Option<String>,
    /// First address of the executable segment.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// The file's offset that `start` maps.
    pub file_offset: u64,
    /// What is added to the object file's addresses (wrapping).
    pub bias: u64,
    /// Whether it is the main program.
    pub is_program: bool,
    /// The allocator functions probed in it, by [`Function::id`].
    #[serde(default)]
    pub probed: Vec<u16>,
}

/// `heaptrace.profile`: the profile of a process is of this moment, that of its leak scan; later events do not count
/// for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProfileEnd {
    /// See [`super::process_koid`].
    pub koid: u64,
    /// The place in its stream of the first event that does not count.
    pub seq: u64,
}

/// `heaptrace.end`: what is known of a process at its end and its events do not give. The last one of a process counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    /// See [`super::process_koid`].
    pub koid: u64,
    /// How many events its stream has had.
    pub next_seq: u64,
    /// Its id, in heaptrace's namespace.
    pub pid: i32,
    /// The id that it has in its own pid namespace, if that is another one.
    pub pid_inside: Option<i32>,
    /// What is known of its run.
    #[serde(flatten)]
    pub facts: RunFacts,
    /// The name of the last image's program.
    pub program: String,
    /// The last image's command line.
    pub command: Vec<String>,
    /// The working directory that it began with.
    pub cwd: FilePath,
    /// When its tracing began, in nanoseconds since 1970.
    pub started_at_unix_ns: u64,
    /// Whether it belonged to another user than heaptrace's.
    pub of_another_user: bool,
    /// How it ended; None if it lives on.
    pub exit: Option<Exit>,
    /// The most that the last image had resident.
    pub resident: Option<Resident>,
    /// Whether its sites that came over a fork are left out of its profile.
    pub without_inherited: bool,
    /// Names of threads, by their serial numbers.
    pub thread_names: BTreeMap<u32, String>,
    /// All modules of its last image, also those unloaded since.
    pub modules: Vec<Module>,
    /// Why, if the tracing ended in the middle.
    pub broken_off: Option<String>,
    /// Whether a leak scan was made, whose results are not in the trace.
    pub leak_scan: bool,
    /// See [`ProfileEnd::seq`]; None: all events count.
    #[serde(default)]
    pub profile_seq: Option<u64>,
}

/// `heaptrace.names`, the last blob: the names of the addresses in the stacks of the processes' last images.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Names {
    /// By module.
    pub modules: Vec<ModuleNames>,
    /// What went wrong while they were looked up.
    pub warnings: Vec<String>,
}

/// The names of addresses of one module, wherever it was loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ModuleNames {
    /// The path as the process saw it; empty for code without a module, by its address in the process.
    pub path: FilePath,
    /// The build id, lower-case hex.
    pub build_id: Option<String>,
    /// What kinds of information were found.
    pub status: SymbolStatus,
    /// The package that would bring what is missing.
    pub package: Option<String>,
    /// Functions, to which frames refer.
    pub functions: Vec<FunctionName>,
    /// Source files, to which frames refer.
    pub files: Vec<String>,
    /// The frames of each look-up address of the object file (a return address less one): innermost first, all but the
    /// last are inlined. Empty if nothing is known.
    pub frames: BTreeMap<u64, Vec<NamedFrame>>,
}

/// A function's name.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FunctionName {
    /// For people.
    pub name: String,
    /// As in the symbol table.
    pub system_name: String,
}

/// One function at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamedFrame {
    /// Index into [`ModuleNames::functions`].
    pub function: Option<u32>,
    /// Index into [`ModuleNames::files`].
    pub file: Option<u32>,
    /// The line; 0 if unknown.
    pub line: u32,
    /// The line of the function's declaration; 0 if unknown.
    pub start_line: u32,
}

/// A path, which need not be text: as JSON a string if it is, else a list of bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FilePath {
    /// It is UTF-8.
    Text(String),
    /// It is not.
    Bytes(Vec<u8>),
}

impl Default for FilePath {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }
}

impl From<FilePath> for PathBuf {
    fn from(path: FilePath) -> Self {
        match path {
            FilePath::Text(text) => text.into(),
            FilePath::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// The bytes of a node in `heaptrace.stacks`: its id, its parent's, address and flags (see
/// [`crate::unwinder::StackNode::word`]), its module, and four that are 0. The blob begins with the image and the
/// number of nodes, 4 bytes each.
pub const NODE_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_survive() {
        for bytes in [&b"/usr/lib/libc.so.6"[..], b"", b"/tmp/\xff\xfe", "/tmp/\u{fc}".as_bytes()] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let json = serde_json::to_string(&FilePath::from(path.as_path())).unwrap();
            let read: FilePath = serde_json::from_str(&json).unwrap();
            assert_eq!(PathBuf::from(read), path, "{json}");
        }
    }

    /// What a later version adds, this one ignores.
    #[test]
    fn unknown_fields_are_ignored() {
        let json = r#"{"id": 3, "name": "malloc", "symbol": "malloc", "colour": "red"}"#;
        let function: Function = serde_json::from_str(json).unwrap();
        assert_eq!((function.id, function.name.as_str()), (3, "malloc"));
    }
}
