//! Trying out on a child of our own what tracing needs: the only way to know what the kernel, its security modules and
//! a container's seccomp filter allow together. For `heaptrace doctor`.

use super::affinity::CpuSet;
use super::code::TargetCode;
use super::memory::TargetMemory;
use super::ptrace::{self, Waited};
use super::status::WaitStatus;
use super::waiting::Waiting;
use super::{Result, TracerError};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::breakpoints::patches::Patch;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long it is measured. What a stop takes depends on what else runs and on where the kernel places both sides,
/// which changes within fractions of a second: 2000 stops in a row said 13 µs at one time and 51 µs a moment later.
const MEASURED: Duration = Duration::from_secs(1);

/// Stops over which the cost of one is averaged in a round.
const ROUND_TRIPS: u32 = 500;

/// Stops before a round begins, in which the kernel moves both sides.
const WARM_UP: u32 = 20;

/// So many rounds are made however long they take.
const MIN_ROUNDS: usize = 3;

/// What the trial showed.
#[derive(Debug)]
pub struct TraceCheck {
    /// Whether a child could be attached to. If not, nothing else was tried.
    pub seize: Result<()>,
    /// Whether a breakpoint could be written into its code, and taken out again.
    pub write_code: Result<CodeAccess>,
    /// What an int3 stop costs with its registers read and written: the CPUs left to the scheduler.
    pub stop: Option<StopCost>,
    /// The same with tracer and child on one CPU, measured in turn with the other.
    pub stop_pinned: Option<StopCost>,
}

/// What a stop takes, in wall time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopCost {
    /// The mean of the middle half of all rounds.
    pub typical: Duration,
    /// One round in four took no longer.
    pub low: Duration,
    /// One in four took no less.
    pub high: Duration,
}

impl StopCost {
    /// Of rounds of many stops each: the mean time of a stop in each of them. None if there was none.
    fn of(mut rounds: Vec<Duration>) -> Option<Self> {
        rounds.sort_unstable();
        let quarter = rounds.len() / 4;
        let middle = rounds.get(quarter..rounds.len() - quarter)?;
        let typical = middle.iter().sum::<Duration>().checked_div(u32::try_from(middle.len()).ok()?)?;
        Some(Self { typical, low: *middle.first()?, high: *middle.last()? })
    }
}

/// How the code of a traced process can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeAccess {
    /// While it runs, through /proc/PID/mem.
    Running,
    /// Only through a thread that stands still (PTRACE_POKEDATA).
    StoppedOnly,
}

/// Traces a child for a moment. All on a thread of its own, with which the child ends in any case.
///
/// # Errors
/// If no child or thread could be made; what tracing itself met is in the [`TraceCheck`].
pub fn try_trace() -> Result<TraceCheck> {
    let thread = std::thread::Builder::new()
        .name("probe".to_owned())
        .spawn(trial)
        .map_err(|source| TracerError::Own { operation: "start a thread", source })?;
    thread.join().unwrap_or_else(|_| {
        Err(TracerError::Own { operation: "try out tracing", source: io::Error::other("the thread panicked") })
    })
}

fn trial() -> Result<TraceCheck> {
    let child = Child::start()?;
    let mut check = TraceCheck {
        seize: ptrace::seize(child.pid, true),
        write_code: Ok(CodeAccess::Running),
        stop: None,
        stop_pinned: None,
    };
    if check.seize.is_ok() {
        check.write_code = try_code(child.pid);
        child.detach()?;
        (check.stop, check.stop_pinned) = measure(child.pid);
    }
    Ok(check)
}

/// What a stop costs with the CPUs left to the scheduler, and on one of them. Both in turn: the machine is another one
/// a moment later.
fn measure(pid: i32) -> (Option<StopCost>, Option<StopCost>) {
    let everywhere = CpuSet::of(0).ok();
    let one = everywhere.and_then(|cpus| cpus.single());
    let (mut scheduled, mut pinned) = (Vec::new(), Vec::new());
    let mut waiting = Waiting::new();
    let began = Instant::now();
    while began.elapsed() < MEASURED || scheduled.len() < MIN_ROUNDS {
        let Ok(mean) = round(pid, &mut waiting, false) else { break };
        scheduled.push(mean);
        let (Some(everywhere), Some(one)) = (&everywhere, &one) else { continue };
        let place = |cpus: &CpuSet| cpus.apply(0).and_then(|()| cpus.apply(pid));
        if place(one).is_ok() {
            pinned.extend(round(pid, &mut waiting, true));
        }
        // This thread ends with the trial: nobody else needs its old mask.
        if place(everywhere).is_err() {
            break;
        }
    }
    (StopCost::of(scheduled), StopCost::of(pinned))
}

/// Code of ours, shared with the child as a private mapping: where the trial breakpoint goes. Never called.
#[inline(never)]
extern "C" fn breakpoint_place() {
    std::hint::black_box(());
}

