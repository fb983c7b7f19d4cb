//! Waits with a limit of time that the kernel can't take up again where they were: what is left of them when their
//! thread is made to stop.
//!
//! epoll_wait(2), sigtimedwait(2) and their like end early when their thread stops for us, and are called once more.
//! With their whole time they would never end in a process that is asked again and again. The kernel does not tell
//! when a call began. But a thread that sleeps has last run when it went to sleep, and that /proc/PID/sched tells, by
//! the clock of its CPU. What is left goes to where the limit was, in a register, or to a place that a register then
//! points to ([`entering`]): so it is there the next time, too; only recvmmsg(2) has it written to the program's own
//! memory, as the kernel writes there, too, what is left. The register is changed only where the code behind
//! the call does not read it any more. Which calls these are: [`limits`].

mod entering;
mod limits;

use super::procfs;
use super::ptrace::Stopped;
use super::rawregs::{RawRegs, SYSCALL_LEN};
use super::{Result, memory::TargetMemory};
use crate::arch::liveness;
use crate::base::addr::Addr;
pub(super) use entering::{Due, Entered};
use limits::{Form, TimedCall};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// So long one look at the clock of a CPU will do, while threads of the target may stand, and before. That clock does
/// not count what a hypervisor and interrupts take: all that has passed since the look may be such time.
const CLOCK_IS_KNOWN: Duration = Duration::from_millis(50);
const CLOCK_IS_KNOWN_BEFORE: Duration = Duration::from_millis(5);

/// So long heaptrace waits for the clock of a CPU, on which a thread of ours has to run for that: while threads of the
/// target may stand, and before. Somebody's real-time thread may leave it no time at all: then heaptrace does not ask
/// for that clock again for [`CLOCK_PAUSE`].
const CLOCK_PATIENCE: Duration = Duration::from_millis(20);
const CLOCK_PATIENCE_BEFORE: Duration = Duration::from_millis(250);
const CLOCK_PAUSE: Duration = Duration::from_secs(1);

/// So many clocks are asked for, though no thread sleeps on their CPUs yet: some 100 µs each.
const MAX_CLOCKS: usize = 16;

/// So soon after the last look heaptrace must interrupt a thread: it may leave its wait meanwhile, and be in another
/// one just like it. Where something else has had the processor, heaptrace looks again, so often. (The time until the
/// request is done says nothing: it wakes the thread, which may take the processor at once.)
const AT_ONCE: Duration = Duration::from_micros(200);
const LOOKS: u32 = 5;

/// So long a thread may run from its sleep to its stop, in ns: in the kernel, and not in its program.
const STRAIGHT_TO_ITS_STOP: i64 = 200_000;

/// A thread in such a wait, just before it was interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asleep {
    call: TimedCall,
    limit: Duration,
    /// How long it had slept, and when that was known.
    slept: Duration,
    at: Instant,
    /// From when on it may have left that wait unseen.
    seen: Instant,
    /// What the scheduler told of it then.
    scheduled: Scheduled,
    /// Whether it was still in that wait when it stopped.
    is_confirmed: bool,
}

#[derive(Debug, Default)]
struct Noted {
    asleep: HashMap<i32, Asleep>,
    clocks: Clocks,
    /// Threads that make a call with a limit in memory when they go on.
    due: HashMap<i32, Due>,
    mappings: entering::Mappings,
}

/// The clocks of CPUs.
#[derive(Debug, Default)]
struct Clocks {
    /// What each is ahead of ours, in ns, and when that was known.
    known: HashMap<usize, (i64, Instant)>,
    /// When they could not be had last.
    failed: HashMap<usize, Instant>,
}

thread_local! {
    // Never dropped: the C library aborts where it has no memory to note that something is to be.
    static NOTED: RefCell<ManuallyDrop<Noted>> = RefCell::default();
}

/// Threads are about to be interrupted: learns the clocks of the CPUs that some of them sleep on in such waits, and of
/// those that they may sleep on when they have been interrupted once. Best called before the first stands, as that
/// takes a moment.
pub(super) fn prepare(tids: impl Iterator<Item = i32>) {
    NOTED.with_borrow_mut(|noted| {
        for tid in tids {
            if let Some((b'S', cpu)) = state_and_cpu(tid)
                && timed_call(tid).is_some()
            {
                for cpu in cpus_of(tid).unwrap_or_else(|| vec![cpu]) {
                    let _ = noted.clocks.now(cpu, CLOCK_IS_KNOWN_BEFORE, CLOCK_PATIENCE_BEFORE);
                }
            }
        }
    });
}

