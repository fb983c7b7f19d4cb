//! What is particular to x86-64: registers, the System V calling convention, and how to get past one replaced
//! instruction without a single step. Pure: no process is touched here.

pub mod constant;
pub mod emulate;
pub mod liveness;
pub mod step;
pub mod xsave;

/// The integer registers of a stopped thread.
///
/// `gpr` is in DWARF order (System V x86-64 ABI, figure 3.36): 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp,
/// 7 rsp, 8–15 r8–r15.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Regs {
    /// General-purpose registers in DWARF order.
    pub gpr: [u64; 16],
    /// The instruction pointer.
    pub rip: u64,
    /// The flags register.
    pub rflags: u64,
    /// Base of the fs segment: the thread pointer.
    pub fs_base: u64,
    /// Base of the gs segment, which is the program's own to set.
    pub gs_base: u64,
}

/// DWARF numbers of the general-purpose registers, the indices of [`Regs::gpr`].
#[allow(missing_docs, reason = "the names are the registers")]
pub mod reg {
    pub const RAX: usize = 0;
    pub const RDX: usize = 1;
    pub const RCX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSI: usize = 4;
    pub const RDI: usize = 5;
    pub const RBP: usize = 6;
    pub const RSP: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
    /// The return address column of the CFI tables.
    pub const RETURN_ADDRESS: usize = 16;
}

impl Regs {
    /// The six integer arguments that a call passes in registers (System V: rdi, rsi, rdx, rcx, r8, r9), valid at a
    /// function's entry.
    pub const fn arguments(&self) -> [u64; 6] {
        [
            self.gpr[reg::RDI],
            self.gpr[reg::RSI],
            self.gpr[reg::RDX],
            self.gpr[reg::RCX],
            self.gpr[reg::R8],
            self.gpr[reg::R9],
        ]
    }

    /// The registers that a function keeps for its caller (System V: rbx, rbp, rsp, r12 to r15); the others are zero.
    /// At a function's entry, what the others hold is of no use to the caller any more.
    #[must_use]
    pub fn kept_by_callees(&self) -> Self {
        let mut kept = Self { gpr: [0; 16], ..*self };
        for register in [reg::RBX, reg::RBP, reg::RSP, reg::R12, reg::R13, reg::R14, reg::R15] {
            kept.gpr[register] = self.gpr[register];
        }
        kept
    }

    /// The stack pointer.
    pub const fn sp(&self) -> u64 {
        self.gpr[reg::RSP]
    }

    /// The integer result of a call, valid right after its return.
    pub const fn result(&self) -> u64 {
        self.gpr[reg::RAX]
    }
}

/// The breakpoint instruction.
pub const INT3: u8 = 0xcc;

/// The size of a page. Fixed on x86-64; huge pages are multiples.
pub const PAGE_SIZE: u64 = 4096;
