//! A process that nobody traces stands still for a moment, and goes on as if nothing had been.
//!
//! All threads are seized and told to stop. System calls that this ends early are made once more (signal(7)). The
//! threads of a process that heaptrace traces are stopped elsewhere: by the session, which answers their stops.

use super::ptrace::{self, Stopped, Waited};
use super::rawregs::RawRegs;
use super::status::{Event, WaitStatus};
use super::undisturbed::{Resumer, WithoutTerminalStops};
use super::{Result, TracerError, injection, procfs, seize, timedwait};
use crate::arch::xsave::VectorWord;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long threads are waited for.
const TIMEOUT: Duration = Duration::from_secs(2);

/// After so long those in an uninterruptible sleep are no longer waited for.
const PATIENCE_WITH_SLEEPERS: Duration = Duration::from_millis(100);

/// Pause between two looks at threads that have not stopped yet.
const PAUSE: Duration = Duration::from_micros(50);

/// System calls that the allocators which are walked make in malloc and its kin, for memory, for locks, and besides:
///
/// * getrandom: glibc (`tcache_key_initialize`), mimalloc (the keys of its heaps);
/// * mbind: mimalloc, where it reserves huge pages of a node;
/// * prctl: the names of mappings (PR_SET_VMA), of glibc 2.39, jemalloc and mimalloc;
/// * process_madvise: jemalloc, which gives back several pieces at once;
/// * sched_getaffinity: glibc, which makes as many arenas as there are processors (`arena_get2`).
///
/// nanosleep(2) and mincore(2) are not among them: gperftools' spin locks sleep by futex(2) on Linux, its libunwind
/// calls mincore, and its heap is not walked. Threads that sleep for other reasons have old return addresses on their
/// stacks.
const ALLOCATORS_CALLS: [i64; 13] = [
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_madvise,
    libc::SYS_mbind,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_prctl,
    libc::SYS_process_madvise,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
];

/// Whether the system call of this number is one that allocators make in malloc and its kin.
pub fn is_allocators_call(number: i64) -> bool {
    ALLOCATORS_CALLS.contains(&number)
}

/// A thread of a process that stands still.
#[derive(Clone, Debug)]
pub struct StandingThread {
    /// Its id.
    pub tid: i32,
    /// Its registers; None if it did not stop in time.
    pub regs: Option<RawRegs>,
    /// What its vector registers hold. One in a system call has nothing there: functions need not keep them, and what
    /// is there is left from what ran before.
    pub vectors: Vec<VectorWord>,
}

impl StandingThread {
    /// One that did not stop, or was not asked to.
    pub const fn elsewhere(tid: i32) -> Self {
        Self { tid, regs: None, vectors: Vec::new() }
    }

    /// Whether the system call that it is in is one that allocators make; None if it is in none, or that is not known.
    pub fn is_in_allocators_call(&self) -> Option<bool> {
        let regs = self.regs.filter(RawRegs::is_in_system_call)?;
        Some(is_allocators_call(regs.0.orig_rax.cast_signed()))
    }
}

/// Makes process `pid` stand still while `look` is at work, which is given what stands still; then lets it go, and goes
/// on with what `look` says by `then`. Returns what that says, and how long the process stood.
///
/// # Errors
/// If it can't be traced: rights, another tracer, its end.
pub fn stand_still<A, T: Send>(
    pid: i32,
    look: impl FnOnce(&Standstill) -> A + Send,
    then: impl FnOnce(A) -> T + Send,
) -> Result<(T, Duration)> {
    let quiet = WithoutTerminalStops::begin()?;
    let resumer = Resumer::begin().map_err(|error| tracing::debug!("{error}")).ok();
    // The kernel lets go, without a stop, of whatever is still traced by a thread that ends.
    std::thread::scope(|scope| {
        let quiet = &quiet;
        let on_own_thread = std::thread::Builder::new().spawn_scoped(scope, move || {
            injection::arm();
            let began = Instant::now();
            let stood = Standstill::begin(pid)?;
            let seen = look(&stood);
            stood.end();
            let stood = began.elapsed();
            // from here on heaptrace may be stopped
            let _open_to_the_terminal = quiet.suspended()?;
            drop(resumer);
            Ok((then(seen), stood))
        });
        let on_own_thread = on_own_thread
            .map_err(|source| TracerError::Own { operation: "start a thread that reads the process", source })?;
        on_own_thread.join().unwrap_or_else(|_| {
            let source = std::io::Error::other("the thread that read it panicked");
            Err(TracerError::Own { operation: "read the process", source })
        })
    })
}

