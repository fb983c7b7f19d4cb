//! Live bytes over time, in a bounded number of points.

use crate::base::figures::TimelinePoint;

/// The most intervals; each gives up to two points.
const MAX_INTERVALS: usize = 512;

/// An interval begins as 2^10 ns long, about a microsecond.
const FIRST_SHIFT: u32 = 10;

#[derive(Clone, Copy, Default, Debug)]
struct Interval {
    /// The moment of most live bytes, the earliest of them.
    highest: TimelinePoint,
    /// The state at the end.
    last: TimelinePoint,
}

/// Divides time into equal intervals and keeps of each the highest moment and the last: the peak is always there,
/// exactly, and so is the state before each pause. When there are too many, intervals double.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// Those that have ended.
    intervals: Vec<Interval>,
    shift: u32,
    current: Interval,
    /// When the current one ends, in nanoseconds; 0 before the first.
    end_ns: u64,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self { intervals: Vec::new(), shift: FIRST_SHIFT, current: Interval::default(), end_ns: 0 }
    }

    /// Takes what is so now. The numbers come one by one, in registers: a point on the stack would be written in words
    /// and read in pairs of them, for which the processor waits.
    #[inline(always)]
    pub(super) fn record(&mut self, t_ns: u64, live_bytes: u64, allocations: u64) {
        // Several threads' clocks are read in another order than their events are handled. The end of an interval is
        // later than all in it.
        let t_ns = t_ns.min(u64::MAX - 1).max(self.current.last.t_ns);
        if t_ns < self.end_ns {
            self.current.last = TimelinePoint { t_ns, live_bytes, allocations };
            if live_bytes > self.current.highest.live_bytes {
                self.current.highest = TimelinePoint { t_ns, live_bytes, allocations };
            }
        } else {
            self.begin_interval(t_ns, live_bytes, allocations);
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_interval(&mut self, t_ns: u64, live_bytes: u64, allocations: u64) {
        let point = TimelinePoint { t_ns, live_bytes, allocations };
        self.intervals.extend(self.newest());
        // the one that begins is another one
        while self.intervals.len() >= MAX_INTERVALS {
            self.shift += 1;
            let shift = self.shift;
            self.intervals.dedup_by(|later, kept| {
                let same = later.last.t_ns >> shift == kept.last.t_ns >> shift;
                if same {
                    kept.last = later.last;
                    if later.highest.live_bytes > kept.highest.live_bytes {
                        kept.highest = later.highest;
                    }
                }
                same
            });
        }
        self.current = Interval { highest: point, last: point };
        self.end_ns = (point.t_ns >> self.shift).saturating_add(1).saturating_mul(1 << self.shift);
    }

    /// The one that has not ended.
    fn newest(&self) -> Option<Interval> {
        (self.end_ns > 0).then_some(self.current)
    }

    pub(super) fn points(&self) -> Vec<TimelinePoint> {
        let intervals = self.intervals.iter().copied().chain(self.newest());
        let mut points: Vec<_> = intervals.flat_map(|i| [i.highest, i.last]).collect();
        points.dedup();
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_bounded_ordered_and_hold_the_peak_and_the_end() {
        let mut timeline = Timeline::new();
        let live = |n: u64| if n == 77_777 { 9_999 } else { n % 100 };
        for n in 0..200_000u64 {
            timeline.record(n * 777, live(n), n);
        }
        let points = timeline.points();
        assert!(points.len() <= 1024 && points.len() > 200, "{}", points.len());
        assert!(points.is_sorted_by_key(|p| p.t_ns));
        let peak = points.iter().max_by_key(|p| p.live_bytes).unwrap();
        assert_eq!((peak.live_bytes, peak.allocations), (9_999, 77_777));
        assert_eq!(points.last().unwrap().allocations, 199_999);
    }

    #[test]
    fn the_state_before_a_pause_is_kept() {
        let mut timeline = Timeline::new();
        for (t_ns, live_bytes) in [(1, 100), (2, 0), (10_000_000_000, 5)] {
            timeline.record(t_ns, live_bytes, 0);
        }
        let points: Vec<_> = timeline.points().iter().map(|p| (p.t_ns, p.live_bytes)).collect();
        assert_eq!(points, [(1, 100), (2, 0), (10_000_000_000, 5)]);
    }

    #[test]
    fn any_times_are_taken() {
        let mut timeline = Timeline::new();
        for t_ns in [5, u64::MAX, 0, u64::MAX - 1] {
            timeline.record(t_ns, 0, 0);
        }
        assert!(timeline.points().is_sorted_by_key(|p| p.t_ns));
        let mut ends_late = Timeline::new();
        for n in 0..400 {
            ends_late.record(n << FIRST_SHIFT, 0, n);
        }
        for allocations in 400..100_000 {
            ends_late.record(u64::MAX, 0, allocations);
        }
        assert_eq!(ends_late.points().len(), 402, "of what came before nothing is lost");
        for n in 0..64u32 {
            let mut spread = Timeline::new();
            for k in 0..2000u64 {
                spread.record(k << n, 0, 0);
            }
            assert!(spread.points().len() <= 1024);
        }
    }
}
