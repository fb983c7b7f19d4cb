//! How a thread gets past the instruction that a breakpoint replaced: decided once, when the breakpoint is planned.
//!
//! Two ways, both without lifting the breakpoint, so that no other thread can slip through, and without another stop:
//!
//! * the tracer *emulates* the instruction ([`super::emulate`]);
//! * the thread executes a relocated copy, the *pad* ([`pad`]), which jumps back behind the original.
//!
//! An instruction for which neither is possible gets no breakpoint.

pub mod pad;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Register};
use thiserror::Error;

use super::emulate::Emulated;
use super::emulate::decode::emulated;
use super::{INT3, Regs, reg};
use crate::base::addr::Addr;

pub use pad::{Pad, build_pad};

/// The longest instruction, in bytes; as much code as [`plan`] and [`build_pad`] want to see.
pub const MAX_INSTRUCTION_LEN: usize = 15;

/// The way past one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepOver {
    /// Let the tracer carry it out; [`build_pad`] always works too, for what the emulator leaves to it.
    Emulate(Emulated),
    /// Let the thread execute a copy: see [`build_pad`].
    Pad,
}

/// What [`plan`] found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The way past it.
    pub step: StepOver,
    /// The instruction's length in bytes, 1 to 15. Behind a one-byte instruction, a stray SIGTRAP can be told from
    /// a breakpoint hit by its `si_code` only.
    pub len: u8,
}

/// Why there is no way past an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StepError {
    /// The bytes are no instruction, or too few.
    #[error("no instruction that can be decoded at {at}")]
    Undecodable {
        /// Where.
        at: Addr,
    },
    /// The program has an int3 of its own there (padding behind a call that never returns, mostly): a breakpoint
    /// could not be told from it.
    #[error("the program has a breakpoint instruction of its own at {at}")]
    OwnBreakpoint {
        /// Where.
        at: Addr,
    },
    /// The instruction works at its own place only.
    #[error("the instruction at {at} can't be moved")]
    NotRelocatable {
        /// Where.
        at: Addr,
    },
    /// A relative operand, or the jump back, does not reach from the pad: find one that is nearer.
    #[error("the pad at {pad} is out of reach of what the instruction at {at} refers to")]
    OutOfReach {
        /// Where the instruction is.
        at: Addr,
        /// Where the pad was to be.
        pad: Addr,
    },
}

/// The registers to set so that a thread goes on in the original code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The instruction pointer in the original code.
    pub pc: Addr,
    /// Bytes to add to the stack pointer: takes back a push that the original instruction has not done yet.
    pub drop: u8,
}

impl Resume {
    /// At `pc`, with nothing to take back.
    pub const fn at(pc: Addr) -> Self {
        Self { pc, drop: 0 }
    }

    /// Moves a thread to the original code.
    pub fn apply(self, regs: &mut Regs) {
        regs.rip = self.pc.0;
        regs.gpr[reg::RSP] = regs.sp().wrapping_add(u64::from(self.drop));
    }
}

/// Whether a call ends `code`: what stands behind it is where that returns to.
pub fn ends_in_call(code: &[u8]) -> bool {
    (2..=code.len()).any(|len| {
        let Some(last) = code.len().checked_sub(len).and_then(|start| code.get(start..)) else { return false };
        let instruction = Decoder::new(64, last, DecoderOptions::NONE).decode();
        let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        is_call && instruction.len() == len
    })
}

/// Makes the tables by which instructions are decoded, which the first one needs and all later ones share: on whichever
/// thread, before that is the one to wait for them.
pub fn make_tables() {
    let _decoder = Decoder::new(64, &[], DecoderOptions::NONE);
}

/// Decides how to get past the instruction at `at`. `code` holds the original bytes from there on: up to
/// [`MAX_INSTRUCTION_LEN`], fewer where the mapping ends.
///
/// # Errors
/// [`StepError::Undecodable`], [`StepError::OwnBreakpoint`], [`StepError::NotRelocatable`]: no breakpoint may be put
/// there.
pub fn plan(code: &[u8], at: Addr) -> Result<Planned, StepError> {
    let decoded = Decoded::new(code, at)?;
    if decoded.relocation() == Relocation::Impossible {
        return Err(StepError::NotRelocatable { at });
    }
    let step = emulated(&decoded.instruction).map_or(StepOver::Pad, StepOver::Emulate);
    Ok(Planned { step, len: decoded.len() })
}

/// One instruction and its bytes.
struct Decoded<'a> {
    instruction: Instruction,
    bytes: &'a [u8],
    /// Where in `bytes` the displacement is, if it has one of four bytes.
    displacement: Option<usize>,
}

