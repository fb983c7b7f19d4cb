//! report.json, version 2: everything for scripts. `docs/report.schema.json` is its contract.
//!
//! The fields stand in the order of the contract. Those that only `check` knows are null or empty in other reports. Version 1
//! had whole frames in each stack.

mod frames;
mod judged;

use super::escape::Json;
use super::view::{StackTotals, View, weight};
use crate::profile::{Amount, Exit, Histograms, Mode, ProcessRow, Resident, Totals};
use crate::unwinder::Quality;
use flate2::Compression;
use flate2::write::GzEncoder;
use frames::{FrameTable, ReportFrame, ReportStack};
use judged::{ReportBudget, ReportFinding, ReportLeaks, ReportSuppression, ReportVerdict};
use serde::{Serialize, Serializer};
use std::cmp::Reverse;
use std::io::{self, Write};

/// The version of the format. `--baseline` reads this one and all before it.
const VERSION: u32 = 2;

/// Writes the report, on one line.
pub(crate) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let sites = sites(view);
    let mut table = FrameTable::new(view);
    let judged = judged::stacks(view.profile);
    sites.iter().map(|site| site.stack).chain(judged).for_each(|stack| table.enter(stack));
    serde_json::to_writer(Json(&mut *out), &report(view, &table, &sites))?;
    out.write_all(b"\n")
}

/// Writes the report compressed.
pub(crate) fn write_gz(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    // no time and no name in the header: equal profiles make equal files
    let mut gzip = GzEncoder::new(out, Compression::default());
    write(view, &mut gzip)?;
    gzip.finish()?;
    Ok(())
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    heaptrace_version: &'static str,
    mode: &'static str,
    part: u32,
    program: &'a str,
    pid: i32,
    command: &'a [String],
    cwd: String,
    started_at: String,
    duration_ns: u64,
    engine: &'a str,
    complete: bool,
    exit: Option<ReportExit>,
    verdict: Option<ReportVerdict<'a>>,
    totals: ReportTotals,
    resident: Option<ReportResident>,
    cost: ReportCost,
    anomalies: ReportAnomalies,
    sampling: Sampling,
    allocators: Vec<Allocator<'a>>,
    modules: Vec<Module<'a>>,
    images: Vec<Image<'a>>,
    children: Children<'a>,
    processes: Vec<ReportProcess<'a>>,
    timeline: Vec<Point>,
    histograms: ReportHistograms<'a>,
    frames: &'a [ReportFrame<'a>],
    sites: Sites<'a>,
    leaks: Option<ReportLeaks>,
    findings: Vec<ReportFinding<'a>>,
    suppressions: Vec<ReportSuppression<'a>>,
    budgets: Vec<ReportBudget>,
    warnings: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum ReportExit {
    Code(i32),
    Signal(i32),
}

#[derive(Serialize)]
struct ReportTotals {
    allocations: u64,
    frees: u64,
    reallocations: u64,
    bytes_allocated: u64,
    bytes_freed: u64,
    live_blocks: u64,
    live_bytes: u64,
    peak_blocks: u64,
    peak_bytes: u64,
    peak_at_ns: u64,
    temporary: u64,
    failed: u64,
    preexisting_frees: u64,
}

#[derive(Serialize)]
struct ReportResident {
    peak_bytes: u64,
    explained_permille: Option<u64>,
}

#[derive(Serialize)]
struct ReportCost {
    wall_ns: u64,
    waited_ns: Option<u64>,
    stopped_ns: u64,
    stopped_max_ns: u64,
    events: u64,
    stops: u64,
}

#[derive(Serialize)]
struct ReportAnomalies {
    lost: u64,
    truncated_stacks: u64,
    guessed_stacks: u64,
    unknown_frees: u64,
    double_frees: u64,
    mismatched_frees: u64,
    /// The key is older than the word.
    #[serde(rename = "dropped_frames")]
    abandoned_calls: u64,
}

#[derive(Serialize)]
struct Sampling {
    interval: u64,
    standard_error: u64,
}

#[derive(Serialize)]
struct Allocator<'a> {
    module: String,
    build_id: Option<&'a str>,
    functions: &'a [String],
}

#[derive(Serialize)]
struct Module<'a> {
    path: String,
    build_id: Option<&'a str>,
    start: String,
    end: String,
}

#[derive(Serialize)]
struct Image<'a> {
    pid: i32,
    program: &'a str,
    totals: ReportTotals,
    gone_with_exec: ReportAmount,
}

