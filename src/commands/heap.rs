//! `heaptrace heap`: looks at the memory of a process that nobody has traced.

use super::attach::{find, refused};
use super::{print, use_color};
use crate::cli::HeapOptions;
use crate::export::escape::lines;
use crate::export::heap::{HeapReport, json, text};
use crate::export::text::Paint;
use crate::inspect::{self, Meanwhile};
use crate::tracer::procfs;
use anyhow::{Context, bail};
use std::io;

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
        walk: seen.walk.as_ref(),
        census: &seen.census,
        trim: seen.trim.as_ref(),
        trimmed,
        resident: seen.resident,
    };
    if options.json {
        print(&json(&report))?;
        return Ok(0);
    }
    let color = use_color(options.color, &io::stdout());
    print(&lines(&text(&report, Paint { color }), color))?;
    Ok(0)
}
