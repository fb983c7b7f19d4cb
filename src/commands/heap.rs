//! `heaptrace heap`: looks at the memory of a process that nobody has traced.

use super::attach::{find, refused};
use super::{owners, print, use_color};
use crate::addr::Addr;
use crate::cli::{HeapFormat, HeapOptions};
use crate::export::escape::lines;
use crate::export::heap::{HeapReport, json, snapshot, text, tree};
use crate::export::output::write_file;
use crate::export::text::Paint;
use crate::heapgraph::Held;
use crate::inspect::{self, Meanwhile};
use crate::tracer::procfs;
use anyhow::{Context, bail};
use std::io;
use std::path::Path;

/// Looks, and prints what is there. The exit status is 0 whatever that is.
///
/// # Errors
/// If the process can't be traced, or its memory can't be read.
pub fn execute(options: &HeapOptions) -> anyhow::Result<u8> {
    let pid = find(&options.target)?;
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
    let seen = inspect::inspect(pid, meanwhile).map_err(|error| refused(error, pid))?;
    let trimmed =
        seen.trimmed.transpose().with_context(|| format!("malloc_trim(0) was not called in process {pid}"))?;
    let report = HeapReport {
        pid,
        program: &seen.program,
        threads: seen.threads,
        stood_ns: seen.stood.map(|stood| u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX)),
        copied: seen.copied,
        in_motion: seen.in_motion,
        walk: seen.walk.as_ref(),
        held: seen.held.as_ref(),
        census: &seen.census,
        trim: seen.trim.as_ref(),
        trimmed,
        resident: seen.resident,
    };
    for (path, format) in &options.outputs {
        write(path, *format, &report)?;
    }
    if options.json {
        print(&json(&report))?;
        return Ok(0);
    }
    let color = use_color(options.color, &io::stdout());
    if let Some(wanted) = &options.of {
        let held = report.held.context("its allocator can't be walked: what holds its blocks is not known")?;
        for node in nodes(held, wanted)? {
            print(&lines(&tree(held, node, Paint { color }), color))?;
        }
        return Ok(0);
    }
    print(&lines(&text(&report, Paint { color }), color))?;
    Ok(0)
}

fn write(path: &Path, format: HeapFormat, report: &HeapReport<'_>) -> anyhow::Result<()> {
    let another = procfs::users(report.pid).iter().any(|&user| user != procfs::effective_user());
    write_file(path, owners(), another, |out| match format {
        HeapFormat::Snapshot => match report.held {
            Some(held) => snapshot::write(held, out),
            None => Err(io::Error::other("its allocator can't be walked: there are no blocks to write")),
        },
        HeapFormat::Json => out.write_all(json(report).as_bytes()),
        HeapFormat::Text => out.write_all(lines(&text(report, Paint { color: false }), false).as_bytes()),
    })?;
    Ok(())
}

/// What the user means: the block at an address, or the variables of a name.
fn nodes(held: &Held, wanted: &str) -> anyhow::Result<Vec<usize>> {
    let holdings = &held.holdings;
    if let Some(digits) = wanted.strip_prefix("0x") {
        let addr = u64::from_str_radix(digits, 16).with_context(|| format!("{wanted} is no address"))?;
        let (block, _) = holdings.graph.find(Addr(addr)).with_context(|| format!("no live block is at {wanted}"))?;
        return Ok(vec![block as usize]);
    }
    let quoted = format!("`{wanted}`");
    let named = holdings.holders.iter().enumerate().filter(|(_, holder)| holder.name.contains(&quoted));
    let found: Vec<usize> = named.map(|(number, _)| holdings.node_of(number)).collect();
    if found.is_empty() {
        bail!("no variable {wanted} with a pointer to a block was found");
    }
    Ok(found)
}