/// What it takes to execute an instruction elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relocation {
    /// Nothing: its bytes mean the same everywhere.
    Copy,
    /// The displacement, relative to the instruction pointer, has to be adapted.
    Displacement,
    /// jmp rel.
    Jump(Addr),
    /// Jcc rel: the opcode's condition.
    JumpIf(u8, Addr),
    /// loop, loope, loopne, jrcxz, jecxz: know short distances only.
    ShortBranch(Addr),
    /// call rel: must push the original's return address.
    Call(Addr),
    /// call through a register or memory: likewise.
    IndirectCall,
    /// Can't be.
    Impossible,
}

impl<'a> Decoded<'a> {
    fn new(code: &'a [u8], at: Addr) -> Result<Self, StepError> {
        let undecodable = StepError::Undecodable { at };
        if code.first() == Some(&INT3) {
            return Err(StepError::OwnBreakpoint { at });
        }
        let code = code.get(..MAX_INSTRUCTION_LEN).unwrap_or(code);
        let mut decoder = Decoder::try_with_ip(64, code, at.0, DecoderOptions::NONE).map_err(|_| undecodable)?;
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(undecodable);
        }
        let constants = decoder.get_constant_offsets(&instruction);
        Ok(Self {
            bytes: code.get(..instruction.len()).ok_or(undecodable)?,
            instruction,
            displacement: (constants.displacement_size() == 4).then(|| constants.displacement_offset()),
        })
    }

    /// Length in bytes.
    fn len(&self) -> u8 {
        self.bytes.len() as u8
    }

    fn relocation(&self) -> Relocation {
        let i = &self.instruction;
        let target = Addr(i.near_branch_target());
        match i.flow_control() {
            // with this prefix AMD processors take a 16-bit distance and Intel's don't
            FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::IndirectCall
            | FlowControl::Return
                if self.has_operand_size_prefix() =>
            {
                Relocation::Impossible
            }
            FlowControl::Call if i.is_call_near() && self.has_operand_size_prefix() => Relocation::Impossible,
            FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() => Relocation::Jump(target),
            FlowControl::ConditionalBranch if i.is_jcc_short_or_near() => {
                match (i.condition_code() as u8).checked_sub(1) {
                    Some(condition) => Relocation::JumpIf(condition, target),
                    None => Relocation::Impossible,
                }
            }
            FlowControl::ConditionalBranch if i.is_loop() || i.is_loopcc() || i.is_jcx_short() => {
                Relocation::ShortBranch(target)
            }
            FlowControl::ConditionalBranch => Relocation::Impossible,
            FlowControl::Call if i.is_call_near() => Relocation::Call(target),
            FlowControl::IndirectCall if self.is_plain_indirect_call() => Relocation::IndirectCall,
            FlowControl::Call if matches!(i.code(), Code::Syscall | Code::Sysenter) => Relocation::Copy,
            // far calls; xbegin, whose fallback address is relative
            FlowControl::Call | FlowControl::IndirectCall => Relocation::Impossible,
            FlowControl::XbeginXabortXend if matches!(i.code(), Code::Xbegin_rel16 | Code::Xbegin_rel32) => {
                Relocation::Impossible
            }
            _ if i.memory_base() == Register::RIP && self.displacement.is_some() => Relocation::Displacement,
            _ if i.is_ip_rel_memory_operand() => Relocation::Impossible,
            _ => Relocation::Copy,
        }
    }

    /// Whether the call can be a push and a jump: its target must be found after the push as it was before.
    fn is_plain_indirect_call(&self) -> bool {
        let i = &self.instruction;
        i.is_call_near_indirect()
            && !matches!(i.op0_register(), Register::RSP)
            && match i.memory_base() {
                Register::EIP | Register::ESP => false,
                Register::RSP => self.displacement_after_push().is_some(),
                _ => true,
            }
    }

    /// The displacement from the stack pointer when that is eight bytes lower. None if the push could overwrite what
    /// the displacement leads to.
    fn displacement_after_push(&self) -> Option<i32> {
        let before = i32::try_from(self.instruction.memory_displacement64().cast_signed()).ok()?;
        if before < 0 { None } else { before.checked_add(8) }
    }

    fn has_operand_size_prefix(&self) -> bool {
        self.prefixes().contains(&0x66)
    }

    /// The legacy prefixes and REX, up to the opcode.
    fn prefixes(&self) -> &[u8] {
        let is_prefix =
            |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f);
        let count = self.bytes.iter().take_while(|b| is_prefix(b)).count();
        self.bytes.get(..count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