/// A process that stands still.
#[derive(Debug)]
pub struct Standstill {
    pid: i32,
    /// With what each has stopped for.
    stopped: Vec<(Stopped, Cell<WaitStatus>)>,
    missing: BTreeSet<i32>,
    /// Those that are still within a function that was called in them for us: see [`Self::leave_out`].
    within: RefCell<BTreeSet<i32>>,
}

impl Standstill {
    fn begin(pid: i32) -> Result<Self> {
        let mut still = Self { pid, stopped: Vec::new(), missing: BTreeSet::new(), within: RefCell::default() };
        let seized = seize::seize_all(pid)?;
        timedwait::prepare(seized.iter().map(|task| task.tid));
        for task in seized {
            still.missing.insert(task.tid);
            still.ask(task.tid)?;
        }
        let began = Instant::now();
        loop {
            let before = still.missing.len();
            still.collect()?;
            // Threads that were made meanwhile are traced, too, and stop by themselves.
            still.note_new();
            let slept = began.elapsed();
            let is_left = |tid: &i32| match procfs::state(pid, *tid) {
                None | Some(b'Z' | b'X') => false,
                Some(b'D') => slept < PATIENCE_WITH_SLEEPERS,
                Some(_) => true,
            };
            if !still.missing.iter().any(is_left) || slept > TIMEOUT {
                break;
            }
            if still.missing.len() == before {
                std::thread::sleep(PAUSE);
            }
        }
        if still.stopped.is_empty() { Err(TracerError::Unresponsive { tid: pid }) } else { Ok(still) }
    }

