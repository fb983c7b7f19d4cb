//! Carries out one simple instruction on a stopped thread's registers, in place of the processor.
//!
//! A thread that hit a breakpoint has to get past the instruction that the int3 replaced. For the cheap forms that
//! stand at most function entries the tracer does the instruction's work itself: no single step, no memory written,
//! and atomic with regard to signals. Nothing that writes memory is emulated: a write through the tracer would
//! succeed on a guard page where the program's own write must fault.
//!
//! The arithmetic follows the *AMD64 Architecture Programmer's Manual*, volume 3, the flags too. After logic
//! operations AF is architecturally undefined; AMD and Intel processors both clear it, and so does this.
//! `tests/suite/emulator.rs` compares every form with the processor.

pub(super) mod decode;

use super::{Regs, reg};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;

/// Carry flag.
pub const CF: u64 = 1;
/// Parity flag: even number of ones in the result's low byte.
pub const PF: u64 = 1 << 2;
/// Auxiliary carry flag: carry out of bit 3.
pub const AF: u64 = 1 << 4;
/// Zero flag.
pub const ZF: u64 = 1 << 6;
/// Sign flag.
pub const SF: u64 = 1 << 7;
/// Overflow flag.
pub const OF: u64 = 1 << 11;
/// The six flags that arithmetic sets.
pub const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;

/// Alignment check: unaligned accesses fault, which only the processor can tell.
const AC: u64 = 1 << 18;
/// The first address that no user-space code can have with four-level page tables. A jump beyond it may fault.
const USER_END: u64 = 1 << 47;

/// An instruction in a form that [`Emulated::run`] carries out. Small and `Copy`: it is kept with each breakpoint.
/// Holds for one address only as far as `rip` says so: all branch targets are relative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emulated {
    /// Length of the instruction in bytes.
    len: u8,
    op: Op,
}

const _: () = assert!(size_of::<Emulated>() <= 32);

/// What became of an attempt to emulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Outcome {
    /// The registers are as they are after the instruction.
    Done,
    /// Nothing was changed: the instruction may fault, and only its execution in a pad shows how.
    NeedsPad,
}

/// Operand size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Width {
    W8,
    W16,
    W32,
    W64,
}

impl Width {
    const fn bytes(self) -> usize {
        match self {
            Self::W8 => 1,
            Self::W16 => 2,
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }

    /// The bits that an operand of this size has.
    const fn mask(self) -> u64 {
        match self {
            Self::W8 => 0xff,
            Self::W16 => 0xffff,
            Self::W32 => 0xffff_ffff,
            Self::W64 => u64::MAX,
        }
    }

    /// The topmost of these bits.
    const fn sign(self) -> u64 {
        self.mask() ^ (self.mask() >> 1)
    }
}

/// A general-purpose register: its DWARF number, and for 8-bit operands whether it is the second byte (ah …).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    index: u8,
    high: bool,
}

/// What a memory operand's address starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    None,
    Register(u8),
    /// The address of the next instruction.
    Next,
}

/// The address of a memory operand in a flat segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Location {
    base: Base,
    /// Index register (DWARF number) and the power of two that it is multiplied by.
    index: Option<(u8, u8)>,
    disp: i32,
}

/// Where an operand's value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    Register(Part),
    /// Sign-extended to the operand size.
    Immediate(i32),
    Memory(Location),
}

/// Two-operand arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alu {
    Add,
    Sub,
    /// Subtracts for the flags only.
    Cmp,
    And,
    /// Ands for the flags only.
    Test,
    Or,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Nop,
    Jump {
        offset: i32,
    },
    /// `condition` is the low half of the opcode byte, as Jcc, SETcc and CMOVcc share it.
    JumpIf {
        condition: u8,
        offset: i32,
    },
    Return {
        /// Bytes of arguments that are dropped with the return address.
        drop: u16,
    },
    Mov {
        width: Width,
        to: Part,
        from: Operand,
    },
    /// `mov r64, imm64`: the bytes of the value, little-endian, so that the enum needs no 8-byte alignment.
    MovWide {
        to: Part,
        value: [u8; 8],
    },
    /// movzx, movsx, movsxd, cbw, cwde, cdqe.
    Extend {
        signed: bool,
        width: Width,
        to: Part,
        from_width: Width,
        from: Operand,
    },
    Lea {
        width: Width,
        to: Part,
        of: Location,
    },
    Alu {
        alu: Alu,
        width: Width,
        /// Where the result goes; never memory if `alu` has one.
        left: Operand,
        right: Operand,
    },
}

impl Emulated {
    /// Carries the instruction out. `regs.rip` must be its address (not the one behind the int3). Sets the
    /// general-purpose registers, `rip` and the six arithmetic flags exactly as the processor would.
    ///
    /// `mem` must fail where the thread itself could not read: process_vm_readv does, while /proc/PID/mem reads
    /// pages of PROT_NONE, so that a fault would be hidden.
    pub fn run(&self, regs: &mut Regs, mem: &mut dyn ReadMemory) -> Outcome {
        match self.try_run(regs, mem) {
            Some(()) => Outcome::Done,
            None => Outcome::NeedsPad,
        }
    }

