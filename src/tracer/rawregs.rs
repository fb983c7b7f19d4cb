//! A thread's registers in the kernel's layout, and how a system call that was interrupted is made once more.

use crate::arch::{Regs, reg};

/// The length of the `syscall` instruction, in bytes.
pub(super) const SYSCALL_LEN: u64 = 2;

/// io_pgetevents(2), which libc does not name.
pub(super) const SYS_IO_PGETEVENTS: libc::c_long = 333;

/// System calls that end early, with EINTR, when their thread is stopped (signal(7), "Interruption of system calls and
/// library functions by stop signals"), and those that may. They have done nothing yet then, and can be made once more.
pub(super) const ENDING_EARLY: [libc::c_long; 28] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
];

/// The integer registers in the kernel's layout, with the segment registers and `orig_rax` that a write must keep.
#[derive(Clone, Copy, Debug)]
pub struct RawRegs(pub libc::user_regs_struct);

impl RawRegs {
    /// The registers that the core works with.
    pub const fn regs(&self) -> Regs {
        let r = &self.0;
        let mut gpr = [0; 16];
        gpr[reg::RAX] = r.rax;
        gpr[reg::RDX] = r.rdx;
        gpr[reg::RCX] = r.rcx;
        gpr[reg::RBX] = r.rbx;
        gpr[reg::RSI] = r.rsi;
        gpr[reg::RDI] = r.rdi;
        gpr[reg::RBP] = r.rbp;
        gpr[reg::RSP] = r.rsp;
        gpr[reg::R8] = r.r8;
        gpr[reg::R9] = r.r9;
        gpr[reg::R10] = r.r10;
        gpr[reg::R11] = r.r11;
        gpr[reg::R12] = r.r12;
        gpr[reg::R13] = r.r13;
        gpr[reg::R14] = r.r14;
        gpr[reg::R15] = r.r15;
        Regs { gpr, rip: r.rip, rflags: r.eflags, fs_base: r.fs_base, gs_base: r.gs_base }
    }

    /// Whether the thread has entered a system call, and not come back from it.
    pub const fn is_in_system_call(&self) -> bool {
        self.0.orig_rax.cast_signed() >= 0
    }

    /// Of a thread that has hit a breakpoint: as it was in front of that.
    pub const fn before_trap(&self) -> Self {
        let mut before = *self;
        before.0.rip = self.0.rip.wrapping_sub(1);
        before
    }

    /// If the thread was interrupted in a system call that has to be made once more: how it makes it. What the kernel
    /// itself would do, were it not that the thread has made another call since (and makes of an early end, as
    /// epoll_wait has it).
    pub fn repeating_system_call(&self) -> Option<Self> {
        // Not among the numbers that programs get to see: include/linux/errno.h.
        const ERESTARTSYS: i64 = 512;
        const ERESTART_RESTARTBLOCK: i64 = 516;
        if self.0.orig_rax.cast_signed() < 0 {
            return None;
        }
        let mut again = *self;
        again.0.rax = match -self.0.rax.cast_signed() {
            ERESTART_RESTARTBLOCK => libc::SYS_restart_syscall.cast_unsigned(),
            error if (ERESTARTSYS..ERESTART_RESTARTBLOCK).contains(&error) => self.0.orig_rax,
            error if error == i64::from(libc::EINTR) && ENDING_EARLY.contains(&self.0.orig_rax.cast_signed()) => {
                self.0.orig_rax
            }
            _ => return None,
        };
        again.0.rip = self.0.rip.wrapping_sub(SYSCALL_LEN);
        again.0.orig_rax = u64::MAX;
        Some(again)
    }

    /// Takes over general-purpose registers, instruction pointer and flags.
    pub const fn set_regs(&mut self, regs: &Regs) {
        let r = &mut self.0;
        r.rax = regs.gpr[reg::RAX];
        r.rdx = regs.gpr[reg::RDX];
        r.rcx = regs.gpr[reg::RCX];
        r.rbx = regs.gpr[reg::RBX];
        r.rsi = regs.gpr[reg::RSI];
        r.rdi = regs.gpr[reg::RDI];
        r.rbp = regs.gpr[reg::RBP];
        r.rsp = regs.gpr[reg::RSP];
        r.r8 = regs.gpr[reg::R8];
        r.r9 = regs.gpr[reg::R9];
        r.r10 = regs.gpr[reg::R10];
        r.r11 = regs.gpr[reg::R11];
        r.r12 = regs.gpr[reg::R12];
        r.r13 = regs.gpr[reg::R13];
        r.r14 = regs.gpr[reg::R14];
        r.r15 = regs.gpr[reg::R15];
        r.rip = regs.rip;
        r.eflags = regs.rflags;
    }
}
