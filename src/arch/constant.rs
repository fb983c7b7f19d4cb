//! What a function returns, where its code tells that without being run.

use crate::base::addr::Addr;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// The result of a function that does nothing but return it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returned {
    /// This value.
    Value(u64),
    /// The word that stands at this address.
    Word(Addr),
}

/// So many instructions are looked at.
const INSTRUCTIONS: usize = 12;

/// The result of the function whose `code` begins at `at`: what `return "text";` and `return pointer;` are compiled to,
/// with or without a frame pointer. None for anything else.
pub fn returned(code: &[u8], at: Addr) -> Option<Returned> {
    let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
    let mut result = None;
    for _ in 0..INSTRUCTIONS {
        let instruction = decoder.decode();
        match instruction.mnemonic() {
            Mnemonic::Endbr64 | Mnemonic::Nop | Mnemonic::Leave => {}
            Mnemonic::Push | Mnemonic::Pop if instruction.op0_register() == Register::RBP => {}
            Mnemonic::Mov if instruction.op0_register() == Register::RBP => {}
            Mnemonic::Lea | Mnemonic::Mov | Mnemonic::Xor => result = Some(result_of(&instruction)?),
            Mnemonic::Ret => return result,
            _ => return None,
        }
    }
    None
}

fn result_of(instruction: &Instruction) -> Option<Returned> {
    let to = instruction.op0_register();
    let is_result = instruction.op0_kind() == OpKind::Register && (to == Register::RAX || to == Register::EAX);
    let is_relative = instruction.op1_kind() == OpKind::Memory && instruction.is_ip_rel_memory_operand();
    match instruction.mnemonic() {
        _ if !is_result => None,
        Mnemonic::Lea if is_relative => Some(Returned::Value(instruction.ip_rel_memory_address())),
        Mnemonic::Mov if is_relative && to == Register::RAX => {
            Some(Returned::Word(Addr(instruction.ip_rel_memory_address())))
        }
        Mnemonic::Mov => match instruction.op1_kind() {
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => {
                Some(Returned::Value(instruction.immediate(1)))
            }
            _ => None,
        },
        Mnemonic::Xor if instruction.op1_register() == to => Some(Returned::Value(0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What gcc and clang 14 make of the function in its usual forms.
    #[test]
    fn plain_returns_are_understood_and_nothing_else_is() {
        let at = Addr(0x1000);
        let of = |code: &[u8]| returned(code, at);
        // endbr64; push rbp; mov rbp,rsp; lea rax,[rip+0x100]; pop rbp; ret
        let framed = b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\x48\x8d\x05\x00\x01\x00\x00\x5d\xc3";
        assert_eq!(of(framed), Some(Returned::Value(0x110f)));
        assert_eq!(of(b"\x48\x8d\x05\x00\x01\x00\x00\xc3"), Some(Returned::Value(0x1107)), "lea rax,[rip+0x100]; ret");
        assert_eq!(of(b"\xb8\x04\x20\x40\x00\xc3"), Some(Returned::Value(0x402004)), "mov eax,0x402004; ret");
        assert_eq!(of(b"\x48\x8b\x05\x00\x01\x00\x00\xc3"), Some(Returned::Word(Addr(0x1107))), "mov rax,[rip+0x100]");
        assert_eq!(of(b"\x31\xc0\xc3"), Some(Returned::Value(0)), "xor eax,eax; ret");
        assert_eq!(of(b"\xc3"), None, "returns what was there");
        assert_eq!(of(b"\xe8\x00\x00\x00\x00\xc3"), None, "calls");
        assert_eq!(of(b"\x48\x89\xf8\xc3"), None, "returns its argument");
        assert_eq!(of(b"\x48\x8d\x05\x00\x01"), None, "cut off");
    }
}
