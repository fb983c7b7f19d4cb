//! A series of profiles: parts that are written while the process runs on, and a last one at its end.
//!
//! A thread of its own looks when the next part is due, asks the tracer thread for a view, which takes it microseconds,
//! and names and writes what the parts before have not told. The user's command runs on another thread (`hook.rs`).

use super::hook::{HookRunner, Span};
use super::notes::TimelineNotes;
use super::profileoptions::{export_options, wanted};
use super::saver::{NonBlockingOutputs, Snapshots};
use super::tell;
use crate::base::progress::Progress;
use crate::cli::{ProfileOptions, SeriesOptions};
use crate::export::ExportOptions;
use crate::export::output::{DirectOutputs, Outcome, Outputs, Scope};
use crate::naming::{self, KnownNames, NamingOptions};
use crate::session::{Ended, Recording, ReportedTotals, Requests};
use crate::tracer::control::Control;
use anyhow::{Context, bail};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether a part is due, at least.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The series of the processes that are traced.
#[derive(Debug)]
pub struct Series {
    options: SeriesOptions,
    profile: ProfileOptions,
    /// Names with a number.
    outputs: Outputs,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By session and number of the process.
    processes: FxHashMap<(String, u64), Parts>,
    /// Whether a file could not be written.
    failed: bool,
}

/// What there is of one process.
#[derive(Debug, Default)]
struct Parts {
    told: Option<ReportedTotals>,
    /// How many parts there are of its image. Each image has a series of its own.
    parts: u32,
    /// How many there are of all its images: the numbers of the files go on.
    numbers: u32,
    /// The files of each part that is kept, oldest first.
    kept: VecDeque<Vec<PathBuf>>,
    /// Whether its last part is there.
    over: bool,
}

/// Why a part is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// Its time has come.
    Due,
    /// An exec, or the end of a process, of which others are left.
    Ended,
    /// The end of all.
    End,
}

/// The thread that writes the parts.
#[derive(Debug)]
pub struct Running {
    /// Its end makes the thread end.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Waits until what is being written is there.
    pub fn end(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tell("the thread that writes the parts of the series panicked");
        }
    }
}

/// The last part.
#[derive(Debug)]
pub struct LastPart {
    /// Its files.
    pub files: Vec<Outcome>,
    /// Its period.
    pub span: Span,
}

impl Series {
    /// The series that `profile` asks for, which takes the outputs whose names have a number. Returns the other
    /// outputs, too.
    ///
    /// # Errors
    /// No name takes parts; one that would be the same for each process.
    pub fn prepare(profile: &ProfileOptions, outputs: Outputs) -> anyhow::Result<(Outputs, Option<Arc<Self>>)> {
        let Some(options) = profile.series else { return Ok((outputs, None)) };
        if !outputs.takes_parts() {
            bail!("a series of profiles needs a name for each part: put %i in it, as in -o 'heap.%i.pb.gz'");
        }
        let (whole, outputs) = outputs.split_parts();
        let series = Self { options, profile: profile.clone(), outputs, state: Mutex::default() };
        if profile.follow {
            series.one_for_each_process()?;
        }
        Ok((whole, Some(Arc::new(series))))
    }

    /// Refuses names that are the same for each of several processes.
    ///
    /// # Errors
    /// There is one.
    pub fn one_for_each_process(&self) -> anyhow::Result<()> {
        self.outputs.clone().one_series_for_each_process()?;
        Ok(())
    }

