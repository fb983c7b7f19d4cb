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
    thread.set_signal_mask(u64::MAX)?;
    let mut changed = *regs;
    let r = &mut changed.0;
    r.rip = code.0;
    r.rax = number.cast_unsigned();
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
    thread.set_registers(&changed)?;
    let tid = thread.tid();
    let mut stop_again = 0;
    let mut in_group_stop = false;
    let mut entered = false;
    loop {
        thread.run_to_system_call()?;
        let Waited::Task(_, status, token) = super::ptrace::wait_task(tid)? else {
            return Err(TracerError::Died { tid });
        };
        if token.is_none() {
            return Ok(RemoteCall::Ended(status));
        }
        match status {
            // Without PTRACE_O_TRACESYSGOOD the stops at a system call's entry and exit look like this.
            WaitStatus::Signal(libc::SIGTRAP) if !entered => entered = true,
            WaitStatus::Signal(libc::SIGTRAP) => break,
            // SIGSTOP can't be blocked; it is delivered afterwards.
            WaitStatus::Signal(signal) => stop_again = signal,
            WaitStatus::GroupStop(_) => in_group_stop = true,
            WaitStatus::EventStop => {}
            _ => return Ok(RemoteCall::Ended(status)),
        }
    }
    let result = thread.registers()?.regs().result().cast_signed();
    thread.set_registers(regs)?;
    thread.set_signal_mask(mask)?;
    if stop_again != 0 {
        // SAFETY: the stop signal that was swallowed above goes back to the thread.
        unsafe { libc::syscall(libc::SYS_tkill, tid, stop_again) };
    }
    if in_group_stop {
        // The kernel then reports the group stop once more, and the thread can be left in it.
        super::ptrace::interrupt(tid)?;
    }
    Ok(RemoteCall::Done(result))
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
