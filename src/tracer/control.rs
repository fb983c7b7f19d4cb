//! Orders from the control thread to the tracer thread, and the signals that heaptrace itself receives.
//!
//! The tracer thread blocks in wait4, which knows no timeout. An order is therefore a flag plus a signal that
//! interrupts the wait; since a signal can arrive just before the wait begins, it is repeated until the tracer thread
//! has taken the order.

use super::{Result, TracerError, injection, procfs};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

/// Interrupts the tracer thread's wait. Ignored by default, so a stray one harms nobody.
pub(super) const WAKE_UP: i32 = libc::SIGURG;

/// The id of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() }
}

/// Our own process id.
pub fn process_id() -> i32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// What the control thread wants, shared with the tracer thread.
#[derive(Debug, Default)]
pub struct Control {
    tracer_tid: AtomicI32,
    /// The thread that waits in [`Self::next_signal_or_end`].
    waiter_tid: AtomicI32,
    detach: AtomicBool,
    forward: AtomicI32,
    end: AtomicBool,
    timed_out: AtomicBool,
    pause: AtomicBool,
    pause_is_new: AtomicBool,
    guardian_is_new: AtomicBool,
    started: AtomicBool,
    finished: AtomicBool,
}

impl Control {
    /// For a session that begins with a pause, or not.
    pub fn new(paused: bool) -> Self {
        Self { pause: AtomicBool::new(paused), ..Self::default() }
    }

    /// To be called first thing by the tracer thread.
    pub fn register_tracer(&self) -> Result<()> {
        injection::arm();
        install_wake_up()?;
        self.tracer_tid.store(thread_id(), Ordering::Release);
        Ok(())
    }

    /// Asks for a detach.
    pub fn request_detach(&self) {
        self.detach.store(true, Ordering::Release);
        self.wake();
    }

    /// Asks to send `signal` to the target's process.
    pub fn request_forward(&self, signal: i32) {
        self.forward.store(signal, Ordering::Release);
        self.wake();
    }

    /// Asks to stop collecting for a while, or to go on.
    pub fn request_pause(&self, pause: bool) {
        self.pause.store(pause, Ordering::Release);
        self.pause_is_new.store(true, Ordering::Release);
        self.wake();
    }

    /// Asks to tell a new guardian what it has to know.
    pub fn request_guard(&self) {
        self.guardian_is_new.store(true, Ordering::Release);
        self.wake();
    }

    /// Takes the order to tell a new guardian everything, if there is one.
    pub fn take_guard(&self) -> bool {
        self.guardian_is_new.swap(false, Ordering::AcqRel)
    }

    /// Takes the latest wish to pause (true) or to go on (false), if there is a new one.
    pub fn take_pause(&self) -> Option<bool> {
        self.pause_is_new.swap(false, Ordering::AcqRel).then(|| self.pause.load(Ordering::Acquire))
    }

    /// Whether collecting stands still, or will in a moment.
    pub fn is_paused(&self) -> bool {
        self.pause.load(Ordering::Acquire)
    }

    /// Whether a detach was asked for; stays true.
    pub fn detach_requested(&self) -> bool {
        self.detach.load(Ordering::Acquire)
    }

    /// Takes the signal to forward, if there is one.
    pub fn take_forward(&self) -> Option<i32> {
        let signal = self.forward.swap(0, Ordering::AcqRel);
        (signal != 0).then_some(signal)
    }

    /// Notes that the program's time was up: a signal to end it follows.
    pub fn note_timeout(&self) {
        self.timed_out.store(true, Ordering::Release);
    }

