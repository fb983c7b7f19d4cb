//! What the tracing cost, and what follows from that.

use serde::{Deserialize, Serialize};

/// What the tracing cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Wall time of the traced span, ns.
    pub wall_ns: u64,
    /// For how long the program had to wait for heaptrace, ns: by how much tracing has prolonged its run, as far as
    /// could be measured. None where that is not known.
    pub waited_ns: Option<u64>,
    /// Between which bounds [`Self::waited_ns`] lies with a probability of about 90 %, ns, where it is an estimate from
    /// few looks at the threads: that of a run of less than some ten seconds.
    pub waited_range_ns: Option<(u64, u64)>,
    /// CPU time of all threads, ns, of that in user mode.
    pub cpu_ns: u64,
    /// See [`Self::cpu_ns`].
    pub user_ns: u64,
    /// The part of [`Self::cpu_ns`] that the stops took, as measured at some of them, ns. Zero if it could not be.
    pub stops_cpu_ns: u64,
    /// The part of it that was certainly the program's, besides the allocator's, ns.
    pub known_cpu_ns: u64,
    /// Sum over all stops of the time that heaptrace worked on them, ns: from its noticing of a stop to the task's
    /// resumption.
    pub stopped_ns: u64,
    /// The longest single stop, ns.
    pub stopped_max_ns: u64,
    /// Heap events recorded.
    pub events: u64,
    /// Those of them that the jump engine recorded without a stop.
    #[serde(default)]
    pub events_without_stop: u64,
    /// The part of [`Self::cpu_ns`] that the jump engine took to record those events, by the clock samples of its
    /// routine, ns.
    #[serde(default)]
    pub recording_ns: u64,
    /// ptrace stops handled.
    pub stops: u64,
    /// How the process came to the jump engine, if it did: the last image that has. Of several processes, the one that
    /// came to it after the shortest time.
    #[serde(default)]
    pub promotion: Option<PromotedAt>,
    /// What the cost depended on.
    pub conditions: Conditions,
}

/// How a process came to the jump engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PromotedAt {
    /// After so long of its being traced, ns.
    pub after_ns: u64,
    /// The part of the time before that its stops had taken, in tenths of a percent, which was too much (`--engine
    /// auto`). None: it was asked for (`--engine jump`).
    pub stops_permille: Option<u32>,
    /// How often it was tried before, in vain.
    #[serde(default)]
    pub attempts: u32,
}

/// What the cost of tracing depends on; it decides which advice helps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Conditions {
    /// Whether stacks were walked at frees, too.
    pub free_stacks: bool,
    /// How many threads the last image had in all, those that ended included.
    pub threads: u64,
    /// Whether `--pin` was asked for.
    pub pinned: bool,
    /// Whether the jump engine has seen the calls, from some moment on.
    #[serde(default)]
    pub jump: bool,
}

/// What a stop costs the task where that could not be measured, ns: 4.3 to 5.4 µs were found on one virtual machine
/// (kernel 6.18).
const STOP_CPU_NS: u64 = 4_500;

/// What an allocator's function takes at least, ns.
const EVENT_CPU_NS: u64 = 25;

/// The kernel's tick, mostly, ns.
const TICK_NS: u64 = 4_000_000;

/// Of the CPU time of the stops, so many percent count as user mode: caches and address translation are cold after
/// each. 5.7 to 7.6 were found where a program did nothing but allocate.
const STOPS_USER_PERCENT: u64 = 7;

/// What is left of the CPU time when that of the stops is taken away means something if it is more than one part in so
/// many of it.
const UNCERTAIN: u64 = 2;

/// The same of what recording without stops has taken.
const UNCERTAIN_RECORDING: u64 = 4;

/// Where a program takes less CPU time than this for each event that is recorded without a stop, recording is most of
/// it (130 to 150 ns were found where it did nothing else, 300 and more in real programs).
const ALLOCATES_ONLY_NS: u64 = 200;

