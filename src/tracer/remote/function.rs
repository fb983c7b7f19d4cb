//! A function of the target, called by one of its own threads on our behalf, as a signal would call its handler.
//!
//! The thread's registers lie on its stack in the form of a signal frame (arch/x86/include/asm/sigframe.h), and the
//! function returns to the C library's own way out of signal handlers, rt_sigreturn(2). As long as heaptrace is there
//! the thread stops at that system call, makes none, and gets its registers back from us. If heaptrace is killed, the
//! thread goes on by itself, as after a signal that it had a handler for.

use crate::base::addr::Addr;
use crate::image::maps::Mapping;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{self, SYSTEM_CALL_STOP, Stopped, Waited};
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::{Event, WaitStatus};
use crate::tracer::{Result, TracerError, injection, insist};
use std::time::{Duration, Instant};

/// `mov $SYS_rt_sigreturn, %rax; syscall`: what signal handlers return to in glibc.
pub const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

/// So much of the stack must be there below the stack pointer, in bytes.
pub const ROOM: u64 = 16 << 10;

/// How long a function may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes between that and the signal frame that a call may use: see [`scratch`].
const SCRATCH: u64 = 128;

/// Bytes below the stack pointer that belong to the thread (System V x86-64 ABI, "red zone").
const RED_ZONE: u64 = 128;

/// `struct rt_sigframe`: the return address, `struct ucontext`, `siginfo_t`.
const FRAME: usize = 8 + UCONTEXT + 128;
const UCONTEXT: usize = 304;

/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const UC_FLAGS: u64 = 7;

/// No flags of an alternate stack: rt_sigreturn(2) then leaves the thread's own as it is.
const NO_ALTERNATE_STACK: u64 = 0x7fff_ffff;

/// Where the kernel says in an XSAVE area on the stack what is in it (`struct _fpx_sw_bytes`), and by which words it
/// knows it.
const SOFTWARE_BYTES: usize = 464;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;

/// The flag of string instructions that run downwards, which functions find clear.
const DIRECTION: u64 = 1 << 10;

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its address.
    pub at: Addr,
    /// The register rax: the number of a system call.
    pub rax: u64,
    /// The registers rdi, rsi, rdx, r10, r8, r9, as system calls take them. (Functions take rcx for the fourth.)
    pub arguments: [u64; 6],
    /// Which filters it may meet.
    pub filters: Filters,
}

/// Which filters of system calls (seccomp) a call may meet, so that it is not made where there are some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filters {
    /// Those of all threads: what it calls is not known, or concerns the process.
    Process,
    /// Those of the thread: it is one system call, which is taken back where a filter has come since.
    Thread,
}

/// Thirty-two bytes of a thread's stack that are free for a call's use, aligned to sixteen.
pub const fn scratch(resume: &RawRegs) -> Addr {
    Addr((resume.0.rsp.wrapping_sub(RED_ZONE + SCRATCH / 2)) & !15)
}

/// Whether there is [`ROOM`] below a thread's stack pointer.
pub fn has_room(resume: &RawRegs, mappings: &[Mapping]) -> bool {
    let sp = Addr(resume.0.rsp);
    mappings.iter().any(|mapping| mapping.contains(sp) && mapping.perms.write && sp.0 - mapping.start.0 >= ROOM)
}

/// Lets a stopped thread call a function, without signals meanwhile. Then it stands with the registers `resume`.
///
/// `restorer`: where [`RESTORER`] stands in the target. `child`: becomes what the call has made, a process or thread,
/// which is traced, if it has made one.
///
/// # Errors
/// [`TracerError::Filtered`] if there is a filter of system calls that it may meet ([`Filters`]): functions make some,
/// too. Any failure of a ptrace request; [`TracerError::Overtaken`] if it ends or faults instead;
/// [`TracerError::Unresponsive`] if the function takes too long, or requests failed however often they were made: the
/// thread is still within the function, and goes on by itself when that has returned. Nothing else may be asked of it
/// until it was let go.
pub fn call(
    thread: &Stopped,
    resume: &RawRegs,
    function: &Function,
    restorer: Addr,
    memory: &mut TargetMemory,
    child: &mut Option<i32>,
) -> Result<()> {
    let tid = thread.tid();
    match function.filters {
        Filters::Process => super::require_unfiltered(tid)?,
        Filters::Thread if super::is_filtered(tid) => return Err(TracerError::Filtered { tid }),
        Filters::Thread => {}
    }
    let mask = thread.signal_mask()?;
    let state = thread.extended_state()?;
    let (at, bytes) = signal_frame(resume, mask, &state, restorer);
    let mut before = vec![0; bytes.len()];
    let kept = memory.read_uncached(at, &mut before) == before.len();
    memory.write_data(at, &bytes)?;
    let mut changed = *resume;
    changed.0.rip = function.at.0;
    changed.0.rsp = at.0;
    let r = &mut changed.0;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = function.arguments;
    changed.0.rax = function.rax;
    changed.0.orig_rax = u64::MAX;
    changed.0.eflags &= !DIRECTION;
    let back = Back { resume, mask, state: &state, filters: function.filters };
    insist(|| thread.set_registers(&changed))?;
    // after the registers: with them the thread has a way back to its mask
    let ran = insist(|| thread.set_signal_mask(u64::MAX)).and_then(|()| run(thread, at.add(8), &back, child));
    match &ran {
        // it goes on by itself when the function has returned
        Err(TracerError::Unresponsive { .. }) => return ran,
        Err(_) => back.give(thread).map_err(|error| within(tid, error))?,
        Ok(()) => {}
    }
    if kept {
        memory.write_data(at, &before)?;
    }
    ran
}