    /// Whether the program's time was up before it ended.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Acquire)
    }

    /// Asks to look at the program's memory for the last time, and to kill it.
    pub fn request_end(&self) {
        self.end.store(true, Ordering::Release);
        self.wake();
    }

    /// Takes the order to kill the program, if there is one.
    pub fn take_end(&self) -> bool {
        self.end.swap(false, Ordering::AcqRel)
    }

    /// To be called by the tracer thread when all probes are in place.
    pub fn start(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Whether the target is being traced.
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// To be called last thing by the tracer thread.
    pub fn finish(&self) {
        // one of both threads sees what the other has stored
        self.finished.store(true, Ordering::SeqCst);
        wake_thread(self.waiter_tid.load(Ordering::SeqCst));
    }

    /// To be called by the control thread before its first [`Self::next_signal_or_end`]. What it starts from then on
    /// has the wake-up blocked.
    pub fn register_waiter(&self) -> Result<()> {
        // a blocked signal waits to be taken: none is lost that comes between two waits
        change_mask(libc::SIG_BLOCK, &set_of(&[WAKE_UP]))?;
        self.waiter_tid.store(thread_id(), Ordering::SeqCst);
        Ok(())
    }

    /// Waits up to `timeout` for one of heaptrace's own signals. None after the timeout, and as soon as the tracer
    /// thread has finished.
    pub fn next_signal_or_end(&self, timeout: Duration) -> Option<i32> {
        let mut set = own_signals();
        // SAFETY: the set is valid, and so is the number.
        unsafe { libc::sigaddset(&raw mut set, WAKE_UP) };
        if TAKES_JOB_STOP.load(Ordering::Acquire) {
            // SAFETY: as above.
            unsafe { libc::sigaddset(&raw mut set, JOB_STOP) };
        }
        // it may have finished before this thread was registered
        let timeout = if self.is_finished() { Duration::ZERO } else { timeout };
        wait_for(&set, timeout).filter(|&signal| signal != WAKE_UP)
    }

    /// Whether the tracer thread has finished.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    /// Whether an order waits to be taken. The control thread calls [`Self::wake`] again while this holds.
    pub fn is_pending(&self) -> bool {
        self.forward.load(Ordering::Acquire) != 0
            || self.end.load(Ordering::Acquire)
            || self.pause_is_new.load(Ordering::Acquire)
            || self.guardian_is_new.load(Ordering::Acquire)
            || (self.detach_requested() && !self.is_finished())
    }

    /// What holds the tracer thread up at this moment: its state and the system call that it sleeps in, in words. None
    /// if it runs, or has finished.
    pub fn held_up_by(&self) -> Option<String> {
        let own = i32::try_from(std::process::id()).ok()?;
        let tid = self.tracer_tid.load(Ordering::Acquire);
        if tid == 0 || self.is_finished() {
            return None;
        }
        let state = procfs::state(own, tid).filter(|state| matches!(state, b'S' | b'D'))?;
        let call = procfs::system_call(own, tid);
        // It waits for all CPUs to go through the kernel. Under load that takes long, but nobody can keep it from its
        // end.
        if call == Some(libc::SYS_membarrier) {
            return None;
        }
        let call = call.map_or("no system call".to_owned(), |n| format!("system call {n}"));
        Some(format!("state {}, {call}", char::from(state)))
    }

    /// Interrupts the tracer thread's wait.
    pub fn wake(&self) {
        if !self.is_finished() {
            wake_thread(self.tracer_tid.load(Ordering::Acquire));
        }
    }
}

/// Sends [`WAKE_UP`] to a thread of our own; 0: to none.
fn wake_thread(tid: i32) {
    if tid != 0 {
        // SAFETY: a signal that the thread has a harmless handler for, or takes, or that is ignored.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, WAKE_UP) };
    }
}

/// Makes the call that was interrupted return EINTR. Most do by themselves. PTRACE_SEIZE, which waits while its task is
/// in exec, the kernel begins anew whatever the action says (ERESTARTNOINTR): it has set the thread back in front of
/// the call.
extern "C" fn interrupt_call(_signal: i32, _information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    // SAFETY: the kernel passes a ucontext_t to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let [number, request, next] = [libc::REG_RAX, libc::REG_RDI, libc::REG_RIP].map(|register| register as usize);
    if registers[number] != libc::SYS_ptrace || registers[request] != i64::from(libc::PTRACE_SEIZE) {
        return;
    }
    // SAFETY: the program counter points to the instruction that this thread executes next, which is mapped.
    if unsafe { (registers[next] as *const [u8; 2]).read_unaligned() } == SYSCALL {
        registers[next] += SYSCALL.len() as i64;
        registers[number] = -i64::from(libc::EINTR);
    }
}

