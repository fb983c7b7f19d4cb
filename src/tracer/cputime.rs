//! The CPU time that a process has used, of all its threads, those included that have ended: clock_getcpuclockid(3).

use std::time::{Duration, Instant};

/// Which clock of a process: the lowest bits of its id, CPUCLOCK_VIRT and CPUCLOCK_SCHED of the kernel's
/// include/linux/posix-timers.h.
const USER: libc::clockid_t = 1;
const SCHEDULED: libc::clockid_t = 2;

/// What a process has used so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTime {
    /// In user mode and in the kernel, ns; exact.
    pub all_ns: u64,
    /// In user mode, ns; on many kernels as precise as their tick.
    pub user_ns: u64,
}

/// The CPU time of process `pid`. None if it is gone; one that has ended still has it until it is waited for.
pub fn of_process(pid: i32) -> Option<CpuTime> {
    Some(CpuTime { all_ns: read(pid, SCHEDULED)?, user_ns: read(pid, USER)? })
}

/// The CPU time of one thread, which stands still, ns: the first number of its schedstat
/// (Documentation/scheduler/sched-stats.rst). Other processes' threads have no clock. None if it is gone, or the kernel
/// keeps no such figures.
pub fn of_thread(pid: i32, tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// The timestamp counter of the processor, against the clock: for programs that read it themselves. It runs at a
/// constant rate on all processors of a machine since 2008 (Intel SDM, volume 3, 19.17: invariant TSC).
#[derive(Debug)]
pub struct Ticks {
    began: Instant,
    first: u64,
}

/// A shorter time than this gives no good rate.
const TICKS_LEAST: Duration = Duration::from_millis(1);

impl Ticks {
    /// Begins to look at both.
    pub fn start() -> Self {
        Self { began: Instant::now(), first: ticks() }
    }

    /// How long so many ticks take, ns. None if it was begun too short a time ago to say.
    pub fn to_ns(&self, of: u64) -> Option<u64> {
        let (elapsed, passed) = (self.began.elapsed(), ticks().wrapping_sub(self.first));
        if elapsed < TICKS_LEAST {
            return None;
        }
        u64::try_from((u128::from(of) * elapsed.as_nanos()).checked_div(passed.into())?).ok()
    }
}

fn ticks() -> u64 {
    // SAFETY: the instruction only reads the counter; each processor of this architecture has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ids from here on don't fit a clock's; the kernel has none above 2^22 (PID_MAX_LIMIT). Their bits would make the id
/// of another clock.
const NO_PROCESS: i32 = 1 << 28;

fn read(pid: i32, clock: libc::clockid_t) -> Option<u64> {
    if !(1..NO_PROCESS).contains(&pid) {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place; an id that means no process is refused.
    let result = unsafe { libc::clock_gettime(!pid << 3 | clock, &raw mut time) };
    let (seconds, ns) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    (result == 0).then(|| seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_as_long_as_the_clock_says() {
        let counter = Ticks::start();
        assert_eq!(Ticks::start().to_ns(1), None, "too early to say");
        let (began, first) = (Instant::now(), ticks());
        while began.elapsed() < 2 * TICKS_LEAST {}
        let (passed, elapsed) = (ticks() - first, began.elapsed());
        let told = Duration::from_nanos(counter.to_ns(passed).unwrap());
        assert!(told > elapsed / 2 && told < elapsed * 2, "{told:?} of {elapsed:?}");
    }

    #[test]
    fn work_is_counted_and_a_process_that_is_none_has_no_time() {
        let own = i32::try_from(std::process::id()).unwrap();
        let thread = super::super::control::thread_id();
        let (process, mine) = (of_process(own).unwrap().all_ns, of_thread(own, thread).unwrap());
        let began = Instant::now();
        // Other tests' threads work, too: their time is the process's, but not this thread's.
        while of_thread(own, thread).unwrap() < mine + 10_000_000
            || of_process(own).unwrap().all_ns < process + 20_000_000
        {
            assert!(began.elapsed().as_secs() < 60);
        }
        assert_eq!(of_thread(own, i32::MAX), None);
        for none in [i32::MAX, NO_PROCESS, NO_PROCESS - 1, 0, -1] {
            assert_eq!(of_process(none), None, "{none}");
        }
    }
}