/// What comes of a request that failed while thread `tid` is within the function.
fn within(tid: i32, error: TracerError) -> TracerError {
    if error.is_out_of_reach() { error } else { TracerError::Unresponsive { tid } }
}

/// With what a thread goes on afterwards.
struct Back<'a> {
    resume: &'a RawRegs,
    mask: u64,
    state: &'a [u8],
    filters: Filters,
}

impl Back<'_> {
    /// The registers last: with them the thread loses its own way back to all of it.
    fn give(&self, thread: &Stopped) -> Result<()> {
        insist(|| thread.set_signal_mask(self.mask))?;
        insist(|| thread.set_extended_state(self.state))?;
        let mut resume = *self.resume;
        // A thread that was stopped when it had just made a system call, or had just been made by one, still has its
        // number. It stands before a call now, which the kernel would take for that one: it would be made twice.
        resume.0.orig_rax = u64::MAX;
        insist(|| thread.set_registers(&resume))
    }
}

/// Lets the thread run until it would go back by rt_sigreturn with this stack pointer, and gives it back what it had
/// instead.
fn run(thread: &Stopped, back_at: Addr, back: &Back<'_>, child: &mut Option<i32>) -> Result<()> {
    let tid = thread.tid();
    let began = Instant::now();
    let mut entered = false;
    let mut is_back = false;
    insist(|| thread.run_to_system_call())?;
    // From here on it is within the function, and may hold a lock of it: whatever fails, it goes on by itself.
    let goes_on = |error| within(tid, error);
    loop {
        if began.elapsed() > TIMEOUT {
            return Err(TracerError::Unresponsive { tid });
        }
        let status = match insist(|| ptrace::wait_task(tid, ptrace::TIMEOUT)).map_err(goes_on)? {
            Waited::Task(_, status, Some(_)) => status,
            Waited::Task(_, status, None) => return Err(TracerError::Overtaken { tid, status }),
            Waited::Nothing => continue,
            Waited::Interrupted | Waited::NoTasks => return Err(TracerError::Died { tid }),
        };
        match status {
            WaitStatus::Signal(SYSTEM_CALL_STOP) if is_back => return Ok(()),
            WaitStatus::Signal(SYSTEM_CALL_STOP) => {
                entered = !entered;
                let regs = insist(|| thread.registers()).map_err(goes_on)?;
                if entered && regs.0.orig_rax == libc::SYS_rt_sigreturn.cast_unsigned() && regs.0.rsp == back_at.0 {
                    // without a number it makes no call
                    back.give(thread).map_err(goes_on)?;
                    is_back = true;
                } else if entered && back.filters == Filters::Thread && super::is_filtered(tid) {
                    insist(|| super::make_harmless(thread)).map_err(goes_on)?;
                }
            }
            WaitStatus::EventStop | WaitStatus::GroupStop(_) => {}
            WaitStatus::Event(Event::Clone | Event::Fork | Event::Vfork) => {
                // The kernel will write the call's answer over whatever registers are given here: where no repetition
                // helps, the thread goes on by itself.
                let message = insist(|| thread.event_message()).map_err(goes_on)?;
                *child = i32::try_from(message).ok();
                child.iter().for_each(|child| injection::at_child(tid, *child));
            }
            status => return Err(TracerError::Overtaken { tid, status }),
        }
        insist(|| thread.run_to_system_call()).map_err(goes_on)?;
    }
}

/// What the kernel would put on the stack of a thread that a signal interrupts with these registers, and where.
fn signal_frame(resume: &RawRegs, mask: u64, state: &[u8], restorer: Addr) -> (Addr, Vec<u8>) {
    let r = &resume.0;
    let size = state.len() as u64;
    let state_at = r.rsp.wrapping_sub(RED_ZONE + SCRATCH + size + 4) & !63;
    let at = (state_at.wrapping_sub(FRAME as u64) & !15).wrapping_sub(8);
    let words = [
        restorer.0,
        UC_FLAGS,
        0,
        // uc_stack
        0,
        NO_ALTERNATE_STACK,
        0,
        // uc_mcontext
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        (r.cs & 0xffff) | (r.ss & 0xffff) << 48,
        // err, trapno, oldmask, cr2
        0,
        0,
        mask,
        0,
        state_at,
    ];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    // reserved words, then the mask as the last one of the ucontext
    bytes.resize(UCONTEXT, 0);
    bytes.extend(mask.to_le_bytes());
    bytes.resize(usize::try_from(state_at.wrapping_sub(at)).unwrap_or(FRAME), 0);
    let start = bytes.len();
    bytes.extend(state);
    let features = state.get(SOFTWARE_BYTES..).and_then(<[u8]>::first_chunk::<8>).copied().unwrap_or_default();
    let size = u32::try_from(size).unwrap_or(0);
    let told = [&MAGIC_1.to_le_bytes()[..], &(size + 4).to_le_bytes(), &features, &size.to_le_bytes()].concat();
    for (place, byte) in bytes.iter_mut().skip(start + SOFTWARE_BYTES).zip(told) {
        *place = byte;
    }
    bytes.extend(MAGIC_2.to_le_bytes());
    (Addr(at), bytes)
}
