//! `heaptrace heap`.

use super::{AttachTarget, Refusal, When, values};
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
}

impl HeapFormat {
    /// By the ending of a file's name.
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "heapsnapshot" => Some(Self::Snapshot),
            "json" => Some(Self::Json),
            "txt" => Some(Self::Text),
            _ => None,
        }
    }
}

/// Options of `heaptrace heap`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapOptions {
    /// The process.
    pub target: AttachTarget,
    /// Whether it runs on while it is looked at.
    pub run_on: bool,
    /// Whether it is to call `malloc_trim(0)`.
    pub trim: bool,
    /// Answer with JSON.
    pub json: bool,
    /// The variable or the block whose tree is told.
    pub of: Option<String>,
    /// Files to write besides, by their names' endings.
    pub outputs: Vec<(PathBuf, HeapFormat)>,
    /// Whether to colour the answer.
    pub color: When,
}

/// Tell what the memory of a process is used for that was never traced
///
/// Walks the allocator's own structures (glibc's malloc, musl's, mimalloc's) and the kernel's tables of pages: live blocks, what was freed and still takes memory, what
/// malloc_trim(0) would give back, the program's own mappings, stacks, files. Nothing need have been installed in the process. It stands still for a
/// moment; the answer says how long.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace heap [OPTIONS] PID\n       heaptrace heap [OPTIONS] --by-name NAME",
    group = clap::ArgGroup::new("heap_target").required(true).multiple(false),
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
      A file for Chrome: developer tools, Memory, Load."
)]
pub(super) struct HeapArguments {
    /// Process id
    #[arg(value_name = "PID", group = "heap_target", value_parser = values::pid)]
    pid: Option<i32>,

    /// The only process whose executable, or whose own name for itself (argv[0]), has this basename
    #[arg(long, value_name = "NAME", group = "heap_target")]
    by_name: Option<String>,

    /// Let the process run on meanwhile: what it changes then may be told wrongly
    #[arg(long)]
    no_stop: bool,

    /// Have the process call malloc_trim(0), and tell what that gave back
    ///
    /// One of its threads that sleeps makes the call, while no thread holds a lock of malloc. Where there is no such moment, heaptrace says so and
    /// calls nothing: try again then.
    #[arg(long, conflicts_with = "no_stop")]
    trim: bool,

    /// Print JSON instead of text; docs/heap.md describes it
    #[arg(long)]
    json: bool,

    /// Tell what one variable, or the block at an address, retains, as a tree
    ///
    /// A variable by its name, as its module's symbols have it, without arguments; an address in hex, 0x first, anywhere in the block.
    #[arg(long, value_name = "SYMBOL|ADDRESS", conflicts_with_all = ["json", "trim"])]
    of: Option<String>,

    /// Write a file as well, by its ending: .heapsnapshot (Chrome's developer tools, Memory), .json, .txt
    ///
    /// May be given several times.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Colours: auto means on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::when())]
    color: When,
}

pub(super) fn resolve(arguments: HeapArguments) -> Result<HeapOptions, Refusal> {
    let target = match (arguments.pid, arguments.by_name) {
        (Some(pid), _) => AttachTarget::Pid(pid),
        (None, Some(name)) => AttachTarget::Name(name),
        (None, None) => return Err(Refusal::Usage("heap needs a process id or --by-name NAME\n".to_owned())),
    };
    let mut outputs = Vec::new();
    for path in arguments.output {
        let Some(format) = HeapFormat::of(&path) else {
            let text = format!("{}: heap writes .heapsnapshot, .json and .txt\n", path.display());
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
        outputs,
        color: arguments.color,
    })
}
