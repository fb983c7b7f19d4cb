//! report.json, versions 1 to 3, from its bytes. `docs/report.schema.json` is the contract; version 1 had whole frames
//! in each stack, and versions 1 and 2 another name for `abandoned_calls`.
//!
//! A report has one sum for each site, without threads, functions of the allocator and sizes of blocks; frees are told
//! by the stack that allocated. Addresses are those of the files.

mod judged;
mod model;
mod tables;
mod weight;

use super::budget::{Budget, Exhausted};
use super::{ImportError, Limits};
use crate::profile::course::HeapHistory;
use crate::profile::leaks::Suppression;
use crate::profile::pertest::{TestRow, Tests};
use crate::profile::saved::{Holds, Saved, Writer};
use crate::profile::{
    AllocatorUse, Amount, Capacity, Conditions, Cost, Meta, ProcessInfo, ProcessRow, Profile, Resident, Sample,
};
use crate::unwinder::Quality;
use model::{Head, Report, ReportResident, ReportTests, Site, TypeShare};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};
use tables::Tables;

/// The newest version that is understood, and written.
const NEWEST: u64 = 3;

/// Reads the report.
pub(super) fn read(bytes: &[u8], name: &str, limits: &Limits, budget: &mut Budget) -> Result<Profile, ImportError> {
    let file = || name.to_owned();
    let no_report = |reason: String| ImportError::NoReport { file: file(), reason };
    let not_read = |error: serde_json::Error| {
        if error.is_eof() { ImportError::Torn { file: file() } } else { no_report(error.to_string()) }
    };
    let head: Head = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => no_report("its `version` is not a number".to_owned()),
        _ => not_read(error),
    })?;
    // other tools' reports have versions, too
    if head.heaptrace_version.is_none() {
        return Err(no_report("it has no `heaptrace_version`".to_owned()));
    }
    match head.version {
        Some(1..=NEWEST) => {}
        Some(version) => return Err(ImportError::Version { file: file(), version, newest: NEWEST }),
        None => return Err(no_report("it has no `version`".to_owned())),
    }
    let too_large = || ImportError::TooLarge { file: file(), limit: limits.memory >> 20 };
    weight::take(bytes, budget).map_err(|Exhausted| too_large())?;
    let report: Report = serde_json::from_slice(bytes).map_err(not_read)?;
    profile(report, budget).map_err(|trouble| match trouble {
        Trouble::Damaged(what) => ImportError::Damaged { file: file(), what },
        Trouble::TooLarge => too_large(),
    })
}

/// Why no profile can be made of a report.
enum Trouble {
    Damaged(String),
    TooLarge,
}

