//! System calls made by a stopped thread of the target on our behalf.
//!
//! Used only where nothing else will do: executable memory near a module when its slack is full, and SIGTRAP's
//! disposition. At whatever moment heaptrace is killed, the thread goes on as if it had made no call or a whole one:
//! see [`code`].

pub mod code;
pub mod function;

use super::memory::TargetMemory;
use super::procfs::{self, Position};
use super::ptrace::{self, RESUME_FLAG, SYSTEM_CALL_STOP, Stopped, Waited};
use super::rawregs::RawRegs;
use super::status::WaitStatus;
use super::{Result, TracerError, injection};
use crate::base::addr::Addr;

/// A stopped thread that can make a system call for us.
#[derive(Debug)]
pub struct Caller<'a> {
    /// It has stopped; it may have been interrupted in a system call of its own, or hit a breakpoint.
    pub thread: &'a Stopped,
    /// The registers with which it goes on afterwards. An interrupted system call is made once more. If it has hit a
    /// breakpoint of ours: in front of that, see [`RawRegs::before_trap`].
    pub resume: RawRegs,
    /// Where [`code::SIZE`] bytes of executable memory hold the [`code::image`] of an earlier call, or of none.
    pub code: Addr,
    /// The thread's memory.
    pub memory: &'a mut TargetMemory,
}

/// A thread that is busy for us. However that ends, by an error or a panic too, it gets its registers and mask back:
/// dropping this sees to it.
struct CallInProgress<'a> {
    thread: &'a Stopped,
    resume: RawRegs,
    mask: u64,
    /// It is not stopped for a signal any more, which would be delivered without us.
    clear: bool,
    /// It has the registers of the system call.
    sent: bool,
    running: bool,
    entered: bool,
    /// It was about to be filtered, and made another, harmless call instead.
    refused: bool,
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

impl Caller<'_> {
    /// Lets the thread make system call `number`, and returns the kernel's answer (−errno for failures). Then the
    /// thread stands where it stood, with its registers as before. Any signal that it has stopped for is used up.
    ///
    /// All signals are blocked meanwhile, so none is delivered at an address that the program does not know. The thread
    /// is stopped by PTRACE_SYSCALL, not by a trap: that would touch SIGTRAP's action, which the call may be about.
    ///
    /// A thread that filters its system calls (seccomp) makes none: it is as if the kernel had refused it (EPERM).
    /// Only the thread's own filter is asked for: a call meets the filters of the thread that makes it and no
    /// other's (seccomp(2)). One that another thread installs for all (SECCOMP_FILTER_FLAG_TSYNC) is this one's from
    /// that moment on, and no thread shows it before. It is looked for twice: here, and when the thread has entered
    /// the call. Most kernels have decided by then whether they ask filters; where they do so later ("ptrace might
    /// have changed work flags"), some microseconds are left in which one may come.
    ///
    /// # Errors
    /// Any failure of a ptrace request, or to write the code at first; [`TracerError::Overtaken`] if it ends instead,
    /// or stops in another way; [`TracerError::Died`] if the thread is gone without a status;
    /// [`TracerError::Unresponsive`] if it does not come back in time: it makes the call when it can, and goes on with
    /// `resume`.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64> {
        let thread = self.thread;
        if is_filtered(thread.tid()) {
            return Ok(-i64::from(libc::EPERM));
        }
        self.require_code_unused()?;
        let resume = self.resume.repeating_system_call().unwrap_or(self.resume);
        let mask = thread.signal_mask()?;
        let clear = !thread.has_signal_to_deliver()?;
        if let Err(error) = super::code::write::write(self.memory, self.code, &code::image(&resume.regs(), mask)) {
            // The call itself is always the same. Where nothing can be written any more it has to be made without a way
            // back: what is to be taken out stays behind otherwise.
            let mut present = [0; code::CALL.len()];
            if self.memory.read_uncached(self.code, &mut present) != present.len() || present != code::CALL {
                return Err(error);
            }
            tracing::debug!("{error}");
        }
        let mut call = CallInProgress {
            thread,
            resume,
            mask,
            clear,
            sent: false,
            running: false,
            entered: false,
            refused: false,
            left: false,
            stop_again: 0,
            in_group_stop: false,
            faulted: false,
            over: false,
        };
        injection::at_call(thread.tid());
        call.make(self.code, number, arguments).inspect_err(|error| {
            // It is in another stop, or gone; or it goes on by itself, by the way back behind the call.
            call.over = error.is_out_of_reach();
            if matches!(error, TracerError::Unresponsive { .. }) {
                self.memory.late_caller = Some(thread.tid());
            }
        })?;
        let result = thread.registers()?.regs().result().cast_signed();
        let result = if call.refused { -i64::from(libc::EPERM) } else { result };
        call.give_back()?;
        Ok(result)
    }

    /// Makes sure that no thread is still on its way through the code: it would go back to where this one belongs.
    fn require_code_unused(&mut self) -> Result<()> {
        let tid = self.thread.tid();
        let is_inside = |pc: u64| (self.code.0..self.code.0 + code::SIZE as u64).contains(&pc);
        let is_used = is_inside(self.resume.0.rip)
            || self.memory.late_caller.is_some_and(|late| {
                late != tid
                    && match procfs::position(late, late) {
                        Position::Blocked { pc, .. } => is_inside(pc.0),
                        Position::Running => true,
                        Position::Unknown => procfs::state(late, late).is_some(),
                    }
            });
        if is_used {
            let source = std::io::Error::from_raw_os_error(libc::EBUSY);
            return Err(TracerError::Task { operation: "make a system call in", tid, source });
        }
        self.memory.late_caller = None;
        Ok(())
    }

    /// Lets the thread map `size` bytes of private, executable memory at `at`, where nothing is mapped.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn map_code(&mut self, at: Addr, size: u64) -> Result<i64> {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        self.call(libc::SYS_mmap, [at.0, size, protection as u64, flags as u64, u64::MAX, 0])
    }

    /// Lets the thread set its process's action for `signal` to what stands at `new`, and write the action from before
    /// to `old`, 32 writable bytes. Either may be 0.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn exchange_signal_action(&mut self, signal: i32, new: Addr, old: Addr) -> Result<i64> {
        self.call(libc::SYS_rt_sigaction, [signal as u64, new.0, old.0, 8, 0, 0])
    }

    /// Borrows a little of the thread's stack, to pass an action of a signal there.
    pub fn borrow_stack(&self) -> Scratch {
        // Below the red zone.
        let at = Addr(self.resume.0.rsp.wrapping_sub(512));
        let mut saved = [0; size_of::<KernelAction>()];
        // A small alternate stack may have the program's data there.
        let kept = self.memory.read_uncached(at, &mut saved) == saved.len();
        Scratch { at, saved: kept.then_some(saved) }
    }

    /// Writes an action there.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn put_action(&mut self, scratch: &Scratch, action: KernelAction) -> Result<()> {
        let bytes: Vec<u8> = action.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write_data(scratch.at, &bytes)
    }

    /// Gives it back.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn return_stack(&mut self, scratch: &Scratch) -> Result<()> {
        scratch.saved.map_or(Ok(()), |saved| self.memory.write_data(scratch.at, &saved))
    }
}

