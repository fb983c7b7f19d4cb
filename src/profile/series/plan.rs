//! What each of several files contributes to their sum.

use super::super::Profile;
use super::super::saved::{Saved, Writer, is_whole, ranges};
use super::super::{Amount, Sample};
use crate::base::figures::plural;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

/// What has to be known of a file before its amounts can be added to others'.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The file, for messages.
    pub file: String,
    session: String,
    parts: Vec<u32>,
    last: bool,
    peak_bytes: u64,
    peak_part: u32,
    interval: u64,
    writer: Writer,
    open: BTreeMap<String, Vec<u32>>,
    /// What tells one run from others where no session does: its process, and when it began, in milliseconds since
    /// 1970.
    run: Option<(i32, u128)>,
}

/// What a file contributes, besides what was allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// What is live, and how the process ended.
    pub live: bool,
    /// The peak.
    pub peak: bool,
    /// Its live blocks don't count as allocated: the next part of the same process says that again.
    pub partial_of_sampler: bool,
}

impl Share {
    /// Everything.
    pub const ALL: Self = Self { live: true, peak: true, partial_of_sampler: false };

    /// Takes out of a sample what the file does not contribute.
    pub(super) fn of(self, sample: &mut Sample) {
        if self.partial_of_sampler {
            sample.allocated = sample.allocated.minus(sample.live);
        }
        if !self.live {
            sample.live = Amount::default();
        }
        if !self.peak {
            sample.at_peak = Amount::default();
        }
    }
}

/// Why files can't be merged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum SeriesError {
    /// The same part twice.
    #[error(
        "{one} and {other} hold the same part of one session, so that its blocks would count twice: leave one of them out (snapshots of \
         a run can't be added to its final profile; `heaptrace diff` compares them)"
    )]
    SamePart { one: String, other: String },
    /// A report, and another file of the same run.
    #[error(
        "{one} and {other} are of the same run, so that its blocks would count twice: leave one of them out (give each run's .pb.gz, or each \
         run's .json)"
    )]
    SameRun { one: String, other: String },
    /// Both are of one session, and not parts of one series.
    #[error(
        "{one} and {other} are of one session, but not parts of one series: {one} holds all that happened until then, so that blocks would \
         count twice (snapshots and the profile of the whole time can't be added; `heaptrace diff` compares them)"
    )]
    NotOneSeries { one: String, other: String },
    /// A sum of several sessions, and another part of one of these.
    #[error(
        "{merged} is merged of several sessions, and {other} has parts of one of them, too; merge all parts in one go instead"
    )]
    SplitSession { merged: String, other: String },
    /// Some sampled, some not, or at different rates.
    #[error(
        "{one} was sampled every {first}, {other} every {second}; give --scale to add them all the same: heaptrace's figures are \
         estimates of the whole already, memory_sampler's become so"
    )]
    Intervals { one: String, first: String, other: String, second: String },
    /// memory_sampler counts sampled blocks only, whatever their interval.
    #[error(
        "{raw} is memory_sampler's and counts sampled blocks once, {other} has all blocks, or what those sampled stand for: their sum would mean \
         nothing; give --scale=BYTES (memory_sampler's sampling interval), which makes estimates of both"
    )]
    RawBesideEstimates { raw: String, other: String },
    /// Nobody says by how much to scale.
    #[error(
        "{file}: memory_sampler's files don't say how they were sampled; give its interval, as in --scale=1MiB (kSamplingIntervalBytes in its \
         source)"
    )]
    UnknownInterval { file: String },
    /// memory_sampler does not say which is the last.
    #[error(
        "{one} and {other} are memory_sampler's, which does not say which of its files are a process's last; name these with --final FILE \
         (the others are partial: their live blocks come again)"
    )]
    WhichIsFinal { one: String, other: String },
    /// `--final` for something else.
    #[error("--final {file}: this is not one of the files to be merged, or not one of memory_sampler's")]
    NotFinal { file: String },
    /// A part of a series as a report.
    #[error("{file}: a report does not say which session its part {part} belongs to; give the .pb.gz of the same part")]
    PartWithoutSession { file: String, part: String },
}

