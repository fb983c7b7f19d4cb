//! What tracing costs a process: its stops, its CPU time, its memory.

use super::process::Process;
use crate::profile::Cost;
use crate::tracer::{cputime, procfs};
use std::time::Duration;

/// After so many stops the CPU time is asked for.
const STOPS_PER_LOOK: u64 = 1024;

impl Process {
    /// For how long it was traced, ns: what the times of its events and of its end are told in. By the clock of the
    /// events, so that none of them comes after the end.
    pub(super) fn lived_ns(&self) -> u64 {
        self.observer.age_ns()
    }

    /// A stop was answered, which took `time`.
    pub(super) fn count_stop(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.cost.stops += 1;
        self.cost.stopped_ns += ns;
        self.cost.stopped_max_ns = self.cost.stopped_max_ns.max(ns);
        self.progress.stop();
        // It may be killed, so that its end can't be asked.
        if self.cost.stops.is_multiple_of(STOPS_PER_LOOK) {
            self.note_cpu_time();
        }
    }

    /// Notes the CPU time until now.
    pub(super) fn note_cpu_time(&mut self) {
        if let Some(now) = cputime::of_process(self.tracee.pid) {
            self.cost.cpu_ns = now.all_ns.saturating_sub(self.cpu_before.all_ns);
            self.cost.user_ns = now.user_ns.saturating_sub(self.cpu_before.user_ns);
        }
        if let Some(each) = self.stop_cost.mean_ns() {
            self.cost.stops_cpu_ns = self.cost.stops.saturating_mul(each);
            self.progress.stop_takes(each);
        }
    }

    /// Before the first call of the allocator: until now, hardly any stop has been in the way.
    pub(super) fn note_undisturbed_time(&mut self) {
        self.note_cpu_time();
        let mut cost = Cost { user_ns: 0, ..self.cost };
        self.jump.add_cost(&mut cost);
        self.cost.known_cpu_ns = cost.own_cpu_ns();
    }

    /// Notes how much memory was resident at most until now, as far as task `tid` still has it.
    pub(super) fn note_peak_resident(&mut self, tid: i32) {
        self.peak_resident = self.peak_resident.max(procfs::peak_resident(tid));
    }
}
