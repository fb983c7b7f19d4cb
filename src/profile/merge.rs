//! One profile of several processes. Pure.
//!
//! Blocks that came over a fork are their allocating process's: they count once. A process's peak is its own; the sum
//! of all is what the merged profile calls the peak, although they need not have been at one moment.

use super::build::order;
use super::leaks::{LeakSite, Leaks, Suppression};
use super::pool::{Numbers, Place, Pool};
use super::{
    Amount, Capacity, Cost, CrossThreadFreed, Finding, Growth, Meta, ProcessInfo, ProcessRow, Profile, Sample,
    TimelinePoint, Totals,
};
use crate::base::figures::grouped;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most points that a merged timeline has.
const POINTS: usize = 1024;

/// The most sentences of warning that are taken over.
const WARNINGS: usize = 20;

/// So many processes are named that a warning is about; of more it is told how many they are.
const NAMED: usize = 3;

/// Adds profile to profile.
#[derive(Debug)]
pub struct Merger {
    merged: Profile,
    pool: Pool,
    samples: Vec<Sample>,
    places: FxHashMap<SampleKey, usize>,
    growths: BTreeMap<usize, Growth>,
    capacities: BTreeMap<usize, Capacity>,
    stranded: Vec<(usize, CrossThreadFreed)>,
    findings: FxHashMap<FindingKey, usize>,
    leak_sites: FxHashMap<usize, usize>,
    timelines: Vec<OwnTimeline>,
    warnings: Vec<SharedWarning>,
}

/// A sentence of warning, and the processes that it is about.
#[derive(Debug)]
struct SharedWarning {
    text: String,
    /// So many as are named.
    pids: Vec<i32>,
    processes: u64,
}

/// Stack, thread, function, size, program.
type SampleKey = (usize, usize, usize, (u64, u64), usize);

/// Kind, stack, stack of the allocation, stack of the free.
type FindingKey = (super::FindingKind, usize, Option<usize>, Option<usize>);

/// What one process had live of its own, over time.
#[derive(Debug)]
struct OwnTimeline {
    points: Vec<TimelinePoint>,
    inherited_bytes: u64,
    end_ns: Option<u64>,
}

/// What a process's profile does not say of it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// When it began, in nanoseconds since tracing did. The times in its profile count from then.
    pub start_ns: u64,
    /// Bytes that were live when it was forked.
    pub inherited_bytes: u64,
    /// What came over the fork and is live at its end.
    pub inherited: Amount,
    /// What came over the fork and was live at its peak.
    pub inherited_at_peak: Amount,
}

impl Merger {
    /// Begins with the profile of the first process, whose names and times the whole has.
    pub fn new(first: Profile, origin: &Origin) -> Self {
        // Processes share pages, and have their peaks at different times: there is no sum.
        let process = ProcessInfo { resident: None, ..first.meta.process.clone() };
        let mut empty = Profile::empty(Meta { process, ..first.meta.clone() });
        empty.cost = Cost {
            conditions: first.cost.conditions,
            waited_ns: first.cost.waited_ns,
            waited_range_ns: first.cost.waited_range_ns,
            ..Cost::default()
        };
        let mut merger = Self {
            merged: empty,
            pool: Pool::new(Place::First),
            samples: Vec::new(),
            places: FxHashMap::default(),
            growths: BTreeMap::new(),
            capacities: BTreeMap::new(),
            stranded: Vec::new(),
            findings: FxHashMap::default(),
            leak_sites: FxHashMap::default(),
            timelines: Vec::new(),
            warnings: Vec::new(),
        };
        merger.add(first, origin);
        merger
    }

