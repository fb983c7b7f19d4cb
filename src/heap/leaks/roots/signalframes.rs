//! Frames that the kernel lays on a thread's stack when it has it run a handler of a signal: they say where the
//! thread's signal stack lies (`struct rt_sigframe` in arch/x86/include/asm/sigframe.h, `uc_stack` in
//! include/uapi/asm-generic/ucontext.h).

use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use std::ops::Range;

/// So much of a stack is looked through, from the stack pointer on.
const MAX_STACK_BYTES: u64 = 1 << 20;

/// So much at once.
const PIECE: usize = 16 << 10;

/// What of a frame is read: the address that the handler returns to, and the `struct ucontext` up to the pointer to the
/// floating-point state.
const HEAD: usize = 240;

/// Where in a frame its parts lie.
const UC_FLAGS: usize = 8;
const UC_LINK: usize = 16;
const SS_SP: usize = 24;
const SS_FLAGS: usize = 32;
const SS_SIZE: usize = 40;
const SP: usize = 168;
const CS: usize = 192;
const FPSTATE: usize = 232;

/// What handlers return to: `mov $SYS_rt_sigreturn, %rax; syscall` as glibc and musl have it, and the shorter form.
const RESTORERS: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05], &[0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05]];

/// The code segment of 64-bit programs.
const USER_CS: u64 = 0x33;

/// The flags of `uc_flags` that there are.
const MAX_FLAGS: u64 = 7;

/// The floating-point state lies behind the frame, and no further than this: it has at most some 11 KiB (AMX).
const FARTHEST_STATE: u64 = 64 << 10;

/// Of no signal stack (SS_DISABLE).
const DISABLED: u64 = 2;

/// Where the signal stack of a thread lies (None in it: there is none) by the innermost frame of a handler in `stack`,
/// what is in use of the thread's stack. None: it runs no handler.
pub(super) fn registered_stack(stack: Range<Addr>, memory: &mut dyn ReadMemory) -> Option<Option<Range<Addr>>> {
    let end = stack.end.0.min(stack.start.0.saturating_add(MAX_STACK_BYTES));
    // the kernel aligns frames so that their second word begins at a multiple of sixteen bytes
    let mut at = (stack.start.0 & !15).saturating_add(8);
    if at < stack.start.0 {
        at = at.saturating_add(16);
    }
    let mut bytes = vec![0; PIECE + HEAD];
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE + HEAD);
        let read = memory.read(Addr(at), bytes.get_mut(..wanted)?);
        let frames = bytes.get(..read)?;
        for offset in (0..PIECE).step_by(16) {
            let Some(head) = frames.get(offset..offset + HEAD) else { break };
            let place = Addr(at + offset as u64);
            if is_frame(head, place, &stack) && is_restorer(word(head, 0)?, memory) {
                let [start, flags, size] = [SS_SP, SS_FLAGS, SS_SIZE].map(|part| word(head, part).unwrap_or(0));
                let registered = Addr(start)..Addr(start.saturating_add(size));
                return Some(Some(registered).filter(|_| flags & DISABLED == 0 && start != 0 && size != 0));
            }
        }
        if read < wanted {
            break;
        }
        at += PIECE as u64;
    }
    None
}

/// Whether what lies at `at` has the form of a frame that a handler of the thread with this stack returns by: it goes
/// back to a place on the same stack, or the frame is on the signal stack that it names.
fn is_frame(head: &[u8], at: Addr, stack: &Range<Addr>) -> bool {
    let part = |offset| word(head, offset).unwrap_or(0);
    let is_context = part(CS) & 0xffff == USER_CS && part(UC_FLAGS) <= MAX_FLAGS && part(UC_LINK) == 0;
    let state = part(FPSTATE);
    let has_state = state == 0 || state > at.0 && state - at.0 < FARTHEST_STATE;
    let is_on_it = part(SS_SP) <= at.0 && at.0 < part(SS_SP).saturating_add(part(SS_SIZE));
    let goes_back_here = part(SP) > at.0 && part(SP) <= stack.end.0;
    is_context && has_state && (is_on_it || goes_back_here)
}

fn is_restorer(at: u64, memory: &mut dyn ReadMemory) -> bool {
    RESTORERS.iter().any(|code| {
        let mut found = vec![0; code.len()];
        memory.read(Addr(at), &mut found) == code.len() && found == *code
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of memory.
    struct Pieces(Vec<(u64, Vec<u8>)>);

    impl ReadMemory for Pieces {
        fn read(&mut self, at: Addr, buf: &mut [u8]) -> usize {
            let held = |(start, bytes): &&(u64, Vec<u8>)| (*start..*start + bytes.len() as u64).contains(&at.0);
            let Some((start, bytes)) = self.0.iter().find(held) else { return 0 };
            let bytes = &bytes[usize::try_from(at.0 - start).unwrap()..];
            let length = bytes.len().min(buf.len());
            buf[..length].copy_from_slice(&bytes[..length]);
            length
        }
    }

    const RESTORER_AT: u64 = 0x7000_0000;

    /// A frame with these parts at the end of some words, as memory from 0x1000 on.
    fn memory(before: usize, parts: &[(usize, u64)]) -> (Range<Addr>, Pieces) {
        let mut bytes = vec![0; before * 16 + 8];
        let mut frame = [0; 448];
        let all = [(0, RESTORER_AT), (UC_FLAGS, 7), (CS, 0x2b_0000_0000_0033)];
        for (offset, value) in all.iter().chain(parts) {
            frame[*offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes.extend(frame);
        let stack = Addr(0x1000)..Addr(0x1000 + bytes.len() as u64);
        (stack, Pieces(vec![(0x1000, bytes), (RESTORER_AT, RESTORERS[0].to_vec())]))
    }

    #[test]
    fn a_frame_on_the_signal_stack_that_it_names_tells_where_that_lies() {
        let named = [(SS_SP, 0x800), (SS_SIZE, 0x8_0000), (SP, 0x7fff_0000)];
        // across the pieces in which it is read, too
        for before in [0, 3, PIECE / 16 - 1, PIECE / 16, 2 * PIECE / 16 - 7] {
            let (stack, mut memory) = memory(before, &named);
            assert_eq!(registered_stack(stack, &mut memory), Some(Some(Addr(0x800)..Addr(0x8_0800))), "{before}");
        }
        let (stack, mut memory) = memory(3, &[(SS_SP, 0), (SS_FLAGS, 2), (SP, 0x1100)]);
        assert_eq!(registered_stack(stack, &mut memory), Some(None), "there is none, and a handler runs");
    }

    #[test]
    fn what_has_not_the_form_of_a_frame_tells_nothing() {
        let named = [(SS_SP, 0x800), (SS_SIZE, 0x8_0000), (SP, 0x7fff_0000)];
        for other in [(0, 0x1000), (CS, 0x2b), (UC_FLAGS, 8), (UC_LINK, 1), (FPSTATE, 8), (SS_SIZE, 0x10)] {
            let (stack, mut memory) = memory(3, &[&named[..], &[other]].concat());
            assert_eq!(registered_stack(stack, &mut memory), None, "{other:?}");
        }
        let (_, mut of_words) = memory(3, &named);
        assert_eq!(registered_stack(Addr(0x9000)..Addr(0xa000), &mut of_words), None, "no memory");
        let empty = Addr(u64::MAX)..Addr(u64::MAX);
        assert_eq!(registered_stack(empty, &mut of_words), None);
    }
}
