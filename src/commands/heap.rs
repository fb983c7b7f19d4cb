//! `heaptrace heap`: looks at the memory of a process that nobody has traced.

use super::attach::{find, refused};
use super::{print, use_color};
use crate::cli::HeapOptions;
use crate::export::escape::lines;
use crate::export::heap::{HeapReport, json, text};
use crate::export::text::Paint;
use crate::inspect;
use crate::tracer::procfs;
use anyhow::bail;
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
    let seen = inspect::inspect(pid, options.run_on).map_err(|error| refused(error, pid))?;
    let report = HeapReport {
        pid,
        program: &seen.program,
        threads: seen.threads,
        stood_ns: seen.stood.map(|stood| u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX)),
        walk: seen.walk.as_ref(),
        census: &seen.census,
        trim: seen.trim.as_ref(),
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