    /// Adds the profile of one more process.
    pub fn add(&mut self, profile: Profile, origin: &Origin) {
        let Numbers { strings, stacks } = self.pool.enter(&profile);
        let string = |index: usize| strings.get(index).copied().unwrap_or_default();
        let stack = |index: usize| stacks.get(index).copied().unwrap_or_default();
        let program = self.pool.intern(&profile.meta.process.program);
        for sample in profile.samples.iter().filter(|sample| !sample.inherited) {
            let sample = Sample {
                stack: stack(sample.stack),
                thread: string(sample.thread),
                alloc_fn: string(sample.alloc_fn),
                program: Some(program),
                ..sample
            };
            let key = (sample.stack, sample.thread, sample.alloc_fn, (sample.size, sample.interval), program);
            match self.places.get(&key).and_then(|at| self.samples.get_mut(*at)) {
                Some(known) => known.add(&sample),
                None => {
                    self.places.insert(key, self.samples.len());
                    self.samples.push(sample);
                }
            }
        }
        for &(of, growth) in &profile.growths {
            let sum = self.growths.entry(stack(of)).or_default();
            *sum = sum.plus(growth);
        }
        for &(of, capacity) in &profile.capacities {
            let sum = self.capacities.entry(stack(of)).or_default();
            *sum = sum.plus(capacity);
        }
        self.stranded.extend(profile.stranded.iter().map(|(of, stranded)| (stack(*of), *stranded)));
        self.add_totals(&profile.totals, origin);
        for finding in profile.findings {
            self.add_finding(Finding {
                stack: stack(finding.stack),
                alloc_stack: finding.alloc_stack.map(stack),
                free_stack: finding.free_stack.map(stack),
                ..finding
            });
        }
        let rules: Vec<usize> =
            profile.suppressions.into_iter().map(|rule| add_rule(&mut self.merged.suppressions, rule)).collect();
        if let Some(leaks) = profile.leaks {
            self.add_leaks(leaks, &rules, &string, &stack);
        }
        let merged = &mut self.merged;
        merged.cost.add(&profile.cost);
        merged.anomalies.add(&profile.anomalies);
        merged.children.untraced += profile.children.untraced;
        for name in profile.children.untraced_names {
            if !merged.children.untraced_names.contains(&name) {
                merged.children.untraced_names.push(name);
            }
        }
        add_up(&mut merged.histograms.size, &profile.histograms.size);
        add_up(&mut merged.histograms.lifetime, &profile.histograms.lifetime);
        merged.meta.complete &= profile.meta.complete;
        if profile.cost.conditions.jump {
            merged.meta.engine.clone_from(&profile.meta.engine);
        }
        merged.meta.process.of_another_user |= profile.meta.process.of_another_user;
        merged.meta.process.users.extend(&profile.meta.process.users);
        merged.meta.process.user_is_unknown |= profile.meta.process.user_is_unknown;
        let end_ns = origin.start_ns.saturating_add(profile.cost.wall_ns);
        merged.meta.duration_ns = merged.meta.duration_ns.max(end_ns);
        // A process that becomes another program at once has nothing to tell of the image before.
        let is_first = self.timelines.is_empty();
        merged.images.extend(profile.images.into_iter().filter(|image| is_first || !image.is_empty()));
        let pid = profile.meta.process.pid;
        profile.warnings.into_iter().for_each(|warning| self.add_warning(warning, pid));
        self.timelines.push(OwnTimeline {
            points: profile.timeline.into_iter().map(|point| later(point, origin.start_ns)).collect(),
            inherited_bytes: origin.inherited_bytes,
            end_ns: profile.meta.process.exit.map(|_| end_ns),
        });
    }

    /// Ends it: the profile of all, with a line for each process.
    pub fn finish(mut self, processes: Vec<ProcessRow>) -> Profile {
        self.merged.warnings = self.warnings.iter().map(|warning| warning.told(processes.len())).collect();
        self.merged.children.followed = (processes.len() as u64).saturating_sub(1);
        self.merged.processes = processes;
        self.merged.growths = std::mem::take(&mut self.growths).into_iter().collect();
        self.merged.capacities = std::mem::take(&mut self.capacities).into_iter().collect();
        self.merged.stranded = std::mem::take(&mut self.stranded);
        self.merged.timeline = sum_of(&self.timelines);
        self.merged.cost.wall_ns = self.merged.meta.duration_ns;
        self.merged.samples = std::mem::take(&mut self.samples).into_iter().collect();
        self.pool.fill(&mut self.merged, None);
        order::normalize(&mut self.merged);
        self.merged
    }