/// Room for one [`KernelAction`] on a thread's stack.
#[derive(Debug)]
pub struct Scratch {
    /// Where.
    pub at: Addr,
    /// What stood there; None if that can't be read, and so not be written either.
    saved: Option<[u8; size_of::<KernelAction>()]>,
}

/// Whether a thread filters its system calls. A filter may kill the program for one that it would never make itself;
/// most answer with EPERM. A thread that is gone has none: further requests say so.
fn is_filtered(tid: i32) -> bool {
    procfs::status_number(tid, "Seccomp").is_some_and(|mode| mode != 0)
}

/// Makes sure that no thread of the process of `tid` filters its system calls now. One that runs may do so in the next
/// instant, and for all threads: where others run, the caller of this
/// makes its call at once.
fn require_unfiltered(tid: i32) -> Result<()> {
    match procfs::tasks(tid)?.into_iter().find(|tid| is_filtered(*tid)) {
        Some(tid) => Err(TracerError::Filtered { tid }),
        None => Ok(()),
    }
}

/// Of a thread that has entered a system call, and has a filter by now. The kernel asks filters behind this stop. So
/// the thread reads nothing from no file instead, which even the strict mode allows (seccomp(2)). To make no call at
/// all, by the number −1, would be asked of the filter, too.
fn make_harmless(thread: &Stopped) -> Result<()> {
    let mut harmless = thread.registers()?;
    let r = &mut harmless.0;
    r.orig_rax = libc::SYS_read.cast_unsigned();
    [r.rdi, r.rsi, r.rdx] = [u64::MAX, 0, 0];
    thread.set_registers(&harmless)
}