impl Head {
    /// The head of a profile that was read from `file`.
    pub fn of(profile: &Profile, file: &str) -> Self {
        let saved = profile.saved.as_deref().cloned().unwrap_or_else(Saved::whole);
        let (pid, began) = (profile.meta.process.pid, profile.meta.process.started_at);
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            file: file.to_owned(),
            session: profile.meta.session.clone(),
            parts: saved.parts,
            last: saved.last,
            peak_bytes: profile.totals.peak_bytes,
            peak_part: saved.peak_part,
            interval: profile.meta.sample_interval,
            writer: saved.writer,
            open: saved.open,
            run: (saved.writer == Writer::Heaptrace && saved.files == 1 && pid != 0)
                .then_some((pid, began.as_millis())),
        }
    }
}

/// What a merge is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// For each file, in the order of the heads.
    pub shares: Vec<Share>,
    /// Whether all are parts of one session.
    pub single: bool,
    /// Sessions of which parts are missing.
    pub open: BTreeMap<String, Vec<u32>>,
}

/// Says what each file contributes. `finals` are the last ones of memory_sampler's; `scale`: different sampling is no
/// error.
///
/// # Errors
/// [`SeriesError`]: their sum would be wrong.
pub fn plan(heads: &[Head], finals: &[String], scale: bool) -> Result<Plan, SeriesError> {
    if scale {
        let mut unknown = heads.iter().filter(|head| head.writer == Writer::MemorySampler && head.interval == 0);
        if let Some(head) = unknown.next() {
            return Err(SeriesError::UnknownInterval { file: head.file.clone() });
        }
    } else {
        same_kind(heads)?;
        same_interval(heads)?;
    }
    same_run(heads)?;
    let mut shares = of_sampler(heads, finals)?;
    let mut sessions: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, head) in heads.iter().enumerate() {
        match (head.session.as_str(), head.parts.as_slice()) {
            ("", []) => {}
            ("", parts) => {
                return Err(SeriesError::PartWithoutSession { file: head.file.clone(), part: ranges(parts) });
            }
            (session, _) => sessions.entry(session).or_default().push(index),
        }
    }
    let mut open: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut merged_with: FxHashMap<&str, &Head> = FxHashMap::default();
    for head in heads {
        for (session, parts) in &head.open {
            let other = sessions.get(session.as_str()).and_then(|files| heads.get(*files.first()?));
            if let Some(other) = other.or(merged_with.insert(session, head)) {
                return Err(SeriesError::SplitSession { merged: head.file.clone(), other: other.file.clone() });
            }
            open.insert(session.clone(), parts.clone());
        }
    }
    for (session, files) in &sessions {
        let parts = of_session(heads, files, &mut shares)?;
        let last = files.iter().filter_map(|file| heads.get(*file)).any(|head| head.last);
        if !is_whole(&parts, last) {
            open.insert((*session).to_owned(), parts);
        }
    }
    let single = sessions.len() == 1 && sessions.values().all(|files| files.len() == heads.len());
    Ok(Plan { shares, single, open })
}

