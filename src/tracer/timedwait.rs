//! Waits with a limit of time that the kernel can't take up again where they were: what is left of them when their
//! thread is made to stop.
//!
//! epoll_wait(2) ends early when its thread stops for us, and is called once more. With its whole time it would never
//! end in a process that is asked again and again. The kernel does not
//! tell when a call began. But a thread that sleeps has last run when it went to sleep, and that /proc/PID/sched tells,
//! by the clock of its CPU. The limit stands in a register, which
//! keeps what is left for the next time; it is changed only where the code behind the call does not read it any more.

use super::procfs;
use super::rawregs::RawRegs;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The system calls whose limit stands in r10, in milliseconds; negative: none.
const TIMED: [i64; 2] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait];

/// So long the clock of a CPU is known by one look at it: it does not count what a hypervisor takes.
const CLOCK_IS_KNOWN: Duration = Duration::from_millis(50);

/// A thread in such a wait, just before it was told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asleep {
    call: i64,
    limit_ms: i32,
    /// Where it goes on behind the call.
    behind: u64,
    /// How long it had slept, and when that was known.
    slept: Duration,
    at: Instant,
    /// How often it had gone to sleep.
    sleeps: u64,
    /// Whether it was still in that wait when it stopped.
    is_confirmed: bool,
}

#[derive(Debug, Default)]
struct Noted {
    asleep: HashMap<i32, Asleep>,
    /// The clocks of CPUs: what each is ahead of ours, in ns, and when that was known.
    clocks: HashMap<usize, (i64, Instant)>,
}

thread_local! {
    static NOTED: RefCell<Noted> = RefCell::default();
}

/// Thread `tid` is about to be told to stop: notes how long it has slept, if it does so in such a wait.
pub(super) fn note(tid: i32) {
    let Some((state, cpu)) = state_and_cpu(tid) else { return };
    NOTED.with_borrow_mut(|noted| match state {
        b'S' => {
            let asleep = look(tid, cpu, &mut noted.clocks);
            match asleep {
                Some(asleep) => noted.asleep.insert(tid, asleep),
                None => noted.asleep.remove(&tid),
            };
        }
        // it stands already, and what was noted is of before that
        b't' | b'T' => {}
        _ => drop(noted.asleep.remove(&tid)),
    });
}

/// Thread `tid` has stopped, and may do something for us before it goes on: forgets what was noted if the thread has
/// left that wait.
pub(super) fn confirm(tid: i32) {
    NOTED.with_borrow_mut(|noted| {
        if let Some(asleep) = noted.asleep.get_mut(&tid)
            && !asleep.is_confirmed
        {
            asleep.is_confirmed = scheduled(tid).is_some_and(|(_, sleeps)| sleeps == asleep.sleeps + 1);
            if !asleep.is_confirmed {
                noted.asleep.remove(&tid);
            }
        }
    });
}

/// Whether the kernel tells how long thread `tid`, which sleeps, has done so.
pub(super) fn can_tell(tid: i32) -> bool {
    scheduled(tid).is_some()
}

/// With what a thread makes a call once more that it was stopped in, given that it would make it with `again`: with
/// what is left of its time. `code` reads the target's code.
pub(super) fn shortened(tid: i32, again: RawRegs, code: impl FnOnce(u64, &mut [u8]) -> usize) -> RawRegs {
    const SYSCALL_LEN: u64 = 2;
    confirm(tid);
    let Some(asleep) = NOTED.with_borrow_mut(|noted| noted.asleep.remove(&tid)) else { return again };
    let is_it = again.0.rax.cast_signed() == asleep.call
        && again.0.rip.wrapping_add(SYSCALL_LEN) == asleep.behind
        && again.0.r10 as i32 == asleep.limit_ms;
    let mut bytes = [0; 128];
    if !is_it {
        return again;
    }
    let read = code(asleep.behind, &mut bytes);
    if !crate::arch::liveness::r10_is_dead(bytes.get(..read).unwrap_or(&[]), asleep.behind) {
        return again;
    }
    let mut shorter = again;
    shorter.0.r10 = u64::from(left(asleep.limit_ms, asleep.slept + asleep.at.elapsed()));
    shorter
}

/// What is left of a limit, in ms: never too little.
fn left(limit_ms: i32, passed: Duration) -> u32 {
    let limit = u64::try_from(limit_ms).unwrap_or(0);
    let passed = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
    u32::try_from(limit.saturating_sub(passed)).unwrap_or(0)
}

