//! `heaptrace heap`: looks at the memory of a process that nobody has traced, or at what was kept of one.

use super::attach::{find, refused};
use super::saved::memory_limits;
use super::{owners, print, tell, use_color};
use crate::base::addr::Addr;
use crate::cli::{AttachTarget, CoreTarget, HeapFormat, HeapOptions, HeapTarget};
use crate::export::escape::lines;
use crate::export::heap::{HeapReport, json, markdown_report, pprof, snapshot, text, tree};
use crate::export::output::write_file;
use crate::export::text::Paint;
use crate::heap::file::{self, Identity, OfCore, SavedHeap};
use crate::heap::graph::Held;
use crate::image::corefile::begins_as_core;
use crate::inspect::core::{Core, CoreFiles};
use crate::inspect::{self, Inspection, Meanwhile};
use crate::tracer::procfs;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Looks, and prints what is there. The exit status is 0 whatever that is.
///
/// # Errors
/// If the process can't be traced, or its memory can't be read; if a file can't be read, or is none of ours.
pub fn execute(options: &HeapOptions) -> anyhow::Result<u8> {
    let mut heap = match &options.target {
        HeapTarget::Process(target) => look(target, options)?,
        HeapTarget::Core(target) => look_in_core(target, options)?,
        HeapTarget::File(path) if is_core(path) => {
            look_in_core(&CoreTarget { core: path.clone(), program: None, sysroot: None }, options)?
        }
        HeapTarget::File(path) if !options.types => {
            bail!(
                "{}: --no-types is for processes and cores; this file keeps the types that it was saved with",
                path.display()
            )
        }
        HeapTarget::File(path) => load(path, 1)?,
    };
    if options.no_text
        && let Some(held) = &mut heap.held
    {
        held.samples.fill(None);
    }
    for (path, format) in &options.outputs {
        write(path, *format, &heap)?;
    }
    let report = HeapReport::from(&heap);
    if options.json {
        print(&json(&report))?;
        return Ok(0);
    }
    let color = use_color(options.color, &io::stdout());
    if let Some(wanted) = &options.of {
        let held = report.held.context("its allocator can't be walked: the holders of its blocks are unknown")?;
        for node in nodes(held, wanted)? {
            print(&lines(&tree(held, node, Paint { color }), color))?;
        }
        return Ok(0);
    }
    print(&lines(&text(&report, Paint { color }), color))?;
    Ok(0)
}

/// Looks at a process.
fn look(target: &AttachTarget, options: &HeapOptions) -> anyhow::Result<SavedHeap> {
    let pid = find(target)?;
    if let Ok(Some(process)) = procfs::thread_group(pid)
        && process != pid
    {
        bail!("{pid} is a thread of process {process}: heaptrace heap {process}");
    }
    let meanwhile = match options {
        HeapOptions { run_on: true, .. } => Meanwhile::RunOn,
        HeapOptions { trim: true, .. } => Meanwhile::Trim,
        _ => Meanwhile::StandStill,
    };
    let identity = inspect::identity(pid);
    let mut seen = inspect::inspect(pid, meanwhile, options.types).map_err(|error| refused(error, pid))?;
    let trimmed =
        seen.trimmed.take().transpose().with_context(|| format!("malloc_trim(0) was not called in process {pid}"))?;
    Ok(SavedHeap { identity, ..saved(seen, trimmed) })
}

/// What was seen, of nobody known.
fn saved(seen: Inspection, trimmed: Option<u64>) -> SavedHeap {
    for warning in &seen.warnings {
        tell(warning);
    }
    SavedHeap { trimmed, ..seen.into() }
}

/// Looks at a core.
fn look_in_core(target: &CoreTarget, options: &HeapOptions) -> anyhow::Result<SavedHeap> {
    let core = open_core(target)?;
    let seen = inspect::in_core(&core, options.types);
    let modified = std::fs::metadata(&target.core).and_then(|metadata| metadata.modified()).ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let identity =
        Identity { pid: core.file.pid, taken_ns: u64::try_from(since.as_nanos()).unwrap_or(0), ..Identity::default() };
    Ok(SavedHeap {
        identity,
        core: Some(OfCore { stored: core.stored(), missing: core.file.missing }),
        ..saved(seen, None)
    })
}

/// Opens a core, and says what is missing.
///
/// # Errors
/// It can't be read, or is of another program than the user says.
pub(super) fn open_core(target: &CoreTarget) -> anyhow::Result<Arc<Core>> {
    let files = CoreFiles { program: target.program.as_deref(), sysroot: target.sysroot.as_deref() };
    let core = Core::open(&target.core, &files)?;
    for warning in &core.warnings {
        tell(warning);
    }
    Ok(Arc::new(core))
}

/// Whether a file is a core.
fn is_core(path: &Path) -> bool {
    let mut start = Vec::new();
    // opening a pipe would wait for who writes to it
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && File::open(path).and_then(|file| file.take(64).read_to_end(&mut start)).is_ok()
        && begins_as_core(&start)
}

/// Whether a file is one that `--save` has written.
pub(super) fn is_saved(path: &Path) -> bool {
    // opening a pipe would wait for who writes to it
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && File::open(path).and_then(file::begins).is_ok_and(|begins| begins)
}

/// Reads what `--save` has written; so many files share the memory that is free.
///
/// # Errors
/// It can't be read, or is none of these: the error names it.
pub(super) fn load(path: &Path, shares: u64) -> anyhow::Result<SavedHeap> {
    let name = path.display();
    let file = File::open(path)
        .with_context(|| format!("{name}: can't be read; name a process by its id, or by --by-name NAME"))?;
    file::read(BufReader::new(file), memory_limits(shares).memory).with_context(|| name.to_string())
}

fn write(path: &Path, format: HeapFormat, heap: &SavedHeap) -> anyhow::Result<()> {
    let report = HeapReport::from(heap);
    let held = || {
        let held = heap.held.as_ref();
        held.ok_or_else(|| io::Error::other("its allocator can't be walked: there are no blocks to write"))
    };
    write_file(path, owners(), heap.identity.another_user, |out| match format {
        HeapFormat::Snapshot => snapshot::write(held()?, out),
        HeapFormat::PprofGz => pprof::write(held()?, heap.identity.taken_ns, out),
        HeapFormat::Heap => file::write(heap, out),
        HeapFormat::Json => out.write_all(json(&report).as_bytes()),
        HeapFormat::Markdown => out.write_all(markdown_report(&report).as_bytes()),
        HeapFormat::Text => out.write_all(lines(&text(&report, Paint { color: false }), false).as_bytes()),
    })?;
    Ok(())
}

/// What the user means: the block at an address, or the variables of a name.
fn nodes(held: &Held, wanted: &str) -> anyhow::Result<Vec<usize>> {
    let holdings = &held.holdings;
    if let Some(digits) = wanted.strip_prefix("0x") {
        let addr = u64::from_str_radix(digits, 16).with_context(|| format!("{wanted} is not an address"))?;
        let (block, _) =
            holdings.graph.find(Addr(addr)).with_context(|| format!("there is no live block at {wanted}"))?;
        return Ok(vec![block as usize]);
    }
    let quoted = format!("`{wanted}`");
    let named = holdings.holders.iter().enumerate().filter(|(_, holder)| holder.name.contains(&quoted));
    let found: Vec<usize> = named.map(|(number, _)| holdings.node_of(number)).collect();
    if found.is_empty() {
        bail!("no variable {wanted} has a pointer to a block");
    }
    Ok(found)
}
