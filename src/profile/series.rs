//! One profile of many saved ones: the parts of a session, the processes of a fleet. Pure.
//!
//! The parts of one session share blocks: allocated and freed amounts add up, what is live is told by the newest part,
//! the peak by the part with the largest one. Different sessions have nothing in common: all amounts add up, and the
//! sum of the peaks is an upper bound. Whatever the order and grouping of the files, the result is the same: where it
//! could not be, merging is refused.
//!
//! So each file has a [`Head`], [`plan`] says of all heads what each file contributes, and [`Series`] adds file after
//! file.

use super::build::order;
use super::merge::add_up;
use super::pool::{Place, Pool};
use super::saved::{Saved, Writer, is_whole};
use super::{Amount, Exit, Meta, Mode, Profile, Sample, Totals};
use crate::base::sampling::weight;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

mod plan;

pub use plan::{Head, SeriesError, Share, plan};

/// So many sentences of warning are taken over: the first by their letters.
const WARNINGS: usize = 20;

/// Stack, thread, function, size, program, inherited.
type SampleKey = (usize, usize, usize, u64, Option<usize>, bool);

/// What tells the profile whose names the whole has: that of the earliest process.
type FirstKey = (SystemTime, String, Vec<String>, i32, String);

/// The earliest profile.
#[derive(Debug)]
struct First {
    key: FirstKey,
    meta: Meta,
    /// Its program: path and build id.
    module: Option<(PathBuf, Option<String>)>,
}

/// The sum of many profiles.
#[derive(Debug)]
pub struct Series {
    pool: Pool,
    samples: FxHashMap<SampleKey, Sample>,
    meta: Option<Meta>,
    saved: Option<Saved>,
    first: Option<First>,
    totals: Totals,
    /// When the largest peak was reached, of a single session.
    peak_time: Option<SystemTime>,
    anomalies: super::Anomalies,
    sizes: Vec<u64>,
    lifetimes: Vec<u64>,
    warnings: BTreeSet<String>,
    /// Whether all is of one session.
    single: bool,
    /// All samples that are memory_sampler's are scaled up by this.
    scale: bool,
}

impl Series {
    /// An empty sum, of one session or of several. `scale`: amounts that a file has of picked blocks only become
    /// estimates.
    pub fn new(single: bool, scale: bool) -> Self {
        Self {
            pool: Pool::new(Place::Lowest),
            samples: FxHashMap::default(),
            meta: None,
            saved: None,
            first: None,
            totals: Totals::default(),
            peak_time: None,
            anomalies: super::Anomalies::default(),
            sizes: Vec::new(),
            lifetimes: Vec::new(),
            warnings: BTreeSet::new(),
            single,
            scale,
        }
    }

    /// So much memory the sum may need at once, in bytes: its tables grow by doubling, and are sorted at the end.
    pub fn needs(&self) -> u64 {
        let samples = self.samples.capacity() * size_of::<(SampleKey, Sample)>();
        2 * (samples + self.pool.size()) as u64
    }

    /// Adds what `share` says of a profile that was read from a file.
    pub fn add(&mut self, profile: &Profile, share: &Share) {
        let numbers = self.pool.enter(profile);
        let saved = profile.saved.as_deref().cloned().unwrap_or_else(Saved::whole);
        let program = (!self.single).then(|| self.pool.intern(&profile.meta.process.program));
        let string = |index: usize| numbers.strings.get(index).copied().unwrap_or_default();
        let raw = self.scale && saved.writer == Writer::MemorySampler;
        for sample in profile.samples.iter() {
            let mut sample = Sample {
                stack: numbers.stacks.get(sample.stack).copied().unwrap_or_default(),
                thread: string(sample.thread),
                alloc_fn: string(sample.alloc_fn),
                program: sample.program.map(string).or(program),
                ..sample
            };
            if raw {
                unsample(&mut sample, profile.meta.sample_interval);
            }
            share.of(&mut sample);
            let key = (sample.stack, sample.thread, sample.alloc_fn, sample.size, sample.program, sample.inherited);
            self.samples.entry(key).and_modify(|known| known.add(&sample)).or_insert(sample);
        }
        self.add_totals(profile, share);
        self.anomalies.add(&profile.anomalies);
        add_up(&mut self.sizes, &profile.histograms.size);
        add_up(&mut self.lifetimes, &profile.histograms.lifetime);
        self.warnings.extend(profile.warnings.iter().cloned());
        if !profile.findings.is_empty() || profile.leaks.is_some() {
            self.warnings.insert("errors and leaks of the reports are not merged: see the single files".to_owned());
        }
        while self.warnings.len() > WARNINGS {
            self.warnings.pop_last();
        }
        self.add_meta(profile, share);
        self.add_saved(saved, share);
    }