    fn ask(&self, tid: i32) -> Result<()> {
        match ptrace::interrupt(tid) {
            Err(error) if !error.is_out_of_reach() => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes the stops that have come. The reports of those for signals are left with the kernel: it delivers them if
    /// heaptrace is killed.
    fn collect(&mut self) -> Result<()> {
        let missing: Vec<i32> = self.missing.iter().copied().collect();
        for tid in missing {
            match ptrace::look_at_task(tid)? {
                Waited::Task(_, status, Some(stopped)) => {
                    self.missing.remove(&tid);
                    self.stopped.push((stopped, Cell::new(status)));
                }
                Waited::Task(_, _, None) | Waited::NoTasks => {
                    self.missing.remove(&tid);
                }
                Waited::Nothing | Waited::Interrupted => {}
            }
        }
        Ok(())
    }

    fn note_new(&mut self) {
        let own = super::control::thread_id();
        for tid in procfs::tasks(self.pid).unwrap_or_default() {
            let is_known = self.missing.contains(&tid) || self.stopped.iter().any(|(stopped, _)| stopped.tid() == tid);
            if !is_known && procfs::tracer_of(tid) == Some(own) {
                self.missing.insert(tid);
            }
        }
    }

    /// The threads that sleep in a system call, which they will make once more, and would be woken from by a signal;
    /// with the registers with which they make it.
    pub fn sleepers(&self) -> impl Iterator<Item = (&Stopped, RawRegs)> {
        self.interrupted().filter_map(|stopped| {
            let again = stopped.registers().ok()?.repeating_system_call()?;
            Some((stopped, again))
        })
    }

    /// The threads that can make a call for us: all but those that have stopped for a signal. With the registers with
    /// which they go on.
    pub fn callers(&self) -> impl Iterator<Item = (&Stopped, RawRegs)> {
        self.interrupted().filter_map(|stopped| {
            let raw = stopped.registers().ok()?;
            Some((stopped, raw.repeating_system_call().unwrap_or(raw)))
        })
    }

    /// The threads that have stopped because we have interrupted them, and are not within a function called for us.
    fn interrupted(&self) -> impl Iterator<Item = &Stopped> {
        self.told_to_stop_for(|status| status == WaitStatus::EventStop)
    }

    fn told_to_stop_for(&self, is_wanted: impl Fn(WaitStatus) -> bool) -> impl Iterator<Item = &Stopped> {
        let stopped = self.stopped.iter().filter(move |(_, status)| is_wanted(status.get()));
        stopped.map(|(stopped, _)| stopped).filter(|stopped| !self.is_within(stopped.tid()))
    }

    fn is_within(&self, tid: i32) -> bool {
        self.within.borrow().contains(&tid)
    }

    /// The threads that have stopped because we have interrupted them, or as somebody has stopped their process.
    pub fn told_to_stop(&self) -> impl Iterator<Item = &Stopped> {
        self.told_to_stop_for(|status| matches!(status, WaitStatus::EventStop | WaitStatus::GroupStop(_)))
    }

    /// A thread that made a call for us failed so. Where something else was reported of it
    /// ([`TracerError::Overtaken`]), it goes on with that. Where it is still within the call
    /// ([`TracerError::Unresponsive`]), its registers are not those that it goes on with: nothing is asked of it any
    /// more, and it is let go as it is.
    pub fn leave_out(&self, error: &TracerError) {
        match *error {
            TracerError::Overtaken { tid, status: by } => {
                if let Some((_, status)) = self.stopped.iter().find(|(stopped, _)| stopped.tid() == tid) {
                    status.set(by);
                }
            }
            TracerError::Unresponsive { tid } => drop(self.within.borrow_mut().insert(tid)),
            _ => {}
        }
    }

    /// All threads.
    pub fn threads(&self) -> Vec<StandingThread> {
        let stopped = self.stopped.iter().map(|(stopped, _)| {
            let regs = stopped.registers().ok();
            let is_running = regs.as_ref().is_some_and(|regs| !regs.is_in_system_call());
            let vectors = if is_running { stopped.vector_registers().unwrap_or_default() } else { Vec::new() };
            StandingThread { tid: stopped.tid(), regs, vectors }
        });
        stopped.chain(self.missing.iter().map(|&tid| StandingThread::elsewhere(tid))).collect()
    }

    /// Lets all go on. What is not out of reach, and can't be let go, is let go when this thread ends.
    fn end(self) {
        // what takes a moment of its own comes when the others run
        let mut last = Vec::new();
        let within = self.within.into_inner();
        for (stopped, status) in self.stopped {
            let tid = stopped.tid();
            let signal = match status.get() {
                WaitStatus::Signal(signal) => signal,
                WaitStatus::Event(Event::Fork | Event::Vfork | Event::Clone) => {
                    let_child_go(&stopped, self.pid);
                    0
                }
                WaitStatus::EventStop if !within.contains(&tid) => {
                    if let Err(error) = stopped.restart_interrupted_call() {
                        tracing::debug!("{error}");
                    }
                    if timedwait::is_due(tid) {
                        last.push(stopped);
                        continue;
                    }
                    0
                }
                _ => 0,
            };
            if let Err(error) = stopped.detach(signal) {
                tracing::debug!("task {tid}: {error}");
            }
        }
        for stopped in last {
            let tid = stopped.tid();
            if let Err(error) = stopped.detach(0) {
                tracing::debug!("task {tid}: {error}");
            }
        }
    }
}

/// A process that was made in this moment is traced, too, and waits.
fn let_child_go(maker: &Stopped, pid: i32) {
    let Ok(child) = maker.event_message().map(|child| child as i32) else { return };
    if matches!(procfs::thread_group(child), Ok(Some(group)) if group != pid)
        && let Ok(Waited::Task(_, _, Some(stopped))) = ptrace::wait_task(child, ptrace::TIMEOUT)
        && let Err(error) = stopped.detach(0)
    {
        tracing::debug!("task {child}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_be_in_the_allocator_in_calls_for_memory_locks_and_names() {
        let calls = [libc::SYS_prctl, libc::SYS_mbind, libc::SYS_process_madvise, libc::SYS_getrandom, libc::SYS_mmap];
        for number in calls {
            assert!(is_allocators_call(number), "{number}");
        }
        for number in [libc::SYS_read, libc::SYS_epoll_wait, libc::SYS_clock_nanosleep] {
            assert!(!is_allocators_call(number), "{number}");
        }
    }
}
