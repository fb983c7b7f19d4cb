//! What recording costs the program itself, by the routine's own clock samples: a call now and then is timed, until its
//! stack is known.

use crate::jump::layout::TIMED_MOST;
use crate::tracer::cputime::Ticks;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The rest of an event, which is not timed, ns: the stub, the frame, the record, and the end of the call.
const REST_NS: u64 = 40;

/// What a call takes that is counted only, where blocks are sampled, and the free of its block, which are too short to
/// be timed one by one: 4 to 6 in a loop of nothing else (`cargo bench --bench heaptrace -- engines`), 9 to 13 where
/// 65,536 live blocks are given back at random; a calloc takes more.
pub(super) const COUNTED_NS: u64 = 10;

/// What an event takes before one was timed, ns.
const FIRST_GUESS_NS: u64 = 200;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Clock {
    rate: Ticks,
    /// The sums of all cells at the last look: ticks, and timed calls.
    seen: (u64, u64),
    /// The sum of all cells at the last look: how often threads have looked for room.
    spun: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { rate: Ticks::start(), seen: (0, 0), spun: 0 }
    }
}

impl Clock {
    /// The sums of all cells are so much now.
    pub(super) fn note(&mut self, ticks: u64, calls: u64) {
        self.seen = (ticks, calls);
    }

    /// Threads have looked for room in their rings so often in all. For how long they have done so since this was told
    /// last, ns.
    pub(super) fn note_spun(&mut self, spun: u64) -> u64 {
        // the program can write there
        let new = spun.wrapping_sub(std::mem::replace(&mut self.spun, spun)).min(1 << 32);
        (new as f64 * pause_ns()) as u64
    }

    /// What an event takes of the program's CPU time on average, ns.
    pub(super) fn event_ns(&self) -> u64 {
        let (ticks, calls) = self.seen;
        let mean = ticks.checked_div(calls).and_then(|ticks| self.rate.to_ns(ticks.min(TIMED_MOST)));
        mean.map_or(FIRST_GUESS_NS, |ns| ns.saturating_add(REST_NS))
    }
}

/// What a `pause` takes on this processor, ns: 5 to 50.
fn pause_ns() -> f64 {
    const PAUSES: u32 = 200;
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let once = |_| {
            let began = Instant::now();
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            began.elapsed()
        };
        // the least: other programs may have the processor meanwhile
        let least = (0..5).map(once).min().unwrap_or(Duration::ZERO);
        least.as_nanos() as f64 / f64::from(PAUSES)
    })
}
