//! Which decoded instructions can be emulated, and as what.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::{Alu, Base, Emulated, Location, Op, Operand, Part, Width};
use crate::arch::reg;

/// DWARF numbers of the registers in the order in which instructions encode them.
const DWARF_NUMBER: [usize; 8] = [reg::RAX, reg::RCX, reg::RDX, reg::RBX, reg::RSP, reg::RBP, reg::RSI, reg::RDI];

/// The emulated form of `instruction`, if it has one.
///
/// Branches with an operand-size prefix must have been sorted out before: processors disagree about them.
pub(in crate::arch) fn emulated(instruction: &Instruction) -> Option<Emulated> {
    if instruction.has_lock_prefix() {
        return None;
    }
    let op = match instruction.mnemonic() {
        // not pause: with REX.B, processors execute it as xchg r8, rax
        Mnemonic::Nop | Mnemonic::Endbr64 => Op::Nop,
        Mnemonic::Ret => Op::Return { drop: if instruction.op_count() == 0 { 0 } else { instruction.immediate16() } },
        Mnemonic::Jmp if instruction.is_jmp_short_or_near() => Op::Jump { offset: branch_offset(instruction)? },
        _ if instruction.is_jcc_short_or_near() => Op::JumpIf {
            // iced numbers the conditions as the opcodes do, after a zero for "none"
            condition: (instruction.condition_code() as u8).checked_sub(1)?,
            offset: branch_offset(instruction)?,
        },
        Mnemonic::Mov => mov(instruction)?,
        Mnemonic::Movzx => extend(instruction, false)?,
        Mnemonic::Movsx | Mnemonic::Movsxd => extend(instruction, true)?,
        Mnemonic::Cbw => widen_rax(Width::W8, Width::W16),
        Mnemonic::Cwde => widen_rax(Width::W16, Width::W32),
        Mnemonic::Cdqe => widen_rax(Width::W32, Width::W64),
        Mnemonic::Lea => {
            let (to, width) = register(instruction.op0_register())?;
            Op::Lea { width, to, of: location(instruction)? }
        }
        Mnemonic::Add => alu(Alu::Add, instruction)?,
        Mnemonic::Sub => alu(Alu::Sub, instruction)?,
        Mnemonic::Cmp => alu(Alu::Cmp, instruction)?,
        Mnemonic::And => alu(Alu::And, instruction)?,
        Mnemonic::Test => alu(Alu::Test, instruction)?,
        Mnemonic::Or => alu(Alu::Or, instruction)?,
        Mnemonic::Xor => alu(Alu::Xor, instruction)?,
        _ => return None,
    };
    Some(Emulated { len: u8::try_from(instruction.len()).ok()?, op })
}

fn branch_offset(instruction: &Instruction) -> Option<i32> {
    let distance = instruction.near_branch_target().wrapping_sub(instruction.next_ip()).cast_signed();
    i32::try_from(distance).ok()
}

fn mov(instruction: &Instruction) -> Option<Op> {
    if instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let (to, width) = register(instruction.op0_register())?;
    if instruction.op1_kind() == OpKind::Immediate64 {
        return Some(Op::MovWide { to, value: instruction.immediate64().to_le_bytes() });
    }
    Some(Op::Mov { width, to, from: operand(instruction, 1, width)? })
}

fn extend(instruction: &Instruction, signed: bool) -> Option<Op> {
    let (to, width) = register(instruction.op0_register())?;
    if instruction.mnemonic() == Mnemonic::Movsxd && width == Width::W16 {
        // Intel's processors load two bytes, AMD's four
        return None;
    }
    let from_width = match instruction.op1_kind() {
        OpKind::Register => register(instruction.op1_register())?.1,
        OpKind::Memory => match instruction.memory_size().size() {
            1 => Width::W8,
            2 => Width::W16,
            4 => Width::W32,
            _ => return None,
        },
        _ => return None,
    };
    Some(Op::Extend { signed, width, to, from_width, from: operand(instruction, 1, from_width)? })
}

fn widen_rax(from_width: Width, width: Width) -> Op {
    let rax = Part { index: 0, high: false };
    Op::Extend { signed: true, width, to: rax, from_width, from: Operand::Register(rax) }
}

fn alu(alu: Alu, instruction: &Instruction) -> Option<Op> {
    let reads_only = matches!(alu, Alu::Cmp | Alu::Test);
    let width = match instruction.op0_kind() {
        OpKind::Register => register(instruction.op0_register())?.1,
        OpKind::Memory if reads_only => match instruction.memory_size().size() {
            1 => Width::W8,
            2 => Width::W16,
            4 => Width::W32,
            8 => Width::W64,
            _ => return None,
        },
        _ => return None,
    };
    let (left, right) = (operand(instruction, 0, width)?, operand(instruction, 1, width)?);
    Some(Op::Alu { alu, width, left, right })
}

/// Operand number `n` of `instruction`, which must be of size `width`.
fn operand(instruction: &Instruction, n: u32, width: Width) -> Option<Operand> {
    match instruction.op_kind(n) {
        OpKind::Register => {
            let (part, actual) = register(instruction.op_register(n))?;
            (actual == width).then_some(Operand::Register(part))
        }
        OpKind::Memory => location(instruction).map(Operand::Memory),
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => {
            // the low half has all that the operand size lets through; a 64-bit operand's upper half is its sign
            Some(Operand::Immediate(instruction.immediate(n) as u32 as i32))
        }
        _ => None,
    }
}

/// The memory operand's address, if it is 64 bits wide and in a flat segment.
fn location(instruction: &Instruction) -> Option<Location> {
    if matches!(instruction.memory_segment(), Register::FS | Register::GS) {
        return None;
    }
    let pointer = |r: Register| match register(r) {
        Some((part, Width::W64)) => Some(part.index),
        _ => None,
    };
    let displacement = instruction.memory_displacement64().cast_signed();
    let (base, displacement) = match instruction.memory_base() {
        // iced gives the address itself here
        Register::RIP => (Base::Next, displacement.wrapping_sub(instruction.next_ip().cast_signed())),
        Register::None => (Base::None, displacement),
        r => (Base::Register(pointer(r)?), displacement),
    };
    let index = match instruction.memory_index() {
        Register::None => None,
        r => Some((pointer(r)?, u8::try_from(instruction.memory_index_scale().checked_ilog2()?).ok()?)),
    };
    // without a register, a 32-bit address-size prefix would not show in them
    if base == Base::None && index.is_none() && instruction.memory_displ_size() != 8 {
        return None;
    }
    Some(Location { base, index, disp: i32::try_from(displacement).ok()? })
}

/// The part of [`crate::arch::Regs::gpr`] that a general-purpose register is, and its size.
fn register(r: Register) -> Option<(Part, Width)> {
    let width = match () {
        () if r.is_gpr8() => Width::W8,
        () if r.is_gpr16() => Width::W16,
        () if r.is_gpr32() => Width::W32,
        () if r.is_gpr64() => Width::W64,
        () => return None,
    };
    let number = r.full_register().number();
    let index = DWARF_NUMBER.get(number).copied().unwrap_or(number);
    let high = matches!(r, Register::AH | Register::CH | Register::DH | Register::BH);
    Some((Part { index: u8::try_from(index).ok()?, high }, width))
}
