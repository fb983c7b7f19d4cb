//! A profile series: a part after each period, and the last one at the end. A thread of its own asks for views, names and writes them,
//! and runs the user's command, while the program runs on.

use super::conclude::{export_options, wanted};
use super::direct::Waiter;
use super::saver::Snapshots;
use super::{hook, tell};
use crate::cli::{ProfileOptions, SeriesOptions};
use crate::export::ExportOptions;
use crate::export::output::{Outcome, Outputs, Scope};
use crate::heapmodel::Sums;
use crate::naming::{self, FIRST, KnownNames, Wanted};
use crate::progress::Progress;
use crate::session::{Recording, Requests};
use crate::tracer::control::Control;
use anyhow::bail;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether a period is over.
const POLL: Duration = Duration::from_millis(20);

/// The series of one process.
#[derive(Debug)]
pub struct Series {
    options: ProfileOptions,
    outputs: Outputs,
    written: Mutex<Written>,
}

/// What there is so far.
#[derive(Debug, Default)]
struct Written {
    /// The number of the latest part; 0 before the first.
    part: u32,
    /// In which of the process's images the sums began.
    image: usize,
    sums: Sums,
    known: KnownNames,
    /// The parts that are kept, the oldest first.
    files: VecDeque<Vec<PathBuf>>,
    has_failed: bool,
}

/// Whether more parts will follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Middle,
    Last,
}

impl Series {
    /// The series that `options` ask for, with those `outputs` that take parts; None if none is asked for. The other outputs come back.
    ///
    /// # Errors
    /// No name has an %i; an option of series without one.
    pub fn prepare(options: &ProfileOptions, outputs: Outputs) -> anyhow::Result<(Option<Arc<Self>>, Outputs)> {
        if !options.series.is_wanted() {
            if !options.series.min_interval.is_zero() {
                bail!("--min-interval is about a series: add --profile-every or --profile-every-allocs");
            }
            if options.occasions.keep.is_some() && !options.occasions.write_snapshots() {
                bail!("--keep is about a series, or snapshots: add --profile-every, or --snapshot-every");
            }
            return Ok((None, outputs));
        }
        let (whole, outputs) = outputs.split_parts();
        if outputs.is_empty() {
            bail!(
                "--profile-every and --profile-every-allocs write a file for each part: put %i (its number) in the name of one, as in \
                 `-o heap.%i.pb.gz`"
            );
        }
        let series = Self { options: options.clone(), outputs, written: Mutex::default() };
        Ok((Some(Arc::new(series)), whole))
    }

    /// Writes parts from now on, until tracing ends.
    pub fn start(
        self: &Arc<Self>,
        control: &Arc<Control>,
        requests: &Arc<Requests>,
        progress: &Arc<Progress>,
    ) -> Option<SeriesThread> {
        progress.count_allocated();
        let (series, control) = (Arc::clone(self), Arc::clone(control));
        let (requests, progress) = (Arc::clone(requests), Arc::clone(progress));
        let work = move || series.follow(&control, &requests, &progress);
        match std::thread::Builder::new().name("series".to_owned()).spawn(work) {
            Ok(thread) => Some(SeriesThread(thread)),
            Err(error) => {
                tell(&format!("no parts of the series will be written before the end: no thread for them: {error}"));
                self.lock().has_failed = true;
                None
            }
        }
    }

    fn follow(&self, control: &Arc<Control>, requests: &Requests, progress: &Progress) {
        let snapshots = Snapshots { requests, control, options: &self.options };
        let mut clock = None;
        while !control.is_finished() {
            std::thread::sleep(POLL);
            let Some(&pid) = progress.processes().first().filter(|_| control.is_started()) else { continue };
            let allocations = progress.read().allocations;
            let clock = clock.get_or_insert_with(|| Clock::new(Instant::now(), allocations));
            if !clock.is_over(&self.options.series, Instant::now(), allocations) {
                continue;
            }
            // A process that has just ended has its last part written by who concludes.
            if let Ok(view) = snapshots.view(pid, false, None) {
                self.write(view.into_recording(), Place::Middle);
            }
        }
    }

    /// Writes the last part, of all that has happened since the one before.
    pub fn finish(&self, recording: Recording) -> Vec<Outcome> {
        self.write(recording, Place::Last)
    }

    /// Whether a part could not be written, or not be passed on.
    pub fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// How many parts have been written.
    pub fn parts(&self) -> u32 {
        self.lock().part
    }