    fn add_totals(&mut self, totals: &Totals, origin: &Origin) {
        let Origin { inherited, inherited_at_peak, .. } = origin;
        let sum = &mut self.merged.totals;
        sum.allocations += totals.allocations;
        sum.frees += totals.frees;
        sum.reallocations += totals.reallocations;
        sum.bytes_allocated = sum.bytes_allocated.saturating_add(totals.bytes_allocated);
        sum.bytes_freed = sum.bytes_freed.saturating_add(totals.bytes_freed);
        sum.live_blocks += totals.live_blocks.saturating_sub(inherited.objects);
        sum.live_bytes = sum.live_bytes.saturating_add(totals.live_bytes.saturating_sub(inherited.bytes));
        sum.peak_blocks += totals.peak_blocks.saturating_sub(inherited_at_peak.objects);
        sum.peak_bytes = sum.peak_bytes.saturating_add(totals.peak_bytes.saturating_sub(inherited_at_peak.bytes));
        // A process that only inherited its peak has none of its own.
        if totals.peak_bytes > inherited_at_peak.bytes {
            sum.peak_at_ns = sum.peak_at_ns.max(origin.start_ns.saturating_add(totals.peak_at_ns));
        }
        sum.temporary += totals.temporary;
        sum.failed += totals.failed;
        sum.preexisting_frees += totals.preexisting_frees;
        sum.counted_allocations = sum.counted_allocations.saturating_add(totals.counted_allocations);
        sum.counted_bytes = sum.counted_bytes.saturating_add(totals.counted_bytes);
    }

    fn add_warning(&mut self, text: String, pid: i32) {
        let has_room = self.warnings.len() < WARNINGS;
        match self.warnings.iter_mut().find(|known| known.text == text) {
            Some(known) => {
                known.processes += 1;
                if known.pids.len() < NAMED {
                    known.pids.push(pid);
                }
            }
            None if has_room => {
                self.warnings.push(SharedWarning { text, pids: vec![pid], processes: 1 });
            }
            None => {}
        }
    }

    fn add_finding(&mut self, finding: Finding) {
        let key = (finding.kind, finding.stack, finding.alloc_stack, finding.free_stack);
        let at = *self.findings.entry(key).or_insert(self.merged.findings.len());
        match self.merged.findings.get_mut(at) {
            Some(known) => known.count = known.count.saturating_add(finding.count),
            None => self.merged.findings.push(finding),
        }
    }

    fn add_leaks(
        &mut self,
        leaks: Leaks,
        rules: &[usize],
        string: &impl Fn(usize) -> usize,
        stack: &impl Fn(usize) -> usize,
    ) {
        let merged = self.merged.leaks.get_or_insert_with(|| Leaks {
            moment: leaks.moment,
            stopped_ns: 0,
            copied: leaks.copied,
            unreadable_names: Vec::new(),
            scanned_bytes: 0,
            unreadable_bytes: 0,
            untold: Vec::new(),
            sites: Vec::new(),
            asked: None,
        });
        merged.stopped_ns += leaks.stopped_ns;
        merged.copied &= leaks.copied;
        merged.scanned_bytes += leaks.scanned_bytes;
        merged.unreadable_bytes += leaks.unreadable_bytes;
        merged.untold.extend(leaks.untold);
        merged.untold.sort_unstable();
        merged.untold.dedup();
        for mut site in leaks.sites {
            site.stack = stack(site.stack);
            site.thread = string(site.thread);
            site.alloc_fn = string(site.alloc_fn);
            for rule in &mut site.suppressed_by {
                *rule = rule.and_then(|rule| rules.get(rule).copied());
            }
            for step in site.path.iter_mut().flat_map(|path| &mut path.steps) {
                step.stack = stack(step.stack);
            }
            match self.leak_sites.get(&site.stack).and_then(|at| merged.sites.get_mut(*at)) {
                Some(known) => add_site(known, site),
                None => {
                    self.leak_sites.insert(site.stack, merged.sites.len());
                    merged.sites.push(site);
                }
            }
        }
    }
}