/// The CPUs that a thread may run on. None if they are too many to ask each for its clock, or not known.
fn cpus_of(tid: i32) -> Option<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(tid)).ok()?;
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect();
    (1..=MAX_CLOCKS).contains(&cpus.len()).then_some(cpus)
}

/// Thread `tid` is about to be interrupted: notes how long it has slept, if it does so in such a wait.
pub(super) fn note(tid: i32) {
    let Some((state, cpu)) = state_and_cpu(tid) else { return };
    NOTED.with_borrow_mut(|noted| match state {
        b'S' => {
            let mut look = || look(tid, cpu, &mut noted.clocks).filter(|asleep| asleep.seen.elapsed() < AT_ONCE);
            match (0..LOOKS).find_map(|_| look()) {
                Some(asleep) => noted.asleep.insert(tid, asleep),
                None => {
                    if let Some(call) = timed_call(tid) {
                        tracing::debug!(
                            "heaptrace does not know how long thread {tid} has slept in call {}",
                            call.number
                        );
                    }
                    noted.asleep.remove(&tid)
                }
            };
        }
        // it stands already, and what was noted is of before that
        b't' | b'T' => {}
        _ => drop(noted.asleep.remove(&tid)),
    });
}

/// Thread `tid` has just stopped, and may do something for us before it goes on: forgets what was noted if the thread
/// has left that wait.
pub(super) fn confirm(tid: i32) {
    NOTED.with_borrow_mut(|noted| {
        if let Some(asleep) = noted.asleep.get_mut(&tid)
            && !asleep.is_confirmed
        {
            let now = Scheduled::of(tid);
            asleep.is_confirmed = now.is_some_and(|now| asleep.scheduled.leads_straight_to(&now));
            if !asleep.is_confirmed {
                tracing::debug!("thread {tid} may have left its wait: {:?}, then {now:?}", asleep.scheduled);
                noted.asleep.remove(&tid);
            }
        }
    });
}

/// Whether call `number` has a limit that is known here.
pub(super) fn has_limit(number: i64) -> bool {
    limits::of_call(number).is_some()
}

/// Whether the kernel tells how long thread `tid`, which sleeps, has done so.
pub(super) fn can_tell(tid: i32) -> bool {
    Scheduled::of(tid).is_some()
}

/// With what a thread makes a call once more that it was stopped in, given that it would make it with `again`: with
/// what is left of its time. Where that goes to memory, it is [due](enter_if_due) when the thread goes on.
/// `code` reads the target's code.
pub(super) fn shortened(tid: i32, again: RawRegs, code: impl FnMut(u64, &mut [u8]) -> usize) -> RawRegs {
    let asleep = NOTED.with_borrow_mut(|noted| {
        // of an earlier stop, after which it got a signal
        noted.due.remove(&tid);
        noted.asleep.remove(&tid)
    });
    let Some((argument, form)) = limits::of_call(again.0.rax.cast_signed()) else { return again };
    let asleep = asleep.filter(|asleep| asleep.is_confirmed && asleep.call.is_made_by(&again, argument));
    // as an earlier heaptrace has left it
    let is_at_our_place = form == Form::Timespec && argument.get(&again) == entering::place(&again);
    let behind = again.0.rip.wrapping_add(SYSCALL_LEN);
    if form == Form::WrittenTimespec {
        if let Some(asleep) = asleep {
            entering::shorten(tid, Addr(asleep.call.value), asleep.limit, asleep.slept + asleep.at.elapsed());
        }
        return again;
    }
    if asleep.is_none() && !is_at_our_place || !liveness::is_dead(argument.register(), behind, code) {
        return again;
    }
    let mut shorter = again;
    match (form, asleep) {
        (Form::Milliseconds, Some(asleep)) => {
            let left = limits::left_in_ms(asleep.limit, asleep.slept + asleep.at.elapsed());
            argument.set(&mut shorter, u64::from(left));
        }
        (Form::Milliseconds, None) | (Form::WrittenTimespec, _) => {}
        (Form::Timespec, asleep) => {
            let limit = asleep.map(|asleep| (asleep.limit, asleep.slept, asleep.at));
            let value = argument.get(&again);
            let due = Due { rip: again.0.rip, rax: again.0.rax, argument, value, limit };
            NOTED.with_borrow_mut(|noted| noted.due.insert(tid, due));
        }
    }
    shorter
}

