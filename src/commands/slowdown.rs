//! By how much tracing prolongs the program's run.
//!
//! What heaptrace itself measures at a stop is only how long it works on it. The rest of what a thread waits (until the
//! tracer has served others, and the kernel has switched to it and back) begins before the tracer hears of the stop. So
//! a look at the threads' states now and then tells in which share of the time all of them slept, which they would have
//! done without heaptrace, too, in which they ran or were ready to, and in which they stood still for the tracer. Of
//! the time that they ran, the greater part is often the kernel's work at stops: [`Cost::own_cpu_ns`] says what is the
//! program's. Of the time that they were only ready, the greater part passed after stops, too.

use crate::base::progress::Progress;
use crate::profile::Cost;
use crate::session::Traced;
use crate::tracer::{cputime, procfs};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often it is looked at most, and in the first [`EARLY`] of a run, as many are over soon. A look takes 0.1 ms and
/// more.
const EARLY_INTERVAL: Duration = Duration::from_millis(10);

const EARLY: Duration = Duration::from_secs(1);

/// At a program that was attached to it is looked when this part of the time since then has passed again: a tenth.
const TIME_DIVISOR: u32 = 10;

const INTERVAL: Duration = Duration::from_millis(100);

/// What a call of the kernel takes at least, and a page fault, ns.
const CALL_NS: u64 = 150;
const FAULT_NS: u64 = 250;

/// For how long a thread has a processor before another one that is ready gets it, s: `base_slice_ns` of eight
/// processors and more, half of it on two (kernel/sched/fair.c, `sysctl_sched_base_slice`).
const SLICE: f64 = 0.003;

/// At most so many threads are looked at.
const THREADS: usize = 256;

/// What was seen of a session's threads.
#[derive(Debug)]
pub struct Slowdown {
    began: Instant,
    looked: Instant,
    /// Whether the program was started by heaptrace: before its first stop it waits for that.
    launched: bool,
    /// The number of stops at the last look.
    stops: u64,
    /// How many threads can run at once.
    processors: u32,
    /// Time in which no thread had anything to do.
    idle: Duration,
    /// Time in which some had.
    busy: Duration,
    /// The part of it in which they got on: where some ran and some stood still for the tracer, a share.
    moving: Duration,
    /// The sum of the squares of the times between looks that were counted, s².
    squares: f64,
    /// [`Self::busy`], each moment times the number of threads that could have run at once.
    lanes: Duration,
    usage: Usage,
}

/// What processes have used since they came to be or, where heaptrace attached, were looked at first: they may have run
/// for days before.
#[derive(Debug, Default)]
struct Usage(BTreeMap<i32, [Used; 2]>);

/// What a process has used up to some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu: cputime::CpuTime,
    /// What its counted calls of the kernel took of it at least, ns.
    in_kernel_ns: u64,
}

impl Usage {
    fn note(&mut self, pid: i32, from_its_start: bool, now: Used) {
        let first = if from_its_start { Used::default() } else { now };
        self.0.entry(pid).or_insert([first, now])[1] = now;
    }

    fn sum(&self) -> Used {
        self.0.values().fold(Used::default(), |sum, [first, last]| {
            let add = |sum: u64, of: fn(&Used) -> u64| sum.saturating_add(of(last).saturating_sub(of(first)));
            Used {
                cpu: cputime::CpuTime {
                    all_ns: add(sum.cpu.all_ns, |used| used.cpu.all_ns),
                    user_ns: add(sum.cpu.user_ns, |used| used.cpu.user_ns),
                },
                in_kernel_ns: add(sum.in_kernel_ns, |used| used.in_kernel_ns),
            }
        })
    }
}

/// After which time it is looked again, `elapsed` after the start or the attach.
fn interval(launched: bool, elapsed: Duration) -> Duration {
    if !launched {
        // it has other things to do than to be looked at, and is mostly attached to for longer
        (elapsed / TIME_DIVISOR).clamp(EARLY_INTERVAL, INTERVAL)
    } else if elapsed < EARLY {
        EARLY_INTERVAL
    } else {
        INTERVAL
    }
}