impl Cost {
    /// What was added to it since it was `before`; how long the program waited in that time is not known.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            wall_ns: self.wall_ns.saturating_sub(before.wall_ns),
            stopped_ns: self.stopped_ns.saturating_sub(before.stopped_ns),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            stops_cpu_ns: self.stops_cpu_ns.saturating_sub(before.stops_cpu_ns),
            known_cpu_ns: self.known_cpu_ns.saturating_sub(before.known_cpu_ns),
            events: self.events.saturating_sub(before.events),
            events_without_stop: self.events_without_stop.saturating_sub(before.events_without_stop),
            recording_ns: self.recording_ns.saturating_sub(before.recording_ns),
            stops: self.stops.saturating_sub(before.stops),
            waited_ns: None,
            waited_range_ns: None,
            ..*self
        }
    }

    /// CPU time that the program would have needed without heaptrace, about, ns. The kernel's work at the stops is
    /// mostly far more than that, and known to a half only: where the rest is less, it is what ran in user mode, and
    /// what is known otherwise.
    pub fn own_cpu_ns(&self) -> u64 {
        let stops = self.stops_cpu_or_guess_ns();
        let rest = self.cpu_ns.saturating_sub(stops).saturating_sub(self.recording_ns);
        let rest = if rest > stops / UNCERTAIN { rest } else { 0 };
        rest.max(self.least_own_cpu_ns(stops)).min(self.cpu_ns)
    }

    /// The bounds that [`Self::own_cpu_ns`] lies between, ns: the CPU time of the stops is known to a half only, that
    /// of recording to a quarter.
    pub fn own_cpu_bounds_ns(&self) -> (u64, u64) {
        let stops = self.stops_cpu_or_guess_ns();
        let doubt = (stops / UNCERTAIN).saturating_add(self.recording_ns / UNCERTAIN_RECORDING);
        let taken = stops.saturating_add(self.recording_ns);
        let rest = |taken: u64| self.cpu_ns.saturating_sub(taken);
        let low = rest(taken.saturating_add(doubt)).max(self.least_own_cpu_ns(stops)).min(self.cpu_ns);
        (low, rest(taken.saturating_sub(doubt)).max(low))
    }

    fn stops_cpu_or_guess_ns(&self) -> u64 {
        match self.stops_cpu_ns {
            0 => self.stops.saturating_mul(STOP_CPU_NS),
            measured => measured,
        }
    }

    /// What was the program's own in any case: what ran in user mode, and what is known otherwise.
    fn least_own_cpu_ns(&self, stops_ns: u64) -> u64 {
        // Most kernels look at their ticks only which mode it is, so that this, too, is known more or less.
        let expected = stops_ns.saturating_mul(STOPS_USER_PERCENT) / 100;
        let chance = expected.saturating_mul(TICK_NS).isqrt();
        let user = self.user_ns.saturating_sub(self.recording_ns).saturating_sub(expected.saturating_add(chance));
        user.max(self.known_cpu_ns.saturating_add(self.events.saturating_mul(EVENT_CPU_NS)))
    }

    /// Whether the program did hardly more than call its allocator. What recording took of it is then too little by
    /// what its processor waited for the memory that it shares with the tracer's, which ordinary programs' own work
    /// hides: the slowdown is that or more.
    pub fn is_at_least(&self) -> bool {
        let recorded = self.events_without_stop;
        recorded > self.events / 2 && self.cpu_ns / recorded < ALLOCATES_ONLY_NS
    }

    /// Adds the cost of another process, whose stops were served by the same thread; the wall time stays.
    pub(super) fn add(&mut self, other: &Self) {
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.user_ns = self.user_ns.saturating_add(other.user_ns);
        self.stops_cpu_ns = self.stops_cpu_ns.saturating_add(other.stops_cpu_ns);
        self.known_cpu_ns = self.known_cpu_ns.saturating_add(other.known_cpu_ns);
        self.stopped_ns = self.stopped_ns.saturating_add(other.stopped_ns);
        self.stopped_max_ns = self.stopped_max_ns.max(other.stopped_max_ns);
        self.events += other.events;
        self.events_without_stop = self.events_without_stop.saturating_add(other.events_without_stop);
        self.recording_ns = self.recording_ns.saturating_add(other.recording_ns);
        self.stops += other.stops;
        self.promotion = self.promotion.into_iter().chain(other.promotion).min();
        self.conditions.threads = self.conditions.threads.saturating_add(other.conditions.threads);
        self.conditions.jump |= other.conditions.jump;
    }
}