#[derive(Serialize)]
struct Children<'a> {
    followed: u64,
    untraced: u64,
    untraced_names: &'a [String],
}

#[derive(Serialize)]
struct ReportProcess<'a> {
    pid: i32,
    parent: Option<i32>,
    program: &'a str,
    exit: Option<ReportExit>,
    seen: &'static str,
    totals: ReportTotals,
    inherited: ReportAmount,
    inherited_at_peak: ReportAmount,
    resident: Option<ReportResident>,
    verdict: Option<ReportVerdict<'a>>,
}

#[derive(Serialize)]
struct Point {
    t_ns: u64,
    live_bytes: u64,
    allocations: u64,
}

#[derive(Serialize)]
struct ReportHistograms<'a> {
    size: &'a [u64],
    lifetime: &'a [u64],
}

#[derive(Serialize)]
struct ReportAmount {
    objects: u64,
    bytes: u64,
}

/// The sites, each made when it is written: there can be hundreds of thousands.
struct Sites<'a> {
    table: &'a FrameTable<'a>,
    sites: &'a [StackTotals],
}

impl Serialize for Sites<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.sites.iter().map(|site| report_site(self.table, site)))
    }
}

#[derive(Serialize)]
struct ReportSite<'a> {
    id: String,
    stack: ReportStack<'a>,
    quality: &'static str,
    allocated: ReportAmount,
    freed: ReportAmount,
    live: ReportAmount,
    at_peak: ReportAmount,
    temporary: u64,
}

const fn report_exit(exit: Exit) -> ReportExit {
    match exit {
        Exit::Code(code) => ReportExit::Code(code),
        Exit::Signal(signal) => ReportExit::Signal(signal),
    }
}

fn report_process(row: &ProcessRow) -> ReportProcess<'_> {
    ReportProcess {
        pid: row.pid,
        parent: row.parent,
        program: &row.program,
        exit: row.exit.map(report_exit),
        seen: row.seen.name(),
        totals: totals(&row.totals),
        inherited: amount(row.inherited),
        inherited_at_peak: amount(row.inherited_at_peak),
        resident: resident(row.resident, &row.totals),
        verdict: row.verdict.as_ref().map(judged::report_verdict),
    }
}

fn report<'a>(view: &'a View<'a>, table: &'a FrameTable<'a>, sites: &'a [StackTotals]) -> Report<'a> {
    let profile = view.profile;
    let meta = &profile.meta;
    let cost = profile.cost;
    let anomalies = profile.anomalies;
    Report {
        version: VERSION,
        heaptrace_version: env!("CARGO_PKG_VERSION"),
        mode: match meta.mode {
            Mode::Run => "run",
            Mode::Attach => "attach",
            Mode::Check => "check",
        },
        part: meta.part,
        program: &meta.process.program,
        pid: meta.process.pid,
        command: &meta.process.command,
        cwd: meta.process.cwd.to_string_lossy().into_owned(),
        started_at: humantime::format_rfc3339_millis(meta.process.started_at).to_string(),
        duration_ns: meta.duration_ns,
        engine: &meta.engine,
        complete: meta.complete,
        exit: meta.process.exit.map(report_exit),
        verdict: judged::verdict(profile),
        totals: totals(&profile.totals),
        resident: resident(meta.process.resident, &profile.totals),
        cost: ReportCost {
            wall_ns: cost.wall_ns,
            waited_ns: cost.waited_ns.map(|waited| waited.min(cost.wall_ns)),
            stopped_ns: cost.stopped_ns,
            stopped_max_ns: cost.stopped_max_ns,
            events: cost.events,
            stops: cost.stops,
        },
        anomalies: ReportAnomalies {
            lost: anomalies.lost,
            truncated_stacks: anomalies.truncated_stacks,
            guessed_stacks: anomalies.guessed_stacks,
            unknown_frees: anomalies.unknown_frees,
            double_frees: anomalies.double_frees,
            mismatched_frees: anomalies.mismatched_frees,
            abandoned_calls: anomalies.abandoned_calls,
        },
        sampling: Sampling { interval: meta.sample_interval, standard_error: standard_error(view) },
        allocators: allocators(view),
        modules: modules(view),
        images: images(view),
        children: Children {
            followed: profile.children.followed,
            untraced: profile.children.untraced,
            untraced_names: &profile.children.untraced_names,
        },
        processes: profile.processes.iter().map(report_process).collect(),
        timeline: profile
            .timeline
            .iter()
            .map(|point| Point { t_ns: point.t_ns, live_bytes: point.live_bytes, allocations: point.allocations })
            .collect(),
        histograms: histograms(&profile.histograms),
        frames: table.frames(),
        sites: Sites { table, sites },
        leaks: judged::leaks(profile),
        findings: judged::findings(table),
        suppressions: judged::suppressions(profile),
        budgets: judged::budgets(profile),
        warnings: &profile.warnings,
    }
}