    /// Begins to write parts; `ended` tells what ends meanwhile.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(
        self: &Arc<Self>,
        control: &Arc<Control>,
        requests: &Arc<Requests>,
        progress: &Arc<Progress>,
        passer: Option<&Arc<HookRunner>>,
        notes: Option<&Arc<TimelineNotes>>,
        ended: Ended,
    ) -> anyhow::Result<Running> {
        let (stop, stopped) = mpsc::channel();
        let mut writer = Writer {
            series: Arc::clone(self),
            control: Arc::clone(control),
            requests: Arc::clone(requests),
            progress: Arc::clone(progress),
            passer: passer.cloned(),
            notes: notes.cloned(),
            ended,
            known: KnownNames::default(),
        };
        let thread = std::thread::Builder::new()
            .name("series".to_owned())
            .spawn(move || writer.run(&stopped))
            .context("could not start the thread that writes the series of profiles")?;
        Ok(Running { stop, thread })
    }

    /// Writes the last part, of a process that has ended or was let go; None if it is there.
    pub fn write_last(
        &self,
        recording: &Recording,
        known: &mut KnownNames,
        direct: &mut dyn DirectOutputs,
    ) -> Option<LastPart> {
        self.write(recording, Cause::End, known, direct)
    }

    /// Whether some part could not be written.
    pub fn has_failed(&self) -> bool {
        self.state().failed
    }

    /// How many allocations a process has that no part has told.
    fn allocations_since(&self, recording: &Recording) -> u64 {
        let state = self.state();
        recording.allocations_since(state.processes.get(&key(recording)).and_then(|parts| parts.told.as_ref()))
    }

    /// None: there is nothing to tell.
    fn write(
        &self,
        recording: &Recording,
        cause: Cause,
        known: &mut KnownNames,
        direct: &mut dyn DirectOutputs,
    ) -> Option<LastPart> {
        let mut state = self.state();
        let parts = state.processes.entry(key(recording)).or_default();
        // A shell that waits for others, or a copy of one that became another program.
        let is_silent = recording.is_silent() && parts.parts == 0 && (self.profile.follow || cause == Cause::Ended);
        // A view from before an exec, whose last part is there.
        let told = parts.told.as_ref();
        let is_late = cause == Cause::Due && told.is_some_and(|told| told.until_ns() >= recording.facts.cost.wall_ns);
        if parts.over || is_silent || is_late || !recording.facts.selected {
            return None;
        }
        if parts.told.as_ref().is_some_and(|told| !told.is_of_image(recording)) {
            parts.parts = 0;
        }
        let start_ns = parts.told.as_ref().map_or(0, ReportedTotals::until_ns);
        let end_ns = recording.facts.cost.wall_ns.max(start_ns);
        let part = recording.since(parts.told.as_ref());
        let (number, part_number) = (parts.numbers.saturating_add(1), parts.parts.saturating_add(1));
        drop(state);
        let mut profile = naming::build_profile(part, NamingOptions { snapshot: true, ..wanted(&self.profile) }, known);
        profile.begin_at(start_ns);
        profile.meta.part = part_number;
        let export = ExportOptions {
            last: cause != Cause::Due,
            period: Some(start_ns..end_ns),
            number: Some(number),
            ..export_options(&self.profile)
        };
        let files = self.outputs.write(Scope::All, &profile, &export, direct);
        // What is in no file belongs to the next part's period.
        if files.iter().any(|file| file.result.is_ok()) {
            let mut state = self.state();
            let parts = state.processes.entry(key(recording)).or_default();
            (parts.numbers, parts.parts, parts.told) = (number, part_number, Some(recording.told()));
        }
        Some(LastPart { files, span: Span::of(&profile) })
    }

    /// Notes that a process has ended, and that all its parts are there.
    fn end(&self, recording: &Recording) {
        let over = Parts { over: true, ..Parts::default() };
        self.state().processes.insert(key(recording), over);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What it holds is whole at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(recording: &Recording) -> (String, u64) {
    (recording.session.clone(), recording.number)
}

/// The thread that writes.
struct Writer {
    series: Arc<Series>,
    control: Arc<Control>,
    requests: Arc<Requests>,
    progress: Arc<Progress>,
    passer: Option<Arc<HookRunner>>,
    notes: Option<Arc<TimelineNotes>>,
    ended: Ended,
    known: KnownNames,
}

impl Writer {
    fn run(&mut self, stopped: &Receiver<()>) {
        let SeriesOptions { every, every_allocations, min_interval, .. } = self.series.options;
        let every = every.map(|every| every.max(min_interval));
        let look = every.map_or(POLL_INTERVAL, |every| every.min(POLL_INTERVAL)).max(Duration::from_millis(1));
        let mut began = None;
        // There are no more allocations than events: until so many have been seen nobody needs to be asked.
        let mut events_needed = every_allocations.unwrap_or(u64::MAX);
        while stopped.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
            self.write_ended();
            if !self.control.is_started() || self.control.is_finished() {
                continue;
            }
            let now = Instant::now();
            let elapsed = now - *began.get_or_insert(now);
            let events = self.progress.read().events;
            let by_time = every.is_some_and(|every| elapsed >= every);
            if elapsed < min_interval || !(by_time || events >= events_needed) {
                continue;
            }
            let wanted = every_allocations.filter(|_| !by_time);
            let Some(missing) = self.write_due(wanted) else { continue };
            events_needed = every_allocations
                .map_or(u64::MAX, |every| events.saturating_add(missing.filter(|_| wanted.is_some()).unwrap_or(every)));
            if wanted.is_some() && missing.is_some() {
                continue;
            }
            // Periods do not drift; what was missed while a part took long is not made up for.
            let due = every.filter(|_| by_time).and_then(|every| began?.checked_add(every));
            began = Some(due.filter(|due| every.is_some_and(|every| due.elapsed() < every)).unwrap_or(now));
        }
        self.write_ended();
    }

    /// Writes a part of each process; with `wanted`, of those that have allocated so often. None: there is no process
    /// now. Else how many allocations are missing until the next is due, if none was.
    fn write_due(&mut self, wanted: Option<u64>) -> Option<Option<u64>> {
        let mut pids = self.progress.processes();
        if !self.series.profile.follow {
            pids.truncate(1);
        }
        let (mut seen, mut written) = (false, false);
        let mut least_missing: Option<u64> = None;
        for pid in pids {
            let snapshots =
                Snapshots { requests: &self.requests, control: &self.control, options: &self.series.profile };
            let recording = match snapshots.view(pid, false, None) {
                Ok(interim) => interim.into_recording(),
                // It is about to end: the last part tells.
                Err(reason) => {
                    tracing::info!("no part of the series of process {pid} now: {reason}");
                    continue;
                }
            };
            // An image that has ended before this view was taken comes first.
            self.write_ended();
            seen = true;
            let missing = wanted.map_or(0, |wanted| wanted.saturating_sub(self.series.allocations_since(&recording)));
            if missing > 0 {
                least_missing = Some(least_missing.map_or(missing, |least| least.min(missing)));
                continue;
            }
            // They are of the first process.
            if let Some(notes) = self.notes.as_ref().filter(|_| recording.facts.parent.is_none()) {
                notes.heap(&recording);
            }
            self.write(&recording, Cause::Due);
            written = true;
        }
        seen.then_some(least_missing.filter(|_| !written))
    }

    /// Writes the last parts of what has ended.
    fn write_ended(&mut self) {
        while let Some(ending) = self.ended.take() {
            let is_process = ending.is_process();
            let mut recording = ending.into_recording();
            if !is_process {
                recording.facts.warnings.push("an exec ended it, and all that was live with it".to_owned());
            }
            self.write(&recording, Cause::Ended);
            if is_process {
                self.series.end(&recording);
            }
        }
    }

    fn write(&mut self, recording: &Recording, cause: Cause) {
        let part = self.series.write(recording, cause, &mut self.known, &mut NonBlockingOutputs);
        let Some(LastPart { files, span }) = part else { return };
        let mut failures: Vec<String> = Vec::new();
        for file in &files {
            if let Err(error) = &file.result {
                failures.push(format!("{}: {error}", file.path.display()));
            }
        }
        if let Some(passer) = &self.passer {
            passer.pass_on(&files, span);
        }
        failures.iter().for_each(|failure| tell(failure));
        let mut state = self.series.state();
        state.failed |= !failures.is_empty();
        let written = files.into_iter().filter(|file| file.result.is_ok() && file.path.is_file());
        let written: Vec<PathBuf> = written.map(|file| file.path).collect();
        let kept = &mut state.processes.entry(key(recording)).or_default().kept;
        // What could not be written takes no other part's place.
        if !written.is_empty() {
            kept.push_back(written);
        }
        let keep = self.series.options.keep.unwrap_or(usize::MAX);
        while kept.len() > keep {
            for file in kept.pop_front().unwrap_or_default() {
                // Somebody else may have moved it away.
                if let Err(error) = fs::remove_file(&file)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tell(&format!("{}: can't be removed (--keep): {error}", file.display()));
                }
            }
        }
    }
}
