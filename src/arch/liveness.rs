//! Whether code still reads a register.

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, Register};

/// So many instructions are looked at.
const MOST: usize = 24;

/// Whether the code behind a system call, which stands at `address`, does without what r10 holds: nothing reads it up
/// to the function's return, or its next call, which need not keep it
/// (System V x86-64 ABI). Code that goes back may make the same system call again.
pub fn r10_is_dead(code: &[u8], address: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    for instruction in decoder.iter().take(MOST) {
        if instruction.is_invalid() {
            return false;
        }
        let used = factory.info(&instruction).used_registers().iter();
        let mut accesses =
            used.filter(|used| used.register().full_register() == Register::R10).map(|used| used.access());
        if accesses.any(|access| !matches!(access, OpAccess::Write)) {
            return false;
        }
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Return | FlowControl::Call | FlowControl::IndirectCall => return true,
            FlowControl::ConditionalBranch if instruction.near_branch_target() > instruction.ip() => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library's ways to end a system call, and what a compiler may make of one in a loop.
    #[test]
    fn a_loop_around_a_system_call_keeps_the_register() {
        // cmp $-4096, %rax; ja +0x5d; ret
        assert!(r10_is_dead(&[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x5d, 0xc3], 0x1000));
        // mov %r8d, %edi; call
        assert!(r10_is_dead(&[0x44, 0x89, 0xc7, 0xe8, 0, 0, 0, 0], 0x1000));
        // test %rax, %rax; je back; ret
        assert!(!r10_is_dead(&[0x48, 0x85, 0xc0, 0x74, 0xf0, 0xc3], 0x1000));
        // mov %r10, %rdx; ret
        assert!(!r10_is_dead(&[0x4c, 0x89, 0xd2, 0xc3], 0x1000));
        // an end before the function's
        assert!(!r10_is_dead(&[0x90; 40], 0x1000));
        assert!(!r10_is_dead(&[], 0x1000));
    }
}
