//! How far a session is: counters that the tracer thread writes and the progress line reads, without a lock between.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The state of a running session. Written by the tracer thread only, read by any thread; the values of one
/// [`Reading`] may be a stop apart from each other.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    hits: AtomicU64,
    events: AtomicU64,
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    stopped_ns: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            hits: AtomicU64::new(0),
            events: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            stopped_ns: AtomicU64::new(0),
        }
    }
}

/// What [`Progress::read`] saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Time since the session began.
    pub elapsed: Duration,
    /// Probe hits handled.
    pub hits: u64,
    /// Heap events recorded.
    pub events: u64,
    /// Bytes live now.
    pub live_bytes: u64,
    /// The most bytes that were ever live at one moment.
    pub peak_bytes: u64,
    /// Time that threads of the target stood still for us, summed over all stops.
    pub stopped: Duration,
}

impl Progress {
    /// Counts a probe hit.
    pub fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the `ns` nanoseconds of one finished stop.
    pub fn stop(&self, ns: u64) {
        self.stopped_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts a heap event.
    pub fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that one process has `live` bytes instead of the `shown` ones, which are replaced.
    pub fn live(&self, shown: &mut u64, live: u64) {
        let change = live.wrapping_sub(std::mem::replace(shown, live));
        let all = self.live_bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.peak_bytes.fetch_max(all, Ordering::Relaxed);
    }

    /// The state now.
    pub fn read(&self) -> Reading {
        Reading {
            elapsed: self.began.elapsed(),
            hits: self.hits.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
            live_bytes: self.live_bytes.load(Ordering::Relaxed),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            stopped: Duration::from_nanos(self.stopped_ns.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_hits_and_heaps_add_up() {
        let progress = Progress::default();
        progress.hit();
        progress.hit();
        progress.stop(1_500);
        progress.stop(500);
        let (mut one, mut other) = (0, 0);
        progress.event();
        progress.live(&mut one, 64);
        progress.event();
        progress.live(&mut other, 16);
        progress.live(&mut one, 8);
        let reading = progress.read();
        assert_eq!((reading.hits, reading.stopped), (2, Duration::from_nanos(2_000)));
        assert_eq!((reading.events, reading.live_bytes, reading.peak_bytes), (2, 24, 80));
    }
}
