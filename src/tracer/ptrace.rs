//! The ptrace requests, typed: a request that needs a stopped task takes a [`Stopped`], and resuming consumes it.

use super::alarm::Alarm;
use super::injection::{self, Call};
use super::memory::TargetMemory;
use super::rawregs::RawRegs;
use super::status::{Event, WaitStatus};
use super::timedwait::{self, Entered};
use super::{Result, TracerError, procfs};
use crate::arch::Regs;
use crate::arch::xsave::{self, VectorWord};
use crate::base::addr::Addr;
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

mod unclaimed;
pub use unclaimed::{collect, look_at_task};

/// Options of every seized task; see [`seize`].
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEVFORKDONE
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESYSGOOD;

/// Bit 16 of the flags register (RF). A thread that we have moved past a breakpoint has it set, and no thread has it
/// right behind an int3: so the [SIGTRAP fallback](super::sigtrap_fallback) leaves it where it is.
pub const RESUME_FLAG: u64 = 1 << 16;

/// What a stop at a system call's entry or exit is reported as (PTRACE_O_TRACESYSGOOD). Without that option it would be
/// SIGTRAP, which the kernel sends to a thread whose tracer dies before it has waited for the stop; this is no signal.
pub const SYSTEM_CALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// A task that is stopped for us: wait has reported it and nothing has resumed it since. Not `Clone`: there is one
/// token a stop. Dropping it leaves the task stopped, so every path must end in [`Stopped::resume`],
/// [`Stopped::listen`] or [`Stopped::detach`].
#[derive(Debug)]
#[must_use = "the task stays stopped until it is resumed, made to listen, or detached"]
pub struct Stopped {
    tid: i32,
}

/// Attaches to `tid` without stopping it (PTRACE_SEIZE). Its future children and threads are seized with it.
/// `exit_kill`: the kernel kills the task if the calling thread ends while still attached.
pub fn seize(tid: i32, exit_kill: bool) -> Result<()> {
    let options = if exit_kill { OPTIONS | libc::PTRACE_O_EXITKILL } else { OPTIONS };
    while !seize_unless_interrupted(tid, options)? {}
    Ok(())
}

