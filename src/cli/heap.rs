//! `heaptrace heap`.

use super::core::{CoreArguments, CoreTarget};
use super::values::{self, PidOrFile};
use super::{AttachTarget, Refusal, When};
use clap::Args;
use std::path::{Path, PathBuf};

/// What a file of `heaptrace heap` holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeapFormat {
    /// What Chrome's developer tools open.
    Snapshot,
    /// The answer of `--json`.
    Json,
    /// The answer in words.
    Text,
    /// The same in short, for a ticket.
    Markdown,
    /// Blocks by type and holder, for `go tool pprof`.
    PprofGz,
    /// All of it, to be looked at later.
    Heap,
}

impl HeapFormat {
    /// By the ending of a file's name.
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "gz" if path.file_name()?.to_str()?.ends_with(".pb.gz") => Some(Self::PprofGz),
            "md" => Some(Self::Markdown),
            "heap" => Some(Self::Heap),
            "heapsnapshot" => Some(Self::Snapshot),
            "json" => Some(Self::Json),
            "txt" => Some(Self::Text),
            _ => None,
        }
    }
}

/// What is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeapTarget {
    /// A process.
    Process(AttachTarget),
    /// What `--save` has written, or a core.
    File(PathBuf),
    /// What a core has kept.
    Core(CoreTarget),
}

const NO_TARGET: &str = "heap needs a process id, --by-name NAME, a file, or --core CORE\n";

/// Options of `heaptrace heap`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapOptions {
    /// The process, or the file.
    pub target: HeapTarget,
    /// Whether it runs on while it is looked at.
    pub run_on: bool,
    /// Whether it is to call `malloc_trim(0)`.
    pub trim: bool,
    /// Answer with JSON.
    pub json: bool,
    /// The variable or the block whose tree to show.
    pub of: Option<String>,
    /// Whether to leave out what equal texts begin with.
    pub no_text: bool,
    /// Whether debug information is read.
    pub types: bool,
    /// Files to write besides, by their names' endings.
    pub outputs: Vec<(PathBuf, HeapFormat)>,
    /// Whether to colour the answer.
    pub color: When,
}

/// Show what fills the memory of a process that heaptrace has not traced
///
/// Walks the allocator's own structures (glibc's malloc, musl's, mimalloc's, jemalloc's) and the kernel's tables of
/// pages: live blocks, what was freed and still takes memory, what malloc_trim(0) would give back, the program's own
/// mappings, stacks, files. The process needs no preparation. It stands still for a moment; the answer says how long.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace heap [OPTIONS] PID\n       heaptrace heap [OPTIONS] --by-name NAME\n       heaptrace heap [OPTIONS] FILE.heap\n       heaptrace heap [OPTIONS] --core CORE [PROGRAM]",
    group = clap::ArgGroup::new("heap_target").required(true).multiple(true).args(["what", "by_name", "core"]),
    after_long_help = "\
Examples:
  heaptrace heap 1234
      Where the resident memory of process 1234 went, and what would give it back.
  heaptrace heap --by-name redis-server --no-stop
      The same while it runs on.
  heaptrace heap 1234 --trim
      The same, then malloc_trim(0) in process 1234 and what that gave back.
  heaptrace heap 1234 --of g_cache
      What hangs on the variable g_cache.
  heaptrace heap 1234 -o before.heapsnapshot
      A file for Chrome: developer tools, Memory, Load.
  heaptrace heap 1234 --save a.heap
      All that was found, to look at later and elsewhere: `heaptrace heap a.heap`, `heaptrace diff a.heap b.heap`.
  heaptrace heap --core core.1234 ./app
      The same of a core file, which the kernel or gdb's gcore has written of ./app."
)]
pub(super) struct HeapArguments {
    /// Process id, or a file that --save has written (one with a number for a name as ./NAME); with --core, the program
    #[arg(value_name = "PID|FILE", conflicts_with = "by_name", value_parser = values::pid_or_file)]
    what: Option<PidOrFile>,