impl From<String> for Trouble {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

impl From<Exhausted> for Trouble {
    fn from(_: Exhausted) -> Self {
        Self::TooLarge
    }
}

fn profile(report: Report, budget: &mut Budget) -> Result<Profile, Trouble> {
    let resident = resident(report.resident.as_ref());
    let started_at = humantime::parse_rfc3339(&report.started_at).unwrap_or(UNIX_EPOCH + Duration::ZERO);
    let meta = Meta {
        process: ProcessInfo {
            pid: report.pid,
            pid_inside: None,
            program: report.program,
            command: report.command,
            cwd: PathBuf::from(report.cwd),
            started_at,
            of_another_user: false,
            users: std::collections::BTreeSet::new(),
            user_is_unknown: true,
            exit: report.exit,
            resident,
        },
        mode: report.mode,
        part: report.part,
        duration_ns: report.duration_ns,
        engine: report.engine,
        complete: report.complete,
        session: String::new(),
        sample_interval: report.sampling.interval,
    };
    let cost = Cost {
        wall_ns: report.cost.wall_ns,
        waited_ns: report.cost.waited_ns,
        waited_range_ns: report.cost.waited_range_ns,
        stopped_ns: report.cost.stopped_ns,
        stopped_max_ns: report.cost.stopped_max_ns,
        events: report.cost.events,
        events_without_stop: report.cost.events_without_stop,
        recording_ns: report.cost.recording_ns,
        stops: report.cost.stops,
        promotion: report.promotion,
        // What it depended on is not told, so that no advice follows from it.
        conditions: Conditions { threads: 0, pinned: true, free_stacks: false, jump: false },
        ..Cost::default()
    };
    // Reports of before this figure have none.
    let knows_lifetimes = report.sites.iter().all(|site| site.mean_lifetime_ns.is_some() || site.freed.objects == 0);
    let about_peak = !meta.mode.is_attached() && meta.process.exit.is_some();
    let saved = Saved {
        writer: Writer::Heaptrace,
        holds: Holds { deallocated: false, lifetimes: knows_lifetimes, ..Holds::ALL },
        about_peak,
        sized: false,
        parts: if report.part == 1 { Vec::new() } else { vec![report.part] },
        variance: u128::from(report.sampling.standard_error).pow(2),
        ..Saved::whole()
    };
    budget.entries::<Sample>(report.sites.iter().map(|site| site.types.len().saturating_add(1)).sum())?;
    budget.entries::<(usize, Capacity)>(report.sites.iter().filter(|site| site.capacity.is_some()).count())?;
    budget.entries::<ProcessRow>(report.processes.len())?;
    budget.entries::<AllocatorUse>(report.allocators.len())?;
    budget.entries::<Suppression>(report.suppressions.len())?;
    let mut tables = Tables::new(report.modules, report.frames, budget)?;
    let mut samples = Vec::new();
    let mut capacities: Vec<(usize, Capacity)> = Vec::new();
    for site in &report.sites {
        push_samples(site, &mut tables, &mut samples)?;
        capacities.extend(samples.last().and_then(|sample| Some((sample.stack, site.capacity?))));
    }
    capacities.sort_unstable_by_key(|(stack, _)| *stack);
    let advice = report.advice.map(|advice| judged::advice(advice, &mut tables)).transpose()?;
    let findings = judged::findings(&report.findings, &mut tables)?;
    let leaks = report.leaks.map(|leaks| judged::leaks(&leaks, &report.findings, &mut tables)).transpose()?;
    let allocators = report.allocators.into_iter().filter_map(|allocator| {
        let module = tables.module(&allocator.module)?;
        Some(AllocatorUse { module, functions: allocator.functions })
    });
    let allocators = allocators.collect();
    let processes = report.processes.into_iter().map(|row| ProcessRow {
        pid: row.pid,
        parent: row.parent,
        program: row.program,
        exit: row.exit,
        seen: row.seen,
        totals: row.totals,
        inherited: row.inherited,
        inherited_at_peak: row.inherited_at_peak,
        resident: self::resident(row.resident.as_ref()),
        verdict: row.verdict.map(judged::verdict),
    });
    let tables::Finished { modules, strings, functions, locations, stacks } = tables.finish();
    Ok(Profile {
        meta,
        totals: report.totals,
        cost,
        anomalies: report.anomalies,
        allocators,
        modules,
        images: report.images,
        children: report.children,
        timeline: report.timeline,
        histograms: report.histograms,
        strings,
        functions,
        locations,
        stacks,
        samples: samples.into_iter().collect(),
        growths: Vec::new(),
        stranded: Vec::new(),
        capacities,
        findings,
        leaks,
        tests: report.tests.map(tests),
        suppressions: report.suppressions.into_iter().map(judged::suppression).collect(),
        verdict: report.verdict.map(judged::verdict),
        budgets: report.budgets.iter().filter_map(judged::budget).collect(),
        warnings: report.warnings,
        processes: processes.collect(),
        saved: Some(Box::new(Saved { advice, ..saved })),
        course: HeapHistory::default(),
    })
}

fn tests(told: ReportTests) -> Tests {
    let rows = told.rows.into_iter().map(|row| TestRow {
        name: row.name,
        runs: row.runs,
        duration_ns: row.duration_ns,
        allocated: row.allocated,
        peak_bytes: row.peak_bytes,
        kept: row.kept,
        live: Vec::new(),
        leaked: row.leaked,
        grown: row.grown,
    });
    Tests {
        rows: rows.collect(),
        outside: Vec::new(),
        outside_leaked: told.outside_leaked,
        unassigned: told.unassigned,
    }
}

fn resident(resident: Option<&ReportResident>) -> Option<Resident> {
    resident.map(|resident| Resident {
        peak_bytes: resident.peak_bytes,
        all_blocks_known: resident.explained_permille.is_some(),
    })
}

/// One sample of a site; of one that makes objects of several types one of each, and one of the rest.
fn push_samples(site: &Site, tables: &mut Tables<'_>, samples: &mut Vec<Sample>) -> Result<(), Trouble> {
    let quality = match site.quality.as_str() {
        "guessed" => Quality::Guessed,
        "truncated" => Quality::Truncated,
        _ => Quality::Complete,
    };
    let stack = tables.stack(&site.stack, quality)?;
    if let Some(told) = &site.r#type {
        tables.set_object(stack, told)?;
    }
    let lifetime_ns = |freed: Amount| site.mean_lifetime_ns.unwrap_or(0).saturating_mul(freed.objects);
    let mut rest = Sample {
        interval: 0,
        stack,
        thread: 0,
        alloc_fn: 0,
        program: None,
        inherited: false,
        size: 0,
        allocated: site.allocated,
        freed: site.freed,
        deallocated: Default::default(),
        live: site.live,
        at_peak: site.at_peak,
        temporary: site.temporary,
        lifetime_ns: lifetime_ns(site.freed),
        freed_elsewhere: 0,
    };
    for TypeShare { of, allocated, freed, live, at_peak } in &site.types {
        let stack = tables.stack_of_type(stack, of)?;
        let lifetime_ns = lifetime_ns(*freed);
        samples.push(Sample {
            stack,
            allocated: *allocated,
            freed: *freed,
            live: *live,
            at_peak: *at_peak,
            // of which type they are is not told
            temporary: std::mem::take(&mut rest.temporary),
            lifetime_ns,
            ..rest
        });
        rest.lifetime_ns = rest.lifetime_ns.saturating_sub(lifetime_ns);
        rest.allocated = rest.allocated.minus(*allocated);
        rest.freed = rest.freed.minus(*freed);
        rest.live = rest.live.minus(*live);
        rest.at_peak = rest.at_peak.minus(*at_peak);
    }
    if site.types.is_empty() || [rest.allocated, rest.freed, rest.live, rest.at_peak] != [Amount::default(); 4] {
        samples.push(rest);
    }
    Ok(())
}