fn look(tid: i32, cpu: usize, clocks: &mut HashMap<usize, (i64, Instant)>) -> Option<Asleep> {
    let call = read(tid, "syscall")?;
    let (number, limit_ms, behind) = timed_call(&call)?;
    let (since, sleeps) = scheduled(tid)?;
    let now = clock_of(cpu, clocks)?;
    let at = Instant::now();
    // it has not run since, so all that was read is of the same sleep
    if scheduled(tid)? != (since, sleeps) || read(tid, "syscall")? != call {
        return None;
    }
    let slept = Duration::from_nanos(u64::try_from(now - since).ok()?);
    Some(Asleep { call: number, limit_ms, behind, slept, at, sleeps, is_confirmed: false })
}

/// The number, the limit and the place behind it of a timed call, as /proc/PID/syscall tells it.
fn timed_call(text: &str) -> Option<(i64, i32, u64)> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let hexadecimal = |at: usize| u64::from_str_radix(words.get(at)?.strip_prefix("0x")?, 16).ok();
    let number = words.first()?.parse().ok().filter(|number| TIMED.contains(number))?;
    let limit_ms = hexadecimal(4)? as i32;
    (limit_ms > 0).then_some((number, limit_ms, hexadecimal(8)?))
}

/// When a thread that sleeps has last run, by the clock of its CPU in ns, and how often it has gone to sleep. None
/// where the kernel does not tell (CONFIG_SCHED_DEBUG).
fn scheduled(tid: i32) -> Option<(i64, u64)> {
    let text = read(tid, "sched")?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(line.trim())
    };
    let (whole, parts) = value("se.exec_start")?.split_once('.')?;
    let ran = whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(parts.parse().ok()?)?;
    // of one that was given to another CPU it is 0
    (ran > 0).then_some((ran, value("nr_voluntary_switches")?.parse().ok()?))
}

/// The clock of a CPU now, in ns: as that of this thread when it has just run there.
fn clock_of(cpu: usize, clocks: &mut HashMap<usize, (i64, Instant)>) -> Option<i64> {
    if let Some(&(ahead, at)) = clocks.get(&cpu)
        && at.elapsed() < CLOCK_IS_KNOWN
    {
        return Some(ours() + ahead);
    }
    let own = Pid::from_raw(0);
    let before = sched_getaffinity(own).ok()?;
    let mut only = CpuSet::new();
    only.set(cpu).ok()?;
    sched_setaffinity(own, &only).ok()?;
    // the kernel counts the time up to here
    std::thread::yield_now();
    let now = scheduled(super::control::thread_id());
    let at = ours();
    let _ = sched_setaffinity(own, &before);
    let ahead = now?.0 - at;
    clocks.insert(cpu, (ahead, Instant::now()));
    Some(ours() + ahead)
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
    fn the_limit_of_a_timed_call_is_read() {
        let text = "232 0x3 0x7ffd10 0x1 0xbb8 0x0 0x8 0x7ffd00 0x7f1234\n";
        assert_eq!(timed_call(text), Some((libc::SYS_epoll_wait, 3000, 0x7f_1234)));
        assert_eq!(timed_call(&text.replace("0xbb8", "0xffffffff")), None, "no limit");
        assert_eq!(timed_call(&text.replace("232", "7")), None, "poll is taken up by the kernel");
        assert_eq!(timed_call("running\n"), None);
    }

    #[test]
    fn what_is_left_is_never_too_little() {
        assert_eq!(left(3000, Duration::from_micros(2_000_999)), 1000);
        assert_eq!(left(3000, Duration::from_secs(9)), 0);
    }

    #[test]
    fn a_sleep_is_measured_by_the_clock_of_its_cpu() {
        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            told.send(super::super::control::thread_id()).unwrap();
            let _ = ended.recv();
        });
        let tid = tid.recv().unwrap();
        let began = Instant::now();
        while state_and_cpu(tid).unwrap().0 != b'S' {}
        let fell_asleep = began.elapsed();
        std::thread::sleep(Duration::from_millis(200));
        let (since, _) = scheduled(tid).unwrap();
        let now = clock_of(state_and_cpu(tid).unwrap().1, &mut HashMap::new()).unwrap();
        let slept = Duration::from_nanos(u64::try_from(now - since).unwrap());
        assert!(slept <= began.elapsed() + Duration::from_millis(1), "{slept:?} of {:?}", began.elapsed());
        assert!(slept + fell_asleep >= Duration::from_millis(150), "{slept:?}");
        drop(end);
        sleeper.join().unwrap();
    }
}