fn try_code(pid: i32) -> Result<CodeAccess> {
    let refused = match write_and_restore(pid, None) {
        Ok(()) => return Ok(CodeAccess::Running),
        Err(refused) => refused,
    };
    ptrace::interrupt(pid)?;
    match ptrace::wait_task(pid, ptrace::TIMEOUT)? {
        Waited::Task(_, _, Some(stopped)) => {
            let written = write_and_restore(pid, Some(pid));
            stopped.resume(0)?;
            written.map(|()| CodeAccess::StoppedOnly).map_err(|_| refused)
        }
        _ => Err(refused),
    }
}

fn write_and_restore(pid: i32, stopped: Option<i32>) -> Result<()> {
    let addr = Addr(breakpoint_place as extern "C" fn() as usize as u64);
    let mut memory = TargetMemory::open(pid, pid)?;
    memory.stands_still(stopped);
    let mut original = [0u8];
    if memory.read(addr, &mut original) != 1 {
        let source = io::Error::other("the child's code can't be read");
        return Err(TracerError::Write { pid, addr, source });
    }
    let mut code = TargetCode::default();
    code.place(&mut memory, addr, Patch::int3(original[0]))?;
    code.lift(&mut memory, addr)
}

/// The mean time of one stop of the child, which executes int3 after int3.
fn round(pid: i32, waiting: &mut Waiting, pinned: bool) -> Result<Duration> {
    for _ in 0..WARM_UP {
        round_trip(pid, waiting, pinned)?;
    }
    let began = Instant::now();
    for _ in 0..ROUND_TRIPS {
        round_trip(pid, waiting, pinned)?;
    }
    Ok(began.elapsed() / ROUND_TRIPS)
}

fn round_trip(pid: i32, waiting: &mut Waiting, pinned: bool) -> Result<()> {
    match waiting.next(1, pinned)? {
        Waited::Task(_, status, Some(stopped)) => {
            let signal = match status {
                WaitStatus::Signal(libc::SIGTRAP) => {
                    let registers = stopped.registers()?;
                    stopped.set_registers(&registers)?;
                    0
                }
                WaitStatus::Signal(signal) => signal,
                _ => 0,
            };
            stopped.resume(signal)
        }
        _ => Err(TracerError::Died { tid: pid }),
    }
}

/// The child of the trial. Dropping it ends it.
struct Child {
    pid: i32,
    gate: File,
}

impl Child {
    /// Forks a child that waits until it is let go.
    fn start() -> Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors, which are new and ours if the call succeeds.
        let (gate_read, gate_write) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return Err(TracerError::own("make a pipe"));
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // SAFETY: the child makes only async-signal-safe calls.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(TracerError::own("fork"));
        }
        if pid == 0 {
            // SAFETY: as above. Without the close, the read would not end if heaptrace died now.
            unsafe {
                libc::close(gate_write.as_raw_fd());
                let mut byte = 0u8;
                if libc::read(gate_read.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                    libc::_exit(1);
                }
                loop {
                    // SAFETY: the tracer swallows the signal; without one it ends this process, as it should.
                    std::arch::asm!("int3", options(nomem, nostack));
                }
            }
        }
        Ok(Self { pid, gate: File::from(gate_write) })
    }

    fn detach(&self) -> Result<()> {
        use std::io::Write;
        (&self.gate).write_all(&[1]).map_err(|source| TracerError::Own { operation: "wake the child", source })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        ptrace::kill_child(self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs what the whole of heaptrace needs: a machine that lets a process trace its own child.
    #[test]
    fn the_trial_writes_a_breakpoint_and_measures_stops() {
        let check = try_trace().unwrap();
        check.seize.unwrap();
        assert_eq!(check.write_code.unwrap(), CodeAccess::Running);
        assert!(check.stop.unwrap().low > Duration::from_nanos(100));
        assert!(check.stop_pinned.unwrap().low > Duration::from_nanos(100));
    }

    /// Rounds that other programs disturbed, at whatever moment, change little.
    #[test]
    fn a_disturbance_does_not_change_the_figure() {
        let micros = |rounds: &[u64]| StopCost::of(rounds.iter().copied().map(Duration::from_micros).collect());
        let calm = micros(&[12, 11, 13, 12, 11, 12, 13, 12]).unwrap();
        let disturbed = micros(&[225, 11, 13, 12, 11, 12, 131, 12]).unwrap();
        assert_eq!((calm.typical.as_micros(), disturbed.typical.as_micros()), (12, 12));
        assert_eq!((disturbed.low.as_micros(), disturbed.high.as_micros()), (12, 13));
        // where it changes all the time, the range says so
        let restless = micros(&[11, 40, 12, 41, 11, 42, 12, 40]).unwrap();
        assert_eq!((restless.low.as_micros(), restless.high.as_micros()), (12, 40));
        assert_eq!(micros(&[7]).unwrap().typical.as_micros(), 7);
        assert_eq!(micros(&[]), None);
    }

    /// Not even a zombie, whatever state the child was in.
    #[test]
    fn the_child_is_gone_when_it_is_dropped() {
        for (traced, running) in [(false, false), (true, false), (true, true)] {
            let child = Child::start().unwrap();
            let pid = child.pid;
            if traced {
                ptrace::seize(pid, true).unwrap();
            }
            if running {
                child.detach().unwrap();
                round_trip(pid, &mut Waiting::new(), false).unwrap();
            }
            drop(child);
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "traced: {traced}, running: {running}");
        }
    }
}