impl Slowdown {
    /// Nothing seen yet of a program that heaptrace has started, or attached to.
    pub fn new(launched: bool) -> Self {
        let processors =
            std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        let now = Instant::now();
        Self {
            began: now,
            looked: now,
            launched,
            stops: 0,
            processors,
            idle: Duration::ZERO,
            busy: Duration::ZERO,
            moving: Duration::ZERO,
            squares: 0.0,
            lanes: Duration::ZERO,
            usage: Usage::default(),
        }
    }

    /// After which time it is to be looked again.
    pub fn interval(&self) -> Duration {
        interval(self.launched, self.began.elapsed())
    }

    /// Looks at the threads.
    pub fn look(&mut self, progress: &Progress) {
        let processes = progress.processes();
        let reading = progress.read();
        let stops = reading.stops;
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut self.looked, now));
        // Without a stop meanwhile, a thread that stands still waits for somebody else: a signal has stopped it
        // (SIGSTOP).
        let serves = std::mem::replace(&mut self.stops, stops) != stops || reading.serves;
        let (mut running, mut held) = (0u32, 0u32);
        let mut left = THREADS;
        for pid in processes {
            let states = procfs::states(pid, left);
            left = left.saturating_sub(states.all);
            running = running.saturating_add(states.running);
            held = held.saturating_add(if serves { states.traced } else { 0 });
            if let Some(cpu) = cputime::of_process(pid) {
                let (calls, faults) = procfs::counted_kernel_calls(pid).unwrap_or_default();
                let in_kernel_ns = calls.saturating_mul(CALL_NS).saturating_add(faults.saturating_mul(FAULT_NS));
                self.usage.note(pid, self.launched, Used { cpu, in_kernel_ns });
            }
        }
        let begins = self.launched && stops == 0;
        if left < THREADS && !begins {
            self.count(running, held, passed);
        }
        let Used { cpu, in_kernel_ns } = self.usage.sum();
        let stops_cpu_ns = u64::try_from(reading.stop_cpu.as_nanos()).unwrap_or(u64::MAX).saturating_mul(stops);
        let cost = Cost {
            stops,
            stops_cpu_ns,
            events: reading.events,
            recording_ns: u64::try_from(reading.recording.as_nanos()).unwrap_or(u64::MAX),
            known_cpu_ns: in_kernel_ns,
            cpu_ns: cpu.all_ns,
            user_ns: cpu.user_ns,
            ..Cost::default()
        };
        let waited = self.waited(self.began.elapsed(), &cost);
        progress.waited(waited.about, (waited.least, waited.most));
    }

    /// Counts a time in which some threads ran, or were ready to, and others were held by the tracer.
    fn count(&mut self, running: u32, held: u32, passed: Duration) {
        self.squares += passed.as_secs_f64().powi(2);
        let lanes = running.saturating_add(held).min(self.processors);
        if lanes == 0 {
            self.idle += passed;
        } else {
            self.busy += passed;
            self.moving += passed * running.min(lanes) / lanes;
            self.lanes += passed * lanes;
        }
    }

    /// How much of a run of `wall` time the program has waited for heaptrace.
    fn waited(&self, wall: Duration, cost: &Cost) -> Waited {
        let ratio = |part: Duration, whole: Duration, otherwise: f64| {
            if whole.is_zero() { otherwise } else { part.as_secs_f64() / whole.as_secs_f64() }
        };
        let seen = self.idle + self.busy;
        let (idle, moving) = (ratio(self.idle, seen, 0.0), ratio(self.moving, seen, 0.0));
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        let used = seconds(cost.cpu_ns);
        let lanes = ratio(self.lanes, self.busy, 1.0);
        let wall = wall.as_secs_f64();
        let ready = (wall * moving - used / lanes).max(0.0);
        // The CPU time is how long the program ran at least; the rest of the time in which threads were seen to run
        // they were ready to, and others had the processors. A thread waits for one when its time is up, and after a
        // stop. (After a sleep, too, which nothing counts: what a program that sleeps often waits for then on a busy
        // machine is heaptrace's in part.)
        let ran = |own: f64| {
            let ready_own = if used > 0.0 { ready * own / (used + cost.stops as f64 * SLICE) } else { ready };
            own / lanes + ready_own
        };
        let waited = |alone: f64| Duration::try_from_secs_f64(wall - alone).unwrap_or_default();
        // what the looks leave open is how long it got on; how much of that was its own follows from CPU time and stops
        let got_on = (idle + moving).min(1.0);
        let moved = (wall * moving).max(used / lanes);
        let alone = |got_on_for: f64, own: f64| {
            let own_share = if moved > 0.0 { ran(own) / moved } else { 1.0 };
            let own_part = if got_on > 0.0 { (idle + moving * own_share) / got_on } else { own_share };
            (wall * got_on_for * own_part).max(own / lanes)
        };
        let (low, high) = between(got_on, self.looks());
        let (own_low, own_high) = cost.own_cpu_bounds_ns();
        let about = waited(wall * idle + ran(seconds(cost.own_cpu_ns())));
        Waited {
            about,
            least: waited(alone(high, seconds(own_high))).min(about),
            most: waited(alone(low, seconds(own_low))).max(about),
        }
    }

    /// As how many looks of equal weight those count that there were.
    fn looks(&self) -> f64 {
        let seen = (self.idle + self.busy).as_secs_f64();
        if self.squares > 0.0 { seen * seen / self.squares } else { 0.0 }
    }

    /// Writes down for how long the program has waited until its end.
    pub fn conclude(&self, traced: &mut Traced) {
        let began_ns = traced.first.facts.origin.start_ns;
        let sum = traced.all().fold(Cost::default(), |sum, recording| Cost {
            wall_ns: sum.wall_ns.max(
                recording.facts.origin.start_ns.saturating_add(recording.facts.cost.wall_ns).saturating_sub(began_ns),
            ),
            stops: sum.stops.saturating_add(recording.facts.cost.stops),
            cpu_ns: sum.cpu_ns.saturating_add(recording.facts.cost.cpu_ns),
            user_ns: sum.user_ns.saturating_add(recording.facts.cost.user_ns),
            stops_cpu_ns: sum.stops_cpu_ns.saturating_add(recording.facts.cost.stops_cpu_ns),
            known_cpu_ns: sum.known_cpu_ns.saturating_add(recording.facts.cost.known_cpu_ns),
            events: sum.events.saturating_add(recording.facts.cost.events),
            events_without_stop: sum.events_without_stop.saturating_add(recording.facts.cost.events_without_stop),
            recording_ns: sum.recording_ns.saturating_add(recording.facts.cost.recording_ns),
            ..sum
        });
        let known_cpu_ns = sum.known_cpu_ns.saturating_add(self.usage.sum().in_kernel_ns);
        let sum = Cost { known_cpu_ns, ..sum };
        tracing::debug!("slowness: {self:?}, {sum:?}");
        let waited = self.waited(Duration::from_nanos(sum.wall_ns), &sum);
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        traced.first.facts.cost.waited_ns = Some(ns(waited.about));
        // where the slowdown is that or more, the bounds would be, too
        traced.first.facts.cost.waited_range_ns = (!sum.is_at_least()).then(|| (ns(waited.least), ns(waited.most)));
    }
}

