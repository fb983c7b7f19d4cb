//! The code of a remote call: one system call, and behind it the way back.
//!
//! As long as heaptrace is there it stops the thread right behind the call, and the rest never runs. If heaptrace is
//! killed, the thread goes on by itself: it gives itself its signal mask and its registers back and goes on where it
//! was. It needs no stack for that, and leaves flags and floating-point state alone, as no instruction in it changes
//! them.

use crate::arch::{Regs, reg};

/// Bytes of the code.
pub const SIZE: usize = 144;

/// The system call: the first instruction.
pub const CALL: [u8; 2] = [0x0f, 0x05];

/// The call itself, then rt_sigprocmask(SIG_SETMASK, mask, NULL, 8). The mask is the code's last word.
const CALLS: [u8; 32] = [
    0x0f, 0x05, // syscall
    0xb8, 0x0e, 0x00, 0x00, 0x00, // mov $SYS_rt_sigprocmask, %eax
    0xbf, 0x02, 0x00, 0x00, 0x00, // mov $SIG_SETMASK, %edi
    0x48, 0x8d, 0x35, 0x75, 0x00, 0x00, 0x00, // lea mask(%rip), %rsi
    0xba, 0x00, 0x00, 0x00, 0x00, // mov $0, %edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // mov $8, %r10d
    0x0f, 0x05, // syscall
];

/// The registers that the calls change, by number, with the opcodes that load a constant into each.
const CHANGED: [(usize, [u8; 2]); 9] = [
    (reg::RAX, [0x48, 0xb8]),
    (reg::RCX, [0x48, 0xb9]),
    (reg::RDX, [0x48, 0xba]),
    (reg::RSI, [0x48, 0xbe]),
    (reg::RDI, [0x48, 0xbf]),
    (reg::R8, [0x49, 0xb8]),
    (reg::R9, [0x49, 0xb9]),
    (reg::R10, [0x49, 0xba]),
    (reg::R11, [0x49, 0xbb]),
];

/// jmp *resume(%rip): the word behind it.
const RETURN: [u8; 6] = [0xff, 0x25, 0x00, 0x00, 0x00, 0x00];

/// The code for a thread that goes on with the registers `resume` and the signal mask `mask`: [`SIZE`] bytes.
pub fn image(resume: &Regs, mask: u64) -> Vec<u8> {
    let mut bytes = CALLS.to_vec();
    for (register, opcode) in CHANGED {
        bytes.extend(opcode);
        bytes.extend(resume.gpr.get(register).copied().unwrap_or(0).to_le_bytes());
    }
    bytes.extend(RETURN);
    bytes.extend(resume.rip.to_le_bytes());
    bytes.extend(mask.to_le_bytes());
    bytes
}

/// Whether `bytes` begin with an [`image`], for whatever registers.
pub fn is_image(bytes: &[u8]) -> bool {
    let Some(mut rest) = bytes.strip_prefix(&CALLS) else { return false };
    for (_, opcode) in CHANGED {
        match rest.strip_prefix(&opcode).and_then(|rest| rest.split_first_chunk::<8>()) {
            Some((_constant, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.starts_with(&RETURN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions, Register};

    const MASK: usize = SIZE - 8;
    const RESUME: usize = SIZE - 16;

    /// As another decoder reads it: the constants go where they belong, the flags and the stack are left alone.
    #[test]
    fn the_way_back_loads_what_the_calls_change() {
        let mut resume = Regs { rip: 0x7fff_0000_1234, ..Regs::default() };
        for (number, value) in resume.gpr.iter_mut().enumerate() {
            *value = 0xa000 + number as u64;
        }
        let bytes = image(&resume, 0x55);
        assert_eq!(bytes.len(), SIZE);
        assert!(is_image(&bytes) && !is_image(&bytes[1..]) && !is_image(&bytes[..SIZE - 20]));
        assert_eq!(bytes[..CALL.len()], CALL);
        assert_eq!(bytes[RESUME..MASK], resume.rip.to_le_bytes());
        assert_eq!(bytes[MASK..], 0x55u64.to_le_bytes());
        let mut decoder = Decoder::with_ip(64, &bytes[..RESUME], 0x1000, DecoderOptions::NONE);
        let (mut calls, mut loaded) = (0, Vec::new());
        for instruction in &mut decoder {
            // a system call returns with the flags from before, which the processor keeps in r11
            let keeps_flags = instruction.rflags_modified() == 0 || instruction.code() == Code::Syscall;
            assert!(keeps_flags, "{:?}", instruction.code());
            assert_eq!(instruction.stack_pointer_increment(), 0, "{:?}", instruction.code());
            match instruction.code() {
                Code::Syscall => calls += 1,
                Code::Mov_r64_imm64 => loaded.push((instruction.op0_register(), instruction.immediate64())),
                Code::Lea_r64_m => assert_eq!(instruction.memory_displacement64(), 0x1000 + MASK as u64),
                Code::Jmp_rm64 => assert_eq!(instruction.memory_displacement64(), 0x1000 + RESUME as u64),
                Code::Mov_r32_imm32 => assert_eq!(calls, 1, "{:?}", instruction.code()),
                _ => panic!("{:?}", instruction.code()),
            }
        }
        assert_eq!(calls, 2);
        let value = |number: usize| 0xa000 + number as u64;
        // a call changes rax, rcx and r11; the others are its arguments
        let expected = [
            (Register::RAX, value(reg::RAX)),
            (Register::RCX, value(reg::RCX)),
            (Register::RDX, value(reg::RDX)),
            (Register::RSI, value(reg::RSI)),
            (Register::RDI, value(reg::RDI)),
            (Register::R8, value(reg::R8)),
            (Register::R9, value(reg::R9)),
            (Register::R10, value(reg::R10)),
            (Register::R11, value(reg::R11)),
        ];
        assert_eq!(loaded, expected);
    }
}