/// Attaches to `tid` with `options`, without stopping it. Without any, children and threads of its own are not attached
/// to. False if a signal to the calling thread came first: the kernel lets this wait while a thread of the process is
/// in exec, and the exec may wait for what the caller has to do with another thread.
pub(super) fn seize_unless_interrupted(tid: i32, options: i32) -> Result<bool> {
    match request(libc::PTRACE_SEIZE, tid, 0, as_word(options), "seize") {
        Ok(()) => Ok(true),
        Err(TracerError::Task { source, .. }) if source.raw_os_error() == Some(libc::EINTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks `tid`, running or not, to stop soon (PTRACE_INTERRUPT). The stop may merge with another one.
pub fn interrupt(tid: i32) -> Result<()> {
    timedwait::note(tid);
    request(libc::PTRACE_INTERRUPT, tid, 0, 0, "interrupt")
}

/// What [`wait`] returned.
#[derive(Debug)]
pub enum Waited {
    /// A task changed its state. For stops, the token is in the second field.
    Task(i32, WaitStatus, Option<Stopped>),
    /// Nothing to report (only without blocking).
    Nothing,
    /// A signal for heaptrace itself interrupted the wait.
    Interrupted,
    /// No task is left to wait for.
    NoTasks,
}

/// What there is to report of one task, which is left with the kernel.
pub(super) fn peek(tid: i32) -> Result<Option<WaitStatus>> {
    Ok(look(Some(tid), false)?.ok().map(|(_, status)| status))
}

/// Waits for any task that the calling thread traces, or its child (`__WALL`). Without `block`, returns at once.
///
/// The report of a stop for a signal is only looked at: see [`unclaimed`]. As a rule the task is resumed before the
/// next wait. If it is
/// not, the report is taken then, and a thread that has hit a breakpoint is moved back in front of it before: see
/// [`Stopped::registers_at_trap`]. Who waits for several to stop, and holds them, [collects](collect).
pub fn wait(block: bool) -> Result<Waited> {
    if let Some(other) = unclaimed::claim_all()? {
        return Ok(other);
    }
    loop {
        let (tid, status) = match look(None, block)? {
            Ok(found) => found,
            Err(nothing) => return Ok(nothing),
        };
        if let Some(found) = unclaimed::take(tid, status)? {
            return Ok(found);
        }
    }
}

/// The next report, of any task or of one, which is left with the kernel: a task and its status. The inner error is the
/// answer where there is none.
fn look(tid: Option<i32>, block: bool) -> Result<std::result::Result<(i32, WaitStatus), Waited>> {
    injection::point(Call::Other).map_err(|source| TracerError::Own { operation: "wait for the target", source })?;
    // Other threads' children are none of ours.
    let flags = libc::WEXITED | libc::WNOWAIT | libc::__WALL | libc::__WNOTHREAD;
    let flags = if block { flags } else { flags | libc::WNOHANG };
    let (kind, id) = tid.map_or((libc::P_ALL, 0), |tid| (libc::P_PID, tid.cast_unsigned()));
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is a valid place for the kernel to write to.
    let result = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), flags) };
    if result != 0 {
        let source = io::Error::last_os_error();
        return match source.raw_os_error() {
            Some(libc::EINTR) => Ok(Err(Waited::Interrupted)),
            Some(libc::ECHILD) => Ok(Err(Waited::NoTasks)),
            _ => Err(TracerError::Own { operation: "wait for the target", source }),
        };
    }
    // SAFETY: zeroed above; all bit patterns are valid.
    let info = unsafe { info.assume_init() };
    // SAFETY: waitid fills the fields of SIGCHLD, or leaves them zero.
    let (tid, code) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(match info.si_code {
        _ if tid == 0 => Err(Waited::Nothing),
        // As wait4 has it: wait(2), WSTOPSIG and the events of ptrace(2) above it.
        libc::CLD_TRAPPED | libc::CLD_STOPPED => Ok((tid, WaitStatus::decode((code << 8) | 0x7f))),
        // An end, which is taken at once.
        _ => Ok((tid, WaitStatus::Exited(code))),
    })
}

/// Lets a task end that stands at its end, and takes the report of an end. Any other report is left where it is.
/// Whether there was one.
pub(super) fn let_end(tid: i32) -> Result<bool> {
    match look(Some(tid), false)? {
        Ok((_, WaitStatus::Event(Event::Exit) | WaitStatus::Exited(_))) => {}
        _ => return Ok(false),
    }
    if let Waited::Task(_, _, Some(stopped)) = poll_task(tid)? {
        match stopped.resume(0) {
            Err(error) if !error.is_out_of_reach() => return Err(error),
            _ => {}
        }
    }
    Ok(true)
}

/// Lets a task go on that has stopped because of [`interrupt`], as [`peek`] has shown. The report of that stop is not
/// taken: a task that was killed since has its end there, which the next wait must see.
pub(super) fn let_go_on(tid: i32) -> Result<()> {
    // before it makes a call for us
    timedwait::confirm(tid);
    let stopped = Stopped::regained(tid);
    match stopped.restart_interrupted_call().and_then(|()| stopped.resume(0)) {
        Err(error) if !error.is_out_of_reach() => Err(error),
        _ => Ok(()),
    }
}

/// Lets a stopped task go: its report is no longer there to be taken.
fn let_run(kind: impl Into<i64>, tid: i32, signal: i32, operation: &'static str) -> Result<()> {
    request(kind, tid, 0, as_word(signal), operation)?;
    unclaimed::forget(tid);
    Ok(())
}