/// A stopped thread is about to go on, and stays traced: lets it enter the call that it makes with what is left, if
/// it is to make one.
///
/// # Errors
/// Any failure of a ptrace request.
pub(super) fn enter_if_due(thread: &Stopped) -> Result<Entered> {
    let taken = NOTED.with_borrow_mut(|noted| {
        let due = if noted.due.is_empty() { None } else { noted.due.remove(&thread.tid()) };
        due.map(|due| (due, noted.mappings.take()))
    });
    let Some((due, mut mappings)) = taken else { return Ok(Entered::Unchanged) };
    // nothing is borrowed meanwhile: stops that are looked at there are noted, too
    let entered = entering::enter(thread, &due, &mut mappings);
    NOTED.with_borrow_mut(|noted| noted.mappings = mappings);
    entered
}

/// A stopped thread is about to be let go for good: what it is to enter afterwards.
///
/// # Errors
/// Any failure of a ptrace request.
pub(super) fn take_due(thread: &Stopped) -> Result<Option<Due>> {
    let due = NOTED.with_borrow_mut(|noted| if noted.due.is_empty() { None } else { noted.due.remove(&thread.tid()) });
    match due {
        Some(due) => entering::before_letting_go(thread, due),
        None => Ok(None),
    }
}

/// Whether thread `tid` is to enter a call when it goes on, which takes a moment.
pub(super) fn is_due(tid: i32) -> bool {
    NOTED.with_borrow(|noted| noted.due.contains_key(&tid))
}

fn look(tid: i32, cpu: usize, clocks: &mut Clocks) -> Option<Asleep> {
    let call = timed_call(tid)?;
    let limit = call.limit(|at| {
        let mut bytes = [0; 16];
        let memory = TargetMemory::open(tid, tid).ok()?;
        (memory.read_uncached(Addr(at), &mut bytes) == bytes.len()).then_some(bytes)
    })?;
    let scheduled = Scheduled::of(tid)?;
    let now = clocks.now(cpu, CLOCK_IS_KNOWN, CLOCK_PATIENCE)?;
    let at = Instant::now();
    let seen = Instant::now();
    // it has not run since, so all that was read is of the same sleep
    if timed_call(tid)? != call || Scheduled::of(tid)? != scheduled {
        return None;
    }
    // it has fallen asleep since the clock was known
    let slept = Duration::from_nanos(u64::try_from(now - scheduled.since).unwrap_or(0));
    Some(Asleep { call, limit, slept, at, seen, scheduled, is_confirmed: false })
}

fn timed_call(tid: i32) -> Option<TimedCall> {
    TimedCall::read(&read(tid, "syscall")?)
}

/// What /proc/PID/sched tells of a thread. None where the kernel does not tell (CONFIG_SCHED_DEBUG).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scheduled {
    /// When it has last run, by the clock of its CPU in ns.
    since: i64,
    /// How often it has gone to sleep.
    sleeps: u64,
    /// How long it has run, in ns.
    ran: i64,
}

impl Scheduled {
    fn of(tid: i32) -> Option<Self> {
        let text = read(tid, "sched")?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
            Some(line.trim())
        };
        let nanoseconds = |name: &str| {
            let (whole, parts) = value(name)?.split_once('.')?;
            whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(parts.parse().ok()?)
        };
        let since = nanoseconds("se.exec_start")?;
        let (sleeps, ran) = (value("nr_voluntary_switches")?.parse().ok()?, nanoseconds("se.sum_exec_runtime")?);
        // of one that was given to another CPU it is 0
        (since > 0).then_some(Self { since, sleeps, ran })
    }

    /// Whether a thread that slept then, and stands now, can have gone from there to its stop only: it has slept once
    /// more, which is the stop, and has not run for long. One that was woken by what it waited for, and waits again
    /// already, has done more.
    const fn leads_straight_to(&self, now: &Self) -> bool {
        now.sleeps == self.sleeps + 1 && now.ran - self.ran < STRAIGHT_TO_ITS_STOP
    }
}

impl Clocks {
    /// What the clock of a CPU shows now at least, in ns: what it showed when it was looked at last, if that was no
    /// longer ago than `known_for`, or where the CPU is too busy to tell it within `patience`. So a wait is taken to
    /// have lasted less long than it has, never longer. None if the clock was never known.
    fn now(&mut self, cpu: usize, known_for: Duration, patience: Duration) -> Option<i64> {
        let known = self.known.get(&cpu).copied();
        let older =
            known.map(|(ahead, at)| ours() + ahead - i64::try_from(at.elapsed().as_nanos()).unwrap_or(i64::MAX));
        if known.is_some_and(|(_, at)| at.elapsed() < known_for) {
            return older;
        }
        if self.failed.get(&cpu).is_some_and(|failed| failed.elapsed() < CLOCK_PAUSE) {
            return older;
        }
        // The thread that traces stays where it is: it could be kept from going on while the process stands.
        let (sender, told) = std::sync::mpsc::sync_channel(1);
        let work = move || {
            // nobody may wait any more
            let _ = sender.send(ahead_of_ours(cpu));
        };
        let begun = std::thread::Builder::new().name("clock".to_owned()).spawn(work);
        match begun.ok().and_then(|_| told.recv_timeout(patience).ok()).flatten() {
            Some(ahead) => {
                self.known.insert(cpu, (ahead, Instant::now()));
                Some(ours() + ahead)
            }
            None => {
                tracing::debug!("heaptrace could not read the clock of processor {cpu} within {patience:?}");
                self.failed.insert(cpu, Instant::now());
                older
            }
        }
    }
}