    fn write(&self, mut recording: Recording, place: Place) -> Vec<Outcome> {
        let mut written = self.lock();
        let Written { part, image, sums, known, files, has_failed } = &mut *written;
        // Another program in the same process has a heap of its own.
        if std::mem::replace(image, recording.images.len()) != recording.images.len() {
            *sums = Sums::default();
        }
        *part += 1;
        let now_ns = recording.cost.wall_ns;
        let period = (sums.ended_ns(), now_ns);
        sums.take_part(&mut recording.snapshot, now_ns);
        recording.anomalies = recording.snapshot.anomalies;
        let is_last = place == Place::Last;
        let wanted = Wanted { snapshot: !is_last, ..wanted(&self.options) };
        let mut profile = naming::build_profile(recording, wanted, known);
        profile.meta.part = *part;
        let export = ExportOptions { last: is_last, period_ns: Some(period), ..export_options(&self.options) };
        let mut waiter = Waiter::new(self.options.verbosity);
        let outcomes = self.outputs.write(Scope::All, &profile, &export, &mut waiter);
        files.push_back(outcomes.iter().filter(|file| file.result.is_ok()).map(|file| file.path.clone()).collect());
        let kept = self.options.occasions.keep.unwrap_or(usize::MAX);
        while files.len() > kept {
            for old in files.pop_front().into_iter().flatten() {
                if let Err(error) = std::fs::remove_file(&old) {
                    tracing::info!("{}: {error}", old.display());
                }
            }
        }
        if is_last {
            return outcomes;
        }
        for file in &outcomes {
            if let Err(error) = &file.result {
                tell(&format!("{}: {error}", file.path.display()));
                *has_failed = true;
            }
        }
        drop(written);
        for error in self.options.on_profile.as_ref().map(|command| hook::run(command, &outcomes)).unwrap_or_default() {
            tell(&error.to_string());
            self.lock().has_failed = true;
        }
        Vec::new()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that writes parts.
#[derive(Debug)]
pub struct SeriesThread(JoinHandle<()>);

impl SeriesThread {
    /// Waits until it has finished what it writes just now. Tracing must have ended.
    pub fn join(self) {
        // What it could not do it has told.
        let _ = self.0.join();
    }
}

/// When a period is over.
#[derive(Clone, Copy, Debug)]
struct Clock {
    began: Instant,
    /// The end of the next period, if they are measured in time, counted in periods since `began`.
    next: u32,
    latest: Instant,
    allocations: u64,
}

impl Clock {
    fn new(now: Instant, allocations: u64) -> Self {
        Self { began: now, next: FIRST, latest: now, allocations }
    }

    /// Whether it is time for a part; then the next period begins. Periods of time keep their rhythm; those that were missed are
    /// left out.
    fn is_over(&mut self, options: &SeriesOptions, now: Instant, allocations: u64) -> bool {
        if now.duration_since(self.latest) < options.min_interval {
            return false;
        }
        let by_time =
            options.every.is_some_and(|every| now.duration_since(self.began) >= every.saturating_mul(self.next));
        let enough = |least: u64| allocations.saturating_sub(self.allocations) >= least;
        if !by_time && !options.every_allocations.is_some_and(enough) {
            return false;
        }
        if let Some(every) = options.every {
            while now.duration_since(self.began) >= every.saturating_mul(self.next) && self.next < u32::MAX {
                self.next += 1;
            }
        }
        (self.latest, self.allocations) = (now, allocations);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn periods_of_time_keep_their_rhythm() {
        let options = SeriesOptions { every: Some(10 * SECOND), ..SeriesOptions::default() };
        let began = Instant::now();
        let mut clock = Clock::new(began, 0);
        let over: Vec<u32> = (1..60).filter(|at| clock.is_over(&options, began + *at * SECOND, 0)).collect();
        assert_eq!(over, [10, 20, 30, 40, 50]);
        let mut clock = Clock::new(began, 0);
        let late = [3, 12, 35, 36, 41].map(|at| clock.is_over(&options, began + at * SECOND, 0));
        assert_eq!(late, [false, true, true, false, true], "what was missed is not made up for");
    }

    #[test]
    fn allocations_end_a_period_but_not_too_soon() {
        let options =
            SeriesOptions { every_allocations: Some(100), min_interval: 2 * SECOND, ..SeriesOptions::default() };
        let began = Instant::now();
        let mut clock = Clock::new(began, 50);
        let steps = [(1, 500), (2, 500), (3, 900), (4, 599), (6, 600), (9, 699), (10, 700)];
        let over = steps.map(|(at, allocations)| clock.is_over(&options, began + at * SECOND, allocations));
        assert_eq!(over, [false, true, false, false, true, false, true]);
    }
}
