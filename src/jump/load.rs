//! How much of its time a process spends in stops, and so whether it is to be put on the jump engine (`--engine auto`).

/// Less than this is not worth a change to the program's code, ns: as much as the change itself takes. Who waits for
/// so long pays at most twice what the better of both engines would have taken.
const WORTHWHILE_NS: u64 = 2_000_000;

/// The same for each further attempt, after one that found no moment for the change, ns.
const WORTHWHILE_AGAIN_NS: u64 = 10_000_000;

/// Nor are fewer stops: on a busy machine a few of them may take long.
const WORTHWHILE_STOPS: u64 = 40;

/// It is too much from one part in so many of the time on.
const MAX_TIME_DIVISOR: u64 = 5;

/// What the kernel takes at a stop at least, besides what heaptrace works on it, ns: the switches to it and back
/// (hazards.md: 6.5 to 59 µs).
const SWITCHES_NS: u64 = 7_000;

/// All of the time, in tenths of a percent.
const PERMILLE: u64 = 1000;

/// How often it is tried again to find a moment at which a program's code can be changed.
const TRIES_AGAIN: u32 = 10;

/// With `--engine jump` it is tried again after so long, ns, and then each time after twice as long.
const FIRST_PAUSE_NS: u64 = 10_000_000;

/// For how long it is waited after the attempt of this number, from 0 on, until the next one; None: there is none.
pub fn pause_after(attempt: u32) -> Option<u64> {
    (attempt < TRIES_AGAIN).then(|| FIRST_PAUSE_NS << attempt)
}

/// What was taken by stops up to a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Since the process came to be traced, ns.
    now_ns: u64,
    /// By all its stops until then, ns.
    stops_ns: u64,
    /// How many these were.
    stops: u64,
}

impl Load {
    /// What `stops` took of `now_ns`, of which heaptrace has worked on them for `worked_ns`.
    pub fn new(now_ns: u64, stops: u64, worked_ns: u64) -> Self {
        Self { now_ns, stops_ns: worked_ns.saturating_add(stops.saturating_mul(SWITCHES_NS)), stops }
    }

    /// `self` is what it was when this was looked at last: if it has become too much until `now`, the part of that time
    /// that stops took, in tenths of a percent. A program that was idle for long, and is busy now, is judged by what it
    /// does now. `attempts`: how many have found no moment for the change.
    pub fn is_too_much(&mut self, now: Self, attempts: u32) -> Option<u32> {
        let taken = now.stops_ns.saturating_sub(self.stops_ns);
        let worthwhile_ns = if attempts == 0 { WORTHWHILE_NS } else { WORTHWHILE_AGAIN_NS };
        if taken < worthwhile_ns || now.stops.saturating_sub(self.stops) < WORTHWHILE_STOPS {
            return None;
        }
        let passed = now.now_ns.saturating_sub(self.now_ns);
        *self = now;
        let permille = taken.saturating_mul(1000).checked_div(passed).unwrap_or(PERMILLE).min(PERMILLE);
        (taken.saturating_mul(MAX_TIME_DIVISOR) >= passed).then_some(permille as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_fifth_of_the_time_is_too_much() {
        let load = |at_ms, stops_ms| Load { now_ns: at_ms * MS, stops_ns: stops_ms * MS, stops: stops_ms * 20 };
        assert_eq!(Load::default().is_too_much(load(2, 1), 0), None);
        assert_eq!(Load::default().is_too_much(load(10, 2), 0), Some(200));
        let mut looked = Load::default();
        assert_eq!(looked.is_too_much(load(11, 2), 0), None);
        // an hour of nothing, and then much
        assert_eq!(looked.is_too_much(load(3_600_000, 3), 0), None);
        assert_eq!(looked.is_too_much(load(3_600_001, 4), 0), None);
        assert_eq!(looked.is_too_much(load(3_600_002, 5), 0), None);
        assert_eq!(looked.is_too_much(load(3_600_005, 7), 0), Some(750));
    }

    #[test]
    fn a_further_attempt_waits_for_longer() {
        let load = |ms| Load { now_ns: ms * MS, stops_ns: ms * MS, stops: ms * 20 };
        assert_eq!(Load::default().is_too_much(load(9), 1), None);
        assert_eq!(Load::default().is_too_much(load(10), 1), Some(1000));
        assert_eq!(Load::default().is_too_much(load(9), 0), Some(1000));
    }

    #[test]
    fn a_few_stops_that_take_long_are_not_too_much() {
        let load = |stops| Load { now_ns: 100 * MS, stops_ns: 90 * MS, stops };
        assert_eq!(Load::default().is_too_much(load(39), 0), None);
        assert_eq!(Load::default().is_too_much(load(40), 0), Some(900));
    }

    #[test]
    fn no_more_than_all_of_the_time_is_told() {
        let now = Load { now_ns: 100 * MS, stops_ns: 150 * MS, stops: 100 };
        assert_eq!(Load::default().is_too_much(now, 0), Some(1000));
    }

    #[test]
    fn it_is_tried_again_after_longer_and_longer_and_not_for_ever() {
        assert_eq!((pause_after(0), pause_after(1), pause_after(9)), (Some(10 * MS), Some(20 * MS), Some(5_120 * MS)));
        assert_eq!(pause_after(10), None);
    }

    #[test]
    fn the_kernel_s_part_of_a_stop_counts() {
        assert_eq!(Load::new(5, 10, 1_000), Load { now_ns: 5, stops_ns: 71_000, stops: 10 });
        assert_eq!(Load::new(5, u64::MAX, 1), Load { now_ns: 5, stops_ns: u64::MAX, stops: u64::MAX });
    }
}
