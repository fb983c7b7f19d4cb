//! Snapshots of processes that are traced on: the tracer thread gives a view, and this thread names it and writes it.

use super::hook::{HookRunner, Span};
use super::notes::TimelineNotes;
use super::profileoptions::{export_options, wanted};
use super::{owners, tell};
use crate::base::progress::Progress;
use crate::base::triggers::Kept;
use crate::cli::{ProfileOptions, Verbosity};
use crate::event::MarkName;
use crate::export::output::{DirectOutputs, Outputs, Pause, Scope};
use crate::export::{ExportOptions, Source};
use crate::naming::{self, KnownNames, NamingOptions};
use crate::profile::Profile;
use crate::session::{Answer, LiveSnapshot, Recording, RequestKind, Requests};
use crate::tracer::control::Control;
use crate::tracer::files;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

/// Whom to ask for snapshots, and how to name them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshots<'a> {
    pub(super) requests: &'a Requests,
    pub(super) control: &'a Arc<Control>,
    pub(super) options: &'a ProfileOptions,
}

impl Snapshots<'_> {
    /// A view of what was found out of process `pid` so far. The process runs on: its tracer is kept for microseconds.
    /// `with_blocks`: with the single blocks. `at`: as it was at this mark.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn view(&self, pid: i32, with_blocks: bool, at: Option<MarkName>) -> Result<LiveSnapshot, String> {
        let wish = RequestKind::View { blocks: with_blocks, at };
        match self.requests.ask(self.control, pid, wish).ok_or("tracing has just ended")?? {
            Answer::Viewed(interim) => Ok(*interim),
            other => Err(format!("internal error: heaptrace asked for a view, and got {other:?}")),
        }
    }

    /// The profile of a view; with `since`, only of what was allocated behind that mark.
    ///
    /// # Errors
    /// There is no such mark.
    pub(super) fn name(
        &self,
        interim: LiveSnapshot,
        since: Option<MarkName>,
        known: &mut KnownNames,
    ) -> Result<Profile, String> {
        let recording = match since {
            None => interim.into_recording(),
            Some(mark) => interim.into_recording_since(&mark).map_err(|error| error.to_string())?,
        };
        Ok(self.build(recording, known))
    }

    fn build(&self, recording: Recording, known: &mut KnownNames) -> Profile {
        naming::build_profile(recording, NamingOptions { snapshot: true, ..wanted(self.options) }, known)
    }
}

/// The orders to the thread that writes, and what comes back.
#[derive(Debug)]
pub(super) struct Saver {
    orders: SyncSender<String>,
    thread: JoinHandle<Saved>,
    /// Orders that came while others waited.
    skipped: u32,
    quiet: bool,
}

#[derive(Debug, Default)]
struct Saved {
    /// The first ones, in words.
    problems: Vec<String>,
    /// How many files could not be written.
    missing: usize,
    written: u32,
    deleted: u32,
    last: Option<PathBuf>,
}

impl Saver {
    /// Checks the outputs, and starts the thread.
    ///
    /// # Errors
    /// A name that can't be written to, or would be the same for each snapshot.
    pub(super) fn start(
        options: &ProfileOptions,
        control: &Arc<Control>,
        requests: &Arc<Requests>,
        progress: &Arc<Progress>,
        passer: Option<&Arc<HookRunner>>,
        notes: Option<&Arc<TimelineNotes>>,
    ) -> anyhow::Result<Self> {
        let outputs = Outputs::prepare(&options.occasions.outputs, None, owners())?
            .filled_from(Source::Run)?
            .one_for_each_snapshot(options.follow)?;
        // One that is written, and one that waits.
        let (orders, to_do) = mpsc::sync_channel::<String>(1);
        let mut work = Work {
            control: Arc::clone(control),
            requests: Arc::clone(requests),
            progress: Arc::clone(progress),
            passer: passer.cloned(),
            notes: notes.cloned(),
            kept: Kept::newest(options.occasions.keep),
            options: options.clone(),
            outputs,
            known: KnownNames::default(),
            number: 0,
            saved: Saved::default(),
        };
        let thread = std::thread::Builder::new().name("saver".to_owned()).spawn(move || {
            for cause in to_do {
                work.save(&cause);
            }
            work.saved
        })?;
        Ok(Self { orders, thread, skipped: 0, quiet: options.verbosity == Verbosity::Quiet })
    }

    /// Asks for a snapshot, and does not wait for it.
    pub(super) fn order(&mut self, cause: String) {
        if self.orders.try_send(cause).is_err() {
            self.skipped += 1;
        }
    }

