//! When the rings of the jump engine are drained: at each tick of a timer, which ends the wait for a stop.

use super::Session;
use super::jump::Drained;
use crate::tracer::alarm::Alarm;
use std::time::{Duration, Instant};

/// How often while records come, at least.
const BUSY: Duration = Duration::from_millis(1);
/// The same where blocks are sampled, which is done to take little. Each time takes some 35 µs, most of them to wake up, and where no processor is free the program waits for them.
const BUSY_SAMPLING: Duration = Duration::from_millis(5);
/// The same where no more than [`FEW`] come in it, on average since the last tick. Copies of stacks fill their slots sooner than that: see `Jump::note_pace`.
const SPARSE_SAMPLING: Duration = Duration::from_millis(20);
/// See [`SPARSE_SAMPLING`].
const FEW: u64 = 32;
/// How often at most. To tick more often would not help: in a virtual machine it takes 0.1 ms to wake up.
const MOST: Duration = Duration::from_micros(250);
/// How often while none come.
const IDLE: Duration = Duration::from_millis(20);
/// After so many ticks without a record.
const PATIENCE: u32 = 10;
/// A thread that fills half of its ring in less is not waited for by the timer: it would find its ring full, and stop.
const FAST: Duration = Duration::from_micros(350);
/// For so long at most the tracer looks for stops from one drain to the next then.
const LOOK: Duration = Duration::from_micros(100);
/// For so long afterwards it does the same: calls and new stacks come in bursts.
const LINGER: Duration = Duration::from_millis(3);

/// When the rings are drained next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    /// When so much time has passed.
    Tick(Duration),
    /// At a moment that is not slept for; where no processor is left to look, when so much time has passed.
    At(Instant, Duration),
}

impl Pace {
    /// For rings of which the fastest was drained at `drained`, and takes so long to be half full. `busy` is the longest period.
    fn of(until_half: Duration, drained: Instant, busy: Duration) -> Self {
        if until_half < FAST {
            return Self::At(drained + (until_half / 2).min(LOOK), BUSY);
        }
        // in steps, so that the timer is seldom set anew
        let mut period = busy;
        while period > until_half && period > MOST {
            period /= 2;
        }
        Self::Tick(period)
    }

    fn period(self) -> Duration {
        match self {
            Self::Tick(period) | Self::At(_, period) => period,
        }
    }
}