/// How far the clock of a CPU is ahead of ours, in ns: it is that of this thread when it has just run there, and stays
/// there.
fn ahead_of_ours(cpu: usize) -> Option<i64> {
    let mut only = CpuSet::new();
    only.set(cpu).ok()?;
    sched_setaffinity(Pid::from_raw(0), &only).ok()?;
    // the kernel counts the time up to here
    std::thread::yield_now();
    let now = Scheduled::of(super::control::thread_id());
    let at = ours();
    Some(now?.since - at)
}

/// A clock of ours, in ns.
fn ours() -> i64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    i64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(i64::MAX)
}

fn state_and_cpu(tid: i32) -> Option<(u8, usize)> {
    let text = read(tid, "stat")?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(35)?.parse().ok()?))
}

fn read(tid: i32, file: &str) -> Option<String> {
    String::from_utf8(procfs::read(tid, file).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_done_more_than_to_stop_has_left_its_wait() {
        let asleep = Scheduled { since: 1_000, sleeps: 7, ran: 5_000_000 };
        let stopped = Scheduled { since: 9_000, sleeps: 8, ran: 5_020_000 };
        assert!(asleep.leads_straight_to(&stopped));
        assert!(!asleep.leads_straight_to(&Scheduled { sleeps: 9, ..stopped }), "it has slept in between");
        assert!(!asleep.leads_straight_to(&Scheduled { ran: 5_300_000, ..stopped }), "it has worked in between");
        assert!(!asleep.leads_straight_to(&asleep), "it has not stopped");
    }

    /// The clock of a CPU that leaves no time to ask for it, or that was asked for a moment ago, shows what it showed
    /// then: what has passed since a hypervisor may have taken.
    #[test]
    fn a_clock_that_can_not_be_asked_for_shows_what_it_showed() {
        let nowhere = 1_000_000;
        let age = Duration::from_secs(7);
        let ahead = 50_000_000_000;
        let known = |age| HashMap::from([(nowhere, (ahead, Instant::now().checked_sub(age).unwrap()))]);
        // how far it seems ahead of ours now, in halves of a second, a little less
        let ask = |mut clocks: Clocks| {
            let now = clocks.now(nowhere, Duration::from_secs(5), Duration::ZERO)?;
            Some((now - ours()).div_euclid(500_000_000))
        };
        let failed = HashMap::from([(nowhere, Instant::now())]);
        assert_eq!(ask(Clocks { known: known(Duration::ZERO), ..Clocks::default() }), Some(99));
        assert_eq!(ask(Clocks { known: known(age), ..Clocks::default() }), Some(85));
        assert_eq!(ask(Clocks { known: known(Duration::from_secs(3)), ..Clocks::default() }), Some(93));
        assert_eq!(ask(Clocks { known: known(age), failed: failed.clone() }), Some(85));
        assert_eq!(ask(Clocks { known: HashMap::new(), failed }), None);
    }

    #[test]
    fn a_sleep_is_measured_by_the_clock_of_its_cpu() {
        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        // before the thread is there: it may sleep long before this one goes on
        let began = Instant::now();
        let sleeper = std::thread::spawn(move || {
            told.send(super::super::control::thread_id()).unwrap();
            let _ = ended.recv();
        });
        let tid = tid.recv().unwrap();
        while state_and_cpu(tid).unwrap().0 != b'S' {}
        let fell_asleep = began.elapsed();
        std::thread::sleep(Duration::from_millis(200));
        let since = Scheduled::of(tid).unwrap().since;
        let cpu = state_and_cpu(tid).unwrap().1;
        let now = Clocks::default().now(cpu, CLOCK_IS_KNOWN, CLOCK_PATIENCE_BEFORE).unwrap();
        let slept = Duration::from_nanos(u64::try_from(now - since).unwrap());
        assert!(slept <= began.elapsed() + Duration::from_millis(1), "{slept:?} of {:?}", began.elapsed());
        assert!(slept + fell_asleep >= Duration::from_millis(150), "{slept:?}");
        drop(end);
        sleeper.join().unwrap();
    }
}