    /// The only process whose executable or argv[0] has this basename
    #[arg(long, value_name = "NAME")]
    by_name: Option<String>,

    #[command(flatten)]
    core: CoreArguments,

    /// Let the process run on meanwhile: what it changes then may be reported wrongly
    #[arg(long, conflicts_with = "core")]
    no_stop: bool,

    /// Have the process call malloc_trim(0), and report what that gave back
    ///
    /// A sleeping thread of the process makes the call, while no thread holds a lock of malloc. If there is no such
    /// moment, heaptrace says so and calls nothing: then try again.
    #[arg(long, conflicts_with_all = ["no_stop", "core"])]
    trim: bool,

    /// Print JSON instead of text; docs/heap.md describes it
    #[arg(long)]
    json: bool,

    /// Show what one variable, or the block at an address, retains, as a tree
    ///
    /// Name a variable as its module's symbols do, without arguments; give an address in hex, 0x first, anywhere in the
    /// block.
    #[arg(long, value_name = "SYMBOL|ADDRESS", conflicts_with_all = ["json", "trim"])]
    of: Option<String>,

    /// Keep all that was found in a file: `heaptrace heap FILE` reads it, `heaptrace diff` compares two
    ///
    /// The file holds addresses, sizes, types, pointers and holders; of the blocks' contents, only the beginnings of
    /// equal texts that the report shows.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Show and save no text from the process's memory: leave out the beginnings of equal texts
    #[arg(long)]
    no_text: bool,

    /// Do not read types and names of members from the debug information of the program and its libraries
    ///
    /// heaptrace follows types along pointers, from variables and from blocks whose types are known. It reads debug
    /// information before the process stands still, which takes about a second for each 100 MB, and follows the
    /// pointers in the copy of the process, or, if there is none, while the process stands still.
    #[arg(long)]
    no_types: bool,

    /// Write a file as well, by its ending: .heapsnapshot (Chrome's developer tools, Memory), .pb.gz (`go tool pprof`),
    /// .md, .json, .txt, .heap (as --save)
    ///
    /// May be given several times.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

pub(super) fn resolve(arguments: HeapArguments) -> Result<HeapOptions, Refusal> {
    let target = match (arguments.what, arguments.by_name) {
        (what, _) if arguments.core.is_named() => {
            let core = arguments.core.target(what.map(PidOrFile::into_path));
            core.map(HeapTarget::Core).ok_or_else(|| Refusal::Usage(NO_TARGET.to_owned()))?
        }
        (Some(PidOrFile::File(path)), _) if arguments.no_stop || arguments.trim => {
            let text =
                format!("{}: --no-stop and --trim are for processes; name a process by its id\n", path.display());
            return Err(Refusal::Usage(text));
        }
        (Some(PidOrFile::File(path)), _) => HeapTarget::File(path),
        (Some(PidOrFile::Pid(pid)), _) => HeapTarget::Process(AttachTarget::Pid(pid)),
        (None, Some(name)) => HeapTarget::Process(AttachTarget::Name(name)),
        (None, None) => return Err(Refusal::Usage(NO_TARGET.to_owned())),
    };
    let mut outputs: Vec<_> = arguments.save.into_iter().map(|path| (path, HeapFormat::Heap)).collect();
    for path in arguments.output {
        let Some(format) = HeapFormat::of(&path) else {
            let text = format!("{}: heap writes .heapsnapshot, .pb.gz, .md, .json, .txt and .heap\n", path.display());
            return Err(Refusal::Usage(text));
        };
        outputs.push((path, format));
    }
    Ok(HeapOptions {
        target,
        run_on: arguments.no_stop,
        trim: arguments.trim,
        json: arguments.json,
        of: arguments.of,
        no_text: arguments.no_text,
        types: !arguments.no_types,
        outputs,
        color: arguments.color,
    })
}
