//! What tracing costs a process: its stops, its CPU time, its memory.

use super::jump::JumpEngine;
use super::stopcost::StopCost;
use crate::base::progress::Progress;
use crate::profile::Cost;
use crate::tracer::cputime::CpuTime;
use crate::tracer::{cputime, procfs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so many stops the CPU time is asked for.
const STOPS_PER_LOOK: u64 = 1024;

/// See the module's head.
#[derive(Debug)]
pub(super) struct CostMeter {
    pid: i32,
    progress: Arc<Progress>,
    /// What was measured so far. The jump engine adds its own part ([`JumpEngine::add_cost`]).
    pub(super) measured: Cost,
    /// What a stop takes of the process's CPU time.
    pub(super) stop_cost: StopCost,
    /// The CPU time that it had used when tracing began.
    cpu_before: CpuTime,
    /// The most that its current image is known to have had resident, in bytes.
    pub(super) peak_resident: Option<u64>,
}

impl CostMeter {
    /// Of the process `pid`, whose tracing begins now.
    pub(super) fn new(pid: i32, progress: Arc<Progress>) -> Self {
        Self {
            pid,
            progress,
            measured: Cost::default(),
            stop_cost: StopCost::default(),
            cpu_before: cputime::of_process(pid).unwrap_or_default(),
            peak_resident: None,
        }
    }

    /// A stop was answered, which took `time`.
    pub(super) fn count_stop(&mut self, time: Duration) {
        self.measured.stops += 1;
        self.add_stopped(time);
        self.progress.stop();
        // It may be killed, so that its end can't be asked.
        if self.measured.stops.is_multiple_of(STOPS_PER_LOOK) {
            self.note_cpu_time();
        }
    }

    /// The process has stood still since `began`. For how long, in ns.
    pub(super) fn note_standstill(&mut self, began: Instant) -> u64 {
        self.add_stopped(began.elapsed())
    }

    fn add_stopped(&mut self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.measured.stopped_ns += ns;
        self.measured.stopped_max_ns = self.measured.stopped_max_ns.max(ns);
        ns
    }

    /// Notes the CPU time until now.
    pub(super) fn note_cpu_time(&mut self) {
        if let Some(now) = cputime::of_process(self.pid) {
            self.measured.cpu_ns = now.all_ns.saturating_sub(self.cpu_before.all_ns);
            self.measured.user_ns = now.user_ns.saturating_sub(self.cpu_before.user_ns);
        }
        if let Some(each) = self.stop_cost.mean_ns() {
            self.measured.stops_cpu_ns = self.measured.stops.saturating_mul(each);
            self.progress.stop_takes(each);
        }
    }

    /// Before the first call of the allocator: until now, hardly any stop has been in the way.
    pub(super) fn note_undisturbed_time(&mut self, jump: &JumpEngine) {
        self.note_cpu_time();
        let mut cost = Cost { user_ns: 0, ..self.measured };
        jump.add_cost(&mut cost);
        self.measured.known_cpu_ns = cost.own_cpu_ns();
    }

    /// Notes how much memory was resident at most until now, as far as task `tid` still has it.
    pub(super) fn note_peak_resident(&mut self, tid: i32) {
        self.peak_resident = self.peak_resident.max(procfs::peak_resident(tid));
    }
}