    fn add_totals(&mut self, profile: &Profile, share: &Share) {
        let (sum, totals) = (&mut self.totals, &profile.totals);
        for (sum, part) in [
            (&mut sum.reallocations, totals.reallocations),
            (&mut sum.temporary, totals.temporary),
            (&mut sum.failed, totals.failed),
            (&mut sum.preexisting_frees, totals.preexisting_frees),
            (&mut sum.counted_allocations, totals.counted_allocations),
            (&mut sum.counted_bytes, totals.counted_bytes),
        ] {
            *sum = sum.saturating_add(part);
        }
        if share.peak && self.single {
            // A part counts from its own beginning.
            let began = profile.meta.process.started_at;
            self.peak_time = began.checked_add(Duration::from_nanos(totals.peak_at_ns));
        }
    }

    fn add_meta(&mut self, profile: &Profile, share: &Share) {
        let meta = &profile.meta;
        let process = &meta.process;
        let key =
            (process.started_at, process.program.clone(), process.command.clone(), process.pid, meta.session.clone());
        if self.first.as_ref().is_none_or(|known| key < known.key) {
            let module = profile.modules.first().map(|module| (module.path.clone(), module.build_id.clone()));
            self.first = Some(First { key, meta: meta.clone(), module });
        }
        let Some(sum) = &mut self.meta else {
            self.meta = Some(Meta { complete: !share.live || meta.complete, ..meta.clone() });
            if !share.live
                && let Some(sum) = &mut self.meta
            {
                // Something that is worse in no way.
                sum.process.exit = Some(Exit::Code(0));
            }
            return;
        };
        sum.duration_ns = sum.duration_ns.saturating_add(meta.duration_ns);
        sum.sample_interval = sum.sample_interval.max(meta.sample_interval);
        sum.part = sum.part.max(meta.part);
        if sum.engine > meta.engine {
            sum.engine.clone_from(&meta.engine);
        }
        if mode_rank(meta.mode) > mode_rank(sum.mode) {
            sum.mode = meta.mode;
        }
        // How it ended is told by the newest part.
        if share.live {
            sum.complete &= meta.complete;
            sum.process.exit = sum.process.exit.zip(process.exit).map(|(a, b)| worse(a, b));
        }
        sum.process.resident = match (self.single, sum.process.resident, process.resident) {
            (true, Some(a), Some(b)) => Some(if a.peak_bytes < b.peak_bytes { b } else { a }),
            (true, a, b) => a.or(b),
            (false, ..) => None,
        };
    }

    fn add_saved(&mut self, saved: Saved, share: &Share) {
        let about_peak = saved.about_peak || !share.live;
        let Some(sum) = &mut self.saved else {
            self.saved = Some(Saved {
                about_peak,
                writer: merged_writer(saved.writer, self.scale),
                // Stacks have other numbers now, and what holds for one need not hold for all.
                advice: None,
                ..saved
            });
            return;
        };
        sum.holds = sum.holds.and(saved.holds);
        sum.about_peak &= about_peak;
        sum.files = sum.files.saturating_add(saved.files);
        sum.variance = sum.variance.saturating_add(saved.variance);
        sum.sized &= saved.sized;
        sum.drop_frames.extend(saved.drop_frames);
        sum.last |= saved.last;
        sum.parts.extend(saved.parts);
        sum.open.extend(saved.open);
        if share.peak {
            sum.peak_part = saved.peak_part;
        }
        sum.peak_is_bound |= saved.peak_is_bound;
        let writer = merged_writer(saved.writer, self.scale);
        if sum.writer != writer {
            sum.writer = Writer::Heaptrace;
        }
    }