    /// Waits until all is written.
    pub(super) fn finish(self) -> Problems {
        let Self { orders, thread, skipped, quiet } = self;
        drop(orders);
        let Ok(Saved { mut problems, missing, written, deleted, last }) = thread.join() else {
            let broken = "internal error: the thread that writes snapshots panicked";
            return Problems { told: vec![broken.to_owned()], missing: true };
        };
        if missing > MAX_PROBLEMS {
            problems.push(format!("{missing} files of snapshots are missing in all"));
        }
        if skipped > 0 {
            problems.push(format!("heaptrace skipped {skipped} snapshots, as it was still writing others"));
        }
        if let Some(last) = last.filter(|_| !quiet) {
            let deleted = if deleted > 0 { format!(" ({deleted} deleted since, by --keep)") } else { String::new() };
            tell(&format!("{written} snapshots were written{deleted}, the last one to {}", last.display()));
        }
        Problems { told: problems, missing: missing > 0 }
    }
}

/// What went wrong with snapshots.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// In words.
    pub(super) told: Vec<String>,
    /// Whether a file could not be written.
    pub(super) missing: bool,
}

/// What the thread that writes has.
#[derive(Debug)]
struct Work {
    control: Arc<Control>,
    requests: Arc<Requests>,
    progress: Arc<Progress>,
    passer: Option<Arc<HookRunner>>,
    notes: Option<Arc<TimelineNotes>>,
    options: ProfileOptions,
    outputs: Outputs,
    known: KnownNames,
    kept: Kept<Vec<PathBuf>>,
    number: u32,
    saved: Saved,
}

impl Work {
    fn save(&mut self, cause: &str) {
        let mut pids = self.progress.processes();
        if !self.options.follow {
            pids.truncate(1);
        }
        self.number += 1;
        let export = ExportOptions { number: Some(self.number), ..export_options(&self.options) };
        let (mut live, mut files) = (0, Vec::new());
        let mut span = None;
        for pid in pids {
            let snapshots = Snapshots { requests: &self.requests, control: &self.control, options: &self.options };
            let recording = match snapshots.view(pid, false, None) {
                Ok(interim) => interim.into_recording(),
                Err(reason) => {
                    tracing::info!("no snapshot of process {pid}: {reason}");
                    continue;
                }
            };
            if let Some(notes) = self.notes.as_ref().filter(|_| recording.facts.parent.is_none()) {
                notes.heap(&recording);
            }
            let profile = snapshots.build(recording, &mut self.known);
            let totals = profile.totals;
            // A shell that waits for others.
            if self.options.follow && totals.allocations + totals.preexisting_frees + totals.live_blocks == 0 {
                continue;
            }
            span = Some(Span::of(&profile));
            live += totals.live_bytes;
            files.extend(self.outputs.write(Scope::All, &profile, &export, &mut NonBlockingOutputs));
        }
        for file in &files {
            match &file.result {
                Ok(_) => {
                    tracing::info!("snapshot {} ({cause}): {}", self.number, file.path.display());
                    self.saved.last = Some(file.path.clone());
                }
                Err(error) => {
                    let problem = format!("a snapshot is missing: {}: {error}", file.path.display());
                    // At once: until the end somebody may make room.
                    if self.saved.missing < MAX_PROBLEMS {
                        tell(&problem);
                        self.saved.problems.push(problem);
                    }
                    self.saved.missing += 1;
                }
            }
        }
        if let Some((passer, span)) = self.passer.as_deref().zip(span) {
            passer.pass_on(&files, span);
        }
        let written: Vec<PathBuf> =
            files.into_iter().filter(|file| file.result.is_ok()).map(|file| file.path).collect();
        if written.is_empty() {
            return;
        }
        self.saved.written += 1;
        for paths in self.kept.add(live, written) {
            self.saved.deleted += 1;
            for path in paths {
                if let Err(error) = std::fs::remove_file(&path) {
                    tracing::info!("{}: {error}", path.display());
                }
            }
        }
    }
}

/// heaptrace reports at most this number of failures.
const MAX_PROBLEMS: usize = 10;

/// A pipe without a reader, or with one that takes nothing, gets no snapshot: the next one is to come in time.
#[derive(Debug)]
pub(super) struct NonBlockingOutputs;

impl DirectOutputs for NonBlockingOutputs {
    fn open(&mut self, path: &Path) -> io::Result<Option<File>> {
        files::open_without_blocking(path)
    }

    fn wait(&mut self, _: &Path, _: Pause) -> io::Result<()> {
        Err(io::Error::other("no process reads this pipe at the moment, and a snapshot does not wait"))
    }
}
