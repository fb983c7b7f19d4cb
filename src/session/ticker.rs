//! When the rings of the jump engine are drained: at each tick of a timer, which ends the wait for a stop.

use super::Session;
use super::jump::Drained;
use super::process::Process;
use crate::tracer::alarm::Alarm;
use std::time::{Duration, Instant};

/// How often while records come.
const BUSY: Duration = Duration::from_millis(1);
/// How often while none come.
const IDLE: Duration = Duration::from_millis(20);
/// After so many ticks without a record.
const PATIENCE: u32 = 10;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Ticker {
    alarm: Option<(Alarm, Duration)>,
    last: Option<Instant>,
    /// Ticks in a row without a record.
    idle: u32,
    woken: bool,
}

impl Ticker {
    /// The wait was ended.
    pub(super) fn wake(&mut self) {
        self.woken = true;
    }

    /// Whether it is time.
    fn is_due(&mut self) -> bool {
        let is_late = self.last.is_none_or(|last| last.elapsed() >= BUSY);
        std::mem::take(&mut self.woken) || is_late
    }

    /// Sets the timer, or stops it.
    fn set(&mut self, period: Option<Duration>) {
        if self.alarm.as_ref().map(|(_, period)| *period) == period {
            return;
        }
        self.alarm = None;
        match period.map(|period| Alarm::every(period).map(|alarm| (alarm, period))) {
            None => {}
            Some(Ok(alarm)) => self.alarm = Some(alarm),
            // The rings are drained when they are full, then.
            Some(Err(error)) => tracing::warn!("{error}"),
        }
    }
}

impl Session {
    /// Whether the rings of a process fill so fast that nothing is waited for before they are drained again.
    pub(super) fn is_filling(&self) -> bool {
        self.processes.iter().any(Process::is_filling)
    }

    /// Drains what there is, if it is time.
    pub(super) fn tick(&mut self) {
        if !self.processes.iter().any(|process| process.jump.on().is_some()) {
            self.ticker.set(None);
            return;
        }
        if self.ticker.is_due() || self.is_filling() {
            let mut records = 0;
            for process in self.processes.iter_mut() {
                process.drain(Drained::There);
                records += process.take_record_count();
                process.govern();
            }
            self.ticker.idle = if records == 0 { self.ticker.idle.saturating_add(1) } else { 0 };
            self.ticker.last = Some(Instant::now());
        }
        let period = if self.ticker.idle > PATIENCE { IDLE } else { BUSY };
        self.ticker.set(Some(period));
    }
}