    /// The sum. `open` are the sessions of which parts are missing.
    pub fn finish(mut self, open: BTreeMap<String, Vec<u32>>) -> Option<Profile> {
        let (mut meta, mut saved) = (self.meta.take()?, self.saved.take()?);
        let First { meta: first, module, .. } = self.first.take()?;
        meta.process.program = first.process.program;
        meta.process.command = first.process.command;
        meta.process.cwd = first.process.cwd;
        meta.process.started_at = first.process.started_at;
        meta.process.pid = if self.single { first.process.pid } else { 0 };
        saved.parts.sort_unstable();
        saved.parts.dedup();
        if self.single {
            saved.last &= !saved.parts.is_empty();
        } else {
            meta.session = String::new();
            meta.part = 1;
            meta.process.resident = None;
            saved.parts = Vec::new();
            saved.open = open;
            saved.last = saved.open.is_empty();
            saved.peak_part = 1;
            saved.peak_is_bound |= saved.files > 1 && saved.holds.peak;
        }
        saved.holds.freed = saved.holds.live && saved.holds.allocated && !saved.is_partial() && saved.open.is_empty();
        let mut profile = Profile::empty(meta);
        profile.totals = self.totals;
        let since_start = self.peak_time.and_then(|time| time.duration_since(profile.meta.process.started_at).ok());
        profile.totals.peak_at_ns = since_start.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        profile.anomalies = self.anomalies;
        (profile.histograms.size, profile.histograms.lifetime) = (self.sizes, self.lifetimes);
        profile.warnings = self.warnings.into_iter().collect();
        self.pool.fill(&mut profile, module.as_ref());
        let less = |a: u64, b: u64| if saved.holds.freed { a.saturating_sub(b) } else { 0 };
        let with_freed = |sample: Sample| {
            let (all, live) = (sample.allocated, sample.live);
            let freed = Amount { objects: less(all.objects, live.objects), bytes: less(all.bytes, live.bytes) };
            Sample { freed, ..sample }
        };
        profile.samples = self.samples.into_values().filter(has_amounts).map(with_freed).collect();
        profile.add_sums(saved.holds.deallocated);
        order::normalize(&mut profile);
        profile.saved = Some(Box::new(saved));
        Some(profile)
    }
}

/// Whether anything is left of a sample.
fn has_amounts(sample: &Sample) -> bool {
    let amounts = [sample.live, sample.allocated, sample.freed, sample.deallocated, sample.at_peak];
    sample.temporary > 0 || amounts.iter().any(|amount| *amount != Amount::default())
}

/// Whose a sum is: what was scaled up is like our own.
fn merged_writer(writer: Writer, scale: bool) -> Writer {
    if scale || writer != Writer::MemorySampler { Writer::Heaptrace } else { writer }
}

/// The order of modes: the one that knows least is the sum's.
const fn mode_rank(mode: Mode) -> u8 {
    match mode {
        Mode::Run => 0,
        Mode::Check => 1,
        Mode::Snapshot => 2,
        Mode::SnapshotOfAttached => 3,
        Mode::Attach => 4,
    }
}

/// Of two ends the worse one: signals before failures before success.
fn worse(a: Exit, b: Exit) -> Exit {
    let rank = |exit: Exit| match exit {
        Exit::Code(code) => (0, code),
        Exit::Signal(signal) => (1, signal),
    };
    if rank(a) < rank(b) { b } else { a }
}

/// What the picked blocks of a sample stand for, by their mean size. Live blocks, which memory_sampler counts as
/// allocated, too, have a mean size of their own.
fn unsample(sample: &mut Sample, interval: u64) {
    let scaled = |amount: Amount| {
        let size = amount.bytes.checked_div(amount.objects).unwrap_or(0);
        amount.times(weight(size, interval))
    };
    let dead = sample.allocated.minus(sample.live);
    sample.live = scaled(sample.live);
    sample.allocated = scaled(dead).plus(sample.live);
    sample.deallocated = scaled(sample.deallocated);
    sample.at_peak = scaled(sample.at_peak);
}

/// Whether a file holds all of its session, so that it can be added without knowing the others.
pub fn stands_alone(saved: &Saved) -> bool {
    is_whole(&saved.parts, saved.last)
}

#[cfg(test)]
mod tests;
