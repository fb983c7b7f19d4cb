//! report.json, version 3: everything for scripts. `docs/report.schema.json` is its contract.
//!
//! The fields stand in the order of the contract. Those that only `check` knows are null or empty in other reports.
//! Version 1 had whole frames in each stack.

pub(super) mod frames;
mod judged;
mod tests;

use super::escape::Json;
use super::gzip;
use super::sections;
use super::view::{StackTotals, TypeShare, View};
use crate::base::advice::Proof;
use crate::profile::mapped::Mapped;
use crate::profile::objects::ObjectType;
use crate::profile::{
    Amount, Anomalies, Capacity, Children, Exit, Histograms, Image, Mode, ProcessRow, PromotedAt, Resident, Seen,
    TimelinePoint, Totals,
};
use crate::unwinder::Quality;
use frames::{FrameTable, ReportFrame, ReportStack};
use judged::{ReportBudget, ReportFinding, ReportLeaks, ReportSuppression, ReportVerdict};
use serde::{Serialize, Serializer};
use std::cmp::Reverse;
use std::io::{self, Write};
use tests::ReportTests;

/// The version of the format. `--baseline` reads this one and all before it.
const VERSION: u32 = 3;

/// Writes the report, on one line.
pub(crate) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let sites = sites(view);
    let table = table(view, &sites);
    serde_json::to_writer(Json(&mut *out), &report(view, &table, &sites))?;
    out.write_all(b"\n")
}

/// All stacks that a report names, in a table that is the same as report.json's.
pub(super) fn frames<'a>(view: &'a View<'a>) -> FrameTable<'a> {
    table(view, &sites(view))
}

fn table<'a>(view: &'a View<'a>, sites: &[u32]) -> FrameTable<'a> {
    let mut table = FrameTable::new(view);
    let stacks = sites
        .iter()
        .filter_map(|at| view.sites().get(*at as usize))
        .map(|site| site.stack)
        .chain(judged::stacks(view.profile));
    stacks.for_each(|stack| table.enter(stack));
    table
}

/// The report without its sites and frames, for a format that has these in a form of its own; stacks are lists of
/// indices into `table`.
pub(super) fn head<'a>(view: &'a View<'a>, table: &'a FrameTable<'a>) -> impl Serialize + use<'a> {
    Report { frames: &[], ..report(view, table, &[]) }
}

/// Writes the report compressed.
pub(crate) fn write_gz(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::new();
    write(view, &mut text)?;
    gzip::write(&text, out)
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    heaptrace_version: &'static str,
    mode: Mode,
    part: u32,
    program: &'a str,
    pid: i32,
    command: &'a [String],
    cwd: String,
    started_at: String,
    duration_ns: u64,
    engine: &'a str,
    promotion: Option<PromotedAt>,
    complete: bool,
    exit: Option<Exit>,
    verdict: Option<ReportVerdict<'a>>,
    totals: &'a Totals,
    resident: Option<ReportResident>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mapped: Option<ReportMapped>,
    cost: ReportCost,
    anomalies: &'a Anomalies,
    sampling: Sampling,
    allocators: Vec<Allocator<'a>>,
    modules: Vec<Module<'a>>,
    images: &'a [Image],
    children: &'a Children,
    processes: Vec<ReportProcess<'a>>,
    timeline: &'a [TimelinePoint],
    histograms: &'a Histograms,
    frames: &'a [ReportFrame<'a>],
    sites: Sites<'a>,
    advice: Vec<ReportAdvice<'a>>,
    leaks: Option<ReportLeaks<'a>>,
    tests: Option<ReportTests<'a>>,
    findings: Vec<ReportFinding<'a>>,
    suppressions: Vec<ReportSuppression<'a>>,
    budgets: Vec<ReportBudget>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct ReportResident {
    peak_bytes: u64,
    explained_permille: Option<u64>,
}

#[derive(Serialize)]
struct ReportMapped {
    allocated: Amount,
    live: Amount,
    at_peak: Amount,
}

#[derive(Serialize)]
struct ReportCost {
    wall_ns: u64,
    waited_ns: Option<u64>,
    waited_range_ns: Option<(u64, u64)>,
    stopped_ns: u64,
    stopped_max_ns: u64,
    events: u64,
    events_without_stop: u64,
    recording_ns: u64,
    stops: u64,
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
struct ReportProcess<'a> {
    pid: i32,
    parent: Option<i32>,
    program: &'a str,
    exit: Option<Exit>,
    seen: Seen,
    totals: &'a Totals,
    inherited: Amount,
    inherited_at_peak: Amount,
    resident: Option<ReportResident>,
    verdict: Option<ReportVerdict<'a>>,
}

/// The sites, each made when it is written: there can be hundreds of thousands.
struct Sites<'a> {
    table: &'a FrameTable<'a>,
    view: &'a View<'a>,
    /// Indices into the view's.
    sites: &'a [u32],
}

impl Serialize for Sites<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sites = self.sites.iter().filter_map(|at| self.view.sites().get(*at as usize));
        serializer.collect_seq(sites.map(|site| report_site(self.view, self.table, &site)))
    }
}

#[derive(Serialize)]
struct ReportSite<'a> {
    id: String,
    stack: ReportStack<'a>,
    quality: &'static str,
    allocated: Amount,
    freed: Amount,
    live: Amount,
    at_peak: Amount,
    temporary: u64,
    r#type: Option<ReportType<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    types: Vec<ReportShare<'a>>,
    mean_lifetime_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<Capacity>,
}

#[derive(Serialize)]
struct ReportType<'a> {
    name: &'a str,
    certainty: &'static str,
}

