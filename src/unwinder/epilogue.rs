//! Code without CFI whose way to its return is plain: from where a call returns to, through nothing but calls and
//! moves, to `pop %rbp; ret` or
//! `leave; ret`. So is crtbegin's `__do_global_dtors_aux`, below which the static destructors of a library run; other
//! code without CFI, such as a C
//! library's start code, is not followed.

use super::rule::{Base, Rule, SAME};
use super::window::StackWindow;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// So much code is looked at, in bytes: an epilogue is short.
const LENGTH: usize = 48;

/// The frame pointer's place in [`super::rule::Saved`].
const RBP: usize = 1;

/// The rule of the frame that goes on at `at`, if its code tells it.
pub(super) fn rule<M: ReadMemory + ?Sized>(at: Addr, stack: &mut StackWindow<'_, M>) -> Option<Rule> {
    let mut code = [0; LENGTH];
    let read = stack.read(at, &mut code);
    of(code.get(..read)?, at)
}

fn of(code: &[u8], at: Addr) -> Option<Rule> {
    let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let (mut restored, mut is_noted) = (None, false);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        match (instruction.mnemonic(), restored) {
            (Mnemonic::Ret, Some(base)) if is_noted => {
                let mut saved = [SAME; 6];
                *saved.get_mut(RBP)? = -2;
                return Some(Rule::Compact { base, offset: 16, saved });
            }
            (_, Some(_)) => return None,
            (Mnemonic::Pop, None) if instruction.op0_register() == Register::RBP => restored = Some(Base::Rsp),
            (Mnemonic::Leave, None) => restored = Some(Base::Rbp),
            (Mnemonic::Call, None) => {}
            // `completed = 1`
            (Mnemonic::Mov, None) if is_note(&instruction) => is_noted = true,
            (Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Xor, None) if !changes_frame(&instruction) => {}
            // padding, the beginning of the next function behind a call that never returns, a way that forks
            _ => return None,
        }
    }
    None
}

/// Whether a byte of the module's data is set to 1.
fn is_note(instruction: &Instruction) -> bool {
    instruction.is_ip_rel_memory_operand()
        && instruction.op1_kind() == OpKind::Immediate8
        && instruction.immediate(1) == 1
}

/// Whether the frame's registers are changed.
fn changes_frame(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && matches!(instruction.op0_register().full_register(), Register::RSP | Register::RBP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that GNU as gives for the instructions named.
    #[test]
    fn only_plain_ways_to_the_return_are_followed() {
        let rule = |code: &[u8]| of(code, Addr(0x1000));
        let saved = [SAME, -2, SAME, SAME, SAME, SAME];
        // call deregister_tm_clones; movb $1,completed(%rip); pop %rbp; ret
        let crt = b"\xe8\x64\xff\xff\xff\xc6\x05\x1d\x2f\x00\x00\x01\x5d\xc3";
        assert_eq!(rule(crt), Some(Rule::Compact { base: Base::Rsp, offset: 16, saved }));
        let with_leave = b"\xc6\x05\x1d\x2f\x00\x00\x01\xc9\xc3";
        assert_eq!(rule(with_leave), Some(Rule::Compact { base: Base::Rbp, offset: 16, saved }), "movb; leave; ret");
        for other in [
            &b"\xc3"[..],                        // ret: the frame pointer is not in play
            b"\xc9\xc3",                         // leave; ret
            b"\x55\x5d\xc3",                     // push %rbp; pop %rbp; ret
            b"\x75\x01\x5d\xc3",                 // jne; pop %rbp; ret
            b"\xe8\x00\x00\x00\x00\x90\x5d\xc3", // call; nop; pop %rbp; ret
            b"\x48\x89\xec\x5d\xc3",             // mov %rbp,%rsp; pop %rbp; ret
            b"\x5d\x48\x89\xc7\xc3",             // pop %rbp; mov %rax,%rdi; ret
            b"\x48\x83\xc4\x08\x5d\xc3",         // add $8,%rsp; pop %rbp; ret
            b"\x5d",                             // cut off
        ] {
            assert_eq!(rule(other), None, "{other:02x?}");
        }
    }
}