impl CallInProgress<'_> {
    /// Lets the thread make the call.
    fn make(&mut self, code: Addr, number: i64, arguments: [u64; 6]) -> Result<()> {
        if !self.clear {
            // If we are killed now, the SIGTRAP fallback leaves the thread there: see `Stopped::pass_trap`.
            let mut waiting = self.resume;
            waiting.0.eflags |= RESUME_FLAG;
            self.thread.set_registers(&waiting)?;
            self.use_up_signal()?;
        }
        let mut changed = self.resume;
        let r = &mut changed.0;
        r.rip = code.0;
        r.rax = number.cast_unsigned();
        r.orig_rax = u64::MAX;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
        self.thread.set_registers(&changed)?;
        self.sent = true;
        // Not before: without its way back the thread would be left with all signals blocked.
        self.thread.set_signal_mask(u64::MAX)?;
        self.complete()
    }

    /// Has the thread stop once more without having run, and so without its signal.
    fn use_up_signal(&mut self) -> Result<()> {
        while !self.clear {
            if !self.running {
                ptrace::interrupt(self.thread.tid())?;
                self.thread.run_on()?;
                self.running = true;
            }
            match self.wait()? {
                (WaitStatus::EventStop, true) => self.clear = true,
                (WaitStatus::GroupStop(_), true) => (self.clear, self.in_group_stop) = (true, true),
                (status, _) => return Err(self.overtaken(status)),
            }
        }
        Ok(())
    }

    /// Lets the thread run until it has left the system call. May be called again after an error.
    fn complete(&mut self) -> Result<()> {
        let tid = self.thread.tid();
        while !self.left {
            if !self.running {
                self.thread.run_to_system_call()?;
                self.running = true;
            }
            match self.wait()? {
                (status, false) => return Err(self.overtaken(status)),
                // The guardian traces without the option that tells them from a signal.
                (WaitStatus::Signal(SYSTEM_CALL_STOP | libc::SIGTRAP), _) if !self.entered => {
                    self.entered = true;
                    self.avoid_filter()?;
                }
                (WaitStatus::Signal(SYSTEM_CALL_STOP | libc::SIGTRAP), _) => self.left = true,
                // Of the code that stands there, and it would be so again: it is not what was written.
                (WaitStatus::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE), _) => {
                    self.faulted = true;
                    let source = std::io::Error::from_raw_os_error(libc::EFAULT);
                    return Err(TracerError::Task { operation: "make a system call in", tid, source });
                }
                // SIGSTOP can't be blocked; it is delivered afterwards.
                (WaitStatus::Signal(signal), _) => self.stop_again = signal,
                (WaitStatus::GroupStop(_), _) => self.in_group_stop = true,
                (WaitStatus::EventStop, _) => {}
                (status, _) => return Err(self.overtaken(status)),
            }
        }
        Ok(())
    }

    /// The thread has entered the call, and a filter may have come since it was looked for.
    fn avoid_filter(&mut self) -> Result<()> {
        if !is_filtered(self.thread.tid()) {
            return Ok(());
        }
        self.refused = true;
        make_harmless(self.thread)
    }

    fn overtaken(&self, status: WaitStatus) -> TracerError {
        TracerError::Overtaken { tid: self.thread.tid(), status }
    }

    /// The next that is reported of the thread, and whether it is a stop.
    fn wait(&mut self) -> Result<(WaitStatus, bool)> {
        let tid = self.thread.tid();
        let (status, token) = match ptrace::wait_task(tid, ptrace::TIMEOUT)? {
            Waited::Task(_, status, token) => (status, token),
            Waited::Nothing => return Err(TracerError::Unresponsive { tid }),
            Waited::Interrupted | Waited::NoTasks => return Err(TracerError::Died { tid }),
        };
        self.running = false;
        Ok((status, token.is_some()))
    }

    /// The mask first: with its registers the thread loses its own way back to it.
    fn give_back(&mut self) -> Result<()> {
        self.thread.set_signal_mask(self.mask)?;
        let mut resume = self.resume;
        if !self.clear {
            // The trap's signal is still there: the mark tells a detach that the thread is not behind the trap any
            // more.
            resume.0.eflags |= RESUME_FLAG;
        }
        self.thread.set_registers(&resume)?;
        self.over = true;
        let tid = self.thread.tid();
        if self.stop_again != 0 {
            // SAFETY: the stop signal that was swallowed goes back to the thread.
            unsafe { libc::syscall(libc::SYS_tkill, tid, self.stop_again) };
        }
        if self.in_group_stop {
            // The kernel then reports the group stop once more, and the thread can be left in it.
            ptrace::interrupt(tid)?;
        }
        Ok(())
    }

    /// After a failure: has the thread stop where its registers can be given back.
    fn break_off(&mut self) -> Result<()> {
        match (self.sent, self.running) {
            (true, _) if !self.faulted => self.complete(),
            (false, true) => self.use_up_signal(),
            _ => Ok(()),
        }
    }
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        if self.over || self.break_off().is_err() {
            return;
        }
        if let Err(error) = self.give_back() {
            tracing::debug!("{error}");
        }
    }
}

/// The kernel's `struct sigaction` on x86-64: handler, flags, restorer, mask, eight bytes each.
pub type KernelAction = [u64; 4];
