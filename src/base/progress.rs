//! How far a session is: counters that the tracer thread writes and the progress line reads, without a lock between.
//! (The list of processes, which rarely changes, has one.)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The state of a running session. Written by the tracer thread only, but for the time waited; read by any thread; the
/// values of one [`Reading`] may be a stop apart from each other.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    events: AtomicU64,
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    stops: AtomicU64,
    waited_ns: AtomicU64,
    waited_least_ns: AtomicU64,
    waited_most_ns: AtomicU64,
    stop_cpu_ns: AtomicU64,
    recording_ns: AtomicU64,
    serves: AtomicBool,
    counts_allocated: AtomicBool,
    allocated_bytes: AtomicU64,
    /// The processes that are traced, and since when.
    processes: Mutex<Vec<(i32, Instant)>>,
    begun: AtomicU64,
    faults: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            events: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            stops: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            waited_least_ns: AtomicU64::new(0),
            waited_most_ns: AtomicU64::new(0),
            stop_cpu_ns: AtomicU64::new(0),
            recording_ns: AtomicU64::new(0),
            serves: AtomicBool::new(false),
            counts_allocated: AtomicBool::new(false),
            allocated_bytes: AtomicU64::new(0),
            processes: Mutex::new(Vec::new()),
            begun: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        }
    }
}

/// What [`Progress::read`] saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Time since the session began.
    pub elapsed: Duration,
    /// Heap events recorded.
    pub events: u64,
    /// Bytes live now.
    pub live_bytes: u64,
    /// The most bytes that were ever live at one moment.
    pub peak_bytes: u64,
    /// Bytes allocated so far, if they are counted.
    pub allocated_bytes: u64,
    /// Stops answered.
    pub stops: u64,
    /// For how long the program had to wait for heaptrace: by how much its run was prolonged.
    pub waited: Duration,
    /// The bounds of that estimate.
    pub waited_range: (Duration, Duration),
    /// What a stop takes of the program's CPU time; zero if that is not known.
    pub stop_cpu: Duration,
    /// What recording without stops has taken of the program's CPU time.
    pub recording: Duration,
    /// Whether a stop is being answered just now.
    pub serves: bool,
}

impl Progress {
    /// Counts a stop that was answered.
    pub fn stop(&self) {
        self.stops.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes whether a stop is being answered, rather than waited for.
    pub fn serves(&self, serves: bool) {
        self.serves.store(serves, Ordering::Relaxed);
    }

    /// Notes what a stop takes of the program's CPU time.
    pub fn stop_takes(&self, ns: u64) {
        self.stop_cpu_ns.store(ns, Ordering::Relaxed);
    }

    /// Adds what recording without stops has taken of the program's CPU time.
    pub fn recording(&self, ns: u64) {
        self.recording_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Notes for how long the program had to wait for heaptrace until now, about, and between which bounds that lies.
    pub fn waited(&self, about: Duration, (least, most): (Duration, Duration)) {
        for (word, time) in [(&self.waited_ns, about), (&self.waited_least_ns, least), (&self.waited_most_ns, most)] {
            word.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Notes that a program is about to handle a fault of its own.
    pub fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// How many of those there were.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Notes a process that is traced from now on. `born`: when the clock of its events began.
    pub fn begins(&self, pid: i32, born: Instant) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).push((pid, born));
    }

    /// Notes that a process is traced no more.
    pub fn ends(&self, pid: i32) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != pid);
    }