fn resident(resident: Option<Resident>, totals: &Totals) -> Option<ReportResident> {
    resident.map(|resident| ReportResident {
        peak_bytes: resident.peak_bytes,
        explained_permille: resident.explained_permille(totals.peak_bytes),
    })
}

fn totals(totals: &Totals) -> ReportTotals {
    let Totals { allocations, frees, reallocations, bytes_allocated, bytes_freed, .. } = *totals;
    let Totals { live_blocks, live_bytes, peak_blocks, peak_bytes, peak_at_ns, .. } = *totals;
    let Totals { temporary, failed, preexisting_frees, .. } = *totals;
    ReportTotals {
        allocations,
        frees,
        reallocations,
        bytes_allocated,
        bytes_freed,
        live_blocks,
        live_bytes,
        peak_blocks,
        peak_bytes,
        peak_at_ns,
        temporary,
        failed,
        preexisting_frees,
    }
}

/// The standard error of the allocated bytes, in bytes; 0 for an exact profile. A block of size s that was caught with
/// probability p adds s²(1−p)/p² to the variance (Horvitz–Thompson).
fn standard_error(view: &View<'_>) -> u64 {
    let interval = view.profile.meta.sample_interval;
    let variance: f64 = view
        .profile
        .samples
        .iter()
        .map(|sample| {
            let weight = weight(sample.size, interval);
            let size = sample.size as f64;
            sample.allocated.objects as f64 * size * size * (weight - 1.0) * weight
        })
        .sum();
    variance.sqrt().round() as u64
}

fn allocators<'a>(view: &View<'a>) -> Vec<Allocator<'a>> {
    let allocators = view.profile.allocators.iter().map(|allocator| {
        let module = view.profile.modules.get(allocator.module);
        Allocator {
            module: module.map(|module| module.path.to_string_lossy().into_owned()).unwrap_or_default(),
            build_id: module.and_then(|module| module.build_id.as_deref()),
            functions: &allocator.functions,
        }
    });
    allocators.collect()
}

fn modules<'a>(view: &View<'a>) -> Vec<Module<'a>> {
    let modules = view.profile.modules.iter().map(|module| Module {
        path: module.path.to_string_lossy().into_owned(),
        build_id: module.build_id.as_deref(),
        start: module.start.to_string(),
        end: module.end.to_string(),
    });
    modules.collect()
}

fn images<'a>(view: &View<'a>) -> Vec<Image<'a>> {
    let images = view.profile.images.iter().map(|image| Image {
        pid: image.pid,
        program: &image.program,
        totals: totals(&image.totals),
        gone_with_exec: amount(image.gone_with_exec),
    });
    images.collect()
}

fn histograms(histograms: &Histograms) -> ReportHistograms<'_> {
    ReportHistograms { size: &histograms.size, lifetime: &histograms.lifetime }
}

/// The sites, those with most live bytes first, then by the peak, then by all allocated bytes.
fn sites(view: &View<'_>) -> Vec<StackTotals> {
    let mut sites = view.sites();
    sites.sort_by_key(|site| (Reverse((site.live.bytes, site.at_peak.bytes, site.allocated.bytes)), site.id));
    sites
}

fn report_site<'a>(table: &'a FrameTable<'a>, site: &StackTotals) -> ReportSite<'a> {
    ReportSite {
        id: format!("{:016x}", site.id),
        stack: ReportStack::new(table, Some(site.stack)),
        quality: match site.quality {
            Quality::Complete => "complete",
            Quality::Guessed => "guessed",
            Quality::Truncated => "truncated",
        },
        allocated: amount(site.allocated),
        freed: amount(site.freed),
        live: amount(site.live),
        at_peak: amount(site.at_peak),
        temporary: site.temporary,
    }
}

fn amount(amount: Amount) -> ReportAmount {
    ReportAmount { objects: amount.objects, bytes: amount.bytes }
}