/// The longest period where `records` have come in the time that has `passed` since the last tick.
fn longest_period(is_sampled: bool, records: u64, passed: Duration) -> Duration {
    if !is_sampled {
        BUSY
    } else if passed.is_zero() {
        // the first tick: each stack is new
        BUSY_SAMPLING
    } else if u128::from(records) * SPARSE_SAMPLING.as_nanos() <= u128::from(FEW) * passed.as_nanos() {
        SPARSE_SAMPLING
    } else {
        BUSY_SAMPLING
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Ticker {
    alarm: Option<(Alarm, Duration)>,
    last: Option<Instant>,
    /// Ticks in a row without a record.
    idle: u32,
    pace: Pace,
    /// Until when the rings are expected to fill fast again.
    fast_until: Option<Instant>,
    woken: bool,
}

impl Default for Ticker {
    fn default() -> Self {
        Self { alarm: None, last: None, idle: 0, pace: Pace::Tick(BUSY), fast_until: None, woken: false }
    }
}

impl Ticker {
    /// The wait was ended.
    pub(super) fn wake(&mut self) {
        self.woken = true;
    }

    /// Until when the tracer looks for stops, and does not sleep.
    pub(super) fn look_until(&self) -> Option<Instant> {
        match self.pace {
            Pace::Tick(_) => None,
            Pace::At(moment, _) => Some(moment),
        }
    }

    /// How the rings are waited for that were drained at `began`: not slept for as long as records have come fast of late.
    fn pace_after(&mut self, until_half: Duration, began: Instant, busy: Duration) -> Pace {
        match Pace::of(until_half, began, busy) {
            at @ Pace::At(..) => {
                self.fast_until = Some(began + LINGER);
                at
            }
            Pace::Tick(period) if self.fast_until.is_some_and(|moment| began < moment) => {
                Pace::At(began + LOOK, period)
            }
            tick @ Pace::Tick(_) => tick,
        }
    }

    /// Whether it is time.
    fn is_due(&mut self) -> bool {
        let woken = std::mem::take(&mut self.woken);
        let is_late = |period| self.last.is_none_or(|last| last.elapsed() >= period);
        match self.pace {
            Pace::Tick(period) => woken || is_late(period),
            Pace::At(moment, _) => Instant::now() >= moment,
        }
    }

    /// Sets the timer, or stops it.
    fn set(&mut self, period: Option<Duration>) {
        if self.alarm.as_ref().map(|(_, period)| *period) == period {
            return;
        }
        let alarm = self.alarm.take();
        let Some(period) = period else { return };
        let alarm = match alarm {
            Some((alarm, _)) => alarm.set(period).map(|()| alarm),
            None => Alarm::every(period),
        };
        match alarm {
            Ok(alarm) => self.alarm = Some((alarm, period)),
            // The rings are drained when they are full, then.
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

impl Session {
    /// Drains what there is, if it is time.
    pub(super) fn tick(&mut self) {
        if !self.processes.iter().any(|process| process.jump.on().is_some()) {
            self.ticker.pace = Pace::Tick(BUSY);
            self.ticker.set(None);
            return;
        }
        if self.ticker.is_due() {
            let began = Instant::now();
            let mut records = 0;
            let mut until_half = Duration::MAX;
            for process in self.processes.iter_mut() {
                process.drain(Drained::There);
                records += process.take_record_count();
                until_half = until_half.min(process.until_half_full());
                process.govern();
            }
            // of looks, ten are soon over
            let is_look = matches!(self.ticker.pace, Pace::At(..));
            self.ticker.idle = if records > 0 { 0 } else { self.ticker.idle.saturating_add(u32::from(!is_look)) };
            let passed = self.ticker.last.map_or(Duration::ZERO, |last| began.duration_since(last));
            let busy = longest_period(self.common.settings.sample_interval > 0, records, passed);
            self.ticker.pace = self.ticker.pace_after(until_half, began, busy);
            self.ticker.last = Some(began);
        }
        let period = if self.ticker.idle > PATIENCE { IDLE } else { self.ticker.pace.period() };
        self.ticker.set(Some(period));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_drained_as_often_as_they_fill() {
        let us = Duration::from_micros;
        let now = Instant::now();
        let paces = [(5000, Pace::Tick(us(1000))), (1000, Pace::Tick(us(1000))), (999, Pace::Tick(us(500)))];
        let fast =
            [(400, Pace::Tick(us(250))), (300, Pace::At(now + us(100), BUSY)), (60, Pace::At(now + us(30), BUSY))];
        for (until_half, expected) in paces.into_iter().chain(fast) {
            assert_eq!(Pace::of(us(until_half), now, BUSY), expected, "half full after {until_half} us");
        }
    }

    #[test]
    fn sampled_blocks_are_waited_for_longer() {
        let us = Duration::from_micros;
        let now = Instant::now();
        for (until_half, expected) in [(90_000, 5000), (5000, 5000), (4999, 2500), (1000, 625), (350, 312)] {
            let pace = Pace::of(us(until_half), now, BUSY_SAMPLING).period();
            assert_eq!(pace.as_micros(), expected, "half full after {until_half} us");
        }
        assert_eq!(Pace::of(us(60), now, BUSY_SAMPLING), Pace::At(now + us(30), BUSY));
    }

    #[test]
    fn few_sampled_blocks_are_waited_for_longest() {
        let ms = Duration::from_millis;
        let rates = [(0, 5), (8, 5), (9, 5), (32, 20), (33, 20), (0, 0), (1, 3000)];
        let periods = rates.map(|(records, passed)| longest_period(true, records, ms(passed)).as_millis());
        assert_eq!(periods, [20, 20, 5, 20, 5, 5, 20]);
        assert_eq!(longest_period(false, 0, ms(20)), BUSY);
    }

    #[test]
    fn after_a_burst_the_rings_are_looked_at_for_a_while() {
        let us = Duration::from_micros;
        let (mut ticker, began) = (Ticker::default(), Instant::now());
        assert_eq!(ticker.pace_after(us(1000), began, BUSY), Pace::Tick(BUSY), "there was none yet");
        assert_eq!(ticker.pace_after(us(60), began, BUSY), Pace::At(began + us(30), BUSY));
        let later = began + LINGER - us(1);
        assert_eq!(ticker.pace_after(us(5000), later, BUSY), Pace::At(later + LOOK, BUSY));
        assert_eq!(
            ticker.pace_after(us(400), later, BUSY),
            Pace::At(later + LOOK, us(250)),
            "as often, without a processor"
        );
        assert_eq!(ticker.pace_after(us(5000), began + LINGER, BUSY), Pace::Tick(BUSY));
    }
}