/// How often a wait for one task looks around.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Waits for one task for up to `patience`, whatever signals heaptrace itself gets meanwhile; [`Waited::Nothing`]
/// afterwards.
///
/// [`Waited::NoTasks`] also of a leader that has ended: the kernel tells of that only when its other threads have ended
/// or one of them has taken its place by exec, and those may wait to be served in turn.
pub fn wait_task(tid: i32, patience: Duration) -> Result<Waited> {
    let began = Instant::now();
    let alarm = Alarm::every(LOOK_AROUND);
    let flags = if alarm.is_ok() { libc::__WALL } else { libc::__WALL | libc::WNOHANG };
    loop {
        match wait_for(tid, flags)? {
            Waited::Interrupted => {}
            Waited::Nothing => std::thread::sleep(LOOK_AROUND / 20),
            other => return Ok(other),
        }
        let has_ended = matches!(procfs::state(tid, tid), None | Some(b'Z' | b'X'));
        if has_ended || began.elapsed() > patience {
            return Ok(match poll_task(tid)? {
                Waited::Nothing if has_ended => Waited::NoTasks,
                other => other,
            });
        }
    }
}

/// Whether there is something to report of one task.
pub fn poll_task(tid: i32) -> Result<Waited> {
    wait_for(tid, libc::__WALL | libc::WNOHANG)
}

fn wait_for(tid: i32, flags: i32) -> Result<Waited> {
    injection::point(Call::Other).map_err(|source| TracerError::Own { operation: "wait for the target", source })?;
    let mut status = 0;
    // SAFETY: `status` is a valid place for the kernel to write to; no rusage is asked for.
    let tid = unsafe { libc::wait4(tid, &raw mut status, flags, std::ptr::null_mut()) };
    if tid > 0 {
        let decoded = WaitStatus::decode(status);
        if decoded == WaitStatus::EventStop {
            // before it makes a call for us
            timedwait::confirm(tid);
        }
        let stopped = match decoded {
            WaitStatus::Exited(_) | WaitStatus::Signaled(_) => None,
            _ => Some(Stopped { tid }),
        };
        return Ok(Waited::Task(tid, decoded, stopped));
    }
    if tid == 0 {
        return Ok(Waited::Nothing);
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::EINTR) => Ok(Waited::Interrupted),
        Some(libc::ECHILD) => Ok(Waited::NoTasks),
        _ => Err(TracerError::Own { operation: "wait for the target", source }),
    }
}

/// Writes a word to the memory of `tid`, which must be stopped for the calling thread. Goes through page protection.
pub(super) fn poke(tid: i32, addr: Addr, word: u64) -> Result<()> {
    injection::point(Call::Poke).map_err(|source| TracerError::Task { operation: "write to", tid, source })?;
    request(libc::PTRACE_POKEDATA, tid, addr.0, word, "write to")
}

/// Kills our own child `pid`, traced by the calling thread or not, and takes its status: not even a zombie is left.
pub fn kill_child(pid: i32) {
    // SAFETY: kill has no memory effects; the child has not been reaped, so the id is still its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // Traced, it may stop once more at PTRACE_EVENT_EXIT before it is gone. One in an uninterruptible sleep goes by
    // itself later.
    while let Ok(Waited::Task(_, _, Some(stopped))) = wait_task(pid, TIMEOUT) {
        let _ = stopped.resume(0);
    }
}

/// How long is waited for one task that is about to stop, or to end: it takes some microseconds, and a time slice of
/// all others where many want the CPU. One that does not come is frozen (cgroup freezer), or sleeps uninterruptibly.
pub const TIMEOUT: Duration = Duration::from_secs(1);

impl Stopped {
    /// The token of a stop whose own was lost: by a panic between the stop and its answer, or by a request that failed.
    /// `tid` has not been resumed since.
    pub const fn regained(tid: i32) -> Self {
        Self { tid }
    }

    /// The stopped task.
    pub const fn tid(&self) -> i32 {
        self.tid
    }

    /// Lets the task run on, delivering `signal` (0: none). Only a signal-delivery-stop may pass a signal.
    pub fn resume(self, signal: i32) -> Result<()> {
        let entered = if signal == 0 { timedwait::enter_if_due(&self)? } else { Entered::Unchanged };
        match entered {
            Entered::Unchanged | Entered::Inside => let_run(libc::PTRACE_CONT, self.tid, signal, "resume"),
            // it has run on
            Entered::Elsewhere(_) | Entered::Running => Ok(()),
        }
    }