/// Lets [`WAKE_UP`] interrupt this thread.
pub(super) fn install_wake_up() -> Result<()> {
    // SAFETY: zeroed is a valid sigaction; the handler touches nothing but its own arguments, so it is
    // async-signal-safe. No SA_RESTART: the wait must return.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupt_call as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(WAKE_UP, &raw const action, std::ptr::null_mut())
    };
    if result != 0 {
        return Err(TracerError::own("install the wake-up handler"));
    }
    // heaptrace may have been started with it blocked.
    change_mask(libc::SIG_UNBLOCK, &set_of(&[WAKE_UP])).map(|_| ())
}

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub struct SignalMask(pub(super) libc::sigset_t);

impl SignalMask {
    /// What the calling thread blocks.
    pub fn of_this_thread() -> Result<Self> {
        change_mask(libc::SIG_BLOCK, &set_of(&[]))
    }
}

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: the set was filled by the kernel or sigemptyset.
        f.debug_list().entries((1..65).filter(|&n| unsafe { libc::sigismember(&raw const self.0, n) } == 1)).finish()
    }
}

/// Ctrl-C.
pub const INTERRUPT: i32 = libc::SIGINT;

/// Ctrl-\.
pub const QUIT: i32 = libc::SIGQUIT;

/// The polite request to end.
pub const TERMINATE: i32 = libc::SIGTERM;

/// The end without a request.
pub const KILL: i32 = libc::SIGKILL;

/// heaptrace's CPU time is nearly up (`ulimit -t`).
pub const CPU_TIME: i32 = libc::SIGXCPU;

