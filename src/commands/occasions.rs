//! Snapshots and marks that `run`, `attach` and `check` make by themselves: the control thread sees when, the saver
//! writes.

use super::hook::HookRunner;
use super::notes::TimelineNotes;
use super::saver::{Problems, Saver};
use crate::base::progress::Progress;
use crate::base::triggers::{Condition, Quantity, Reading, Watch};
use crate::cli::{Occasions, ProfileOptions};
use crate::event::MarkName;
use crate::session::{RequestKind, Requests};
use crate::tracer::control::{self, Control, UserSignal};
use crate::tracer::pressure;
use anyhow::bail;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module's head.
#[derive(Debug)]
pub struct Watcher {
    wanted: Occasions,
    watch: Watch,
    control: Arc<Control>,
    requests: Arc<Requests>,
    progress: Arc<Progress>,
    saver: Option<Saver>,
    /// When the next one of a regular series is due.
    due: Option<Instant>,
    /// How often a signal has set a mark.
    marks: u32,
}

/// Makes heaptrace take the signals that the options name.
///
/// # Errors
/// One signal is to mean two things.
pub fn take_signals(options: &ProfileOptions) -> anyhow::Result<()> {
    let Occasions { on_signal, mark_on_signal, .. } = options.occasions;
    let named = [
        ("--toggle-signal", options.toggle_signal),
        ("--snapshot-on-signal", on_signal),
        ("--mark-on-signal", mark_on_signal),
    ];
    let mut taken: Vec<(&str, UserSignal)> = Vec::new();
    for (option, signal) in named {
        let Some(signal) = signal else { continue };
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == signal) {
            bail!("{other} and {option} name the same signal; there are USR1 and USR2");
        }
        control::also_take(signal);
        taken.push((option, signal));
    }
    Ok(())
}

impl Watcher {
    /// Checks what is wanted, before the target starts.
    ///
    /// # Errors
    /// An output can't be written; something can't be watched here.
    pub fn start(
        options: &ProfileOptions,
        control: &Arc<Control>,
        requests: &Arc<Requests>,
        progress: &Arc<Progress>,
        passer: Option<&Arc<HookRunner>>,
        notes: Option<&Arc<TimelineNotes>>,
    ) -> anyhow::Result<Self> {
        let wanted = options.occasions.clone();
        let looks_at = |quantity| wanted.when.iter().any(|condition: &Condition| condition.quantity() == quantity);
        if looks_at(Quantity::Psi) && pressure::memory_pressure(control::process_id()).is_none() {
            bail!(
                "--snapshot-when psi: this kernel does not report the memory pressure (no /proc/pressure/memory: it is built \
                 without CONFIG_PSI, or started without psi=1)"
            );
        }
        if looks_at(Quantity::Rate) {
            progress.count_allocated();
        }
        let saver = match wanted.write_snapshots() {
            true => Some(Saver::start(options, control, requests, progress, passer, notes)?),
            false => None,
        };
        Ok(Self {
            watch: Watch::of(&wanted.when),
            wanted,
            control: Arc::clone(control),
            requests: Arc::clone(requests),
            progress: Arc::clone(progress),
            saver,
            due: None,
            marks: 0,
        })
    }

    /// Whether the tracer thread has not taken an order yet.
    pub fn is_pending(&self) -> bool {
        self.requests.is_waiting()
    }

    /// How long nothing is due.
    pub fn rest(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Looks around, while the target is traced. It is called several times a second.
    pub fn look(&mut self) {
        let Some(saver) = &mut self.saver else { return };
        let now = Instant::now();
        if let Some(every) = self.wanted.every {
            let due = *self.due.get_or_insert_with(|| now.checked_add(every).unwrap_or(now));
            if now >= due {
                saver.order("--snapshot-every".to_owned());
                // What was missed while heaptrace had no time is not made up for.
                self.due = now.checked_add(every);
            }
        }
        if !self.wanted.when.is_empty() {
            let reading = reading(&self.wanted.when, &self.progress);
            for condition in self.watch.look(reading) {
                saver.order(condition.to_string());
            }
        }
    }

    /// Does what `signal` asks for. False if it means nothing here.
    pub fn on_signal(&mut self, signal: i32) -> bool {
        let is = |wanted: Option<UserSignal>| wanted.is_some_and(|wanted| wanted.number() == signal);
        if is(self.wanted.mark_on_signal) {
            self.marks += 1;
            if let Some(name) = MarkName::new(&format!("signal-{}", self.marks)) {
                self.requests.order(&self.control, RequestKind::Mark(name));
            }
            return true;
        }
        if is(self.wanted.on_signal) {
            if let Some(saver) = &mut self.saver {
                saver.order("a signal".to_owned());
            }
            return true;
        }
        false
    }

    /// Waits for what is being written.
    pub(super) fn finish(self) -> Problems {
        self.saver.map(Saver::finish).unwrap_or_default()
    }
}

fn reading(conditions: &[Condition], progress: &Progress) -> Reading {
    let looks_at = |quantity| conditions.iter().any(|condition| condition.quantity() == quantity);
    let pids = progress.processes();
    let first = pids.first().copied();
    let state = progress.read();
    let rss = looks_at(Quantity::Rss).then(|| pids.iter().filter_map(|pid| pressure::resident(*pid)).sum());
    let limit = conditions.iter().any(Condition::needs_memory_limit);
    Reading {
        rss,
        memory_limit: first.filter(|_| limit).and_then(pressure::memory_limit),
        live: state.live_bytes,
        allocated: state.allocated_bytes,
        psi: first.filter(|_| looks_at(Quantity::Psi)).and_then(pressure::memory_pressure),
        at: state.elapsed,
    }
}