impl<'a> From<&'a ObjectType> for ReportType<'a> {
    fn from(of: &'a ObjectType) -> Self {
        Self { name: &of.name, certainty: of.certainty.name() }
    }
}

/// What a site that makes objects of several types has of one.
#[derive(Serialize)]
struct ReportShare<'a> {
    #[serde(flatten)]
    of: ReportType<'a>,
    allocated: Amount,
    freed: Amount,
    live: Amount,
    at_peak: Amount,
}

/// What the program could do to allocate less.
#[derive(Serialize)]
struct ReportAdvice<'a> {
    #[serde(flatten)]
    proof: Proof,
    site: String,
    stack: ReportStack<'a>,
    text: String,
}

fn advice<'a>(view: &View<'a>, table: &'a FrameTable<'a>) -> Vec<ReportAdvice<'a>> {
    let told = super::advice::advice(view).into_iter().map(|advice| ReportAdvice {
        proof: advice.proof,
        site: format!("{:016x}", view.profile.site_id(advice.stack)),
        stack: ReportStack::new(table, Some(advice.stack)),
        text: advice.text,
    });
    told.collect()
}

fn report_process(row: &ProcessRow) -> ReportProcess<'_> {
    ReportProcess {
        pid: row.pid,
        parent: row.parent,
        program: &row.program,
        exit: row.exit,
        seen: row.seen,
        totals: &row.totals,
        inherited: row.inherited,
        inherited_at_peak: row.inherited_at_peak,
        resident: resident(row.resident, &row.totals),
        verdict: row.verdict.as_ref().map(judged::report_verdict),
    }
}

fn report<'a>(view: &'a View<'a>, table: &'a FrameTable<'a>, sites: &'a [u32]) -> Report<'a> {
    let profile = view.profile;
    let meta = &profile.meta;
    let cost = profile.cost;
    Report {
        version: VERSION,
        heaptrace_version: env!("CARGO_PKG_VERSION"),
        mode: meta.mode,
        part: meta.part,
        program: &meta.process.program,
        pid: meta.process.pid,
        command: &meta.process.command,
        cwd: meta.process.cwd.to_string_lossy().into_owned(),
        started_at: humantime::format_rfc3339_millis(meta.process.started_at).to_string(),
        duration_ns: meta.duration_ns,
        engine: &meta.engine,
        promotion: cost.promotion,
        complete: meta.complete,
        exit: meta.process.exit,
        verdict: judged::verdict(profile),
        totals: &profile.totals,
        resident: resident(meta.process.resident, &profile.totals),
        mapped: profile.mapped().map(|Mapped { allocated, live, at_peak }| ReportMapped { allocated, live, at_peak }),
        cost: ReportCost {
            wall_ns: cost.wall_ns,
            waited_ns: cost.waited_ns.map(|waited| waited.min(cost.wall_ns)),
            waited_range_ns: cost
                .waited_range_ns
                .map(|(least, most)| (least.min(cost.wall_ns), most.min(cost.wall_ns))),
            stopped_ns: cost.stopped_ns,
            stopped_max_ns: cost.stopped_max_ns,
            events: cost.events,
            events_without_stop: cost.events_without_stop,
            recording_ns: cost.recording_ns,
            stops: cost.stops,
        },
        anomalies: &profile.anomalies,
        sampling: Sampling { interval: meta.sample_interval, standard_error: profile.standard_error() },
        allocators: allocators(view),
        modules: modules(view),
        images: &profile.images,
        children: &profile.children,
        processes: profile.processes.iter().map(report_process).collect(),
        timeline: &profile.timeline,
        histograms: &profile.histograms,
        frames: table.frames(),
        sites: Sites { table, view, sites },
        advice: advice(view, table),
        leaks: judged::leaks(profile),
        tests: tests::tests(profile),
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

/// Indices of the sites, those with most live bytes first, then by the peak, then by all allocated bytes.
fn sites(view: &View<'_>) -> Vec<u32> {
    let key =
        |site: StackTotals| (Reverse([site.live.bytes, site.at_peak.bytes, site.allocated.bytes]), view.id_of(&site));
    let mut sites: Vec<_> = (0..).zip(view.sites()).map(|(at, site)| (key(site), at)).collect();
    sites.sort_unstable();
    sites.into_iter().map(|(_, at)| at).collect()
}

fn report_shares<'a>(view: &View<'a>, site: &StackTotals) -> Vec<ReportShare<'a>> {
    let share = |share: &TypeShare| {
        let TypeShare { stack, allocated, freed, live, at_peak } = *share;
        Some(ReportShare { of: view.object_type(stack)?.into(), allocated, freed, live, at_peak })
    };
    view.types_of_site(site).iter().filter_map(share).collect()
}

fn report_site<'a>(view: &View<'a>, table: &'a FrameTable<'a>, site: &StackTotals) -> ReportSite<'a> {
    ReportSite {
        id: format!("{:016x}", view.id_of(site)),
        stack: ReportStack::new(table, Some(site.stack)),
        quality: match site.quality {
            Quality::Complete => "complete",
            Quality::Guessed => "guessed",
            Quality::Truncated => "truncated",
        },
        allocated: site.allocated,
        freed: site.freed,
        live: site.live,
        at_peak: site.at_peak,
        temporary: site.temporary,
        r#type: view.type_of_site(site).map(ReportType::from),
        types: report_shares(view, site),
        mean_lifetime_ns: if sections::has_lifetimes(view.profile) { site.mean_lifetime_ns() } else { None },
        capacity: Some(view.capacity_of(site)).filter(|capacity| capacity.blocks > 0),
    }
}