    /// Changes `regs` only if it returns `Some`.
    fn try_run(&self, regs: &mut Regs, mem: &mut dyn ReadMemory) -> Option<()> {
        let next = regs.rip.wrapping_add(u64::from(self.len));
        let mut rip = next;
        match self.op {
            Op::Nop => {}
            Op::Jump { offset } => rip = displaced(next, offset),
            Op::JumpIf { condition, offset } => {
                if condition_holds(condition, regs.rflags) {
                    rip = displaced(next, offset);
                }
            }
            Op::Return { drop } => {
                rip = load(regs, mem, regs.sp(), Width::W64).filter(|&target| target < USER_END)?;
                regs.gpr[reg::RSP] = regs.sp().wrapping_add(8 + u64::from(drop));
            }
            Op::Mov { width, to, from } => {
                let value = from.value(regs, mem, next, width)?;
                to.write(regs, width, value);
            }
            Op::MovWide { to, value } => to.write(regs, Width::W64, u64::from_le_bytes(value)),
            Op::Extend { signed, width, to, from_width, from } => {
                let value = from.value(regs, mem, next, from_width)?;
                let value = if signed { sign_extended(value, from_width) } else { value };
                to.write(regs, width, value & width.mask());
            }
            Op::Lea { width, to, of } => to.write(regs, width, of.address(regs, next) & width.mask()),
            Op::Alu { alu, width, left, right } => {
                let (a, b) = (left.value(regs, mem, next, width)?, right.value(regs, mem, next, width)?);
                let (result, flags) = alu.apply(a, b, width);
                if let Operand::Register(to) = left
                    && !matches!(alu, Alu::Cmp | Alu::Test)
                {
                    to.write(regs, width, result);
                }
                regs.rflags = regs.rflags & !ARITHMETIC | flags;
            }
        }
        regs.rip = rip;
        Some(())
    }
}

impl Part {
    fn read(self, regs: &Regs, width: Width) -> u64 {
        let value = regs.gpr.get(usize::from(self.index)).copied().unwrap_or_default();
        (if self.high { value >> 8 } else { value }) & width.mask()
    }

    /// 8- and 16-bit writes leave the rest of the register, 32-bit writes clear the upper half.
    fn write(self, regs: &mut Regs, width: Width, value: u64) {
        let Some(register) = regs.gpr.get_mut(usize::from(self.index)) else { return };
        *register = match width {
            Width::W64 | Width::W32 => value,
            Width::W8 if self.high => *register & !0xff00 | value << 8,
            Width::W8 | Width::W16 => *register & !width.mask() | value,
        };
    }
}

impl Location {
    fn address(self, regs: &Regs, next: u64) -> u64 {
        let register = |index: u8| regs.gpr.get(usize::from(index)).copied().unwrap_or_default();
        let base = match self.base {
            Base::None => 0,
            Base::Register(index) => register(index),
            Base::Next => next,
        };
        let scaled = self.index.map_or(0, |(index, shift)| register(index) << shift);
        displaced(base.wrapping_add(scaled), self.disp)
    }
}

impl Operand {
    /// The operand's value, zero-extended from `width`. None if it is in memory that can't be read.
    fn value(self, regs: &Regs, mem: &mut dyn ReadMemory, next: u64, width: Width) -> Option<u64> {
        match self {
            Self::Register(part) => Some(part.read(regs, width)),
            Self::Immediate(value) => Some(i64::from(value).cast_unsigned() & width.mask()),
            Self::Memory(location) => load(regs, mem, location.address(regs, next), width),
        }
    }
}

/// What the thread would load from `address`; None if that may fault.
fn load(regs: &Regs, mem: &mut dyn ReadMemory, address: u64, width: Width) -> Option<u64> {
    if regs.rflags & AC != 0 {
        return None;
    }
    let mut word = [0; 8];
    let bytes = word.get_mut(..width.bytes())?;
    (mem.read(Addr(address), bytes) == width.bytes()).then(|| u64::from_le_bytes(word))
}

impl Alu {
    /// The result, zero-extended from `width`, and the six arithmetic flags.
    fn apply(self, a: u64, b: u64, width: Width) -> (u64, u64) {
        let (result, carry, overflow, adjust) = match self {
            Self::Add => {
                let sum = a.wrapping_add(b) & width.mask();
                (sum, sum < a, (a ^ sum) & (b ^ sum) & width.sign() != 0, a ^ b ^ sum)
            }
            Self::Sub | Self::Cmp => {
                let difference = a.wrapping_sub(b) & width.mask();
                (difference, a < b, (a ^ b) & (a ^ difference) & width.sign() != 0, a ^ b ^ difference)
            }
            Self::And | Self::Test => (a & b, false, false, 0),
            Self::Or => (a | b, false, false, 0),
            Self::Xor => (a ^ b, false, false, 0),
        };
        let set = |flag: u64, on: bool| if on { flag } else { 0 };
        let flags = set(CF, carry)
            | set(PF, (result & 0xff).count_ones().is_multiple_of(2))
            | adjust & AF
            | set(ZF, result == 0)
            | set(SF, result & width.sign() != 0)
            | set(OF, overflow);
        (result, flags)
    }
}

/// Whether a condition holds: `condition` is the low half of the opcode, whose lowest bit negates.
const fn condition_holds(condition: u8, rflags: u64) -> bool {
    let less = (rflags & SF != 0) != (rflags & OF != 0);
    let holds = match condition >> 1 & 7 {
        0 => rflags & OF != 0,
        1 => rflags & CF != 0,
        2 => rflags & ZF != 0,
        3 => rflags & (CF | ZF) != 0,
        4 => rflags & SF != 0,
        5 => rflags & PF != 0,
        6 => less,
        _ => less || rflags & ZF != 0,
    };
    holds != (condition & 1 != 0)
}

const fn displaced(address: u64, offset: i32) -> u64 {
    address.wrapping_add_signed(offset as i64)
}

const fn sign_extended(value: u64, from: Width) -> u64 {
    let sign = from.sign();
    (value ^ sign).wrapping_sub(sign)
}