/// How long a program has waited, and between which bounds that lies with a probability of about 90 %.
#[derive(Clone, Copy, Debug)]
struct Waited {
    about: Duration,
    least: Duration,
    most: Duration,
}

/// The bounds of a share that was estimated from so many looks: it would lie between them with a probability of 90 % if
/// the looks did not depend on each other.
///
/// Source: Agresti and Coull, Approximate is better than "exact" for interval estimation of binomial proportions
/// (1998).
fn between(share: f64, looks: f64) -> (f64, f64) {
    // of the normal distribution, 5 % on either side
    const Z: f64 = 1.645;
    let all = looks + Z * Z;
    let middle = (share * looks + Z * Z / 2.0) / all;
    let error = Z * (middle * (1.0 - middle) / all).sqrt();
    ((middle - error).max(0.0), (middle + error).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Seconds, each with so many threads that ran, and so many that were held.
    fn seen(looks: &[(u32, u32, u32)]) -> Slowdown {
        let mut slowdown = Slowdown { processors: 2, ..Slowdown::new(true) };
        looks.iter().for_each(|(running, held, seconds)| slowdown.count(*running, *held, SECOND * *seconds));
        slowdown
    }

    const MS: u64 = 1_000_000;

    fn cost(cpu_ms: u64, user_ms: u64, stops: u64) -> Cost {
        Cost { cpu_ns: cpu_ms * MS, user_ns: user_ms * MS, stops, ..Cost::default() }
    }

    #[test]
    fn it_is_looked_less_often_the_longer_it_runs() {
        let intervals = |launched: bool| {
            [0, 100, 400, 999, 1000, 5000].map(|ms| interval(launched, Duration::from_millis(ms)).as_millis())
        };
        assert_eq!(intervals(true), [10, 10, 10, 10, 100, 100]);
        assert_eq!(intervals(false), [10, 10, 40, 99, 100, 100]);
    }

    #[test]
    fn what_is_neither_work_nor_sleep_is_waiting() {
        let waited = seen(&[(0, 0, 2), (1, 0, 1), (0, 1, 7)]).waited(SECOND * 10, &cost(1_000, 1_000, 0)).about;
        assert_eq!(waited.as_millis(), 7_000);
        // never looked at
        assert_eq!(seen(&[]).waited(SECOND, &cost(250, 250, 0)).about.as_millis(), 750);
        // it ran all the time, or was ready to while others ran; it slept all the time
        assert_eq!(seen(&[(1, 0, 10)]).waited(SECOND * 10, &cost(3_000, 3_000, 0)).about, Duration::ZERO);
        assert_eq!(seen(&[(0, 0, 10)]).waited(SECOND * 10, &cost(20, 20, 0)).about, Duration::ZERO);
    }

    /// Few looks leave much open, but for what the CPU time tells.
    #[test]
    fn bounds_narrow_with_the_number_of_looks() {
        let bounds = |looks: &[(u32, u32, u32)], own_ms| {
            let waited = seen(looks).waited(SECOND * 10, &cost(own_ms, own_ms, 0));
            [waited.least, waited.about, waited.most].map(|time| time.as_millis())
        };
        let ten: Vec<_> = (0..10).map(|look| if look < 3 { (1, 0, 1) } else { (0, 1, 1) }).collect();
        let thousand: Vec<_> = (0..1000).map(|look| ten[look % 10]).collect();
        assert_eq!(bounds(&ten, 1), [4_383, 7_000, 8_764]);
        assert_eq!(bounds(&thousand, 1), [6_756, 7_000, 7_232]);
        assert_eq!(bounds(&ten, 2_500), [4_383, 7_000, 7_500], "so long it has run at least");
        assert_eq!(bounds(&[], 2_500), [0, 7_500, 7_500]);
        // the part of it that was its own does not come from looks; what the stops took of the CPU time is known to a
        // half
        let half = Cost { stops_cpu_ns: 500 * MS, ..cost(1_000, 500, 100_000) };
        let half = seen(&ten).waited(SECOND * 10, &half);
        assert_eq!([half.least, half.about, half.most].map(|time| time.as_millis()), [8_586, 9_496, 9_546]);
        // no look saw it move, and half of what its stops took of the CPU time may have been its own
        let still = Cost { stops_cpu_ns: 490 * MS, known_cpu_ns: 10 * MS, ..cost(500, 5, 20_000) };
        let still = seen(&[(0, 1, 1); 10]).waited(SECOND * 10, &still);
        assert!(still.about.as_millis() == 9_990 && still.least.as_millis() < 9_000, "{still:?}");
        // all looks alike prove little
        let [least, about, most] = bounds(&[(0, 1, 1); 10], 100);
        assert!(least < 8_200 && (about, most) == (9_900, 9_900), "{least}");
    }

    #[test]
    fn what_was_used_before_an_attach_is_not_counted() {
        let used = |ms| Used { cpu: cputime::CpuTime { all_ns: ms * MS, user_ns: ms * MS }, in_kernel_ns: ms };
        let mut usage = Usage::default();
        usage.note(7, false, used(3_600_000));
        assert_eq!((usage.sum().cpu.all_ns, usage.sum().in_kernel_ns), (0, 0));
        usage.note(8, true, used(10));
        usage.note(7, false, used(3_600_250));
        usage.note(8, true, used(30));
        let sum = usage.sum();
        assert_eq!((sum.cpu.all_ns, sum.cpu.user_ns, sum.in_kernel_ns), (280 * MS, 280 * MS, 280));
    }

    #[test]
    fn threads_side_by_side_would_have_shared_the_work() {
        let waited = seen(&[(1, 3, 10)]).waited(SECOND * 10, &cost(2_000, 2_000, 0)).about;
        assert_eq!(waited.as_millis(), 5_000, "one ran where two processors were there");
    }

    /// 100,000 stops that took 5 µs of the CPU each, 7 % of that in user mode, in 10 s; the program itself did less and
    /// less.
    #[test]
    fn the_kernel_s_part_of_stops_is_not_the_program_s_work() {
        let seen = seen(&[(1, 0, 3), (0, 1, 7)]);
        let alone = |cpu_ms, user_ms, events, known_ms| {
            let cost = cost(cpu_ms, user_ms, 100_000);
            let cost = Cost { stops_cpu_ns: 500 * MS, events, known_cpu_ns: known_ms * MS, ..cost };
            (SECOND * 10 - seen.waited(SECOND * 10, &cost).about).as_millis()
        };
        // half of the CPU time was its own
        assert_eq!(alone(3_000, 1_500, 0, 0), 2_500, "the stops took 0.5 s");
        // of the 3 s in which it was ready, the other 2 s passed after stops
        assert_eq!(alone(1_000, 500, 0, 0), 503);
        // what is left lies within what is known of the stops: what ran in user mode counts
        assert_eq!(alone(540, 35 + 12 + 54, 0, 0), 54);
        // nothing of that either: the allocator's calls themselves, and what is known otherwise
        assert_eq!(alone(520, 40, 100_000, 0), 2);
        assert_eq!(alone(520, 40, 0, 52), 52);
    }

    /// The jump engine's routine runs in the program, in user mode: what it takes is not the program's work either.
    #[test]
    fn what_recording_takes_is_not_the_program_s_work() {
        let seen = seen(&[(1, 0, 10)]);
        let cost = Cost { recording_ns: 7_500 * MS, ..cost(10_000, 10_000, 0) };
        assert_eq!(seen.waited(SECOND * 10, &cost).about.as_millis(), 7_500);
    }

    /// 4,000,000 events that took 130 ns each, or 700 with the program's own work; and at stops.
    #[test]
    fn of_a_program_that_does_nothing_but_allocate_the_slowdown_is_a_bound() {
        let of = |cpu_ms, without_stop| Cost {
            events: 4_000_000,
            events_without_stop: without_stop,
            ..cost(cpu_ms, cpu_ms, 100)
        };
        assert!(of(520, 4_000_000).is_at_least());
        assert!(!of(2_800, 4_000_000).is_at_least());
        assert!(!of(520, 1_000).is_at_least() && !cost(0, 0, 0).is_at_least());
    }
}
