//! Code that goes on on another stack, and says nothing of it in its CFI: Go's `asmcgocall`, `systemstack`, `mcall`.
//! What lies where the
//! return address should be is some word of that stack.

use super::window::StackWindow;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Longer functions are not looked through, in bytes: those that switch stacks are short assembly.
const LONGEST: u64 = 2048;

/// Whether the function that begins at `start` has taken another stack before it came to `at`, as far as its code in
/// the order of addresses tells.
pub(super) fn has_switched<M: ReadMemory + ?Sized>(start: Addr, at: Addr, stack: &mut StackWindow<'_, M>) -> bool {
    let length = at.0.saturating_sub(start.0);
    if length > LONGEST {
        return false;
    }
    let mut code = vec![0; length as usize];
    let read = stack.read(start, &mut code);
    switches(code.get(..read).unwrap_or_default(), start)
}

fn switches(code: &[u8], start: Addr) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if takes_stack(&instruction) {
            return true;
        }
    }
    false
}

/// Whether an instruction makes the stack pointer another one than one that follows from it or from the frame pointer.
fn takes_stack(instruction: &Instruction) -> bool {
    let is_stack = |operand: u32| {
        instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand) == Register::RSP
    };
    let from_here = |register: Register| matches!(register, Register::RSP | Register::RBP);
    match instruction.mnemonic() {
        Mnemonic::Mov if is_stack(0) => match instruction.op_kind(1) {
            OpKind::Register => !from_here(instruction.op_register(1)),
            _ => true,
        },
        Mnemonic::Lea if is_stack(0) => !from_here(instruction.memory_base()),
        Mnemonic::Xchg => is_stack(0) || is_stack(1),
        Mnemonic::Pop => is_stack(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that GNU as gives for the instructions named.
    #[test]
    fn code_that_takes_another_stack_is_told_from_what_moves_its_own() {
        let of = |code: &[u8]| switches(code, Addr(0x1000));
        for taken in [
            &[0x48, 0x8b, 0x66, 0x38][..],                     // mov 0x38(%rsi),%rsp: Go's asmcgocall
            &[0x90, 0x48, 0x89, 0xfc],                         // nop; mov %rdi,%rsp
            &[0x48, 0x94],                                     // xchg %rax,%rsp
            &[0x5c],                                           // pop %rsp
            &[0x48, 0x8d, 0x67, 0xc0],                         // lea -0x40(%rdi),%rsp
            &[0x48, 0x83, 0xec, 0x40, 0x48, 0x8b, 0x66, 0x38], // sub $0x40,%rsp; mov 0x38(%rsi),%rsp
        ] {
            assert!(of(taken), "{taken:02x?}");
        }
        for own in [
            &[0x48, 0x83, 0xec, 0x40][..],   // sub $0x40,%rsp
            &[0x48, 0x83, 0xe4, 0xf0],       // and $-16,%rsp
            &[0x48, 0x89, 0xec],             // mov %rbp,%rsp
            &[0x48, 0x8d, 0x65, 0xd8],       // lea -0x28(%rbp),%rsp
            &[0x48, 0x89, 0x64, 0x24, 0x08], // mov %rsp,8(%rsp)
            &[0xc9, 0x5d],                   // leave; pop %rbp
        ] {
            assert!(!of(own), "{own:02x?}");
        }
    }
}
