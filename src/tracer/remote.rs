//! System calls made by a stopped thread of the target on our behalf.
//!
//! Used only where nothing else will do: executable memory near a module when its slack is full, and repairing SIGTRAP's
//! disposition. Made only at a breakpoint stop: there the thread is in user code, so no interrupted system call of its
//! own waits to be restarted.

use super::ptrace::{RawRegs, Stopped, Waited};
use super::status::WaitStatus;
use super::{Result, TracerError};
use crate::addr::Addr;

/// The `syscall` instruction: what must stand at the address given to [`call`].
pub const CALL_CODE: [u8; 2] = [0x0f, 0x05];

/// How a remote call ended.
#[derive(Debug)]
pub enum RemoteCall {
    /// The kernel's answer (−errno for failures). The thread stands where it stood, with its registers as before.
    Done(i64),
    /// The thread is ending: this status was reported instead, and must be handled like any other. If it is a stop, the
    /// thread is in that stop now.
    Ended(WaitStatus),
}

/// Lets the stopped thread make system call `number`. `code` is the address of [`CALL_CODE`]; `regs` are the
/// thread's registers, which are put back.
///
/// All signals are blocked meanwhile, so none is delivered at an address that the program does not know. The thread is
/// stopped by PTRACE_SYSCALL, not by a trap: that would touch SIGTRAP's action, which the call may be about.
///
/// # Errors
/// Any failure of a ptrace request; [`TracerError::Died`] if the thread is gone without a status.
pub fn call(thread: &Stopped, regs: &RawRegs, code: Addr, number: i64, arguments: [u64; 6]) -> Result<RemoteCall> {
    let mask = thread.signal_mask()?;
    let mut errand = Errand {
        thread,
        regs,
        mask,
        sent: false,
        running: false,
        entered: false,
        left: false,
        stop_again: 0,
        in_group_stop: false,
        faulted: false,
        over: false,
    };
    thread.set_signal_mask(u64::MAX)?;
    let mut changed = *regs;
    let r = &mut changed.0;
    r.rip = code.0;
    r.rax = number.cast_unsigned();
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
    thread.set_registers(&changed)?;
    errand.sent = true;
    match errand.complete() {
        Ok(None) => {}
        Ok(Some(status)) => {
            errand.over = true;
            return Ok(RemoteCall::Ended(status));
        }
        Err(error) => {
            // Its end is to be reported to whoever waits next.
            errand.over = error.is_death();
            return Err(error);
        }
    }
    let result = thread.registers()?.regs().result().cast_signed();
    errand.give_back()?;
    Ok(RemoteCall::Done(result))
}

/// A thread that is busy for us. However that ends, by an error or a panic too, it gets its registers and mask back: dropping
/// this sees to it.
struct Errand<'a> {
    thread: &'a Stopped,
    regs: &'a RawRegs,
    mask: u64,
    /// It has the registers of the system call.
    sent: bool,
    running: bool,
    entered: bool,
    /// It has left the system call.
    left: bool,
    /// A stop signal that was swallowed meanwhile.
    stop_again: i32,
    in_group_stop: bool,
    /// It did not get as far as the system call.
    faulted: bool,
    /// Nothing is to be given back any more.
    over: bool,
}

impl Errand<'_> {
    /// Lets the thread run until it has left the system call. Some: it is ending instead. May be called again after an error.
    fn complete(&mut self) -> Result<Option<WaitStatus>> {
        let tid = self.thread.tid();
        while !self.left {
            if !self.running {
                self.thread.run_to_system_call()?;
                self.running = true;
            }
            let Waited::Task(_, status, token) = super::ptrace::wait_task(tid)? else {
                return Err(TracerError::Died { tid });
            };
            self.running = false;
            if token.is_none() {
                return Ok(Some(status));
            }
            match status {
                // Without PTRACE_O_TRACESYSGOOD the stops at a system call's entry and exit look like this.
                WaitStatus::Signal(libc::SIGTRAP) if !self.entered => self.entered = true,
                WaitStatus::Signal(libc::SIGTRAP) => self.left = true,
                // Of the code that stands there, and it would be so again: it is not what was written.
                WaitStatus::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE) => {
                    self.faulted = true;
                    let source = std::io::Error::from_raw_os_error(libc::EFAULT);
                    return Err(TracerError::Task { operation: "make a system call in", tid, source });
                }
                // SIGSTOP can't be blocked; it is delivered afterwards.
                WaitStatus::Signal(signal) => self.stop_again = signal,
                WaitStatus::GroupStop(_) => self.in_group_stop = true,
                WaitStatus::EventStop => {}
                _ => return Ok(Some(status)),
            }
        }
        Ok(None)
    }

    fn give_back(&mut self) -> Result<()> {
        self.thread.set_registers(self.regs)?;
        self.thread.set_signal_mask(self.mask)?;
        self.over = true;
        let tid = self.thread.tid();
        if self.stop_again != 0 {
            // SAFETY: the stop signal that was swallowed goes back to the thread.
            unsafe { libc::syscall(libc::SYS_tkill, tid, self.stop_again) };
        }
        if self.in_group_stop {
            // The kernel then reports the group stop once more, and the thread can be left in it.
            super::ptrace::interrupt(tid)?;
        }
        Ok(())
    }
}

impl Drop for Errand<'_> {
    fn drop(&mut self) {
        if self.over || (self.sent && !self.faulted && !matches!(self.complete(), Ok(None))) {
            return;
        }
        if let Err(error) = self.give_back() {
            tracing::debug!("{error}");
        }
    }
}

/// Lets the stopped thread map `size` bytes of private, executable memory at `at`, where nothing is mapped.
///
/// # Errors
/// As for [`call`].
pub fn map_code(thread: &Stopped, regs: &RawRegs, code: Addr, at: Addr, size: u64) -> Result<RemoteCall> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let arguments = [at.0, size, protection as u64, flags as u64, u64::MAX, 0];
    call(thread, regs, code, libc::SYS_mmap, arguments)
}

/// The kernel's `struct sigaction` on x86-64: handler, flags, restorer, mask, eight bytes each.
pub type KernelAction = [u64; 4];

/// Lets the stopped thread ask for its process's action for `signal`. The answer goes to `scratch`, 32 writable bytes.
///
/// # Errors
/// As for [`call`].
pub fn signal_action(thread: &Stopped, regs: &RawRegs, code: Addr, signal: i32, scratch: Addr) -> Result<RemoteCall> {
    call(thread, regs, code, libc::SYS_rt_sigaction, [signal as u64, 0, scratch.0, 8, 0, 0])
}

/// Lets the stopped thread set its process's action for `signal`, which stands at `scratch`.
///
/// # Errors
/// As for [`call`].
pub fn set_signal_action(
    thread: &Stopped,
    regs: &RawRegs,
    code: Addr,
    signal: i32,
    scratch: Addr,
) -> Result<RemoteCall> {
    exchange_signal_action(thread, regs, code, signal, scratch, Addr(0))
}

/// The same, and writes the action from before to `old`, 32 writable bytes, if that is not 0.
///
/// # Errors
/// As for [`call`].
pub fn exchange_signal_action(
    thread: &Stopped,
    regs: &RawRegs,
    code: Addr,
    signal: i32,
    new: Addr,
    old: Addr,
) -> Result<RemoteCall> {
    call(thread, regs, code, libc::SYS_rt_sigaction, [signal as u64, new.0, old.0, 8, 0, 0])
}
