//! A series of profiles: parts that are written while the process runs on, and a last one at its end.
//!
//! A thread of its own looks when the next part is due, asks the tracer thread for a view, which takes it microseconds, and names and
//! writes what the parts before have not told. The user's command runs on another thread (`hook.rs`).

use super::conclude::{export_options, wanted};
use super::hook::{Passer, Span};
use super::notes::Notes;
use super::saver::{Impatient, Snapshots};
use super::tell;
use crate::cli::{ProfileOptions, SeriesOptions};
use crate::export::ExportOptions;
use crate::export::output::{DirectOutputs, Outcome, Outputs, Scope};
use crate::naming::{self, KnownNames, Wanted};
use crate::progress::Progress;
use crate::session::{Recording, Requests, Told};
use crate::tracer::control::Control;
use anyhow::{Context, bail};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether a part is due, at least.
const LOOK: Duration = Duration::from_millis(100);

/// The series of one process.
#[derive(Debug)]
pub struct Series {
    options: SeriesOptions,
    profile: ProfileOptions,
    outputs: Outputs,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    told: Option<Told>,
    /// How many parts there are.
    parts: u32,
    /// The files of each part that is kept, oldest first.
    kept: VecDeque<Vec<PathBuf>>,
    /// Whether a file could not be written.
    failed: bool,
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
            tell("the thread that writes the parts of the series broke down");
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
    /// The series that `profile` asks for.
    ///
    /// # Errors
    /// No name takes parts.
    pub fn prepare(profile: &ProfileOptions, outputs: &Outputs) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(options) = profile.series else { return Ok(None) };
        if !outputs.takes_parts() {
            bail!("a series of profiles needs a name for each part: put %i in it, as in -o 'heap.%i.pb.gz'");
        }
        let (profile, outputs) = (profile.clone(), outputs.clone());
        Ok(Some(Arc::new(Self { options, profile, outputs, state: Mutex::default() })))
    }

    /// Begins to write parts.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(
        self: &Arc<Self>,
        control: &Arc<Control>,
        requests: &Arc<Requests>,
        progress: &Arc<Progress>,
        passer: Option<&Arc<Passer>>,
        notes: Option<&Arc<Notes>>,
    ) -> anyhow::Result<Running> {
        let (stop, stopped) = mpsc::channel();
        let (passer, notes) = (passer.cloned(), notes.cloned());
        let (series, control, requests, progress) =
            (Arc::clone(self), Arc::clone(control), Arc::clone(requests), Arc::clone(progress));
        let thread = std::thread::Builder::new()
            .name("series".to_owned())
            .spawn(move || series.run(&control, &requests, &progress, passer.as_deref(), notes.as_deref(), &stopped))
            .context("could not start the thread that writes the series of profiles")?;
        Ok(Running { stop, thread })
    }

    fn run(
        &self,
        control: &Arc<Control>,
        requests: &Requests,
        progress: &Progress,
        passer: Option<&Passer>,
        notes: Option<&Notes>,
        stopped: &Receiver<()>,
    ) {
        let SeriesOptions { every, every_allocations, min_interval, .. } = self.options;
        let every = every.map(|every| every.max(min_interval));
        let look = every.map_or(LOOK, |every| every.min(LOOK)).max(Duration::from_millis(1));
        let snapshots = Snapshots { requests, control, options: &self.profile };
        let mut known = KnownNames::default();
        let mut began = None;
        // There are no more allocations than events: until so many have been seen nobody needs to be asked.
        let mut events_needed = every_allocations.unwrap_or(u64::MAX);
        while stopped.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
            if !control.is_started() || control.is_finished() {
                continue;
            }
            let now = Instant::now();
            let elapsed = now - *began.get_or_insert(now);
            let events = progress.read().events;
            let by_time = every.is_some_and(|every| elapsed >= every);
            if elapsed < min_interval || !(by_time || events >= events_needed) {
                continue;
            }
            let Some(pid) = progress.processes().first().copied() else { continue };
            let recording = match snapshots.view(pid, false, None) {
                Ok(interim) => interim.into_recording(),
                // It is about to end: the last part tells.
                Err(reason) => {
                    tracing::info!("no part of the series now: {reason}");
                    continue;
                }
            };
            if let (false, Some(wanted)) = (by_time, every_allocations) {
                let missing = wanted.saturating_sub(recording.allocations_since(self.state().told.as_ref()));
                if missing > 0 {
                    events_needed = events.saturating_add(missing);
                    continue;
                }
            }
            if let Some(notes) = notes {
                notes.heap(&recording);
            }
            self.write_part(&recording, &mut known, passer);
            events_needed = every_allocations.map_or(u64::MAX, |every| events.saturating_add(every));
            // Periods do not drift; what was missed while a part took long is not made up for.
            let due = every.filter(|_| by_time).and_then(|every| began?.checked_add(every));
            began = Some(due.filter(|due| every.is_some_and(|every| due.elapsed() < every)).unwrap_or(now));
        }
    }

    fn write_part(&self, recording: &Recording, known: &mut KnownNames, passer: Option<&Passer>) {
        let LastPart { files, span } = self.write(recording, false, known, &mut Impatient);
        let mut failures: Vec<String> = Vec::new();
        for file in &files {
            if let Err(error) = &file.result {
                failures.push(format!("{}: {error}", file.path.display()));
            }
        }
        if let Some(passer) = passer {
            passer.pass_on(&files, span);
        }
        failures.iter().for_each(|failure| tell(failure));
        let mut state = self.state();
        state.failed |= !failures.is_empty();
        let written = files.into_iter().filter(|file| file.result.is_ok() && file.path.is_file());
        let written: Vec<PathBuf> = written.map(|file| file.path).collect();
        // What could not be written takes no other part's place.
        if !written.is_empty() {
            state.kept.push_back(written);
        }
        let keep = self.options.keep.unwrap_or(usize::MAX);
        while state.kept.len() > keep {
            for file in state.kept.pop_front().unwrap_or_default() {
                // Somebody else may have moved it away.
                if let Err(error) = fs::remove_file(&file)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tell(&format!("{}: can't be removed (--keep): {error}", file.display()));
                }
            }
        }
    }

    /// Writes the last part, of a process that has ended or was let go.
    pub fn write_last(
        &self,
        recording: &Recording,
        known: &mut KnownNames,
        direct: &mut dyn DirectOutputs,
    ) -> LastPart {
        self.write(recording, true, known, direct)
    }

    /// Whether some part could not be written.
    pub fn has_failed(&self) -> bool {
        self.state().failed
    }

    fn write(
        &self,
        recording: &Recording,
        last: bool,
        known: &mut KnownNames,
        direct: &mut dyn DirectOutputs,
    ) -> LastPart {
        let state = self.state();
        let start_ns = state.told.as_ref().map_or(0, Told::until_ns);
        let end_ns = recording.cost.wall_ns.max(start_ns);
        let part = recording.since(state.told.as_ref());
        let mut profile = naming::build_profile(part, Wanted { snapshot: true, ..wanted(&self.profile) }, known);
        profile.begin_at(start_ns);
        profile.meta.part = state.parts.saturating_add(1);
        drop(state);
        let export = ExportOptions { last, period: Some(start_ns..end_ns), ..export_options(&self.profile) };
        let files = self.outputs.write(Scope::Part, &profile, &export, direct);
        // What is in no file belongs to the next part's period.
        if files.iter().any(|file| file.result.is_ok()) {
            let mut state = self.state();
            state.parts = profile.meta.part;
            state.told = Some(recording.told());
        }
        LastPart { files, span: Span::of(&profile) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What it holds is whole at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