/// The newest part tells what is live, the one with the largest peak the peak. Returns the parts that are there.
fn of_session(heads: &[Head], files: &[usize], shares: &mut [Share]) -> Result<Vec<u32>, SeriesError> {
    let name_of = |at: usize| heads.get(at).map(|head| head.file.clone()).unwrap_or_default();
    let mut by_part: BTreeMap<u32, usize> = BTreeMap::new();
    for file in files {
        for part in heads.get(*file).iter().flat_map(|head| &head.parts) {
            if let Some(known) = by_part.insert(*part, *file) {
                // The same whatever the order.
                let (one, other) = (name_of(known).min(name_of(*file)), name_of(known).max(name_of(*file)));
                return Err(SeriesError::SamePart { one, other });
            }
        }
    }
    let newest = by_part.last_key_value().map(|(_, file)| *file);
    // Only the newest part of a series can be its last; what else says so is whole.
    let whole = files.iter().copied().filter(|file| Some(*file) != newest);
    let whole = whole.filter(|file| heads.get(*file).is_some_and(|head| head.last)).min_by_key(|file| name_of(*file));
    if let (Some(whole), Some(newest)) = (whole, newest) {
        return Err(SeriesError::NotOneSeries { one: name_of(whole), other: name_of(newest) });
    }
    let highest = files.iter().copied().max_by_key(|file| {
        let head = heads.get(*file);
        (head.map(|head| head.peak_bytes), head.map(|head| std::cmp::Reverse(head.peak_part)))
    });
    for file in files {
        if let Some(share) = shares.get_mut(*file) {
            (share.live, share.peak) = (Some(*file) == newest, Some(*file) == highest);
        }
    }
    Ok(by_part.into_keys().collect())
}

/// A report does not tell its session: no other file may be of its run. (Files with sessions are told apart by these.)
fn same_run(heads: &[Head]) -> Result<(), SeriesError> {
    let mut by_run: FxHashMap<(i32, u128), Vec<&Head>> = FxHashMap::default();
    for head in heads {
        if let Some(run) = head.run {
            by_run.entry(run).or_default().push(head);
        }
    }
    let twice =
        by_run.into_values().filter(|heads| heads.len() > 1 && heads.iter().any(|head| head.session.is_empty()));
    let twice = twice.map(|mut heads| {
        heads.sort_unstable_by_key(|head| &head.file);
        heads
    });
    match twice.min_by_key(|heads| heads.first().map(|head| &head.file)).as_deref() {
        Some([one, other, ..]) => Err(SeriesError::SameRun { one: one.file.clone(), other: other.file.clone() }),
        _ => Ok(()),
    }
}

/// Either all are memory_sampler's, or none is.
fn same_kind(heads: &[Head]) -> Result<(), SeriesError> {
    let first = |raw: bool| {
        let of_kind = heads.iter().filter(|head| (head.writer == Writer::MemorySampler) == raw);
        of_kind.map(|head| &head.file).min().cloned()
    };
    match (first(true), first(false)) {
        (Some(raw), Some(other)) => Err(SeriesError::RawBesideEstimates { raw, other }),
        _ => Ok(()),
    }
}

fn same_interval(heads: &[Head]) -> Result<(), SeriesError> {
    let name = |interval: u64| if interval == 0 { "allocation".to_owned() } else { plural(interval, "byte") };
    let order = |head: &&Head| (head.interval, head.file.clone());
    let (Some(least), Some(most)) = (heads.iter().min_by_key(order), heads.iter().max_by_key(order)) else {
        return Ok(());
    };
    if least.interval == most.interval {
        return Ok(());
    }
    Err(SeriesError::Intervals {
        one: least.file.clone(),
        first: name(least.interval),
        other: most.file.clone(),
        second: name(most.interval),
    })
}

fn of_sampler(heads: &[Head], finals: &[String]) -> Result<Vec<Share>, SeriesError> {
    let theirs: Vec<&Head> = heads.iter().filter(|head| head.writer == Writer::MemorySampler).collect();
    if let Some(file) = finals.iter().find(|file| !theirs.iter().any(|head| head.file == **file)) {
        return Err(SeriesError::NotFinal { file: file.clone() });
    }
    if let ([one, other, ..], true) = (theirs.as_slice(), finals.is_empty()) {
        return Err(SeriesError::WhichIsFinal { one: one.file.clone(), other: other.file.clone() });
    }
    let share = |head: &Head| {
        let is_partial = head.writer == Writer::MemorySampler && !finals.is_empty() && !finals.contains(&head.file);
        Share { live: !is_partial, partial_of_sampler: is_partial, ..Share::ALL }
    };
    Ok(heads.iter().map(share).collect())
}