    /// The processes that are traced.
    pub fn processes(&self) -> Vec<i32> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(pid, _)| *pid).collect()
    }

    /// How long a process has been traced by now, by the clock of its events; None if it is traced no more.
    pub fn lived(&self, pid: i32) -> Option<Duration> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.iter().find(|(known, _)| *known == pid).map(|(_, born)| born.elapsed())
    }

    /// The process that is traced, if there was never another one: what is measured of the session is its own then.
    pub fn only_process(&self) -> Option<i32> {
        match self.processes()[..] {
            [pid] if self.begun.load(Ordering::Relaxed) == 1 => Some(pid),
            _ => None,
        }
    }

    /// Notes that one process has seen `all` heap events so far, of which `shown` are counted already.
    pub fn events(&self, shown: &mut u64, all: u64) {
        let before = std::mem::replace(shown, all);
        self.events.fetch_add(all.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Notes that one process has `live` bytes instead of the `shown` ones, which are replaced.
    pub fn live(&self, shown: &mut u64, live: u64) {
        let change = live.wrapping_sub(std::mem::replace(shown, live));
        let all = self.live_bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.peak_bytes.fetch_max(all, Ordering::Relaxed);
    }

    /// Makes the tracer thread count allocated bytes, too.
    pub fn count_allocated(&self) {
        self.counts_allocated.store(true, Ordering::Relaxed);
    }

    /// Notes that one process has allocated `all` bytes so far, of which `shown` are counted already; if they are
    /// wanted.
    pub fn allocated(&self, shown: &mut u64, all: u64) {
        if self.counts_allocated.load(Ordering::Relaxed) {
            // An exec begins anew.
            let before = std::mem::replace(shown, all);
            self.allocated_bytes.fetch_add(all.checked_sub(before).unwrap_or(all), Ordering::Relaxed);
        }
    }

    /// The state now.
    pub fn read(&self) -> Reading {
        Reading {
            elapsed: self.began.elapsed(),
            events: self.events.load(Ordering::Relaxed),
            live_bytes: self.live_bytes.load(Ordering::Relaxed),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            allocated_bytes: self.allocated_bytes.load(Ordering::Relaxed),
            stops: self.stops.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
            waited_range: (
                Duration::from_nanos(self.waited_least_ns.load(Ordering::Relaxed)),
                Duration::from_nanos(self.waited_most_ns.load(Ordering::Relaxed)),
            ),
            stop_cpu: Duration::from_nanos(self.stop_cpu_ns.load(Ordering::Relaxed)),
            recording: Duration::from_nanos(self.recording_ns.load(Ordering::Relaxed)),
            serves: self.serves.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_the_only_one_if_there_was_never_another() {
        let progress = Progress::default();
        assert_eq!(progress.only_process(), None);
        progress.begins(7, Instant::now());
        assert_eq!(progress.only_process(), Some(7));
        progress.begins(8, Instant::now());
        progress.ends(7);
        assert_eq!((progress.processes(), progress.only_process()), (vec![8], None));
    }

    /// A session begins before its first process does: the program is loaded, or waits for --delay.
    #[test]
    fn a_process_has_a_clock_of_its_own() {
        let progress = Progress::default();
        assert_eq!(progress.lived(7), None);
        let born = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        progress.begins(7, born);
        progress.begins(8, Instant::now());
        let lived = |pid| progress.lived(pid).unwrap();
        assert!(lived(7) >= Duration::from_secs(5) && lived(8) < Duration::from_secs(5));
        progress.ends(7);
        assert_eq!(progress.lived(7), None);
    }

    #[test]
    fn stops_and_heaps_add_up() {
        let progress = Progress::default();
        progress.stop();
        progress.stop();
        progress.waited(Duration::from_millis(3), (Duration::from_millis(2), Duration::from_millis(4)));
        progress.begins(7, Instant::now());
        progress.begins(8, Instant::now());
        progress.ends(7);
        assert_eq!(progress.processes(), [8]);
        let (mut one, mut other) = (0, 0);
        let mut shown = 0;
        progress.events(&mut shown, 1);
        progress.live(&mut one, 64);
        progress.events(&mut shown, 2);
        progress.live(&mut other, 16);
        progress.live(&mut one, 8);
        let reading = progress.read();
        assert_eq!((reading.stops, reading.waited), (2, Duration::from_millis(3)));
        assert_eq!((reading.events, reading.live_bytes, reading.peak_bytes), (2, 24, 80));
    }
}
