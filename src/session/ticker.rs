//! When the rings of the jump engine are drained: at each tick of a timer, which ends the wait for a stop.

use super::Session;
use super::jump::Drained;
use crate::tracer::alarm::Alarm;
use std::time::{Duration, Instant};

/// How often while records come, at least. Each time takes some 50 µs besides the records, most of them to wake up, and
/// where no processor is free the program waits for them.
const BUSY: Duration = Duration::from_millis(2);
/// The same where blocks are sampled, which is done to take little.
const BUSY_SAMPLING: Duration = Duration::from_millis(5);
/// The same where no more than [`SPARSE_RECORDS`] come in it, on average since the last tick; half of it and so on
/// where more do. Copies of stacks fill their slots sooner than that: see `Jump::note_pace`.
const SPARSE_SAMPLING: Duration = Duration::from_millis(40);
/// See [`SPARSE_SAMPLING`].
const SPARSE_RECORDS: u64 = 32;
/// How often where the rings are waited for without sleep, but no processor is left for that.
const UNSLEPT: Duration = Duration::from_millis(1);
/// How often at most. Each tick takes 20 µs of processor time, most of them to sleep and to wake up.
const MIN_PERIOD: Duration = Duration::from_micros(125);
/// How often while none come, at most.
const IDLE: Duration = Duration::from_millis(20);
/// After so many ticks without a record.
const MAX_IDLE_TICKS: u32 = 10;
/// A thread that fills half of its ring in less is not waited for by the timer: it would find its ring full, and stop.
const FAST: Duration = Duration::from_micros(350);
/// For so long at most the tracer looks for stops from one drain to the next then.
const POLL_TIME: Duration = Duration::from_micros(100);
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
    /// For rings of which the fastest was drained at `drained`, and takes so long to be half full. `busy` is the
    /// longest period.
    fn of(until_half: Duration, drained: Instant, busy: Duration) -> Self {
        if until_half < FAST {
            return Self::At(drained + (until_half / 2).min(POLL_TIME), UNSLEPT);
        }
        // in steps, so that the timer is seldom set anew; a quarter of a ring leaves time to wake up and to take it
        let mut period = busy;
        while period > until_half / 2 && period > MIN_PERIOD {
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

/// The longest period of sampled calls, of which `records` have come in the time that has `passed` since the last tick:
/// twice that of `before` at most, as one short time tells little. None has passed at the first tick, at which each
/// stack is new.
fn longest_period(records: u64, passed: Duration, before: Duration) -> Duration {
    let come = |period: Duration| u128::from(records) * period.as_nanos() / passed.as_nanos().max(1);
    let mut period = if passed.is_zero() { BUSY_SAMPLING } else { SPARSE_SAMPLING.min(before * 2) };
    while period > BUSY_SAMPLING && come(period) > u128::from(SPARSE_RECORDS) {
        period /= 2;
    }
    period
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Ticker {
    alarm: Option<(Alarm, Duration)>,
    last: Option<Instant>,
    /// Ticks in a row without a record.
    idle: u32,
    /// The last [`longest_period`].
    longest: Duration,
    pace: Pace,
    /// Until when the rings are expected to fill fast again.
    fast_until: Option<Instant>,
    woken: bool,
}

impl Default for Ticker {
    fn default() -> Self {
        Self {
            alarm: None,
            last: None,
            idle: 0,
            longest: BUSY_SAMPLING,
            pace: Pace::Tick(BUSY),
            fast_until: None,
            woken: false,
        }
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

    /// How the rings are waited for that were drained at `began`: not slept for as long as records have come fast of
    /// late.
    fn pace_after(&mut self, until_half: Duration, began: Instant, busy: Duration) -> Pace {
        match Pace::of(until_half, began, busy) {
            at @ Pace::At(..) => {
                self.fast_until = Some(began + LINGER);
                at
            }
            Pace::Tick(period) if self.fast_until.is_some_and(|moment| began < moment) => {
                Pace::At(began + POLL_TIME, period.min(UNSLEPT))
            }
            tick @ Pace::Tick(_) => tick,
        }
    }

    /// Whether it is time. Since the last tick a stop may have shown that rings fill faster than it was thought: half
    /// of the fastest in `until_half`.
    fn is_due(&mut self, until_half: Duration) -> bool {
        let woken = std::mem::take(&mut self.woken);
        let is_late = |period: Duration| self.last.is_none_or(|last| last.elapsed() >= period.min(until_half));
        match self.pace {
            Pace::Tick(period) => woken || is_late(period),
            Pace::At(moment, _) => Instant::now() >= moment,
        }
    }

    /// No process is on the engine: the next one's first records are of new stacks again.
    fn begin_anew(&mut self) {
        self.set(None);
        *self = Self::default();
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
            self.ticker.begin_anew();
            return;
        }
        if self.ticker.is_due(self.until_half_full()) {
            let began = Instant::now();
            let mut records = 0;
            for process in self.processes.iter_mut() {
                process.jump.drain(&mut process.tracee, &mut process.observer, Drained::There);
                records += process.jump.take_record_count();
                process.jump.govern(process.tracee.pid);
            }
            let until_half = self.until_half_full();
            // of looks, ten are soon over
            let is_look = matches!(self.ticker.pace, Pace::At(..));
            self.ticker.idle = if records > 0 { 0 } else { self.ticker.idle.saturating_add(u32::from(!is_look)) };
            let passed = self.ticker.last.map_or(Duration::ZERO, |last| began.duration_since(last));
            // what comes between looks tells least
            let before = if is_look { BUSY_SAMPLING / 2 } else { self.ticker.longest };
            self.ticker.longest = longest_period(records, passed, before);
            let busy = if self.common.settings.sample_interval > 0 { self.ticker.longest } else { BUSY };
            self.ticker.pace = self.ticker.pace_after(until_half, began, busy);
            self.ticker.last = Some(began);
        }
        let period = self.ticker.pace.period();
        let period = if self.ticker.idle > MAX_IDLE_TICKS { period.max(IDLE) } else { period };
        self.ticker.set(Some(period));
    }

    /// After which time the fastest thread of all will have filled half of its ring.
    fn until_half_full(&self) -> Duration {
        self.processes.iter().map(|process| process.jump.until_half_full()).min().unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_drained_as_often_as_they_fill() {
        let us = Duration::from_micros;
        let now = Instant::now();
        let paces = [(5000, Pace::Tick(us(2000))), (4000, Pace::Tick(us(2000))), (3999, Pace::Tick(us(1000)))];
        let fast = [
            (400, Pace::Tick(us(125))),
            (300, Pace::At(now + us(100), UNSLEPT)),
            (60, Pace::At(now + us(30), UNSLEPT)),
        ];
        for (until_half, expected) in paces.into_iter().chain(fast) {
            assert_eq!(Pace::of(us(until_half), now, BUSY), expected, "half full after {until_half} us");
        }
    }

    #[test]
    fn sampled_blocks_are_waited_for_longer() {
        let us = Duration::from_micros;
        let now = Instant::now();
        for (until_half, expected) in [(90_000, 5000), (10_000, 5000), (9999, 2500), (1000, 312), (350, 156)] {
            let pace = Pace::of(us(until_half), now, BUSY_SAMPLING).period();
            assert_eq!(pace.as_micros(), expected, "half full after {until_half} us");
        }
        assert_eq!(Pace::of(us(60), now, BUSY_SAMPLING), Pace::At(now + us(30), UNSLEPT));
    }

    #[test]
    fn few_sampled_blocks_are_waited_for_longest() {
        let ms = Duration::from_millis;
        let period = |records, passed, before| longest_period(records, ms(passed), ms(before)).as_millis();
        let rates = [(0, 5), (4, 5), (5, 5), (16, 20), (33, 20), (100, 5), (0, 0), (9, 0), (1, 3000)];
        assert_eq!(rates.map(|(records, passed)| period(records, passed, 40)), [40, 40, 20, 40, 10, 5, 5, 5, 40]);
        assert_eq!([5, 10, 20, 40].map(|before| period(0, 20, before)), [10, 20, 40, 40], "step by step");
        assert_eq!(longest_period(0, Duration::from_micros(100), BUSY_SAMPLING / 2), BUSY_SAMPLING, "after a look");
    }

    #[test]
    fn after_a_burst_the_rings_are_looked_at_for_a_while() {
        let us = Duration::from_micros;
        let (mut ticker, began) = (Ticker::default(), Instant::now());
        assert_eq!(ticker.pace_after(us(4000), began, BUSY), Pace::Tick(BUSY), "there was none yet");
        assert_eq!(ticker.pace_after(us(60), began, BUSY), Pace::At(began + us(30), UNSLEPT));
        let later = began + LINGER - us(1);
        assert_eq!(ticker.pace_after(us(5000), later, SPARSE_SAMPLING), Pace::At(later + POLL_TIME, UNSLEPT));
        assert_eq!(
            ticker.pace_after(us(400), later, BUSY),
            Pace::At(later + POLL_TIME, us(125)),
            "as often, without a processor"
        );
        assert_eq!(ticker.pace_after(us(5000), began + LINGER, BUSY), Pace::Tick(BUSY));
    }

    #[test]
    fn what_a_stop_shows_of_the_pace_counts_at_once() {
        let us = Duration::from_micros;
        let mut ticker = Ticker { pace: Pace::Tick(SPARSE_SAMPLING), ..Ticker::default() };
        assert!(ticker.is_due(Duration::MAX), "the first tick");
        ticker.last = Instant::now().checked_sub(us(900));
        assert!(!ticker.is_due(Duration::MAX));
        assert!(ticker.is_due(us(800)));
        ticker.wake();
        assert!(ticker.is_due(Duration::MAX));
        assert!(!ticker.is_due(Duration::MAX), "once");
    }
}
