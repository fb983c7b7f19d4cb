//! What the kernel does at a stop counts as the task's own CPU time. How much that is depends on the machine and on
//! what else runs, so it is measured while the program is traced: from the entry of an allocator function to the
//! thread's next stop, in its return as a rule, the program does nothing but what takes a small part of that time.

use crate::tracer::cputime;

/// So many measurements are kept. When they are, every second one is dropped, and only half as often one is made from
/// then on.
const KEPT: usize = 512;

/// At first, one of so many calls is measured.
const FIRST_INTERVAL: u32 = 4;

/// Fewer say too little.
const FEWEST: usize = 8;

/// What took more than so many times the median was more than a stop, as where the allocator asked the kernel for
/// memory: it counts as so much.
const MAX_MEDIANS: u64 = 4;

/// See the module's head.
#[derive(Debug)]
pub(super) struct StopCost {
    interval: u32,
    calls: u32,
    /// The thread that is measured, with its CPU time at the entry.
    begun: Option<(i32, u64)>,
    measured: Vec<u64>,
}

impl Default for StopCost {
    fn default() -> Self {
        Self { interval: FIRST_INTERVAL, calls: 0, begun: None, measured: Vec::new() }
    }
}

impl StopCost {
    /// A thread stands at the entry of an allocator function whose return will stop it.
    pub(super) fn enters(&mut self, pid: i32, tid: i32) {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(self.interval) {
            self.begun = cputime::of_thread(pid, tid).map(|time| (tid, time));
        }
    }

    /// A thread has stopped.
    pub(super) fn stops(&mut self, pid: i32, tid: i32) {
        if let Some((_, before)) = self.begun.take_if(|(begun, _)| *begun == tid)
            && let Some(now) = cputime::of_thread(pid, tid)
        {
            self.add(now.saturating_sub(before));
        }
    }

    fn add(&mut self, ns: u64) {
        self.measured.push(ns);
        if self.measured.len() >= KEPT {
            let mut keep = false;
            self.measured.retain(|_| {
                keep = !keep;
                keep
            });
            self.interval = self.interval.saturating_mul(2);
        }
    }

    /// The CPU time that a stop takes on average, ns; None if too little is known.
    pub(super) fn mean_ns(&self) -> Option<u64> {
        let mut sorted = self.measured.clone();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied()?;
        let sum = sorted.iter().fold(0u64, |sum, ns| sum.saturating_add((*ns).min(median.saturating_mul(MAX_MEDIANS))));
        (sorted.len() >= FEWEST).then(|| sum.checked_div(sorted.len() as u64)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_stop_is_told_from_what_took_long() {
        let mut cost = StopCost::default();
        (0..7).for_each(|_| cost.add(4_000));
        assert_eq!(cost.mean_ns(), None, "too few");
        cost.add(6_000);
        cost.add(900_000);
        assert_eq!(cost.mean_ns(), Some((7 * 4_000 + 6_000 + 4 * 4_000) / 9));
    }

    #[test]
    fn a_long_run_is_measured_less_and_less_often() {
        let mut cost = StopCost::default();
        (0..100_000).for_each(|_| cost.add(5_000));
        assert!(cost.measured.len() < KEPT && cost.interval > 100 * FIRST_INTERVAL);
        assert_eq!(cost.mean_ns(), Some(5_000));
    }
}