/// The signals by which others tell heaptrace to end, and which it takes itself: they are blocked in all its threads
/// and fetched by [`next_signal`].
const OWN_SIGNALS: [i32; 4] = [INTERRUPT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// A signal that users may send to heaptrace for a purpose that they choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserSignal {
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

impl UserSignal {
    /// Its number.
    pub const fn number(self) -> i32 {
        match self {
            Self::Usr1 => libc::SIGUSR1,
            Self::Usr2 => libc::SIGUSR2,
        }
    }
}

/// The user's signals that heaptrace takes besides, as bits: set before any signal is blocked.
static USER_SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Makes [`next_signal`] fetch `signal`, too. To be called before [`block_own_signals`].
pub fn also_take(signal: UserSignal) {
    USER_SIGNALS.fetch_or(1 << signal.number(), Ordering::AcqRel);
}

fn own_signals() -> libc::sigset_t {
    let taken = USER_SIGNALS.load(Ordering::Acquire);
    let of_user = [UserSignal::Usr1, UserSignal::Usr2].map(UserSignal::number).into_iter();
    let of_user = of_user.filter(|signal| taken & (1 << signal) != 0);
    let signals: Vec<i32> = OWN_SIGNALS.into_iter().chain([CPU_TIME]).chain(of_user).collect();
    set_of(&signals)
}

/// A descriptor that can be read while one of heaptrace's own signals waits to be taken. It takes none.
pub(super) fn own_signals_fd() -> Result<OwnedFd> {
    let signals = own_signals();
    // SAFETY: the set is valid; the result is a new descriptor or -1.
    let fd = unsafe { libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(TracerError::own("watch for signals"));
    }
    // SAFETY: a new descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether `signal` asks heaptrace to end, unlike the one that pauses.
pub fn is_request_to_end(signal: i32) -> bool {
    OWN_SIGNALS.contains(&signal)
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; the signal numbers are valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// The action for SIGXFSZ that heaptrace was started with.
static INHERITED_FILE_SIZE_ACTION: OnceLock<libc::sighandler_t> = OnceLock::new();

/// Makes a write beyond the file size limit (ulimit -f) an error instead of the end of heaptrace. What heaptrace starts
/// gets back what was inherited, by [`restore_file_size_signal`].
pub fn ignore_file_size_signal() {
    // SAFETY: changes a disposition of our own process; SIG_IGN is valid for this signal.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    INHERITED_FILE_SIZE_ACTION.get_or_init(|| before);
}

/// Between fork and exec. Async-signal-safe.
pub(super) fn restore_file_size_signal() {
    let inherited = INHERITED_FILE_SIZE_ACTION.get().copied().unwrap_or(libc::SIG_DFL);
    // SAFETY: what was inherited over an exec is the default or to ignore, which are valid for this signal.
    unsafe { libc::signal(libc::SIGXFSZ, inherited) };
}

/// The mask that heaptrace was started with.
static INHERITED_MASK: OnceLock<SignalMask> = OnceLock::new();

/// Blocks the signals that [`next_signal`] fetches, in this thread and those it creates. Returns the mask that
/// heaptrace was started with: the launched program must get that one.
pub fn block_own_signals() -> Result<SignalMask> {
    let old = change_mask(libc::SIG_BLOCK, &own_signals())?;
    Ok(*INHERITED_MASK.get_or_init(|| old))
}

/// What Ctrl-Z and reading or writing in the background send.
pub(super) const TERMINAL_STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Keeps the terminal from stopping heaptrace (^Z), as that would stop the attached process with it.
pub fn block_terminal_stops() -> Result<()> {
    let old = change_mask(libc::SIG_BLOCK, &set_of(&TERMINAL_STOPS))?;
    INHERITED_MASK.get_or_init(|| old);
    Ok(())
}

/// Lets the terminal stop heaptrace again, as nobody is traced any more. Stops that came meanwhile are forgotten.
pub fn unblock_terminal_stops() -> Result<()> {
    let stops = set_of(&TERMINAL_STOPS);
    while wait_for(&stops, Duration::ZERO).is_some() {}
    let inherited = INHERITED_MASK.get();
    // SAFETY: the mask was filled by the kernel; the numbers are valid.
    let was_blocked = |&n: &i32| inherited.is_some_and(|mask| unsafe { libc::sigismember(&raw const mask.0, n) } == 1);
    let ours: Vec<i32> = TERMINAL_STOPS.into_iter().filter(|signal| !was_blocked(signal)).collect();
    change_mask(libc::SIG_UNBLOCK, &set_of(&ours)).map(|_| ())
}

/// Ctrl-Z: the shell stops a job, heaptrace and the program that it has started.
pub const JOB_STOP: i32 = libc::SIGTSTP;

/// Whether heaptrace takes [`JOB_STOP`] itself.
static TAKES_JOB_STOP: AtomicBool = AtomicBool::new(false);

/// From now on [`Control::next_signal_or_end`] tells of [`JOB_STOP`], in place of a stop. To be called behind
/// [`block_own_signals`], by the thread that takes them, before it begins others. It is the process's first thread:
/// the guardian reads its mask, to tell this stop, which [`stop_with_job`] makes, from SIGSTOP, which nobody can
/// block.
pub fn take_job_stop() -> Result<()> {
    change_mask(libc::SIG_BLOCK, &set_of(&[JOB_STOP]))?;
    TAKES_JOB_STOP.store(true, Ordering::Release);
    Ok(())
}

/// Stops heaptrace as [`JOB_STOP`] does, until it is continued.
pub fn stop_with_job() -> Result<()> {
    let before = change_mask(libc::SIG_UNBLOCK, &set_of(&[JOB_STOP]))?;
    let sent = send(process_id(), JOB_STOP);
    set_mask(&before)?;
    sent
}

/// [`JOB_STOP`] stops heaptrace again, also one that has come already.
pub fn release_job_stop() -> Result<()> {
    TAKES_JOB_STOP.store(false, Ordering::Release);
    let inherited = INHERITED_MASK.get();
    // SAFETY: the mask was filled by the kernel; the number is valid.
    if inherited.is_some_and(|mask| unsafe { libc::sigismember(&raw const mask.0, JOB_STOP) } == 1) {
        return Ok(());
    }
    change_mask(libc::SIG_UNBLOCK, &set_of(&[JOB_STOP])).map(|_| ())
}

/// Blocks signals in this thread; returns the mask from before.
pub(super) fn block(signals: &[i32]) -> Result<SignalMask> {
    change_mask(libc::SIG_BLOCK, &set_of(signals))
}

/// Sets the mask of this thread; returns the one from before.
pub(super) fn set_mask(mask: &SignalMask) -> Result<SignalMask> {
    change_mask(libc::SIG_SETMASK, &mask.0)
}

/// Changes the mask of this thread; returns the old one.
fn change_mask(how: i32, set: &libc::sigset_t) -> Result<SignalMask> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: both sets are valid; `old` is filled by the call.
    let result = unsafe { libc::pthread_sigmask(how, set, old.as_mut_ptr()) };
    if result == 0 {
        // SAFETY: filled by the successful call.
        Ok(SignalMask(unsafe { old.assume_init() }))
    } else {
        Err(TracerError::Own { operation: "block signals", source: std::io::Error::from_raw_os_error(result) })
    }
}

/// Makes `command` start with the signal mask that heaptrace was started with, and SIGXFSZ as it was: std passes on
/// what we have blocked and ignored for ourselves.
pub fn give_inherited_signals(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let Some(mask) = INHERITED_MASK.get().copied() else { return };
    let reset = move || {
        super::limits::restore();
        super::faults::restore_inherited();
        restore_file_size_signal();
        // SAFETY: the mask is valid, nothing is returned.
        let result = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) };
        match result {
            0 => Ok(()),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: between fork and exec the closure calls setrlimit, signal and pthread_sigmask only, which allocate
    // nothing and take no lock.
    unsafe { command.pre_exec(reset) };
}

/// Waits up to `timeout` for one of heaptrace's own signals. None after the timeout.
pub fn next_signal(timeout: Duration) -> Option<i32> {
    wait_for(&own_signals(), timeout)
}

/// Takes those of heaptrace's own signals that have come already.
pub fn pending_signals() -> Vec<i32> {
    std::iter::from_fn(|| next_signal(Duration::ZERO)).collect()
}

/// A signal that asks heaptrace to end and has not been taken yet. It is left where it is.
pub fn waiting_request_to_end() -> Option<i32> {
    let mut waiting = set_of(&[]);
    // SAFETY: the set is valid, and filled by the call.
    let result = unsafe { libc::sigpending(&raw mut waiting) };
    // SAFETY: the set is valid, and so are the numbers.
    let is_waiting = |signal: &i32| unsafe { libc::sigismember(&raw const waiting, *signal) } == 1;
    (result == 0).then(|| OWN_SIGNALS.into_iter().find(is_waiting)).flatten()
}

/// Sends `signal` to all processes of a process group.
pub fn send_to_group(group: i32, signal: i32) -> Result<()> {
    // SAFETY: kill has no memory effects.
    if unsafe { libc::kill(-group, signal) } == 0 { Ok(()) } else { Err(TracerError::last("signal", group)) }
}

/// Whether a child has ended. It is not waited for, and keeps its number.
pub fn has_ended(child: &std::process::Child) -> std::io::Result<bool> {
    let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `found` has room for what the kernel writes.
    if unsafe { libc::waitid(libc::P_PID, child.id(), found.as_mut_ptr(), flags) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: zeroed above, which is valid, and filled by the call if the child has ended; then si_pid is its number.
    Ok(unsafe { found.assume_init().si_pid() } != 0)
}

/// The name of one of heaptrace's own signals.
pub const fn signal_name(signal: i32) -> &'static str {
    match signal {
        INTERRUPT => "Ctrl-C (SIGINT)",
        QUIT => "SIGQUIT",
        libc::SIGHUP => "SIGHUP",
        CPU_TIME => "the limit of CPU time (SIGXCPU)",
        _ => "SIGTERM",
    }
}

/// Takes one of the blocked signals in `set`.
fn wait_for(set: &libc::sigset_t, timeout: Duration) -> Option<i32> {
    let timeout = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: set and timeout are valid, no siginfo is asked for.
    let signal = unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &raw const timeout) };
    (signal > 0).then_some(signal)
}

/// Sends `signal` to process `pid`.
pub fn send(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: kill has no memory effects.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(TracerError::last("signal", pid)) }
}

/// Sends `signal` to thread `tid` of process `pid`.
pub fn send_to_thread(pid: i32, tid: i32, signal: i32) -> Result<()> {
    // SAFETY: tgkill has no memory effects.
    if unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) } == 0 {
        Ok(())
    } else {
        Err(TracerError::last("signal", tid))
    }
}

#[cfg(test)]
mod tests;
