//! What recording costs the program itself, by the routine's own clock samples: a call now and then is timed, until its stack is known.

use crate::jump::layout::TIMED_MOST;
use crate::tracer::cputime::Ticks;

/// The rest of an event, which is not timed, ns: the stub, the frame, the record, and the end of the call.
const REST_NS: u64 = 40;

/// What a call takes that is counted only, where blocks are sampled, and the free of its block: measured by `cargo bench --bench
/// heaptrace -- engines`, as they are too short to be timed one by one.
pub(super) const COUNTED_NS: u64 = 22;

/// What an event takes before one was timed, ns.
const FIRST_GUESS_NS: u64 = 200;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Clock {
    rate: Ticks,
    /// The sums of all cells at the last look: ticks, and timed calls.
    seen: (u64, u64),
}

impl Default for Clock {
    fn default() -> Self {
        Self { rate: Ticks::start(), seen: (0, 0) }
    }
}

impl Clock {
    /// The sums of all cells are so much now.
    pub(super) fn note(&mut self, ticks: u64, calls: u64) {
        self.seen = (ticks, calls);
    }

    /// What an event takes of the program's CPU time on average, ns.
    pub(super) fn event_ns(&self) -> u64 {
        let (ticks, calls) = self.seen;
        let mean = ticks.checked_div(calls).and_then(|ticks| self.rate.to_ns(ticks.min(TIMED_MOST)));
        mean.map_or(FIRST_GUESS_NS, |ns| ns.saturating_add(REST_NS))
    }
}
