//! `heaptrace leaks` for a process that nobody traces: looks from outside.

use super::attach::refused;
use super::heap::open_core;
use super::{print, tell as tell_warning, use_color};
use crate::cli::{CoreTarget, LeaksOptions};
use crate::export::escape::lines;
use crate::export::lost::{Explained, LostReport, json, text};
use crate::export::summary::SummaryOptions;
use crate::export::text::Paint;
use crate::heap::leaks::ScanOptions;
use crate::inspect::lost::{self, LostBlocks};
use crate::profile::build::root_name;
use crate::tracer::root::TargetRoot;
use anyhow::bail;
use std::io;
use std::path::PathBuf;

/// Looks, and prints what is lost.
///
/// # Errors
/// If the process can't be traced, its memory can't be read, or its allocator can't be walked.
pub(super) fn tell_lost(pid: i32, options: &LeaksOptions, color: bool) -> anyhow::Result<u8> {
    if options.increased {
        bail!(
            "no heaptrace traces process {pid}, so --increased has no earlier scan to compare with: heaptrace attach \
             {pid} traces it"
        );
    }
    let root = TargetRoot::of(pid);
    let Some(lost) = lost::lost(pid, &ScanOptions::default()).map_err(|error| refused(error, pid))? else {
        bail!(
            "no heaptrace traces process {pid}, and its allocator can't be walked (those of glibc, musl, mimalloc and \
             jemalloc can): `heaptrace attach {pid}` finds what is lost from then on"
        );
    };
    let folder = root.as_ref().map_or_else(|| PathBuf::from("/"), TargetRoot::path);
    tell(pid, &lost, folder, options, color)
}

/// The same of a core.
///
/// # Errors
/// If it can't be read, or the allocator can't be walked.
pub(super) fn tell_lost_in_core(target: &CoreTarget, options: &LeaksOptions) -> anyhow::Result<u8> {
    let core = open_core(target)?;
    let Some(lost) = lost::in_core(&core, &ScanOptions::default()) else {
        bail!(
            "{}: its allocator can't be walked (those of glibc, musl, mimalloc and jemalloc can), or the core lacks \
             its structures",
            target.core.display()
        );
    };
    tell(core.file.pid, &lost, PathBuf::from("/"), options, use_color(options.color, &io::stdout()))
}

/// Prints what is lost, with files of the process below `folder`.
fn tell(pid: i32, lost: &LostBlocks, folder: PathBuf, options: &LeaksOptions, color: bool) -> anyhow::Result<u8> {
    for warning in &lost.warnings {
        tell_warning(warning);
    }
    let way = options.explain.and_then(|addr| lost.scan.path_to(lost.scan.find(addr)?));
    let named = way.as_ref().map(|way| {
        let mut symbolizer = lost.symbolizer(&[], folder);
        root_name(way, &|tid| lost.threads.get(&tid).cloned(), &|id| lost.module(id), &mut symbolizer)
    });
    let report = LostReport {
        pid,
        program: &lost.program,
        stood_ns: lost.stood.map(|stood| u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX)),
        copied: lost.copied,
        scan: &lost.scan,
        findings: lost.findings,
        in_motion: lost.in_motion,
        explain: options.explain.map(|addr| Explained { addr, way: way.as_ref().zip(named.as_deref()) }),
        top: options.top.unwrap_or(SummaryOptions::default().top),
    };
    print(&if options.json { json(&report) } else { lines(&text(&report, Paint { color }), color) })?;
    Ok(0)
}