    /// The task is no longer to be killed if the calling thread ends; see [`seize`].
    pub fn live_on(&self) -> Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, as_word(OPTIONS), "set the options of")
    }

    /// The kernel kills the task, a copy of the target, if the calling thread ends while still attached. It does not
    /// stop at its end.
    pub(super) fn die_with_us(&self) -> Result<()> {
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, as_word(options), "set the options of")
    }

    /// Lets the task run to the entry or exit of its next system call, while its token is kept: for a remote call,
    /// which ends in another stop of the same task.
    pub(super) fn run_to_system_call(&self) -> Result<()> {
        let_run(libc::PTRACE_SYSCALL, self.tid, 0, "resume")
    }

    /// Lets the task run on without the signal that it has stopped for, while its token is kept: it has been
    /// interrupted again.
    pub(super) fn run_on(&self) -> Result<()> {
        let_run(libc::PTRACE_CONT, self.tid, 0, "resume")
    }

    /// Of a task that PTRACE_INTERRUPT has stopped in a system call which the kernel then lets fail with EINTR, instead
    /// of starting it anew by itself (signal(7), "Interruption of system calls and library functions by stop signals"):
    /// makes the task call once more. A wait with a limit of time goes on with what is left of it where that is known
    /// (see [`timedwait`]), and else begins anew. Some do so only when the task is let go.
    ///
    /// To be called once, when the task goes on: also of one that was set back in front of such a call already, as it
    /// made another one for us.
    pub fn restart_interrupted_call(&self) -> Result<()> {
        let raw = self.registers()?;
        let ended_early = raw.0.rax.cast_signed() == -i64::from(libc::EINTR);
        // also of those that the kernel would call again itself: with the whole limit
        let is_timed = timedwait::has_limit(raw.0.orig_rax.cast_signed());
        let again = if ended_early { raw.repeating_system_call() } else { Some(raw) };
        let again = if is_timed { raw.repeating_system_call().or(again) } else { again };
        let Some(again) = again else { return Ok(()) };
        let code = |at: u64, bytes: &mut [u8]| {
            TargetMemory::open(self.tid, self.tid).map_or(0, |memory| memory.read_uncached(Addr(at), bytes))
        };
        let again = timedwait::shortened(self.tid, again, code);
        let is_changed = ended_early || again.0.r10 != raw.0.r10 || timedwait::is_due(self.tid);
        if is_changed { self.set_registers(&again) } else { Ok(()) }
    }

    /// Leaves the task stopped for its group stop, but lets it be woken by SIGCONT (PTRACE_LISTEN).
    pub fn listen(self) -> Result<()> {
        let_run(libc::PTRACE_LISTEN, self.tid, 0, "leave in its group stop")
    }

    /// Lets go of the task for good, delivering `signal` (0: none).
    pub fn detach(self, signal: i32) -> Result<()> {
        let (tid, due) = (self.tid, if signal == 0 { timedwait::take_due(&self)? } else { None });
        let_run(libc::PTRACE_DETACH, tid, signal, "detach from")?;
        if let Some(due) = due {
            due.by_another_thread(tid);
        }
        Ok(())
    }

    /// All integer registers, in the kernel's layout.
    pub fn registers(&self) -> Result<RawRegs> {
        let mut regs = MaybeUninit::<libc::user_regs_struct>::uninit();
        request(libc::PTRACE_GETREGS, self.tid, 0, regs.as_mut_ptr() as u64, "read the registers of")?;
        // SAFETY: PTRACE_GETREGS succeeded, so the kernel has filled the whole structure.
        Ok(RawRegs(unsafe { regs.assume_init() }))
    }

    /// What the vector registers hold, word by word; words that are zero are left out.
    pub fn vector_registers(&self) -> Result<Vec<VectorWord>> {
        let mut area = [0u64; xsave::WORDS];
        let mut place = libc::iovec { iov_base: area.as_mut_ptr().cast(), iov_len: size_of_val(&area) };
        let kind = as_word(xsave::NT_X86_XSTATE);
        request(libc::PTRACE_GETREGSET, self.tid, kind, &raw mut place as u64, "read the vector registers of")?;
        let read = place.iov_len / size_of::<u64>();
        Ok(xsave::vector_words(area.get(..read).unwrap_or(&area)))
    }

    /// Its floating-point and vector registers as the kernel has them (XSAVE, standard format).
    pub(super) fn extended_state(&self) -> Result<Vec<u8>> {
        // of which AMX is the most
        let mut area = vec![0u8; 16 << 10];
        let mut place = libc::iovec { iov_base: area.as_mut_ptr().cast(), iov_len: area.len() };
        let kind = as_word(xsave::NT_X86_XSTATE);
        request(libc::PTRACE_GETREGSET, self.tid, kind, &raw mut place as u64, "read the vector registers of")?;
        area.truncate(place.iov_len);
        Ok(area)
    }

    /// Writes them back.
    pub(super) fn set_extended_state(&self, state: &[u8]) -> Result<()> {
        let mut place = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
        let kind = as_word(xsave::NT_X86_XSTATE);
        request(libc::PTRACE_SETREGSET, self.tid, kind, &raw mut place as u64, "write the vector registers of")
    }

    /// Writes all integer registers.
    pub fn set_registers(&self, regs: &RawRegs) -> Result<()> {
        request(libc::PTRACE_SETREGS, self.tid, 0, &raw const regs.0 as u64, "write the registers of")
    }

    /// Writes the instruction pointer alone.
    pub fn set_instruction_pointer(&self, rip: u64) -> Result<()> {
        let offset = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rip);
        request(libc::PTRACE_POKEUSER, self.tid, offset as u64, rip, "write the instruction pointer of")
    }

    /// Moves a thread that has hit a breakpoint on to `regs`, of which `raw` holds the rest, in such a way that the
    /// [SIGTRAP fallback](super::sigtrap_fallback) leaves it there.
    pub fn pass_trap(&self, raw: &RawRegs, regs: &Regs) -> Result<()> {
        let mut passed = *raw;
        passed.set_regs(regs);
        passed.0.eflags |= RESUME_FLAG;
        self.set_registers(&passed)
    }

    /// Moves a thread that has hit a breakpoint, and has not been moved yet, back in front of it.
    fn move_before_trap(&self) -> Result<()> {
        if !self.is_breakpoint_trap()? {
            return Ok(());
        }
        let raw = self.registers()?;
        if raw.0.eflags & RESUME_FLAG != 0 {
            return Ok(());
        }
        let mut before = raw.before_trap();
        before.0.eflags |= RESUME_FLAG;
        self.set_registers(&before)
    }

    /// The registers of a thread that has stopped for SIGTRAP, as the trap has left them; and whether the thread has
    /// other ones, as it was moved back in front of the breakpoint: see [`wait`].
    pub fn registers_at_trap(&self) -> Result<(RawRegs, bool)> {
        let mut raw = self.registers()?;
        // An int3 does not set the flag, but a page fault may have been on the way when another signal came.
        let is_moved = raw.0.eflags & RESUME_FLAG != 0 && self.is_breakpoint_trap()?;
        if is_moved {
            raw.0.rip = raw.0.rip.wrapping_add(1);
            raw.0.eflags &= !RESUME_FLAG;
        }
        Ok((raw, is_moved))
    }

    /// Whether the task is stopped no longer, though nobody has resumed it: it is being killed.
    pub fn is_being_killed(&self) -> bool {
        self.event_message().is_err_and(|error| error.is_out_of_reach())
    }

    /// The message of a ptrace event: the new task's id, the exit status, or the former id at an exec.
    pub fn event_message(&self) -> Result<u64> {
        let mut message = 0u64;
        request(libc::PTRACE_GETEVENTMSG, self.tid, 0, &raw mut message as u64, "read the event message of")?;
        Ok(message)
    }

    /// The `si_code` of the signal about to be delivered.
    pub fn signal_code(&self) -> Result<i32> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        request(libc::PTRACE_GETSIGINFO, self.tid, 0, info.as_mut_ptr() as u64, "read the signal information of")?;
        // SAFETY: zeroed above and filled by the kernel; all bit patterns are valid.
        Ok(unsafe { info.assume_init() }.si_code)
    }

    /// Whether the SIGTRAP that stopped the thread comes from an int3: the kernel marks it with SI_KERNEL, and nothing
    /// that a program can send bears that.
    pub fn is_breakpoint_trap(&self) -> Result<bool> {
        const SI_KERNEL: i32 = 0x80;
        Ok(self.signal_code()? == SI_KERNEL)
    }

    /// Whether the thread has stopped for a signal, which it gets when it is let go. Otherwise it has stopped for an
    /// event, at a system call that it makes for us, or in a group stop (ptrace(2), "Stopped states").
    pub fn has_signal_to_deliver(&self) -> Result<bool> {
        match self.signal_code() {
            // Events have SIGTRAP in the low byte and their number above it.
            Ok(code) => Ok(code < 0 || code != SYSTEM_CALL_STOP && code & 0xff != libc::SIGTRAP),
            Err(TracerError::Task { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Of a signal that a fault at the program counter `from` raised (SIGILL, SIGFPE, SIGTRAP give it as `si_addr`):
    /// says that the fault was at `to`. Anything else is left alone.
    pub fn move_fault_address(&self, from: u64, to: u64) -> Result<()> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        match request(libc::PTRACE_GETSIGINFO, self.tid, 0, info.as_mut_ptr() as u64, "read the signal information of")
        {
            // A group stop has none.
            Err(TracerError::Task { .. }) => return Ok(()),
            other => other?,
        }
        // SAFETY: zeroed above and filled by the kernel; all bit patterns are valid.
        let info = unsafe { info.assume_init_mut() };
        if !matches!(info.si_signo, libc::SIGILL | libc::SIGFPE | libc::SIGTRAP) || info.si_code <= 0 {
            return Ok(());
        }
        // siginfo_t of a fault: three ints, four bytes of padding, then the address (<asm-generic/siginfo.h>).
        const ADDRESS: usize = 16;
        // SAFETY: the address field lies within the 128 bytes of a siginfo_t and is aligned to 8 bytes in it.
        let address = unsafe { &mut *(&raw mut *info).cast::<u8>().add(ADDRESS).cast::<u64>() };
        if *address != from {
            return Ok(());
        }
        *address = to;
        request(libc::PTRACE_SETSIGINFO, self.tid, 0, &raw const *info as u64, "write the signal information of")
    }

    /// The address at which a fault was, of a thread that has stopped for SIGSEGV or SIGBUS (`si_addr`).
    pub fn fault_address(&self) -> Result<u64> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        request(libc::PTRACE_GETSIGINFO, self.tid, 0, info.as_mut_ptr() as u64, "read the signal information of")?;
        // SAFETY: zeroed above and filled by the kernel; all bit patterns are valid, and the union's member is an
        // address of integer size.
        Ok(unsafe { info.assume_init().si_addr() } as u64)
    }

    /// The mask of blocked signals: bit n−1 stands for signal n.
    pub fn signal_mask(&self) -> Result<u64> {
        let mut mask = 0u64;
        request(libc::PTRACE_GETSIGMASK, self.tid, 8, &raw mut mask as u64, "read the signal mask of")?;
        Ok(mask)
    }

    /// Sets the mask of blocked signals.
    pub fn set_signal_mask(&self, mask: u64) -> Result<()> {
        request(libc::PTRACE_SETSIGMASK, self.tid, 8, &raw const mask as u64, "write the signal mask of")
    }
}

/// A signal number or option set as ptrace's data word.
const fn as_word(value: i32) -> u64 {
    value as u64
}

/// The system call itself: the C libraries do not agree about the type of a request. Not for PTRACE_PEEK*, whose word
/// the kernel writes to `data` and the C library returns.
fn request(request: impl Into<i64>, tid: i32, addr: u64, data: u64, operation: &'static str) -> Result<()> {
    injection::point(Call::Other).map_err(|source| TracerError::Task { operation, tid, source })?;
    // SAFETY: ptrace acts on the other process; where `data` is an address of ours, the wrappers above pass a
    // place that is valid and large enough for the request.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request.into(), i64::from(tid), addr, data) };
    if result == -1 { Err(TracerError::last(operation, tid)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