impl SharedWarning {
    /// The sentence, with the processes out of `all` that it is about.
    fn told(&self, all: usize) -> String {
        let Self { text, pids, processes } = self;
        if all < 2 {
            return text.clone();
        }
        let named: Vec<String> = pids.iter().map(i32::to_string).collect();
        match usize::try_from(*processes).unwrap_or(usize::MAX) {
            1 => format!("{text} (process {})", named.join(", ")),
            count if count <= NAMED => format!("{text} (processes {})", named.join(", ")),
            count => format!("{text} ({} of {all} processes)", grouped(count as u64)),
        }
    }
}

/// Enters a suppression rule, or adds what it hid to the same rule of another process.
fn add_rule(rules: &mut Vec<Suppression>, rule: Suppression) -> usize {
    let is_same = |known: &Suppression| (&known.file, known.line, &known.rule) == (&rule.file, rule.line, &rule.rule);
    match rules.iter().position(is_same) {
        Some(at) => {
            if let Some(known) = rules.get_mut(at) {
                known.hidden = known.hidden.plus(rule.hidden);
                known.hidden_errors = known.hidden_errors.saturating_add(rule.hidden_errors);
            }
            at
        }
        None => {
            rules.push(rule);
            rules.len() - 1
        }
    }
}

fn add_site(known: &mut LeakSite, site: LeakSite) {
    for (sum, part) in known.amounts.iter_mut().zip(site.amounts) {
        *sum = sum.plus(part);
    }
    known.holds = known.holds.plus(site.holds);
    known.path = known.path.take().or(site.path);
    known.doubts.merge(&site.doubts);
    for (mine, other) in known.suppressed_by.iter_mut().zip(site.suppressed_by) {
        *mine = mine.or(other);
    }
    for (mine, other) in known.baseline.iter_mut().zip(site.baseline) {
        *mine = mine.or(other);
    }
}

pub(super) fn add_up(sum: &mut Vec<u64>, part: &[u64]) {
    if sum.len() < part.len() {
        sum.resize(part.len(), 0);
    }
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
}

const fn later(point: TimelinePoint, ns: u64) -> TimelinePoint {
    TimelinePoint { t_ns: point.t_ns.saturating_add(ns), ..point }
}

/// What all processes together had live over time.
fn sum_of(timelines: &[OwnTimeline]) -> Vec<TimelinePoint> {
    let mut changes: Vec<(u64, usize, u64, Option<u64>)> = Vec::new();
    for (index, timeline) in timelines.iter().enumerate() {
        for point in &timeline.points {
            let own = point.live_bytes.saturating_sub(timeline.inherited_bytes);
            changes.push((point.t_ns, index, own, Some(point.allocations)));
        }
        changes.extend(timeline.end_ns.map(|end| (end, index, 0, None)));
    }
    // A process's last point goes before its end.
    changes.sort_by_key(|(t_ns, index, _, allocations)| (*t_ns, *index, allocations.is_none()));
    let mut now = vec![(0u64, 0u64); timelines.len()];
    let mut sum = TimelinePoint { t_ns: 0, live_bytes: 0, allocations: 0 };
    let mut points: Vec<TimelinePoint> = Vec::new();
    for (t_ns, index, live, allocations) in changes {
        let Some(state) = now.get_mut(index) else { continue };
        let allocations = allocations.unwrap_or(state.1);
        sum.t_ns = t_ns;
        sum.live_bytes = sum.live_bytes.saturating_sub(state.0).saturating_add(live);
        sum.allocations = sum.allocations.saturating_sub(state.1).saturating_add(allocations);
        *state = (live, allocations);
        points.push(sum);
    }
    thin_out(points)
}

/// Keeps of each stretch of points the highest and the last.
fn thin_out(points: Vec<TimelinePoint>) -> Vec<TimelinePoint> {
    if points.len() <= POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(POINTS / 2);
    let mut kept: Vec<TimelinePoint> = Vec::new();
    for stretch in points.chunks(stretch) {
        let highest = stretch.iter().rev().max_by_key(|point| point.live_bytes);
        let last = stretch.last();
        for point in [highest, last].into_iter().flatten() {
            if kept.last() != Some(point) {
                kept.push(*point);
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests;
