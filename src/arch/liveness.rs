//! Whether code still reads a register.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register, UsedRegister,
};

/// So many instructions are looked at.
const MAX_INSTRUCTIONS: usize = 64;

/// So many bytes of code are read at once.
const PIECE: usize = 128;

/// Whether the code behind a system call, which stands at `address`, does without what `register` holds, one that a
/// call need not keep (System V x86-64 ABI): on all ways that lead on from there nothing reads it before it is
/// overwritten, up to the function's return; called functions are followed, unless they are not told the register
/// (r10). A way that leads to a system call counts as one that reads it, as that may be the same call again. `code`
/// reads code at an address, and says how many bytes.
pub fn is_dead(register: Register, address: u64, mut code: impl FnMut(u64, &mut [u8]) -> usize) -> bool {
    let mut ways = vec![address];
    // where a way joins another one: nothing new follows
    let mut joined = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    let mut left = MAX_INSTRUCTIONS;
    while let Some(address) = ways.pop() {
        let mut bytes = [0; PIECE];
        let read = code(address, &mut bytes);
        let mut decoder = Decoder::with_ip(64, bytes.get(..read).unwrap_or(&[]), address, DecoderOptions::NONE);
        loop {
            let instruction = decoder.decode();
            if left == 0 || instruction.is_invalid() {
                return false;
            }
            left -= 1;
            match step(&instruction, register, factory.info(&instruction).used_registers()) {
                Step::Read => return false,
                Step::Over => break,
                Step::Next => {}
                Step::Fork(target) => lead_to(target, &mut ways, &mut joined),
                Step::Jump(target) => {
                    lead_to(target, &mut ways, &mut joined);
                    break;
                }
            }
        }
    }
    true
}

fn lead_to(target: u64, ways: &mut Vec<u64>, joined: &mut Vec<u64>) {
    if !joined.contains(&target) {
        joined.push(target);
        ways.push(target);
    }
}

/// What an instruction means to a register's value.
enum Step {
    /// It is read, or nobody knows.
    Read,
    /// It is gone.
    Over,
    Next,
    /// The next one, or that.
    Fork(u64),
    Jump(u64),
}

fn step(instruction: &Instruction, register: Register, used: &[UsedRegister]) -> Step {
    let mut is_overwritten = false;
    for used in used.iter().filter(|used| used.register().full_register() == register) {
        match used.access() {
            // a smaller part leaves the rest
            OpAccess::Write if used.register().size() >= 4 => is_overwritten = true,
            _ => return Step::Read,
        }
    }
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        _ if matches!(instruction.code(), Code::Syscall | Code::Sysenter | Code::Int_imm8) => Step::Read,
        _ if is_overwritten => Step::Over,
        FlowControl::Next => Step::Next,
        FlowControl::Return => Step::Over,
        FlowControl::Call | FlowControl::IndirectCall if register == Register::R10 => Step::Over,
        // what the function does not read it need not keep
        FlowControl::Call if target != 0 => Step::Jump(target),
        FlowControl::ConditionalBranch if target != 0 => Step::Fork(target),
        FlowControl::UnconditionalBranch if target != 0 => Step::Jump(target),
        _ => Step::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(register: Register, code: &[u8]) -> bool {
        is_dead(register, 0x1000, |at, bytes| {
            let rest = at.checked_sub(0x1000).and_then(|at| code.get(at as usize..)).unwrap_or(&[]);
            let length = rest.len().min(bytes.len());
            bytes[..length].copy_from_slice(&rest[..length]);
            length
        })
    }

    /// The C library's ways to end a system call, and what a compiler may make of one in a loop.
    #[test]
    fn a_loop_around_a_system_call_keeps_the_register() {
        let r10 = |code: &[u8]| dead(Register::R10, code);
        // cmp $-4096, %rax; ja +1; ret; neg %eax; ret
        assert!(r10(&[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x01, 0xc3, 0xf7, 0xd8, 0xc3]));
        // mov %r8d, %edi; call
        assert!(r10(&[0x44, 0x89, 0xc7, 0xe8, 0, 0, 0, 0]));
        // test %rax, %rax; je back, to before the call; ret
        assert!(!r10(&[0x48, 0x85, 0xc0, 0x74, 0xf0, 0xc3]));
        // cmp $-4096, %rax; ja +6; mov %r8d, %edi; call; ret; neg %eax; jmp back to the mov
        let cancelled = [
            0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x09, 0x44, 0x89, 0xc7, 0xe8, 0, 0, 0, 0, 0xc3, 0xf7, 0xd8, 0xeb,
            0xf3,
        ];
        assert!(r10(&cancelled), "epoll_wait of glibc among threads");
        // the same, but what it goes back to reads it; and a loop of a jump to itself
        assert!(!r10(&[&cancelled[..8], &[0x4c, 0x89, 0xd2], &cancelled[11..]].concat()));
        assert!(r10(&[0xeb, 0xfe]));
        // mov %r10, %rdx; ret
        assert!(!r10(&[0x4c, 0x89, 0xd2, 0xc3]));
        // mov $35, %eax; syscall
        assert!(!r10(&[0xb8, 35, 0, 0, 0, 0x0f, 0x05]), "the next system call may take it");
        // an end before the function's
        assert!(!r10(&[0x90; 40]));
        assert!(!r10(&[]));
    }

    #[test]
    fn a_register_for_arguments_is_followed_into_what_is_called() {
        let rdx = |code: &[u8]| dead(Register::RDX, code);
        // call +0; then the function: ret, or mov %rdx, %rax; ret, or mov $1, %edx; mov %rdx, %rax; ret
        assert!(rdx(&[0xe8, 0, 0, 0, 0, 0xc3]));
        assert!(!rdx(&[0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xd0, 0xc3]));
        assert!(rdx(&[0xe8, 0, 0, 0, 0, 0xba, 1, 0, 0, 0, 0x48, 0x89, 0xd0, 0xc3]));
        // je +3; mov %rdx, %rax on one of two ways
        assert!(!rdx(&[0x74, 0x01, 0xc3, 0x48, 0x89, 0xd0, 0xc3]));
        // call *%rax
        assert!(!rdx(&[0xff, 0xd0, 0xc3]));
        // mov $1, %dl: the rest is left
        assert!(!rdx(&[0xb2, 0x01, 0x48, 0x89, 0xd0, 0xc3]));
    }
}
